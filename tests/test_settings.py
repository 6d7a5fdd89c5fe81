"""A setting is one field: its type, its bounds, its help and its flag."""

import argparse
from dataclasses import dataclass

import pytest

from minicl.checks import InputError
from minicl.settings import add_flags, check_settings, field_kinds, setting


@dataclass(frozen=True)
class Example:
    count: int = setting(3, "how many", least=1, most=9)
    rate: float = setting(0.5, "how fast", above=0)
    share: float = setting(0.1, "100 % is all", least=0)
    kind: str = setting("a", "which", choices=("a", "b"))
    name: str | None = setting(None, "what it is called")
    loud: bool = setting(False, "whether it is loud")
    steps: tuple[int, ...] = setting((), "when")
    free: int = 7  # a plain field, as in a task of one's own

    def __post_init__(self):
        check_settings(self)


def test_kinds():
    kinds = field_kinds(Example)
    assert kinds == {
        "count": int, "rate": float, "share": float, "kind": str, "name": str, "loud": bool, "steps": tuple, "free": int
    }  # fmt: skip


@pytest.mark.parametrize(
    "bad",
    [
        {"count": 0}, {"count": 10}, {"count": 1.5}, {"count": True}, {"count": None}, {"count": 2**80}, {"rate": 0},
        {"rate": float("nan")}, {"rate": "fast"}, {"share": -0.1}, {"kind": "c"}, {"name": 3}, {"loud": 1},
        {"steps": 5}, {"free": "many"},
    ],
)  # fmt: skip
def test_what_is_not_allowed_is_named(bad):
    (name,) = bad
    with pytest.raises(InputError, match=f"^{name}: got .*, allowed: "):
        Example(**bad)


def test_what_is_allowed():
    example = Example(count=9, rate=1, share=0, kind="b", name="x", loud=True, steps=(1, 2), free=-5)
    assert (example.count, example.share, example.steps, example.free) == (9, 0, (1, 2), -5), "at their bounds"


def test_flags():
    parser = argparse.ArgumentParser()
    add_flags(parser, "settings of an example", Example, {"count": 5}, skip={"free"})
    assert vars(parser.parse_args([])) == {}, "what is not given is not there"
    given = ["--count", "2", "--rate", "0.25", "--loud", "--steps", "1,2", "--name", "x", "--kind", "b"]
    assert vars(parser.parse_args(given)) == {
        "count": 2, "rate": 0.25, "loud": True, "steps": (1, 2), "name": "x", "kind": "b"
    }  # fmt: skip
    assert parser.parse_args(["--no-loud"]).loud is False
    text = " ".join(parser.format_help().split())
    for part in ("settings of an example", "how many (5)", "how fast (0.5)", "100 % is all", "{a,b}", "--no-loud"):
        assert part in text
    assert "--free" not in text
