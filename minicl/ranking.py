"""The picture of `minicl search`: a row for each mask, drawn small, with its errors; and errors against costs."""

from matplotlib.figure import Figure

from minicl.draw import BLACK, ERROR, Records, look
from minicl.draw_masks import cells
from minicl.kinds import BUILT_IN

LENGTHS = ("the training length", "2.5 times it")
SHADES = (BLACK, "#9AA5B1")  # of the two lengths


def race(records: Records) -> Figure:
    """The last round of a race: one run of each mask."""
    rows = [_row(r["mask"], r, [(e, [e]) for e in r["error"].values()], r.get("step_seconds")) for r in records]
    first = next((row["cost"] for row in rows if row["cost"]), None)
    for row in rows:
        row["cost"] = row["cost"] and row["cost"] / first
    return _picture(rows, set(), f"time of a step ÷ that of {rows[0]['name']}", "one run of each mask")


def confirmed(records: Records, front: list[str]) -> Figure:
    """The masks on fresh seeds; those of the front are drawn bold."""
    rows = []
    for r in records:
        errors = [(r["error"][where]["mean"], r["error"][where]["seeds"]) for where in ("training", "longest")]
        rows.append(_row(r["mask"], r, errors, r["step"]["ratio"]["ratio"]))
    seeds = max(len(r["error"]["training"]["seeds"]) for r in records)
    title = f"a mark is the mean of {seeds} seeds, a line their range; bold: no mask has less error for less time"
    return _picture(rows, set(front), "time of a training step ÷ invicl's", title)


def _row(mask, record, errors, cost):
    certified = all(record[what] for what in ("invariant", "no_leak", "interdependent", "paired"))
    return {"name": BUILT_IN.get(mask, mask), "record": record, "errors": errors, "cost": cost, "certified": certified}


def _picture(rows, front, cost, title):
    height = 0.62 * len(rows) + 1.4
    costs = all(row["cost"] for row in rows)
    figure = Figure(figsize=(12 if costs else 8, max(height, 4)), layout="constrained")
    parts = figure.subplots(1, 3 if costs else 2, width_ratios=(0.35, 2, 2)[: 3 if costs else 2])
    _thumbnails(parts[0], rows)
    _errors(parts[1], rows, front)
    if costs:
        _costs(parts[2], rows, front, cost)
    figure.suptitle(f"{title}; ✓ invariant, no leak, interdependent and paired", fontsize=9)
    return figure


def _thumbnails(axes, rows):
    """Who sees whom, token by token, in rows that stand beside those of the errors."""
    axes.set(xlim=(0, 1), ylim=(len(rows) - 0.5, -0.5))
    axes.set_axis_off()
    for i, row in enumerate(rows):
        record = row["record"]
        T = len(record["tokens"])
        inset = axes.inset_axes([0.02, i - 0.44, 0.96, 0.88], transform=axes.transData)
        cells(inset, record["tokens"], record["sees"])
        inset.set(xlim=(0, T), ylim=(T, 0), aspect="equal", xticks=[], yticks=[])
        for spine in inset.spines.values():
            spine.set_linewidth(0.4)


def _errors(axes, rows, front):
    for i, row in enumerate(rows):
        for (mean, seeds), shade, marker in zip(row["errors"], SHADES, "os", strict=True):
            axes.plot([min(seeds), max(seeds)], [i, i], color=shade, linewidth=1.2)
            axes.plot(mean, i, marker, color=shade, markersize=6, label=None if i else LENGTHS[SHADES.index(shade)])
    names = [f"{i}  {row['name']}{' ✓' if row['certified'] else ''}" for i, row in enumerate(rows, 1)]
    axes.set_yticks(range(len(rows)), names, fontsize=8)
    for label, row in zip(axes.get_yticklabels(), rows, strict=True):
        label.set_fontweight("bold" if row["name"] in front else "normal")
    axes.set(xscale="log", ylim=(len(rows) - 0.5, -0.5), xlabel=ERROR)
    axes.grid(axis="y", color="#EEEEEE")
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(fontsize=8, frameon=False, title="error with prompts of", title_fontsize=8)


def _costs(axes, rows, front, label):
    """Geometric mean of both errors against cost; numbers are those of the rows."""
    names = {row["name"] for row in rows}
    points = [(row["cost"], (row["errors"][0][0] * row["errors"][1][0]) ** 0.5, row) for row in rows]
    for i, (x, y, row) in enumerate(points, 1):
        colour, marker = look(row["name"], names)
        axes.plot(x, y, marker, color=colour, markersize=7 if row["name"] in front else 5)
        side = 1 if i % 2 else -1  # masks of one cost stand above each other: numbers on alternate sides
        axes.annotate(str(i), (x, y), (9 * side, 0), textcoords="offset points", ha="center", va="center", fontsize=7)
    best = []
    for x, y, _ in sorted(points, key=lambda p: p[:2]):
        if not best or y < best[-1][1]:
            best.append((x, y))
    style = {"color": BLACK, "linewidth": 0.8, "linestyle": ":", "label": "the least so far"}
    axes.step(*zip(*best, strict=True), where="post", **style)
    axes.set(yscale="log", xlabel=label, ylabel="geometric mean of both errors")
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(fontsize=8, frameon=False)
