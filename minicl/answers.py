"""A model's answers after 0, 1, …, N examples: by one pass for each length, or by less work where that is exact.

A context token is *settled* if it sees, directly and through others, only examples up to its own: then its states are
the same in every longer context. Under `ar`, `nope` and `boe` all are, so one pass serves all lengths: each query is
shown the examples that it may see. Under `ar` and `nope` the next x is as good as a query, if both are the same.
Under `invicl` copy 0 is settled: it is computed once, and copy 1 for each length. Under `prefix` nothing is.
"""

import dataclasses
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor, nn

from minicl.masks import COUNTING, PER_EXAMPLE, Layout, is_causal
from minicl.model import Output, Transformer

ALL_CHECKED = 256  # of longer prompts some lengths are looked at: their masks are large
CHUNK = {"cpu": 2**14, "cuda": 2**18}  # tokens that go through the model at once: bounds memory, and fills a GPU


class States(NamedTuple):
    """What is read at the query after n examples, for each of L lengths n."""

    query: Tensor  # (B, L) the answers
    hidden: dict[int, Tensor]  # (B, L, E) the query token's states, of the layers that were asked for


class Windowed(nn.Module):
    """A model that is shown only the last `size` examples: what it costs nothing to do with any model."""

    def __init__(self, model: nn.Module, size: int):
        super().__init__()
        self.model, self.size = model, size

    def forward(self, xs: Tensor, ys: Tensor, queries: Tensor, **more) -> Output:
        start = max(0, xs.shape[1] - self.size)
        return self.model(xs[:, start:], ys[:, start:], queries, **more)


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
    if settled is not None and settled.all() and torch.equal(xs, queries) and _asked_in_context(model, lengths):
        way = _in_context
    elif settled is not None and settled.all():
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
    if model.strategy.sees_query or model.strategy.average or model.positions == "random":
        return None  # the last: an example's rows depend on how many there are
    layout = model.layout(max(lengths), 1)
    if not _nested(model, layout, lengths):
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
    """Whether shorter prompts have the longest one's mask and positions, cut: not so if a predicate counts examples."""
    every = sorted({*lengths, max(lengths) - 1} - {0})  # a predicate need not work without any tokens
    for n in every if max(lengths) <= ALL_CHECKED else every[:: max(1, len(every) // 8)] + every[-2:]:
        inside = (whole.tokens.example < n) | whole.tokens.is_query
        shorter = model.layout(n, 1)
        if not torch.equal(whole.mask[..., inside, :][..., inside], shorter.mask):
            return False
        if whole.positions is not None and not torch.equal(whole.positions[inside][:-1], shorter.positions[:-1]):
            return False
    return True


def _asked_in_context(model, lengths):
    """Whether x of each example stands where a query would, and sees what it would: as under a causal mask."""
    whole = model.layout(max(lengths), 1)
    if model.copies > 1 or (whole.positions is not None and model.positions not in COUNTING):
        return False
    for n in {*lengths} - {max(lengths)}:
        row, query = whole.mask[..., PER_EXAMPLE * n, : PER_EXAMPLE * n + 1], model.layout(n, 1).mask[..., -1, :]
        if not torch.equal(row, query):
            return False
    return True


def _in_context(model, xs, ys, queries, lengths, layers):
    """All lengths at once, where the queries are the inputs that follow: the context's predictions are the answers."""
    N = max(lengths)
    prompt = xs[:, :N], ys[:, :N], queries[:, N : N + 1]
    out = model.propagate(*prompt, model.layout(N, 1, xs.device), layers)

    def chosen(reading):
        return torch.cat(reading, dim=1)[:, lengths]

    hidden = {layer: chosen(reading) for layer, reading in out.hidden.items()}
    return States(chosen((out.context, out.query)), hidden)


def _one_pass(model, xs, ys, queries, lengths, layers):
    """All lengths at once: query j stands after the first lengths[j] examples and sees those."""
    N, ends = max(lengths), torch.tensor(lengths)
    whole: Layout = model.layout(N, len(lengths))
    mask, positions = whole.mask.clone(), whole.positions
    hidden = whole.tokens.example[None, :] >= ends[:, None]  # (m, T): what comes after a query
    mask[..., whole.query, :] &= ~hidden
    empty = whole.query[ends == 0]
    mask[..., empty, empty] = True  # a blind query sees itself where there is nothing else
    if model.positions in COUNTING:
        positions = positions.clone()
        positions[whole.query] = PER_EXAMPLE * ends
    cut = dataclasses.replace(whole, mask=mask, positions=positions, causal=is_causal(mask)).to(xs.device)
    return _at_queries(model.propagate(xs[:, :N], ys[:, :N], queries[:, lengths], cut, layers))


def _sharing(settled, model, xs, ys, queries, lengths, layers):
    """The settled tokens once, their keys and values kept; then for each length the others and its query."""
    N, none = max(lengths), queries[:, :0]
    whole = model.layout(N, 0)
    order = _by_example(whole, settled)
    _, _, kept = _some_tokens(model, (xs[:, :N], ys[:, :N], none), whole, order, order)
    passes = []
    for n in lengths:
        layout = model.layout(n, 1)
        inside = settled[whole.tokens.example < n]
        shared, rest = _by_example(layout, inside), torch.cat([~inside, layout.tokens.is_query[-1:]]).nonzero()[:, 0]
        prompt = xs[:, :n], ys[:, :n], queries[:, n : n + 1]
        seen = [[t[:, :, : len(shared)] for t in pair] for pair in kept]
        states, h, _ = _some_tokens(model, prompt, layout, rest, torch.cat([shared, rest]), seen)
        passes.append(States(model.answers(h[:, -1:]), {layer: states[layer] for layer in layers}))
    return _join(passes, dim=1)


def _some_tokens(model, prompt, layout, tokens, keys, seen=None):
    """Some tokens of a prompt through all layers. They see the `keys`: those of `seen`, and then themselves.

    Returns the last one's states of every layer, the last states of all, and their keys and values in every layer.
    """
    layout_there, depth = layout.to(prompt[0].device), len(model.blocks)
    h = model.embed(*prompt, layout_there)[:, tokens]
    biases = layout.bias(h.dtype)[..., tokens, :][..., keys].to(h.device).expand(depth, -1, -1)
    turn = model.turn(layout_there)
    turn = turn if turn is None else turn[tokens]
    last, kept = {0: h[:, -1:]}, []
    for layer, (block, bias) in enumerate(zip(model.blocks, biases, strict=True), start=1):
        q, *own = block.attn.heads(block.ln_1(h), turn)
        kept.append(own)
        k, v = own if seen is None else (torch.cat(pair, dim=2) for pair in zip(seen[layer - 1], own, strict=True))
        h = h + block.attn.attend(q, k, v, bias)
        h = h + block.mlp(block.ln_2(h))
        last[layer] = h[:, -1:]
    return last, h, kept


def _by_example(layout, chosen):
    """The chosen context tokens in the order of their examples, so that a shorter prompt has the first of them."""
    tokens = chosen.nonzero()[:, 0]
    return tokens[layout.tokens.example[tokens].argsort(stable=True)]
