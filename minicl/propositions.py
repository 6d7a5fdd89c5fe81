"""The paper's three propositions about masks, checked on every mask that there is between 3 and between 4 examples.

A mask is between whole examples, as in the paper: its diagonal says whether an example attends to itself, and inside an
example x never sees y. The query sees every example and itself. Where nothing is seen, attention adds nothing.
"""

import json
from itertools import pairwise, product
from typing import Any

import torch

from minicl.checks import InputError
from minicl.graph import reach, shown_after, swap


def propositions(n: int) -> list[dict[str, Any]]:
    """For 1 … n layers: how many of the 2^(n·n) masks have each property, and whether each proposition holds."""
    masks = torch.tensor(list(product((False, True), repeat=n * n))).view(-1, n, n)
    itself = torch.eye(n, dtype=torch.bool)
    others = masks & ~itself
    named = {"M1": itself, "M2": ~itself, "0": itself | ~itself, "empty": itself & ~itself}
    stated = torch.stack([(masks == named[name]).flatten(1).all(1) for name in ("M1", "M2", "0")]).any(0)
    triangular = ~_returns(others, n)  # no way back: some order makes the mask triangular
    diagonal = ~others.flatten(1).any(1)
    shown = torch.tensor([_shown_after(mask, n) for mask in masks.tolist()])

    def names(chosen):
        """The chosen masks by name or, where they have none, by their rows; None when they are too many to list."""
        if chosen.sum() > 8:
            return None
        known = {m: name for name, mask in named.items() for m in [_rows(mask)]}
        return [known.get(_rows(m), _rows(m)) for m in masks[chosen]]

    records = []
    for layers in range(1, n + 1):
        invariant, no_leak = shown > layers, ~_returns(others, layers)
        both = invariant & no_leak
        records.append(
            {
                "examples": n,
                "layers": layers,
                "masks": len(masks),
                "invariant": int(invariant.sum()),
                "invariant_masks": names(invariant),
                "overlooked": names(invariant & ~stated),
                "no_leak": int(no_leak.sum()),
                "triangular": int(triangular.sum()),
                "both": int(both.sum()),
                "both_masks": names(both),
                "diagonal": int(diagonal.sum()),
                "proposition_1": torch.equal(invariant, stated),
                "proposition_2": torch.equal(no_leak, triangular),
                "proposition_3": torch.equal(both, diagonal),
            }
        )
    return records


def _rows(mask):
    return "/".join("".join(str(int(v)) for v in row) for row in mask)


def _returns(others, layers):
    """(K,) whether some example's label comes back to it: out in one layer, through others and in by the last."""
    n = others.shape[-1]
    return (reach([others] * (layers - 1), n) & others.mT).flatten(1).any(1)


def _shown_after(mask, n):
    """The first layer at which some swap of neighbours changes the query's view; n + 1 if none of n layers does."""
    seen = [[[k for k in range(n) if row[k]] for row in mask] + [list(range(n + 1))]] * n
    tokens, positions = [*(("x", i) for i in range(n)), ("query", -1)], [0] * n + [1]
    shown = (shown_after(seen, tokens, positions, swap("x", i, j)) for i, j in pairwise(range(n)))
    return min(layer or n + 1 for layer in shown)


def run(args):
    for name in ("masks", "positions", "copies", "layers", "examples", "plot"):
        if getattr(args, name) is not None:
            raise InputError(f"--{name}: does not go with --propositions, which goes through all masks")
    records = [record for n in (3, 4) for record in propositions(n)]
    print(json.dumps(records) if args.json else _story(records))
    return 0


def _story(records):
    row = "{:<10}{:<8}{:<8}{:<11}{:<9}{:<12}{}".format
    lines = [row("examples", "layers", "masks", "invariant", "no leak", "triangular", "invariant and no leak")]
    for r in records:
        few = "" if r["both_masks"] is None else f" ({', '.join(r['both_masks'])})"
        cells = (r[k] for k in ("examples", "layers", "masks", "invariant", "no_leak", "triangular"))
        lines.append(row(*cells, f"{r['both']}{few}"))

    def verdict(number, claim, comment):
        where = [f"{r['examples']} examples and {r['layers']} layers" for r in records if r[f"proposition_{number}"]]
        lines.extend(["", f"Proposition {number}: {claim}", f"  holds at: {'; '.join(where) or 'none of these'}"])
        lines.extend(f"  {line}" for line in comment)

    deep = [r for r in records if r["layers"] > 1]
    overlooked = sorted({name for r in deep for name in r["overlooked"]})
    shallow = [r for r in deep if r["layers"] < r["examples"]]
    extra = "; ".join(
        f"{r['examples']} examples and {r['layers']} layers: {r['no_leak'] - r['triangular']} masks" for r in shallow
    )
    verdict(
        1,
        "invariant if and only if the mask is M1 (itself only), M2 (all but itself) or 0 (all).",
        [
            f"invariant but not in the list, from 2 layers on: {', '.join(overlooked) or 'none'}",
            "(empty: no example attends to any, not even to itself; the residual stream still carries it)",
            "with 1 layer every mask is invariant: the query sees examples that have not yet seen each other",
        ],
    )
    verdict(
        2,
        "no leak if and only if some order of the examples makes the mask lower triangular.",
        [
            f"overlooked: a cycle with more steps than the model has layers does not leak ({extra})",
            "and the diagonal says nothing about x_i seeing y_i inside an example, which must be ruled out besides",
        ],
    )
    last = records[-1]
    verdict(
        3,
        "invariant without leak if and only if the mask is diagonal.",
        [
            f"invariant without leak, from 2 layers on: {', '.join(last['both_masks'])}; diagonal masks: "
            f"{last['diagonal']} with {last['examples']} examples",
            "the other diagonal masks let some examples attend to themselves and others not: they are not invariant",
        ],
    )
    return "\n".join(lines)
