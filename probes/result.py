"""The result of a probe: a verdict on whether the target can be decoded, with scores and controls."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from math import ceil
from operator import attrgetter
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
from jaxtyping import Float
from numpy import ndarray as Array

import interp.tasks
from interp.core.algorithm import Episodes, describe_counted
from interp.model.run import Rollout
from interp.results.measure import FEW, NOT_RUN, NOTHING, Control, Measure, Measured, Verdict
from interp.stats.intervals import Interval
from interp.support.checks import checked, checked_result
from interp.support.errors import InputError, require, unknown_name
from probes.activations import ProbedSite, read
from probes.controls import DESCRIPTIONS, ControlScore, ProbeScore
from probes.estimators import predict
from probes.targets import parse
from probes.values import TargetValues, as_array, as_inputs

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_SMALLEST_EFFECT = 0.1
"""The threshold of every probe, as the smallest effect of interest: a tenth of the variance (R2 or
skill).
"""

_SITE_TEXTS = {
    None: ("the activations", ""),
    "latents": ("the latents", ""),
    "written": ("the written latent", " from the latent that it writes"),
    "change": ("the change of the latent", " from the change of its latent"),
    "update": ("the update", " from its update"),
}
"""How a site is described in a claim, and at the end of a sentence about the model."""

_NO_COPY_REASON = (
    "no untrained model; give untrained= or a rollout without hooks "
    "(from a file: with model= and episodes=)"
)


def measure_of(
    target: TargetValues,
    site: str | None,
    score: ProbeScore,
    controls: Mapping[str, ControlScore],
    *,
    untrained: str = "",
    few_reason: str = "",
    why_features_missing: str = "",
    n_features: int = 0,
    probe: str = "linear probe",
) -> Measure:
    """Return the claim that a probe can decode the target at its site, as a measure: with the score
    that decides it, the controls and the verdict.

    Args:
        target: the target.
        site: name of the site; None if activations were passed as an array.
        score: score of the probe.
        controls: name of a control -> its score.
        untrained: reason for the missing control "untrained", in place of the default text; "" for
            the default text.
        few_reason: reason why the control "untrained" ran on too few episodes for the verdict
            "yes"; "" if it did not.
        why_features_missing: reason why at least half of the features were left out; "" if they were not. The
            verdict is then never "no".
        n_features: number of features, if they are so many that the score is biased low; otherwise
            0. If not 0, the verdict is never "no".
        probe: name of the probe in sentences, such as "linear probe".
    """
    name = target.noun
    if ":" in target.key:  # such as "log_weights:before"; without ":", the value after the round
        name += " before the round"
    source, at_site = _describe_site(site)
    skill = score.skill
    part = "part of " if skill.estimate < 0.5 else ""  # less than half of it can be read
    numbers = {}
    for key, control in controls.items():
        estimate = control.score.skill.estimate
        numbers[DESCRIPTIONS[key]] = Control(estimate, control.counts)
    notes = [describe_counted(target.missing)]
    # The skill of numbers is their R2. That of classes is not their accuracy, which a note adds.
    unit = "R2"
    if score.kind != "skill":
        unit = "skill"
        notes.insert(0, f"accuracy {score}")
    # Verdict -> reason to report "undecided" instead of it.
    unless = _reason_against_yes(target, controls, untrained, few_reason) | _reason_against_no(
        score, why_features_missing, n_features
    )
    return Measure(
        key=target.key,
        claim=f"A {probe} reads {name} from {source}",
        number=skill,
        threshold=_SMALLEST_EFFECT,
        unit=unit,
        controls=numbers,
        yes=f"lets a {probe} read {part}{name}{at_site}",
        no=f"lets no {probe} read {name}{at_site}",
        unless=unless,
        caution="what can be read need not be used",
        note="; ".join(filter(None, notes)),
    )


def _describe_site(site: str | None) -> tuple[str, str]:
    """Return two texts about a site: what a probe reads from, such as "the latents", and the end of
    a sentence about the model, such as " at resid_post[2]@w?".
    """
    if site in _SITE_TEXTS:
        return _SITE_TEXTS[site]
    assert site is not None
    if site.startswith("latents@"):
        channel = site.removeprefix("latents@")
        return f"the channel {channel}", f" from its {channel}"
    return f"the activations at {site}", f" at {site}"


def _reason_against_yes(
    target: TargetValues, controls: Mapping[str, ControlScore], untrained: str, few_reason: str
) -> dict[Verdict, str]:
    """Return a reason against the verdict "yes", ``{"yes": reason}``, if a required control was not
    run, or ran on too few episodes; otherwise an empty dictionary. With a reason, the verdict is "undecided" instead.

    The required controls are "untrained" and, unless the target is an input itself, "inputs".

    Args:
        target: the target.
        controls: name of a control that was run -> its score.
        untrained: reason why no untrained copy was run, to replace the default text; "" for the
            default text.
        few_reason: reason why the control "untrained" is too weak; "" if it is not.
    """
    if "untrained" not in controls:
        return {"yes": f"{NOT_RUN}: {untrained or _NO_COPY_REASON}"}
    if "inputs" not in controls and "inputs" not in target.implied_by:
        return {"yes": f"{NOT_RUN}: no probe of the round's inputs; give episodes= or inputs="}
    return {"yes": few_reason} if few_reason else {}


def _reason_against_no(
    score: ProbeScore, why_features_missing: str, n_features: int
) -> dict[Verdict, str]:
    """Return a reason against the verdict "no", ``{"no": reason}``, if too few features or episodes
    were used; otherwise an empty dictionary. With a reason, the verdict is "undecided" instead.

    Args:
        score: score of the probe.
        why_features_missing: reason why most features were left out; "" if they were not.
        n_features: number of features, if so many that the score is biased low; otherwise 0.
    """
    if why_features_missing:
        return {"no": f"{NOTHING}: {why_features_missing}"}
    if n_features:
        n_enough = 2 * n_features
        return {
            "no": f"{FEW}: the target is nearly constant in each; about {n_enough} would do, two for each feature"
        }
    if score.detectable > _SMALLEST_EFFECT:
        # The smallest detectable score falls with the square root of the number of groups.
        excess = score.detectable / _SMALLEST_EFFECT
        n_enough = ceil(len(score.losses) * excess**2)
        return {"no": f"{FEW}: about {n_enough} would do"}
    return {}


@dataclass(frozen=True, eq=False, repr=False)
class ProbeResult(Measured):
    """A fitted probe: its scores, its controls, and the verdict on whether the target can be
    decoded.

    Attributes:
        target: the target.
        method: "ridge", "logistic", or the name of a scikit-learn estimator.
        score: cross-validated R2 (numbers) or accuracy (classes), with its 95 % interval.
        by_output: name of an output of the target (such as an expert, "e_1") -> the same score for
            this output alone.
        metrics: name of a metric -> its cross-validated value: "r2" and "mae" (mean absolute error)
            for numbers; "accuracy" and, for logistic probes, "log_loss" (mean of minus the log of
            the true class's probability) for classes.
        controls: name of a control, such as "untrained" -> its score. A control is the same fit on
            other data.
        predictions: cross-validated predictions, ``[episode, round, output]``: each episode is
            predicted by a probe that was not fitted on it. Classes are numbers 0, 1, ...
        weights, intercept: the probe that is fitted on all episodes, ``[feature, column]`` and
            ``[column]``: a decoded value is ``activation @ weights + intercept``. Empty for
            scikit-learn estimators.
        columns: name of each column of the weights: an output, or an output and a class, such as
            "output 0=2".
        measure: the claim and its verdict.
        shape: shape of the activation in one round, before its axes are flattened into features.
        site, place: where the activations were read in a rollout: the name of the site, and what
            was looked up for it. None if activations were passed as an array.
        settings: folds, seed, penalties, model and versions, to reproduce the result.
        warning: what makes the intervals or the verdict less reliable, in words; None for no
            warning.
        estimators: fitted scikit-learn estimators, one per output.
    """

    target: TargetValues
    method: str
    score: ProbeScore
    by_output: dict[str, ProbeScore]
    metrics: Mapping[str, Interval]
    controls: dict[str, ControlScore]
    predictions: Float[Array, "episode round k"]
    weights: Float[Array, "d m"]
    intercept: Float[Array, " m"]
    columns: tuple[str, ...]
    measure: Measure
    shape: tuple[int, ...] = ()
    site: str | None = None
    settings: dict[str, Any] = field(default_factory=dict)
    warning: str | None = None
    estimators: tuple[Any, ...] = ()
    place: ProbedSite | None = None

    @property
    def measures(self) -> tuple[Measure, ...]:  # type: ignore[override]
        """A tuple with a single entry: the claim that the probe can decode the target, with its
        number and verdict (:attr:`measure`).
        """
        return (self.measure,)

    @property
    def model(self) -> str:  # type: ignore[override]
        """Name of the model, or "The model" if it is unknown."""
        return str(self.settings.get("model", "The model"))

    # Whether the probe reads the target, why that is undecided, and R2, or the skill of a probe of classes.
    verdict = property(attrgetter("measure.verdict"))
    reason = property(attrgetter("measure.reason"))
    number = property(attrgetter("measure.number"))

    @property
    def sentence(self) -> str:
        """The finding in a sentence: whether the probe decodes the target, its score, and the score
        of the strongest control.
        """
        measure = self.measure
        # A claim is, for example, "A linear probe reads the log-weights from the latents".
        subject, _, target_from_site = measure.claim.partition(" reads ")
        model = f" of {self.settings['model']}" if "model" in self.settings else ""
        number = f"{measure.unit} {measure.number.estimate:.3g}"
        strongest = measure.strongest
        if strongest:
            of_control = measure.controls[strongest].number
            number += f"; {strongest} {of_control:.3g}"
        what_is_read = f"{target_from_site}{model} ({number})"
        if measure.verdict == "yes":
            return f"{subject} reads {what_is_read}."
        if measure.verdict == "no":
            return f"{subject} does not read {what_is_read}."
        lowercase_subject = f"a{subject[1:]}"  # "A linear probe" in the middle of a sentence
        return f"It is {measure.verdict} whether {lowercase_subject} reads {what_is_read}: {measure.reason}."

    @property
    def metric(self) -> str:
        """Name of the main score: "r2" or "accuracy"."""
        return "r2" if "r2" in self.metrics else "accuracy"

    @property
    def r2(self) -> float:
        """Cross-validated R2 over all outputs. Raises InputError if the probe predicts classes,
        which are scored by accuracy.
        """
        require(
            "r2" in self.metrics,
            f"the probe of {self.target.key!r} is {self.method} and has no R2; read .score, its accuracy, or .metrics",
        )
        return self.metrics["r2"].estimate

    @property
    def missing(self) -> tuple[str, ...]:
        """Names of the controls that were not run, for example because there was no untrained
        model.
        """
        return tuple(name for name in DESCRIPTIONS if name not in self.controls)

    @checked
    def direction(self, output: str | None = None) -> Float[Array, "*any"]:
        """Return the smallest change of an activation that raises one decoded value by 1 and leaves
        all other decoded values equal.

        The change has the shape of the activation in one round. It is the direction that the probe
        *reads*, and not necessarily one that the model uses (docs/method/probes.md). For a
        scikit-learn estimator it is an error.

        Args:
            output: name of the decoded value, from :attr:`columns`; None if there is only one.
        """
        require(
            not self.estimators,
            f"a probe by {self.method} has no direction; fit it by 'ridge' or 'logistic'",
        )
        if output is None:
            require(len(self.columns) == 1, f"choose an output: {', '.join(self.columns)}")
            output = self.columns[0]
        if output not in self.columns:
            raise unknown_name(f"output of {self.target.key!r}:", output, self.columns, limit=40)
        # [column, feature]: row i changes decoded value i by 1, and no other.
        directions = np.linalg.pinv(self.weights, rcond=1e-9)
        return directions[self.columns.index(output)].reshape(self.shape)

    def decode(self, run: Rollout | Any, episodes: Episodes | None = None) -> Decoded:
        """Apply the probe (the one that was fitted on all episodes) to a rollout of its model, or
        to activations.

        Args:
            run: a rollout, or activations ``[episode, round, ...]``.
            episodes: the episodes of the run, from which the true values are computed; None leaves
                the true values out. If the probe predicts classes, they are always left out.

        Returns:
            The decoded values. A logistic probe returns log-odds of class 1 if there are two
            classes, otherwise one logit (score before the softmax) per class.
        """
        activations = self._read(run) if isinstance(run, Rollout) else run
        array = as_array(activations, "activations")
        x = as_inputs(array)
        require(
            x.shape[-1] == len(self.weights),
            f"this probe reads activations of shape {self.shape}, got {array.shape[2:]}; "
            "use a run of the model that it was fitted on",
        )
        true = None
        if episodes is not None:
            target, moment = parse(self.target.key, interp.tasks.of(episodes))
            # A probe of classes decodes log-odds, which have no true value.
            if self.metric == "r2":
                computed = target(episodes, moment, **self.target.parameters)
                true = computed.indicators().values
        values = x @ self.weights + self.intercept
        if self.estimators:
            values = predict(self.estimators, x)
        return Decoded(self.target.key, self.columns, values, true)

    def _read(self, run: Rollout) -> Any:
        """Read the activations at the probe's site in a rollout; refuse a rollout of another model."""
        if self.site is None:
            raise InputError(
                "this probe was fitted on an array, so it cannot know where to read a run; give it activations, or fit "
                "it with probes.fit(run, target, sites=...)"
            )
        digest = self.settings.get("digest")
        digest_of_run = run.settings.get("digest")
        name = self.settings.get("model")
        name_of_run = run.settings.get("model")
        require(
            digest == digest_of_run,
            f"this probe was fitted on model {name!r} ({digest!s:.12}), the run is of {name_of_run!r} "
            f"({digest_of_run!s:.12}); fit it on that model",
        )
        return read(run, self.place or self.site, self.target.when)

    @checked
    def plot(self, episode: int = 0) -> Figure:
        """Draw the cross-validated predictions and the true values of one episode over rounds. If
        the probe predicts classes, it is an error.

        Args:
            episode: index of the episode.
        """
        require(
            self.metric == "r2",
            f"the probe of {self.target.key!r} is of classes: there is no trajectory to draw",
        )
        true = self.target.indicators().values
        decoded = Decoded(self.target.key, self.columns, self.predictions, true)
        return decoded.plot(episode)

    def scores(self) -> pd.DataFrame:
        """Return a table of all scores: one row per metric, per output and per control.

        The columns are target, site, fitted ("probe" or the name of a control), output (its name,
        or "all") and metric (such as "r2"). Then come number, low and high, the score and its 95 %
        interval. The columns detectable and warning are the same in all rows. They are the smallest
        score of the probe that such a sample could tell from 0 (:attr:`ProbeScore.detectable`), and
        :attr:`warning`.

        Rows of controls have four further columns: difference, difference_low and difference_high
        (the probe's score minus the control's, with its interval), and counts. The last is True if
        the verdict "yes" requires the probe to beat this control.
        """
        rows = [self._row("probe", "all", metric, score) for metric, score in self.metrics.items()]
        for output, score in self.by_output.items():
            rows.append(self._row("probe", output, self.metric, score))
        for name, control in self.controls.items():
            row = self._row(name, "all", self.metric, control.score)
            difference = control.difference.columns("difference")
            rows.append({**row, **difference, "counts": control.counts})
        return pd.DataFrame(rows)

    def _row(self, fitted: str, output: str, metric: str, score: Interval) -> dict[str, Any]:
        """Return one score as a row of the table.

        Args:
            fitted: "probe", or the name of a control.
            output: name of an output, or "all".
            metric: name of the metric.
            score: the score.
        """
        return {
            "target": self.target.key,
            "site": self.site,
            "fitted": fitted,
            "output": output,
            "metric": metric,
            "number": score.estimate,
            "low": score.low,
            "high": score.high,
            "detectable": self.score.detectable,
            "warning": self.warning,
        }

    def __str__(self) -> str:
        lines = [repr(self)]
        lines += [f"  {DESCRIPTIONS[name]}: {control}" for name, control in self.controls.items()]
        lines += [f"  not run: {DESCRIPTIONS[name]}" for name in self.missing]
        if self.target.missing is not None:
            lines.append(f"  {describe_counted(self.target.missing)}")
        metric = "R2" if self.metric == "r2" else "accuracy"
        n_groups = len(self.score.losses)
        units = "episodes" if n_groups == len(self.predictions) else "groups of episodes"
        lines.append(
            f"  intervals (95 %): {metric} on new {units} of this probe, refitted on all {n_groups} {units}"
        )
        if self.warning:
            lines.append(f"  warning: {self.warning}")
        return "\n".join(lines)


@dataclass(frozen=True, eq=False)
@checked_result
class Decoded:
    """Values that a probe decoded from activations, and the true values if they are known.

    Attributes:
        target: key of the target.
        outputs: names of the decoded values (the last axis).
        values: decoded values ``[episode, round, output]``.
        true: true values of the same shape; None if unknown.
    """

    target: str
    outputs: tuple[str, ...]
    values: Float[Array, "episode round k"]
    true: Float[Array, "episode round k"] | None = None

    def to_frame(self) -> pd.DataFrame:
        """Return a table with one row per episode, round and output.

        The columns are episode and round (indices from 0), output (its name), decoded and, if the
        true values are known, true.
        """
        n_episodes, n_rounds, _ = self.values.shape
        index = pd.MultiIndex.from_product(
            [range(n_episodes), range(n_rounds), self.outputs], names=["episode", "round", "output"]
        )
        frame = pd.DataFrame({"decoded": self.values.reshape(-1)}, index=index)
        if self.true is not None:
            frame["true"] = self.true.reshape(-1)
        return frame.reset_index()

    @checked
    def plot(self, episode: int = 0) -> Figure:
        """Draw one episode's decoded and true values over rounds, and their difference in a second
        panel.

        Args:
            episode: index of the episode.
        """
        from interp.results import figures  # matplotlib is heavy

        if self.true is None:
            raise InputError("there are no true values to draw against; call decode(run, episodes)")
        require(
            0 <= episode < len(self.values),
            f"episode {episode} is not one of the {len(self.values)}",
        )
        label = self.target.replace("_", " ")
        decoded, true = self.values[episode], self.true[episode]
        return figures.trajectories(decoded, true, self.outputs, ylabel=label)
