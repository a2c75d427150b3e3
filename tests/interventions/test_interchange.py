"""Interchange interventions: exact at the circuit's own places, chance elsewhere, and sums on a napkin."""

from __future__ import annotations

import numpy as np
import pytest

import circuits
from interp.errors import InputError
from interp.interventions.alignment import align
from interp.interventions.causal import q_learning, weighted_majority
from interp.interventions.interchange import Place, interchange
from interp.interventions.sites import Site
from interp.tasks import experts, mdp
from interp.tasks.mdp import MDPEpisodes

WMA = [
    ("log_weights", 0, "prediction"),
    ("log_weights", 0, "state"),
    ("log_weights", 1, "prediction"),
    ("log_weights", 2, "state"),
    ("votes", 0, "prediction"),
    ("votes", 1, "state"),
    ("votes", 2, "prediction"),
    ("label", 0, "state"),
    ("match", 0, "state"),
    ("prediction", 0, "prediction"),
    ("next_log_weights", 0, "state"),
]


@pytest.fixture(scope="module")
def pair():
    return [experts.sample(24, 12, 3, seed=seed) for seed in (0, 1)]


@pytest.mark.parametrize(("variable", "where", "outcome"), WMA)
def test_wma_every_variable_is_where_the_circuit_says(wma, places_of, pair, variable, where, outcome):
    """Accuracy 1.00 at the right site, equal to the algorithm's counterfactual to rounding; doing nothing scores 0."""
    circuit, model = wma
    places = places_of(circuit, circuit.variable(variable).sites[where])
    result = interchange(model, *pair, weighted_majority(0.5), variable, places, outcome=outcome)
    assert result.informative.sum() >= 20
    assert result.iia == 1.0 and result.iia_informative == 1.0
    assert result.max_error < 1e-14
    assert not (result.unpatched & result.informative).any()


Q = [
    # variable of the algorithm, variable and site(s) of the circuit, outcome
    ("table", "q_columns", (0,), "prediction"),
    ("table", "q_columns", (0,), "state"),
    ("table", "q_columns", (1,), "prediction"),
    ("column", "visited_column", (0,), "state"),
    ("state", "state", (0, 1), "state"),
    ("next_state", "next_state", (1, 2), "prediction"),
    ("next_state", "next_state", (1, 2), "state"),
    ("q_current", "current_value", (0,), "state"),
    ("q_next", "next_values", (0,), "prediction"),
    ("q_next", "next_values", (0,), "state"),
    ("best", "maximum", (0,), "state"),
    ("choice", "policy", (0,), "prediction"),
    ("reward", "reward", (0,), "state"),
    ("next_column", "next_column", (0,), "state"),
]


@pytest.fixture(scope="module")
def qlearning():
    circuit = circuits.build("qlearning-handwired", n_states=3, n_actions=2)
    return circuit, circuits.compile(circuit).double().eval()


@pytest.fixture(scope="module")
def q_pair():
    return [mdp.sample(16, 16, 3, 2, seed=seed) for seed in (0, 1)]


@pytest.mark.parametrize(("variable", "truth", "where", "outcome"), Q)
def test_q_learning_every_variable_is_where_the_circuit_says(
    qlearning, places_of, q_pair, variable, truth, where, outcome
):
    """As for Weighted Majority; the table's columns at a-tokens of the suffix drive the choice only in part."""
    circuit, model = qlearning
    sites = circuit.variable(truth).sites
    places = [place for i in where for place in places_of(circuit, sites[i])]
    result = interchange(model, *q_pair, q_learning(), variable, places, outcome=outcome, rounds=slice(5, 16))
    assert result.informative.sum() >= 20
    assert result.iia == 1.0 and result.max_error < 1e-12
    assert not (result.unpatched & result.informative).any()


def test_q_learning_td_error(qlearning, q_pair):
    """The TD error alone, between episodes of the same transitions and other rewards; and the whole change."""
    circuit, model = qlearning
    base = q_pair[0]
    other = MDPEpisodes.from_transitions(
        base.mdps, base.states, base.actions, (base.rewards + 0.5) % 1, base.next_states, alpha=0.1, gamma=0.9
    )
    block = np.stack([circuit.basis["buf1"][f"s_{i}"].vector() for i in range(1, 4)])
    place = Place.of("attn_out[3]@Update", block)
    for source, variable in ((other, "td_error"), (q_pair[1], "change")):
        result = interchange(model, base, source, q_learning(), variable, place, outcome="state")
        assert result.iia == 1.0 and result.max_error < 1e-12 and result.informative.sum() > 100


@pytest.mark.parametrize("where", ["embed@<BOS>", "resid_post[0]@s", "resid_post[1]@r", "z[3.0]@Select"])
def test_q_learning_places_without_the_values_are_at_chance(qlearning, q_pair, where):
    _, model = qlearning
    result = interchange(model, *q_pair, q_learning(), "q_next", where, rounds=slice(5, 16))
    assert result.iia_informative == 0.0 and result.iia == result.chance


