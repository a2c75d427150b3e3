"""An algorithm as a machine keeps the contract, computes the algorithm, and has an untrained copy that does not."""

import numpy as np
import pytest
import torch

import interp
from interp.tasks.experts import algorithms as experts
from interp.tasks.experts.layout import ExpertRound
from interp.tasks.lapses import add_lapse, window
from interp.tasks.qlearning import algorithms as q
from interp.tasks.qlearning import families as q_rivals
from interp.tasks.qlearning.layout import QLearningRound
from interp.tasks.reachability import algorithms as search
from interp.tasks.reachability.layout import ReachabilityRound
from lab.known import by_algorithm
from tests.refusals import refuses

EXPERTS, TABLES, GRAPHS = ExpertRound(4), QLearningRound(4, 3), ReachabilityRound(8, 12)
MADE = {
    "a vector": (experts.weighted_majority(0.5), EXPERTS, 4),
    "a vector and a number": (experts.bayes(), EXPERTS, 5),
    "classes": (add_lapse(window, experts.bayes)(window=3), EXPERTS, 16),
    "nothing": (experts.majority_vote(), EXPERTS, 1),
    "a table and visits": (q.q_learning(), TABLES, 24),
    "several tables": (q_rivals.sarsa(), TABLES, 36),
    "nodes": (search.breadth_first(), ReachabilityRound(8, 12, marks=True), 8),
    "nodes and a number": (search.depth_limited(2), GRAPHS, 9),
}


@pytest.mark.parametrize(("algorithm", "layout", "n_carried"), MADE.values(), ids=MADE)
def test_a_machine_is_its_algorithm(algorithm, layout, n_carried):
    """Of every task, and every kind of state: the contract, the predictions and what is carried."""
    machine = by_algorithm.machine(algorithm, layout)
    interp.check_machine(machine)
    task = interp.tasks.of(machine)
    episodes = task.sample_for(machine, 6, task.cap_rounds(8), seed=3)
    run, values = interp.rollout(machine, episodes, commit="target"), algorithm.run(episodes)
    predictions = machine.layout.distribution(run.predictions).numpy()
    np.testing.assert_allclose(predictions, algorithm.distribution(values), atol=1e-12)
    assert machine.channels[0].shape == (n_carried,)
    if algorithm.state:
        last = np.concatenate(
            [values[f"next_{key}"][:, -1].reshape(len(episodes), -1) for key in algorithm.state], 1
        )
        np.testing.assert_allclose(run.latents[:, -1, 0].numpy(), last, atol=1e-12)


def test_the_untrained_copy_remembers_and_does_not_compute():
    """The control of verdicts: it carries a record of every round, and is another one for every seed."""
    machine = by_algorithm.machine(experts.weighted_majority(0.5), EXPERTS)
    first, second = machine.untrained(0), machine.untrained(1)
    episodes = interp.tasks.of(machine).sample_for(machine, 64, 20, seed=0)
    runs = [interp.rollout(model, episodes) for model in (machine, first, second)]
    gaps = [(run.predictions - runs[0].predictions).abs().mean() for run in runs[1:]]
    assert min(gaps) > 0.05
    assert not torch.equal(runs[1].predictions, runs[2].predictions)
    latents = runs[1].latents[:, :, 0]
    assert latents[:, 20].std(0).min() > latents[:, 1].std(0).max()
    assert latents.abs().max() < 20


def test_machines_of_other_algorithms_have_other_digests():
    machines_made = [
        by_algorithm.machine(experts.weighted_majority(gain), EXPERTS) for gain in (0.5, 0.6)
    ]
    assert machines_made[0].digest() != machines_made[1].digest()
    assert machines_made[0].name == "weighted_majority(gain=0.5)"


def test_an_algorithm_of_another_task_is_refused():
    refuses(
        "'qlearning', and the layout is of 'experts'", by_algorithm.machine, q.q_learning(), EXPERTS
    )
