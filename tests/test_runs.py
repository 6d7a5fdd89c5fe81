"""Run folders: what is in one, who may write to it, and the way from a folder to a model."""

import json
import shutil

import pytest
import torch
from conftest import assert_one_line
from training_helpers import TINY, assert_same_run, flags, tiny_config

from minicl import load, plugins, runs, train
from minicl.checkpoint import checkpoints
from minicl.checks import InputError

MASK = "def near(q, k):\n    return k.example == q.example - 1\n"
TASK = """
from minicl.settings import setting
from minicl.tasks import Task, dot


class wave(Task):
    period: float = setting(2.0, "length of a wave", above=0)

    def function(self, random):
        w = random.normal("w", self.n_dims)
        return lambda xs: dot(w, (xs / self.period).sin())
"""


def test_a_run_folder_explains_itself(whole):
    assert {file.name for file in whole.iterdir() if not file.name.startswith(".")} == {
        "config.json", "metrics.jsonl", "timing.jsonl", "checkpoints"
    }  # fmt: skip
    assert runs.read_config(whole).train.steps == 60
    assert list(checkpoints(whole)) == [60, 55]
    model = load(whole)
    assert not model.training and model.config.n_embd == 8
    for name, value in load(checkpoints(whole)[60]).state_dict().items():
        assert torch.equal(value, model.state_dict()[name])
    assert not all(
        torch.equal(p, q) for p, q in zip(model.parameters(), load(whole, step=55).parameters(), strict=True)
    )


def test_load_says_what_there_is(tmp_path, whole):
    for path, words in ((tmp_path / "gone", "no such"), (tmp_path, "no config.json")):
        with pytest.raises(InputError, match=words):
            load(path)
    with pytest.raises(InputError, match="got step 3, allowed: 55, 60"):
        load(whole, step=3)
    shutil.copy(whole / "config.json", tmp_path)
    with pytest.raises(InputError, match="no whole checkpoint yet"):
        load(tmp_path)
    for text in ("{", "[" * 100_000, "3", '{"data": {}}', "\udcff"):
        (tmp_path / "config.json").write_text(text, encoding="utf-8", errors="surrogateescape")
        with pytest.raises(InputError, match="config"):
            load(tmp_path)


def test_another_config_is_refused(cli, whole):
    before = {file: file.read_bytes() for file in whole.rglob("*") if file.is_file()}
    result = cli("train", *flags(lr=0.5, mask="boe"), "--out", whole)
    assert_one_line(result, "other settings", "lr 0.001 there, 0.5 here", "mask ar there, boe here")
    assert {file: file.read_bytes() for file in whole.rglob("*") if file.is_file()} == before
    assert cli("train", *flags(threads=2), "--out", whole).returncode == 0, "but not for another machine"


def test_out_must_be_a_folder_of_ours(cli, tmp_path):
    (tmp_path / "file").write_text("x")
    assert_one_line(cli("train", *flags(), "--out", "file"), "which is a file")
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.tex").write_text("x")
    assert_one_line(cli("train", *flags(), "--out", "mine"), "no run folder")
    assert [(file.name, file.read_text()) for file in (tmp_path / "mine").iterdir()] == [("thesis.tex", "x")]


def test_a_folder_that_cannot_be_written_to(cli, tmp_path):
    (tmp_path / "file").write_text("x")
    result = cli("train", *flags(), "--out", "file/run")
    assert_one_line(result, "cannot write to file/run", status=1)


def test_two_runs_into_one_folder(cli, tmp_path):
    with runs.hold(tiny_config(), tmp_path / "run"):
        assert_one_line(cli("train", *flags(), "--out", "run"), "another process", "--out")
    assert cli("train", *flags(), "--out", "run").returncode == 0


def test_a_start_that_was_killed_at_once_can_start_again(cli, tmp_path, whole):
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / ".config.json.123.tmp").write_text("{")
    assert cli("train", *flags(), "--out", "run").returncode == 0
    assert_same_run(whole, tmp_path / "run")
    assert not list((tmp_path / "run").glob(".*.tmp"))


def test_a_log_is_cut_to_the_lines_that_count(tmp_path):
    file = tmp_path / "metrics.jsonl"
    kept = '{"step": 0}\n{"step": 5}\n'
    file.write_text(kept + '{"step": 6}\n3\n{}\n[]\n{"step": "x"}\nnoise\n{"step": 4')
    runs.cut(file, 5)
    assert file.read_text() == kept
    runs.cut(tmp_path / "gone", 5)
    assert not (tmp_path / "gone").exists()


def test_an_exported_run_is_smaller_and_whole(cli, tmp_path, whole):
    runs.export(whole, tmp_path / "small")
    assert list(checkpoints(tmp_path / "small")) == [60]
    assert checkpoints(tmp_path / "small")[60].stat().st_size < 0.7 * checkpoints(whole)[60].stat().st_size
    for name, value in load(whole).state_dict().items():
        assert torch.equal(value, load(tmp_path / "small").state_dict()[name])
    assert "is finished" in cli("train", *flags(), "--out", "small").stderr
    shutil.copytree(whole, tmp_path / "empty")
    shutil.rmtree(tmp_path / "empty" / "checkpoints")
    with pytest.raises(InputError, match="no checkpoint yet"):
        runs.export(tmp_path / "empty", tmp_path / "other")


