"""Tables of the lab are written once, part by part, and asked for by name."""

import pandas as pd
import pytest

from lab import tables as lab_tables
from tests.shell import invoked, printed


def test_tables_are_written_once(tmp_path, monkeypatch):
    """A finished table is read back; what is missing is made; quick and full tables are apart."""
    made = []

    def table(quick, advance):
        made.append(quick)
        return pd.DataFrame([{"rows": 1}])

    tables = {
        "one": lab_tables.Table(table, {True: 1, False: 1}, lambda frame: f"{len(frame)} row")
    }
    for _ in range(2):
        (text,) = lab_tables.write(tmp_path, quick=True, tables=tables)
        assert "one-quick.csv" in text and "1 row" in text
    list(lab_tables.write(tmp_path, tables=tables))
    assert made == [True, False]
    asked = lambda out, quick, tables, **how: iter([f"{out} {quick} {list(tables)} {how}"])  # noqa: E731
    monkeypatch.setattr(lab_tables, "write", asked)
    result = invoked("calibrate", "--out", tmp_path, "--quick", "--jobs", "2")
    every = ["machines", "resolution"]
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
        "long": lab_tables.Table(table, steps, summed, lambda quick: ("one", "two"), lambda: rules)
    }
    with pytest.raises(RuntimeError, match="killed"):
        list(lab_tables.write(tmp_path, tables=tables))
    (text,) = lab_tables.write(tmp_path, tables=tables)
    assert made == ["one", "two", "two"] and text.endswith("long.csv\nparts one two")
    rules["rules"] = 2
    list(lab_tables.write(tmp_path, tables=tables))
    assert made == ["one", "two", "two", "one", "two"]
    rules["rules"] = 3
    (said,) = lab_tables.write(tmp_path, tables=tables, shard="2/2")
    assert made[5:] == ["two"] and said == f"2/2: 1 of 2 parts are in {tmp_path / 'parts'}"
    list(lab_tables.write(tmp_path, tables=tables))
    assert made[5:] == ["two", "one"]


def test_tables_are_asked_for_by_name(tmp_path, monkeypatch):
    """The help says which there are; an unknown one is refused with those known."""
    asked = lambda out, quick, tables, **how: iter([f"asked {list(tables)}"])  # noqa: E731
    monkeypatch.setattr(lab_tables, "write", asked)
    call = printed("calibrate", "--out", tmp_path, "--table", "resolution")
    assert "asked ['resolution']" in call
    told = invoked("calibrate", "--help", env={"COLUMNS": "300"}).output
    assert "machines, resolution" in " ".join(told.split())
    refused = invoked("calibrate", "--out", tmp_path, "--table", "machine")
    assert refused.exit_code != 0 and "machines" in refused.output
