"""Every causal table of a model, handwired or learned in shape, with its controls in it."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

import circuits
import interp
from interp.errors import InputError
from interp.interventions import tables
from interp.interventions.ablation import CircuitScorer, random_circuits
from interp.interventions.attribution import attribute
from interp.interventions.causal import bayes
from interp.interventions.corruptions import swap_latents
from interp.interventions.pairs import prepare
from interp.interventions.pruning import smallest
from interp.interventions.steering import fitted_direction, steer
from interp.tasks import experts

NAMES = {"patching", "interchange", "alignment", "steering", "edges", "faithfulness", "circuit", "ablation"}


@pytest.mark.parametrize(
    "kind",
    ["learned", pytest.param("handwired", marks=pytest.mark.slow)],  # slow: the same again, on wider heads
)
def test_tables_of_expert_models(kind, untrained, wma, tmp_path):
    """The same tables for both kinds; each analysis carries its control."""
    model = untrained if kind == "learned" else wma[1]
    found = tables.tables(model, 4, smooth=circuits.differentiable(model), n_episodes=4)
    assert set(found) == NAMES
    assert {"untrained model", "arbitrary labels", "norm-matched random", "nothing"} < set(found["alignment"].condition)
    assert {"random", "chance_informative", "low", "high"} < set(found["interchange"].columns)
    assert found["interchange"].control.sum() == 2
    assert {"random", "algorithm", "model"} < set(found["steering"].columns)
    assert {"random_mean", "random_cpr", "cpr", "cmd"} < set(found["faithfulness"].columns)
    assert set(found["ablation"].ablation) == {"resample", "mean", "zero"}
    assert set(found["patching"].corruption) == {"flip-vote", "flip-label", "swap-histories", "swap-latents"}
    assert {path.stem for path in tables.write(found, tmp_path)} == NAMES


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["learned", "handwired"])
def test_tables_of_q_learning_models(kind, untrained_q):
    """Slow because the handwired model has 19 positions, 4 layers of 6 heads and DAS runs nine times."""
    model = untrained_q
    if kind == "handwired":
        model = circuits.compile(circuits.build("qlearning-handwired", n_states=3, n_actions=2)).eval()
    assert set(tables.tables(model, 4, smooth=circuits.differentiable(model), n_episodes=8)) == NAMES


def test_edges_of_handwired_q_learning_are_found_by_gradients():
    """Hard heads have no gradient; in the softmax-only variant EAP-IG finds the wired path of the values, no more."""
    model = interp.load("qlearning-handwired", n_states=3, n_actions=2)
    pair = prepare(circuits.differentiable(model), *swap_latents(tables.sample(model, 12, 13, 0), 12), 12)
    scorer = CircuitScorer(pair)
    kept = smallest(scorer, attribute(pair).edges, tables.TOLERANCE)
    heads = {name: circuits.build("qlearning-handwired").head_index(name) for name in ("1.6", "3.1")}
    fetch, choice = f"0.{heads['1.6']}", f"2.{heads['3.1']}"
    assert {scorer.graph.name(edge) for edge in scorer.graph.edges if kept[edge]} == {
        f"embed -> {fetch}.v",
        f"{fetch} -> mlp 1",
        f"mlp 1 -> {choice}.k",
        f"{choice} -> prediction",
    }
    assert scorer.faithfulness(kept) == pytest.approx(1, abs=1e-6)
    assert max(scorer.faithfulness(other) for other in random_circuits(scorer.graph, 4, 3)) < 0.5


def test_edited_hard_attention_has_no_variant_to_attribute_in(wma):
    circuit, _ = wma
    model = circuits.compile(replace(circuit, edits=("cut 2.1",)))
    with pytest.raises(InputError, match="softmax-only variant cannot be built"):
        circuits.differentiable(model)
    with pytest.raises(InputError, match="has hard attention, which has no gradient; give"):
        tables.circuit_tables(model, tables.sample(model, 4, 6, 0), 4, 0)


def test_hypothesis_is_the_handwired_models_own_algorithm(wma, untrained, untrained_q):
    assert tables.hypothesis(wma[1]).parameters == {"gain": 0.5}
    assert tables.hypothesis(untrained).key == "bayes"
    assert tables.hypothesis(untrained_q).parameters == {"alpha": 0.1, "gamma": 0.9}


def test_the_bayes_causal_model_is_the_bayes_predictor():
    from interp.tasks.experts.predictors import bayes as predictor

    episodes = experts.sample(6, 12, 4, seed=1)
    causal = bayes()
    values = causal.run(causal.inputs(episodes))
    np.testing.assert_allclose(values["prediction"], predictor(episodes, (0.3, 0.9)).predictions, atol=1e-12)
    np.testing.assert_allclose(values["next_log_odds"][:, :-1], values["log_odds"][:, 1:], atol=1e-12)


def test_fitted_direction_is_the_exact_one_in_a_handwired_model(wma):
    """Least squares from states to latents finds the latent change that the circuit defines, and steers exactly."""
    from interp.interventions.causal import weighted_majority
    from interp.interventions.steering import state_direction

    _, model = wma
    episodes, change = experts.sample(12, 10, 3, seed=0), [0.0, 1.0, 0.0]
    run, causal = interp.rollout(model, episodes), weighted_majority(0.5)
    held = causal.inputs(episodes)["log_weights"]
    fitted = fitted_direction(run.latents[:, :-1], held, change)
    torch.testing.assert_close(fitted, state_direction(model, change), rtol=0, atol=1e-9)
    assert steer(model, episodes, 7, change, causal, direction=fitted).max_error < 1e-9


def test_round_0_has_no_history(untrained):
    with pytest.raises(InputError, match="needs a history"):
        tables.tables(untrained, 0)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "site"), [("wma-learned", "embed@<z>"), ("qlearning-learned", "resid_post[3]@Select")]
)
def test_learned_models_use_what_the_algorithm_holds(name, site):
    """Slow: minutes of sweeps and DAS. Learned subspaces beat every control, circuits by EAP-IG beat random ones.

    ``interp patch NAME --tables`` writes the same tables.
    """
    if name not in {record.name for record in interp.models()}:
        pytest.skip(f"{name} is not shipped in this checkout")
    found = tables.tables(interp.load(name), 20, n_episodes=64)
    at = found["alignment"].query("site == @site").set_index("condition")
    assert at.loc["learned", "low"] > at.drop("learned").iia.max()
    curve = found["faithfulness"].iloc[0]
    assert curve.cpr > curve.random_cpr + 0.2 and curve.cmd < curve.random_cmd - 0.2
    steered = found["steering"].query("dose != 0")
    assert (steered.mean_error < steered.random_mean_error).all()
