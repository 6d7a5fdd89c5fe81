"""minicl: who may look at whom when a transformer learns from the examples in its prompt?

Names are loaded when they are first used, so that `import minicl` is quick and does nothing else.
"""

from importlib import import_module

__version__ = "0.1.0"

_HOME = {
    "ModelConfig": "model",
    "Transformer": "model",
    "Strategy": "masks",
    "strategy": "masks",
    "get_strategy": "masks",
    "layout": "masks",
    "load": "checkpoint",
    "Regressor": "regressor",
}
__all__ = sorted(_HOME)


def __getattr__(name):
    if name not in _HOME:
        raise AttributeError(f"module 'minicl' has no attribute {name!r}")
    return getattr(import_module(f"minicl.{_HOME[name]}"), name)


def __dir__():
    return sorted([*globals(), *_HOME])
