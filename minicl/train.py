"""`minicl train`: train a strategy on a function class; interrupted anywhere, it resumes without a trace.

The state of a run is its weights, its optimiser and how far it is. Everything else, the prompts, their lengths, the
learning rate, is a pure function of (config, step), so a resumed run repeats the uninterrupted one bit by bit.
"""

import contextlib
import json
import math
import os
import signal
import sys
import time
from pathlib import Path

import torch
from torch import distributed
from tqdm import tqdm

from minicl import checkpoint
from minicl.config import Config, add_config_flags
from minicl.errors import InputError, check
from minicl.masks import short
from minicl.model import Transformer, auto_device
from minicl.optim import make_optimizer
from minicl.schedule import learning_rate, prompt_size
from minicl.timing import duration

TRAIN, VALIDATE = 0, 1  # streams of prompts: no run is validated on what any run was trained on


class Failure(Exception):
    """The run cannot go on, through no fault of the command: one line, exit status 1."""


class Stop(Exception):
    """A signal asked to stop."""


class Devices:
    """This process's device and its place among the processes of `torchrun`, if there are any."""

    def __init__(self, machine, batch_size):
        self.rank, self.world = int(os.environ.get("RANK", 0)), int(os.environ.get("WORLD_SIZE", 1))
        if machine.threads:
            torch.set_num_threads(machine.threads)
        name = auto_device() if machine.device == "auto" else machine.device
        if name == "cuda" and self.world > 1:
            name = f"cuda:{os.environ['LOCAL_RANK']}"
        try:
            self.device = torch.device(name)
        except RuntimeError:
            raise InputError(f"device: got {name!r}, allowed: auto, cpu, cuda, cuda:0, …") from None
        there = torch.cuda.device_count() if self.device.type == "cuda" else int(self.device.type == "cpu")
        allowed = "auto, cpu, cuda" if torch.cuda.is_available() else "auto, cpu (there is no CUDA device here)"
        check((self.device.index or 0) < there, "device", repr(name), allowed)
        if self.device.type == "cuda":
            torch.cuda.set_device(self.device)
        check(batch_size % self.world == 0, "batch_size", batch_size, f"a multiple of the {self.world} processes")
        self.share = batch_size // self.world
        if self.world > 1 and not distributed.is_initialized():
            try:
                distributed.init_process_group("nccl" if self.device.type == "cuda" else "gloo")
            except ValueError:
                raise InputError(f"WORLD_SIZE: got {self.world} from the environment, allowed: torchrun's") from None

    @property
    def first(self):
        """Whether this is the process that logs and saves."""
        return self.rank == 0

    def leave(self):
        """Part from the other processes, all at the same time."""
        if self.world > 1:
            distributed.barrier()
            distributed.destroy_process_group()

    def total(self, tensor, how=distributed.ReduceOp.SUM):
        """Sum (or other reduction) over the processes."""
        if self.world > 1:
            distributed.all_reduce(tensor, how)
        return tensor

    def first_does(self, action):
        """Let the first process do what may fail; the others wait for it, and leave without a word if it did."""
        if self.world == 1:
            return action()
        failure = None
        try:
            if self.first:
                action()
        except Exception as error:
            failure = error
        if self.total(torch.tensor(failure is not None, dtype=torch.int32, device=self.device)):
            self.leave()
            raise failure or SystemExit(1)


