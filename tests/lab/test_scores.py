"""Words are scored as they must be; the summary counts them and names every machine with a wrong one."""

import numpy as np
import pandas as pd
import pytest

from circuits.compare import Budget
from lab import known
from lab.known import scores
from lab.tables import TABLES, write
from tests.lab.test_known import SMALL


@pytest.mark.parametrize(
    ("verdict", "right", "marked"),
    [
        ("yes", "yes", "right"),
        ("no", "no", "right"),
        ("yes", "no", "wrong"),
        ("no", "yes", "wrong"),
        ("undecided", "yes", "undecided"),
        ("not applicable", "no", "undecided"),
        ("yes", "either", ""),
        ("no", "either", ""),
        ("no", None, ""),
    ],
)
def test_a_word_is_right_wrong_or_undecided(verdict, right, marked):
    assert scores.mark(verdict, right) == marked


@pytest.mark.parametrize(
    ("named", "right", "marked"),
    [
        ("bayes", "bayes", "right"),
        ("", "", "right"),
        ("", "bayes", "undecided"),
        ("bayes", "", "wrong"),
        ("bayes", "fixed_share", "wrong"),
        ("bayes", None, ""),
        ("", None, ""),
    ],
)
def test_a_family_is_right_wrong_or_undecided(named, right, marked):
    """None of these, where one should be named, is no wrong word; a name where none is right is one."""
    assert scores.mark_family(named, right) == marked


def row(key, held_out, seconds, **marks):
    """A row of the table, of a machine that got "yes" where "no" is right.

    Args:
        key: of the machine.
        held_out: whether it was.
        seconds: CPU seconds.
        marks: question to mark; the others are not scored.
    """
    record = {"task": "experts", "key": key, "held_out": held_out, "cpu_seconds": seconds}
    for question in scores.QUESTIONS:
        record |= {question: "yes", f"{question}_right": "no", f"{question}_by": "step R2"}
        record[f"{question}_value"] = 0.97
        record[f"{question}_low"] = 0.961
        record[f"{question}_high"] = 0.98
    record |= {"algorithm": "weighted_majority", "algorithm_right": ""}
    for question in scores.SCORED:
        record[f"{question}_mark"] = marks.get(question, "")
    for mark in scores.MARKS:
        record[f"n_{mark}"] = list(marks.values()).count(mark)
    return record


def test_the_summary_splits_by_held_out_and_names_what_is_wrong(tmp_path):
    """As it is read back from the file, where an empty word is NaN."""
    rows = [
        row("fine", False, 3.0, behaviour="right", update="undecided"),
        row("late", False, 10.0, behaviour="wrong", update="right"),
        row("hidden", True, 5.0, behaviour="right", algorithm="wrong"),
    ]
    pd.DataFrame(rows).to_csv(tmp_path / "table.csv", index=False)
    lines = scores.summary(pd.read_csv(tmp_path / "table.csv")).splitlines()
    counts = {}
    for line in lines[2:12]:
        held_out, question, *numbers = line.split()
        counts[held_out, question] = " ".join(numbers)
    assert counts["no", "behaviour"] == "1 0 1"
    assert counts["yes", "behaviour"] == "1 0 0"
    assert counts["no", "update"] == "1 1 0"
    assert counts["yes", "algorithm"] == "0 0 1"
    assert counts["yes", "circuit"] == "0 0 0"
    assert any("median 5, most 10, all 18" in line for line in lines)
    assert lines[-3:] == [
        "Machines with a wrong word: 2",
        "  experts: late: behaviour 'yes', step R2 0.97 [0.961, 0.98]; right is no",
        "  experts: hidden: algorithm 'weighted_majority'; right is none",
    ]


def test_a_rule_errs_as_often_as_it_says_the_other_word_where_it_could():
    rows = [row(f"late {i}", True, 1.0, update="undecided") for i in range(6)]
    rows += [row(f"wrong {i}", True, 1.0, update="wrong") for i in range(2)]
    rows.append(row("itself", True, 1.0, update="wrong") | {"update_right": "yes"})
    rows.append(row("either", True, 1.0))
    rates = scores.rules(pd.DataFrame(rows)).set_index(["question", "error"])
    assert (rates["held out"] == "yes").all()
    false_yes = rates.loc[("update", "false yes")]
    assert false_yes["wrong"] == 2
    assert false_yes["of"] == 8
    assert false_yes["at_most"] == pytest.approx(0.651, abs=1e-3)  # Clopper and Pearson
    false_no = rates.loc[("update", "false no")]
    assert false_no["wrong"] == 1
    assert false_no["of"] == 1
    nothing = rates.loc[("state", "false yes")]
    assert nothing["of"] == 0
    assert np.isnan(nothing["at_most"])
    assert ("algorithm", "false no") not in rates.index


@pytest.mark.long
@pytest.mark.usefixtures("few_fits", "no_rules")
def test_the_table_has_a_row_for_each_machine_that_says_what_was_said(tmp_path, monkeypatch):
    """One machine without a circuit, through `python -m lab calibrate --table machines`, and it is made once."""
    monkeypatch.setattr(Budget, "quick", lambda: SMALL)
    monkeypatch.setattr(known, "TASKS", ("experts",))
    only = {"by algorithm": known.gallery("experts")["by algorithm"]}
    monkeypatch.setattr(known, "gallery", lambda task, draws: only)
    tables = {"machines": TABLES["machines"]}
    (text,) = write(tmp_path, True, tables)
    frame = pd.read_csv(tmp_path / "machines-quick.csv")
    (machine,) = frame.to_dict("records")
    assert machine["key"] == "by algorithm"
    assert not machine["held_out"]
    assert machine["algorithm"] == "weighted_majority"
    assert machine["circuit"] == "not applicable"
    for question in ("behaviour", "state", "update"):
        assert machine[f"{question}_mark"] == "right"
    assert machine["n_right"] == 4
    assert machine["n_wrong"] == 0
    assert machine["n_undecided"] == 0
    assert machine["state_low"] <= machine["state_value"] <= machine["state_high"]
    assert machine["cpu_seconds"] > 0
    assert "Machines with a wrong word: none" in text
    monkeypatch.setattr(scores, "score", None)
    assert list(write(tmp_path, True, tables)) == [text]
