"""Planted nulls are not called represented; planted effects are, where there are episodes enough; tables are kept."""

import numpy as np
import pandas as pd
import pytest

from lab import probing
from tests.shell import invoked, printed


def test_planted_nulls_are_not_represented():
    """One of each kind; a function of the round's inputs given as a bare target is not, either."""
    steps = []
    frame = probing.nulls(quick=True, advance=steps.append, models=["wma-handwired"])
    assert set(frame["kind"]) == set(probing.NULLS) and sum(steps) == len(frame) == 6
    assert (frame["verdict"] != "yes").all() and (frame["bare"] != "yes").all()


def test_a_planted_effect_is_found_with_enough_episodes():
    frame = probing.power(sizes=[32], effects=[0.4], designs=["independent"], n_sets=3)
    assert (frame["verdict"] == "yes").sum() >= 2
    assert frame["r2"].between(0.2, 0.6).all() and frame["detectable"].between(0, 0.4).all()


def test_tables_are_written_once(tmp_path, monkeypatch):
    """A finished table is read back; what is missing is made; quick and full tables are apart."""
    made = []

    def table(quick, advance):
        made.append(quick)
        row = {"design": "walk", "effect": 0.1, "n_episodes": 16, "set": 0}
        return pd.DataFrame([{**row, "r2": 0.1, "verdict": "undecided", "detectable": 0.3}])

    tables = {"power": probing.Table(table, {True: 1, False: 1}, probing.TABLES["power"].summary)}
    for _ in range(2):
        (text,) = probing.write(tmp_path, quick=True, tables=tables)
        assert "power-quick.csv" in text and "Share held" in text
    list(probing.write(tmp_path, tables=tables))
    assert made == [True, False]
    asked = lambda out, quick, tables, **how: iter([f"{out} {quick} {list(tables)} {how}"])  # noqa: E731
    monkeypatch.setattr(probing, "write", asked)
    result = invoked("calibrate", "--out", tmp_path, "--quick", "--jobs", "2")
    every = ["coverage", "nulls", "power", "sites", "alignment"]
    how = {"n_jobs": 2, "scheduler": "", "shard": ""}
    assert result.exit_code == 0 and f"{tmp_path} True {every} {how}" in result.output


def test_parts_of_a_long_table_are_made_once_under_the_rules_that_they_depend_on(tmp_path):
    """A run that ended half-way goes on; parts that were made under other rules are made again."""
    made, rules = [], {"rules": 1}

    def table(quick, advance, part):
        if part == "two" and made.count("two") == 0:
            made.append(part)
            raise RuntimeError("killed")
        made.append(part)
        return pd.DataFrame([{"part": part}])

    def summed(frame):
        return f"parts {' '.join(frame['part'])}"

    steps = {True: 1, False: 1}
    tables = {
        "long": probing.Table(table, steps, summed, lambda quick: ("one", "two"), lambda: rules)
    }
    with pytest.raises(RuntimeError, match="killed"):
        list(probing.write(tmp_path, tables=tables))
    (text,) = probing.write(tmp_path, tables=tables)
    assert made == ["one", "two", "two"] and text.endswith("long.csv\nparts one two")
    rules["rules"] = 2
    list(probing.write(tmp_path, tables=tables))
    assert made == ["one", "two", "two", "one", "two"]
    rules["rules"] = 3
    (said,) = probing.write(tmp_path, tables=tables, shard="2/2")
    assert made[5:] == ["two"] and said == f"2/2: 1 of 2 parts are in {tmp_path / 'parts'}"
    list(probing.write(tmp_path, tables=tables))
    assert made[5:] == ["two", "one"]


def test_tables_are_asked_for_by_name(tmp_path, monkeypatch):
    """The help says which there are, and which take long; an unknown one is refused with those known."""
    asked = lambda out, quick, tables, **how: iter([f"asked {list(tables)}"])  # noqa: E731
    monkeypatch.setattr(probing, "write", asked)
    call = printed("calibrate", "--out", tmp_path, "--table", "machines", "--table", "power")
    assert "asked ['machines', 'power']" in call
    told = invoked("calibrate", "--help", env={"COLUMNS": "300"}).output
    assert "coverage, nulls, power, sites, alignment, machines (long), " in " ".join(told.split())
    refused = invoked("calibrate", "--out", tmp_path, "--table", "machine")
    assert refused.exit_code != 0 and "machines" in refused.output


@pytest.mark.slow  # Minutes: the full tables.
def test_at_most_five_in_a_hundred_nulls_are_represented():
    """At least 200 nulls of six kinds on three models."""
    frame = probing.nulls()
    print(probing.TABLES["nulls"].summary(frame))  # noqa: T201
    assert len(frame) >= 200 and frame["model"].nunique() == 3 and frame["kind"].nunique() == 6
    assert (frame["verdict"] == "yes").mean() <= 0.05
    assert (frame["bare"] != "yes").all()


@pytest.mark.slow  # Minutes: 1,600 planted effects.
def test_power_grows_with_episodes_and_effects():
    frame = probing.power()
    print(probing.TABLES["power"].summary(frame))  # noqa: T201
    hits = frame.assign(hit=frame["verdict"] == "yes")
    for _, of_design in hits.groupby("design"):
        share = of_design.pivot_table("hit", "effect", "n_episodes").to_numpy()
        assert (np.diff(share, axis=0) >= -0.06).all() and (np.diff(share, axis=1) >= -0.06).all()
        assert share[-1, -1] >= 0.8
