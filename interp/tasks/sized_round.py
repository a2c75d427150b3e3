"""Base class for token layouts of rounds that support several sizes of episodes with one
vocabulary.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import cached_property
from typing import Any, ClassVar, Self

from interp.model.layout import RoundLayout, size_range
from interp.support.errors import InputError, require


class SizedRound(RoundLayout):
    """Base class for token layouts (which tokens a round has) with sizes that may vary, such as the
    number of states.

    A subclass has two fields for each size, such as ``n_states``, the value of the size, and
    ``n_states_range``, the smallest and the largest value that the vocabulary supports.

    Attributes:
        ranged: names of the sizes, such as ``("n_states", "n_actions")``. Only the last size may
            change the number of positions in a round; the property ``family`` has one layout for
            each supported value of this size.
        episodes_are: which episodes the layout can encode, in words, for error messages.
        episode_types: classes of these episodes.
    """

    ranged: ClassVar[tuple[str, ...]]
    episodes_are: ClassVar[str]
    episode_types: ClassVar[tuple[type, ...]]

    def __post_init__(self) -> None:
        for name in self.ranged:
            bounds = size_range(name, getattr(self, name), getattr(self, f"{name}_range"))
            object.__setattr__(self, f"{name}_range", bounds)
        super().__post_init__()

    @property
    def served(self) -> tuple[tuple[int, int], ...]:
        """The smallest and largest supported value of every size in ``ranged``, such as
        ``((2, 8), (2, 4))`` for the sizes ``("n_states", "n_actions")``.
        """
        return tuple(getattr(self, f"{name}_range") for name in self.ranged)

    @cached_property
    def max_layout(self) -> Self:
        largest = {name: high for name, (_, high) in zip(self.ranged, self.served, strict=True)}
        return replace(self, **largest)

    @property
    def family(self) -> tuple[Self, ...]:
        name, (low, high) = self.ranged[-1], self.served[-1]  # only the last changes positions
        return tuple(replace(self.max_layout, **{name: n}) for n in range(low, high + 1))

    def fit(self, episodes: Any) -> Self:
        if not isinstance(episodes, self.episode_types):
            raise InputError(f"this model reads {self.episodes_are}, got {type(episodes).__name__}")
        sizes = {name: getattr(episodes, name) for name in self.ranged}
        for (name, size), (low, high) in zip(sizes.items(), self.served, strict=True):
            if not low <= size <= high:
                self._refuse_size(name, size, low, high)
        return self if sizes == self._sizes else replace(self, **sizes)

    def _refuse_size(self, name: str, size: int, low: int, high: int) -> None:
        """Raise InputError for a size that this layout does not support; the message names models
        that support it.

        Args:
            name: name of the size.
            size: the size's value in the episodes.
            low, high: smallest and largest value of this size that the layout supports.
        """
        from interp.model.library import name_supporting_models

        unit = name.removeprefix("n_")  # such as "states" for the size "n_states"
        serves = f"{low} {unit}" if low == high else f"{low} to {high} {unit}"
        nearest = min(max(size, low), high)
        raise InputError(
            f"episodes have {size} {unit} but this model's layout serves {serves}; sample with {name}={nearest}, or "
            f"take a model that serves {size}: {name_supporting_models(self.task, **{name: size})}"
        )

    @property
    def _sizes(self) -> dict[str, int]:
        return {name: getattr(self, name) for name in self.ranged}

    def require_fit(self, episodes: Any) -> None:
        """Raise InputError if the sizes of ``episodes`` differ from those of this layout."""
        fitted = self.fit(episodes)
        sizes, own_sizes = _describe_sizes(fitted._sizes), _describe_sizes(self._sizes)
        require(
            fitted is self,
            f"episodes have {sizes}, this layout {own_sizes}; call layout.fit(episodes) first",
        )


def number_names(prefix: str, n: int) -> tuple[str, ...]:
    """Return ``n`` names with numbers from 1, such as ``("arm_1", "arm_2")`` for the prefix "arm"."""
    return tuple(f"{prefix}_{i}" for i in range(1, n + 1))


def _describe_sizes(sizes: Mapping[str, int]) -> str:
    return " and ".join(f"{size} {name.removeprefix('n_')}" for name, size in sizes.items())
