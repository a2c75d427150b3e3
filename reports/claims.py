"""The claims that a report page can make, each with the fixed fields of its measure (see
:class:`interp.results.measure.Measure`).

Names in braces are filled in when the claim is made.
"""

from __future__ import annotations

from typing import Any

CLAIMS: dict[str, dict[str, Any]] = {
    "learns": {
        "claim": (
            "The model learns whom to follow: it makes fewer mistakes than a majority vote, "
            "which has no memory"
        ),
        "threshold": 0.0,
        "unit": "fewer mistakes after {n_rounds} rounds",
        "is_share": False,
        "yes": "learns whom to follow",
        "no": "makes more mistakes than a majority vote",
        "rests_on": ["regret"],
    },
    "bayes": {
        "claim": "The model predicts as the Bayes predictor does, within 0.01 nats a round",
        "threshold": 0.01,
        "side": "below",
        "unit": "nats a round above the log-loss of the Bayes predictor",
        "is_share": False,
        "yes": "predicts like a Bayesian",
        "no": "predicts worse than the Bayes predictor",
        "rests_on": ["regret"],
    },
    "agreement": {
        "claim": (
            "The model chooses the best action of its Q-table more often than a table that "
            "never bootstraps does"
        ),
        "threshold": 0.0,
        "unit": "share of untied steps, minus that of the table with γ = 0",
        "yes": "chooses by its Q-table",
        "no": "agrees with its Q-table no more often than with one that never bootstraps",
    },
    "bootstraps": {
        "claim": (
            "In steps in which a table that never bootstraps disagrees with Q-learning, the "
            "model chooses as Q-learning does"
        ),
        "threshold": 0.5,
        "unit": "share of disputed steps",
        "yes": "bootstraps",
        "no": "does not bootstrap",
    },
    "first round": {
        "claim": (
            "The model finds targets {depth} steps away in round {depth}, the first round in "
            "which this is possible"
        ),
        "unit": "accuracy",
        "yes": "finds targets {depth} steps away in round {depth}",
        "no": "does not find targets {depth} steps away in round {depth}",
    },
    "solves": {
        "claim": (
            "The model solves the task: it is right in 95% of episodes or more in the last "
            "round, at every depth"
        ),
        "threshold": 0.95,
        "unit": "accuracy",
        "yes": "solves the task",
        "no": "does not solve the task",
    },
    "steering": {
        "claim": (
            "At every dose, changing the state in the latents changes the prediction as in the "
            "algorithm"
        ),
        "threshold": 0.5,
        "unit": "share of the algorithm's change",
        "yes": "follows a state that is written into its latent",
        "no": "does not follow every state that is written into its latent",
    },
    "faithful": {
        "claim": (
            "The best-scored edges preserve more of the difference than equally many random edges"
        ),
        "unit": "faithfulness",
        "no": "preserves no more with its best-scored edges than with random ones",
    },
    "few": {
        "claim": "The circuit of best-scored edges has at most half of the edges",
        "threshold": 0.5,
        "side": "below",
        "unit": "share of the edges",
        "no": "needs more than half of its edges",
        "needs_control": False,
    },
    "edges": {
        "claim": (
            "At most half of the edges are enough for the effect of another episode's latents"
        ),
        "yes": "needs at most half of its edges",
    },
}
