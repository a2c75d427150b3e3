"""Patching with a round axis: equal to one-at-a-time hooks, to TransformerLens, and to sums on a napkin."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch.testing import assert_close
from transformer_lens import patching as tl_patching

import interp
from interp.interventions import pairs, patching, round_patcher
from interp.interventions.round_patcher import RoundPatcher
from interp.interventions.sites import COMPONENTS, Site, resolve_one, select_sites, sites
from interp.model.bound import bind
from interp.tasks.experts import analysis as corruptions
from interp.tasks.qlearning.analysis import exchange_history as exchange_transitions
from tests.refusals import refuses

pytestmark = pytest.mark.usefixtures("one_session")

EVERY = (
    "embed",
    "resid_pre",
    "q",
    "k",
    "v",
    "pattern",
    "z",
    "attn_out",
    "resid_mid",
    "mlp_out",
    "resid_post",
)


def _one_at_a_time(model, base, source, site, at, commit="own"):
    """The patched rollout of one site, by a hook on the sequential pass and nothing else."""
    run = interp.rollout(model, source, names_filter=[site.hook], rounds=at, commit=commit)
    where = site.index(run.layout)

    def hook(activation, hook):
        changed = activation.clone()
        changed[where] = run.cache[site.hook][:, 0][where]
        return changed

    return interp.rollout(model, base, fwd_hooks={at: [(site.hook, hook)]}, commit=commit)


@pytest.mark.parametrize(("direction", "read"), [("denoising", 3), ("noising", 5)])
def test_sweep_equals_one_at_a_time(untrained, expert_episodes, direction, read, monkeypatch):
    """Batched cells with prefix reuse give what one hooked rollout per cell gives, to float64 precision."""
    clean, corrupted = corruptions.exchange_history(expert_episodes, round=3)
    base, source = (corrupted, clean) if direction == "denoising" else (clean, corrupted)
    cells = sites(untrained, components=EVERY, positions=["<z>", "p_1", "p?", "w?"])
    cells = [*cells[::11], Site("latent"), Site("latent", position="<z>")]
    pair = pairs.prepare(untrained, clean, corrupted, 3, read)
    truth = torch.from_numpy(clean.labels)
    monkeypatch.setattr(round_patcher, "_CHUNK_CPU", 30)
    swept = patching.patch_pair(pair, sites=cells, metric="regret", direction=direction)
    for site, values in zip(cells, swept.values, strict=True):
        run = _one_at_a_time(untrained, base, source, site, 3)
        losses = (run.predictions - truth).abs()
        regret = losses[:, 3 : read + 1].sum(1)
        assert_close(values, regret, rtol=0, atol=1e-13)


def test_a_hook_of_the_users_sees_every_position(untrained, expert_episodes):
    """It clears position 3, whatever is patched, and whichever positions a patch can change."""

    def clear(activation, hook):
        return activation.index_fill(1, torch.tensor([3]), 0)

    clean, corrupted = corruptions.exchange_history(expert_episodes, round=3)
    cells = sites(untrained, components=["resid_pre", "z"], positions=["<z>", "p?"])
    with untrained.hooks(fwd_hooks=[("blocks.0.hook_attn_out", clear)]):
        swept = patching.sweep(untrained, clean, corrupted, 3, sites=cells, metric="regret")
        runs = [_one_at_a_time(untrained, corrupted, clean, site, 3) for site in cells]
    labels = torch.from_numpy(clean.labels[:, 3])
    for values, run in zip(swept.values, runs, strict=True):
        assert_close(values, (run.predictions[:, 3] - labels).abs(), rtol=0, atol=1e-13)


@pytest.mark.parametrize("commit", ["own", "target"])
def test_sweep_equals_one_at_a_time_where_the_model_chooses(untrained_q, mdp_episodes, commit):
    """With own choices committed, a patch that changes the choice changes the token after it, as in a rollout."""
    clean, corrupted = exchange_transitions(mdp_episodes, round=3)
    cells = sites(
        untrained_q, components=("resid_pre", "v"), positions=["c_1", "r", "Select", "a*", "Update"]
    )[::5]
    pair = pairs.prepare(untrained_q, clean, corrupted, 3, 4, commit)
    result = patching.patch_pair(pair, sites=cells, metric="state", direction="noising")
    runs = [interp.rollout(untrained_q, e, commit=commit) for e in (clean, corrupted)]
    (ends, bad_ends) = (run.latents[:, 5].flatten(1) for run in runs)
    unit = (ends - bad_ends) / (ends - bad_ends).norm(dim=-1, keepdim=True)
    for site, values in zip(result.sites, result.values, strict=True):
        run = _one_at_a_time(untrained_q, clean, corrupted, site, 3, commit)
        move = run.latents[:, 5].flatten(1) - bad_ends
        along_the_unit = (move * unit).sum(-1)
        assert_close(values, along_the_unit, rtol=0, atol=1e-12)


@pytest.mark.long
def test_sweep_agrees_with_transformer_lens_cell_by_cell(untrained, expert_episodes):
    """The same sweep by TransformerLens' patching on the bound view: within 1e-5 in every cell."""
    model = untrained
    clean, corrupted = corruptions.exchange_history(expert_episodes, round=4)
    runs = [interp.rollout(model, episodes) for episodes in (clean, corrupted)]
    bound = bind(model, *runs, rounds=4)
    clean_rows, corrupted_rows = bound.tokens
    _, cache = bound.run_with_cache(clean_rows)
    result = patching.sweep(model, clean, corrupted, 4, metric="probability")
    rises = runs[0].predictions[:, 4] > runs[1].predictions[:, 4]

    def metric(logits):
        p = logits[:, bound.predict_position].softmax(-1)[:, 1]
        return torch.where(rises, p, 1 - p)

    tools = {
        "resid_pre": tl_patching.get_act_patch_resid_pre,
        "attn_out": tl_patching.get_act_patch_attn_out,
        "head": tl_patching.get_act_patch_attn_head_out_by_pos,
    }
    for component, tool in tools.items():
        theirs = tool(bound, corrupted_rows, cache, metric, reduce="mean")
        if component == "head":
            theirs = theirs.permute(0, 2, 1)  # they order layer, position, head
        effects = torch.from_numpy(result.grid(component, "effect").to_numpy().copy())
        ours = effects + result.base.mean()
        theirs = theirs.reshape(ours.shape).double()
        assert_close(ours, theirs, rtol=0, atol=1e-5)


