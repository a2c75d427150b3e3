"""Check that a task's record is consistent, when the task is registered.

    >>> import interp
    >>> check_task(interp.tasks.get("experts"))

Two batches of episodes are sampled with one seed, encoded and compared. The checks find mistakes
that would otherwise give wrong results without an error:

- a sampler that ignores sizes or seed;
- a layout that covers observed tokens with latents, or tokens outside of the vocabulary;
- payloads that are not finite, or targets that are no probabilities;
- equations that read undeclared variables.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import numpy as np
import torch

from interp.core.algorithm import NEXT, Algorithm, Variable
from interp.core.task import Task
from interp.model.checks import N_ROUNDS, SEED
from interp.model.layout import EncodedRounds, RoundLayout
from interp.support.checks import array_of, checked, convert_value, format_value, index_by_key
from interp.support.errors import convert_errors, require

_N_EPISODES = 2
_BEGINNING = "this task's record does not keep what it says"


@checked
def check_task(task: Task) -> None:
    """Raise an error if a task's record is inconsistent; the message describes the first problem
    found.
    """
    # _call calls a function of the record; the message of an error in it names the function.
    sizes = task.default_sizes
    n_rounds = max(2, task.cap_rounds(N_ROUNDS))
    layout = _call("layout", task.layout, **sizes)
    _check_layout(task, layout)
    draw = partial(_call, "sample", task.sample, _N_EPISODES, n_rounds, seed=SEED, **sizes)
    episodes = draw()
    again = draw()
    _check_episodes(task, episodes, n_rounds)
    _check_episodes(task, again, n_rounds)
    fitted_layout = _call("layout.fit", layout.fit, episodes)
    sampled_sizes = _call("sizes of the layout", task.sizes_of, fitted_layout)
    # Sizes that the layout does not have may be attributes of the episodes.
    sampled_sizes |= {name: getattr(episodes, name) for name in sizes if hasattr(episodes, name)}
    _require(
        sampled_sizes == sizes,
        f"asked for episodes of {sizes}, the sampler gives such of {sampled_sizes}",
    )
    rounds = _call("layout.encode", lambda: fitted_layout.encode(episodes))
    _check_rounds(fitted_layout, rounds, n_rounds)
    tensors = rounds.tensors()
    tensors_again = _call("layout.encode", lambda: fitted_layout.encode(again)).tensors()
    is_repeated = all(torch.equal(tensors[name], tensors_again[name]) for name in tensors)
    _require(is_repeated, "seed=0 gives other episodes the second time: draw from the seed alone")
    _check_losses(task, fitted_layout, episodes)
    _check_targets(task, fitted_layout, episodes)
    records = _call("algorithms", index_by_key, task.algorithms.records(), "algorithm")
    for key, record in records.items():
        algorithm = _call(f"algorithm {key!r}", record.for_episodes, episodes)
        _call(f"algorithm {key!r}", _check_algorithm, algorithm, episodes)
    _check_analysis(task)


def _require(holds: object, problem: str) -> None:
    """Raise InputError unless ``holds`` is true. Its message says that the task's record is wrong, and
    then ``problem``.
    """
    require(holds, f"{_BEGINNING}: {problem}")


def _call(what: str, function: Callable[..., Any], *args: Any, **options: Any) -> Any:
    """Call a function of the task's record, and return its result. If it raises an error, raise an
    InputError instead; ``what`` is the name of the function in the error message.
    """
    return convert_errors(f"{_BEGINNING}: {what}")(function)(*args, **options)


def _check_analysis(task: Task) -> None:
    """Raise an error if the default corruption is not one of the task's corruptions, or a variable
    in ``probed`` belongs to none of its algorithms.
    """
    analysis = task.analysis
    corruptions = _call("corruptions", lambda: index_by_key(analysis.corruptions(), "corruption"))
    default = analysis.default_corruption
    _require(
        not default or default in corruptions,
        f"default_corruption {default!r} is none of {', '.join(corruptions)}",
    )
    records = task.algorithms.records()
    keys = {key for record in records for key in record.make().keys}
    unknown = [key for key in analysis.probed if key not in keys]
    _require(
        not records or not unknown, f"probed {unknown} are variables of none of its algorithms"
    )


def _check_layout(task: Task, layout: Any) -> None:
    """Refuse a layout of the wrong type or task, with repeated names, a single class, or too many or
    too few latents.
    """
    kind = type(layout).__name__
    _require(isinstance(layout, RoundLayout), f"layout gives {kind}, no RoundLayout")
    _require(
        layout.task == task.key,
        f"its layout is of the task {layout.task!r}, its key is {task.key!r}",
    )
    for name in ("labels", "vocabulary", "outcomes"):
        _check_names(name, _call(name, getattr, layout, name))
    _require(
        layout.kind != "classes" or len(layout.outcomes) > 1,
        "one outcome alone is no prediction; give two or more",
    )
    n_latents = _call("n_latents", getattr, layout, "n_latents")
    n_between = layout.predict_position - 1  # positions between the first and this one
    converted = convert_value(int, n_latents)  # a mark that is in no range if it is no integer
    _require(
        converted in range(1, n_between + 1),
        f"n_latents must be 1 to {n_between}, the positions between the first and {layout.predict_label!r}, "
        f"got {format_value(n_latents)}",
    )


def _check_names(what: str, names: Any) -> None:
    """Refuse a tuple of names if one is no string, or occurs twice. ``what`` says what they name,
    for the error message.
    """
    are_texts = isinstance(names, tuple) and all(isinstance(name, str) for name in names)
    _require(
        are_texts and names and all(names),  # all are non-empty, and there is at least one
        f"{what} must be a tuple of texts, got {format_value(names)}",
    )
    most_frequent = max(names, key=names.count)
    _require(names.count(most_frequent) == 1, f"{what} hold {most_frequent!r} twice")


def _check_episodes(task: Task, episodes: Any, n_rounds: int) -> None:
    """Refuse sampled episodes that lack an attribute, belong to another task, have other numbers of
    episodes or rounds than were asked for, or cannot be selected.

    Args:
        task: the task that sampled them.
        episodes: the episodes.
        n_rounds: number of rounds that the sampler was asked for.
    """
    kind = type(episodes).__name__
    for name in ("task", "n_rounds", "regime", "seed", "select", "__len__"):
        _require(hasattr(episodes, name), f"episodes ({kind}) have no {name!r}")
    _require(
        episodes.task == task.key,
        f"episodes are of the task {format_value(episodes.task)}, the key is {task.key!r}",
    )
    is_integer = isinstance(episodes.n_rounds, int | np.integer)
    _require(
        is_integer,
        f"n_rounds of episodes ({kind}) is {format_value(episodes.n_rounds)}, no integer",
    )
    size = (len(episodes), episodes.n_rounds)
    _require(
        size == (_N_EPISODES, n_rounds),
        f"asked for {_N_EPISODES} episodes of {n_rounds} rounds, the sampler gives {size}",
    )
    selected = _call("episodes.select", episodes.select, slice(0, 1))
    _require(
        len(selected) == 1 and selected.n_rounds == n_rounds,
        "episodes.select(slice(0, 1)) does not give one episode",
    )


def _check_rounds(layout: RoundLayout, rounds: Any, n_rounds: int) -> None:
    """Refuse encoded rounds whose tensors have the wrong shapes, token ids or numbers.

    Args:
        layout: the layout that encoded them.
        rounds: what its ``encode`` returned.
        n_rounds: number of rounds of the episodes.
    """
    kind = type(rounds).__name__
    _require(isinstance(rounds, EncodedRounds), f"layout.encode gives {kind}, no EncodedRounds")
    per_round = (_N_EPISODES, n_rounds)
    per_position = (*per_round, layout.n_positions)
    _check_tensor("tokens", rounds.tokens, per_position, is_real=False)
    _check_tensor("slots", rounds.slots, per_round, is_real=False)
    _check_tensor("values", rounds.values, per_position, is_real=True)
    _check_ids("tokens", rounds.tokens, len(layout.vocabulary))
    _check_ids("slots", rounds.slots, layout.n_latents)
    _check_latent_positions(layout, rounds)
    _require(rounds.values.isfinite().all(), "encoded values (payloads) are not finite")
    _require(
        layout.payload is not None or not rounds.values.any(),
        "encoded values are not zero, and payload does not say what they are; nothing would read them",
    )
    for name, tensor in rounds.tensors().items():
        is_by_round = isinstance(tensor, torch.Tensor) and tensor.shape[:2] == per_round
        _require(
            is_by_round,
            f"encoded {name!r} must begin with [episode, round], got {format_value(tensor)}",
        )


def _check_tensor(name: str, tensor: Any, shape: tuple[int, ...], is_real: bool) -> None:
    """Refuse a tensor of encoded rounds if its shape or dtype is wrong.

    Args:
        name: name of the tensor, for the error message.
        tensor: the tensor.
        shape: the shape that it must have.
        is_real: True if it must have a floating-point dtype; False if it must have another one.
    """
    is_of_shape = isinstance(tensor, torch.Tensor) and tensor.shape == shape
    _require(is_of_shape, f"encoded {name} must be of shape {shape}, got {format_value(tensor)}")
    _require(tensor.is_floating_point() == is_real, f"encoded {name} are of {tensor.dtype}")


def _check_ids(name: str, ids: torch.Tensor, n_ids: int) -> None:
    """Refuse numbers that are not ids from 0 to ``n_ids - 1``; ``name`` says what they are."""
    low = int(ids.min())
    high = int(ids.max())
    are_ids = low >= 0 and high < n_ids
    _require(
        are_ids,
        f"encoded {name} are {low} to {high}, which must be 0 to {n_ids - 1}",
    )


def _check_latent_positions(layout: RoundLayout, rounds: EncodedRounds) -> None:
    """Refuse positions of latents that do not exist, or at which a round has a token: the latent
    would take the token's place.
    """
    positions = _call("latent_positions", list, layout.latent_positions)
    last = layout.n_positions - 1
    are_inside = all(convert_value(int, position) in range(last + 1) for position in positions)
    _require(are_inside, f"latent_positions must be 0 to {last}, got {format_value(positions)}")
    labels = [layout.labels[position] for position in positions]
    hides_tokens = rounds.tokens[..., positions].any()
    _require(
        not hides_tokens,
        f"a latent stands in the place of what is observed at {', '.join(labels)}: encode 0",
    )


def _check_losses(task: Task, layout: RoundLayout, episodes: Any) -> None:
    """Check the shape of losses, and that they are not NaN. The losses are those of predictions that
    are the same everywhere, without and with an additional leading batch axis.

    Args:
        task: the task that defines the losses.
        layout: layout of the rounds.
        episodes: the episodes to score.
    """
    n_rounds = episodes.n_rounds
    by_round = (_N_EPISODES, n_rounds)
    # Equal probabilities of all classes; for a real number, mean and log variance 0.
    score = 1 / layout.n_outputs if layout.kind == "classes" else 0.0
    scores = torch.full((*by_round, layout.n_outputs), score)
    stacked = scores.expand(2, *scores.shape)  # [batch = 2, episode, round, outcome]
    _check_loss(task, layout.prediction(scores), episodes, by_round)
    _check_loss(task, layout.prediction(stacked), episodes, (2, *by_round))


def _check_loss(
    task: Task, predictions: torch.Tensor, episodes: Any, shape: tuple[int, ...]
) -> None:
    """Refuse losses that are NaN or have the wrong shape.

    Args:
        task: the task that defines the losses.
        predictions: predictions of all rounds, ``[..., episode, round, ...]``.
        episodes: the episodes that are predicted.
        shape: the shape that the losses must have.
    """
    rounds = slice(0, episodes.n_rounds)
    losses = _call(
        "losses", lambda: torch.as_tensor(task.data.losses(predictions, episodes, rounds))
    )
    axes = "[episode, round]" if len(shape) == 2 else "[batch, episode, round]"
    got = tuple(losses.shape)
    _require(
        got == shape,
        f"losses of predictions of {episodes.n_rounds} rounds must be {axes} = {shape}, got {got}",
    )
    _require(not losses.isnan().any(), "losses of even predictions hold NaN")


def _check_targets(task: Task, layout: RoundLayout, episodes: Any) -> None:
    """Refuse training targets that have the wrong shape, are not finite or, for classes, are no
    probabilities. Do nothing if the task's models cannot be trained.

    Args:
        task: the task.
        layout: layout of its rounds.
        episodes: sampled episodes, for which the targets are computed.
    """
    if task.training is None:
        return
    goal = _call("training", task.training)
    is_goal = callable(getattr(goal, "targets", None))
    is_goal = is_goal and isinstance(getattr(goal, "other_targets", None), Mapping)
    _require(is_goal, f"training gives {format_value(goal)}, no TrainingGoal")
    are_classes = layout.kind == "classes"
    shape = (_N_EPISODES, episodes.n_rounds, layout.n_outputs if are_classes else 1)
    for name, compute in {"targets": goal.targets, **goal.other_targets}.items():
        targets = array_of(name, _call(name, compute, episodes))
        are_finite = np.isfinite(targets).all()
        _require(
            are_finite and targets.shape == shape,
            f"{name} must be finite numbers {shape}, got {format_value(targets)}",
        )
        if are_classes:
            _check_target_probabilities(name, targets)


def _check_target_probabilities(name: str, targets: np.ndarray[Any, Any]) -> None:
    """Refuse training targets that are no probabilities. Targets that are all 0 are accepted, for
    rounds without a prediction.

    Args:
        name: name of the targets, for the error message.
        targets: the targets, ``[episode, round, outcome]``.
    """
    totals = targets.sum(-1)
    low = targets.min()
    add_up = np.isclose(totals, 1, atol=1e-4) | (targets == 0).all(-1)  # [episode, round]
    are_probabilities = low >= 0 and add_up.all()
    high = targets.max()
    _require(
        are_probabilities,
        f"{name} must be probabilities of the outcomes, which add up to 1; they are {low:.4g} to {high:.4g}, "
        f"and add up to {totals.min():.4g} to {totals.max():.4g}",
    )


class _DeclaredParents(dict[str, Any]):
    """The values of an equation's declared parents, by key. Reading any other variable raises an
    error.
    """

    def __init__(self, variable: Variable, values: Mapping[str, Any]) -> None:
        super().__init__({key: values[key] for key in variable.parents})
        self.reader = variable.key

    def __missing__(self, key: str) -> Any:
        parents = ", ".join(self) or "none"
        _require(
            False,
            f"the equation of {self.reader!r} reads {key!r}, which is none of its parents ({parents})",
        )


def _check_algorithm(algorithm: Algorithm, episodes: Any) -> None:
    """Run an algorithm on episodes, and refuse it if its inputs, state or equations differ from its
    declaration.
    """
    what = f"algorithm {algorithm.key!r}:"
    inputs = algorithm.read(episodes)
    state = algorithm.initial(episodes)
    for key in algorithm.state:
        _require(key in state, f"{what} nothing gives state {key!r}")
    shapes = {key: np.shape(state[key]) for key in algorithm.state}
    # A round's variables come in an order in which each follows those that it is computed from.
    for t in range(episodes.n_rounds):
        values: dict[str, Any] = {}
        for variable in algorithm.variables:
            key = variable.key
            if variable.equation is not None:
                values[key] = np.asarray(variable.equation(_DeclaredParents(variable, values)))
            elif variable.role == "state":
                values[key] = state[key]
            else:
                values[key] = np.asarray(inputs[key])[:, t]  # an input, [episode, round, ...]
        # The variable that gives a state's value in the next round has the state's key after NEXT.
        state = {key: values[NEXT + key] for key in algorithm.state}
        for key, shape in shapes.items():
            shape_now = np.shape(state[key])
            _require(
                shape_now == shape,
                f"{what} state {key!r} is {shape} before the first round and {shape_now} after round {t}",
            )
