"""A machine: any model that carries a state from round to round. The module defines what every room
may use of it.

Each round a machine reads what it carries and the round's inputs, predicts, receives the truth, and
writes what the next round reads: ``prediction, carried = machine.step(carried, fed)``. What is
carried is one tensor ``[episode, row, width]``: its :class:`Channel` s one after the other (an
LSTM's ``h`` and ``c``), padded with zeros to the widest. ``interp.adapt`` makes a machine of any
``nn.Module``; ``interp.check_machine`` says whether a machine keeps this contract. Rooms ask for
the :class:`Component` s that its ``points`` list, never for the kind of machine.
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
    """A named part of what passes from round to round; what is in no channel does not pass.

    Attributes:
        shape: without the batch axis: ``(width,)``, or ``(row, ..., width)``.
        grows: rows that a round writes behind those before, as into a cache; ``shape`` is the room for all rounds.
    """

    name: str
    shape: tuple[int, ...]
    grows: int = 0

    def __post_init__(self) -> None:
        is_name = self.name.isidentifier()
        has_sizes = len(self.shape) > 0 and min(self.shape) >= 1
        require(
            is_name and has_sizes,
            f"a channel has an identifier and sizes from 1 on, got {self.name!r} of shape {self.shape}",
        )
        capacity = self.shape[0] if len(self.shape) > 1 else 0
        fits = 0 <= self.grows <= capacity
        require(fits, f"channel {self.name!r} of shape {self.shape} cannot grow by {self.grows}")

    @property
    def rows(self) -> int:
        """How many rows of what is carried are its."""
        return prod(self.shape[:-1])

    @property
    def labels(self) -> tuple[str, ...]:
        """A name for each of its rows, for sites: ``h``, or ``cache_1``, ``cache_2``, ..."""
        if self.rows == 1:
            return (self.name,)
        return tuple(f"{self.name}_{number}" for number in range(1, self.rows + 1))


@dataclass(frozen=True)
@checked_fields
class Component:
    """A kind of activation of a machine: sites call it by its key, tables by its name.

    Attributes:
        hook: its hook point, with ``{layer}`` to be filled in where there are several.
        axes: between the batch axis and the vector: "latent" (rows of what is carried), "pos",
            "head", or several.
        n_layers, n_heads: one for each layer, or each cycle of a loop within the round; 0 for none.
        labels: names along its "latent" or "pos" axis; the round's positions where empty.
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
        """Whether there is one in every layer or cycle."""
        return "{layer}" in self.hook

    @property
    def has_head(self) -> bool:
        """Whether there is one for every head."""
        return "head" in self.axes

    @property
    def position_axis(self) -> int | None:
        """Axis of the round's positions in ``[batch, ...]``; None for latents, whose rows are not
        positions of the round.
        """
        axes = ["batch", *self.axes.split()]
        return axes.index("pos") if "pos" in axes else None


class Stepped(NamedTuple):
    """What a round gives: the prediction ``[batch, ...]``, as the layout has it, and what the next round reads."""

    prediction: Tensor
    carried: Tensor


@runtime_checkable
class Machine(Protocol):
    """What every room may ask of a machine, which is an ``nn.Module``."""

    name: str
    layout: Any  # RoundLayout: its task, what a round is, and where in it the prediction is read
    origin: Mapping[str, Any]  # how to make it again
    channels: tuple[Channel, ...]
    points: Mapping[
        str, Component
    ]  # in the order in which a round computes them, "latent" among them
    is_handwired: bool  # whether read_state is exact
    device: torch.device
    dtype: torch.dtype
    eval: Callable[[], Self]
    to: Callable[..., Self]

    def initial(self, n_episodes: int, layout: Any = None) -> Tensor:
        """Return what the first round reads, ``[episode, row, width]``.

        Args:
            n_episodes: rows of the batch.
            layout: of the rounds; the model's layout when None.
        """

    def prepare(self, fed: Any) -> Any:
        """Return encoded rounds on its device and in its dtype; refused where it cannot take them."""

    def step(self, carried: Tensor, fed: Any) -> Stepped:
        """Run one round of a batch, without side effects.

        Args:
            carried: what the round reads, ``[episode, row, width]``.
            fed: the round's inputs.

        Returns:
            The prediction and what the next round reads.
        """

    def stepper(self) -> Callable[[Tensor, Any], Stepped]:
        """Return :meth:`step`, for callers that run many rounds without hooks."""

    def read_state(self, latents: Tensor) -> Tensor:
        """Return the algorithm's state, exactly; only where ``is_handwired``."""

    def untrained(self, seed: int = 0) -> Self:
        """Return an untrained copy: the control of every claim."""

    def digest(self) -> str:
        """Return the SHA-256 of what it is and of its weights."""

    def weights_version(self) -> tuple[Any, ...]:
        """Return what changes with any weight, at no cost."""

    def precision(self) -> dict[str, Any]:
        """Return its dtype and how coarsely that rounds."""

    def hook_names(self, names: Any) -> list[str]:
        """Return the hook points that a filter selects; names that do not exist are refused."""

    def hooks(self, fwd_hooks: Any = (), bwd_hooks: Any = ()) -> AbstractContextManager[Any]:
        """Add hooks for the duration of a context, as TransformerLens' context manager does.

        Args:
            fwd_hooks: pairs of a hook point and a function, for forward passes.
            bwd_hooks: the same for gradients.
        """

    def is_quiet(self) -> bool:
        """Return whether no hook is attached and no gradient needed, so that a run may be
        shared.
        """


def runs_from(machine: Machine) -> bool:
    """Return whether it can run a round on from any layer, from the residual stream before it: ``run_from``."""
    return hasattr(machine, "run_from")
