"""A model of Q-learning as the paper shows it: reward, agreement, and what it holds and does inside."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

import circuits
import probes
from interp.evaluation.plan import predictions_of, round_attention
from interp.evaluation.qlearning import plan as evaluation
from interp.evaluation.qlearning import rates
from interp.evaluation.qlearning.agreement import agreement_by_round
from interp.model.rollout import play, rollout
from interp.model.run import Rollout
from interp.results import figures
from interp.tasks import mdp
from interp.tasks.mdp import EVALUATION, SHIFTS, MDPEpisodes, MDPs
from interp.tasks.qlearning import bellman, tabular
from interp.tasks.qlearning.layout import serves
from interp.tasks.qlearning.mdps import REGIMES
from probes import ProbeResult
from reports import panels
from reports.blocks import Figure, Measures, Prose, Table, curves, pivoted, titled
from reports.part import Context, Part, learned, needing, uncompiled
from reports.parts import verification
from reports.parts.verification import Sweep
from reports.tasks import prose

_PROSE = prose("qlearning")
_CURVES = _PROSE["curves"]

_N_WORLDS, _HORIZON, _LONG = 10, 50, 200  # MDPs and rounds of the paper's figures 14 and 11
_N_SHIFTED = 12  # episodes of every shift

_SWEEPS = tuple(Sweep(**row) for row in _PROSE["sweeps"])


def parts() -> tuple[Part, ...]:
    """Return the parts, in page order; a handwired model needs only the chain, since its state can
    be read.
    """
    sizes = ((1, 1), (2, 2), (4, 3), (8, 4), (16, 8))
    rewards = Part(
        "rewards", "Reward by family and horizon", _play, _draw_families, learned, slow=True
    )
    selection = Part(
        "selection",
        "Selection in head L2H0 (step 3.1)",
        _select,
        _draw_selection,
        lambda context: context.model.is_handwired and min(context.sizes.values()) > 1,
        lacking=uncompiled,
    )
    chain = Part(
        "chain",
        "Attention on the chain",
        _attend,
        _draw_chain,
        lambda context: serves(context.model, 4, 2),
        slow=True,
        lacking=needing("pattern"),
    )
    return (
        verification.variants(("mlp", "softmlp", "lin"), _SWEEPS, sizes),
        rewards,
        Part("agreement-by-step", "Agreement step by step", _agree, _draw_agreement, learned),
        selection,
        Part("update", "The update", _probe_update, _draw_update, learned, slow=True),
        Part("decoded", "The decoded table", _decode, _draw_decoded, learned, slow=True),
        chain,
    )


def _play(context: Context) -> pd.DataFrame:
    """Run the model and tabular agents in every family of rewards, and in the grid for long."""
    frames = []
    for regime in EVALUATION:
        rewards = _play_regime(context, regime, _HORIZON)
        frames.append(rewards.assign(panel=REGIMES[regime].name))
    frames.append(_play_regime(context, "grid", _LONG).assign(panel=f"{_LONG} rounds"))
    return pd.concat(frames, ignore_index=True)


def _play_regime(context: Context, regime: str, n_rounds: int) -> pd.DataFrame:
    """Return the cumulative rewards of all players in one regime.

    Args:
        context: of the report.
        regime: of the MDPs.
        n_rounds: to play.
    """
    mdps = mdp.sample_mdps(_N_WORLDS, **context.sizes, seed=context.seed, regime=regime)
    return earned(played_by_all(context, mdps, n_rounds), context.seed)


def played_by_all(
    context: Context, mdps: MDPs, n_rounds: int, before_update: bool = False
) -> dict[str, tuple[str, MDPEpisodes]]:
    """Run the model and tabular agents in the same MDPs under the same luck.

    Args:
        context: of the report.
        mdps: that are played.
        n_rounds: of each.
        before_update: whether the greedy learner selects before it updates, as a handwired model
            does.

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


