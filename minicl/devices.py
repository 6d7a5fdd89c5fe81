"""Where a run is computed: its device, the processes of `torchrun` that share it, and the signals that stop it."""

import contextlib
import dataclasses
import gc
import os
import signal
import threading
from collections.abc import Callable, Iterable, Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, distributed, nn

from minicl import runs
from minicl.checks import InputError, check
from minicl.config import Config
from minicl.linear import faster


def auto_device() -> str:
    """A GPU if there is one."""
    return "cuda" if torch.cuda.is_available() else "cpu"


def device_of(model: object) -> torch.device:
    """Where a model is; a method without parameters is on the CPU."""
    return next(model.parameters()).device if isinstance(model, nn.Module) else torch.device("cpu")


def find_device(name: str) -> torch.device:
    """The device of this name; InputError if there is none."""
    try:
        device = torch.device(name)
    except RuntimeError:
        raise InputError(f"device: got {name!r}, allowed: auto, cpu, cuda, cuda:0, …") from None
    count = torch.cuda.device_count() if device.type == "cuda" else int(device.type == "cpu")
    allowed = "auto, cpu, cuda" if torch.cuda.is_available() else "auto, cpu (there is no CUDA device here)"
    check((device.index or 0) < count, "device", repr(name), allowed)
    return device


@contextlib.contextmanager
def use_threads(threads: int | None) -> Iterator[None]:
    """Compute with so many CPU threads; None: as many as torch has now."""
    before = torch.get_num_threads()
    torch.set_num_threads(threads or before)
    try:
        yield
    finally:
        torch.set_num_threads(before)


@contextlib.contextmanager
def products(precision: str) -> Iterator[None]:
    """On a GPU, products of float32 matrices by TF32 if `high`; as before again afterwards."""
    before = torch.backends.cuda.matmul.allow_tf32
    torch.backends.cuda.matmul.allow_tf32 = precision == "high"
    try:
        yield
    finally:
        torch.backends.cuda.matmul.allow_tf32 = before


def rank() -> int:
    """This process's number among those of `torchrun`; 0 is the one that logs, saves and prints."""
    return int(os.environ.get("RANK", 0))


class Devices:
    """This process's device and its place among the processes of `torchrun`, if there are any."""

    def __init__(self, machine, batch_size: int):
        self.rank, self.world = rank(), int(os.environ.get("WORLD_SIZE", 1))
        self.threads = machine.threads
        name = auto_device() if machine.device == "auto" else machine.device
        self.device = find_device(f"cuda:{os.environ['LOCAL_RANK']}" if name == "cuda" and self.world > 1 else name)
        check(batch_size % self.world == 0, "batch_size", batch_size, f"a multiple of the {self.world} processes")
        self.share = batch_size // self.world
        if self.device.index is not None and self.device.type == "cuda":
            torch.cuda.set_device(self.device)
        if self.world > 1 and not distributed.is_initialized():
            self._meet()

    @contextlib.contextmanager
    def joined(self) -> Iterator[None]:
        """Compute with the threads that were asked for, and part from the other processes at the end."""
        with use_threads(self.threads):
            if self.world == 1:
                yield
                return
            try:
                yield
                distributed.barrier()
            finally:  # after an error without the barrier: the others may never come to it
                # A group that outlives this call would end while the interpreter shuts down, and abort the process.
                gc.collect()
                distributed.destroy_process_group()

    def _meet(self):
        # Before there is a group: imported later, the defaults of its functions would keep the group alive.
        import_module("torch.distributed.nn")
        try:
            distributed.init_process_group("nccl" if self.device.type == "cuda" else "gloo")
        except ValueError:
            raise InputError(f"WORLD_SIZE: got {self.world} from the environment, allowed: torchrun's") from None

    @property
    def is_main(self) -> bool:
        """Whether this is the process that logs and saves."""
        return self.rank == 0

    def total(self, tensor: Tensor, how=distributed.ReduceOp.SUM) -> Tensor:
        """Sum (or other reduction) over the processes, in place."""
        if self.world > 1:
            distributed.all_reduce(tensor, how)
        return tensor

    def average_gradients(self, parameters: Iterable[nn.Parameter]) -> None:
        """Every process's gradient becomes the mean over all, in one exchange."""
        if self.world > 1:
            gradients = [p.grad for p in parameters if p.grad is not None]
            flat = self.total(torch.cat([g.flatten() for g in gradients])) / self.world
            for gradient, mean in zip(gradients, flat.split([g.numel() for g in gradients]), strict=True):
                gradient.copy_(mean.view_as(gradient))

    def main_does(self, action: Callable[..., object], *args: object) -> None:
        """Let the main process do what may fail; the others wait for it, and leave without a word if it did."""
        if self.world == 1:
            action(*args)
            return
        failure = None
        try:
            if self.is_main:
                action(*args)
        except Exception as error:
            failure = error
        if self.total(torch.tensor(failure is not None, dtype=torch.int32, device=self.device)):
            raise failure or SystemExit(1)

    def from_main(self, value: Any) -> Any:
        """The main process's value, on all of them."""
        box = [value]
        if self.world > 1:
            distributed.broadcast_object_list(box, device=self.device)
        return box[0]


