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
from interp.support.checks import checked, checked_fields, checked_result, fit, unique
from interp.support.errors import InputError, require, require_known


@dataclass(frozen=True)
@checked_result
class Readout:
    """What a metric reads.

    Attributes:
        predictions: ``[*cell, episode, round, ...]``, from the intervened round to the one that is read.
        latents: ``[*cell, episode, latent, d_model]``, after the round that is read.
    """

    predictions: Tensor
    latents: Tensor

    def __post_init__(self) -> None:
        """Raise the precision to single where it is lower."""
        for name, values in (("predictions", self.predictions), ("latents", self.latents)):
            if values.element_size() < 4:
                object.__setattr__(self, name, values.float())


@dataclass(frozen=True)
@checked_result
@checked
class Pair:
    """Clean and corrupted rollouts of one model, row by row, with the round to change and the round to read.

    Attributes:
        clean, corrupted: rollouts without hooks, up to the round that is read.
        clean_episodes: the truth that losses are counted by.
        round: where interventions act.
        read_round: where predictions, and the latents after it, are read; not before ``round``.
        counted: how many of the episodes are here, in words; empty where all are.
    """

    model: Machine
    clean: Rollout
    corrupted: Rollout
    clean_episodes: Episodes
    round: int
    read_round: int
    counted: str = ""

    @property
    def layout(self) -> RoundLayout:
        """Layout of the rounds."""
        return self.clean.layout

    @cached_property
    def clean_readout(self) -> Readout:
        """What the clean run gives where the pair is read."""
        return self.readout(self.clean)

    @cached_property
    def corrupted_readout(self) -> Readout:
        """What the corrupted run gives where the pair is read."""
        return self.readout(self.corrupted)

    @property
    def _span(self) -> slice:
        """The rounds from :attr:`round` to :attr:`read_round`."""
        return slice(self.round, self.read_round + 1)

    def readout(self, run: Rollout) -> Readout:
        """Return what ``run`` gives from :attr:`round` to :attr:`read_round`."""
        predictions = run.predictions[:, self._span]
        return Readout(predictions, run.latents[:, self.read_round + 1])

    def losses(self, predictions: Float[Tensor, "*axes"]) -> Float[Tensor, "*batch episode round"]:
        """Return the task's loss of predictions from :attr:`round` to :attr:`read_round`, by the clean episodes."""
        wanted = tuple(self.clean.predictions[:, self._span].shape)
        shape = tuple(predictions.shape)
        require(
            shape[-len(wanted) :] == wanted,
            f"predictions of shape {shape} do not fit; their last axes must be {wanted}",
        )
        data = catalog.of(self.layout).data
        return data.losses(predictions, self.clean_episodes, self._span)


@checked
def corruption(model: Machine, key: str = "") -> Corruption:
    """Return a corruption of the model's task; the task's default when ``key`` is empty."""
    task = catalog.of(model)
    key = key or task.analysis.default_corruption
    require(
        bool(key),
        f"task {task.key!r} has no default corruption; give its record "
        "analysis=Analysis(corruptions=..., default_corruption=...)",
    )
    return task.corruption(key)


