"""What a comparison says of known machines, beside what is right: a row for each of them, and a text that sums up.

A word is *right* where it is the right one, *wrong* where it is the other of "yes" and "no", and otherwise
"undecided". Where "either" is right nothing is scored. A family of algorithms that is named is right or wrong; where
one should be named and none is, that is "undecided".
"""

from __future__ import annotations

from typing import Any

import pandas as pd

from circuits import compare
from interp.core.machine import Machine
from interp.stats.intervals import exact_share
from interp.support.checks import checked
from lab.known import QUESTIONS, Specimen

SCORED = (*QUESTIONS, "algorithm")
"""Everything about a machine that is right, undecided or wrong."""
MARKS = ("right", "undecided", "wrong")


def mark(word: str, right: str | None) -> str:
    """One of :data:`MARKS`; "" where nothing is scored."""
    if right is None or right == "either":
        return ""
    if word not in ("yes", "no"):
        return "undecided"
    return "right" if word == right else "wrong"


def mark_family(named: str, right: str | None) -> str:
    """As :func:`mark`, of the family that was named; "" for none of them."""
    if right is None:
        return ""
    if named == right:
        return "right"
    return "wrong" if named else "undecided"


@checked
def score(specimen: Specimen, reference: Machine, budget: compare.Budget) -> dict[str, Any]:
    """A row of the gallery's table: each question's word, the right one, the mark, and the number that decided."""
    found = compare.machines(specimen.make(), reference, budget=budget)
    row: dict[str, Any] = {
        "task": specimen.task,
        "key": specimen.key,
        "held_out": specimen.held_out,
    }
    for question in QUESTIONS:
        one, right = found[question], specimen.right.get(question)
        row |= {
            question: one.verdict,
            f"{question}_right": right or "",
            f"{question}_mark": mark(one.verdict, right),
        }
        row |= {
            f"{question}_by": f"{one.unit} ({one.about})",
            f"{question}_value": one.number.estimate,
        }
        row |= {f"{question}_low": one.number.low, f"{question}_high": one.number.high}
        row |= {
            f"{question}_threshold": one.threshold,
            f"{question}_control": one.row()["control_number"],
        }
    named = found.algorithm.family or ""
    row |= {
        "algorithm": named or f"none ({found.algorithm.closest})",
        "algorithm_right": specimen.algorithm,
    }
    row |= {"algorithm_mark": mark_family(named, specimen.algorithm)}
    marks = [row[f"{one}_mark"] for one in SCORED]
    return (
        row
        | {f"n_{one}": marks.count(one) for one in MARKS}
        | {"cpu_seconds": found.settings["cpu_seconds"]}
    )


def rules(frame: pd.DataFrame) -> pd.DataFrame:
    """How often each rule says "yes" where "no" is right, and the reverse, held out or not.

    ``of`` is the number of machines on which it can be wrong in this way, ``at_most`` the upper end of the exact 95 %
    interval of the rate. Of names the first is a name where another or none is right.
    """
    rows = []
    for held_out, half in frame.groupby("held_out"):
        for one in SCORED:
            marks, right = half[f"{one}_mark"], half[f"{one}_right"]
            for error, word in (("false yes", "no"), ("false no", "yes")):
                if one == "algorithm" and word == "yes":
                    continue
                asked = (
                    marks.isin(MARKS) if one == "algorithm" else marks.isin(MARKS) & (right == word)
                )
                wrong = marks[asked] == "wrong"
                told = {"held out": "yes" if held_out else "no", "question": one, "error": error}
                counted = {"wrong": int(wrong.sum()), "of": len(wrong)}
                rows.append({**told, **counted, "at_most": exact_share(wrong).high})
    return pd.DataFrame(rows)


@checked
def summary(frame: pd.DataFrame) -> str:
    """How many words are right, undecided and wrong, how often each rule errs, and every machine with a wrong word.

    ``frame`` holds rows of :func:`score`.
    """
    counts = []
    for held_out, half in frame.groupby("held_out"):
        for one in SCORED:
            marks = half[f"{one}_mark"]
            counts.append(
                {
                    "held out": "yes" if held_out else "no",
                    "question": one,
                    **{m: int((marks == m).sum()) for m in MARKS},
                }
            )
    told = [
        f"  {row['task']}: {row['key']}: {_said(row)}"
        for _, row in frame.iterrows()
        if row["n_wrong"]
    ]
    seconds = frame["cpu_seconds"]
    return "\n".join(
        [
            f"Known machines: what a comparison with their reference says of {len(frame)} of them",
            pd.DataFrame(counts).to_string(index=False),
            "How often each rule is wrong, with the upper end of the exact 95 % interval of the rate",
            rules(frame).round(3).to_string(index=False),
            f"CPU seconds a machine: median {seconds.median():.0f}, most {seconds.max():.0f}, all {seconds.sum():.0f}",
            f"Machines with a wrong word: {len(told) or 'none'}",
            *told,
        ]
    )


def _said(row: pd.Series[Any]) -> str:
    """The wrong words of a machine, with what is right and the number that decided."""
    wrong = []
    for one in SCORED:
        if row[f"{one}_mark"] != "wrong":
            continue
        said = f"{one} {row[one]!r}"
        if one in QUESTIONS:
            interval = f"[{row[f'{one}_low']:.3g}, {row[f'{one}_high']:.3g}]"
            said += f", {row[f'{one}_by']} {row[f'{one}_value']:.3g} {interval}"
        right = row[f"{one}_right"]
        wrong.append(f"{said}; right is {right if isinstance(right, str) and right else 'none'}")
    return " / ".join(wrong)
