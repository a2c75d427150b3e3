"""Which families explain choices: the set, its verdict and what decides it, of players whose algorithm is known."""

from dataclasses import replace

import numpy as np
import pytest

from interp.choices.explain import BesideMachine, ChoiceExplanation, explain_choices
from interp.choices.fitting import predictor
from interp.choices.link import Link
from interp.choices.predictive import PredictiveCheck, Statistic
from interp.choices.scoring import FamilyScore
from interp.stats.intervals import NO_NUMBER, Interval
from interp.tasks import bandit
from interp.tasks.bandit.algorithms import choice_kernel, fixed_bias, rescorla_wagner
from interp.tasks.experts import sample
from interp.tasks.experts.players import player_families
from tests.refusals import refuses

EPISODES = sample(10, 60, 4, regime="flat", seed=7)
EXPERTS = {family.key: family for family in player_families(4)}
ARMS = bandit.TASK.rivals()
MORE = Interval(0.1, 0.05, 0.2)
LESS = Interval(-0.1, -0.2, -0.05)
PERHAPS = Interval(0.0, -0.1, 0.1)
PASSES = PredictiveCheck({"agreement": Statistic(0.8, 0.8, 0.02, 400)})
FAILS = PredictiveCheck({"win-stay": Statistic(0.2, 0.8, 0.02, 400)})


def choose_likeliest(algorithm, departs=0.0):
    """Say what an algorithm holds likeliest, but for a share of the rounds."""
    p = predictor(algorithm)(EPISODES)[..., 1]
    likeliest = (p > 0.5).astype(float)
    lapses = np.random.default_rng(0).random(likeliest.shape) < departs
    return np.where(lapses, 1 - likeliest, likeliest)


def explanation(p_values, checks=None):
    """Families a, b and guess, which lose 1, 1.5 and 4 nats in each of four units of ten choices."""
    losses = {"a": 1.0, "b": 1.5, "guess": 4.0}
    blank = np.zeros((1, 40))
    scores = {}
    for key in losses:
        scores[key] = FamilyScore(
            key=key,
            name=key.title(),
            memoryless=key == "guess",
            parameters={"rate": 0.25} if key == "a" else {},
            link=Link(0.0, 1.0, np.array([0.5, 0.5])),
            intervals={},
            at_bound=(),
            nats=0.1,
            fitted=np.full((1, 40, 2), 0.5),
            losses=blank,
            prefers=np.zeros((1, 40), int),
        )
    units = np.array([[1.0, 1.5, 4.0], [1.0, 1.5, 4.0], [1.0, 1.3, 4.0], [1.0, 1.7, 4.0]])
    return ChoiceExplanation(
        scores=scores,
        units=units,
        p_values=dict(zip(scores, p_values, strict=True)),
        checks=checks or {"a": PASSES},
        n_choices=40,
        agreement=0.8,
    )


@pytest.mark.parametrize(
    ("p_values", "checks", "verdict", "answer"),
    [
        ((1.0, 0.01, 0.01), {"a": PASSES}, "named", "A"),
        ((1.0, 0.06, 0.01), {"a": PASSES, "b": PASSES}, "several", "A or B"),
        ((1.0, 0.3, 0.2), {"a": PASSES, "guess": FAILS}, "no memory", "no memory shows"),
        ((1.0, 0.3, 0.01), {"a": FAILS, "b": PASSES}, "several", "A or B"),
        ((1.0, 0.3, 0.2), {"a": FAILS, "b": FAILS}, "none", "none of these; closest A"),
    ],
    ids=["one", "two", "memoryless in the set", "one of two fails", "all fail"],
)
def test_the_answer_is_the_set_and_none_where_all_of_it_fails(p_values, checks, verdict, answer):
    explained = explanation(p_values, checks)
    assert explained.verdict == verdict
    assert explained.answer == answer
    assert explained.family == ("a" if verdict == "named" else None)


def test_a_family_is_behind_by_the_paired_difference_and_its_standard_error():
    """b loses .5, .5, .3 and .7 nats more in four units of ten choices: .05 +- (.16330 / 2) / 10 a choice."""
    explained = explanation((1.0, 0.3, 0.01))
    row = explained.to_frame().set_index("family").loc["b"]
    assert row["behind"] == pytest.approx(0.05)
    standard_error = row["standard_error"]
    assert standard_error == pytest.approx(np.std([5, 5, 3, 7], ddof=1) / 2 / 100)
    half_width = row["behind_high"] - row["behind"]
    assert half_width == pytest.approx(3.18245 * standard_error, rel=1e-5)
    assert explained.nats.estimate == pytest.approx(0.1)
    assert explained.over_floor.estimate == pytest.approx(0.3)
    assert explained.measure.verdict == "yes"


def test_a_clear_player_among_experts_has_its_family_in_a_set_without_guesses(few_steps):
    """It follows the leader, but for one round in twenty."""
    keys = ("follow_the_leader", "follow_previous_winners", "majority_vote", "one_expert")
    candidates = [EXPERTS[key] for key in keys]
    choices = choose_likeliest(EXPERTS["follow_the_leader"].make(), departs=0.05)
    explained = explain_choices(EPISODES, choices, families=candidates)
    assert explained.family == "follow_the_leader"
    assert explained.sentence.startswith("These choices are predicted best by ")
    assert explained.agreement > 0.85


