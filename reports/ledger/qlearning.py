"""The paper's claims about tabular Q-learning, measured on a model.

Agreement is the share of steps in which the model chooses the greedy action of the Q-table, without
steps where actions tie. Its control is the agreement with a table that does not bootstrap. If a
round's input contains a choice that the model made, it reads the choice that it actually made.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import probes
from interp.core.machine import Machine
from interp.evaluation.plan import MODEL, lacks_attention, round_attention
from interp.evaluation.qlearning import plan as evaluation
from interp.evaluation.qlearning import returns
from interp.model.transformer import untrained
from interp.results.measure import UNTRAINED, Control, Measure, Scores
from interp.stats.intervals import Interval
from interp.tasks import mdp
from interp.tasks.mdp import SHIFTS, MDPEpisodes
from reports.ledger.sizes import Sizes

NEARLY_EVERY_STEP = 0.95
"""Share of untied steps that counts as agreement "at nearly every step"."""
NINE_TENTHS = 0.9
"""Share of tabular Q-learning's score that counts as earning the same."""
_LONG_EPISODE = 500
"""Number of rounds of a long episode; its last third is scored."""
_UPDATE_TERMS = {
    "reward": "the reward",
    "current_value": "the current value",
    "bootstrapped_value": "the bootstrapped value",
    "td_error": "the TD error",
}
_OPERANDS = {"a": "the action taken", "r": "the reward", "a*": "the chosen action"}
"""Positions to which the Update token should attend, with their names in sentences."""
STRONG_ATTENTION = 0.2
"""Share of a head's attention that counts as strong; uniform attention over 16 positions is .06."""


def agrees_with_the_table(model: Machine, sizes: Sizes) -> list[Measure]:
    """Measure how often the model chooses the greedy action of tabular Q-learning on the same
    episodes, in the regime "grid", the main one in the training of the shipped models.

    Args:
        model: a model of Q-learning.
        sizes: number of episodes, and the seed.

    Returns:
        A list with one measure: the share of steps, without steps in which the best actions tie.
        Its control is the same share for a Q-table that does not bootstrap (discount 0).
    """
    return [_measure_agreement(model, "grid", sizes, key="agreement")]


def agrees_under_shift(model: Machine, sizes: Sizes) -> list[Measure]:
    """Measure how often the model chooses the greedy action of tabular Q-learning on the same
    episodes, in each regime of :data:`interp.tasks.mdp.SHIFTS`. A model's card says whether it was
    also trained in one of them.

    Args:
        model: a model of Q-learning.
        sizes: number of episodes, and the seed.

    Returns:
        One measure per regime: the share of steps, without steps in which the best actions tie. Its
        control is the same share for a Q-table that does not bootstrap (discount 0).
    """
    key = "agreement under shift"
    return [_measure_agreement(model, regime, sizes, key=key) for regime in SHIFTS]


