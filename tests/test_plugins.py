"""Code of one's own runs when its author says so; code that came with a run folder only on the user's word."""

import ast
import json
import os
import py_compile
import shutil

import numpy
import pytest
from conftest import assert_one_line
from training_helpers import flags, tiny_config

from minicl import Regressor, load, plugins
from minicl.checkpoint import checkpoints, read, save
from minicl.checks import InputError

MASK = "def f(q, k):\n    return (k.example < q.example) & ~q.is_query\n"
TASK = "from minicl.tasks import Linear\n\n\nclass T(Linear):\n    pass\n"
CRAFTED = ("mask", "absolute", "relative", "task", "checkpoint")


@pytest.fixture
def nothing_remembered(forget):
    """A user who has not trained anything yet."""
    forget()


def trapped(file, code, trap):
    """Write code that leaves a trace when it is run."""
    file.write_text(f"open({str(trap)!r}, 'w').close()\n{code}")


@pytest.fixture
def stranger(tmp_path, whole, nothing_remembered):
    """Make a run folder that names code in one way or another: whole checkpoints, right hashes."""

    def craft(how):
        run = tmp_path / "stranger"
        shutil.copytree(whole, run)
        trapped(tmp_path / "elsewhere.py", MASK, tmp_path / "ran elsewhere")
        trapped(run / "mask.py", MASK, tmp_path / "ran")
        trapped(run / "task.py", TASK, tmp_path / "ran")
        record = json.loads((run / "config.json").read_text())
        record["model"]["positions"] = "absolute"  # as its weights are
        honest = json.dumps(record)
        if how == "task":
            record["data"]["task"], record["code"] = "task.py:T", {"task": plugins.digest(run / "task.py")}
        else:
            named = {"absolute": f"{tmp_path}/elsewhere.py:f", "relative": "../elsewhere.py:f"}
            record["model"]["mask"] = named.get(how, "mask.py:f")
            record["code"] = {"mask": plugins.digest(run / "mask.py")}
        (run / "config.json").write_text(honest if how == "checkpoint" else json.dumps(record))
        for file in checkpoints(run).values():
            save(run, read(file) | {"config": record}, keep={55})
        return run

    return craft


def fit(run, trust):
    X = numpy.ones((3, 2))
    Regressor(run, trust=trust).fit(X, X[:, 0]).predict(X)


FUNCTIONS = {
    "load folder": lambda run, trust: load(run, trust=trust),
    "load step": lambda run, trust: load(run, step=55, trust=trust),
    "load file": lambda run, trust: load(checkpoints(run)[60], trust=trust),
    "Regressor": fit,
}
COMMANDS = {
    "evaluate": ["evaluate", "--prompts", "4", "--lengths", "1"],
    "evaluate --json": ["evaluate", "--prompts", "4", "--lengths", "1", "--json"],
    "evaluate --order": ["evaluate", "--order", "--prompts", "4", "--permutations", "2"],
    "probe": ["probe", "--prompts", "64", "--lengths", "2"],
    "theory --run": ["theory", "--prompts", "64", "--run"],
}


@pytest.mark.parametrize("function", FUNCTIONS)
@pytest.mark.parametrize("how", CRAFTED)
def test_a_stranger_s_code_needs_the_user_s_word_in_python(stranger, tmp_path, how, function):
    run = stranger(how)
    with pytest.raises(plugins.Untrusted, match=r"it comes with code, .*; if you trust it, pass trust=True"):
        FUNCTIONS[function](run, False)
    assert not (tmp_path / "ran").exists() and not (tmp_path / "ran elsewhere").exists()
    FUNCTIONS[function](run, True)
    assert (tmp_path / "ran").exists() and not (tmp_path / "ran elsewhere").exists()
    with pytest.raises(plugins.Untrusted):
        FUNCTIONS[function](run, False)  # a word counts once


