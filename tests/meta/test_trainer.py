"""The trainer: it learns, resumes to the bit, survives damage, and N ranks are one."""

import dataclasses
import json
import math
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from hyperadam import load_rule, tasks
from hyperadam.data.catalog import MNIST
from hyperadam.kernels.tape import NativeTape
from hyperadam.meta import PRESETS, Settings, Trainer, preset
from hyperadam.meta.settings import LATER
from hyperadam.meta.validation import final_losses
from hyperadam.rules.pace import root_mean_square, tensor_scale
from tests.meta import toys
from tests.meta.trainers import finish, same

ROOT = Path(__file__).parents[2]
SETTINGS = Settings(
    config={"candidates": 3, "decay_bound": 0.97},
    tasks=("toy-bowl",),
    start="near-adam",
    lengths=(40, 20),
    period=10,
    updates=24,
    rollouts=2,
    exact_from=8,
    relative=True,
    lr=1e-2,
    validate_every=6,
    validation_runs=3,
    validation_steps=20,
)


@pytest.fixture(autouse=True)
def toy():
    toys.register()


def test_it_learns(tmp_path):
    trainer = Trainer(dataclasses.replace(SETTINGS, updates=150), tmp_path)
    before = trainer.validate().plain
    rounds = finish(trainer)
    assert len(rounds) == 150
    assert min(result.plain for result in trainer.curve) < 0.8 * before
    rule = load_rule(tmp_path / "best.safetensors")
    assert rule.provenance["settings"]["seed"] == 0
    assert rule.provenance["data"] == {}  # the bowl is made of random numbers
    assert rule.provenance["preset"] is None
    *_, (update, plain, scaled) = rule.provenance["validation"]
    assert update == rule.provenance["updates"]
    assert (plain + scaled) / 2 == pytest.approx(trainer.best, abs=1e-5)


def test_other_tasks_have_half_of_the_say(tmp_path):
    settings = dataclasses.replace(
        SETTINGS, others=("toy-wide-bowl", "toy-bowl"), updates=6, validation_runs=4
    )
    finish(Trainer(settings, tmp_path), until=6)
    resumed = Trainer(settings, tmp_path)  # its validations come back from the checkpoint
    (judged,) = resumed.curve
    assert judged == resumed.judge()
    plain = final_losses(resumed.average, tasks.get("toy-bowl"), 4, 20).mean().item()
    wide = final_losses(resumed.average, tasks.get("toy-wide-bowl"), 4, 20).mean().item()
    assert judged.plain == pytest.approx(plain)
    assert judged.others == pytest.approx(math.sqrt(plain * wide))
    expected = math.log(judged.plain * judged.scaled) / 4 + math.log(judged.others) / 2
    assert judged.score == resumed.best == pytest.approx(expected)
    assert len(load_rule(tmp_path / "best.safetensors").provenance["validation"][0]) == 4


def test_large_learners_have_a_quarter_of_the_runs(tmp_path, monkeypatch):
    seen = []

    def count(rule, task, runs, *_, **__):
        seen.append((task.p, runs))
        return torch.ones(runs)

    monkeypatch.setattr("hyperadam.meta.trainer.final_losses", count)
    settings = dataclasses.replace(SETTINGS, others=("toy-wide-bowl",), validation_runs=8)
    trainer = Trainer(settings, tmp_path)
    trainer.others[0].runs_at_once = 1
    trainer.judge()
    assert seen == [(7, 8), (7, 8), (300, 2)]


def test_provenance_names_preset_and_data(tmp_path):
    about = Trainer(dataclasses.replace(preset("hyperadam"), seed=5), tmp_path).provenance()
    assert about["preset"] == "hyperadam"
    assert about["data"] == {"mnist": MNIST.sha256}


def test_resuming_repeats_the_uninterrupted_run_bit_for_bit(tmp_path):
    whole = Trainer(SETTINGS, tmp_path / "whole")
    finish(whole)
    finish(Trainer(SETTINGS, tmp_path / "parts"), until=5)
    finish(Trainer(SETTINGS, tmp_path / "parts"), until=13)
    resumed = Trainer(SETTINGS, tmp_path / "parts")
    assert resumed.update == 13
    finish(resumed)
    assert same(whole.rule, resumed.rule)
    assert same(whole.average, resumed.average)
    assert whole.curve == resumed.curve
    assert (tmp_path / "whole/best.safetensors").stat().st_size == (
        tmp_path / "parts/best.safetensors"
    ).stat().st_size


def test_other_settings_are_refused(tmp_path):
    finish(Trainer(SETTINGS, tmp_path), until=2)
    for other in ({"lr": 1e-4}, {"horizon": True}):
        with pytest.raises(ValueError, match="other settings"):
            Trainer(dataclasses.replace(SETTINGS, **other), tmp_path)


SAMPLED = dataclasses.replace(
    SETTINGS, tasks=("toy-wide-bowl",), exact_from=None, backward=0.25, validate_every=12
)


