"""Machines that were written down before any comparison: what is said of their predictions is so."""

from __future__ import annotations

import pytest

import interp
from interp import tasks
from lab.known import reference
from lab.known.unseen import gallery

SPECIMENS = gallery()


@pytest.mark.parametrize("name", SPECIMENS)
def test_predictions_are_the_references_where_behaviour_is_yes_alone(name: str) -> None:
    specimen = SPECIMENS[name]
    machine, model = specimen.make(), reference(specimen.task)
    task = tasks.get(specimen.task)
    episodes = task.sample(16, 20, seed=1, **task.sizes_of(model.layout))
    predictions = interp.rollout(machine, episodes).predictions
    expected = interp.rollout(model, episodes).predictions
    largest = float((predictions - expected).abs().max())
    if specimen.right["behaviour"] == "yes":
        assert largest < 1e-9
    if specimen.right["behaviour"] == "no":
        assert largest > 0.01
