"""The rules of the four verdicts on numbers that are given: every bound, filter, control and threshold has a case.

Each part has two or more rows, so that the best cannot stand for the worst, nor one row for all. Thresholds are written
out here: a change of one must be made here, too.
"""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest

from circuits.compare.algorithm import FamilyScore, _decided
from circuits.compare.behaviour import Agreement, Behaviour, differences, judge_behaviour
from circuits.compare.circuit import NO_CONTROL, CircuitPart, Needed, Path, _apart, judge_circuit
from circuits.compare.effects import Effect, EffectsPart
from circuits.compare.fitting import divergence
from circuits.compare.question import Verdict, controlled
from circuits.compare.response import Cell, ResponsePart
from circuits.compare.roles import Role
from circuits.compare.state import StatePart, Stitching, judge_state
from circuits.compare.update import Rule, Update, UpdatePart, judge_update
from interp.statistics import Interval
from interp.tasks.reachability import TASK as REACHABILITY
from interp.tasks.reachability.layout import ReachabilityRound

SURE, ACROSS, BELOW = Interval(0.99, 0.98, 0.995), Interval(0.95, 0.9, 0.97), Interval(0.5, 0.4, 0.6)


def between(low: float, high: float) -> Interval:
    return Interval((low + high) / 2, low, high)


# Behaviour.

NEVER = Interval(0.0, 0.0, 0.0)


def _cell(low, high, what="label"):
    return Cell(what, "one round later", between(low, high), 0.1, 0.2)


def _agreement(alike=SURE, apart=NEVER, cells=((0.92, 0.99), (0.98, 0.99))):
    return Agreement(alike, apart, tuple(_cell(*pair, what=f"input {i}") for i, pair in enumerate(cells)))


def _behaviour(plain, fitted=None, untrained=(0.3, 0.1)):
    return judge_behaviour(Behaviour(plain, fitted, {"spread": 0.6}, untrained))


@pytest.mark.parametrize(
    ("bounds", "word"),
    [
        ((0.98, 0.99), "same"),
        ((0.95, 0.97), "same"),
        ((0.949, 0.99), "undecided"),
        ((0.5, 0.95), "undecided"),
        ((0.5, 0.949), "different"),
    ],
)
def test_behaviour_is_same_from_95_percent_on_different_below_and_undecided_across(bounds, word):
    verdict = _behaviour(_agreement(between(*bounds)))
    assert (verdict.question, verdict.word, verdict.note) == ("behaviour", word, "")
    assert verdict.bound == between(*bounds) and verdict.threshold == 0.95 and verdict.control == 0.3


@pytest.mark.parametrize(
    ("apart", "word", "threshold"),
    [
        ((0.0, 0.001), "same", 0.95),
        ((0.0, 0.0011), "undecided", 0.001),
        ((0.02, 0.03), "undecided", 0.001),
        ((0.0201, 0.03), "different", 0.02),
    ],
)
def test_behaviour_is_not_the_same_where_more_than_one_round_in_a_thousand_is_plainly_apart(apart, word, threshold):
    verdict = _behaviour(_agreement(apart=between(*apart)))
    assert (verdict.word, verdict.threshold) == (word, threshold)
    assert word == "same" or verdict.decided_by == "share of rounds apart by more than 0.1 nats"


@pytest.mark.parametrize(
    ("cells", "word", "decided_by"),
    [
        (((0.9, 0.95), (0.95, 0.99)), "same", "predictions alike"),
        (((0.89, 0.95), (0.95, 0.99)), "undecided", "response to input 0, one round later"),
        (((0.95, 0.99), (0.89, 0.95)), "undecided", "response to input 1, one round later"),
        (((0.2, 0.9), (0.5, 0.89)), "different", "response to input 1, one round later"),
        ((), "same", "predictions alike"),
    ],
)
def test_behaviour_is_decided_by_the_response_that_is_least_alike(cells, word, decided_by):
    verdict = _behaviour(_agreement(cells=cells))
    assert (verdict.word, verdict.decided_by) == (word, decided_by)
    assert word == "same" or verdict.threshold == 0.9


def test_behaviour_that_differs_in_one_number_differs_whatever_is_undecided():
    assert _behaviour(_agreement(ACROSS, cells=((0.4, 0.5),))).decided_by.startswith("response")
    assert _behaviour(_agreement(BELOW, cells=((0.4, 0.99),))).decided_by == "predictions alike"


