"""What a report opens and ends with: the summary, the check against the algorithm, and how to reproduce it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import pandas as pd

from circuits.verification import Check, VerificationResult
from interp.model.transformer import HookedLatentTransformer
from probes import ProbeResult
from reports.blocks import Code, Prose, Summary, Table, Verdict, number
from reports.page import Section

_VERIFIED = (
    "The model ran over fresh episodes, its own state carried from round to round, and every causal variable of its "
    "circuit was read inside the forward pass, at every round, and compared with the reference algorithm in NumPy. "
    "Errors are the largest over all episodes, rounds and elements. This shows that this construction computes the "
    "algorithm; it is no evidence about a learned model."
)


def summary(items: Mapping[str, Any]) -> Section:
    """The facts and verdicts that a reader in a hurry needs."""
    return Section("Summary", [Summary(items)])


def describe(model: HookedLatentTransformer) -> str:
    """A model in a line: layers, heads, sizes, precision."""
    config = model.config
    heads = sum(name != "-" for names in config.head_names for name in names) or config.n_layers * config.n_heads
    weights = sum(int((p != 0).sum()) for p in model.parameters())
    precision = str(model.cfg.dtype).removeprefix("torch.")
    sizes = f"{config.n_layers} layers, {heads} heads, d_model {config.d_model}"
    return f"{sizes}, {number(weights)} non-zero weights, {precision}"


def exactness(result: VerificationResult, variable: str, dtype: str = "float64") -> Verdict:
    """A badge: the largest error of one variable over all sizes, against its tolerance."""
    checks = [check for check in result.checks if check.variable == variable and check.dtype == dtype]
    worst = max(checks, key=lambda check: check.error)
    passed = all(check.passed for check in checks)
    if worst.error == 0:
        return Verdict(passed, "equal in every bit")
    sign = "≤" if passed else ">"
    return Verdict(passed, f"largest error {number(worst.error)} {sign} {number(worst.tolerance)}")


def verdict(passed: bool, yes: str, no: str) -> Verdict:
    """A badge for a yes-or-no question."""
    return Verdict(passed, yes if passed else no)


def represented(result: ProbeResult) -> Verdict:
    """A badge: a probe's score and whether it beats its controls."""
    name = "R²" if result.metric == "r2" else result.metric
    return Verdict(
        result.represented,
        f"{name} {result.score.estimate:.3f}" + ("" if result.represented else ", not beyond its controls"),
    )


def verification(result: VerificationResult) -> Section:
    """The largest error of every variable over sizes and sites, then every check."""
    checks = result.to_frame()
    sizes = list(dict.fromkeys(_size(size) for size in checks["size"]))
    ran = f"{result.settings['episodes']} episodes of {result.settings['rounds']} rounds at sizes {', '.join(sizes)}"
    caption = f"Largest errors over {ran}. Relative errors are to max(1, |value|)."
    every = checks.assign(size=[_size(size) for size in checks["size"]], passed=_badges(checks["passed"]))
    return Section(
        "Verification against the algorithm",
        [
            Prose(_VERIFIED),
            Table(_worst(result.checks), caption),
            Table(every, "Every variable at every site, size and precision", collapsed=True),
        ],
    )


def _worst(checks: Sequence[Check]) -> pd.DataFrame:
    """A row per variable: how far off it ever was, in either precision, by the measure that it is judged by."""
    rows = []
    for variable in dict.fromkeys(check.variable for check in checks):
        own = [check for check in checks if check.variable == variable]
        row: dict[str, Any] = {"variable": variable.replace("_", " "), "sites": len({check.where for check in own})}
        for dtype in dict.fromkeys(check.dtype for check in own):
            judged = [check for check in own if check.dtype == dtype]
            errors = [check.error if check.by == "error" else check.relative for check in judged]
            relative = " (relative)" if any(check.by != "error" for check in judged) else ""
            row[f"{dtype}, largest error{relative}"] = max(errors)
            row[f"{dtype}, bound"] = min(check.tolerance for check in judged)
        rows.append(row | {"passed": _badges([all(check.passed for check in own)])[0]})
    return pd.DataFrame(rows)


def _badges(passed: Iterable[Any]) -> pd.Series[Any]:
    return pd.Series([Verdict(bool(p), "pass" if p else "fail") for p in passed], dtype=object)


def _size(size: Any) -> str:
    return " × ".join(map(str, size)) if isinstance(size, tuple) else str(size)


def reproduce(shell: str, python: str) -> Section:
    """The command that writes this page again, and the same numbers from Python."""
    text = "The same command with the same versions gives the same numbers. Seeds, versions and digests are below."
    return Section(
        "How to reproduce", [Prose(text), Code(shell, "From a shell, in a checkout"), Code(python, "From Python")]
    )
