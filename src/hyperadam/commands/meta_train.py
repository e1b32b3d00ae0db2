"""``hyperadam meta-train``: learn a rule from the training of small networks."""

from __future__ import annotations

import argparse
import json
import signal
from dataclasses import fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist

from hyperadam.commands import common
from hyperadam.meta import PRESETS, Settings, make_trainer, preset, ranks
from hyperadam.meta.log import UpdateLog
from hyperadam.meta.training import Judgement, MetaTrainer, Outcome
from hyperadam.rules import RULES

if TYPE_CHECKING:
    from hyperadam.commands.common import Commands

EXAMPLES = """
  hyperadam meta-train --preset hyperadam --out runs/hyperadam
  hyperadam meta-train --preset hyperadam --seed 1 --updates 5000 --out runs/longer
  hyperadam meta-train --rule rnnprop --preset rnnprop --out runs/rnnprop
  hyperadam meta-train --preset hyperadam2 --out runs/hyperadam2
  torchrun --nproc-per-node 2 -m hyperadam meta-train --preset hyperadam --rollouts 4 --out runs/two-ranks

The same command again resumes where the last one stopped: after Ctrl-C or SIGTERM, at most a minute earlier after a crash.
The weights with the best validation so far are in DIR/best.safetensors: hyperadam.HyperAdam(params, weights=that file).
DIR/log.jsonl has a line for each meta-update; with tensorboard installed, the same is in DIR for it.
"""

#: Settings that the command line does not offer one by one.
_HIDDEN = ("rule", "config")


def add(commands: Commands) -> None:
    """Describe the command: an option for every field of the settings, with the preset's value as its default."""
    parser = common.add_parser(
        commands, "meta-train", "meta-train a rule, or resume meta-training it", EXAMPLES
    )
    parser.add_argument(
        "--preset",
        default="hyperadam",
        metavar="NAME",
        help=f"where to start from: {', '.join(PRESETS)}",
    )
    parser.add_argument("--rule", choices=list(RULES), help="refuse a preset of another rule")
    parser.add_argument(
        "--config",
        type=_options,
        metavar="JSON",
        help="the rule's options, as in '{\"candidates\": 10}'",
    )
    parser.add_argument(
        "--out",
        type=Path,
        required=True,
        metavar="DIR",
        help="where checkpoints, logs and weights go",
    )
    parser.add_argument(
        "--save-every",
        type=common.seconds,
        default=60.0,
        metavar="SECONDS",
        help="between checkpoints (default 60)",
    )
    parser.add_argument(
        "--threads",
        type=common.positive,
        metavar="N",
        help="threads to compute with (default: torch's choice)",
    )
    common.add_import_option(parser)
    group = parser.add_argument_group("settings", "each defaults to the preset's")
    for field in fields(Settings):
        if field.name not in _HIDDEN:
            _add_setting(group, field.name, getattr(Settings(), field.name), field.metadata["help"])
    parser.set_defaults(run=run)


def _add_setting(group: argparse._ArgumentGroup, name: str, default: Any, about: str) -> None:
    flag = f"--{name.replace('_', '-')}"
    if isinstance(default, bool):
        group.add_argument(flag, action=argparse.BooleanOptionalAction, default=None, help=about)
    elif isinstance(default, tuple):
        kind = _numbers if default and isinstance(default[0], int) else _names
        group.add_argument(flag, type=kind, metavar="A,B,…", help=about)
    else:
        group.add_argument(
            flag, type=int if default is None else type(default), metavar="X", help=about
        )


def _names(text: str) -> tuple[str, ...]:
    """Names with commas between them; none if there is nothing."""
    return tuple(text.split(",")) if text else ()


def _numbers(text: str) -> tuple[int, ...]:
    """Whole numbers with commas between them."""
    try:
        return tuple(int(part) for part in _names(text))
    except ValueError:
        raise argparse.ArgumentTypeError(
            f"expected whole numbers with commas between them, got {text[:80]!r}"
        ) from None


def _options(text: str) -> dict[str, Any]:
    """A rule's options."""
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        found = None
    if not isinstance(found, dict):
        raise argparse.ArgumentTypeError(
            f"expected a JSON object, as in '{{\"candidates\": 10}}', got {text[:80]!r}"
        )
    return found