def test_a_fitted_read_out_decides_where_two_models_differ_without_it_and_not_with_it():
    told = _behaviour(_agreement(BELOW), _agreement())
    assert told.word == "same" and told.bound == SURE
    assert told.note == f"once its read-out is fitted: spread 0.6; alike {SURE}, as it is {BELOW}"
    assert _behaviour(_agreement(ACROSS), _agreement()).word == "same"
    assert _behaviour(_agreement(), _agreement(ACROSS)).note == ""
    unsure = _behaviour(_agreement(BELOW), _agreement(ACROSS))
    assert (unsure.word, unsure.bound) == ("undecided", ACROSS) and unsure.note.endswith(f"as it is {BELOW}")
    for fitted in (_agreement(BELOW), _agreement(cells=((0.1, 0.2),)), _agreement(apart=between(0.5, 0.6))):
        kept = _behaviour(_agreement(BELOW), fitted)
        assert (kept.word, kept.bound, kept.note) == ("different", BELOW, "")


@pytest.mark.parametrize(
    ("untrained", "word", "note"),
    [
        ((), "undecided", "there is no untrained control"),
        ((0.98, 0.2), "undecided", "an untrained model does as well"),
        ((0.2, 0.979), "same", ""),
    ],
)
def test_behaviour_needs_a_control_and_to_be_above_all_of_it(untrained, word, note):
    verdict = _behaviour(_agreement(), untrained=untrained)
    assert (verdict.word, verdict.note) == (word, note)
    assert _behaviour(_agreement(BELOW), untrained=untrained).word == "different"


def test_only_same_needs_a_control():
    assert controlled("different", SURE, math.nan) == ("different", "")
    assert controlled("same", SURE, 0.98) == ("undecided", "an untrained model does as well")


# Algorithm.


def _family(key, fitted, *nats, extends="", memoryless=False):
    """A family that leaves ``nats`` in turn on 8 episodes of two sets: sums of these have no rounding."""
    by_set = {name: np.resize(np.array(nats, float), 8) for name in ("one", "two")}
    return FamilyScore(key, key, extends or key, memoryless, None, {}, fitted, by_set)


GUESS = _family("guess", 9.0, 20.0, memoryless=True)


@pytest.mark.parametrize(
    ("left", "by_guess", "by_rival", "family"),
    [
        ((1.0,), 20.0, 8.0, "best"),
        ((1.0,), 19.9, 8.0, None),  # explains less than .95
        ((1.0,), 20.0, 4.0, "best"),
        ((1.0,), 20.0, 3.9, None),  # leaves more than .25 of the runner-up's
        ((0.4, 1.4), 20.0, 8.0, None),  # .955 by the estimate, but not by the whole interval
        ((0.4, 1.4), 60.0, 4.0, None),
    ],
)
def test_a_family_explains_from_95_percent_on_with_at_most_a_quarter_of_the_runner_up(left, by_guess, by_rival, family):
    scores = [_family("rival", 2.0, by_rival), _family("guess", 9.0, by_guess, memoryless=True)]
    part = _decided([*scores, _family("best", 1.0, *left)], {"seed": 0})
    assert (part.family, part.closest, part.runner_up, part.baseline) == (family, "best", "rival", "guess")
    mean = float(np.mean(left))
    for explained, ratio in ((part.explained, part.ratio), *part.by_set.values()):
        assert (explained.estimate, ratio.estimate) == pytest.approx((1 - mean / by_guess, mean / by_rival))


def test_families_are_ranked_by_their_fits_and_a_guess_explains_nothing():
    """The scores on other episodes choose nothing; the best without a memory is no answer, however much it explains."""
    better_elsewhere = _family("rival", 2.0, 0.5)
    part = _decided([GUESS, better_elsewhere, _family("best", 1.0, 1.0)], {"seed": 0})
    assert list(part.scores) == ["best", "rival", "guess"] and part.family is None and part.closest == "best"
    alone = _family("no memory", 1.0, 1.0, memoryless=True)
    part = _decided([GUESS, _family("rival", 2.0, 8.0), alone], {"seed": 0})
    assert (part.family, part.closest, part.baseline) == (None, "no memory", "no memory")


