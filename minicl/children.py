"""Processes that do a part of the work and never outlive the one that started them."""

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Collection, Iterable
from pathlib import Path
from typing import IO

# The same minicl as the parent's, and not the current folder, which `python -c` puts on the path: a statistics.py in it
# would be imported.
ROOT = str(Path(__file__).absolute().parents[1])
INSTALLED = f"import sys; sys.path[:] = [p for p in sys.path if p]; sys.path.insert(0, {ROOT!r}); "
CODE = "from minicl.children import _tie; _tie(); from {0} import {1}; sys.exit({1}(*sys.argv[1:]))"


def start(
    function: Callable[..., object], *arguments: str, log: str | Path, held: Collection[IO] = ()
) -> subprocess.Popen:
    """Call a function with strings in a process of its own; what it prints goes to the file `log`.

    It inherits the open files `held`, and so the locks on them.
    """
    code = INSTALLED + CODE.format(function.__module__, function.__name__)
    with open(log, "w", encoding="utf-8") as file:
        return subprocess.Popen(
            [sys.executable, "-c", code, *arguments],
            stdin=subprocess.PIPE,
            stdout=file,
            stderr=file,
            pass_fds=[file.fileno() for file in held],
            start_new_session=True,  # a Ctrl-C reaches the parent alone, which then asks its children to stop
        )


def _tie():
    """Ask this process to stop when its parent is gone, however it went: its end of the pipe closes then."""

    def wait():
        os.read(0, 1)
        os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=wait, daemon=True).start()


def stop(processes: Iterable[subprocess.Popen]) -> None:
    """Ask them to stop, and wait until they have."""
    for process in processes:
        process.terminate()
    for process in processes:
        process.wait()


def complaint(process: subprocess.Popen, log: str | Path) -> str:
    """Why a process ended badly: its last words, or the signal that ended it."""
    if process.returncode < 0:
        return f"killed by {signal.Signals(-process.returncode).name}"
    lines = Path(log).read_text(encoding="utf-8", errors="replace").strip().splitlines()
    return lines[-1] if lines else "it said nothing"
