"""Any algorithm of a task as a machine: it carries the algorithm's state, and each round runs the
algorithm.

    from lab.known import by_algorithm
    from interp.tasks.experts.families import fixed_share

    machine = by_algorithm.machine(fixed_share(0.5, 0.05), known.reference("experts").layout)

Its carried vector is the algorithm's state, with all variables flattened and concatenated, in
double precision. It predicts ``algorithm.distribution``. It has no exact state reader and no hook
points, so that a comparison must find out what it computes, as for a trained model. State variables
that are classes are rounded to whole numbers when they are read.

It has no weights that could be re-initialised. Its untrained copy (``machine.untrained(seed)``) is
a random recurrent network that carries equally many numbers. In each round that network rotates its
state and adds random features of the round's tokens. It thus holds a record of everything and
computes nothing.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial
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
"""Name of the machine's only channel."""
_WIDTH = 64
"""Number of hidden units in the prediction of an untrained copy."""

_Array = NDArray[Any]


@checked
def machine(algorithm: Algorithm, layout: RoundLayout, *, name: str = "") -> AdaptedMachine:
    """Return a machine that computes ``algorithm`` in rounds of ``layout``.

    Args:
        algorithm: the algorithm.
        layout: a layout of the algorithm's task with fixed sizes, such as that of the reference.
        name: name of the machine, which is part of its digest; different algorithms need different
            names. The algorithm's key and parameters when empty.

    Raises:
        InputError: the algorithm is of another task, or tokens of the task cannot be decoded here.

    >>> from interp.tasks.experts.families import fixed_share
    >>> shares = machine(fixed_share(0.5, 0.05), ExpertRound(4))
    >>> shares.name, shares.channels[0].shape
    ('fixed_share(gain=0.5, alpha=0.05)', (4,))
    """
    require(
        algorithm.task == layout.task,
        f"{algorithm.name!r} is an algorithm of {algorithm.task!r}, and the layout is of {layout.task!r}; give both of "
        "one task",
    )
    parameters = [f"{key}={value}" for key, value in algorithm.parameters.items()]
    name = name or f"{algorithm.key}({', '.join(parameters)})"
    return adapt_computed(Computed(algorithm, layout), name)


def adapt_computed(module: Computed, name: str) -> AdaptedMachine:
    """Return a computed algorithm as a machine.

    Args:
        module: the algorithm, with the layout of its rounds.
        name: name of the machine.
    """
    return adapt(
        module,
        module.layout,
        step=Computed.step,
        channels=[Channel(STATE, (module.n_carried,))],
        initial=Computed.begin,
        reset=Computed.forget,
        output="probability" if module.layout.kind == "classes" else "value",
        name=name,
    )


