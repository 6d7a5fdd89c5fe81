"""`minicl figures`: train what is missing, measure, draw, and write the verdicts.

The plan is in study.py, the numbers are in the care of numbers.py, the verdicts in that of claims.py.
"""

import json
import signal
import statistics
import sys
import time
from pathlib import Path

import torch

from minicl import checkpoint, children, claims, draw, study
from minicl.errors import check, check_int
from minicl.evaluate import (
    Prompts,
    columns,
    left_out,
    longest,
    measure_baseline,
    over_seeds,
    usual_baselines,
    whole_numbers,
)
from minicl.masks import get_strategy, short
from minicl.model import auto_device
from minicl.numbers import Shelf, slug, work
from minicl.timing import duration


class Stopped(Exception):
    """A signal asked to stop."""


def carry_out(shelf, scale, missing, jobs, say, estimate):
    """Train and measure what is missing, some runs side by side; returns the failures as (run, why)."""
    waiting, active, failed, start = list(missing), {}, [], time.monotonic()

    def stop(number, frame):
        raise Stopped(number)

    before = {number: signal.signal(number, stop) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        while waiting or active:
            while waiting and len(active) < jobs:
                run = waiting.pop(0)
                say(f"{run}: {'from step ' + str(shelf.step(run)) if shelf.step(run) else 'training'}")
                given = (scale, str(shelf.out), str(shelf.folder), run.task, run.name, str(run.seed))
                active[children.start(work, *given, log=shelf.log(run))] = run
            for process in [p for p in active if p.poll() is not None]:
                run = active.pop(process)
                if process.returncode:
                    failed.append((run, children.complaint(process, shelf.log(run))))
                    say(f"{run}: failed: {failed[-1][1]}")
                    continue
                left = _together([estimate(r) for r in (*waiting, *active.values())], jobs)
                done = len(missing) - len(waiting) - len(active)
                say(f"{run}: done ({done} of {len(missing)}; {left} left)")
            time.sleep(0.1)
    finally:
        children.stop(active)
        for number, handler in before.items():
            signal.signal(number, handler)
    say(f"{len(missing) - len(failed)} runs in {duration(time.monotonic() - start)}")
    return failed


def _together(seconds, jobs):
    """How long runs of so many seconds take, some side by side: at least as long as the longest."""
    return duration(max([sum(seconds) / jobs, *seconds]))


def estimator(shelf, runs):
    """A function run -> about how many seconds it still takes: from its other seeds, or by its arithmetic."""
    from minicl.cost import dry_run, mean_flops

    def whole(config):
        return config.train.steps * mean_flops(config, 20)

    known = {(run.task, run.name): found["seconds"] for run in runs if (found := shelf.read(run))}
    rates = [known[run.task, run.name] / whole(run.config) for run in runs if (run.task, run.name) in known]
    if not rates:
        config = runs[0].config
        rates = [dry_run(config)["seconds"] / whole(config)]
    rate = statistics.median(rates)

    def estimate(run):
        left = 1 - shelf.step(run) / run.config.train.steps
        return known.get((run.task, run.name), rate * whole(run.config)) * left

    return estimate


def add_arguments(parser):
    parser.add_argument("--scale", choices=study.SCALES, default="study", help="how large everything is (study)")
    parser.add_argument(
        "--only", metavar="N,N,…", help="these figures (all; with --masks those that compare masks, 1 to 6)"
    )
    parser.add_argument(
        "--masks",
        metavar="M,M,…",
        help="compare these, my.py:name among them, instead of the paper's five (of which 2, 4, 5, 6 show ar, invicl)",
    )
    parser.add_argument("--seeds", type=int, metavar="N", help="of every run (3 for figures 1 to 6, 2 for 7 and 8)")
    parser.add_argument("--jobs", type=int, default=2, help="runs side by side, one thread each (2)")
    parser.add_argument(
        "--dry-run", action="store_true", help="print the plan: what is done, what is missing, how long"
    )
    parser.add_argument("--out", metavar="DIR", help="numbers, pictures and verdicts (results/SCALE)")
    parser.add_argument("--runs", metavar="DIR", help="run folders (runs/SCALE)")
    parser.add_argument("--json", action="store_true", help="print the plan as records")


def run(args):
    check_int("jobs", args.jobs, least=1)
    if args.seeds is not None:
        check_int("seeds", args.seeds, least=1)
    masks = study.PAPER_MASKS if args.masks is None else _masks(args.masks)
    shelf = Shelf(args.out or f"results/{args.scale}", args.runs or f"runs/{args.scale}", args.scale)
    every = study.figures(shelf.scale, masks)
    allowed = [n for n in every if (every[n].runs and n <= 6) or masks == study.PAPER_MASKS]
    numbers = allowed if args.only is None else whole_numbers("only", args.only)
    for number in numbers:
        some = f"figures {', '.join(map(str, allowed))}{' with these masks' if args.masks else ''}"
        check(number in allowed, "only", number, some)
    runs = study.make_runs(shelf.scale, numbers, masks, args.seeds and (lambda task, name: args.seeds))
    missing = [r for r in runs if shelf.read(r) is None]
    estimate = estimator(shelf, runs) if missing else lambda run: 0.0
    plan = [_state(shelf, r, estimate, numbers, every) for r in runs]
    if args.json:
        print(json.dumps(plan))
    elif missing or args.dry_run:
        print(_table(plan, args.jobs, {n: every[n].title for n in numbers}))
    if args.dry_run:
        return 0

    def say(text):
        print(text, file=sys.stderr, flush=True)

    shelf.prepare()
    try:
        failed = carry_out(shelf, args.scale, missing, args.jobs, say, estimate) if missing else []
    except Stopped as stopped:
        say(f"stopped by {signal.Signals(stopped.args[0]).name}; the same command goes on from here")
        return 128 + stopped.args[0]
    new = {(r.task, r.name) for r in missing}
    old = [n for n in allowed if new and (n == TRAINING or new & set(every[n].runs))]
    for number in allowed:
        if number in numbers or (number in old and picture_file(number, shelf, masks).exists()):
            picture(number, shelf, masks)
    if masks == study.PAPER_MASKS:
        text = claims.report(claims.Numbers(shelf, study.make_runs(shelf.scale, every, masks, shelf.seeds)))
        checkpoint.write_atomically(shelf.out / "claims.md", text.encode())
        say(f"wrote {shelf.out / 'claims.md'}")
    for r, why in failed:
        say(f"failed: {r}: {why} ({shelf.log(r)})")
    return 1 if failed else 0


def _masks(text):
    """Masks by name, each once; those of one's own by their full path, and told apart by their own name."""
    masks = []
    for mask in text.split(","):
        get_strategy(mask)
        path, _, name = mask.rpartition(":")
        masks.append(f"{Path(path).resolve()}:{name}" if path else mask)
    masks = tuple(dict.fromkeys(masks))
    names = [short(mask) for mask in masks]
    check(len(set(names)) == len(names), "masks", text, "masks with different names")
    return masks


def _state(shelf, run, estimate, numbers, every):
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
        "figures": [n for n in numbers if (run.task, run.name) in every[n].runs],
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
    end = f"{missing} of {len(plan)} runs to do, about {left} with {jobs} side by side"
    what = [f"  figure {number}: {title}" for number, title in titles.items()]
    return "\n".join([*columns(rows), *what, end if missing else f"all {len(plan)} runs are done"])


def picture_file(number, shelf, masks):
    """Where a figure is; one of other masks than the paper's is named by those that it shows."""
    shown = [] if masks == study.PAPER_MASKS else _compared(number, shelf, masks)
    return shelf.out / f"{'-'.join([f'figure{number}', *(slug(short(mask)) for mask in shown)])}.png"


def _compared(number, shelf, masks):
    """Those of the masks that a figure shows."""
    names = {name for _, name in study.figures(shelf.scale, masks)[number].runs}
    return [mask for mask in masks if mask in names]


def picture(number, shelf, masks):
    """Draw one figure from the numbers that there are."""
    found = _found(shelf, [number], masks)
    left = [short(mask) for mask in masks if mask not in _compared(number, shelf, masks)]
    if masks != study.PAPER_MASKS and left:
        print(f"figure {number}: of the paper's masks ar and invicl alone, without {', '.join(left)}", file=sys.stderr)
    if not found and number not in RUNLESS:
        print(f"figure {number}: nothing to draw", file=sys.stderr)
        return
    draw.save(DRAWN[number](shelf, found), picture_file(number, shelf, masks))
    if number == TRAINING:
        every = _found(shelf, study.figures(shelf.scale, masks), masks)
        draw.save(_training(every), shelf.out / "figure8-training.png")


def _found(shelf, numbers, masks):
    """{run: its numbers} of these figures, of all seeds that there are."""
    runs = study.make_runs(shelf.scale, numbers, masks, shelf.seeds)
    return {run: found for run in runs if (found := shelf.read(run))}


def _curves(found, keep):
    """Curves of the runs, averaged over seeds where there are several; `keep(run, record)` chooses."""
    records, kinds = [], {}
    for run, numbers in found.items():
        for record in numbers["curves"]:
            if keep(run, record):
                records.append(record | {"method": short(run.name)})
                kinds[record["run"]] = (run.task, run.name)
    return records + over_seeds(records, kinds)


def _baselines(shelf, found, shifts=("none",)):
    """The usual baselines of the runs' tasks, on the same prompts."""
    records = []
    for run in {r.task: r for r in found}.values():
        prompts = [Prompts(s, tuple(range(longest(run.config) + 1)), shelf.scale.prompts) for s in shifts]
        for p in prompts:
            for name in usual_baselines(run.config.task, p.shift):
                with left_out():
                    records.append(_baseline(shelf, run.config.task, p, name))
    return records


def _baseline(shelf, task, prompts, name):
    file = f"{name} {task.name} {prompts.shift}"
    return shelf.other(file, task, prompts, compute=lambda: measure_baseline(task, prompts, name)[0])


def _early_and_late(run, record):
    return record["step"] in (run.early, run.late)


def _comparison(shelf, found):
    return draw.curves(
        _curves(found, lambda run, r: r["shift"] == "none" and _early_and_late(run, r)) + _baselines(shelf, found)
    )


def _shifted(shelf, found):
    chosen = _curves(found, lambda run, r: r["shift"] != "none" and _early_and_late(run, r))
    return draw.curves(chosen + _baselines(shelf, found, study.SHIFTS))


def _growth(shelf, found):
    return draw.growth(_curves(found, lambda run, r: r["shift"] == "none"))


def _steps(shelf, found):
    return draw.steps(_curves(found, lambda run, r: r["shift"] == "none"))


def _probes(shelf, found):
    """The mean over seeds, as if it were one run's."""
    groups = {}
    for run, numbers in found.items():
        for r in numbers["probes"]:
            groups.setdefault((run.name, r["probe"], r["layer"], r["examples"]), []).append(r)
    means = {key: statistics.mean(r["mean"] for r in group) for key, group in groups.items()}
    names = {name: f"mean of {sum(run.name == name for run in found)} seeds" for name, *_ in groups}
    return draw.probes(
        [group[0] | {"run": f"{key[0]}/{names[key[0]]}", "mean": means[key]} for key, group in groups.items()]
    )


def _controls(shelf, found):
    """A row for each run: its last errors at the training length and the longest, and its spread over orders."""
    records = []
    for run, numbers in found.items():
        last = next(r for r in numbers["curves"] if (r["step"], r["shift"]) == (run.late, "none"))
        at = {n: last["mean"][last["lengths"].index(n)] for n in (run.config.data.examples, last["lengths"][-1])}
        records.append({"method": run.name, "errors": at, "spread": numbers.get("order", {}).get("spread")})
    return draw.variants(records)


def _training(found):
    return draw.training(
        [{"task": run.task, "method": run.name, "lines": numbers["training"]} for run, numbers in found.items()]
    )


def _costs(shelf, found):
    """`minicl bench --inference` for the paper's masks, on one thread."""
    from minicl.bench import inference

    def compute():
        before = torch.get_num_threads()
        torch.set_num_threads(1)
        try:
            return inference(list(study.PAPER_MASKS), sizes)
        finally:
            torch.set_num_threads(before)

    sizes = {"repeats": 20, **shelf.scale.inference, "device": auto_device()}
    return draw.costs(shelf.costs(compute))


def _theory(shelf, found):
    from minicl import theory

    return draw.theory(shelf.other("theory", compute=lambda: theory.study(list(theory.STATED))))


RUNLESS = (9, 10)  # figures that need no training
TRAINING = 8  # beside it stands a picture of every run's training
DRAWN = {
    1: _comparison,
    2: _comparison,
    3: _shifted,
    4: _growth,
    5: _steps,
    6: _probes,
    7: _controls,
    8: _controls,
    9: _costs,
    10: _theory,
}
