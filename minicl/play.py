"""`minicl play`: the page in which a class sees what a mask does. One HTML file, built from page/ into docs/.

What the page's texts quote stands in them as {{name}}, and comes from page/numbers.json; {{shown.name}} is that of the
models that the page carries.
"""

import base64
import hashlib
import json
import math
import re
import sys
import webbrowser
from pathlib import Path

from minicl import playmodels, playnumbers
from minicl.checkpoint import write_atomically
from minicl.checks import InputError, check_int
from minicl.training import Failure

ROOT = Path(__file__).resolve().parent.parent
SCRIPTS = ("core.js", "data.js", "state.js", "plot.js", "mask.js", "tour.js", "main.js")  # in this order: one script


def build(root: Path) -> dict[Path, str]:
    """{file of docs/: its content}, from the sources, the weights and the numbers in page/."""
    source = root / "page"
    if not source.is_dir():
        raise InputError(f"play: got no folder {source}, allowed: minicl run from its clone, which has one")
    data, models = _read(source / "models.json", _of_models)
    _, numbers = _read(source / "numbers.json", _of_numbers, models["early.first"])
    numbers |= models

    def text(*names):
        return "\n".join((source / name).read_text(encoding="utf-8").strip() for name in names)

    style, script = text("style.css"), '"use strict";\n' + fill(text(*SCRIPTS), numbers)
    parts = {"style": style, "script": script, "style-hash": _hash(style), "script-hash": _hash(script), "data": data}
    page = fill(text("template.html"), numbers | parts)
    return {
        root / "docs" / "play.html": page + "\n",
        root / "docs" / "class.md": fill(text("class.md"), numbers) + "\n",
    }


def fill(text: str, values: dict[str, str]) -> str:
    """The text with every {{name}} replaced."""

    def value(match):
        if match[1] not in values:
            raise InputError(f"page: got {match[0]} in a text, allowed: {', '.join(values)}")
        return values[match[1]]

    return re.sub(r"\{\{([\w.-]+)\}\}", value, text)


def in_words(numbers: dict[str, list[float]]) -> dict[str, str]:
    """Each number as the texts say it: the smallest and the largest of all seeds."""
    return {name: " to ".join(dict.fromkeys((short(min(v)), short(max(v))))) for name, v in numbers.items()}


def short(value: float) -> str:
    """Two digits that matter; 4e-7 for what is only rounding."""
    return f"{value:.0e}".replace("e-0", "e-") if 0 < value < 5e-5 else f"{float(f'{value:.2g}'):g}"


def _read(file, find, *more):
    """(the text of a JSON file, what `find` finds in it); InputError if it is not what `play --train` writes."""
    try:
        text = file.read_text(encoding="utf-8").strip()
        return text, find(json.loads(text), *more)
    except (OSError, ValueError, LookupError, TypeError, AttributeError) as error:
        what = f"{type(error).__name__}: {error}"
        raise InputError(f"page: got a damaged {file} ({what}), allowed: what minicl play --train writes") from None


def _of_models(record):
    """What the texts quote of the models: their steps and their numbers of weights."""
    found = {}
    for m in record["models"]:
        count = sum(math.prod(shape) for _, shape in m["shapes"])
        if m["family"] not in record["families"] or len(base64.b64decode(m["data"])) != 2 * count:
            raise ValueError(f"the model of {m['strategy']} has no family, or not all of its weights")
        found[f"weights.{m['strategy']}"] = f"{count:,}"
    steps = sorted({m["step"] for m in record["models"]})
    return found | {"early.first": str(steps[0]), "steps": str(steps[-1])}


def _of_numbers(measured, first):
    numbers = in_words(measured) | {f"shown.{name}": short(values[0]) for name, values in measured.items()}
    return numbers | {f"early.{s}.first": numbers[f"early.{s}.{first}"] for s in ("ar", "invicl")}


def _hash(text):
    """What a Content-Security-Policy knows an inline script or style by."""
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()


def write(root: Path) -> Path:
    """Build, and write what has changed; the page's file."""
    files = build(root)
    for file, content in files.items():
        file.parent.mkdir(exist_ok=True)
        if not file.exists() or file.read_text(encoding="utf-8") != content:
            write_atomically(file, content.encode())
    return next(iter(files))


def train(runs: str | Path, seeds: int, root: Path) -> None:
    """Train the page's models, one run after the other; then store the weights of seed 0 and what was measured."""
    playmodels.train(runs, seeds)
    for name, record in (("models", playmodels.pack(runs)), ("numbers", playnumbers.measure(runs, seeds))):
        lines = json.dumps(record, indent=None if name == "models" else 0, separators=(",", ":"))
        write_atomically(root / "page" / f"{name}.json", (lines + "\n").encode())


def add_arguments(parser):
    parser.add_argument("--build", action="store_true", help="only build docs/play.html and docs/class.md")
    parser.add_argument("--train", metavar="DIR", help="train the page's models into run folders in DIR, then build")
    parser.add_argument("--seeds", type=int, help=f"with --train: seeds of each model ({playmodels.SEEDS})")


def run(args):
    if args.seeds is not None:
        if args.train is None:
            raise InputError("seeds: got --seeds without --train, allowed: both")
        check_int("seeds", args.seeds, least=1)
    if args.train is not None:
        try:
            train(args.train, args.seeds or playmodels.SEEDS, ROOT)
        except Failure as failure:
            print(f"minicl play: {failure}", file=sys.stderr)
            return 1
    page = write(ROOT)
    print(f"{page} ({page.stat().st_size / 1e6:.2f} MB)")
    if not args.build and args.train is None and not webbrowser.open(page.as_uri()):
        print("no browser was found: open the file in one")
    return 0
