"""Run folders: what is in one, who holds it, and the way from a folder to a model."""

import contextlib
import difflib
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any, TextIO

import torch
from torch import nn

from minicl import plugins
from minicl.checkpoint import checkpoints, newest, read, save, write_atomically
from minicl.checks import InputError
from minicl.config import CODE, Config
from minicl.deepset import make_model

LOGS = ("metrics.jsonl", "timing.jsonl")


def load(
    path: str | Path, step: int | None = None, device: str | torch.device = "cpu", trust: bool = False
) -> nn.Module:
    """The model of a run folder (its newest whole checkpoint, or the one of a step) or of one checkpoint file.

    A mask or a task of one's own is code: it runs if a run was trained with it here, or with `trust`.
    """
    return load_run(path, step, device, trust)[0]


def load_run(
    path: str | Path, step: int | None = None, device: str | torch.device = "cpu", trust: bool = False
) -> tuple[nn.Module, Config]:
    """As `load`: the model, and all that it was trained with."""
    from minicl.devices import find_device  # it needs this module itself

    path, device = Path(path), find_device(str(device))
    if path.is_dir():
        read_config(path, trust)
        steps = checkpoints(path)
        if step is not None and step not in steps:
            raise InputError(f"{path}: got step {step}, allowed: {', '.join(map(str, sorted(steps))) or 'none yet'}")
        state, folder = newest(path) if step is None else read(steps[step]), path
        if state is None:
            raise InputError(f"{path}: has no whole checkpoint yet")
    else:
        state, folder = read(path), path.absolute().parent.parent
    config = Config.from_json(state["config"], folder, trust)
    model = make_model(config.model)
    try:
        model.load_state_dict(state["model"])
    except (RuntimeError, TypeError, AttributeError) as error:
        raise InputError(f"{path}: its weights do not fit its own config") from error
    return model.to(device).eval(), config


def read_config(run: str | Path, trust: bool = False) -> Config:
    """The Config of a run folder."""
    return Config.from_json(read_settings(run), run, trust)


def read_settings(run: str | Path) -> Any:
    """What config.json says, without running any code."""
    run = Path(run)
    what = "it has no config.json"
    if not run.exists():
        beside = [file.parent.name for file in run.parent.glob("*/config.json")]
        near = difflib.get_close_matches(run.name, beside, n=1)
        what = "there is no such folder" + (f" (did you mean {run.parent / near[0]}?)" if near else "")
    return _read_json(run / "config.json", f"{run}: not a run folder: {what}")


def read_config_file(file: str | Path, trust: bool = False) -> Config:
    """The Config of one config.json, with the code of its own that lies beside it."""
    record = _read_json(file, f"{file}: there is no such file")
    try:
        return Config.from_json(record, Path(file).parent, trust)
    except InputError as error:
        raise InputError(f"{file}: {error}") from error


def _read_json(file, missing):
    try:
        return json.loads(Path(file).read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise InputError(missing) from None
    except (OSError, ValueError, RecursionError) as error:
        raise InputError(f"{file}: cannot be read: {error}") from error


@contextlib.contextmanager
def hold(config: Config, folder: Path) -> Iterator[None]:
    """Make or check a run folder for a config, and hold it for this process."""
    if folder.exists() and not folder.is_dir():
        raise InputError(f"out: got {folder}, which is a file, allowed: a folder")
    begun = (folder / "config.json").exists()
    if folder.exists() and not begun and any(not f.name.startswith(".") for f in folder.iterdir()):
        raise InputError(f"out: got {folder}, which is not empty and no run folder, allowed: a new folder or a run's")
    folder.mkdir(parents=True, exist_ok=True)
    with lock(folder):
        if not (folder / "config.json").exists():
            _write_settings(folder, config)
        stored = read_settings(folder)
        config = config.continuing(stored)
        before = config.before_extension(stored)
        rows = before.differences(stored)
        if rows:
            raise InputError(f"{folder} was started with other settings: {'; '.join(rows)}; give another --out")
        if before != config:
            _check_extension(folder, before.train.steps, config.train.steps)
            _write_settings(folder, config)
        for kind, path in config.code.items():
            _carry(Path(path), folder / CODE[kind])
        yield


def _write_settings(folder, config):
    write_atomically(folder / "config.json", json.dumps(config.to_json(), indent=1).encode())


def _check_extension(folder, steps, more):
    """Only what was trained to its end, and still has its optimiser, can be trained further."""
    state = newest(folder) or {"step": 0}
    if not state["step"] == state.get("logged") == steps:
        what = f"{folder} was started with other settings: steps {steps} there, {more} here"
        raise InputError(f"{what}; only a finished run can be extended, this one is at step {state['step']}")
    if state["optimizer"] is None:
        raise InputError(f"{folder} is finished at step {steps} and was exported: it cannot be extended")


def _carry(source, copy):
    """Put a file of one's own into the run's folder; what is there must be the same code. It is trusted from now on."""
    if not copy.exists():
        write_atomically(copy, source.read_bytes())
    if plugins.digest(copy) != plugins.digest(source):
        raise InputError(f"{copy}: it is not the code of {source}; give another --out")
    plugins.remember(copy)


@contextlib.contextmanager
def lock(folder: str | Path) -> Iterator[None]:
    """Hold a folder for one process; the lock goes with the process, however that ends."""
    held = take(Path(folder, ".lock"))
    if held is None:
        raise InputError(f"{folder}: another process is training into this folder; give another --out")
    with held:
        for leftover in (*Path(folder).glob(".*.tmp"), *Path(folder, "checkpoints").glob(".*.tmp")):
            leftover.unlink()
        yield


def take(file: str | Path) -> TextIO | None:
    """An open file that is locked until all processes that have it open closed it or ended; None if others hold it."""
    import fcntl  # here, so that trained runs can be used where there is none

    held = open(file, "w")  # noqa: SIM115  (it is the caller's to close)
    try:
        fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        held.close()
        return None
    return held


def append(file: Path, record: dict[str, Any]) -> None:
    """Add a line of JSON, on disk when this returns."""
    with open(file, "a", encoding="utf-8") as f:
        f.write(json.dumps(record) + "\n")
        f.flush()
        os.fsync(f.fileno())


def read_lines(file: Path) -> list[dict[str, Any]]:
    """The records of a file of JSON lines."""
    return [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()]


def cut(file: Path, step: int) -> None:
    """Forget the lines after `step`, which the resumed run will write again, and a torn last one."""
    if not file.exists():
        return
    lines = []
    for line in file.read_bytes().splitlines(keepends=True):
        try:
            whole = line.endswith(b"\n") and json.loads(line)["step"] <= step
        except (ValueError, KeyError, TypeError):
            whole = False
        if whole:
            lines.append(line)
    write_atomically(file, b"".join(lines))


def export(run: str | Path, folder: str | Path) -> None:
    """A finished run as a smaller folder: without its optimiser, and without earlier checkpoints."""
    state, folder = newest(run), Path(folder)
    if state is None:
        raise InputError(f"{run}: has no checkpoint yet")
    folder.mkdir(parents=True, exist_ok=True)
    for name in ("config.json", *LOGS, *CODE.values()):
        if Path(run, name).exists():
            write_atomically(folder / name, Path(run, name).read_bytes())
    save(folder, state | {"optimizer": None})
    for step, file in checkpoints(folder).items():
        if step != state["step"]:
            file.unlink()
