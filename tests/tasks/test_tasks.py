"""What every task of every name keeps to: shapes, seeds, runs that do not know each other, gradients and their gradients."""

from __future__ import annotations

import inspect
import math
import re
import textwrap

import pytest
import torch
from torch import Tensor, nn

from hyperadam import data, tasks
from hyperadam.data import draws
from hyperadam.tasks import Classification
from hyperadam.tasks.learners import CNN, unflatten

SMALL = ["mnist-mlp", "mnist-mlp-relu", "mnist-mlp-3x20", "mnist14-mlp", "sine-lstm", "sine-lstm-2"]
LARGE = [
    "mnist-cnn1",
    "mnist-cnn2-bn",
    "mnist-cnn2-dropout",
    "cifar10-cnn1-dropout",
    "cifar10-cnn1-bn",
]


def train(task: tasks.Task, seeds: list[int], steps: int, rate: float = 0.1) -> Tensor:
    w = task.init(seeds)
    for step in range(steps):
        _, grad = task.loss_and_grad(w, task.batch(seeds, step))
        w = w - rate * grad
    return w


@pytest.mark.parametrize("name", SMALL + LARGE)
def test_shapes_and_dtypes(make, name: str) -> None:
    task = make(name, n=8)
    w = task.init([3, 4])
    assert w.shape == (2, task.p)
    assert w.dtype == torch.float32
    for dtype in (torch.float32, torch.float64):
        w = task.init([3, 4], dtype)
        batch = task.batch([3, 4], 0)
        loss, grad = task.loss_and_grad(w, batch)
        assert loss.shape == (2,)
        assert grad.shape == w.shape
        assert loss.dtype == grad.dtype == dtype
        assert not loss.requires_grad
        assert not grad.requires_grad
        torch.testing.assert_close(task.loss(w, batch), loss)
        w.requires_grad_()
        torch.testing.assert_close(torch.autograd.grad(task.loss(w, batch).sum(), w)[0], grad)
        with torch.no_grad():
            assert torch.equal(task.loss_and_grad(w, batch)[1], grad)


@pytest.mark.parametrize("name", ["mnist-mlp", "cifar10-cnn2", "sine-lstm"])
def test_initial_parameters(make, name: str) -> None:
    w = make(name).init(range(20)).double()
    assert w.std().item() == pytest.approx(0.1, rel=5 / math.sqrt(2 * w.numel()))
    assert w.mean().item() == pytest.approx(0, abs=0.5 / math.sqrt(w.numel()))
    assert w[:, -1].std() > 0.03  # biases too


@pytest.mark.parametrize("name", SMALL + LARGE)
def test_a_run_is_the_same_in_any_company(make, name: str) -> None:
    task = make(name, n=8)
    alone, company = [7], [*range(20, 40), 7, 5] if name in SMALL else [20, 7]
    place = company.index(7)
    assert torch.equal(task.init(company)[place], task.init(alone)[0])
    for step in (0, 9):
        for together, single in zip(
            task.batch(company, step), task.batch(alone, step), strict=True
        ):
            assert torch.equal(together[place], single[0])
    steps = 10 if name in SMALL else 2
    a, b = train(task, company, steps)[place], train(task, alone, steps)[0]
    torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-6)
    assert (a - task.init(alone)[0]).norm() > 1e-3


@pytest.mark.parametrize("name", LARGE)
def test_a_convolutional_run_is_the_same_to_the_bit(make, name: str) -> None:
    task = make(name, n=8)
    together = task.loss_and_grad(task.init([20, 7, 5]), task.batch([20, 7, 5], 0))
    alone = task.loss_and_grad(task.init([7]), task.batch([7], 0))
    assert all(torch.equal(a[1], b[0]) for a, b in zip(together, alone, strict=True))


@pytest.mark.parametrize("name", ["mnist-mlp", "mnist-cnn2-dropout", "sine-lstm"])
def test_a_batch_depends_on_its_step_alone(make, name: str) -> None:
    task = make(name, n=8)
    mixed = task.batch([1, 2], [5, 0])
    for k, (seed, step) in enumerate([(1, 5), (2, 0)]):
        for together, single in zip(mixed, task.batch([seed], step), strict=True):
            assert torch.equal(together[k], single[0])
    assert not torch.equal(task.batch([1], 5)[0], task.batch([1], 6)[0])
    assert not torch.equal(task.batch([1], 5)[0], task.batch([2], 5)[0])


