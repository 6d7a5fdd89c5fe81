"""`minicl evaluate`: from run folders to curves with error bars. Returns numbers and writes JSON; draw.py draws them.

Every model and baseline of a task answers the same seeded prompts, so differences are paired. A result is saved in its
run's folder under a name made of everything that produced it: the same evaluation is read, another one is added.
"""

import contextlib
import dataclasses
import functools
import hashlib
import io
import json
import sys
from collections import defaultdict
from pathlib import Path

import numpy

from minicl import checkpoint, order
from minicl.baselines import BASELINES, get_baseline
from minicl.curves import answers
from minicl.errors import InputError, check, check_int, choose
from minicl.masks import get_strategy, short
from minicl.model import auto_device, device_of
from minicl.tasks import SHIFTS, get_shift

VERSION = 1  # of what is computed: a change of it makes old results unread, not wrong
INTERVAL = 0.90
RESAMPLES = 1000

# What a curve is read against when nobody says. `optimal` is added where it has a closed form of its own.
USUAL = {
    "linear": ("least_squares",),
    "noisy_linear": ("optimal", "least_squares"),
    "sparse_linear": ("optimal", "lasso", "least_squares"),
    "decision_tree": ("greedy_tree", "knn"),
    "quadratic": ("optimal", "knn"),
    "relu_2nn": ("least_squares", "knn"),
}


def resample(errors, seed=0):
    """(RESAMPLES, columns): means over rows (prompts), drawn with replacement; the same draws for the same prompts."""
    errors = numpy.asarray(errors, dtype=numpy.float64)
    n = len(errors)
    counts = numpy.random.default_rng(seed).multinomial(n, [1 / n] * n, size=RESAMPLES)
    return counts @ errors / n


def interval(means):
    """Low and high end, per column, of the range that holds the middle 90 % of rows."""
    return numpy.quantile(means, [(1 - INTERVAL) / 2, (1 + INTERVAL) / 2], axis=0)


def bootstrap(errors, seed=0):
    """Low and high end, per column, of the 90 % interval of the mean over rows (prompts)."""
    return interval(resample(errors, seed))


@dataclasses.dataclass(frozen=True)
class Prompts:
    """Which prompts a curve is measured on."""

    shift: str = "none"
    lengths: tuple[int, ...] = tuple(range(101))
    prompts: int = 1280
    seed: int = 0

    def of(self, task, device="cpu"):
        """The prompts of a task, with the lengths that make sense under the shift."""
        most = get_shift(self.shift).most_points(task)
        lengths = [n for n in self.lengths if n < most]
        check(lengths, f"lengths under shift {self.shift}", min(self.lengths), f"below {most}")
        return task.sample(self.prompts, max(lengths) + 1, self.seed, shift=self.shift, device=device), lengths


def squared_errors(method, task, prompts):
    """(prompts, lengths) squared errors over the normaliser, of a model or a baseline; and the lengths."""
    p, lengths = prompts.of(task, device_of(method))
    if hasattr(method, "curve"):
        answer = method.curve(p.xs, p.ys, p.queries)[:, lengths]
    else:
        answer = answers(method, p.xs, p.ys, p.queries, lengths)
    errors = (answer - p.targets[:, lengths]).square() / get_shift(prompts.shift).normaliser(task)
    return errors.double().cpu().numpy(), lengths


def record(run, step, prompts, method, lengths, errors, **more):
    low, high = bootstrap(errors)
    return {
        "run": run,
        "step": step,
        "shift": prompts.shift,
        "method": method,
        "lengths": lengths,
        "mean": errors.mean(0).tolist(),
        "low": low.tolist(),
        "high": high.tolist(),
        "prompts": prompts.prompts,
        "seed": prompts.seed,
        **more,
    }


