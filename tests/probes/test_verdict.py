"""Verdicts: each of the four where it belongs, with what the sample would have shown, and what may be given."""

import json

import numpy as np
import pandas as pd
import pytest
import torch
from sklearn.ensemble import RandomForestRegressor
from sklearn.linear_model import LinearRegression, LogisticRegression, Ridge
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

import probes
from interp import refit
from interp.errors import InputError
from probes.controls import SMALLEST_EFFECT, Control, detectable_of, verdict_of
from probes.scores import ProbeScore
from probes.targets import TargetValues

N, T = 24, 8


@pytest.fixture(scope="module")
def data():
    """Activations, a target that they hold (R2 about .8), noise, and inputs that say nothing."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(N, T, 4))
    held = x[..., :1] + 0.5 * rng.normal(size=(N, T, 1))
    return {"x": x, "held": held, "noise": rng.normal(size=(N, T, 1)), "inputs": rng.normal(size=(N, T, 2))}


def score(losses, spread=0.0):
    """A score of 32 episodes, each of which loses ``losses`` of 1, more or less."""
    wobble = spread * np.sin(np.arange(32.0))
    return ProbeScore.of(losses * (1 + wobble), np.ones(32), 5)


def judged(own, limited=False, **controls):
    made = {name: Control(name, other, own.minus(other)) for name, other in controls.items()}
    return verdict_of(own, made, limited)


def test_four_verdicts():
    """From scores alone: surely higher; surely no higher by a tenth; neither; high, and as high without training."""
    none = score(1.0, 0.01)
    assert judged(score(0.2, 0.1), shuffled=none) == "represented"
    assert judged(score(0.2, 0.1), shuffled=none, limited=True) == "undecided"
    assert judged(score(1.0, 0.02), shuffled=none) == "not represented"
    assert judged(score(0.9, 0.8), shuffled=none) == "undecided"
    # A low upper bound is no absence where a tenth would not have been seen; one below 0 is.
    assert score(1.05, 0.3).high < 0.1 < score(1.05, 0.3).detectable()
    assert judged(score(1.05, 0.3)) == "undecided"
    assert judged(score(1.2, 0.3)) == "not represented"
    assert judged(score(0.2, 0.1), shuffled=none, untrained=score(0.22, 0.1)) == "uninformative"
    assert judged(score(0.2, 0.1), shuffled=none, untrained=score(0.05, 0.1)) == "uninformative"
    assert judged(score(0.2, 0.1), shuffled=none, untrained=score(0.5, 0.1)) == "represented"
    # Where the probe beats nothing, an untrained model that does not either is no reason to call it uninformative.
    assert judged(score(1.0, 0.02), shuffled=none, untrained=score(1.0, 0.02)) == "not represented"


def test_a_score_that_leans_low_is_no_absence():
    """What is surely no higher, and what a control exceeds, is undecided there; what is surely higher stands."""
    none = score(1.0, 0.01)
    for own in (score(1.0, 0.02), score(1.2, 0.3)):
        assert judged(own, shuffled=none) == "not represented"
        made = {"shuffled": Control("shuffled", none, own.minus(none))}
        assert verdict_of(own, made, leans_low=True) == "undecided"
    high = score(0.2, 0.1)
    assert verdict_of(high, {"shuffled": Control("shuffled", none, high.minus(none))}, leans_low=True) == "represented"


def test_a_constant_of_episodes_with_many_features_is_told_and_not_denied():
    """16 features of 20 episodes: a number that they do not hold is undecided, with the reason; 2 of 96 can deny it.

    Features that do not vary do not count, and nor does a target that changes within episodes.
    """
    rng = np.random.default_rng(3)
    noise, rounds = rng.normal(size=(96, 1, 1)) * np.ones((96, T, 1)), rng.normal(size=(96, T, 16))
    given = {"inputs": np.zeros((96, T, 1))}
    few = probes.fit(rounds[:20], noise[:20], inputs=given["inputs"][:20])
    assert few.leans_low and few.verdict == "undecided" and "not represented' is not said" in few.warning
    assert "is constant within episodes" in str(few)
    many = probes.fit(rounds[..., :2], noise, **given)
    assert not many.leans_low and many.warning is None
    still = np.concatenate([rounds[..., :2], np.ones((96, T, 30))], -1)
    assert not probes.fit(still, noise, **given).leans_low
    assert not probes.fit(rounds[:20], rounds[:20, :, :1] ** 2, inputs=given["inputs"][:20]).leans_low


def test_the_smallest_effect_is_a_share_of_what_a_control_leaves():
    """Beside a control at .9 a tenth of the tenth that is left decides: a difference of .1 is out of reach."""
    control = score(0.1, 0.001)
    assert judged(score(0.0995, 0.001), inputs=control) == "represented"
    assert judged(score(0.1, 0.002), inputs=control) == "not represented"
    assert SMALLEST_EFFECT == 0.1


def test_what_would_have_been_shown_is_that_of_the_hardest_control():
    own, controls = score(0.9, 0.5), {"shuffled": score(1.0, 0.02), "inputs": score(0.95, 0.5)}
    made = {name: Control(name, other, own.minus(other)) for name, other in controls.items()}
    each = [refit.detectable(own.losses, own.references, 5, control_losses=c.losses) for c in controls.values()]
    assert detectable_of(own, made) == pytest.approx(max(*each, refit.detectable(own.losses, own.references, 5)))


def test_a_result_says_what_it_is_about(data):
    result = probes.fit(data["x"], data["held"], inputs=data["inputs"])
    assert result.verdict == "represented" and result.represented and 0 < result.detectable < 1
    assert result.estimand == f"R2 on new episodes of this probe, refitted on all {N} episodes"
    assert result.estimand in str(result) and ": represented" in str(result) and "(no interval)" not in str(result)
    frame = result.to_frame()
    assert set(frame["verdict"]) == {"represented"} and frame["detectable"].iloc[0] == result.detectable
    assert frame.query("metric == 'rank_correlation'")[["low", "high"]].isna().all().all()
    assert json.loads(json.dumps(result.to_json()))["verdict"] == "represented"
    # The interval is the one of interp.refit.
    lost = ((data["held"] - result.predictions) ** 2).sum((1, 2))
    expected = refit.skill(lost, refit.totals(data["held"])[:, 0], 5)
    assert (result.r2, *result.r2_ci) == pytest.approx((expected.estimate, expected.low, expected.high))
    control = result.controls["inputs"]
    assert control.difference.estimate == pytest.approx(result.r2 - control.score.estimate)


def test_few_episodes_are_warned_of(data):
    few = {name: values[:12] for name, values in data.items()}
    with pytest.warns(UserWarning, match="12 independent episodes are few: below 16"):
        result = probes.fit(few["x"], few["held"], inputs=few["inputs"])
    assert "12 independent" in result.warning and "warning: 12 independent" in str(result)
    assert result.to_frame()["warning"].str.contains("12 independent").all()
    with pytest.warns(UserWarning, match="12 independent"):
        probes.fit(data["x"], data["held"], groups=np.repeat(np.arange(12), 2))


def test_a_bare_target_is_undecided_at_most(data):
    """It does not know the round's inputs; they may be given, and a target that is an input gives itself away."""
    bare = probes.fit(data["x"], data["held"])
    assert bare.verdict == "undecided" and "the inputs control is missing" in str(bare)
    assert probes.fit(data["x"], data["noise"]).verdict != "represented"
    copied = probes.fit(data["x"], data["held"], inputs=[data["inputs"], data["held"]])
    assert not copied.represented and copied.controls["inputs"].score.estimate > 0.99
    with pytest.raises(
        InputError, match=r"inputs are \[episode, round, feature\], 24 episodes of 8 rounds .* \(24, 7, 1\)"
    ):
        probes.fit(data["x"], data["held"], inputs=np.zeros((N, 7, 1)))


