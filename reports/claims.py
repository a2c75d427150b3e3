"""What is fixed of every claim of a page: fields of :class:`interp.results.measure.Measure`.

What stands in braces is filled in.
"""

from __future__ import annotations

from typing import Any

CLAIMS: dict[str, dict[str, Any]] = {
    "learns": {
        "claim": (
            "It learns whom to follow: fewer mistakes than a majority vote, which remembers nothing"
        ),
        "threshold": 0.0,
        "unit": "mistakes fewer after {n_rounds} rounds",
        "is_share": False,
        "yes": "learns whom to follow",
        "no": "makes as many mistakes as a majority vote",
        "rests_on": ["regret"],
    },
    "bayes": {
        "claim": "It predicts as the Bayes predictor does, within 0.01 nats a round",
        "threshold": 0.01,
        "side": "below",
        "unit": "nats a round above its log-loss",
        "is_share": False,
        "yes": "predicts like a Bayesian",
        "no": "predicts worse than the Bayes predictor",
        "rests_on": ["regret"],
    },
    "agreement": {
        "claim": ("It chooses as its table does, more often than a table that never bootstraps"),
        "threshold": 0.0,
        "unit": "share of untied steps, less that of the table with γ = 0",
        "yes": "chooses by its Q-table",
        "no": "agrees with its Q-table no more often than with one that never bootstraps",
    },
    "bootstraps": {
        "claim": "Where the two tables disagree, it follows the one that bootstraps",
        "threshold": 0.5,
        "unit": "share of disputed steps",
        "yes": "bootstraps",
        "no": "does not bootstrap",
    },
    "first round": {
        "claim": ("It knows of targets {depth} steps away in round {depth}, the first that can"),
        "unit": "accuracy",
        "yes": "knows of targets {depth} steps away in round {depth}",
        "no": "does not know of targets {depth} steps away in round {depth}",
    },
    "solves": {
        "claim": (
            "It solves the task: right in 95% of episodes or more in the last round, at every depth"
        ),
        "threshold": 0.95,
        "unit": "accuracy",
        "yes": "solves the task",
        "no": "does not solve the task",
    },
    "steering": {
        "claim": (
            "At every dose, a state written into the latents moves the prediction as it moves "
            "the algorithm's"
        ),
        "threshold": 0.5,
        "unit": "share of the algorithm's move",
        "yes": "follows a state that is written into its latent",
        "no": "only partly follows a state that is written into its latent",
    },
    "faithful": {
        "claim": "They keep more of the difference than as many at random",
        "unit": "faithfulness",
    },
    "few": {
        "claim": "They are few",
        "threshold": 0.5,
        "side": "below",
        "unit": "share of the edges",
        "needs_control": False,
    },
    "edges": {
        "claim": (
            "At most half of the edges suffice for the difference that another episode's "
            "latents make"
        ),
        "yes": "needs at most half of its edges",
        "no": "needs more than half of its edges",
    },
}
