"""Change one decoded variable of an activation and measure the effect; test whether decoded states
follow the algorithm's update.

A :class:`Writer` has a decoder of variables. :func:`move` changes an activation so that one decoded
variable changes by a chosen amount and the other decoded variables stay equal. To set a variable to
a value, use ``by={key: wanted[key] - current[key]}``. The outcome is compared with that of the
algorithm after the same change. The control, :meth:`Writer.placebo`, is a change of equal length in
a direction that is orthogonal to all changes of decoded variables.

:func:`transition` tests whether the state decoded after a round is the algorithm's update of the
state decoded before it. docs/method/moves.md says how both are scored.

    >>> import interp
    >>> from interp.interventions.moves import Writer, move
    >>> from interp.model.rollout import rollout
    >>> from interp.tasks import experts
    >>> model = interp.load("wma-handwired", n_experts=4).double()
    >>> algorithm = experts.TASK.algorithm("weighted_majority", gain=0.5)
    >>> known, episodes = (experts.sample(16, 12, 4, seed=seed) for seed in (0, 1))
    >>> writer = Writer.fit(model, rollout(model, known), algorithm.run(known), ("log_weights",))
    >>> move(model, episodes, algorithm, writer, by={"log_weights": [1.0, 0, 0, 0]}).score().estimate > 0.999999
    True
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import prod
from typing import Any

import numpy as np
import pandas as pd
import torch
from jaxtyping import Float
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

from interp.core.algorithm import Algorithm, Episodes, Values, participants_of
from interp.core.machine import Machine
from interp.interventions.experiment import Edit, Outcome, Tabulated, run_on, tabulate_over
from interp.interventions.interchange import (
    InterchangeResult,
    compare_outcomes,
    flatten_elements,
    require_comparable,
    variables_in_rounds,
)
from interp.interventions.pairs import run_of
from interp.interventions.sites import VECTOR_AXES, Site, carried_mask, resolve_one, write
from interp.model.layout import RoundLayout
from interp.model.rollout import replay
from interp.model.run import Rollout, Rounds, select_rounds
from interp.stats.decoder import RANK, RIDGE, Decoder
from interp.stats.intervals import Interval, ratio_interval
from interp.support.checks import array_of, check_number, checked, checked_result, non_empty
from interp.support.errors import convert_errors, require, require_known
from interp.support.provenance import provenance

# Share of a variable that latents must explain, of what earlier variables leave open.
_MIN_EXPLAINED_SHARE = 0.5


@dataclass(frozen=True)
@checked_result
@checked
class Writer:
    """A fitted decoder of an algorithm's variables from the activation at one site of a model. It
    can also change the activation, so that one decoded variable changes and the others stay equal.

    Attributes:
        site: the site.
        shapes: key of a decoded variable -> its shape.
        size: number of rows (vectors) of the activation, and their width: (rows, width). The
            carried state has a row per latent; a site at a single position has one row.
        decoder: decoder from the activation to the concatenated elements of all variables.
        control_direction: only for a control (:meth:`placebo`): unit vector ``[row, width]`` along
            which the activation is changed instead, by the same length. Otherwise None.
        is_used: False for entries of the activation that must not be changed, such as padding,
            ``[row, width]``; None if there are none.
    """

    site: Site
    shapes: Mapping[str, tuple[int, ...]]
    size: tuple[int, int]
    decoder: Decoder
    control_direction: Tensor | None = None
    is_used: Tensor | None = None

    @classmethod
    def fit(
        cls,
        model: Machine,
        run: Rollout,
        values: Values,
        keys: Sequence[str],
        sites: Site | str | Sequence[Site | str] = "latent",
        *,
        round: Rounds = "all",
        ridge: float = 0.0,
    ) -> Writer:
        """Fit a decoder of some variables from an activation on a rollout. The decoder can also
        change the variables; do so in other episodes than those that it is fitted on.

        Args:
            model: the model.
            run: the model's rollout.
            values: an algorithm's variables in the same episodes: key -> values ``[episode, round,
                ...]``, as ``algorithm.run(episodes)`` returns them.
            keys: keys of the variables. One decoder reads all of them, so that each can be changed
                while the others stay equal.
            sites: the site of the activation. "latent" is the state that the round reads;
                "latent@h+c" or ["latent@h", "latent@c"] are some of its channels (named parts).
                Other possible sites are those of a transformer's residual stream, or hook points of
                another model.
            round: rounds to fit on: an int, a slice, a list or "all".
            ridge: ridge penalty of the decoder.
        """
        place = resolve_one(sites, model, run.layout)
        require(
            place.kind.axes in VECTOR_AXES,
            "a variable is moved in what is carried, in the residual stream or in a plain vector, not at "
            f"{str(place)!r}, inside a head or along several axes",
        )
        _require_variables(run, values, non_empty("keys", keys, "a variable"))
        check_number("ridge", ridge, 0)
        rounds = select_rounds(round, run.n_rounds)
        target = np.concatenate([flatten_elements(values[key][:, rounds]) for key in keys], -1)
        shapes = {key: tuple(np.shape(values[key])[2:]) for key in keys}
        is_used = None
        if place.kind.axes == "latent":
            activation = _read_state(run.latents[:, rounds], place, run.layout)
            n_rows, width = activation.shape[-2:]
            _, rows = place.index(run.layout)  # index of the batch, and of the rows of the state
            # False for padding, and for the length of a cache, which would tell the round. It has all
            # rows that the model can carry, and this run may carry fewer.
            mask = carried_mask(model)[rows].reshape(-1, width)[:n_rows]
            if not mask.all():
                is_used = mask
                activation = activation * is_used
        else:
            activation = _read_point(model, run, place, rounds)
            n_rows, width = activation.shape[-2:]
        decoder = Decoder.fit(activation, target, ridge=ridge)
        return cls(place, shapes, size=(n_rows, width), decoder=decoder, is_used=is_used)

    @classmethod
    def of_state(
        cls,
        model: Machine,
        run: Rollout,
        algorithm: Algorithm,
        episodes: Episodes,
        *,
        sites: Site | str | Sequence[Site | str] = "latent",
        ridge: float = RIDGE,
    ) -> Writer:
        """Fit a writer for variables that an algorithm carries from round to round. A writer
        decodes variables from a model's carried state, and can also change them.

        Candidates are the carried variables from which the algorithm computes its memory, the
        variable that summarises earlier rounds, such as log-weights. Without a memory, all carried
        variables are candidates. The first candidate is always decoded. Each further one is decoded
        only if it is predicted much better by the model's carried state than by the earlier
        candidates (:func:`decodable`).

        Args:
            model: the model.
            run: the model's rollout.
            algorithm: the algorithm.
            episodes: episodes of the rollout.
            sites: "latent" for the whole carried state, or some channels (named parts) of it, such
                as "latent@h".
            ridge: ridge penalty of the decoder.
        """
        require(
            algorithm.state,
            f"{algorithm.name} carries nothing from round to round, so no latent can hold it",
        )
        values = algorithm.run(episodes)
        candidates = list(algorithm.state)
        memory = algorithm.memory
        if memory:
            # Only those from which the memory is computed.
            candidates = [key for key in candidates if memory in algorithm.downstream([key])]
        place = resolve_one(sites, model, run.layout)
        keys = decodable(run, values, candidates, sites=place, ridge=ridge)
        return cls.fit(model, run, values, keys, place, ridge=ridge)

    def step(
        self, changes: Mapping[str, ArrayLike], shape: tuple[int, int]
    ) -> Float[Tensor, "episode round row width"]:
        """Return what must be added to the activation in order to change decoded variables by
        ``changes``, while the other decoded variables stay equal. The result is
        ``[episode, round, row, width]``, where rows are the vectors of the activation.

        Args:
            changes: key -> change of this variable, of a shape that broadcasts to ``[episode,
                round, *shape of the variable]``; missing keys are not changed.
            shape: number of episodes and number of rounds of the result.
        """
        for key in changes:
            require_known("variable of this writer", key, self.shapes)
        parts: list[NDArray[np.float64]] = []
        for key, variable_shape in self.shapes.items():
            change = array_of(key, changes.get(key, 0), finite=True)
            wanted = (*shape, *variable_shape)
            message = f"the variable has shape {wanted}; by[{key!r}] has shape {change.shape}"
            with convert_errors(message, of=ValueError):
                parts.append(flatten_elements(np.broadcast_to(change, wanted)))
        # From zeros, the moved activation is the step itself.
        zeros = torch.zeros(*shape, *self.size, dtype=torch.float64)
        elements = torch.from_numpy(np.concatenate(parts, -1))  # [episode, round, element]
        step = self.decoder.move(zeros, elements)
        direction = self.control_direction
        if direction is None:
            return step
        # The control of placebo(): as far as the step, but along a direction that is orthogonal to
        # all steps. It shows what any change of this length does.
        distance = step.flatten(2).norm(dim=-1)  # [episode, round]
        return distance[..., None, None] * direction

    def read(self, activation: Float[Tensor, "*batch row width"]) -> dict[str, NDArray[np.float64]]:
        """Decode the variables from an activation ``[*batch, row, width]``. Return a dictionary:
        key of each variable -> its decoded values, ``[*batch, *shape of the variable]``.
        """
        shape = tuple(activation.shape)
        size = self.size
        require(
            shape[-2:] == size,
            f"the activation must end in {list(size)}, got shape {shape}",
        )
        decoded = self.decoder(activation).numpy(force=True)  # [*batch, element of all variables]
        variables: dict[str, NDArray[np.float64]] = {}
        start = 0
        for key, variable_shape in self.shapes.items():
            end = start + prod(variable_shape)
            variables[key] = decoded[..., start:end].reshape(*shape[:-2], *variable_shape)
            start = end
        return variables

    def placebo(self, seed: int = 0) -> Writer:
        """Return a control of this writer: it changes the activation by the same distances, but
        always in one random direction, drawn with ``seed``. The direction is orthogonal to all
        changes that this writer makes.
        """
        steps = self.decoder.affine.steps.double().cpu()  # [element, row * width]
        # The left singular vectors are an orthonormal basis of all steps, [row * width, step];
        # those with a singular value of 0 are in no step's direction.
        vectors, sizes, _ = torch.linalg.svd(steps.T, full_matrices=False)
        is_spanned = sizes > 1e-9 * sizes.max()
        basis = vectors[:, is_spanned]
        n_numbers = len(basis)
        # 1 for the numbers that may be changed, 0 for padding, which stays 0. Without padding
        # (None), all may be changed.
        is_used = torch.ones(n_numbers) if self.is_used is None else self.is_used.flatten().cpu()
        n_used = int(is_used.sum())
        require(
            basis.shape[1] < n_used,
            f"what is decoded at {str(self.site)!r} fills its {n_used} dimensions; decode fewer variables there",
        )
        generator = np.random.default_rng(seed)
        drawn = torch.from_numpy(generator.standard_normal(n_numbers)) * is_used
        direction = drawn - basis @ (basis.T @ drawn)  # without its projection on the steps
        unit = direction / direction.norm()
        return replace(self, control_direction=unit.reshape(self.size))


def _require_variables(run: Rollout, values: Values, keys: Sequence[str]) -> None:
    """Raise an error unless every key is a variable with a finite number for each round of the run,
    and no key is repeated.

    Args:
        run: the rollout, which determines the numbers of episodes and rounds.
        values: key -> values of the variable, ``[episode, round, ...]``.
        keys: keys of the needed variables.
    """
    shape = run.n_episodes, run.n_rounds
    for key in keys:
        require_known("variable", key, values, limit=40)
        shape_of_values = array_of(key, values[key], finite=True).shape
        require(
            shape_of_values[:2] == shape,
            f"{key} must be [episode, round, ...] = {[*shape, '...']}, got {shape_of_values}",
        )
    are_different = len(set(keys)) == len(keys)
    require(are_different, f"keys name a variable twice: {', '.join(keys)}")


def _read_point(
    model: Machine, run: Rollout, place: Site, rounds: Sequence[int]
) -> Float[Tensor, "episode round row width"]:
    """Return the activation at a hook point in some rounds, ``[episode, round, row, width]``.

    Args:
        model: the model.
        run: the model's rollout, which is replayed.
        place: the site of the hook point.
        rounds: indices of the rounds.
    """
    _, _, cache = replay(model, run, rounds=rounds, names_filter=[place.hook])
    rows = place.read(cache[place.hook].flatten(0, 1), run.layout)
    width = rows.shape[-1]
    return rows.reshape(run.n_episodes, len(rounds), -1, width)


def _read_state(
    latents: Tensor, place: Site, layout: RoundLayout
) -> Float[Tensor, "episode round row width"]:
    """Return all or some rows (latents) of the carried state, ``[episode, round, row, width]``.

    Args:
        latents: carried states, ``[episode, round, row, width]``.
        place: the site, which selects the rows.
        layout: token layout of the rounds.
    """
    n_episodes, n_rounds, *_, width = latents.shape
    rows = place.read(latents.flatten(0, 1), layout)
    return rows.reshape(n_episodes, n_rounds, -1, width)


@checked
def decodable(
    run: Rollout,
    values: Values,
    keys: Sequence[str],
    *,
    sites: Site | str | Sequence[Site | str] = "latent",
    ridge: float = RIDGE,
) -> tuple[str, ...]:
    """Select those variables of an algorithm that can be decoded from a model's carried state, and
    are not just implied by variables that come earlier in ``keys``.

    The first variable is always returned. For each further variable, two affine maps are fitted:
    one from the carried state, the other from the variables that were selected so far. A variable
    is selected if the squared error of the map from the state is at most half of the squared error
    of the map from the variables. A variable that the selected ones determine exactly, such as a
    total of their counts, is left out. Maps are fitted on the first half of the episodes and scored
    on the second half.

    Args:
        run: the rollout.
        values: key -> values of an algorithm's variable in the run's episodes, ``[episode, round,
            ...]``.
        keys: keys of the variables to test, in order.
        sites: "latent" for the whole carried state, or some channels (named parts) of it, such as
            "latent@h".
        ridge: ridge penalty of the decoders.

    Returns:
        The keys of the selected variables, in order.
    """
    require(
        run.n_episodes >= 4,
        f"a half to fit and a half to score need at least 4 episodes, got {run.n_episodes}",
    )
    place = resolve_one(sites, run.model, run.layout)
    require(
        place.kind.axes == "latent",
        f"what is carried is decoded at 'latent', not at {str(place)!r}",
    )
    # Without the state after the last round, for which the algorithm has no values.
    latents = _read_state(run.latents[:, :-1], place, run.layout)
    first, *further = non_empty("keys", keys, "a variable")
    require_known("variable", first, values, limit=40)
    selected = [first]
    for key in further:
        target = flatten_elements(values[key])  # [episode, round, element]
        selected_values = np.concatenate(
            [flatten_elements(values[earlier]) for earlier in selected], -1
        )
        inputs = torch.from_numpy(selected_values).unsqueeze(-2).to(latents)  # one row
        error_from_selected, variation = score_second_half(inputs, target, ridge)
        error_from_state, _ = score_second_half(latents, target, ridge)
        # An error below the share RANK is rounding.
        is_determined = error_from_selected <= RANK * variation
        is_in_state = error_from_state <= (1 - _MIN_EXPLAINED_SHARE) * error_from_selected
        if not is_determined and is_in_state:
            selected.append(key)
    return tuple(selected)


def score_second_half(x: Tensor, target: NDArray[np.float64], ridge: float) -> tuple[float, float]:
    """Fit an affine decoder on the first half of the episodes, and score it on the second half. Its
    R2 is 1 minus the ratio of the two returned numbers.

    Args:
        x: activations, ``[episode, round, row, width]``.
        target: values to decode, ``[episode, round, element]``.
        ridge: ridge penalty.

    Returns:
        The sum of squared errors over episodes of the second half, rounds and elements; and the sum
        of squared deviations of their targets from the mean of each element.
    """
    half = len(target) // 2
    scored = target[half:]
    decoder = Decoder.fit(x[:half], target[:half], ridge=ridge)
    error = decoder(x[half:]).numpy(force=True) - scored
    deviation = scored - scored.mean((0, 1))
    return float((error**2).sum()), float((deviation**2).sum())


@checked
def move(
    model: Machine,
    episodes: Episodes | Rollout,
    algorithm: Algorithm,
    writer: Writer,
    by: Mapping[str, ArrayLike],
    *,
    outcome: str | Outcome = "prediction",
    round: Rounds = "all",
) -> InterchangeResult:
    """Change one of an algorithm's variables in the model's activations, in single rounds. Compare
    the model's outcome with the algorithm's after the same change of its variable.

    Args:
        model: the model.
        episodes: the episodes, or a rollout of them.
        algorithm: the algorithm in which the same change is made. If it has no variable of this
            name, its outcome does not change.
        writer: the decoder of the variable, which also changes it; fitted on other episodes
            (:meth:`Writer.fit`).
        by: key of the variable -> what is added to it, of a shape that broadcasts to ``[episode,
            chosen round, ...]``; one entry.
        outcome: what is compared: "prediction" (the predicted distribution) or "state" (the part of
            the algorithm's state that the round writes).
        round: rounds in which the variable is changed, each separately: an int, a slice, a list or
            "all".

    Returns:
        For each episode and round: whether the model's outcome after the change equals the
        algorithm's, and the effect of the change on both.
    """
    outcome = Outcome.from_key(outcome)
    require_comparable(model, algorithm, outcome.key)
    require(len(by) == 1, f"one variable is moved at a time; by= holds {', '.join(by) or 'none'}")
    ((variable, change),) = by.items()
    require_known("variable of this writer", variable, writer.shapes)
    base = run_of(model, episodes, "moving the state")
    rounds = select_rounds(round, base.n_rounds)
    shape = (base.n_episodes, len(rounds))
    step = writer.step({variable: change}, shape).to(base.latents)
    before = variables_in_rounds(algorithm, base.episodes, rounds)
    state, inputs = algorithm.select_step_arguments(before, slice(None))  # of all these rounds
    changed = {}  # stays empty if the algorithm has no such variable: its outcome does not change
    if variable in before:
        changed[variable] = before[variable] + array_of(variable, change, finite=True)
    _, wanted = algorithm.step(state, inputs, changed)
    edit = Edit.of(writer.site, step, add=True)
    return compare_outcomes(
        model,
        base,
        edits={variable: [edit]},
        rounds=rounds,
        outcome=outcome,
        algorithm=algorithm,
        counterfactual=(before, wanted),
        decoded=list(writer.shapes),
        placebo=writer.control_direction is not None,
        commit=base.commit,
    )


@dataclass(frozen=True, eq=False, kw_only=True)
@checked_result
class StepResult(Tabulated):
    """How well the change of a model's state over one or more rounds follows an algorithm's update.
    The state is decoded from the model before and after these rounds. The algorithm starts from the
    decoded state before, and its result is compared with the decoded state after. A *step* is the
    change of the state from before to after.

    The table has one row: ``state`` (keys of the decoded variables), ``horizon`` (number of rounds
    of a step), ``r2`` (:meth:`r2`) and its 95 % interval ``low`` to ``high``.

    Attributes:
        missed: squared distance between the decoded state after the step and the state that the
            algorithm computes, summed over variables, ``[episode, round]``. The unit of each
            variable is the root mean square of the algorithm's step.
        varied: squared deviation of the algorithm's step from its mean over the episodes in this
            round, ``[episode, round]``, in the same units. It is multiplied by n / (n - 1) for n
            episodes, so that the estimate of the variance is unbiased.
        participants: index of the participant who played each episode, ``[episode]``; intervals
            resample participants. Without recorded participants, every episode counts as one.
    """

    missed: Float[np.ndarray, "episode round"]
    varied: Float[np.ndarray, "episode round"]
    participants: Any = None

    def r2(self, seed: int = 0) -> Interval:
        """Return the R2 with which the model's steps (changes of the decoded state) predict the
        algorithm's, with its 95 % interval over episodes. It is ``1 - sum missed / sum varied``:
        the squared distance between the two steps (:attr:`missed`), relative to the variance of the
        algorithm's steps (:attr:`varied`). Equal steps have 1; predicting the algorithm's mean step
        in each round has 0.
        """
        missed, varied = self.missed.sum(1), self.varied.sum(1)
        return ratio_interval(missed, varied, seed=seed, participants=self.participants).complement


@dataclass(frozen=True, eq=False)
@checked_result
class Transition:
    """A model's state before and after some rounds, decoded into variables of an algorithm.
    :meth:`under` compares the change with the update of any algorithm.

    Attributes:
        episodes: the episodes.
        rounds: indices of the rounds that the model starts from.
        horizon: number of rounds that the model runs between the two states.
        shapes: key of a decoded variable -> its shape.
        before, after: decoded variables before and after: key -> values ``[episode, round, ...]``,
            with one round for each of ``rounds``.
        settings: settings of the analysis, name and digest of the model, versions of packages.
    """

    episodes: Episodes
    rounds: tuple[int, ...]
    horizon: int
    shapes: Mapping[str, tuple[int, ...]]
    before: Values
    after: Values
    settings: dict[str, Any] = field(default_factory=dict)

    def goal(self, algorithm: Algorithm) -> Values:
        """Run the algorithm for :attr:`horizon` rounds from :attr:`before`, the state that was
        decoded from the model, and return its variables after these rounds.

        State variables that were not decoded start with the values that they have when the
        algorithm runs over the episodes.

        Args:
            algorithm: an algorithm whose state includes all decoded variables.

        Returns:
            Key of each decoded variable -> its values after the rounds, ``[episode, round, ...]``,
            with one round for each of :attr:`rounds`.

        Raises:
            InputError: a decoded variable is not part of the algorithm's state.
        """
        decoded, carried = self.shapes.keys(), algorithm.state
        require(
            decoded <= set(carried),
            f"{algorithm.name} carries {', '.join(sorted(carried)) or 'nothing'} from round to round; "
            f"the writer reads {', '.join(decoded)}",
        )
        values = algorithm.run(self.episodes)
        state, _ = algorithm.select_step_arguments(values, list(self.rounds))
        state |= self.before
        for lag in range(self.horizon):
            _, inputs = algorithm.select_step_arguments(values, [t + lag for t in self.rounds])
            state, _ = algorithm.step(state, inputs)
        return {key: state[key] for key in decoded}

    def _sum_squares(
        self, algorithm: Algorithm
    ) -> tuple[Float[np.ndarray, "episode round"], Float[np.ndarray, "episode round"]]:
        """Return the sums of squares from which the R2 of the model's steps is computed. Each is
        summed over all elements of all variables.

        Args:
            algorithm: the algorithm whose step from the decoded state is the target.

        Returns:
            The squared errors of the model's decoded steps, and the squared deviations of the
            algorithm's steps from their mean, ``[episode, round]`` each, in units of each
            variable's step size.
        """
        goal = self.goal(algorithm)
        squared_errors: Any = 0.0
        squared_deviations: Any = 0.0
        for key in self.shapes:
            steps = flatten_elements(goal[key] - self.before[key])  # [episode, round, element]
            step_size = float(np.sqrt((steps**2).mean())) or 1.0  # no step: any unit, not 0 / 0
            error = flatten_elements((self.after[key] - goal[key]) / step_size)
            deviation = (steps - steps.mean(0)) / step_size
            n = len(steps)
            squared_errors = squared_errors + (error**2).sum(-1)
            squares = (deviation**2).sum(-1)
            # Bessel's correction: squares about the mean of n episodes are too small by (n - 1) / n.
            squared_deviations = squared_deviations + squares * n / max(n - 1, 1)
        return squared_errors, squared_deviations

    def under(self, algorithm: Algorithm) -> StepResult:
        """Compare the change of the decoded state with the update that an algorithm makes from the
        same start.

        Args:
            algorithm: the algorithm; it starts from :attr:`before`, the state that was decoded
                first.

        Returns:
            The R2 with which the model's steps (changes of the decoded state) predict the
            algorithm's, as a sentence, a table with one row, and a figure over rounds.
        """
        missed, varied = self._sum_squares(algorithm)
        players, keys = participants_of(self.episodes), " + ".join(self.shapes)
        r2 = ratio_interval(missed.sum(1), varied.sum(1), participants=players).complement
        horizon = self.horizon
        row = {
            "state": keys,
            "horizon": horizon,
            "r2": r2.estimate,
            "low": r2.low,
            "high": r2.high,
        }
        lag = "One round" if horizon == 1 else f"{horizon} rounds"
        varied_by_round = varied.sum(0)
        # Where nothing varies there is no R2.
        denominator = np.where(varied_by_round > 0, varied_by_round, np.nan)
        r2_by_round = 1 - missed.sum(0) / denominator
        line = tabulate_over({"round started from": self.rounds}, {"step R2": r2_by_round})
        axes = {"x": "round started from", "ylabel": f"R2 of {keys}"}
        of_algorithm = {"algorithm": algorithm.key, "parameters": dict(algorithm.parameters)}
        sentence = (
            f"{lag} on, the model makes the algorithm's step of the decoded {keys} with R2 {r2}."
        )
        return StepResult(
            sentence=sentence,
            table=pd.DataFrame([row]),
            picture=lambda figures: figures.curves(line, **axes),
            settings=self.settings | of_algorithm,
            missed=missed,
            varied=varied,
            participants=players,
        )

    def compute_residual_share(self, algorithm: Algorithm) -> float:
        """Return the share of the squared change of the decoded state that the algorithm's update
        does not explain; it can exceed 1.

        For one variable, the share is ``mean |after - goal|^2 / mean |after - before|^2``, with
        means over episodes and rounds, where ``goal`` is what the algorithm computes from
        ``before`` (:meth:`goal`). The result is the mean share of the variables that change at all;
        NaN if none does.
        """
        goal = self.goal(algorithm)
        shares: list[float] = []
        for key in self.shapes:
            after = self.after[key]
            squared_change = ((after - self.before[key]) ** 2.0).mean()
            if squared_change:
                squared_error = ((after - goal[key]) ** 2).mean()
                shares.append(float(squared_error / squared_change))
        return sum(shares) / len(shares) if shares else float("nan")


@checked
def transition(
    model: Machine,
    episodes: Episodes | Rollout,
    writer: Writer,
    *,
    round: Rounds,
    horizon: int = 1,
    by: Mapping[str, NDArray[np.float64]] | None = None,
) -> Transition:
    """Decode an algorithm's variables from the model's carried state, before and after the model
    runs some rounds. This is done separately for each of several first rounds.

    Args:
        model: the model.
        episodes: the episodes, or a rollout of them.
        writer: the decoder of the variables, which can also change them. It must be fitted on other
            episodes (:meth:`Writer.fit`), at "latent" or some channels (named parts) of the carried
            state, such as "latent@h". Other channels are not changed.
        round: first rounds, from which the model runs, each separately: an int, a slice or a list.
        horizon: number of rounds to run before decoding again.
        by: key of a decoded variable -> what is added to it in the carried state before the first
            round, ``[episode, round, ...]``; None for no change.

    Returns:
        The decoded variables before and after, which :meth:`Transition.under` compares with an
        algorithm's update.
    """
    site = writer.site
    require(
        site.kind.axes == "latent", f"a carried state is decoded at 'latent', not at {str(site)!r}"
    )
    base = run_of(model, episodes, "moving the state")
    rounds = select_rounds(round, base.n_rounds)
    last = base.n_rounds - horizon
    is_inside = horizon >= 1 and max(rounds) <= last
    require(
        is_inside,
        f"rounds {rounds} with horizon {horizon} must lie within the {base.n_rounds} rounds; the last one to start "
        f"from is {last}",
    )
    # State t is the one before round t, so that state t + horizon is the one after these rounds.
    latents = base.latents[:, rounds].double()
    latents_after = base.latents[:, [t + horizon for t in rounds]]
    layout = base.layout
    if by is not None:
        shape = base.n_episodes, len(rounds)
        step = writer.step(by, shape).to(latents)
        by_round = latents.flatten(0, 1)  # [episode * round, row of the state, width]
        part = site.read(by_round, layout)
        latents = write(by_round, site, layout, part + step.reshape(part.shape)).unflatten(0, shape)
        outputs = run_on(model, base, rounds, horizon, latents)
        latents_after = outputs.carried[0, :, :, 0]  # of the only edit, after the last round
    before = writer.read(_read_state(latents, site, layout))
    after = writer.read(_read_state(latents_after, site, layout))
    return Transition(
        episodes=base.episodes,
        rounds=tuple(rounds),
        horizon=horizon,
        shapes=dict(writer.shapes),
        before=before,
        after=after,
        settings=provenance(model, rounds=rounds, moved=sorted(by or ())),
    )
