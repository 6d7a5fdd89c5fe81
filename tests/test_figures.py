"""The study: from one command to pictures and verdicts, with real runs at scale smoke; the rules of the verdicts."""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import numpy
import pytest

from minicl import claims, load, study
from minicl.checkpoint import checkpoints, read
from minicl.claims import Error, Numbers
from minicl.cli import main
from minicl.numbers import Shelf

ROOT = Path(__file__).parent.parent


def start(folder, *extra):
    command = [sys.executable, "-m", "minicl.cli", "figures", "--scale", "smoke", *extra]
    command += ["--out", str(folder / "out"), "--runs", str(folder / "runs")]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def finish(process, timeout=400):
    out, err = process.communicate(timeout=timeout)
    return subprocess.CompletedProcess(process.args, process.returncode, out, err)


def wait_for(condition, seconds=60):
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "nothing happened"
        time.sleep(0.02)


def numbers(folder):
    return {f.name: f.stat().st_mtime_ns for f in (folder / "out" / "numbers").glob("*.json")}


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """The whole study at scale smoke, interrupted once and continued."""
    folder = tmp_path_factory.mktemp("smoke")
    process = start(folder)
    wait_for(lambda: len(numbers(folder)) >= 2)
    process.send_signal(signal.SIGTERM)
    stopped = finish(process)
    assert stopped.returncode == 143 and "the same command goes on" in stopped.stderr
    before = numbers(folder)
    result = finish(start(folder))
    assert result.returncode == 0, result.stderr
    assert len(before) >= 2 and before.items() <= numbers(folder).items(), "what was there is not done again"
    return folder


def test_everything_is_drawn_and_judged(whole):
    pictures = {f.name for f in (whole / "out").glob("*.png")}
    assert pictures == {*(f"figure{n}.png" for n in range(1, 11)), "figure8-training.png"}
    assert all((whole / "out" / p).stat().st_size > 5000 for p in pictures)
    text = (whole / "out" / "claims.md").read_text()
    assert text.count("*Rule.*") == 11 and "not run" not in text
    assert all(word in text for word in ("does not hold", "not decided"))


def test_models_for_demonstrations_stay_with_the_numbers(whole):
    for mask in study.SHOWN:
        folder = whole / "out" / "models" / mask
        (original,) = (f for f in (whole / "runs").glob(f"linear-{mask}-0-*") if f.is_dir())
        ours, theirs = load(folder).state_dict(), load(original).state_dict()
        assert all(ours[name].equal(theirs[name]) for name in theirs)
        (state,) = map(read, checkpoints(folder).values())
        assert state["optimizer"] is None and len(checkpoints(original)) > 1
    flags = ["evaluate", str(folder), "--prompts", "8", "--baselines", "none"]
    assert main(flags) == 0, "as a run folder does"


@pytest.mark.parametrize(
    "content", ["", "{}", "[]", "3", '{"curv', '{"curves": [{}]}', '{"curves": [{"step": 16}], "seconds": 1}']
)
def test_numbers_that_are_not_whole_are_refused_and_kept(tmp_path, capsys, content):
    shelf = Shelf(tmp_path, tmp_path, "smoke")
    run = study.make_run(shelf.scale, "linear", "ar", 0)
    shelf.file(run).parent.mkdir()
    assert shelf.read(run) is None
    shelf.file(run).write_text(content)
    with pytest.raises(SystemExit) as exit:
        main(["figures", "--scale", "smoke", "--only", "5", "--out", str(tmp_path), "--runs", str(tmp_path)])
    (line,) = capsys.readouterr().err.strip().splitlines()
    assert exit.value.code == 2 and shelf.file(run).name in line and "restore it" in line
    assert shelf.file(run).read_text() == content


