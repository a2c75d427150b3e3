"""Both kinds of probe are scikit-learn's nested cross-validation, split by episode."""

from dataclasses import replace

import numpy as np
import pytest
from numpy.testing import assert_allclose
from sklearn.linear_model import LogisticRegression, Ridge
from sklearn.metrics import r2_score
from sklearn.model_selection import GridSearchCV, GroupKFold
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from interp.stats.refit import sum_squared_deviations
from probes import estimators
from probes.controls import score_predictions
from probes.linear import ALPHAS, cross_validate
from probes.values import TargetValues

GRID = {"logisticregression__C": (0.01, 1.0, 100.0)}
FOLDS = np.arange(20) % 5


def _data(seed=0, n=20, t=12, d=9, k=3):
    rng = np.random.default_rng(seed)
    offsets = rng.normal(size=(n, 1, d))
    scaled = rng.normal(size=(n, t, d)) * np.logspace(-3, 3, d)
    x = scaled + 5 + offsets
    x[..., 4] = 2.5
    x[..., 7] = x[..., 0] - x[..., 1]
    signal = x @ rng.normal(size=(d, k)) * 1e-2
    noise = 3 * rng.normal(size=(n, t, k))
    y = signal + noise + 100
    return x, y


def _sklearn(x, targets, folds, estimator, grid, scoring, predict="predict"):
    """Out-of-fold predictions of Pipeline(StandardScaler, estimator) in GridSearchCV, both splits by GroupKFold."""
    n_folds = folds.max() + 1
    groups = np.repeat(folds, x.shape[1])
    rows = x.reshape(-1, x.shape[-1])
    predictions, chosen = {}, {}
    for train, test in GroupKFold(n_folds).split(rows, groups=groups):
        pipeline = make_pipeline(StandardScaler(), estimator)
        search = GridSearchCV(pipeline, grid, scoring=scoring, cv=GroupKFold(n_folds - 1))
        search.fit(rows[train], targets[train], groups=groups[train])
        predictions |= zip(test.tolist(), getattr(search, predict)(rows[test]), strict=True)
        (chosen[groups[test][0]],) = search.best_params_.values()
    in_order = np.stack([predictions[i] for i in range(len(rows))])
    return in_order, [chosen[fold] for fold in range(n_folds)]


@pytest.mark.long
def test_equals_sklearn_nested_cross_validation():
    x, y = _data()
    ours = cross_validate(x, y, FOLDS, np.zeros(3, int))
    theirs, alphas = _sklearn(
        x, y.reshape(-1, 3), FOLDS, Ridge(), {"ridge__alpha": ALPHAS}, "neg_mean_squared_error"
    )
    assert ours.alphas[:, 0].tolist() == alphas
    assert_allclose(ours.predictions.reshape(theirs.shape), theirs, atol=1e-6, rtol=0)


@pytest.mark.long
@pytest.mark.parametrize(
    ("d", "apart"), [(4, 1e-9), (150, 2e-3)]
)  # more features than rows: where L-BFGS stops
def test_logistic_probabilities_equal_sklearns(d, apart):
    rng = np.random.default_rng(0)
    x = rng.normal(size=(15, 6, d))
    scores = x @ rng.normal(size=(d, 3))
    y = (scores + rng.normal(size=(15, 6, 3))).argmax(-1)
    x[..., 0] = 1.0  # constant
    (ours,) = estimators.cross_validate(x, FOLDS[:15], [(y, 3)])
    estimator = LogisticRegression(max_iter=1000), GRID, "neg_log_loss", "predict_proba"
    theirs, _ = _sklearn(x, y.reshape(-1), FOLDS[:15], *estimator)
    assert_allclose(ours.probabilities.reshape(theirs.shape), theirs, atol=apart)


@pytest.mark.long
@pytest.mark.parametrize("d", [4, 150])  # 150: more features than training rows
def test_probabilities_of_two_classes_equal_sklearns(d):
    """Newton's method ends at the optimum of scikit-learn's, also where the classes are separable."""
    rng = np.random.default_rng(1)
    x = rng.normal(size=(15, 6, d))
    x[..., 0] = 1.0  # constant
    scores = x @ rng.normal(size=d)
    y = (scores > 0.3).astype(int)
    (ours,) = estimators.cross_validate(x, FOLDS[:15], [(y, 2)])
    regression = LogisticRegression(solver="newton-cholesky", tol=1e-12, max_iter=1000)
    theirs, penalties = _sklearn(
        x, y.reshape(-1), FOLDS[:15], regression, GRID, "neg_log_loss", "predict_proba"
    )
    assert ours.chosen == penalties
    assert_allclose(ours.probabilities, theirs, atol=1e-7)


def test_weights_of_two_classes_equal_sklearns():
    """The weights of the refit are those of the standardised inputs, for raw inputs."""
    rng = np.random.default_rng(2)
    x = 5 + 3 * rng.normal(size=(15, 6, 4))
    y = (x[..., 0] + rng.normal(size=(15, 6)) > 5).astype(int)
    (ours,) = estimators.cross_validate(x, FOLDS[:15], [(y, 2)])
    weights, intercept, penalties = ours.refit
    regression = LogisticRegression(C=penalties[-1], solver="newton-cholesky", tol=1e-12)
    rows = x.reshape(-1, 4)
    theirs = make_pipeline(StandardScaler(), regression).fit(rows, y.reshape(-1))
    scores = theirs.decision_function(rows)
    assert_allclose((rows @ weights + intercept)[:, 0], scores, atol=1e-7)


