"""Evaluation: exact shortcuts, paired prompts, results that are never lost; order, probes, costs, the regressor."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import numpy
import pytest
import torch
from conftest import EVERY, assert_one_line, loud_model, random_prompt

from minicl import Regressor, bench, curves, draw, order, probe
from minicl.baselines import get_baseline
from minicl.checkpoint import checkpoints, read, save
from minicl.config import Config
from minicl.errors import InputError
from minicl.evaluate import Prompts, Store, _winner, bootstrap, squared_errors
from minicl.masks import Strategy
from minicl.model import ModelConfig, Transformer
from minicl.tasks import SHIFTS, get_task
from minicl.timing import ratio
from minicl.train import train

ROOT = Path(__file__).parent.parent
TINY = {"n_dims": 3, "examples": 4, "max_examples": 12, "n_layer": 2, "n_head": 2, "n_embd": 16, "batch_size": 16}
TINY |= {"steps": 30, "log_every": 10, "save_every": 10, "validate": 16, "threads": 1, "keep": (10,)}


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """Three tiny runs: ar with two seeds, invicl; and one on sparse prompts."""
    folder = tmp_path_factory.mktemp("runs")
    for name, settings in {
        "ar": {"mask": "ar"},
        "ar1": {"mask": "ar", "seed": 1},
        "invicl": {"mask": "invicl"},
        "sparse": {"task": "sparse_linear", "sparsity": 1},
    }.items():
        train(Config.make("demo", **(TINY | settings)), folder / name)
    return folder


@pytest.fixture
def run(runs, tmp_path):
    """A copy of the invicl run that a test may do anything to."""
    return Path(shutil.copytree(runs / "invicl", tmp_path / "run", ignore=shutil.ignore_patterns("evaluation")))


@pytest.mark.parametrize("mask", EVERY)
def test_shortcuts_equal_one_pass_a_length(mask):
    xs, ys, queries = random_prompt(5, 13, 13)
    for positions in (None, "absolute", "symmetric", "none"):
        for copies, blind in ((None, False), (2, False), (3, False), (None, True)):
            model = loud_model(mask, positions=positions, copies=copies, blind_query=blind)
            for lengths in (list(range(13)), [0, 5, 12], [3], [0]):
                fast, slow = (way(model, xs, ys, queries, lengths) for way in (curves.answers, curves.plain))
                torch.testing.assert_close(fast, slow, rtol=0, atol=1e-9)


def test_shortcuts_are_taken_where_they_are_exact(monkeypatch):
    ways = {mask: curves._way(loud_model(mask), [0, 3])[0].__name__ for mask in EVERY}
    assert ways == {
        "ar": "_one_pass",
        "nope": "_one_pass",
        "boe": "_one_pass",
        "invicl": "_shared_first_copy",
        "prefix": "_plain",
        "offdiagonal": "_plain",
        "saicl": "_plain",
    }
    monkeypatch.setattr(curves, "CHUNK", 1)  # a prompt at a time: chunks do not change the answers
    model, prompt = loud_model("invicl"), random_prompt(3, 5, 5)
    torch.testing.assert_close(curves.answers(model, *prompt, [1, 4]), curves.plain(model, *prompt, [1, 4]))


def test_a_mask_that_counts_its_examples_takes_no_shortcut():
    last_only = Strategy(
        "last", lambda q, k: (k.example == k.example.max()) & (q.example > k.example - 9) & ~k.is_query
    )
    model = loud_model(last_only)
    xs, ys, queries = random_prompt(2, 6, 6)
    for lengths in ([0, 2, 5], [0]):
        assert curves._way(model, lengths)[0] is curves._plain
        found, expected = (way(model, xs, ys, queries, lengths) for way in (curves.answers, curves.plain))
        torch.testing.assert_close(found, expected)


def test_a_thousand_examples_in_bounded_memory():
    """In a process of its own, which says how much memory it held at most."""
    code = """
