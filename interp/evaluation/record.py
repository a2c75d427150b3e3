"""What a task gives so that its models can be evaluated: the tables to make, and the few numbers that sum them up."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from interp.checks import checked
from interp.statistics import Interval

if TYPE_CHECKING:
    import pandas as pd

    from interp.model.transformer import HookedLatentTransformer

Done = Callable[[int], None]
"""Called with the number of steps just done (see ``interp.progress``)."""
Row = dict[str, Any]
MODEL = "model"
"""Key of the evaluated model beside those of baselines and controls."""


@dataclass(frozen=True)
class EvaluationPlan:
    """How models of a task are evaluated.

    Attributes:
        parts: model to the names of what is measured apart, such as the regimes.
        measure: ``(model, part, n_episodes, seed)`` to what ``tables`` needs of a part. A part depends on nothing else,
            so that parts can be measured on different machines.
        tables: ``(model, parts by name)`` to tidy frames by name; "summary" is the one to print.
        headline: ``(model, n_episodes, seed)`` to the rows of a model card, made by :func:`row`.
        theory: ``(model, n_episodes, seed)`` to checks of what the task's theory says, one a row.
        min_episodes: fewer are refused.
    """

    parts: Callable[[HookedLatentTransformer], Sequence[str]]
    measure: Callable[[HookedLatentTransformer, str, int, int], Any]
    tables: Callable[[HookedLatentTransformer, Mapping[str, Any]], dict[str, pd.DataFrame]]
    headline: Callable[[HookedLatentTransformer, int, int], Sequence[Row]] | None = None
    theory: Callable[[HookedLatentTransformer, int, int], pd.DataFrame] | None = None
    min_episodes: int = 1


@checked
def row(what: str, value: Interval, beside: str) -> Row:
    """A claim with its interval and, beside it, what a reader needs to judge it: the limit, the baseline, the control.

    >>> row("accuracy", Interval(0.75, 0.7, 0.8), "majority vote 0.65")
    {'what': 'accuracy', 'estimate': 0.75, 'low': 0.7, 'high': 0.8, 'beside': 'majority vote 0.65'}
    """
    return {"what": what, **vars(value), "beside": beside}
