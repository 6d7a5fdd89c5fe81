"""The rules of the verdicts, on made-up numbers, and that the committed verdicts follow from the committed numbers."""

import shutil
from pathlib import Path
from types import SimpleNamespace

import numpy
import pytest

from minicl import stats
from minicl.study import claims
from minicl.study.evidence import (
    Error,
    Evidence,
    Missing,
    Thresholds,
    Untested,
    at_most,
    below,
    every,
    lower,
    ratio,
    within,
)
from minicl.study.figures import make_runs
from minicl.study.numbers import Shelf
from minicl.study.plan import ALL, COMPARED, PAPER_MASKS, SCALES, SHIFTS, as_published
from minicl.study.rules import SHUFFLED, WORDS

ROOT = Path(__file__).parent.parent


def test_what_is_shown_follows_from_the_numbers(tmp_path):
    """The verdicts in results/ are those of the numbers beside them, and README repeats those of scale study."""
    written = {scale: ROOT / "results" / scale for scale in SCALES if (ROOT / "results" / scale / "claims.md").exists()}
    texts = {scale: (folder / "claims.md").read_text(encoding="utf-8") for scale, folder in written.items()}
    for scale, text in texts.items():
        assert text == claims.of_shelf(Shelf(written[scale], tmp_path, scale))
    table = [line for line in texts["study"].splitlines() if line.startswith("|")]
    assert len(table) == 2 + len(claims.CLAIMS)
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    words = [line.split(" | ")[3] for line in table[2:] if line[2].isdigit()]
    n = {word: words.count(word) for word in ("holds", "does not hold", "not decided", "not tested here")}
    said = f"Of {len(words)} of its claims, {n['holds']} holds here, {n['does not hold']} do not hold, "
    said += f"{n['not decided']} are not decided, and {n['not tested here']} is not tested"
    assert sum(n.values()) == len(words) and said in " ".join(readme.split())
    shelf = Shelf(written["study"], tmp_path, "study")
    numbers = Evidence(shelf, make_runs(shelf.scale, [1, 8], seeds=shelf.seeds))
    costs = {r["mask"]: r["ratio"]["ratio"] for r in shelf.costs()}
    assert f"a forward pass takes {costs['invicl']:.2g} times as long" in " ".join(readme.split())
    for mask in (*COMPARED, "invicl, 16 queries"):
        cells = [_errors_of(numbers.error(mask, "late", where)) for where in ("training", "longest")]
        row = f" | {'yes' if mask in ('ar', 'nope') else 'no'} | {' | '.join(cells)} |"
        lines = [line for line in readme.replace("**", "").splitlines() if line.startswith(f"| `{mask}` |")]
        assert any(line.endswith(row) for line in lines), row


def test_readme_has_the_errors_at_the_prompts_of_the_paper(tmp_path):
    shelf = Shelf(ROOT / "results" / "d20", tmp_path, "d20")
    numbers = Evidence(shelf, make_runs(shelf.scale, [1], seeds=shelf.seeds))
    readme = (ROOT / "README.md").read_text(encoding="utf-8").replace("**", "")
    assert numbers.runs
    for mask in {name for task, name in numbers.runs if task == "linear"}:
        records = numbers.curves(mask).values()
        cells = [_spread([r["mean"][r["lengths"].index(n)] for r in records]) for n in (20, 40, 100)]
        assert f"| `{mask}` | {len(records)} | {' | '.join(cells)} |" in readme, (mask, cells)


def _errors_of(error):
    return _spread(error.means)


def _spread(means):
    """The mean over seeds, the least and the greatest, to two digits."""
    if len(means) == 1:
        return f"{means[0]:.2g}"
    return f"{sum(means) / len(means):.2g} ({min(means):.2g}–{max(means):.2g})"


def test_docs_have_the_errors_under_the_paper_s_objective(tmp_path):
    shelf = Shelf(ROOT / "results" / "study", tmp_path, "study")
    numbers = Evidence(shelf, make_runs(shelf.scale, [16], seeds=shelf.seeds))
    text = (ROOT / "docs" / "study.md").read_text(encoding="utf-8")
    for mask in PAPER_MASKS:
        errors = [numbers.error(as_published(mask), when, where) for where in ("training", "longest")
                  for when in ("early", "late")]  # fmt: skip
        row = f"| `{mask}` | {' | '.join(f'{e.means.mean():.2g}' for e in errors)} |"
        assert row in text and {len(e.means) for e in errors} == {3}, row


