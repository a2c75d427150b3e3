"""A handwired construction as data: its heads, its embeddings, and where its variables are stored.

    >>> from circuits.registry import build
    >>> circuit = build("wma-handwired", n_experts=2)
    >>> [location.name for location in circuit.locations("log_weights")]
    ['latent', 'p?', 'w?']
    >>> from interp.tasks import experts
    >>> values = circuit.algorithm.run(experts.sample(3, 5, 2, seed=0))
    >>> circuit.truth(values, "log_weights").shape, circuit.truth(values, "votes").shape
    ((3, 5, 2), (3, 5, 4))

``docs/method/ground-truth.md`` says what the ground truth claims and which tests check it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from itertools import product
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pandas as pd
from einops import rearrange
from jaxtyping import Float
from torch import Tensor, as_tensor, einsum

from circuits.basis import Basis, Direction
from circuits.heads import Head, Neuron, names, read_variant_rows
from interp.core.algorithm import Algorithm, Values
from interp.model.layout import RoundLayout
from interp.results.measure import Result
from interp.support.checks import checked, checked_fields
from interp.support.errors import require, require_known, unknown_name


@dataclass(frozen=True)
@checked_fields
class Location:
    """A place in a circuit's activations where a variable of its algorithm is stored.

    The variable is flattened; its element k is stored at the token position ``labels[k]``. A
    location may cover several positions: ``circuits.compiler.activation_sites`` returns one activation site
    for each.

    Attributes:
        name: unique among the locations of one variable, such as "p?" or "votes".
        hook: name of the hook point, such as "blocks.1.hook_resid_post" or
            "blocks.2.attn.hook_attn_scores".
        labels: label of the token position of each element, such as "e_1"; for attention scores,
            label of the query position.
        directions: the direction that stores each element: the residual stream's component along
            the direction is ``scale`` times the element. Empty for attention scores.
        keys: label of the key position of each element, for attention scores; otherwise empty.
        head: name of the head, for attention scores; otherwise None.
        scale: what is stored (a component of the residual stream, or an attention score) is
            ``scale`` times the element.
        drives: what changes if the activation here is set to another value, in words, such as
            "prediction and update".
        one_hot: only for a variable that is a class, such as a choice. True: the location stores
            one number per class. False: it stores one number, the index of the class.
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
        """Refuse a location whose labels do not belong one by one to its directions or keys."""
        n_read, n_labels = len(self.directions or self.keys), len(self.labels)
        require(
            n_read == n_labels,
            f"location {self.name!r} needs one direction or key per label, got {n_read} for {n_labels}",
        )

    @checked
    def reader(self, circuit: Circuit) -> Callable[[Tensor], Float[Tensor, "... element"]]:
        """Return a function that reads the variable from an activation of the location's hook.

        The function takes an activation ``[..., pos, d_model]`` (for attention scores, ``[...,
        head, query, key]``) and returns the variable, ``[..., element]``.

        Args:
            circuit: the circuit, for the positions of labels and the indices of heads.
        """
        position = circuit.layout.position
        # The positions that hold the elements or, for attention scores, that have the queries.
        queries = [position(label) for label in self.labels]
        if self.keys:
            assert self.head is not None
            index = circuit.head_index(self.head)
            keys = [position(label) for label in self.keys]
            return lambda scores: scores[..., index, queries, keys] / self.scale
        # [element, d_model]; what is stored is `scale` times the element.
        vectors = np.stack([direction.vector() / self.scale for direction in self.directions])
        n_coordinates = np.count_nonzero(vectors, axis=1)
        if n_coordinates.max() == 1:
            # Each element is one coordinate: picking it from the flattened axes (pos, d_model) is
            # faster than an inner product, and adds no rounding.
            start_of_query = np.array(queries) * vectors.shape[1]
            coordinates = as_tensor(start_of_query + np.abs(vectors).argmax(1))
            factors = as_tensor(vectors.sum(1))  # the only entry of each row that is not 0
            return lambda resid: resid.flatten(-2).index_select(-1, coordinates) * factors.to(resid)
        weights = as_tensor(vectors)
        return lambda resid: einsum("...ed,ed->...e", resid[..., queries, :], weights.to(resid))


