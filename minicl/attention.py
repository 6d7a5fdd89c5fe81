"""Attention maps of trained runs: how much each token takes from each other, the mean over prompts.

The model computes attention in one fused step that keeps no weights. Here they are computed by themselves: the softmax
of q·k under the layout's mask, from the states that go into each layer.
"""

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from minicl import runs
from minicl.auditing import token_names
from minicl.checks import check, check_int
from minicl.devices import auto_device, device_of
from minicl.masks import Layout
from minicl.model import Transformer
from minicl.text import columns

CHUNK = 2**24  # weights that are held at once: bounds memory
FEW = 4  # examples, if no number is named: tokens can still be told apart in a picture


@torch.no_grad()
def weights(
    model: Transformer, xs: Tensor, ys: Tensor, queries: Tensor, layout: Layout, layers: Sequence[int]
) -> dict[int, Tensor]:
    """{layer: (B, H, T, T)}: in each row the shares that a token takes from the tokens that it sees."""
    before = [layer - 1 for layer in layers]
    _, states = model.through(model.embed(xs, ys, queries, layout), layout, before)
    bias, turn = layout.bias(xs.dtype).expand(len(model.blocks), -1, -1), model.turn(layout)
    found = {}
    for layer in layers:
        block = model.blocks[layer - 1]
        q, k, _ = block.attn.heads(block.ln_1(states[layer - 1]), turn)
        scores = q @ k.mT / math.sqrt(q.shape[-1])
        found[layer] = (scores + bias[layer - 1]).softmax(-1)
    return found


def of_run(
    folder: str | Path,
    layers: Sequence[int] | None = None,
    examples: int | None = None,
    prompts: int = 64,
    step: int | None = None,
    trust: bool = False,
) -> list[dict[str, Any]]:
    """A record for every layer (by default quarters of the depth) and head of one checkpoint: the mean over prompts."""
    config = runs.read_config(folder, trust)
    depth, trained = config.model.n_layer, config.data.examples
    check(config.model.architecture == "transformer", "attention", f"{folder}, a set encoder", "runs of transformers")
    check(
        not config.model.strategy.average, "attention", f"{folder}, which averages several passes", "runs of one pass"
    )
    layers = layers or sorted({max(1, depth * q // 4) for q in (1, 2, 3, 4)})
    for layer in layers:
        check_int("at-layers with --attention", layer, least=1, most=depth)
    check_int("prompts", prompts, least=1)
    n = min(FEW, trained) if examples is None else examples
    model = runs.load(folder, step, auto_device(), trust)
    p = config.task.sample(prompts, n + 1, device=device_of(model))
    layout = model.layout(n, 1, p.xs.device)
    masks, T, heads = layout.masks(depth), len(layout.tokens.copy), config.model.n_head
    some = max(1, CHUNK // (heads * T * T * len(layers)))
    total = dict.fromkeys(layers, 0)
    for i in range(0, prompts, some):
        prompt = p.xs[i : i + some, :n], p.ys[i : i + some, :n], p.queries[i : i + some, n:]
        for layer, w in weights(model, *prompt, layout, layers).items():
            total[layer] = total[layer] + w.double().sum(0)
    same = {"run": str(folder), "step": step, "method": config.method, "examples": n, "trained_on": trained}
    same |= {"prompts": prompts, "tokens": token_names(layout), "copies": model.copies}
    return [
        same | {"layer": layer, "head": head, "sees": masks[layer - 1].tolist(), "attention": mean.tolist()}
        for layer in layers
        for head, mean in enumerate(total[layer] / prompts, start=1)
    ]


def table(records: Sequence[dict[str, Any]]) -> str:
    """Where the query looks, one row for each layer and head."""
    lines = []
    for run, step in dict.fromkeys((r["run"], r["step"]) for r in records):
        mine = [r for r in records if (r["run"], r["step"]) == (run, step)]
        rows = [["layer", "head", "inputs", "labels", "itself"]]
        for r in mine:
            share = dict.fromkeys("xyq", 0.0)
            for token, weight in zip(r["tokens"], r["attention"][-1], strict=True):
                share[token[0]] += weight
            rows.append([str(r["layer"]), str(r["head"]), *(f"{part:.0%}" for part in share.values())])
        about = (
            f"{mine[0]['method']}, step {step}; {mine[0]['examples']} examples, mean over {mine[0]['prompts']} prompts"
        )
        lines += [f"where the query of {run} looks ({about})", *columns(rows), ""]
    return "\n".join(lines[:-1])