def test_a_simpler_family_stands_for_its_own_extension_and_for_no_other():
    """The best fit is an extension that gains too little: its own simpler family is the closest, not a plain rival."""
    family = [_family("simple", 2.5, 1.0), _family("extension", 2.1, 0.9, extends="simple")]
    part = _decided([GUESS, _family("rival", 2.2, 1.5), *family], {"seed": 0})
    assert (part.closest, part.runner_up) == ("simple", "rival")


@pytest.mark.parametrize(
    ("simple", "extended", "fitted", "closest"),
    [
        ((1.0,), (0.5,), 0.5, "extension"),
        ((1.0,), (0.51,), 0.5, "simple"),
        ((1.0,), (0.3, 0.68), 0.5, "simple"),  # .49 by the estimate, but not by the whole interval
        ((1.0,), (0.1,), 1.5, "simple"),  # it fits no better
        ((1.2,), (0.9,), 0.5, "extension"),  # it explains where the simpler one does not
        ((1.2,), (1.1,), 0.5, "simple"),  # neither does
        ((0.021,), (0.001,), 0.5, "extension"),
        ((0.02,), (0.001,), 0.5, "simple"),  # it leaves a thousandth, which needs no extension
    ],
)
def test_an_extension_replaces_a_simpler_family_at_half_of_its_divergence_or_where_it_alone_explains(
    simple, extended, fitted, closest
):
    others = [GUESS, _family("rival", 2.0, 8.0)]
    family = [_family("simple", 1.0, *simple), _family("extension", fitted, *extended, extends="simple")]
    part = _decided([*others, *family], {"seed": 0})
    assert (part.closest, part.runner_up) == (closest, "rival")
    assert part.scores[closest] is next(iter(part.scores.values())) and set(part.scores) == {
        "simple", "extension", "rival", "guess"
    }  # fmt: skip


def test_behaviour_keeps_the_twenty_rounds_of_all_sets_that_differ_most_worst_first():
    """Reachability is asked from its second round on; each failure names its round in the episode."""
    sets = dict(list(REACHABILITY.sets_for(ReachabilityRound(16, 24), 8, 6, seed=0).items())[:2])
    rng = np.random.default_rng(0)
    drawn = {id(pair[1]): rng.dirichlet(np.ones(3), (2, len(pair[1]), 6)) for pair in sets.values()}
    model, reference = (lambda episodes, i=i: drawn[id(episodes)][i] for i in (0, 1))
    apart, failures = differences(model, reference, sets)
    nats = {
        (name, episode, t): divergence(*(p[None, None, episode, t] for p in drawn[id(pair[1])]))[0]
        for name, pair in sets.items()
        for episode in range(len(pair[1]))
        for t in range(1, 6)
    }
    worst = sorted(nats, key=lambda place: -nats[place])[:20]
    ranked = sorted(failures, key=lambda failure: -failure.nats)[:20]
    assert [(f.set, f.episode, f.round) for f in ranked] == worst
    for failure in ranked:
        p, q = drawn[id(sets[failure.set][1])][:, failure.episode, failure.round]
        assert failure.model == pytest.approx(p) and failure.reference == pytest.approx(q) and failure.n_scored == 8
        assert failure.nats == pytest.approx(nats[failure.set, failure.episode, failure.round])
    for name, values in apart.items():
        assert values == pytest.approx(np.array([[nats[name, i, t] for t in range(1, 6)] for i in range(8)]))


def test_a_verdict_says_its_word_its_note_and_what_decided():
    plain = _behaviour(_agreement())
    assert str(plain) == "behaviour: same; predictions alike 0.99 [0.98, 0.995], threshold 0.95"
    noted = Verdict("state", "same", "a needs the round", "stitched", SURE, 0.95)
    assert str(noted).startswith("state: same (a needs the round); stitched")


# State.


def _state_part(there, back, helped=None, helped_there=None, controls=(0.3, 0.3), worths=(0.05, 0.05), others=(0.05,)):
    """Stitchings a -> b and b -> a, also with the round; untrained latents in b and in a (and ``others`` of them, in
    both); worths (low) of a and b."""
    stitchings = []
    for source, target, score, more, control in (
        ("a", "b", there, helped_there or there, controls[0]),
        ("b", "a", back, helped or back, controls[1]),
    ):
        stitchings += [
            Stitching(source, target, (), "", score),
            Stitching(source, target, ("round",), "", more),
            Stitching(source, target, ("round",), "shuffled", SURE),
            Stitching("untrained 0", target, ("round",), "untrained", between(control - 0.1, control + 0.1)),
            *(Stitching("untrained 1", target, ("round",), "untrained", between(score, score)) for score in others),
        ]
    worth = {name: Interval(2 * low, low, 3 * low) for name, low in zip("ab", worths, strict=True)}
    return StatePart("a", "b", tuple(stitchings), worth)


