"""Breadth-first search wired by hand: every variable exact at its place, in every form, and causal."""

from functools import partial
from typing import Any

import numpy as np
import pytest
import torch

import circuits
import interp
from circuits.compiler import compile_circuit
from circuits.exactness import check
from circuits.reachability import reachability
from circuits.reachability.construction import PLAN
from interp.tasks.reachability import ReachabilityEpisodes, algorithms, sample
from interp.tasks.reachability.episodes import join_batches
from tests.refusals import refuses

SMALL = (6, 9)


def battery(
    n_nodes: int, n_edges: int, n_graphs: int, n_rounds: int, seed: int = 0
) -> ReachabilityEpisodes:
    """Any digraphs (self-loops, cycles, parallel edges), long paths and acyclic graphs, equally many of each."""
    regimes = ("uniform", "path", "prosqa")
    parts = [
        sample(
            -(-n_graphs // 3),
            n_rounds,
            n_nodes,
            n_edges,
            regime,
            seed,
            depths=(1, 2) if regime == "prosqa" else None,
        )
        for regime in regimes
    ]
    return join_batches(parts, " and ".join(regimes))


def errors(
    episodes: ReachabilityEpisodes, dtype: str = "float64", **arguments: Any
) -> dict[str, float]:
    """Largest error of every variable, over its locations, and of the prediction and the carried state."""
    size = (episodes.n_nodes, episodes.n_edges)
    circuit = reachability(*size, **arguments)
    worst: dict[str, float] = {}
    for entry in check(circuit, episodes, size, dtype, PLAN):
        worst[entry.variable] = max(entry.error, worst.get(entry.variable, 0.0))
    return worst


def exact(found: dict[str, float]) -> bool:
    """No error at all, but for what a silent softmax head writes: e^-60 in the prediction, e^-400 in the update."""
    return all(error == 0.0 for key, error in found.items() if key not in ("prediction", "residue"))


@pytest.mark.parametrize("expand", ["sum", "mean"])
@pytest.mark.parametrize("dtype", ["float64", "float32"])
def test_every_variable_is_exact_in_both_dtypes(expand: str, dtype: str) -> None:
    errors_by_variable = errors(battery(*SMALL, 24, 7), dtype, expand=expand)
    assert errors_by_variable["prediction"] < 1e-25, (
        "what head 2.2 leaves on other nodes is e^-60 of a candidate's weight"
    )
    assert exact(errors_by_variable)
    assert {
        "source",
        "target",
        "root",
        "reached",
        "frontier",
        "member",
        "active",
        "next_reached",
    } < set(errors_by_variable)


@pytest.mark.parametrize(
    "form", [{}, {"expand": "mean"}, {"eta": 30.0}], ids=["sum", "mean", "softmax"]
)
def test_without_marks_edges_are_bound_at_their_targets(form: dict[str, Any]) -> None:
    errors_by_variable = errors(battery(*SMALL, 24, 7), marks=False, **form)
    assert errors_by_variable["next_reached"] == errors_by_variable["carried_state"] == 0.0
    assert errors_by_variable["prediction"] < 1e-9
    assert "eta" in form or exact(errors_by_variable)
    marked, plain = reachability(*SMALL), reachability(*SMALL, marks=False)
    assert plain.layout.labels == tuple(
        label for label in marked.layout.labels if not label.startswith("e_")
    )


@pytest.mark.parametrize(("dtype", "tolerance"), [("float64", 1e-11), ("float32", 1e-4)])
def test_sinusoidal_positions_round_and_make_no_wrong_set(dtype: str, tolerance: float) -> None:
    errors_by_variable = errors(battery(*SMALL, 24, 7), dtype, positions="sinusoidal")
    assert errors_by_variable["next_reached"] == errors_by_variable["carried_state"] == 0.0
    assert 0 < max(errors_by_variable.values()) < tolerance


def test_sinusoidal_positions_make_heads_narrow() -> None:
    narrow, wide = (
        compile_circuit(reachability(28, 54, positions=positions)).config
        for positions in ("sinusoidal", "one-hot")
    )
    assert narrow.d_head == 33
    assert wide.d_head == wide.layout.n_positions == 169
    refuses("give marks=True", reachability, *SMALL, marks=False, positions="sinusoidal")
    refuses(r"cannot tell|do not tell", reachability, 28, 54, positions="sinusoidal", n_lines=2)


@pytest.mark.slow(reason="6,000 graphs of three sizes, several minutes")
@pytest.mark.parametrize(("size", "n_rounds"), [((5, 4), 6), ((14, 20), 15), ((30, 60), 30)])
@pytest.mark.parametrize("expand", ["sum", "mean"])
def test_two_thousand_graphs_a_size(size: tuple[int, int], n_rounds: int, expand: str) -> None:
    for seed in range(20):
        errors_by_variable = errors(battery(*size, 102, n_rounds, seed), expand=expand)
        assert errors_by_variable["prediction"] < 1e-24
        assert exact(errors_by_variable)


@pytest.mark.parametrize(("eta", "prediction"), [(15.0, 1e-4), (30.0, 1e-9)])
def test_softmax_heads_make_no_wrong_set(eta: float, prediction: float) -> None:
    errors_by_variable = errors(battery(*SMALL, 24, 7), eta=eta)
    assert errors_by_variable["next_reached"] == errors_by_variable["carried_state"] == 0.0, (
        "clipping restores exact bits"
    )
    assert 0 < errors_by_variable["prediction"] < prediction


def test_a_soft_eta_loses_nodes() -> None:
    assert errors(battery(*SMALL, 24, 7), eta=8.0)["next_reached"] > 0.5


@pytest.mark.parametrize(("dtype", "tolerance"), [("float64", 1e-12), ("float32", 1e-4)])
def test_a_rotated_basis_rounds(dtype: str, tolerance: float) -> None:
    assert max(errors(battery(*SMALL, 24, 7), dtype, rotation=1).values()) < tolerance


def test_sizes_of_the_machine() -> None:
    circuit = reachability(9, 11)
    config = compile_circuit(circuit).config
    assert (circuit.n_layers, len(circuit.heads), len(circuit.neurons)) == (2, 6, 4 * 9 + 1)
    assert config.layout.n_positions == 3 * 11 + 7


def test_an_added_node_is_expanded_in_the_next_round() -> None:
    """Writing the negative's parent into the latent makes the machine find the negative a round later."""
    chain = np.array([[[0, 1], [2, 3], [3, 4]]])
    episodes = ReachabilityEpisodes(chain, np.array([0]), np.array([[1, 4]]), 5, 4)
    model = circuits.load("reachability-handwired", n_nodes=5, n_edges=3)

    def add(latents: torch.Tensor, hook: Any) -> torch.Tensor:
        return latents + model.state_map[3]

    run = interp.rollout(model, episodes, fwd_hooks={1: [("hook_latents", add)]})
    assert np.allclose(run.predictions[0, 1], [0, 1, 0, 0, 0], atol=1e-12)
    assert np.allclose(run.predictions[0, 2], [0, 0.5, 0, 0, 0.5], atol=1e-12)
    assert model.read_state(run.latents)[0, 2].tolist() == [1, 1, 0, 1, 1]


def test_without_the_clip_errors_of_one_round_reach_the_next() -> None:
    """The neurons are needed: a set written by the linear head alone counts paths, not nodes."""
    import dataclasses

    circuit = reachability(*SMALL)
    linear = dataclasses.replace(
        circuit, neurons=tuple(n for n in circuit.neurons if n.name != "2 at most once")
    )
    episodes = battery(*SMALL, 24, 7)
    state = compile_circuit(linear).read_state(
        interp.rollout(compile_circuit(linear), episodes).latents
    )
    assert state.max() > 1.5
    truth = algorithms.breadth_first().run(episodes)["reached"]
    assert np.array_equal(
        circuits.load("reachability-handwired", n_nodes=6, n_edges=9)
        .read_state(interp.rollout(compile_circuit(circuit), episodes).latents)[:, :-1]
        .numpy(),
        truth,
    )


@pytest.mark.parametrize("make", [reachability, partial(interp.load, "reachability-handwired")])
def test_the_circuit_and_the_model_by_name_take_the_same_sizes(make: Any) -> None:
    for sizes, message in (
        ((3, 4), "n_nodes must be an integer >= 4, got 3"),
        ((4, 2), "n_edges must be .* >= 3"),
    ):
        refuses(message, make, n_nodes=sizes[0], n_edges=sizes[1])
    make(n_nodes=4, n_edges=3)
    assert "at least 4" in str(reachability.__doc__)
    assert "at least 3" in str(reachability.__doc__)
