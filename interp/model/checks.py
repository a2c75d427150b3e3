"""Check that a machine keeps the interface of :mod:`interp.core.machine`.

    >>> import interp
    >>> check_machine(interp.load("wma-handwired", n_experts=2))
    '12 checks passed'
    >>> sorted(MACHINE_CHECKS)[:3]
    ['channels_are_all_that_passes', 'digest_moves_with_every_weight', 'fresh_copies_are_repeatable']

``MACHINE_CHECKS`` maps the name of each check to its function, which yields a sentence for every
way in which a machine breaks a rule. With pytest, each check is a test::

    @pytest.mark.parametrize("check", interp.MACHINE_CHECKS)
    def test_contract(check): interp.check_machine(my_machine(), only=[check])
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from contextvars import ContextVar
from dataclasses import replace
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from interp.core import catalog
from interp.core.algorithm import Episodes
from interp.core.machine import Component, Machine, Stepped
from interp.model.hooked import count_writes
from interp.model.layout import EncodedRounds, RoundLayout
from interp.model.rollout import replay, sequential
from interp.model.run import Rollout, limit_rounds
from interp.support.checks import checked, format_value
from interp.support.errors import InputError, require, require_known

N_EPISODES = 4
N_ROUNDS = 3
SEED = 0
_ROUNDING_OF_ZERO = 1e-30
"""Differences below this are ignored: a handwired machine may use exp(-200) for 0, with rounding
errors.
"""
_N_RUN = 50
"""Number of rounds that a machine is run for, fewer if its growing channels have no room for
them.
"""
TOLERANCES = {torch.float64: 1e-9, torch.float32: 1e-4}
"""Largest difference by rounding between numbers that should be equal, per dtype; .01 for other
dtypes.
"""
_N_SHIFTS = 3
"""Number of other rounds whose true outcome replaces that of a round."""


class _Case:
    """A model, and the encoded episodes with which it is checked. Checks get copies of the tensors,
    since a faulty step may overwrite them.

    Args:
        machine: the model.
        episodes: the episodes.
        reference: the model's own forward pass over whole episodes, to compare with; None if there
            is none.
    """

    def __init__(
        self, machine: Machine, episodes: Episodes, reference: Callable[[Any], Tensor] | None
    ) -> None:
        self.machine = machine
        self.episodes = episodes
        self.reference = reference
        self.layout: RoundLayout = machine.layout.fit(episodes)
        self._fed: EncodedRounds = machine.prepare(self.layout.encode(episodes))
        self.n_rounds = self._fed.tokens.shape[1]
        self.tolerance = TOLERANCES.get(machine.dtype, 1e-2)

    @cached_property
    def run(self) -> Rollout:
        """Rollout of the model over the episodes, with the choices that were recorded in them."""
        return sequential(self.machine, self.rounds, self.layout, "target")

    @property
    def rounds(self) -> EncodedRounds:
        """The inputs of all rounds of every episode."""
        return self._fed.map_tensors(torch.clone)

    @property
    def start(self) -> Tensor:
        """The state that the first round reads, ``[episode, row, width]``."""
        return self.machine.initial(len(self.episodes), self.layout).clone()

    def get_inputs(self, t: int) -> EncodedRounds:
        """Return the inputs of round ``t`` of every episode."""
        return self._fed.take_round(t).map_tensors(torch.clone)

    @cached_property
    def steps(self) -> list[Stepped]:
        """Predictions and states of the first rounds, run one by one."""
        steps = []
        carried = self.start
        for t in range(min(N_ROUNDS, self.n_rounds)):
            step = self.machine.step(carried, self.get_inputs(t))
            steps.append(step)
            carried = step.carried.clone()
        return steps

    def step_with_hook(self, name: str, hook: Callable[..., Tensor | None]) -> Stepped:
        """Run round 0 of every episode with a hook.

        Args:
            name: name of the hook point.
            hook: the function ``(activation, hook point)``.
        """
        with self.machine.hooks(fwd_hooks=[(name, hook)]):
            return self.machine.step(self.start, self.get_inputs(0))

    def step_first_of(self, rows: Tensor) -> Stepped:
        """Run round 1 of some episodes as one batch, and return the prediction and the state of the
        first of them.

        Round 0 would not do, since all episodes read the same state in it.

        Args:
            rows: indices of the episodes.
        """
        fed = self.get_inputs(1).select(rows)
        stepped = self.machine.step(self.run.latents[rows, 1].clone(), fed)
        return Stepped(stepped.prediction[:1], stepped.carried[:1])


def _gap(tensor: Tensor, other: Tensor) -> float:
    """Return the largest absolute difference between two tensors; infinity if their shapes differ."""
    if tensor.shape != other.shape:
        return float("inf")
    return float((tensor - other).abs().max())


def _compare_results(result: Stepped, other: Stepped) -> float:
    """Return the largest absolute difference between two results of the same round, over all
    predictions and states; infinity if their shapes differ.
    """
    return max(map(_gap, result, other))


# Each check yields a sentence for every way in which the machine breaks a rule.


def _check_shapes(case: _Case) -> Iterator[str]:
    """Yield a sentence if a state or a prediction is not finite, or if its shape differs from what
    the model's channels and layout declare.

    Args:
        case: the model, with encoded episodes and their run.
    """
    start = case.start
    channels = case.machine.channels
    rows = sum(channel.rows for channel in channels)
    width = max(channel.shape[-1] for channel in channels)
    # Rounds smaller than the largest may carry fewer rows, as with fewer latents.
    is_state = start.ndim == 3 and start.shape[2] == width and start.shape[1] <= rows
    if not is_state:
        yield f"what round 0 reads has shape {tuple(start.shape)}; its channels say [episode, {rows}, {width}]"
        return
    prediction, carried = case.machine.step(start, case.get_inputs(0))
    if carried.shape != start.shape or carried.dtype != start.dtype:
        leaves = f"{tuple(carried.shape)} {carried.dtype}"
        yield (
            f"a round leaves {leaves}, and read {tuple(start.shape)} {start.dtype}; return every channel in its own "
            "shape and dtype"
        )
        return
    axes = (case.layout.n_outputs,) * case.layout.prediction_axes  # () for a single number
    if prediction.shape != (len(start), *axes):
        yield f"a prediction has shape {tuple(prediction.shape)}, not that of its layout's outcomes"
        return
    numbers = torch.cat([part.flatten() for step in case.steps for part in step])
    if not numbers.isfinite().all():
        yield "a prediction, or what is carried, is not finite"


def _check_probabilities(case: _Case) -> Iterator[str]:
    """Yield a sentence if predictions of classes are negative or do not sum to 1. Also yield one if
    the scores from which they are computed, as from logits, are probabilities themselves.

    Args:
        case: the model, with encoded episodes and their run.
    """
    if case.layout.kind != "classes":
        return
    if not _are_probabilities(case.layout.distribution(case.run.predictions), case.tolerance):
        yield "predictions are no probabilities of the outcomes: they must be 0 or more and add up to 1"
    if getattr(case.machine, "output", "") == "logits":
        scores = _record_scores(case)[:, : case.layout.n_outputs]
        if _are_probabilities(scores, case.tolerance):
            yield (
                "the scores of every round are 0 or more and add up to 1, as probabilities do, but a softmax is taken "
                "of them: give adapt(..., output='probability'), or add a constant if they are logits"
            )


def _are_probabilities(numbers: Tensor, tolerance: float) -> bool:
    """Return whether numbers ``[..., outcome]`` are at least 0 and sum to 1, up to ``tolerance``."""
    totals = numbers.sum(-1)
    is_positive = float(numbers.min()) >= -tolerance
    return is_positive and _gap(totals, torch.ones_like(totals)) <= tolerance


def _record_scores(case: _Case) -> Tensor:
    """Return what the user's step returns as scores in every round of the run, ``[row, outcome]``.

    Args:
        case: an adapted model, with encoded episodes and their run.
    """
    machine: Any = copy.copy(case.machine)
    recorded = []

    def step(*args: Any) -> Any:
        """Run the user's step, and record its scores."""
        result = case.machine.one_step(*args)  # type: ignore[attr-defined]
        recorded.append(result[0])
        return result

    machine.one_step = step
    machine.step(case.run.latents[:, :-1].flatten(0, 1), case.rounds.rows(range(case.n_rounds)))
    return recorded[0]


