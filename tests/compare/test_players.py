"""Players one by one (planted rates are covered, a row is that of its participant alone) and their phase portraits."""

from dataclasses import replace

import numpy as np
import pytest

from interp.choices.explain import explain_choices
from interp.choices.players import by_participant, explain_each, phase_portrait, recovery
from interp.machines.learners import learner
from interp.support.errors import InputError
from interp.tasks import bandit
from interp.tasks.bandit.algorithms import choice_kernel, families, fixed_bias, rescorla_wagner
from tests.refusals import refused, refuses

RATES = np.linspace(0.1, 0.9, 12)
FAMILY = bandit.TASK.rivals()["rescorla_wagner"]
BOUNDS = {"rate": (0.1, 0.9), "inverse_temperature": (3.0, 8.0)}


@pytest.fixture(scope="module")
def played():
    """Twelve participants with rates of their own, of two blocks each, soft choosers."""
    made = [
        bandit.sample(2, 100, 2, "reversal", i, rescorla_wagner(rate, 4.0))
        for i, rate in enumerate(RATES)
    ]
    choices, rewards = (
        np.concatenate([getattr(one, name) for one in made]) for name in ("choices", "rewards")
    )
    return bandit.BanditEpisodes(
        choices, rewards, participants=[f"p{i // 2:02}" for i in range(24)]
    )


def test_planted_rates_are_covered_and_ordered(played):
    found = by_participant(FAMILY, played, played.choices)
    covered = (found["rate_low"] <= RATES) & (found["rate_high"] >= RATES)
    warm = (found["inverse_temperature_low"] <= 4) & (found["inverse_temperature_high"] >= 4)
    assert covered.sum() >= 10 and warm.sum() >= 10
    assert np.corrcoef(found["rate"], RATES)[0, 1] > 0.8
    assert (found["rounds"] == 200).all() and found["participant"].tolist()[:2] == ["p00", "p01"]


def test_a_row_is_that_of_its_participant_alone_and_missing_rounds_count_nowhere(played):
    missing = np.zeros(played.choices.shape, bool)
    missing[1::2, 50:] = True
    part = replace(played, missing=missing).select(slice(4, 8))
    both = by_participant(FAMILY, part, part.choices)
    alone = by_participant(FAMILY, part.select([2, 3]), part.choices[2:])
    assert both.iloc[1].equals(alone.iloc[0]) and both["rounds"].tolist() == [150, 150]
    other = replace(part, choices=np.where(part.missing, 1 - part.choices, part.choices))
    assert by_participant(FAMILY, other, other.choices).equals(both)


def test_what_cannot_be_fitted_to_one_is_refused(played):
    refuses(
        r"choices must be \[episode, round\] = \(24, 100\)",
        by_participant,
        FAMILY,
        played,
        played.choices[:, :5],
    )
    with pytest.raises(InputError, match="has 0 parameters; participants are fitted by 1 to 3"):
        by_participant(replace(FAMILY, searched=()), played, played.choices)
    refuses(
        "name no participants", explain_each, replace(played, participants=None), played.choices
    )


@pytest.fixture(scope="module")
def episodes():
    return bandit.sample(30, 25, 2, "reversal", seed=0)


def test_a_habit_moves_on_two_lines_and_rescorla_wagner_on_none(episodes):
    """The logit of a habit is its whole state: it moves by rate (+-beta - logit), whatever was paid."""
    found = phase_portrait(
        {"habit": choice_kernel(0.3, 2.0), "RW": rescorla_wagner(0.3, 2.0)}, episodes, n_bins=5
    )
    frame = found.to_frame()
    habit = frame[frame["source"] == "habit"]
    sign = np.where(habit["choice"] == "arm_1", 1.0, -1.0)
    np.testing.assert_allclose(habit["change"], 0.3 * (2.0 * sign - habit["logit"]), atol=1e-9)
    assert habit["spread"].max() < 1e-9 and frame[frame["source"] == "RW"]["spread"].max() > 0.05
    assert (
        set(frame["reward"]) == {"0", "1"} and (frame.groupby("source")["n"].sum() == 30 * 24).all()
    )
    own = frame[(frame["source"] == "RW") & (frame["choice"] == "arm_1")].set_index("reward")
    assert (own.loc["1", "change"] >= 0).all() and (own.loc["0", "change"] <= 0).all()
    assert repr(found).startswith(
        "After a choice of arm_1 that paid 1 or 0, its logit moves by: habit +"
    )
    assert len(found.plot().axes) == 2


def test_what_is_missing_moves_nothing_and_many_rewards_are_halved(episodes):
    rewards, missing = np.random.default_rng(0).normal(size=(30, 25)), np.zeros((30, 25), bool)
    missing[:, 10:] = True
    made = bandit.BanditEpisodes(episodes.choices, rewards, missing=missing)
    other = bandit.BanditEpisodes(episodes.choices, np.where(missing, 99, rewards), missing=missing)
    machine = learner("gru", "bandit", width=2)
    for source in (rescorla_wagner(), lambda played: np.full((30, 25, 2), 0.5), machine):
        one, same = (phase_portrait({"one": source}, each).to_frame() for each in (made, other))
        assert one.equals(same) and one["n"].sum() == 30 * 9
        assert {word.split()[0] for word in one["reward"]} == {"to", "above"}


