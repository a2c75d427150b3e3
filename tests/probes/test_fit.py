"""Probes and their words: what is there is decoded, what is not there is not, and bad input is told."""

import copy
import sys
from dataclasses import replace

import jaxtyping
import numpy as np
import pytest
from sklearn.linear_model import Ridge
from sklearn.metrics import log_loss

import interp
import probes
from interp.interventions import steering
from interp.model import saved
from interp.support.errors import InputError
from interp.tasks import experts
from interp.tasks.experts.layout import ExpertRound
from probes import estimators
from probes.controls import GroupedTargets, Problem
from probes.fitting import KINDS, PLATEAU
from probes.linear import RIDGE
from probes.targets import TargetValues
from tests.machines import transformer
from tests.refusals import refuses


@pytest.fixture(scope="module")
def episodes():
    return experts.sample(n_episodes=40, n_rounds=20, n_experts=3, seed=0)


@pytest.fixture(scope="module")
def model():
    return interp.load("wma-handwired", n_experts=3)


@pytest.fixture(scope="module")
def run(model, episodes):
    return interp.rollout(model, episodes)


@pytest.fixture(scope="module")
def learned():
    """A learned model's shape, untrained."""
    return transformer(ExpertRound(3), seed=1, d_model=32, d_head=16, d_mlp=64, name="toy")


@pytest.mark.long
def test_the_contract(run, episodes):
    """The lines of the README and DESIGN.md."""
    result = probes.fit(run, probes.targets.log_weights(episodes))
    assert result.r2 > 1 - 1e-9
    assert result.verdict == "yes"
    assert result.measure.phrase == "lets a linear probe read the log-weights"
    assert result.number.low <= result.r2 <= result.number.high
    assert not result.missing
    assert set(result.controls) == {"shuffled", "untrained", "inputs", "round", "control_task"}
    bare = probes.fit(run.latents[:, 1:], probes.targets.log_weights(episodes), groups="episode")
    assert bare.missing == ("untrained",)
    assert "not run: an untrained copy" in str(bare)
    assert bare.verdict == "undecided"
    assert bare.reason.startswith("a control was not run: no untrained model")


@pytest.mark.long
def test_untrained_copies_get_the_episodes_that_they_need(learned):
    """However few the probe has; a target that is not the task's, or has a wrong key, is read from its own episodes."""
    few = experts.sample(n_episodes=20, n_rounds=5, n_experts=3, seed=4)
    run, target = interp.rollout(learned, few), probes.targets.log_weights_centred(few)
    options = {"n_untrained": 2, "seed": 3}
    probe_result = probes.fit(run, target, **options)
    many = experts.sample(n_episodes=PLATEAU, n_rounds=5, n_experts=3, seed=5)
    target_of_many = probes.targets.log_weights_centred(many)
    plateau = []
    for seed in (3, 4):
        run_of_copy = interp.rollout(learned.untrained(seed), many)
        plateau.append(probes.fit(run_of_copy, target_of_many).r2)
    score = probe_result.controls["untrained"].score
    assert score.estimate == pytest.approx(max(plateau), abs=0.05)
    assert len(score.losses) == PLATEAU
    assert probe_result.settings["untrained_episodes"] == PLATEAU
    for changed_values in (target.values, replace(target, values=-target.values)):
        alone = probes.fit(run, changed_values, **options)
        score = alone.controls["untrained"].score
        assert len(score.losses) == 20
        assert alone.settings["untrained_episodes"] == 20
        assert {"inputs", "control_task"} <= set(alone.controls)  # the rollout knows its episodes
    (same,) = probes.probe(learned, few, ["log_weights_centred"], **options)
    assert same.measure == probe_result.measure


