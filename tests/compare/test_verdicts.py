"""The rules of the four claims on numbers that are given: every bound, filter, control and threshold has a case.

Each part has two or more rows, so that the best cannot stand for the worst, nor one row for all. Thresholds are written
out here: a change of one must be made here, too.
"""

import math
from dataclasses import replace
from itertools import product
from types import SimpleNamespace

import numpy as np
import pytest

from circuits.compare.algorithm import (
    Behaviour,
    FamilyScore,
    _Agreement,
    _choose_family,
    _measure_differences,
    _measure_likeness,
    _measure_remainder,
)
from circuits.compare.question import Budget
from circuits.compare.response import Cell, ResponsePart
from circuits.compare.state import StatePart, Stitching, _are_choices, _score_worst_band
from circuits.compare.update import (
    RULES,
    UPDATE,
    Evidence,
    FittedUpdate,
    StepScore,
    judge,
)
from interp.choices.fitting import divergence, predictor
from interp.results.measure import (
    AS_WELL,
    FEW,
    LITTLE_MEMORY,
    MISREAD,
    NOT_RUN,
    NOTHING,
    TOO_NEAR,
    UNTRAINED,
    Measure,
)
from interp.stats.intervals import NO_NUMBER, Interval
from interp.tasks import experts
from interp.tasks.experts.algorithms import weighted_majority
from interp.tasks.reachability import TASK as REACHABILITY
from tests.cases import by_cases

SURE, ACROSS, BELOW = (
    Interval(0.99, 0.98, 0.995),
    Interval(0.95, 0.9, 0.97),
    Interval(0.5, 0.4, 0.6),
)


def between(low: float, high: float) -> Interval:
    return Interval((low + high) / 2, low, high)


NAMED = {"sure": SURE, "across": ACROSS, "below": BELOW, "none": NO_NUMBER}


def one(case):
    """The interval of a table of cases: a name, or its bounds."""
    return NAMED[case] if isinstance(case, str) else between(*case)


# Behaviour.

NEVER = Interval(0.0, 0.0, 0.0)


def _cell(low, high, what="label"):
    return Cell(what, "one round later", between(low, high), 0.1, 0.2)


def _agreement(alike=SURE, apart=NEVER, cells=((0.92, 0.99), (0.98, 0.99))):
    responses = [_cell(*pair, what=f"input {i}") for i, pair in enumerate(cells)]
    return _Agreement(alike, apart, tuple(responses))


def _behaviour(plain, fitted=None, untrained=(0.3, 0.1)):
    return Behaviour(plain, fitted, {"spread": 0.6}, untrained).measure


@pytest.mark.parametrize(
    ("bounds", "word"),
    [
        ((0.98, 0.99), "yes"),
        ((0.95, 0.97), "yes"),
        ((0.949, 0.99), "undecided"),
        ((0.5, 0.95), "undecided"),
        ((0.5, 0.949), "no"),
    ],
)
def test_behaviour_is_same_from_95_percent_on_different_below_and_undecided_across(bounds, word):
    measure = _behaviour(_agreement(between(*bounds)))
    assert (measure.verdict, measure.about, measure.note) == (word, "predictions alike", "")
    assert measure.number == between(*bounds)
    assert measure.threshold == 0.95
    assert measure.controls[UNTRAINED].number == 0.3


@pytest.mark.parametrize(
    ("apart", "word"),
    [
        ((0.0, 0.001), "yes"),
        ((0.0, 0.0011), "undecided"),
        ((0.02, 0.03), "undecided"),
        ((0.0201, 0.03), "no"),
    ],
)
def test_behaviour_is_not_the_same_where_more_than_one_round_in_a_thousand_is_plainly_apart(
    apart, word
):
    measure = _behaviour(_agreement(apart=between(*apart)))
    assert measure.verdict == word
    if word != "yes":
        assert (measure.about, measure.threshold, measure.no_threshold) == (
            "rounds apart",
            0.001,
            0.02,
        )


