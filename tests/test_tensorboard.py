"""`minicl train --tensorboard`: the lines of metrics.jsonl as scalars."""

import json
import signal
import sys

import pytest
from conftest import assert_one_line
from test_training import interrupt
from training_helpers import TINY, assert_same_run, flags, newest_step

import minicl


def scalars(run):
    """{name: [(step, value), …]} as TensorBoard shows them."""
    accumulator = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    events = accumulator.EventAccumulator(str(run / "tensorboard"))
    events.Reload()
    return {name: [(e.step, e.value) for e in events.Scalars(name)] for name in events.Tags()["scalars"]}


def assert_they_are_the_metrics(run):
    expected = {"loss": [], "lr": [], "error@1": [], "error@3": []}
    for line in map(json.loads, (run / "metrics.jsonl").read_text().splitlines()):
        for name, value in [*line.items(), *((f"error@{n}", error) for n, error in line["error"].items())]:
            if name in expected and value is not None:
                expected[name].append((line["step"], pytest.approx(value)))
    shown = scalars(run)
    assert shown == expected and len(shown["lr"]) == len({step for step, _ in shown["lr"]}) > 3


def test_scalars_are_the_lines_of_metrics_and_change_nothing(cli, tmp_path, whole):
    assert cli("train", *flags(), "--tensorboard", "--out", "run").returncode == 0
    assert_they_are_the_metrics(tmp_path / "run")
    assert_same_run(whole, tmp_path / "run")


@pytest.mark.parametrize("first", [["--tensorboard"], []], ids=["from the start", "later"])
def test_a_resumed_run_has_every_step_once(cli, monkeypatch, tmp_path, first):
    command, run = ["train", *flags(save_every=10), "--out", "run"], tmp_path / "run"
    with monkeypatch.context() as patch:
        interrupt(patch, "update", 32, signal.SIGTERM)
        assert cli(*command, *first).returncode == 143
    newest = run / "checkpoints" / f"step-{newest_step(run):08d}.pt"
    newest.unlink()  # as if killed before it: the lines after step 30 come again
    before = len(list((run / "tensorboard").glob("*"))) if first else 0
    assert cli(*command, "--tensorboard").returncode == 0
    assert len(list((run / "tensorboard").glob("*"))) == before + 1
    assert_they_are_the_metrics(run)


def test_without_the_package_nothing_is_trained(cli, monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", None)
    result = cli("train", *flags(), "--tensorboard", "--out", "run")
    assert_one_line(result, "tensorboard", "pip install 'minicl[tensorboard]'")
    assert not (tmp_path / "run").exists()
    assert minicl.train(out=tmp_path / "run", **TINY | {"steps": 1})["step"] == 1
