"""`minicl audit`: certify what a strategy guarantees. Is it invariant, without leak, interdependent, paired?

The first three are the paper's definitions 1 to 3. The fourth is what those three forget: whether the query prediction
depends on which label belongs to which x.

Two independent ways come to the same kind of `Findings`, and an audit compares them entry by entry:

- `symbolic` knows only the layout: what can reach a prediction, and which swaps can show there (see graph.py).
- `numeric` knows only a random float64 model: it takes gradients, and swaps examples and labels.
"""

import json
import sys
from collections.abc import Iterable, Sequence
from itertools import combinations, pairwise, permutations
from typing import Any, NamedTuple

import torch
from torch import Tensor

from minicl import batchicl, plugins
from minicl.checks import check, check_int
from minicl.graph import Dependencies, dependencies, inputs, label_path, label_spread, sees, shown_after, swap
from minicl.masks import POSITIONS, ROTARY, STRATEGIES, Layout, Strategy, get_strategy
from minicl.model import ModelConfig, Transformer
from minicl.text import names

MOST_LAYERS, MOST_EXAMPLES = 1000, 40
CERTIFICATES = ("invariant", "no_leak", "interdependent", "paired")


class Findings(NamedTuple):
    """What one of the two ways has found out about a strategy. Examples are counted from 0."""

    depends: Dependencies
    swaps: tuple[int, ...]  # the i for which swapping examples i and i + 1 changes the query prediction
    label_swaps: tuple[tuple[int, int], ...]  # the (i, j) for which swapping only labels i and j changes it

    def agrees_with(self, other: "Findings") -> bool:
        return self.depends.equals(other.depends) and self[1:] == other[1:]

    @property
    def independent(self) -> list[tuple[int, int]]:
        """The ordered pairs (i, j) of examples such that prediction i does not depend on example j."""
        return [(i, j) for i, j in permutations(range(self.depends.n), 2) if not self.depends.examples[i, j]]

    @property
    def unpaired(self) -> list[tuple[int, int]]:
        """The pairs of examples that may exchange their labels without any change of the query prediction."""
        return [pair for pair in combinations(range(self.depends.n), 2) if pair not in self.label_swaps]


def symbolic(layout: Layout, layers: int, relative: bool = False) -> Findings:
    """Findings by reachability and colour refinement, through the layers of a Layout with one query.

    `relative`: positions turn queries and keys, so that a token knows only how far away the others are.
    """
    n, tokens = len(layout.context), inputs(layout)
    seen = _seen(layout, layers)
    positions = [0] * len(tokens) if layout.positions is None else layout.positions.tolist()

    def shows(kinds, i, j):
        return shown_after(seen, tokens, positions, swap(kinds, i, j), relative) is not None

    swaps = tuple(i for i, j in pairwise(range(n)) if shows("xy", i, j))
    label_swaps = tuple(pair for pair in combinations(range(n), 2) if shows("y", *pair))
    return Findings(dependencies(layout, layers), swaps, label_swaps)


def _seen(layout, layers):
    """What `shown_after` asks for. Layers with the same mask share one list, by which it knows that they are equal."""
    lists: dict[bytes, list[list[int]]] = {}
    seen = []
    for mask in layout.masks(layers):
        key = mask.numpy().tobytes()
        if key not in lists:
            lists[key] = sees(mask)
        seen.append(lists[key])
    return seen


def numeric(
    strategy: Strategy,
    layers: int,
    n: int,
    positions: str | None = None,
    copies: int | None = None,
    seed: int = 0,
) -> Findings:
    """Findings by gradients and by swapping, on a random float64 model and a random prompt."""
    generator = torch.Generator().manual_seed(seed)
    config = ModelConfig(3, strategy, positions, copies, n_layer=layers, n_head=4, n_embd=32, max_examples=n)
    model = Transformer(config).double()
    with torch.no_grad():
        for p in model.parameters():  # larger than the usual start, so that far dependencies do not fade
            p.copy_(torch.randn(p.shape, generator=generator, dtype=p.dtype) * (0.2 if p.ndim > 1 else 0.5))
    shapes = ((1, n, 3), (1, n), (1, 1, 3))
    xs, ys, query = (torch.randn(s, generator=generator, dtype=torch.double).requires_grad_() for s in shapes)
    out = model(xs, ys, query)

    def changes(i, j, examples):
        """Whether swapping labels i and j, or these two examples, changes the query prediction."""
        order = list(range(n))
        order[i], order[j] = j, i
        with torch.no_grad():
            moved = model(xs[:, order] if examples else xs, ys[:, order], query).query
        return bool(((moved - out.query) / out.query).abs() > 1e-10)

    swaps = tuple(i for i in range(n - 1) if changes(i, i + 1, examples=True))
    label_swaps = tuple(pair for pair in combinations(range(n), 2) if changes(*pair, examples=False))
    predictions = torch.cat([out.context, out.query], dim=1)[0]
    return Findings(_gradients(predictions, xs, ys, query), swaps, label_swaps)


