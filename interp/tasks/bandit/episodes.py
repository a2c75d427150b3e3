"""Choices among arms: the episodes, their sampler, the long table that the field uses, and corruptions.

Each round the player chooses an arm and is told what it paid. A model predicts the *choice*: what was recorded of
people, animals or machines is the material, and a simulated player, an algorithm at its parameters, draws more of it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from interp.core.algorithm import Algorithm
from interp.core.task import (
    BaseEpisodes,
    Corruption,
    RoundInputs,
    episode_array,
    exchange_history,
    freeze,
    in_one_round,
    length_of,
)
from interp.support.checks import array_of, checked, integer, refuse_beyond_machine
from interp.support.errors import InputError, require, require_known
from interp.tasks.bandit.algorithms import rescorla_wagner

_Array = NDArray[Any]

REGIMES: Mapping[str, str] = {
    "stationary": "each arm pays 1 with a chance from U[.1, .9] that stays",
    "reversal": "one arm pays 1 with chance .8, the others with .2; every 20 rounds it is another one",
    "restless": "the chance of each arm begins in U[.1, .9] and takes a normal step of .1 a round, within [.05, .95]",
}
"""Name -> how the arms pay."""


@dataclass(frozen=True, eq=False, repr=False)
class BanditEpisodes(BaseEpisodes):
    """What players chose and what it paid.

    Attributes:
        choices: the arm chosen, counted from 0, ``[episode, round]``.
        rewards: what it paid, ``[episode, round]``.
        n_arms: how many arms there are; where it is 0, as many as were chosen, and 2 at least.
        arms: what each arm is called in the data that it was read from; ``scale``: what 1 of a reward is there.
        offers: the arms that could be chosen, in the order in which they were shown, ``[episode, round, slot]``; -1 in
            an empty slot. None where every arm could be.
        forced: True where the player could not choose, ``[episode, round]``: such a round is learned from and not
            scored. None where it always could.
        unpaid: True where a choice is known and its reward is not, ``[episode, round]``: such a round is ``missing``,
            so that nothing is learned from it, and its choice is scored. None where there are none.
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
    offers: _Array | None = None
    forced: _Array | None = None
    unpaid: _Array | None = None

    def __post_init__(self) -> None:
        choices = episode_array("choices", self.choices, "episode, round", 0, whole=True)
        rewards = episode_array("rewards", self.rewards, "episode, round")
        require(choices.size > 0, f"choices must be a non-empty array, got shape {choices.shape}")
        wanted = f"rewards have shape {rewards.shape} but choices {choices.shape}; give one for each choice"
        require(rewards.shape == choices.shape, wanted)
        n_arms = integer("n_arms", self.n_arms) or max(2, int(choices.max()) + 1)
        fits = 2 <= n_arms > choices.max()
        require(
            fits,
            f"choices must be arms 0 to n_arms - 1 of 2 or more, got {choices.max()} with n_arms={n_arms}",
        )
        freeze(self, choices=choices, rewards=rewards, n_arms=n_arms)
        super().__post_init__()
        for name in ("forced", "unpaid"):
            if getattr(self, name) is not None:
                freeze(self, **{name: round_mask(name, getattr(self, name), choices.shape)})
        if self.offers is not None:
            freeze(self, offers=_checked_offers(self))

    n_rounds = length_of("choices", 1, "Rounds of the longest episode.")

    @property
    def offered(self) -> NDArray[np.bool_]:
        """Bool[episode, round, arm]: which arms could be chosen."""
        if self.offers is None:
            return np.ones((*self.choices.shape, self.n_arms), bool)
        arms = np.arange(self.n_arms)
        return np.asarray((self.offers[..., None] == arms).any(-2))

    @property
    def scored(self) -> NDArray[np.bool_]:
        """Bool[episode, round]: which choices are predicted: those that are known and were free."""
        known = self.counted if self.unpaid is None else self.counted | self.unpaid
        return known if self.forced is None else known & ~self.forced


def _checked_offers(episodes: BanditEpisodes) -> _Array:
    """Refuse offers of another shape, of arms that there are not, or without the arm that was chosen."""
    offers = episode_array(
        "offers",
        array_of("offers", episodes.offers),
        "episode, round, slot",
        -1,
        episodes.n_arms - 1,
        whole=True,
    )
    choices = episodes.choices
    require(
        offers.shape[:2] == choices.shape and offers.shape[2] > 1,
        f"offers must be [episode, round, slot] = {(*choices.shape, 2)} or with more slots, got {offers.shape}",
    )
    known = episodes.counted if episodes.unpaid is None else episodes.counted | episodes.unpaid
    absent = known & ~(offers == choices[..., None]).any(-1)
    for e, t in np.argwhere(absent)[:1]:
        raise InputError(
            f"the choice {choices[e, t]} of episode {e}, round {t}, is none of its offers {offers[e, t].tolist()}"
        )
    return offers


