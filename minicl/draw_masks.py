"""Pictures of who sees whom, token by token: masks, the path of a leak, attention maps. They read numbers only."""

import textwrap
from typing import Any

from matplotlib.axes import Axes
from matplotlib.colors import ListedColormap, PowerNorm
from matplotlib.figure import Figure
from matplotlib.patches import Patch, Rectangle

from minicl.checks import InputError
from minicl.draw import BLACK, Records, bands, curve_panel, panels, run_names, without_members
from minicl.plugins import short

TITLE = 38  # letters that a title has room for
LABELLED = 26  # tokens that can still be named one by one
PRIME = "'"  # tells the copies of a token
PALE = "#AAAAAA"
# What is seen, in colours that no strategy has: curves often stand beside masks.
OWN, OTHERS, OF_QUERY, QUERY = "#34495E", "#8FA9C4", "#B9A27C", "#8E2A3A"


def masks(records: Records) -> Figure:
    """Attention masks side by side: row sees column, coloured by what is seen; positions under the columns."""
    drawn = [(r, entry) for r in records for entry in r.get("by_layer") or [{"layers": None, "sees": r["sees"]}]]
    more = max(_title(r, entry["layers"]).count("\n") for r, entry in drawn)  # lines of a long title
    figure, grid = panels(len(drawn), 3.6, 4.1 + 0.2 * more, columns=3 if len(drawn) % 4 else 4, margin=(0, 0.7))
    for axes, (record, entry) in zip(grid, drawn, strict=True):
        mask_panel(axes, record, entry["sees"], entry["layers"])
    mask_legend(figure, records)
    return figure


def front(records: Records) -> Figure:
    """Masks, from records of the audit, and beside them their models' errors, from records of an evaluation."""
    seen, lines = [r for r in records if "sees" in r], without_members([r for r in records if "lengths" in r])
    figure, grid = panels(len(seen) + 1, 3.5, 3.4, margin=(0, 0.5))
    for axes, record in zip(grid, seen, strict=False):
        mask_panel(axes, record, record["sees"], None)
        axes.set_title(axes.get_title(), fontsize=11, pad=16)  # one height for all
        if axes is not grid[0]:
            axes.set_ylabel("")
    curve_panel(grid[-1], lines, {r["method"] for r in lines}, scale=lines)
    grid[-1].set_title(f"error on {short(lines[0]['task'])} functions\n{bands(lines)}", fontsize=10)
    grid[-1].legend(fontsize=9, frameon=False)
    mask_legend(figure, seen)
    return figure


def mask_legend(figure: Figure, records: Records, *more: Patch) -> None:
    """What the colours of these masks mean, and `more`."""
    kinds = {"its own example": OWN, "other examples": OTHERS, "what the query sees": OF_QUERY}
    if any(_query_is_seen(r["tokens"], r["sees"]) for r in records):
        kinds["the query"] = QUERY
    patches = [Patch(facecolor=colour, label=label) for label, colour in kinds.items()]
    columns = 2 if figure.get_figwidth() < 6 else 3 if more else 4
    figure.legend(handles=[*patches, *more], loc="outside lower center", ncols=columns, fontsize=9, frameon=False)


def _query_is_seen(tokens, sees):
    """Whether the context sees a query."""
    context = [row for token, row in zip(tokens, sees, strict=True) if token != "query"]
    return any(row[k] == "1" for row in context for k, token in enumerate(tokens) if token == "query")


def cells(axes: Axes, tokens: list[str], sees: list[str], **style) -> None:
    """The cells of a mask, coloured by what is seen."""
    example = [t.strip("xy'") for t in tokens]  # the example's number; "quer" for queries

    def kind(q, k):
        if sees[q][k] == "0":
            return 0
        if tokens[q] == "query":
            return 3
        if tokens[k] == "query":
            return 4
        return 1 if example[q] == example[k] else 2

    every, colours = range(len(tokens)), ListedColormap(["#F2F2F2", OWN, OTHERS, OF_QUERY, QUERY])
    axes.pcolormesh([[kind(q, k) for k in every] for q in every], cmap=colours, vmin=0, vmax=4, **style)


