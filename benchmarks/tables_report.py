"""From the numbers of tables.py to Markdown and a picture. Nothing is measured here."""

import json
import re
from itertools import combinations
from pathlib import Path

import numpy
import real_tables
from matplotlib.figure import Figure

from minicl import draw
from minicl.checkpoint import write_atomically
from minicl.checks import check, choose
from minicl.stats import RESAMPLES, interval, percent, rank_correlation

ROWS = (10, 20, 40, 80, 160)
FEW, MANY = 20, 80
AGAINST, TRIVIAL = "RidgeCV", "mean"
MARKS = "<!-- results -->", "<!-- end of results -->"
Cells = dict[tuple[str, int], float]


def read(folder: Path, tables, partial: bool = True) -> tuple[dict[str, Cells], dict[str, dict]]:
    """{method: its errors by (table, n)}, runs of one mask as their mean; and what is kept of each mask's runs.

    A method that lacks some of the tables is refused, unless the answer may be `partial`.
    """
    kept = [json.loads(file.read_text(encoding="utf-8")) for file in sorted(folder.glob("*.json"))]
    methods, masks = {}, {}
    for record in kept:
        mask, lacking = record["depends_on"].get("mask"), [t for t in tables if t not in record["tables"]]
        said = f"{record['method']} without {len(lacking)} of {len(tables)} tables ({', '.join(lacking[:3])}, …)"
        check(partial or not lacking, "out", said, "methods that were measured on all tables, or --partial")
        measured = {
            (table, int(n)): float(numpy.mean(errors))
            for table, by_n in record["tables"].items()
            if table in tables
            for n, errors in by_n.items()
        }
        methods.setdefault(mask or record["method"], []).append(measured)
        if mask:
            masks.setdefault(mask, []).append({"synthetic": record["synthetic"], "cells": measured})
    return {name: _mean(runs) for name, runs in methods.items()}, masks


def _mean(runs):
    both = set.intersection(*(set(cells) for cells in runs))
    return {cell: float(numpy.mean([cells[cell] for cells in runs])) for cell in sorted(both)}


def shared(methods: dict[str, Cells]) -> list[tuple[str, int]]:
    """The cells that every method has: only these are compared."""
    return sorted(set.intersection(*(set(cells) for cells in methods.values())))


def median_ratio(cells: Cells, against: Cells, chosen: list, seed: int = 0) -> tuple[float, float, float]:
    """The median over cells of the ratio of two methods' errors, and its interval over tables."""
    by_table = {}
    for cell in chosen:
        by_table.setdefault(cell[0], []).append(cells[cell] / against[cell])
    ratios, random = list(by_table.values()), numpy.random.default_rng(seed)
    draws = random.integers(len(ratios), size=(RESAMPLES, len(ratios)))
    medians = [numpy.median(numpy.concatenate([ratios[i] for i in drawn])) for drawn in draws]
    low, high = interval(medians)
    return float(numpy.median(numpy.concatenate(ratios))), float(low), float(high)


def best_with_few(methods: dict[str, Cells], cells: list) -> dict[str, float]:
    """{method: the share of tables on which its error, averaged over n ≤ 20, is the least}."""
    tables = sorted({table for table, n in cells if n <= FEW})
    few = {table: [(t, n) for t, n in cells if t == table and n <= FEW] for table in tables}
    winners = [min(methods, key=lambda m, t=table: numpy.mean([methods[m][c] for c in few[t]])) for table in tables]
    return {method: winners.count(method) / len(tables) for method in methods}


def sign_flips(differences: numpy.ndarray, seed: int = 0, flips: int = 10_000) -> float:
    """The p-value of a mean that differs from 0, by flipping signs at random: a paired test, two-sided."""
    signs = numpy.random.default_rng(seed).choice([-1.0, 1.0], size=(flips, len(differences)))
    return float((1 + (abs(signs @ differences) >= abs(differences.sum()) - 1e-12).sum()) / (1 + flips))


def summary(methods: dict[str, Cells], cells: list) -> list[str]:
    """The table that the goals are read from."""
    upto, best = [c for c in cells if c[1] <= MANY], best_with_few(methods, cells)
    lengths = sorted({n for _, n in cells})
    head = ["method", f"median ÷ {AGAINST}, n ≤ {MANY}", *(f"n = {n}" for n in lengths)]
    rows = [[*head, f"worse than the {TRIVIAL} by over 5 %", f"best, n ≤ {FEW}"]]
    order = sorted(methods, key=lambda m: median_ratio(methods[m], methods[AGAINST], upto)[0])
    for method in order:
        mid, low, high = median_ratio(methods[method], methods[AGAINST], upto)
        by_n = [median_ratio(methods[method], methods[AGAINST], [c for c in cells if c[1] == n])[0] for n in lengths]
        bad = numpy.mean([methods[method][c] > 1.05 * methods[TRIVIAL][c] for c in cells])
        row = [method, f"{mid:.3f} ({low:.3f}–{high:.3f})", *(f"{r:.3f}" for r in by_n)]
        rows.append([*row, f"{bad:.1%}", f"{best[method]:.0%}"])
    return _markdown(rows)


def per_table(methods: dict[str, Cells], cells: list) -> list[str]:
    """Errors over the variance of y at n = 20 and 80, table by table."""
    rows = [["table", "rows × features", *methods]]
    for table in sorted({table for table, _ in cells}):
        X, _ = real_tables.read(table)
        errors = [
            " / ".join(f"{methods[m][table, n]:.2f}" for n in (FEW, MANY) if (table, n) in cells) for m in methods
        ]
        rows.append([table, f"{X.shape[0]} × {X.shape[1]}", *errors])
    return _markdown(rows)