# Runs with a mask and a task of one's own


@pytest.fixture
def own(tmp_path, monkeypatch):
    """A run with both, trained in a folder that it names them from; and its settings."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "my.py").write_text(MASK)
    (tmp_path / "waves.py").write_text(TASK)
    settings = TINY | {"mask": "my.py:near", "task": "waves.py:wave", "period": 3.0, "steps": 10}
    train(out="run", **settings)
    monkeypatch.chdir("/")
    return tmp_path / "run", settings


def answers(path):
    model = load(path)
    generator = torch.Generator().manual_seed(0)
    xs, ys, queries = (torch.randn(shape, generator=generator) for shape in ((2, 3, 2), (2, 3), (2, 1, 2)))
    return model(xs, ys, queries).query


def test_a_run_folder_carries_the_code_of_its_own(own):
    run, _ = own
    assert (run / "mask.py").read_text() == MASK and (run / "task.py").read_text() == TASK
    stored = runs.read_settings(run)
    assert stored["model"]["mask"] == "mask.py:near" and stored["data"]["task"] == "task.py:wave"
    assert str(run.parent) not in (run / "config.json").read_text(), "no path of this machine"
    config = runs.read_config(run)
    assert config.model.mask == f"{run}/mask.py:near" and config.task.period == 3.0 and config.method == "near"


@pytest.mark.parametrize("change", ["comment", "other code", "deleted", "moved"])
def test_a_run_folder_works_whatever_becomes_of_the_originals(own, change, tmp_path):
    run, _ = own
    before = answers(run)
    for file, text in ((tmp_path / "my.py", MASK), (tmp_path / "waves.py", TASK)):
        if change == "comment":
            file.write_text(text + "\n# a thought\n")
        elif change == "other code":
            file.write_text(f"open({str(tmp_path / 'ran')!r}, 'w')\nnear = wave = None\n")
        else:
            file.unlink()
    if change == "moved":
        run = run.rename(tmp_path / "elsewhere")
    assert torch.equal(answers(run), before)
    assert torch.equal(answers(checkpoints(run)[10]), before)
    assert not (tmp_path / "ran").exists()


def test_a_checkpoint_is_found_from_its_own_folder(own, monkeypatch):
    run, _ = own
    monkeypatch.chdir(run / "checkpoints")
    assert torch.equal(answers("step-00000010.pt"), answers(run))


def test_an_exported_run_carries_its_code_too(own, tmp_path):
    run, _ = own
    runs.export(run, tmp_path / "small")
    assert torch.equal(answers(tmp_path / "small"), answers(run))


def test_another_content_in_the_folder_is_refused_and_not_run(own, cli, tmp_path):
    run, _ = own
    trap = f"open({str(tmp_path / 'ran')!r}, 'w')\n"
    (run / "mask.py").write_text(trap + MASK)
    for trust in (False, True):
        with pytest.raises(InputError, match=r"mask\.py: it is not the code that the run was trained with"):
            load(run, trust=trust)
    (run / "mask.py").write_text(MASK)
    (run / "task.py").unlink()
    with pytest.raises(InputError, match=r"its code should lie in the run's folder as task\.py"):
        load(run)
    (run / "mask.py").write_text("def near(q, k:\n")
    with pytest.raises(InputError, match="cannot be read as Python"):
        load(run)
    assert not (tmp_path / "ran").exists()


def test_resuming_with_the_same_code_and_with_other_code(own, cli, tmp_path):
    _, settings = own
    command = ["train", *flags(**settings), "--out", "run"]
    (tmp_path / "my.py").write_text("# what a neighbour is\n\n" + MASK)
    assert "is finished" in cli(*command).stderr, "a comment is no other code"
    (tmp_path / "my.py").write_text(MASK.replace("- 1", "- 2"))
    assert_one_line(cli(*command), "another content of the mask's or the task's file", "--out")
    by_copy = ["train", *flags(**settings | {"mask": "run/mask.py:near", "task": "run/task.py:wave"}), "--out", "run"]
    assert "is finished" in cli(*by_copy).stderr
    assert_one_line(
        cli("train", *flags(**settings | {"mask": "ar"}), "--out", "run"), "mask mask.py:near there, ar here"
    )


def test_a_file_that_is_edited_while_its_run_trains(cli, tmp_path, monkeypatch):
    from minicl.training import Training

    (tmp_path / "my.py").write_text(MASK)
    plain = Training.update

    def edit(self):
        if self.step == 7:
            (tmp_path / "my.py").unlink()
        plain(self)

    monkeypatch.setattr(Training, "update", edit)
    assert cli("train", *flags(mask="my.py:near"), "--out", "run").returncode == 0
    assert load(tmp_path / "run").config.mask.endswith("run/mask.py:near")
    assert json.loads((tmp_path / "run" / "config.json").read_text())["code"] == {
        "mask": plugins.digest(tmp_path / "run" / "mask.py")
    }
