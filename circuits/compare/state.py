"""Do two models store the same state? Map one model's latents into the other by an affine map, and
let the other run on (stitching).

A score of 1 means that the mapped latents serve the receiving model as well as the latents that it
wrote itself. A score of 0 means that they serve it as little as initial latents. The worse of the
two directions decides. ``docs/method/comparing.md`` explains the score, its bands of rounds and its
controls.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray
from torch import Tensor

from circuits.compare.question import (
    GAIN,
    N_BANDS,
    SAME,
    Budget,
    Participant,
    Question,
    choose_penalty,
    pool_runs,
    score_maps,
)
from interp.choices.fitting import Array, distributions, divergence
from interp.core.algorithm import Predicted
from interp.interventions.experiment import run_on
from interp.interventions.sites import carried_mask
from interp.results.measure import (
    FEW,
    LITTLE_MEMORY,
    UNTRAINED,
    Measure,
    Result,
    Verdict,
    merge_copies,
)
from interp.stats.decoder import N_FOLDS, RIDGE, Affine, is_wide, solve_ridge, units
from interp.stats.intervals import Interval
from interp.support.checks import checked_result
from interp.support.session import compute_once

_WITH_ROUND = ("round",)
_LEAST_WORTH = 0.01
"""Smallest worth of a memory (:attr:`StatePart.worth`) for which stitching says anything.