def test_verdicts_use_all_seeds_that_there_are(whole, tmp_path):
    """Also where a seed of one strategy is missing, and when fewer are asked for now."""
    folder = tmp_path / "copy"
    shutil.copytree(whole / "out", folder / "out")
    next((folder / "out" / "numbers").glob("decision-tree-ar-1-*")).unlink()
    (folder / "runs").write_text("")
    assert finish(start(folder, "--only", "2")).returncode == 2, "no place for the run folders"
    (folder / "runs").unlink()
    result = finish(start(folder, "--only", "2", "--seeds", "1"))
    assert result.returncode == 0, result.stderr
    text = (folder / "out" / "claims.md").read_text()
    assert re.search(r"half the training length: ar \S+ \(1 seed\), invicl .* 2 seeds\)", text)


def test_a_second_call_only_redraws(whole):
    before = numbers(whole)
    (whole / "out" / "figure1.png").unlink()
    result = finish(start(whole))
    assert result.returncode == 0 and "seed" not in result.stderr + result.stdout
    assert numbers(whole) == before and (whole / "out" / "figure1.png").exists()


def test_a_new_run_makes_every_picture_of_it_new(whole, tmp_path):
    shutil.copytree(whole / "out", tmp_path / "out")
    pictures = {n: tmp_path / "out" / f"figure{n}.png" for n in (1, 2, 3)} | {
        8: tmp_path / "out" / "figure8-training.png"
    }
    next((tmp_path / "out" / "numbers").glob("linear-nope-1-*")).unlink()
    before = {n: file.stat().st_mtime_ns for n, file in pictures.items()}
    assert finish(start(tmp_path, "--only", "1")).returncode == 0
    assert [n for n, file in pictures.items() if file.stat().st_mtime_ns > before[n]] == [1, 3, 8]


def test_a_mask_or_a_seed_more_trains_only_what_is_new(whole, tmp_path, capsys):
    file = tmp_path / "my.py"
    file.write_text("def window(q, k):\n    return (k.example < q.example) & (q.example - k.example <= 2)\n")
    flags = ["figures", "--scale", "smoke", "--out", str(whole / "out"), "--runs", str(whole / "runs")]
    flags += ["--only", "1,4,6", "--masks", f"ar,boe,invicl,{file}:window"]
    assert main([*flags, "--dry-run", "--json"]) == 0
    plan = json.loads(capsys.readouterr().out)
    assert {(r["name"].rpartition(":")[2], r["seed"]) for r in plan if r["state"] == "missing"} == {
        ("window", 0),
        ("window", 1),
    }
    assert main([*flags, "--seeds", "3", "--dry-run"]) == 0
    assert "6 of 12 runs to do" in capsys.readouterr().out
    claimed = (whole / "out" / "claims.md").stat().st_mtime_ns
    assert main(flags) == 0
    assert "figure 6: of the paper's masks ar and invicl alone, without boe\n" in capsys.readouterr().err
    for name in ("figure1-ar-boe-invicl-window", "figure4-ar-invicl-window", "figure6-ar-invicl-window"):
        assert (whole / "out" / f"{name}.png").exists()
    assert (whole / "out" / "claims.md").stat().st_mtime_ns == claimed, "the paper's claims are about its own masks"


def test_a_failing_run_does_not_stop_the_rest(tmp_path):
    shelf = Shelf(tmp_path / "out", tmp_path / "runs", "smoke")
    blocked = study.make_run(shelf.scale, "linear", "ar", 0)
    (tmp_path / "runs").mkdir()
    shelf.training(blocked).write_text("in the way")
    result = finish(start(tmp_path, "--only", "1", "--masks", "ar,boe", "--seeds", "1"))
    assert result.returncode == 1
    last = result.stderr.strip().splitlines()[-1]
    assert last.startswith("failed: linear, ar, seed 0: ") and "which is a file" in last
    assert [f for f in numbers(tmp_path) if "linear-boe-0" in f] and (tmp_path / "out" / "figure1-ar-boe.png").exists()
    shelf.training(blocked).unlink()
    assert finish(start(tmp_path, "--only", "1", "--masks", "ar,boe", "--seeds", "1")).returncode == 0


