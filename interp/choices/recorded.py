"""Fit a small recurrent network (GRU or LSTM cell) to recorded choices, and score it on held-out
participants.

    >>> from interp.tasks import bandit
    >>> episodes = bandit.sample(8, 20, 2, "reversal", seed=0)
    >>> fitted = fit_cell(episodes, units=2, n_folds=2, steps=2)
    >>> fitted.machine.channels[0].shape, fitted.held_out.shape
    ((2,), (8, 20, 2))

Participants are held out because a cell could memorise the choices of those that it was fitted to.
"""

from __future__ import annotations

from collections.abc import Sequence
from copy import deepcopy
from dataclasses import dataclass, field, replace
from itertools import chain
from typing import Any, NamedTuple, cast

import numpy as np
import pandas as pd
import torch
from jaxtyping import Bool, Float, Int
from numpy.typing import NDArray
from torch import Tensor, nn

from interp.choices.players import participants_of
from interp.core import catalog
from interp.machines.recurrent import RoundEncoder
from interp.model.adapted import AdaptedMachine
from interp.model.checkpoints import build_registered
from interp.model.layout import RoundLayout
from interp.stats.intervals import Interval, ratio_interval
from interp.support.checks import checked, integer, refuse_beyond_machine
from interp.support.errors import require, require_known
from interp.training.goal import goal_of

_LOGIT_NOT_OFFERED = -1e4  # logit of an outcome that is not offered: its probability is 0
_LEARNING_RATE = 0.02  # Adam's learning rate, falling to 0 along a cosine
# Measured memory in training, for each hidden unit, round and episode:
_BYTES_A_UNIT = 80


@dataclass(frozen=True)
class _FittedCell:
    """A recurrent cell that was fitted to recorded choices, with its held-out scores.

    Attributes:
        machine: the cell, fitted to all participants.
        held_out: predictions for each participant by a cell that was fitted to others, ``[episode,
            round, outcome]``.
        nats: held-out loss in nats per round, with its interval over participants.
        even: loss of a uniform guess among the offered outcomes, in nats per round.
        participants: one row per participant: the number of scored ``rounds``, and the held-out
            loss ``nats`` per round; NaN without a scored round.
    """

    machine: AdaptedMachine
    held_out: NDArray[np.float64] = field(repr=False)
    nats: Interval
    even: float
    participants: pd.DataFrame = field(repr=False)

    @property
    def sentence(self) -> str:
        """A sentence with the number of participants who have a scored round, the held-out loss of
        the recurrent cells, and the loss of a uniform guess.
        """
        n_scored = self.participants["nats"].count()
        return (
            f"Of {n_scored} participants, held out, it loses {self.nats} nats a round; "
            f"an even guess loses {self.even:.4g}."
        )


@checked
def fit_cell(
    episodes: Any,
    kind: str = "gru",
    *,
    units: int = 2,
    n_folds: int | None = None,
    steps: int = 150,
    seed: int = 0,
) -> _FittedCell:
    """Fit a recurrent cell with a few hidden units to recorded choices, with cross-validation over
    participants.

    Args:
        episodes: recorded episodes of a task whose predictions are over classes. Each episode
            counts as a participant if none are named.
        kind: "gru" or "lstm".
        units: number of hidden units.
        n_folds: number of groups of participants, each held out once; by default 5, or the number
            of participants if that is lower.
        steps: number of Adam steps, each on all training episodes.
        seed: seed of the weights, the folds and the bootstrap.

    Returns:
        An object with these attributes:

        * ``machine``: the cell, fitted to all participants;
        * ``held_out``: predictions for each participant by a cell that was fitted to others,
          ``[episode, round, outcome]``;
        * ``nats``: loss of these predictions in nats per round, with its 95 % interval over
          participants;
        * ``even``: loss of a uniform guess among the offered outcomes, in nats per round;
        * ``participants``: a table with one row per participant and the columns participant, rounds
          (number of scored rounds) and nats (held-out loss per round; NaN if rounds is 0).

    Raises:
        InputError: if the kind is unknown, there are fewer participants than folds, or the training
            would not fit into memory.
    """
    require_known("kind of cell", kind, ["gru", "lstm"])
    integer("steps", steps, 1)
    task = catalog.of(episodes)
    people, person = participants_of(episodes)  # names; index of each episode's participant
    if n_folds is None:
        n_folds = max(2, min(5, len(people)))  # one participant is then refused below
    integer("n_folds", n_folds, 2)
    require(
        len(people) >= n_folds,
        f"{n_folds} folds need as many participants, got {len(people)}; give fewer n_folds",
    )
    n_unit_rounds = len(episodes) * episodes.n_rounds * units
    refuse_beyond_machine(
        f"a {kind} of {units} units, trained on {len(episodes)} episodes of {episodes.n_rounds} rounds,",
        _BYTES_A_UNIT * n_unit_rounds,
    )
    settings = {"width": units, "sizes": task.sizes_of(episodes)}
    blank = cast(AdaptedMachine, build_registered(f"{kind}-{task.key}", settings))
    machine = blank.untrained(seed)
    machine.name = blank.name
    fold_of_person = np.random.default_rng(seed).permutation(len(people)) % n_folds
    fold = fold_of_person[person]  # [episode]
    # [cell, episode]: cell i leaves out fold i. One more cell is trained on all episodes, because no
    # fold has its number.
    is_trained_on = fold != np.arange(n_folds + 1)[:, None]
    copies = [deepcopy(machine.module) for _ in range(n_folds)]
    inputs = _read_inputs(machine.layout, episodes)
    _train([*copies, machine.module], inputs, episodes, is_trained_on, steps)
    with torch.no_grad():
        logits = _compute_logits(copies, inputs)
    p_by_cell = logits.softmax(-1).double().numpy(force=True)
    held_out = p_by_cell[fold, np.arange(len(episodes))]  # by the cell that left out its fold
    losses, rounds = _sum_losses(held_out, episodes, person)
    nats = pd.Series(losses) / rounds  # a Series: NaN without rounds, and no warning
    n_offered = inputs.offered.sum(-1).numpy()[episodes.scored]
    return _FittedCell(
        machine=machine,
        held_out=held_out,
        nats=ratio_interval(losses, rounds, seed=seed),
        even=np.log(n_offered).mean(),
        participants=pd.DataFrame({"participant": people, "rounds": rounds, "nats": nats}),
    )


