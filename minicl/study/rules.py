"""The rules by which each claim is judged: functions from the study's numbers to a list of parts.

Each claim says when its rule was changed, why, and what had been seen by then.
"""

import math
import statistics
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from itertools import product

from minicl.stats import rank_correlation
from minicl.study.evidence import (
    Error,
    Evidence,
    Thresholds,
    Untested,
    at_most,
    below,
    every,
    lower,
    opposite,
    ratio,
    spread,
    three,
    within,
)
from minicl.study.plan import ALL, PAPER_MASKS, SHIFTS, as_published

OTHERS = tuple(mask for mask in PAPER_MASKS if mask != "invicl")
DOUBLED = ("ar+×2", "nope+×2", "boe+×2", "prefix")  # prefix computes the same from doubled inputs


WORDS = {True: "holds", False: "does not hold", None: "not decided"}


@dataclass(frozen=True)
class Part:
    """A part of a claim: what it says, its verdict (True, False, None) and the numbers behind it."""

    text: str
    verdict: bool | None
    numbers: str
    tested: bool = True  # whether the claim says it and what it takes for granted is so; else it has no verdict

    @property
    def words(self) -> str:
        return WORDS[self.verdict] if self.tested else "no verdict"


Judge = Callable[[Evidence, Thresholds], list[Part]]


def _lower(what: str, a: Error, b: Error, than: float = 1.0) -> Part:
    return Part(what, lower(a, b, than), f"{a}, {b}; {ratio(a, b)}")


def _at_most(what: str, error: Error, level: float, expected: bool = True) -> Part:
    said = at_most(error, level)
    return Part(
        what, said if expected else opposite(said), f"{error}; geometric mean {ratio(error, error.constant(1.0)).text}"
    )


def only_invicl_is_good_early(numbers, t):
    def parts(kind, name, tested):
        for mask in PAPER_MASKS:
            error, alone = numbers.error(name(mask), "early", "training"), mask == "invicl"
            part = _at_most(f"{kind}: {mask} is {'' if alone else 'not '}good", error, t.good, alone)
            yield replace(part, tested=tested)

    return [*parts("constant rate", as_published, True), *parts("the study's recipe", str, False)]


def _readings(numbers, mask):
    """The runs that a mask of the paper may mean: it does not say which positions its prefix has."""
    names = (mask, "prefix+absolute") if mask == "prefix" else (mask,)
    return [name for name in names if numbers.shelf.scale.has("linear", name)]


def _either(parts: list[Part]) -> Part:
    """One part of all readings of it: it holds if one does, and does not hold if none does."""
    verdict = opposite(every(opposite(part.verdict) for part in parts))
    return Part(" or ".join(part.text for part in parts), verdict, " | ".join(part.numbers for part in parts))


def others_are_good_late(numbers, t):
    def good(name):
        return _at_most(f"{name} is good", numbers.error(name, "late", "training"), t.good)

    return [_either([good(name) for name in _readings(numbers, mask)]) for mask in OTHERS]


def order_beyond_the_training_length(numbers, t):
    e = {name: numbers.error(name, "late", "longest") for mask in PAPER_MASKS for name in _readings(numbers, mask)}

    def better(a, b):
        return _lower(f"{a} is better than {b}", e[a], e[b])

    def same(a, b):
        return Part(
            f"{a} and {b} are about the same", within(e[a], e[b], t.close), f"{e[a]}, {e[b]}; {ratio(e[a], e[b])}"
        )

    steps = [(better, "invicl", "ar"), (better, "ar", "prefix"), (better, "ar", "nope"), (same, "prefix", "nope"),
             (better, "prefix", "boe"), (better, "nope", "boe")]  # fmt: skip
    return [
        _either([rule(one, other) for one, other in product(_readings(numbers, a), _readings(numbers, b))])
        for rule, a, b in steps
    ]


def invicl_converges_on_sparse_prompts(numbers, t):
    invicl, ar = (numbers.error(mask, "late", "training", task="sparse_linear") for mask in ("invicl", "ar"))
    return [
        _at_most("invicl has converged", invicl, t.good),
        _at_most("ar has not converged", ar, t.good, expected=False),
        replace(_lower("invicl is better", invicl, ar), tested=False),
    ]