def _state(*scores, **known):
    return judge_state(_state_part(*scores, **known))


@pytest.mark.parametrize(
    ("there", "back", "word", "decided_by"),
    [
        (SURE, SURE, "same", "stitched a -> b"),
        (SURE, BELOW, "different", "stitched b -> a"),
        (BELOW, SURE, "different", "stitched a -> b"),
        (SURE, ACROSS, "undecided", "stitched b -> a"),
        (ACROSS, BELOW, "different", "stitched b -> a"),
        (between(0.96, 0.999), between(0.97, 0.98), "same", "stitched a -> b"),  # the worse one by its lower bound
        (between(0.97, 0.98), between(0.95, 0.999), "same", "stitched b -> a"),
    ],
)
def test_state_is_decided_by_the_worse_direction(there, back, word, decided_by):
    verdict = _state(there, back)
    assert (verdict.question, verdict.word, verdict.decided_by) == ("state", word, decided_by)
    assert verdict.bound == (there if decided_by.endswith("b") else back) and verdict.threshold == 0.95
    assert verdict.note == ""


def test_state_names_what_a_model_needs_beside_the_others_latents_where_it_is_the_same():
    assert _state(SURE, BELOW, helped=SURE).note == "if a is also given the round number"
    both = _state(BELOW, BELOW, helped=SURE, helped_there=SURE)
    assert both.word == "same" and both.note == "if b and a are also given the round number"
    assert _state(SURE, BELOW, helped=ACROSS).note == ""
    assert _state(SURE, SURE, helped=Interval(0.9999, 0.999, 1.0)).note == ""  # adds less than .01


@pytest.mark.parametrize(
    ("controls", "word", "decided_by", "control"),
    [
        ((0.97, 0.3), "undecided", "stitched a -> b", 0.97),
        ((0.96, 0.3), "undecided", "stitched a -> b", 0.96),
        ((0.959, 0.979), "same", "stitched a -> b", 0.959),
        ((0.95, 0.98), "undecided", "stitched b -> a", 0.98),  # the better direction, .98 to .995, says nothing then
    ],
)
def test_state_is_undecided_where_untrained_latents_do_as_well_in_either_direction(controls, word, decided_by, control):
    verdict = _state(between(0.96, 0.98), SURE, controls=controls)
    assert (verdict.word, verdict.decided_by) == (word, decided_by) and verdict.control == pytest.approx(control)
    assert verdict.note == ("an untrained model does as well" if word == "undecided" else "")


@pytest.mark.parametrize("controls", [(math.nan, 0.3), (0.3, math.nan), (math.nan, math.nan)])
def test_state_without_an_untrained_control_is_undecided_and_says_so(controls):
    """In either direction; what is different needs none. One control that overflowed does not hide another."""
    verdict = _state(SURE, SURE, controls=controls, others=())
    assert (verdict.word, verdict.note) == ("undecided", "there is no untrained control")
    assert math.isnan(verdict.control) and _state(SURE, BELOW, controls=controls, others=()).word == "different"
    assert _state(SURE, SURE, controls=(0.3, 0.3), others=(math.nan, 0.2)).word == "same"
    assert _state(SURE, SURE, controls=(0.3, 0.3), others=(math.nan, 0.99)).word == "undecided"


@pytest.mark.parametrize("helped", [None, SURE, ACROSS])
@pytest.mark.parametrize("scores", [(SURE, BELOW), (SURE, ACROSS), (SURE, between(0.96, 0.98)), (SURE, SURE)])
@pytest.mark.parametrize("controls", [(0.3, 0.3), (0.3, 0.97), (math.nan, 0.3)])
def test_the_verdict_on_a_and_b_is_that_on_b_and_a(scores, controls, helped):
    """The same word, the same number and the same control: what one model is called first says nothing."""
    part = _state_part(*scores, helped=helped, controls=controls, others=())
    one, other = judge_state(part), judge_state(replace(part, model=part.reference, reference=part.model))
    assert str(one) == str(other)
    assert one.control == other.control or (math.isnan(one.control) and math.isnan(other.control))