def test_a_sampled_backward_resumes_bit_for_bit(tmp_path):
    whole = Trainer(SAMPLED, tmp_path / "whole")
    rounds = finish(whole)
    finish(Trainer(SAMPLED, tmp_path / "parts"), until=5)
    resumed = Trainer(SAMPLED, tmp_path / "parts")
    finish(resumed)
    assert same(whole.rule, resumed.rule)
    assert whole.curve == resumed.curve
    assert whole.provenance()["settings"]["backward"] == 0.25
    assert "changes" not in resumed.provenance()
    assert all(outcome.norm > 0 for outcome in rounds)


def test_a_sampled_backward_changes_nothing_but_the_meta_gradient(tmp_path):
    one, other = (
        Trainer(dataclasses.replace(SAMPLED, backward=share), tmp_path / str(share))
        for share in (1.0, 0.25)
    )
    assert type(one.tape) is NativeTape
    first, second = one.step(), other.step()
    assert first.losses == pytest.approx(second.losses, rel=1e-5)
    assert first.norm != second.norm


def test_the_share_may_change_on_the_way_and_provenance_says_so(tmp_path, capsys):
    all_of_them = dataclasses.replace(SAMPLED, backward=1.0)
    finish(Trainer(all_of_them, tmp_path), until=5)
    finish(Trainer(SAMPLED, tmp_path), until=9)
    told = capsys.readouterr().err
    assert told.count("\n") == 1
    assert "from update 5 on, backward is 0.25, no longer 1.0" in told
    trainer = Trainer(SAMPLED, tmp_path)  # nothing changes now: nothing is said
    assert capsys.readouterr().err == ""
    assert trainer.provenance()["changes"] == [[5, "backward", 1.0, 0.25]]
    back = Trainer(all_of_them, tmp_path)
    assert back.provenance()["changes"] == [
        [5, "backward", 1.0, 0.25],
        [9, "backward", 0.25, 1.0],
    ]
    assert "backward" not in back.provenance()["settings"]
    with pytest.raises(ValueError, match="other settings"):
        Trainer(dataclasses.replace(SAMPLED, lr=1e-4), tmp_path)


def test_settings_say_what_came_later_only_where_it_is_on():
    """Checkpoints and weights from before it compare as they did."""
    assert "horizon" not in SETTINGS.as_dict()
    assert dataclasses.replace(SETTINGS, horizon=True).as_dict()["horizon"] is True
    known = {field.name for field in dataclasses.fields(Settings)}
    assert set(SETTINGS.as_dict()) == known - set(LATER)


KNOWING = dataclasses.replace(
    SETTINGS, config={"candidates": 3, "decay_bound": 0.97, "relative": True}, horizon=True
)


def test_relative_rules_with_a_horizon_resume_bit_for_bit(tmp_path):
    """The sizes of the start and the length of a rollout are found again."""
    whole = Trainer(KNOWING, tmp_path / "whole")
    finish(whole)
    finish(Trainer(KNOWING, tmp_path / "parts"), until=5)
    resumed = Trainer(KNOWING, tmp_path / "parts")
    for old in resumed.rollouts:
        assert old.position.step > 0 or old.number > 0
    finish(resumed)
    assert same(whole.rule, resumed.rule)
    assert whole.curve == resumed.curve
    rule = load_rule(tmp_path / "whole/best.safetensors")
    assert rule.relative
    assert rule.provenance["settings"]["horizon"] is True


def test_rollouts_may_take_shorter_steps_than_the_rule_in_use(tmp_path):
    """They then are those of a rule with such a step size; validation takes the rule's own."""
    config = SETTINGS.config | {"step_size": 0.02}
    longer = dataclasses.replace(SETTINGS, config=config, shorter=4.0, updates=3)
    trainer = Trainer(longer, tmp_path / "longer")
    assert {rollout.size(t) for rollout in trainer.rollouts for t in (1, 20)} == {0.005}
    finish(trainer)
    usual = Trainer(
        dataclasses.replace(longer, config=SETTINGS.config, shorter=1.0), tmp_path / "x"
    )
    finish(usual)
    assert same(trainer.rule, usual.rule)
    assert trainer.curve != usual.curve
    assert load_rule(tmp_path / "longer/best.safetensors").step_size == 0.02


def test_rollouts_know_their_own_length(tmp_path):
    trainer = Trainer(dataclasses.replace(KNOWING, rollouts=4, lengths=(40,)), tmp_path)
    for rollout in trainer.rollouts:
        scale = rollout.size(1) / (0.005 * trainer.rule.pace(1, rollout.length))
        last = 0.005 * trainer.rule.pace(rollout.length, rollout.length)
        torch.testing.assert_close(rollout.size(rollout.length), scale * last)
        # the bowl, and what is added to it, each by its size before Random Scaling
        shapes = rollout.learner.shapes
        parts = rollout.learner.unscaled().split([math.prod(shape) for shape in shapes], dim=1)
        assert len(parts) == 2
        sizes = [
            tensor_scale(root_mean_square(x).double(), shape).expand_as(x)
            for x, shape in zip(parts, shapes, strict=True)
        ]
        torch.testing.assert_close(scale, torch.cat(sizes, dim=1), check_dtype=False)
    plain = Trainer(SETTINGS, tmp_path / "plain")
    assert {rollout.size(t) for rollout in plain.rollouts for t in (1, 20)} == {0.005}


