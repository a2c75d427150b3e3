"""TransformerLens' own tools run on the model: one test per tool, named after it.

The model is small and untrained, in the learned models' shape (pre-norm, MLP, softmax), unless a tool is about
something else; tools that take tokens run on the bound view of prepared rounds.
"""

import pytest
import torch
from torch.testing import assert_close
from transformer_lens import FactoredMatrix, patching
from transformer_lens.head_detector import detect_head
from transformer_lens.SVDInterpreter import SVDInterpreter
from transformer_lens.tools.analysis import (
    attribution_patching,
    direct_logit_attribution,
    interchange,
    logit_lens,
)

import interp
from interp.model.bound import bind
from interp.tasks import experts, mdp
from interp.tasks.experts.layout import ExpertRound
from interp.tasks.qlearning.layout import QLearningRound
from tests.machines import transformer
from tests.refusals import refuses


def _model(layout, **options):
    return transformer(layout, **{"d_mlp": 32, "init_std": 0.5, **options})


@pytest.fixture(scope="module")
def model():
    return _model(ExpertRound(2))


@pytest.fixture(scope="module")
def bound(model):
    runs = [interp.rollout(model, experts.sample(6, 5, 2, seed=seed)) for seed in (0, 1)]
    return bind(model, *runs, rounds=[2, 4])


@pytest.fixture(scope="module")
def cached(bound):
    """Logits and cache of the first rollout's rounds."""
    return bound.run_with_cache(bound.tokens[0])


def _metric(bound):
    def mean_difference(logits):
        first, second = logits[:, bound.predict_position].unbind(-1)
        return (second - first).mean()

    return mean_difference


def test_bound_rows_are_the_rounds_of_the_rollouts(model, bound):
    """Row e * n_rounds + i of a rollout is episode e at its i-th chosen round, with that round's latents."""
    run = interp.rollout(model, experts.sample(6, 5, 2, seed=1))
    logits = bound(bound.tokens[1])
    p_one = logits[:, bound.predict_position].softmax(-1)[:, 1]
    assert_close(p_one.unflatten(0, (6, 2)), run.predictions[:, [2, 4]])


def test_bound_view_hooks_are_the_models_and_do_not_leak(model, bound):
    seen: list[str] = []

    def look(activation, hook):
        seen.append(hook.name)

    with bound.hooks(fwd_hooks=[("blocks.0.hook_attn_out", look)]):
        bound(bound.tokens[0])
    assert seen == ["blocks.0.hook_attn_out"]
    assert not any(point.fwd_hooks for point in model.hook_points())


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda ids: ids.float(), "row ids must be integers"),
        (lambda ids: ids[:, :4], r"row ids must be integers \[batch, 9\]"),
        (lambda ids: ids + 100, "between 0 and 23"),
        (lambda ids: ids.flip(0).cummax(1).values * torch.arange(9), "one number per row"),
    ],
)
def test_bound_view_refuses_tokens_that_are_no_rows(bound, change, message):
    """A float input is silently truncated by TransformerLens; here it is an error."""
    refuses(message, bound, change(bound.tokens[0]))


def test_the_list_of_all_tokens_is_refused_with_which_to_take(bound):
    refuses(r"row ids must be integers .*; use bound.tokens\[0\]", bound, bound.tokens)


def test_activation_cache_logit_attrs_sum_to_the_logit_difference(model, bound, cached):
    logits, cache = cached
    parts = cache.get_full_resid_decomposition(pos_slice=bound.predict_position)
    answers = torch.ones(len(logits), dtype=torch.long)
    attributed = cache.logit_attrs(
        parts, answers, incorrect_tokens=1 - answers, pos_slice=bound.predict_position
    )
    without_bias = logits[:, bound.predict_position] - model.b_U
    difference = without_bias[:, 1] - without_bias[:, 0]
    assert_close(attributed.sum(0), difference, rtol=0, atol=1e-4)


_TOOLS = [
    name
    for name in dir(patching)
    if name.startswith("get_act_patch_")
    and "direct_path" not in name
    and not name.endswith("_every")
]
"""All but those that run several of these one after the other."""


@pytest.mark.parametrize("tool", _TOOLS)
def test_patching_get_act_patch(bound, tool):
    """Every get_act_patch_* sweep runs and moves the metric."""
    clean, corrupted = (ids[::6] for ids in bound.tokens)
    _, cache = bound.run_with_cache(clean)
    metric = _metric(bound)
    values = getattr(patching, tool)(bound, corrupted, cache, metric)
    assert values.isfinite().all()
    effects = values - metric(bound(corrupted))
    assert effects.abs().max() > 1e-3


