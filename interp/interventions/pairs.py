"""Pairs of a clean and a corrupted run for interventions in one round, and metrics of patched runs.

A metric is one number per episode, computed from predictions or from the carried state. Usually a
higher number is closer to the clean run. ``Metric.measure`` maps a :class:`Readout` to numbers
``[*cell, episode]``; ``*cell`` are any leading axes, such as one for the patched sites. If a model
outputs probabilities, log P replaces logits, with P clipped to ``[1e-6, 1]``; so a difference of
logits lies within +-13.8. The metrics of probabilities are

* "logit_diff": log P(a) - log P(b). In each episode, a is the outcome whose log P is raised most
  from the corrupted to the clean run, and b the one whose log P is lowered most. So the clean run
  has more than the corrupted run in every episode, whatever the correct outcome is;
* "correct_logit_diff": log P - log(1 - P) of the correct outcome, such as the label: for two
  outcomes, correct minus wrong logit, as in TransformerLens' tutorials. Effects of episodes with
  different labels can cancel;
* "probability": P(a);
* "agreement": 1 if the most probable outcome is that of the clean run, else 0.

Of all predictions, "regret" is the loss with the clean episodes' labels, summed from the patched to
the read round. "state" is how far the carried state lies towards the clean run's. Predictions of
real numbers have the metrics "prediction" and "squared_error".
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
from interp.support.checks import check_type, checked, checked_fields, checked_result, index_by_key
from interp.support.errors import InputError, require, require_known


@dataclass(frozen=True)
@checked_result
class Readout:
    """What a metric is computed from: predictions and carried state of one or several runs.
    ``*cell`` are any leading axes, such as one for the patched sites.

    Attributes:
        predictions: the model's raw predictions, such as log-probabilities of the outcomes,
            ``[*cell, episode, round, ...]``, from the changed round to the round that is read.
        latents: state that the model carries out of the round that is read,
            ``[*cell, episode, latent, d_model]``.
    """

    predictions: Tensor
    latents: Tensor

    def __post_init__(self) -> None:
        """Convert numbers of less than single precision to single precision."""
        for name, values in (("predictions", self.predictions), ("latents", self.latents)):
            if values.element_size() < 4:
                object.__setattr__(self, name, values.float())


@dataclass(frozen=True)
@checked_result
@checked
class Pair:
    """Clean and corrupted rollouts of one model, with the round to change and the round to read.
    The i-th corrupted episode is the i-th clean one with one thing changed.

    Attributes:
        model: the model.
        clean, corrupted: rollouts without hooks, up to the round that is read.
        clean_episodes: the clean episodes; losses are computed with their labels.
        round: index of the round to change (the round of the intervention).
        read_round: index of the round to read (its prediction, and the state after it); at least
            ``round``.
        counted: if episodes with missing rounds were left out, how many are left, in words;
            otherwise empty.
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
        """The token layout of the rounds."""
        return self.clean.layout

    @cached_property
    def clean_readout(self) -> Readout:
        """The clean run's predictions from :attr:`round` to :attr:`read_round`, and its carried
        state after :attr:`read_round`.
        """
        return self.readout(self.clean)

    @cached_property
    def corrupted_readout(self) -> Readout:
        """The corrupted run's predictions from :attr:`round` to :attr:`read_round`, and its carried
        state after :attr:`read_round`.
        """
        return self.readout(self.corrupted)

    @property
    def _measured_rounds(self) -> slice:
        """The slice of rounds from :attr:`round` to :attr:`read_round`, both included."""
        return slice(self.round, self.read_round + 1)

    def readout(self, run: Rollout) -> Readout:
        """Return what metrics read from ``run``: its predictions from :attr:`round` to
        :attr:`read_round`, and its carried state after :attr:`read_round`.
        """
        predictions = run.predictions[:, self._measured_rounds]
        return Readout(predictions, run.latents[:, self.read_round + 1])

    def losses(self, predictions: Float[Tensor, "*axes"]) -> Float[Tensor, "*batch episode round"]:
        """Return the task's loss of each prediction, with the labels of the clean episodes.

        Args:
            predictions: predictions in the rounds from :attr:`round` to :attr:`read_round`,
                ``[*batch, episode, round, ...]``.

        Returns:
            One loss for each episode and round, ``[*batch, episode, round]``.
        """
        rounds = self._measured_rounds
        wanted = tuple(self.clean.predictions[:, rounds].shape)
        shape = tuple(predictions.shape)
        require(
            shape[-len(wanted) :] == wanted,
            f"predictions of shape {shape} do not fit; their last axes must be {wanted}",
        )
        data = catalog.of(self.layout).data
        return data.losses(predictions, self.clean_episodes, rounds)


