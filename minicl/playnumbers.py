"""What the page's texts quote: measured on the models of every seed, and kept in page/numbers.json.

Everything is of noisy lines, on prompts that no model was trained on. Errors are normalised: 1 is that of answering 0.
"""

import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import torch
from torch import Tensor, nn

from minicl.baselines import get_baseline
from minicl.playmodels import EARLY, STRATEGIES, TRAINED, folder, task
from minicl.runs import load
from minicl.tasks import Task

PROMPTS, MANY, ORDERS, SEED = 64, 1024, 16, (2022,)  # MANY: for errors, which are means over prompts
GRID = torch.linspace(-2, 2, 41).view(1, -1, 1)

Numbers = Iterator[tuple[str, float]]


def measure(runs: str | Path, seeds: int) -> dict[str, list[float]]:
    """{name: one value for each seed}."""
    numbers: dict[str, list[float]] = {}
    for seed in range(seeds):
        for name, value in measure_seed(runs, seed):
            numbers.setdefault(name, []).append(float(value))
        print(f"measured seed {seed}", file=sys.stderr)
    return numbers


@torch.inference_mode()
def measure_seed(runs: str | Path, seed: int) -> Numbers:
    """Everything that is measured on the models of one seed."""
    models = {strategy: load(folder(runs, "line", strategy, seed)) for strategy in STRATEGIES}
    for measured in (errors, orders, label_swaps, leaks, layers):
        yield from measured(task("line"), models)
    for strategy in ("ar", "invicl"):
        for step in EARLY:
            early = load(folder(runs, "line", strategy, seed), step)
            yield f"early.{strategy}.{step}", error(task("line"), TRAINED, query_of(early))


def query_of(model: nn.Module) -> Callable[..., Tensor]:
    return lambda xs, ys, queries: model(xs, ys, queries).query


def error(task: Task, n: int, predict: Callable[..., Tensor]) -> float:
    """The normalised error with n examples."""
    p = task.sample(MANY, n + 1, SEED)
    answer = predict(p.xs[:, :n], p.ys[:, :n], p.queries[:, n:])
    return float((answer - p.targets[:, n:]).square().mean()) / task.normaliser


def errors(task: Task, models: dict[str, nn.Module]) -> Numbers:
    for n in (3, 10, 11, 20, 40):
        for strategy, model in models.items():
            yield f"error.{strategy}.{n}", error(task, n, query_of(model))
        yield f"error.optimal.{n}", error(task, n, get_baseline("optimal", task=task).predict)


def prompts(task: Task, n: int) -> tuple[Tensor, Tensor]:
    p = task.sample(PROMPTS, n, SEED)
    return p.xs, p.ys


def curve(model: nn.Module, xs: Tensor, ys: Tensor) -> Tensor:
    """(B, 41) what a model predicts from −2 to 2."""
    return model(xs, ys, GRID.expand(len(xs), -1, -1)).query


def moves(model: nn.Module, xs: Tensor, ys: Tensor) -> Tensor:
    """(B,) the largest move of each prompt's curve over other orders of its examples."""
    before, most = curve(model, xs, ys), torch.zeros(len(xs))
    for order in range(ORDERS):
        new = torch.randperm(xs.shape[1], generator=torch.Generator().manual_seed(order))
        most = most.maximum((curve(model, xs[:, new], ys[:, new]) - before).abs().amax(1))
    return most


def orders(task: Task, models: dict[str, nn.Module]) -> Numbers:
    """How far another order moves a curve: as in training, with one label moved by 2, and with 20 examples."""
    settings = {name: prompts(task, n) for name, n in (("10", 10), ("outlier", 10), ("20", 20))}
    settings["outlier"][1][:, 0] += 2
    for strategy in ("ar", "invicl"):
        moved = {name: moves(models[strategy], *prompt) for name, prompt in settings.items()}
        for name, values in moved.items():
            yield f"order.{strategy}.{name}", values.median()
        yield f"order.{strategy}.most", torch.cat(list(moved.values())).max()


def label_swaps(task: Task, models: dict[str, nn.Module]) -> Numbers:
    """How far a curve moves when two labels change places: the most of prefix, the median of invicl."""
    xs, ys = prompts(task, TRAINED)
    swapped = ys[:, [1, 0, *range(2, TRAINED)]]
    for strategy, of in (("prefix", torch.max), ("invicl", torch.median)):
        moved = (curve(models[strategy], xs, swapped) - curve(models[strategy], xs, ys)).abs().amax(1)
        yield f"swap.{strategy}", of(moved)


def leaks(task: Task, models: dict[str, nn.Module]) -> Numbers:
    """What prefix_others, trained on its leaks, says at its own examples, and which answers follow a raised label."""
    model, (xs, ys), query = models["prefix_others"], prompts(task, TRAINED), GRID[:, :1].expand(PROMPTS, -1, -1)
    before, raised = model(xs, ys, query).context, ys.clone()
    raised[:, 0] += 1
    moved = (model(xs, raised, query).context - before).abs().mean(0)
    yield "leak.context", (before - ys).square().mean() / task.normaliser
    yield "leak.floor", task.noise**2 / task.normaliser
    yield "leak.own", moved[0]
    yield "leak.others", moved[1:].mean()
    yield "leak.query", error(task, TRAINED, query_of(model))


def layers(task: Task, models: dict[str, nn.Module]) -> Numbers:
    """The error with 10 examples if the read-out reads after each layer."""
    for strategy in ("ar", "invicl"):
        model = models[strategy]
        for layer in range(len(model.blocks) + 1):

            def read(xs, ys, queries, model=model, layer=layer):
                return model.answers(model(xs, ys, queries, hidden=[layer]).hidden[layer].query)

            yield f"layer.{strategy}.{layer}", error(task, TRAINED, read)
