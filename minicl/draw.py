"""Pictures from records: one function for each kind of picture. They read numbers and never compute them."""

import io
import json
import sys
from collections import Counter
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any

from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from minicl.checkpoint import write_atomically
from minicl.checks import InputError, check, choose
from minicl.plugins import short
from minicl.stats import ROUNDING, percent

Records = list[dict[str, Any]]

# Okabe and Ito's palette: colour-blind readers can tell its colours apart, and so can readers of a grey print.
BLUE, ORANGE, GREEN, RED = "#0072B2", "#E69F00", "#009E73", "#D55E00"
PURPLE, SKY, BLACK = "#CC79A7", "#56B4E9", "#000000"
# A strategy has the same colour and marker in every picture; others take what is left.
LOOKS = {
    "ar": (ORANGE, "o"),
    "invicl": (BLUE, "s"),
    "prefix": (GREEN, "^"),
    "boe": (PURPLE, "D"),
    "nope": (RED, "v"),
    "saicl": (SKY, "P"),
    "pfn": (BLACK, "*"),
    "batchicl": ("#8B0000", "h"),
    "deepset": ("#7F7F7F", "<"),
    "prefix_others": ("#8C6D31", "X"),
}
SPARE = [("#4B0082", ">"), ("#2F4F4F", "d"), ("#B8860B", "p"), ("#5F9EA0", "8")]
# Baselines are thin lines from grey to black, and differ in their dashes; the optimum is the black dashed one.
BASELINES = {
    "optimal": (BLACK, (0, (5, 2))),
    "least_squares": ("#444444", (0, (3, 1, 1, 1))),
    "lasso": ("#444444", (0, (1, 1))),
    "greedy_tree": ("#444444", (0, (8, 3))),
    "knn": ("#888888", (0, (1, 2))),
}
ERROR = "squared error ÷ that of answering 0"
EXACT = 1e-9  # an error below this is rounding


def check_ending(path: str | Path) -> None:
    """Refuse a file name that says no picture format, or no folder, before any work is done for the picture."""
    choose(f"picture {path}: its ending", Path(path).suffix.lower(), (".png", ".pdf", ".svg"))
    check(Path(path).absolute().parent.is_dir(), f"picture {path}", Path(path).parent, "a folder that exists")


def save(figure: Figure, path: str | Path) -> None:
    """Write the picture, whole or not at all; the file's ending decides the format."""
    check_ending(path)
    content = io.BytesIO()
    figure.savefig(content, dpi=150, format=Path(path).suffix[1:].lower())
    try:
        write_atomically(path, content.getvalue())
    except OSError as error:
        raise InputError(f"picture {path}: cannot be written: {error.strerror or error}") from error
    print(f"wrote {path}", file=sys.stderr)


def script(draw: Callable[[Records], Figure], description: str) -> None:
    """The body of the scripts in plots/: read records from JSON files (- is standard input), draw them, save."""
    from minicl.cli import Parser

    parser = Parser(description=description)
    parser.add_argument("json", nargs="+", help="files of records, as the --json of a minicl command prints them")
    parser.add_argument("-o", "--out", required=True, help="the picture: a .png, .pdf or .svg file")
    args = parser.parse_args()
    try:
        check_ending(args.out)
        records = [record for name in args.json for record in _read(name)]
        try:
            figure = draw(records)
        except (KeyError, TypeError, IndexError, ValueError, ZeroDivisionError, AttributeError) as error:
            raise InputError(f"{', '.join(args.json)}: not the records of this picture: {error!r}") from error
        save(figure, args.out)
    except InputError as error:
        parser.error(str(error))


