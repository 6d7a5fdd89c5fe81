"""`minicl probe`: what a linear map can read from the query token's state after each layer.

For every layer and context length, one linear map is fitted on fresh prompts, from the normalised hidden state to the
target: by ridge regression in closed form, its regulariser chosen on held-out prompts, or by gradient steps. Two
controls tell what a probe alone can do: the same on an untrained model, and on targets shuffled among prompts (which
must do no better than answering 0). And it asks whether the least-squares weights of the context can be read off.
"""

import json
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from minicl import runs
from minicl.answers import states
from minicl.baselines import get_baseline
from minicl.checks import check, check_alone, check_int
from minicl.config import Config
from minicl.devices import auto_device, device_of, use_threads
from minicl.model import Transformer
from minicl.progress import Progress
from minicl.selection import add_run_arguments, check_run_arguments, choose_checkpoints, choose_lengths, longest_from
from minicl.stats import bootstrap
from minicl.tasks import Task
from minicl.text import columns, whole_numbers

RIDGE = tuple(10.0**e for e in range(-9, 5))  # times the mean eigenvalue of the features' covariance
USUAL_LENGTHS = 9  # about so many are probed if none are named
GROUP = 16  # lengths whose states are held at once: bounds memory
SEEDS = {"fit": 11, "choose": 12, "test": 13}  # three sets of prompts that share nothing


class Data(NamedTuple):
    """One of the three sets, at one context length."""

    hidden: dict[int, Tensor]  # (P, E) the query token's states, normalised
    target: Tensor  # (P, 1)
    weights: Tensor  # (P, d) the least-squares weights of the context
    answer: Tensor  # (P, 1) the model's own


