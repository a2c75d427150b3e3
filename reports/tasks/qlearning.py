"""The report on a model of tabular Q-learning: wired by hand, or learned.

Its own sections: agreement with the table, free rollouts in MDPs, and the lemma on the handwired circuit's choosers.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from circuits.chooser import chooser_table
from interp.evaluation.qlearning import returns
from interp.evaluation.qlearning.agreement import QUANTITIES, AgreementResult, agreement
from interp.evaluation.qlearning.plan import policy, reference_table
from interp.statistics import mean_interval
from interp.tasks import mdp
from interp.tasks.mdp import MDPEpisodes, MDPs
from reports import figures
from reports.blocks import Figure, Finding, Prose, Table, badges, cell, judged
from reports.measured import IntervalPlot, Measured, Row
from reports.part import Context, Heading, Part, uncompiled, wired
from reports.parts import closing, overview, patching, probing, verification
from reports.parts.closing import titled
from reports.parts.default import default_parts
from reports.parts.patching import Difference
from reports.tasks import qlearning_paper
from reports.tasks.qlearning_paper import earned, played_by_all

_HANDWIRED = Heading(
    "Tabular Q-learning, wired by hand",
    "A causal transformer whose weights were written down, not trained, and which runs tabular Q-learning: one "
    "latent per action carries a column of the Q-table from round to round. Here it is checked against the "
    "algorithm, set free in MDPs, and looked into.",
)
_LEARNED = (
    "A transformer trained to imitate Q-learning's choices; only its latents, one per action, pass from round to "
    "round. Here its choices are compared with the table's, its latents probed, its rounds patched."
)
_DIFFERENCES = (
    Difference("Latents are another episode's", "exchange-history"),
    Difference("The reward is changed", "change-reward", metric="state"),
)
"""Two differences with two routes: what the latents hold (into the choice), and the reward (into the update)."""

_EXACT = {"carried_state": "Latents equal the Q-table"}


def parts() -> tuple[Part, ...]:
    """Every part of the report, in page order."""
    return default_parts(
        replace=(
            overview.part(handwired=_HANDWIRED, learned=_LEARNED),
            probing.state(
                "Q-values over time",
                read="Each latent holds one action's column of the Q-table; each round changes one entry. The values "
                "are read from the latents themselves.",
                decoded="What a linear probe, fitted on other episodes, decodes from the latents, beside the table.",
                units=("Q-value", "Q-value"),
                shown=(
                    "Every entry of the Q-table in episode {} (paper, figure 6)",
                    "The decoded Q-table of episode {}",
                ),
            ),
            probing.part(("table", "table_visited", "td_error", "reward")),
            patching.part(_DIFFERENCES, n_episodes=16),
        ),
        after={
            "compared": [verification.part(sizes=((4, 2), (8, 4)), n_episodes=5, said=_EXACT)],
            "state": [
                Part("agreement", _AGREEMENT, _compare, _draw_agreement, summary=_agreement_findings),
                Part("playing", "Free rollouts", _let_play, _draw_playing, summary=_playing_findings),
            ],
            "circuit": [
                verification.softening({"carried_state": "the Q-table"}, n_episodes=5, variant="softmlp"),
                Part("lemma", "The chooser's margins", _margins, _draw_margins, wired, lacking=uncompiled),
                *qlearning_paper.parts(),
            ],
            "learning": [closing.paper(qlearning_paper.HERE)],
        },
    )


_AGREEMENT = "Agreement with the table"
_FEWEST = 20
"""Disputed steps below which agreement on them decides nothing."""
_AGREEMENT_TEXT = (
    "The choice at `Select` is compared with the greedy action of the table that the round {when} with. Ties say "
    "nothing, so they are left out or broken at random. A table with γ = 0, which never bootstraps, agrees nearly as "
    "often, so its agreement stands beside every number. **Only on disputed steps, where the two tables disagree, does "
    "agreement show bootstrapping.**"
)


def _compare(context: Context) -> AgreementResult:
    table = reference_table(context.model)
    return agreement(policy(context.run), context.episodes, table=table, seed=context.seed)


def _agreement_findings(result: AgreementResult, context: Context) -> list[Finding]:
    untied, baseline, gain = (result.get(key) for key in ("untied", "untied_gamma0", "untied_gain"))
    findings = [
        Finding(
            "It chooses as its table does, more often than a table that never bootstraps",
            judged(gain, 0),
            f"{cell(untied)} of untied steps, gain {cell(gain)}",
            f"the table with γ = 0: {cell(baseline)}",
            measured=Measured(untied, controls={"γ = 0": baseline.estimate}),
            says=(
                "chooses as its table does",
                "chooses no more as its table does than as one that never bootstraps",
                "",
            ),
        )
    ]
    if n_steps := result.n_steps["disputed", "all"]:
        follows, other = result.get("disputed"), result.get("disputed_gamma0")
        text = "Where the two tables disagree, it follows the one that bootstraps"
        word = judged(follows, 0.5) if n_steps >= _FEWEST else "cannot tell"
        measured, evidence = None, f"{round(follows.estimate * n_steps)} of {n_steps} disputed steps, too few to decide"
        if n_steps >= _FEWEST:
            evidence = f"{cell(follows)} of {n_steps} disputed steps"
            measured = Measured(follows, 0.5, controls={"γ = 0": other.estimate})
        says = ("bootstraps", "does not bootstrap", "")
        findings.append(Finding(text, word, evidence, f"γ = 0: {cell(other)}", measured=measured, says=says))
    return findings


def _draw_agreement(result: AgreementResult, context: Context) -> list[object]:
    when = "ended" if reference_table(context.model) == "after" else "began"
    frame = result.to_frame()
    whole = frame[frame["phase"] == "all"].drop(columns=["quantity", "phase"])
    rows = []
    for key in ("untied", "random_ties", "disputed"):
        if n_steps := result.n_steps[key, "all"]:
            beside = {"the table with γ = 0": result.get(f"{key}_gamma0").estimate}
            rows.append(Row(f"{QUANTITIES[key]} ({n_steps} steps)", Measured(result.get(key), controls=beside)))
    phases = frame[frame["phase"] != "all"].drop(columns="quantity")
    table = whole.rename(columns={"name": "quantity"})
    beneath = Table(table, "All rounds, with 95 % intervals over episodes", collapsed=True)
    untied, baseline = (result.get(key).estimate for key in ("untied", "untied_gamma0"))
    said = f"It chooses as its table does in {untied:.2f} of untied steps, the table with γ = 0 in {baseline:.2f}."
    return [
        Prose(_AGREEMENT_TEXT.format(when=when)),
        IntervalPlot(rows, said, beneath=beneath),
        Table(phases, "Early, middle and late rounds", collapsed=True),
    ]


_N_PLAYED = 32
"""MDPs of each world, at most."""
_AGENTS = {
    "greedy": "Q-learning, selects before it updates",
    "epsilon-greedy": "Q-learning, epsilon .2",
    "random": "random actions",
    "optimal": "optimal within the rounds played",
}
_PLAYING_TEXT = (
    "The model's choice at `Select` is its next action. Every agent meets the same MDPs, starts and luck. In random "
    "MDPs, a random policy earns most of what can be earned. Read the normalised score, (earned − random) / (optimal − "
    "random), and the two worlds where control matters: a chain that pays only at its end, and a ladder, slow to climb "
    "and quick to fall from. Their actions are relabelled in every episode. The optimal policy knows the MDP."
)


@dataclass(frozen=True)
class _Played:
    """What every agent did in one world: key -> (name, episodes)."""

    world: str
    agents: Mapping[str, tuple[str, MDPEpisodes]]

    @property
    def same_as_tabular(self) -> bool:
        """Whether the model took exactly the actions of the tabular learner, in every episode."""
        model, learner = self.agents["model"][1], self.agents["greedy"][1]
        return np.array_equal(model.actions, learner.actions) and np.array_equal(model.rewards, learner.rewards)


def worlds(n_episodes: int, n_states: int, n_actions: int, seed: int) -> dict[str, MDPs]:
    """MDPs drawn from the grid and, where there is a choice, two kinds in which control matters."""
    regimes = {"random MDPs": "grid"}
    if n_states > 1 and n_actions > 1:
        regimes |= {"the chain": "chain", "the ladder": "ladder"}
    return {world: mdp.sample_mdps(n_episodes, n_states, n_actions, seed, key) for world, key in regimes.items()}


def _let_play(context: Context) -> list[_Played]:
    return [
        _Played(world, played_by_all(context, mdps, context.n_rounds, _AGENTS, before_update=True))
        for world, mdps in worlds(min(context.n_episodes, _N_PLAYED), **context.sizes, seed=context.seed).items()
    ]


def _playing_findings(played: list[_Played], context: Context) -> list[Finding]:
    if context.handwired:
        same = all(world.same_as_tabular for world in played)
        text = "Left to itself, it takes the actions of the tabular learner"
        says = ("acts as the tabular learner does", "acts otherwise than the tabular learner", "")
        evidence = "every action equal" if same else "they differ"
        return [Finding(text, "pass" if same else "fail", evidence, says=says)]
    return [_earned_as_much(world, context.seed) for world in played]


def _earned_as_much(played: _Played, seed: int) -> Finding:
    """Whether the model earns what the tabular learner earns, within a tenth of what learning is worth there."""
    sums = {key: episodes.rewards.sum(1) for key, (_, episodes) in played.agents.items()}
    worth = mean_interval(sums["greedy"] - sums["random"], seed=seed)
    margin = 0.1 * abs(worth.estimate)
    word = judged(mean_interval(sums["model"] - sums["greedy"], seed=seed), -margin)
    if worth.low <= 0:
        word = "uninformative"
    return Finding(
        f"In {played.world} it earns what the tabular learner earns",
        word,
        f"{cell(mean_interval(sums['model'], seed=seed), '.1f')}, the learner {sums['greedy'].mean():.1f}",
        f"random actions: {cell(mean_interval(sums['random'], seed=seed), '.1f')}",
        says=("earns what the tabular learner earns in", "earns less than the tabular learner in", played.world),
    )


def _draw_playing(played: list[_Played], context: Context) -> list[object]:
    seed = context.seed
    curves = earned(played[0].agents, seed)
    drawn = figures.curves(curves, ylabel="reward so far")
    said = f"{figures.ends(curves, f'reward in {played[0].world}')} Mean reward so far. {figures.BANDS}"
    caption = titled("2, left", said)
    scores = pd.concat([_scores(world, seed) for world in played], ignore_index=True)
    returned = f"Returns over {context.n_rounds} rounds, with 95 % intervals over episodes"
    blocks: list[object] = [
        Prose(_PLAYING_TEXT),
        Figure(drawn, "Cumulative reward beside tabular agents", caption),
        Table(scores, returned, formats={"earned": ".2f"}),
    ]
    if context.handwired:
        same = badges([p.same_as_tabular for p in played], "every action equal", "differs")
        frame = pd.DataFrame({"world": [p.world for p in played], "model and tabular learner": same})
        blocks.append(Table(frame, "Same seed, same actions as the tabular learner that selects before it updates?"))
    return blocks


def _scores(played: _Played, seed: int) -> pd.DataFrame:
    rows: list[tuple[Any, ...]] = []
    for name, episodes in played.agents.values():
        if episodes.n_actions == 1:  # every policy is the same: no score exists
            rows.append((played.world, name, mean_interval(episodes.rewards.sum(1), seed=seed), None))
        else:
            result = returns.normalised_score(episodes, seed=seed)
            rows.append((played.world, name, result.get("earned"), result.get("score")))
    return pd.DataFrame(rows, columns=["world", "agent", "earned", "normalised score"])


_LEAKS = (1e-4, 1e-8, 1e-12)
_LEMMA_TEXT = (
    "The chooser (paper, lemma C.1) must give its target, or the sink where there is none, at least 1 − ε of its "
    "attention. How sharp that makes it depends on the margin Δ of the position code: 1 less the largest overlap of "
    "two positions' codes. The printed lemma asks for η = ln(N/ε)/Δ and a sink ξ = 3d/Δ₀; the corrected head keys the "
    "sink by content, needs no ξ, and asks for η = (2/Δ) ln((N − 1)/ε). The last column is the softmax attention "
    "really missing, at that η, at every position of the round, firing and silent. It is a statement about this head "
    "alone, and no evidence about the error of the whole circuit, which is measured above."
)


def _margins(context: Context) -> pd.DataFrame:
    """What the lemma requires for rounds of this length, by position code and error, and what is measured."""
    n_positions = context.model.layout.n_positions
    lines = tuple(sorted({max(1, n_positions // 4), n_positions // 2, n_positions}))
    tables = [chooser_table(n_positions, leak, lines).assign(leak=leak) for leak in _LEAKS]
    frame = pd.concat(tables, ignore_index=True)
    return frame.sort_values(["code", "leak"], ascending=[True, False], kind="stable")


def _draw_margins(frame: pd.DataFrame, context: Context) -> list[object]:
    columns = {"code": "position code", "d_code": "coordinates", "margin": "margin Δ", "leak": "ε"}
    columns |= {"eta_lemma": "η, lemma", "xi_lemma": "ξ, lemma", "eta": "η, corrected"}
    table = frame[list(columns)].rename(columns=columns).assign(**{"attention missing": 1 - frame["attention"]})
    caption = f"Lemma C.1 over the {context.model.layout.n_positions} positions of a round"
    return [Prose(_LEMMA_TEXT), Table(table, caption)]
