"""A model-based learner as a rival: it counts where actions lead and what they pay, and plans by value iteration.

:func:`family` is what ``compare.explain(families=[...])`` takes beside the task's own; ``examples/reward.py`` does.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from interp.core.algorithm import Algorithm, Family, Searched, Variable
from interp.tasks.qlearning.algorithms import pair, q_learning
from interp.tasks.qlearning.families import acting

SWEEPS = 15
"""Of value iteration, in every round."""


def planner(discount: float = 0.8, hope: float = 0.5, temperature: float = 0.1) -> Algorithm:
    """Model-based: counts where actions lead and what they pay, and plans; a pair not tried pays ``hope``."""

    def led(v: Any) -> np.ndarray:
        return (
            v["counts"]
            + pair(v)[..., None] * np.eye(v["table"].shape[-2])[v["next_state"]][..., None, None, :]
        )

    def table(v: Any) -> np.ndarray:
        times = v["next_counts"].sum(-1)
        tried, n_states = times > 0, v["table"].shape[-2]
        reach = np.where(
            tried[..., None], v["next_counts"] / np.maximum(times, 1)[..., None], 1 / n_states
        )
        pays = np.where(tried, v["next_paid"] / np.maximum(times, 1), hope)
        values = pays
        for _ in range(SWEEPS):
            values = pays + discount * (reach * values.max(-1)[..., None, None, :]).sum(-1)
        return np.asarray(values)

    base = q_learning()
    given = tuple(v for v in base.variables if v.role == "input")
    first = ("table", "visits", "counts", "paid")
    known, made = [*(v.key for v in given), *first], []
    equations = {
        "visits": lambda v: v["visits"] + pair(v),
        "counts": led,
        "paid": lambda v: v["paid"] + pair(v) * v["reward"][..., None, None],
        "table": table,
    }
    for key, equation in equations.items():
        made.append(
            Variable(
                f"next_{key}",
                key,
                f"{key} after the round",
                "",
                parents=tuple(known),
                equation=equation,
            )
        )
        known.append(f"next_{key}")
    carried = tuple(Variable(key, key, f"{key} before the round", "", "state") for key in first)

    def nothing(episodes: Any) -> dict[str, np.ndarray]:
        shape = episodes.q_tables[:, 0].shape
        return {key: np.zeros((*shape, shape[1]) if key == "counts" else shape) for key in first}

    learner = replace(
        base,
        key="planner",
        name="a planner that counts",
        parameters={"discount": discount, "hope": hope},
        variables=(*given, *carried, *made),
        initial=nothing,
        memory="table",
        written="next_table",
    )
    return acting(learner, temperature)


def family() -> Family:
    """The planner, with its discount, hope and temperature to be found."""
    searched = (
        Searched("discount", (0.0, 0.5, 0.8, 0.95)),
        Searched("hope", (0.0, 0.5, 1.0)),
        Searched("temperature", (0.01, 0.03, 0.1, 0.3, 1.0), enters=("policy",)),
    )
    return Family("planner", "a planner that counts", planner, searched)
