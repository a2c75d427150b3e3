"""Parameters by participant: planted rates are covered, and each row is that of its participant alone."""

from dataclasses import replace

import numpy as np
import pytest

from circuits.compare.participants import by_participant
from interp.errors import InputError
from interp.tasks import bandit
from interp.tasks.bandit.algorithms import rescorla_wagner

RATES = np.linspace(0.1, 0.9, 12)
FAMILY = bandit.TASK.rivals()["rescorla_wagner"]


@pytest.fixture(scope="module")
def played():
    """Twelve participants with rates of their own, of two blocks each, soft choosers."""
    made = [bandit.sample(2, 100, 2, "reversal", i, rescorla_wagner(rate, 4.0)) for i, rate in enumerate(RATES)]
    choices, rewards = (np.concatenate([getattr(one, name) for one in made]) for name in ("choices", "rewards"))
    return bandit.BanditEpisodes(choices, rewards, participants=[f"p{i // 2:02}" for i in range(24)])


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
    with pytest.raises(InputError, match=r"choices must be \[episode, round\] = \(24, 100\)"):
        by_participant(FAMILY, played, played.choices[:, :5])
    with pytest.raises(InputError, match="has 0 parameters; participants are fitted by 1 to 3"):
        by_participant(replace(FAMILY, searched=()), played, played.choices)
