"""Dataclasses by name, so that a task, a shift or a baseline is a name and its settings."""

import dataclasses
from typing import Any

from minicl.checks import choose


class Registry(dict):
    """`@registry("name")` adds a class, made a frozen dataclass; `registry.make("name", settings)` builds one."""

    def __init__(self, kind):
        super().__init__()
        self.kind = kind

    def __call__(self, name):
        def add(cls):
            cls = dataclasses.dataclass(frozen=True)(cls)
            cls.name = name
            self[name] = cls
            return cls

        return add

    def make(self, name: str, settings: dict[str, Any]) -> Any:
        return build(self.kind, self[choose(self.kind, name, tuple(self))], settings)


def build(kind: str, cls: type, settings: dict[str, Any]) -> Any:
    """An object of a dataclass; a setting that the class does not have is refused by name."""
    known = [f.name for f in dataclasses.fields(cls)]
    for setting in settings:
        choose(f"setting of {kind} {cls.name}", setting, known or ["(it has none)"])
    return cls(**settings)
