"""The variants of a handwired circuit: how exact each is at every softness, and how large a circuit is by size."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pandas as pd

import circuits
from circuits.exactness import CARRIED
from circuits.registry import handwired
from circuits.verification import verify
from reports import figures
from reports.blocks import Figure, Prose, Table
from reports.page import Section
from reports.part import Context, Part

TITLE = "Variants and sizes"
N_EPISODES, N_ROUNDS = 4, 12
"""Of every check."""
_SMALLEST = 1e-17
_TEXT = (
    "Each variant of the circuit, checked against the algorithm in float64 at every setting, {episodes} episodes of "
    "{rounds} rounds each. The error is the largest over episodes, rounds and elements. Layers, heads and d_model are "
    "those of the exact circuit; weights that are not zero are what was written down, all others are there for the "
    "shape of a transformer."
)


@dataclass(frozen=True)
class Sweep:
    """One setting of a circuit, moved over its values for every variant.

    Attributes:
        setting: its name as an argument, such as "eta".
        called: what the axis says.
        values: of the setting.
        output: whether the error of the output is drawn, else that of the carried state.
        fixed: other arguments.
        variants: which of the circuit's; all when empty.
        log: whether the axis is logarithmic.
    """

    setting: str
    called: str
    values: tuple[float, ...]
    output: bool = False
    fixed: Mapping[str, Any] = field(default_factory=dict)
    variants: tuple[str, ...] = ()
    log: bool = False


@dataclass(frozen=True)
class Measured:
    """Errors of every sweep, in order (columns ``value``, ``variant``, ``error``), and a table of sizes."""

    errors: Sequence[pd.DataFrame]
    sizes: pd.DataFrame


def part(variants: Sequence[str], sweeps: Sequence[Sweep], sizes: Sequence[tuple[int, ...]]) -> Part:
    """Every variant over every sweep.

    Args:
        variants: of the circuit's argument ``variant``.
        sizes: what the table lists, in the order of the task's sizes.
    """

    def compute(context: Context) -> Measured:
        errors = [_errors(context, sweep, sweep.variants or variants) for sweep in sweeps]
        return Measured(errors, _sizes(context, sizes))

    def draw(measured: Measured, context: Context) -> Section:
        drawn = [_drawn(errors, sweep) for errors, sweep in zip(measured.errors, sweeps, strict=True)]
        text = _TEXT.format(episodes=N_EPISODES, rounds=N_ROUNDS)
        return Section(TITLE, [Prose(text), *drawn, Table(measured.sizes, "The exact circuit by size")])

    return Part("variants", TITLE, compute, draw, lambda context: context.handwired, slow=True)


def _errors(context: Context, sweep: Sweep, variants: Sequence[str]) -> pd.DataFrame:
    """The largest error of the swept variable, for every variant and value."""
    name, size, rows = context.circuit.name, tuple(context.sizes.values()), []
    key, where = (handwired(name).plan.output, "output") if sweep.output else (CARRIED, "latents")
    for variant in variants:
        for value in sweep.values:
            settings: dict[str, Any] = {"variant": variant, sweep.setting: value, **sweep.fixed}
            result = verify(name, (size,), N_ROUNDS, N_EPISODES, "float64", context.seed, **settings)
            error = next(check.error for check in result.checks if (check.variable, check.where) == (key, where))
            rows.append({"value": value, "variant": variant, "error": error})
    return pd.DataFrame(rows)


def _drawn(errors: pd.DataFrame, sweep: Sweep) -> Figure:
    what = "what it predicts" if sweep.output else "the state that it carries"
    frame = errors.rename(columns={"value": sweep.setting}).assign(
        algorithm=errors["variant"], name="variant " + errors["variant"], mean=errors["error"].clip(lower=_SMALLEST)
    )
    ylabel = f"largest error of {what}"
    picture = figures.curves(frame, x=sweep.setting, xlabel=sweep.called, ylabel=ylabel, log_x=sweep.log, log_y=True)
    which = f"variant {', '.join(sweep.variants)}" if sweep.variants else "every variant"
    fixed = "".join(f", at {name} = {value:g}" for name, value in sweep.fixed.items())
    caption = f"Largest error of {what} against the {sweep.called}, for {which}{fixed}."
    return Figure(picture, f"Error against the {sweep.called}", caption, errors)


def _sizes(context: Context, sizes: Sequence[tuple[int, ...]]) -> pd.DataFrame:
    """Layers, heads, d_model and weights of the exact circuit by size."""
    rows = []
    for size in sizes:
        given: dict[str, Any] = {of.name: value for of, value in zip(context.task.sizes, size, strict=True)}
        model = circuits.load(context.circuit.name, **given)
        heads = sum(name != "-" for names in model.config.head_names for name in names)
        counted = {"layers": model.config.n_layers, "heads": heads, "d_model": model.config.d_model}
        weights = {
            "weights": sum(parameter.numel() for parameter in model.parameters()),
            "not zero": sum(int((parameter != 0).sum()) for parameter in model.parameters()),
        }
        names = {of.option: given[of.name] for of in context.task.sizes}
        rows.append({**names, "positions": model.layout.n_positions, **counted, **weights})
    return pd.DataFrame(rows)
