"""Measure how far a handwired model is from its algorithm, for every variable, location and round.

Six checks concern no single variable (``docs/method/ground-truth.md``):

* ``distribution``: the model scores every outcome as the algorithm does;
* ``carried_state``: the latents store the algorithm's state;
* ``residue``: outside of the state and the fixed initial latents, the latents are zero;
* ``position_code``: the latents are zero along the axes of the position code;
* ``causality``: inputs at later positions change no activation at earlier ones;
* ``horizon``: errors of the state do not grow faster than rounding errors.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from circuits.basis import POS
from circuits.circuit import Circuit, Size, VerificationPlan, unpack_single_size
from circuits.compiler import compile_circuit, stack_rows
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
"""Name of the check of the algorithm's state, as the latents store it."""
_CLAIMS = {
    row["check"]: (row["yes"], row["no"]) for row in read_rows(Path(__file__).with_suffix(".csv"))
}
"""Predicates (if passed, if failed) of checks that concern no single variable; the subject is the
model.
"""

_SHORT_HORIZON = 10  # rounds of the short horizon
_N_EPISODES_OF_HORIZON = 2
# Largest share of a variable's rounds in which rounding may decide a tie, for a check that passes.
_LARGEST_UNDECIDED_SHARE = 0.1
_LARGEST_SOFT_ERROR = 1e-4
"""The largest error by softmax heads that still passes: a tenth of what a weight off by 1e-3
changes.
"""


