"""The token layout of one round: a label for every position, the roles of positions, what is
predicted.

A round of prediction with expert advice (paper, section 3) has these labels::

    <w> <z> e_1 p_1 ... e_n p_n p? | y w?

``<w>`` is an attention sink and ``<z>`` the latent. Each expert ``e_i`` is followed by its advice
``p_i``. The prediction is read at ``p?``, ``y`` is the true label, and the update of the latent is
read at ``w?``. The bar is no token: it separates what comes after the prediction.

A round of tabular Q-learning (section 4) with A actions has these labels::

    <BOS> c_1 ... c_A Qcurr s a r Qnext s' s'_1 a_1 ... s'_A a_A Select | a* Update

``<BOS>`` is an attention sink, and latent ``c_i`` holds the values of action i. The transition is
``s``, ``a``, ``r`` (reward) and ``s'``; the pairs ``s'_i``, ``a_i`` repeat the next state for every
action. The prediction is read at ``Select``, ``a*`` is the chosen action, and the update is read at
``Update``.

Each task has a layout (``interp.tasks``). Latents are at ``latent_positions``. The prediction
is read at ``predict_position``, and the update of a latent, after it, at ``update_position``. The
positions behind the bar are the *suffix*: only there can the model read the true outcome, or a
token for its choice. It predicts one of several ``outcomes`` (``kind = "classes"``), or a real
number (``"mean"`` or ``"normal"``). :meth:`RoundLayout.fit` returns the layout for the sizes of
some episodes. More: docs/method/round-tokens.md.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from functools import cached_property
from typing import Any, ClassVar, Self, get_args

import torch
from jaxtyping import Float, Shaped
from torch import Tensor

from interp.core.algorithm import Episodes, Predicted, missing_rounds
from interp.support.checks import checked, checked_fields, format_value, integer
from interp.support.errors import InputError, convert_errors, require, require_known

MOST = 1_000_000
"""Largest size of a round; it is checked before labels are made, which takes memory."""
_LOG_2_PI = math.log(2 * math.pi)
_MOST_ATTENTION_WEIGHTS = 2**19
"""Largest number of a head's attention weights to compute at once, so that they fit into CPU
caches.
"""


@dataclass(frozen=True)
@checked_fields
class EncodedRounds:
    """Episodes encoded as a model's input. Subclasses may add tensors ``[episode, round, ...]``.

    Attributes:
        tokens: Int[episode, round, pos], token ids; 0 at positions of latents.
        values: Float[episode, round, pos], numbers that tokens carry ("payloads"), such as rewards;
            0 where there are none.
        slots: Int[episode, round], index of the latent to which the round writes its update; 0 in a
            model with one latent.
        missing: Bool[episode, round], True for missing rounds (missed trials and padding); None if
            no round is missing.
        after: names of those tensors of a subclass that a model may read only after its prediction,
            such as the outcome. Such a tensor must not influence the prediction of the same round.
    """

    tokens: Tensor
    values: Tensor
    slots: Tensor
    missing: Tensor | None = field(default=None, kw_only=True)
    after: ClassVar[tuple[str, ...]] = ()

    def tensors(self) -> dict[str, Tensor]:
        """Return a dictionary: name of a field -> its tensor. Fields that are None are left out."""
        tensors = {part.name: getattr(self, part.name) for part in fields(self)}
        return {name: tensor for name, tensor in tensors.items() if tensor is not None}

    def map_tensors(self, change: Callable[[Tensor], Tensor]) -> Self:
        """Return the rounds with the function ``change`` applied to every tensor. For example,
        ``rounds.map_tensors(torch.clone)`` copies all tensors.
        """
        return replace(self, **{name: change(tensor) for name, tensor in self.tensors().items()})

    def select(self, rows: Any) -> Self:
        """Return some entries of every tensor along its first axis, usually that of episodes.

        Args:
            rows: a slice, a mask or indices.
        """
        return self.map_tensors(lambda part: part[rows])

    @classmethod
    def join(cls, parts: Sequence[Self]) -> Self:
        """Concatenate batches of encoded episodes along the first axis."""
        batches = [part.tensors() for part in parts]  # each: name of a field -> its tensor
        if any("missing" in batch for batch in batches):
            for batch in batches:
                # A batch without missing rounds gets a mask, too: False in every round.
                nothing_missing = torch.zeros_like(batch["slots"], dtype=torch.bool)
                batch.setdefault("missing", nothing_missing)
        names = batches[0]
        joined = {name: torch.cat([batch[name] for batch in batches]) for name in names}
        return replace(parts[0], **joined)

    def rows(self, rounds: Sequence[int]) -> Self:
        """Return chosen rounds of every episode as one batch, with one axis of rows in place of
        episodes and rounds.

        Row ``e * len(rounds) + i`` is episode e in the i-th chosen round.
        """
        chosen = list(rounds)  # PyTorch takes a list for indices, and a tuple for one index an axis
        return self.map_tensors(lambda part: part[:, chosen].flatten(0, 1))

    def slice_rounds(self, first: int, stop: int) -> Self:
        """Return the rounds from ``first`` to ``stop - 1`` of every episode."""
        return self.map_tensors(lambda part: part[:, first:stop])

    def take_round(self, t: int) -> Self:
        """Return round ``t`` of every episode: tensors ``[episode, ...]`` without a round axis."""
        return self.map_tensors(lambda part: part[:, t])

    def undo_missing(
        self, prediction: Tensor, before: Tensor, after: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Correct the results of these rounds so that missing rounds (missed trials and padding)
        have no effect.

        The first axes of all tensors are those of the rounds, such as ``[episode, round, ...]``.

        Args:
            prediction: the predictions.
            before: the carried state that each round reads.
            after: the carried state after each round.

        Returns:
            The predictions, NaN for missing rounds; and the state after each round, which is
            ``before`` for missing rounds.
        """
        if self.missing is None:
            return prediction, after
        # The mask of missing rounds, with as many axes as the tensor that it is applied to.
        mask_of_predictions = add_axes(self.missing, prediction.ndim)
        mask_of_states = add_axes(self.missing, after.ndim)
        prediction = prediction.masked_fill(mask_of_predictions, torch.nan)
        return prediction, torch.where(mask_of_states, before, after)

    def choose_batch_size(self, most: int) -> int:
        """Return how many rows (one round of one episode each) to run in one batch. It is ``most``,
        or fewer on a CPU, so that the attention weights of one head fit into the CPU's cache.
        """
        if self.tokens.device.type != "cpu":
            return most
        n_weights = self.tokens.shape[-1] ** 2  # of one head in one row, [query, key]
        return max(1, min(most, _MOST_ATTENTION_WEIGHTS // n_weights))


def add_axes(mask: Tensor, n_axes: int) -> Tensor:
    """Return ``mask`` with as many axes of size 1 appended as it needs to have ``n_axes`` axes."""
    return mask[(..., *[None] * (n_axes - mask.ndim))]


@dataclass(frozen=True)
@checked
class RoundLayout:
    """Base class of layouts. A layout defines how a round of a task is written as tokens. It gives
    a label to every position, and defines the vocabulary and where the model's outputs are read.

    Two outputs are read: the prediction, and the update, a vector that is written into a latent.

    Attributes:
        task: key of the task.
        predict_label: label of the position where the prediction is read; the true outcome must
            come after it.
        update_label: label of the position where the update is read, which comes after the
            prediction; None for the last position.
        kind: what the model predicts. "classes": the probability of each outcome. For a real
            number, "mean": its mean, or "normal": its mean and log variance.
        choice_label: label of the position of a token for the model's choice, such as an action;
            None if rounds contain no choice.
        payload: what the numbers ("payloads") that some tokens carry are, such as "rewards"; None
            if no token of a round carries a number.
        payload_hint: advice in the error message about payloads outside of a handwired model's
            range.
    """

    task: ClassVar[str]
    predict_label: ClassVar[str] = "p?"
    update_label: ClassVar[str | None] = None
    kind: ClassVar[Predicted] = "classes"
    choice_label: ClassVar[str | None] = None
    payload: ClassVar[str | None] = None
    payload_hint: ClassVar[str] = ""

    def __post_init__(self) -> None:
        """Check that ``predict_label``, ``update_label`` and ``choice_label`` are each the label of
        exactly one position, unless None. Update and choice must come after the prediction, and only
        a layout that predicts classes may have a choice.
        """
        require_known(f"kind of prediction of {self.task!r}", self.kind, get_args(Predicted))
        labels = self.labels
        listed = ", ".join(map(str, labels))  # that they are texts is checked later
        for name in ("predict_label", "update_label", "choice_label"):
            label = getattr(self, name)
            n_found = labels.count(label)
            require(
                label is None or n_found == 1,
                f"{name} {label!r} of a round of {self.task!r} stands at {n_found} of its positions, and must stand "
                f"at one; set {name} in {type(self).__name__} to one of its labels: {listed}",
            )
        positions = {"update_label": self.update_position, "choice_label": self.choice_position}
        for name, position in positions.items():
            require(
                position is None or position > self.predict_position,
                f"{name} of a round of {self.task!r} must come after {self.predict_label!r}, where it is read; its "
                f"labels are {listed}",
            )
        may_choose = self.kind == "classes"
        require(
            may_choose or self.choice_label is None,
            f"a round of {self.task!r} predicts a real number ({self.kind!r}), which no token stands for: it can have "
            "no choice_label",
        )

    @property
    def labels(self) -> tuple[str, ...]:
        """The label of every position of a round, in order, such as ``("<w>", "<z>", "x", "p?",
        "y", "w?")``.
        """
        raise NotImplementedError

    @property
    def vocabulary(self) -> tuple[str, ...]:
        """The tokens, in order of their ids; the first is an attention sink (``<w>`` or
        ``<BOS>``).
        """
        raise NotImplementedError

    @property
    def draws(self) -> tuple[str, ...]:
        """Names of the tokens for a random draw. One token means that the model acts by its
        prediction. Each of the other tokens names a random action that the model is to take
        instead. Empty if rounds contain no draw.
        """
        return ()

    @property
    def n_latents(self) -> int:
        """Number of latents that are carried from round to round."""
        raise NotImplementedError

    @property
    def outcomes(self) -> tuple[str, ...]:
        """Names of the outcomes. For a real number: ("mean",), or ("mean", "log variance") if
        :attr:`kind` is "normal".
        """
        if self.kind == "classes":
            raise NotImplementedError
        return ("mean",) if self.kind == "mean" else ("mean", "log variance")

    @property
    def n_outputs(self) -> int:
        """Number of numbers that the model outputs at the prediction position: one per outcome."""
        return len(self.outcomes)

    @property
    def max_layout(self) -> RoundLayout:
        """The layout of the largest round that this vocabulary supports; ``self`` if it supports
        only one size.
        """
        return self

    @property
    def family(self) -> tuple[RoundLayout, ...]:
        """The layouts of all sizes of round that share this vocabulary, shortest first."""
        return (self.max_layout,)

    def fit(self, episodes: Any) -> RoundLayout:
        """Return this layout with the sizes of ``episodes``, such as their number of experts;
        refuse sizes that the vocabulary does not support.
        """
        raise NotImplementedError

    def encode(self, episodes: Any) -> EncodedRounds:
        """Return ``episodes`` encoded as a model's input: token ids, numbers that tokens carry, and
        the latent that each round writes to. Episodes must have this layout's task and sizes.
        """
        raise NotImplementedError

    def make_blank_tokens(self, *sizes: int) -> Tensor:
        """Return token ids ``[*sizes, pos]`` to fill in: at each position the id of its label if
        the label is a token, otherwise 0.
        """
        ids = [self.token_ids.get(label, 0) for label in self.labels]
        return torch.tensor(ids).repeat(*sizes, 1)

    def encode_with_missing(self, episodes: Episodes) -> EncodedRounds:
        """Return ``episodes`` encoded as a model's input, like :meth:`encode`, and marked with the
        rounds that are missing.
        """
        rounds = self.encode(episodes)
        missing = missing_rounds(episodes)
        if missing is None:
            return replace(rounds, missing=None)
        return replace(rounds, missing=torch.from_numpy(missing))

    # What a prediction is. A layout overrides these only if its prediction is neither a
    # distribution over its outcomes nor a real number.

    @property
    def prediction_axes(self) -> int:
        """Number of trailing axes of a prediction: 1 for a distribution ``[..., outcome]``, 0 for a
        single number.
        """
        return 0 if self.kind == "mean" else 1

    def prediction(self, probabilities: Float[Tensor, "*axes"]) -> Tensor:
        """Convert a model's output to a prediction in the layout's form.

        Args:
            probabilities: probabilities of outcomes, ``[..., outcome]``. For a real number, the
                model's outputs: its mean, ``[..., 1]``, or mean and log variance, ``[..., 2]``.

        Returns:
            By :attr:`kind`: for "classes" the probabilities, ``[..., outcome]``; for "mean" the
            mean, ``[...]``; for "normal" mean and log variance, ``[..., 2]``. A task may define a
            shorter form: that of expert advice is P(y = 1), ``[...]``.
        """
        return probabilities.squeeze(-1) if self.kind == "mean" else probabilities

    def distribution(self, prediction: Tensor) -> Tensor:
        """Convert predictions from the layout's form to one form for all tasks, ``[..., number]``.
        This is the inverse of :meth:`prediction`.

        Args:
            prediction: predictions in the layout's form.

        Returns:
            By :attr:`kind`: for "classes" the probability of each outcome, ``[..., outcome]``; for
            "mean" the mean, ``[..., 1]``; for "normal" mean and log variance, ``[..., 2]``.
        """
        return prediction.unsqueeze(-1) if self.kind == "mean" else prediction

    def choose(self, prediction: Float[Tensor, "*axes"]) -> Tensor:
        """Return the index of the most probable outcome, ``[...]``; the lowest index if several are
        tied.

        For a real number return its mean.
        """
        if self.kind != "classes":
            return self.distribution(prediction)[..., 0]
        require(
            prediction.shape[-1:] != (0,),
            f"a prediction is [..., outcome], got shape {tuple(prediction.shape)}",
        )
        return prediction.argmax(-1)

    def loss(self, prediction: Float[Tensor, "*axes"], truth: Shaped[Tensor, "*batch"]) -> Tensor:
        """Return the loss of every prediction, ``[...]``.

        Args:
            prediction: predictions of the layout.
            truth: the true outcomes (indices of classes, or real numbers), one for each prediction.
                Predictions may have further leading axes, over which the truth is repeated.

        Returns:
            For classes the probability of a mistake, ``1 - P(truth)``; for a mean the squared
            error; for a normal the negative log density in nats.
        """
        numbers = self.distribution(prediction)
        truth = truth.to(prediction.device)
        # Predictions may have further leading axes, over which the truth is repeated.
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
        # -log N(truth; mean, variance) = (error^2 / variance + log variance + log 2 pi) / 2
        scaled_error = squared_error * (-log_variance).exp()
        return (scaled_error + log_variance + _LOG_2_PI) / 2

    def _require_outcomes(self, truth: Tensor) -> None:
        """Raise InputError unless all true classes are indices of outcomes."""
        are_integers = not truth.is_floating_point()
        are_indices = are_integers and bool(((truth >= 0) & (truth < self.n_outputs)).all())
        require(
            are_indices,
            f"the truth of classes is an index from 0 to {self.n_outputs - 1}, got {format_value(truth)}",
        )

    def put_choice(
        self, tokens: Shaped[Tensor, "*axes pos"], choice: Shaped[Tensor, "*axes"]
    ) -> Tensor:
        """Return tokens with the token of the model's choice at the position for the choice;
        unchanged tokens if rounds contain no choice.

        Args:
            tokens: tokens of rounds, ``[..., pos]``.
            choice: index of the outcome that the model chose, ``[...]``.
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
        """Return the token id that stands for each choice, ``[...]``. Layouts with a
        ``choice_label`` must override this method.

        Args:
            choice: index of the chosen outcome, ``[...]``.
        """
        raise InputError(f"a round of {self.task!r} holds no token for a choice of the model")

    # How the algorithm's state is distributed over latents. A layout with one latent overrides none.

    def state(self, readout: Shaped[Tensor, "*batch latent k"]) -> Tensor:
        """Return the algorithm's state, such as a Q-table, put together from the part that each latent
        (a vector carried from round to round) contains, such as one column.

        Args:
            readout: the part of the state that each latent contains, as k numbers, ``[..., latent,
                k]``.

        Returns:
            The state in the shape that the task gives it, such as a Q-table ``[..., state,
            action]``. If the layout has one latent, it is ``[..., k]``.
        """
        return readout.squeeze(-2)

    def per_latent(self, state: Tensor) -> Tensor:
        """Return the part of the algorithm's state that each latent contains, as k numbers,
        ``[..., latent, k]``: the inverse of :meth:`state`.

        Args:
            state: the algorithm's state, such as a Q-table ``[..., state, action]``.
        """
        return state.unsqueeze(-2)

    def select_slot_part(self, state: Tensor, slots: Tensor) -> Tensor:
        """Return the part of the algorithm's state that a round's update writes.

        A round writes one latent, and each latent contains a part of the state. In Q-learning the
        state is a Q-table and a round writes one column, so the column is returned. In a layout
        with one latent, the whole state is returned unchanged.

        Args:
            state: the algorithm's state in each round, ``[..., *shape]``.
            slots: index of the latent that each round writes to, ``[...]``.

        Returns:
            The part of the state in that latent, ``[..., *shape of the part]``.
        """
        return state

    @property
    def n_positions(self) -> int:
        """Number of positions of a round, including those of latents."""
        return len(self.labels)

    @cached_property
    def latent_positions(self) -> tuple[int, ...]:
        """Positions of the latents: consecutive, beginning with the second position."""
        return tuple(range(1, 1 + self.n_latents))

    @cached_property
    def predict_position(self) -> int:
        """Position where the prediction is read, that of ``predict_label``."""
        return self.position(self.predict_label)

    @cached_property
    def update_position(self) -> int:
        """Position where the update (the vector that is written into a latent) is read: that of
        ``update_label``, or the last one.
        """
        if self.update_label is None:
            return self.n_positions - 1
        return self.position(self.update_label)

    @property
    def n_from_prediction(self) -> int:
        """Number of positions from ``predict_position`` to the last position of the round; both are
        included. Prediction and update are the model's outputs at two of these positions.
        """
        return self.n_positions - self.predict_position

    @property
    def n_from_update(self) -> int:
        """Number of positions from ``update_position`` to the last position of the round; both are
        included. The vector that is written into a latent is read at ``update_position``.
        """
        return self.n_positions - self.update_position

    @property
    def choice_position(self) -> int | None:
        """Position of the token for the model's choice, such as an action; None if rounds contain
        no choice.
        """
        return None if self.choice_label is None else self.position(self.choice_label)

    @cached_property
    def token_ids(self) -> dict[str, int]:
        """Name of each token of the vocabulary -> its id."""
        return {token: i for i, token in enumerate(self.vocabulary)}

    @cached_property
    def layout_of_length(self) -> dict[int, RoundLayout]:
        """Number of positions of a round -> its layout, for all sizes of round that share this
        vocabulary.
        """
        # The layout itself comes last: of two with one length, a dictionary keeps the last.
        return {layout.n_positions: layout for layout in (*self.family, self)}

    def position(self, label: str) -> int:
        """Return the index of the position with this label."""
        require_known("position label", label, self.labels, limit=40)
        return self.labels.index(label)

    def positions(self, labels: str | Iterable[str]) -> tuple[int, ...]:
        """Return the indices of the positions with these labels; "all" stands for every
        position.
        """
        if isinstance(labels, str):
            labels = self.labels if labels == "all" else (labels,)
        return tuple(map(self.position, labels))

    def to_dict(self) -> dict[str, Any]:
        """Return the layout as a dictionary of JSON values. It has the key of the task and each
        size of the layout: ``{"task": "experts", "n_experts": 4, ...}``.
        """
        return {"task": self.task, **asdict(self)}


def size_range(name: str, size: int, bounds: tuple[int, int] | None) -> tuple[int, int]:
    """Check a size of a round, and return the smallest and largest size that its vocabulary
    supports.

    Args:
        name: name of the size, for the error message.
        size: the size of a round.
        bounds: the pair (smallest, largest) that a user passed, to be checked; None if only ``size``
            is supported.

    Returns:
        The pair (smallest, largest): ``bounds``, or (size, size) if ``bounds`` is None.
    """
    size = integer(name, size, least=1)
    require(
        size <= MOST,
        f"{name} {size} is beyond any model, which reads all of a round at once; give at most {MOST}",
    )
    if bounds is None:
        return size, size
    is_pair = isinstance(bounds, list | tuple) and len(bounds) == 2
    require(is_pair, f"{name}_range must be (low, high), got {bounds!r}")
    low, high = (integer(f"{name}_range", bound) for bound in bounds)
    is_inside = 1 <= low <= size <= high <= MOST
    require(
        is_inside,
        f"{name} {size} is outside {name}_range ({low}, {high}); give a range that holds it",
    )
    return low, high


def layout_from_dict(data: dict[str, Any]) -> RoundLayout:
    """Return the layout that :meth:`RoundLayout.to_dict` converted to a dictionary; its task must
    be registered.
    """
    from interp.core import catalog

    require(
        isinstance(data, dict), f"a layout is a table with the task and its sizes, got {data!r}"
    )
    sizes = dict(data)
    key = sizes.pop("task", None)
    tasks = {task.key: task for task in catalog.list_tasks()}
    if key not in tasks:
        raise InputError(
            f"this is a model of the task {key!r}, which is not registered; give its record to interp.tasks.register "
            f"first (registered: {', '.join(tasks)})"
        )
    for name, size in sizes.items():
        if isinstance(size, list):  # JSON has no tuples
            sizes[name] = tuple(size)
    # Unknown or missing sizes raise a TypeError, which becomes an InputError.
    with convert_errors(
        f"{', '.join(sizes)} are not the sizes of a layout of {key!r}: {{error}}", of=TypeError
    ):
        return tasks[key].layout(**sizes)
