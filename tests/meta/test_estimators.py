"""The meta-gradient against one graph over rule and learner together, in float64."""

import math

import pytest
import torch

from hyperadam import tasks
from hyperadam.kernels import Tape, make_tape
from hyperadam.meta.estimators import BPTT, Position, step_size
from hyperadam.meta.learner import Learner
from hyperadam.rules import DMRule, HyperAdamRule, RNNpropRule
from tests.meta import toys
from tests.rules.numpy_twins import scale_twin

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

    def unscaled(self):
        return super().unscaled().double()


def begin(rule, learner):
    params = learner.init()
    loss, grad, _ = learner.loss_and_grad(params, 0)
    return Position(params, tuple(rule.init_state(params)), 0, loss, grad)


def always(size):
    return lambda step: size


def one_graph(rule, learner, size, exact, last, relative):
    """Gradients by autograd through everything at once, or with the learner's gradients cut off."""
    params, state, losses = learner.init(), rule.init_state(learner.init()), []
    for t in range(STEPS):
        with torch.enable_grad():
            point = params if params.requires_grad else params.clone().requires_grad_()
            (grad,) = torch.autograd.grad(learner.loss(point, t), point, create_graph=exact)
            grad = grad if exact else grad.detach()
            d, state = rule(grad, state)
            params = params - size(t + 1) * d
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
        start, size = begin(rule, learner), always(0.05)
        period = BPTT(exact, last, relative)(make(rule), learner, start, STEPS, size)
        expected = one_graph(rule, learner, size, exact, last, relative)
        for actual, value in zip(period.gradients, expected, strict=True):
            torch.testing.assert_close(actual, value, rtol=1e-8, atol=1e-12)


def learner_of_tensors():
    """A learner whose tensors begin with sizes of their own."""
    task = tasks.get(toys.register())
    task.shapes = [(2, 2), (3,)]
    return DoubleLearner(task, seed=3)


@pytest.mark.parametrize("name", RULES)
@pytest.mark.parametrize("exact", [False, True])
@pytest.mark.parametrize("total", [None, STEPS])
def test_bptt_of_relative_rules_and_known_horizons_equals_one_graph(name, exact, total):
    learner, like = learner_of_tensors(), RULES[name]()
    rule = toys.noisy(type(like)(**like.config, relative=True)).double()
    size = step_size(rule, learner, total)
    for make in (Tape, lambda rule: make_tape(rule, "torch")):
        period = BPTT(exact)(make(rule), learner, begin(rule, learner), STEPS, size)
        expected = one_graph(rule, learner, size, exact, last=False, relative=False)
        for actual, value in zip(period.gradients, expected, strict=True):
            torch.testing.assert_close(actual, value, rtol=1e-8, atol=1e-12)


@pytest.mark.parametrize("exact", [False, True])
def test_the_native_tape_serves_relative_rules(exact):
    """The same rollout in float32, on the fastest backend there is."""
    learner = learner_of_tensors()
    rule = toys.noisy(HyperAdamRule(candidates=3, decay_bound=0.97, relative=True))
    size = step_size(rule, learner, STEPS)
    plain = Learner(learner.task, seed=3)
    period = BPTT(exact)(make_tape(rule), plain, begin(rule, plain), STEPS, size32(size))
    double = rule.double()
    expected = BPTT(exact)(Tape(double), learner, begin(double, learner), STEPS, size)
    for actual, value in zip(period.gradients, expected.gradients, strict=True):
        assert (actual - value).norm() < 1e-3 * value.norm()


def size32(size):
    return lambda step: size(step).float()


