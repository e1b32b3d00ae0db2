"""Tasks of the family against plain modules, one run alone and in company, in float64."""

import math
from collections import Counter
from itertools import pairwise

import pytest
import torch

from hyperadam.tasks import family
from hyperadam.tasks.family import sources
from hyperadam.tasks.family.networks import ACTIVATIONS, CNN, MLP
from hyperadam.tasks.family.sequences import Recurrent, Transformer
from hyperadam.tasks.family.task import FamilyTask, Learning, Quadratic
from hyperadam.tasks.family.tensors import STARTS, Slot, start
from tests.tasks.family import modules

X = sources.inputs(3, 64, 12, decay=0.5, heavy=True)
IMAGES = sources.Pool(
    (255 * torch.rand(40, 1, 10, 10, generator=torch.Generator().manual_seed(0))).byte(),
    torch.arange(40) % 10,
    shift=33.0,
    scale=1 / 78,
)
PIXELS = IMAGES._replace(shift=0.0, scale=1 / 255, reconstructed=True)
COLOURS = IMAGES._replace(
    x=IMAGES.x.roll(1, 0).repeat(1, 3, 1, 1) // torch.tensor([1, 2, 3])[:, None, None].byte()
)
CLASSES = sources.class_pool(3, X, 5, wrong=0.2)
NUMBERS = sources.regression_pool(3, X, 4, noise=0.1, heavy=True)
SINES = sources.sine_pool(3, 50, 7, noise=0.1, amplitude=2.0)


def text(length):
    return sources.markov_text(3, 9, length, sharpness=2.0, chains=8)


PROBLEMS = {
    **{f"mlp {a}": Learning(MLP((12, 8, 6, 5), a), CLASSES, "classes", 7) for a in ACTIVATIONS},
    "mlp norm": Learning(MLP((12, 8, 6, 5), "gelu", normalised=True), CLASSES, "classes", 7),
    "linear": Learning(MLP((12, 4)), NUMBERS, "robust", 7),
    "regression": Learning(MLP((12, 8, 4), "tanh"), NUMBERS, "squares", 7),
    "autoencoder": Learning(MLP((100, 5, 100), "elu"), PIXELS, "pixels", 3),
    "bernoulli": Learning(MLP((100, 5, 100), "relu"), PIXELS, "bernoulli", 3),
    "cnn max": Learning(CNN((1, 10, 10), (4, 6), "relu", "max"), IMAGES, "classes", 3),
    "cnn mean": Learning(CNN((1, 10, 10), (4, 6), "gelu", "mean"), IMAGES, "classes", 3),
    "cnn stride": Learning(CNN((1, 10, 10), (4, 6), "tanh", "stride", True), IMAGES, "classes", 3),
    "gru numbers": Learning(Recurrent("gru", 5, 7), SINES, "squares", 6),
    "lstm numbers": Learning(Recurrent("lstm", 5, 7), SINES, "squares", 6),
    "gru text": Learning(Recurrent("gru", 5, 6, 9, 4), text(6), "classes", 4),
    "lstm text": Learning(Recurrent("lstm", 5, 6, 9, 4), text(6), "classes", 4),
    "transformer": Learning(Transformer(9, 8, 6), text(6), "classes", 4),
    "transformer deep": Learning(Transformer(9, 8, 6, 4, 2), text(6), "classes", 4),
    "transformer squares": Learning(Transformer(0, 8, 4, 2, 2, 5, 3), COLOURS, "classes", 4),
    "cnn hidden": Learning(CNN((3, 10, 10), (4, 6), hidden=7), COLOURS, "classes", 3),
}


def doubles(task, runs, noise=0.1):
    """Points near the start, another for each run, in float64."""
    generator = torch.Generator().manual_seed(1)
    return [
        w.double() + noise * torch.randn(runs, *w.shape, generator=generator, dtype=torch.float64)
        for w in task.init(5)
    ]


@pytest.mark.parametrize("name", PROBLEMS)
def test_a_run_is_a_plain_module(name):
    problem = PROBLEMS[name]
    task = FamilyTask("test", problem)
    params = doubles(task, 3)
    losses, grads = task.loss_and_grad(params, seed=8, step=2)
    x, y = problem.batch(8, 2)
    x, y = (t.double() if t.is_floating_point() else t for t in (x, y))
    module = modules.MODULES[type(problem.network)](problem.network).double()
    module(x)  # lazy layers take their shape
    own = list(module.parameters())
    assert [tuple(p.shape) for p in own] == task.shapes
    for run in range(3):
        with torch.no_grad():
            for p, w in zip(own, params, strict=True):
                p.copy_(w[run])
        loss = modules.loss(problem.loss, module(x), y)
        torch.testing.assert_close(losses[run], loss, rtol=1e-9, atol=1e-12)
        expected = torch.autograd.grad(loss, own)
        for actual, value in zip(grads, expected, strict=True):
            torch.testing.assert_close(actual[run], value, rtol=1e-7, atol=1e-10)