import resource, sys; sys.path.insert(0, sys.argv[1])
from conftest import loud_model, random_prompt
from minicl.curves import answers
for mask in ("boe", "invicl", "prefix"):
    model = loud_model(mask, n_layer=1, n_head=1, n_embd=8)
    lengths = list(range(0, 1001, 50 if mask == "invicl" else 250))
    answer = answers(model, *random_prompt(3, 1001, 1001), lengths)
    assert answer.shape == (3, len(lengths)) and answer.isfinite().all()
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20)
"""
    result = subprocess.run(
        [sys.executable, "-c", code, str(ROOT / "tests")], capture_output=True, text=True, check=True
    )
    assert float(result.stdout) < 2.5, "GiB"


def test_least_squares_in_disguise_gets_its_curve():
    class Disguise:
        def __call__(self, xs, ys, queries):  # an object that knows nothing of layouts
            return SimpleNamespace(query=get_baseline("least_squares").predict(xs, ys, queries))

    task = get_task("linear", n_dims=4)
    for shift in ("none", "label_noise", "repeated_query"):
        prompts = Prompts(shift, tuple(range(11)), prompts=50, seed=3)
        (a, lengths), (b, _) = (squared_errors(m, task, prompts) for m in (Disguise(), get_baseline("least_squares")))
        assert lengths == list(range(11))
        numpy.testing.assert_allclose(a, b, rtol=1e-3, atol=1e-6)


def test_an_error_by_hand():
    """Evaluation's number for one length, from nothing but the model and the prompts."""
    model, task = loud_model("invicl").float(), get_task("linear", n_dims=3)
    errors, _ = squared_errors(model, task, Prompts("scale", (2, 5), prompts=20, seed=7))
    p = task.sample(20, 6, seed=7, shift="scale")
    answer = model(p.xs[:, :5], p.ys[:, :5], p.queries[:, 5:]).query[:, 0]
    numpy.testing.assert_allclose(errors[:, 1], ((answer - p.targets[:, 5]) ** 2 / 27).detach(), rtol=1e-3, atol=1e-6)


def test_bootstrap_interval_covers_the_mean_as_often_as_it_says():
    random = numpy.random.default_rng(0)
    hits = 0
    for trial in range(200):
        low, high = bootstrap(random.exponential(size=(60, 1)), seed=trial)
        hits += bool(low[0] <= 1 <= high[0])
    assert 160 <= hits <= 196  # of 200, at 90 %


def test_records(cli, runs):
    result = cli("evaluate", runs / "ar", runs / "invicl", "--shifts", "none,noise", "--prompts", 40, "--json")
    records = json.loads(result.stdout)
    rows = [(r["method"], r["shift"], r["step"]) for r in records]
    assert rows == [
        ("ar", "none", 30),
        ("ar", "noise", 30),
        ("invicl", "none", 30),
        ("invicl", "noise", 30),
        ("least_squares", "none", None),
        ("optimal", "noise", None),
        ("least_squares", "noise", None),
    ]
    for r in records:
        assert r["lengths"] == list(range(11)) and len(r["mean"]) == len(r["low"]) == len(r["high"]) == 11
        assert all(low <= mean <= high for low, mean, high in zip(r["low"], r["mean"], r["high"], strict=True))
    assert records[0]["run"] == str(runs / "ar") and records[4]["run"] is None
    assert records[4]["mean"][4] < 1e-6, "least squares is exact beyond d examples: the prompts are the run's own"


def test_the_run_s_own_task_is_evaluated(cli, runs):
    (record,) = json.loads(
        cli("evaluate", runs / "sparse", "--baselines", "optimal", "--prompts", 400, "--json").stdout
    )[1:]
    assert record["method"] == "optimal" and record["mean"][0] == pytest.approx(1, abs=0.2)
    assert record["mean"][2] < 0.05, "one coordinate of three, as trained: two examples tell which"


def test_seeds_are_averaged_where_nothing_else_differs(cli, runs):
    found = cli(
        "evaluate", runs / "ar", runs / "ar1", runs / "invicl", "--baselines", "none", "--prompts", 30, "--json"
    )
    *single, together = json.loads(found.stdout)
    assert len(single) == 3 and together["over"] == "seeds" and together["train_seed"] == [0, 1]
    numpy.testing.assert_allclose(together["mean"], numpy.mean([r["mean"] for r in single[:2]], axis=0))
    numpy.testing.assert_allclose(together["high"], numpy.max([r["mean"] for r in single[:2]], axis=0))


