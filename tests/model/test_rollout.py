"""Rollouts: two passes that agree, a round axis in everything, hooks by round, and no silence."""

import copy

import pytest
import torch
from torch.testing import assert_close

import interp
from interp.model.rollout import require_own
from interp.model.run import select_rounds
from interp.model.transformer import untrained
from interp.tasks import experts, mdp
from interp.tasks.experts.layout import ExpertRound
from interp.tasks.qlearning.layout import QLearningRound
from tests.machines import transformer
from tests.refusals import refuses

PATTERN = "blocks.1.attn.hook_pattern"


def expert_case():
    return transformer(ExpertRound(3), d_mlp=32).double(), experts.sample(
        n_episodes=4, n_rounds=6, n_experts=3, seed=1
    )


def q_case():
    return transformer(QLearningRound(4, 3), d_mlp=32).double(), mdp.sample(
        n_episodes=4, n_rounds=6, n_states=4, n_actions=3, seed=1
    )


@pytest.mark.parametrize("case", [expert_case, q_case])
def test_a_rollout_in_chunks_is_the_whole_one(case, monkeypatch):
    model, episodes = case()
    whole = interp.rollout(model, episodes)
    monkeypatch.setattr("interp.model.rollout._EPISODES_PER_CHUNK", 3)
    parts = interp.rollout(model, episodes)
    fed_parts, fed_whole = parts.fed.tensors(), whole.fed.tensors()
    assert not whole.cache
    for part, tensor in zip(fed_parts.values(), fed_whole.values(), strict=True):
        assert torch.equal(part, tensor)
    assert_close(parts.predictions, whole.predictions, rtol=0, atol=1e-12)
    assert_close(parts.latents, whole.latents, rtol=0, atol=1e-12)


@pytest.mark.parametrize("case", [expert_case, q_case])
@pytest.mark.parametrize("commit", ["own", "target"])
def test_replay_equals_the_sequential_pass(case, commit):
    model, episodes = case()
    run = interp.rollout(model, episodes, commit=commit)
    predictions, carried, _ = interp.replay(model, run)
    assert_close(predictions, run.predictions, rtol=0, atol=1e-12)
    assert_close(carried, run.latents[:, 1:], rtol=0, atol=1e-12)


def test_a_hooked_replay_in_chunks_is_the_whole_one():
    """To rounding: hooks that treat every row alike do not mind how many rows run at a time."""
    model, episodes = expert_case()
    run = interp.rollout(model, episodes)
    halved = [("blocks.0.hook_resid_post", lambda x, hook: x * 0.5)]
    options = {"names_filter": [PATTERN], "fwd_hooks": halved}
    predictions, carried, cache = interp.replay(model, run, **options)
    in_parts = interp.replay(model, run, **options, chunk=7)
    assert_close(predictions, in_parts[0], rtol=0, atol=1e-12)
    assert_close(carried, in_parts[1], rtol=0, atol=1e-12)
    assert_close(cache[PATTERN], in_parts[2][PATTERN], rtol=0, atol=1e-12)
    assert (predictions - run.predictions).abs().max() > 1e-6
    refuses("chunk must be 1 or more, got 0", interp.replay, model, run, chunk=0)


def test_a_replay_by_another_model_is_refused():
    """A copy of the model replays its rollout; an untrained one, or one that was changed, does not."""
    model, episodes = expert_case()
    run = interp.rollout(model, episodes)
    copied = copy.deepcopy(model)
    predictions, _, _ = interp.replay(copied, run)
    assert_close(predictions, run.predictions, rtol=0, atol=1e-12)
    refuses("a rollout of another model", interp.replay, untrained(model), run)
    with torch.no_grad():
        copied.unembed.bias.add_(1)
    refuses("a rollout of another model", interp.replay, copied, run)


def test_own_commit_feeds_the_models_choice_and_target_the_recorded_one():
    model, episodes = q_case()
    place = QLearningRound(4, 3).position("a*")
    first = QLearningRound(4, 3).token_ids["a_1"]
    own_run = interp.rollout(model, episodes)
    target = interp.rollout(model, episodes, commit="target")
    assert torch.equal(own_run.tokens[..., place] - first, own_run.choices)
    recorded = torch.from_numpy(episodes.greedy).long()
    assert torch.equal(target.tokens[..., place] - first, recorded)
    assert (own_run.commit, target.commit) == ("own", "target")


def test_a_hook_at_one_round_propagates_or_is_held():
    model, episodes = expert_case()
    clean = interp.rollout(model, episodes)

    def zero(activation, hook):
        return torch.zeros_like(activation)

    hooks = {2: [("blocks.0.hook_attn_out", zero)]}
    spread = interp.rollout(model, episodes, fwd_hooks=hooks)
    held_run = interp.rollout(model, episodes, fwd_hooks=hooks, propagate=False)
    for run in (spread, held_run):
        assert torch.equal(run.predictions[:, :2], clean.predictions[:, :2])
        assert not torch.allclose(run.predictions[:, 2], clean.predictions[:, 2])
    assert not torch.allclose(spread.predictions[:, 3:], clean.predictions[:, 3:])
    assert torch.equal(held_run.predictions[:, 3:], clean.predictions[:, 3:])
    assert torch.equal(held_run.latents, clean.latents)
    assert spread.settings["hooked_rounds"] == [2]
    assert held_run.settings["propagate"] is False