def test_logit_lens_ends_in_the_models_logits(model, bound):
    """The lens' last entry is the model's logits at the prediction."""
    logits = bound(bound.tokens[0])[:, bound.predict_position]
    result = logit_lens(bound, bound.tokens[0], positions=bound.predict_position)
    last = result.readout.values[-1]
    assert_close(last, logits.detach(), rtol=0, atol=1e-5)


@pytest.mark.parametrize("unit", ["component", "layer", "head"])
def test_direct_logit_attribution(model, bound, unit):
    """Components' (and heads') contributions, and the last layer's, sum to the outcome's logit without its bias."""
    position = bound.predict_position
    answers = torch.ones(len(bound.tokens[0]), dtype=torch.long)
    result = direct_logit_attribution(bound, bound.tokens[0], answers, unit=unit, pos=position)
    attribution = result.attribution
    total = attribution[-1] if unit == "layer" else attribution.sum(0)
    expected = bound(bound.tokens[0])[:, position, 1] - model.b_U[1]
    assert_close(total, expected, rtol=0, atol=1e-4)


@pytest.mark.parametrize("component", ["q", "k", "v"])
def test_direct_path_patching(bound, component):
    """Each path from head 0.0 into a head of layer 1 is patched on its own; the flags it sets are put back."""
    clean, corrupted = bound.tokens
    caches = [bound.run_with_cache(ids)[1] for ids in (clean, corrupted)]
    values = patching.get_act_patch_direct_path(
        bound,
        corrupted,
        *caches,
        _metric(bound),
        src_layer=0,
        src_head=0,
        component=component,
        verbose=False,
    )
    unpatched = _metric(bound)(bound(corrupted))
    assert (values[1] - unpatched).abs().min() > 0
    assert not bound.cfg.use_split_qkv_input


@pytest.mark.parametrize("granularity", ["node", "edge"])
def test_attribution_patching(bound, granularity):
    """Plain attribution runs, and its edges sum to its nodes."""
    clean, corrupted = (ids[:1] for ids in bound.tokens)
    result = attribution_patching.attribution_patch(
        bound,
        clean,
        corrupted,
        _metric(bound),
        attribution_patching.EdgeAttributionConfig(granularity=granularity),
    )
    assert max(map(abs, result.node_scores.values())) > 1e-3
    assert bool(result.edge_scores) == (granularity == "edge")


def test_attribution_patching_faithfulness(bound):
    """Keeping every edge recovers the clean metric."""
    clean, corrupted = (ids[:1] for ids in bound.tokens)
    config = attribution_patching.EdgeAttributionConfig(granularity="edge")
    result = attribution_patching.attribution_patch(bound, clean, corrupted, _metric(bound), config)
    faithful = attribution_patching.faithfulness(
        bound, clean, corrupted, _metric(bound), set(result.edge_scores)
    )
    assert faithful.recovered == pytest.approx(1, abs=1e-4)


def test_interchange_fit_das(bound):
    """DAS trains a subspace on the model, and leaves its parameters as they were."""
    base, source = bound.tokens

    def outcome_logits(tokens):
        return bound(tokens)[:, bound.predict_position]

    with torch.no_grad():
        targets = outcome_logits(source).argmax(-1)
    flags = [p.requires_grad for p in bound.parameters()]
    positions = torch.full((len(base),), bound.predict_position)
    result = interchange.fit_das(
        bound,
        "blocks.1.hook_resid_post",
        base,
        source,
        targets,
        outcome_logits,
        rank=2,
        base_positions=positions,
        source_positions=positions,
        epochs=8,
        lr=5e-2,
    )
    assert result.losses[-1] < result.losses[0]
    assert [p.requires_grad for p in bound.parameters()] == flags


@pytest.mark.parametrize("pattern", ["previous_token_head", "current"])
def test_head_detector(bound, pattern):
    """detect_head reads patterns of one round from the view."""
    ids = bound.tokens[0][:1]
    wanted = torch.eye(ids.shape[1]) if pattern == "current" else pattern
    assert detect_head(bound, ids, wanted, exclude_bos=False).shape == (2, 2)


def test_factored_matrix_QK_and_OV(model):
    assert isinstance(model.OV, FactoredMatrix)
    assert model.QK.shape == (2, 2, 16, 16)
    product = model.W_V[1, 0] @ model.W_O[1, 0]
    assert_close(model.OV[1, 0].AB, product)
    assert model.OV.eigenvalues.shape == (2, 2, 8)


def test_svd_interpreter(model, bound):
    """Singular directions of OV, W_in and W_out in outcome space."""
    interpreter = SVDInterpreter(bound)
    for kind, options in (("OV", {"head_index": 0}), ("w_in", {}), ("w_out", {})):
        vectors = interpreter.get_singular_vectors(kind, layer_index=1, num_vectors=2, **options)
        assert vectors.shape == (len(model.outcomes), 1, 2)