class Computed(nn.Module):
    """A module that decodes its inputs from tokens and runs an algorithm; after :meth:`forget`, a
    random network.

    Attributes:
        algorithm: the algorithm; None after :meth:`forget`.
        n_carried: number of numbers in its state; 1 (always 0) for an algorithm without state.
    """

    first: Tensor

    def __init__(self, algorithm: Algorithm, layout: RoundLayout) -> None:
        super().__init__()
        self.algorithm: Algorithm | None = algorithm
        self.layout = layout
        self.read = _reader(layout)  # decodes tokens into the algorithm's inputs
        task = tasks.get(layout.task)
        episode = task.sample(1, 1, seed=0, **task.sizes_of(layout))
        start = algorithm.initial(episode)
        self.shapes: dict[str, tuple[int, ...]] = {}  # of the state's variables, without the batch
        numbers: list[float] = []  # the initial state, flattened
        for key in algorithm.state:
            value = np.asarray(start[key])[0]
            self.shapes[key] = value.shape
            numbers.extend(value.ravel())
        self.register_buffer("first", torch.tensor(numbers or [0.0], dtype=torch.float64))
        self.n_carried = len(self.first)
        self.random = RandomCell(layout, self.n_carried)

    def extra_repr(self) -> str:
        """Return the algorithm's key and parameters, for the machine's digest."""
        if self.algorithm is None:
            return "algorithm=None"
        return f"algorithm={(self.algorithm.key, dict(self.algorithm.parameters))}"

    @staticmethod
    def begin(module: Computed) -> dict[str, Tensor]:
        """Return the state before the first round."""
        return {STATE: module.first}

    @staticmethod
    def forget(module: Computed) -> None:
        """Replace the algorithm by a newly initialised random network."""
        module.algorithm = None
        module.random.reset_parameters()

    @staticmethod
    def step(
        module: Computed, carried: dict[str, Tensor], fed: EncodedRounds
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """Run one round; return the prediction ``[batch, outcome]`` and the next state.

        Args:
            module: the module.
            carried: the state before the round, ``[batch, number]``, under the key ``"state"``.
            fed: the encoded round, ``[batch, pos]``.
        """
        state = carried[STATE]
        algorithm = module.algorithm
        if algorithm is None:
            scores, next_state = module.random(state, fed)
            return scores, {STATE: next_state}
        read = algorithm.read(module.read(fed))  # [batch, round, ...], of a single round
        inputs = {key: value[:, 0] for key, value in read.items()}
        next_parts, values = algorithm.step(module.parts(state), inputs)
        distribution = np.asarray(algorithm.distribution(values), np.float64)
        return torch.from_numpy(distribution).to(state), {
            STATE: module.flattened(next_parts, state)
        }

    def parts(self, state: Tensor) -> dict[str, _Array]:
        """Split the carried numbers ``[batch, number]`` into the algorithm's variables, ``[batch,
        ...]`` each.
        """
        assert self.algorithm is not None
        numbers = state.double().numpy(force=True)
        parts = {}
        start = 0
        for key, shape in self.shapes.items():
            end = start + math.prod(shape)
            value = numbers[:, start:end].reshape(-1, *shape)
            if self.algorithm.variable(key).kind == "class":  # used as an index
                value = np.rint(value).astype(int)
            parts[key] = value
            start = end
        return parts

    def flattened(self, parts: Mapping[str, _Array], like: Tensor) -> Tensor:
        """Concatenate the algorithm's variables into one tensor with the dtype of ``like``; inverse
        of :meth:`parts`.
        """
        if not self.shapes:  # an algorithm without state carries a single 0
            return torch.zeros_like(like)
        columns = []
        for key in self.shapes:
            value = np.asarray(parts[key], np.float64)
            columns.append(value.reshape(len(like), -1))
        return torch.from_numpy(np.concatenate(columns, 1)).to(like)


class RandomCell(nn.Module):
    """A random recurrent network: ``h' = rotation h + tanh(enter round)``.

    Its prediction is a random one-layer network of ``h`` and of the round's positions up to the
    prediction.
    """

    def __init__(self, layout: RoundLayout, n_carried: int) -> None:
        super().__init__()
        self.kind = layout.kind
        self.n_tokens = len(layout.vocabulary)
        self.n_prefix = layout.predict_position + 1
        width = self.n_tokens + 1  # numbers per position: its token, one-hot, and its value
        n_round = layout.n_positions * width
        n_read = n_carried + self.n_prefix * width
        self.enter = _weights(n_round, n_carried)
        self.rotation = _weights(n_carried, n_carried)
        self.hidden = _weights(n_read, _WIDTH)
        self.answer = _weights(_WIDTH, layout.n_outputs)

    def reset_parameters(self) -> None:
        """Draw weights for which every pre-activation has a variance of about 1."""
        # Per position the squared norm of the inputs is about 1, since the token is one-hot.
        n_positions = len(self.enter) / (self.n_tokens + 1)
        n_read = len(self.rotation) + self.n_prefix
        drawn = torch.randn(self.rotation.shape).double()
        rotation, _ = torch.linalg.qr(drawn)
        with torch.no_grad():
            self.rotation.copy_(rotation)
            self.enter.copy_(torch.randn(self.enter.shape) / n_positions**0.5)
            self.hidden.copy_(torch.randn(self.hidden.shape) / n_read**0.5)
            self.answer.copy_(torch.randn(self.answer.shape) / _WIDTH**0.5)

    def forward(self, carried: Tensor, fed: EncodedRounds) -> tuple[Tensor, Tensor]:
        """Return the prediction (probabilities, or numbers for a real outcome), and the next state.

        Args:
            carried: the state before the round, ``[batch, number]``.
            fed: the encoded round, ``[batch, pos]``.
        """
        tokens = nn.functional.one_hot(fed.tokens, self.n_tokens).to(carried)
        values = fed.values.to(carried).unsqueeze(-1)
        inputs = torch.cat([tokens, values], -1)
        prefix = inputs[:, : self.n_prefix].flatten(1)
        hidden = torch.tanh(torch.cat([carried, prefix], 1) @ self.hidden)
        scores = hidden @ self.answer
        if self.kind == "classes":
            scores = scores.softmax(-1)
        entered = torch.tanh(inputs.flatten(1) @ self.enter)
        return scores, carried @ self.rotation + entered


def _weights(n_in: int, n_out: int) -> nn.Parameter:
    return nn.Parameter(torch.zeros(n_in, n_out, dtype=torch.float64))


# Rounds read back: tokens to episodes of one round. What comes after the prediction may be any token.


def _reader(layout: RoundLayout) -> Callable[[EncodedRounds], Any]:
    """Return a function that decodes encoded rounds ``[batch, pos]`` into episodes of one round
    each.
    """
    readers: dict[str, Callable[[Any, EncodedRounds], Any]] = {
        "experts": _read_advice,
        "qlearning": _read_transitions,
        "reachability": _read_searches,
    }
    if layout.task not in readers:
        raise InputError(
            f"rounds of {layout.task!r} cannot be read back from their tokens; this module reads {', '.join(readers)}"
        )
    return partial(readers[layout.task], layout)


def _read_classes(
    layout: RoundLayout, fed: EncodedRounds, labels: Sequence[str], first: str, n: int
) -> _Array:
    """Return which of ``n`` consecutive tokens stands at each of some positions, as an index from
    0.

    A token that is none of them gets the nearest index.

    Args:
        layout: layout of the round.
        fed: the encoded rounds.
        labels: labels of the positions.
        first: the first of the tokens.
        n: number of tokens.
    """
    tokens = fed.tokens[:, layout.positions(labels)]
    return (tokens - layout.token_ids[first]).clamp(0, n - 1).numpy(force=True)


def _read_advice(layout: ExpertRound, fed: EncodedRounds) -> ExpertEpisodes:
    """Decode rounds of expert advice: the votes and the true label."""
    votes = [f"p_{i + 1}" for i in range(layout.n_experts)]
    advice = _read_classes(layout, fed, votes, first="q0", n=2)
    truth = _read_classes(layout, fed, ["y"], first="q0", n=2)
    return ExpertEpisodes(advice[:, None], truth)


def _read_transitions(layout: QLearningRound, fed: EncodedRounds) -> MDPEpisodes:
    """Decode rounds of Q-learning: state, action, reward and next state."""
    states = _read_classes(layout, fed, ["s"], first="s_1", n=layout.n_states)
    actions = _read_classes(layout, fed, ["a"], first="a_1", n=layout.n_actions)
    next_states = _read_classes(layout, fed, ["s'"], first="s_1", n=layout.n_states)
    rewards = fed.values[:, layout.positions("r")].double().numpy(force=True)
    return MDPEpisodes.from_transitions(
        None,
        states,
        actions,
        rewards,
        next_states,
        n_states=layout.n_states,
        n_actions=layout.n_actions,
    )


def _read_searches(layout: ReachabilityRound, fed: EncodedRounds) -> ReachabilityEpisodes:
    """Decode rounds of reachability: the edges, the root and the two candidates."""
    n = layout.n_nodes
    edges = range(1, layout.n_edges + 1)
    sources = _read_classes(layout, fed, [f"s_{i}" for i in edges], first="n_1", n=n)
    targets = _read_classes(layout, fed, [f"t_{i}" for i in edges], first="n_1", n=n)
    roots = _read_classes(layout, fed, ["r"], first="n_1", n=n)[:, 0]
    candidates = _read_classes(layout, fed, ["c_1", "c_2"], first="n_1", n=n)
    # In the regime "custom", graphs with both candidates equally far from the root would be refused.
    return ReachabilityEpisodes(
        np.stack([sources, targets], -1), roots, candidates, n, 1, regime="a round"
    )
