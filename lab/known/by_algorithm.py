"""Any algorithm of a task as a machine: it carries the algorithm's state, and a round of it is the algorithm's round.

    from lab.known import by_algorithm
    from interp.tasks.experts.families import fixed_share

    machine = by_algorithm.machine(fixed_share(0.5, 0.05), known.reference("experts").layout)

Its carried vector is the algorithm's state, every variable flattened, one after the other, in double precision, and it
predicts ``algorithm.distribution``. It says nothing of this itself: it has no exact state readout and no points, so
that a comparison has to find out, as of a model that somebody trained. State variables that are classes are whole
numbers, and are rounded when they are read.

It has no weights that could be drawn anew. Its untrained copy (``machine.untrained(seed)``) is a random recurrent
network that carries as many numbers: told the same tokens, it adds random features of each round to what it
carries, which it rotates and never forgets. It holds a record of everything, as
random features do, and computes nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from interp import tasks
from interp.core.algorithm import Algorithm
from interp.core.machine import Channel
from interp.model.adapted import AdaptedMachine, adapt
from interp.model.layout import EncodedRounds, RoundLayout
from interp.support.checks import checked
from interp.support.errors import InputError, require
from interp.tasks.experts.episodes import ExpertEpisodes
from interp.tasks.experts.layout import ExpertRound
from interp.tasks.qlearning.episodes import MDPEpisodes
from interp.tasks.qlearning.layout import QLearningRound
from interp.tasks.reachability.episodes import ReachabilityEpisodes
from interp.tasks.reachability.layout import ReachabilityRound

STATE = "state"
"""The name of the one channel."""
_WIDTH = 64
"""Hidden units of the prediction of an untrained copy."""

_Array = NDArray[Any]


@checked
def machine(algorithm: Algorithm, layout: RoundLayout, *, name: str = "") -> AdaptedMachine:
    """The machine that computes ``algorithm`` in rounds of ``layout``.

    Args:
        layout: of the algorithm's task and of one size, such as the reference's.
        name: of the machine, which is part of its digest: algorithms that differ need names that differ; the
            algorithm's key and parameters when empty.

    Raises:
        InputError: an algorithm of another task, or rounds of a task that this module cannot read back.

    >>> from interp.tasks.experts.families import fixed_share
    >>> made = machine(fixed_share(0.5, 0.05), ExpertRound(4))
    >>> made.name, made.channels[0].shape
    ('fixed_share(gain=0.5, alpha=0.05)', (4,))
    """
    require(
        algorithm.task == layout.task,
        f"{algorithm.name!r} is an algorithm of {algorithm.task!r}, and the layout is of {layout.task!r}; give both of "
        "one task",
    )
    module = Computed(algorithm, layout)
    said = ", ".join(f"{key}={value}" for key, value in algorithm.parameters.items())
    return adapt(
        module,
        layout,
        step=Computed.step,
        channels=[Channel(STATE, (module.n_carried,))],
        initial=lambda own: {STATE: own.first},
        reset=Computed.forget,
        output="value" if layout.kind != "classes" else "probability",
        name=name or f"{algorithm.key}({said})",
    )


class Computed(nn.Module):
    """An algorithm that reads its inputs from tokens; after :meth:`forget`, a random network in its place.

    Attributes:
        algorithm: what it computes; None once it is forgotten.
        n_carried: how many numbers its state has; 1, which stays 0, where it keeps nothing.
    """

    first: Tensor

    def __init__(self, algorithm: Algorithm, layout: RoundLayout) -> None:
        super().__init__()
        task = tasks.get(layout.task)
        one = task.sample(1, 1, seed=0, **task.sizes_of(layout))
        self.algorithm: Algorithm | None = algorithm
        self.layout, self.read = layout, _reader(layout)
        start = {key: np.asarray(algorithm.initial(one)[key])[0] for key in algorithm.state}
        self.shapes = {key: value.shape for key, value in start.items()}
        flat = np.concatenate(
            [np.zeros(0), *(value.astype(np.float64).ravel() for value in start.values())]
        )
        self.register_buffer("first", torch.from_numpy(flat if flat.size else np.zeros(1)))
        self.n_carried = len(self.first)
        self.random = RandomCell(layout, self.n_carried)

    def extra_repr(self) -> str:
        """What it computes, for the machine's digest."""
        computed = (
            None
            if self.algorithm is None
            else (self.algorithm.key, dict(self.algorithm.parameters))
        )
        return f"algorithm={computed}"

    @staticmethod
    def forget(module: Computed) -> None:
        """Draw the random network anew, and compute with it from now on."""
        module.algorithm = None
        module.random.reset_parameters()

    @staticmethod
    def step(
        module: Computed, carried: dict[str, Tensor], fed: EncodedRounds
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """One round: probabilities of the outcomes, and the state after it."""
        if module.algorithm is None:
            scores, after = module.random(carried[STATE], fed)
            return scores, {STATE: after}
        known = module.algorithm
        inputs = {key: value[:, 0] for key, value in known.read(module.read(fed)).items()}
        following, values = known.step(module.parts(carried[STATE]), inputs)
        told = torch.from_numpy(np.asarray(known.distribution(values), np.float64)).to(
            carried[STATE]
        )
        return told, {STATE: module.flattened(following, carried[STATE])}

    def parts(self, state: Tensor) -> dict[str, _Array]:
        """The state's variables, ``[batch, ...]`` each, from what is carried ``[batch, number]``."""
        assert self.algorithm is not None
        found, numbers, at = {}, state.double().numpy(force=True), 0
        for key, shape in self.shapes.items():
            size = int(np.prod(shape, dtype=int))
            value = numbers[:, at : at + size].reshape(-1, *shape)
            found[key] = (
                np.rint(value).astype(int)
                if self.algorithm.variable(key).kind == "class"
                else value
            )
            at += size
        return found

    def flattened(self, state: Mapping[str, _Array], like: Tensor) -> Tensor:
        """The inverse of :meth:`parts`."""
        if not self.shapes:
            return torch.zeros_like(like)
        rows = [np.asarray(state[key], np.float64).reshape(len(like), -1) for key in self.shapes]
        return torch.from_numpy(np.concatenate(rows, 1)).to(like)


class RandomCell(nn.Module):
    """A recurrent network of random weights: ``h' = rotation h + tanh(enter round)``, and a softmax read from ``h`` and
    the part of the round up to the prediction."""

    def __init__(self, layout: RoundLayout, n_carried: int) -> None:
        super().__init__()
        self.n_tokens, self.n_prefix = len(layout.vocabulary), layout.predict_position + 1
        self.kind, n_prefix = layout.kind, self.n_prefix * (self.n_tokens + 1)
        self.enter = nn.Parameter(
            torch.zeros(layout.n_positions * (self.n_tokens + 1), n_carried).double()
        )
        self.rotation = nn.Parameter(torch.zeros(n_carried, n_carried).double())
        self.hidden = nn.Parameter(torch.zeros(n_carried + n_prefix, _WIDTH).double())
        self.answer = nn.Parameter(torch.zeros(_WIDTH, layout.n_outputs).double())

    def reset_parameters(self) -> None:
        """Weights with which every pre-activation has about the variance 1."""
        with torch.no_grad():
            rotation, _ = torch.linalg.qr(torch.randn(self.rotation.shape).double())
            self.rotation.copy_(rotation)
            self.enter.copy_(
                torch.randn(self.enter.shape) / (len(self.enter) / (self.n_tokens + 1)) ** 0.5
            )
            self.hidden.copy_(
                torch.randn(self.hidden.shape) / (len(self.rotation) + self.n_prefix) ** 0.5
            )
            self.answer.copy_(torch.randn(self.answer.shape) / _WIDTH**0.5)

    def forward(self, carried: Tensor, fed: EncodedRounds) -> tuple[Tensor, Tensor]:
        """Probabilities of the outcomes (numbers, where a real one is predicted) and what the next round reads."""
        tokens = nn.functional.one_hot(fed.tokens, self.n_tokens).to(carried)
        said = torch.cat([tokens, fed.values.to(carried).unsqueeze(-1)], -1)
        heard = torch.cat([carried, said[:, : self.n_prefix].flatten(1)], 1)
        scores = torch.tanh(heard @ self.hidden) @ self.answer
        after = carried @ self.rotation + torch.tanh(said.flatten(1) @ self.enter)
        return scores.softmax(-1) if self.kind == "classes" else scores, after


# Rounds read back: tokens to episodes of one round. What comes after the prediction may be any token.


def _reader(layout: RoundLayout) -> Callable[[EncodedRounds], Any]:
    """What makes of encoded rounds ``[batch, pos]`` a batch of episodes of one round each."""
    known: dict[str, Callable[[Any, EncodedRounds], Any]] = {
        "experts": _expert_episodes,
        "qlearning": _mdp_episodes,
        "reachability": _searches,
    }
    if layout.task not in known:
        raise InputError(
            f"rounds of {layout.task!r} cannot be read back from their tokens; this module reads {', '.join(known)}"
        )
    return lambda fed: known[layout.task](layout, fed)


def _number(tokens: Tensor, first: int, n: int) -> _Array:
    """Which of ``n`` consecutive tokens these are, from 0; the nearest where they are none of them."""
    return (tokens - first).clamp(0, n - 1).numpy(force=True)


def _expert_episodes(layout: ExpertRound, fed: EncodedRounds) -> ExpertEpisodes:
    votes = layout.positions([f"p_{i + 1}" for i in range(layout.n_experts)])
    advice, labels = (
        _number(fed.tokens[:, at], layout.token_ids["q0"], 2)
        for at in (votes, (layout.position("y"),))
    )
    return ExpertEpisodes(advice[:, None], labels)


def _mdp_episodes(layout: QLearningRound, fed: EncodedRounds) -> MDPEpisodes:
    ids, n_states, n_actions = layout.token_ids, layout.n_states, layout.n_actions

    def at(label: str, first: str, n: int) -> _Array:
        return _number(fed.tokens[:, layout.positions(label)], ids[first], n)

    states, actions, following = (
        at("s", "s_1", n_states),
        at("a", "a_1", n_actions),
        at("s'", "s_1", n_states),
    )
    rewards = fed.values[:, layout.positions("r")].double().numpy(force=True)
    return MDPEpisodes.from_transitions(
        None, states, actions, rewards, following, n_states=n_states, n_actions=n_actions
    )


def _searches(layout: ReachabilityRound, fed: EncodedRounds) -> ReachabilityEpisodes:
    edges = range(1, layout.n_edges + 1)

    def at(*labels: str) -> _Array:
        return _number(
            fed.tokens[:, layout.positions(labels)], layout.token_ids["n_1"], layout.n_nodes
        )

    ends = np.stack([at(*(f"{end}_{i}" for i in edges)) for end in ("s", "t")], -1)
    # A round is read whether or not an answer of it is right.
    return ReachabilityEpisodes(
        ends, at("r")[:, 0], at("c_1", "c_2"), layout.n_nodes, 1, regime="a round"
    )