def test_diverging_rollouts_are_counted_and_begun_anew(tmp_path):
    trainer = Trainer(SETTINGS, tmp_path)
    with torch.no_grad():
        trainer.rule.b_q += 1e6
    before = [r.number for r in trainer.rollouts]
    outcome = trainer.step()
    assert outcome.diverged == 2
    assert [r.number for r in trainer.rollouts] == [n + 1 for n in before]
    assert all(x.isfinite().all() for x in trainer.rule.parameters())


def test_rollouts_are_staggered(tmp_path):
    trainer = Trainer(dataclasses.replace(SETTINGS, rollouts=4, lengths=(40,)), tmp_path)
    assert sorted(r.length for r in trainer.rollouts) == [10, 20, 30, 40]


WORKER = """
import json, os, signal, sys, time, torch, torch.distributed as dist
from pathlib import Path
sys.path.insert(0, {root!r})
from hyperadam.meta import ranks
from tests.meta.test_trainer import SETTINGS, Trainer, finish, toys
import dataclasses
torch.set_num_threads(1)
toys.register()
ranks.join()
out = Path(sys.argv[1])
trainer = Trainer(dataclasses.replace(SETTINGS, updates=int(sys.argv[2]), rollouts=4), out)
def report(outcome, value):
    first = os.environ.get("TORCHELASTIC_RESTART_COUNT") == "0"
    if first and os.environ.get("DIE") == os.environ["RANK"] and trainer.update == 15:
        os.kill(os.getpid(), signal.SIGKILL)
    if len(sys.argv) > 3:
        print(trainer.update, flush=True)
        time.sleep(float(sys.argv[3]))
trainer.run(report, lambda: False, save_every=0)
torch.save(trainer.rule.state_dict(), out / "rule.pt")
if dist.is_initialized():
    dist.destroy_process_group()
"""


def worker(tmp_path):
    script = tmp_path / "worker.py"
    script.write_text(WORKER.format(root=str(ROOT)))
    return str(script)


def test_two_ranks_equal_one_with_twice_the_rollouts(tmp_path):
    script = worker(tmp_path)
    torchrun = [
        sys.executable,
        "-m",
        "torch.distributed.run",
        "--standalone",
        "--nproc-per-node",
        "2",
    ]
    for command, out in (([sys.executable], "one"), (torchrun, "two")):
        subprocess.run(
            [*command, script, str(tmp_path / out), "12"],
            check=True,
            capture_output=True,
            timeout=600,
        )
    one, two = (torch.load(tmp_path / out / "rule.pt", weights_only=True) for out in ("one", "two"))
    for name in one:
        torch.testing.assert_close(two[name], one[name], rtol=1e-4, atol=1e-6)


def test_a_killed_rank_is_restarted_by_torchrun_and_resumes(tmp_path):
    script = worker(tmp_path)
    torchrun = [
        sys.executable,
        "-m",
        "torch.distributed.run",
        "--standalone",
        "--nproc-per-node",
        "2",
        "--max-restarts",
        "1",
    ]
    for out, die in (("calm", "none"), ("killed", "1")):
        command = [*torchrun, script, str(tmp_path / out), "18"]
        subprocess.run(
            command, check=True, capture_output=True, timeout=600, env={**os.environ, "DIE": die}
        )
    calm, killed = (
        torch.load(tmp_path / out / "rule.pt", weights_only=True) for out in ("calm", "killed")
    )
    assert all(torch.equal(calm[name], killed[name]) for name in calm)


def test_killed_and_resumed(tmp_path):
    script = worker(tmp_path)
    subprocess.run([sys.executable, script, str(tmp_path / "whole"), "14"], check=True, timeout=600)
    process = subprocess.Popen(
        [sys.executable, script, str(tmp_path / "killed"), "14", "0.05"],
        stdout=subprocess.PIPE,
        text=True,
    )
    for line in process.stdout:
        if int(line) == 7:
            os.kill(process.pid, signal.SIGKILL)
            break
    process.wait()
    assert not (tmp_path / "killed/rule.pt").exists()
    subprocess.run(
        [sys.executable, script, str(tmp_path / "killed"), "14"], check=True, timeout=600
    )
    whole, killed = (
        torch.load(tmp_path / out / "rule.pt", weights_only=True) for out in ("whole", "killed")
    )
    assert all(torch.equal(whole[name], killed[name]) for name in whole)


def test_presets_make_rules():
    for name, settings in PRESETS.items():
        assert settings.make_rule().kind == settings.rule
        json.dumps(settings.as_dict())
        assert preset(name) is settings
    with pytest.raises(
        ValueError, match=rf"no preset is called 'hyperadm'; .*there are {', '.join(PRESETS)}$"
    ):
        preset("hyperadm")