@pytest.mark.parametrize(
    ("cells", "word", "decided_by"),
    [
        (((0.9, 0.95), (0.95, 0.99)), "yes", "predictions alike"),
        (((0.89, 0.95), (0.95, 0.99)), "undecided", "response to input 0, one round later"),
        (((0.95, 0.99), (0.89, 0.95)), "undecided", "response to input 1, one round later"),
        (((0.2, 0.9), (0.5, 0.89)), "no", "response to input 1, one round later"),
        ((), "yes", "predictions alike"),
    ],
)
def test_behaviour_is_decided_by_the_response_that_is_least_alike(cells, word, decided_by):
    measure = _behaviour(_agreement(cells=cells))
    assert (measure.verdict, measure.about) == (word, decided_by)
    assert word == "yes" or measure.threshold == 0.9


def test_behaviour_that_differs_in_one_number_differs_whatever_is_undecided():
    assert _behaviour(_agreement(ACROSS, cells=((0.4, 0.5),))).about.startswith("response")
    assert _behaviour(_agreement(BELOW, cells=((0.4, 0.99),))).about == "predictions alike"


def test_a_fitted_read_out_decides_where_two_models_differ_without_it_and_not_with_it():
    without_read_out = _behaviour(_agreement(BELOW), _agreement())
    assert (without_read_out.verdict, without_read_out.number, without_read_out.condition) == (
        "yes",
        SURE,
        "with its read-out fitted",
    )
    assert without_read_out.note == f"spread 0.6; alike {SURE}, as it is {BELOW}"
    assert _behaviour(_agreement(ACROSS), _agreement()).verdict == "yes"
    unsure = _behaviour(_agreement(BELOW), _agreement(ACROSS))
    assert (unsure.verdict, unsure.number) == ("undecided", ACROSS)
    assert unsure.note.endswith(f"as it is {BELOW}")
    for fitted in (
        _agreement(BELOW),
        _agreement(cells=((0.1, 0.2),)),
        _agreement(apart=between(0.5, 0.6)),
    ):
        with_read_out = _behaviour(_agreement(BELOW), fitted)
        assert (
            with_read_out.verdict,
            with_read_out.number,
            with_read_out.condition,
            with_read_out.note,
        ) == ("no", BELOW, "", "")


@pytest.mark.parametrize(
    ("untrained", "word", "reason"),
    [
        ((), "undecided", NOT_RUN),
        ((0.95, 0.2), "undecided", TOO_NEAR),
        ((0.2, 0.94), "yes", ""),  # odds of .98 are 49, of .94 less than a third of that
    ],
)
def test_behaviour_needs_a_control_and_to_be_clear_of_all_of_it(untrained, word, reason):
    measure = _behaviour(_agreement(), untrained=untrained)
    assert measure.verdict == word
    assert reason in measure.reason
    assert _behaviour(_agreement(BELOW), untrained=untrained).verdict == "no"


def test_predictions_are_alike_by_half_of_what_the_two_memories_are_worth():
    """.1 nats apart, where the memories are worth .2 and .6: a quarter of their mean is missed."""
    nats = {"one": np.full((8, 3), 0.1), "two": np.full((8, 2), 0.1)}
    own_nats, base = ({name: np.full(8, worth) for name in nats} for worth in (0.2, 0.6))
    sets = dict.fromkeys(nats, (None, range(8)))
    for pair in ((own_nats, base), (base, own_nats)):
        likeness = _measure_likeness(nats, *pair, sets, seed=0)
        assert vars(likeness) == pytest.approx({"estimate": 0.75, "low": 0.75, "high": 0.75})


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
        ((1.0,), 19.9, 8.0, ""),  # explains less than .95
        ((1.0,), 20.0, 4.0, "best"),
        ((1.0,), 20.0, 3.9, ""),  # leaves more than .25 of the runner-up's
        ((0.4, 1.4), 20.0, 8.0, ""),  # .955 by the estimate, but not by the whole interval
        ((0.4, 1.4), 60.0, 4.0, ""),
    ],
)
def test_a_family_explains_from_95_percent_on_with_at_most_a_quarter_of_the_runner_up(
    left, by_guess, by_rival, family
):
    scores = [_family("rival", 2.0, by_rival), _family("guess", 9.0, by_guess, memoryless=True)]
    part = _choose_family([*scores, _family("best", 1.0, *left)], {"seed": 0})
    assert (part.family, part.closest, part.runner_up, part.baseline) == (
        family or None,
        "best",
        "rival",
        "guess",
    )
    mean = float(np.mean(left))
    assert part.explained.estimate == pytest.approx(1 - mean / by_guess)
    assert part.ratio.estimate == pytest.approx(mean / by_rival)


