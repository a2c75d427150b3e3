"""Does a task's record keep what it says? The sister of :func:`interp.check_machine`, run where a task is registered.

    >>> from interp import tasks
    >>> check_task(tasks.get("experts"))

Two episodes are drawn twice from one seed, encoded and compared: a sampler that gives other sizes, or other episodes
each time, a layout that puts a latent over what is observed, tokens that no vocabulary holds, payloads that are no
numbers, targets that are no probabilities, and algorithms that read what they do not declare would all train, or be
compared, without a word.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any

import numpy as np
import torch

from interp.algorithm import NEXT, Algorithm
from interp.checks import array_of, checked, unique
from interp.errors import InputError, require
from interp.kinds import shown
from interp.model.layout import EncodedRounds, RoundLayout
from interp.task import Task

N_EPISODES, N_ROUNDS, SEED = 2, 3, 0


@checked
def check_task(task: Task) -> None:
    """Raise unless a task's record keeps what it says: a sentence for the first way in which it does not."""
    sizes = {size.name: size.default for size in task.sizes}
    layout = _tried("layout", lambda: task.layout(**sizes))
    _check_layout(task, layout)
    n_rounds = max(2, task.at_most(N_ROUNDS))
    first, again = (_tried("sample", lambda: task.sample(N_EPISODES, n_rounds, seed=SEED, **sizes)) for _ in range(2))
    for episodes in (first, again):
        _check_episodes(task, episodes, n_rounds)
    fitted = _tried("layout.fit", lambda: layout.fit(first))
    found = _tried("sizes of the layout", lambda: task.sizes_of(fitted))
    found |= {name: getattr(first, name) for name in sizes if hasattr(first, name)}
    _require(found == sizes, f"asked for episodes of {sizes}, the sampler gives such of {found}")
    _check_rounds(fitted, _tried("layout.encode", lambda: fitted.encode(first)), n_rounds)
    _require(_same(fitted, first, again), "seed=0 gives other episodes the second time: draw from the seed alone")
    _check_losses(task, fitted, first, n_rounds)
    _check_targets(task, fitted, first, n_rounds)
    for record in _tried("algorithms", lambda: unique(task.algorithms.records(), "algorithm")).values():
        algorithm = _tried(f"algorithm {record.key!r}", partial(record.for_episodes, first))
        _tried(f"algorithm {record.key!r}", partial(_check_algorithm, algorithm, first))
    _check_analysis(task)


def _require(holds: bool, problem: str) -> None:
    require(holds, f"this task's record does not keep what it says: {problem}")


def _tried(what: str, call: Callable[[], Any]) -> Any:
    """What a function of the record gives; whatever it raises is told in a sentence."""
    try:
        return call()
    except InputError:
        raise
    except Exception as error:
        said = f"{what} raised {type(error).__name__}: {error}"
        raise InputError(f"this task's record does not keep what it says: {said}") from error


def _check_layout(task: Task, layout: Any) -> None:
    _require(isinstance(layout, RoundLayout), f"layout gives {type(layout).__name__}, no RoundLayout")
    _require(layout.task == task.key, f"its layout is of the task {layout.task!r}, its key is {task.key!r}")
    for name in ("labels", "vocabulary", "outcomes"):
        words = _tried(name, partial(getattr, layout, name))
        texts = isinstance(words, tuple) and bool(words) and all(isinstance(word, str) and word for word in words)
        _require(texts, f"{name} must be a tuple of texts, got {shown(words)}")
        twice = max(words, key=words.count)
        _require(words.count(twice) == 1, f"{name} hold {twice!r} twice")
    n_outcomes = len(layout.outcomes)
    _require(layout.kind != "classes" or n_outcomes > 1, "one outcome alone is no prediction; give two or more")
    n_latents, before = _tried("n_latents", lambda: layout.n_latents), layout.predict_position
    whole = isinstance(n_latents, int) and not isinstance(n_latents, bool)
    _require(
        whole and 1 <= n_latents < before,
        f"n_latents must be 1 to {before - 1}, the positions between the first and {layout.predict_label!r}, got "
        f"{shown(n_latents)}",
    )


