"""Patching the handwired circuits lights up the sites of the circuit's table, and nothing else."""

import pytest

from interp import tasks
from interp.interventions import patching
from interp.interventions.patching import round_map
from interp.tasks import experts, mdp
from interp.tasks.experts import analysis as corruptions
from interp.tasks.qlearning import analysis as q_corruptions

COMPONENTS = ("resid_pre", "resid_post", "attn_out", "z")


def _lit(circuit, result):
    """Sites with any effect, heads called by the circuit's numbers."""
    lit = set()
    largest_effects = result.effects.abs().amax(-1)
    for site, effect in zip(result.sites, largest_effects, strict=True):
        if effect > 1e-9:
            name = str(site)
            if site.head is not None:
                head = circuit.layer(site.layer)[site.head]
                number = head.name.split(" ")[0]
                name = f"{number}@{site.position}"
            lit.add(name)
    return lit


def _path(*stages):
    """Sites of a value that stays at one position over some points of the residual stream."""
    return {f"{point}@{position}" for position, points in stages for point in points.split()}


UNTIL_1 = "resid_pre[0] resid_post[0] resid_pre[1]"
UNTIL_2 = f"{UNTIL_1} resid_post[1] resid_pre[2]"
FROM_1 = "attn_out[1] resid_post[1] resid_pre[2]"
LAST = "attn_out[2] resid_post[2]"

WMA_HISTORIES = {
    # corruption, metric: where the value is, and the heads that move it
    ("exchange-history", "logit_diff"): _path(("<z>", UNTIL_1), ("p?", f"{FROM_1} {LAST}"))
    | {"2.1@p?", "3.1@p?"},
    ("swap-histories", "logit_diff"): _path(("<z>", UNTIL_1), ("p?", f"{FROM_1} {LAST}"))
    | {"2.1@p?", "3.1@p?"},
    ("exchange-history", "state"): _path(("<z>", UNTIL_1), ("w?", f"{FROM_1} resid_post[2]"))
    | {"2.3@w?"},
}
WMA_ROUND = {
    ("flip-vote", "logit_diff"): _path(("p_1", UNTIL_2), ("p?", LAST)) | {"3.1@p?"},
    ("flip-vote", "state"): _path(("p_1", UNTIL_2), ("w?", LAST)) | {"3.2@w?"},
    ("flip-label", "state"): _path(("y", UNTIL_1), ("w?", f"{FROM_1} {LAST}"))
    | {"2.2@w?", "3.2@w?"},
}
WMA = {**WMA_HISTORIES, **WMA_ROUND}


@pytest.mark.parametrize(("corruption", "metric"), list(WMA))
@pytest.mark.parametrize("direction", ["denoising", "noising"])
def test_wma_sites_are_those_of_the_circuit(wma, corruption, metric, direction):
    """Every site on the value's path has an effect, and no other site has any."""
    circuit, model = wma
    pair = experts.TASK.corruption(corruption).build(experts.sample(16, 10, 3, seed=0), 8)
    result = patching.sweep(model, *pair, 8, sites=COMPONENTS, metric=metric, direction=direction)
    assert _lit(circuit, result) == WMA[corruption, metric]
    if direction == "denoising" and corruption != "flip-vote":
        lit = result.effects.abs().amax(-1) > 1e-9
        missing = (result.fractions()[lit] - 1).abs()
        assert missing.max() < 1e-9  # one path: each site on it carries everything


@pytest.mark.parametrize("direction", ["denoising", "noising"])
def test_q_learning_reward_takes_its_path_and_no_other(qlearning, direction):
    circuit, model = qlearning
    pair = (
        tasks.get("qlearning")
        .corruption("change-reward")
        .build(mdp.sample(16, 10, 3, 2, seed=0), 8)
    )
    result = patching.sweep(model, *pair, 8, sites=COMPONENTS, metric="state", direction=direction)
    lit = {name for name in _lit(circuit, result) if not name.startswith("resid_mid")}
    path = _path(
        ("r", f"{UNTIL_2} resid_post[2] resid_pre[3]"), ("Update", "attn_out[3] resid_post[3]")
    )
    assert lit == path | {"4.2@Update"}


def test_q_learning_choice_is_made_at_select_from_the_candidates(qlearning):
    """Other latents: values reach the candidates through 1.6, and the choice at Select through 3.1 alone."""
    circuit, model = qlearning
    pair = q_corruptions.exchange_history(mdp.sample(24, 14, 3, 2, seed=0), 12)
    lit = _lit(circuit, patching.sweep(model, *pair, 12, sites=("z", "mlp_out")))
    heads = {name.split("@")[0] for name in lit if "[" not in name}
    assert heads == {"1.6", "3.1"}
    assert {name for name in lit if name.startswith("3.1")} == {"3.1@Select"}
    assert {name.split("@")[1] for name in lit} <= {"a_1", "a_2", "Select"}


def test_wma_round_map_is_the_memory_of_the_latent(wma):
    """One flipped label at round 3: the latents carry all of it from the next round on, for ever."""
    _, model = wma
    pair = corruptions.flip_label(experts.sample(16, 9, 3, seed=0), 3)
    frame = round_map(model, *pair, "latent", round=range(1, 9)).to_frame()
    grid = frame.assign(share=frame["effect"] / frame["gap"]).pivot(
        index="patched", columns="read", values="share"
    )
    assert grid.loc[1:3, 4:].to_numpy() == pytest.approx(0)
    for patched in range(4, 9):
        assert grid.loc[patched, patched:].to_numpy() == pytest.approx(1)
        assert grid.loc[patched, : patched - 1].isna().all()


@pytest.mark.parametrize(
    ("rounds", "finding"),
    [
        ([4, 8], "still moves logit_diff by half of its largest effect 4 rounds later"),
        ([1, 3], "moves logit_diff in no round"),  # the latents differ from round 4 on
    ],
    ids=str,
)
def test_the_sentence_of_a_round_map_counts_rounds(wma, rounds, finding):
    pair = corruptions.flip_label(experts.sample(16, 9, 3, seed=0), 3)
    result = round_map(wma[1], *pair, "latent", round=rounds)
    assert result.sentence == f"What is patched at latent {finding}."


def test_round_map_equals_sweeps(untrained, expert_episodes):
    """Each cell of the map is a sweep's cell: patched at t, read at t'."""
    pair, site = corruptions.exchange_history(expert_episodes, 2), "resid_pre[1]@w?"
    mapped = round_map(untrained, *pair, site, round=[2, 3, 5], metric="probability").to_frame()
    for row, _ in zip(mapped.itertuples(), range(6), strict=True):
        single = patching.sweep(
            untrained, *pair, row.patched, sites=site, read_round=row.read, metric="probability"
        )
        mean_effect, mean_size = single.effects.mean(), single.effects.abs().mean()
        assert row.effect == pytest.approx(float(mean_effect), abs=1e-12)
        assert row.size == pytest.approx(float(mean_size), abs=1e-12)
        assert row.gap == pytest.approx(single.gap, abs=1e-12)
