"""A model's answers after 0, 1, …, N examples: by one pass for each length, or by one pass for all where that is exact.

A context token is *settled* if it sees, directly and through others, only examples up to its own: then its states are
the same in every longer context. Under `ar`, `nope` and `boe` all are, so one pass serves all lengths: each query is
shown the examples that it may see. Under `invicl` and `prefix` not all are.
"""

import dataclasses
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from minicl.masks import PER_EXAMPLE, Layout
from minicl.model import Transformer

ALL_CHECKED = 256  # of longer prompts some lengths are looked at: their masks are large
CHUNK = 2**14  # tokens that go through the model at once: bounds memory whatever the number of prompts


class States(NamedTuple):
    """What is read at the query after n examples, for each of L lengths n."""

    query: Tensor  # (B, L) the answers
    hidden: dict[int, Tensor]  # (B, L, E) the query token's states, of the layers that were asked for


def answers(model: Callable, xs: Tensor, ys: Tensor, queries: Tensor, lengths: Sequence[int]) -> Tensor:
    """(B, L): the answer to queries[:, n] from the first n examples, for each n of `lengths`."""
    return states(model, xs, ys, queries, lengths).query


@torch.inference_mode()
def states(
    model: Callable, xs: Tensor, ys: Tensor, queries: Tensor, lengths: Sequence[int], layers: Iterable[int] = ()
) -> States:
    """The answers, and the hidden states behind them; some prompts at a time, so that memory is bounded."""
    longest = max(lengths)
    tokens = PER_EXAMPLE * longest * getattr(model, "copies", 1) + 1
    way = plain
    if isinstance(model, Transformer) and _settled(model, lengths):
        way, tokens = _one_pass, tokens + len(lengths)
    step = max(1, CHUNK // tokens)
    chunks = [
        way(model, *(t[i : i + step] for t in (xs, ys, queries)), lengths, frozenset(layers))
        for i in range(0, len(xs), step)
    ]
    return _join(chunks, dim=0)


def _join(parts, dim):
    hidden = {layer: torch.cat([part.hidden[layer] for part in parts], dim) for layer in parts[0].hidden}
    return States(torch.cat([part.query for part in parts], dim), hidden)


def plain(
    model: Callable, xs: Tensor, ys: Tensor, queries: Tensor, lengths: Sequence[int], layers: Iterable[int] = ()
) -> States:
    """The reference: one pass for each length. It takes anything that is called as a model is."""
    more = {"hidden": layers} if layers else {}
    passes = [model(xs[:, :n], ys[:, :n], queries[:, n : n + 1], **more) for n in lengths]
    return _join([_at_queries(out) for out in passes], dim=1)


def _at_queries(out):
    readings = getattr(out, "hidden", {})
    return States(out.query, {layer: reading.query for layer, reading in readings.items()})


def _settled(model, lengths):
    """Whether every context token is settled, and every shorter prompt's mask is the longest one's, cut."""
    longest = max(lengths)
    if model.strategy.sees_query or not longest:
        return False
    layout = model.layout(longest, 1)
    t, sees = layout.tokens, _any_layer(layout)
    later = (sees & (t.example[None, :] > t.example[:, None])).any(1) & ~t.is_query
    reached = later
    while True:  # through others
        more = reached | (sees & reached[None, :]).any(1) & ~t.is_query
        if torch.equal(more, reached):
            break
        reached = more
    return not reached.any() and _nested(model, layout, lengths)


def _any_layer(layout):
    return layout.mask if layout.mask.ndim == 2 else layout.mask.any(0)


def _nested(model, whole, lengths):
    """Whether shorter prompts have the longest one's mask, cut: not so if a predicate counts its examples."""
    every = sorted({*lengths, max(lengths) - 1} - {0})  # a predicate need not work without any tokens
    for n in every if max(lengths) <= ALL_CHECKED else every[:: max(1, len(every) // 8)] + every[-2:]:
        inside = (whole.tokens.example < n) | whole.tokens.is_query
        if not torch.equal(whole.mask[..., inside, :][..., inside], model.layout(n, 1).mask):
            return False
    return True


def _one_pass(model, xs, ys, queries, lengths, layers):
    """All lengths at once: query j stands after the first lengths[j] examples and sees those."""
    N, ends = max(lengths), torch.tensor(lengths, device=xs.device)
    whole: Layout = model.layout(N, len(lengths), xs.device)
    mask, positions = whole.mask.clone(), whole.positions
    hidden = whole.tokens.example[None, :] >= ends[:, None]  # (m, T): what comes after a query
    mask[..., whole.query, :] &= ~hidden
    empty = whole.query[ends == 0]
    mask[..., empty, empty] = True  # a blind query sees itself where there is nothing else
    if model.positions == "absolute":
        positions = positions.clone()
        positions[whole.query] = PER_EXAMPLE * ends
    cut = dataclasses.replace(whole, mask=mask, positions=positions)
    return _at_queries(model.propagate(xs[:, :N], ys[:, :N], queries[:, lengths], cut, layers))
