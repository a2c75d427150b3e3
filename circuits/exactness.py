"""How far a circuit that runs lies from its algorithm: every variable, everywhere, every round.

Six checks are about no single variable of the algorithm (``docs/method/ground-truth.md``): ``distribution``,
``carried_state``, ``residue``, ``position_code``, ``causality`` and ``horizon``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

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
from interp.results.measure import NOTHING, Measure, Verdict
from interp.stats.intervals import Interval
from interp.support.checks import checked_result
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
@checked_result
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
        """Whether the error is within the tolerance and at most the allowed share of rounds is
        undecided.
        """
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
        """Return the check as a measure of its variable; too many rounds at a tie leave it
        undecided.
        """
        name = self.variable.replace("_", " ")
        exact = f"computes the {name} exactly", f"does not compute the {name} exactly"
        yes, no = _CLAIMS.get(self.variable, exact)
        unless: dict[Verdict, str] = {}
        if self.undecided > _MOST_UNDECIDED:
            share = f"{self.undecided:.2g} of the rounds"
            unless["yes"] = f"{NOTHING} for {share}, which hang on ties closer than rounding"
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
            unless=unless,
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
    """Compare everything that verification compares, for one circuit on some episodes.

    Args:
        circuit: the circuit, with its ground truth.
        episodes: what the model is run on.
        size: of the task, for the records.
        dtype: "float64" or "float32", of the compiled model.
        plan: of the circuit's machine.
        model: an edited model to run in place of the compiled circuit.
        device: where the model runs.
    """
    if model is None:
        model = compile_circuit(circuit, getattr(torch, dtype))
    values = circuit.algorithm.run(episodes)
    keys = dict.fromkeys((*circuit.sites, plan.output))
    truths = {key: circuit.truth(values, key) for key in keys}
    undecided = plan.undecided(circuit, values, dtype)
    for key, mask in undecided.items():
        truths[key][mask] = np.nan

    def get_unit(key: str) -> float:
        return plan.unit(circuit, values, key)

    meters = _place_meters(circuit, truths, get_unit)
    if circuit.layout.prediction_axes == 0:
        meters.append(_meter_distribution(circuit, model, circuit.algorithm.distribution(values)))
    run = _run_with_meters(model.to(device), circuit, episodes, meters)
    model = model.cpu()
    errors = [
        _Error(meter.key, meter.where, *_errors(meter.values, meter.truth, meter.unit))
        for meter in meters
    ]
    state = model.read_state(run.latents)
    exits = (
        (plan.output, "output", run.predictions, truths[plan.output]),
        (CARRIED, "latents", state, _get_carried(circuit.algorithm, values)),
    )
    for key, where, value, truth in exits:
        require(
            value.numel() == truth.size,
            f"{circuit.name!r} gives {tuple(value.shape)} where its algorithm's {key!r} is {truth.shape}; name the "
            "variable of the algorithm that has the shape of a prediction as the plan's output",
        )
        expected = torch.from_numpy(truth)
        measured = _errors(value.reshape(truth.shape), expected, get_unit(key))
        errors.append(_Error(key, where, *measured))
    errors += _measure_rest(circuit, run.latents, get_unit(CARRIED))
    checks = []
    for error in errors:
        tolerance, kind = plan.tolerance(error.key, dtype)
        soft, why = plan.soft(circuit, values, error.key)
        if soft > _MOST_SOFT:
            why = f"none: {why} = {soft:.1g}, more than {_MOST_SOFT:g}"
            soft = 0.0
        elif why:
            why = f"{why} = {soft:.1g}"
        share = float(undecided[error.key].mean()) if error.key in undecided else 0.0
        variable_check = Check(
            size=size,
            dtype=dtype,
            variable=error.key,
            where=error.where,
            error=error.absolute,
            relative=error.relative,
            tolerance=tolerance + soft,
            by=kind,
            undecided=share,
            allowance=why,
        )
        checks.append(variable_check)
    leak = _measure_causal_leak(model, run)
    later = "embeddings of later positions"
    return [*checks, Check(size, dtype, "causality", later, leak, leak, tolerance=0.0)]


class _Error(NamedTuple):
    """The largest difference of a variable at a place, absolute and relative."""

    key: str
    where: str
    absolute: float
    relative: float


def _place_meters(
    circuit: Circuit, truths: Mapping[str, np.ndarray], get_unit: Callable[[str], float]
) -> list[_Meter]:
    """Return a meter for every location of the circuit's ground truth.

    Args:
        circuit: gives the locations.
        truths: true values ``[episode, round, element]`` by variable.
        get_unit: returns what a variable's values count as large against, in a relative error.
    """
    meters = []
    for key, locations in circuit.sites.items():
        truth, unit = torch.from_numpy(truths[key]), get_unit(key)
        for location in locations:
            first, *others = dict.fromkeys(location.labels)
            where = f"{location.hook} at {first}"
            if others:
                where += f" ... {others[-1]}"
            read = location.reader(circuit)
            meters.append(_Meter(key, location.hook, where, read, truth, unit))
    return meters


def _meter_distribution(
    circuit: Circuit, model: HookedLatentTransformer, distribution: np.ndarray
) -> _Meter:
    """Return a meter of the scores of all outcomes, read by the model's unembedding.

    The model's prediction is one outcome, which does not show the scores of the rest.

    Args:
        circuit: gives the layout and the last layer.
        model: gives the final norm and the unembedding.
        distribution: the algorithm's, ``[episode, round, outcome]``.
    """
    layout = circuit.layout
    final, unembed = model.ln_final, model.unembed

    def read_outcomes(resid: Tensor) -> Tensor:
        at_prediction = resid[..., layout.predict_position, :].to(unembed.weight.device)
        scores: Tensor = unembed(final(at_prediction))
        return scores[..., : layout.n_outputs].cpu()

    hook = f"blocks.{circuit.n_layers - 1}.hook_resid_post"
    where = f"{hook} at {layout.predict_label}"
    truth = torch.from_numpy(distribution)
    return _Meter("distribution", hook, where, read_outcomes, truth, 1.0)


def _run_with_meters(
    model: HookedLatentTransformer, circuit: Circuit, episodes: Episodes, meters: list[_Meter]
) -> Rollout:
    """Run a model with meters at its hooks.

    A model that chooses runs some rounds twice, and is read in a replay, where every round is a
    row.

    Args:
        model: the model.
        circuit: gives the layout.
        episodes: what it runs on.
        meters: each stores the activations of its hook.

    Returns:
        The run, on the CPU.
    """
    hooks = [(meter.at, meter.note) for meter in meters]
    if circuit.layout.choice_position is None:
        with model.hooks(fwd_hooks=hooks):
            run = rollout(model, episodes)
    else:
        run = rollout(model, episodes)
        for meter in meters:
            meter.truth = meter.truth.flatten(0, 1).unsqueeze(1)
            meter.values = meter.values.flatten(0, 1).unsqueeze(1)
        replay(model, run, fwd_hooks=hooks, chunk=run.fed.at_once(REPLAY_BATCH))
    fed = run.fed.each(Tensor.cpu)
    return replace(run, predictions=run.predictions.cpu(), latents=run.latents.cpu(), fed=fed)


def _measure_rest(circuit: Circuit, latents: Tensor, unit: float) -> list[_Error]:
    """Measure what latents hold besides the state, and along the axes of positions.

    Args:
        circuit: gives the directions of the state and of positions.
        latents: of a run.
        unit: what the state's values count as large against.
    """
    # In a rotated basis every axis takes its share of the state's rounding; otherwise none may.
    unit = min(1.0, unit) if circuit.basis.rotation is None else max(1.0, unit)
    block = circuit.basis[POS]
    position_axes = [block[label] for label in block.labels]
    state_rows = rows(circuit.state, circuit).to(latents.dtype)
    stream = state_rows / state_rows.norm(dim=-1, keepdim=True)
    always = rows(circuit.latents, circuit).to(latents.dtype)
    axes = rows(position_axes, circuit).to(latents.dtype)
    rest = latents - always[: latents.shape[-2]]
    parts = {"residue": rest - rest @ stream.T @ stream, "position_code": latents @ axes.T}
    nothing = torch.zeros(()).double()
    return [_Error(key, "latents", *_errors(part, nothing, unit)) for key, part in parts.items()]


def _get_carried(algorithm: Algorithm, values: Values) -> np.ndarray:
    """Return the carried state before the first round and after each, ``[episode, round + 1, ...]``."""
    before, after = values[algorithm.memory], values[NEXT + algorithm.memory]
    return np.concatenate([before[:, :1], after], axis=1)


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
    """Measure the error of the state after a short and a long horizon, by the same weights.

    Why it may grow by T roundings and no more: docs/method/ground-truth.md.

    Args:
        size: of the task, for the records.
        plan: of the circuit's machine.
        n_rounds: the long horizon has twice as many, or as many as the plan runs.
        model: runs in place of the compiled circuit.

    Returns:
        Two checks; none for softmax forms, rotated bases and sinusoidal codes. A weight that changed counts as an
        infinite error.
    """
    arguments = circuit.arguments
    is_soft = arguments.get("eta") is not None
    is_one_hot = arguments.get("positions", "one-hot") == "one-hot"
    if is_soft or not is_one_hot or circuit.basis.rotation is not None:
        return []
    if model is None:
        model = compile_circuit(circuit, getattr(torch, dtype))
    model = model.to(device)
    built, checks = model.digest(), []
    for horizon in (min(_SHORT, n_rounds), 2 * n_rounds):
        episodes = plan.episodes(circuit, horizon, 2, seed)
        values = circuit.algorithm.run(episodes)
        truth = _get_carried(circuit.algorithm, values)
        run = rollout(model, episodes)
        state = model.read_state(run.latents).cpu()
        error, _ = _errors(state.reshape(truth.shape), torch.from_numpy(truth))
        largest = max(plan.unit(circuit, values, CARRIED), float(np.abs(truth).max()))
        if model.digest() != built:
            error = np.inf
        where = f"latents after {episodes.n_rounds:,} rounds, d_model {model.config.d_model}"
        rounding = episodes.n_rounds * float(np.finfo(dtype).eps)
        horizon_check = Check(
            size=size,
            dtype=dtype,
            variable="horizon",
            where=where,
            error=error,
            relative=error / largest,
            tolerance=rounding,
            by="relative",
        )
        checks.append(horizon_check)
    return checks


def check_exits(
    machine: Machine, algorithm: Algorithm, episodes: Episodes, tolerance: float
) -> list[Check]:
    """Compare what a machine predicts and what it carries with an algorithm: no circuit is needed.

    Args:
        machine: a machine with an exact reader of its state.
        algorithm: computes what it should predict and carry.
        episodes: what both run on.
        tolerance: of errors relative to the larger of 1 and the algorithm's value.
    """
    values, run = algorithm.run(episodes), rollout(machine.eval(), episodes)
    predicted = run.layout.distribution(run.predictions)
    exits = [("distribution", "output", predicted, algorithm.distribution(values))]
    if algorithm.memory:
        with torch.no_grad():
            state = machine.read_state(run.latents)
        exits.append((CARRIED, "latents", state, _get_carried(algorithm, values)))
    sizes = tuple(tasks.of(machine).sizes_of(run.layout).values())
    dtype = str(machine.dtype).removeprefix("torch.")
    checks = []
    for key, where, value, truth in exits:
        require(
            value.numel() == truth.size,
            f"{machine.name!r} gives a {key} of shape {tuple(value.shape)}, {algorithm.name} one of {truth.shape}; "
            "give the algorithm that the machine was made to be, or adapt it with a read= that gives its memory",
        )
        expected = torch.from_numpy(np.asarray(truth, np.float64))
        absolute, relative = _errors(value.reshape(truth.shape).cpu(), expected)
        exit_check = Check(
            size=sizes[0] if len(sizes) == 1 else sizes,
            dtype=dtype,
            variable=key,
            where=where,
            error=absolute,
            relative=relative,
            tolerance=tolerance,
            by="relative",
        )
        checks.append(exit_check)
    return checks


def _measure_causal_leak(model: HookedLatentTransformer, run: Rollout) -> float:
    """Measure the largest change at any position when the embeddings of all later ones are replaced by noise.

    The last round of the first two episodes runs once for every position.

    Returns:
        0 where the model is causal. A change of any size counts, NaN included: infinite where it cannot be measured.
    """
    first_rows, last = slice(2), run.n_rounds - 1
    tokens, latents = run.tokens[first_rows, last], run.latents[first_rows, last]
    values = run.values[first_rows, last].to(model.W_E.dtype)
    generator = torch.Generator().manual_seed(0)
    noise = torch.randn(*tokens.shape, model.config.d_model, generator=generator).to(model.W_E)

    def run_first_positions(n_known: int) -> tuple[list[Tensor], Tensor]:
        """Return the residual streams and logits, and the prediction, with noise from a position on."""
        streams: list[Tensor] = []

        def blind(activation: Tensor, hook: object) -> Tensor:
            return torch.cat([activation[:, :n_known], 3.0 * noise[:, n_known:]], 1)

        def see(activation: Tensor, hook: object) -> None:
            streams.append(activation)

        hooks: list[tuple[str, Any]] = [("hook_embed", blind)]
        for layer in range(model.config.n_layers):
            hooks.append((f"blocks.{layer}.hook_resid_post", see))
        with torch.no_grad(), model.hooks(fwd_hooks=hooks):
            out = model(tokens, latents, values)
        return [*streams, out.logits], out.prediction

    n_positions = tokens.shape[1]
    predict_position = model.layout_of_length[n_positions].predict_position
    streams, prediction = run_first_positions(n_positions)
    largest = 0.0
    for n_known in range(1, n_positions):
        blind_streams, blind_prediction = run_first_positions(n_known)
        pairs = list(zip(streams, blind_streams, strict=True))
        known = [(x[:, :n_known], y[:, :n_known]) for x, y in pairs]
        if n_known > predict_position:
            known.append((prediction, blind_prediction))
        for x, y in known:
            if not torch.equal(x, y):
                change = (x - y).abs().nan_to_num(nan=float("inf"))
                largest = max(largest, float(change.max()))
    return largest


@dataclass
class _Meter:
    """A meter of a hook and its true value; it reads the rounds of a batch of episodes in order,
    then the next batch.
    """

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
        """Set the values of one round from an activation.

        Args:
            activation: of a batch of episodes.
            hook: the hook point; not used.
        """
        last = self.first + len(activation)
        self.values[self.first : last, self.round] = self.read(activation.cpu())
        self.round = (self.round + 1) % self.truth.shape[1]
        self.first = self.first if self.round else last


def _errors(value: Tensor, truth: Tensor, unit: float = 1.0) -> tuple[float, float]:
    """Return the largest absolute and relative difference.

    NaN in the value is an infinite error; NaN in the truth is not compared.

    Args:
        value, truth: of one shape.
        unit: sizes below this count as this in relative differences.
    """
    difference = (value.double() - truth).abs().nan_to_num(nan=float("inf"))
    difference = difference.masked_fill(truth.isnan(), 0.0)
    size = truth.nan_to_num().abs().clamp(min=unit)
    return float(difference.max()), float((difference / size).max())