def _check_purity(case: _Case) -> Iterator[str]:
    """Yield a sentence if running a round has a side effect: it writes into its inputs or the
    model, or draws random numbers. Also yield one if the same round has another result the second
    time.

    Args:
        case: the model, with encoded episodes and their run.
    """
    module: Any = case.machine
    start = case.start
    fed = case.get_inputs(0)
    inputs = [start, *fed.tensors().values()]
    tensors = {**module.state_dict(keep_vars=True), **dict(module.named_buffers())}
    writes_to_inputs = [count_writes(tensor) for tensor in inputs]
    writes = {name: count_writes(tensor) for name, tensor in tensors.items()}
    start_again = start.clone()
    with torch.random.fork_rng(devices=[]):
        # Moved on, so that a step that seeds the generator always changes its state.
        torch.rand(1)
        generator_state = torch.random.get_rng_state()
        first = module.step(start, fed)
        # Another round between the two equal ones, whose traces outside of the channels would show.
        module.step(first.carried.clone(), case.get_inputs(case.n_rounds - 1))
        again = module.step(start_again, case.get_inputs(0))
        moves_generator = not torch.equal(generator_state, torch.random.get_rng_state())
    if writes_to_inputs != [count_writes(tensor) for tensor in inputs]:
        yield "a round writes into what it was given: compute what is carried anew (h = h + x, never h += x)"
    changed = [name for name, tensor in tensors.items() if writes[name] != count_writes(tensor)]
    if moves_generator:
        changed.append("the global generator")
    if not all(map(torch.equal, first, again)):
        yield (
            "the same round gives another result the second time: something is drawn at random, or kept outside the "
            "channels (an attribute, a buffer); put it in a channel"
        )
    elif changed:  # reported alone: where results differ, too, this may be the cause
        yield f"a round changes {', '.join(changed)}: only what it returns may pass on; put it in a channel"


