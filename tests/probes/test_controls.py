"""The rules of a probe's verdict on numbers that are given, and what each control is made of.

Scores and differences are written out, so that every bound, filter and threshold has a case; two controls or more, so
that one cannot stand for all. Thresholds are written out here: a change of one must be made here, too.
"""

from __future__ import annotations

import math

import numpy as np
import pytest

from probes.controls import Control, Data, control_task, controls_of, detectable_of, lacks_inputs, shuffled, verdict_of
from probes.scores import Difference, ProbeScore
from probes.targets import TargetValues

EVEN, MILD, UNEVEN = np.full(4, 2.0), np.array([1.5, 2.0, 2.0, 2.5]), np.array([0.0, 1.0, 3.0, 4.0])
"""Losses of episodes that are all alike would show any difference from 0, mild ones one of .53, uneven ones of .97."""
OF_ALL = np.full(4, 8.0)
HIGH, LOW, OPEN = (0.5, 0.4, 0.6), (0.0, -0.1, 0.05), (0.2, -0.1, 0.5)
"""Differences, as (estimate, low, high): surely above a control, surely no tenth above it, and neither."""


def score(interval=HIGH, losses=EVEN, kind="skill"):
    return ProbeScore(*interval, losses, OF_ALL, 2, kind)


def control(difference, level=0.0, losses=EVEN, counted=True, low=-1.0):
    """A control whose score is ``level`` and that the probe beats by ``difference``."""
    return Control("control", score((level, low, 1.0), losses), Difference(*difference), counted)


def judged(own, limited=False, **differences):
    given = {name: x if isinstance(x, Control) else control(x) for name, x in differences.items()}
    return verdict_of(own, given, limited)


@pytest.mark.parametrize(
    ("own", "shuffled", "inputs", "word"),
    [
        (HIGH, HIGH, HIGH, "represented"),
        ((0.5, 1e-9, 0.6), (0.5, 1e-9, 0.6), (0.5, 1e-9, 0.6), "represented"),
        ((0.5, 0.0, 0.6), HIGH, HIGH, "undecided"),  # a bound of 0 is not above 0
        (HIGH, (0.5, 0.0, 0.6), HIGH, "undecided"),
        (HIGH, HIGH, OPEN, "undecided"),
        (HIGH, OPEN, HIGH, "undecided"),
        (OPEN, HIGH, HIGH, "undecided"),
        (LOW, HIGH, HIGH, "not represented"),
        (HIGH, LOW, HIGH, "not represented"),
        (HIGH, HIGH, LOW, "not represented"),
        (OPEN, LOW, OPEN, "not represented"),
        (LOW, LOW, LOW, "not represented"),
    ],
)
def test_a_probe_represents_what_beats_zero_and_every_control_and_does_not_what_one_of_them_equals(
    own, shuffled, inputs, word
):
    assert judged(score(own), shuffled=shuffled, inputs=inputs) == word
    limited = "undecided" if word == "represented" else word
    assert judged(score(own), shuffled=shuffled, inputs=inputs, limited=True) == limited


@pytest.mark.parametrize(
    ("upper", "level", "word"),
    [
        (0.0999, 0.0, "not represented"),
        (0.1, 0.0, "undecided"),  # a tenth itself may be there
        (0.0999, -1.0, "not represented"),  # below 0 a control leaves 1, not 2, to be explained
        (0.105, -1.0, "undecided"),
        (0.0199, 0.8, "not represented"),  # a tenth of the fifth that a control of .8 leaves
        (0.0201, 0.8, "undecided"),
    ],
)
def test_the_smallest_effect_of_interest_is_a_tenth_of_what_a_control_leaves(upper, level, word):
    assert judged(score(), shuffled=HIGH, inputs=control((0.0, -0.1, upper), level)) == word
    if level == 0:
        assert judged(score((0.0, -0.1, upper)), shuffled=HIGH) == word  # the best constant, whose score is 0


