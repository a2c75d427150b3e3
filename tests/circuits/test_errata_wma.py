"""The printed Weighted Majority construction (paper, section 3) against the corrected one.

Each test writes one printed statement down as an edit of the circuit's data, measures how wrong it is, and shows that
the correction holds on the same episodes. Labels W1, W2, ... number the statements; several are wrong only together.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from typing import NamedTuple

import numpy as np
import pytest
import torch

import circuits
import interp
from circuits.circuit import Circuit
from circuits.heads import Head, Term, copy, match, shift_terms
from interp.model.transformer import HookedLatentTransformer
from interp.tasks import experts
from interp.tasks.experts import predictors as algorithms

EPISODES = experts.sample(10, 30, 4, seed=0)
TRUTH = algorithms.weighted_majority(EPISODES, eta=0.5)
EXPERTS, VOTES = ("e_1", "e_2", "e_3", "e_4"), ("q0", "q1")


class Deviation(NamedTuple):
    """Largest errors: of P at each round, and of the log-weights after each round; NaN counts as infinite."""

    prediction: np.ndarray
    weights: np.ndarray


def deviation(model: Circuit | HookedLatentTransformer, rounds: int = 30) -> Deviation:
    model = circuits.compile(model) if isinstance(model, Circuit) else model
    run = interp.rollout(
        model, replace(EPISODES, advice=EPISODES.advice[:, :rounds], labels=EPISODES.labels[:, :rounds])
    )
    prediction = np.abs(run.predictions.numpy() - TRUTH.predictions[:, :rounds])
    weights = np.abs(model.read_state(run.latents).numpy() - TRUTH.state[:, : rounds + 1])[:, 1:]
    return Deviation(*(np.nan_to_num(e, nan=np.inf).max((0, *range(2, e.ndim))) for e in (prediction, weights)))


def latent_junk(circuit: Circuit, rounds: int) -> float:
    """Largest part of the latent that is not ``sum_i lambda_i u_{e_i}``, after so many rounds."""
    episodes = replace(EPISODES, advice=EPISODES.advice[:, :rounds], labels=EPISODES.labels[:, :rounds])
    latents = interp.rollout(circuits.compile(circuit), episodes).latents[:, rounds, 0].numpy()
    axes = np.stack([direction.vector() for direction in circuit.state])
    return float(np.abs(latents - latents @ axes.T @ axes).max())


@pytest.fixture(scope="module")
def ours() -> Circuit:
    return circuits.build("wma-handwired", n_experts=4)


@pytest.fixture(scope="module")
def paper_near() -> Circuit:
    return circuits.build("wma-handwired", n_experts=4, variant="P")


@pytest.fixture(autouse=True, scope="module")
def corrections_hold(ours: Circuit, paper_near: Circuit) -> None:
    """What every test compares with: both corrected variants are exact on these episodes."""
    for circuit in (ours, paper_near):
        error = deviation(circuit)
        assert error.prediction.max() < 1e-14
        assert error.weights.max() == 0.0
        assert latent_junk(circuit, 30) < 1e-80


def printed(ours: Circuit, key_of_2_1: tuple[Term, ...]) -> Circuit:
    """The five heads as printed; outputs go where the paper's text puts them."""
    basis = ours.basis
    ids, pos, everything = basis["id"], basis["pos"], basis["id"].labels
    labels = ours.layout.labels
    following = tuple((pos[i], pos[j]) for i, j in pairwise(labels))
    heads = (
        Head("1.1", 0, "hard", following, copy(basis, everything, "id", "buf1")),
        Head("2.1", 1, "hard", key_of_2_1, copy(basis, everything, "buf1", "buf2")),
        Head("2.2", 1, "hard", ((ids["w?"], ids["p?"]),), copy(basis, everything, "buf1", "buf3")),
        Head("3.1", 2, "softmax", match(basis, everything, "buf2", "id"), copy(basis, everything, "buf1", "buf3")),
        Head(
            "3.2",
            2,
            "linear",
            (*match(basis, everything, "buf2", "id"), *match(basis, everything, "buf3", "buf1", 0.5)),
            copy(basis, everything, "id", "id"),
        ),
    )
    return replace(ours, heads=heads, edits=("as printed",))


