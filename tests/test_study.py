"""The study: from one command to pictures and verdicts, with real runs at scale smoke."""

import json
import os
import re
import shutil
import signal
import subprocess
import sys

import pytest
from training_helpers import numbers, wait_for

from minicl import load
from minicl.checkpoint import checkpoints, read
from minicl.cli import main
from minicl.study import claims, plan
from minicl.study.figures import make_run
from minicl.study.numbers import Shelf

DRAWN = (1, 2, 3, 4, 5, 6, 9, 10, 11, 13, 17)  # one of each kind of picture
ONLY = ("--only", ",".join(map(str, DRAWN)))


def start(folder, *extra):
    command = [sys.executable, "-m", "minicl", "study", "--scale", "smoke", *extra]
    command += ["--out", str(folder / "out"), "--runs", str(folder / "runs")]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def finish(process, timeout=400):
    out, err = process.communicate(timeout=timeout)
    return subprocess.CompletedProcess(process.args, process.returncode, out, err)


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """The study at scale smoke, interrupted once and continued."""
    folder = tmp_path_factory.mktemp("smoke")
    process = start(folder, *ONLY)
    wait_for(lambda: len(numbers(folder)) >= 2)
    process.send_signal(signal.SIGTERM)
    stopped = finish(process)
    assert stopped.returncode == 143 and "the same command goes on" in stopped.stderr
    before = numbers(folder)
    result = finish(start(folder, *ONLY))
    assert result.returncode == 0, result.stderr
    assert len(before) >= 2 and before.items() <= numbers(folder).items(), "what was there is not done again"
    return folder


def test_everything_is_drawn_and_judged(whole):
    pictures = {f.name for f in (whole / "out").glob("*.png")}
    assert pictures == {f"figure{n}.png" for n in DRAWN}
    assert all((whole / "out" / p).stat().st_size > 5000 for p in pictures)
    text = (whole / "out" / "claims.md").read_text()
    assert text.count("*Rule.*") == len(claims.CLAIMS)
    for number, word in {"3": "not decided", "5": "not tested here", "11": "not run"}.items():
        assert re.search(rf"\n## {number}\..*\n\n\*\*{word}\*\*", text), "one seed decides nothing"


def test_models_for_demonstrations_stay_with_the_numbers(whole):
    for mask in plan.SHOWN:
        folder = whole / "out" / "models" / mask
        (original,) = (f for f in (whole / "runs").glob(f"linear-{mask}-0-*") if f.is_dir())
        ours, theirs = load(folder).state_dict(), load(original).state_dict()
        assert all(ours[name].equal(theirs[name]) for name in theirs)
        (state,) = map(read, checkpoints(folder).values())
        assert state["optimizer"] is None and len(checkpoints(original)) > 1
    flags = ["evaluate", str(folder), "--prompts", "8", "--baselines", "none"]
    assert main(flags) == 0, "as a run folder does"


def test_verdicts_use_all_seeds_that_there_are(whole, tmp_path):
    """Also where one strategy has more than others, and when fewer are asked for now."""
    folder = tmp_path / "copy"
    shutil.copytree(whole / "out", folder / "out")
    first = next((folder / "out" / "numbers").glob("linear-nope-0-*"))
    content = json.loads(first.read_text())
    content["depends_on"]["config"]["train"]["seed"] = 1
    first.with_name("linear-nope-1-00000000.json").write_text(json.dumps(content))
    (folder / "runs").write_text("")
    assert finish(start(folder, "--only", "7")).returncode == 2, "no place for the run folders"
    (folder / "runs").unlink()
    result = finish(start(folder, "--only", "1", "--seeds", "1"))
    assert result.returncode == 0, result.stderr
    text = (folder / "out" / "claims.md").read_text()
    assert re.search(r"ar is better than nope: .* ar \S+ \(1 seed\), nope .* 2 seeds\)", text)


def test_a_second_call_only_redraws(whole):
    before = numbers(whole)
    (whole / "out" / "figure1.png").unlink()
    result = finish(start(whole, *ONLY))
    assert result.returncode == 0 and "seed 0" not in result.stderr + result.stdout
    assert numbers(whole) == before and (whole / "out" / "figure1.png").exists()


