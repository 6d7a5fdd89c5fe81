"""What the study's numbers say: errors with their seeds and resampled prompts, and judgements on them.

A judgement is True, False, or None where the numbers do not decide.
"""

import math
from collections.abc import Iterable
from dataclasses import dataclass, fields
from typing import Any

import numpy

from minicl.stats import ROUNDING, interval, student
from minicl.study.numbers import Shelf
from minicl.study.plan import Run


@dataclass(frozen=True)
class Thresholds:
    """What the rules call good, close and so on. Levels are errors; the others are factors."""

    good: float = 0.1  # an error of at most this is good: a tenth of that of answering 0
    same: float = ROUNDING
    close: float = 2.0  # within this factor, two errors are about the same
    far: float = 4.0  # beyond this factor, they are far apart
    stays: float = 1.25  # within this factor of its least value, an error has not risen again
    slack: float = 1.1  # "at least as good" forgives this factor
    alike: float = 0.5  # a rank correlation below it, in size, predicts little

    LEVELS = ("good", "same", "alike")

    def scaled(self, by: float) -> "Thresholds":
        """Levels times `by`; factors to the power of `by`, so that 4 becomes 2 or 16."""
        values = {f.name: getattr(self, f.name) for f in fields(self)}
        scaled = {k: v * by if k in self.LEVELS else v**by for k, v in values.items()}
        return Thresholds(**scaled | {"alike": min(0.75, scaled["alike"])})  # a correlation is never above 1


LENGTHS = ("training", "longest")  # where errors are compared: the training length, and 2.5 times it


class Missing(Exception):
    """The numbers that a claim needs are not there."""


