"""Settings as dataclass fields that know their help and choices, and become command-line flags."""

import argparse
import types
import typing
from dataclasses import MISSING, field, fields

from minicl.errors import InputError, check_int, check_number, choose


def setting(default, help, choices=None, least=None, above=None):
    """A dataclass field with its help text, and what it may be: one of `choices`, or a number with a lower bound."""
    return field(default=default, metadata={"help": help, "choices": choices, "least": least, "above": above})


def check_settings(config):
    """Hold every field of a dataclass against what its `setting` allows. None is allowed where it is the default."""
    for f in fields(config):
        value, meta, name = getattr(config, f.name), f.metadata, f.name
        if value is None and f.default is None:
            continue
        if meta.get("choices"):
            choose(name, value, meta["choices"])
        kind = _kind(f)
        if kind is int:
            check_int(name, value, meta["least"])
        elif kind is float:
            strictly = meta["above"] is not None
            check_number(name, value, meta["above"] if strictly else meta["least"], above=strictly)
        elif not isinstance(value, tuple if kind is tuple else f.type):
            raise InputError(f"{name}: got {value!r}, allowed: {kind.__name__}")


def _kind(f):
    """The plain type of a field: int of `int | None`, tuple of `tuple[int, ...]`."""
    kind = typing.get_origin(f.type) or f.type
    if kind in (typing.Union, types.UnionType):
        kind = typing.get_args(f.type)[0]
    return kind


def whole_numbers(text):
    """`1000,2000` as a tuple of numbers."""
    try:
        return tuple(int(part) for part in text.split(",") if part)
    except ValueError:
        raise argparse.ArgumentTypeError(f"got {text!r}, allowed: whole numbers with commas between them") from None


def add_flags(parser, title, cls, defaults):
    """A group of flags, one a field. One that is not given stays out of the result; `defaults` are for the help."""
    group = parser.add_argument_group(title)
    for f in fields(cls):
        kind, value = _kind(f), defaults.get(f.name, f.default)
        default = "" if value in (None, MISSING, ()) else f" ({str(value).strip('()') if kind is tuple else value})"
        text = (f.metadata["help"] + default).replace("%", "%%")
        options = {"default": argparse.SUPPRESS, "help": text, "dest": f.name}
        flag = "--" + f.name.replace("_", "-")
        if kind is bool:
            group.add_argument(flag, action=argparse.BooleanOptionalAction, **options)
        else:
            metavar = "N,N,…" if kind is tuple else kind.__name__.upper()
            if f.metadata["choices"]:
                metavar = "{" + ",".join(f.metadata["choices"]) + "}"
            group.add_argument(flag, type=whole_numbers if kind is tuple else kind, metavar=metavar, **options)