EMBEDDINGS = ("tokens", "latents", "payloads", "positions")
"""Sources of edges before the first layer: embeddings of tokens, latents, scalar payloads and
positions.
"""
EXITS = ("prediction", "update")
"""Targets of edges after the last layer: the unembedding, and the position that becomes the new
latent.
"""

_Port = Literal["query", "key", "value", "residual"]
Kind = Literal["content", "constant", "clean-up"]


@dataclass(frozen=True)
@checked_fields
class Edge:
    """An edge of the circuit's wiring: the component ``target`` reads what ``source`` wrote to the
    residual stream.

    Attributes:
        source: name of a head or of a group of neurons; or an embedding: "tokens", "latents",
            "payloads" or "positions".
        target: name of a head or of a group of neurons; or an output: "prediction" or "update".
        port: which input of the target reads: "query", "key" or "value" of a head, "residual" of
            neurons and outputs.
        carries: what information passes, in words.
        kind: "clean-up" if source or target erases values that are no longer needed; "constant" for
            what is equal in every round, such as position codes; otherwise "content".
        positions: labels of the positions where the target reads, in the order of the round.
    """

    source: str
    target: str
    port: _Port
    carries: str
    kind: Kind = "content"
    positions: tuple[str, ...] = ()


def make_edges(
    rows: Iterable[Mapping[str, str]], parts: Sequence[str], groups: Mapping[str, Sequence[str]]
) -> tuple[Edge, ...]:
    """Make the edges of a circuit from the rows of a table. One row describes a group of similar
    edges: one from each of its sources to each of its targets.

    The cells "source" and "target" name heads and groups of neurons by their names or numbers. A
    source can also be an embedding (:data:`EMBEDDINGS`), and a target an output (:data:`EXITS`).
    Several names are separated by commas. "2.2" stands for both heads "2.2+" and "2.2-" if the
    circuit has such a pair.

    Args:
        rows: rows with the columns source, target, port, kind, positions and carries, which are
            explained at :class:`Edge`.
        parts: names of all heads and groups of neurons.
        groups: word of the column "positions" -> the position labels that it stands for; "ALL" must
            be the labels of the round in order.

    >>> row = {"port": "query", "kind": "content", "positions": "VOTES", "carries": "the vote"}
    >>> groups = {"ALL": ("<w>", "p_1"), "VOTES": ("p_1",)}
    >>> edges = make_edges([{**row, "source": "1.1", "target": "2.2"}], ["1.1 bind", "2.2+ add", "2.2- add"], groups)
    >>> [(edge.source, edge.target, edge.positions) for edge in edges]
    [('1.1 bind', '2.2+ add', ('p_1',)), ('1.1 bind', '2.2- add', ('p_1',))]
    """
    edges: list[Edge] = []
    for row in rows:
        words = row["positions"].split()
        for word in words:
            require_known("position", word, (*groups, *groups["ALL"]), limit=40)
        labels = _expand_groups(words, groups)
        positions = tuple(label for label in groups["ALL"] if label in labels)
        sources = _find_parts(row["source"], [*parts, *EMBEDDINGS])
        targets = _find_parts(row["target"], [*parts, *EXITS])
        fields_of_row: dict[str, Any] = {name: row[name] for name in ("port", "carries", "kind")}
        for source, target in product(sources, targets):
            edge = Edge(source=source, target=target, **fields_of_row, positions=positions)
            edges.append(edge)
    return tuple(edges)


def _expand_groups(words: Iterable[str], groups: Mapping[str, Sequence[str]]) -> list[str]:
    """Replace each word that names a group of labels by the labels of the group; return all labels
    as a list, in order.

    Args:
        words: labels and names of groups.
        groups: labels by the name of their group.
    """
    return [label for word in words for label in groups.get(word, (word,))]


def _find_parts(words: str, known: Sequence[str]) -> list[str]:
    """Return the full names of the components that a comma-separated list names by name or number.

    "3.2" stands for "3.2 update", or for both "3.2+ update" and "3.2- update" if the head is a
    softmax pair.

    Args:
        words: the list, such as "1.1, 3.2 update".
        known: full names of all components.
    """
    names: list[str] = []
    for word in words.split(", "):
        matching = [name for name in known if word == name]
        if not matching:  # by number, without the sign of a head in a softmax pair
            matching = [name for name in known if word == name.split(" ")[0].rstrip("+-")]
        if not matching:
            raise unknown_name("part of the circuit", word, known, limit=40)
        names += matching
    return names


