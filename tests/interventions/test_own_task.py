"""A task that the package does not know is patched, interchanged and steered by what its record says."""

import numpy as np
import own_task
import pytest
import torch

from interp import catalog, tasks
from interp.decoder import Decoder
from interp.errors import InputError
from interp.interventions import causal_tables
from interp.interventions.experiment import Outcome
from interp.interventions.interchange import Claim, interchange
from interp.interventions.pairs import prepare
from interp.interventions.steering import Doses, fitted_direction, steer
from interp.model.rollout import rollout
from tests.machines import transformer


@pytest.fixture
def pulls(monkeypatch):
    """The example's pulls, registered for one test."""
    monkeypatch.setitem(catalog._REGISTERED, "pulls", own_task.PULLS)
    return own_task


@pytest.fixture
def model(pulls):
    return transformer(pulls.PullRound(), d_mlp=0, init_std=0.5).double()


def test_it_is_patched_by_its_own_corruption(model):
    result = causal_tables.patch(
        model, 3, components=("resid_pre",), sample=causal_tables.Sample(n_episodes=6, n_map=2)
    )
    assert result.corruption == "exchange-history" and result.rounds is not None
    latent = [site.position for site in result.sweeps[0].sites].index("<z>")
    assert result.sweeps[0].fractions()[latent] == pytest.approx(1)
    assert "pulls: exchange-history" in causal_tables.corruption_names()


def test_its_loss_is_the_metric(pulls, model):
    pair = prepare(model, *pulls.exchange_history(pulls.sample(4, 6, seed=0), 3), 3, 4)
    rewards = torch.from_numpy(pair.clean_episodes.rewards[:, 3:5, None])
    expected = 1 - pair.clean_readout.predictions.gather(-1, rewards).squeeze(-1)
    torch.testing.assert_close(pair.losses(pair.clean_readout.predictions), expected)


def test_its_variables_are_interchanged_and_steered(pulls, model):
    base, source = (pulls.sample(12, 8, seed=seed) for seed in (0, 1))
    algorithm, run = tasks.of(model).explains(model), rollout(model, base)
    decode = Decoder.fit(run.latents[:, :-1], algorithm.run(base)["chances"], ridge=1e-3)
    written = interchange(model, base, source, algorithm, "wins", "latent", outcome=Outcome("state", decode))
    assert written.correct.shape == (12, 8) and written.informative.any()
    change = np.array([0.1, 0.0])
    direction = fitted_direction(model, base, algorithm, change)
    steered = steer(model, base, algorithm, Doses(change, (0, 1), direction), round=5)
    first = base.arms[:, 5] == 0  # the other arm's chance is not what this round predicts
    np.testing.assert_allclose(steered.algorithm[1] - steered.algorithm[0], np.where(first, 0.1, 0), atol=1e-12)


def test_claims_can_be_given_where_its_record_has_none(pulls, model):
    base, source = (pulls.sample(6, 6, seed=seed) for seed in (0, 1))
    frame = causal_tables.interchange_table(model, base, source, 3, 0, [Claim.at("arm", ["embed@arm"])])
    assert frame.iia.between(0, 1).all()
    with pytest.raises(
        InputError, match=r"task 'pulls' names no claims, which this needs; give its record analysis=Analysis\(claims"
    ):
        causal_tables.interchange_table(model, base, source, 3, 0)
