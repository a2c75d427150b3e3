"""Every analysis takes this task from its record: nothing in the rooms knows it."""

import numpy as np
import pytest
import torch

import interp
import probes
from interp.interventions import causal_tables
from interp.interventions.patching import sweep
from interp.model.transformer import HookedLatentTransformer

SEED, ROUND = 0, 2


@pytest.fixture(scope="module")
def model() -> HookedLatentTransformer:
    return interp.load("reachability-handwired", n_nodes=8, n_edges=12)


def test_losses_are_shares_whatever_is_predicted(model: HookedLatentTransformer) -> None:
    """An untrained copy of a handwired model predicts less than nothing; both none is a half, and no loss of 1e306."""
    task = interp.tasks.of(model)
    episodes = task.sample_for(model, 1, 4, SEED)
    target, negative = int(episodes.targets[0]), int(episodes.negatives[0])
    predictions = torch.zeros(1, 4, model.layout.n_nodes)
    predictions[0, :, target] = torch.tensor([-0.5, -0.5, 0.6, 0.6])
    predictions[0, :, negative] = torch.tensor([-0.7, 0.2, -0.4, 0.2])
    assert task.data.losses(predictions, episodes, slice(None))[0].tolist() == pytest.approx([0.5, 1, 0, 0.25])


def test_probes_decode_the_set(model: HookedLatentTransformer) -> None:
    episodes = interp.tasks.of(model).sample_for(model, 40, 4, SEED)
    (result,) = probes.probe(model, episodes, ("reached",), n_untrained=1, seed=SEED)
    assert result.r2 > 0.95
    assert result.word == "yes"


def test_patching_finds_the_candidates_then_the_question(model: HookedLatentTransformer) -> None:
    task = interp.tasks.of(model)
    clean, corrupted = task.corruption("swap-candidates").build(task.sample_for(model, 16, 4, SEED), ROUND)
    result = sweep(model, clean=clean, corrupted=corrupted, round=ROUND, sites="resid_pre", metric="probability")
    frame = result.to_frame().set_index("site")["effect"]
    carrying = {site for site, effect in frame.items() if effect > 0.2}
    assert carrying <= {f"resid_pre[{layer}]@{c}" for layer in (0, 1) for c in ("c_1", "c_2")}
    assert carrying


def test_interchange_and_steering_agree_with_the_algorithm(model: HookedLatentTransformer) -> None:
    task = interp.tasks.of(model)
    base, source = (task.sample_for(model, 12, 4, seed) for seed in (0, 1))
    table = causal_tables.interchange_table(model, base, source, ROUND, SEED, None)
    held = table[~table["control"] & (table["variable"] == "reached")]
    assert np.allclose(held["iia_informative"], 1)
    assert (table[table["control"]]["iia_informative"] == table[table["control"]]["chance_informative"]).all()
    steered = causal_tables.steering_table(model, base, ROUND, SEED)
    assert np.allclose(steered["model"], steered["algorithm"], atol=1e-9)
