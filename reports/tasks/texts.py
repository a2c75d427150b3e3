"""What the pages on one task say, by task and part; what stands in braces is filled in."""

from __future__ import annotations

from typing import Any

_EXPERTS_PARTS: dict[str, dict[str, Any]] = {
    "overview": {
        "title": "Weighted Majority, wired by hand",
        "handwired": (
            "A causal transformer whose weights were written down, not trained, and which runs "
            "the Weighted Majority algorithm: one latent carries the log-weight of every "
            "expert from round to round. Here it is checked against the algorithm, compared "
            "with other predictors, and looked into."
        ),
        "learned": (
            "A transformer trained to predict with expert advice; its latent is the only thing "
            "that passes from round to round. Here it is compared with other predictors, "
            "probed for what its latent holds, and patched for what it uses."
        ),
    },
    "state": {
        "title": "Weights over time",
        "read": (
            "An expert that was right gains log γ = {gain:g}. The weights are read from the "
            "latent itself."
        ),
        "decoded": (
            "A linear probe, fitted on other episodes, decodes the log-weights from the latent "
            "after each round. They are shown beside Weighted Majority's (log γ = 1), both less "
            "their mean, since predictions depend on differences only."
        ),
        "probed": "log_weights_centred",
        "units": ["log-weight", "log-weight less the mean"],
        "shown": ["The log-weights of episode {}", "The decoded log-weights of episode {}"],
    },
    "probes": {
        "targets": ["log_weights", "log_weights_centred", "prediction"],
        "n_claimed": 2,
    },
    "patching": {
        "differences": [
            ["One expert's vote is flipped", "flip-vote", ""],
            ["Two experts' histories are swapped", "swap-histories", ""],
            ["The label is flipped", "flip-label", ""],
        ],
        "n_episodes": 32,
    },
    "verification": {
        "sizes": [2, 4, 8],
        "n_episodes": 10,
        "shown": ["prediction", "carried_state"],
    },
}
_EXPERTS_CURVES: dict[str, dict[str, Any]] = {
    "regret": {
        "title": "Regret over rounds beside the baselines",
        "caption": (
            "{ends} Means over {n} episodes of the {regime} regime. {bands} Predictors see the "
            "same episodes, so their differences are more certain than the bands suggest; see "
            "the paired column."
        ),
        "ends": "regret",
        "paper": "1 and 7, left",
        "ylabel": "regret (mistakes)",
    },
}
_EXPERTS: dict[str, Any] = {
    "regret": (
        "Regret is the number of mistakes beyond those of the best expert on the same rounds. "
        "It can be negative, since a predictor may combine experts. The Bayes predictor knows "
        "how accuracies were drawn, and no predictor can do better from these observations; the "
        "oracle knows the accuracies. A predictor that was once certain and wrong has infinite "
        "log-loss."
    ),
    "after": (
        "After {rounds} rounds, with 95 % intervals over episodes. A dash means infinite "
        "log-loss: the predictor was once certain and wrong"
    ),
    "parts": _EXPERTS_PARTS,
    "curves": _EXPERTS_CURVES,
}
_QLEARNING_PARTS: dict[str, dict[str, Any]] = {
    "overview": {
        "title": "Tabular Q-learning, wired by hand",
        "handwired": (
            "A causal transformer whose weights were written down, not trained, and which runs "
            "tabular Q-learning: one latent per action carries a column of the Q-table from "
            "round to round. Here it is checked against the algorithm and looked into."
        ),
        "learned": (
            "A transformer trained to imitate Q-learning's choices; only its latents, one per "
            "action, pass from round to round. Here its choices are compared with the table's, "
            "its latents are probed and its rounds are patched."
        ),
    },
    "state": {
        "title": "Q-values over time",
        "read": (
            "Each latent holds one action's column of the Q-table; each round changes one "
            "entry. The values are read from the latents themselves."
        ),
        "decoded": (
            "A linear probe, fitted on other episodes, decodes the table from the latents. It "
            "is shown beside the true table."
        ),
        "units": ["Q-value", "Q-value"],
        "shown": [
            "Every entry of the Q-table in episode {} (paper, figure 6)",
            "The decoded Q-table of episode {}",
        ],
    },
    "probes": {
        "targets": ["table", "table_visited", "td_error", "reward"],
    },
    "patching": {
        "differences": [
            ["Latents are another episode's", "exchange-history", ""],
            ["The reward is changed", "change-reward", "state"],
        ],
        "n_episodes": 16,
    },
    "verification": {
        "sizes": [[4, 2], [8, 4]],
        "n_episodes": 5,
        "shown": ["carried_state"],
    },
}
_QLEARNING: dict[str, Any] = {
    "agreement": (
        "The choice at `Select` is compared with the greedy action of the table that the round "
        "{when} with. Ties are left out or broken at random. A table with γ = 0, which never "
        "bootstraps, agrees nearly as often, so its agreement is shown beside every number. "
        "**Only on disputed steps, where the two tables disagree, does agreement show "
        "bootstrapping.**"
    ),
    "parts": _QLEARNING_PARTS,
}
_REACHABILITY_PARTS: dict[str, dict[str, Any]] = {
    "overview": {
        "title": "Reachability, wired by hand",
        "handwired": (
            "A causal transformer whose weights were written down, not trained, and which "
            "searches a directed graph in parallel: one latent holds every node reached so "
            "far. The idea is published (Zhu et al., NeurIPS 2025, arXiv 2505.12514), the "
            "construction is our own."
        ),
        "learned": (
            "A transformer trained to say which nodes of a directed graph are reached, round "
            "by round; its latent is the only thing that passes from round to round. Does it "
            "search in parallel, and does it use what its latent holds?"
        ),
    },
    "state": {
        "title": "Nodes reached over time",
        "read": "1 where a node is reached, read from the latent itself.",
        "shown": ["The set of episode {}", "The decoded set of episode {}"],
    },
    "probes": {
        "targets": ["reached", "member", "prediction"],
    },
    "patching": {
        "differences": [
            ["The round asks about another pair", "swap-candidates", ""],
            ["The history is another episode's", "exchange-history", ""],
            ["An edge to the negative is added", "add-edge", ""],
        ],
        "n_episodes": 32,
    },
    "verification": {
        "sizes": [[8, 12], [14, 20]],
        "n_episodes": 10,
        "shown": ["prediction", "carried_state"],
    },
}
_REACHABILITY_CURVES: dict[str, dict[str, Any]] = {
    "answers": {
        "title": "Accuracy over rounds, {regime}",
        "caption": "{ends} Targets {depth} steps from the root. {bands}",
        "ends": "accuracy on {regime} graphs",
        "ylabel": "accuracy",
    },
}
_REACHABILITY: dict[str, Any] = {
    "answers": (
        "The share of episodes in which the reachable candidate is more probable than the other "
        "(half for a tie). Nothing can be known of a target d steps away before round d; "
        "parallel search knows it from round d on, at every depth. The model is compared with "
        "searches of fewer hops or of one path, with heuristics that need no search, and with "
        "itself with a changed latent. It is **cut** (always the initial one), **frozen** "
        "(always the first thought), **reset** once, or **swapped** with another episode's. A "
        "model that answered as well without its recurrence would not be searching by it. "
        "**Discrete** keeps one of the nodes that each thought added, as a chain of thought in "
        "words would."
    ),
    "parts": _REACHABILITY_PARTS,
    "curves": _REACHABILITY_CURVES,
}
PROSE = {"experts": _EXPERTS, "qlearning": _QLEARNING, "reachability": _REACHABILITY}
