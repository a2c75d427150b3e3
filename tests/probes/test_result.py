"""What a result says: its measure, every number, what weakens it; and what may be given as numbers."""

import json
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
import torch
from sklearn.ensemble import RandomForestRegressor
from sklearn.linear_model import LinearRegression, LogisticRegression, Ridge
from sklearn.neighbors import KNeighborsRegressor
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

import interp
import probes
from interp.stats import refit
from probes.controls import score_predictions
from probes.targets import TargetValues
from tests.refusals import refuses

N, T = 24, 8


@pytest.fixture(scope="module")
def data():
    """Activations, a target that they hold (R2 about .8), noise, and inputs and an untrained model that say nothing."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(N, T, 4))
    state_part = x[..., :1] + 0.5 * rng.normal(size=(N, T, 1))
    control_values = {"noise": rng.normal(size=(N, T, 1)), "inputs": rng.normal(size=(N, T, 2))}
    return {"x": x, "held": state_part, **control_values, "untrained": rng.normal(size=(N, T, 4))}


def controls(data, *names):
    return {name: data[name] for name in names or ("inputs", "untrained")}


def test_a_constant_of_episodes_with_many_features_is_told_and_not_denied():
    """16 features of 20 episodes: a number that they do not hold is no "no", with the reason; 2 of 96 can deny it.

    Features that do not vary do not count, and nor does a target that changes within episodes.
    """
    rng = np.random.default_rng(3)
    noise = rng.normal(size=(96, 1, 1)) * np.ones((96, T, 1))
    rounds = rng.normal(size=(96, T, 16))
    few = probes.fit(rounds[:20], noise[:20])
    assert few.verdict == "undecided"
    assert "about 32 would do" in few.measure.unless["no"]
    assert "is nearly constant within episodes (at least nine tenths of its variance" in few.warning
    assert few.warning in str(few)
    still = np.concatenate([rounds[..., :2], np.ones((96, T, 30))], -1)
    for many in (probes.fit(rounds[..., :2], noise), probes.fit(still, noise)):
        assert many.verdict == "no"
        assert many.warning is None
    assert probes.fit(rounds[:20], rounds[:20, :, :1] ** 2).warning is None


def test_a_result_says_what_it_is_about(data):
    result = probes.fit(data["x"], data["held"], **controls(data))
    assert result.verdict == "yes"
    assert result.reason == ""
    assert result["target"] == result.measure
    assert list(result) == [result.measure]
    assert f": R2 on new episodes of this probe, refitted on all {N} episodes" in str(result)
    numbers = f"R2 {result.r2:.3g}; {result.measure.strongest} "
    assert str(result).startswith(
        f"A linear probe reads the target from the activations ({numbers}"
    )
    frame = result.to_frame()
    assert list(frame["verdict"]) == ["yes"]
    assert frame["claim"].item() == "A linear probe reads the target from the activations"
    scores = result.scores()
    assert 0 < scores["detectable"].iloc[0] < 1
    assert set(scores["fitted"]) == {
        "probe",
        *result.controls,
    }
    assert scores.query("fitted != 'probe'")["difference_low"].notna().all()
    record = json.loads(json.dumps(result.measure.to_dict()))
    assert record["controls"]["an untrained copy"]["counts"]
    # The interval is the one of interp.stats.refit.
    lost = ((data["held"] - result.predictions) ** 2).sum((1, 2))
    expected = refit.interval(lost, refit.sum_squared_deviations(data["held"])[:, 0], 5)
    assert (result.number, result.r2) == (expected, expected.estimate)
    control = result.controls["inputs"]
    margin = result.r2 - control.score.estimate
    assert control.difference.estimate == pytest.approx(margin)


def test_classes_of_several_outputs_are_scored_by_hand():
    """Of three classes, of which one is nearly always the first output's; a fifth of the entries is masked.

    A rare class is scored by probabilities, as R2 of the indicators; others by what is likeliest.
    """
    rng = np.random.default_rng(0)
    rare_class = (rng.random((N, T)) < 0.04).astype(int)
    y = np.stack([rare_class, rng.integers(3, size=(N, T))], -1)
    mask = rng.random(y.shape) < 0.8
    probabilities = rng.dirichlet(np.ones(3), size=(2, N, T))
    predicted_classes = np.moveaxis(probabilities.argmax(-1), 0, -1)
    shown = np.eye(3)[np.moveaxis(y, -1, 0)]
    target = TargetValues("labels", y, ("rare", "common"), kind="class", mask=mask).as_numbers()
    probe = score_predictions(target, predicted_classes, np.arange(N), dict, list(probabilities))
    details = probe.details()
    outputs = list(zip(probabilities, shown, np.moveaxis(mask, -1, 0), strict=True))
    is_right = predicted_classes == y
    accuracies = [is_right[..., k][mask[..., k]].mean() for k in (0, 1)]
    estimates = [score.estimate for score in details["by_output"].values()]
    assert estimates == pytest.approx(accuracies)
    log_likelihood, missed = 0.0, 0.0
    for p, one_hot, counts in outputs:
        p_of_truth = (p * one_hot).sum(-1)
        log_likelihood += np.log(p_of_truth[counts]).sum()
        missed += ((p - one_hot) ** 2)[counts].sum()
    lost = -log_likelihood / mask.sum()
    assert set(details["metrics"]) == {"accuracy", "log_loss"}
    assert details["metrics"]["log_loss"].estimate == pytest.approx(lost)
    indicators, mask_of_indicators = np.concatenate(shown, -1), np.repeat(mask, 3, -1)
    total = refit.sum_squared_deviations(indicators, mask_of_indicators).sum()
    assert target.is_rare
    assert probe.score.skill.estimate == pytest.approx(1 - missed / total)
    common = replace(
        target, values=y[..., 1:], outputs=("common",), mask=mask[..., 1:]
    ).as_numbers()
    score = score_predictions(
        common, predicted_classes[..., 1:], np.arange(N), dict, [probabilities[1]]
    ).score
    assert not common.is_rare
    assert score.brier is None
    assert score.estimate == pytest.approx(accuracies[1])


def test_few_episodes_are_warned_of(data):
    few = {name: values[:12] for name, values in data.items()}
    with pytest.warns(UserWarning, match="12 independent episodes are few: below 16"):
        result = probes.fit(few["x"], few["held"], inputs=few["inputs"])
    assert "12 independent" in result.warning
    assert "warning: 12 independent" in str(result)
    warnings_of_scores = result.scores()["warning"]
    assert warnings_of_scores.str.contains("12 independent").all()
    groups = np.repeat(np.arange(12), 2)
    with pytest.warns(UserWarning, match="12 independent"):
        probes.fit(data["x"], data["held"], groups=groups)


def test_a_target_that_is_an_input_gives_itself_away(data):
    bare = probes.fit(data["x"], data["held"], untrained=data["untrained"])
    assert bare.verdict == "undecided"
    assert bare.reason in str(bare)
    inputs = [data["inputs"], data["held"]]
    copied = probes.fit(data["x"], data["held"], inputs=inputs, untrained=data["untrained"])
    assert copied.verdict == "undecided"
    assert copied.controls["inputs"].score.estimate > 0.99
    refuses(
        r"inputs are \[episode, round, feature\], 24 episodes of 8 rounds .* \(24, 7, 1\)",
        probes.fit,
        data["x"],
        data["held"],
        inputs=np.zeros((N, 7, 1)),
    )


def test_episodes_give_a_bare_target_its_inputs():
    from interp.tasks import experts

    episodes = experts.sample(n_episodes=20, n_rounds=8, n_experts=2, seed=0)
    noise = np.random.default_rng(0).normal(size=episodes.advice.shape)
    x = episodes.advice.astype(float) + 0.1 * noise
    votes = episodes.advice[..., :1]
    assert probes.fit(x, votes, untrained=-x[::-1]).verdict == "undecided"
    known = probes.fit(x, votes, episodes=episodes)
    assert known.verdict != "yes"
    assert {"inputs", "control_task"} <= set(known.controls)
    refuses(
        "give episodes= or inputs=, not both", probes.fit, x, votes, episodes=episodes, inputs=x
    )


def test_numbers_of_any_make(data):
    """Tensors with gradients, half precisions, pandas objects and whole numbers are fitted as numbers."""
    rng = np.random.default_rng(1)
    x = rng.integers(-4, 5, size=(N, T, 3))
    is_positive = x[..., :1] + x[..., 1:2] > 0
    is_inverted = rng.random((N, T, 1)) < 0.1
    y = (is_positive ^ is_inverted).astype(int)
    nothing = np.zeros((N, T, 1))
    plain = probes.fit(x.astype(float), y.astype(float), inputs=nothing)
    names = [f"subject {i:02}" for i in range(N)]
    rows = pd.MultiIndex.from_product([names, range(T)], names=["episode", "round"])
    frame = pd.DataFrame(x.reshape(-1, 3), index=rows, columns=["a", "b", "c"])
    series = pd.Series(y.reshape(-1), index=rows)
    arguments = {}
    arguments["whole"] = (x, y)
    arguments["gradients"] = (
        torch.tensor(x, dtype=torch.float64, requires_grad=True),
        torch.tensor(y * 1.0, requires_grad=True),
    )
    arguments["bfloat16"] = (torch.tensor(x).bfloat16(), torch.tensor(y))
    half_y = torch.tensor(y).half()
    arguments["float16"] = (x.astype(np.float16), half_y)
    arguments["pandas"] = (frame.sample(frac=1, random_state=0), series)
    arguments["pandas table"] = (frame, pd.DataFrame(y[..., 0]))
    for name, (activations, target) in arguments.items():
        result = probes.fit(activations, target, inputs=np.zeros((N, T, 1), bool))
        assert result.r2 == pytest.approx(plain.r2, abs=1e-6), name
        if result.measure != plain.measure:
            assert result.number.low == pytest.approx(plain.number.low, abs=1e-6), name
        assert result.shape == (3,)
    assert probes.fit(x > 0, y).r2 > 0.3  # activations that are truth values
    class_target = TargetValues("class", y, ("y",), kind="class", mask=np.ones((N, T, 1), bool))
    assert probes.fit(x, class_target).metric == "accuracy"
    assert probes.fit(x, y, groups=pd.Series(names), method="logistic").metric == "accuracy"
    refuses("a target must be real numbers", probes.fit, x, y.astype(complex))
    refuses(
        r"activations must be numbers.*'left'",
        probes.fit,
        np.full((N, T, 1), "left", dtype=object),
        y,
    )
    refuses(
        "every round of every episode once; this one has 191 rows",
        probes.fit,
        frame.iloc[1:],
        series,
    )


@pytest.mark.parametrize("make", ["booleans", "tensor", "texts", "objects", "pandas"])
def test_texts_and_booleans_are_classes(make):
    """As in scikit-learn: they are scored as the integers that the user calls classes."""
    rng = np.random.default_rng(1)
    x = rng.normal(size=(N, T, 3))
    is_true = x[..., :1] + rng.normal(size=(N, T, 1)) > 0
    texts = np.where(is_true, "right", "left")
    rows = pd.MultiIndex.from_product([range(N), range(T)], names=["episode", "round"])
    targets = {
        "booleans": is_true,
        "tensor": torch.tensor(is_true),
        "texts": texts,
        "objects": texts.astype(object),
        "pandas": pd.Series(texts.ravel(), index=rows),
    }
    by_number = probes.fit(x, TargetValues.of(is_true.astype(int), of_classes=True))
    result = probes.fit(x, targets[make])
    assert result.method == "logistic"
    assert result.measure == by_number.measure
    assert probes.fit(x, targets[make], method="ridge").metric == "r2"
    assert probes.fit(x, is_true.astype(int)).metric == "r2"


def test_texts_with_a_gap_are_no_classes():
    """A missing text must not become the class "nan"."""
    texts = np.full((N, T, 1), "left", dtype=object)
    texts[0] = np.nan
    refuses("a target must be numbers, got values such as", TargetValues.of, texts)


@pytest.mark.long
def test_classes_of_a_function_keep_their_numbers_in_further_episodes():
    """A class that only further episodes have once could shift the others' numbers, and spoil the control there."""
    from interp.tasks import experts
    from interp.tasks.experts.layout import ExpertRound
    from tests.machines import transformer

    names = np.array(["a rare one", "none", "one", "two"])

    def name_votes(episodes):
        n_votes = episodes.advice.sum(-1)
        has_all = n_votes.sum(1) == 4
        n_votes[has_all, 0] = -1
        return names[1 + n_votes]

    episodes = experts.sample(n_episodes=150, n_rounds=2, n_experts=2, seed=0)
    common = episodes.select(np.flatnonzero(episodes.advice.sum((1, 2)) < 4))
    model = transformer(ExpertRound(2))
    run = interp.rollout(model, common, names_filter="hook_embed")
    result = probes.fit(run, name_votes, sites="embed", n_untrained=1)
    assert result.target.values.max() == 2
    assert result.settings["untrained_episodes"] == 256
    assert result.controls["untrained"].score.estimate > 0.95


