"""The report on a model of prediction with expert advice: handwired Weighted Majority, or a learned model."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pandas as pd

from interp.choices.fitting import make_distributions
from interp.core.algorithm import participants_of
from interp.evaluation.experts import regret as scoring
from interp.evaluation.plan import predictions_of
from interp.results import figures
from interp.results.measure import UNTRAINED, Control, Measure, Scores
from interp.stats.intervals import Interval, mean_interval
from interp.tasks.experts import ExpertEpisodes, predictors
from reports.blocks import Prose, Table, claim, curves
from reports.part import Context, Part
from reports.parts import heads
from reports.tasks import default_parts
from reports.tasks.texts import PROSE

_PROSE = PROSE["experts"]


def parts() -> tuple[Part, ...]:
    """Return all parts of a report on a model of expert advice, in page order."""
    regret = Part("regret", "Regret", _score_predictors, _draw_regret, summary=_measure_regret)
    return default_parts(
        said=_PROSE["parts"],
        replace=(heads.attention("figures 1 and 7, right"),),
        after={
            "state": [regret],
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
_RIVALS = _BASELINES[:4]
"""The baselines that know neither the prior nor the accuracies of the experts."""


@dataclass(frozen=True)
class _Scored:
    """The scores of one predictor (the model, or a baseline) on the report's episodes.

    Attributes:
        name: name of the predictor.
        scores: its scores.
        beyond_model: its regret after the last round minus the model's, paired by episode.
        curve: table of its regret over rounds.
    """

    name: str
    scores: Scores
    beyond_model: Interval
    curve: pd.DataFrame


def _score_predictors(context: Context) -> dict[str, _Scored]:
    """Score the model and the baselines on the same episodes; return the scores by key, those of
    the model first ("model").
    """
    episodes = context.episodes
    predicted = {"model": predictors.ExpertRun(predictions_of(context.run))}
    names = {"model": context.model.name}
    for key in _BASELINES:
        baseline = predictors.PREDICTORS[key]
        predicted[key] = baseline.run(episodes)
        names[key] = baseline.name
    model_regret = scoring.regret(predicted["model"].predictions, episodes)[:, -1]  # [episode]
    participants = participants_of(episodes)
    scored = {}
    seed = context.seed
    for key, run in predicted.items():
        name = names[key]
        scores = scoring.score(
            run.predictions,
            episodes,
            name=name,
            decision=run.decision,
            reference=predicted["bayes"].predictions,
            reference_name="bayes",
            seed=seed,
        )
        regret = scoring.regret(run.predictions, episodes, run.decision)  # [episode, round]
        more_mistakes = regret[:, -1] - model_regret  # regret accumulates over rounds
        scored[key] = _Scored(
            name=name,
            scores=scores,
            beyond_model=mean_interval(more_mistakes, seed=seed, participants=participants),
            curve=figures.tabulate_by_round(key, name, regret, seed, participants),
        )
    return scored


def _measure_regret(scored: dict[str, _Scored], context: Context) -> list[Measure]:
    """Return the measure of whether the model makes fewer mistakes than a majority vote. For a
    learned model, a second measure says whether it predicts as well as the Bayes predictor.

    Args:
        scored: key of a predictor ("model" or a baseline, such as "bayes") -> its scores.
        context: the report's model, episodes and settings.
    """
    fewer_mistakes = scored["majority_vote"].beyond_model
    vote_regret = scored["majority_vote"].scores.get("regret").estimate
    bayes_regret = scored["bayes"].scores.get("regret").estimate
    # The control: by how much an untrained copy is better than a majority vote.
    distribution = context.model.layout.distribution(context.untrained_run.predictions)
    untrained_predictions = make_distributions(distribution)[..., 1]  # P(y=1), [episode, round]
    untrained_regret = scoring.regret(untrained_predictions, context.episodes)[:, -1].mean()
    unless = {}
    # If a majority vote is as good as the Bayes predictor, no model can be better than the vote. The
    # verdict is then "undecided" in place of "no".
    if fewer_mistakes.estimate <= 0 and vote_regret <= bayes_regret:
        unless = dict.fromkeys(("no", "undecided"), _NO_BETTER)
    words = {"n_rounds": context.n_rounds}
    controls = {UNTRAINED: Control(vote_regret - untrained_regret)}
    measures = [claim("learns", fewer_mistakes, words, controls=controls, unless=unless)]
    if not context.model.is_handwired:
        losses = {key: scored[key].scores.get("excess_log_loss") for key in ("model", *_RIVALS)}
        rival = min(_RIVALS, key=lambda key: losses[key].estimate)
        controls = {scored[rival].name: Control(losses[rival].estimate)}
        measures.append(claim("bayes", losses["model"], controls=controls))
    return measures


_NO_BETTER = (
    "nobody can do better here: the Bayes predictor makes as many mistakes as a majority vote"
)


def _draw_regret(scored: dict[str, _Scored], context: Context) -> list[object]:
    """Return the blocks of the page on regret: its curves over rounds, and a table with the scores
    of all predictors.

    Args:
        scored: key of a predictor, such as "model" -> its scores and its curve.
        context: the model and the episodes of the report.
    """
    episodes: ExpertEpisodes = context.episodes
    rows = []
    for key, player in scored.items():
        # The four scores of each predictor are stored in this order. Losses are infinite for a
        # predictor that was certain and wrong.
        accuracy, regret, loss, excess = player.scores.numbers.values()
        row = {"predictor": player.name, "accuracy": accuracy, "regret": regret}
        row[_PAIRED_COLUMN] = None if key == "model" else player.beyond_model
        row["log-loss (nats)"] = loss if np.isfinite(loss.estimate) else None
        row["log-loss above Bayes"] = excess if np.isfinite(excess.estimate) else None
        rows.append(row)
    caption = _PROSE["after"].format(rounds=episodes.n_rounds)
    formats = dict.fromkeys(("regret", _PAIRED_COLUMN), ".2f")
    over_rounds = pd.concat([player.curve for player in scored.values()])
    record = _PROSE["curves"]["regret"]
    return [
        Prose(_PROSE["regret"]),
        curves(record, over_rounds, n=len(episodes), regime=episodes.regime),
        Table(pd.DataFrame(rows), caption, formats),
    ]


_PAIRED_COLUMN = "regret beyond the model's, paired"
