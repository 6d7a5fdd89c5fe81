"""Times as ratios within one run. Candidates take turns, so that a noisy machine slows all of them alike."""

import statistics
import time
from collections.abc import Callable, Sequence
from typing import Any


def take_turns(
    candidates: dict[str, Callable[[], Any]],
    repeats: int = 10,
    warmup: int = 1,
    clock: Callable[[], float] = time.perf_counter,
) -> dict[str, list[float]]:
    """Seconds of every call, by name: {name: [seconds, …]}; each turn calls every candidate once."""
    seconds = {name: [] for name in candidates}
    for turn in range(warmup + repeats):
        for name, call in candidates.items():
            start = clock()
            call()
            if turn >= warmup:
                seconds[name].append(clock() - start)
    return seconds


def ratio(slow: Sequence[float], fast: Sequence[float]) -> dict[str, float]:
    """Median over the turns of slow ÷ fast, and the range that holds the middle half of them."""
    ratios = [s / f for s, f in zip(slow, fast, strict=True)]
    return dict(zip(("low", "ratio", "high"), quartiles(ratios), strict=True))


def quartiles(values: list[float]) -> list[float]:
    """The range that holds the middle half, and the median between: [low, median, high]."""
    return statistics.quantiles(values, n=4, method="inclusive") if len(values) > 1 else values * 3