@pytest.mark.long
@pytest.mark.parametrize("key", ["log_weights_centred", "label"])
def test_an_array_has_no_stronger_verdict_than_the_same_values_by_name(learned, key):
    """Untrained copies of a probe of an array ran on its few episodes; that control was too weak for a "yes"."""
    few = experts.sample(n_episodes=20, n_rounds=5, n_experts=3, seed=4)
    run, target = interp.rollout(learned, few), probes.targets.get(key)
    method = "ridge" if key == "log_weights_centred" else "logistic"
    options = {"n_untrained": 1, "method": method}
    by_name = probes.fit(run, target(few), **options)
    of_array = probes.fit(run, target(few).values, **options)
    assert of_array.measure.number == by_name.measure.number
    assert "give it as a function of episodes" in of_array.measure.unless["yes"]
    assert "ran on only 20 episodes" in of_array.warning
    by_function = probes.fit(run, lambda episodes: target(episodes).values, **options)
    untrained = by_name.controls["untrained"].score.estimate
    assert by_function.controls["untrained"].score.estimate == untrained
    assert by_function.warning == by_name.warning
    assert "yes" not in by_function.measure.unless
    assert probes.fit(run, target, **options).measure == by_name.measure


def test_an_array_of_enough_episodes_can_be_decoded():
    """A "yes" for an array needs 256 episodes, where the control is as strong as that of a named target."""
    model = interp.load("wma-handwired", n_experts=2)
    many = experts.sample(n_episodes=PLATEAU, n_rounds=3, n_experts=2, seed=5)
    counts = probes.targets.log_weights_centred(many).values
    for n, verdict in ((PLATEAU, "yes"), (PLATEAU - 1, "undecided")):
        run = interp.rollout(model, many.select(slice(n)))
        assert probes.fit(run, counts[:n], n_untrained=1).verdict == verdict


def test_a_function_as_target_needs_episodes():
    message = "a target that is a function is called with episodes; give episodes="
    refuses(message, probes.fit, ones(9, 6, 2), lambda episodes: episodes.labels)
    episodes = experts.sample(n_episodes=16, n_rounds=6, n_experts=2, seed=0)
    x = episodes.labels[..., None] + ones(16, 6, 1)
    result = probes.fit(x, lambda episodes: episodes.labels, episodes=episodes)
    assert result.r2 == probes.fit(x, episodes.labels).r2


@pytest.mark.long
def test_a_second_probe_of_a_model_runs_no_second_control(learned, monkeypatch):
    """Runs of untrained copies are kept: of another target, of a model with the same weights; not of another seed."""
    few = experts.sample(n_episodes=18, n_rounds=4, n_experts=3, seed=6)
    run, ran = interp.rollout(learned, few), []

    def counting(*arguments, **options):
        ran.append(1)
        return interp.rollout(*arguments, **options)

    monkeypatch.setattr(sys.modules["probes.fitting"], "rollout", counting)
    first = probes.fit(run, probes.targets.counts(few), n_untrained=2, seed=11)
    assert len(ran) == 4, "two copies, over these episodes and over more"
    twin = replace(run, model=copy.deepcopy(learned))
    again = probes.fit(twin, probes.targets.counts(few), n_untrained=2, seed=11)
    other_target = probes.fit(run, probes.targets.log_weights_centred(few), n_untrained=2, seed=11)
    assert len(ran) == 4
    assert again.measure == first.measure
    assert "untrained" in other_target.controls
    probes.fit(run, probes.targets.counts(few), n_untrained=2, seed=12)
    assert len(ran) == 7, (
        "the copy of seed 12 has run over these episodes, and not over those that seed 12 adds"
    )


def test_a_rollout_that_does_not_know_its_model_has_no_untrained_control(model, episodes, tmp_path):
    """One from a file, unless the model and the episodes are given; and one with hooks, which a copy would lack."""
    target = probes.targets.counts(episodes)
    loaded = saved.load(saved.save(interp.rollout(model, episodes), tmp_path / "run.safetensors"))
    assert loaded.model is loaded.episodes is None
    assert "untrained" not in probes.fit(loaded, target).controls
    assert (
        "untrained"
        in probes.fit(loaded, target, model=model, episodes=episodes, n_untrained=1).controls
    )
    hook = ("hook_embed", lambda embedded, hook: embedded)
    hooked = interp.rollout(model, episodes, fwd_hooks=[hook])
    result = probes.fit(hooked, target, model=model, episodes=episodes)
    assert "untrained" not in result.controls
    assert "a rollout without hooks" in result.reason