def as_printed(ours: Circuit) -> tuple[Term, ...]:
    ids = ours.basis["id"]
    return ((ids["p?"], ids["w"]), (ids["w?"], ids["p?"]))


def repaired(ours: Circuit) -> tuple[Term, ...]:
    ids = ours.basis["id"]
    return ((ids["p?"] + ids["w?"], ids["w"]),)


def test_w1_a_head_that_fetches_the_next_token_sees_nothing_under_the_causal_mask(ours: Circuit) -> None:
    for key in (as_printed(ours), repaired(ours)):
        error = deviation(printed(ours, key))
        assert error.prediction[0] > 0.3
        assert error.weights[0] > 0.1
        assert error.weights[3] > 10


def test_w2_without_the_mask_it_is_still_wrong(ours: Circuit) -> None:
    for key in (as_printed(ours), repaired(ours)):
        model = circuits.compile(printed(ours, key))
        for block in model.blocks:
            block.attn.mask.zero_()
        error = deviation(model)
        assert error.weights[2] > 1
        assert error.weights[5] > 1e6


def test_w3_keyed_to_the_slot_of_y_the_old_weights_are_lost(ours: Circuit) -> None:
    basis = ours.basis
    carry = ours.head("2.3")
    wrong = ours.edit("2.3", scores=((basis["id"]["w?"], basis["buf1"]["p?"]), *carry.scores[1:]))
    error = deviation(wrong)
    assert error.weights[0] == 0.0
    assert error.weights[1] == 0.5, "after two rounds one gain is forgotten"
    assert error.weights[29] > 10
    assert error.prediction.max() > 0.3


def test_w4_an_ungated_previous_token_head_binds_z_to_the_first_expert(paper_near: Circuit) -> None:
    basis = paper_near.basis
    everything = basis["id"].labels
    error = deviation(paper_near.edit("1.1", scores=shift_terms(basis, 1), moves=copy(basis, everything, "id", "buf1")))
    assert error.weights[4] > 100
    assert np.isinf(error.weights[29]) or error.weights[29] > 1e12


def test_w5_a_plain_softmax_over_all_tokens_loses_mass(ours: Circuit) -> None:
    """The ratio q1 / (q0 + q1) is right, the mass is not; with z itself as a key even the mass vanishes."""
    basis = ours.basis
    plain = ours.edit("3.1", scores=match(basis, EXPERTS, "buf2", "buf1"))
    assert deviation(plain).prediction[0] > 0.3
    model = circuits.compile(plain)
    run = interp.rollout(model, EPISODES)
    with torch.no_grad():
        out = model(run.tokens[:, 5], run.latents[:, 5])
    q0, q1 = out.logits[:, model.layout.predict_position].numpy().T
    assert np.abs(q1 / (q0 + q1) - TRUTH.predictions[:, 5]).max() < 1e-14
    with_z = ours.edit("3.1", scores=(*match(basis, EXPERTS, "buf2", "buf1"), *match(basis, EXPERTS, "buf2", "id")))
    model = circuits.compile(with_z)
    run = interp.rollout(model, EPISODES)
    with torch.no_grad():
        out = model(run.tokens[:, 12], run.latents[:, 12])
    assert out.logits[:, model.layout.predict_position].sum(-1).max() < 1e-3


def test_w6_values_outside_the_experts_leak_into_the_latent(ours: Circuit) -> None:
    """The token y is bound to p? and matches itself: 0.5 of u_{p?} lands in the latent after one round."""
    leaking = ours.edit("3.2", moves=copy(ours.basis, ours.basis["id"].labels, "buf1", "id"))
    assert latent_junk(leaking, 1) == 0.5