# Resampled means stand ±2 % around the means.


def error(name, *means, spread=0.02, seeds=None):
    means = numpy.array(means, dtype=float)
    seeds = numpy.arange(len(means)) if seeds is None else numpy.array(seeds)
    return Error(name, seeds, means, means[:, None] * numpy.linspace(1 - spread, 1 + spread, 50))


def test_lower_needs_both_intervals():
    a, b = error("a", 0.1, 0.12, 0.11), error("b", 0.2, 0.3, 0.2)
    assert lower(a, b) is True and lower(b, a) is False
    assert lower(a, error("c", 0.2, 0.1, 0.2)) is None, "over seeds it is astride"
    wide = Error("d", numpy.arange(3), numpy.full(3, 0.13), numpy.linspace([0.05] * 3, [0.3] * 3, 50).T)
    assert lower(a, wide) is None, "over prompts it is astride"
    assert lower(error("a", 0.1), error("b", 0.9)) is None, "one seed decides nothing"
    assert lower(error("a", 0.105, 0.104), error("b", 0.1, 0.1), than=1.1) is True
    assert lower(error("a", 0.1, 0.1, 0.1), error("b", 0.11, 0.3, 0.9)) is None, (
        "the seeds agree, the interval does not"
    )


def test_the_interval_over_seeds_is_student_s():
    logs = numpy.log([1.0, 2.0, 4.0])
    r = ratio(error("a", 1, 2, 4), error("b", 1, 1, 1))
    half = 2.920 * logs.std(ddof=1) / 3**0.5
    assert r.over_seeds == pytest.approx((2 * numpy.exp(-half), 2 * numpy.exp(half))) and r.middle == pytest.approx(2)
    assert stats.student([3.0]) == numpy.inf and stats.student([1.0, 1.0]) == 0
    rng = numpy.random.default_rng(0)
    for n in (2, 3, 5, 12):
        inside = [abs(v.mean()) < stats.student(v) for v in rng.normal(size=(4000, n))]
        assert numpy.mean(inside) == pytest.approx(0.9, abs=0.02), n
    assert "over seeds" in str(r) and "each seed: 1, 2, 4" in str(r)


def test_errors_are_compared_seed_by_seed():
    a, b = error("a", 0.5, 0.1, seeds=[1, 2]), error("b", 0.1, 1.0, 0.2, seeds=[0, 1, 2])
    assert ratio(a, b).seeds == pytest.approx((0.5, 0.5)) and lower(a, b) is True
    assert lower(error("a", 0.1, seeds=[2]), b) is None, "they share one seed"
    with pytest.raises(Missing):
        lower(error("a", 0.1, seeds=[7]), b)


def test_within_a_factor():
    a = error("a", 0.1, 0.1)
    assert within(a, error("b", 0.15, 0.15), 2) is True
    assert within(a, error("b", 0.4, 0.4), 2) is False
    assert within(a, error("b", 0.2, 0.2), 2) is None
    assert within(error("a", 0.01, 1), error("b", 1, 0.01), 2) is not True, "their mean alone is alike"


def test_judgements_add_up():
    assert every([True, True]) is True
    assert every([True, None, False]) is False
    assert every([True, None]) is None


def test_a_level_is_judged_by_intervals_too():
    assert at_most(error("a", 0.05, 0.06), 0.1) is True and at_most(error("a", 0.5, 0.6), 0.1) is False
    assert at_most(error("a", 0.05), 0.1) is None, "one seed decides nothing"
    assert at_most(error("a", 0.05, 0.5), 0.1) is None and at_most(error("a", 0.05, 0.09), 0.1) is None
    assert below([1, 1.1], 2) is True and below([3, 3.1], 2) is False
    assert below([1], 2) is None and below([1, 1.9], 2) is None, "both seeds are below, the interval is not"


def test_rank_correlation():
    assert stats.rank_correlation([1, 2, 3], [10, 20, 99]) == 1 and stats.rank_correlation([1, 2, 3], [3, 2, 1]) == -1
    assert stats.rank_correlation([0, 0, 1, 2], [5, 5, 6, 7]) == 1, "equal values share a rank"


