"""Where variables live: locations have names, hold what the algorithm computes, and refuse what does not exist."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

import circuits
from circuits.compiler import activation_sites
from interp.tasks import experts, mdp
from interp.tasks.qlearning.episodes import MDPEpisodes
from tests.circuits.faults import edit_head
from tests.refusals import refuses

MACHINES = {
    "wma R": ("wma-handwired", {"n_experts": 3}),
    "wma P": ("wma-handwired", {"n_experts": 3, "variant": "P"}),
    "wma soft": ("wma-handwired", {"n_experts": 3, "eta": 60.0}),
    **{
        f"q {variant}": ("qlearning-handwired", {"n_states": 3, "n_actions": 3, "variant": variant})
        for variant in ("mlp", "softmlp", "lin")
    },
}


def built(case: str) -> tuple[circuits.Circuit, Any]:
    """A circuit, and episodes of its size."""
    name, arguments = MACHINES[case]
    if name == "wma-handwired":
        return circuits.build(name, **arguments), experts.sample(6, 15, 3, seed=1)
    return circuits.build(name, **arguments), mdp.sample(6, 15, 3, 3, seed=1)


@pytest.mark.parametrize("case", MACHINES)
def test_classes_are_one_hot_and_a_score_holds_the_number_itself(case: str) -> None:
    circuit, episodes = built(case)
    values = circuit.algorithm.run(episodes)
    one_hot = {"wma": ("votes", "label"), "q": ("state", "action", "next_state")}[case.split()[0]]
    for key in one_hot:
        truth, state_values = circuit.truth(values, key), values[key]
        classes = truth.reshape(*state_values.shape, -1)
        assert np.array_equal(classes.argmax(-1), state_values)
        assert np.array_equal(classes.sum(-1), np.ones(state_values.shape))
    if case == "wma R":
        assert np.array_equal(circuit.truth(values, "match"), values["match"])


def test_the_truth_of_a_table_is_flattened_as_it_is() -> None:
    circuit, episodes = built("q mlp")
    values = circuit.algorithm.run(episodes)
    assert np.array_equal(circuit.truth(values, "table"), values["table"].reshape(6, 15, 9))
    assert circuit.location("table", "latent").labels[:4] == ("c_1", "c_2", "c_3", "c_1")


def test_the_algorithm_has_the_parameters_of_the_circuit() -> None:
    wma = circuits.build("wma-handwired", log_gamma=0.3)
    assert (wma.algorithm.key, dict(wma.algorithm.parameters)) == (
        "weighted_majority",
        {"gain": 0.3},
    )
    q = circuits.build(
        "qlearning-handwired", alpha=0.2, gamma=0.5, tau=1e-6, beta=3.0, eta=60.0, hardness=10.0
    )
    wanted = {"alpha": 0.2, "gamma": 0.5, "tie_slope": 1e-6, "beta": 3.0, "hardness": 10.0}
    assert (q.algorithm.key, dict(q.algorithm.parameters)) == ("q_learning", wanted)
    assert circuits.build("qlearning-handwired").algorithm.parameters["hardness"] is None


def test_the_algorithm_starts_where_the_latents_do() -> None:
    """Whatever table the episodes began with, the circuit begins with zeros."""
    circuit, episodes = built("q mlp")
    steps = episodes.states, episodes.actions, episodes.rewards, episodes.next_states
    begun = MDPEpisodes.from_transitions(episodes.mdps, *steps, initial=np.ones((6, 3, 3)))
    assert not np.array_equal(begun.q_tables, episodes.q_tables)
    assert np.array_equal(circuit.algorithm.run(begun)["table"], episodes.q_tables[:, :-1])


def test_a_location_is_asked_for_by_name() -> None:
    circuit = circuits.build("wma-handwired", n_experts=2)
    assert [location.name for location in circuit.locations("log_weights")] == [
        "latent",
        "p?",
        "w?",
    ]
    latent = circuit.location("log_weights", "latent")
    assert circuit.locations("log_weights", "w?", "latent") == (
        circuit.location("log_weights", "w?"),
        latent,
    )
    x = torch.randn(
        3,
        circuit.layout.n_positions,
        circuit.basis.d_model,
        generator=torch.Generator().manual_seed(0),
    )
    assert torch.equal(replace(latent, scale=0.5).reader(circuit)(x), 2 * latent.reader(circuit)(x))
    assert circuit.not_carried["embed@p?"] == ("label", "state")
    assert [
        str(place.site)
        for place in activation_sites(circuit, circuit.location("match", "score 3.2"))
    ] == ["scores[2.1]@w?"]
    refuses(
        r"unknown location of 'log_weights' 'latents'; did you mean 'latent'",
        circuit.location,
        "log_weights",
        "latents",
    )
    refuses(
        r"unknown variable with a location in 'wma-handwired' 'weights'",
        circuit.locations,
        "weights",
    )
    refuses(
        r"unknown variable of 'weighted_majority' 'log_weight'",
        circuit.algorithm.variable,
        "log_weight",
    )


def test_an_edit_changes_one_head_and_is_written_down() -> None:
    circuit = circuits.build("wma-handwired", n_experts=2)
    changed = edit_head(circuit, "2.1", rule="softmax").without("3.3")
    assert [head.name for head in circuit.heads if head not in changed.heads] == [
        "2.1 fetch z",
        "3.3 clean up",
    ]
    assert len(changed.heads) == 7
    assert changed.edits == (
        "2.1 fetch z: rule",
        "3.3 clean up: removed",
    )


def test_locations_that_cannot_be_told_apart_are_refused() -> None:
    circuit = circuits.build("wma-handwired", n_experts=2)
    latent = circuit.location("log_weights", "latent")
    refuses("must differ in name", replace, circuit, sites={"log_weights": (latent, latent)})
    refuses(
        "must hold equally many elements",
        replace,
        circuit,
        sites={"votes": (*circuit.locations("votes"), latent)},
    )
    refuses(
        "unknown variable of 'weighted_majority' 'counts'",
        replace,
        circuit,
        sites={"counts": (latent,)},
    )
    refuses("needs one direction or key per label, got 2 for 1", replace, latent, labels=("<z>",))
