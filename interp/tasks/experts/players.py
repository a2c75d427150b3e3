"""Algorithms that a player who announces choices, such as a language model, may follow.

They are the families of :mod:`~interp.tasks.experts.families` with coarser grids of parameters,
since a choice carries less information than a probability. Two families exist only for players:
repeat one expert's advice (or its opposite), and follow the first of several leaders. Follow the
leader and follow the previous winners are limits of Weighted Majority (a large gain; a window of
one round), and count as its extensions. If choices cannot distinguish an extension from its base,
the simpler one is reported.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from interp.core.algorithm import Algorithm, Family, Searched, Values
from interp.support.errors import require
from interp.support.files import read_tables
from interp.tasks.experts import algorithms
from interp.tasks.experts.families import families

_Array = NDArray[np.float64]
_LIMITS_OF_MAJORITY = ("follow_the_leader", "follow_previous_winners")


def _follow_one_expert(expert: int = 1, agrees: int = 1) -> Algorithm:
    """Return the algorithm that always chooses what one expert advises, or always the opposite.

    Args:
        expert: number of the expert, counted from 1; the last expert if there are fewer.
        agrees: 1 to choose the expert's advice, 0 to choose the opposite.
    """
    require(
        expert >= 1 and agrees in (0, 1),
        f"expert is counted from 1 and agrees is 0 or 1, got {expert}, {agrees}",
    )

    def predict(v: Values) -> _Array:
        """Return the label that the algorithm predicts, 0 or 1, as a float, ``[...]``.

        Args:
            v: key of a variable -> its values, with the leading axes ``[...]``.
        """
        votes = v["votes"].astype(float)
        index = min(expert, votes.shape[-1]) - 1  # the last expert if there are fewer
        vote = votes[..., index]
        return vote if agrees else 1 - vote

    # Key of a variable -> (keys of the variables that it reads, its equation).
    changes = {"prediction": (("votes",), predict)}
    parameters = {"expert": expert, "agrees": agrees}
    base = algorithms.majority_vote()
    return base.make_variant("one_expert", "what one expert says", parameters, changes)


def _follow_first_leader() -> Algorithm:
    """Return the algorithm that follows the expert who was right most often so far; of several such
    experts, the one with the lowest index.
    """

    def predict(v: Values) -> _Array:
        """Return the label that the algorithm predicts, 0 or 1, as a float, ``[...]``.

        Args:
            v: key of a variable -> its values, with the leading axes ``[...]``.
        """
        first_leader = v["leads"].argmax(-1)[..., None]  # [..., 1]
        its_vote = np.take_along_axis(v["votes"], first_leader, -1)
        return its_vote[..., 0].astype(float)

    # Key of a variable -> (keys of the variables that it reads, its equation).
    changes = {"prediction": (("leads", "votes"), predict)}
    base = algorithms.follow_the_leader()
    return base.make_variant("first_leader", "follow the first leader", {}, changes)


def player_families(n_experts: int) -> tuple[Family, ...]:
    """Return the families of algorithms with which the choices of a player (such as a language
    model) are compared, for episodes with ``n_experts`` experts. The algorithms of a family differ
    only in their parameters.
    """
    known = {family.key: family for family in families()}
    players = []
    # The file has a table for each family: name of a parameter -> its grid.
    for key, grids in read_tables(Path(__file__).with_suffix(".toml")).items():
        if "expert" in grids:  # an expert's number
            grids["expert"] = grids["expert"][:n_experts]
        family = known[key]
        searched = tuple(
            replace(parameter, grid=tuple(grids[parameter.name])) for parameter in family.searched
        )
        # Some families are limits of Weighted Majority: a large gain, or a window of one round.
        extends = "weighted_majority" if key in _LIMITS_OF_MAJORITY else family.extends
        players.append(replace(family, searched=searched, extends=extends))
    expert = Searched(
        "expert", tuple(range(1, n_experts + 1)), kind="choice", used_by=("prediction",)
    )
    agrees = Searched("agrees", (0, 1), kind="choice", used_by=("prediction",))
    return (
        *players,
        Family(
            "first_leader",
            "follow the first leader",
            _follow_first_leader,
            extends="weighted_majority",
        ),
        Family(
            "one_expert",
            "what one expert says, or its opposite",
            _follow_one_expert,
            searched=(expert, agrees),
            memoryless=True,
        ),
    )