class Store:
    """Results in a folder, by what produced them. If it cannot be written to, they are computed and not kept."""

    def __init__(self, folder):
        self.folder = Path(folder)

    def get(self, key, compute):
        """(record, errors) for a key: read if there, else computed and saved."""
        digest = hashlib.sha256(json.dumps({"version": VERSION, **key}, sort_keys=True).encode()).hexdigest()[:16]
        name = f"{key['method']}-{key.get('step', 'baseline')}-{key['shift']}-{digest}"
        files = [self.folder / f"{name}{end}" for end in (".json", ".npy")]
        with contextlib.suppress(OSError, ValueError, EOFError, KeyError, TypeError):
            result, errors = json.loads(files[0].read_text(encoding="utf-8")), numpy.load(files[1])
            if errors.shape[1:] == (len(result["mean"]),):
                return result, errors
        result, errors = compute()
        buffer = io.BytesIO()
        numpy.save(buffer, errors.astype(numpy.float32))
        try:
            self.folder.mkdir(exist_ok=True)
            checkpoint.write_atomically(files[1], buffer.getvalue())
            checkpoint.write_atomically(files[0], json.dumps(result).encode())
        except OSError as error:
            print(f"not saved in {self.folder}: {error.strerror or error}", file=sys.stderr)
        return result, errors


def label(config):
    """A strategy's name in tables and legends: with whatever is not the strategy's own."""
    model = config.model
    strategy = get_strategy(model.mask)
    parts = [short(model.mask)]
    if model.resolved_positions != strategy.positions:
        parts.append(model.resolved_positions)
    if model.resolved_copies != strategy.copies:
        parts.append(f"×{model.resolved_copies}")
    if model.blind_query:
        parts.append("blind")
    return "+".join(parts)


def longest(config, most=None):
    """The longest context: most(training length); by default 2.5 times that, if there are positions for it."""
    if most is not None:
        return most(config.data.examples)
    usual = int(2.5 * config.data.examples)
    return min(usual, config.model.max_examples) if config.model.resolved_positions == "absolute" else usual


def check_positions(run, config, examples):
    if config.model.resolved_positions == "absolute":
        most = config.model.max_examples
        check(
            examples <= most, f"max-examples for {run}", examples, f"at most {most}: its absolute positions end there"
        )


class Evaluation:
    """Run folders, and what is to be measured on them."""

    def __init__(
        self, runs, shifts=("none",), most=None, which="last", baselines="auto", prompts=1280, seed=0, lengths=None
    ):
        check_int("prompts", prompts, least=2)
        check_int("seed", seed, least=0)
        runs = {Path(run).resolve(): str(run) for run in reversed(runs)}  # each folder once, however it is written
        self.runs = {run: checkpoint.read_config(run) for run in reversed(runs.values())}
        self.baselines = baselines
        self.files = {run: self._files(run, which) for run in self.runs}
        self.prompts = {}
        for run, config in self.runs.items():
            wanted = lengths or tuple(range(longest(config, most) + 1))
            check_positions(run, config, max(wanted))
            self.prompts[run] = [Prompts(shift, wanted, prompts, seed) for shift in shifts]

    @staticmethod
    def _files(run, which):
        """{step: file} of the checkpoints that are asked for; the last one that is whole, for `last`."""
        files = dict(sorted(checkpoint.checkpoints(run).items()))
        if not files:
            raise InputError(f"{run}: has no checkpoint yet")
        if which == "last":
            step = checkpoint.newest(run)["step"]
            return {step: files[step]}
        if which == "all":
            return files
        for step in which:
            check(step in files, f"checkpoints of {run}", step, ", ".join(map(str, files)))
        return {step: files[step] for step in which}

    def results(self):
        """[(record, errors)] of every run × step × shift, then of the baselines of every task × shift.

        What makes no sense (a shift for this task, a baseline for this size) or is gone is left out, and named.
        """
        found, done = [], set()
        for run, config in self.runs.items():
            for step, file in self.files[run].items():
                loaded = functools.cache(functools.partial(checkpoint.load, file, device=auto_device()))
                for prompts in self.prompts[run]:
                    with left_out():
                        found.append(self._model(run, config, step, file, prompts, loaded))
        for run, config in self.runs.items():
            for prompts in self.prompts[run]:
                for name in self._baselines(config.task, prompts.shift):
                    if (key := (config.task, prompts, name)) not in done:
                        done.add(key)
                        with left_out():
                            found.append(self._baseline(run, config.task, prompts, name))
        if not any(result["run"] for result, _ in found):
            raise InputError("nothing could be evaluated")
        return found

    def _model(self, run, config, step, file, prompts, loaded):
        key = {**dataclasses.asdict(prompts), "step": step, "method": label(config), "task": _settings(config.task)}
        key["weights"] = _file_hash(file)

        def compute():
            _progress(f"{run} step {step}, {prompts.shift}")
            errors, lengths = squared_errors(loaded(), config.task, prompts)
            more = {"train_seed": config.train.seed, "trained_on": config.data.examples, "task": config.data.task}
            more["n_dims"] = config.model.n_dims
            return record(run, step, prompts, label(config), lengths, errors, **more), errors

        result, errors = Store(Path(run, "evaluation")).get(key, compute)
        return {**result, "run": run}, errors

    def _baseline(self, run, task, prompts, name):
        key = {**dataclasses.asdict(prompts), "method": name, "task": _settings(task)}

        return Store(Path(run, "evaluation")).get(key, lambda: measure_baseline(task, prompts, name))

    def _baselines(self, task, shift):
        return usual_baselines(task, shift) if self.baselines == "auto" else self.baselines


