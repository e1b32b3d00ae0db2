"""Which tasks there are, and how likely: every number comes from the task's seed alone."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import TypeVar

import torch
from torch import Tensor

from hyperadam.data import draws
from hyperadam.tasks.family import sources
from hyperadam.tasks.family.networks import ACTIVATIONS, CNN, MLP, Network
from hyperadam.tasks.family.sequences import Recurrent, Transformer
from hyperadam.tasks.family.sources import Source
from hyperadam.tasks.family.task import FamilyTask, Learning, Problem, Quadratic

T = TypeVar("T")

#: Forward passes over a batch are kept below this much work a run, by smaller batches.
WORK = 6e7
#: Examples of a batch, and of those of plain tasks. Whatever they cost, a batch has at least the
#: first number of them, or, of windows of text, half as many.
SMALLEST, LARGEST = 8, 128
PLAIN_SMALLEST, PLAIN_LARGEST = 24, 192
#: The share of tasks that start as people's do: no Random Scaling, no other size of the weights.
PLAIN = 0.6
#: Usual starts of feed-forward learners; transformers also have GPT's.
FEED_FORWARD = ("torch", "torch", "kaiming", "xavier", "truncated")


class Choices:
    """Random choices of a task, each by its name: a new one leaves the others as they were."""

    def __init__(self, seed: int) -> None:
        self.seed = seed

    def share(self, name: str) -> float:
        """Uniform in [0, 1)."""
        return float(draws.uniform(draws.keys([self.seed], f"family {name}"), 1)[0, 0])

    def chance(self, name: str, probability: float) -> bool:
        return self.share(name) < probability

    def of(self, name: str, options: Sequence[T]) -> T:
        return options[int(self.share(name) * len(options))]

    def between(self, name: str, low: float, high: float) -> float:
        """Log-uniform."""
        return math.exp(math.log(low) + self.share(name) * math.log(high / low))

    def whole(self, name: str, low: int, high: int) -> int:
        """A whole number from ``low`` to ``high``, small ones as likely as large ones by ratio."""
        return min(high, int(self.between(name, low, high + 1)))


def draw(seed: int, kind: str | None = None) -> FamilyTask:
    """The task that belongs to ``seed``; ``kind`` (one of :data:`KINDS`) is drawn, too, unless given."""
    choices = Choices(seed)
    if kind is None:
        shares = torch.tensor([share for share, _ in _KINDS.values()], dtype=torch.float64)
        place = torch.searchsorted(shares.cumsum(0) / shares.sum(), choices.share("kind"))
        kind = KINDS[int(place)]
    elif kind not in _KINDS:
        raise ValueError(f"kind must be one of {', '.join(KINDS)}, got {kind!r}")
    problem = _KINDS[kind][1](choices)
    plain = choices.chance("plain", PLAIN)
    attends = kind in ("transformer", "vision-transformer")
    how = choices.of("start", (*FEED_FORWARD, "small", "small") if attends else FEED_FORWARD)
    if plain:
        return FamilyTask(kind, problem, how)
    if not attends and choices.chance("paper", 0.5):
        how = "paper"
    factor = choices.between("factor", 0.4, 2.5) if choices.chance("larger", 0.4) else 1.0
    return FamilyTask(kind, problem, how, factor, _scales(choices, problem))


def usual() -> list[FamilyTask]:
    """Learners as people build them, wider and deeper than most that are drawn: to see what a rule
    does beyond what it knows best."""
    seed = 2**40
    digits = sources.digit_pool(seed, 28, 28, 60_000, standardised=True)
    pixels = sources.digit_pool(seed, 28, 28, 60_000, standardised=False, reconstructed=True)
    colours = sources.colour_pool(seed, 28, 4096, standardised=False)
    small = sources.colour_pool(seed, 14, 4096, standardised=False)
    tinted = sources.colour_pool(seed, 20, 4096, standardised=False, reconstructed=True)
    text = sources.word_text(seed, 90, 24, 1500)

    def learner(kind: str, network: Network, source: Source, size: int, how: str) -> FamilyTask:
        loss = "pixels" if kind == "autoencoder" else "classes"
        return FamilyTask(kind, Learning(network, source, loss, size), how)

    wide, normed = MLP((784, 320, 320, 10)), MLP((2352, 112, 112, 112, 10), normalised=True)
    deep = MLP((784, 288, 288, 288, 10), "gelu", normalised=True)
    averaged = CNN((3, 28, 28), (24, 48, 48), "relu", "stride", averaged=True)
    deep_cnn = CNN((1, 28, 28), (32, 64, 64, 96), "relu", "stride", averaged=True)
    squares = Transformer(0, 56, 16, heads=4, depth=2, patch=7, channels=3)
    return [
        learner("digit-mlp", wide, digits, 64, "torch"),
        learner("digit-mlp", MLP((588, 24, 10)), small, 128, "truncated"),
        learner("digit-mlp", normed, colours, 64, "truncated"),
        learner("digit-mlp", deep, digits, 32, "kaiming"),
        learner("autoencoder", MLP((784, 112, 28, 112, 784)), pixels, 64, "truncated"),
        learner("autoencoder", MLP((1200, 24, 24, 24, 1200)), tinted, 64, "truncated"),
        learner("cnn", averaged, colours, 32, "truncated"),
        learner("cnn", CNN((3, 14, 14), (16, 32), hidden=48), small, 32, "kaiming"),
        learner("cnn", deep_cnn, digits, 16, "kaiming"),
        learner("recurrent-text", Recurrent("lstm", 96, 24, 90, 48), text, 12, "torch"),
        learner("transformer", Transformer(90, 56, 24, heads=4, depth=2), text, 12, "small"),
        learner("transformer", Transformer(90, 48, 24, heads=4, depth=2), text, 12, "torch"),
        learner("vision-transformer", squares, colours, 24, "torch"),
    ]


def _scales(choices: Choices, problem: Problem) -> list[Tensor] | None:
    """Random Scaling, of half of those tasks: of all coordinates alike, by tensor, or each."""
    if not choices.chance("scaled", 0.5):
        return None
    manner = choices.of("scaling", ("all", "tensor", "coordinate"))
    shapes = [slot.shape for slot in problem.slots()]
    if manner == "all":
        c = choices.between("scale", math.exp(-2), math.exp(2))
        return [torch.tensor(c) for _ in shapes]
    if manner == "tensor":
        u = 2 * draws.uniform(draws.keys([choices.seed], "family scales"), len(shapes))[0] - 1
        return [x.mul(1.5).exp().float() for x in u]
    key = [draws.keys([choices.seed], "family scales", k + 1) for k in range(len(shapes))]
    return [
        (2 * draws.uniform(k, *shape)[0] - 1).exp().float()
        for k, shape in zip(key, shapes, strict=True)
    ]


def _learning(choices: Choices, network: Network, source: Source, loss: str) -> Learning:
    """The network with a batch that it can afford."""
    smallest = SMALLEST // 2 if isinstance(source, sources.Text) else SMALLEST
    plain = choices.chance("plain", PLAIN)
    wanted = (PLAIN_SMALLEST, PLAIN_LARGEST) if plain else (SMALLEST, LARGEST)
    size = min(choices.whole("batch", *wanted), int(WORK / network.work()))
    return Learning(network, source, loss, max(smallest, size))


def _hidden(choices: Choices, most: int, depth: int) -> tuple[int, ...]:
    """Widths of hidden layers: all the same, or each half of the one before. Many are wide, as
    people's are: a step that fits small learners is too long there."""
    width = 4 * choices.whole("width", most // 8 if choices.chance("wide", 0.4) else 2, most // 4)
    # the suite has learners of width 128 on the same images: none of them is in the family
    width = 120 if width == 128 else width
    halving = choices.chance("halving", 0.3)
    return tuple(max(8, width >> k) if halving else width for k in range(depth))


def _digits(
    choices: Choices, sides: Sequence[int], reconstructed: bool = False
) -> tuple[Source, int]:
    side = choices.of("side", sides)
    crop = 20 if choices.chance("crop", 0.3) and side <= 20 else 28
    count = choices.whole("examples", 512, 60_000)
    wrong = choices.between("wrong", 0.02, 0.3) if choices.chance("mislabelled", 0.15) else 0.0
    bright = choices.chance("standardised", 0.5) and not reconstructed
    pool = sources.digit_pool(choices.seed, side, crop, count, bright, wrong, reconstructed)
    return pool, side


def _pictures(choices: Choices, sides: Sequence[int], coloured: float) -> tuple[Source, int, int]:
    """Digits, or, in a share ``coloured``, tinted ones: the source, channels and side."""
    if not choices.chance("coloured", coloured):
        source, side = _digits(choices, sides)
        return source, 1, side
    side, count = choices.of("side", sides), choices.whole("examples", 512, 4096)
    bright = choices.chance("standardised", 0.5)
    return sources.colour_pool(choices.seed, side, count, bright), 3, side


def _inputs(choices: Choices, most: int = 784) -> Tensor:
    size = choices.whole("inputs", 16, most)
    count = min(choices.whole("examples", 512, 16_384), sources.POOL // size)
    decay = choices.of("decay", (0.0, 0.5, 1.0))
    return sources.inputs(choices.seed, count, size, decay, choices.chance("heavy inputs", 0.3))


def _digit_mlp(choices: Choices) -> Problem:
    source, channels, side = _pictures(choices, (7, 10, 14, 20, 28, 28), 0.3)
    depth = choices.of("depth", (1, 1, 2, 2, 3, 4, 5))
    sizes = (channels * side * side, *_hidden(choices, 256, depth), 10)
    network = MLP(sizes, choices.of("activation", list(ACTIVATIONS)), choices.chance("norm", 0.25))
    return _learning(choices, network, source, "classes")


def _synthetic_mlp(choices: Choices) -> Problem:
    x, classes = _inputs(choices), choices.whole("classes", 2, 32)
    wrong = choices.between("wrong", 0.02, 0.3) if choices.chance("mislabelled", 0.3) else 0.0
    source = sources.class_pool(choices.seed, x, classes, wrong)
    depth = choices.of("depth", (1, 2, 2, 3, 4, 5))
    sizes = (x.shape[1], *_hidden(choices, 256, depth), classes)
    network = MLP(sizes, choices.of("activation", list(ACTIVATIONS)), choices.chance("norm", 0.25))
    return _learning(choices, network, source, "classes")


def _cnn(choices: Choices) -> Problem:
    first = 4 * choices.whole("channels", 1, 8)
    source, colours, side = _pictures(choices, (10, 14, 16, 20, 28), 0.5)
    depth = choices.of("depth", (1, 2, 2, 3, 3, 4))
    channels = tuple(min(first << k, 64) for k in range(depth if side > 10 else min(depth, 2)))
    network = CNN(
        (colours, side, side),
        channels,
        choices.of("activation", ("relu", "relu", "relu", "gelu", "elu", "tanh")),
        choices.of("pool", ("max", "stride", "mean")) if len(channels) < 4 else "stride",
        choices.chance("averaged", 0.3),
        hidden=8 * choices.whole("hidden", 2, 8) if choices.chance("two ends", 0.3) else 0,
    )
    return _learning(choices, network, source, "classes")


def _autoencoder(choices: Choices) -> Problem:
    source, side = _digits(choices, (7, 10, 14, 20, 28), reconstructed=True)
    (width,), code = _hidden(choices, 192, 1), choices.whole("code", 4, 48)
    hidden = (code,) if choices.chance("shallow", 0.3) else (width, code, width)
    activation = choices.of("activation", list(ACTIVATIONS))
    loss = choices.of("loss", ("squares", "pixels", "bernoulli"))
    network = MLP((side * side, *hidden, side * side), activation)
    return _learning(choices, network, source, loss)


def _sines(choices: Choices) -> Problem:
    length, units = choices.whole("length", 6, 16), 4 * choices.whole("units", 2, 12)
    noise, amplitude = choices.between("noise", 0.003, 0.1), choices.between("amplitude", 0.5, 10)
    source = sources.sine_pool(choices.seed, 8192, length, noise, amplitude)
    network = Recurrent(choices.of("cell", ("gru", "lstm")), units, length)
    return _learning(choices, network, source, "squares")


def _text(choices: Choices, length: int, symbols: int) -> Source:
    if choices.chance("words", 0.7):
        return sources.word_text(choices.seed, symbols, length, choices.whole("words", 50, 2000))
    sharpness = choices.between("sharpness", 1.0, 4.0)
    return sources.markov_text(choices.seed, symbols, length, sharpness)


def _recurrent(choices: Choices) -> Problem:
    length, symbols = choices.whole("length", 6, 24), choices.whole("symbols", 8, 96)
    units, embedding = 4 * choices.whole("units", 4, 28), 4 * choices.whole("embedding", 2, 14)
    cell = choices.of("cell", ("gru", "lstm"))
    network = Recurrent(cell, units, length, symbols, embedding)
    return _learning(choices, network, _text(choices, length, symbols), "classes")


def _transformer(choices: Choices) -> Problem:
    length, symbols = choices.whole("length", 8, 24), choices.whole("symbols", 8, 96)
    width, depth = 8 * choices.whole("width", 2, 9), choices.of("depth", (1, 1, 2, 3))
    network = Transformer(symbols, width, length, choices.of("heads", (2, 4)), depth)
    return _learning(choices, network, _text(choices, length, symbols), "classes")


def _vision_transformer(choices: Choices) -> Problem:
    source, channels, side = _pictures(choices, (14, 20, 28), 0.6)
    patch = {14: 7, 20: 5, 28: 7}[side]
    width, depth = 8 * choices.whole("width", 2, 9), choices.of("depth", (1, 1, 2, 3))
    heads, squares = choices.of("heads", (2, 4)), (side // patch) ** 2
    network = Transformer(0, width, squares, heads, depth, patch, channels)
    return _learning(choices, network, source, "classes")


def _regression(choices: Choices) -> Problem:
    x, outputs = _inputs(choices, 256), choices.whole("outputs", 1, 8)
    noise = choices.between("noise", 0.01, 0.5) if choices.chance("noisy", 0.6) else 0.0
    heavy = choices.chance("heavy", 0.4)
    source = sources.regression_pool(choices.seed, x, outputs, noise, heavy)
    sizes = (x.shape[1], *_hidden(choices, 128, choices.of("depth", (0, 1, 1, 2, 3))), outputs)
    network = MLP(sizes, choices.of("activation", list(ACTIVATIONS)), choices.chance("norm", 0.15))
    return _learning(choices, network, source, choices.of("loss", ("squares", "squares", "robust")))


def _quadratic(choices: Choices) -> Problem:
    rows, columns = choices.whole("rows", 4, 16), choices.whole("columns", 1, 16)
    shape = (rows, columns) if columns > 1 else (rows,)
    noise = choices.between("noise", 0.01, 1.0) if choices.chance("noisy", 0.5) else 0.0
    return Quadratic(choices.seed, shape, choices.between("condition", 1, 1e4), noise)


#: Each kind with its share of the family.
_KINDS: dict[str, tuple[float, Callable[[Choices], Problem]]] = {
    "digit-mlp": (0.18, _digit_mlp),
    "synthetic-mlp": (0.10, _synthetic_mlp),
    "cnn": (0.17, _cnn),
    "autoencoder": (0.11, _autoencoder),
    "sines": (0.07, _sines),
    "recurrent-text": (0.12, _recurrent),
    "transformer": (0.10, _transformer),
    "vision-transformer": (0.06, _vision_transformer),
    "regression": (0.06, _regression),
    "quadratic": (0.03, _quadratic),
}
KINDS = tuple(_KINDS)