@pytest.mark.parametrize("command", COMMANDS)
@pytest.mark.parametrize("how", CRAFTED)
def test_a_stranger_s_code_needs_the_user_s_word_on_the_command_line(stranger, cli, tmp_path, how, command):
    run = stranger(how)
    argv = [*COMMANDS[command], str(run)]
    again = " ".join(["minicl", *argv, "--trust"])
    result = cli(*argv)
    if how == "checkpoint":  # found out when it is opened, after a line that says so
        result.stderr = result.stderr.splitlines()[-1]
    assert_one_line(result, str(run), "comes with code", f"if you trust it: {again}")
    assert not (tmp_path / "ran").exists() and not (tmp_path / "ran elsewhere").exists()
    result = cli(*argv, "--trust")
    assert result.returncode == 0 or "task: got T, allowed: linear" in result.stderr, result.stderr
    assert (tmp_path / "ran").exists() and not (tmp_path / "ran elsewhere").exists()


@pytest.mark.parametrize("how", ["absolute", "relative"])
def test_a_path_out_of_the_folder_is_never_followed(stranger, cli, tmp_path, how):
    run = stranger(how)
    (run / "mask.py").unlink()
    for trust in ([], ["--trust"]):
        assert_one_line(cli("evaluate", run, *trust), "its code should lie in the run's folder as mask.py")
    for trust in (False, True):
        with pytest.raises(InputError, match="there is none"):
            load(run, trust=trust)
    assert not (tmp_path / "ran elsewhere").exists()


@pytest.mark.parametrize("how", CRAFTED)
@pytest.mark.parametrize("mask", ["ar", "../my.py:f"])
def test_training_into_a_stranger_s_folder_runs_nothing_of_it(stranger, cli, tmp_path, how, mask):
    run = stranger(how)
    (tmp_path / "my.py").write_text(MASK)
    (tmp_path / "here").mkdir()
    result = cli("train", *flags(mask=mask, positions="absolute"), "--out", run, cwd=tmp_path / "here")
    assert result.returncode == 2 and "Traceback" not in result.stderr
    assert "other settings" in result.stderr.splitlines()[-1]
    assert not (tmp_path / "ran").exists() and not (tmp_path / "ran elsewhere").exists()
    assert not plugins.is_trusted(run / "mask.py") and not plugins.is_trusted(run / "task.py")


def test_a_compiled_file_beside_it_is_not_run_instead(stranger, tmp_path):
    """A cached .pyc may hold other code than the .py file that was read and vouched for."""
    run = stranger("mask")
    other = tmp_path / "other.py"
    trapped(other, MASK, tmp_path / "ran compiled")
    cached = run / "__pycache__" / os.path.basename(py_compile.compile(str(other)).replace("other", "mask"))
    py_compile.compile(str(other), str(cached), invalidation_mode=py_compile.PycInvalidationMode.UNCHECKED_HASH)
    load(run, trust=True)
    assert (tmp_path / "ran").exists() and not (tmp_path / "ran compiled").exists()


def test_what_was_trained_here_needs_no_word(cli, tmp_path, nothing_remembered, monkeypatch):
    (tmp_path / "my.py").write_text(MASK)
    (tmp_path / "waves.py").write_text(TASK)
    command = ["train", *flags(mask="my.py:f", task="waves.py:T", steps=2), "--out", "run"]
    assert cli(*command).returncode == 0
    assert (tmp_path / "state" / "minicl" / "trusted").exists()
    load(tmp_path / "run")
    shutil.move(tmp_path / "run", tmp_path / "elsewhere")
    load(tmp_path / "elsewhere")
    shutil.rmtree(tmp_path / "state")
    load(tmp_path / "elsewhere")
    monkeypatch.setattr(plugins, "_trained_now", set())  # as in another process
    with pytest.raises(plugins.Untrusted):
        load(tmp_path / "elsewhere")
    shutil.move(tmp_path / "elsewhere", tmp_path / "run")
    assert "is finished" in cli(*command).stderr, "the user names both files again"
    load(tmp_path / "run")


def test_where_nothing_can_be_remembered_runs_can_be_trained(cli, tmp_path, monkeypatch):
    (tmp_path / "state").write_text("a file")
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    (tmp_path / "my.py").write_text(MASK)
    monkeypatch.setattr(plugins, "_trained_now", set())
    assert cli("train", *flags(mask="my.py:f", steps=2), "--out", "run").returncode == 0
    assert load(tmp_path / "run"), "this process has just trained it"
    plugins._trained_now.clear()  # as in another process
    with pytest.raises(plugins.Untrusted):
        load(tmp_path / "run")
    assert load(tmp_path / "run", trust=True)


