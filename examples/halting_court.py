"""The halting court: which of three witnesses says when a loop is done? Right answers are known.

A search through a graph is done in the round after which no edge leaves the set of reached nodes. Machines that halt
then, two rounds late, or while edges leave are made of ``reachability-handwired``; a small loop with a gate is
trained (:func:`train`, four CPU minutes). Witnesses: the machine's own gate, a readout of its state (does an edge leave
the decoded set?), and its fixed point (a state that moves no more). ``python examples/halting_court.py [PICTURE]``.
"""

from __future__ import annotations

import sys
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

N_NODES, N_EDGES, N_ROUNDS, N_EPISODES = 10, 14, 12, 200
STILL = 0.01
"""A state is fixed where it moves by less than this share of its typical norm."""


def close(reached: np.ndarray, edges: np.ndarray) -> np.ndarray:
    """Whether no edge ``[episode, edge, 2]`` leaves a set ``[episode, round, node]``."""
    rows = np.arange(len(reached))[:, None]
    from_set = reached[rows, :, edges[..., 0]]
    to_set = reached[rows, :, edges[..., 1]]
    return ~(from_set & ~to_set).any(1)


def reach(edges: np.ndarray, roots: np.ndarray, n_rounds: int) -> np.ndarray:
    """The nodes within 1, 2, ... steps of the root, ``[episode, round, node]``."""
    reached = np.eye(N_NODES, dtype=bool)[roots]
    rows = np.arange(len(edges))[:, None]
    sets = []
    for _ in range(n_rounds):
        active = reached[rows, edges[..., 0]]
        reached = reached.copy()
        episodes, places = np.nonzero(active)
        reached[episodes, edges[episodes, places, 1]] = True
        sets.append(reached)
    return np.stack(sets, 1)


class Halting(nn.Module):
    """The handwired search, which stops for good once its gate has fired."""

    def __init__(self, rule: str) -> None:
        super().__init__()
        self.search = interp.load("reachability-handwired", n_nodes=N_NODES, n_edges=N_EDGES)
        self.rule = rule

    def is_done(self, before: Tensor, after: Tensor, leaves: Tensor, waited: Tensor) -> Tensor:
        if self.rule == "early":  # at most one node was new
            return (after - before).sum(1) <= 1
        return ~leaves & (waited >= (2 if self.rule == "late" else 0))


def halting(rule: str) -> Any:
    """The handwired machine with a gate: "in time", "late" or "early"."""
    module = Halting(rule)
    layout = module.search.layout
    node = layout.token_ids["n_1"]
    columns = [layout.positions([f"{end}_{i + 1}" for i in range(N_EDGES)]) for end in "st"]

    def step(module: Halting, carried: dict[str, Tensor], fed: Any) -> Any:
        latents, halted = carried["set"].unsqueeze(1), carried["gate"]
        prediction, written = module.search.step(latents, fed)
        after = torch.where(halted.unsqueeze(2) > 0.5, latents, written)
        sets = [module.search.read_state(part).round() for part in (latents, after)]
        ends = [sets[1].gather(1, fed.tokens[:, places] - node) for places in columns]
        leaves = (ends[0] > ends[1]).any(1)
        waited = torch.where(leaves, 0, carried["waited"][:, 0] + 1)
        done = module.is_done(*sets, leaves, waited - 1).to(halted)
        gate = torch.maximum(halted, done.unsqueeze(1))
        return prediction, {"set": after[:, 0], "gate": gate, "waited": waited.unsqueeze(1)}

    width = module.search.config.d_model
    channels = [interp.Channel(n, (w,)) for n, w in (("set", width), ("gate", 1), ("waited", 1))]
    return interp.adapt(
        module, layout, step=step, channels=channels, output="probability", name=rule, check=False
    )


# A loop that is trained: node states, messages along edges, a gate.

WIDTH = 16
N_HEARD = N_NODES + 2