def earned(played: Mapping[str, tuple[str, MDPEpisodes]], seed: int) -> pd.DataFrame:
    """Return the cumulative reward over rounds, a curve for everybody who played."""
    frames = []
    for key, (name, episodes) in played.items():
        frames.append(figures.over_rounds(key, name, episodes.rewards.cumsum(1), seed))
    return pd.concat(frames)


def _draw_families(frame: pd.DataFrame, context: Context) -> list[object]:
    """Draw the rewards in every family and over the long horizon."""
    long_name = f"{_LONG} rounds"
    is_long = frame["panel"] == long_name
    tenths = frame[(frame["round"] + 1) % 10 == 0]
    size = f"{context.sizes['n_states']} states, {context.sizes['n_actions']} actions"
    families = curves(
        _CURVES["families"],
        frame[~is_long],
        of=REGIMES[EVALUATION[-1]].name,
        data=tenths,
        rounds=_HORIZON,
        n=_N_WORLDS,
        size=size,
    )
    horizon = curves(
        _CURVES["horizon"], frame[is_long], of=long_name, rounds=_LONG, n=_N_WORLDS, size=size
    )
    final_round = frame.groupby("panel")["round"].transform("max")
    table = pivoted(frame[frame["round"] == final_round], "panel", "name", "mean")
    table = table.rename(columns={"panel": "rewards"})
    return [
        Prose(_PROSE["families"]),
        families,
        horizon,
        Table(table, "Mean reward at the end", collapsed=True),
    ]


def _agree(context: Context) -> pd.DataFrame:
    """Return the agreement on untied steps by round, in the training grid and in five shifts away from it."""
    frames = [_agree_in("grid", context.episodes, context.run, context)]
    n_states, n_actions = context.sizes["n_states"], context.sizes["n_actions"]
    n_rounds = min(context.n_rounds, _HORIZON)
    shifts = [] if context.quick else SHIFTS
    for regime in shifts:
        episodes = mdp.sample(
            _N_SHIFTED, n_rounds, n_states, n_actions, context.seed, regime=regime
        )
        frames.append(_agree_in(regime, episodes, rollout(context.model, episodes), context))
    return pd.concat(frames, ignore_index=True)


def _agree_in(regime: str, episodes: MDPEpisodes, run: Rollout, context: Context) -> pd.DataFrame:
    """Return the agreement by round in one regime.

    Args:
        regime: its key.
        episodes: of the regime.
        run: of the model over them.
        context: of the report.
    """
    table = evaluation.reference_table(context.model)
    predictions = predictions_of(run)
    frame = agreement_by_round(predictions, episodes, table=table, seed=context.seed)
    return frame.assign(regime=regime)


