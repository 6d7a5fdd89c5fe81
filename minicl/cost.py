"""What a run would cost: its arithmetic, and a dry run of a few updates."""

import statistics
import sys
import time

import torch

from minicl.masks import layout
from minicl.schedule import prompt_size
from minicl.timing import duration
from minicl.train import Devices, Training


def flops(config, n):
    """Multiply-adds ×2 of one update with n examples: forward, and twice that backward."""
    model, E = config.model, config.model.n_embd
    contexts = config.data.queries if model.strategy.sees_query else 1  # a prompt: then each query has one of its own
    plan = layout(model.strategy, n, config.data.queries // contexts, model.positions, model.copies)
    tail = plan.tail(model.n_layer, config.on_context)
    present, total = len(plan.mask), 2 * len(plan.mask) * E * model.n_dims
    for layer in range(1, model.n_layer + 1):
        rows = len(tail[layer][0]) if layer in tail else present
        if layer in tail:
            pairs = rows * present
        else:
            pairs = plan.pairs_computed if plan.causal else (rows - plan.local) * present
        total += 2 * E * E * (rows + 2 * present + rows + 8 * rows) + 4 * pairs * E
        present = rows
    return 3 * contexts * config.train.batch_size * (total + 2 * present * E)


def mean_flops(config, samples=200):
    """FLOPs of an update, on average over the run's prompt lengths."""
    steps = config.train.steps
    return statistics.mean(flops(config, prompt_size(config, i * steps // samples)[0]) for i in range(samples))


def dry_run(config, devices=None, measured=5):
    """What a run would be and cost, from a few updates of a model that is then thrown away."""
    training = Training(config, devices or Devices(config.machine, config.train.batch_size))
    seconds, work = [], []
    for _ in range(measured):
        start = time.perf_counter()
        n, _ = prompt_size(config, training.step)
        training.update()
        float(training.loss_sum)
        seconds.append(time.perf_counter() - start)
        work.append(flops(config, n))
    rate = statistics.median(w / s for w, s in zip(work[1:], seconds[1:], strict=True))
    usual = mean_flops(config)
    return {
        "config": config.to_json(),
        "parameters": sum(p.numel() for p in training.model.parameters()),
        "flops_per_step": usual,
        "memory_bytes": _peak_memory(training.devices.device),
        "seconds_per_step": usual / rate,
        "seconds": config.train.steps * usual / rate,
    }


def _peak_memory(device):
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    import resource

    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)


def table(record):
    """A dry run in words."""
    lines = [
        f"{name}: {', '.join(f'{k} {v}' for k, v in settings.items() if v not in (None, []))}"
        for name, settings in record["config"].items()
        if isinstance(settings, dict)
    ]
    return "\n".join(
        [
            *lines,
            f"{record['parameters']:,} parameters, {record['flops_per_step'] / 1e9:.3g} GFLOP a step, "
            f"about {record['memory_bytes'] / 2**30:.1f} GiB",
            f"{record['seconds_per_step']:.3g} s a step here, {duration(record['seconds'])} in all",
        ]
    )
