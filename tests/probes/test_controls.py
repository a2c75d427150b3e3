"""What each control is made of, which count, and what a probe's measure says of them.

Kinds of probes are stood in for by one that records its inputs and gives scores in turn, so that every control has a
case; two targets, so that one cannot stand for all.
"""

from dataclasses import replace

import numpy as np
import pytest

from interp.stats.intervals import Interval
from probes.controls import (
    DESCRIPTIONS,
    ControlScore,
    Fitted,
    GroupedTargets,
    Kind,
    ProbeScore,
    Problem,
)
from probes.result import measure_of
from probes.targets import TargetValues
from tests.cases import cases

N = 6


def score(level, spread=0.0, n=N):
    """R2 of ``level``, whose losses lie apart by that share of their mean."""
    wobble = np.resize([1.0, -1.0], n) * spread
    losses = 8 * (1 - level) * (1 + wobble)
    return ProbeScore.of(losses, np.full(n, 8.0))


def target(inputs=(), types=None, mask=None, implied_by=(), key="count"):
    values = np.arange(4.0 * N).reshape(N, 4, 1)
    options = {"mask": mask, "inputs": inputs, "types": types, "implied_by": implied_by}
    words = key.partition(":")[0].replace("_", " ")
    return TargetValues(key, values, ("count",), **options, noun=f"the {words}")


def problem(targets, levels):
    """A problem whose kind of probe gives these scores in turn, and what it was given."""
    calls, levels = [], iter(levels)

    def fit(x, targets, folds, groups):
        calls.append((x, targets, folds, groups))
        return [Fitted(score(next(levels), n=len(x)), dict) for _ in targets]

    sample = GroupedTargets(targets, np.arange(len(targets[0].values)), 5)
    return Problem.of(sample, Kind("recorder", False, fit)), calls


def random_target(control, decoded, groups, seed):
    """The target that a control decodes in place of another."""
    kind = Kind("recorder", False, lambda *fitted: [])
    problem_made = Problem.of(GroupedTargets([decoded], groups, seed), kind)
    return problem_made.random_targets[0, control]


@pytest.mark.parametrize(
    ("seed", "groups", "order"),
    [
        (0, [0, 1, 2, 3], [3, 2, 0, 1]),
        (1, [0, 1, 2, 3], [2, 0, 3, 1]),
        (0, [0, 0, 1, 1], [2, 3, 0, 1]),
    ],
)
def test_each_episode_gets_the_target_of_an_episode_of_another_group(seed, groups, order):
    """Two seeds and two groups, as they were drawn when results were first kept."""
    values = np.arange(4.0)[:, None, None]
    decoded = TargetValues("count", values, ("count",), mask=values > 1)
    shuffled = random_target("shuffled", decoded, np.array(groups), seed)
    assert shuffled.values.ravel().tolist() == order
    assert np.array_equal(shuffled.mask, shuffled.values > 1)


@pytest.mark.parametrize(("seed", "kinds"), [(0, [7, 0, 2]), (1, [5, 3, 7])])
def test_every_kind_of_round_gets_the_values_of_one_round(seed, kinds):
    values = np.arange(16.0).reshape(2, 4, 2)
    types = np.array([[0, 1, 2, 0], [2, 2, 1, 0]])
    decoded = TargetValues("count", values, ("one", "two"), types=types)
    task = random_target("control_task", decoded, np.arange(2), seed).values
    values_of_kinds = values.reshape(8, 2)[kinds]
    assert np.array_equal(task, values_of_kinds[types])