@pytest.mark.parametrize(
    ("difference", "word"),
    [
        ((-0.1, -0.3, 0.05), "undecided"),
        ((-0.1, -0.2, -1e-9), "not represented"),  # the control says more: no question of what could be seen
        ((-0.1, -0.2, 0.0), "undecided"),
        ((0.3, -0.2, 0.6), "undecided"),
    ],
)
def test_a_sample_that_would_not_have_shown_a_tenth_shows_no_absence(difference, word):
    own = score(HIGH, UNEVEN)
    assert own.detectable() > 0.9 and own.detectable(score(losses=UNEVEN[::-1])) > 0.1
    assert judged(own, inputs=control(difference, losses=UNEVEN[::-1])) == word
    assert judged(score(difference, UNEVEN), inputs=HIGH) == word


def test_what_the_sample_would_have_shown_is_asked_of_the_control_that_the_probe_does_not_beat():
    """From a control that is uneven in the same episodes .07 would show; from an even one .13, from 0 only .53."""
    mild = score(losses=MILD)
    shown = [mild.detectable(score(losses=MILD)), mild.detectable(score(losses=EVEN)), mild.detectable()]
    assert shown == pytest.approx([0.07, 0.13, 0.53], abs=0.005)
    assert judged(mild, inputs=control(LOW, losses=MILD)) == "not represented"
    assert judged(mild, inputs=control(LOW, losses=EVEN)) == "undecided"
    assert judged(score(LOW, MILD), inputs=control(HIGH, losses=MILD)) == "undecided"


@pytest.mark.parametrize(
    ("untrained", "word"),
    [
        ((0.05, 0.01, 0.06), "uninformative"),  # surely above, by no more than .05
        ((0.051, 0.01, 0.06), "represented"),
        ((-0.3, -0.4, -0.2), "uninformative"),
        ((0.2, -0.1, 0.5), "undecided"),
        ((0.08, -0.1, 0.09), "not represented"),
    ],
)
def test_a_probe_is_uninformative_where_an_untrained_model_comes_within_a_twentieth(untrained, word):
    assert judged(score(), shuffled=HIGH, inputs=HIGH, untrained=untrained) == word


@pytest.mark.parametrize(
    ("own", "shuffled", "word"),
    [(LOW, HIGH, "not represented"), (HIGH, OPEN, "undecided"), ((0.5, 0.0, 0.6), HIGH, "undecided")],
)
def test_a_probe_that_beats_too_little_is_not_called_uninformative(own, shuffled, word):
    untrained = (0.04, 0.01, 0.3)
    assert judged(score(own), shuffled=shuffled, inputs=HIGH, untrained=untrained) == word


def test_a_control_that_holds_the_target_is_not_asked_and_only_r2_is_compared_with_zero():
    given = control(LOW, counted=False)
    assert judged(score(), shuffled=HIGH, inputs=given) == "represented"
    assert judged(score(), shuffled=HIGH, untrained=given) == "represented"
    assert judged(score(OPEN), shuffled=HIGH) == "undecided"
    assert judged(score(OPEN, kind="accuracy"), shuffled=HIGH) == "represented"
    assert str(given).endswith("(holds the target by construction)") and "holds" not in str(control(LOW))


def test_what_a_sample_would_have_shown_is_the_most_that_any_counted_control_asks_for():
    own = score(losses=UNEVEN)
    levels = [own.detectable(score(losses=losses)) for losses in (UNEVEN[::-1], EVEN)]
    alone = own.detectable()
    assert levels[0] > levels[1] and alone > levels[1] and alone != levels[0]
    hard, easy = control(HIGH, losses=UNEVEN[::-1]), control(HIGH, losses=EVEN)
    unknown = control(HIGH, losses=np.zeros(4))
    assert math.isnan(own.detectable(unknown.score))
    assert detectable_of(own, {"inputs": hard, "round": easy}) == max(levels[0], alone)
    assert detectable_of(own, {"round": easy}) == detectable_of(own, {"inputs": unknown, "round": easy}) == alone
    hits = score(losses=UNEVEN, kind="accuracy")
    assert detectable_of(hits, {"inputs": hard, "round": easy}) == levels[0]
    without = control(HIGH, losses=UNEVEN[::-1], counted=False)
    assert detectable_of(hits, {"inputs": without, "round": easy}) == levels[1]
    assert math.isnan(detectable_of(hits, {"inputs": unknown})) and math.isnan(detectable_of(hits, {}))