def test_tools_run_on_q_learning_rounds():
    """The view serves Q-learning rounds too: payloads and several latents are looked up with the row."""
    model = _model(QLearningRound(3, 2))
    runs = [interp.rollout(model, mdp.sample(4, 5, 3, 2, seed=seed)) for seed in (0, 1)]
    bound = bind(model, *runs, rounds=3)
    clean, corrupted = bound.tokens
    _, cache = bound.run_with_cache(clean)
    values = patching.get_act_patch_resid_pre(bound, corrupted, cache, _metric(bound))
    at_select = values[:, bound.predict_position]
    assert values.shape == (2, 16)
    unpatched = _metric(bound)(bound(corrupted))
    assert (at_select - unpatched).abs().max() > 0


# Models without an MLP: their blocks have the points of an MLP that writes zeros.


@pytest.fixture(scope="module", params=["untrained", "wma-handwired"])
def attention_only(request):
    """The view of an attention-only model, and logits and cache of its first rollout's rounds."""
    name = request.param
    is_shipped = name != "untrained"
    model = interp.load(name, n_experts=2) if is_shipped else _model(ExpertRound(2), d_mlp=0)
    assert model.cfg.attn_only
    runs = [interp.rollout(model, experts.sample(4, 5, 2, seed=seed)) for seed in (0, 1)]
    bound = bind(model, *runs, rounds=[2, 4])
    return bound, *bound.run_with_cache(bound.tokens[0])


def test_without_an_mlp_accumulated_resid_repeats_the_stream_after_attention(attention_only):
    bound, logits, cache = attention_only
    stack, labels = cache.accumulated_resid(layer=-1, incl_mid=True, return_labels=True)
    for i, label in enumerate(labels):
        if label.endswith("_mid"):
            assert torch.equal(stack[i], stack[i + 1])
    model = bound.model
    logits_of_last = model.ln_final(stack[-1]) @ model.W_U + model.b_U
    assert_close(logits_of_last, logits, rtol=0, atol=1e-5)


@pytest.mark.parametrize(
    "tool", ["get_act_patch_mlp_out", "get_act_patch_resid_mid", "get_act_patch_block_every"]
)
def test_without_an_mlp_patching_finds_nothing_in_one(attention_only, tool):
    bound, _, cache = attention_only
    corrupted = bound.tokens[1]
    values = getattr(patching, tool)(bound, corrupted, cache, _metric(bound))
    unpatched = _metric(bound)(bound(corrupted))
    if tool == "get_act_patch_resid_mid":
        after = patching.get_act_patch_resid_pre(bound, corrupted, cache, _metric(bound))
        assert_close(values[:-1], after[1:])
    else:
        mlp = values if tool == "get_act_patch_mlp_out" else values[2]
        nothing_changed = torch.full_like(mlp, unpatched.item())
        assert_close(mlp, nothing_changed, rtol=0, atol=1e-12)


@pytest.mark.parametrize("granularity", ["node", "edge"])
def test_without_an_mlp_attribution_gives_it_zero(granularity):
    run = interp.rollout(_model(ExpertRound(2), d_mlp=0), experts.sample(2, 3, 2))
    bound = bind(_model(ExpertRound(2), d_mlp=0), run)
    clean = bound.tokens[0][1:2]
    corrupted = bound.tokens[0][2:3]
    config = attribution_patching.EdgeAttributionConfig(granularity=granularity)
    result = attribution_patching.attribution_patch(bound, clean, corrupted, _metric(bound), config)
    scores_of_mlps = {score for node, score in result.node_scores.items() if node.kind == "mlp_out"}
    assert scores_of_mlps == {0.0}
    assert max(map(abs, result.node_scores.values())) > 1e-3


def test_the_points_of_an_absent_mlp_change_no_bit_and_fire_only_on_request():
    model = interp.load("wma-handwired", n_experts=2)
    run = interp.rollout(model, experts.sample(4, 5, 2, seed=0))
    rounds = run.tokens[:, 3], run.latents[:, 3], run.values[:, 3]
    plain = model(*rounds)
    seen, _ = model.run_with_cache(*rounds)
    for ours, theirs in zip(plain, seen, strict=True):
        assert torch.equal(ours, theirs)
    fired: list[str] = []
    point = model.hook_dict["blocks.0.hook_mlp_out"]
    handle = point.register_forward_hook(lambda *_: fired.append("mlp"))
    model(*rounds)
    handle.remove()
    assert fired == []
    assert not model.cfg.use_absent_mlp