@pytest.mark.parametrize("noise", [0.0, 0.3])
def test_quadratic(noise):
    problem = Quadratic(3, (3, 4), condition=100.0, noise=noise)
    hessian = problem.root.T @ problem.root / 12
    values = torch.linalg.eigvalsh(12 * hessian)
    assert values.min().item() == pytest.approx(0.01)
    assert values.max().item() == pytest.approx(1.0)
    task = FamilyTask("quadratic", problem)
    params = doubles(task, 2)
    _, grads = task.loss_and_grad(params, seed=8, step=2)
    _, at_zero = task.loss_and_grad([torch.zeros_like(params[0])], seed=8, step=2)
    difference = (params[0].flatten(1) @ hessian).view_as(params[0])
    torch.testing.assert_close(grads[0] - at_zero[0], difference, rtol=1e-8, atol=1e-12)


@pytest.mark.parametrize("kind", family.KINDS)
@pytest.mark.data
def test_alone_is_as_in_company(kind):
    for seed in range(2):
        task = family.draw(seed, kind)
        params = [w.expand(5, *w.shape).contiguous() for w in task.init(4)]
        params[0][3] *= 1.5
        losses, grads = task.loss_and_grad(params, 4, 1)
        for run in (0, 3):
            alone, own = task.loss_and_grad([w[run : run + 1] for w in params], 4, 1)
            torch.testing.assert_close(losses[run], alone[0], rtol=1e-5, atol=1e-6)
            for g, h in zip(grads, own, strict=True):
                torch.testing.assert_close(g[run], h[0], rtol=1e-3, atol=1e-5)
        assert losses[0] != losses[3]
        assert all(
            g.is_contiguous() and g.shape == w.shape for g, w in zip(grads, params, strict=True)
        )


@pytest.mark.parametrize(
    "name",
    [
        "mlp norm",
        "cnn hidden",
        "gru text",
        "lstm numbers",
        "transformer deep",
        "transformer squares",
    ],
)
def test_gradcheck(name):
    problem = PROBLEMS[name]
    params = [w.requires_grad_() for w in doubles(FamilyTask("test", problem), 2)]
    assert torch.autograd.gradcheck(
        lambda *w: problem.losses(w, 8, 2), params, fast_mode=True, atol=1e-6
    )