def test_no_run_outlives_a_killed_study(tmp_path):
    process = start(tmp_path, "--only", "1")

    def left():
        """How many processes were told of this folder, this study itself included."""
        found = subprocess.run(["ps", "-ewwo", "args"], capture_output=True, text=True).stdout
        return found.count(f"{tmp_path}/runs")

    wait_for(lambda: left() == 3)
    process.kill()
    process.communicate()
    wait_for(lambda: left() == 0)
    assert not numbers(tmp_path), "they did not run to their end"


def test_what_is_shown_follows_from_the_numbers(tmp_path):
    """The verdicts in results/ are those of the numbers beside them, and README repeats them."""
    shelf = Shelf(ROOT / "results" / "study", tmp_path, "study")
    runs = study.make_runs(shelf.scale, study.figures(shelf.scale), seeds=shelf.seeds)
    text = (shelf.out / "claims.md").read_text(encoding="utf-8")
    assert text == claims.report(Numbers(shelf, runs))
    table = [line for line in text.splitlines() if line.startswith("|")]
    assert len(table) == 2 + len(claims.CLAIMS)
    assert "\n".join(table) in (ROOT / "README.md").read_text(encoding="utf-8")


@pytest.mark.parametrize(
    "flags, word",
    [
        (["--only", "0"], "only: got 0"),
        (["--only", "x"], "only"),
        (["--jobs", "0"], "jobs"),
        (["--seeds", "0"], "seeds"),
        (["--masks", "none"], "mask"),
        (["--masks", "ar", "--only", "7"], "figures 1, 2, 3, 4, 5, 6 with these masks"),
        (["--masks", "boe,nope", "--only", "6"], "figures 1, 3 with these masks"),
        (["--masks", ""], "mask"),
        (["--only", ""], "only"),
        (["--out", "/dev/null/x"], "out"),
        (["--scale", "huge"], "scale"),
    ],
)
def test_bad_flags_are_one_line(flags, word, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit) as stop:
        main(["figures", *flags])
    text = capsys.readouterr().err
    assert stop.value.code == 2 and text.count("\n") == 1 and word in text and not os.listdir(tmp_path)


def test_the_matrix():
    """Every figure's runs exist at every scale, and at paper scale they are the published recipe."""
    for scale in study.SCALES.values():
        runs = study.make_runs(scale, study.figures(scale))
        assert all(r.early in r.config.train.keep for r in runs if r.name in study.PAPER_MASKS)
        assert [r.seed for r in runs] == sorted(r.seed for r in runs), "a first seed of everything comes first"
    paper = study.make_run(study.SCALES["paper"], "linear", "ar", 0)
    assert (paper.early, paper.late, paper.config.train.optimizer, paper.config.train.lr) == (
        50_000,
        200_000,
        "adam",
        1e-4,
    )
    counts = {}
    for r in study.make_runs(study.SCALES["study"], range(1, 11)):
        counts[r.task, r.name] = counts.get((r.task, r.name), 0) + 1
    assert counts["linear", "ar"] == counts["decision_tree", "invicl"] == 3 and counts["linear", "ar+×2"] == 2


# Verdicts, on made-up numbers. Resampled means stand ±2 % around the means.


def error(name, *means, spread=0.02, seeds=None):
    means = numpy.array(means, dtype=float)
    seeds = numpy.arange(len(means)) if seeds is None else numpy.array(seeds)
    return Error(name, seeds, means, means[:, None] * numpy.linspace(1 - spread, 1 + spread, 50))


def test_lower():
    a, b = error("a", 0.1, 0.12, 0.11), error("b", 0.2, 0.3, 0.2)
    assert claims.lower(a, b) is True and claims.lower(b, a) is False
    assert claims.lower(a, error("c", 0.2, 0.1, 0.2)) is None, "a seed disagrees"
    wide = Error("d", numpy.arange(3), numpy.full(3, 0.13), numpy.linspace([0.05] * 3, [0.3] * 3, 50).T)
    assert claims.lower(a, wide) is None, "the interval is astride"
    assert claims.lower(error("a", 0.1), error("b", 0.9)) is None, "one seed decides nothing"
    assert claims.lower(error("a", 0.105, 0.104), error("b", 0.1, 0.1), than=1.1) is True


