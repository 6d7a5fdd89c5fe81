"""A finished run goes on with more steps, and becomes the run that it would have been if that had been planned."""

import json
import shutil
import signal
import sys

import pytest
from conftest import assert_one_line
from test_training import DEADLY, interrupt
from training_helpers import TINY, assert_same_run, finish, flags, newest_step, start, tiny_config

import minicl
from minicl import runs
from minicl.checkpoint import checkpoints, read
from minicl.checks import InputError
from minicl.schedule import learning_rate, planned_steps, prompt_size

SHORT = {"steps": 20, "batch_size": 4}


def command(out, steps, **settings):
    return ["train", *flags(**SHORT | {"steps": steps} | settings), "--out", out]


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """A run of 20 steps, and one that was planned as its extension to 33 steps."""
    folder = tmp_path_factory.mktemp("extension")
    minicl.train(out=folder / "20", **TINY | SHORT)
    minicl.train(out=folder / "33", **TINY | SHORT | {"steps": 33, "extended": (20,)})
    return folder


@pytest.fixture
def run(finished, tmp_path):
    """A copy of the finished run that a test may do anything to."""
    return shutil.copytree(finished / "20", tmp_path / "run")


def files(run):
    return {file: file.read_bytes() for file in run.rglob("*") if file.is_file()}


def test_what_depends_on_the_steps_is_that_of_the_plan_of_its_time():
    before = tiny_config(steps=20, lengths="curriculum", schedule="stable")
    after = tiny_config(steps=33, lengths="curriculum", schedule="stable", extended=(20,))
    plain = tiny_config(steps=33, lengths="curriculum", schedule="stable")
    for value in (lambda c, s: learning_rate(c.train, s), lambda c, s: planned_steps(c.train, s), prompt_size):
        assert [value(after, s) for s in range(20)] == [value(before, s) for s in range(20)]
        assert [value(after, s) for s in range(20, 34)] == [value(plain, s) for s in range(20, 34)]
    twice = tiny_config(steps=50, extended=(20, 33)).train
    assert [planned_steps(twice, s) for s in (0, 19, 20, 32, 33, 50)] == [20, 20, 33, 33, 50, 50]


def test_an_extended_run_is_the_one_that_was_planned_so(cli, finished, run):
    first = checkpoints(run)[20].read_bytes()
    result = cli(*command(run, 33))
    assert result.returncode == 0 and "resumed" not in result.stderr
    rates = [learning_rate(tiny_config(steps=steps).train, step) for steps, step in ((20, 19), (33, 20))]
    change = "the learning rate goes from {:.3g} to {:.3g}, that of step 20 of 33".format(*rates)
    assert f"extended from 20 to 33 steps: {change}" in result.stderr.splitlines()
    assert_same_run(finished / "33", run)
    assert runs.read_settings(run) == runs.read_settings(finished / "33")
    assert list(checkpoints(run)) == [33, 30, 20] and checkpoints(run)[20].read_bytes() == first
    assert [json.loads(row)["step"] for row in (run / "timing.jsonl").read_text().splitlines()][-3:] == [21, 28, 33]
    for again in (command(run, 33), command(run, 33, extended=20)):
        assert "is finished: 33 steps" in cli(*again).stderr
    assert minicl.load(run, step=20) is not None


def test_a_constant_rate_stays(cli, tmp_path):
    assert cli(*command("run", 5, schedule="constant")).returncode == 0
    line = "extended from 5 to 9 steps: the learning rate stays 0.001, that of step 5 of 9"
    assert line in cli(*command("run", 9, schedule="constant")).stderr.splitlines()


def test_extended_twice_and_begun_from_its_own_file(cli, tmp_path, run):
    assert cli(*command(run, 33)).returncode == 0
    result = cli("train", "--config", run / "config.json", "--steps", 41, "--out", run)
    assert "extended from 33 to 41 steps" in result.stderr
    assert runs.read_config(run).train.extended == (20, 33) and {20, 33, 41} <= {*checkpoints(run)}
    assert cli("train", "--config", run / "config.json", "--out", "anew").returncode == 0
    assert_same_run(run, tmp_path / "anew")


def test_an_interrupted_extension_resumes(cli, monkeypatch, finished, run):
    for step in (20, 26):
        with monkeypatch.context() as patch:
            interrupt(patch, "update", step, signal.SIGTERM)
            assert cli(*command(run, 33)).returncode == 143
        assert newest_step(run) == step + 1
    assert "resumed at step 27" in cli(*command(run, 33)).stderr
    assert_same_run(finished / "33", run)


