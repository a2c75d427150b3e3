"""The paper's figures on models of Q-learning: exactness, reward and agreement; ``qlearning_inside`` has the others."""

from __future__ import annotations

import pandas as pd

from interp.model.rollout import play, rollout
from interp.tasks import mdp
from interp.tasks.mdp import EVALUATION, SHIFTS, MDPEpisodes
from interp.tasks.qlearning import evaluation, returns, tabular
from interp.tasks.qlearning.agreement import agreement_by_round
from interp.tasks.qlearning.regimes import REGIMES
from reports import figures, panels
from reports.blocks import Figure, Prose, Table
from reports.page import Section
from reports.paper import Here, titled
from reports.part import Context, Part, learned
from reports.parts import variants
from reports.parts.variants import Sweep
from reports.tasks import qlearning_inside

N_WORLDS, HORIZON, LONG = 10, 50, 200
"""MDPs and rounds of the paper's figures 14 and 11."""
N_SHIFTED = 12
"""Episodes of every shift."""

_SOFT = ("softmlp",)

HERE = {
    "2": Here("agreement-by-step", "three figures here: reward is under Free rollouts, the probe under The update"),
    "6": Here("state", "the largest difference is printed"),
    "10": Here("chain", "one panel a layer, mean over heads, rounds and episodes"),
    "11": Here("rewards", "10 MDPs; intervals over MDPs"),
    "12": Here("update", "out of fold, beside the controls of every probe"),
    "13": Here("decoded", "per round and per state, beside a table of zeros"),
    "14": Here("rewards", "intervals instead of standard deviations; a random policy is added"),
}


SWEEPS = (
    Sweep("eta", "inverse temperature η", (10.0, 20.0, 40.0, 60.0)),
    Sweep("hardness", "hardness of the maximum", (1.0, 1e2, 1e4, 1e8), fixed={"eta": 60.0}, variants=_SOFT, log=True),
    Sweep(
        "beta", "inverse temperature β of Boltzmann exploration in head 3.1", (1.0, 10.0, 100.0), output=True, log=True
    ),
)


def parts() -> tuple[Part, ...]:
    """The parts, in page order; a handwired model, whose state is read and not decoded, needs only the chain."""
    return (
        variants.part(("mlp", "softmlp", "lin"), SWEEPS, ((1, 1), (2, 2), (4, 3), (8, 4), (16, 8))),
        Part("rewards", "Reward by family and horizon", play_families, draw_families, learned, slow=True),
        Part("agreement-by-step", "Agreement step by step", agree, draw_agreement, learned),
        *qlearning_inside.parts(),
    )


# Reward.


def play_families(context: Context) -> pd.DataFrame:
    """Cumulative reward of the model and of tabular agents, in six reward families and over a long horizon."""
    frames = [_played(context, key, HORIZON).assign(panel=REGIMES[key].name) for key in EVALUATION]
    long = _played(context, "grid", LONG).assign(panel=f"{LONG} rounds")
    return pd.concat([*frames, long], ignore_index=True)


def _played(context: Context, regime: str, n_rounds: int) -> pd.DataFrame:
    seed = context.seed
    mdps = mdp.sample_mdps(N_WORLDS, context.sizes["n_states"], context.sizes["n_actions"], seed, regime)
    alpha, gamma = (context.algorithm.parameters[name] for name in ("alpha", "gamma"))
    agents = {
        "greedy": ("greedy Q-learning", tabular.QLearner(alpha, gamma)),
        "epsilon-greedy": ("ε-greedy Q-learning, ε = .2", tabular.QLearner(alpha, gamma, epsilon=0.2)),
        "random": ("random actions", tabular.agent("random")),
        "optimal": ("optimal within the horizon", tabular.agent("optimal")),
    }
    played: dict[str, tuple[str, MDPEpisodes]] = {"model": (context.name, play(context.model, mdps, n_rounds, seed)[0])}
    played |= {key: (name, tabular.run(agent, mdps, n_rounds, seed)) for key, (name, agent) in agents.items()}
    return pd.concat(
        [figures.over_rounds(key, name, returns.cumulative(episodes), seed) for key, (name, episodes) in played.items()]
    )