def test_evaluating_again_reads_and_adds_and_never_loses(cli, run):
    first = cli("evaluate", run, "--prompts", 30, "--json")
    files = {f: f.stat().st_mtime_ns for f in (run / "evaluation").iterdir()}
    assert len(files) == 4 and "evaluating" in first.stderr
    again = cli("evaluate", run, "--prompts", 30, "--json")
    assert again.stdout == first.stdout and again.stderr == ""
    cli("evaluate", run, "--prompts", 31, "--shifts", "scale", "--checkpoints", "all")
    after = {f: f.stat().st_mtime_ns for f in (run / "evaluation").iterdir()}
    assert all(after[f] == when for f, when in files.items()) and len(after) > len(files)
    for file in (run / "evaluation").glob("*.json"):
        file.write_text("{ torn")  # a damaged result is computed anew
    assert cli("evaluate", run, "--prompts", 30, "--json").stdout == first.stdout


def test_kill_9_during_evaluation(cli, run, tmp_path):
    whole = Path(shutil.copytree(run, tmp_path / "whole"))
    settings = ["--shifts", "all", "--prompts", "300", "--baselines", "lasso", "--json"]
    expected = json.loads(cli("evaluate", whole, *settings).stdout)
    command = [sys.executable, "-m", "minicl.cli", "evaluate", str(run), *settings]
    threads = os.environ | {"OMP_NUM_THREADS": "1"}  # as here: sums in another order differ in their last digit
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env=threads)
    while not list(run.glob("evaluation/*.json")):
        assert process.poll() is None
        time.sleep(0.01)
    process.send_signal(signal.SIGKILL)
    process.wait()
    kept = len(list(run.glob("evaluation/*.json")))
    found = json.loads(cli("evaluate", run, *settings).stdout)
    assert kept and [r["mean"] for r in found] == [r["mean"] for r in expected]


def test_a_folder_that_cannot_be_written_to(cli, run, tmp_path):
    (run / "evaluation").write_text("in the way")
    result = cli("evaluate", run, "--prompts", 30, "--json", "--plot", tmp_path / "c.png")
    assert result.returncode == 0 and len(json.loads(result.stdout)) == 2
    assert "not saved in" in result.stderr and (tmp_path / "c.png").exists()
    assert (run / "evaluation").read_text() == "in the way"


def test_the_table_names_a_winner_only_when_it_is_clear(cli, runs):
    text = cli("evaluate", runs / "ar", runs / "invicl", "--prompts", 60).stdout
    assert "4 examples" in text and "10 examples" in text and "mean over 0–10" in text and "least error" in text
    store = Store("/nonexistent")
    assert store.get({"method": "m", "shift": "none"}, lambda: ({"a": 1}, numpy.zeros(2)))[0] == {"a": 1}


def test_a_winner_must_lead_by_more_than_chance():
    random = numpy.random.default_rng(0)
    base = random.exponential(size=(200, 1))
    noise = random.normal(size=(200, 1))

    def models(**errors):
        return [({"method": name, "run": name, "step": 1, "lengths": [4]}, e) for name, e in errors.items()]

    assert _winner(models(far=base + 1, best=base, near=base + 0.1 + 0.01 * noise), [4]) == "best"
    assert _winner(models(far=base + 1, best=base, near=base + 0.01 + noise), [4]) == "undecided"
    assert _winner(models(good=base, bad=base + 1), [4]) == "good"


def test_other_weights_are_another_result(cli, run):
    first = json.loads(cli("evaluate", run, "--prompts", 20, "--baselines", "none", "--json").stdout)
    state = read(next(iter(checkpoints(run).values())))
    state["model"]["read_out.bias"] += 1
    save(run, state)
    second = json.loads(cli("evaluate", run, "--prompts", 20, "--baselines", "none", "--json").stdout)
    assert first[0]["step"] == second[0]["step"] and first[0]["mean"] != second[0]["mean"]


def test_what_makes_no_sense_is_left_out_and_named(cli, run):
    result = cli("evaluate", run, "--shifts", "all", "--prompts", 20, "--lengths", "3,7", "--json")
    assert result.returncode == 0 and "left out: lengths under shift orthogonal_query" in result.stderr
    assert {r["shift"] for r in json.loads(result.stdout)} == set(SHIFTS) - {"orthogonal_query"}


def test_a_damaged_newest_checkpoint_is_passed_over(cli, run):
    newest = next(iter(checkpoints(run).values()))
    newest.write_bytes(b"torn")
    result = cli("evaluate", run, "--prompts", 20, "--baselines", "none", "--json")
    assert json.loads(result.stdout)[0]["step"] == 20 and "passed over" in result.stderr