def test_families_are_ranked_by_their_fits_and_a_guess_explains_nothing():
    """The scores on other episodes choose nothing; the best without a memory is no answer, however much it explains."""
    better_elsewhere = _family("rival", 2.0, 0.5)
    part = _choose_family([GUESS, better_elsewhere, _family("best", 1.0, 1.0)], {"seed": 0})
    assert list(part.scores) == ["best", "rival", "guess"]
    assert part.family is None
    assert part.closest == "best"
    alone = _family("no memory", 1.0, 1.0, memoryless=True)
    part = _choose_family([GUESS, _family("rival", 2.0, 8.0), alone], {"seed": 0})
    assert (part.family, part.closest, part.baseline) == (None, "no memory", "no memory")


def test_a_simpler_family_stands_for_its_own_extension_and_for_no_other():
    """The best fit is an extension that gains too little: its own simpler family is the closest, not a plain rival."""
    family = [_family("simple", 2.5, 1.0), _family("extension", 2.1, 0.9, extends="simple")]
    part = _choose_family([GUESS, _family("rival", 2.2, 1.5), *family], {"seed": 0})
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
        ((0.01, 0.029), (0.0, 0.001), 0.5, "extension"),  # a thousandth is within its interval
    ],
)
def test_an_extension_replaces_a_simpler_family_at_half_of_its_divergence_or_where_it_alone_explains(
    simple, extended, fitted, closest
):
    others = [GUESS, _family("rival", 2.0, 8.0)]
    family = [
        _family("simple", 1.0, *simple),
        _family("extension", fitted, *extended, extends="simple"),
    ]
    part = _choose_family([*others, *family], {"seed": 0})
    assert (part.closest, part.runner_up) == (closest, "rival")
    assert next(iter(part.scores)) == closest
    assert set(part.scores) == {"simple", "extension", "rival", "guess"}


def test_the_families_that_episodes_do_not_tell_from_the_best_are_listed():
    """One leaves more in half of the episodes and less in the others; one more in all; one ties below a thousandth."""
    families = [
        _family("best", 1.0, 1.0, 1.2),
        _family("like it", 1.1, 1.2, 1.0),
        _family("worse", 2.0, 8.0, 9.0),
        GUESS,
    ]
    assert _choose_family(families, {"seed": 0}).not_rejected == ("best", "like it")
    exact = [_family("exact", 0.0, 0.0), _family("found", 0.1, 0.01, 0.02), *families]
    assert _choose_family(exact, {"seed": 0}).not_rejected == ("exact", "found")


def test_small_changes_have_names_and_the_one_that_explains_most_is_said():
    """A leak of .98 a round, held against Weighted Majority, which it leaks from."""
    sets = {"uniform": tuple(experts.sample(24, 20, 3, seed=seed) for seed in (0, 1))}
    plain = weighted_majority(0.3)
    leak = lambda v: 0.98 * v["log_weights"] + 0.3 * v["match"]  # noqa: E731
    changes = {"next_log_weights": (("log_weights", "match"), leak)}
    leaky = plain.make_variant("leaky", "leaky", {}, changes)
    residual, change = _measure_remainder(predictor(leaky), plain, sets, 0)
    assert residual.high < 0.1
    assert change.startswith("a leak alone leaves 0.0")