@checked
def prepare(
    model: Machine,
    clean: Episodes,
    corrupted: Episodes,
    round: int,
    read_round: int | None = None,
    commit: str = "own",
) -> Pair:
    """Run both sides of a pair, up to the round that is read: later rounds have no effect on it.

    Args:
        model: the model.
        clean, corrupted: episodes that pair up.
        round: where interventions act; negative numbers count from the end.
        read_round: where they are read; ``round`` when None.
        commit: as in :func:`interp.rollout`.

    Returns:
        The pair, without episodes in which a round between the two is missing on either side.
    """
    model.eval()
    sides = clean, corrupted
    shapes = [(len(side), side.n_rounds, model.layout.fit(side).n_positions) for side in sides]
    require(
        shapes[0] == shapes[1],
        f"clean and corrupted must pair up, got [episode, round, position] {shapes[0]} and {shapes[1]}; "
        "build the corrupted episodes from the clean ones, as the task's corruptions do",
    )
    (first,) = select_rounds(round, clean.n_rounds)
    last = first
    if read_round is not None:
        (last,) = select_rounds(read_round, clean.n_rounds)
    require(
        last >= first,
        f"read_round must not come before round, got round {first} and read_round {last}",
    )
    has_rounds = np.ones(len(clean), bool)
    for side in sides:
        has_rounds &= counted_rounds(side)[:, first : last + 1].all(1)
    counted = ""
    if not has_rounds.all():
        counted = f"{has_rounds.sum()} of {len(has_rounds)} episodes have rounds {first} to {last}"
        require(bool(has_rounds.any()), f"{counted}; choose rounds that some episodes have")
        sides = clean.select(has_rounds), corrupted.select(has_rounds)
    runs = [rollout(model, side, n_rounds=last + 1, commit=commit) for side in sides]
    return Pair(
        model=model,
        clean=runs[0],
        corrupted=runs[1],
        clean_episodes=sides[0],
        round=first,
        read_round=last,
        counted=counted,
    )


_MOST_PAIRS = 32
"""Episodes that :func:`warn_if_unrelated` looks at."""
_LEAST_PAIRS = 4
"""The fewest episodes that say anything."""
_UNRELATED = 4.0
"""Standard errors within which rows that pair up differ as much as rows that do not. Of 888 batches of experts and
Q-learning that were drawn apart, the largest distance in any of 20 rounds lies below 4.2 in 99 % from 8 episodes on
(95 % below 5 at 4 episodes); every corruption of the three tasks is beyond 4, or equal in a round, at 4, 8 and 32."""


def warn_if_unrelated(pair: Pair, stacklevel: int = 4) -> None:
    """Warn where paired rows are as different, in any round up to the one that is read, as rows of
    different episodes.

    A patch then puts another episode's activations in, and is read by the truth of the clean one.
    """
    n = min(pair.clean.n_episodes, _MOST_PAIRS)
    if n < _LEAST_PAIRS:
        return
    clean, corrupted = _list_fed(pair.clean, n), _list_fed(pair.corrupted, n)
    differ = (clean.unsqueeze(1) != corrupted).double().mean(-1)  # [clean, corrupted, round]
    is_other = ~torch.eye(n, dtype=torch.bool)
    paired = differ.diagonal().T  # [row, round]
    others = differ[is_other]
    gap = others.mean(0) - paired.mean(0)
    is_equal = (paired == 0).all(0) & (others > 0).any(0)
    is_closer = gap.abs() * n**0.5 > _UNRELATED * others.std(0)
    if bool((is_equal | is_closer).any()):
        return
    paired_share, other_share = float(paired.mean()), float(others.mean())
    warnings.warn(
        f"clean and corrupted are no pair: rows that pair up differ in {paired_share:.0%} of what is fed, "
        f"those that do not in {other_share:.0%}. A patch then comes from an unrelated episode, and is "
        "read by the truth of the clean one; build the corrupted episodes from the clean ones, as the task's "
        "corruptions do",
        UserWarning,
        stacklevel=stacklevel,
    )


def _list_fed(run: Rollout, n: int) -> Float[Tensor, "row round number"]:
    """Return all that the first rows of a run are fed, as numbers."""
    fed = run.fed.each(lambda part: part[:n])
    numbers = [fed.tokens.double(), fed.values.double()]
    return torch.cat(numbers, -1)


def run_of(model: Machine, episodes: Episodes | Rollout, analysis: str) -> Rollout:
    """Return the model's rollout of episodes, or ``episodes`` if it is a rollout of this model that
    has its episodes.

    Args:
        model: the model.
        episodes: episodes, or a rollout.
        analysis: the analysis in words, for errors; episodes with missing rounds are refused.
    """
    refuse_missing(analysis, episodes)
    if not isinstance(episodes, Rollout):
        return rollout(model.eval(), episodes)
    run, played = episodes, episodes.episodes
    require_own(run, model)
    is_whole = played is not None and len(played) == run.n_episodes
    require(
        played is not None and is_whole and played.n_rounds == run.n_rounds,
        "this rollout does not hold its episodes, or was cut; give the episodes",
    )
    return run