def test_thresholds_are_halved_and_doubled():
    t = Thresholds()
    assert (t.scaled(2).good, t.scaled(0.5).good) == (0.2, 0.05)
    assert (t.scaled(2).far, t.scaled(0.5).far) == (16, 2), "factors by their logarithm"


class MadeUp:
    """Numbers that answer from a table: {(name, when, where): error}; anything else is `usual`."""

    shelf = SimpleNamespace(scale=SCALES["study"], out=Path("nowhere"))
    device = "cuda"

    def __init__(self, usual=(0.05, 0.06), runs=None, costs=(1.7, 1.8, 1.9), trees=None, **table):
        self.usual, self.table, self.runs, self.costs, self.trees = usual, table, runs or {}, costs, trees

    def error(self, name, when, where, shift="none", task="linear", window=False):
        name = "window" if window else name.removesuffix(", paper's objective")
        keys = (f"{name}_{when}_{where}_{shift}", f"{name}_{task}_{where}", f"{name}_{when}_{where}", f"{name}_{when}",
                f"{name}_{where}", f"{name}_{task}", name)  # fmt: skip
        return error(name, *next((self.table[k] for k in keys if k in self.table), self.usual))

    def of(self, name, task="linear"):
        return self.runs[name.removesuffix(", paper's objective")]

    def curves(self, name, task="linear"):
        lengths = list(range(len(self.trees[name][0])))
        return {i: {"mean": m, "lengths": lengths, "trained_on": 8} for i, m in enumerate(self.trees[name])}

    def inference(self):
        low, middle, high = self.costs
        masks = ("ar", "nope", "prefix", "boe", "pfn")
        ratios = {m: {"ratio": middle, "low": low, "high": high} for m in masks}
        return {"invicl": {"device": self.device, "ratios": ratios}}


BAD, GOOD, MIXED = (0.5, 0.6), (0.05, 0.06), (0.05, 0.5)
OTHERS = ("ar", "nope", "prefix", "boe")


def curves(*errors, steps=(100, 250, 500, 1000), spread=0.1, seed=0):
    run = SimpleNamespace(seed=seed, early=250, late=1000, config=SimpleNamespace(data=SimpleNamespace(examples=10)))
    records = [{"step": s, "shift": "none", "mean": [1, e]} for s, e in zip(steps, errors, strict=True)]
    return run, {"curves": records, "order": {"spread": spread}}


def probed(own, *layers):
    rows = [{"probe": "model", "layer": None, "examples": 10, "mean": own}]
    rows += [{"probe": "target", "layer": 3 * i, "examples": 10, "mean": e} for i, e in enumerate(layers, 1)]
    return curves(1, 1, 1, 1)[0], {"probes": rows}


def ordered(spread, seed=0):
    return curves(1, 1, 1, 1, spread=spread, seed=seed)


def both(ar, invicl, **more):
    """Runs of two seeds each."""
    return {"ar": [ar] * 2, "invicl": [invicl] * 2, **{name: [run] * 2 for name, run in more.items()}}


flat, late_fall = curves(0.5, 0.1, 0.1, 0.1), curves(0.9, 0.8, 0.2, 0.4)
shuffled = {"ar+symmetric": ordered(0.1), "invicl+absolute": ordered(0.2)}
falling, steep = [1, 0.9, 0.5, 0.4, 0.3, 0.3, 0.3, 0.3, 0.3, 0.3], [1, 0.95, 0.6, 0.4, 0.29, 0.28, 0.25, 0.2, 0.2, 0.1]
ASKED = (*ALL, *SHUFFLED)
COUNT = range(1, len(ASKED) + 1)
MIXED_UP = [i * 4 % 17 for i in COUNT]  # as good as no rank correlation with COUNT


def strategies(spreads, errors):
    """Numbers of all strategies with these spreads over orders and errors."""
    of = {name: [ordered(s, 0), ordered(s, 1)] for name, s in zip(ASKED, spreads, strict=True)}
    return MadeUp(runs=of, **{name: (e, e) for name, e in zip(ASKED, errors, strict=True)})


