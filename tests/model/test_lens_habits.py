"""What a user of HookedTransformer types gives what the toolkit's own calls give."""

import pytest
import torch
from torch.testing import assert_close
from transformer_lens import ActivationCache

import interp
from interp.model.bound import bind
from interp.model.run import Rollout
from interp.tasks import experts
from tests.refusals import refuses

PATTERN = "blocks.1.attn.hook_pattern"


@pytest.fixture(scope="module")
def episodes():
    return experts.sample(3, 5, 4, seed=0)


@pytest.fixture(scope="module")
def model():
    return interp.load("wma-learned-additive")


@pytest.fixture(scope="module")
def run(model, episodes):
    return interp.rollout(model, episodes, names_filter=lambda name: True)


@pytest.mark.parametrize("name", ["wma-learned-additive", "wma-gru"])
def test_a_call_with_episodes_is_a_rollout(name, episodes):
    machine = interp.load(name)
    expected = interp.rollout(machine, episodes)
    assert torch.equal(machine(episodes), expected.predictions)


@pytest.mark.parametrize("name", ["wma-learned-additive", "wma-gru"])
def test_run_with_cache_has_a_round_axis(name, episodes):
    """All points that fire are cached, as in TransformerLens; the second axis is the round."""
    machine = interp.load(name)
    expected = interp.rollout(machine, episodes, names_filter=lambda name: True)
    predictions, cache = machine.run_with_cache(episodes)
    assert torch.equal(predictions, expected.predictions)
    assert cache.keys() == expected.cache.keys()
    for point, activation in expected.cache.items():
        assert activation.shape[:2] == (3, 5)
        assert torch.equal(cache[point], activation)


def test_run_with_cache_takes_the_options_of_a_rollout(model, episodes):
    _, cache = model.run_with_cache(episodes, names_filter=PATTERN, rounds=[2, 4])
    expected = interp.rollout(model, episodes, names_filter=PATTERN, rounds=[2, 4]).cache[PATTERN]
    assert torch.equal(cache["pattern", 1], expected)


def test_run_with_hooks_is_a_hooked_rollout(model, episodes):
    hooks = [("blocks.0.attn.hook_z", lambda z, hook: 0 * z)]
    expected = interp.rollout(model, episodes, fwd_hooks=hooks).predictions
    assert torch.equal(model.run_with_hooks(episodes, fwd_hooks=hooks), expected)


def test_options_of_one_round_name_what_runs_one(model, episodes):
    refuses(
        r"runs episodes by interp.rollout.*got remove_batch_dim.*activation_cache",
        model.run_with_cache,
        episodes,
        remove_batch_dim=True,
    )


@pytest.mark.parametrize("name", ["wma-learned-additive", "wma-gru"])
@pytest.mark.parametrize("argument", ["The cat sat", torch.zeros(1, 13, dtype=torch.long)])
def test_a_text_and_tokens_alone_are_refused(name, argument):
    """The refusal names what runs episodes."""
    refuses(r"interp.rollout\(model, episodes\)", interp.load(name), argument)


def test_short_names_are_those_of_the_points(run):
    assert run.cache["pattern", 1] is run.cache[PATTERN]
    assert run.cache["resid_post", 0] is run.cache["blocks.0.hook_resid_post"]
    assert run.cache["embed"] is run.cache["hook_embed"]
    refuses(
        r"unknown cached activation .blocks.9.attn.hook_pattern.",
        run.cache.__getitem__,
        ("pattern", 9),
    )


def test_negative_layers_count_from_the_last_layer_of_the_model(model, episodes, run):
    """As in TransformerLens, and also where the last layer is not cached."""
    last = model.cfg.n_layers - 1
    assert run.cache["resid_post", -1] is run.cache["resid_post", last]
    assert run.cache["pattern", -2] is run.cache["pattern", last - 1]
    assert Rollout.join([run, run]).cache["pattern", -1].shape[0] == 2 * len(episodes)
    first_layer = interp.rollout(model, episodes, names_filter="blocks.0.hook_resid_post")
    refuses(
        f"unknown cached activation .blocks.{last}.hook_resid_post.",
        first_layer.cache.__getitem__,
        ("resid_post", -1),
    )


def test_activation_cache_of_one_round_is_the_bound_views(model, run):
    """``stack_head_results`` and ``accumulated_resid`` of round 3 are those of the rounds that ``bind`` lays out."""
    bound = bind(model, run, rounds=3)
    _, expected = bound.run_with_cache(bound.tokens[0])
    cache = run.activation_cache(round=3)
    assert_close(cache["pattern", 1], expected["pattern", 1])
    heads = cache.stack_head_results(layer=2)
    assert_close(heads, expected.stack_head_results(layer=2))
    stack = cache.accumulated_resid(layer=-1, apply_ln=True)
    assert_close(stack, expected.accumulated_resid(layer=-1, apply_ln=True))


