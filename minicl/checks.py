"""What the person at the keyboard gets wrong: commands print it as one line and exit with status 2."""

import argparse
import difflib
import math
from collections.abc import Callable, Collection
from typing import Any


class InputError(argparse.ArgumentTypeError, ValueError):
    """A bad argument, setting or file: the message names it, what was given and what is allowed.

    It is argparse's own error too, so that what checks a setting can also be the type of a flag.
    """


def check(ok: Any, what: str, given: Any, allowed: Any) -> None:
    """Raise InputError in the form that all of minicl uses."""
    if not ok:
        raise InputError(f"{what}: got {given}, allowed: {allowed}")


def check_int(what: str, given: Any, least: int, most: int = 2**62) -> None:
    """`given` must be a whole number of at least `least`, and one that 64 bits hold."""
    ok = isinstance(given, int) and not isinstance(given, bool) and least <= given <= most
    limit = f"of at least {least}" if most == 2**62 else f"from {least} to {most}"
    check(ok, what, repr(given), f"a whole number {limit}")


def check_number(what: str, given: Any, least: float = 0.0, above: bool = False) -> None:
    """`given` must be a finite number of at least `least`, or above it."""
    ok = isinstance(given, int | float) and not isinstance(given, bool) and math.isfinite(given)
    ok = ok and (given > least if above else given >= least)
    check(ok, what, repr(given), f"a number {'above' if above else 'of at least'} {least:g}")


def choose(what: str, given: Any, options: Collection[str], also: str = "") -> Any:
    """`given` must be one of the names in `options`; says which is nearest when it is not."""
    if given not in options:
        near = difflib.get_close_matches(str(given), options, n=1)
        hint = f" (did you mean {near[0]}?)" if near else ""
        raise InputError(f"{what}: got {given!r}{hint}, allowed: {', '.join(options)}{also}")
    return given


def check_alone(mode: str, args: argparse.Namespace, add_arguments: Callable, beside: Collection[str]) -> None:
    """Only the flags `beside` go with the flag `mode`, which looks at no others: those must have their defaults."""
    plain = argparse.ArgumentParser()
    add_arguments(plain)
    allowed = ", ".join(map(_flag, beside))
    for name, value in vars(args).items():
        ok = name in ("runs", mode, *beside) or value == plain.get_default(name)
        check(ok, mode.replace("_", "-"), f"{_flag(name)} beside it", allowed)


def _flag(name):
    return f"--{name.replace('_', '-')}"


def check_prompt(xs: Any, ys: Any, queries: Any, d: int | None = None, finite: bool = True) -> None:
    """Shapes that belong together: xs (B, n, d), ys (B, n), queries (B, m, d); and finite numbers."""
    given = {"xs": xs, "ys": ys, "queries": queries}
    for name, t in given.items():
        check(hasattr(t, "isfinite"), name, type(t).__name__, "a tensor")
        check(t.is_floating_point(), name, f"dtype {t.dtype}", "a floating-point tensor")
        check(t.dtype == xs.dtype, name, f"dtype {t.dtype}", f"{xs.dtype}, as xs")
        check(t.device == xs.device, name, f"device {t.device}", f"{xs.device}, as xs")
    shape = {name: tuple(t.shape) for name, t in given.items()}
    check(xs.ndim == 3 and d in (None, xs.shape[-1]), "xs", f"shape {shape['xs']}", f"shape (B, n, {d or 'd'})")
    B, n, d = shape["xs"]
    check(shape["ys"] == (B, n), "ys", f"shape {shape['ys']}", f"shape ({B}, {n}), one y for each of xs")
    fits = queries.ndim == 3 and shape["queries"] == (B, queries.shape[1], d)
    check(fits, "queries", f"shape {shape['queries']}", f"shape ({B}, m, {d})")
    for name, t in given.items():
        check(not finite or t.isfinite().all(), name, "NaN or infinity", "finite numbers")
