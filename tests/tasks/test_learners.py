"""Each learner against an independent ``torch.nn`` model of the same weights: parameters, outputs, gradients."""

from __future__ import annotations

from itertools import pairwise

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils import parameters_to_vector, vector_to_parameters

from hyperadam.tasks.learners import CNN, LSTM, MLP, batch_norm, channels_last, size, unflatten

ACTIVATIONS = {"sigmoid": nn.Sigmoid, "relu": nn.ReLU, "elu": nn.ELU, "tanh": nn.Tanh}


def params_for(learner, runs: int, dtype: torch.dtype = torch.float64) -> Tensor:
    return 0.1 * torch.randn(
        runs, size(learner.shapes()), dtype=dtype, generator=torch.Generator().manual_seed(1)
    )


def normal(*shape: int) -> Tensor:
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(2))


def assert_same_network(learner, reference: nn.Module, x: Tensor, **kwargs: Tensor) -> None:
    """Outputs and gradients of every run equal those of the reference with that run's weights."""
    params = params_for(learner, len(x)).requires_grad_()
    outputs = learner(unflatten(params, learner.shapes()), x, **kwargs)
    (grads,) = torch.autograd.grad(outputs.square().sum(), params)
    reference.double()
    for run, inputs in enumerate(x):
        vector_to_parameters(params[run].detach(), reference.parameters())
        expected = reference(inputs).T
        torch.testing.assert_close(outputs[run], expected)
        expected_grad = torch.autograd.grad(expected.square().sum(), list(reference.parameters()))
        torch.testing.assert_close(grads[run], parameters_to_vector(expected_grad))


@pytest.mark.parametrize("activation", ACTIVATIONS)
@pytest.mark.parametrize("sizes", [(12, 20, 10), (12, 5, 7, 6, 10)])
def test_mlp(activation: str, sizes: tuple[int, ...]) -> None:
    layers: list[nn.Module] = []
    for i, o in pairwise(sizes):
        layers += [nn.Linear(i, o), ACTIVATIONS[activation]()]
    assert_same_network(
        MLP(sizes, activation), nn.Sequential(nn.Flatten(), *layers[:-1]), normal(3, 8, 3, 2, 2)
    )


class PositionNorm(nn.Module):
    def forward(self, h: Tensor) -> Tensor:
        mean = h.mean(0, keepdim=True)
        return (h - mean) / (((h - mean) ** 2).mean(0, keepdim=True) + 1e-5).sqrt()


class HalfDropped(nn.Module):
    def __init__(self, mask: Tensor) -> None:
        super().__init__()
        self.mask = mask

    def forward(self, h: Tensor) -> Tensor:
        return torch.where(self.mask.bool(), h / 0.5, 0)


