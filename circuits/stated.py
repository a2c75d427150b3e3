"""What a construction states about itself, for tests to hold it to: its edges, and what carries its variables.

An edge says which part reads what another one wrote, through which port, of which kind, and where. A construction has
all its edges in tables of text, one line for every group of like edges (columns are two or more spaces apart): sources,
targets, port, kind, positions, what is carried. Sources and targets are numbers or names of parts, or embeddings; words
in capitals are groups of positions.

    >>> lines = '''
    ... tokens, positions  1.1       key    constant  ALL    who stands where
    ... 1.1                2.1, 2.2  query  content   VOTES  the vote
    ... '''
    >>> groups = {"ALL": ("<w>", "p_1"), "VOTES": ("p_1",)}
    >>> [(edge.source, edge.target) for edge in table(lines, ["1.1 bind", "2.1 fetch", "2.2+ add", "2.2- add"], groups)]
    [('tokens', '1.1 bind'), ('positions', '1.1 bind'), ('1.1 bind', '2.1 fetch'), ('1.1 bind', '2.2+ add'), \
('1.1 bind', '2.2- add')]

The tests hold what is stated against what they measure in running models (tests/circuits/wires.py).

A :class:`~circuits.circuit.Location` says that a variable can be *read* there. An interchange needs to know more:
which locations must be set together so that the rest of the round takes the new value (a copy may feed one part of the
update alone), and whether that shows in the prediction or in the state that is written. Each :class:`Carried` is such a
claim, which ``lab/interchanges.py`` measures and :func:`circuits.compiler.wired` turns into places of a model.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any, Literal, cast, get_args

from interp.checks import checked_fields
from interp.errors import require, require_known, unknown_name

EMBEDDINGS = ("tokens", "latents", "payloads", "positions")
"""The sources before the first layer: the tokens' own embedding, what the slots carry, scalar payloads, positions."""
EXITS = ("prediction", "update")
"""The targets behind the last layer: what the unembedding reads, and what becomes the new latent."""

_Port = Literal["query", "key", "value", "residual"]
Kind = Literal["content", "constant", "clean-up"]


@dataclass(frozen=True)
@checked_fields
class Edge:
    """Part ``target`` reads at its ``port`` what part ``source`` wrote.

    Attributes:
        source, target: a head or a group of neurons; one of :data:`EMBEDDINGS`, or of :data:`EXITS`.
        port: of the target; neurons and exits read the "residual".
        carries: what it is about, in words.
        kind: "clean-up" where either end clears what is left over; "constant" wiring (positions, tags) that is the same
            in every round of every episode; else "content".
        positions: labels where the target reads it, in the order of the round.
    """

    source: str
    target: str
    port: _Port
    carries: str
    kind: Kind = "content"
    positions: tuple[str, ...] = ()


def table(lines: str, parts: Sequence[str], groups: Mapping[str, Sequence[str]]) -> tuple[Edge, ...]:
    """The edges that lines of text state; a number without its mark stands for both halves of a pair of heads.

    Args:
        parts: names of all heads and groups of neurons.
        groups: positions by the word that stands for them; "ALL", the labels of the round in order, is one of them.
    """
    edges: list[Edge] = []
    for line in filter(None, lines.splitlines()):
        columns = re.split(r" {2,}", line.strip())
        require(len(columns) == 6, f"a line of edges has 6 columns, two spaces apart, got {len(columns)}: {line!r}")
        sources, targets, port, kind, positions, carries = columns
        for word, known in ((port, get_args(_Port)), (kind, get_args(Kind))):
            require(word in known, f"{word!r} in {line!r} is none of {', '.join(known)}")
        where = _positions(positions, groups)
        ends = (_parts(sources, [*parts, *EMBEDDINGS]), _parts(targets, [*parts, *EXITS]))
        edges += [Edge(s, t, cast(_Port, port), carries, cast(Kind, kind), where) for s, t in product(*ends)]
    return tuple(edges)


def _positions(words: str, groups: Mapping[str, Sequence[str]]) -> tuple[str, ...]:
    """Labels and groups of them, as labels in the order of the round."""
    named: set[str] = set()
    for word in words.split():
        require_known("position", word, (*groups, *groups["ALL"]), limit=40)
        named.update(groups.get(word, (word,)))
    return tuple(label for label in groups["ALL"] if label in named)


def _parts(words: str, known: Sequence[str]) -> list[str]:
    """Names of parts, given by name or number: "3.2" is "3.2 update", or "3.2+ update" and "3.2- update"."""
    named: list[str] = []
    for word in words.split(", "):
        meant = [name for name in known if word == name]
        meant = meant or [name for name in known if word == name.split(" ")[0].rstrip("+-")]
        if not meant:
            raise unknown_name("part of the circuit", word, known, limit=40)
        named += meant
    return named


@dataclass(frozen=True)
@checked_fields
class Carried:
    """These locations of a circuit together hold a variable of its algorithm, as ``outcome`` shows.

    ``held_as`` is the variable that the circuit locates there, where that is another one (a policy, for the choice).
    """

    variable: str
    locations: tuple[str, ...]
    outcome: str
    held_as: str = ""

    @property
    def located(self) -> str:
        """The variable whose locations these are."""
        return self.held_as or self.variable


def present(rows: Iterable[Carried], sites: Mapping[str, Iterable[Any]]) -> tuple[Carried, ...]:
    """The rows whose locations are all among ``sites``: those that this form of a circuit has.

    >>> from circuits.registry import build
    >>> sites = build("wma-handwired", variant="P").sites
    >>> rows = Carried("match", ("score 3.2",), "state"), Carried("label", ("w?",), "state")
    >>> [row.variable for row in present(rows, sites)]
    ['label']
    """
    known = {key: {location.name for location in locations} for key, locations in sites.items()}
    return tuple(row for row in rows if set(row.locations) <= known.get(row.located, set()))
