"""`minicl train`: train a strategy on a function class. An interrupted run resumes exactly where it stopped.

The state of a run is its weights, its optimiser and its step. Everything else (the prompts, their lengths, the learning
rate) is a pure function of (config, step), so a resumed run repeats the uninterrupted one bit by bit.
"""

import contextlib
import json
import math
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, distributed

from minicl import checkpoint, cost, plugins, runs
from minicl.checks import InputError, check
from minicl.config import Config, DataConfig, add_config_flags
from minicl.deepset import make_model
from minicl.devices import Devices, Signals, Stop, choose_library, products, rank
from minicl.linear import use_onednn
from minicl.log import Log, check_tensorboard, say
from minicl.optim import make_optimizer
from minicl.schedule import learning_rate, planned_steps, position_rows, prompt_size

TRAIN, VALIDATE = 0, 1  # streams of prompts: no run is validated on what any run was trained on
RANDOM_STATE = threading.Lock()  # torch has one for all threads
ABSURD = 100  # times the loss of answering 0: such a run will not come back


class Failure(RuntimeError):
    """The run cannot go on, through no fault of the command: one line, exit status 1."""


class Training:
    """A model, its optimiser, and the updates."""

    def __init__(self, config: Config, devices: Devices):
        self.config, self.devices, self.task = config, devices, config.task
        self.record = config.to_json()  # now: a mask's file may be edited while the run trains
        with RANDOM_STATE, torch.random.fork_rng(devices=[]):  # the caller's random numbers are none of ours
            torch.manual_seed(config.train.seed)
            self.model = make_model(config.model).to(devices.device)
        if config.machine.linear == "onednn":
            use_onednn(self.model)
        if config.machine.compile:  # only updates: the few other passes would each need a compilation of their own
            mode = "reduce-overhead" if config.machine.cuda_graphs else None
            plain, compiled = self.model.propagate, torch.compile(self.model.propagate, mode=mode)
            self.model.propagate = lambda *args: (compiled if torch.is_grad_enabled() else plain)(*args)
        self.optimizer = make_optimizer(self.model, config.train)
        self.step = 0
        self.logged = -1  # the last step in metrics.jsonl
        self.restored = None  # step and logged of the checkpoint that it goes on from
        self.seconds = 0.0  # spent on updates
        self.loss_sum = torch.zeros((), device=devices.device)  # since the last log, with the number of updates
        self.updates = 0
        self.bad_step = torch.full((), -1, device=devices.device)  # the first update whose loss was not finite

    def batch(self, step: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """This process's share of a step's prompts: examples, their labels, queries, what is to be answered at both."""
        n, dims = prompt_size(self.config, step)
        share, start = self.devices.share, self.devices.rank * self.devices.share
        seed, device = (self.config.train.seed, TRAIN, step), self.devices.device
        p = self.task.sample(share, n + self.config.data.queries, seed, start=start, device=device, dims=dims)
        return p.xs[:, :n], p.ys[:, :n], p.xs[:, n:], p.targets if self.config.train.clean else p.ys

    def loss(self, step: int) -> Tensor:
        """Mean squared error of the predictions that are trained on, over the task's normaliser."""
        with products("highest"):  # the same prompts on any device
            xs, ys, queries, targets = self.batch(step)
        n = xs.shape[1]
        rows = None
        if self.model.positions == "random":
            rows = position_rows(self.config, step, n, xs.device)
        bf16 = self.config.train.precision == "bf16"
        with torch.autocast(self.devices.device.type, torch.bfloat16) if bf16 else contextlib.nullcontext():
            out = self.model(xs, ys, queries, rows=rows)
        errors = (out.query.float() - targets[:, n:]).square()
        if self.config.on_context:
            errors = torch.cat([(out.context.float() - targets[:, :n]).square(), errors], dim=1)
        return errors.mean() / self.task.normaliser

    def update(self) -> None:
        """One step of the optimiser. Nothing is read back from the device."""
        train, start = self.config.train, time.perf_counter()
        for group in self.optimizer.param_groups:
            group["lr"] = group["scale"] * learning_rate(train, self.step)
        with products(self.config.machine.matmul):
            loss = self.loss(self.step)
            loss.backward()
            self.devices.average_gradients(self.model.parameters())
            if train.clip:
                torch.nn.utils.clip_grad_norm_(self.model.parameters(), train.clip)
            self.optimizer.step()
        self.optimizer.zero_grad()
        loss = loss.detach()
        self.step += 1
        self.loss_sum += loss
        self.updates += 1
        self.bad_step = torch.where((self.bad_step < 0) & ~loss.isfinite(), self.step, self.bad_step)
        self.seconds += time.perf_counter() - start

    def check_loss(self) -> float:
        """The mean loss since the last log, if it is sane. It is read back, so this is for log and save steps only."""
        start = time.perf_counter()
        bad = int(self.devices.total(self.bad_step.clone(), distributed.ReduceOp.MAX))
        loss = self._sane(self.loss_sum, self.updates, bad if bad >= 0 else self.step)
        self.seconds += time.perf_counter() - start  # reading waits for the device, which was still at the updates
        return loss

    @torch.no_grad()
    def check_weights(self) -> None:
        """Before they are saved: the losses so far were those of older weights, so these answer the next prompts."""
        self._sane(self.loss(self.step), 1, self.step + 1)

    def _sane(self, losses, updates, step):
        """The mean over updates and processes, from the sum over this process's updates; Failure if it is absurd."""
        loss = float(self.devices.total(losses.clone())) / self.devices.world / max(1, updates)
        if not math.isfinite(loss):
            what = f"the loss of step {step} is not finite"
        elif loss > ABSURD:
            what = f"the loss exploded to {loss:.3g} times that of answering 0, by step {step}"
        else:
            return loss
        raise Failure(f"{what}; try a lower --lr, a longer --warmup or --clip 1, with another --out")

    @torch.inference_mode()
    def validate(self, signals: Signals | None = None) -> dict[str, float]:
        """Normalised query error at half and all of the training length, on prompts that every run shares."""
        self.model.eval()
        errors = {}
        for n in sorted({max(1, self.config.data.examples // 2), self.config.data.examples}):
            if signals is not None:
                signals.check()
            p = self.task.sample(self.config.train.validate, n + 1, (VALIDATE,), device=self.devices.device)
            answer = self.model(p.xs[:, :n], p.ys[:, :n], p.queries[:, n:]).query
            errors[str(n)] = float((answer - p.targets[:, n:]).square().mean()) / self.task.normaliser
        self.model.train()
        return errors

    def state(self) -> dict[str, Any]:
        return {
            "config": self.record,
            "step": self.step,
            "logged": self.logged,
            "seconds": self.seconds,
            "loss_sum": self.devices.total(self.loss_sum.clone()) / self.devices.world,
            "updates": self.updates,
            "model": self.model.state_dict(),
            "optimizer": self.optimizer.state_dict(),
        }

    def restore(self, state: dict[str, Any]) -> None:
        rows = self.config.before_extension(state["config"]).differences(state["config"])
        if rows:
            raise InputError(f"the checkpoint of step {state['step']} was saved with other settings: {'; '.join(rows)}")
        self.model.load_state_dict(state["model"])
        if state["optimizer"] is not None:  # an exported run has none: it is finished
            self.optimizer.load_state_dict(state["optimizer"])
        self.loss_sum.copy_(state["loss_sum"])
        for name in ("step", "logged", "seconds", "updates"):
            setattr(self, name, state[name])
        self.restored = (self.step, self.logged)


def train(
    preset: str | None = "tiny",
    out: str | Path | None = None,
    config: str | Path | None = None,
    trust: bool = False,
    **settings,
) -> dict[str, Any]:
    """What `minicl train` does: train into a run folder, or go on where it stopped.

    Settings are those of the command, with underscores: `train("tiny", mask="invicl", seed=1, out="runs/a")`. They
    override the preset's, or those of a run's config.json: `train(config="runs/a/config.json", seed=1, out="runs/b")`.
    Returns the folder and the last line of metrics.jsonl: {"run": "runs/a", "step": …, "loss": …, "error": {…}, …}.
    """
    check(config is None or preset in ("tiny", None), "preset", f"{preset!r} beside config", "only one of them")
    chosen = choose_settings(preset, config, trust, settings)
    folder = Path(out or default_folder(chosen, None if config else preset))
    train_run(chosen, folder)
    return {"run": str(folder), **last_metrics(folder)}


def choose_settings(preset: str | None, file: str | Path | None, trust: bool, settings: dict[str, Any]) -> Config:
    """The Config of a preset, or of a run's config.json, with settings that override it."""
    if file is None:
        return Config.make(preset, **settings)
    return runs.read_config_file(file, trust).changed(**settings)


def default_folder(config: Config, preset: str | None) -> str:
    """Where a run goes if nobody says where."""
    names = (config.task.name, "deepset" if config.model.architecture == "deepset" else config.model.mask)
    name = "-".join([*map(plugins.short, names), preset or "custom", str(config.train.seed)])
    return f"runs/{name.replace('/', '-')}"  # a mask in two stages has a /


def last_metrics(folder: Path) -> dict[str, Any]:
    """The last line of metrics.jsonl; {} if it is gone or was emptied."""
    file = folder / "metrics.jsonl"
    lines = runs.read_lines(file) if file.exists() else []
    return lines[-1] if lines else {}


def train_run(config: Config, folder: str | Path) -> None:
    """Train into a folder, from where it stopped."""
    folder = Path(folder)
    if not isinstance(config.model.mask, str):
        raise InputError("mask: got a Strategy, allowed: a name or path/to/file.py:name, so that the run can be loaded")
    if config.machine.tensorboard:
        check_tensorboard()
    devices = Devices(config.machine, config.train.batch_size)
    with Signals(devices) as signals, devices.joined(), contextlib.ExitStack() as held:
        config = choose_library(config, folder, devices)
        with writing_to(folder):
            devices.main_does(held.enter_context, runs.hold(config, folder))
        config = config.continuing(devices.from_main(devices.is_main and runs.read_settings(folder)))
        training = Training(config, devices)
        say(devices, _greeting(config, training.model))
        state = checkpoint.newest(folder)
        if state is not None:
            training.restore(state)
        with writing_to(folder):
            for name in runs.LOGS:
                devices.main_does(runs.cut, folder / name, training.logged)
        if training.step == training.logged == config.train.steps:
            say(devices, f"{folder} is finished: {config.train.steps} steps")
        else:
            with Log(training, folder) as log, telling_what_is_left(folder), checkpoint.Writer() as writer:
                _go_on(training, folder, log, signals, writer)
        say(devices, f"next: minicl evaluate {folder}")


@contextlib.contextmanager
def writing_to(folder: Path) -> Iterator[None]:
    """A folder that cannot be written to is a Failure."""
    try:
        yield
    except OSError as error:
        raise Failure(f"cannot write to {folder}: {error.strerror or error}") from error


@contextlib.contextmanager
def telling_what_is_left(folder: Path) -> Iterator[None]:
    """A Failure says which checkpoint there is."""
    try:
        yield
    except Failure as failure:
        step = next(iter(checkpoint.checkpoints(folder)), None)
        left = "no checkpoint was saved before" if step is None else f"the checkpoint of step {step} stays"
        raise Failure(f"{failure} ({left})") from None


def _go_on(training, folder, log, signals, writer):
    """Train until the last step, or until a signal; save then too."""
    if training.step:
        log.say(_going_on(training.config.train, training.step))
    try:
        _loop(training, folder, log, signals, writer)
    except Stop:
        _save(training, folder, writer)
        _written(training, folder, writer)
        log.say(f"stopped by {signals.name} after {training.step} steps and saved; the same command resumes")
        raise signals.ending from None


def _loop(training, folder, log, signals, writer):
    """Update after update; a line of metrics and a checkpoint whenever they are due."""
    config = training.config.train
    ends = {*config.extended, config.steps}
    kept = {*config.keep, *ends}
    while True:
        step = training.step
        if training.logged < step and (step % config.log_every == 0 or step in ends):
            _log(training, folder, log, signals)
        if step and (step % config.save_every == 0 or step in kept):
            _save(training, folder, writer)
        if step == config.steps:
            return _written(training, folder, writer)
        signals.check(step)
        training.update()
        log.advance()


def _log(training, folder, log, signals):
    """One line of metrics."""
    loss = training.check_loss()
    rate = learning_rate(training.config.train, max(0, training.step - 1))
    line = {"step": training.step, "loss": loss if training.updates else None, "lr": rate}
    with writing_to(folder):
        training.devices.main_does(_measure, training, log, signals, line)
    training.logged = training.step
    training.loss_sum.zero_()
    training.updates = 0


def _measure(training, log, signals, line):
    """Add the validation errors to a line of metrics, write it and show it."""
    line["error"] = training.validate(signals)
    log.write(line, training.seconds)
    log.show(line)


def _save(training, folder, writer):
    """A checkpoint of weights that are sane; it is written while training goes on."""
    config = training.config.train
    if (training.step, training.logged) == training.restored:
        return  # what was measured on this very file stays valid
    training.check_loss()
    training.check_weights()
    state = training.state()  # on all processes: they add up their losses for it
    with writing_to(folder):
        training.devices.main_does(writer.save, folder, state, {*config.keep, *config.extended, config.steps})


def _written(training, folder, writer):
    """Wait until the last checkpoint is on disk."""
    with writing_to(folder):
        training.devices.main_does(writer.wait)


def _going_on(train, step):
    """In words, where a run goes on, and what an extension does to its learning rate."""
    if step not in train.extended:
        return f"resumed at step {step}"
    steps, before, after = planned_steps(train, step), learning_rate(train, step - 1), learning_rate(train, step)
    rate = f"stays {after:.3g}" if before == after else f"goes from {before:.3g} to {after:.3g}"
    return f"extended from {step} to {steps} steps: the learning rate {rate}, that of step {step} of {steps}"


def _greeting(config, model):
    task, mask = plugins.short(config.data.task), plugins.short(config.model.mask)
    parameters = sum(p.numel() for p in model.parameters())
    what = "a set encoder" if config.model.architecture == "deepset" else f"mask {mask}"
    on = "context and query predictions" if config.on_context else f"query predictions only{_why_not(config)}"
    text = f"{task}, {what}, {parameters:,} parameters, trained on {on}"
    if config.on_context and config.leaks:
        text += (
            f"\nnote: under {mask} a context prediction can see its own label, so the loss on the context"
            " is partly copying; --loss query trains only on queries"
        )
    return text


def _why_not(config):
    """Why context predictions are no good to train on; nothing if they are."""
    depends = config.dependencies()
    if depends.leaks:
        return ": a context prediction could see its own label"
    return "" if depends.informed else ": a context prediction hears of no other example's label"


def add_arguments(parser):
    parser.add_argument("--out", metavar="DIR", help="run folder (runs/TASK-MASK-PRESET-SEED)")
    parser.add_argument("--dry-run", action="store_true", help="print what would run and what it would cost")
    parser.add_argument("--json", action="store_true", help="print the last metrics, or the dry run, as JSON")
    parser.add_argument("--trust", action="store_true", help="run the mask.py or task.py beside the file of --config")
    add_config_flags(parser, preset="tiny", task=_task_of(parser))


def _task_of(parser):
    """The task that the command line or its --config names: its settings become flags."""
    early = type(parser)(parser.prog, add_help=False, allow_abbrev=False)
    early.add_argument("--task")
    early.add_argument("--config")
    early.add_argument("--trust", action="store_true")
    given, _ = early.parse_known_args(parser.argv)
    if given.task or not given.config:
        return given.task or DataConfig.task
    return runs.read_config_file(given.config, given.trust).data.task


def run(args):
    given = vars(args).copy()
    preset, file, trust, out = (given.pop(name) for name in ("preset", "config", "trust", "out"))
    dry, as_json = given.pop("dry_run"), given.pop("json")
    preset = preset or "tiny"
    if dry:
        config = choose_settings(preset, file, trust, given)
        return _dry_run(config, Path(out or default_folder(config, None if file else preset)), as_json)
    try:
        record = train(preset, out, file, trust, **given)
    except Failure as failure:
        if rank() == 0:
            print(f"minicl train: {failure}", file=sys.stderr)
        return 1
    if as_json and rank() == 0:
        print(json.dumps(record))
    return 0


def _dry_run(config, folder, as_json):
    devices = Devices(config.machine, config.train.batch_size)
    with devices.joined():
        config = choose_library(config, folder, devices)
        record = cost.dry_run(Training(config, devices))
    if devices.is_main:
        print(json.dumps(record) if as_json else cost.table(record))
    return 0
