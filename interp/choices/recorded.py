"""A small recurrent cell, fitted to recorded choices and scored on participants that it was not
fitted to.

    >>> from interp.tasks import bandit
    >>> episodes = bandit.sample(8, 20, 2, "reversal", seed=0)
    >>> fitted = fit_cell(episodes, units=2, n_folds=2, steps=2)
    >>> fitted.machine.channels[0].shape, fitted.held_out.shape
    ((2,), (8, 20, 2))

What a cell predicts of a participant it was not fitted to is what it knows of all; a fit to the
same participant would know that one by heart.
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

_NOT_OFFERED = -1e4  # the score of an outcome that is not on offer: its probability is 0
_RATE = 0.02  # Adam's learning rate, falling to 0 along a cosine
# Memory for each unit, round and episode that a cell is trained on, measured:
_BYTES_A_UNIT = 80


@dataclass(frozen=True)
class _FittedCell:
    """A cell that was fitted to recorded episodes.

    Attributes:
        machine: fitted to all of them.
        held_out: predictions of cells that were fitted to the other participants, ``[episode,
            round, outcome]``.
        nats: what these lose a round, with its interval over participants.
        participants: a row for each: its ``rounds`` that count, and what it loses a round,
            ``nats``.
    """

    machine: AdaptedMachine
    held_out: NDArray[np.float64] = field(repr=False)
    nats: Interval
    participants: pd.DataFrame = field(repr=False)

    @property
    def sentence(self) -> str:
        """What the cells lose of participants that they were not fitted to."""
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
    """Fit a cell of a few units to what was recorded of participants.

    Args:
        episodes: of a task that predicts one of several outcomes; each stands for itself where it
            has no participants.
        kind: "gru" or "lstm".
        units: how many numbers it carries.
        n_folds: groups of participants, each of them left out once; 5, or as many as there are,
            when None.
        steps: of Adam, each on all episodes.
        seed: of the weights, the folds and the bootstrap.

    Raises:
        InputError: another kind, fewer participants than folds, or more than memory holds.
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
    """Return the probability of each outcome, ``[episode, round, outcome]``."""
    with torch.no_grad():
        scores = _scores(cell, episodes)
    chances = scores.softmax(-1).double()
    return np.asarray(chances.numpy(force=True))


def _losses_of_participants(
    p: NDArray[np.float64], episodes: Any, people: NDArray[Any], person: NDArray[np.int64]
) -> pd.DataFrame:
    """Return a row for each participant: its rounds that count, and the loss a round.

    Args:
        p: predictions ``[episode, round, outcome]``.
        episodes: what was recorded.
        people: the names of the participants.
        person: the number of each episode's participant.
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
    """Train the machine in place on all episodes at once, and return it."""
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
    """Return scores of all rounds ``[episode, round, outcome]``; what is not on offer has the least one.

    The cell runs over whole episodes. A missing round leaves the state as it is: the rounds that took place stand first
    while the cell runs.
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
