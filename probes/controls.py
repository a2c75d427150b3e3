"""Controls of probes: the same fit on data that cannot say what the activations encode.

A probe's verdict is "yes" if its score is clearly above all controls that count. A score estimates
how well this probe, refitted on all episodes, will do on new episodes; its interval is that of
:mod:`interp.stats.refit`. docs/method/probes.md says what each control shows, and how R2 is
computed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from math import isnan, nan
from typing import Any

import numpy as np
from jaxtyping import Bool, Float, Int, Shaped
from numpy import ndarray as Array

from interp.results.measure import UNTRAINED
from interp.stats import refit
from interp.stats.intervals import Interval
from interp.support.checks import array_of, checked, checked_fields, checked_result
from probes.values import N_FOLDS, TargetValues

DESCRIPTIONS = {
    "shuffled": "the target of other episodes",
    "untrained": UNTRAINED,
    "inputs": "a probe of the round's inputs",
    "round": "a probe of the round index",
    "control_task": "a random target for each kind of round",
}
"""What each control is, by name, in the order of tables."""

_SHUFFLE_STREAM, _TASK_STREAM = 1, 2  # numbers of the random streams of two controls


class _Difference(Interval):
    """The score of a probe minus that of a control, as an interval.

    The bounds are NaN if the two scores are of different episodes, which cannot be paired.
    """

    def __str__(self) -> str:
        bounds = "(no interval)" if isnan(self.low) else f"[{self.low:.3f}, {self.high:.3f}]"
        return f"{self.estimate:.3f} {bounds}"


@dataclass(frozen=True, eq=False)
@checked_result
class ProbeScore(_Difference):
    """The cross-validated score of a probe (R2 or accuracy) with its 95 % interval, and the sums
    from which it was computed.

    A group is a set of episodes that may depend on each other, such as those of one participant.

    Attributes:
        losses: squared errors (for R2) or number of wrong predictions (for accuracy), summed over
            each group, ``[group]``. Each group is predicted by a probe that was not fitted on it.
        references: what the losses are divided by, ``[group]``. For R2, squared errors if the mean
            is predicted (:func:`interp.stats.refit.sum_squared_deviations`). For accuracy, numbers of predictions
            that are scored.
        kind: formula of the score: "skill" (1 - losses / references), "accuracy" (the same, clipped
            to [0, 1]) or "ratio" (losses / references). Losses and references are summed over
            groups first.
        constant: losses if the same value is always predicted, the mean or the most frequent class,
            ``[group]``.
        brier: for targets with a rare class, the two sums of the Brier skill score, each
            ``[group]``: squared errors of the predicted class probabilities, and squared errors if
            class frequencies are predicted instead. Otherwise None.

    >>> losses = np.array([[1.0, 2.0, 3.0, 2.0, 2.0], [7.0, 8.0, 7.0, 8.0, 8.0]])
    >>> score, control = (ProbeScore.of(lost, np.full(5, 8.0)) for lost in losses)
    >>> print(score, "beats the control by", score.minus(control))
    0.750 [0.431, 0.890] beats the control by 0.700 [0.349, 0.923]
    """

    losses: Float[Array, " group"] = field(repr=False)
    references: Float[Array, " group"] = field(repr=False)
    kind: refit.Score = "skill"
    constant: Float[Array, " group"] = field(default_factory=lambda: np.zeros(0), repr=False)
    brier: tuple[Float[Array, " group"], Float[Array, " group"]] | None = field(
        default=None, repr=False
    )

    @classmethod
    @checked
    def of(
        cls,
        losses: Shaped[Array, " group"],
        references: Shaped[Array, " group"],
        kind: refit.Score = "skill",
        constant: Shaped[Array, " group"] | None = None,
        brier: tuple[Float[Array, " group"], Float[Array, " group"]] | None = None,
    ) -> ProbeScore:
        """Compute a score and its interval from losses that are summed over each independent group
        of episodes. All arguments are ``[group]``, as the attributes of the same names.

        Args:
            losses: losses of the probe, such as squared errors.
            references: what the losses are divided by.
            kind: "skill" (1 - losses / references), "accuracy" or "ratio" (losses / references).
            constant: losses if the mean or the most frequent class is always predicted;
                ``references`` when None.
            brier: for targets with a rare class, squared errors of the predicted probabilities,
                and squared errors if class frequencies are predicted instead; otherwise None.
        """
        loss_sums = array_of("losses", losses).astype(np.float64)
        reference_sums = array_of("references", references).astype(np.float64)
        interval = refit.interval(loss_sums, reference_sums, N_FOLDS, kind)
        return cls(
            estimate=interval.estimate,
            low=interval.low,
            high=interval.high,
            losses=loss_sums,
            references=reference_sums,
            kind=kind,
            constant=reference_sums if constant is None else constant,
            brier=brier,
        )

    @property
    def skill(self) -> Interval:
        """The score with its interval, on a scale where 0 is as good as the best constant
        prediction and 1 is perfect.

        For real numbers it is R2. For classes it is 1 - (errors / errors of always guessing the
        most frequent class). If a class is rare, the most probable class is almost never this one.
        The skill is then the R2 of the predicted probabilities (the Brier skill score).
        """
        if self.kind == "skill":
            return Interval(self.estimate, self.low, self.high)
        if self.brier is not None:
            return refit.interval(*self.brier, N_FOLDS)
        # If nothing is predicted wrong, half a wrong prediction stands for errors too rare to be seen.
        return refit.interval(self.losses, self.constant, N_FOLDS, smallest=0.5)

    @checked
    def minus(self, other: ProbeScore) -> _Difference:
        """Return this score minus another score of the same kind, with a 95 % interval.

        Args:
            other: the score of another probe, on the same groups of episodes. If it has another
                number of groups, the bounds of the interval are NaN.
        """
        if len(self.losses) != len(other.losses):
            return _Difference(self.estimate - other.estimate, nan, nan)
        paired = refit.difference(
            self.losses,
            other.losses,
            self.references,
            N_FOLDS,
            self.kind,
            control_references=other.references,
        )
        return _Difference(paired.estimate, paired.low, paired.high)

    @property
    def detectable(self) -> float:
        """The smallest :attr:`skill` that a sample like this one could tell from 0: the lowest with
        a 95 % interval above 0.
        """
        losses, references = self.brier or (self.losses, self.constant)
        return refit.smallest_detectable_score(losses, references, N_FOLDS)


@dataclass(frozen=True, eq=False)
@checked_result
class Fitted:
    """A probe of one target, fitted and scored by cross-validation.

    Attributes:
        score: the cross-validated score of the probe.
        details: function without arguments that returns the other fields of the probe's
            :class:`~probes.result.ProbeResult`: name of a field -> value. It is called only if they
            are needed.
    """

    score: ProbeScore
    details: Callable[[], dict[str, Any]]


def score_predictions(
    target: TargetValues,
    predictions: Shaped[Array, "episode round output"],
    groups: Int[Array, " episode"],
    refit_probe: Callable[[], dict[str, Any]],
    probabilities: Sequence[Float[Array, "episode round class"]] = (),
) -> Fitted:
    """Score cross-validated predictions of a target: by R2 for numbers, by accuracy for classes.

    Args:
        target: the values to decode.
        predictions: ``[episode, round, output]``; each episode is predicted by a probe that was not
            fitted on it.
        groups: index of each episode's group, such as its participant, ``[episode]``; episodes of
            different groups are independent.
        refit_probe: function without arguments that fits a probe on all episodes, and returns the
            fields of :class:`~probes.result.ProbeResult` that describe it: name of a field ->
            value. The function ``details`` of the result calls it.
        probabilities: for each output, predicted class probabilities ``[episode, round, class]``,
            if the probe predicts any; otherwise empty.

    Returns:
        A :class:`Fitted` with two fields. ``score`` is the score of all outputs together.
        ``details`` is a function without arguments that returns the other fields of
        :class:`~probes.result.ProbeResult`, name of a field -> value: the score of each output,
        further metrics, names of the outputs, the predictions, and what ``refit_probe`` returns.
    """
    decodes_classes = target.kind == "class"
    y = target.values if decodes_classes else target.values.astype(np.float64)
    is_scored = np.ones(y.shape, dtype=bool) if target.mask is None else target.mask

    def add_up(values: Shaped[Array, "episode round output"]) -> Float[Array, "group output"]:
        """Sum the scored entries of an array over the rounds and episodes of each group, ``[group,
        output]``.

        Args:
            values: the array, ``[episode, round, output]``.
        """
        return refit.sum_by_group((values * is_scored).sum(1), groups)

    def score_ratio(values: Shaped[Array, "episode round output"]) -> ProbeScore:
        """Return a loss averaged over all scored entries, with its interval.

        Args:
            values: loss of each entry, ``[episode, round, output]``.
        """
        return ProbeScore.of(add_up(values).sum(1), n_scored.sum(1), "ratio")

    n_scored = add_up(is_scored)  # [group, output]
    kind: refit.Score = "accuracy" if decodes_classes else "skill"
    brier = None
    if decodes_classes:
        losses, references = add_up(predictions != y), n_scored
        constant = add_up(y != _find_most_frequent(y, is_scored))
        if probabilities and target.is_rare:
            brier = _sum_brier_losses(y, is_scored, groups, probabilities)
    else:
        errors = (y - predictions) * is_scored
        squares = np.einsum("etk,etk->ek", errors, errors)
        losses = refit.sum_by_group(squares, groups)
        # R2 divides by the errors of the best constant, so both are equal.
        references = constant = refit.sum_squared_deviations(y, target.mask, groups)
    score = ProbeScore.of(losses.sum(1), references.sum(1), kind, constant.sum(1), brier)

    def describe() -> dict[str, Any]:
        """Return the fields of this probe's :class:`~probes.result.ProbeResult` except its score:
        name of a field -> value.
        """
        metrics: dict[str, Interval] = {"accuracy" if decodes_classes else "r2": score}
        if not decodes_classes:
            metrics["mae"] = score_ratio(np.abs(y - predictions))
        if probabilities:
            metrics["log_loss"] = score_ratio(_log_losses(y, probabilities))
        by_output = {}
        for k, output in enumerate(target.outputs):
            by_output[output] = ProbeScore.of(losses[:, k], references[:, k], kind, constant[:, k])
        details = {"by_output": by_output, "metrics": metrics, "columns": target.outputs}
        details["predictions"] = predictions.astype(np.float64)
        return details | refit_probe()

    return Fitted(score, describe)


def _find_most_frequent(
    y: Int[Array, "episode round output"], is_scored: Bool[Array, "episode round output"]
) -> Int[Array, " output"]:
    """Return the most frequent class of each output among the scored entries, ``[output]``; class 0
    for an output without scored entries.

    Args:
        y: the true classes, ``[episode, round, output]``.
        is_scored: mask of the entries that are scored, of the same shape.
    """
    classes_by_output = [y[is_scored[..., k], k] for k in range(y.shape[-1])]
    # minlength=1 gives an output without scored entries a count, so that argmax returns class 0.
    return np.array([np.bincount(classes, minlength=1).argmax() for classes in classes_by_output])


def _sum_brier_losses(
    y: Int[Array, "episode round output"],
    is_scored: Bool[Array, "episode round output"],
    groups: Int[Array, " episode"],
    probabilities: Sequence[Float[Array, "episode round class"]],
) -> tuple[Float[Array, " group"], Float[Array, " group"]]:
    """Return the two sums of the Brier skill score, 1 - losses / references.

    Args:
        y: the true classes, ``[episode, round, output]``.
        is_scored: mask of the entries that are scored, of the same shape.
        groups: index of the group of each episode.
        probabilities: for each output, predicted class probabilities ``[episode, round, class]``.

    Returns:
        The pair (losses, references), each ``[group]``: squared errors of the predicted
        probabilities, and squared errors if the class frequencies are predicted.
    """
    n_classes = probabilities[0].shape[-1]
    predicted = np.concatenate(probabilities, -1)  # [episode, round, output * class]
    indicators = np.eye(n_classes)[y].reshape(predicted.shape)
    scored = np.repeat(is_scored, n_classes, -1)  # all classes of an entry, or none
    errors = np.square((predicted - indicators) * scored)
    losses = refit.sum_by_group(errors.sum(1), groups)
    # The losses of always predicting the frequency of each class.
    references = refit.sum_squared_deviations(indicators, scored, groups)
    return losses.sum(1), references.sum(1)


def _log_losses(
    y: Int[Array, "episode round output"],
    probabilities: Sequence[Float[Array, "episode round class"]],
) -> Float[Array, "episode round output"]:
    """Return minus the log of the predicted probability of the true class, ``[episode, round,
    output]``.

    Args:
        y: the true classes, ``[episode, round, output]``.
        probabilities: for each output, predicted class probabilities ``[episode, round, class]``.
    """
    stacked = np.stack(probabilities, 2)  # [episode, round, output, class]
    of_truth = np.take_along_axis(stacked, y[..., None], axis=-1)[..., 0]
    losses = -np.log(np.maximum(of_truth, np.finfo(np.float64).tiny))  # finite at probability 0
    return np.maximum(losses, 0.0)  # a probability may exceed 1 by rounding


def _unpack(probe: Fitted, counted: Bool[Array, "episode round"]) -> dict[str, Any]:
    """Return the details of a probe that was fitted only on the rounds that took place, with
    predictions by episode and round again.

    Args:
        probe: the probe; its predictions are ``[round that took place, 1, output]``.
        counted: mask ``[episode, round]`` of the rounds that took place.

    Returns:
        The fields of a :class:`~probes.result.ProbeResult` by name; predictions are
        ``[episode, round, output]``, with NaN in missing rounds.
    """
    details = probe.details()
    packed = details["predictions"]
    predictions = np.full((*counted.shape, packed.shape[-1]), nan)
    predictions[counted] = packed[:, 0]  # both in the order of episodes, then rounds
    return {**details, "predictions": predictions}


@dataclass(frozen=True, eq=False)
@checked_result
class ControlScore:
    """The score of one control of a probe: the same fit on other data, such as the activations of
    an untrained copy.

    Attributes:
        name: name of the control.
        score: score of the control.
        difference: the probe's score minus the control's, with a 95 % interval.
        counts: True if the verdict "yes" (the target can be decoded) requires the probe to beat
            this control. False if the control must succeed by construction, such as a probe of the
            inputs if the target is an input.
    """

    name: str
    score: ProbeScore
    difference: _Difference
    counts: bool = True

    def __str__(self) -> str:
        note = "" if self.counts else " (holds the target by construction)"
        return f"{self.score}, probe - control {self.difference}{note}"


def _shuffle_episodes(
    values: Shaped[Array, episode * rest], seed: int, groups: Int[Array, " episode"] | None = None
) -> Shaped[Array, episode * rest]:
    """Give every episode the values of an episode of another group, for the control "shuffled".

    Groups are put in a random order, and values are then shifted by as many episodes as the largest
    group has. Groups cannot simply swap their values, since they may differ in size.

    Args:
        values: values of all episodes, ``[episode, ...]``.
        seed: seed of the random order.
        groups: index of the group of each episode; None makes every episode a group.

    Returns:
        The values in their new episodes, ``[episode, ...]``.
    """
    if groups is None:
        groups = np.arange(len(values))
    n_groups = int(groups.max()) + 1
    shuffled_groups = np.random.default_rng([seed, _SHUFFLE_STREAM]).permutation(n_groups)
    rank_of_group = np.argsort(shuffled_groups)  # inverse permutation
    order = np.argsort(rank_of_group[groups], kind="stable")  # episodes, group after group
    # No episode gets values of its own group if the shift is as long as the largest group.
    largest_group = np.bincount(groups).max()
    result = np.empty_like(values)
    result[order] = values[np.roll(order, largest_group)]
    return result


def _control_task(
    values: Shaped[Array, "episode round output"],
    types: Int[Array, "episode round"],
    seed: int,
    missing: Bool[Array, "episode round"] | None = None,
) -> Shaped[Array, "episode round output"]:
    """Return the random target of the control task (Hewitt and Liang 2019): rounds with equal
    inputs get the same value, which is that of a random round.

    Args:
        values: values of the target, ``[episode, round, output]``.
        types: integer id of each round's inputs, ``[episode, round]``; rounds with equal inputs
            have the same id.
        seed: seed of the draws.
        missing: mask ``[episode, round]`` of rounds that did not take place; their values are not
            drawn.

    Returns:
        The random values, ``[episode, round, output]``.
    """
    # [round that took place, output]
    rows = values.reshape(-1, values.shape[-1]) if missing is None else values[~missing]
    n_types = int(types.max()) + 1
    row_of_type = np.random.default_rng([seed, _TASK_STREAM]).integers(len(rows), size=n_types)
    return rows[row_of_type][types]


def _assign_folds(n_episodes: int, n_folds: int, seed: int) -> Int[Array, " episode"]:
    """Draw a random fold for each episode or group; fold sizes differ by at most one.

    Args:
        n_episodes: number of episodes or groups.
        n_folds: number of folds.
        seed: seed of the draw.
    """
    return np.random.default_rng(seed).permutation(np.arange(n_episodes) % n_folds)


@dataclass(frozen=True, eq=False)
@checked_fields
class Kind:
    """A kind of probe, such as ridge regression.

    Attributes:
        name: name of the kind, such as "ridge": the argument ``method`` of :func:`probes.fit` that
            selects it, or the name of a scikit-learn estimator.
        predicts_classes: True if it predicts classes. False if it predicts numbers; for a target of
            classes, it then predicts one number per class, 1 for the true class and 0 for the
            others.
        fit: function that is called with activations ``[episode, round, feature]``, targets, the
            fold of each episode and the group of each episode. It returns one cross-validated probe
            per target.
    """

    name: str
    predicts_classes: bool
    fit: Callable[[Array, Sequence[TargetValues], Array, Array], list[Fitted]]


@dataclass(frozen=True, eq=False)
@checked_fields
class GroupedTargets:
    """One or more targets of probes in one set of episodes, with the folds of cross-validation.

    A group is a set of episodes that may depend on each other, such as those of one participant.
    All episodes of a group are in one fold.

    Attributes:
        targets: the targets; each has values ``[episode, round, output]``.
        groups: index of the group of each episode, ``[episode]``.
        seed: seed of the random assignment of groups to folds.
    """

    targets: Sequence[TargetValues]
    groups: Int[Array, " episode"]
    seed: int

    @property
    def n_groups(self) -> int:
        """Number of independent groups."""
        return int(self.groups.max()) + 1

    def extend_to_copy(self, targets: Sequence[TargetValues]) -> GroupedTargets:
        """Return the targets for an untrained copy of the model, which may have run on more
        episodes. Each further episode is a group of its own.

        Args:
            targets: the targets in all episodes of the copy: those of this sample, followed by the
                further ones.
        """
        n_further = len(targets[0].values) - len(self.groups)
        further = self.n_groups + np.arange(n_further)
        return GroupedTargets(targets, np.concatenate([self.groups, further]), self.seed)

    def fit(self, kind: Kind, x: Array, targets: Sequence[TargetValues] = ()) -> list[Fitted]:
        """Fit a cross-validated probe for each target, and for further targets in the same
        episodes, such as the random targets of controls.

        Missing rounds are left out. Each of the other rounds is then treated as an episode of one
        round, with the fold and group of its episode.

        Args:
            kind: kind of probe, such as ridge regression.
            x: activations ``[episode, round, feature]``.
            targets: the further targets.

        Returns:
            One probe per target; those of the further targets come last.
        """
        folds = _assign_folds(self.n_groups, N_FOLDS, self.seed)[self.groups]
        decoded = [*self.targets, *targets]
        if not kind.predicts_classes:
            decoded = [target.indicators() for target in decoded]
        if self.targets[0].missing is None:
            return kind.fit(x, decoded, folds, self.groups)
        # A shuffled target may miss other rounds; targets that miss the same ones share a fit.
        # They are found by the bytes of their masks, since an array cannot be a dictionary key.
        indices_by_missing: dict[bytes, list[int]] = {}
        for i, target in enumerate(decoded):
            indices_by_missing.setdefault(np.asarray(target.missing).tobytes(), []).append(i)
        results: dict[int, Fitted] = {}
        for indices in indices_by_missing.values():
            counted = ~np.asarray(decoded[indices[0]].missing)
            episode = np.nonzero(counted)[0]  # of each round that took place
            packed = [decoded[i].remove_missing_rounds() for i in indices]
            rows = x[counted][:, None]  # [round that took place, 1, feature]
            fits = kind.fit(rows, packed, folds[episode], self.groups[episode])
            for i, probe in zip(indices, fits, strict=True):
                # `details` is called only if the whole result is needed, with predictions. `_unpack`
                # puts these back to [episode, round, output], with NaN in missing rounds.
                results[i] = replace(probe, details=partial(_unpack, probe, counted))
        return [results[i] for i in range(len(decoded))]


@dataclass(frozen=True, eq=False)
@checked_fields
class Problem:
    """Targets to which one kind of probe is fitted, together with what the controls of these probes
    need.

    Attributes:
        sample: the targets, and the group of each episode.
        kind: kind of probe.
        random_targets: (index of a target, "shuffled" or "control_task") -> the random target that this
            control decodes instead. For "shuffled" it has the values of other episodes. For
            "control_task" all rounds with equal inputs have the same value, drawn at random from
            the target's values.
        baselines: (index of a target, "round" or "inputs") -> score of this control, which reads
            the round index or the round's inputs instead of activations.
    """

    sample: GroupedTargets
    kind: Kind
    random_targets: Mapping[tuple[int, str], TargetValues]
    baselines: Mapping[tuple[int, str], ProbeScore] = field(default_factory=dict)

    @classmethod
    def of(cls, sample: GroupedTargets, kind: Kind) -> Problem:
        """Draw the random targets of the controls "shuffled" and "control_task", and return them
        together with the targets.

        The field ``baselines`` stays empty; :meth:`with_baselines` fills it.

        Args:
            sample: the targets, and the group of each episode.
            kind: kind of probe.
        """
        seed, groups = sample.seed, sample.groups
        targets = list(sample.targets)
        if not kind.predicts_classes:
            targets = [target.indicators() for target in targets]
        random_targets = {}
        for i, target in enumerate(targets):
            # Shuffled values keep the mask of the episode that they come from.
            mask, missing = target.mask, target.missing
            if mask is not None:
                mask = _shuffle_episodes(mask, seed, groups)
            if missing is not None:
                # The round must have taken place in this episode and in the one of the values.
                missing = missing | _shuffle_episodes(missing, seed, groups)
            values = _shuffle_episodes(target.values, seed, groups)
            random_targets[i, "shuffled"] = replace(
                target, values=values, mask=mask, missing=missing
            )
        for i, target in enumerate(targets):
            if target.types is not None:  # mask and missing rounds stay those of the target
                values = _control_task(target.values, target.types, seed, target.missing)
                random_targets[i, "control_task"] = replace(target, values=values)
        return cls(replace(sample, targets=targets), kind, random_targets)

    def with_baselines(self) -> Problem:
        """Fit the two controls that read no activations, and return a copy with their scores in the
        field ``baselines``. The control "round" predicts the targets from the round index, and
        "inputs" from the round's inputs.

        If the inputs have several encodings, a probe of each is fitted, and the best score of each
        target counts.
        """
        scores: dict[tuple[int, str], ProbeScore] = {}
        first = self.sample.targets[0]  # all targets have the same inputs
        n_episodes, n_rounds = first.values.shape[:2]
        # From a one-hot round, a linear probe can decode any function of the round index.
        one_hot_round = np.broadcast_to(np.eye(n_rounds), (n_episodes, n_rounds, n_rounds))
        _keep_best(scores, "round", self.sample.fit(self.kind, one_hot_round))
        for encoding in first.inputs:
            _keep_best(scores, "inputs", self.sample.fit(self.kind, encoding))
        return replace(self, baselines=scores)

    def fit(
        self,
        x: Float[Array, "episode round feature"],
        copies: Iterable[tuple[Array, GroupedTargets]] = (),
    ) -> list[tuple[Fitted, dict[str, ControlScore]]]:
        """Fit a probe of each target to activations, together with its controls.

        If there are several untrained copies, the control "untrained" is the one with the highest
        score.

        Args:
            x: activations of the model, ``[episode, round, feature]``.
            copies: for each untrained copy of the model, its activations
                ``[episode, round, feature]``, and the targets in its episodes.

        Returns:
            For each target, the pair (its probe, controls). ``controls`` maps the name of a control
            to its score.
        """
        targets = self.sample.targets
        fits = self.sample.fit(self.kind, x, list(self.random_targets.values()))
        probes, controls_of_random_targets = fits[: len(targets)], fits[len(targets) :]
        scores = dict(self.baselines)
        for key, control in zip(self.random_targets, controls_of_random_targets, strict=True):
            scores[key] = control.score
        for activations_of_copy, sample_of_copy in copies:
            fits_of_copy = sample_of_copy.fit(self.kind, activations_of_copy)
            _keep_best(scores, "untrained", fits_of_copy)
        results = []
        for i, (probe, target) in enumerate(zip(probes, targets, strict=True)):
            controls = {}
            for name in DESCRIPTIONS:  # in the order of tables
                if (i, name) in scores:
                    score = scores[i, name]
                    controls[name] = ControlScore(
                        name=name,
                        score=score,
                        difference=probe.score.minus(score),
                        counts=name not in target.implied_by,
                    )
            results.append((probe, controls))
        return results


def _keep_best(
    scores: dict[tuple[int, str], ProbeScore], name: str, fits: Sequence[Fitted]
) -> None:
    """Record the score of a control for each target, unless a higher score is recorded already.

    Args:
        scores: scores by (index of the target, name of the control), which are changed in place.
        name: name of the control.
        fits: new fits of the control, one per target.
    """
    for i, probe in enumerate(fits):
        best = scores.get((i, name))
        if best is None or probe.score.estimate > best.estimate:
            scores[i, name] = probe.score