def _gradients(predictions: Tensor, xs: Tensor, ys: Tensor, query: Tensor) -> Dependencies:
    """What predictions depend on. What a mask hides has a gradient of exactly zero, so no threshold is needed."""
    rows = []
    for prediction in predictions:
        d_xs, d_ys, d_query = torch.autograd.grad(prediction, (xs, ys, query), retain_graph=True)
        rows.append(((d_xs[0] != 0).any(-1), d_ys[0] != 0, (d_query != 0).any()))
    return Dependencies(*map(torch.stack, zip(*rows, strict=True)))


def audit(
    mask: str | Strategy,
    positions: str | None = None,
    copies: int | None = None,
    layers: int = 12,
    examples: int = 4,
    seed: int = 0,
) -> dict[str, Any]:
    """One strategy's record: what it guarantees at this depth, the counter-examples, and what attention costs."""
    check_int("layers", layers, least=1)
    check_int("examples", examples, least=2)
    check(layers <= MOST_LAYERS, "layers", layers, f"at most {MOST_LAYERS}")
    check(examples <= MOST_EXAMPLES, "examples", examples, f"at most {MOST_EXAMPLES}: every pair of them is looked at")
    strategy, n = get_strategy(mask), examples
    config = ModelConfig(mask=strategy, positions=positions, copies=copies, n_layer=layers)
    layout = config.layout(n, 1)
    measured = numeric(strategy, layers, n, positions, copies, seed)
    # What averages several passes is no mask: there is nothing but the measurement.
    proved = measured if strategy.average else symbolic(layout, layers, config.resolved_positions in ROTARY)
    share = 1 - len(proved.independent) / (n * (n - 1))
    by_layer = _by_layer(layout, layers)
    leak = None if strategy.average else _leak(layout, layers, proved.depends.leaks)
    in_paper = strategy is STRATEGIES.get(strategy.name) and config.resolved_copies == strategy.copies
    return {
        "mask": strategy.name,
        "summary": strategy.summary,
        "positions": config.resolved_positions,
        "copies": config.resolved_copies,
        "layers": layers,
        "examples": n,
        "invariant": not proved.swaps,
        "no_leak": not proved.depends.leaks,
        "interdependent": share == 1,
        "interdependent_share": share,
        "paired": not proved.unpaired,
        "certified": not strategy.average,
        "agree": proved.agrees_with(measured),
        "counterexamples": _counterexamples(leak, token_names(layout), proved, measured),
        "leak": leak,
        "pairs": batchicl.pairs(config, n) if strategy.average else layout.pairs,
        "pairs_computed": batchicl.pairs(config, n) if strategy.average else layout.pairs_computed,
        "units": _units(layout),
        "units_paper": PAPER_UNITS[strategy.name](n) if in_paper and strategy.name in PAPER_UNITS else None,
        "tokens": token_names(layout),
        "position_ids": None if layout.positions is None else layout.positions.tolist(),
        "sees": by_layer[0]["sees"],
        "layers_differ": len(by_layer) > 1,
        "by_layer": by_layer if len(by_layer) > 1 else [],
    }


def _leak(layout, layers, leaks):
    """The shortest way of a label to its own prediction, and in each layer who hears of it for the first time."""
    if not leaks:
        return None
    i = min(leaks, key=lambda i: label_path(layout, layers, i)[0])
    masks, (_, *spread) = layout.masks(layers), label_spread(layout, layers, i)
    steps = [
        {
            "layer": layer,
            "sees": _rows(masks[layer - 1]),
            "hears": [{"token": token, "from": source} for token, source in new.items()],
        }
        for layer, new in enumerate(spread, start=1)
    ]
    return {"path": label_path(layout, layers, i)[1], "steps": steps}


