"""Players one by one (planted rates are covered, a row is that of its participant alone), recovery, phase portraits."""

from dataclasses import replace

import numpy as np
import pytest

from interp.choices.explain import explain_choices
from interp.choices.players import draw_people, explain_each, fit_participants
from interp.choices.portrait import phase_portrait
from interp.choices.recovery import recovery, recovery_of_design
from interp.machines.learners import learner
from interp.tasks import bandit
from interp.tasks.bandit.algorithms import choice_kernel, families, fixed_bias, rescorla_wagner
from tests.refusals import refused, refuses

RATES = np.linspace(0.1, 0.9, 12)
FAMILIES = bandit.TASK.rivals()
FAMILY = FAMILIES["rescorla_wagner"]
ASKED = [FAMILY, FAMILIES["choice_kernel"], FAMILIES["fixed_bias"]]


@pytest.fixture(scope="module")
def played():
    """Twelve participants with rates of their own, of two blocks each, soft choosers."""
    choices, rewards = [], []
    for number, rate in enumerate(RATES):
        blocks = bandit.sample(2, 100, 2, "reversal", number, rescorla_wagner(rate, 4.0))
        choices.append(blocks.choices)
        rewards.append(blocks.rewards)
    names = [f"p{i // 2:02}" for i in range(24)]
    return bandit.BanditEpisodes(
        np.concatenate(choices), np.concatenate(rewards), participants=names
    )


@pytest.mark.long
def test_planted_rates_are_covered_and_ordered(played):
    fits = fit_participants(FAMILY, played, played.choices)
    covered = (fits["rate_low"] <= RATES) & (fits["rate_high"] >= RATES)
    warm = (fits["inverse_temperature_low"] <= 4) & (fits["inverse_temperature_high"] >= 4)
    assert covered.sum() >= 10
    assert warm.sum() >= 10
    assert np.corrcoef(fits["rate"], RATES)[0, 1] > 0.8
    assert (fits["rounds"] == 200).all()
    assert fits["participant"].tolist()[:2] == ["p00", "p01"]


@pytest.mark.long
def test_a_row_is_that_of_its_participant_alone_and_missing_rounds_count_nowhere(played):
    missing = np.zeros(played.choices.shape, bool)
    missing[1::2, 50:] = True
    part = replace(played, missing=missing).select(slice(0, 4))
    rows = fit_participants(FAMILY, part, part.choices)
    swapped = part.select([2, 3, 0, 1])
    again = fit_participants(FAMILY, swapped, swapped.choices)
    assert rows["rounds"].tolist() == [150, 150]
    assert rows.equals(again)
    turned = np.where(part.missing, 1 - part.choices, part.choices)
    other_choices = replace(part, choices=turned)
    assert fit_participants(FAMILY, other_choices, other_choices.choices).equals(rows)


def test_what_cannot_be_fitted_to_one_is_refused(played):
    wrong = played.choices[:, :5]
    refuses(
        r"choices must be \[episode, round\] = \(24, 100\)", fit_participants, FAMILY, played, wrong
    )
    refuses(
        "is fitted to one player at a time",
        fit_participants,
        replace(FAMILY, vectorised=False),
        played,
        played.choices,
    )
    nobody = replace(played, participants=None)
    refuses("name no participants", explain_each, nobody, played.choices)
    few = played.choices.astype(float)
    few[:2] = np.nan
    few[0, :3] = 0
    refuses("participant p00 made 3; leave it out", explain_each, played, few)


@pytest.mark.long
def test_an_episode_without_a_choice_is_no_unit():
    """It would move the folds: a participant's explanation is that of its episodes with choices."""
    played = bandit.sample(10, 20, 2, "reversal", seed=0)
    episodes = replace(played, participants=["ann"] * 10)
    choices = played.choices.astype(float)
    choices[1::2] = np.nan
    candidates = [FAMILIES["fixed_bias"], FAMILIES["win_stay"]]
    with_empty = explain_each(episodes, choices, families=candidates).found["ann"]
    alone = explain_choices(episodes, choices, families=candidates)
    assert with_empty.nats == alone.nats
    assert with_empty.p_values == alone.p_values