def test_a_folder_named_twice_is_one_run(cli, run):
    records = json.loads(cli("evaluate", run, f"{run}/", "--prompts", 20, "--baselines", "none", "--json").stdout)
    assert len(records) == 1


@pytest.mark.parametrize(
    "argv, words",
    [
        (["gone"], ("gone", "no such folder")),
        (["run", "--shifts", ","], ("shifts", "','")),
        (["."], ("not a run folder", "no config.json")),
        (["run", "--shifts", "nois"], ("shifts", "nois", "did you mean noise?", "half_subspace")),
        (["run", "--max-examples", "0"], ("max-examples", "'0'", "above 0")),
        (["run", "--max-examples", "-3"], ("max-examples",)),
        (["run", "--max-examples", "many"], ("max-examples", "many")),
        (["run", "--checkpoints", "17"], ("checkpoints", "17", "10, 20, 30")),
        (["run", "--checkpoints", "x"], ("checkpoints", "x")),
        (["run", "--baselines", "laso"], ("baselines", "laso", "lasso")),
        (["run", "--prompts", "1"], ("prompts", "1", "at least 2")),
        (["run", "--lengths", "a"], ("lengths",)),
        (["run", "--plot", "c.gif"], ("c.gif", ".png")),
        (["run", "--order", "--tolerance", "0"], ("tolerance", "0")),
        (["run", "--seed", "-1"], ("seed", "-1")),
        ([], ("RUN",)),
    ],
)
def test_bad_input_is_one_line(cli, run, argv, words):
    assert_one_line(cli("evaluate", *argv, cwd=run.parent), *words)


def test_absolute_positions_are_not_asked_beyond_their_end(cli, runs):
    assert_one_line(cli("evaluate", runs / "ar", "--max-examples", 13), "max-examples", "13", "at most 12")
    assert cli("evaluate", runs / "invicl", "--lengths", "13,50", "--prompts", 5).returncode == 0


def test_order_sensitivity():
    task = get_task("linear", n_dims=3)
    spread = {}
    for mask in EVERY:
        for positions in ("absolute", "symmetric"):
            model = loud_model(mask, positions=positions).float()
            found = order.sensitivity(model, task, 6, prompts=20, permutations=5)
            spread[mask, positions] = found["spread"]
            assert found["frequency"] == 0 or found["largest"] > found["tolerance"]
    still = {key for key, value in spread.items() if value < 1e-5}
    assert still == {(m, "symmetric") for m in ("prefix", "boe", "saicl", "invicl", "offdiagonal")}
    assert all(value > 1e-3 for key, value in spread.items() if key not in still)


def test_order_sensitivity_by_hand():
    """A model that answers with the first label of its context."""
    task = get_task("linear", n_dims=3)

    def first_label(xs, ys, queries):
        return SimpleNamespace(query=ys[:, :1])

    found = order.sensitivity(first_label, task, 5, prompts=2000, permutations=60, tolerance=0.5)
    p = task.sample(2000, 6, 0)
    scale = 3**0.5
    assert found["spread"] == pytest.approx(float(p.ys[:, :5].var(1, unbiased=False).mean().sqrt()) / scale, rel=0.03)
    moved = ((p.ys[:, :5] - p.ys[:, :1]).abs() / scale > 0.5).float().mean()
    assert found["frequency"] == pytest.approx(float(moved), abs=0.01)
    assert found["error"] == pytest.approx(float((p.ys[:, 0] - p.targets[:, 5]).square().mean() / 3), rel=1e-4)


def test_order_command(cli, runs, tmp_path):
    result = cli("evaluate", runs / "ar", runs / "invicl", "--order", "--json", "--plot", "o.png")
    ar, invicl = json.loads(result.stdout)
    assert invicl["spread"] < 1e-5 and invicl["frequency"] == 0 and ar["spread"] > invicl["spread"]
    assert (tmp_path / "o.png").exists()
    assert "16 random orders" in cli("evaluate", runs / "ar", "--order").stdout


@pytest.mark.parametrize("fit", [probe.fit_ridge, probe.fit_gradient])
def test_a_probe_finds_a_linear_map(fit):
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(600, 9, generator=generator).double() * torch.logspace(-1, 1, 9)
    w, b = torch.randn(9, 2, generator=generator).double(), torch.tensor([3.0, -1.0]).double()
    found = fit(x[:400], x[:400] @ w + b, (x[400:], x[400:] @ w + b))
    torch.testing.assert_close(found, torch.cat([w, b[None]]), rtol=0.02, atol=0.05)