@pytest.mark.parametrize("name", ["mnist-mlp", "mnist-cnn1", "sine-lstm"])
def test_chunks_do_not_matter(make, name: str) -> None:
    task = make(name, n=8)
    seeds = range(5)
    w, batch = task.init(seeds, torch.float64), task.batch(seeds, 0)
    results = []
    for task.runs_at_once in (1, 2, 5, 100):
        results.append((*task.loss_and_grad(w, batch), task.loss(w, batch)))
    for result in results[1:]:
        torch.testing.assert_close(result, results[0])


@pytest.mark.parametrize(
    "name", ["mnist-mlp", "mnist-mlp-relu", "mnist-cnn1-bn", "mnist-cnn2-dropout", "sine-lstm-2"]
)
def test_hessian_vector_products(make, name: str) -> None:
    """Through two runs at once; the reference is a difference of gradients."""
    task = make(name, n=8)
    w, batch = task.init([1, 2], torch.float64).requires_grad_(), task.batch([1, 2], 0)
    v = draws.normal(draws.keys([1, 2], "direction"), task.p)
    (grad,) = torch.autograd.grad(task.loss(w, batch).sum(), w, create_graph=True)
    (product,) = torch.autograd.grad((grad * v).sum(), w)
    h = 1e-9  # so small that no ReLU of a hundred thousand changes sides
    difference = (
        task.loss_and_grad(w + h * v, batch)[1] - task.loss_and_grad(w - h * v, batch)[1]
    ) / (2 * h)
    error = (product - difference).norm() / product.norm()
    assert product.norm() > 0
    assert error < 1e-5


def test_classification_against_torch_nn(make) -> None:
    task = make("mnist-mlp")
    w, batch = task.init([3]), task.batch([3], 4)
    model = nn.Sequential(nn.Flatten(), nn.Linear(784, 20), nn.Sigmoid(), nn.Linear(20, 10))
    nn.utils.vector_to_parameters(w[0], model.parameters())
    loaded = data.load("mnist")
    rows = batch.rows[0]
    assert len(rows) == 128
    expected = nn.functional.cross_entropy(
        model(loaded.train_images[rows] / 255), loaded.train_labels[rows]
    )
    expected_grad = nn.utils.parameters_to_vector(
        torch.autograd.grad(expected, list(model.parameters()))
    )
    loss, grad = task.loss_and_grad(w, batch)
    torch.testing.assert_close(loss[0], expected.detach())
    torch.testing.assert_close(grad[0], expected_grad)


@pytest.mark.parametrize(
    ("name", "offset"), [("mnist-mlp", 0.0), ("cifar10-mlp", 0.5), ("mnist14-mlp", 0.0)]
)
def test_pixels(make, name: str, offset: float) -> None:
    task = make(name, n=6)
    x, y = task.examples(task.batch([1, 2], 0), torch.float64)
    rows = task.batch([1, 2], 0).rows
    loaded = data.load(task.dataset)
    expected = loaded.train_images[rows].double() / 255 - offset
    if task.shrink == 2:
        expected = (
            expected[..., ::2, ::2]
            + expected[..., 1::2, ::2]
            + expected[..., ::2, 1::2]
            + expected[..., 1::2, 1::2]
        ) / 4
    torch.testing.assert_close(x, expected)
    assert torch.equal(y, loaded.train_labels[rows])


def test_batches_are_drawn_from_all_examples(make) -> None:
    rows = make("mnist-mlp").batch(range(50), 0).rows
    assert torch.equal(rows.unique(), torch.arange(300))


def test_dropout_follows_seed_and_step(make) -> None:
    task = make("mnist-cnn2-dropout", n=64)
    w = task.init([1, 1, 2])
    batch = task.batch([1, 1, 2], [0, 1, 0])
    same = batch._replace(
        rows=batch.rows[:1].expand_as(batch.rows)
    )  # the same images and weights: masks alone differ
    losses = task.loss(w[:1].expand_as(w), same)
    assert len(losses.unique()) == 3
    assert torch.equal(losses, task.loss(w[:1].expand_as(w), same))
    plain = Classification("mnist", CNN((1, 28, 28), ((16, 16), (32, 32)), (64,)))
    assert (plain.loss(w[:1].expand_as(w), same) - losses).abs().min() > 0


@pytest.mark.parametrize("name", ["mnist-mlp", "sine-lstm"])
def test_final_loss(make, name: str) -> None:
    task = make(name)
    seeds = [1, 2, 3]
    w = train(task, seeds, 5)
    expected = torch.stack([task.loss(w, task.batch(seeds, step)) for step in range(5)]).mean(0)
    torch.testing.assert_close(task.final_loss(w, seeds, 5), expected)


