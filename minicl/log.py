"""What a run reports while it trains: metrics.jsonl, timing.jsonl, and a progress bar or plain lines."""

import sys
import time
from pathlib import Path

from tqdm import tqdm

from minicl import runs
from minicl.text import duration


def say(devices, text: str) -> None:
    """A line on standard error, from the main process only."""
    if devices.is_main:
        print(text, file=sys.stderr, flush=True)


class Log:
    """The log of one run: every `log_every` steps a line of metrics and one of timing; a bar on a terminal."""

    def __init__(self, training, folder: Path):
        self.training, self.folder, self.devices = training, folder, training.devices
        self.steps = training.config.train.steps
        self.began, self.from_step = time.perf_counter(), training.step
        self.bar = None
        if self.devices.is_main and sys.stderr.isatty():
            self.bar = tqdm(total=self.steps, initial=training.step, unit="step", dynamic_ncols=True)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        if self.bar is not None:
            self.bar.close()

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
