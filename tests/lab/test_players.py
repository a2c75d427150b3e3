"""The list of simulated players among arms, and what the page says of them."""

from collections import Counter
from pathlib import Path

import pandas as pd

from lab.players import BIASES, PLAYERS_A_FAMILY, RANGES, TABLE, list_players, rates, table

PAGE = Path(__file__).parents[2] / "docs" / "method" / "choices.md"


def test_there_are_fifteen_players_of_every_family_with_a_memory_and_sixteen_of_noise():
    players = list_players()
    counts = Counter(player.algorithm.key for player in players)
    assert counts == {**dict.fromkeys(RANGES, PLAYERS_A_FAMILY), "fixed_bias": len(BIASES)}
    assert Counter(player.kind for player in players) == {"soft": 64, "hard": 56, "noise": 16}


def test_rates_are_shares_of_players_and_a_name_is_wrong_where_it_is_not_the_players_own():
    """Of four players two are named, one of them wrongly; three of four intervals cover."""
    rows = pd.DataFrame(
        {
            "rounds": 60,
            "kind": "soft",
            "family": ["a", "a", "b", "b"],
            "closest": ["a", "b", "b", "a"],
            "verdict": ["named", "named", "none", "no memory"],
            "in_set": [True, False, True, True],
            "size": [1, 1, 3, 5],
            "covered": [1, 1, 1, 0],
            "asked": 1,
        }
    )
    (row,) = rates(rows).to_dict("records")
    assert row["true family in the set"] == "0.750"
    assert row["none"] == "0.250"
    assert row["no memory"] == "0.250"
    assert row["median size"] == "2"
    assert (row["named"], row["named wrongly"]) == (2, 1)
    assert row["covered"] == "0.750"


def test_the_page_holds_the_measured_rates():
    assert table(TABLE) in PAGE.read_text("utf-8")
