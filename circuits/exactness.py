"""How far a circuit that runs lies from its algorithm: every variable, everywhere, every round.

Six checks are about no single variable of the algorithm (``docs/method/ground-truth.md``): ``distribution``,
``carried_state``, ``residue``, ``position_code``, ``causality`` and ``horizon``.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from circuits.basis import POS
from circuits.circuit import Circuit, Size, VerificationPlan
from circuits.compiler import compile_circuit, rows
from interp import tasks
from interp.core.algorithm import NEXT, Algorithm, Episodes, Values
from interp.core.machine import Machine
from interp.model.rollout import REPLAY_BATCH, replay, rollout
from interp.model.run import Rollout
from interp.model.transformer import HookedLatentTransformer
from interp.results.measure import NOTHING, Measure
from interp.stats.intervals import Interval
from interp.support.errors import require
from interp.support.files import read_rows

CARRIED = "carried_state"
"""What verification calls the state that the latents hold."""
_CLAIMS = {
    row["check"]: (row["yes"], row["no"]) for row in read_rows(Path(__file__).with_suffix(".csv"))
}
"""What a sentence whose subject is the model says of the checks that are about no single variable."""

_SHORT = 10  # rounds of the short horizon
_MOST_UNDECIDED = (
    0.1  # share of the rows of a variable that may hang on a tie before its check fails
)
_MOST_SOFT = 1e-4
"""The largest error that a form may leave and still be verified: a tenth of what a weight off by 1e-3 changes."""


@dataclass(frozen=True)
class Check:
    """One comparison: a variable at a location (``where``, hook and positions), or an output, for one size and dtype.

    Attributes:
        size: of the task, in the order of its sizes: one number, or several.
        error, relative: largest absolute difference from the algorithm, and as a share of ``max(unit, |reference|)``.
        tolerance: what ``error`` or ``relative``, as ``by`` says, may be at most.
        undecided: share of the rows (episode, round) that hang on a tie closer than rounding and were not compared.
        allowance: the part of the tolerance that a softmax form leaves, with its derivation; empty where there is none.
    """

    size: Size
    dtype: str
    variable: str
    where: str
    error: float
    relative: float
    tolerance: float
    by: str = "error"
    undecided: float = 0.0
    allowance: str = ""

    @property
    def passed(self) -> bool:
        """Whether the error is within the tolerance, and no more rounds are undecided than may be."""
        return self.measure().verdict == "yes"

    @property
    def strain(self) -> float:
        """The error in units of the tolerance; infinite where too many rounds are undecided, or none is tolerated."""
        if self.undecided > _MOST_UNDECIDED or (self.judged and not self.tolerance):
            return float("inf")
        return self.judged / self.tolerance if self.judged else 0.0

    @property
    def judged(self) -> float:
        """The error that the tolerance is about."""
        return self.error if self.by == "error" else self.relative

    def measure(self) -> Measure:
        """The check as a measure of its variable; too many rounds that hang on a tie leave it undecided."""
        name = self.variable.replace("_", " ")
        yes, no = _CLAIMS.get(
            self.variable, (f"computes the {name} exactly", f"does not compute the {name} exactly")
        )
        ties = f"{NOTHING} for {self.undecided:.2g} of the rounds, which hang on ties closer than rounding"
        return Measure(
            self.variable,
            f"It {yes}",
            Interval(self.judged, self.judged, self.judged),
            self.tolerance,
            side="below",
            is_share=False,
            unit="largest difference" if self.by == "error" else "largest relative difference",
            about=f"{self.where}, size {self.size}, {self.dtype}",
            yes=yes,
            no=no,
            unless={"yes": ties} if self.undecided > _MOST_UNDECIDED else {},
            needs_control=False,
            note=self.allowance,
        )


def check(
    circuit: Circuit,
    episodes: Episodes,
    size: Size,
    dtype: str,
    plan: VerificationPlan,
    model: HookedLatentTransformer | None = None,
    device: str | torch.device = "cpu",
) -> list[Check]:
    """Everything that verification compares, for one circuit on given episodes.

    ``model`` runs in place of the compiled circuit: a model that something was done to.
    """
    model = compile_circuit(circuit, getattr(torch, dtype)) if model is None else model
    values = circuit.algorithm.run(episodes)
    truths = {
        key: circuit.truth(values, key) for key in dict.fromkeys((*circuit.sites, plan.output))
    }
    undecided = plan.undecided(circuit, values, dtype)
    for key, mask in undecided.items():
        truths[key][mask] = np.nan
    meters = []
    for key, location in (
        (key, location) for key, several in circuit.sites.items() for location in several
    ):
        labels = list(dict.fromkeys(location.labels))
        where = f"{location.hook} at {labels[0]}" + (
            f" ... {labels[-1]}" if len(labels) > 1 else ""
        )
        unit = plan.unit(circuit, values, key)
        meters.append(
            _Meter(
                key,
                location.hook,
                where,
                location.reader(circuit),
                torch.from_numpy(truths[key]),
                unit,
            )
        )
    if circuit.layout.prediction_axes == 0:
        # Of every outcome, by the model's own unembedding: a prediction of one of them does not show the others.
        position, hook = (
            circuit.layout.predict_position,
            f"blocks.{circuit.n_layers - 1}.hook_resid_post",
        )
        final, unembed = model.ln_final, model.unembed

        def outcomes(resid: Tensor) -> Tensor:
            read: Tensor = unembed(final(resid[..., position, :].to(unembed.weight.device)))
            return read[..., : circuit.layout.n_outputs].cpu()

        truth, where = (
            circuit.algorithm.distribution(values),
            f"{hook} at {circuit.layout.predict_label}",
        )
        meters.append(_Meter("distribution", hook, where, outcomes, torch.from_numpy(truth), 1.0))
    model, hooks = model.to(device), [(meter.at, meter.note) for meter in meters]
    if circuit.layout.choice_position is None:
        with model.hooks(fwd_hooks=hooks):
            run = rollout(model, episodes)
    else:  # a model that chooses runs some rounds twice, and is read in a replay, where every round is a row
        run = rollout(model, episodes)
        for meter in meters:
            meter.truth, meter.values = (
                x.flatten(0, 1).unsqueeze(1) for x in (meter.truth, meter.values)
            )
        replay(model, run, fwd_hooks=hooks, chunk=run.fed.at_once(REPLAY_BATCH))
    model = model.cpu()
    run = replace(
        run,
        predictions=run.predictions.cpu(),
        latents=run.latents.cpu(),
        fed=run.fed.each(Tensor.cpu),
    )
    measured = [(one.key, one.where, *_errors(one.values, one.truth, one.unit)) for one in meters]
    for key, where, value, truth in (
        (plan.output, "output", run.predictions, truths[plan.output]),
        (CARRIED, "latents", model.read_state(run.latents), _carried_by(circuit.algorithm, values)),
    ):
        unit = plan.unit(circuit, values, key)
        require(
            value.numel() == truth.size,
            f"{circuit.name!r} gives {tuple(value.shape)} where its algorithm's {key!r} is {truth.shape}; name the "
            "variable of the algorithm that has the shape of a prediction as the plan's output",
        )
        measured.append(
            (key, where, *_errors(value.reshape(truth.shape), torch.from_numpy(truth), unit))
        )
    unit = plan.unit(circuit, values, CARRIED)
    # In a rotated basis every axis takes its share of the state's rounding; otherwise none may.
    unit = min(1.0, unit) if circuit.basis.rotation is None else max(1.0, unit)
    block = circuit.basis[POS]
    stream, always, axes = (
        rows(directions, circuit).to(run.latents.dtype)
        for directions in (circuit.state, circuit.latents, [block[label] for label in block.labels])
    )
    stream = stream / stream.norm(dim=-1, keepdim=True)
    rest = run.latents - always[: run.latents.shape[-2]]
    for key, part in (
        ("residue", rest - rest @ stream.T @ stream),
        ("position_code", run.latents @ axes.T),
    ):
        measured.append((key, "latents", *_errors(part, torch.zeros(()).double(), unit)))
    shares = {key: float(mask.mean()) for key, mask in undecided.items()}
    checks = []
    for entry in measured:
        tolerance, by = plan.tolerance(entry[0], dtype)
        soft, why = plan.soft(circuit, values, entry[0])
        if soft > _MOST_SOFT:
            soft, why = 0.0, f"none: {why} = {soft:.1g}, more than {_MOST_SOFT:g}"
        elif why:
            why = f"{why} = {soft:.1g}"
        checks.append(
            Check(size, dtype, *entry, tolerance + soft, by, shares.get(entry[0], 0.0), why)
        )
    leak = _causal_leak(model, run)
    return [
        *checks,
        Check(size, dtype, "causality", "embeddings of later positions", leak, leak, 0.0),
    ]


def _carried_by(algorithm: Algorithm, values: Values) -> np.ndarray:
    """The state that an algorithm carries, before the first round and after each, ``[episode, round + 1, ...]``."""
    return np.concatenate(
        [values[algorithm.memory][:, :1], values[NEXT + algorithm.memory]], axis=1
    )


def check_horizon(
    circuit: Circuit,
    size: Size,
    dtype: str,
    plan: VerificationPlan,
    n_rounds: int,
    seed: int = 0,
    device: str | torch.device = "cpu",
    model: HookedLatentTransformer | None = None,
) -> list[Check]:
    """The error of the state after a short and a long horizon, by the same weights: two checks, or none.

    Why it may grow by T roundings and no more: docs/method/ground-truth.md. There are none for softmax forms, rotated
    bases and sinusoidal codes. ``model`` runs in place of the compiled circuit. The long horizon has twice ``n_rounds``
    rounds, or as many as the plan runs; a weight that changed counts as an infinite error.
    """
    arguments = circuit.arguments
    soft = arguments.get("eta") is not None or arguments.get("positions", "one-hot") != "one-hot"
    if soft or circuit.basis.rotation is not None:
        return []
    model = (compile_circuit(circuit, getattr(torch, dtype)) if model is None else model).to(device)
    built, checks = model.digest(), []
    for horizon in (min(_SHORT, n_rounds), 2 * n_rounds):
        episodes = plan.episodes(circuit, horizon, 2, seed)
        values = circuit.algorithm.run(episodes)
        truth = _carried_by(circuit.algorithm, values)
        run = rollout(model, episodes)
        error, _ = _errors(
            model.read_state(run.latents).cpu().reshape(truth.shape), torch.from_numpy(truth)
        )
        largest = max(plan.unit(circuit, values, CARRIED), float(np.abs(truth).max()))
        if model.digest() != built:
            error = np.inf
        where = f"latents after {episodes.n_rounds:,} rounds, d_model {model.config.d_model}"
        rounding = episodes.n_rounds * float(np.finfo(dtype).eps)
        checks.append(
            Check(size, dtype, "horizon", where, error, error / largest, rounding, "relative")
        )
    return checks


def check_exits(
    machine: Machine, algorithm: Algorithm, episodes: Episodes, tolerance: float
) -> list[Check]:
    """What a machine predicts and what it carries, against an algorithm: no circuit is needed.

    Errors count relative to the larger of 1 and the algorithm's own value, up to ``tolerance``.
    """
    values, run = algorithm.run(episodes), rollout(machine.eval(), episodes)
    pairs = [
        (
            "distribution",
            "output",
            run.layout.distribution(run.predictions),
            algorithm.distribution(values),
        )
    ]
    if algorithm.memory:
        with torch.no_grad():
            pairs.append(
                (
                    CARRIED,
                    "latents",
                    machine.read_state(run.latents),
                    _carried_by(algorithm, values),
                )
            )
    sizes = tuple(tasks.of(machine).sizes_of(run.layout).values())
    size = sizes[0] if len(sizes) == 1 else sizes
    checks = []
    for key, where, value, truth in pairs:
        require(
            value.numel() == truth.size,
            f"{machine.name!r} gives a {key} of shape {tuple(value.shape)}, {algorithm.name} one of {truth.shape}; "
            "give the algorithm that the machine was made to be, or adapt it with a read= that gives its memory",
        )
        errors = _errors(
            value.reshape(truth.shape).cpu(), torch.from_numpy(np.asarray(truth, np.float64))
        )
        dtype = str(machine.dtype).removeprefix("torch.")
        checks.append(Check(size, dtype, key, where, *errors, tolerance, "relative"))
    return checks


def _causal_leak(model: HookedLatentTransformer, run: Rollout) -> float:
    """Largest change at any position when the embeddings of all later ones are replaced by noise; 0 where causal.

    The last round of the first ``n_episodes`` runs once for every position. A change of any size counts, NaN included:
    the result is infinite where it cannot be measured.
    """
    tokens, latents, values = (
        part[:2, run.n_rounds - 1] for part in (run.tokens, run.latents, run.values)
    )
    noise = torch.randn(
        *tokens.shape, model.config.d_model, generator=torch.Generator().manual_seed(0)
    ).to(model.W_E)

    def streams(first: int) -> tuple[list[Tensor], Tensor]:
        seen: list[Tensor] = []
        hooks: list[tuple[str, Any]] = [
            (
                "hook_embed",
                lambda activation, hook: torch.cat(
                    [activation[:, :first], 3.0 * noise[:, first:]], 1
                ),
            )
        ]
        for layer in range(model.config.n_layers):
            hooks.append(
                (
                    f"blocks.{layer}.hook_resid_post",
                    lambda activation, hook: seen.append(activation),
                )
            )
        with torch.no_grad(), model.hooks(fwd_hooks=hooks):
            out = model(tokens, latents, values.to(model.W_E.dtype))
        return [*seen, out.logits], out.prediction

    n_positions = tokens.shape[1]
    before, prediction = streams(n_positions)
    largest = 0.0
    for first in range(1, n_positions):
        after, changed = streams(first)
        pairs = [(x[:, :first], y[:, :first]) for x, y in zip(before, after, strict=True)]
        if first > model.layout_of_length[n_positions].predict_position:
            pairs.append((prediction, changed))
        for x, y in pairs:
            if not torch.equal(x, y):
                largest = max(largest, float((x - y).abs().nan_to_num(nan=float("inf")).max()))
    return largest


@dataclass
class _Meter:
    """What is read at a hook, beside its true value: the rounds of some episodes one by one, then those of the next."""

    key: str
    at: str
    where: str
    read: Callable[[Tensor], Tensor]
    truth: Tensor
    unit: float
    first: int = 0
    round: int = 0

    def __post_init__(self) -> None:
        self.values = torch.full_like(self.truth, torch.nan)

    def note(self, activation: Tensor, hook: object) -> None:
        last = self.first + len(activation)
        self.values[self.first : last, self.round] = self.read(activation.cpu())
        self.round = (self.round + 1) % self.truth.shape[1]
        self.first = self.first if self.round else last


def _errors(value: Tensor, truth: Tensor, unit: float = 1.0) -> tuple[float, float]:
    """Largest absolute and relative difference; NaN is an infinite error, NaN in the truth is not compared."""
    difference = (
        (value.double() - truth).abs().nan_to_num(nan=float("inf")).masked_fill(truth.isnan(), 0.0)
    )
    truth = truth.nan_to_num()
    return float(difference.max()), float((difference / truth.abs().clamp(min=unit)).max())
