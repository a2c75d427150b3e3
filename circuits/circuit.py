"""A handwired construction as data: its heads, its embeddings, and its ground truth.

    >>> from circuits.registry import build
    >>> circuit = build("wma-handwired", n_experts=2)
    >>> [location.name for location in circuit.locations("log_weights")]
    ['latent', 'p?', 'w?']
    >>> from interp.tasks import experts
    >>> values = circuit.algorithm.run(experts.sample(3, 5, 2, seed=0))
    >>> circuit.truth(values, "log_weights").shape, circuit.truth(values, "votes").shape
    ((3, 5, 2), (3, 5, 4))

What the ground truth claims, and what holds it: ``docs/method/ground-truth.md``.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from itertools import product
from typing import Any, Literal

import numpy as np
import pandas as pd
from einops import rearrange
from jaxtyping import Float
from torch import Tensor, as_tensor, einsum

from circuits.basis import Basis, Direction
from circuits.heads import Head, Neuron, names
from interp.core.algorithm import Algorithm, Values
from interp.model.layout import RoundLayout
from interp.results.measure import Result
from interp.support.checks import checked, checked_fields, fit
from interp.support.errors import require, require_known, unknown_name


@dataclass(frozen=True)
@checked_fields
class Location:
    """A place where a variable lives; element k of its (flattened) value is read at position
    ``labels[k]``.

    Attributes:
        name: unique among the locations of one variable.
        hook: name of the hook point, "blocks.1.hook_resid_post" or
            "blocks.2.attn.hook_attn_scores".
        labels: position label of each element (the query position at attention scores).
        directions: what reads each element; empty at attention scores, which have ``keys``
            (positions) and a ``head``.
        scale: the activation is ``scale`` times the variable.
        drives: what an intervention here moves, in words.
        one_hot: True if a class is stored as one number per class; False if as its index (0, 1,
            ...).
    """

    name: str
    hook: str
    labels: tuple[str, ...]
    directions: tuple[Direction, ...] = ()
    keys: tuple[str, ...] = ()
    head: str | None = None
    scale: float = 1.0
    drives: str = ""
    one_hot: bool = True

    def __post_init__(self) -> None:
        n_read = len(self.directions or self.keys)
        require(
            n_read == len(self.labels),
            f"location {self.name!r} needs one direction or key per label, got {n_read} for {len(self.labels)}",
        )

    @checked
    def reader(self, circuit: Circuit) -> Callable[[Tensor], Float[Tensor, "*batch element"]]:
        """Return a function that reads the variable in an activation of this hook.

        It takes ``[..., pos, d_model]``, or ``[..., head, query, key]`` at attention scores, and can be called often.
        """
        position = circuit.layout.position
        queries = [position(label) for label in self.labels]
        if self.keys:
            assert self.head is not None
            index = circuit.head_index(self.head)
            keys = [position(label) for label in self.keys]
            return lambda scores: scores[..., index, queries, keys] / self.scale
        vectors = np.stack([direction.vector() / self.scale for direction in self.directions])
        n_coordinates = np.count_nonzero(vectors, axis=1)
        if n_coordinates.max() == 1:
            start_of_query = np.array(queries) * vectors.shape[1]
            axes = as_tensor(start_of_query + np.abs(vectors).argmax(1))
            scales = as_tensor(vectors.sum(1))
            return lambda resid: resid.flatten(-2).index_select(-1, axes) * scales.to(resid)
        maps = as_tensor(vectors)
        return lambda resid: einsum("...ed,ed->...e", resid[..., queries, :], maps.to(resid))


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
        source, target: a head or a group of neurons; one of :data:`EMBEDDINGS`, or of
            :data:`EXITS`.
        port: of the target; neurons and exits read the "residual".
        carries: what it is about, in words.
        kind: "clean-up" where either end clears what is left over; "constant" wiring (positions,
            tags) that is the same in every round of every episode; "content" otherwise.
        positions: labels where the target reads it, in the order of the round.
    """

    source: str
    target: str
    port: _Port
    carries: str
    kind: Kind = "content"
    positions: tuple[str, ...] = ()


