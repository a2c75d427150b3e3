"""The report on a model of tabular Q-learning: wired by hand, or learned."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import pandas as pd

from circuits.heads import chooser_table
from interp.choices.fitting import probable
from interp.evaluation.plan import predictions_of
from interp.evaluation.qlearning import returns
from interp.evaluation.qlearning.agreement import QUANTITIES, agreement
from interp.evaluation.qlearning.plan import reference_table
from interp.results.measure import AS_WELL, FEW, UNTRAINED, Control, Measure, Scores
from interp.stats.intervals import Interval, mean_interval, ratio_interval
from interp.tasks import mdp
from interp.tasks.mdp import MDPEpisodes
from reports.blocks import Measures, Prose, Table, claim, curves, plain
from reports.part import Context, Part, uncompiled, wired
from reports.parts import overview
from reports.tasks import default_parts, prose, qlearning_paper
from reports.tasks.qlearning_paper import earned, played_by_all

_PROSE = prose("qlearning")


def parts() -> tuple[Part, ...]:
    """Every part of the report, in page order."""
    return default_parts(
        said=_PROSE["parts"],
        after={
            "state": [
                Part(
                    "agreement", _AGREEMENT, _compare, _draw_agreement, summary=_agreement_measures
                ),
                Part(
                    "playing", "Free rollouts", _let_play, _draw_playing, summary=_playing_measures
                ),
            ],
            "circuit": [
                Part(
                    "lemma",
                    "The chooser's margins",
                    _margins,
                    _draw_margins,
                    wired,
                    lacking=uncompiled,
                ),
                *qlearning_paper.parts(),
            ],
            "learning": [overview.paper(overview.shown_on("qlearning"))],
        },
    )


_AGREEMENT = "Agreement with the table"
_FEWEST = 20  # disputed steps below which agreement on them decides nothing


def _compare(context: Context) -> tuple[Scores, Scores]:
    table, episodes = reference_table(context.model), context.episodes
    model, blank = (
        agreement(given, episodes, table=table, seed=context.seed)
        for given in (predictions_of(context.run), probable(predictions_of(context.blank_run)))
    )
    return model, blank


def _agreement_measures(results: tuple[Scores, Scores], context: Context) -> list[Measure]:
    result, blank = results
    gained = Control(blank.get("untied_gain", "all").estimate)
    n_steps = result.beside["disputed", "all"]["n_steps"]
    few = (
        {"undecided": f"{FEW}: {n_steps} disputed steps, where {_FEWEST} decide"}
        if n_steps < _FEWEST
        else {}
    )
    untied = claim(
        "agreement", result.get("untied_gain", "all"), controls={UNTRAINED: gained}, unless=few
    )
    if not n_steps:
        return [untied]
    beside = {
        UNTRAINED: blank.get("disputed", "all"),
        "the table with γ = 0": result.get("disputed_gamma0", "all"),
    }
    controls = {name: Control(share.estimate) for name, share in beside.items()}
    unless = dict.fromkeys(("yes", "no"), few["undecided"]) if few else {}
    return [
        untied,
        claim("bootstraps", result.get("disputed", "all"), controls=controls, unless=unless),
    ]


def _draw_agreement(results: tuple[Scores, Scores], context: Context) -> list[object]:
    result = results[0]
    when = "ended" if reference_table(context.model) == "after" else "began"
    frame = result.to_frame()[["name", "phase", "estimate", "low", "high", "n_steps"]]
    rows = []
    for key in ("untied", "random_ties", "disputed"):
        if n_steps := result.beside[key, "all"]["n_steps"]:
            beside = {"the table with γ = 0": result.get(f"{key}_gamma0", "all").estimate}
            rows.append(
                plain(f"{QUANTITIES[key]} ({n_steps} steps)", result.get(key, "all"), beside)
            )
    table = (
        frame[frame["phase"] == "all"].drop(columns="phase").rename(columns={"name": "quantity"})
    )
    untied, baseline = (result.get(key, "all").estimate for key in ("untied", "untied_gamma0"))
    said = f"It chooses as its table does in {untied:.2f} of untied steps, and the one with γ = 0 in {baseline:.2f}."
    return [
        Prose(_PROSE["agreement"].format(when=when)),
        Measures(rows, said),
        Table(table, "All rounds, with 95 % intervals over episodes", collapsed=True),
        Table(frame[frame["phase"] != "all"], "Early, middle and late rounds", collapsed=True),
    ]


_N_PLAYED = 32  # MDPs of each world, at most


@dataclass(frozen=True)
class _Played:
    """What every agent did in one world: key -> (name, episodes)."""

    world: str
    agents: Mapping[str, tuple[str, MDPEpisodes]]

    def shared(self, key: str = "model") -> float:
        """The share of rounds in which an agent acts and earns as the tabular learner does."""
        agent, learner = self.agents[key][1], self.agents["greedy"][1]
        return float(
            ((agent.actions == learner.actions) & (agent.rewards == learner.rewards)).mean()
        )


def _let_play(of: Context) -> list[_Played]:
    """Play in MDPs drawn from the grid and, where there is a choice, in two kinds in which control matters."""
    regimes, n_episodes = {"random MDPs": "grid"}, min(of.n_episodes, _N_PLAYED)
    if min(of.sizes.values()) > 1:
        regimes |= {"the chain": "chain", "the ladder": "ladder"}
    drawn = {
        world: mdp.sample_mdps(n_episodes, **of.sizes, seed=of.seed, regime=key)
        for world, key in regimes.items()
    }
    return [
        _Played(world, played_by_all(of, mdps, of.n_rounds, before_update=True))
        for world, mdps in drawn.items()
    ]


def _playing_measures(played: list[_Played], context: Context) -> list[Measure]:
    """Of a learned model, whether it earns at least nine tenths of what the learner earns beyond random actions."""
    chance = "an agent of random actions"
    if context.model.is_handwired:
        share = min(world.shared() for world in played)
        random = Control(max(world.shared("random") for world in played))
        return [claim("playing", Interval(share, share, share), controls={chance: random})]
    measures = []
    for one in played:
        sums = {key: episodes.rewards.sum(1) for key, (_, episodes) in one.agents.items()}
        model, learner = (sums[key] - sums["random"] for key in ("model", "greedy"))
        idle = f"{chance} {AS_WELL}" if mean_interval(learner, seed=context.seed).low <= 0 else ""
        none = dict.fromkeys(("yes", "no", "undecided"), idle) if idle else {}
        number = ratio_interval(model, learner, seed=context.seed)
        measures.append(
            claim(
                "reward", number, {"world": one.world}, controls={chance: Control(0.0)}, unless=none
            )
        )
    return measures


def _draw_playing(played: list[_Played], context: Context) -> list[object]:
    scores, seed = list[tuple[Any, ...]](), context.seed
    for world in played:
        for name, episodes in world.agents.values():
            if episodes.n_actions == 1:  # every policy is the same: no score exists
                scores.append(
                    (world.world, name, mean_interval(episodes.rewards.sum(1), seed=seed), None)
                )
            else:
                result = returns.normalised_score(episodes, seed=seed)
                scores.append((world.world, name, result.get("earned"), result.get("score")))
    table = pd.DataFrame(scores, columns=["world", "agent", "earned", "normalised score"])
    returned = f"Returns over {context.n_rounds} rounds, with 95 % intervals over episodes"
    blocks: list[object] = [
        Prose(_PROSE["playing"]),
        curves(_PROSE["curves"]["reward"], earned(played[0].agents, seed), world=played[0].world),
        Table(table, returned, formats={"earned": ".2f"}),
    ]
    if context.model.is_handwired:
        frame = pd.DataFrame(
            {"world": [p.world for p in played], "actions equal": [p.shared() for p in played]}
        )
        caption = "Share of the actions that equal those of the tabular learner that selects before it updates"
        blocks.append(Table(frame, caption))
    return blocks


_LEAKS = (1e-4, 1e-8, 1e-12)


def _margins(context: Context) -> pd.DataFrame:
    """What the lemma requires for rounds of this length, by position code and error, and what is measured."""
    n_positions = context.model.layout.n_positions
    lines = tuple(sorted({max(1, n_positions // 4), n_positions // 2, n_positions}))
    tables = [chooser_table(n_positions, leak, lines).assign(leak=leak) for leak in _LEAKS]
    return pd.concat(tables, ignore_index=True).sort_values(
        ["code", "leak"], ascending=[True, False], kind="stable"
    )


def _draw_margins(frame: pd.DataFrame, context: Context) -> list[object]:
    columns = {"code": "position code", "d_code": "coordinates", "margin": "margin Δ", "leak": "ε"}
    columns |= {"eta_lemma": "η, lemma", "xi_lemma": "ξ, lemma", "eta": "η, corrected"}
    table = (
        frame[list(columns)]
        .rename(columns=columns)
        .assign(**{"attention missing": 1 - frame["attention"]})
    )
    caption = f"Lemma C.1 over the {context.model.layout.n_positions} positions of a round"
    return [Prose(_PROSE["lemma"]), Table(table, caption)]
