"""Training: what is computed, what becomes of a run that is stopped or goes wrong, and the Python function."""

import json
import os
import random
import re
import signal
import subprocess
import sys
import threading
import time

import pytest
import torch
from conftest import assert_one_line
from torch.utils._python_dispatch import TorchDispatchMode
from training_helpers import MINICL, ROOT, TINY, assert_same_run, finish, flags, newest_step, start, trainer, wait_for

import minicl
from minicl.checkpoint import checkpoints, read
from minicl.checks import InputError
from minicl.training import Training


def lines(run):
    return [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]


# What is computed


def test_prompts_and_weights_follow_the_seed():
    one, two = trainer(seed=0), trainer(seed=1)
    assert not torch.equal(one.batch(3)[0], two.batch(3)[0]) and not torch.equal(one.batch(3)[0], one.batch(4)[0])
    assert not torch.equal(one.model.read_in.weight, two.model.read_in.weight)


def test_what_the_loss_is_taken_over():
    """By hand, from the model's own answers, for both objectives."""
    for loss in ("all", "query"):
        training = trainer(loss=loss, lengths="fixed")
        xs, ys, queries, targets = training.batch(3)
        out = training.model(xs, ys, queries)
        n = xs.shape[1]
        assert torch.equal(targets[:, :n], ys)
        errors = (out.query - targets[:, n:]).square()
        if loss == "all":
            errors = torch.cat([errors, (out.context - ys).square()], dim=1)
        torch.testing.assert_close(training.loss(3), errors.mean() / 2)


def test_a_clean_loss_is_taken_over_the_function_s_values():
    for clean in (False, True):
        xs, ys, queries, targets = trainer(task="noisy_linear", clean=clean, lengths="fixed").batch(3)
        noiseless = trainer(task="linear", lengths="fixed").batch(3)
        assert torch.equal(xs, noiseless[0]) and torch.equal(queries, noiseless[2])
        assert not torch.equal(ys, noiseless[1]), "the examples keep their noise"
        assert torch.equal(targets, noiseless[3]) == clean


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


class NoReadingBack(TorchDispatchMode):
    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        assert func is not torch.ops.aten._local_scalar_dense.default, "a value was read back"
        return func(*args, **(kwargs or {}))


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


def test_updates_are_compiled_and_nothing_else(monkeypatch):
    compiled, calls = [], []
    monkeypatch.setattr(
        torch, "compile", lambda f, mode: compiled.append(f) or (lambda *args: calls.append(1) or f(*args))
    )
    training = trainer(compile=True)
    for _ in range(2):
        training.update()
    training.validate()
    training.check_weights()
    assert len(compiled) == 1 and len(calls) == 2


def test_a_mask_that_leaks_trains_on_queries_unless_told_otherwise(cli):
    quiet = cli("train", *flags(mask="prefix", steps=1), "--out", "a")
    told = cli("train", *flags(mask="prefix", loss="all", steps=1), "--out", "b")
    deaf = cli("train", *flags(mask="pfn", steps=1), "--out", "c")
    chosen = cli("train", *flags(mask="ar", loss="query", steps=1), "--out", "d")
    assert "query predictions only: a context prediction could see its own label" in quiet.stderr
    assert "query predictions only: a context prediction hears of no other" in deaf.stderr
    assert "query predictions only\n" in chosen.stderr and "note:" not in quiet.stderr + chosen.stderr
    assert told.stderr.count("can see its own label") == 1


# A run and its folder


def test_a_run_leaves_metrics_and_times(whole):
    assert [line["step"] for line in lines(whole)] == [0, 7, 14, 21, 28, 35, 42, 49, 56, 60]
    first, *_, last = lines(whole)
    assert set(last) == {"step", "loss", "lr", "error"} and set(last["error"]) == {"1", "3"}
    assert first["loss"] is None and last["loss"] > 0
    seconds = [json.loads(line)["seconds"] for line in (whole / "timing.jsonl").read_text().splitlines()]
    assert len(seconds) == 10 and seconds == sorted(seconds)


