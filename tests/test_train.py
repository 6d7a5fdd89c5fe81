"""Training with real processes, real files and real faults."""

import json
import os
import pickle
import random
import re
import resource
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from conftest import EVERY, assert_one_line
from torch.utils._python_dispatch import TorchDispatchMode

from minicl import load
from minicl.checkpoint import checkpoints, read
from minicl.config import PRESETS, Config
from minicl.errors import InputError
from minicl.optim import orthogonalise
from minicl.schedule import learning_rate, prompt_size
from minicl.train import Devices, Training

ROOT = Path(__file__).parent.parent
TINY = {"n_dims": 2, "examples": 3, "max_examples": 8, "n_layer": 1, "n_head": 1, "n_embd": 8, "batch_size": 8}
TINY |= {"queries": 2, "steps": 60, "log_every": 7, "save_every": 5, "validate": 16, "threads": 1, "warmup": 5}


def flags(**settings):
    given = TINY | settings
    return [part for name, value in given.items() for part in ("--" + name.replace("_", "-"), str(value))]


def start(out, *extra, cwd=None, **settings):
    command = [sys.executable, "-m", "minicl.cli", "train", *flags(**settings), "--out", str(out), *extra]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=cwd)


def finish(process, timeout=60):
    out, err = process.communicate(timeout=timeout)
    return subprocess.CompletedProcess(process.args, process.returncode, out, err)


def train(out, *extra, timeout=60, **settings):
    return finish(start(out, *extra, **settings), timeout)


def trainer(**settings):
    config = Config.make("demo", **(TINY | settings))
    return Training(config, Devices(config.machine, config.train.batch_size))


def wait_for(condition, process, seconds=30):
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "nothing happened"
        assert process.poll() is None, process.stderr.read()
        time.sleep(0.005)


def assert_same_run(one, two):
    """The same metrics, and bit-identical final weights and optimiser state."""
    assert (one / "metrics.jsonl").read_bytes() == (two / "metrics.jsonl").read_bytes()
    a, b = (read(next(iter(checkpoints(run).values()))) for run in (one, two))
    assert a["step"] == b["step"]
    for name, value in a["model"].items():
        assert torch.equal(value, b["model"][name]), name
    for key, entry in a["optimizer"]["state"].items():
        for name, value in entry.items():
            assert torch.equal(value, b["optimizer"]["state"][key][name]), (key, name)


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """An uninterrupted run, for comparison."""
    out = tmp_path_factory.mktemp("whole") / "run"
    assert train(out).returncode == 0
    return out


def test_a_run_folder_explains_itself(whole):
    lines = [json.loads(line) for line in (whole / "metrics.jsonl").read_text().splitlines()]
    assert [line["step"] for line in lines] == [0, 7, 14, 21, 28, 35, 42, 49, 56, 60]
    assert set(lines[-1]) == {"step", "loss", "lr", "error"} and set(lines[-1]["error"]) == {"1", "3"}
    assert Config.from_json(json.loads((whole / "config.json").read_text())).train.steps == 60
    assert list(checkpoints(whole)) == [60, 55]
    model = load(whole)
    assert not model.training and model.config.n_embd == 8
    newest = next(iter(checkpoints(whole).values()))
    for name, value in load(newest).state_dict().items():
        assert torch.equal(value, model.state_dict()[name])


def test_the_same_command_twice(whole, tmp_path):
    result = train(tmp_path / "run")
    assert_same_run(whole, tmp_path / "run")
    assert "next: minicl evaluate" in result.stderr.splitlines()[-1]
    before = (tmp_path / "run" / "metrics.jsonl").read_bytes()
    again = train(tmp_path / "run", "--json")
    assert again.returncode == 0 and "is finished: 60 steps" in again.stderr
    assert json.loads(again.stdout)["step"] == 60
    assert (tmp_path / "run" / "metrics.jsonl").read_bytes() == before
    (tmp_path / "run" / "metrics.jsonl").write_text("")
    again = train(tmp_path / "run", "--json")
    assert (again.returncode, again.stdout) == (0, ""), "emptied by hand: nothing to print, nothing to trip over"


