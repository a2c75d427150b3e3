"""Claims about which places carry which variables: exact where the circuit says, beside controls that move as much."""

import pytest
import torch

import interp
from interp.decoder import RIDGE, Decoder
from interp.interventions import causal_tables
from interp.interventions.interchange import Claim, carriers
from interp.tasks import experts
from interp.tasks.experts.algorithms import weighted_majority


@pytest.fixture(scope="module")
def pair():
    return [experts.sample(16, 12, 3, seed=seed) for seed in (0, 1)]


def test_whole_activations_of_the_handwired_model(wma, pair):
    """Each variable is found where it passes; before it arrives, and at controls, nothing is right that was not."""
    frame = causal_tables.interchange_table(wma[1], *pair, 8, 0).set_index(["variable", "places", "outcome"])
    accuracy = frame.iia_informative
    right = [
        ("log_weights", "latent@<z>", "prediction"),
        ("log_weights", "latent@<z>", "state"),
        ("log_weights", "resid_post[1]@p?", "prediction"),
        ("votes", "embed@p_1 + embed@p_2 + embed@p_3", "prediction"),
        ("prediction", "resid_post[2]@p?", "prediction"),
        ("label", "embed@y", "state"),
        ("next_log_weights", "resid_post[2]@w?", "state"),
    ]
    assert (accuracy[right] == 1).all() and (frame.random[right] < 0.75).all()
    assert accuracy["log_weights", "resid_post[0]@p?", "prediction"] == 0
    assert (accuracy[frame.control] == 0).all() and (frame.chance_informative == 0).all()


def test_a_fitted_decoder_reads_the_state_and_judges_changes(wma, pair):
    """Fitted on other episodes of a handwired model it reads the log-weights; claims are judged as by the readout."""
    _, model = wma
    known, algorithm = experts.sample(64, 12, 3, seed=2), weighted_majority(0.5)
    run = interp.rollout(model, known)
    decode = Decoder.fit(run.latents[:, :-1], algorithm.run(known)["log_weights"], ridge=RIDGE)
    torch.testing.assert_close(decode(run.latents), model.read_state(run.latents), atol=0.02, rtol=0)
    claims = [
        Claim.at("label", ["embed@y"], "state"),
        Claim.at("log_weights", ["latent"], "state"),
        Claim.at("label", ["embed@p?"], "state", control=True),
    ]
    frame = carriers(model, *pair, algorithm, claims, rounds=slice(4, 9), decode=decode)
    assert frame.iia_informative.tolist() == [1, 1, 0] and frame.iia[2] == frame.chance[2]
    assert (frame.random < 0.2).all() and (frame.n_informative > 20).all()
