"""A handwired model against its algorithm: exact, with soft attention only, and in every variant and size."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import product
from typing import Any

import pandas as pd

import circuits
from circuits.exactness import CARRIED
from circuits.registry import handwired
from circuits.verification import VerificationResult, verify, verify_machine
from interp.results.measure import Measure
from interp.support.errors import InputError
from reports.blocks import TEXTS, Figure, Prose, Table, curves, number
from reports.part import Context, Part, uncompiled, wired

_SAYS = TEXTS["verification"]
_EXITS = ("distribution", CARRIED)  # what is checked of a machine whose insides are not known
_ROUNDS = 20  # rounds at least: an algorithm that ends sooner is followed for longer
_MEASURES = {"error": "absolute error", "relative": "relative error"}
_SMALLEST = 1e-17  # what an error of 0 is drawn as, on a logarithmic axis


def _unlisted(context: Context) -> str:
    """What a machine lacks whose circuit, if it has one, does not say where it holds what it predicts."""
    try:
        sites = context.circuit.sites if context.compiled else {}
    except InputError:
        return ""  # a circuit that was edited: the part says so
    if not context.compiled or handwired(context.circuit.name).plan.output in sites:
        return uncompiled(context)
    return f"not applicable: the circuit of {context.model.name} lists no site of what it predicts"


def part(sizes: Sequence[Any], n_episodes: int, shown: Sequence[str]) -> Part:
    """The largest error of every variable of a handwired model, at several sizes, as :func:`circuits.verify` takes
    them.

    The page opens with the measures of the variables ``shown``; the tables hold all.
    """

    def compute(context: Context) -> VerificationResult:
        few, several = (
            min(n_episodes, context.n_episodes),
            [tuple(n) if isinstance(n, list) else n for n in sizes],
        )
        if _unlisted(context):
            ran = {"n_rounds": context.n_rounds, "n_episodes": few, "seed": context.seed}
            return verify_machine(context.model, context.algorithm, **ran)
        return verify(
            context.circuit.name, several, max(context.n_rounds, _ROUNDS), few, seed=context.seed
        )

    def summary(result: VerificationResult, context: Context) -> list[Measure]:
        keys = _EXITS if _unlisted(context) else shown
        return [
            replace(one, claim=one.claim.replace("_", " ")) for one in result if one.key in keys
        ]

    return Part(
        "verification",
        "Verification against the algorithm",
        compute,
        _draw,
        wired,
        summary,
        lambda result, context: result.sentence if result.passed else "",
    )


def _draw(result: VerificationResult, context: Context) -> list[object]:
    checks = result.table()
    checks = checks.assign(
        size=[" × ".join(map(str, s)) if isinstance(s, tuple) else str(s) for s in checks["size"]]
    )
    sizes = list(dict.fromkeys(checks["size"]))
    ran = f"{result.settings['episodes']} episodes of {result.settings['rounds']} rounds at sizes {', '.join(sizes)}"
    relative = (
        "Relative errors are to the value, or to the machine's unit where the value is smaller."
    )
    rows = []  # a row a variable: how far off it ever was, in either precision, by the measure that it is judged by
    for variable in dict.fromkeys(check.variable for check in result.checks):
        of_variable = [check for check in result.checks if check.variable == variable]
        row: dict[str, Any] = {
            "variable": variable.replace("_", " "),
            "sites": len({c.where for c in of_variable}),
        }
        row["judged by"] = " and ".join(sorted({_MEASURES[check.by] for check in of_variable}))
        for dtype in dict.fromkeys(check.dtype for check in of_variable):
            judged = [check for check in of_variable if check.dtype == dtype]
            row[f"{dtype}, largest error"] = max(check.judged for check in judged)
            row[f"{dtype}, bound"] = min(check.tolerance for check in judged)
        rows.append(row | {"passed": all(check.passed for check in of_variable)})
    return [
        Prose(
            _SAYS["exits_text" if _unlisted(context) else "text"].format(
                algorithm=context.algorithm.name
            )
        ),
        Table(pd.DataFrame(rows), f"Largest errors over {ran}. {relative}"),
        Table(checks, "Every variable at every location, size and precision", collapsed=True),
    ]


_ETAS = (10, 20, 30, 40, 60, 80)
"""Inverse temperatures: the leak of a head is about exp(-eta / 2), so float64 is exhausted near 80."""
_SOFT_ROUNDS = 40  # rounds that the softened models run for at most
_OUTPUTS = (
    "output",
    "latents",
)  # where a check is of what the model gives, not of an intermediate variable


def softening(outputs: Mapping[str, str], n_episodes: int, **arguments: Any) -> Part:
    """The softmax-only variant of a handwired model at several inverse temperatures, verified like the exact one.

    ``outputs`` is variable -> what to call it, of which the first is drawn; ``arguments`` are those of the variant.
    """

    def compute(context: Context) -> dict[int, VerificationResult]:
        few, rounds = min(n_episodes, context.n_episodes), min(_SOFT_ROUNDS, context.n_rounds)
        size = tuple(context.sizes.values())
        name, options = context.circuit.name, {"seed": context.seed, **arguments}
        return {eta: verify(name, (size,), rounds, few, eta=float(eta), **options) for eta in _ETAS}

    drawn = partial(_draw_softened, outputs)
    return Part("softening", "Softmax only", compute, drawn, wired, slow=True, lacking=_unlisted)


def _draw_softened(
    outputs: Mapping[str, str], results: Mapping[int, VerificationResult], context: Context
) -> list[object]:
    measured = [
        (eta, check.dtype, check.variable, check.error)
        for eta, result in results.items()
        for check in result.checks
        if check.variable in outputs and check.where in _OUTPUTS
    ]
    errors = pd.DataFrame(measured, columns=["eta", "dtype", "variable", "error"])
    first, called = next(iter(outputs.items()))
    drawn = errors[errors["variable"] == first].rename(
        columns={"error": "mean", "dtype": "algorithm"}
    )
    drawn["mean"] = drawn["mean"].clip(lower=_SMALLEST)
    rows = errors.assign(what=errors["variable"].map(outputs) + ", " + errors["dtype"])
    table = rows.pivot(index="what", columns="eta", values="error").rename(
        columns=lambda eta: f"η = {eta}"
    )
    settings = next(iter(results.values())).settings
    ran = f"{settings['episodes']} episodes of {settings['rounds']} rounds"
    least = drawn.iloc[int(drawn["mean"].argmin())]
    about = {"called": called, "least": number(least["mean"]), "eta": least["eta"], "ran": ran}
    return [
        Prose(_SAYS["soft_text"]),
        curves(_SAYS["softened"], drawn, **about),
        Table(table.reset_index().rename(columns={"what": "largest error"}), "The same numbers"),
    ]


_N_EPISODES, _N_ROUNDS = 4, 12  # of every check


@dataclass(frozen=True)
class Sweep:
    """One setting of a circuit, moved over its values for every variant, or for some ``variants``, beside ``fixed``
    ones.

    ``called`` is what the axis says; the error of the output is drawn, or else that of the carried state.
    """

    setting: str
    called: str
    values: tuple[float, ...]
    output: bool = False
    fixed: Mapping[str, Any] = field(default_factory=dict)
    variants: tuple[str, ...] = ()
    log: bool = False


def variants(
    names: Sequence[str], sweeps: Sequence[Sweep], sizes: Sequence[tuple[int, ...]]
) -> Part:
    """How exact every variant (``names``) is over every sweep, and how large the exact circuit is at some sizes."""

    def compute(context: Context) -> tuple[list[pd.DataFrame], pd.DataFrame]:
        name, size, tables = context.circuit.name, tuple(context.sizes.values()), []
        for sweep in sweeps:  # the largest error of the swept variable, for every variant and value
            key, where = (
                (handwired(name).plan.output, "output") if sweep.output else (CARRIED, "latents")
            )
            rows = []
            for variant, value in product(sweep.variants or names, sweep.values):
                settings: dict[str, Any] = {"variant": variant, sweep.setting: value, **sweep.fixed}
                result = verify(
                    name, (size,), _N_ROUNDS, _N_EPISODES, "float64", context.seed, **settings
                )
                error = next(
                    check.error
                    for check in result.checks
                    if (check.variable, check.where) == (key, where)
                )
                rows.append({"value": value, "variant": variant, "error": error})
            tables.append(pd.DataFrame(rows))
        by_size = []
        for size in sizes:
            given: dict[str, Any] = {
                of.name: value for of, value in zip(context.task.sizes, size, strict=True)
            }
            model = circuits.load(name, **given)
            config, weights = model.config, list(model.parameters())
            heads = sum(name != "-" for names in config.head_names for name in names)
            shape = (model.layout.n_positions, config.n_layers, heads, config.d_model)
            not_zero = sum(int((weight != 0).sum()) for weight in weights)
            by_size.append((*size, *shape, sum(weight.numel() for weight in weights), not_zero))
        options = [of.option for of in context.task.sizes]
        columns = [*options, "positions", "layers", "heads", "d_model", "weights", "not zero"]
        return tables, pd.DataFrame(by_size, columns=columns)

    def draw(measured: tuple[list[pd.DataFrame], pd.DataFrame], context: Context) -> list[object]:
        drawn = [_drawn(errors, sweep) for errors, sweep in zip(measured[0], sweeps, strict=True)]
        text = _SAYS["variants_text"].format(episodes=_N_EPISODES, rounds=_N_ROUNDS)
        return [Prose(text), *drawn, Table(measured[1], "The exact circuit by size")]

    return Part(
        "variants", "Variants and sizes", compute, draw, wired, slow=True, lacking=_unlisted
    )


def _drawn(errors: pd.DataFrame, sweep: Sweep) -> Figure:
    what = "what it predicts" if sweep.output else "the state that it carries"
    frame = errors.rename(columns={"value": sweep.setting}).assign(
        algorithm=errors["variant"],
        name="variant " + errors["variant"],
        mean=errors["error"].clip(lower=_SMALLEST),
    )
    which = f"variant {', '.join(sweep.variants)}" if sweep.variants else "every variant"
    fixed = "".join(f", at {name} = {value:g}" for name, value in sweep.fixed.items())
    least = frame.iloc[int(frame["mean"].argmin())]
    about = {
        "at": least[sweep.setting],
        "least": number(least["mean"]),
        "name": least["name"],
        "what": what,
    }
    about |= {"setting": sweep.setting, "called": sweep.called, "which": which + fixed}
    return curves({**_SAYS["swept"], "log_x": sweep.log}, frame, data=errors, **about)
