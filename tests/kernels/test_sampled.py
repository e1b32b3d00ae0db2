"""A way back through some coordinates: exact for these, and on average that through all."""

import pytest
import torch

from hyperadam.data import draws
from hyperadam.kernels import Sample, Tape, available, make_sampled_tape, make_tape
from hyperadam.meta.estimators import draw_sample
from hyperadam.rules import HyperAdamRule, RNNpropRule
from tests.kernels.stepping import clone, differentiate
from tests.kernels.test_agreement import error, tame_gradients, twice
from tests.rules.cases import HYPERADAM_OPTIONS, hyperadam, rollout

NATIVE = [name for name in available() if name not in ("triton", "torch")]
STEPS, P = 6, 300

pytestmark = pytest.mark.skipif(not NATIVE, reason="no backend in C++ was built")


def sample(p=P, share=0.4, number=0):
    return draw_sample(draws.keys([number], "test"), p, share)


def play(tape, grads, probes, chosen):
    """Updates, last state and gradients of a period on a sampled tape."""
    tape.start(tape.rule.init_state(grads[0]), chosen)
    updates = torch.stack([tape.step(g) for g in grads])
    state = clone(tape.state)
    for probe in probes.flip(0):
        tape.step_back(probe)
    return updates, state, tape.gradients()


def all_sums(rule, g, state):
    return rule.total_sums(lambda earlier: rule.column_sums(g, state, earlier))


def one_graph(rule, grads, probes, chosen):
    """The same in float64 by autograd: sums of the whole vector, whose slope is ``whole`` times
    that of the sample's sums."""
    seen, whole = chosen.seen, chosen.whole
    state = rule.init_state(grads[0])
    mine = rule.State(*(x[..., seen] for x in state))
    total = 0.0
    for g, probe in zip(grads, probes, strict=True):
        with torch.no_grad():
            sums = all_sums(rule, g, state)
            state = rule(g, state, sums)[1]
        used = ()
        for there in sums:
            own = whole * rule.column_sums(g[..., seen], mine, used)
            used = (*used, there + own - own.detach())
        d, mine = rule(g[..., seen], mine, used)
        total = total + (d * probe[..., seen]).sum()
    return [whole * x for x in torch.autograd.grad(total, list(rule.parameters()))]


@pytest.mark.parametrize("backend", NATIVE)
@pytest.mark.parametrize("shape", [(P,), (2, P)], ids=str)
@pytest.mark.parametrize("name", HYPERADAM_OPTIONS)
def test_it_equals_autograd_on_the_sample(name, shape, backend):
    rule = hyperadam(HYPERADAM_OPTIONS[name])
    grads, probes = (tame_gradients(STEPS, *shape, seed=seed) for seed in (0, 1))
    tape, chosen = make_sampled_tape(rule, backend), sample()
    exact = twice(rule)
    with torch.no_grad():
        updates, state = rollout(exact, grads.double())
    expected = one_graph(exact, grads.double(), probes.double(), chosen)
    for _ in range(2):  # a second period on the same memory
        my_updates, my_state, gradients = play(tape, grads, probes, chosen)
        assert error(my_updates, updates) < 1e-5
        assert all(error(*pair) < 1e-5 for pair in zip(my_state, state, strict=True))
        assert all(error(*pair) < 1e-4 for pair in zip(gradients, expected, strict=True))


@pytest.mark.parametrize("name", ["paper", "seven-bounded-normalized"])
def test_a_sample_of_everything_gives_the_bits_of_the_whole(name):
    rule = hyperadam(HYPERADAM_OPTIONS[name])
    grads, probes = (tame_gradients(STEPS, P, seed=seed) for seed in (0, 1))
    everything = Sample(torch.arange(P), torch.arange(0))
    updates, state, gradients = play(make_sampled_tape(rule), grads, probes, everything)
    whole = differentiate(make_tape(rule), grads, probes)
    assert torch.equal(updates, whole["update"])
    assert all(torch.equal(x, whole[field]) for field, x in state._asdict().items())
    for (parameter, _), x in zip(rule.named_parameters(), gradients, strict=True):
        assert torch.equal(x, whole[parameter]), parameter


@pytest.mark.parametrize("options", [{}, {"normalize_state": True}], ids=str)
def test_the_mean_over_many_samples_is_the_gradient_through_all(options):
    """Within three standard errors, which are some thousandths of the gradient. With a normalised
    state a twentieth of it goes back through the norms, and would be missed."""
    p, count = 640, 400
    rule = hyperadam({"candidates": 4, **options})
    grads = tame_gradients(STEPS, p)
    probes = grads.abs().sqrt() * grads.sign()  # all coordinates pull the same way
    expected = flat(list(differentiate(Tape(twice(rule)), grads, probes).values())[8:])
    tape = make_sampled_tape(rule)
    found = torch.stack(
        [flat(play(tape, grads, probes, sample(p, 0.25, i))[2]) for i in range(count)]
    )
    standard_error = (found.var(0) / count).sum().sqrt()
    assert standard_error < 1e-3 * expected.norm()
    assert (found.mean(0) - expected).norm() < 3 * standard_error


def flat(tensors):
    return torch.cat([x.double().flatten() for x in tensors])


def test_samples_have_every_coordinate_as_often_and_none_twice():
    counts = torch.zeros(P)
    for number in range(1000):
        seen, rest = sample(number=number)
        assert len(seen) == 128  # two blocks
        assert sorted([*seen.tolist(), *rest.tolist()]) == list(range(P))
        assert seen.tolist() == sorted(seen.tolist())
        counts[seen] += 1
    share = counts / 1000
    assert share.mean().item() == pytest.approx(128 / P)
    assert (share - 128 / P).abs().max() < 5 * (128 / P * (1 - 128 / P) / 1000) ** 0.5
    again, other = sample(number=7), sample(number=8)
    assert torch.equal(again.seen, sample(number=7).seen)
    assert not torch.equal(again.seen, other.seen)
    assert len(sample(10).rest) == 0
    assert sample(10).whole == 1


def test_what_cannot_be_sampled_is_refused():
    for rule, backend in ((HyperAdamRule(), "torch"), (RNNpropRule(), "auto")):
        with pytest.raises(ValueError, match="cannot go back through a sample"):
            make_sampled_tape(rule, backend)
    rule = HyperAdamRule()
    with pytest.raises(ValueError, match="sample is None"):
        make_sampled_tape(rule).start(rule.init_state(torch.zeros(3)))
