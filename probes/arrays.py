"""What counts as numbers: arrays, tensors of any precision, with gradients or not, and pandas objects."""

from __future__ import annotations

from typing import Any

import pandas as pd
from numpy import ndarray as Array

from interp.checks import array_of
from interp.errors import require


def as_array(values: Any, what: str) -> Array:
    """Numbers as an array: of arrays, tensors of any precision (gradients are let go) and pandas objects.

    A pandas object whose index has two levels, episode and round, becomes ``[episode, round, column]`` (a series
    ``[episode, round]``), in the order of the levels' values; any other is its table.

    Raises:
        InputError: what holds no real numbers; an index that lacks rounds of some episodes or holds them twice.

    >>> rows = pd.MultiIndex.from_product([["ann", "bob"], range(3)], names=["episode", "round"])
    >>> as_array(pd.DataFrame({"x": range(6), "y": range(6)}, index=rows), "activations").shape
    (2, 3, 2)
    """
    return array_of(what, _of_pandas(values, what) if isinstance(values, pd.Series | pd.DataFrame) else values)


def _of_pandas(table: pd.Series | pd.DataFrame, what: str) -> Array:
    if table.index.nlevels != 2:
        return table.to_numpy()
    table = table.sort_index()
    sizes = [len(table.index.unique(level)) for level in (0, 1)]
    require(
        sizes[0] * sizes[1] == len(table) and not table.index.has_duplicates,
        f"{what}: an index of episode and round holds every round of every episode once; this one has {len(table)} "
        f"rows for {sizes[0]} episodes and {sizes[1]} rounds",
    )
    return table.to_numpy().reshape(*sizes, *table.shape[1:])
