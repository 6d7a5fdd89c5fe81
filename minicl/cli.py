"""The `minicl` command: one sub-command a job. Bad input is one line on standard error and exit status 2."""

import argparse
import os
import sys
from importlib import import_module

from minicl import __version__
from minicl.errors import InputError

COMMANDS = {
    "train": "train a mask strategy on a function class",
    "evaluate": "measure trained runs: curves, shifts, lengths",
    "audit": "certify what a mask strategy guarantees",
    "probe": "read targets and weights from the layers of trained runs",
    "theory": "carry out the optimiser that each mask is with weights set by hand",
    "figures": "carry out the study: train what is missing, measure, draw, judge the paper's claims",
    "bench": "measure what strategies cost",
}


class Parser(argparse.ArgumentParser):
    """An argument parser whose complaint is a single line."""

    def error(self, message):
        self.exit(2, f"{self.prog}: {message}\n")


def main(argv=None, command=None):
    """Run `minicl COMMAND …`; scripts such as train.py name their command themselves."""
    argv = sys.argv[1:] if argv is None else list(argv)
    if command is None:
        parser = Parser("minicl", description="Who may look at whom when a transformer learns from its prompt?")
        parser.add_argument("command", choices=COMMANDS, metavar="command", help=", ".join(COMMANDS))
        parser.formatter_class = argparse.RawDescriptionHelpFormatter
        parser.epilog = "\n".join(["commands:", *(f"  {name:<10} {text}" for name, text in COMMANDS.items())])
        parser.add_argument("--version", action="version", version=f"minicl {__version__}")
        command = parser.parse_args(argv[:1]).command
        argv = argv[1:]
    module = import_module(f"minicl.{command}")
    parser = Parser(f"minicl {command}", description=COMMANDS[command], allow_abbrev=False)
    module.add_arguments(parser)
    if hasattr(sys.stdout, "reconfigure"):
        sys.stdout.reconfigure(errors="replace")  # a terminal that knows no → shows a ?
    try:
        status = module.run(parser.parse_args(argv))
        sys.stdout.flush()
        return status
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


if __name__ == "__main__":
    sys.exit(main())
