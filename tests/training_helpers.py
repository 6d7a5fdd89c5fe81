"""What the tests of training share: a run that takes a second, real processes, and a comparison bit by bit."""

import subprocess
import sys
import time
from pathlib import Path

import torch

from minicl.checkpoint import checkpoints, read
from minicl.config import Config
from minicl.devices import Devices
from minicl.training import Training

ROOT = Path(__file__).parent.parent
TINY = {"n_dims": 2, "examples": 3, "max_examples": 8, "n_layer": 1, "n_head": 1, "n_embd": 8, "batch_size": 8}
TINY |= {"queries": 2, "steps": 60, "log_every": 7, "save_every": 5, "validate": 16, "threads": 1, "warmup": 5}
TINY |= {"linear": "torch"}  # no race: which library wins depends on the machine
MINICL = [sys.executable, "-m", "minicl"]
HANGING = 600  # seconds: a guard against a process that never ends, not a limit that a slow machine could meet


def flags(**settings):
    given = TINY | settings
    return [part for name, value in given.items() for part in ("--" + name.replace("_", "-"), str(value))]


def tiny_config(**settings):
    return Config.make("tiny", **(TINY | settings))


def trainer(**settings):
    config = tiny_config(**settings)
    return Training(config, Devices(config.machine, config.train.batch_size))


def start(*command, **options):
    """A process of its own, with what it prints."""
    return subprocess.Popen(
        [str(part) for part in command], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, **options
    )


def finish(process):
    try:
        out, err = process.communicate(timeout=HANGING)
    finally:
        process.kill()
    return subprocess.CompletedProcess(process.args, process.returncode, out, err)


def wait_for(condition, process=None):
    """Until the condition holds, while the process runs."""
    end = time.monotonic() + HANGING
    while not condition():
        assert time.monotonic() < end, "nothing happened"
        assert process is None or process.poll() is None, process.stderr.read()
        time.sleep(0.005)


def newest_step(run):
    return next(iter(checkpoints(run)), -1)


def assert_same_run(one, two):
    """The same metrics, and bit-identical final weights and optimiser state."""
    assert (one / "metrics.jsonl").read_bytes() == (two / "metrics.jsonl").read_bytes()
    a, b = (read(next(iter(checkpoints(run).values()))) for run in (one, two))
    assert a["step"] == b["step"]
    for name, value in a["model"].items():
        assert torch.equal(value, b["model"][name]), name
    for key, entry in a["optimizer"]["state"].items():
        for name, value in entry.items():
            assert torch.equal(value, b["optimizer"]["state"][key][name]), (key, name)


def numbers(folder):
    """{file: when it was written} of the study's numbers in folder/out."""
    return {f.name: f.stat().st_mtime_ns for f in (folder / "out" / "numbers").glob("*.json")}
