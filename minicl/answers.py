"""A model's answers after 0, 1, …, N examples: by one pass for each length, or by less work where that is exact.

A context token is *settled* if it sees, directly and through others, only examples up to its own: then its states are
the same in every longer context. Under `ar`, `nope` and `boe` all are, so one pass serves all lengths: each query is
shown the examples that it may see. Under `invicl` copy 0 is settled: it is computed once, and copy 1 for each length.
Under `prefix` nothing is.
"""

import dataclasses
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor

from minicl.masks import PER_EXAMPLE, Layout
from minicl.model import Transformer

ALL_CHECKED = 256  # of longer prompts some lengths are looked at: their masks are large
CHUNK = {"cpu": 2**14, "cuda": 2**18}  # tokens that go through the model at once: bounds memory, and fills a GPU


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
    way, settled = plain, _settled(model, lengths) if isinstance(model, Transformer) and longest else None
    if settled is not None and settled.all():
        way, tokens = _one_pass, tokens + len(lengths)
    elif settled is not None and settled.any():
        way = partial(_sharing, settled)
    step = max(1, CHUNK.get(xs.device.type, max(CHUNK.values())) // tokens)
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
    """(context tokens of the longest prompt) bool: which are settled. None if some shorter prompt's mask is another."""
    layout = model.layout(max(lengths), 1)
    if model.strategy.sees_query or not _nested(model, layout, lengths):
        return None
    t, sees = layout.tokens, _any_layer(layout)
    reached = (sees & (t.example[None, :] > t.example[:, None])).any(1) & ~t.is_query
    while True:  # through others
        more = reached | (sees & reached[None, :]).any(1) & ~t.is_query
        if torch.equal(more, reached):
            return ~reached[~t.is_query]
        reached = more


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
    N, ends = max(lengths), torch.tensor(lengths)
    whole: Layout = model.layout(N, len(lengths))
    mask, positions = whole.mask.clone(), whole.positions
    hidden = whole.tokens.example[None, :] >= ends[:, None]  # (m, T): what comes after a query
    mask[..., whole.query, :] &= ~hidden
    empty = whole.query[ends == 0]
    mask[..., empty, empty] = True  # a blind query sees itself where there is nothing else
    if model.positions == "absolute":
        positions = positions.clone()
        positions[whole.query] = PER_EXAMPLE * ends
    cut = dataclasses.replace(whole, mask=mask, positions=positions).to(xs.device)
    return _at_queries(model.propagate(xs[:, :N], ys[:, :N], queries[:, lengths], cut, layers))


def _sharing(settled, model, xs, ys, queries, lengths, layers):
    """The settled tokens once, their keys and values kept; then for each length the others and its query."""
    N, none, device = max(lengths), queries[:, :0], xs.device
    whole = model.layout(N, 0)
    order = _by_example(whole, settled)
    h = model.embed(xs[:, :N], ys[:, :N], none, whole.to(device))[:, order]
    biases, kept = whole.bias(h.dtype)[..., order, :][..., order].to(device), []
    for block, bias in zip(model.blocks, biases.expand(len(model.blocks), -1, -1), strict=True):
        h, seen = _block(block, h, bias)
        kept.append(seen)
    passes = []
    for n in lengths:
        layout = model.layout(n, 1)
        inside = settled[whole.tokens.example < n]
        shared, rest = _by_example(layout, inside), torch.cat([~inside, layout.tokens.is_query[-1:]]).nonzero()[:, 0]
        h = model.embed(xs[:, :n], ys[:, :n], queries[:, n : n + 1], layout.to(device))[:, rest]
        biases = layout.bias(h.dtype)[..., rest, :][..., torch.cat([shared, rest])].to(device)
        hidden = {0: h[:, -1:]}
        for i, bias in enumerate(biases.expand(len(kept), -1, -1)):
            h, _ = _block(model.blocks[i], h, bias, [t[:, :, : len(shared)] for t in kept[i]])
            hidden[i + 1] = h[:, -1:]
        answer = model.read_out(model.ln_f(h[:, -1:]))[..., 0]
        passes.append(States(answer, {layer: hidden[layer] for layer in layers}))
    return _join(passes, dim=1)


def _by_example(layout, chosen):
    """The chosen context tokens in the order of their examples, so that a shorter prompt has the first of them."""
    tokens = chosen.nonzero()[:, 0]
    return tokens[layout.tokens.example[tokens].argsort(stable=True)]


def _block(block, h, bias, seen=()):
    """A block on some of the tokens, which also see others by their keys and values; all keys and values too."""
    q, *own = block.attn.heads(block.ln_1(h))
    k, v = own = [torch.cat(pair, dim=2) for pair in zip(seen, own, strict=True)] if seen else own
    h = h + block.attn.attend(q, k, v, bias)
    return h + block.mlp(block.ln_2(h)), own
