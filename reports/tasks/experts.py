"""The report on a model of prediction with expert advice: handwired Weighted Majority, or a learned model.

Its own sections: regret beside the baselines, calibration, and how a learned model does in other regimes.
"""

from __future__ import annotations

import numpy as np
import pandas as pd
from jaxtyping import Float

from interp import figures
from interp.evaluation.experts import regret as scoring
from interp.evaluation.experts.regret import Calibration, calibration
from interp.measure import UNTRAINED, Control, Measure
from interp.statistics import NO_NUMBER, Interval, mean_interval
from interp.tasks.experts import ExpertEpisodes, predictors
from reports import panels
from reports.blocks import Figure, Prose, Table, cell
from reports.part import Context, Heading, Part
from reports.parts import closing, heads, overview, patching, probing, verification
from reports.parts.closing import titled
from reports.parts.default import default_parts
from reports.parts.patching import Difference
from reports.tasks import experts_paper

_HANDWIRED = Heading(
    "Weighted Majority, wired by hand",
    "A causal transformer whose weights were written down, not trained, and which runs the Weighted Majority "
    "algorithm: one latent carries the log-weight of every expert from round to round. Here it is checked against "
    "the algorithm, compared with other predictors, and looked into.",
)
_LEARNED = (
    "A transformer trained to predict with expert advice; its latent is the only thing that passes from round to "
    "round. Here it is compared with other predictors, probed for what its latent holds, and patched for what it uses."
)
_DIFFERENCES = (
    Difference("One expert's vote is flipped", "flip-vote"),
    Difference("Two experts' histories are swapped", "swap-histories"),
    Difference("The label is flipped", "flip-label"),
)
"""Three differences with three routes: a vote (prediction), a history (latent), a label (update)."""

_EXACT = ("prediction", "carried_state")


def parts() -> tuple[Part, ...]:
    """Every part of the report, in page order."""
    return default_parts(
        replace=(
            overview.part(handwired=_HANDWIRED, learned=_LEARNED),
            probing.state(
                "Weights over time",
                read="An expert that was right gains log γ = {gain:g}. The weights are read from the latent itself.",
                decoded="What a linear probe, fitted on other episodes, decodes from the latent after each round, "
                "beside Weighted Majority's log-weights (log γ = 1) less their mean, on which its prediction depends.",
                probed="log_weights_centred",
                units=("log-weight", "log-weight less the mean"),
                shown=("The log-weights of episode {}", "The decoded log-weights of episode {}"),
            ),
            probing.part(("log_weights", "log_weights_centred", "prediction"), n_claimed=2),
            patching.part(_DIFFERENCES, n_episodes=32),
            heads.attention("figures 1 and 7, right"),
        ),
        after={
            "compared": [verification.part(sizes=(2, 4, 8), n_episodes=10, shown=_EXACT)],
            "state": [
                Part("regret", "Regret", _score, _draw_regret, summary=_regret_measures),
                Part("calibration", "Calibration", _calibrate, _draw_calibration, summary=_calibration_measures),
            ],
            "circuit": [
                verification.softening({"prediction": "P(y = 1)", "carried_state": "log-weights"}, n_episodes=10),
                *experts_paper.parts(),
            ],
            "learning": [closing.paper(experts_paper.HERE)],
        },
    )


_WITHIN = 0.01
"""Nats a round within which two predictors are called alike."""
_BASELINES = ("weighted_majority", "follow_the_leader", "follow_previous_winners", "majority_vote", "bayes", "oracle")
_RIVALS = _BASELINES[:4]
"""Those that are told neither the prior nor the accuracies."""
_REGRET = (
    "Regret is the number of mistakes beyond those of the best expert on the same rounds. It can be negative, since a "
    "predictor may combine experts. The Bayes predictor knows how accuracies were drawn and bounds what these "
    "observations allow; the oracle knows the accuracies. One that was ever certain and wrong has infinite log-loss."
)

_Scored = tuple[scoring.RegretScore, Interval]
"""A predictor's scores, and its regret after the last round minus the model's, paired by episode."""


def _predictions_of(context: Context) -> Float[np.ndarray, "episode round"]:
    """What the model predicts in the report's episodes, P(y = 1)."""
    return context.run.predictions.double().numpy(force=True)


def _score(context: Context) -> dict[str, _Scored]:
    """The model (under the key "model", first) and the baselines, scored on the same episodes."""
    episodes, predictions, seed = context.episodes, _predictions_of(context), context.seed
    bayes = predictors.bayes(episodes).predictions
    of_model = scoring.regret(predictions, episodes)[:, -1]

    def scored(name: str, predictions: np.ndarray, decision: predictors.Decision) -> _Scored:
        score = scoring.score(
            predictions, episodes, name=name, decision=decision, reference=bayes, reference_name="bayes", seed=seed
        )
        beyond = scoring.regret(predictions, episodes, decision)[:, -1] - of_model
        return score, mean_interval(beyond, seed=seed)

    by_key = {"model": scored(context.name, predictions, "threshold")}
    for key in _BASELINES:
        baseline = predictors.PREDICTORS[key]
        predicted = baseline.run(episodes)
        by_key[key] = scored(baseline.name, predicted.predictions, predicted.decision)
    return by_key


