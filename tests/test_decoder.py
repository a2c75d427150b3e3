"""One state decoder: it recovers what latents hold linearly, per latent or from all, and never sees what it decodes."""

import functools

import numpy as np
import pytest
import torch
from numpy.testing import assert_allclose
from torch.testing import assert_close

from interp.stats.decoder import (
    RIDGE,
    Affine,
    Decoder,
    is_wide,
    predict_across_folds,
    solve_ridge,
    units,
)
from tests.refusals import refuses


@pytest.fixture
def held() -> tuple[torch.Tensor, np.ndarray]:
    """Latents ``[12, 6, 3, 16]`` whose latent i holds row i of a state ``[12, 6, 3, 4]``, by a code of its own."""
    rng = np.random.default_rng(0)
    states = rng.normal(size=(12, 6, 3, 4))
    latents = np.einsum("btik,ikd->btid", states, rng.normal(size=(3, 4, 16))) + rng.normal(size=16)
    return torch.from_numpy(latents), states


def test_a_state_held_linearly_is_read_exactly_on_other_episodes(held):
    latents, states = held
    decoder = Decoder.fit(latents[:8], states[:8])
    assert_allclose(decoder(latents[8:]), states[8:], atol=1e-9)
    assert_allclose(predict_across_folds(latents, states), states, atol=1e-9)


def test_a_map_is_about_the_means_and_knows_how_its_features_vary():
    """On a napkin: x = 1, 3 and y = 2 x + 5, 9 on average; half of the slope is left by a penalty of a mean square."""
    x = torch.tensor([[1.0], [3.0]])
    exact = Affine.fit(x, 2 * x + 5)
    halved = Affine.fit(x, 2 * x + 5, ridge=1.0)
    assert exact(x).dtype is torch.float64
    for read, ends in ((exact, [7, 11]), (halved, [8, 10])):
        assert read.centre.item() == 2
        assert read.middle.item() == 9
        assert read.along.item() == read.slopes.item()
        decoded = read(x.double()).ravel()
        assert decoded.tolist() == pytest.approx(ends)
    nearly_one = Affine.fit(x, x, ridge=RIDGE)
    assert nearly_one.slopes.item() == pytest.approx(1 / 1.001)


def test_features_that_never_vary_say_nothing():
    """Of a machine that writes one state for all, the map is the mean, with a penalty and without; little is some."""
    little = torch.tensor([[1e-8], [-1e-8]])
    assert units(little).item() == pytest.approx(1e-8)
    x = torch.full((4, 2), 3.0)
    y = torch.tensor([[1.0], [2.0], [3.0], [6.0]])
    for ridge in (0.0, RIDGE):
        read = Affine.fit(x, y, ridge=ridge)
        assert read.slopes.tolist() == [[0], [0]]
        decoded = read(x.double()).ravel()
        assert decoded.tolist() == [3, 3, 3, 3]


@pytest.mark.parametrize(
    "shape", [(20, 6, 3), (6, 20, 3), (20, 6, 400)], ids=["tall", "wide", "many outputs"]
)
def test_without_a_penalty_it_is_the_shortest_least_squares_map_whatever_the_rank(shape):
    """LAPACK's ``gelsd`` by way of NumPy, where two features always vary together and one never does."""
    n, k, m = shape
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(n, k)), rng.normal(size=(n, m))
    x[:, 1], x[:, 2] = 2 * x[:, 0], 5
    features, targets = x - x.mean(0), y - y.mean(0)
    expected, *_ = np.linalg.lstsq(features, targets, rcond=1e-10)
    slopes = Affine.fit(torch.from_numpy(x), torch.from_numpy(y)).slopes
    assert_allclose(slopes.numpy(), expected, atol=1e-13)


def test_a_penalty_does_not_ask_in_which_units_coordinates_are():
    """A tenth of every feature's own variance leaves 10 / 11 of its slope; scales of 1000 to .001 decode the same."""
    about_zero = torch.tensor([[1.0, 2.0], [1.0, -2.0], [-1.0, 2.0], [-1.0, -2.0]])
    x = about_zero + torch.tensor([3.0, 7.0])
    y = x @ torch.tensor([[5.0], [17.0]])
    read = Affine.fit(x, y, ridge=0.1)
    slopes = read.slopes.ravel().tolist()
    assert slopes == pytest.approx([50 / 11, 170 / 11])
    along = read.along.ravel().tolist()
    assert along == pytest.approx([50 / 11, 4 * 170 / 11])
    generator = torch.Generator().manual_seed(0)
    scales = torch.tensor([1e3, 1.0, 1.0, 1e-3]).double()
    x, y = (torch.randn(30, n, generator=generator, dtype=torch.float64) for n in (4, 2))
    x[:, 1] += 3 * x[:, 0]
    for ridge in (RIDGE, 0.5):
        plain, scaled = Affine.fit(x, y, ridge), Affine.fit(x * scales, y, ridge)
        assert_close(scaled(x * scales), plain(x))
        assert_close(scaled.steps, plain.steps * scales)


def test_what_never_varied_is_not_read():
    """A state of two numbers in five coordinates of unlike size: what is written beside it later changes nothing."""
    generator = torch.Generator().manual_seed(0)
    constant, turn = (
        torch.randn(*shape, generator=generator, dtype=torch.float64) for shape in ((30, 2), (2, 5))
    )
    x = constant @ turn * torch.tensor([100.0, 1, 1, 1, 0.01]).double()
    _, _, directions = torch.linalg.svd(x - x.mean(0))
    beside = directions[2:].sum(0)
    for ridge in (0.0, RIDGE):
        read = Affine.fit(x, constant, ridge)
        assert_close(read(x + beside), read(x))


