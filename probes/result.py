"""What a probe found: one measure of whether the target can be read, its scores and controls, and the fitted probe."""

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
from interp.core.algorithm import Episodes, counted_of
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
"""The smallest effect of interest, the threshold of every probe: a tenth of what the best constant leaves."""

_SITES = {
    None: ("the activations", ""),
    "latents": ("the latents", ""),
    "written": ("the written latent", " from the latent that it writes"),
    "change": ("the change of the latent", " from the change of its latent"),
    "update": ("the update", " from its update"),
}
"""What a probe reads from, in its claim, and in a phrase whose subject is the model."""

_NO_COPY = "no untrained model; give untrained= or a rollout without hooks (from a file: with model= and episodes=)"


def measure_of(
    target: TargetValues,
    site: str | None,
    score: ProbeScore,
    controls: Mapping[str, ControlScore],
    *,
    untrained: str = "",
    hidden: str = "",
    n_features: int = 0,
    probe: str = "linear probe",
) -> Measure:
    """Return the measure of a probe: it reads the target from its site.

    Args:
        target: what is read.
        site: where; None where activations were passed as an array.
        score: of the probe.
        controls: their scores, by key.
        untrained: why no untrained copy was run, where none was.
        hidden: why most features were not read, where they were not.
        n_features: how many features the probe reads, where its score leans low.
        probe: what it is called.
    """
    name = target.noun
    if ":" in target.key:
        name += " before the round"
    source, place = _describe_site(site)
    skill = score.skill
    part = "part of " if skill.estimate < 0.5 else ""  # less than half of it can be read
    numbers = {}
    for key, control in controls.items():
        estimate = control.score.skill.estimate
        numbers[DESCRIPTIONS[key]] = Control(estimate, control.counts)
    notes = [counted_of(target.missing)]
    if score.kind != "skill":
        notes.insert(0, f"accuracy {score}")
    unit = "R2" if score.kind == "skill" else "skill"
    unless = _doubt_yes(target, controls, untrained) | _doubt_no(score, hidden, n_features)
    return Measure(
        key=target.key,
        claim=f"A {probe} reads {name} from {source}",
        number=skill,
        threshold=_SMALLEST_EFFECT,
        unit=unit,
        controls=numbers,
        yes=f"lets a {probe} read {part}{name}{place}",
        no=f"lets no {probe} read {name}{place}",
        unless=unless,
        caution="what can be read need not be used",
        note="; ".join(filter(None, notes)),
    )


def _describe_site(site: str | None) -> tuple[str, str]:
    """Return what a probe reads from, and the end of a phrase about the model."""
    if site in _SITES:
        return _SITES[site]
    assert site is not None
    if site.startswith("latents@"):
        channel = site.removeprefix("latents@")
        return f"the channel {channel}", f" from its {channel}"
    return f"the activations at {site}", f" at {site}"


def _doubt_yes(
    target: TargetValues, controls: Mapping[str, ControlScore], untrained: str
) -> dict[Verdict, str]:
    """Return a reason against a "yes" where a control that counts was not run.

    Args:
        target: what is decoded.
        controls: by key.
        untrained: why no untrained copy was run.
    """
    if "untrained" not in controls:
        return {"yes": f"{NOT_RUN}: {untrained or _NO_COPY}"}
    if "inputs" not in controls and "inputs" not in target.implied_by:
        return {"yes": f"{NOT_RUN}: no probe of the round's inputs; give episodes= or inputs="}
    return {}


def _doubt_no(score: ProbeScore, hidden: str, n_features: int) -> dict[Verdict, str]:
    """Return a reason against a "no" where too little was read, or of too few episodes.

    Args:
        score: of the probe.
        hidden: why most features were not read; "" if they were.
        n_features: of the probe, where its score leans low; 0 elsewhere.
    """
    if hidden:
        return {"no": f"{NOTHING}: {hidden}"}
    if n_features:
        why = f"about {2 * n_features} would do, two for each feature"
        return {"no": f"{FEW}: the target is constant in each; {why}"}
    if score.detectable > _SMALLEST_EFFECT:
        share = score.detectable / _SMALLEST_EFFECT
        n_enough = ceil(len(score.losses) * share**2)
        return {"no": f"{FEW}: about {n_enough} would do"}
    return {}