def round_mask(name: str, values: Any, shape: tuple[int, ...]) -> NDArray[np.bool_]:
    """Check truth values ``[episode, round]``."""
    mask = array_of(name, values)
    fits = mask.shape == shape and mask.dtype == bool
    got = f"{mask.dtype} of shape {mask.shape}"
    require(fits, f"{name} must be truth values [episode, round] = {shape}, got {got}")
    return mask


@checked
def sample(
    n_episodes: int,
    n_rounds: int,
    n_arms: int = 2,
    regime: str = "stationary",
    seed: int = 0,
    player: Algorithm | None = None,
) -> BanditEpisodes:
    """Draw episodes in which ``player`` chooses: an algorithm, Rescorla-Wagner by default.

    What the arms would pay has a random stream of its own: two players with one seed play the same arms.

    >>> sample(n_episodes=2, n_rounds=5, n_arms=3, regime="reversal", seed=0)
    BanditEpisodes(2 episodes of 5 rounds, 3 arms, reversal regime, seed 0)
    """
    for name, size, least in (
        ("n_episodes", n_episodes, 1),
        ("n_rounds", n_rounds, 1),
        ("n_arms", n_arms, 2),
    ):
        integer(name, size, least)
    what = f"{n_episodes} episodes of {n_rounds} rounds with {n_arms} arms"
    refuse_beyond_machine(what, 24.0 * n_episodes * n_rounds * n_arms)
    require_known("regime", regime, REGIMES)
    arms, luck = (np.random.default_rng([seed, stream]) for stream in (0, 1))
    chances = _chances(regime, n_episodes, n_rounds, n_arms, arms)
    pays = (arms.random(chances.shape) < chances).astype(np.int64)
    drawn = luck.random((n_rounds, n_episodes, 1))
    algorithm = rescorla_wagner() if player is None else player
    choices, rewards = np.zeros((2, n_episodes, n_rounds), np.int64)

    def told(t: int) -> dict[str, _Array]:
        one = BanditEpisodes(choices[:, t : t + 1], rewards[:, t : t + 1], n_arms)
        return {key: value[:, 0] for key, value in algorithm.read(one).items()}

    state: Mapping[str, _Array] = algorithm.start(BanditEpisodes(choices, rewards, n_arms))
    for t in range(n_rounds):
        likely = algorithm.distribution(algorithm.step(state, told(t))[1])
        choices[:, t] = (drawn[t] > likely.cumsum(-1)[:, :-1]).sum(-1)
        rewards[:, t] = pays[np.arange(n_episodes), t, choices[:, t]]
        state = algorithm.advance(state, told(t))
    return BanditEpisodes(choices, rewards, n_arms, regime, seed)


def _chances(
    regime: str, n_episodes: int, n_rounds: int, n_arms: int, rng: np.random.Generator
) -> _Array:
    """The chance that each arm pays, ``[episode, round, arm]``."""
    start = rng.uniform(0.1, 0.9, (n_episodes, 1, n_arms))
    if regime == "stationary":
        return np.repeat(start, n_rounds, 1)
    if regime == "restless":
        path = [start[:, 0]]
        for step in rng.normal(0, 0.1, (n_rounds - 1, n_episodes, n_arms)):
            path.append(np.clip(path[-1] + step, 0.05, 0.95))
        return np.stack(path, 1)
    block = np.arange(n_rounds) // 20
    moves = rng.integers(1, n_arms, (n_episodes, block[-1] + 1))
    moves[:, 0] = rng.integers(n_arms, size=n_episodes)
    return np.where(np.arange(n_arms) == (moves.cumsum(1)[:, block] % n_arms)[..., None], 0.8, 0.2)


def battery(n_episodes: int, n_rounds: int, *, n_arms: int, seed: int) -> dict[str, BanditEpisodes]:
    """Episodes of every regime, by its name: on them algorithms predict differently."""
    return {regime: sample(n_episodes, n_rounds, n_arms, regime, seed) for regime in REGIMES}


def round_inputs(episodes: BanditEpisodes) -> RoundInputs:
    """Choice and reward of each round, then also which arm paid: what one round says by itself."""
    pulled = np.eye(episodes.n_arms)[episodes.choices]
    plain = np.concatenate([pulled, episodes.rewards[..., None]], -1)
    _, kinds = np.unique(episodes.rewards, return_inverse=True)
    kinds = kinds.reshape(episodes.rewards.shape)
    products = np.concatenate([plain, pulled * episodes.rewards[..., None]], -1)
    return RoundInputs((plain, products), np.stack([episodes.choices, kinds], -1))


def _other_reward(episodes: BanditEpisodes, t: int) -> _Array:
    """The least reward of these episodes in place of the largest, and the other way round."""
    paid = episodes.rewards[episodes.counted]
    return np.asarray(paid.min() + paid.max() - episodes.rewards[:, t])


def corruptions() -> tuple[Corruption, ...]:
    """What patching changes in episodes of this task."""
    return (
        Corruption("flip-reward", "flip the reward", 1, in_one_round("rewards", _other_reward)),
        Corruption(
            "exchange-history",
            "take another episode's history",
            0,
            exchange_history,
            changes_history=True,
        ),
    )
