"""What the paper says about its synthetic figures, each claim with a rule that was fixed before the study was run.

Every rule is made of few judgements, each of which is True, False, or None where the numbers do not decide. A claim
holds if all of its judgements are True, does not hold if one is False, and is otherwise not decided at this scale.
"""

import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import product

import numpy

from minicl.stats import interval, percent
from minicl.study.numbers import Shelf
from minicl.study.plan import PAPER_MASKS, SHIFTS, Run

GOOD = 0.1  # an error of at most this is good: a tenth of that of answering 0
CLOSE = 2.0  # within this factor, two errors are about the same
STAYS = 1.25  # within this factor of its least value, an error has not risen again
SLACK = 1.1  # "at least as good" forgives this factor
SAME = 1e-4  # a spread over orders below it, in units of y's root mean square, is rounding
WORDS = {True: "holds", False: "does not hold", None: "not decided at this scale"}


class Missing(Exception):
    """The numbers that a claim needs are not there."""


class Evidence:
    """The study's numbers, asked by what they are."""

    def __init__(self, shelf: Shelf, runs: Iterable[Run]):
        self.shelf, self.runs = shelf, {}
        for run in runs:
            if (numbers := shelf.read(run)) is not None:
                self.runs.setdefault((run.task, run.name), {})[run.seed] = (run, numbers)

    def of(self, name: str, task: str = "linear") -> list[tuple[Run, dict]]:
        """[(run, numbers)] of all seeds."""
        if (task, name) not in self.runs:
            raise Missing(f"{task}, {name}")
        return [self.runs[task, name][seed] for seed in sorted(self.runs[task, name])]

    def error(self, name: str, when: str, where: str, shift: str = "none", task: str = "linear") -> "Error":
        """The Error of a run at its `early` or `late` checkpoint, at its `training` or `longest` length, or at half."""
        seeds, means, resampled = [], [], []
        for run, numbers in self.of(name, task):
            step = getattr(run, when)
            records = [r for r in numbers["curves"] if (r["step"], r["shift"]) == (step, shift)]
            if not records:
                raise Missing(f"{run}, step {step}, shift {shift}")
            (record,) = records
            n = {"half": record["trained_on"] // 2, "training": record["trained_on"], "longest": record["lengths"][-1]}
            seeds.append(run.seed)
            means.append(record["mean"][record["lengths"].index(n[where])])
            resampled.append(record["resampled"].get(str(n[where])))
        whole = None if resampled[0] is None else numpy.array(resampled)
        return Error(name, numpy.array(seeds), numpy.array(means), whole)

    def inference(self) -> list[dict]:
        """Records of what a forward pass costs, if it was measured."""
        records = self.shelf.costs()
        if not records:
            raise Missing("figure 9")
        return records


@dataclass
class Error:
    """An error over seeds: means (seeds,) and, at some lengths, means of resampled prompts (seeds, resamples)."""

    name: str
    seeds: numpy.ndarray
    means: numpy.ndarray
    resampled: numpy.ndarray | None = None

    def of(self, seeds: Iterable[int]) -> "Error":
        """The same, of some of the seeds."""
        rows = [self.seeds.tolist().index(seed) for seed in seeds]
        resampled = None if self.resampled is None else self.resampled[rows]
        return Error(self.name, self.seeds[rows], self.means[rows], resampled)

    def __str__(self):
        return f"{self.name} {_spread(self.means)}"


def _spread(values):
    values = numpy.asarray(values)
    if len(values) == 1:
        return f"{values[0]:.2g} (1 seed)"
    return f"{values.mean():.2g} ({values.min():.2g}–{values.max():.2g}, {len(values)} seeds)"


def every(judgements: Iterable[bool | None]) -> bool | None:
    """All True: True; one False: False; else None."""
    judgements = list(judgements)
    return False if False in judgements else None if None in judgements else True


def agree(seeds: Iterable[bool]) -> bool | None:
    """What all seeds say, if they are at least two and agree; else None."""
    seeds = list(seeds)
    return seeds[0] if len(seeds) > 1 and len(set(seeds)) == 1 else None


def shared(a: Error, b: Error) -> tuple[Error, Error]:
    """Both errors, of the seeds that they share."""
    seeds = [seed for seed in a.seeds.tolist() if seed in b.seeds]
    if not seeds:
        raise Missing(f"a seed that {a.name} and {b.name} share")
    return a.of(seeds), b.of(seeds)


def ratio(a: Error, b: Error) -> tuple[float, float, float, numpy.ndarray]:
    """(geometric mean over seeds of a ÷ b, low and high end of its paired interval over prompts, each seed's)."""
    a, b = shared(a, b)
    logs = _log(a.means) - _log(b.means)
    low, high = numpy.exp(interval((_log(a.resampled) - _log(b.resampled)).mean(0)))
    return math.exp(logs.mean()), float(low), float(high), numpy.exp(logs)


def _log(errors):
    return numpy.log(numpy.maximum(errors, 1e-12))


def lower(a: Error, b: Error, than: float = 1.0) -> bool | None:
    """Whether a's error is below b's (times `than`): every one of at least two seeds and the interval say so."""
    _, low, high, seeds = ratio(a, b)
    if len(seeds) < 2:
        return None
    if max(seeds) < than and high < than:
        return True
    return False if min(seeds) > than and low > than else None


def about_equal(a: Error, b: Error) -> bool | None:
    """Whether a ÷ b is within a factor CLOSE of 1, in every seed and by the interval; False if all are beyond it."""
    return every([lower(a, b, CLOSE), lower(b, a, CLOSE)])


def good(error: Error) -> bool | None:
    return agree(bool(m <= GOOD) for m in error.means)


def bad(error: Error) -> bool | None:
    answer = good(error)
    return None if answer is None else not answer


def versus(a: Error, b: Error) -> str:
    middle, low, high, seeds = ratio(a, b)
    each = ", ".join(map(_three, seeds))
    return f"{a.name} ÷ {b.name} {_three(middle)} ({_three(low)}–{_three(high)}; each seed: {each})"


def _three(value):
    """To three digits, and 1500 instead of 1.5e+03."""
    return f"{float(f'{value:.3g}'):g}"


def only_invicl_is_good_early(numbers):
    errors = {mask: numbers.error(mask, "early", "training") for mask in PAPER_MASKS}
    verdicts = [good(e) if mask == "invicl" else bad(e) for mask, e in errors.items()]
    return every(verdicts), [*map(str, errors.values())]


def all_but_boe_are_good_late(numbers):
    errors = {mask: numbers.error(mask, "late", "training") for mask in PAPER_MASKS}
    verdicts = [bad(e) if mask == "boe" else good(e) for mask, e in errors.items()]
    return every(verdicts), [*map(str, errors.values())]


def order_beyond_the_training_length(numbers):
    e = {mask: numbers.error(mask, "late", "longest") for mask in PAPER_MASKS}
    steps = [("invicl", "ar"), ("ar", "prefix"), ("ar", "nope"), ("prefix", "boe"), ("nope", "boe")]
    judgements = [lower(e[a], e[b]) for a, b in steps] + [about_equal(e["prefix"], e["nope"])]
    return every(judgements), [*map(str, e.values()), *(versus(e[a], e[b]) for a, b in [*steps, ("prefix", "nope")])]


def invicl_converges_first_on_sparse_prompts(numbers):
    e = {
        (when, mask): numbers.error(mask, when, "training", task="sparse_linear")
        for when, mask in product(("early", "late"), ("invicl", "ar"))
    }
    judgements = [lower(e[when, "invicl"], e[when, "ar"]) for when in ("early", "late")]
    return every(judgements), [
        f"{when}: {e[when, 'invicl']}, {e[when, 'ar']}, {versus(e[when, 'invicl'], e[when, 'ar'])}"
        for when in ("early", "late")
    ]


def trees_ar_short_invicl_long(numbers):
    short, long = (
        {m: numbers.error(m, "late", where, task="decision_tree") for m in ("ar", "invicl")}
        for where in ("half", "longest")
    )
    ar, invicl = shared(short["ar"], short["invicl"])
    judgements = [agree(bool(s) for s in ar.means < invicl.means), lower(long["invicl"], long["ar"])]
    lines = [f"half the training length: {short['ar']}, {short['invicl']}"]
    return every(judgements), [*lines, f"longest: {long['ar']}, {long['invicl']}, {versus(long['invicl'], long['ar'])}"]


def invicl_is_at_least_as_good_under_shifts(numbers):
    judgements, lines = [], []
    for shift, when, where in product(SHIFTS, ("early", "late"), ("training", "longest")):
        invicl, ar = (numbers.error(m, when, where, shift) for m in ("invicl", "ar"))
        judgements.append(lower(invicl, ar, SLACK))
        lines.append(f"{shift}, {when}, {where}: {versus(invicl, ar)}")
    return every(judgements), lines


def invicl_falls_early_and_stays(numbers):
    """Of the errors at 2.5 times the training length over the checkpoints that were kept."""

    def shape(name):
        for run, measured in numbers.of(name):
            curve = {r["step"]: r["mean"][-1] for r in measured["curves"] if r["shift"] == "none"}
            least = min(curve.values())
            yield curve[run.early] <= CLOSE * least, curve[run.late] <= STAYS * least, curve

    verdicts, lines = [], []
    for name, expected in (("invicl", True), ("ar", False)):
        seeds = list(shape(name))
        for part in (0, 1):
            said = agree(s[part] for s in seeds)
            verdicts.append(None if said is None else said is expected)
        lines += [f"{name}: " + ", ".join(f"{v:.2g} at {k}" for k, v in sorted(s[2].items())) for s in seeds]
    return every(verdicts), lines


def invicl_knows_in_the_middle(numbers):
    verdicts, lines = [], []
    for name in ("invicl", "ar"):
        near = []
        for run, measured in numbers.of(name):
            n = run.config.data.examples
            rows = {(r["probe"], r["layer"]): r["mean"] for r in measured["probes"] if r["examples"] == n}
            own, layers = rows["model", None], sorted(layer for kind, layer in rows if kind == "target")
            near.append([rows["target", layer] <= CLOSE * own for layer in layers])
            text = ", ".join(f"{rows['target', layer]:.2g} at layer {layer}" for layer in layers)
            lines.append(f"{name}: {text}, the model {own:.2g}")
        for i, said in enumerate(agree(column) for column in zip(*near, strict=True)):
            expected = name == "invicl" or i == len(near[0]) - 1
            verdicts.append(None if said is None else said is expected)
    return every(verdicts), lines


def order_matters_unless_both(numbers):
    verdicts, lines = [], []
    for name in ("ar", "ar+symmetric", "invicl+absolute", "invicl"):
        spread = [measured["order"]["spread"] for _, measured in numbers.of(name)]
        said = agree(s < SAME for s in spread)
        verdicts.append(None if said is None else said is (name == "invicl"))
        lines.append(f"{name} {_spread(spread)}")
    return every(verdicts), lines


def doubling_is_not_the_reason(numbers):
    invicl, single, doubled = (
        [numbers.error(name, "late", "longest") for name in names]
        for names in (("invicl", "invicl, queries only"), ("ar", "boe", "prefix"), ("ar+×2", "boe+×2", "prefix+×2"))
    )
    pairs = list(product(invicl, doubled))
    lines = [*map(str, (*invicl, *single, *doubled)), *(versus(a, b) for a, b in pairs)]
    return every(lower(a, b) for a, b in pairs), lines


def invicl_costs_at_most_twice(numbers):
    record = next(r for r in numbers.inference() if r["mask"] == "invicl")
    low, high = record["ratio"]["low"], record["ratio"]["high"]
    verdict = True if high <= 2.2 else False if low > 2.2 else None
    return verdict, [
        f"invicl ÷ ar {record['ratio']['ratio']:.2f} (middle half {low:.2f}–{high:.2f}) on {record['device']}"
    ]


@dataclass(frozen=True)
class Claim:
    sentence: str
    figure: int
    rule: str
    judge: Callable[[Evidence], tuple[bool | None, list[str]]]


SEEDS = "in every one of at least two seeds"
LOWER = f"{SEEDS}, and by the paired {percent()} interval over prompts"
CLAIMS = (
    Claim(
        "Early in training, only InvICL is good.",
        1,
        f"A quarter of the way, at the training length: InvICL's error is at most {GOOD} {SEEDS}, every other mask's "
        "is above that.",
        only_invicl_is_good_early,
    ),
    Claim(
        "At the end, all but BoE are good inside the training length.",
        1,
        f"At the training length: BoE's error is above {GOOD} {SEEDS}, every other mask's at most that.",
        all_but_boe_are_good_late,
    ),
    Claim(
        "Beyond the training length, InvICL is better than AR, AR better than Prefix and NoPE, which are alike, and "
        "those better than BoE.",
        1,
        f"At 2.5 times the training length: an error is lower {LOWER}; two are alike if their ratio is within a factor "
        f"{CLOSE:g} of 1, {LOWER}.",
        order_beyond_the_training_length,
    ),
    Claim(
        "On sparse linear prompts, InvICL converges before AR: it is ahead early, and still at the end.",
        2,
        f"At the training length, a quarter of the way and at the end: InvICL's error is lower {LOWER}.",
        invicl_converges_first_on_sparse_prompts,
    ),
    Claim(
        "On decision trees, AR is better with short contexts and InvICL with long ones.",
        2,
        f"AR's error is lower at half the training length {SEEDS}, InvICL's at 2.5 times it {LOWER}.",
        trees_ar_short_invicl_long,
    ),
    Claim(
        "Under each of three shifts, early and late, InvICL is at least as good as AR.",
        3,
        f"At the training length and at 2.5 times it: InvICL's error is below {SLACK} times AR's {LOWER}.",
        invicl_is_at_least_as_good_under_shifts,
    ),
    Claim(
        "At 2.5 times the training length, InvICL's error falls early and stays; AR's falls late and rises again.",
        5,
        f"Over the checkpoints, {SEEDS}: InvICL is within a factor {CLOSE:g} of its least error a quarter of the way, "
        f"and within {STAYS} of it at the end; AR is neither.",
        invicl_falls_early_and_stays,
    ),
    Claim(
        "InvICL's middle layers already predict about as well as the model; of AR's, only the last does.",
        6,
        f"At the training length, {SEEDS}: a linear probe's error is within a factor {CLOSE:g} of the model's own at "
        "all four layers for InvICL, and at the last alone for AR.",
        invicl_knows_in_the_middle,
    ),
    Claim(
        "The order of the examples has no effect only if both mask and positions are symmetric.",
        7,
        f"The spread over orders is below {SAME:g} of y's scale for InvICL, {SEEDS}, and above it for AR, AR with "
        "symmetric positions, and InvICL's mask with absolute ones.",
        order_matters_unless_both,
    ),
    Claim(
        "Seeing the input twice is not the reason.",
        7,
        "At 2.5 times the training length: InvICL's error is lower than that of AR, BoE and Prefix with doubled "
        f"inputs, {LOWER}. Doubled inputs leak, so those are trained on their queries alone: InvICL trained so must be "
        "lower too (added later, before it was run).",
        doubling_is_not_the_reason,
    ),
    Claim(
        "InvICL costs at most 2.2 times as much as AR, per prompt.",
        9,
        "Time of a forward pass, turns taken: holds if the middle half of the ratios is at most 2.2, does not if it is "
        "above.",
        invicl_costs_at_most_twice,
    ),
)


def judge(numbers: Evidence) -> Iterator[tuple[Claim, str, list[str]]]:
    """(claim, verdict in words, lines of evidence) for each claim."""
    for claim in CLAIMS:
        try:
            verdict, lines = claim.judge(numbers)
            yield claim, WORDS[verdict], lines
        except Missing as missing:
            yield claim, "not run", [f"missing: {missing}"]


def report(numbers: Evidence) -> str:
    """claims.md."""
    judged = list(judge(numbers))
    rows = [f"| {i} | {claim.sentence} | {claim.figure} | {word} |" for i, (claim, word, _) in enumerate(judged, 1)]
    parts = [
        "# What holds\n\nWritten by `minicl study` from the numbers beside it. Errors are normalised (1 is that of "
        "answering 0): mean over seeds and their range. Ratios: geometric mean over seeds, with the paired "
        f"{percent()} interval over prompts. The rules were fixed before the study was run; what was added to one is "
        "said there.\n",
        "\n".join(["| | claim | figure | verdict |", "| --- | --- | --- | --- |", *rows]),
    ]
    for i, (claim, word, lines) in enumerate(judged, 1):
        parts.append(f"\n## {i}. {claim.sentence}\n\n**{word}** ([figure {claim.figure}](figure{claim.figure}.png))\n")
        parts.append(f"*Rule.* {claim.rule}\n")
        parts.append("\n".join(f"- {line}" for line in lines))
    return "\n".join(parts) + "\n"