def _counterexamples(leak, tokens, proved, measured):
    """Why a property fails, in words: the swap, the label's path (if there is a mask), the first missing pair."""
    why = {}
    if proved.swaps:
        i = proved.swaps[0]
        why["invariant"] = f"swapping examples {i + 1} and {i + 2} changes the query prediction"
    if proved.depends.leaks and leak is None:
        why["no_leak"] = "label reaches its own prediction"
    elif leak:
        route = " → ".join(tokens[t] for t in leak["path"])
        why["no_leak"] = f"label reaches its own prediction in {len(leak['steps'])} layer(s): {route}"
    if proved.independent:
        i, j = proved.independent[0]
        why["interdependent"] = f"prediction {i + 1} does not depend on example {j + 1}"
    if proved.unpaired:
        i, j = proved.unpaired[0]
        why["paired"] = f"swapping labels {i + 1} and {j + 1} alone does not change the query prediction"
    if not proved.agrees_with(measured):
        why["agree"] = "the gradients and swaps of a random model contradict the mask graph"
    return why


def token_names(layout: Layout) -> list[str]:
    """x1, y1, …; primes tell the copies of a context that is fed more than once; query."""
    t = layout.tokens
    rows = zip(t.copy.tolist(), t.example.tolist(), t.is_label.tolist(), t.is_query.tolist(), strict=True)
    return ["query" if query else f"{'xy'[label]}{example + 1}{chr(39) * copy}" for copy, example, label, query in rows]


def _by_layer(layout, layers):
    """Each distinct mask with the layers that have it: [{"layers": "1–3, 5", "sees": ["1000", …]}, …]."""
    numbers: dict[bytes, list[int]] = {}
    masks = layout.masks(layers)
    for layer, mask in enumerate(masks, start=1):
        numbers.setdefault(mask.numpy().tobytes(), []).append(layer)
    return [{"layers": _ranges(group), "sees": _rows(masks[group[0] - 1])} for group in numbers.values()]


def _rows(mask):
    """A mask as text: for each token that looks, 1 where it sees."""
    return ["".join("01"[s] for s in row) for row in mask.tolist()]


def _ranges(numbers: Sequence[int]) -> str:
    """1, 2, 3, 5 as "1–3, 5"."""
    starts = [i for i in numbers if i - 1 not in numbers]
    ends = [i for i in numbers if i + 1 not in numbers]
    return ", ".join(str(a) if a == b else f"{a}–{b}" for a, b in zip(starts, ends, strict=True))


# The paper's section 5: attention calculations with whole examples as units.
PAPER_UNITS = {
    "ar": lambda n: n * (n + 3) // 2 + 1,
    "prefix": lambda n: n**2 + 1,  # leaves out that the query sees the n examples: the mask has n² + n + 1
    "invicl": lambda n: n**2 + 2 * n + 1,
}


def _units(layout):
    """Attention pairs with whole examples as units, as the paper counts them; the mean, where layers differ."""
    t, n = layout.tokens, len(layout.context)
    unit = torch.where(t.is_query, t.copy.max() * n + n, t.copy * n + t.example)
    member = torch.nn.functional.one_hot(unit).float()
    masks = layout.masks(1) if layout.mask.ndim == 2 else layout.mask
    mean = int((member.T @ masks.float() @ member > 0).sum()) / len(masks)
    return int(mean) if mean == int(mean) else mean


def add_arguments(parser):
    also = {"type": names, "action": "extend", "metavar": "M,M,…"}
    parser.add_argument("--masks", "--mask", help="strategies, also path/to/file.py:name (all built-in ones)", **also)
    parser.add_argument("--positions", choices=POSITIONS, help="instead of each strategy's own")
    parser.add_argument("--copies", type=int, help="number of copies of the context, instead of each strategy's own")
    parser.add_argument("--layers", type=int, help="depth of the model (12)")
    parser.add_argument("--examples", type=int, help="examples in the prompt (4)")
    parser.add_argument("--propositions", action="store_true", help="check the paper's propositions on every mask")
    parser.add_argument("--json", action="store_true", help="print records instead of a table")
    parser.add_argument("--plot", metavar="FILE", help="draw the masks")
    parser.add_argument("--leak-plot", metavar="FILE", help="draw how a label reaches its own prediction, by layers")


