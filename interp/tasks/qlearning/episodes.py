"""Episodes of Q-learning, with the Q-table before and after every round.

:class:`MDPEpisodes` has one MDP per episode. A round's target action
``a*_t = argmax_a Q_{t+1}(s_{t+1}, a)`` uses the table *after* the round's update (paper, appendix
F.2). The handwired circuit chooses before it updates, and so uses ``Q_t``; the two actions can
differ only if ``s_{t+1} = s_t``.

All episodes of a batch have the same numbers of states and actions. An episode that ends early has
missing rounds (:class:`interp.core.task.BaseEpisodes`). A terminal state can also be written as a
state that leads to itself.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from jaxtyping import Bool, Float, Int
from numpy.typing import ArrayLike, NDArray

from interp.core.task import BaseEpisodes, episode_array, length_of, pad_rounds, set_frozen_fields
from interp.support.checks import (
    array_of,
    check_fields,
    check_type,
    checked,
    integer,
    refuse_beyond_machine,
)
from interp.support.errors import InputError, require, require_known
from interp.support.provenance import provenance
from interp.tasks.qlearning import bellman
from interp.tasks.qlearning.mdps import MDPs, invert_labels

__all__ = ["MDPEpisodes", "MDPs", "check_epsilon"]

_TABLE_TOLERANCE = 1e-9

_TRANSITIONS = ("states", "actions", "rewards", "next_states")
"""Names of the arrays ``[episode, round]`` that describe what happened."""
_KEPT_BY_RELEARN = (
    "alpha",
    "gamma",
    "epsilon",
    "regime",
    "seed",
    "noise",
    "missing",
    "participants",
    "reading",
)
"""Fields that :meth:`MDPEpisodes.relearn` keeps."""


@dataclass(frozen=True, eq=False, repr=False)
class MDPEpisodes(BaseEpisodes):
    """A batch of episodes in which an agent acts in MDPs, with the Q-tables that tabular Q-learning
    computes from its actions.

    Attributes:
        states, actions, rewards, next_states: transitions, ``[episode, round]``; states and actions
            are numbered from 0.
        greedy: the action that models must predict in each round, ``[episode, round]``: the action
            with the largest value at the round's next state, in the table after the update.
        q_tables: ``[episode, round + 1, state, action]``; index t is the table before round t.
        mdps: the MDP of each episode; None if unknown, as in recorded data. Only planning and
            acting need the MDPs.
        alpha, gamma: learning rate in (0, 1] and discount in [0, 1) of the tables.
        epsilon: exploration rate of each episode, ``[episode]``; NaN if the agent has none.
        regime: name of the regime of MDPs.
        seed: seed of the sampler.
        noise: random draw that determines how the action of the *next* round is chosen, ``[episode,
            round]``: 0 for the greedy action, a + 1 for the random action a. The last round has 0.
            None if unknown, as in recorded data.

    Raises:
        InputError: ``q_tables`` do not follow from the transitions, or an action in ``greedy`` does
            not have the largest value.
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
        """Check the fields, also that the Q-tables follow from the transitions, and store arrays in
        place of what the user gave.
        """
        check_fields(self)
        bellman.check_rates(self.alpha, self.gamma)
        tables = episode_array("q_tables", self.q_tables, "episode, round + 1, state, action")
        shape, mdps = tables.shape, self.mdps
        n_episodes, _, n_states, n_actions = shape
        if mdps is not None:
            require(
                mdps.rewards.shape == (n_episodes, n_states, n_actions),
                f"q_tables have {n_episodes} rows but there are {len(mdps)} MDPs, or other states "
                f"and actions than in q_tables {shape}; give one MDP per episode",
            )
        by_round = {name: getattr(self, name) for name in (*_TRANSITIONS, "greedy", "noise")}
        if self.noise is None:
            del by_round["noise"]
        arrays = _check_rounds(by_round, n_episodes, n_states, n_actions)
        n_rounds = arrays["states"].shape[1]
        expected = (n_episodes, n_rounds + 1, n_states, n_actions)
        require(shape == expected, f"q_tables must have shape {expected}, got {shape}")
        epsilon = check_epsilon(self.epsilon)
        require(
            epsilon.shape == (n_episodes,),
            f"epsilon must have one entry per episode ({n_episodes}), got {epsilon.shape}",
        )
        set_frozen_fields(self, **arrays, q_tables=tables, epsilon=epsilon)
        super().__post_init__()
        self._check_tables()

    def _check_tables(self) -> None:
        """Raise InputError if the Q-tables do not follow from the transitions, or if an action in
        ``greedy`` is not greedy.
        """
        tables, states = self.q_tables, self.states
        before, after = tables[:, :-1], tables[:, 1:]
        # Index of the entry that each round updates; arrays at it are [episode, round].
        updated = (*np.indices(states.shape), states, self.actions)
        target = self.rewards + self.gamma * self.next_values_before.max(-1)
        expected = before.copy()
        td_error = target - before[updated]
        expected[updated] += self.alpha * td_error * self.counted
        largest_gap = np.abs(after - expected).max(initial=0)
        tolerance = _TABLE_TOLERANCE * (1 + np.abs(tables).max(initial=0))
        require(
            largest_gap <= tolerance,
            f"q_tables differ from Q-learning with alpha={self.alpha}, gamma={self.gamma} on these transitions by up "
            f"to {largest_gap:.3g}; build the episodes with MDPEpisodes.from_transitions, which learns the tables",
        )
        values = self.next_values_after
        shortfall = values.max(-1) - bellman.take_entries(values, self.greedy)
        require(
            (shortfall <= tolerance)[self.counted].all(),
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
        reading: Any = None,
    ) -> MDPEpisodes:
        """Make episodes from transitions; the Q-tables are computed from them.

        Args:
            mdps: the MDP of each episode; None for recorded data.
            states, actions, rewards, next_states: transitions, ``[episode, round]``; states and
                actions are numbered from 0.
            alpha: learning rate in (0, 1].
            gamma: discount in [0, 1).
            epsilon: exploration rate: one number, or one per episode; NaN if the agent has none.
            regime: name of the regime of MDPs.
            seed: seed of the sampler.
            noise: random draw that determines how the action of the next round is chosen,
                ``[episode, round]``: 0 for the greedy action, a + 1 for the random action a. None
                if unknown.
            initial: the Q-tables before the first round, ``[episode, state, action]``; zeros when
                None.
            n_states, n_actions: numbers of states and of actions, if ``mdps`` is None; when None,
                one more than the largest number that occurs.
            missing: True for rounds that did not take place, which leave the table unchanged,
                ``[episode, round]``. None if all rounds took place.
            participants: name or number of each episode's participant; None if episodes are
                independent.
            reading: how the table that the episodes come from was read; None if they come from
                no table.

        >>> MDPEpisodes.from_transitions(None, [[0, 1]], [[1, 0]], [[1.0, 0.0]], [[1, 0]], n_states=3).q_tables.shape
        (1, 3, 3, 2)
        """
        bellman.check_rates(alpha, gamma)
        if mdps is None:
            n_episodes = len(array_of("states", states))
            n_states = _count_labels("n_states", n_states, states, next_states)
            n_actions = _count_labels("n_actions", n_actions, actions)
        else:
            sizes_are_free = n_states is None and n_actions is None
            require(sizes_are_free, "MDPs have their own sizes; leave out n_states, n_actions")
            n_episodes, n_states, n_actions = mdps.rewards.shape
        _refuse_large(n_episodes, np.shape(states), n_states, n_actions)
        arrays = dict(zip(_TRANSITIONS, (states, actions, rewards, next_states), strict=True))
        transitions = _check_rounds(arrays, n_episodes, n_states, n_actions)
        first_tables = np.zeros((n_episodes, n_states, n_actions)) if initial is None else initial
        is_missing = None if missing is None else array_of("missing", missing).astype(bool)
        tables = bellman.replay_tables(
            **transitions, initial=first_tables, alpha=alpha, gamma=gamma, missing=is_missing
        )
        next_values = bellman.take_rows(tables[:, 1:], transitions["next_states"])
        return cls(
            **transitions,
            greedy=next_values.argmax(-1),
            q_tables=tables,
            mdps=mdps,
            alpha=alpha,
            gamma=gamma,
            epsilon=np.broadcast_to(np.asarray(epsilon, float), (n_episodes,)).copy(),
            regime=regime,
            seed=seed,
            noise=None if noise is None else np.asarray(noise),
            missing=is_missing,
            participants=participants,
            reading=reading,
        )

    @classmethod
    def of(cls, **values: Any) -> MDPEpisodes:
        """Make a batch of episodes of unequal length, with Q-tables that are computed from the
        transitions.

        Args:
            values: arguments of :meth:`from_transitions` by name. ``states``, ``actions``,
                ``rewards`` and ``next_states`` are lists with one list of rounds per episode.
        """
        return cls.from_transitions(**{"mdps": None, **pad_rounds(_TRANSITIONS, values)})

    @checked
    def relearn(
        self,
        alpha: float | None = None,
        gamma: float | None = None,
        transitions: Mapping[str, NDArray[Any]] | None = None,
    ) -> MDPEpisodes:
        """Return a copy of the episodes with another learning rate, another discount or other
        transitions. The copy's Q-tables and greedy actions are computed anew.

        Args:
            alpha: learning rate; that of these episodes when None.
            gamma: discount; that of these episodes when None.
            transitions: new arrays ``[episode, round]`` by name, such as "rewards"; other arrays
                stay unchanged.
        """
        changed = {} if transitions is None else transitions
        for name in changed:
            require_known("array of transitions", name, (*_TRANSITIONS, "missing"))
        # All fields but the Q-tables and what follows from them.
        names = [*_TRANSITIONS, *_KEPT_BY_RELEARN]
        if self.mdps is None:  # otherwise the MDPs have these sizes
            names += ["n_states", "n_actions"]
        fields = {name: getattr(self, name) for name in names} | dict(changed)
        if alpha is not None:
            fields["alpha"] = alpha
        if gamma is not None:
            fields["gamma"] = gamma
        return MDPEpisodes.from_transitions(self.mdps, **fields, initial=self.q_tables[:, 0])

    def _with_rounds(self, arrays: Mapping[str, Any]) -> MDPEpisodes:
        return replace(self, noise=None).relearn(transitions=arrays)

    n_rounds = length_of("states", 1, "Rounds of the longest episode.")
    n_states = length_of("q_tables", 2, "States of every MDP.")
    n_actions = length_of("q_tables", 3, "Actions of every MDP.")

    @property
    def known_mdps(self) -> MDPs:
        """The field :attr:`mdps`. Reading this property raises InputError if the MDPs are unknown."""
        if self.mdps is None:
            raise InputError(
                "the MDPs of these recorded episodes are not known, and this plays or plans in them; give the episodes "
                "their mdps"
            )
        return self.mdps

    @property
    def next_values_after(self) -> Float[np.ndarray, "episode round action"]:
        """``Q_{t+1}(s_{t+1}, .)``: values of all actions at the next state, from the Q-table after
        the round's update. The action in the field ``greedy`` has the largest of these values.
        """
        return bellman.take_rows(self.q_tables[:, 1:], self.next_states)

    @property
    def next_values_before(self) -> Float[np.ndarray, "episode round action"]:
        """``Q_t(s_{t+1}, .)``: values of all actions at the next state, from the Q-table before the
        round's update. The update bootstraps from them.
        """
        return bellman.take_rows(self.q_tables[:, :-1], self.next_states)

    @property
    def greedy_sets(self) -> Bool[np.ndarray, "episode round action"]:
        """True for every action that is greedy at the next state, by the Q-table after the round's
        update; all tied actions are True.
        """
        return bellman.greedy_sets(self.next_values_after)

    def permute(
        self, states: Int[np.ndarray, "episode state"], actions: Int[np.ndarray, "episode action"]
    ) -> MDPEpisodes:
        """Return the same episodes with renumbered states and actions.

        If several actions are greedy, the field ``greedy`` has the lowest of their new numbers.

        Args:
            states: new number of each state, ``[episode, state]``.
            actions: new number of each action, ``[episode, action]``.
        """
        n_episodes = len(self)
        rows = np.arange(n_episodes)[:, None]  # [episode, 1]
        old_states = invert_labels("states", states, n_episodes, self.n_states)
        old_actions = invert_labels("actions", actions, n_episodes, self.n_actions)
        # Tables [episode, round, state, action], with new numbers of states, then also of actions.
        new_by_state = np.take_along_axis(self.q_tables, old_states[:, None, :, None], 2)
        tables = np.take_along_axis(new_by_state, old_actions[:, None, None, :], 3)
        mdps = None if self.mdps is None else self.mdps.permute(states, actions)
        new_states, new_actions = states[rows, self.states], actions[rows, self.actions]
        next_states = states[rows, self.next_states]
        noise = self.noise
        if noise is not None:
            # New draw for every old draw, [episode, draw]: 0 stays 0, since it means no action.
            new_draws = np.pad(actions + 1, ((0, 0), (1, 0)))
            noise = new_draws[rows, noise]
        return replace(
            self,
            states=new_states,
            actions=new_actions,
            next_states=next_states,
            q_tables=tables,
            greedy=bellman.take_rows(tables[:, 1:], next_states).argmax(-1),
            mdps=mdps,
            noise=noise,
        )


