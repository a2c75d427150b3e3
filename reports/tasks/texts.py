"""Texts of the pages on one task, by task and part; names in braces are filled in."""

from __future__ import annotations

from typing import Any

_EXPERTS_PARTS: dict[str, dict[str, Any]] = {
    "overview": {
        "title": "Weighted Majority, wired by hand",
        "handwired": (
            "A causal transformer with handwired weights that runs the Weighted Majority "
            "algorithm. One latent stores the log-weight of every expert. This page compares the "
            "model with the algorithm and with other predictors, and shows its heads."
        ),
        "learned": (
            "A transformer that was trained to predict with expert advice. Its only memory from "
            "round to round is its latent. This page compares the model with other predictors, "
            "probes its latent and patches its activations."
        ),
    },
    "state": {
        "title": "Weights over time",
        "text_if_exact": (
            "The log-weight of an expert grows by log γ = {gain:g} if the expert is right. The "
            "log-weights are read from the latent."
        ),
        "text_if_decoded": (
            "A linear probe, fitted on other episodes, decodes the log-weights from the latent "
            "after each round. The picture also has the log-weights of Weighted Majority (log γ "
            "= 1). The mean over experts is subtracted from both, because predictions depend "
            "only on differences between experts."
        ),
        "probed": "log_weights_centred",
        "units": ["log-weight", "log-weight minus the mean"],
    },
    "probes": {
        "targets": ["log_weights", "log_weights_centred", "accuracies", "prediction"],
        "n_claimed": 3,
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
        "title": "Regret over rounds, with baselines",
        "caption": (
            "{ends} Means over {n} episodes of the {regime} regime. {bands} All predictors play "
            "the same episodes, so their differences are more certain than the bands suggest. "
            "The paired column of the table has these differences."
        ),
        "ends": "regret",
        "paper": "1 and 7, left",
        "ylabel": "regret (mistakes)",
    },
}
_EXPERTS: dict[str, Any] = {
    "regret": (
        "Regret is the number of mistakes beyond those of the best expert on the same rounds. "
        "Regret can be negative, because a predictor may combine experts. The Bayes predictor "
        "knows from which distribution the experts' accuracies are drawn. On average over many "
        "episodes, no predictor can do better from the same observations; on a few, another one may. "
        "The oracle knows the accuracies themselves. A "
        "predictor that was once certain and wrong has infinite log-loss."
    ),
    "after": (
        "After {rounds} rounds, with 95 % intervals over episodes. A dash for a log-loss is "
        "infinity: the predictor was once certain and wrong"
    ),
    "parts": _EXPERTS_PARTS,
    "curves": _EXPERTS_CURVES,
}
_QLEARNING_PARTS: dict[str, dict[str, Any]] = {
    "overview": {
        "title": "Tabular Q-learning, wired by hand",
        "handwired": (
            "A causal transformer with handwired weights that runs tabular Q-learning. One "
            "latent for each action stores a column of the Q-table. This page compares the model "
            "with the algorithm, and shows its heads."
        ),
        "learned": (
            "A transformer that was trained to imitate the choices of Q-learning. Its only "
            "memory from round to round are its latents, one for each action. This page compares "
            "its choices with those of the Q-table, probes its latents and patches its "
            "activations."
        ),
    },
    "state": {
        "title": "Q-values over time",
        "text_if_exact": (
            "Each latent stores one action's column of the Q-table, and each round changes one "
            "entry. The Q-values are read from the latents without a probe."
        ),
        "text_if_decoded": (
            "A linear probe, fitted on other episodes, decodes the Q-table from the latents. The "
            "picture also has the true Q-table."
        ),
        "units": ["Q-value", "Q-value"],
    },
    "probes": {
        "targets": ["table", "table_visited", "td_error", "reward"],
    },
    "patching": {
        "differences": [
            ["The latents are those of another episode", "exchange-history", ""],
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
        "The model's choice at `Select` is compared with the action of the highest Q-value in "
        "the table with which the round {when}. Ties are left out or broken at random. A Q-table "
        "with γ = 0, which never bootstraps, can predict the choices as well, so its "
        "agreement is also listed. **Agreement shows bootstrapping only in disputed steps, in "
        "which the two tables disagree.**"
    ),
    "parts": _QLEARNING_PARTS,
}
_REACHABILITY_PARTS: dict[str, dict[str, Any]] = {
    "overview": {
        "title": "Reachability, wired by hand",
        "handwired": (
            "A causal transformer with handwired weights that searches a directed graph in "
            "parallel. One latent stores the set of nodes reached so far. The idea is from Zhu "
            "et al. (NeurIPS 2025, arXiv 2505.12514), and the construction is our own."
        ),
        "learned": (
            "A transformer that was trained to predict, round by round, which nodes of a "
            "directed graph are reached. Its only memory from round to round is its latent. Does "
            "the model search in parallel, and does it use the content of its latent?"
        ),
    },
    "state": {
        "title": "Nodes reached over time",
        "text_if_exact": (
            "For each node, the value that is read from the latent is 1 if the node is reached."
        ),
    },
    "probes": {
        "targets": ["reached", "member", "prediction"],
    },
    "patching": {
        "differences": [
            ["The round asks about another pair", "swap-candidates", ""],
            ["The history is that of another episode", "exchange-history", ""],
            ["An edge to the unreachable candidate is added", "add-edge", ""],
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
        "caption": "{ends} The targets are {depth} steps from the root. {bands}",
        "ends": "accuracy on {regime} graphs",
        "ylabel": "accuracy",
    },
}
_REACHABILITY: dict[str, Any] = {
    "answers": (
        "Accuracy is the share of episodes in which the model gives the reachable candidate the "
        "higher probability (a tie counts half). A target d steps away cannot be known before "
        "round d. A parallel search knows it from round d on, at every depth. The model is "
        "compared with searches of fewer hops or of one path, and with heuristics without "
        "search. It is also compared with itself when its latent is changed. The latent is "
        "**cut** (set to the initial latent in every round), **frozen** (kept as after the first "
        "round), **reset** once, or **swapped** with another episode's latent. If accuracy stays "
        "the same, the model does not search with its latent. With **discrete**, the latent "
        "keeps only one of the nodes that each round adds, like a chain of thought in words."
    ),
    "parts": _REACHABILITY_PARTS,
    "curves": _REACHABILITY_CURVES,
}
PROSE = {"experts": _EXPERTS, "qlearning": _QLEARNING, "reachability": _REACHABILITY}
