"""A model's answers after 0, 1, …, N examples: by one pass a length, and by exact shortcuts that share work.

A context token is *settled* if it sees, directly and through others, only examples up to its own: then its states are
the same in every longer context. Under `ar`, `nope` and `boe` all are, so one pass serves all lengths: each query is
shown the examples that it may see. Under `invicl` copy 0 is, so its keys and values are computed once. Under `prefix`
none is.
"""

import dataclasses
import functools

import torch

from minicl.masks import layout

CHUNK = 2**14  # tokens that go through the model at once: bounds memory whatever the number of prompts


@torch.inference_mode()
def answers(model, xs, ys, queries, lengths):
    """(B, len(lengths)): the answer to queries[:, n] from the first n examples, for each n of `lengths`."""
    way, tokens = _way(model, lengths)
    step = max(1, CHUNK // max(1, tokens))
    parts = [way(model, *(t[i : i + step] for t in (xs, ys, queries)), lengths) for i in range(0, len(xs), step)]
    return torch.cat(parts)


def plain(model, xs, ys, queries, lengths):
    """The reference: one pass a length. It takes anything that is called as a model is."""
    return torch.cat([model(xs[:, :n], ys[:, :n], queries[:, n : n + 1]).query for n in lengths], dim=1)


def _plain(model, xs, ys, queries, lengths):
    """The same, of a model that need not be asked for context predictions."""
    return plain(functools.partial(model, context=False), xs, ys, queries, lengths)


def _way(model, lengths):
    """The fastest exact way for this model, and about how many tokens a prompt has in it."""
    longest = max(lengths)
    strategy = getattr(model, "strategy", None)
    if strategy is None:
        return plain, 2 * longest + 1
    T = 2 * longest * model.copies + 1
    if strategy.sees_query or not _nested(model, lengths):
        return _plain, T
    plan = layout(strategy, longest, 0, model.positions, model.copies)
    settled, first = _settled(plan), plan.tokens.copy == 0
    if settled.all():
        return _one_pass, T + len(lengths)
    alone = settled[first].all() and not plan.mask[first][:, ~first].any()
    return (_shared_first_copy if alone else _plain), T


def _nested(model, lengths):
    """Whether the mask of a shorter context is that of the longest one, cut: not so if a predicate counts examples."""
    longest = max(lengths)
    if not longest:
        return False
    whole = layout(model.strategy, longest, 0, model.positions, model.copies)
    some = sorted({*lengths, longest - 1} - {0})  # a predicate need not work without any tokens
    for n in some[:: max(1, len(some) // 8)] + some[-2:]:
        part = layout(model.strategy, n, 0, model.positions, model.copies).mask
        inside = whole.tokens.example < n
        if not torch.equal(whole.mask[inside][:, inside], part):
            return False
    return True


def _settled(plan):
    """(T,) bool, for a layout without queries."""
    later = (plan.mask & (plan.tokens.example[None, :] > plan.tokens.example[:, None])).any(1)
    while True:
        more = later | (plan.mask & later[None, :]).any(1)
        if torch.equal(more, later):
            return ~later
        later = more


def _one_pass(model, xs, ys, queries, lengths):
    """All lengths at once: query j stands after the first lengths[j] examples and sees those."""
    N, ends = max(lengths), torch.tensor(lengths, device=xs.device)
    base = layout(model.strategy, N, len(lengths), model.positions, model.copies, xs.device)
    t = base.tokens
    mask, positions = base.mask.clone(), base.positions
    hidden = t.example[None, :] >= ends[:, None]  # (m, T): what comes after a query
    mask[base.query] &= ~hidden
    mask[base.query[ends == 0], base.query[ends == 0]] = True  # a blind query sees itself where there is nothing else
    if model.positions == "absolute":
        positions = positions.clone()
        positions[base.query] = 2 * ends
    plan = dataclasses.replace(base, mask=mask, positions=positions, causal=False, tails={})
    tail = plan.tail(len(model.blocks), context=False)
    return model.propagate(xs[:, :N], ys[:, :N], queries[:, lengths], plan, tail)


def _shared_first_copy(model, xs, ys, queries, lengths):
    """Copy 0 once, for the longest context; then the rest for every length, on copy 0's keys and values."""
    N = max(lengths)
    whole = layout(model.strategy, N, 1, model.positions, model.copies, xs.device)
    first = slice(0, 2 * N)
    h = model.embed(xs[:, :N], ys[:, :N], queries[:, :1], whole)[:, first]
    past = []
    for block in model.blocks:
        past.append(block.attn.project(block.ln_1(h))[1:])
        h = block(h, whole.mask[first, first])
    out = []
    for n in lengths:
        plan = layout(model.strategy, n, 1, model.positions, model.copies, xs.device)
        mask = plan.mask[2 * n :]  # of copy 1 and the query
        h = model.embed(xs[:, :n], ys[:, :n], queries[:, n : n + 1], plan)[:, 2 * n :]
        for layer, (block, (k, v)) in enumerate(zip(model.blocks, past, strict=True), start=1):
            seen = (k[:, :, : 2 * n], v[:, :, : 2 * n])
            last = layer == len(model.blocks)  # of which only the query is read
            h = block(h, mask[-1:], seen, rows=slice(-1, None)) if last else block(h, mask, seen)
        out.append(model.predict(h))
    return torch.cat(out, dim=1)
