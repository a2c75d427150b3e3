"""Tables of the lab are written once, part by part, and asked for by name."""

from pathlib import Path

import pandas as pd
import pytest

from lab import tables as lab_tables
from tests.shell import printed, refusal


def test_tables_are_written_once(tmp_path):
    """A finished table is read back; what is missing is made; quick and full tables are apart."""
    calls = []

    def make(quick, part):
        calls.append(quick)
        return pd.DataFrame([{"rows": 1}])

    tables = {
        "short": lab_tables.Table(lambda quick: ["all"], make, lambda frame: f"{len(frame)} row")
    }
    for _ in range(2):
        (text,) = lab_tables.write(tmp_path, quick=True, tables=tables)
        assert "short-quick.csv" in text
        assert "1 row" in text
    list(lab_tables.write(tmp_path, tables=tables))
    assert calls == [True, False]


def test_parts_of_a_long_table_are_made_once_under_the_rules_that_they_depend_on(tmp_path):
    """A run that ended half-way goes on; parts that were made under other rules are made again."""
    calls = []
    rules = {"rules": 1}

    def make(quick, part):
        is_killed = part == "two" and "two" not in calls
        calls.append(part)
        if is_killed:
            raise RuntimeError("killed")
        return pd.DataFrame([{"part": part}])

    def summarize(frame):
        return f"parts {' '.join(frame['part'])}"

    table = lab_tables.Table(lambda quick: ["one", "two"], make, summarize, lambda: rules)
    tables = {"long": table}
    with pytest.raises(RuntimeError, match="killed"):
        list(lab_tables.write(tmp_path, tables=tables))
    (text,) = lab_tables.write(tmp_path, tables=tables)
    assert calls == ["one", "two", "two"]
    assert text.endswith("long.csv\nparts one two")

    rules["rules"] = 2
    list(lab_tables.write(tmp_path, tables=tables))
    assert calls[3:] == ["one", "two"]

    rules["rules"] = 3
    (text,) = lab_tables.write(tmp_path, tables=tables, shard="2/2")
    assert calls[5:] == ["two"]
    assert text == f"2/2: 1 of 2 parts are in {tmp_path / 'parts'}"
    list(lab_tables.write(tmp_path, tables=tables))
    assert calls[5:] == ["two", "one"]


def test_rules_are_all_source_that_makes_a_machine_or_compares_it(monkeypatch):
    """Also of the deviations, and of the variants that known machines are made by."""
    read = []

    def read_bytes(path):
        read.append(path.name)
        return b""

    lab_tables.digest_rules.cache_clear()
    with monkeypatch.context() as patch:
        patch.setattr(Path, "read_bytes", read_bytes)
        lab_tables.digest_rules()
    lab_tables.digest_rules.cache_clear()
    assert {"resolution.py", "variants.py", "makers.py", "driver.py"} <= set(read)


@pytest.fixture
def shown_calls(monkeypatch):
    """The command shows with what it would write tables."""

    def show(folder, quick, tables, **options):
        yield f"{folder} {quick} {list(tables)} {options}"

    monkeypatch.setattr(lab_tables, "write", show)


def test_the_command_writes_every_table_with_its_options(tmp_path, shown_calls):
    shown = printed("calibrate", "--out", tmp_path, "--quick", "--jobs", "2")
    options = {"n_jobs": 2, "scheduler": "", "shard": ""}
    assert f"{tmp_path} True {['machines', 'unseen', 'resolution']} {options}" in shown


def test_tables_are_asked_for_by_name(tmp_path, shown_calls):
    """The help says which there are; an unknown one is refused with those known."""
    text = printed("calibrate", "--out", tmp_path, "--table", "resolution")
    assert "['resolution']" in text
    help_text = printed("calibrate", "--help", env={"COLUMNS": "300"})
    assert "machines, unseen, resolution" in " ".join(help_text.split())
    assert "machines" in refusal("calibrate", "--out", tmp_path, "--table", "machine")
