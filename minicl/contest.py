"""The race of `minicl search`: masks train for a short time, the best third for longer, until a few are left.

Every mask gets the same time in a round, not the same number of steps, so that cost counts (`--steps` gives the same
number instead). What decides the time of a step is how many tokens there are, not which of them see each other: so it
is measured once for each number of copies and each loss, and kept. Results are lines of a log, and a race that was
stopped goes on where it was. Masks that leak, or whose context predictions hear nothing, train on queries only; there
are a quarter of a million of them, so those are sampled: some at random, then neighbours of the best so far.
"""

import json
import math
import random
import statistics
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from functools import lru_cache
from itertools import permutations
from pathlib import Path
from typing import Any

import numpy
import torch

from minicl import children, kinds
from minicl.answers import answers
from minicl.auditing import symbolic
from minicl.checkpoint import write_atomically
from minicl.checks import InputError, check
from minicl.config import Config
from minicl.cost import time_updates
from minicl.devices import Devices
from minicl.masks import get_strategy, layout
from minicl.progress import Progress
from minicl.stats import rank_correlation
from minicl.training import Failure, Training

FINALISTS = 8
CARRIED = 4  # of those that a round drops, drawn at random, go on too: they tell what the rounds before have missed
STAGED = 3  # the best so many are also tried one after the other: one in the first half of the layers, one in the rest
GUIDED, GENERATIONS, PARENTS = 0.2, 4, 10  # share of the first round; how often; whose neighbours
FIRST = 2  # times the time of a middle round has the first one, as most masks are only in it,
LAST = 3  # and the last one, as its models are large
LEAST = 100  # steps of each mask in a round: fewer say nothing
TIMED, WARM = 15, 3  # updates that a step's time is the median of, and those before
ASKED = 512  # prompts that an error is measured on
SCOUT = {
    "n_dims": 2, "examples": 4, "max_examples": 10, "n_layer": 4, "n_head": 2, "n_embd": 32, "init_std": 0.18,
    "batch_size": 64,
}  # fmt: skip
SIZES = {"scout": ("tiny", SCOUT), "tiny": ("tiny", {}), "small": ("small", {})}
DEPTH = 12  # layers at size small
QUERIES = 16  # in each prompt, for all masks, so that they differ in nothing but the mask
Result = dict[str, Any]
Ranking = list[tuple[str, Result]]