def test_episodes_give_a_bare_target_its_inputs():
    from interp.tasks import experts

    episodes = experts.sample(n_episodes=20, n_rounds=8, n_experts=2, seed=0)
    x = episodes.advice.astype(float) + 0.1 * np.random.default_rng(0).normal(size=episodes.advice.shape)
    votes = episodes.advice[..., :1]
    assert probes.fit(x, votes).verdict == "undecided"
    known = probes.fit(x, votes, episodes=episodes)
    assert not known.represented and {"inputs", "control_task"} <= set(known.controls)
    with pytest.raises(InputError, match="give episodes= or inputs=, not both"):
        probes.fit(x, votes, episodes=episodes, inputs=x)


def test_numbers_of_any_make(data):
    """Tensors with gradients, half precisions, pandas objects, whole numbers and truth values are fitted as numbers."""
    rng = np.random.default_rng(1)
    x = rng.integers(-4, 5, size=(N, T, 3))
    y = (x[..., :1] + x[..., 1:2] > 0) ^ (rng.random((N, T, 1)) < 0.1)
    plain = probes.fit(x.astype(float), y.astype(float), inputs=np.zeros((N, T, 1)))
    names = [f"subject {i:02}" for i in range(N)]
    rows = pd.MultiIndex.from_product([names, range(T)], names=["episode", "round"])
    frame = pd.DataFrame(x.reshape(-1, 3), index=rows, columns=["a", "b", "c"])
    series = pd.Series(y.reshape(-1), index=rows)
    given = {
        "whole": (x, y.astype(int)),
        "truth": (x > -9, y) if False else (x, y),
        "gradients": (
            torch.tensor(x, dtype=torch.float64, requires_grad=True),
            torch.tensor(y * 1.0, requires_grad=True),
        ),
        "bfloat16": (torch.tensor(x).bfloat16(), torch.tensor(y)),
        "float16": (x.astype(np.float16), torch.tensor(y).half()),
        "pandas": (frame.sample(frac=1, random_state=0), series),
        "pandas table": (frame, pd.DataFrame(y[..., 0])),
    }
    for name, (activations, target) in given.items():
        result = probes.fit(activations, target, inputs=np.zeros((N, T, 1), bool))
        assert result.r2 == pytest.approx(plain.r2, abs=1e-6), name
        assert result.represented and result.shape == (3,)
    assert probes.fit(x > 0, y).r2 > 0.3  # activations that are truth values
    class_target = TargetValues("class", y, ("y",), kind="class", mask=np.ones((N, T, 1), bool))
    assert probes.fit(x, class_target).metric == "accuracy"
    assert probes.fit(x, y, groups=pd.Series(names), method="logistic").metric == "accuracy"
    with pytest.raises(InputError, match="a target must be real numbers"):
        probes.fit(x, y.astype(complex))
    with pytest.raises(InputError, match=r"activations must be numbers.*'left'"):
        probes.fit(np.full((N, T, 1), "left", dtype=object), y)
    with pytest.raises(InputError, match="every round of every episode once; this one has 191 rows"):
        probes.fit(frame.iloc[1:], series)


