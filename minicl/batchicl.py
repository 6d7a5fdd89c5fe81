"""BatchICL: a pass for each example, with the query; then the mean of the query's states goes on by itself.

In the first layers the query sees one example at a time. After a layer (`--average-at`) its states are averaged over
the examples. In the layers that are left it sees only itself, as in a pass without examples.
"""

from collections.abc import Collection
from typing import TYPE_CHECKING

import torch
from torch import Tensor

if TYPE_CHECKING:
    from minicl.model import ModelConfig, Transformer

Pair = tuple[Tensor, Tensor]  # something read at x of every example, (B, n, …), and at every query, (B, m, …)


def average_passes(
    model: "Transformer", xs: Tensor, ys: Tensor, queries: Tensor, hidden: Collection[int] = ()
) -> tuple[Pair, dict[int, Pair]]:
    """The answers, and the states of the layers in `hidden`; up to the average, the mean over the passes."""
    (B, n, d), m, at = xs.shape, queries.shape[1], model.config.averaged_at
    zero = model.layout(0, n + m, xs.device)  # every token sees only itself
    if n:
        one = model.layout(1, m, xs.device)
        passes = xs.reshape(B * n, 1, d), ys.reshape(B * n, 1), queries.repeat_interleave(n, dim=0)
        h, before = model.through(model.embed(*passes, one), one, hidden, last=at)
    else:
        h, before = model.through(model.embed(xs, ys, queries, zero), zero, hidden, last=at)

    def together(h):
        """(B, n + m, E): x of every example, and the mean of the queries over the passes."""
        if not n:
            return h
        x, query = (t.unflatten(0, (B, n)) for t in model.where_predicted(h, 1))
        return torch.cat([x[:, :, 0], query.mean(1)], dim=1)

    h, after = model.through(together(h), zero, hidden, first=at)
    states = {layer: together(h) for layer, h in before.items()} | after
    return _split(model.answers(h), n), {layer: _split(h, n) for layer, h in states.items()}


def _split(t, n):
    return t[:, :n], t[:, n:]


def tokens(config: "ModelConfig", n: int, m: int) -> float:
    """Tokens in each layer, on average over the layers."""
    share = config.averaged_at / config.n_layer if n else 0.0
    return share * n * len(config.layout(1, m).tokens.copy) + (1 - share) * (n + m)


def pairs(config: "ModelConfig", n: int) -> float:
    """Token pairs in attention for one query, on average over the layers: those of a pass n times, then n + 1."""
    share = config.averaged_at / config.n_layer
    return share * config.layout(1, 1).pairs * n + (1 - share) * (n + 1)