def long_horizon(model: Machine, sizes: Sizes) -> list[Measure]:
    """Measure how often the model chooses the greedy action of tabular Q-learning on the same
    episodes, in the last third of 500 rounds.

    Args:
        model: a model of Q-learning.
        sizes: number of episodes, and the seed.

    Returns:
        A list with one measure: the share of steps, without steps in which the best actions tie.
        Its control is the same share for a Q-table that does not bootstrap (discount 0).
    """
    n_episodes = max(sizes.n_episodes // 8, 16)  # fewer, since these episodes are long
    scores = evaluation.evaluate(
        model,
        ["grid"],
        n_episodes=n_episodes,
        n_rounds=(_LONG_EPISODE, _LONG_EPISODE),  # lowest and highest number
        seed=sizes.seed,
    )
    claim = f"The model's choices agree with those of the Q-table in the last third of {_LONG_EPISODE} rounds"
    measure = _claim_agreement(
        scores, "grid", phase="late", key="long horizon", claim=claim, about=model.name
    )
    return [measure]


def earns_the_reward(model: Machine, sizes: Sizes) -> list[Measure]:
    """Measure whether the model, when it acts, earns nine tenths of what tabular Q-learning earns,
    in the regimes "chain", "ladder" and "grid".

    Args:
        model: a model of Q-learning.
        sizes: number of episodes, and the seed.

    Returns:
        One measure per regime: the model's return on a scale where 0 is the return of a random
        policy and 1 that of the optimal one. Its threshold is nine tenths of Q-learning's return on
        this scale, and its control a random policy.
    """
    n_episodes = max(sizes.n_episodes // 8, 16)  # fewer, since every regime has several policies
    horizon = returns.HORIZONS[-1]
    regimes = ("chain", "ladder", "grid")
    played = returns.evaluate(model, regimes, n_episodes=n_episodes, seed=sizes.seed)["returns"]
    measures = []
    for regime in regimes:
        tabular_return = played.get(regime, "greedy", horizon, "score").estimate
        random_return = played.get(regime, "random", horizon, "score").estimate
        measure = Measure(
            key="reward",
            claim=f"In MDPs of the {regime}, the model earns nine tenths of what tabular Q-learning earns",
            number=played.get(regime, MODEL, horizon, "score"),
            threshold=NINE_TENTHS * tabular_return,
            unit=f"share of the way from random to optimal, {horizon} rounds",
            controls={"a random policy": Control(random_return)},
            about=model.name,
            note=f"tabular Q-learning, greedy: {tabular_return:.3f}",
        )
        measures.append(measure)
    return measures


def decode_update(model: Machine, sizes: Sizes) -> list[Measure]:
    """Measure how well linear probes decode the terms of the Q-learning update from the change of
    the latent in a round. The terms are the reward, the current value, the bootstrapped value and
    the TD error.

    Args:
        model: a model of Q-learning.
        sizes: number of episodes, and the seed.

    Returns:
        One measure per term: the R2 of its probe. Its controls are those of :func:`probes.fit`,
        such as a probe of an untrained copy.
    """
    return _fit_probe(model, sizes, site="change", key="update decoded", nouns=_UPDATE_TERMS)


def decode_table(model: Machine, sizes: Sizes) -> list[Measure]:
    """Measure how well a linear probe decodes the table of tabular Q-learning (Q-table) from the
    model's latents.

    Args:
        model: a model of Q-learning.
        sizes: number of episodes, and the seed.

    Returns:
        A list with one measure: the R2 of the probe. Its controls are those of :func:`probes.fit`,
        such as a probe of an untrained copy.
    """
    return _fit_probe(
        model, sizes, site="latents", key="table decoded", nouns={"table": "the Q-table"}
    )


def update_attends(model: Machine, sizes: Sizes) -> list[Measure]:
    """Measure how strongly the token "Update", the last of a round, attends to three tokens from
    which the TD error is computed. They are the action taken, the reward, and the chosen action.

    Args:
        model: a model of Q-learning.
        sizes: the seed; the number of episodes is fixed.

    Returns:
        One measure per token: the share of the attention from "Update" that the token gets, in the
        head where this share is largest. Its control is the same share in an untrained copy of the
        model. A model without attention gets a single measure, which says so.
    """
    missing = lacks_attention(model)
    if missing:
        claim = "The Update token attends to the operands of the TD error"
        return [Measure("update attends", claim, lacking=missing, about=model.name)]
    episodes = mdp.sample(
        n_episodes=16, n_rounds=50, n_states=4, n_actions=2, regime="chain", seed=sizes.seed
    )
    attention = _find_most_attention(model, episodes)
    untrained_attention = _find_most_attention(untrained(model, sizes.seed), episodes)
    measures = []
    for label, noun in _OPERANDS.items():
        share = attention[label]
        measure = Measure(
            key="update attends",
            claim=f"In some head, the Update token attends strongly to {noun}",
            number=Interval(share, share, share),
            threshold=STRONG_ATTENTION,
            unit="share of attention on the chain",
            controls={UNTRAINED: Control(untrained_attention[label])},
            about=model.name,
            caution="what a head attends to, not what it moves",
        )
        measures.append(measure)
    return measures


def _measure_agreement(model: Machine, regime: str, sizes: Sizes, key: str) -> Measure:
    """Measure how often the model chooses the greedy action of the Q-table in one regime, over all
    rounds.

    Args:
        model: the model.
        regime: regime of the MDPs.
        sizes: number of episodes and the seed.
        key: key of the measure.
    """
    scores = evaluation.evaluate(model, [regime], n_episodes=sizes.n_episodes, seed=sizes.seed)
    claim = f"In the regime {regime}, the model's choices agree with those of the Q-table"
    return _claim_agreement(scores, regime, phase="all", key=key, claim=claim, about=model.name)


def _claim_agreement(
    scores: Scores, regime: str, *, phase: str, key: str, claim: str, about: str
) -> Measure:
    """Make the measure of how often the model chooses the greedy action of the Q-table. Its control
    is how often it chooses that of a table which does not bootstrap.

    Args:
        scores: scores of the model.
        regime: regime of the MDPs.
        phase: which rounds of an episode count, such as "late" or "all".
        key: key of the claim in the ledger.
        claim: the claim as a sentence.
        about: name of the model.
    """
    # "untied" is the share of agreement in steps without ties, "_gamma0" that of the other table.
    without_bootstrapping = scores.get(regime, MODEL, "untied_gamma0", phase).estimate
    return Measure(
        key=key,
        claim=claim,
        number=scores.get(regime, MODEL, "untied", phase),
        threshold=NEARLY_EVERY_STEP,
        unit="share of steps without ties",
        controls={"a table that never bootstraps": Control(without_bootstrapping)},
        about=about,
    )


def _fit_probe(
    model: Machine, sizes: Sizes, *, site: str, key: str, nouns: Mapping[str, str]
) -> list[Measure]:
    """Fit a linear probe for each target, and return one measure per probe.

    Args:
        model: the model.
        sizes: number of episodes and the seed.
        site: site that the probes read.
        key: key of the claim in the ledger, which all measures get.
        nouns: key of a target -> its name in the sentence of its measure.
    """
    n_episodes = min(sizes.n_episodes, 64)
    episodes = mdp.sample(n_episodes, n_rounds=50, n_states=4, n_actions=3, seed=sizes.seed)
    results = probes.probe(model, episodes, list(nouns), sites=site, seed=sizes.seed)
    measures = []
    for result in results:
        claim = f"A linear probe reads {nouns[result.target.key]}"
        measures.append(replace(result.measure, key=key, claim=claim, about=model.name))
    return measures


def _find_most_attention(model: Machine, episodes: MDPEpisodes) -> dict[str, float]:
    """Return how much the Update token attends to each of the tokens a, r and a*, in the head with
    the largest attention from Update to this token: {token: attention}.
    """
    frame = round_attention(model, episodes)
    from_update = frame[frame["query"] == "Update"]
    by_key = from_update.groupby("key")["attention"].max()
    return {label: float(by_key[label]) for label in _OPERANDS}
