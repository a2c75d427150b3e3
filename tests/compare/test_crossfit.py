"""Cross-fitted scores by hand: the interval, the folds, and that no episode meets a map that has seen it."""

import math

import numpy as np
import pytest
import torch
from scipy.stats import t

import interp
from circuits.compare import state
from circuits.compare.question import (
    Budget,
    CrossFitted,
    Participant,
    Samples,
    fit_crossfitted_writer,
    pool_runs,
    pool_values,
    score_maps,
)
from circuits.compare.state import map_latents, stitch
from interp.stats.decoder import RIDGE, Decoder
from interp.support.session import session
from interp.tasks.experts.algorithms import weighted_majority
from lab import known

SMALL = Budget(known=11, test=8, rounds=8, starts=2, horizon=2, battery=4, untrained=1, seed=2)


@pytest.fixture(scope="module")
def pair():
    models = interp.load("wma-learned-additive"), interp.load("wma-handwired", n_experts=4).double()
    samples = Samples.draw(models[0], SMALL, {"n_experts": 4})
    with session():
        yield [Participant(model, samples) for model in models]


def test_the_interval_is_that_of_the_log_of_the_ratio():
    """Of four episodes that miss 1, 2, 3 and 2 of 8 each: contributions -.5, 0, .5 and 0."""
    standard_error = math.sqrt(0.5 / 3) / 2
    half = math.sqrt(2) * t.ppf(0.975, 3) * standard_error
    score = score_maps([1.0, 2.0, 3.0, 2.0], [8.0, 8.0, 8.0, 8.0])
    assert score.estimate == pytest.approx(0.75)
    assert score.low == pytest.approx(1 - 0.25 * math.exp(half))
    assert score.high == pytest.approx(1 - 0.25 * math.exp(-half))
    weighed = score_maps([1.0, 4.0], [8.0, 16.0])  # contributions 2 (1/5 - 1/3) and its opposite
    standard_error = 4 / 15
    half = math.sqrt(2) * t.ppf(0.975, 1) * standard_error
    assert weighed.low == pytest.approx(1 - 5 / 24 * math.exp(half))


def test_nothing_missed_is_1_exactly():
    assert vars(score_maps([0.0, 0.0], [1.0, 2.0])) == {"estimate": 1.0, "low": 1.0, "high": 1.0}


@pytest.mark.parametrize(
    ("missed", "totals"),
    [
        ([1.0, 2.0], [0.0, 0.0]),
        ([1.0, math.inf], [1.0, 1.0]),
        ([1.0, 1.0], [math.nan, 1.0]),
    ],
    ids=["nothing to miss", "an infinite miss", "no total"],
)
def test_what_has_no_score_is_nan(missed, totals):
    score = vars(score_maps(missed, totals))
    assert all(math.isnan(value) for value in score.values())


def test_a_pool_is_the_known_and_then_the_test_episodes(pair):
    subject, algorithm = pair[1], weighted_majority(0.5)
    run, values = pool_runs(subject), pool_values(algorithm, subject.samples)
    for rows, episodes in (
        (slice(11), subject.samples.known),
        (slice(11, None), subject.samples.test),
    ):
        whole_run, cut = subject.run(episodes), run.select(rows)
        assert torch.equal(cut.latents, whole_run.latents)
        assert torch.equal(cut.predictions, whole_run.predictions)
        fed_to_whole_run = whole_run.fed.tensors()
        for name, part in cut.fed.tensors().items():
            assert torch.equal(part, fed_to_whole_run[name])
        for key, value in algorithm.run(episodes).items():
            assert np.array_equal(values[key][rows], value)


