"""Rounds without hooks are the hooked rounds bit for bit, and run only where nobody can tell."""

from copy import deepcopy
from dataclasses import replace
from functools import partial

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import interp
from interp.model.plain import PlainBlock
from interp.model.transformer import HookedLatentTransformer, plain_blocks
from interp.tasks import mdp
from tests.cases import cases

MODELS = cases(__file__, "plain MODELS")


@pytest.fixture(scope="module", params=MODELS)
def model(request):
    return interp.load(request.param, **MODELS[request.param])


def hooked(model, call, *rounds):
    """The same call with a hook that changes nothing: it runs through the modules."""
    idle = ("hook_update", lambda update, hook: None)
    with torch.no_grad(), model.hooks(fwd_hooks=[idle]):
        assert plain_blocks(model) is None
        return call(*rounds)


@settings(max_examples=5)
@given(
    data=st.data(),
    seed=st.integers(0, 2**31),
    n=st.sampled_from([1, 2, 7, 16]),
    payload=st.booleans(),
    double=st.booleans(),
    bias=st.sampled_from([0.0, 0.5]),
)
def test_plain_rounds_are_the_hooked_ones_bit_for_bit(model, data, seed, n, payload, double, bias):
    """Whole rounds, and rounds in parts: up to any layer, from any position on."""
    model = deepcopy(model.double() if double else model.float())
    for block in model.blocks:  # also where no head writes
        block.attn.b_O.data[::3] += bias
    generator, layout = torch.Generator().manual_seed(seed), model.layout
    tokens = torch.randint(model.config.d_vocab, (n, layout.n_positions), generator=generator)
    dtype = model.W_E.dtype
    latents = torch.randn(n, layout.n_latents, model.config.d_model, generator=generator).to(dtype)
    values = None
    if payload:
        values = torch.rand(n, layout.n_positions, generator=generator).to(dtype)
    parts = data.draw(cuts(model))
    calls = [model, model.predict, lambda *round_: in_parts(model, round_, *parts)]
    with torch.no_grad():
        blocks = plain_blocks(model)
        assert blocks is not None
        plain = [call(tokens, latents, values) for call in calls]
    for call, gave in zip(calls, plain, strict=True):
        expected = hooked(model, call, tokens, latents, values)
        pairs = (
            [(gave, expected)]
            if isinstance(gave, torch.Tensor)
            else zip(gave, expected, strict=True)
        )
        # Weights that are stored as sparse are added up in another order.
        is_sparse = any(block.q[0].is_sparse for block in blocks)
        same = torch.allclose if is_sparse else torch.equal
        assert all(same(a, b) for a, b in pairs)


@st.composite
def cuts(draw, model):
    """A layer to stop and go on at, the position that a second pass starts from, and how many it reads."""
    n = model.layout.n_positions
    start = draw(st.integers(1, n - 1))
    layer = draw(st.integers(0, model.config.n_layers))
    n_read = draw(st.none() | st.integers(1, n - start))
    return layer, start, n_read


def in_parts(model, round_, layer, start, n_read):
    """A round's residual streams: of all positions up to a layer, and from there of the last ones on their own."""
    resid = model.run_from(model.embed_round(*round_), 0, layer)
    past = [block.make_empty_past(len(resid)) for block in model.blocks[layer:]]
    whole = model.run_from(resid[:, :start], layer, past=past)
    return resid, whole, model.run_from(resid[:, start:], layer, past=iter(past), n_read=n_read)


def test_scores_that_overflow_at_a_later_position_are_masked(model):
    """A masked score may be infinite or no number, and reaches no earlier position all the same."""
    model = deepcopy(model.float())
    for block in model.blocks:
        block.attn.W_K.data *= 1e30
    resid = torch.zeros(2, model.layout.n_positions, model.config.d_model)
    resid[:, :-1, ::2], resid[:, -1] = 1e-30, 1e30
    with torch.no_grad():
        plain = model.run_from(resid, 0, 1)[:, :-1]
    assert plain.isfinite().all()
    assert torch.allclose(plain, hooked(model, model.run_from, resid, 0, 1)[:, :-1])


