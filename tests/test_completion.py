"""`minicl --completion`: the script is run by bash itself."""

import subprocess

import pytest
from conftest import assert_one_line

from minicl.cli import COMMANDS
from minicl.config import PRESETS


@pytest.fixture
def complete(cli, tmp_path):
    """What bash offers for the last word of a command line."""
    file = tmp_path / "minicl.bash"
    file.write_text(cli("--completion", "bash").stdout)
    ask = 'source "$1"; shift; COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1)); _minicl; printf "%s\\n" "${COMPREPLY[@]}"'

    def offered(*words):
        result = subprocess.run(["bash", "-uc", ask, "bash", file, *words], capture_output=True, text=True, check=True)
        assert result.stderr == ""
        return result.stdout.split()

    return offered


def test_bash_completes_commands_flags_and_choices(complete):
    assert complete("minicl", "tr") == ["train"]
    assert complete("minicl", "") == [*COMMANDS, "-h", "--help", "--version", "--completion"]
    assert complete("minicl", "train", "--pre") == ["--preset", "--precision"]
    assert complete("minicl", "train", "--preset", "s") == ["small"]
    assert complete("minicl", "train", "--preset", "") == [*PRESETS]
    assert complete("minicl", "train", "--preset", "=") == [*PRESETS], "bash cuts words at ="
    assert complete("minicl", "train", "--preset", "=", "s") == ["small"]
    assert complete("minicl", "train", "--seed", "1", "--schedule", "co") == ["constant", "cosine"], "checked by minicl"
    assert complete("minicl", "train", "--comp") == ["--compile"]
    assert complete("minicl", "train", "--no-c") == ["--no-clean", "--no-compile", "--no-cuda-graphs"]
    assert complete("minicl", "evaluate", "runs/a", "--train") == ["--training"]
    assert complete("minicl", "train", "--json", "--threa") == ["--threads"], "a flag without a value"


def test_where_it_knows_nothing_bash_offers_files(complete):
    for words in (["evaluate", "ru"], ["evaluate", ""], ["train", "--out", ""], ["train", "--out", "-"], ["x", "y"]):
        assert complete("minicl", *words) == []


def test_zsh_reads_the_same_script_and_other_shells_are_refused(cli):
    bash, zsh = (cli("--completion", shell).stdout for shell in ("bash", "zsh"))
    assert zsh == f"autoload -U +X bashcompinit && bashcompinit\n{bash}"
    assert_one_line(cli("--completion", "tcsh"), "--completion", "tcsh", "bash")
    assert_one_line(cli("--completion"), "--completion", "expected one argument")