test_what_has_no_portrait_is_refused = refused(
    ({}, {}, "no source to draw"),
    ({"RW": rescorla_wagner()}, {"arm": 2}, "arm must be an integer >= 0 and <= 1, got 2"),
    ({"x": 3}, {}, "expected a model, an Algorithm or a function of episodes, got int"),
    by=lambda sources, options: phase_portrait(sources, bandit.sample(2, 5, 2, seed=0), **options),
)


def test_a_soft_chooser_is_named_and_noise_is_not(few_steps: None) -> None:
    """Agreement is no measure of a player: at an inverse temperature of 3 it does the likeliest in 3 rounds of 4."""
    keys = ("rescorla_wagner", "choice_kernel", "fixed_bias")
    asked = [family for family in bandit.TASK.rivals().values() if family.key in keys]
    soft = bandit.sample(30, 60, 2, "reversal", seed=3, player=rescorla_wagner(0.3, 3.0))
    found = explain_choices(soft, soft.choices, families=asked)
    assert found.family == "rescorla_wagner" and found.telling.high < 0.85
    assert found.sentence.startswith("These choices are made by Rescorla-Wagner (rate 0.3")
    for name, truth in (("rate", 0.3), ("inverse_temperature", 3.0)):
        assert found.intervals[name].low < truth < found.intervals[name].high
    link = found.scores["rescorla_wagner"].link
    assert (link.lapse, link.temperature) == (0.0, 1.0), (
        "one temperature, and no lapse where there is none"
    )
    coin = bandit.sample(20, 60, 2, "reversal", seed=3, player=fixed_bias(0.5))
    noise = explain_choices(coin, coin.choices, families=asked)
    assert noise.measure.verdict != "yes" and "These choices are made by" not in noise.sentence


def test_a_planted_mixture_comes_back_with_its_parameters_and_is_drawn(few_steps: None) -> None:
    """Three learners, of one a drawn rate, and a habit: 160 choices each."""
    asked = [bandit.TASK.rivals()[key] for key in ("rescorla_wagner", "choice_kernel")]
    players = (
        rescorla_wagner(0.2, 6.0),
        rescorla_wagner(0.8, 6.0),
        asked[0],
        choice_kernel(0.3, 3.0),
    )
    bounds = {"rate": (0.4, 0.6), "inverse_temperature": (5.0, 7.0)}
    found = recovery(players, n_players=1, within=bounds, families=asked, n_rounds=60)
    assert found.confusion().to_dict("index") == {
        "rescorla_wagner": {"rescorla_wagner": 3, "choice_kernel": 0},
        "choice_kernel": {"rescorla_wagner": 0, "choice_kernel": 1},
    }
    table, rows = found.to_frame(), found.correlations().set_index(["family", "parameter"])
    assert (
        table["true_rate"].iloc[:2].tolist() == [0.2, 0.8]
        and 0.4 < table["true_rate"].iloc[2] < 0.6
    )
    assert table["rate_low"][1] > table["rate_high"][0] and (table["saved_low"] > 0).all()
    assert rows.loc[("rescorla_wagner", "rate"), "r"] > 0.9
    assert "choice_kernel" not in rows.index, "one player has no correlation"
    assert found.sentence.startswith("Of 4 simulated players, 4 are closest to their own family; ")
    pooled = found.each.pooled().set_index(["family", "parameter"])
    assert pooled["participants"].tolist() == [3, 3, 1, 1]
    assert (
        pooled.loc[("rescorla_wagner", "rate"), "spread"] > 0.15
        and "of 4 participants." in found.each.sentence
    )
    assert len(found.plot().axes) == 3 and found.each.plot() is not None


@pytest.mark.slow(reason="forty players of 300 choices, nine families each: some minutes")
def test_twenty_learners_and_twenty_habits_are_told_apart_among_all_families() -> None:
    """Measured: 16 and 17 of 20 are closest to their own family, 4 learners to what extends it, 3 habits to a learner
    that repeats; 7 of 40 are named, none wrongly; learners' rates correlate by .94, temperatures by .75."""
    players = [bandit.TASK.rivals()[key] for key in ("rescorla_wagner", "choice_kernel")]
    found = recovery(players, n_players=20, within=BOUNDS, n_rounds=150)
    own, table = found.confusion(), found.to_frame()
    assert (
        own.loc["rescorla_wagner", "rescorla_wagner"] >= 14
        and own.loc["choice_kernel", "choice_kernel"] >= 14
    )
    assert (
        own.loc["rescorla_wagner", "choice_kernel"]
        == own.loc["choice_kernel", "rescorla_wagner"]
        == 0
    )
    assert not ((table["verdict"] == "yes") & (table["family"] != table["closest"])).any()
    assert (
        found.correlations().set_index(["family", "parameter"])["r"]["rescorla_wagner"].min() > 0.6
    )


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