def settings(options: argparse.Namespace) -> Settings:
    """The preset with what the command line changes."""
    base = preset(options.preset)
    if options.rule and options.rule != base.rule:
        raise ValueError(
            f"preset {options.preset!r} is for the rule {base.rule!r}, not {options.rule!r}"
        )
    given = {f.name: getattr(options, f.name) for f in fields(Settings) if f.name != "rule"}
    return replace(base, **{name: value for name, value in given.items() if value is not None})


def run(options: argparse.Namespace) -> None:
    """Train, with progress and logs, until the end or a signal."""
    common.prepare(
        options, torch.get_num_threads()
    )  # resumed, it repeats its bits: not as many as happen to be idle
    torch.set_flush_denormal(True)  # vanishing gradients leave subnormal moments, which are slow
    chosen = settings(options)
    ranks.join()
    with ranks.alone_in(options.out):
        trainer = make_trainer(chosen, options.out)
        stopping = Stopping()
        with Log(trainer) as log:
            if trainer.update == 0:
                log.validation(trainer.validate())
            trainer.run(log, stopping, options.save_every)
    if dist.is_initialized():
        dist.destroy_process_group()
    if trainer.update < trainer.settings.updates:
        raise KeyboardInterrupt
    if trainer.rank == 0:
        print(f"best validation {trainer.best:.4f}: {options.out / 'best.safetensors'}")


class Stopping:
    """Whether SIGINT or SIGTERM has come. A second one acts at once."""

    def __init__(self) -> None:
        self.asked = False
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, self._ask)

    def _ask(self, number: int, frame: Any) -> None:
        self.asked = True
        signal.signal(
            number, signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL
        )

    def __call__(self) -> bool:
        """The same answer on every rank: one that stopped alone would leave the others waiting."""
        if dist.is_initialized():
            flag = torch.tensor(float(self.asked))
            dist.all_reduce(flag)
            return bool(flag)
        return self.asked


class Log:
    """Progress on the terminal, a line of JSON for each meta-update, and TensorBoard's files if it is installed."""

    def __init__(self, trainer: MetaTrainer) -> None:
        self.trainer, self.line = trainer, common.ProgressLine()
        self.file: UpdateLog | None = None
        self.board: Any = None

    def __enter__(self) -> Log:
        if self.trainer.rank == 0:
            self.file = UpdateLog(self.trainer.out / "log.jsonl", self.trainer.update)
            try:
                from torch.utils.tensorboard import SummaryWriter

                self.board = SummaryWriter(self.trainer.out)
            except ImportError:
                pass
        return self

    def __exit__(self, *_: object) -> None:
        self.line.close()
        for target in (self.file, self.board):
            if target is not None:
                target.close()

    def __call__(self, outcome: Outcome, validation: Judgement | None) -> None:
        if self.file is None:
            return
        trainer, about = self.trainer, outcome.describe()
        entry = outcome._asdict() | {
            "validation": validation and validation._asdict(),
            "seconds": round(trainer.seconds, 2),
        }
        self.file.add(entry)
        if self.board is not None:
            self.board.add_scalars("loss", outcome.values(), outcome.update)
            self.board.add_scalar("norm", outcome.norm, outcome.update)
        if validation is not None:
            self.validation(validation)
        wrong = f", {trainer.diverged} diverged" if trainer.diverged else ""
        wrong += f", {trainer.nonfinite} non-finite" if trainer.nonfinite else ""
        share = outcome.update / trainer.settings.updates
        label = (
            f"update {outcome.update}{about and ', ' + about}, best {trainer.best:.4f}{wrong}"
            if self.line.live
            else "meta-training"
        )
        self.line(label, share)

    def validation(self, result: Judgement) -> None:
        """A line of its own for a result of validation."""
        if self.file is None:
            return
        self.line.close()
        best = "  best so far" if result.score == self.trainer.best else ""
        print(f"update {result.update:6}  validation {result.describe()}{best}", flush=True)
        if self.board is not None:
            values = {name: x for name, x in result._asdict().items() if name != "update"}
            self.board.add_scalars("validation", values, result.update)