@dataclass(frozen=True, eq=False, repr=False)
class ProbeResult(Measured):
    """A fitted probe, which is one measure: that the target can be read at the site.

    Attributes:
        method: "ridge", "logistic", or the name of a scikit-learn estimator.
        score: the headline, R2 (of numbers) or accuracy (of classes), with its 95 % interval, on
            new episodes (or groups of them) of this probe, refitted on all.
        metrics, controls: everything measured: "r2" and "mae", or "accuracy" and "log_loss"; by
            name.
        predictions: out-of-fold, ``[episode, round, output]``; for a logistic probe the most
            probable classes.
        weights, intercept, columns: the probe refitted on all episodes, for raw activations
            ``[episode, round, feature]``, with a name for each column; no columns for
            ``estimators`` of scikit-learn, one per output.
        shape: of one activation.
        site, place: where the activations of a rollout were read: its name, and how it is found in
            a run.
        settings: folds, seed, penalties, model and versions: how to make it again.
        warning: what weakens the intervals or the word; None otherwise.
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
        """The one measure."""
        return (self.measure,)

    @property
    def model(self) -> str:  # type: ignore[override]
        """The name of the model, where it is known."""
        return str(self.settings.get("model", "The model"))

    # Whether the probe reads the target, why that is undecided, and R2, or the skill of a probe of classes.
    verdict = property(attrgetter("measure.verdict"))
    reason = property(attrgetter("measure.reason"))
    number = property(attrgetter("measure.number"))

    @property
    def sentence(self) -> str:
        """Whether the probe reads the target, with its number and the strongest control."""
        measure = self.measure
        subject, _, rest = measure.claim.partition(" reads ")
        model = f" of {self.settings['model']}" if "model" in self.settings else ""
        number = f"{measure.unit} {measure.number.estimate:.3g}"
        strongest = measure.strongest
        if strongest:
            of_control = measure.controls[strongest].number
            number += f"; {strongest} {of_control:.3g}"
        read = f"{rest}{model} ({number})"
        if measure.verdict == "yes":
            return f"{subject} reads {read}."
        if measure.verdict == "no":
            return f"{subject} does not read {read}."
        return f"It is {measure.verdict} whether a{subject[1:]} reads {read}: {measure.reason}."

    @property
    def metric(self) -> str:
        """What the headline score is."""
        return "r2" if "r2" in self.metrics else "accuracy"

    @property
    def r2(self) -> float:
        """R2 over all outputs; a probe of classes has none."""
        require(
            "r2" in self.metrics,
            f"the probe of {self.target.key!r} is {self.method} and has no R2; read .score, its accuracy, or .metrics",
        )
        return self.metrics["r2"].estimate

    @property
    def missing(self) -> tuple[str, ...]:
        """Controls that were not run, for want of what they need (an untrained model, the round's inputs)."""
        return tuple(name for name in DESCRIPTIONS if name not in self.controls)

    @checked
    def direction(self, output: str | None = None) -> Float[Array, "*any"]:
        """Return the smallest change of a raw activation that raises one decoded value by 1 and
        leaves the rest.

        It is where the probe *reads* (how it is made: docs/method/probes.md); a scikit-learn
        estimator has none. ``output`` is a name from :attr:`columns`; needless where there is one.
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
        directions = np.linalg.pinv(self.weights, rcond=1e-9)
        return directions[self.columns.index(output)].reshape(self.shape)

    def decode(self, run: Rollout | Any, episodes: Episodes | None = None) -> Decoded:
        """Decode a run of the probe's model, or activations, by the probe fitted on all episodes.

        Args:
            run: a rollout, or activations.
            episodes: give the true values; None leaves these out.
        """
        activations = self._read(run) if isinstance(run, Rollout) else run
        x = as_inputs(activations)
        shape = as_array(activations, "activations").shape[2:]
        require(
            x.shape[-1] == len(self.weights),
            f"this probe reads activations of shape {self.shape}, got {shape}; "
            "use a run of the model that it was fitted on",
        )
        true = None
        if episodes is not None:
            target, moment = parse(self.target.key, interp.tasks.of(episodes))
            if self.metric == "r2":
                computed = target(episodes, moment, **self.target.parameters)
                true = computed.indicators().values
        values = x @ self.weights + self.intercept
        if self.estimators:
            values = predict(self.estimators, x)
        return Decoded(self.target.key, self.columns, values, true)

    def _read(self, run: Rollout) -> Any:
        """Read the activations of a run where the probe reads; refuse a run of another model."""
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
        """Draw the out-of-fold predictions, each by a probe that never saw its episode (:meth:`Decoded.plot`)."""
        require(
            self.metric == "r2",
            f"the probe of {self.target.key!r} is of classes: there is no trajectory to draw",
        )
        true = self.target.indicators().values
        decoded = Decoded(self.target.key, self.columns, self.predictions, true)
        return decoded.plot(episode)

    def scores(self) -> pd.DataFrame:
        """List every number: a row per metric, per output and per control, with intervals and paired differences.

        ``detectable`` is the smallest score (skill, of classes) whose interval would have excluded 0 in this sample.
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
        """Return a number as a row of the table.

        Args:
            fitted: the probe or a control.
            output: of the target, or "all".
            metric: what the number is.
            score: the number.
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
            lines.append(f"  {counted_of(self.target.missing)}")
        metric = "R2" if self.metric == "r2" else "accuracy"
        n = len(self.score.losses)
        units = "episodes" if n == len(self.predictions) else "groups of episodes"
        lines.append(
            f"  intervals (95 %): {metric} on new {units} of this probe, refitted on all {n} {units}"
        )
        if self.warning:
            lines.append(f"  warning: {self.warning}")
        return "\n".join(lines)


@dataclass(frozen=True, eq=False)
@checked_result
class Decoded:
    """Decoded values of a run, ``[episode, round, output]``, with the true ones where they are known."""

    target: str
    outputs: tuple[str, ...]
    values: Float[Array, "episode round k"]
    true: Float[Array, "episode round k"] | None = None

    def to_frame(self) -> pd.DataFrame:
        """Return one row per episode, round and output."""
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
        """Draw what is decoded in one episode on what is true, and the difference beside it."""
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
