"""A pair is run up to the round that is read, and that changes no number; every metric reads it."""

from dataclasses import replace

import pytest
import torch

import interp
from interp.interventions import pairs, patching
from interp.interventions.pairs import corruption, prepare
from interp.tasks.qlearning.analysis import exchange_history as exchange_transitions
from tests.refusals import refuses


@pytest.mark.long
def test_two_batches_that_are_no_pair_are_patched_with_a_warning(recwarn):
    """Drawn with two seeds, or one of them in another order; what a task's corruptions build gives none."""
    for name, sizes, n_rounds in (
        ("wma-handwired", {"n_experts": 3}, 10),
        ("qlearning-handwired", {"n_states": 3, "n_actions": 2}, 10),
        ("reachability-handwired", {"n_nodes": 8, "n_edges": 10}, 5),
    ):
        model = interp.load(name, **sizes)
        task = interp.tasks.of(model)
        first, second = (task.sample_for(model, 8, n_rounds, seed) for seed in (0, 1))
        for kind in task.analysis.corruptions():
            patching.sweep(model, *kind.build(first, 3), 3, sites=["latent"])
        assert not recwarn
        for unrelated in (second, first.select([*range(1, 8), 0])):
            with pytest.warns(
                UserWarning, match="clean and corrupted are no pair: rows that pair up differ in"
            ):
                patching.sweep(model, first, unrelated, 3, sites=["latent"])
        with pytest.warns(UserWarning, match="clean and corrupted are no pair"):
            patching.round_map(model, first, second, "latent", round=[2, 3])


@pytest.mark.parametrize("commit", ["own", "target"])
def test_the_first_rounds_do_not_depend_on_how_many_are_run(untrained_q, mdp_episodes, commit):
    """A rollout of the first rounds is, bit for bit, the beginning of a rollout of all of them."""
    whole = interp.rollout(untrained_q, mdp_episodes, commit=commit)
    first = interp.rollout(untrained_q, mdp_episodes, n_rounds=4, commit=commit)
    assert first.n_rounds == 4
    assert torch.equal(first.latents, whole.latents[:, :5])
    assert torch.equal(first.predictions, whole.predictions[:, :4])
    assert torch.equal(first.tokens, whole.tokens[:, :4])


@pytest.mark.parametrize("n_rounds", [0, 9])
def test_a_rollout_refuses_rounds_that_the_episodes_lack(untrained, expert_episodes, n_rounds):
    refuses(
        rf"the episodes have 8 rounds; n_rounds is 1 to that, got {n_rounds}",
        interp.rollout,
        untrained,
        expert_episodes,
        n_rounds=n_rounds,
    )


def test_a_pair_stops_at_the_round_that_is_read(untrained_q, mdp_episodes):
    """And is, bit for bit, the pair of whole rollouts; negative rounds count from the end of the episodes."""
    sides = exchange_transitions(mdp_episodes, 3)
    pair = prepare(untrained_q, *sides, -5, 4)
    assert (pair.round, pair.read_round, pair.clean.n_rounds, pair.corrupted.n_rounds) == (
        3,
        4,
        5,
        5,
    )
    clean, corrupted = (interp.rollout(untrained_q, side) for side in sides)
    whole = replace(pair, clean=clean, corrupted=corrupted)
    for name in ("clean_readout", "corrupted_readout"):
        assert torch.equal(getattr(pair, name).predictions, getattr(whole, name).predictions)
        assert torch.equal(getattr(pair, name).latents, getattr(whole, name).latents)


def test_registered_metrics_run_on_both_tasks(
    untrained, untrained_q, expert_episodes, mdp_episodes
):
    for model, episodes in ((untrained, expert_episodes), (untrained_q, mdp_episodes)):
        pair = corruption(model).build(episodes, 3)
        for key, record in pairs.METRICS.items():
            if "classes" not in record.kinds:
                refuses(
                    rf"metric '{key}' cannot read predictions of .*; take logit_diff, ",
                    patching.sweep,
                    model,
                    *pair,
                    3,
                    sites=["latent"],
                    read_round=4,
                    metric=key,
                )
                continue
            result = patching.sweep(model, *pair, 3, sites=["latent"], read_round=4, metric=key)
            assert result.values.shape == (1, 6)
            assert result.values.isfinite().all()