def test_estimators_of_scikit_learn(data):
    """Cloned per fold: a linear one gives what the same probe by hand gives; classes are scored by accuracy."""
    x, y = data["x"], data["held"]
    estimator = LinearRegression()
    result = probes.fit(x, y, **controls(data), method=estimator)
    assert not hasattr(estimator, "coef_")
    assert result.method == "LinearRegression"
    assert (
        probes.fit(x, data["noise"], method=KNeighborsRegressor(1)).r2 < 0
    )  # it would know what it had seen
    assert result.verdict == "yes"
    assert result.r2 == pytest.approx(probes.fit(x, y).r2, abs=0.01)
    assert set(result.controls) == {"shuffled", "untrained", "inputs", "round"}
    rows = x.reshape(-1, 4)
    by_hand = LinearRegression().fit(rows, y.reshape(-1))
    decoded = result.decode(x).values.reshape(-1)
    np.testing.assert_allclose(decoded, by_hand.predict(rows))
    refuses("a probe by LinearRegression has no direction", result.direction)
    curved = probes.fit(
        x, y**2, method=RandomForestRegressor(n_estimators=5, random_state=0), inputs=data["inputs"]
    )
    assert curved.r2 > probes.fit(x, y**2).r2
    pipeline = make_pipeline(StandardScaler(), LogisticRegression())
    classes = probes.fit(x, y > 0, method=pipeline, **controls(data))
    assert classes.metric == "accuracy"
    assert classes.verdict == "yes"
    assert 0.75 < classes.score.estimate < 1
    refuses(
        "is a number, not a class; fit it with method='ridge' or a regressor",
        probes.fit,
        x,
        y,
        method=pipeline,
    )
    refuses("a regressor or classifier of scikit-learn, got <class", probes.fit, x, y, method=Ridge)


