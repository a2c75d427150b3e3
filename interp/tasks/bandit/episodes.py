"""Episodes of choices among arms: their class, a sampler with simulated players, and corruptions.

In each round a player chooses an arm and sees its reward. Models predict the *choice*. Choices may
be recorded from people, animals or machines, or simulated by an algorithm.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from interp.core.algorithm import Algorithm
from interp.core.task import (
    BaseEpisodes,
    Corruption,
    RoundInputs,
    check_mask,
    corrupt_one_round,
    episode_array,
    exchange_history,
    length_of,
    set_frozen_fields,
)
from interp.support.checks import checked, integer, refuse_beyond_machine
from interp.support.errors import InputError, require, require_known
from interp.tasks.bandit.algorithms import rescorla_wagner
from interp.tasks.draws import draw_rotations, draw_walk

_Array = NDArray[Any]

REGIMES: Mapping[str, str] = {
    "stationary": "each arm pays 1 with a chance from U[.1, .9] that stays",
    "reversal": "one arm pays 1 with chance .8, the others with .2; every 20 rounds it is another one",
    "restless": "the chance of each arm begins in U[.1, .9] and takes a normal step of .1 a round, within [.05, .95]",
}
"""Name of a regime -> how its arms pay."""


@dataclass(frozen=True, eq=False, repr=False)
class BanditEpisodes(BaseEpisodes):
    """A batch of episodes in which a player chooses among arms: choices and rewards.

    Attributes:
        choices: index of the chosen arm, ``[episode, round]``.
        rewards: reward of the chosen arm, ``[episode, round]``.
        n_arms: number of arms. 0 is replaced by the largest index in ``choices`` plus 1, but at
            least 2.
        regime: name of the regime; "recorded" for recorded data.
        seed: seed of the sampler; None for recorded data.
        arms: name of each arm in the table that was read; empty for sampled episodes.
        scale: number by which the rewards in the table were divided; 1 for sampled episodes.
        offers: the arms on offer, in the order in which they were shown,
            ``[episode, round, slot]``; -1 in an empty slot. None if all arms were on offer in every
            round.
        forced: True where the player had no choice, ``[episode, round]``. Algorithms learn from
            such a round, but its choice is not scored. None if no round was forced.
        unpaid: True where the choice is known and the reward is not, ``[episode, round]``. Such a
            round is ``missing``, so that algorithms do not learn from it, but its choice is scored.
            None if all rewards are known.
    """

    task: ClassVar[str] = "bandit"
    round_arrays: ClassVar[tuple[str, ...]] = ("choices", "rewards")
    optional_arrays: ClassVar[tuple[str, ...]] = ("offers", "forced", "unpaid")

    choices: _Array
    rewards: _Array
    n_arms: int = 0
    regime: str = "recorded"
    seed: int | None = None
    arms: tuple[str, ...] = ()
    scale: float = 1.0
    offers: Any = None
    forced: Any = None
    unpaid: Any = None

    def __post_init__(self) -> None:
        """Check the fields, and store choices, rewards, masks and offers as arrays."""
        choices = episode_array("choices", self.choices, "episode, round", low=0, whole=True)
        rewards = episode_array("rewards", self.rewards, "episode, round")
        shape = choices.shape
        require(choices.size > 0, f"choices must be a non-empty array, got shape {shape}")
        require(
            rewards.shape == shape,
            f"rewards have shape {rewards.shape} but choices {shape}; give one for each choice",
        )
        largest = int(choices.max())
        n_arms = integer("n_arms", self.n_arms) or max(2, largest + 1)  # 0 if the user gave none
        require(
            2 <= n_arms > largest,
            f"choices must be arms 0 to n_arms - 1 of 2 or more, got {largest} with n_arms={n_arms}",
        )
        n_episodes, n_rounds = shape
        _refuse_large(n_episodes, n_rounds, n_arms)
        set_frozen_fields(self, choices=choices, rewards=rewards, n_arms=n_arms)
        super().__post_init__()
        arms = self.arms
        require(len(arms) in (0, n_arms), f"arms must name each of the {n_arms} arms, got {arms}")
        require(len(set(arms)) == len(arms), f"names of arms must differ, got {arms}")
        require(self.scale > 0, f"scale must be above 0, got {self.scale}")
        for name in ("forced", "unpaid"):
            mask = getattr(self, name)
            if mask is not None:
                set_frozen_fields(self, **{name: check_mask(name, mask, shape)})
        if self.offers is not None:
            set_frozen_fields(self, offers=_check_offers(self))

    n_rounds = length_of("choices", 1, "Rounds of the longest episode.")

    def _with_rounds(self, arrays: Mapping[str, Any]) -> BanditEpisodes:
        """Return episodes that consist of the rounds in ``arrays``, with ``unpaid`` set to None. So
        rounds without a reward are not scored: here they come after all others, and a prediction in
        them would know later choices.
        """
        return replace(self, **{**arrays, "unpaid": None})

    @property
    def offered(self) -> NDArray[np.bool_]:
        """Bool[episode, round, arm], True for arms on offer."""
        if self.offers is None:
            return np.ones((*self.choices.shape, self.n_arms), bool)
        is_arm = self.offers[..., None] == np.arange(self.n_arms)
        is_offered: NDArray[np.bool_] = is_arm.any(-2)
        return is_offered

    @property
    def _has_known_choice(self) -> NDArray[np.bool_]:
        """Bool[episode, round], True where the choice is known."""
        return self.counted if self.unpaid is None else self.counted | self.unpaid

    @property
    def scored(self) -> NDArray[np.bool_]:
        """Bool[episode, round], True for rounds in which a prediction of the player's choice is
        scored: the choice is known and was not forced.
        """
        has_choice = self._has_known_choice
        return has_choice if self.forced is None else has_choice & ~self.forced


def _refuse_large(n_episodes: int, n_rounds: int, n_arms: int) -> None:
    """Raise InputError if an algorithm's variables for these episodes (at least four numbers per
    round and arm) would not fit into memory.

    Args:
        n_episodes, n_rounds, n_arms: numbers of episodes, of rounds per episode, and of arms.
    """
    refuse_beyond_machine(
        f"{n_episodes} episodes of {n_rounds} rounds with {n_arms} arms",
        32.0 * n_episodes * n_rounds * n_arms,
    )


def _check_offers(episodes: BanditEpisodes) -> _Array:
    """Check the field ``offers`` of episodes and return it as an integer array. Refuse a wrong
    shape, unknown arms, and offers without the chosen arm.

    In a missing round without any arm on offer, the round's entry in ``choices`` is put on offer.
    Without an arm, probabilities over the arms on offer would be NaN.
    """
    largest = episodes.n_arms - 1
    # Index of the arm in each slot; -1 for an empty slot.
    offers = episode_array(
        "offers", episodes.offers, "episode, round, slot", -1, largest, whole=True
    )
    choices = episodes.choices
    *rounds, n_slots = offers.shape
    require(
        tuple(rounds) == choices.shape and n_slots > 1,
        f"offers must be [episode, round, slot] = {(*choices.shape, 2)} or with more slots, got {offers.shape}",
    )
    is_offered = (offers == choices[..., None]).any(-1)
    # The first round whose known choice was not on offer, if there is one.
    for e, t in np.argwhere(episodes._has_known_choice & ~is_offered)[:1]:
        listed = offers[e, t].tolist()
        raise InputError(
            f"the choice {choices[e, t]} of episode {e}, round {t}, is none of its offers {listed}"
        )
    is_empty = (offers < 0).all(-1)  # [episode, round]
    filled = offers.copy()
    filled[is_empty, 0] = choices[is_empty]
    return filled


@checked
def sample(
    n_episodes: int,
    n_rounds: int,
    n_arms: int = 2,
    regime: str = "stationary",
    seed: int = 0,
    player: Algorithm | None = None,
) -> BanditEpisodes:
    """Sample episodes in which an algorithm chooses among arms with random payoffs.

    Payoffs and choices have separate random streams, so two players with the same seed face the
    same arms.

    With another number of rounds, the first rounds differ, too. To compare the same episodes at
    several lengths, sample the longest, and shorten them with ``episodes.first(n_rounds)``.

    Args:
        n_episodes, n_rounds, n_arms: numbers of episodes, of rounds per episode, and of arms.
        regime: how the arms pay, a key of :data:`REGIMES`.
        seed: seed of all random draws.
        player: the algorithm that chooses; Rescorla-Wagner with its default parameters when None.

    >>> sample(n_episodes=2, n_rounds=5, n_arms=3, regime="reversal", seed=0)
    BanditEpisodes(2 episodes of 5 rounds, 3 arms, reversal regime, seed 0)
    """
    integer("n_episodes", n_episodes, 1)
    integer("n_rounds", n_rounds, 1)
    integer("n_arms", n_arms, 2)
    _refuse_large(n_episodes, n_rounds, n_arms)
    require_known("regime", regime, REGIMES)
    payoff_rng = np.random.default_rng([seed, 0])
    choice_rng = np.random.default_rng([seed, 1])
    chances = _draw_chances(regime, n_episodes, n_rounds, n_arms, payoff_rng)
    # Whether each arm pays 1 if it is chosen, [episode, round, arm].
    would_pay = (payoff_rng.random(chances.shape) < chances).astype(np.int64)
    uniforms = choice_rng.random((n_rounds, n_episodes, 1))
    algorithm = rescorla_wagner() if player is None else player
    choices, rewards = np.zeros((2, n_episodes, n_rounds), np.int64)

    def read_inputs(t: int) -> dict[str, _Array]:
        """Return the algorithm's input variables in round ``t`` by key, ``[episode, ...]``, from the
        choices and rewards so far.
        """
        now = BanditEpisodes(choices[:, t : t + 1], rewards[:, t : t + 1], n_arms)
        return {key: value[:, 0] for key, value in algorithm.read(now).items()}

    rows = np.arange(n_episodes)
    state: Mapping[str, _Array] = algorithm.start(BanditEpisodes(choices, rewards, n_arms))
    for t in range(n_rounds):
        _, values = algorithm.step(state, read_inputs(t))
        cumulative = algorithm.distribution(values).cumsum(-1)
        # The chosen arm is the first whose cumulative probability is not below the uniform number.
        # Its index is the number of arms before it.
        is_passed = uniforms[t] > cumulative[:, :-1]
        choices[:, t] = is_passed.sum(-1)
        rewards[:, t] = would_pay[rows, t, choices[:, t]]
        state = algorithm.advance(state, read_inputs(t))  # now with this round's choice and reward
    return BanditEpisodes(choices, rewards, n_arms, regime=regime, seed=seed)


def _draw_chances(
    regime: str, n_episodes: int, n_rounds: int, n_arms: int, rng: np.random.Generator
) -> _Array:
    """Sample the probability that each arm pays 1 in each round, ``[episode, round, arm]``.

    Args:
        regime: how these probabilities change over rounds, a key of :data:`REGIMES`.
        n_episodes, n_rounds, n_arms: numbers of episodes, of rounds per episode, and of arms.
        rng: source of random numbers.
    """
    start = rng.uniform(0.1, 0.9, (n_episodes, 1, n_arms))
    if regime == "stationary":
        return np.repeat(start, n_rounds, 1)
    if regime == "restless":
        return draw_walk(rng, start[:, 0], n_rounds, step=0.1, bounds=(0.05, 0.95))
    # "reversal": another arm becomes the best one every 20 rounds.
    rotated_by = draw_rotations(rng, n_episodes, n_rounds, n_arms, every=20)
    first_best = rng.integers(n_arms, size=(n_episodes, 1))
    best = (first_best + rotated_by) % n_arms  # [episode, round]
    is_best = np.arange(n_arms) == best[..., None]
    return np.where(is_best, 0.8, 0.2)


def battery(n_episodes: int, n_rounds: int, *, n_arms: int, seed: int) -> dict[str, BanditEpisodes]:
    """Sample one set of episodes per regime. On these, different algorithms predict differently.

    Args:
        n_episodes: number of episodes of each regime.
        n_rounds, n_arms: numbers of rounds and of arms of each episode.
        seed: seed of the random draws.

    Returns:
        A mapping {name of the regime: episodes}.
    """
    return {regime: sample(n_episodes, n_rounds, n_arms, regime, seed) for regime in REGIMES}


def round_inputs(episodes: BanditEpisodes) -> RoundInputs:
    """Return what a model reads in each round, for two controls of probes. A probe decodes a
    target, such as a variable of the algorithm, from latents.

    The control without memory decodes the target from the inputs of the round alone, by the same
    method as the probe, such as ridge regression. If this control succeeds, the probe's success is
    no evidence of memory. Since some methods cannot combine inputs, the control tries two encodings
    and uses the better one: (1) the choice (one-hot) and the reward; (2) both, and their product,
    the reward of each arm.

    The other control, the control task, replaces the target by random values that are equal in
    rounds with equal inputs (``kinds``).

    Args:
        episodes: the episodes.

    Returns:
        ``features``: the two encodings, ``[episode, round, n_arms + 1]`` and
        ``[episode, round, 2 n_arms + 1]``. ``kinds``: integers ``[episode, round, 2]``, the index
        of the choice, and the rank of the reward among all different rewards.
    """
    pulled = np.eye(episodes.n_arms)[episodes.choices]
    rewards = episodes.rewards
    choice_and_reward = np.concatenate([pulled, rewards[..., None]], -1)
    # The index of each reward in the sorted list of all different rewards.
    _, flat_ranks = np.unique(rewards, return_inverse=True)
    reward_ranks = flat_ranks.reshape(rewards.shape)
    with_products = np.concatenate([choice_and_reward, pulled * rewards[..., None]], -1)
    kinds = np.stack([episodes.choices, reward_ranks], -1)
    return RoundInputs(features=(choice_and_reward, with_products), kinds=kinds)


def _exchange_reward(episodes: BanditEpisodes, t: int) -> _Array:
    """Return the rewards of round ``t``, ``[episode]``, mirrored within the range of all rewards:
    the largest becomes the smallest and the smallest the largest.
    """
    known_rewards = episodes.rewards[episodes.counted]
    smallest_plus_largest = known_rewards.min() + known_rewards.max()
    mirrored: _Array = smallest_plus_largest - episodes.rewards[:, t]
    return mirrored


def corruptions() -> tuple[Corruption, ...]:
    """Return the corruptions with which activation patching makes pairs (clean, corrupted) of
    episodes.

    "flip-reward" mirrors the reward of one round, so that the largest reward becomes the smallest.
    "exchange-history" replaces all rounds before one round by those of the next episode.
    """
    # delay: number of rounds from the named round to the first prediction that can differ.
    return (
        Corruption(
            "flip-reward",
            "flip the reward",
            delay=1,
            build=corrupt_one_round("rewards", _exchange_reward),
        ),
        Corruption(
            "exchange-history",
            "take another episode's history",
            delay=0,
            build=exchange_history,
            changes_history=True,
        ),
    )