def draw_families(frame: pd.DataFrame, context: Context) -> Section:
    """Six panels, then the long horizon."""
    long = frame["panel"] == f"{LONG} rounds"
    tenths = frame[frame["round"] % 10 == 0]
    size = f"{context.sizes['n_states']} states, {context.sizes['n_actions']} actions"
    six = panels.curves(frame[~long], by="panel", ylabel="reward so far")
    one = panels.curves(frame[long], by="panel", ylabel="reward so far", columns=1, height=2.6)
    last = frame[frame["round"] == frame.groupby("panel")["round"].transform("max")]
    table = last.pivot(index="panel", columns="name", values="mean")[list(dict.fromkeys(last["name"]))]
    table = table.loc[list(dict.fromkeys(last["panel"]))].reset_index().rename_axis(columns=None)
    said = f"mean of {N_WORLDS} MDPs ({size}), with 95 % intervals over MDPs; every agent meets the same luck."
    return Section(
        "Reward by family and horizon",
        [
            Prose(
                "The model acts by its own choices. On MDPs drawn at random a random policy already earns most of what "
                "can be earned: its curve stands beside the others, and the chain and the ladder are under Free "
                "rollouts."
            ),
            Figure(
                six, "Reward in six families", titled("14", f"Cumulative reward over {HORIZON} rounds, {said}"), tenths
            ),
            Figure(one, "Reward over a long horizon", titled("11", f"Cumulative reward over {LONG} rounds, {said}")),
            Table(table.rename(columns={"panel": "rewards"}), "Mean reward at the end", collapsed=True),
        ],
    )


# Agreement.


def agree(context: Context) -> pd.DataFrame:
    """Agreement on untied steps, round by round, in the training grid and in five shifts away from it."""
    table, sizes = evaluation.reference_table(context.model), context.sizes
    choices = context.run.predictions.double().numpy(force=True)
    frames = [agreement_by_round(choices, context.episodes, table=table, seed=context.seed).assign(regime="grid")]
    for regime in () if context.quick else SHIFTS:
        rounds = min(context.n_rounds, HORIZON)
        episodes = mdp.sample(N_SHIFTED, rounds, sizes["n_states"], sizes["n_actions"], context.seed, regime=regime)
        policy = rollout(context.model, episodes).predictions.double().numpy(force=True)
        frames.append(agreement_by_round(policy, episodes, table=table, seed=context.seed).assign(regime=regime))
    return pd.concat(frames, ignore_index=True)


def draw_agreement(frame: pd.DataFrame, context: Context) -> Section:
    """A panel a regime; rounds are pooled by fives, which hold too few untied steps each."""
    pooled = frame.assign(round=(frame["round"] - 1) // 5 * 5 + 3)
    values = pooled[["estimate", "low", "high"]].mul(pooled["n_steps"], axis=0)
    by = ["regime", "key", "round"]
    sums = pd.concat([pooled[[*by, "n_steps"]], values], axis=1).groupby(by, sort=False, as_index=False).sum()
    for column in ("estimate", "low", "high"):
        sums[column] /= sums["n_steps"]
    names = {"model": context.name, "no-bootstrap": "the table with γ = 0"}
    shown = sums.rename(columns={"estimate": "mean", "key": "algorithm"}).drop(columns=["low", "high"])
    shown = shown[shown["round"] <= HORIZON].assign(name=shown["algorithm"].map(names))
    shown["panel"] = [REGIMES[key].name for key in shown["regime"]]
    picture = panels.curves(shown, by="panel", ylabel="agreement, untied steps", columns=2)
    whole = frame.assign(hits=frame["estimate"] * frame["n_steps"]).groupby(["regime", "key"], sort=False)
    share = (whole["hits"].sum() / whole["n_steps"].sum()).unstack("key").rename(columns=names)
    share = share.reset_index().rename_axis(columns=None)
    return Section(
        "Agreement step by step",
        [
            Prose(
                "How often the choice is the greedy action of the table, on steps without ties, in fives of rounds. "
                "The five shifts lie outside the training grid. They are those of the paper, not cells of the grid "
                "that bear the same names: `sparse` and `dense` of the toolkit are training cells, and its "
                "`high-variance` has the grid's transitions; `sparse-shift` is Beta(.1, 2) and `dense-shift` "
                "Beta(10, 10), both with Dirichlet(1), and `high-variance-shift` Beta(.1, .1) with Dirichlet(.5)."
            ),
            Figure(
                picture,
                "Agreement over rounds by regime",
                titled("2, right", "Agreement with tabular Q-learning."),
                shown,
            ),
            Table(share, "Agreement over all rounds"),
        ],
    )