@checked
def read(
    path: str | Path,
    *,
    alpha: float = 0.1,
    gamma: float = 0.9,
    **columns: Any,
) -> MDPEpisodes:
    """Read recorded transitions from a table with one row per trial, and return them as episodes.

    The labels of states and of actions become 0, 1, ... in sorted order. Each session of a
    participant becomes one episode.

    Args:
        path: the file: CSV, or JSON lines; plain or compressed.
        alpha, gamma: learning rate and discount of the Q-tables that are computed.
        columns: names of columns by role: ``participant``, ``session``, ``order``, ``state``,
            ``action``, ``reward`` and ``next_state``. Further options are ``missed``, ``scale``,
            ``lookalikes``, ``most_arms`` (the limit for states, too), ``encoding`` and ``decimal``,
            with the meaning that they have in :func:`interp.tasks.bandit.read`.
    """
    import pandas as pd

    from interp.tasks.trials import open_trials, split_options

    named, options = split_options(columns)
    roles = ("state", "next_state", "action", "reward")
    table = open_trials(path, roles, named, options, lists=("reward", "session"))
    state_frames = [table.read_labels("state"), table.read_labels("next_state")]
    (state, next_state), states = table.number_labels("state", state_frames)
    (action,), actions = table.number_labels("action", [table.read_labels("action")])
    labels_of_trial = pd.concat([state, action, next_state], axis=1)
    is_complete = labels_of_trial.notna().all(axis=1)
    rewards = table.read_rewards(is_complete)
    counted = is_complete & rewards.notna()
    # Rewards of incomplete trials are left out, so that the scale does not depend on them.
    scaled, scale = table.scale_rewards(rewards.where(counted))
    # Pairs of a participant and the index of the session's rows.
    sessions = table.select_sessions(
        table.find_sessions(), counted, "state, next_state, action and reward"
    )
    frames = {"states": state, "actions": action, "next_states": next_state}
    labels = {
        name: table.split_by_session(sessions, cells.iloc[:, 0]) for name, cells in frames.items()
    }
    return MDPEpisodes.of(
        **labels,
        rewards=table.split_by_session(sessions, scaled),
        n_states=len(states),
        n_actions=len(actions),
        participants=[who for who, _ in sessions],
        regime="recorded",
        alpha=alpha,
        gamma=gamma,
        reading=table.make_report(sessions, counted, scale),
    )