def usual_baselines(task, shift):
    names = USUAL.get(task.name, ("knn",))
    if task.name == "linear" and (shift in ("noise", "label_noise") or task.bias):
        names = ("optimal", *names)
    return names


def measure_baseline(task, prompts, name):
    """(record, errors) of a baseline."""
    _progress(f"{name}, {prompts.shift}")
    more = {"task": task, "shift": prompts.shift} if name == "optimal" else {}
    errors, lengths = squared_errors(get_baseline(name, **more), task, prompts)
    return record(None, None, prompts, name, lengths, errors, n_dims=task.n_dims, task=task.name), errors


def _settings(task):
    return {"task": task.name, **dataclasses.asdict(task)}


@contextlib.contextmanager
def left_out():
    """What is refused inside is named and passed over."""
    try:
        yield
    except InputError as error:
        print(f"left out: {error}", file=sys.stderr)


def _file_hash(file):
    try:
        return hashlib.sha256(Path(file).read_bytes()).hexdigest()
    except FileNotFoundError:
        raise InputError(f"{file}: it is gone (a run that is still training replaces its checkpoints)") from None


def _progress(text):
    print(f"evaluating {text}", file=sys.stderr, flush=True)


def but_for_the_seed(config):
    """What a run shares with those that differ from it in their seed alone."""
    return config.data, config.model, dataclasses.replace(config.train, seed=0)


def over_seeds(results, kind):
    """One more record for every group of runs of one kind, by their name: mean and range over seeds."""
    groups = defaultdict(list)
    for result in results:
        if result["run"] is not None:
            groups[(kind[result["run"]], result["step"], result["shift"])].append(result)
    records = []
    for members in groups.values():
        if len(members) > 1:
            means = numpy.array([m["mean"] for m in members])
            spread = {"mean": means.mean(0), "low": means.min(0), "high": means.max(0)}
            records.append(
                {
                    **members[0],
                    **{name: value.tolist() for name, value in spread.items()},
                    "run": None,
                    "runs": [m["run"] for m in members],
                    "train_seed": [m["train_seed"] for m in members],
                    "over": "seeds",
                }
            )
    return records


