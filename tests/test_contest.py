"""The race between masks: real training at toy size, interrupted, continued, and the same again."""

import json
import sys
from dataclasses import asdict

import pytest
from conftest import assert_one_line
from training_helpers import finish, start, wait_for

from minicl import contest, kinds
from minicl.checks import InputError
from minicl.masks import layout
from minicl.runs import take

MICRO = {"n_dims": 1, "examples": 2, "max_examples": 5, "n_layer": 1, "n_head": 1, "n_embd": 8, "batch_size": 4}
RACE = ("search", "--copies", 1, "--steps", 1, "--out", "race")


@pytest.fixture
def micro(monkeypatch):
    """A race of toy models, trained in this process; a list of what is trained, which may stop it."""
    trained = []

    def train(self, missing, begin):
        for trial in missing:
            begin("training")
            self.results[trial] = contest.train(trial)
            trained.append(trial)
            with (self.out / "results-0.jsonl").open("a") as log:
                log.write(json.dumps({"trial": asdict(trial), "result": self.results[trial]}) + "\n")
            if len(trained) == 5:
                raise KeyboardInterrupt

    for size in contest.SIZES:
        monkeypatch.setitem(contest.SIZES, size, ("tiny", MICRO | {"n_dims": 1 + (size == "small")}))
    monkeypatch.setattr(contest.Contest, "_train", train)
    return trained


def test_a_race_goes_on_and_ends_with_its_best(micro, cli, tmp_path):
    assert cli(*RACE).returncode == 130, "stopped after five masks"
    result = cli(*RACE, "--json", "--plot", "race.png")
    assert result.returncode == 0 and len(micro) == len(set(micro)), "nothing is trained twice"
    found = json.loads(result.stdout)
    first, last = found["rounds"]
    changing = [r["mask"] for r in last if "/" in r["mask"]]
    assert len(first) == 32 and len(last) == 11 + contest.CARRIED + len(changing) and len(found["agreement"]) == 1
    went_on = {r["mask"] for r in last} - set(changing)
    assert went_on > {r["mask"] for r in first[:11]} and went_on < {r["mask"] for r in first}, "the best third goes on"
    best = [r["mask"] for r in first[: contest.STAGED]]
    assert set(changing) == {f"{a}/6/{b}" for a in best for b in best if a != b}, "also one after the other"
    assert [r["score"] for r in first] == sorted(r["score"] for r in first)
    assert all(set(r["error"]) == {"2", "5"} and r["steps"] == 1 for r in first)
    assert all(r["steps"] == 2 for r in last), "longer"
    assert json.loads((tmp_path / "race/ranking.json").read_text()) == found
    assert (tmp_path / "race.png").stat().st_size > 10_000
    winner = layout(f"{tmp_path}/race/winner.py:winner", 3, 1, layers=12)
    assert len(winner.context) == 3 and "winner.py:winner; next: minicl search" in result.stderr
    table = cli(*RACE).stdout
    assert f"masks in each round: 32 → {len(last)}" in table and last[0]["mask"] in table


HOLD = """
import sys
from minicl.contest import Contest, Trial
from minicl.progress import Progress
masks = "one:", "one:y-Y", "one:x-X", "one:y-X", "one:y-XY", "one:x-Y"
trials = [Trial(mask, "linear", "scout", 0, 3) for mask in masks]
with Progress(6) as begin:
    Contest(sys.argv[1], 2).hold(trials, begin)
"""


def test_a_killed_race_keeps_its_results(tmp_path):
    """Real processes: the parent is killed, its children end, and the next call trains only what is missing."""
    process = start(sys.executable, "-c", HOLD, tmp_path)
    wait_for(lambda: sum(f.read_text().count("\n") for f in tmp_path.glob("results-*.jsonl")) >= 1, process)
    process.kill()
    process.wait()
    before = {f: f.read_text() for f in tmp_path.glob("results-*.jsonl")}
    cut = tmp_path / "results-1.jsonl"
    cut.write_text((before.get(cut, "").rpartition("\n")[0] + "\n").lstrip() + '{"trial": {"mask": "on')
    result = finish(start(sys.executable, "-c", HOLD, tmp_path))
    assert result.returncode == 0, result.stderr
    assert "masks to train" in result.stderr and "of 6" in result.stderr
    lines = [json.loads(line) for f in tmp_path.glob("results-*.jsonl") for line in f.read_text().splitlines()]
    masks = [line["trial"]["mask"] for line in lines]
    assert len(set(masks)) == 6, "all of them, and no line is cut off"
    again = contest.train(contest.Trial("one:y-Y", "linear", "scout", 0, 3))
    assert again in [line["result"] for line in lines if line["trial"]["mask"] == "one:y-Y"], "the same again"