def test_predictions_never_saw_their_episode(episodes):
    """An episode's target, changed, changes no prediction of that episode."""
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(20, 8, 5)), rng.normal(size=(20, 8, 1))
    changed = y.copy()
    changed[7] += 10
    before, after = (probes.fit(x, values).predictions for values in (y, changed))
    np.testing.assert_allclose(before[7], after[7], atol=1e-6)
    assert np.abs(before - after).max() > 1e-3


@pytest.mark.long
@pytest.mark.parametrize("kind", ["a permuted expert's count", "a random function of the episode"])
def test_what_is_not_there_is_not_held(kind, run, episodes):
    """At least 19 of 20 seeds, from latents that hold every expert's count."""
    counts = probes.targets.log_weights_centred(episodes)
    words = []
    for seed in range(20):
        rng = np.random.default_rng(seed)
        if kind == "a permuted expert's count":
            order = rng.permuted(np.tile(np.arange(3), (len(episodes), 1)), axis=1)
            values = np.take_along_axis(counts.values, order[:, None], axis=-1)
        else:
            number_of_episode = rng.normal(size=(len(episodes), 1, 1))
            values = np.broadcast_to(number_of_episode, (*counts.values.shape[:2], 1))
        target = TargetValues(
            "absent", values, ("x",) * values.shape[-1], inputs=counts.inputs, types=counts.types
        )
        latents = run.latents[:, 1:]
        result = probes.fit(latents, target, untrained=latents.flip(0), seed=seed)
        words.append(result.verdict)
    assert words.count("yes") <= 1


def test_a_target_that_time_gives_away_is_not_held():
    """Activations that hold only the round index decode most of a raw count; the round control comes too near."""
    episodes = experts.sample(n_episodes=40, n_rounds=20, n_experts=3, seed=5)
    x = np.broadcast_to(np.arange(20.0)[:, None], (40, 20, 1))
    result = probes.fit(x, probes.targets.log_weights(episodes), untrained=np.ones((40, 20, 1)))
    assert result.r2 > 0.5
    assert result.verdict == "undecided"
    assert "comes too near" in result.reason
    assert abs(result.controls["round"].difference.estimate) < 0.05


def test_a_copy_of_the_input_is_judged_by_the_other_controls(run, episodes):
    """A vote is one of the round's inputs: that control is shown but not asked to be beaten."""
    target = probes.targets.votes(episodes)
    advice = episodes.advice.astype(float)
    result = probes.fit(advice, target, method="ridge", untrained=advice[::-1])
    assert result.r2 > 1 - 1e-9
    assert result.verdict == "yes"
    assert not result.controls["inputs"].counts
    assert result.controls["inputs"].score.estimate > 1 - 1e-9


def test_memorising_shows_in_the_control_task(episodes):
    """A probe that reads which kind of round it is decodes any function of it: no selectivity, no verdict."""
    matches = probes.targets.match(episodes)
    n_kinds = matches.types.max() + 1
    kinds = np.eye(n_kinds)[matches.types]
    result = probes.fit(kinds, matches, method="ridge", untrained=kinds[::-1])
    assert result.r2 > 1 - 1e-6
    assert result.controls["control_task"].score.estimate > 1 - 1e-6
    assert (
        result.reason
        == "a random target for each kind of round comes too near (less than 3 times its odds)"
    )