def test_estimators_of_scikit_learn(data):
    """Cloned per fold: a linear one gives what the same probe by hand gives; classes are scored by accuracy."""
    x, y = data["x"], data["held"]
    given = LinearRegression()
    result = probes.fit(x, y, inputs=data["inputs"], method=given)
    assert not hasattr(given, "coef_") and result.method == "LinearRegression"
    assert result.represented and result.r2 == pytest.approx(probes.fit(x, y).r2, abs=0.01)
    assert set(result.controls) == {"shuffled", "inputs", "round"}
    by_hand = LinearRegression().fit(x.reshape(-1, 4), y.reshape(-1))
    np.testing.assert_allclose(result.decode(x).values.reshape(-1), by_hand.predict(x.reshape(-1, 4)))
    with pytest.raises(InputError, match="a probe by LinearRegression has no direction"):
        result.direction()
    curved = probes.fit(x, y**2, method=RandomForestRegressor(n_estimators=5, random_state=0), inputs=data["inputs"])
    assert curved.r2 > probes.fit(x, y**2).r2
    pipeline = make_pipeline(StandardScaler(), LogisticRegression())
    classes = probes.fit(x, y > 0, method=pipeline, inputs=data["inputs"])
    assert classes.metric == "accuracy" and classes.represented and 0.75 < classes.score.estimate < 1
    with pytest.raises(InputError, match="is a number, not a class; fit it with method='ridge' or a regressor"):
        probes.fit(x, y, method=pipeline)
    with pytest.raises(InputError, match="a regressor or classifier of scikit-learn, got <class"):
        probes.fit(x, y, method=Ridge)
