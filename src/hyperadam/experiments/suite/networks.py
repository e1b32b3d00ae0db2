"""The networks of the suite, as people build them: plain ``nn.Module``s with a usual start."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise

import torch
from torch import Tensor, nn
from torch.nn.functional import gelu, scaled_dot_product_attention, unfold

__all__ = ["Characters", "cnn2", "conv", "gpt", "mlp", "small_cnn", "truncated", "vit"]


def mlp(sizes: Sequence[int], norm: bool = False) -> nn.Sequential:
    """Linear layers of ``sizes`` on flattened inputs, ReLU between; with ``norm`` a layer normalisation before each ReLU."""
    layers: list[nn.Module] = [nn.Flatten()]
    for number, (inputs, outputs) in enumerate(pairwise(sizes), 1):
        layers.append(nn.Linear(inputs, outputs))
        if number < len(sizes) - 1:
            layers += [nn.LayerNorm(outputs)] * norm + [nn.ReLU()]
    return nn.Sequential(*layers)


def conv(channels: Sequence[int], classes: int = 10) -> nn.Sequential:
    """3×3 convolutions with ReLU, the first with stride 2; the mean over positions; a linear layer."""
    layers: list[nn.Module] = []
    for number, (inputs, outputs) in enumerate(pairwise(channels)):
        layers += [nn.Conv2d(inputs, outputs, 3, 1 if number else 2, padding=1), nn.ReLU()]
    return nn.Sequential(
        *layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels[-1], classes)
    )


def truncated(module: nn.Module) -> nn.Module:
    """VeLOdrome's start: weights from a normal cut off at two standard deviations of 1/√fan_in, biases zero."""
    for part in module.modules():
        if isinstance(part, nn.Linear | nn.Conv2d):
            std = 1 / math.sqrt(part.weight[0].numel())
            nn.init.trunc_normal_(part.weight, std=std, a=-2 * std, b=2 * std)
            assert part.bias is not None
            nn.init.zeros_(part.bias)
    return module


def cnn2() -> nn.Module:
    """The paper's CNN-2 with Kaiming's start: 16-16 and 32-32 channels, max-pooling after each pair, 64 hidden units."""
    layers: list[nn.Module] = []
    for inputs, outputs in ((3, 16), (16, 32)):
        layers += [nn.Conv2d(inputs, outputs, 3, padding=1), nn.ReLU()]
        layers += [nn.Conv2d(outputs, outputs, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)]
    module = nn.Sequential(
        *layers, nn.Flatten(), nn.Linear(32 * 8 * 8, 64), nn.ReLU(), nn.Linear(64, 10)
    )
    for part in module:
        if isinstance(part, nn.Linear | nn.Conv2d):
            nn.init.kaiming_normal_(part.weight, nonlinearity="relu")
            assert part.bias is not None
            nn.init.zeros_(part.bias)
    return module


def small_cnn() -> nn.Sequential:
    """Two convolutions with stride 2 on 28×28 pixels, 64 hidden units; torch's own start."""
    return nn.Sequential(
        nn.Conv2d(1, 16, 3, stride=2, padding=1),
        nn.ReLU(),
        nn.Conv2d(16, 32, 3, stride=2, padding=1),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(32 * 7 * 7, 64),
        nn.ReLU(),
        nn.Linear(64, 10),
    )


class Characters(nn.Module):
    """An LSTM that foretells the next of ``kinds`` characters; torch's own start."""

    def __init__(self, kinds: int, width: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(kinds, width // 2)
        self.lstm = nn.LSTM(width // 2, width, batch_first=True)
        self.head = nn.Linear(width, kinds)

    def forward(self, text: Tensor) -> Tensor:
        """``(n, length)`` characters to logits ``(n, length, kinds)``."""
        logits: Tensor = self.head(self.lstm(self.embedding(text))[0])
        return logits


class Block(nn.Module):
    """Attention and a layer of four times the width, each on normalised inputs and added to them."""

    def __init__(self, width: int, heads: int, causal: bool) -> None:
        super().__init__()
        self.heads, self.causal = heads, causal
        self.norm_1, self.norm_2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.mix, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        n, length, width = x.shape
        parts = self.mix(self.norm_1(x)).view(n, length, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        query, key, value = parts.unbind()
        seen = scaled_dot_product_attention(query, key, value, is_causal=self.causal)
        x = x + self.out(seen.transpose(1, 2).reshape(n, length, width))
        return x + self.down(gelu(self.up(self.norm_2(x))))


class Transformer(nn.Module):
    """Blocks over tokens, a learned vector for each position, and a linear layer.

    With ``kinds`` of characters it foretells the next; without, tokens are ``inputs`` numbers each and the class is read from
    their mean.
    """

    def __init__(
        self,
        width: int,
        depth: int,
        heads: int,
        length: int,
        outputs: int,
        kinds: int = 0,
        inputs: int = 0,
    ) -> None:
        super().__init__()
        self.embedding = nn.Embedding(kinds, width) if kinds else nn.Linear(inputs, width)
        self.position = nn.Embedding(length, width)
        self.blocks = nn.Sequential(*(Block(width, heads, bool(kinds)) for _ in range(depth)))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, outputs)
        self.classifies = not kinds

    def forward(self, tokens: Tensor) -> Tensor:
        """``(n, length)`` characters to logits ``(n, length, outputs)``, or ``(n, length, inputs)`` to ``(n, outputs)``."""
        places = torch.arange(tokens.shape[1])
        x = self.norm(self.blocks(self.embedding(tokens) + self.position(places)))
        logits: Tensor = self.head(x.mean(1) if self.classifies else x)
        return logits


class Patches(nn.Module):
    """Images cut into squares, each a row of numbers."""

    def __init__(self, side: int) -> None:
        super().__init__()
        self.side = side

    def forward(self, images: Tensor) -> Tensor:
        return unfold(images, self.side, stride=self.side).transpose(1, 2)


def vit() -> nn.Module:
    """A vision transformer on 32×32 images: 16 squares of 8×8, width 64, two blocks; torch's start, positions at 0.02."""
    body = Transformer(width=64, depth=2, heads=4, length=16, outputs=10, inputs=192)
    nn.init.trunc_normal_(body.position.weight, std=0.02)
    return nn.Sequential(Patches(8), body)


def gpt(kinds: int, length: int) -> Transformer:
    """A small language model with GPT-2's start: all matrices from N(0, 0.02²), biases zero."""
    body = Transformer(width=64, depth=2, heads=4, length=length, outputs=kinds, kinds=kinds)
    for part in body.modules():
        if isinstance(part, nn.Linear | nn.Embedding):
            nn.init.normal_(part.weight, std=0.02)
        if isinstance(part, nn.Linear):
            nn.init.zeros_(part.bias)
    return body