@pytest.mark.parametrize(
    ("worths", "word"),
    [((0.05, 0.0099), "undecided"), ((0.0099, 0.05), "undecided"), ((0.01, 0.01), "same")],
)
def test_state_is_undecided_where_a_memory_is_worth_next_to_nothing(worths, word):
    verdict = _state(SURE, SURE, worths=worths)
    assert verdict.word == word
    assert verdict.note == ("a memory is worth less than 0.01 nats a round" if word == "undecided" else "")
    assert _state(SURE, BELOW, worths=worths).word == "different"


# Update.


def _step(r2, untrained=(0.5, 0.1), algorithm="wm", manifold="on", horizon=1):
    return Update("a", algorithm, ("log_weights", "elapsed"), (), 1.0, manifold, horizon, r2, untrained)


def _effect(score, variable="label", what="input", outcome="state", algorithm="wm", untrained=0.0):
    return Effect(variable, what, "embed@y", outcome, algorithm, score, score, None, 0.0, untrained, None)


UNASKED = ResponsePart()


def _update(steps, effects=(), response=UNASKED, rules=()):
    other = _step(BELOW, untrained=(1.0,), algorithm="another")
    part = UpdatePart((other, *steps, other), tuple(rules))
    return judge_update(part, EffectsPart(tuple(effects)), "wm", response)


@pytest.mark.parametrize(
    ("step", "cells", "word", "decided_by"),
    [
        (SURE, ((0.5, 0.6), (0.9, 0.95)), "same", "step R2"),
        (SURE, ((0.9, 0.95), (0.49, 0.95)), "undecided", "response to input 1"),
        (SURE, ((0.1, 0.9), (0.4, 0.49)), "different", "response to input 1"),
        (SURE, ((0.1, 0.9), (0.4, 0.5)), "undecided", "response to input 0"),
        (ACROSS, ((0.1, 0.9),), "undecided", "step R2"),
        (ACROSS, ((0.1, 0.2),), "different", "response to input 0"),
        (BELOW, ((0.1, 0.2),), "different", "step R2"),
    ],
)
def test_update_needs_every_response_to_go_through_the_state(step, cells, word, decided_by):
    found = tuple(_cell(*pair, what=f"input {i}") for i, pair in enumerate(cells))
    verdict = _update([_step(step)], response=ResponsePart("wm", found, 0.4))
    assert (verdict.question, verdict.word) == ("update", word) and verdict.decided_by.startswith(decided_by)
    if decided_by != "step R2":
        assert (verdict.threshold, verdict.control) == (0.5, 0.4)


@pytest.mark.parametrize(
    ("one_round", "several", "left", "word"),
    [
        (SURE, SURE, (0.1, 0.2), "undecided"),  # another update says what is left
        (SURE, SURE, (0.1, 0.25), "undecided"),
        (SURE, SURE, (0.1, 0.251), "same"),  # that it does is not sure
        (between(0.9989, 0.9999), SURE, (0.1, 0.2), "same"),  # nothing is left but rounding
        (between(0.998, 1.0), SURE, (0.1, 0.2), "same"),
        (between(0.9988, 0.9991), between(0.9991, 0.9999), (0.1, 0.2), "undecided"),
        (BELOW, SURE, (0.1, 0.2), "different"),
    ],
)
def test_update_is_not_the_same_where_another_update_says_what_it_does_not(one_round, several, left, word):
    """By the steps of one round on the manifold, and by the update that fits them best."""
    rules = [
        Rule(key, f"rule {key}", ("log_weights",), {"keep": 0.98}, SURE, between(*bounds))
        for key, bounds in (("best", left), ("next", (0.0, 0.01)))
    ]
    steps = [_step(several, manifold="off"), _step(several, horizon=5), _step(one_round)]
    verdict = _update(steps, rules=rules)
    assert verdict.word == word
    assert verdict.note.startswith("rule best (keep 0.98) leaves") == (word == "undecided")
    assert _update(steps, rules=rules[1:]).word == ("undecided" if word == "same" and left[1] > 0.25 else word)


