"""The paper's claims about prediction with expert advice, measured on a model.

Every function takes a model and a :class:`Sizes` and returns measures, one for each part of the
claim. Regret is the number of mistakes after 100 rounds minus that of the best expert in these
rounds; it may be negative.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

import probes
from interp.core.machine import Machine
from interp.evaluation.experts import by_regime, regret
from interp.evaluation.experts.latent import attention_to_experts, latent_control
from interp.evaluation.plan import lacks_attention
from interp.model.rollout import rollout
from interp.model.transformer import untrained
from interp.results.measure import UNTRAINED, Control, Measure
from interp.stats.intervals import Interval, mean_interval
from interp.tasks import experts
from interp.tasks.experts import ExpertEpisodes
from interp.tasks.experts.predictors import PREDICTORS, bayes, weighted_majority
from reports.ledger.sizes import Sizes

_ROUNDS = 100
COMPARABLE = 1.0
"""Difference in mistakes after 100 rounds up to which two learners count as comparable."""
BEST_LANGUAGE_MODEL = {"stratified": 7.6, "flat": 6.0, "anti-signal": 5.0}
"""Final regret of DeepSeek-V3 with its best prompt, the lowest in tables 1 and 2, by regime."""
TIMES_UNIFORM = 2.0
"""Attention counts as significant from this multiple of uniform attention on."""


def regret_like_weighted_majority(model: Machine, sizes: Sizes) -> list[Measure]:
    """Measure how many more mistakes the model makes than Weighted Majority on the same episodes.
    Weighted Majority has the learning rate that is best for these episodes.

    Args:
        model: a model of expert advice.
        sizes: number of episodes, and the seed.

    Returns:
        A list with one measure: mistakes of the model after 100 rounds minus those of Weighted
        Majority, averaged over episodes. Its control is the same number for a majority vote.
    """
    episodes = _sample("uniform", sizes)
    behind = _measure_behind_weighted_majority(_final_regret(model, episodes), episodes)
    vote_regret = _get_regret(PREDICTORS["majority_vote"].run(episodes).predictions, episodes)
    vote_behind = _measure_behind_weighted_majority(vote_regret, episodes)
    measure = Measure(
        key="regret",
        claim=(
            "The model makes at most one mistake more than Weighted Majority with the best "
            "learning rate"
        ),
        number=mean_interval(behind, seed=sizes.seed),
        threshold=COMPARABLE,
        side="below",
        unit=f"more mistakes after {_ROUNDS} rounds",
        is_share=False,
        controls={"a majority vote": Control(float(vote_behind.mean()))},
        about=model.name,
    )
    return [measure]


def needs_latent(model: Machine, sizes: Sizes) -> list[Measure]:
    """Measure the accuracy that the model loses if its latent is reset to the initial value in every
    round.

    Args:
        model: a model of expert advice.
        sizes: number of episodes, and the seed.

    Returns:
        A list with one measure: accuracy with the normal latents minus accuracy with reset ones.
        Its control is the same loss of an untrained copy of the model.
    """
    episodes = _sample("uniform", sizes)
    seed = sizes.seed
    # In these scores, latents are "cut" if they are reset in every round.
    scores = latent_control(model, episodes, seed=seed)
    untrained_scores = latent_control(untrained(model, seed), episodes, seed=seed)
    measure = Measure(
        key="needs latent",
        claim="The model is right less often when its latent is reset in every round",
        number=scores.get("lost when cut"),
        threshold=0.01,
        unit="accuracy lost",
        controls={UNTRAINED: Control(untrained_scores.get("lost when cut").estimate)},
        about=model.name,
    )
    return [measure]


def log_weights(model: Machine, sizes: Sizes) -> list[Measure]:
    """Measure how well a linear probe decodes Weighted Majority's log-weights (minus their mean
    over experts) from the model's latent.

    Args:
        model: a model of expert advice.
        sizes: number of episodes, of which at most 64 are used, and the seed.

    Returns:
        A list with one measure: the R2 of the probe. Its controls are those of :func:`probes.fit`,
        such as a probe of an untrained copy.
    """
    episodes = _sample("uniform", replace(sizes, n_episodes=min(sizes.n_episodes, 64)))
    (result,) = probes.probe(model, episodes, ["log_weights_centred"], seed=sizes.seed)
    claim = "A linear probe reads the log-weights from the model's latent"
    return [replace(result.measure, key="log-weights", claim=claim, about=model.name)]


def measure_attention_to_latent(model: Machine, sizes: Sizes) -> list[Measure]:
    """Measure how much the token at which the model predicts, ``p?``, attends to the latent token.

    Args:
        model: a model of expert advice.
        sizes: number of episodes, of which at most 32 are used, and the seed.

    Returns:
        A list with one measure: the share of attention, averaged over heads and episodes, in the
        layer where it is largest. Its control is the same share in an untrained copy of the model.
        For a model without attention, the measure says so.
    """
    missing = lacks_attention(model)
    if missing:
        return [Measure("latent attended", _LATENT_ATTENDED, lacking=missing, about=model.name)]
    episodes = _sample("uniform", replace(sizes, n_episodes=min(sizes.n_episodes, 32)))
    layout = model.layout.fit(episodes)
    uniform = 1 / (layout.predict_position + 1)  # over itself and all earlier positions
    untrained_share = _find_largest_share(untrained(model, sizes.seed), episodes)
    measure = Measure(
        key="latent attended",
        claim=_LATENT_ATTENDED,
        number=_find_largest_share(model, episodes),
        threshold=TIMES_UNIFORM * uniform,
        unit="share of attention",
        controls={UNTRAINED: Control(untrained_share.estimate)},
        about=model.name,
        caution="what a head attends to, not what it moves",
    )
    return [measure]


def three_good_experts(model: Machine, sizes: Sizes) -> list[Measure]:
    """Measure how much further the model falls behind Weighted Majority if three experts are good
    instead of one.

    Args:
        model: a model of expert advice.
        sizes: number of episodes, and the seed.

    Returns:
        A list with one measure: by how many mistakes after 100 rounds the model is behind with
        three good experts, minus the same number with one good expert. "Behind" means mistakes of
        the model minus mistakes of Weighted Majority at its best learning rate.
    """
    return [
        _measure_growth(
            model,
            sizes,
            key="three good experts",
            claim=(
                "With three good experts, the model falls further behind Weighted Majority than "
                "with one"
            ),
            regimes=("1-high-quality", "3-high-quality"),
        )
    ]


def correlated_experts(model: Machine, sizes: Sizes) -> list[Measure]:
    """Measure how much further the model falls behind Weighted Majority if the experts' correlation
    is .9 instead of .3.

    Args:
        model: a model of expert advice.
        sizes: number of episodes, and the seed.

    Returns:
        A list with one measure: by how many mistakes after 100 rounds the model is behind at the
        correlation .9, minus the same number at .3. "Behind" means mistakes of the model minus
        mistakes of Weighted Majority at its best learning rate.
    """
    return [
        _measure_growth(
            model,
            sizes,
            key="correlated experts",
            claim="With correlated experts, the model falls further behind Weighted Majority",
            regimes=("correlated-0.3", "correlated-0.9"),
        )
    ]


def language_models(model: Machine, sizes: Sizes) -> list[Measure]:
    """Compare the model's regret with that of the paper's best language model, in each regime of
    the paper's tables 1 and 2.

    Args:
        model: a model of expert advice.
        sizes: number of episodes per regime, and the seed.

    Returns:
        One measure per regime: the model's mean regret after 100 rounds. Its threshold is the
        published regret of the language model.
    """
    measures = []
    for regime, published in BEST_LANGUAGE_MODEL.items():
        episodes = _sample(regime, sizes)
        bayes_regret = _get_regret(bayes(episodes).predictions, episodes)
        measure = Measure(
            key="language models",
            claim=f"In the {regime} regime, the model makes fewer mistakes than the best language model",
            number=mean_interval(_final_regret(model, episodes), seed=sizes.seed),
            threshold=published,
            side="below",
            unit=f"regret after {_ROUNDS} rounds",
            is_share=False,
            needs_control=False,
            about=model.name,
            note=f"the Bayes predictor of the regime has {bayes_regret.mean():.2f}; the language model's "
            "number is from the paper, for 30 other instances",
        )
        measures.append(measure)
    return measures


_LATENT_ATTENDED = (
    "In some layer, the prediction token attends to the latent at least twice "
    "as much as uniform attention"
)


def _sample(regime: str, sizes: Sizes) -> ExpertEpisodes:
    """Sample episodes of expert advice with 100 rounds and four experts.

    Args:
        regime: regime of the episodes.
        sizes: number of episodes and the seed.
    """
    return experts.sample(sizes.n_episodes, _ROUNDS, n_experts=4, regime=regime, seed=sizes.seed)


def _get_regret(predictions: NDArray[np.float64], episodes: ExpertEpisodes) -> NDArray[np.float64]:
    """Return the regret after the last round of each episode, ``[episode]``.

    Args:
        predictions: probabilities P(y=1), ``[episode, round]``.
        episodes: the episodes.
    """
    return np.asarray(regret.regret(predictions, episodes)[:, -1])


def _final_regret(model: Machine, episodes: ExpertEpisodes) -> NDArray[np.float64]:
    """Run a model, and return its regret after the last round of each episode, ``[episode]``."""
    return _get_regret(by_regime.predict(model, episodes), episodes)


def _measure_behind_weighted_majority(
    final_regret: NDArray[np.float64], episodes: ExpertEpisodes
) -> NDArray[np.float64]:
    """Return a regret minus Weighted Majority's, ``[episode]``, at the learning rate with which
    Weighted Majority is best on these episodes.

    Args:
        final_regret: regret after the last round of each episode.
        episodes: the episodes.
    """
    eta = by_regime.best_eta(episodes)
    majority_regret = _get_regret(weighted_majority(episodes, eta=eta).predictions, episodes)
    return final_regret - majority_regret


def _measure_growth(
    model: Machine, sizes: Sizes, *, key: str, claim: str, regimes: tuple[str, str]
) -> Measure:
    """Measure how many more mistakes the model makes than Weighted Majority, and return this number
    in a hard regime minus the same number in an easy one.

    Args:
        model: the model.
        sizes: number of episodes and the seed.
        key: key of the claim in the ledger.
        claim: the claim as a sentence.
        regimes: the easy and the hard regime.
    """
    behind = []
    for regime in regimes:
        episodes = _sample(regime, sizes)
        behind.append(_measure_behind_weighted_majority(_final_regret(model, episodes), episodes))
    easy, hard = behind  # mistakes behind Weighted Majority, [episode] each
    # Episodes of the two regimes are independent, so any pairing gives the interval of the difference.
    return Measure(
        key=key,
        claim=claim,
        number=mean_interval(hard - easy, seed=sizes.seed),
        threshold=0.0,
        unit=f"more mistakes after {_ROUNDS} rounds",
        is_share=False,
        needs_control=False,
        about=model.name,
        note=f"{regimes[0]}: {easy.mean():+.2f} beside Weighted Majority, "
        f"{regimes[1]}: {hard.mean():+.2f}",
    )


def _find_largest_share(model: Machine, episodes: ExpertEpisodes) -> Interval:
    """Return the attention of the prediction token ``p?`` to the latent, averaged over heads and
    episodes, in the layer where it is largest.
    """
    run = rollout(model, episodes)
    shares = attention_to_experts(model, episodes, run=run).numbers
    # A key is (layer, head, reader, target); the head "mean" is the mean over heads.
    by_layer = [number for key, number in shares.items() if key[1:] == ("mean", "p?", "latent")]
    return max(by_layer, key=lambda number: number.estimate)
