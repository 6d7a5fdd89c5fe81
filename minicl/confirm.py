"""`minicl search --confirm`: the finalists of a race and the known masks again, at full length and on fresh seeds.

The runs are those of the study's size `small`, with the same number of queries for all masks, so that numbers of the
study can stand beside them. What chose the finalists was another seed.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from minicl import contest, kinds
from minicl.auditing import CERTIFICATES, audit
from minicl.checks import check
from minicl.cost import time_updates
from minicl.masks import get_strategy
from minicl.study.evidence import LENGTHS, Error, Evidence, Missing, lower, ratio
from minicl.study.numbers import Shelf
from minicl.study.plan import ALL, Run, config_of
from minicl.timing import quartiles
from minicl.timing import ratio as time_ratio

SCALE = "study"
KNOWN = ("ar", "nope", "boe", "pfn", "invicl")
REFERENCE = "invicl"
CERTIFIED = 3  # of the masks with all certificates, the best so many are compared, wherever they came in
SAME_TIME = 1.05  # a step that takes at most so many times as long takes as long: the clock is no better
GOAL = 0.5  # of the reference's error, at both lengths
Record = dict[str, Any]


def called(mask: str) -> str:
    """The name that readers know a mask by: that of the built-in one, if it is one."""
    return kinds.BUILT_IN.get(mask, mask)


def entries(out: str | Path) -> list[str]:
    """The masks that are compared: the finalists, and those that everybody knows."""
    return list(dict.fromkeys([*map(called, finalists(out)), *KNOWN]))


def run_name(mask: str, task: str, shelf: Shelf) -> str:
    """The study's name of a run of this mask with as many queries as the race has."""
    usual = mask in ALL and config_of(shelf.scale, task, mask, 0).data.queries == contest.QUERIES
    return mask if usual else f"{mask}, {contest.QUERIES} queries"


def finalists(out: str | Path) -> list[str]:
    """The best masks of the race in this folder, the best first, and the best of those with all certificates."""
    file = Path(out, "ranking.json")
    check(file.exists(), "out", out, "a folder with the ranking.json of a race: first minicl search --budget MINUTES")
    found = contest.read_json(file, lambda kept: bool([r["mask"] for r in kept["rounds"][-1]]))
    masks = [r["mask"] for r in found["rounds"][-1]]
    chosen = {*masks[: contest.FINALISTS], *[m for m in masks if _certified(m)][:CERTIFIED]}
    return [mask for mask in masks if mask in chosen]


def champion(masks: Sequence[str]) -> str | None:
    """The first of them that has all four certificates."""
    return next(filter(_certified, masks), None)


def _certified(mask):
    return all(contest.certificates(mask)[what] for what in CERTIFICATES)


def planned(shelf: Shelf, masks: Sequence[str], task: str, seeds: int) -> list[Run]:
    """The runs: the first seed of all masks, then the second, …"""
    from minicl.study.figures import make_run

    names = [run_name(mask, task, shelf) for mask in masks]
    return [make_run(shelf.scale, task, name, seed) for seed in range(seeds) for name in names]


def step_times(shelf: Shelf, masks: Sequence[str], task: str, repeats: int = 31) -> dict[str, Record]:
    """{mask: processor seconds of a training step, and its ratio to the reference's}, turns taken; measured once."""
    every = sorted({*masks, REFERENCE})
    given = {"masks": every, "task": task, "repeats": repeats}

    def compute():
        training = {m: contest.Trial(m, task, "small", 0, 1000).training() for m in every}
        seconds = time_updates(training, repeats, 2)
        return {m: {"seconds": quartiles(s)[1], "ratio": time_ratio(s, seconds[REFERENCE])} for m, s in seconds.items()}

    return shelf.keep(f"steps {task}", given, compute)


def compare(shelf: Shelf, masks: Sequence[str], task: str, runs: Sequence[Run]) -> list[Record]:
    """One record for each mask whose runs are in: errors, ratios to the reference with both intervals, and costs."""
    evidence, times = Evidence(shelf, runs), step_times(shelf, masks, task)
    known = run_name(REFERENCE, task, shelf)
    records = []
    for mask in masks:
        try:
            errors, others = evidence.last(run_name(mask, task, shelf), task), evidence.last(known, task)
        except Missing:
            continue
        certified = audit(get_strategy(mask))
        records.append(
            {
                "mask": mask,
                "task": task,
                **{what: certified[what] for what in (*CERTIFICATES, "pairs", "copies", "tokens", "sees")},
                "error": {where: error.record() for where, error in errors.items()},
                "ratio": {where: _ratio(error, others[where]) for where, error in errors.items()},
                "step": times[mask],
            }
        )
    return sorted(records, key=lambda r: r["error"]["training"]["mean"] * r["error"]["longest"]["mean"])


def _ratio(a: Error, b: Error) -> Record:
    return {**ratio(a, b).record(), "below_half": lower(a, b, GOAL)}


def front(records: Sequence[Record]) -> list[str]:
    """The masks that no other beats in error at both lengths and in the time of a step."""

    def values(r):
        return r["step"]["ratio"]["ratio"] / SAME_TIME, *(r["error"][where]["mean"] for where in LENGTHS)

    def beaten(r):
        mine = (r["step"]["ratio"]["ratio"], *values(r)[1:])
        return any(all(a <= b for a, b in zip(values(o), mine, strict=True)) for o in records if o is not r)

    return [r["mask"] for r in records if not beaten(r)]