@pytest.mark.parametrize("propagate", [True, False])
def test_reusing_a_clean_rollout_changes_nothing(propagate):
    model, episodes = q_case()
    clean = interp.rollout(model, episodes)
    hooks = {2: [("blocks.0.hook_mlp_out", lambda activation, hook: activation * 2)]}
    from_scratch = interp.rollout(model, episodes, fwd_hooks=hooks, propagate=propagate)
    reused = interp.rollout(model, episodes, fwd_hooks=hooks, propagate=propagate, clean=clean)
    assert torch.equal(from_scratch.predictions, reused.predictions)
    assert torch.equal(from_scratch.latents, reused.latents)


def _halve(activation, hook):
    return activation * 0.5


def test_a_rollout_made_with_attached_hooks_is_not_clean():
    model, episodes = expert_case()
    hooks = [("blocks.0.hook_attn_out", _halve)]
    with model.hooks(fwd_hooks=hooks):
        run = interp.rollout(model, episodes)
        assert require_own(run, model, episodes) is run
    refuses("made while hooks were attached", require_own, run, model, episodes)
    refuses(
        "made while hooks were attached",
        interp.rollout,
        model,
        episodes,
        fwd_hooks={3: hooks},
        clean=run,
    )


def test_a_rollout_made_before_hooks_were_attached_is_not_clean():
    """Rounds before the first hooked one would be copied from it, without the hooks attached since."""
    model, episodes = expert_case()
    run = interp.rollout(model, episodes)
    hooks = [("blocks.0.hook_attn_out", _halve)]
    with model.hooks(fwd_hooks=hooks):
        refuses(
            "made before hooks were attached",
            interp.rollout,
            model,
            episodes,
            fwd_hooks={3: hooks},
            clean=run,
        )
    model.set_use_attn_result(True)  # a flag of hook points changes no result
    assert require_own(run, model, episodes) is run


def test_a_played_rollout_with_attached_hooks_is_not_clean():
    model, _ = q_case()
    mdps = mdp.sample_mdps(5, 4, 3, seed=2)
    with model.hooks(fwd_hooks=[("blocks.0.hook_mlp_out", _halve)]):
        _, run = interp.play(model, mdps, n_rounds=7, seed=3)
    assert run.model is None
    refuses("made while hooks were attached", require_own, run, model)


def test_a_permanent_hook_acts_once_in_a_rollout_and_in_its_replay():
    model, episodes = expert_case()
    plain = interp.rollout(model, episodes)
    model.hook_update.add_hook(_halve, is_permanent=True)
    run = interp.rollout(model, episodes)
    before, after = plain.latents[:, 0], plain.latents[:, 1]
    assert_close(run.latents[:, 1] - before, (after - before) / 2)
    predictions, carried, _ = interp.replay(model, run)
    assert_close(predictions, run.predictions, rtol=0, atol=1e-12)
    assert_close(carried, run.latents[:, 1:], rtol=0, atol=1e-12)


def test_hooked_rounds_are_cached_with_their_hooks():
    model, episodes = expert_case()
    hooks = {2: [(PATTERN, lambda pattern, hook: torch.zeros_like(pattern))]}
    run = interp.rollout(
        model, episodes, fwd_hooks=hooks, names_filter="blocks.1.hook_attn_out", rounds=[1, 2]
    )
    bias = model.blocks[1].attn.b_O
    first_round, second_round = run.cache["blocks.1.hook_attn_out"].unbind(1)
    assert torch.equal(second_round, bias.expand(4, run.layout.n_positions, -1))
    assert not torch.allclose(first_round, bias)


def test_bad_selections_are_errors():
    model, episodes = expert_case()
    refuses(
        "round 6 is out of range: the episodes have rounds 0 to 5",
        interp.rollout,
        model,
        episodes,
        names_filter=PATTERN,
        rounds=6,
    )
    refuses("unknown commit 'oracle'", interp.rollout, model, episodes, commit="oracle")
    assert select_rounds(slice(1, None, 2), 6) == [1, 3, 5]
    assert select_rounds(-1, 6) == [5]


def test_a_played_model_acts_by_its_own_choices():
    model, _ = q_case()
    mdps = mdp.sample_mdps(5, 4, 3, seed=2)
    episodes, run = interp.play(model, mdps, n_rounds=7, seed=3)
    assert episodes.actions.shape == (5, 7)
    assert (episodes.actions[:, 0] == 0).all()
    later_actions = torch.from_numpy(episodes.actions[:, 1:]).long()
    assert torch.equal(later_actions, run.choices[:, :-1])
    again = interp.rollout(model, episodes)
    assert_close(again.predictions, run.predictions, rtol=0, atol=1e-12)
    assert torch.equal(again.tokens, run.tokens)