def _check_rounds(
    arrays: Mapping[str, Any], n_episodes: int, n_states: int, n_actions: int
) -> dict[str, NDArray[Any]]:
    """Check arrays ``[episode, round]`` of transitions, and return them by name: integers for
    states, actions and draws, floats for rewards.

    Args:
        arrays: the arrays by name, such as "states", which comes first.
        n_episodes: number of episodes.
        n_states: number of states.
        n_actions: number of actions.
    """
    largest_number = {
        "states": n_states - 1,
        "next_states": n_states - 1,
        "actions": n_actions - 1,
        "greedy": n_actions - 1,
        "noise": n_actions,  # 0 is no random action, and a + 1 is action a
    }
    checked_arrays: dict[str, NDArray[Any]] = {}
    for name, values in arrays.items():
        if name in largest_number:
            array = episode_array(
                name, values, "episode, round", low=0, high=largest_number[name], whole=True
            )
        else:
            array = episode_array(name, values, "episode, round")
        checked_arrays[name] = array
        wanted = (n_episodes, checked_arrays["states"].shape[1])
        require(
            array.shape == wanted,
            f"{name} must be [episode, round] = {wanted}, one MDP and table each, got {array.shape}",
        )
    return checked_arrays


def _count_labels(name: str, number: int | None, *labels: ArrayLike) -> int:
    """Return the number of states or of actions: ``number`` or, if that is None, one more than the
    largest index that occurs.

    Args:
        name: name of the number in the error message.
        number: the number that the user gave; None if there is none.
        labels: arrays with the indices that occur.
    """
    if number is not None:
        return integer(name, number, 1)
    seen = [array_of("labels", values) for values in labels]
    require(
        all(values.size > 0 for values in seen),
        f"there are no transitions to count from; give {name}=",
    )
    largest = max(values.max() for values in seen)
    return 1 + int(largest)


