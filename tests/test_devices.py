"""Devices, the processes of torchrun, and signals."""

import json
import os
import re
import signal
import sys
import threading

import pytest
import torch
from conftest import assert_one_line
from training_helpers import ROOT, finish, flags, newest_step, start, tiny_config

from minicl import devices
from minicl.checks import InputError
from minicl.config import Config
from minicl.devices import Devices, Signals, Stop, find_device, use_threads
from minicl.training import Training

TORCHRUN = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node=2"]
WATCHED = """
import glob, os, signal, sys, time
from minicl.cli import main
from minicl.devices import Signals

stop_at, plain = int(sys.argv.pop(1)), Signals.check

def check(self, step=None):
    if step == stop_at and self.devices.is_main:  # as if someone stopped torchrun just now
        os.kill(os.getppid(), signal.SIGTERM)
        while not self.signal:
            time.sleep(0.01)
    plain(self, step)

Signals.check = check
try:
    status = main(command="train")
finally:
    names = [open(file).read().strip() for file in glob.glob("/proc/self/task/*/comm")]
    print("threads of gloo:", sum("gloo" in name for name in names), file=sys.stderr)
sys.exit(status)
"""


def test_find_device():
    assert find_device("cpu") == torch.device("cpu")
    for name in ("tpu", "cuda:99", "meta", ""):
        with pytest.raises(InputError, match=f"device: got '{name}', allowed: auto, cpu"):
            find_device(name)


def test_one_gpu_needs_no_number(monkeypatch):
    """`auto` is the device "cuda" there. torch.cuda.set_device takes none without an index; more GPUs have one each."""
    chosen = []

    def set_device(device):
        chosen.append(torch.cuda._utils._get_device_index(device))  # what torch does first

    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "set_device", set_device)
    assert Devices(Config.make("tiny").machine, 8).device == torch.device("cuda") and not chosen
    assert Devices(Config.make("tiny", device="cuda:1").machine, 8).device.index == 1 and chosen == [1]


def test_torch_without_onednn(tmp_path, monkeypatch):
    """As on macOS: nothing asks for it, unless somebody does."""
    monkeypatch.setattr(torch.backends.mkldnn, "is_available", lambda: False)
    monkeypatch.setattr(devices, "faster", None)
    for linear, config in ((name, tiny_config(linear=name)) for name in ("auto", "onednn")):
        here = Devices(config.machine, config.train.batch_size)
        if linear == "auto":
            assert devices.choose_library(config, tmp_path, here).machine.linear == "torch"
        else:
            with pytest.raises(InputError, match="linear: got onednn, which torch lacks here, allowed: auto, torch"):
                devices.choose_library(config, tmp_path, here)


def test_threads_are_put_back():
    before = torch.get_num_threads()
    with use_threads(before + 1):
        assert torch.get_num_threads() == before + 1
        with use_threads(None):
            assert torch.get_num_threads() == before + 1
    with pytest.raises(ZeroDivisionError), use_threads(before + 2):
        raise ZeroDivisionError
    assert torch.get_num_threads() == before


def test_small_presets_compute_on_one_thread(monkeypatch):
    with use_threads(3):
        for settings, threads in (({}, 1), ({"threads": 2}, 2), ({"threads": None}, 3)):
            config = tiny_config(**{"threads": 1} | settings)
            with Devices(config.machine, 8).joined():
                assert torch.get_num_threads() == threads
            assert torch.get_num_threads() == 3


def test_two_processes_share_the_batch_of_one():
    config = tiny_config()
    one = Training(config, Devices(config.machine, 8)).batch(5)
    parts = []
    for rank in range(2):
        devices = Devices(config.machine, 8)
        devices.rank, devices.share = rank, 4
        parts.append(Training(config, devices).batch(5))
    for whole_tensor, first, second in zip(one, *parts, strict=True):
        assert torch.equal(whole_tensor, torch.cat([first, second]))


def test_a_world_without_torchrun(cli, monkeypatch, tmp_path):
    monkeypatch.setenv("WORLD_SIZE", "2")
    assert_one_line(cli("train", *flags()), "WORLD_SIZE", "torchrun")
    assert_one_line(cli("train", *flags(batch_size=7)), "batch_size: got 7", "a multiple of the 2 processes")
    assert not list(tmp_path.iterdir())


