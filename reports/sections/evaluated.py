"""How a learned model does elsewhere: other regimes, longer episodes, a cut channel, the paper's appendix B."""

from __future__ import annotations

import pandas as pd

from interp.evaluation.suite import Evaluation
from reports.blocks import Figure, Prose, Table
from reports.evaluation import draw
from reports.page import Section
from reports.sections.overview import verdict

_TEXT = (
    "Fresh episodes of every regime, of which only those named in the model's card were seen in training; "
    "`interp evaluate` gives the same tables, and many more numbers, with intervals."
)
_CONTROL = (
    "What the latent is worth: it is cut (put back to its initial value before every round), or swapped with another "
    "episode's; with 95 % intervals over episodes"
)
_PICTURES = {
    "regret-": "Regret beside the baselines in the {rest} regime, with 95 % intervals over episodes",
    "length-divergence": "How far the predictions are from the Bayes predictor's, over the rounds of long episodes",
    "length-regret": "Regret over the rounds of long episodes",
    "attention-predict": "What the prediction's position attends to, by layer, mean over heads",
    "attention-update": "What the update's position attends to, by layer, mean over heads",
}
"""Captions by the beginning of a picture's name; ``{rest}`` is what follows it."""


def evaluated(result: Evaluation) -> Section:
    """The summary by regime, controls, pictures, and the theory checks of a model of expert advice."""
    n_episodes = result.settings["n_episodes"]
    caption = f"Means over {n_episodes} episodes of each regime (half as many where episodes are long)"
    theory = result.tables["theory"]
    held = pd.Series([verdict(bool(holds), "holds", "fails") for holds in theory["holds"]], dtype=object)
    pictures = [Figure(figure, _caption(name), _caption(name)) for name, figure in draw(result.tables).items()]
    return Section(
        "Other regimes and longer episodes",
        [
            Prose(_TEXT),
            Table(result.to_frame(), caption, collapsed=True),
            Table(result.tables["latent_control"], _CONTROL),
            *pictures,
            Table(theory.assign(holds=held), "The statements of the paper's appendix B, as numbers"),
        ],
    )


def _caption(name: str) -> str:
    start = next(start for start in _PICTURES if name.startswith(start))
    return _PICTURES[start].format(rest=name.removeprefix(start))
