"""What each figure of the study shows: of which runs, what is measured for it, and how it is drawn."""

import statistics
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Any

from matplotlib.figure import Figure as Picture

from minicl import draw, draw_layers, stats
from minicl.cost import flops_until, step_seconds, time_updates
from minicl.devices import Devices, auto_device, use_threads
from minicl.evaluation import Prompts, depends_on, left_out, measure_baseline
from minicl.plugins import short
from minicl.selection import usual_length
from minicl.study import pictures
from minicl.study.numbers import TIMED, Numbers, Shelf, lengths_of
from minicl.study.plan import (
    ALL,
    AS_MANY,
    COMPARED,
    LEARN,
    PAPER_MASKS,
    SHIFTS,
    Run,
    Scale,
    as_published,
    config_of,
    is_control,
    seeds_of,
)  # fmt: skip
from minicl.training import Training

Measured = dict[Run, Numbers]
TURNS = 9  # in which training steps are timed


@dataclass(frozen=True)
class Figure:
    """One figure. `draw` makes the picture from the numbers of the runs that there are."""

    title: str
    draw: Callable[[Shelf, Measured], Picture]
    runs: tuple[tuple[str, str], ...] = ()  # (task, name)
    measures: tuple[str, ...] = ()  # beside the last curve: steps, shifts, order, normed_probes, window
    few: bool = False  # the smaller number of seeds is enough
    compares: bool = False  # it compares masks, so that one's own may stand in it


def figures(scale: Scale, masks: Iterable[str] = COMPARED) -> dict[int, Figure]:
    """The figures of a scale by number. Masks of one's own stand beside the paper's where masks are compared."""
    masks = tuple(masks)
    usual = masks == COMPARED
    masks += scale.extra if usual else ()
    own = [m for m in masks if m not in COMPARED]
    pair = [mask for mask in ("ar", "invicl") if mask in masks] + own
    learn = [mask for mask in LEARN if mask in masks] + own
    rest = [*masks, *(name for name in ALL if name not in COMPARED and usual)]
    grid = ("ar", "nope", "ar+symmetric", "invicl+absolute", "invicl")
    doubled = ("boe", "prefix", "prefix+absolute", "ar+×2", "nope+×2", "boe+×2", "invicl, queries only", "pfn")
    asked = [f"{m}{what}" for m in ("ar", "invicl") for what in ("", f", {scale.queries}", "+blind")]
    asked = sorted([*asked, "pfn", *AS_MANY], key=draw.base_of)
    placed = ("ar", "ar+symmetric", "ar+random", "ar+rotary", "nope", "invicl+absolute", "invicl+rotary", "invicl")
    published = tuple(map(as_published, PAPER_MASKS))
    beyond_linear = _on("sparse_linear", learn) + _on("decision_tree", learn)
    every = {
        1: Figure(
            "error against examples, early and late", _early_and_late, _on("linear", masks), ("steps",), compares=True
        ),
        2: Figure("sparse linear functions and decision trees", _early_and_late, beyond_linear, compares=True),
        3: Figure(
            "three shifts, early and late: all labels moved by one number (noise), larger inputs (scale), "
            "inputs of half the dimensions (half_subspace)",
            _shifted, _on("linear", learn), ("shifts",), compares=True,
        ),
        4: Figure(
            "error against examples at every checkpoint", _growth, _on("linear", pair), ("steps",), compares=True
        ),
        5: Figure(
            "error against training step, at the training length and at 2.5 times it",
            _steps, _on("linear", pair), ("steps",), compares=True,
        ),
        6: Figure("linear probes of four layers", _probes, _on("linear", pair), ("normed_probes",), compares=True),
        7: Figure("mask × positions; ×2: the context is fed twice", _controls, _on("linear", (*grid, *doubled)),
                  ("order",)),
        8: Figure(
            "losses, queries in each training prompt, queries that do not see themselves (blind)",
            _asked, _on("linear", ("prefix", "prefix, all tokens", *asked)), few=True,
        ),
        9: Figure("what a forward pass costs", _costs),
        10: Figure("weights set by hand: how far w is from the true weights after each layer", _theory),
        12: Figure("strategies on linear functions", _controls, _on("linear", rest), ("order", "window"),
                   compares=True),
        13: Figure("does more than a window of examples help? Without and with noise", _windows,
                   _on("linear", learn) + _on("noisy_linear", learn), ("window",), compares=True),
        14: Figure("strategies on noisy linear functions", _controls, _on("noisy_linear", rest), few=True,
                   compares=True),
        15: Figure("masks with different positions", _controls, _on("linear", placed), ("order",)),
        16: Figure("the paper's objective under a constant learning rate", _early_and_late, _on("linear", published),
                   ("steps",)),
        11: Figure("error during training", _training, _on("linear", masks) + beyond_linear, compares=True),
        17: Figure("error against time and FLOPs of training", _equal_cost, _on("linear", masks), compares=True),
    }  # fmt: skip
    if scale.order:
        here = {(task, name) for task, name, _ in scale.planned()}
        here |= {(task, name) for task, _ in here for name in {*own} - {*scale.extra}}  # one's own, on any of its tasks
        every = {n: replace(f, runs=tuple(r for r in f.runs if r in here)) for n, f in every.items()}
    return {n: figure for n, figure in every.items() if not scale.figures or n in scale.figures}


