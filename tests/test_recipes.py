"""Every recipe of docs/howto/recipes.md beside the same answer computed by hand, with NumPy alone."""

from typing import Any

import numpy as np
import pytest

from tests.test_documented_numbers import count_agreement, count_hits, scope_of, vote
from tests.test_tutorials import DOCS, RUN

PAGE = DOCS / "howto" / "recipes.md"
GAIN = 0.5
"""By how much a hit raises a log-weight of wma-handwired."""


@pytest.fixture(scope="module")
def scope() -> dict[str, Any]:
    return scope_of("howto/recipes.md")


def test_a_recipe_is_at_most_six_lines() -> None:
    """Beside the imports, and the first block, which all recipes share."""
    _, *recipes = RUN.findall(PAGE.read_text(encoding="utf-8"))
    assert len(recipes) == 9
    for recipe in recipes:
        lines = [
            line for line in recipe.splitlines() if line and not line.startswith(("from", "import"))
        ]
        assert len(lines) <= 6, recipe


@pytest.mark.long
def test_a_patched_head_votes_by_the_other_episodes_weights_from_round_10_on(scope: Any) -> None:
    """L1H0 brings the log-weights to the prediction: those of `others` weigh the votes of `episodes`."""
    episodes, others = scope["episodes"], scope["others"]
    own_vote = vote(episodes, GAIN * count_hits(episodes)[:, :-1])
    patched = vote(episodes, GAIN * count_hits(others)[:, :-1])
    expected = abs(patched - own_vote).mean(0)[10:]
    assert scope["effect"]["round"].tolist() == list(range(10, 20))
    assert scope["effect"]["mean"].to_numpy() == pytest.approx(expected)


@pytest.mark.long
def test_a_heat_map_holds_the_cross_validated_r2_of_ridge_regression(scope: Any) -> None:
    """One cell by the normal equations: layer 2, round 7, four folds of eight episodes."""
    x = scope["x"][2][:, 7].astype(np.float64)
    y = scope["y"][:, 7]
    scores = []
    for fold in np.split(np.arange(32), 4):
        known = np.setdiff1d(np.arange(32), fold)
        centre = x[known].mean(0)
        middle = y[known].mean(0)
        features = x[known] - centre
        gram = features.T @ features + np.eye(features.shape[1])
        slopes = np.linalg.solve(gram, features.T @ (y[known] - middle))
        residual = y[fold] - middle - (x[fold] - centre) @ slopes
        total = y[fold] - y[fold].mean(0)
        scores.append(np.mean(1 - (residual**2).sum(0) / (total**2).sum(0)))
    assert scope["r2"][2][7] == pytest.approx(np.mean(scores), abs=1e-3)


def test_swapped_latents_go_on_by_the_inputs_of_the_episode_that_they_are_put_into(
    scope: Any,
) -> None:
    pair = scope["episodes"].select([0, 1])
    hits = count_hits(pair)
    swapped = hits + (hits[[1, 0]] - hits)[:, [5]]
    expected = vote(pair, GAIN * swapped[:, :-1])[:, 5:]
    assert scope["result"].values[0, :, :, 1].numpy() == pytest.approx(expected)


def test_a_view_opens_at_round_12_for_both_machines(scope: Any) -> None:
    for view, run in zip(scope["views"], scope["runs"], strict=True):
        _, row = view.first
        assert view.rounds[row] == 12
        pattern = run.cache["blocks.0.attn.hook_pattern"][0, 12].numpy()
        assert np.array_equal(view.patterns[0][0, row], pattern)


def test_the_gru_agrees_with_the_table_as_often_as_counted_by_hand(scope: Any) -> None:
    agreed = count_agreement(scope["worlds"], scope["choices"])["untied"]
    assert scope["agreed"] == pytest.approx(np.mean(agreed))


def test_the_principal_components_are_those_of_a_singular_value_decomposition(scope: Any) -> None:
    points = scope["points"].astype(np.float64)
    variances = np.linalg.svd(points - points.mean(0), compute_uv=False) ** 2
    expected = variances[:4] / variances.sum()
    assert scope["pca"].explained_variance_ratio_ == pytest.approx(expected, abs=1e-5)


def test_the_algorithm_beside_a_steered_weight_is_a_vote_with_that_weight_raised(
    scope: Any,
) -> None:
    episodes = scope["episodes"]
    log_weights = GAIN * count_hits(episodes)[:, 10]
    says_yes = episodes.advice[:, 10]
    for row, dose in zip(scope["steered"].algorithm, scope["doses"].sizes, strict=True):
        weights = np.exp(log_weights + dose * np.array([1.0, 0, 0, 0]))
        shares = weights / weights.sum(-1, keepdims=True)
        with_the_first = (shares * (says_yes == says_yes[:, :1])).sum(-1)
        assert row == pytest.approx(with_the_first)


def test_without_its_latent_the_handwired_machine_is_a_majority_vote(scope: Any) -> None:
    """Mistakes of a vote with equal weights (a tie is half a mistake) beyond those of the best expert."""
    episodes = scope["episodes"]
    share = episodes.advice.mean(-1)
    decision = np.where(share == 0.5, 0.5, share > 0.5)
    mistakes = abs(decision - episodes.labels).sum(1)
    best = (episodes.advice != episodes.labels[..., None]).sum(1).min(-1)
    whole, blind = scope["regrets"]
    assert blind == pytest.approx((mistakes - best).mean())
    assert whole < blind - 1


def test_a_memory_handed_to_an_algorithm_is_counts_of_hits(scope: Any) -> None:
    """The decoded counts lie near the hits before round 10, and the algorithm votes by them in that round."""
    handed = scope["to_algorithm"]
    hits = GAIN * count_hits(scope["episodes"])
    differs = scope["differs"].sort_values(["episode", "element"])
    decoded = differs["first"].to_numpy().reshape(32, 4)
    exact = differs["second"].to_numpy().reshape(32, 4)
    assert exact == pytest.approx(hits[:, 10], abs=1e-4)
    assert np.corrcoef(decoded.ravel(), exact.ravel())[0, 1] > 0.95
    expected = vote(scope["episodes"], hits[:, :-1])[:, 10]
    assert abs(handed.handed_over[:, 0, 1] - expected).mean() < 0.02
    assert scope["handed"].share.low > 0.9
