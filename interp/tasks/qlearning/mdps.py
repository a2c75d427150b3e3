"""Batches of finite MDPs, and the regimes that they are sampled from.

    P(s' | s, a): probability of the next state s';  r(s, a): reward, any finite number

A regime combines families of reward distributions with concentrations of the Dirichlet distribution
of transitions. The training regime "grid" is the 6 x 3 grid of the paper (appendix F.2). It has six
reward families, and transitions of concentration .1 (nearly deterministic), 1 and 5 (diffuse), all
combinations equally often. The other regimes are for evaluation: single reward families with the
same concentrations, shifts away from training, and two tasks where control matters.

Rewards are fixed within an episode, as in the paper's r_t = R(s_t, a_t). The paper describes its
Bernoulli family in two ways, and both are here. "bernoulli", part of the grid, pays R(s, a) ~
U[.1, .9] itself. "bernoulli-draws" pays 1 with that probability and 0 otherwise; in the grid it
would raise the share of steps with ties from 12.5 % to 14 %. "coin" draws each R(s, a) from {0, 1}
once.

Of the 4-state, 2-action chain the paper says only that a_0 is optimal. Here action 0 steps right,
every other action steps left, and only action 0 in the last state pays 1. Of the ladder the paper
gives only returns over 50 rounds (optimal 48.3, random 1.7). The ladder here has 8 states, 3
actions and a uniform start. Action 0 climbs by 1, the others fall by 2, and the reward is (height /
7)^2. Its exact expected returns are 48.50 and 1.97; no other variant that was tried came closer.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from itertools import product
from typing import Any

import numpy as np
from jaxtyping import Int
from numpy.typing import ArrayLike, NDArray

from interp.core.task import chosen_indices, episode_array, length_of, set_frozen_fields
from interp.support.checks import (
    array_of,
    checked,
    checked_fields,
    index_by_key,
    refuse_beyond_machine,
)
from interp.support.errors import InputError, require

_ROW_TOLERANCE = 1e-8


@dataclass(frozen=True, eq=False)
class MDPs:
    """A batch of finite MDPs with the same numbers of states and actions.

    Attributes:
        transitions: P(s' | s, a), ``[episode, state, action, next state]``.
        rewards: r(s, a), ``[episode, state, action]``; from 0 to 1 in the paper.
        families: name of each MDP's family of reward distributions; "custom" by default.
        concentrations: concentration of the Dirichlet distribution from which each MDP's
            transitions were drawn, ``[episode]``; NaN if they were not drawn from one.
        bernoulli: ``[episode]``, True for MDPs that pay 1 with probability r(s, a) and 0 otherwise;
            False for MDPs that pay r(s, a) itself.

    >>> MDPs(transitions=np.full((1, 2, 3, 2), 0.5), rewards=np.zeros((1, 2, 3))).n_actions
    3
    """

    transitions: NDArray[Any]
    rewards: NDArray[Any]
    families: tuple[str, ...] = ()
    concentrations: NDArray[Any] = field(default_factory=lambda: np.empty(0))
    bernoulli: NDArray[Any] = field(default_factory=lambda: np.empty(0, bool))

    def __post_init__(self) -> None:
        """Check the fields, and store arrays in place of what the user gave."""
        transitions = episode_array(
            "transitions", self.transitions, "episode, state, action, next state", low=0
        )
        rewards = episode_array("rewards", self.rewards, "episode, state, action")
        n, n_states, n_actions = rewards.shape
        too_few = f"an MDP needs at least 1 state and 1 action, got {n_states} and {n_actions}"
        require(n_states >= 1 and n_actions >= 1, too_few)
        expected = (n, n_states, n_actions, n_states)
        require(
            transitions.shape == expected,
            f"transitions must have shape [episode, state, action, state] = {expected} to go with rewards "
            f"{rewards.shape}, got {transitions.shape}",
        )
        sums = transitions.sum(-1)
        is_wrong = np.abs(sums - 1) > _ROW_TOLERANCE
        for where in np.argwhere(is_wrong)[:1].tolist():  # the first wrong row, if there is one
            raise InputError(
                f"transitions{where} (episode, state, action) sums to {sums[tuple(where)]:.6g}, not 1; normalise the "
                "rows, and write a terminal state as one that moves to itself, since episodes do not end"
            )
        families = self.families or ("custom",) * n
        concentrations = self._array_or_default("concentrations", np.full(n, np.nan))
        bernoulli = self._array_or_default("bernoulli", np.zeros(n, bool))
        for name, values in (
            ("families", families),
            ("concentrations", concentrations),
            ("bernoulli", bernoulli),
        ):
            require(
                len(values) == n,
                f"{name} must have one entry for each of the {n} MDPs, got {len(values)}",
            )
        success_probabilities = rewards[bernoulli]
        require(
            ((success_probabilities >= 0) & (success_probabilities <= 1)).all(),
            "Bernoulli rewards are probabilities of success and must lie in [0, 1]",
        )
        set_frozen_fields(
            self,
            transitions=transitions,
            rewards=rewards,
            families=families,
            concentrations=concentrations,
            bernoulli=bernoulli,
        )

    def _array_or_default(self, name: str, default: NDArray[Any]) -> NDArray[Any]:
        """Return the field called ``name``, which has one entry per MDP, as an array.

        Args:
            name: name of the field.
            default: array to return if the field is empty. Its dtype is that of the result.
        """
        values = array_of(name, getattr(self, name))
        return values.astype(default.dtype, copy=False) if values.size else default

    def __len__(self) -> int:
        return len(self.rewards)

    n_states = length_of("rewards", 1, "States of every MDP.")
    n_actions = length_of("rewards", 2, "Actions of every MDP.")

    @checked
    def select(self, index: slice | ArrayLike) -> MDPs:
        """Return some of the MDPs as a new batch.

        Args:
            index: a slice, indices (repeats allowed) or a mask.
        """
        chosen = chosen_indices(index, len(self))
        names = ("transitions", "rewards", "concentrations", "bernoulli")
        arrays = {name: getattr(self, name)[chosen] for name in names}
        return MDPs(**arrays, families=tuple(self.families[i] for i in chosen))

    def permute(
        self, states: Int[np.ndarray, "episode state"], actions: Int[np.ndarray, "episode action"]
    ) -> MDPs:
        """Return the same MDPs with renumbered states and actions.

        Args:
            states: new number of each state, ``[episode, state]``.
            actions: new number of each action, ``[episode, action]``.
        """
        n_mdps = len(self)
        old_states = invert_labels("states", states, n_mdps, self.n_states)
        old_actions = invert_labels("actions", actions, n_mdps, self.n_actions)
        rows = np.arange(n_mdps)[:, None, None]
        # An index that selects the old entry for each new pair, [episode, state, action].
        pairs = (rows, old_states[:, :, None], old_actions[:, None, :])
        next_states = old_states[:, None, None, :]
        transitions = np.take_along_axis(self.transitions[pairs], next_states, axis=3)
        return replace(self, transitions=transitions, rewards=self.rewards[pairs])


def invert_labels(name: str, labels: Any, n_episodes: int, size: int) -> NDArray[np.int64]:
    """Invert the permutations by which states or actions are renumbered: for 0 -> 2, 1 -> 0, 2 -> 1
    return 0 -> 1, 1 -> 2, 2 -> 0.

    Args:
        name: name of the array in the error message.
        labels: the new index of every state or action, ``[episode, old index]``.
        n_episodes: number of episodes.
        size: number of states or actions that are renumbered.

    Returns:
        The old index of every state or action, ``[episode, new index]``.

    Raises:
        InputError: a row of ``labels`` is no permutation of 0, ..., ``size`` - 1.
    """
    array = episode_array(name, labels, "episode, label", whole=True)
    wanted = (n_episodes, size)
    is_permutation = array.shape == wanted and np.array_equal(
        np.sort(array, 1), np.broadcast_to(np.arange(size), wanted)
    )
    require(
        is_permutation,
        f"{name} must hold a permutation of 0 to {size - 1} for each of the {n_episodes} episodes, shape {wanted}",
    )
    return np.argsort(array, 1)  # sorting a permutation gives its inverse


_BETAS = {
    "peaked": (2.0, 2.0),
    "bimodal": (0.5, 0.5),
    "uniform": (1.0, 1.0),
    "sparse": (0.2, 2.0),
    "dense": (2.0, 0.2),
    "very-sparse": (0.1, 2.0),
    "concentrated": (10.0, 10.0),
    "high-variance": (0.1, 0.1),
}
"""Parameters of the reward families that are beta distributions."""


def _draw_rewards(
    family: str, rng: np.random.Generator, shape: tuple[int, ...]
) -> NDArray[np.float64]:
    """Sample r(s, a), independently for each state and action.

    For the family "bernoulli-draws", r(s, a) is the probability of a reward of 1.

    Args:
        family: name of the reward family.
        rng: the random generator.
        shape: shape of the result.
    """
    if family in _BETAS:  # beta distributions
        return rng.beta(*_BETAS[family], shape)
    if family == "coin":  # 0 or 1
        return rng.integers(0, 2, shape).astype(float)
    return rng.uniform(0.1, 0.9, shape)  # "bernoulli" and "bernoulli-draws"


@dataclass(frozen=True)
@checked_fields
class MDPRegime:
    """A regime: a named distribution over MDPs, or one fixed MDP.

    Attributes:
        key: name in code and on the command line.
        name: description in words.
        cells: the kinds of MDPs, which occur equally often. A kind is a pair (name of the
            distribution of rewards, concentration of the Dirichlet distribution of transitions),
            such as ("uniform", 1.0). Empty for a fixed MDP.
        build: function ``(n_states, n_actions)`` -> the fixed MDP; None if MDPs are sampled.
    """

    key: str
    name: str
    cells: tuple[tuple[str, float], ...] = ()
    build: Callable[[int, int], MDPs] | None = None


@checked
def chain(n_states: int = 4, n_actions: int = 2) -> MDPs:
    """Make one linear chain as a batch of one MDP: action 0 steps to the right, every other action
    to the left.

    Action 0 in the last state has reward 1; all other rewards are 0.

    Args:
        n_states, n_actions: numbers of states and of actions, at least 2 each.
    """
    transitions = _make_line("chain", n_states, n_actions, step_down=1)
    rewards = np.zeros((1, n_states, n_actions))
    rewards[0, n_states - 1, 0] = 1
    return MDPs(transitions, rewards, families=("chain",))


@checked
def ladder(n_states: int = 8, n_actions: int = 3) -> MDPs:
    """Make one ladder as a batch of one MDP: action 0 climbs one state up, and every other action
    falls two states down.

    The reward is (height that the action reaches / height of the ladder) squared.

    Args:
        n_states, n_actions: numbers of states and of actions, at least 2 each.
    """
    transitions = _make_line("ladder", n_states, n_actions, step_down=2)
    heights = np.linspace(0, 1, n_states)  # as shares of the height of the ladder
    rewards = transitions @ heights**2  # since transitions are 0 or 1: of the next state
    return MDPs(transitions, rewards, families=("ladder",))


def _make_line(kind: str, n_states: int, n_actions: int, step_down: int) -> NDArray[np.float64]:
    """Return the transitions on a line of states: action 0 steps up by one state, every other
    action steps down by ``step_down`` states. A step beyond an end of the line stops at the end.

    Args:
        kind: name of the MDP, for the error if ``n_states`` or ``n_actions`` is below 2.
        n_states, n_actions: numbers of states and of actions, at least 2 each.
        step_down: number of states of a step down.

    Returns:
        Probabilities of a batch of one MDP, ``[1, state, action, next state]``, all 0 or 1.
    """
    require(
        n_states >= 2 and n_actions >= 2,
        f"a {kind} needs at least 2 states and 2 actions, got {n_states} and {n_actions}",
    )
    refuse_beyond_machine(
        f"an MDP of {n_states} states and {n_actions} actions", 8.0 * n_states**2 * n_actions
    )
    states = np.arange(n_states)
    higher = np.minimum(states + 1, n_states - 1)
    lower = np.maximum(states - step_down, 0)
    transitions = np.zeros((1, n_states, n_actions, n_states))
    transitions[0, states, 0, higher] = 1
    transitions[0, states, 1:, lower] = 1
    return transitions


_GRID_FAMILIES = ("peaked", "bimodal", "uniform", "sparse", "dense", "bernoulli")
_GRID_CONCENTRATIONS = (0.1, 1.0, 5.0)


def _make_drawn_regime(
    key: str,
    name: str,
    families: tuple[str, ...],
    kappas: tuple[float, ...] = _GRID_CONCENTRATIONS,
) -> MDPRegime:
    """Make a regime that combines every reward family with every concentration.

    Args:
        key, name: key and name of the regime.
        families: names of the reward families.
        kappas: concentrations of the Dirichlet distribution of transitions.
    """
    return MDPRegime(key, name, cells=tuple(product(families, kappas)))


_DRAWN_REGIMES = (
    _make_drawn_regime("grid", "6 x 3 training grid", _GRID_FAMILIES),
    _make_drawn_regime("peaked", "peaked rewards, Beta(2, 2)", ("peaked",)),
    _make_drawn_regime("bimodal", "bimodal rewards, Beta(.5, .5)", ("bimodal",)),
    _make_drawn_regime("uniform", "uniform rewards, U(0, 1)", ("uniform",)),
    _make_drawn_regime("sparse", "sparse rewards, Beta(.2, 2)", ("sparse",)),
    _make_drawn_regime("dense", "dense rewards, Beta(2, .2)", ("dense",)),
    _make_drawn_regime("bernoulli", "rewards U(.1, .9)", ("bernoulli",)),
    _make_drawn_regime(
        "bernoulli-draws", "Bernoulli rewards, success probability U(.1, .9)", ("bernoulli-draws",)
    ),
    _make_drawn_regime("very-sparse", "very sparse rewards, Beta(.1, 2)", ("very-sparse",)),
    _make_drawn_regime("concentrated", "concentrated rewards, Beta(10, 10)", ("concentrated",)),
    _make_drawn_regime("high-variance", "high-variance rewards, Beta(.1, .1)", ("high-variance",)),
    _make_drawn_regime("coin", "rewards 0 or 1, fixed by a fair coin", ("coin",)),
    _make_drawn_regime("deterministic", "deterministic transitions", _GRID_FAMILIES, (0.001,)),
    _make_drawn_regime(
        "adversarial", "deterministic transitions, uniform rewards", ("uniform",), (0.001,)
    ),
    _make_drawn_regime(
        "sparse-shift",
        "very sparse rewards, Beta(.1, 2), uniform transitions",
        ("very-sparse",),
        (1.0,),
    ),
    _make_drawn_regime(
        "dense-shift",
        "concentrated rewards, Beta(10, 10), uniform transitions",
        ("concentrated",),
        (1.0,),
    ),
    _make_drawn_regime(
        "high-variance-shift",
        "high-variance rewards, Beta(.1, .1), transitions of concentration .5",
        ("high-variance",),
        (0.5,),
    ),
)
_BUILT_REGIMES = (
    MDPRegime("chain", "linear chain", build=chain),
    MDPRegime("ladder", "ladder", build=ladder),
)
REGIMES: dict[str, MDPRegime] = index_by_key((*_DRAWN_REGIMES, *_BUILT_REGIMES), "MDP regime")

EVALUATION = ("peaked", "very-sparse", "concentrated", "uniform", "high-variance", "coin")
SHIFTS = ("deterministic", "sparse-shift", "dense-shift", "adversarial", "high-variance-shift")
"""Regimes away from training: they share no cell with the training grid, as "sparse" and "dense"
do.
"""


def draw_from_regime(
    regime: MDPRegime,
    n: int,
    n_states: int,
    n_actions: int,
    cell_rng: np.random.Generator,
    mdp_rng: np.random.Generator,
) -> MDPs:
    """Sample MDPs of a regime. Each kind of MDP in the regime's field ``cells`` occurs equally
    often; if the regime is one fixed MDP, copies of it are returned.

    Args:
        regime: the regime.
        n: number of MDPs.
        n_states: number of states of each MDP.
        n_actions: number of actions of each MDP.
        cell_rng: random generator that assigns the kinds of ``cells`` to the MDPs.
        mdp_rng: random generator for rewards and transitions.
    """
    if regime.build is not None:
        built = regime.build(n_states, n_actions)
        return built.select(np.zeros(n, np.int64))
    kinds = regime.cells  # pairs of a reward family and a concentration of transitions
    n_kinds = len(kinds)
    # The first shuffle decides which kinds occur once more than others if n is no multiple of their
    # number. The second decides which MDP is of which kind.
    in_turn = cell_rng.permutation(n_kinds)[np.arange(n) % n_kinds]
    kind_of_mdp = cell_rng.permutation(in_turn)  # index of each MDP's kind
    rewards = np.empty((n, n_states, n_actions))
    transitions = np.empty((n, n_states, n_actions, n_states))
    for i, (family, kappa) in enumerate(kinds):
        chosen = kind_of_mdp == i
        shape = (int(chosen.sum()), n_states, n_actions)
        rewards[chosen] = _draw_rewards(family, mdp_rng, shape)
        transitions[chosen] = mdp_rng.dirichlet(np.full(n_states, kappa), shape)
    families = tuple(kinds[i][0] for i in kind_of_mdp)
    kappas = [kinds[i][1] for i in kind_of_mdp]
    bernoulli = [family == "bernoulli-draws" for family in families]
    return MDPs(
        transitions,
        rewards,
        families=families,
        concentrations=np.array(kappas),
        bernoulli=np.array(bernoulli, bool),
    )