@pytest.mark.long
def test_a_learner_is_told_from_a_habit_and_a_coin_has_no_memory():
    keys = ("rescorla_wagner", "choice_kernel", "fixed_bias")
    candidates = [ARMS[key] for key in keys]
    learner = bandit.sample(12, 60, 2, "reversal", seed=3, player=rescorla_wagner(0.3, 4.0))
    explained = explain_choices(learner, learner.choices, families=candidates)
    assert explained.family == "rescorla_wagner"
    for name, truth in (("rate", 0.3), ("inverse_temperature", 4.0)):
        interval = explained.intervals[name]
        assert interval.low < truth < interval.high
    habit = bandit.sample(12, 60, 2, "reversal", seed=3, player=choice_kernel(0.3, 3.0))
    assert explain_choices(habit, habit.choices, families=candidates).family == "choice_kernel"
    coin = bandit.sample(12, 60, 2, "reversal", seed=3, player=fixed_bias(0.5))
    noise = explain_choices(coin, coin.choices, families=candidates)
    assert noise.verdict == "no memory"
    assert noise.sentence.startswith("No memory shows in these choices: ")
    assert "no family predicts them significantly better than" in noise.sentence


def test_who_alternates_is_explained_by_no_guess():
    turns = np.tile(np.arange(60) % 2, (10, 1))
    paid = np.arange(60) % 3 == 0
    played = bandit.BanditEpisodes(turns, np.ones((10, 60)) * paid, 2)
    explained = explain_choices(played, turns, families=[ARMS["fixed_bias"]])
    assert explained.verdict == "none"
    assert "win-stay, lose-shift" in explained.sentence


@pytest.mark.parametrize(
    ("floor", "untrained", "left", "verdict"),
    [
        (MORE, MORE, PERHAPS, "undecided"),
        (MORE, MORE, LESS, "yes"),
        (LESS, MORE, LESS, "no"),
        (MORE, LESS, LESS, "no"),
        (MORE, NO_NUMBER, LESS, "undecided"),
        (MORE, MORE, MORE, "no"),
        (PERHAPS, MORE, LESS, "undecided"),
    ],
)
def test_a_player_chooses_as_a_machine_that_beats_guesses_and_its_untrained_copy(
    floor, untrained, left, verdict
):
    measure = BesideMachine(floor, untrained, left, PASSES).measure
    assert measure.verdict == verdict
    if untrained is NO_NUMBER:
        assert measure.reason.startswith("a control was not run: give")


@pytest.fixture(scope="module")
def bayes():
    """Predictions of Bayes, and of a copy that says .5 and a little of what the first expert says."""
    trained = predictor(EXPERTS["bayes"].make(low=0.0, room=1.0))(EPISODES)
    first = EPISODES.advice[..., 0]
    one_hot = np.stack([1 - first, first], -1)
    untrained = np.full_like(trained, 0.45) + 0.1 * one_hot
    return trained, untrained


def test_a_player_is_held_against_a_machine(bayes):
    """One that chooses what the machine holds likeliest is as it is, one that follows the vote is not."""
    candidates = [EXPERTS["majority_vote"], EXPERTS["follow_the_leader"]]
    likeliest = (bayes[0][..., 1] > 0.5).astype(float)
    explained = explain_choices(EPISODES, likeliest, families=candidates, beside={"Bayes": bayes})
    assert explained.beside["Bayes"].measure.verdict == "yes"
    vote = choose_likeliest(EXPERTS["majority_vote"].make())
    explained = explain_choices(EPISODES, vote, families=candidates, beside={"Bayes": bayes})
    assert explained.beside["Bayes"].measure.verdict == "no"


@pytest.mark.parametrize(
    ("pair", "sentence"),
    [
        ("doubled", "probabilities that sum to 1"),
        ("missing", "'odd' has no predictions"),
        ("of three outcomes", "must be of the task's 2 outcomes, got 3"),
    ],
)
def test_predictions_that_are_none_are_refused(bayes, pair, sentence):
    thirds = np.full((*bayes[0].shape[:2], 3), 1 / 3)
    pairs = {
        "doubled": (2 * bayes[0], None),
        "missing": (None, bayes[1]),
        "of three outcomes": (thirds, None),
    }
    predictions = pairs[pair]
    choices = choose_likeliest(EXPERTS["majority_vote"].make())
    candidates = [EXPERTS["majority_vote"]]
    refuses(
        sentence,
        explain_choices,
        EPISODES,
        choices,
        families=candidates,
        beside={"odd": predictions},
    )


ONES = np.ones((10, 60))
FEW = np.where(np.arange(60) < 3, ONES, np.nan)


@pytest.mark.parametrize(
    ("choices", "sentence"),
    [
        (ONES[:, :5], "choices must be"),
        (ONES + 0.5, "choices must be outcomes"),
        (ONES * np.nan, "choices must be outcomes"),
        (ONES + 3, "choices must be outcomes 0 to 1, got 4"),
        (FEW, "a fit needs at least 32 choices, got 30"),
    ],
    ids=["shape", "halves", "none", "too many", "few"],
)
def test_choices_that_cannot_be_fitted_are_refused(choices, sentence):
    refuses(sentence, explain_choices, EPISODES, choices, families=[EXPERTS["majority_vote"]])


def test_choices_that_were_not_offered_are_refused():
    """They are not read as choices of the first option that was offered."""
    played = bandit.sample(8, 20, 3, seed=0)
    offers = np.stack([played.choices, (played.choices + 1) % 3], -1)
    episodes = replace(played, offers=offers)
    others = (played.choices + 2) % 3
    refuses(
        "choices must be among the offers of their round",
        explain_choices,
        episodes,
        others,
        families=[ARMS["fixed_bias"]],
    )