def _regret_measures(by_key: dict[str, _Scored], context: Context) -> list[Measure]:
    (vote, fewer), (bayes, _) = by_key["majority_vote"], by_key["bayes"]
    blank = scoring.regret(context.blank_run.predictions.double().numpy(force=True), context.episodes)[:, -1].mean()
    hard = fewer.estimate <= 0 and vote.regret.estimate <= bayes.regret.estimate
    none = "nobody can do better here: the Bayes predictor makes as many mistakes as a majority vote"
    learns = Measure(
        "learns",
        "It learns whom to follow: fewer mistakes than a majority vote, which remembers nothing",
        fewer,
        0.0,
        unit=f"mistakes fewer after {context.n_rounds} rounds",
        is_share=False,
        controls={UNTRAINED: Control(vote.regret.estimate - blank)},
        yes="learns whom to follow",
        no="makes as many mistakes as a majority vote",
        unless={"no": none, "undecided": none} if hard else {},
        rests_on=("regret",),
    )
    above, rivals = by_key["model"][0].excess, [by_key[key][0] for key in _RIVALS]
    rival = min(rivals, key=lambda score: score.excess.estimate if score.excess else np.inf)
    as_good = Measure(
        "bayes",
        f"It predicts as the Bayes predictor does, within {_WITHIN} nats a round",
        NO_NUMBER if above is None else above,
        _WITHIN,
        "below",
        unit="nats a round above its log-loss",
        is_share=False,
        controls={rival.name: Control(rival.excess.estimate if rival.excess else np.inf)},
        yes="predicts like a Bayesian",
        no="predicts worse than the Bayes predictor",
        rests_on=("regret",),
    )
    return [learns, *([] if context.handwired else [as_good])]


def _draw_regret(by_key: dict[str, _Scored], context: Context) -> list[object]:
    episodes: ExpertEpisodes = context.episodes
    curves = pd.concat(score.curve_frame().assign(algorithm=key) for key, (score, _) in by_key.items())
    curves = curves.rename(columns={"regret": "mean"})
    drawn = figures.curves(curves, ylabel="regret (mistakes)")
    caption = titled(
        "1 and 7, left",
        f"{figures.ends(curves, 'regret')} Means over {len(episodes)} episodes of the {episodes.regime} regime. "
        f"{figures.BANDS} Predictors meet the same episodes, so their differences are surer than the bands suggest: "
        "see the paired column.",
    )
    paired = "regret beyond the model's, paired"
    columns = ["predictor", "accuracy", "regret", paired, "log-loss (nats)", "log-loss above Bayes"]
    rows = [
        (s.name, s.accuracy, s.regret, None if key == "model" else beyond, _finite(s.log_loss), _finite(s.excess))
        for key, (s, beyond) in by_key.items()
    ]
    after = (
        f"After {episodes.n_rounds} rounds, with 95 % intervals over episodes; a dash where a predictor was once "
        "certain and wrong, so that its log-loss is infinite"
    )
    return [
        Prose(_REGRET),
        Figure(drawn, "Regret over rounds beside the baselines", caption),
        Table(pd.DataFrame(rows, columns=columns), after, dict.fromkeys(("regret", paired), ".2f")),
    ]


def _finite(value: Interval | None) -> Interval | None:
    return value if value is not None and np.isfinite(value.estimate) else None


def _calibrate(context: Context) -> Calibration:
    return calibration(_predictions_of(context), context.episodes, seed=context.seed)


def _calibration_measures(result: Calibration, context: Context) -> list[Measure]:
    """Whether the error is one that a calibrated predictor would show; a wired algorithm need not be calibrated."""
    other = calibration(np.roll(_predictions_of(context), 1, axis=0), context.episodes, seed=context.seed).error
    return [
        Measure(
            "calibration",
            "What it predicts with probability p comes true with frequency p",
            Interval(result.error, result.error, result.error),
            result.chance.high,
            "below",
            unit="expected calibration error",
            controls={"the labels of other episodes": Control(other)},
            yes="is calibrated",
            no="is not calibrated",
            by_design=not context.handwired,
            note=f"a calibrated predictor, by chance: {cell(result.chance)}",
        )
    ]


def _draw_calibration(result: Calibration, context: Context) -> list[object]:
    drawn = panels.calibration(result.to_frame(), name=context.name)
    caption = (
        f"The expected calibration error is {result.error:.3f}; a perfectly calibrated predictor would show "
        f"{cell(result.chance, '.3f')} by chance. Every round of every episode is binned by P(y = 1), with 95 % "
        "intervals over episodes; below, the share of rounds in each bin."
    )
    return [Figure(drawn, "Predicted probability against frequency", caption)]
