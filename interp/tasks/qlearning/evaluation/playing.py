r"""What a model of Q-learning earns when it acts, beside tabular learners, a random policy and the optimum.

The model plays (``interp.play``: its choice at ``Select`` is its next action and is committed as a*), once by its
choices alone and once exploring (a random action with probability .2), and so do tabular learners and a random policy
with the same seed: same MDPs, starts and luck. The model imitates greedy choices, and nothing told it which of several
tied ones to take: exploring, its peer is the epsilon-greedy learner that breaks ties at random. Returns over T rounds
are given raw and normalised, (x - random) / (optimal - random) with both references exact for a horizon of T, since on
most of these MDPs a random policy earns 70 to 80 % of the optimum (``interp.tasks.qlearning.returns``). On the ladder
and the chain control matters.

A return over a shorter horizon is that of the first rounds of the same play. Mean reward in windows of 50 rounds shows
whether a model decays as it goes on.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import pandas as pd

from interp.checks import checked
from interp.display import Tabled
from interp.errors import require
from interp.evaluation.lookup import lookup
from interp.evaluation.record import MODEL
from interp.model.rollout import play
from interp.model.transformer import HookedLatentTransformer
from interp.provenance import provenance
from interp.statistics import Interval, ratio_interval
from interp.tasks.qlearning import sampling, tabular
from interp.tasks.qlearning.evaluation.tables import representative_sizes
from interp.tasks.qlearning.returns import ScoreResult, normalised_score
from interp.tasks.qlearning.sampling import EVALUATION, MDPEpisodes

PLAYED = ("grid", *EVALUATION, "chain", "ladder")
EXPLORING = "exploring-model"
AGENTS = ("greedy", "epsilon-greedy", "random-ties", "random")
PLAYERS = (MODEL, EXPLORING, *AGENTS)
HORIZONS = (50, 200)
_WINDOW = 50


@dataclass(frozen=True, eq=False)
class PlayScores(Tabled):
    """Returns of a model and of tabular agents that met the same luck.

    Attributes:
        scores: (regime, agent key, horizon) -> :class:`~interp.tasks.qlearning.returns.ScoreResult`.
        rates: (regime, agent key, first round of a window) -> mean reward a round in that window.
        settings: model, digest, commit, sizes, seed, versions.
    """

    scores: dict[tuple[str, str, int], ScoreResult]
    rates: dict[tuple[str, str, int], Interval]
    settings: dict[str, Any] = field(repr=False)

    def get(self, regime: str, horizon: int, key: str = MODEL) -> ScoreResult:
        """One score.

        Raises:
            InputError: no such regime, agent or horizon here.
        """
        return lookup(self.scores, regime, key, horizon)

    def to_frame(self) -> pd.DataFrame:
        """One row per regime, agent, horizon and quantity ("score" is the normalised return)."""
        frames = [
            result.to_frame().assign(regime=regime, key=key, horizon=horizon, commit=self._commit(key))
            for (regime, key, horizon), result in self.scores.items()
        ]
        return pd.concat(frames, ignore_index=True)

    def rates_frame(self) -> pd.DataFrame:
        """One row per regime, agent and window: mean reward a round."""
        rows = [
            {"regime": regime, "key": key, "start": start, **vars(value), "commit": self._commit(key)}
            for (regime, key, start), value in self.rates.items()
        ]
        return pd.DataFrame(rows)

    def _commit(self, key: str) -> str:
        return "own" if key in (MODEL, EXPLORING) else ""


@checked
def evaluate(
    model: HookedLatentTransformer,
    regimes: Sequence[str] = PLAYED,
    *,
    n_episodes: int = 96,
    horizons: Sequence[int] = HORIZONS,
    seed: int = 4,
    done: Callable[[int], None] = lambda steps: None,
) -> PlayScores:
    """Let a model and tabular agents act in fresh MDPs of each regime.

    Args:
        regimes: keys of ``interp.tasks.mdp.REGIMES``.
        n_episodes: per regime, over the representative sizes.
        horizons: numbers of rounds after which returns are read; the longest is played.
        done: called with 1 after each regime.

    Raises:
        InputError: a model of another task, an unknown regime, no horizon.
    """
    require(bool(horizons) and min(horizons) >= 1, f"horizons must be numbers of rounds >= 1, got {list(horizons)}")
    chosen, longest = representative_sizes(model), max(horizons)
    each = -(-n_episodes // len(chosen))
    scores, rates = {}, {}
    for regime in regimes:
        mdps = [sampling.sample_mdps(each, s, a, seed=seed + i, regime=regime) for i, (s, a) in enumerate(chosen)]
        explored = tabular.agent("epsilon-greedy").epsilon
        played = {
            key: [play(model, batch, longest, seed + i, epsilon=epsilon)[0] for i, batch in enumerate(mdps)]
            for key, epsilon in ((MODEL, 0.0), (EXPLORING, explored))
        }
        for key in AGENTS:
            agent = tabular.agent(key)
            played[key] = [tabular.run(agent, batch, longest, seed + i) for i, batch in enumerate(mdps)]
        for key, batches in played.items():
            for horizon in horizons:
                scores[regime, key, horizon] = normalised_score([first(b, horizon) for b in batches], seed=seed)
            for start in range(0, longest, _WINDOW):
                rates[regime, key, start] = _rate(batches, start, seed)
        done(1)
    settings = provenance(
        model=model.config.name, digest=model.digest(), commit="own", sizes=chosen, n_episodes=n_episodes,
        horizons=list(horizons), seed=seed,
    )  # fmt: skip
    return PlayScores(scores, rates, settings)


def first(episodes: MDPEpisodes, n_rounds: int) -> MDPEpisodes:
    """The first ``n_rounds`` rounds of each episode."""
    per_round = ("states", "actions", "rewards", "next_states", "greedy")
    cut = {name: getattr(episodes, name)[:, :n_rounds] for name in per_round}
    return replace(episodes, q_tables=episodes.q_tables[:, : n_rounds + 1], **cut)


def _rate(batches: Sequence[MDPEpisodes], start: int, seed: int) -> Interval:
    rewards = [row for batch in batches for row in batch.rewards[:, start : start + _WINDOW]]
    return ratio_interval([row.sum() for row in rewards], [float(len(row)) for row in rewards], seed=seed)