# Hashes


def test_a_hash_is_of_the_code_and_not_of_comments_or_layout(tmp_path):
    def digest(code):
        (tmp_path / "a.py").write_text(code)
        return plugins.digest(tmp_path / "a.py")

    assert digest(MASK) == digest("# why\n\n" + MASK.replace(" & ~q.is_query", " & (~q.is_query)  # not a query"))
    for other in (MASK.replace("<", "<="), MASK.replace("f(", "g("), MASK + "f = None\n", 'f = "None"\n', "f = None\n"):
        assert digest(MASK) != digest(other)
    assert len({digest(f"f = {value}\n") for value in ("None", "'None'", "()", "[]", "0", "0.0", "False", "b''")}) == 8


def test_a_hash_does_not_change_with_the_version_of_python(tmp_path):
    """Fields that later versions add to the syntax tree are empty for older code."""
    code = 'def f(q, k, *, n: int = 3):\n    """Near."""\n    return f"{q.example!r:>{n}} {k}" if n else (q, *k)\n'
    (tmp_path / "a.py").write_text(code)
    before = plugins.digest(tmp_path / "a.py")
    assert before == "d838967ca8d619d0d18da8232fc3a6f811f7f4965bd010a5406ea9320539d7a9"

    class Later(ast.FunctionDef):
        _fields = (*ast.FunctionDef._fields, "added")

    Later.__name__ = "FunctionDef"
    tree = ast.parse(code)
    function = tree.body[0]
    later = Later(**dict(ast.iter_fields(function)), added=[])
    assert plugins._form(later) == plugins._form(function)


@pytest.mark.parametrize(
    "code", ["def f(:\n", "\0", "x = " + "(" * 300 + ")" * 300, "x = " + "-" * 100_000 + "1", "\xff"]
)
def test_what_is_no_python_is_refused_in_words(tmp_path, code):
    (tmp_path / "a.py").write_bytes(code.encode("latin-1"))
    with pytest.raises(InputError, match=r"a\.py: cannot be read as Python"):
        plugins.digest(tmp_path / "a.py")


# Files


def test_a_file_is_read_again_when_it_has_changed(tmp_path):
    file = tmp_path / "a.py"
    file.write_text("value = 1\n")
    first, _ = plugins.load("mask", f"{file}:value")
    stat = file.stat()
    file.write_text("value = 2\n")
    os.utime(file, ns=(stat.st_atime_ns, stat.st_mtime_ns))  # an edit within the clock's resolution
    second, module = plugins.load("mask", f"{file}:value")
    assert (first, second) == (1, 2) and module.__file__ == str(file)
    assert plugins.load("mask", f"{file}:value")[1] is module
    assert not (tmp_path / "__pycache__").exists()


def test_what_is_wrong_with_a_file_is_said(tmp_path, capsys):
    file = tmp_path / "a.py"
    with pytest.raises(InputError, match="there is no file"):
        plugins.load("mask", f"{file}:f")
    file.write_text("print('hello')\n\n\ndef near(q, k):\n    pass\n")
    with pytest.raises(InputError, match="has no 'f'; it has: near"):
        plugins.load("mask", f"{file}:f")
    printed = capsys.readouterr()
    assert (printed.out, printed.err) == ("", "hello\n"), "standard output is for results"
    for code, words in (
        ("1 / 0", "ZeroDivisionError"),
        ("import sys; sys.exit(3)", "SystemExit"),
        ("def", "SyntaxError"),
    ):
        file.write_text(code)
        with pytest.raises(InputError, match=f"failed to import: {words}"):
            plugins.load("mask", f"{file}:f")


def test_names():
    assert plugins.is_own("a/b.py:f") and not plugins.is_own("ar") and not plugins.is_own(None)
    assert plugins.split("c:/a.py:f") == ("c:/a.py", "f")
    assert plugins.short("a/b.py:f") == "f" and plugins.short("ar") == "ar"
    assert plugins.resolve("./a/../b.py:f") == f"{os.getcwd()}/b.py:f"
    assert tiny_config(mask="invicl").code == {}
