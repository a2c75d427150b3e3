"""The stated edges of every circuit are those that are measured in running models: no more, no fewer, of that kind."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import circuits
from circuits.circuit import EMBEDDINGS, EXITS, Edge, make_edges
from circuits.heads import read_variant_rows
from tests.circuits.faults import edit_head
from tests.circuits.wires import wires
from tests.refusals import refuses

W, Q, R = "wma-handwired", "qlearning-handwired", "reachability-handwired"
SINUSOIDAL = {"positions": "sinusoidal"}
SIGNED = {"signed": True, "rewards": (-1.0, 1.0)}
OTHERS = (
    ({}, {"eta": 80.0}, {"noise": True}),
    (SINUSOIDAL, SIGNED, {"beta": 2.0}, {"rewards": (0.0, 0.01)}),
)
OF_W = ({}, {"eta": 80.0}, SINUSOIDAL, {"rotation": 1})
OF_R = (
    {},
    {"expand": "mean"},
    {"eta": 60.0},
    {"marks": False},
    {"marks": False, "eta": 60.0},
    SINUSOIDAL,
)
FORMS: list[tuple[str, dict[str, Any]]] = []
for variant in ("R", "P"):
    FORMS += [(W, {"variant": variant, **form}) for form in OF_W]
FORMS += [(Q, {"variant": "mlp", **form}) for form in (*OTHERS[0], *OTHERS[1])]
for variant in ("softmlp", "lin"):
    FORMS += [(Q, {"variant": variant, **form}) for form in OTHERS[0]]
FORMS += [(R, form) for form in OF_R]
CROSSED = [
    pytest.param(
        Q,
        {"variant": v, **form},
        marks=pytest.mark.slow(reason="forms that are measured of one variant"),
    )
    for v in ("softmlp", "lin")
    for form in OTHERS[1]
]
SMALL = {
    W: ({"n_experts": 3}, {"n_experts": 2}),
    Q: ({"n_states": 3, "n_actions": 3}, {"n_states": 2, "n_actions": 4}),
    R: ({"n_nodes": 6, "n_edges": 5}, {"n_nodes": 5, "n_edges": 4}),
}


def read(edges: tuple[Edge, ...]) -> set[tuple[object, ...]]:
    """Everything about edges that is measured."""
    return {(edge.source, edge.target, edge.port, edge.kind, edge.positions) for edge in edges}


@pytest.mark.parametrize(
    ("name", "form"),
    [*FORMS, *CROSSED],
    ids=lambda given: given if isinstance(given, str) else "-".join(map(str, given.values())),
)
def test_the_stated_edges_are_the_measured_ones(name: str, form: dict[str, Any]) -> None:
    for size in (
        SMALL[name] if form in ({}, {"variant": "R"}, {"variant": "lin"}) else SMALL[name][:1]
    ):
        circuit = circuits.build(name, **size, **form)
        assert read(circuit.edges) == read(wires(circuit, n_episodes=16 if name == R else 6))
        assert len(read(circuit.edges)) == len(circuit.edges), "no edge is stated twice"
        assert all(edge.carries for edge in circuit.edges)
        parts = {part.name for part in (*circuit.heads, *circuit.neurons)}
        sources = {edge.source for edge in circuit.edges}
        targets = {edge.target for edge in circuit.edges}
        assert parts <= sources, "every part has an edge out"
        assert sources - parts <= set(EMBEDDINGS), "every part has an edge out"
        assert parts <= targets, "and an edge in"
        assert targets - parts == set(EXITS), "and an edge in"


def test_a_circuit_wired_otherwise_is_seen() -> None:
    """A head without its query, a key that reads one block more, a write that nobody asked for."""
    circuit = circuits.build(W, n_experts=3)
    basis, stated = circuit.basis, read(circuit.edges)
    mute = edit_head(circuit, "2.1", scores=circuit.head("2.1").scores[1:])
    assert ("tokens", "2.1 fetch z", "query") in {edge[:3] for edge in stated - read(wires(mute))}
    key = (basis["id"]["w?"], 1e-3 * basis["buf1"]["e_1"])
    curious = edit_head(circuit, "2.2", scores=(*circuit.head("2.2").scores, key))
    assert ("1.1 bind", "2.2 fetch y", "key") in {
        edge[:3] for edge in read(wires(curious)) - stated
    }
    stray = (basis["id"]["q1"], 1e-3 * basis["buf2"]["e_1"])
    writing = edit_head(circuit, "2.2", moves=(*circuit.head("2.2").moves, stray))
    added = {edge[:3] for edge in read(wires(writing)) - stated}
    assert added == {(source, "3.1 predict", "query") for source in ("2.2 fetch y", "latents")}, (
        "and it is kept"
    )


def test_a_table_is_checked_as_it_is_read() -> None:
    groups = {"ALL": ("<w>", "p_1", "p_2"), "VOTES": ("p_1", "p_2")}
    row = {
        "source": "tokens",
        "target": "1.1",
        "port": "key",
        "kind": "constant",
        "positions": "VOTES <w>",
    }
    row["carries"] = "names"
    assert make_edges([row], ["1.1 bind"], groups) == (
        Edge("tokens", "1.1 bind", "key", "names", "constant", ("<w>", "p_1", "p_2")),
    )
    for column, value, message in (
        ("port", "keys", "port must be 'query' or 'key' or 'value' or 'residual', got 'keys'"),
        ("kind", "fixed", "kind must be 'content' or 'constant' or 'clean-up', got 'fixed'"),
        ("positions", "VOTE", "unknown position 'VOTE'"),
        ("target", "1.2", "unknown part of the circuit '1.2'"),
    ):
        refuses(message, make_edges, [row | {column: value}], ["1.1 bind"], groups)


def test_rows_of_a_form_are_those_all_of_whose_words_it_has(tmp_path: Path) -> None:
    path = tmp_path / "table.csv"
    path.write_text("form,head\n,always\nmlp/lin,either\nmlp softmax,both\n")
    heads = {
        form: [row["head"] for row in read_variant_rows(path, form)]
        for form in (("lin",), ("mlp", "softmax"))
    }
    assert heads == {
        ("lin",): ["always", "either"],
        ("mlp", "softmax"): ["always", "either", "both"],
    }


def test_what_a_head_reads_is_measured_by_kind_and_position() -> None:
    edges = wires(circuits.build(W, n_experts=2))
    fetched = [
        (edge.port, edge.kind, edge.positions) for edge in edges if edge.source == "2.1 fetch z"
    ]
    assert fetched == [("query", "content", ("p?",))]
    assert {edge.kind for edge in edges if edge.source == "positions"} == {"clean-up", "constant"}


def test_halves_of_a_pair_are_measured_together() -> None:
    """Alone each half writes 5e4 times every value; together they write what the linear head does."""
    exact, soft = (circuits.build(W, n_experts=3, variant="P", eta=eta) for eta in (None, 80.0))
    into = {
        edge[:1] + edge[2:]
        for edge in read(wires(exact))
        if edge[1] == "update" and edge[0] == "3.2 update"
    }
    for half in ("3.2+ update", "3.2- update"):
        assert {
            edge[:1] + edge[2:]
            for edge in read(wires(soft))
            if edge[1] == "update" and edge[0] == half
        } == {(half, *edge[1:]) for edge in into}
    alone = replace(soft, heads=tuple(head for head in soft.heads if head.name != "3.2- update"))
    assert ("tokens", "3.2+ update", "value") not in {edge[:3] for edge in read(wires(alone))}
