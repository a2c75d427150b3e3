"""The report on a model of tabular Q-learning: wired by hand, or learned."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import pandas as pd

from interp.choices.fitting import probable
from interp.evaluation.plan import predictions_of
from interp.evaluation.qlearning import returns
from interp.evaluation.qlearning.agreement import QUANTITIES, agreement
from interp.evaluation.qlearning.plan import reference_table
from interp.model.rollout import play
from interp.results import figures
from interp.results.measure import AS_WELL, FEW, UNTRAINED, Control, Measure, Scores
from interp.stats.intervals import Interval, mean_interval, ratio_interval
from interp.tasks import mdp
from interp.tasks.mdp import MDPEpisodes, MDPs
from interp.tasks.qlearning import tabular
from reports.blocks import Measures, Prose, Table, claim, curves, plain
from reports.part import Context, Part
from reports.tasks import default_parts, prose

_PROSE = prose("qlearning")


def parts() -> tuple[Part, ...]:
    """Return every part of the report, in page order."""
    agreed = Part("agreement", _AGREEMENT, _compare, _draw_agreement, summary=_measure_agreement)
    playing = Part("playing", "Free rollouts", _let_play, _draw_playing, summary=_measure_playing)
    return default_parts(
        said=_PROSE["parts"],
        after={
            "state": [agreed, playing],
        },
    )


_AGREEMENT = "Agreement with the table"
_FEWEST = 20  # disputed steps below which agreement on them decides nothing


def _compare(context: Context) -> tuple[Scores, Scores]:
    """Compare the choices of the model, and of an untrained copy, with the table's."""
    table = reference_table(context.model)
    chosen = predictions_of(context.run)
    blank = probable(predictions_of(context.blank_run))
    episodes, seed = context.episodes, context.seed
    return (
        agreement(chosen, episodes, table=table, seed=seed),
        agreement(blank, episodes, table=table, seed=seed),
    )


def _measure_agreement(results: tuple[Scores, Scores], context: Context) -> list[Measure]:
    """Measure whether it chooses as its table does, and whether it bootstraps."""
    result, blank = results
    n_steps = result.beside["disputed", "all"]["n_steps"]
    few = f"{FEW}: {n_steps} disputed steps, where {_FEWEST} decide" if n_steps < _FEWEST else ""
    gained = result.get("untied_gain", "all")
    controls = {UNTRAINED: Control(blank.get("untied_gain", "all").estimate)}
    unless = {"undecided": few} if few else {}
    measures = [claim("agreement", gained, controls=controls, unless=unless)]
    if n_steps:
        without = result.get("disputed_gamma0", "all").estimate
        controls = {
            UNTRAINED: Control(blank.get("disputed", "all").estimate),
            "the table with γ = 0": Control(without),
        }
        unless = dict.fromkeys(("yes", "no"), few) if few else {}
        disputed = result.get("disputed", "all")
        measures.append(claim("bootstraps", disputed, controls=controls, unless=unless))
    return measures


def _draw_agreement(results: tuple[Scores, Scores], context: Context) -> list[object]:
    """Show how often the model chooses as its table does, and as one that never bootstraps."""
    result = results[0]
    rows = []
    for key in ("untied", "random_ties", "disputed"):
        n_steps = result.beside[key, "all"]["n_steps"]
        if n_steps:
            controls = {"the table with γ = 0": result.get(f"{key}_gamma0", "all").estimate}
            name = f"{QUANTITIES[key]} ({n_steps} steps)"
            rows.append(plain(name, result.get(key, "all"), controls))
    untied = result.get("untied", "all").estimate
    baseline = result.get("untied_gamma0", "all").estimate
    caption = f"It chooses as its table does in {untied:.2f} of untied steps, and the one with γ = 0 in {baseline:.2f}."
    frame = result.to_frame()[["name", "phase", "estimate", "low", "high", "n_steps"]]
    is_whole = frame["phase"] == "all"
    whole = frame[is_whole].drop(columns="phase").rename(columns={"name": "quantity"})
    when = "ended" if reference_table(context.model) == "after" else "began"
    return [
        Prose(_PROSE["agreement"].format(when=when)),
        Measures(rows, caption),
        Table(whole, "All rounds, with 95 % intervals over episodes", collapsed=True),
        Table(frame[~is_whole], "Early, middle and late rounds", collapsed=True),
    ]


_N_PLAYED = 32  # MDPs of each world, at most


@dataclass(frozen=True)
class _Played:
    """What every agent did in one world: key -> (name, episodes)."""

    world: str
    agents: Mapping[str, tuple[str, MDPEpisodes]]

    def shared(self, key: str = "model") -> float:
        """Return the share of rounds in which an agent acts and earns as the tabular learner does."""
        agent, learner = self.agents[key][1], self.agents["greedy"][1]
        is_shared = (agent.actions == learner.actions) & (agent.rewards == learner.rewards)
        return float(is_shared.mean())