def _refuse_large(n_episodes: int, shape: tuple[int, ...], n_states: int, n_actions: int) -> None:
    """Raise InputError if the Q-tables for some transitions would not fit into this machine's
    memory.

    Args:
        n_episodes: number of episodes.
        shape: shape of the transitions, (number of episodes, number of rounds).
        n_states, n_actions: numbers of states and of actions.
    """
    n_rounds = shape[1] if len(shape) > 1 else 1  # a wrong shape is refused later
    n_numbers = n_episodes * (n_rounds + 1) * n_states * n_actions
    refuse_beyond_machine(
        f"{n_episodes} episodes of {n_rounds} rounds in {n_states} states with {n_actions} actions",
        32.0 * n_numbers,  # for four arrays: tables, previous tables, expected tables, differences
    )


def check_epsilon(epsilon: ArrayLike) -> NDArray[np.float64]:
    """Return exploration rates ``epsilon``, one or several, as an array of floats.

    NaN means that an agent has no rate.

    Raises:
        InputError: a rate is not in [0, 1].
    """
    values = array_of("epsilon", epsilon).astype(float)
    is_wrong = (values < 0) | (values > 1)  # False for NaN
    for wrong in values[is_wrong][:1]:  # the first wrong rate, if there is one
        raise InputError(f"epsilon must lie in [0, 1], got {wrong}")
    return values


