"""A model of Q-learning as the paper shows it: reward, agreement, and what it holds and does inside."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pandas as pd

import circuits
import probes
from interp.evaluation.plan import predictions_of, round_attention
from interp.evaluation.qlearning import plan as evaluation
from interp.evaluation.qlearning import rates
from interp.evaluation.qlearning.agreement import agreement_by_round
from interp.model.rollout import play, rollout
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
    """The parts, in page order; a handwired model, whose state is read and not decoded, needs only the chain."""
    return (
        verification.variants(
            ("mlp", "softmlp", "lin"), _SWEEPS, ((1, 1), (2, 2), (4, 3), (8, 4), (16, 8))
        ),
        Part(
            "rewards",
            "Reward by family and horizon",
            _play_families,
            _draw_families,
            learned,
            slow=True,
        ),
        Part("agreement-by-step", "Agreement step by step", _agree, _draw_agreement, learned),
        Part(
            "selection",
            "Selection in head L2H0 (step 3.1)",
            _select,
            lambda frame, _: [
                Prose(_PROSE["selection"]),
                curves(_CURVES["selection"], frame, data=frame),
            ],
            lambda context: context.model.is_handwired and min(context.sizes.values()) > 1,
            lacking=uncompiled,
        ),
        Part(
            "update",
            "The update",
            lambda of: probes.probe(
                of.model, of.episodes, _UPDATE, sites="change", seed=of.seed, run=of.run
            ),
            _draw_update,
            learned,
            slow=True,
        ),
        Part("decoded", "The decoded table", _decode, _draw_decoded, learned, slow=True),
        Part(
            "chain",
            "Attention on the chain",
            lambda of: round_attention(
                of.model,
                mdp.sample(8, 30, 4, 2, regime="chain", seed=of.seed),
                rounds=slice(10, None, 4),
            ),
            _draw_chain,
            lambda context: serves(context.model, 4, 2),
            slow=True,
            lacking=needing("pattern"),
        ),
    )


def _play_families(context: Context) -> pd.DataFrame:
    frames = []
    for key, n_rounds in (*((key, _HORIZON) for key in EVALUATION), ("grid", _LONG)):
        mdps = mdp.sample_mdps(_N_WORLDS, **context.sizes, seed=context.seed, regime=key)
        panel = f"{_LONG} rounds" if n_rounds == _LONG else REGIMES[key].name
        frames.append(
            earned(played_by_all(context, mdps, n_rounds), context.seed).assign(panel=panel)
        )
    return pd.concat(frames, ignore_index=True)


def played_by_all(
    context: Context, mdps: MDPs, n_rounds: int, before_update: bool = False
) -> dict[str, tuple[str, MDPEpisodes]]:
    """What the model and tabular agents do in the same MDPs under the same luck: key -> (name, episodes).

    With ``before_update`` the greedy learner selects before it updates, as a handwired model does.
    """
    model, seed = context.model, context.seed
    alpha, gamma = (context.algorithm.parameters[name] for name in ("alpha", "gamma"))
    greedy = "Q-learning, selects before it updates" if before_update else "greedy Q-learning"
    agents = {
        "greedy": (greedy, tabular.QLearner(alpha, gamma, before_update=before_update)),
        "epsilon-greedy": (
            "ε-greedy Q-learning, ε = .2",
            tabular.QLearner(alpha, gamma, epsilon=0.2),
        ),
        "random": ("random actions", tabular.AGENTS["random"]),
        "optimal": ("optimal within the rounds played", tabular.AGENTS["optimal"]),
    }
    played = {
        key: (name, tabular.run(agent, mdps, n_rounds, seed))
        for key, (name, agent) in agents.items()
    }
    return {"model": (context.model.name, play(model, mdps, n_rounds, seed)[0]), **played}


def earned(played: Mapping[str, tuple[str, MDPEpisodes]], seed: int) -> pd.DataFrame:
    """Cumulative reward over rounds, a curve for everybody who played."""
    who = played.items()
    return pd.concat(
        [figures.over_rounds(key, name, done.rewards.cumsum(1), seed) for key, (name, done) in who]
    )


def _draw_families(frame: pd.DataFrame, context: Context) -> list[object]:
    long = frame["panel"] == f"{_LONG} rounds"
    tenths = frame[(frame["round"] + 1) % 10 == 0]
    size = f"{context.sizes['n_states']} states, {context.sizes['n_actions']} actions"
    about: dict[str, Any] = {"n": _N_WORLDS, "size": size}
    last = frame[frame["round"] == frame.groupby("panel")["round"].transform("max")]
    table = pivoted(last, "panel", "name", "mean")
    hard, far = REGIMES[EVALUATION[-1]].name, f"{_LONG} rounds"
    return [
        Prose(_PROSE["families"]),
        curves(_CURVES["families"], frame[~long], of=hard, data=tenths, rounds=_HORIZON, **about),
        curves(_CURVES["horizon"], frame[long], of=far, rounds=_LONG, **about),
        Table(table.rename(columns={"panel": "rewards"}), "Mean reward at the end", collapsed=True),
    ]


def _agree(context: Context) -> pd.DataFrame:
    """Agreement on untied steps, round by round, in the training grid and in five shifts away from it."""
    table, sizes = evaluation.reference_table(context.model), context.sizes
    ran, rounds = {"grid": (context.episodes, context.run)}, min(context.n_rounds, _HORIZON)
    for regime in () if context.quick else SHIFTS:
        episodes = mdp.sample(
            _N_SHIFTED, rounds, sizes["n_states"], sizes["n_actions"], context.seed, regime=regime
        )
        ran[regime] = episodes, rollout(context.model, episodes)
    frames = [
        agreement_by_round(predictions_of(run), episodes, table=table, seed=context.seed).assign(
            regime=regime
        )
        for regime, (episodes, run) in ran.items()
    ]
    return pd.concat(frames, ignore_index=True)


def _draw_agreement(frame: pd.DataFrame, context: Context) -> list[object]:
    """A panel a regime; rounds are pooled by fives, which hold too few untied steps each."""
    pooled = frame.assign(round=(frame["round"] - 1) // 5 * 5 + 3)
    values = pooled[["estimate", "low", "high"]].mul(pooled["n_steps"], axis=0)
    by = ["regime", "key", "round"]
    sums = (
        pd.concat([pooled[[*by, "n_steps"]], values], axis=1)
        .groupby(by, sort=False, as_index=False)
        .sum()
    )
    for column in ("estimate", "low", "high"):
        sums[column] /= sums["n_steps"]
    names = {"model": context.model.name, "no-bootstrap": "the table with γ = 0"}
    shown = sums.rename(columns={"estimate": "mean", "key": "algorithm"}).drop(
        columns=["low", "high"]
    )
    shown = shown[shown["round"] <= _HORIZON].assign(name=shown["algorithm"].map(names))
    shown["panel"] = [REGIMES[key].name for key in shown["regime"]]
    whole = frame.assign(hits=frame["estimate"] * frame["n_steps"]).groupby(
        ["regime", "key"], sort=False
    )
    share = (whole["hits"].sum() / whole["n_steps"].sum()).unstack("key").rename(columns=names)
    share, first = share.reset_index().rename_axis(columns=None), share.iloc[0]
    told = {
        "name": context.model.name,
        "own": first.iloc[0],
        "rival": first.index[1],
        "other": first.iloc[1],
    }
    return [
        Prose(_PROSE["by_step"]),
        curves(_CURVES["agreement"], shown, data=shown, **told),
        Table(share, "Agreement over all rounds"),
    ]


_BETAS = (1.0, 10.0, 100.0)
_EPSILON = 0.2


def _select(context: Context) -> pd.DataFrame:
    """The probability of the greedy action, round by round, under each rule of head L2H0."""
    episodes = context.episodes.select(slice(min(24, len(context.episodes))))
    greedy = predictions_of(context.run)[: len(episodes)]
    mixed = (1 - _EPSILON) * greedy + _EPSILON * np.full_like(greedy, 1 / episodes.n_actions)
    policies = {"greedy": ("greedy", greedy)}
    policies["epsilon-greedy"] = f"ε-greedy, ε = {_EPSILON:g}, around the greedy head", mixed
    for beta in _BETAS:
        model = circuits.load(context.circuit.name, **{**context.circuit.arguments, "beta": beta})
        policies[f"boltzmann {beta:g}"] = (
            f"Boltzmann, β = {beta:g}",
            predictions_of(rollout(model, episodes)),
        )
    sets = bellman.greedy_sets(episodes.next_values_before)
    untied = sets.sum(-1) == 1
    best = sets * untied[..., None]  # the one greedy action of the table that the round began with
    frames = []
    for key, (name, chances) in policies.items():
        mean = (chances * best).sum((0, 2)) / untied.sum(0).clip(min=1)
        curve = pd.DataFrame(
            {"algorithm": key, "name": name, "round": np.arange(1, len(mean) + 1), "mean": mean}
        )
        frames.append(curve.iloc[np.flatnonzero(untied.any(0))])
    return pd.concat(frames, ignore_index=True)


_UPDATE = ("reward", "current_value", "bootstrapped_value", "td_error")


def _draw_update(results: list[ProbeResult], context: Context) -> list[object]:
    measures = [one for result in results for one in result]
    scores = pd.concat([result.scores() for result in results], ignore_index=True)
    best = max(results, key=lambda one: one.measure.number.estimate)
    number = best.measure.number.estimate
    said = f"Of the Bellman update, a probe reads {best.target.noun} from the change best (R² {number:.2f})."
    by_key = {result.target.key: result for result in results}
    blocks: list[object] = [
        Prose(_PROSE["update"]),
        Measures(measures, said),
        Table(scores, "Every output, metric and control", collapsed=True),
    ]
    for key, figure in (("td_error", "2, middle"), ("reward", "12")):
        result, label = by_key[key], key.replace("_", " ").replace("td", "TD")
        picture = panels.readings(result.target.values, result.predictions, label=label)
        text = f"The {label} read from the change of the latent, on episodes that the probe was not fitted on."
        blocks.append(Figure(picture, f"The {label}, true and read", titled(figure, text)))
    return blocks


_Decoded = tuple[pd.DataFrame, pd.DataFrame, pd.DataFrame]
"""Frobenius norm of the error by round, root mean square error by state at the end, rates by trajectory."""


def _decode(context: Context) -> _Decoded:
    """The tables that the latents hold, decoded on held-out episodes, against the true ones and a table of zeros."""
    episodes = context.episodes
    read = rates.decode(context.model, episodes, seed=context.seed, run=context.run)
    missed = {
        "model": ("decoded table", read - episodes.q_tables),
        "control": ("table of zeros", episodes.q_tables),
    }
    frames = [
        figures.over_rounds(key, name, np.sqrt((error**2).sum((2, 3))), context.seed)
        for key, (name, error) in missed.items()
    ]
    last = {name: np.sqrt((error[:, -1] ** 2).mean((0, 2))) for name, error in missed.values()}
    by_state = pd.DataFrame({"state": [f"s_{i + 1}" for i in range(read.shape[2])], **last})
    both = {"decoded table": read, "true table": episodes.q_tables}
    fitted = [
        rates.rates_by_episode(table, episodes).assign(source=name) for name, table in both.items()
    ]
    return pd.concat(frames), by_state, pd.concat(fitted, ignore_index=True)


def _draw_decoded(decoded: _Decoded, context: Context) -> list[object]:
    errors, by_state, fitted = decoded
    true = {name: context.algorithm.parameters[name] for name in ("alpha", "gamma")}
    quartiles = fitted.groupby("source", sort=False)[["alpha", "gamma"]].quantile(
        np.array([0.25, 0.5, 0.75])
    )
    quartiles = quartiles.rename_axis(["table", "quantile"]).reset_index()
    middle = quartiles[
        (quartiles["table"] == "decoded table") & (quartiles["quantile"] == 0.5)
    ].iloc[0]
    said = f"From the decoded tables α is {middle['alpha']:.2g} and γ {middle['gamma']:.2g} in the median. One point a "
    said += "trajectory; the cross is the true pair."
    return [
        Prose(_PROSE["decoded"].format(**true)),
        curves(_CURVES["decoded"], errors.assign(panel=""), data=errors),
        Table(by_state, "Root mean square error of a state's values after the last round"),
        Figure(panels.rates(fitted, true), "α and γ of every trajectory", said, fitted),
        Table(quartiles, "Quartiles over trajectories"),
    ]


def _draw_chain(frame: pd.DataFrame, context: Context) -> list[object]:
    labels = list(dict.fromkeys(frame["query"]))
    mean = frame.groupby(["layer", "query", "key"])["attention"].mean().unstack("key")
    layers = list(dict.fromkeys(frame["layer"]))
    grids = [
        mean.loc[layer].reindex(index=labels, columns=labels).fillna(0.0).to_numpy()
        for layer in layers
    ]
    picture = panels.attention(
        [np.stack(grids)], labels, [[f"layer {layer}" for layer in layers]], columns=2
    )
    text = "The 4-state, 2-action linear chain, in which action 1 steps right and pays at the end; mean over heads."
    return [Figure(picture, "Attention on the chain", titled("10", text))]