@dataclass(frozen=True)
class Trial:
    """One training of one mask."""

    mask: str
    task: str
    size: str
    seed: int
    steps: int

    def config(self) -> Config:
        preset, settings = SIZES[self.size]
        settings = {**settings, "task": self.task, "mask": self.mask, "seed": self.seed, "queries": QUERIES}
        settings |= {"loss": "all" if on_context(self.mask) else "query", "threads": 1, "linear": "torch"}
        return Config.make(preset, steps=self.steps, warmup=min(100, max(1, self.steps // 10)), keep=(), **settings)

    def training(self) -> Training:
        config = self.config()
        return Training(config, Devices(config.machine, config.train.batch_size))


@lru_cache(maxsize=8192)
def on_context(mask: str) -> bool:
    """Whether a mask's context predictions are trained on: they hear other labels, and not their own, at any depth."""
    if of_class(mask):
        number, copies = kinds.parse(mask)
        no_leak, informed, _ = kinds.context_hears(numpy.array([number]), copies)
        return bool(no_leak[0] and informed[0])
    found = certificates(mask)
    return found["no_leak"] and found["informed"]


def of_class(mask: str) -> bool:
    """Whether a mask is named by its kinds, and is the same in all layers."""
    return mask.startswith(tuple(f"{word}:" for word in kinds.WORDS)) and "/" not in mask


def certificates(mask: str) -> dict[str, bool]:
    """What a mask guarantees: by its kinds if it is of the class, else by its graph on tokens."""
    if of_class(mask):
        number, copies = kinds.parse(mask)
        certified = kinds.certify(numpy.array([number]), copies)
        return {"invariant": True, **{name: bool(value[0]) for name, value in certified._asdict().items()}}
    found = symbolic(layout(mask, 4, 1, layers=DEPTH), DEPTH)
    return {
        "invariant": not found.swaps,
        "no_leak": not found.depends.leaks,
        "informed": found.depends.informed,
        "interdependent": not found.independent,
        "paired": not found.unpaired,
    }


def train(trial: Trial) -> Result:
    """Train and measure: the errors at the training length and at 2.5 times it."""
    training = trial.training()
    try:
        for _ in range(trial.steps):
            training.update()
        training.check_loss()
    except (Failure, RuntimeError) as failure:
        return {"failed": " ".join(str(failure).split())}
    return {"error": measure(training)}


def measure(training: Training) -> dict[str, float]:
    """{length: error} at the training length and at 2.5 times it."""
    config, n = training.config, training.config.data.examples
    lengths = (n, int(2.5 * n))
    training.model.eval()
    p = config.task.sample(ASKED, lengths[-1] + 1, (7,))
    errors = (answers(training.model, p.xs, p.ys, p.queries, lengths) - p.targets[:, list(lengths)]).square()
    means = errors.double().mean(0) / config.task.normaliser
    return {str(length): float(f"{error:.5g}") for length, error in zip(lengths, means.tolist(), strict=True)}


def score(result: Result) -> float:
    """The lower the better: the mean logarithm of the two errors; infinite for a run that failed or exploded."""
    errors = result.get("error", {}).values()
    return sum(math.log(max(e, 1e-12)) for e in errors) / 2 if errors and all(map(math.isfinite, errors)) else math.inf


def step_seconds(masks: Iterable[str], task: str, size: str, seed: int) -> dict[str, float]:
    """{mask: seconds in a step}, the masks taking turns."""
    # The same prompt lengths for all: those are functions of seed and step.
    seconds = time_updates({m: Trial(m, task, size, seed, 1000).training() for m in masks}, TIMED, WARM)
    return {mask: statistics.median(times) for mask, times in seconds.items()}


def read_json(file: Path, whole: Callable[[Any], bool]) -> Any:
    """What a race wrote, if it is `whole`."""
    try:
        kept = json.loads(file.read_text(encoding="utf-8"))
        if whole(kept):
            return kept
    except (OSError, ValueError, KeyError, TypeError, AttributeError, IndexError):
        pass
    raise InputError(f"{file.name}: got {file}, allowed: what minicl search wrote; delete it to have it made anew")


class Contest:
    """A race in a folder: the log of its results, and the processes that train."""

    def __init__(self, out: str | Path, jobs: int):
        self.out, self.jobs, self.results, self.offsets = Path(out), jobs, {}, {}
        self.read()

    def read(self) -> None:
        """The results that were written here since the last look. A line that is cut off is as good as none."""
        for file in sorted(self.out.glob("results-*.jsonl")):
            with file.open("rb") as log:
                log.seek(self.offsets.get(file, 0))
                new = log.read()
            whole = new[: new.rfind(b"\n") + 1]
            self.offsets[file] = self.offsets.get(file, 0) + len(whole)
            for line in whole.splitlines():
                try:
                    kept = json.loads(line)
                    score(kept["result"])
                    self.results[Trial(**kept["trial"])] = kept["result"]
                except (ValueError, KeyError, TypeError, AttributeError) as error:
                    raise InputError(f"results: got {file}: {error}, allowed: lines that minicl wrote") from error

    def hold(self, trials: Sequence[Trial], begin: Progress) -> dict[str, Result]:
        """{mask: result} of all trials, those that are missing trained by processes side by side."""
        missing = [trial for trial in trials if trial not in self.results]
        begin.skip(len(trials) - len(missing))
        if missing:
            self._train(missing, begin)
        return {trial.mask: self.results[trial] for trial in trials}

    def _train(self, missing, begin):
        todo = self.out / "todo.json"
        todo.write_text(json.dumps([asdict(trial) for trial in missing]))
        count, before, told = min(self.jobs, len(missing)), len(self.results), 0
        started = [children.start(work, str(self.out), str(i), str(count), log=self.out / f"{i}.log")
                   for i in range(count)]  # fmt: skip
        try:
            while any(process.poll() is None for process in started):
                time.sleep(0.5)
                self.read()
                while told < len(self.results) - before:
                    told += 1
                    begin(f"{missing[0].size}, {len(missing)} masks to train")
        finally:
            children.stop(started)
        for i, process in enumerate(started):
            if process.returncode:
                raise InputError(children.complaint(process, self.out / f"{i}.log"))
        self.read()

    def clock(self, masks: Iterable[str], task: str, size: str, seed: int) -> dict[str, float]:
        """{mask: seconds of a step at this size}, measured once for each number of copies and each loss, and kept."""
        shapes = {mask: f"{get_strategy(mask).copies} {on_context(mask)}" for mask in masks}
        file = self.out / f"clock-{size}.json"
        known = read_json(file, lambda kept: all(value > 0 for value in kept.values())) if file.exists() else {}
        new = {shape: mask for mask, shape in shapes.items() if shape not in known}
        if new:
            timed = step_seconds(new.values(), task, size, seed)
            known |= {shape: timed[mask] for shape, mask in new.items()}
            write_atomically(file, json.dumps(known).encode())
        return {mask: known[shape] for mask, shape in shapes.items()}

    def settle(self, given: dict[str, Any]) -> None:
        """Keep the settings of the race, and refuse others: its results would not be comparable, or not be used."""
        file, given = self.out / "race.json", json.loads(json.dumps(given))
        kept = read_json(file, lambda kept: kept.keys() == given.keys()) if file.exists() else given
        other = [name for name in given if kept[name] != given[name]]
        said = [f"{name} {given[name]}, where the race has {kept[name]}" for name in other]
        check(not other, "search", "; ".join(said), f"the settings in {file}, or another --out")
        write_atomically(file, json.dumps(given).encode())


def work(out: str, part: str, parts: str) -> None:
    """What a process of its own does: its share of the trials that are to do, one after the other."""
    torch.set_num_threads(1)
    trials = [Trial(**given) for given in json.loads(Path(out, "todo.json").read_text())]
    with Path(out, f"results-{part}.jsonl").open("a+b") as log:
        log.seek(0)
        log.truncate(log.read().rfind(b"\n") + 1)  # a last line that was cut off
        for trial in trials[int(part) :: int(parts)]:
            log.write(json.dumps({"trial": asdict(trial), "result": train(trial)}).encode() + b"\n")
            log.flush()


def _have(certified, need):
    """Which masks have all that is needed. All of the class are invariant."""
    return numpy.logical_and.reduce([getattr(certified, what) for what in need if what != "invariant"] or [True])


def entrants(need: Sequence[str], copies: Sequence[int]) -> list[str]:
    """Who starts: all masks of one copy, and all with two that are leak-free and informed; with what is needed."""
    names = []
    for count in copies:
        masks = numpy.arange(1 << len(kinds.choices(count)))
        certified = kinds.certify_all(count)
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


def staged(best: Sequence[str], need: Sequence[str]) -> list[str]:
    """Masks that change with depth: each of the best in the first half of the layers, another one in the rest."""
    pairs = [(a, b) for a, b in permutations(best, 2) if kinds.parse(a)[1] == kinds.parse(b)[1]]
    names = [f"{a}/{DEPTH // 2}/{b}" for a, b in pairs]
    return [name for name in names if all(certificates(name)[what] for what in need)]


def rounds(masks: int) -> list[tuple[str, int]]:
    """[(size, masks that are kept)]: a third each time, until the finalists are left; the models grow on the way."""
    kept = []
    while masks > FINALISTS or not kept:
        masks = min(masks, max(FINALISTS, round(masks / 3)))
        kept.append(masks)
    sizes = ["small" if i == len(kept) - 1 else "scout" if i < len(kept) // 2 else "tiny" for i in range(len(kept))]
    return list(zip(sizes, kept, strict=True))


def go_on(ranking: Ranking, kept: int, seed: int) -> list[str]:
    """Who is in the next round: the best, and a few of the others."""
    names = [mask for mask, _ in ranking]
    others = names[kept:]
    return names[:kept] + random.Random(seed).sample(others, min(CARRIED, len(others)))


def race(
    out: str | Path,
    task: str = "linear",
    budget: float | None = None,
    jobs: int = 2,
    seed: int = 0,
    need: Sequence[str] = (),
    steps: int | None = None,
    copies: Sequence[int] = (1, 2),
) -> list[Ranking]:
    """All rounds, each as a ranking [(mask, result)], the best first.

    A round's masks share their part of `budget` minutes of `jobs` processes, so that a race may go on with fewer
    processes for longer; or each takes `steps` steps, twice as many in the second round, and so on.
    """
    names = entrants(need, copies)
    check(names, "need", ",".join(need), "properties that some mask of the class has")
    extra = round(GUIDED / (1 - GUIDED) * len(names) / GENERATIONS) if 2 in copies else 0
    first = len(names) + extra * GENERATIONS
    plan = rounds(first)
    carried = CARRIED * (len(plan) > 1)
    sizes = [first, *(kept + carried for _, kept in plan[:-1])]
    sizes[-1] += STAGED * (STAGED - 1) * (len(plan) > 1)
    Path(out).mkdir(parents=True, exist_ok=True)
    contest, rankings, seen = Contest(out, jobs), [], set(names)
    minutes = None if steps else budget * jobs
    given = {"task": task, "budget times jobs": minutes, "seed": seed, "need": need, "steps": steps, "copies": copies}
    contest.settle(given | {"sizes": SIZES, "queries": QUERIES, "prompts": ASKED})
    seconds = [] if steps else _shares(60 * minutes, sizes)
    if not steps:  # every shape is timed at every size before anything is trained
        shapes = names + (strangers(extra, [], set(names), seed, need) if extra else [])
        slowest = [max(contest.clock(shapes, task, size, seed).values()) for size, _ in plan]
        enough = math.ceil(budget * max(LEAST * slow / each for slow, each in zip(slowest, seconds, strict=True)))
        allowed = f"at least {enough} for {first} masks on this machine"
        check(budget >= enough, "budget", f"{budget:g} minutes", allowed)
    with Progress(sum(sizes)) as begin:
        for i, (size, kept) in enumerate(plan):

            def held(masks, size=size, i=i):
                clock = {} if steps else contest.clock(masks, task, size, seed)
                count = {m: steps * (1 + i) if steps else round(seconds[i] / clock[m]) for m in masks}
                results = contest.hold([Trial(m, task, size, seed, count[m]) for m in masks], begin)
                return {m: results[m] | {"steps": count[m], "step_seconds": clock.get(m)} for m in masks}

            if 0 < i == len(plan) - 1:
                names += staged(names[:STAGED], need)
            results, known = held(names), set(names)
            for generation in range(GENERATIONS if extra and i == 0 else 0):
                others = sorted((m for m in results if m not in known), key=lambda m, r=results: score(r[m]))
                results |= held(strangers(extra, others[:PARENTS], seen, seed + generation, need))
            rankings.append(sorted(results.items(), key=lambda item: score(item[1])))
            names = go_on(rankings[-1], kept, seed + i)
    return rankings


def _shares(seconds, sizes):
    """Of all seconds of the race, those of each mask in each round."""
    weights = [1.0] * len(sizes)
    weights[0] *= FIRST
    weights[-1] *= LAST
    return [seconds * weight / sum(weights) / size for weight, size in zip(weights, sizes, strict=True)]


def agreement(rankings: Sequence[Ranking]) -> list[float | None]:
    """For each round but the last, the rank correlation of its scores with those of the last; None if it has none.

    Only masks that are in both rounds count: those that went on, and the few that were carried along.
    """
    last = {mask: score(result) for mask, result in rankings[-1]}
    found = []
    for ranking in rankings[:-1]:
        scores = {mask: score(result) for mask, result in ranking}
        shared = [m for m in last if m in scores and math.isfinite(last[m]) and math.isfinite(scores[m])]
        pairs = [(scores[mask], last[mask]) for mask in shared]
        correlation = rank_correlation(*zip(*pairs, strict=True)) if len(pairs) > 2 else math.nan
        found.append(correlation if math.isfinite(correlation) else None)
    return found
