"""How far a long command is: a bar on a terminal, plain lines elsewhere, both with the time that is left."""

import sys
import time

from tqdm import tqdm

from minicl.text import duration


class Progress:
    """Called with what begins now, as many times as there are parts: `with Progress(3) as begin: begin("reading")`."""

    def __init__(self, total: int):
        self.total, self.begun, self.since = total, 0, time.monotonic()
        self.bar = tqdm(total=total, dynamic_ncols=True, leave=False) if sys.stderr.isatty() else None

    def __call__(self, text: str) -> None:
        if self.bar is not None:
            self.bar.set_description_str(text, refresh=False)
            self.bar.update(min(self.begun, 1))
        else:
            left = (time.monotonic() - self.since) / max(1, self.begun) * (self.total - self.begun)
            ahead = f", {duration(left)} left" if self.begun else ""
            print(f"{text} ({self.begun + 1} of {self.total}{ahead})", file=sys.stderr, flush=True)
        self.begun += 1

    def __enter__(self):
        return self

    def __exit__(self, *_):
        if self.bar is not None:
            self.bar.close()
