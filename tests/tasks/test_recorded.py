"""Recorded data, whose accuracies or MDPs nobody knows, go wherever these are not needed."""

import numpy as np
import pytest

import interp
import probes
from interp.errors import InputError
from interp.evaluation.qlearning import returns
from interp.interventions import interchange, patching
from interp.tasks import experts, mdp
from interp.tasks.experts import ExpertEpisodes
from interp.tasks.qlearning import MDPEpisodes
from tests.refusals import refused

WHOLE = {"experts": experts.sample(10, 5, 3, seed=2), "qlearning": mdp.sample(10, 5, 3, 2, seed=2)}
MODELS = {
    "experts": ("wma-handwired", {"n_experts": 3}),
    "qlearning": ("qlearning-handwired", {"n_states": 3, "n_actions": 2}),
}


def recorded(task):
    whole = WHOLE[task]
    if task == "experts":
        return ExpertEpisodes(whole.advice, whole.labels)
    parts = whole.states, whole.actions, whole.rewards, whole.next_states
    return MDPEpisodes.from_transitions(None, *parts, n_states=3, n_actions=2)


@pytest.mark.parametrize("task", WHOLE)
def test_recorded_data_run_probe_and_patch_as_if_all_were_known(task):
    name, sizes = MODELS[task]
    model, own, whole = interp.load(name, **sizes), recorded(task), WHOLE[task]
    run = interp.rollout(model, own)
    assert (run.predictions == interp.rollout(model, whole).predictions).all()
    algorithm = interp.tasks.get(task).explains(model)
    key = algorithm.state[0]
    assert np.array_equal(algorithm.run(own)[key], algorithm.run(whole)[key])
    found, same = (probes.fit(run, probes.targets.get(key)(one)) for one in (own, whole))
    assert found.r2 == same.r2
    corruption = next(c for c in interp.tasks.get(task).analysis.corruptions() if c.changes_history)
    effects = [patching.sweep(model, *corruption.build(one, 3), 3, sites="resid_pre").effects for one in (own, whole)]
    assert (effects[0] == effects[1]).all()
    assert interchange.interchange(model, own, own.select(slice(None, None, -1)), algorithm, key, "latent").iia == 1.0
    assert len(own.select([0, 2])) == 2


test_what_needs_them_says_so = refused(
    (lambda: recorded("experts").accuracies_by_round, "the accuracies of these experts are not known"),
    (
        lambda: returns.normalised_score([recorded("qlearning")]),
        "the MDPs of these recorded episodes are not known",
    ),
    (lambda: recorded("qlearning").select([0]).known_mdps, "the MDPs of these recorded episodes are not known"),
)


def test_labels_that_are_too_large_for_given_sizes_are_refused():
    with pytest.raises(InputError, match="actions"):
        MDPEpisodes.from_transitions(None, [[0]], [[2]], [[0.5]], [[0]], n_actions=2)
