"""Can the algorithm's memory be decoded from the state, and do few directions carry the effect?

The directions are the principal components of the states that a round reads, over episodes. The
part of a state in the first k directions is replaced by the same part of another episode's state.
The effect on predictions is reported as a share of the effect of replacing the whole state. The
control replaces the part in k random directions.

:func:`check_decoding` fits a ridge map from the whole state to the algorithm's memory, and scores
it by cross-validation over episodes. Its controls are the memory of other episodes, and untrained
copies of the model. The copies get as many episodes as they need
(:data:`interp.stats.refit.PLATEAU`). A fit to few episodes is poor. So "cannot be decoded" is
reported only if R2 would stay too low even if it rose again by as much as from half of the episodes
to all. What can be decoded need not be used.

The directions are NOT evidence of meaning: they are those in which states vary most.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np
import pandas as pd
import torch
from jaxtyping import Float
from torch import Tensor

from interp.audit.trial import THRESHOLDS, Array, Trial
from interp.audit.used import Change, change_states, draw_donors, measure_worth_of_content
from interp.interventions.interchange import flatten_elements
from interp.results.measure import FEW, Control, Measure, Verdict
from interp.stats.decoder import N_FOLDS, RIDGE, predict_across_folds
from interp.stats.intervals import Interval, ratio_interval
from interp.stats.refit import PLATEAU
from interp.support.session import cached_in_session

_DOSES = (0.25, 0.5, 0.75, 1.0, 1.5)
_RANKS = (1, 2, 4, 8, 16, 32, 64)  # numbers of directions that are tried, besides all directions
_MIN_SPREAD = 1e-8  # directions with a smaller share of the largest singular value are left out
_WIDE_SEED = 40  # added to the seed, for the episodes of a trial with more of them
_FEW_DIRECTIONS = 4  # number of directions that count as few if the algorithm has no memory


def _find_principal_directions(
    state: Float[Tensor, "episode row width"],
) -> Float[Tensor, "direction number"]:
    """Compute the principal components of the states of different episodes, ``[direction,
    number]``. The first direction has the largest variance. Directions without variance are left
    out.

    Args:
        state: the states that one round reads, ``[episode, row, width]``.
    """
    deviations = (state - state.mean(0)).flatten(1).double()
    _, spread, axes = torch.linalg.svd(deviations, full_matrices=False)
    above_zero = torch.finfo(torch.float64).tiny  # no spread then gives no direction
    return axes[spread > _MIN_SPREAD * spread[:1].clamp_min(above_zero)]


def _draw_random_directions(
    n_numbers: int, n_directions: int, seed: int
) -> Float[Tensor, "direction number"]:
    """Draw orthonormal directions at random, ``[n_directions, n_numbers]``.

    Args:
        n_numbers: number of dimensions of the state.
        n_directions: number of directions.
        seed: seed of the draw.
    """
    generator = torch.Generator().manual_seed(seed)
    columns = torch.randn(n_numbers, n_directions, generator=generator).double()
    orthonormal_columns = torch.linalg.qr(columns).Q
    return orthonormal_columns.T


def _project(
    change: Float[Tensor, "episode number"], axes: Float[Tensor, "direction number"]
) -> Float[Tensor, "episode number"]:
    return change @ axes.T @ axes


def _measure_effects(
    trial: Trial, round: int, states: Sequence[Float[Tensor, "episode row width"]]
) -> Float[np.ndarray, "state episode"]:
    """Measure how far a round's prediction moves if the round reads other states.

    Args:
        trial: the model with its episodes.
        round: index of the round that reads the states.
        states: alternative states of all episodes, each ``[episode, row, width]``.

    Returns:
        Distance between the changed and the unchanged prediction, ``[state, episode]``.
    """
    # One run for each of the states. The same round reads it in all runs, and is the last to run.
    read_in_rounds = [round] * len(states)
    predictions = trial.rerun(torch.stack(list(states)), read_in_rounds, horizon=1)
    changed = trial.distribution(predictions)[:, :, round]  # [state, episode, outcome]
    return trial.distance(changed, trial.unchanged_distributions[:, round])


class _ByRank(NamedTuple):
    """Effects on predictions if the part of a state in k directions is replaced by that of another
    episode's state.

    An effect is the distance between the changed and the unchanged prediction.

    Attributes:
        ranks: the numbers k of directions.
        principal: effect of replacing the part in the first k principal directions, ``[rank,
            episode]``.
        random: effect of replacing the part in k random directions, ``[rank, episode]``.
        whole: effect of replacing the whole state, ``[episode]``.
    """

    ranks: list[int]
    principal: Float[np.ndarray, "rank episode"]
    random: Float[np.ndarray, "rank episode"]
    whole: Float[np.ndarray, " episode"]


@cached_in_session
def _measure_effects_by_rank(trial: Trial, round: int) -> _ByRank:
    """Measure the effects on predictions of replacing a part of every episode's state by the same
    part of another episode's state. The part is the projection on k directions, for several k. The
    directions are the first k principal ones or, as a control, k random ones.

    Args:
        trial: the model with its episodes.
        round: index of the round that reads the changed states.

    Returns:
        The numbers k, with the effects ``[rank, episode]`` for principal and for random directions,
        and the effect ``[episode]`` of replacing the whole state.
    """
    states_read = trial.select_states([round])[0]  # [episode, row, width]
    donor = change_states(trial, [round], Change.DONOR)[0]
    change = (donor - states_read).flatten(1).double()  # [episode, number]
    axes = _find_principal_directions(states_read)
    # 1, 2, 4, ... directions, and all of them: no more than there are.
    ranks = sorted({min(k, len(axes)) for k in (*_RANKS, len(axes))})
    random_axes = _draw_random_directions(change.shape[1], max(ranks), trial.budget.seed)

    states = []
    for directions in (axes, random_axes.to(change)):
        for k in ranks:
            part = _project(change, directions[:k]).to(states_read)
            states.append(states_read + part.unflatten(1, states_read.shape[1:]))
    effects = _measure_effects(trial, round, [*states, donor])  # [state, episode]
    n_ranks = len(ranks)
    return _ByRank(
        ranks=ranks,
        principal=effects[:n_ranks],
        random=effects[n_ranks : 2 * n_ranks],
        whole=effects[-1],
    )


def table(trial: Trial) -> pd.DataFrame:
    """Replace the state's components along k directions by those of another episode's state.
    Compare the effect with that of replacing the whole state.

    An effect is the mean distance between the predictions with the changed and with the unchanged
    state, in the round that reads the state. The principal directions are those in which states of
    different episodes vary most.

    Args:
        trial: the model with its episodes.

    Returns:
        A table with one row per ``round`` and number k of ``directions``. Two rounds are tried, a
        middle one and the last one; ``round`` is the index of the round that reads the changed
        state. ``share`` is the effect for the first k principal directions, divided by the effect
        of replacing the whole state; ``share_low`` and ``share_high`` are the ends of its interval.
        ``random`` is the same share for k random directions.
    """
    rows = []
    rounds = trial.writes  # those that read a changed state
    middle = rounds[len(rounds) // 2]
    for t in sorted({middle, rounds[-1]}):
        effects = _measure_effects_by_rank(trial, t)
        for i, k in enumerate(effects.ranks):
            share = ratio_interval(
                effects.principal[i], effects.whole, participants=trial.participants
            )
            random = ratio_interval(
                effects.random[i], effects.whole, participants=trial.participants
            )
            # share.columns has the cells "share", "share_low" and "share_high".
            row = {"round": t, "directions": k, **share.columns("share")}
            rows.append({**row, "random": random.estimate})
    return pd.DataFrame(rows)


def doses(trial: Trial) -> pd.DataFrame:
    """Move the state that the last round reads towards another episode's state, by a fraction of
    their difference. Compare the effect on predictions with that of moving by the whole difference.

    Args:
        trial: the model with its episodes.

    Returns:
        A table with one row per ``dose``, the fraction, from .25 to 1.5. ``round`` is the index of
        the round that reads the state. ``share`` is the effect (mean distance between the changed
        and the unchanged prediction) divided by the effect at dose 1; ``share_low`` and
        ``share_high`` are the ends of its interval.
    """
    t = trial.writes[-1]
    state_read = trial.select_states([t])[0]
    donor = change_states(trial, [t], Change.DONOR)[0]  # another episode's state
    effects = _measure_effects(
        trial, t, [state_read + dose * (donor - state_read) for dose in _DOSES]
    )
    whole = effects[_DOSES.index(1.0)]
    rows = []
    for dose, effect in zip(_DOSES, effects, strict=True):
        share = ratio_interval(effect, whole, participants=trial.participants)
        rows.append({"round": t, "dose": dose, **share.columns("share")})
    return pd.DataFrame(rows)


def check_directions(trial: Trial, is_used: bool) -> Measure:
    """Check whether few directions of the state carry what lowers the loss. Few means as many as
    the algorithm's memory has dimensions, or 4 if it has no memory.

    Three losses are compared, summed over rounds:

    - "unchanged": every round reads its unchanged state;
    - "donor": every round reads another episode's state;
    - "principal": every round reads another episode's state, but the components along the few
      principal directions (in which states vary most) are those of the unchanged state.

    Args:
        trial: the model with its episodes.
        is_used: whether the content of the state (its information about the episode) lowers the
            loss. If not, the check does not apply.

    Returns:
        A measure, with controls and verdict. Its number is the loss that few directions save,
        divided by the loss that the whole state saves: (donor - principal) / (donor - unchanged).
    """
    claim = "Few directions carry its effect"
    if not is_used:
        lacking = "no use of the content of its state, as far as this audit shows"
        return Measure(key="directions", claim=claim, lacking=lacking)
    n_few = _measure_memory(trial) or _FEW_DIRECTIONS
    losses = _measure_losses_by_directions(trial, n_few)
    controls = trial.score_copies(lambda copy: _share_of_copy(copy, n_few))
    # The same number for directions that are drawn at random instead of the principal ones.
    saved_by_state = (losses.donor - losses.unchanged).sum()
    saved_by_random = (losses.donor - losses.random).sum()
    random_share = saved_by_random / saved_by_state
    controls[f"a random choice of {n_few}"] = Control(float(random_share))
    threshold = THRESHOLDS["kept"].value
    return Measure(
        key="directions",
        claim=claim,
        number=losses.share(trial),
        threshold=threshold,
        unit=f"share of the worth of a state that {n_few} of its directions have",
        controls=controls,
        yes="uses few directions of its state",
        no="spreads what it uses over many directions",
        rests_on=("directions", "doses"),
        caution="what the directions mean: they are those in which states vary most",
    )


def _measure_memory(trial: Trial) -> int:
    """Return the number of dimensions of the memory that the algorithm carries from round to round;
    0 if it has none.

    Args:
        trial: the model with its episodes and its algorithm.
    """
    algorithm = trial.algorithm
    if algorithm is None or not algorithm.memory:
        return 0
    memory = algorithm.run(trial.episodes)[algorithm.memory]
    shape_in_round = np.shape(memory)[2:]  # without the axes of episodes and rounds
    return int(np.prod(shape_in_round))


class _Losses(NamedTuple):
    """Losses of each episode, ``[episode]``, summed over the rounds that read a state, for
    unchanged and for changed states.

    Attributes:
        unchanged: with the unchanged state.
        donor: with another episode's state.
        principal: with another episode's state, except that the first principal directions are
            unchanged.
        random: with another episode's state, except that as many random directions are unchanged.
    """

    unchanged: Array
    donor: Array
    principal: Array
    random: Array

    def share(self, trial: Trial) -> Interval:
        """Return the share of the saved loss that few directions still save: ``(donor - principal)
        / (donor - unchanged)``, with its interval.

        Args:
            trial: the model with its episodes. Their participants are the units of the interval.
        """
        saved = self.donor - self.principal
        return ratio_interval(saved, self.donor - self.unchanged, participants=trial.participants)


def _measure_losses_by_directions(trial: Trial, n_directions: int) -> _Losses:
    """Measure the losses with the unchanged state, with another episode's, and with another
    episode's except in some directions.

    Args:
        trial: the model with its episodes.
        n_directions: number of directions that stay unchanged.

    Returns:
        Four losses of each episode, ``[episode]``, summed over rounds: with the unchanged state,
        with the donor's (the other episode's), and with the donor's except in the first principal
        directions or in random directions.
    """
    rounds = list(range(1, trial.shape[1]))  # all that read the state of an earlier round
    states = trial.select_states(rounds)
    own_states = states.flatten(2).double()  # [chosen, episode, number]
    donor_states = change_states(trial, rounds, Change.DONOR).flatten(2).double()
    n_numbers = own_states.shape[2]
    drawn = _draw_random_directions(n_numbers, n_directions, trial.budget.seed)
    random_axes = drawn.to(own_states)

    def sum_losses(changed: Float[Tensor, "chosen episode number"]) -> Array:
        """Return the loss of each episode with changed states, summed over rounds, ``[episode]``.
        The loss of each round is from a separate run, in which no other round reads a changed
        state.

        Args:
            changed: the changed states, flattened, ``[chosen, episode, number]``.
        """
        states_read = changed.to(states).unflatten(2, states.shape[2:])
        predictions = trial.rerun(states_read, rounds, horizon=1)
        losses = [trial.losses(predictions[i])[:, t] for i, t in enumerate(rounds)]
        return np.sum(losses, axis=0)

    with_principal = donor_states.clone()
    with_random = donor_states.clone()
    # In some directions, the donor's state is moved back to the episode's own state.
    for i, state in enumerate(states):
        to_own = own_states[i] - donor_states[i]
        principal_axes = _find_principal_directions(state)[:n_directions]
        with_principal[i] += _project(to_own, principal_axes)
        with_random[i] += _project(to_own, random_axes)
    return _Losses(
        unchanged=trial.unchanged_losses[:, 1:].sum(1),
        donor=sum_losses(donor_states),
        principal=sum_losses(with_principal),
        random=sum_losses(with_random),
    )


def _share_of_copy(copy: Trial, n_directions: int) -> Interval | None:
    """Compute the number of :func:`check_directions` for an untrained copy: the share of the saved
    loss that is left with few directions.

    Args:
        copy: the untrained copy with its episodes.
        n_directions: number of directions that stay unchanged.

    Returns:
        The share; None if the copy does not use its state.
    """
    if measure_worth_of_content(copy).share.estimate < THRESHOLDS["worth"].value:
        return None
    return _measure_losses_by_directions(copy, n_directions).share(copy)


def check_decoding(trial: Trial) -> Measure:
    """Check whether a linear map (ridge regression) decodes the algorithm's memory, such as
    log-weights, from the model's state.

    Args:
        trial: the model with its episodes.

    Returns:
        A measure, with controls and verdict. Its number is the cross-validated R2 over all rounds
        but the first: the share of the memory's variance over episodes that the map explains, in
        episodes that it was not fitted to.
    """
    claim = "The algorithm's memory can be read from its state"
    lacking = _describe_lack(trial)
    if lacking:
        return Measure(key="decoded", claim=claim, lacking=lacking)
    algorithm = trial.algorithm
    assert algorithm is not None
    n_episodes, n_rounds = trial.shape
    wide_trial = trial  # for untrained copies, which need more episodes
    if n_episodes < PLATEAU:
        larger = replace(trial.budget, episodes=PLATEAU)
        wide_trial = Trial.of(trial.model, larger, seed=_WIDE_SEED, n_rounds=n_rounds)
    # [episode, round, number], from the second round on: the first reads the initial state
    memory = flatten_elements(algorithm.run(trial.episodes)[algorithm.memory])[:, 1:]
    memory_wide = flatten_elements(algorithm.run(wide_trial.episodes)[algorithm.memory])[:, 1:]
    number = _score_decoding(trial, memory)
    unless = _doubt_low_score(trial, memory, number)

    def score_copy(copy: Trial) -> Interval | None:
        """Return the R2 with which a linear map decodes the algorithm's memory from the states of an
        untrained copy; None if the states are the same in all episodes.

        Args:
            copy: the untrained copy with the episodes of ``wide_trial``.
        """
        return _score_decoding(copy, memory_wide) if _has_varying_states(copy) else None

    controls = wide_trial.score_copies(score_copy)
    donor = draw_donors(n_episodes, trial.budget.seed)
    other_memory = _score_decoding(trial, memory[donor])
    controls["the memory of other episodes"] = Control(other_memory.estimate)
    return Measure(
        key="decoded",
        claim=claim,
        number=number,
        threshold=THRESHOLDS["decoded"].value,
        unit=f"R2 of {algorithm.memory}",
        controls=controls,
        yes="lets a linear map read the algorithm's memory",
        no="does not let a linear map read the algorithm's memory",
        unless=unless,
        caution="use: what can be read need not be used",
    )


def _has_varying_states(trial: Trial) -> bool:
    """Return True if the states after some round differ between episodes."""
    spread = trial.run.latents[:, 1:].std(0)
    return bool(spread.any())


def _describe_lack(trial: Trial) -> str:
    """Return what is missing to decode the algorithm's memory, in words, such as "no algorithm with
    a memory to look for"; "" if the memory can be decoded.

    Args:
        trial: the model with its episodes.
    """
    if trial.algorithm is None or not trial.algorithm.memory:
        return "no algorithm with a memory to look for"
    if not _has_varying_states(trial):
        return "no state that differs between episodes"
    if trial.n_participants < N_FOLDS:
        return f"no {N_FOLDS} participants, of whom one part after the other is read"
    return ""


def _doubt_low_score(trial: Trial, memory: Array, number: Interval) -> dict[Verdict, str]:
    """Return the reason why a low R2 does not show that the memory cannot be decoded: more episodes
    might raise R2 above the threshold.

    R2 with twice as many episodes is extrapolated as ``R2(all) + (R2(all) - R2(half))``, where half
    are the episodes of half of the participants. With too few participants, the doubt remains.

    Args:
        trial: the model with its episodes.
        memory: the algorithm's memory, ``[episode, round, element]``.
        number: R2 with all episodes.

    Returns:
        ``{"no": reason}``, which replaces the verdict "no" by "undecided"; an empty mapping if
        there is no such doubt.
    """
    # NaN if there are too few participants to halve: `expected` is then NaN, and the doubt remains.
    r2_of_half = np.nan
    if trial.n_participants >= 2 * N_FOLDS:
        r2_of_half = _score_decoding(trial, memory, trial.first_half).estimate
    expected = 2 * number.estimate - r2_of_half
    if expected <= THRESHOLDS["decoded"].value:
        return {}
    return {"no": f"{FEW}: from half of them R2 is {r2_of_half:.2f}; more of them might read it"}


def _score_decoding(
    trial: Trial,
    memory: Float[np.ndarray, "episode round element"],
    rows: Array | slice = slice(None),
) -> Interval:
    """Return the cross-validated R2 of a linear map (ridge regression) from the state to the
    algorithm's memory.

    Args:
        trial: the model with its episodes.
        memory: the algorithm's memory, ``[episode, round, element]``.
        rows: which episodes to use.
    """
    # The states that rounds 1, 2, ... read, as one latent: [episode, round, 1, number]. No round
    # reads the last state.
    features = trial.run.latents[rows, 1:-1].flatten(2).unsqueeze(2)
    target = memory[rows]
    participants = trial.participants[rows]
    predicted = predict_across_folds(
        features, target, ridge=RIDGE, seed=trial.budget.seed, participants=participants
    )
    # R2 = 1 - error / variation, both summed over rounds and numbers of the memory, [episode]. The
    # complement of an interval is 1 minus it.
    error = ((predicted.numpy(force=True) - target) ** 2).sum((1, 2))
    variation = ((target.mean(0) - target) ** 2).sum((1, 2))
    return ratio_interval(error, variation, participants=participants).complement