def test_behaviour_keeps_the_twenty_rounds_of_all_sets_that_differ_most_worst_first():
    """Reachability is asked from its second round on; each failure names its round in the episode."""
    sets = dict(list(REACHABILITY.sets_for(8, 6, seed=0, n_nodes=16, n_edges=24).items())[:2])
    rng = np.random.default_rng(0)
    predictions = {}
    for name, (_, scored) in sets.items():
        predictions[name] = rng.dirichlet(np.ones(3), (2, len(scored), 6))
    name_of = {id(scored): name for name, (_, scored) in sets.items()}

    def model(episodes):
        return predictions[name_of[id(episodes)]][0]

    def reference(episodes):
        return predictions[name_of[id(episodes)]][1]

    differences, failures = _measure_differences(model, reference, sets)
    nats = {}
    for name, (of_model, of_reference) in predictions.items():
        for episode, t in product(range(len(of_model)), range(1, 6)):
            p, q = of_model[None, None, episode, t], of_reference[None, None, episode, t]
            nats[name, episode, t] = divergence(p, q)[0]
    worst = sorted(nats, key=lambda place: -nats[place])[:20]
    ranked = sorted(failures, key=lambda failure: -failure.nats)[:20]
    assert [(f.set, f.episode, f.round) for f in ranked] == worst
    for failure in ranked:
        p, q = predictions[failure.set][:, failure.episode, failure.round]
        assert failure.model == pytest.approx(p)
        assert failure.reference == pytest.approx(q)
        assert failure.n_scored == 8
        place = (failure.set, failure.episode, failure.round)
        assert failure.nats == pytest.approx(nats[place])
    for name, values in differences.items():
        assert values.shape == (8, 5)
        for episode, t in product(range(8), range(1, 6)):
            assert values[episode, t - 1] == pytest.approx(nats[name, episode, t])


# State.


def _state(
    there,
    back,
    helped=None,
    helped_there=None,
    copies=((0.3, 0.9), (0.05, 0.99)),
    worths=(0.05, 0.05),
):
    """Stitchings a -> b and b -> a, also with the round; both ways of copies of a; worths (low) of a and b."""
    stitchings = []
    for source, target, score, helps in (
        ("a", "b", there, helped_there or there),
        ("b", "a", back, helped or back),
    ):
        stitchings += [
            Stitching(source, target, (), "", score),
            Stitching(source, target, ("round",), "", helps),
            Stitching(source, target, ("round",), "shuffled", SURE),
        ]
    for i, (there, back) in enumerate(copies):
        for source, target, score in ((f"a {i}", "b", there), ("b", f"a {i}", back)):
            stitchings.append(
                Stitching(source, target, ("round",), UNTRAINED, between(score - 0.1, score + 0.1))
            )
    worth = {name: Interval(2 * low, low, 3 * low) for name, low in zip("ab", worths, strict=True)}
    return StatePart("a", "b", tuple(stitchings), worth).measure


@pytest.mark.parametrize(
    ("there", "back", "word", "decided_by"),
    [
        ("sure", "sure", "yes", "b on the latents of a"),
        ("sure", "below", "no", "a on the latents of b"),
        ("below", "sure", "no", "b on the latents of a"),
        ("sure", "across", "undecided", "a on the latents of b"),
        ("across", "below", "no", "a on the latents of b"),
        (
            (0.96, 0.999),
            (0.97, 0.98),
            "yes",
            "b on the latents of a",
        ),  # the worse one by its lower bound
        ((0.97, 0.98), (0.95, 0.999), "yes", "a on the latents of b"),
    ],
)
def test_state_is_decided_by_the_worse_direction(there, back, word, decided_by):
    there, back = one(there), one(back)
    measure = _state(there, back)
    assert (measure.verdict, measure.condition, measure.note) == (word, "", "")
    assert measure.about == f"the predictions of {decided_by}, in round 0"
    worse = there if decided_by.startswith("b") else back
    assert (measure.number, measure.threshold) == (worse, 0.95)


