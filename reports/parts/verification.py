"""The check of a handwired model against its algorithm: the largest error of every variable."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import pandas as pd

from circuits.exactness import Check
from circuits.verification import VerificationResult, verify
from reports.blocks import Prose, Table, Verdict, number
from reports.findings import Finding
from reports.page import Section
from reports.part import Context, Part

TITLE = "Verification against the algorithm"
_TEXT = (
    "The model ran over fresh episodes, its own state carried from round to round, and every causal variable of its "
    "circuit was read inside the forward pass, at every round, and compared with the reference algorithm in NumPy. "
    "Errors are the largest over all episodes, rounds and elements. This shows that this construction computes the "
    "algorithm; it is no evidence about a learned model."
)

_ROUNDS = 20
"""Rounds at least: an algorithm that ends sooner is followed for longer."""
_MEASURES = {"error": "absolute error", "relative": "relative error"}


def part(sizes: Sequence[Any], n_episodes: int, said: Mapping[str, str]) -> Part:
    """The check of a handwired model, at several sizes.

    Args:
        sizes: as :func:`circuits.verify` takes them.
        n_episodes: at most.
        said: variable -> the claim that its largest error is within bounds.
    """

    def compute(context: Context) -> VerificationResult:
        few = min(n_episodes, context.n_episodes)
        return verify(context.circuit.name, sizes, max(context.n_rounds, _ROUNDS), few, seed=context.seed)

    def summary(result: VerificationResult, context: Context) -> list[Finding]:
        return [_exactness(result, variable, text) for variable, text in said.items()]

    return Part("verification", TITLE, compute, draw, lambda context: context.handwired, summary)


def draw(result: VerificationResult, context: Context) -> Section:
    """The largest error of every variable over sizes and locations, then every check."""
    checks = result.to_frame()
    sizes = list(dict.fromkeys(_size(size) for size in checks["size"]))
    ran = f"{result.settings['episodes']} episodes of {result.settings['rounds']} rounds at sizes {', '.join(sizes)}"
    relative = "Relative errors are to the value, or to the machine's unit where the value is smaller."
    caption = f"Largest errors over {ran}. {relative}"
    every = checks.assign(size=[_size(size) for size in checks["size"]], passed=_badges(checks["passed"]))
    return Section(
        TITLE,
        [
            Prose(_TEXT),
            Table(_worst(result.checks), caption),
            Table(every, "Every variable at every location, size and precision", collapsed=True),
        ],
    )


def _exactness(result: VerificationResult, variable: str, text: str, dtype: str = "float64") -> Finding:
    """A claim: the largest error of one variable over all sizes, against its tolerance."""
    checks = [check for check in result.checks if check.variable == variable and check.dtype == dtype]
    worst = max(checks, key=_judged)
    passed = all(check.passed for check in checks)
    sign, relative = "≤" if passed else ">", "relative " if worst.by == "relative" else ""
    error = f"largest {relative}error {number(_judged(worst))} {sign} {number(worst.tolerance)}"
    return Finding(text, "pass" if passed else "fail", error if worst.error else "equal in every bit")


def _judged(check: Check) -> float:
    """The error that a check is judged by."""
    return check.error if check.by == "error" else check.relative


def _worst(checks: Sequence[Check]) -> pd.DataFrame:
    """A row per variable: how far off it ever was, in either precision, by the measure that it is judged by."""
    rows = []
    for variable in dict.fromkeys(check.variable for check in checks):
        own = [check for check in checks if check.variable == variable]
        row: dict[str, Any] = {"variable": variable.replace("_", " "), "sites": len({check.where for check in own})}
        row["judged by"] = " and ".join(sorted({_MEASURES[check.by] for check in own}))
        for dtype in dict.fromkeys(check.dtype for check in own):
            judged = [check for check in own if check.dtype == dtype]
            row[f"{dtype}, largest error"] = max(map(_judged, judged))
            row[f"{dtype}, bound"] = min(check.tolerance for check in judged)
        rows.append(row | {"passed": _badges([all(check.passed for check in own)])[0]})
    return pd.DataFrame(rows)


def _badges(passed: Iterable[Any]) -> pd.Series[Any]:
    return pd.Series([Verdict(bool(p), "pass" if p else "fail") for p in passed], dtype=object)


def _size(size: Any) -> str:
    return " × ".join(map(str, size)) if isinstance(size, tuple) else str(size)