@pytest.mark.parametrize("name", ["mnist-mlp", "mnist-cnn2-dropout", "cifar10-cnn1-bn"])
def test_metrics_on_the_test_set(make, name: str) -> None:
    task = make(name)
    seeds = [1, 2] if "cnn" in name else range(18)
    w = task.init(seeds)
    metrics = task.test_metrics(w)
    x = data.load(task.dataset).test_images / 255 - (0.5 if task.dataset == "cifar10" else 0)
    y = data.load(task.dataset).test_labels
    for run in (0, len(seeds) - 1):
        weights = unflatten(w[run : run + 1], task.learner.shapes())
        blocks = [
            task.learner(weights, part.unsqueeze(0))[0].T for part in x.split(1000)
        ]  # without dropout
        logits = torch.cat(blocks)
        order = logits.argsort(1, descending=True)
        assert metrics.loss[run].item() == pytest.approx(
            nn.functional.cross_entropy(logits, y).item(), rel=1e-5
        )
        assert metrics.top1[run].item() == pytest.approx(
            (order[:, 0] == y).double().mean().item(), abs=1e-3
        )
        assert metrics.top2[run].item() == pytest.approx(
            (order[:, :2] == y[:, None]).any(1).double().mean().item(), abs=2e-3
        )
    assert (metrics.top2 > metrics.top1).all()


def test_sine_loss(make) -> None:
    task = make("sine-lstm-small-noise")
    batch = task.batch([1], 0)
    inputs, targets = data.sine_sequences([1], 0, 128, noise=0.01)
    assert torch.equal(batch.inputs, inputs)
    assert torch.equal(batch.targets, targets)
    w = torch.zeros(1, task.p)
    w[0, -1] = 2.0  # the read-out's bias alone: predicts 2
    torch.testing.assert_close(task.loss(w, batch), (2 - targets).square().mean(1).float())


def test_shapes_are_the_learners_tensors() -> None:
    for name in tasks.names():
        task = tasks.get(name)
        if not hasattr(task, "learner"):
            continue  # another test's
        assert task.shapes == task.learner.shapes()
        assert sum(math.prod(shape) for shape in task.shapes) == task.p
    assert tasks.get("mnist-mlp").shapes == [(20, 784), (20,), (10, 20), (10,)]


def test_shapes_of_a_task_of_ones_own() -> None:
    class Mine(tasks.Task):
        def batch(self, seeds, step):
            return ()

        def losses(self, params, batch):
            return params.sum(-1)

    assert Mine(6).shapes == [(6,)]
    assert Mine(7, [(2, 3), (1,)]).shapes == [(2, 3), (1,)]
    with pytest.raises(ValueError, match="shapes have 6 entries, expected p = 7"):
        Mine(7, [(2, 3)])


def test_wrong_params_are_refused(make) -> None:
    task = make("mnist-mlp")
    batch = task.batch([1], 0)
    for shape in ((15910,), (1, 15911)):
        with pytest.raises(ValueError, match=r"params must be \(runs, 15910\), got \("):
            task.loss_and_grad(torch.zeros(shape), batch)


@pytest.mark.data
def test_adam_reaches_what_others_measured() -> None:
    """The basic MLP on real MNIST, 100 steps of Adam near its best rate: a final loss of about 0.30."""
    task = tasks.get("mnist-mlp")
    seeds = range(10)
    try:
        w = task.init(seeds)
        task.batch(seeds, 0)
    except data.DataError as error:
        pytest.skip(str(error))
    m, v = torch.zeros_like(w), torch.zeros_like(w)
    for step in range(100):
        _, g = task.loss_and_grad(w, task.batch(seeds, step))
        m, v = 0.9 * m + 0.1 * g, 0.999 * v + 0.001 * g * g
        w = w - 0.03125 * (m / (1 - 0.9 ** (step + 1))) / (
            (v / (1 - 0.999 ** (step + 1))).sqrt() + 1e-8
        )
    assert task.final_loss(w, seeds, 100).mean().item() == pytest.approx(0.302, abs=0.02)
    metrics = task.test_metrics(w)
    assert metrics.top1.mean() > 0.88
    assert metrics.top2.mean() > 0.94


@pytest.mark.parametrize("kind", [tasks.Task, tasks.ModuleTask])
def test_examples_in_docstrings_run_as_pasted(
    kind: type[tasks.Task], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tasks.registry, "_REGISTERED", {})
    example = re.search(r"::\n\n((?: {4}.*\n|\n)+)", inspect.getdoc(kind) or "")
    assert example
    namespace: dict[str, object] = {}
    exec(textwrap.dedent(example[1]), namespace)
    task = namespace.get("task") or tasks.get("noisy-bowl")
    assert isinstance(task, tasks.Task)
    loss, grad = task.loss_and_grad(task.init([0, 1]), task.batch([0, 1], 0))
    assert loss.isfinite().all()
    assert grad.shape == (2, task.p)