def test_state_is_the_score_of_the_worst_band_of_starts():
    """A mean of .875 hides a last band of .5; a start at which the memory is worth nothing yet says nothing."""
    budget = Budget()
    missed, totals = np.zeros((8, 8)), np.ones((8, 8))
    missed[:, 6:] = 0.5
    every = np.ones(8, bool)
    score, band = _score_worst_band(budget, every, missed, totals)
    assert (score.estimate, band) == (pytest.approx(0.5), (21, 24))
    assert _score_worst_band(budget, np.arange(8) < 6, missed, totals)[0].estimate == 1
    one_of_three = _score_worst_band(
        budget, every, np.where(np.arange(8) == 5, 0.9, 0.0) * totals, totals
    )
    assert one_of_three[0].estimate == pytest.approx(0.7)
    unsure = (
        np.where(np.arange(8) < 3, 0.3, 0.0) * totals
    )  # a mean of .75 that spans more than .7 does
    unsure[::2, 3:6] = 0.5
    assert _score_worst_band(budget, every, unsure, totals)[0].estimate == pytest.approx(0.75)
    assert _score_worst_band(budget, ~every, missed, totals)[0].estimate == pytest.approx(0.5)
    assert _score_worst_band(budget, np.arange(8) > 5, missed, totals)[1] == (
        21,
        21,
    )  # as many bands as starts
    totals[:, :3] = math.nan
    assert math.isnan(_score_worst_band(budget, every, missed, totals)[0].estimate)


def test_state_names_what_a_model_needs_beside_the_others_latents():
    helped = _state(SURE, BELOW, helped=SURE)
    assert (helped.verdict, helped.condition) == ("yes", "given the round number")
    assert helped.note == "the round is given to a"
    assert _state(SURE, between(0.92, 0.94), helped=SURE).condition == helped.condition
    helped_both = _state(BELOW, BELOW, helped=SURE, helped_there=SURE)
    assert helped_both.verdict == "yes"
    assert helped_both.note == "the round is given to b and a"
    assert (
        _state(SURE, SURE, helped=Interval(0.9999, 0.999, 1.0)).condition == ""
    )  # adds less than .01
    for gain, condition in (
        (0.51, "given the round number"),
        (0.5099, ""),
        (0.5102, "given the round number"),
    ):
        assert (
            _state(SURE, Interval(0.5, 0.45, 0.55), helped=Interval(gain, 0.2, 0.8)).condition
            == condition
        )


def test_predictions_are_choices_where_more_than_nine_of_ten_are_certain_to_99_percent():
    def given(certain, share):
        predictions = np.full((1000, 2), 0.5)
        predictions[:share] = [certain, 1 - certain]
        return predictions

    assert [_are_choices(given(0.9901, share)) for share in (899, 900, 901)] == [False, False, True]
    assert [_are_choices(given(certain, 1000)) for certain in (0.99, 0.9901)] == [False, True]


@by_cases("copies, word, control")
def test_state_is_held_against_the_best_copy_by_its_worse_direction(copies, word, control):
    measure = _state(between(0.96, 0.98), SURE, copies=copies)
    assert measure.verdict == word
    assert measure.controls[UNTRAINED].number == pytest.approx(control, nan_ok=True)
    assert (NOT_RUN if not copies else TOO_NEAR if word == "undecided" else "") in measure.reason


