"""One prompt in one dimension: what a run answers along x, and how far that moves when the examples are shuffled."""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from minicl.baselines import Baseline, get_baseline
from minicl.checks import InputError, check, check_int
from minicl.devices import device_of, use_threads
from minicl.order import random_orders
from minicl.tasks import Task
from minicl.text import columns

if TYPE_CHECKING:
    from minicl.evaluation import Evaluation

POINTS, REACH = 101, 2.5  # of the axis that is asked along: how many, and how far out at least (x ~ N(0, 1))


def axis(xs: Tensor) -> Tensor:
    """The x that are asked about: evenly spaced, and around all examples."""
    ends = torch.cat([xs, xs.new_tensor([-REACH, REACH])])
    return torch.linspace(float(ends.min()), float(ends.max()), POINTS)


@torch.inference_mode()
def answer(model: Callable, xs: Tensor, ys: Tensor, grid: Tensor, permutations: int = 16, seed: int = 0) -> dict:
    """A model's curve along `grid` (G,) from the examples xs, ys (n,), as given and in other orders.

    `moved` is the largest change of the answer over all orders and all of the grid, in units of y.
    """
    check_int("permutations", permutations, least=1)
    n, device = len(xs), device_of(model)
    orders = torch.cat([torch.arange(n)[None], random_orders(n, 1, permutations, seed)[:, 0]])
    queries = grid[None, :, None].expand(len(orders), -1, -1)
    given, *others = model(*(t.to(device) for t in (xs[orders, None], ys[orders], queries))).query.cpu()
    moved = max(float((other - given).abs().max()) for other in others)
    return {"curve": given.tolist(), "shuffled": [other.tolist() for other in others], "moved": moved}


def baselines(task: Task, shift: str = "none", names: Sequence[str] | None = None) -> list[Baseline]:
    """The baselines of these names; if none are named, the optimum, where it is known."""
    if names is None:
        try:
            return [get_baseline("optimal", task=task, shift=shift)]
        except InputError:
            return []
    given = {"optimal": {"task": task, "shift": shift}}
    return [get_baseline(name, **given.get(name, {})) for name in names]


def compare(
    model: Callable,
    methods: Sequence[Baseline],
    xs: Tensor,
    ys: Tensor,
    grid: Tensor,
    permutations: int = 16,
    seed: int = 0,
) -> dict[str, Any]:
    """What `answer` says, the curves of the baselines, and their root mean square distance from the model's."""
    found = answer(model, xs, ys, grid, permutations, seed)
    curve, prompt = torch.tensor(found["curve"]), (xs[None, :, None], ys[None], grid[None, :, None])
    lines = {method.name: method.predict(*prompt)[0] for method in methods}
    return {
        "examples": len(xs),
        "xs": xs.tolist(),
        "ys": ys.tolist(),
        "grid": grid.tolist(),
        **found,
        "baselines": {name: line.tolist() for name, line in lines.items()},
        "distance": {name: float((curve - line).square().mean().sqrt()) for name, line in lines.items()},
    }


def of_runs(evaluation: "Evaluation", lengths: Sequence[int] | None, permutations: int) -> list[dict[str, Any]]:
    """A record for every run, checkpoint, shift and length (the training length, if none are named)."""
    for run, config in evaluation.runs.items():
        d = config.model.n_dims
        check(d == 1, f"prompt-plot of {run}", f"n_dims = {d}", "runs with n_dims = 1: a curve over x needs one axis")
    records = []
    for run, config in evaluation.runs.items():
        for prompts in evaluation.prompts[run]:
            p, chosen = prompts.one(lengths or (config.data.examples,)).of(config.task)
            xs, ys = p.xs[0, :, 0], p.ys[0]
            grid = axis(xs[: max(chosen)])
            about = {"method": evaluation.method(config), "task": config.task.name, "trained_on": config.data.examples}
            about |= {"shift": prompts.shift, "seed": prompts.seed}
            for step, file in evaluation.files[run].items():
                with use_threads(evaluation.threads or config.machine.threads):
                    model = evaluation.load(file)
                    for n in chosen:
                        best = baselines(config.task, prompts.shift, evaluation.baselines)
                        found = compare(model, best, xs[:n], ys[:n], grid, permutations, prompts.seed)
                        records.append({"run": run, "step": step, **about, **found})
    return records


def table(records: Sequence[dict[str, Any]]) -> str:
    names = list(dict.fromkeys(name for r in records for name in r["baselines"]))
    rows = [["", "examples", "trained on", "largest move", *(f"from {name}" for name in names)]]
    for r in records:
        name = f"{r['method']} ({r['run']}, step {r['step']})" + ("" if r["shift"] == "none" else f", {r['shift']}")
        distances = [f"{r['distance'][b]:.2g}" if b in r["distance"] else "" for b in names]
        rows.append([name, str(r["examples"]), str(r["trained_on"]), f"{r['moved']:.2g}", *distances])
    orders = len(records[0]["shuffled"])
    also = "; root mean square distance from baselines" if names else ""
    title = f"one prompt (seed {records[0]['seed']}): largest move of the answers over {orders} random orders{also}"
    return "\n".join([title, *columns(rows)])
