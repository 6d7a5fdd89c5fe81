"""`minicl evaluate`: from run folders to curves with error bars. It returns numbers, which draw.py draws.

Every model and baseline of a task answers the same seeded prompts, so differences are paired. A result is kept in its
run's folder together with what it depends on: the same evaluation is read, another one is added.
"""

import contextlib
import functools
import hashlib
import json
import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy
from torch import nn

from minicl import plugins, runs, stats
from minicl.answers import Windowed, answers
from minicl.baselines import BASELINES, get_baseline
from minicl.checks import InputError, check, check_alone, check_int, choose
from minicl.config import Config
from minicl.devices import auto_device, device_of, use_threads
from minicl.progress import Progress
from minicl.selection import add_run_arguments, check_run_arguments, choose_checkpoints, choose_lengths, longest_from
from minicl.shifts import SHIFTS, get_shift
from minicl.store import Store
from minicl.tasks import Task
from minicl.text import names

Record = dict[str, Any]


@dataclass(frozen=True)
class Prompts:
    """Which prompts a curve is measured on."""

    shift: str = "none"
    lengths: tuple[int, ...] = tuple(range(101))
    prompts: int = 1280
    seed: int = 0

    def of(self, task: Task, device="cpu"):
        """The prompts of a task, with the lengths that make sense under the shift."""
        most = get_shift(self.shift).most_points(task)
        lengths = [n for n in self.lengths if n < most]
        check(lengths, f"lengths under shift {self.shift}", min(self.lengths), f"below {most}")
        return task.sample(self.prompts, max(lengths) + 1, self.seed, shift=self.shift, device=device), lengths

    def one(self, lengths: Sequence[int]) -> "Prompts":
        """The first of these prompts, with other lengths."""
        return replace(self, prompts=1, lengths=tuple(lengths))


def squared_errors(method: Any, task: Task, prompts: Prompts) -> tuple[numpy.ndarray, list[int]]:
    """(prompts, lengths) squared errors over the normaliser, of a model or a baseline; and the lengths."""
    p, lengths = prompts.of(task, device_of(method))
    if hasattr(method, "curve"):
        answer = method.curve(p.xs, p.ys, p.queries)[:, lengths]
    else:
        answer = answers(method, p.xs, p.ys, p.queries, lengths)
    errors = (answer - p.targets[:, lengths]).square() / get_shift(prompts.shift).normaliser(task)
    return errors.double().cpu().numpy(), lengths


def record(prompts: Prompts, task: Task, method: str, lengths: list[int], errors: numpy.ndarray, **more) -> Record:
    """A curve: its mean over prompts at every length, with the interval of that mean."""
    low, high = stats.bootstrap(errors)
    return {
        "run": None,
        "step": None,
        "shift": prompts.shift,
        "method": method,
        "lengths": lengths,
        "mean": errors.mean(0).tolist(),
        "low": low.tolist(),
        "high": high.tolist(),
        "interval": stats.INTERVAL,
        "prompts": prompts.prompts,
        "seed": prompts.seed,
        "n_dims": task.n_dims,
        "task": plugins.short(task.name),
        **more,
    }


def depends_on(config: Config, prompts: Prompts) -> Record:
    """What any curve on these prompts of a run's task depends on."""
    saved = config.to_json()
    task = {"name": saved["data"]["task"], "code": saved["code"].get("task"), **asdict(config.task)}
    return {**stats.basis(), **asdict(prompts), "task": task}


def measure_baseline(task: Task, prompts: Prompts, name: str) -> tuple[Record, numpy.ndarray]:
    """A baseline's record and its errors."""
    more = {"task": task, "shift": prompts.shift} if name == "optimal" else {}
    errors, lengths = squared_errors(get_baseline(name, **more), task, prompts)
    return record(prompts, task, name, lengths, errors), errors


