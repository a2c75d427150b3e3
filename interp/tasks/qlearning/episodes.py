"""Recorded Q-learning episodes: frozen, validated when they are made.

An :class:`MDPEpisodes` holds what happened in a batch of MDPs (one per episode), with the Q-table before and after
every round and the target ``a*_t = argmax_a Q_{t+1}(s_{t+1}, a)``, by the table *after* the update (paper, appendix
F.2). The handwired circuit chooses before it updates, hence by ``Q_t``: :attr:`MDPEpisodes.greedy_before`; the two
differ only where ``s_{t+1} = s_t``.

Every episode of a batch has the same number of states and actions. An episode that ends early has missing rounds
(:class:`interp.core.task.BaseEpisodes`); a state that ends a task can also be written as a loop onto itself.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from jaxtyping import Bool, Float, Int
from numpy.typing import ArrayLike, NDArray

from interp.core.task import BaseEpisodes, episode_array, freeze, length_of, padded
from interp.support.checks import array_of, check_fields, checked, integer
from interp.support.errors import InputError, require, require_known
from interp.support.provenance import provenance
from interp.tasks.qlearning import bellman
from interp.tasks.qlearning.mdps import MDPs, inverse_labels

__all__ = ["MDPEpisodes", "MDPs", "check_epsilon"]

_TABLE_TOLERANCE = 1e-9

_TRANSITIONS = ("states", "actions", "rewards", "next_states")
"""The arrays ``[episode, round]`` that say what happened."""


@dataclass(frozen=True, eq=False, repr=False)
class MDPEpisodes(BaseEpisodes):
    """Recorded episodes of tabular Q-learning (or of any agent, with the tables that Q-learning makes of them).

    Attributes:
        states, actions, rewards, next_states: ``[episode, round]``; labels count from 0.
        greedy: ``a*_t``, the greedy action at ``s_{t+1}`` by the table after the update, ``[episode, round]``.
        q_tables: ``[episode, round + 1, state, action]``; entry t is the table before round t.
        mdps: the MDP of each episode; None where it is not known, as in recorded data: only what plays or plans in it
            needs it.
        alpha, gamma: learning rate in (0, 1] and discount in [0, 1) of the tables.
        epsilon: exploration rate of each episode; NaN where the behaviour has none.
        noise: the draw that decides how the next round's action is chosen, ``[episode, round]``: 0 greedily, a + 1 for
            action a at random; 0 in the last round. None where it is not known, as in recorded data.

    Raises:
        InputError: tables that the transitions do not produce, or targets that are not greedy.
    """

    task: ClassVar[str] = "qlearning"
    round_arrays: ClassVar[tuple[str, ...]] = _TRANSITIONS

    states: NDArray[Any]
    actions: NDArray[Any]
    rewards: NDArray[Any]
    next_states: NDArray[Any]
    greedy: NDArray[Any]
    q_tables: NDArray[Any]
    mdps: MDPs | None
    alpha: float
    gamma: float
    epsilon: NDArray[Any]
    regime: str = "custom"
    seed: int = 0
    noise: NDArray[Any] | None = None

    def __post_init__(self) -> None:
        check_fields(self)
        bellman.check_rates(self.alpha, self.gamma)
        tables = episode_array("q_tables", self.q_tables, "episode, round + 1, state, action")
        n, n_states, n_actions = len(tables), tables.shape[2], tables.shape[3]
        known = self.mdps
        require(
            known is None
            or (len(known), known.n_states, known.n_actions) == (n, n_states, n_actions),
            f"q_tables have {n} rows but there are {0 if known is None else len(known)} MDPs, or other states and "
            f"actions than in q_tables {tables.shape}; give one MDP per episode",
        )
        names = (*_TRANSITIONS, "greedy", *(["noise"] * (self.noise is not None)))
        arrays = _by_round({name: getattr(self, name) for name in names}, n, n_states, n_actions)
        expected = (n, arrays["states"].shape[1] + 1, n_states, n_actions)
        require(
            tables.shape == expected, f"q_tables must have shape {expected}, got {tables.shape}"
        )
        epsilon = check_epsilon(self.epsilon)
        require(
            epsilon.shape == (n,),
            f"epsilon must have one entry per episode ({n}), got {epsilon.shape}",
        )
        freeze(self, **arrays, q_tables=tables, epsilon=epsilon)
        super().__post_init__()
        self._check_tables()

    def _check_tables(self) -> None:
        before, after = self.q_tables[:, :-1], self.q_tables[:, 1:]
        at = (*np.indices(self.states.shape), self.states, self.actions)
        target = self.rewards + self.gamma * self.next_values_before.max(-1)
        change = self.alpha * (target - before[at]) * self.counted
        residual = after - before
        residual[at] -= change
        scale = 1 + np.abs(self.q_tables).max(initial=0)
        wrong = np.abs(residual).max(initial=0)
        require(
            bool(wrong <= _TABLE_TOLERANCE * scale),
            f"q_tables differ from Q-learning with alpha={self.alpha}, gamma={self.gamma} on these transitions by up "
            f"to {wrong:.3g}; build the episodes with MDPEpisodes.from_transitions, which learns the tables",
        )
        values = self.next_values_after
        chosen = bellman.entries_at(values, self.greedy)
        require(
            bool(
                (chosen >= values.max(-1, initial=-np.inf) - _TABLE_TOLERANCE * scale)[
                    self.counted
                ].all()
            ),
            "greedy holds an action that is not greedy at the next state by the table after the update; "
            "build the episodes with MDPEpisodes.from_transitions",
        )

    @classmethod
    @checked
    def from_transitions(
        cls,
        mdps: MDPs | None,
        states: ArrayLike,
        actions: ArrayLike,
        rewards: ArrayLike,
        next_states: ArrayLike,
        *,
        alpha: float = 0.1,
        gamma: float = 0.9,
        epsilon: float | NDArray[np.float64] = float("nan"),
        initial: NDArray[np.float64] | None = None,
        regime: str = "custom",
        seed: int = 0,
        noise: ArrayLike | None = None,
        n_states: int | None = None,
        n_actions: int | None = None,
        missing: ArrayLike | None = None,
        participants: Any = None,
    ) -> MDPEpisodes:
        """Episodes from transitions alone: the tables are learned from them, starting at ``initial`` (0 when None).

        Args:
            mdps: the MDP of each episode; None for recorded data.
            states, actions, rewards, next_states: ``[episode, round]``; labels count from 0.
            noise: as above, where it is known.
            n_states, n_actions: for recorded data, how many there are; one more than the largest label when None.
            missing, participants: as in :class:`interp.core.task.BaseEpisodes`; a missing round
            leaves the table as it is.

        >>> MDPEpisodes.from_transitions(None, [[0, 1]], [[1, 0]], [[1.0, 0.0]], [[1, 0]], n_states=3).q_tables.shape
        (1, 3, 3, 2)
        """
        bellman.check_rates(alpha, gamma)
        require(
            mdps is None or n_states is n_actions is None,
            "MDPs have their own sizes; leave out n_states, n_actions",
        )
        n_states = (
            mdps.n_states
            if mdps is not None
            else _as_many("n_states", n_states, states, next_states)
        )
        n_actions = (
            mdps.n_actions if mdps is not None else _as_many("n_actions", n_actions, actions)
        )
        n = len(array_of("states", states) if mdps is None else mdps)
        given = dict(zip(_TRANSITIONS, (states, actions, rewards, next_states), strict=True))
        made = _by_round(given, n, n_states, n_actions)
        start = np.zeros((n, n_states, n_actions)) if initial is None else initial
        gone = None if missing is None else array_of("missing", missing).astype(bool)
        tables = bellman.replay_tables(
            **made, initial=start, alpha=alpha, gamma=gamma, missing=gone
        )
        greedy = bellman.rows_at(tables[:, 1:], made["next_states"]).argmax(-1)
        learner, draws = (
            (alpha, gamma, np.full(n, 1.0) * epsilon),
            None if noise is None else np.asarray(noise),
        )
        what: Any = (*made.values(), greedy, tables, mdps, *learner, regime, seed, draws)
        return cls(*what, missing=gone, participants=participants)

    @classmethod
    def of(cls, **given: Any) -> MDPEpisodes:
        """Episodes of unequal length, as of :class:`interp.core.task.BaseEpisodes`, by :meth:`from_transitions`."""
        return cls.from_transitions(**{"mdps": None, **padded(_TRANSITIONS, given)})

    @checked
    def relearned(
        self,
        alpha: float | None = None,
        gamma: float | None = None,
        transitions: Mapping[str, NDArray[Any]] | None = None,
    ) -> MDPEpisodes:
        """The tables and targets of another learning rate or discount, or of other transitions.

        ``transitions`` are arrays ``[episode, round]`` in place of these episodes', by a name of :data:`_TRANSITIONS`.
        """
        changed = transitions or {}
        for name in changed:
            require_known("array of transitions", name, (*_TRANSITIONS, "missing"))
        kept = [*_TRANSITIONS, "epsilon", "regime", "seed", "noise", "missing", "participants"]
        kept += ["n_states", "n_actions"] if self.mdps is None else []
        given: dict[str, Any] = {**{name: getattr(self, name) for name in kept}, **changed}
        given["alpha"], given["gamma"] = (
            self.alpha if alpha is None else alpha,
            self.gamma if gamma is None else gamma,
        )
        return MDPEpisodes.from_transitions(self.mdps, **given, initial=self.q_tables[:, 0])

    def _with_rounds(self, arrays: Mapping[str, Any]) -> MDPEpisodes:
        return replace(self, noise=None).relearned(transitions=arrays)

    n_rounds = length_of("states", 1, "Rounds of the longest episode.")
    n_states = length_of("q_tables", 2, "States of every MDP.")
    n_actions = length_of("q_tables", 3, "Actions of every MDP.")

    @property
    def known_mdps(self) -> MDPs:
        """:attr:`mdps`, for what cannot do without them."""
        if self.mdps is None:
            raise InputError(
                "the MDPs of these recorded episodes are not known, and this plays or plans in them; give the episodes "
                "their mdps"
            )
        return self.mdps

    @property
    def next_values_after(self) -> Float[np.ndarray, "episode round action"]:
        """``Q_{t+1}(s_{t+1}, .)``, the values that ``greedy`` maximises."""
        return bellman.rows_at(self.q_tables[:, 1:], self.next_states)

    @property
    def next_values_before(self) -> Float[np.ndarray, "episode round action"]:
        """``Q_t(s_{t+1}, .)``, the values that the update bootstraps from."""
        return bellman.rows_at(self.q_tables[:, :-1], self.next_states)

    @property
    def greedy_sets(self) -> Bool[np.ndarray, "episode round action"]:
        """Every greedy action of the table after the update, ties included."""
        return bellman.greedy_sets(self.next_values_after)

    def permuted(
        self, states: Int[np.ndarray, "episode state"], actions: Int[np.ndarray, "episode action"]
    ) -> MDPEpisodes:
        """The same episodes under new labels (see :meth:`MDPs.permuted`); target ties go to the lowest new label."""
        rows = np.arange(len(self))[:, None]
        old_states = inverse_labels("states", states, len(self), self.n_states)
        old_actions = inverse_labels("actions", actions, len(self), self.n_actions)
        tables = self.q_tables[rows[..., None], :, old_states[:, :, None], old_actions[:, None, :]]
        tables = np.ascontiguousarray(np.moveaxis(tables, 3, 1))
        following = states[rows, self.next_states]
        draws = np.concatenate([np.zeros((len(self), 1), np.int64), actions + 1], 1)
        moved: dict[str, Any] = {
            "states": states[rows, self.states],
            "actions": actions[rows, self.actions],
        }
        moved |= {"next_states": following, "q_tables": tables}
        moved["greedy"] = bellman.rows_at(tables[:, 1:], following).argmax(-1)
        moved["mdps"] = None if self.mdps is None else self.mdps.permuted(states, actions)
        return replace(self, **moved, noise=None if self.noise is None else draws[rows, self.noise])


@checked
def read(
    path: str | Path,
    *,
    alpha: float = 0.1,
    gamma: float = 0.9,
    **columns: Any,
) -> MDPEpisodes:
    """Read recorded transitions from a table with a row a trial, as :func:`interp.tasks.bandit.read` does.

    Columns are named by ``participant``, ``session``, ``order``, ``state``, ``action``, ``reward`` and ``next_state``;
    labels of states and of actions become 0, 1, ... in sorted order. ``missed``, ``scale``, ``lookalikes``,
    ``most_arms`` (of states, too), ``encoding`` and ``decimal`` are as there.

    Args:
        path: of the table.
        alpha, gamma: of the tables that the transitions make.
        columns: names of columns, and how the table is read.
    """
    from interp.tasks.trials import open_trials, split_options

    named, options = split_options(columns)
    roles = ("state", "next_state", "action", "reward")
    table = open_trials(path, roles, named, options, lists=("reward", "session"))
    places = [table.texts("state"), table.texts("next_state")]
    (state, next_state), states = table.code("state", places)
    (action,), actions = table.code("action", [table.texts("action")])
    acted = state.iloc[:, 0].notna() & action.iloc[:, 0].notna() & next_state.iloc[:, 0].notna()
    rewards = table.rewards(acted)
    counted = acted & rewards.notna()
    scaled, scale = table.scaled(rewards.where(counted))
    sessions = table.played(table.sessions(), counted, "state, next_state, action and reward")
    episodes = MDPEpisodes.of(
        states=table.by_session(sessions, state.iloc[:, 0]),
        actions=table.by_session(sessions, action.iloc[:, 0]),
        next_states=table.by_session(sessions, next_state.iloc[:, 0]),
        rewards=table.by_session(sessions, scaled),
        n_states=len(states),
        n_actions=len(actions),
        participants=[who for who, _ in sessions],
        regime="recorded",
        alpha=alpha,
        gamma=gamma,
    )
    return replace(episodes, reading=table.said(sessions, counted, scale))


def _by_round(
    arrays: Mapping[str, Any], n: int, n_states: int, n_actions: int
) -> dict[str, NDArray[Any]]:
    """Arrays ``[episode, round]`` of ``n`` episodes, states first: labels, the draws of ``noise``, and rewards."""
    most = {"states": n_states - 1, "next_states": n_states - 1, "noise": n_actions}
    most |= dict.fromkeys(("actions", "greedy"), n_actions - 1)
    found: dict[str, NDArray[Any]] = {}
    for name, values in arrays.items():
        low, high = (0, most[name]) if name in most else (-np.inf, np.inf)
        found[name] = episode_array(name, values, "episode, round", low, high, whole=name in most)
        wanted, shape = (n, found["states"].shape[1]), found[name].shape
        require(
            shape == wanted,
            f"{name} must be [episode, round] = {wanted}, one MDP and table each, got {shape}",
        )
    return found


def _as_many(name: str, number: int | None, *labels: ArrayLike) -> int:
    """``number``, or one more than the largest label when it is None."""
    seen = [array_of("labels", values) for values in labels]
    if number is None:
        require(
            all(values.size > 0 for values in seen),
            f"there are no transitions to count from; give {name}=",
        )
        number = 1 + int(max(values.max() for values in seen))
    return integer(name, number, 1)


def check_epsilon(epsilon: ArrayLike) -> NDArray[np.float64]:
    """Exploration rates in [0, 1]; NaN means that the behaviour has none."""
    values = array_of("epsilon", epsilon).astype(np.float64)
    for wrong in values[(values < 0) | (values > 1)][:1]:
        raise InputError(f"epsilon must lie in [0, 1], got {wrong}")
    return values


# One batch of episodes, or several of different sizes.

Batches = MDPEpisodes | Iterable[MDPEpisodes]


def as_batches(episodes: Batches) -> tuple[MDPEpisodes, ...]:
    """One batch, or several of different sizes, as a tuple."""
    batches = (episodes,) if isinstance(episodes, MDPEpisodes) else tuple(episodes)
    require(len(batches) > 0, "no episodes were given; pass one batch of MDPEpisodes or several")
    for batch in batches:
        require(
            isinstance(batch, MDPEpisodes),
            f"expected batches of MDPEpisodes, got {type(batch).__name__}",
        )
    return batches


def one_each(name: str, arrays: Any, episodes: Batches) -> list[tuple[Any, MDPEpisodes]]:
    """Every batch with its array; ``arrays`` is the array itself where ``episodes`` is one batch."""
    batches = as_batches(episodes)
    single = isinstance(episodes, MDPEpisodes)
    require(
        single or isinstance(arrays, Sequence | np.ndarray),
        f"{name} are one array for each batch, got {arrays!r}",
    )
    listed = [arrays] if single else list(arrays)
    require(
        len(listed) == len(batches),
        f"got {len(listed)} arrays of {name} for {len(batches)} batches; give one each",
    )
    return list(zip(listed, batches, strict=True))


def drawn_from(batches: Sequence[MDPEpisodes], **settings: Any) -> dict[str, Any]:
    """The provenance of a result on batches: their regimes and seeds, then ``settings``."""
    regimes, seeds = sorted({b.regime for b in batches}), sorted({b.seed for b in batches})
    return provenance(regimes=regimes, seeds=seeds, **settings)
