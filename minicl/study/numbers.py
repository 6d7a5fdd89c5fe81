"""The study's numbers: what is measured on a run, and the files that keep it.

A file says what its numbers depend on. It is read wherever that is the same with today's defaults, so a new setting
with a default changes nothing. Once the numbers are there, the run folder is no longer needed: pictures and verdicts
are made from these files only.
"""

import re
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, TextIO

from minicl import checkpoint, order, probe, runs, stats
from minicl.checks import InputError, check
from minicl.config import Config
from minicl.devices import auto_device
from minicl.evaluation import Evaluation
from minicl.plugins import short
from minicl.selection import usual_length
from minicl.store import WHOLE, Store, digest, slug
from minicl.study.plan import ALL, SCALES, SHIFTS, SHOWN, Run, Scale

Numbers = dict[str, Any]
RESAMPLES_KEPT = 200  # resampled means that are kept of every curve, at three lengths, to compare curves by
ORDERED = 256  # prompts that order sensitivity is measured on
TIMED = tuple(mask for mask in ALL if mask != "deepset")
KEPT = {"order": "order", "normed_probes": "probes", "window": "window"}  # measure → what a run's numbers call it


def digits(value: Any) -> Any:
    """Numbers to five significant digits, which is more than any of them is known to."""
    if isinstance(value, dict):
        return {k: digits(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [digits(v) for v in value]
    return float(f"{value:.5g}") if isinstance(value, float) else value


class Shelf:
    """The numbers of a scale: a file for each run, and some for what needs no run."""

    def __init__(self, out: str | Path, folder: str | Path, scale: str):
        self.out, self.folder, self.scale = Path(out), Path(folder), SCALES[scale]
        self.store = Store(self.out / "numbers")

    def prepare(self) -> None:
        """Make the folders, and refuse those that cannot be written to before hours are spent."""
        for name, folder in {"out": self.store.folder, "runs": self.folder}.items():
            checkpoint.make_folder(name, folder)

    @staticmethod
    def name(run: Run) -> str:
        return f"{run.task} {short(run.name)} {run.seed}"

    def depends_on(self, run: Run) -> dict[str, Any]:
        """What a run's numbers depend on."""
        measured = {"prompts": self.scale.prompts, "probed": self.scale.probed, "measures": sorted(run.measures)}
        measured |= {"shifts": list(SHIFTS), "ordered": ORDERED, "resamples_kept": RESAMPLES_KEPT}
        measured |= {"lengths": list(self.scale.lengths)} if self.scale.lengths else {}
        return {"config": run.config.to_json(), "measured": stats.basis() | measured}

    def read(self, run: Run) -> Numbers | None:
        """A run's numbers, or None; a file that is not whole is refused, not replaced."""
        mine = self.depends_on(run)["measured"]

        def same(other):
            theirs = other["measured"]
            enough = run.measures <= set(theirs["measures"])
            as_measured = {**theirs, "measures": None} == {**mine, "measures": None}
            return enough and as_measured and not run.config.differences(other["config"])

        numbers = self.store.find(self.name(run), same)
        if numbers is not None:
            try:
                late = any(r["step"] == run.late for r in numbers["curves"])
                whole = late and {"training", "seconds", *(KEPT[m] for m in run.measures if m in KEPT)} <= set(numbers)
            except (KeyError, TypeError):
                whole = False
            check(whole, "numbers", f"{self.store.folder}, {run}", WHOLE)
        return numbers

    def seeds(self, task: str, name: str) -> int:
        """The number of seeds of which numbers were ever kept here."""
        pattern = re.compile(re.escape(slug(f"{task} {short(name)}")) + r"-(\d+)-[0-9a-f]{8}\.json")
        matches = (pattern.fullmatch(f.name) for f in self.store.folder.glob("*.json"))
        return 1 + max((int(m[1]) for m in matches if m), default=-1)

    def training(self, run: Run) -> Path:
        """The run's folder: one that was begun with the same settings, else a new one."""
        name = slug(self.name(run))
        for file in sorted(self.folder.glob(f"{name}-{8 * '[0-9a-f]'}/config.json")):
            if not run.config.differences(runs.read_settings(file.parent)):
                return file.parent
        return self.folder / f"{name}-{digest({k: v for k, v in run.config.to_json().items() if k != 'machine'})}"

    def log(self, run: Run) -> Path:
        return self.training(run).with_suffix(".log")

    def take(self, run: Run) -> TextIO | None:
        """The run's lock, held until it is closed or its process ends, however; None if another worker holds it."""
        return runs.take(self.training(run).with_suffix(".lock"))

    def step(self, run: Run) -> int:
        """How far the run's training is."""
        return next(iter(checkpoint.checkpoints(self.training(run))), 0)

    def write(self, run: Run, numbers: Numbers) -> None:
        self.store.write(self.name(run), self.depends_on(run), digits(numbers))

    def keep(self, name: str, depends_on: Any, compute: Callable[[], Any]) -> Any:
        """Numbers that need no run: read if they are there, else computed and kept."""
        return self.store.get(name, depends_on, lambda: digits(compute()))

    def costs(self, compute: Callable[[], Any] | None = None) -> Any:
        """What a forward pass costs under each mask, measured once on any machine; or None."""
        given = {"version": stats.VERSION, "sizes": self.scale.inference, "masks": list(TIMED)}
        if compute is None:
            return self.store.find("inference", lambda other: other == given)
        return self.keep("inference", given, compute)


def lengths_of(scale: Scale, config: Config) -> tuple[int, ...] | None:
    """The numbers of examples that curves are measured at; None: all. Those that rules ask about are among them."""
    if not scale.lengths:
        return None
    n, last = config.data.examples, usual_length(config)
    return tuple(sorted({0, n // 4, n, last} | {length for length in scale.lengths if length <= last}))


def work(scale: str, out: str, folder: str, task: str, name: str, seed: str) -> None:
    """What a process of its own does for one run: train it, measure it, keep the numbers."""
    from minicl.study.figures import make_run
    from minicl.training import train_run

    shelf = Shelf(out, folder, scale)
    run = make_run(shelf.scale, task, name, int(seed))
    trained = shelf.training(run)
    train_run(run.config, trained)
    numbers = measure(run, shelf.scale, trained)
    if (task, run.seed) == ("linear", 0) and name in SHOWN:
        runs.export(trained, shelf.out / "models" / name)
    shelf.write(run, numbers)


def measure(run: Run, scale: Scale, folder: Path) -> Numbers:
    """Everything that any figure needs of a run."""
    start, config, n = time.perf_counter(), run.config, run.config.data.examples
    last = usual_length(config)

    def curves(steps, shifts, window=None):
        settings = {"checkpoints": tuple(sorted(steps)), "baselines": "none", "prompts": scale.prompts}
        settings["lengths"] = lengths_of(scale, config)
        results = Evaluation(folder, shifts, window=window, **settings).results()
        if len(results) < len(steps) * len(shifts):
            raise InputError(f"{folder}: one of its checkpoints cannot be measured; move the folder away to train anew")
        return [_light(record, errors, (n // 4, n, record["lengths"][-1])) for record, errors in results]

    kept = {run.early, *config.train.keep} if "steps" in run.measures else {run.early}
    numbers = {"curves": curves({run.late} | kept, ("none",))}
    if "shifts" in run.measures:
        numbers["curves"] += curves({run.early, run.late}, SHIFTS)
    if "order" in run.measures:
        model = runs.load(folder, device=auto_device())
        numbers["order"] = order.sensitivity(model, config.task, n, min(ORDERED, scale.prompts))
    if "window" in run.measures:
        numbers["window"] = curves({run.late}, ("none",), window=n)
    if "normed_probes" in run.measures:
        lengths = sorted({n // 4, n // 2, n, (n + last) // 2, last})
        numbers["probes"] = probe.of_run(folder, lengths, prompts=scale.probed)
    metrics, timing = (runs.read_lines(folder / name) for name in runs.LOGS)
    numbers["training"] = [m | {"seconds": t["seconds"]} for m, t in zip(metrics, timing, strict=True)]
    numbers["seconds"] = timing[-1]["seconds"] + time.perf_counter() - start
    for record in (*numbers["curves"], *numbers.get("probes", ()), *numbers.get("window", ())):
        record["run"] = str(run)  # the folder's name says nothing to a reader
    return numbers


def _light(record, errors, lengths):
    """A curve's record with what comparisons need: resampled means at some of its lengths."""
    at = [record["lengths"].index(n) for n in lengths]
    means = stats.resample(errors[:, at])[:RESAMPLES_KEPT]
    return record | {"resampled": {str(n): means[:, i].tolist() for i, n in enumerate(lengths)}}
