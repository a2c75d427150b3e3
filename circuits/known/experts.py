"""Known machines of prediction with expert advice, held against Weighted Majority with the gain .5."""

from __future__ import annotations

from typing import Any

from circuits.known import by_algorithm
from circuits.known.specimen import Right, Specimen
from circuits.registry import load
from interp.model.transformer import HookedLatentTransformer
from interp.tasks.experts import algorithms
from interp.tasks.experts.layout import ExpertRound

_TASK = "experts"
_N = 4


def _wired(**options: Any) -> HookedLatentTransformer:
    """The reference, or the same circuit made otherwise."""
    return load("wma-handwired", n_experts=_N, **options)


def specimens() -> tuple[Specimen, ...]:
    """The known machines."""
    alike: dict[str, Right] = {"behaviour": "same", "state": "same", "update": "same"}
    return (
        Specimen("itself", _TASK, _wired, {**alike, "circuit": "same"}, "nothing was done to it", "weighted_majority"),
        Specimen(
            "by algorithm",
            _TASK,
            lambda: by_algorithm.machine(algorithms.weighted_majority(0.5), ExpertRound(_N)),
            alike,
            "the algorithm of the reference, computed without a network",
            "weighted_majority",
        ),
    )
