"""The labelled residual basis: every coordinate of a handwired model's residual stream has a name.

The residual stream is a direct sum of blocks, ``h = [id | buf1 | ... | pos]`` (paper, sections 3.2
and 4). A content block, such as ``id`` (which token this is) or a buffer, has one axis per token.
The last block, ``pos``, encodes the position: one axis per position, or a cosine and a sine per
Fourier line; then the constant ``1``. :class:`Coordinates` holds these choices for every
construction.

>>> basis = Basis.of(["id", "buf1"], ["w", "e_1"], PositionCode(("w", "e_1")))
>>> direction = 2.0 * basis["buf1"]["e_1"] - basis["id"]["w"]
>>> direction.vector().tolist()
[-1.0, 0.0, 0.0, 2.0, 0.0, 0.0, 0.0]
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass, field
from functools import cached_property, wraps
from typing import Any, TypeVar

import numpy as np
from jaxtyping import Float

from interp.support.checks import checked, checked_fields, integer, seed_of
from interp.support.errors import InputError, require, require_known, unknown_name

_T = TypeVar("_T")
POS = "pos"
_ONE = "1"  # the constant coordinate of the position block: 1 at every position

_POSITIONS = ("one-hot", "sinusoidal")
MIN_MARGIN = 1e-3
"""Smallest margin of a position code: far above rounding in float32, where half of it decides a score."""

# Joined to a seed, so that one seed draws lines and rotation independently of each other.
_LINES_STREAM, _ROTATION_STREAM = range(2)

_Axis = tuple[str, str]  # a block and a label in it


@dataclass(frozen=True)
@checked_fields
class PositionCode:
    """The position codes of a round: a unit vector p_j for each of its T labelled positions j.

    A linear map R^l shifts every code by l positions: ``R^l p_j = p_{j+l}``. An attention head can
    thus look l positions back.

    Attributes:
        labels: the positions of a round, in order.
        lines: frequencies of the Fourier lines in radians per position. Empty for one-hot codes,
            which have an axis for each position.
    """

    labels: tuple[str, ...]
    lines: tuple[float, ...] = ()

    @classmethod
    def sinusoidal(cls, labels: Iterable[str], n_lines: int, seed: int) -> PositionCode:
        """Make a position code of sines and cosines at random frequencies.

        The frequencies are drawn without replacement from those of the discrete Fourier transform
        of length 2 T + 1 (T is the number of positions). If two positions get nearly the same code,
        all frequencies are drawn again, up to 100 times.

        Args:
            labels: labels of the T positions of a round.
            n_lines: number of frequencies, 1 ... T.
            seed: seed of the draws.

        Raises:
            InputError: in each of the 100 draws, two positions get nearly the same code.
        """
        labels = tuple(labels)
        T = len(labels)
        require(
            1 <= n_lines <= T,
            f"n_lines must lie in 1 ... {T} for a round of {T} positions, got {n_lines}",
        )
        # _LINES_STREAM makes the draws independent of those that use the same seed elsewhere.
        rng, best_margin = np.random.default_rng([seed, _LINES_STREAM]), 0.0
        for _ in range(100):
            lines = np.sort(rng.choice(np.arange(1, T + 1), size=n_lines, replace=False))
            # With this length, the codes of any two positions have the inner product -1 / (2 T) if
            # all T frequencies are used.
            frequencies = 2 * math.pi * lines / (2 * T + 1)
            code = cls(labels, tuple(frequencies.tolist()))
            if code.margin >= MIN_MARGIN:
                return code
            best_margin = max(best_margin, code.margin)
        raise InputError(
            f"n_lines={n_lines} cannot tell {T} positions apart: the best of 100 draws has margin "
            f"{best_margin:.2g}, and {MIN_MARGIN:g} is needed; give more lines (8 to 16), or one-hot positions"
        )

    @property
    def axes(self) -> tuple[str, ...]:
        """Names of the axes of the position block (the part of the residual stream that stores the
        position): one per position for one-hot codes, a cosine and a sine per frequency for
        sinusoidal codes. The last axis, "1", is constant: its coordinate is 1 at every position.
        """
        if not self.lines:
            return (*self.labels, _ONE)
        waves = []
        for k in range(1, len(self.lines) + 1):
            waves += [f"cos_{k}", f"sin_{k}"]
        return (*waves, _ONE)

    def coefficients(self, position: int) -> dict[str, float]:
        """Return the code of a position: name of an axis -> its coordinate. Axes that are missing
        have the coordinate 0 in the code.

        Args:
            position: index of the position, from 0. Sinusoidal codes are defined for any integer,
                also for positions outside the round.
        """
        if not self.lines:
            integer("position", position, 0, len(self.labels) - 1)
            return {self.labels[position]: 1.0}
        scale = 1.0 / math.sqrt(len(self.lines))
        code = {}
        for k, omega in enumerate(self.lines, 1):
            code[f"cos_{k}"] = scale * math.cos(omega * position)
            code[f"sin_{k}"] = scale * math.sin(omega * position)
        return code

    def overlap(self, i: int, j: int) -> float:
        """Return ``<p_i, p_j>``, the inner product of the codes of two positions."""
        if not self.lines:
            return float(i == j)
        lag = i - j
        return sum(math.cos(omega * lag) for omega in self.lines) / len(self.lines)

    @cached_property
    def margin(self) -> float:
        """``Delta = 1 - max <p_i, p_j>`` over all pairs of different positions i and j. The
        unit vector p_i is the code of position i.

        An attention head that looks for position i scores i higher than any other position by at
        least Delta.
        """
        # An overlap depends only on the distance of the two positions.
        overlaps = [self.overlap(0, lag) for lag in range(1, len(self.labels))]
        return 1.0 - max(overlaps, default=0.0)


@dataclass(frozen=True)
@checked_fields
class Basis:
    """The labelled basis of a residual stream: named blocks of named axes. The last block, ``pos``,
    stores the position.

    :meth:`of` makes a basis.

    Attributes:
        blocks: (name, labels of the axes) of each block, in order.
        positions: the position codes, which determine the axes of the block ``pos``.
        rotation: seed of a random rotation of the axes; None for no rotation: each axis is then one
            coordinate of the residual stream.
    """

    blocks: tuple[tuple[str, tuple[str, ...]], ...]
    positions: PositionCode
    rotation: int | None = None

    @classmethod
    @checked
    def of(
        cls,
        blocks: Iterable[str],
        tokens: Iterable[str],
        positions: PositionCode,
        rotation: int | None = None,
    ) -> Basis:
        """Make a basis of content blocks with one axis per token, followed by the position block.

        Args:
            blocks: names of the content blocks.
            tokens: labels of the axes, the same in every content block.
            positions: the position codes, which determine the axes of the position block.
            rotation: seed of a random rotation of the whole basis; None for no rotation.
        """
        tokens = tuple(tokens)
        content = [(block, tokens) for block in blocks]
        return cls((*content, (POS, positions.axes)), positions, rotation)

    def __post_init__(self) -> None:
        """Refuse equal names of blocks, and equal labels in a block."""
        require(
            len(self._labels_of_block) == len(self.blocks),
            f"block names must differ, got {[name for name, _ in self.blocks]}",
        )
        for block, labels in self.blocks:
            require(
                len(set(labels)) == len(labels),
                f"labels of block {block!r} must differ, got {labels}",
            )

    @cached_property
    def _labels_of_block(self) -> dict[str, tuple[str, ...]]:
        return dict(self.blocks)

    @cached_property
    def index(self) -> dict[_Axis, int]:
        """(name of the block, label) of an axis -> index of the axis, counted over all blocks."""
        numbers: dict[_Axis, int] = {}
        for block, labels in self.blocks:
            for label in labels:
                numbers[block, label] = len(numbers)
        return numbers

    @property
    def d_model(self) -> int:
        """Number of axes: the width of the residual stream."""
        return len(self.index)

    @cached_property
    def axes(self) -> Float[np.ndarray, "axis d_model"]:
        """The orthonormal unit vectors of all axes as rows, ``[axis, d_model]``."""
        if self.rotation is None:
            return np.eye(self.d_model)
        rng = np.random.default_rng([self.rotation, _ROTATION_STREAM])
        q, r = np.linalg.qr(rng.standard_normal((self.d_model, self.d_model)))
        # A QR decomposition leaves the signs of the columns of q open. Those that make the diagonal
        # of r positive give a uniformly random rotation, whatever a library's convention.
        return q * np.sign(np.diag(r))

    def __getitem__(self, block: str) -> Axes:
        require_known("block", block, self._labels_of_block)
        return Axes(self, block)

    @property
    def zero(self) -> Direction:
        """The zero vector of this basis, as a :class:`Direction`."""
        return Direction(self, {})

    @property
    def one(self) -> Direction:
        """The direction of the constant axis: the embedding of every position has the coordinate 1
        along it.
        """
        return self[POS][_ONE]

    @checked
    def code(self, position: int) -> Direction:
        """Return the code of a position as a direction in the block ``pos``. The component along
        the constant axis is not included.

        Args:
            position: index of the position, from 0.
        """
        axes, coefficients = self[POS], self.positions.coefficients(position)
        return sum((c * axes[label] for label, c in coefficients.items()), self.zero)


@dataclass(frozen=True)
class Coordinates:
    """The coordinates of a handwired model's residual stream: how positions are encoded, and
    whether the basis is rotated.

    Every function that builds a handwired model takes the four fields as keyword arguments, because
    :meth:`taken_by` decorates it.

    Attributes:
        positions: the position codes: "one-hot" (one axis per position) or "sinusoidal" (sines and
            cosines at random frequencies).
        n_lines: number of frequencies (Fourier lines) of a sinusoidal code; reduced to the number
            of positions if it is larger.
        seed: seed of these frequencies.
        rotation: seed of a random rotation of the basis; None for no rotation: each axis of the
            basis is then one coordinate of the residual stream.
    """

    positions: str = "one-hot"
    n_lines: int = 16
    seed: int = 0
    rotation: int | None = None

    def __post_init__(self) -> None:
        """Refuse unknown position codes, and numbers of lines and seeds that are out of range."""
        require_known("position code", self.positions, _POSITIONS)
        integer("n_lines", self.n_lines, 1)
        seed_of(self.seed)
        if self.rotation is not None:
            seed_of(self.rotation, "rotation")

    @property
    def one_hot(self) -> bool:
        """True if the position codes are one-hot, with one axis per position."""
        return self.positions == "one-hot"

    def basis(self, blocks: Mapping[str, Iterable[str]], positions: Iterable[str]) -> Basis:
        """Make the basis of a residual stream: the content blocks, then the position block.

        Args:
            blocks: labels of the axes of each content block, by block name.
            positions: labels of the positions of a round, in order.
        """
        labels = tuple(positions)
        if self.one_hot:
            code = PositionCode(labels)
        else:
            n_lines = min(self.n_lines, len(labels))  # frequencies: no more than positions
            code = PositionCode.sinusoidal(labels, n_lines, self.seed)
        content = tuple((block, tuple(axes)) for block, axes in blocks.items())
        return Basis((*content, (POS, code.axes)), code, self.rotation)

    @classmethod
    def taken_by(cls, build: Callable[..., _T]) -> Callable[..., _T]:
        """Decorate a function that builds a circuit, so that its callers pass the fields of a
        :class:`Coordinates` as keyword arguments.

        The function ``build`` has a keyword-only parameter ``coordinates``. The function that is
        returned has the parameters ``positions``, ``n_lines``, ``seed`` and ``rotation`` in its
        place.

        >>> @Coordinates.taken_by
        ... def builder(size: int, *, coordinates: Coordinates) -> str:
        ...     return f"{size}, {coordinates.positions}"
        >>> builder(2, positions="sinusoidal"), list(inspect.signature(builder).parameters)
        ('2, sinusoidal', ['size', 'positions', 'n_lines', 'seed', 'rotation'])
        """
        own_signature, fields = inspect.signature(build), inspect.signature(cls).parameters
        parameters = dict(own_signature.parameters)
        del parameters["coordinates"]
        signature = own_signature.replace(parameters=[*parameters.values(), *fields.values()])

        @wraps(build)
        def builder(*args: Any, **arguments: Any) -> _T:
            """Gather the fields of the coordinates among the arguments, and call ``build``."""
            passed = signature.bind(*args, **arguments).arguments  # name of a parameter -> value
            passed_fields = {name: passed.pop(name) for name in fields if name in passed}
            return build(**passed, coordinates=cls(**passed_fields))

        # What `inspect.signature` and `checked` see in place of (*args, **arguments).
        builder.__signature__ = signature  # type: ignore[attr-defined]
        return checked(builder)

    def joined(self, arguments: Mapping[str, Any]) -> dict[str, Any]:
        """Return a builder's arguments in the form in which a user passes them: the fields of this
        object replace the argument ``coordinates``.

        Args:
            arguments: name of an argument of the builder -> its value, such as ``{"n_experts": 4,
                "coordinates": self}``.

        Returns:
            Name of an argument -> its value, such as ``{"n_experts": 4, "positions": "one-hot",
            "n_lines": 16, "seed": 0, "rotation": None}``.
        """
        others = {key: value for key, value in arguments.items() if key != "coordinates"}
        return others | asdict(self)


@dataclass(frozen=True)
@checked_fields
class Axes:
    """The axes of one block of a basis. ``axes["e_1"]`` is the direction of the axis with the label
    "e_1", as in ``basis["buf1"]["e_1"]``.

    Attributes:
        basis: the basis.
        name: name of the block.
    """

    basis: Basis
    name: str

    @property
    def labels(self) -> tuple[str, ...]:
        """The labels of the block's axes, in order."""
        return self.basis._labels_of_block[self.name]

    def __getitem__(self, label: str) -> Direction:
        if (self.name, label) not in self.basis.index:
            raise unknown_name(f"label of block {self.name!r}", label, self.labels)
        return Direction(self.basis, {(self.name, label): 1.0})

    def sum(self, labels: Iterable[str]) -> Direction:
        """Return the sum of the directions of the axes with these labels."""
        return sum((self[label] for label in labels), self.basis.zero)


