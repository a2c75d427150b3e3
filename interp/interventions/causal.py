"""The algorithms as causal models of one round: variables, equations, and counterfactuals.

A causal model computes each variable from its parents, in order; setting a variable cuts it from its parents (do(X=x))
and everything downstream follows. Interchange interventions ask whether the network does the same when an activation is
taken from another input.

Weighted Majority (paper, section 3), ``gain`` = log gamma::

    P = sum_i softmax(log_weights)_i votes_i      match_i = [votes_i = label]      next = log_weights + gain match

The Bayes predictor with independent uniform priors, which a model trained on them should approach::

    log_odds_i = logit E[accuracy_i | hits_i, elapsed - hits_i]        P = sigmoid(sum_i (2 votes_i - 1) log_odds_i)
    next_hits = hits + match        next_log_odds likewise

Tabular Q-learning (paper, section 4)::

    column = Q(., a)    q_current = column(s)    q_next = Q(s', .)    best = max q_next    choice = argmax q_next
    td_error = r + gamma best - q_current        change = alpha td_error e_s        next_column = column + change

The choice is by the table before the update, as in the construction; the lowest index on ties.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.special import expit

from interp.tasks.experts import predictors as weighting
from interp.tasks.experts.posterior import keep_uncertain, mean_accuracy
from interp.errors import InputError, unknown_name
from interp.tasks.experts import ExpertEpisodes
from interp.tasks.mdp import MDPEpisodes

Values = Mapping[str, NDArray[Any]]


@dataclass(frozen=True)
class CausalModel:
    """A causal model of one round.

    Attributes:
        key, name: how tables call it.
        task: "experts" or "qlearning".
        inputs: ``episodes -> {input: [episode, round, ...]}``.
        equations: ``{variable: function of all variables so far}``, in causal order.
        prediction: from all variables, the outcome probabilities ``[..., outcome]``.
        memory: the variable that holds what earlier rounds left, in the units that steering uses.
        state: the variable that the round writes: all log-weights, or one column of the table.
        parameters: what it was made with.
    """

    key: str
    name: str
    task: str
    inputs: Callable[[Any], dict[str, NDArray[Any]]]
    equations: Mapping[str, Callable[[Values], NDArray[Any]]]
    prediction: Callable[[Values], NDArray[Any]]
    memory: str
    state: str
    parameters: Mapping[str, float] = field(default_factory=dict)

    def run(self, inputs: Values, do: Values | None = None) -> dict[str, NDArray[Any]]:
        """Every variable, with those of ``do`` set.

        Raises:
            InputError: ``do`` names no variable.
        """
        do = {} if do is None else do
        for name in do:
            if name not in inputs and name not in self.equations:
                raise unknown_name("variable", name, [*inputs, *self.equations], limit=20)
        values = {name: do.get(name, value) for name, value in inputs.items()}
        for name, equation in self.equations.items():
            values[name] = do[name] if name in do else equation(values)
        return values

    def interchange(
        self, base: Values, source: Values, variable: str, element: int | tuple[int, ...] | None = None
    ) -> dict[str, NDArray[Any]]:
        """The base with one variable (or one element of its trailing axes) set to its value in the source."""
        wanted = self.run(source)
        if variable not in wanted:
            raise unknown_name("variable", variable, wanted, limit=20)
        value = wanted[variable]
        if element is not None:
            own = self.run(base)[variable].copy()
            at: tuple[Any, ...] = (Ellipsis, *((element,) if isinstance(element, int) else element))
            own[at] = value[at]
            value = own
        return self.run(base, {variable: value})


def weighted_majority(gain: float = 0.5) -> CausalModel:
    """Weighted Majority with log gamma = ``gain``."""

    def inputs(episodes: ExpertEpisodes) -> dict[str, NDArray[Any]]:
        weights = weighting.log_weights(episodes, eta=gain)[:, :-1]
        return {"log_weights": weights, "votes": episodes.advice, "label": episodes.labels}

    def share(v: Values) -> NDArray[np.float64]:
        weights = np.exp(v["log_weights"] - v["log_weights"].max(-1, keepdims=True))
        return (weights * v["votes"]).sum(-1) / weights.sum(-1)

    return CausalModel(
        key="weighted_majority",
        name="Weighted Majority",
        task="experts",
        inputs=inputs,
        equations={
            "prediction": share,
            "match": lambda v: (v["votes"] == v["label"][..., None]).astype(np.float64),
            "next_log_weights": lambda v: v["log_weights"] + gain * v["match"],
        },
        prediction=lambda v: np.stack([1 - v["prediction"], v["prediction"]], -1),
        memory="log_weights",
        state="next_log_weights",
        parameters={"gain": gain},
    )


def bayes(prior: tuple[float, float] = (0.3, 0.9)) -> CausalModel:
    """The Bayes predictor for accuracies drawn from U[prior], each on its own (the "uniform" regime by default)."""

    def inputs(episodes: ExpertEpisodes) -> dict[str, NDArray[Any]]:
        hits = weighting.counts(episodes)[:, :-1]
        elapsed = np.broadcast_to(np.arange(episodes.n_rounds)[:, None], hits.shape)
        return {"hits": hits, "elapsed": elapsed, "votes": episodes.advice, "label": episodes.labels}

    def log_odds(hits: NDArray[Any], elapsed: NDArray[Any]) -> NDArray[np.float64]:
        accuracy = keep_uncertain(mean_accuracy(hits, elapsed - hits, prior))
        return np.log(accuracy) - np.log1p(-accuracy)

    def vote(v: Values) -> NDArray[np.float64]:
        return expit(((2 * v["votes"] - 1) * v["log_odds"]).sum(-1))

    return CausalModel(
        key="bayes",
        name="Bayes predictor",
        task="experts",
        inputs=inputs,
        equations={
            "log_odds": lambda v: log_odds(v["hits"], v["elapsed"]),
            "prediction": vote,
            "match": lambda v: (v["votes"] == v["label"][..., None]).astype(np.int64),
            "next_hits": lambda v: v["hits"] + v["match"],
            "next_log_odds": lambda v: log_odds(v["next_hits"], v["elapsed"] + 1),
        },
        prediction=lambda v: np.stack([1 - v["prediction"], v["prediction"]], -1),
        memory="log_odds",
        state="next_log_odds",
        parameters={"low": prior[0], "high": prior[1]},
    )


def q_learning(alpha: float = 0.1, gamma: float = 0.9) -> CausalModel:
    """Tabular Q-learning; the elements of ``q_next`` = Q(s', .) are the actions, states and actions count from 0."""

    def inputs(episodes: MDPEpisodes) -> dict[str, NDArray[Any]]:
        if (episodes.alpha, episodes.gamma) != (alpha, gamma):
            raise InputError(
                f"the episodes' tables are of alpha={episodes.alpha}, gamma={episodes.gamma}, the causal model has "
                f"alpha={alpha}, gamma={gamma}; use episodes.relearned(alpha, gamma)"
            )
        return {
            "table": episodes.q_tables[:, :-1],
            "state": episodes.states,
            "action": episodes.actions,
            "reward": episodes.rewards,
            "next_state": episodes.next_states,
        }

    def row(v: Values) -> NDArray[Any]:
        return np.take_along_axis(v["table"], v["next_state"][..., None, None], -2)[..., 0, :]

    def column(v: Values) -> NDArray[Any]:
        return np.take_along_axis(v["table"], v["action"][..., None, None], -1)[..., 0]

    def change(v: Values) -> NDArray[Any]:
        return alpha * v["td_error"][..., None] * np.eye(v["table"].shape[-2])[v["state"]]

    return CausalModel(
        key="q_learning",
        name="tabular Q-learning",
        task="qlearning",
        inputs=inputs,
        equations={
            "column": column,
            "q_current": lambda v: np.take_along_axis(v["column"], v["state"][..., None], -1)[..., 0],
            "q_next": row,
            "best": lambda v: v["q_next"].max(-1),
            "choice": lambda v: v["q_next"].argmax(-1),
            "td_error": lambda v: v["reward"] + gamma * v["best"] - v["q_current"],
            "change": change,
            "next_column": lambda v: v["column"] + v["change"],
        },
        prediction=lambda v: np.eye(v["table"].shape[-1])[v["choice"]],
        memory="table",
        state="next_column",
        parameters={"alpha": alpha, "gamma": gamma},
    )
