"""The finalists of a race again, on fresh seeds: real runs at toy size, intervals, the winner as a file."""

import json

import pytest
import torch
from conftest import assert_one_line

from minicl import confirm, contest, kinds
from minicl.masks import layout
from minicl.search import _no_longer

SMALL = "two:x1-X0Y0,y1-Y1"


@pytest.fixture
def raced(tmp_path, monkeypatch):
    """A folder with a race's ranking, at the smallest scale."""
    monkeypatch.setattr(confirm, "SCALE", "smoke")
    monkeypatch.setattr(confirm, "KNOWN", ("invicl",))
    monkeypatch.setitem(contest.SIZES, "small", contest.SIZES["scout"])
    ranking = [{"mask": SMALL}]
    (tmp_path / "race").mkdir()
    (tmp_path / "race/ranking.json").write_text(json.dumps({"rounds": [ranking]}))
    return tmp_path / "race"


def test_finalists_are_compared_on_fresh_seeds(raced, cli):
    result = cli("search", "--confirm", 2, "--out", "race", "--plot", "race.png", "--json")
    assert result.returncode == 0, result.stderr
    records = {r["mask"]: r for r in json.loads(result.stdout)}
    assert set(records) == {SMALL, "invicl"} and (raced.parent / "race.png").stat().st_size > 10_000
    for mask, r in records.items():
        assert len(r["error"]["training"]["seeds"]) == 2 and r["step"]["seconds"] > 0
        low, high = r["ratio"]["longest"]["over_seeds"]
        assert low <= r["ratio"]["longest"]["middle"] <= high and (mask != "invicl" or low == high == 1)
    assert records[SMALL]["no_leak"] and records[SMALL]["interdependent"]
    numbers = sorted(f.name for f in raced.glob("numbers/linear-*.json"))
    again = cli("search", "--confirm", 2, "--out", "race")
    assert sorted(f.name for f in raced.glob("numbers/linear-*.json")) == numbers and len(numbers) == 4
    assert "training" not in again.stderr, "nothing is trained twice"
    assert f"best with all certificates, {SMALL}" in again.stdout and "a step takes" in again.stdout


@pytest.mark.parametrize("low, high, words", [(0.9, 1.0, "at most 1.05"), (1.1, 2, "more than"), (1, 1.1, "decided")])
def test_a_longer_step_is_said(low, high, words):
    assert words in _no_longer({"low": low, "ratio": 1.0, "high": high})


def test_the_best_certified_masks_are_compared_wherever_they_came_in(tmp_path):
    names = [kinds.name_of(i, 1) for i in range(32)]
    certified = [m for m in names if confirm.champion([m])]
    masks = [m for m in names if m not in certified][:10] + certified + [kinds.INVICL, "two:x1-X0Y0"]
    (tmp_path / "ranking.json").write_text(json.dumps({"rounds": [[{"mask": m} for m in masks]]}))
    chosen = confirm.finalists(tmp_path)
    assert chosen == [*masks[:8], *certified, kinds.INVICL] and confirm.champion(chosen) == certified[0]
    assert confirm.champion(masks[:10]) is None


def test_all_masks_ask_as_many_queries(raced):
    shelf = confirm.Shelf(raced, raced / "runs", "smoke")
    runs = confirm.planned(shelf, ["pfn", "invicl", SMALL], "linear", 2)
    assert [r.config.data.queries for r in runs] == [contest.QUERIES] * 6 and [r.seed for r in runs] == [0] * 3 + [
        1
    ] * 3
    assert [r.config.train.loss for r in runs[:3]] == ["query", "all", "all"]


def test_the_front_is_what_nothing_beats():
    def record(mask, time, training, longest):
        errors = {"training": {"mean": training}, "longest": {"mean": longest}}
        return {"mask": mask, "error": errors, "step": {"ratio": {"ratio": time}}}

    cheap, good, beaten = record("cheap", 0.5, 2, 2), record("good", 1.0, 1, 1), record("beaten", 1.02, 1.5, 1.5)
    mixed = record("mixed", 1.0, 3, 0.5)
    assert confirm.front([cheap, good, beaten, mixed]) == ["cheap", "good", "mixed"]
    assert confirm.front([record("same", 1.02, 1, 0.9), good]) == ["same"], "a clock is no better than 5 %"


@pytest.mark.parametrize(
    "name", ["one:", "one:y-Y", kinds.INVICL, SMALL, f"{kinds.INVICL}/1/two:x0-y0", "one:/1/one:y-Y"]
)
def test_a_mask_as_a_file_is_the_same_mask(name, tmp_path):
    file = tmp_path / "mask.py"
    file.write_text(kinds.source(name, "winner"))
    mine = layout(f"{file}:winner", 3, 2, layers=2)
    assert torch.equal(mine.mask, layout(name, 3, 2, layers=2).mask)


@pytest.mark.parametrize("text", ["{", "{}", "[]", '{"rounds": []}'])
def test_a_damaged_ranking_is_one_line(text, raced, cli):
    (raced / "ranking.json").write_text(text)
    assert_one_line(cli("search", "--confirm", 1, "--out", "race"), "ranking.json", "delete it")


def test_bad_input_is_one_line(cli):
    assert_one_line(cli("search", "--count", "--steps", 5), "count: got --steps beside it", "--copies")
    assert_one_line(cli("search", "--steps", 5, "--plot", "nowhere/a.png"), "picture", "a folder that exists")
    assert_one_line(cli("search", "--show", "one:y-Y/0/one:"), "at least 1")
    assert_one_line(cli("search", "--show", "one:y-YY"), "twice")
    assert_one_line(cli("search", "--confirm", 2, "--out", "nothing"), "out", "nothing", "ranking.json")
    assert_one_line(cli("search", "--confirm", 0, "--out", "nothing"), "confirm", "0")
    assert_one_line(cli("search", "--confirm", 1, "--count"), "search", "one of them")
    assert_one_line(cli("search", "--count", "--plot", "a.png"), "count: got --plot beside it")
    assert_one_line(cli("search", "--confirm", 1, "--seed", 3), "confirm: got --seed beside it", "--task")
    assert_one_line(cli("search", "--confirm", 1, "--plot", "a.gif"), "a.gif", ".png")
