"""The commands of README and docs: each file's code blocks are run in order, in a folder as `make demo` leaves it."""

import contextlib
import glob
import re
import shlex
import shutil
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest

from minicl import train
from minicl.cli import COMMANDS, Parser

ROOT = Path(__file__).parent.parent
FILES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
BLOCK = re.compile(r"^```(\w*)( long)?\n(.*?)^```$", re.M | re.S)
# What makes a command short enough for a test. It is added at the end, where it wins.
SHORTER = {
    "train": ["--batch-size", "4", "--validate", "4"],
    "evaluate": ["--prompts", "4"],
    "probe": ["--prompts", "64"],
    "theory": ["--prompts", "64"],
    "study": ["--dry-run"],
}
DEMO = 1200  # steps of the demo; all trainings have a hundredth of their steps
# A command that has one of these is short already.
INSTEAD = {"--dry-run", "--commands", "--run", "--training", "--prompt-plot"}
SET_UP = ("make demo", "source ", "pip install ")  # done before, once for all files


def blocks(file):
    return [(kind, bool(long), text) for kind, long, text in BLOCK.findall(file.read_text(encoding="utf-8"))]


def commands(text):
    """The commands of a block, continued lines joined and comments dropped."""
    lines = text.replace("\\\n", " ").splitlines()
    return [words for line in lines if (words := shlex.split(line, comments=True))]


@pytest.fixture(scope="module")
def demo(tmp_path_factory):
    """A clone after `make demo`, with models of a few steps."""
    folder = tmp_path_factory.mktemp("clone")
    for name in ("plots", "benchmarks", "train.py", "evaluate.py"):
        (folder / name).symlink_to(ROOT / name)
    for models in (ROOT / "results").glob("*/models"):
        shutil.copytree(models, folder / models.relative_to(ROOT), ignore=shutil.ignore_patterns("evaluation"))
    for mask in ("ar", "invicl"):
        train("tiny", mask=mask, steps=DEMO // 100, batch_size=4, validate=4, out=folder / "demo" / mask)
    return folder


@pytest.fixture
def clone(demo, tmp_path, monkeypatch):
    """Its copy, as the current folder."""
    shutil.copytree(demo, tmp_path / "clone", symlinks=True)
    monkeypatch.chdir(tmp_path / "clone")
    return tmp_path / "clone"


def run_command(words, cli, cwd):
    """Run one command as a shell would, made short; it must succeed."""
    words = [w for word in words for w in (sorted(glob.glob(word, root_dir=cwd)) if "*" in word else [word])]
    name, *arguments = words[1:] if words[0] == "minicl" else words
    out = None
    if ">" in arguments:
        arguments, out = arguments[: arguments.index(">")], arguments[-1]
    if words[0] == "minicl":
        short = [] if INSTEAD & {*arguments} else list(SHORTER.get(name, []))
        if name == "train":
            steps = int(arguments[arguments.index("--steps") + 1]) if "--steps" in arguments else DEMO
            short += ["--steps", str(steps // 100)]
        result = cli(name, *arguments, *short, cwd=cwd)
    else:
        assert words[0] == "python", f"{shlex.join(words)}: this test knows only minicl and python"
        result = subprocess.run([sys.executable, *words[1:]], cwd=cwd, capture_output=True, text=True)
    assert result.returncode == 0, f"{shlex.join(words)}\n{result.stderr}"
    if out is not None:
        (cwd / out).write_text(result.stdout)


def check_flags(words):
    """A command that takes hours is only read."""
    if words[0] == "minicl":
        parser = Parser(f"minicl {words[1]}", allow_abbrev=False)
        parser.argv = words[2:]
        import_module(f"minicl.{COMMANDS[words[1]][0]}").add_arguments(parser)
        parser.parse_args(words[2 : words.index(">") if ">" in words else None])
    elif words[0] == "python":
        assert (ROOT / words[1]).is_file(), shlex.join(words)


@pytest.mark.parametrize("file", FILES, ids=lambda f: f.name)
def test_what_is_pasted_works(file, clone, cli):
    namespace = {}
    for kind, long, text in blocks(file):
        if kind == "python" and "@strategy" in text:
            (clone / "my.py").write_text(text)  # the commands that follow read it
        elif kind == "python":
            with contextlib.redirect_stdout(None):
                exec(text, namespace)
        for words in commands(text) if kind == "sh" else ():
            if long:
                check_flags(words)
            elif not shlex.join(words).startswith(SET_UP):
                run_command(words, cli, clone)


def test_every_command_is_shown_somewhere():
    shown = {words[1] for file in FILES for kind, _, text in blocks(file) if kind == "sh"
             for words in commands(text) if words[0] == "minicl"}  # fmt: skip
    assert shown >= set(COMMANDS) - {"play"}


def test_links_lead_to_files():
    for file in FILES:
        for path in re.findall(r"\]\(([^)#]+)", file.read_text(encoding="utf-8")):
            assert path.startswith("http") or (file.parent / path).exists(), f"{file.name}: {path}"
