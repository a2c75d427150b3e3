"""Steering: add multiples ("doses") of a direction to the carried state, and compare the prediction
with that of the algorithm after the corresponding change.

In a handwired transformer, a change of the algorithm's state corresponds to an exact change of the
latents: the smallest one that its readout shows. In any other model the direction is fitted
(:func:`fitted_direction`), or passed by the user, such as the direction of a probe. Random
directions of equal norm are the control. If doses move the prediction as in the algorithm, this is
evidence that the model *uses* the direction near these inputs. Large doses leave the range of the
data; agreement is not required there.

    >>> import interp
    >>> model = interp.load("wma-handwired", n_experts=3).double()
    >>> episodes = interp.tasks.experts.sample(n_episodes=8, n_rounds=6, n_experts=3, seed=0)
    >>> algorithm = interp.tasks.of(model).explains(model)
    >>> steered = steer(model, episodes, algorithm, Doses("log_weights[e_1]"), round=5)
    >>> bool(steered.table.max_error.max() < 1e-9)
    True
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, cast

import numpy as np
import pandas as pd
import torch
from jaxtyping import Float
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

from interp.core.algorithm import Algorithm, Episodes, Values, participants_of
from interp.core.machine import Machine
from interp.interventions.experiment import Edit, Experiment, Tabulated, run, tabulate_over
from interp.interventions.moves import Writer, decodable
from interp.interventions.pairs import run_of
from interp.interventions.sites import Site, carried_mask, resolve_one, write
from interp.model.run import Rollout, select_rounds
from interp.stats.decoder import RIDGE
from interp.stats.intervals import bootstrap_mean, ratio_interval
from interp.support.checks import (
    array_of,
    checked,
    checked_fields,
    format_value,
    refuse_beyond_machine,
)
from interp.support.errors import require, require_known
from interp.support.provenance import provenance


def has_state_direction(model: Machine) -> bool:
    """Return whether a wanted state of the algorithm can be written into the model's latents (the
    vectors that it carries from round to round). This needs a state that is an exact linear
    function of the latents (``model.state_map``), which only handwired transformers have.
    """
    return model.is_handwired and hasattr(model, "state_map")


def _find_state_map(model: Machine) -> Float[Tensor, "number d_model"]:
    """Return the matrix ``[number, d_model]`` with which a handwired transformer reads numbers of
    the algorithm's state from each latent (vector of the carried state).

    Refuse every model without such a matrix, since its pseudo-inverse is what writes a state:
    learned models, and handwired ones that read their state in another way.
    """
    name = model.name
    require(
        model.is_handwired,
        f"{name!r} is a learned model: it has no exact state; pass a probe's direction",
    )
    require(
        has_state_direction(model),
        f"{name!r} says how its state is read, and not how it is written; pass a direction [row, width], such as that "
        "of interp.interventions.steering.fitted_direction",
    )
    return cast(Tensor, model.state_map)  # type: ignore[attr-defined]


def state_direction(model: Machine, change: ArrayLike) -> Float[Tensor, "latent d_model"]:
    """Return what must be added to a handwired transformer's latents in order to change the
    algorithm's state in them by ``change``, ``[latent, d_model]``. Latents are the vectors that it
    carries from round to round. Of all such changes, the smallest is returned.

    Args:
        model: the handwired transformer.
        change: change of the algorithm's state, in the shape and units of the state of one episode
            and round, such as one log-weight per expert.
    """
    state_map, layout = _find_state_map(model), model.layout
    numbers = array_of("change", change).astype(np.float64)
    wanted = torch.as_tensor(numbers).to(state_map)
    n_latents, width = layout.n_latents, len(state_map)
    example_state = layout.state(torch.zeros((n_latents, width)))
    shape = tuple(wanted.shape)
    require(
        shape == tuple(example_state.shape),
        f"a state change must have {width} numbers for each of {n_latents} latents, got shape {shape}",
    )
    # Of all changes of a latent from which state_map reads the wanted numbers, the pseudo-inverse
    # gives the smallest.
    write_map = torch.linalg.pinv(state_map).T
    return layout.per_latent(wanted) @ write_map  # [latent, number] @ [number, d_model]


@checked
def write_state(
    model: Machine, latents: Float[Tensor, "*batch latent d_model"], state: Tensor
) -> Float[Tensor, "*batch latent d_model"]:
    """Write an algorithm's state into a handwired transformer's latents (the vectors that it
    carries from round to round), by the smallest change of the latents.

    Args:
        model: the handwired transformer.
        latents: the model's latents, ``[*batch, latent, d_model]``.
        state: the wanted state, in the shape that ``model.read_state(latents)`` returns. Leading
            axes may be left out, or further ones put in front.

    Returns:
        The changed latents, ``[*batch, latent, d_model]``.
    """
    state_map = _find_state_map(model)  # [number, d_model]
    current = model.read_state(latents)
    array_of("state", state, finite=True)
    shape, wanted = tuple(state.shape), tuple(current.shape)
    # The shorter of the two shapes must be the end of the longer one.
    fits = shape[-len(wanted) :] == wanted[-len(shape) :]
    require(fits, f"a state of these latents has shape {wanted}, got {shape}")
    change = model.layout.per_latent(state.to(latents) - current)  # [*batch, latent, number]
    # Of all changes of a latent from which state_map reads this change, the pseudo-inverse gives the
    # smallest.
    write_map = torch.linalg.pinv(state_map).T  # [number, d_model]
    return latents + change @ write_map


@checked
def fitted_direction(
    model: Machine,
    episodes: Episodes | Rollout,
    algorithm: Algorithm,
    change: ArrayLike,
    sites: Site | str | Sequence[Site | str] = "latent",
) -> Float[Tensor, "row width"]:
    """Estimate by how much a model's carried state changes when the algorithm's memory changes by
    ``change``. The memory is the algorithm's variable that summarises earlier rounds, such as
    log-weights.

    A decoder of the memory is fitted on episodes. The result is not the weights of the decoder,
    which only say how to *read* the memory. It is the change of the carried state that goes along
    with this change of the memory in the episodes (:meth:`interp.stats.decoder.Decoder.move`).

    Args:
        model: the model.
        episodes: episodes on which the decoder is fitted, or a rollout of them.
        algorithm: the algorithm; ``algorithm.memory`` is the key of its memory.
        change: the change of the memory, in its shape and units.
        sites: "latent" for the whole carried state, or some channels of it: with "latent@h", only
            this channel is decoded and moved.

    Returns:
        The change of the carried state, ``[row, width]``, where a row is a latent or another vector
        of the state. It is 0 in rows that ``sites`` leaves out.
    """
    memory = _find_memory(algorithm)
    base = run_of(model, episodes, "steering")
    values = algorithm.run(base.episodes)
    # Other carried variables are decoded with it, so that the direction leaves them as they are.
    keys = [memory]
    if memory in algorithm.state:
        keys += [key for key in algorithm.state if key != memory]
    layout = base.layout
    place = resolve_one(sites, model, layout)
    decoded = decodable(base, values, keys, sites=place)
    # A decoder that can also change one decoded variable and leave the others as they are.
    writer = Writer.fit(model, base, values, decoded, place, ridge=RIDGE)
    shape, wanted = writer.shapes[memory], array_of("change", change, finite=True)
    wanted_shape = wanted.shape
    require(
        wanted_shape == shape,
        f"the memory of {algorithm.name} has shape {shape}, the change {wanted_shape}",
    )
    # The step is the same in every episode and round: here of one episode, [1 round, row, width].
    (step,) = writer.step({memory: wanted}, shape=(1, 1))
    zeros = torch.zeros_like(base.latents[:1, 0], dtype=torch.float64)  # [1, row, width]
    step_at_site = step.reshape(place.read(zeros, layout).shape)
    return write(zeros, place, layout, step_at_site)[0]


def _find_memory(algorithm: Algorithm) -> str:
    """Return the key of the variable that is the algorithm's memory, such as "log_weights"; refuse
    an algorithm that declares none.
    """
    require(
        algorithm.memory,
        f"{algorithm.name} does not say what it keeps from round to round; give the algorithm memory=...",
    )
    return algorithm.memory


@dataclass(frozen=True, eq=False, kw_only=True)
class _SteeringResult(Tabulated):
    """The result of :func:`steer`: the predicted probability of one outcome at each dose, a
    multiple of a direction of the carried state.

    The table has one row per dose, with means over episodes and 95 % intervals for the model, the
    algorithm and random directions. ``difference`` is the model's probability minus the
    algorithm's, paired by episode. ``score`` is the share of the algorithm's move from dose 0 that
    the model makes: ``1 - sum |model's move - algorithm's| / sum |algorithm's|`` over episodes. 1
    means the same move in every episode, 0 is no better than no move. It is NaN at dose 0, or
    without a dose 0.

    Attributes:
        model, algorithm: probability of the outcome that is read, ``[dose, episode]``.
        random: the model's probability along random directions of equal norm, ``[dose, direction,
            episode]``.
    """

    model: Float[np.ndarray, "dose episode"]
    algorithm: Float[np.ndarray, "dose episode"]
    random: Float[np.ndarray, "dose direction episode"]


def _tabulate(
    doses: Sequence[float],
    model: NDArray[Any],
    algorithm: NDArray[Any],
    random: NDArray[Any],
    participants: Any,
) -> pd.DataFrame:
    """Make the table of a dose-response, with one row per dose.

    Args:
        doses: the doses, as multiples of the direction.
        model, algorithm: predicted probabilities of the outcome, ``[dose, episode]``.
        random: the model's probabilities along random directions, ``[dose, direction, episode]``.
        participants: participant of each episode; intervals are over participants.

    Returns:
        A table with the mean of each curve and its 95 % interval (columns ``NAME``, ``NAME_low``,
        ``NAME_high``), absolute differences from the algorithm (``mean_error``, ``max_error``), and
        the scores that :class:`_SteeringResult` defines.
    """
    mean_random = random.mean(1)  # over directions, [dose, episode]
    difference = model - algorithm
    error = np.abs(difference)
    series = {
        "model": model,
        "algorithm": algorithm,
        "random": mean_random,
        "mean_error": error,
        "difference": difference,
        "random_difference": mean_random - algorithm,
    }
    frame = pd.DataFrame({"dose": doses})
    for name, values in series.items():
        mean, low, high = bootstrap_mean(values.T, participants=participants)
        frame[name] = mean
        frame[f"{name}_low"] = low
        frame[f"{name}_high"] = high
    frame["max_error"] = error.max(1)
    frame["random_mean_error"] = np.abs(random - algorithm[:, None]).mean((1, 2))
    names = ["score", "score_low", "score_high", "random_score"]
    scores = pd.DataFrame(np.nan, index=range(len(doses)), columns=names)
    if 0 in doses:  # a move is the change of the probability from dose 0
        zero = list(doses).index(0)
        for i, dose in enumerate(doses):
            if dose != 0:
                scores.loc[i] = _score_move(
                    model[i] - model[zero],
                    algorithm[i] - algorithm[zero],
                    random[i] - random[zero],
                    participants,
                )
    return frame.join(scores)


def _score_move(
    model_move: NDArray[Any],
    algorithm_move: NDArray[Any],
    random_moves: NDArray[Any],
    participants: Any,
) -> list[float]:
    """Score how well the model's change of probability, from dose 0 to one dose, matches the
    algorithm's.

    Args:
        model_move, algorithm_move: change of the probability in the model and in the algorithm,
            ``[episode]``.
        random_moves: change in the model along random directions, ``[direction, episode]``.
        participants: participant of each episode.

    Returns:
        A list of four numbers: ``1 - sum |model_move - algorithm_move| / sum |algorithm_move|``,
        the two ends of its 95 % interval, and the best score of a random direction.
    """
    errors, sizes = np.abs(model_move - algorithm_move), np.abs(algorithm_move)
    score = ratio_interval(errors, sizes, participants=participants).complement
    best_random = np.nan
    total_size = sizes.sum()
    if total_size:
        smallest_error = np.abs(random_moves - algorithm_move).sum(1).min()
        best_random = 1 - smallest_error / total_size
    return [score.estimate, score.low, score.high, best_random]


@dataclass(frozen=True)
@checked_fields
class Doses:
    """A change of the algorithm's memory (the variable that summarises earlier rounds, such as
    log-weights), and the multiples of it (doses) to apply.

    Attributes:
        change: the change at dose 1, in the shape and units of the memory; or the name of one
            number of the memory, such as "log_weights[e_1]", which then increases by 1.
        sizes: the doses, as multiples of the change.
        direction: the change of the model's carried state at dose 1, ``[row, width]``, such as a
            probe's direction (a tensor or NumPy array). None computes it: exactly for handwired transformers
            (:func:`state_direction`), and for other models by a fit on the steered episodes
            (:func:`fitted_direction`).
    """

    change: ArrayLike | str
    sizes: Sequence[float] = (-4.0, -2.0, -1.0, 0.0, 1.0, 2.0, 4.0)
    direction: ArrayLike | Tensor | None = None

    def __post_init__(self) -> None:
        require(len(self.sizes) > 0, "give at least one dose")
        if not isinstance(self.change, str):
            array_of("change", self.change, finite=True)
        if self.direction is not None:
            array_of("direction", self.direction, finite=True)


@checked
def steer(
    model: Machine,
    episodes: Episodes | Rollout,
    algorithm: Algorithm,
    doses: Doses,
    *,
    round: int,
    of: int | ArrayLike = 1,
    n_random: int = 8,
    seed: int = 0,
) -> _SteeringResult:
    """Add multiples ("doses") of a direction to the state that the model carries into one round.
    Compare the model's prediction with the algorithm's after the same change of its memory (the
    variable that summarises earlier rounds).

    Args:
        model: the model.
        episodes: the episodes, or a rollout of them.
        algorithm: the algorithm that the model is compared with.
        doses: the change of the memory, its multiples, and the direction of the model's state that
            stands for this change.
        round: index of the round; negative numbers count from the end.
        of: index of the outcome whose predicted probability is compared: an integer for all
            episodes, or one integer per episode. With expert advice, for example, pass the vote of
            the expert whose weight is raised.
        n_random: number of random directions of equal norm, for the control.
        seed: seed of the random directions.

    Returns:
        A result whose attributes ``model`` and ``algorithm`` are the probabilities of this outcome
        in both, ``[dose, episode]``. The attribute ``random`` has the model's probabilities along
        random directions, ``[dose, direction, episode]``. Its table has one row per ``dose``, with
        means and 95 % intervals of these three, and of the model's probability minus the
        algorithm's (``difference``).

        The column ``score`` compares moves, which are changes of the probability from dose 0 to
        this dose. It is ``1 - sum |model's move - algorithm's| / sum |algorithm's|`` over episodes.
        1 means equal moves in every episode, 0 is no better than no move.
    """
    memory = _find_memory(algorithm)
    layout = model.layout
    require(n_random >= 1, f"the control needs at least 1 random direction, got {n_random}")
    n_carried = model.initial(1).shape[1:].numel()
    refuse_beyond_machine(
        f"{n_random} random directions", 8.0 * n_random * n_carried * layout.n_positions
    )
    base = run_of(model, episodes, "steering")
    (t,) = select_rounds(round, base.n_rounds)
    outcomes = _find_outcomes(base, of)
    values = algorithm.run(base.episodes)
    change, direction = doses.change, doses.direction
    if isinstance(change, str):
        change = _make_unit_change(change, algorithm, values[memory])
    change = np.asarray(change, dtype=np.float64)
    change_shape, memory_shape = change.shape, values[memory].shape[2:]
    require(
        change_shape == memory_shape,
        f"change must have the shape of what {algorithm.name} keeps, {memory_shape}, got {change_shape}",
    )
    is_exact = direction is None and has_state_direction(model)
    if is_exact:
        direction = state_direction(model, change)
    elif direction is None:
        direction = fitted_direction(model, base, algorithm, change)
    direction = torch.as_tensor(direction).to(base.latents)
    wanted_shape, direction_shape = tuple(base.latents.shape[2:]), tuple(direction.shape)
    require(
        direction_shape == wanted_shape,
        f"a direction must be [row, width] = {wanted_shape}, got {direction_shape}",
    )
    directions = [direction, *_draw_directions(model, direction, n_random, seed)]
    sizes = [float(size) for size in doses.sizes]
    along_directions = _steer_model(model, base, t, sizes, directions, outcomes)
    of_model, of_random = along_directions[:, 0], along_directions[:, 1:]
    of_algorithm = _steer_algorithm(algorithm, values, t, sizes, change, outcomes)
    curves = {
        "model": of_model.mean(1),
        "algorithm": of_algorithm.mean(1),
        "random": of_random.mean((1, 2)),
    }
    name = "each episode's outcome"
    if np.ndim(of) == 0:
        name = base.layout.outcomes[outcomes[0]]
    axes = {"x": "dose", "ylabel": f"probability of {name}"}
    players = participants_of(base.episodes)
    table = _tabulate(sizes, of_model, of_algorithm, of_random, participants=players)
    settings = provenance(
        model,
        algorithm=algorithm.key,
        parameters=dict(algorithm.parameters),
        exact=is_exact,
        round=t,
        n_random=n_random,
        seed=seed,
    )
    return _SteeringResult(
        sentence=_write_sentence(of_model, of_algorithm, of_random),
        table=table,
        picture=lambda figures: figures.curves(tabulate_over({"dose": sizes}, curves), **axes),
        settings=settings,
        model=of_model,
        algorithm=of_algorithm,
        random=of_random,
    )


def _steer_model(
    model: Machine,
    base: Rollout,
    round: int,
    sizes: Sequence[float],
    directions: Sequence[Tensor],
    outcomes: NDArray[np.int64],
) -> NDArray[Any]:
    """Return the model's probability of each episode's outcome, for each dose of each direction,
    ``[dose, direction, episode]``.

    Args:
        model: the model.
        base: the model's rollout.
        round: index of the round whose carried state is changed.
        sizes: the doses, as multiples of the directions.
        directions: changes of the carried state at dose 1, ``[row, width]`` each.
        outcomes: index of the outcome that is read, ``[episode]``.
    """
    edits: dict[str, list[Edit]] = {}
    for i, dose in enumerate(sizes):
        for j, direction in enumerate(directions):
            moved_latents = base.latents[:, [round]] + dose * direction
            edits[f"dose {i} along {j}"] = [Edit.of("latent", moved_latents, model)]
    # Only predictions are read, with the recorded choices: no state after the round is needed.
    effects = run(Experiment(model, base, edits, [round], commit="target", update=False))
    in_round = effects.values[:, :, 0].numpy(force=True)  # [edit, episode, outcome]
    probabilities = in_round[:, np.arange(len(outcomes)), outcomes]
    return np.ascontiguousarray(probabilities).reshape(len(sizes), len(directions), -1)


def _steer_algorithm(
    algorithm: Algorithm,
    values: Values,
    round: int,
    sizes: Sequence[float],
    change: NDArray[np.float64],
    outcomes: NDArray[np.int64],
) -> NDArray[Any]:
    """Return the algorithm's probability of each episode's outcome, from its memory moved by each
    dose, ``[dose, episode]``.

    Args:
        algorithm: the algorithm.
        values: the algorithm's variables in all rounds, ``[episode, round, ...]`` each.
        round: index of the round before which the memory is changed.
        sizes: the doses, as multiples of the change.
        change: change of the memory at dose 1, in its shape.
        outcomes: index of the outcome that is read, ``[episode]``.
    """
    memory = algorithm.memory
    state, inputs = algorithm.select_step_arguments(values, [round])
    by_dose: list[NDArray[Any]] = []
    for dose in sizes:
        changed = values[memory][:, [round]] + dose * change
        _, after = algorithm.step(state, inputs, {memory: changed})
        probabilities = algorithm.distribution(after)  # [episode, round, outcome], of one round
        by_dose.append(probabilities[np.arange(len(outcomes)), 0, outcomes])
    return np.stack(by_dose)


def _make_unit_change(name: str, algorithm: Algorithm, memory: NDArray[Any]) -> NDArray[np.float64]:
    """Return a change of the algorithm's memory that is 1 at the named number and 0 elsewhere.

    Args:
        name: name of one number of the memory, such as "log_weights[e_1]".
        algorithm: the algorithm.
        memory: values of its memory, ``[episode, round, ...]``.

    Returns:
        The change, in the shape of the memory.
    """
    key = algorithm.memory
    names = [f"{key}[{label}]" for label in algorithm.variable(key).labels(memory)]
    require_known("number of the memory", name, names)
    change = np.zeros(memory.shape[2:])
    change.flat[names.index(name)] = 1.0  # labels are in the order of the flattened memory
    return change


def _write_sentence(
    of_model: NDArray[Any], of_algorithm: NDArray[Any], of_random: NDArray[Any]
) -> str:
    """Return the sentence of a dose-response: how far the model's probabilities are from the
    algorithm's, and how far those along random directions are.

    Args:
        of_model, of_algorithm: predicted probability of the outcome, ``[dose, episode]``.
        of_random: the model's probability along random directions, ``[dose, direction, episode]``.
    """
    error = np.abs(of_model - of_algorithm)
    random_error = np.abs(of_random - of_algorithm[:, None]).mean()
    how = "exactly as the algorithm does"
    if error.max() >= 1e-6:
        how = f"to within {error.mean():.2g} of the algorithm's on average over doses"
    return f"Steering moves P(outcome) {how}; random directions miss by {random_error:.2g}."


def _find_outcomes(base: Rollout, of: int | ArrayLike) -> NDArray[np.int64]:
    """Return the index of the outcome that is read in each episode, ``[episode]``.

    Args:
        base: the rollout, which determines the number of episodes and the outcomes.
        of: index of one outcome for all episodes, or one index per episode; other values are
            refused.
    """
    indices, n_outcomes, n_episodes = array_of("of", of), base.layout.n_outputs, base.n_episodes
    is_integer = indices.dtype.kind in "iu"
    has_right_shape = indices.shape in ((), (n_episodes,))
    is_valid = is_integer and has_right_shape and ((indices >= 0) & (indices < n_outcomes)).all()
    require(
        is_valid,
        f"of must be the number of an outcome from 0 to {n_outcomes - 1}, for all or one for each of the "
        f"{n_episodes} episodes, got {format_value(of)}",
    )
    return np.broadcast_to(indices.astype(np.int64), (n_episodes,))


def _draw_directions(
    model: Machine, direction: Float[Tensor, "row width"], n: int, seed: int
) -> Float[Tensor, "direction row width"]:
    """Draw random directions with the same norm as ``direction``. They are 0 in the rows in which
    ``direction`` is 0, and in padding.

    Args:
        model: the model, which determines which entries of the carried state are padding.
        direction: the direction, ``[row, width]``.
        n: number of random directions.
        seed: seed of the draw.

    Returns:
        The random directions, ``[direction, row, width]``.
    """
    generator = np.random.default_rng(seed)
    drawn = generator.standard_normal((n, *direction.shape))
    normal = torch.as_tensor(drawn).to(direction)
    is_moved_row = (direction.norm(dim=-1) > 0).unsqueeze(-1)  # [row, 1]
    is_used = carried_mask(model)[: len(direction)].to(direction.device)
    noise = normal * (is_moved_row & is_used)
    norms = noise.flatten(1).norm(dim=1).clamp_min(1e-30)  # a direction of 0 stays 0, not NaN
    return noise / norms[:, None, None] * direction.norm()
