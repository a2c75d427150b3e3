"""The experts task: regimes have the statistics they state, seeds fix the bytes, bad data is refused in a sentence."""

from dataclasses import replace

import numpy as np
import pytest

from interp.tasks.experts import REGIMES, ExpertEpisodes, ExpertRegime, get_regime, sample
from tests.refusals import refuses

SIZES = (1, 2, 4, 7)


@pytest.mark.parametrize("name", REGIMES)
@pytest.mark.parametrize("n_experts", SIZES)
def test_every_regime_gives_valid_episodes_or_refuses_a_size(name, n_experts):
    if n_experts < REGIMES[name].min_experts:
        refuses(f"regime '{name}' needs n_experts >= ", sample, 3, 60, n_experts, name)
        return
    episodes = sample(3, 60, n_experts, name, seed=5)
    assert episodes.advice.shape == (3, 60, n_experts)
    assert episodes.labels.shape == (3, 60)
    moving = name.startswith("switch") or name == "drift"
    assert episodes.accuracies.shape == ((3, 60, n_experts) if moving else (3, n_experts))
    assert episodes.accuracies_by_round.shape == episodes.advice.shape
    assert len(episodes) == 3
    assert episodes.n_rounds == 60
    assert episodes.n_experts == n_experts
    assert episodes.regime == name
    assert episodes.seed == 5


@pytest.mark.parametrize(
    "name", [n for n, r in REGIMES.items() if r.drift_std is None and r.switch_every is None]
)
def test_fixed_accuracies_lie_in_the_slots_of_the_regime_and_identities_are_permuted(name):
    slots = REGIMES[name].list_intervals(4)
    accuracies = sample(4000, 1, 4, name, seed=2).accuracies
    low = np.sort([s[0] for s in slots])
    high = np.sort([s[1] for s in slots])
    # Sorted accuracies lie between the sorted bounds: a consequence of each lying in its own slot.
    ordered = np.sort(accuracies, axis=-1)
    assert (ordered >= low).all()
    assert (ordered <= high).all()
    # Every identity has the same mean, that of the slots, within 5 standard errors.
    expected = np.mean(slots)
    standard_error = accuracies.std(axis=0) / np.sqrt(len(accuracies)) + 1e-12
    differences = np.abs(accuracies.mean(axis=0) - expected)
    assert (differences < 5 * standard_error).all()


@pytest.mark.parametrize(
    ("name", "slots"),
    [
        ("uniform", ((0.3, 0.9), (0.3, 0.9), (0.3, 0.9), (0.3, 0.9))),
        ("stratified", ((0.9, 1), (0.65, 0.8), (0.55, 0.7), (0.45, 0.6))),
        ("flat", ((0.6, 0.7), (0.4, 0.6), (0.4, 0.6), (0.4, 0.6))),
        ("anti-signal", ((0.6, 0.7), (0, 0.1), (0.4, 0.6), (0.4, 0.6))),
        ("2-real", ((0.6, 0.85), (0.6, 0.85), (0.5, 0.5), (0.5, 0.5))),
        ("dominant", ((0.9, 0.9), (0.35, 0.5), (0.35, 0.5), (0.35, 0.5))),
        ("close", ((0.55, 0.65), (0.55, 0.65), (0.55, 0.65), (0.55, 0.65))),
        ("correlated-0.7", ((0.4, 0.8), (0.4, 0.8), (0.4, 0.8), (0.4, 0.8))),
        ("3-high-quality", ((0.9, 1), (0.9, 1), (0.9, 1), (0.3, 0.9))),
    ],
)
def test_four_expert_slots_are_those_the_paper_and_its_code_state(name, slots):
    assert tuple(REGIMES[name].list_intervals(4)) == slots


@pytest.mark.parametrize("name", ["uniform", "anti-signal", "switch-25", "drift", "correlated-0.3"])
def test_experts_are_right_as_often_as_their_accuracies_say(name):
    episodes = sample(2000, 100, 4, name, seed=1)
    excess = (episodes.correct - episodes.accuracies_by_round).mean(axis=1)
    if name.startswith("correlated"):
        # In shared rounds everyone is right with the mean accuracy, so only the mean over experts is unbiased.
        excess = excess.mean(axis=-1, keepdims=True)
    standard_error = excess.std(axis=0) / np.sqrt(len(episodes))
    assert (np.abs(excess.mean(axis=0)) < 5 * standard_error).all()
    error_of_labels = 0.5 / np.sqrt(episodes.labels.size)
    assert abs(episodes.labels.mean() - 0.5) < 5 * error_of_labels


