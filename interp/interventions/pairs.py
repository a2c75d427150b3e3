"""A clean and a corrupted run, prepared for intervening at one round, and the metrics that patched runs are read by.

A metric gives one number per episode, from predictions or from the state; a higher one is nearer to the clean run, or
the difference that patching papers report. ``Metric.measure`` maps a :class:`Readout` with any leading cell axes to
``[cell, episode]``. Where outputs are probabilities, logits are log P with P clipped to ``[1e-6, 1]``, so that a
difference lies within +-13.8. A prediction of a real number is read by "prediction" and "squared_error" alone.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import get_args

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from interp.core import catalog
from interp.core.algorithm import Episodes, Predicted, counted_rounds, refuse_missing
from interp.core.machine import Machine
from interp.core.task import Corruption
from interp.model.layout import RoundLayout
from interp.model.rollout import require_own, rollout
from interp.model.run import Rollout, select_rounds
from interp.support.checks import checked, fit, unique
from interp.support.errors import InputError, require, require_known


@dataclass(frozen=True)
class Readout:
    """Predictions ``[*cell, episode, round, ...]`` from the intervened round to the one that is read, and the latents
    ``[*cell, episode, latent, d_model]`` after it.
    """

    predictions: Tensor
    latents: Tensor

    def __post_init__(self) -> None:
        """What is measured is measured in single precision at least."""
        for name, held in (("predictions", self.predictions), ("latents", self.latents)):
            object.__setattr__(self, name, held.float() if held.element_size() < 4 else held)


@dataclass(frozen=True)
@checked
class Pair:
    """Clean and corrupted rollouts of one model, row by row, with the round to change and the round to read.

    Attributes:
        clean, corrupted: rollouts without hooks, up to the round that is read.
        clean_episodes: the truth that losses are counted by.
        round: where interventions act.
        read: where predictions, and the latents after it, are read; ``read >= round``.
        counted: how many of the episodes are here, in words; empty where all are.
    """

    model: Machine
    clean: Rollout
    corrupted: Rollout
    clean_episodes: Episodes
    round: int
    read: int
    counted: str = ""

    @property
    def layout(self) -> RoundLayout:
        """The layout of the rounds."""
        return self.clean.layout

    @cached_property
    def clean_readout(self) -> Readout:
        """What the clean run gives where the pair is read."""
        return self.readout(self.clean)

    @cached_property
    def corrupted_readout(self) -> Readout:
        """What the corrupted run gives where the pair is read."""
        return self.readout(self.corrupted)

    def readout(self, run: Rollout) -> Readout:
        """What ``run`` gives from :attr:`round` to :attr:`read`."""
        return Readout(
            run.predictions[:, self.round : self.read + 1], run.latents[:, self.read + 1]
        )

    def losses(self, predictions: Float[Tensor, "*axes"]) -> Float[Tensor, "*batch episode round"]:
        """The task's loss of each prediction from :attr:`round` to :attr:`read`, by the truth of the clean episodes."""
        wanted = self.clean.predictions[:, self.round : self.read + 1].shape
        require(
            predictions.shape[-len(wanted) :] == wanted,
            f"predictions of shape {tuple(predictions.shape)} do not fit; their last axes must be {tuple(wanted)}",
        )
        return catalog.of(self.layout).data.losses(
            predictions, self.clean_episodes, slice(self.round, self.read + 1)
        )


@checked
def corruption(model: Machine, key: str = "") -> Corruption:
    """A corruption of the model's task; the one that the task names as its default when no key is given."""
    task = catalog.of(model)
    require(
        bool(key or task.analysis.default_corruption),
        f"task {task.key!r} has no default corruption; give its record "
        "analysis=Analysis(corruptions=..., default_corruption=...)",
    )
    return task.corruption(key or task.analysis.default_corruption)


@checked
def prepare(
    model: Machine,
    clean: Episodes,
    corrupted: Episodes,
    round: int,
    read: int | None = None,
    commit: str = "own",
) -> Pair:
    """Run both sides of a pair, up to the round that is read: what comes after it changes nothing before it.

    Interventions act at ``round`` and are read at ``read``, or there, too; negative numbers count from the end. Left
    out are episodes of which a round from the one to the other did not take place on either side.
    """
    model.eval()
    sides = clean, corrupted
    shapes = [(len(side), side.n_rounds, model.layout.fit(side).n_positions) for side in sides]
    require(
        shapes[0] == shapes[1],
        f"clean and corrupted must pair up, got [episode, round, position] {shapes[0]} and {shapes[1]}; "
        "build the corrupted episodes from the clean ones, as the task's corruptions do",
    )
    (at,) = select_rounds(round, clean.n_rounds)
    (until,) = select_rounds(at if read is None else read, clean.n_rounds)
    require(until >= at, f"read must not come before round, got round {at} and read {until}")
    has, counted = np.ones(len(clean), bool), ""
    for side in sides:
        has &= counted_rounds(side)[:, at : until + 1].all(1)
    if not has.all():
        counted = f"{has.sum()} of {len(has)} episodes have rounds {at} to {until}"
        require(bool(has.any()), f"{counted}; choose rounds that some episodes have")
        sides = clean.select(has), corrupted.select(has)
    runs = [rollout(model, side, n_rounds=until + 1, commit=commit) for side in sides]
    return Pair(model, runs[0], runs[1], sides[0], at, until, counted)


