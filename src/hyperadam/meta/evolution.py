"""The meta-trainer by evolution strategies: whole episodes under perturbed rules,
no way back needed."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor

from hyperadam.data import draws
from hyperadam.meta import episodes
from hyperadam.meta.episodes import Episode
from hyperadam.meta.training import MetaTrainer
from hyperadam.meta.validation import validation_episodes
from hyperadam.rules.base import UpdateRule
from hyperadam.rules.hyperadam2 import HyperAdam2Rule

#: A run that ends above this multiple of its first loss has diverged.
DIVERGED = 10.0
#: In validation a task counts for at most this logarithm of a ratio, either way: where a learner is
#: fitted to a thousandth of its first loss, chance moves it by far more.
CHANCE = 0.5
#: An episode that would take too long has fewer pairs, though no fewer than these.
FEWEST_PAIRS = 2


class Generation(NamedTuple):
    """What one meta-update saw: of each episode its kind, coordinates, steps, whether they were
    known, and the mean and deviation over runs of the logarithm of the final loss, as a multiple of
    the first; how many runs diverged."""

    update: int
    episodes: list[tuple[Any, ...]]
    norm: float
    lr: float
    diverged: int
    nonfinite: int

    def values(self) -> dict[str, float]:
        return {kind: final for kind, _, _, _, final, _ in self.episodes}

    def describe(self) -> str:
        kind, _, steps, _, final, _ = self.episodes[-1]
        return f"{kind} at {final:+.2f} after {steps} steps"


class Comparison(NamedTuple):
    """The mean logarithm of final losses over those of the untrained start, after few steps (100,
    unless the settings say otherwise) and after ten times as many: below zero is better."""

    update: int
    short: float
    long: float

    @property
    def score(self) -> float:
        """What decides: the two weigh the same."""
        return (self.short + self.long) / 2

    def describe(self) -> str:
        return (
            f"{self.score:+.4f} ({self.short:+.4f} after 100 steps, {self.long:+.4f} after 1,000)"
        )


class EvolutionTrainer(MetaTrainer):
    """Meta-trains HyperAdam2 by evolution strategies over whole episodes.

    The noise is kept from an episode's first step to its last. Perturbations come in antithetic
    pairs, and all of them are runs of one computation: they start from the same tensors and see the
    same batches. Every episode has a task, a horizon and noise of its own, drawn from the seed and
    the numbers of slot and update."""

    Judgement = Comparison
    rule: HyperAdam2Rule
    average: HyperAdam2Rule

    def prepare(self) -> None:
        if not isinstance(self.rule, HyperAdam2Rule):
            raise ValueError(f"estimator 'es' is HyperAdam2's alone, not {self.rule.kind}'s")
        names = [name for name, _ in self.rule.named_parameters()]
        #: From which update on each parameter is trained.
        self.trained_from = _trained_from(self.settings.trained or names)
        self._begun: list[float] | None = None  # final losses of the untrained start

    # One meta-update ------------------------------------------------------------------------------

    def step(self) -> Generation:
        """Train every episode's learners under perturbed rules, and update the rule once."""
        began = time.perf_counter()
        total = [torch.zeros_like(x) for x in self.rule.parameters()]
        seen: list[tuple[Any, ...]] = []
        for slot in self.slots():
            seed = int(draws.keys([self.settings.seed], f"episode {slot}", self.update)[0])
            episode, pairs = self.episode(seed)
            losses, noise = self.perturbed(episode, pairs, seed)
            shares = advantage(episodes.meta_loss(losses))
            for x, e in zip(total, noise, strict=True):
                x.add_(torch.tensordot(shares, e, dims=1))
            seen.append((slot, pairs, *_summary(episode, losses)))
        seen = self.share(total, seen)

        every = sum(pairs for _, pairs, *_ in seen)
        self.apply([x / every for x in total])
        diverged = sum(entry[-1] for entry in seen)
        self.diverged += diverged
        self.seconds += time.perf_counter() - began
        norm = float(torch.cat([x.flatten() for x in total]).norm()) / every
        shown = [entry[2:-1] for entry in seen]
        return Generation(self.update, shown, norm, self.lr(), diverged, self.nonfinite)

    def episode(self, seed: int) -> tuple[Episode, int]:
        """The episode of a seed, and its number of pairs: fewer where steps are dear or many."""
        s = self.settings
        fewest = min(s.pairs, FEWEST_PAIRS)
        episode = episodes.draw(seed, 2 * fewest, s.horizons, s.hidden, s.budget)
        each = s.budget / episode.steps
        affordable = (
            n for n in range(s.pairs, fewest, -1) if episodes.seconds(episode.task, 2 * n) <= each
        )
        return episode, next(affordable, fewest)

    def perturbed(self, episode: Episode, pairs: int, seed: int) -> tuple[Tensor, list[Tensor]]:
        """Losses ``(steps, 2 * pairs)`` under the rule plus noise, then minus noise; the noise
        ``(pairs, *shape)``."""
        weights = [x.detach() for x in self.rule.parameters()]
        noise = [
            draws.normal(draws.keys([seed], "noise", k), pairs, *x.shape)[0].to(x.dtype)
            * self._is_trained(name)
            for k, (name, x) in enumerate(self.rule.named_parameters())
        ]
        both = [
            x + self.settings.sigma * torch.cat([e, -e])
            for x, e in zip(weights, noise, strict=True)
        ]
        rule = episodes.with_weights(self.rule, both)
        return episodes.train(rule, episode, 2 * pairs), noise

    def _is_trained(self, name: str) -> bool:
        return self.trained_from.get(name, self.settings.updates) <= self.update

    # Validation -----------------------------------------------------------------------------------

    def judge(self) -> Comparison:
        """The averaged rule beside the untrained start, on tasks that are kept for it."""
        if self._begun is None:
            self._begun = self._finals(self.settings.make_rule().requires_grad_(False))
        finals = self._finals(self.average) if self.update else self._begun
        ratio = (torch.tensor(finals) - torch.tensor(self._begun)).clamp(-CHANCE, CHANCE)
        short, long = ratio.view(2, -1).mean(1).tolist()
        return Comparison(self.update, short, long)

    def _finals(self, rule: UpdateRule[Any]) -> list[float]:
        """The logarithms of the final losses of all validation episodes, spread over the ranks."""
        assert isinstance(rule, HyperAdam2Rule)  # prepare() saw to it
        every = validation_episodes(self.settings.validation_runs, self.settings.validation_steps)
        mine = {
            k: float(episodes.final_log(episodes.train(rule, every[k], 1)))
            for k in range(self.rank, len(every), self.ranks)
        }
        if self.ranks > 1:
            gathered: list[Any] = [None] * self.ranks
            dist.all_gather_object(gathered, mine)
            mine = {k: value for part in gathered for k, value in part.items()}
        return [mine[k] for k in range(len(every))]

    # Files ----------------------------------------------------------------------------------------

    def datasets(self) -> set[str]:
        return {"mnist"}

    def taught_by(self) -> str:
        return "the task family"

    def extras(self) -> dict[str, Any]:
        return {"begun": self._begun}

    def restore(self, content: dict[str, Any]) -> None:
        self._begun = content["begun"]


def _trained_from(trained: Sequence[str]) -> dict[str, int]:
    """The update in each ``NAME@UPDATE``, 0 if there is none."""
    pairs = (text.partition("@") for text in trained)
    return {name: int(update or 0) for name, _, update in pairs}


def advantage(losses: Tensor) -> Tensor:
    """By how many deviations the first run of each pair did worse than the second,
    ``(2 * pairs,) -> (pairs,)`` in float32.

    Divided by their deviation, all episodes count the same, whatever their task. Measured, that
    halves the variance of the raw estimate; centred ranks keep less of the signal."""
    plus, minus = (losses / losses.std().clamp(min=1e-12)).chunk(2)
    return ((plus - minus) / 2).float()


def _summary(episode: Episode, losses: Tensor) -> tuple[Any, ...]:
    final = episodes.final_log(losses)
    bad = ~(losses[-1] < DIVERGED * losses[0])
    task, _, steps, known = episode
    mean, deviation = round(final.mean().item(), 4), round(final.std().item(), 4)
    return task.kind, task.p, steps, known, mean, deviation, int(bad.sum())
