"""The paper's figure of LLMs: regret by regime and framing, on one scale, every curve named at its end."""

from __future__ import annotations

from typing import Any

import pandas as pd

from interp.llm.scores import LLMScores
from reports import panels
from reports.blocks import Figure, Prose, Table
from reports.page import Section
from reports.paper import PRINTED, TITLE, titled

DRAWN = {
    "weighted majority, eta U[.05, .5] per episode": ("weighted_majority", "weighted majority"),
    "follow the leader": ("follow_the_leader", "follow the leader"),
    "follow previous winners": ("follow_previous_winners", "previous winners"),
    "majority vote": ("majority_vote", "majority vote"),
}
"""The four baselines that the paper draws beside its models -> key and name here; the others are in the tables."""
_OURS = {"wma-handwired": "handwired", "wma-learned": "learned"}
_REGRET = (
    "Mistakes beyond those of the best expert on the same rounds, never clipped: a predictor that combines experts, "
    "or inverts one, can go below zero. A missing prediction counts as a mistake here. All predictors meet the same "
    "instances. A baseline that tosses coins counts its expected mistakes, so its own luck is not in it."
)


def regret_section(scores: LLMScores) -> Section:
    """A figure for each model: a row of panels for each regime, a column for each framing."""
    curves = scores.curves[scores.curves["missing"] != "skipped"]
    llm = curves[curves["kind"] == "llm"]
    framings = list(dict.fromkeys(llm["condition"].str.split("-").str[0]))
    blocks: list[Any] = [Prose(_REGRET)]
    for model in dict.fromkeys(llm["model"]):
        parts = []
        for regime in dict.fromkeys(curves["regime"]):
            here = curves[curves["regime"] == regime]
            beside = _beside(here[here["kind"] != "llm"])
            for framing in framings:
                own = here[(here["model"] == model) & here["condition"].str.startswith(f"{framing}-")]
                if len(own):
                    parts.append(pd.concat([_own(own, framing), beside]).assign(panel=f"{regime}, {framing} framing"))
        frame = pd.concat(parts, ignore_index=True)
        n = int(llm.loc[llm["model"] == model, "n"].max())
        picture = panels.curves(
            frame, by="panel", ylabel="regret (mistakes)", columns=len(framings), height=2.6, direct=True
        )
        text = f"{model}: mean over {n} instances, bands ± 1 standard deviation over instances."
        blocks.append(Figure(picture, f"Regret of {model}", titled("4 and 15", text), frame))
    return Section("Regret over rounds", blocks)


def _own(part: pd.DataFrame, framing: str) -> pd.DataFrame:
    """The conditions of one framing, by how they remember."""
    return _banded(part, part["condition"].str.removeprefix(f"{framing}-"), None)


def _beside(part: pd.DataFrame) -> pd.DataFrame:
    """The drawn baselines, and our own models."""
    part = part[(part["kind"] == "model") | part["model"].isin(list(DRAWN))]
    keys = {**{name: key for name, (key, _) in DRAWN.items()}, **_OURS}
    return _banded(part, part["model"].map(keys).fillna(part["model"]), part["model"])


def _banded(part: pd.DataFrame, key: pd.Series[Any], name: pd.Series[Any] | None) -> pd.DataFrame:
    """Columns for the panels: key, name, and one-std bands for all but the baselines."""
    short = {long: called for long, (_, called) in DRAWN.items()}
    called = key if name is None else name.map(short).fillna(name)
    banded = part["kind"] != "baseline"
    low, high = ((part["mean"] + sign * part["std"]).where(banded) for sign in (-1, 1))
    return part.assign(algorithm=key, name=called, low=low, high=high)


def covered(has_notes: bool) -> Section:
    """Where this page has the paper's figures and tables on LLMs.

    Args:
        has_notes: whether a run wrote notes.
    """
    where = {
        "3": ("Prompts", "the prompts as they were sent, as text"),
        "4": ("Regret over rounds", "our instances and wording; curves are named at their ends"),
        "15": ("Regret over rounds", "only the regimes and models of these traces"),
        "table 1": ("Regret after the last round", "the paper's rows stand beside ours"),
        "table 2": ("Regret after the last round", "the paper's rows stand beside ours"),
        "table 3": ("Notes" if has_notes else "", "formats by written rules" if has_notes else "no run wrote notes"),
    }
    rows = [
        {"figure": number, "what it shows": PRINTED[number].shows, "where": at or "nowhere", "what differs": differs}
        for number, (at, differs) in where.items()
    ]
    return Section(TITLE, [Table(pd.DataFrame(rows), "The paper's figures and tables on language models")])