def mask_panel(axes: Axes, record: dict[str, Any], sees: list[str], layers: str | None) -> None:
    """One mask, token by token; `layers` says which layers have it."""
    tokens, T = record["tokens"], len(record["tokens"])
    cells(axes, tokens, sees, edgecolors="white" if T <= LABELLED else "none", linewidth=0.7)
    padding = 16 if record["copies"] > 1 else 6  # room for the names of the copies
    axes.set_title(_title(record, layers), fontsize=11, pad=padding)
    token_axes(axes, tokens, record["copies"], record["position_ids"] or ["–"] * T)
    if T <= LABELLED:
        axes.set_xlabel("seen token, its position below" if record["position_ids"] else "seen token, no positions")


def _title(record, layers):
    """In several lines if it is long; a name breaks after its commas."""
    which = "" if layers is None else f", layer {layers}" if layers.isdigit() else f", layers {layers}"
    name, rest = short(record["mask"]), f"{which}: {record['positions'].replace('none', 'no')} positions"
    if len(name + rest) <= TITLE:
        return name + rest
    lines = textwrap.wrap(name.replace(",", ", "), TITLE, break_on_hyphens=False)
    return "\n".join([*(line.replace(", ", ",") for line in lines), rest.lstrip(",: ")])


def token_axes(axes: Axes, tokens: list[str], copies: int, below: list | None = None) -> None:
    """Axes of a table of tokens that look (down) and are seen (across), with `below` under the names of the seen."""
    T, names = len(tokens), [token_name(t) for t in tokens]
    per_copy = (T - tokens.count("query")) // copies
    axes.set(xlim=(0, T), ylim=(T, 0), aspect="equal", ylabel="token that looks", xlabel="seen token")
    axes.spines[:].set_visible(False)
    axes.tick_params(length=0, labelsize=9 if T <= 12 else 8 if T <= 17 else 6)
    if T <= LABELLED:
        under = names if below is None else [f"{name}\n{text}" for name, text in zip(names, below, strict=True)]
        axes.set_xticks([i + 0.5 for i in range(T)], under)
        axes.set_yticks([i + 0.5 for i in range(T)], names)
    else:
        middle, each = [per_copy * (c + 0.5) for c in range(copies)], [f"copy {c}" for c in range(copies)]
        axes.set_xticks(middle, each)
        axes.set_yticks(middle, each, rotation=90, va="center")
    for c in range(copies):  # lines between the copies, and before the queries
        axes.axvline(per_copy * (c + 1), color="black", linewidth=0.8)
        axes.axhline(per_copy * (c + 1), color="black", linewidth=0.8)
        if T <= LABELLED and copies > 1:
            axes.text(per_copy * (c + 0.5), -0.15, f"copy {c}", ha="center", va="bottom", fontsize=8)


def token_name(token: str) -> str:
    """A token as formulas write it: `x2'` as x₂, whichever copy it is of."""
    return "$x_t$" if token == "query" else f"${token[0]}_{{{token[1:].rstrip(PRIME)}}}$"


def leak(records: Records) -> Figure:
    """How a label reaches its own prediction: one panel per layer, with what the label's news can pass in full colour.

    A frame with the layer's number is the step of the path. Strategies without a leak are left out.
    """
    drawn = [(r, step) for r in records if r["leak"] for step in r["leak"]["steps"]]
    if not drawn:
        raise InputError("no label reaches its own prediction: there is no leak to draw")
    figure, grid = panels(len(drawn), 3.9, 4.5, columns=4, margin=(0, 0.9))
    for axes, (record, step) in zip(grid, drawn, strict=True):
        mask_panel(axes, record, step["sees"], None)
        _leak_step(axes, record, step)
    frame = Patch(facecolor="none", edgecolor=BLACK, linewidth=2, label="step of the label's path")
    mask_legend(figure, records, frame, Patch(facecolor="#BFDBEC", label="pale: no news of it"))
    return figure