def table(
    rows: Iterable[Mapping[str, str]], parts: Sequence[str], groups: Mapping[str, Sequence[str]]
) -> tuple[Edge, ...]:
    """Make edges from the rows of a table, each row for a group of similar edges.

    Sources and targets are numbers or names of parts, or embeddings and exits; a number without its
    mark stands for both halves of a pair of heads.

    Args:
        rows: the columns are source, target, port, kind, positions, carries
            (:func:`circuits.heads.stated`).
        parts: names of all heads and groups of neurons.
        groups: positions by their word in the table; "ALL", the labels of the round in order,
            is one of them.

    >>> row = {"port": "query", "kind": "content", "positions": "VOTES", "carries": "the vote"}
    >>> groups = {"ALL": ("<w>", "p_1"), "VOTES": ("p_1",)}
    >>> edges = table([{**row, "source": "1.1", "target": "2.2"}], ["1.1 bind", "2.2+ add", "2.2- add"], groups)
    >>> [(edge.source, edge.target, edge.positions) for edge in edges]
    [('1.1 bind', '2.2+ add', ('p_1',)), ('1.1 bind', '2.2- add', ('p_1',))]
    """
    edges: list[Edge] = []
    for row in rows:
        words = row["positions"].split()
        for word in words:
            require_known("position", word, (*groups, *groups["ALL"]), limit=40)
        labels = _expand(words, groups)
        positions = tuple(label for label in groups["ALL"] if label in labels)
        sources = _find_parts(row["source"], [*parts, *EMBEDDINGS])
        targets = _find_parts(row["target"], [*parts, *EXITS])
        fields_of_row: dict[str, Any] = {name: row[name] for name in ("port", "carries", "kind")}
        for source, target in product(sources, targets):
            edges.append(Edge(source, target, **fields_of_row, positions=positions))
    return tuple(edges)


def _expand(words: Iterable[str], groups: Mapping[str, Sequence[str]]) -> list[str]:
    """Replace every word that names a group by the group's members."""
    return [label for word in words for label in groups.get(word, (word,))]


def _find_parts(words: str, known: Sequence[str]) -> list[str]:
    """Return names of parts from names or numbers: "3.2" is "3.2 update", or "3.2+ update" and
    "3.2- update".
    """
    names: list[str] = []
    for word in words.split(", "):
        matching = [name for name in known if word == name]
        if not matching:
            matching = [name for name in known if word == name.split(" ")[0].rstrip("+-")]
        if not matching:
            raise unknown_name("part of the circuit", word, known, limit=40)
        names += matching
    return names


@dataclass(frozen=True)
@checked_fields
class Carried:
    """The claim that some locations of a circuit together carry a variable of its algorithm.

    ``outcome`` says where an interchange shows it. ``held_as`` is set where the circuit locates
    another variable there (a policy, for the choice).
    """

    variable: str
    locations: tuple[str, ...]
    outcome: str
    held_as: str = ""

    @property
    def located(self) -> str:
        """The variable that the circuit locates there."""
        return self.held_as or self.variable