def draw(n_episodes: int, n_rounds: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """One graph, root and node an episode, in every round: can the node be reached?"""
    edges, nodes = draw_graphs(n_episodes, seed)
    roots = nodes[:, 0]
    reached = reach(edges, roots, N_NODES)[:, -1]
    rng = np.random.default_rng(seed + 1)
    is_asked = rng.random((n_episodes, N_NODES)) + 0.5 * (
        reached != (rng.random((n_episodes, 1)) < 0.5)
    )
    asked = np.argmin(is_asked, 1)
    adjacency = np.zeros((n_episodes, N_NODES, N_NODES))
    adjacency[np.arange(n_episodes)[:, None], edges[..., 1], edges[..., 0]] = 1
    marks = np.eye(N_NODES)[np.stack([roots, asked], 1)].transpose(0, 2, 1)
    question = np.concatenate([adjacency, marks], 2).reshape(n_episodes, 1, -1)
    truth = reached[np.arange(n_episodes), asked].astype(int)
    return question.repeat(n_rounds, 1), truth[:, None].repeat(n_rounds, 1)


def draw_graphs(n_episodes: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Edges ``[episode, edge, 2]`` and nodes, the root first: paths of every length alike, and edges back."""
    rng = np.random.default_rng(seed)
    names = rng.permuted(np.tile(np.arange(N_NODES), (n_episodes, 1)), axis=1)
    first = np.arange(N_NODES - 1)
    is_break = first == rng.integers(1, N_NODES, (n_episodes, 1))
    path = np.stack([np.where(is_break, first + 1, first), np.where(is_break, first, first + 1)], 2)
    n_back = N_EDGES - N_NODES + 1
    back = np.sort(rng.integers(0, N_NODES, (n_episodes, n_back, 2)), 2)[..., ::-1]
    places = np.concatenate([path, back], 1)
    edges = names[np.arange(n_episodes)[:, None, None], places]
    return edges, names


class Loop(nn.Module):
    """A block that passes messages along the edges once a round, and a gate on the mean of the node states."""

    def __init__(self) -> None:
        super().__init__()
        self.core = Block()
        self.gate = nn.Sequential(nn.Linear(2 * WIDTH, WIDTH), nn.ReLU(), nn.Linear(WIDTH, 1))
        self.read = nn.Linear(WIDTH, 2)

    def is_done(self, z: Tensor) -> Tensor:
        return self.gate(torch.cat([z.mean(1), z.amax(1)], 1)).sigmoid()[:, 0]

    def answer(self, z: Tensor, heard: Tensor) -> Tensor:
        return self.read((z * heard[..., -1:]).sum(1))


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.send = nn.Linear(WIDTH, WIDTH)
        self.update = nn.GRUCell(WIDTH + 2, WIDTH)

    def forward(self, entered: Tensor) -> Tensor:
        z, heard = entered.split([WIDTH, N_HEARD], 2)
        messages = heard[..., :N_NODES] @ self.send(z).relu()
        inputs = torch.cat([messages, heard[..., N_NODES:]], 2)
        return self.update(inputs.flatten(0, 1), z.flatten(0, 1)).unflatten(0, (-1, N_NODES))


TASK = series("can_be_reached", draw, inputs=N_NODES * N_HEARD, outcomes=("no", "yes"))


def train(steps: int = 1200, ponder: float = 0.003) -> Loop:
    """Train a loop to answer, and its gate to stop (as PonderNet: the loss expected when it stops, and its time)."""
    torch.manual_seed(0)
    loop = Loop()
    optimizer = torch.optim.Adam(loop.parameters(), lr=5e-3)
    for i in range(steps):
        question, truth = draw(64, 1, 10 + i)
        heard = torch.tensor(question).float().reshape(64, N_NODES, N_HEARD)
        target = torch.tensor(truth[:, 0])
        z = torch.zeros(64, N_NODES, WIDTH)
        left, loss = torch.ones(64), torch.zeros(())
        for t in range(N_ROUNDS):
            z = loop.core(torch.cat([z, heard], 2))
            wrong = nn.functional.cross_entropy(loop.answer(z, heard), target, reduction="none")
            stops = left if t == N_ROUNDS - 1 else left * loop.is_done(z)
            loss = loss + (stops * (wrong + ponder * t)).mean()
            left = left - stops
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(loop.parameters(), 1.0)
        optimizer.step()
    return loop


def learned(loop: Loop) -> Any:
    """The loop as a machine whose rounds are its recurrences."""
    register(TASK)
    places = TASK.layout().positions([f"x_{i + 1}" for i in range(N_NODES * N_HEARD)])
    return machines.depth(
        loop,
        TASK,
        shape=(N_NODES, WIDTH),
        heard=(N_NODES, N_HEARD),
        hear=lambda m, fed: fed.values[:, places].unflatten(1, (N_NODES, N_HEARD)),
        inject=lambda m, z, heard: torch.cat([z, heard], 2),
        read=lambda m, z, fed: m.answer(z, fed.values[:, places].unflatten(1, (N_NODES, N_HEARD))),
        gate=lambda m, z: m.is_done(z),
        name="learned",
        check=False,
    )


# Witnesses.


def first(said: np.ndarray) -> np.ndarray:
    """The first round in which something is said, ``[episode, round]``; the number of rounds where it is not."""
    return np.where(said.any(1), said.argmax(1), said.shape[1])


def stands_still(states: np.ndarray) -> np.ndarray:
    """The rounds after which a state ``[episode, round + 1, number]`` has not moved."""
    moves = np.linalg.norm(np.diff(states, axis=1), axis=-1)
    return moves <= STILL * np.linalg.norm(states[:, 1:], axis=-1).mean()


def hear_witnesses(name: str, right: np.ndarray, said: dict[str, np.ndarray]) -> pd.DataFrame:
    """One row a witness: how late it is, how often right, and how often nodes were left."""
    rows = []
    for witness, rounds in said.items():
        late = rounds - right
        row = {"machine": name, "witness": witness, "right": (late == 0).mean()}
        is_never = rounds == N_ROUNDS
        row |= {"early": (late < 0).mean(), "late": ((late > 0) & ~is_never).mean()}
        row |= {"never": is_never.mean(), "mean": late.mean()}
        for lag in range(-4, 5):
            row[lag] = (np.clip(late, -4, 4) == lag).mean()
        rows.append(row)
    return pd.DataFrame(rows)


def try_handwired(rule: str) -> pd.DataFrame:
    """Hear the witnesses of a machine that was made to halt by a rule."""
    edges, nodes = draw_graphs(N_EPISODES, 0)
    ends = nodes[:, [1, -1]]
    episodes = reachability.ReachabilityEpisodes(edges, nodes[:, 0], ends, N_NODES, N_ROUNDS)
    machine = halting(rule)
    run = interp.rollout(machine, episodes)
    tree = unpack(machine.channels, run.latents)
    sets = machine.module.search.read_state(tree["set"].unsqueeze(2)).numpy() > 0.5
    said = {
        "gate": first(tree["gate"][:, 1:, 0].numpy() > 0.5),
        "readout": first(close(sets[:, 1:], edges)),
        "fixed point": first(stands_still(tree["set"].numpy())),
    }
    right = first(close(reach(edges, nodes[:, 0], N_ROUNDS), edges))
    return hear_witnesses(rule, right, said)


def try_learned(loop: Loop) -> tuple[pd.DataFrame, dict[str, float]]:
    """Hear the witnesses of the loop that was trained; the readout is fitted on other graphs."""
    machine = learned(loop)
    tables, truths, graphs = [], [], []
    for seed in (1, 2):
        run = interp.rollout(machine, TASK.sample(N_EPISODES, N_ROUNDS, seed=seed))
        tables.append(
            (run, {k: v.numpy() for k, v in unpack(machine.channels, run.latents).items()})
        )
        graphs.append(draw_graphs(N_EPISODES, seed))
        edges, nodes = graphs[-1]
        truths.append(reach(edges, nodes[:, 0], N_ROUNDS))
    fitted = LogisticRegression(max_iter=500)
    fitted.fit(tables[0][1]["z"][:, 1:].reshape(-1, WIDTH), truths[0].ravel())
    run, tree = tables[1]
    edges, _ = graphs[1]
    decoded = fitted.predict(tree["z"][:, 1:].reshape(-1, WIDTH)).reshape(truths[1].shape)
    gates = tree["gate"][:, 1:, 0]
    said = {
        "gate": first(1 - np.cumprod(1 - gates, 1) >= 0.5),
        "readout": first(close(decoded, edges)),
        "fixed point": first(stands_still(tree["z"].reshape(N_EPISODES, N_ROUNDS + 1, -1))),
    }
    right = first(close(truths[1], edges))
    choices = run.choices.numpy() == run.episodes.outcomes
    stops = np.minimum(said["gate"], N_ROUNDS - 1)
    numbers = {
        "accuracy where the gate stops": choices[np.arange(N_EPISODES), stops].mean(),
        "accuracy in the last round": choices[:, -1].mean(),
        "nodes decoded rightly": (decoded == truths[1]).mean(),
        "correlation of the gate's round with the right one": np.corrcoef(said["gate"], right)[
            0, 1
        ],
    }
    return hear_witnesses("learned", right, said), numbers


def main(picture: str = "", steps: int = 1200) -> pd.DataFrame:
    """Hear all witnesses, print the table, and draw it."""
    tables = [try_handwired(rule) for rule in ("in time", "late", "early")]
    table, numbers = try_learned(train(steps))
    tables.append(table)
    rows = pd.concat(tables, ignore_index=True)
    print(
        rows[["machine", "witness", "right", "early", "late", "never", "mean"]].round(2).to_string()
    )
    print({name: round(float(number), 3) for name, number in numbers.items()})
    if picture:
        panels = {}
        for name, part in rows.groupby("machine", sort=False):
            panels[name] = part.set_index("witness")[list(range(-4, 5))]
        figure = figures.heatmaps(
            panels, label="share of episodes", xlabel="rounds after the search was done"
        )
        write_figure(picture, figure)
    return rows


if __name__ == "__main__":
    torch.set_num_threads(1)
    main(*sys.argv[1:2])