def test_wide_features_give_the_map_that_narrow_ones_do():
    """Ten samples of six features, and the same features among forty of which the others never vary."""
    generator = torch.Generator().manual_seed(0)
    x, y, z = (
        torch.randn(n, k, generator=generator, dtype=torch.float64)
        for n, k in ((10, 6), (10, 3), (5, 6))
    )
    pad = functools.partial(torch.nn.functional.pad, pad=(20, 14), value=7.0)
    narrow, wide = Affine.fit(x, y, ridge=RIDGE), Affine.fit(pad(x), y, ridge=RIDGE)
    assert not is_wide(x)
    assert not is_wide(x[:6])
    assert is_wide(pad(x))
    assert_close(wide(pad(z)), narrow(z))
    assert_close(wide.steps[:, 20:26], narrow.steps)
    features = x - x.mean(0)
    scaled = features / units(features)
    weights = solve_ridge(scaled @ scaled.T, y - y.mean(0), 10, RIDGE)
    slopes = (scaled.T @ weights) / units(features)[:, None]
    assert_close(slopes, narrow.slopes)


CROSS = torch.tensor([[1.0, 2.0], [-1.0, -2.0], [1.0, 0.0], [-1.0, 0.0]], dtype=torch.float64)
"""Four samples of two features whose variances are 1 and 2 and whose covariance is 1."""


@pytest.mark.parametrize(
    ("column", "step"),
    [(0, (1, 1)), (1, (0.5, 1))],
    ids=["the first is decoded", "the second is decoded"],
)
def test_a_move_goes_where_latents_vary_with_what_is_decoded(column, step):
    """C A / (A^T C A): for each unit of the first feature the second rises by 1, its covariance over its variance."""
    latents = (CROSS + torch.tensor([10, 20])).unsqueeze(-2)
    single = Decoder.fit(latents, latents[:, 0, column])  # a state of one number, without an axis
    change = torch.tensor([3.0, 0.0, -1.0, 0.5])
    shifted = single.move(latents, change)
    assert_allclose((shifted - latents)[:, 0], np.outer(change, step), atol=1e-9)
    assert_allclose(single(shifted) - single(latents), change, atol=1e-9)
    moved_by_3 = single.move(latents, change[0]) - latents
    three_steps = [[np.multiply(3, step)]] * 4
    assert_allclose(moved_by_3, three_steps, atol=1e-9)
    joint = Decoder.fit(latents, latents[:, 0])  # decoded together, the other stays
    change = torch.eye(2, dtype=torch.float64)[[column] * 4]
    assert_allclose((joint.move(latents, change) - latents)[:, 0], change, atol=1e-9)


@pytest.mark.parametrize("shape", [(3, 4), (3, 2, 2)])
def test_a_move_changes_what_is_decoded_by_what_is_asked_for(held, shape):
    latents, states = held
    decoder = Decoder.fit(latents, states.reshape(12, 6, *shape))
    rng = np.random.default_rng(2)
    change = torch.from_numpy(rng.normal(size=(12, 6, *shape)))
    shifted = decoder.move(latents, change)
    assert decoder.shape == shape
    assert shifted.shape == latents.shape
    assert_allclose(decoder(shifted) - decoder(latents), change, atol=1e-9)
    once = decoder.move(latents, change[0, 0])
    same_everywhere = change[:1, :1].expand(12, 6, *shape)
    assert_allclose(decoder(once) - decoder(latents), same_everywhere, atol=1e-9)
    refuses(
        r"states have shape .* got a change of shape \(12, 6, 3, 3",
        decoder.move,
        latents,
        torch.zeros(12, 6, 3, 3),
    )


@pytest.mark.parametrize(
    ("n_folds", "seed", "decoded"),
    [
        (4, 0, [14 / 3, 13 / 3, 11 / 3, 7 / 3]),  # each by the other three
        (2, 0, [6, 6, 1.5, 1.5]),
        (2, 1, [5, 2.5, 5, 2.5]),
    ],
)
def test_folds_are_drawn_by_the_seed(n_folds, seed, decoded):
    """Latents that say nothing decode the mean state, 1, 2, 4 or 8, of the episodes outside the fold."""
    latents = torch.zeros(4, 1, 1, 2)
    states = 2.0 ** np.arange(4.0).reshape(4, 1)
    read = predict_across_folds(latents, states, n_folds=n_folds, seed=seed)
    assert read.ravel().tolist() == pytest.approx(decoded)


def test_five_folds_and_seed_0_are_meant_where_none_are_named(held):
    latents, states = held
    plain = predict_across_folds(latents, states, ridge=1.0)
    for options, same in (
        ({"n_folds": 5, "seed": 0}, True),
        ({"seed": 1}, False),
        ({"n_folds": 4}, False),
    ):
        assert (
            torch.equal(plain, predict_across_folds(latents, states, ridge=1.0, **options)) is same
        )


def test_what_is_decoded_was_held_out():
    """States that are noise cannot be read from other noise: fitted in place they would be read perfectly."""
    rng = np.random.default_rng(1)
    latents = torch.from_numpy(rng.normal(size=(10, 1, 1, 12)))
    states = rng.normal(size=(10, 1, 1))
    assert_allclose(Decoder.fit(latents, states)(latents), states, atol=1e-9)
    errors = predict_across_folds(latents, states).numpy() - states
    assert np.abs(errors).max() > 0.5


def test_what_does_not_fit_is_refused(held):
    latents, states = held
    refuses("at least 5 episodes, got 4", predict_across_folds, latents[:4], states[:4])
    refuses("needs 2 folds or more", predict_across_folds, latents, states, n_folds=0)
    refuses("leading axes of the latents", Decoder.fit, latents, states[:8])
