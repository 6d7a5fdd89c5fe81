"""`make demo` trains two masks side by side: it shows both, and stops both when one fails or a signal comes."""

import os
import signal
import subprocess
import sys

import pytest
from training_helpers import ROOT, finish, newest_step, start

STANDS_IN = """
import os, sys, time
mask = sys.argv[sys.argv.index("--mask") + 1]
open(f"{mask}.pid", "w").write(str(os.getpid()))
print("step 0", file=sys.stderr, flush=True)
while not os.path.exists(f"{mask}.fails"):
    time.sleep(0.01)
sys.exit("minicl train: the disk is full")
"""


@pytest.fixture
def begun(tmp_path):
    """The demo with trainings that never end by themselves, once both have said something; and its folder."""
    (tmp_path / "minicl").mkdir()
    (tmp_path / "minicl" / "__init__.py").touch()
    (tmp_path / "minicl" / "__main__.py").write_text(STANDS_IN)
    process = start(sys.executable, ROOT / "demo.py", cwd=tmp_path, env={**os.environ, "PYTHONPATH": str(tmp_path)})
    try:
        said = sorted(process.stderr.readline() for _ in range(2))
        assert said == ["ar: step 0\n", "invicl: step 0\n"], "while they run"
        yield process, tmp_path
    finally:
        process.terminate()


def assert_none_is_left(folder):
    for file in folder.glob("*.pid"):
        with pytest.raises(ProcessLookupError):
            os.kill(int(file.read_text()), 0)


@pytest.mark.parametrize("mask", ["ar", "invicl"])
def test_if_one_fails_both_stop(begun, mask):
    process, folder = begun
    (folder / f"{mask}.fails").touch()
    result = finish(process)
    assert (result.returncode, result.stderr) == (1, f"{mask}: minicl train: the disk is full\n")
    assert_none_is_left(folder)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_stops_both(begun, number):
    process, folder = begun
    process.send_signal(number)
    assert finish(process).returncode == 128 + number
    assert_none_is_left(folder)


def test_both_are_trained(tmp_path):
    flags = ["--steps", "2", "--batch-size", "8", "--linear", "torch"]
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    process = subprocess.run(
        [sys.executable, ROOT / "demo.py", *flags], cwd=tmp_path, env=env, capture_output=True, text=True
    )
    assert process.returncode == 0, process.stderr
    for mask in ("ar", "invicl"):
        assert newest_step(tmp_path / "demo" / mask) == 2 and f"{mask}: step 2/2: loss" in process.stderr