def test_a_new_run_makes_every_picture_of_it_new(whole, tmp_path):
    shutil.copytree(whole / "out", tmp_path / "out")
    pictures = {n: tmp_path / "out" / f"figure{n}.png" for n in (1, 3, 6, 11, 13)}
    next((tmp_path / "out" / "numbers").glob("linear-nope-0-*")).unlink()
    before = {n: file.stat().st_mtime_ns for n, file in pictures.items()}
    assert finish(start(tmp_path, "--only", "1")).returncode == 0
    assert [n for n, file in pictures.items() if file.stat().st_mtime_ns > before[n]] == [1, 3, 11]


def test_a_mask_or_a_seed_more_trains_only_what_is_new(whole, tmp_path, capsys):
    file = tmp_path / "my.py"
    file.write_text("def window(q, k):\n    return (k.example < q.example) & (q.example - k.example <= 2)\n")
    flags = ["study", "--scale", "smoke", "--out", str(whole / "out"), "--runs", str(whole / "runs")]
    flags += ["--only", "1,4,6", "--masks", f"ar,boe,invicl,{file}:window"]
    assert main([*flags, "--dry-run", "--json"]) == 0
    plan = json.loads(capsys.readouterr().out)
    assert [(r["name"].rpartition(":")[2], r["seed"]) for r in plan if r["state"] == "missing"] == [("window", 0)]
    assert all((r["flops_left"] > 0) == (r["state"] == "missing") for r in plan)
    assert main([*flags, "--seeds", "2", "--dry-run"]) == 0
    assert re.search(r"5 of 8 runs to do.*\n\S+ FLOP, which is .* on one GPU", capsys.readouterr().out)
    claimed = (whole / "out" / "claims.md").stat().st_mtime_ns
    assert main(flags) == 0
    assert "figure 6: it does not show boe\n" in capsys.readouterr().err
    for name in ("figure1-ar-boe-invicl-window", "figure4-ar-invicl-window", "figure6-ar-invicl-window"):
        assert (whole / "out" / f"{name}.png").exists()
    assert (whole / "out" / "claims.md").stat().st_mtime_ns == claimed, "the paper's claims are about its own masks"


def test_a_failing_run_does_not_stop_the_rest(tmp_path):
    shelf = Shelf(tmp_path / "out", tmp_path / "runs", "smoke")
    blocked = make_run(shelf.scale, "linear", "ar", 0)
    (tmp_path / "runs").mkdir()
    shelf.training(blocked).write_text("in the way")
    result = finish(start(tmp_path, "--only", "1", "--masks", "ar,boe", "--seeds", "1"))
    assert result.returncode == 1
    last = result.stderr.strip().splitlines()[-1]
    assert last.startswith("failed: linear, ar, seed 0: ") and "which is a file" in last
    assert [f for f in numbers(tmp_path) if "linear-boe-0" in f] and (tmp_path / "out" / "figure1-ar-boe.png").exists()
    shelf.training(blocked).unlink()
    assert finish(start(tmp_path, "--only", "1", "--masks", "ar,boe", "--seeds", "1")).returncode == 0


def test_no_run_outlives_a_killed_study(tmp_path):
    process = start(tmp_path, "--only", "1")

    def left():
        """How many processes were told of this folder, this study itself included."""
        found = subprocess.run(["ps", "-ewwo", "args"], capture_output=True, text=True).stdout
        return found.count(f"{tmp_path}/runs")

    wait_for(lambda: left() == 3)
    process.kill()
    process.communicate()
    wait_for(lambda: left() == 0)
    assert not numbers(tmp_path), "they did not run to their end"


@pytest.mark.parametrize(
    "flags, word",
    [
        (["--only", "0"], "only: got 0"),
        (["--only", "x"], "only"),
        (["--jobs", "0"], "jobs"),
        (["--seeds", "0"], "seeds"),
        (["--masks", "none"], "mask"),
        (["--masks", "ar", "--only", "7"], "figures 1, 2, 3, 4, 5, 6, 12, 13, 14, 11, 17 with these masks"),
        (["--masks", "boe,nope", "--only", "6"], "figures 1, 2, 3, 12, 13, 14, 11, 17 with these masks"),
        (["--masks", ""], "mask"),
        (["--only", ""], "only"),
        (["--out", "/dev/null/x"], "out"),
        (["--scale", "huge"], "scale"),
    ],
)
def test_bad_flags_are_one_line(flags, word, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit) as stop:
        main(["study", *flags])
    text = capsys.readouterr().err
    assert stop.value.code == 2 and text.count("\n") == 1 and word in text and not os.listdir(tmp_path)