@pytest.mark.parametrize(
    ("on", "off", "word", "decided_by"),
    [
        (SURE, SURE, "same", "on the manifold, 1 rounds on"),
        (SURE, BELOW, "undecided", "off the manifold, 5 rounds on"),  # no state that occurs is updated otherwise
        (ACROSS, BELOW, "different", "off the manifold, 5 rounds on"),
        (BELOW, SURE, "different", "on the manifold, 1 rounds on"),
        (SURE, ACROSS, "undecided", "off the manifold, 5 rounds on"),
        (between(0.95, 0.99), between(0.96, 0.97), "same", "on the manifold, 1 rounds on"),
        (between(0.9, 0.99), between(0.91, 0.949), "undecided", "on the manifold, 1 rounds on"),
        (between(0.9, 0.949), between(0.91, 0.99), "different", "on the manifold, 1 rounds on"),
    ],
)
def test_update_is_decided_by_the_worst_step_of_the_reference_algorithm(on, off, word, decided_by):
    verdict = _update([_step(on), _step(off, manifold="off", horizon=5)])
    off_alone = "only states that no episode reaches are updated otherwise" if (on, off) == (SURE, BELOW) else ""
    assert (verdict.question, verdict.word, verdict.note) == ("update", word, off_alone)
    assert verdict.decided_by == f"step R2 of log_weights + elapsed, {decided_by}"
    assert verdict.bound == (on if " on the" in decided_by or decided_by.startswith("on") else off)
    assert verdict.threshold == 0.95


@pytest.mark.parametrize(
    ("untrained", "word"), [((0.2, 0.97), "undecided"), ((0.96, 0.2), "undecided"), ((0.9, 0.959), "same")]
)
def test_update_is_undecided_where_any_untrained_model_does_as_well_at_any_step(untrained, word):
    verdict = _update([_step(between(0.96, 0.98)), _step(SURE, untrained=untrained)])
    assert verdict.word == word and verdict.control == max(untrained)
    assert verdict.note == ("an untrained model does as well" if word == "undecided" else "")
    assert _update([_step(BELOW, untrained)]).word == "different"


@pytest.mark.parametrize("untrained", [(), (math.nan,)])
def test_update_without_an_untrained_control_is_undecided_and_says_so(untrained):
    """In its steps and in its inputs; what is different needs none. A control that overflowed hides no other."""
    verdict = _update([_step(SURE, untrained)])
    assert (verdict.word, verdict.note) == ("undecided", "there is no untrained control")
    assert math.isnan(verdict.control) and _update([_step(BELOW, untrained)]).word == "different"
    assert _update([_step(SURE, (math.nan, 0.2))]).control == 0.2
    verdict = _update([_step(SURE)], [_effect(SURE, untrained=math.nan)])
    assert (verdict.word, verdict.note) == ("undecided", "there is no untrained control")
    verdict = _update([_step(SURE)], [_effect(SURE, untrained=0.98)])
    assert (verdict.word, verdict.note) == ("undecided", "an untrained model does as well")


@pytest.mark.parametrize(
    ("scores", "word", "decided_by"),
    [
        ((SURE, between(0.9, 0.95)), "same", "step R2"),
        ((SURE, between(0.89, 0.99)), "undecided", "score of reward"),
        ((between(0.8, 0.9), SURE), "undecided", "score of label"),
        ((between(0.8, 0.89), SURE), "different", "score of label"),
        ((SURE, between(0.8, 0.89)), "different", "score of reward"),
        ((between(0.7, 0.99), between(0.75, 0.8)), "undecided", "score of label"),  # the weakest by its lower bound
        ((between(0.75, 0.8), between(0.7, 0.99)), "undecided", "score of reward"),
        ((None, SURE), "same", "step R2"),
        ((None, BELOW), "different", "score of reward"),
    ],
)
def test_update_needs_every_input_in_what_a_round_writes(scores, word, decided_by):
    label, reward = scores
    effects = [_effect(label, untrained=0.3), _effect(reward, "reward", untrained=0.4)]
    verdict = _update([_step(SURE), _step(SURE)], effects)
    assert (verdict.question, verdict.word) == ("update", word) and verdict.decided_by.startswith(decided_by)
    if decided_by != "step R2":
        assert verdict.decided_by.endswith("in what a round writes") and verdict.threshold == 0.9
        assert verdict.bound == (label if "label" in decided_by else reward)
        assert verdict.control == (0.3 if "label" in decided_by else 0.4)


