"""The race of `minicl search`: masks train for a short time, the best third for longer, until a few are left.

Every mask gets the same time in a round, not the same number of steps, so that cost counts (`--steps` gives the same
number instead, and then the same ranking again). A result is a file that says what it depends on, so a race that was
stopped goes on where it was. Masks that leak, or whose context predictions hear nothing, train on queries only; there
are a quarter of a million of them, so those are sampled: some at random, then neighbours of the best so far.
"""

import json
import math
import random
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy
import torch

from minicl import children, kinds
from minicl.answers import answers
from minicl.checks import InputError, check
from minicl.config import Config
from minicl.devices import Devices
from minicl.progress import Progress
from minicl.stats import rank_correlation, resample
from minicl.store import Store
from minicl.training import Failure, Training

FINALISTS = 8
GUIDED, GENERATIONS, PARENTS = 0.2, 4, 10  # share of the first round; how often; whose neighbours
LEAST = 0.5  # seconds of training in the first round: less says nothing
ASKED, RESAMPLED = 512, 200  # prompts that an error is measured on, and resampled means that are kept
SCOUT = {"n_dims": 2, "examples": 4, "max_examples": 10, "n_layer": 3, "n_head": 2, "n_embd": 32, "batch_size": 64}
SIZES = {"scout": ("tiny", SCOUT), "tiny": ("tiny", {}), "small": ("small", {})}
Result = dict[str, Any]


