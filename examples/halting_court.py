"""When is a loop done? Three witnesses are compared with the known answer.

A search through a graph is done after the round in which no edge leaves the set of reached nodes.
Machines that halt exactly then, two rounds late, or too early are made from
``reachability-handwired``; a small loop with a gate is trained (:func:`train`, four CPU minutes).
The witnesses are the machine's own gate, a readout of its state (does an edge leave the decoded
set?), and its fixed point (does the state still move?). ``python examples/halting_court.py
[PICTURE]``.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
import torch
from sklearn.linear_model import LogisticRegression
from torch import Tensor, nn

import interp
from interp import machines
from interp.model.carried import unpack
from interp.results import figures
from interp.support.files import write_figure
from interp.tasks import reachability, register, series

N_NODES = 10
N_EDGES = 14
N_ROUNDS = 12
N_EPISODES = 200
LAGS = list(range(-4, 5))
"""Differences from the right round that the picture shows; the first and last include all beyond
them.
"""
STILL = 0.01
"""A state counts as fixed if it moves by less than this share of its typical norm."""


def is_closed(reached: np.ndarray, edges: np.ndarray) -> np.ndarray:
    """Return True where no edge ``[episode, edge, 2]`` leaves a set of nodes ``[episode, round,
    node]``.
    """
    rows = np.arange(len(reached))[:, None]
    starts_in_set = reached[rows, :, edges[..., 0]]  # [episode, edge, round]
    ends_in_set = reached[rows, :, edges[..., 1]]
    return ~(starts_in_set & ~ends_in_set).any(1)


def reach(edges: np.ndarray, roots: np.ndarray, n_rounds: int) -> np.ndarray:
    """Return the nodes within 1, 2, ... steps of the root, ``[episode, round, node]``."""
    reached = np.eye(N_NODES, dtype=bool)[roots]  # at first the root alone, [episode, node]
    rows = np.arange(len(edges))[:, None]
    sets = []
    for _ in range(n_rounds):
        starts_in_set = reached[rows, edges[..., 0]]  # [episode, edge]
        reached = reached.copy()
        # The ends of these edges are reached, too.
        reached[np.nonzero(starts_in_set)[0], edges[starts_in_set][:, 1]] = True
        sets.append(reached)
    return np.stack(sets, 1)


class Halting(nn.Module):
    """The handwired search with a gate; after the gate has fired, its state no longer changes.

    Args:
        rule: when the gate fires: "in time", "late" or "early".
    """

    def __init__(self, rule: str) -> None:
        super().__init__()
        self.search = interp.load("reachability-handwired", n_nodes=N_NODES, n_edges=N_EDGES)
        self.rule = rule

    def is_done(
        self, before: Tensor, after: Tensor, has_way_out: Tensor, n_closed: Tensor
    ) -> Tensor:
        """Return True for the episodes in which the rule says that the search is done.

        Args:
            before, after: the sets of nodes before and after the round, ``[episode, node]``.
            has_way_out: True if an edge leaves the set after the round, ``[episode]``.
            n_closed: number of rounds in a row after which no edge left the set, ``[episode]``.
        """
        if self.rule == "early":  # at most one node was new
            return (after - before).sum(1) <= 1
        n_needed = 3 if self.rule == "late" else 1
        return ~has_way_out & (n_closed >= n_needed)


def make_halting(rule: str) -> Any:
    """Return the handwired machine with a gate that fires "in time", "late" or "early"."""
    module = Halting(rule)
    layout = module.search.layout
    node = layout.token_ids["n_1"]
    sources = layout.positions([f"s_{i + 1}" for i in range(N_EDGES)])
    targets = layout.positions([f"t_{i + 1}" for i in range(N_EDGES)])

    def step(module: Halting, carried: dict[str, Tensor], fed: Any) -> Any:
        """Run one round of the search, and keep the old state where the gate has fired before."""
        latents, halted = carried["set"].unsqueeze(1), carried["gate"]
        prediction, written = module.search.step(latents, fed)
        after = torch.where(halted.unsqueeze(2) > 0.5, latents, written)
        set_before = module.search.read_state(latents).round()
        set_after = module.search.read_state(after).round()
        is_source_in = set_after.gather(1, fed.tokens[:, sources] - node)  # 0 or 1, [episode, edge]
        is_target_in = set_after.gather(1, fed.tokens[:, targets] - node)
        has_way_out = (is_source_in > is_target_in).any(1)
        n_closed = torch.where(has_way_out, 0, carried["waited"][:, 0] + 1)
        done = module.is_done(set_before, set_after, has_way_out, n_closed).to(halted)
        # The gate stays at 1 once it has fired.
        gate = torch.maximum(halted, done.unsqueeze(1))
        return prediction, {"set": after[:, 0], "gate": gate, "waited": n_closed.unsqueeze(1)}

    channels = [
        interp.Channel("set", (module.search.config.d_model,)),
        interp.Channel("gate", (1,)),
        interp.Channel("waited", (1,)),
    ]
    return interp.adapt(
        module, layout, step=step, channels=channels, output="probability", name=rule, check=False
    )


# A loop that is trained: node states, messages along edges, a gate.

WIDTH = 16
N_ENCODED = N_NODES + 2


def draw(n_episodes: int, n_rounds: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Draw graphs with a root and a node each, and ask in every round whether the node can be
    reached.

    Args:
        n_episodes: number of graphs.
        n_rounds: number of rounds, all with the same question.
        seed: seed of the draws.

    Returns:
        The question ``[episode, round, number]`` and the answer ``[episode, round]``.
    """
    edges, nodes = draw_graphs(n_episodes, seed)
    roots = nodes[:, 0]
    reached = reach(edges, roots, N_NODES)[:, -1]
    rng = np.random.default_rng(seed + 1)
    random_keys = rng.random((n_episodes, N_NODES))
    wants_reached = rng.random((n_episodes, 1)) < 0.5
    # Mostly a node with the wanted answer, since .5 is added to the keys of the others.
    question_nodes = np.argmin(random_keys + 0.5 * (reached != wants_reached), 1)
    adjacency = np.zeros((n_episodes, N_NODES, N_NODES))
    adjacency[np.arange(n_episodes)[:, None], edges[..., 1], edges[..., 0]] = 1
    one_hot = np.eye(N_NODES)
    marks = np.stack([one_hot[roots], one_hot[question_nodes]], 2)  # [episode, node, 2]
    question = np.concatenate([adjacency, marks], 2).reshape(n_episodes, 1, -1)
    truth = reached[np.arange(n_episodes), question_nodes].astype(int)
    return question.repeat(n_rounds, 1), truth[:, None].repeat(n_rounds, 1)