def test_a_probe_of_classes_is_measured_by_what_it_is_above_the_best_constant():
    """24 episodes of 8 rounds, a class in a quarter of them: a quarter of misses is no skill, an eighth is a half."""
    y = np.zeros((N, T, 1), int)
    y[:, :2] = 1
    missed = np.zeros((N, T, 1), int)
    missed[:, 0] = 1

    def of(predictions, mask=None):
        target = replace(TargetValues.of(y, of_classes=True), mask=mask)
        return score_predictions(target, predictions, np.arange(N), dict).score

    score = of(y ^ missed)
    assert score.estimate == 7 / 8
    assert score.skill.estimate == pytest.approx(1 / 2)
    constant = of(np.zeros_like(y))
    assert constant.estimate == 3 / 4
    assert constant.skill.estimate == 0
    assert constant.detectable == 0
    perfect = of(y)
    assert (
        perfect.skill.estimate == 1 > perfect.skill.low
    )  # no miss in few episodes is no proof of none
    no_losses, references = np.zeros(N), np.full(N, 2.0)
    assert perfect.skill == refit.interval(no_losses, references, 5, smallest=0.5)
    mask = np.ones((N, T, 1), bool)
    mask[:, 2:5] = False  # the classes that are scored are 2 to 3
    scored = of(y ^ missed, mask)
    assert scored.estimate == pytest.approx(4 / 5)
    assert scored.skill.estimate == pytest.approx(1 / 2)


def test_a_target_of_which_no_round_took_place_is_refused():
    target = TargetValues.of(np.zeros((3, 4), int), "label", of_classes=True)
    missing = replace(target, missing=np.ones((3, 4), bool))
    refuses("target 'label' has no round that took place", missing.as_numbers)
    empty = TargetValues.of(np.zeros((0, 4)), "label")
    refuses("target 'label' has no round that took place", empty.as_numbers)