def order_of_masks(methods: dict[str, Cells], masks: dict[str, list[dict]], cells: list) -> list[str]:
    """Masks on real tables and on synthetic prompts, and paired tests over tables."""
    upto = [c for c in cells if c[1] <= MANY]
    tables = sorted({table for table, _ in upto})
    logs = {
        m: numpy.array([numpy.mean([numpy.log(methods[m][c]) for c in upto if c[0] == t]) for t in tables])
        for m in masks
    }
    made = {m: numpy.mean([e for run in runs for e in run["synthetic"].values()]) for m, runs in masks.items()}
    real = {m: median_ratio(methods[m], methods[AGAINST], upto)[0] for m in masks}
    rows = [["mask", "seeds", "error on synthetic prompts", f"median ÷ {AGAINST} on tables", "each seed"]]
    for m in sorted(masks, key=made.get):
        seeds = ", ".join(f"{median_ratio(run['cells'], methods[AGAINST], upto)[0]:.3f}" for run in masks[m])
        rows.append([m, str(len(masks[m])), f"{made[m]:.4f}", f"{real[m]:.3f}", seeds])
    lines = _markdown(rows)
    if len(masks) > 2:
        lines += ["", f"Rank correlation of the two columns: {rank_correlation(made.values(), real.values()):.2f}."]
    if len(masks) < 2:
        return lines
    pairs = [["first", "second", "error of the first ÷ the second", "p"]]
    for a, b in combinations(sorted(masks, key=real.get), 2):
        difference = logs[a] - logs[b]
        pairs.append([a, b, f"{numpy.exp(difference.mean()):.3f}", f"{sign_flips(difference):.4f}"])
    note = (
        f"Paired over {len(tables)} tables (geometric mean over n ≤ {MANY}; signs flipped at random). The test is "
        "about tables, not seeds: a difference no larger than that between two seeds of a mask says nothing."
    )
    return [*lines, "", note, "", *_markdown(pairs)]


def _markdown(rows):
    head, *body = ("| " + " | ".join(row) + " |" for row in rows)
    return [head, "|" + " --- |" * len(rows[0]), *body]


def picture(methods: dict[str, Cells], masks: dict, cells: list) -> Figure:
    """Median ratio against the number of rows, with intervals over tables."""
    figure = Figure(figsize=(7.5, 4.5), layout="constrained")
    axes, lengths = figure.add_subplot(), sorted({n for _, n in cells})
    classical = [m for m in methods if m not in masks]
    for method in methods:
        points = [median_ratio(methods[method], methods[AGAINST], [c for c in cells if c[1] == n]) for n in lengths]
        mid, low, high = zip(*points, strict=True)
        if method in masks:
            colour, marker = draw.look(method, [m for m in masks if m not in draw.LOOKS])
            axes.fill_between(lengths, low, high, color=colour, alpha=0.15, linewidth=0)
            axes.plot(lengths, mid, color=colour, marker=marker, label=method)
        else:
            dash = (0, (1 + classical.index(method), 1.5))
            axes.plot(lengths, mid, color="#666666", linestyle=dash, linewidth=1, label=method)
    axes.set(xscale="log", yscale="log", xlabel="rows given to fit", ylabel=f"median error ÷ {AGAINST}'s")
    axes.set_xticks(lengths, map(str, lengths))
    axes.set_ylim(0.5, 3)
    axes.set_yticks([0.5, 0.7, 1, 1.5, 2, 3], ["0.5", "0.7", "1", "1.5", "2", "3"])
    axes.minorticks_off()
    axes.set_title(f"{len({t for t, _ in cells})} tables; bands: {percent()} over tables", fontsize=9)
    axes.legend(fontsize=8, ncols=2)
    return figure


def run(args) -> None:
    """What `tables.py report` does."""
    groups = {"development": real_tables.DEVELOPMENT, "test": real_tables.TEST, "all": real_tables.TABLES}
    group = groups[choose("only", args.only, tuple(groups))]
    methods, masks = read(args.out, group, args.partial)
    lacking = {AGAINST, TRIVIAL} - methods.keys()
    check(not lacking, "out", f"{args.out} without {', '.join(sorted(lacking))}", "results of `tables.py measure`")
    methods = {name: cells for name, cells in methods.items() if cells}
    masks = {name: given for name, given in masks.items() if name in methods}
    cells = shared(methods)
    count = len({table for table, _ in cells})
    lines = [f"{count} tables ({args.only}), {len(cells)} cells; intervals are {percent()} over tables.", ""]
    lines += summary(methods, cells)
    if masks:
        lines += ["", "### The masks", "", *order_of_masks(methods, masks, cells)]
    lines += ["", f"### Table by table: error ÷ variance of y at n = {FEW} / {MANY}", "", *per_table(methods, cells)]
    print("\n".join(lines))
    if args.plot:
        draw.save(picture(methods, masks, cells), args.plot)
    if args.write:
        text, (begin, end) = args.write.read_text(encoding="utf-8"), MARKS
        check(begin in text and end in text, "write", args.write, f"a file with the lines {begin} and {end}")
        filled = "\n".join([begin, *lines, end])
        new = re.sub(re.escape(begin) + ".*" + re.escape(end), lambda _: filled, text, flags=re.S)
        write_atomically(args.write, new.encode())
