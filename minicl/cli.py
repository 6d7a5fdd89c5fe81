"""The `minicl` command: one sub-command for each job. Bad input is one line on standard error and exit status 2."""

import argparse
import os
import re
import shlex
import sys
from collections.abc import Sequence
from difflib import get_close_matches
from importlib import import_module

from minicl import __version__, completion
from minicl.checks import InputError, choose
from minicl.plugins import Untrusted

COMMANDS = {  # the module of each, and what it does
    "train": ("training", "train a mask strategy on a function class"),
    "evaluate": ("evaluation", "measure trained runs: curves, shifts, lengths"),
    "audit": ("auditing", "certify what a mask strategy guarantees"),
    "probe": ("probe", "read targets and weights from the layers of trained runs"),
    "theory": ("theory", "compare masks whose weights are set by hand with optimisers"),
    "study": ("study.run", "run the study: train what is missing, measure, draw, judge the paper's claims"),
    "search": ("search", "race a whole class of masks, those that go by the kinds of tokens"),
    "bench": ("bench", "measure what strategies cost"),
    "play": ("play", "open the page in which a class sees what a mask does"),
}


class Parser(argparse.ArgumentParser):
    """An argument parser whose complaint is a single line. `argv` is what it will be given."""

    argv: Sequence[str] = ()

    def error(self, message):
        unknown = re.match(r"unrecognized arguments: (--[\w-]+)", message)
        near = get_close_matches(unknown[1], self._option_string_actions, n=1) if unknown else []
        message += f" (did you mean {near[0]}?)" if near else ""
        self.exit(2, f"{self.prog}: {message}\n")


def main(argv: Sequence[str] | None = None, command: str | None = None) -> int:
    """Run `minicl COMMAND …`; scripts such as train.py name their command themselves."""
    argv = sys.argv[1:] if argv is None else list(argv)
    if command is None:
        command, argv = _command(argv), argv[1:]
    if command is None:
        return 0
    module, parser = _parser(command, argv)
    if hasattr(sys.stdout, "reconfigure"):
        sys.stdout.reconfigure(errors="replace")  # a terminal that knows no → shows a ?
    try:
        module.add_arguments(parser)
        status = module.run(parser.parse_args(argv))
        sys.stdout.flush()
        return status
    except Untrusted as error:
        again = shlex.join([*parser.prog.split(), *argv, "--trust"])
        parser.error(f"{error.what}; if you trust it: {again}")
    except InputError as error:
        parser.error(" ".join(str(error).split()))
    except KeyboardInterrupt:
        return 130
    except (RuntimeError, MemoryError) as error:
        if isinstance(error, RuntimeError) and not any(w in str(error).lower() for w in ("memory", "overflow")):
            raise
        print(f"{parser.prog}: not enough memory for this size", file=sys.stderr)
        return 1
    except OSError as error:
        # Keep the interpreter from complaining again when it closes the pipe or the full disk.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        if isinstance(error, BrokenPipeError):  # the reader (head, less) has seen enough
            return 0
        print(f"{parser.prog}: {error}", file=sys.stderr)
        return 1


def _parser(command, argv):
    """A command's module, and its parser without arguments yet."""
    name, text = COMMANDS[command]
    parser = Parser(f"minicl {command}", description=text, allow_abbrev=False)
    parser.argv = argv
    return import_module(f"minicl.{name}"), parser


def _completion(shell, main):
    """The script that completes all commands."""
    parsers = {}
    for command in COMMANDS:
        module, parsers[command] = _parser(command, ())
        module.add_arguments(parsers[command])
    return completion.script(shell, main, parsers)


def _command(argv):
    """The command's name; None if only help or completion was wanted."""
    parser = Parser("minicl", description="Who may look at whom when a transformer learns from its prompt?")
    parser.add_argument("command", nargs="?", metavar="command", help="one of those below; `minicl COMMAND --help`")
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.epilog = "\n".join(["commands:", *(f"  {name:<10} {text}" for name, (_, text) in COMMANDS.items())])
    parser.add_argument("--version", action="version", version=f"minicl {__version__}")
    parser.add_argument("--completion", choices=completion.SHELLS, help="print a script that completes words on Tab")
    args = parser.parse_args(argv[: 2 if argv[:1] == ["--completion"] else 1])
    command = args.command
    if command is None:
        print(_completion(args.completion, parser) if args.completion else parser.format_help(), end="")
        return None
    try:
        return choose("command", command, tuple(COMMANDS))
    except InputError as error:
        parser.error(str(error))
