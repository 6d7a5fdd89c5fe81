"""Pictures from records: a function a kind of picture. They read numbers and never compute them."""

import json
import sys
from pathlib import Path

from matplotlib import colormaps
from matplotlib.colors import ListedColormap, LogNorm
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from minicl.errors import InputError, check, choose

# Okabe and Ito's palette: told apart by colour-blind readers, and by their lightness in print.
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
    "offdiagonal": ("#8C6D31", "X"),
}
SPARE = [("#7F7F7F", "<"), ("#4B0082", ">"), ("#8B0000", "h"), ("#2F4F4F", "*")]
# Baselines are thin and grey to black, told apart by their dashes; the optimum is the black dashed one.
BASELINES = {
    "optimal": (BLACK, (0, (5, 2))),
    "least_squares": ("#444444", (0, (3, 1, 1, 1))),
    "lasso": ("#444444", (0, (1, 1))),
    "greedy_tree": ("#444444", (0, (8, 3))),
    "knn": ("#888888", (0, (1, 2))),
}


ERROR = "squared error ÷ that of answering 0"


def check_ending(path):
    """Refuse a file that no picture can be written to by its name, before any work is done for it."""
    choose(f"picture {path}: its ending", Path(path).suffix.lower(), (".png", ".pdf", ".svg"))


def save(figure, path):
    """Write the picture; the file's ending decides the format."""
    check_ending(path)
    try:
        figure.savefig(path, dpi=150)
    except OSError as error:
        raise InputError(f"picture {path}: cannot be written: {error.strerror or error}") from error
    print(f"wrote {path}", file=sys.stderr)


def script(draw, description):
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


