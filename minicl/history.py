"""`minicl evaluate --training`: how the error fell while runs were trained. It is read from metrics.jsonl: no model is.

The errors are those of the validation prompts, which all runs of a task with the same settings share.
"""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from minicl import plugins, runs
from minicl.checks import InputError, check
from minicl.evaluation import each_once, kind_of
from minicl.text import columns, duration


def of_runs(folders: Sequence[str | Path], trust: bool = False) -> list[dict[str, Any]]:
    """A record for every run: the lines of its metrics.jsonl, and the seconds that its updates took."""
    configs = {folder: runs.read_config(folder, trust) for folder in each_once(folders)}
    names, records = _names(configs), []
    for folder, config in configs.items():
        lines = _read(Path(folder, "metrics.jsonl"), ("step", "loss", "lr", "error"))
        check(lines, f"{folder}/metrics.jsonl", "no lines", "at least one: this run has not begun")
        seconds = {time["step"]: time["seconds"] for time in _read(Path(folder, "timing.jsonl"), ("step", "seconds"))}
        about = {"run": folder, "task": plugins.short(config.task.name), "method": names[folder]}
        about |= {"train_seed": config.train.seed, "trained_on": config.data.examples, "steps": config.train.steps}
        records.append(about | {"seconds": seconds.get(lines[-1]["step"]), "lines": lines})
    return records


def _names(configs):
    """{run: its method's name}, with a folder's name where runs of a method differ in more than their seed."""
    kinds = {}  # of each method, the kinds of runs, each with its first folder
    for folder, config in configs.items():
        kinds.setdefault((config.task.name, config.method), {}).setdefault(kind_of(config), folder)
    names = {}
    for folder, config in configs.items():
        mine = kinds[config.task.name, config.method]
        more = f", {Path(mine[kind_of(config)]).resolve().name}" if len(mine) > 1 else ""
        names[folder] = config.method + more
    return names


def _read(file, names):
    """The whole lines of a log, which may still be written to."""
    text = file.read_text(encoding="utf-8", errors="replace") if file.exists() else ""
    try:
        lines = [json.loads(line) for line in text[: text.rfind("\n") + 1].splitlines()]
        return [{name: line[name] for name in names} for line in lines]
    except (ValueError, KeyError, TypeError) as error:
        raise InputError(f"{file}: it is damaged: {error!r}") from error


def table(records: Sequence[dict[str, Any]]) -> str:
    lengths = sorted({int(n) for r in records for n in r["lines"][-1]["error"]})
    rows = [["", "steps", "loss", *(f"error@{n}" for n in lengths), "training took"]]
    for r in records:
        last = r["lines"][-1]
        errors = [_number(last["error"].get(str(n))) for n in lengths]
        took = "–" if r["seconds"] is None else duration(r["seconds"])
        rows.append(
            [f"{r['method']} ({r['run']})", f"{last['step']}/{r['steps']}", _number(last["loss"]), *errors, took]
        )
    what = "at the end of training, or so far: errors with so many examples, on the validation prompts"
    return "\n".join([what, *columns(rows), "an error of 1 is that of answering 0"])


def _number(value):
    return "–" if value is None else f"{value:.3g}"