def choose_library(config: Config, folder: Path, devices: Devices) -> Config:
    """The config with its products' library decided: as the run began, or else by the main process, for all."""
    choice = config.machine.linear
    if choice == "auto" and devices.is_main:
        float32 = config.train.precision == "fp32" and torch.get_default_dtype() == torch.float32
        if (folder / "config.json").exists():
            with contextlib.suppress(InputError, KeyError, TypeError, AttributeError):  # `hold` says what is wrong
                choice = runs.read_settings(folder)["machine"].get("linear", "torch")
        elif devices.device.type == "cpu" and float32 and torch.backends.mkldnn.is_available():
            choice = faster(config.model.n_embd, rows=512)
    onednn = devices.total(torch.tensor(int(devices.is_main and choice == "onednn"), device=devices.device))
    check(not onednn or devices.device.type == "cpu", "linear", "onednn on a GPU", "auto, torch")
    check(not onednn or torch.backends.mkldnn.is_available(), "linear", "onednn, which torch lacks here", "auto, torch")
    return dataclasses.replace(
        config, machine=dataclasses.replace(config.machine, linear="onednn" if onednn else "torch")
    )


class Stop(Exception):
    """A signal asked to stop."""


class Signals:
    """Turns SIGTERM and SIGINT into a Stop at the next safe moment, on all processes at the same step."""

    def __init__(self, devices: Devices):
        self.devices, self.signal, self.before = devices, 0, {}

    def __enter__(self):
        if threading.current_thread() is threading.main_thread():  # no other thread may, and none receives signals
            for number in (signal.SIGTERM, signal.SIGINT):
                self.before[number] = signal.signal(number, self._note)
        return self

    def __exit__(self, *_):
        for number, handler in self.before.items():
            signal.signal(number, handler)

    def _note(self, number, frame):
        self.signal = number

    @property
    def name(self) -> str:
        return signal.Signals(self.signal).name

    @property
    def ending(self) -> BaseException:
        """What Python raises for such a signal, or exits with."""
        return KeyboardInterrupt() if self.signal == signal.SIGINT else SystemExit(128 + self.signal)

    def check(self, step: int | None = None) -> None:
        """Raise Stop if asked to. Several processes agree on it between steps; alone, one may stop anywhere."""
        asked = self.signal
        if self.devices.world > 1:
            if step is None or (self.devices.device.type == "cuda" and step % 10):  # agreeing would stall a GPU
                return
            asked = int(self.devices.total(torch.tensor(asked, device=self.devices.device), distributed.ReduceOp.MAX))
        if asked:  # not self.signal: one that came just now is agreed on at the next step
            self.signal = asked
            raise Stop