def _let_play(context: Context) -> list[_Played]:
    """Play in MDPs drawn from the grid and, where there is a choice, in two kinds in which control matters."""
    regimes = {"random MDPs": "grid"}
    if min(context.sizes.values()) > 1:
        regimes |= {"the chain": "chain", "the ladder": "ladder"}
    n_mdps = min(context.n_episodes, _N_PLAYED)
    played = []
    for world, regime in regimes.items():
        mdps = mdp.sample_mdps(n_mdps, **context.sizes, seed=context.seed, regime=regime)
        agents = _play_all(context, mdps, context.n_rounds, before_update=True)
        played.append(_Played(world, agents))
    return played


def _play_all(
    context: Context, mdps: MDPs, n_rounds: int, before_update: bool = False
) -> dict[str, tuple[str, MDPEpisodes]]:
    """Let the model and tabular agents play in the same MDPs under the same luck.

    Args:
        context: of the report.
        mdps: that are played.
        n_rounds: of each.
        before_update: whether the greedy learner selects before it updates, as a handwired model does.

    Returns:
        Key of an agent -> its name and the episodes that it made; the model has the key "model".
    """
    model, seed = context.model, context.seed
    parameters = context.algorithm.parameters
    alpha, gamma = parameters["alpha"], parameters["gamma"]
    greedy = tabular.QLearner(alpha, gamma, before_update=before_update)
    exploring = tabular.QLearner(alpha, gamma, epsilon=0.2)
    greedy_name = "Q-learning, selects before it updates" if before_update else "greedy Q-learning"
    agents = {
        "greedy": (greedy_name, greedy),
        "epsilon-greedy": ("ε-greedy Q-learning, ε = .2", exploring),
        "random": ("random actions", tabular.AGENTS["random"]),
        "optimal": ("optimal within the rounds played", tabular.AGENTS["optimal"]),
    }
    played = {"model": (model.name, play(model, mdps, n_rounds, seed)[0])}
    for key, (name, agent) in agents.items():
        played[key] = (name, tabular.run(agent, mdps, n_rounds, seed))
    return played


def _earn(played: Mapping[str, tuple[str, MDPEpisodes]], seed: int) -> pd.DataFrame:
    """Return the cumulative reward over rounds, a curve for everybody who played."""
    frames = []
    for key, (name, episodes) in played.items():
        frames.append(figures.over_rounds(key, name, episodes.rewards.cumsum(1), seed))
    return pd.concat(frames)


_CHANCE = "an agent of random actions"


def _measure_playing(played: list[_Played], context: Context) -> list[Measure]:
    """Measure a handwired model by its actions; a learned one by what it earns in each world."""
    if context.model.is_handwired:
        share = min(world.shared() for world in played)
        random = Control(max(world.shared("random") for world in played))
        return [claim("playing", Interval(share, share, share), controls={_CHANCE: random})]
    return [_measure_reward(world, context.seed) for world in played]


def _measure_reward(played: _Played, seed: int) -> Measure:
    """Measure whether it earns nine tenths of what the learner earns beyond random actions, or
    more.
    """
    sums = {key: episodes.rewards.sum(1) for key, (_, episodes) in played.agents.items()}
    model = sums["model"] - sums["random"]
    learner = sums["greedy"] - sums["random"]
    unless = {}
    if mean_interval(learner, seed=seed).low <= 0:
        unless = dict.fromkeys(("yes", "no", "undecided"), f"{_CHANCE} {AS_WELL}")
    share = ratio_interval(model, learner, seed=seed)
    words = {"world": played.world}
    return claim("reward", share, words, controls={_CHANCE: Control(0.0)}, unless=unless)


def _draw_playing(played: list[_Played], context: Context) -> list[object]:
    """Draw the rewards of the first world, and tabulate those of all."""
    seed = context.seed
    rows = []
    for world in played:
        for name, episodes in world.agents.values():
            row: dict[str, Any] = {"world": world.world, "agent": name}
            if episodes.n_actions == 1:  # every policy is the same: no score exists
                row["earned"] = mean_interval(episodes.rewards.sum(1), seed=seed)
                row["normalised score"] = None
            else:
                result = returns.normalised_score(episodes, seed=seed)
                row["earned"] = result.get("earned")
                row["normalised score"] = result.get("score")
            rows.append(row)
    caption = f"Returns over {context.n_rounds} rounds, with 95 % intervals over episodes"
    first = played[0]
    picture = curves(_PROSE["curves"]["reward"], _earn(first.agents, seed), world=first.world)
    blocks: list[object] = [
        Prose(_PROSE["playing"]),
        picture,
        Table(pd.DataFrame(rows), caption, formats={"earned": ".2f"}),
    ]
    if context.model.is_handwired:
        equal = [{"world": world.world, "actions equal": world.shared()} for world in played]
        blocks.append(Table(pd.DataFrame(equal), _EQUAL))
    return blocks


_EQUAL = (
    "Share of the actions that equal those of the tabular learner that selects before it updates"
)
