"""Results that are kept: each in a file that says what it depends on, and is read only where that is asked for."""

import hashlib
import io
import json
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy

from minicl.checkpoint import write_atomically
from minicl.checks import InputError

WHOLE = "a whole file: restore it, or delete it to have it measured anew"


def slug(text: str) -> str:
    """A name for a file."""
    return re.sub(r"[^a-z0-9]+", "-", text.lower().replace("×", "x")).strip("-")


def digest(what: Any) -> str:
    """A short hash of what a result depends on."""
    return hashlib.sha256(json.dumps(what, sort_keys=True, default=repr).encode()).hexdigest()[:8]


class Store:
    """A folder of results. Nothing in it is ever overwritten by a result that depends on something else."""

    def __init__(self, folder: str | Path):
        self.folder = Path(folder)

    def file(self, name: str, depends_on: Any) -> Path:
        return self.folder / f"{slug(name)}-{digest(depends_on)}.json"

    def files(self, name: str) -> list[Path]:
        """All results of this name, whatever they depend on."""
        pattern = re.compile(re.escape(slug(name)) + r"-[0-9a-f]{8}\.json")
        return sorted(f for f in self.folder.glob(f"{slug(name)}-*.json") if pattern.fullmatch(f.name))

    def find(self, name: str, same: Callable[[Any], bool]) -> Any:
        """The result of this name whose dependencies are the `same`, or None; a damaged file is refused, and kept."""
        for file in self.files(name):
            content = self._read(file)
            try:
                if same(content["depends_on"]):
                    return content["result"]
            except (KeyError, TypeError, AttributeError, InputError) as error:
                raise InputError(f"numbers: got {file}: {error}, allowed: {WHOLE}") from error
        return None

    @staticmethod
    def _read(file):
        try:
            content = json.loads(file.read_text(encoding="utf-8"))
            if set(content) == {"depends_on", "result"}:
                return content
        except (OSError, ValueError, TypeError) as error:
            raise InputError(f"numbers: got {file}: {error}, allowed: {WHOLE}") from error
        raise InputError(f"numbers: got {file}, allowed: {WHOLE}")

    def write(self, name: str, depends_on: Any, result: Any) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        content = json.dumps({"depends_on": depends_on, "result": result})
        write_atomically(self.file(name, depends_on), content.encode())

    def get(self, name: str, depends_on: Any, compute: Callable[[], Any]) -> Any:
        """Read if it is there, else computed and kept."""
        depends_on = json.loads(json.dumps(depends_on))  # as it will be read
        result = self.find(name, lambda other: other == depends_on)
        if result is None:
            result = compute()
            self.write(name, depends_on, result)
        return result

    def get_errors(self, name: str, depends_on: Any, compute: Callable[[], tuple[Any, Any]]) -> tuple[Any, Any]:
        """(result, errors), the errors in a file of numpy's. This is a cache: what is damaged is computed again, and
        where nothing can be written nothing is kept."""
        file = self.file(name, depends_on)
        try:
            result, errors = self._read(file)["result"], numpy.load(file.with_suffix(".npy"))
            if errors.shape[1:] == (len(result["mean"]),):
                return result, errors
        except (InputError, OSError, ValueError, EOFError, KeyError, TypeError):
            pass
        result, errors = compute()
        buffer = io.BytesIO()
        numpy.save(buffer, errors.astype(numpy.float32))
        try:
            self.folder.mkdir(exist_ok=True)
            write_atomically(file.with_suffix(".npy"), buffer.getvalue())
            self.write(name, depends_on, result)
        except OSError as error:
            print(f"not saved in {self.folder}: {error.strerror or error}", file=sys.stderr)
        return result, errors