def _on(task, names):
    return tuple((task, name) for name in names)


def shown_in(scale: Scale, task: str, name: str) -> list[Figure]:
    """The figures of a scale that show a run."""
    masks = COMPARED if name in ALL or is_control(name) else (*COMPARED, name)
    return [figure for figure in figures(scale, masks).values() if (task, name) in figure.runs]


def make_run(scale: Scale, task: str, name: str, seed: int) -> Run:
    """The run that figures mean by (task, name) at a scale, with all that any figure measures on it."""
    measures = frozenset(m for figure in shown_in(scale, task, name) for m in figure.measures)
    measures |= {*scale.measures.get(task, ())}
    return Run(task, name, seed, config_of(scale, task, name, seed), measures)


def make_runs(
    scale: Scale,
    numbers: Iterable[int],
    masks: Iterable[str] = COMPARED,
    seeds: Callable[[str, str], int] | None = None,
) -> list[Run]:
    """The runs that the figures of these numbers need, in the scale's order; else the first seed of all, the second, …

    `seeds(task, name)`, if given, says how many there should be instead.
    """
    wanted = {}
    for number in numbers:
        figure = figures(scale, masks)[number]
        for key in figure.runs:
            count = seeds(*key) if seeds else seeds_of(scale, *key, figure.few)
            wanted[key] = max(wanted.get(key, 0), count)
    each, places = [(*key, seed) for key, count in wanted.items() for seed in range(count)], scale.planned()
    each.sort(key=lambda run: (places.get(run, len(places)), run[2]))
    return [make_run(scale, *run) for run in each]


def measured(shelf: Shelf, numbers: Iterable[int], masks: Iterable[str] = COMPARED) -> Measured:
    """{run: its numbers} of these figures, of all seeds that there are."""
    runs = make_runs(shelf.scale, numbers, masks, shelf.seeds)
    return {run: numbers for run in runs if (numbers := shelf.read(run))}


def _curves(runs: Measured, keep: Callable[[Run, dict[str, Any]], bool]) -> list[dict[str, Any]]:
    """Curves of the runs, averaged over seeds where there are several; `keep(run, record)` chooses."""
    records, kinds = [], {}
    for run, numbers in runs.items():
        for record in numbers["curves"]:
            if keep(run, record):
                records.append(record | {"method": short(run.name.removesuffix(as_published("")))})
                kinds[record["run"]] = (run.task, run.name)
    return records + stats.over_seeds(records, lambda record: kinds[record["run"]])


def _baselines(shelf, runs, shifts=("none",)):
    """The usual baselines of the runs' tasks, on the same prompts."""
    records = []
    for run in {r.task: r for r in runs}.values():
        for shift in shifts:
            lengths = lengths_of(shelf.scale, run.config) or tuple(range(usual_length(run.config) + 1))
            prompts = Prompts(shift, lengths, shelf.scale.prompts)
            for name in run.config.task.usual_baselines(shift):
                with left_out():
                    records.append(baseline(shelf, run, prompts, name))
    return records


def baseline(shelf: Shelf, run: Run, prompts: Prompts, name: str) -> dict[str, Any]:
    """A baseline's record, measured once."""

    def compute():
        return measure_baseline(run.config.task, prompts, name)[0]

    given = depends_on(run.config, prompts) | {"method": name}
    return shelf.keep(f"{name} {run.task} {prompts.shift}", given, compute)


def _is_early_or_late(run, record):
    return record["step"] in (run.early, run.late)


def _early_and_late(shelf, runs):
    curves = _curves(runs, lambda run, r: r["shift"] == "none" and _is_early_or_late(run, r))
    return draw.curves(curves + _baselines(shelf, runs))


def _shifted(shelf, runs):
    curves = _curves(runs, lambda run, r: r["shift"] != "none" and _is_early_or_late(run, r))
    return draw.curves(curves + _baselines(shelf, runs, SHIFTS))