@pytest.mark.parametrize("every", [10, 25, 50])
def test_switching_changes_the_best_expert_exactly_every_m_rounds(every):
    accuracies = sample(200, 100, 4, f"switch-{every}", seed=3).accuracies
    assert set(np.unique(accuracies)) == {0.4, 0.85}
    assert ((accuracies == 0.85).sum(axis=-1) == 1).all()
    best = accuracies.argmax(axis=-1)
    changes = best[:, 1:] != best[:, :-1]
    in_all_episodes = changes.all(axis=0)
    rounds = np.flatnonzero(in_all_episodes) + 1
    assert rounds.tolist() == list(range(every, 100, every))
    assert (changes.any(axis=0) == in_all_episodes).all()


def test_drift_moves_by_clipped_gaussian_steps_of_the_stated_size():
    accuracies = sample(500, 100, 4, "drift", seed=4).accuracies
    assert accuracies[:, 0].min() >= 0.4
    assert accuracies[:, 0].max() <= 0.8
    assert accuracies.min() >= 0.2
    assert accuracies.max() <= 0.95
    inside = (accuracies[:, :-1] > 0.4) & (accuracies[:, :-1] < 0.75)
    steps = np.diff(accuracies, axis=1)[inside]
    assert steps.std() == pytest.approx(0.02, rel=0.02)
    standard_error = 0.02 / np.sqrt(steps.size)
    assert abs(steps.mean()) < 5 * standard_error


@pytest.mark.parametrize("c", [0.3, 0.7, 0.9])
def test_correlated_experts_agree_as_often_as_the_mixture_says(c):
    episodes = sample(3000, 50, 4, f"correlated-{c}", seed=6)
    all_agree = (episodes.advice == episodes.advice[..., :1]).all(axis=-1)
    q = episodes.accuracies
    by_chance = q.prod(axis=-1) + (1 - q).prod(axis=-1)
    expected = c + (1 - c) * by_chance
    difference = all_agree.mean(axis=1) - expected
    standard_error = difference.std() / np.sqrt(len(difference))
    assert abs(difference.mean()) < 5 * standard_error


def test_same_seed_same_bytes_and_labels_do_not_depend_on_the_regime_or_the_experts():
    first, again = sample(5, 40, 4, "drift", seed=9), sample(5, 40, 4, "drift", seed=9)
    for name in ("advice", "labels", "accuracies"):
        assert getattr(first, name).tobytes() == getattr(again, name).tobytes()
    for sampled in (
        sample(5, 40, 4, "uniform", seed=9),
        sample(5, 40, 9, "correlated-0.9", seed=9),
    ):
        assert (sampled.labels == first.labels).all()
    assert (sample(5, 40, 4, "drift", seed=10).labels != first.labels).any()


def test_more_episodes_extend_fewer_at_the_same_seed():
    few, many = sample(3, 20, 4, seed=1), sample(8, 20, 4, seed=1)
    assert (many.labels[:3] == few.labels).all()
    assert (many.advice[:3] == few.advice).all()


def test_select_keeps_episodes_whole_and_replace_validates_again():
    episodes = sample(6, 10, 3, "switch-10", seed=0)
    some = episodes.select([4, 1])
    assert (some.advice == episodes.advice[[4, 1]]).all()
    assert (some.accuracies == episodes.accuracies[[4, 1]]).all()
    assert len(episodes.select(slice(2, 5))) == 3
    assert len(episodes.select(np.array([True, False, True, False, False, False]))) == 2
    assert some.regime == "switch-10"
    assert some.seed == 0
    inverted = replace(episodes, advice=1 - episodes.advice)
    assert (inverted.correct != episodes.correct).all()
    refuses("labels have shape", replace, episodes, labels=episodes.labels[:, 1:])
    refuses(r"cannot select \[7\] from 6 episodes", episodes.select, [7])
    refuses("selects no", episodes.select, slice(0, 0))


