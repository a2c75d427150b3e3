"""A machine is any model that carries a state from round to round; this module defines its
interface.

Each round a machine reads the carried state and the round's inputs, makes a prediction, receives
the true outcome, and writes the state for the next round: ``prediction, carried =
machine.step(carried, fed)``. The carried state is one tensor ``[episode, row, width]``: its
:class:`Channel` s (such as an LSTM's ``h`` and ``c``) stacked along the rows, padded with zeros to
the widest. ``interp.adapt`` makes a machine from any ``nn.Module``; ``interp.check_machine`` checks
this interface. Analyses look only at the :class:`Component` s listed in ``points``, never at the
type of machine.
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
    """A named part of the state that is carried from round to round. All of the state is in
    channels.

    Attributes:
        name: an identifier, such as "h".
        shape: shape without the batch axis: ``(width,)``, or ``(row, ..., width)``.
        grows: number of rows that each round appends, as to a key-value cache; 0 for a fixed size.
            If it grows, ``shape`` has room for the rows of all rounds.
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
        """Number of rows of the carried tensor that this channel takes."""
        return prod(self.shape[:-1])

    @property
    def labels(self) -> tuple[str, ...]:
        """A name for each of the channel's rows: ``h``, or ``cache_1``, ``cache_2``, ..."""
        if self.rows == 1:
            return (self.name,)
        return tuple(f"{self.name}_{number}" for number in range(1, self.rows + 1))


@dataclass(frozen=True)
@checked_fields
class Component:
    """A kind of activation of a machine, such as attention patterns.

    Attributes:
        key: name in sites, which say where to intervene, such as "resid_pre".
        hook: name of its hook point, with ``{layer}`` in place of the layer if there are several.
        axes: axes between the batch axis and the feature axis, separated by spaces: "latent" (rows
            of the carried state), "pos", "head".
        name: name in tables.
        n_layers: number of layers, or of cycles of a loop within the round; 0 if it has none.
        n_heads: number of heads; 0 if it has none.
        labels: names along the "latent" or "pos" axis; empty for the round's position labels.
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
        """Whether every layer, or every cycle of a loop, has an activation of this kind."""
        return "{layer}" in self.hook

    @property
    def has_head(self) -> bool:
        """Whether every attention head has an activation of this kind."""
        return "head" in self.axes

    @property
    def position_axis(self) -> int | None:
        """Index of the axis of the round's positions, counting the batch axis; None if there is
        none.

        Carried latents have none, since their rows are not positions of the round.
        """
        axes = ["batch", *self.axes.split()]
        return axes.index("pos") if "pos" in axes else None


class Stepped(NamedTuple):
    """Result of one round.

    Attributes:
        prediction: ``[batch, ...]``, in the form that the layout defines.
        carried: the state that the next round reads, ``[batch, row, width]``.
    """

    prediction: Tensor
    carried: Tensor


@runtime_checkable
class Machine(Protocol):
    """The interface of a machine, which is also an ``nn.Module``."""

    name: str
    layout: Any  # RoundLayout: the task, the positions of a round, and where the prediction is read
    origin: Mapping[str, Any]  # how to build this machine again
    channels: tuple[Channel, ...]
    points: Mapping[
        str, Component
    ]  # by key, in the order in which a round computes them; "latent" is always among them
    is_handwired: bool  # if True, read_state decodes the algorithm's state exactly
    device: torch.device
    dtype: torch.dtype
    eval: Callable[[], Self]
    to: Callable[..., Self]

    def initial(self, n_episodes: int, layout: Any = None) -> Tensor:
        """Return the state that the first round reads, ``[episode, row, width]``.

        Args:
            n_episodes: size of the batch.
            layout: layout of the rounds; None for the model's layout.
        """

    def prepare(self, fed: Any) -> Any:
        """Return encoded rounds on the machine's device and in its dtype; refuse rounds that do not
        fit it.
        """

    def step(self, carried: Tensor, fed: Any) -> Stepped:
        """Run one round of a batch, without side effects.

        Args:
            carried: the state that the round reads, ``[episode, row, width]``.
            fed: the round's encoded inputs.

        Returns:
            The prediction, and the state that the next round reads.
        """

    def stepper(self) -> Callable[[Tensor, Any], Stepped]:
        """Return a function equal to :meth:`step`, which may be quicker for many rounds without
        hooks.
        """

    def read_state(self, latents: Tensor) -> Tensor:
        """Return the algorithm's state, decoded exactly from latents; only if ``is_handwired``."""

    def untrained(self, seed: int = 0) -> Self:
        """Return a freshly initialised copy, which serves as a control."""

    def digest(self) -> str:
        """Return a SHA-256 of the machine's configuration and weights."""

    def weights_version(self) -> tuple[Any, ...]:
        """Return a value that changes whenever a weight is changed; cheap, unlike
        :meth:`digest`.
        """

    def precision(self) -> dict[str, Any]:
        """Return the machine's dtype and its rounding error, for a result's record."""

    def hook_names(self, names: Any) -> list[str]:
        """Return the names of the hook points that a filter selects; refuse names that do not
        exist.
        """

    def hooks(self, fwd_hooks: Any = (), bwd_hooks: Any = ()) -> AbstractContextManager[Any]:
        """Open a context in which hooks are attached, like ``hooks`` in TransformerLens.

        Args:
            fwd_hooks: pairs of a hook point's name and a function, for forward passes.
            bwd_hooks: the same for backward passes.
        """

    def is_quiet(self) -> bool:
        """Return whether no hook is attached and no gradient is needed, so that a cached run may be
        used.
        """


def runs_from(machine: Machine) -> bool:
    """Return whether a machine has ``run_from``: it can resume a round at any layer's residual
    stream.
    """
    return hasattr(machine, "run_from")
