"""What a probe decodes: values for every round, with what its controls need."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import numpy as np
from einops import rearrange
from jaxtyping import Bool, Float, Int, Shaped
from numpy import ndarray as Array

from interp.checks import checked
from interp.errors import require
from probes.arrays import as_array

When = Literal["before", "after", "round"]


@dataclass(frozen=True, eq=False)
class TargetValues:
    """Values to decode, with what the controls need.

    Attributes:
        key: the target's name; ":before" is added where it is meant before each round.
        values: ``[episode, round, output]``; class numbers 0, 1, ... where ``kind`` is "class".
        outputs: a name for each output.
        when: "after" or "before" each round (what is carried from round to round), or "round".
        kind: "real" or "class".
        mask: entries that are scored; all when None. The others are fitted (a linear readout of a state must be right
            everywhere) but count in no score.
        inputs: what the current round alone says, ``[episode, round, feature]``, in several forms of which the control
            takes the best; that control is left out when there are none.
        types: a number for each kind of round, ``[episode, round]``, for the control task; left out when None.
        implied_by: controls that hold this target by construction; a verdict does not ask the probe to beat these.
        parameters: of the algorithm, where others were given than the episodes' own.

    Example:
        >>> noise = np.random.default_rng(0).normal(size=(8, 5, 2))
        >>> target = TargetValues.of(noise, "noise")
        >>> target.outputs, target.rounds(1, 3).values.shape
        (('output 0', 'output 1'), (8, 2, 2))
    """

    key: str
    values: Shaped[Array, "episode round k"]
    outputs: tuple[str, ...]
    when: When = "round"
    kind: Literal["real", "class"] = "real"
    mask: Bool[Array, "episode round k"] | None = None
    inputs: tuple[Float[Array, "episode round _"], ...] = ()
    types: Int[Array, "episode round"] | None = None
    implied_by: tuple[str, ...] = ()
    parameters: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    @checked
    def of(cls, values: Any, key: str = "target", of_classes: bool = False) -> TargetValues:
        """A target from bare values ``[episode, round]`` or ``[episode, round, output]``, which are numbers.

        Args:
            of_classes: whether whole numbers (and truth values) are classes.

        Raises:
            InputError: values of another shape, or no numbers.
        """
        array = as_array(values, "a target")
        of_classes = of_classes and array.dtype.kind in "biu"
        array = array.astype(np.int64) if of_classes else array if array.dtype.kind == "f" else array.astype(np.float64)
        array = array[..., None] if array.ndim == 2 else array
        require(array.ndim == 3, f"a target is an array [episode, round, output], got shape {array.shape}")
        kind: Literal["real", "class"] = "class" if of_classes else "real"
        return cls(key, array, tuple(f"output {i}" for i in range(array.shape[-1])), kind=kind)

    def as_numbers(self) -> TargetValues:
        """The same with everything as arrays: values may be given as tensors, whole numbers or truth values.

        Raises:
            InputError: what is no number; class numbers below 0.
        """
        values = as_array(self.values, f"target {self.key!r}")
        if self.kind == "class":
            require(bool((values == np.floor(values)).all() and (values >= 0).all()), "classes are numbered 0, 1, ...")
            values = values.astype(np.int64)
        elif values.dtype.kind != "f":
            values = values.astype(np.float64)
        mask = None if self.mask is None else as_array(self.mask, "a mask").astype(bool)
        types = None if self.types is None else as_array(self.types, "kinds of rounds").astype(np.int64)
        return replace(self, values=values, mask=mask, types=types, inputs=tuple(map(_as_floats, self.inputs)))

    @property
    def varies(self) -> bool:
        """Whether there is anything to decode: a constant has no score."""
        return bool((self.values != self.values[:1, :1]).any())

    @checked
    def rounds(self, start: int, stop: int) -> TargetValues:
        """The rounds from ``start`` to before ``stop``."""
        cut = slice(start, stop)
        parts: dict[str, Any] = {name: getattr(self, name) for name in ("values", "mask", "types")}
        kept = {name: part[:, cut] for name, part in parts.items() if part is not None}
        return replace(self, **kept, inputs=tuple(part[:, cut] for part in self.inputs))

    def indicators(self) -> TargetValues:
        """A class target as numbers: 0 or 1 for two classes, else one output per class; a real target as it is."""
        if self.kind == "real":
            return self
        n_classes = int(self.values.max()) + 1
        if n_classes <= 2:
            return replace(self, values=self.values.astype(np.float64), kind="real")
        values = rearrange(np.eye(n_classes)[self.values], "episode round k c -> episode round (k c)")
        mask = None if self.mask is None else np.repeat(self.mask, n_classes, axis=-1)
        outputs = tuple(f"{name}={c}" for name in self.outputs for c in range(n_classes))
        return replace(self, values=values, outputs=outputs, mask=mask, kind="real")


def _as_floats(inputs: Any) -> Float[Array, "episode round _"]:
    array = as_array(inputs, "the round's inputs")
    return array if array.dtype.kind == "f" else array.astype(np.float64)
