"""The hooked latent transformer: names, shapes, rules, and no silent hooks."""

import warnings
from dataclasses import replace

import pytest
import torch
from torch.testing import assert_close
from transformer_lens.tools.analysis import interchange

import interp
from interp.model.transformer import untrained
from interp.support.errors import InputError
from interp.tasks import experts
from interp.tasks.experts.layout import ExpertRound
from interp.tasks.qlearning.layout import QLearningRound
from tests.machines import transformer
from tests.refusals import refuses


def make(layout=None, **changes):
    return transformer(layout or ExpertRound(3), **{"d_mlp": 32} | changes)


def inputs(model):
    batch = 5
    generator = torch.Generator().manual_seed(1)
    layout = model.layout
    tokens = torch.randint(
        0, model.config.d_vocab, (batch, layout.n_positions), generator=generator
    )
    latents = torch.randn(batch, layout.n_latents, model.config.d_model, generator=generator)
    return tokens, latents


def test_every_classic_hook_fires_with_its_shape():
    model = make()
    tokens, latents = inputs(model)
    _, cache = model.run_with_cache(tokens, latents)
    pos, heads = model.layout.n_positions, 2
    assert cache["blocks.1.hook_resid_pre"].shape == (5, pos, 16)
    assert cache["blocks.1.attn.hook_pattern"].shape == (5, heads, pos, pos)
    assert cache["blocks.1.attn.hook_z"].shape == (5, pos, heads, 8)
    assert cache["blocks.0.mlp.hook_post"].shape == (5, pos, 32)
    assert cache["hook_update"].shape == (5, 16)


def test_training_normalises_in_one_operation_and_shows_its_parts_where_somebody_looks():
    """Outputs and gradients are equal to rounding with a hook on the scale and without."""
    model = make().train()
    tokens, latents = inputs(model)
    weight = model.blocks[0].attn.W_Q
    seen = []
    normalised = []

    def look(scale, hook):
        seen.append(scale.shape)

    for hooks in ([], [("blocks.0.ln1.hook_scale", look)]):
        with model.hooks(fwd_hooks=hooks):
            prediction = model(tokens, latents)[0]
        (gradient,) = torch.autograd.grad(prediction.square().sum(), weight)
        normalised.append((prediction, gradient))
    assert len(seen) == 1
    for fast, plain in zip(*normalised, strict=True):
        assert_close(fast, plain, rtol=1e-5, atol=1e-7)


def test_hook_result_fires_when_asked_for_by_name_only():
    model = make()
    tokens, latents = inputs(model)
    _, everything = model.run_with_cache(tokens, latents)
    assert "blocks.0.attn.hook_result" not in everything
    _, result_cache = model.run_with_cache(
        tokens, latents, names_filter="blocks.0.attn.hook_result"
    )
    assert result_cache["blocks.0.attn.hook_result"].shape == (5, model.layout.n_positions, 2, 16)
    assert not model.cfg.use_attn_result


@pytest.mark.parametrize("rule", ["softmax", "hard", "linear"])
def test_rules_are_what_they_say(rule):
    model = make(attention_rules=((rule, "softmax"), ("softmax", rule)))
    tokens, latents = inputs(model)
    _, cache = model.run_with_cache(tokens, latents)
    scores, pattern = (
        cache["blocks.0.attn.hook_attn_scores"][:, 0],
        cache["blocks.0.attn.hook_pattern"][:, 0],
    )
    visible = torch.ones_like(scores, dtype=torch.bool).tril()
    assert not pattern[~visible].any()
    if rule == "linear":
        assert torch.equal(pattern[visible], scores[visible])
    else:
        total = pattern.sum(-1)
        assert_close(total, torch.ones_like(total))
    if rule == "hard":
        attended, highest = pattern.argmax(-1), scores.argmax(-1)
        assert torch.equal(attended, highest)
        assert set(pattern.unique().tolist()) <= {0.0, 1.0}
    second = cache["blocks.1.attn.hook_pattern"][:, 1]
    if rule != "linear":
        attends_to_all = (second[:, -1] > 0).all()
        assert attends_to_all == (rule == "softmax")