def test_a_signal_becomes_a_stop_at_the_next_check():
    before = signal.getsignal(signal.SIGTERM)
    with Signals(Devices(tiny_config().machine, 8)) as signals:
        signals.check()
        os.kill(os.getpid(), signal.SIGTERM)
        with pytest.raises(Stop):
            signals.check()
        assert signals.name == "SIGTERM" and signals.ending.code == 143
    assert signal.getsignal(signal.SIGTERM) is before


def test_outside_of_the_main_thread_signals_are_left_alone():
    before, inside = signal.getsignal(signal.SIGINT), []

    def work():
        with Signals(Devices(tiny_config().machine, 8)) as signals:
            signals.check()
            inside.append(signal.getsignal(signal.SIGINT))

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert inside == [before] and signal.getsignal(signal.SIGINT) is before


def torchrun(script, *arguments):
    result = finish(start(*TORCHRUN, script, *arguments, env=os.environ | {"OMP_NUM_THREADS": "1"}, cwd=ROOT))
    assert "terminate called" not in result.stderr and "SIGABRT" not in result.stderr, result.stderr
    return result


@pytest.fixture
def watched(tmp_path):
    """Run `minicl train` under torchrun, with SIGTERM at a step. A thread of gloo that outlives it might abort it."""

    def run(*arguments, stop_at=-1):
        (tmp_path / "watched.py").write_text(WATCHED)
        result = torchrun(tmp_path / "watched.py", stop_at, *arguments)
        assert set(re.findall(r"threads of gloo: (\d+)", result.stderr)) == {"0"}, result.stderr
        return result

    return run


def test_two_gloo_processes_train_as_one(cli, watched, tmp_path):
    settings = flags(steps=120, log_every=20, save_every=1000, mask="invicl")
    assert cli("train", *settings, "--out", "one").returncode == 0
    command = [*settings, "--out", tmp_path / "two"]
    result = watched(*command, stop_at=40)
    assert result.returncode and result.stderr.count("stopped by SIGTERM after 40 steps") == 1, result.stderr
    assert newest_step(tmp_path / "two") == 40
    result = watched(*command, "--json")
    assert result.returncode == 0 and result.stderr.count("resumed at step 40") == 1, result.stderr
    assert json.loads(result.stdout)["step"] == 120, "one process prints"
    assert "is finished" in torchrun("train.py", *command).stderr
    files = (tmp_path / run / "metrics.jsonl" for run in ("one", "two"))
    one, two = ([json.loads(line) for line in file.read_text().splitlines()] for file in files)
    assert [line["step"] for line in one] == [line["step"] for line in two] == list(range(0, 121, 20))
    for a, b in zip(one, two, strict=True):  # rounding differs, and grows with the steps
        rel = 1e-4 if a["step"] <= 20 else 1e-2
        assert (a["loss"] or 0) == pytest.approx(b["loss"] or 0, rel=rel)
        assert a["error"] == pytest.approx(b["error"], rel=10 * rel)
    result = watched(*command, "--steps", "124")
    assert result.returncode == 0 and result.stderr.count("extended from 120 to 124 steps") == 1, result.stderr
    assert newest_step(tmp_path / "two") == 124


@pytest.mark.parametrize(
    "extra, words",
    [
        (["--seed", "9"], "was started with other settings"),
        ([], "cannot write to"),
        (["--lr", "1e30", "--clip", "0", "--warmup", "0", "--out", "bad"], "the loss of step 2 is not finite"),
    ],
)
def test_what_goes_wrong_under_torchrun_is_said_once(cli, watched, tmp_path, extra, words):
    assert cli("train", *flags(steps=5), "--out", "run").returncode == 0
    (tmp_path / "run" / "metrics.jsonl").unlink()
    (tmp_path / "run" / "metrics.jsonl").mkdir()
    extra = [str(tmp_path / part) if part == "bad" else part for part in extra]
    result = watched(*flags(steps=5), "--out", tmp_path / "run", *extra)
    assert result.returncode and result.stdout == ""
    lines = [line for line in result.stderr.splitlines() if line.startswith("minicl train: ")]
    assert len(lines) == 1 and words in lines[0] and "[rank1]" not in result.stderr, result.stderr