def reference_cnn(
    kind: int, channels: int, pixels: int, norm: bool = False, mask: Tensor | None = None
) -> nn.Module:
    def conv(i: int, o: int) -> list[nn.Module]:
        return [nn.Conv2d(i, o, 3, padding="same"), nn.ReLU(), *([PositionNorm()] if norm else [])]

    drop = [] if mask is None else [HalfDropped(mask)]
    first = [*conv(channels, 16), *conv(16, 16), nn.MaxPool2d(2, 2)]
    if kind == 1:
        return nn.Sequential(*first, nn.Flatten(), *drop, nn.Linear(16 * (pixels // 2) ** 2, 10))
    second = [*conv(16, 32), *conv(32, 32), nn.MaxPool2d(2, 2), nn.Flatten()]
    return nn.Sequential(
        *first, *second, nn.Linear(32 * (pixels // 4) ** 2, 64), nn.ReLU(), *drop, nn.Linear(64, 10)
    )


def cnn(kind: int, image: tuple[int, int, int], **extras: bool) -> CNN:
    return (
        CNN(image, ((16, 16),), **extras)
        if kind == 1
        else CNN(image, ((16, 16), (32, 32)), (64,), **extras)
    )


@pytest.mark.parametrize("norm", [False, True])
@pytest.mark.parametrize(("kind", "image"), [(1, (1, 8, 8)), (2, (3, 8, 8))])
def test_cnn(kind: int, image: tuple[int, int, int], norm: bool) -> None:
    assert_same_network(
        cnn(kind, image, batch_norm=norm),
        reference_cnn(kind, image[0], image[1], norm),
        normal(2, 6, *image),
    )


@pytest.mark.parametrize("norm", [False, True])
@pytest.mark.parametrize("channels", [1, 3])
def test_cnn_in_float32(channels: int, norm: bool) -> None:
    """The path that training takes: rounding may differ from the reference's, nothing else."""
    learner, reference = (
        cnn(2, (channels, 12, 12), batch_norm=norm),
        reference_cnn(2, channels, 12, norm),
    )
    params, x = (
        params_for(learner, 1, torch.float32).requires_grad_(),
        normal(1, 16, channels, 12, 12).float(),
    )
    vector_to_parameters(params[0].detach(), reference.parameters())
    outputs, expected = learner(unflatten(params, learner.shapes()), x)[0], reference(x[0]).T
    torch.testing.assert_close(outputs, expected, rtol=1e-4, atol=1e-5)
    (grad,) = torch.autograd.grad(outputs.square().sum(), params)
    expected_grad = parameters_to_vector(
        torch.autograd.grad(expected.square().sum(), list(reference.parameters()))
    )
    assert (grad[0] - expected_grad).norm() < 1e-4 * expected_grad.norm()


@pytest.mark.parametrize("sign", [-1, 0, 1])
def test_ties_in_pooling_follow_torch(sign: int) -> None:
    """Equal values, below, at and above zero: the gradient goes where ``torch.nn`` sends it."""
    learner = CNN((1, 4, 4), ((1,),), classes=1)
    layers = [
        nn.Conv2d(1, 1, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(4, 1),
    ]
    reference = nn.Sequential(*layers).double()
    params = torch.tensor(
        [[*[0.0] * 9, sign, 1, 2, 3, 4, 5]], dtype=torch.float64, requires_grad=True
    )
    x = normal(1, 3, 1, 4, 4)
    outputs = learner(unflatten(params, learner.shapes()), x)
    vector_to_parameters(params[0].detach(), reference.parameters())
    expected = reference(x[0]).T
    torch.testing.assert_close(outputs[0], expected)
    (grad,) = torch.autograd.grad(outputs.sum(), params)
    expected_grad = torch.autograd.grad(expected.sum(), list(reference.parameters()))
    torch.testing.assert_close(grad[0], parameters_to_vector(expected_grad))


@pytest.mark.parametrize("channels", [1, 3])
def test_channels_last(channels: int) -> None:
    h = normal(2, channels, 4, 5)
    moved = channels_last(h)
    assert torch.equal(moved, h)
    assert moved.stride() == (20 * channels, 1, 5 * channels, channels)
    out = nn.functional.conv2d(moved.float(), torch.ones(8, channels, 3, 3))
    assert out.stride()[1] == 1


@pytest.mark.parametrize("kind", [1, 2])
def test_dropout(kind: int) -> None:
    learner = cnn(kind, (1, 8, 8), dropout=True)
    assert learner.dropout_units == {1: 16 * 4 * 4, 2: 64}[kind]
    mask = (normal(1, 6, learner.dropout_units) > 0).to(torch.uint8)
    assert_same_network(
        learner, reference_cnn(kind, 1, 8, mask=mask[0]), normal(1, 6, 1, 8, 8), mask=mask
    )
    assert cnn(kind, (1, 8, 8)).dropout_units == 0


def test_batch_norm_normalises_positions() -> None:
    h = 3 + 2 * normal(50, 4, 5, 5)
    out = batch_norm(h)
    torch.testing.assert_close(
        out.mean(0), torch.zeros(4, 5, 5, dtype=torch.float64), atol=1e-12, rtol=0
    )
    torch.testing.assert_close(
        out.var(0, correction=0), torch.ones(4, 5, 5, dtype=torch.float64), atol=1e-4, rtol=0
    )
    assert torch.autograd.gradgradcheck(batch_norm, (normal(5, 2, 2, 2).requires_grad_(),))


@pytest.mark.parametrize("layers", [1, 2, 3])
def test_lstm(layers: int) -> None:
    runs, length, n, units = 3, 10, 7, 20
    learner = LSTM(units, layers)
    params, x = params_for(learner, runs), normal(runs, length, n)
    outputs = learner(unflatten(params, learner.shapes()), x)
    assert outputs.shape == (runs, n)
    for run in range(runs):
        *stack, w_out, b_out = [w[0] for w in unflatten(params[run : run + 1], learner.shapes())]
        reference = nn.LSTM(1, units, layers).double()
        for k in range(layers):
            for name, value in zip(
                ("weight_ih", "weight_hh", "bias_ih"), stack[3 * k : 3 * k + 3], strict=True
            ):
                getattr(reference, f"{name}_l{k}").data.copy_(value)
            getattr(reference, f"bias_hh_l{k}").data.zero_()  # torch keeps two biases, we one
        hidden, _ = reference(x[run].unsqueeze(-1))
        torch.testing.assert_close(outputs[run], (hidden[-1] @ w_out.T + b_out).squeeze(-1))


@pytest.mark.parametrize(
    ("learner", "shape"),
    [
        (MLP((12, 4, 3), "tanh"), (2, 5, 3, 2, 2)),
        (CNN((1, 4, 4), ((2, 2),), classes=3), (2, 5, 1, 4, 4)),
        (CNN((1, 4, 4), ((2,),), (3,), classes=3, batch_norm=True), (2, 5, 1, 4, 4)),
        (LSTM(3, 2), (2, 4, 5)),
    ],
    ids=["mlp", "cnn", "cnn with batch norm", "lstm"],
)
def test_gradients_of_gradients(learner, shape: tuple[int, ...]) -> None:
    x, params = normal(*shape), 5 * params_for(learner, shape[0])

    def loss(w: Tensor) -> Tensor:
        return learner(unflatten(w, learner.shapes()), x).square().flatten(1).mean(1)

    assert torch.autograd.gradcheck(loss, (params.requires_grad_(),))
    assert torch.autograd.gradgradcheck(loss, (params,))
