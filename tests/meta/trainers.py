"""What tests of the trainers share."""

import subprocess
import sys
from pathlib import Path

import torch

from hyperadam.meta import preset

ROOT = Path(__file__).parents[2]
WORKER = """
import sys, torch, torch.distributed as dist
from pathlib import Path
sys.path.insert(0, {root!r})
from hyperadam.meta import make_trainer, ranks
from {module} import SETTINGS
from tests.meta.trainers import finish
torch.set_num_threads(1)
ranks.join()
trainer = make_trainer(SETTINGS, Path(sys.argv[1]))
finish(trainer)
if trainer.rank == 0:
    end = dict(rule=trainer.rule.state_dict(), curve=[tuple(x) for x in trainer.curve])
    torch.save(end, sys.argv[1] + "/end.pt")
if dist.is_initialized():
    dist.destroy_process_group()
"""


def rule():
    """HyperAdam2 as meta-training begins with it."""
    return preset("hyperadam2").make_rule().requires_grad_(False)


def finish(trainer, until=None):
    """Train to the end, or until an update; returns what each update saw."""
    rounds = []
    trainer.run(
        lambda outcome, value: rounds.append(outcome),
        lambda: until is not None and trainer.update >= until,
    )
    return rounds


def same(a, b):
    """Whether two rules have the same weights, bit for bit."""
    pairs = zip(a.state_dict().values(), b.state_dict().values(), strict=True)
    return all(torch.equal(x, y) for x, y in pairs)


def on_one_and_two_ranks(folder, module):
    """The end of meta-training by a module's ``SETTINGS``, alone and spread over two ranks."""
    script = folder / "worker.py"
    script.write_text(WORKER.format(root=str(ROOT), module=module))
    torchrun = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    for options, out in (([], "one"), (torchrun, "two")):
        subprocess.run(
            [sys.executable, *options, str(script), str(folder / out)],
            check=True,
            capture_output=True,
            timeout=600,
        )
    return [torch.load(folder / out / "end.pt", weights_only=True) for out in ("one", "two")]