@dataclass(frozen=True)
@checked_fields
class Carried:
    """The claim that some locations of a circuit together carry a variable of its algorithm.

    If the claim is true, swapping the activations at these locations between two runs (an
    interchange) acts like swapping the variable.

    Attributes:
        variable: key of the variable.
        locations: names of the locations.
        outcome: which output shows the effect of the swap: "prediction" or "state" (the state that
            the round writes).
        held_as: "" if the circuit lists the locations under ``variable``. If it lists them under
            another variable that determines ``variable``, the key of the other one, such as
            "policy" where ``variable`` is "choice".
    """

    variable: str
    locations: tuple[str, ...]
    outcome: str
    held_as: str = ""

    @property
    def location_key(self) -> str:
        """Key of the variable under which the circuit lists these locations: ``held_as`` if it is
        set, otherwise ``variable``.
        """
        return self.held_as or self.variable


def read_tables(
    folder: Path,
    form: Collection[str],
    parts: Iterable[Head | Neuron],
    basis: Basis,
    groups: Mapping[str, Sequence[str]],
    named: Mapping[str, Direction] | None = None,
    scales: Mapping[str, float] | None = None,
) -> dict[str, Any]:
    """Read the three tables of a construction, and make fields of a :class:`Circuit` from them:

    - ``sites.csv`` says where variables are stored (field ``sites``);
    - ``edges.csv`` says which head or group of neurons reads which other (``edges``);
    - ``held.csv`` says which sites hold a variable wholly (``carried``), in part (``partial``) or
      not at all (``not_carried``).

    Args:
        folder: folder of the tables.
        form: words that describe the variant of the construction, such as ``{"R", "softmax"}``.
            Rows of the tables for other variants are not read.
        parts: all heads and groups of neurons.
        basis: basis of the residual stream.
        groups: word in a table -> the labels of positions or axes that it stands for.
        named, scales: word in ``sites.csv`` -> the direction or the number that it stands for
            (:func:`read_locations`).

    Returns:
        Name of the field -> its value, for ``sites``, ``edges``, ``carried``, ``partial`` and
        ``not_carried``.
    """
    rows_of_sites = read_variant_rows(folder / "sites.csv", form)
    rows_of_truth = read_variant_rows(folder / "held.csv", form)
    rows_of_edges = read_variant_rows(folder / "edges.csv", form)
    sites = read_locations(rows_of_sites, basis, groups, named or {}, scales or {})
    ground_truth = read_ground_truth(rows_of_truth, sites, groups)
    edges = make_edges(rows_of_edges, names(parts), groups)
    return {"sites": sites, "edges": edges, **ground_truth}


