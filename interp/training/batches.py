"""What a run is trained on: batches of episodes, their loss, and the numbers that are watched on held-out episodes.

A batch is a pure function of the seed and the step, so that a run that goes on needs no state of its data. The numbers
that are watched have no intervals: they show progress. ``interp.evaluation`` measures what a model is worth.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, cast

import numpy as np
import torch
from jaxtyping import Float
from scipy import special
from torch import Tensor, nn

from interp.core import catalog
from interp.core.algorithm import Episodes, refuse_missing
from interp.core.machine import Machine
from interp.model.layout import EncodedRounds, RoundLayout
from interp.model.rollout import rollout, run_round
from interp.model.transformer import HookedLatentTransformer
from interp.support.errors import require
from interp.training.config import Stage, TrainingConfig
from interp.training.goal import goal_of

_TRAIN, _DATASET, _EVALUATION = range(3)
"""Random streams: the batch of a step, the fixed data set, the held-out episodes."""


@dataclass(frozen=True)
class Batch:
    """Encoded episodes with the probability of each outcome to be learned, from the task's goal."""

    rounds: EncodedRounds
    targets: Float[Tensor, "episode round outcome"]
    layout: RoundLayout

    @property
    def n_rounds(self) -> int:
        """Rounds of every episode."""
        return self.targets.shape[1]

    def windows(self, n_rounds: int) -> Iterator[Batch]:
        """The episodes in pieces of ``n_rounds`` consecutive rounds (the last may be shorter); 0: in one piece."""
        length = n_rounds or self.n_rounds
        for start in range(0, self.n_rounds, length):
            yield self.each(lambda tensor, start=start: tensor[:, start : start + length])  # type: ignore[misc]

    def each(self, change: Callable[[Tensor], Tensor]) -> Batch:
        """The batch with every tensor changed."""
        return replace(self, rounds=self.rounds.each(change), targets=change(self.targets))


def encode(episodes: Episodes, layout: RoundLayout, targets: str = "") -> Batch:
    """Episodes as a batch; ``layout`` is the model's, ``targets`` a name that the task's goal knows."""
    fitted = layout.fit(episodes)
    wanted = goal_of(catalog.of(episodes)).targets_of(targets)(episodes)
    refuse_missing("training", episodes)
    rounds = fitted.encode(episodes)
    return Batch(
        replace(rounds, values=rounds.values.float()),
        torch.from_numpy(np.asarray(wanted)).float(),
        fitted,
    )