def test_a_rollout_without_hooks_is_one_with_idle_hooks(model):
    model.float()
    task = interp.tasks.of(model)
    sizes = {size.name: getattr(model.layout, size.name) for size in task.sizes}
    episodes = task.sample(3, 6, seed=0, **sizes)
    plain = interp.rollout(model, episodes)
    watched = interp.rollout(
        model, episodes, fwd_hooks=[("hook_update", lambda update, hook: None)]
    )
    # Learned machines compute only what is read, and rounds that hold a choice go on from it: in matrices of another
    # shape, whose products a CPU may round otherwise.
    has_same_shapes = model.is_handwired and model.layout.choice_position is None
    same = torch.equal if has_same_shapes else partial(torch.allclose, rtol=1e-5, atol=1e-5)
    assert same(plain.predictions, watched.predictions)
    assert same(plain.latents, watched.latents)
    assert torch.equal(plain.tokens, watched.tokens)


@pytest.fixture
def small():
    model = interp.load("wma-handwired", n_experts=2)
    tokens = torch.zeros(1, model.layout.n_positions, dtype=torch.long)
    return model, tokens, model.initial(1)


def test_new_weights_are_read_at_once(small):
    """Also where they change behind torch's back, by ``.data``."""
    model, tokens, latents = small
    with torch.no_grad():
        before = model(tokens, latents).update
        model.blocks[0].attn.b_O.data += 1.0
        assert not torch.equal(model(tokens, latents).update, before)


def test_whatever_looks_at_a_module_is_run(small):
    """A hook of TransformerLens, one of torch on any module, a forward of one's own, a gradient."""
    model, tokens, latents = small
    seen = []
    block = model.blocks[0]

    def look_by_torch(module, inputs, output):
        seen.append("torch")

    def look_by_lens(x, hook):
        seen.append("lens")

    with torch.no_grad():
        handle = block.attn.register_forward_hook(look_by_torch)
        model(tokens, latents)
        handle.remove()
        with model.hooks(fwd_hooks=[("blocks.0.hook_resid_pre", look_by_lens)]):
            model.predict(tokens, latents)
        assert block.forward is not None
        block.forward = lambda resid, past=None: resid * 0
        assert plain_blocks(model) is None
        del block.forward
        assert plain_blocks(model) is not None
    assert seen == ["torch", "lens"]
    assert plain_blocks(model) is None
    assert model(tokens, latents).update.requires_grad


def test_a_class_derived_from_the_model_runs_its_own_forward(small):
    class Own(HookedLatentTransformer):
        pass

    with torch.no_grad():
        assert plain_blocks(Own(small[0].config)) is None


def test_a_round_with_other_tokens_is_not_taken_for_the_one_before():
    """A stepper remembers a round to run its choice again; other tokens before the choice are another round."""
    actor = interp.load("qlearning-handwired", n_states=2, n_actions=2)
    episodes, _ = interp.play(actor, mdp.sample_mdps(3, 2, 2, seed=0), 6, seed=0, epsilon=0.5)
    untrained = actor.untrained(0)
    run = interp.rollout(untrained, episodes)
    fed, carried = run.fed.take_round(0), run.latents[:, 0]
    changed = replace(fed, tokens=run.fed.take_round(1).tokens)
    assert not torch.equal(fed.tokens, changed.tokens)
    with torch.no_grad():
        step = untrained.stepper()
        step(carried, fed)
        for quick, plain in zip(
            step(carried, changed), untrained.step(carried, changed), strict=True
        ):
            assert torch.allclose(quick, plain, atol=1e-5)


def test_a_large_block_whose_values_are_zero_runs():
    """An ablation may set all of a matrix to 0, which then uses no column."""
    actor = interp.load("qlearning-handwired", n_states=16, n_actions=6)
    block = deepcopy(actor).blocks[0].requires_grad_(False)
    block.attn.W_V.zero_()
    n_positions, d_model = len(block.attn.mask), block.attn.W_Q.shape[1]
    resid = torch.randn(1, n_positions, d_model, dtype=actor.dtype)
    plain = PlainBlock(block, is_handwired=True)
    assert plain.is_sparse
    with torch.no_grad():
        assert torch.allclose(plain(resid), block(resid), atol=1e-5)