def located(
    rows: Iterable[Mapping[str, str]],
    basis: Basis,
    groups: Mapping[str, Sequence[str]],
    named: Mapping[str, Direction],
    scales: Mapping[str, float],
) -> dict[str, tuple[Location, ...]]:
    """Make the locations that the rows of a table state, by variable.

    Args:
        rows: the columns are variable, name, hook, labels, read, scale, drives
            (:func:`circuits.heads.stated`), where ``read`` is a block and its axes: every axis at
            every label, with "each" the labels first, with "own" one axis per label; or one of
            ``named``; or "score", a head and the keys. A name that is a group stands for a location
            at each of its labels.
        basis: the axes of the residual stream.
        groups: labels or axes by the word that stands for them.
        named: directions by the word that stands for them.
        scales: by the word of the column "scale"; 1 where that is empty.
    """
    locations: dict[str, list[Location]] = {}
    for row in rows:
        labels = _expand(row["labels"].split(), groups)
        kind, *words = row["read"].split()
        axes = _expand(words, groups)
        options: dict[str, Any] = {
            "hook": row["hook"],
            "scale": scales.get(row["scale"], 1.0),
            "drives": row["drives"],
        }
        of_variable = locations.setdefault(row["variable"], [])
        if kind == "score":
            head, *keys = axes
            options |= {"head": head, "keys": tuple(keys), "one_hot": False}
            of_variable.append(Location(row["name"], labels=tuple(labels) * len(keys), **options))
        elif axes[-1:] in (["each"], ["own"]):
            n_times = len(labels) if axes.pop() == "each" else 1
            directions = tuple(basis[kind][axis] for axis in axes for _ in range(n_times))
            repeated = tuple(labels) * (len(directions) // len(labels))
            location = Location(row["name"], labels=repeated, directions=directions, **options)
            of_variable.append(location)
        else:
            directions = tuple(basis[kind][axis] for axis in axes)
            if kind in named:
                directions = (named[kind],)
            places = {label: [label] for label in groups.get(row["name"], ())}
            for name, where in (places or {row["name"]: labels}).items():
                repeated = tuple(label for label in where for _ in directions)
                read = directions * len(where)
                of_variable.append(Location(name, labels=repeated, directions=read, **options))
    return {variable: tuple(of_variable) for variable, of_variable in locations.items()}


def held(
    rows: Iterable[Mapping[str, str]],
    sites: Mapping[str, Iterable[Location]],
    groups: Mapping[str, Sequence[str]],
) -> dict[str, Any]:
    """Return ``carried``, ``partial`` and ``not_carried`` of a :class:`Circuit`, as a table states
    them.

    Args:
        rows: the columns are variable, locations, outcome, holds ("all", "partly" or "no"), why and
            held_as. A row of "all" counts only where all its locations are in ``sites``.
        sites: locations that this form of the circuit has, by variable.
        groups: names of locations by the word that stands for them.
    """
    known = {key: {location.name for location in locations} for key, locations in sites.items()}
    carried, partial, not_carried = [], {}, {}
    for row in rows:
        names = tuple(_expand(row["locations"].split("; "), groups))
        if row["holds"] == "no":
            not_carried[names[0]] = row["variable"], row["outcome"]
        elif row["holds"] == "partly":
            partial[row["variable"], names[0]] = row["why"]
        else:
            claim = Carried(row["variable"], names, row["outcome"], row["held_as"])
            if set(names) <= known.get(claim.located, set()):
                carried.append(claim)
    return {"carried": tuple(carried), "partial": partial, "not_carried": not_carried}


@dataclass(frozen=True)
@checked_fields
class Circuit(Result):
    """A construction as data; :func:`circuits.compile_circuit` makes the model.

    Attributes:
        name, arguments: what builds it again, in the registry.
        tokens, payloads: embedding of each token of the vocabulary; direction that a token's scalar payload scales.
        payload_range: scalar payloads that the construction is proven for; None takes any.
        float32_range: those that it is proven for in float32, where ``payload_range`` takes any.
        outcomes: unembedding direction of each outcome; the model's output is a probability.
        state: directions that read the algorithm's state from a latent.
        sites: the ground truth: key of a variable of the algorithm -> the locations where it lives.
        carried: which locations together hold a variable, as an interchange shows it.
        partial: (variable, location) -> what setting it there alone does, for the locations that no row of ``carried``
            names: constants, and copies that feed a part of what the variable drives.
        not_carried: site -> (variable that it does not hold, outcome): controls.
        edges: every read of what another part wrote, or an embedding holds.
        edits: what was changed by hand since it was built.
        float64_only: why float32 does not do, and what to take instead; empty where it does.
    """

    name: str
    arguments: Mapping[str, Any]
    layout: RoundLayout
    basis: Basis
    heads: tuple[Head, ...]
    tokens: Mapping[str, Direction]
    latents: tuple[Direction, ...]
    outcomes: tuple[Direction, ...]
    state: tuple[Direction, ...]
    algorithm: Algorithm
    sites: Mapping[str, tuple[Location, ...]]
    carried: tuple[Carried, ...] = ()
    partial: Mapping[tuple[str, str], str] = field(default_factory=dict)
    not_carried: Mapping[str, tuple[str, str]] = field(default_factory=dict)
    payloads: Mapping[str, Direction] = field(default_factory=dict)
    payload_range: tuple[float, float] | None = None
    float32_range: tuple[float, float] | None = None
    neurons: tuple[Neuron, ...] = ()
    edges: tuple[Edge, ...] = ()
    edits: tuple[str, ...] = ()
    float64_only: str = ""

    def __post_init__(self) -> None:
        for key, locations in self.sites.items():
            self.algorithm.variable(key)
            names = [location.name for location in locations]
            require(
                len(set(names)) == len(names),
                f"locations of {key!r} in {self.name!r} must differ in name, got {names}",
            )
            sizes = {len(location.labels) for location in locations}
            require(
                len(sizes) == 1,
                f"the locations {names} of {key!r} in {self.name!r} must hold equally many elements",
            )

    @property
    def sentence(self) -> str:
        """What it computes, of how many heads, and what was edited."""
        memory = self.algorithm.variable(self.algorithm.memory).noun
        size = f"{len(self.heads)} heads in {self.n_layers} layers, whose latents hold {memory}"
        finding = f"{self.name} runs {self.algorithm.name}: {size}"
        return ". ".join([finding, *self.edits])

    @property
    def n_layers(self) -> int:
        """How many layers heads and neurons need."""
        layers = [head.layer for head in self.heads]
        layers += [neuron.layer for neuron in self.neurons]
        return 1 + max(layers, default=0)

    @property
    def leak(self) -> float:
        """What one competitor of a hard head's choice weighs in its softmax form; 0 where hard heads are hard."""
        eta = self.arguments.get("eta")
        if eta is None:
            return 0.0
        lead = min(self.basis.positions.margin, 1.0) / 2
        return math.exp(-float(eta) * lead)

    @checked
    def pair_error(self, size: Float[np.ndarray, "*shape"]) -> Float[np.ndarray, "*shape"]:
        """Compute what a pair (:func:`circuits.heads.softmax_pair`) misses of a sum x of ``size``.

        That is ``epsilon^2 x^3 / 6``, and rounding of its logits.
        """
        epsilon, heavy = self.arguments["epsilon"], self.arguments["heavy"]
        rounding = 4 * heavy * float(np.finfo(np.float64).eps) / epsilon
        return np.asarray(epsilon**2 * np.abs(size) ** 3 / 6 + rounding)

    @checked
    def layer(self, index: int) -> tuple[Head, ...]:
        """Return the heads of one layer, in order."""
        return tuple(head for head in self.heads if head.layer == index)

    @checked
    def head(self, name: str) -> Head:
        """Return a head by name, or by its number alone ("2.1")."""
        for head in self.heads:
            if name in (head.name, head.name.split(" ")[0]):
                return head
        raise unknown_name("head", name, (head.name for head in self.heads), limit=20)

    @checked
    def head_index(self, name: str) -> int:
        """Return the head's index in its layer."""
        head = self.head(name)
        return self.layer(head.layer).index(head)

    @checked
    def locations(self, key: str, *names: str) -> tuple[Location, ...]:
        """Return the locations of a variable, in the order of computation: those called ``names``, or all of them."""
        require_known(f"variable with a location in {self.name!r}", key, self.sites, limit=20)
        return tuple(self.location(key, name) for name in names) if names else self.sites[key]

    @checked
    def location(self, key: str, name: str) -> Location:
        """Return one location of a variable.

        Args:
            key: the variable.
            name: name of the location.

        Raises:
            InputError: no such location; the message lists the known ones.
        """
        known = {location.name: location for location in self.locations(key)}
        require_known(f"location of {key!r}", name, known, limit=20)
        return known[name]

    @checked
    def truth(self, values: Values, key: str) -> Float[np.ndarray, "episode round element"]:
        """Return what every location of a variable must hold.

        A real variable is flattened. A class is one-hot, one number per class, unless its locations
        store its index.

        Args:
            values: ``circuit.algorithm.run(episodes)``.
            key: the variable.
        """
        variable = self.algorithm.variable(key)
        require(
            key in values,
            f"values must be those of a run of the circuit's algorithm; they lack {key!r}",
        )
        truth = values[key]
        is_one_hot = all(location.one_hot for location in self.sites.get(key, ()))
        if variable.n_classes is not None and is_one_hot:
            truth = np.eye(variable.n_classes(values))[truth]
        return rearrange(truth, "episode round ... -> episode round (...)").astype(np.float64)

    @checked
    def edit(self, name: str, **changes: Any) -> Circuit:
        """Return a copy in which one head's fields are replaced: a wrong version is so written down and tested."""
        old = self.head(name)
        heads = tuple(replace(head, **changes) if head is old else head for head in self.heads)
        edit = f"{old.name}: {', '.join(sorted(changes))}"
        return replace(self, heads=heads, edits=(*self.edits, edit))

    def without(self, *names: str) -> Circuit:
        """Return a copy without some heads."""
        removed = [self.head(name) for name in fit("names", names, tuple[str, ...])]
        heads = tuple(head for head in self.heads if head not in removed)
        edits = [f"{head.name}: removed" for head in removed]
        return replace(self, heads=heads, edits=(*self.edits, *edits))

    def to_frame(self) -> pd.DataFrame:
        """Return the head table, one row a head (and a row for each group of neurons), in the order of computation."""
        rows: list[dict[str, Any]] = []
        for head in self.heads:
            row = {
                "head": head.name,
                "layer": head.layer + 1,
                "rule": head.rule,
                "reads": head.reads,
                "writes": head.writes,
                "score terms": len(head.scores),
                "non-zero weights": head.n_nonzero,
            }
            rows.append(row)
        for name in names(self.neurons):
            group = [neuron for neuron in self.neurons if neuron.name == name]
            first = group[0]
            row = {
                "head": name,
                "layer": first.layer + 1,
                "rule": "relu",
                "reads": f"{len(group)} neurons, {first.read} ...",
                "writes": f"{first.write} ...",
                "score terms": 0,
                "non-zero weights": sum(neuron.n_nonzero for neuron in group),
            }
            rows.append(row)
        return pd.DataFrame(rows).sort_values("layer", kind="stable", ignore_index=True)

    def _draw(self, figures: Any) -> Any:
        """Draw which head reads what another wrote."""
        heads = self.to_frame()
        edges = pd.DataFrame(list(self.edges), columns=[field.name for field in fields(Edge)])
        layers = [list(of_layer["head"]) for _, of_layer in heads.groupby("layer")]
        is_between_heads = edges["source"].isin(heads["head"])
        return figures.wiring(layers, edges[is_between_heads])

    def ground_truth(self) -> pd.DataFrame:
        """Return where the algorithm's variables live, one row a location."""
        rows = []
        for key, locations in self.sites.items():
            variable = self.algorithm.variable(key)
            for location in locations:
                directions = list(dict.fromkeys(map(str, location.directions)))
                first_and_last = dict.fromkeys(directions[:1] + directions[-1:])
                reads = " ... ".join(first_and_last)
                if location.keys:
                    reads = f"score of {location.head}"
                row = {
                    "variable": key,
                    "symbol": variable.symbol,
                    "meaning": variable.meaning,
                    "location": location.name,
                    "hook": location.hook,
                    "positions": ", ".join(dict.fromkeys(location.labels)),
                    "reads": reads,
                    "scale": location.scale,
                    "drives": location.drives,
                }
                rows.append(row)
        return pd.DataFrame(rows)


Size = int | tuple[int, ...]
"""The sizes of a task, in its order: one number, or several as in (states, actions)."""


@dataclass(frozen=True)
@checked_fields
class VerificationPlan:
    """How :func:`circuits.verify` checks a machine. The functions take the circuit and its
    algorithm's values.

    Attributes:
        sizes: those that are promised, and checked by default.
        episodes: (circuit, rounds, episodes, seed) -> episodes to run on, or fewer where more would
            repeat the same.
        output: key of the variable that the model's prediction must equal.
        tolerance: (variable, dtype) -> the largest error allowed, and whether "error" or "relative"
            is meant; also called for "carried_state", "residue", "position_code" and
            "distribution".
        undecided: (..., dtype) -> variable -> ``[episode, round]``, where it hangs on a tie and is
            not compared.
        unit: (..., variable) -> what a value counts as large against in a relative error, > 0.
        soft: (..., variable) -> what softmax forms leave beyond the tolerance, and its derivation;
            (0, "") for none.
    """

    sizes: tuple[Size, ...]
    episodes: Callable[[Circuit, int, int, int], Any]
    output: str
    tolerance: Callable[[str, str], tuple[float, str]]
    undecided: Callable[[Circuit, Values, str], Mapping[str, np.ndarray]] = (
        lambda circuit, values, dtype: {}
    )
    unit: Callable[[Circuit, Values, str], float] = lambda circuit, values, key: 1.0
    soft: Callable[[Circuit, Values, str], tuple[float, str]] = lambda circuit, values, key: (
        0.0,
        "",
    )