def test_longer_episodes_of_another_participant_move_no_fold():
    """Ann's two episodes are padded to the length of Bob's; her explanation is that of hers alone."""
    of_ann = bandit.sample(2, 60, 2, "reversal", 0, rescorla_wagner(0.3, 4.0))
    of_bob = bandit.sample(1, 90, 2, "reversal", 1, rescorla_wagner(0.3, 4.0))
    every_choice = [*of_ann.choices.tolist(), *of_bob.choices.tolist()]
    every_reward = [*of_ann.rewards.tolist(), *of_bob.rewards.tolist()]
    pair = bandit.BanditEpisodes.of(
        choices=every_choice, rewards=every_reward, participants=["ann", "ann", "bob"]
    )
    choices = np.where(pair.counted, pair.choices, np.nan)
    candidates = [FAMILY, FAMILIES["fixed_bias"]]
    with_bob = explain_each(pair, choices, families=candidates).found["ann"]
    alone = explain_choices(of_ann, of_ann.choices, families=candidates)
    assert with_bob.nats.estimate == pytest.approx(alone.nats.estimate)
    assert with_bob.p_values == pytest.approx(alone.p_values)


def test_a_group_counts_how_many_participants_have_a_family_in_their_set():
    """Four learners, two habits and two who toss a coin."""
    learners = [rescorla_wagner(0.5, 6.0)] * 4
    habits = [choice_kernel(0.3, 4.0)] * 2
    coins = [fixed_bias(0.5)] * 2
    explanations = recovery(learners + habits + coins, families=ASKED, n_rounds=80).each
    verdicts = [explained.verdict for explained in explanations.found.values()]
    group = explanations.group().set_index("family")
    assert verdicts[:4] == ["named"] * 4
    assert verdicts[6:] == ["no memory"] * 2
    assert group.loc["rescorla_wagner", "alone"] == 4
    assert group.loc["rescorla_wagner", "in_set"] >= 4
    assert explanations.sentence.startswith("Of 8 participants the set holds ")
    assert explanations.plot() is not None


@pytest.fixture(scope="module")
def episodes():
    return bandit.sample(30, 25, 2, "reversal", seed=0)


def test_a_habit_moves_on_two_lines_and_rescorla_wagner_on_none(episodes):
    """The logit of a habit is its whole state: it moves by rate (+-beta - logit), whatever was paid."""
    sources = {"habit": choice_kernel(0.3, 2.0), "RW": rescorla_wagner(0.3, 2.0)}
    portrait = phase_portrait(sources, episodes, n_bins=5)
    frame = portrait.to_frame()
    habit = frame[frame["source"] == "habit"]
    sign = np.where(habit["choice"] == "arm_1", 1.0, -1.0)
    moves = 0.3 * (2.0 * sign - habit["logit"])
    np.testing.assert_allclose(habit["change"], moves, atol=1e-9)
    assert habit["spread"].max() < 1e-9
    learner_bins = frame[frame["source"] == "RW"]
    assert learner_bins["spread"].max() > 0.05
    assert set(frame["reward"]) == {"0", "1"}
    changes_of_source = frame.groupby("source")["n"].sum()
    assert (changes_of_source == 30 * 24).all()
    of_arm = learner_bins[learner_bins["choice"] == "arm_1"].set_index("reward")
    assert (of_arm.loc["1", "change"] >= 0).all()
    assert (of_arm.loc["0", "change"] <= 0).all()
    sentence = "After a choice of arm_1 that paid 1 or 0, its logit moves by: habit +"
    assert repr(portrait).startswith(sentence)
    assert len(portrait.plot().axes) == 2


@pytest.mark.parametrize("name", ["algorithm", "function", "machine"])
def test_what_is_missing_moves_nothing_and_many_rewards_are_halved(episodes, name):
    sources = {
        "algorithm": rescorla_wagner(),
        "function": lambda played: np.full((30, 25, 2), 0.5),
        "machine": learner("gru", "bandit", width=2),
    }
    rewards = np.random.default_rng(0).normal(size=(30, 25))
    missing = np.zeros((30, 25), bool)
    missing[:, 10:] = True
    halved = bandit.BanditEpisodes(episodes.choices, rewards, missing=missing)
    changed = np.where(missing, 99, rewards)
    otherwise_missing = bandit.BanditEpisodes(episodes.choices, changed, missing=missing)
    bins = phase_portrait({"one": sources[name]}, halved).to_frame()
    assert bins.equals(phase_portrait({"one": sources[name]}, otherwise_missing).to_frame())
    assert bins["n"].sum() == 30 * 9
    assert {word.split()[0] for word in bins["reward"]} == {"to", "above"}