# For each claim: numbers under which it holds, does not, and stays undecided.
CASES = {
    "1": (
        MadeUp(**dict.fromkeys(OTHERS, BAD)),
        MadeUp(**dict.fromkeys(("nope", "prefix", "boe"), BAD)),
        MadeUp(**dict.fromkeys(OTHERS, BAD), invicl=MIXED),
    ),
    "2": (MadeUp(), MadeUp(boe=BAD), MadeUp(nope=MIXED)),
    "3": (
        MadeUp(invicl=(0.01, 0.01), ar=(0.1, 0.1), prefix=(0.3, 0.3), nope=(0.35, 0.35), boe=(1, 1)),
        MadeUp(invicl=(0.2, 0.2), ar=(0.1, 0.1), prefix=(0.3, 0.3), nope=(0.35, 0.35), boe=(1, 1)),
        MadeUp(invicl=(0.2, 0.05), ar=(0.1, 0.1), prefix=(0.3, 0.3), nope=(0.35, 0.35), boe=(1, 1)),
    ),
    "4": (MadeUp(ar=BAD), MadeUp(ar=(0.09, 0.091)), MadeUp(ar=MIXED)),
    "5": (
        MadeUp(trees={"ar": [falling] * 2, "invicl": [steep] * 2}, ar_late_longest=BAD, ar_late_short=(0.01, 0.012)),
        MadeUp(trees={"ar": [steep] * 2, "invicl": [falling] * 2}, ar_late_longest=BAD),
        MadeUp(trees={"ar": [falling] * 2, "invicl": [steep] * 2}, ar_late_longest=MIXED),
    ),
    "6": (
        MadeUp(ar=BAD, invicl_late_training=(0.9, 1.1)),
        MadeUp(ar=BAD, invicl_late_longest_scale=(0.9, 1.1)),
        MadeUp(ar=BAD, invicl_late_longest_scale=(0.05, 2.0)),
    ),
    "7": (
        MadeUp(runs=both(late_fall, flat), ar=BAD),
        MadeUp(runs=both(flat, flat), ar=BAD),
        MadeUp(runs={"ar": [late_fall, flat], "invicl": [flat, flat]}, ar=BAD),
    ),
    "8": (
        MadeUp(runs=both(flat, flat), ar=BAD),
        MadeUp(runs=both(flat, flat), ar=BAD, invicl_500_longest=(0.9, 1.1)),
        MadeUp(runs=both(flat, flat), ar=BAD, invicl_500_longest=(0.1, 2.0)),
    ),
    "9": (
        MadeUp(runs=both(probed(0.1, 0.9, 0.5, 0.3, 0.1), probed(0.1, 0.15, 0.12, 0.1, 0.1))),
        MadeUp(runs=both(probed(0.1, 0.9, 0.5, 0.1, 0.1), probed(0.1, 0.15, 0.12, 0.1, 0.1))),
        MadeUp(
            runs={
                "ar": [probed(0.1, 0.9, 0.5, e, 0.1) for e in (0.1, 0.5)],
                "invicl": [probed(0.1, 0.15, 0.12, 0.1, 0.1)] * 2,
            }
        ),
    ),
    "10": (
        MadeUp(runs=both(ordered(0.1), ordered(1e-7), **shuffled)),
        MadeUp(runs=both(ordered(1e-7), ordered(1e-7), **shuffled)),
        MadeUp(runs={**both(ordered(0.1), ordered(1e-7), **shuffled), "ar": [ordered(0.1), ordered(1e-8)]}),
    ),
    "11": (
        MadeUp(usual=BAD, invicl=GOOD),
        MadeUp(**{"usual": BAD, "invicl": GOOD, "ar+×2": (0.01, 0.012)}),
        MadeUp(**{"usual": BAD, "invicl": GOOD, "boe+×2": (0.01, 0.9)}),
    ),
    "12": (MadeUp(), MadeUp(costs=(2.3, 2.4, 2.5)), MadeUp(costs=(1.9, 2.0, 2.3))),
    "13": (
        MadeUp(ar=BAD),
        MadeUp(ar=BAD, invicl_late_training=(0.9, 1.1)),
        MadeUp(ar=BAD, invicl_late_training=(0.05, 2.0)),
    ),
    "A": (
        MadeUp(costs=(1.5, 1.6, 1.7)),
        MadeUp(costs=(1.5, 1.6, 1.7), pfn_noisy_linear_longest=BAD),
        MadeUp(costs=(0.9, 1.0, 1.1)),
    ),
    "B": (
        MadeUp(**{"ar": BAD, "invicl+absolute": BAD}),
        MadeUp(**{"ar": BAD, "invicl+absolute": GOOD}),
        MadeUp(**{"ar": BAD, "invicl+absolute": BAD, "boe": (0.05, 0.9)}),
    ),
    "C": (
        MadeUp(**{"invicl, queries only": BAD}),
        MadeUp(**{"invicl, queries only": BAD, "pfn": (0.9, 1.1)}),
        MadeUp(**{"invicl, queries only": (0.05, 0.9)}),
    ),
    "D": (
        strategies(COUNT, MIXED_UP),
        strategies(COUNT, COUNT[::-1]),
        None,
    ),
    "E": (
        MadeUp(window_noisy_linear=BAD),
        MadeUp(window_linear=BAD, window_noisy_linear=BAD),
        MadeUp(window_noisy_linear=MIXED),
    ),
}  # fmt: skip


