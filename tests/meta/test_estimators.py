"""The meta-gradient against one graph over rule and learner together, in float64."""

import pytest
import torch

from hyperadam import tasks
from hyperadam.kernels import Tape, make_tape
from hyperadam.meta.estimators import BPTT, Position
from hyperadam.meta.learner import Learner
from hyperadam.rules import DMRule, HyperAdamRule, RNNpropRule
from tests.meta import toys

RULES = {
    "hyperadam": lambda: HyperAdamRule(candidates=3, decay_bound=0.97),
    "rnnprop": lambda: RNNpropRule(units=4),
    "dm": lambda: DMRule(units=4),
}
STEPS = 6


@pytest.fixture(autouse=True)
def seeded():
    torch.manual_seed(0)


class DoubleLearner(Learner):
    """The learner in float64."""

    def __init__(self, *args, **options):
        super().__init__(*args, **options)
        self.scale, self.bottom = self.scale.double(), self.bottom.double()

    def init(self):
        return super().init().double()


def begin(rule, learner):
    params = learner.init()
    loss, grad, _ = learner.loss_and_grad(params, 0)
    return Position(params, tuple(rule.init_state(params)), 0, loss, grad)


def one_graph(rule, learner, lr, exact, last, relative):
    """Gradients by autograd through everything at once, or with the learner's gradients cut off."""
    params, state, losses = learner.init(), rule.init_state(learner.init()), []
    for t in range(STEPS):
        with torch.enable_grad():
            point = params if params.requires_grad else params.clone().requires_grad_()
            (grad,) = torch.autograd.grad(learner.loss(point, t), point, create_graph=exact)
            grad = grad if exact else grad.detach()
            d, state = rule(grad, state)
            params = params - lr * d
            losses.append(learner.loss(params, t + 1))
    weighted = [loss.log() if relative else loss for loss in losses]
    return torch.autograd.grad(
        weighted[-1] if last else sum(weighted) / STEPS, list(rule.parameters())
    )


@pytest.mark.parametrize("name", RULES)
@pytest.mark.parametrize("exact", [False, True])
@pytest.mark.parametrize(("last", "relative"), [(False, False), (True, False), (False, True)])
def test_bptt_equals_one_graph(name, exact, last, relative):
    learner = DoubleLearner(tasks.get(toys.register()), seed=3)
    rule = toys.noisy(RULES[name]()).double()
    for make in (Tape, lambda rule: make_tape(rule, "torch")):
        period = BPTT(exact, last, relative)(make(rule), learner, begin(rule, learner), STEPS, 0.05)
        expected = one_graph(rule, learner, 0.05, exact, last, relative)
        for actual, value in zip(period.gradients, expected, strict=True):
            torch.testing.assert_close(actual, value, rtol=1e-8, atol=1e-12)


def test_exact_and_detached_differ():
    """The test above can fail: what the exact estimator adds is far above its tolerance."""
    learner, rule = (
        DoubleLearner(tasks.get(toys.register()), seed=3),
        toys.noisy(RULES["hyperadam"]()).double(),
    )
    a, b = (
        BPTT(exact)(Tape(rule), learner, begin(rule, learner), STEPS, 0.5).gradients
        for exact in (False, True)
    )
    assert max(((x - y).norm() / y.norm()).item() for x, y in zip(a, b, strict=True)) > 1e-3


def test_periods_join():
    """Two periods of a rollout visit the points of one long one."""
    learner, rule = (
        DoubleLearner(tasks.get(toys.register()), seed=5),
        toys.noisy(RULES["hyperadam"]()).double(),
    )
    tape = Tape(rule)
    first = BPTT()(tape, learner, begin(rule, learner), 4, 0.05)
    second = BPTT()(tape, learner, first.end, 4, 0.05)
    whole = BPTT()(tape, learner, begin(rule, learner), 8, 0.05)
    torch.testing.assert_close(
        torch.cat([first.losses, second.losses]), whole.losses, rtol=0, atol=0
    )
    assert torch.equal(second.end.params, whole.end.params)
    assert second.end.step == 8


def test_tricks_are_drawn_as_published():
    task = tasks.get(toys.register())
    learners = [Learner(task, seed) for seed in range(400)]
    c1 = torch.stack([x.scale[:7] for x in learners]).log()
    c2 = torch.stack([x.scale[7:] for x in learners]).log()
    bottoms = torch.stack([x.bottom for x in learners])
    assert learners[0].p == 27
    for values, limit in ((c1, 3), (c2, 1), (bottoms, 1)):
        assert values.abs().max() <= limit
        assert values.std().item() == pytest.approx(limit / 3**0.5, rel=0.05)
    plain = Learner(task, 0, scaling=False, convex=False)
    assert plain.p == 7
    torch.testing.assert_close(plain.init(), task.init([0]))
    # scaled and not, a rollout starts at the same point of the task
    w = (learners[0].init() * learners[0].scale)[:, :7]
    torch.testing.assert_close(w, task.init([0]))
    far = torch.cat([torch.ones(1, 7), torch.full((1, 20), 1e3)], dim=1) / learners[0].scale
    alone = task.loss(torch.ones(1, 7), task.batch([0], 0)).item()
    assert learners[0].loss(far, 0).item() == pytest.approx(alone + 10, rel=1e-5)