def run(args):
    if args.propositions:
        from minicl import propositions

        return propositions.run(args)
    files = [file for file in (args.plot, args.leak_plot) if file is not None]
    if files:
        from minicl import draw, draw_masks

        for file in files:
            draw.check_ending(file)
    masks = STRATEGIES if args.masks is None else dict.fromkeys(args.masks)
    if args.masks is None and args.positions == "random":  # which several passes do not know
        masks = [mask for mask in masks if not get_strategy(mask).average]
    check(masks, "masks", "no name", f"{', '.join(STRATEGIES)}, or path/to/file.py:name")
    size = {name: value for name in ("layers", "examples") if (value := getattr(args, name)) is not None}
    records = [audit(mask, args.positions, args.copies, **size) for mask in masks]
    if args.plot is not None:
        draw.save(draw_masks.masks(records), args.plot)
    if args.leak_plot is not None:
        print(*_undrawn(records), sep="", end="", file=sys.stderr)
        if any(r["leak"] for r in records):
            draw.save(draw_masks.leak(records), args.leak_plot)
    print(json.dumps(records) if args.json else _table(records))
    return 0 if all(r["agree"] for r in records) else 1


def _undrawn(records):
    """A line for each strategy that is not in the picture of leaks."""
    for r in (r for r in records if not r["leak"]):
        why = f"no label reaches its own prediction in {r['layers']} layer(s)" if r["no_leak"] else "it is no mask"
        yield f"{plugins.short(r['mask'])}: {why}: there is no leak to draw\n"


def _table(records):
    n, layers = records[0]["examples"], records[0]["layers"]
    agree = "confirmed" if all(r["agree"] for r in records) else "NOT confirmed"
    how = f"certified by the mask graph, {agree} by gradients and swaps of a random model"
    shown = [plugins.short(r["mask"]) for r in records]
    width = max(14, *(len(name) + 2 for name in shown))
    row = f"{{:<{width}}}{{:<12}}{{:<11}}{{:<9}}{{:<16}}{{:<8}}{{:<18}}{{}}".format
    lines = [
        f"{n} examples, {layers} layers: {how}",
        "",
        row("mask", "positions", *PROPERTIES, "example pairs", "token pairs (computed)"),
    ]
    for name, r in zip(shown, records, strict=True):
        paper = "" if r["units_paper"] in (None, r["units"]) else f" (paper: {r['units_paper']})"
        copies = "" if r["copies"] == 1 else f", {r['copies']} copies"
        costs = (f"{_count(r['units'])}{paper}", f"{_count(r['pairs'])} ({_count(r['pairs_computed'])}){copies}")
        lines.append(row(name, r["positions"], *in_words(r), *costs))
    return "\n".join([*lines, "", *_notes(shown, records)])


def in_words(record: dict[str, Any]) -> list[str]:
    """What a strategy guarantees, in the order of CERTIFICATES: yes, no or partly."""
    percent = min(99, max(1, round(100 * record["interdependent_share"])))
    words = {what: "yes" if record[what] else "no" for what in CERTIFICATES}
    if 0 < record["interdependent_share"] < 1:
        words["interdependent"] = f"partly ({percent}%)"
    return list(words.values())


def _count(number):
    return str(number) if isinstance(number, int) else f"{number:.1f}"


def _notes(shown: Iterable[str], records: Sequence[dict[str, Any]]) -> list[str]:
    """What the table cannot say: why a property fails, where layers differ, what the paper counts otherwise."""
    notes = []
    for name, r in zip(shown, records, strict=True):
        notes += [f"{name}: {FAILED[what]}: {why}" for what, why in r["counterexamples"].items()]
        if not r["certified"]:
            notes.append(
                f"{name}: averages several passes, so it is no mask: measured on a random model, not certified"
            )
        if r["layers_differ"]:
            which = [part["layers"] for part in r["by_layer"]]
            groups = " and ".join(f"layer {w}" if w.isdigit() else f"layers {w}" for w in which)
            notes.append(f"{name}: {groups} have different masks; numbers of pairs are means over the layers")
    if any(r["mask"] == "prefix" and r["units_paper"] for r in records):
        notes += ["", "The paper's n²+1 pairs for prefix leave out that the query sees the n examples: it is n²+n+1."]
    return notes


PROPERTIES = tuple(what.replace("_", " ") for what in CERTIFICATES)
FAILED = {
    "invariant": "not invariant",
    "no_leak": "not free of leaks",
    "interdependent": "not interdependent",
    "paired": "not paired",
    "agree": "not confirmed",
}
