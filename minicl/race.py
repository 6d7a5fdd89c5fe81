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

# The recipe of 2022 on the same model: Adam at a constant 1e-4, batch 64, GPT-2's initial scale, and its curriculum at
# a quarter, as everything else here: from a quarter of the dimensions, one more every 500 steps instead of every 2,000.
REFERENCE = {
    "optimizer": "adam", "batch_size": 64, "lr": 1e-4, "warmup": 0, "schedule": "constant", "clip": 0,
    "beta2": 0.999, "init_std": 0.02, "symmetric_std": 0.02, "queries": 1,
    "lengths": "curriculum", "steps": 500_000, "curriculum_steps": 2_000, "keep": "",
}  # fmt: skip


def quality(
    masks: Sequence[str], folder: str | Path, target: float = 0.05, minutes: float = 15.0, seeds: int = 1, **settings
) -> list[dict[str, Any]]:
    """One record per mask: seconds until an error at the training length, of preset `small` and of the recipe of 2022.

    Each mask gets so many minutes. Seeds of the preset train one after the other, beside the other recipe. The runs are
    ordinary run folders below `folder`: asked again with more minutes, they go on where they stopped.
    """
    names = [short(mask) for mask in masks]
    check(len(set(names)) == len(names), "masks", ", ".join(masks), "masks with different names")
    try:
        Path(folder).mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(f"quality: got {folder}, allowed: a folder ({error.strerror})") from None
    for mask in masks:
        _race(mask, folder, target, minutes, seeds, settings)
    return [{"mask": mask, "target": target, **outcome(folder, mask, target, seeds)} for mask in masks]


def _race(mask, folder, target, minutes, seeds, settings):
    same = settings | {"mask": mask, "threads": 1, "log_every": 25}
    reference = run_folder(folder, mask, "reference")
    slow = _start(reference, same | REFERENCE | {"seed": 0})
    waiting, started = list(range(seeds)), []
    end = time.monotonic() + 60 * minutes
    try:
        while time.monotonic() < end:
            if waiting and (not started or _ended(started[-1])):
                seed = waiting.pop(0)
                started.append(_start(run_folder(folder, mask, f"recipe-{seed}"), same | {"seed": seed}))
            recipe_ended, reference_ended = _ended(started[-1]), _ended(slow)
            reached = _reached(_progress_of(reference), target) is not None
            if recipe_ended and not waiting and (reference_ended or reached):
                break
            time.sleep(0.5)
    finally:
        children.stop([slow[0], *(process for process, _ in started)])


def run_folder(folder: str | Path, mask: str, name: str) -> Path:
    """Where one run of the race is."""
    return Path(folder, f"{short(mask)}-{name}")


def _start(out, settings):
    """(process, its log file) of one run."""
    given = [part for name, value in settings.items() for part in (f"--{name.replace('_', '-')}", str(value))]
    log = out.with_suffix(".log")
    return children.start(train_command, "--preset", "small", *given, "--out", str(out), log=log), log


def train_command(*arguments: str) -> int:
    """`minicl train`, for a process of its own."""
    from minicl.cli import main

    return main(["train", *arguments])


def _ended(run):
    """Whether a run has ended; InputError if it could not go on."""
    process, log = run
    if process.poll():
        raise InputError(children.complaint(process, log))
    return process.returncode is not None


def _progress_of(out):
    """[(seconds, error at the training length)] of a run, as far as it is."""
    try:
        timing, metrics = (runs.read_lines(out / name) for name in ("timing.jsonl", "metrics.jsonl"))
    except (OSError, json.JSONDecodeError):  # not there yet, or just being written
        return []
    return [(t["seconds"], list(m["error"].values())[-1]) for t, m in zip(timing, metrics, strict=False)]


def _reached(curve, target):
    """Seconds until the target, or None."""
    return next((seconds for seconds, error in curve if error <= target), None)


def outcome(folder: str | Path, mask: str, target: float, seeds: int) -> dict[str, Any]:
    """Seconds until the target for both recipes (None: not reached), and the ratio, or what it is at least."""
    curves = [_progress_of(run_folder(folder, mask, f"recipe-{seed}")) for seed in range(seeds)]
    reference = _progress_of(run_folder(folder, mask, "reference"))
    recipe, rival = [_reached(curve, target) for curve in curves], _reached(reference, target)
    trained = reference[-1][0] if reference else 0.0
    slowest = None if None in recipe else max(recipe)
    return {
        "recipe_seconds": recipe,
        "recipe_trained": [curve[-1][0] if curve else 0.0 for curve in curves],
        "recipe_last": [curve[-1][1] if curve else None for curve in curves],
        "recipe_curves": curves,
        "reference_seconds": rival,
        "reference_trained": trained,
        "reference_best": min((error for _, error in reference), default=None),
        "reference_curve": reference,
        "at_least": rival is None,
        "ratio": (trained if rival is None else rival) / slowest if slowest else None,
    }


def quality_table(records: list[dict[str, Any]]) -> str:
    """The race in words."""
    rows = [["mask", "preset small", "recipe of 2022", "ratio", "last error of the preset", "least error of 2022"]]
    for r in records:
        own = ", ".join("–" if s is None else f"{s:.0f}" for s in r["recipe_seconds"])
        rival = r["reference_seconds"]
        rows.append(
            [
                short(r["mask"]),
                f"{own} s",
                f"not in {r['reference_trained']:.0f} s" if rival is None else f"{rival:.0f} s",
                "–" if r["ratio"] is None else f"{'≥ ' * r['at_least']}{r['ratio']:.1f}×",
                ", ".join("–" if e is None else f"{e:.3g}" for e in r["recipe_last"]),
                "–" if r["reference_best"] is None else f"{r['reference_best']:.3g}",
            ]
        )
    target = f"training time until error {records[0]['target']:g} at the training length"
    return "\n".join([f"{target}; the ratio is to the slowest seed", *columns(rows)])


def quality_curves(masks: Sequence[str], folder: str | Path, seeds: int) -> list[dict[str, Any]]:
    """Records of error against examples, of the preset's runs that are finished."""
    folders = [run_folder(folder, mask, f"recipe-{seed}") for mask in masks for seed in range(seeds)]
    saved = {run: max(checkpoint.checkpoints(run), default=0) for run in folders}
    finished = [run for run, step in saved.items() if step and step == runs.read_settings(run)["train"]["steps"]]
    check(finished, "plot", "no seed that has finished", "more --minutes: the same command goes on")
    return evaluation.evaluate(finished)
