"""How much a query prediction moves when the context is shuffled."""

import math

import torch

from minicl.errors import check_int, check_number
from minicl.model import device_of
from minicl.rng import Random


@torch.inference_mode()
def sensitivity(model, task, n, prompts=256, permutations=16, tolerance=0.1, seed=0):
    """Over random orders of n examples, with y's root mean square as the unit: spread, and how often it moves far.

    `spread` is the root mean square, over prompts, of the standard deviation over orders; `frequency` the share of
    (prompt, order) whose prediction differs from that in the given order by more than `tolerance`.
    """
    check_int("permutations", permutations, least=2)
    check_number("tolerance", tolerance, above=True)
    p = task.sample(prompts, n + 1, seed, device=device_of(model))
    random, rows = Random((seed, 3), prompts), torch.arange(prompts).unsqueeze(1)
    orders = [random.choice(f"order {i}", n, n) for i in range(permutations)]
    given = [torch.arange(n).expand(prompts, n), *orders]
    answers = torch.stack([model(p.xs[rows, o], p.ys[rows, o], p.queries[:, n:]).query[:, 0] for o in given]).double()
    answers /= math.sqrt(task.normaliser)
    moved = (answers[1:] - answers[0]).abs()
    return {
        "spread": float(answers.var(0, unbiased=False).mean().sqrt()),
        "largest": float(moved.max()),
        "frequency": float((moved > tolerance).double().mean()),
        "error": float((answers[0] - p.targets[:, n] / math.sqrt(task.normaliser)).square().mean()),
        "tolerance": tolerance,
        "permutations": permutations,
        "examples": n,
    }
