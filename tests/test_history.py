"""`minicl evaluate --training`: the errors during training, from metrics.jsonl."""

import json
import shutil

import pytest
from conftest import assert_one_line
from training_helpers import TINY

from minicl import draw, train


def metrics(run):
    return [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]


def test_records_are_the_lines_of_the_runs(cli, runs, monkeypatch):
    monkeypatch.setattr("minicl.checkpoint.read", None)  # no model is read
    result = cli("evaluate", runs / "ar", f"{runs / 'ar'}/", runs / "invicl", "--training", "--json")
    records = json.loads(result.stdout)
    assert [(r["run"], r["method"]) for r in records] == [(str(runs / name), name) for name in ("ar", "invicl")]
    for r in records:
        assert r["lines"] == metrics(runs / r["method"]) and [line["step"] for line in r["lines"]] == [0, 10, 20, 30]
        assert (r["task"], r["train_seed"], r["trained_on"], r["steps"]) == ("linear", 0, 4, 30)
        assert r["seconds"] > 0


def test_the_table_has_a_row_for_every_run(cli, runs, whole, tmp_path):
    shutil.copytree(whole, tmp_path / "b")
    (tmp_path / "b" / "timing.jsonl").unlink()
    result = cli("evaluate", runs / "ar", "b", "--training", "--plot", "t.png")
    _, head, first, second, end = result.stdout.splitlines()
    assert head.split() == ["steps", "loss", "error@1", "error@2", "error@3", "error@4", "training", "took"]
    a, b = ([line["loss"], *line["error"].values()] for line in (metrics(runs / "ar")[-1], metrics(whole)[-1]))
    a, b = ([f"{value:.3g}" for value in numbers] for numbers in (a, b))
    assert first.split()[:9] == ["ar,", "ar", f"({runs / 'ar'})", "30/30", a[0], "–", a[1], "–", a[2]]
    assert second.split() == ["ar,", "b", "(b)", "60/60", b[0], b[1], "–", b[2], "–", "–"]
    assert "answering 0" in end and (tmp_path / "t.png").stat().st_size > 5000


def test_runs_that_differ_in_more_than_their_seed_have_lines_of_their_own(cli, runs, tmp_path):
    train(out=tmp_path / "fast", **TINY | {"steps": 14, "lr": 0.01})
    train(out=tmp_path / "slow", **TINY | {"steps": 14})
    records = json.loads(cli("evaluate", runs / "ar", runs / "ar1", "--training", "--json").stdout)
    assert [r["method"] for r in records] == ["ar", "ar"]
    (axes,) = draw.training(records).axes
    (line,) = axes.get_lines()
    pairs = zip(*([list(row["error"].values())[-1] for row in r["lines"]] for r in records), strict=True)
    assert line.get_ydata().tolist() == pytest.approx([sum(pair) / 2 for pair in pairs])
    records = json.loads(cli("evaluate", "fast", "slow", "--training", "--json").stdout)
    assert [r["method"] for r in records] == ["ar, fast", "ar, slow"]
    assert [line.get_label() for line in draw.training(records).axes[0].get_lines()] == ["ar, fast", "ar, slow"]


def test_a_run_that_is_still_training(cli, whole, runs, tmp_path):
    """It has no checkpoint yet, and its last line may be half written."""
    run = shutil.copytree(runs / "ar1", tmp_path / "run")
    shutil.rmtree(run / "checkpoints")
    kept = (run / "metrics.jsonl").read_text().splitlines(keepends=True)
    (run / "metrics.jsonl").write_text("".join(kept[:2]) + kept[2][:20])
    records = json.loads(cli("evaluate", run, runs / "ar", "--training", "--json").stdout)
    assert [line["step"] for line in records[0]["lines"]] == [0, 10]
    assert draw.training(records).axes[0].get_lines()[0].get_xdata().tolist() == [0, 10], "where both are"
    (run / "metrics.jsonl").write_text("")
    assert_one_line(cli("evaluate", run, "--training"), "metrics.jsonl", "has not begun")
    (run / "metrics.jsonl").write_text('{"step": 3}\n')
    assert_one_line(cli("evaluate", run, "--training"), "metrics.jsonl", "damaged", "loss")


@pytest.mark.parametrize(
    "flags",
    [["--order"], ["--shifts", "noise"], ["--prompts", "20"], ["--lengths", "3"], ["--checkpoints", "all"],
     ["--prompt-plot", "p.png"], ["--window", "3"]],
)  # fmt: skip
def test_it_goes_with_no_measurement(cli, runs, flags):
    assert_one_line(
        cli("evaluate", runs / "ar", "--training", *flags), "training: got", f"{flags[0]} beside it", "--json"
    )