def test_cells_that_can_change_nothing_are_not_run(untrained, expert_episodes):
    """Where both runs are alike at a site, or nothing reads it, the effect is 0 in every bit; the others are run."""
    clean, corrupted = corruptions.flip_vote(expert_episodes, round=3, expert="p_2")
    pair = pairs.prepare(untrained, clean, corrupted, 3, 4)
    cells = sites(untrained, components=("resid_pre", "k", "z"))
    batches = list(
        RoundPatcher(untrained, pair.corrupted, 3, pair.clean, update=True).run_cells(cells)
    )
    first_batch, *other_batches = batches
    assert first_batch.is_unchanged
    assert not any(batch.is_unchanged for batch in other_batches)
    run = {str(cells[i]) for batch in batches[1:] for i in batch.cells}
    assert {
        "resid_pre[0]@p_2",
        "k[0.1]@p_2",
        "resid_pre[1]@p?",
        "L0H0@y",
        "k[1.0]@y",
        "L1H1@w?",
    } <= run
    assert not {"resid_pre[0]@y", "resid_pre[1]@e_2", "k[0.0]@p_3", "L1H0@y", "L0H0@p_1"} & run
    result = patching.sweep(untrained, clean, corrupted, 3, sites=cells, read_round=4)
    idle = batches[0].cells
    assert (result.effects[idle] == 0).all()
    for i in idle[::5]:
        alone = _one_at_a_time(untrained, corrupted, clean, cells[i], 3).predictions
        assert_close(alone, interp.rollout(untrained, corrupted).predictions, rtol=0, atol=1e-13)


def test_result_carries_intervals_and_choices(untrained, expert_episodes):
    """The frame holds an interval, a p-value and every choice; a fraction of no gap is refused."""
    clean, corrupted = corruptions.exchange_history(expert_episodes, round=3)
    frame = patching.sweep(
        untrained, clean, corrupted, 3, sites=["resid_pre[0]@p?", "resid_pre[1]@p?"]
    ).to_frame()
    assert {"effect_low", "effect_high", "p_value", "fraction_low", "fraction_high"} <= set(
        frame.columns
    )
    assert (frame.effect_low <= frame.effect).all()
    assert (frame.effect <= frame.effect_high).all()
    assert set(frame.direction) == {"denoising"}
    assert set(frame["round"]) == {3}
    same = patching.sweep(untrained, clean, clean, 3, sites=["resid_pre[0]@p?", "resid_pre[1]@p?"])
    refuses("do not differ in logit_diff at round 3", same.fractions)