def test_finite_differences_of_a_relative_rule_with_a_horizon():
    """No graph at all: rollouts with weights a little off, and the losses they end at."""
    learner = learner_of_tensors()
    rule = toys.noisy(HyperAdamRule(candidates=2, decay_bound=0.97, relative=True)).double()
    size = step_size(rule, learner, STEPS)
    period = BPTT(exact=True)(Tape(rule), learner, begin(rule, learner), STEPS, size)

    def mean_loss():
        params, state, total = learner.init(), rule.init_state(learner.init()), 0.0
        for t in range(STEPS):
            _, grad, _ = learner.loss_and_grad(params, t)
            with torch.no_grad():
                d, state = rule(grad, state)
            params = params - size(t + 1) * d
            total += learner.loss(params, t + 1).item()
        return total / STEPS

    generator = torch.Generator().manual_seed(0)
    directions = [
        torch.randn(x.shape, generator=generator, dtype=torch.float64) for x in rule.parameters()
    ]
    ends = []
    for sign in (1, -1):
        with torch.no_grad():
            for x, v in zip(rule.parameters(), directions, strict=True):
                x += sign * 1e-5 * v
            ends.append(mean_loss())
            for x, v in zip(rule.parameters(), directions, strict=True):
                x -= sign * 1e-5 * v
    slope = sum((g * v).sum() for g, v in zip(period.gradients, directions, strict=True)).item()
    assert (ends[0] - ends[1]) / 2e-5 == pytest.approx(slope, rel=1e-5)


def test_step_sizes():
    """lr · pace · scale: warm-up of its own only where the horizon is known, scales by the tensors' start
    before Random Scaling."""
    learner = learner_of_tensors()
    rule = HyperAdamRule(candidates=2, warmup=5)
    assert [step_size(rule, learner)(t) for t in (1, 6)] == [0.005, 0.005]
    known = step_size(rule, learner, 40)
    assert [known(t) / 0.005 for t in (1, 2, 3, 40)] == pytest.approx([0.5, 1, 38 / 39, 1 / 39])

    longer = HyperAdamRule(candidates=2, warmup=5, step_size=0.02)
    assert step_size(longer, learner)(1) == 0.02
    assert step_size(longer, learner, 40, shorter=4.0)(3) == pytest.approx(known(3))

    relative = step_size(HyperAdamRule(candidates=2, relative=True), learner)
    assert not torch.equal(learner.init(), learner.unscaled())  # the sizes are the task's own
    start, sizes = learner.unscaled()[0], []
    pieces = start.split([math.prod(shape) for shape in learner.shapes])
    assert len(pieces) == 3  # the last is the convex function's
    for part, shape in zip(pieces, learner.shapes, strict=True):
        rms = math.sqrt(sum(x * x for x in part.tolist()) / len(part))
        sizes += [0.005 * scale_twin(rms, shape)] * len(part)
    assert len(set(sizes)) == 3
    torch.testing.assert_close(relative(1)[0].double(), torch.tensor(sizes, dtype=torch.float64))


def test_step_sizes_of_a_tempered_rule():
    """With ``width``, ``temper`` and ``depth`` rollouts take the steps that an optimizer would."""
    toys.register()
    task = tasks.get("toy-wide-bowl")
    task.shapes = [(44, 1), (256,)]
    learner = Learner(task, seed=3, convex=False)
    options = {"candidates": 2, "relative": True}
    plain = step_size(HyperAdamRule(**options), learner, 1000)(50)
    rule = HyperAdamRule(**options, width=True, temper=True)
    shorter = step_size(rule, learner, 1000)(50) / plain
    torch.testing.assert_close(shorter[0, :44], torch.full((44,), 10**-0.3))
    torch.testing.assert_close(shorter[0, 44:], torch.full((256,), 0.5 * 10**-0.3))
    task.shapes = [(5, 5)] * 8 + [(100,)]
    learner = Learner(task, seed=3, convex=False)
    plain = step_size(HyperAdamRule(**options), learner, 1000)(50)
    deep = step_size(HyperAdamRule(**options, depth=True), learner, 1000)(50)
    torch.testing.assert_close(deep, 0.5 * plain)


def test_exact_and_detached_differ():
    """The test above can fail: what the exact estimator adds is far above its tolerance."""
    learner, rule = (
        DoubleLearner(tasks.get(toys.register()), seed=3),
        toys.noisy(RULES["hyperadam"]()).double(),
    )
    a, b = (
        BPTT(exact)(Tape(rule), learner, begin(rule, learner), STEPS, always(0.5)).gradients
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
    first = BPTT()(tape, learner, begin(rule, learner), 4, always(0.05))
    second = BPTT()(tape, learner, first.end, 4, always(0.05))
    whole = BPTT()(tape, learner, begin(rule, learner), 8, always(0.05))
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
