"""Certify what a strategy guarantees: invariance, no leak, interdependence (the paper's definitions 1 to 3).

And what those three forget, pairing: whether the model can tell whose label is whose.

Two independent ways come to the same kind of `Findings`, and an audit compares them entry by entry:

- `symbolic` knows only the mask and the positions. What can reach a prediction is the L-th power of the mask; whether a
  swap of two examples, or of two labels alone, can change the query prediction is decided by refining colours, as in
  the Weisfeiler-Leman test: a token's new colour is its old one and the proportions of the colours that it sees, which
  is all that attention can tell apart. It is exact for weights in general position.
- `numeric` knows only a random float64 model: it takes gradients, and swaps examples and labels.
"""

import json
import math
from collections import Counter
from dataclasses import dataclass
from itertools import combinations, permutations

import torch

from minicl.errors import check, check_int
from minicl.masks import POSITIONS, STRATEGIES, get_strategy, layout
from minicl.model import ModelConfig, Transformer


@dataclass(frozen=True)
class Findings:
    """Predictions are numbered 0 … n−1 for the context and n for the query, inputs x_1, y_1, …, x_n, y_n, x_t."""

    depends: torch.Tensor  # (n + 1, 2n + 1) bool: prediction depends on input
    swaps: tuple[int, ...]  # the i for which swapping examples i and i + 1 changes the query prediction
    label_swaps: tuple[tuple[int, int], ...]  # the (i, j) for which swapping labels i and j alone changes it

    def agrees_with(self, other):
        swaps = (self.swaps, self.label_swaps)
        return torch.equal(self.depends, other.depends) and swaps == (other.swaps, other.label_swaps)

    @property
    def n(self):
        return len(self.depends) - 1

    @property
    def leaks(self):
        return leaked(self.depends)

    @property
    def apart(self):
        """The ordered pairs (i, j) of examples such that prediction i does not depend on example j."""
        pairs = permutations(range(self.n), 2)
        return [(i, j) for i, j in pairs if not self.depends[i, 2 * j : 2 * j + 2].any()]

    @property
    def alike(self):
        """The pairs of examples that may exchange their labels unnoticed."""
        return [pair for pair in combinations(range(self.n), 2) if pair not in self.label_swaps]


def symbolic(plan, layers):
    """Findings by reachability and colour refinement through `layers` layers of a Layout with one query."""
    n, source = len(plan.context), _source(plan)
    sees = [row.nonzero()[:, 0].tolist() for row in plan.mask]
    positions = plan.positions.tolist() if plan.positions is not None else [0] * len(source)

    def shown(exchange):
        return shown_after(sees, source.tolist(), positions, exchange, layers) is not None

    def labels(i, j):
        return {2 * i + 1: 2 * j + 1, 2 * j + 1: 2 * i + 1}

    swaps = tuple(i for i in range(n - 1) if shown(labels(i, i + 1) | {2 * i: 2 * i + 2, 2 * i + 2: 2 * i}))
    return Findings(dependencies(plan, layers), swaps, tuple(p for p in combinations(range(n), 2) if shown(labels(*p))))


def _source(plan):
    """(T,) which input a token is made of: x_i is 2i, y_i is 2i + 1, the query 2n. Copies share theirs."""
    return torch.where(plan.tokens.is_query, 2 * len(plan.context), 2 * plan.tokens.example + plan.tokens.is_label)


def dependencies(plan, layers):
    """(n + 1, 2n + 1) bool: which prediction can depend on which input, in a Layout with one query."""
    inputs = torch.nn.functional.one_hot(_source(plan), 2 * len(plan.context) + 1)
    heard = reach(plan.mask, layers).float() @ inputs.float() > 0
    return heard[torch.cat([plan.context, plan.query])]


def leaked(depends):
    """The examples whose prediction depends on their own label."""
    return [i for i in range(len(depends) - 1) if depends[i, 2 * i + 1]]


def reach(mask, layers):
    """(…, T, T) bool: who can have heard of whom after `layers` layers. A token always keeps itself (the residual)."""
    heard = torch.eye(mask.shape[-1], dtype=torch.bool).expand_as(mask)
    for _ in range(layers):
        heard = heard | (mask.float() @ heard.float() > 0)
    return heard


