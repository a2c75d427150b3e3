"""Where a handwired circuit stores a variable, a probe finds it exactly; where it cannot be, the probe is at chance.

The places are the circuits' own ground truth (``Circuit.sites``): every variable at every location.
"""

from functools import cache

import numpy as np
import pytest
from numpy.testing import assert_allclose

import circuits
import interp
import probes
from interp.tasks import experts, mdp
from tests.refusals import refuses

CASES = {
    "wma R": ("wma-handwired", {"n_experts": 3, "variant": "R"}),
    "wma P": ("wma-handwired", {"n_experts": 3, "variant": "P"}),
    **{
        f"q {variant}": ("qlearning-handwired", {"n_states": 3, "n_actions": 2, "variant": variant})
        for variant in ("mlp", "lin")
    },
}


@cache
def ran(case):
    """The circuit, episodes, and a rollout that caches every hook its variables live at, and all residual streams."""
    name, arguments = CASES[case]
    circuit, model = circuits.build(name, **arguments), interp.load(name, **arguments)
    if case.startswith("wma"):
        episodes = experts.sample(
            n_episodes=24, n_rounds=10, seed=3, n_experts=arguments["n_experts"]
        )
    else:
        episodes = mdp.sample(n_episodes=24, n_rounds=10, seed=3, n_states=3, n_actions=2)
    hooks = {location.hook for locations in circuit.sites.values() for location in locations}
    hooks |= {f"blocks.{layer}.hook_resid_pre" for layer in range(circuit.n_layers)}
    return circuit, episodes, interp.rollout(model, episodes, names_filter=sorted(hooks))


def activation(case, hook, label, head=None):
    """What a probe may read at a site: the vector at a position, or the query's row of a head's scores."""
    circuit, _, run = ran(case)
    cached = run.cache[hook]
    if hook == "hook_update":
        return cached
    position = circuit.layout.position(label)
    return cached[:, :, circuit.head_index(head), position] if head else cached[:, :, position]


def true_values(case, key):
    circuit, episodes, _ = ran(case)
    return circuit.truth(circuit.algorithm.run(episodes), key)


LOCATIONS = [
    (case, key, location.name)
    for case, (name, arguments) in CASES.items()
    for key, locations in circuits.build(name, **arguments).sites.items()
    for location in locations
]


@pytest.mark.parametrize(("case", "key", "name"), LOCATIONS)
def test_a_variable_is_decoded_exactly_at_each_of_its_locations(case, key, name):
    """R2 = 1 (>= 1 - 1e-9) at every location of the circuit's own table."""
    circuit, *_ = ran(case)
    location = circuit.location(key, name)
    values = true_values(case, key)
    for label in dict.fromkeys(location.labels):
        elements = [k for k, own_label in enumerate(location.labels) if own_label == label]
        x = activation(case, location.hook, label, location.head)
        if np.ptp(values[..., elements]) == 0:
            # A binding is the same in every round: nothing varies, and the probe says so.
            refuses("is constant", probes.fit, x, values[..., elements])
        else:
            assert probes.fit(x, values[..., elements]).r2 >= 1 - 1e-9, (label, elements)


# A position that sees only itself holds nothing.
ABSENT = [
    (case, key, circuit.layout.labels[0], f"blocks.{circuit.n_layers - 1}.hook_resid_pre")
    for case, (name, arguments) in CASES.items()
    for circuit in [circuits.build(name, **arguments)]
    for key in circuit.sites
    if key != "binding"
]
ABSENT += [
    # Before the head that fetches or computes it has run.
    *((case, "log_weights", "w?", "blocks.1.hook_resid_pre") for case in ("wma R", "wma P")),
    *((case, "prediction", "p?", "blocks.2.hook_resid_pre") for case in ("wma R", "wma P")),
    ("wma R", "log_weights", "p?", "blocks.1.hook_resid_pre"),
    ("wma R", "label", "w?", "blocks.1.hook_resid_pre"),
    ("wma R", "next_log_weights", "w?", "blocks.1.hook_resid_pre"),
    *(
        (f"q {variant}", name, "Update", "blocks.1.hook_resid_pre")
        for variant in ("mlp", "lin")
        for name in ("column", "action", "td_error", "next_column", "reward")
    ),
    ("q mlp", "maximum", "Select", "blocks.2.hook_resid_pre"),
    *(
        (f"q {variant}", "policy", "Select", "blocks.1.hook_resid_pre")
        for variant in ("mlp", "lin")
    ),
    ("q mlp", "table", "Select", "blocks.2.hook_resid_pre"),
    # Later than the position can see (causal), or never written there.
    ("wma R", "label", "p?", "blocks.1.hook_resid_pre"),
    ("wma R", "votes", "<z>", "blocks.2.hook_resid_post"),
    ("wma R", "log_weights", "y", "blocks.2.hook_resid_pre"),
    ("q mlp", "next_state", "Qcurr", "blocks.3.hook_resid_post"),
    ("q mlp", "reward", "a", "blocks.0.hook_resid_pre"),
]


@pytest.mark.parametrize(("case", "name", "label", "hook"), ABSENT)
def test_a_variable_is_at_chance_where_it_cannot_be(case, name, label, hook):
    values = true_values(case, name)
    result = probes.fit(activation(case, hook, label), values)
    assert result.r2 < 0.02, result.r2
    assert result.verdict != "yes"


def test_the_model_sets_the_parameters_of_its_targets():
    """The circuit's log gamma makes weighted majority's own prediction: nothing is fitted to another rate."""
    episodes = experts.sample(n_episodes=40, n_rounds=20, seed=3, n_experts=3)
    model = interp.load("wma-handwired", n_experts=3, log_gamma=0.3)
    (result,) = probes.probe(
        model, episodes, ["prediction"], sites="resid_post[2]@p?", n_untrained=0
    )
    assert result.r2 >= 1 - 1e-9
    with_other = probes.fit(
        interp.rollout(model, episodes, names_filter="blocks.2.hook_resid_post"),
        probes.targets.prediction(episodes, gain=2.0),
        sites="resid_post[2]@p?",
        n_untrained=0,
    )
    assert with_other.r2 < 1 - 1e-4
    (memory,) = probes.probe(model, episodes, ["log_weights"], n_untrained=0)
    decoded = memory.decode(interp.rollout(model, episodes), episodes)
    assert_allclose(decoded.values, decoded.true, atol=1e-6)