# One batch of episodes, or several of different sizes.

Batches = MDPEpisodes | Iterable[MDPEpisodes]


def list_batches(episodes: Batches) -> tuple[MDPEpisodes, ...]:
    """Return the batches of episodes in an argument as a tuple.

    Args:
        episodes: one batch, or an iterable of batches, which may have different sizes.
    """
    batches = (episodes,) if isinstance(episodes, MDPEpisodes) else tuple(episodes)
    require(batches, "no episodes were given; pass one batch of MDPEpisodes or several")
    for batch in batches:
        check_type("episodes", batch, MDPEpisodes)
    return batches


def pair_with_batches(name: str, arrays: Any, episodes: Batches) -> list[tuple[Any, MDPEpisodes]]:
    """Pair every batch of episodes with its array, and return a list of pairs (array, batch).
    Refuse a list of arrays that is shorter or longer than the list of batches.

    Args:
        name: name of the arrays in the error message.
        arrays: a list with one array per batch; if ``episodes`` is a single batch, its array.
        episodes: one batch, or several.
    """
    batches = list_batches(episodes)
    if isinstance(episodes, MDPEpisodes):
        return [(arrays, episodes)]
    require(
        isinstance(arrays, Sequence | np.ndarray),
        f"{name} are one array for each batch, got {arrays!r}",
    )
    n_arrays, n_batches = len(arrays), len(batches)
    require(
        n_arrays == n_batches,
        f"got {n_arrays} arrays of {name} for {n_batches} batches; give one each",
    )
    return list(zip(arrays, batches, strict=True))


def describe_draw(batches: Sequence[MDPEpisodes], **settings: Any) -> dict[str, Any]:
    """Return the settings that are stored with a result, {name: value}: the "regimes" and "seeds"
    of the batches that it was computed from, versions of the software, and ``settings``.
    """
    regimes = sorted({batch.regime for batch in batches})
    seeds = sorted({batch.seed for batch in batches})
    return provenance(regimes=regimes, seeds=seeds, **settings)