def shown_after(sees, source, positions, exchange, layers):
    """The first layer, of at most `layers`, at which the last token can tell that inputs were exchanged; or None."""
    before = list(zip(source, positions, strict=True))
    after = [(exchange.get(s, s), p) for s, p in before]
    names = {}  # a colour's history → a number, shared by both sides

    def refine(colours):
        new = []
        for own, seen in zip(colours, sees, strict=True):
            count = Counter(colours[k] for k in seen)
            common = math.gcd(*count.values())  # attention averages: it sees proportions, not counts
            key = (own, frozenset((c, times // common) for c, times in count.items()))
            new.append(names.setdefault(key, len(names)))
        return new

    kinds = 0
    for layer in range(1, layers + 1):
        before, after = refine(before), refine(after)
        if before[-1] != after[-1]:
            return layer
        kinds, last = len({*before, *after}), kinds
        if kinds == last:  # colours that are no finer than before stay as they are
            break
    return None


def numeric(strategy, layers, n, positions=None, copies=None, seed=0):
    """Findings by gradients and by swapping, on a random float64 model and a random prompt."""
    generator = torch.Generator().manual_seed(seed)
    config = ModelConfig(3, strategy, positions, copies, n_layer=layers, n_head=4, n_embd=32, max_examples=n)
    model = Transformer(config).double()
    with torch.no_grad():
        for p in model.parameters():  # larger than the usual start, so that far dependencies do not fade
            p.copy_(torch.randn(p.shape, generator=generator, dtype=p.dtype) * (0.2 if p.ndim > 1 else 0.5))
    xs, ys, query = (torch.randn(s, generator=generator, dtype=torch.double) for s in ((1, n, 3), (1, n), (1, 1, 3)))
    inputs = [t.requires_grad_() for t in (xs, ys, query)]

    depends = torch.zeros(n + 1, 2 * n + 1, dtype=torch.bool)
    out = model(*inputs)
    for i, prediction in enumerate(torch.cat([out.context, out.query], dim=1)[0]):
        d_xs, d_ys, d_query = torch.autograd.grad(prediction, inputs, retain_graph=True)
        # What a mask hides has a gradient of exactly zero, so no threshold is needed.
        depends[i, :-1] = torch.stack([(d_xs[0] != 0).any(-1), d_ys[0] != 0], dim=1).flatten()
        depends[i, -1] = (d_query != 0).any()

    def changes(i, j, examples):
        """Whether swapping labels i and j, or these two examples, changes the query prediction."""
        order = list(range(n))
        order[i], order[j] = j, i
        with torch.no_grad():
            moved = model(xs[:, order] if examples else xs, ys[:, order], query).query
        return bool(((moved - out.query) / out.query).abs() > 1e-10)

    swaps = tuple(i for i in range(n - 1) if changes(i, i + 1, examples=True))
    return Findings(depends, swaps, tuple(p for p in combinations(range(n), 2) if changes(*p, examples=False)))


def audit(mask, positions=None, copies=None, layers=12, examples=4, seed=0):
    """One strategy's record: what it guarantees at this depth, the counter-examples, and what attention costs."""
    check_int("layers", layers, least=1)
    check_int("examples", examples, least=2)
    check(layers <= 1000, "layers", layers, "at most 1000")
    check(examples <= 40, "examples", examples, "at most 40: every pair of them is looked at")
    strategy, n = get_strategy(mask), examples
    config = ModelConfig(mask=mask, positions=positions, copies=copies)
    usual = config.resolved_copies == strategy.copies
    plan = layout(strategy, n, 1, positions, copies)
    found = symbolic(plan, layers)
    seen = numeric(strategy, layers, n, positions, copies, seed)
    share = 1 - len(found.apart) / (n * (n - 1))
    units = _units(plan, n, config.resolved_copies)
    return {
        "mask": strategy.name,
        "summary": strategy.summary,
        "positions": config.resolved_positions,
        "copies": config.resolved_copies,
        "layers": layers,
        "examples": n,
        "invariant": not found.swaps,
        "no_leak": not found.leaks,
        "interdependent": share == 1,
        "interdependent_share": share,
        "paired": not found.alike,
        "agree": found.agrees_with(seen),
        "counterexamples": _counterexamples(plan, found, seen),
        "pairs": int(plan.mask.sum()),
        "pairs_computed": plan.pairs_computed,
        "units": units,
        "units_paper": PAPER_UNITS[strategy.name](n) if usual and strategy.name in PAPER_UNITS else None,
        "tokens": token_names(plan),
        "position_ids": plan.positions.tolist() if plan.positions is not None else None,
        "sees": ["".join("1" if s else "0" for s in row) for row in plan.mask.tolist()],
    }


def _counterexamples(plan, found, seen):
    """Why a property fails, in words: the swap, the path of the label, the first missing pair."""
    why = {}
    if found.swaps:
        i = found.swaps[0]
        why["invariant"] = f"swapping examples {i + 1} and {i + 2} changes the query prediction"
    if found.leaks:
        # The shortest path shows at how many layers the leak begins: one hop is one layer.
        path = min((_label_path(plan, i) for i in found.leaks), key=len)
        why["no_leak"] = f"label reaches its own prediction in {len(path) - 1} layer(s): {' → '.join(path)}"
    if found.apart:
        i, j = found.apart[0]
        why["interdependent"] = f"prediction {i + 1} does not depend on example {j + 1}"
    if found.alike:
        i, j = found.alike[0]
        why["paired"] = f"swapping labels {i + 1} and {j + 1} alone does not change the query prediction"
    if not found.agrees_with(seen):
        why["agree"] = "the gradients and swaps of a random model contradict the mask graph"
    return why


def _label_path(plan, i):
    """The shortest way of label i to prediction i, as token names: breadth first, from the labels of every copy."""
    names, goal = token_names(plan), int(plan.context[i])
    starts = ((plan.tokens.example == i) & plan.tokens.is_label).nonzero()[:, 0].tolist()
    came_from, frontier = dict.fromkeys(starts), starts
    while goal not in came_from:
        reached = [(k, q) for k in frontier for q in plan.mask[:, k].nonzero()[:, 0].tolist() if q not in came_from]
        frontier = [q for _, q in reached]
        for k, q in reached:
            came_from.setdefault(q, k)
    path = [goal]
    while came_from[path[-1]] is not None:
        path.append(came_from[path[-1]])
    return [names[t] for t in reversed(path)]


def token_names(plan):
    """x1, y1, …; primes tell the copies of a context that is fed more than once; query."""
    t = plan.tokens
    rows = zip(t.copy.tolist(), t.example.tolist(), t.is_label.tolist(), t.is_query.tolist(), strict=True)
    return ["query" if query else f"{'xy'[label]}{example + 1}{chr(39) * copy}" for copy, example, label, query in rows]


# The paper's section 5: attention calculations with whole examples as units.
PAPER_UNITS = {
    "ar": lambda n: n * (n + 3) // 2 + 1,
    "prefix": lambda n: n**2 + 1,  # leaves out that the query sees the n examples: the mask has n² + n + 1
    "invicl": lambda n: n**2 + 2 * n + 1,
}


def _units(plan, n, copies):
    """Attention pairs with whole examples as units, as the paper counts them."""
    t = plan.tokens
    unit = torch.nn.functional.one_hot(torch.where(t.is_query, n * copies, t.copy * n + t.example)).float()
    return int((unit.T @ plan.mask.float() @ unit > 0).sum())


def add_arguments(parser):
    names = "strategies to audit, also path/to/file.py:name (all)"
    parser.add_argument("--mask", nargs="+", action="extend", metavar="M", help=names)
    parser.add_argument("--positions", choices=POSITIONS, help="instead of each strategy's own")
    parser.add_argument("--copies", type=int, help="how often the context is fed, instead of each strategy's own")
    parser.add_argument("--layers", type=int, help="depth of the model (12)")
    parser.add_argument("--examples", type=int, help="examples in the prompt (4)")
    parser.add_argument("--propositions", action="store_true", help="check the paper's propositions on every mask")
    parser.add_argument("--json", action="store_true", help="print records instead of a table")
    parser.add_argument("--plot", metavar="FILE", help="draw the masks")


def run(args):
    if args.propositions:
        from minicl import propositions

        return propositions.run(args)
    if args.plot is not None:
        from minicl import draw

        draw.check_ending(args.plot)
    size = {name: value for name in ("layers", "examples") if (value := getattr(args, name)) is not None}
    records = [audit(mask, args.positions, args.copies, **size) for mask in args.mask or STRATEGIES]
    if args.plot is not None:
        draw.save(draw.masks(records), args.plot)
    print(json.dumps(records) if args.json else _table(records))
    return 0 if all(r["agree"] for r in records) else 1


def _table(records):
    n, layers = records[0]["examples"], records[0]["layers"]
    agree = "confirmed" if all(r["agree"] for r in records) else "NOT confirmed"
    how = f"certified by the mask graph, {agree} by gradients and swaps of a random model"
    width = max(14, *(len(r["mask"]) + 2 for r in records))
    row = f"{{:<{width}}}{{:<12}}{{:<11}}{{:<9}}{{:<16}}{{:<8}}{{:<18}}{{}}".format
    lines = [
        f"{n} examples, {layers} layers: {how}",
        "",
        row("mask", "positions", *PROPERTIES, "example pairs", "token pairs (computed)"),
    ]
    for r in records:
        percent = min(99, max(1, round(100 * r["interdependent_share"])))
        share = {0: "no", 1: "yes"}.get(r["interdependent_share"], f"partly ({percent}%)")
        paper = "" if r["units_paper"] in (None, r["units"]) else f" (paper: {r['units_paper']})"
        copies = "" if r["copies"] == 1 else f", {r['copies']} copies"
        invariant, no_leak, paired = ("yes" if r[what] else "no" for what in ("invariant", "no_leak", "paired"))
        costs = (f"{r['units']}{paper}", f"{r['pairs']} ({r['pairs_computed']}){copies}")
        lines.append(row(r["mask"], r["positions"], invariant, no_leak, share, paired, *costs))
    lines.append("")
    for r in records:
        lines += [f"{r['mask']}: {FAILED[what]}: {why}" for what, why in r["counterexamples"].items()]
    if any(r["mask"] == "prefix" and r["units_paper"] for r in records):
        lines += ["", "The paper's n²+1 pairs for prefix leave out that the query sees the n examples: it is n²+n+1."]
    return "\n".join(lines)


PROPERTIES = ("invariant", "no leak", "interdependent", "paired")
FAILED = {
    "invariant": "not invariant",
    "no_leak": "not free of leaks",
    "interdependent": "not interdependent",
    "paired": "not paired",
    "agree": "not confirmed",
}
