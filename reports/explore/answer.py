"""Run edits on a machine and on its algorithm, and compare them with random changes of equal size.

Rounds before the first edit are copied from the run without edits; only later rounds run again.
docs/method/pages.md says what the controls are, and which edits the algorithm can follow.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from itertools import compress
from typing import Any

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray
from torch import Tensor

from interp.interventions.sites import Site, carried_mask, resolve_site, write
from interp.model.hooked import Hooks
from interp.model.rollout import rollout
from interp.model.run import Rollout
from interp.support.checks import checked_result
from interp.support.errors import require
from reports.explore.view import Edit, Setup, View, Written

_N_CONTROLS = 4
"""Number of random changes of equal size, whose range is shown."""
_ROUNDING = 1e-6
"""A change of predictions below this is rounding."""
_Array = NDArray[Any]
_Move = tuple[int, Site, float]
"""A change inside the machine: (round, site, norm of the change)."""


@dataclass(frozen=True, eq=False)
@checked_result
class Answer:
    """What the edits of a page change: one episode, run with and without the edits.

    Attributes:
        setup: the machine with its episodes and algorithm.
        view: what the page shows: an episode, a round and edits.
        episodes: the view's episode, with edited inputs.
        before, after: the run without and with the edits.
        read_latents: carried latents that every round reads, with the edits, ``[1, round, latent,
            d_model]``.
        hooks: index of a round -> forward hooks that make the edits inside the machine, pairs (name
            of a hook point, function), as for ``fwd_hooks`` of :func:`interp.rollout`.
        controls: the machine's predictions under random changes of the same size as the edits,
            ``[control, round, outcome]``; empty without edits.
        n_followed: number of edits that were made in the algorithm, too: edits of inputs, and edits
            that have a counterpart in the algorithm's state.
        values_before, values_after: key of a variable of the algorithm -> its values ``[1, round,
            ...]``, without and with the edits.
        machine: predictions of the machine without and with the edits, ``[round, outcome]`` each.
        algorithm: predictions of the algorithm without and with the edits, ``[round, outcome]``
            each.
    """

    setup: Setup
    view: View
    episodes: Any
    before: Rollout
    after: Rollout
    read_latents: Tensor
    hooks: Mapping[int, Hooks]
    controls: _Array
    n_followed: int
    values_before: Mapping[str, _Array]
    values_after: Mapping[str, _Array]
    machine: tuple[_Array, _Array]
    algorithm: tuple[_Array, _Array]

    @cached_property
    def decoded(self) -> tuple[dict[str, _Array], dict[str, _Array]]:
        """The algorithm's state as decoded from the latents that each round reads: one mapping
        without and one with the edits, each from the key of a variable to its values ``[round,
        ...]``. The mappings are empty if no state can be decoded.
        """
        before = self._decode(self.before.latents[:, :-1])
        return before, self._decode(self.read_latents)

    def _decode(self, latents: Tensor) -> dict[str, _Array]:
        """Return key of a variable -> its values ``[round, ...]`` as decoded from latents ``[1,
        round, latent, d_model]``; empty if no state can be decoded.
        """
        if self.setup.decoder_error:
            return {}
        decoded = self.setup.writer.read(latents)
        return {key: values[0] for key, values in decoded.items()}

    @cached_property
    def outcome(self) -> int:
        """Index of the outcome that is drawn.

        The view can choose it. Otherwise it is the outcome with the prediction that the edits
        change most; if they change none, the outcome with the prediction that varies most.
        """
        n_outcomes = len(self.setup.layout.outcomes)
        chosen = self.view.outcome
        require(chosen < n_outcomes, f"outcome {chosen} does not exist: 0 to {n_outcomes - 1}")
        if chosen >= 0:
            return chosen
        before, after = self.machine
        moves = np.abs(after - before).max(0)
        if moves.max() > _ROUNDING:
            return int(moves.argmax())
        # The probabilities of two outcomes sum to 1 and vary equally, up to rounding. A tiny bonus
        # that grows with the index chooses the last outcome.
        tie_break = 1e-9 * np.arange(n_outcomes)
        return int((before.std(0) + tie_break).argmax())

    def differences(self) -> dict[str, _Array]:
        """Return how much predictions change in each round.

        The change is the total variation distance of distributions, or the absolute change of a
        predicted mean.

        Returns:
            Name -> change in each round, ``[round]``. "machine" and "algorithm" are changed by the
            edits. If there are edits, "control_mean", "control_low" and "control_high" are mean,
            lowest and highest change of the machine under random changes of equal size.
        """
        moves = {
            "machine": self._measure_change(*self.machine),
            "algorithm": self._measure_change(*self.algorithm),
        }
        if len(self.controls):
            without_edits, _ = self.machine
            random = self._measure_change(without_edits, self.controls)  # [control, round]
            moves["control_mean"] = random.mean(0)
            moves["control_low"] = random.min(0)
            moves["control_high"] = random.max(0)
        return moves

    def _measure_change(self, before: _Array, after: _Array) -> _Array:
        """Return how far predictions differ in each round, ``[..., round]``. This is the total
        variation distance of distributions, or the absolute difference of predicted means.

        Args:
            before, after: predictions without and with a change, ``[..., round, outcome]``.
        """
        change = np.abs(after - before)
        if self.setup.predicts_classes:
            return change.sum(-1) / 2  # total variation distance
        return change[..., 0]  # the only outcome: a mean

    @cached_property
    def truth(self) -> list[str]:
        """The name of the right outcome of every round under the edited inputs, such as the true
        label: a model that predicts it with certainty has the lowest loss. If several outcomes have
        the same loss, their names are joined by "or".

        All names are "" if the task predicts a real number.
        """
        n_rounds = self.setup.n_rounds
        if not self.setup.predicts_classes:
            return [""] * n_rounds
        layout = self.setup.layout
        # One prediction per outcome, certain of it: [prediction, episode, round, outcome].
        certain = torch.eye(len(layout.outcomes), dtype=torch.float64)[:, None, None]
        prediction = layout.prediction(certain.expand(-1, 1, n_rounds, -1))
        losses = self.setup.task.data.losses(prediction, self.episodes, slice(0, n_rounds))
        losses = losses[:, 0]  # of the only episode: [prediction, round]
        is_best = losses <= losses.min(0).values + 1e-9
        return [" or ".join(compress(layout.outcomes, of_round)) for of_round in is_best.T]

    def frame(self) -> pd.DataFrame:
        """Return the numbers in the page's pictures as a table with one row per round and outcome.

        The columns are:

        * round, outcome (its name) and truth (name of the right outcome of the round);
        * model_before and model_after: the machine's prediction without and with the edits;
        * algorithm_before and algorithm_after: the algorithm's, without and with the edits;
        * control_low and control_high: the machine's lowest and highest prediction under the random
          changes of equal size; absent without edits;
        * moved_machine and moved_algorithm: how much the edits change the predictions of the round
          (:meth:`differences`);
        * moved_control_mean, moved_control_low and moved_control_high: mean, lowest and highest
          change of the machine's predictions under the random changes; absent without edits.
        """
        names = self.setup.layout.outcomes
        n_outcomes = len(names)
        rounds = np.arange(self.setup.n_rounds)
        columns: dict[str, Any] = {}
        columns["round"] = np.repeat(rounds, n_outcomes)
        columns["outcome"] = list(names) * len(rounds)
        columns["truth"] = np.repeat(self.truth, n_outcomes)
        for name, sides in (("model", self.machine), ("algorithm", self.algorithm)):
            before, after = sides
            columns[f"{name}_before"] = before.ravel()
            columns[f"{name}_after"] = after.ravel()
        controls = self.controls
        if len(controls):
            columns["control_low"] = controls.min(0).ravel()
            columns["control_high"] = controls.max(0).ravel()
        for name, moves in self.differences().items():
            columns[f"moved_{name}"] = np.repeat(moves, n_outcomes)
        return pd.DataFrame(columns)


def answer(setup: Setup, view: View, whole: bool = True) -> Answer:
    """Run one episode on a machine and on its algorithm, without and with the edits of a page. The
    controls are random changes of the machine's activations, each as large as an edit's change.

    Args:
        setup: the machine with its episodes.
        view: what the page shows: an episode, a round and edits.
        whole: True makes all edits in the machine. False is for the reference machine, with which a
            page compares its machine. It gets only edits of inputs (kind "input") and of the
            decoded state ("move"). It gets none that copy a state ("memory") or an activation of
            another episode ("patch"), or set an activation to 0 ("zero") or to its mean over
            episodes ("mean"). The algorithm gets all edits that have a counterpart in it, whether
            ``whole`` is True or False.

    Returns:
        The runs and predictions without and with the edits, and the machine's predictions under the
        random changes.
    """
    _require_existing(setup, view)
    model = setup.model
    episodes = setup.episodes
    for edit in view.edits:
        episodes = edit.change_inputs(setup, episodes)
    episodes = episodes.select([view.episode])
    write_hooks = _make_write_hooks(setup, view, whole)
    hooks: dict[int, list[Any]] = defaultdict(list)
    for write_hook in write_hooks:
        hooks[write_hook.round].append((write_hook.written.site.hook, write_hook))
    before = setup.run_episode(view.episode)
    inputs_before = before.fed.tensors()
    fed = model.prepare(setup.layout.encode(episodes))
    changed_rounds = _find_changed_rounds(setup, inputs_before, fed.tensors())
    latent = resolve_site("latent", model, setup.layout)
    read_latents = before.latents[:, :-1].clone()  # without the last ones, which no round reads
    for t in {*changed_rounds, *hooks}:
        # After the edits of the round, so that the stored latents have them.
        hooks[t].append((latent.hook, partial(_store_read_latents, read_latents, t)))
    after = before
    controls = np.zeros((0, setup.n_rounds, 1))
    if hooks:
        joined = _join_inputs(inputs_before, fed.tensors(), first=min(hooks))
        clean = replace(before, fed=replace(fed, **joined))
        after = rollout(model, episodes, fwd_hooks=hooks, propagate=not view.hold, clean=clean)
        if not view.hold:
            for t in set(range(setup.n_rounds)) - set(hooks):
                read_latents[:, t] = after.latents[:, t]
        change = (after.latents - before.latents)[0].double()  # [round + 1, latent, d_model]
        distance = change.flatten(1).norm(dim=-1)
        # An edited input is no vector. Its control moves the latents that the round reads, as far as
        # the edits move those that it reads or writes.
        moves = [(t, latent, float(distance[t : t + 2].max())) for t in changed_rounds]
        moves += [(hook.round, hook.written.site, hook.size) for hook in write_hooks]
        controls = _run_controls(setup, view, moves)
    values_before = setup.select_values([view.episode])
    values_after, n_followed = _run_algorithm(setup, view, episodes)
    predict = setup.algorithm.distribution  # from values of variables to probabilities, or means
    return Answer(
        setup=setup,
        view=view,
        episodes=episodes,
        before=before,
        after=after,
        read_latents=read_latents,
        hooks=hooks,
        controls=controls,
        n_followed=n_followed,
        values_before=values_before,
        values_after=values_after,
        machine=(_predict(setup, before)[0], _predict(setup, after)[0]),
        algorithm=(np.asarray(predict(values_before)[0]), np.asarray(predict(values_after)[0])),
    )


def _require_existing(setup: Setup, view: View) -> None:
    """Raise InputError if the episode or the round of a view does not exist.

    Args:
        setup: the machine with its episodes.
        view: what the page shows: an episode, a round and edits.
    """
    n_episodes = len(setup.episodes)
    require(
        view.episode < n_episodes,
        f"episode {view.episode} does not exist: there are episodes 0 to {n_episodes - 1}",
    )
    last = setup.n_rounds - 1
    require(
        view.round <= last,
        f"round {view.round} is out of range: the episodes have rounds 0 to {last}",
    )


def _predict(setup: Setup, run: Rollout) -> _Array:
    """Return the probabilities, or means, that a run of the machine predicts, ``[episode, round,
    outcome]``. ``setup`` has the layout that computes them from raw predictions.
    """
    distribution = setup.layout.distribution(run.predictions)
    return distribution.double().numpy(force=True)


@dataclass
class _WriteHook:
    """A forward hook that applies an edit inside the machine in one round.

    Attributes:
        written: what is written, and where.
        round: the round.
        layout: positions of the round.
        size: norm of the change, which is recorded when the hook runs.
    """

    written: Written
    round: int
    layout: Any
    size: float = 0.0

    def __call__(self, activation: Tensor, hook: object) -> Tensor:
        """Return the activation with the edit, and record the norm of the change.

        Args:
            activation: activation at the hook point.
            hook: the hook point; not used.
        """
        site = self.written.site
        before = site.read(activation, self.layout)
        after = self.written.edit_activation(before, self.round)
        difference = (after - before).double()
        # Masked attention scores are infinite: they count as unchanged.
        change = torch.nan_to_num(difference, nan=0.0, posinf=0.0, neginf=0.0)
        self.size = float(change.norm())
        return write(activation, site, self.layout, after)


def _make_write_hooks(setup: Setup, view: View, whole: bool) -> list[_WriteHook]:
    """Make forward hooks for all edits inside the machine: one for each edit and round in which it
    acts.

    Args:
        setup: the machine with its episodes.
        view: what the page shows: an episode, a round and edits.
        whole: True makes hooks for all edits; False only for changes of the decoded state.
    """
    writes: list[_WriteHook] = []
    for edit in view.edits:
        written = edit.make_written(setup) if whole or edit.kind == "move" else None
        if written is not None:  # its values are by round
            writes += [_WriteHook(written, t, setup.layout) for t in written.values]
    return writes


def _store_read_latents(read: Tensor, t: int, activation: Tensor, hook: object) -> None:
    """Store the carried latents that round ``t`` reads; used as a forward hook.

    Args:
        read: tensor in which they are stored, ``[1, round, ...]``.
        t: the round.
        activation: the latents.
        hook: the hook point; not used.
    """
    read[:, t] = activation[:1]


def _find_changed_rounds(
    setup: Setup, before: Mapping[str, Tensor], after: Mapping[str, Tensor]
) -> list[int]:
    """Return the indices of the rounds in which the edits change inputs.

    A choice that the machine makes itself does not count as an input.

    Args:
        setup: the machine with its episodes.
        before, after: the machine's inputs ``[episode, round, ...]`` by name, without and with the
            edits.
    """
    choice = setup.layout.choice_position
    is_changed = torch.zeros(setup.n_rounds, dtype=torch.bool)
    for name, tensor in after.items():
        differs = (tensor != before[name])[0]  # of the only episode: [round, ...]
        differs = differs.reshape(setup.n_rounds, -1)
        if name == "tokens" and choice is not None:
            differs[:, choice] = False
        is_changed |= differs.any(-1).cpu()
    return is_changed.nonzero().flatten().tolist()


def _join_inputs(
    before: Mapping[str, Tensor], after: Mapping[str, Tensor], first: int
) -> dict[str, Tensor]:
    """Join the inputs of two runs: those without edits for the rounds before ``first``, and those
    with edits from then on.

    Args:
        before, after: the machine's inputs ``[episode, round, ...]`` by name, without and with the
            edits.
        first: index of the first edited round.
    """
    joined = {}
    for name, tensor in after.items():
        joined[name] = torch.cat([before[name][:, :first], tensor[:, first:]], dim=1)
    return joined


def _run_controls(setup: Setup, view: View, moves: Iterable[_Move]) -> _Array:
    """Run the machine four times with random changes that are as large as those of the edits, as
    controls.

    Args:
        setup: the machine with its episodes.
        view: what the page shows, for the episode and the seed.
        moves: (round, site, norm) of each change that the edits make.

    Returns:
        Predictions ``[control, round, outcome]``.
    """
    generator = torch.Generator().manual_seed(view.seed)
    hooks: dict[int, list[Any]] = defaultdict(list)
    for t, site, size in moves:
        hooks[t].append((site.hook, partial(_move_at_random, setup, generator, site, size)))
    # The same episode several times, and its run without edits.
    episodes = setup.episodes.select([view.episode] * _N_CONTROLS)
    clean = setup.run_episode(view.episode).select([0] * _N_CONTROLS)
    propagate = not view.hold  # with hold, an edit has no effect on later rounds
    run = rollout(setup.model, episodes, fwd_hooks=hooks, propagate=propagate, clean=clean)
    return _predict(setup, run)


def _move_at_random(
    setup: Setup,
    generator: torch.Generator,
    site: Site,
    size: float,
    activation: Tensor,
    hook: object,
) -> Tensor:
    """Forward hook: return the activation with a random vector added at a site.

    Args:
        setup: the machine.
        generator: draws the vector.
        site: the site.
        size: norm of the vector.
        activation: activation at the hook point.
        hook: the hook point; not used.
    """
    before = site.read(activation, setup.layout)
    noise = torch.randn(before.shape, generator=generator, dtype=torch.float64)
    noise = noise.to(before.device) * _mask_movable(setup, site, before)
    # The norm over all axes but the first, which is that of the controls. It is 0 if no number may
    # move.
    length = torch.linalg.vector_norm(noise, dim=tuple(range(1, before.ndim)), keepdim=True)
    after = before + (noise / length.clamp_min(1e-30) * size).to(before)
    return write(activation, site, setup.layout, after)


def _mask_movable(setup: Setup, site: Site, values: Tensor) -> Tensor:
    """Return a mask of the numbers at a site that a random change may move: 1 for these, 0 for
    padding, for masked attention scores and weights, and for counters in the latents.

    Args:
        setup: the machine and its layout.
        site: the site.
        values: the activation at the site, ``[batch, ...]``.
    """
    axes = site.kind.axes
    if axes == "latent":
        _, latents, *_ = site.index(setup.layout)  # of [batch, latent, d_model]
        mask = carried_mask(setup.model)[latents].reshape(values.shape[1:])
        return mask.to(values.device, torch.float64)
    is_movable = values.isfinite()  # masked attention scores are infinite
    # In vectors at positions, a 0 is a number like others. Elsewhere, such as in attention patterns,
    # it stands for padding or for a masked weight.
    if axes and not axes.startswith("pos"):
        is_movable &= values != 0
    return is_movable.double()


def _run_algorithm(setup: Setup, view: View, episodes: Any) -> tuple[Mapping[str, _Array], int]:
    """Run the algorithm with those edits that have a counterpart in the algorithm.

    Args:
        setup: the machine with its episodes and the algorithm.
        view: what the page shows: an episode, a round and edits.
        episodes: the view's episode, with edited inputs.

    Returns:
        The algorithm's variables ``[1, round, ...]`` by key, and the number of these edits.
    """
    # `apply_to_state` returns None for edits without a counterpart. Which ones these are does not
    # depend on the state, so that the state of round 0 is passed here.
    state = {key: setup.values[key][[view.episode], 0] for key in setup.algorithm.state}
    on_state = [edit for edit in view.edits if edit.apply_to_state(setup, state, 0) is not None]
    n_inputs = sum(edit.kind == "input" for edit in view.edits)
    n_followed = n_inputs + len(on_state)
    # An edited state, or with `hold` the state of the run without edits, replaces the state that the
    # round before has computed. This needs a run round by round.
    if on_state or view.hold:
        return _step_algorithm(setup, view, episodes, on_state), n_followed
    return setup.algorithm.run(episodes), n_followed


def _step_algorithm(
    setup: Setup, view: View, episodes: Any, edits: Sequence[Edit]
) -> Mapping[str, _Array]:
    """Run the algorithm round by round, and apply edits to its state.

    Args:
        setup: the machine with its episodes and the algorithm.
        view: what the page shows; with ``hold`` every round starts from the state of the run
            without edits.
        episodes: the view's episode, with edited inputs.
        edits: edits that also change the algorithm's state.

    Returns:
        The algorithm's variables ``[1, round, ...]`` by key.
    """
    states = setup.select_values([view.episode])
    start, inputs = setup.algorithm.compute_states_and_inputs(episodes)
    state = {key: value[:, 0] for key, value in start.items()}
    steps = []
    for t in range(setup.n_rounds):
        if view.hold:
            state = {key: states[key][:, t] for key in state}
        for edit in edits:
            if t in edit.rounds(setup):
                changed_state = edit.apply_to_state(setup, state, t)
                # None is for edits without a counterpart in the algorithm; these edits all have one.
                assert changed_state is not None
                state = changed_state
        inputs_of_round = {key: value[:, t] for key, value in inputs.items()}
        with np.errstate(all="ignore"):  # a state that cannot occur may have no answer: NaN
            state, values = setup.algorithm.step(state, inputs_of_round)
        steps.append(values)
    return {key: np.stack([values[key] for values in steps], 1) for key in steps[0]}