def test_ridge_chooses_its_regulariser_on_held_out_prompts():
    generator = torch.Generator().manual_seed(0)
    x, y = torch.randn(30, 25, generator=generator).double(), torch.randn(30, 1, generator=generator).double()
    other, aim = torch.randn(500, 25, generator=generator).double(), torch.zeros(500, 1).double()
    assert (probe.with_one(other) @ probe.fit_ridge(x, y, (other, aim))).square().mean() < 0.1, "noise is not fitted"


def test_probe_controls_and_the_last_layer():
    """The last layer's probe does what the read-out does; from shuffled targets or untrained states nothing is read."""
    torch.manual_seed(0)
    task = get_task("linear", n_dims=2)
    model = Transformer(ModelConfig(n_dims=2, mask="invicl", n_layer=2, n_head=2, n_embd=16, init_std=0.25)).eval()
    teach(model, task)
    untrained = Transformer(model.config).eval()
    rows = {(r["probe"], r["layer"]): r["mean"] for r in probe.probe(model, untrained, task, 4, [0, 2], prompts=600)}
    p = task.sample(150, 5, (probe.SEEDS["test"],))
    zero = float(p.targets[:, 4].square().mean() / 2)
    assert rows["model", None] < 0.7 * zero
    assert rows["target", 2] < 1.2 * rows["model", None]
    for layer in (0, 2):
        assert rows["shuffled", layer] > 0.95 * zero
        assert rows["untrained", layer] > 0.9 * zero
    assert rows["target", 0] > 0.9 * zero, "before the first layer the query knows nothing of the context"
    assert rows["weights", 2] < rows["weights", 0]


def teach(model, task, steps=300):
    optimizer = torch.optim.Adam(model.parameters(), lr=4e-3)
    for step in range(steps):
        p = task.sample(64, 6, (99, step))
        loss = (model(p.xs[:, :4], p.ys[:, :4], p.xs[:, 4:]).query - p.ys[:, 4:]).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


def test_probe_command(cli, runs, tmp_path):
    result = cli(
        "probe", runs / "ar", "--layers", "0,2", "--lengths", "0,4", "--prompts", 64, "--json", "--plot", "p.png"
    )
    records = json.loads(result.stdout)
    kinds = {(r["probe"], r["layer"], r["examples"]) for r in records}
    assert {("model", None, 4), ("target", 2, 4), ("untrained", 0, 0), ("shuffled", 2, 0), ("weights", 2, 4)} <= kinds
    at = {(r["probe"], r["layer"], r["examples"]): r["mean"] for r in records}
    assert at["target", 2, 4] != at["untrained", 2, 4]
    assert (tmp_path / "p.png").exists()
    assert "layer" in cli("probe", runs / "ar", "--lengths", "4", "--prompts", 64, "--fit", "gradient").stdout
    assert_one_line(cli("probe", runs / "ar", "--layers", "3"), "layers", "3", "0 to 2")
    assert_one_line(cli("probe", runs / "ar", "--max-examples", "99"), "99", "at most 12")


def test_bench_inference(cli):
    small = ["--examples", 6, "--n-layer", 1, "--n-embd", 16, "--n-head", 2, "--n-dims", 2, "--repeats", 3]
    records = json.loads(cli("bench", "--inference", "--mask", "ar", "invicl", *small, "--json").stdout)
    assert [r["mask"] for r in records] == ["ar", "invicl"]
    assert records[0]["ratio"]["ratio"] == 1 and records[1]["tokens"] == 25 and records[1]["pairs"] == 169
    assert "time ÷ ar" in cli("bench", "--inference", "--mask", "ar", *small).stdout
    rows = json.loads(cli("bench", *small, "--json").stdout)
    assert [r["row"].split(" step")[0] for r in rows] == ["invicl", "Hugging Face GPT-2", "ar", "invicl"]
    assert all(r["low"] <= r["ratio"] <= r["high"] for r in rows)
    assert ["milliseconds" in r for r in rows] == [False, False, True, True]
    assert "share of the multiply rate" in cli("bench", *small).stdout
    assert_one_line(cli("bench", "--mask", "ar"), "--inference")
    assert_one_line(cli("bench", "--inference", "--repeats", 1), "repeats", "at least 2")
    assert_one_line(cli("bench", "--inference", "--mask", "arr"), "arr")
    assert_one_line(cli("bench", "--inference", "--plot", "x.png"), "plot", "with --quality")
    assert_one_line(cli("bench", "--quality", "race", "--size", "study"), "size", "without --quality")
    assert_one_line(cli("bench", "--quality", ""), "quality", "empty")
    assert_one_line(cli("bench", "--quality", __file__), "quality", "a folder")
    assert_one_line(cli("bench", "--inference", "--batch-size", 4 * 10**18), "not enough memory", status=1)


