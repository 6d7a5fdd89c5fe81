"""What a run would cost: its arithmetic, and a dry run of a few updates."""

import functools
import statistics
import sys
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch

from minicl import batchicl
from minicl.config import Config
from minicl.devices import use_threads
from minicl.schedule import prompt_size
from minicl.text import duration
from minicl.timing import take_turns

if TYPE_CHECKING:
    from minicl.training import Training


def flops(config: Config, n: int) -> float:
    """Multiply-adds ×2 of one update with n examples: forward, and twice that backward."""
    model, E, B = config.model, config.model.n_embd, config.train.batch_size
    if model.architecture == "deepset":  # half of the layers for each example, the other half also for each query
        return 3 * B * model.n_layer / 2 * (2 * n + config.data.queries) * 2 * 8 * E * E
    contexts = config.data.queries if model.strategy.sees_query else 1  # then each query has a context of its own
    layout = model.layout(n, config.data.queries // contexts)
    T, pairs = len(layout.tokens.copy), layout.pairs_computed
    if model.strategy.average:
        T, pairs = batchicl.tokens(model, n, config.data.queries), batchicl.pairs(model, n) * config.data.queries
    layer = 2 * T * 12 * E * E + 4 * pairs * E  # projections 4 E², MLP 8 E², attention
    total = 2 * T * E * model.n_dims + model.n_layer * layer + 2 * T * E
    return 3 * contexts * B * total


def mean_flops(config: Config, samples: int = 200) -> float:
    """FLOPs of an update, on average over the run's prompt lengths."""
    steps, of_length = config.train.steps, functools.cache(functools.partial(flops, config))
    return statistics.mean(of_length(prompt_size(config, i * steps // samples)[0]) for i in range(samples))


def flops_until(config: Config, steps: Sequence[int]) -> list[float]:
    """FLOPs of all updates until each of these steps, which increase."""
    of_length = functools.cache(functools.partial(flops, config))
    total, done, totals = 0.0, 0, []
    for step in steps:
        total += sum(of_length(prompt_size(config, i)[0]) for i in range(done, step))
        done = step
        totals.append(total)
    return totals


def step_seconds(config: Config, seconds: Sequence[float], first: int) -> float:
    """What a usual update takes, from the seconds that some took: those of the steps from `first` on, in a row."""
    work = (flops(config, prompt_size(config, first + i)[0]) for i in range(len(seconds)))
    return mean_flops(config) / statistics.median(w / s for w, s in zip(work, seconds, strict=True))


def time_updates(trainings: dict[str, "Training"], repeats: int, warmup: int) -> dict[str, list[float]]:
    """Seconds of updates, by name, taking turns on one thread.

    Processor time, as other work on the machine does not count in it; on a GPU the time until the device has finished.
    """

    cpu = all(training.devices.device.type == "cpu" for training in trainings.values())
    calls = {name: functools.partial(_update, training) for name, training in trainings.items()}
    with use_threads(1):
        return take_turns(calls, repeats, warmup, time.process_time if cpu else time.perf_counter)


def _update(training):
    training.update()
    float(training.loss_sum)  # the device has finished


def dry_run(training: "Training", measured: int = 5) -> dict[str, Any]:
    """What a run would be and cost, from a few updates of a model that is then thrown away."""
    config = training.config
    with use_threads(config.machine.threads):
        (seconds,) = take_turns({"": functools.partial(_update, training)}, measured - 1, warmup=1).values()
    usual = step_seconds(config, seconds, first=1)
    return {
        "config": config.to_json(),
        "parameters": sum(p.numel() for p in training.model.parameters()),
        "flops_per_step": mean_flops(config),
        "memory_bytes": _peak_memory(training.devices.device),
        "seconds_per_step": usual,
        "seconds": config.train.steps * usual,
    }


def _peak_memory(device):
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    import resource

    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)


def table(record: dict[str, Any]) -> str:
    """A dry run in words."""
    lines = [
        f"{name}: {', '.join(f'{k} {v}' for k, v in settings.items() if v not in (None, (), []))}"
        for name, settings in record["config"].items()
        if settings
    ]
    gigaflops, memory = record["flops_per_step"] / 1e9, record["memory_bytes"] / 2**30
    lines.append(f"{record['parameters']:,} parameters, {gigaflops:.3g} GFLOP per step, about {memory:.1f} GiB")
    lines.append(f"{record['seconds_per_step']:.3g} s per step here, {duration(record['seconds'])} in all")
    return "\n".join(lines)
