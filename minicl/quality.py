"""The race to quality: how long preset `small` and the recipe of 2022 train until the error is low."""

import json
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from minicl import checkpoint, children, evaluation, runs
from minicl.checks import InputError, check
from minicl.plugins import short
from minicl.text import columns

# The recipe of 2022 on the same model: Adam at a constant 1e-4, batch 64, GPT-2's initial scale, torch's own start of
# read-in and read-out, and its curriculum at a quarter, as everything else here: from a quarter of the dimensions, one
# more every 500 steps instead of every 2,000.
REFERENCE = {
    "optimizer": "adam", "batch_size": 64, "lr": 1e-4, "warmup": 0, "schedule": "constant", "clip": 0,
    "beta2": 0.999, "init_std": 0.02, "symmetric_std": 0.02, "read_start": "torch", "queries": 1,
    "lengths": "curriculum", "steps": 500_000, "curriculum_steps": 2_000, "keep": "",
}  # fmt: skip
RECIPES = {"recipe": {}, "reference": REFERENCE}


def compare(
    masks: Sequence[str], folder: str | Path, target: float = 0.05, minutes: float = 15.0, seeds: int = 1, **settings
) -> list[dict[str, Any]]:
    """One record per mask: seconds until an error at the training length, of preset `small` and of the recipe of 2022.

    Two runs train side by side at any time. The preset trains to its end, the other recipe until the target;
    each run for so many minutes at most. The runs are ordinary run folders below `folder`: asked again with more
    minutes, they go on where they stopped.
    """
    names = [short(mask) for mask in masks]
    check(len(set(names)) == len(names), "masks", ", ".join(masks), "masks with different names")
    try:
        Path(folder).mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(f"quality: got {folder}, allowed: a folder ({error.strerror})") from None
    _race(masks, folder, target, minutes, seeds, settings)
    return [{"mask": mask, "target": target, **outcome(folder, mask, target, seeds)} for mask in masks]


def _race(masks, folder, target, minutes, seeds, settings):
    """Two runs at a time, of whatever mask and recipe, so that each has as much of the machine as any other."""
    same = settings | {"threads": 1, "log_every": 25}
    waiting = [(mask, name, seed) for seed in range(seeds) for mask in masks for name in RECIPES]
    active = []
    try:
        while waiting or active:
            for lane in active[:]:
                if _is_over(*lane, target, minutes):
                    active.remove(lane)
                    children.stop([lane[1]])
            while waiting and len(active) < 2:
                mask, name, seed = waiting.pop(0)
                out = run_folder(folder, mask, f"{name}-{seed}")
                process = _start(out, same | RECIPES[name] | {"mask": mask, "seed": seed})
                active.append((out, process, time.monotonic(), name))
            time.sleep(0.5)
    finally:
        children.stop([process for _, process, _, _ in active])


def _is_over(out, process, began, name, target, minutes):
    """Whether a run need not go on. InputError if it could not."""
    if process.poll():
        raise InputError(children.complaint(process, out.with_suffix(".log")))
    reached = name == "reference" and _reached(_progress_of(out), target)[0] is not None
    return process.returncode is not None or reached or time.monotonic() - began > 60 * minutes


def run_folder(folder: str | Path, mask: str, name: str) -> Path:
    """Where one run of the race is."""
    return Path(folder, f"{short(mask)}-{name}".replace("/", "-"))  # a mask in two stages has a /


def _start(out, settings):
    """The process of one run."""
    given = [part for name, value in settings.items() for part in (f"--{name.replace('_', '-')}", str(value))]
    log = out.with_suffix(".log")
    return children.start(train_command, "--preset", "small", *given, "--out", str(out), log=log)


def train_command(*arguments: str) -> int:
    """`minicl train`, for a process of its own."""
    from minicl.cli import main

    return main(["train", *arguments])


def _progress_of(out):
    """[(seconds, error at the training length, step)] of a run, as far as it is."""
    try:
        timing, metrics = (runs.read_lines(out / name) for name in ("timing.jsonl", "metrics.jsonl"))
    except (OSError, json.JSONDecodeError):  # not there yet, or just being written
        return []
    pairs = zip(timing, metrics, strict=False)
    return [(t["seconds"], list(m["error"].values())[-1], m["step"]) for t, m in pairs]


def _reached(curve, target):
    """(seconds, steps) until the target, or two None."""
    return next(((seconds, step) for seconds, error, step in curve if error <= target), (None, None))


def outcome(folder: str | Path, mask: str, target: float, seeds: int) -> dict[str, Any]:
    """For both recipes each seed's curve, its seconds and steps until the target (None: not reached), and the ratio.

    The ratio is the worst one: the fastest seed of 2022 over the slowest of the preset. A seed of 2022 that was stopped
    before the target counts with the time that it was given, so that the ratio is at least that.
    """
    record = {}
    for name in RECIPES:
        curves = [_progress_of(run_folder(folder, mask, f"{name}-{seed}")) for seed in range(seeds)]
        record[f"{name}_curves"] = curves
        reached = [_reached(curve, target) for curve in curves]
        record[f"{name}_seconds"], record[f"{name}_steps"] = (list(column) for column in zip(*reached, strict=True))
        record[f"{name}_trained"] = [curve[-1][0] if curve else 0.0 for curve in curves]
        record[f"{name}_last"] = [curve[-1][1] if curve else None for curve in curves]
    own, given = record["recipe_seconds"], zip(record["reference_seconds"], record["reference_trained"], strict=True)
    fastest, at_least = min((trained if seconds is None else seconds, seconds is None) for seconds, trained in given)
    slowest = None if None in own else max(own)
    return {**record, "at_least": at_least, "ratio": fastest / slowest if slowest else None}


def table(records: list[dict[str, Any]]) -> str:
    """The race in words."""
    rows = [
        ["mask", "preset small, s (steps)", "recipe of 2022, s (steps)", "ratio", "last error of the preset", "of 2022"]
    ]
    for r in records:
        cells = []
        for name in RECIPES:
            seeds = zip(*(r[f"{name}_{what}"] for what in ("seconds", "steps", "trained")), strict=True)
            cells.append(", ".join(f"> {t:.0f}" if s is None else f"{s:.0f} ({steps:,})" for s, steps, t in seeds))
        cells.append("–" if r["ratio"] is None else f"{'≥ ' * r['at_least']}{r['ratio']:.1f}×")
        last = [", ".join("–" if e is None else f"{e:.3g}" for e in r[f"{name}_last"]) for name in RECIPES]
        rows.append([short(r["mask"]), *cells, *last])
    target = f"training time until error {records[0]['target']:g} at the training length, each seed"
    return "\n".join(
        [f"{target}; the ratio is that of the fastest of 2022 to the slowest of the preset", *columns(rows)]
    )


def curves(masks: Sequence[str], folder: str | Path, seeds: int) -> list[dict[str, Any]]:
    """Records of error against examples, of the preset's runs that are finished."""
    folders = [run_folder(folder, mask, f"recipe-{seed}") for mask in masks for seed in range(seeds)]
    saved = {run: max(checkpoint.checkpoints(run), default=0) for run in folders}
    finished = [run for run, step in saved.items() if step and step == runs.read_settings(run)["train"]["steps"]]
    check(finished, "plot", "no seed that has finished", "more --minutes: the same command goes on")
    return evaluation.evaluate(finished)
