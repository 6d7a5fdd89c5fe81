"""`minicl study`: train what is missing, measure, draw, and write the verdicts."""

import json
import shlex
import signal
import statistics
import sys
import textwrap
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from minicl import checkpoint, children, draw
from minicl.checks import check, check_int
from minicl.cost import dry_run, mean_flops
from minicl.devices import Devices
from minicl.masks import get_strategy
from minicl.plugins import is_own, resolve, short
from minicl.store import slug
from minicl.study import claims
from minicl.study.compare import compare, tables
from minicl.study.figures import Figure, figures, make_run, make_runs, measured, shown_in
from minicl.study.numbers import Shelf, work
from minicl.study.plan import COMPARED, SCALES, Run
from minicl.text import columns, duration, names, whole_numbers
from minicl.training import Failure, Training

GPU = 10e12  # FLOPs per second that one GPU is counted with: float32 products as TF32, half of its peak or less


class Stopped(Exception):
    """A signal asked to stop."""


def carry_out(
    shelf: Shelf,
    scale: str,
    missing: Sequence[Run],
    jobs: int,
    say: Callable[[str], None],
    estimate: Callable[[Run], float],
) -> tuple[list[tuple[Run, str]], list[Run]]:
    """Train and measure what is missing, some runs side by side; returns failures as (run, why), and what others have.

    A run that another worker has is passed over, and looked at again when nothing else is left: a dead worker has none.
    """
    waiting, active, failed, others, start = list(missing), {}, [], [], time.monotonic()
    told, made = set(), 0

    def stop(number, frame):
        raise Stopped(number)

    before = {number: signal.signal(number, stop) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        while waiting or active:
            while waiting and len(active) < jobs:
                run = waiting.pop(0)
                held = shelf.take(run)
                if held is None:
                    others.append(run)
                    if run not in told:
                        say(f"{run}: another worker has it")
                    told.add(run)
                    continue
                process = _start(shelf, scale, run, held, say)
                active |= {process: run} if process else {}
            for process in [p for p in active if p.poll() is not None]:
                run = active.pop(process)
                if process.returncode:
                    failed.append((run, children.complaint(process, shelf.log(run))))
                    say(f"{run}: failed: {failed[-1][1]}")
                else:
                    made += 1
                    left = _together([estimate(r) for r in (*waiting, *active.values())], jobs)
                    done = len(missing) - len(waiting) - len(active) - len(others)
                    say(f"{run}: done ({done} of {len(missing)}; {left} left)")
                if not waiting:
                    waiting, others = others, []
            time.sleep(0.1)
    finally:
        children.stop(active)
        for number, handler in before.items():
            signal.signal(number, handler)
    say(f"{made} runs in {duration(time.monotonic() - start)}")
    return failed, others


def _start(shelf, scale, run, held, say):
    """A process that makes a run and alone holds its lock from now on; None if another worker made it meanwhile."""
    with held:
        if shelf.read(run) is not None:
            say(f"{run}: another worker made it")
            return None
        say(f"{run}: {'from step ' + str(shelf.step(run)) if shelf.step(run) else 'training'}")
        given = (scale, str(shelf.out), str(shelf.folder), run.task, run.name, str(run.seed))
        return children.start(work, *given, log=shelf.log(run), held=[held])


def one_run(shelf: Shelf, given: str, scale: str) -> int:
    """What a line of --commands does: train, measure and keep one run, unless it is there or another worker has it."""
    task, name, seed = _parse(given)
    run = make_run(shelf.scale, task, name, seed)
    check(shown_in(shelf.scale, task, name), "run", f"{task}, {name}", f"a run that a figure of scale {scale} shows")
    if shelf.read(run) is not None:
        _say(f"{run}: its numbers are there")
        return 0
    shelf.prepare()
    held = shelf.take(run)
    if held is None:
        _say(f"{run}: another worker has it")
        return 0
    with held:
        if shelf.read(run) is None:
            try:
                work(scale, str(shelf.out), str(shelf.folder), task, name, str(seed))
            except Failure as failure:
                _say(f"minicl study: {run}: {failure}")
                return 1
        _say(f"{run}: its numbers are in {shelf.store.folder}")
    return 0


def _parse(given):
    """TASK,NAME,SEED, where a name may have commas."""
    task, _, rest = given.partition(",")
    name, _, seed = rest.rpartition(",")
    check(name.strip() and seed.strip().isdecimal(), "run", repr(given), "TASK,NAME,SEED, such as linear,ar,0")
    name = name.strip()
    return task.strip(), resolve(name) if is_own(name) else name, int(seed)


def command_of(shelf: Shelf, scale: str, run: Run) -> str:
    """The command that makes one run, from any folder, quoted for a shell."""
    folders = ["--out", str(shelf.out.absolute()), "--runs", str(shelf.folder.absolute())]
    words = [sys.executable, "-m", "minicl", "study", "--scale", scale, *folders]
    return shlex.join([*words, "--run", f"{run.task},{run.name},{run.seed}"])


def _together(seconds, jobs):
    """How long runs of so many seconds take, some side by side: at least as long as the longest."""
    return duration(max([sum(seconds) / jobs, *seconds]))


def estimator(shelf: Shelf, runs: Sequence[Run]) -> Callable[[Run], float]:
    """A function run → about how many seconds it still takes: its arithmetic, at the usual speed of the runs so far.

    Usual is the median: some runs waited for other work, or were made on another machine.
    """

    def whole(run):
        return run.config.train.steps * mean_flops(run.config, 20)

    rates = [numbers["seconds"] / whole(run) for run in runs if (numbers := shelf.read(run))]
    if not rates:
        config = runs[0].config
        training = Training(config, Devices(config.machine, config.train.batch_size))
        rates = [dry_run(training)["seconds"] / whole(runs[0])]
    rate = statistics.median(rates)

    def estimate(run):
        return rate * whole(run) * (1 - shelf.step(run) / run.late)

    return estimate


DRAW = "train nothing: draw and judge from the numbers there are (the times of figures 9 and 17 are measured once)"


def add_arguments(parser):
    parser.add_argument("--scale", choices=SCALES, default="study", help="how large everything is (study)")
    parser.add_argument(
        "--only", type=whole_numbers, metavar="N,N,…", help="these figures (all; with --masks those that compare masks)"
    )
    text = "compare these, my.py:name among them, instead of the usual six (of which some figures show ar and invicl)"
    parser.add_argument("--masks", type=names, metavar="M,M,…", help=text)
    parser.add_argument(
        "--seeds", type=int, metavar="N", help="seeds of every run (more for comparisons than controls)"
    )
    parser.add_argument("--jobs", type=int, default=2, metavar="N", help="runs side by side, one thread each (2)")
    instead = parser.add_mutually_exclusive_group()
    instead.add_argument(
        "--dry-run", action="store_true", help="print the plan: what is done, what is missing, how long"
    )
    instead.add_argument("--draw", action="store_true", help=DRAW)
    text = "print one command for each missing run, to be run by any number of workers on one folder"
    instead.add_argument("--commands", action="store_true", help=text)
    instead.add_argument("--run", metavar="TASK,NAME,SEED", help="make this run only, and draw nothing")
    parser.add_argument("--out", metavar="DIR", help="numbers, pictures and verdicts (results/SCALE)")
    parser.add_argument("--runs", metavar="DIR", help="run folders (runs/SCALE)")
    parser.add_argument(
        "--json", action="store_true", help="print records: of the plan with --dry-run, else of the masks"
    )


def run(args):
    check_int("jobs", args.jobs, least=1)
    if args.seeds is not None:
        check_int("seeds", args.seeds, least=1)
    masks = COMPARED if args.masks is None or {*args.masks} == {*COMPARED} else _masks(args.masks)
    shelf = Shelf(args.out or f"results/{args.scale}", args.runs or f"runs/{args.scale}", args.scale)
    if args.run is not None:
        others = [flag for flag in ("only", "masks", "seeds") if getattr(args, flag) is not None] + ["json"] * args.json
        check(not others, "run", f"--run with --{', --'.join(others)}", "--run with --scale, --out and --runs")
        return one_run(shelf, args.run, args.scale)
    every = figures(shelf.scale, masks)
    own = masks != COMPARED
    allowed = {n: figure for n, figure in every.items() if not own or (figure.compares and figure.runs)}
    numbers = list(allowed) if args.only is None else args.only
    check(numbers, "only", "no number", "numbers of figures")
    for number in numbers:
        some = f"figures {', '.join(map(str, allowed))}{' with these masks' if own else ''}"
        check(number in allowed, "only", number, some)
    runs = make_runs(shelf.scale, numbers, masks, args.seeds and (lambda task, name: args.seeds))
    missing = [r for r in runs if shelf.read(r) is None]
    if args.commands:
        check(not args.json, "commands", "--commands with --json", "one of them")
        print("".join(f"{command_of(shelf, args.scale, r)}\n" for r in missing), end="")
        return 0
    if args.draw:
        missing = []
    estimate = estimator(shelf, runs) if missing else lambda run: 0.0
    plan = [_state(shelf, r, estimate, {n: allowed[n] for n in numbers}) for r in runs]
    if args.json and args.dry_run:
        print(json.dumps(plan))
    elif args.dry_run or (missing and not args.json):
        print(_table(plan, args.jobs, {n: allowed[n].title for n in numbers}), end="\n" if args.dry_run else "\n\n")
    return 0 if args.dry_run else _go_on(args, shelf, masks, allowed, numbers, missing, estimate)


def _go_on(args, shelf, masks, allowed, numbers, missing, estimate):
    """Train what is missing; draw the figures that were asked for and those that show a new run; judge; compare."""
    shelf.prepare()
    try:
        failed, others = carry_out(shelf, args.scale, missing, args.jobs, _say, estimate) if missing else ([], [])
    except Stopped as stopped:
        _say(f"stopped by {signal.Signals(stopped.args[0]).name}; the same command goes on from here")
        return 128 + stopped.args[0]
    new = {(r.task, r.name) for r in missing}
    for number, figure in allowed.items():
        file = shelf.out / _picture_name(number, figure, masks)
        if number in numbers or (new & set(figure.runs) and file.exists()):
            _draw(number, figure, shelf, masks, file)
    if masks == COMPARED:
        checkpoint.write_atomically(shelf.out / "claims.md", claims.of_shelf(shelf).encode())
        _say(f"wrote {shelf.out / 'claims.md'}")
    records = compare(shelf, make_runs(shelf.scale, numbers, masks, shelf.seeds))
    if args.json or records:
        print(json.dumps(records) if args.json else tables(records))
    if others:
        _say(f"other workers still have: {'; '.join(map(str, others))}; this command again draws them too")
    for r, why in failed:
        _say(f"failed: {r}: {why} ({shelf.log(r)})")
    return 1 if failed else 0


def _say(text):
    print(text, file=sys.stderr, flush=True)


def _masks(given):
    """Masks of one's own by their full path; their own names must differ."""
    check(given, "masks", "none", "names of masks")
    for mask in given:
        get_strategy(mask)
    masks = tuple(dict.fromkeys(resolve(mask) if is_own(mask) else mask for mask in given))
    short_names = [short(mask) for mask in masks]
    check(len(set(short_names)) == len(short_names), "masks", ",".join(given), "masks with different names")
    return masks


def _state(shelf, run, estimate, shown):
    done = shelf.read(run) is not None
    step = run.late if done else shelf.step(run)
    return {
        "task": run.task,
        "name": run.name,
        "seed": run.seed,
        "state": "done" if done else "begun" if step else "missing",
        "step": step,
        "steps": run.late,
        "seconds_left": 0.0 if done else estimate(run),
        "flops_left": 0.0 if done else (run.late - step) * mean_flops(run.config, 20),
        "figures": [n for n, figure in shown.items() if (run.task, run.name) in figure.runs],
    }


def _table(plan, jobs, titles):
    rows = [["run", "seeds", "figures", "done", "to do"]]
    kinds = dict.fromkeys((r["task"], r["name"]) for r in plan)
    for task, name in kinds:
        mine = [r for r in plan if (r["task"], r["name"]) == (task, name)]
        left = sum(r["seconds_left"] for r in mine)
        done = sum(r["state"] == "done" for r in mine)
        begun = [f"seed {r['seed']} at step {r['step']} of {r['steps']}" for r in mine if r["state"] == "begun"]
        todo = "; ".join([duration(left), *begun]) if left else ""
        rows.append([f"{task}, {name}", str(len(mine)), ",".join(map(str, mine[0]["figures"])), str(done), todo])
    left = _together([r["seconds_left"] for r in plan], jobs)
    missing = sum(r["state"] != "done" for r in plan)
    flops = sum(r["flops_left"] for r in plan)
    gpu = f"{flops:.2g} FLOP, which is {duration(flops / GPU)} on one GPU at {GPU / 1e12:.0f} TFLOP/s"
    end = f"{missing} of {len(plan)} runs to do, about {left} with {jobs} side by side\n{gpu}"
    what = [f"  figure {number}: {title}" for number, title in titles.items()]
    return "\n".join([*columns(rows), *what, end if missing else f"all {len(plan)} runs are done"])


def _picture_name(number: int, figure: Figure, masks: Sequence[str]) -> str:
    """A figure of other masks than the paper's is named by those that it shows."""
    shown = [] if masks == COMPARED else _compared(figure, masks)
    return f"{'-'.join([f'figure{number}', *(slug(short(mask)) for mask in shown)])}.png"


def _compared(figure, masks):
    """Those of the masks that a figure shows."""
    shown = {name for _, name in figure.runs}
    return [mask for mask in masks if mask in shown]


def _draw(number: int, figure: Figure, shelf: Shelf, masks: Sequence[str], file: Path) -> None:
    """Draw one figure from the numbers that there are."""
    left = [short(mask) for mask in masks if mask not in _compared(figure, masks)]
    if masks != COMPARED and left:
        _say(f"figure {number}: it does not show {', '.join(left)}")
    numbers = measured(shelf, [number], masks)
    if figure.runs and not numbers:
        _say(f"figure {number}: nothing to draw")
    else:
        picture = figure.draw(shelf, numbers)
        width = int(11 * picture.get_figwidth())  # letters that a line has room for
        lines = [textwrap.fill(figure.title[0].upper() + figure.title[1:], width), picture.get_suptitle()]
        picture.suptitle("\n".join(filter(None, lines)), fontsize=11)
        draw.save(picture, file)
