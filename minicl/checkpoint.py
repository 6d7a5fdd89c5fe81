"""The checkpoint format: saved whole or not at all, checked when it is read, and never a way to run code."""

import hashlib
import io
import os
import pickle
import re
import sys
from collections.abc import Collection
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import torch

from minicl.checks import InputError

FORMAT = "minicl checkpoint 1"


def make_folder(name: str, folder: Path) -> None:
    """Make a folder, and refuse one that cannot be written to before hours are spent."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        write_atomically(folder / ".try", b"")
        (folder / ".try").unlink(missing_ok=True)  # another worker may be trying too
    except OSError as error:
        raise InputError(f"{name}: got {folder}: {error.strerror}, allowed: a folder to write to") from error


def write_atomically(path: str | Path, data: bytes) -> None:
    """Replace a file's content in one step: a reader, after whatever crash, sees the old or the new one whole."""
    path = Path(path)
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")  # another process may be writing the same file
    try:
        with open(temporary, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
        folder = os.open(path.parent, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def checkpoints(run: str | Path) -> dict[int, Path]:
    """{step: file} of a run folder, newest first."""
    files = Path(run, "checkpoints").glob("step-*.pt")
    steps = {int(m[1]): f for f in files if (m := re.fullmatch(r"step-(\d+)\.pt", f.name))}
    return dict(sorted(steps.items(), reverse=True))


def save(run: str | Path, state: dict[str, Any], keep: Collection[int] = ()) -> None:
    """Write the state as the newest checkpoint; of the others only the one before it and those to keep stay."""
    buffer = io.BytesIO()
    torch.save({"format": FORMAT, "digest": _digest(state), **state}, buffer)
    folder = Path(run, "checkpoints")
    folder.mkdir(exist_ok=True)
    write_atomically(folder / f"step-{state['step']:08d}.pt", buffer.getbuffer())
    older = {step: file for step, file in checkpoints(run).items() if step < state["step"]}
    for step, file in list(older.items())[1:]:
        if step not in keep:
            file.unlink()


class Writer:
    """Saves in a thread, one checkpoint at a time: a copy of the state, so that training goes on meanwhile."""

    def __init__(self):
        self.thread = ThreadPoolExecutor(1)
        self.last = None

    def save(self, run: str | Path, state: dict[str, Any], keep: Collection[int] = ()) -> None:
        """Begin to write it. If the one before could not be written, wait for this one: one failure loses nothing."""
        try:
            self.wait()
        except OSError:
            save(run, state, keep)
        else:
            self.last = self.thread.submit(save, run, _copy(state), keep)

    def wait(self) -> None:
        """Until the last one is written; raises what went wrong with it."""
        last, self.last = self.last, None
        if last is not None:
            last.result()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.thread.shutdown()


def _copy(value):
    """A nested state with its tensors copied to the CPU."""
    if isinstance(value, torch.Tensor):
        return value.detach().to("cpu", copy=True)
    if isinstance(value, dict):
        return type(value)((key, _copy(entry)) for key, entry in value.items())
    return type(value)(map(_copy, value)) if isinstance(value, list | tuple) else value


def read(file: str | Path) -> dict[str, Any]:
    """The content of one checkpoint file, on the CPU; InputError if it is not whole. Pickled code is never run."""
    try:
        state = torch.load(file, map_location="cpu", weights_only=True)
    except FileNotFoundError:
        raise InputError(f"{file}: there is no such file") from None
    except Exception as error:  # whatever a damaged file makes of the reader
        unsafe = isinstance(error, pickle.UnpicklingError) and "weights_only" in str(error).lower()
        why = "it holds more than tensors, or is no checkpoint at all" if unsafe else "it is damaged or foreign"
        raise InputError(f"{file}: not a minicl checkpoint: {why}") from error
    if not isinstance(state, dict) or state.pop("format", None) != FORMAT:
        raise InputError(f"{file}: not a minicl checkpoint: it lacks the mark {FORMAT!r}")
    if state.pop("digest", None) != _digest(state) or not {"config", "step", "model"} <= state.keys():
        raise InputError(f"{file}: damaged: its content is not what was saved")
    return state


def newest(run: str | Path) -> dict[str, Any] | None:
    """The newest whole checkpoint's content, or None if there is none yet; damaged ones are named and passed over."""
    files = checkpoints(run).values()
    for file in files:
        try:
            return read(file)
        except InputError as error:
            print(f"passed over {error}", file=sys.stderr)
    if files:
        raise InputError(f"{run}: none of its checkpoints is whole; to start over, move the folder away")
    return None


def _digest(state):
    """A hash of everything in a nested state: torch itself does not notice a flipped bit."""
    total = hashlib.sha256()

    def add(value):
        if isinstance(value, torch.Tensor):
            total.update(repr((value.dtype, tuple(value.shape))).encode())
            total.update(value.detach().cpu().contiguous().flatten().view(torch.uint8).numpy())
        elif isinstance(value, dict):
            for key, entry in value.items():
                total.update(repr(key).encode())
                add(entry)
        elif isinstance(value, list | tuple):
            for entry in value:
                add(entry)
        else:
            total.update(repr(value).encode())

    add(state)
    return total.hexdigest()