def _sum_losses(
    p: NDArray[np.float64], episodes: Any, person: NDArray[np.int64]
) -> tuple[NDArray[Any], NDArray[Any]]:
    """Return each participant's loss in nats, summed over the scored rounds, and the number of
    these rounds, both ``[participant]``.

    Args:
        p: probability of each outcome, ``[episode, round, outcome]``.
        episodes: the recorded episodes.
        person: index of each episode's participant, ``[episode]``.
    """
    task = catalog.of(episodes)
    targets = goal_of(task).targets(episodes)  # 1 for the choice, [episode, round, outcome]
    p_of_choice = (p * targets).sum(-1)
    finite = np.maximum(p_of_choice, 1e-12)  # so that its log is finite
    losses = -np.log(finite) * episodes.scored
    rounds = np.bincount(person, episodes.scored.sum(1))
    return np.bincount(person, losses.sum(1)), rounds.astype(int)


def _train(
    modules: Sequence[Any],
    inputs: _Inputs,
    episodes: Any,
    is_trained_on: Bool[NDArray[np.bool_], "cell episode"],
    steps: int,
) -> None:
    """Train recurrent cells to predict recorded choices, in place.

    The cells run side by side on all episodes. Each has its own training episodes, gradient and
    clipping, so the result is that of training one cell after the other.

    Args:
        modules: the modules of the cells.
        inputs: what the cells read in the episodes.
        episodes: the recorded episodes.
        is_trained_on: the training episodes of each cell; every step uses all of them.
        steps: number of Adam steps.
    """
    goal = goal_of(catalog.of(episodes))
    targets = torch.from_numpy(goal.targets(episodes)).float()
    # [cell, episode, round]
    is_scored = torch.from_numpy(is_trained_on[:, :, None] & episodes.scored)
    parameters = [list(module.requires_grad_(True).parameters()) for module in modules]
    optimizer = torch.optim.Adam(chain.from_iterable(parameters), lr=_LEARNING_RATE)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
    for _ in range(steps):
        log_p = _compute_logits(modules, inputs).log_softmax(-1)
        losses = -(log_p * targets).sum(-1)  # [cell, episode, round]
        pairs = zip(losses, is_scored, strict=True)
        means = [cell_losses[is_used].mean() for cell_losses, is_used in pairs]
        optimizer.zero_grad()
        # The cells share no parameters, so the gradient of the sum is that of each cell alone.
        torch.stack(means).sum().backward()
        for cell_parameters in parameters:
            nn.utils.clip_grad_norm_(cell_parameters, 1.0)
        optimizer.step()
        schedule.step()


