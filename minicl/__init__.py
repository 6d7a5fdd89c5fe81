"""minicl: who may look at whom when a transformer learns from the examples in its prompt?

Names are loaded when they are first used, so that `import minicl` is quick and does nothing else.
"""

from importlib import import_module
from typing import Any

__version__ = "0.5.0"

_HOME = {
    "ModelConfig": "model",
    "Transformer": "model",
    "Strategy": "masks",
    "strategy": "masks",
    "get_strategy": "masks",
    "layout": "masks",
    "load": "runs",
    "train": "training",
    "evaluate": "evaluation",
    "audit": "auditing",
    "Regressor": "regressor",
}
__all__ = sorted(_HOME)


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'minicl' has no attribute {name!r}")
    return getattr(import_module(f"minicl.{_HOME[name]}"), name)


def __dir__() -> list[str]:
    return sorted([*globals(), *_HOME])