def test_the_same_command_twice(cli, whole, tmp_path):
    command = ["train", *flags(), "--out", "run"]
    assert "next: minicl evaluate run" in cli(*command).stderr.splitlines()[-1]
    assert_same_run(whole, tmp_path / "run")
    before = (tmp_path / "run" / "metrics.jsonl").read_bytes()
    again = cli(*command, "--json")
    assert again.returncode == 0 and "run is finished: 60 steps" in again.stderr
    assert json.loads(again.stdout) == {"run": "run", **lines(whole)[-1]}
    assert (tmp_path / "run" / "metrics.jsonl").read_bytes() == before
    for change in ("emptied", "deleted"):
        (tmp_path / "run" / "metrics.jsonl").write_text("")
        if change == "deleted":
            (tmp_path / "run" / "metrics.jsonl").unlink()
        again = cli(*command, "--json")
        assert (again.returncode, json.loads(again.stdout)) == (0, {"run": "run"}), change


def test_the_python_function(whole, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert minicl.train("tiny", out="runs/a", **TINY) == {"run": "runs/a", **lines(whole)[-1]}
    assert capsys.readouterr().out == ""
    assert minicl.train("tiny", **TINY | {"steps": 1})["run"] == "runs/linear-ar-tiny-0"
    with pytest.raises(InputError, match="lr"):
        minicl.train("tiny", lr=-1)


def test_the_python_function_leaves_torch_as_it_was(tmp_path):
    torch.manual_seed(3)
    numbers, threads = torch.get_rng_state(), torch.get_num_threads()
    seen, settings = [], TINY | {"threads": threads + 1, "steps": 2}
    with pytest.MonkeyPatch.context() as patch:
        plain = Training.update
        patch.setattr(Training, "update", lambda self: seen.append(torch.get_num_threads()) or plain(self))
        minicl.train(out=tmp_path / "good", **settings)
        with pytest.raises(RuntimeError, match="no checkpoint was saved before"):
            minicl.train(out=tmp_path / "bad", **settings | {"lr": 1e30, "clip": 0, "warmup": 0})
    assert set(seen) == {threads + 1} and torch.get_num_threads() == threads
    assert torch.equal(torch.get_rng_state(), numbers)


def test_the_python_function_in_a_thread(whole, tmp_path):
    """Where no signal handler may be set, as in some notebooks and servers."""
    records = []
    thread = threading.Thread(target=lambda: records.append(minicl.train(out=tmp_path / "run", **TINY)))
    thread.start()
    thread.join()
    assert records[0]["step"] == 60
    assert_same_run(whole, tmp_path / "run")


def test_a_strategy_must_have_a_name_that_a_run_can_be_loaded_by(tmp_path):
    with pytest.raises(InputError, match="so that the run can be loaded"):
        minicl.train(out=tmp_path / "run", **TINY, mask=minicl.strategy(lambda q, k: k.example < q.example))
    assert not (tmp_path / "run").exists()


def test_a_bad_flag_is_one_line_from_the_shell_too():
    result = subprocess.run([sys.executable, "train.py", "--lr", "fast"], cwd=ROOT, capture_output=True, text=True)
    assert_one_line(result, "minicl train: argument --lr: invalid float value: 'fast'")


# Runs that are stopped


def interrupt(monkeypatch, method, step, number):
    """Send a signal to this process when a training reaches a step, before it goes on with `method`."""
    plain = getattr(Training, method)

    def interrupted(self, *args):
        if self.step == step:
            os.kill(os.getpid(), number)
        return plain(self, *args)

    monkeypatch.setattr(Training, method, interrupted)


@pytest.mark.parametrize("number, status", [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
@pytest.mark.parametrize(
    "method, step, logged, saved",
    [("update", 12, 7, 13), ("update", 13, 7, 14), ("validate", 0, None, 0), ("validate", 60, 56, 60)],
)
def test_a_signal_saves_and_the_same_command_resumes(
    cli, monkeypatch, tmp_path, whole, method, step, logged, saved, number, status
):
    with monkeypatch.context() as patch:
        interrupt(patch, method, step, number)
        result = cli("train", *flags(), "--out", "run")
    assert result.returncode == status and result.stdout == ""
    assert f"stopped by {number.name} after {saved} steps" in result.stderr.splitlines()[-1]
    assert "the same command resumes" in result.stderr.splitlines()[-1]
    run = tmp_path / "run"
    assert newest_step(run) == saved
    assert (lines(run)[-1]["step"] if logged is not None else (run / "metrics.jsonl").exists()) == (logged or False)
    assert "is finished" not in cli("train", *flags(), "--out", "run").stderr
    assert_same_run(whole, run)


def test_an_interrupted_cell_of_a_notebook_is_interrupted(monkeypatch, tmp_path):
    before = signal.getsignal(signal.SIGINT)
    interrupt(monkeypatch, "update", 12, signal.SIGINT)
    with pytest.raises(KeyboardInterrupt):
        minicl.train(out=tmp_path / "run", **TINY)
    assert newest_step(tmp_path / "run") == 13 and signal.getsignal(signal.SIGINT) is before


def test_a_signal_to_a_process(tmp_path):
    process = start(*MINICL, "train", *flags(steps=10**7, save_every=10**6), "--out", tmp_path / "run")
    wait_for(lambda: (tmp_path / "run" / "metrics.jsonl").exists(), process)
    process.send_signal(signal.SIGTERM)
    result = finish(process)
    assert result.returncode == 143 and "Traceback" not in result.stderr
    assert int(re.search(r"stopped by SIGTERM after (\d+) steps", result.stderr)[1]) == newest_step(tmp_path / "run")


def test_weights_that_are_found_bad_when_a_signal_comes(cli, monkeypatch):
    interrupt(monkeypatch, "update", 0, signal.SIGTERM)
    bad = flags(lr="1e30", schedule="constant", clip=0, warmup=0)
    result = cli("train", *bad, "--out", "run")
    assert result.returncode == 1 and "no checkpoint was saved before" in result.stderr.splitlines()[-1]


DEADLY = """
import contextlib, os, signal, sys
from minicl.cli import main
from minicl.training import Training

left = int(sys.argv[1])

def counted(function):
    def call(*args):
        global left
        left -= 1
        if left == 0:
            with contextlib.suppress(OSError, TypeError):
                os.ftruncate(args[0], os.fstat(args[0]).st_size * 2 // 3)  # as if it had been killed while writing
            os.kill(os.getpid(), signal.SIGKILL)
        return function(*args)
    return call

os.fsync, os.replace, Training.update = counted(os.fsync), counted(os.replace), counted(Training.update)
sys.exit(main(sys.argv[2:]))
"""


def test_kill_9_leaves_no_trace(cli, tmp_path):
    """Killed in an update, in the middle of a file and before it gets its name, as the dice have it."""
    command = ["train", *flags(steps=40, save_every=1, log_every=3), "--out", tmp_path / "killed"]
    dice = random.Random(0)
    for _ in range(3):
        result = finish(start(sys.executable, "-c", DEADLY, dice.randint(8, 40), *command))
        assert result.returncode == -signal.SIGKILL
        assert newest_step(tmp_path / "killed") < 40
    assert cli(*command).returncode == 0
    assert cli(*command[:-1], tmp_path / "whole").returncode == 0
    assert_same_run(tmp_path / "whole", tmp_path / "killed")
    assert not list((tmp_path / "killed").rglob(".*.tmp"))


@pytest.mark.parametrize("optimizer", ["adam", "adamw"])
def test_other_optimisers_resume_without_a_trace_too(cli, monkeypatch, tmp_path, optimizer):
    command = ["train", *flags(optimizer=optimizer, weight_decay=0.1), "--out"]
    assert cli(*command, "whole").returncode == 0
    with monkeypatch.context() as patch:
        interrupt(patch, "update", 31, signal.SIGTERM)
        assert cli(*command, "cut").returncode == 143
    assert cli(*command, "cut").returncode == 0
    assert_same_run(tmp_path / "whole", tmp_path / "cut")


# Runs that go wrong


@pytest.mark.parametrize("log_every", [1, 1000])
def test_a_loss_that_runs_away_stops_the_run_and_keeps_the_last_good_checkpoint(cli, tmp_path, log_every):
    settings = {"lr": 100.0, "warmup": 100, "schedule": "constant", "clip": 0, "save_every": 1, "log_every": log_every}
    result = cli("train", *flags(**settings), "--out", "run")
    assert result.returncode == 1 and "Traceback" not in result.stderr
    last = result.stderr.splitlines()[-1]
    step, file = next(iter(checkpoints(tmp_path / "run").items()))
    assert "exploded" in last and "lower --lr" in last and f"the checkpoint of step {step} stays" in last
    training = trainer(**settings)
    training.restore(read(file))
    assert float(training.loss(step).detach()) < 100, "what is kept still answers sensibly"
    training.update()
    assert float(training.loss(step + 1).detach()) > 100, "and the update after it was the one that did not"


def test_weights_that_a_single_update_ruins_are_not_saved(cli, tmp_path):
    result = cli("train", *flags(lr="1e30", schedule="constant", clip=0, save_every=1), "--out", "run")
    assert result.returncode == 1 and "the loss of step 2 is not finite" in result.stderr
    assert "no checkpoint was saved before" in result.stderr and not checkpoints(tmp_path / "run")


def test_a_full_disk_leaves_the_older_checkpoint_whole(cli, monkeypatch, tmp_path, whole):
    with monkeypatch.context() as patch:
        interrupt(patch, "update", 12, signal.SIGTERM)
        cli("train", *flags(), "--out", "run")
    run = tmp_path / "run"
    size = checkpoints(run)[13].stat().st_size - 1000  # a checkpoint does not fit, the metrics do
    limited = "import resource, sys; resource.setrlimit(resource.RLIMIT_FSIZE, (int(sys.argv[1]),) * 2);"
    limited += "from minicl.cli import main; sys.exit(main(sys.argv[2:]))"
    result = finish(start(sys.executable, "-c", limited, size, "train", *flags(), "--out", run))
    assert result.returncode == 1 and "Traceback" not in result.stderr
    last = result.stderr.splitlines()[-1]
    assert f"cannot write to {run}: File too large" in last and "the checkpoint of step 13 stays" in last
    assert newest_step(run) == 13 and minicl.load(run) is not None
    assert not list(run.rglob(".*.tmp"))
    assert cli("train", *flags(), "--out", "run").returncode == 0
    assert_same_run(whole, run)


# Slow


@pytest.mark.slow
def test_kill_9_twenty_five_times_at_random_moments(cli, tmp_path):
    settings, dice, out = {"steps": 3000, "save_every": 1, "log_every": 3}, random.Random(1), tmp_path / "killed"
    killed_at = []
    for _ in range(25):
        before = newest_step(out)
        process = start(*MINICL, "train", *flags(**settings), "--out", out)
        wait_for(lambda before=before: newest_step(out) > before, process)
        time.sleep(dice.uniform(0, 0.25))
        process.kill()
        process.communicate()
        killed_at.append(newest_step(out))
    assert len({step for step in killed_at if 0 < step < 3000}) == 25, "the kills hit the middle of the run"
    for name in ("killed", "whole"):
        assert cli("train", *flags(**settings), "--out", name).returncode == 0
    assert_same_run(tmp_path / "whole", out)
    assert not list(out.rglob(".*.tmp"))


@pytest.mark.slow
def test_a_compiled_run_learns_the_same(cli, tmp_path):
    for name, extra in (("eager", ()), ("compiled", ("--compile",))):
        result = cli("train", *flags(lengths="fixed"), "--out", name, *extra)
        assert result.returncode == 0, result.stderr
    eager, compiled = (lines(tmp_path / name)[-1] for name in ("eager", "compiled"))
    assert eager["loss"] == pytest.approx(compiled["loss"], rel=1e-3)


@pytest.mark.slow
@pytest.mark.parametrize("mask", ["ar", "invicl"])
def test_the_tiny_preset_learns(tmp_path, mask):
    error = minicl.train("tiny", mask=mask, out=tmp_path / "run")["error"]
    assert error["6"] < 0.1
