"""Ground truth of the Q-learning circuit: its causal variables, where each lives, and which head feeds which.

The true values are those of ``interp.tasks.qlearning.tabular`` on the same transitions; the choice is
``argmax_a (Q_t(s', a) - tau a)``, or the Boltzmann policy of Q_t. In "lin" single values become rows and columns of Q,
because its heads read whole rows: Q(s_t, a_t) is an entry of the row at r, the maximum one of the column at Select.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from jaxtyping import Float

from circuits.basis import Basis, Block, Direction
from circuits.circuit import Edge, Site, Variable
from interp.tasks.qlearning import tabular
from interp.tasks.qlearning.layout import QLearningRound
from interp.tasks.qlearning import bellman
from interp.tasks.qlearning.episodes import MDPEpisodes

POST = "blocks.{}.hook_resid_post".format


class Truth:
    """True values of the variables, each ``[episode, round, ...]``."""

    def __init__(
        self, alpha: float, gamma: float, tau: float, beta: float | None = None, hardness: float | None = None
    ) -> None:
        self.alpha, self.gamma, self.tau, self.beta, self.hardness = alpha, gamma, tau, beta, hardness

    def tables(self, episodes: MDPEpisodes) -> Float[np.ndarray, "episode steps state action"]:
        if (episodes.alpha, episodes.gamma) == (self.alpha, self.gamma) and not episodes.q_tables[:, 0].any():
            return episodes.q_tables
        steps = episodes.states, episodes.actions, episodes.rewards, episodes.next_states
        initial = np.zeros_like(episodes.q_tables[:, 0])
        return bellman.replay_tables(*steps, initial, self.alpha, self.gamma)

    def columns(self, episodes: MDPEpisodes) -> np.ndarray:
        return np.swapaxes(self.tables(episodes)[:, :-1], 2, 3)

    def current_row(self, episodes: MDPEpisodes) -> np.ndarray:
        return bellman.rows_at(self.tables(episodes)[:, :-1], episodes.states)

    def next_row(self, episodes: MDPEpisodes) -> np.ndarray:
        return bellman.rows_at(self.tables(episodes)[:, :-1], episodes.next_states)

    def current_value(self, episodes: MDPEpisodes) -> np.ndarray:
        return np.take_along_axis(self.current_row(episodes), episodes.actions[..., None], -1)

    def visited_column(self, episodes: MDPEpisodes) -> np.ndarray:
        return self._column(self.tables(episodes)[:, :-1], episodes.actions)

    def next_visited_column(self, episodes: MDPEpisodes) -> np.ndarray:
        return self._column(self.tables(episodes)[:, 1:], episodes.actions)

    def chosen(self, episodes: MDPEpisodes) -> np.ndarray:
        values = self.next_row(episodes)
        return (values - self.tau * np.arange(values.shape[-1])).argmax(-1)

    def best_column(self, episodes: MDPEpisodes) -> np.ndarray:
        return self._column(self.tables(episodes)[:, :-1], self.chosen(episodes))

    def maximum(self, episodes: MDPEpisodes) -> np.ndarray:
        return self.next_row(episodes).max(-1, keepdims=True)

    def policy(self, episodes: MDPEpisodes) -> np.ndarray:
        if self.beta is not None:
            return tabular.QLearner(beta=self.beta).policy(self.next_row(episodes))
        if self.hardness is not None:
            slope = self.tau * np.arange(episodes.n_actions)
            return tabular.QLearner(beta=self.hardness).policy(self.next_row(episodes) - slope)
        return one_hot(self.chosen(episodes), episodes.n_actions)

    def td_error(self, episodes: MDPEpisodes) -> np.ndarray:
        bootstrapped = episodes.rewards[..., None] + self.gamma * self.maximum(episodes)
        return bootstrapped - self.current_value(episodes)

    @staticmethod
    def _column(tables: np.ndarray, actions: np.ndarray) -> np.ndarray:
        return np.take_along_axis(tables, actions[..., None, None], -1).squeeze(-1)


def one_hot(indices: np.ndarray, n: int) -> np.ndarray:
    return np.eye(n)[indices]


def variables(basis: Basis, layout: QLearningRound, variant: str, truth: Truth) -> tuple[Variable, ...]:
    """The table of causal variables of one variant."""
    alpha, gamma, beta, lin = truth.alpha, truth.gamma, truth.beta, variant == "lin"
    n_states, n_actions = layout.n_states, layout.n_actions
    ids, buf1, buf2 = basis["id"], basis["buf1"], basis["buf2"]
    columns = basis["buf3"] if lin else buf1
    states = tuple(f"s_{i}" for i in range(1, n_states + 1))
    actions = tuple(f"a_{i}" for i in range(1, n_actions + 1))

    def axes(hook: str, labels: Sequence[str], block: Block, names: Sequence[str], drives: str) -> Site:
        """Every axis in ``names`` at every position in ``labels``."""
        spread = tuple(label for label in labels for _ in names)
        return Site(hook, spread, tuple(block[name] for name in names) * len(labels), drives=drives)

    def scalar(hook: str, label: str, direction: Direction, drives: str, scale: float = 1.0) -> Site:
        return Site(hook, (label,), (direction,), scale=scale, drives=drives)

    all_states = buf1.sum(states)
    td_sites = [scalar("blocks.3.hook_attn_out", "Update", all_states, "update", alpha)]
    reward_sites = [scalar("hook_embed", "r", buf1["r"], "update")]
    next_state_sites = [axes(POST(0), ("Select",), buf2 if lin else ids, states, "choice" if lin else "nothing")]
    if lin:
        next_state_sites.append(axes(POST(1), ("Update",), buf2, states, "update"))
    else:
        next_state_sites += [axes(POST(0), (action,), ids, states, "choice and update") for action in actions]
    if variant == "softmlp":
        fetched = buf2["Qcurr"] + buf2["r"] + gamma * buf2["Select"]
        td_sites = [
            scalar("blocks.3.hook_resid_mid", "Update", fetched, "update"),
            scalar("blocks.3.hook_mlp_out", "Update", all_states, "update", alpha),
        ]
        reward_sites.append(scalar("blocks.3.hook_resid_mid", "Update", buf2["r"], "update"))
    latents = tuple(f"c_{i}" for i in range(1, n_actions + 1))
    found = [
        Variable(
            "q_columns",
            "Q_t(., a)",
            "the column of each action",
            truth.columns,
            (
                axes("hook_embed", latents, buf1, states, "choice and update"),
                axes(POST(0), actions, columns, states, "choice and update"),
            ),
        ),
        Variable(
            "visited_column",
            "Q_t(., a_t)",
            "the column of the action taken",
            truth.visited_column,
            (
                axes(POST(0), ("a",), columns, states, "update"),
                axes(POST(2), ("Update",), buf1, states, "update"),
            ),
        ),
        Variable(
            "state",
            "s_t",
            "where the action was taken",
            lambda episodes: one_hot(episodes.states, n_states),
            (
                axes(POST(0), ("a",), ids, states, "update"),
                axes(POST(0), ("r",), ids, states, "update"),
                axes(POST(1), ("Select",), buf1, states, "update"),
            ),
        ),
        Variable(
            "next_state",
            "s_{t+1}",
            "where it led",
            lambda episodes: one_hot(episodes.next_states, n_states),
            tuple(next_state_sites),
        ),
    ]
    if lin:
        found += [
            Variable(
                "current_values",
                "Q_t(s_t, .)",
                "the row of the state left",
                truth.current_row,
                (axes(POST(1), ("r",), buf2, actions, "update"),),
            ),
            Variable(
                "next_values",
                "Q_t(s_{t+1}, .)",
                "the row of the state reached",
                truth.next_row,
                (axes(POST(1), ("Select",), buf2, actions, "choice"),),
            ),
            Variable(
                "best_column",
                "Q_t(., a*)",
                "the column of the chosen action; its entry at s_{t+1} is the maximum",
                truth.best_column,
                (axes(POST(2), ("Select",), columns, states, "update"),),
            ),
        ]
    else:
        found += [
            Variable(
                "current_value",
                "Q_t(s_t, a_t)",
                "what the visited pair was worth",
                truth.current_value,
                (scalar(POST(1), "a", -buf2["Qcurr"], "update"),),
            ),
            Variable(
                "next_values",
                "Q_t(s_{t+1}, .)",
                "what each candidate is worth",
                truth.next_row,
                (axes(POST(1), actions, buf2, ("Qnext",), "choice and update"),),
            ),
            Variable(
                "maximum",
                "max_a Q_t(s_{t+1}, a)",
                "the bootstrapped value",
                truth.maximum,
                (scalar(POST(2), "Select", buf2["Select"], "update"),),
            ),
        ]
    found += [
        Variable(
            "policy",
            "a*" if beta is None else "pi(a | s_{t+1})",
            "the choice" if beta is None else "the Boltzmann policy",
            truth.policy,
            (axes(POST(2), ("Select",), ids, actions, "choice"),),
        ),
        Variable(
            "action",
            "a_t",
            "which latent is rewritten",
            lambda episodes: one_hot(episodes.actions, n_actions),
            (axes(POST(2), ("Update",), ids, actions, "update"),),
        ),
        Variable("reward", "r_t", "the reward", lambda episodes: episodes.rewards[..., None], tuple(reward_sites)),
        Variable("td_error", "delta_t", "r_t + gamma max Q - Q(s_t, a_t)", truth.td_error, tuple(td_sites)),
        Variable(
            "next_column",
            "Q_{t+1}(., a_t)",
            "the new column of the action taken",
            truth.next_visited_column,
            (axes(POST(3), ("Update",), buf1, states, "update"),),
        ),
    ]
    return tuple(found)


def edges(variant: str, split: bool) -> tuple[Edge, ...]:
    """Which head feeds which; ``split`` where linear heads became pairs."""
    fetched = "2.1 Select fetches s_t"
    choose, maximum, inherit = "3.1 action selection", "3.2 max extraction", "3.3 Update inheritance"
    column, phase, candidate = "1.6 context fetch", "1.4 current-phase tag", "1.5 next-phase tag"
    common = [
        Edge(phase, fetched, "key", "which action was taken"),
        Edge("1.1 state to actions", fetched, "value", "s_t"),
        Edge(phase, inherit, "key", "which action was taken"),
        Edge(column, inherit, "value", "Q(., a_t)"),
        Edge(candidate, choose, "key", "who is a candidate"),
        Edge(candidate, maximum, "key", "who is a candidate"),
        Edge(choose, "prediction", "residual", "the choice"),
        Edge(inherit, "update", "residual", "the column to change"),
    ]
    if variant == "lin":
        values, following = "2.2 Q-values", "2.3 next state to Update"
        current, reward, bootstrap = "4.1 subtract current value", "4.2 add reward", "4.3 add discounted max"
        common += [
            Edge("1.2 state to Select", values, "query", "s_{t+1}"),
            Edge("1.3 state to reward", values, "query", "s_t"),
            Edge("1.2 state to Select", following, "value", "s_{t+1}"),
            Edge(values, choose, "query", "Q(s_{t+1}, .)"),
            Edge(values, maximum, "query", "Q(s_{t+1}, .)"),
            Edge(column, maximum, "value", "Q(., a*)"),
            Edge(inherit, current, "query", "a_t"),
            Edge(values, current, "key", "Q(s_t, .)"),
            Edge("1.3 state to reward", current, "value", "s_t"),
            Edge("1.3 state to reward", reward, "value", "s_t"),
            Edge(following, bootstrap, "query", "s_{t+1}"),
            Edge(maximum, bootstrap, "key", "Q(., a*)"),
            Edge(fetched, bootstrap, "value", "s_t"),
            *(Edge(head, "update", "residual", "a TD term") for head in (current, reward, bootstrap)),
        ]
    elif variant == "mlp":
        values = "2.2 Q-values"
        current, reward, bootstrap = "4.1 subtract current value", "4.2 add reward", "4.3 add discounted max"
        common += [
            *_evaluation(values, column, phase, candidate, choose, maximum),
            Edge(values, current, "key", "-Q(s_t, a_t)"),
            Edge("1.1 state to actions", current, "value", "s_t"),
            Edge("1.3 state to reward", reward, "value", "s_t"),
            Edge(maximum, bootstrap, "key", "max_a Q(s_{t+1}, a)"),
            Edge(fetched, bootstrap, "value", "s_t"),
            *(Edge(head, "update", "residual", "a TD term") for head in (current, reward, bootstrap)),
        ]
    else:
        values, add, clear = "2.2 Q-values", "4.4 add TD error", "4.5 clean up"
        fetches = ("4.1 fetch current value", "4.2 fetch reward", "4.3 fetch max")
        common += [
            *_evaluation(values, column, phase, candidate, choose, maximum),
            Edge(phase, fetches[0], "key", "which action was taken"),
            Edge(values, fetches[0], "value", "-Q(s_t, a_t)"),
            Edge("1.1 state to actions", fetches[0], "value", "s_t"),
            Edge(maximum, fetches[2], "value", "max_a Q(s_{t+1}, a)"),
            *(Edge(fetch, add, "residual", "a term of the TD error") for fetch in fetches),
            *(Edge(fetch, clear, "residual", "what to remove") for fetch in fetches),
            Edge(add, "update", "residual", "alpha x TD error"),
            Edge(clear, "update", "residual", "minus everything else"),
        ]
    return tuple(part for edge in common for part in (_halves(edge, variant) if split else (edge,)))


def _evaluation(values: str, column: str, phase: str, candidate: str, choose: str, maximum: str) -> tuple[Edge, ...]:
    return (
        Edge("1.1 state to actions", values, "residual", "the state"),
        Edge(column, values, "residual", "the column"),
        Edge(phase, values, "residual", "phase Qcurr"),
        Edge(candidate, values, "residual", "phase Qnext"),
        Edge(values, choose, "key", "Q(s_{t+1}, a)"),
        Edge(values, maximum, "key", "Q(s_{t+1}, a)"),
        Edge(values, maximum, "value", "Q(s_{t+1}, a)"),
    )


_LINEAR = {
    "mlp": ("4.1", "4.2", "4.3"),
    "softmlp": (),
    "lin": ("2.2", "4.1", "4.2", "4.3"),
}


def _halves(edge: Edge, variant: str) -> list[Edge]:
    """An edge between heads that became pairs, once for each half."""

    def names(name: str) -> list[str]:
        number, _, word = name.partition(" ")
        return [f"{number}{mark} {word}" for mark in "+-"] if number in _LINEAR[variant] else [name]

    return [Edge(s, t, edge.port, edge.carries) for s in names(edge.source) for t in names(edge.target)]