def test_a_variant_is_a_derived_record():
    slow = replace(REGIMES["drift"], name="slow", drift_std=0.001)
    episodes = sample(10, 50, 4, slow)
    assert episodes.regime == "slow"
    assert episodes.params["drift_std"] == 0.001
    steps = np.diff(episodes.accuracies, axis=1)
    assert np.abs(steps).max() < 0.01
    assert get_regime(slow) is slow


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            {"advice": np.full((2, 3, 4), 2)},
            r"advice must be whole numbers from 0 to 1, got 2 at \[0, 0, 0\]",
        ),
        (
            {"advice": np.full((2, 3, 4), np.nan)},
            "advice must be whole numbers from 0 to 1, got nan",
        ),
        (
            {"labels": np.array([[0, 1, 0], [0, -1, 0]])},
            r"labels must be whole .* 0 to 1, got -1 at \[1, 1\]",
        ),
        (
            {"labels": np.zeros(3, int)},
            r"labels must be an array \[episode, round\], got shape \(3,\)",
        ),
        (
            {"accuracies": np.full((2, 4), np.nan)},
            "accuracies must be finite numbers from 0 to 1, got nan",
        ),
        (
            {"accuracies": np.full((2, 4), 1.5)},
            "accuracies must be finite numbers from 0 to 1, got 1.5",
        ),
        ({"accuracies": np.full((2, 5), 0.5)}, "accuracies have shape"),
        ({"accuracies": np.full((2, 4), "high")}, "accuracies must be numbers"),
        ({"advice": np.zeros((2, 0, 4), int)}, "advice must be a non-empty array"),
    ],
)
def test_bad_data_is_refused_in_a_sentence(change, message):
    good = {
        "advice": np.zeros((2, 3, 4), int),
        "labels": np.zeros((2, 3), int),
        "accuracies": np.full((2, 4), 0.5),
    }
    assert len(ExpertEpisodes(**good)) == 2
    refuses(message, ExpertEpisodes, **{**good, **change})


def test_bad_requests_are_refused_in_a_sentence():
    refuses("n_experts must be an integer >= 1, got 0", sample, 2, 3, n_experts=0)
    refuses("n_episodes must be an integer >= 1, got 0", sample, 0, 3, n_experts=4)
    refuses("n_rounds must be an integer >= 1, got -1", sample, 2, -1, n_experts=4)
    refuses("seed must be an integer >= 0, got -1", sample, 2, 3, 4, seed=-1)
    message = "unknown regime 'unifrom'; did you mean 'uniform'"
    refuses(message, sample, 2, 3, 4, regime="unifrom")
    refuses("did you mean 'switch-.0'", sample, 2, 3, 4, regime="switch-20")


@pytest.mark.parametrize(
    "fields",
    [
        {"rest": (0.5, 1.2)},
        {"rest": (0.6, 0.5)},
        {"rest": (0.0, 1.0), "correlation": 2.0},
        {"rest": (0.0, 1.0), "switch_every": 0, "min_experts": 2},
        {"rest": (0.0, 1.0), "switch_every": 5},
        {"rest": (0.0, 1.0), "drift_std": 0.0},
        {"rest": (0.0, 1.0), "drift_std": 0.1, "correlation": 0.5},
    ],
)
def test_a_regime_that_cannot_be_drawn_is_refused(fields):
    refuses("regime 'odd'", ExpertRegime, "odd", "", **fields)


@pytest.mark.parametrize("name", REGIMES)
def test_a_regime_is_made_from_its_parameters(name):
    params = REGIMES[name].params
    assert ExpertRegime.from_params(name, params).params == params


@pytest.mark.parametrize(
    ("params", "message"),
    [
        ([1], r"params must be a mapping of a text to anything, got \[1\]"),
        ({"first": []}, r"parameters of regime 'odd' must hold 'rest', .* got \['first'\]; take"),
        ({"rest": [0, 1], "min_experts": 1}, "unknown parameter of a regime 'min_experts'"),
        ({"rest": [0, 1], "first": 3}, "first must be a list"),
    ],
)
def test_parameters_that_no_regime_has_are_refused(params, message):
    refuses(message, ExpertRegime.from_params, "odd", params)
