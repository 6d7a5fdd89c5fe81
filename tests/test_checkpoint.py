"""Checkpoints: whole or not at all, and never a way to run code."""

import os
import pickle
import re
import shutil

import pytest
import torch
from training_helpers import assert_same_run, flags, newest_step

from minicl import load
from minicl.checkpoint import checkpoints, newest, read, save, write_atomically
from minicl.checks import InputError


def test_a_state_is_read_as_it_was_saved(tmp_path):
    state = {"step": 3, "config": {"a": [1, None]}, "model": {"w": torch.randn(2, 3), "i": torch.tensor(4)}}
    state["optimizer"] = {"state": {0: {"m": torch.randn(3, dtype=torch.bfloat16)}}, "groups": [{"lr": 0.1}]}
    save(tmp_path, state)
    again = read(checkpoints(tmp_path)[3])
    assert again["step"] == 3 and again["config"] == state["config"]
    assert torch.equal(again["model"]["w"], state["model"]["w"]) and again["optimizer"]["groups"] == [{"lr": 0.1}]
    assert torch.equal(again["optimizer"]["state"][0]["m"], state["optimizer"]["state"][0]["m"])


def test_which_checkpoints_stay(tmp_path):
    for step in range(1, 8):
        save(tmp_path, {"step": step, "config": {}, "model": {}}, keep={2, 4})
    assert list(checkpoints(tmp_path)) == [7, 6, 4, 2]
    save(tmp_path, {"step": 5, "config": {}, "model": {}}, keep={2, 4})
    assert list(checkpoints(tmp_path)) == [7, 6, 5, 4, 2], "newer ones are another run's affair"


def test_a_file_is_replaced_whole_or_not_at_all(tmp_path, monkeypatch):
    file = tmp_path / "file"
    write_atomically(file, b"old")

    def full_disk(_):
        raise OSError("no space left")

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", full_disk)
        with pytest.raises(OSError, match="no space"):
            write_atomically(file, b"new")
    assert file.read_bytes() == b"old" and list(tmp_path.iterdir()) == [file]
    write_atomically(file, b"new")
    assert file.read_bytes() == b"new" and list(tmp_path.iterdir()) == [file]


class Malicious:
    def __init__(self, file):
        self.file = file

    def __reduce__(self):
        return os.system, (f"touch {self.file}",)


def spoil(file, fault, trap):
    data = file.read_bytes()
    middle = len(data) // 2
    if fault == "malicious":
        file.write_bytes(pickle.dumps({"format": Malicious(trap)}, protocol=2))
    elif fault == "malicious zip":
        torch.save({"format": Malicious(trap)}, file)
    elif fault == "foreign":
        torch.save({"weights": torch.zeros(3)}, file)
    else:
        flipped = data[:middle] + bytes(b ^ 0xFF for b in data[middle : middle + 64]) + data[middle + 64 :]
        file.write_bytes({"truncated": data[:middle], "flipped": flipped, "empty": b"", "text": b"hello"}[fault])


@pytest.mark.parametrize(
    "fault", ["truncated", "flipped", "empty", "foreign", "malicious", "malicious zip", "text"]
)  # fmt: skip
def test_a_bad_checkpoint_is_named_and_passed_over(cli, tmp_path, whole, fault):
    run, trap = tmp_path / "run", tmp_path / "trap"
    shutil.copytree(whole, run)
    file = checkpoints(run)[60]
    spoil(file, fault, trap)
    with pytest.raises(InputError, match=re.escape(str(file))):
        load(file)
    result = cli("train", *flags(), "--out", run)
    assert result.returncode == 0 and not trap.exists()
    assert f"passed over {file}" in result.stderr and "resumed at step 55" in result.stderr
    assert_same_run(whole, run)


def test_why_a_file_is_no_checkpoint(tmp_path, whole):
    torch.save({"format": Malicious(tmp_path / "trap")}, tmp_path / "bad.pt")
    with pytest.raises(InputError, match="more than tensors"):
        load(tmp_path / "bad.pt")
    state = torch.load(checkpoints(whole)[60], weights_only=True)
    for changed, words in (
        ({"step": 61}, "damaged"),
        ({"format": "other"}, "lacks the mark"),
        ({"model": 3}, "damaged"),
    ):
        torch.save(state | changed, tmp_path / "bad.pt")
        with pytest.raises(InputError, match=words):
            load(tmp_path / "bad.pt")
    with pytest.raises(InputError, match="no such file"):
        load(tmp_path / "gone.pt")
    assert not (tmp_path / "trap").exists()


@pytest.mark.parametrize("changed", [{"model": 3}, {"model": {}}, {"model": {"w": torch.zeros(1)}}, {"config": 3}])
def test_a_whole_checkpoint_whose_content_makes_no_sense(tmp_path, whole, changed):
    save(tmp_path, read(checkpoints(whole)[60]) | changed)
    with pytest.raises(InputError):
        load(checkpoints(tmp_path)[60])


def test_a_checkpoint_that_lacks_something(tmp_path, whole):
    state = read(checkpoints(whole)[60])
    del state["config"]
    save(tmp_path, state)
    with pytest.raises(InputError, match="damaged"):
        load(checkpoints(tmp_path)[60])


def test_when_no_checkpoint_is_whole_nothing_is_thrown_away(cli, tmp_path, whole):
    run = tmp_path / "run"
    shutil.copytree(whole, run)
    for file in checkpoints(run).values():
        file.write_bytes(b"torn")
    before = (run / "metrics.jsonl").read_bytes()
    result = cli("train", *flags(), "--out", run)
    assert result.returncode == 2 and "none of its checkpoints is whole" in result.stderr.splitlines()[-1]
    assert (run / "metrics.jsonl").read_bytes() == before and len(checkpoints(run)) == 2
    assert newest(tmp_path) is None, "there is none at all"


def test_a_device_that_is_not_there_is_no_damage(tmp_path, whole):
    with pytest.raises(InputError, match="device: got 'cuda', allowed: auto, cpu"):
        load(whole, device="cuda")


def test_a_checkpoint_of_other_settings_is_refused(cli, tmp_path, whole):
    run = tmp_path / "run"
    shutil.copytree(whole, run)
    state = read(checkpoints(run)[60])
    state["config"]["train"]["lr"] = 0.5
    save(run, state)
    result = cli("train", *flags(), "--out", run)
    assert result.returncode == 2
    assert "step 60 was saved with other settings: lr 0.5 there, 0.001 here" in result.stderr.splitlines()[-1]
    assert newest_step(run) == 60