test_what_has_no_portrait_is_refused = refused(
    ({}, {}, "no source to draw"),
    ({"RW": rescorla_wagner()}, {"arm": 2}, "arm must be an integer >= 0 and <= 1, got 2"),
    ({"x": 3}, {}, "expected a model, an Algorithm or a function of episodes, got int"),
    by=lambda sources, options: phase_portrait(sources, bandit.sample(2, 5, 2, seed=0), **options),
)


@pytest.fixture(scope="module")
def mixture():
    """Three learners, of one a drawn rate, and a habit: 160 choices each."""
    players = (
        rescorla_wagner(0.2, 6.0),
        rescorla_wagner(0.8, 6.0),
        FAMILY,
        choice_kernel(0.3, 3.0),
    )
    bounds = {"rate": (0.4, 0.6), "inverse_temperature": (5.0, 7.0)}
    return recovery(players, n_players=1, within=bounds, families=ASKED[:2], n_rounds=60)


@pytest.mark.long
def test_a_planted_mixture_comes_back(mixture):
    assert mixture.confusion().to_dict("index") == {
        "rescorla_wagner": {"rescorla_wagner": 3, "choice_kernel": 0},
        "choice_kernel": {"rescorla_wagner": 0, "choice_kernel": 1},
    }
    assert mixture.sets().loc["rescorla_wagner", "rescorla_wagner"] == 1
    assert mixture.sentence.startswith(
        "Of 4 simulated players, 4 have their own family in the set, 4 are closest to it; "
    )


def test_its_parameters_come_back(mixture):
    table = mixture.to_frame()
    errors = mixture.errors().set_index(["family", "parameter"])
    assert table["true_rate"].iloc[:2].tolist() == [0.2, 0.8]
    assert 0.4 < table["true_rate"].iloc[2] < 0.6
    assert table["rate_low"][1] > table["rate_high"][0]
    assert errors.loc[("rescorla_wagner", "rate"), "r"] > 0.9
    assert np.isnan(errors.loc[("choice_kernel", "rate"), "r"]), "one player has no correlation"
    assert abs(errors.loc[("rescorla_wagner", "rate"), "bias"]) < 0.2


def test_of_a_large_cohort_participants_are_drawn():
    """200 of 300 participants make the 20,000 choices that are fitted as one; of three, all are."""
    names = [f"p{i:03}" for i in range(300)]
    choices = np.random.default_rng(0).integers(2, size=(300, 100))
    cohort = bandit.BanditEpisodes(choices, np.zeros((300, 100)), participants=names)
    rows, sentence = draw_people(cohort, cohort.choices, seed=0)
    assert len(set(rows)) == 200
    assert sentence == "200 of 300 participants, drawn at random, are fitted as one."
    three = cohort.select(np.arange(3))
    rows, sentence = draw_people(three, three.choices, seed=0)
    assert rows.tolist() == [0, 1, 2]
    assert sentence == ""


def test_a_recovery_is_drawn(mixture):
    """One panel of counts and its scale."""
    assert len(mixture.plot().axes) == 2


@pytest.mark.long
def test_recovery_of_a_design_plays_the_families_of_the_set_at_the_fitted_parameters():
    """Two participants of 80 choices: players of as many choices, at what was found."""
    players = bandit.sample(2, 80, 2, "reversal", 5, rescorla_wagner(0.5, 5.0))
    people = replace(players, participants=["a", "b"])
    explained = explain_choices(people, people.choices, families=ASKED)
    recovered = recovery_of_design(explained, people, ASKED, n_players=2)
    learners = [player for player in recovered.truth if player.key == "rescorla_wagner"]
    assert len(learners) == 2
    assert learners[0].parameters == explained.scores["rescorla_wagner"].parameters
    n_choices = [explanation.n_choices for explanation in recovered.each.found.values()]
    assert n_choices == [80] * len(recovered.truth)


test_what_nobody_could_play_is_refused = refused(
    ([], {}, "no player to simulate"),
    (
        families()[:1],
        {"within": {"shifts": (0.1, 0.2)}},
        "unknown parameter that is drawn 'shifts'",
    ),
    (families()[:1], {"n_players": 0}, "n_players must be an integer >= 1, got 0"),
    by=lambda players, options: recovery(list(players), **options),
)