def test_each_control_is_fitted_to_what_it_says():
    """Inputs, targets and masks reach the fit, control by control; of several forms and copies the best counts."""
    rng = np.random.default_rng(0)
    x, *blanks = rng.normal(size=(3, N, 4, 2))
    forms = tuple(rng.normal(size=(N, 4, 1)) for _ in range(3))
    kinds = np.resize([0, 1, 1, 0, 1], (N, 4))
    first_target, two = (
        target(forms, kinds, mask=rng.random((N, 4, 1)) < 0.5),
        target(forms, key="other"),
    )
    two = replace(two, values=-two.values)
    levels = [
        0.1,
        0.2,
        0.3,
        0.7,
        0.6,
        0.5,
        0.7,
        0.4,
    ]  # the round index and three forms, of two targets
    levels += [
        0.9,
        0.8,
        0.15,
        0.25,
        0.35,
        0.65,
        0.45,
        0.55,
        0.75,
    ]  # both, both shuffled, a control task; two copies
    problem_made, calls = problem([first_target, two], levels)
    problem_made = problem_made.with_baselines()
    second_sample = GroupedTargets([first_target, two], np.arange(N), seed=7)
    (own_fit, first), (other_fit, second) = problem_made.fit(
        x, [(blanks[0], problem_made.sample), (blanks[1], second_sample)]
    )
    assert (own_fit.score.estimate, other_fit.score.estimate) == pytest.approx((0.9, 0.8))
    scores = [
        {name: round(control.score.estimate, 6) for name, control in fit.items()}
        for fit in (first, second)
    ]
    assert scores[0] == {
        "shuffled": 0.15,
        "untrained": 0.65,
        "inputs": 0.7,
        "round": 0.1,
        "control_task": 0.35,
    }
    assert scores[1] == {"shuffled": 0.25, "untrained": 0.75, "inputs": 0.7, "round": 0.2}
    assert [fit for fit, *_ in calls[1:4]] == [pytest.approx(form) for form in forms]
    round_index = calls[0][0]
    np.testing.assert_array_equal(round_index, np.broadcast_to(np.eye(4), (N, 4, 4)))
    parts = calls[4][1]
    controls = [(0, "shuffled"), (1, "shuffled"), (0, "control_task")]
    of_controls = [problem_made.random_targets[key] for key in controls]
    for part, decoded in zip(parts, [first_target, two, *of_controls], strict=True):
        np.testing.assert_array_equal(part.values, decoded.values)
        np.testing.assert_array_equal(part.mask, decoded.mask)
    np.testing.assert_array_equal(parts[3].values, -parts[2].values)
    assert parts[3].mask is None
    assert parts[4].mask is first_target.mask
    for (fitted_inputs, targets, folds, _), blank in zip(calls[5:], blanks, strict=True):
        np.testing.assert_array_equal(fitted_inputs, blank)
        assert [target_fitted.key for target_fitted in targets] == ["count", "other"]
        assert sorted(folds.tolist()) == [
            0,
            0,
            1,
            2,
            3,
            4,
        ]


def test_controls_that_a_target_has_nothing_for_are_left_out_and_what_holds_it_does_not_count():
    problem_made, _ = problem([target(implied_by=("round",))], [0.1, 0.75, 0.2])
    ((_, controls),) = problem_made.with_baselines().fit(np.zeros((N, 4, 2)))
    assert list(controls) == ["shuffled", "round"]
    assert [control.counts for control in controls.values()] == [True, False]
    assert controls["shuffled"].difference.estimate == pytest.approx(0.55)
    assert str(controls["round"]).endswith("(holds the target by construction)")
    assert "holds" not in str(controls["shuffled"])


def test_a_control_of_other_episodes_has_a_difference_without_an_interval():
    own_score = score(0.9, 0.1)
    unpaired = own_score.minus(score(0.4, 0.1, n=10))
    paired = own_score.minus(score(0.4, -0.1))
    assert (unpaired.estimate, paired.estimate) == pytest.approx((0.5, 0.5))
    assert np.isnan(unpaired.low)
    assert paired.low < 0.5 < paired.high
    assert own_score.skill == Interval(own_score.estimate, own_score.low, own_score.high)
    assert own_score.low < 0.9 < own_score.high


def test_of_several_forms_the_first_with_the_highest_estimate_is_kept():
    scores = [score(0.5, 0.3), score(0.5), score(0.6, 0.9)]
    for n_forms, best_form in ((1, 0), (2, 0), (3, 2)):
        fits = iter([score(0.1), *scores[:n_forms]])
        kind = Kind("recorder", False, lambda *fitted: [Fitted(next(fits), dict)])  # noqa: B023
        sample = GroupedTargets([target((np.zeros((N, 4, 1)),) * n_forms)], np.arange(N), seed=0)
        baselines = Problem.of(sample, kind).with_baselines().baselines
        assert baselines[0, "inputs"] is scores[best_form]


@pytest.mark.parametrize("of_classes", [True, False])
def test_rounds_that_did_not_take_place_are_neither_fitted_nor_predicted(of_classes):
    """Targets that lack the same rounds are fitted together; only a kind of numbers gets classes as indicators."""
    calls = []
    x = np.arange(N * 8.0).reshape(N, 4, 2)
    gone = np.zeros((2, N, 4), bool)
    gone[0, 0, 3] = gone[1, 1:3, 2:] = True
    labels = np.arange(N * 4).reshape(N, 4, 1) % 3
    classes = replace(target(), values=labels, kind="class")

    def fit(x, targets, folds, groups):
        calls.append((len(x), [fitted_target.kind for fitted_target in targets], groups.tolist()))
        return [Fitted(score(0.5), lambda: {"predictions": x}) for _ in targets]

    kind, lacking = Kind("recorder", of_classes, fit), (0, 1, 0)
    sample = GroupedTargets([replace(classes, missing=gone[i]) for i in lacking], np.arange(N), 5)
    shown = "class" if of_classes else "real"
    targets_of_problem = Problem.of(sample, kind).sample.targets
    assert [fitted_target.kind for fitted_target in targets_of_problem] == [shown] * 3
    for fitted, i in zip(sample.fit(kind, x), lacking, strict=True):
        expected = np.where(gone[i][..., None], np.nan, x)
        np.testing.assert_array_equal(fitted.details()["predictions"], expected)
    counted = []
    for is_gone in gone:
        n_rounds = (~is_gone).sum(1)
        counted.append(np.repeat(np.arange(N), n_rounds).tolist())
    assert calls == [(23, [shown] * 2, counted[0]), (20, [shown], counted[1])]


