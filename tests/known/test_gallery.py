"""The gallery says of every machine what is right and why; rare lapses are as rare as they say."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest

import interp
from circuits import known
from interp import tasks

QUESTIONS = {"behaviour", "state", "update", "circuit"}


def test_every_specimen_says_what_is_right_and_why():
    """Two dozen and more, half of them not used to choose thresholds, with machines that differ in every question."""
    machines = known.gallery("experts")
    assert len(machines) >= 40 and all(key == one.key and one.task == "experts" for key, one in machines.items())
    assert all(one.right.keys() <= QUESTIONS and len(one.why) > 10 for one in machines.values())
    for held_out in (False, True):
        half = [one for one in machines.values() if one.held_out == held_out]
        assert 0.4 <= len(half) / len(machines) <= 0.6
        for question in QUESTIONS:
            words = Counter(one.right.get(question) for one in half)
            assert min(words["same"], words["different"]) >= 3, (question, held_out)


@pytest.mark.parametrize(("key", "behaves"), [("inverted once in 240", True), ("unlearns once in 240", False)])
def test_a_rare_lapse_is_rare_and_happens(key, behaves):
    """By the rounds in which it says, or holds, another thing than the reference while both were alike before."""
    reference, machine = known.reference("experts"), known.gallery("experts")[key].make()
    episodes = tasks.of(reference).sample_for(reference, 400, 24, seed=7)
    plain, lapsed = (interp.rollout(model, episodes) for model in (reference, machine))
    if behaves:
        differs = (plain.predictions - lapsed.predictions).abs().numpy() > 0.01
        rate, expected = differs.mean(), 1 / 240
    else:
        apart = (reference.read_state(plain.latents) - machine.read_state(lapsed.latents)).abs().numpy().max(-1)
        rate, expected = (apart[:, -1] > 1e-6).mean(), 1 - (1 - 1 / 240) ** 24
    assert 0.6 * expected < rate < 1.4 * expected
    first = np.argmax(differs.any(0) if behaves else (apart > 1e-6).any(0))
    assert first <= 6


def test_an_unknown_task_is_refused_with_those_known():
    with pytest.raises(interp.InputError, match="experts"):
        known.gallery("expert")
    with pytest.raises(interp.InputError, match="experts"):
        known.reference("chess")
