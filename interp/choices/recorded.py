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

from dataclasses import dataclass, field, replace
from typing import Any, cast

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from interp.choices.players import participants_of
from interp.core import catalog
from interp.machines.recurrent import Said
from interp.model.adapted import AdaptedMachine
from interp.model.checkpoints import built
from interp.stats.intervals import Interval, ratio_interval
from interp.support.checks import checked, integer, refuse_beyond_machine
from interp.support.errors import require, require_known
from interp.training.goal import goal_of

_NOT_OFFERED = -1e4  # logit of an outcome that is not offered: its probability is 0
_RATE = 0.02  # Adam's learning rate, falling to 0 along a cosine
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
        participants: one row per participant: the number of scored ``rounds``, and the held-out
            loss ``nats`` per round.
    """

    machine: AdaptedMachine
    held_out: NDArray[np.float64] = field(repr=False)
    nats: Interval
    participants: pd.DataFrame = field(repr=False)

    @property
    def sentence(self) -> str:
        """A sentence with the held-out loss of the recurrent cells, and that of a uniform guess."""
        even = np.log(self.held_out.shape[-1])
        people = len(self.participants)
        return f"Of {people} participants, held out, it loses {self.nats} nats a round; an even guess loses {even:.4g}."


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
        The cell fitted to all participants, and its loss on held-out ones.

    Raises:
        InputError: if the kind is unknown, there are fewer participants than folds, or the training
            would not fit into memory.
    """
    require_known("kind of cell", kind, ["gru", "lstm"])
    integer("steps", steps, 1)
    task = catalog.of(episodes)
    people, person = participants_of(episodes)
    if n_folds is None:
        n_folds = max(2, min(5, len(people)))
    integer("n_folds", n_folds, 2)
    require(
        len(people) >= n_folds,
        f"{n_folds} folds need as many participants, got {len(people)}; give fewer n_folds",
    )
    n_numbers = len(episodes) * episodes.n_rounds * units
    refuse_beyond_machine(
        f"a {kind} of {units} units, trained on {len(episodes)} episodes of {episodes.n_rounds} rounds,",
        _BYTES_A_UNIT * n_numbers,
    )
    settings = {"width": units, "sizes": task.sizes_of(episodes)}
    blank = cast(AdaptedMachine, built(f"{kind}-{task.key}", settings))
    fold_of_person = np.random.default_rng(seed).permutation(len(people)) % n_folds
    fold = fold_of_person[person]
    held_out = np.zeros((len(episodes), episodes.n_rounds, blank.layout.n_outputs))
    for number in range(n_folds):
        is_out = fold == number
        cell = _train(blank.untrained(seed), episodes.select(~is_out), steps)
        held_out[is_out] = _predict(cell, episodes.select(is_out))
    participants = _losses_of_participants(held_out, episodes, people, person)
    rounds = participants["rounds"].to_numpy(float)
    lost = participants["nats"].to_numpy() * rounds
    machine = _train(blank.untrained(seed), episodes, steps)
    machine.name = blank.name
    return _FittedCell(
        machine=machine,
        held_out=held_out,
        nats=ratio_interval(lost, rounds, seed=seed),
        participants=participants,
    )


def _predict(cell: AdaptedMachine, episodes: Any) -> NDArray[np.float64]:
    """Return a recurrent cell's probability of each outcome in recorded episodes, ``[episode,
    round, outcome]``.
    """
    with torch.no_grad():
        scores = _scores(cell, episodes)
    chances = scores.softmax(-1).double()
    return np.asarray(chances.numpy(force=True))


def _losses_of_participants(
    p: NDArray[np.float64], episodes: Any, people: NDArray[Any], person: NDArray[np.int64]
) -> pd.DataFrame:
    """Return one row per participant: the number of scored rounds and the loss in nats per round.

    Args:
        p: probability of each outcome, ``[episode, round, outcome]``.
        episodes: the recorded episodes.
        people: names of the participants.
        person: index of each episode's participant, ``[episode]``.
    """
    task = catalog.of(episodes)
    chances = (p * goal_of(task).targets(episodes)).sum(-1)
    lost = -np.log(np.maximum(chances, 1e-12)) * episodes.scored
    nats = np.bincount(person, lost.sum(1))
    rounds = np.bincount(person, episodes.scored.sum(1))
    return pd.DataFrame(
        {"participant": people, "rounds": rounds.astype(int), "nats": nats / rounds}
    )


def _train(machine: AdaptedMachine, episodes: Any, steps: int) -> AdaptedMachine:
    """Train a recurrent cell to predict recorded choices, in place, and return it.

    Args:
        machine: the recurrent cell.
        episodes: the training episodes; every step uses all of them.
        steps: number of Adam steps.
    """
    goal = goal_of(catalog.of(episodes))
    targets = torch.from_numpy(goal.targets(episodes)).float()
    machine.requires_grad_(True)
    optimizer = torch.optim.Adam(machine.module.parameters(), lr=_RATE)
    scored = torch.from_numpy(episodes.scored)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
    for _ in range(steps):
        scores = _scores(machine, episodes)
        log_chances = scores.log_softmax(-1)
        losses = -(log_chances * targets).sum(-1)
        loss = losses[scored].mean()
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(machine.module.parameters(), 1.0)
        optimizer.step()
        schedule.step()
    return machine


def _scores(machine: AdaptedMachine, episodes: Any) -> Tensor:
    """Return a recurrent cell's logits in all rounds, ``[episode, round, outcome]``. Outcomes that
    are not offered in a round get a large negative logit.

    The cell runs over whole episodes. Missing rounds must not change its state, so the other rounds
    are moved to the front while it runs.

    Args:
        machine: the recurrent cell.
        episodes: the recorded episodes.
    """
    counted = torch.from_numpy(episodes.counted)
    speech = Said(machine.layout)
    module = cast(Any, machine.module)
    rounds = machine.layout.fit(episodes).encode(episodes)
    in_floats = replace(rounds, values=rounds.values.float())
    rows = in_floats.each(lambda part: part.flatten(0, 1))
    heard = module.hear(speech.after(rows)).unflatten(0, counted.shape)
    order = (~counted).int().argsort(dim=1, stable=True)
    in_order = heard.gather(1, order[..., None].expand_as(heard))
    by_round, *_ = module.core(in_order.transpose(0, 1))
    states = by_round.transpose(0, 1)
    from_the_start = torch.cat([torch.zeros_like(states[:, :1]), states], 1)
    n_before = counted.cumsum(1) - counted.int()
    width = states.shape[-1]
    state_index = n_before[..., None].expand(*counted.shape, width)
    carried = from_the_start.gather(1, state_index)
    question = speech.before(rows).unflatten(0, counted.shape)
    scores: Tensor = module.read(torch.cat([carried, question], -1))
    offered = getattr(episodes, "offered", None)
    if offered is None:
        return scores
    return scores.masked_fill(~torch.from_numpy(offered), _NOT_OFFERED)