class Untested(Exception):
    """The set-up cannot decide a claim, whatever the numbers; says why."""


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
            if not self.shelf.scale.has(task, name):
                raise Untested(f"{task}, {name} is not in the plan of this scale")
            raise Missing(f"{task}, {name}")
        return [self.runs[task, name][seed] for seed in sorted(self.runs[task, name])]

    def error(
        self, name: str, when: str | int, where: str, shift: str = "none", task: str = "linear", window: bool = False
    ) -> "Error":
        """The Error of a run at its `early` or `late` checkpoint or a step's, at its `training` or `longest` length.

        With `window`, of the same model on only the last examples, as many as it was trained on.
        """
        seeds, means, resampled = [], [], []
        for run, numbers in self.of(name, task):
            step = when if isinstance(when, int) else getattr(run, when)
            kept = numbers.get("window", []) if window else numbers["curves"]
            records = [r for r in kept if (r["step"], r["shift"]) == (step, shift)]
            if not records:
                raise Missing(f"{run}, step {step}, shift {shift}{', window' if window else ''}")
            (record,) = records
            trained = record["trained_on"]
            n = {"short": trained // 4, "training": trained, "longest": record["lengths"][-1]}[where]
            seeds.append(run.seed)
            means.append(record["mean"][record["lengths"].index(n)])
            resampled.append(record["resampled"][str(n)])
        called = f"{name} on its window" if window else name
        return Error(called, numpy.array(seeds), numpy.array(means), numpy.array(resampled))

    def last(self, name: str, task: str = "linear") -> dict[str, "Error"]:
        """{length: the Error at the end of training}."""
        return {where: self.error(name, "late", where, task=task) for where in LENGTHS}

    def curves(self, name: str, task: str = "linear") -> dict[int, dict]:
        """{seed: record} of the last curves."""
        return {
            run.seed: next(r for r in numbers["curves"] if (r["step"], r["shift"]) == (run.late, "none"))
            for run, numbers in self.of(name, task)
        }

    def inference(self) -> dict[str, dict]:
        """{mask: what a forward pass costs}, if it was measured."""
        records = self.shelf.costs()
        if not records:
            raise Missing("figure 9")
        return {r["mask"]: r for r in records}


@dataclass
class Error:
    """An error over seeds: means (seeds,) and means of resampled prompts (seeds, resamples)."""

    name: str
    seeds: numpy.ndarray
    means: numpy.ndarray
    resampled: numpy.ndarray

    def of(self, seeds: Iterable[int]) -> "Error":
        """The same, of some of the seeds."""
        rows = [self.seeds.tolist().index(seed) for seed in seeds]
        return Error(self.name, self.seeds[rows], self.means[rows], self.resampled[rows])

    def constant(self, level: float) -> "Error":
        """A level to compare it with, known without any doubt."""
        return Error(
            f"{level:g}", self.seeds, numpy.full_like(self.means, level), numpy.full_like(self.resampled, level)
        )

    def record(self) -> dict[str, Any]:
        """Its mean over seeds, and each seed's."""
        return {"mean": float(self.means.mean()), "seeds": [float(f"{mean:.4g}") for mean in self.means]}

    def __str__(self):
        return f"{self.name} {spread(self.means)}"


@dataclass(frozen=True)
class Ratio:
    """a ÷ b: geometric mean over shared seeds, with two intervals, over prompts and over seeds; and each seed's."""

    names: tuple[str, str]
    middle: float
    prompts: tuple[float, float]
    over_seeds: tuple[float, float]  # of the mean's logarithm, by Student's t; from 0 to infinity for one seed
    seeds: tuple[float, ...]

    def record(self) -> dict[str, Any]:
        """Its mean with both intervals; one seed has none over seeds."""
        wide = [float(end) for end in self.over_seeds] if len(self.seeds) > 1 else None
        return {"middle": self.middle, "over_prompts": list(self.prompts), "over_seeds": wide}

    def __str__(self):
        return f"{self.names[0]} ÷ {self.names[1]} {self.text}"

    @property
    def text(self) -> str:
        """The numbers, without the names."""
        low, high = map(three, self.prompts)
        each, count = ", ".join(map(three, self.seeds)), len(self.seeds)
        wide = "" if count == 1 else f"; over seeds {'–'.join(map(three, self.over_seeds))}"
        return f"{three(self.middle)} (over prompts {low}–{high}{wide}; each seed: {each})"


def spread(values: Iterable[float]) -> str:
    """Mean and range, in words."""
    values = numpy.asarray(list(values))
    if len(values) == 1:
        return f"{values[0]:.2g} (1 seed)"
    return f"{values.mean():.2g} ({values.min():.2g}–{values.max():.2g}, {len(values)} seeds)"


def three(value: float) -> str:
    """To three digits, and 1500 instead of 1.5e+03."""
    return f"{float(f'{value:.3g}'):g}"


def every(judgements: Iterable[bool | None]) -> bool | None:
    """All True: True; one False: False; else None."""
    judgements = list(judgements)
    return False if False in judgements else None if None in judgements else True


def below(values: Iterable[float], level: float) -> bool | None:
    """Whether the mean over seeds is below a level: Student's interval says so, or says the opposite."""
    values = numpy.asarray(list(values), dtype=float)
    half = student(values)
    return True if values.mean() + half < level else False if values.mean() - half > level else None


def opposite(judgement: bool | None) -> bool | None:
    return None if judgement is None else not judgement


def ratio(a: Error, b: Error) -> Ratio:
    """a ÷ b, of the seeds that they share."""
    a, b = _shared(a, b)
    logs = _log(a.means) - _log(b.means)
    prompts = numpy.exp(interval((_log(a.resampled) - _log(b.resampled)).mean(0)))
    half = student(logs)
    wide = (math.exp(logs.mean() - half), math.exp(logs.mean() + half)) if math.isfinite(half) else (0.0, math.inf)
    return Ratio((a.name, b.name), math.exp(logs.mean()), tuple(prompts.tolist()), wide, tuple(numpy.exp(logs)))


def _shared(a, b):
    """Both, of the seeds that they share."""
    seeds = [seed for seed in a.seeds.tolist() if seed in b.seeds]
    if not seeds:
        raise Missing(f"a seed that {a.name} and {b.name} share")
    return a.of(seeds), b.of(seeds)


def _log(errors):
    return numpy.log(numpy.maximum(errors, 1e-12))


def lower(a: Error, b: Error, than: float = 1.0) -> bool | None:
    """Whether a's error is below b's (times `than`): both intervals of the ratio say so, or both say the opposite."""
    r = ratio(a, b)
    if max(r.prompts[1], r.over_seeds[1]) < than:
        return True
    return False if min(r.prompts[0], r.over_seeds[0]) > than else None


def within(a: Error, b: Error, factor: float) -> bool | None:
    """Whether a ÷ b is within a factor of 1, by both intervals; False if both are beyond it on one side."""
    return every([lower(a, b, factor), lower(b, a, factor)])


def at_most(error: Error, level: float) -> bool | None:
    """Whether an error is below a level, by both intervals; False if both are above it."""
    return lower(error, error.constant(1.0), level)
