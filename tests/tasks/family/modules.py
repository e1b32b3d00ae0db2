"""The family's networks as anyone would write them in torch.nn: one run, no tricks."""

from __future__ import annotations

from itertools import pairwise

import torch
from torch import nn
from torch.nn.functional import cross_entropy

from hyperadam.tasks.family.networks import CNN, MLP
from hyperadam.tasks.family.sequences import Recurrent, Transformer
from hyperadam.tasks.family.task import Quadratic

ACTIVATIONS = {
    "relu": nn.ReLU,
    "tanh": nn.Tanh,
    "sigmoid": nn.Sigmoid,
    "gelu": nn.GELU,
    "elu": nn.ELU,
}


def mlp(network: MLP) -> nn.Module:
    layers: list[nn.Module] = [nn.Flatten()]
    for k, (i, o) in enumerate(pairwise(network.sizes)):
        layers.append(nn.Linear(i, o))
        if k < len(network.sizes) - 2:
            layers += [nn.LayerNorm(o)] if network.normalised else []
            layers.append(ACTIVATIONS[network.activation]())
    return nn.Sequential(*layers)


def cnn(network: CNN) -> nn.Module:
    channels = (network.image[0], *network.channels)
    layers: list[nn.Module] = []
    for i, o in pairwise(channels):
        layers.append(nn.Conv2d(i, o, 3, 2 if network.pool == "stride" else 1, padding=1))
        layers.append(ACTIVATIONS[network.activation]())
        layers += {"max": [nn.MaxPool2d(2)], "mean": [nn.AvgPool2d(2)], "stride": []}[network.pool]
    layers += [nn.AdaptiveAvgPool2d(1)] if network.averaged else []
    return nn.Sequential(*layers, nn.Flatten(), nn.LazyLinear(network.classes))


class RecurrentModule(nn.Module):
    def __init__(self, network: Recurrent) -> None:
        super().__init__()
        self.symbols = network.symbols
        if network.symbols:
            self.embedding = nn.Embedding(network.symbols, network.embedding)
        kind = {"gru": nn.GRU, "lstm": nn.LSTM}[network.cell]
        self.cell = kind(network.embedding or 1, network.units, batch_first=True)
        self.out = nn.Linear(network.units, network.symbols or 1)

    def forward(self, x):
        h, _ = self.cell(self.embedding(x) if self.symbols else x.unsqueeze(-1))
        return self.out(h.flatten(0, 1) if self.symbols else h[:, -1])


class TransformerModule(nn.Module):
    def __init__(self, network: Transformer) -> None:
        super().__init__()
        d = network.width
        self.symbol = nn.Embedding(network.symbols, d)
        self.place = nn.Embedding(network.length, d)
        self.norm1 = nn.LayerNorm(d)
        self.attention = nn.MultiheadAttention(d, network.heads, batch_first=True)
        self.norm2 = nn.LayerNorm(d)
        self.inner = nn.Sequential(nn.Linear(d, 4 * d), nn.GELU(), nn.Linear(4 * d, d))
        self.norm3 = nn.LayerNorm(d)
        self.out = nn.Linear(d, network.symbols)

    def forward(self, x):
        length = x.shape[1]
        h = self.symbol(x) + self.place(torch.arange(length))
        later = torch.ones(length, length, dtype=torch.bool).triu(1)
        y = self.norm1(h)
        h = h + self.attention(y, y, y, attn_mask=later, need_weights=False)[0]
        h = h + self.inner(self.norm2(h))
        return self.out(self.norm3(h)).flatten(0, 1)


class QuadraticModule(nn.Module):
    def __init__(self, problem: Quadratic) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.zeros(problem.shape))


MODULES = {MLP: mlp, CNN: cnn, Recurrent: RecurrentModule, Transformer: TransformerModule}


def loss(name: str, out: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    if name == "classes":
        return cross_entropy(out, y)
    if name == "pixels":
        return nn.functional.mse_loss(torch.sigmoid(out), y)
    if name == "bernoulli":
        return nn.functional.binary_cross_entropy(torch.sigmoid(out), y)
    return {"squares": nn.functional.mse_loss, "robust": nn.functional.smooth_l1_loss}[name](out, y)
