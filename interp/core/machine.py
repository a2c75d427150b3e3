"""A machine is any model that carries a state from round to round; this module defines its
interface.

Each round a machine reads the carried state and the round's inputs, makes a prediction, receives
the true outcome, and writes the state for the next round: ``prediction, carried =
machine.step(carried, fed)``, where ``fed`` are the encoded inputs of the round. The carried state
is one tensor ``[episode, row, width]``: its :class:`Channel` s (such as an LSTM's ``h`` and ``c``)
are stacked along the rows, and padded with zeros to the largest width. ``interp.adapt`` makes a
machine from any ``nn.Module``; ``interp.check_machine`` checks this interface. Analyses look only
at the :class:`Component` s listed in ``points``, never at the type of machine.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from math import prod
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, Self, runtime_checkable

from interp.support.checks import checked_fields
from interp.support.errors import require

if TYPE_CHECKING:
    import torch
    from torch import Tensor


@dataclass(frozen=True)
@checked_fields
class Channel:
    """A named part of the state that a machine carries from round to round, such as an LSTM's
    ``h``.

    Attributes:
        name: an identifier, such as "h".
        shape: shape of the part without the batch axis: ``(width,)``, or ``(row, ..., width)``.
        grows: number of rows that each round appends, for a part such as a key-value cache. Then
            ``shape`` must have room for the rows of all rounds. 0 for a part of fixed size.
    """

    name: str
    shape: tuple[int, ...]
    grows: int = 0

    def __post_init__(self) -> None:
        """Refuse a name that is no identifier, an empty shape, sizes below 1, and ``grows`` above the
        number of rows in ``shape``. A vector has no rows, so it cannot grow.
        """
        name, shape = self.name, self.shape
        has_sizes = len(shape) > 0 and min(shape) >= 1
        require(
            name.isidentifier() and has_sizes,
            "a channel has an identifier and sizes from 1 on, such as (1,) for one number, "
            f"got {name!r} of shape {shape}",
        )
        capacity = shape[0] if len(shape) > 1 else 0  # rows; a vector has no row to append
        fits = 0 <= self.grows <= capacity
        require(fits, f"channel {name!r} of shape {shape} cannot grow by {self.grows}")

    @property
    def rows(self) -> int:
        """Number of rows that this channel takes in the carried tensor ``[episode, row, width]``."""
        return prod(self.shape[:-1])

    @property
    def labels(self) -> tuple[str, ...]:
        """A name for each of the channel's rows: the channel's name, such as ``h``, or ``cache_1``,
        ``cache_2``, ... for several rows.
        """
        if self.rows == 1:
            return (self.name,)
        return tuple(f"{self.name}_{number}" for number in range(1, self.rows + 1))


@dataclass(frozen=True)
@checked_fields
class Component:
    """A kind of activation of a machine, such as attention patterns.

    Attributes:
        key: name in sites (the texts that say where to intervene), such as "resid_pre".
        hook: name of the hook point of this activation. ``{layer}`` in it stands for the index of
            the layer, if every layer has such an activation.
        axes: names of the axes between the batch axis and the feature axis, in order and separated
            by spaces: "latent" (rows of the carried state), "pos", "head".
        name: name in tables.
        n_layers: number of layers, or of cycles of a loop within the round, that have such an
            activation; 0 if a round has only one.
        n_heads: number of heads that have such an activation; 0 if it is not divided by heads.
        labels: names of the entries along the "latent" or "pos" axis; empty if they are the labels
            of the positions of a round.
    """

    key: str
    hook: str
    axes: str
    name: str
    n_layers: int = 0
    n_heads: int = 0
    labels: tuple[str, ...] = ()

    @property
    def has_layer(self) -> bool:
        """True if every layer, or every cycle of a loop, has an activation of this kind."""
        return "{layer}" in self.hook

    @property
    def has_head(self) -> bool:
        """True if every attention head has a separate activation of this kind: its axes include
        "head".
        """
        return "head" in self.axes

    @property
    def position_axis(self) -> int | None:
        """Index of the axis of the activation that runs over the positions of a round, where the
        batch axis is 0.

        None if there is no such axis, as for carried latents: their rows are not positions of a
        round.
        """
        axes = ["batch", *self.axes.split()]
        return axes.index("pos") if "pos" in axes else None


class Stepped(NamedTuple):
    """The result of one round for a batch of episodes (:meth:`Machine.step`).

    Attributes:
        prediction: what the model predicts in each episode: a number for each outcome, such as a
            logit or a probability, ``[batch, outcome]``; or one real number, ``[batch]``.
        carried: the state that the next round reads, ``[batch, row, width]``.
    """

    prediction: Tensor
    carried: Tensor


@runtime_checkable
class Machine(Protocol):
    """Protocol of a machine, a model that carries a state from round to round of an episode. Every
    machine is also an ``nn.Module``.
    """

    name: str
    layout: Any  # RoundLayout: the task, the positions of a round, and where the prediction is read
    origin: Mapping[str, Any]  # how to build this machine again
    channels: tuple[Channel, ...]
    # By key, in the order in which a round computes them; "latent" is always among them.
    points: Mapping[str, Component]
    is_handwired: bool  # if True, read_state decodes the algorithm's state exactly
    device: torch.device
    dtype: torch.dtype
    training: bool  # as in nn.Module: True in training mode, False in evaluation mode
    eval: Callable[[], Self]
    to: Callable[..., Self]

    def initial(self, n_episodes: int, layout: Any = None) -> Tensor:
        """Return the carried state that the first round reads, ``[episode, row, width]``.

        Args:
            n_episodes: number of episodes in the batch.
            layout: layout of the rounds; None for the machine's layout.
        """

    def prepare(self, fed: Any) -> Any:
        """Move encoded rounds to the machine's device and dtype, and return them; refuse rounds
        with a layout that does not fit the machine.

        Args:
            fed: the encoded rounds, an :class:`~interp.model.layout.EncodedRounds`.
        """

    def step(self, carried: Tensor, fed: Any) -> Stepped:
        """Run one round of a batch of episodes, without side effects.

        Args:
            carried: the state that the round reads, ``[episode, row, width]``.
            fed: the round's encoded inputs, as :meth:`prepare` returns them.

        Returns:
            The prediction, and the state that the next round reads.
        """

    def stepper(self) -> Callable[[Tensor, Any], Stepped]:
        """Return a function that runs one round, with the arguments and results of :meth:`step`. It
        is for many rounds without hooks, for which it may be quicker.
        """

    def read_state(self, latents: Tensor) -> Tensor:
        """Decode the algorithm's state exactly from carried states, and return it as ``[..., *shape
        of the state]``, such as one log-weight per expert. Only handwired machines can do this.

        Args:
            latents: carried states, ``[..., row, width]``.
        """

    def untrained(self, seed: int = 0) -> Self:
        """Return a copy with newly initialised weights, which serves as a control."""

    def digest(self) -> str:
        """Return a SHA-256 of the machine's configuration and weights. Results record it, so that
        one can tell which machine they are about.
        """

    def weights_version(self) -> tuple[Any, ...]:
        """Return a value that changes whenever a weight is changed. Caches of results compare it,
        since it takes less time to compute than :meth:`digest`.
        """

    def precision(self) -> dict[str, Any]:
        """Return a dictionary for the settings of a result: "dtype" -> the machine's dtype, and
        "rounding" -> the largest relative error of rounding a number to this dtype.
        """

    def hook_names(self, names: Any) -> list[str]:
        """Return the names of the hook points that a filter selects; refuse names that do not
        exist.

        Args:
            names: a name, several names, or a predicate of names; None for all hook points that are
                not switched off.
        """

    def hooks(self, fwd_hooks: Any = (), bwd_hooks: Any = ()) -> AbstractContextManager[Any]:
        """Return a context manager that attaches hooks on entry and removes them on exit, like
        ``hooks`` in TransformerLens.

        Args:
            fwd_hooks: pairs (name of a hook point, function) for forward passes.
            bwd_hooks: pairs (name of a hook point, function) for backward passes.
        """

    def is_quiet(self) -> bool:
        """Return True if no hook is attached and no gradient is recorded. Results of an earlier run
        may then be used instead of running again.
        """


def can_resume_rounds(machine: Machine) -> bool:
    """Return True if a machine can run the rest of a round from any layer's residual stream, with a
    method ``run_from``.
    """
    return hasattr(machine, "run_from")
