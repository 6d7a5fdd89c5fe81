"""The mask as a graph: what can reach a prediction through the layers, and what a swap of inputs can change.

Nothing here knows a model. A token after ℓ layers has heard of whatever the product of ℓ masks lets through.
"""

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from minicl.masks import Layout


def reach(masks: Iterable[Tensor], tokens: int) -> Tensor:
    """(…, T, T) bool: who can have heard of whom after these layers. A token always keeps itself (the residual)."""
    heard = torch.eye(tokens, dtype=torch.bool)
    for mask in masks:
        heard = heard | (mask.float() @ heard.float() > 0)
    return heard


class Dependencies(NamedTuple):
    """Which prediction can depend on which input: rows 0 … n−1 are the context predictions, row n is the query's."""

    x: Tensor  # (n + 1, n) bool: on x_j
    y: Tensor  # (n + 1, n) bool: on y_j
    query: Tensor  # (n + 1,) bool: on the query's x

    @property
    def n(self) -> int:
        return self.x.shape[1]

    @property
    def examples(self) -> Tensor:
        """(n + 1, n) bool: on any part of example j."""
        return self.x | self.y

    @property
    def leaks(self) -> list[int]:
        """The examples whose prediction depends on their own label."""
        return self.y[: self.n].diagonal().nonzero()[:, 0].tolist()

    @property
    def informed(self) -> bool:
        """Whether some context prediction depends on another example's label, so that there is something to learn."""
        return bool((self.y[: self.n] & ~torch.eye(self.n, dtype=torch.bool)).any())

    def equals(self, other: "Dependencies") -> bool:
        return all(torch.equal(a, b) for a, b in zip(self, other, strict=True))


def dependencies(layout: Layout, layers: int) -> Dependencies:
    """Of a Layout with one query, through so many layers."""
    t, n = layout.tokens, len(layout.context)
    heard = reach(layout.masks(layers), len(t.copy)).float()
    read = torch.cat([layout.context, layout.query])

    def on(chosen):
        """(n + 1, n): whether any token of this kind, of example j, was heard of."""
        of_example = (t.example[:, None] == torch.arange(n)) & chosen[:, None]
        return (heard @ of_example.float() > 0)[read]

    return Dependencies(on(~t.is_label), on(t.is_label), heard[read][:, layout.query[0]] > 0)


def apart(one: Dependencies, n: int) -> Dependencies:
    """Of n examples that are each in a pass of its own, from the Dependencies in such a pass."""
    own = torch.eye(n, dtype=torch.bool)

    def all_passes(table):
        return torch.cat([own & table[0], torch.ones(1, n, dtype=torch.bool) & table[1]])

    return Dependencies(all_passes(one.x), all_passes(one.y), one.query[[0] * n + [1]])


def leave_one_out(n: int) -> Dependencies:
    """Where every context prediction depends on all other examples and on its own x."""
    x, y = torch.ones(2, n + 1, n, dtype=torch.bool)
    return Dependencies(x, y & ~torch.eye(n + 1, n, dtype=torch.bool), torch.arange(n + 1) == n)


def inputs(layout: Layout) -> list[tuple[str, int]]:
    """Which input each token is made of, as ("x", i), ("y", i) or ("query", −1). Copies share theirs."""
    t = layout.tokens
    rows = zip(t.example.tolist(), t.is_label.tolist(), t.is_query.tolist(), strict=True)
    return [("query" if query else "y" if label else "x", example) for example, label, query in rows]


def swap(kinds: str, i: int, j: int) -> dict[tuple[str, int], tuple[str, int]]:
    """The exchange of inputs of examples i and j: of their labels ("y"), or of both x and y ("xy")."""
    return {(kind, a): (kind, b) for kind in kinds for a, b in ((i, j), (j, i))}


def sees(mask: Tensor) -> list[list[int]]:
    """For each token the tokens that it sees."""
    return [row.nonzero()[:, 0].tolist() for row in mask]


def shown_after(
    seen: Sequence[list[list[int]]], inputs: Sequence, positions: Sequence[int], exchange: dict, relative: bool = False
) -> int | None:
    """The first layer at which the last token can tell that inputs were exchanged, or None.

    `seen` has for each layer what `sees` returns. Decided by refining colours, as in the Weisfeiler-Leman test: a
    token's new colour is its old one and the proportions of the colours that it sees, which is all that attention can
    tell apart. It is exact for weights in general position. `relative` positions are no part of a token's colour: it
    knows only how far away the others are.
    """
    place = [0] * len(inputs) if relative else positions
    far = positions if relative else [0] * len(inputs)
    before = list(zip(inputs, place, strict=True))
    after = [(exchange.get(i, i), p) for i, p in before]
    numbers = {}  # a colour's history → a number, shared by both sides

    def refine(colours, seen):
        new = []
        for q, (own, tokens) in enumerate(zip(colours, seen, strict=True)):
            count = Counter((colours[k], far[k] - far[q]) for k in tokens)
            common = math.gcd(*count.values())  # attention averages: it sees proportions, not counts
            key = (own, frozenset((c, times // common) for c, times in count.items()))
            new.append(numbers.setdefault(key, len(numbers)))
        return new

    same_in_all = all(layer is seen[0] for layer in seen)
    kinds = 0
    for layer, tokens in enumerate(seen, start=1):
        before, after = refine(before, tokens), refine(after, tokens)
        if before[-1] != after[-1]:
            return layer
        kinds, last = len({*before, *after}), kinds
        if kinds == last and same_in_all:  # colours that are no finer than before stay as they are
            break
    return None


def label_spread(layout: Layout, layers: int, i: int) -> list[dict[int, int | None]]:
    """How label i gets around: after 0, 1, … layers, {token that hears of it for the first time: from which token}.

    It ends with the layer at which prediction i has heard of it.
    """
    goal = int(layout.context[i])
    starts = ((layout.tokens.example == i) & layout.tokens.is_label).nonzero()[:, 0].tolist()
    spread, heard = [dict.fromkeys(starts)], set(starts)
    for mask in layout.masks(layers):
        if goal in heard:
            break
        new = {}
        for k in (token for earlier in spread for token in earlier):
            for q in mask[:, k].nonzero()[:, 0].tolist():
                if q not in heard:
                    new.setdefault(q, k)
        spread.append(new)
        heard |= new.keys()
    return spread


def label_path(layout: Layout, layers: int, i: int) -> tuple[int, list[int]]:
    """(the layer at which label i first reaches prediction i, the tokens on its way there)."""
    spread = label_spread(layout, layers, i)
    came_from = {token: source for new in spread for token, source in new.items()}
    path = [int(layout.context[i])]
    while came_from[path[-1]] is not None:
        path.append(came_from[path[-1]])
    return len(spread) - 1, path[::-1]