def _check_channels(case: _Case) -> Iterator[str]:
    """Yield a sentence if the model passes information between rounds in another way than in its
    carried state, for example in an attribute.

    The check runs one round with the rows of the carried states, and of the inputs, in another
    order. The results must be those of the original run in this order.

    Args:
        case: the model, with encoded episodes and their run.
    """
    t = max(1, case.n_rounds // 2)  # not round 0, in which all episodes read the same state
    # Row e of the batch gets the inputs of episode e - 1, and the state that its round t reads, so
    # it must also get that episode's result. It does not if the machine stores something for each
    # row outside of the channels, since what it stored for row e is still that of episode e.
    shifted = torch.arange(len(case.episodes)).roll(1)
    fed = case.get_inputs(t).select(shifted)
    result = case.machine.step(case.run.latents[shifted, t], fed)
    expected = Stepped(case.run.predictions[shifted, t], case.run.latents[shifted, t + 1])
    if _compare_results(result, expected) > case.tolerance:
        yield (
            "an episode that is given all that another carries does not go on as the other: the channels are not all "
            "that passes between rounds"
        )


def _check_rows(case: _Case) -> Iterator[str]:
    """Yield a sentence if the result of an episode depends on the other episodes in the batch.

    A step with a branch on the whole batch passes if no sampled round takes different branches.

    Args:
        case: the model, with encoded episodes and their run.
    """
    every_row = torch.arange(len(case.episodes))
    shifted = every_row.roll(1)
    shifted[0] = 0  # [0, 0, 1, 2, ...]: the first episode stays, with other rows beside it
    in_batch = case.step_first_of(every_row)
    beside_others = case.step_first_of(shifted)
    # A tolerance, since some machines (such as mixtures of experts) add up numbers in an order that
    # depends on the batch.
    if _compare_results(in_batch, beside_others) > case.tolerance:
        yield "an episode's result depends on the others in the batch (batch statistics, a sum over the batch)"
        return
    # Alone in every round, by turns, since a step may look at its batch only where states are large.
    for t in range(case.n_rounds):
        row = every_row[[t % len(every_row)]]
        alone = case.machine.step(case.run.latents[row, t].clone(), case.get_inputs(t).select(row))
        in_run = Stepped(case.run.predictions[row, t], case.run.latents[row, t + 1])
        if _compare_results(alone, in_run) > case.tolerance:
            yield (
                f"an episode that runs round {t} alone gets another result than in a batch (a squeeze of the batch, a "
                "mean over it, a branch that depends on all of it)"
            )
            return


def _check_truth(case: _Case) -> Iterator[str]:
    """Yield a sentence if the model's prediction depends on inputs that come later in the round
    than the prediction, such as the true outcome.

    The check replaces each of these inputs by that of another round, and compares predictions. It
    does so for all rounds of the run, since a model may see the outcome in only some of them.

    Args:
        case: the model, with encoded episodes and their run.
    """
    layout = case.layout
    # A layout may override predict_position, and read elsewhere than at its label: the earlier counts.
    position = min(layout.predict_position, layout.position(layout.predict_label))
    # One row for each round of each episode: row e * n_rounds + t is round t of episode e.
    latents = case.run.latents[:, :-1].flatten(0, 1)
    fed = case.rounds.rows(range(case.n_rounds))

    def predict(rounds: EncodedRounds) -> Tensor:
        """Return the model's predictions, flattened, ``[row, number]``.

        Args:
            rounds: a batch of rounds; row ``e * n_rounds + t`` is round t of episode e.
        """
        prediction = case.machine.step(latents.clone(), rounds.map_tensors(torch.clone)).prediction
        return prediction.reshape(len(latents), -1)

    original = predict(fed)
    # Differences [row] between two equal runs: 0, unless the machine draws random numbers, which
    # another check reports. A third run may then differ more, so at least the tolerance is allowed.
    noise = (original - predict(fed)).abs().amax(1)
    if noise.any():
        noise = noise.clamp_min(case.tolerance)
    # The later positions, and the names of input tensors that are read after the prediction.
    for place in (*range(position + 1, layout.n_positions), *fed.after):
        is_changed = torch.zeros(len(latents), dtype=torch.bool)
        # By several shifts, since one other row may have the same token at this place.
        for shift in range(1, 1 + _N_SHIFTS):
            changed_prediction = predict(_take_from_other_rows(fed, place, shift))
            is_changed |= (original - changed_prediction).abs().amax(1) > noise
        if is_changed.any():
            t = int((is_changed.nonzero() % case.n_rounds).min())  # the first round that changes
            yield f"the prediction of round {t} changes with {_describe_place(place, layout, position)}"
            return


def _describe_place(place: int | str, layout: RoundLayout, position: int) -> str:
    """Return the end of a sentence of :func:`_check_truth`: the name of the later input with which
    the prediction changes.

    Args:
        place: index of a position, or the name of another input tensor.
        layout: layout of the rounds.
        position: index of the position at which the prediction is read.
    """
    if isinstance(place, str):
        return f"{place!r}, which comes after it"
    return (
        f"{layout.labels[place]!r}, which comes after {layout.labels[position]!r} where it is read: the machine sees "
        "the truth before it predicts"
    )


def _take_from_other_rows(fed: EncodedRounds, place: int | str, shift: int) -> EncodedRounds:
    """Return a batch of rounds with an input at one place exchanged between rows: row i gets that
    of row i - ``shift``.

    Args:
        fed: the rounds.
        place: index of the position whose tokens are exchanged, or the name of another input
            tensor.
        shift: number of rows.
    """
    if isinstance(place, str):
        shifted: Any = {place: fed.tensors()[place].roll(shift, 0)}
        return replace(fed, **shifted)
    tokens = fed.tokens.clone()
    values = fed.values.clone()
    tokens[:, place] = tokens[:, place].roll(shift)
    values[:, place] = values[:, place].roll(shift)
    return replace(fed, tokens=tokens, values=values)


def _check_rollout(case: _Case) -> Iterator[str]:
    """Yield a sentence if the result of the rounds depends on how they are run: one by one with
    ``step``, in a rollout, or all in one batch.

    Args:
        case: the model, with encoded episodes and their run.
    """
    run = case.run
    n_steps = len(case.steps)
    predictions = torch.stack([step.prediction for step in case.steps], 1)  # [episode, round, ...]
    carried = torch.stack([step.carried for step in case.steps], 1)
    by_steps = Stepped(predictions, carried)
    by_rollout = Stepped(run.predictions[:, :n_steps], run.latents[:, 1 : n_steps + 1])
    steps_gap = max(_compare_results(by_steps, by_rollout), _gap(case.start, run.latents[:, 0]))
    if steps_gap > case.tolerance:
        yield f"step after step is {steps_gap:.1g} apart from interp.rollout"
    replayed, replayed_carried, _ = replay(case.machine, run)
    replay_gap = max(_gap(replayed, run.predictions), _gap(replayed_carried, run.latents[:, 1:]))
    if replay_gap > case.tolerance:
        yield (
            f"all rounds at once (interp.replay) are {replay_gap:.1g} apart from one after the "
            "other"
        )


def _check_reference(case: _Case) -> Iterator[str]:
    """Yield a sentence if the model's predictions differ from those of the function that the user
    passed as ``reference=``.

    Args:
        case: the model, with encoded episodes, their run and this function.
    """
    if case.reference is None:
        return
    # In evaluation mode, as rounds run; the user's module may still be in training mode.
    open_mode = getattr(case.machine, "open_mode", nullcontext)
    with open_mode(case.machine.dtype):
        scores = case.reference(case.rounds)
    predicted = case.layout.distribution(case.run.predictions)
    if not isinstance(scores, Tensor) or scores.shape != predicted.shape:
        yield (
            f"reference= gives scores [episode, round, outcome] = {tuple(predicted.shape)}, got "
            f"{format_value(scores)}"
        )
        return
    if getattr(case.machine, "output", "") == "logits":
        scores = scores.softmax(-1)
    # [round], the largest over episodes and outcomes; NaN in either counts as a difference.
    gap_of_round = (predicted - scores).abs().amax((0, 2)).nan_to_num(torch.inf)
    largest = float(gap_of_round.max())
    if largest > case.tolerance:
        first = int((gap_of_round > case.tolerance).nonzero()[0])
        yield (
            f"predictions are up to {largest:.2g} apart from those of reference=, from round {first} on: "
            "what the machine reads, carries or predicts there is not what the model's own forward pass computes"
        )


def _check_points(case: _Case) -> Iterator[str]:
    """Yield a sentence for every problem with the model's hook points (:func:`_check_point`).

    Args:
        case: the model, with encoded episodes and their run.
    """
    unhooked = case.steps[0]
    for component in case.machine.points.values():
        for layer in range(component.n_layers or 1):  # 0 if the component is in no layer
            name = component.hook.format(layer=layer)
            yield from _check_point(case, component, name, unhooked)
    for key, tap in getattr(case.machine, "taps", {}).items():
        if tap.point.alive is not None:
            yield from _check_halted_rows(case, key, tap, unhooked)


def _check_halted_rows(case: _Case, key: str, tap: Any, unhooked: Stepped) -> Iterator[str]:
    """Yield a sentence if a loop's runs still influence the result of an episode for which the loop
    has halted, according to the function ``alive=`` of a hook point.

    The check alters activations in these runs, and compares results.

    Args:
        case: the model with encoded episodes.
        key: key of the hook point.
        tap: the object with one hook point for each run of the loop.
        unhooked: result of the round without the change.
    """
    # The hook point of the loop's first run; that of any other run would do.
    name = case.machine.points[key].hook.format(layer=0)
    # Activations of halted rows are altered in all runs, but only while a hook is at the point; so
    # one is attached that does nothing.
    tap.alters_halted = True
    try:
        disturbed = case.step_with_hook(name, lambda activation, hook: None)
    finally:
        tap.alters_halted = False
    gap = _compare_results(unhooked, disturbed)
    if gap > _ROUNDING_OF_ZERO:
        yield (
            f"runs at {key!r} that alive= says do not take place move the result by {gap:.1g}: alive= says that rows "
            "have halted which go on, or reads another gate"
        )


def _check_point(case: _Case, component: Component, name: str, unhooked: Stepped) -> Iterator[str]:
    """Yield a sentence for everything that is wrong with a hook point: how often it fires, its
    axes, its labels, or an effect of a hook that changes nothing.

    Args:
        case: the model with encoded episodes.
        component: the model's description of the point.
        name: name of the hook point.
        unhooked: result of the round without a hook.
    """
    shapes: list[tuple[int, ...] | None] = []  # one entry a firing; None for what is no tensor

    def record_shape(activation: Any, hook: Any) -> None:
        """Note the shape of an activation, and change nothing; this function is a hook.

        Args:
            activation: the activation.
            hook: not used.
        """
        shapes.append(tuple(activation.shape) if isinstance(activation, Tensor) else None)

    hooked = case.step_with_hook(name, record_shape)
    shape = shapes[0] if shapes else None
    n_axes = 2 + len(component.axes.split())  # these, between the batch and the vector
    n_rows = len(unhooked.carried)
    if len(shapes) != 1:
        yield (
            f"the point {name!r} fires {len(shapes)} times in a round, which must be once: a call of the submodule's "
            "forward, and one in compiled code, call no hooks; adapt the module, and give the step, as before "
            "torch.compile"
        )
    elif shape is None or len(shape) != n_axes or shape[0] != n_rows:
        got = "no tensor" if shape is None else f"shape {shape}"
        axes = ", ".join(["batch", *component.axes.split(), "vector"])
        yield (
            f"the point {name!r} has axes [{axes}], got {got}; Point(..., axes=) names those between, such as "
            "axes='pos' for the steps of a sequence"
        )
    elif component.key != "latent":  # its labels are those of all channels, not of one axis
        n_labels = len(component.labels)
        if n_labels and n_labels not in shape[1:-1]:
            yield f"the point {name!r} has {n_labels} labels for places of {shape}"
    gap = _compare_results(unhooked, hooked)
    # A hook on the heads' separate outputs makes the model add them in another order.
    allowed = case.tolerance if name.endswith("hook_result") else _ROUNDING_OF_ZERO
    if gap > allowed:
        yield f"a hook at {name!r} that changes nothing moves the result by {gap:.1g}"


def _check_start(case: _Case) -> Iterator[str]:
    """Yield a sentence if the initial state differs between two calls, or depends on the number of
    episodes.

    Args:
        case: the model, with encoded episodes and their run.
    """
    two = case.machine.initial(2, case.layout)
    again = case.machine.initial(2, case.layout)
    three = case.machine.initial(3, case.layout)
    if not torch.equal(two, three[:2]) or not torch.equal(two, again):
        yield "what round 0 reads differs from call to call, or with the number of episodes"


def _check_copies(case: _Case) -> Iterator[str]:
    """Yield a sentence for every problem with untrained copies of the model:

    - making a copy changes the global random generator;
    - two copies with the same seed differ, or two with different seeds are equal;
    - a copy is equal to the model;
    - the field ``is_handwired`` of a copy is True.

    Args:
        case: the model, with encoded episodes and their run.
    """
    generator_state = torch.random.get_rng_state()
    copies = [case.machine.untrained(seed) for seed in (0, 0, 1)]
    if not torch.equal(generator_state, torch.random.get_rng_state()):
        yield "untrained(seed) moves the global generator of random numbers"
    digest, digest_again, digest_of_other_seed = [fresh.digest() for fresh in copies]
    if digest != digest_again or digest in (digest_of_other_seed, case.machine.digest()):
        yield (
            "untrained(seed) must give the same copy for the same seed, another for another, and "
            "never the machine itself"
        )
    if copies[0].is_handwired:
        yield "an untrained copy cannot have an exact state readout"


def _check_digest(case: _Case) -> Iterator[str]:
    """Yield a sentence if the model's digest (a hash of configuration and weights) differs between two calls, and
    for every weight that can be changed without changing the digest.

    Args:
        case: the model, with encoded episodes and their run.
    """
    if case.machine.digest() != case.machine.digest():
        yield "the digest of the same weights differs from call to call"
    changed: Any = copy.deepcopy(case.machine)
    digest = changed.digest()
    for name, weight in changed.named_parameters():
        if weight.numel():
            weight[(0,) * weight.ndim] += 1  # its first number
            before, digest = digest, changed.digest()
            if digest == before:
                yield f"the digest does not move with the weight {name!r}"


def _check_precisions(case: _Case) -> Iterator[str]:
    """Yield a sentence for every dtype in which a copy of the model cannot run a round, or returns
    a state of another dtype.

    Args:
        case: the model, with encoded episodes and their run.
    """
    module: Any = case.machine
    dtypes = [torch.float64]
    if module.dtype != torch.float64:  # a machine in double may need that precision
        dtypes.append(torch.bfloat16)
    for dtype in dtypes:
        cast = copy.deepcopy(module).to(dtype)
        try:
            fed = cast.prepare(case.layout.encode(case.episodes)).take_round(0)
            carried = cast.step(cast.initial(len(case.episodes), case.layout), fed).carried
        except Exception as error:
            yield f"a round of a copy in {dtype} fails, and analyses make such copies: {error}"
            continue
        if carried.dtype != dtype:
            yield f"a round of a copy in {dtype} leaves {carried.dtype}: make numbers with .to(fed.values)"


MACHINE_CHECKS: dict[str, Callable[[_Case], Iterator[str]]] = {
    "shapes_are_those_of_the_channels": _check_shapes,
    "steps_are_pure": _check_purity,
    "starts_are_repeatable": _check_start,
    "predictions_are_probabilities": _check_probabilities,
    "predictions_do_not_see_the_truth": _check_truth,
    "rows_do_not_touch": _check_rows,
    "channels_are_all_that_passes": _check_channels,
    "rollout_is_step_after_step": _check_rollout,
    "predictions_are_those_of_the_reference": _check_reference,
    "points_fire_once": _check_points,
    "fresh_copies_are_repeatable": _check_copies,
    "it_runs_in_every_precision": _check_precisions,
    "digest_moves_with_every_weight": _check_digest,
}
"""All checks by name, in the order in which they run."""
_BASIC = ("shapes_are_those_of_the_channels", "steps_are_pure")
"""Checks after which the others are skipped: a machine that fails one of these fails most others,
too.
"""
_COSTLY = (
    "fresh_copies_are_repeatable",
    "it_runs_in_every_precision",
    "digest_moves_with_every_weight",
)
"""Checks that copy the machine; they are skipped when a machine is made."""


SKIPS_CHECKS = ContextVar("SKIPS_CHECKS", default=False)
"""True while a builder builds a machine that has passed the checks before, so that they are
skipped.
"""


@checked
def check_machine(
    machine: Machine,
    episodes: Episodes | None = None,
    *,
    reference: Callable[[Any], Tensor] | None = None,
    only: Sequence[str] | None = None,
    cheap: bool = False,
) -> str:
    """Check that a model behaves as the toolkit requires of every model, and return a text such as
    "12 checks passed".

    Args:
        machine: the model; it is not changed.
        episodes: episodes of its task, at least 2 with at least 2 rounds; a few are sampled when
            None.
        reference: the model's own forward pass over whole episodes, to compare with. It maps
            ``fed``, with ``fed.tokens`` ``[episode, round, pos]``, to scores ``[episode, round,
            outcome]`` of the same kind as those of the model's step.
        only: names of the checks to run, from ``interp.MACHINE_CHECKS``; all when None.
        cheap: True to skip checks that copy the model, or take time that grows with its weights.

    Raises:
        InputError: the model breaks a rule; the message has a sentence for every problem.
    """
    for key in only or ():
        require_known("check of a machine", key, MACHINE_CHECKS, limit=20)
    if episodes is None:
        episodes = _sample_episodes(machine)
    require(
        len(episodes) >= 2 and episodes.n_rounds >= 2,
        "give at least 2 episodes of at least 2 rounds",
    )
    selected = only
    if selected is None:
        selected = [key for key in MACHINE_CHECKS if not cheap or key not in _COSTLY]
    case = _Case(machine, episodes, reference)
    problems, cause = _run_checks(case, selected)
    if problems:
        raise InputError(
            f"{machine.name!r} does not keep the contract of a machine:\n- " + "\n- ".join(problems)
        ) from cause
    # Without reference=, the check of it compares nothing, and is not counted.
    ran = [
        key for key in selected if reference is not None or MACHINE_CHECKS[key] != _check_reference
    ]
    return f"{len(ran)} {'check' if len(ran) == 1 else 'checks'} passed"


def _run_checks(case: _Case, selected: Sequence[str]) -> tuple[list[str], Exception | None]:
    """Run checks of a model. If a basic one finds a problem, later ones are skipped.

    Args:
        case: the model, with encoded episodes and their run.
        selected: names of the checks, from :data:`MACHINE_CHECKS`.

    Returns:
        A pair: a sentence for every problem; and the last exception that a check raised, or None.
    """
    problems: list[str] = []
    cause: Exception | None = None
    for key, check in MACHINE_CHECKS.items():
        if key not in selected:
            continue
        try:
            with torch.no_grad():
                problems += [f"{key}: {sentence}" for sentence in check(case)]
        except Exception as error:  # a machine of the user's may raise anything
            cause = error
            kind = "" if isinstance(error, InputError) else f"{type(error).__name__}: "
            problems.append(f"{key}: {kind}{error}")
        if problems and key in _BASIC:  # most other checks would fail, too
            break
    return problems, cause


def _sample_episodes(machine: Machine) -> Episodes:
    """Sample a few episodes of a model's task, with as many rounds as the model's state and the
    task's data allow, but at most 50.

    Args:
        machine: the model.
    """
    task = catalog.get(machine.layout.task)
    n_rounds = task.cap_rounds(limit_rounds(machine, _N_RUN))
    try:  # at least two rounds, since checks compare one with another
        return task.sample_for(machine, N_EPISODES, max(2, n_rounds), SEED)
    except InputError:  # recorded episodes may be shorter
        return task.sample_for(machine, N_EPISODES, max(2, task.cap_rounds(N_ROUNDS)), SEED)