def read(
    model: Transformer,
    task: Task,
    lengths: Sequence[int],
    layers: Sequence[int],
    prompts: int,
    begin: Callable[[str], None] = lambda text: None,
) -> dict[int, dict[str, Data]]:
    """For each length the three sets, in float64. `begin` is told before each."""
    data = {n: {} for n in lengths}
    for name, seed in SEEDS.items():
        begin(f"prompts to {name}")
        count = prompts if name == "fit" else max(2, prompts // 4)
        p = task.sample(count, max(lengths) + 1, (seed,), device=device_of(model))
        at = states(model, p.xs, p.ys, p.queries, lengths, layers)
        for i, n in enumerate(lengths):
            hidden = {layer: normed(h[:, i].double().cpu()) for layer, h in at.hidden.items()}
            xs, ys = p.xs[:, :n].double().cpu(), p.ys[:, :n].double().cpu()
            weights = get_baseline("least_squares").weights(xs, ys) if n else xs.new_zeros(count, task.n_dims)
            target, answer = p.targets[:, n : n + 1].double().cpu(), at.query[:, i : i + 1].double().cpu()
            data[n][name] = Data(hidden, target, weights, answer)
    return data


def normed(h: Tensor) -> Tensor:
    """A state as the model itself reads its last one: normalised (whatever scale and shift follow are linear)."""
    return torch.nn.functional.layer_norm(h, h.shape[-1:])


def fit_ridge(features: Tensor, targets: Tensor, held_out: tuple[Tensor, Tensor]) -> Tensor:
    """Weights and intercept (E + 1, k) by ridge regression; `held_out` (features, targets) chooses the regulariser."""
    middle, level = features.mean(0), targets.mean(0)
    x = features - middle
    values, basis = torch.linalg.eigh(x.mT @ x)
    cross = basis.mT @ (x.mT @ (targets - level))
    scale = values.mean().clamp_min(1e-300)
    other, aim = with_one(held_out[0]), held_out[1]

    def fit(alpha):
        w = basis @ (cross / (values.clamp_min(0) + alpha * scale).unsqueeze(1))
        return torch.cat([w, (level - middle @ w).unsqueeze(0)])

    return min(map(fit, RIDGE), key=lambda w: float((other @ w - aim).square().mean()))


def fit_gradient(
    features: Tensor, targets: Tensor, held_out: tuple[Tensor, Tensor], steps: int = 1500, lr: float = 3e-2
) -> Tensor:
    """The same linear map by Adam on the squared error, as one would train it; states are standardised first."""
    mean, std = features.mean(0), features.std(0).clamp_min(1e-6)
    x, w = (
        with_one((features - mean) / std),
        torch.zeros(features.shape[1] + 1, targets.shape[1], dtype=features.dtype),
    )
    w.requires_grad_()
    optimizer = torch.optim.Adam([w], lr=lr)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
    for _ in range(steps):
        optimizer.zero_grad()
        (x @ w - targets).square().mean().backward()
        optimizer.step()
        schedule.step()
    w = w.detach()
    plain = w[:-1] / std.unsqueeze(1)
    return torch.cat([plain, w[-1:] - mean.unsqueeze(0) @ plain])


def with_one(x: Tensor) -> Tensor:
    """A column of ones beside x, for the intercept."""
    return torch.cat([x, torch.ones_like(x[:, :1])], dim=1)


def probe(
    model: Transformer,
    untrained: Transformer,
    task: Task,
    lengths: Sequence[int],
    layers: Sequence[int],
    prompts: int = 1024,
    fit: str = "ridge",
    begin: Callable[[str], None] = lambda text: None,
) -> list[dict[str, Any]]:
    """For each context length the model's own error, and for each layer the probe, its controls, the weights."""
    check_int("prompts", prompts, least=8)
    fitter = {"ridge": fit_ridge, "gradient": fit_gradient}[fit]
    rows = []
    for group in groups_of(lengths):
        trained = read(model, task, group, layers, prompts, begin)
        other = read(untrained, task, group, layers, prompts, lambda text: begin(f"untrained, {text}"))
        for n in group:
            rows += _at_length(n, trained[n], other[n], task, layers, fitter)
    return rows


def groups_of(lengths: Sequence[int]) -> list[Sequence[int]]:
    """The lengths that are read together."""
    return [lengths[i : i + GROUP] for i in range(0, len(lengths), GROUP)]


def _at_length(n, trained, untrained, task, layers, fitter):
    """The records of one context length."""
    generator = torch.Generator().manual_seed(0)

    def error(sets, layer, what="target", shuffle=False):
        """Squared error on the test set, over the mean square of what is to be read (1 is that of answering 0)."""
        data = {}
        for name, values in sets.items():
            aim = getattr(values, what)
            data[name] = values.hidden[layer], aim[torch.randperm(len(aim), generator=generator)] if shuffle else aim
        w = fitter(*data["fit"], data["choose"])
        x, y = data["test"]
        scale = task.normaliser if what == "target" else float(y.square().sum(1).mean()) or 1.0
        return ((with_one(x) @ w - y).square().sum(1, keepdim=True) / scale).numpy()

    def row(kind, layer, errors):
        low, high = bootstrap(errors)[:, 0]
        return {"probe": kind, "layer": layer, "examples": n, "mean": float(errors.mean()), "low": low, "high": high}

    own = trained["test"]
    rows = [row("model", None, ((own.answer - own.target).square() / task.normaliser).numpy())]
    for layer in layers:
        rows.append(row("target", layer, error(trained, layer)))
        rows.append(row("untrained", layer, error(untrained, layer)))
        rows.append(row("shuffled", layer, error(trained, layer, shuffle=True)))
        if n:
            rows.append(row("weights", layer, error(trained, layer, "weights")))
    return rows


def check_layers(folder: str | Path, config: Config, layers: Sequence[int] | None) -> None:
    """Refuse a run that has no such layers."""
    depth = config.model.n_layer
    check(config.model.architecture == "transformer", "probe", f"{folder}, a set encoder", "runs of transformers")
    check(not layers or max(layers) <= depth, "at-layers", max(layers or [0]), f"0 to {depth}")


def of_run(
    folder: str | Path,
    lengths: Sequence[int],
    layers: Sequence[int] | None = None,
    prompts: int = 1024,
    fit: str = "ridge",
    step: int | None = None,
    trust: bool = False,
    begin: Callable[[str], None] = lambda text: None,
) -> list[dict[str, Any]]:
    """Records of one checkpoint, for each context length; of quarters of the depth, if no layers are named."""
    config = runs.read_config(folder, trust)
    check_layers(folder, config, layers)
    depth = config.model.n_layer
    layers = layers or sorted({max(1, depth * q // 4) for q in (1, 2, 3, 4)})
    model = runs.load(folder, step, auto_device(), trust)
    torch.manual_seed(config.train.seed + 1)
    untrained = Transformer(config.model).to(device_of(model)).eval()
    same = {"run": str(folder), "method": config.method, "trained_on": config.data.examples, "fit": fit, "step": step}
    return [same | row for row in probe(model, untrained, config.task, lengths, layers, prompts, fit, begin)]


def add_arguments(parser):
    add_run_arguments(parser)
    parser.add_argument(
        "--at-layers",
        type=whole_numbers,
        metavar="N,N,…",
        help="after these layers; 0: embedding (quarters of the depth)",
    )
    parser.add_argument("--prompts", type=int, help="prompts to fit on (1024), or to average attention over (64)")
    parser.add_argument("--fit", choices=("ridge", "gradient"), default="ridge", help="closed form, or trained (ridge)")
    also = (
        "draw how much tokens take from each other instead, in every head of --at-layers, with --lengths N examples (4)"
    )
    parser.add_argument("--attention", metavar="FILE", help=also)


def run(args):
    from minicl import draw, draw_layers

    check_run_arguments(args)
    if args.attention is not None:
        return _attention(args)
    records, work = [], []
    for folder in args.runs:
        config = runs.read_config(folder, args.trust)
        check_layers(folder, config, args.at_layers)
        lengths = choose_lengths(folder, config, args.lengths, longest_from(args.max_examples), USUAL_LENGTHS)
        work += [(folder, config, lengths, step) for step in choose_checkpoints(folder, args.checkpoints)]
    prompts = 1024 if args.prompts is None else args.prompts
    parts = sum(2 * len(SEEDS) * len(groups_of(lengths)) for _, _, lengths, _ in work)
    with Progress(parts) as progress:
        for folder, config, lengths, step in work:
            with use_threads(args.threads or config.machine.threads):
                begin = partial(lambda where, text: progress(f"{where}: {text}"), f"{folder} step {step}")
                records += of_run(folder, lengths, args.at_layers, prompts, args.fit, step, args.trust, begin)
    print(json.dumps(records) if args.json else table(records))
    if args.plot is not None:
        draw.save(draw_layers.probes(records), args.plot)
    return 0


def _attention(args):
    from minicl import attention, draw, draw_masks

    draw.check_ending(args.attention)
    beside = ("at_layers", "lengths", "prompts", "checkpoints", "threads", "trust", "json")
    check_alone("attention", args, add_arguments, beside)
    one = args.lengths is None or len(args.lengths) == 1
    check(one, "lengths with --attention", f"{len(args.lengths or ())} numbers", "one number")
    n, prompts = args.lengths[0] if args.lengths else None, 64 if args.prompts is None else args.prompts
    records = []
    for folder in args.runs:
        config = runs.read_config(folder, args.trust)
        choose_lengths(folder, config, args.lengths, None)  # refuses more examples than there are positions for
        for step in choose_checkpoints(folder, args.checkpoints):
            with use_threads(args.threads or config.machine.threads):
                records += attention.of_run(folder, args.at_layers, n, prompts, step, args.trust)
    print(json.dumps(records) if args.json else attention.table(records))
    draw.save(draw_masks.attention(records), args.attention)
    return 0


def table(records: Sequence[dict[str, Any]]) -> str:
    """For each run and checkpoint: the probes at the training length (or the longest below it), one row per layer."""
    lines = []
    for run, step in dict.fromkeys((r["run"], r["step"]) for r in records):
        mine = [r for r in records if (r["run"], r["step"]) == (run, step)]
        n = max((r["examples"] for r in mine if r["examples"] <= r["trained_on"]), default=mine[0]["examples"])
        at = {(r["probe"], r["layer"]): r for r in mine if r["examples"] == n}
        kinds = [k for k in ("target", "untrained", "shuffled", "weights") if any(key[0] == k for key in at)]
        rows = [["layer", *kinds]]
        for layer in sorted({layer for _, layer in at if layer is not None}):
            rows.append([str(layer), *(f"{at[k, layer]['mean']:.3g}" for k in kinds)])
        own = f"the model's own error {at['model', None]['mean']:.3g}"
        lines += [f"{run} ({mine[0]['method']}, step {step}) with {n} examples; {own}", *columns(rows), ""]
    return "\n".join([*lines, "errors of linear probes; 1 is that of answering 0"])
