"""Pictures that only the study draws: from records to figures, with the looks of minicl/draw.py."""

import statistics

from matplotlib import colormaps
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator, NullFormatter, StrMethodFormatter

from minicl.draw import (
    BLACK,
    ERROR,
    Records,
    base_of,
    look,
    mark_training_length,
    panels,
    seed_count,
    spread_axis,
    without_members,
)
from minicl.plugins import short


def growth(records: Records) -> Figure:
    """Error against the number of examples: one panel per strategy, one line per checkpoint from light to dark."""
    lines = without_members(records)
    methods = list(dict.fromkeys(r["method"] for r in lines))
    figure, grid = panels(len(methods), 4.6, 3.9, sharey=True)
    for axes, method in zip(grid, methods, strict=True):
        mine = sorted((r for r in lines if r["method"] == method), key=lambda r: r["step"])
        for i, r in enumerate(mine):
            shade = colormaps["viridis_r"](0.1 + 0.9 * i / max(1, len(mine) - 1))
            axes.plot(r["lengths"], r["mean"], color=shade, label=f"step {r['step']}")
        mark_training_length(axes, mine[0]["trained_on"], label="trained to")
        axes.set(yscale="log", xlabel="examples in the prompt", ylabel=ERROR)
        seeds = f", mean of {len(mine[0]['runs'])} seeds" if mine[0].get("over") else ""
        axes.set_title(method + seeds, fontsize=10)
        axes.legend(fontsize=7, frameon=False)
    return figure


def variants(records: Records) -> Figure:
    """One row per variant: its errors at two lengths, and its spread over orders if all have one."""
    names = [short(r["method"]) for r in records]
    methods = list(dict.fromkeys(names))
    bases = {base_of(method) for method in methods}
    values = {f"error with {n} examples": [r["errors"][n] for r in records] for n in records[0]["errors"]}
    spread = all(r["spread"] is not None for r in records)
    if spread:
        values["spread"] = [r["spread"] for r in records]
    figure, grid = panels(len(values), 3.1, 0.34 * len(methods) + 1.1, margin=(1.6, 0), sharey=True)
    for axes, (title, numbers) in zip(grid, values.items(), strict=True):
        for name, value in zip(names, numbers, strict=True):
            colour, marker = look(base_of(name), bases)
            axes.plot(max(value, 1e-9), methods.index(name), marker, color=colour, markersize=5, alpha=0.8)
        axes.set(xscale="log", xlabel=title, ylim=(len(methods) - 0.5, -0.5))
        if max(numbers) < 100 * min(numbers):  # too few powers of ten to read numbers by
            axes.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
        axes.xaxis.set_major_formatter(StrMethodFormatter("{x:g}"))
        axes.xaxis.set_minor_formatter(NullFormatter())  # they would overlap
        axes.set_yticks(range(len(methods)), methods, fontsize=9)
        axes.grid(axis="y", color="#EEEEEE")
    if spread:
        spread_axis(grid[-1], methods)
    figure.suptitle("one mark per seed", fontsize=9)
    return figure


def equal_cost(records: Records) -> Figure:
    """Error against minutes and against FLOPs of training: one line per strategy, with a band over its seeds."""
    groups = {}
    for r in records:
        groups.setdefault(short(r["method"]), []).append(r["points"])
    figure, grid = panels(2, 4.9, 4, sharey=True)
    titles = {"minutes": "minutes on one core: steps × the time of one", "flops": "FLOPs of training"}
    for axes, (cost, title) in zip(grid, titles.items(), strict=True):
        for method, seeds in groups.items():
            points = list(zip(*seeds, strict=False))  # of a step, each seed's
            errors = [[p["error"] for p in point] for point in points]
            x = [sum(p[cost] for p in point) / len(seeds) for point in points]
            colour, marker = look(method, groups)
            label = f"{method}, {seed_count(len(seeds))}"
            style = {"marker": marker, "markersize": 4, "markevery": max(1, len(x) // 8), "linewidth": 1.2}
            axes.plot(x, [statistics.geometric_mean(e) for e in errors], color=colour, label=label, **style)
            axes.fill_between(x, list(map(min, errors)), list(map(max, errors)), color=colour, alpha=0.2, lw=0)
        axes.set(xscale="log", yscale="log", xlabel=title)
    grid[0].xaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    grid[0].xaxis.set_major_formatter(StrMethodFormatter("{x:g}"))
    grid[0].set_ylabel(ERROR)
    grid[1].legend(fontsize=7, frameon=False)
    where = "on the validation prompts, at the training length: geometric mean over seeds, and range"
    figure.suptitle(where, fontsize=10)
    return figure


def costs(records: Records) -> Figure:
    """What a forward pass takes under each strategy: time, memory, attention pairs."""
    names = [short(r["mask"]) for r in records]
    ratios = [r["ratio"] for r in records]
    values = {f"time ÷ {names[0]}; the line: the middle half": [r["ratio"] for r in ratios]}
    if all(r["memory_bytes"] is not None for r in records):
        values["memory, MiB"] = [r["memory_bytes"] / 2**20 for r in records]
    values["pairs of tokens that attention sees"] = [r["pairs"] for r in records]
    figure, grid = panels(len(values), 9.6 / len(values), 0.36 * len(names) + 1.2, margin=(0, 0), sharey=True)
    for axes, (title, numbers) in zip(grid, values.items(), strict=True):
        axes.barh(names, numbers, color=[look(name, names)[0] for name in names], height=0.65)
        for row, value in enumerate(numbers):
            text = f"{value:,.0f}" if value >= 100 else f"{value:.2f}" if axes is grid[0] else f"{value:.3g}"
            end = max(value, ratios[row]["high"]) if axes is grid[0] else value
            axes.annotate(f" {text}", (end, row), va="center", fontsize=8)
        axes.set(xlabel=title, xlim=(0, 1.2 * max(numbers)), ylim=(len(names) - 0.5, -0.5))
    for row, r in enumerate(ratios):
        grid[0].plot([r["low"], r["high"]], [row, row], color=BLACK, linewidth=1.2)
    first = records[0]
    sizes = f"{first['examples']} examples, one query, width {first['n_embd']}, {first['device']}"
    figure.suptitle(f"{sizes}; time follows the number of tokens, not of pairs that are seen", fontsize=10)
    return figure