def _check_episodes(task: Task, episodes: Any, n_rounds: int) -> None:
    kind = type(episodes).__name__
    for name in ("task", "n_rounds", "regime", "seed", "select", "__len__"):
        _require(hasattr(episodes, name), f"episodes ({kind}) have no {name!r}")
    _require(episodes.task == task.key, f"episodes are of the task {shown(episodes.task)}, the key is {task.key!r}")
    whole = isinstance(episodes.n_rounds, int | np.integer)
    _require(whole, f"n_rounds of episodes ({kind}) is {shown(episodes.n_rounds)}, no integer")
    held = len(episodes), episodes.n_rounds
    wanted = N_EPISODES, n_rounds
    _require(held == wanted, f"asked for {wanted[0]} episodes of {wanted[1]} rounds, the sampler gives {held}")
    kept = _tried("episodes.select", lambda: episodes.select(slice(0, 1)))
    _require(len(kept) == 1 and kept.n_rounds == n_rounds, "episodes.select(slice(0, 1)) does not give one episode")


def _check_rounds(layout: RoundLayout, rounds: Any, n_rounds: int) -> None:
    _require(isinstance(rounds, EncodedRounds), f"layout.encode gives {type(rounds).__name__}, no EncodedRounds")
    shapes = {"tokens": (N_EPISODES, n_rounds, layout.n_positions), "slots": (N_EPISODES, n_rounds)}
    shapes["values"] = shapes["tokens"]
    for name, shape in shapes.items():
        tensor = getattr(rounds, name)
        fits = isinstance(tensor, torch.Tensor) and tuple(tensor.shape) == shape
        _require(fits, f"encoded {name} must be of shape {shape}, got {shown(tensor)}")
        _require(tensor.is_floating_point() == (name == "values"), f"encoded {name} are of {tensor.dtype}")
    for name, tensor, below in (
        ("tokens", rounds.tokens, len(layout.vocabulary)),
        ("slots", rounds.slots, layout.n_latents),
    ):
        low, high = int(tensor.min()), int(tensor.max())
        _require(low >= 0 and high < below, f"encoded {name} are {low} to {high}, which must be 0 to {below - 1}")
    at = _tried("latent_positions", lambda: list(layout.latent_positions))
    whole = all(isinstance(one, int | np.integer) and 0 <= one < layout.n_positions for one in at)
    _require(whole, f"latent_positions must be 0 to {layout.n_positions - 1}, got {shown(layout.latent_positions)}")
    covered = rounds.tokens[..., at]
    labels = [layout.labels[at] for at in layout.latent_positions]
    _require(not covered.any(), f"a latent stands in the place of what is observed at {', '.join(labels)}: encode 0")
    _require(bool(rounds.values.isfinite().all()), "encoded values (payloads) are not finite")
    unsaid = layout.payload is None and bool(rounds.values.any())
    _require(not unsaid, "encoded values are not zero, and payload does not say what they are; nothing would read them")
    for name, tensor in rounds.tensors().items():
        rows = isinstance(tensor, torch.Tensor) and tuple(tensor.shape[:2]) == (N_EPISODES, n_rounds)
        _require(rows, f"encoded {name!r} must begin with [episode, round], got {shown(tensor)}")


def _tensors(layout: RoundLayout, episodes: Any) -> dict[str, torch.Tensor]:
    return layout.encode(episodes).tensors()


def _same(layout: RoundLayout, first: Any, again: Any) -> bool:
    """Whether two batches of episodes are encoded alike."""
    one, other = (_tried("layout.encode", partial(_tensors, layout, e)) for e in (first, again))
    return all(torch.equal(one[name], other[name]) for name in one)


def _check_losses(task: Task, layout: RoundLayout, episodes: Any, n_rounds: int) -> None:
    """Whether losses take predictions as models of the task make them."""
    shape = (N_EPISODES, n_rounds, layout.n_outputs)
    even = torch.full(shape, 1 / layout.n_outputs if layout.kind == "classes" else 0.0)
    told = layout.prediction(even)
    found = _tried("losses", lambda: torch.as_tensor(task.data.losses(told, episodes, slice(0, n_rounds))))
    _require(
        tuple(found.shape) == shape[:2],
        f"losses of predictions of {n_rounds} rounds must be [episode, round] = {shape[:2]}, got {tuple(found.shape)}",
    )
    _require(not bool(found.isnan().any()), "losses of even predictions hold NaN")


