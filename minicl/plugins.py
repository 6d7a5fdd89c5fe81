"""Masks and tasks from a file of one's own, `path/to/file.py:name`: how they are loaded, and whose code may run.

A file that the user names on the command line, or in Python, is run. A file that came with a run folder is run only if
a run was trained with it on this machine, or on the user's word (`--trust`, `trust=True`).
"""

import ast
import contextlib
import hashlib
import os
import sys
import warnings
from functools import lru_cache
from pathlib import Path
from types import ModuleType
from typing import Any

from minicl.checks import InputError
from minicl.text import one_line


class Untrusted(Exception):
    """Code that came with a run folder and that nobody has vouched for. No InputError: it is never just passed over."""

    def __init__(self, folder: str | Path, file: str):
        self.what = f"{folder}: it comes with code, {file}, and no run was trained with that code here"
        super().__init__(f"{self.what}; if you trust it, pass trust=True")


def is_own(name: object) -> bool:
    """Whether a mask or a task is named by the file that it is in."""
    return isinstance(name, str) and ".py:" in name


def split(name: str) -> tuple[str, str]:
    """(path, name inside it)."""
    path, _, attribute = name.rpartition(":")
    return path, attribute


def short(name: str) -> str:
    """A name without the file that it is in."""
    return split(name)[1] if is_own(name) else name


def resolve(name: str) -> str:
    """The same with the file's full path, so that it is found from any folder."""
    path, attribute = split(name)
    return f"{Path(path).resolve()}:{attribute}"


def load(kind: str, name: str) -> tuple[Any, ModuleType]:
    """What `name` stands for, and the module that it is in. A file that has changed is read again."""
    path, attribute = split(name)
    try:
        source = Path(path).read_bytes()
    except OSError:
        raise InputError(f"{kind} {name!r}: there is no file {path!r}") from None
    module = _module(kind, str(Path(path).resolve()), source)
    value = getattr(module, attribute, None)
    if value is None:
        made_of = {n: getattr(v, "sees", v) for n, v in vars(module).items()}  # a Strategy is made of a function
        offered = [n for n, v in made_of.items() if getattr(v, "__module__", None) == module.__name__]
        raise InputError(f"{kind} {name}: {path} has no {attribute!r}; it has: {', '.join(offered) or 'nothing'}")
    return value, module


@lru_cache(maxsize=64)  # one object per version of a file, so that what is cached under it is found again
def _module(kind, path, source):
    unique = hashlib.sha256(path.encode()).hexdigest()[:8]  # every run folder has a mask.py
    module = ModuleType(f"minicl_own_{Path(path).stem}_{unique}")
    module.__file__ = path
    sys.modules[module.__name__] = module
    try:
        with aside():
            # Not by Python's importer: it would prefer a compiled file in __pycache__, which nobody has vouched for.
            exec(compile(source, path, "exec"), vars(module))
    except InputError as error:
        raise InputError(f"{path}: {error}") from error
    except (Exception, SystemExit) as error:
        raise InputError(f"{kind} {path} failed to import: {one_line(error)}") from error
    return module


def aside() -> contextlib.AbstractContextManager:
    """What a user's code prints goes to standard error: standard output is for results."""
    return contextlib.redirect_stdout(sys.stderr)


def digest(path: str | Path) -> str:
    """A hash of what a file's code says: comments and layout do not count. Nothing is run for it."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of Python's parser; they are shown when the code runs
            tree = ast.parse(Path(path).read_bytes())
        return hashlib.sha256(repr(_form(tree)).encode()).hexdigest()
    except (OSError, SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise InputError(f"{path}: cannot be read as Python: {one_line(error)}") from error


def _form(node):
    """A syntax tree without what is empty: later versions of Python add fields, and the hash must stay the same."""
    if isinstance(node, ast.AST):
        filled = ((name, value) for name, value in ast.iter_fields(node) if value is not None and value != [])
        return (type(node).__name__, *((name, _form(value)) for name, value in filled))
    return [_form(part) for part in node] if isinstance(node, list) else node


def _memory():
    """Hashes of the code that runs were trained with here, one in each line. It lies outside of all run folders."""
    state = os.environ.get("XDG_STATE_HOME") or os.path.expanduser("~/.local/state")
    return Path(state, "minicl", "trusted")


_trained_now: set[str] = set()  # hashes of the code that this process trains with


def remember(file: str | Path) -> None:
    """Trust this code from now on, wherever it lies: a run is being trained with it here."""
    code = digest(file)
    _trained_now.add(code)
    if code not in _remembered():
        with contextlib.suppress(OSError):  # where nothing can be written, later processes need the user's word
            _memory().parent.mkdir(parents=True, exist_ok=True)
            with open(_memory(), "a", encoding="utf-8") as memory:
                memory.write(f"{code}\n")


def _remembered():
    try:
        return set(_memory().read_text(encoding="utf-8").split())
    except (OSError, UnicodeDecodeError):
        return set()


def is_trusted(file: str | Path) -> bool:
    """Whether a run was trained with this code here."""
    return digest(file) in _trained_now | _remembered()


def from_folder(folder: str | Path | None, file: str, name: str, expected: str | None, trust: bool) -> str:
    """`name` in the run folder's own `file`, if that may run. A path in the name is never followed."""
    if folder is None or not Path(folder, file).is_file():
        raise InputError(f"{name}: its code should lie in the run's folder as {file}, and there is none")
    source = Path(folder, file).resolve()
    if expected is not None and digest(source) != expected:
        raise InputError(f"{source}: it is not the code that the run was trained with")
    if not (trust or is_trusted(source)):
        raise Untrusted(folder, file)
    return f"{source}:{split(name)[1]}"