def test_w7_the_displayed_update_has_the_wrong_first_factor() -> None:
    """``[z; log(gamma) q_p] . [z; q_y] = |z|^2 + log(gamma) m`` instead of ``lambda_i + log(gamma) m``."""
    matches, z, errors = EPISODES.correct, np.zeros((10, 4)), []
    for t in range(5):
        z = (z**2).sum(-1, keepdims=True) + 0.5 * matches[:, t]
        errors.append(np.abs(z - TRUTH.state[:, t + 1]).max())
    assert errors[0] == 0.0
    assert errors[1] > 0.5
    assert errors[4] > 100


def test_w8_without_clean_up_the_latent_is_not_a_sum_of_experts(ours: Circuit, paper_near: Circuit) -> None:
    """Inert for the log-weights, but the latent carries u_{w?} (R), and a copy of z (P)."""
    dirty = ours.without("3.3")
    assert deviation(dirty).weights.max() == 0.0
    assert latent_junk(dirty, 5) >= 1.0
    assert latent_junk(paper_near.without("4.1"), 30) > 5


def test_w9_without_a_sink_silent_queries_average_over_everything(ours: Circuit) -> None:
    unsunk = ours
    for number in ("2.1", "2.2", "2.3"):
        unsunk = unsunk.edit(number, scores=unsunk.head(number).scores[:1])
    assert deviation(unsunk).prediction.max() > 0.1
    assert deviation(unsunk.edit("3.1", scores=ours.head("3.1").scores)).weights.max() < 1e-12


def test_w10_the_first_token_sees_itself_so_its_tag_must_be_subtracted(ours: Circuit) -> None:
    tag, wrong = ours.basis["buf1"]["w"], ours
    for number in ("2.1", "2.3"):
        (query, _), sink = ours.head(number).scores
        wrong = wrong.edit(number, scores=((query, tag), sink))
    error = deviation(wrong)
    assert error.weights[1] >= 0.5
    assert error.prediction.max() > 0.3


@pytest.mark.parametrize("rule", ["softmax", "hard"])
def test_w11_the_update_must_be_linear(ours: Circuit, paper_near: Circuit, rule: str) -> None:
    assert deviation(ours.edit("3.2", rule=rule)).weights[0] > 0.2
    assert deviation(paper_near.edit("3.2", rule=rule)).weights[19] > 1


def test_w12_five_heads_in_three_layers_do_not_suffice(ours: Circuit, paper_near: Circuit) -> None:
    """The corrected constructions have 8 heads in 3 layers or 7 in 4; each head is needed for the clean latent."""
    assert (len(ours.heads), ours.n_layers) == (8, 3)
    assert (len(paper_near.heads), paper_near.n_layers) == (7, 4)
    for circuit in (ours, paper_near):
        for head in circuit.heads:
            cut = circuit.without(head.name)
            error = deviation(cut, rounds=5)
            broken = max(error.prediction.max(), error.weights.max(), latent_junk(cut, 5))
            assert broken > 0.1, f"{head.name} is idle"


def test_w13_a_complement_gate_reads_the_coefficients_of_z(ours: Circuit) -> None:
    """``<u_{not T}, z> = sum lambda_i`` is arbitrary: at -30 the state repels the sink; a positive gate does not."""
    basis, ids = ours.basis, ours.basis["id"]
    others = tuple(label for label in ids.labels if label not in VOTES)
    bind = ours.head("1.1")
    (sink_score, sink) = bind.scores[-1]
    complement = sink_score - (basis.one - ids.sum(VOTES)) + ids.sum(others)
    latent = torch.from_numpy(-7.5 * ids.sum(EXPERTS).vector()).expand(10, 1, -1)
    attention = {}
    for name, circuit in (
        ("ours", ours),
        ("printed", ours.edit("1.1", scores=(*bind.scores[:-1], (complement, sink)))),
    ):
        model = circuits.compile(circuit)
        run = interp.rollout(model, EPISODES)
        _, cache = model.run_with_cache(run.tokens[:, 0], latent)
        attention[name] = cache["blocks.0.attn.hook_pattern"][:, 0, 1, 0]
    assert bool((attention["ours"] == 1).all())
    assert bool((attention["printed"] == 0).all())