def test_of_penalties_that_tie_the_largest_is_taken():
    """A target that is 0 leaves no error, whatever the penalty; the other's own signal wants the smallest."""
    x, _ = _data()
    y = np.stack([np.zeros(x.shape[:2]), x[..., 8]], -1)
    fit = cross_validate(x, y, FOLDS, np.array([0, 1]))
    chosen = [ALPHAS[-1], ALPHAS[0]]
    assert fit.alpha.tolist() == chosen
    assert fit.alphas.tolist() == [chosen] * 5


def test_each_target_chooses_its_own_penalty():
    """Targets fitted together equal targets fitted alone."""
    x, y = _data(1)
    rng = np.random.default_rng(0)
    y[..., 2] = rng.normal(size=y.shape[:2])
    together = cross_validate(x, y, FOLDS, np.array([0, 0, 1]))
    first_target = cross_validate(x, y[..., :2], FOLDS, np.array([0, 0]))
    second_target = cross_validate(x, y[..., 2:], FOLDS, np.array([0]))
    alone = np.concatenate([first_target.predictions, second_target.predictions], -1)
    assert_allclose(together.predictions, alone, atol=1e-9)
    assert (together.alphas[:, 1] > together.alphas[:, 0]).all()


def test_refit_is_ridge_on_raw_inputs():
    """The weights undo the input scaling: on raw inputs they give the pipeline's predictions."""
    x, y = _data(2)
    ours = cross_validate(x, y, FOLDS, np.zeros(3, int))
    rows = x.reshape(-1, x.shape[-1])
    pipeline = make_pipeline(StandardScaler(), Ridge(alpha=ours.alpha[0]))
    expected = pipeline.fit(rows, y.reshape(-1, 3)).predict(rows)
    predictions = rows @ ours.weights + ours.intercept
    assert_allclose(predictions, expected, atol=1e-6)


def test_r2_is_sklearns_but_for_the_optimism_of_the_mean():
    """The reference is not that of the same episodes' mean: sum_squared_deviations of interp.stats.refit, at
    most n / (n - 1) times."""
    rng = np.random.default_rng(0)
    y = rng.normal(size=(6, 7, 3)) * [1, 10, 0.1] + 4
    predictions = y + rng.normal(size=y.shape)
    probe = score_predictions(TargetValues.of(y), predictions, np.arange(6), dict)
    each_r2 = [score.estimate for score in probe.details()["by_output"].values()]
    metrics = probe.details()["metrics"]
    assert set(metrics) == {"r2", "mae"}
    mean_error = np.abs(y - predictions).mean()
    assert metrics["mae"].estimate == pytest.approx(mean_error)
    flat = y.reshape(-1, 3), predictions.reshape(-1, 3)
    plain = ((y - y.mean((0, 1))) ** 2).sum((0, 1))
    larger = sum_squared_deviations(y).sum(0)
    assert (plain <= larger).all()
    assert (larger <= plain * 6 / 5).all()
    expected = 1 - (1 - r2_score(*flat, multioutput="raw_values")) * plain / larger
    assert_allclose(each_r2, expected)
    missed = 1 - r2_score(*flat, multioutput="variance_weighted")
    optimism = plain.sum() / larger.sum()
    assert_allclose(probe.score.estimate, 1 - missed * optimism)


def test_groups_of_episodes_are_one_long_episode():
    """Totals and errors of groups are those of their episodes one after another, whatever their order and size."""
    rng = np.random.default_rng(1)
    y = rng.normal(size=(8, 3, 2))
    groups = np.array([2, 0, 0, 1, 2, 0, 3, 4])
    probe = score_predictions(TargetValues.of(y), np.zeros_like(y), groups, dict)
    scores = probe.details()["by_output"].values()
    errors = np.stack([score.losses for score in scores], -1)
    total = np.stack([score.references for score in scores], -1)
    for group in range(5):
        rows = y[groups == group].reshape(-1, 2)
        assert_allclose(errors[group], (rows**2).sum(0))
        centred = rows - y.mean((0, 1))
        n_others = 24 - len(rows)
        optimism = centred.sum(0) ** 2 / n_others
        assert_allclose(total[group], (centred**2).sum(0) + optimism)


def test_masked_entries_count_nowhere():
    rng = np.random.default_rng(0)
    y = rng.normal(size=(6, 7, 2))
    predictions = y + rng.normal(size=y.shape)
    mask = rng.random(y.shape) < 0.5
    y_other, predictions_other = np.where(mask, y, 99.0), np.where(mask, predictions, -7.0)
    targets = [replace(TargetValues.of(true), mask=mask) for true in (y, y_other)]
    estimates = []
    for target, predicted in zip(targets, (predictions, predictions_other), strict=True):
        probe = score_predictions(target, predicted, np.arange(6), dict)
        by_output = probe.details()["by_output"]
        estimates.append([score.estimate for score in by_output.values()])
    assert_allclose(estimates[0], estimates[1])
    is_scored = mask[..., 0]
    plain = r2_score(y[..., 0][is_scored], predictions[..., 0][is_scored])
    first_output = estimates[0][0]
    assert 0 < first_output - plain <= (1 - plain) / 6
