"""Every routine on a model whose answers fit on a napkin (``napkin`` in conftest); the numbers are worked out by hand.

Round 0 has z = 1, v = 3 (clean) or 2 (corrupted): P = 6 (18 + 3) - 9 = 117 and 6 (8 + 3) - 4 = 62.
"""

from dataclasses import replace

import pytest
import torch

import interp
from interp.interventions import patching
from interp.interventions.experiment import Edit, Experiment, batches
from interp.interventions.pairs import prepare
from interp.interventions.sites import Place, Site
from interp.tasks import experts
from tests.handmade import intervened
from tests.interventions.conftest import VALUE


def _patched(model, pair, site, **options):
    read, options = (
        prepare(model, *pair, 0, options.pop("read", None)),
        {"metric": VALUE, **options},
    )
    return patching.patch_pair(read, sites=site, **options).values.item()


def test_the_napkin_model_itself(napkin, napkin_pair):
    """z is 1, then v^2 + y^2 = 9 + 4 (clean) or 4 + 4 (corrupted)."""
    clean, corrupted = (interp.rollout(napkin, episodes) for episodes in napkin_pair)
    after_13 = 6 * (18 + 3 * 13**2) - 9
    assert clean.predictions.tolist() == [[117, after_13]]
    after_8 = 6 * (18 + 3 * 8**2) - 9
    assert corrupted.predictions.tolist() == [[62, after_8]]


@pytest.mark.parametrize(
    ("site", "expected"),
    [
        ("L0H0@p?", 6 * (18 + 3) - 4),  # 122: all of the vote but what head 1.1 reads
        ("L0H1@p?", 62),  # the latents are the same
        ("L1H0@p?", (8 + 3) + 5 * (18 + 3) - 4),  # 112
        ("L1H1@p?", 6 * (8 + 3) - 9),  # 57
        ("result[1.1]@p?", 57),
        ("attn_out[0]@p?", 122),
        ("q[1.0]@p?", 112),  # the query reads out
        ("v[1.1]@p_1", 6 * (8 + 3) - 2 * 3),  # 60: score 2, value 3
        ("pattern[1.1]@p?", 6 * (8 + 3) - 3 * 2),  # the same product
        ("k[0.0]@p_1", 6 * (2 * 3 * 2 + 3) - 4),  # 86
        ("resid_pre[0]@p_1", 117),
        ("resid_pre[1]@p_1", 57),
        ("resid_post[1]@p?", 117),
        ("resid_pre[0]@<z>", 62),
        ("embed@p_1", 117),
        ("latent", 62),
        ("resid_pre[1]@y", 62),
    ],
)
def test_denoising(napkin, napkin_pair, site, expected):
    assert _patched(napkin, napkin_pair, site) == expected


@pytest.mark.parametrize(
    ("site", "expected"),
    [("L0H0@p?", 6 * (8 + 3) - 9), ("L1H0@p?", (18 + 3) + 5 * (8 + 3) - 9), ("embed@p_1", 62)],
)
def test_noising(napkin, napkin_pair, site, expected):
    assert _patched(napkin, napkin_pair, site, direction="noising") == expected


@pytest.mark.parametrize(
    ("site", "expected"),
    [
        ("L1H1@w?", 6 * (18 + 3 * 13**2) - 9),  # the clean update makes the clean next z
        ("L1H1@p?", 6 * (18 + 3 * 8**2) - 9),  # no part in the update
        ("v[1.1]@p_1", 6 * (18 + 3 * (2 * 3 + 4) ** 2) - 9),  # z = 10
    ],
)
def test_effects_run_on_into_the_next_round(napkin, napkin_pair, site, expected):
    assert _patched(napkin, napkin_pair, site, read=1) == expected
    held_effect = 6 * (18 + 3 * 8**2) - 9
    assert _patched(napkin, napkin_pair, site, read=1, propagate=False) == held_effect


@pytest.mark.parametrize(
    ("places", "expected"),
    [
        ("L0H0@p?", 57),  # base clean, source corrupted: 6 (8 + 3) - 9
        (["L0H0@p?", "L1H1@p?"], 62),
        (Place.of("resid_pre[1]@p?", [[0, 0, 0, 2, 0]]), 57),  # only `out`
        (Place.of("resid_pre[1]@p?", [[1, 0, 0, 0, 0]]), 117),  # only `ask`, which is the same
        (
            Place.of("embed@p_1", [[0, 1, 0, 1, 0]]),
            6 * (2 * 2.5**2 + 3) - 2.5**2,
        ),  # half of the difference; nobody reads `out` there
        (
            replace(
                Place.of("embed@p_1"),
                control_basis=torch.tensor([[0.0], [1], [0], [1], [0]]) / 2**0.5,
            ),
            6 * (2 * (3 - 2**-0.5) ** 2 + 3) - (3 - 2**-0.5) ** 2,
        ),  # as far (1), but half of the way into `out`
    ],
)
def test_interchange(napkin, napkin_pair, places, expected):
    """Interchanging whole activations, several at once, subspaces, and an equal move elsewhere."""
    runs = [interp.rollout(napkin, episodes) for episodes in napkin_pair]
    sites = places if isinstance(places, list) else [places]
    resolved = [place if isinstance(place, Place) else Place.of(place) for place in sites]
    predictions, _ = intervened(napkin, *runs, resolved, [0])
    assert predictions.item() == pytest.approx(expected, abs=1e-12)


def test_a_known_residual_stream_spares_the_layers_before_it_and_changes_no_bit():
    model = interp.load("wma-learned-additive")
    run = interp.rollout(model, experts.sample(3, 6, 4, seed=0))
    sites = [Site("resid_pre", 2), Site("z", 2)]
    seen = next(
        batches(Experiment(model, run, {"": []}, [1, 4], commit="target", watched=sites))
    ).activations
    z = Site("z", 2)
    edits = {"": [Edit(Place(z), seen[z].flip(0))]}
    rows_of_first_layer: list[int] = []

    def count_rows(resid, hook):
        rows_of_first_layer.append(len(resid))

    fired = []
    for known in ({}, seen):
        experiment = Experiment(model, run, edits, [1, 4], commit="target", known=known)
        with model.hooks(fwd_hooks=[("blocks.0.hook_resid_pre", count_rows)]):
            fired.append(next(batches(experiment)))
    assert rows_of_first_layer == [6]
    whole, from_the_stream = fired
    plain_predictions = run.predictions[:, [1, 4]]
    assert not torch.equal(whole.predictions[0, :, :, 0], plain_predictions)
    assert torch.equal(whole.predictions, from_the_stream.predictions)
    assert torch.equal(whole.carried, from_the_stream.carried)