def target(inputs=(), types=None, mask=None, implied_by=()):
    values = np.arange(12.0).reshape(3, 4, 1)
    return TargetValues("count", values, ("count",), mask=mask, inputs=inputs, types=types, implied_by=implied_by)


@pytest.mark.parametrize(
    ("names", "implied_by", "lacks"),
    [((), (), True), (("inputs",), (), False), ((), ("inputs",), False), (("inputs",), ("inputs",), False)],
)
def test_the_inputs_control_is_needed_unless_the_target_is_an_input(names, implied_by, lacks):
    assert lacks_inputs(target(implied_by=implied_by), names) is lacks


def test_controls_stand_in_the_order_of_tables_and_what_holds_the_target_does_not_count():
    others = {"round": score((0.1, 0, 1), EVEN), "shuffled": score((0.2, 0, 1), np.full(4, 4.0))}
    made = controls_of(target(implied_by=("round",)), score((0.75, 0.5, 0.9), EVEN), others)
    assert list(made) == ["shuffled", "round"] and [made[name].counted for name in made] == [True, False]
    assert made["shuffled"].score is others["shuffled"] and made["shuffled"].difference.estimate == 0.25


@pytest.mark.parametrize(
    ("seed", "groups", "order"), [(0, None, [3, 2, 0, 1]), (1, None, [2, 0, 3, 1]), (0, [0, 0, 1, 1], [2, 3, 0, 1])]
)
def test_each_episode_gets_the_target_of_an_episode_of_another_group(seed, groups, order):
    """Two seeds and two groups, as they were drawn when results were first kept."""
    values = np.array([0, 1, 2, 3])
    assert shuffled(values, seed, None if groups is None else np.array(groups)).tolist() == order


@pytest.mark.parametrize(("seed", "kinds"), [(0, [7, 0, 2]), (1, [5, 3, 7])])
def test_every_kind_of_round_gets_the_values_of_one_round(seed, kinds):
    values = np.arange(16).reshape(2, 4, 2)
    types = np.array([[0, 1, 2, 0], [2, 2, 1, 0]])
    task = control_task(values, types, seed)
    assert task.tolist() == [[values.reshape(8, 2)[kinds[kind]].tolist() for kind in row] for row in types]


def test_each_control_is_fitted_to_what_it_says():
    """Inputs, target and mask are handed to the fit, control by control; lower bounds count the scores asked for."""
    rng = np.random.default_rng(0)
    x, blank = rng.normal(size=(2, 3, 4, 2))
    data = Data(x, blank, np.arange(3), np.arange(3), seed=5)
    asked, levels = [], iter([0.1, 0.2, 0.3, 0.7, 0.7, 0.5, 0.8, 0.9])

    def scored(inputs, labels, mask):
        asked.append((inputs, labels, mask))
        return score((next(levels), -0.1 * len(asked), 1.0))

    forms = tuple(rng.normal(size=(4, 3, 4, 1)))
    kinds = np.array([[0, 1, 1, 0]] * 3)
    full = target(forms, kinds, mask=rng.random((3, 4, 1)) < 0.5)
    y = full.values
    made = data.controls(full, score(), scored)
    expected = [
        (x, shuffled(y, 5), shuffled(full.mask, 5)),
        (blank, y, full.mask),
        *((form, y, full.mask) for form in forms),
        (np.broadcast_to(np.eye(4), (3, 4, 4)), y, full.mask),
        (x, control_task(y, kinds, 5), full.mask),
    ]
    for arrays, wanted in zip(asked, expected, strict=True):
        for array, other in zip(arrays, wanted, strict=True):
            np.testing.assert_array_equal(array, other)
    assert list(made) == ["shuffled", "untrained", "inputs", "round", "control_task"]
    assert [made[name].score.estimate for name in made] == [0.1, 0.2, 0.7, 0.8, 0.9]
    assert made["inputs"].score.low == pytest.approx(-0.4)  # the best of four forms, the first of two that are


def test_controls_that_a_target_has_nothing_for_are_left_out():
    asked = []

    def scored(inputs, labels, mask):
        asked.append(mask)
        return score()

    data = Data(np.zeros((3, 4, 2)), None, np.arange(3), np.arange(3), seed=0)
    assert list(data.controls(target(), score(), scored)) == ["shuffled", "round"] and asked == [None, None]
