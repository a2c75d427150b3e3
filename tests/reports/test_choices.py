"""From a table of choices to one page, by the command."""

import json

import pandas as pd
import pytest

from interp.tasks import bandit
from interp.tasks.bandit import algorithms
from tests.shell import invoked


@pytest.fixture
def few(monkeypatch):
    """Three families are enough."""
    known = [
        family
        for family in algorithms.families()
        if family.key in ("rescorla_wagner", "win_stay", "fixed_bias")
    ]
    monkeypatch.setattr(algorithms, "families", lambda: tuple(known))


@pytest.fixture
def table(tmp_path):
    played = bandit.sample(10, 30, 2, "reversal", 1, algorithms.rescorla_wagner(0.6, 6.0))
    rows = [
        (who, t, c, 100 * r)
        for who in range(10)
        for t, (c, r) in enumerate(zip(played.choices[who], played.rewards[who], strict=True))
    ]
    pd.DataFrame(rows, columns=["who", "trial", "choice", "outcome"]).to_csv(
        tmp_path / "people.csv", index=False
    )
    return tmp_path / "people.csv"


def test_a_table_becomes_a_page(table, few, tmp_path):
    ran = invoked(
        "choices",
        table,
        *["--participant", "who", "--quick", "--json", "--out"],
        tmp_path / "pages",
    )
    assert ran.exit_code == 0, ran.output
    told = json.loads(ran.stdout)
    assert told["closest"] == "rescorla_wagner" and abs(told["parameters"]["rate"] - 0.6) < 0.2
    assert told["families"][0]["family"] == "rescorla_wagner" and len(told["files"]) == 1
    page = (tmp_path / "pages" / "people.html").read_text("utf-8")
    for expected in (
        "Participants",
        "Phase portrait",
        "300 of 300, in 10 episodes",
        "--participant=who",
    ):
        assert expected in page, expected


def test_a_column_that_is_not_named_is_asked_for(table, tmp_path):
    ran = invoked("choices", table, "--out", tmp_path)
    assert (
        ran.exit_code == 2 and "participant=NAME, one of who, trial, choice, outcome" in ran.output
    )