@pytest.mark.parametrize(
    ("worths", "reason"),
    [
        ((0.0034, 0.003), f"{LITTLE_MEMORY}, which is worth"),
        ((0.0034, 0.05), f"{FEW}: a memory may be worth"),
        ((0.05, 0.0099), f"{FEW}: a memory may be worth"),
        ((0.01, 0.01), ""),
    ],
)
def test_state_is_undecided_where_a_memory_is_worth_next_to_nothing(worths, reason):
    measure = _state(SURE, SURE, worths=worths)
    assert NOTHING not in measure.reason  # the share of the worth is the measure's number
    assert measure.verdict == ("undecided" if reason else "yes")
    assert measure.reason.startswith(reason)
    assert _state(SURE, BELOW, worths=worths).verdict == "no"


# Update.


def _step(r2, untrained=(0.5, 0.1), manifold="on", horizon=1, nonlinear=math.nan, decoded=1.0):
    return StepScore(
        model="a",
        algorithm="wm",
        state=("log_weights", "elapsed"),
        missing=(),
        decoded=decoded,
        nonlinear=nonlinear,
        manifold=manifold,
        horizon=horizon,
        r2=r2,
        untrained=untrained,
    )


def _evidence(*steps, **options):
    return Evidence(steps=steps or (_step(SURE),), **options)


def _fitted(low, high):
    interval = between(low, high)
    return FittedUpdate("best", "rule best", ("log_weights",), {"keep": 0.98}, SURE, interval)


def _by(measure):
    """The name of the rule that decided, from the note of a measure."""
    return measure.note.removeprefix("Decided by the rule of ").partition(":")[0]


SAME = {"reference": "b", "alike": 1.0}
FAR_STEP_FAILS = _evidence(_step(SURE), _step(BELOW, horizon=5))
ONE_INPUT_UNHEARD = _evidence(response=ResponsePart("wm", (_cell(0.1, 0.2),)))
HALF_ARRIVES = _evidence(response=ResponsePart(arrives=between(0.4, 0.6)))
READ_BEFORE_THE_UPDATE = _evidence(response=ResponsePart(later=between(0.1, 0.2)))
FAILS_AND_PREDICTS_THE_SAME = _evidence(_step(BELOW), **SAME)
FAILS_IN_AN_UNREAD_STATE = _evidence(_step(BELOW, decoded=0.5), state="yes", reference="b")
NEEDED = {
    "steps": (FAR_STEP_FAILS, "no", "yes"),
    "responses": (ONE_INPUT_UNHEARD, "no", "yes"),
    "arrival": (HALF_ARRIVES, "no", "yes"),
    "next state": (READ_BEFORE_THE_UPDATE, "undecided", "yes"),
    "same predictions": (FAILS_AND_PREDICTS_THE_SAME, "undecided", "no"),
    "unread state": (FAILS_IN_AN_UNREAD_STATE, "undecided", "no"),
    "another update": (_evidence(fitted=_fitted(0.1, 0.2)), "undecided", "yes"),
}
"""Rule -> evidence that it alone decides, the word that it gives, and the word without it."""


def test_every_rule_of_an_update_is_needed_and_there_are_seven():
    assert [rule.name for rule in RULES] == list(NEEDED)
    assert len(RULES) == 7


@pytest.mark.parametrize("name", NEEDED)
def test_a_rule_decides_what_nothing_else_does(name, monkeypatch):
    evidence, word, without = NEEDED[name]
    measure = judge(evidence)
    assert (measure.verdict, _by(measure)) == (word, name)
    rest = [rule for rule in RULES if rule.name != name]
    if name == "steps":  # without it, nothing is left that could be "yes"
        fulfilled = Measure("", "", SURE, 0.5, needs_control=False)
        rest.insert(0, replace(RULES[0], require=lambda evidence: [fulfilled]))
    monkeypatch.setattr("circuits.compare.update.RULES", rest)
    assert judge(evidence).verdict == without


