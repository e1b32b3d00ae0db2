"""What the family learns from: digits, random teachers, sine waves, text of random languages.

Everything but MNIST's digits is generated, so that a rule can be judged on anything else.
"""

from __future__ import annotations

import math
from functools import cache
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import interpolate

from hyperadam import data
from hyperadam.data import draws

#: The most numbers that a generated pool of inputs holds.
POOL = 2**20


class Batch(NamedTuple):
    """Inputs ``(n, ...)`` and targets: classes ``(m,)`` int64, or numbers ``(n, outputs)``."""

    x: Tensor
    y: Tensor


class Pool(NamedTuple):
    """Examples that batches are drawn from: inputs ``(N, ...)``, targets ``(N,)`` or ``(N, o)``.

    Inputs may be small integers; ``(x - shift) * scale`` is what a learner sees. With
    ``reconstructed`` the targets are the inputs themselves, once shifted and scaled.
    """

    x: Tensor
    y: Tensor
    shift: float = 0.0
    scale: float = 1.0
    reconstructed: bool = False

    def batch(self, seed: int, step: int, size: int) -> Batch:
        """The examples of a run's step, drawn with replacement."""
        rows = draws.integers(draws.keys([seed], "family batch", step), len(self.x), size)[0]
        x = self.x.index_select(0, rows)
        if not x.is_floating_point():
            x = x.float()
        if self.shift or self.scale != 1:
            x = (x - self.shift) * self.scale
        if self.reconstructed:
            return Batch(x, x.flatten(1))
        return Batch(x, self.y.index_select(0, rows))


class Text(NamedTuple):
    """A text of symbols ``(N,)`` int64; a batch has windows of ``length`` and what follows each."""

    text: Tensor
    length: int

    def batch(self, seed: int, step: int, size: int) -> Batch:
        """Windows ``(n, length)`` at random places, and the next symbols ``(n * length,)``."""
        key = draws.keys([seed], "family batch", step)
        begin = draws.integers(key, len(self.text) - self.length, size)[0]
        window = self.text[begin.unsqueeze(1) + torch.arange(self.length + 1)]
        return Batch(window[:, :-1], window[:, 1:].flatten())


Source = Pool | Text


@cache
def digits(side: int, crop: int = 28) -> Tensor:
    """MNIST's training images, the middle ``crop`` pixels resized to ``side``: uint8."""
    images = data.load("mnist").train_images
    edge = (28 - crop) // 2
    images = images[:, :, edge : 28 - edge, edge : 28 - edge]
    if side == crop:
        return images.contiguous()
    parts = [
        interpolate(part.float(), (side, side), mode="bilinear", antialias=True)
        for part in images.split(10_000)
    ]
    return torch.cat(parts).round_().clamp_(0, 255).to(torch.uint8)


def digit_pool(
    seed: int,
    side: int,
    crop: int,
    count: int,
    standardised: bool,
    wrong: float = 0.0,
    reconstructed: bool = False,
) -> Pool:
    """``count`` digits in a row, from a random one on; a share ``wrong`` has a random label."""
    images, labels = digits(side, crop), data.load("mnist").train_labels
    first = int(draws.integers(draws.keys([seed], "family digits"), len(labels) - count + 1)[0])
    x, y = images[first : first + count], labels[first : first + count]
    y = _mislabelled(y, 10, wrong, seed)
    shift, scale = (33.3, 1 / 78.6) if standardised else (0.0, 1 / 255)
    return Pool(x, y, shift, scale, reconstructed)


def colour_pool(
    seed: int, side: int, count: int, standardised: bool, reconstructed: bool = False
) -> Pool:
    """``count`` tinted digits, each before another one, dimmer and of another colour: harder to tell
    than plain digits, ``(count, 3, side, side)``."""
    images, labels = digits(side), data.load("mnist").train_labels
    first = int(draws.integers(draws.keys([seed], "family digits"), len(labels) - count + 1)[0])
    front, y = images[first : first + count].float(), labels[first : first + count]
    behind = front.roll(1, 0).flip(3)
    tints = draws.uniform(draws.keys([seed], "family tints"), 2, count, 3, 1, 1)[0].float()
    dim = float(0.2 + 0.6 * draws.uniform(draws.keys([seed], "family clutter"), 1)[0])
    x = torch.maximum(front * (0.4 + 0.6 * tints[0]), dim * behind * tints[1])
    x = x.round_().to(torch.uint8)
    shift, scale = (33.3, 1 / 60) if standardised else (0.0, 1 / 255)
    return Pool(x, y, shift, scale, reconstructed)


def inputs(seed: int, count: int, size: int, decay: float, heavy: bool) -> Tensor:
    """Random inputs ``(count, size)`` of mean square 1: deviations fall as ``rank ** -decay``.

    ``heavy`` inputs have tails: now and then an example is many times as large as others.
    """
    x = draws.normal(draws.keys([seed], "family inputs"), count, size)[0].float()
    deviations = torch.arange(1, size + 1, dtype=torch.float32) ** -decay
    x *= deviations / deviations.square().mean().sqrt()
    if heavy:
        x *= draws.normal(draws.keys([seed], "family tails"), count, 1)[0].float().mul(0.7).exp()
    return x


def teacher(x: Tensor, seed: int, width: int, outputs: int) -> Tensor:
    """What a random tanh network with one hidden layer says of ``x``: ``(count, outputs)``, mean square 1."""
    size = x.shape[1]
    w1 = draws.normal(draws.keys([seed], "family teacher", 1), size, width)[0].float()
    w2 = draws.normal(draws.keys([seed], "family teacher", 2), width, outputs)[0].float()
    y = torch.tanh(x @ (w1 * (1.5 / math.sqrt(size)))) @ w2
    return (y - y.mean(0)) / y.std(0).clamp(min=1e-6)


