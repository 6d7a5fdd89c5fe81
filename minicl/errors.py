"""What the person at the keyboard gets wrong: commands print it as one line and exit with status 2."""

import difflib


class InputError(ValueError):
    """A bad argument, setting or file: the message names it, what was given and what is allowed."""


def check(ok, what, given, allowed):
    """Raise InputError in the form that all of minicl uses."""
    if not ok:
        raise InputError(f"{what}: got {given}, allowed: {allowed}")


def check_int(what, given, least):
    """`given` must be a whole number of at least `least`."""
    ok = isinstance(given, int) and not isinstance(given, bool) and given >= least
    check(ok, what, repr(given), f"a whole number of at least {least}")


def choose(what, given, options, also=""):
    """`given` must be one of the names in `options`; says which is nearest when it is not."""
    if given not in options:
        near = difflib.get_close_matches(str(given), options, n=1)
        hint = f" (did you mean {near[0]}?)" if near else ""
        raise InputError(f"{what}: got {given!r}{hint}, allowed: {', '.join(options)}{also}")
    return given