@pytest.mark.parametrize(
    ("on", "off", "word", "decided_by"),
    [
        ("sure", "sure", "yes", "one round on, from states that occur"),
        ("sure", "below", "no", "5 rounds on, from states that no episode reaches"),
        ("across", "below", "no", "5 rounds on, from states that no episode reaches"),
        ("below", "sure", "no", "one round on, from states that occur"),
        ("sure", "across", "undecided", "5 rounds on, from states that no episode reaches"),
        ((0.975, 0.99), (0.976, 0.98), "yes", "one round on, from states that occur"),
        ((0.974, 0.99), (0.976, 0.98), "undecided", "one round on, from states that occur"),
        ((0.9, 0.99), (0.91, 0.949), "undecided", "one round on, from states that occur"),
        ((0.9, 0.949), (0.91, 0.99), "no", "one round on, from states that occur"),
    ],
)
def test_update_is_decided_by_the_worst_step_of_the_reference_algorithm(on, off, word, decided_by):
    on_manifold, off_manifold = one(on), one(off)
    steps = _step(on_manifold), _step(off_manifold, manifold="off", horizon=5)
    measure = judge(_evidence(*steps))
    assert measure.verdict == word
    assert (measure.about, measure.threshold) == (f"log_weights + elapsed, {decided_by}", 0.975)
    assert measure.number == (on_manifold if decided_by.endswith("occur") else off_manifold)


@by_cases("copies, word, control")
def test_update_is_held_against_the_best_copy_by_its_own_worst_step(copies, word, control):
    """Each pair is the two copies at one step."""
    close = _step(between(0.975, 0.98), copies[0])
    measure = judge(_evidence(close, _step(SURE, copies[1], horizon=5)))
    assert (measure.verdict, measure.controls[UNTRAINED].number) == (word, control)
    assert (TOO_NEAR in measure.reason) == (word == "undecided")
    low = [_step(BELOW, pair, horizon=i + 1) for i, pair in enumerate(copies)]
    assert judge(_evidence(*low)).verdict == "no"


@pytest.mark.parametrize("untrained", [(), (math.nan,)])
def test_update_without_an_untrained_control_is_undecided_and_says_so(untrained):
    """What is false needs none."""
    measure = judge(_evidence(_step(SURE, untrained)))
    assert measure.verdict == "undecided"
    assert measure.reason.startswith(NOT_RUN)
    assert judge(_evidence(_step(BELOW, untrained))).verdict == "no"


@pytest.mark.parametrize(
    ("step", "cells", "word", "decided_by"),
    [
        ("sure", ((0.5, 0.6), (0.9, 0.95)), "yes", "log_weights"),
        ("sure", ((0.9, 0.95), (0.49, 0.95)), "undecided", "response to input 1"),
        ("sure", ((0.1, 0.9), (0.4, 0.49)), "no", "response to input 1"),
        ("sure", ((0.1, 0.9), (0.4, 0.5)), "undecided", "response to input 0"),
        ("across", ((0.1, 0.9),), "undecided", "log_weights"),
        ("across", ((0.1, 0.2),), "no", "response to input 0"),
        ("below", ((0.1, 0.2),), "no", "log_weights"),
    ],
)
def test_update_needs_every_response_to_go_through_the_state(step, cells, word, decided_by):
    update = tuple(_cell(*pair, what=f"input {i}") for i, pair in enumerate(cells))
    measure = judge(_evidence(_step(one(step)), response=ResponsePart("wm", update)))
    assert measure.verdict == word
    assert measure.about.startswith(decided_by)
    if decided_by != "log_weights":
        assert measure.threshold == 0.5


@pytest.mark.parametrize(("high", "word"), [(0.74, "no"), (0.75, "yes"), (math.nan, "yes")])
def test_an_update_that_arrives_late_is_another_one(high, word):
    """However well its steps are read: what waits is decoded with the state, and moves no prediction yet."""
    response = ResponsePart("wm", (), Interval(0.5, 0.4, high))
    assert judge(_evidence(response=response)).verdict == word