def test_activation_cache_ends_in_the_rounds_prediction(model, run):
    cache = run.activation_cache(round=-1)
    stack = cache.accumulated_resid(layer=-1, apply_ln=True)
    final = stack[-1][:, run.layout.predict_position]
    logits = final @ model.W_U + model.b_U
    predictions = logits.softmax(-1)[:, 1]
    assert_close(predictions, run.predictions[:, -1])


def test_activation_cache_is_nan_where_a_round_did_not_take_place(model):
    whole = experts.sample(2, 5, 4, seed=0)
    shorter = experts.ExpertEpisodes.of(
        advice=[whole.advice[0], whole.advice[1, :3]],
        labels=[whole.labels[0], whole.labels[1, :3]],
    )
    cache = interp.rollout(model, shorter).activation_cache(round=4)
    assert cache["resid_post", 0][0].isfinite().all()
    assert cache["resid_post", 0][1].isnan().all()


def test_activation_cache_needs_the_model_and_its_heads(model, episodes):
    hooked = interp.rollout(model, episodes, fwd_hooks=[(PATTERN, lambda x, hook: x)])
    refuses("does not know its model", hooked.activation_cache, 0)
    cell = interp.rollout(interp.load("wma-gru"), episodes)
    refuses("no layers and heads", cell.activation_cache, 0)


def test_an_ablated_rounds_cache_is_that_of_its_rollout(model, episodes):
    """Bound, the round would be run without the hook; the round after it, which no hook is in, can be."""
    z = "blocks.1.attn.hook_z"
    ablated = interp.rollout(
        model,
        episodes,
        fwd_hooks={3: [(z, lambda x, hook: x * 0)]},
        names_filter=lambda name: True,
        rounds=[3],
    )
    refuses("hooks acted in these rounds", bind, model, ablated, rounds=[3])
    refuses("transformer_lens.ActivationCache", ablated.activation_cache, 3)
    cache = ActivationCache({name: x[:, 0] for name, x in ablated.cache.items()}, model)
    assert (cache["z", 1] == 0).all()
    final = cache.accumulated_resid(layer=-1, apply_ln=True)[-1]
    logits = final[:, ablated.layout.predict_position] @ model.W_U + model.b_U
    assert_close(logits.softmax(-1)[:, 1], ablated.predictions[:, 3])
    later = bind(model, ablated, rounds=[4])
    logits = later(later.tokens[0])[:, later.predict_position]
    assert_close(logits.softmax(-1)[:, 1], ablated.predictions[:, 4])


def test_to_str_tokens_names_a_round(model, run):
    """The first round's tokens, with the latent's label in its place; indices of outcomes are outcomes."""
    tokens = run.tokens[0, 0]
    names = model.to_str_tokens(tokens)
    vocabulary = run.layout.vocabulary
    expected = [vocabulary[token] for token in tokens.tolist()]
    for position in run.layout.latent_positions:
        expected[position] = run.layout.labels[position]
    assert names == expected
    assert names[:3] == ["<w>", "<z>", "e_1"]
    names_of_rounds = [model.to_str_tokens(row) for row in run.tokens[0]]
    assert model.to_str_tokens(run.tokens[0]) == names_of_rounds
    assert model.to_str_tokens([0, 1]) == list(model.outcomes)
    refuses("ids from 0 to", model.to_str_tokens, tokens + 1000)


@pytest.mark.parametrize("name", ["W_Q", "b_Q", "b_K", "b_V", "b_O"])
def test_the_attention_weights_of_all_blocks_are_stacked(name, model):
    stacked = getattr(model, name)
    assert len(stacked) == len(model.blocks)
    assert torch.equal(stacked[2], model.blocks[2].attn.get_parameter(name))


def test_a_model_without_mlps_has_the_biases_of_its_attention():
    handwired = interp.load("wma-handwired")
    assert_close(handwired.accumulated_bias(2), handwired.b_O[:2].sum(0))


@pytest.mark.parametrize("mlp_input", [False, True])
def test_the_accumulated_bias_is_what_earlier_layers_write_without_any_input(mlp_input, model):
    """Before layer 2: two attentions and two MLPs, and its own attention before its MLP."""
    expected = torch.zeros(model.config.d_model)
    for block in list(model.blocks)[:2]:
        expected = expected + block.attn.b_O + block.mlp.b_out
    if mlp_input:
        expected = expected + model.blocks[2].attn.b_O
    assert_close(model.accumulated_bias(2, mlp_input), expected)