class Training:
    """A model, its optimiser, and the updates."""

    def __init__(self, config, devices):
        self.config, self.devices, self.task = config, devices, config.task
        torch.manual_seed(config.train.seed)
        self.model = Transformer(config.model).to(devices.device)
        if config.machine.compile:  # updates alone: the few other passes would each need a compilation of their own
            plain, compiled = self.model.propagate, torch.compile(self.model.propagate)
            self.model.propagate = lambda *args: (compiled if torch.is_grad_enabled() else plain)(*args)
        self.net = torch.nn.parallel.DistributedDataParallel(self.model) if devices.world > 1 else self.model
        self.optimizer = make_optimizer(self.model, config.train, devices.device)
        self.step = 0
        self.logged = -1  # the last step in metrics.jsonl
        self.seconds = 0.0  # spent on updates
        self.loss_sum = torch.zeros((), device=devices.device)  # since the last log, with the number of updates
        self.updates = 0
        self.bad_step = torch.full((), -1, device=devices.device)  # the first update whose loss was not finite

    def batch(self, step):
        """This process's share of a step's prompts: examples, their labels, queries, their labels."""
        n, dims = prompt_size(self.config, step)
        share, first = self.devices.share, self.devices.rank * self.devices.share
        seed, device = (self.config.train.seed, TRAIN, step), self.devices.device
        p = self.task.sample(share, n + self.config.data.queries, seed, first=first, device=device, dims=dims)
        return p.xs[:, :n], p.ys[:, :n], p.xs[:, n:], p.ys[:, n:]

    def loss(self, step):
        """Mean squared error of the predictions that are trained on, over the task's normaliser."""
        xs, ys, queries, targets = self.batch(step)
        bf16 = self.config.train.precision == "bf16"
        with torch.autocast(self.devices.device.type, torch.bfloat16) if bf16 else contextlib.nullcontext():
            out = self.net(xs, ys, queries, context=self.config.on_context)
        errors = (out.query.float() - targets).square()
        if self.config.on_context:
            errors = torch.cat([(out.context.float() - ys).square(), errors], dim=1)
        return errors.mean() / self.task.normaliser

    def update(self):
        train = self.config.train
        for group in self.optimizer.param_groups:
            group["lr"] = group["scale"] * learning_rate(train, self.step)
        loss = self.loss(self.step)
        loss.backward()
        if train.clip:
            torch.nn.utils.clip_grad_norm_(self.model.parameters(), train.clip)
        self.optimizer.step()
        self.optimizer.zero_grad()
        loss = loss.detach()
        self.step += 1
        self.loss_sum += loss
        self.updates += 1
        self.bad_step = torch.where((self.bad_step < 0) & ~loss.isfinite(), self.step, self.bad_step)

    def check_health(self):
        """The mean loss since the last log, if it is sane. It is read back, so this is for log and save steps only."""
        bad = int(self.devices.total(self.bad_step.clone(), distributed.ReduceOp.MAX))
        return self._sane(self.loss_sum, self.updates, bad if bad >= 0 else self.step)

    @torch.no_grad()
    def check_weights(self):
        """Before they are saved: the losses so far were those of older weights, so these answer the next prompts."""
        self._sane(self.loss(self.step), 1, self.step + 1)

    def _sane(self, losses, updates, step):
        """The mean over updates and processes, from the sum over this process's updates; Failure if it is absurd."""
        loss = float(self.devices.total(losses.clone())) / self.devices.world / max(1, updates)
        if not math.isfinite(loss):
            what = f"the loss of step {step} is not finite"
        elif loss > 100:
            what = f"the loss exploded to {loss:.3g} times that of answering 0, by step {step}"
        else:
            return loss
        raise Failure(f"{what}; try a lower --lr, a longer --warmup or --clip 1, with another --out")

    @torch.inference_mode()
    def validate(self, stop):
        """Normalised query error at half and all of the training length, on prompts that every run shares."""
        self.model.eval()
        error = {}
        for n in sorted({max(1, self.config.data.examples // 2), self.config.data.examples}):
            stop()
            p = self.task.sample(self.config.train.validate, n + 1, (VALIDATE,), device=self.devices.device)
            answer = self.model(p.xs[:, :n], p.ys[:, :n], p.queries[:, n:], context=False).query
            error[str(n)] = float((answer - p.targets[:, n:]).square().mean()) / self.task.normaliser
        self.model.train()
        return error

    def clock(self, start):
        """Count the time since `start` as spent on updates, and start anew."""
        now = time.perf_counter()
        self.seconds += now - start
        return now

    def state(self):
        return {
            "config": self.config.to_json(),
            "step": self.step,
            "logged": self.logged,
            "seconds": self.seconds,
            "loss_sum": self.devices.total(self.loss_sum.clone()) / self.devices.world,
            "updates": self.updates,
            "model": self.model.state_dict(),
            "optimizer": self.optimizer.state_dict(),
        }

    def restore(self, state):
        rows = self.config.differences(Config.from_json(state["config"]))
        if rows:
            raise InputError(f"the checkpoint of step {state['step']} was saved with other settings: {'; '.join(rows)}")
        self.model.load_state_dict(state["model"])
        if state["optimizer"] is not None:  # an exported run has none: it is finished
            self.optimizer.load_state_dict(state["optimizer"])
        self.loss_sum.copy_(state["loss_sum"])
        for name in ("step", "logged", "seconds", "updates"):
            setattr(self, name, state[name])


def train(config, out):
    """Train into the folder `out`, from where it stopped; returns the last line of its metrics."""
    devices, out = Devices(config.machine, config.train.batch_size), Path(out)
    with _Signals(devices) as stop, contextlib.ExitStack() as held:
        devices.first_does(lambda: held.enter_context(_folder(config, out)))
        training = Training(config, devices)
        _say(devices, _greeting(training))
        state = checkpoint.newest(out, devices.device)
        if state is not None:
            training.restore(state)
        for name in ("metrics.jsonl", "timing.jsonl"):
            devices.first_does(lambda name=name: checkpoint.cut(out / name, training.logged))
        if training.step == training.logged == config.train.steps:
            _say(devices, f"{out} is finished: {config.train.steps} steps")
        else:
            _loop(training, out, devices, stop)
        _say(devices, f"next: minicl evaluate {out}")
    devices.leave()
    if devices.first:
        lines = (out / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
        return json.loads(lines[-1]) if lines else None


def _loop(training, out, devices, stop):
    config, steps = training.config.train, training.config.train.steps
    progress = _Progress(training, steps, devices)
    keep = {*config.keep, steps}

    def save(start):
        training.check_health()
        training.clock(start)
        training.check_weights()
        state = training.state()  # on all processes: they add up their losses for it
        devices.first_does(lambda: checkpoint.save(out, state, keep))
        return time.perf_counter()  # the clock stands meanwhile

    def updates():
        start = time.perf_counter()
        try:
            while True:
                last = training.step == steps
                if (training.step % config.log_every == 0 or last) and training.logged < training.step:
                    loss = training.check_health()
                    start = training.clock(start)
                    _log(training, out, loss, stop, progress)
                    start = time.perf_counter()  # the clock stands while we look
                if training.step and (training.step % config.save_every == 0 or last or training.step in keep):
                    start = save(start)
                if last:
                    break
                stop(training.step)
                training.update()
                progress.advance()
        except Stop:
            save(start)
            progress.say(f"stopped by {stop.name} after {training.step} steps and saved; the same command resumes")
            devices.leave()
            raise SystemExit(128 + stop.signal) from None

    with progress:
        if training.step:
            progress.say(f"resumed at step {training.step}")
        try:
            updates()
        except Failure as failure:
            kept = next(iter(checkpoint.checkpoints(out)), None)
            where = "no checkpoint was saved before" if kept is None else f"the checkpoint of step {kept} stays"
            raise Failure(f"{failure} ({where})") from None
        except OSError as error:
            kept = next(iter(checkpoint.checkpoints(out)), "none")
            why = error.strerror or error
            raise Failure(f"cannot write to {out}: {why}; its newest whole checkpoint: step {kept}") from error


def _log(training, out, loss, stop, progress):
    """One line of metrics (a pure function of the config: no times in it), one of timing."""
    line = {"step": training.step, "loss": loss if training.updates else None}
    line |= {"lr": learning_rate(training.config.train, max(0, training.step - 1))}

    def look():
        line["error"] = training.validate(stop)
        checkpoint.append(out / "timing.jsonl", {"step": training.step, "seconds": round(training.seconds, 3)})
        checkpoint.append(out / "metrics.jsonl", line)

    training.devices.first_does(look)
    progress.show(line)
    training.logged = training.step
    training.loss_sum.zero_()
    training.updates = 0


@contextlib.contextmanager
def _folder(config, out):
    """Make or check the run folder, and hold it."""
    if out.exists() and not out.is_dir():
        raise InputError(f"out: got {out}, which is a file, allowed: a folder")
    if out.exists() and not (out / "config.json").exists() and any(not f.name.startswith(".") for f in out.iterdir()):
        raise InputError(f"out: got {out}, which is not empty and no run folder, allowed: a new folder or a run's")
    try:
        out.mkdir(parents=True, exist_ok=True)
        with checkpoint.lock(out):
            if not (out / "config.json").exists():
                text = json.dumps(config.to_json(), indent=1)
                checkpoint.write_atomically(out / "config.json", text.encode())
                if config.mask_sha256:
                    source = Path(config.model.mask.rpartition(":")[0])
                    checkpoint.write_atomically(out / "mask.py", source.read_bytes())
            else:
                rows = config.differences(checkpoint.read_config(out))
                if rows:
                    raise InputError(f"{out} was started with other settings: {'; '.join(rows)}; give another --out")
            yield
    except OSError as error:
        raise Failure(f"cannot write to {out}: {error.strerror or error}") from error


class _Signals:
    """Turns SIGTERM and SIGINT into a Stop at the next safe moment, on all processes at the same step."""

    def __init__(self, devices):
        self.devices, self.signal, self.before = devices, 0, {}

    def __enter__(self):
        for number in (signal.SIGTERM, signal.SIGINT):
            self.before[number] = signal.signal(number, self._note)
        return self

    def __exit__(self, *_):
        for number, handler in self.before.items():
            signal.signal(number, handler)

    def _note(self, number, frame):
        self.signal = number

    @property
    def name(self):
        return signal.Signals(self.signal).name

    def __call__(self, step=None):
        """Raise Stop if asked to. Several processes agree on it between steps; alone, one may stop anywhere."""
        asked = self.signal
        if self.devices.world > 1:
            if step is None or (self.devices.device.type == "cuda" and step % 10):  # agreeing would stall a GPU
                return
            asked = int(self.devices.total(torch.tensor(asked, device=self.devices.device), distributed.ReduceOp.MAX))
        if asked:  # not self.signal: one that came just now is agreed on at the next step
            self.signal = asked
            raise Stop


class _Progress:
    """A tqdm bar on a terminal, plain lines elsewhere; silent on all processes but the first."""

    def __init__(self, training, steps, devices):
        self.training, self.steps, self.first = training, steps, devices.first
        self.bar = None
        if self.first and sys.stderr.isatty():
            self.bar = tqdm(total=steps, initial=training.step, unit="step", dynamic_ncols=True)
        self.began, self.from_step = time.perf_counter(), training.step

    def __enter__(self):
        return self

    def __exit__(self, *_):
        if self.bar is not None:
            self.bar.close()

    def advance(self):
        if self.bar is not None:
            self.bar.update()

    def say(self, text):
        if self.bar is not None:
            self.bar.clear()
        if self.first:
            print(text, file=sys.stderr, flush=True)

    def show(self, line):
        """The newest metrics, the speed and how long it will take."""
        if not self.first:
            return
        done = self.training.step - self.from_step
        errors = " ".join(f"error@{n} {e:.3f}" for n, e in line["error"].items())
        loss = "" if line["loss"] is None else f"loss {line['loss']:.4f} "
        rate = done / (time.perf_counter() - self.began)
        speed = f"{rate * self.training.config.train.batch_size:.0f} prompts/s"
        if self.bar is not None:
            self.bar.set_postfix_str(f"{loss}{errors} {speed}")
            return
        left = f", {duration((self.steps - self.training.step) / rate)} left" if done else ""
        self.say(f"step {self.training.step}/{self.steps}: {loss}{errors}" + (f", {speed}{left}" if done else ""))


def _say(devices, text):
    if devices.first:
        print(text, file=sys.stderr, flush=True)


def _greeting(training):
    config = training.config
    parameters = sum(p.numel() for p in training.model.parameters())
    on = "context and query predictions" if config.on_context else "query predictions alone"
    text = f"{config.data.task}, mask {config.model.mask}, {parameters:,} parameters, trained on {on}"
    if config.on_context and config.leaks:
        text += (
            f"\nnote: under {config.model.mask} a context prediction can see its own label, so the loss on the context"
            " is partly copying; --loss query trains on queries alone"
        )
    return text


def add_arguments(parser):
    parser.add_argument("--out", metavar="DIR", help="run folder (runs/TASK-MASK-PRESET-SEED)")
    parser.add_argument("--dry-run", action="store_true", help="print what would run and what it would cost")
    parser.add_argument("--json", action="store_true", help="print the last metrics, or the dry run, as JSON")
    add_config_flags(parser, preset="demo")


def run(args):
    given = vars(args).copy()
    preset, out, dry, as_json = (given.pop(name) for name in ("preset", "out", "dry_run", "json"))
    config = Config.make(preset, **given)
    if dry:
        from minicl import cost

        devices = Devices(config.machine, config.train.batch_size)
        record = cost.dry_run(config, devices)
        if devices.first:
            print(json.dumps(record) if as_json else cost.table(record))
        devices.leave()
        return 0
    out = out or f"runs/{config.data.task}-{short(config.model.mask)}-{preset}-{config.train.seed}"
    try:
        last = train(config, out)
    except Failure as failure:
        print(f"minicl train: {failure}", file=sys.stderr)
        return 1
    if as_json and last:
        print(json.dumps(last))
    return 0
