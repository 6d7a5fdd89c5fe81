"""The race to quality: real runs in processes of their own, and how they are judged."""

import json

import pytest

from minicl import draw, quality, runs
from minicl.checks import InputError
from minicl.config import Config

SIZES = {"n_dims": 2, "examples": 3, "max_examples": 6, "n_layer": 1, "n_head": 1, "n_embd": 8, "validate": 16}
TINY = SIZES | {"steps": 30, "warmup": 5, "keep": ""}
HANGING = 30  # minutes: a guard, which no race here comes near
MOMENT = 0.01  # minutes: the processes are stopped before they get anywhere


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("race")


@pytest.fixture(scope="module", autouse=True)
def won(folder):
    """A race of one mask with two seeds, to an error that every run has from its start."""
    return quality.compare(["ar"], folder, target=5.0, minutes=HANGING, seeds=2, **TINY)


def test_a_race_that_is_won(folder, won):
    (record,) = won
    assert len(record["recipe_seconds"]) == 2 and None not in record["recipe_seconds"]
    assert len(record["reference_seconds"]) == 2 and None not in record["reference_seconds"]
    assert not record["at_least"]
    assert (record["mask"], record["target"]) == ("ar", 5.0)
    assert {f.name for f in folder.iterdir() if f.is_dir()} == {
        f"ar-{name}-{seed}" for name in ("recipe", "reference") for seed in (0, 1)
    }
    assert [runs.read_config(folder / f"ar-recipe-{seed}").train.seed for seed in (0, 1)] == [0, 1]


def test_a_race_goes_on_where_it_stopped(folder, won):
    (lost,) = quality.compare(["ar"], folder, target=1e-9, minutes=MOMENT, **TINY)
    assert lost["recipe_seconds"] == [None] and lost["ratio"] is None and lost["at_least"]
    assert lost["recipe_curves"][0] == won[0]["recipe_curves"][0], "a finished seed is not trained again"
    assert lost["reference_trained"][0] >= won[0]["reference_seconds"][0]
    text = quality.table([*won, lost])
    assert "> " in text and "recipe of 2022" in text


def test_the_reference_is_the_recipe_of_2022(folder):
    reference = json.loads((folder / "ar-reference-0" / "config.json").read_text())
    published = Config.make("paper", **SIZES, symmetric_std=0.02, curriculum_steps=2000).to_json()
    assert (reference["model"], reference["data"]) == (published["model"], published["data"])
    assert reference["model"]["read_start"] == "torch" and reference["model"]["init_std"] == 0.02
    for name in ("lr", "beta2", "optimizer", "schedule", "warmup", "clip", "batch_size", "loss"):
        assert reference["train"][name] == published["train"][name], name


def test_the_recipe_is_preset_small(folder):
    expected = Config.make("small", **SIZES, steps=30, warmup=5, keep=(), mask="ar", log_every=25)
    assert expected.differences(runs.read_settings(folder / "ar-recipe-0")) == []


def test_the_curves_are_those_of_finished_seeds(folder, won, tmp_path):
    curves = quality.curves(["ar"], folder, 2)
    assert any(r.get("over") == "seeds" and len(r["runs"]) == 2 for r in curves)
    assert {r["step"] for r in curves if r["run"]} == {30}
    assert len([r for r in quality.curves(["ar"], folder, 3) if r["run"]]) == 2, "the third has not begun"
    draw.save(draw.quality(won, curves), tmp_path / "race.png")
    with pytest.raises(InputError, match="plot: got no seed that has finished"):
        quality.curves(["boe"], folder, 1)


def test_what_stops_a_run_is_told(folder):
    with pytest.raises(InputError, match="other settings"):
        quality.compare(["ar"], folder, minutes=HANGING, **TINY, lr=0.5)


def test_masks_share_no_folder(tmp_path):
    with pytest.raises(InputError, match="masks with different names"):
        quality.compare(["ar", "my.py:ar"], tmp_path / "race")
    assert not (tmp_path / "race").exists()


def test_the_race_is_judged_by_the_worst_pair_of_seeds(tmp_path):
    times = {"recipe-0": (1, 2, 4), "recipe-1": (1, 3, 5), "reference-0": (10, 30, 31), "reference-1": (10, 20, 30)}
    for name, seconds in times.items():
        folder = tmp_path / f"ar-{name}"
        folder.mkdir()
        lines = {
            "timing": [{"seconds": s} for s in seconds],
            "metrics": [{"step": s, "error": {"5": 1.0, "10": e}} for s, e in ((0, 0.9), (25, 0.3), (50, 0.1))],
        }
        for file, records in lines.items():
            (folder / f"{file}.jsonl").write_text("".join(json.dumps(r) + "\n" for r in records))
    judged = quality.outcome(tmp_path, "ar", 0.3, 2)
    assert (judged["recipe_seconds"], judged["reference_seconds"], judged["ratio"]) == ([2, 3], [30, 20], 20 / 3)
    assert (judged["recipe_steps"], judged["reference_steps"]) == ([25, 25], [25, 25])
    assert quality.outcome(tmp_path, "ar", 0.01, 2)["ratio"] is None
    late = quality.outcome(tmp_path, "ar", 0.3, 3)
    assert late["recipe_seconds"] == [2, 3, None] and late["ratio"] is None, "a seed that never began counts"
    (tmp_path / "ar-reference-1" / "metrics.jsonl").write_text(json.dumps({"step": 0, "error": {"10": 0.9}}) + "\n")
    judged = quality.outcome(tmp_path, "ar", 0.3, 2)
    assert (judged["at_least"], judged["ratio"]) == (True, 10 / 3), "it was stopped before it got there"
    (tmp_path / "ar-reference-1" / "metrics.jsonl").write_text('{"error": {"10"')
    assert quality.outcome(tmp_path, "ar", 0.3, 2)["reference_trained"] == [31, 0], "a line that is just being written"


def test_the_race_on_the_command_line(cli, tmp_path):
    command = ["bench", "--quality", "race", "--masks", "boe", "--minutes", MOMENT, "--target", 1e-9]
    (record,) = json.loads(cli(*command, "--seeds", 2, "--json").stdout)
    assert (record["mask"], record["target"], record["recipe_seconds"]) == ("boe", 1e-9, [None, None])
    result = cli(*command, "--plot", "race.png")
    assert "until error 1e-09" in result.stdout and result.returncode == 2
    assert "plot: got no seed that has finished, allowed: more --minutes" in result.stderr