def test_random_features_count_and_only_the_untrained_control_says_so(learned, episodes):
    """A latent that adds random features of each round holds the counts: R2 far above every control but that one."""
    (result,) = probes.probe(learned, episodes, ["log_weights_centred"], seed=0)
    margins = {name: control.difference.low for name, control in result.controls.items()}
    beaten = {name for name, margin in margins.items() if margin > 0}
    assert result.r2 > 0.5
    assert beaten == {"shuffled", "inputs", "round", "control_task"}
    assert result.reason == "an untrained copy comes too near (less than 3 times its odds)"


def test_groups_of_episodes_stay_together():
    """What the episodes of a group share is decoded when a probe sees the group's other episodes, and not otherwise."""
    rng = np.random.default_rng(0)
    groups = np.repeat(np.arange(20), 4)
    shared = rng.normal(size=(20, 1, 1))[groups]
    group_one_hot = np.eye(20)[groups][:, None]
    x = group_one_hot + 0.01 * rng.normal(size=(80, 6, 20))
    target = np.broadcast_to(shared, (80, 6, 1))
    nothing = {"inputs": np.zeros((80, 6, 1)), "untrained": np.zeros(x.shape)}
    leaking, grouped = (
        probes.fit(x, target, **nothing),
        probes.fit(x, target, groups=groups, **nothing),
    )
    assert leaking.r2 > 0.9
    assert leaking.verdict == "yes"
    assert grouped.r2 < 0.1
    assert grouped.verdict != "yes"
    assert grouped.settings["n_groups"] == 20
    groups_of_one = [f"episode {i:02}" for i in range(80)]
    assert probes.fit(x, target, groups=groups_of_one).number == leaking.number
    group_of_round = TargetValues("group", groups[:, None, None], ("group",))
    problem = Problem.of(GroupedTargets([group_of_round], groups, 0), RIDGE)
    shuffled = problem.random_targets[0, "shuffled"].values.ravel()
    assert (shuffled != groups).all()
    assert (np.bincount(shuffled) == 4).all()


def test_intervals_resample_groups():
    """Episodes that repeat each other say nothing new: the interval is as wide as without the copies."""
    rng = np.random.default_rng(1)
    x = rng.normal(size=(16, 8, 2))
    spread = np.linspace(0.1, 3, 16)[:, None, None]
    noise = rng.normal(size=(16, 8, 1)) * spread
    y = x[..., :1] + noise
    once = probes.fit(x, y)
    copies, as_groups = np.repeat(np.arange(16), 5), {}
    for name, groups in (("groups", copies), ("episodes", "episode")):
        number = probes.fit(x[copies], y[copies], groups=groups).number
        as_groups[name] = number.high - number.low
    width = once.number.high - once.number.low
    assert as_groups["groups"] == pytest.approx(width, rel=0.15)
    assert as_groups["episodes"] < 0.7 * width


def test_a_penalty_is_chosen_without_the_episodes_that_it_is_scored_on():
    """Of each fold by the others alone, as a fit to these chooses it: not the same one for all."""
    rng = np.random.default_rng(1)
    folds = np.arange(10) % 5
    x = rng.normal(size=(10, 4, 2))
    noise = 1.5 * rng.normal(size=(10, 4))
    y = (x[..., 0] + noise > 0).astype(int)
    chosen = estimators.cross_validate(x, folds, [(y, 2)])[0].chosen
    alone = []
    for fold in range(5):
        others = folds != fold
        _, renumbered = np.unique(folds[others], return_inverse=True)
        (fitted,) = estimators.cross_validate(x[others], renumbered, [(y[others], 2)])
        alone.append(fitted.refit[2][-1])
    assert list(chosen) == alone
    assert len(set(chosen)) > 1