def _draw_agreement(frame: pd.DataFrame, context: Context) -> list[object]:
    """Draw a panel a regime; rounds are pooled by fives, since each holds too few untied steps."""
    names = {"model": context.model.name, "no-bootstrap": "the table with γ = 0"}
    frame = frame.assign(hits=frame["estimate"] * frame["n_steps"])
    fives = frame.assign(round=(frame["round"] - 1) // 5 * 5 + 3)
    pooled = _sum_steps(fives[fives["round"] <= _HORIZON], ["regime", "key", "round"])
    shown = pooled.rename(columns={"key": "algorithm"})
    shown["name"] = shown["algorithm"].map(names)
    shown["panel"] = [REGIMES[regime].name for regime in shown["regime"]]
    whole = _sum_steps(frame, ["regime", "key"])
    whole["key"] = whole["key"].map(names)
    share = pivoted(whole, "regime", "key", "mean")
    _, of_model, of_rival = share.iloc[0]
    picture = curves(
        _CURVES["agreement"],
        shown,
        data=shown,
        name=context.model.name,
        own=of_model,
        rival=share.columns[2],
        other=of_rival,
    )
    return [Prose(_PROSE["by_step"]), picture, Table(share, "Agreement over all rounds")]


def _sum_steps(frame: pd.DataFrame, by: list[str]) -> pd.DataFrame:
    """Return the share of the steps that agree, by some columns."""
    sums = frame.groupby(by, sort=False, as_index=False)[["n_steps", "hits"]].sum()
    return sums.assign(mean=sums["hits"] / sums["n_steps"]).drop(columns="hits")


_BETAS = (1.0, 10.0, 100.0)
_EPSILON = 0.2


def _select(context: Context) -> pd.DataFrame:
    """Return the probability of the greedy action, round by round, under each rule of head L2H0."""
    episodes = context.episodes.select(slice(min(24, len(context.episodes))))
    greedy = predictions_of(context.run)[: len(episodes)]
    mixed = (1 - _EPSILON) * greedy + _EPSILON / episodes.n_actions
    policies = {
        "greedy": ("greedy", greedy),
        "epsilon-greedy": (f"ε-greedy, ε = {_EPSILON:g}, around the greedy head", mixed),
    }
    for beta in _BETAS:
        arguments: dict[str, Any] = {**context.circuit.arguments, "beta": beta}
        model = circuits.load(context.circuit.name, **arguments)
        chances = predictions_of(rollout(model, episodes))
        policies[f"boltzmann {beta:g}"] = f"Boltzmann, β = {beta:g}", chances
    sets = bellman.greedy_sets(episodes.next_values_before)
    is_untied = sets.sum(-1) == 1
    best = (
        sets * is_untied[..., None]
    )  # the one greedy action of the table that the round began with
    n_untied = is_untied.sum(0)
    rounds = np.flatnonzero(n_untied)
    frames = []
    for key, (name, chances) in policies.items():
        mean = (chances * best).sum((0, 2))[rounds] / n_untied[rounds]
        curve = pd.DataFrame({"round": rounds + 1, "mean": mean})
        frames.append(curve.assign(algorithm=key, name=name))
    return pd.concat(frames, ignore_index=True)


def _draw_selection(frame: pd.DataFrame, context: Context) -> list[object]:
    """Draw how often each rule chooses the best action."""
    return [Prose(_PROSE["selection"]), curves(_CURVES["selection"], frame, data=frame)]


_UPDATE = ("reward", "current_value", "bootstrapped_value", "td_error")


def _probe_update(context: Context) -> list[ProbeResult]:
    """Fit probes of the change of the latents for the parts of the Bellman update."""
    model, episodes = context.model, context.episodes
    seed, run = context.seed, context.run
    return probes.probe(model, episodes, _UPDATE, sites="change", seed=seed, run=run)


def _draw_update(results: list[ProbeResult], context: Context) -> list[object]:
    """Show what a probe reads from the change of the latents."""
    measures = [measure for result in results for measure in result]
    scores = pd.concat([result.scores() for result in results], ignore_index=True)
    best = max(results, key=lambda result: result.measure.number.estimate)
    r2 = best.measure.number.estimate
    caption = f"Of the Bellman update, a probe reads {best.target.noun} from the change best (R² {r2:.2f})."
    blocks: list[object] = [
        Prose(_PROSE["update"]),
        Measures(measures, caption),
        Table(scores, "Every output, metric and control", collapsed=True),
    ]
    by_key = {result.target.key: result for result in results}
    for key, label, figure in (("td_error", "TD error", "2, middle"), ("reward", "reward", "12")):
        result = by_key[key]
        picture = panels.readings(result.target.values, result.predictions, label=label)
        text = f"The {label} read from the change of the latent, on episodes that the probe was not fitted on."
        blocks.append(Figure(picture, f"The {label}, true and read", titled(figure, text)))
    return blocks


_Decoded = tuple[pd.DataFrame, pd.DataFrame, pd.DataFrame]
"""Frobenius norm of the error by round, root mean square error by state at the end, rates by trajectory."""


def _decode(context: Context) -> _Decoded:
    """Decode tables from the latents on held-out episodes, and compare them with the true ones and
    a table of zeros.
    """
    episodes, seed = context.episodes, context.seed
    true = episodes.q_tables
    decoded = rates.decode(context.model, episodes, seed=seed, run=context.run)
    curve = _measure_errors("model", "decoded table", decoded - true, seed)
    zeros = _measure_errors("control", "table of zeros", true, seed)
    by_state = pd.DataFrame({"state": [f"s_{i + 1}" for i in range(decoded.shape[2])]})
    by_state["decoded table"] = _measure_last(decoded - true)
    by_state["table of zeros"] = _measure_last(true)
    own_rates = rates.rates_by_episode(decoded, episodes).assign(source="decoded table")
    true_rates = rates.rates_by_episode(true, episodes).assign(source="true table")
    fitted = pd.concat([own_rates, true_rates], ignore_index=True)
    return pd.concat([curve, zeros]), by_state, fitted


def _measure_errors(key: str, name: str, error: NDArray[Any], seed: int) -> pd.DataFrame:
    """Return the Frobenius norm of the error over rounds.

    Args:
        key: picks the colour.
        name: of the curve.
        error: ``[episode, round, state, action]``.
        seed: of the bootstrap.
    """
    norm = np.linalg.norm(error, axis=(2, 3))
    return figures.over_rounds(key, name, norm, seed)


def _measure_last(error: NDArray[Any]) -> NDArray[Any]:
    """Return the root mean square error of each state after the last round."""
    return np.sqrt((error[:, -1] ** 2).mean((0, 2)))


def _draw_decoded(computed: _Decoded, context: Context) -> list[object]:
    """Draw the error of the decoded tables, and the rates that they follow."""
    errors, by_state, fitted = computed
    true = {name: context.algorithm.parameters[name] for name in ("alpha", "gamma")}
    by_source = fitted.groupby("source", sort=False)[["alpha", "gamma"]]
    quartiles = by_source.quantile(np.array([0.25, 0.5, 0.75]))
    middle = by_source.median().loc["decoded table"]
    quartiles = quartiles.rename_axis(["table", "quantile"]).reset_index()
    caption = (
        f"From the decoded tables α is {middle['alpha']:.2g} and γ {middle['gamma']:.2g} in the median. One point a "
        "trajectory; the cross is the true pair."
    )
    picture = panels.rates(fitted, true)
    return [
        Prose(_PROSE["decoded"].format(**true)),
        curves(_CURVES["decoded"], errors.assign(panel=""), data=errors),
        Table(by_state, "Root mean square error of a state's values after the last round"),
        Figure(picture, "α and γ of every trajectory", caption, fitted),
        Table(quartiles, "Quartiles over trajectories"),
    ]


def _attend(context: Context) -> pd.DataFrame:
    """Return the attention of the positions to each other on the chain."""
    episodes = mdp.sample(8, 30, 4, 2, regime="chain", seed=context.seed)
    return round_attention(context.model, episodes, rounds=slice(10, None, 4))


def _draw_chain(frame: pd.DataFrame, context: Context) -> list[object]:
    """Draw the attention on the chain, a panel a layer."""
    labels = list(frame["query"].unique())
    grids = []
    for _, of_layer in frame.groupby("layer", sort=False):
        mean = of_layer.groupby(["query", "key"])["attention"].mean().unstack("key")
        grid = mean.reindex(index=labels, columns=labels).fillna(0.0)
        grids.append(grid.to_numpy())
    names = [f"layer {layer}" for layer in frame["layer"].unique()]
    picture = panels.attention([np.stack(grids)], labels, [names], columns=2)
    text = "The 4-state, 2-action linear chain, in which action 1 steps right and pays at the end; mean over heads."
    return [Figure(picture, "Attention on the chain", titled("10", text))]