def regression_pool(seed: int, x: Tensor, outputs: int, noise: float, heavy: bool) -> Pool:
    """A teacher's answers with ``noise``; ``heavy`` noise has tails."""
    y = teacher(x, seed, 16, outputs)
    error = draws.normal(draws.keys([seed], "family noise"), *y.shape)[0].float()
    if heavy:
        error *= draws.normal(draws.keys([seed], "family noise tails"), *y.shape)[0].float().exp()
    return Pool(x, y + noise * error)


def class_pool(seed: int, x: Tensor, classes: int, wrong: float) -> Pool:
    """Classes by what a teacher says most of; a share ``wrong`` is random."""
    return Pool(x, _mislabelled(teacher(x, seed, 24, classes).argmax(1), classes, wrong, seed))


def sine_pool(seed: int, count: int, length: int, noise: float, amplitude: float) -> Pool:
    """Noisy samples of sine waves ``(count, length)``, and the clean value that follows."""
    a, omega, phi = draws.uniform(draws.keys([seed], "family sines"), 3, count, 1)[0]
    t = torch.arange(length + 1, dtype=torch.float64)
    f = amplitude * (0.2 + 0.8 * a) * torch.sin(math.pi / 2 * omega * t + 2 * math.pi * phi)
    error = draws.normal(draws.keys([seed], "family noise"), count, length)[0]
    return Pool((f[:, :-1] + noise * amplitude * error).float(), f[:, -1:].float())


def markov_text(seed: int, symbols: int, length: int, sharpness: float, chains: int = 256) -> Text:
    """Text of a random source: each symbol depends on the two before it.

    ``sharpness`` says how much: at 0 every symbol is as likely as any other.
    """
    steps = 128
    common = draws.normal(draws.keys([seed], "family symbols"), symbols)[0]
    logits = draws.normal(draws.keys([seed], "family source"), symbols * symbols, symbols)[0]
    ends = torch.softmax(sharpness * logits + common, 1).cumsum(1)
    ends[:, -1] = 1.0
    chance = draws.uniform(draws.keys([seed], "family text"), steps, chains)[0]
    before = torch.zeros(chains, dtype=torch.int64)
    last = draws.integers(draws.keys([seed], "family first"), symbols, chains)[0]
    written = []
    for u in chance:
        before, last = last, _next(ends, before * symbols + last, u)
        written.append(last)
    return Text(torch.stack(written, dim=1).flatten(), length)


def word_text(seed: int, symbols: int, length: int, words: int) -> Text:
    """Text of a random language: ``words`` words of up to nine letters, few of them common and most
    rare, each followed by some more often than by others; the last symbol stands between them."""
    letters, most, chains, steps = symbols - 1, 9, 64, 128
    u = draws.uniform(draws.keys([seed], "family spelling"), most + 1, words)[0]
    ends = _rows(seed, "family letters", letters, letters, 2.0)
    letter = (u[0] ** 2 * letters).long()
    spelt = [letter]
    for chance in u[2:]:
        letter = _next(ends, letter, chance)
        spelt.append(letter)
    longest = 1 + (u[1] * most).long().clamp(max=most - 1)
    place = torch.arange(most + 1).unsqueeze(1)
    table = torch.cat([torch.stack(spelt), torch.zeros(1, words, dtype=torch.int64)])
    table = torch.where(place < longest, table, symbols - 1).T
    common = 1 / torch.arange(2, words + 2, dtype=torch.float64)
    unigram = (common / common.sum()).cumsum(0)
    u = draws.uniform(draws.keys([seed], "family text"), 3, steps, chains)[0]
    fellows = draws.uniform(draws.keys([seed], "family fellows"), words, 6)[0] ** 2 * words
    word, written = torch.zeros(chains, dtype=torch.int64), []
    for k in range(steps):
        any_word = torch.searchsorted(unigram, u[0, k]).clamp(max=words - 1)
        fellow = fellows.long()[word, (u[1, k] * 6).long()]
        word = torch.where(u[2, k] < 0.5, any_word, fellow)
        written.append(word)
    order = torch.stack(written, dim=1).flatten()
    kept = torch.arange(most + 1) <= longest[order].unsqueeze(1)
    return Text(table[order][kept], length)


def _rows(seed: int, purpose: str, rows: int, columns: int, sharpness: float) -> Tensor:
    """Random distributions over ``columns`` things, one a row, added up along the row."""
    logits = draws.normal(draws.keys([seed], purpose), rows, columns)[0]
    ends = torch.softmax(sharpness * logits, 1).cumsum(1)
    ends[:, -1] = 1.0
    return ends


def _next(ends: Tensor, row: Tensor, chance: Tensor) -> Tensor:
    """What each ``chance (n,)`` hits in its ``row (n,)`` of ``ends``."""
    found = torch.searchsorted(ends[row], chance.unsqueeze(1), right=True).squeeze(1)
    return found.clamp(max=ends.shape[1] - 1)


def _mislabelled(labels: Tensor, classes: int, wrong: float, seed: int) -> Tensor:
    if not wrong:
        return labels
    key = draws.keys([seed], "family labels")
    bad = draws.uniform(key, len(labels))[0] < wrong
    other = draws.integers(draws.keys([seed], "family wrong"), classes, len(labels))[0]
    return torch.where(bad, other, labels)