If predictions stay the same without the memory, any map can replace it.
"""
_TIE_NOISE = 1e-6
"""Size of the noise that detects ties, as a share of a coordinate's standard deviation: no state
should depend on so little.
"""
_HARD_SHARE, _CERTAIN_P = 0.9, 0.99
"""A model predicts mere choices if a share ``_HARD_SHARE`` of its predictions gives one outcome a
probability above ``_CERTAIN_P``.
"""


@dataclass(frozen=True)
@checked_result
class Stitching:
    """The score of stitching: one model's latents are mapped by an affine map and inserted into
    another model, which runs on from them.

    Attributes:
        source, target: names of the model that supplies latents and of the model that receives
            them.
        supplied: further inputs of the map besides the latents: () for none, or ("round",) for the
            round number.
        control: kind of the control: "shuffled" for a map that was fitted to latents of other
            episodes, or :data:`~interp.results.measure.UNTRAINED` for an untrained copy in a
            model's place; "" if this is no control.
        score: the score. 1 means that the target's run is as with its own latents, 0 that it is as
            wrong as with its initial latents. Rounds are scored in up to three groups (bands); this
            is the score of the worst band.
        band: the worst band, as (first, last) round in which latents were inserted.
        seen: what is compared between the target's runs with and without inserted latents:
            "predictions"; or "carried values" (the state), if the target is handwired and its
            predictions are nearly one-hot.
    """

    source: str
    target: str
    supplied: tuple[str, ...]
    control: str
    score: Interval
    band: tuple[int, int] = (0, 0)
    seen: str = "predictions"


@dataclass(frozen=True, repr=False)
@checked_result
class StatePart(Result):
    """Stitching scores of two models: whether they store the same state. One model's latents are
    mapped by an affine map and inserted into the other, which runs on; this is done in both
    directions.

    Attributes:
        model, reference: names of the two models.
        stitchings: all scores, also those of controls.
        worth: name of a model -> how much its predictions change if its latents are reset to the
            initial ones, averaged over the rounds that follow. The change in a round is:

            - for classes, the Jensen-Shannon divergence, in nats;
            - for a predicted mean and variance, the mean of the Kullback-Leibler divergences in the
              two directions, in nats;
            - for predicted means, and where states are compared in place of predictions
              (:attr:`Stitching.seen`), the squared change, divided by the variance of the
              unchanged means or states.
    """

    model: str
    reference: str
    stitchings: tuple[Stitching, ...]
    worth: dict[str, Interval]

    def best(self, source: str, target: str) -> Stitching:
        """Return the score of one direction of stitching: inserting one model's mapped latents into
        the other.

        There are two scores: one of a map from latents alone, and one of a map from latents and the
        round number. The second is returned only if it is higher by at least .01.

        Args:
            source: name of the model that supplies latents.
            target: name of the model that receives them.
        """
        ways = {}  # further inputs of the map, () or ("round",) -> score
        for stitching in self.stitchings:
            if (stitching.source, stitching.target, stitching.control) == (source, target, ""):
                ways[stitching.supplied] = stitching
        plain, helped = ways[()], ways[_WITH_ROUND]
        return helped if helped.score.estimate >= plain.score.estimate + GAIN else plain

    @property
    def untrained(self) -> tuple[float, ...]:
        """The scores that serve as a control, one per untrained copy of the model. Stitching
        inserts mapped latents of the copy into the reference, and of the reference into the copy;
        the lower of the two scores is returned.
        """
        lowest: dict[str, float] = {}  # by name of the copy
        for stitching in self.stitchings:
            if stitching.control == UNTRAINED:
                # The reference is one side of the stitching, the copy the other.
                is_receiver = stitching.source == self.reference
                copy = stitching.target if is_receiver else stitching.source
                score = stitching.score.estimate
                lowest[copy] = float(np.fmin(lowest.get(copy, score), score))  # ignores NaN
        return tuple(lowest.values())

    @property
    def measure(self) -> Measure:
        """The measure of the claim that both models store the same state.

        Its number is the stitching score (one model's mapped latents are inserted into the other)
        of the direction with the lower score. The control is the best score of an untrained copy.
        If the round number was an input of the map, the measure's condition says so.
        """
        ways = self.best(self.model, self.reference), self.best(self.reference, self.model)
        worst = min(ways, key=lambda way: (way.score.low, way.source))
        # Models whose mapped latents depend on the round number, too.
        with_round = [way.target for way in ways if way.supplied]
        condition, note = "", ""
        if with_round:
            condition = "given the round number"
            note = f"the round is given to {' and '.join(with_round)}"
        first, last = worst.band
        rounds = f"round {first}" if first == last else f"rounds {first} to {last}"
        # `seen` is what the score compares: "predictions" or "carried values" (the state).
        where = f"the {worst.seen} of {worst.target} on the latents of {worst.source}"
        return Measure(
            key="state",
            claim="",  # filled in by Question.measure
            number=worst.score,
            threshold=SAME,
            unit="share of the memory's worth",
            controls={UNTRAINED: merge_copies(self.untrained)},
            about=f"{where}, in {rounds}",
            unless=self._list_doubts(),
            condition=condition,
            note=note,
        )

    def _list_doubts(self) -> dict[Verdict, str]:
        """Return {"yes": reason}, a reason against the verdict "yes", if a model's predictions
        depend too little on its memory, or may do so. Otherwise return an empty dictionary.
        """
        little = [worth for worth in self.worth.values() if worth.low < _LEAST_WORTH]
        if not little:
            return {}
        # Certain if the whole interval of a model's worth is below the threshold.
        is_certain = any(worth.high < _LEAST_WORTH for worth in little)
        why = f"{LITTLE_MEMORY}, which is" if is_certain else f"{FEW}: a memory may be"
        return {"yes": f"{why} worth less than {_LEAST_WORTH} nats a round"}

    def to_frame(self) -> pd.DataFrame:
        """Return a table with one row per stitching score (one model's mapped latents are inserted
        into another). One more row per model says how much the model's predictions depend on its
        memory (:attr:`worth`).

        The columns are:

        * name: "stitching", "control of stitching" or "worth of memory, nats";
        * source, target: the model that supplies latents, and the model that receives them;
        * supplied: further inputs of the map, such as "round";
        * control: kind of the control; "" if the row is no control;
        * seen: what is compared, "predictions" or "carried values";
        * rounds: first and last round of the group of rounds with the lowest score;
        * number, number_low, number_high: the score and the ends of its interval.

        Rows about a memory have only name, target (the model) and the three numbers.
        """
        rows: list[dict[str, Any]] = []
        for stitching in self.stitchings:
            first, last = stitching.band
            name = "control of stitching" if stitching.control else "stitching"
            row = {
                "name": name,
                "source": stitching.source,
                "target": stitching.target,
                "supplied": " + ".join(stitching.supplied),
                "control": stitching.control,
                "seen": stitching.seen,
                "rounds": f"{first} to {last}",
            }
            rows.append({**row, **stitching.score.columns("number")})
        for name, worth in self.worth.items():
            row = {"name": "worth of memory, nats", "target": name}
            rows.append({**row, **worth.columns("number")})
        return pd.DataFrame(rows)


def stitch(
    model: Participant, reference: Participant, untrained: Sequence[Participant], budget: Budget
) -> StatePart:
    """Insert each model's latents, mapped by an affine map, into the other model. Score how well
    the mapped latents replace the latents of the model that receives them.

    Both directions are scored with and without the round number as an input of the map. Controls
    are maps that were fitted to latents of other episodes, and untrained copies in the model's
    place.

    Args:
        model, reference: the two models, with their episodes.
        untrained: untrained copies of the model.
        budget: the rounds at which latents are inserted, and for how many rounds models run on.

    Returns:
        All scores, also those of controls; and how much the predictions of each model depend on its
        memory.
    """
    stitchings: list[Stitching] = []
    worth: dict[str, Interval] = {}
    generator = torch.Generator().manual_seed(0)
    for source, target in ((model, reference), (reference, model)):
        receiver = _Receiver.of(target, budget, generator)
        worth[target.name] = receiver.worth
        ridge = _choose_penalty(source, receiver)
        stitchings += _stitch_one_way(source, receiver, ridge)
        for i, copy in enumerate(untrained):  # in the model's place
            name_of_copy = f"{copy.name} {i}"
            if source is model:  # the copy supplies latents
                supplier, receiver_of_latents = copy, receiver
                names = name_of_copy, target.name
            else:  # the copy receives them
                supplier, receiver_of_latents = source, receiver.with_model(copy)
                names = source.name, name_of_copy
            mapped = map_latents(
                supplier, receiver_of_latents.target, budget, supplied=_WITH_ROUND, ridge=ridge
            )
            control = receiver_of_latents.score(
                names, mapped, receiver.test, supplied=_WITH_ROUND, control=UNTRAINED
            )
            stitchings.append(control)
    return StatePart(
        model=model.name, reference=reference.name, stitchings=tuple(stitchings), worth=worth
    )


def _stitch_one_way(source: Participant, receiver: _Receiver, ridge: float) -> list[Stitching]:
    """Score the latents of one model, mapped to those of the other: with a map that does not get the
    round number, with one that does, and with a map that was fitted to latents of other episodes,
    as a control.

    Args:
        source: the model that supplies latents.
        receiver: the model that receives them.
        ridge: ridge penalty of the maps.
    """
    target, budget = receiver.target, receiver.budget
    names = source.name, target.name
    everything, test = slice(None), receiver.test  # controls are scored on test episodes alone
    plain = map_latents(source, target, budget, supplied=(), ridge=ridge)
    helped = map_latents(source, target, budget, supplied=_WITH_ROUND, ridge=ridge)
    shuffled = map_latents(source, target, budget, supplied=_WITH_ROUND, ridge=ridge, shuffled=True)
    return [
        receiver.score(names, plain, everything),
        receiver.score(names, helped, everything, supplied=_WITH_ROUND),
        receiver.score(names, shuffled, test, supplied=_WITH_ROUND, control="shuffled"),
    ]


@dataclass(frozen=True, eq=False)
class _Receiver:
    """A model that receives mapped latents, and what is needed to score them.

    Its episodes are the known, then the test episodes (the pool). A start is a round at which
    latents are inserted.

    Attributes:
        target: the model.
        budget: the starts, and the number of rounds to run on.
        expected: what scores compare with: its undisturbed predictions, or carried values.
        reset_divergence: divergence of its run from ``expected`` if its latents are reset to the
            initial ones, averaged over the rounds that follow, ``[episode, start]``.
        is_steady: mask ``[episode, start]``, False where tiny noise in the latents changes its
            prediction, as at a tie; these are not scored.
        is_scored: mask ``[start]``, True where ``reset_divergence`` is large enough for a score.
        worth: mean of ``reset_divergence`` over episodes and starts, where starts that are not
            steady count as 0; the unit is that of :attr:`StatePart.worth`.
        seen: "predictions" or "carried values", whichever is compared.
    """

    target: Participant
    budget: Budget
    expected: Array
    reset_divergence: Array
    is_steady: NDArray[np.bool_]
    is_scored: NDArray[np.bool_]
    worth: Interval
    seen: str

    @classmethod
    def of(cls, target: Participant, budget: Budget, generator: torch.Generator) -> _Receiver:
        """Make the receiver of a model: measure how much its predictions depend on its memory.

        From each start, the model runs on with unchanged latents, with noise in them, and with
        initial latents.

        Args:
            target: the model.
            budget: the starts, and the number of rounds to run on.
            generator: draws the noise. Starts at which noise changes the predictions are at a tie,
                and do not count.
        """
        expected = _get_own_outputs(target, budget)
        # Predicted means have the task's units, and their divergence is a squared difference. It is
        # measured as a share of their variance; other divergences are in nats.
        scale = float(np.var(expected)) if _find_kind(target) == "mean" else 1.0
        clean = pool_runs(target).latents[:, budget.at]
        noise = torch.randn(clean.shape, generator=generator).to(clean)
        # If such a small noise changes predictions, they depend on how a tie is broken. The run
        # then says nothing about what is stored, and its start does not count.
        shift = _TIE_NOISE * clean.std(0) * noise
        shaken = [
            _measure_divergence(target, clean + sign * shift, expected=expected, budget=budget)
            for sign in (1, -1)
        ]
        is_steady = np.maximum(*shaken) < _LEAST_WORTH * scale  # [episode, start]
        reset_divergence = _measure_reset(target, expected, budget)
        counted = reset_divergence * is_steady
        mean_by_episode = counted.mean(1) / scale
        # The score is 1 - mean / 1, so that its complement is the mean itself, with its interval.
        score = score_maps(
            mean_by_episode, np.ones_like(mean_by_episode), target.samples.participants
        )
        return cls(
            target=target,
            budget=budget,
            expected=expected,
            reset_divergence=reset_divergence,
            is_steady=is_steady,
            is_scored=counted.mean(0) >= scale * _LEAST_WORTH,
            worth=score.complement,
            seen="carried values" if is_hard(target) else "predictions",
        )

    def with_model(self, copy: Participant) -> _Receiver:
        """Return the receiver with an untrained copy as the model; the same starts are scored."""
        expected = _get_own_outputs(copy, self.budget)
        reset_divergence = _measure_reset(copy, expected, self.budget)
        return replace(self, target=copy, expected=expected, reset_divergence=reset_divergence)

    @property
    def test(self) -> slice:
        """Slice that selects the test episodes among the known and test episodes."""
        return slice(len(self.target.samples.known), None)

    def score(
        self,
        names: tuple[str, str],
        mapped: Tensor,
        episodes: slice,
        supplied: tuple[str, ...] = (),
        control: str = "",
    ) -> Stitching:
        """Insert mapped latents into the model's run at each start, and score how well they replace
        the model's own latents.

        Args:
            names: names of the model that supplies latents, and of this model.
            mapped: mapped latents for all episodes of the pool, ``[episode, start, latent,
                d_model]``. A start is a round at which latents are inserted.
            episodes: slice of the pool: the episodes to score.
            supplied: further inputs of the map: () or ("round",); only recorded.
            control: kind of the control, such as "shuffled", or ""; only recorded.

        Returns:
            The score in the group of neighbouring starts (band) where it is worst.
        """
        is_steady = self.is_steady[episodes]  # False (0) takes a start out of both sums below
        mapped_divergence = _measure_divergence(
            self.target,
            mapped[episodes],
            expected=self.expected,
            budget=self.budget,
            episodes=episodes,
        )
        score, band = _score_worst_band(
            budget=self.budget,
            is_scored=self.is_scored,
            mapped_divergence=mapped_divergence * is_steady,
            reset_divergence=self.reset_divergence[episodes] * is_steady,
            participants=self.target.samples.participants[episodes],
        )
        source, target = names
        return Stitching(
            source=source,
            target=target,
            supplied=supplied,
            control=control,
            score=score,
            band=band,
            seen=self.seen,
        )


def _measure_reset(target: Participant, expected: Array, budget: Budget) -> Array:
    """Measure how much a model's predictions change when its latents are reset to the initial ones.

    Args:
        target: the model.
        expected: the model's undisturbed predictions; or the state at the end, if predictions are
            nearly one-hot.
        budget: the rounds at which latents are reset (starts), and the number of rounds to run on.

    Returns:
        Divergence from ``expected``, ``[episode, start]``.
    """
    # [episode, round, latent, d_model]; what round 0 reads, at every start.
    initial = pool_runs(target).latents[:, :1].expand(-1, len(budget.at), -1, -1)
    return _measure_divergence(target, initial, expected=expected, budget=budget)


def _choose_penalty(source: Participant, receiver: _Receiver) -> float:
    """Choose the ridge penalty of the maps of one direction of stitching, including its controls.

    Args:
        source: the model that supplies latents.
        receiver: the model that receives them.

    Returns:
        0 if the source is handwired; the standard penalty if its latents have more coordinates than
        there are samples; otherwise one of the two, chosen by how far the receiver's runs from
        mapped latents diverge (:func:`choose_penalty`).
    """
    if source.model.is_handwired:  # its latents are exact, also where they vary little
        return 0.0
    if is_wide(pool_runs(source).latents.flatten(2).flatten(0, 1)):
        return RIDGE
    target, budget = receiver.target, receiver.budget

    def sum_divergence(ridge: float) -> float:
        """Return how far the receiver's runs from latents, mapped with this penalty, diverge."""
        mapped = map_latents(source, target, budget, supplied=_WITH_ROUND, ridge=ridge)
        return float(
            _measure_divergence(target, mapped, expected=receiver.expected, budget=budget).sum()
        )

    # The baseline is the divergence with initial latents in place of mapped ones. Starts at which
    # noise in the latents changes predictions are left out of it, but not of the two sums above.
    without_memory = float((receiver.reset_divergence * receiver.is_steady).sum())
    return choose_penalty(sum_divergence, error_of_mean=without_memory)


def is_hard(target: Participant) -> bool:
    """Return True if the model is handwired and its predictions are nearly one-hot: more than nine
    tenths of them give one outcome a probability above .99. Such predictions show little of the
    model's state.
    """
    if not target.model.is_handwired or target.task.kind != "classes":
        return False
    return _are_choices(_compute_distributions(target, pool_runs(target).predictions))


def _are_choices(distributions: Array) -> bool:
    """Return True if more than nine tenths of the distributions ``[..., outcome]`` give one outcome
    a probability above .99.
    """
    return bool((distributions.max(-1) > _CERTAIN_P).mean() > _HARD_SHARE)


def _find_kind(target: Participant) -> Predicted:
    """Return the kind of the numbers that stitching compares: that of the target's predictions, or
    "mean" (real numbers) if its state is compared.
    """
    return "mean" if is_hard(target) else target.task.kind


def _get_outputs(target: Participant, predictions: Tensor, carried: Tensor) -> Array:
    """Return what scores compare: predicted distributions, or the state at the end if predictions
    are nearly one-hot.

    Args:
        target: the model that ran.
        predictions: the model's predictions in the rounds after each start.
        carried: the model's latents after the last of these rounds.

    Returns:
        Distributions ``[episode, start, horizon, outcome]``, or state values ``[episode, start, 1,
        value]``.
    """
    if not is_hard(target):
        return _compute_distributions(target, predictions)
    # There is one state, at the end: an axis of length 1 in place of the predictions' rounds.
    values = target.model.read_state(carried).flatten(2).unsqueeze(2)
    return values.double().numpy(force=True)


def _get_own_outputs(target: Participant, budget: Budget) -> Array:
    """Return the predictions or states of the target's undisturbed run, in the form of
    :func:`_get_outputs`, with which other runs are compared.

    Args:
        target: the model.
        budget: the rounds at which latents are inserted into other runs, and the number of rounds
            to run on.
    """
    run, horizon = pool_runs(target), budget.horizon
    # [episode, start, lag, ...]
    predictions = torch.stack([run.predictions[:, t : t + horizon] for t in budget.at], 1)
    ends = [t + horizon for t in budget.at]
    return _get_outputs(target, predictions, run.latents[:, ends])


def _measure_divergence(
    target: Participant,
    latents: Tensor,
    expected: Array,
    budget: Budget,
    episodes: slice = slice(None),
) -> Array:
    """Insert latents into a model in some rounds (starts), and measure how much its run diverges
    from the undisturbed one.

    Args:
        target: the model.
        latents: latents for these episodes, ``[episode, start, ...]``.
        expected: what :func:`_get_outputs` returns for its undisturbed run on all known and test
            episodes (the pool): predictions or states.
        budget: the starts, and the number of rounds to run on.
        episodes: slice of the pool; by default all.

    Returns:
        Mean divergence over the rounds that were run, ``[episode, start]``.
    """
    run = pool_runs(target).select(episodes)
    outputs = run_on(target.model, run, budget.at, budget.horizon, latents)
    # There is one edit (axis 0), and latents are read once (axis 3), after the last round.
    predictions = outputs.predictions[0]  # [episode, start, lag, ...]
    carried = outputs.carried[0, :, :, 0]  # [episode, start, ...]
    actual = _get_outputs(target, predictions, carried)
    n_episodes, n_starts, *shape = actual.shape
    runs = actual.reshape(-1, *shape)  # one row for each episode and start
    expected_runs = expected[episodes].reshape(runs.shape)
    nats = divergence(runs, expected_runs, _find_kind(target))
    return nats.reshape(n_episodes, n_starts)


def _score_worst_band(
    budget: Budget,
    is_scored: NDArray[np.bool_],
    mapped_divergence: Array,
    reset_divergence: Array,
    participants: Any = None,
) -> tuple[Interval, tuple[int, int]]:
    """Score groups of neighbouring starts (bands) separately, and return the worst score.

    The score is 1 - (divergence with mapped latents / divergence with initial latents). Only the
    starts in ``is_scored`` are scored, or all if it has none.

    Args:
        budget: the rounds of the starts.
        is_scored: mask ``[start]``: True for the starts at which initial latents change predictions
            enough.
        mapped_divergence: divergence with mapped latents, ``[episode, start]``.
        reset_divergence: divergence with initial latents, ``[episode, start]``.
        participants: participant of each episode.

    Returns:
        The worst score, and the first and last round of its band.
    """
    starts = np.flatnonzero(is_scored) if is_scored.any() else np.arange(len(is_scored))
    bands = np.array_split(starts, min(N_BANDS, len(starts)))
    scores = []
    for band in bands:
        mapped, reset = mapped_divergence[:, band].sum(1), reset_divergence[:, band].sum(1)
        scores.append(score_maps(mapped, reset, participants))
    lows = [score.low for score in scores]
    worst = int(np.argmin(lows))  # the first NaN, if there is one
    first, last = bands[worst][[0, -1]]
    return scores[worst], (budget.at[first], budget.at[last])


def map_latents(
    source: Participant,
    target: Participant,
    budget: Budget,
    supplied: tuple[str, ...],
    ridge: float,
    shuffled: bool = False,
) -> Tensor:
    """Predict the target's latents from the source's latents in the same round, by cross-fitted
    affine maps.

    Args:
        source, target: the two models, with their episodes.
        budget: the rounds at which latents are predicted (starts).
        supplied: ("round",) fits a separate offset for every round; () one offset for all rounds.
        ridge: ridge penalty of the maps.
        shuffled: True fits the maps to latents of other episodes, as a control.

    Returns:
        Mapped latents ``[episode, start, latent, d_model]`` for all known and test episodes.
    """
    target_latents = pool_runs(target).latents
    goal = target_latents.roll(1, 0) if shuffled else target_latents  # of the episode before
    x = pool_runs(source).latents.flatten(2).double()  # [episode, round, width]
    y = goal.flatten(2).double()
    # Means, and so the map's offsets, are over episodes and rounds, with one entry on the axis of
    # rounds; with the round number as an input, they are over episodes, with one entry per round.
    averaged: tuple[int, ...] = (0, 1)
    rounds = [0]
    if supplied:
        averaged, rounds = (0,), budget.at
    fold = torch.from_numpy(source.samples.participants % N_FOLDS)
    mapped = torch.empty(len(x), len(budget.at), y.shape[-1], dtype=torch.float64, device=y.device)
    for k in range(N_FOLDS):
        known, held_out = fold != k, fold == k
        x_mean = x[known].mean(averaged, keepdim=True)
        y_mean = y[known].mean(averaged, keepdim=True)
        features = (x[known] - x_mean).flatten(0, 1)
        outputs = (y[known] - y_mean).flatten(0, 1)
        inputs = x[held_out][:, budget.at] - x_mean[:, rounds]
        if ridge and is_wide(features):
            # Fewer samples than coordinates: ridge regression in its dual form, for which the matrix
            # of inner products of samples (Gram matrix) is computed once for all targets.
            unit = units(features)
            scaled = features / unit
            gram = compute_once(
                ("gram", k, supplied), source, make=partial(torch.matmul, scaled, scaled.T)
            )
            weights = solve_ridge(gram, outputs, len(features), ridge)
            predicted = inputs / unit @ scaled.T @ weights
        else:
            predicted = Affine.fit(features, outputs, ridge)(inputs)
        mapped[held_out] = predicted + y_mean[:, rounds]
    mapped = mapped.unflatten(-1, target_latents.shape[-2:])
    # If a part of the state grows, such as a cache, its current length shows the number of the
    # round, which is no memory. The target keeps its own length.
    n_rows = mapped.shape[-2]
    is_carried = carried_mask(target.model)[:n_rows].to(mapped.device)
    return torch.where(is_carried, mapped, target_latents[:, budget.at].to(mapped))


def _compute_distributions(target: Participant, predictions: Tensor) -> Array:
    """Return a model's predictions as distributions over outcomes."""
    layout = target.run(target.samples.test).layout
    p = distributions(layout, predictions)
    if layout.kind != "classes":
        return p
    p = np.clip(p, 0.0, 1.0)  # linear heads leave rounding below 0
    return p / p.sum(-1, keepdims=True)


STATE = Question(
    "state",
    StatePart,
    lambda compared: stitch(*compared.pair, compared.untrained, compared.budget),
    claim="It has the same state as {}, by affine maps",
    yes="has the same state",
    no="has, by affine maps, another state",
    needs_reference=True,
)
