"""What a probe found: its scores with intervals, its controls, its weights, and where they can be used."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
import pandas as pd
from jaxtyping import Float
from numpy import ndarray as Array

import interp.tasks
from interp.algorithm import Episodes
from interp.errors import InputError, require, unknown_name
from interp.model.rollout import Rollout
from probes.activations import read
from probes.checks import as_inputs
from probes.controls import DESCRIPTIONS, Control
from probes.scores import ProbeScore
from probes.targets.target import parse
from probes.targets.values import TargetValues

Method = Literal["ridge", "logistic"]


@dataclass(frozen=True, eq=False)
class ProbeResult:
    """A fitted probe.

    Attributes:
        target: what was decoded.
        method: "ridge" or "logistic".
        score: the headline with its 95 % interval over episodes: R2 (ridge) or accuracy (logistic).
        by_output: the same for each output.
        metrics: everything measured: "r2", "rank_correlation", "mae", or "accuracy", "log_loss".
        controls: by name; see :mod:`probes.controls`.
        predictions: out-of-fold, ``[episode, round, output]``; for a logistic probe the most probable classes.
        weights, intercept: the probe refitted on all episodes, for raw activations ``[episode, round, feature]``.
        columns: a name for each column of ``weights``.
        shape: the shape of one activation.
        site: where the activations were read, when a rollout was given.
        settings: folds, seed, penalties, model and versions: how to make it again.
    """

    target: TargetValues
    method: Method
    score: ProbeScore
    by_output: dict[str, ProbeScore]
    metrics: dict[str, ProbeScore]
    controls: dict[str, Control]
    predictions: Float[Array, "episode round k"]
    weights: Float[Array, "d m"]
    intercept: Float[Array, " m"]
    columns: tuple[str, ...]
    shape: tuple[int, ...]
    site: str | None = None
    settings: dict[str, Any] = field(default_factory=dict)

    @property
    def metric(self) -> str:
        """What the headline score is."""
        return "r2" if self.method == "ridge" else "accuracy"

    @property
    def r2(self) -> float:
        """R2 over all outputs.

        Raises:
            InputError: a logistic probe, which has none.
        """
        return self._r2.estimate

    @property
    def r2_ci(self) -> tuple[float, float]:
        """The 95 % interval of :attr:`r2`, by bootstrap over episodes."""
        return self._r2.interval

    @property
    def _r2(self) -> ProbeScore:
        require(
            "r2" in self.metrics,
            f"the probe of {self.target.key!r} is logistic and has no R2; read .score, its accuracy, or .metrics",
        )
        return self.metrics["r2"]

    @property
    def represented(self) -> bool:
        """The verdict: the probe beats chance and every control that counts, each by an interval above zero.

        It is about the controls that were run; :attr:`missing` names the others.
        """
        beats = all(control.difference.low > 0 for control in self.controls.values() if control.counted)
        return beats and (self.method == "logistic" or self.score.low > 0)

    @property
    def missing(self) -> tuple[str, ...]:
        """Controls that were not run, for want of what they need (an untrained model, the round's inputs)."""
        return tuple(name for name in DESCRIPTIONS if name not in self.controls)

    def direction(self, output: str | None = None) -> Float[Array, ...]:
        """The smallest change of a raw activation that raises an output's decoded value by 1 and leaves the others.

        The steering basis, input scaling undone. Outputs that move together by definition (centred log-weights sum to
        0) change as if the state under them had changed by 1. For a logistic probe the decoded value is the log-odds
        or the class's score. The direction is where the probe *reads*; whether the model reads there is what
        intervening along it tests.

        Args:
            output: a name from :attr:`columns`; needless where there is one.

        Raises:
            InputError: no such output.
        """
        if output is None:
            require(len(self.columns) == 1, f"choose an output: {', '.join(self.columns)}")
            output = self.columns[0]
        if output not in self.columns:
            raise unknown_name(f"output of {self.target.key!r}:", output, self.columns, limit=40)
        basis = np.linalg.pinv(self.weights, rcond=1e-9)
        return basis[self.columns.index(output)].reshape(self.shape)

    def decode(self, run: Rollout | Any, episodes: Episodes | None = None) -> Decoded:
        """The refitted probe's values on a run (or on activations), next to the true ones if episodes are given.

        Raises:
            InputError: activations of another shape, or a run of another model.
        """
        if isinstance(run, Rollout):
            self._check_run(run)
            assert self.site is not None
            activations = read(run, self.site, self.target.when)
        else:
            activations = run
        x = as_inputs(activations)
        require(
            x.shape[-1] == len(self.weights),
            f"this probe reads activations of shape {self.shape}, got {tuple(np.shape(activations)[2:])}; "
            "use a run of the model that it was fitted on",
        )
        true = None
        if episodes is not None:
            target, moment = parse(self.target.key, interp.tasks.of(episodes))
            if self.method == "ridge":
                true = target(episodes, moment, **self.target.parameters).indicators().values
        return Decoded(self.target.key, self.columns, x @ self.weights + self.intercept, true)

    def plot(self, episode: int = 0) -> Any:
        """:meth:`Decoded.plot` of the out-of-fold predictions, each by a probe that never saw its episode.

        Raises:
            InputError: a logistic probe, or no such episode.
        """
        require(self.method == "ridge", f"the probe of {self.target.key!r} is logistic: there is no trajectory to draw")
        true = self.target.indicators().values
        return Decoded(self.target.key, self.columns, self.predictions, true).plot(episode)

    def _check_run(self, run: Rollout) -> None:
        require(
            self.site is not None,
            "this probe was fitted on an array, so it cannot know where to read a run; give it activations, or fit it "
            "with probes.fit(run, target, site=...)",
        )
        fitted, given = self.settings.get("digest"), run.settings.get("digest")
        require(
            fitted == given,
            f"this probe was fitted on model {self.settings.get('model')!r} ({str(fitted)[:12]}), the run is of "
            f"{run.settings.get('model')!r} ({str(given)[:12]}); fit it on that model",
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

    def _row(self, fitted: str, output: str, metric: str, score: ProbeScore) -> dict[str, Any]:
        return {
            "target": self.target.key,
            "site": self.site,
            "fitted": fitted,
            "output": output,
            "metric": metric,
            "estimate": score.estimate,
            "low": score.low,
            "high": score.high,
            "represented": self.represented,
        }

    def __str__(self) -> str:
        verdict = "represented" if self.represented else "not represented"
        where = f" at {self.site}" if self.site else ""
        lines = [f"{self.target.key}{where}: {self.metric} {self.score}: {verdict}"]
        lines += [f"  {DESCRIPTIONS[name]}: {control}" for name, control in self.controls.items()]
        lines += [f"  not run: {DESCRIPTIONS[name]}" for name in self.missing]
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
        index = pd.MultiIndex.from_product(
            [range(n_episodes), range(n_rounds), self.outputs], names=["episode", "round", "output"]
        )
        columns = {"decoded": self.values.reshape(-1)}
        if self.true is not None:
            columns["true"] = self.true.reshape(-1)
        return pd.DataFrame(columns, index=index).reset_index()

    def plot(self, episode: int = 0) -> Any:
        """A matplotlib figure: decoded against true trajectories of one episode, and decoded against true values.

        Raises:
            InputError: no true values, or no such episode.
        """
        from probes.figures import decoded_figure

        if self.true is None:
            raise InputError("there are no true values to draw against; call decode(run, episodes)")
        require(0 <= episode < len(self.values), f"episode {episode} is not one of the {len(self.values)}")
        return decoded_figure(self.true, self.values, self.target, self.outputs, episode)