def draw_graphs(n_episodes: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Draw graphs: paths from the root of all lengths, equally often, with further edges backwards.

    Returns:
        Edges ``[episode, edge, 2]`` as pairs (source, target); and the nodes in the order of the
        path, the root first, ``[episode, node]``. Nodes beyond the end of the path cannot be reached.
    """
    rng = np.random.default_rng(seed)
    names = rng.permuted(np.tile(np.arange(N_NODES), (n_episodes, 1)), axis=1)
    first = np.arange(N_NODES - 1)
    # The edge at which the path from the root ends points backwards. At N_NODES - 1 there is none.
    is_end = first == rng.integers(1, N_NODES, (n_episodes, 1))
    source = np.where(is_end, first + 1, first)
    target = np.where(is_end, first, first + 1)
    path = np.stack([source, target], 2)
    # Edges to an earlier node of the path, or to the same node: they reach nothing new.
    n_back = N_EDGES - N_NODES + 1
    back = np.sort(rng.integers(0, N_NODES, (n_episodes, n_back, 2)), 2)[..., ::-1]
    places = np.concatenate([path, back], 1)  # positions in the path, [episode, edge, 2]
    edges = names[np.arange(n_episodes)[:, None, None], places]
    return edges, names


class Loop(nn.Module):
    """A block that passes messages along the edges once per round, with a gate that reads mean and
    maximum of the node states.
    """

    def __init__(self) -> None:
        super().__init__()
        self.core = Block()
        hidden = nn.Linear(2 * WIDTH, WIDTH)
        self.gate = nn.Sequential(hidden, nn.ReLU(), nn.Linear(WIDTH, 1))
        self.read = nn.Linear(WIDTH, 2)

    def is_done(self, z: Tensor) -> Tensor:
        """Return the probability that the gate stops now, ``[episode]``, from the node states ``z``,
        ``[episode, node, number]``.
        """
        summary = torch.cat([z.mean(1), z.amax(1)], 1)
        return self.gate(summary).sigmoid()[:, 0]

    def answer(self, z: Tensor, encoded: Tensor) -> Tensor:
        """Return the logits of "no" and "yes", ``[episode, 2]``, from the state of the node in
        question.

        Args:
            z: states of the nodes, ``[episode, node, number]``.
            encoded: what each node reads of the question, ``[episode, node, number]``.
        """
        marks = encoded[..., -1:]  # 1 for the node in question
        return self.read((z * marks).sum(1))


class Block(nn.Module):
    """One round of messages: every node adds up the messages of the nodes with an edge to it, and
    updates its state by a GRU cell.
    """

    def __init__(self) -> None:
        super().__init__()
        self.send = nn.Linear(WIDTH, WIDTH)
        self.update = nn.GRUCell(WIDTH + 2, WIDTH)

    def forward(self, entered: Tensor) -> Tensor:
        """Return the next states of the nodes, ``[episode, node, number]``.

        Args:
            entered: for each node its state, and what it reads: which nodes have an edge to it, and
                whether it is the root or the node in question.
        """
        z, encoded = entered.split([WIDTH, N_ENCODED], 2)
        messages = encoded[..., :N_NODES] @ self.send(z).relu()
        inputs = torch.cat([messages, encoded[..., N_NODES:]], 2)
        updated = self.update(inputs.flatten(0, 1), z.flatten(0, 1))
        return updated.unflatten(0, (-1, N_NODES))


TASK = series("can_be_reached", draw, inputs=N_NODES * N_ENCODED, outcomes=("no", "yes"))


def train(steps: int = 1200, ponder: float = 0.003) -> Loop:
    """Train a loop to answer, and its gate to stop, as in PonderNet.

    The loss is its expected value at the round where the gate stops, plus a cost of time.

    Args:
        steps: number of training steps.
        ponder: cost of a round.
    """
    torch.manual_seed(0)
    loop = Loop()
    optimizer = torch.optim.Adam(loop.parameters(), lr=5e-3)
    for i in range(steps):
        question, truth = draw(64, 1, 10 + i)
        encoded = torch.tensor(question).float().reshape(64, N_NODES, N_ENCODED)
        target = torch.tensor(truth[:, 0])
        z = torch.zeros(64, N_NODES, WIDTH)
        p_running = torch.ones(64)  # probability that the gate has not stopped yet
        loss = torch.zeros(())
        for t in range(N_ROUNDS):
            z = loop.core(torch.cat([z, encoded], 2))
            wrong = nn.functional.cross_entropy(loop.answer(z, encoded), target, reduction="none")
            p_stop = p_running  # in the last round, it stops in any case
            if t < N_ROUNDS - 1:
                p_stop = p_running * loop.is_done(z)
            loss = loss + (p_stop * (wrong + ponder * t)).mean()
            p_running = p_running - p_stop
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(loop.parameters(), 1.0)
        optimizer.step()
    return loop


def make_learned(loop: Loop) -> Any:
    """Return the loop as a machine; one round of the machine is one recurrence of the loop."""
    register(TASK)
    labels = [f"x_{i + 1}" for i in range(N_NODES * N_ENCODED)]
    places = TASK.layout().positions(labels)

    def encode(module: Loop, fed: Any) -> Tensor:
        return fed.values[:, places].unflatten(1, (N_NODES, N_ENCODED))

    def inject(module: Loop, z: Tensor, encoded: Tensor) -> Tensor:
        return torch.cat([z, encoded], 2)

    def read(module: Loop, z: Tensor, fed: Any) -> Tensor:
        return module.answer(z, encode(module, fed))

    return machines.depth(
        loop,
        TASK,
        shape=(N_NODES, WIDTH),
        encoded_shape=(N_NODES, N_ENCODED),
        encode=encode,
        inject=inject,
        read=read,
        gate=lambda module, z: module.is_done(z),
        name="learned",
        check=False,
    )


# Witnesses.


def find_first(events: np.ndarray) -> np.ndarray:
    """Return the first round with an event ``[episode, round]``; the number of rounds if there is
    none.
    """
    return np.where(events.any(1), events.argmax(1), events.shape[1])


def stands_still(states: np.ndarray) -> np.ndarray:
    """Return True for each round that did not move the state ``[episode, round + 1, number]``."""
    moves = np.linalg.norm(np.diff(states, axis=1), axis=-1)
    typical_norm = np.linalg.norm(states[:, 1:], axis=-1).mean()
    return moves <= STILL * typical_norm


def tabulate_witnesses(
    name: str, right: np.ndarray, witnesses: dict[str, np.ndarray]
) -> pd.DataFrame:
    """Return a row per witness: how late it is, how often it is right, and how often it never says
    "done".

    Args:
        name: name of the machine.
        right: the round in which the search is done, ``[episode]``.
        witnesses: by witness, the round in which it says "done", ``[episode]``.
    """
    rows = []
    for witness, rounds in witnesses.items():
        late = rounds - right  # negative where the witness says "done" too early
        is_never = rounds == N_ROUNDS
        is_late = (late > 0) & ~is_never
        row = {
            "machine": name,
            "witness": witness,
            "right": (late == 0).mean(),
            "early": (late < 0).mean(),
            "late": is_late.mean(),
            "never": is_never.mean(),
            "mean": late.mean(),
        }
        clipped = np.clip(late, LAGS[0], LAGS[-1])
        for lag in LAGS:
            row[lag] = (clipped == lag).mean()
        rows.append(row)
    return pd.DataFrame(rows)


def try_handwired(rule: str) -> pd.DataFrame:
    """Compare the witnesses on a handwired machine with this halting rule."""
    edges, nodes = draw_graphs(N_EPISODES, 0)
    roots = nodes[:, 0]
    ends = nodes[:, [1, -1]]
    episodes = reachability.ReachabilityEpisodes(edges, roots, ends, N_NODES, N_ROUNDS)
    machine = make_halting(rule)
    run = interp.rollout(machine, episodes)
    carried = unpack(machine.channels, run.latents)
    decoded = machine.module.search.read_state(carried["set"].unsqueeze(2))
    sets = decoded.numpy()[:, 1:] > 0.5
    gates = carried["gate"].numpy()[:, 1:, 0]
    witnesses = {
        "gate": find_first(gates > 0.5),
        "readout": find_first(is_closed(sets, edges)),
        "fixed point": find_first(stands_still(carried["set"].numpy())),
    }
    right = find_first(is_closed(reach(edges, roots, N_ROUNDS), edges))
    return tabulate_witnesses(rule, right, witnesses)


@dataclass(frozen=True)
class LoopRun:
    """A rollout of the trained loop, with the graphs that it searched.

    Attributes:
        choices: answers ``[episode, round]``.
        outcomes: right answers ``[episode, round]``.
        states: states of the nodes, ``[episode, round + 1, node, number]``.
        gates: gate after each round, ``[episode, round]``.
        edges: edges of the graphs, ``[episode, edge, 2]``.
        reached: nodes that can be reached by this round, ``[episode, round, node]``.
    """

    choices: np.ndarray
    outcomes: np.ndarray
    states: np.ndarray
    gates: np.ndarray
    edges: np.ndarray
    reached: np.ndarray


def run_loop(machine: Any, seed: int) -> LoopRun:
    """Run the trained loop on the graphs of a seed."""
    run = interp.rollout(machine, TASK.sample(N_EPISODES, N_ROUNDS, seed=seed))
    carried = unpack(machine.channels, run.latents)
    edges, nodes = draw_graphs(N_EPISODES, seed)
    return LoopRun(
        choices=run.choices.numpy(),
        outcomes=run.episodes.outcomes,
        states=carried["z"].numpy(),
        gates=carried["gate"].numpy()[:, 1:, 0],
        edges=edges,
        reached=reach(edges, nodes[:, 0], N_ROUNDS),
    )


def try_learned(loop: Loop) -> tuple[pd.DataFrame, dict[str, float]]:
    """Compare the witnesses on the trained loop; the readout is fitted on other graphs."""
    machine = make_learned(loop)
    fitted_on = run_loop(machine, 1)
    run = run_loop(machine, 2)
    readout = LogisticRegression(max_iter=500)
    known_states = fitted_on.states[:, 1:].reshape(-1, WIDTH)
    readout.fit(known_states, fitted_on.reached.ravel())
    states = run.states[:, 1:].reshape(-1, WIDTH)
    decoded = readout.predict(states).reshape(run.reached.shape)

    # The gates are probabilities of stopping. The witness is the round from which on the loop has
    # more probably stopped than not.
    p_running = np.cumprod(1 - run.gates, 1)
    flat_states = run.states.reshape(N_EPISODES, N_ROUNDS + 1, -1)
    witnesses = {
        "gate": find_first(1 - p_running >= 0.5),
        "readout": find_first(is_closed(decoded, run.edges)),
        "fixed point": find_first(stands_still(flat_states)),
    }
    right = find_first(is_closed(run.reached, run.edges))

    is_correct = run.choices == run.outcomes
    stops = np.minimum(witnesses["gate"], N_ROUNDS - 1)  # the last round if the gate never stops
    correct_at_stop = is_correct[np.arange(N_EPISODES), stops]
    correlation = np.corrcoef(witnesses["gate"], right)[0, 1]
    numbers = {
        "accuracy where the gate stops": correct_at_stop.mean(),
        "accuracy in the last round": is_correct[:, -1].mean(),
        "nodes decoded rightly": (decoded == run.reached).mean(),
        "correlation of the gate's round with the right one": correlation,
    }
    return tabulate_witnesses("learned", right, witnesses), numbers


def main(picture: str = "", steps: int = 1200) -> pd.DataFrame:
    """Compare the witnesses on all machines, print the table, and draw it if ``picture`` is a path."""
    tables = [try_handwired(rule) for rule in ("in time", "late", "early")]
    table, numbers = try_learned(train(steps))
    tables.append(table)
    rows = pd.concat(tables, ignore_index=True)
    printed = rows[["machine", "witness", "right", "early", "late", "never", "mean"]]
    print(printed.round(2).to_string())
    print({name: round(float(number), 3) for name, number in numbers.items()})
    if picture:
        panels = {}
        for name, part in rows.groupby("machine", sort=False):
            panels[name] = part.set_index("witness")[LAGS]
        figure = figures.heatmaps(
            panels, label="share of episodes", xlabel="rounds after the search was done"
        )
        write_figure(picture, figure)
    return rows


if __name__ == "__main__":
    torch.set_num_threads(1)
    main(*sys.argv[1:2])