class Evaluation:
    """Run folders, and what is to be measured on them."""

    def __init__(
        self,
        folders: str | Path | Sequence[str | Path],
        shifts: str | Sequence[str] = "none",
        lengths: Sequence[int] | None = None,
        max_examples: int | str | None = None,
        checkpoints: str | Sequence[int] = "last",
        baselines: str | Sequence[str] = "auto",
        prompts: int = 1280,
        seed: int = 0,
        window: int | None = None,
        threads: int | None = None,
        trust: bool = False,
    ):
        if window is not None:
            check_int("window", window, least=1)
        check_int("prompts", prompts, least=2)
        check_int("seed", seed, least=0)
        folders = [folders] if isinstance(folders, str | Path) else folders
        self.runs = {folder: runs.read_config(folder, trust) for folder in each_once(folders)}
        self.threads, self.trust, self.window, self.baselines = threads, trust, window, _baselines(baselines)
        self.files = {folder: choose_checkpoints(folder, checkpoints) for folder in self.runs}
        most, shifts = longest_from(max_examples), _shifts(shifts)
        self.prompts = {
            folder: [
                Prompts(shift, choose_lengths(folder, config, lengths, most, window=window), prompts, seed)
                for shift in shifts
            ]
            for folder, config in self.runs.items()
        }

    def load(self, file: Path) -> nn.Module:
        model = runs.load(file, device=auto_device(), trust=self.trust)
        return model if self.window is None else Windowed(model, self.window)

    def method(self, config: Config) -> str:
        """A run's name in tables and legends."""
        return config.method if self.window is None else f"{config.method}, last {self.window}"

    def results(self) -> list[tuple[Record, numpy.ndarray]]:
        """(record, errors) of every run × step × shift, then of the baselines of every task × shift.

        What makes no sense (a shift for this task, a baseline for this size) or is gone is left out, and named.
        """
        parts, results = [*self._models(), *self._baselines()], []
        with Progress(len(parts)) as begin:
            for config, text, part in parts:
                before = begin.begun
                with left_out(), use_threads(self.threads or config.machine.threads):
                    results.append(part(functools.partial(begin, text)))
                if begin.begun == before:  # it was kept, or makes no sense
                    begin.skip(1)
        if not any(result["run"] for result, _ in results):
            raise InputError("nothing could be evaluated")
        return results

    def _models(self):
        """(config, what, a function that measures it) of every run × step × shift."""
        load = functools.lru_cache(1)(self.load)
        for run, config in self.runs.items():
            for step, file in self.files[run].items():
                for prompts in self.prompts[run]:
                    part = functools.partial(self._model, run, config, step, file, prompts, load)
                    yield config, f"evaluating {run} step {step}, {prompts.shift}", part

    def _model(self, run, config, step, file, prompts, load, begin):
        given = depends_on(config, prompts) | {"step": step, "weights": _file_hash(file)}
        given, method = given if self.window is None else given | {"window": self.window}, self.method(config)

        def compute():
            begin()
            errors, lengths = squared_errors(load(file), config.task, prompts)
            more = {"run": run, "step": step}
            more |= {"train_seed": config.train.seed, "trained_on": config.data.examples}
            return record(prompts, config.task, method, lengths, errors, **more), errors

        name = f"{method} {step} {prompts.shift}"
        result, errors = Store(Path(run, "evaluation")).get_errors(name, given, compute)
        return {**result, "run": run}, errors

    def _baselines(self):
        """The same of the baselines of every task × shift."""
        done = []
        for run, config in self.runs.items():
            for prompts in self.prompts[run]:
                usual = config.task.usual_baselines(prompts.shift) if self.baselines is None else self.baselines
                for name in usual:
                    given = depends_on(config, prompts) | {"method": name}
                    if given not in done:
                        done.append(given)
                        part = functools.partial(self._baseline, run, config.task, prompts, name, given)
                        yield config, f"evaluating {name}, {prompts.shift}", part

    @staticmethod
    def _baseline(run, task, prompts, name, given, begin):
        def compute():
            begin()
            return measure_baseline(task, prompts, name)

        return Store(Path(run, "evaluation")).get_errors(f"{name} {prompts.shift}", given, compute)

    def over_seeds(self, records: Sequence[Record]) -> list[Record]:
        """Mean and range over the runs that differ only in their seed."""
        return stats.over_seeds(records, lambda r: self.kind(r["run"]))

    @functools.cache  # noqa: B019  (an evaluation lives as long as its command)
    def kind(self, run: str) -> str:
        """What a run shares with those that differ from it only in their seed."""
        return kind_of(self.runs[run])


def evaluate(runs: str | Path | Sequence[str | Path], **settings) -> list[Record]:
    """What `minicl evaluate --json` prints: `evaluate(["runs/a", "runs/b"], shifts="noise", lengths=[5, 10])`.

    A record for every run, checkpoint and shift, then for every baseline, then mean and range over seeds. Settings are
    those of the command: shifts, lengths, max_examples, checkpoints, baselines, prompts, seed, window, threads, trust.
    """
    evaluation = Evaluation(runs, **settings)
    records = [r for r, _ in evaluation.results()]
    return records + evaluation.over_seeds(records)


def each_once(folders: Sequence[str | Path]) -> list[str]:
    """The folders without those that are named twice, however they are written."""
    once = {Path(folder).resolve(): str(folder) for folder in reversed(folders)}
    return [*reversed(once.values())]


