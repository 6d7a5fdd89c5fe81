"""Processes that do a part of the work."""

import signal
from pathlib import Path

from minicl import children


def say(*words):
    """What a child does here."""
    import statistics

    print(*words, statistics.__name__)
    return 3 if words == ("fail",) else 0


def test_a_child_calls_the_function_and_its_words_are_kept(tmp_path, monkeypatch):
    """Also in a folder with modules of the user's own: those are not imported."""
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parent))
    (tmp_path / "statistics.py").write_text("raise SystemExit('a module of this folder ran')\n")
    monkeypatch.chdir(tmp_path)
    process = children.start(say, "hello", log=tmp_path / "log")
    assert process.wait(600) == 0 and (tmp_path / "log").read_text() == "hello statistics\n"
    failing = children.start(say, "fail", log=tmp_path / "log")
    assert failing.wait(600) == 3 and children.complaint(failing, tmp_path / "log") == "fail statistics"
    failing.returncode = -signal.SIGKILL
    assert children.complaint(failing, tmp_path / "log") == "killed by SIGKILL"