_MOST_PAIRS, _LEAST_PAIRS = 32, 4
"""Episodes that :func:`warn_if_unrelated` looks at, and the fewest that say anything."""
_UNRELATED = 4.0
"""Standard errors within which rows that pair up differ as much as rows that do not. Of 888 batches of experts and
Q-learning that were drawn apart, the largest distance in any of 20 rounds lies below 4.2 in 99 % from 8 episodes on
(95 % below 5 at 4 episodes); every corruption of the three tasks is beyond 4, or equal in a round, at 4, 8 and 32."""


def warn_if_unrelated(pair: Pair, stacklevel: int = 4) -> None:
    """Warn where the rows of a pair are no more alike, in any round up to the one that is read, than rows that do not
    pair up: a patch then puts another episode's activations in, and is read by the truth of the clean one.
    """
    n = min(pair.clean.n_episodes, _MOST_PAIRS)
    if n < _LEAST_PAIRS:
        return
    sides = [run.fed.each(lambda part: part[:n]) for run in (pair.clean, pair.corrupted)]
    clean, corrupted = (torch.cat([fed.tokens.double(), fed.values.double()], -1) for fed in sides)
    differ = (clean.unsqueeze(1) != corrupted).double().mean(-1)  # [clean, corrupted, round]
    own, others = differ.diagonal().T, differ[~torch.eye(n, dtype=torch.bool)]  # [row, round]
    gap, spread = others.mean(0) - own.mean(0), others.std(0)
    alike = (own == 0).all(0) & (others > 0).any(0)
    if bool((alike | (gap.abs() * n**0.5 > _UNRELATED * spread)).any()):
        return
    warnings.warn(
        f"clean and corrupted are no pair: rows that pair up differ in {float(own.mean()):.0%} of what is fed, those "
        f"that do not in {float(others.mean()):.0%}. A patch then comes from an unrelated episode, and is read by the "
        "truth of the clean one; build the corrupted episodes from the clean ones, as the task's corruptions do",
        UserWarning,
        stacklevel=stacklevel,
    )


def run_of(model: Machine, episodes: Episodes | Rollout, analysis: str) -> Rollout:
    """The model's rollout of episodes, or the one that is given, which must be the model's and know its episodes.

    Episodes with missing rounds are refused: ``analysis`` is what counts all of them.
    """
    refuse_missing(analysis, episodes)
    if not isinstance(episodes, Rollout):
        return rollout(model.eval(), episodes)
    require_own(episodes, model)
    held = episodes.episodes
    fits = held is not None and (len(held), held.n_rounds) == (
        episodes.n_episodes,
        episodes.n_rounds,
    )
    require(fits, "this rollout does not hold its episodes, or was cut; give the episodes")
    return episodes


def paired_runs(
    model: Machine, base: Episodes | Rollout, source: Episodes | Rollout, analysis: str
) -> tuple[Rollout, Rollout]:
    """Rollouts of episodes that pair up row by row, as of :func:`run_of`."""
    runs = run_of(model, base, analysis), run_of(model, source, analysis)
    shapes = [tuple(run.tokens.shape) for run in runs]
    require(
        shapes[0] == shapes[1], f"base and source must pair up, got {shapes[0]} and {shapes[1]}"
    )
    return runs


CLIP = 1e-6
"""Smallest probability whose logarithm is taken."""


@dataclass(frozen=True)
class Metric:
    """How runs of these ``kinds`` of prediction are measured, ``(readout, pair) -> [*cell, episode]``, and by which
    exit.
    """

    key: str
    name: str
    unit: str
    measure: Callable[[Readout, Pair], Tensor]
    needs_update: bool = False
    kinds: tuple[Predicted, ...] = get_args(Predicted)


def _probabilities(readout: Readout, pair: Pair) -> Float[Tensor, "*batch outcome"]:
    """The distribution over outcomes at the round that is read."""
    return pair.layout.distribution(
        readout.predictions.select(-1 - pair.layout.prediction_axes, -1)
    )


def _logs(readout: Readout, pair: Pair) -> Float[Tensor, "*batch outcome"]:
    """Log-probabilities of outcomes at the round that is read, clipped at log 1e-6."""
    return _probabilities(readout, pair).clamp_min(CLIP).log()


def _risen_and_fallen(pair: Pair) -> tuple[Tensor, Tensor]:
    """Per episode, the outcomes whose log-probability rises most and falls most from corrupted to clean."""
    change = _logs(pair.clean_readout, pair) - _logs(pair.corrupted_readout, pair)
    return change.argmax(-1), change.argmin(-1)


