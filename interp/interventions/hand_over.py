"""Transfer the memory of one model to another in the middle of an episode, and compare memories.

The state that a model carries into one round is decoded into variables of an algorithm. These are
then written into another model, or passed to the algorithm itself, which continues the episode. A
receiver that computes from the same variables predicts as if it had seen the whole episode. Both
maps are affine, and are fitted at that round on other episodes. A memory with a nonlinear code is
transferred badly, which is no evidence that it does not exist.

    >>> import interp
    >>> gru, receiver = interp.load("wma-gru"), interp.load("wma-handwired", n_experts=4)
    >>> episodes = interp.tasks.experts.sample(n_episodes=32, n_rounds=20, n_experts=4, seed=1)
    >>> result = hand_over(interp.rollout(gru, episodes), 10, to=receiver)
    >>> result.read, result.share.estimate > 0.9
    (('counts',), True)
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pandas as pd
import torch
from jaxtyping import Float
from numpy.typing import NDArray
from torch import Tensor

from interp.core import catalog
from interp.core.algorithm import Algorithm, Episodes, Values, participants_of
from interp.core.machine import Machine
from interp.interventions.experiment import Tabulated, run_on, tabulate_over
from interp.interventions.interchange import flatten_elements
from interp.interventions.moves import Writer, score_second_half
from interp.interventions.pairs import run_of
from interp.interventions.sites import carried_mask
from interp.model.rollout import rollout
from interp.model.run import Rollout
from interp.stats.decoder import RIDGE, Affine
from interp.stats.intervals import Interval, mean_interval, ratio_interval
from interp.support.checks import checked, checked_fields, checked_result, integer
from interp.support.errors import InputError, require, require_known
from interp.support.provenance import provenance

_FITTING_SEED = 7_001
"""Seed of the episodes for fitting the maps; no default and no example uses it."""
_MIN_R2 = 0.5
"""A variable counts as decoded if its R2 on held-out episodes is at least this."""

_Distributions = Float[np.ndarray, "episode round outcome"]
_Carried = Float[Tensor, "episode row width"]
_State = dict[str, NDArray[np.float64]]
"""The variables of one round, each ``[episode, 1, ...]``."""


@dataclass(frozen=True, eq=False, kw_only=True)
@checked_fields
class Memory:
    """The state that a model carries into one round, decoded into variables of an algorithm.

    Attributes:
        round: index of the round that reads the state.
        state: key of a decoded variable -> its decoded values, ``[episode, 1, ...]``; the second
            axis is this one round.
        not_read: keys of the algorithm's variables that could not be decoded from the state.
        constant: keys of the algorithm's variables that have the same value in all episodes of
            ``known`` in this round, such as the number of past rounds. They need no decoding.
        known: the episodes on which the decoder was fitted (others than the decoded ones).
        known_state: key of a decoded variable -> its values in the episodes of ``known`` in this
            round, computed by the algorithm, ``[episode, 1, ...]``.
    """

    round: int
    state: _State
    not_read: tuple[str, ...]
    constant: tuple[str, ...]
    known: Episodes
    known_state: Values


@dataclass(frozen=True, eq=False, kw_only=True)
@checked_result
class HandOver(Tabulated):
    """Predictions of a *receiver* (a model or an algorithm) that continues episodes from one round
    on. It starts with a *memory*: the state that another model carried into this round.

    Predictions are probabilities ``[episode, round, outcome]``, from the round of the transfer on.
    The table has one row per ``memory`` that the receiver starts with ("handed over", "another
    episode's", "starts anew"). ``distance`` compares its predictions with those of a receiver that
    played the whole episode. It is half the sum of absolute differences of probabilities, averaged
    over rounds and episodes, with its 95 % interval (``low``, ``high``).

    Attributes:
        round: index of the first round that the receiver plays.
        read: keys of the algorithm's variables that were decoded and transferred.
        not_read: keys of the algorithm's variables that could not be decoded. A receiving model
            gets a typical value of these for this round, and a receiving algorithm keeps their
            initial values. Variables with the same value in every episode, such as the number of
            past rounds, are in neither tuple: the receiver gets this value.
        handed_over: predictions with the other model's memory of the same episode.
        saw_everything: predictions of a receiver that played the whole episode itself.
        starts_anew: predictions with the receiver's initial memory.
        another_episode: predictions with the other model's memory of another episode.
        share: ``1 - |handed_over - saw_everything| / |starts_anew - saw_everything|``, with
            absolute differences summed over outcomes, rounds and episodes, and its 95 % interval.
            It is 1 if the transferred memory works like the receiver's own, and 0 if it is no
            better than an initial memory.
    """

    round: int
    read: tuple[str, ...]
    not_read: tuple[str, ...]
    handed_over: _Distributions
    saw_everything: _Distributions
    starts_anew: _Distributions
    another_episode: _Distributions
    share: Interval


@checked
def hand_over(
    run: Rollout,
    round: int,
    to: Machine | Algorithm,
    *,
    via: Algorithm | None = None,
    n_known: int = 256,
) -> HandOver:
    """Transfer the state that a model carries into one round to a receiver (another model or an
    algorithm), which continues the episodes. The state is decoded into variables of an algorithm,
    which are written into the receiver.

    Args:
        run: a rollout of the model from which the memory is taken.
        round: index of the first round that the receiver plays, at least 1; negative numbers count
            from the end.
        to: the receiver: a model of the same task and sizes, or an algorithm, whose variables are
            set directly.
        via: algorithm that defines the decoded variables. The default is the receiver if it is an
            algorithm, otherwise the algorithm that the task names for the first model.
        n_known: number of sampled episodes on which the decoder and the map into the receiver are
            fitted. About 1000 are needed if the state has thousands of numbers, such as a cache.

    Returns:
        The receiver's predictions with the transferred memory. For comparison, its predictions
        after it played the whole episode, with its initial memory, and with the memory of another
        episode.

    Raises:
        InputError: if the round is not in the run, rounds are missing, there is one episode only,
            or the receiver cannot play the episodes. Also if no variable can be decoded, or the
            receiving algorithm does not carry the decoded ones.
    """
    require(run.n_episodes >= 2, "another episode's memory is a control: give 2 episodes or more")
    algorithm = via
    if algorithm is None:
        algorithm = to if isinstance(to, Algorithm) else catalog.of(run.layout).explains(run.model)
    memory = read_memory(run, round, algorithm, n_known=n_known)
    # The control: every episode gets the memory of the episode before it.
    shifted_state = {key: np.roll(numbers, 1, axis=0) for key, numbers in memory.state.items()}
    memories = [memory, replace(memory, state=shifted_state)]
    if isinstance(to, Algorithm):
        predictions = _play_algorithm(to, run.episodes, memories)
    else:
        predictions = _play_machine(to, run.episodes, memories)
    settings = provenance(
        run.model,
        to=to.name,
        via=algorithm.key,
        round=memory.round,
        known_seed=_FITTING_SEED,
        n_known=n_known,
    )
    return _summarize(run, memory, predictions, receiver=to.name, settings=settings)


@checked
def read_memory(run: Rollout, round: int, via: Algorithm, *, n_known: int = 256) -> Memory:
    """Decode the state that a model carries into one round into variables of an algorithm.

    The decoder is fitted on new episodes of the task's sampler. In ``interp.tasks.using`` it is
    fitted on recorded episodes, those of the first half of the participants (``task.for_half(0)``).
    A rollout of the second half, ``task.for_half(1)``, was then not seen by the decoder.

    Args:
        run: a rollout of the model.
        round: index of the round that reads the state, at least 1; negative numbers count from the
            end.
        via: algorithm whose variables are decoded.
        n_known: number of episodes on which the decoder is fitted.

    Returns:
        The decoded variables, and the keys of those that could not be decoded (an R2 below 0.5 on
        held-out episodes).
    """
    round = _find_round(round, run.n_rounds)
    integer("n_known", n_known, 8)
    base = run_of(run.model, run, "reading a memory")
    task = catalog.of(run.model)
    sizes = task.sizes_of(run.episodes)
    half = task.for_half(0)  # the task itself if episodes are generated
    known = half.sample_for(run.model, n_known, round + 1, seed=_FITTING_SEED, sizes=sizes)
    n_rounds = known.n_rounds
    require(
        round < n_rounds,
        f"the decoder of round {round} is fitted on recorded episodes, which have {n_rounds} rounds; give an earlier "
        "round, or read the memory outside interp.tasks.using",
    )
    values = via.run(known)  # key -> [episode, round, ...]
    decoder, not_read, constant = _fit_decoder(run.model, known, via, values, round)
    return Memory(
        round=round,
        state=decoder.read(base.latents[:, [round]]),
        not_read=not_read,
        constant=constant,
        known=known,
        known_state={key: values[key][:, [round]] for key in decoder.shapes},
    )


@checked
def write_memory(memory: Memory, receiver: Machine, run: Rollout) -> _Carried:
    """Make a carried state of the receiver from variables that were decoded from another model. An
    affine map from the variables to the receiver's states is fitted on the episodes of
    ``memory.known``.

    Args:
        memory: the decoded variables, for as many episodes as ``run`` has.
        receiver: the model that the state is for.
        run: the receiver's rollout. Padding and other entries of its state that hold no memory are
            copied into the new state (:func:`keep_padding`).

    Returns:
        The state that the receiver reads in the memory's round, ``[episode, row, width]``.
    """
    known_states = rollout(receiver, memory.known).latents[:, memory.round]  # [episode, row, width]
    known_numbers = known_states.flatten(1).double().cpu()  # [episode, row * width]
    encode = Affine.fit(_join_variables(memory.known_state), known_numbers)
    states = encode(_join_variables(memory.state)).reshape(-1, *known_states.shape[1:])
    return keep_padding(states, run, memory.round)


def keep_padding(states: Tensor, run: Rollout, round: int) -> _Carried:
    """Copy entries that hold no memory from a run's carried state into new states. They are the
    padding of rows to a common width, and the length of a part that grows, such as a cache.

    Args:
        states: the new states, ``[episode, row, width]``.
        run: the rollout with the right lengths and padding.
        round: index of the round that reads the states.

    Returns:
        The new states with these entries replaced, ``[episode, row, width]``.
    """
    state_of_run = run.latents[:, round]
    n_rows = state_of_run.shape[1]
    holds_memory = carried_mask(run.model)[:n_rows].to(state_of_run.device)  # [row, width]
    return torch.where(holds_memory, states.to(state_of_run), state_of_run)


@checked
def state_difference(
    first: Rollout,
    second: Rollout,
    round: int,
    *,
    via: Algorithm | None = None,
    n_known: int = 256,
) -> pd.DataFrame:
    """Compare the states that two runs carry into one round, in the variables of an algorithm.

    Args:
        first: a rollout.
        second: a rollout of another model on the same episodes, or of the same model on as many
            other episodes.
        round: index of the round that reads the states, at least 1; negative numbers count from the
            end.
        via: the algorithm; by default the one that the task names for the first model.
        n_known: number of sampled episodes on which the decoders are fitted.

    Returns:
        One row per episode and element of a variable that can be decoded from both states. Columns
        are ``episode`` (its index), ``variable`` (its key) and ``element`` (its label, such as the
        name of an expert). ``first`` and ``second`` are the values decoded from the two runs, and
        ``difference`` is second minus first. The largest absolute difference comes first.

    Example:
        >>> import interp
        >>> from interp.tasks import experts
        >>> model = interp.load("wma-handwired", n_experts=2)
        >>> runs = [interp.rollout(model, experts.sample(4, 6, 2, seed=seed)) for seed in (0, 1)]
        >>> list(state_difference(*runs, round=5).columns)
        ['episode', 'variable', 'element', 'first', 'second', 'difference']
    """
    round = _find_round(round, min(first.n_rounds, second.n_rounds))
    require(
        first.n_episodes == second.n_episodes,
        f"the runs have {first.n_episodes} and {second.n_episodes} episodes; give two runs of as many episodes",
    )
    algorithm = via or catalog.of(first.layout).explains(first.model)
    states = []
    for run in (first, second):
        states.append(read_memory(run, round, algorithm, n_known=n_known).state)
    shared = [key for key in states[0] if key in states[1]]
    names = f"{first.model.name!r} and {second.model.name!r}"
    require(
        shared,
        f"{names} show no variable of {algorithm.name} in common at round "
        f"{round}; give another algorithm as via=",
    )
    values = algorithm.run(first.episodes)
    n_episodes = first.n_episodes
    frames = []
    for key in shared:
        labels = algorithm.variable(key).labels(values[key])
        # [element, episode]
        in_first, in_second = [state[key].reshape(n_episodes, -1).T for state in states]
        for label, of_first, of_second in zip(labels, in_first, in_second, strict=True):
            columns = {
                "episode": range(n_episodes),
                "variable": key,
                "element": label,
                "first": of_first,
                "second": of_second,
                "difference": of_second - of_first,
            }
            frames.append(pd.DataFrame(columns))
    table = pd.concat(frames)
    return table.sort_values("difference", key=np.abs, ascending=False, ignore_index=True)


def _find_round(round: int, n_rounds: int) -> int:
    """Return the index of a round of a run with ``n_rounds`` rounds, counted from 0; ``round`` may
    count from the end. Refuse the first round, and a round that is not in the run.
    """
    index = round + n_rounds if round < 0 else round
    require(
        1 <= index < n_rounds,
        f"round must be from 1, the first that has a memory, to {n_rounds - 1}, the last of the run, got {round}",
    )
    return index


def _fit_decoder(
    machine: Machine, known: Episodes, algorithm: Algorithm, values: Values, round: int
) -> tuple[Writer, tuple[str, ...], tuple[str, ...]]:
    """Fit an affine decoder from a model's carried state to the variables that an algorithm carries
    from round to round. A variable counts as decodable if its R2 on held-out episodes is at least
    .5.

    A variable with the same value in all episodes at this round is skipped.

    Args:
        machine: the model.
        known: episodes for fitting.
        algorithm: the algorithm with the variables.
        values: key of a variable -> its values in these episodes, ``[episode, round, ...]``.
        round: index of the round that reads the state.

    Returns:
        The decoder, as a :class:`~interp.interventions.moves.Writer`; the keys of the variables
        that cannot be decoded; and the keys of the skipped variables.
    """
    run = rollout(machine, known)
    ridge = 0.0 if machine.is_handwired else RIDGE  # handwired states are exact
    read, not_read, constant = [], [], []
    for key in algorithm.state:
        target = flatten_elements(values[key][:, [round]])  # [episode, 1, element]
        squared_error, variation = score_second_half(run.latents[:, [round]], target, ridge)
        if variation == 0:
            constant.append(key)
        elif squared_error <= (1 - _MIN_R2) * variation:  # R2 is 1 - squared_error / variation
            read.append(key)
        else:
            not_read.append(key)
    if not read:
        names = ", ".join(algorithm.state) or "none"
        raise InputError(
            f"no affine map reads a variable that {algorithm.name} carries ({names}) "
            f"from {machine.name!r} before round {round}; raise n_known=, give another "
            "algorithm as via=, or hand over in a later round"
        )
    # A Writer decodes variables, and could also change them, which is not needed here.
    decoder = Writer.fit(machine, run, values, read, round=round, ridge=ridge)
    return decoder, tuple(not_read), tuple(constant)


def _play_machine(
    receiver: Machine, episodes: Episodes, memories: list[Memory]
) -> list[_Distributions]:
    """Return a model's predictions from one round on, once for each of several states that it
    carries into this round.

    Args:
        receiver: the model.
        episodes: the episodes.
        memories: memories to write, all of the same round.

    Returns:
        Predictions ``[episode, round, outcome]``: one array for each memory, one with the state
        that the receiver carries after the earlier rounds, and one with its initial state.
    """
    run = rollout(receiver, episodes)
    round = memories[0].round
    starts = [write_memory(memory, receiver, run) for memory in memories]
    starts.append(run.latents[:, round])  # it played all earlier rounds
    # It starts anew. Its initial state gets only the padding, and the length of a cache, that the
    # model expects in this round.
    starts.append(keep_padding(run.latents[:, 0], run, round))
    n_later = run.n_rounds - round
    predictions = []
    for start in starts:
        one_round = start.unsqueeze(1)  # [episode, round, row, width]
        outputs = run_on(receiver, run, [round], n_later, one_round)
        # Index 0: the only edit and the only first round. [episode, lag, ...]
        prediction = outputs.predictions[0, :, 0]
        distributions = run.layout.distribution(prediction.double())
        predictions.append(distributions.numpy(force=True))
    return predictions


def _play_algorithm(
    receiver: Algorithm, episodes: Episodes, memories: list[Memory]
) -> list[_Distributions]:
    """Return an algorithm's predictions from one round on, once for each of several states that it
    carries into this round.

    Args:
        receiver: the algorithm.
        episodes: the episodes.
        memories: memories to start from, all of the same round.

    Returns:
        Predictions ``[episode, round, outcome]``: one array for each memory, one with the state
        that the receiver carries after the earlier rounds, and one with its initial state.
    """
    first = memories[0]
    for key in first.state:
        require_known(f"variable that {receiver.name} carries", key, receiver.state)
    round = first.round
    before, inputs = receiver.select_step_arguments(receiver.run(episodes), slice(round, None))
    initial = receiver.start(episodes)
    # Index 0: the state before the first round that is played, [episode, ...]
    after_earlier_rounds = {key: numbers[:, 0] for key, numbers in before.items()}
    # Variables with one value in all episodes, such as the number of past rounds.
    common = {key: after_earlier_rounds[key] for key in first.constant if key in initial}
    starts = []
    for memory in memories:
        handed_over = {
            key: _restore_ties(numbers, memory.known_state[key])[:, 0]
            for key, numbers in memory.state.items()
        }
        # Variables that were not decoded start anew.
        starts.append({**initial, **common, **handed_over})
    starts += [after_earlier_rounds, initial]
    n_later = episodes.n_rounds - round
    predictions = []
    for start in starts:
        # The state before each round, from which one step computes the predictions of all rounds.
        by_round = receiver.unroll(start, inputs, n_episodes=len(episodes), n_rounds=n_later)
        # [episode, round, ...]; a step is the same equations in every round
        _, computed = receiver.step(by_round, inputs)
        predictions.append(receiver.distribution(computed))
    return predictions


def _restore_ties(decoded: NDArray[Any], known: NDArray[Any]) -> NDArray[Any]:
    """Round decoded values to multiples of a millionth of the largest known value.

    Values that are equal in the algorithm differ by rounding errors when they are decoded. An
    algorithm that breaks ties at random would then always choose the larger one.

    Args:
        decoded: decoded values of a variable.
        known: the algorithm's values of this variable in the episodes for fitting; not all 0.
    """
    unit = np.abs(known).max() / 1e6
    return np.round(decoded / unit) * unit


def _join_variables(state: Values) -> Tensor:
    """Return the elements of all variables of one round, concatenated, ``[episode, element]``.

    Args:
        state: key of a variable -> its values in this round, ``[episode, 1, ...]``.
    """
    parts = [flatten_elements(numbers) for numbers in state.values()]  # [episode, 1, element] each
    return torch.from_numpy(np.concatenate(parts, axis=-1)[:, 0])


def _summarize(
    run: Rollout,
    memory: Memory,
    predictions: list[_Distributions],
    receiver: str,
    settings: dict[str, Any],
) -> HandOver:
    """Measure how far a receiver's predictions from each memory are from its own predictions after
    it has read the whole episode itself, and return the result.

    Args:
        run: the rollout of the first model.
        memory: the memory that was transferred.
        predictions: the receiver's predictions, with the memory of the same episode, with that of
            another episode, after the whole episode, and with its initial memory.
        receiver: name of the receiver.
        settings: settings of the analysis.
    """
    handed_over, another_episode, saw_everything, starts_anew = predictions
    participants = participants_of(run.episodes)
    round, not_read = memory.round, memory.not_read
    predictions_by_memory = {
        "handed over": handed_over,
        "another episode's": another_episode,
        "starts anew": starts_anew,
    }
    distances = {}
    rows = []
    for name, predicted in predictions_by_memory.items():
        # Total variation distance, from 0 to 1, [episode, round]
        distance = np.abs(predicted - saw_everything).sum(-1) / 2
        distances[name] = distance
        mean = mean_interval(distance.mean(1), participants=participants)
        row = {"memory": name, "distance": mean.estimate, "low": mean.low, "high": mean.high}
        rows.append(row)
    distance_after = distances["handed over"].sum(1)
    distance_anew = distances["starts anew"].sum(1)
    share = ratio_interval(distance_after, distance_anew, participants=participants).complement
    rounds = {"round": range(round, run.n_rounds)}
    lines = tabulate_over(rounds, {name: distance.mean(0) for name, distance in distances.items()})
    missing = f"; not read: {', '.join(not_read)}" if not_read else ""
    sentence = (
        f"{receiver} plays on from round {round} with the memory of {run.model.name} and makes up {share} of "
        f"what it misses when it starts anew{missing}."
    )
    axes = {"x": "round", "ylabel": "distance from the receiver that saw everything"}
    return HandOver(
        sentence=sentence,
        table=pd.DataFrame(rows),
        picture=lambda figures: figures.curves(lines, **axes),
        settings=settings,
        round=round,
        read=tuple(memory.state),
        not_read=not_read,
        handed_over=handed_over,
        another_episode=another_episode,
        saw_everything=saw_everything,
        starts_anew=starts_anew,
        share=share,
    )
