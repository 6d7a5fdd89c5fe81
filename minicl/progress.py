"""How far a long command is: a bar on a terminal, plain lines elsewhere, both with the time that is left."""

import sys
import time

from tqdm import tqdm

from minicl.text import duration

FEW, PAUSE = 100, 10  # a line for each of so many parts; of more parts, a line after so many seconds


class Progress:
    """Called with what begins now, as many times as there are parts: `with Progress(3) as begin: begin("reading")`."""

    def __init__(self, total: int):
        self.total, self.begun, self.skipped, self.since, self.last = total, 0, 0, time.monotonic(), 0.0
        self.bar = tqdm(total=total, dynamic_ncols=True, leave=False) if sys.stderr.isatty() else None

    def __call__(self, text: str) -> None:
        if self.bar is not None:
            self.bar.set_description_str(text, refresh=False)
            self.bar.update(min(self.begun, 1))
        elif self.total <= FEW or time.monotonic() - self.last > PAUSE:
            self.last, done = time.monotonic(), self.begun - self.skipped
            left = (self.last - self.since) / max(1, done) * (self.total - self.begun)
            ahead = f", {duration(left)} left" if done else ""
            print(f"{text} ({self.begun + 1} of {self.total}{ahead})", file=sys.stderr, flush=True)
        self.begun += 1

    def skip(self, parts: int) -> None:
        """So many parts were done before."""
        self.begun, self.skipped = self.begun + parts, self.skipped + parts
        if self.bar is not None:
            self.bar.update(parts)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        if self.bar is not None:
            self.bar.close()