EVERY = {"shuffled": 0.0, "untrained": 0.2, "inputs": 0.1, "round": 0.1}


def judged(
    level,
    spread=0.0,
    implied_by=(),
    key="count",
    site="latents",
    without=(),
    n_features=0,
    **changes,
):
    """The measure of a probe of ``level`` beside the controls of EVERY, but for those changed or left out."""
    own_score = score(level, spread)
    levels = {
        name: score(value) for name, value in {**EVERY, **changes}.items() if name not in without
    }
    controls = {
        name: ControlScore(name, value, own_score.minus(value), name not in implied_by)
        for name, value in levels.items()
    }
    return measure_of(
        target(implied_by=implied_by, key=key), site, own_score, controls, n_features=n_features
    )


@pytest.mark.parametrize(
    ("level", "changes", "word", "reason"),
    [
        (0.9, {}, "yes", ""),
        (
            0.9,
            {"untrained": 0.8},
            "undecided",
            "an untrained copy comes too near (less than 3 times its odds)",
        ),
        (
            0.9,
            {"inputs": 0.8},
            "undecided",
            "a probe of the round's inputs comes too near (less than 3 times its odds)",
        ),
        (
            0.9,
            {"round": 0.8},
            "undecided",
            "a probe of the round index comes too near (less than 3 times its odds)",
        ),
        (
            0.9,
            {"shuffled": 0.8},
            "undecided",
            "the target of other episodes comes too near (less than 3 times its odds)",
        ),
        (0.05, {"untrained": 0.8}, "no", ""),
        (0.101, {"untrained": 0, "inputs": 0, "round": 0}, "yes", ""),
        (0.099, {"untrained": 0, "inputs": 0, "round": 0}, "no", ""),
    ],
)
def test_a_probe_holds_what_is_a_tenth_above_nothing_and_clear_of_every_control(
    level, changes, word, reason
):
    verdict = judged(level, **changes)
    assert (verdict.verdict, verdict.reason) == (word, reason)
    assert verdict.threshold == 0.1


def test_a_control_that_holds_the_target_is_shown_and_does_not_count():
    verdict = judged(0.9, inputs=0.95, implied_by=("inputs",))
    assert verdict.verdict == "yes"
    assert not verdict.controls[DESCRIPTIONS["inputs"]].counts


def test_without_a_control_that_counts_nothing_is_held():
    """The reason says how to run it; a target that is an input needs no inputs control; a "no" stands without them."""
    bare = judged(0.9, without=("untrained", "inputs"))
    assert bare.verdict == "undecided"
    assert bare.reason.startswith("a control was not run: no untrained model")
    inputs = judged(0.9, without=("inputs",))
    assert inputs.verdict == "undecided"
    assert inputs.reason.endswith("give episodes= or inputs=")
    assert judged(0.9, without=("inputs",), implied_by=("inputs",)).verdict == "yes"
    assert judged(0.0, without=("untrained", "inputs")).verdict == "no"


def test_too_few_episodes_deny_nothing_and_the_reason_says_how_many_would_do():
    """Losses apart by .08 of their mean would show a skill of .15 from 6 episodes: (.15 / .1)^2 as many would do."""
    shown = score(0.0, 0.08).detectable
    few = judged(-0.5, 0.08)
    assert 0.1 < shown < 0.2
    assert few.number.high < 0.1
    assert few.verdict == "undecided"
    n_that_would_do = int(np.ceil(6 * (shown / 0.1) ** 2))
    assert few.reason == f"too few episodes: about {n_that_would_do} would do"
    assert judged(-0.5, 0.01).verdict == "no"
    assert judged(0.9, 0.08).verdict == "yes"
    leaning = judged(0.0, n_features=16)
    assert leaning.verdict == "undecided"
    assert "about 32 would do, two for each feature" in leaning.reason
    assert judged(0.9, n_features=16).verdict == "yes"


@pytest.mark.parametrize(
    ("key", "site", "claim", "phrase"),
    [
        *cases(__file__, "test_a_claim_names_the_site_and_the_target"),
        (
            "td_error",
            None,
            "A linear probe reads the td error from the activations",
            "lets a linear probe read the td error",
        ),
    ],
)
def test_a_claim_names_the_site_and_the_target(key, site, claim, phrase):
    verdict = judged(0.9, key=key, site=site)
    assert (verdict.key, verdict.claim, verdict.phrase) == (key, claim, phrase)
    assert judged(0.0, key=key, site=site).phrase == phrase.replace("lets a", "lets no", 1)
