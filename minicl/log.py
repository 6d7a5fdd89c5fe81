"""What a run reports while it trains: metrics.jsonl, timing.jsonl, and a progress bar or plain lines."""

import sys
import time
from pathlib import Path

from tqdm import tqdm

from minicl import runs
from minicl.checks import InputError
from minicl.text import duration


def say(devices, text: str) -> None:
    """A line on standard error, from the main process only."""
    if devices.is_main:
        print(text, file=sys.stderr, flush=True)


def check_tensorboard() -> None:
    """Refuse --tensorboard where the package is missing, before anything is trained."""
    try:
        import torch.utils.tensorboard  # noqa: F401
    except ImportError:
        raise InputError("tensorboard: the package is not installed: pip install 'minicl[tensorboard]'") from None


class Board:
    """The lines of metrics.jsonl as scalars for TensorBoard."""

    def __init__(self, folder: Path):
        from torch.utils.tensorboard import SummaryWriter

        # All lines again: the steps of earlier files are purged, and a run may have begun without a board.
        self.writer = SummaryWriter(folder / "tensorboard", purge_step=0)
        file = folder / "metrics.jsonl"
        for line in runs.read_lines(file) if file.exists() else []:
            self.write(line)

    def write(self, metrics: dict) -> None:
        """On disk when this returns."""
        errors = {f"error@{n}": error for n, error in metrics["error"].items()}
        for name, value in {"loss": metrics["loss"], "lr": metrics["lr"], **errors}.items():
            if value is not None:
                self.writer.add_scalar(name, value, metrics["step"])
        self.writer.flush()


class Log:
    """The log of one run: every `log_every` steps a line of metrics and one of timing; a bar on a terminal."""

    def __init__(self, training, folder: Path):
        self.training, self.folder, self.devices = training, folder, training.devices
        self.steps = training.config.train.steps
        self.began, self.from_step = time.perf_counter(), training.step
        self.bar = self.board = None
        if self.devices.is_main and training.config.machine.tensorboard:
            self.board = Board(folder)
        if self.devices.is_main and sys.stderr.isatty():
            self.bar = tqdm(total=self.steps, initial=training.step, unit="step", dynamic_ncols=True)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        if self.bar is not None:
            self.bar.close()
        if self.board is not None:
            self.board.writer.close()

    def advance(self) -> None:
        if self.bar is not None:
            self.bar.update()

    def say(self, text: str) -> None:
        if self.bar is not None:
            self.bar.clear()
        say(self.devices, text)

    def write(self, metrics: dict, seconds: float) -> None:
        """To disk. metrics.jsonl has no times in it: it is a pure function of the config."""
        runs.append(self.folder / "timing.jsonl", {"step": metrics["step"], "seconds": round(seconds, 3)})
        runs.append(self.folder / "metrics.jsonl", metrics)
        if self.board is not None:
            self.board.write(metrics)

    def show(self, metrics: dict) -> None:
        """To the person at the keyboard: the newest metrics, the speed and how long it will take."""
        step, done = metrics["step"], metrics["step"] - self.from_step
        errors = " ".join(f"error@{n} {e:.3f}" for n, e in metrics["error"].items())
        loss = "" if metrics["loss"] is None else f"loss {metrics['loss']:.4f} "
        rate = done / (time.perf_counter() - self.began)
        speed = f"{rate * self.training.config.train.batch_size:.0f} prompts/s"
        if self.bar is not None:
            self.bar.set_postfix_str(f"{loss}{errors} {speed}")
            return
        left = f", {speed}, {duration((self.steps - step) / rate)} left" if done else ""
        self.say(f"step {step}/{self.steps}: {loss}{errors}{left}")