@dataclass(frozen=True)
@checked_result
class Check:
    """One comparison of a model with its algorithm, for one task size and dtype: a variable at one
    location, or an output.

    Attributes:
        size: size of the task: one number, or several.
        dtype: dtype of the model.
        variable: key of the variable; or the name of a check that concerns no single variable, such
            as "causality".
        where: hook and positions of the location, or "output" or "latents", in words.
        error: largest absolute difference from the algorithm.
        relative: largest relative difference: the difference divided by ``max(unit, |true
            value|)``. The unit is a number per variable
            (:class:`~circuits.circuit.VerificationPlan`).
        tolerance: the largest value that ``error`` or ``relative`` may have.
        by: "error" or "relative": which of the two is compared with the tolerance.
        undecided: share of (episode, round) pairs that were not compared because rounding can
            decide a tie there.
        allowance: formula and value, as text, of the part of the tolerance that allows for the
            error of softmax heads in place of hard or linear ones; empty if there is none.
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
        """True if the error is within the tolerance, and at most a tenth of the rounds were left
        out. A round is left out if rounding can decide a tie in it.
        """
        return self.measure().verdict == "yes"

    @property
    def error_over_tolerance(self) -> float:
        """The error divided by the tolerance, by which checks are ranked; at most 1 if the check
        passes.

        It is infinite if more than a tenth of the rounds were left out because of ties, or if the
        error is above 0 and the tolerance is 0.
        """
        if self.undecided > _LARGEST_UNDECIDED_SHARE:
            return float("inf")
        error = self.judged_error
        if error == 0:
            return 0.0
        return error / self.tolerance if self.tolerance else float("inf")

    @property
    def judged_error(self) -> float:
        """The error that is compared with the tolerance: the absolute or the relative one, as the
        field ``by`` says.
        """
        return self.error if self.by == "error" else self.relative

    def measure(self) -> Measure:
        """Return the check as a measure: the error as the number, the tolerance as the threshold,
        and a verdict. The verdict is "undecided" if the error is within the tolerance, but more
        than a tenth of the rounds were left out because of ties.
        """
        name = self.variable.replace("_", " ")
        of_variable = f"computes the {name} exactly", f"does not compute the {name} exactly"
        # Checks that concern no variable, such as "causality", have sentences of their own.
        yes, no = _CLAIMS.get(self.variable, of_variable)
        unless: dict[Verdict, str] = {}
        if self.undecided > _LARGEST_UNDECIDED_SHARE:
            share = f"{self.undecided:.2g} of the rounds"
            unless["yes"] = f"{NOTHING} for {share}, which hang on ties closer than rounding"
        error = self.judged_error
        unit = "largest difference" if self.by == "error" else "largest relative difference"
        description = f"{self.where}, size {self.size}, {self.dtype}"
        return Measure(
            key=self.variable,
            claim=f"It {yes}",
            number=Interval(error, error, error),  # a maximum over what ran, without uncertainty
            threshold=self.tolerance,
            side="below",
            is_share=False,
            unit=unit,
            about=description,
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
    """Compare a circuit with its algorithm on some episodes: every variable, the output and the
    carried state.

    Args:
        circuit: the circuit, with its ground truth.
        episodes: the episodes to run on.
        size: size of the task, which is only copied to the checks.
        dtype: dtype of the compiled model, "float64" or "float32".
        plan: the model's verification plan, which has the tolerances.
        model: a model to run in place of the compiled circuit, such as an edited one; None compiles
            the circuit.
        device: device that the model runs on.

    Returns:
        One check per location of a variable, one of the output, one of the carried state, and
        further checks:

        - "residue" and "position_code": the latents contain nothing but the state and the initial
          latents;
        - "causality": tokens at later positions change no activation at earlier positions;
        - "distribution", only if the model predicts its choice alone: the scores of all outcomes.
    """
    if model is None:
        model = compile_circuit(circuit, getattr(torch, dtype))
    values = circuit.algorithm.run(episodes)
    keys = dict.fromkeys((*circuit.sites, plan.output))
    truths = {key: circuit.truth(values, key) for key in keys}
    undecided = plan.undecided(circuit, values, dtype)
    for key, mask in undecided.items():
        truths[key][mask] = np.nan  # marks what is not compared
    units = {key: plan.unit(circuit, values, key) for key in (*keys, CARRIED)}
    meters = _place_meters(circuit, truths, units)
    if circuit.layout.prediction_axes == 0:  # the prediction is one choice, not a distribution
        meters.append(_meter_distribution(circuit, model, circuit.algorithm.distribution(values)))
    run = _run_with_meters(model.to(device), circuit, episodes, meters)
    model = model.cpu()

    def make_check(key: str, where: str, errors: tuple[float, float]) -> Check:
        """Make the :class:`Check` of one variable, which compares the measured error with the
        largest error that the circuit's verification plan allows.

        The allowed error is one for rounding, plus one for softmax heads in place of hard ones. If
        the second could exceed 1e-4, it counts as 0, since it would hide a wrong weight.

        Args:
            key: key of the variable, or the name of a further check, such as "residue".
            where: where the variable was read, in words, such as "output".
            errors: the largest differences from the algorithm: (absolute, relative).
        """
        absolute, relative = errors
        tolerance, kind = plan.tolerance(key, dtype)
        # This bound, and its formula in words.
        soft_error, formula = plan.soft(circuit, values, key)
        allowance = ""
        if soft_error > _LARGEST_SOFT_ERROR:  # so large a bound would hide a wrong weight
            allowance = f"none: {formula} = {soft_error:.1g}, more than {_LARGEST_SOFT_ERROR:g}"
            soft_error = 0.0
        elif formula:
            allowance = f"{formula} = {soft_error:.1g}"
        return Check(
            size=size,
            dtype=dtype,
            variable=key,
            where=where,
            error=absolute,
            relative=relative,
            tolerance=tolerance + soft_error,
            by=kind,
            undecided=float(undecided[key].mean()) if key in undecided else 0.0,
            allowance=allowance,
        )

    checks = []
    for meter in meters:
        errors = _compute_errors(meter.values, meter.truth, meter.unit)
        checks.append(make_check(meter.key, meter.where, errors))
    state = model.read_state(run.latents)
    exits = (
        (plan.output, "output", run.predictions, truths[plan.output]),
        (CARRIED, "latents", state, _get_carried_state(circuit.algorithm, values)),
    )
    for key, where, value, truth in exits:
        shape = tuple(value.shape)
        require(
            value.numel() == truth.size,
            f"{circuit.name!r} gives {shape} where its algorithm's {key!r} is {truth.shape}; name the "
            "variable of the algorithm that has the shape of a prediction as the plan's output",
        )
        expected = torch.from_numpy(truth)
        errors = _compute_errors(value.reshape(truth.shape), expected, units[key])
        checks.append(make_check(key, where, errors))
    for key, errors in _measure_residue(circuit, run.latents, units[CARRIED]).items():
        checks.append(make_check(key, "latents", errors))
    leak = _measure_causal_leak(model, run)
    causality = Check(
        size=size,
        dtype=dtype,
        variable="causality",
        where="embeddings of later positions",
        error=leak,
        relative=leak,
        tolerance=0.0,
    )
    return [*checks, causality]


def _place_meters(
    circuit: Circuit, truths: Mapping[str, np.ndarray], units: Mapping[str, float]
) -> list[_Meter]:
    """Return one recorder of activations (meter) for every location of the circuit's ground truth.

    Args:
        circuit: the circuit.
        truths: true values ``[episode, round, element]`` by variable.
        units: key of a variable -> its unit; relative errors are divided by the larger of the true
            value and the unit.
    """
    meters = []
    for key, locations in circuit.sites.items():
        truth = torch.from_numpy(truths[key])
        for location in locations:
            first, *others = dict.fromkeys(location.labels)
            where = f"{location.hook} at {first}"
            if others:
                where += f" ... {others[-1]}"
            meter = _Meter(
                key=key,
                hook_name=location.hook,
                where=where,
                read=location.reader(circuit),
                truth=truth,
                unit=units[key],
            )
            meters.append(meter)
    return meters


def _meter_distribution(
    circuit: Circuit, model: HookedLatentTransformer, distribution: np.ndarray
) -> _Meter:
    """Return a meter that records the scores of all outcomes at the prediction, through the model's
    unembedding.

    It is needed for models whose prediction is only the chosen outcome, without the scores of the
    others.

    Args:
        circuit: the circuit, for the layout and the number of layers.
        model: the compiled model, for the final norm and the unembedding.
        distribution: the algorithm's scores ``[episode, round, outcome]``.
    """
    layout = circuit.layout
    final_norm, unembed = model.ln_final, model.unembed

    def read_outcomes(resid: Tensor) -> Tensor:
        """Return the scores of all outcomes, ``[..., outcome]``, from the last residual stream,
        ``[..., pos, d_model]``.
        """
        # The activation was moved to the CPU, and the model may be elsewhere.
        at_prediction = resid[..., layout.predict_position, :].to(unembed.weight.device)
        scores: Tensor = unembed(final_norm(at_prediction))
        return scores[..., : layout.n_outputs].cpu()

    hook = f"blocks.{circuit.n_layers - 1}.hook_resid_post"
    return _Meter(
        key="distribution",
        hook_name=hook,
        where=f"{hook} at {layout.predict_label}",
        read=read_outcomes,
        truth=torch.from_numpy(distribution),
        unit=1.0,  # relative errors are divided by the true score, or by 1 if it is smaller
    )


def _run_with_meters(
    model: HookedLatentTransformer, circuit: Circuit, episodes: Episodes, meters: list[_Meter]
) -> Rollout:
    """Run a model while meters record activations at their hooks.

    A model that feeds its choice back into the round runs each round more than once. Its
    activations are recorded in a second pass (replay), where each (episode, round) is one batch
    row.

    Args:
        model: the model.
        circuit: the circuit, for the layout.
        episodes: the episodes to run on.
        meters: the meters, which store activations.

    Returns:
        The run, on the CPU.
    """
    hooks = [(meter.hook_name, meter.record) for meter in meters]
    if circuit.layout.choice_position is None:  # no choice is fed back
        with model.hooks(fwd_hooks=hooks):
            run = rollout(model, episodes)
    else:
        run = rollout(model, episodes)
        for meter in meters:  # [episode, round, element] -> [batch row, 1, element]
            meter.truth = meter.truth.flatten(0, 1).unsqueeze(1)
            meter.values = meter.values.flatten(0, 1).unsqueeze(1)
        replay(model, run, fwd_hooks=hooks, chunk=run.fed.choose_batch_size(REPLAY_BATCH))
    fed = run.fed.map_tensors(Tensor.cpu)
    return replace(run, predictions=run.predictions.cpu(), latents=run.latents.cpu(), fed=fed)


def _measure_residue(
    circuit: Circuit, latents: Tensor, unit: float
) -> dict[str, tuple[float, float]]:
    """Measure what the latents contain besides the state, which should be 0.

    "residue" is everything but the state and the fixed initial latents; "position_code" is the part
    in the position block.

    Args:
        circuit: the circuit, for the directions of the state and of positions.
        latents: latents of a run, ``[episode, round + 1, latent, d_model]``.
        unit: unit of the state. Relative errors are divided by it; by 1 if it is larger than 1 in a
            basis without rotation, or smaller than 1 in a rotated one.

    Returns:
        The errors "residue" and "position_code" by name, each as (absolute, relative).
    """
    # Without a rotation, other axes than the state's get nothing from it: the unit, by which errors
    # are divided, is at most 1. With a rotation, every axis has some of the state's rounding error,
    # which grows with the state: the unit is at least 1.
    unit = min(1.0, unit) if circuit.basis.rotation is None else max(1.0, unit)
    block = circuit.basis[POS]
    position_directions = [block[label] for label in block.labels]
    state_rows = stack_rows(circuit.state, circuit).to(latents.dtype)
    # [element, d_model], orthonormal, so that x A^T A is the part of x along them.
    state_axes = state_rows / state_rows.norm(dim=-1, keepdim=True)
    initial = stack_rows(circuit.latents, circuit).to(latents.dtype)
    position_axes = stack_rows(position_directions, circuit).to(latents.dtype)
    change = latents - initial[: latents.shape[-2]]
    along_state = change @ state_axes.T @ state_axes
    parts = {"residue": change - along_state, "position_code": latents @ position_axes.T}
    zero = torch.zeros(()).double()
    return {key: _compute_errors(part, zero, unit) for key, part in parts.items()}


def _get_carried_state(algorithm: Algorithm, values: Values) -> np.ndarray:
    """Return the algorithm's state before the first round and after every round, ``[episode, round
    + 1, ...]``.

    Args:
        algorithm: the algorithm.
        values: key of a variable of the algorithm -> its values, ``[episode, round, ...]``.
    """
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
    """Measure the error of the carried state in a short and in a long run of the same model, to
    find errors that grow.

    After T rounds the relative error may be at most T times the machine epsilon of the dtype
    (docs/method/ground-truth.md).

    Args:
        circuit: the circuit.
        size: size of the task, which is only copied to the checks.
        dtype: dtype of the compiled model, "float64" or "float32".
        plan: the model's verification plan.
        n_rounds: the long run has twice ``n_rounds`` rounds; the short run has 10, or ``n_rounds``
            if this is less. The plan may shorten both.
        seed: seed of the episodes.
        device: device that the model runs on.
        model: a model to run in place of the compiled circuit; None compiles the circuit.

    Returns:
        A check of the short run and one of the long run. The list is empty for circuits with
        softmax heads in place of hard ones, a rotated basis or sinusoidal position codes. The error
        is infinite if a weight changed during a run.
    """
    is_soft = circuit.arguments.get("eta") is not None
    is_one_hot = not circuit.basis.positions.lines
    if is_soft or not is_one_hot or circuit.basis.rotation is not None:
        return []
    if model is None:
        model = compile_circuit(circuit, getattr(torch, dtype))
    model = model.to(device)
    digest_before, checks = model.digest(), []
    for horizon in (min(_SHORT_HORIZON, n_rounds), 2 * n_rounds):
        episodes = plan.episodes(circuit, horizon, _N_EPISODES_OF_HORIZON, seed)
        values = circuit.algorithm.run(episodes)
        truth = _get_carried_state(circuit.algorithm, values)
        run = rollout(model, episodes)
        state = model.read_state(run.latents).cpu()
        absolute_error, _ = _compute_errors(state.reshape(truth.shape), torch.from_numpy(truth))
        largest_value = np.abs(truth).max()
        unit = max(plan.unit(circuit, values, CARRIED), largest_value)
        is_changed = model.digest() != digest_before  # a run may change no weight
        error = np.inf if is_changed else absolute_error
        where = f"latents after {episodes.n_rounds:,} rounds, d_model {model.config.d_model}"
        rounding = episodes.n_rounds * float(np.finfo(dtype).eps)
        horizon_check = Check(
            size=size,
            dtype=dtype,
            variable="horizon",
            where=where,
            error=error,
            relative=error / unit,
            tolerance=rounding,
            by="relative",
        )
        checks.append(horizon_check)
    return checks


def check_exits(
    machine: Machine, algorithm: Algorithm, episodes: Episodes, tolerance: float
) -> list[Check]:
    """Compare a machine's predictions and its carried state with an algorithm. The machine's
    circuit need not be known.

    Args:
        machine: a machine with a function that reads its state exactly.
        algorithm: the algorithm that the machine should compute.
        episodes: the episodes to run on.
        tolerance: largest allowed error. An error is divided by the algorithm's absolute value, or
            by 1 if this value is below 1.

    Returns:
        A check of the predicted distribution; if the algorithm carries a state, also one of the
        state.
    """
    values, run = algorithm.run(episodes), rollout(machine.eval(), episodes)
    predicted = run.layout.distribution(run.predictions)
    # (what is compared, its location in words, the machine's values, the algorithm's values)
    exits = [("distribution", "output", predicted, algorithm.distribution(values))]
    if algorithm.memory:
        with torch.no_grad():
            state = machine.read_state(run.latents)
        exits.append((CARRIED, "latents", state, _get_carried_state(algorithm, values)))
    size = unpack_single_size(tuple(tasks.of(machine).sizes_of(run.layout).values()))
    dtype = str(machine.dtype).removeprefix("torch.")
    checks = []
    for key, where, value, truth in exits:
        shapes = f"{tuple(value.shape)}, {algorithm.name} one of {truth.shape}"
        require(
            value.numel() == truth.size,
            f"{machine.name!r} gives a {key} of shape {shapes}; "
            "give the algorithm that the machine was made to be, or adapt it with a read= that gives its memory",
        )
        expected = torch.from_numpy(np.asarray(truth, np.float64))
        absolute, relative = _compute_errors(value.reshape(truth.shape).cpu(), expected)
        exit_check = Check(
            size=size,
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
    """Measure how much later token positions influence earlier ones: 0 if the model is causal.

    For each position, the embeddings of all later positions are replaced by noise in the last round
    of the first two episodes.

    Args:
        model: the model.
        run: a run of the model, which supplies the inputs of this round.

    Returns:
        The largest absolute change of a residual stream, of logits or of the prediction at
        positions before the noise; infinite if a change is NaN.
    """
    two_episodes, last = slice(2), run.n_rounds - 1  # enough: all share the mask
    tokens, latents = run.tokens[two_episodes, last], run.latents[two_episodes, last]
    values = run.values[two_episodes, last].to(model.W_E.dtype)
    generator = torch.Generator().manual_seed(0)
    noise = torch.randn(*tokens.shape, model.config.d_model, generator=generator).to(model.W_E)

    def run_first_positions(n_known: int) -> tuple[list[Tensor], Tensor]:
        """Run the model on the last round, with noise in place of the embeddings from position
        ``n_known`` on.

        Args:
            n_known: number of positions, from the first on, that have their own embeddings.

        Returns:
            The residual stream after each layer followed by the logits, as a list; and the
            prediction.
        """
        streams: list[Tensor] = []

        def replace_later(embeddings: Tensor, hook: object) -> Tensor:
            """Return the embeddings with noise in place of those from position ``n_known`` on,
            ``[episode, pos, d_model]``; used as a hook function.

            Args:
                embeddings: the embeddings, ``[episode, pos, d_model]``.
                hook: the hook point; not used.
            """
            # [episode, pos, d_model]; the noise is large beside embeddings, which are 0 or about 1.
            return torch.cat([embeddings[:, :n_known], 3.0 * noise[:, n_known:]], 1)

        def record(activation: Tensor, hook: object) -> None:
            streams.append(activation)

        hooks: list[tuple[str, Any]] = [("hook_embed", replace_later)]
        for layer in range(model.config.n_layers):
            hooks.append((f"blocks.{layer}.hook_resid_post", record))
        with torch.no_grad(), model.hooks(fwd_hooks=hooks):
            out = model(tokens, latents, values)
        return [*streams, out.logits], out.prediction

    n_positions = tokens.shape[1]
    predict_position = model.layout_of_length[n_positions].predict_position
    streams, prediction = run_first_positions(n_positions)  # without noise
    largest_change = 0.0
    for n_known in range(1, n_positions):
        noisy_streams, noisy_prediction = run_first_positions(n_known)
        pairs = zip(streams, noisy_streams, strict=True)
        before_noise = [(x[:, :n_known], y[:, :n_known]) for x, y in pairs]
        if n_known > predict_position:  # no noise up to where the prediction is read
            before_noise.append((prediction, noisy_prediction))
        for x, y in before_noise:
            if not torch.equal(x, y):
                change = (x - y).abs().nan_to_num(nan=float("inf"))
                largest_change = max(largest_change, float(change.max()))
    return largest_change


@dataclass
class _Meter:
    """Records a variable at one hook during a run, beside its true values.

    The hook fires once per round. The meter fills in the rounds of one batch of episodes in order,
    then those of the next batch.

    Attributes:
        key: key of the variable.
        hook_name: name of the hook.
        where: hook and positions, in words.
        read: function from an activation to the variable.
        truth: true values ``[episode, round, element]``.
        unit: relative errors are divided by the larger of the true value and this unit.
        first: index of the first episode of the batch that is being recorded.
        round: index of the next round.
    """

    key: str
    hook_name: str
    where: str
    read: Callable[[Tensor], Tensor]
    truth: Tensor
    unit: float
    first: int = 0
    round: int = 0

    def __post_init__(self) -> None:
        self.values = torch.full_like(self.truth, torch.nan)

    def record(self, activation: Tensor, hook: object) -> None:
        """Read the variable from an activation, and store it for the current round; used as a
        TransformerLens hook.

        Args:
            activation: activation of a batch of episodes.
            hook: the hook point; not used.
        """
        end = self.first + len(activation)  # the activation has a row for each episode of the batch
        self.values[self.first : end, self.round] = self.read(activation.cpu())
        self.round = (self.round + 1) % self.truth.shape[1]
        if self.round == 0:  # after the last round: the next batch
            self.first = end


def _compute_errors(value: Tensor, truth: Tensor, unit: float = 1.0) -> tuple[float, float]:
    """Return (largest absolute difference, largest relative difference) of two tensors.

    A NaN in ``value`` counts as an infinite error. Entries where ``truth`` is NaN are not compared.

    Args:
        value, truth: tensors of one shape.
        unit: relative differences are divided by the absolute true value, or by ``unit`` where that
            is larger.
    """
    difference = (value.double() - truth).abs().nan_to_num(nan=float("inf"))
    difference = difference.masked_fill(truth.isnan(), 0.0)
    size = truth.nan_to_num().abs().clamp(min=unit)
    return float(difference.max()), float((difference / size).max())
