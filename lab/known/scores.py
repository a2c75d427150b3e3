"""Score the verdicts of comparisons on known machines: a row per machine, and a summary.

A verdict is marked *right* if it is the right one, *wrong* if it is the opposite of it ("yes" for
"no" or vice versa), and otherwise "undecided". If "either" is right, nothing is scored. The name of
a family of algorithms is right or wrong; if one should be named and none is, the mark is
"undecided".
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike
from scipy.stats import binomtest

from circuits import compare
from interp.core.machine import Machine
from interp.stats.intervals import NO_NUMBER, Interval
from interp.support.checks import checked
from lab.known import QUESTIONS, Specimen

SCORED = (*QUESTIONS, "algorithm")
"""Everything about a machine that is marked: the verdicts, and the named family."""
MARKS = ("right", "undecided", "wrong")


def exact_share(hits: ArrayLike) -> Interval:
    """Return the share of hits with its exact 95 % interval (Clopper and Pearson); NaN for none.

    Args:
        hits: whether each of several independent trials is a hit, ``[trial]``.

    >>> print(exact_share([True] * 11))
    1 [0.7151, 1]
    """
    is_hit = np.asarray(hits, dtype=bool)
    if not len(is_hit):
        return NO_NUMBER
    n_hits = int(is_hit.sum())
    bounds = binomtest(n_hits, len(is_hit)).proportion_ci()
    share = float(is_hit.mean())
    return Interval(share, float(bounds.low), float(bounds.high))


def mark(verdict: str, right: str | None) -> str:
    """Return the mark of a verdict, one of :data:`MARKS`; "" if the question is not scored.

    Args:
        verdict: the verdict.
        right: the right verdict, "either", or None if the question is not scored.
    """
    if right is None or right == "either":
        return ""
    if verdict not in ("yes", "no"):
        return "undecided"
    return "right" if verdict == right else "wrong"


def mark_family(named: str, right: str | None) -> str:
    """Return the mark of the named family of algorithms; "" if the name is not scored.

    Args:
        named: key of the named family; "" if none was named.
        right: key of the right family, "" if none should be named, None if the name is not scored.
    """
    if right is None:
        return ""
    if named == right:
        return "right"
    return "wrong" if named else "undecided"


@checked
def score(specimen: Specimen, reference: Machine, budget: compare.Budget) -> dict[str, Any]:
    """Compare a known machine with the reference, and return a table row.

    For each question it has the verdict, the right verdict, the mark, and the number behind the
    verdict.

    Args:
        specimen: the known machine.
        reference: the reference of its task.
        budget: budget of the comparison.
    """
    comparison = compare.machines(specimen.make(), reference, budget=budget)
    row: dict[str, Any] = {
        "task": specimen.task,
        "key": specimen.key,
        "held_out": specimen.held_out,
    }
    for question in QUESTIONS:
        measure = comparison[question]
        right = specimen.right.get(question)
        row[question] = measure.verdict
        row[f"{question}_right"] = right or ""
        row[f"{question}_mark"] = mark(measure.verdict, right)
        row[f"{question}_by"] = f"{measure.unit} ({measure.about})"
        row[f"{question}_value"] = measure.number.estimate
        row[f"{question}_low"] = measure.number.low
        row[f"{question}_high"] = measure.number.high
        row[f"{question}_threshold"] = measure.threshold
        row[f"{question}_control"] = measure.row()["control_number"]
    family = comparison.algorithm.family or ""
    row["algorithm"] = family or f"none ({comparison.algorithm.closest})"
    row["algorithm_right"] = specimen.algorithm
    row["algorithm_mark"] = mark_family(family, specimen.algorithm)
    row["explained"] = comparison.algorithm.explained.estimate
    row["ratio"] = comparison.algorithm.ratio.estimate
    row["not_rejected"] = " ".join(comparison.algorithm.not_rejected)
    marks = [row[f"{question}_mark"] for question in SCORED]
    for name in MARKS:
        row[f"n_{name}"] = marks.count(name)
    row["cpu_seconds"] = comparison.settings["cpu_seconds"]
    return row


def rules(frame: pd.DataFrame) -> pd.DataFrame:
    """Count how often each question's verdict is a false "yes" or a false "no", for held-out and
    other machines.

    Returns:
        One row per half, question and error. ``of`` is the number of machines on which the error is
        possible, and ``at_most`` the upper end of the exact 95 % interval of its rate. For the
        named family, a "false yes" is any wrong name.
    """
    rows = []
    for held_out, half in frame.groupby("held_out"):
        for question in SCORED:
            marks = half[f"{question}_mark"]
            is_scored = marks.isin(MARKS)
            for error, right in (("false yes", "no"), ("false no", "yes")):
                if question == "algorithm":
                    if error == "false no":  # a wrong name counts as a false "yes"
                        continue
                    can_err = is_scored
                else:  # a false "yes" is possible where "no" is right, and vice versa
                    can_err = is_scored & (half[f"{question}_right"] == right)
                is_wrong = marks[can_err] == "wrong"
                row = {
                    "held out": "yes" if held_out else "no",
                    "question": question,
                    "error": error,
                    "wrong": int(is_wrong.sum()),
                    "of": len(is_wrong),
                    "at_most": exact_share(is_wrong).high,
                }
                rows.append(row)
    return pd.DataFrame(rows)


@checked
def summary(frame: pd.DataFrame) -> str:
    """Return a text: counts of marks, error rates of each question, and every machine with a wrong
    verdict.

    Args:
        frame: rows of :func:`score`.
    """
    counts = []
    for held_out, half in frame.groupby("held_out"):
        for question in SCORED:
            numbers = half[f"{question}_mark"].value_counts()
            row: dict[str, Any] = {"held out": "yes" if held_out else "no", "question": question}
            counts.append(row | {name: int(numbers.get(name, 0)) for name in MARKS})
    sentences = []
    for machine in frame[frame["n_wrong"] > 0].to_dict("records"):
        sentences.append(f"  {machine['task']}: {machine['key']}: {_describe_wrong(machine)}")
    seconds = frame["cpu_seconds"]
    counts_table = pd.DataFrame(counts).to_string(index=False)
    rules_table = rules(frame).round(3).to_string(index=False)
    lines = [
        f"Known machines: what a comparison with their reference says of {len(frame)} of them",
        counts_table,
        "How often each rule is wrong, with the upper end of the exact 95 % interval of the rate",
        rules_table,
        f"CPU seconds a machine: median {seconds.median():.0f}, most {seconds.max():.0f}, all {seconds.sum():.0f}",
        f"Machines with a wrong word: {len(sentences) or 'none'}",
    ]
    return "\n".join(lines + sentences)


def _describe_wrong(row: Mapping[Hashable, Any]) -> str:
    """Return a machine's wrong verdicts, each with the right one and the number that decided."""
    wrong = []
    for question in SCORED:
        if row[f"{question}_mark"] != "wrong":
            continue
        text = f"{question} {row[question]!r}"
        if question in QUESTIONS:
            low, high = row[f"{question}_low"], row[f"{question}_high"]
            value = row[f"{question}_value"]
            text += f", {row[f'{question}_by']} {value:.3g} [{low:.3g}, {high:.3g}]"
        right = row[
            f"{question}_right"
        ]  # "", or NaN if read from a file: no family should be named
        right_word = right if isinstance(right, str) and right else "none"
        wrong.append(f"{text}; right is {right_word}")
    return " / ".join(wrong)