def test_errors_are_compared_seed_by_seed():
    a, b = error("a", 0.5, 0.1, seeds=[1, 2]), error("b", 0.1, 1.0, 0.2, seeds=[0, 1, 2])
    assert claims.ratio(a, b)[3].tolist() == pytest.approx([0.5, 0.5]) and claims.lower(a, b) is True
    assert claims.lower(error("a", 0.1, seeds=[2]), b) is None, "they share one seed"
    with pytest.raises(claims.Missing):
        claims.lower(error("a", 0.1, seeds=[7]), b)


def test_alike():
    a = error("a", 0.1, 0.1)
    assert claims.alike(a, error("b", 0.15, 0.12)) is True
    assert claims.alike(a, error("b", 0.4, 0.5)) is False
    assert claims.alike(a, error("b", 0.2, 0.2)) is None
    assert claims.alike(error("a", 0.01, 1), error("b", 1, 0.01)) is not True, "their mean alone is alike"


def test_judgements_add_up():
    assert claims.every([True, True]) is True
    assert claims.every([True, None, False]) is False
    assert claims.every([True, None]) is None
    assert (
        claims.agree([True]) is None and claims.agree([True, False]) is None and claims.agree([False, False]) is False
    )


class MadeUp:
    """Numbers that answer from a table: {(name, when, where): error}; anything else is `usual`."""

    def __init__(self, usual=(0.05, 0.06), runs=None, costs=(1.9, 2.0, 2.1), **table):
        self.usual, self.table, self.runs, self.costs = usual, table, runs or {}, costs

    def error(self, name, when, where, shift="none", task="linear"):
        keys = (f"{name}_{when}_{where}_{shift}", f"{name}_{when}_{where}", f"{name}_{when}", f"{name}_{where}", name)
        return error(name, *next((self.table[k] for k in keys if k in self.table), self.usual))

    def of(self, name, task="linear"):
        return self.runs[name]

    def inference(self):
        low, middle, high = self.costs
        return [{"mask": "invicl", "device": "cpu", "ratio": {"ratio": middle, "low": low, "high": high}}]


BAD, GOOD, MIXED = (0.5, 0.6), (0.05, 0.06), (0.05, 0.5)
OTHERS = ("ar", "nope", "prefix", "boe")


def curves(*errors, steps=(100, 250, 500, 1000)):
    run = SimpleNamespace(seed=0, early=250, late=1000, config=SimpleNamespace(data=SimpleNamespace(examples=10)))
    return run, {"curves": [{"step": s, "shift": "none", "mean": [1, e]} for s, e in zip(steps, errors, strict=True)]}


def probed(own, *layers):
    rows = [{"probe": "model", "layer": None, "examples": 10, "mean": own}]
    rows += [{"probe": "target", "layer": 3 * i, "examples": 10, "mean": e} for i, e in enumerate(layers, 1)]
    return curves(1, 1, 1, 1)[0], {"probes": rows}


def ordered(spread):
    return None, {"order": {"spread": spread}}


def both(ar, invicl, **more):
    """Runs of two seeds each."""
    return {"ar": [ar] * 2, "invicl": [invicl] * 2, **{name: [run] * 2 for name, run in more.items()}}


flat, late_fall = curves(0.5, 0.1, 0.1, 0.1), curves(0.9, 0.8, 0.2, 0.4)
shuffled = {"ar+symmetric": ordered(0.1), "invicl+absolute": ordered(0.2)}