def _leak_step(axes, record, step):
    """Pale what brings no news of the label in this layer, and frame the step of its path."""
    tokens, path, layer = record["tokens"], record["leak"]["path"], step["layer"]
    label, T = tokens[path[0]].rstrip(PRIME), len(tokens)
    carriers = {i for i, token in enumerate(tokens) if token.rstrip(PRIME) == label}
    carriers |= {h["token"] for s in record["leak"]["steps"] if s["layer"] < layer for h in s["hears"]}
    news = {h["token"]: h["from"] for h in step["hears"]}
    pale = [[0.0 if k in carriers and step["sees"][q][k] == "1" else 0.75 for k in range(T)] for q in range(T)]
    axes.imshow([[(1, 1, 1, a) for a in row] for row in pale], extent=(0, T, T, 0), interpolation="nearest", zorder=1.5)
    if T <= LABELLED:
        for names, strong in ((axes.get_xticklabels(), carriers), (axes.get_yticklabels(), carriers | news.keys())):
            for i, text in enumerate(names):
                text.set_color(BLACK if i in strong else PALE)
    hop = next(((q, k) for q, k in news.items() if q in path), None)
    if hop:
        q, k = hop
        axes.add_patch(Rectangle((k, q), 1, 1, fill=False, edgecolor=BLACK, linewidth=2.5, zorder=3, clip_on=False))
    if hop and T <= LABELLED:
        ring = {"boxstyle": "circle,pad=0.15", "facecolor": "white", "edgecolor": "none"}
        axes.annotate(str(layer), (k + 0.5, q + 0.5), ha="center", va="center", fontsize=8, weight="bold", bbox=ring)
    title = f"{short(record['mask'])}, layer {layer}: {_leak_words(record, hop, len(news))}"
    axes.set_title(title, fontsize=10, pad=16 if record["copies"] > 1 else 6)


def _leak_words(record, hop, news):
    """What happens to the label in a layer, in two lines."""
    tokens, path = record["tokens"], record["leak"]["path"]
    label = token_name(tokens[path[0]])

    def name(i):
        if tokens[i] == "query":
            return f"the query {token_name(tokens[i])}"
        return token_name(tokens[i]) + (f" of copy {tokens[i].count(PRIME)}" if record["copies"] > 1 else "")

    first = f"{name(hop[0])} sees {name(hop[1])}" if hop else "the path waits"
    if hop and hop[0] == path[-1]:
        return f"{first}\nso it has heard of its own label {label}: a leak"
    more = {0: "no more tokens hear", 1: "1 more token hears"}.get(news, f"{news} more tokens hear")
    return f"{first}\n{more} of {label}"


def attention(records: Records) -> Figure:
    """Mean attention: one row of panels per run and layer, one column per head. Hatched: what the mask hides."""
    heads, names = max(r["head"] for r in records), run_names(records)
    rows = list(dict.fromkeys((r["run"], r["step"], r["layer"]) for r in records))
    figure, grid = panels(len(rows) * heads, 3.0, 3.3, columns=heads, margin=(0.9, 0.5))
    for axes in grid:
        axes.set_axis_off()
    for r in records:
        axes = grid[rows.index((r["run"], r["step"], r["layer"])) * heads + r["head"] - 1]
        axes.set_axis_on()
        seen = [
            [w if s else float("nan") for w, s in zip(*row, strict=True)]
            for row in zip(r["attention"], r["sees"], strict=True)
        ]
        axes.patch.set(facecolor="#E4E4E4", hatch="////", edgecolor="#BBBBBB", linewidth=0)
        image = axes.pcolormesh(seen, cmap="viridis", norm=PowerNorm(0.5, 0, 1))
        token_axes(axes, r["tokens"], r["copies"])
        axes.set_title(
            f"{names[r['run'], r['step']]}, layer {r['layer']}, head {r['head']}",
            fontsize=9,
            pad=16 if r["copies"] > 1 else 6,
        )
    bar = figure.colorbar(image, ax=grid, shrink=0.6, aspect=30)
    over = f"mean over {records[0]['prompts']} prompt{'' if records[0]['prompts'] == 1 else 's'}"
    bar.set_label(f"share of attention, {over}; each row sums to 1")
    hidden = Patch(facecolor="#E4E4E4", hatch="////", edgecolor="#BBBBBB", label="hidden by the mask")
    figure.legend(handles=[hidden], loc="outside lower center", frameon=False)
    return figure