def _read(name):
    try:
        records = json.loads(sys.stdin.read() if name == "-" else Path(name).read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise InputError(f"{name}: cannot be read as JSON: {error}") from error
    check(isinstance(records, list) and records, name, "something else", "a list of records")
    return records


def panels(
    count: int, width: float, height: float, columns: int = 9, margin: tuple[float, float] = (0.4, 0), **shared
) -> tuple[Figure, list[Axes]]:
    """A figure with `count` panels of this size in inches, at most `columns` beside each other."""
    columns = min(columns, count)
    rows = -(-count // columns)
    size = (width * columns + margin[0], height * rows + margin[1])
    figure = Figure(figsize=size, layout="constrained")
    grid = list(figure.subplots(rows, columns, squeeze=False, **shared).flat)
    for axes in grid[count:]:
        axes.set_axis_off()
    for axes in grid:
        axes.spines[["top", "right"]].set_visible(False)
    return figure, grid[:count]


def look(method: str, others: Collection[str]) -> tuple[str, str]:
    """Colour and marker of a model's line; `others` are the methods of the whole picture.

    A control has its strategy's, unless the strategy or another control of it is there too.
    """
    every = sorted({method, *others})
    alone = [m for m in every if [base_of(other) for other in every].count(base_of(m)) == 1]
    if method in LOOKS or (method in alone and base_of(method) in LOOKS):
        return LOOKS[base_of(method)]
    spare = [m for m in every if m not in LOOKS and (m not in alone or base_of(m) not in LOOKS)]
    return SPARE[spare.index(method) % len(SPARE)]


def seed_count(count: int) -> str:
    """1 seed, 2 seeds."""
    return f"{count} seed{'' if count == 1 else 's'}"


def run_names(records: Records) -> dict[tuple[str, int], str]:
    """{(run, step): its name in titles}: the method's, or the folder's and the step where several share a method."""
    methods = {(r["run"], r["step"]): r["method"] for r in records}
    shared = {method for method in methods.values() if [*methods.values()].count(method) > 1}
    return {key: f"{Path(key[0]).name}, step {key[1]}" if m in shared else m for key, m in methods.items()}


def base_of(method: str) -> str:
    """The strategy that a control's name begins with: `ar+×2`, `ar, 1 query`."""
    return method.replace(",", "+").partition("+")[0]


def without_members(records: Records) -> Records:
    """The records without the single runs whose mean over seeds is there too."""
    averaged = {(run, r["step"], r["shift"]) for r in records for run in r.get("runs", [])}
    return [r for r in records if (r["run"], r["step"], r["shift"]) not in averaged]


def mark_training_length(axes: Axes, n: int, **line) -> None:
    """A dotted line at the number of examples in the training prompts."""
    axes.axvline(n, color="#999999", linewidth=0.8, linestyle=":", **line)


def curves(records: Records) -> Figure:
    """Error against the number of examples: one panel for every kind of prompts; and step, if a run has several."""
    trained = [r for r in records if r["step"] is not None]
    runs = {(r["run"], r["step"]) for r in trained if r["run"] is not None}
    several = len(runs) > len(dict(runs))

    def kind(r):
        return short(r["task"]), r["n_dims"], r["shift"]

    shown = _told_apart(without_members(records), lambda r: (kind(r), r["step"] if several else None))
    methods = {r["method"] for r in shown if r["step"] is not None}
    steps = {key: sorted({r["step"] for r in trained if kind(r) == key}) for key in map(kind, trained)}
    lines = {
        (key, step): [r for r in shown if kind(r) == key and (r["step"] in (None, step) or not several)]
        for key, step in dict.fromkeys((kind(r), r["step"] if several else None) for r in trained)
    }
    columns = 2 if len(lines) == 4 else 3  # four: early and late side by side
    figure, grid = panels(len(lines), 4.6, 3.6, columns, margin=(0.6, 0.5))
    for axes, ((task, n_dims, shift), step) in zip(grid, lines, strict=True):
        key = (task, n_dims, shift)
        curve_panel(axes, lines[key, step], methods, scale=[r for r in shown if kind(r) == key])
        dims = f" in {n_dims} dimensions" if len({d for (t, d, _), _ in lines if t == task}) > 1 else ""
        when = _when(step, steps[key])
        axes.set_title(f"{task}{dims}{'' if shift == 'none' else f', {shift}'}, {when}", fontsize=10)
    entries = {label: line for axes in grid for line, label in zip(*axes.get_legend_handles_labels(), strict=True)}
    names = _legend_names([r for panel in lines.values() for r in panel])
    place = {"loc": "outside lower center", "fontsize": 8, "frameon": False}
    shared = "\n" if len(lines) == 1 else "; "  # one panel has no room for one line
    shared += "all curves of a panel have the same prompts: where several peak, the prompts are hard"
    place |= {"title": bands(shown) + shared * (len(methods) > 1), "title_fontsize": 8}
    _fitting_legend(figure, entries.values(), [names.get(e, e) for e in entries], 3 * min(columns, len(lines)), place)
    return figure


def _told_apart(lines, panel):
    """The lines with their run's name where a panel has several of one method, which differ in more than the seed."""
    count = Counter((panel(r), r["method"]) for r in lines if r["step"] is not None)
    again = {method for (_, method), n in count.items() if n > 1}

    def named(r):
        return r["method"] in again and r["run"] is not None

    return [r | {"method": f"{r['method']} ({Path(r['run']).name})"} if named(r) else r for r in lines]


def _fitting_legend(figure, lines, names, columns, place):
    """A legend in as few rows as fit: of at most so many columns, and no wider than the picture."""
    renderer = FigureCanvasAgg(figure).get_renderer()
    for rows in range(-(-len(names) // columns), len(names) + 1):
        legend = figure.legend(lines, names, ncols=-(-len(names) // rows), **place)
        if rows == len(names) or legend.get_window_extent(renderer).width < figure.bbox.width:
            return
        legend.remove()


def _when(step, steps):
    """When in training a panel is; of two panels, one is early and one is late."""
    if len(steps) > 1 and step is None:
        return "at the end of training"
    if len(steps) == 2:
        return f"{'early' if step == steps[0] else 'late'} (step {step:,})"
    return f"after {step or steps[0]:,} steps"


def _legend_names(lines: Records) -> dict[str, str]:
    """What the legend says more: the number of seeds, and where a baseline's error of 0 is below every axis."""
    names = {}
    for method in {r["method"] for r in lines if r.get("over")}:
        counts = {len(r["runs"]) for r in lines if r["method"] == method and r.get("over")}
        names[method] = f"{method}, {'–'.join(str(n) for n in sorted({min(counts), max(counts)}))} seeds"
    for method in {r["method"] for r in lines if r["step"] is None}:
        exact = {}  # {from so many examples on: in which panels}
        for r in (r for r in lines if r["method"] == method):
            first = next((n for n, mean in zip(r["lengths"], r["mean"], strict=True) if mean < EXACT), None)
            exact.setdefault(first, set()).add(_plain(short(r["task"]) if r["shift"] == "none" else r["shift"]))
        parts = {n: f" in {', '.join(sorted(where))}" if len(exact) > 1 else "" for n, where in exact.items() if n}
        said = "; ".join(f"from {n} examples on{where}" for n, where in parts.items())
        names[_plain(method)] = _plain(method) + f" (exact {said})" * bool(said)
    return names


def _plain(name):
    return name.replace("_", " ")


def bands(lines: Records) -> str:
    """What the bands of these curves are."""
    kinds = {bool(r.get("over")) for r in lines if r["step"] is not None}
    prompts = f"{percent()} interval over prompts" + (", if one seed" if True in kinds else "")
    names = {True: "range over seeds", False: prompts}
    return "bands: " + "; ".join(names[kind] for kind in sorted(kinds, reverse=True))


def shifts(records: Records) -> Figure:
    """The same, only for shifted prompts."""
    return curves([r for r in records if r["shift"] != "none"])


def curve_panel(axes: Axes, lines: Records, methods: Collection[str], scale: Records) -> None:
    """Curves with their bands; `methods` are those of all panels, and the models of `scale` set the axis."""
    for r in lines:
        positive = [max(v, 1e-12) for v in r["mean"]]
        if r["step"] is None:
            colour, dashes = BASELINES.get(r["method"], ("#888888", (0, (6, 2, 2, 2))))
            style = {"color": colour, "linestyle": dashes, "linewidth": 1.2}
            axes.plot(r["lengths"], positive, label=_plain(r["method"]), zorder=1, **style)
            continue
        colour, marker = look(r["method"], methods)
        every = max(1, len(r["lengths"]) // 8)
        points = {"marker": marker, "markevery": every, "markersize": 4}
        axes.plot(r["lengths"], positive, color=colour, label=r["method"], **points)
        axes.fill_between(r["lengths"], r["low"], r["high"], color=colour, alpha=0.2, linewidth=0)
    longest = max(n for r in lines for n in r["lengths"])
    for n in {r["trained_on"] for r in lines if r.get("trained_on", longest + 1) <= longest}:
        mark_training_length(axes, n)
        place = {"xycoords": ("data", "axes fraction"), "ha": "right", "va": "bottom", "rotation": 90}
        axes.annotate("trained to", (n, 0.015), fontsize=7, color="#666666", **place)
    # The models set the scale: a baseline that is exact, or blows up, would leave them no room.
    models = [r for r in scale if r["step"] is not None]
    values, high = [v for r in models for v in r["mean"]], max(v for r in models for v in r["high"])
    if max(values) > 5 * min(values):
        axes.set_yscale("log")
        axes.set_ylim(max(min(values) / 8, 1e-6), high * 2)
    else:
        axes.set_ylim(0, high * 1.1)
    axes.set(xlabel="examples in the prompt", ylabel=ERROR)


def prompt(records: Records) -> Figure:
    """One prompt: its points, a run's answers along x, thinly its answers to other orders, and the baselines'.

    One column per run and checkpoint, one row per shift and number of examples.
    """
    models, methods = run_names(records), {r["method"] for r in records}
    rows = list(dict.fromkeys((r["shift"], r["examples"]) for r in records))
    figure, grid = panels(len(models) * len(rows), 4.2, 3.4, len(models), margin=(0.2, 0.7), sharex=True, sharey=True)
    for axes in grid:
        axes.set_axis_off()
    for r in records:
        axes = grid[rows.index((r["shift"], r["examples"])) * len(models) + [*models].index((r["run"], r["step"]))]
        axes.set_axis_on()
        _prompt_panel(axes, r, models[r["run"], r["step"]], methods)
    # The points and the baselines set the scale: answers that blow up would leave the others no room.
    heights = [y for r in records for line in (r["ys"], *r["baselines"].values()) for y in line] or [-1, 1]
    margin = (max(heights) - min(heights)) / 2 + 0.1
    grid[0].set_ylim(min(heights) - margin, max(heights) + margin)
    orders = len(records[0]["shuffled"])
    grey = {"what the model predicts": 2.2, f"the same examples in {orders} other order{'s'[: orders > 1]}": 0.7}
    entries = {label: Line2D([], [], color="#666666", linewidth=width) for label, width in grey.items()}
    entries |= {label: line for axes in grid for line, label in zip(*axes.get_legend_handles_labels(), strict=True)}
    figure.legend(entries.values(), entries.keys(), loc="outside lower center", ncols=2, fontsize=8, frameon=False)
    return figure


def _prompt_panel(axes, r, name, methods):
    colour, x = look(r["method"], methods)[0], r["grid"]
    for other in r["shuffled"]:
        axes.plot(x, other, color=colour, linewidth=0.7, alpha=0.5)
    axes.plot(x, r["curve"], color=colour, linewidth=2.2)
    for baseline, line in r["baselines"].items():
        shade, dashes = BASELINES.get(baseline, ("#888888", (0, (6, 2, 2, 2))))
        axes.plot(x, line, color=shade, linestyle=dashes, linewidth=1.3, label=baseline)
    axes.plot(r["xs"], r["ys"], "o", color="white", markeredgecolor=BLACK, markersize=5, label="examples")
    shift = "" if r["shift"] == "none" else f", {r['shift']}"
    only = "only " if r["examples"] > r["trained_on"] else ""
    axes.set_title(f"{name}{shift}: {r['examples']} examples (trained on {only}{r['trained_on']})", fontsize=10)
    moved = f"less than {ROUNDING}" if r["moved"] < ROUNDING else f"up to {r['moved']:.2g}"
    place = {"xycoords": "axes fraction", "ha": "center", "va": "bottom", "fontsize": 8}
    axes.annotate(f"shuffled, it moves by {moved}", (0.5, 0.02), **place)
    axes.set(xlabel="x", ylabel="y")


def steps(records: Records) -> Figure:
    """Error against training step, in one panel at the training length and in one at the longest."""
    lines = without_members([r for r in records if r["step"] is not None and r["shift"] == "none"])
    chosen = sorted({n for r in lines for n in (r["trained_on"], max(r["lengths"]))})
    methods = {r["method"] for r in lines}
    names = _legend_names(lines)
    figure, grid = panels(len(chosen), 4.6, 3.7, sharey=True)
    for axes, n in zip(grid, chosen, strict=True):
        for method in sorted(methods):
            mine = [r for r in lines if r["method"] == method and n in r["lengths"]]
            for run in sorted({str(r.get("runs") or r["run"]) for r in mine}):
                points = sorted((r for r in mine if str(r.get("runs") or r["run"]) == run), key=lambda r: r["step"])
                at = [r["lengths"].index(n) for r in points]
                x = [r["step"] for r in points]
                mean, low, high = ([r[k][i] for r, i in zip(points, at, strict=True)] for k in ("mean", "low", "high"))
                colour, marker = look(method, methods)
                axes.plot(x, mean, color=colour, marker=marker, markersize=4, label=names.get(method, method))
                axes.fill_between(x, low, high, color=colour, alpha=0.2, linewidth=0)
        axes.set(yscale="log", xlabel="training step", ylabel=ERROR)
        axes.set_title(f"{n} examples", fontsize=10)
        axes.legend(fontsize=8, frameon=False, title=bands(lines), title_fontsize=8)
    return figure


def training(records: Records) -> Figure:
    """Error at the training length against step, with a band over the seeds.

    One panel per task. If a strategy has variants there, one panel per task and strategy.
    """
    groups = {}
    for r in records:
        method = short(r["method"])
        groups.setdefault((short(r["task"]), base_of(method)), {}).setdefault(method, []).append(r["lines"])
    variants = any(len(methods) > 1 for methods in groups.values())
    strategies = {mask for _, mask in groups}
    titles = list(dict.fromkeys(f"{task}, {mask}" if variants else task for task, mask in groups))
    size = (3.6, 3) if variants else (4.6, 3.6)
    figure, grid = panels(len(titles), *size, columns=4, sharey=True)
    for (task, mask), methods in groups.items():
        axes = grid[titles.index(f"{task}, {mask}" if variants else task)]
        for i, (method, seeds) in enumerate(methods.items()):
            colour = [look(mask, strategies)[0], BLACK, "#777777", SKY, "#8B0000"][i % 5]
            style = ["-", "--", ":", "-.", (0, (6, 1, 1, 1, 1, 1))][i % 5]
            errors = [{line["step"]: list(line["error"].values())[-1] for line in lines} for lines in seeds]
            steps = sorted(set.intersection(*map(set, errors)))  # some seeds may have come further
            values = [[seed[step] for seed in errors] for step in steps]
            means = [sum(e) / len(e) for e in values]
            label = f"{method}, {seed_count(len(seeds))}" if len(seeds) > 1 else method
            axes.plot(steps, means, linestyle=style, color=colour, linewidth=1.2, label=label)
            axes.fill_between(steps, list(map(min, values)), list(map(max, values)), color=colour, alpha=0.2, lw=0)
    for axes, title in zip(grid, titles, strict=True):
        axes.set(yscale="log", xlabel="training step")
        axes.set_title(title, fontsize=10)
        axes.legend(fontsize=7, frameon=False)
    for axes in grid[::4]:
        axes.set_ylabel(ERROR, fontsize=8)
    several = any(len(seeds) > 1 for methods in groups.values() for seeds in methods.values())
    band = "\nmean and range over seeds" if several else ""
    figure.suptitle(f"on the validation prompts, at the training length{band}", fontsize=9)
    return figure


def quality(records: Records, curve_records: Records) -> Figure:
    """Error against seconds of training, the recipe of 2022 dashed; and error against examples at the end."""
    figure, (left, right) = panels(2, 5, 3.9, margin=(0, 0))
    methods, target = {short(r["mask"]) for r in records}, records[0]["target"]
    for r in records:
        name = short(r["mask"])
        style = {"color": look(name, methods)[0], "linewidth": 1}
        for kind, line, words in (("recipe", "-", ""), ("reference", "--", ", recipe of 2022")):
            begun = [curve for curve in r[f"{kind}_curves"] if curve]
            label = f"{name}{words}, {seed_count(len(begun))}"
            for i, curve in enumerate(begun):
                seconds, errors, _ = zip(*curve, strict=True)
                left.plot(seconds, errors, linestyle=line, label=None if i else label, **style)
    left.axhline(target, color="#999999", linewidth=0.8, linestyle=":")
    left.annotate(f"{target:g}", (5.2, target), va="bottom", fontsize=7, color="#666666")
    left.set(yscale="log", xscale="log", xlim=(5, None), xlabel="seconds of training on one core", ylabel=ERROR)
    left.set_title("error at the training length", fontsize=10)
    left.legend(fontsize=8, frameon=False)
    shown = without_members(curve_records)
    curve_panel(right, shown, methods, scale=shown)
    right.set_title("at the end of training", fontsize=10)
    right.legend(fontsize=8, frameon=False, title=bands(shown), title_fontsize=8)
    return figure


def order(records: Records) -> Figure:
    """Spread of the query prediction over orders of the context, one row per run."""
    named = run_names(records)
    names = [named[r["run"], r["step"]] for r in records]
    methods = {r["method"] for r in records}
    figure, (axes,) = panels(1, 5, 0.34 * len(records) + 1.1, margin=(2, 0))
    for i, r in enumerate(records):
        colour, marker = look(r["method"], methods)
        axes.plot(max(r["spread"], 1e-9), i, marker, color=colour, markersize=6)
    spread_axis(axes, names)
    return figure


def spread_axis(axes: Axes, rows: list[str]) -> None:
    """An axis of spreads over orders, with a row for each name; what is only rounding is shaded."""
    axes.set(xscale="log", xlabel="spread over orders ÷ scale of y", ylim=(len(rows) - 0.5, -0.5), xlim=(1e-8, 3))
    axes.set_yticks(range(len(rows)), rows, fontsize=9)
    axes.grid(axis="y", color="#EEEEEE")
    axes.axvspan(1e-8, ROUNDING, color="#E8F1E8", linewidth=0, zorder=0)
    middle = (1e-8 * ROUNDING) ** 0.5
    axes.annotate("no effect (rounding)", (middle, len(rows) - 0.55), ha="center", va="bottom", fontsize=7)