def kind_of(config: Config) -> str:
    """What runs share that differ only in their seed."""
    settings = config.to_json()
    settings["train"]["seed"], settings["machine"] = None, None
    return json.dumps(settings, sort_keys=True)


@contextlib.contextmanager
def left_out() -> Iterator[None]:
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


def _shifts(shifts):
    """`all` means every shift there is, `none` only the training distribution."""
    if shifts in ("all", "none"):
        return tuple(SHIFTS) if shifts == "all" else ("none",)
    chosen = names(shifts) if isinstance(shifts, str) else tuple(shifts)
    check(chosen, "shifts", repr(shifts), f"all, none, or names: {', '.join(SHIFTS)}")
    return tuple(choose("shifts", name, tuple(SHIFTS), also=", all") for name in chosen)


def _baselines(baselines):
    """None means those that each task names."""
    if baselines in ("auto", "none"):
        return None if baselines == "auto" else ()
    chosen = names(baselines) if isinstance(baselines, str) else tuple(baselines)
    return tuple(choose("baselines", name, tuple(BASELINES), also=", auto, none") for name in chosen)


PROMPT_PLOT = "n_dims = 1: answer one prompt instead, and draw its points, the predicted curves and the shuffled prompt"

MODES = {  # measurements of another kind, and the flags that go with each
    "training": ("plot", "json", "trust"),
    "prompt_plot": ("lengths", "seed", "permutations", "shifts", "baselines", "checkpoints", "window", "threads",
                    "trust", "json"),
    "order": ("plot", "prompts", "seed", "permutations", "tolerance", "checkpoints", "window", "threads", "trust",
              "json"),
}  # fmt: skip

TRAINING = "show instead how the error fell during training, as metrics.jsonl has it"


def add_arguments(parser):
    add_run_arguments(parser)
    parser.add_argument("--shifts", default="none", metavar="S,S,…", help=f"all, none, or {', '.join(SHIFTS)} (none)")
    parser.add_argument("--baselines", default="auto", metavar="B,B,…", help="auto, none, or names (auto)")
    parser.add_argument("--prompts", type=int, default=1280, help="prompts for each curve (1280)")
    parser.add_argument("--seed", type=int, default=0, help="seed of the prompts (0)")
    parser.add_argument("--window", type=int, metavar="N", help="show the models only the last N examples")
    parser.add_argument("--order", action="store_true", help="measure order sensitivity at the training length instead")
    parser.add_argument("--training", action="store_true", help=TRAINING)
    parser.add_argument("--prompt-plot", metavar="FILE", help=PROMPT_PLOT)
    parser.add_argument("--permutations", type=int, help="random orders: --order, --prompt-plot (16)")
    parser.add_argument("--tolerance", type=float, help="--order: a change beyond it counts (0.1)")


def run(args):
    from minicl import draw, history, order, prompt, report

    check_run_arguments(args)
    if args.prompt_plot is not None:
        draw.check_ending(args.prompt_plot)
    modes = {mode: beside for mode, beside in MODES.items() if getattr(args, mode)}
    for mode, beside in modes.items():
        check_alone(mode, args, add_arguments, beside)
    for name, where in {"permutations": "--order or --prompt-plot", "tolerance": "--order"}.items():
        check(modes or getattr(args, name) is None, name, getattr(args, name), f"with {where}")
    if args.training:
        return _show(args, history.of_runs(args.runs, args.trust), history.table, draw.training, args.plot)
    names = ("shifts", "lengths", "max_examples", "checkpoints", "baselines", "prompts", "seed")
    names += ("window", "threads", "trust")
    evaluation = Evaluation(args.runs, **{name: getattr(args, name) for name in names})
    orders = 16 if args.permutations is None else args.permutations
    if args.prompt_plot is not None:
        records = prompt.of_runs(evaluation, args.lengths, orders)
        text, picture = prompt.table, draw.prompt
    elif args.order:
        tolerance = 0.1 if args.tolerance is None else args.tolerance
        records = order.of_runs(evaluation, args.prompts, orders, tolerance, args.seed)
        text, picture = order.table, draw.order
    else:
        results = evaluation.results()
        records = [r for r, _ in results]
        records += evaluation.over_seeds(records)
        text, picture = functools.partial(report.table, evaluation, results), draw.curves
    return _show(args, records, text, picture, args.plot if args.prompt_plot is None else args.prompt_plot)


def _show(args, records, text, picture, file):
    from minicl import draw

    print(json.dumps(records) if args.json else text(records))
    if file is not None:
        draw.save(picture(records), file)
    return 0
