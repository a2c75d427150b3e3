"""Interchange interventions: which places carry which variables of the algorithm, beside what chance would give."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

import pandas as pd

from circuits.circuit import Circuit
from circuits.places import places
from interp.interventions.carriers import Claim
from interp.statistics import Interval
from reports import figures
from reports.blocks import Figure, Prose, Table
from reports.page import Section

_TEXT = (
    "In one round of an episode, an activation is set to its value in another episode, and the outcome is compared "
    "with the algorithm's own counterfactual: the same round with one variable set to its value there. Accuracy is "
    "over pairs in which that changes the algorithm's outcome. Beside it stand **doing nothing** and **moving the same "
    "activations as far in a random direction**. An accuracy of 1 says that these places hold the variable in a form "
    "that the rest of the round uses, for such pairs; it is not evidence that they hold it alone, or that no other "
    "place does."
)
_WIRED = (
    "Only the subspace that the circuit names is interchanged. Controls are places that do not hold the variable, and "
    "random subspaces of equal rank."
)
_WHOLE = (
    "Whole activations are interchanged: everything that reaches a place, at places where the variable could be. What "
    "is written into the latents is read by a map fitted on other episodes, and is right when its change is within "
    "half of the change that the counterfactual asks for."
)
_ALIGNED = (
    "**Learned subspaces** (distributed alignment search): directions at one place, trained on some episodes so that "
    "interchanging them gives the counterfactual's choice, and scored on others. Methods that train a basis find "
    "something in any network, so each stands beside a basis trained for arbitrary labels, one trained in a "
    "re-initialised model, and an equally large move in a random subspace. A basis that does not beat all of them is "
    "not evidence that the place holds the variable, and one that does need not be what the model uses elsewhere."
)
_SHOWS = {"prediction": "the prediction", "state": "what is written"}


def wired(
    circuit: Circuit, truth: Iterable[tuple[str, str, slice, str]], controls: Mapping[str, tuple[str, str]]
) -> list[Claim]:
    """Claims from a circuit's ground truth.

    Args:
        truth: (variable of the algorithm, variable of the circuit, which of its sites, outcome).
        controls: site -> (variable that it does not hold, outcome).
    """
    found = []
    for variable, name, which, outcome in truth:
        sites = circuit.variable(name).sites[which]
        found.append(Claim(variable, tuple(p for site in sites for p in places(circuit, site)), outcome))
    return found + [Claim.at(variable, [at], outcome, True) for at, (variable, outcome) in controls.items()]


def interchange(carried: pd.DataFrame, aligned: pd.DataFrame | None = None) -> Section:
    """The table of claims, and for a learned model the learned subspaces with their controls.

    Args:
        carried: of ``interp.interventions.tables.interchange_table``.
        aligned: of ``interp.interventions.tables.alignment_table``; None where the subspaces are known.
    """
    rows = [
        {
            "variable": row["variable"].replace("_", " "),
            "interchanged at": _where(row["places"]) + (" (control)" if row["control"] else ""),
            "read in": _SHOWS[row["outcome"]],
            "accuracy": Interval(row["iia_informative"], row["low"], row["high"]),
            "doing nothing": row["chance_informative"],
            "random direction": row["random"],
            "pairs": row["n_informative"],
            "of all pairs": row["iia"],
            "doing nothing, all pairs": row["chance"],
        }
        for row in carried.to_dict("records")
    ]
    decimals = dict.fromkeys(("doing nothing", "random direction", "of all pairs", "doing nothing, all pairs"), ".3f")
    caption = "Interchange accuracy by variable and place, with 95 % intervals over episodes"
    blocks: list[object] = [
        Prose(f"{_TEXT}\n\n{_WIRED if aligned is None else _WHOLE}"),
        Table(pd.DataFrame(rows), caption, formats=decimals),
    ]
    return Section("Interchange interventions", blocks + ([] if aligned is None else _learned(aligned)))


def _learned(aligned: pd.DataFrame) -> list[object]:
    places = aligned["variable"].str.replace("_", " ") + " at " + aligned["site"]
    learned = aligned["condition"] == "learned"
    names = (places + ", rank " + aligned["rank"].astype(str)).where(learned, aligned["condition"])
    drawn = aligned.assign(name=names, estimate=aligned["iia"], control=~learned)
    caption = (
        "Share of held-out pairs in which the choice is the counterfactual's: learned subspaces (blue) and their "
        "controls (grey squares), with 95 % intervals over episodes."
    )
    return [
        Prose(_ALIGNED),
        Figure(figures.intervals(drawn, xlabel="accuracy"), "Learned subspaces beside their controls", caption),
        Table(aligned, "The same numbers, with those on informative pairs and on training pairs", collapsed=True),
    ]


def _where(text: str) -> str:
    """``embed@p_1 (rank 2) + embed@p_2 (rank 2)`` as ``embed@p_1, p_2 (rank 2)``."""
    parts = [re.fullmatch(r"([^@]+)(?:@(.+?))?( \(rank \d+\))?", part) for part in text.split(" + ")]
    grouped: dict[tuple[str, str], list[str]] = {}
    for part in parts:
        assert part is not None
        grouped.setdefault((part[1], part[3] or ""), []).append(part[2] or "")
    return " + ".join(
        site + ("@" if any(labels) else "") + ", ".join(labels) + rank for (site, rank), labels in grouped.items()
    )
