"""The meta-trainer by evolution strategies: whole episodes under perturbed rules,
no way back needed."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from hyperadam.data import draws
from hyperadam.meta import episodes
from hyperadam.meta.episodes import Episode, Training
from hyperadam.meta.family_trainer import FamilyTrainer

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


class EvolutionTrainer(FamilyTrainer):
    """Meta-trains HyperAdam2 by evolution strategies over whole episodes.

    The noise is kept from an episode's first step to its last. Perturbations come in antithetic
    pairs, and all of them are runs of one computation: they start from the same tensors and see the
    same batches. Every episode has a task, a horizon and noise of its own, drawn from the seed and
    the numbers of slot and update."""

    def prepare(self) -> None:
        super().prepare()
        names = [name for name, _ in self.rule.named_parameters()]
        #: From which update on each parameter is trained.
        self.trained_from = _trained_from(self.settings.trained or names)

    # One meta-update ------------------------------------------------------------------------------

    def step(self) -> Generation:
        """Train every episode's learners under perturbed rules, and update the rule once."""
        began = time.perf_counter()
        total = [torch.zeros_like(x) for x in self.rule.parameters()]
        seen: list[tuple[Any, ...]] = []
        for slot in self.slots():
            seed = int(draws.keys([self.settings.seed], f"episode {slot}", self.update)[0])
            episode, pairs = self.episode(seed)
            training, noise = self.perturbed(episode, pairs, seed)
            shares = advantage(episodes.meta_loss(training))
            for x, e in zip(total, noise, strict=True):
                x.add_(torch.tensordot(shares, e, dims=1))
            seen.append((slot, pairs, *_summary(episode, training)))
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

    def perturbed(self, episode: Episode, pairs: int, seed: int) -> tuple[Training, list[Tensor]]:
        """The training of ``2 * pairs`` runs under the rule plus noise, then minus noise; the noise
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


def _summary(episode: Episode, training: Training) -> tuple[Any, ...]:
    final = episodes.final_log(training)
    task, _, steps, known = episode
    mean, deviation = round(final.mean().item(), 4), round(final.std().item(), 4)
    return task.kind, task.p, steps, known, mean, deviation, episodes.diverged(training)