def _check_targets(task: Task, layout: RoundLayout, episodes: Any, n_rounds: int) -> None:
    if task.training is None:
        return
    goal = _tried("training", task.training)
    whole = callable(getattr(goal, "targets", None)) and isinstance(getattr(goal, "other_targets", None), Mapping)
    _require(whole, f"training gives {shown(goal)}, no TrainingGoal")
    wanted = (N_EPISODES, n_rounds, layout.n_outputs if layout.kind == "classes" else 1)
    for name, targets in {"targets": goal.targets, **goal.other_targets}.items():
        found = array_of(name, _tried(name, partial(targets, episodes)))
        finite = bool(np.isfinite(found).all())
        _require(found.shape == wanted and finite, f"{name} must be finite numbers {wanted}, got {shown(found)}")
        if layout.kind == "classes":
            sums = found.sum(-1)
            nothing = (found == 0).all(-1)  # a round that asks for no prediction
            proper = bool((found >= 0).all()) and bool((nothing | np.isclose(sums, 1, atol=1e-4)).all())
            said = f"{name} must be probabilities of the outcomes, which add up to 1; they are {found.min():.4g} to "
            _require(proper, f"{said}{found.max():.4g}, and add up to {sums.min():.4g} to {sums.max():.4g}")


class _Declared(Mapping[str, Any]):
    """The values that an equation said it reads; any other is refused."""

    def __init__(self, values: Mapping[str, Any], reader: str, parents: tuple[str, ...]) -> None:
        self._values, self._reader, self._parents = values, reader, parents

    def __getitem__(self, key: str) -> Any:
        _require(
            key in self._parents,
            f"the equation of {self._reader!r} reads {key!r}, which is none of its parents "
            f"({', '.join(self._parents) or 'none'})",
        )
        return self._values[key]

    def __iter__(self) -> Iterator[str]:
        return iter(self._parents)

    def __len__(self) -> int:
        return len(self._parents)


def _check_algorithm(algorithm: Algorithm, episodes: Any) -> None:
    """Whether an algorithm's inputs, state and equations are those that it declares."""
    what, n_rounds = f"algorithm {algorithm.key!r}:", episodes.n_rounds
    inputs, state = algorithm.read(episodes), algorithm.initial(episodes)
    for variable in algorithm.variables:
        given = {"input": inputs, "state": state}.get(variable.role)
        _require(given is None or variable.key in given, f"{what} nothing gives {variable.role} {variable.key!r}")
        if variable.role == "input":
            shape = np.shape(inputs[variable.key])[:2]
            wanted = (N_EPISODES, n_rounds)
            _require(shape == wanted, f"{what} input {variable.key!r} must be [episode, round, ...], got {shape}")
    sizes = {key: np.shape(state[key]) for key in algorithm.state}
    for t in range(n_rounds):
        values: dict[str, Any] = {}
        for variable in algorithm.variables:
            if variable.equation is not None:
                seen = _Declared(values, variable.key, variable.parents)
                values[variable.key] = np.asarray(variable.equation(seen))
            else:
                key = variable.key
                values[key] = state[key] if variable.role == "state" else np.asarray(inputs[key])[:, t]
        state = {key: values[NEXT + key] for key in algorithm.state}
        for key, size in sizes.items():
            now = np.shape(state[key])
            _require(now == size, f"{what} state {key!r} is {size} before the first round and {now} after round {t}")


def _check_analysis(task: Task) -> None:
    analysis, records = task.analysis, task.algorithms.records()
    corruptions = _tried("corruptions", lambda: unique(analysis.corruptions(), "corruption"))
    named = analysis.default_corruption
    _require(not named or named in corruptions, f"default_corruption {named!r} is none of {', '.join(corruptions)}")
    if records:
        keys = {key for record in records for key in record.make().keys}
        unknown = [key for key in analysis.probed if key not in keys]
        _require(not unknown, f"probed {unknown} are variables of none of its algorithms")
