"""Metrics by hand: on the clean run, the corrupted run, and a run in between."""

import math

import pytest
import torch

from interp.errors import InputError
from interp.interventions import pairs, patching
from interp.interventions.pairs import Pair, Readout, corruption, find_metric, prepare
from interp.tasks.experts.analysis import exchange_history


@pytest.fixture
def pair(untrained, expert_episodes) -> Pair:
    """A real pair whose readouts are replaced by numbers: clean P = .9, .2; corrupted P = .5, .5."""
    real = prepare(untrained, *exchange_history(expert_episodes.select([0, 1]), 3), 3)
    real.__dict__["clean_readout"] = _readout([0.9, 0.2], 1.0)
    real.__dict__["corrupted_readout"] = _readout([0.5, 0.5], 0.0)
    return real


def _readout(predictions, latent):
    values = torch.tensor(predictions, dtype=torch.float64).unsqueeze(1)
    return Readout(values, torch.full((2, 1, 16), latent, dtype=torch.float64))


def test_logit_difference_points_from_corrupted_to_clean(pair):
    """Episode 0 rises in P(y=1), episode 1 in P(y=0); both are oriented so that clean is higher."""
    measured = find_metric("logit_diff").measure(_readout([0.8, 0.3], 0.0), pair)
    assert measured.tolist() == pytest.approx([math.log(0.8 / 0.2), math.log(0.7 / 0.3)])
    assert find_metric("probability").measure(_readout([0.8, 0.3], 0.0), pair).tolist() == pytest.approx([0.8, 0.7])


def test_log_probabilities_are_clipped(pair):
    measured = find_metric("logit_diff").measure(_readout([1.0, 0.0], 0.0), pair)
    assert measured.tolist() == pytest.approx([-math.log(1e-6)] * 2, rel=1e-6)


def test_regret_is_the_expected_loss_by_the_clean_labels(pair):
    labels = pair.clean_episodes.labels[:, 3]
    measured = find_metric("regret").measure(_readout([0.9, 0.9], 0.0), pair)
    assert measured.tolist() == pytest.approx([abs(0.9 - y) for y in labels])


def test_registered_metrics_run_on_both_tasks(untrained, untrained_q, expert_episodes, mdp_episodes):
    for model, episodes in ((untrained, expert_episodes), (untrained_q, mdp_episodes)):
        pair = corruption(model).build(episodes, 3)
        for key, record in pairs.METRICS.items():
            if "classes" not in record.kinds:
                with pytest.raises(
                    InputError, match=rf"metric '{key}' cannot read predictions of .*; take logit_diff, "
                ):
                    patching.sweep(model, *pair, 3, sites=["latent"], read=4, metric=key)
                continue
            result = patching.sweep(model, *pair, 3, sites=["latent"], read=4, metric=key)
            assert result.values.shape == (1, 6) and result.values.isfinite().all()
