"""The command line, one thin layer: ``hyperadam COMMAND …``, or ``python -m hyperadam COMMAND …``."""

from __future__ import annotations

import argparse
import os
import sys
import traceback
from collections.abc import Sequence
from typing import NoReturn

import hyperadam
from hyperadam.commands import (
    compare,
    data,
    demo,
    meta_train,
    report,
    reproduce,
    suite,
    tasks,
    train,
    tune,
    weights,
)
from hyperadam.data import DataError

#: Every command, in the order of the help. A command is a module with ``add(commands)``.
COMMANDS = (demo, train, compare, tune, reproduce, suite, report, meta_train, tasks, data, weights)

EPILOG = """
first steps:
  hyperadam demo                                  see it at work, in a couple of minutes
  hyperadam tasks                                 what there is to train
  hyperadam compare mnist-mlp --optimizers hyperadam,adam,sgd
  hyperadam reproduce all --quick                 a coarse version of every experiment
  hyperadam COMMAND --help                        examples of every command
"""


class Parser(argparse.ArgumentParser):
    """A parser whose errors are one line."""

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"{self.prog}: {message} (see {self.prog} --help)\n")


def build_parser() -> argparse.ArgumentParser:
    """The parser of all commands."""
    parser = Parser(
        prog="hyperadam",
        description="HyperAdam, a learned optimizer, and the experiments around it.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=f"hyperadam {hyperadam.__version__}")
    parser.add_argument("--debug", action="store_true", help="show where an error comes from")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for command in COMMANDS:
        command.add(commands)
    return parser


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command; the exit status: 0, 1 if some jobs failed, 2 for an error (told in one line), 130 after Ctrl-C."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    words = [word for word in given if word != "--debug"]  # anywhere on the line
    options = build_parser().parse_args(words, argparse.Namespace(debug=len(words) < len(given)))
    try:
        options.run(options)
        sys.stdout.flush()
    except KeyboardInterrupt:
        return _fail(options, "interrupted; what is finished is kept", 130)
    except BrokenPipeError:
        # the reader has gone, as with `| head`: the interpreter must not try to flush to it again
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 141
    except OSError as error:
        where = f"{error.filename}: " if error.filename else ""
        return _fail(options, f"{where}{error.strerror or error}", 2)
    except (ValueError, DataError, MemoryError) as error:
        return _fail(options, str(error) or type(error).__name__, 2)
    except Exception as error:
        return _fail(
            options,
            f"unexpected {type(error).__name__}: {error} (a bug: hyperadam --debug … shows where)",
            2,
        )
    failures = getattr(options, "failures", [])
    for failure in failures:
        print(f"hyperadam: {failure.label}: {failure.error}", file=sys.stderr)
    return 1 if failures else 0


def _fail(options: argparse.Namespace, message: str, status: int) -> int:
    """One line on stderr, after the traceback if it was asked for."""
    if options.debug:
        traceback.print_exc()
    print(f"hyperadam: {' '.join(message.split())}", file=sys.stderr)
    return status
