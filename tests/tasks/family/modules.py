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
    layers.append(nn.Flatten())
    if network.hidden:
        layers += [nn.LazyLinear(network.hidden), ACTIVATIONS[network.activation]()]
    return nn.Sequential(*layers, nn.LazyLinear(network.classes))


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


class BlockModule(nn.Module):
    def __init__(self, d: int, heads: int) -> None:
        super().__init__()
        self.norm1 = nn.LayerNorm(d)
        self.attention = nn.MultiheadAttention(d, heads, batch_first=True)
        self.norm2 = nn.LayerNorm(d)
        self.inner = nn.Sequential(nn.Linear(d, 4 * d), nn.GELU(), nn.Linear(4 * d, d))

    def forward(self, h, hidden):
        y = self.norm1(h)
        h = h + self.attention(y, y, y, attn_mask=hidden, need_weights=False)[0]
        return h + self.inner(self.norm2(h))


class TransformerModule(nn.Module):
    def __init__(self, network: Transformer) -> None:
        super().__init__()
        self.patch, d = network.patch, network.width
        inputs = network.channels * network.patch**2
        self.first = nn.Linear(inputs, d) if self.patch else nn.Embedding(network.symbols, d)
        self.place = nn.Embedding(network.length, d)
        self.blocks = nn.ModuleList(BlockModule(d, network.heads) for _ in range(network.depth))
        self.norm = nn.LayerNorm(d)
        self.out = nn.Linear(d, network.symbols or network.classes)

    def forward(self, x):
        hidden = None
        if self.patch:  # squares row by row, each with its channels one after the other
            squares = x.unfold(2, self.patch, self.patch).unfold(3, self.patch, self.patch)
            x = squares.permute(0, 2, 3, 1, 4, 5).flatten(3).flatten(1, 2)
        else:
            hidden = torch.ones(x.shape[1], x.shape[1], dtype=torch.bool).triu(1)
        h = self.first(x) + self.place(torch.arange(x.shape[1]))
        for block in self.blocks:
            h = block(h, hidden)
        h = self.norm(h)
        return self.out(h.mean(1) if self.patch else h.flatten(0, 1))


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