@pytest.mark.parametrize("number", CASES)
@pytest.mark.parametrize("case, expected", list(enumerate((True, False, None))))
def test_verdicts(number, case, expected):
    numbers = CASES[number][case]
    if numbers is None:
        numbers = strategies(COUNT, COUNT)
        numbers.runs = {
            name: [runs[0], ordered(s, 1)] for s, (name, runs) in zip(MIXED_UP, numbers.runs.items(), strict=True)
        }
    verdict = claims.judge(claims.CLAIMS[number], numbers)
    assert verdict.words == WORDS[expected], verdict
    assert verdict.parts and all(part.numbers for part in verdict.parts)
    assert {verdict.halved, verdict.doubled} <= set(WORDS.values())


def test_every_claim_has_its_cases_and_its_parts():
    assert set(CASES) == set(claims.CLAIMS)
    parts = {number: len(claims.judge(claims.CLAIMS[number], cases[0]).parts) for number, cases in CASES.items()}
    assert (parts["3"], parts["6"], parts["9"], parts["13"]) == (6, 12, 8, 12)


def test_a_part_without_a_verdict_does_not_count():
    """Late and within the training length no advantage is claimed; another recipe is not the paper's."""
    claim_6_holds = MadeUp(ar=BAD, invicl_late_training=(0.9, 1.1))
    verdict = claims.judge(claims.CLAIMS["6"], claim_6_holds)
    assert verdict.words == "holds" and [p.text for p in verdict.parts if p.words == "no verdict"] == [
        f"{shift}, late, training length: invicl is better" for shift in SHIFTS
    ]
    early = MadeUp(**dict.fromkeys(OTHERS, BAD))
    parts = claims.judge(claims.CLAIMS["1"], early).parts
    assert [part.words for part in parts] == ["holds"] * 5 + ["no verdict"] * 5, (
        "the study's own recipe stands there too"
    )


def test_times_on_a_cpu_say_nothing_of_a_gpu(monkeypatch):
    monkeypatch.setattr(MadeUp, "device", "cpu")
    verdict = claims.judge(claims.CLAIMS["12"], MadeUp())
    assert verdict.words == "not tested here" and "1.80 times as long as ar" in verdict.why


def test_prefix_may_have_either_positions():
    numbers = MadeUp(**{"prefix": BAD, "prefix+absolute": GOOD})
    assert claims.judge(claims.CLAIMS["2"], numbers).words == "holds"
    numbers = MadeUp(**{"prefix": BAD, "prefix+absolute": BAD})
    assert claims.judge(claims.CLAIMS["2"], numbers).words == "does not hold"


def test_a_claim_that_the_set_up_cannot_decide_is_not_tested():
    untaught = MadeUp(trees={"ar": [[1] + [0.8] * 9] * 2, "invicl": [steep] * 2})
    verdict = claims.judge(claims.CLAIMS["5"], untaught)
    assert verdict.words == "not tested here" and "ar has not learned trees" in verdict.why


def test_rounding_has_no_rank():
    """Spreads that are only rounding are equal, whatever their digits."""
    spreads, errors = [0.1, 0.2, *(i * 1e-7 for i in COUNT[2:])], COUNT
    verdicts = {claims.judge(claims.CLAIMS["D"], strategies(s, errors)).parts[0].numbers
                for s in (spreads, spreads[:2] + spreads[:1:-1])}  # fmt: skip
    assert len(verdicts) == 1


