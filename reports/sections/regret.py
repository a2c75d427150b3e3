"""Regret of a model beside the baselines, on the same episodes."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pandas as pd
from jaxtyping import Float

from interp.tasks.experts import predictors as algorithms
from interp.tasks.experts import regret
from interp.tasks.experts.regret import Score
from interp.statistics import Interval, mean_interval
from interp.tasks.experts import ExpertEpisodes
from reports import figures
from reports.blocks import Figure, Prose, Table
from reports.page import Section

MODEL = "model"
BASELINES = ("weighted_majority", "follow_the_leader", "follow_previous_winners", "majority_vote", "bayes", "oracle")

_TEXT = (
    "Regret is the number of mistakes beyond those of the best expert on the same rounds; it can be negative, since "
    "a predictor may combine experts. The Bayes predictor knows how accuracies were drawn and bounds what any "
    "predictor can do with these observations; the oracle knows the accuracies themselves. A predictor that was "
    "ever certain and wrong has infinite log-loss."
)


@dataclass(frozen=True)
class Scored:
    """A predictor's scores, and its regret after the last round minus the model's, paired by episode."""

    score: Score
    beyond_model: Interval


def scores(
    name: str, predictions: Float[np.ndarray, "episode round"], episodes: ExpertEpisodes, seed: int
) -> dict[str, Scored]:
    """The model (under the key ``MODEL``, first) and the baselines, scored on the same episodes."""
    bayes = algorithms.bayes(episodes).predictions
    own = regret.regret(predictions, episodes)[:, -1]

    def scored(name: str, predictions: np.ndarray, decision: algorithms.Decision) -> Scored:
        score = regret.score(
            predictions, episodes, name=name, decision=decision, reference=bayes, reference_name="bayes", seed=seed
        )
        beyond = regret.regret(predictions, episodes, decision)[:, -1] - own
        return Scored(score, mean_interval(beyond, seed=seed))

    found = {MODEL: scored(name, predictions, "threshold")}
    for key in BASELINES:
        algorithm = algorithms.get_algorithm(key)
        run = algorithm.run(episodes)
        found[key] = scored(algorithm.name, run.predictions, run.decision)
    return found


def section(found: dict[str, Scored], episodes: ExpertEpisodes) -> Section:
    """Regret curves with bands, then every metric after the last round."""
    curves = [
        s.score.curve_frame().rename(columns={"regret": "mean"}).assign(algorithm=key) for key, s in found.items()
    ]
    drawn = figures.curves(pd.concat(curves), ylabel="regret (mistakes)")
    caption = (
        f"Mean regret over {len(episodes)} episodes of the {episodes.regime} regime, with 95 % intervals over "
        "episodes. Predictors meet the same episodes, so their differences are surer than the bands suggest: see "
        "the paired column."
    )
    rows = [
        {
            "predictor": s.score.name,
            "accuracy": s.score.accuracy,
            "regret": s.score.regret,
            "regret beyond the model's, paired": None if key == MODEL else s.beyond_model,
            "log-loss (nats)": s.score.log_loss,
            "log-loss above Bayes": s.score.excess,
        }
        for key, s in found.items()
    ]
    formats = {"regret": ".2f", "regret beyond the model's, paired": ".2f"}
    after = f"After {episodes.n_rounds} rounds, with 95 % intervals over episodes"
    return Section(
        "Regret",
        [
            Prose(_TEXT),
            Figure(drawn, "Regret over rounds beside the baselines", caption),
            Table(pd.DataFrame(rows), after, formats=formats),
        ],
    )