@pytest.mark.parametrize("count", range(1, 16, 2))
def test_kill_9_at_any_write_of_an_extension(cli, finished, run, count):
    """Also between the new config.json and the first new checkpoint."""
    result = finish(start(sys.executable, "-c", DEADLY, count, *command(run, 33)))
    assert result.returncode == -signal.SIGKILL
    assert runs.read_settings(run)["train"]["steps"] in (20, 33) and 20 in checkpoints(run)
    assert cli(*command(run, 33)).returncode == 0
    assert_same_run(finished / "33", run)
    assert {20, 33} <= {*checkpoints(run)} and not list(run.rglob(".*.tmp"))


def test_a_damaged_last_checkpoint_after_the_new_config(cli, finished, run):
    """The one before it is older than the extension, and goes on all the same."""
    with runs.hold(tiny_config(**SHORT | {"steps": 33}), run):  # as if it had been killed before the first update
        pass
    assert runs.read_settings(run)["train"]["extended"] == [20] and newest_step(run) == 20
    checkpoints(run)[20].write_bytes(b"torn")
    result = cli(*command(run, 33))
    assert "passed over" in result.stderr and "resumed at step 15" in result.stderr
    assert_same_run(finished / "33", run)


@pytest.mark.parametrize(
    "steps, settings, words",
    [
        (10, {}, "steps 20 there, 10 here; give another --out"),
        (33, {"lr": 0.5}, "lr 0.001 there, 0.5 here"),
        (33, {"keep": 5}, "keep () there, (5,) here"),
        (33, {"extended": 10}, "extended () there, (10,) here; steps 20 there, 33 here"),
        (33, {"extended": 40}, "extended: got 40, allowed: a whole number from 1 to 32"),
    ],
)
def test_what_is_no_extension_is_refused(cli, run, steps, settings, words):
    before = files(run)
    assert_one_line(cli(*command(run, steps, **settings)), words)
    assert files(run) == before


def test_later_steps_to_keep_are_no_other_setting(cli, run):
    assert cli(*command(run, 33, keep="24")).returncode == 0
    assert list(checkpoints(run)) == [33, 30, 24, 20]


def test_only_a_finished_run_is_extended(cli, run):
    checkpoints(run)[20].unlink()
    before = files(run)
    result = cli(*command(run, 33))
    assert_one_line(result, "steps 20 there, 33 here", "only a finished run can be extended, this one is at step 15")
    assert files(run) == before
    assert cli(*command(run, 20)).returncode == cli(*command(run, 33)).returncode == 0


def test_an_exported_run_is_not_extended(cli, run, tmp_path):
    runs.export(run, tmp_path / "small")
    (tmp_path / "small" / ".lock").touch()
    before = files(tmp_path / "small")
    assert_one_line(cli(*command("small", 33)), "small is finished at step 20 and was exported", "cannot be extended")
    assert files(tmp_path / "small") == before


def test_runs_of_before_there_were_extensions(cli, finished, run):
    """Neither their config.json nor their checkpoints know the setting."""
    record = runs.read_settings(run)
    del record["train"]["extended"]
    (run / "config.json").write_text(json.dumps(record))
    for file in checkpoints(run).values():
        state = read(file)
        del state["config"]["train"]["extended"]
        file.unlink()
        minicl.checkpoint.save(run, state, keep=(15, 20))
    assert "is finished" in cli(*command(run, 20)).stderr
    assert cli(*command(run, 33)).returncode == 0
    assert_same_run(finished / "33", run)


def test_what_was_measured_before_stays_valid(cli, run):
    measure = ["evaluate", run, "--checkpoints", "20", "--prompts", 20, "--json"]
    first = cli(*measure)
    assert cli(*command(run, 33)).returncode == 0
    again = cli(*measure)
    assert again.stdout == first.stdout and again.stderr == "", "read, not measured again"


def test_strange_plans_in_a_folder_are_one_line(cli, run):
    record = runs.read_settings(run)
    for plan in ({"steps": "x"}, {"steps": None}, {"extended": ["x"]}, {"extended": 3}, {"steps": 0}, {"steps": 2.5}):
        (run / "config.json").write_text(json.dumps(record | {"train": record["train"] | plan}))
        assert_one_line(cli(*command(run, 33)))


def test_extensions_come_one_after_the_other():
    with pytest.raises(InputError, match="extended: got 9, allowed: a whole number from 10 to 32"):
        tiny_config(steps=33, extended=(9, 9))