def masks(records):
    """Token-level masks side by side: row sees column, coloured by what is seen; positions under the columns."""
    columns = min(4, len(records))
    rows = -(-len(records) // columns)
    figure = Figure(figsize=(3.6 * columns, 4.1 * rows + 0.7), layout="constrained")
    for axes, record in zip(figure.subplots(rows, columns, squeeze=False).flat, records, strict=False):
        _mask(axes, record)
    for axes in figure.axes[len(records) :]:
        axes.set_axis_off()
    kinds = {"its own example": BLUE, "other examples": ORANGE, "seen by the query": GREEN, "the query": RED}
    figure.legend(
        handles=[Patch(facecolor=colour, label=label) for label, colour in kinds.items()],
        loc="outside lower center",
        ncols=len(kinds),
        frameon=False,
    )
    return figure


def _mask(axes, record):
    tokens = record["tokens"]
    T, labelled = len(tokens), len(tokens) <= 26
    example = [t.strip("xy'") for t in tokens]  # the example's number; "quer" for queries

    def kind(q, k):
        if record["sees"][q][k] == "0":
            return 0
        if tokens[q] == "query":
            return 3
        if tokens[k] == "query":
            return 4
        return 1 if example[q] == example[k] else 2

    colours = ListedColormap(["#F2F2F2", BLUE, ORANGE, GREEN, RED])
    axes.pcolormesh(
        [[kind(q, k) for k in range(T)] for q in range(T)],
        cmap=colours,
        vmin=0,
        vmax=4,
        edgecolors="white" if labelled else "none",
        linewidth=0.7,
    )
    axes.set(xlim=(0, T), ylim=(T, 0), aspect="equal")
    axes.spines[:].set_visible(False)
    axes.tick_params(length=0, labelsize=9 if T <= 12 else 8 if T <= 17 else 6)
    kind_of_positions = record["positions"].replace("none", "no")
    padding = 16 if record["copies"] > 1 else 6  # room for the names of the copies
    axes.set_title(f"{record['mask']}: {kind_of_positions} positions", fontsize=11, pad=padding)
    places = record["position_ids"] or ["–"] * T
    n = record["examples"]
    if labelled:
        short = ["$x_t$" if t == "query" else f"${t[0]}_{{{e}}}$" for t, e in zip(tokens, example, strict=True)]
        axes.set_xticks([i + 0.5 for i in range(T)], [f"{t}\n{p}" for t, p in zip(short, places, strict=True)])
        axes.set_yticks([i + 0.5 for i in range(T)], short)
        axes.set_xlabel("seen token, its position below" if record["position_ids"] else "seen token, no positions")
    else:
        starts = [2 * n * c for c in range(record["copies"])]
        axes.set_xticks([s + n for s in starts], [f"copy {c}" for c in range(len(starts))])
        axes.set_yticks([s + n for s in starts], [f"copy {c}" for c in range(len(starts))], rotation=90, va="center")
        axes.set_xlabel("seen token")
    axes.set_ylabel("token that looks")
    for edge in range(2 * n, T, 2 * n):  # between the copies, and before the queries
        axes.axvline(edge, color="black", linewidth=0.8)
        axes.axhline(edge, color="black", linewidth=0.8)
    if record["copies"] > 1 and labelled:
        for c in range(record["copies"]):
            axes.text(2 * n * (c + 0.5), -0.15, f"copy {c}", ha="center", va="bottom", fontsize=8)


def _look(method, others):
    """Colour and marker of a model's line; a variant (`ar+symmetric`) of a strategy differs from it."""
    if method in LOOKS:
        return LOOKS[method]
    spare = sorted({method, *others} - set(LOOKS))
    return SPARE[spare.index(method) % len(SPARE)]


def curves(records):
    """Error against the number of examples: a panel for every kind of prompts and step; the training length marked."""

    def kind(r):
        return r["task"], r["n_dims"], r["shift"]

    shown = _shown(records)
    methods = {r["method"] for r in shown if r["step"] is not None}
    panels = {
        (key, step): [r for r in shown if kind(r) == key and r["step"] in (None, step)]
        for key, step in dict.fromkeys((kind(r), r["step"]) for r in records if r["step"] is not None)
    }
    columns = 2 if len(panels) == 4 else min(3, len(panels))  # four: early and late side by side
    rows = -(-len(panels) // columns)
    figure = Figure(figsize=(4.6 * columns + 0.6, 3.6 * rows + 0.5), layout="constrained")
    grid = figure.subplots(rows, columns, squeeze=False)
    for axes, ((key, step), lines) in zip(grid.flat, panels.items(), strict=False):
        _curve_panel(axes, lines, methods, scale=[r for r in shown if kind(r) == key])
        task, n_dims, shift = key
        dims = f" in {n_dims} dimensions" if len({r["n_dims"] for r in shown if r["task"] == task}) > 1 else ""
        axes.set_title(f"{task}{dims}, step {step}" + ("" if shift == "none" else f", {shift}"), fontsize=10)
    for axes in list(grid.flat)[len(panels) :]:
        axes.set_axis_off()
    found = {label: line for axes in figure.axes for line, label in zip(*axes.get_legend_handles_labels(), strict=True)}
    place = {"loc": "outside lower center", "ncols": 3 * columns, "title": _bands(shown), "title_fontsize": 8}
    figure.legend(found.values(), found.keys(), fontsize=8, frameon=False, **place)
    return figure


def _shown(records):
    """Without the runs that their group's line shows."""
    averaged = {run for r in records for run in r.get("runs", [])}
    return [r for r in records if r["run"] not in averaged]


def _bands(lines):
    """What the bands of these curves are."""
    kinds = {bool(r.get("over")) for r in lines if r["step"] is not None}
    names = {True: "range over seeds", False: "90 % interval over prompts" + (", if one seed" if True in kinds else "")}
    return "bands: " + "; ".join(names[kind] for kind in sorted(kinds, reverse=True))


def shifts(records):
    """The same, for shifted prompts alone."""
    return curves([r for r in records if r["shift"] != "none"])


def _curve_panel(axes, lines, methods, scale):
    """Curves with their bands; `methods` are those of all panels, and the models of `scale` set the axis."""
    for r in lines:
        positive = [max(v, 1e-12) for v in r["mean"]]
        if r["step"] is None:
            colour, dashes = BASELINES.get(r["method"], ("#888888", (0, (6, 2, 2, 2))))
            axes.plot(
                r["lengths"], positive, color=colour, linestyle=dashes, linewidth=1.2, label=r["method"], zorder=1
            )
            continue
        colour, marker = _look(r["method"], methods)
        every = max(1, len(r["lengths"]) // 8)
        seeds = f", {len(r['runs'])} seeds" if r.get("over") else ""
        points = {"marker": marker, "markevery": every, "markersize": 4}
        axes.plot(r["lengths"], positive, color=colour, label=r["method"] + seeds, **points)
        axes.fill_between(r["lengths"], r["low"], r["high"], color=colour, alpha=0.2, linewidth=0)
    longest = max(n for r in lines for n in r["lengths"])
    for n in {r["trained_on"] for r in lines if r.get("trained_on", longest + 1) <= longest}:
        axes.axvline(n, color="#999999", linewidth=0.8, linestyle=":")
        place = {"xycoords": ("data", "axes fraction"), "ha": "right", "va": "bottom", "rotation": 90}
        axes.annotate("trained to", (n, 0.015), fontsize=7, color="#666666", **place)
    # The models set the scale: a baseline that is exact, or blows up, would leave them no room.
    values = [v for r in scale if r["step"] is not None for v in r["mean"]]
    low, high = min(values), max(v for r in scale if r["step"] is not None for v in r["high"])
    if max(values) > 10 * low:
        axes.set_yscale("log")
        axes.set_ylim(max(low / 8, 1e-6), high * 2)
    else:
        axes.set_ylim(0, high * 1.1)
    axes.set_xlabel("examples in the prompt")
    axes.set_ylabel(ERROR)
    axes.spines[["top", "right"]].set_visible(False)


def steps(records):
    """Error at a context length against training step: the training length, and the longest, a panel each."""
    lines = [r for r in records if r["step"] is not None and r["shift"] == "none"]
    chosen = sorted({n for r in lines for n in (r["trained_on"], max(r["lengths"]))})
    figure = Figure(figsize=(4.6 * len(chosen) + 0.4, 3.7), layout="constrained")
    methods = {r["method"] for r in lines}
    for axes, n in zip(figure.subplots(1, len(chosen), squeeze=False)[0], chosen, strict=True):
        for method in sorted(methods):
            mine = [r for r in lines if r["method"] == method and n in r["lengths"]]
            averaged = [r for r in mine if r.get("over")] or mine
            for run in sorted({str(r.get("runs") or r["run"]) for r in averaged}):
                points = sorted((r for r in averaged if str(r.get("runs") or r["run"]) == run), key=lambda r: r["step"])
                at = [r["lengths"].index(n) for r in points]
                x = [r["step"] for r in points]
                mean, low, high = ([r[k][i] for r, i in zip(points, at, strict=True)] for k in ("mean", "low", "high"))
                colour, marker = _look(method, methods)
                axes.plot(x, mean, color=colour, marker=marker, markersize=4, label=method)
                axes.fill_between(x, low, high, color=colour, alpha=0.2, linewidth=0)
        axes.set_yscale("log")
        axes.set_xlabel("training step")
        axes.set_ylabel(ERROR)
        axes.set_title(f"{n} examples", fontsize=10)
        axes.legend(fontsize=8, frameon=False, title=_bands(_shown(lines)), title_fontsize=8)
        axes.spines[["top", "right"]].set_visible(False)
    return figure


def growth(records):
    """Error against the number of examples, a line a checkpoint from light to dark, a panel a strategy."""
    lines = _shown(records)
    methods = list(dict.fromkeys(r["method"] for r in lines))
    figure = Figure(figsize=(4.6 * len(methods) + 0.4, 3.9), layout="constrained")
    for axes, method in zip(figure.subplots(1, len(methods), squeeze=False, sharey=True)[0], methods, strict=True):
        mine = sorted((r for r in lines if r["method"] == method), key=lambda r: r["step"])
        for i, r in enumerate(mine):
            shade = colormaps["viridis_r"](0.1 + 0.9 * i / max(1, len(mine) - 1))
            axes.plot(r["lengths"], r["mean"], color=shade, label=f"step {r['step']}")
        axes.axvline(mine[0]["trained_on"], color="#999999", linewidth=0.8, linestyle=":")
        axes.set(yscale="log", xlabel="examples in the prompt", ylabel=ERROR)
        axes.set_title(method + _seeds(mine[0]), fontsize=10)
        axes.legend(fontsize=7, frameon=False)
        axes.spines[["top", "right"]].set_visible(False)
    return figure


def _seeds(record):
    return f", mean of {len(record['runs'])} seeds" if record.get("over") else ""


def _base(method):
    """The strategy that a control's name begins with: `ar+×2`, `ar, 1 query`."""
    return method.replace(",", "+").partition("+")[0]


def variants(records):
    """A row for each variant: its errors at two lengths, and its spread over orders if it was measured on all."""
    methods = list(dict.fromkeys(r["method"] for r in records))
    lengths = list(records[0]["errors"])
    panels = [(f"error with {n} examples", lambda r, n=n: r["errors"][n]) for n in lengths]
    if all(r["spread"] is not None for r in records):
        panels.append(("spread over orders ÷ scale of y", lambda r: r["spread"]))
    figure = Figure(figsize=(3.1 * len(panels) + 1.6, 0.34 * len(methods) + 1.1), layout="constrained")
    for axes, (title, value) in zip(
        figure.subplots(1, len(panels), squeeze=False, sharey=True)[0], panels, strict=True
    ):
        for row, method in enumerate(methods):
            found = [max(value(r), 1e-9) for r in records if r["method"] == method]
            colour, marker = _look(_base(method), ())
            axes.plot(found, [row] * len(found), marker, color=colour, markersize=5, alpha=0.8)
        seen = [value(r) for r in records]
        wide = max(seen) > 10 * min(seen)
        axes.set(xscale="log" if wide else "linear", xlabel=title, ylim=(len(methods) - 0.5, -0.5))
        axes.set_yticks(range(len(methods)), methods, fontsize=9)
        axes.grid(axis="y", color="#EEEEEE")
        axes.spines[["top", "right"]].set_visible(False)
    figure.suptitle("a mark for each seed", fontsize=9)
    return figure


def training(records):
    """Error at the training length against step, a panel for each task and strategy, a band over the seeds."""
    panels = {}
    for r in records:
        panels.setdefault((r["task"], _base(r["method"])), []).append(r)
    columns = min(4, len(panels))
    rows = -(-len(panels) // columns)
    figure = Figure(figsize=(3.6 * columns + 0.4, 3 * rows), layout="constrained")
    grid = figure.subplots(rows, columns, squeeze=False, sharey=True)
    for axes, ((task, mask), members) in zip(grid.flat, panels.items(), strict=False):
        for i, method in enumerate(dict.fromkeys(r["method"] for r in members)):
            seeds = [r["lines"] for r in members if r["method"] == method]
            steps = [line["step"] for line in seeds[0]]
            errors = list(zip(*([list(line["error"].values())[-1] for line in lines] for lines in seeds), strict=True))
            colour = [_look(mask, ())[0], BLACK, "#777777", SKY, "#8B0000"][i % 5]
            style = ["-", "--", ":", "-.", (0, (6, 1, 1, 1, 1, 1))][i % 5]
            means = [sum(e) / len(e) for e in errors]
            axes.plot(steps, means, linestyle=style, color=colour, linewidth=1.2, label=method)
            axes.fill_between(steps, [min(e) for e in errors], [max(e) for e in errors], color=colour, alpha=0.2, lw=0)
        axes.set(yscale="log", xlabel="training step")
        axes.set_title(f"{task}, {mask}", fontsize=10)
        axes.legend(fontsize=7, frameon=False)
        axes.spines[["top", "right"]].set_visible(False)
    for axes in list(grid.flat)[len(panels) :]:
        axes.set_axis_off()
    for axes in grid[:, 0]:
        axes.set_ylabel(ERROR, fontsize=8)
    figure.suptitle("on the validation prompts, at the training length: mean and range over seeds", fontsize=10)
    return figure


def costs(records):
    """What a forward pass takes under each strategy: time, memory, attention pairs."""
    names = [r["mask"] for r in records]
    panels = {f"time ÷ {names[0]}, and the middle half": [r["ratio"]["ratio"] for r in records]}
    if all(r["memory_bytes"] is not None for r in records):
        panels["memory, MiB"] = [r["memory_bytes"] / 2**20 for r in records]
    panels["attention pairs seen"] = [r["pairs"] for r in records]
    figure = Figure(figsize=(9.6, 0.36 * len(names) + 1.2), layout="constrained")
    for axes, (title, values) in zip(figure.subplots(1, len(panels), sharey=True), panels.items(), strict=True):
        axes.barh(names, values, color=[_look(name, ())[0] for name in names], height=0.65)
        for row, value in enumerate(values):
            text = f"{value:,.0f}" if value >= 100 else f"{value:.3g}"
            end = records[row]["ratio"]["high"] if axes is figure.axes[0] else value
            axes.annotate(f" {text}", (max(value, end), row), va="center", fontsize=8)
        axes.set(xlabel=title, xlim=(0, 1.2 * max(values)), ylim=(len(names) - 0.5, -0.5))
        axes.spines[["top", "right"]].set_visible(False)
    first = records[0]
    for row, r in enumerate(records):
        figure.axes[0].plot([r["ratio"]["low"], r["ratio"]["high"]], [row, row], color=BLACK, linewidth=1.2)
    figure.axes[0].set_title(f"{first['examples']} examples, width {first['n_embd']}, {first['device']}", fontsize=9)
    return figure


def race(records, curve_records):
    """Error against seconds of training, the recipe of 2022 dashed; and error against examples at the end."""
    figure = Figure(figsize=(10, 3.9), layout="constrained")
    left, right = figure.subplots(1, 2)
    for r in records:
        colour = _look(r["mask"], ())[0]
        begun = [curve for curve in r["recipe_curves"] if curve]
        for i, curve in enumerate(begun):
            label = f"{r['mask']}, {len(begun)} seeds" if i == 0 else None
            left.plot(*zip(*curve, strict=True), color=colour, linewidth=1, label=label)
        left.plot(
            *zip(*r["reference_curve"], strict=True),
            "--",
            color=colour,
            linewidth=1,
            label=f"{r['mask']}, recipe of 2022",
        )
    left.axhline(records[0]["target"], color="#999999", linewidth=0.8, linestyle=":")
    left.annotate(f"{records[0]['target']:g}", (5.2, records[0]["target"]), va="bottom", fontsize=7, color="#666666")
    left.set(yscale="log", xscale="log", xlim=(5, None), xlabel="seconds of training on one core", ylabel=ERROR)
    left.set_title("error at the training length", fontsize=10)
    left.legend(fontsize=8, frameon=False)
    left.spines[["top", "right"]].set_visible(False)
    shown = _shown(curve_records)
    _curve_panel(right, shown, {r["mask"] for r in records}, scale=shown)
    right.set_title("at the end of training", fontsize=10)
    right.legend(fontsize=8, frameon=False, title=_bands(shown), title_fontsize=8)
    return figure


def probes(records):
    """Probe error against examples, a line a layer, a panel a run; the model itself and the controls beside it."""
    runs = list(dict.fromkeys(r["run"] for r in records))
    figure = Figure(figsize=(4.8 * len(runs) + 0.4, 4), layout="constrained")
    shades = ["#C6DBEF", "#6BAED6", "#2171B5", "#08306B"]
    for axes, run in zip(figure.subplots(1, len(runs), squeeze=False, sharey=True)[0], runs, strict=True):
        mine = [r for r in records if r["run"] == run]
        layers = sorted({r["layer"] for r in mine if r["layer"] is not None})

        def line(kind, layer, axes=axes, mine=mine, **style):
            points = sorted((r for r in mine if (r["probe"], r["layer"]) == (kind, layer)), key=lambda r: r["examples"])
            axes.plot([r["examples"] for r in points], [r["mean"] for r in points], **style)

        for i, layer in enumerate(layers):
            shade = shades[round(i * (len(shades) - 1) / max(1, len(layers) - 1))]
            line("target", layer, color=shade, marker="os^D"[i % 4], markersize=3.5, label=f"layer {layer}")
        line("model", None, color=RED, linewidth=1.2, linestyle="--", label="the model")
        line("untrained", layers[-1], color="#777777", linestyle=":", label=f"untrained, layer {layers[-1]}")
        line("shuffled", layers[-1], color="#777777", linestyle="-.", label=f"shuffled, layer {layers[-1]}")
        axes.axvline(mine[0]["trained_on"], color="#999999", linewidth=0.8, linestyle=":")
        axes.set(yscale="log", xlabel="examples in the prompt", ylabel=ERROR)
        axes.set_title(f"{mine[0]['method']} ({Path(run).name})", fontsize=10)
        axes.legend(fontsize=7, frameon=False)
        axes.spines[["top", "right"]].set_visible(False)
    return figure


def order(records):
    """Spread of the query prediction over orders of the context, a bar for each run."""
    figure = Figure(figsize=(1.2 * len(records) + 2.4, 3.6), layout="constrained")
    axes = figure.subplots()
    floor = 1e-9
    methods = {r["method"] for r in records}
    for i, r in enumerate(records):
        axes.bar(
            i,
            max(r["spread"], floor) - floor * 0.1,
            bottom=floor * 0.1,
            color=_look(r["method"], methods)[0],
            width=0.7,
        )
        axes.annotate(f"{r['spread']:.1g}", (i, max(r["spread"], floor)), ha="center", va="bottom", fontsize=8)
    axes.set(yscale="log", ylabel="spread over orders ÷ scale of y")
    axes.set_ylim(floor * 0.1, 10)
    folders = [Path(r["run"]).name for r in records]
    names = [r["method"] + ("" if f == r["method"] else f"\n{f}") for r, f in zip(records, folders, strict=True)]
    axes.set_xticks(range(len(records)), names, fontsize=8)
    axes.spines[["top", "right"]].set_visible(False)
    return figure


def theory(records):
    """Distance to the true weights against layer, a panel for every step size, a line for every mask."""
    rates = list(dict.fromkeys(r["rate"] for r in records))
    figure = Figure(figsize=(3.4 * len(rates) + 0.6, 3.6), layout="constrained")
    methods = {r["mask"] for r in records}
    lowest = min(v for r in records for v in r["distance"])
    for axes, rate in zip(figure.subplots(1, len(rates), squeeze=False, sharey=True)[0], rates, strict=True):
        for r in (r for r in records if r["rate"] == rate):
            if r["mask"] == "nope":  # the construction has no positions: it is ar
                continue
            colour, marker = (BLUE, "s") if r["mask"] == "invicl (proof)" else _look(r["mask"], methods)
            style = "--" if r["mask"] == "invicl (proof)" else "-"
            name = {"ar": "ar, nope"}.get(r["mask"], r["mask"]) if "nope" in methods else r["mask"]
            points = {"marker": marker, "markersize": 3.5, "fillstyle": "none" if style == "--" else "full"}
            axes.plot(r["layers"], r["distance"], style, color=colour, label=name, **points)
            if style == "-" and r["optimiser"] and max(r["from_optimiser"]) > 1e-9:
                axes.plot(r["layers"], r["optimiser_distance"], ":", color=colour, label=f"{name} as stated")
        axes.set(yscale="log", xlabel="layer", title=rf"$\eta = {rate:g}/\lambda_{{\max}}$", ylim=(lowest / 1.3, 3))
        axes.title.set_fontsize(10)
        axes.spines[["top", "right"]].set_visible(False)
    figure.axes[0].set_ylabel("distance to w ÷ |w|")
    figure.axes[0].legend(fontsize=8, frameon=False, loc="lower left")
    return figure


def resemblance(records):
    """Layer × number of steps: how far a layer's probed prediction is from that of the optimiser."""
    figure = Figure(figsize=(9.4, 3.9), layout="constrained")
    kinds = {"descent": "gradient descent (best step size)", "newton": "Newton's iteration"}
    lowest = min(v for r in records for kind in kinds for v in r[kind])
    norm = LogNorm(max(lowest, 1e-4), 1)
    for axes, (kind, title) in zip(figure.subplots(1, 2, sharey=True), kinds.items(), strict=True):
        image = axes.imshow([r[kind] for r in records], cmap="viridis_r", norm=norm, origin="lower", aspect="auto")
        for r in records:
            k = min(range(len(r[kind])), key=r[kind].__getitem__)
            axes.plot(k, r["layer"], "o", color="white", markeredgecolor="black", markersize=5)
        axes.set(xlabel="steps k", title=title)
        axes.set_yticks([r["layer"] for r in records])
        axes.title.set_fontsize(10)
    figure.axes[0].set_ylabel("layer")
    figure.colorbar(image, ax=figure.axes, label="squared distance ÷ scale of y; ○ nearest k")
    return figure
