"""A handwired model against its algorithm: exact, with soft attention only, and in every variant and size."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import pandas as pd

from circuits.exactness import CARRIED
from circuits.registry import handwired
from circuits.verification import VerificationResult, verify, verify_machine
from interp.results.measure import Measure
from interp.support.errors import InputError
from reports.blocks import Prose, Table, curves, number, pivoted
from reports.part import Context, Part, uncompiled, wired
from reports.texts import TEXTS

_SAYS = TEXTS["verification"]
_EXITS = ("distribution", CARRIED)  # what is checked of a machine whose insides are not known
_ROUNDS = 20  # rounds at least: an algorithm that ends sooner is followed for longer
_MEASURES = {"error": "absolute error", "relative": "relative error"}
_SMALLEST = 1e-17  # what an error of 0 is drawn as, on a logarithmic axis


def _unlisted(context: Context) -> str:
    """Return what a machine lacks if it has no circuit, or one that does not locate what it
    predicts.
    """
    if not context.compiled:
        return uncompiled(context)
    try:
        circuit = context.circuit
    except InputError:
        return ""  # a circuit that was edited: the part says so
    if handwired(circuit.name).plan.output in circuit.sites:
        return ""
    return f"not applicable: the circuit of {context.model.name} lists no site of what it predicts"


def part(sizes: Sequence[Any], n_episodes: int, shown: Sequence[str]) -> Part:
    """Make the part of the largest error of every variable of a handwired model.

    Args:
        sizes: at which it is verified, as :func:`circuits.verify` takes them.
        n_episodes: of each size, at most.
        shown: the page opens with the measures of these variables; the tables hold all.
    """

    def compute(context: Context) -> VerificationResult:
        n_run = min(n_episodes, context.n_episodes)
        if _unlisted(context):
            return verify_machine(
                context.model,
                context.algorithm,
                n_rounds=context.n_rounds,
                n_episodes=n_run,
                seed=context.seed,
            )
        listed = [tuple(size) if isinstance(size, list) else size for size in sizes]
        n_rounds = max(context.n_rounds, _ROUNDS)
        return verify(context.circuit.name, listed, n_rounds, n_run, seed=context.seed)

    def summarise(result: VerificationResult, context: Context) -> list[Measure]:
        keys = _EXITS if _unlisted(context) else shown
        measures = [measure for measure in result if measure.key in keys]
        return [replace(measure, claim=measure.claim.replace("_", " ")) for measure in measures]

    return Part(
        "verification",
        "Verification against the algorithm",
        compute,
        _draw,
        wired,
        summarise,
        lambda result, context: result.sentence if result.passed else "",
    )


def _draw(result: VerificationResult, context: Context) -> list[object]:
    """Show the largest errors, and every check."""
    checks = result.table()
    checks["size"] = checks["size"].map(_write_size)
    sizes = ", ".join(checks["size"].unique())
    text = _SAYS["exits_text" if _unlisted(context) else "text"]
    caption = f"Largest errors over {_describe_run(result)} at sizes {sizes}. {_RELATIVE}"
    return [
        Prose(text.format(algorithm=context.algorithm.name)),
        Table(_find_largest(result), caption),
        Table(checks, "Every variable at every location, size and precision", collapsed=True),
    ]


_RELATIVE = "Relative errors are to the value, or to the machine's unit where the value is smaller."


def _describe_run(result: VerificationResult) -> str:
    return f"{result.settings['episodes']} episodes of {result.settings['rounds']} rounds"


def _write_size(size: Any) -> str:
    return " × ".join(map(str, size)) if isinstance(size, tuple) else str(size)


def _find_largest(result: VerificationResult) -> pd.DataFrame:
    """Make a row for each variable: how far off it ever was in either precision, by the measure that judges it."""
    checks = pd.DataFrame([vars(check) for check in result.checks])
    checks["judged"] = [check.judged for check in result.checks]
    checks["passed"] = [check.passed for check in result.checks]
    rows = []
    for variable, of_variable in checks.groupby("variable", sort=False):
        row: dict[str, Any] = {"variable": str(variable).replace("_", " ")}
        row["sites"] = of_variable["where"].nunique()
        row["judged by"] = " and ".join(sorted({_MEASURES[name] for name in of_variable["by"]}))
        for dtype, judged in of_variable.groupby("dtype", sort=False):
            row[f"{dtype}, largest error"] = judged["judged"].max()
            row[f"{dtype}, bound"] = judged["tolerance"].min()
        row["passed"] = bool(of_variable["passed"].all())
        rows.append(row)
    return pd.DataFrame(rows)


_ETAS = (10, 20, 30, 40, 60, 80)
"""Inverse temperatures: the leak of a head is about exp(-eta / 2), so float64 is exhausted near 80."""
_SOFT_ROUNDS = 40  # rounds that the softened models run for at most
_OUTPUTS = ("output", "latents")
"""Where a check is of what the model gives, not of an intermediate variable."""


def softening(outputs: Mapping[str, str], n_episodes: int, **arguments: Any) -> Part:
    """Make the part of the softmax-only variant at several inverse temperatures, verified like the exact one.

    Args:
        outputs: variable -> what to call it; the first is drawn.
        n_episodes: that it runs over, at most.
        arguments: of the variant.
    """

    def compute(context: Context) -> dict[int, VerificationResult]:
        n_run = min(n_episodes, context.n_episodes)
        n_rounds = min(_SOFT_ROUNDS, context.n_rounds)
        sizes = (tuple(context.sizes.values()),)
        name = context.circuit.name
        results = {}
        for eta in _ETAS:
            results[eta] = verify(
                name, sizes, n_rounds, n_run, seed=context.seed, eta=float(eta), **arguments
            )
        return results

    draw = partial(_draw_softened, outputs)
    return Part("softening", "Softmax only", compute, draw, wired, slow=True, lacking=_unlisted)


def _draw_softened(
    outputs: Mapping[str, str], results: Mapping[int, VerificationResult], context: Context
) -> list[object]:
    """Draw the error of what the model gives over the inverse temperature.

    Args:
        outputs: variable -> what to call it.
        results: inverse temperature -> its verification.
        context: of the report.
    """
    rows = []
    for eta, result in results.items():
        for check in result.checks:
            if check.variable in outputs and check.where in _OUTPUTS:
                rows.append({"eta": eta, **vars(check)})
    errors = pd.DataFrame(rows)
    first, name = next(iter(outputs.items()))
    drawn = errors[errors["variable"] == first].rename(columns={"dtype": "algorithm"})
    drawn["mean"] = drawn["error"].clip(lower=_SMALLEST)
    smallest = drawn.iloc[int(drawn["mean"].argmin())]
    picture = curves(
        _SAYS["softened"],
        drawn[["eta", "algorithm", "variable", "mean"]],
        called=name,
        least=number(smallest["mean"]),
        eta=smallest["eta"],
        ran=_describe_run(next(iter(results.values()))),
    )
    errors["largest error"] = errors["variable"].map(outputs) + ", " + errors["dtype"]
    errors["eta"] = errors["eta"].map("η = {}".format)
    table = pivoted(errors, "largest error", "eta", "error").sort_values("largest error")
    return [Prose(_SAYS["soft_text"]), picture, Table(table, "The same numbers")]


_N_EPISODES, _N_ROUNDS = 4, 12  # of every check