def test_a_language_has_common_words_and_rare_ones():
    text, length = sources.word_text(5, symbols=30, length=12, words=200)
    assert length == 12
    assert text.min() >= 0
    assert text.max() == 29
    spaces = (text == 29).nonzero().flatten().tolist()
    words = [tuple(text[a + 1 : b].tolist()) for a, b in pairwise([-1, *spaces])]
    assert max(map(len, words)) == 9
    assert min(map(len, words)) == 1
    counts = sorted(Counter(words).values(), reverse=True)
    assert 100 < len(counts) <= 200
    assert counts[0] > 20 * counts[len(counts) // 2]
    other = sources.word_text(6, symbols=30, length=12, words=200).text
    assert not torch.equal(text[:500], other[:500])


@pytest.mark.data
def test_tinted_digits_stand_before_others():
    pool = sources.colour_pool(5, side=14, count=300, standardised=False)
    assert pool.x.shape == (300, 3, 14, 14)
    assert pool.x.dtype == torch.uint8
    plain = sources.digit_pool(5, 14, 28, 300, standardised=False)
    assert torch.equal(pool.y, plain.y)
    # where the digit itself is bright nothing hides it, and colours differ
    bright = (plain.x > 250).expand_as(pool.x)
    assert pool.x[bright].float().mean() > 0.5 * 255
    assert (pool.x[:, 0] != pool.x[:, 1]).float().mean() > 0.2
    # where it is dark the other one shows
    assert (pool.x[(plain.x == 0).expand_as(pool.x)] > 0).float().mean() > 0.1


@pytest.mark.data
def test_draws_depend_on_the_seed_alone():
    for seed in range(12):
        a, b = family.draw(seed), family.draw(seed)
        assert repr(a) == repr(b)
        assert all(torch.equal(x, y) for x, y in zip(a.init(1), b.init(1), strict=True))
        assert not all(torch.equal(x, y) for x, y in zip(a.init(1), a.init(2), strict=True))
        params = [w.unsqueeze(0) for w in a.init(1)]
        (one, _), (two, _) = a.loss_and_grad(params, 1, 3), b.loss_and_grad(params, 1, 3)
        assert torch.equal(one, two)
        assert one.isfinite().all()


@pytest.mark.data
def test_the_family_is_as_broad_as_promised():
    tasks = [family.draw(seed) for seed in range(300)]
    assert {task.kind for task in tasks} == set(family.KINDS)
    assert {task.how for task in tasks} == set(STARTS)
    assert 0.15 < sum(task.scales is not None for task in tasks) / 300 < 0.35
    networks = [task.problem.network for task in tasks if isinstance(task.problem, Learning)]
    mlps = [n for n in networks if isinstance(n, MLP)]
    assert {n.activation for n in mlps} == set(ACTIVATIONS)
    assert {n.normalised for n in mlps} == {True, False}
    assert min(n.sizes[0] for n in mlps) < 32
    assert {784, 3 * 784} <= {n.sizes[0] for n in mlps}
    assert max(n.sizes[1] for n in mlps) > 200
    attending = [n for n in networks if isinstance(n, Transformer)]
    assert {n.depth for n in attending} == {1, 2, 3}
    assert {bool(n.patch) for n in attending} == {True, False}
    cnns = [n for n in networks if isinstance(n, CNN)]
    assert {n.image[0] for n in cnns} == {1, 3}
    assert {bool(n.hidden) for n in cnns} == {True, False}
    assert max(task.seconds(24) for task in tasks) < 0.15


@pytest.mark.data
def test_scaling_hides_the_learner_but_not_its_loss():
    task = next(t for t in map(family.draw, range(100)) if t.scales is not None)
    plain = FamilyTask(task.kind, task.problem, task.how, task.factor)
    losses, grads = task.loss_and_grad([w.unsqueeze(0) for w in task.init(3)], 3, 0)
    expected, own = plain.loss_and_grad([w.unsqueeze(0) for w in plain.init(3)], 3, 0)
    torch.testing.assert_close(losses, expected, rtol=1e-4, atol=1e-5)
    for g, h, c in zip(grads, own, task.scales, strict=True):
        torch.testing.assert_close(g, h * c, rtol=2e-3, atol=1e-5)


def test_unknown_kind():
    with pytest.raises(ValueError, match=r"kind must be one of digit-mlp, .* got 'mlp'"):
        family.draw(0, "mlp")


@pytest.mark.parametrize(
    ("how", "deviation"),
    [
        ("torch", 1 / math.sqrt(3 * 400)),
        ("kaiming", math.sqrt(2 / 400)),
        ("xavier", math.sqrt(2 / 500)),
        ("truncated", 0.88 / math.sqrt(400)),  # what is left of a deviation of 1 within ± 2
        ("small", 0.02),
    ],
)
def test_starts(how, deviation):
    slots = [
        Slot((100, 400), "weight", 400, 100),
        Slot((100,), "bias", 400, 100),
        Slot((100,), "gain"),
        Slot((100,), "bias", 0),
        Slot((100, 50), "embedding"),
    ]
    weight, bias, gain, offset, embedding = start(slots, how, seed=3)
    assert weight.std().item() == pytest.approx(deviation, rel=0.02)
    assert weight.dtype == torch.float32
    assert (bias.abs().max() > 0) == (how == "torch")
    assert bias.abs().max() <= 1 / 20
    assert (gain == 1).all()
    assert (offset == 0).all()
    assert embedding.std().item() == pytest.approx(0.02 if how == "small" else 1.0, rel=0.05)
    if how == "truncated":
        assert weight.abs().max() <= 2 / 20
    larger = start(slots, how, seed=3, factor=2.0)
    torch.testing.assert_close(larger[0], 2 * weight)
    assert (larger[2] == 1).all()


def test_unknown_start():
    with pytest.raises(ValueError, match=r"how must be one of torch, .* got 'he'"):
        start([], "he", 0)


def test_text_follows_its_source():
    """Two symbols tell the third: entropy given both is well below that given none."""
    source = sources.markov_text(5, 4, 8, sharpness=4.0)
    text, counts = source.text, torch.zeros(4, 4, 4)
    for a, b, c in zip(text, text[1:], text[2:], strict=False):
        counts[a, b, c] += 1

    def entropy(n):
        p = n / n.sum(-1, keepdim=True).clamp(min=1)
        return -(p * p.clamp(min=1e-9).log()).sum(-1)

    given = (entropy(counts) * counts.sum(-1)).sum() / counts.sum()
    assert given < 0.75 * entropy(counts.sum((0, 1)))
    x, y = source.batch(1, 0, 5)
    assert torch.equal(x[:, 1:], y.view(5, 8)[:, :-1])


def test_wrong_labels():
    x = sources.inputs(3, 4000, 8, 0.0, False)
    clean, noisy = sources.class_pool(3, x, 5, 0.0), sources.class_pool(3, x, 5, 0.25)
    # one in five of the random labels is right by chance
    assert (clean.y != noisy.y).double().mean().item() == pytest.approx(0.2, abs=0.02)