@pytest.mark.parametrize("line", ["not JSON", '{"trial": {}}', '{"trial": {"mask": "one:"}, "result": 7}'])
def test_a_damaged_log_is_one_line(line, tmp_path, cli):
    (tmp_path / "race").mkdir()
    (tmp_path / "race/results-0.jsonl").write_text(line + "\n")
    assert_one_line(cli(*RACE), "results-0.jsonl", "lines that minicl wrote")


@pytest.mark.parametrize("text", ["{", "[]", '{"1 False": 0}', '{"1 False": "a"}'])
def test_a_damaged_clock_is_one_line(text, tmp_path, cli):
    (tmp_path / "race").mkdir()
    (tmp_path / "race/clock-scout.json").write_text(text)
    assert_one_line(cli("search", "--copies", 1, "--budget", 60, "--out", "race"), "clock-scout.json", "delete it")


def test_a_race_without_certified_masks_says_so(micro, cli, monkeypatch):
    micro.extend([None] * 5)  # nothing stops it
    result = cli(*RACE, "--need", "informed")
    assert result.returncode == 0 and "no mask here has all four certificates" in result.stderr


def test_equal_time_gives_cheaper_masks_more_steps(tmp_path, monkeypatch):
    """A step takes what the clock says. It is asked once for each shape, and what it said is kept."""
    asked, seconds = [], {"one": 0.005, "two": 0.01}

    def clock(masks, *_):
        asked.append(sorted(masks))
        return {mask: seconds[mask[:3]] for mask in masks}

    def hold(self, trials, begin):
        return {trial.mask: {"error": {"4": 1.0, "10": trial.steps}} for trial in trials}

    monkeypatch.setattr(contest, "step_seconds", clock)
    monkeypatch.setattr(contest.Contest, "hold", hold)
    need = ("no_leak", "interdependent")
    rankings = contest.race(tmp_path, budget=200, jobs=1, need=need)
    steps = {(m[:3], result["steps"]) for m, result in rankings[0]}
    assert len(steps) == 2 and max(steps)[1] == pytest.approx(min(steps)[1] / 2, abs=1), (
        "twice as many at half the time"
    )
    rounds = len(asked)
    assert [len(masks) for masks in asked] == [3] * 3, "one of each shape at each size, before anything is trained"
    assert contest.race(tmp_path, budget=100, jobs=2, need=need) == rankings, "as much processor time: the same race"
    assert len(asked) == rounds
    with pytest.raises(InputError, match="budget times jobs 30, where the race has 200"):
        contest.race(tmp_path, budget=30, jobs=1, need=need)
    few = contest.race(tmp_path / "few", budget=1, jobs=1, need=("no_leak",), copies=(1,))
    assert [len(r) for r in few] == [8] and contest.agreement(few) == [], "eight masks race once"


def test_a_step_of_two_copies_takes_longer():
    seconds = contest.step_seconds(["one:y-Y", kinds.INVICL], "linear", "scout", 0)
    assert set(seconds) == {"one:y-Y", kinds.INVICL} and min(seconds.values()) > 0


def test_what_is_trained_on_is_the_same_at_all_sizes():
    for mask, loss in (("one:y-Y", "query"), (kinds.INVICL, "all"), ("one:x-XY,y-XY", "query")):
        for size in contest.SIZES:
            config = contest.Trial(mask, "linear", size, 0, 10).config()
            assert config.train.loss == loss and config.data.queries == 16
    assert not contest.on_context(f"{kinds.INVICL}/6/two:x1-y1")


def test_masks_that_change_with_depth_have_the_certificates_of_the_audit():
    from minicl.auditing import audit

    for name in (f"{kinds.INVICL}/6/two:x1-y1", f"two:y0-Y0/6/{kinds.INVICL}", "one:y-Y/6/one:x-XY"):
        record, found = audit(name, layers=12, examples=4), contest.certificates(name)
        assert all(bool(record[key]) == found[key] for key in ("invariant", "no_leak", "interdependent", "paired"))


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


def test_a_folder_that_is_none_is_one_line(cli, tmp_path):
    (tmp_path / "file").write_text("")
    assert_one_line(cli(*RACE[:-1], "file"), "out", "file", "a folder to write to")


def test_two_races_in_one_folder_are_one_line(cli, tmp_path):
    (tmp_path / "race").mkdir()
    with take(tmp_path / "race/race.lock"):
        assert_one_line(cli(*RACE), "out", "no other race")
