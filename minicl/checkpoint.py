"""Run folders: atomic saves, whole checkpoints or none, and loading that never runs code from a file."""

import contextlib
import hashlib
import io
import json
import os
import pickle
import re
import sys
from pathlib import Path

import torch

from minicl.config import Config
from minicl.errors import InputError
from minicl.model import Transformer

FORMAT = "minicl checkpoint 1"


def write_atomically(path, data):
    """Replace a file's content in one step: a reader, after whatever crash, finds the old or the new one whole."""
    path = Path(path)
    temporary = path.with_name(f".{path.name}.tmp")
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


def checkpoints(run):
    """{step: file} of a run folder, newest first."""
    files = Path(run, "checkpoints").glob("step-*.pt")
    found = {int(m[1]): f for f in files if (m := re.fullmatch(r"step-(\d+)\.pt", f.name))}
    return dict(sorted(found.items(), reverse=True))


def save(run, state, keep=()):
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


def export(run, folder):
    """A finished run as a smaller folder: without its optimiser, and without earlier checkpoints."""
    state, folder = newest(run), Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    for name in ("config.json", "metrics.jsonl", "timing.jsonl"):
        write_atomically(folder / name, Path(run, name).read_bytes())
    save(folder, state | {"optimizer": None})
    for step, file in checkpoints(folder).items():
        if step != state["step"]:
            file.unlink()


def read(file, device="cpu"):
    """The content of one checkpoint file; InputError if it is not a whole one of ours. Pickled code is never run."""
    try:
        state = torch.load(file, map_location=device, weights_only=True)
    except FileNotFoundError:
        raise InputError(f"{file}: there is no such file") from None
    except Exception as error:  # whatever a damaged file makes of the reader
        unsafe = isinstance(error, pickle.UnpicklingError) and "weights_only" in str(error).lower()
        why = "it holds more than tensors, or is no checkpoint at all" if unsafe else "it is damaged or foreign"
        raise InputError(f"{file}: not a minicl checkpoint: {why}") from error
    if not isinstance(state, dict) or state.pop("format", None) != FORMAT:
        raise InputError(f"{file}: not a minicl checkpoint: it lacks the mark {FORMAT!r}")
    if state.pop("digest", None) != _digest(state):
        raise InputError(f"{file}: damaged: its content is not what was saved")
    return state


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


def newest(run, device="cpu"):
    """The newest whole checkpoint's content, or None if there is none yet; damaged ones are named and passed over."""
    files = checkpoints(run).values()
    for file in files:
        try:
            return read(file, device)
        except InputError as error:
            print(f"passed over {error}", file=sys.stderr)
    if files:
        raise InputError(f"{run}: none of its checkpoints is whole; to start over, move the folder away")
    return None


def read_config(run):
    """The Config of a run folder."""
    file = Path(run, "config.json")
    try:
        return Config.from_json(json.loads(file.read_text(encoding="utf-8")))
    except FileNotFoundError:
        what = "there is no such folder" if not Path(run).exists() else "it has no config.json"
        raise InputError(f"{run}: not a run folder: {what}") from None
    except (OSError, json.JSONDecodeError, UnicodeDecodeError) as error:
        raise InputError(f"{file}: cannot be read: {error}") from error


def load(path, step=None, device="cpu"):
    """The model of a run folder (its newest whole checkpoint, or the one of a step) or of one checkpoint file."""
    path = Path(path)
    if path.is_dir():
        read_config(path)
        steps = checkpoints(path)
        if step is not None and step not in steps:
            raise InputError(f"{path}: got step {step}, allowed: {', '.join(map(str, sorted(steps))) or 'none yet'}")
        state = newest(path, device) if step is None else read(steps[step], device)
        if state is None:
            raise InputError(f"{path}: has no whole checkpoint yet")
    else:
        state = read(path, device)
    model = Transformer(Config.from_json(state["config"]).model)
    try:
        model.load_state_dict(state["model"])
    except RuntimeError as error:
        raise InputError(f"{path}: its weights do not fit its own config") from error
    return model.to(device).eval()


@contextlib.contextmanager
def lock(run):
    """Hold a run folder for one process; the lock goes with the process, however that ends."""
    import fcntl

    with open(Path(run, ".lock"), "w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise InputError(f"{run}: another process is training into this folder; give another --out") from None
        for leftover in (*Path(run).glob(".*.tmp"), *Path(run, "checkpoints").glob(".*.tmp")):
            leftover.unlink()
        yield


def append(file, record):
    """Add a line of JSON, on disk when this returns."""
    with open(file, "a", encoding="utf-8") as f:
        f.write(json.dumps(record) + "\n")
        f.flush()
        os.fsync(f.fileno())


def cut(file, step):
    """Forget the lines after `step`, which the resumed run will write again, and a torn last one."""
    if not file.exists():
        return
    lines = []
    for line in file.read_bytes().splitlines(keepends=True):
        try:
            whole = line.endswith(b"\n") and json.loads(line)["step"] <= step
        except ValueError:
            whole = False
        if whole:
            lines.append(line)
    write_atomically(file, b"".join(lines))
