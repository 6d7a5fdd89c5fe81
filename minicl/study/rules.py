"""The rules by which each claim is judged: functions from the study's numbers to a list of parts.

Rules were written before the runs that they judge. Where one was changed after a result was seen, its claim says so.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from itertools import product

from minicl.stats import rank_correlation
from minicl.study.evidence import (
    Error,
    Evidence,
    Missing,
    Thresholds,
    Untested,
    agree,
    at_most,
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


@dataclass(frozen=True)
class Part:
    """A part of a claim: what it says, its verdict (True, False, None) and the numbers behind it."""

    text: str
    verdict: bool | None
    numbers: str


Judge = Callable[[Evidence, Thresholds], list[Part]]


def _lower(what: str, a: Error, b: Error, than: float = 1.0) -> Part:
    return Part(what, lower(a, b, than), f"{a}, {b}; {ratio(a, b)}")


def _good(what: str, error: Error, level: float, expected: bool = True) -> Part:
    said = at_most(error, level)
    return Part(what, said if expected else opposite(said), str(error))


def only_invicl_is_good_early(numbers, t):
    errors = {mask: numbers.error(as_published(mask), "early", "training") for mask in PAPER_MASKS}
    return [_good(f"{m} is {'' if m == 'invicl' else 'not '}good", e, t.good, m == "invicl") for m, e in errors.items()]


def others_are_good_late(numbers, t):
    return [_good(f"{mask} is good", numbers.error(mask, "late", "training"), t.good) for mask in OTHERS]


def order_beyond_the_training_length(numbers, t):
    e = {mask: numbers.error(mask, "late", "longest") for mask in PAPER_MASKS}
    steps = [("invicl", "ar"), ("ar", "prefix"), ("ar", "nope"), ("prefix", "boe"), ("nope", "boe")]
    parts = [_lower(f"{a} is better than {b}", e[a], e[b]) for a, b in steps]
    same = Part("prefix and nope are about the same", within(e["prefix"], e["nope"], t.close),
                f"{e['prefix']}, {e['nope']}; {ratio(e['prefix'], e['nope'])}")  # fmt: skip
    return [*parts[:3], same, *parts[3:]]


def invicl_converges_first_on_sparse_prompts(numbers, t):
    def part(when):
        invicl, ar = (numbers.error(m, when, "training", task="sparse_linear") for m in ("invicl", "ar"))
        return _lower(f"{when}, invicl is better", invicl, ar)

    return [part("early"), part("late")]


def trees_ar_short_invicl_long(numbers, t):
    curves = {mask: numbers.curves(mask, "decision_tree") for mask in ("ar", "invicl")}
    for mask, records in curves.items():
        n = next(iter(records.values()))["trained_on"]
        halved = [r["mean"][r["lengths"].index(n)] <= 0.5 * r["mean"][0] for r in records.values()]
        if not all(halved):
            raise Untested(f"{mask} has not learned trees here: with {n} examples not half of its error without any")
    shared = [(curves["ar"][seed], curves["invicl"][seed]) for seed in curves["ar"] if seed in curves["invicl"]]
    short = n // 4
    at = next(iter(curves["ar"].values()))["lengths"].index(short)
    ratios = [[i / a for i, a in zip(inv["mean"][at:], ar["mean"][at:], strict=True)] for ar, inv in shared]
    trend = [rank_correlation(range(len(r)), r) for r in ratios]
    invicl, ar = (numbers.error(m, "late", "longest", task="decision_tree") for m in ("invicl", "ar"))
    first = ", ".join(three(r[0]) for r in ratios)
    return [
        Part(f"with {short} examples ar is better", agree(r[0] > 1 for r in ratios), f"invicl ÷ ar {first}"),
        Part("invicl gains with length: invicl ÷ ar falls as examples are added, by rank correlation",
             agree(c < -t.alike for c in trend), f"rank correlation {', '.join(map(three, trend))}"),
        _lower("at the longest, invicl is better", invicl, ar),
    ]  # fmt: skip


def invicl_is_at_least_as_good_under_shifts(numbers, t):
    parts = []
    for shift, when, where in product(SHIFTS, ("early", "late"), ("training", "longest")):
        invicl, ar = (numbers.error(m, when, where, shift) for m in ("invicl", "ar"))
        parts.append(_lower(f"{shift}, {when}, {where} length", invicl, ar, t.slack))
    return parts


def _over_steps(numbers, name):
    """Of each seed {step: error at the longest length}, and its run."""
    return [
        (run, {r["step"]: r["mean"][-1] for r in measured["curves"] if r["shift"] == "none"})
        for run, measured in numbers.of(name)
    ]


def invicl_falls_early_and_stays(numbers, t):
    seeds = {mask: _over_steps(numbers, as_published(mask)) for mask in ("invicl", "ar")}
    near = {m: agree(c[run.early] <= t.close * min(c.values()) for run, c in of) for m, of in seeds.items()}
    stays = {m: agree(c[run.late] <= t.stays * min(c.values()) for run, c in of) for m, of in seeds.items()}
    text = {m: " | ".join(", ".join(f"{three(e)} at {s}" for s, e in sorted(c.items())) for _, c in of)
            for m, of in seeds.items()}  # fmt: skip
    return [
        Part("invicl is near its least error early", near["invicl"], text["invicl"]),
        Part("ar is not", opposite(near["ar"]), text["ar"]),
        Part("invicl's error has not risen at the end", stays["invicl"], text["invicl"]),
        Part("ar's has", opposite(stays["ar"]), text["ar"]),
    ]


def invicl_is_ahead_at_all_times(numbers, t):
    parts = []
    for what, name in (("constant rate", as_published), ("the study's recipe", str)):
        for step in sorted(_over_steps(numbers, name("invicl"))[0][1]):
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
            said = agree(probed[layer] <= t.close * own for own, probed in rows)
            text = ", ".join(f"{three(probed[layer])} (the model {three(own)})" for own, probed in rows)
            what = f"{name}, layer {layer}: {'about as good as' if expected else 'worse than'} the model"
            parts.append(Part(what, said if expected else opposite(said), text))
    return parts


def order_matters_unless_both(numbers, t):
    parts = []
    for name in ("ar", "ar+symmetric", "invicl+absolute", "invicl"):
        values = [measured["order"]["spread"] for _, measured in numbers.of(name)]
        said, expected = agree(v < t.same for v in values), name == "invicl"
        what = f"{name}: order has {'no' if expected else 'an'} effect"
        parts.append(Part(what, said if expected else opposite(said), spread(values)))
    return parts


def doubling_is_not_the_reason(numbers, t):
    invicl = numbers.error("invicl", "late", "longest")
    others = [numbers.error(name, "late", "longest") for name in ("ar+×2", "nope+×2", "boe+×2", "prefix")]
    return [_lower(f"invicl is better than {e.name}", invicl, e) for e in others]


def invicl_costs_the_same(numbers, t):
    costs, parts = numbers.inference(), []
    for mask in OTHERS:
        r = costs["invicl"]["ratios"][mask]
        verdict = True if r["high"] <= t.close else False if r["low"] > t.close else None
        text = f"invicl ÷ {mask} {r['ratio']:.2f} (middle half {r['low']:.2f}–{r['high']:.2f})"
        parts.append(Part(f"within a factor of {t.close:.3g} of {mask}", verdict, text))
    return parts


def pfn_is_as_good_for_less(numbers, t):
    parts = []
    for task, where in product(("linear", "noisy_linear"), ("training", "longest")):
        pfn, invicl = (numbers.error(m, "late", where, task=task) for m in ("pfn", "invicl"))
        parts.append(_lower(f"{task}, {where} length: pfn is at least as good", pfn, invicl, t.slack))
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
        best = min((numbers.error(o, "late", "longest") for o in others), key=lambda e: e.means.mean())
        parts.append(_lower(f"{best.name} is far better than {absolute}, under the same mask", best, error, 1 / t.far))
    errors = sorted((numbers.error(m, "late", "longest") for m in EXTRAPOLATING), key=lambda e: e.means.mean())
    text = f"{', '.join(map(str, errors))}; {ratio(errors[-1], errors[0])}"
    what = "with positions that extrapolate, the worst mask is not far from the best"
    return [*parts, Part(what, within(errors[0], errors[-1], t.far), text)]


def the_dense_loss_is_what_helps(numbers, t):
    parts = []
    for where in ("training", "longest"):
        dense, alone, pfn = (numbers.error(m, "late", where) for m in ("invicl", "invicl, queries only", "pfn"))
        parts.append(_lower(f"{where} length: invicl without it has over twice the error", dense, alone, 1 / t.close))
        parts.append(_lower(f"{where} length: without it, invicl is no better than pfn", pfn, alone, t.slack))
    return parts


def order_does_not_predict_error(numbers, t):
    names = [name for name in (*ALL, *SHUFFLED) if name in numbers.names()]
    if len(names) < 7 or "invicl" not in names:
        raise Missing("order sensitivity of at least seven strategies")
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
        parts.append(Part(f"{where} length", agree(abs(c) < t.alike for c in found), text))
    return parts


def a_window_is_enough(numbers, t):
    parts = []
    for task, expected in (("linear", True), ("noisy_linear", False)):
        window = numbers.error("ar", "late", "longest", task=task, window=True)
        best = min((numbers.error(m, "late", "longest", task=task) for m in ("nope", "boe", "pfn", "invicl")),
                   key=lambda e: e.means.mean())  # fmt: skip
        if expected:
            parts.append(
                _lower(f"noiseless: the best, {best.name}, is not {t.close:.3g} times better", window, best, t.close)
            )
        else:
            parts.append(_lower(f"noisy: the best, {best.name}, is better than the window", best, window))
    return parts


def overall(parts: Iterable[Part]) -> bool | None:
    return every(part.verdict for part in parts)
