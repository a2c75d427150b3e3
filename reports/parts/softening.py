"""Softmax only: how fast the error of a handwired model vanishes as its heads turn from soft to hard."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pandas as pd

from circuits.verification import VerificationResult, verify
from reports import figures
from reports.blocks import Figure, Prose, Table
from reports.page import Section
from reports.part import Context, Part

TITLE = "Softmax only"
ETAS = (10, 20, 30, 40, 60, 80)
"""Inverse temperatures: the leak of a head is about exp(-eta / 2), so float64 is exhausted near 80."""
_ROUNDS = 40
"""Rounds that the softened models run for at most."""
_SMALLEST = 1e-17
_OUTPUTS = ("output", "latents")
"""Where a check is of what the model gives, not of an intermediate variable."""
_TEXT = (
    "The exact circuit uses hard attention, and linear heads where it sums. Here every head is softmax, at inverse "
    "temperature η: a silent or choosing head leaks about exp(−η/2) of attention to wrong tokens, and the error of the "
    "whole model falls with it until rounding takes over."
)


def part(outputs: Mapping[str, str], n_episodes: int, **arguments: Any) -> Part:
    """The softmax-only variant of a handwired model at several inverse temperatures, verified like the exact one.

    Args:
        outputs: variable -> what to call it; the first is drawn.
        n_episodes: at most.
        arguments: of the circuit's softmax-only variant, beside its inverse temperature ``eta``.
    """

    def compute(context: Context) -> dict[int, VerificationResult]:
        few, rounds = min(n_episodes, context.n_episodes), min(_ROUNDS, context.n_rounds)
        size = tuple(context.sizes.values())
        name, options = context.circuit.name, {"seed": context.seed, **arguments}
        return {eta: verify(name, (size,), rounds, few, eta=float(eta), **options) for eta in ETAS}

    def draw(results: Mapping[int, VerificationResult], context: Context) -> Section:
        return _softmax_only(results, outputs)

    return Part("softening", TITLE, compute, draw, lambda context: context.handwired, slow=True)


def _softmax_only(results: Mapping[int, VerificationResult], outputs: Mapping[str, str]) -> Section:
    """Error against inverse temperature, in both precisions.

    Args:
        results: inverse temperature -> verification of the softmax-only model.
        outputs: variable -> what to call it; the first is drawn.
    """
    errors = pd.DataFrame(
        [
            {"eta": eta, "dtype": check.dtype, "variable": check.variable, "error": check.error}
            for eta, result in results.items()
            for check in result.checks
            if check.variable in outputs and check.where in _OUTPUTS
        ]
    )
    first, called = next(iter(outputs.items()))
    drawn = errors[errors["variable"] == first].rename(columns={"error": "mean", "dtype": "algorithm"})
    drawn["mean"] = drawn["mean"].clip(lower=_SMALLEST)
    ylabel = f"largest error of {called}"
    picture = figures.curves(drawn, x="eta", xlabel="inverse temperature η", ylabel=ylabel, log_y=True)
    rows = errors.assign(what=errors["variable"].map(outputs) + ", " + errors["dtype"])
    table = rows.pivot(index="what", columns="eta", values="error").rename(columns=lambda eta: f"η = {eta}")
    settings = next(iter(results.values())).settings
    ran = f"{settings['episodes']} episodes of {settings['rounds']} rounds"
    caption = f"Largest error over {ran}, against the exact algorithm."
    return Section(
        TITLE,
        [
            Prose(_TEXT),
            Figure(picture, "Error against inverse temperature", caption),
            Table(table.reset_index().rename(columns={"what": "largest error"}), "The same numbers"),
        ],
    )