def test_a_stricter_threshold_may_turn_a_verdict_over():
    verdict = claims.judge(claims.CLAIMS["2"], MadeUp(boe=(0.07, 0.071)))
    assert (verdict.words, verdict.halved, verdict.doubled) == ("holds", "does not hold", "holds")


def test_a_claim_whose_runs_are_missing_says_so(tmp_path):
    shelf = Shelf(tmp_path, tmp_path, "study")
    text = claims.report(Evidence(shelf, make_runs(shelf.scale, [1])))
    assert text.count("not run") == 2 * len(claims.CLAIMS) and "missing: linear, ar" in text


def test_scale_class_judges_what_its_runs_allow():
    """Other claims are not tested there, though some of their runs are in."""

    class Planned(MadeUp):
        shelf = SimpleNamespace(scale=SCALES["class"], out=Path("nowhere"))

        def error(self, name, when, where, shift="none", task="linear", window=False):
            if not SCALES["class"].has(task, name):
                raise Untested(f"{task}, {name}")
            return super().error(name, when, where, shift, task, window)

    words = {n: claims.judge(claims.CLAIMS[n], Planned()).words for n in ("1", "2", "3", "4", "6", "11", "13", *"ABCE")}
    judged = {"2", "3", "6", "13"}
    assert {n for n, word in words.items() if word in WORDS.values()} == judged
    assert {word for n, word in words.items() if n not in judged} == {"not tested here"}


def test_toys_are_not_judged(tmp_path):
    """Each claim keeps its sentence and its rule."""
    text = claims.of_shelf(Shelf(tmp_path, tmp_path, "smoke"))
    assert text.count("\n**not judged**: the models of this scale are toys") == len(claims.CLAIMS)
    assert all(f". {c.sentence}\n" in text and f"*Rule.* {c.rule}" in text for c in claims.CLAIMS.values())


def test_claims_of_another_scale_stand_beside(tmp_path):
    """A claim whose runs are not planned at a scale is not tested there; those that are planned are not run yet."""
    shutil.copytree(ROOT / "results" / "study" / "numbers", tmp_path / "study" / "numbers")
    shelf = Shelf(tmp_path / "d20", tmp_path, "d20")

    def rows(text):
        cells = [[cell.strip() for cell in line.split("|")] for line in text.splitlines()]
        return {row[1]: row for row in cells if len(row) > 2}

    (tmp_path / "d20").mkdir()
    (tmp_path / "d20/figure1.png").touch()
    text = claims.of_shelf(shelf)
    here, there = rows(text), rows(claims.of_shelf(Shelf(tmp_path / "study", tmp_path, "study")))
    for number in claims.CLAIMS:
        unplanned = number in ("1", "7", "8", "C")
        assert here[number][4] == ("not tested here" if unplanned else "not run"), number
        assert here[number][6:8] == [there[number][4], ""], number
    assert "linear, ar, paper's objective is not in the plan of this scale" in text
    assert "Of 0 claims that both this scale and scale study decide" in text
    assert "(figure16.png)" not in text and "(figure1.png)" in text, "links to what was drawn"
    with pytest.raises(Untested, match="not in the plan"):
        Evidence(shelf, []).of("invicl+absolute")
    with pytest.raises(Missing):
        Evidence(shelf, []).of("ar")


def test_whether_two_scales_agree(monkeypatch):
    monkeypatch.setattr(claims, "CLAIMS", {"2": claims.CLAIMS["2"], "6": claims.CLAIMS["6"]})
    ahead = {"ar_early": BAD, "ar_longest": BAD}
    here, there = MadeUp(boe=BAD, **ahead), MadeUp(**ahead)
    text = claims.report(here, ("study", there))
    assert "| does not hold | 3 of 4 hold | holds | no |" in text and "| holds | 9 of 9 hold | holds | yes |" in text
    assert "Of 2 claims that both this scale and scale study decide, 1 have the same verdict" in text
    assert "of 13 parts of claims, 12." in text
    assert "undecided" not in text and claims.report(here, ("study", MadeUp(boe=MIXED, **ahead))).count("| no |") == 0
