"""The study's numbers: what is measured on a run, and the files that keep it.

A run's file is named by everything that produced its numbers. Once they are there, the run folder is no longer needed:
pictures and verdicts are made from these files alone.
"""

import hashlib
import json
import re
import time
from pathlib import Path

from minicl import checkpoint, order, probe, study
from minicl.errors import InputError, check
from minicl.evaluate import VERSION, Evaluation, longest, resample
from minicl.masks import short
from minicl.model import auto_device

WHOLE = "a whole file: restore it, or delete it to have it measured anew"
KEPT = 200  # resampled means that are kept of every curve, at two lengths, to compare curves by
ORDERED = 256  # prompts that order sensitivity is measured on


def slug(text):
    return re.sub(r"[^a-z0-9]+", "-", text.lower().replace("×", "x")).strip("-")


def digest(*what):
    """A short hash of what a result depends on."""
    return hashlib.sha256(json.dumps(what, sort_keys=True, default=repr).encode()).hexdigest()[:8]


def digits(value):
    """Numbers to five significant digits, which is more than any of them is known to."""
    if isinstance(value, dict):
        return {k: digits(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [digits(v) for v in value]
    return float(f"{value:.5g}") if isinstance(value, float) else value


class Shelf:
    """The numbers of a scale: a file for each run, and some for what needs no run."""

    def __init__(self, out, runs, scale):
        self.out, self.folder, self.scale = Path(out), Path(runs), study.SCALES[scale]

    def prepare(self):
        """Make the folders, and refuse those that cannot be written to before hours are spent."""
        for name, folder in {"out": self.out / "numbers", "runs": self.folder}.items():
            try:
                folder.mkdir(parents=True, exist_ok=True)
                checkpoint.write_atomically(folder / ".try", b"")
                (folder / ".try").unlink()
            except OSError as error:
                raise InputError(f"{name}: got {folder}: {error.strerror}, allowed: a folder to write to") from error

    def file(self, run):
        """Where its numbers are: named by its settings and by what is measured."""
        measured = (VERSION, self.scale.prompts, self.scale.probed, sorted(run.measures))
        return self.out / "numbers" / f"{self._name(run)}-{digest(_settings(run), measured)}.json"

    def training(self, run):
        """The run's folder: named by its settings alone, so that measuring more does not train again."""
        return self.folder / f"{self._name(run)}-{digest(_settings(run))}"

    def log(self, run):
        return self.training(run).with_suffix(".log")

    @staticmethod
    def _name(run):
        return f"{slug(f'{run.task} {short(run.name)}')}-{run.seed}"

    def read(self, run):
        """A run's numbers, or None; a file that is not whole is refused, not replaced."""
        found = _read(self.file(run))
        if found is None:
            return None
        try:
            late = any(r["step"] == run.late for r in found["curves"])
            whole = late and {"training", "seconds", *(run.measures & {"order", "probes"})} <= set(found)
        except (KeyError, TypeError):
            whole = False
        check(whole, "numbers", self.file(run), WHOLE)
        return found

    def seeds(self, task, name):
        """How many seeds of it were ever measured here."""
        pattern = re.compile(re.escape(slug(f"{task} {short(name)}")) + r"-(\d+)-[0-9a-f]{8}\.json")
        found = (pattern.fullmatch(f.name) for f in (self.out / "numbers").glob("*.json"))
        return 1 + max((int(m[1]) for m in found if m), default=-1)

    def step(self, run):
        """How far the run's training is."""
        return next(iter(checkpoint.checkpoints(self.training(run))), 0)

    def write(self, run, numbers):
        _write(self.file(run), digits(numbers))

    def other(self, name, *what, compute=None):
        """Numbers that need no run but depend on `what`: read if there, else computed and saved; or None."""
        file = self.out / "numbers" / f"{slug(name)}-{digest(VERSION, *what)}.json"
        found = _read(file)
        if not found and compute is not None:
            found = digits(compute())
            _write(file, found)
        return found

    def costs(self, compute=None):
        """What a forward pass costs under the paper's masks (figure 9), or None."""
        return self.other("inference", self.scale.inference, compute=compute)


def _settings(run):
    return {k: v for k, v in run.config.to_json().items() if k != "machine"}


def _read(file):
    try:
        return json.loads(file.read_text(encoding="utf-8"))
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (OSError, ValueError) as error:
        raise InputError(f"numbers: got {file}: {error}, allowed: {WHOLE}") from error


def _write(file, numbers):
    file.parent.mkdir(parents=True, exist_ok=True)
    checkpoint.write_atomically(file, json.dumps(numbers).encode())


def work(scale, out, runs, task, name, seed):
    """What a process of its own does for one run: train it, measure it, keep the numbers."""
    from minicl.train import train

    shelf = Shelf(out, runs, scale)
    run = study.make_run(shelf.scale, task, name, int(seed))
    folder = shelf.training(run)
    train(run.config, folder)
    numbers = measure(run, shelf.scale, folder)
    if (task, run.seed) == ("linear", 0) and name in study.SHOWN:
        checkpoint.export(folder, shelf.out / "models" / name)
    shelf.write(run, numbers)


def measure(run, scale, folder):
    """Everything that any figure needs of a run."""
    start, config, n = time.perf_counter(), run.config, run.config.data.examples
    last = longest(config)

    def curves(steps, shifts):
        found = Evaluation([folder], shifts, which=tuple(sorted(steps)), baselines=(), prompts=scale.prompts).results()
        if len(found) < len(steps) * len(shifts):
            raise InputError(f"{folder}: one of its checkpoints cannot be measured; move the folder away to train anew")
        return [_light(record, errors, (n, record["lengths"][-1])) for record, errors in found]

    kept = {run.early, *config.train.keep} if "steps" in run.measures else {run.early}
    numbers = {"config": config.to_json(), "curves": curves({run.late} | kept, ("none",))}
    if "shifts" in run.measures:
        numbers["curves"] += curves({run.early, run.late}, study.SHIFTS)
    if "order" in run.measures:
        model = checkpoint.load(folder, device=auto_device())
        numbers["order"] = order.sensitivity(model, config.task, n, min(ORDERED, scale.prompts))
    if "probes" in run.measures:
        lengths = sorted({n // 4, n // 2, n, (n + last) // 2, last})
        numbers["probes"] = probe.of_run(folder, lengths, prompts=scale.probed)
    lines = [
        [json.loads(line) for line in (folder / name).read_text(encoding="utf-8").splitlines()]
        for name in ("metrics.jsonl", "timing.jsonl")
    ]
    numbers["training"] = [m | {"seconds": t["seconds"]} for m, t in zip(*lines, strict=True)]
    numbers["seconds"] = lines[1][-1]["seconds"] + time.perf_counter() - start
    for record in (*numbers["curves"], *numbers.get("probes", ())):
        record["run"] = str(run)  # the folder's name says nothing to a reader
    return numbers


def _light(record, errors, lengths):
    """A curve's record with what comparisons need: resampled means at some of its lengths."""
    at = [record["lengths"].index(n) for n in lengths]
    means = resample(errors[:, at])[:KEPT]
    return record | {"resampled": {str(n): means[:, i].tolist() for i, n in enumerate(lengths)}}
