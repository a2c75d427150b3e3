"""How a part's numbers become a word: pass, fail, cannot tell, and uninformative where a control does as well."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import pytest

from interp.statistics import Interval
from reports.blocks import Finding, cell, judged
from reports.parts import interchange, patching

NAN = float("nan")


def row(variable: str, score: float, width: float, random: float, control: bool = False) -> dict[str, Any]:
    """A claim of ``interp.interventions.interchange``."""
    bounds = {"score_low": score - width, "score_high": score + width}
    about = {"variable": variable, "outcome": "state", "control": control, "random_score": random}
    return {**about, "score": score, **bounds}


def test_interchange() -> None:
    """By the best place of each variable, beside the best of its controls; a variable without a claim has no line."""
    rows = [
        row("carried", 0.1, 0.05, 0.0),
        row("carried", 0.9, 0.05, 0.1),
        row("absent", 0.2, 0.1, 0.3),
        row("astride", 0.5, 0.2, 0.0),
        row("everywhere", 0.9, 0.05, 0.1),
        row("everywhere", 0.88, 0.05, NAN, control=True),
        row("unseen", NAN, NAN, NAN),
        row("elsewhere", 0.0, 0.0, 0.0, control=True),
    ]
    found = interchange.interchanged((pd.DataFrame(rows), None), None)  # type: ignore[arg-type]
    names = [(finding.word, finding.claim.rpartition(": ")[2]) for finding in found]
    assert names == [
        ("pass", "carried"),
        ("fail", "absent"),
        ("cannot tell", "astride, unseen"),
        ("uninformative", "everywhere"),
    ]


@pytest.mark.parametrize(
    ("scores", "moved", "random", "word"),
    [
        ((0.9, 0.8), (0.5, 0.4), 0.0, "pass"),
        ((0.9, 0.3), (0.5, 0.4), 0.0, "fail"),  # one dose is half missed: the worst decides, not the largest move
        ((0.2, 0.9), (0.4, 0.5), 0.0, "fail"),
        ((0.9, 0.52), (0.5, 0.4), 0.0, "cannot tell"),
        ((0.9, 0.8), (0.5, 0.4), 0.78, "uninformative"),
        ((0.9, 0.1), (0.5, 0.01), 0.0, "pass"),  # a dose that hardly moves the algorithm asks for nothing
        ((0.9, 0.9), (0.01, 0.01), 0.0, "cannot tell"),
    ],
)
def test_steering(scores: tuple[float, float], moved: tuple[float, float], random: float, word: str) -> None:
    """The dose that is worst of those that move the algorithm decides, against half of its move."""
    frame = pd.DataFrame({"dose": [-4.0, 0.0, 4.0], "algorithm": [0.3 - moved[0], 0.3, 0.3 + moved[1]]})
    score = np.array([scores[0], NAN, scores[1]])
    frame = frame.assign(score=score, score_low=score - 0.05, score_high=score + 0.05, random_score=random)
    found = interchange.steered(frame, None)  # type: ignore[arg-type]
    assert [finding.word for finding in found] == [word]
    if word in ("pass", "fail"):
        assert found[0].measured is not None and found[0].measured.value.estimate == min(
            value for value, by in zip(scores, moved, strict=True) if by > 0.02
        )


@pytest.mark.parametrize(
    ("size", "kept", "random", "word"),
    [(3, 1.0, 0.2, "pass"), (80, 1.0, 0.2, "fail"), (3, 0.9, 0.88, "uninformative"), (3, 0.1, 0.6, "fail")],
)
def test_edges(size: int, kept: float, random: float, word: str) -> None:
    """Few edges that beat as many at random."""
    circuit = {
        "size": size,
        "of": 100,
        "faithfulness": kept,
        "low": kept - 0.01,
        "high": kept + 0.01,
        "random_max": random,
    }
    found = patching.edges_suffice({"circuit": pd.DataFrame([circuit])}, None)  # type: ignore[arg-type]
    assert [finding.word for finding in found] == [word]


def test_no_number_decides_nothing() -> None:
    """An interval that does not exist is on neither side."""
    assert judged(Interval(0.9, NAN, NAN), 0.5) == "cannot tell"


def test_an_expected_negative_is_not_red() -> None:
    """What nobody made the model satisfy fails without alarm."""
    assert Finding("It is the same", "fail", "0", expected=False).verdict.kind == "neutral"
    assert Finding("It is the same", "fail", "0").verdict.kind == "fail"


def test_digits_are_those_that_the_interval_leaves() -> None:
    """Two digits of the width; no negative zero; powers of ten where all is small."""
    shown = [
        cell(Interval(*x)) for x in ((-1e-9, -0.2, 0.2), (12.345, 10.1, 14.6), (3e-5, 1e-5, 5e-5), (1.0, 1.0, 1.0))
    ]
    assert shown == ["0.00 [−0.20, 0.20]", "12.3 [10.1, 14.6]", "3.0e−5 [1.0e−5, 5.0e−5]", "1.000 [1.000, 1.000]"]
    assert cell(np.float64(-0.001), ".2f") == "0.00"
