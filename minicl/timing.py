"""Times in words, and as ratios within one run.

Candidates take turns, so that a noisy machine slows all of them alike.
"""

import statistics
import time


def race(candidates, repeats=10, warmup=1):
    """Seconds of every call, by name: {name: [seconds, …]}, the candidates interleaved."""
    seconds = {name: [] for name in candidates}
    for turn in range(warmup + repeats):
        for name, call in candidates.items():
            start = time.perf_counter()
            call()
            if turn >= warmup:
                seconds[name].append(time.perf_counter() - start)
    return seconds


def ratio(slow, fast):
    """Median over the turns of slow ÷ fast, and the range that holds the middle half of them."""
    ratios = [s / f for s, f in zip(slow, fast, strict=True)]
    return dict(zip(("low", "ratio", "high"), quartiles(ratios), strict=True))


def quartiles(values):
    """The range that holds the middle half, and the median between: (low, median, high)."""
    return statistics.quantiles(values, n=4, method="inclusive") if len(values) > 1 else values * 3


def duration(seconds):
    """A length of time as people say it."""
    if seconds < 100:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 6000 else f"{seconds / 3600:.1f} h"