@dataclass(frozen=True)
@checked_fields
class Direction:
    """A vector of the residual stream, written as a linear combination of named axes of one basis.

    Directions can be added, subtracted and scaled.

    Attributes:
        basis: the basis. Its axes are grouped into named blocks (parts of the residual stream, not
            layers), such as "buf1"; within its block, each axis has a label, such as "e_1".
        coefficients: (name of the block, label) of an axis, such as ``("buf1", "e_1")`` -> its
            coefficient. Axes with the coefficient 0 are left out.
    """

    basis: Basis
    coefficients: Mapping[_Axis, float] = field(hash=False)

    def __add__(self, other: Direction) -> Direction:
        if self.basis != other.basis:
            raise InputError(
                f"cannot add directions of two bases ({self} and {other}); take both from the same basis"
            )
        merged = dict(self.coefficients)
        for axis, c in other.coefficients.items():
            merged[axis] = merged.get(axis, 0.0) + c
        return self._keep_nonzero(merged)

    def __mul__(self, factor: float) -> Direction:
        return self._keep_nonzero({axis: factor * c for axis, c in self.coefficients.items()})

    def _keep_nonzero(self, coefficients: Mapping[_Axis, float]) -> Direction:
        return Direction(self.basis, {axis: c for axis, c in coefficients.items() if c != 0.0})

    __rmul__ = __mul__

    def __neg__(self) -> Direction:
        return -1.0 * self

    def __sub__(self, other: Direction) -> Direction:
        return self + -other

    def vector(self) -> Float[np.ndarray, " d_model"]:
        """Return the direction as a vector ``[d_model]`` in the coordinates of the residual stream."""
        index, axes = self.basis.index, self.basis.axes
        total = np.zeros(self.basis.d_model)
        for axis, c in self.coefficients.items():
            if axis not in index:
                raise InputError(
                    f"{axis!r} is no axis of its basis; take directions from basis[block][label]"
                )
            total += c * axes[index[axis]]
        return total

    @checked
    def dot(self, other: Direction) -> float:
        """Return the inner product with another direction of the same basis (whose axes are
        orthonormal).
        """
        return sum(c * other.coefficients.get(axis, 0.0) for axis, c in self.coefficients.items())

    def __str__(self) -> str:
        text = ""  # such as "-id[w] + 2 buf1[e_1]"
        for (block, label), c in self.coefficients.items():
            size = "" if abs(c) == 1 else f"{abs(c):g} "
            if text:
                text += " - " if c < 0 else " + "
            elif c < 0:
                text = "-"
            text += f"{size}{block}[{label}]"
        return text or "0"