@pytest.mark.parametrize(
    ("dtype", "tolerance"), [(torch.float64, 1e-15), (torch.float32, 1e-6), (torch.bfloat16, 8e-3)]
)
@pytest.mark.parametrize("n_experts", [1, 4, 8])
def test_softmax_is_softmax_at_every_width_and_precision(n_experts, dtype, tolerance):
    """The pattern is the softmax of the scores, narrower and wider than a CPU's vectors, in the scores' precision."""
    model = make(ExpertRound(n_experts)).to(dtype)
    tokens, latents = inputs(model)
    _, cache = model.run_with_cache(tokens, latents.to(dtype))
    scores, pattern = cache["blocks.0.attn.hook_attn_scores"], cache["blocks.0.attn.hook_pattern"]
    assert pattern.dtype == dtype
    assert pattern.shape == scores.shape
    expected = scores.double().softmax(-1)
    assert_close(pattern.double(), expected, rtol=0, atol=tolerance)


def test_hard_attention_averages_over_exact_ties():
    model = make(attention_rules=(("hard", "hard"), ("hard", "hard")))
    for block in model.blocks:
        block.attn.W_Q.data.zero_()
    tokens, latents = inputs(model)
    _, cache = model.run_with_cache(tokens, latents, names_filter="blocks.0.attn.hook_pattern")
    n = model.layout.n_positions
    n_visible = torch.arange(1, n + 1)
    expected = torch.ones(n, n).tril() / n_visible[:, None]
    assert_close(cache["blocks.0.attn.hook_pattern"][0, 0], expected)


def test_changing_a_token_changes_no_earlier_activation():
    model = make(QLearningRound(3, 2))
    tokens, latents = inputs(model)
    changed = tokens.clone()
    another = (tokens[:, -2] + 1) % model.config.d_vocab
    changed[:, -2] = another
    _, before = model.run_with_cache(tokens, latents)
    _, after = model.run_with_cache(changed, latents)
    for layer in range(2):
        name = f"blocks.{layer}.hook_resid_post"
        plain, moved_on = before[name], after[name]
        assert torch.equal(plain[:, :-2], moved_on[:, :-2])
        assert not torch.equal(plain[:, -2:], moved_on[:, -2:])


@pytest.mark.parametrize("n_layers", [1, 3])
def test_a_round_in_pieces_is_the_round(n_layers):
    """Any way of cutting it: the last position of each piece, from the keys and values of those before."""
    model = make(QLearningRound(3, 2), n_layers=n_layers)
    tokens, latents = inputs(model)
    whole, cache = model.run_with_cache(tokens, latents)
    expected = cache[f"blocks.{n_layers - 1}.hook_resid_post"]
    embedded, n = model.embed_round(tokens, latents), tokens.shape[1]
    for cuts in ((n,), (1, n), (n - 2, n), (3, 4, n - 1, n)):
        past, start = [block.make_empty_past(len(tokens)) for block in model.blocks], 0
        for stop in cuts:
            read = model.run_from(embedded[:, start:stop], past=past, n_read=min(2, stop - start))
            assert_close(read, expected[:, max(start, stop - 2) : stop])
            start = stop
        last = model.ln_final(read[:, -1])
        assert_close(model.update(last, n), whole.update)


def test_unknown_and_empty_hook_filters_are_errors():
    model = make()
    tokens, latents = inputs(model)
    refuses(
        r"hook_patern.*did you mean.*hook_pattern",
        model.run_with_cache,
        tokens,
        latents,
        names_filter="blocks.1.attn.hook_patern",
    )
    refuses(
        "selects none",
        model.run_with_cache,
        tokens,
        latents,
        names_filter=lambda name: "nothing" in name,
    )
    with (
        pytest.raises(InputError, match="unknown hook point"),
        model.hooks([("blocks.9.hook_resid_pre", print)]),
    ):
        pass


def test_hooks_are_gone_after_an_exception():
    model = make()
    tokens, latents = inputs(model)
    clean = model(tokens, latents).prediction

    def fail(activation, hook):
        raise RuntimeError("inside")

    with pytest.raises(RuntimeError, match="inside"):
        model.run_with_hooks(tokens, latents, fwd_hooks=[("blocks.0.attn.hook_result", fail)])
    assert torch.equal(model(tokens, latents).prediction, clean)
    assert not model.cfg.use_attn_result


