"""Machines that were written down before any comparison: what is said of their predictions is so."""

from __future__ import annotations

from functools import cache
from typing import Any

import pytest
from torch import Tensor

import interp
from interp import tasks
from lab.known import reference
from lab.known.unseen import gallery

SPECIMENS = gallery()


@cache
def expect(key: str) -> tuple[Any, Tensor]:
    """Draw episodes of a task, and what its reference predicts on them."""
    model, task = reference(key), tasks.get(key)
    episodes = task.sample(16, 20, seed=1, **task.sizes_of(model.layout))
    return episodes, interp.rollout(model, episodes).predictions


@pytest.mark.parametrize("name", SPECIMENS)
def test_predictions_are_the_references_where_behaviour_is_yes_alone(name: str) -> None:
    specimen = SPECIMENS[name]
    episodes, expected = expect(specimen.task)
    predictions = interp.rollout(specimen.make(), episodes).predictions
    largest = float((predictions - expected).abs().max())
    if specimen.right["behaviour"] == "yes":
        assert largest < 1e-9
    if specimen.right["behaviour"] == "no":
        assert largest > 0.01
