"""A session computes once what is asked for twice, and never gives what an edited model would not give."""

import numpy as np
import torch

import interp
from interp.support.session import cached_in_session, compute_once, session
from interp.tasks import experts
from interp.tasks.experts.algorithms import weighted_majority


def test_only_an_open_session_remembers_and_one_inside_another_is_the_same():
    calls = []

    def make() -> int:
        calls.append(len(calls))
        return calls[-1]

    assert [compute_once("a", make=make), compute_once("a", make=make)] == [0, 1]
    with session():
        assert compute_once("a", make=make) == 2
        with session():
            assert compute_once("a", make=make) == 2
        assert compute_once("a", make=make) == 2
        assert compute_once("b", make=make) == 3
    assert compute_once("a", make=make) == 4


def test_results_are_told_apart_by_object_and_not_by_an_address_that_is_used_again():
    with session():
        assert [compute_once("kind", [i], make=lambda i=i: i) for i in range(100)] == list(
            range(100)
        )


def test_arguments_of_other_types_are_other_arguments():
    """1, True and 1.0 are equal in Python; what is computed from them may differ."""

    class Owner: ...

    describe = cached_in_session(lambda owner, *args, **options: repr((args, options)))
    owner = Owner()
    positional = [describe(owner, value) for value in (1, True, 1.0)]
    assert positional == ["((1,), {})", "((True,), {})", "((1.0,), {})"]
    by_name = [describe(owner, a=value) for value in (1, True, 1.0)]
    assert by_name == ["((), {'a': 1})", "((), {'a': True})", "((), {'a': 1.0})"]


def test_a_session_shares_runs_values_and_digests_and_what_it_gives_is_what_is_computed_without_one():
    model, algorithm = interp.load("wma-learned-additive"), weighted_majority(0.5)
    episodes = experts.sample(3, 6, 4, seed=0)
    alone, values = interp.rollout(model, episodes), algorithm.run(episodes)
    with session():
        run = interp.rollout(model, episodes)
        assert interp.rollout(model, episodes) is run
        assert algorithm.run(episodes) is algorithm.run(episodes)
        assert interp.rollout(model, episodes, n_rounds=4).n_rounds == 4
        assert torch.equal(run.predictions, alone.predictions)
        assert torch.equal(run.latents, alone.latents)
        assert all(
            np.array_equal(values[key], value) for key, value in algorithm.run(episodes).items()
        )
        assert (
            interp.rollout(model, experts.sample(3, 6, 4, seed=0)) is not run
        )  # other episodes, if equal ones


def test_hooks_and_edited_weights_are_not_taken_for_what_was_run_before():
    model, episodes = interp.load("wma-learned-additive"), experts.sample(3, 6, 4, seed=0)
    with session():
        run, digest = interp.rollout(model, episodes), model.digest()
        hooked = interp.rollout(
            model, episodes, fwd_hooks=[("blocks.0.hook_resid_pre", lambda x, hook: x * 0)]
        )
        with model.hooks(fwd_hooks=[("blocks.0.hook_resid_pre", lambda x, hook: x * 0)]):
            by_hand = interp.rollout(model, episodes)
        assert torch.equal(hooked.predictions, by_hand.predictions)
        assert not torch.equal(hooked.predictions, run.predictions)
        with torch.no_grad():
            model.blocks[0].attn.W_O.mul_(2)
        assert model.digest() != digest
        assert not torch.equal(interp.rollout(model, episodes).predictions, run.predictions)