class _Inputs(NamedTuple):
    """What recurrent cells read in recorded episodes.

    Missing rounds must not change a cell's state, so the other rounds are moved to the front.

    Attributes:
        after: vector that a cell reads after its prediction of each round, which includes the
            outcome; missing rounds come last.
        before: vector that it reads before its prediction of each round.
        n_rounds_before: number of earlier rounds that are not missing, for each round.
        offered: True where an outcome is offered.
    """

    after: Float[Tensor, "episode round n_after"]
    before: Float[Tensor, "episode round n_before"]
    n_rounds_before: Int[Tensor, "episode round"]
    offered: Bool[Tensor, "episode round outcome"]


def _read_inputs(layout: RoundLayout, episodes: Any) -> _Inputs:
    """Return what a recurrent cell reads in recorded episodes, as vectors of numbers per round.

    Args:
        layout: the token layout of a round, from which the vectors are made.
        episodes: the recorded episodes.
    """
    counted = torch.from_numpy(episodes.counted)
    encoder = RoundEncoder(layout)  # turns the tokens of a round into a vector
    rounds = layout.fit(episodes).encode(episodes)
    in_floats = replace(rounds, values=rounds.values.float())
    rows = in_floats.map_tensors(lambda part: part.flatten(0, 1))  # axes: [episode and round, ...]
    after = encoder.after(rows).unflatten(0, counted.shape)
    before = encoder.before(rows).unflatten(0, counted.shape)
    # Missing rounds go last, so that a cell's state after n rounds is its n-th state.
    order = (~counted).int().argsort(dim=1, stable=True)
    episode = torch.arange(len(counted))[:, None]
    after_in_order = after[episode, order]
    n_rounds_before = counted.cumsum(1) - counted.int()
    all_offered = np.ones((*counted.shape, layout.n_outputs), bool)
    offered = getattr(episodes, "offered", all_offered)
    return _Inputs(
        after=after_in_order,
        before=before,
        n_rounds_before=n_rounds_before,
        offered=torch.from_numpy(offered),
    )


def _compute_logits(
    modules: Sequence[Any], inputs: _Inputs
) -> Float[Tensor, "cell episode round outcome"]:
    """Return the logits of recurrent cells in all rounds. Outcomes that are not offered in a round
    get a large negative logit.

    Args:
        modules: the modules of the cells. Each has an embedding of a round (``hear``), a recurrent
            layer (``core``) and a readout of the prediction (``read``).
        inputs: what the cells read.
    """
    # Each cell's own embedding of the rounds, [episode, round, cell, input].
    cell_inputs = torch.stack([module.hear(inputs.after) for module in modules], 2)
    states = _run_side_by_side([module.core for module in modules], cell_inputs)
    # A cell starts from zeros: entry n is its state after n rounds, [episode, n, cell, unit].
    states_after_n = torch.cat([torch.zeros_like(states[:, :1]), states], 1)
    episode = torch.arange(len(states))[:, None]
    state_before = states_after_n[episode, inputs.n_rounds_before]  # [episode, round, cell, unit]
    # Each cell reads its prediction from its own state and what it reads before it predicts.
    pairs = zip(modules, state_before.unbind(2), strict=True)
    logits = [module.read(torch.cat([state, inputs.before], -1)) for module, state in pairs]
    return torch.stack(logits).masked_fill(~inputs.offered, _LOGIT_NOT_OFFERED)


def _run_side_by_side(
    layers: Sequence[Any], inputs: Float[Tensor, "episode round cell input"]
) -> Float[Tensor, "episode round cell unit"]:
    """Run several recurrent layers of the same shape, each on its own inputs, and return their
    hidden states.

    They run as one layer with block-diagonal weights: with a few units, nearly all of the time goes
    to steps from round to round, which all cells then share.

    Args:
        layers: ``nn.GRU`` or ``nn.LSTM`` layers.
        inputs: the inputs.
    """
    first = layers[0]
    n_cells = len(layers)
    # A layer as wide as all cells together. On the device "meta" it has no weights of its own: they
    # are passed to the call below.
    wide = type(first)(n_cells * first.input_size, n_cells * first.hidden_size, device="meta")
    weights = {}
    for name, weight in first.named_parameters():
        # PyTorch stacks the weights of all gates along the first axis.
        gates_of_cells = [layer.get_parameter(name).split(first.hidden_size) for layer in layers]
        by_gate = zip(*gates_of_cells, strict=True)
        if weight.ndim == 2:
            gates = [torch.block_diag(*blocks) for blocks in by_gate]
        else:
            gates = [torch.cat(biases) for biases in by_gate]
        weights[name] = torch.cat(gates)
    by_round = inputs.flatten(2).transpose(0, 1)  # [round, episode, cell and input]
    states, _ = torch.func.functional_call(wide, weights, (by_round,))
    return states.transpose(0, 1).unflatten(2, (n_cells, -1))
