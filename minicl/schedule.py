"""What changes during training, as pure functions of (config, step): nothing to carry along, nothing to replay."""

import hashlib
import math

import torch
from torch import Tensor

from minicl.config import Config, TrainConfig
from minicl.masks import position_count
from minicl.rng import Random

POSITIONS = 2  # the stream of random positions; 0 and 1 are the prompts that are trained on and validated with

STAGES = 15  # of the curriculum, as in 2022: from a quarter of the dimensions and examples to all of them


def planned_steps(train: TrainConfig, step: int) -> int:
    """How many steps the run was to have when it took the update that follows `step` updates."""
    return next((end for end in train.extended if step < end), train.steps)


def learning_rate(train: TrainConfig, step: int) -> float:
    """The rate of the update that follows `step` updates."""
    if step < train.warmup:
        return train.lr * (step + 1) / train.warmup
    if train.schedule == "constant":
        return train.lr
    steps = planned_steps(train, step)
    start = train.warmup if train.schedule == "cosine" else max(train.warmup, round(steps * (1 - train.decay)))
    progress = max(0.0, (step - start) / max(1, steps - start))
    return train.lr * (0.5 * (1 + math.cos(math.pi * progress)) if train.schedule == "cosine" else 1 - progress)


def position_rows(config: Config, step: int, n: int, device: torch.device) -> Tensor:
    """(2n + 1,) for random positions: the rows of their table that the prompts of this update take, in order."""
    random = Random((config.train.seed, POSITIONS, step), 1, device=device)
    count = position_count("random", config.model.max_examples)
    return random.choice("rows", count, position_count("random", n))[0].sort().values


def prompt_size(config: Config, step: int) -> tuple[int, int]:
    """(examples, dimensions) of the prompts of the update that follows `step` updates."""
    data, share = config.data, _share(config, step)
    dims = max(1, round(config.model.n_dims * share))
    draws = {"uniform": 1, "long": 2}.get(data.lengths)
    if draws:
        digest = hashlib.blake2b(repr((config.train.seed, step)).encode(), digest_size=8 * draws).digest()
        drawn = (int.from_bytes(digest[8 * i : 8 * i + 8], "little") for i in range(draws))
        return data.fewest + max(n % (data.examples - data.fewest + 1) for n in drawn), dims
    return max(1, round(data.examples * share)) if data.lengths == "curriculum" else data.examples, dims


def _share(config, step):
    """Of the dimensions, and in the curriculum of 2022 of the examples too: a quarter at first, all in the end."""
    whole = config.data.curriculum_steps
    if config.data.lengths == "curriculum":
        whole = whole or max(1, round(0.15 * planned_steps(config.train, 0)))
    stage = STAGES if whole is None else min(STAGES, STAGES * step // whole)
    return 1 / 4 + 3 / 4 * stage / STAGES
