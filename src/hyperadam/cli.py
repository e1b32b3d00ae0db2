"""The command line, one thin layer: ``hyperadam COMMAND …``, or ``python -m hyperadam COMMAND …``."""

from __future__ import annotations

import argparse
import importlib
import os
import sys
import traceback
from collections.abc import Sequence
from typing import NoReturn

from hyperadam import __version__
from hyperadam.commands import user_code

#: Every command, in the order of the help, and what it does. It is the module of its name in
#: ``commands``, with ``EXAMPLES``, ``add(parser)`` and ``run(options)``, and is imported when it is
#: given: help and version come at once.
COMMANDS = {
    "demo": "fetch MNIST and compare ours with Adam and SGD on a handful of networks",
    "train": "train a task from many seeds at once and show how it went",
    "compare": "train tasks with several optimizers and compare them",
    "inspect": "train a task and show what a learned optimizer does inside",
    "tune": "find learning rates on a grid and store them",
    "reproduce": "compute the paper's experiments",
    "suite": "compare optimizers on networks as people build them",
    "report": "write tables, figures, and one page beside the paper's",
    "meta-train": "meta-train a rule, or resume meta-training it",
    "tasks": "list the tasks",
    "data": "list, fetch or verify datasets",
    "weights": "list the shipped weights, show where some come from, or ship more",
}

EPILOG = """
first steps:
  hyperadam demo                                  see it at work, in a few minutes
  hyperadam tasks                                 what there is to train
  hyperadam compare mnist-mlp --optimizers hyperadam,adam,sgd
  hyperadam inspect mnist-mlp                     what it does inside, in figures
  hyperadam reproduce all --quick                 a coarse version of every experiment
  hyperadam COMMAND --help                        examples of every command
"""


class Parser(argparse.ArgumentParser):
    """A parser whose errors are one line."""

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"{self.prog}: {message} (see {self.prog} --help)\n")


def build_parser(chosen: str | None = None) -> argparse.ArgumentParser:
    """The parser: of all commands their names, of the chosen one all options."""
    parser = Parser(
        prog="hyperadam",
        description="Learned optimizers, and the experiments around them.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=f"hyperadam {__version__}")
    parser.add_argument("--debug", action="store_true", help="show where an error comes from")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for name, summary in COMMANDS.items():
        command = commands.add_parser(name, help=summary)
        if name == chosen:
            module = importlib.import_module(f"hyperadam.commands.{name.replace('-', '_')}")
            command.description = summary[0].upper() + summary[1:] + "."
            command.epilog = "examples:\n" + module.EXAMPLES.strip("\n")
            command.formatter_class = argparse.RawDescriptionHelpFormatter
            command.set_defaults(run=module.run)
            module.add(command)
    return parser


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command; the exit status: 0, 1 if some jobs failed, 2 for an error (told in one line), 130 after Ctrl-C."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    words = [word for word in given if word != "--debug"]  # anywhere on the line
    options = argparse.Namespace(debug=len(words) < len(given))
    chosen = next((word for word in words if not word.startswith("-")), None)
    try:
        options = build_parser(chosen).parse_args(words, options)
        options.run(options)
        sys.stdout.flush()
    except KeyboardInterrupt:
        kept = "what is finished is kept, and the same command goes on from there"
        resumes = getattr(options, "resumes", False)
        return _fail(options, f"interrupted; {kept}" if resumes else "interrupted", 130)
    except BrokenPipeError:
        # the reader has gone, as with `| head`: the interpreter must not try to flush to it again
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 141
    except Exception as error:
        return _fail(options, told(error, options), 2)
    failures = getattr(options, "failures", [])
    for failure in failures:
        print(f"hyperadam: {failure.label}: {failure.error}", file=sys.stderr)
    return 1 if failures else 0


def told(error: Exception, options: argparse.Namespace) -> str:
    """An error for the one who gave the command: what is wrong, and whose business it is."""
    if getattr(options, "module", None) and (place := user_code.place(error)):
        return f"--import {options.module}: {place}"
    if isinstance(error, ModuleNotFoundError) and not (error.name or "").startswith("hyperadam"):
        return f"this command needs {error.name}, which is not there: pip install 'hyperadam[lab]'"
    if isinstance(error, OSError):
        where = f"{error.filename}: " if error.filename else ""
        return f"{where}{error.strerror or error}"
    if isinstance(error, ValueError | MemoryError):
        return str(error) or type(error).__name__
    from hyperadam.data import DataError

    if isinstance(error, DataError):
        return str(error)
    return f"unexpected {type(error).__name__}: {error} (a bug: hyperadam --debug … shows where)"


def _fail(options: argparse.Namespace, message: str, status: int) -> int:
    """One line on stderr, after the traceback if it was asked for."""
    if options.debug:
        traceback.print_exc()
    print(f"hyperadam: {' '.join(message.split())}", file=sys.stderr)
    return status
