"""How fast a setting learns compared with another: the runs that a shipped model's settings were
compared with.
"""

from __future__ import annotations

import pandas as pd

from interp.training.goal import goal_of
from interp.training.runs import over_seeds, shipped_curves
from reports.blocks import Figure, Prose, Table, curves
from reports.page import Section
from reports.part import Context, Part
from reports.texts import TEXTS

_TITLE = "How the update of the latent learns"
_TEXT = TEXTS["learning"]["text"]
_NOT = " This is NOT evidence of what a setting would reach with more steps or a learning rate of its own."


def part(title: str = _TITLE, text: str = _TEXT) -> Part:
    """Make the part of the learning curves that ship with a model.

    A machine that is no transformer ships none, and its page states this; the page of a transformer
    without curves leaves the part out.

    Args:
        title: of the section.
        text: what the runs were compared for.
    """

    def draw_shipped(losses: pd.DataFrame, context: Context) -> Section:
        return learning(losses, goal_of(context.task).floor, title, text)

    def applies(context: Context) -> bool:
        return not lacks_curves(context) or "resid_post" not in context.model.points

    def lacks_curves(context: Context) -> str:
        if _find_curves(context) is not None:
            return ""
        return f"not applicable: no learning curves ship with {context.model.name}"

    return Part("learning", title, _find_curves, draw_shipped, applies, lacking=lacks_curves)


def _find_curves(context: Context) -> pd.DataFrame | None:
    """Return the curves that ship with a model, if there are any."""
    return shipped_curves(context.source) if context.source else None


def draw(losses: pd.DataFrame, floor: str) -> Figure:
    """Draw the excess loss over steps, a curve a setting: the mean of its seeds, and a band from lowest to highest."""
    mean = over_seeds(losses).rename(columns={"setting": "algorithm"})
    return curves(TEXTS["learning"]["curves"], mean, floor=floor)


def learning(losses: pd.DataFrame, floor: str, title: str = _TITLE, text: str = _TEXT) -> Section:
    """Make the section of learning curves, and of the last evaluation of each run.

    Args:
        losses: what :func:`interp.training.runs.learning_curves` gives.
        floor: what the loss is called that is subtracted.
        title: of the section.
        text: what the runs were compared for.
    """
    last = losses.sort_values("step").groupby(["setting", "seed"]).tail(1)
    last = last.sort_values(["setting", "seed"])
    table = Table(last, "The last evaluation of each run", collapsed=True)
    return Section(title, [Prose(text + _NOT), draw(losses, floor), table])
