"""The small models of the page: how they are trained, and how page/models.json holds those of seed 0.

Run folders stay outside of the repository; models.json is enough to build the page.
"""

import base64
from pathlib import Path
from typing import Any

import numpy
from torch import nn

from minicl.checkpoint import checkpoints
from minicl.config import Config
from minicl.runs import load
from minicl.tasks import Task, get_task
from minicl.training import train_run

TRAINED = 10  # examples in a training prompt
MOST = 40  # examples that the page shows at most
STEPS = 1500
EARLY = (50, 100, 200, 400)  # steps whose checkpoints stay
SEEDS = 3
FAMILIES = {
    "line": {"task": "noisy_linear", "bias": True, "noise": 0.3},
    "smooth": {"task": "smooth", "length": 1.0, "noise": 0.2},
}
STRATEGIES = {
    "ar": {"mask": "ar"},
    "invicl": {"mask": "invicl"},
    "ar-symmetric": {"mask": "ar", "positions": "symmetric"},
    "prefix": {"mask": "prefix"},
    "prefix_others": {"mask": "prefix_others", "loss": "all"},  # trained on its leaks, to show what they are worth
    "boe": {"mask": "boe"},
    "pfn": {"mask": "pfn"},
}
SHOWN = {"line": tuple(STRATEGIES), "smooth": ("ar", "invicl")}  # with the early ones 13 models: 2 MB hold no more
EARLY_SHOWN = {("line", "ar"): (50, 200), ("line", "invicl"): (50, 200)}


def config(family: str, strategy: str, seed: int) -> Config:
    """The run of one model. Preset `tiny` in one dimension, half as wide, and with room for longer prompts."""
    shape = {"n_dims": 1, "examples": TRAINED, "max_examples": MOST, "n_layer": 4, "n_head": 2, "n_embd": 32}
    length = {"init_std": 0.18, "steps": STEPS, "batch_size": 64, "log_every": 250, "save_every": 250, "keep": EARLY}
    own = {"seed": seed, "linear": "torch"}
    return Config.make("tiny", **shape, **length, **FAMILIES[family], **STRATEGIES[strategy], **own)


def task(family: str) -> Task:
    own = FAMILIES[family]
    return get_task(own["task"], n_dims=1, **{name: value for name, value in own.items() if name != "task"})


def folder(runs: str | Path, family: str, strategy: str, seed: int) -> Path:
    return Path(runs, f"{family}-{strategy}-{seed}")


def plan(seeds: int) -> list[tuple[str, str, int]]:
    """(family, strategy, seed) of every run: first what the page ships, then the seeds that its texts quote."""
    shipped = [(family, strategy, 0) for family in FAMILIES for strategy in SHOWN[family]]
    return shipped + [("line", strategy, seed) for strategy in STRATEGIES for seed in range(1, seeds)]


def train(runs: str | Path, seeds: int = SEEDS) -> None:
    """Train what is missing, one run after the other; a run that was interrupted goes on."""
    for family, strategy, seed in plan(seeds):
        train_run(config(family, strategy, seed), folder(runs, family, strategy, seed))


def pack(runs: str | Path) -> dict[str, Any]:
    """What models.json holds: the settings of each family, and the models of seed 0 as records."""
    models = []
    for family, strategy, _ in plan(seeds=1):
        for step in (STEPS, *EARLY_SHOWN.get((family, strategy), ())):
            model = load(checkpoints(folder(runs, family, strategy, 0))[step])
            rings = config(family, strategy, 0).on_context
            models.append({"family": family, "strategy": strategy, "step": step, "rings": rings, **record(model)})
    return {"families": {family: task(family).settings() for family in FAMILIES}, "models": models}


def record(model: nn.Module) -> dict[str, Any]:
    """A model as the page reads it: its mask, its shape, and all weights as base64 of float16, one after the other."""
    c, weights = model.config, model.state_dict()
    flat = numpy.concatenate([w.numpy().astype("<f2").ravel() for w in weights.values()])
    return {
        "mask": c.mask,
        "positions": c.resolved_positions,
        "layers": c.n_layer,
        "heads": c.n_head,
        "width": c.n_embd,
        "shapes": [[name, list(w.shape)] for name, w in weights.items()],
        "data": base64.b64encode(flat.tobytes()).decode(),
    }
