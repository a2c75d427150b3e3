"""A view: what a page shows, all of it said by the query of its address.

A page is a function of the machine and the view, so that undoing is a link, two tabs cannot disturb each other, and
any server of the same machine shows an address that was kept.

    >>> view = View.of("round=20&edit=input+20+flip-vote+expert%3D1")
    >>> [str(edit) for edit in view.edits], view.query()
    (['input 20 flip-vote expert=1'], 'round=20&edit=input+20+flip-vote+expert%3D1')
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, Self
from urllib.parse import parse_qsl, urlencode

from interp.checks import checked
from interp.errors import InputError, require, require_known
from interp.kinds import shown
from reports.explore.edits import Edit

MOST_EDITS, MOST_ROUNDS, LONGEST = 24, 200, 4000
"""Edits of a view, rounds of its episodes, characters of a query."""


@dataclass(frozen=True)
class View:
    """What is looked at.

    Attributes:
        rounds: of every episode; 0 for the usual number.
        regime: what the episodes are drawn from; the task's default when empty.
        outcome: whose probability is drawn, counted from 0; -1 for the one that the edits move most.
        hold: hold what later rounds read at what it was, instead of letting effects run on.
    """

    episode: int = 0
    round: int = 0
    outcome: int = -1
    regime: str = ""
    rounds: int = 0
    seed: int = 0
    hold: bool = False
    edits: tuple[Edit, ...] = ()

    @classmethod
    @checked
    def of(cls, query: str) -> Self:
        """The view that a query says; what it says twice, or what no view has, is refused."""
        require(len(query) <= LONGEST, f"a query has at most {LONGEST} characters, got {len(query)}")
        try:
            pairs = parse_qsl(query.removeprefix("?"), strict_parsing=bool(query), errors="strict", max_num_fields=64)
        except ValueError as error:
            raise InputError(f"{shown(query)} is no query of a view: {error}") from error
        known = {field.name: field.default for field in fields(cls) if field.name != "edits"}
        said: dict[str, Any] = {}
        for name, text in pairs:
            if name != "edit":
                require_known("part of a view", name, [*known, "edit"], limit=10)
                require(name not in said, f"a view has one {name}, got two")
                said[name] = _fitting(name, text, known[name])
        edits = tuple(Edit.parse(text) for name, text in pairs if name == "edit")
        require(len(edits) <= MOST_EDITS, f"a view has at most {MOST_EDITS} edits, got {len(edits)}")
        return cls(**said, edits=edits)

    def query(self, **changes: Any) -> str:
        """The query that says this view, or it with some parts changed; what is as usual is left out."""
        view, usual = replace(self, **changes), View()
        names = [field.name for field in fields(view) if field.name != "edits"]
        said = [(name, getattr(view, name)) for name in names if getattr(view, name) != getattr(usual, name)]
        whole = [(name, int(value) if isinstance(value, bool) else value) for name, value in said]
        return urlencode([*whole, *(("edit", str(edit)) for edit in view.edits)])

    def with_edits(self, edits: Sequence[Edit]) -> Self:
        """This view with other edits."""
        return replace(self, edits=tuple(edits))


def _fitting(name: str, text: str, usual: Any) -> Any:
    """A part of a view from its text, of the kind that the usual one has."""
    if isinstance(usual, str):
        return text
    whole = text.lstrip("-").isascii() and text.lstrip("-").isdigit() and len(text) <= 9
    require(whole, f"{name} is a whole number, got {shown(text)}")
    low, high = {"outcome": (-1, 10**6), "rounds": (0, MOST_ROUNDS), "hold": (0, 1)}.get(name, (0, 10**8))
    require(low <= int(text) <= high, f"{name} is a number from {low} to {high}, got {text}")
    return type(usual)(int(text))
