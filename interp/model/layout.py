"""The token layout of one round: a label for every position, what each position is for, and what is
predicted.

A round of prediction with expert advice (paper, section 3) and one of tabular Q-learning (section
4)::

    <w> <z> e_1 p_1 ... e_n p_n p? | y w?
    <BOS> c_1 ... c_A Qcurr s a r Qnext s' (s'_i a_i)_i Select | a* Update

A layout is a task's (``interp.tasks``). Latents stand at ``latent_positions``; the prediction is
read at ``predict_position``, and the update after it, at ``update_position``. Everything after the
prediction is the *suffix*: only there does the model read the truth, or commit its choice. What is
predicted is one of several ``outcomes`` (``kind = "classes"``), or a real number, ``"mean"`` or
``"normal"``. :meth:`RoundLayout.fit` gives the layout for the
sizes of some episodes. Further properties of layouts: docs/method/round-tokens.md.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from typing import Any, ClassVar, Self, get_args

import torch
from jaxtyping import Float, Shaped
from torch import Tensor

from interp.core.algorithm import Episodes, Predicted, missing_rounds
from interp.support.checks import checked, checked_fields, integer, shown
from interp.support.errors import InputError, require, require_known, theirs

MOST = 1_000_000
"""The largest size of a round: labels are made before any memory is taken."""
_LOG_2_PI = math.log(2 * math.pi)
_MOST_WEIGHTS = 2**19
"""Attention weights of a head that are computed at once: those of long rounds fill memory, and leave caches."""


@dataclass(frozen=True)
@checked_fields
class EncodedRounds:
    """Episodes as a machine's input; a subclass may hold further tensors ``[episode, round, ...]``.

    Attributes:
        tokens: Int[episode, round, pos]; 0 stands at latent slots (the latent takes its place).
        values: Float[episode, round, pos], scalar payloads (rewards), zero elsewhere.
        slots: Int[episode, round], the latent slot that the round's update is written to.
        missing: Bool[episode, round], True where a round did not take place; None where all did.
        after: names of further tensors that a machine may read only after it has predicted.
    """

    tokens: Tensor
    values: Tensor
    slots: Tensor
    missing: Tensor | None = field(default=None, kw_only=True)
    after: ClassVar[tuple[str, ...]] = ()

    def tensors(self) -> dict[str, Tensor]:
        """Return all tensors by name."""
        tensors = {part.name: getattr(self, part.name) for part in fields(self)}
        return {name: tensor for name, tensor in tensors.items() if tensor is not None}

    def each(self, change: Callable[[Tensor], Tensor]) -> Self:
        """Return the same rounds with every tensor changed in the same way, such as cut to some rounds."""
        return replace(self, **{name: change(tensor) for name, tensor in self.tensors().items()})

    def select(self, rows: Any) -> Self:
        """Return some of the rows: a slice, a mask or indices."""
        return self.each(lambda part: part[rows])

    @classmethod
    def joined(cls, parts: Sequence[Self]) -> Self:
        """Join batches of episodes to one."""
        tensors = [part.tensors() for part in parts]
        if any(part.missing is not None for part in parts):
            for batch in tensors:
                nothing_missing = torch.zeros_like(batch["slots"], dtype=torch.bool)
                batch.setdefault("missing", nothing_missing)
        names = tensors[0]
        joined = {name: torch.cat([batch[name] for batch in tensors]) for name in names}
        return replace(parts[0], **joined)

    def rows(self, rounds: Sequence[int]) -> Self:
        """Return some rounds of every episode as one batch.

        Row ``e * len(rounds) + i`` is episode e at the i-th of them.
        """
        index = torch.tensor(list(rounds), device=self.tokens.device)
        return self.each(lambda part: part[:, index].flatten(0, 1))

    def between(self, first: int, stop: int) -> Self:
        """Return the rounds from ``first`` to ``stop - 1`` of every episode."""
        return self.each(lambda part: part[:, first:stop])

    def at(self, t: int) -> Self:
        """Return round ``t`` of every episode."""
        return self.each(lambda part: part[:, t])

    def settled(self, prediction: Tensor, before: Tensor, after: Tensor) -> tuple[Tensor, Tensor]:
        """Return what these rounds predict and leave, where some did not take place.

        Args:
            prediction: what they predict; a missing one predicts NaN.
            before: the state that they read, which a missing one leaves.
            after: the state that they leave.
        """
        if self.missing is None:
            return prediction, after
        predicts_nothing = add_axes(self.missing, prediction.ndim)
        leaves_state = add_axes(self.missing, after.ndim)
        prediction = prediction.masked_fill(predicts_nothing, torch.nan)
        return prediction, torch.where(leaves_state, before, after)

    def at_once(self, most: int) -> int:
        """Return how many of these rows run at once: ``most``, or on a CPU fewer where rounds are long."""
        if self.tokens.device.type != "cpu":
            return most
        n_weights = self.tokens.shape[-1] ** 2
        return max(1, min(most, _MOST_WEIGHTS // n_weights))


def add_axes(mask: Tensor, n_axes: int) -> Tensor:
    """Add trailing axes of size 1 to a mask, up to a number of axes."""
    return mask[(..., *[None] * (n_axes - mask.ndim))]


@dataclass(frozen=True)
@checked
class RoundLayout:
    """What every layout defines; each task's folder has one.

    Attributes:
        task: key of the task.
        predict_label: label of the position where the prediction is read; the truth must come after
            it.
        update_label: label of the position where the update is read, after the prediction; the last
            one when None.
        kind: what a prediction is: the probabilities of "classes", or of a real number the "mean",
            or a "normal".
        choice_label: label of the position where the model's choice is committed; None when there
            is none.
        payload: what the scalar payloads are, such as "rewards"; None when rounds hold none.
        payload_hint: what the user can pass to a handwired model that does not take some payloads.
    """

    task: ClassVar[str]
    predict_label: ClassVar[str] = "p?"
    update_label: ClassVar[str | None] = None
    kind: ClassVar[Predicted] = "classes"
    choice_label: ClassVar[str | None] = None
    payload: ClassVar[str | None] = None
    payload_hint: ClassVar[str] = ""

    def __post_init__(self) -> None:
        """Refuse a round that does not say where it is read, or is read after the truth can have been seen."""
        require_known(f"kind of prediction of {self.task!r}", self.kind, get_args(Predicted))
        labels = self.labels
        for name in ("predict_label", "update_label", "choice_label"):
            label = getattr(self, name)
            n_positions = 1 if label is None else labels.count(label)
            if n_positions != 1:
                remedy = f"set {name} in {type(self).__name__} to one of its labels"
                raise InputError(
                    f"{name} {label!r} of a round of {self.task!r} stands at {n_positions} of its positions, and must "
                    f"stand at one; {remedy}: {', '.join(labels)}"
                )
        positions = {"update_label": self.update_position, "choice_label": self.choice_position}
        for name, position in positions.items():
            if position is not None and position <= self.predict_position:
                raise InputError(
                    f"{name} of a round of {self.task!r} must come after {self.predict_label!r}, where it is read; its "
                    f"labels are {', '.join(labels)}"
                )
        may_choose = self.kind == "classes"
        require(
            may_choose or self.choice_label is None,
            f"a round of {self.task!r} predicts a real number ({self.kind!r}), which no token stands for: it can have "
            "no choice_label",
        )

    @property
    def labels(self) -> tuple[str, ...]:
        """The label of every position, in order."""
        raise NotImplementedError

    @property
    def vocabulary(self) -> tuple[str, ...]:
        """The tokens, in id order; the first one is the attention sink (``<w>`` or ``<BOS>``)."""
        raise NotImplementedError

    @property
    def draws(self) -> tuple[str, ...]:
        """The tokens of the draw that makes a machine explore, or not; empty where rounds have no
        draw.
        """
        return ()

    @property
    def n_latents(self) -> int:
        """How many latents are carried from round to round."""
        raise NotImplementedError

    @property
    def outcomes(self) -> tuple[str, ...]:
        """The name of every outcome that is predicted, or of every number that describes a real one."""
        if self.kind == "classes":
            raise NotImplementedError
        return ("mean",) if self.kind == "mean" else ("mean", "log variance")

    @property
    def n_outputs(self) -> int:
        """How many numbers a prediction is made of: one for every outcome."""
        return len(self.outcomes)

    @property
    def max_layout(self) -> RoundLayout:
        """The layout of the largest size that the vocabulary serves: this one, where it serves one size."""
        return self

    @property
    def family(self) -> tuple[RoundLayout, ...]:
        """The layouts of every length that the vocabulary serves, shortest first."""
        return (self.max_layout,)

    def fit(self, episodes: Any) -> RoundLayout:
        """Return the layout of this family for the sizes of ``episodes``; those that it cannot hold are refused."""
        raise NotImplementedError

    def encode(self, episodes: Any) -> EncodedRounds:
        """Return tokens, payloads and update slots of ``episodes``; their task and sizes must be
        this layout's.
        """
        raise NotImplementedError

    def blank(self, *sizes: int) -> Tensor:
        """Return tokens ``[*sizes, pos]`` for :meth:`encode` to fill: those that labels name, elsewhere 0."""
        ids = [self.token_ids.get(label, 0) for label in self.labels]
        return torch.tensor(ids).repeat(*sizes, 1)

    def encoded(self, episodes: Episodes) -> EncodedRounds:
        """Return what :meth:`encode` gives, with the rounds that did not take place."""
        rounds = self.encode(episodes)
        missing = missing_rounds(episodes)
        if missing is None:
            return replace(rounds, missing=None)
        return replace(rounds, missing=torch.from_numpy(missing))

    # What a prediction is. A layout whose prediction is the distribution over its outcomes, or a real number by its
    # kind, changes none of these.

    @property
    def prediction_axes(self) -> int:
        """Trailing axes of a prediction: 1 for a distribution ``[..., outcome]``, 0 for one probability or one mean."""
        return 0 if self.kind == "mean" else 1

    def prediction(self, probabilities: Float[Tensor, "*axes"]) -> Tensor:
        """Return a model's prediction, from the probabilities ``[..., outcome]`` of this layout's outcomes.

        Of a real number: the mean ``[...]``, or mean and log variance ``[..., 2]``, from what the model gives.
        """
        return probabilities.squeeze(-1) if self.kind == "mean" else probabilities

    def distribution(self, prediction: Tensor) -> Tensor:
        """Return the probability of every outcome; of a real number its mean, or mean and log variance."""
        return prediction.unsqueeze(-1) if self.kind == "mean" else prediction

    def choose(self, prediction: Float[Tensor, "*axes"]) -> Tensor:
        """Return the most probable outcome, the lowest on ties: ``[..., outcome] -> [...]``; a real number's mean."""
        if self.kind != "classes":
            return self.distribution(prediction)[..., 0]
        require(
            prediction.shape[-1:] != (0,),
            f"a prediction is [..., outcome], got shape {tuple(prediction.shape)}",
        )
        return prediction.argmax(-1)

    def loss(self, prediction: Float[Tensor, "*axes"], truth: Shaped[Tensor, "*batch"]) -> Tensor:
        """Return how wrong predictions are, ``[...]``; for a task's ``losses``.

        Args:
            prediction: predictions of the layout.
            truth: their last axes; of classes the index of an outcome.

        Returns:
            The chance of a mistake, ``1 - P(truth)``, of classes; the squared error of a mean; the negative log density
            of a normal, in nats.
        """
        numbers = self.distribution(prediction)
        truth = truth.to(prediction.device)
        batch = numbers.shape[:-1]
        ends_as_truth = batch[len(batch) - truth.ndim :] == truth.shape
        require(
            ends_as_truth and numbers.shape[-1] == self.n_outputs,
            f"predictions of shape {tuple(prediction.shape)} do not fit a truth of shape {tuple(truth.shape)}",
        )
        if self.kind == "classes":
            self._require_outcomes(truth)
            index = truth.expand(batch).unsqueeze(-1).long()
            return 1 - numbers.gather(-1, index).squeeze(-1)
        squared_error = (numbers[..., 0] - truth).square()
        if self.kind == "mean":
            return squared_error
        log_variance = numbers[..., 1]
        scaled_error = squared_error * (-log_variance).exp()
        return (scaled_error + log_variance + _LOG_2_PI) / 2

    def _require_outcomes(self, truth: Tensor) -> None:
        is_known = not truth.is_floating_point()
        is_known = is_known and bool(((truth >= 0) & (truth < self.n_outputs)).all())
        require(
            is_known,
            f"the truth of classes is an index from 0 to {self.n_outputs - 1}, got {shown(truth)}",
        )

    def commit(
        self, tokens: Shaped[Tensor, "*axes pos"], choice: Shaped[Tensor, "*axes"]
    ) -> Tensor:
        """Return tokens ``[..., pos]`` with the model's choice ``[...]``, where the round holds
        one.

        Args:
            tokens: those of a round.
            choice: the index of the outcome that the model chose.
        """
        position = self.choice_position
        if position is None:
            return tokens
        n_positions = self.n_positions
        require(
            tokens.shape[-1:] == (n_positions,),
            f"tokens are [..., {n_positions}], got shape {tuple(tokens.shape)}",
        )
        committed = tokens.clone()
        committed[..., position] = self.choice_token(choice)
        return committed

    def choice_token(self, choice: Tensor) -> Tensor:
        """Return the token that stands for a choice; needed by layouts that have a ``choice_label``."""
        raise InputError(f"a round of {self.task!r} holds no token for a choice of the model")

    # How the algorithm's state is spread over the latents. One latent that holds all of it changes none of these.

    def state(self, readout: Shaped[Tensor, "*batch latent k"]) -> Tensor:
        """Return a readout per latent, ``[..., latent, k]``, arranged as the algorithm's state."""
        return readout.squeeze(-2)

    def per_latent(self, state: Tensor) -> Tensor:
        """Return what each latent holds of a state, ``[..., latent, k]``: the inverse of :meth:`state`."""
        return state.unsqueeze(-2)

    def written(self, state: Tensor, slots: Tensor) -> Tensor:
        """Return the part of a state that an update writes.

        Args:
            state: the algorithm's.
            slots: the latents that are written.
        """
        return state

    @property
    def n_positions(self) -> int:
        """How many tokens a round has, latents included."""
        return len(self.labels)

    @cached_property
    def latent_positions(self) -> tuple[int, ...]:
        """The positions that hold latents: consecutive, from the second on."""
        return tuple(range(1, 1 + self.n_latents))

    @cached_property
    def predict_position(self) -> int:
        """Where the prediction is read: at ``predict_label``."""
        return self.position(self.predict_label)

    @cached_property
    def update_position(self) -> int:
        """Where the update is read: at ``update_label``, the last position when that is None."""
        if self.update_label is None:
            return self.n_positions - 1
        return self.position(self.update_label)

    @property
    def n_read(self) -> int:
        """How many positions at the end of a round hold all that is read: those from the prediction on."""
        return self.n_positions - self.predict_position

    @property
    def n_after(self) -> int:
        """How many positions at the end of a round begin with the update: 1 where it is read at the last."""
        return self.n_positions - self.update_position

    @property
    def choice_position(self) -> int | None:
        """Where the model's choice is committed (``a*``); None when a round holds no such token."""
        return None if self.choice_label is None else self.position(self.choice_label)

    @cached_property
    def token_ids(self) -> dict[str, int]:
        """The id of each token of the vocabulary, by name."""
        return {token: i for i, token in enumerate(self.vocabulary)}

    def position(self, label: str) -> int:
        """Return the position of ``label``."""
        require_known("position label", label, self.labels, limit=40)
        return self.labels.index(label)

    def positions(self, labels: str | Iterable[str]) -> tuple[int, ...]:
        """Return the positions of several labels; "all" means every position."""
        if isinstance(labels, str):
            labels = self.labels if labels == "all" else (labels,)
        return tuple(map(self.position, labels))

    def to_dict(self) -> dict[str, Any]:
        """Return the sizes as JSON values, with the task's name."""
        sizes = {size.name: getattr(self, size.name) for size in fields(self)}
        return {"task": self.task, **sizes}