def _pick(values: Float[Tensor, "*batch outcome"], outcome: Tensor) -> Tensor:
    return values.gather(-1, outcome.expand(values.shape[:-1]).unsqueeze(-1)).squeeze(-1)


def _logit_diff(readout: Readout, pair: Pair) -> Tensor:
    risen, fallen = _risen_and_fallen(pair)
    logs = _logs(readout, pair)
    return torch.where(
        risen == fallen, torch.zeros((), dtype=logs.dtype), _pick(logs, risen) - _pick(logs, fallen)
    )


def _mean(readout: Readout, pair: Pair) -> Float[Tensor, "*batch"]:
    """The mean of the real number that is predicted at the round that is read."""
    return pair.layout.choose(readout.predictions.select(-1 - pair.layout.prediction_axes, -1))


def _along_state(readout: Readout, pair: Pair) -> Tensor:
    """The state after the read round, along the line from corrupted to clean, in units of the state.

    ``<s - s_corrupted, d>`` with ``d`` the unit vector from the corrupted to the clean state: 0 on the corrupted run
    and the distance of the two states on the clean run. Of a learned model the latents are the state.
    """
    read = pair.model.read_state if pair.model.is_handwired else lambda latents: latents
    state = read(readout.latents).flatten(readout.latents.ndim - 2)
    clean, corrupted = (
        read(run.latents).flatten(1) for run in (pair.clean_readout, pair.corrupted_readout)
    )
    gap = clean - corrupted
    unit = gap / gap.norm(dim=-1, keepdim=True).clamp_min(torch.finfo(gap.dtype).tiny)
    return ((state - corrupted) * unit).sum(-1)


_CLASSES: tuple[Predicted, ...] = ("classes",)
_REAL: tuple[Predicted, ...] = ("mean", "normal")


def _agreement(readout: Readout, pair: Pair) -> Tensor:
    choice, clean = (
        _probabilities(given, pair).argmax(-1) for given in (readout, pair.clean_readout)
    )
    return (choice == clean).to(readout.predictions.dtype)


def _towards_clean(readout: Readout, pair: Pair) -> Tensor:
    corrupted = _mean(pair.corrupted_readout, pair)
    return (_mean(readout, pair) - corrupted) * (_mean(pair.clean_readout, pair) - corrupted).sign()


METRICS: dict[str, Metric] = unique(
    (
        Metric("logit_diff", "logit difference", "nats", _logit_diff, kinds=_CLASSES),
        Metric(
            key="probability",
            name="probability",
            unit="probability",
            measure=lambda readout, pair: _pick(
                _probabilities(readout, pair), _risen_and_fallen(pair)[0]
            ),
            kinds=_CLASSES,
        ),
        Metric(
            "agreement", "choice agrees with clean", "share of episodes", _agreement, kinds=_CLASSES
        ),
        Metric(
            "regret",
            "expected loss",
            "expected mistakes",
            lambda run, pair: pair.losses(run.predictions).sum(-1),
        ),
        Metric("state", "decoded state difference", "state", _along_state, needs_update=True),
        Metric(
            "prediction",
            "prediction, from corrupted to clean",
            "prediction",
            _towards_clean,
            kinds=_REAL,
        ),
        Metric(
            key="squared_error",
            name="squared error from clean",
            unit="prediction squared",
            measure=lambda readout, pair: (
                _mean(readout, pair) - _mean(pair.clean_readout, pair)
            ).square(),
            kinds=_REAL,
        ),
    ),
    "metric",
)


def exits(layout: RoundLayout) -> tuple[str, str]:
    """The metrics that read the two exits of a layout's rounds: what is predicted, and what is remembered.

    What acts on one alone does not show in the other; read through both, methods find far more of the parts that matter
    (``interp benchmark``).
    """
    return "logit_diff" if layout.kind == "classes" else "prediction", "state"


def find_metric(name: str | Metric | None, layout: RoundLayout | None = None) -> Metric:
    """The metric of that key; a :class:`Metric` is returned as it is.

    With a ``layout`` the first of its :func:`exits` when None; a metric that cannot read its predictions is refused.
    """
    if name is None:
        name = "logit_diff" if layout is None else exits(layout)[0]
    if isinstance(name, str):
        require_known("metric", name, METRICS)
    found = METRICS[name] if isinstance(name, str) else fit("metric", name, Metric)
    if layout is not None and layout.kind not in found.kinds:
        fitting = ", ".join(key for key, known in METRICS.items() if layout.kind in known.kinds)
        what = (
            "one of several outcomes"
            if layout.kind == "classes"
            else f"a real number ({layout.kind!r})"
        )
        raise InputError(
            f"metric {found.key!r} cannot read predictions of {layout.task!r}, {what}; take {fitting}"
        )
    return found