def add_arguments(parser):
    parser.add_argument("runs", nargs="+", metavar="RUN", help="run folders")
    parser.add_argument("--shifts", default="none", help=f"all, none, or names: {', '.join(SHIFTS)} (none)")
    parser.add_argument("--max-examples", metavar="N", help="longest context (2.5x training's)")
    parser.add_argument("--lengths", metavar="N,N,…", help="only these numbers of examples, instead of all from 0")
    parser.add_argument("--checkpoints", default="last", metavar="STEPS", help="last, all, or steps (last)")
    parser.add_argument("--baselines", default="auto", metavar="NAMES", help="auto, none, or names (auto)")
    parser.add_argument("--prompts", type=int, default=1280, help="prompts for each curve (1280)")
    parser.add_argument("--seed", type=int, default=0, help="seed of the prompts (0)")
    parser.add_argument("--order", action="store_true", help="measure order sensitivity at the training length instead")
    parser.add_argument("--permutations", type=int, default=16, help="--order: random orders of each prompt (16)")
    parser.add_argument("--tolerance", type=float, default=0.1, help="--order: a change beyond it counts (0.1)")
    parser.add_argument("--json", action="store_true", help="print records instead of a table")
    parser.add_argument("--plot", metavar="FILE", help="draw them")


def run(args):
    from minicl import draw

    if args.plot is not None:
        draw.check_ending(args.plot)
    evaluation = Evaluation(
        args.runs,
        _shifts(args.shifts),
        None if args.max_examples is None else longest_from(args.max_examples),
        args.checkpoints if args.checkpoints in ("last", "all") else whole_numbers("checkpoints", args.checkpoints),
        "auto" if args.baselines == "auto" else _baselines(args.baselines),
        args.prompts,
        args.seed,
        None if args.lengths is None else whole_numbers("lengths", args.lengths),
    )
    if args.order:
        records = list(_order(evaluation, args))
        print(json.dumps(records) if args.json else _order_table(records))
        if args.plot is not None:
            draw.save(draw.order(records), args.plot)
        return 0
    results = evaluation.results()
    kinds = {run: but_for_the_seed(config) for run, config in evaluation.runs.items()}
    spread = over_seeds([r for r, _ in results], kinds)
    records = [r for r, _ in results] + spread
    print(json.dumps(records) if args.json else table(results, spread))
    if args.plot is not None:
        draw.save(draw.curves(records), args.plot)
    return 0


def _order(evaluation, args):
    """A record of order sensitivity for every run and step."""
    for run, config in evaluation.runs.items():
        for step, file in evaluation.files[run].items():
            model = checkpoint.load(file, device=auto_device())
            settings = (args.prompts, args.permutations, args.tolerance, args.seed)
            found = order.sensitivity(model, config.task, config.data.examples, *settings)
            own = {"positions": config.model.resolved_positions, "train_seed": config.train.seed}
            yield {"run": run, "step": step, "method": label(config), **own, **found}


def _order_table(records):
    rows = [["", "spread", "largest change", f"changes beyond {records[0]['tolerance']}", "error"]]
    for r in records:
        name = f"{r['method']} ({r['run']}, step {r['step']})"
        rows.append(
            [name, *(f"{r[k]:.2g}" for k in ("spread", "largest")), f"{r['frequency']:.1%}", f"{r['error']:.3g}"]
        )
    unit = "in units of y's root mean square, at the training length"
    return "\n".join([f"the query prediction over {records[0]['permutations']} random orders, {unit}", *columns(rows)])


def _names(text):
    return tuple(dict.fromkeys(part.strip() for part in text.split(",") if part.strip()))


def _shifts(text):
    """`all` is all of them after none; `none` none but the training distribution, which is always there."""
    if text in ("all", "none"):
        return tuple(SHIFTS) if text == "all" else ("none",)
    check(_names(text), "shifts", repr(text), f"all, none, or names: {', '.join(SHIFTS)}")
    return tuple(choose("shifts", name, tuple(SHIFTS), also=", all") for name in _names(text))