def paired_runs(
    model: Machine, base: Episodes | Rollout, source: Episodes | Rollout, analysis: str
) -> tuple[Rollout, Rollout]:
    """Return rollouts of episodes that pair up row by row, as of :func:`run_of`.

    Args:
        analysis: what counts all rounds, in words.
    """
    base_run = run_of(model, base, analysis)
    source_run = run_of(model, source, analysis)
    shape, source_shape = tuple(base_run.tokens.shape), tuple(source_run.tokens.shape)
    require(shape == source_shape, f"base and source must pair up, got {shape} and {source_shape}")
    return base_run, source_run


CLIP = 1e-6
"""Smallest probability whose logarithm is taken."""


@dataclass(frozen=True)
@checked_fields
class Metric:
    """How patched runs are measured.

    Attributes:
        measure: ``(readout, pair) -> [*cell, episode]``.
        needs_update: whether it reads the state that a round leaves, not only its prediction.
        kinds: the kinds of prediction that it reads.
    """

    key: str
    name: str
    unit: str
    measure: Callable[[Readout, Pair], Tensor]
    needs_update: bool = False
    kinds: tuple[Predicted, ...] = get_args(Predicted)


def _last_prediction(readout: Readout, pair: Pair) -> Tensor:
    """Return the prediction of the round that is read."""
    round_axis = -1 - pair.layout.prediction_axes
    return readout.predictions.select(round_axis, -1)


def _probabilities(readout: Readout, pair: Pair) -> Float[Tensor, "*batch outcome"]:
    """Return the distribution over outcomes at the round that is read."""
    return pair.layout.distribution(_last_prediction(readout, pair))


def _logs(readout: Readout, pair: Pair) -> Float[Tensor, "*batch outcome"]:
    """Return log-probabilities of outcomes at the round that is read, clipped at log 1e-6."""
    return _probabilities(readout, pair).clamp_min(CLIP).log()


def _risen_and_fallen(pair: Pair) -> tuple[Tensor, Tensor]:
    """Return per episode the outcomes with the largest rise and the largest fall of log-probability
    from corrupted to clean.
    """
    change = _logs(pair.clean_readout, pair) - _logs(pair.corrupted_readout, pair)
    return change.argmax(-1), change.argmin(-1)


def _pick(values: Float[Tensor, "*batch outcome"], outcome: Tensor) -> Tensor:
    """Return the values of one outcome an episode."""
    index = outcome.expand(values.shape[:-1]).unsqueeze(-1)
    return values.gather(-1, index).squeeze(-1)


def _logit_diff(readout: Readout, pair: Pair) -> Tensor:
    """Return log P(risen) - log P(fallen)."""
    risen, fallen = _risen_and_fallen(pair)
    logs = _logs(readout, pair)
    difference = _pick(logs, risen) - _pick(logs, fallen)
    return torch.where(risen == fallen, torch.zeros((), dtype=logs.dtype), difference)


def _risen_probability(readout: Readout, pair: Pair) -> Tensor:
    """Return the probability of the outcome that rises most from corrupted to clean."""
    risen, _ = _risen_and_fallen(pair)
    return _pick(_probabilities(readout, pair), risen)


def _regret(readout: Readout, pair: Pair) -> Tensor:
    """Return the loss, summed from the intervened round to the one that is read."""
    return pair.losses(readout.predictions).sum(-1)


def _mean(readout: Readout, pair: Pair) -> Float[Tensor, "*batch"]:
    """Return the mean of the real number that is predicted at the round that is read."""
    return pair.layout.choose(_last_prediction(readout, pair))


