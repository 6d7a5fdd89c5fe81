"""Pictures from records: a function a kind of picture. They read numbers and never compute them."""

import json
import sys
from pathlib import Path

from matplotlib.colors import ListedColormap
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from minicl.errors import InputError, check, choose

# Okabe and Ito's palette: told apart by colour-blind readers, and by their lightness in print.
BLUE, ORANGE, GREEN, RED = "#0072B2", "#E69F00", "#009E73", "#D55E00"


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
        except (KeyError, TypeError, IndexError, ValueError) as error:
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
    axes.tick_params(length=0, labelsize=9 if T <= 12 else 6)
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