@pytest.mark.parametrize(
    ("values", "source", "participants"),
    [
        (
            [1.0, 1.0, 0.0],
            [1.0, 1.0, 1.0],
            np.array(["ann", "ann", "bob"]),
        ),  # of ann all, of bob none
        ([np.nan, 1.0, 0.0], [4.0, 1.0, 1.0], None),  # of the gap of the two episodes that count
    ],
    ids=["participants", "a loop that halts"],
)
def test_the_sentence_says_the_fraction_of_the_table(values, source, participants):
    """Half of the gap of 1 is restored."""
    result = patching.PatchingResult(
        sites=(Site("latent"),),
        values=torch.tensor([values]),
        base=torch.zeros(3),
        source=torch.tensor(source),
        metric="value",
        unit="units",
        direction="denoising",
        round=0,
        read_round=0,
        propagate=True,
        settings={"counted": "", "model": "napkin"},
        participants=participants,
    )
    assert result.to_frame()["fraction"].tolist() == [0.5]
    assert result.fractions().tolist() == [0.5]
    assert result.best == (Site("latent"), 0.5)
    assert "restores 50% of" in result.sentence


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"sites": "rezid_pre"}, "did you mean 'resid_pre'"),
        ({"sites": "resid_pre[0]@p"}, "unknown position label 'p'"),
        ({"metric": "logit"}, "did you mean 'logit_diff'"),
        ({"direction": "noise"}, "did you mean 'noising'"),
        ({"round": 8}, "round 8 is out of range"),
        ({"read_round": 2}, "read_round must not come before round"),
        ({"sites": ("L2H0@p?",)}, "has layers 0 to 1"),
    ],
)
def test_bad_input_is_one_sentence_with_the_valid_values(
    untrained, expert_episodes, options, message
):
    clean, corrupted = corruptions.flip_vote(expert_episodes, round=3)
    refuses(message, patching.sweep, untrained, clean, corrupted, **{"round": 3, **options})


def test_a_function_is_refused_as_a_metric_with_what_makes_one(untrained, expert_episodes):
    pair = corruptions.flip_vote(expert_episodes, round=3)
    refuses(
        "interp.interventions.pairs.Metric",
        patching.sweep,
        untrained,
        *pair,
        round=3,
        metric=lambda readout, pair: 0,
    )


def test_the_correct_logit_diff_is_signed_by_the_label(untrained, expert_episodes):
    """And the default is not: it is above 0 in every episode, and changes by its absolute value."""
    clean, corrupted = corruptions.flip_vote(expert_episodes, round=3)
    probability = [interp.rollout(untrained, side).predictions[:, 3] for side in (clean, corrupted)]
    sign = torch.as_tensor(2.0 * clean.labels[:, 3] - 1)
    in_clean, in_corrupted = (sign * p.logit() for p in probability)
    change = in_clean - in_corrupted
    assert change.min() < 0 < change.max()
    by_label, by_default = (
        patching.sweep(untrained, clean, corrupted, 3, sites="embed", metric=metric)
        for metric in ("correct_logit_diff", "logit_diff")
    )
    assert_close(by_label.base, in_corrupted)
    assert_close(by_label.source, in_clean)
    assert_close(by_default.source - by_default.base, change.abs())


