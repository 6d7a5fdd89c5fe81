"""`minicl train --config FILE`: another run's settings as the starting point."""

import json
import shutil

import pytest
from conftest import assert_one_line
from training_helpers import TINY, assert_same_run, flags, tiny_config

import minicl
from minicl.checks import InputError
from minicl.config import Config
from minicl.plugins import Untrusted

TASK = """
from minicl.settings import setting
from minicl.tasks import Linear


class wave(Linear):
    period: float = setting(2.0, "length of a wave", above=0)
"""


def stored(run):
    return json.loads((run / "config.json").read_text())


def test_the_same_settings_give_the_same_run(cli, tmp_path, whole):
    """The file's settings win over every preset's; a preset's are not there at all."""
    assert cli("train", "--config", whole / "config.json", "--out", "same").returncode == 0
    assert_same_run(whole, tmp_path / "same")
    assert stored(tmp_path / "same") == stored(whole)


def test_flags_override_the_file(cli, tmp_path, whole, monkeypatch):
    assert cli("train", "--config", whole / "config.json", "--seed", 1, "--steps", 20, "--out", "b").returncode == 0
    expected = stored(whole)
    expected["train"] |= {"seed": 1, "steps": 20}
    assert stored(tmp_path / "b") == expected
    assert cli("train", *flags(seed=1, steps=20), "--out", "c").returncode == 0
    assert_same_run(tmp_path / "b", tmp_path / "c")
    monkeypatch.chdir(tmp_path)
    assert minicl.train(config=whole / "config.json", seed=1, steps=20)["run"] == "runs/linear-ar-custom-1"
    assert_same_run(tmp_path / "b", tmp_path / "runs/linear-ar-custom-1")


def test_what_follows_from_the_mask_follows_from_the_new_one():
    ar = tiny_config()
    assert (ar.data.lengths, ar.train.loss) == ("fixed", "all")
    assert ar.changed(mask="boe") == tiny_config(mask="boe") != ar
    assert (ar.changed(mask="boe").data.lengths, ar.changed(mask="boe").train.loss) == ("long", "query")
    own = tiny_config(lengths="uniform", loss="query")
    assert (own.changed(mask="invicl").data.lengths, own.changed(mask="invicl").train.loss) == ("uniform", "query")


def test_steps_and_tasks_leave_behind_what_does_not_fit():
    kept = tiny_config(keep=(20, 40), extended=(30, 50))
    assert (kept.changed(steps=50).train.keep, kept.changed(steps=50).train.extended) == ((20, 40), (30,))
    noisy = tiny_config(task="noisy_linear", noise=3.0)
    assert noisy.changed(seed=1).task.noise == 3.0 and noisy.changed(noise=2.0).task.noise == 2.0
    assert noisy.changed(task="linear") == tiny_config()


def test_code_of_one_s_own_is_that_of_the_file_s_folder(cli, tmp_path, forget, monkeypatch):
    (tmp_path / "my.py").write_text("def near(q, k):\n    return k.example == q.example - 1\n")
    (tmp_path / "waves.py").write_text(TASK)
    own = {"mask": "my.py:near", "task": "waves.py:wave", "period": 3.0, "steps": 5}
    assert cli("train", *flags(**own), "--out", "a").returncode == 0
    for name in ("my.py", "waves.py"):
        (tmp_path / name).unlink()
    command = ["train", "--config", "a/config.json", "--period", 4, "--out"]
    assert cli(*command, "b").returncode == 0
    assert stored(tmp_path / "b")["data"]["period"] == 4 and (tmp_path / "b" / "task.py").read_text() == TASK
    forget()  # from here on it is a stranger's folder
    assert_one_line(cli(*command, "c"), "a: it comes with code", "if you trust it: minicl train --config", "--trust")
    assert not (tmp_path / "c").exists()
    monkeypatch.chdir(tmp_path)
    with pytest.raises(Untrusted):
        minicl.train(config="a/config.json", out="c")
    assert cli(*command, "c", "--trust").returncode == 0
    assert_same_run(tmp_path / "b", tmp_path / "c")
    (tmp_path / "a" / "task.py").write_text(TASK.replace("2.0", "5.0"))
    assert_one_line(cli(*command, "d", "--trust"), "it is not the code that the run was trained with")


@pytest.mark.parametrize(
    "argv, words",
    [
        (["--config", "whole/config.json", "--preset", "tiny"], ("--preset", "not allowed with", "--config")),
        (["--config", "gone.json"], ("gone.json: there is no such file",)),
        (["--config", "whole"], ("whole: cannot be read", "directory")),
        (["--config", "torn.json"], ("torn.json: cannot be read",)),
        (["--config", "other.json"], ("other.json: config: got something that lacks 'data'",)),
        (["--config", "bad.json"], ("bad.json: lr: got 'fast'",)),
        (["--config", "whole/config.json", "--lr", "-1"], ("minicl train: lr: got -1.0",)),
        (["--config", "whole/config.json", "--sparsity", "1"], ("sparsity", "task linear does not have")),
        (["--config"], ("--config: expected one argument",)),
    ],
)
def test_bad_files_and_flags_are_one_line(cli, tmp_path, whole, argv, words):
    shutil.copytree(whole, tmp_path / "whole")
    (tmp_path / "torn.json").write_text("{")
    (tmp_path / "other.json").write_text('{"a": 1}')
    bad = stored(whole)
    bad["train"]["lr"] = "fast"
    (tmp_path / "bad.json").write_text(json.dumps(bad))
    assert_one_line(cli("train", *argv, "--out", "new"), *words)
    assert not (tmp_path / "new").exists()


def test_python_refuses_both_starting_points_too(whole):
    with pytest.raises(InputError, match="preset: got 'small' beside config"):
        minicl.train("small", config=whole / "config.json")


def test_a_dry_run_begins_with_the_file_too(cli, whole):
    record = json.loads(cli("train", "--config", whole / "config.json", "--seed", 7, "--dry-run", "--json").stdout)
    assert Config.from_json(record["config"]) == tiny_config(seed=7)
    assert TINY["steps"] == record["config"]["train"]["steps"]
