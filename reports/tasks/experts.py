"""The report on a model of prediction with expert advice: handwired Weighted Majority, or a learned model."""

from __future__ import annotations

import numpy as np
import pandas as pd

from interp.choices.fitting import probable
from interp.evaluation.experts import regret as scoring
from interp.evaluation.experts.regret import Calibration, calibration
from interp.evaluation.plan import predictions_of
from interp.results import figures
from interp.results.measure import UNTRAINED, Control, Measure, Scores
from interp.stats.intervals import Interval, mean_interval
from interp.tasks.experts import ExpertEpisodes, predictors
from reports.blocks import Figure, Prose, Table, cell, claim, curves
from reports.part import Context, Part
from reports.parts import heads, overview
from reports.tasks import default_parts, experts_paper, prose

_PROSE = prose("experts")


def parts() -> tuple[Part, ...]:
    """Every part of the report, in page order."""
    return default_parts(
        said=_PROSE["parts"],
        replace=(heads.attention("figures 1 and 7, right"),),
        after={
            "state": [
                Part("regret", "Regret", _score, _draw_regret, summary=_regret_measures),
                Part(
                    "calibration",
                    "Calibration",
                    lambda context: calibration(
                        predictions_of(context.run), context.episodes, seed=context.seed
                    ),
                    _draw_calibration,
                    summary=_calibration_measures,
                ),
            ],
            "circuit": experts_paper.parts(),
            "learning": [overview.paper(overview.shown_on("experts"))],
        },
    )


_BASELINES = (
    "weighted_majority",
    "follow_the_leader",
    "follow_previous_winners",
    "majority_vote",
    "bayes",
    "oracle",
)
_RIVALS = _BASELINES[:4]  # those that are told neither the prior nor the accuracies

_Scored = tuple[Scores, Interval, pd.DataFrame]
"""A predictor's scores, its regret after the last round minus the model's, paired by episode, and its regret curve."""


def _score(context: Context) -> dict[str, _Scored]:
    """The model (under the key "model", first) and the baselines, scored on the same episodes."""
    episodes, predictions, seed = context.episodes, predictions_of(context.run), context.seed
    bayes = predictors.bayes(episodes).predictions
    of_model = scoring.regret(predictions, episodes)[:, -1]

    def scored(
        key: str, name: str, predictions: np.ndarray, decision: predictors.Decision = "threshold"
    ) -> _Scored:
        score = scoring.score(
            predictions,
            episodes,
            name=name,
            decision=decision,
            reference=bayes,
            reference_name="bayes",
            seed=seed,
        )
        over = scoring.regret(predictions, episodes, decision)
        return (
            score,
            mean_interval(over[:, -1] - of_model, seed=seed),
            figures.over_rounds(key, name, over, seed),
        )

    by_key = {"model": scored("model", context.model.name, predictions)}
    for key in _BASELINES:
        baseline = predictors.PREDICTORS[key]
        predicted = baseline.run(episodes)
        by_key[key] = scored(key, baseline.name, predicted.predictions, predicted.decision)
    return by_key


def _regret_measures(by_key: dict[str, _Scored], context: Context) -> list[Measure]:
    fewer = by_key["majority_vote"][1]
    vote, bayes = (by_key[key][0].get("regret").estimate for key in ("majority_vote", "bayes"))
    blank = probable(context.model.layout.distribution(context.blank_run.predictions))[..., 1]
    idle = scoring.regret(blank, context.episodes)[:, -1].mean()
    hard = fewer.estimate <= 0 and vote <= bayes
    none = (
        "nobody can do better here: the Bayes predictor makes as many mistakes as a majority vote"
    )
    beaten, unless = (
        {UNTRAINED: Control(vote - idle)},
        {"no": none, "undecided": none} if hard else {},
    )
    learns = claim("learns", fewer, {"n_rounds": context.n_rounds}, controls=beaten, unless=unless)
    excess = {key: by_key[key][0].get("excess_log_loss") for key in ("model", *_RIVALS)}
    rival = min(_RIVALS, key=lambda key: excess[key].estimate)
    beside = {predictors.PREDICTORS[rival].name: Control(excess[rival].estimate)}
    return [
        learns,
        *([] if context.model.is_handwired else [claim("bayes", excess["model"], controls=beside)]),
    ]


def _draw_regret(by_key: dict[str, _Scored], context: Context) -> list[object]:
    episodes: ExpertEpisodes = context.episodes
    over, paired = (
        pd.concat(curve for _, _, curve in by_key.values()),
        "regret beyond the model's, paired",
    )
    columns = ["predictor", "accuracy", "regret", paired, "log-loss (nats)", "log-loss above Bayes"]
    rows = []
    for key, (scored, beyond, curve) in by_key.items():
        accuracy, regret, *losses = scored.numbers.values()
        finite = (loss if np.isfinite(loss.estimate) else None for loss in losses)
        rows.append(
            (curve["name"].iloc[0], accuracy, regret, None if key == "model" else beyond, *finite)
        )
    after = _PROSE["after"].format(rounds=episodes.n_rounds)
    return [
        Prose(_PROSE["regret"]),
        curves(_PROSE["curves"]["regret"], over, n=len(episodes), regime=episodes.regime),
        Table(pd.DataFrame(rows, columns=columns), after, dict.fromkeys(("regret", paired), ".2f")),
    ]


def _calibration_measures(result: Calibration, context: Context) -> list[Measure]:
    """Whether the error is one that a calibrated predictor would show; a wired algorithm need not be calibrated."""
    other = calibration(
        np.roll(predictions_of(context.run), 1, axis=0), context.episodes, seed=context.seed
    ).error
    beside, by_design = (
        {"the labels of other episodes": Control(other)},
        not context.model.is_handwired,
    )
    error, note = (
        Interval(*[result.error] * 3),
        f"a calibrated predictor, by chance: {cell(result.chance)}",
    )
    return [
        claim(
            "calibration",
            error,
            threshold=result.chance.high,
            controls=beside,
            by_design=by_design,
            note=note,
        )
    ]


def _draw_calibration(result: Calibration, context: Context) -> list[object]:
    drawn = figures.calibration(result.to_frame(), name=context.model.name)
    caption = _PROSE["calibration"].format(error=result.error, chance=cell(result.chance, ".3f"))
    return [Figure(drawn, "Predicted probability against frequency", caption)]