def test_hooks_never_leak(untrained, expert_episodes):
    """Raising inside a patched run leaves no hook on the model, also inside another hook context."""
    clean, corrupted = corruptions.flip_vote(expert_episodes, round=3)
    before = interp.rollout(untrained, clean).predictions
    outer: list[str] = []

    class StopRunError(Exception):
        pass

    def stop(activation, hook):
        raise StopRunError

    def note(activation, hook):
        outer.append(hook.name)

    with untrained.hooks(fwd_hooks=[("blocks.0.hook_attn_out", note)]):
        with (
            pytest.raises(StopRunError),
            untrained.hooks(fwd_hooks=[("blocks.1.hook_attn_out", stop)]),
        ):
            patching.sweep(untrained, clean, corrupted, 3)
        outer.clear()
        patching.sweep(untrained, clean, corrupted, 3, sites=["resid_pre[0]@p?", "resid_pre[1]@p?"])
        assert outer  # the outer hook is still there
    for point in untrained.hook_points():
        assert not point.fwd_hooks
        assert not point.bwd_hooks
    assert_close(interp.rollout(untrained, replace(clean)).predictions, before, rtol=0, atol=0)


def test_every_site_round_trips_through_text(untrained, untrained_q):
    """str and parse are inverse for every site of both layouts, labels like s'_1, <z>, p? and a* included."""
    for model in (untrained, untrained_q):
        for site in sites(model, components=COMPONENTS):
            assert Site.parse(str(site)) == site


@pytest.mark.parametrize("text", ["L2H0@w?", "z[2.0]@w?", "head[2.0]@w?"])
def test_a_head_has_one_address_in_print(text):
    """Layer 2, head 0, both counted from 0: what the head puts out, however it is written."""
    assert Site.parse(text) == Site("z", 2, 0, "w?")
    assert str(Site.parse(text)) == "L2H0@w?"


def test_other_sites_of_a_head_keep_their_component():
    assert str(Site.parse("pattern[2.0]@w?")) == "pattern[2.0]@w?"
    assert str(Site("z", 2)) == "z[2]"


def test_components_at_one_position_stand_for_every_layer_and_head(untrained):
    """2 layers and 2 heads: a component's name is swept, an address is one site."""
    layout = untrained.layout
    at_p = [str(site) for site in select_sites(untrained, layout, "z@p?")]
    assert at_p == ["L0H0@p?", "L0H1@p?", "L1H0@p?", "L1H1@p?"]
    assert [str(site) for site in select_sites(untrained, layout, ["L1H0", "embed"])] == [
        "L1H0",
        "embed",
    ]


def test_one_site_of_several_channels(untrained):
    layout = untrained.layout
    assert str(resolve_one("latent", untrained, layout)) == "latent"
    assert str(resolve_one(["L1H0@p?"], untrained, layout)) == "L1H0@p?"
    refuses("one site is read here", resolve_one, ["L1H0", "L1H1"], untrained, layout)


def test_every_hook_exists_and_every_index_selects(untrained):
    """A site's hook is a hook point, and its index leaves one vector per episode."""
    import interp
    from interp.tasks import experts

    every = sites(untrained, components=COMPONENTS, positions=["<z>"])
    run = interp.rollout(
        untrained, experts.sample(2, 2, 3), names_filter=[s.hook for s in every], rounds=1
    )
    for site in every:
        vector = site.read(run.cache[site.hook][:, 0], run.layout)
        assert vector.ndim == 2
        assert len(vector) == 2


def test_enumeration_counts(untrained):
    """2 layers, 2 heads, 11 positions."""
    assert len(sites(untrained, components="head")) == 2 * 2 * 11
    assert len(sites(untrained, components=("resid_pre", "embed"))) == 2 * 11 + 11
    assert [str(s) for s in sites(untrained, components="latent")] == ["latent@<z>"]
    assert len(sites(untrained, components="pattern", positions=None)) == 4
    assert len(sites(untrained, components="mlp_out", positions="p?", layers=[1])) == 1


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("z[0.0", "is not a site; write component"),
        ("L0H0@p?#3", "is not a site; write component"),
        ("zz[0.0]", "unknown component 'zz'"),
        ("z@p?", "needs a layer"),
        ("latent[0]", "takes no layer"),
        ("resid_pre[0.1]", "takes no head"),
    ],
)
def test_bad_texts(text, message):
    refuses(message, Site.parse, text)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"components": "resid"}, "did you mean 'resid_"),
        ({"positions": ("p_9",)}, "unknown position label 'p_9'"),
        ({"layers": (2,)}, "has layers 0 to 1"),
    ],
)
def test_sites_that_do_not_exist(untrained, options, message):
    refuses(message, sites, untrained, **options)


def test_models_without_mlp_say_so(napkin):
    refuses("has no MLP", sites, napkin, components="mlp_out")
