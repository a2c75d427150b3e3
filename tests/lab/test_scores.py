"""Words are scored as they must be; the summary counts them and names every machine with a wrong one."""

import numpy as np
import pandas as pd
import pytest

from circuits import compare
from lab import known
from lab.known import scores
from lab.tables import TABLES, write
from tests.cases import cases


@pytest.mark.parametrize(
    ("verdict", "right", "marked"),
    [*cases(__file__, "test_a_word_is_right_wrong_or_undecided"), ("no", None, "")],
)
def test_a_word_is_right_wrong_or_undecided(verdict, right, marked):
    assert scores.mark(verdict, right) == marked


@pytest.mark.parametrize(
    ("named", "right", "marked"),
    [
        ("bayes", "bayes", "right"), ("", "", "right"), ("", "bayes", "undecided"),
        ("bayes", "", "wrong"), ("bayes", "fixed_share", "wrong"), ("bayes", None, ""), ("", None, ""),
    ],
)  # fmt: skip
def test_a_family_is_right_wrong_or_undecided(named, right, marked):
    """None of these, where one should be named, is no wrong word; a name where none is right is one."""
    assert scores.mark_family(named, right) == marked


def row(key, held_out, seconds, **marks):
    every = dict.fromkeys(scores.SCORED, "") | marks
    told = {"task": "experts", "key": key, "held_out": held_out, "cpu_seconds": seconds}
    for question in scores.QUESTIONS:
        told |= {question: "yes", f"{question}_right": "no", f"{question}_by": "step R2"}
        told |= {f"{question}_value": 0.97, f"{question}_low": 0.961, f"{question}_high": 0.98}
    told |= {"algorithm": "weighted_majority", "algorithm_right": ""}
    told |= {f"{question}_mark": one for question, one in every.items()}
    return told | {f"n_{one}": list(every.values()).count(one) for one in scores.MARKS}


def test_the_summary_splits_by_held_out_and_names_what_is_wrong(tmp_path):
    """As it is read back from the file, where an empty word is NaN."""
    rows = [
        row("fine", False, 3.0, behaviour="right", update="undecided"),
        row("late", False, 10.0, behaviour="wrong", update="right"),
        row("hidden", True, 5.0, behaviour="right", algorithm="wrong"),
    ]
    pd.DataFrame(rows).to_csv(tmp_path / "table.csv", index=False)
    text = scores.summary(pd.read_csv(tmp_path / "table.csv"))
    counts = {tuple(line.split()[:2]): line.split()[2:] for line in text.splitlines()[2:12]}
    assert counts["no", "behaviour"] == ["1", "0", "1"] and counts["yes", "behaviour"] == [
        "1",
        "0",
        "0",
    ]
    assert counts["no", "update"] == ["1", "1", "0"] and counts["yes", "algorithm"] == [
        "0",
        "0",
        "1",
    ]
    assert counts["yes", "circuit"] == ["0", "0", "0"] and "median 5, most 10, all 18" in text
    wrong = text.splitlines()[-3:]
    assert wrong[0] == "Machines with a wrong word: 2"
    assert wrong[1] == "  experts: late: behaviour 'yes', step R2 0.97 [0.961, 0.98]; right is no"
    assert wrong[2] == "  experts: hidden: algorithm 'weighted_majority'; right is none"


def test_a_rule_errs_as_often_as_it_says_the_other_word_where_it_could():
    rows = [row(f"late {i}", True, 1.0, update="wrong" if i < 2 else "undecided") for i in range(8)]
    rows += [
        {**row("itself", True, 1.0, update="wrong"), "update_right": "yes"},
        row("either", True, 1.0),
    ]
    told = scores.rules(pd.DataFrame(rows)).set_index(["question", "error"])
    assert list(told.loc[("update", "false yes"), ["wrong", "of"]]) == [2, 8]
    assert told.loc[("update", "false yes"), "at_most"] == pytest.approx(
        0.651, abs=1e-3
    )  # Clopper and Pearson
    assert list(told.loc[("update", "false no"), ["wrong", "of"]]) == [1, 1]
    assert told.loc[("state", "false yes"), "of"] == 0 and np.isnan(
        told.loc[("state", "false yes"), "at_most"]
    )
    assert ("algorithm", "false no") not in told.index and (told["held out"] == "yes").all()


SMALL = compare.Budget(
    known=16, test=12, rounds=20, starts=2, horizon=4, battery=2, scored=24, edits=80, untrained=1
)


@pytest.mark.usefixtures("few_fits")
def test_the_table_has_a_row_for_each_machine_that_says_what_was_said(tmp_path, monkeypatch):
    """One machine without a circuit, through `python -m lab calibrate --table machines`, and it is made once."""
    monkeypatch.setattr(compare.Budget, "quick", lambda: SMALL)
    monkeypatch.setattr(known, "TASKS", ("experts",))
    only = {"by algorithm": known.gallery("experts")["by algorithm"]}
    monkeypatch.setattr(known, "gallery", lambda task, draws: only)
    tables = {"machines": TABLES["machines"]}
    (text,) = write(tmp_path, True, tables)
    frame = pd.read_csv(tmp_path / "machines-quick.csv")
    (said,) = frame.to_dict("records")
    assert (
        said["key"] == "by algorithm"
        and not said["held_out"]
        and said["algorithm"] == "weighted_majority"
    )
    assert [said[f"{question}_mark"] for question in scores.QUESTIONS[:3]] == ["right"] * 3
    assert (
        said["circuit"] == "not applicable"
        and said["n_right"] == 4
        and said["n_wrong"] == said["n_undecided"] == 0
    )
    assert (
        said["state_low"] <= said["state_value"] <= said["state_high"] and said["cpu_seconds"] > 0
    )
    assert "Machines with a wrong word: none" in text
    monkeypatch.setattr(scores, "score", None)
    assert list(write(tmp_path, True, tables)) == [text]
