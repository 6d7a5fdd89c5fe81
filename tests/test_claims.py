"""The rules of the verdicts, on made-up numbers, and that the committed verdicts follow from the committed numbers."""

from pathlib import Path
from types import SimpleNamespace

import numpy
import pytest

from minicl.study import claims
from minicl.study.claims import Error, Evidence
from minicl.study.figures import figures, make_runs
from minicl.study.numbers import Shelf

ROOT = Path(__file__).parent.parent


def test_what_is_shown_follows_from_the_numbers(tmp_path):
    """The verdicts in results/ are those of the numbers beside them, and README repeats them."""
    shelf = Shelf(ROOT / "results" / "study", tmp_path, "study")
    runs = make_runs(shelf.scale, figures(shelf.scale), seeds=shelf.seeds)
    text = (shelf.out / "claims.md").read_text(encoding="utf-8")
    assert text == claims.report(Evidence(shelf, runs))
    table = [line for line in text.splitlines() if line.startswith("|")]
    assert len(table) == 2 + len(claims.CLAIMS)
    assert "\n".join(table) in (ROOT / "README.md").read_text(encoding="utf-8")


# Resampled means stand ±2 % around the means.


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


def test_about_equal():
    a = error("a", 0.1, 0.1)
    assert claims.about_equal(a, error("b", 0.15, 0.12)) is True
    assert claims.about_equal(a, error("b", 0.4, 0.5)) is False
    assert claims.about_equal(a, error("b", 0.2, 0.2)) is None
    assert claims.about_equal(error("a", 0.01, 1), error("b", 1, 0.01)) is not True, "their mean alone is alike"


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
    text = claims.report(Evidence(shelf, make_runs(shelf.scale, [1])))
    assert text.count("not run") == 2 * 11 and "missing: linear, ar" in text
