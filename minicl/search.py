"""`minicl search`: the class of masks that go by kinds of tokens: counted, described, and raced against each other."""

import json
import math
import sys
from pathlib import Path
from typing import Any

from minicl import confirm, contest, draw, kinds, ranking
from minicl.auditing import CERTIFICATES, audit
from minicl.checkpoint import make_folder, write_atomically
from minicl.checks import check, check_alone, check_int, choose
from minicl.plugins import short
from minicl.runs import take
from minicl.study.evidence import LENGTHS
from minicl.study.numbers import Shelf
from minicl.study.run import Stopped, carry_out, estimator
from minicl.tasks import task_class
from minicl.text import columns, names

NEEDS = (*CERTIFICATES, "informed")
# What goes with each flag that asks for something else than a race.
MODES = {"count": ("copies", "json"), "show": ("json",), "confirm": ("task", "jobs", "out", "plot", "json")}


def add_arguments(parser):
    parser.add_argument("--count", action="store_true", help="only say how many masks there are of each sort")
    parser.add_argument("--copies", type=int, choices=(1, 2), help="only masks with so many copies (1 and 2)")
    parser.add_argument("--show", metavar="NAME", help="who sees whom under a mask, and what it guarantees")
    parser.add_argument("--task", default="linear", help="function class to train on (linear)")
    parser.add_argument("--budget", type=float, metavar="MINUTES", help="time for the whole race")
    parser.add_argument("--steps", type=int, metavar="N", help="equal steps, N in the first round, not equal time")
    parser.add_argument(
        "--need", type=names, default=(), metavar="P,P,…", help=f"only masks that are {', '.join(NEEDS)}"
    )
    parser.add_argument("--seed", type=int, default=0, help="seed of the runs and of the random masks (0)")
    parser.add_argument("--jobs", type=int, default=2, metavar="N", help="processes side by side, one thread each (2)")
    parser.add_argument(
        "--confirm", type=int, metavar="N", help="train the finalists of the race in --out, and known masks, on N seeds"
    )
    parser.add_argument("--plot", metavar="FILE", help="draw the best masks: errors, costs, who sees whom")
    parser.add_argument("--out", default="runs/search", metavar="DIR", help="where results are kept (runs/search)")
    parser.add_argument("--json", action="store_true", help="print records instead of a table")


def run(args):
    asked = [flag for flag in MODES if getattr(args, flag) not in (None, False)]
    check(len(asked) < 2, "search", " and ".join(f"--{flag}" for flag in asked), "one of them")
    for mode in asked:
        check_alone(mode, args, add_arguments, MODES[mode])
    if args.plot is not None:
        draw.check_ending(args.plot)
    if args.show is not None:
        record = show(args.show)
        print(json.dumps(record) if args.json else _described(record))
        return 0
    if args.confirm is not None:
        return _confirm(args)
    copies = (1, 2) if args.copies is None else (args.copies,)
    if not args.count:
        return _race(args, copies)
    records = [kinds.count(c) for c in copies]
    print(json.dumps(records if args.copies is None else records[0]) if args.json else
          "\n\n".join(map(_counted, records)))  # fmt: skip
    return 0


def _race(args, copies):
    given = args.budget is not None, args.steps is not None
    check(sum(given) == 1, "search", "none or both", "one of --budget MINUTES and --steps N (or --count, --show)")
    check(args.budget is None or 0 < args.budget < math.inf, "budget", args.budget, "a number above 0")
    for name, least in (("steps", 1), ("jobs", 1), ("seed", 0)):
        if getattr(args, name) is not None:
            check_int(name, getattr(args, name), least=least)
    for what in args.need:
        choose("need", what, NEEDS)
    task_class(args.task)
    settings = {name: getattr(args, name) for name in ("task", "budget", "jobs", "seed", "need", "steps")}
    make_folder("out", Path(args.out))
    held = take(Path(args.out, "race.lock"))
    check(held is not None, "out", args.out, "a folder that no other race is using")
    with held:
        rankings = contest.race(args.out, copies=copies, **settings)
    records = [[{"mask": mask, **_scored(r)} for mask, r in ranking] for ranking in rankings]
    found = {"rounds": records, "agreement": contest.agreement(rankings)}
    write_atomically(Path(args.out, "ranking.json"), json.dumps(found).encode())
    champion = confirm.champion([r["mask"] for r in records[-1]])
    best = champion or records[-1][0]["mask"]
    write_atomically(Path(args.out, "winner.py"), kinds.source(best, "winner").encode())
    print(json.dumps(found) if args.json else _ranked(found))
    what = "the best with all four certificates" if champion else "the best, for no mask here has all four certificates"
    _say(f"{what}: {best}, written to {Path(args.out, 'winner.py')}:winner; "
         f"next: minicl search --confirm 5 --out {args.out}")  # fmt: skip
    if args.plot is not None:
        draw.save(ranking.race([_drawn(r) for r in records[-1] if r["score"] is not None]), args.plot)
    return 0


def _drawn(record):
    """A mask of the race with what its picture needs."""
    shown = audit(record["mask"])
    return record | {name: shown[name] for name in (*CERTIFICATES, "tokens", "copies", "sees")}


