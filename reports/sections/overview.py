"""What a report opens and ends with: the summary, the check against the algorithm, and how to reproduce it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pandas as pd

from circuits.verification import VerificationResult
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


def represented(result: ProbeResult) -> Verdict:
    """A badge: a probe's score and whether it beats its controls."""
    name = "R²" if result.metric == "r2" else result.metric
    return Verdict(
        result.represented,
        f"{name} {result.score.estimate:.3f}" + ("" if result.represented else ", not beyond its controls"),
    )


def verification(result: VerificationResult) -> Section:
    """Errors of every variable by size and precision, and of every site behind them."""
    rows, sites = result.summary(), result.to_frame()
    for frame in (rows, sites):
        frame["passed"] = pd.Series([Verdict(bool(p), "pass" if p else "fail") for p in frame["passed"]], dtype=object)
        frame["size"] = [" × ".join(map(str, s)) if isinstance(s, tuple) else str(s) for s in frame["size"]]
    ran = f"{result.settings['episodes']} episodes of {result.settings['rounds']} rounds at every size"
    judged = "Float64 is judged by the absolute error, float32 by the relative one."
    caption = f"Largest error of every variable over its sites; {ran}. {judged}"
    return Section(
        "Verification against the algorithm",
        [Prose(_VERIFIED), Table(rows, caption), Table(sites, "Every site of every variable", collapsed=True)],
    )


def reproduce(shell: str, python: str) -> Section:
    """The command that writes this page again, and the same numbers from Python."""
    text = "The same command with the same versions gives the same numbers. Seeds, versions and digests are below."
    return Section(
        "How to reproduce", [Prose(text), Code(shell, "From a shell, in a checkout"), Code(python, "From Python")]
    )