def _along_state(readout: Readout, pair: Pair) -> Tensor:
    """Return the state after the read round, along the line from corrupted to clean, in units of the state.

    ``<s - s_corrupted, d>`` with ``d`` the unit vector from the corrupted to the clean state: 0 on the corrupted run
    and the distance of the two states on the clean run. Of a learned model the latents are the state.
    """

    def read_state(latents: Tensor) -> Tensor:
        state = pair.model.read_state(latents) if pair.model.is_handwired else latents
        return state.flatten(latents.ndim - 2)

    state = read_state(readout.latents)
    clean = read_state(pair.clean_readout.latents)
    corrupted = read_state(pair.corrupted_readout.latents)
    gap = clean - corrupted
    smallest = torch.finfo(gap.dtype).tiny
    unit = gap / gap.norm(dim=-1, keepdim=True).clamp_min(smallest)
    return ((state - corrupted) * unit).sum(-1)


def _agreement(readout: Readout, pair: Pair) -> Tensor:
    """Return 1 where the choice is the clean run's and 0 elsewhere."""
    choice = _probabilities(readout, pair).argmax(-1)
    clean = _probabilities(pair.clean_readout, pair).argmax(-1)
    return (choice == clean).to(readout.predictions.dtype)


def _towards_clean(readout: Readout, pair: Pair) -> Tensor:
    """Return how far the prediction is from the corrupted one, counted towards the clean one."""
    corrupted = _mean(pair.corrupted_readout, pair)
    direction = (_mean(pair.clean_readout, pair) - corrupted).sign()
    return (_mean(readout, pair) - corrupted) * direction


def _squared_error(readout: Readout, pair: Pair) -> Tensor:
    """Return the squared distance from the clean prediction."""
    return (_mean(readout, pair) - _mean(pair.clean_readout, pair)).square()


_CLASSES: tuple[Predicted, ...] = ("classes",)
_REAL: tuple[Predicted, ...] = ("mean", "normal")

METRICS: dict[str, Metric] = unique(
    (
        Metric("logit_diff", "logit difference", "nats", _logit_diff, kinds=_CLASSES),
        Metric("probability", "probability", "probability", _risen_probability, kinds=_CLASSES),
        Metric(
            "agreement", "choice agrees with clean", "share of episodes", _agreement, kinds=_CLASSES
        ),
        Metric("regret", "expected loss", "expected mistakes", _regret),
        Metric("state", "decoded state difference", "state", _along_state, needs_update=True),
        Metric(
            key="prediction",
            name="prediction, from corrupted to clean",
            unit="prediction",
            measure=_towards_clean,
            kinds=_REAL,
        ),
        Metric(
            key="squared_error",
            name="squared error from clean",
            unit="prediction squared",
            measure=_squared_error,
            kinds=_REAL,
        ),
    ),
    "metric",
)


def exits(layout: RoundLayout) -> tuple[str, str]:
    """Return the metrics that read the two exits of a layout's rounds: what is predicted, and what is remembered.

    What acts on one alone does not show in the other; read through both, methods find far more of the parts that matter
    (``interp benchmark``).
    """
    return "logit_diff" if layout.kind == "classes" else "prediction", "state"


def find_metric(name: str | Metric | None, layout: RoundLayout | None = None) -> Metric:
    """Return the metric of that key; a :class:`Metric` is returned as it is.

    With a ``layout`` the first of its :func:`exits` when None; a metric that cannot read its predictions is refused.
    """
    if name is None:
        name = "logit_diff" if layout is None else exits(layout)[0]
    if isinstance(name, str):
        require_known("metric", name, METRICS)
        metric = METRICS[name]
    else:
        metric = fit("metric", name, Metric)
    if layout is None or layout.kind in metric.kinds:
        return metric
    kind = layout.kind
    fitting = ", ".join(key for key, known in METRICS.items() if kind in known.kinds)
    what = f"a real number ({layout.kind!r})"
    if layout.kind == "classes":
        what = "one of several outcomes"
    raise InputError(
        f"metric {metric.key!r} cannot read predictions of {layout.task!r}, {what}; take {fitting}"
    )
