"""Where a variable lives in a model: how to read it in an activation, and how to set it there.

>>> from circuits.basis import Basis, PositionCode
>>> basis = Basis.of(["id"], ["w", "e_1", "e_2"], PositionCode.one_hot(["w"]))
>>> Location.grid("latent", "hook_embed", ["w"], [basis["id"]["e_1"], basis["id"]["e_2"]]).labels
('w', 'w')
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from einops import rearrange
from jaxtyping import Float
from torch import Tensor, as_tensor, einsum

from circuits.basis import Direction
from interp.checks import check_fields
from interp.errors import require

if TYPE_CHECKING:
    from circuits.circuit import Circuit


@dataclass(frozen=True)
class Location:
    """A place where a variable lives; element k of its (flattened) value is read at position ``labels[k]``.

    Attributes:
        name: what callers ask for it by; unique among the locations of one variable.
        hook: name of the hook point, "blocks.1.hook_resid_post" or "blocks.2.attn.hook_attn_scores".
        labels: position label of each element (the query position at attention scores).
        directions: what reads each element; empty at attention scores.
        keys: key position of each element at attention scores.
        head: name of the head at attention scores.
        scale: the activation is ``scale`` times the variable.
        drives: what an intervention here moves.
        one_hot: whether a class is held as one number per class; otherwise its own number (0, 1, ...) is held.
    """

    name: str
    hook: str
    labels: tuple[str, ...]
    directions: tuple[Direction, ...] = ()
    keys: tuple[str, ...] = ()
    head: str | None = None
    scale: float = 1.0
    drives: str = ""
    one_hot: bool = True

    @classmethod
    def grid(
        cls, name: str, hook: str, labels: Sequence[str], directions: Sequence[Direction], drives: str = ""
    ) -> Location:
        """Every direction at every position; the elements are ordered by position, then by direction."""
        spread = tuple(label for label in labels for _ in directions)
        return cls(name, hook, spread, tuple(directions) * len(labels), drives=drives)

    def __post_init__(self) -> None:
        check_fields(self)
        n_read = len(self.directions or self.keys)
        require(
            n_read == len(self.labels),
            f"location {self.name!r} needs one direction or key per label, got {n_read} for {len(self.labels)}",
        )

    def reader(self, circuit: Circuit) -> Callable[[Tensor], Float[Tensor, "*batch element"]]:
        """A function that reads the variable in an activation of this hook.

        It takes ``[..., pos, d_model]``, or ``[..., head, query, key]`` at attention scores, and can be called often.
        """
        at = circuit.layout.position
        queries = [at(label) for label in self.labels]
        if self.keys:
            assert self.head is not None
            index, keys = circuit.head_index(self.head), [at(label) for label in self.keys]
            return lambda scores: scores[..., index, queries, keys] / self.scale
        groups: dict[int, list[int]] = {}
        for element, position in enumerate(queries):
            groups.setdefault(position, []).append(element)
        positions, order = list(groups), [element for elements in groups.values() for element in elements]
        sizes = {len(elements) for elements in groups.values()}
        assert len(sizes) == 1, "a location reads equally many numbers at each of its positions"
        vectors = np.stack([direction.vector() / self.scale for direction in self.directions])
        maps = as_tensor(rearrange(vectors[order], "(position read) d -> position read d", position=len(groups)))
        back = sorted(range(len(order)), key=order.__getitem__)
        in_order = order == list(range(len(order)))

        def read(activation: Tensor) -> Tensor:
            elements = einsum("...pd,ped->...pe", activation[..., positions, :], maps.to(activation)).flatten(-2)
            return elements if in_order else elements[..., back]

        return read

    def read(self, activation: Tensor, circuit: Circuit) -> Float[Tensor, "*batch element"]:
        """The variable in an activation of this hook."""
        return self.reader(circuit)(activation)

    def write(
        self, activation: Tensor, values: Float[Tensor, "*batch element"], circuit: Circuit
    ) -> Float[Tensor, "*batch pos d_model"]:
        """The activation with the variable set to ``values``; everything orthogonal to its directions is kept."""
        require(bool(self.directions), f"{self.hook!r} holds attention scores; set residual directions instead")
        change = (values - self.read(activation, circuit)) * self.scale
        patched = activation.clone()
        for k, (label, direction) in enumerate(zip(self.labels, self.directions, strict=True)):
            dual = as_tensor(direction.vector() / direction.norm_squared).to(activation)
            patched[..., circuit.layout.position(label), :] += change[..., k, None] * dual
        return patched
