"""The report part that verifies a handwired model against its algorithm."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pandas as pd

from circuits.exactness import CARRIED
from circuits.registry import DTYPES, build, get_record, with_defaults
from circuits.verification import VerificationResult, verify, verify_machine
from interp.results.measure import Measure
from interp.support.errors import InputError
from reports.blocks import Prose, Table
from reports.part import Context, Part, is_handwired, refuse_without_circuit
from reports.texts import TEXTS

_TEXTS = TEXTS["verification"]
_OUTPUT_KEYS = ("distribution", CARRIED)
"""What is checked of a machine whose insides are not known."""
_FEWEST_ROUNDS = 20
"""Rounds at least: an algorithm that ends sooner is followed for longer."""
_ERROR_NAMES = {"error": "absolute error", "relative": "relative error"}


def _describe_lack(context: Context) -> str:
    """Return a sentence that says why the variables inside a machine cannot be checked, or "" if
    they can.

    They cannot be checked without a circuit, or if the circuit does not say where the prediction is
    stored.
    """
    if not context.is_compiled:
        return refuse_without_circuit(context)
    try:
        circuit = context.circuit
    except InputError:
        return ""  # a circuit that was edited: the part says so
    if get_record(circuit.name).plan.output in circuit.sites:
        return ""
    return f"not applicable: the circuit of {context.model.name} lists no site of what it predicts"


def part(sizes: Sequence[Any], n_episodes: int, shown: Sequence[str]) -> Part:
    """Make the report part that compares every variable inside a handwired model with its algorithm
    on the same episodes, and shows the largest errors.

    Args:
        sizes: sizes of the episodes, such as numbers of experts. The model is built and compared at
            each of them, as by :func:`circuits.verify`.
        n_episodes: maximum number of episodes per size.
        shown: keys of the variables whose errors the overview at the top of the page lists. The
            tables in this part's section list all variables.
    """

    def compute(context: Context) -> VerificationResult:
        """Compare the model with its algorithm on the same episodes.

        If variables inside the machine cannot be checked, only predictions and state are compared,
        at the sizes of the report's episodes. Otherwise every variable is compared, at each of
        ``sizes``.
        """
        n_run = min(n_episodes, context.n_episodes)
        if _describe_lack(context):
            return verify_machine(
                context.model,
                context.algorithm,
                n_rounds=context.n_rounds,
                n_episodes=n_run,
                seed=context.seed,
            )
        listed = [tuple(size) if isinstance(size, list) else size for size in sizes]
        circuit = context.circuit
        return verify(
            circuit.name,
            listed,
            n_rounds=max(context.n_rounds, _FEWEST_ROUNDS),
            n_episodes=n_run,
            dtype="float64" if circuit.float64_only else DTYPES,
            seed=context.seed,
            **_find_changed_arguments(context),
        )

    def summarise(result: VerificationResult, context: Context) -> list[Measure]:
        keys = _OUTPUT_KEYS if _describe_lack(context) else shown
        measures = [measure for measure in result if measure.key in keys]
        return [replace(measure, claim=measure.claim.replace("_", " ")) for measure in measures]

    return Part(
        "verification",
        "Verification against the algorithm",
        compute,
        _draw,
        applies=is_handwired,
        summary=summarise,
        sentence=lambda result, context: result.sentence if result.passed else "",
    )


def _find_changed_arguments(context: Context) -> dict[str, Any]:
    """Return the arguments with which :func:`circuits.verify` builds the model's circuit again:
    name -> value. Sizes of the task, and arguments that have their default value, are left out.
    """
    circuit = context.circuit
    dtype = str(context.model.dtype).removeprefix("torch.")
    sizes = context.task.sizes_of(context.model.layout)
    defaults = build(circuit.name, **with_defaults(circuit.name, dtype, sizes)).arguments
    changed = {name: value for name, value in circuit.arguments.items() if value != defaults[name]}
    changed["circuit_seed"] = changed.pop("seed", None)  # "seed" of verify is that of the episodes
    return changed


def _draw(result: VerificationResult, context: Context) -> list[object]:
    """Return the blocks of the section: a table of the largest errors of the model's variables
    against the algorithm's, and a folded table of all errors.

    Args:
        result: results of the verification.
        context: the report's model, episodes and settings.
    """
    checks = result.table()
    checks["size"] = checks["size"].map(_write_size)
    sizes = ", ".join(checks["size"].unique())
    text = _TEXTS["exits_text" if _describe_lack(context) else "text"]
    run = "{episodes} episodes of {rounds} rounds".format_map(result.settings)
    caption = f"Largest errors over {run} at sizes {sizes}. {_RELATIVE_NOTE}"
    return [
        Prose(text.format(algorithm=context.algorithm.name)),
        Table(_find_largest(result), caption),
        Table(checks, "Errors of every variable, by site, size and precision", collapsed=True),
    ]


_RELATIVE_NOTE = (
    "Relative errors are relative to the value, or to the machine's unit if the value is smaller."
)


def _write_size(size: Any) -> str:
    """Return a size of the episodes as text, such as "4" or "4 × 2"."""
    return " × ".join(map(str, size)) if isinstance(size, tuple) else str(size)


def _find_largest(result: VerificationResult) -> pd.DataFrame:
    """Return a table with one row per variable: its largest error and its tolerance, in each dtype."""
    checks = pd.DataFrame([vars(check) for check in result.checks])
    checks["judged"] = [check.judged_error for check in result.checks]  # the error that is judged
    checks["passed"] = [check.passed for check in result.checks]
    rows = []
    for variable, of_variable in checks.groupby("variable", sort=False):
        row: dict[str, Any] = {"variable": str(variable).replace("_", " ")}
        row["sites"] = of_variable["where"].nunique()
        row["judged by"] = " and ".join(sorted(of_variable["by"].map(_ERROR_NAMES).unique()))
        for dtype, of_dtype in of_variable.groupby("dtype", sort=False):
            row[f"{dtype}, largest error"] = of_dtype["judged"].max()
            row[f"{dtype}, bound"] = of_dtype["tolerance"].min()
        row["passed"] = bool(of_variable["passed"].all())
        rows.append(row)
    return pd.DataFrame(rows)