def trees_ar_short_invicl_long(numbers, t):
    curves = {mask: numbers.curves(mask, "decision_tree") for mask in ("ar", "invicl")}
    record = next(iter(curves["ar"].values()))
    lengths, n = record["lengths"], record["trained_on"]
    without, learned = (statistics.mean(r["mean"][lengths.index(at)] for r in curves["ar"].values()) for at in (0, n))
    if learned > 0.5 * without:
        raise Untested(f"ar has not learned trees here: with {n} examples not half of its error without any")
    short = lengths.index(n // 4)
    shared = [(curves["ar"][seed], curves["invicl"][seed]) for seed in curves["ar"] if seed in curves["invicl"]]
    ratios = [[i / a for a, i in zip(ar["mean"], invicl["mean"], strict=True)] for ar, invicl in shared]
    trend = [rank_correlation(lengths[short:], of[short:]) for of in ratios]
    error = {
        (m, where): numbers.error(m, "late", where, task="decision_tree")
        for m, where in product(curves, ("short", "longest"))
    }
    return [
        _lower(f"with {n // 4} examples ar is better", error["ar", "short"], error["invicl", "short"]),
        Part("invicl gains with length: invicl ÷ ar falls as examples are added, by rank correlation",
             below(trend, -t.alike), f"rank correlation {', '.join(map(three, trend))}"),
        _lower("at the longest, invicl is better", error["invicl", "longest"], error["ar", "longest"]),
    ]  # fmt: skip


def invicl_keeps_its_advantages_under_shifts(numbers, t):
    parts = []
    for shift, when, where in product(SHIFTS, ("early", "late"), ("training", "longest")):
        invicl, ar = (numbers.error(m, when, where, shift) for m in ("invicl", "ar"))
        part = _lower(f"{shift}, {when}, {where} length: invicl is better", invicl, ar)
        # Late and within the training length the paper grants that the others perform well too.
        parts.append(replace(part, tested=(when, where) != ("late", "training")))
    return parts


def invicl_is_always_better_under_shifts(numbers, t):
    return [replace(part, tested=True) for part in invicl_keeps_its_advantages_under_shifts(numbers, t)]


def invicl_falls_early_and_stays(numbers, t):
    fallen, stays = [], []
    for mask, expected in (("invicl", True), ("ar", False)):
        error = numbers.error(as_published(mask), "early", "longest")
        what = f"{mask}'s error has {'' if expected else 'not '}fallen to 1/{t.far:.3g} of that of answering 0 early"
        fallen.append(_at_most(what, error, 1 / t.far, expected))
        seeds = [
            (run, {r["step"]: r["mean"][-1] for r in measured["curves"] if r["shift"] == "none"})
            for run, measured in numbers.of(as_published(mask))
        ]
        said = below((math.log(of[run.late] / min(of.values())) for run, of in seeds), math.log(t.stays))
        what = f"{mask}'s error has {'not ' if expected else ''}risen again at the end"
        text = " | ".join(", ".join(f"{three(e)} at {s}" for s, e in sorted(of.items())) for _, of in seeds)
        stays.append(Part(what, said if expected else opposite(said), text))
    return [*fallen, *stays]


def invicl_is_ahead_at_all_times(numbers, t):
    parts = []
    for what, name in (("constant rate", as_published), ("the study's recipe", str)):
        ((_, measured), *_) = numbers.of(name("invicl"))
        for step in sorted({r["step"] for r in measured["curves"] if r["shift"] == "none"}):
            invicl, ar = (numbers.error(name(mask), step, "longest") for mask in ("invicl", "ar"))
            parts.append(_lower(f"{what}, step {step}: invicl is better", invicl, ar))
    return parts


def invicl_knows_in_the_middle(numbers, t):
    parts = []
    for name in ("invicl", "ar"):
        rows = []
        for run, measured in numbers.of(name):
            at = {(r["probe"], r["layer"]): r["mean"] for r in measured["probes"]
                  if r["examples"] == run.config.data.examples}  # fmt: skip
            rows.append((at["model", None], {layer: e for (kind, layer), e in at.items() if kind == "target"}))
        layers = sorted(rows[0][1])
        for layer in layers:
            expected = name == "invicl" or layer == layers[-1]
            said = below((math.log(probed[layer] / own) for own, probed in rows), math.log(t.close))
            text = ", ".join(f"{three(probed[layer])} (the model {three(own)})" for own, probed in rows)
            what = f"{name}, layer {layer}: {'within' if expected else 'beyond'} a factor of {t.close:.3g} of the model"
            parts.append(Part(what, said if expected else opposite(said), text))
    return parts


def order_matters_unless_both(numbers, t):
    parts = []
    for name in ("ar", "ar+symmetric", "invicl+absolute", "invicl"):
        values = [measured["order"]["spread"] for _, measured in numbers.of(name)]
        said, expected = below(map(math.log, values), math.log(t.same)), name == "invicl"
        what = f"{name}: order has {'no' if expected else 'an'} effect"
        parts.append(Part(what, said if expected else opposite(said), spread(values)))
    return parts


def invicl_beats_doubled_inputs(numbers, t):
    invicl = numbers.error("invicl", "late", "longest")
    return [_lower(f"invicl is better than {m}", invicl, numbers.error(m, "late", "longest")) for m in DOUBLED]


def invicl_costs_the_same(numbers, t):
    invicl, parts = numbers.inference()["invicl"], []
    if invicl["device"] == "cpu":
        r = invicl["ratios"]["ar"]
        raise Untested(
            f"the paper timed on a GPU; on one thread of a CPU invicl takes {r['ratio']:.2f} times as long as ar"
        )
    for mask in ("ar", "prefix", "boe"):
        r = invicl["ratios"][mask]
        verdict = True if r["high"] <= t.close else False if r["low"] > t.close else None
        text = f"invicl ÷ {mask} {r['ratio']:.2f} (middle half {r['low']:.2f}–{r['high']:.2f})"
        parts.append(Part(f"within a factor of {t.close:.3g} of {mask}", verdict, text))
    return parts


def pfn_is_as_good_for_less(numbers, t):
    pairs = [("linear", "pfn", "invicl"), ("noisy_linear", "pfn", "invicl"), ("linear", "pfn, 4 queries", "invicl"),
             ("linear", "pfn", "invicl, 16 queries")]  # fmt: skip
    parts = []
    for (task, pfn, invicl), where in product(pairs, ("training", "longest")):
        errors = (numbers.error(name, "late", where, task=task) for name in (pfn, invicl))
        parts.append(_lower(f"{task}, {where} length: {pfn} is at least as good as {invicl}", *errors, t.slack))
    r = numbers.inference()["invicl"]["ratios"]["pfn"]
    verdict = True if r["low"] > 1 else False if r["high"] < 1 else None
    text = f"invicl ÷ pfn {r['ratio']:.2f} (middle half {r['low']:.2f}–{r['high']:.2f})"
    return [*parts, Part("a forward pass of pfn takes less time", verdict, text)]


EXTRAPOLATING = ("nope", "boe", "pfn", "invicl")  # each mask with its own positions that know no longest prompt
SHUFFLED = ("ar+symmetric", "ar+random", "ar+rotary", "invicl+absolute", "prefix+absolute")  # that order matters to


def positions_decide(numbers, t):
    parts = []
    for absolute, others in (("ar", ("nope", "ar+random", "ar+rotary")), ("invicl+absolute", ("invicl",))):
        error = numbers.error(absolute, "late", "longest")
        better = (numbers.error(other, "late", "longest") for other in others)
        parts.append(_either([_lower(f"{e.name} is far better than {absolute}", e, error, 1 / t.far) for e in better]))
    errors = sorted((numbers.error(m, "late", "longest") for m in EXTRAPOLATING), key=lambda e: e.means.mean())
    text = f"{', '.join(map(str, errors))}; {ratio(errors[-1], errors[0])}"
    what = "with positions that extrapolate, the worst mask is not far from the best"
    return [*parts, Part(what, within(errors[0], errors[-1], t.far), text)]


def the_dense_loss_is_what_helps(numbers, t):
    parts = []
    for where in ("training", "longest"):
        dense, alone, pfn = (
            numbers.error(m, "late", where) for m in ("invicl, 16 queries", "invicl, queries only", "pfn")
        )
        parts.append(
            _lower(
                f"{where} length: trained on queries only, invicl has over {t.close:.3g} times the error",
                dense,
                alone,
                1 / t.close,
            )
        )
        parts.append(
            _lower(f"{where} length: trained on queries only, invicl is no better than pfn", pfn, alone, t.slack)
        )
    return parts


def order_does_not_predict_error(numbers, t):
    names = (*ALL, *SHUFFLED)
    by_seed = {name: {run.seed: measured["order"]["spread"] for run, measured in numbers.of(name)} for name in names}
    seeds = sorted(set.intersection(*(set(of) for of in by_seed.values())))
    parts = []
    for where in ("training", "longest"):
        found = []
        for seed in seeds:
            spreads = [0.0 if by_seed[n][seed] < t.same else by_seed[n][seed] for n in names]  # rounding has no rank
            errors = [float(numbers.error(n, "late", where).of([seed]).means[0]) for n in names]
            found.append(rank_correlation(spreads, errors))
        text = f"rank correlation over {len(names)} strategies: {', '.join(map(three, found))}"
        parts.append(Part(f"{where} length", below(map(abs, found), t.alike), text))
    return parts


def a_window_is_enough(numbers, t):
    parts = []
    for task, noisy in (("linear", False), ("noisy_linear", True)):
        window = numbers.error("ar", "late", "longest", task=task, window=True)
        for mask in ("nope", "boe", "pfn", "invicl"):
            if not numbers.shelf.scale.has(task, mask):
                continue
            error = numbers.error(mask, "late", "longest", task=task)
            if noisy:
                parts.append(_lower(f"noisy: {mask} is better than the window", error, window))
            else:
                what = f"noiseless: {mask} is not {t.close:.3g} times better than the window"
                parts.append(_lower(what, window, error, t.close))
    return parts


def overall(parts: Iterable[Part]) -> bool | None:
    return every(part.verdict for part in parts if part.tested)