def test_the_middle_half_lies_within_what_was_measured():
    assert ratio([1, 10], [1, 1]) == {"low": 3.25, "ratio": 5.5, "high": 7.75}
    assert ratio([4], [2]) == {"low": 2, "ratio": 2, "high": 2}


def test_the_race_to_quality(tmp_path):
    sizes = {"n_dims": 2, "examples": 3, "max_examples": 6, "n_layer": 1, "n_head": 1, "n_embd": 8, "validate": 16}
    tiny = sizes | {"steps": 30, "warmup": 5, "keep": ""}
    (won,) = bench.quality(["ar"], tmp_path, target=5.0, minutes=1, seeds=2, **tiny)
    assert len(won["recipe_seconds"]) == 2 and None not in won["recipe_seconds"]
    assert won["reference_seconds"] is not None and not won["at_least"]
    (lost,) = bench.quality(["ar"], tmp_path, target=1e-9, minutes=0.1, **tiny)
    assert lost["recipe_seconds"] == [None] and lost["ratio"] is None and lost["reference_trained"] > 0
    text = bench.quality_table([won, lost])
    assert "not in" in text and "0 s" in text
    assert bench._outcome(tmp_path, "ar", 1e-9, 1)["at_least"]
    curves = bench.quality_curves(["ar"], tmp_path, 2)
    assert any(r.get("over") and len(r["runs"]) == 2 for r in curves)
    draw.save(draw.race([won], curves), tmp_path / "race.png")
    with pytest.raises(InputError, match="other settings"):
        bench.quality(["ar"], tmp_path, minutes=1, **tiny, lr=0.5)

    reference = json.loads((tmp_path / "ar-reference" / "config.json").read_text())
    published = Config.make("paper", **sizes, symmetric_std=0.02, curriculum_steps=2000).to_json()
    assert (reference["model"], reference["data"]) == (published["model"], published["data"])
    for name in ("lr", "beta2", "optimizer", "schedule", "warmup", "clip", "batch_size", "loss"):
        assert reference["train"][name] == published["train"][name], name


def test_the_race_is_judged_by_the_slowest_seed(tmp_path):
    for name, seconds in {"recipe-0": (1, 2, 4), "recipe-1": (1, 3, 5), "reference": (10, 20, 30)}.items():
        folder = tmp_path / f"ar-{name}"
        folder.mkdir()
        lines = {
            "timing": [{"seconds": s} for s in seconds],
            "metrics": [{"error": {"10": e}} for e in (0.9, 0.3, 0.1)],
        }
        for file, records in lines.items():
            (folder / f"{file}.jsonl").write_text("".join(json.dumps(r) + "\n" for r in records))
    found = bench._outcome(tmp_path, "ar", 0.3, 2)
    assert (found["recipe_seconds"], found["reference_seconds"], found["ratio"]) == ([2, 3], 20, 20 / 3)
    assert bench._outcome(tmp_path, "ar", 0.01, 2)["ratio"] is None
    late = bench._outcome(tmp_path, "ar", 0.3, 3)
    assert late["recipe_seconds"] == [2, 3, None] and late["ratio"] is None, "a seed that never began counts"
    (tmp_path / "ar-reference" / "metrics.jsonl").write_text(json.dumps({"error": {"10": 0.9}}) + "\n")
    found = bench._outcome(tmp_path, "ar", 0.3, 2)
    assert (found["at_least"], found["ratio"]) == (True, 10 / 3), "it was stopped before it got there"