@pytest.mark.parametrize("other", [{"algorithm": "another"}, {"what": "all"}, {"outcome": "prediction"}])
def test_update_is_not_decided_by_other_effects(other):
    """Of another algorithm, of a move of the state, or on the prediction."""
    verdict = _update([_step(SURE)], [_effect(SURE), _effect(BELOW, **other)])
    assert verdict.word == "same" and verdict.decided_by.startswith("step R2")


@pytest.mark.parametrize(
    ("step", "score", "word", "decided_by"),
    [
        (BELOW, BELOW, "different", "step R2"),
        (BELOW, ACROSS, "different", "step R2"),
        (ACROSS, SURE, "undecided", "step R2"),
        (ACROSS, BELOW, "different", "score of label"),
    ],
)
def test_update_that_differs_in_its_steps_differs_whatever_its_inputs_do(step, score, word, decided_by):
    verdict = _update([_step(step)], [_effect(score)])
    assert verdict.word == word and verdict.decided_by.startswith(decided_by)


# Circuit.

NOTHING = Needed("a", 0, 0, reason="not looked for")
ONE, HALF = between(0.98, 1.0), between(0.45, 0.55)
ALIKE, HANDED = Interval(0.9, 0.8, 0.95), Interval(0.92, 0.85, 0.99)
LOADED, IDLE = (Role("0.0", "1.0", *weights, 1.0) for weights in ((0.5, 0.4), (0.0, 0.4)))


def _path(share, reference, cause="latent"):
    return Path(cause, "prediction", "p?", share, share, reference, reference, (0.1, 0.2), (0.1, 0.2))


def _circuit(
    *paths, alike=ALIKE, handed=HANDED, null=(0.1, 0.25), handed_null=(0.05, 0.3), roles=(LOADED, IDLE), by=SURE
):
    found = alike, handed, null, handed_null, roles, {"read alike for the prediction": SURE, "for the update": by}
    return judge_circuit(CircuitPart("a", "b", paths or (_path(ONE, ONE),), *found, (NOTHING, NOTHING), None, (), ()))


@pytest.mark.parametrize(
    ("alike", "handed", "word", "decided_by"),
    [
        (ALIKE, HANDED, "same", "read"),
        (HANDED, ALIKE, "same", "hand on"),
        (ALIKE, None, "same", "read"),
        (between(0.5, 0.6), HANDED, "same", "read"),
        (between(0.499, 0.6), HANDED, "undecided", "read"),
        (ALIKE, between(0.499, 0.6), "undecided", "hand on"),
        (between(0.4, 0.499), HANDED, "different", "read"),
        (ALIKE, between(0.4, 0.499), "different", "hand on"),
        (between(0.4, 0.6), between(0.41, 0.45), "undecided", "read"),  # by lower bounds
        (between(0.4, 0.45), None, "different", "read"),
    ],
)
def test_roles_are_decided_by_the_less_alike_of_what_heads_read_and_hand_on(alike, handed, word, decided_by):
    verdict = _circuit(alike=alike, handed=handed)
    assert (verdict.question, verdict.word, verdict.threshold) == ("circuit", word, 0.5)
    assert verdict.decided_by == f"heads {decided_by} alike"
    assert verdict.bound == (alike if decided_by == "read" else handed)
    assert verdict.control == (0.25 if decided_by == "read" else 0.3)
    said = [f"read alike {alike.estimate:.2f}"] + ([] if handed is None else [f"hand on alike {handed.estimate:.2f}"])
    assert verdict.note == ("" if word == "same" else f"heads {', '.join(said)}")


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"null": (0.1, 0.8)}, "untrained models are as alike"),
        ({"null": (0.799,)}, ""),
        ({"handed_null": (0.85, 0.1)}, "untrained models are as alike"),
        ({"handed_null": (0.849, math.nan)}, ""),
        ({"null": ()}, NO_CONTROL),
        ({"null": (math.nan,)}, NO_CONTROL),
        ({"handed_null": (math.nan, math.nan)}, NO_CONTROL),
        ({"handed": None, "handed_null": (math.nan,)}, ""),
        ({"roles": (IDLE,)}, "no head of the two changes anything"),
        ({"roles": (Role("0.0", "1.0", 0.4, 0.0, 0.0),)}, "no head of the two changes anything"),
    ],
)
def test_roles_are_the_same_only_beside_controls_and_where_heads_do_anything(options, why):
    verdict = _circuit(**options)
    assert verdict.word == ("undecided" if why else "same")
    assert verdict.note.endswith(why) and verdict.note.startswith("heads read alike 0.90" if why else "")


