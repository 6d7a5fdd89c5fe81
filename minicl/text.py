"""Words and tables: lists on the command line, columns, durations."""

import re
from collections.abc import Sequence

from minicl.checks import InputError


def names(text: str) -> tuple[str, ...]:
    """`a,b` as a tuple of names, each once. A comma inside the name of a mask, as in `one:x-X,y-XY`, parts nothing."""
    return tuple(dict.fromkeys(part.strip() for part in re.split(r",(?!\s*[xy][01]?-)", text) if part.strip()))


def whole_numbers(text: str) -> tuple[int, ...]:
    """`1000,2000` as a tuple of numbers."""
    allowed = "whole numbers of at least 0 with commas between them"
    try:
        numbers = tuple(int(part) for part in names(text))
    except ValueError:
        raise InputError(f"got {text!r}, allowed: {allowed}") from None
    if min(numbers, default=0) < 0:
        raise InputError(f"got {text!r}, allowed: {allowed}")
    return numbers


def columns(rows: Sequence[Sequence[str]]) -> list[str]:
    """Lines of a table whose columns are aligned."""
    widths = [max(len(row[i]) for row in rows) + 2 for i in range(len(rows[0]))]
    return ["  " + "".join(f"{cell:<{w}}" for cell, w in zip(row, widths, strict=True)).rstrip() for row in rows]


def duration(seconds: float) -> str:
    """A length of time as people say it."""
    if seconds < 100:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 6000 else f"{seconds / 3600:.1f} h"


def one_line(error: BaseException) -> str:
    """An exception in one line."""
    return f"{type(error).__name__}: {' '.join(str(error).split())}"