# For each claim: numbers under which it holds, does not, and stays undecided.
CASES = {
    1: (
        MadeUp(**dict.fromkeys(OTHERS, BAD)),
        MadeUp(**dict.fromkeys(("nope", "prefix", "boe"), BAD)),
        MadeUp(**dict.fromkeys(OTHERS, BAD), invicl=MIXED),
    ),
    2: (MadeUp(boe=BAD), MadeUp(), MadeUp(boe=BAD, prefix=MIXED)),
    3: (
        MadeUp(invicl=(0.01, 0.01), ar=(0.1, 0.1), prefix=(0.3, 0.3), nope=(0.35, 0.33), boe=(1, 1)),
        MadeUp(invicl=(0.2, 0.2), ar=(0.1, 0.1), prefix=(0.3, 0.3), nope=(0.35, 0.33), boe=(1, 1)),
        MadeUp(invicl=(0.2, 0.05), ar=(0.1, 0.1), prefix=(0.3, 0.3), nope=(0.35, 0.33), boe=(1, 1)),
    ),
    4: (MadeUp(ar=BAD), MadeUp(ar_early=BAD, ar_late=(0.01, 0.01)), MadeUp(ar_early=BAD, ar_late=(0.01, 0.5))),
    5: (
        MadeUp(ar_late_half=(0.1, 0.1), invicl_late_half=(0.2, 0.2), ar_late_longest=BAD),
        MadeUp(ar_late_half=(0.3, 0.3), invicl_late_half=(0.2, 0.2), ar_late_longest=BAD),
        MadeUp(ar_late_half=(0.1, 0.3), invicl_late_half=(0.2, 0.2), ar_late_longest=BAD),
    ),
    6: (
        MadeUp(),
        MadeUp(invicl_late_longest_scale=(0.2, 0.2)),
        MadeUp(invicl_late_longest_scale=(0.05, 0.2)),
    ),
    7: (
        MadeUp(runs=both(late_fall, flat)),
        MadeUp(runs=both(flat, flat)),
        MadeUp(runs={"ar": [late_fall, flat], "invicl": [flat, flat]}),
    ),
    8: (
        MadeUp(runs=both(probed(0.1, 0.9, 0.5, 0.3, 0.1), probed(0.1, 0.15, 0.12, 0.1, 0.1))),
        MadeUp(runs=both(probed(0.1, 0.9, 0.5, 0.1, 0.1), probed(0.1, 0.15, 0.12, 0.1, 0.1))),
        MadeUp(
            runs={
                "ar": [probed(0.1, 0.9, 0.5, e, 0.1) for e in (0.1, 0.5)],
                "invicl": [probed(0.1, 0.15, 0.12, 0.1, 0.1)] * 2,
            }
        ),
    ),
    9: (
        MadeUp(runs=both(ordered(0.1), ordered(1e-7), **shuffled)),
        MadeUp(runs=both(ordered(1e-7), ordered(1e-7), **shuffled)),
        MadeUp(runs={**both(ordered(0.1), ordered(1e-7), **shuffled), "ar": [ordered(0.1), ordered(1e-8)]}),
    ),
    10: (
        MadeUp(**{"usual": BAD, "invicl": GOOD, "invicl, queries only": GOOD}),
        MadeUp(**{"usual": BAD, "invicl": GOOD, "invicl, queries only": (0.8, 0.9)}),
        MadeUp(**{"usual": BAD, "invicl": GOOD, "invicl, queries only": GOOD, "prefix+×2": (0.01, 0.9)}),
    ),
    11: (MadeUp(), MadeUp(costs=(2.3, 2.4, 2.5)), MadeUp(costs=(2.1, 2.2, 2.3))),
}  # fmt: skip


@pytest.mark.parametrize("number", CASES)
@pytest.mark.parametrize("case, expected", list(enumerate((True, False, None))))
def test_verdicts(number, case, expected):
    verdict, lines = claims.CLAIMS[number - 1].judge(CASES[number][case])
    assert verdict is expected and lines


def test_a_claim_whose_runs_are_missing_says_so(tmp_path):
    shelf = Shelf(tmp_path, tmp_path, "smoke")
    text = claims.report(Numbers(shelf, study.make_runs(shelf.scale, [1])))
    assert text.count("not run") == 2 * 11 and "missing: linear, ar" in text