def kill_and_resume(tmp_path, kills, seed, **settings):
    """Kill -9 at random moments of a run that saves at every step, so that many hit a save; then let it finish."""
    settings = {"steps": 400, "save_every": 1, "log_every": 3} | settings
    assert train(tmp_path / "whole", **settings).returncode == 0
    out, dice, killed_at = tmp_path / "killed", random.Random(seed), []
    for _ in range(kills):
        before = next(iter(checkpoints(out)), -1)
        process = start(out, **settings)
        wait_for(lambda before=before: next(iter(checkpoints(out)), -1) > before, process)
        time.sleep(dice.uniform(0, 0.25))
        process.kill()
        process.communicate()
        killed_at.append(next(iter(checkpoints(out)), -1))
        if killed_at[-1] >= settings["steps"]:
            break
    assert train(out, **settings).returncode == 0
    assert_same_run(tmp_path / "whole", out)
    assert not list(out.rglob(".*.tmp"))
    return killed_at


def test_kill_9_at_random_moments_leaves_no_trace(tmp_path):
    killed_at = kill_and_resume(tmp_path, kills=3, seed=0)
    assert len({k for k in killed_at if 0 < k < 400}) == 3, "the kills hit the middle of the run"


@pytest.mark.parametrize("number, status", [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_signals_save_and_say_how_to_resume(tmp_path, whole, number, status):
    out = tmp_path / "run"
    process = start(out)
    wait_for(lambda: (out / "metrics.jsonl").exists(), process)
    asked = time.monotonic()
    process.send_signal(number)
    result = finish(process)
    assert time.monotonic() - asked < 5
    assert result.returncode == status
    assert f"stopped by {number.name} after" in result.stderr and "the same command resumes" in result.stderr
    assert "Traceback" not in result.stderr
    assert int(re.search(r"after (\d+) steps", result.stderr)[1]) == next(iter(checkpoints(out)))
    assert train(out).returncode == 0
    assert_same_run(whole, out)


def test_a_signal_during_validation(tmp_path):
    slow = {"validate": 10_000, "steps": 2, "log_every": 2, "n_layer": 4, "n_embd": 64}
    out = tmp_path / "run"
    assert train(tmp_path / "whole", **slow).returncode == 0
    process = start(out, **slow)
    wait_for(lambda: (out / "config.json").exists(), process)
    time.sleep(0.3)  # the validation before the first step takes longer than that
    process.send_signal(signal.SIGTERM)
    result = finish(process)
    assert result.returncode == 143 and not (out / "metrics.jsonl").exists()
    assert train(out, **slow).returncode == 0
    assert_same_run(tmp_path / "whole", out)


def test_a_signal_during_the_last_validation(cli, monkeypatch, tmp_path, whole):
    plain = Training.validate

    def interrupted(self, stop):
        if self.step == 60:
            os.kill(os.getpid(), signal.SIGTERM)
        return plain(self, stop)

    with monkeypatch.context() as patch:
        patch.setattr(Training, "validate", interrupted)
        assert cli("train", *flags(), "--out", "run").returncode == 143
    last = (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()[-1]
    assert json.loads(last)["step"] == 56 and max(checkpoints(tmp_path / "run")) == 60
    assert "is finished" not in cli("train", *flags(), "--out", "run").stderr
    assert_same_run(whole, tmp_path / "run")


def test_weights_that_are_found_bad_when_a_signal_comes(cli, monkeypatch):
    plain = Training.update
    monkeypatch.setattr(Training, "update", lambda self: plain(self) or os.kill(os.getpid(), signal.SIGTERM))
    bad = flags(lr="1e30", schedule="constant", clip=0, warmup=0)
    result = cli("train", *bad, "--out", "run")
    assert result.returncode == 1 and "no checkpoint was saved before" in result.stderr.splitlines()[-1]


def test_a_full_disk_leaves_the_older_checkpoint_whole(tmp_path, whole):
    out = tmp_path / "run"
    process = start(out)
    wait_for(lambda: checkpoints(out), process)
    process.send_signal(signal.SIGTERM)
    finish(process)
    kept, file = next(iter(checkpoints(out).items()))
    limit = file.stat().st_size - 1000  # a checkpoint does not fit, the metrics do
    command = [sys.executable, "-m", "minicl.cli", "train", *flags(), "--out", str(out)]
    result = subprocess.run(
        command,
        capture_output=True,
        text=True,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit)),
    )
    assert result.returncode == 1 and "Traceback" not in result.stderr
    assert f"newest whole checkpoint: step {kept}" in result.stderr.splitlines()[-1]
    assert next(iter(checkpoints(out))) == kept and load(out) is not None
    assert not list(out.rglob(".*.tmp"))
    assert train(out).returncode == 0
    assert_same_run(whole, out)


class Malicious:
    def __init__(self, file):
        self.file = file

    def __reduce__(self):
        return os.system, (f"touch {self.file}",)


@pytest.mark.parametrize("fault", ["truncated", "flipped", "empty", "foreign", "malicious", "text"])
def test_a_bad_checkpoint_is_named_and_passed_over(tmp_path, whole, fault):
    out, trap = tmp_path / "run", tmp_path / "trap"
    shutil.copytree(whole, out)
    newest = next(iter(checkpoints(out).values()))
    data = newest.read_bytes()
    if fault == "truncated":
        newest.write_bytes(data[: len(data) // 2])
    elif fault == "flipped":
        middle = len(data) // 2
        newest.write_bytes(data[:middle] + bytes(b ^ 0xFF for b in data[middle : middle + 64]) + data[middle + 64 :])
    elif fault == "empty":
        newest.write_bytes(b"")
    elif fault == "foreign":
        torch.save({"weights": torch.zeros(3)}, newest)
    elif fault == "malicious":
        newest.write_bytes(pickle.dumps({"format": Malicious(trap)}))
    else:
        newest.write_text("hello")
    with pytest.raises(InputError, match=re.escape(str(newest))):
        load(newest)
    result = train(out)
    assert result.returncode == 0 and not trap.exists()
    assert f"passed over {newest}" in result.stderr and "resumed at step 55" in result.stderr
    assert_same_run(whole, out)


def test_a_malicious_checkpoint_in_torch_s_own_format_runs_nothing(tmp_path):
    trap = tmp_path / "trap"
    torch.save({"format": Malicious(trap)}, tmp_path / "bad.pt")
    with pytest.raises(InputError, match="more than tensors"):
        load(tmp_path / "bad.pt")
    assert not trap.exists()


@pytest.mark.parametrize("log_every", [1, 1000])
def test_a_loss_that_runs_away_stops_the_run_and_keeps_the_last_good_checkpoint(tmp_path, log_every):
    settings = {"lr": 100.0, "warmup": 100, "schedule": "constant", "clip": 0, "save_every": 1, "log_every": log_every}
    result = train(tmp_path / "run", **settings)
    assert result.returncode == 1 and "Traceback" not in result.stderr
    last = result.stderr.splitlines()[-1]
    step, file = next(iter(checkpoints(tmp_path / "run").items()))
    assert "exploded" in last and "lower --lr" in last and f"the checkpoint of step {step} stays" in last
    training = trainer(**settings)
    training.restore(read(file))
    assert float(training.loss(step).detach()) < 100, "what is kept still answers sensibly"
    training.update()
    assert float(training.loss(step + 1).detach()) > 100, "and the update after it was the one that did not"


def test_weights_that_a_single_update_ruins_are_not_saved(tmp_path):
    result = train(tmp_path / "run", lr="1e30", schedule="constant", clip=0, save_every=1)
    assert result.returncode == 1 and "the loss of step 2 is not finite" in result.stderr
    assert "no checkpoint was saved before" in result.stderr and not checkpoints(tmp_path / "run")


def test_when_no_checkpoint_is_whole_nothing_is_thrown_away(tmp_path):
    out = tmp_path / "run"
    assert train(out).returncode == 0
    for file in checkpoints(out).values():
        file.write_bytes(b"torn")
    before = (out / "metrics.jsonl").read_bytes()
    result = train(out)
    assert result.returncode == 2 and "none of its checkpoints is whole" in result.stderr.splitlines()[-1]
    assert (out / "metrics.jsonl").read_bytes() == before and len(checkpoints(out)) == 2


def test_a_start_that_was_killed_at_once_can_start_again(tmp_path, whole):
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / ".config.json.tmp").write_text("{")
    assert train(tmp_path / "run").returncode == 0
    assert_same_run(whole, tmp_path / "run")


def test_prompts_and_weights_follow_the_seed():
    one, two = trainer(seed=0), trainer(seed=1)
    assert not torch.equal(one.batch(3)[0], two.batch(3)[0]) and not torch.equal(one.batch(3)[0], one.batch(4)[0])
    assert not torch.equal(one.model.read_in.weight, two.model.read_in.weight)


def test_two_runs_into_one_folder(tmp_path):
    first = start(tmp_path / "run", steps=100_000)
    wait_for(lambda: (tmp_path / "run" / "metrics.jsonl").exists(), first)
    assert_one_line(train(tmp_path / "run", steps=100_000), "another process", "--out")
    first.kill()
    first.communicate()


def test_another_config_is_refused(whole):
    result = train(whole, lr=0.5, mask="boe")
    assert_one_line(result, "other settings", "lr 0.001 there, 0.5 here", "mask ar there, boe here")
    assert train(whole, threads=2).returncode == 0, "but not for another machine"


def test_out_must_be_a_folder_of_ours(tmp_path):
    (tmp_path / "file").write_text("x")
    assert_one_line(train(tmp_path / "file"), "which is a file")
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.tex").write_text("x")
    assert_one_line(train(tmp_path / "mine"), "no run folder")
    assert (tmp_path / "mine" / "thesis.tex").read_text() == "x"


BAD = [
    "--task=liner", "--mask=arr", "--mask=no.py:f", "--positions=odd", "--copies=0", "--mask=invicl --copies=1",
    "--preset=huge", "--steps=0", "--steps=many", "--steps=1.5", "--batch-size=0", "--batch-size=-3", "--seed=-1",
    "--seed=x", "--seed=99999999999999999999999", "--threads=99999999", "--keep=0", "--threads=0", "--examples=0",
    "--examples=9", "--queries=0", "--lengths=sideways", "--loss=some", "--optimizer=sgd", "--lr=0", "--lr=-1",
    "--lr=nan", "--beta2=1", "--warmup=-1", "--schedule=step", "--decay=2", "--clip=-1", "--precision=fp8",
    "--device=tpu", "--device=cuda:99", "--n-layer=0", "--n-head=3", "--n-dims=0", "--sparsity=2",
    "--task=sparse_linear --sparsity=3", "--task=decision_tree --depth=0", "--keep=61", "--keep=a,b", "--log-every=0",
    "--save-every=0", "--validate=0", "--weight-decay=-1", "--nonsense", "--noise=-1", "--max-examples=2",
    "--task=relu_2nn --hidden=0", "--curriculum-steps=0", "--out", "--init-std=0", "--symmetric-std=0", "extra",
]  # fmt: skip


@pytest.mark.parametrize("bad", BAD)
def test_bad_flags_are_one_line(bad, tmp_path, capsys, monkeypatch):
    from minicl.cli import main

    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit) as exit:
        main(["train", *flags(), *bad.split()])
    printed = capsys.readouterr()
    assert exit.value.code == 2 and printed.out == "" and len(printed.err.splitlines()) == 1
    name = bad.split()[-1].split("=")[0].lstrip("-")
    assert name in printed.err or name.replace("-", "_") in printed.err
    assert not list(tmp_path.iterdir())


def test_a_bad_flag_is_one_line_from_the_shell_too():
    result = subprocess.run([sys.executable, "train.py", "--lr", "fast"], cwd=ROOT, capture_output=True, text=True)
    assert_one_line(result, "minicl train: argument --lr: invalid float value: 'fast'")


def test_flags_override_presets_and_help_shows_their_defaults(capsys):
    from minicl.cli import main

    with pytest.raises(SystemExit) as exit:
        main(["train", "--help"])
    assert exit.value.code == 0
    text = capsys.readouterr().out
    for name in ("task", "mask", "positions", "copies", "preset", "steps", "batch-size", "seed", "out", "threads"):
        assert f"--{name} " in text
    assert Config.make("paper", steps=60_000).train.keep == (10_000, 25_000, 50_000)
    for preset in PRESETS:
        config = Config.make(preset, mask="invicl")
        assert Config.from_json(json.loads(json.dumps(config.to_json()))) == config


def test_the_paper_s_preset():
    c = Config.make("paper")
    assert (c.model.n_dims, c.data.examples, c.train.batch_size, c.train.steps) == (20, 40, 64, 200_000)
    assert (c.model.n_layer, c.model.n_head, c.model.n_embd, c.train.lr) == (12, 8, 256, 1e-4)
    assert {50_000, 200_000} <= {*c.train.keep, c.train.steps}


def test_curriculum_is_that_of_2022():
    config = Config.make("paper")
    for stage in range(15):
        for step in (2000 * stage, 2000 * stage + 1999):
            assert prompt_size(config, step) == (10 + 2 * stage, 5 + stage)
    assert prompt_size(config, 30_000) == prompt_size(config, 10**6) == (40, 20)
    training = trainer(lengths="curriculum", n_dims=4, examples=8, curriculum_steps=30)
    xs, ys, _, _ = training.batch(0)
    assert xs.shape[1] == 2 and (xs[..., 1:] == 0).all() and (xs[..., 0] != 0).all() and (ys != 0).any()


def test_lengths_and_loss_follow_from_the_mask():
    """A causal mask trains every shorter context with the full one; the others must be shown short ones on purpose."""
    chosen = {}
    for mask in EVERY:
        config = Config.make("demo", mask=mask)
        chosen[mask] = (config.data.lengths, config.train.loss)
    assert chosen == {
        "ar": ("fixed", "all"),
        "nope": ("fixed", "all"),
        "prefix": ("long", "query"),
        "boe": ("long", "all"),
        "saicl": ("long", "query"),
        "invicl": ("long", "all"),
        "offdiagonal": ("long", "query"),
    }
    assert Config.make("demo", mask="ar", loss="query").data.lengths == "long"
    assert Config.make("demo", mask="prefix", examples=1).train.loss == "query", "the last example's leak counts too"
    assert Config.make("demo", mask="ar", lengths="uniform").data.lengths == "uniform"


@pytest.mark.parametrize("lengths, shares", [("uniform", [7] * 7), ("long", [1, 3, 5, 7, 9, 11, 13])])
def test_lengths_are_drawn_as_they_say_and_purely(lengths, shares):
    def sizes(seed):
        config = Config.make("demo", lengths=lengths, examples=6, seed=seed)
        return [prompt_size(config, step)[0] for step in range(9800)]

    assert sizes(0) == sizes(0) != sizes(1)
    assert [sizes(0).count(n) / 200 for n in range(7)] == pytest.approx(shares, rel=0.12, abs=0.25)


def test_learning_rates():
    def rates(**settings):
        train = Config.make("demo", steps=100, lr=1.0, **settings).train
        return [learning_rate(train, step) for step in range(101)]

    assert rates(schedule="constant", warmup=0) == [1.0] * 101
    warm = rates(schedule="cosine", warmup=10)
    assert warm[:10] == pytest.approx([(i + 1) / 10 for i in range(10)])
    assert warm[10] == 1 and warm[55] == pytest.approx(0.5) and warm[100] == pytest.approx(0)
    stable = rates(schedule="stable", warmup=0, decay=0.2)
    assert stable[:81] == [1.0] * 81 and stable[90] == pytest.approx(0.5) and stable[100] == pytest.approx(0)


def test_what_the_loss_is_taken_over():
    """By hand, from the model's own answers, for both objectives."""
    for loss in ("all", "query"):
        training = trainer(loss=loss, lengths="fixed")
        xs, ys, queries, targets = training.batch(3)
        out = training.model(xs, ys, queries)
        errors = (out.query - targets).square()
        if loss == "all":
            errors = torch.cat([errors, (out.context - ys).square()], dim=1)
        torch.testing.assert_close(training.loss(3), errors.mean() / 2)


def test_a_mask_that_leaks_trains_on_queries_unless_told_otherwise(tmp_path):
    leaking = {m for m in EVERY if Config.make("demo", mask=m).leaks}
    assert leaking == {"prefix", "saicl", "offdiagonal"}
    assert Config.make("demo", mask="boe", copies=2).leaks
    assert not Config.make("demo", mask="saicl", n_layer=1).leaks, "with one layer nothing has come back yet"
    quiet, told = train(tmp_path / "a", mask="prefix"), train(tmp_path / "b", mask="prefix", loss="all")
    assert "query predictions alone" in quiet.stderr and "note:" not in quiet.stderr
    assert told.stderr.count("can see its own label") == 1


@pytest.mark.parametrize(
    "settings", [{}, {"optimizer": "adamw", "weight_decay": 0.1}, {"clip": 0.5}, {"precision": "bf16"}]
)
@pytest.mark.parametrize("mask", ["ar", "invicl"])
def test_the_loss_falls(mask, settings):
    training = trainer(
        mask=mask, n_dims=1, examples=4, n_layer=2, n_head=2, n_embd=16, batch_size=64, steps=150, warmup=10, lr=5e-3,
        init_std=0.2, lengths="fixed", schedule="constant", **settings,
    )  # fmt: skip
    losses = []
    for _ in range(150):
        training.update()
        losses.append(float(training.loss_sum))
        training.loss_sum.zero_()
    assert sum(losses[-20:]) < 0.75 * sum(losses[:20])


def test_weight_decay_touches_matrices_only():
    training = trainer(optimizer="adamw", weight_decay=0.5, lr=0.1, warmup=0)
    decays = {id(p): g["weight_decay"] for g in training.optimizer.param_groups for p in g["params"]}
    for p in training.model.parameters():
        assert decays[id(p)] == (0.5 if p.ndim > 1 else 0)


class NoReadingBack(TorchDispatchMode):
    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        assert func is not torch.ops.aten._local_scalar_dense.default, "a value was read back"
        return func(*args, **(kwargs or {}))


def test_muon_sets_singular_values_to_about_one_and_keeps_their_directions():
    torch.manual_seed(0)
    for shape in ((2, 8, 24), (3, 24, 8)):
        given = torch.randn(shape, dtype=torch.double)
        left, values, right = torch.linalg.svd(given, full_matrices=False)
        inside = left.mT @ orthogonalise(given) @ right.mT
        found = inside.diagonal(dim1=1, dim2=2)
        assert values.max() > 2 * values.min() and found.min() > 0.6 and found.max() < 1.3
        torch.testing.assert_close(inside, torch.diag_embed(found), rtol=0, atol=1e-9)


def test_adam_resumes_without_a_trace_too(tmp_path):
    whole = train(tmp_path / "whole", optimizer="adam", save_every=1)
    assert whole.returncode == 0, whole.stderr
    process = start(tmp_path / "cut", optimizer="adam", save_every=1)
    wait_for(lambda: checkpoints(tmp_path / "cut"), process)
    process.kill()
    process.wait()
    assert max(checkpoints(tmp_path / "cut")) < 60
    assert train(tmp_path / "cut", optimizer="adam", save_every=1).returncode == 0
    assert_same_run(tmp_path / "whole", tmp_path / "cut")


def test_muon_moves_what_it_should(tmp_path):
    """Matrices in the blocks by the same distance whatever their gradient; the rest as Adam does."""
    muon, adam = (trainer(optimizer=name, lr=0.01, matrix_lr=0.5) for name in ("muon", "adam"))
    before = {name: p.clone() for name, p in muon.model.named_parameters()}
    for training in (muon, adam):
        training.update()
    for name, p in muon.model.named_parameters():
        moved, by_adam = p - before[name], dict(adam.model.named_parameters())[name] - before[name]
        if name.startswith("blocks.") and p.ndim == 2:
            rate = 0.5 / muon.config.train.warmup * max(1, p.shape[0] / p.shape[1]) ** 0.5
            assert 0.6 * rate < torch.linalg.svdvals(moved.detach())[0] < 1.3 * rate, name
        else:
            torch.testing.assert_close(moved, by_adam)


@pytest.mark.parametrize("lengths", ["fixed", "uniform", "long", "curriculum"])
def test_an_update_reads_nothing_back(lengths, monkeypatch):
    training = trainer(lengths=lengths, mask="invicl", clip=1.0, curriculum_steps=5)
    for _ in range(20):  # a layout is built when its length first comes up; after that it is there
        training.update()
    monkeypatch.setattr(torch.compiler, "is_compiling", lambda: True)  # as on a GPU: inputs are not looked at
    with NoReadingBack():
        for _ in range(3):
            training.update()
        with pytest.raises(AssertionError, match="read back"):
            float(training.loss_sum)


def test_two_processes_share_the_batch_of_one():
    config = Config.make("demo", **TINY)
    one = Training(config, Devices(config.machine, 8)).batch(5)
    parts = []
    for rank in range(2):
        devices = Devices(config.machine, 8)
        devices.rank, devices.share = rank, 4
        parts.append(Training(config, devices).batch(5))
    for whole_tensor, first, second in zip(one, *parts, strict=True):
        assert torch.equal(whole_tensor, torch.cat([first, second]))


def test_a_world_without_torchrun(cli, monkeypatch):
    monkeypatch.setenv("WORLD_SIZE", "2")
    assert_one_line(cli("train", *flags()), "WORLD_SIZE", "torchrun")


def test_two_gloo_processes_train_as_one(tmp_path):
    settings = {"steps": 300, "log_every": 25, "save_every": 1000, "mask": "invicl"}
    assert train(tmp_path / "one", **settings).returncode == 0
    launch = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node=2", f"{ROOT}/train.py"]
    command = [*launch, *flags(**settings), "--out", str(tmp_path / "two")]
    quiet = {"stderr": subprocess.PIPE, "text": True, "env": os.environ | {"OMP_NUM_THREADS": "1"}}
    process = subprocess.Popen(command, **quiet)
    logged = tmp_path / "two" / "metrics.jsonl"
    wait_for(lambda: logged.exists() and logged.read_text().count("\n") > 1, process, seconds=60)
    process.terminate()
    assert "stopped by SIGTERM" in process.communicate(timeout=60)[1] and process.returncode
    (stopped,) = checkpoints(tmp_path / "two")
    assert 0 < stopped < 300
    result = subprocess.run(command, **quiet)
    assert result.returncode == 0 and f"resumed at step {stopped}" in result.stderr, result.stderr
    files = (tmp_path / run / "metrics.jsonl" for run in ("one", "two"))
    one, two = ([json.loads(line) for line in file.read_text().splitlines()] for file in files)
    assert [line["step"] for line in one] == [line["step"] for line in two] == list(range(0, 301, 25))
    for a, b in zip(one, two, strict=True):  # rounding differs, and grows with the steps
        rel = 1e-4 if a["step"] <= 25 else 1e-2
        assert (a["loss"] or 0) == pytest.approx(b["loss"] or 0, rel=rel)
        assert a["error"] == pytest.approx(b["error"], rel=10 * rel)
    logged.unlink()
    logged.mkdir()
    for extra, words in ((["--seed", "9"], "was started with other settings"), ([], "cannot write to")):
        result = subprocess.run([*command, *extra], **quiet)
        assert result.returncode and words in result.stderr and "[rank1]" not in result.stderr
    assert (
        "batch_size: got 7"
        in subprocess.run(
            [*launch, *flags(batch_size=7), "--out", str(tmp_path / "bad")], capture_output=True, text=True
        ).stderr
    )


def test_a_run_with_a_mask_of_ones_own(tmp_path):
    (tmp_path / "my.py").write_text("def near(q, k):\n    return k.example == q.example - 1\n")
    assert finish(start(tmp_path / "run", cwd=tmp_path, mask="my.py:near")).returncode == 0
    model = load(tmp_path / "run")  # from another folder than it was trained in
    assert model.config.mask == f"{tmp_path}/my.py:near"
    assert (tmp_path / "run" / "mask.py").read_text() == (tmp_path / "my.py").read_text()
    (tmp_path / "my.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w')\ndef near(q, k):\n    return k.is_label\n")
    with pytest.raises(InputError, match="gone or has changed"):
        load(tmp_path / "run")
    assert not (tmp_path / "ran").exists(), "a file that is not the run's is not run"
    config = json.loads((tmp_path / "run" / "config.json").read_text()) | {"mask_sha256": None}
    with pytest.raises(InputError, match="gone or has changed"):
        Config.from_json(config)
    assert not (tmp_path / "ran").exists()


def test_load_says_what_there_is(tmp_path, whole):
    for path, words in ((tmp_path / "gone", "no such"), (tmp_path, "no config.json")):
        with pytest.raises(InputError, match=words):
            load(path)
    with pytest.raises(InputError, match="got step 3, allowed: 55, 60"):
        load(whole, step=3)
    assert load(whole, step=55) is not None


def test_dry_run_writes_nothing(tmp_path):
    result = train(tmp_path / "run", "--dry-run", "--json")
    record = json.loads(result.stdout)
    assert record["parameters"] == sum(p.numel() for p in trainer().model.parameters())
    assert record["seconds"] > 0 and record["memory_bytes"] > 1e6 and not (tmp_path / "run").exists()
    assert "parameters" in train(tmp_path / "run", "--dry-run").stdout


def test_flops_are_those_that_torch_counts():
    from torch.nn.attention import SDPBackend, sdpa_kernel
    from torch.utils.flop_counter import FlopCounterMode

    from minicl.cost import flops

    for mask in ("prefix", "invicl", "saicl"):
        training = trainer(mask=mask, lengths="fixed", n_embd=32, examples=5)
        # The fused kernel of the CPU would not be counted.
        with FlopCounterMode(display=False) as counter, sdpa_kernel(SDPBackend.MATH):
            training.loss(0)
        assert flops(training.config, 5) / 3 == pytest.approx(counter.get_total_flops(), rel=0.01)


def test_updates_are_compiled_and_nothing_else(monkeypatch):
    compiled, calls = [], []
    monkeypatch.setattr(torch, "compile", lambda f: compiled.append(f) or (lambda *args: calls.append(1) or f(*args)))
    training = trainer(compile=True)
    for _ in range(2):
        training.update()
    training.validate(lambda: None)
    training.check_weights()
    assert len(compiled) == 1 and len(calls) == 2


@pytest.mark.slow
def test_kill_9_twenty_five_times(tmp_path):
    killed_at = kill_and_resume(tmp_path, kills=25, seed=1, steps=3000)
    assert len({k for k in killed_at if 0 < k < 3000}) == 25


@pytest.mark.slow
def test_a_compiled_run_learns_the_same(tmp_path):
    for name, extra in (("eager", ()), ("compiled", ("--compile",))):
        result = train(tmp_path / name, *extra, lengths="fixed", timeout=600)
        assert result.returncode == 0, result.stderr
    last = [json.loads((tmp_path / n / "metrics.jsonl").read_text().splitlines()[-1]) for n in ("eager", "compiled")]
    assert last[0]["loss"] == pytest.approx(last[1]["loss"], rel=1e-3)


@pytest.mark.slow
@pytest.mark.parametrize("mask", ["ar", "invicl"])
def test_the_demo_learns(tmp_path, mask):
    command = [sys.executable, "-m", "minicl.cli", "train", "--preset", "demo", "--mask", mask, "--threads", "1"]
    result = subprocess.run([*command, "--json", "--out", tmp_path / "run"], capture_output=True, text=True, check=True)
    error = json.loads(result.stdout)["error"]
    assert error[max(error, key=int)] < 0.1
