"""Evaluation: paired prompts, records, and results that are never lost."""

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
from conftest import assert_one_line, loud_model

import minicl
from minicl import stats
from minicl.baselines import get_baseline
from minicl.checkpoint import checkpoints, read, save
from minicl.checks import InputError
from minicl.evaluation import Prompts, squared_errors
from minicl.shifts import SHIFTS
from minicl.tasks import get_task


@pytest.fixture
def run(runs, tmp_path):
    """A copy of the invicl run that a test may do anything to."""
    return Path(shutil.copytree(runs / "invicl", tmp_path / "run", ignore=shutil.ignore_patterns("evaluation")))


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
    assert len(files) == 4 and f"evaluating {run} step" in first.stderr and "(2 of 2, " in first.stderr
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
    command = [sys.executable, "-m", "minicl", "evaluate", str(run), *settings]
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
        (["rum"], ("rum", "no such folder", "did you mean run?")),
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
        (["run", "--lengths", ""], ("lengths", "at least one")),
        (["run", "--threads", "0"], ("threads", "0", "from 1")),
        ([], ("RUN",)),
    ],
)
def test_bad_input_is_one_line(cli, run, argv, words):
    assert_one_line(cli("evaluate", *argv, cwd=run.parent), *words)


def test_absolute_positions_are_not_asked_beyond_their_end(cli, runs):
    assert_one_line(cli("evaluate", runs / "ar", "--max-examples", 13), "examples for", "13", "at most 12")
    assert cli("evaluate", runs / "invicl", "--lengths", "13,50", "--prompts", 5).returncode == 0


def test_python_gives_what_the_command_prints(cli, runs, monkeypatch):
    folders = [runs / "ar", runs / "ar1"]
    printed = json.loads(
        cli("evaluate", *folders, "--shifts", "noise", "--lengths", "5,10", "--prompts", 20, "--json").stdout
    )
    assert minicl.evaluate(folders, shifts="noise", lengths=[5, 10], prompts=20) == printed
    assert printed[-1]["over"] == "seeds" and printed[0]["lengths"] == [5, 10]
    (alone,) = minicl.evaluate(str(runs / "ar"), lengths=[3], prompts=20, baselines="none")
    assert alone["run"] == str(runs / "ar")
    with pytest.raises(InputError, match="lengths: got -1"):
        minicl.evaluate(folders, lengths=[-1])


def test_another_interval_is_another_result(cli, run, monkeypatch):
    wide = json.loads(cli("evaluate", run, "--prompts", 30, "--baselines", "none", "--json").stdout)[0]
    monkeypatch.setattr(stats, "INTERVAL", 0.5)
    result = cli("evaluate", run, "--prompts", 30, "--baselines", "none", "--json")
    narrow = json.loads(result.stdout)[0]
    assert wide["mean"] == narrow["mean"] and wide["low"][3] < narrow["low"][3] and narrow["interval"] == 0.5
    assert "50 % intervals over prompts" in cli("evaluate", run, "--prompts", 30, "--baselines", "none").stdout


def test_threads_are_those_of_the_run_unless_told_otherwise(cli, run, monkeypatch):
    import torch

    used = []
    monkeypatch.setattr(torch, "set_num_threads", used.append)
    cli("evaluate", run, "--prompts", 10, "--baselines", "none")
    assert used[0] == 1, "it was trained with one"
    used.clear()
    cli("evaluate", run, "--prompts", 11, "--baselines", "none", "--threads", 3)
    assert used[0] == 3


def test_no_checkpoint_at_all_is_refused(cli, run):
    for command in (["evaluate", run], ["evaluate", run, "--order"], ["probe", run]):
        assert_one_line(cli(*command, "--checkpoints", ","), "checkpoints", "last, all")