class EpisodeSource:
    """Training batches and held-out episodes of a training run."""

    def __init__(self, config: TrainingConfig, layout: RoundLayout) -> None:
        self.config, self.layout, self.task = config, layout, catalog.get(config.task)
        self.goal = goal_of(self.task)
        self.goal.targets_of(config.targets)
        order = self.goal.drawn or tuple(config.sizes)
        require(
            sorted(order) == sorted(config.sizes),
            f"the goal of {config.task!r} draws {', '.join(order)}, but its record has sizes {', '.join(config.sizes)}",
        )
        self.bounds = {name: (config.sizes[name][0], config.sizes[name][1]) for name in order}

    def batch(self, step: int, stage: int, shard: int = 0, n_shards: int = 1) -> Batch:
        """The batch of an optimizer step; shards of the same step hold different episodes of the same length."""
        config = self.config
        rng = np.random.default_rng([config.seed, _TRAIN, step, 0])
        chosen = config.curriculum[stage]
        if stage and rng.random() < config.mix:
            chosen = config.curriculum[rng.integers(stage)]
        if shard:
            rng = np.random.default_rng([config.seed, _TRAIN, step, shard])
        n_episodes = max(1, config.batch_size // n_shards)
        if not config.dataset_episodes:
            return encode(self._sample(rng, n_episodes, chosen, step), self.layout, config.targets)
        within = {size: chosen.bounds(size, *own) for size, own in self.bounds.items()}
        allowed = self._dataset
        for size, (low, high) in within.items():
            allowed = [episodes for episodes in allowed if low <= getattr(episodes, size) <= high]
        bounds = " and ".join(f"{low} <= {size} <= {high}" for size, (low, high) in within.items())
        require(
            bool(allowed),
            f"no batch of the data set has {bounds}; raise dataset_episodes, or the stage's bounds",
        )
        episodes = allowed[rng.integers(len(allowed))]
        rows = rng.choice(len(episodes), size=n_episodes, replace=n_episodes > len(episodes))
        return next(
            encode(cast(Episodes, episodes.select(rows)), self.layout, config.targets).windows(
                chosen.n_rounds
            )
        )

    def evaluation(self) -> list[Episodes]:
        """Held-out episodes, the same throughout a run: a batch for each of the sizes that the goal asks for."""
        config = self.config
        rng = np.random.default_rng([config.seed, _EVALUATION])
        largest = {name: high for name, (_, high) in self.bounds.items()}
        fixed = (largest,) if self.goal.held_out is None else self.goal.held_out(self.bounds)
        stage, n_episodes = Stage(config.eval_rounds, 1), max(1, config.eval_episodes // len(fixed))
        return [self._sample(rng, n_episodes, stage, i, sizes) for i, sizes in enumerate(fixed)]

    def _sample(
        self,
        rng: np.random.Generator,
        n_episodes: int,
        stage: Stage,
        turn: int,
        fixed: Mapping[str, int] | None = None,
    ) -> Episodes:
        """Episodes of the regime whose turn it is; sizes that are not fixed are drawn, for the whole batch."""
        regimes, sizes = self.config.regimes, dict(fixed or {})
        seed = int(rng.integers(2**31))
        for name, own in self.bounds.items():
            if name not in sizes:
                low, high = stage.bounds(name, *own)
                sizes[name] = int(rng.integers(low, high + 1))
        regime = {"regime": regimes[turn % len(regimes)]} if regimes else {}
        episodes: Episodes = self.task.sample(
            n_episodes, stage.n_rounds, seed=seed, **sizes, **regime
        )
        return episodes

    @cached_property
    def _dataset(self) -> list[Episodes]:
        """The fixed data set: as many batches of equal sizes as make up ``dataset_episodes``."""
        config = self.config
        stage = Stage(max(stage.n_rounds for stage in config.curriculum), 1)
        n_batches = -(-config.dataset_episodes // config.batch_size)
        rng = np.random.default_rng([config.seed, _DATASET])
        return [self._sample(rng, config.batch_size, stage, i) for i in range(n_batches)]


class RoundsLoss(nn.Module):
    """Mean cross-entropy of the predictions of consecutive rounds; what is carried is never supervised.

    ``loss = -1/(B T) sum_{b,t} sum_o target_{b,t,o} log p_{b,t}(o)`` (paper, sections F.1 and F.2). Where a real number
    is predicted, the target ``[episode, round, 1]`` is the number, and the loss the layout's.

    Args:
        model: a transformer whose output is "logits", or any other machine, whose rounds run as its contract has them.
            Of the latter predictions are seen, not logits, so a probability below float precision has no gradient.
        commit: which choice rounds hold, where they hold one: the model's "own", or the recorded "target".
        compile: run a transformer's round through torch.compile, which does not see hooks that are added later.
    """

    def __init__(self, model: Machine, commit: str, compile: bool = False) -> None:
        super().__init__()
        self.model: Any = model
        self.commit = commit
        self.round = torch.compile(self._round, mode="reduce-overhead") if compile else self._round

    def forward(
        self, batch: Batch, carried: Float[Tensor, "episode row width"] | None = None
    ) -> tuple[Float[Tensor, ""], Float[Tensor, "episode row width"]]:
        """The loss, and what is carried after the last round; before the first it is the initial state when None."""
        transformer, layout = isinstance(self.model, HookedLatentTransformer), batch.layout
        fed = batch.rounds if transformer else self.model.prepare(batch.rounds)
        if carried is None:
            carried = self.model.initial(len(batch.targets), layout)
        losses = []
        for t in range(batch.n_rounds):
            now, targets = fed.at(t), batch.targets[:, t]
            if transformer:
                logits, update = self.round(now.tokens, now.values, carried, layout)
                carried, scores = self.model.write(carried, update, now.slots), logits.float()
            else:
                step = run_round(self.model, now, carried, layout, self.commit, ())
                carried, scores = step.latents, step.prediction
            if layout.kind != "classes":
                missed = layout.loss(
                    layout.prediction(scores) if transformer else scores, targets[:, 0]
                )
            elif transformer:
                missed = -(targets * scores.log_softmax(-1)).sum(-1)
            else:
                told = layout.distribution(scores)
                missed = -(targets * told.clamp_min(torch.finfo(told.dtype).eps).log()).sum(-1)
            losses.append(missed.mean())
        return torch.stack(losses).mean(), carried

    def _round(
        self, tokens: Tensor, values: Tensor, latents: Tensor, layout: RoundLayout
    ) -> tuple[Tensor, Tensor]:
        """Outcome logits and update of one round; its choice is committed on the way, where it is the model's own."""
        model, end = self.model, layout.predict_position + 1
        payloads = None if layout.payload is None else values
        embedded = model.embedded(tokens, latents, payloads)
        if layout.choice_position is None or self.commit == "target":
            read = model.ln_final(model.run_from(embedded, n_read=layout.n_read))
            logits = model.unembed(read[:, 0])[:, : layout.n_outputs]
        else:
            past = [model.nothing_past(len(tokens)) for _ in model.blocks]
            read = model.ln_final(model.run_from(embedded[:, :end], past=past, n_read=1))
            logits = model.unembed(read[:, 0])[:, : layout.n_outputs]
            tokens = layout.commit(tokens, logits.argmax(-1))
            suffix = model.embedded(tokens, latents, payloads)[:, end:]
            read = model.ln_final(model.run_from(suffix, past=past, n_read=layout.n_after))
        return logits, model.update(read[:, -layout.n_after], layout.n_positions)


def watched(model: Machine, batches: Sequence[Episodes], commit: str) -> dict[str, float]:
    """What the task's goal watches, averaged: ``excess``, the loss above the best that is possible, and more.

    Without an ``evaluate`` of the goal: ``cross_entropy`` from the targets and its ``excess`` over their entropy; the
    layout's ``loss`` where a real number is predicted, which is its ``excess``, too.
    """
    goal = goal_of(catalog.of(model))
    was_training = model.training  # type: ignore[attr-defined]
    model.eval()
    parts: list[Mapping[str, float]] = []
    for episodes in batches:
        run = rollout(model, episodes, commit=commit)
        predictions = run.predictions.double()
        if goal.evaluate is not None:
            parts.append(goal.evaluate(predictions.numpy(force=True), episodes))
            continue
        targets = np.asarray(goal.targets(episodes))
        if run.layout.kind != "classes":
            loss = float(
                run.layout.loss(predictions.cpu(), torch.from_numpy(targets)[..., 0]).mean()
            )
            parts.append({"loss": loss, "excess": loss})
            continue
        distribution = run.layout.distribution(predictions).numpy(force=True)
        loss = float(
            -(targets * np.log(np.maximum(distribution, np.finfo(np.float64).tiny))).sum(-1).mean()
        )
        parts.append(
            {"cross_entropy": loss, "excess": loss - float(special.entr(targets).sum(-1).mean())}
        )
    model.train(was_training)  # type: ignore[attr-defined]
    return {name: float(np.mean([part[name] for part in parts])) for name in parts[0]}
