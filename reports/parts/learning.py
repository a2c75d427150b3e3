"""How fast a setting learns beside another: the runs that a shipped model's settings were compared with."""

from __future__ import annotations

import pandas as pd

from interp.training.goal import goal_of
from interp.training.runs import over_seeds, shipped_curves
from reports.blocks import TEXTS, Figure, Prose, Table, curves
from reports.page import Section
from reports.part import Context, Part

_TITLE = "How the update of the latent learns"
_TEXT = TEXTS["learning"]["text"]
_NOT = " This is NOT evidence of what a setting would reach with more steps or a learning rate of its own."


def part(title: str = _TITLE, text: str = _TEXT) -> Part:
    """The learning curves that ship beside a model; ``title`` and ``text`` say what the runs were compared for.

    A machine that is no transformer ships none, and its page says so; that of a transformer leaves the part out.
    """
    lacks = "not applicable: no learning curves ship with {}"
    return Part(
        "learning",
        title,
        _shipped,
        lambda losses, context: learning(losses, goal_of(context.task).floor, title, text),
        lambda context: _shipped(context) is not None or "resid_post" not in context.model.points,
        lacking=lambda context: (
            "" if _shipped(context) is not None else lacks.format(context.model.name)
        ),
    )


def _shipped(context: Context) -> pd.DataFrame | None:
    return shipped_curves(context.source) if context.source else None


def draw(losses: pd.DataFrame, floor: str) -> Figure:
    """Excess loss over steps, a curve per setting: the mean of its seeds, and a band from the lowest to the highest."""
    return curves(
        TEXTS["learning"]["curves"],
        over_seeds(losses).rename(columns={"setting": "algorithm"}),
        floor=floor,
    )


def learning(losses: pd.DataFrame, floor: str, title: str = _TITLE, text: str = _TEXT) -> Section:
    """The curves (:func:`interp.training.runs.learning_curves`) above a loss called ``floor``, and each run's end."""
    last = losses.sort_values("step").groupby(["setting", "seed"], sort=False).tail(1)
    table = Table(
        last.sort_values(["setting", "seed"]), "The last evaluation of each run", collapsed=True
    )
    return Section(title, [Prose(text + _NOT), draw(losses, floor), table])