def read_locations(
    rows: Iterable[Mapping[str, str]],
    basis: Basis,
    groups: Mapping[str, Sequence[str]],
    named: Mapping[str, Direction],
    scales: Mapping[str, float],
) -> dict[str, tuple[Location, ...]]:
    """Make the locations of every variable from the rows of a table.

    A location is a place where the activations of one hook store a variable (:class:`Location`).
    The column "labels" lists its token positions, and the column "read" says what is read at them::

        buf2 e_1 e_2         the axes e_1 and e_2 of the block buf2, at every position; the elements
                             are ordered by position, then by axis
        buf2 e_1 e_2 each    the same, ordered by axis, then by position
        buf1 e_1 e_2 own     the first axis at the first position, the second at the second, ...
        a word of `named`    that direction, at every position
        score 3.2 p_1 p_2    the attention scores of head 3.2 for two keys, at the positions p_1 and
                             p_2; the query is the position in "labels", which must be one

    Args:
        rows: rows with the columns variable (its key), name (of the location), hook, labels, read,
            scale and drives. The column "drives" says in words what changes if the activation at
            the location is set to another value, such as "prediction and update".
        basis: basis of the residual stream.
        groups: word -> the labels of positions or axes that it stands for, such as "EXPERTS" ->
            ("e_1", "e_2"). In the columns "labels" and "read", the labels replace the word. If the
            column "name" is such a word, the row becomes one location per label, with the label as
            its name and position. Rows with "score", "each" or "own" always become one location.
        named: word in the column "read" -> direction.
        scales: word in the column "scale" -> number; a word that is not in the mapping means 1.

    Returns:
        Key of a variable -> its locations.
    """
    locations: dict[str, list[Location]] = {}
    for row in rows:
        labels = _expand_groups(row["labels"].split(), groups)
        first_word, *words = row["read"].split()  # a block, a word of `named`, or "score"
        axes = _expand_groups(words, groups)
        options: dict[str, Any] = {
            "hook": row["hook"],
            "scale": scales.get(row["scale"], 1.0),
            "drives": row["drives"],
        }
        of_variable = locations.setdefault(row["variable"], [])  # its locations so far
        if first_word == "score":
            head, *keys = axes  # after "score" come the head's number and the labels of keys
            options |= {"head": head, "keys": tuple(keys), "one_hot": False}
            of_variable.append(Location(row["name"], labels=tuple(labels) * len(keys), **options))
            continue
        # A last word "each" or "own" is no axis; it says how axes and positions are combined.
        order = axes.pop() if axes[-1:] in (["each"], ["own"]) else ""
        directions = [basis[first_word][axis] for axis in axes]
        if first_word in named:  # a word that stands alone, without axes
            directions = [named[first_word]]
        # A name that stands for several labels makes one location per label.
        names_of_locations = () if order else groups.get(row["name"], ())
        labels_by_name = {label: [label] for label in names_of_locations} or {row["name"]: labels}
        for name, labels_of_name in labels_by_name.items():
            # (position, direction) of every element of the variable, in order.
            if order == "own":  # the i-th axis at the i-th position
                reads = list(zip(labels_of_name, directions, strict=True))
            elif order == "each":
                reads = [(label, axis) for axis in directions for label in labels_of_name]
            else:
                reads = list(product(labels_of_name, directions))
            location = Location(
                name,
                labels=tuple(label for label, _ in reads),
                directions=tuple(direction for _, direction in reads),
                **options,
            )
            of_variable.append(location)
    return {variable: tuple(of_variable) for variable, of_variable in locations.items()}


def read_ground_truth(
    rows: Iterable[Mapping[str, str]],
    sites: Mapping[str, Iterable[Location]],
    groups: Mapping[str, Sequence[str]],
) -> dict[str, Any]:
    """Make the fields ``carried``, ``partial`` and ``not_carried`` of a :class:`Circuit` from a
    table.

    Each row becomes an entry of one field. The column "holds" says which:

    * "all": together, the locations carry the variable. The row becomes a :class:`Carried` in
      ``carried``. It is left out if this variant of the circuit lacks one of the locations.
    * "partly": one location alone has only a part of the effect. The row becomes the entry
      (variable, location) -> text of the column "why" in ``partial``.
    * "no": a negative control, a place that does not store the variable. The column "locations" has
      one site, such as "embed@p?". The row becomes the entry site -> (variable, outcome) of
      ``not_carried``.

    Args:
        rows: rows with the columns holds, variable, locations, outcome, why and held_as. Several
            locations are separated by "; ". The columns outcome and held_as are explained at
            :class:`Carried`.
        sites: key of a variable -> its locations in this variant of the circuit.
        groups: word of the column "locations" -> the names of locations that it stands for.

    Returns:
        Name of the field -> its value, for the three fields.
    """
    names_of_locations = {
        key: {location.name for location in locations} for key, locations in sites.items()
    }
    carried, partial, not_carried = [], {}, {}
    for row in rows:
        names = tuple(_expand_groups(row["locations"].split("; "), groups))
        if row["holds"] == "no":
            not_carried[names[0]] = row["variable"], row["outcome"]
        elif row["holds"] == "partly":
            partial[row["variable"], names[0]] = row["why"]
        else:
            claim = Carried(
                variable=row["variable"],
                locations=names,
                outcome=row["outcome"],
                held_as=row["held_as"],
            )
            # A claim about a location that this variant of the circuit lacks is left out.
            if set(names) <= names_of_locations.get(claim.location_key, set()):
                carried.append(claim)
    return {"carried": tuple(carried), "partial": partial, "not_carried": not_carried}


