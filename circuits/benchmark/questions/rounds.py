"""Which rounds' latents carry an effect: that of an input, changed at one round, on what a later round predicts?

Where the algorithm predicts otherwise in the round that is read, the state has carried the difference there: the
latents that rounds hand on, from the changed one to the one that is read, are true. False are those before the change,
those after the round that is read, in which the difference may well go on, and all latents of a change that leads to no
other prediction there, because the state forgets it or because nothing asks for it.
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any

import numpy as np

from circuits.benchmark.known_machine import KnownMachine
from circuits.benchmark.material import Material
from circuits.benchmark.question import Answer, Challenge, Truth, pose, ranking

Item = tuple[str, int, int]
"""Key of a corruption, the round that it changes, and the round that reads the latents."""


def changes(subject: KnownMachine, material: Material) -> list[tuple[str, int]]:
    """Every corruption of one round's input, at two rounds before the one that is read."""
    early, read = material.effort.early, material.effort.round
    keys = [corruption.key for corruption in subject.task.analysis.corruptions() if not corruption.changes_history]
    return [(key, t) for key in keys for t in sorted({early, (early + read) // 2})]


def sides(subject: KnownMachine, material: Material, key: str, round: int) -> tuple[Any, Any]:
    """The clean and the corrupted episodes, on the material's larger batch."""
    episodes = material.episodes(1, material.effort.fits)
    build = subject.task.corruption(key).build
    return material.once(("sides", key, round), lambda: build(episodes, round))


def _truth(subject: KnownMachine, material: Material) -> Truth:
    """Every change and round: "carries" where the algorithm needs the state that the round reads for its effect."""
    algorithm = subject.algorithm
    kinds: dict[Hashable, str] = {}
    for key, at in changes(subject, material):
        clean, corrupted = (algorithm.run(episodes) for episodes in sides(subject, material, key, at))
        outcomes = [algorithm.distribution(values)[:, material.effort.round] for values in (clean, corrupted)]
        shown = _differ(*outcomes)
        for t in range(material.effort.rounds):
            moved = np.any([_differ(clean[name][:, t], corrupted[name][:, t]) for name in algorithm.state], axis=0)
            carries = t <= material.effort.round and bool((moved & shown).any())
            kinds[key, at, t] = "carries" if carries else ""
    return kinds


def _grade(subject: KnownMachine, material: Material, answer: Answer) -> dict[str, float]:
    """Ranking over all; and, apart, of true rounds above those before the change, those after the reading, and all
    rounds of changes without effect."""
    known: dict[Any, str] = dict(material.truth("rounds"))
    live = {(key, at) for (key, at, _), kind in known.items() if kind}
    apart = {
        "before": lambda item: item[:2] in live and item[2] <= item[1],
        "after": lambda item: item[:2] in live and item[2] > material.effort.round,
        "no effect": lambda item: item[:2] not in live,
    }
    scores = ranking(known, answer, "carries")
    for name, belongs in apart.items():
        kept = {item: kind for item, kind in known.items() if kind or belongs(item)}
        scores[f"auroc {name}"] = ranking(kept, Answer(answer.scores), "carries")["auroc"]
    return scores


def _differ(one: np.ndarray, other: np.ndarray) -> np.ndarray:
    """Which episodes differ by more than rounding."""
    apart = np.abs(np.asarray(one, dtype=np.float64) - np.asarray(other, dtype=np.float64))
    return apart.reshape(len(apart), -1).max(1) > 1e-9


pose(
    Challenge(
        key="rounds",
        name="through which rounds",
        asked="Which rounds read latents that carry the effect of a changed input on what a later round predicts?",
        true="From the round after the change to the one read, where the algorithm's state and prediction differ.",
        scored="Ranking of rounds (AUROC); against rounds before the change, after the reading, of no effect, apart.",
        headline="auroc",
        truth=_truth,
        grade=_grade,
    )
)
