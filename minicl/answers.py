"""A model's answers after 0, 1, …, N examples: by one pass for each length, or by one pass for all where that is exact.

A context token is *settled* if it sees, directly and through others, only examples up to its own: then its states are
the same in every longer context. Under `ar`, `nope` and `boe` all are, so one pass serves all lengths: each query is
shown the examples that it may see. Under `invicl` and `prefix` not all are.
"""

import dataclasses
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from minicl.masks import PER_EXAMPLE, Layout
from minicl.model import Transformer

CHUNK = 2**14  # tokens that go through the model at once: bounds memory whatever the number of prompts


@torch.inference_mode()
def answers(model: Callable, xs: Tensor, ys: Tensor, queries: Tensor, lengths: Sequence[int]) -> Tensor:
    """(B, len(lengths)): the answer to queries[:, n] from the first n examples, for each n of `lengths`."""
    longest = max(lengths)
    tokens = PER_EXAMPLE * longest * getattr(model, "copies", 1) + 1
    way = plain
    if isinstance(model, Transformer) and _settled(model, lengths):
        way, tokens = _one_pass, tokens + len(lengths)
    step = max(1, CHUNK // tokens)
    parts = [way(model, *(t[i : i + step] for t in (xs, ys, queries)), lengths) for i in range(0, len(xs), step)]
    return torch.cat(parts)


def plain(model: Callable, xs: Tensor, ys: Tensor, queries: Tensor, lengths: Sequence[int]) -> Tensor:
    """The reference: one pass for each length. It takes anything that is called as a model is."""
    return torch.cat([model(xs[:, :n], ys[:, :n], queries[:, n : n + 1]).query for n in lengths], dim=1)


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
    some = sorted({*lengths, max(lengths) - 1} - {0})  # a predicate need not work without any tokens
    for n in some[:: max(1, len(some) // 8)] + some[-2:]:
        inside = (whole.tokens.example < n) | whole.tokens.is_query
        if not torch.equal(whole.mask[..., inside, :][..., inside], model.layout(n, 1).mask):
            return False
    return True


def _one_pass(model, xs, ys, queries, lengths):
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
    return model.propagate(xs[:, :N], ys[:, :N], queries[:, lengths], cut).query