@checked
def corruption(model: Machine, key: str = "") -> Corruption:
    """Return one of the task's corruptions: a way to make pairs of clean and corrupted episodes
    that differ in one thing.

    Args:
        model: the model, which determines the task.
        key: key of the corruption, such as "flip-vote" (another advice of one expert in one round);
            empty for the task's default.

    Returns:
        The corruption. Its method ``build(episodes, round)`` makes the pair (clean, corrupted).
    """
    task = catalog.of(model)
    key = key or task.analysis.default_corruption
    require(
        key,
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
    """Run clean and corrupted episodes up to the round that is read, and return both runs as a
    pair.

    Args:
        model: the model.
        clean, corrupted: paired episodes: the i-th corrupted episode is the i-th clean one with one
            thing changed, as corruptions of the task build them.
        round: index of the round to change (the round of the intervention); negative numbers count
            from the end.
        read_round: index of the round to read; by default ``round``.
        commit: which choice the model reads in rounds whose tokens contain a choice: "own" for the
            model's own choice, "target" for the recorded one.

    Returns:
        The pair. Episodes in which a round from ``round`` to ``read_round`` is missing in either
        run are left out.
    """
    model.eval()
    sides = clean, corrupted
    # Of each side, the lengths of the axes [episode, round, position].
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
    has_rounds = np.ones(len(clean), bool)  # [episode]
    for side in sides:
        has_rounds &= counted_rounds(side)[:, first : last + 1].all(1)
    counted = ""
    if not has_rounds.all():
        rounds = f"round {first}" if last == first else f"rounds {first} to {last}"
        counted = f"{has_rounds.sum()} of {len(has_rounds)} episodes have {rounds}"
        require(has_rounds.any(), f"{counted}; choose rounds that some episodes have")
        sides = clean.select(has_rounds), corrupted.select(has_rounds)
    clean_run, corrupted_run = [
        rollout(model, side, n_rounds=last + 1, commit=commit) for side in sides
    ]
    return Pair(
        model=model,
        clean=clean_run,
        corrupted=corrupted_run,
        clean_episodes=sides[0],
        round=first,
        read_round=last,
        counted=counted,
    )


_MAX_COMPARED = 32
"""Maximum number of episodes that :func:`warn_about_mismatch` compares."""
_MIN_COMPARED = 4
"""Minimum number of episodes for which :func:`warn_about_mismatch` can warn."""
_N_STANDARD_ERRORS = 4.0
"""Number of standard errors within which paired episodes differ as much as unpaired ones.

In 888 independently sampled batches of the tasks experts and Q-learning, the largest distance in
any of 20 rounds is below 4.2 for 99 % of the batches from 8 episodes on (95 % below 5 at 4
episodes). Every corruption of the three tasks is beyond 4, or equal in a round, at 4, 8 and 32
episodes."""


def warn_about_mismatch(pair: Pair) -> None:
    """Issue a ``UserWarning`` if clean and corrupted episodes do not seem to be paired: in every
    round, the inputs of a clean episode and its corrupted partner differ as much as those of two
    arbitrary episodes.

    Patches would then insert activations of unrelated episodes, but be scored with the labels of
    the clean episodes.

    Args:
        pair: the clean and the corrupted run.
    """
    n = min(pair.clean.n_episodes, _MAX_COMPARED)
    if n < _MIN_COMPARED:
        return
    clean, corrupted = _list_inputs(pair.clean, n), _list_inputs(pair.corrupted, n)
    # Share of the inputs that differ, [clean episode, corrupted episode, round]
    share_differing = (clean.unsqueeze(1) != corrupted).double().mean(-1)
    is_unpaired = ~torch.eye(n, dtype=torch.bool)
    paired = share_differing.diagonal().T  # [episode, round]
    unpaired = share_differing[is_unpaired]  # [two different episodes, round]
    # They are a pair if, in some round, partners do not differ as much as two arbitrary episodes
    # do: not at all while others differ, or by clearly less, or clearly more.
    gap = unpaired.mean(0) - paired.mean(0)  # [round]
    is_equal = (paired == 0).all(0) & (unpaired > 0).any(0)
    # The gap in standard errors is gap / (std / sqrt(n)); std may be 0, so nothing is divided.
    is_far = gap.abs() * n**0.5 > _N_STANDARD_ERRORS * unpaired.std(0)
    if (is_equal | is_far).any():
        return
    paired_share, unpaired_share = float(paired.mean()), float(unpaired.mean())
    warnings.warn(
        f"clean and corrupted are no pair: rows that pair up differ in {paired_share:.0%} of what is fed, "
        f"those that do not in {unpaired_share:.0%}. A patch then comes from an unrelated episode, and is "
        "read by the truth of the clean one; build the corrupted episodes from the clean ones, as the task's "
        "corruptions do",
        UserWarning,
        stacklevel=4,  # the caller of the public function, which is checked by a decorator
    )


def _list_inputs(run: Rollout, n: int) -> Float[Tensor, "episode round number"]:
    """Return the inputs of the first episodes of a run as numbers, ``[episode, round, number]``: in
    each round first the tokens, then the values that they carry.

    Args:
        run: the run.
        n: number of episodes.
    """
    return torch.cat([run.tokens[:n].double(), run.values[:n]], -1)


def run_of(model: Machine, episodes: Episodes | Rollout, analysis: str) -> Rollout:
    """Run the model over some episodes, and return the rollout. If a rollout is passed, it is
    checked and returned unchanged.

    Episodes with missing rounds are an error.

    Args:
        model: the model.
        episodes: episodes, or a rollout of this model with its episodes.
        analysis: name of the analysis, for error messages.
    """
    refuse_missing(analysis, episodes)
    if not isinstance(episodes, Rollout):
        return rollout(model.eval(), episodes)
    run, episodes_of_run = require_own(episodes, model), episodes.episodes
    size = run.n_episodes, run.n_rounds
    require(
        episodes_of_run is not None and (len(episodes_of_run), episodes_of_run.n_rounds) == size,
        "this rollout does not hold its episodes, or was cut; give the episodes",
    )
    return run


def paired_runs(
    model: Machine, base: Episodes | Rollout, source: Episodes | Rollout, analysis: str
) -> tuple[Rollout, Rollout]:
    """Run the model over paired episodes, and return two rollouts: of the base and of the source.

    Args:
        model: the model.
        base, source: episodes, of which the i-th form a pair, or the model's rollouts of them. A
            rollout is checked (:func:`run_of`) and returned unchanged.
        analysis: name of the analysis, for error messages.

    Raises:
        InputError: the base and the source have different numbers of episodes, rounds or positions.
    """
    base_run = run_of(model, base, analysis)
    source_run = run_of(model, source, analysis)
    shape, source_shape = tuple(base_run.tokens.shape), tuple(source_run.tokens.shape)
    require(shape == source_shape, f"base and source must pair up, got {shape} and {source_shape}")
    return base_run, source_run


CLIP = 1e-6
"""Smallest probability; smaller ones are clipped to it before the logarithm."""


@dataclass(frozen=True)
@checked_fields
class Metric:
    """A metric of patched (or otherwise changed) runs: one number per episode, such as the
    difference of two logits.

    Attributes:
        key: name of the metric in code and on the command line.
        name: name in sentences and figures.
        unit: unit of the numbers, such as "nats".
        measure: function of a :class:`Readout` (the patched runs) and a :class:`Pair` (the clean
            and the corrupted run) that returns numbers ``[*cell, episode]``; ``*cell`` are any
            leading axes of the readout, such as one for the patched sites.
        needs_update: True if it reads the carried state after a round, False if it reads only
            predictions.
        kinds: kinds of prediction that it can read: "classes" (probabilities of outcomes), "mean"
            (of a real number) or "normal" (mean and log variance of a real number).
    """

    key: str
    name: str
    unit: str
    measure: Callable[[Readout, Pair], Tensor]
    needs_update: bool = False
    kinds: tuple[Predicted, ...] = get_args(Predicted)


def _get_last_prediction(readout: Readout, pair: Pair) -> Tensor:
    """Return the model's raw prediction in the round that is read, ``[*cell, episode, ...]``.

    Args:
        readout: the results of one or several runs; ``*cell`` are its leading axes.
        pair: the clean and the corrupted run; only its layout is used.
    """
    round_axis = -1 - pair.layout.prediction_axes  # before the axes of the prediction itself
    return readout.predictions.select(round_axis, -1)


def _compute_probabilities(readout: Readout, pair: Pair) -> Float[Tensor, "*cell episode outcome"]:
    """Compute the predicted distribution over outcomes in the round that is read, ``[*cell,
    episode, outcome]``.

    Args:
        readout: the results of one or several runs; ``*cell`` are its leading axes.
        pair: the clean and the corrupted run; only its layout is used.
    """
    return pair.layout.distribution(_get_last_prediction(readout, pair))


def _compute_logs(readout: Readout, pair: Pair) -> Float[Tensor, "*cell episode outcome"]:
    """Compute the predicted log-probabilities of outcomes in the round that is read, at least log
    1e-6, ``[*cell, episode, outcome]``.

    Args:
        readout: the results of one or several runs; ``*cell`` are its leading axes.
        pair: the clean and the corrupted run; only its layout is used.
    """
    return _compute_probabilities(readout, pair).clamp_min(CLIP).log()


def _find_largest_changes(pair: Pair) -> tuple[Tensor, Tensor]:
    """Find the two outcomes of each episode whose log-probabilities differ most between the runs of
    a pair.

    Args:
        pair: the clean and the corrupted run.

    Returns:
        Two indices of outcomes, ``[episode]`` each: the outcome with the largest rise from the
        corrupted to the clean run, and the one with the largest fall.
    """
    change = _compute_logs(pair.clean_readout, pair) - _compute_logs(pair.corrupted_readout, pair)
    return change.argmax(-1), change.argmin(-1)


def _select_outcome(values: Float[Tensor, "*batch outcome"], outcome: Tensor) -> Tensor:
    """Return for each episode the value of one outcome, ``[*batch]``.

    Args:
        values: one value per outcome.
        outcome: index of the outcome for each episode.
    """
    index = outcome.expand(values.shape[:-1]).unsqueeze(-1)  # the same outcome in every cell
    return values.gather(-1, index).squeeze(-1)


def _compute_logit_diff(readout: Readout, pair: Pair) -> Tensor:
    """Compute the log-probability of one outcome minus that of another, ``[*cell, episode]``.

    The first outcome has the largest rise of its log-probability from the corrupted to the clean
    run, the second the largest fall. If both are the same outcome, the difference is 0.

    Args:
        readout: the results of one or several runs; ``*cell`` are its leading axes.
        pair: the clean and the corrupted run.
    """
    risen, fallen = _find_largest_changes(pair)
    logs = _compute_logs(readout, pair)
    difference = _select_outcome(logs, risen) - _select_outcome(logs, fallen)
    return torch.where(risen == fallen, torch.zeros((), dtype=logs.dtype), difference)


def _compute_correct_logit_diff(readout: Readout, pair: Pair) -> Float[Tensor, "*cell episode"]:
    """Compute the log-odds of the correct outcome, ``[*cell, episode]``: its log-probability minus
    that of all other outcomes together. The correct outcome of a clean episode is the one for which
    a certain prediction has the smallest loss.

    Args:
        readout: the results of one or several runs; ``*cell`` are its leading axes.
        pair: the clean and the corrupted run, with the clean episodes.
    """
    layout = pair.layout
    n_outcomes = layout.n_outputs
    episodes_and_rounds = pair.clean_readout.predictions.shape[:2]
    # For each outcome, predictions that give it probability 1 in all episodes and rounds.
    one_hot = torch.eye(n_outcomes, device=pair.model.device)[:, None, None]
    certain = one_hot.expand(n_outcomes, *episodes_and_rounds, n_outcomes)
    losses = pair.losses(layout.prediction(certain))  # [outcome, episode, round]
    correct = losses[..., -1].argmin(0)
    return _select_outcome(_compute_probabilities(readout, pair), correct).logit(CLIP)


def _get_risen_probability(readout: Readout, pair: Pair) -> Tensor:
    """Return the predicted probability of one outcome, ``[*cell, episode]``: that with the largest
    rise of its log-probability from the corrupted to the clean run.

    Args:
        readout: the results of one or several runs; ``*cell`` are its leading axes.
        pair: the clean and the corrupted run.
    """
    risen, _ = _find_largest_changes(pair)
    return _select_outcome(_compute_probabilities(readout, pair), risen)


def _sum_losses(readout: Readout, pair: Pair) -> Tensor:
    """Compute the loss with respect to the labels of the clean episodes, summed from the changed
    round to the round that is read, ``[*cell, episode]``.

    Args:
        readout: the results of one or several runs; ``*cell`` are its leading axes.
        pair: the clean and the corrupted run.
    """
    return pair.losses(readout.predictions).sum(-1)


def _get_predicted_number(readout: Readout, pair: Pair) -> Float[Tensor, "*cell episode"]:
    """Return the predicted real number (the mean of the predicted distribution) in the round that
    is read, ``[*cell, episode]``.

    Args:
        readout: the results of one or several runs; ``*cell`` are its leading axes.
        pair: the clean and the corrupted run; only its layout is used.
    """
    return pair.layout.choose(_get_last_prediction(readout, pair))


def _measure_along_state(readout: Readout, pair: Pair) -> Tensor:
    """Measure how far a state lies along the line from the corrupted to the clean run's state,
    ``[*cell, episode]``.

    It is ``<s - s_corrupted, d>`` with ``d`` the unit vector from the corrupted to the clean state.
    So it is 0 for the corrupted run, and the distance between the two states for the clean run. The
    state is the decoded one of a handwired model; for other models it is the latents.

    Args:
        readout: the results of one or several runs; ``*cell`` are its leading axes.
        pair: the clean and the corrupted run.
    """

    def read_state(latents: Tensor) -> Tensor:
        """Return the state as numbers: the algorithm's state of a handwired model, else the
        latents.
        """
        state = pair.model.read_state(latents) if pair.model.is_handwired else latents
        return state.flatten(latents.ndim - 2)  # [*cell, episode, number]

    state = read_state(readout.latents)
    clean = read_state(pair.clean_readout.latents)
    corrupted = read_state(pair.corrupted_readout.latents)
    gap = clean - corrupted
    tiny = torch.finfo(gap.dtype).tiny  # equal states: the direction is 0, not NaN
    direction = gap / gap.norm(dim=-1, keepdim=True).clamp_min(tiny)
    return ((state - corrupted) * direction).sum(-1)


def _compare_choices(readout: Readout, pair: Pair) -> Tensor:
    """Return 1 where the most probable outcome is that of the clean run, and 0 elsewhere, ``[*cell,
    episode]``.

    Args:
        readout: the results of one or several runs; ``*cell`` are its leading axes.
        pair: the clean and the corrupted run.
    """
    choice = _compute_probabilities(readout, pair).argmax(-1)
    clean = _compute_probabilities(pair.clean_readout, pair).argmax(-1)
    return (choice == clean).to(readout.predictions.dtype)


def _measure_towards_clean(readout: Readout, pair: Pair) -> Tensor:
    """Measure how far the predicted number has moved from the corrupted run's in the direction of
    the clean run's, ``[*cell, episode]``.

    If the corrupted run predicts 1 and the clean run 3, a prediction of 2.5 gives 1.5, and 0 gives
    -1.

    Args:
        readout: the results of one or several runs; ``*cell`` are its leading axes.
        pair: the clean and the corrupted run.
    """
    corrupted = _get_predicted_number(pair.corrupted_readout, pair)
    clean = _get_predicted_number(pair.clean_readout, pair)
    return (_get_predicted_number(readout, pair) - corrupted) * (clean - corrupted).sign()


def _compute_squared_error(readout: Readout, pair: Pair) -> Tensor:
    """Compute the squared difference between the predicted number and that of the clean run,
    ``[*cell, episode]``.

    Args:
        readout: the results of one or several runs; ``*cell`` are its leading axes.
        pair: the clean and the corrupted run.
    """
    clean = _get_predicted_number(pair.clean_readout, pair)
    return (_get_predicted_number(readout, pair) - clean).square()


_CLASSES: tuple[Predicted, ...] = ("classes",)
_REAL: tuple[Predicted, ...] = ("mean", "normal")

METRICS: dict[str, Metric] = index_by_key(
    (
        Metric(
            key="logit_diff",
            name="logit difference",
            unit="nats",
            measure=_compute_logit_diff,
            kinds=_CLASSES,
        ),
        Metric(
            key="correct_logit_diff",
            name="logit difference, correct minus other",
            unit="nats",
            measure=_compute_correct_logit_diff,
            kinds=_CLASSES,
        ),
        Metric(
            key="probability",
            name="probability",
            unit="probability",
            measure=_get_risen_probability,
            kinds=_CLASSES,
        ),
        Metric(
            key="agreement",
            name="choice agrees with clean",
            unit="share of episodes",
            measure=_compare_choices,
            kinds=_CLASSES,
        ),
        Metric(
            key="regret",
            name="expected loss",
            unit="expected mistakes",
            measure=_sum_losses,
        ),
        Metric(
            key="state",
            name="decoded state difference",
            unit="state",
            measure=_measure_along_state,
            needs_update=True,
        ),
        Metric(
            key="prediction",
            name="prediction, from corrupted to clean",
            unit="prediction",
            measure=_measure_towards_clean,
            kinds=_REAL,
        ),
        Metric(
            key="squared_error",
            name="squared error from clean",
            unit="prediction squared",
            measure=_compute_squared_error,
            kinds=_REAL,
        ),
    ),
    "metric",
)


def name_output_metrics(layout: RoundLayout) -> tuple[str, str]:
    """Return the keys of two metrics, one for each output of a round: (metric of the prediction,
    metric of the carried state).

    A head or MLP that affects only one output has no effect on the metric of the other output. So
    methods that search for relevant heads and MLPs find far more of them with both metrics than
    with one (``interp benchmark``).

    Args:
        layout: token layout of the rounds, which says what is predicted.
    """
    return "logit_diff" if layout.kind == "classes" else "prediction", "state"


def find_metric(name: str | Metric | None, layout: RoundLayout | None = None) -> Metric:
    """Return the metric with the key ``name``; a :class:`Metric` is returned unchanged.

    Args:
        name: key of a metric, or a metric; by default "logit_diff", or "prediction" for a layout
            with real-valued predictions.
        layout: token layout of the task. If passed, a metric that cannot read the task's kind of
            prediction is an error.
    """
    if name is None:
        name = "logit_diff" if layout is None else name_output_metrics(layout)[0]
    if isinstance(name, str):
        require_known("metric", name, METRICS)
        metric = METRICS[name]
    else:
        metric = check_type("metric", name, Metric)
    if layout is None or layout.kind in metric.kinds:
        return metric
    kind = layout.kind
    readable = ", ".join(key for key, candidate in METRICS.items() if kind in candidate.kinds)
    predicted = f"a real number ({kind!r})"
    if kind == "classes":
        predicted = "one of several outcomes"
    raise InputError(
        f"metric {metric.key!r} cannot read predictions of {layout.task!r}, {predicted}; take {readable}"
    )
