"""Order sensitivity: how much a query prediction moves when the context is shuffled."""

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from minicl.checks import check_int, check_number
from minicl.devices import device_of, use_threads
from minicl.rng import Random
from minicl.tasks import Task
from minicl.text import columns


def random_orders(n: int, prompts: int, permutations: int, seed: int) -> Tensor:
    """(permutations, prompts, n): random orders of the examples of each prompt."""
    random = Random((seed, 3), prompts)
    return torch.stack([random.choice(f"order {i}", n, n) for i in range(permutations)])


@torch.inference_mode()
def sensitivity(
    model: Callable,
    task: Task,
    n: int,
    prompts: int = 256,
    permutations: int = 16,
    tolerance: float = 0.1,
    seed: int = 0,
) -> dict[str, Any]:
    """Over random orders of n examples, with y's root mean square as the unit: spread, and how often it moves far.

    `spread` is the root mean square, over prompts, of the standard deviation over orders; `frequency` the share of
    (prompt, order) whose prediction differs from that in the given order by more than `tolerance`.
    """
    check_int("permutations", permutations, least=2)
    check_number("tolerance", tolerance, above=True)
    p = task.sample(prompts, n + 1, seed, device=device_of(model))
    rows = torch.arange(prompts).unsqueeze(1)
    given = [torch.arange(n).expand(prompts, n), *random_orders(n, prompts, permutations, seed)]
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


def of_runs(evaluation, prompts: int, permutations: int, tolerance: float, seed: int) -> list[dict[str, Any]]:
    """A record for every run and checkpoint of an Evaluation, at the training length."""
    records = []
    for run, config in evaluation.runs.items():
        for step, file in evaluation.files[run].items():
            with use_threads(evaluation.threads or config.machine.threads):
                model = evaluation.load(file)
                given = (config.task, config.data.examples, prompts, permutations, tolerance, seed)
                measured = sensitivity(model, *given)
            own = {"positions": config.model.resolved_positions, "train_seed": config.train.seed}
            records.append({"run": run, "step": step, "method": evaluation.method(config), **own, **measured})
    return records


def table(records: Sequence[dict[str, Any]]) -> str:
    rows = [["", "spread", "largest change", f"changes beyond {records[0]['tolerance']}", "error"]]
    for r in records:
        name = f"{r['method']} ({r['run']}, step {r['step']})"
        rows.append(
            [name, *(f"{r[k]:.2g}" for k in ("spread", "largest")), f"{r['frequency']:.1%}", f"{r['error']:.3g}"]
        )
    unit = "in units of y's root mean square, at the training length"
    return "\n".join([f"the query prediction over {records[0]['permutations']} random orders, {unit}", *columns(rows)])