def size_range(name: str, size: int, given: tuple[int, int] | None) -> tuple[int, int]:
    """Return the smallest and the largest size that a vocabulary serves.

    Args:
        name: what an error calls the size.
        size: the size of a round.
        given: that range; only ``size`` when None.
    """
    size = integer(name, size, 1)
    require(
        size <= MOST,
        f"{name} {size} is beyond any model, which reads all of a round at once; give at most {MOST}",
    )
    if given is None:
        return size, size
    is_pair = isinstance(given, list | tuple) and len(given) == 2
    require(is_pair, f"{name}_range must be (low, high), got {given!r}")
    low, high = (integer(f"{name}_range", bound) for bound in given)
    is_inside = 1 <= low <= size <= high <= MOST
    require(
        is_inside,
        f"{name} {size} is outside {name}_range ({low}, {high}); give a range that holds it",
    )
    return low, high


def layout_from_dict(data: dict[str, Any]) -> RoundLayout:
    """Make the layout that :meth:`RoundLayout.to_dict` described; its task must be registered."""
    from interp.core import catalog

    require(
        isinstance(data, dict), f"a layout is a table with the task and its sizes, got {data!r}"
    )
    sizes = dict(data)
    key = sizes.pop("task", None)
    tasks = {task.key: task for task in catalog.every()}
    if key not in tasks:
        raise InputError(
            f"this is a model of the task {key!r}, which is not registered; give its record to interp.tasks.register "
            f"first (registered: {', '.join(tasks)})"
        )
    for name, size in sizes.items():
        if isinstance(size, list):
            sizes[name] = tuple(size)
    with theirs(
        f"{', '.join(sizes)} are not the sizes of a layout of {key!r}: {{error}}", of=TypeError
    ):
        return tasks[key].layout(**sizes)