@pytest.mark.parametrize("update", ["add", "replace"])
def test_write_touches_one_slot(update):
    model = make(QLearningRound(3, 2), latent_update=update)
    _, latents = inputs(model)
    written, slots = torch.ones(5, 16), torch.tensor([0, 1, 0, 1, 1])
    after = model.write(latents, written, slots)
    rows = torch.arange(5)
    expected = written if update == "replace" else latents[rows, slots] + written
    assert_close(after[rows, slots], expected)
    assert torch.equal(after[rows, 1 - slots], latents[rows, 1 - slots])


def test_the_write_map_decides_what_is_written_and_nothing_else():
    """Without it an update has the norm that LayerNorm gives; with it, the map's image of that vector."""
    plain, mapped = make(), make(write_map=True)
    tokens, latents = inputs(plain)
    plain_round = plain(tokens, latents)
    norms = plain_round.update.norm(dim=-1)
    assert_close(norms, torch.full((5,), 16**0.5), rtol=1e-3, atol=0)
    mapped.load_state_dict(plain.state_dict(), strict=False)
    mapped_round = mapped(tokens, latents)
    assert_close(mapped_round.logits, plain_round.logits)
    expected = plain_round.update @ mapped.write_map.W_write + mapped.write_map.b_write
    assert_close(mapped_round.update, expected)


@pytest.mark.parametrize(
    ("size", "labels"),
    [
        ({"n_actions": 2}, ("c_2", "Qcurr", "s'_1", "a_2", "Select", "Update")),
        ({"n_experts": 2}, ("<z>", "p_2", "p?", "y", "w?")),
    ],
)
def test_label_codes_give_a_label_one_code_for_every_size(size, labels):
    """By label, `Select` of a small round has the code of `Select` of the largest, also where the round is cut."""
    layout = QLearningRound(3, 4, (2, 3), (2, 4)) if "n_actions" in size else ExpertRound(4, (2, 4))
    small, largest = replace(layout, **size), layout.max_layout
    for position_codes in ("label", "index"):
        model = make(layout, position_codes=position_codes)
        tokens = torch.zeros(2, small.n_positions, dtype=torch.long)
        latents = torch.zeros(2, small.n_latents, 16)
        whole, cache = model.run_with_cache(tokens, latents)
        for label in labels:
            place = small.position(label)
            expected = model.W_pos[largest.position(label) if position_codes == "label" else place]
            assert_close(cache["hook_pos_embed"][0, place], expected)
        assert_close(model.predict(tokens, latents), whole.prediction)


def test_learned_models_have_no_exact_state():
    model = make()
    refuses("learned model", model.read_state, torch.zeros(2, 1, 16))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_an_exact_model_run_coarsely_says_so(dtype):
    """A rollout records its dtype; below float32 a handwired model warns, and its state is indeed no longer exact."""
    model = interp.load("wma-handwired", n_experts=3, log_gamma=0.3)
    episodes = experts.sample(2, 40, 3, seed=0)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        exact = interp.rollout(model, episodes)
        coarse = interp.rollout(model.float(), episodes)
    assert (exact.settings["dtype"], coarse.settings["dtype"]) == ("float64", "float32")
    assert coarse.settings["rounding"] == 2.0**-24
    with pytest.warns(
        UserWarning,
        match=rf"'wma-handwired' is exact in float64.*{str(dtype)[6:]} rounds every number",
    ):
        run = interp.rollout(model.to(dtype), episodes)
    error = (run.latents.double() - exact.latents).abs()
    assert error.max() > 1e-3
    error_of_float32 = (coarse.latents - exact.latents).abs()
    assert error_of_float32.max() < 1e-3


@pytest.mark.parametrize("name", ["wma-handwired", "qlearning-learned"])
def test_the_control_is_transformer_lens_own(name):
    """Weights equal those of ``reinitialized`` with the seed, and none of the model's is left."""
    model, before = interp.load(name), torch.get_rng_state()
    control = untrained(model, seed=3)
    assert torch.equal(torch.get_rng_state(), before)
    expected = dict(interchange.reinitialized(model, 3).named_parameters())
    for key, weight in control.named_parameters():
        assert torch.equal(weight, expected[key]), key
        if weight.numel() and weight.any():
            assert not torch.equal(weight, model.get_parameter(key)), key
    assert not (control.training or control.is_handwired)
    assert control.config.name == f"{name}-untrained"