def _confirm(args):
    check_int("confirm", args.confirm, least=1)
    check_int("jobs", args.jobs, least=1)
    task_class(args.task)
    masks = confirm.entries(args.out)
    shelf = Shelf(args.out, Path(args.out, "runs"), confirm.SCALE)
    runs = confirm.planned(shelf, masks, args.task, args.confirm)
    missing = [r for r in runs if shelf.read(r) is None]
    failed = []
    if missing:
        shelf.prepare()
        try:
            failed, _ = carry_out(shelf, confirm.SCALE, missing, args.jobs, _say, estimator(shelf, runs))
        except Stopped as stopped:
            _say("stopped; the same command goes on from here")
            return 128 + stopped.args[0]
    records = confirm.compare(shelf, masks, args.task, runs)
    write_atomically(Path(args.out, f"confirmed-{short(args.task)}.json"), json.dumps(records).encode())
    print(json.dumps(records) if args.json else _compared(records, confirm.champion(confirm.finalists(args.out))))
    if args.plot is not None and records:
        draw.save(ranking.confirmed(records, confirm.front(records)), args.plot)
    return 1 if failed else 0


def _say(text):
    print(text, file=sys.stderr, flush=True)


def _compared(records, champion):
    """The table of --confirm, and what became of the race's best mask that has all certificates."""
    rows = [
        [
            "mask",
            "seeds",
            *(f"{where} length" for where in LENGTHS),
            *(f"÷ {confirm.REFERENCE}" for _ in LENGTHS),
            "step ÷",
            *(p.replace("_", " ") for p in CERTIFICATES),
        ]
    ]
    for r in records:
        errors = [f"{r['error'][w]['mean']:.2g}" for w in LENGTHS]
        ratios = [_interval(r["ratio"][w]) for w in LENGTHS]
        certified = ["yes" if r[p] else "no" for p in CERTIFICATES]
        seeds = str(len(r["error"]["training"]["seeds"]))
        rows.append([r["mask"], seeds, *errors, *ratios, f"{r['step']['ratio']['ratio']:.2f}", *certified])
    lines = [
        *columns(rows),
        "ratios: geometric mean, wider of both 90 % intervals (over prompts; over seeds)",
        f"no mask has less error at both lengths for less time than: {', '.join(confirm.front(records))}",
    ]
    named = [r for r in records if r["mask"] == confirm.called(champion or "")]
    for r in named:
        said = {True: "below half", False: "not below half", None: "not decided"}
        words = ", ".join(f"{w} length {said[r['ratio'][w]['below_half']]}" for w in LENGTHS)
        words += f"; a step takes {_no_longer(r['step']['ratio'])}"
        lines.append(
            f"the race's best with all certificates, {r['mask']}, against half of {confirm.REFERENCE}'s error: {words}"
        )
    return "\n".join(lines)  # fmt: skip


def _no_longer(r):
    """Whether a step takes as long as the reference's, by the middle half of the ratios."""
    level = f"{confirm.SAME_TIME:g} times as long"
    if r["low"] <= confirm.SAME_TIME < r["high"]:
        return f"about {level}: not decided"
    return f"at most {level}" if r["high"] <= confirm.SAME_TIME else f"more than {level}"


def _interval(r):
    low, high = (f(r["over_prompts"][i], (r["over_seeds"] or (0.0, math.inf))[i]) for i, f in ((0, min), (1, max)))
    return f"{r['middle']:.2f} ({low:.2f}–{high:.2f})"


def _scored(result):
    """With its score; one that is not finite is none, as JSON has it."""
    score = contest.score(result)
    return {"score": score if math.isfinite(score) else None, **result}


def _ranked(found):
    last = found["rounds"][-1]
    lengths = list(last[0].get("error", {}))
    rows = [["", "mask", *(f"error at {n}" for n in lengths), "steps", "seconds in a step"]]
    for i, r in enumerate(last, 1):
        errors = [f"{e:.3g}" for e in r.get("error", {}).values()] or ["failed"] * len(lengths)
        seconds = r.get("step_seconds")
        rows.append([str(i), r["mask"], *errors, str(r["steps"]), "–" if seconds is None else f"{seconds:.3g}"])
    agreed = ", ".join(f"round {i} {'–' if c is None else f'{c:.2f}'}" for i, c in enumerate(found["agreement"], 1))
    counts = " → ".join(str(len(r)) for r in found["rounds"])
    return "\n".join([f"masks in each round: {counts}; the last:", *columns(rows),
                      f"rank correlation with the last round: {agreed or 'there is one round'}"])  # fmt: skip


def show(name: str) -> dict[str, Any]:
    """A mask's name, what it says in words, and its certificates at 4 examples and 12 layers."""
    strategy = kinds.strategy_of(name)
    certified = audit(strategy)
    return {
        "mask": strategy.name,
        "copies": strategy.copies,
        "words": strategy.sees.__doc__,
        **{name: certified[name] for name in (*CERTIFICATES, "pairs", "counterexamples")},
    }


def _described(record):
    lines = [record["mask"], *(f"  {sentence}." for sentence in record["words"].rstrip(".").split(". "))]
    lines += [f"  {name.replace('_', ' ')}: {'yes' if record[name] else 'no'}" for name in CERTIFICATES]
    return "\n".join([*lines, *(f"  {why}" for why in record["counterexamples"].values())])


def _counted(record):
    words = {
        "masks": "masks",
        "leak_free": "without a leak",
        "informed": "of these, context predictions hear other labels",
        "paired": "masks under which labels are paired with their x",
        "leak_free_informed_paired": "without a leak, informed and paired",
        "functions": "different functions",
        "informed_functions": "of these, without a leak and informed",
        "contain_invicl": "without a leak, and see all that invicl sees",
    }
    rows = [[f"{record[key]:,}", text] for key, text in words.items() if key in record]
    copies = "one copy" if record["copies"] == 1 else "two copies, of which the first does not see the second"
    largest = [f"  {name}" for name in record["maximal"]]
    return "\n".join([f"{copies}; all masks are invariant", *columns(rows),
                      "maximal: nothing can be added without a leak", *largest])  # fmt: skip
