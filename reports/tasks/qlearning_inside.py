"""What a model of Q-learning holds and does inside, as the paper shows it: selection, update, table, the chain."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pandas as pd

import circuits
import probes
from interp.evaluation.attention import round_attention
from interp.model.rollout import rollout
from interp.tasks import mdp
from interp.tasks.mdp import MDPEpisodes
from interp.tasks.qlearning import bellman, rates
from interp.tasks.qlearning.evaluation import policy
from interp.tasks.qlearning.layout import served
from probes import ProbeResult
from reports import figures, panels
from reports.blocks import Figure, Prose, Table
from reports.page import Section
from reports.paper import titled
from reports.part import Context, Part, learned


def parts() -> tuple[Part, ...]:
    """The parts, in page order: a handwired model's choices, a learned model's update and table, attention of both."""
    return (
        Part("selection", "Selection in head 3.1", select, draw_selection, _chooses),
        Part("update", "The update", probe_update, draw_update, learned, slow=True),
        Part("decoded", "The decoded table", decode, draw_decoded, learned, slow=True),
        Part("chain", "Attention on the chain", attend, draw_chain, _serves_the_chain, slow=True),
    )


def _chooses(context: Context) -> bool:
    """Whether a handwired model has something to choose between."""
    return context.handwired and min(context.sizes.values()) > 1


def _serves_the_chain(context: Context) -> bool:
    (low_s, high_s), (low_a, high_a) = served(context.model)
    return low_s <= 4 <= high_s and low_a <= 2 <= high_a


# Selection.

BETAS = (1.0, 10.0, 100.0)
EPSILON = 0.2


def select(context: Context) -> pd.DataFrame:
    """The probability of the greedy action, round by round, under each rule of head 3.1."""
    episodes = context.episodes.select(slice(min(24, len(context.episodes))))
    greedy = {"greedy": ("greedy", context.run.predictions[: len(episodes)].double().numpy(force=True))}
    uniform = np.full_like(greedy["greedy"][1], 1 / episodes.n_actions)
    mixed = (1 - EPSILON) * greedy["greedy"][1] + EPSILON * uniform
    policies = {**greedy, "epsilon-greedy": (f"ε-greedy, ε = {EPSILON:g}, around the greedy head", mixed)}
    arguments = context.circuit.arguments
    for beta in BETAS:
        model = circuits.load(context.circuit.name, **{**arguments, "beta": beta})
        policies[f"boltzmann {beta:g}"] = f"Boltzmann, β = {beta:g}", policy(rollout(model, episodes))
    best, untied = _greedy(episodes)
    frames = []
    for key, (name, chances) in policies.items():
        mean = (chances * best).sum((0, 2)) / untied.sum(0).clip(min=1)
        rounds = np.arange(1, len(mean) + 1)
        curve = pd.DataFrame({"algorithm": key, "name": name, "round": rounds, "mean": mean})
        frames.append(curve.iloc[np.flatnonzero(untied.any(0))])
    return pd.concat(frames, ignore_index=True)


def _greedy(episodes: MDPEpisodes) -> tuple[np.ndarray, np.ndarray]:
    """The one greedy action of the table that the round began with, where there is one; and where there is one."""
    sets = bellman.greedy_sets(episodes.next_values_before)
    untied = sets.sum(-1) == 1
    return sets * untied[..., None], untied


def draw_selection(frame: pd.DataFrame, context: Context) -> Section:
    """The probability of the greedy action."""
    picture = figures.curves(frame, ylabel="probability of the greedy action")
    text = (
        "Head 3.1 reads the values of the next state and chooses. Hard, it is greedy; as a softmax of the values at "
        "inverse temperature β it is Boltzmann exploration, close to uniform while values are small; ε-greedy is a "
        "mixture of its choice with a uniform one. Mean over the untied steps of a round."
    )
    caption = "Greedy, Boltzmann and ε-greedy selection on the same episodes."
    return Section(
        "Selection in head 3.1", [Prose(text), Figure(picture, "How often the best is chosen", caption, frame)]
    )


# Probes of the update.

_PARTS = ("reward", "current_value", "bootstrapped_value", "td_error")


def probe_update(context: Context) -> list[ProbeResult]:
    """Linear probes of the change of the written latent: the parts of the Bellman update."""
    runs = context.run, context.blank_run
    return probes.probe(context.model, context.episodes, _PARTS, site="change", seed=context.seed, runs=runs)


def draw_update(results: list[ProbeResult], context: Context) -> Section:
    """Scores of all parts, then what is read of the reward and of the TD error."""
    scores = [
        {
            "part of the update": result.target.key.replace("_", " "),
            "R²": result.score,
            "inputs of the round alone": _control(result, "inputs"),
            "untrained model": _control(result, "untrained"),
            "mean absolute error": result.metrics.get("mae"),
        }
        for result in results
    ]
    by_key = {result.target.key: result for result in results}
    blocks: list[object] = [
        Prose(
            "Linear probes of how a round changes the latent that it writes. The reward, and all that the round's "
            "inputs say, can be read from a change that merely copies them: read a score beside its two controls."
        ),
        Table(pd.DataFrame(scores), "Parts of the Bellman update, read from the change; 95 % intervals over episodes"),
    ]
    for key, number in (("td_error", "2, middle"), ("reward", "12")):
        result, label = by_key[key], key.replace("_", " ").replace("td", "TD")
        picture = panels.readings(result.target.values, result.predictions, label=label)
        text = f"The {label} read from the change of the latent, on episodes that the probe was not fitted on."
        blocks.append(Figure(picture, f"The {label}, true and read", titled(number, text)))
    return Section("The update", blocks)


def _control(result: ProbeResult, name: str) -> object:
    return result.controls[name].score if name in result.controls else None


# The decoded table.


@dataclass(frozen=True)
class Decoded:
    """Decoding errors and rates of one batch of episodes.

    Attributes:
        errors: columns ``algorithm``, ``name``, ``round``, ``mean``, ``low``, ``high``: the Frobenius norm.
        by_state: state -> root mean square error after the last round, and of a table of zeros.
        rates: columns ``episode``, ``alpha``, ``gamma``, ``source``.
    """

    errors: pd.DataFrame
    by_state: pd.DataFrame
    rates: pd.DataFrame


def decode(context: Context) -> Decoded:
    """The tables that the latents hold, decoded on held-out episodes, against the true ones and a table of zeros."""
    episodes = context.episodes
    read = rates.decode(context.model, episodes, seed=context.seed, run=context.run)
    missed = {"model": ("decoded table", read - episodes.q_tables), "control": ("table of zeros", episodes.q_tables)}
    frames = []
    for key, (name, error) in missed.items():
        distance = np.sqrt((error**2).sum((2, 3)))
        frames.append(figures.over_rounds(key, name, distance, context.seed, first=0))
    last = {name: np.sqrt((error[:, -1] ** 2).mean((0, 2))) for name, error in missed.values()}
    by_state = pd.DataFrame({"state": [f"s_{i + 1}" for i in range(read.shape[2])], **last})
    found = {"decoded table": read, "true table": episodes.q_tables}
    fitted = [rates.rates_by_episode(table, episodes).assign(source=name) for name, table in found.items()]
    return Decoded(pd.concat(frames), by_state, pd.concat(fitted, ignore_index=True))


def draw_decoded(found: Decoded, context: Context) -> Section:
    """The error over rounds, the error by state, and the rates of every trajectory."""
    alpha, gamma = (context.algorithm.parameters[name] for name in ("alpha", "gamma"))
    error = panels.curves(found.errors.assign(panel=""), by="panel", ylabel="Frobenius norm of the error", columns=1)
    picture = panels.rates(found.rates, {"alpha": alpha, "gamma": gamma})
    quartiles = found.rates.groupby("source", sort=False)[["alpha", "gamma"]].quantile(np.array([0.25, 0.5, 0.75]))
    quartiles = quartiles.rename_axis(["table", "quantile"]).reset_index()
    return Section(
        "The decoded table",
        [
            Prose(
                "A linear map from each latent to its column of the Q-table, fitted on other episodes. Its error means "
                "something beside that of a table of zeros, which knows nothing; a table that is decodable need not be "
                "used. From the decoded tables, each trajectory's own learning rate α and discount γ are regressed "
                f"(true: {alpha:g} and {gamma:g}); a single trajectory determines them loosely."
            ),
            Figure(
                error,
                "Error of the decoded table over rounds",
                titled("13", "With 95 % intervals over episodes."),
                found.errors,
            ),
            Table(found.by_state, "Root mean square error of a state's values after the last round"),
            Figure(
                picture,
                "α and γ of every trajectory",
                "One point a trajectory; the cross is the true pair.",
                found.rates,
            ),
            Table(quartiles, "Quartiles over trajectories"),
        ],
    )


# The chain.


def attend(context: Context) -> pd.DataFrame:
    """The mean pattern of a round on the 4-state, 2-action chain."""
    episodes = mdp.sample(8, 30, 4, 2, regime="chain", seed=context.seed)
    return round_attention(context.model, episodes, rounds=slice(10, None, 4))


def draw_chain(frame: pd.DataFrame, context: Context) -> Section:
    """A panel a layer."""
    labels = list(dict.fromkeys(frame["query"]))
    mean = frame.groupby(["layer", "query", "key"])["attention"].mean().unstack("key")
    layers = list(dict.fromkeys(frame["layer"]))
    grids = [mean.loc[layer].reindex(index=labels, columns=labels).fillna(0.0).to_numpy() for layer in layers]
    names = [f"layer {layer + 1}" for layer in layers]
    picture = panels.attention([np.stack(grids)], labels, [names], columns=2)
    text = "The 4-state, 2-action linear chain, in which action 1 steps right and pays at the end; mean over heads."
    return Section("Attention on the chain", [Figure(picture, "Attention on the chain", titled("10", text))])