@pytest.mark.parametrize(
    ("low", "word"), [(0.5, "yes"), (0.49, "undecided"), (0.0, "undecided"), (math.nan, "yes")]
)
def test_an_update_is_not_the_same_where_the_next_state_changes_predictions_otherwise(low, word):
    """Nor is it another one: a search from both ends holds the state, and answers from more than it."""
    response = ResponsePart("wm", later=Interval(low, low, low + 0.1))
    assert judge(_evidence(response=response)).verdict == word
    assert judge(_evidence(_step(BELOW), response=response)).verdict == "no"


@pytest.mark.parametrize(
    ("alike", "shows_state", "decoded", "word"),
    [
        (0.999, True, 1.0, "undecided"),
        (0.9989, True, 1.0, "no"),
        (0.999, False, 0.95, "no"),  # choices alone show no state, unless nothing reads one
        (0.999, False, 0.94, "undecided"),
        (math.nan, True, 0.5, "no"),
    ],
)
def test_what_predicts_as_the_reference_does_may_be_it_in_another_code(
    alike, shows_state, decoded, word
):
    step = _step(BELOW, decoded=decoded)
    measure = judge(_evidence(step, reference="b", alike=alike, shows_state=shows_state))
    assert measure.verdict == word
    assert word == "no" or measure.reason == f"{MISREAD}: its predictions are those of b"
    assert NOTHING not in measure.reason


@pytest.mark.parametrize(
    ("nonlinear", "word"), [(0.875, "undecided"), (0.874, "no"), (math.nan, "no")]
)
def test_an_update_that_only_a_non_linear_decoder_reads_is_undecided(nonlinear, word):
    """Affine maps miss half of the steps; a decoder that leaves a quarter of that says that the steps are there."""
    steps = _step(Interval(0.5, 0.4, 0.6), nonlinear=nonlinear), _step(BELOW, horizon=5)
    measure = judge(_evidence(*steps))
    assert measure.verdict == word
    if word == "undecided":
        assert measure.reason.endswith("R2 0.50 of its steps, a non-linear decoder 0.88")


@pytest.mark.parametrize(
    ("decoded", "state", "word"),
    [(0.94, "yes", "undecided"), (0.95, "yes", "no"), (0.94, "no", "no")],
)
def test_a_state_that_only_stitching_finds_is_undecided(decoded, state, word):
    evidence = _evidence(_step(BELOW, decoded=decoded), state=state, reference="b")
    assert judge(evidence).verdict == word


@pytest.mark.parametrize(
    ("one_round", "several", "left", "word"),
    [
        ("sure", "sure", (0.1, 0.2), "undecided"),  # another update says what is left
        ("sure", "sure", (0.1, 0.5), "undecided"),
        ("sure", "sure", (0.1, 0.501), "yes"),  # that it does is not sure
        ((0.9989, 0.9999), "sure", (0.1, 0.2), "yes"),  # nothing is left but rounding
        ((0.998, 1.0), "sure", (0.1, 0.2), "yes"),
        ((0.9988, 0.9991), (0.9991, 0.9999), (0.1, 0.2), "undecided"),
        ("below", "sure", (0.1, 0.2), "no"),
    ],
)
def test_update_is_not_the_same_where_another_update_says_what_it_does_not(
    one_round, several, left, word
):
    """By the steps of one round on the manifold, and by the update that fits them best."""
    other_steps = one(several)
    steps = _step(other_steps, manifold="off"), _step(other_steps, horizon=5), _step(one(one_round))
    measure = judge(_evidence(*steps, fitted=_fitted(*left)))
    assert measure.verdict == word
    is_doubted = measure.reason.startswith(f"rule best (keep 0.98) {AS_WELL}")
    assert is_doubted == (word == "undecided")


def test_no_update_is_of_a_reference_that_names_no_algorithm():
    reference = SimpleNamespace(names_algorithm=False, name="b")
    measure = UPDATE.judge(SimpleNamespace(reference=reference, is_same_machine=False))
    assert (measure.verdict, measure.reason) == ("not applicable", "b names no algorithm")