def _windows(shelf, runs):
    """The last curves, and that of ar on only the last examples."""
    curves = _curves(runs, lambda run, r: r["shift"] == "none" and r["step"] == run.late)
    seeds = [
        _beyond(r | {"method": f"ar, last {r['trained_on']}"})
        for run, numbers in runs.items() if run.name == "ar" for r in numbers["window"]
    ]  # fmt: skip
    seeds += stats.over_seeds(seeds, lambda record: (record["task"], record["method"]))
    return draw.curves(curves + seeds + _baselines(shelf, runs))


def _beyond(record):
    """A curve from the training length on: before it, the last examples are all that there are."""
    first = record["lengths"].index(record["trained_on"])
    return record | {name: record[name][first:] for name in ("lengths", "mean", "low", "high")}


def _growth(shelf, runs):
    return pictures.growth(_curves(runs, lambda run, r: r["shift"] == "none"))


def _steps(shelf, runs):
    return draw.steps(_curves(runs, lambda run, r: r["shift"] == "none"))


def _probes(shelf, runs):
    """The mean over seeds, as if it were one run's."""
    groups = {}
    for run, numbers in runs.items():
        for r in numbers["probes"]:
            groups.setdefault((run.name, r["probe"], r["layer"], r["examples"]), []).append(r)
    means = {key: statistics.mean(r["mean"] for r in group) for key, group in groups.items()}
    names = {name: f"mean of {sum(run.name == name for run in runs)} seeds" for name, *_ in groups}
    return draw_layers.probes(
        [group[0] | {"run": f"{key[0]}/{names[key[0]]}", "mean": means[key]} for key, group in groups.items()]
    )


def _asked(shelf, runs):
    """The same, with the number of queries in every name."""
    return _controls(shelf, runs, lambda run: run.name if "quer" in run.name else f"{run.name}, {_queries(run)}")


def _queries(run):
    count = run.config.data.queries
    return f"{count} quer{'y' if count == 1 else 'ies'}"


def _controls(shelf, runs, name=lambda run: run.name):
    """A row for each run: its last errors at the training length and the longest, and its spread over orders."""
    records = []
    for run, numbers in runs.items():
        last = next(r for r in numbers["curves"] if (r["step"], r["shift"]) == (run.late, "none"))
        at = {n: last["mean"][last["lengths"].index(n)] for n in (run.config.data.examples, last["lengths"][-1])}
        records.append({"method": name(run), "errors": at, "spread": numbers.get("order", {}).get("spread")})
    return pictures.variants(records)


def _training(shelf, runs):
    return draw.training(
        [{"task": run.task, "method": run.name, "lines": numbers["training"]} for run, numbers in runs.items()]
    )


def _equal_cost(shelf, runs):
    """The error at the training length, against what training has cost until then."""
    seconds, records = _step_seconds(shelf, runs), []
    for run, numbers in runs.items():
        lines = numbers["training"]
        spent = flops_until(run.config, [line["step"] for line in lines])
        points = [
            {"minutes": line["step"] * seconds[run.name] / 60, "flops": f, "error": list(line["error"].values())[-1]}
            for line, f in zip(lines, spent, strict=True)
        ]
        records.append({"method": run.name, "points": points[1:]})  # the first is that of step 0
    return pictures.equal_cost(records)


def _step_seconds(shelf, runs):
    """{name: seconds of a usual update}, measured once in turns: the runs were made on all kinds of machines."""
    configs, warmup = {run.name: run.config for run in reversed(runs)}, 2  # the first seed's

    def compute():
        training = {name: Training(c, Devices(c.machine, c.train.batch_size)) for name, c in configs.items()}
        seconds = time_updates(training, TURNS, warmup)
        return {name: step_seconds(configs[name], s, warmup) for name, s in seconds.items()}

    given = {name: {k: v for k, v in c.to_json().items() if k != "machine"} for name, c in configs.items()}
    return shelf.keep("training steps", given, compute)


def _costs(shelf, runs):
    """`minicl bench --inference`, on one thread."""
    from minicl.bench import inference

    def compute():
        with use_threads(1):
            return inference(list(TIMED), {"repeats": 20, **shelf.scale.inference, "device": auto_device()})

    return pictures.costs(shelf.costs(compute))


def _theory(shelf, runs):
    from minicl import theory

    given = {"version": stats.VERSION, "masks": list(theory.STATED), "rates": list(theory.RATES)}
    return draw_layers.theory(shelf.keep("theory", given, lambda: theory.compare(given["masks"], rates=given["rates"])))
