"""Settings as dataclass fields that know their help and choices, and become command-line flags."""

import argparse
import types
import typing
from collections.abc import Collection, Mapping
from dataclasses import MISSING, field, fields
from typing import Any

from minicl.checks import check, check_int, check_number, choose
from minicl.text import whole_numbers


def setting(
    default: Any,
    help: str,
    choices: Collection[str] | None = None,
    least: float | None = None,
    most: int | None = None,
    above: float | None = None,
) -> Any:
    """A dataclass field with its help text, and what it may be: one of `choices`, or a number within bounds."""
    allowed = {"choices": choices, "least": least, "most": most, "above": above}
    return field(default=default, metadata={"help": help, **{k: v for k, v in allowed.items() if v is not None}})


def check_settings(config: Any) -> None:
    """Hold every field of a dataclass against its type and its `setting`. None is allowed where it is the default."""
    kinds = field_kinds(type(config))
    for f in fields(config):
        value = getattr(config, f.name)
        if value is not None or f.default is not None:
            _check_value(f.name, value, kinds[f.name], f.metadata)


def _check_value(name, value, kind, allowed):
    if "choices" in allowed:
        choose(name, value, allowed["choices"])
    if kind is int:
        bounds = {k: allowed[k] for k in ("least", "most") if k in allowed}
        check_int(name, value, **{"least": -(2**62)} | bounds)
    elif kind is float:
        least = allowed.get("above", allowed.get("least", float("-inf")))
        check_number(name, value, least, above="above" in allowed)
    else:
        named = " or ".join(k.__name__ for k in typing.get_args(kind) or (kind,))
        check(isinstance(value, kind), name, repr(value), named)


def field_kinds(cls: type) -> dict[str, Any]:
    """{field: its plain type}: int of `int | None`, tuple of `tuple[int, ...]`; other unions stay as they are."""
    kinds = {}
    for name, hint in typing.get_type_hints(cls).items():
        kind = typing.get_origin(hint) or hint
        if kind in (typing.Union, types.UnionType):
            some = [k for k in typing.get_args(hint) if k is not type(None)]
            kind = some[0] if len(some) == 1 else hint
        kinds[name] = kind
    return kinds


def add_flags(
    parser: argparse.ArgumentParser, title: str, cls: type, defaults: Mapping[str, Any], skip: Collection[str] = ()
) -> None:
    """A group of flags, one per field. One that is not given stays out of the result; `defaults` are for the help."""
    group, kinds = parser.add_argument_group(title), field_kinds(cls)
    for f in fields(cls):
        if f.name in skip:
            continue
        kind = (typing.get_args(kinds[f.name]) or (kinds[f.name],))[0]
        value = defaults.get(f.name, f.default)
        default = "" if value in (None, MISSING, ()) else f" ({str(value).strip('()') if kind is tuple else value})"
        text = (f.metadata.get("help", "") + default).replace("%", "%%")
        options = {"default": argparse.SUPPRESS, "help": text.strip(), "dest": f.name}
        flag = "--" + f.name.replace("_", "-")
        if kind is bool:
            group.add_argument(flag, action=argparse.BooleanOptionalAction, **options)
        else:
            metavar = "N,N,…" if kind is tuple else kind.__name__.upper()
            if "choices" in f.metadata:
                metavar = "{" + ",".join(f.metadata["choices"]) + "}"
            group.add_argument(flag, type=whole_numbers if kind is tuple else kind, metavar=metavar, **options)