def _baselines(text):
    if text == "none":
        return ()
    return tuple(choose("baselines", name, tuple(BASELINES), also=", auto, none") for name in _names(text))


def whole_numbers(what, text):
    try:
        numbers = tuple(int(part) for part in _names(text))
    except ValueError:
        numbers = ()
    check(numbers and min(numbers) >= 0, what, repr(text), "whole numbers of at least 0 with commas between them")
    return numbers


def longest_from(text):
    """A function from the training length to the longest context: `100`, or `2.5x` times the training length."""
    try:
        number = float(text.removesuffix("x"))
        ok = 0 < number < 1e6 and (text.endswith("x") or number == int(number))
    except ValueError:
        ok = False
    check(ok, "max-examples", repr(text), "a whole number above 0, or a factor such as 2.5x")
    return lambda length: max(1, int(number * length)) if text.endswith("x") else int(number)


def table(results, spread=()):
    """Errors at the training length, at the longest, and their mean over lengths, for prompts that are the same."""
    groups = defaultdict(list)
    for result, errors in results:
        groups[tuple(str(result[k]) for k in ("task", "n_dims", "shift", "prompts", "seed"))].append((result, errors))
    lines = []
    for (task, n_dims, shift, *_), members in groups.items():
        models = [m for m in members if m[0]["run"] is not None]
        if not models:
            continue
        common = sorted(set.intersection(*(set(result["lengths"]) for result, _ in models)))
        at = dict.fromkeys(n for n in (min(r["trained_on"] for r, _ in models), common[-1]) if n in common)
        rows = [["", *(f"{n} examples" for n in at), f"mean over {common[0]}–{common[-1]}"]]
        for result, errors in members:
            name = result["method"] + ("" if result["run"] is None else f" ({result['run']}, step {result['step']})")
            cells = [_cell(result, result["lengths"].index(n)) if n in result["lengths"] else "–" for n in at]
            mean = _over(result, errors, common)
            rows.append([name, *cells, _interval(mean.mean(), *bootstrap(mean[:, None])[:, 0])])
        for group in (r for r in spread if r["runs"][0] in {m["run"] for m, _ in models} and r["shift"] == shift):
            name = f"{group['method']}, range over {len(group['runs'])} seeds"
            rows.append([name, *(_cell(group, group["lengths"].index(n)) for n in at), ""])
        if len(models) > 1:
            rows.append(["least error", *(_winner(models, [n]) for n in at), _winner(models, common)])
        title = f"{task} in {n_dims} dimensions, shift {shift}: {get_shift(shift).summary}"
        lines += [title, *columns(rows), ""]
    return "\n".join([*lines, "90 % intervals over prompts in brackets; an error of 1 is that of answering 0"])


def _over(result, errors, lengths):
    """(prompts,) mean error over some lengths."""
    return errors[:, [result["lengths"].index(n) for n in lengths if n in result["lengths"]]].mean(1)


def columns(rows):
    widths = [max(len(row[i]) for row in rows) + 2 for i in range(len(rows[0]))]
    return ["  " + "".join(f"{cell:<{w}}" for cell, w in zip(row, widths, strict=True)).rstrip() for row in rows]


def _cell(result, i):
    return _interval(result["mean"][i], result["low"][i], result["high"][i])


def _interval(mean, low, high):
    return f"{mean:.3g} ({low:.3g}–{high:.3g})" if mean > 1e-6 else "0"


def _winner(models, lengths):
    """The model with the least mean error over `lengths`, if the paired 90 % interval of its lead excludes zero."""
    ranked = sorted(models, key=lambda m: _over(*m, lengths).mean())
    lead = _over(*ranked[1], lengths) - _over(*ranked[0], lengths)
    best = ranked[0][0]
    alike = len({r["method"] for r, _ in models}) < len(models)
    name = f"{best['method']} ({best['run']}, step {best['step']})" if alike else best["method"]
    return name if bootstrap(lead[:, None])[0, 0] > 0 else "undecided"
