"""What a run is trained on: batches of episodes, their loss, and numbers that show its progress.

A batch is a pure function of the seed and the step, so a resumed run needs no stored state of its
data. The progress numbers are computed on held-out episodes, which are not trained on, and have no
intervals; ``interp.evaluation`` measures how well a model performs.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from types import MappingProxyType
from typing import Any, cast

import numpy as np
import torch
from jaxtyping import Float
from numpy.typing import NDArray
from scipy import special
from torch import Tensor, nn

from interp.core import catalog
from interp.core.algorithm import Episodes, refuse_missing
from interp.core.machine import Machine
from interp.model.layout import EncodedRounds, RoundLayout
from interp.model.rollout import rollout, run_round
from interp.model.transformer import HookedLatentTransformer
from interp.support.checks import checked_result
from interp.support.errors import require
from interp.training.config import Stage, TrainingConfig
from interp.training.goal import goal_of

_TRAINING_STREAM, _DATASET_STREAM, _EVALUATION_STREAM = range(3)
"""Random streams: the batch of a step, the fixed data set, the held-out episodes."""


@dataclass(frozen=True)
@checked_result
class Batch:
    """A batch of episodes, encoded as a model's input, with their training targets.

    Attributes:
        rounds: the encoded rounds of all episodes.
        targets: the probability of each outcome that the model is to predict,
            ``[episode, round, outcome]``; if the task predicts a real number, this number,
            ``[episode, round, 1]``.
        layout: the token layout of a round.
    """

    rounds: EncodedRounds
    targets: Float[Tensor, "episode round outcome"]
    layout: RoundLayout

    @property
    def n_rounds(self) -> int:
        """Number of rounds in every episode."""
        return self.targets.shape[1]

    def windows(self, n_rounds: int) -> Iterator[Batch]:
        """Cut the batch into consecutive windows of rounds, and yield each as a batch.

        Args:
            n_rounds: number of rounds in a window; the last may be shorter. 0 yields the whole
                batch.
        """
        length = n_rounds or self.n_rounds
        for start in range(0, self.n_rounds, length):
            stop = start + length
            rounds = self.rounds.slice_rounds(start, stop)
            yield replace(self, rounds=rounds, targets=self.targets[:, start:stop])

    def to(self, device: torch.device) -> Batch:
        """Return the batch with all of its tensors on a device."""
        rounds = self.rounds.map_tensors(lambda tensor: tensor.to(device))
        return replace(self, rounds=rounds, targets=self.targets.to(device))


def encode(episodes: Episodes, layout: RoundLayout, targets: str = "") -> Batch:
    """Encode episodes as token ids, and compute their training targets.

    Args:
        episodes: episodes of one task.
        layout: the model's token layout of a round.
        targets: name of the targets, if the task's :class:`~interp.training.goal.TrainingGoal`
            defines several; empty for the main targets.
    """
    # The episodes may have smaller sizes than the model's largest, such as fewer experts.
    layout_of_episodes = layout.fit(episodes)
    compute_targets = goal_of(catalog.of(episodes)).targets_of(targets)
    target_array = np.asarray(compute_targets(episodes))  # [episode, round, outcome]
    refuse_missing("training", episodes)
    rounds = layout_of_episodes.encode(episodes)
    rounds = replace(rounds, values=rounds.values.float())  # models are trained in float32
    return Batch(rounds, torch.from_numpy(target_array).float(), layout_of_episodes)


class EpisodeSource:
    """Samples the training batches and the held-out episodes of a training run.

    Args:
        config: settings of the run.
        layout: the model's token layout of a round.
    """

    def __init__(self, config: TrainingConfig, layout: RoundLayout) -> None:
        """Look up the task and its goal. List the bounds of the sizes of an episode, such as the
        number of experts, in the order in which sizes are drawn.
        """
        self.config = config
        self.layout = layout
        self.task = catalog.get(config.task)
        self.goal = goal_of(self.task)
        self.goal.targets_of(config.targets)  # refuses a name that does not exist
        sizes = config.sizes
        # Sizes are drawn one after the other from the same generator, so their order decides which
        # values a seed gives.
        order = self.goal.drawn or tuple(sizes)
        require(
            sorted(order) == sorted(sizes),
            f"the goal of {config.task!r} draws {', '.join(order)}, but its record has sizes {', '.join(sizes)}",
        )
        self.bounds: dict[str, tuple[int, int]] = {}  # name -> (smallest, largest) value
        for name in order:
            low, high = sizes[name]
            self.bounds[name] = (low, high)

    def batch(self, step: int, stage: int, shard: int = 0, n_shards: int = 1) -> Batch:
        """Sample and encode one training batch, or one process's part of it if several processes
        train the model.

        Args:
            step: index of the batch. The run's seed, ``step`` and ``shard`` determine the episodes.
            stage: index of the stage of the curriculum. With the probability ``mix`` (a setting),
                the batch is drawn with the settings of an earlier stage instead.
            shard: index of the process. The processes get different episodes of the same length.
            n_shards: number of processes, among which the batch is divided.
        """
        config = self.config
        # All processes draw the stage with the same numbers, so that their episodes are equally long.
        rng = np.random.default_rng([config.seed, _TRAINING_STREAM, step, 0])
        chosen_stage = config.curriculum[stage]
        if stage and rng.random() < config.mix:
            chosen_stage = config.curriculum[rng.integers(stage)]
        if shard:  # process 0 goes on with the generator above, the others each have their own
            rng = np.random.default_rng([config.seed, _TRAINING_STREAM, step, shard])
        n_episodes = max(1, config.batch_size // n_shards)
        if config.dataset_episodes:
            episodes = self._draw_from_dataset(rng, n_episodes, chosen_stage)
        else:
            episodes = self._sample(rng, n_episodes, chosen_stage, turn=step)
        return encode(episodes, self.layout, config.targets)

    def _draw_from_dataset(
        self, rng: np.random.Generator, n_episodes: int, stage: Stage
    ) -> Episodes:
        """Draw a batch of the fixed data set whose sizes the stage allows, draw episodes from it, and
        cut them to the stage's number of rounds. Episodes occur twice only if there are too few.

        Args:
            rng: the random generator of the step.
            n_episodes: number of episodes to draw.
            stage: stage of the curriculum, which bounds the sizes.
        """
        allowed_batches = self._dataset
        conditions = []
        for size, run_bounds in self.bounds.items():
            low, high = stage.bounds(size, *run_bounds)
            conditions.append(f"{low} <= {size} <= {high}")
            allowed_batches = [
                batch for batch in allowed_batches if low <= getattr(batch, size) <= high
            ]
        require(
            allowed_batches,
            f"no batch of the data set has {' and '.join(conditions)}; raise dataset_episodes, or the stage's bounds",
        )
        episodes = allowed_batches[rng.integers(len(allowed_batches))]
        is_too_small = n_episodes > len(episodes)  # then some episodes are drawn more than once
        rows = rng.choice(len(episodes), size=n_episodes, replace=is_too_small)
        drawn = episodes.select(rows)
        # Cut before targets are computed: a target may lie in the last round.
        if stage.n_rounds < episodes.n_rounds:
            drawn = drawn.first(stage.n_rounds)
        return cast(Episodes, drawn)

    @property
    def _held_out_sizes(self) -> Sequence[Mapping[str, int]]:
        """The fixed sizes of each batch of :meth:`evaluation`, as {name: value}. Unless the task's
        goal defines them, there is one batch, with the largest sizes.
        """
        if self.goal.held_out is not None:
            return self.goal.held_out(self.bounds)
        return [{name: high for name, (_, high) in self.bounds.items()}]

    @property
    def evaluated_regimes(self) -> tuple[str, ...]:
        """The regimes on which progress is measured. Evaluation batches take the run's regimes in
        turn, so with fewer batches than regimes these are only the first few.
        """
        return self.config.regimes[: len(self._held_out_sizes)]

    def evaluation(self) -> list[Episodes]:
        """Sample episodes that are not trained on, to measure progress. Every call returns the same
        episodes.

        Returns:
            A list of batches, each with episodes of one size. By default there is one batch, with
            the largest sizes; the field ``held_out`` of the task's
            :class:`~interp.training.goal.TrainingGoal` may define other batches. Batches take the
            run's regimes in turn, so a single batch is of the first regime.
        """
        config = self.config
        rng = np.random.default_rng([config.seed, _EVALUATION_STREAM])
        fixed_sizes = self._held_out_sizes
        stage = Stage(config.eval_rounds, steps=1)  # its steps are not used
        n_episodes = max(1, config.eval_episodes // len(fixed_sizes))
        return [
            self._sample(rng, n_episodes, stage, turn, sizes)
            for turn, sizes in enumerate(fixed_sizes)
        ]

    def _sample(
        self,
        rng: np.random.Generator,
        n_episodes: int,
        stage: Stage,
        turn: int,
        fixed: Mapping[str, int] = MappingProxyType({}),
    ) -> Episodes:
        """Sample a batch of episodes, all of the same sizes (such as the number of experts) and of
        one regime. Batches take the run's regimes in turn. Sizes that are not fixed are drawn.

        Args:
            rng: random generator, which draws the sizes and the seed of the episodes.
            n_episodes: number of episodes.
            stage: stage of the curriculum, which determines the number of rounds and bounds the
                sizes.
            turn: index of the batch, which determines its regime.
            fixed: sizes that are not drawn, by name.
        """
        options: dict[str, Any] = {"seed": int(rng.integers(2**31)), **fixed}
        for name, run_bounds in self.bounds.items():
            if name not in fixed:
                low, high = stage.bounds(name, *run_bounds)
                options[name] = int(rng.integers(low, high + 1))
        regimes = self.config.regimes
        if regimes:
            options["regime"] = regimes[turn % len(regimes)]
        episodes: Episodes = self.task.sample(n_episodes, stage.n_rounds, **options)
        return episodes

    @cached_property
    def _dataset(self) -> list[Episodes]:
        """The episodes of the fixed data set, as a list of batches; the episodes of a batch have
        equal sizes.
        """
        config = self.config
        longest = max(stage.n_rounds for stage in config.curriculum)
        longest_stage = Stage(longest, steps=1)  # its steps are not used
        n_batches = math.ceil(config.dataset_episodes / config.batch_size)
        rng = np.random.default_rng([config.seed, _DATASET_STREAM])
        return [
            self._sample(rng, config.batch_size, longest_stage, turn=i) for i in range(n_batches)
        ]


class RoundsLoss(nn.Module):
    """The training loss: cross-entropy of the predictions, averaged over rounds and episodes. The
    state that the model carries from round to round (its latents) has no loss of its own.

    ``loss = -1/(B T) sum_{b,t} sum_o target_{b,t,o} log p_{b,t}(o)`` (paper, sections F.1 and F.2),
    over episodes b = 1 ... B, rounds t = 1 ... T and outcomes o, in nats. If the task predicts a
    real number, the target ``[episode, round, 1]`` is that number, and the token layout defines the
    loss.

    Args:
        model: a transformer, or any other model of this package. The loss of a transformer is
            computed from logits. Other models return probabilities, so a probability below float
            precision has no gradient.
        commit: what the model reads as its own choice, if the token layout of a round has a
            position for this: "own" for the outcome that it predicts, "target" for the outcome that
            it should predict.
        compile: whether to run a transformer's round through torch.compile, which ignores hooks
            that are added later.
    """

    def __init__(self, model: Machine, commit: str, compile: bool = False) -> None:
        super().__init__()
        self.model: Any = model
        self.commit = commit
        self.is_transformer = isinstance(model, HookedLatentTransformer)
        self.forward_round: Any = self._forward_round
        if compile:
            self.forward_round = torch.compile(self._forward_round, mode="reduce-overhead")

    def forward(
        self, batch: Batch, carried: Float[Tensor, "episode row width"] | None = None
    ) -> tuple[Float[Tensor, ""], Float[Tensor, "episode row width"]]:
        """Run the model on a batch of episodes, and compute the loss of its predictions.

        Args:
            batch: rounds and targets.
            carried: the state (latents) that the first round reads, ``[episode, row, width]`` with
                one row per latent; by default the model's initial state.

        Returns:
            The loss, averaged over rounds and episodes; and the state after the last round, in the
            shape of ``carried``.
        """
        layout = batch.layout
        # A model that is not a transformer may have another dtype than the batch, such as float64.
        fed = batch.rounds if self.is_transformer else self.model.prepare(batch.rounds)
        if carried is None:
            carried = self.model.initial(len(batch.targets), layout)
        losses = []
        for t in range(batch.n_rounds):
            fed_round = fed.take_round(t)
            targets = batch.targets[:, t]
            # A transformer is trained on its logits, by a function that may be compiled.
            if self.is_transformer:
                tokens, values = fed_round.tokens, fed_round.values
                logits, update = self.forward_round(tokens, values, carried, layout)
                carried = self.model.write(carried, update, fed_round.slots)
                loss = _compute_loss_of_logits(logits.float(), targets, layout)
            else:
                step = run_round(self.model, fed_round, carried, layout, self.commit)
                carried = step.latents
                loss = _compute_loss_of_prediction(step.prediction, targets, layout)
            losses.append(loss.mean())
        return torch.stack(losses).mean(), carried

    def _forward_round(
        self, tokens: Tensor, values: Tensor, latents: Tensor, layout: RoundLayout
    ) -> tuple[Tensor, Tensor]:
        """Run one round of a transformer. If the round contains the model's own choice, stop at the
        prediction, write the choice into the tokens, and run the rest.

        Args:
            tokens: tokens of the round, ``[episode, pos]``.
            values: scalar payloads of the positions, such as rewards, ``[episode, pos]``.
            latents: the state that the round reads, ``[episode, latent, d_model]``.
            layout: the token layout of the round.

        Returns:
            Logits of the outcomes, ``[episode, outcome]``, and the update of the state, ``[episode,
            d_model]``.
        """
        model = self.model
        payloads = None if layout.payload is None else values
        resid = model.embed_round(tokens, latents, payloads)
        # `normed` is the final residual stream at the last positions that were run, of which only as
        # many are computed as are read. The update of the state is read at the position that is
        # `n_from_update` from the end.
        # With "target", the tokens already contain the choice, so one forward pass is enough.
        if layout.choice_position is None or self.commit == "target":
            normed = model.ln_final(model.run_from(resid, n_read=layout.n_from_prediction))
            logits = model.unembed(normed[:, 0])[
                :, : layout.n_outputs
            ]  # the prediction comes first
        else:
            # Run up to the prediction, write the choice into the tokens, and run the rest. Blocks
            # keep the keys and values of the first part.
            n_prefix = layout.predict_position + 1
            past = [block.make_empty_past(len(tokens)) for block in model.blocks]
            normed = model.ln_final(model.run_from(resid[:, :n_prefix], past=past, n_read=1))
            logits = model.unembed(normed[:, 0])[:, : layout.n_outputs]
            tokens = layout.put_choice(tokens, logits.argmax(-1))
            suffix = model.embed_round(tokens, latents, payloads)[:, n_prefix:]
            normed = model.ln_final(model.run_from(suffix, past=past, n_read=layout.n_from_update))
        at_update = normed[:, -layout.n_from_update]
        # By the number of positions, the model finds the position embedding that it subtracts.
        return logits, model.update(at_update, layout.n_positions)


def _compute_loss_of_logits(logits: Tensor, targets: Tensor, layout: RoundLayout) -> Tensor:
    """Return the loss of a transformer's logits, ``[episode]``.

    Args:
        logits: logits of the outcomes, ``[episode, outcome]``.
        targets: probability of each outcome, ``[episode, outcome]``, or the number to predict,
            ``[episode, 1]``.
        layout: the token layout of the round.
    """
    if layout.kind != "classes":  # a real number is predicted
        return layout.loss(layout.prediction(logits), targets[:, 0])
    # The cross-entropy of the predicted distribution from the targets.
    return -(targets * logits.log_softmax(-1)).sum(-1)


def _compute_loss_of_prediction(prediction: Tensor, targets: Tensor, layout: RoundLayout) -> Tensor:
    """Return the loss of a model's prediction, ``[episode]``.

    Args:
        prediction: the prediction in the form that the layout defines.
        targets: probability of each outcome, ``[episode, outcome]``, or the number to predict,
            ``[episode, 1]``.
        layout: the token layout of the round.
    """
    if layout.kind != "classes":  # a real number is predicted
        return layout.loss(prediction, targets[:, 0])
    probabilities = layout.distribution(prediction)
    smallest = torch.finfo(probabilities.dtype).eps  # so that a probability of 0 has a finite loss
    return -(targets * probabilities.clamp_min(smallest).log()).sum(-1)


def measure_progress(model: Machine, batches: Sequence[Episodes], commit: str) -> dict[str, float]:
    """Measure the progress of training on episodes that are not trained on.

    The numbers are those of the function ``evaluate`` in the task's
    :class:`~interp.training.goal.TrainingGoal`. Without such a function they are ``cross_entropy``,
    the mean loss in nats, and ``excess``, this loss minus the entropy of the targets. If a real
    number is predicted, ``loss`` and ``excess`` are both the loss that the model's token layout
    defines.

    Args:
        model: the trained model.
        batches: batches of episodes.
        commit: what the model reads as its own choice, if the token layout of a round has a
            position for this: "own" for the outcome that it predicts, "target" for the outcome that
            it should predict.

    Returns:
        Name of a number -> its mean over batches. ``excess``, the loss above the lowest that can be
        reached, is always one of them.
    """
    goal = goal_of(catalog.of(model))
    was_training = model.training
    model.eval()
    rows = []
    for episodes in batches:
        run = rollout(model, episodes, commit=commit)
        predictions = run.predictions.double()
        if goal.evaluate is not None:
            numbers = goal.evaluate(predictions.numpy(force=True), episodes)
        else:
            targets = np.asarray(goal.targets(episodes))
            numbers = _compute_cross_entropy(predictions.cpu(), targets, run.layout)
        rows.append(numbers)
    model.train(was_training)  # type: ignore[attr-defined]
    return {name: float(np.mean([row[name] for row in rows])) for name in rows[0]}


def _compute_cross_entropy(
    predictions: Tensor, targets: NDArray[Any], layout: RoundLayout
) -> dict[str, float]:
    """Return the loss of predictions, and its excess over the lowest possible loss.

    Args:
        predictions: predictions of every round, in float64, ``[episode, round, ...]``.
        targets: the distribution, ``[episode, round, outcome]``, or the number, ``[episode, round,
            1]``, to predict.
        layout: the token layout of the rounds.

    Returns:
        {"cross_entropy": mean in nats, "excess": this mean minus the entropy of the targets}. If a
        real number is predicted, {"loss": mean loss that the layout defines, "excess": the same}.
    """
    if layout.kind != "classes":  # a real number is predicted: nothing is subtracted for the excess
        loss = float(layout.loss(predictions, torch.from_numpy(targets)[..., 0]).mean())
        return {"loss": loss, "excess": loss}
    smallest = np.finfo(np.float64).tiny  # so that a probability of 0 has a finite loss
    probabilities = np.maximum(layout.distribution(predictions).numpy(), smallest)
    loss = float(-(targets * np.log(probabilities)).sum(-1).mean())
    entropy = float(special.entr(targets).sum(-1).mean())
    return {"cross_entropy": loss, "excess": loss - entropy}
