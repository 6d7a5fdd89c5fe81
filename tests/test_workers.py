"""Many workers on one folder: each run is made once, and a dead worker's run by another; a command for each run."""

import json
import re
import subprocess
import sys

from training_helpers import numbers, wait_for

from minicl.study import plan
from minicl.study.figures import make_run
from minicl.study.numbers import Shelf

SMOKE = plan.SCALES["smoke"]


def folders(folder):
    return ["--scale", "smoke", "--out", str(folder / "out"), "--runs", str(folder / "runs")]


def steps(folder, name):
    """The steps in the log of a run."""
    (file,) = (folder / "runs").glob(f"{name}-????????/metrics.jsonl")
    return [json.loads(line)["step"] for line in file.read_text().splitlines()]


def test_four_workers_make_each_run_once_though_one_is_killed(tmp_path):
    workers, logs = [], [tmp_path / f"{i}.txt" for i in range(4)]
    for log in logs:
        with open(log, "w") as file:
            flags = ["--only", "17", "--masks", "boe", "--seeds", "4", "--jobs", "1", *folders(tmp_path)]
            command = [sys.executable, "-m", "minicl", "study", *flags]
            workers.append(subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=file))

    def begun(log):
        return re.findall(r"(.*): (?:training|from step \d+)\n", log.read_text())

    wait_for(lambda: any(map(begun, logs)))
    dead = next(i for i, log in enumerate(logs) if begun(log))
    workers[dead].kill()
    assert [worker.wait(timeout=300) for worker in workers] == [-9 if i == dead else 0 for i in range(4)]
    every = {f"linear, boe, seed {seed}" for seed in range(4)}
    (lost,) = begun(logs[dead])
    others = [run for i, log in enumerate(logs) if i != dead for run in begun(log)]
    assert sorted(others) == sorted(every), "the dead worker's run too, and none twice"
    assert lost in others
    assert any(": another worker" in log.read_text() for log in logs)
    assert sum(name.startswith("linear-boe-") for name in numbers(tmp_path)) == 4
    assert [steps(tmp_path, f"linear-boe-{seed}") for seed in range(4)] == [[0, 4, 8, 12, 16]] * 4


def test_commands_pass_through_a_shell_and_make_their_run_only(tmp_path, cli):
    """Names have commas, spaces, × and an apostrophe."""
    listed = cli("study", "--only", "7,16", "--commands", *folders(tmp_path)).stdout.splitlines()
    assert len(listed) == len(set(listed)) > 10 and not (tmp_path / "out").exists()
    chosen = [line for line in listed if "ar+×2,0" in line or ",ar, paper" in line]
    assert len(chosen) == 2
    command = "tr '\\n' '\\0' | xargs -0 -n 1 -P 2 sh -c"
    result = subprocess.run(command, shell=True, input="\n".join(chosen), text=True, capture_output=True, cwd="/")
    assert result.returncode == 0, result.stderr
    shelf = Shelf(tmp_path / "out", tmp_path / "runs", "smoke")
    made = [make_run(SMOKE, "linear", name, 0) for name in ("ar+×2", "ar, paper's objective")]
    assert all(map(shelf.read, made)) and len(numbers(tmp_path)) == 2
    before = numbers(tmp_path)
    again = cli("study", "--run", "linear,ar, paper's objective,0", *folders(tmp_path))
    assert again.returncode == 0 and "its numbers are there" in again.stderr and numbers(tmp_path) == before
    left = cli("study", "--only", "7,16", "--commands", *folders(tmp_path)).stdout.splitlines()
    assert left == [line for line in listed if line not in chosen]


def test_a_run_that_another_worker_has_is_passed_over(tmp_path, cli):
    shelf = Shelf(tmp_path / "out", tmp_path / "runs", "smoke")
    shelf.prepare()
    run = make_run(SMOKE, "linear", "ar", 0)
    with shelf.take(run):
        alone = cli("study", "--run", "linear,ar,0", *folders(tmp_path))
        study = cli("study", "--only", "5", "--masks", "ar", "--seeds", "1", *folders(tmp_path))
        assert shelf.take(run) is None
    assert (alone.returncode, study.returncode) == (0, 0)
    assert "linear, ar, seed 0: another worker has it" in alone.stderr
    assert "other workers still have: linear, ar, seed 0" in study.stderr
    assert not numbers(tmp_path) and not shelf.training(run).exists()
    with shelf.take(run):
        pass


def test_a_seed_trained_again_gives_the_same_metrics(tmp_path, cli):
    """With the library for products that the first run chose: its config.json says it."""
    for name in ("a", "b"):
        assert cli("study", "--run", "linear,boe,1", *folders(tmp_path / name)).returncode == 0
        if name == "a":
            (first,) = (tmp_path / "a" / "runs").glob("linear-boe-1-????????")
            again = tmp_path / "b" / "runs" / first.name
            again.mkdir(parents=True)
            (again / "config.json").write_bytes((first / "config.json").read_bytes())
    assert (first / "metrics.jsonl").read_bytes() == (again / "metrics.jsonl").read_bytes()


def test_bad_runs_are_one_line(tmp_path, cli):
    for given, word in {
        "linear": "TASK,NAME,SEED",
        "linear,ar": "TASK,NAME,SEED",
        "linear,ar,x": "TASK,NAME,SEED",
        "liner,ar,0": "linear",
        "linear,art,0": "ar",
        "smooth,ar,0": "a run that a figure of scale",
    }.items():
        result = cli("study", "--run", given, *folders(tmp_path))
        assert result.returncode == 2 and word in result.stderr and len(result.stderr.splitlines()) == 1
    for flags in (["--only", "1"], ["--seeds", "1"], ["--json"], ["--commands"], ["--dry-run"]):
        result = cli("study", "--run", "linear,ar,0", *flags, *folders(tmp_path))
        assert result.returncode == 2 and "--run" in result.stderr and len(result.stderr.splitlines()) == 1
    assert not (tmp_path / "out").exists()
