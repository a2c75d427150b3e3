"""How a learned model of expert advice does in every regime, in long episodes, and without its latent."""

from __future__ import annotations

import pandas as pd

from interp.evaluation import suite
from interp.statistics import Interval
from reports.blocks import Figure, Prose, Table, Verdict, cell
from reports.evaluation import draw as draw_tables
from reports.findings import Finding, judged
from reports.page import Section
from reports.part import Context, Part, learned

TITLE = "Other regimes and longer episodes"
N_EPISODES = 32
"""Episodes of each regime, at most."""
_TEXT = (
    "Fresh episodes of every regime, of which only those named in the model's card were seen in training; "
    "`interp evaluate` gives the same tables, and many more numbers, with intervals."
)
_CONTROL = (
    "What the latent is worth: it is cut (put back to its initial value before every round), or swapped with another "
    "episode's; with 95 % intervals over episodes"
)
_PICTURES = {
    "length-divergence": "How far the predictions are from the Bayes predictor's, over the rounds of long episodes",
    "length-regret": "Regret over the rounds of long episodes",
    "attention-predict": "What the prediction's position attends to, by layer, mean over heads",
    "attention-update": "What the update's position attends to, by layer, mean over heads",
}
"""Captions by the name of a picture."""


def part() -> Part:
    """What ``interp evaluate`` measures, in short."""
    return Part("elsewhere", TITLE, compute, draw, learned, summary, slow=True)


def compute(context: Context) -> suite.Evaluation:
    """Everything that ``interp evaluate --theory`` measures."""
    enough = max(suite.plan_of(context.model).min_episodes, min(context.n_episodes, N_EPISODES))
    return suite.evaluate(context.model, n_episodes=enough, seed=context.seed, with_theory=True)


def summary(result: suite.Evaluation, context: Context) -> list[Finding]:
    """Whether the model needs its latent, and the statements of the paper's appendix B."""
    control = result.tables["latent_control"].set_index("quantity")
    lost, cut = (
        Interval(*control.loc[name, ["estimate", "low", "high"]]) for name in ("lost when cut", "accuracy, cut")
    )
    theory = result.tables["theory"]["holds"]
    return [
        Finding(
            "It needs its latent: without it, it is less often right",
            judged(lost, 0),
            f"{cell(lost)} of accuracy lost when the latent is cut",
            f"accuracy with it cut: {cell(cut)}",
        ),
        Finding(
            "The statements of the paper's appendix B hold of it",
            "pass" if theory.all() else "fail",
            f"{int(theory.sum())} of {len(theory)} hold",
        ),
    ]


def draw(result: suite.Evaluation, context: Context) -> Section:
    """The summary by regime, controls, pictures, and the checks of the paper's appendix B."""
    n_episodes = result.settings["n_episodes"]
    caption = f"Means over {n_episodes} episodes of each regime (half as many where episodes are long)"
    theory = result.tables["theory"]
    badges = [Verdict(bool(holds), "holds" if holds else "fails") for holds in theory["holds"]]
    shown = {name: table for name, table in result.tables.items() if name != "regret_curves"}  # drawn by regime below
    pictures = [Figure(figure, _PICTURES[name], _PICTURES[name]) for name, figure in draw_tables(shown).items()]
    return Section(
        TITLE,
        [
            Prose(_TEXT),
            Table(result.to_frame(), caption, collapsed=True),
            Table(result.tables["latent_control"], _CONTROL),
            *pictures,
            Table(
                theory.assign(holds=pd.Series(badges, dtype=object)),
                "The statements of the paper's appendix B, as numbers",
            ),
        ],
    )
