"""Means with error bars: intervals over prompts by bootstrap, spread over seeds, and when one method leads another."""

from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable
from typing import Any

import numpy
from numpy.typing import ArrayLike

INTERVAL = 0.90  # what an interval over prompts covers
RESAMPLES = 1000
ROUNDING = 1e-4  # a spread over orders below it, in units of y's scale, is rounding: the order has no effect
VERSION = 1  # of what is computed: a change of it makes old results unread, not wrong


def basis() -> dict[str, Any]:
    """What every kept result depends on besides its own settings."""
    return {"version": VERSION, "interval": INTERVAL, "resamples": RESAMPLES}


def percent() -> str:
    """The interval in words: 90 %."""
    return f"{100 * INTERVAL:g} %"


def resample(errors: ArrayLike, seed: int = 0) -> numpy.ndarray:
    """(RESAMPLES, columns): means over rows (prompts), drawn with replacement; the same draws for the same prompts."""
    errors = numpy.asarray(errors, dtype=numpy.float64)
    n = len(errors)
    counts = numpy.random.default_rng(seed).multinomial(n, [1 / n] * n, size=RESAMPLES)
    return counts @ errors / n


def interval(means: ArrayLike) -> numpy.ndarray:
    """Low and high end, per column, of the range that holds the middle INTERVAL of rows."""
    return numpy.quantile(means, [(1 - INTERVAL) / 2, (1 + INTERVAL) / 2], axis=0)


def bootstrap(errors: ArrayLike, seed: int = 0) -> numpy.ndarray:
    """Low and high end, per column, of the interval of the mean over rows (prompts)."""
    return interval(resample(errors, seed))


# Student's t for two-sided 90 % intervals with 1, 2, … degrees of freedom; with more than these it is a little less.
STUDENT = (6.314, 2.920, 2.353, 2.132, 2.015, 1.943, 1.895, 1.860, 1.833, 1.812, 1.796, 1.782, 1.771, 1.761, 1.753)


def student(values: ArrayLike) -> float:
    """Half the width of the 90 % interval of the mean of few values, such as seeds; infinite for one value."""
    values = numpy.asarray(values, dtype=numpy.float64)
    n = len(values)
    if n < 2:
        return float("inf")
    t = STUDENT[min(n - 2, len(STUDENT) - 1)]
    return float(t * values.std(ddof=1) / n**0.5)


LEADS = (
    "least error: means over seeds, compared prompt by prompt; decided if each method has at least 2 seeds, "
    "all seeds agree, and the {} interval over prompts of the difference excludes 0"
)


def leads(errors: numpy.ndarray, others: numpy.ndarray) -> bool:
    """Whether a method's error is surely below another's, each (seeds, prompts) on the same prompts."""
    if min(len(errors), len(others)) < 2 or errors.mean(1).max() >= others.mean(1).min():
        return False
    return bool(bootstrap((others.mean(0) - errors.mean(0))[:, None])[0, 0] > 0)


def over_seeds(records: Iterable[dict], kind: Callable[[dict], Hashable]) -> list[dict]:
    """One more record for every group of runs that `kind` finds to be the same but for the seed: mean and range."""
    groups = defaultdict(list)
    for record in records:
        if record["run"] is not None:
            groups[kind(record), record["step"], record["shift"]].append(record)
    return [_mean_and_range(members) for members in groups.values() if len(members) > 1]


def _mean_and_range(members):
    means = numpy.array([m["mean"] for m in members])
    spread = {"mean": means.mean(0), "low": means.min(0), "high": means.max(0)}
    return {
        **members[0],
        **{name: value.tolist() for name, value in spread.items()},
        "run": None,
        "runs": [m["run"] for m in members],
        "train_seed": [m["train_seed"] for m in members],
        "over": "seeds",
    }


def rank_correlation(a: Iterable[float], b: Iterable[float]) -> float:
    """Spearman's, with mean ranks where values are equal; not a number where all of one side are."""
    ranks = []
    for values in (numpy.asarray(list(a)), numpy.asarray(list(b))):
        below = (values[None, :] < values[:, None]).sum(1)
        equal = (values[None, :] == values[:, None]).sum(1)
        ranks.append(below + (equal - 1) / 2)
    if min(r.std() for r in ranks) == 0:
        return float("nan")
    return float(numpy.corrcoef(*ranks)[0, 1])