@pytest.mark.parametrize(("low", "word"), [(0.5, "same"), (0.499, "undecided")])
def test_roles_are_the_same_only_where_they_are_for_each_outcome(low, word):
    """A machine that never reads what it writes does half of what the other does: it is not the same."""
    verdict = _circuit(by=Interval(0.6, low, 0.7))
    assert verdict.word == word and ("for the update 0.6" in verdict.note) is (word != "same")
    assert _circuit(by=BELOW, handed=between(0.1, 0.2)).word == "different"


def test_the_outcome_that_may_be_least_alike_counts_and_a_control_without_a_number_does_not():
    """A lower bound of .4 below an upper bound that is the highest of all; and NaN before a number."""
    assert _circuit(by=Interval(0.9, 0.4, 0.999)).word == "undecided"
    assert _circuit(null=(math.nan, 0.25)).control == 0.25


def test_nothing_is_different_without_a_control_either():
    """Unlike heads, and no untrained model: undecided, and it says so. Other doubts leave a difference one."""
    assert _circuit(alike=BELOW, handed=between(0.1, 0.2), null=()).note.endswith(NO_CONTROL)
    assert _circuit(alike=BELOW, handed=between(0.1, 0.2), null=()).word == "undecided"
    assert _circuit(handed=between(0.1, 0.2), handed_null=(0.3,)).word == "different"
    assert _circuit(_path(ONE, HALF), handed=between(0.1, 0.2)).word == "different"


@pytest.mark.parametrize(
    ("paths", "apart"),
    [
        ((_path(ONE, ONE), _path(HALF, HALF, "y")), ""),
        ((_path(ONE, HALF), _path(ONE, ONE, "y")), "latent"),
        ((_path(ONE, ONE), _path(HALF, ONE, "y")), "y"),
        ((_path(ONE, between(0.6, 0.95)), _path(ONE, between(0.4, 0.95), "y")), "y"),  # the one that may be farthest
        ((_path(Interval(1, 1, 1), Interval(0.8, 0.8, 0.8)), _path(ONE, between(0.5, 1.3), "y")), "y"),
    ],
)
def test_roles_are_not_the_same_where_the_shares_of_a_path_may_differ_by_more_than_a_quarter(paths, apart):
    """However alike heads are; and a path alone makes nothing different."""
    verdict = _circuit(*paths)
    assert verdict.word == ("undecided" if apart else "same")
    assert f"effect of {apart} on the prediction carried by attention at p?: difference" in verdict.note or not apart


@pytest.mark.parametrize(
    ("reference", "word"), [(0.749, "undecided"), (0.75, "same"), (0.751, "same")], ids=["above", "at", "below"]
)
def test_shares_differ_from_a_quarter_on(reference, word):
    """Numbers without an interval: a gap of exactly a quarter is not too far yet."""
    certain = [Interval(x, x, x) for x in (1.0, reference)]
    assert _circuit(_path(*certain), _path(ONE, ONE, "y")).word == word


@pytest.mark.parametrize(
    ("share", "reference", "apart"),
    [
        (Interval(0.9, 0.85, 0.93), Interval(0.5, 0.42, 0.57), Interval(0.4, 0.3139767, 0.4854400)),
        (Interval(0.5, 0.42, 0.57), Interval(0.9, 0.85, 0.93), Interval(0.4, 0.3139767, 0.4854400)),
        (Interval(0.9, 0.7, 1.2), Interval(0.8, 0.75, 0.83), Interval(0.1, 0.0, 0.4041381)),
        (Interval(0.8, 0.75, 0.83), Interval(0.9, 0.7, 1.2), Interval(0.1, 0.0, 0.4041381)),
        (Interval(1.4, 1.3, 1.5), Interval(0.5, 0.4, 0.6), Interval(0.9, 0.7585786, 1.0414214)),
    ],
)
def test_the_distance_of_two_shares_has_the_interval_of_both(share, reference, apart):
    """By the root of the sum of squares of the two that point the same way; from 0 on where it holds 0."""
    assert vars(_apart(share, reference)) == pytest.approx(vars(apart), abs=1e-6)