def test_exploration_wraps_the_model():
    model, _ = q_case()
    mdps = mdp.sample_mdps(50, 4, 3, seed=2)
    episodes, run = interp.play(model, mdps, n_rounds=20, seed=3, epsilon=1.0)
    later_actions = torch.from_numpy(episodes.actions[:, 1:]).long()
    is_followed = later_actions == run.choices[:, :-1]
    assert 0.28 < is_followed.double().mean() < 0.39
    refuses("epsilon must lie in", interp.play, model, mdps, n_rounds=2, seed=0, epsilon=1.5)


def test_long_rounds_run_in_smaller_batches() -> None:
    """Fewer rows at once where a round has many positions; in parts a rollout gives what it gives whole."""
    model = interp.load("reachability-learned").double()
    episodes = interp.tasks.of(model).sample_for(model, 45, 1, seed=0)
    fed = model.prepare(model.layout.encode(episodes))
    assert 1 < fed.choose_batch_size(256) < 45
    batches = [episodes.select(slice(start, start + 9)) for start in range(0, 45, 9)]
    parts = [interp.rollout(model, batch) for batch in batches]
    whole = interp.rollout(model, episodes)
    for quantity in ("predictions", "latents"):
        joined = torch.cat([getattr(part, quantity) for part in parts])
        assert_close(getattr(whole, quantity), joined, rtol=0, atol=1e-12)
    _, carried, _ = interp.replay(model, whole)
    assert_close(carried, whole.latents[:, 1:], rtol=0, atol=1e-12)


@pytest.mark.parametrize("case", [expert_case, q_case])
@pytest.mark.parametrize("rounds", ["all", [4, 1]])
def test_a_cache_is_what_a_replay_caches(case, rounds):
    """Whether it was cached while the rounds ran or after them: also where a chunk is not the whole."""
    model, episodes = case()
    names = model.hook_names(None)
    run = interp.rollout(model, episodes, names_filter=names, rounds=rounds)
    _, _, replayed = interp.replay(model, run, rounds=rounds, names_filter=names)
    assert list(run.cache) == names
    for name in names:
        assert_close(run.cache[name], replayed[name], rtol=0, atol=1e-12)


def test_a_cache_of_all_rounds_takes_no_second_pass(monkeypatch):
    """Six rounds of one batch: the first block runs six times."""
    model, episodes = expert_case()
    runs = []
    with torch.no_grad():
        monkeypatch.setattr(type(model.blocks[0]), "forward", _counted(model, runs))
        interp.rollout(model, episodes, names_filter=PATTERN)
    assert runs.count(0) == 6


def _counted(model, runs):
    """A block's forward pass that notes which block ran."""
    forward = type(model.blocks[0]).forward
    blocks = list(model.blocks)

    def run(block, *args):
        runs.append(blocks.index(block))
        return forward(block, *args)

    return run


def test_clean_rounds_before_a_hook_are_cached_and_stay_clean():
    """What they predict is taken from the clean run; their activations are those of a run without hooks."""
    model, episodes = expert_case()
    clean = interp.rollout(model, episodes)
    hooks = {3: [("blocks.0.hook_attn_out", lambda activation, hook: activation * 0)]}
    run = interp.rollout(
        model, episodes, fwd_hooks=hooks, names_filter=PATTERN, rounds=[1, 3], clean=clean
    )
    assert torch.equal(run.predictions[:, :3], clean.predictions[:, :3])
    _, _, plain = interp.replay(model, clean, rounds=[1, 3], names_filter=PATTERN)
    before_hook, with_hook = run.cache[PATTERN].unbind(1)
    plain_before, plain_after = plain[PATTERN].unbind(1)
    assert_close(before_hook, plain_before, rtol=0, atol=1e-12)
    assert not torch.allclose(with_hook, plain_after)


def test_layers_that_return_all_their_states_run_all_rounds_in_one_call(monkeypatch):
    """A GRU's rounds: equal to one after the other, in parts of two rounds, and run by no single step."""
    machine = interp.load("wma-gru")
    episodes = experts.sample(4, 7, 4, seed=0)
    encoded = machine.prepare(machine.layout.fit(episodes).encode(episodes))
    carried, predictions = machine.initial(4), []
    with torch.no_grad():
        for t in range(7):
            prediction, carried = machine.step(carried, encoded.take_round(t))
            predictions.append(prediction)
    monkeypatch.setattr("interp.model.rollout._ROUNDS_PER_CALL", 8)
    monkeypatch.setattr(machine, "stepper", lambda: pytest.fail("a round ran on its own"))
    run = interp.rollout(machine, episodes)
    assert run.n_rounds == 7
    assert_close(run.predictions, torch.stack(predictions, 1), rtol=0, atol=1e-6)
    assert_close(run.latents[:, -1], carried, rtol=0, atol=1e-6)
