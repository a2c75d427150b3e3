"""The rules of the four verdicts, on numbers that are given: above, below, across a threshold, and the controls."""

from __future__ import annotations

import pytest

from circuits.compare import verdicts
from circuits.compare.circuit import CircuitPart, Path
from circuits.compare.edges_needed import Needed
from circuits.compare.effects import Effect, EffectsPart
from circuits.compare.state import StatePart, Stitching
from circuits.compare.update import Update, UpdatePart
from interp.statistics import Interval

SURE, ACROSS, BELOW = Interval(0.99, 0.98, 0.995), Interval(0.95, 0.9, 0.97), Interval(0.5, 0.4, 0.6)


@pytest.mark.parametrize(("alike", "word"), [(SURE, "same"), (ACROSS, "undecided"), (BELOW, "different")])
def test_behaviour_is_same_above_its_threshold_and_undecided_across_it(alike, word):
    assert verdicts.behaviour(alike).word == word


def _state(there, back, helped=None, control=0.3, worth=0.05):
    """Stitchings a -> b and b -> a, the second one also with the round."""
    plain, none = Interval(0.2, 0.1, 0.3), Interval(control, control, control)
    found = []
    for source, target, score, more in (("a", "b", there, there), ("b", "a", back, helped or back)):
        found += [Stitching(source, target, (), "", score), Stitching(source, target, ("round",), "", more)]
        found += [Stitching(source, target, ("round",), "shuffled", plain)]
        found += [Stitching("untrained 0", target, ("round",), "untrained", none)]
    value = Interval(worth, worth * 0.9, worth * 1.1)
    return StatePart("a", "b", tuple(found), {"a": value, "b": value})


def test_state_needs_both_ways_a_memory_and_better_than_untrained():
    assert verdicts.state(_state(SURE, SURE)).word == "same"
    assert verdicts.state(_state(SURE, BELOW)).word == "different"
    assert verdicts.state(_state(SURE, ACROSS)).word == "undecided"
    helped = verdicts.state(_state(SURE, BELOW, helped=SURE))
    assert helped.word == "same" and helped.note == "a needs the round besides"
    assert verdicts.state(_state(SURE, SURE, control=0.985)).note == "an untrained model's latents do as well"
    assert verdicts.state(_state(SURE, SURE, worth=0.001)).word == "undecided"


def _update(r2, untrained=0.5, label=SURE):
    """One step R2 of "wm", and the score of the label in what a round writes."""
    made = Update("a", "wm", ("log_weights",), (), 1.0, "on", 1, r2, (untrained,))
    effect = Effect("label", "input", "embed@y", "state", "wm", label, label, None, 0.0, 0.0, None)
    return verdicts.update(UpdatePart((made,)), EffectsPart((effect,)), "wm")


def test_update_needs_the_step_and_its_inputs():
    assert _update(SURE).word == "same" and _update(BELOW).word == "different"
    assert _update(ACROSS).word == "undecided"
    assert _update(SURE, untrained=0.985).word == "undecided"
    weak = _update(SURE, label=BELOW)
    assert weak.word == "different" and weak.decided_by == "score of label in what a round writes"


NOTHING = Needed("a", 0, 0, reason="not looked for")


def _circuit(share, other, alike, untrained=(0.1, 0.2), null=(0.25,)):
    """One path with the shares of both models, untrained shares, and how alike the heads are."""
    path = Path("latent", "prediction", "p?", share, share, other, other, untrained, untrained)
    return verdicts.circuit(CircuitPart("a", "b", (path,), alike, null, (), (NOTHING, NOTHING), None, (), ()))


def test_circuit_differs_by_what_training_made_and_is_the_same_where_heads_are_alike():
    assert _circuit(SURE, SURE, SURE).word == "same"
    assert _circuit(SURE, BELOW, SURE).word == "different"
    assert _circuit(SURE, BELOW, SURE, untrained=(0.3, 1.0)).word == "undecided"  # untrained models differ as much
    assert _circuit(SURE, SURE, Interval(0.3, 0.28, 0.33)).word == "undecided"  # no more alike than untrained ones
    assert _circuit(SURE, SURE, SURE, null=(0.99,)).word == "undecided"
