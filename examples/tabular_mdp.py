"""A Gymnasium environment over the toolkit's MDPs, for users who bring their own agents.

    import gymnasium, tabular_mdp                    # beside this file; pip install gymnasium
    env = gymnasium.make("interp/TabularMDP-v0", n_states=4, n_actions=3, regime="grid", seed=0)

Observations are states; ``info`` says which MDP it is. Episodes never terminate; they are truncated after ``n_rounds``.
Our own training data does not come from here: batched NumPy is many times faster.
"""

from __future__ import annotations

from typing import Any, ClassVar

import gymnasium
import numpy as np
from gymnasium import spaces
from gymnasium.envs.registration import register

from interp.support.errors import require
from interp.tasks.qlearning.episodes import MDPs
from interp.tasks.qlearning.sampling import sample_mdps

ENV_ID = "interp/TabularMDP-v0"


class TabularMDPEnv(gymnasium.Env[np.int64, int | np.integer]):
    """One finite MDP as an environment.

    Args:
        mdps: a batch holding the one MDP to use; None draws one of the sizes from ``regime``.
        n_rounds: rounds until the episode is truncated.
        start: the first state; None draws it uniformly.
    """

    metadata: ClassVar[dict[str, Any]] = {"render_modes": []}

    def __init__(
        self,
        mdps: MDPs | None = None,
        n_states: int = 4,
        n_actions: int = 2,
        regime: str = "grid",
        seed: int = 0,
        n_rounds: int = 50,
        start: int | None = None,
    ) -> None:
        mdps = (
            sample_mdps(1, n_states, n_actions, seed=seed, regime=regime) if mdps is None else mdps
        )
        require(
            len(mdps) == 1,
            f"an environment holds 1 MDP, got {len(mdps)}; choose one with mdps.select([i])",
        )
        require(n_rounds >= 1, f"n_rounds must be at least 1, got {n_rounds}")
        require(
            start is None or 0 <= start < mdps.n_states,
            f"start must be a state 0 to {mdps.n_states - 1} of this MDP, got {start}",
        )
        self.mdps, self.n_rounds, self.start = mdps, n_rounds, start
        self.observation_space = spaces.Discrete(mdps.n_states)
        self.action_space = spaces.Discrete(mdps.n_actions)
        self._state, self._round = -1, 0

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[np.int64, dict[str, Any]]:
        """Start again at the first state."""
        super().reset(seed=seed)
        drawn = int(self.np_random.integers(self.mdps.n_states))
        self._state, self._round = drawn if self.start is None else self.start, 0
        return np.int64(self._state), self._info()

    def step(self, action: int | np.integer) -> tuple[np.int64, float, bool, bool, dict[str, Any]]:
        """Act once."""
        require(self._state >= 0, "call reset() before the first step()")
        require(
            bool(self.action_space.contains(action)),
            f"action must be 0 to {self.mdps.n_actions - 1} of this MDP, got {action!r}",
        )
        reward = float(self.mdps.rewards[0, self._state, action])
        if self.mdps.bernoulli[0]:
            reward = float(self.np_random.random() < reward)
        reach = self.mdps.transitions[0, self._state, action].cumsum()
        self._state = int((reach / reach[-1] > self.np_random.random()).argmax())
        self._round += 1
        return np.int64(self._state), reward, False, self._round >= self.n_rounds, self._info()

    def _info(self) -> dict[str, Any]:
        drawn = self.mdps.concentrations[0]
        # Left out where there is none: NaN differs from itself, and info of equal steps must be equal.
        concentration = {} if np.isnan(drawn) else {"concentration": float(drawn)}
        return {"family": self.mdps.families[0], "round": self._round, **concentration}


if ENV_ID not in gymnasium.registry:
    register(id=ENV_ID, entry_point=TabularMDPEnv)
