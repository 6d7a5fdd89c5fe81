"""Which lengths and checkpoints of run folders a command looks at, and the flags that say so."""

from collections.abc import Callable, Sequence
from pathlib import Path

from minicl import checkpoint
from minicl.checks import InputError, check, check_int
from minicl.config import Config
from minicl.masks import TABLES
from minicl.text import whole_numbers


def usual_length(config: Config) -> int:
    """The longest context to ask about: 2.5 times the training length, if there are positions for it."""
    usual = int(2.5 * config.data.examples)
    return min(usual, config.model.max_examples) if config.model.resolved_positions in TABLES else usual


def choose_lengths(
    run: str,
    config: Config,
    lengths: Sequence[int] | None,
    most: Callable[[int], int] | None,
    count: int | None = None,
    window: int | None = None,
) -> tuple[int, ...]:
    """The context lengths to ask a run about; by default all from 0 to 2.5 times the training length.

    With `count`, only about so many of them, evenly spread, and the training length. `window` is how many examples the
    model is shown at most.
    """
    check(lengths is None or len(lengths), "lengths", "none", "at least one")
    if lengths is None:
        trained = config.data.examples
        longest = usual_length(config) if most is None else most(trained)
        spread = range(count) if count and count <= longest else ()
        lengths = sorted({*(round(i * longest / (count - 1)) for i in spread), min(trained, longest)})
        lengths = lengths if spread else range(longest + 1)
    for n in lengths:
        check_int("lengths", n, least=0)
    if config.model.resolved_positions in TABLES:
        kind, end = config.model.resolved_positions, config.model.max_examples
        longest = min(max(lengths), window or max(lengths))
        check(longest <= end, f"examples for {run}", longest, f"at most {end}: its {kind} positions end there")
    return tuple(lengths)


def choose_checkpoints(run: str | Path, which: str | Sequence[int]) -> dict[int, Path]:
    """{step: file} of the checkpoints that are asked for; for `last`, the last one that is whole."""
    files = dict(sorted(checkpoint.checkpoints(run).items()))
    if not files:
        raise InputError(f"{run}: has no checkpoint yet")
    if which == "last":
        step = checkpoint.newest(run)["step"]
        return {step: files[step]}
    if which == "all":
        return files
    check(len(which), "checkpoints", "none", f"last, all, or {', '.join(map(str, files))}")
    for step in which:
        check(step in files, f"checkpoints of {run}", step, ", ".join(map(str, files)))
    return {step: files[step] for step in which}


def longest_from(most: int | str | None) -> Callable[[int], int] | None:
    """A function from the training length to the longest context: `100`, or `2.5x` times the training length."""
    if most is None:
        return None
    text = str(most)
    try:
        number = float(text.removesuffix("x"))
        ok = 0 < number < 1e6 and (text.endswith("x") or number == int(number))
    except ValueError:
        ok = False
    check(ok, "max-examples", repr(text), "a whole number above 0, or a factor such as 2.5x")
    return lambda length: max(1, int(number * length)) if text.endswith("x") else int(number)


def steps(text: str) -> str | tuple[int, ...]:
    """The value of --checkpoints: last, all, or steps."""
    return text if text in ("last", "all") else whole_numbers(text)


def add_run_arguments(parser) -> None:
    """The flags of every command that reads run folders."""
    parser.add_argument("runs", nargs="+", metavar="RUN", help="run folders")
    parser.add_argument(
        "--max-examples", metavar="N", help="longest context: a number, or a factor such as 2.5x (2.5x)"
    )
    parser.add_argument("--lengths", type=whole_numbers, metavar="N,N,…", help="only these numbers of examples")
    parser.add_argument(
        "--checkpoints", type=steps, default="last", metavar="STEPS", help="last, all, or steps with commas (last)"
    )
    parser.add_argument("--threads", type=int, metavar="K", help="CPU threads (as many as the run was trained with)")
    parser.add_argument("--trust", action="store_true", help="run the mask.py or task.py that came with a run folder")
    parser.add_argument("--json", action="store_true", help="print records instead of a table")
    parser.add_argument("--plot", metavar="FILE", help="draw them")


def check_run_arguments(args) -> None:
    if args.threads is not None:
        check_int("threads", args.threads, least=1, most=1024)
    if args.plot is not None:
        from minicl import draw

        draw.check_ending(args.plot)
