"""What a probe found: its scores with intervals, its controls, its weights, and where they can be used."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from math import isnan
from typing import Any

import numpy as np
import pandas as pd
from jaxtyping import Float
from numpy import ndarray as Array

import interp.tasks
from interp.algorithm import Episodes
from interp.checks import checked
from interp.display import Tabled, drawn
from interp.errors import InputError, require, unknown_name
from interp.model.run import Rollout
from interp.statistics import Interval
from probes.activations import Place, read
from probes.controls import DESCRIPTIONS, Control, Data, VerdictWord, detectable_of, lacks_inputs, verdict_of
from probes.scores import ProbeScore
from probes.targets import parse
from probes.values import TargetValues, as_array, as_inputs

_MAX_LINES, _MAX_POINTS = 8, 4000


@dataclass(frozen=True, eq=False)
class ProbeResult(Tabled):
    """A fitted probe.

    Attributes:
        method: "ridge", "logistic", or the name of a scikit-learn estimator.
        score: the headline, R2 (of numbers) or accuracy (of classes), with its 95 % interval; see :attr:`estimand`.
        metrics: everything measured: "r2", "rank_correlation" (without an interval), "mae", or "accuracy", "log_loss".
        controls: by name; see :mod:`probes.controls`.
        predictions: out-of-fold, ``[episode, round, output]``; for a logistic probe the most probable classes.
        weights, intercept, columns: the probe refitted on all episodes, for raw activations ``[episode, round,
            feature]``, with a name for each column; no columns for a scikit-learn estimator.
        shape: of one activation.
        site, place: where the activations were read, when a rollout was given: its name, and how it is found in a run.
        settings: folds, seed, penalties, model and versions: how to make it again.
        warning: what weakens the intervals (few episodes, a score that leans low) or the verdict (no untrained
            control); None otherwise.
        leans_low: whether there are too few episodes for the features and the target (:func:`interp.refit.leans_low`).
        estimators: those of scikit-learn, refitted on all episodes, one per output.
    """

    target: TargetValues
    method: str
    score: ProbeScore
    by_output: dict[str, ProbeScore]
    metrics: Mapping[str, Interval]
    controls: dict[str, Control]
    predictions: Float[Array, "episode round k"]
    weights: Float[Array, "d m"]
    intercept: Float[Array, " m"]
    columns: tuple[str, ...]
    shape: tuple[int, ...] = ()
    site: str | None = None
    settings: dict[str, Any] = field(default_factory=dict)
    warning: str | None = None
    estimators: tuple[Any, ...] = field(default=(), repr=False)
    place: Place | None = field(default=None, repr=False)
    leans_low: bool = False

    def __repr__(self) -> str:
        where = f" at {self.site}" if self.site else ""
        return f"ProbeResult({self.target.key}{where}: {self.metric} {self.score}, {self.verdict})"

    @property
    def metric(self) -> str:
        """What the headline score is."""
        return "r2" if "r2" in self.metrics else "accuracy"

    @property
    def estimand(self) -> str:
        """What the headline and its interval are about."""
        name, n = "R2" if self.metric == "r2" else "accuracy", len(self.score.losses)
        what = "episodes" if n == len(self.predictions) else "groups of episodes"
        return f"{name} on new {what} of this probe, refitted on all {n} {what}"

    @property
    def r2(self) -> float:
        """R2 over all outputs; a probe of classes has none."""
        return self._r2.estimate

    @property
    def r2_ci(self) -> tuple[float, float]:
        """The 95 % interval of :attr:`r2`, over episodes and fits (:mod:`interp.refit`)."""
        return self._r2.low, self._r2.high

    @property
    def _r2(self) -> Interval:
        require(
            "r2" in self.metrics,
            f"the probe of {self.target.key!r} is {self.method} and has no R2; read .score, its accuracy, or .metrics",
        )
        return self.metrics["r2"]

    @property
    def verdict(self) -> VerdictWord:
        """Represented, not represented, undecided or uninformative; :mod:`probes.controls` says when.

        It is about the controls that were run; :attr:`missing` names the others. Without the inputs control nothing is
        represented.
        """
        limited = lacks_inputs(self.target, self.controls)
        return verdict_of(self.score, self.controls, limited=limited, leans_low=self.leans_low)

    @property
    def detectable(self) -> float:
        """The smallest difference from its controls that this sample would have shown (:mod:`probes.controls`)."""
        return detectable_of(self.score, self.controls)

    @property
    def represented(self) -> bool:
        """Whether that is the verdict."""
        return self.verdict == "represented"

    @property
    def missing(self) -> tuple[str, ...]:
        """Controls that were not run, for want of what they need (an untrained model, the round's inputs)."""
        return tuple(name for name in DESCRIPTIONS if name not in self.controls)

    @checked
    def direction(self, output: str | None = None) -> Float[Array, ...]:
        """The smallest change of a raw activation that raises an output's decoded value by 1 and leaves the others.

        The steering basis, input scaling undone. Outputs that move together by definition (centred log-weights sum to
        0) change as if the state under them had changed by 1. For a logistic probe the decoded value is the log-odds
        or the class's score. The direction is where the probe *reads*; whether the model reads there is what
        intervening along it tests. A scikit-learn estimator, which need not be linear, has none.

        Args:
            output: a name from :attr:`columns`; needless where there is one.
        """
        require(not self.estimators, f"a probe by {self.method} has no direction; fit it by 'ridge' or 'logistic'")
        if output is None:
            require(len(self.columns) == 1, f"choose an output: {', '.join(self.columns)}")
            output = self.columns[0]
        if output not in self.columns:
            raise unknown_name(f"output of {self.target.key!r}:", output, self.columns, limit=40)
        basis = np.linalg.pinv(self.weights, rcond=1e-9)
        return basis[self.columns.index(output)].reshape(self.shape)

    def decode(self, run: Rollout | Any, episodes: Episodes | None = None) -> Decoded:
        """The refitted probe's values on a run of its model (or on activations), and the true ones of ``episodes``."""
        if isinstance(run, Rollout):
            self._check_run(run)
            assert self.site is not None
            activations = read(run, self.place or self.site, self.target.when)
        else:
            activations = run
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
                true = target(episodes, moment, **self.target.parameters).indicators().values
        values = predict(self.estimators, x) if self.estimators else x @ self.weights + self.intercept
        return Decoded(self.target.key, self.columns, values, true)

    @checked
    def plot(self, episode: int = 0) -> Any:
        """:meth:`Decoded.plot` of the out-of-fold predictions, each by a probe that never saw its episode."""
        require(self.metric == "r2", f"the probe of {self.target.key!r} is of classes: there is no trajectory to draw")
        true = self.target.indicators().values
        return Decoded(self.target.key, self.columns, self.predictions, true).plot(episode)

    def _check_run(self, run: Rollout) -> None:
        remedy = "give it activations, or fit it with probes.fit(run, target, site=...)"
        where = "this probe was fitted on an array, so it cannot know where to read a run"
        require(self.site is not None, f"{where}; {remedy}")
        fitted, ran = self.settings, run.settings
        require(
            fitted.get("digest") == ran.get("digest"),
            f"this probe was fitted on model {fitted.get('model')!r} ({str(fitted.get('digest'))[:12]}), the run is of "
            f"{ran.get('model')!r} ({str(ran.get('digest'))[:12]}); fit it on that model",
        )

    def to_frame(self) -> pd.DataFrame:
        """Tidy: one row per metric, per output and per control, with intervals and, for controls, differences."""
        rows = [self._row("probe", "all", name, score) for name, score in self.metrics.items()]
        rows += [self._row("probe", name, self.metric, score) for name, score in self.by_output.items()]
        for control in self.controls.values():
            difference = control.difference
            row = self._row(control.name, "all", self.metric, control.score)
            row |= {"difference": difference.estimate, "difference_low": difference.low}
            rows.append(row | {"difference_high": difference.high, "counted": control.counted})
        return pd.DataFrame(rows)

    def to_json(self) -> dict[str, Any]:
        """The settings with the verdict, the score and its controls, what it is about and what weakens it."""
        detectable = None if isnan(self.detectable) else self.detectable
        about = {"verdict": self.verdict, "detectable": detectable, "estimand": self.estimand, "warning": self.warning}
        controls = {name: _bounds(control.score) for name, control in self.controls.items()}
        return {**self.settings, "metric": self.metric, **_bounds(self.score), "controls": controls, **about}

    def _row(self, fitted: str, output: str, metric: str, score: Interval) -> dict[str, Any]:
        what = {"target": self.target.key, "site": self.site, "fitted": fitted, "output": output, "metric": metric}
        bounds = {"estimate": score.estimate, "low": score.low, "high": score.high}
        said = {name: getattr(self, name) for name in ("verdict", "detectable", "represented", "warning")}
        return {**what, **bounds, **said}

    def __str__(self) -> str:
        where = f" at {self.site}" if self.site else ""
        lines = [f"{self.target.key}{where}: {self.metric} {self.score}: {self.verdict}"]
        lines += [f"  {DESCRIPTIONS[name]}: {control}" for name, control in self.controls.items()]
        lines += [f"  not run: {DESCRIPTIONS[name]}" for name in self.missing]
        if lacks_inputs(self.target, self.controls):
            lines.append("  the inputs control is missing: undecided at most; give probes.fit episodes= or inputs=")
        lines.append(f"  smallest difference that this sample would have shown: {self.detectable:.3f}")
        lines.append(f"  intervals (95 %): {self.estimand}")
        lines += [f"  warning: {self.warning}"] if self.warning else []
        return "\n".join(lines)


@dataclass(frozen=True, eq=False)
class Decoded:
    """Decoded values of a run, ``[episode, round, output]``, with the true ones where they are known."""

    target: str
    outputs: tuple[str, ...]
    values: Float[Array, "episode round k"]
    true: Float[Array, "episode round k"] | None = None

    def to_frame(self) -> pd.DataFrame:
        """One row per episode, round and output."""
        n_episodes, n_rounds, _ = self.values.shape
        axes: dict[str, Any] = {"episode": range(n_episodes), "round": range(n_rounds), "output": self.outputs}
        index = pd.MultiIndex.from_product(list(axes.values()), names=list(axes))
        columns = {"decoded": self.values.reshape(-1)}
        if self.true is not None:
            columns["true"] = self.true.reshape(-1)
        return pd.DataFrame(columns, index=index).reset_index()

    @checked
    def plot(self, episode: int = 0) -> Any:
        """A matplotlib figure: decoded against true trajectories of one episode, and decoded against true values.

        The first eight outputs are drawn; of many points a regular subset.
        """
        from matplotlib.figure import Figure

        if self.true is None:
            raise InputError("there are no true values to draw against; call decode(run, episodes)")
        require(0 <= episode < len(self.values), f"episode {episode} is not one of the {len(self.values)}")
        figure = Figure(figsize=(9, 3.4), layout="constrained")
        left, right = figure.subplots(1, 2, width_ratios=(2, 1))
        rounds = np.arange(self.values.shape[1]) + 1
        for k, name in enumerate(self.outputs[:_MAX_LINES]):
            (line,) = left.plot(rounds, self.true[episode, :, k], label=name, linewidth=1.5)
            left.plot(rounds, self.values[episode, :, k], "--", color=line.get_color(), linewidth=1.5)
        left.set(xlabel="round", ylabel=self.target, title=f"episode {episode}: true (solid), decoded (dashed)")
        left.legend(fontsize="small", frameon=False, ncols=2)
        step = max(1, self.true.size // _MAX_POINTS)
        right.scatter(self.true.reshape(-1)[::step], self.values.reshape(-1)[::step], s=4, alpha=0.3, linewidths=0)
        ends = [min(self.true.min(), self.values.min()), max(self.true.max(), self.values.max())]
        right.plot(ends, ends, color="black", linewidth=1)
        right.set(xlabel="true", ylabel="decoded", title="all episodes and rounds")
        return drawn(figure)


def _bounds(score: Interval) -> dict[str, float]:
    return {"value": score.estimate, "low": score.low, "high": score.high}


@dataclass(frozen=True, eq=False)
class Kind:
    """A kind of probe: ``method`` calls it by its name, and ``check`` refuses a target that it cannot fit.

    One that is not ``of_classes`` decodes numbers, and classes as indicators.
    """

    name: str
    of_classes: bool
    fit: Callable[[Data, Sequence[TargetValues]], list[ProbeResult]]
    check: Callable[[TargetValues], None] = lambda target: None


def predict(fitted: tuple[Any, ...], x: Float[Array, "episode round d"]) -> Float[Array, "episode round k"]:
    """What fitted estimators of scikit-learn, one per output, predict."""
    rows = x.reshape(-1, x.shape[-1])
    columns = [np.full(len(rows), e) if isinstance(e, float) else np.asarray(e.predict(rows)).ravel() for e in fitted]
    return np.stack(columns, axis=-1).astype(np.float64).reshape(*x.shape[:2], -1)
