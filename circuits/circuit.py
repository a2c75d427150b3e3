"""A handwired construction as data: its heads, its embeddings, and its ground truth.

The ground truth is a table of causal variables: what the algorithm computes, where each value lives in the model (hook,
position label, direction), and how to compute its true value from episodes. :mod:`circuits.verify` reads every one of
them in a running model and compares; probes and interventions take their targets and sites from the same table.
Edges say which head's output another head reads. The table is a claim about this construction only: it is no evidence
about a learned model.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from jaxtyping import Float
from torch import Tensor, as_tensor, einsum

from circuits.basis import Basis, Direction
from circuits.heads import Head, Neuron
from interp.errors import require, unknown_name
from interp.model.layout import RoundLayout

if TYPE_CHECKING:
    import pandas as pd

Values = Callable[[Any], Float[np.ndarray, "episode round *value"]]
"""Episodes to the true value of a variable."""


@dataclass(frozen=True)
class Site:
    """Where a variable lives; element k of its (flattened) value is read at position ``labels[k]``.

    Attributes:
        hook: name of the hook point, "blocks.1.hook_resid_post" or "blocks.2.attn.hook_attn_scores".
        labels: position label of each element (the query position at attention scores).
        directions: what reads each element; empty at attention scores.
        keys: key position of each element at attention scores.
        head: name of the head at attention scores.
        scale: the activation is ``scale`` times the variable.
        drives: what an intervention here moves.
    """

    hook: str
    labels: tuple[str, ...]
    directions: tuple[Direction, ...] = ()
    keys: tuple[str, ...] = ()
    head: str | None = None
    scale: float = 1.0
    drives: str = ""

    def __post_init__(self) -> None:
        found = len(self.directions or self.keys)
        require(
            found == len(self.labels),
            f"a site needs one direction or key per label, got {found} for {len(self.labels)}",
        )

    def reader(self, circuit: Circuit) -> Callable[[Tensor], Float[Tensor, "*batch element"]]:
        """A function that reads the variable in an activation of this hook.

        It takes ``[..., pos, d_model]``, or ``[..., head, query, key]`` at attention scores, and can be called often.
        """
        at = circuit.layout.position
        queries = [at(label) for label in self.labels]
        if self.keys:
            assert self.head is not None
            index, keys = circuit.head_index(self.head), [at(label) for label in self.keys]
            return lambda scores: scores[..., index, queries, keys] / self.scale
        groups: dict[int, list[int]] = {}
        for element, position in enumerate(queries):
            groups.setdefault(position, []).append(element)
        positions, order = list(groups), [element for elements in groups.values() for element in elements]
        assert len({len(elements) for elements in groups.values()}) == 1, "a site reads equally many numbers everywhere"
        vectors = np.stack([direction.vector() / self.scale for direction in self.directions])
        maps = as_tensor(vectors[order].reshape(len(groups), -1, vectors.shape[1]))
        back = sorted(range(len(order)), key=order.__getitem__)

        def read(activation: Tensor) -> Tensor:
            found = einsum("...pd,ped->...pe", activation[..., positions, :], maps.to(activation)).flatten(-2)
            return found if order == back else found[..., back]

        return read

    def read(self, activation: Tensor, circuit: Circuit) -> Float[Tensor, "*batch element"]:
        """The variable in an activation of this hook."""
        return self.reader(circuit)(activation)

    def write(
        self, activation: Tensor, values: Float[Tensor, "*batch element"], circuit: Circuit
    ) -> Float[Tensor, "*batch pos d_model"]:
        """The activation with the variable set to ``values``; everything orthogonal to its directions is kept."""
        require(bool(self.directions), f"{self.hook!r} holds attention scores; set residual directions instead")
        change = (values - self.read(activation, circuit)) * self.scale
        patched = activation.clone()
        for k, (label, direction) in enumerate(zip(self.labels, self.directions, strict=True)):
            dual = as_tensor(direction.vector() / direction.norm_squared).to(activation)
            patched[..., circuit.layout.position(label), :] += change[..., k, None] * dual
        return patched


@dataclass(frozen=True)
class Variable:
    """A causal variable: its name, symbol, true value, and every site where it lives.

    ``value(episodes)`` is ``[episode, round, ...]``; a site's elements are its trailing axes, flattened.
    """

    name: str
    symbol: str
    meaning: str
    value: Values
    sites: tuple[Site, ...]


@dataclass(frozen=True)
class Edge:
    """Head ``target`` reads at its ``port`` what head ``source`` wrote; "prediction" and "update" are the exits."""

    source: str
    target: str
    port: Literal["query", "key", "value", "residual"]
    carries: str


@dataclass(frozen=True)
class Circuit:
    """A construction as data; :func:`circuits.compile` makes the model.

    Attributes:
        name, arguments: what builds it again, in the registry.
        layout, basis: the round it runs on, and its residual stream.
        heads, neurons: what computes.
        tokens, payloads: embedding of each token of the vocabulary; direction that a token's scalar payload scales.
        payload_range: scalar payloads that the construction is proven for; None takes any.
        latents: initial latents.
        outcomes: unembedding direction of each outcome; the model's output is a probability.
        state: directions that read the algorithm's state from a latent.
        variables, edges: the ground truth.
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
    payloads: Mapping[str, Direction] = field(default_factory=dict)
    payload_range: tuple[float, float] | None = None
    neurons: tuple[Neuron, ...] = ()
    variables: tuple[Variable, ...] = ()
    edges: tuple[Edge, ...] = ()
    edits: tuple[str, ...] = ()
    float64_only: str = ""

    @property
    def n_layers(self) -> int:
        return 1 + max([head.layer for head in self.heads] + [neuron.layer for neuron in self.neurons])

    @property
    def n_nonzero(self) -> int:
        """Non-zero attention weights in an axis-aligned basis."""
        return sum(head.n_nonzero for head in self.heads)

    def layer(self, index: int) -> tuple[Head, ...]:
        """The heads of one layer, in order."""
        return tuple(head for head in self.heads if head.layer == index)

    def head(self, name: str) -> Head:
        """A head by name, or by its number alone ("2.1").

        Raises:
            InputError: no such head.
        """
        for head in self.heads:
            if name in (head.name, head.name.split(" ")[0]):
                return head
        raise unknown_name("head", name, (head.name for head in self.heads), limit=20)

    def head_index(self, name: str) -> int:
        """The head's index in its layer."""
        head = self.head(name)
        return self.layer(head.layer).index(head)

    def variable(self, name: str) -> Variable:
        """A causal variable by name.

        Raises:
            InputError: no such variable.
        """
        for variable in self.variables:
            if variable.name == name:
                return variable
        raise unknown_name("variable", name, (variable.name for variable in self.variables), limit=20)

    def edit(self, name: str, **changes: Any) -> Circuit:
        """A copy in which one head's fields are replaced: how a wrong version is written down and tested."""
        old = self.head(name)
        heads = tuple(replace(head, **changes) if head is old else head for head in self.heads)
        note = f"{old.name}: {', '.join(sorted(changes))}"
        return replace(self, heads=heads, edits=(*self.edits, note))

    def without(self, *names: str) -> Circuit:
        """A copy without some heads."""
        gone = [self.head(name) for name in names]
        heads = tuple(head for head in self.heads if head not in gone)
        return replace(self, heads=heads, edits=(*self.edits, *(f"{head.name}: removed" for head in gone)))

    def adding(self, *heads: Head) -> Circuit:
        """A copy with further heads."""
        edits = tuple(f"{head.name}: added" for head in heads)
        return replace(self, heads=(*self.heads, *heads), edits=(*self.edits, *edits))

    def to_frame(self) -> pd.DataFrame:
        """The head table, one row a head (and a row for each group of neurons), in the order of computation."""
        import pandas as pd

        rows: list[dict[str, Any]] = [
            {
                "head": head.name,
                "layer": head.layer + 1,
                "rule": head.rule,
                "reads": head.reads,
                "writes": head.writes,
                "score terms": len(head.scores),
                "non-zero weights": head.n_nonzero,
            }
            for head in self.heads
        ]
        for name in dict.fromkeys(neuron.name for neuron in self.neurons):
            group = [neuron for neuron in self.neurons if neuron.name == name]
            rows.append(
                {
                    "head": name,
                    "layer": group[0].layer + 1,
                    "rule": "relu",
                    "reads": f"{len(group)} neurons, {group[0].read} ...",
                    "writes": f"{group[0].write} ...",
                    "score terms": 0,
                    "non-zero weights": sum(neuron.n_nonzero for neuron in group),
                }
            )
        return pd.DataFrame(rows).sort_values("layer", kind="stable", ignore_index=True)

    def ground_truth(self) -> pd.DataFrame:
        """The causal variables, one row a site."""
        import pandas as pd

        rows = [
            {
                "variable": variable.name,
                "symbol": variable.symbol,
                "meaning": variable.meaning,
                "hook": site.hook,
                "positions": ", ".join(dict.fromkeys(site.labels)),
                "reads": f"score of {site.head}" if site.keys else _spread(site.directions),
                "scale": site.scale,
                "drives": site.drives,
            }
            for variable in self.variables
            for site in variable.sites
        ]
        return pd.DataFrame(rows)


def _spread(directions: Sequence[Direction]) -> str:
    """Directions in few words: the first and the last."""
    names = list(dict.fromkeys(str(direction) for direction in directions))
    return names[0] if len(names) == 1 else f"{names[0]} ... {names[-1]}"