def test_every_episode_is_read_and_moved_by_the_fit_of_its_own_fold():
    """Fits that multiply by 1 to 5: what is read says which fit it was."""
    x = torch.randn(12, 3, 1, 2, dtype=torch.float64)
    first_number = x[..., 0, :1]
    fits = [Decoder.fit(x, factor * first_number.numpy()) for factor in range(1, 6)]
    first = fits[0]
    crossed = CrossFitted(
        first.affine, first.shape, fits=tuple(fits), fold=(0, 1, 2, 3, 4) * 2 + (0, 1)
    )
    factors = torch.tensor([1.0, 2, 3, 4, 5, 1, 2, 3, 4, 5, 1, 2]).double()
    assert torch.allclose(crossed(x), factors.view(-1, 1, 1) * first_number)
    rows = slice(3, 8)
    part = crossed.select_episodes(rows)
    assert torch.allclose(part(x[rows]), crossed(x)[rows])
    change = torch.randn(5, 3, 1, dtype=torch.float64)
    shifted = part.move(x[rows], change)
    assert torch.allclose(part(shifted) - part(x[rows]), change)


def test_no_episode_meets_a_map_that_has_seen_it(pair):
    """What is changed in one episode changes the maps of the other folds and not that of its own."""
    source, target = pair
    decoder = fit_crossfitted_writer(source, weighted_majority(0.5), ("log_weights",)).decoder
    latents = pool_runs(source).latents[:, :-1]
    values = pool_values(weighted_majority(0.5), source.samples)
    in_others = np.arange(19) % 5 != 2
    by_hand = Decoder.fit(
        latents[torch.from_numpy(in_others)], values["log_weights"][in_others], ridge=RIDGE
    )
    assert torch.allclose(decoder(latents)[2::5], by_hand(latents[2::5]))
    assert not torch.allclose(decoder(latents)[1::5], by_hand(latents[1::5]), atol=1e-6)

    before = map_latents(source, target, SMALL, ("round",), RIDGE)
    assert before.shape == (19, 2, *pool_runs(target).latents.shape[2:])
    with session():
        goal, mine = pool_runs(target).latents, 4
        goal_before = goal[mine].clone()
        goal[mine] += 1.0
        after = map_latents(source, target, SMALL, ("round",), RIDGE)
        goal[mine] = goal_before
    is_changed = (after - before).abs().amax((1, 2, 3)) > 1e-9
    assert is_changed.tolist() == [k % 5 != 4 for k in range(19)]


@pytest.mark.long
def test_a_machine_holds_its_own_state_exactly_and_either_order_says_the_same(pair, monkeypatch):
    learned, wired = pair
    exact = stitch(wired, Participant(wired.model, wired.samples, "again"), [], SMALL)
    for stitching in exact.stitchings:
        if not stitching.control:
            assert stitching.score.low == 1.0
        elif stitching.control == "shuffled":  # other episodes' latents
            assert stitching.score.high < 0.5
    penalties = []

    def map_and_record(source, target, budget, supplied, ridge, shuffled=False):
        if source is learned:
            penalties.append(ridge)
        return map_latents(source, target, budget, supplied, ridge, shuffled)

    monkeypatch.setattr(state, "map_latents", map_and_record)
    direct, swapped = stitch(learned, wired, [], SMALL), stitch(wired, learned, [], SMALL)
    key = lambda s: (s.source, s.target, s.supplied, s.control)  # noqa: E731
    assert sorted(direct.stitchings, key=key) == sorted(swapped.stitchings, key=key)
    assert direct.worth == swapped.worth
    assert penalties[-1] == RIDGE  # without one a map is hardly better


@pytest.mark.long
def test_a_map_goes_without_a_penalty_where_that_adds_a_hundredth():
    """A table by algorithm, of which many numbers hardly vary, is the handwired one; a penalty made it another."""
    budget = Budget(known=32, test=12, rounds=16, starts=2, horizon=3, battery=4, untrained=1)
    reference = known.reference("qlearning")
    algorithm = known.gallery("qlearning")["by algorithm"].make()
    samples = Samples.draw(reference, budget, {"n_states": 4, "n_actions": 3})
    source, target = (
        Participant(algorithm, samples, "by algorithm"),
        Participant(reference, samples),
    )
    (score,) = [
        stitching.score
        for stitching in stitch(source, target, [], budget).stitchings
        if (stitching.source, stitching.supplied, stitching.control)
        == ("by algorithm", ("round",), "")
    ]
    assert score.low > 0.95