@pytest.mark.parametrize("expert", range(3))
def test_wma_one_experts_log_weight(wma, pair, expert):
    """lambda_i alone, along its own direction, in prediction and state."""
    circuit, model = wma
    place = Place.of("embed@<z>", circuit.basis["id"][f"e_{expert + 1}"].vector()[None])
    for outcome in ("prediction", "state"):
        result = interchange(
            model, *pair, weighted_majority(0.5), "log_weights", place, element=expert, outcome=outcome
        )
        assert result.iia == 1.0 and result.max_error < 1e-14


@pytest.mark.parametrize("where", ["embed@<w>", "resid_post[0]@e_1", "resid_post[1]@y", "z[0.0]@p?", "resid_pre[1]@w?"])
def test_wma_places_without_the_variable_are_at_chance(wma, pair, where):
    """No informative pair comes out right at a place that does not hold the log-weights."""
    _, model = wma
    result = interchange(model, *pair, weighted_majority(0.5), "log_weights", where)
    assert result.iia_informative == 0.0 and result.iia == result.chance


def test_wma_driving_only_one_outcome(wma, places_of, pair):
    """The copy of z at p? drives the prediction only, the one at w? the update only, as the table says."""
    circuit, model = wma
    at_prediction, at_update = (places_of(circuit, site) for site in circuit.variable("log_weights").sites[1:])
    for places, still in ((at_prediction, "state"), (at_update, "prediction")):
        result = interchange(model, *pair, weighted_majority(0.5), "log_weights", places, outcome=still)
        assert result.iia_informative == 0.0


def test_a_random_subspace_of_equal_rank_is_at_chance(wma, pair):
    _, model = wma
    directions = np.random.default_rng(0).standard_normal((3, model.config.d_model))
    result = interchange(model, *pair, weighted_majority(0.5), "log_weights", Place.of("embed@<z>", directions))
    assert result.iia_informative < 0.7


def test_the_causal_models_are_the_algorithms():
    """Their predictions and next states are those of the reference runs."""
    episodes = experts.sample(5, 9, 4, seed=3)
    causal = weighted_majority(0.3)
    values = causal.run(causal.inputs(episodes))
    np.testing.assert_allclose(values["next_log_weights"][:, :-1], values["log_weights"][:, 1:], atol=1e-12)
    tables = mdp.sample(5, 9, 4, 3, seed=3)
    learner = q_learning(tables.alpha, tables.gamma)
    values = learner.run(learner.inputs(tables))
    chosen = np.take_along_axis(tables.q_tables[:, 1:], tables.actions[..., None, None], -1)[..., 0]
    np.testing.assert_allclose(values["next_column"], chosen, atol=1e-12)
    np.testing.assert_array_equal(values["choice"], tables.greedy_before)


def test_frame_and_interval(wma, pair):
    _, model = wma
    frame = interchange(model, *pair, weighted_majority(0.5), "votes", "embed@p_1", element=0).to_frame()
    assert frame.loc[0, "iia_informative"] == 1.0 and frame.loc[0, "low"] == 1.0
    assert frame.loc[0, "variable"] == "votes[0]" and frame.loc[0, "places"] == "embed@p_1"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"variable": "weights"}, "unknown variable 'weights'; did you mean 'log_weights'"),
        ({"places": "embed@z"}, "unknown position label 'z'"),
        ({"outcome": "choice"}, "unknown outcome 'choice'"),
        ({"causal": q_learning()}, "is a model of qlearning, not of experts rounds"),
    ],
)
def test_bad_input(wma, pair, options, message):
    _, model = wma
    given = {"causal": weighted_majority(0.5), "variable": "log_weights", "places": "embed@<z>", **options}
    with pytest.raises(InputError, match=message):
        interchange(model, *pair, **given)


def test_align_finds_the_log_weights_and_beats_its_controls(wma):
    """DAS on the handwired model: near-perfect held out, far above placebo, arbitrary labels and untrained model."""
    _, model = wma
    pair = [experts.sample(40, 12, 3, seed=seed) for seed in (0, 1)]
    result = align(
        model,
        *pair,
        weighted_majority(0.5),
        "log_weights",
        "embed@<z>",
        rank=3,
        rounds=slice(3, 12),
        epochs=15,
        lr=5e-2,
    )
    assert list(result.hits) == ["learned", "arbitrary labels", "untrained model", "norm-matched random", "nothing"]
    frame = result.to_frame().set_index("condition")
    assert frame.loc["learned", "iia"] > 0.95
    assert frame.drop("learned").iia.max() < frame.loc["learned", "low"]


def test_place_texts():
    assert Site.at_hook("blocks.2.attn.hook_attn_scores", 1, "w?") == Site.parse("scores[2.1]@w?")
