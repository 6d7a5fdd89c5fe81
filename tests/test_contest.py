"""The race between masks: real training at toy size, interrupted, continued, and the same again."""

import json
import signal
import sys

import pytest
from conftest import assert_one_line
from training_helpers import finish, start, wait_for

from minicl import contest, kinds

RACE = ["search", "--copies", "1", "--steps", "4", "--jobs", "2", "--json"]


@pytest.fixture(scope="module")
def raced(tmp_path_factory):
    """A race of all masks with one copy, interrupted once."""
    folder = tmp_path_factory.mktemp("race")
    command = (sys.executable, "-m", "minicl", *RACE, "--out", folder)
    process = start(*command)
    wait_for(lambda: len(list(folder.glob("results/*.json"))) >= 3, process)
    process.send_signal(signal.SIGINT)
    assert finish(process).returncode == 130
    before = {f: f.stat().st_mtime_ns for f in folder.glob("results/*.json")}
    result = finish(start(*command))
    assert result.returncode == 0, result.stderr
    assert len(before) >= 3 and all(f.stat().st_mtime_ns == t for f, t in before.items()), "what was there is kept"
    assert "masks to train" in result.stderr and "of 43" in result.stderr and "left)" in result.stderr
    return folder, json.loads(result.stdout)


def test_a_race_ends_with_eight(raced):
    folder, found = raced
    assert [len(r) for r in found["rounds"]] == [32, 11] and len(found["agreement"]) == 1
    first, last = found["rounds"]
    assert {r["mask"] for r in last} == {r["mask"] for r in first[:11]}, "the best third goes on"
    assert [r["score"] for r in first] == sorted(r["score"] for r in first)
    assert all(set(r["error"]) == {"4", "10"} and r["steps"] == 4 for r in first)
    assert all(set(r["error"]) == {"10", "25"} and r["steps"] == 8 for r in last), "longer, at a larger size"
    assert json.loads((folder / "ranking.json").read_text()) == found


def test_the_same_steps_give_the_same_ranking(raced, cli):
    _, found = raced
    again = json.loads(cli(*RACE, "--out", "again").stdout)
    strip = [[(r["mask"], r["error"]) for r in ranking] for ranking in again["rounds"]]
    assert strip == [[(r["mask"], r["error"]) for r in ranking] for ranking in found["rounds"]]


def test_equal_time_gives_cheaper_masks_more_steps(monkeypatch):
    monkeypatch.setattr(contest, "_seconds_of_a_step", lambda trial: {"one:": 0.01, kinds.INVICL: 0.02}[trial.mask])
    for mask, steps in (("one:", 50), (kinds.INVICL, 25)):
        result = contest.train(contest.Trial(mask, "linear", "scout", 0, seconds=0.5))
        assert result["steps"] == steps and result["step_seconds"] == pytest.approx(result["seconds"] / steps)


def test_who_starts():
    names = contest.entrants((), (1, 2))
    assert len(names) == 32 + 1216 and kinds.INVICL in names and "one:y-Y" in names
    needed = contest.entrants(("no_leak", "interdependent", "paired"), (1, 2))
    assert kinds.INVICL in needed and "one:y-Y" not in needed and set(needed) < set(names)
    some = contest.strangers(20, [], set(), 0, ())
    assert len(some) == 20 and not set(some) & set(names) and contest.strangers(20, [], set(), 0, ()) == some
    near = contest.strangers(20, some[:1], set(some), 1, ())
    bits = [bin(kinds.parse(a)[0] ^ kinds.parse(some[0])[0]).count("1") for a in near]
    assert min(bits) == 1 and not set(near) & set(some), "neighbours of the best, and none twice"


def test_a_run_that_fails_is_last():
    assert contest.score({"failed": "the loss exploded"}) == float("inf")
    assert contest.score({"error": {"4": float("nan"), "10": 1.0}}) == float("inf")
    good, bad = ({"error": {"4": e, "10": e}} for e in (0.1, 0.5))
    assert contest.score(good) < contest.score(bad)


def test_few_masks_race_once(cli):
    found = json.loads(cli("search", "--copies", 1, "--need", "no_leak", "--steps", 2, "--out", "few", "--json").stdout)
    assert [len(r) for r in found["rounds"]] == [8] and found["agreement"] == []


def test_rounds_keep_a_third():
    assert contest.rounds(32) == [("tiny", 11), ("small", 8)] or contest.rounds(32) == [("scout", 11), ("small", 8)]
    sizes = [size for size, _ in contest.rounds(1500)]
    assert sizes[0] == "scout" and sizes[-1] == "small" and contest.rounds(1500)[-1][1] == contest.FINALISTS


@pytest.mark.parametrize(
    "flags, words",
    [
        (("--budget", 0.1), ("budget", "0.1", "at least")),
        (("--budget", -1), ("budget", "above 0")),
        (("--steps", 4, "--need", "beauty"), ("need", "beauty", "no_leak")),
        (("--steps", 4, "--copies", 1, "--need", "no_leak,informed"), ("need", "some mask")),
        (("--steps", 4, "--budget", 3), ("search", "one of")),
        (("--steps", 4, "--task", "cubism"), ("task", "cubism")),
    ],
)
def test_bad_flags_are_one_line(flags, words, cli):
    assert_one_line(cli("search", *flags), *words)
