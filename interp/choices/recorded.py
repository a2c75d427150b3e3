"""A small recurrent cell, fitted to what was recorded and held out by participant.

    >>> from interp.tasks import bandit
    >>> episodes = bandit.sample(8, 20, 2, "reversal", seed=0)
    >>> fitted = fit_cell(episodes, units=2, n_folds=2, steps=2)
    >>> fitted.machine.channels[0].shape, fitted.held_out.shape
    ((2,), (8, 20, 2))

What a cell predicts of a participant it was not fitted to is what it knows of all; a fit to the same participant would
know that one by heart.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any, cast

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from interp.core import catalog
from interp.machines.recurrent import Said
from interp.model.adapted import AdaptedMachine
from interp.model.checkpoints import built
from interp.stats.intervals import Interval, ratio_interval
from interp.support.checks import checked, integer
from interp.support.errors import require, require_known
from interp.training.goal import goal_of

_NOT_OFFERED = -1e4  # the score of an outcome that is not on offer: its probability is 0
_RATE = 0.02  # Adam's learning rate, falling to 0 along a cosine


@dataclass(frozen=True)
class _FittedCell:
    """A cell that was fitted to recorded episodes.

    Attributes:
        machine: fitted to all of them.
        held_out: what cells that were fitted to the other participants predict, ``[episode, round, outcome]``.
        nats: what these lose a round, with its interval over participants.
        participants: a row for each: its ``rounds`` that count, and what it loses a round, ``nats``.
    """

    machine: AdaptedMachine
    held_out: NDArray[np.float64] = field(repr=False)
    nats: Interval
    participants: pd.DataFrame = field(repr=False)

    @property
    def sentence(self) -> str:
        """What the cells lose of participants that they were not fitted to."""
        even, people = np.log(self.held_out.shape[-1]), len(self.participants)
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
        episodes: of a task that predicts one of several outcomes; each stands for itself where it has no participants.
        kind: "gru" or "lstm"; ``units`` is how many numbers it carries.
        n_folds: groups of participants of which each is held out once; 5, or as many as there are, when None.
        steps: of Adam, each on all episodes.
    """
    require_known("kind of cell", kind, ["gru", "lstm"])
    task, whose = catalog.of(episodes), episodes.participants
    people, whose = np.unique(
        np.arange(len(episodes)) if whose is None else whose, return_inverse=True
    )
    n_folds = max(2, min(5, len(people))) if n_folds is None else integer("n_folds", n_folds, 2)
    require(
        len(people) >= n_folds,
        f"{n_folds} folds need as many participants, got {len(people)}; give fewer n_folds",
    )
    blank = cast(
        AdaptedMachine,
        built(f"{kind}-{task.key}", {"width": units, "sizes": task.sizes_of(episodes)}),
    )
    fold = (np.random.default_rng(seed).permutation(len(people)) % n_folds)[whose]
    held = np.zeros((len(episodes), episodes.n_rounds, blank.layout.n_outputs))
    for out in (fold == one for one in range(n_folds)):
        cell = _fitted(blank.untrained(seed), episodes.select(~out), steps)
        with torch.no_grad():
            scores = _scores(cell, episodes.select(out))
            held[out] = scores.softmax(-1).double().numpy(force=True)
    lost = (
        -np.log(np.maximum((held * goal_of(task).targets(episodes)).sum(-1), 1e-12))
        * episodes.scored
    )
    nats, rounds = (np.bincount(whose, weights=values.sum(1)) for values in (lost, episodes.scored))
    each = pd.DataFrame(
        {"participant": people, "rounds": rounds.astype(int), "nats": nats / rounds}
    )
    machine = _fitted(blank.untrained(seed), episodes, steps)
    machine.name = blank.name
    return _FittedCell(machine, held, ratio_interval(nats, rounds, seed=seed), each)


def _fitted(machine: AdaptedMachine, episodes: Any, steps: int) -> AdaptedMachine:
    """The machine, trained in place on all episodes at once."""
    targets = torch.from_numpy(goal_of(catalog.of(episodes)).targets(episodes)).float()
    machine.requires_grad_(True)
    optimizer = torch.optim.Adam(machine.module.parameters(), lr=_RATE)
    scored = torch.from_numpy(episodes.scored)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
    for _ in range(steps):
        scores = _scores(machine, episodes)
        loss = -(scores.log_softmax(-1) * targets).sum(-1)[scored].mean()
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(machine.module.parameters(), 1.0)
        optimizer.step()
        schedule.step()
    return machine


def _scores(machine: AdaptedMachine, episodes: Any) -> Tensor:
    """Compute the scores of all rounds, ``[episode, round, outcome]``; the cell runs over whole episodes.

    What is not on offer has the least score that there is.

    What a missing round leaves as it is, is the state: the rounds that took place stand first while the cell runs.
    """
    counted = torch.from_numpy(episodes.counted)
    order = (~counted).int().argsort(dim=1, stable=True)
    said, module = Said(machine.layout), cast(Any, machine.module)
    rounds = machine.layout.fit(episodes).encode(episodes)
    rows = replace(rounds, values=rounds.values.float()).each(lambda part: part.flatten(0, 1))
    shape = counted.shape
    heard = module.hear(said.after(rows)).unflatten(0, shape)
    states = module.core(heard.gather(1, order[..., None].expand_as(heard)).transpose(0, 1))[
        0
    ].transpose(0, 1)
    before = torch.cat([torch.zeros_like(states[:, :1]), states], 1)
    at = counted.cumsum(1) - counted.int()  # how many rounds took place before this one
    carried = before.gather(1, at[..., None].expand(*shape, states.shape[-1]))
    scores: Tensor = module.read(torch.cat([carried, said.before(rows).unflatten(0, shape)], -1))
    offered = getattr(episodes, "offered", None)
    if offered is None:
        return scores
    return scores.masked_fill(~torch.from_numpy(offered), _NOT_OFFERED)
