"""Numbers of the learned models: what their latents hold, beyond every control.

The same from the shell: ``interp probe wma-learned --targets log_weights_centred`` and
``interp probe qlearning-learned --site written --targets column column_visited`` (tables to output/probes).
"""

import numpy as np
import pytest

import interp
import probes
from interp.tasks import experts, mdp
from probes.fitting import fit_targets

pytestmark = pytest.mark.slow  # 256 episodes of 100 rounds of the learned models: minutes on a laptop.


def test_wma_learned_holds_centred_log_weights():
    """R2 >= .97 over all rounds and at T = 100 alone; shuffled targets, the round and its inputs give nothing."""
    model = interp.load("wma-learned")
    episodes = experts.sample(n_episodes=256, n_rounds=100, n_experts=4, seed=11)
    target = probes.targets.log_weights_centred(episodes)
    run, blank = (interp.rollout(m, episodes).latents[:, 1:] for m in (model, probes.untrained(model)))
    (overall,) = fit_targets(run, [target], copies=[(blank, None)])
    (last,) = fit_targets(run[:, 99:], [target.rounds(99, 100)], copies=[(blank[:, 99:], None)])
    for result in (overall, last):
        print(result)  # noqa: T201
        assert result.r2 >= 0.97 and result.number.low >= 0.96
        assert all(result.controls[name].score.estimate < 0.2 for name in ("shuffled", "round", "inputs"))


def test_qlearning_learned_holds_columns_and_td_components():
    """Q-columns from the written latent R2 >= .85, the reward from its change >= .7; every TD component printed."""
    model = interp.load("qlearning-learned")
    episodes = mdp.sample(n_episodes=256, n_rounds=50, n_states=4, n_actions=3, seed=11)
    columns = probes.probe(model, episodes, ["column", "column_visited"], site="written")
    components = probes.probe(
        model, episodes, ["reward", "current_value", "bootstrapped_value", "td_error", "change"], site="change"
    )
    for result in (*columns, *components):
        print(result)  # noqa: T201
        assert np.isfinite([result.number.low, result.number.high]).all()
    assert columns[0].r2 >= 0.85
    assert components[0].r2 >= 0.7