@dataclass(frozen=True)
class Trial:
    """One training of one mask. It lasts for some seconds, or for some steps."""

    mask: str
    task: str
    size: str
    seed: int
    seconds: float | None = None
    steps: int | None = None

    def config(self, steps: int) -> Config:
        preset, settings = SIZES[self.size]
        settings = {**settings, "task": self.task, "mask": self.mask, "seed": self.seed, "threads": 1}
        settings |= {"linear": "torch", "steps": steps, "warmup": min(100, max(1, steps // 10)), "keep": ()}
        config = Config.make(preset, **settings)
        return config if config.on_context else Config.make(preset, **settings, queries=16)


def train(trial: Trial) -> Result:
    """Train and measure: the errors at the training length and at 2.5 times it, and what it took."""
    steps = trial.steps or max(20, round(trial.seconds / _seconds_of_a_step(trial)))
    training, start = _training(trial, steps), time.perf_counter()
    try:
        for _ in range(steps):
            training.update()
        training.check_loss()
    except Failure as failure:
        return {"failed": str(failure)}
    seconds = time.perf_counter() - start
    return {"steps": steps, "seconds": seconds, "step_seconds": seconds / steps, **_measure(training)}


def _training(trial, steps):
    config = trial.config(steps)
    return Training(config, Devices(config.machine, config.train.batch_size))


def _seconds_of_a_step(trial):
    training = _training(trial, 100)
    for _ in range(2):
        training.update()
    before = training.seconds
    for _ in range(6):
        training.update()
    return (training.seconds - before) / 6


def _measure(training):
    config, n = training.config, training.config.data.examples
    lengths = (n, int(2.5 * n))
    training.model.eval()
    p = config.task.sample(ASKED, lengths[-1] + 1, (7,))
    errors = (answers(training.model, p.xs, p.ys, p.queries, lengths) - p.targets[:, list(lengths)]).square()
    errors = errors.double().numpy() / config.task.normaliser
    means = resample(errors)[:RESAMPLED]
    return {
        "error": {str(length): float(e) for length, e in zip(lengths, errors.mean(0), strict=True)},
        "resampled": {str(length): means[:, i].tolist() for i, length in enumerate(lengths)},
    }


def score(result: Result) -> float:
    """The lower the better: the mean logarithm of the two errors; infinite for a run that failed or exploded."""
    errors = result.get("error", {}).values()
    return sum(math.log(max(e, 1e-12)) for e in errors) / 2 if errors and all(map(math.isfinite, errors)) else math.inf


class Contest:
    """The rounds of a race, in a folder."""

    def __init__(self, out: str | Path, jobs: int):
        self.out, self.store, self.jobs = Path(out), Store(Path(out, "results")), jobs

    def read(self, trial: Trial) -> Result | None:
        given = asdict(trial)
        return self.store.find(trial.mask, lambda other: other == given)

    def hold(self, trials: Sequence[Trial], begin: Progress) -> dict[Trial, Result]:
        """The results of all trials, those that are missing trained by processes side by side."""
        missing = [trial for trial in trials if self.read(trial) is None]
        begin.skip(len(trials) - len(missing))
        if missing:
            self._train(missing, begin)
        return {trial: self.read(trial) for trial in trials}

    def _train(self, missing, begin):
        self.store.folder.mkdir(parents=True, exist_ok=True)
        todo = self.out / "todo.json"
        todo.write_text(json.dumps([asdict(trial) for trial in missing]))
        count, before = min(self.jobs, len(missing)), len(list(self.store.folder.glob("*.json")))
        started = [children.start(work, str(self.out), str(i), str(count), log=self.out / f"{i}.log")
                   for i in range(count)]  # fmt: skip
        told = 0
        try:
            while any(process.poll() is None for process in started):
                done = len(list(self.store.folder.glob("*.json"))) - before
                while told < done:
                    told += 1
                    begin(f"{missing[0].size}, {len(missing)} masks to train")
                time.sleep(0.2)
        finally:
            children.stop(started)
        for i, process in enumerate(started):
            if process.returncode:
                raise InputError(children.complaint(process, self.out / f"{i}.log"))


def work(out: str, part: str, parts: str) -> None:
    """What a process of its own does: its share of the trials that are to do, one after the other."""
    torch.set_num_threads(1)
    contest = Contest(out, 1)
    trials = [Trial(**given) for given in json.loads(Path(out, "todo.json").read_text())]
    for trial in trials[int(part) :: int(parts)]:
        if contest.read(trial) is None:
            contest.store.write(trial.mask, asdict(trial), train(trial))


def _have(certified, need):
    """Which masks have all that is needed. All of the class are invariant."""
    return numpy.logical_and.reduce([getattr(certified, what) for what in need if what != "invariant"] or [True])


def entrants(need: Sequence[str], copies: Sequence[int]) -> list[str]:
    """Who starts: all masks of one copy, and all with two that are leak-free and informed; with what is needed."""
    names = []
    for count in copies:
        masks = numpy.arange(1 << len(kinds.choices(count)))
        certified = kinds.certify(masks, count)
        chosen = _have(certified, need) & (count == 1 or certified.no_leak & certified.informed)
        names += [kinds.name_of(int(mask), count) for mask in numpy.unique(kinds.reduced(masks[chosen], count))]
    return names


def strangers(count: int, best: Sequence[str], seen: set[str], seed: int, need: Sequence[str]) -> list[str]:
    """Two-copy masks that are not among the entrants: neighbours of the best, and random ones."""
    rng = random.Random(seed)
    neighbours = [kinds.parse(name)[0] ^ 1 << bit for name in best for bit in range(18)]
    rng.shuffle(neighbours)
    masks = numpy.array(neighbours[: count // 2] + [rng.randrange(1 << 18) for _ in range(20 * count)])
    certified = kinds.certify(masks, 2)
    chosen = _have(certified, need) & ~(certified.no_leak & certified.informed)
    found = []
    for mask in kinds.reduced(masks[chosen], 2).tolist():
        name = kinds.name_of(mask, 2)
        if name not in seen and len(found) < count:
            seen.add(name)
            found.append(name)
    return found


def rounds(masks: int) -> list[tuple[str, int]]:
    """[(size, masks that are kept)]: a third each time, until the finalists are left; the models grow on the way."""
    kept = []
    while masks > FINALISTS or not kept:
        masks = min(masks, max(FINALISTS, round(masks / 3)))
        kept.append(masks)
    sizes = ["small" if i == len(kept) - 1 else "scout" if i < len(kept) // 2 else "tiny" for i in range(len(kept))]
    return list(zip(sizes, kept, strict=True))


def race(
    out: str | Path,
    task: str = "linear",
    budget: float | None = None,
    jobs: int = 2,
    seed: int = 0,
    need: Sequence[str] = (),
    steps: int | None = None,
    copies: Sequence[int] = (1, 2),
) -> list[list[tuple[str, Result]]]:
    """All rounds, each as a ranking [(mask, result)], the best first.

    A round's masks share `budget` minutes of `jobs` processes; or each takes `steps` steps, twice as many in the second
    round, and so on.
    """
    contest, names = Contest(out, jobs), entrants(need, copies)
    check(names, "need", ",".join(need), "properties that some mask of the class has")
    extra = round(GUIDED / (1 - GUIDED) * len(names) / GENERATIONS) if 2 in copies else 0
    first = len(names) + extra * GENERATIONS
    plan = rounds(first)
    sizes = [first, *(kept for _, kept in plan[:-1])]
    share = 0.0 if steps else 60 * budget * jobs / len(plan)
    enough = math.ceil(LEAST * max(sizes) * len(plan) / 60 / jobs)
    check(steps or share / first >= LEAST, "budget", f"{budget} minutes", f"at least {enough} for {first} masks")
    rankings, seen = [], set(names)
    with Progress(sum(sizes)) as begin:
        for i, (size, kept) in enumerate(plan):
            each = {"steps": steps * (1 + i)} if steps else {"seconds": round(share / sizes[i], 3)}

            def held(masks, size=size, each=each):
                trials = [Trial(mask, task, size, seed, **each) for mask in masks]
                return {trial.mask: result for trial, result in contest.hold(trials, begin).items()}

            results, known = held(names), set(names)
            for generation in range(GENERATIONS if extra and i == 0 else 0):
                others = sorted((m for m in results if m not in known), key=lambda m, r=results: score(r[m]))
                results |= held(strangers(extra, others[:PARENTS], seen, seed + generation, need))
            rankings.append(sorted(results.items(), key=lambda item: score(item[1])))
            names = [mask for mask, _ in rankings[-1][:kept]]
    return rankings


def agreement(rankings: Sequence[Sequence[tuple[str, Result]]]) -> list[float | None]:
    """For each round but the last, the rank correlation of its scores with those of the last; None for two masks."""
    last = {mask: score(result) for mask, result in rankings[-1]}
    found = []
    for ranking in rankings[:-1]:
        scores = {mask: score(result) for mask, result in ranking}
        shared = [mask for mask in last if math.isfinite(last[mask]) and math.isfinite(scores[mask])]
        pairs = [(scores[mask], last[mask]) for mask in shared]
        found.append(rank_correlation(*zip(*pairs, strict=True)) if len(pairs) > 2 else None)
    return found
