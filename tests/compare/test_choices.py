"""Which algorithm explains choices: players whose algorithm is known, on few instances."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from circuits.compare.choices import AGREES, _lapses, _verdict, explain_choices
from interp.errors import InputError
from interp.statistics import Interval
from interp.tasks.experts import sample
from interp.tasks.experts.players import player_families
from tests.llm.players import SEEN, UNSEEN, Player, choices, is_right, judged

EPISODES = sample(10, 60, 4, regime="flat", seed=7)
OFTEN = Interval(0.9, AGREES + 0.01, 0.95)
MORE, LESS, PERHAPS = Interval(0.1, 0.05, 0.2), Interval(-0.1, -0.2, -0.05), Interval(0.0, -0.1, 0.1)


@pytest.mark.parametrize("name", ["WM .5", "FPW", "ignores 2", "majority"])
def test_players_are_named_rightly_or_none(name: str) -> None:
    """One algorithm, one limit of it, one that misses an expert, one without a memory (which has no name to get)."""
    found = judged(SEEN[name], EPISODES)
    assert is_right(SEEN[name], found) == "right", str(found)
    eta = SEEN[name].eta
    if eta is not None and name == "WM .5":
        assert found.intervals["gain"].low <= eta <= found.intervals["gain"].high
        assert found.nats.estimate < 0.2 * found.floor_nats.estimate and found.telling.low > 0.9


def test_a_player_that_departs_in_one_round_of_five_is_not_named() -> None:
    """Agreement of .8 with an algorithm names it no longer, whatever explains the other rounds."""
    found = judged(UNSEEN["WM .5, one round of five wrong"], EPISODES)
    assert found.verdict in ("none", "undecided") and found.family is None


@pytest.mark.parametrize(
    ("memoryless", "alone", "telling", "lead", "floor", "verdict"),
    [
        (False, True, OFTEN, MORE, MORE, "named"),
        (True, True, OFTEN, MORE, MORE, "none"),
        (False, False, OFTEN, MORE, MORE, "undecided"),
        (False, True, Interval(0.8, 0.7, AGREES - 0.01), MORE, MORE, "none"),
        (False, True, Interval(0.9, AGREES - 0.01, 0.95), MORE, MORE, "undecided"),
        (False, True, OFTEN, PERHAPS, MORE, "undecided"),
        (False, True, OFTEN, LESS, MORE, "none"),
        (False, True, OFTEN, MORE, PERHAPS, "undecided"),
        (False, True, OFTEN, MORE, LESS, "none"),
    ],
)
def test_the_rule(memoryless: bool, alone: bool, telling: Any, lead: Any, floor: Any, verdict: str) -> None:
    assert _verdict(memoryless, alone, telling, lead, floor) == verdict


def test_the_lapse_is_the_share_of_departures_over_chance() -> None:
    """Two outcomes: 30 departures in 100 choices are 60 lapses; none leave half a departure."""
    made = np.r_[np.zeros(30), np.ones(70)][None]
    assert _lapses(made, 2)[0] == pytest.approx(0.6, abs=1e-3)
    assert _lapses(np.ones((1, 98)), 2)[0] == pytest.approx(0.01, abs=1e-3)


def test_hostile_choices_are_told() -> None:
    some = player_families(4)
    said = choices(Player(lambda v, y, now, u: 1), EPISODES)
    for wrong, sentence in (
        (said[:, :5], "choices must be"),
        (said + 0.5, "choices must be outcomes"),
        (said * np.nan, "choices must be outcomes"),
        (said + 3, "choices must be outcomes 0 to 1, got 4"),
        (np.where(np.arange(10)[:, None] < 3, said, np.nan), "at least 4 episodes with choices, got 3"),
    ):
        with pytest.raises(InputError, match=sentence):
            explain_choices(EPISODES, wrong, families=some)