@dataclass(frozen=True)
@checked_fields
class Circuit(Result):
    """A handwired model as data: heads, neurons, embeddings, and the ground truth about its
    variables.

    :func:`circuits.compile_circuit` makes the transformer. A *site* is one activation at one token
    position, such as "embed@p?". A :class:`Location` says where one variable is stored and how to
    read it; it may cover several sites.

    Attributes:
        name: the model's name in the registry.
        arguments: arguments of the function that builds the circuit, by name.
        layout: the positions of a round and what each contains.
        basis: the labelled basis of the residual stream.
        heads, neurons: the attention heads and the MLP neurons.
        tokens: token of the vocabulary -> its embedding.
        payloads: token -> direction that its scalar payload (such as a reward) multiplies.
        latents: the initial vector of each latent.
        payload_range: (lowest, highest) payload for which the construction is proven; None if it is
            proven for every payload.
        float32_range: range of payloads that a float32 model accepts if ``payload_range`` is None.
        outcomes: unembedding direction of each outcome that the model can predict, such as the
            labels 0 and 1. What a direction reads is the outcome's probability, not a logit.
        state: directions along which a latent stores the algorithm's state, one per element of the
            state.
        algorithm: the algorithm that the circuit computes.
        sites: key of a variable -> its locations (places that store it).
        carried: which locations together carry a variable, so that an interchange of their
            activations acts like an interchange of the variable.
        partial: (variable, name of a location) -> what changes if the variable is set at this
            location alone, in words.
        not_carried: negative controls, such as ``{"embed@p?": ("label", "state")}``: the site
            embed@p? does not store the variable label, so that an interchange there leaves the
            outcome, "prediction" or "state", unchanged.
        edges: every read of another component's output or of an embedding.
        edits: descriptions of the changes that were made by hand after the circuit was built.
        float64_only: why float32 is too coarse, and what to use instead; empty if float32 works.
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
        """Refuse unknown variables, and locations of a variable that share a name or differ in size."""
        for key, locations in self.sites.items():
            self.algorithm.variable(key)  # refuses a key that the algorithm does not have
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
        """A sentence with the name of the algorithm, the numbers of heads and layers, the contents
        of the latents, and the changes that were made by hand.
        """
        memory = self.algorithm.variable(self.algorithm.memory).noun
        size = f"{len(self.heads)} heads in {self.n_layers} layers, whose latents hold {memory}"
        finding = f"{self.name} runs {self.algorithm.name}: {size}"
        return ". ".join([finding, *self.edits])

    @property
    def n_layers(self) -> int:
        """Number of layers: one more than the largest layer index of a head or neuron."""
        parts: tuple[Head | Neuron, ...] = (*self.heads, *self.neurons)
        return 1 + max((part.layer for part in parts), default=0)

    @property
    def leak(self) -> float:
        """Bound of the error of softmax heads that replace hard heads: the largest ratio of the
        attention to a key with a lower score and the attention to the key with the highest score.

        It is 0 for a circuit with hard heads.
        """
        eta = self.arguments.get("eta")
        if eta is None:
            return 0.0
        # A match leads other keys by the margin if positions are compared, and by 1 if contents
        # are; the sink scores halfway between. A softmax turns a lead into the ratio e^(-eta lead).
        lead = min(self.basis.positions.margin, 1.0) / 2
        return math.exp(-float(eta) * lead)

    @checked
    def pair_error(self, scores: Float[np.ndarray, "*shape"]) -> Float[np.ndarray, "*shape"]:
        """Estimate the largest error of a pair of softmax heads that replaces a linear head
        (:func:`circuits.heads.softmax_pair`).

        A linear head weighs each key by its score x. The pair weighs the key by ``(e^{eps x} -
        e^{-eps x}) / (2 eps)``, where eps is the circuit's argument "epsilon". The estimate is the
        sum of two errors:

        - ``eps^2 x^3 / 6``: the second term of the Taylor series ``x + eps^2 x^3 / 6 + ...``;
        - ``4 heavy u / eps``, for rounding, with the machine epsilon u of float64. Each of the two
          heads weighs the key by ``e^heavy / (2 eps)`` times its attention, which is about
          ``e^{-heavy}``. Here "heavy" is the circuit's argument: the logit of a sink token that
          takes nearly all attention. An exponential of about -heavy has a relative error of about
          ``heavy u``. So each weight, about ``1 / (2 eps)``, has an error of about ``heavy u / (2
          eps)``. Both errors sum to ``heavy u / eps``, and four times this sum is allowed.

        Args:
            scores: the scores x, of any shape; their signs do not matter.

        Returns:
            The estimate for each x, in the shape of ``scores``.
        """
        epsilon, heavy = self.arguments["epsilon"], self.arguments["heavy"]
        rounding = 4 * heavy * float(np.finfo(np.float64).eps) / epsilon
        cubic_term = epsilon**2 * np.abs(scores) ** 3 / 6
        return np.asarray(cubic_term + rounding)

    @checked
    def layer(self, index: int) -> tuple[Head, ...]:
        """Return the heads of the layer with the index ``index``, counted from 0, in order."""
        return tuple(head for head in self.heads if head.layer == index)

    @checked
    def head(self, name: str) -> Head:
        """Return the head with a name, such as "2.1 fetch z", or with a number alone, "2.1"."""
        for head in self.heads:
            if name in (head.name, head.name.split(" ")[0]):
                return head
        raise unknown_name("head", name, (head.name for head in self.heads), limit=20)

    @checked
    def head_index(self, name: str) -> int:
        """Return the index of a head within its layer, from its name or number ("2.1")."""
        head = self.head(name)
        return self.layer(head.layer).index(head)

    @checked
    def locations(self, key: str, *names: str) -> tuple[Location, ...]:
        """Return the locations of a variable, the places in the activations that store it.

        Args:
            key: key of the variable.
            *names: names of the locations to return, in this order. Without names, all locations
                are returned, in the order in which the model computes them.
        """
        require_known(f"variable with a location in {self.name!r}", key, self.sites, limit=20)
        return tuple(self.location(key, name) for name in names) if names else self.sites[key]

    @checked
    def location(self, key: str, name: str) -> Location:
        """Return one location of a variable, a place in the activations that stores it.

        Args:
            key: key of the variable.
            name: name of the location.

        Raises:
            InputError: there is no such location; the message lists the known ones.
        """
        known = {location.name: location for location in self.locations(key)}
        require_known(f"location of {key!r}", name, known, limit=20)
        return known[name]

    @checked
    def truth(self, values: Values, key: str) -> Float[np.ndarray, "episode round element"]:
        """Return the values of a variable in the algorithm, in the form in which the circuit's
        locations must store them.

        A variable of real numbers is flattened. A variable that is a class is one-hot encoded,
        unless its locations store the index of the class.

        Args:
            values: the algorithm's values, ``circuit.algorithm.run(episodes)``.
            key: key of the variable.

        Returns:
            True values ``[episode, round, element]``.
        """
        variable = self.algorithm.variable(key)
        require(
            key in values,
            f"values must be those of a run of the circuit's algorithm; they lack {key!r}",
        )
        truth = values[key]  # [episode, round, ...]
        # Also True for a variable without locations, such as one that only the prediction shows.
        is_one_hot = all(location.one_hot for location in self.sites.get(key, ()))
        if variable.n_classes is not None and is_one_hot:
            truth = np.eye(variable.n_classes(values))[truth]  # row k is the code of class k
        return rearrange(truth, "episode round ... -> episode round (...)").astype(np.float64)

    def without(self, *names: str) -> Circuit:
        """Return a copy of the circuit without some heads. The copy's ``edits`` lists these heads.

        Args:
            *names: names or numbers of the heads, such as "2.1 fetch z" or "2.1".
        """
        removed = [self.head(name) for name in names]
        heads = tuple(head for head in self.heads if head not in removed)
        edits = [f"{head.name}: removed" for head in removed]
        return replace(self, heads=heads, edits=(*self.edits, *edits))

    def to_frame(self) -> pd.DataFrame:
        """Return a table with one row per head and per group of neurons, in the order of
        computation.

        The columns are:

        * head: its name, or that of the group of neurons;
        * layer: counted from 1;
        * rule: the attention rule, or "relu" for neurons;
        * reads, writes: what the component reads and what it writes, in words;
        * score terms: number of terms that the attention score is a sum of; a term is a product of
          a number read at the query and one read at the key. 0 for neurons;
        * non-zero weights: number of non-zero entries of weights and biases.
        """
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
            n_nonzero = sum(neuron.n_nonzero for neuron in group)
            row = {
                "head": name,
                "layer": first.layer + 1,
                "rule": "relu",
                "reads": f"{len(group)} neurons, {first.read} ...",
                "writes": f"{first.write} ...",
                "score terms": 0,
                "non-zero weights": n_nonzero,
            }
            rows.append(row)
        return pd.DataFrame(rows).sort_values("layer", kind="stable", ignore_index=True)

    def _draw(self, figures: Any) -> Any:
        """Draw which head reads the output of which other head.

        Args:
            figures: module with the package's plotting functions.
        """
        heads = self.to_frame()
        edges = pd.DataFrame(list(self.edges), columns=[field.name for field in fields(Edge)])
        layers = [list(of_layer["head"]) for _, of_layer in heads.groupby("layer")]
        is_between_heads = edges["source"].isin(heads["head"])
        return figures.draw_wiring(layers, edges[is_between_heads])

    def ground_truth(self) -> pd.DataFrame:
        """Return a table of where the algorithm's variables are stored, one row per location.

        The columns are:

        * variable: its key; symbol and meaning: the algorithm's symbol for it, and what it is in
          words;
        * location: name of the location; hook: name of the hook point;
        * positions: labels of the token positions;
        * reads: the directions along which the variable is read; for attention scores, the head;
        * scale: what is stored is this number times the variable;
        * drives: what changes if the activation is set to another value, in words.
        """
        rows = []
        for key, locations in self.sites.items():
            variable = self.algorithm.variable(key)
            for location in locations:
                directions = list(dict.fromkeys(map(str, location.directions)))
                # Both are the same if there is one direction, which is then named once.
                first_and_last = dict.fromkeys(directions[:1] + directions[-1:])
                reads = " ... ".join(first_and_last)
                if location.keys:
                    reads = f"score of {location.head}"
                positions = ", ".join(dict.fromkeys(location.labels))
                row = {
                    "variable": key,
                    "symbol": variable.symbol,
                    "meaning": variable.meaning,
                    "location": location.name,
                    "hook": location.hook,
                    "positions": positions,
                    "reads": reads,
                    "scale": location.scale,
                    "drives": location.drives,
                }
                rows.append(row)
        return pd.DataFrame(rows)


Size = int | tuple[int, ...]
"""The size of a task: one number, or several, such as (states, actions)."""


def unpack_single_size(size: Size) -> Size:
    """Return a task size in its short form: a tuple of one number becomes that number, and any
    other size stays unchanged.
    """
    return size[0] if isinstance(size, tuple) and len(size) == 1 else size


@dataclass(frozen=True)
@checked_fields
class VerificationPlan:
    """How :func:`circuits.verify` checks one handwired model: on which episodes, and with which
    tolerances.

    Below, ``(arguments) -> result`` is a function. ``values`` is {key of a variable: its values in
    the algorithm, ``[episode, round, ...]``}. ``variable`` is the key of a variable; for
    ``tolerance`` and ``soft`` it may also be the name of a check: "carried_state", "residue",
    "position_code" or "distribution".

    Attributes:
        sizes: task sizes that :func:`circuits.verify` checks by default.
        episodes: (circuit, n_rounds, n_episodes, seed) -> episodes to run on. They may have fewer
            rounds than ``n_rounds``, if later rounds would only repeat.
        output: key of the variable that the model's prediction must equal.
        tolerance: (variable, dtype) -> (largest allowed error, kind of the error: "error" for
            absolute, "relative" for relative).
        undecided: (circuit, values, dtype) -> {variable: mask ``[episode, round]``}. A mask is True
            where rounding decides a tie, so that the value is not determined and not compared.
        unit: (circuit, values, variable) -> a number > 0. A relative error is the absolute error
            divided by the absolute true value, or by this number if it is larger. The variable may
            also be "carried_state".
        soft: (circuit, values, variable) -> (number, text). The number is added to the tolerance,
            for the error that softmax heads make; the text is its formula in words. (0, "") adds
            nothing.
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