@pytest.mark.parametrize("n_classes", [2, 3])
def test_a_constant_column_changes_no_logistic_probe(n_classes):
    """Most columns of a handwired machine are constant: they get no weight, and the others keep theirs."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(20, 5, 3))
    y = (x[..., 0] > 0).astype(int)
    if n_classes > 2:
        y += x[..., 1] > 1
    folds = np.arange(20) % 5
    targets = [(y, n_classes)]
    wide = np.insert(x, 1, 0.3, axis=-1)
    (narrow_fit,) = estimators.cross_validate(x, folds, targets)
    (wide_fit,) = estimators.cross_validate(wide, folds, targets)
    np.testing.assert_array_equal(wide_fit.probabilities, narrow_fit.probabilities)
    weights = wide_fit.refit[0]
    np.testing.assert_array_equal(np.delete(weights, 1, 0), narrow_fit.refit[0])
    assert not weights[1].any()
    (fit_of_constants,) = estimators.cross_validate(np.ones_like(x), folds, targets)
    assert not fit_of_constants.refit[0].any()


def test_a_class_target_is_scored_by_accuracy_and_log_loss(episodes):
    rng = np.random.default_rng(0)
    x = probes.targets.votes(episodes).values + rng.normal(size=(40, 20, 3))
    target = TargetValues(
        "vote", episodes.advice[..., :1], ("p_1",), kind="class", implied_by=("inputs",)
    )
    result = probes.fit(x, target, untrained=rng.normal(size=x.shape))
    assert (result.method, result.metric, result.columns) == ("logistic", "accuracy", ("p_1",))
    assert 0.6 < result.score.estimate < 0.8
    assert result.verdict == "yes"
    assert result.measure.unit == "skill"
    truth = episodes.advice[..., 0]
    even_loss = log_loss(truth.reshape(-1), np.full(truth.size, 0.5))
    assert result.metrics["log_loss"].estimate < even_loss
    is_right = result.predictions[..., 0] == truth
    assert result.score.estimate == pytest.approx(is_right.mean())
    with pytest.raises(InputError, match="the probe of 'vote' is logistic and has no R2"):
        _ = result.r2
    odds = result.decode(x).values[..., 0]
    moved_odds = result.decode(x + result.direction()).values[..., 0]
    np.testing.assert_allclose(moved_odds, odds + 1, atol=1e-9)
    accuracy = ((odds > 0) == (truth == 1)).mean()
    assert accuracy == pytest.approx(result.score.estimate, abs=0.02)


def test_a_direction_changes_one_decoded_value_by_one(learned, episodes):
    """On raw activations, input scaling undone; outputs that sum to 0 move as if one log-weight had moved."""
    run = interp.rollout(learned, episodes)
    x = run.latents[:, 1:].numpy().astype(np.float64)
    expected = {"log_weights": [0, 0.7, 0], "log_weights_centred": [-0.7 / 3, 1.4 / 3, -0.7 / 3]}
    for key, change in expected.items():
        result = probes.fit(run, probes.targets.get(key)(episodes), n_untrained=0)
        direction = result.direction("e_2")
        assert direction.shape == run.latents.shape[2:]
        decoded = result.decode(x).values
        decoded_change = result.decode(x + 0.7 * direction).values - decoded
        expected_change = np.broadcast_to(change, decoded.shape)
        np.testing.assert_allclose(decoded_change, expected_change, atol=1e-6)
    refuses(
        r"unknown output of 'log_weights_centred': 'e_9'.*e_1, e_2, e_3", result.direction, "e_9"
    )
    refuses("choose an output: e_1, e_2, e_3", result.direction)


def test_the_direction_of_a_handwired_state_is_the_circuits(model, run, episodes):
    """What the probe finds is the exact latent change that steering writes."""
    result = probes.fit(run, probes.targets.log_weights(episodes, gain=0.5), n_untrained=0)
    exact = steering.state_direction(model, [0, 1, 0])
    np.testing.assert_allclose(result.direction("e_2"), exact, atol=1e-5)


def test_decoding_another_run(model, run, learned, episodes):
    result = probes.fit(run, probes.targets.log_weights(episodes), n_untrained=0)
    others = experts.sample(n_episodes=3, n_rounds=60, n_experts=3, seed=9)
    decoded = result.decode(interp.rollout(model, others), others)
    np.testing.assert_allclose(decoded.values, decoded.true, atol=1e-4)
    assert len(decoded.to_frame()) == 3 * 60 * 3
    assert decoded.plot(episode=2).axes
    refuses(
        r"fitted on model 'wma-handwired'.*the run is of 'toy'",
        result.decode,
        interp.rollout(learned, others),
        others,
    )
    of_array = probes.fit(run.latents[:, 1:], probes.targets.log_weights(episodes))
    refuses("fitted on an array", of_array.decode, run)
    refuses("no true values", result.decode(run).plot)


def test_sites_of_a_rollout(learned, episodes):
    hooks = ["hook_update", "blocks.1.attn.hook_z", "blocks.1.hook_resid_post"]
    run = interp.rollout(learned, episodes, names_filter=hooks)
    read = probes.read
    assert (read(run, "latents", "before") == run.latents[:, :-1]).all()
    np.testing.assert_allclose(
        read(run, "change"), read(run, "update"), atol=1e-4
    )  # This model adds its update.
    assert read(run, "written").shape == (40, 20, 32)
    z, resid_post = run.cache[hooks[1]], run.cache[hooks[2]]
    assert (read(run, "L1H0@p?") == z[:, :, -3, 0]).all()
    assert (read(run, "resid_post[1]@w?") == resid_post[:, :, -1]).all()
    refuses(
        r"does not hold site 'resid_pre\[0\]@w\?'.*blocks.0.hook_resid_pre",
        read,
        run,
        "resid_pre[0]@w?",
    )
    refuses("latents, written, change, update", read, run, "layer 3")


def ones(*shape):
    return np.random.default_rng(0).normal(size=shape)


@pytest.mark.parametrize(
    ("x", "y", "message"),
    [
        (ones(4, 6, 2), ones(4, 6, 1), "5 folds of episodes need at least 5 episodes, got 4"),
        (ones(9, 6, 2), np.full((9, 6, 1), 3.0), "target 'target' is constant"),
        (
            ones(9, 6, 2),
            np.where(ones(9, 6, 1) > 1, np.nan, 1.0),
            r"values of target 'target' are NaN or infinite.*To leave rounds out.*missing=",
        ),
        (
            np.where(ones(9, 6, 2) > 2, np.inf, 1.0),
            ones(9, 6, 1),
            r"\d values of the activations are NaN or inf",
        ),
        (
            ones(9, 7, 2),
            ones(9, 6, 1),
            r"9 episodes of 7 rounds but target 'target' has 9 of 6; .*latents\[:, 1:\]",
        ),
        (
            ones(9, 6, 2),
            ones(8, 6, 1),
            "9 episodes of 6 rounds but target 'target' has 8 of 6$",
        ),
        (
            ones(9, 6),
            ones(9, 6, 1),
            "activations are .*rows of probes.to_sklearn are for scikit-learn",
        ),
        (ones(9, 6, 0), ones(9, 6, 1), r"activations are .*got shape \(9, 6, 0\)"),
        (
            ones(9, 6, 2),
            TargetValues("t", ones(9, 6, 1), ("a", "b")),
            "a name for each of its 1 outputs, got 2",
        ),
        (ones(9, 6, 2), ones(9), "a target is an array"),
    ],
    ids=[
        "few episodes",
        "a constant target",
        "a target without a number",
        "an infinite activation",
        "rounds too many",
        "episodes too many",
        "no axis of features",
        "no feature",
        "names too many",
        "no axis of rounds",
    ],
)
def test_what_cannot_be_fitted_is_told(x, y, message):
    refuses(message, probes.fit, x, y)


@pytest.mark.parametrize(
    ("part", "message"),
    [
        ({"outputs": ("a", "b")}, "a name for each of its 1 outputs, got 2"),
        (
            {"mask": ones(9, 5, 1) > 0},
            r"the mask of target 't' .* shape \(9, 6, 1\), got \(9, 5, 1\)",
        ),
        (
            {"types": np.zeros((9, 5), int)},
            r"the kinds of rounds of .* shape \(9, 6\), got \(9, 5\)",
        ),
        (
            {"inputs": (ones(9, 5, 3),)},
            r"the round's inputs of .* \(9, 6, 3\), got \(9, 5, 3\)",
        ),
        (
            {"values": np.full((9, 6, 1), 2**62), "kind": "class"},
            "indicators of 4611686018427387905 classes",
        ),
    ],
    ids=["outputs", "mask", "types", "inputs", "values"],
)
def test_a_target_whose_parts_do_not_fit_is_refused(part, message):
    """Outside the tests nothing checks shapes."""
    whole = {"key": "t", "values": ones(9, 6, 1), "outputs": ("a",)}
    jaxtyping.config.update("jaxtyping_disable", True)
    try:
        refuses(message, probes.fit, ones(9, 6, 2), TargetValues(**(whole | part)))
    finally:
        jaxtyping.config.update("jaxtyping_disable", False)


SCALED = {
    "activations": "the activations",
    "target": "target 'target'",
    "inputs": "the round's inputs",
}


@pytest.mark.parametrize("scale", [1e300, 1e-300])
@pytest.mark.parametrize("part", SCALED)
@pytest.mark.parametrize("method", ["ridge", Ridge()])
def test_values_whose_squares_are_no_numbers_are_refused(method, part, scale):
    """They gave LinAlgErrors, scores of NaN, and a denial of a copy of the target."""
    x, y = np.random.default_rng(0).normal(size=(2, 20, 6, 1))
    options = {"activations": x, "target": y, "inputs": x}
    options[part] = options[part] * scale
    refuses(
        f"largest value of {SCALED[part]} is .*e[+-]300, whose square",
        probes.fit,
        **options,
        method=method,
    )


def test_activations_that_no_probe_can_hold_are_refused_with_what_they_would_take():
    """A cache of 302 rows is 19,328 numbers a round: a whole page of such a machine was once killed for its memory."""
    refuses(
        r"a probe of 200,000 numbers a round .* would take about 2\.88e\+03 GB",
        probes.fit,
        np.zeros((6, 2, 1, 200_000), np.float32),
        np.zeros((6, 2, 1)),
    )


def test_classes_of_which_one_is_there_are_refused_by_the_logistic_probe():
    both_classes, only_ones = np.arange(54) % 2, np.ones(54, int)
    one_class = np.stack([both_classes, only_ones], axis=-1).reshape(9, 6, 2)
    target = TargetValues("match", one_class, ("a", "b"), kind="class")
    refuses(
        "output 'b' of target 'match' is one class in all 54 rounds",
        probes.fit,
        ones(9, 6, 2),
        target,
    )


def test_other_bad_input_is_told(run, learned, episodes):
    x, y = ones(9, 6, 2), ones(9, 6, 1)
    refuses(
        "groups must be 'episode' or an array of one group id per episode, got 'rou",
        probes.fit,
        x,
        y,
        "round",
    )
    refuses(
        r"groups must be 9 names, or whole numbers, got range\(0, 8\)",
        probes.fit,
        x,
        y,
        groups=range(8),
    )
    refuses(
        "5 folds of groups need at least 5 groups, got 3",
        probes.fit,
        x,
        y,
        groups=[0, 0, 0, 1, 1, 1, 2, 2, 2],
    )
    refuses("one group holds 5 of 9 episodes", probes.fit, x, y, groups=[0, 0, 0, 0, 0, 1, 2, 3, 4])
    refuses(r"untrained model have shape \(9, 6, 3\)", probes.fit, x, y, untrained=ones(9, 6, 3))
    refuses("no targets were given", probes.probe, learned, episodes, [])
    refuses(
        "a rollout of another model, 'wma-handwired'",
        probes.probe,
        learned,
        episodes,
        ["label"],
        run=run,
    )


@pytest.mark.parametrize("value", [1e200, np.inf, np.nan])
@pytest.mark.parametrize("method", ["ridge", "logistic"])
def test_an_untrained_control_that_overflows_is_left_out_and_said_to_be(value, method):
    """Finite activations whose squares are not, too; every other number is that of a probe without the control."""
    x, blank = ones(20, 6, 2), ones(20, 6, 2)
    y = (x[..., :1] > 0).astype(int)
    blank[3, 4, 1] = value
    with pytest.warns(
        UserWarning, match="untrained model overflow or are NaN, so that it is no control"
    ):
        result = probes.fit(x, y, untrained=blank, method=method)
    bare = probes.fit(x, y, method=method)
    assert "untrained" in result.missing
    assert "so that it is no control" in str(result)
    assert result.score.estimate == bare.score.estimate
    assert result.controls.keys() == bare.controls.keys()
    assert result.verdict == "undecided"
    assert "overflow" in result.reason
    assert "overflow" not in (bare.warning or "")


def test_what_is_below_rounding_is_not_read(model, episodes):
    """The handwired latent holds the label at 1e-88 of its size; scaled to unit variance a probe would decode it."""
    run = interp.rollout(model, episodes)
    latents = run.latents.numpy()
    spread = latents[:, 1:].std((0, 1))
    dust = spread / np.abs(latents).max()
    assert ((dust > 0) & (dust < 1e-30)).any()
    result = probes.fit(run, probes.targets.label(episodes), method="ridge", n_untrained=0)
    assert result.r2 < 0.1
    assert result.verdict == "no"
    x = np.random.default_rng(0).normal(size=(10, 6, 2)).astype(np.float32) * [1, 1e-5]
    sum_of_columns = x[..., :1] + 1e5 * x[..., 1:]
    of_both = probes.fit(x.astype(np.float32), sum_of_columns)
    assert (of_both.weights != 0).all()


def test_a_no_is_not_said_of_features_that_were_not_read():
    """Beside an activation of 1e29 two features of size 1 are below its rounding; alone they say all of the target."""
    x = np.random.default_rng(0).normal(size=(16, 6, 3))
    wide, target = x * [1, 1, 1e29], x[..., :1]
    with pytest.warns(
        UserWarning,
        match="2 of 3 features vary by less than the rounding of the largest activation",
    ):
        probe_result = probes.fit(wide, target)
    assert probe_result.verdict == "undecided"
    assert "2 of 3 features" in probe_result.reason
    assert "2 of 3 features" in probe_result.warning
    assert probes.fit(wide / [1, 1, 1e29], target).r2 > 1 - 1e-9
    with pytest.warns(UserWarning, match="1 of 2 features vary"):
        assert probes.fit(wide[..., 1:], target).verdict == "undecided"
    assert probes.fit(x[..., 1:], target).verdict == "no"


def test_a_kind_of_probe_is_one_record_of_a_list(monkeypatch):
    """What stands in the list is fitted by its name, beside the others; a name that does not is refused with them."""
    monkeypatch.setitem(KINDS, "mine", replace(RIDGE, name="mine"))
    x = np.random.default_rng(0).normal(size=(20, 6, 4))
    result = probes.fit(x, x[..., :1], method="mine")
    assert result.method == "mine"
    assert result.r2 > 1 - 1e-9
    refuses(
        r"unknown method 'yours'.* Valid: logistic, mine, ridge",
        probes.fit,
        x,
        x[..., :1],
        method="yours",
    )


def test_recordings_that_are_drawn_again_give_noise_no_score():
    """Twelve recordings, drawn 128 times, and a target of noise: a recording is in one fold alone."""
    rng = np.random.default_rng(0)
    states, noise = rng.normal(size=(12, 10, 4)), rng.normal(size=(12, 10, 1))
    drawn = rng.integers(12, size=128)
    probe_result = probes.fit(states[drawn], noise[drawn])
    assert probe_result.settings["n_groups"] == 12
    assert probe_result.r2 < 0.02
    leaking = probes.fit(states[drawn], noise[drawn], groups="episode")
    assert leaking.r2 > 0.04