def test_regressor(runs):
    X, y = numpy.random.default_rng(0).normal(size=(4, 2)), numpy.arange(4.0)
    model = Regressor(str(runs / "invicl")).fit(X, y)
    padded = numpy.pad(X, ((0, 0), (0, 1)))
    tensors = (torch.tensor(v, dtype=torch.float32)[None] for v in (padded, y, padded))
    numpy.testing.assert_allclose(model.predict(X), model.model_(*tensors).query[0].detach(), rtol=1e-5, atol=1e-6)
    with pytest.raises(ValueError, match="got 4 features, allowed: at most the 3 dimensions"):
        Regressor(str(runs / "invicl")).fit(numpy.zeros((2, 4)), [0, 1])
    with pytest.raises(ValueError, match="not fitted"):
        Regressor(str(runs / "invicl")).predict(X)
    assert Regressor("a").set_params(step=3).get_params() == {"run": "a", "step": 3}


class Wide(Regressor):
    """The same estimator, to be given a model that is wide enough for the data of scikit-learn's checks."""

    def __init__(self, run="wide", step=None):
        super().__init__(run, step)


def test_regressor_passes_scikit_learn_s_checks():
    checks = pytest.importorskip("sklearn.utils.estimator_checks")
    wide = loud_model("invicl", n_dims=20, n_layer=1, n_head=1, n_embd=8)  # float64, as the checks' tolerances are

    import minicl.regressor

    original, minicl.regressor.load = minicl.regressor.load, lambda run, step: wide
    excluded = {
        "check_supervised_y_2d": "a column of labels is taken as it is, without scikit-learn's own class of warning",
    }
    try:
        results = checks.check_estimator(Wide(), on_fail=None, on_skip=None)
    finally:
        minicl.regressor.load = original
    failed = {r["check_name"]: r["exception"] for r in results if r["status"] == "failed"}
    assert set(failed) == set(excluded), {k: repr(v)[:300] for k, v in failed.items() if k not in excluded}
    assert sum(r["status"] == "passed" for r in results) > 30


def test_every_picture_is_drawn_from_json_alone(cli, runs, tmp_path):
    shots = {
        "curves": ["evaluate", runs / "ar", runs / "ar1", runs / "invicl", "--prompts", 20],
        "shifts": ["evaluate", runs / "invicl", "--prompts", 20, "--shifts", "noise,scale"],
        "steps": ["evaluate", runs / "ar", runs / "invicl", "--prompts", 20, "--checkpoints", "all"],
        "probes": ["probe", runs / "ar", runs / "invicl", "--prompts", 32, "--lengths", "0,4,6"],
        "order": ["evaluate", runs / "ar", runs / "invicl", "--order"],
    }
    for name, argv in shots.items():
        (tmp_path / f"{name}.json").write_text(cli(*argv, "--json").stdout)
        for ending in ("png", "pdf"):
            script = [sys.executable, str(ROOT / "plots" / f"{name}.py"), f"{name}.json", "-o", f"{name}.{ending}"]
            subprocess.run(script, cwd=tmp_path, check=True, capture_output=True)
            assert (tmp_path / f"{name}.{ending}").stat().st_size > 5000


def test_a_curve_shows_the_numbers_it_was_given():
    base = {"task": "linear", "n_dims": 3, "shift": "none", "lengths": [0, 1, 2]}
    base |= {"low": [0.9, 0.1, 0.01], "high": [1.1, 0.3, 0.03]}
    model = base | {"run": "r", "step": 5, "method": "invicl", "mean": [1.0, 0.2, 0.02], "trained_on": 1}
    floor = base | {"run": None, "step": None, "method": "optimal", "mean": [1.0, 0.1, 0.0]}
    (axes,) = draw.curves([model, floor]).axes
    lines = {line.get_label(): line for line in axes.get_lines()}
    assert lines["invicl"].get_ydata().tolist() == [1.0, 0.2, 0.02]
    assert lines["optimal"].get_linestyle() == "--" and axes.get_yscale() == "log"
    assert "trained to" in [t.get_text() for t in axes.texts]
    early = model | {"step": 1, "mean": [1.0, 1.0, 1.0]}
    other = model | {"run": "s", "n_dims": 5}
    early_axes, late_axes, other_axes = draw.curves([early, model, other, floor]).axes
    assert early_axes.get_ylim() == late_axes.get_ylim()  # the same prompts, the same scale
    assert [len(a.get_lines()) for a in (early_axes, late_axes, other_axes)] == [3, 3, 2]  # with the training length
    assert other_axes.get_title() == "linear in 5 dimensions, step 5"
