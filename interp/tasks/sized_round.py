"""A round whose layout serves a range of sizes: what the layouts of the tasks share."""

from __future__ import annotations

from dataclasses import replace
from functools import cached_property
from typing import Any, ClassVar, Self

from interp.model.layout import RoundLayout, size_range
from interp.support.errors import InputError, require


class SizedRound(RoundLayout):
    """A round of some sizes, each of them a field ``NAME`` beside a field ``NAME_range``.

    Attributes:
        ranged: the names of the sizes, such as ``("n_states", "n_actions")``; the family runs over the last one.
        episodes_are: what is read, for sentences; ``episode_types`` are its classes.
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
        """The smallest and the largest of every size."""
        return tuple(getattr(self, f"{name}_range") for name in self.ranged)

    @cached_property
    def max_layout(self) -> Self:
        return replace(
            self, **{name: high for name, (_, high) in zip(self.ranged, self.served, strict=True)}
        )

    @property
    def family(self) -> tuple[Self, ...]:
        low, high = self.served[-1]
        return tuple(replace(self.max_layout, **{self.ranged[-1]: n}) for n in range(low, high + 1))

    def fit(self, episodes: Any) -> Self:
        if not isinstance(episodes, self.episode_types):
            raise InputError(f"this model reads {self.episodes_are}, got {type(episodes).__name__}")
        for name, (low, high) in zip(self.ranged, self.served, strict=True):
            size, unit = getattr(episodes, name), name.removeprefix("n_")
            if not low <= size <= high:
                from interp.model.library import serving

                serves = f"{low} {unit}" if low == high else f"{low} to {high} {unit}"
                raise InputError(
                    f"episodes have {size} {unit} but this model's layout serves {serves}; sample with "
                    f"{name}={min(max(size, low), high)}, or take a model that serves {size}: "
                    f"{serving(self.task, **{name: size})}"
                )
        sizes = {name: getattr(episodes, name) for name in self.ranged}
        return (
            self
            if all(getattr(self, name) == size for name, size in sizes.items())
            else replace(self, **sizes)
        )

    def require_fit(self, episodes: Any) -> None:
        """Refuse episodes of other sizes than this layout's."""
        sizes, served = (
            " and ".join(f"{getattr(each, name)} {name.removeprefix('n_')}" for name in self.ranged)
            for each in (self.fit(episodes), self)
        )
        require(
            sizes == served,
            f"episodes have {sizes}, this layout {served}; call layout.fit(episodes) first",
        )
