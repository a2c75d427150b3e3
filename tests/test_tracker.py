"""Real numbers as outcomes, on the tracker of ``examples/tracker.py``: a filter whose every answer is known."""

import importlib
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from torch.testing import assert_close

import interp
from circuits.compare.algorithm import explain
from circuits.compare.driver import machines as compare
from circuits.compare.question import Budget
from interp.choices.fitting import checked_distributions, predictor
from interp.core import catalog
from interp.core.algorithm import Algorithm, Family, Searched
from interp.core.task import shift_by_one_episode
from interp.interventions.alignment import AlignmentError, align
from interp.interventions.interchange import interchange
from interp.interventions.pairs import find_metric, name_output_metrics
from interp.interventions.patching import round_map, sweep
from interp.tasks.experts.layout import ExpertRound
from interp.training.batches import RoundsLoss, encode, measure_progress
from interp.training.config import Stage, TrainingConfig
from interp.training.goal import TrainingGoal
from interp.training.trainer import train
from reports.comparison import write
from reports.explore import Explorer, View
from tests import machines
from tests.refusals import refuses


@pytest.fixture
def tracker(monkeypatch):
    """The example, its task registered for one test, with what a transformer is to learn."""
    example = importlib.import_module("tracker")
    goal = TrainingGoal(targets=lambda episodes: episodes.readings[..., None])
    monkeypatch.setitem(
        catalog.REGISTERED, "tracker", replace(example.TRACKER, training=lambda: goal)
    )
    return example


@pytest.fixture
def of_means(tracker, monkeypatch):
    """The same task, but only the mean is predicted."""

    class MeanRound(tracker.TrackerRound):
        kind = "mean"

    def losses(predictions, episodes, rounds):
        truth = torch.from_numpy(episodes.readings[:, rounds])
        return MeanRound().loss(predictions, truth)

    task = replace(
        catalog.get("tracker"), data=replace(tracker.TRACKER.data, layout=MeanRound, losses=losses)
    )
    monkeypatch.setitem(catalog.REGISTERED, "tracker", task)
    return MeanRound()


def transformer(layout: Any, **options: Any) -> Any:
    return machines.transformer(layout, init_std=0.5, **options).double()


def exchange(episodes: Any, t: int) -> Any:
    return replace(
        episodes,
        sensors=shift_by_one_episode(episodes.sensors, t),
        readings=shift_by_one_episode(episodes.readings, t),
    )


def test_losses_are_squares_and_negative_log_densities(tracker, of_means):
    drawn = torch.randn(3, 4, 5, 2, dtype=torch.float64)
    truth = torch.randn(4, 5, dtype=torch.float64)
    means, log_variances = drawn.unbind(-1)
    density = torch.distributions.Normal(means, (log_variances / 2).exp())
    of_densities = tracker.TrackerRound()
    assert_close(of_densities.loss(drawn, truth), -density.log_prob(truth))
    assert_close(of_means.loss(means, truth), (means - truth) ** 2)
    assert torch.equal(of_means.choose(means), means)
    assert torch.equal(of_densities.choose(drawn), means)
    p = torch.tensor([0.25, 0.75])
    losses = ExpertRound(2).loss(p, torch.tensor([0, 1]))
    assert losses.tolist() == pytest.approx([0.25, 0.25])
    message = r"predictions of shape \(3, 4, 5\) do not fit a truth of shape \(5, 4\)"
    refuses(message, of_means.loss, means, truth.T)
    message = "the truth of classes is an index from 0 to 1"
    refuses(message, ExpertRound(2).loss, p, torch.tensor([0, 2]))


@pytest.mark.parametrize(
    "make",
    [
        pytest.param(lambda tracker: tracker.make_handwired(), id="handwired"),
        pytest.param(lambda tracker: tracker.train_gru(1), id="GRU"),
        pytest.param(
            lambda tracker: transformer(tracker.TrackerRound(), output="value"), id="transformer"
        ),
    ],
)
def test_both_machines_and_a_transformer_keep_the_contract(tracker, make):
    machine = make(tracker)
    interp.check_machine(machine)
    run = interp.rollout(machine, tracker.sample(3, 4))
    assert run.predictions.shape == (3, 4, 2)
    assert torch.equal(run.choices, run.predictions[..., 0])


def test_the_filter_by_hand_is_the_algorithm(tracker):
    episodes, machine = tracker.sample(32, 40, seed=3), tracker.make_handwired()
    run = interp.rollout(machine, episodes)
    values = tracker.kalman().run(episodes)
    beliefs = machine.read_state(run.latents[:, 1:]).numpy()
    assert np.abs(beliefs - values["next_belief"]).max() < 1e-9
    differences = run.predictions.numpy() - tracker.kalman().distribution(values)
    assert np.abs(differences).max() < 1e-9
    # It says how uncertain it is: standardised errors have variance 1.
    errors = (episodes.readings - values["mean"]) / np.sqrt(values["spread"])
    assert errors.var() == pytest.approx(1, abs=0.1)


def test_a_layout_and_its_output_must_fit(tracker):
    refuses(
        r"'tracker' predicts a real number \('normal'\): its output must be 'value'",
        transformer,
        tracker.TrackerRound(),
    )
    refuses(
        r"'experts' predicts outcomes .* must be 'logits or probability', got 'value'",
        transformer,
        ExpertRound(2),
        output="value",
    )

    def one_number(m: Any, carried: Any, fed: Any) -> Any:
        return m(carried["h"]), carried

    linear = torch.nn.Linear(1, 1)
    channels = [interp.Channel("h", (1,))]
    refuses(
        "rounds of 'tracker' predict a real number: output must be 'value', or None",
        interp.adapt,
        linear,
        tracker.TRACKER,
        step=one_number,
        channels=channels,
        output="logits",
    )
    refuses(
        r"scores are \[batch, outcome\] = \[4, 2\], one for each of mean, log variance, got \[4, 1\]",
        interp.adapt,
        linear,
        tracker.TRACKER,
        step=one_number,
        channels=channels,
    )


def test_a_mean_may_come_without_an_axis(tracker, of_means):
    def updated(m: Any, carried: Any, fed: Any) -> Any:
        error = fed.values[:, 4:5] - carried["h"]
        return {"h": carried["h"] + m(error)}

    def step_without_axis(m: Any, carried: Any, fed: Any) -> Any:
        return carried["h"][:, 0], updated(m, carried, fed)

    def step_with_axis(m: Any, carried: Any, fed: Any) -> Any:
        return carried["h"], updated(m, carried, fed)

    channels = [interp.Channel("h", (1,))]
    for step in (step_without_axis, step_with_axis):
        machine = interp.adapt(torch.nn.Linear(1, 1), of_means, step=step, channels=channels)
        assert interp.rollout(machine, tracker.sample(3, 4)).predictions.shape == (3, 4)


@pytest.mark.parametrize("kind", ["mean", "normal"])
def test_real_predictions_are_patched_by_metrics_that_fit(tracker, request, kind):
    layout = request.getfixturevalue("of_means") if kind == "mean" else tracker.TrackerRound()
    model, clean = transformer(layout, output="value"), tracker.sample(6, 8, seed=1)
    corrupted, sites = exchange(clean, 4), ["latent", "embed@sensor", "embed@y"]
    assert name_output_metrics(layout) == ("prediction", "state")
    assert find_metric(None, layout).key == "prediction"
    clean_choices = interp.rollout(model, clean, commit="target").choices[:, 4]
    corrupted_choices = interp.rollout(model, corrupted, commit="target").choices[:, 4]
    differences = (clean_choices - corrupted_choices).numpy()
    swept = {
        key: sweep(model, clean, corrupted, 4, sites=sites, metric=key)
        for key in ("prediction", "squared_error", "regret")
    }
    by_prediction, by_squared_error = swept["prediction"], swept["squared_error"]
    assert by_prediction.source.tolist() == pytest.approx(abs(differences))
    assert (by_prediction.base == 0).all()
    assert (by_squared_error.source == 0).all()
    assert by_squared_error.base.tolist() == pytest.approx(differences**2)
    for result in swept.values():  # the histories differ alone: all of it is in the latent
        assert result.fractions() == pytest.approx([1, 0, 0], abs=1e-9)
    assert sweep(model, clean, corrupted, 4, sites=sites).metric == "prediction"
    assert (
        round_map(model, clean, corrupted, "latent", round=[4, 5]).table["metric"][0]
        == "prediction"
    )
    for key in ("logit_diff", "probability", "agreement"):
        refuses(
            (
                rf"metric '{key}' cannot read predictions of 'tracker', a real number \('{kind}'\); take regret, "
                "state, prediction, squared_error"
            ),
            sweep,
            model,
            clean,
            corrupted,
            4,
            sites=sites,
            metric=key,
        )


def test_interchange_grades_numbers(tracker, of_means):
    """In the filter itself every variable is where it says: all of the effect, and none in another place."""
    base, source = (tracker.sample(8, 10, seed=seed) for seed in (0, 1))
    refuses(
        r"must predict mean as \[episode, round, number\] \(8, 10, 1\), got shape \(8, 10, 2",
        interchange,
        _means(tracker, of_means),
        base,
        source,
        tracker.kalman(),
        "mean",
        "latent@mean",
    )
    machine = _means(tracker, of_means)
    exact = replace(tracker.kalman(), distribution=lambda v: v["mean"][..., None])
    interchanged = interchange(machine, base, source, exact, "mean", "latent@mean")
    assert interchanged.score().estimate == pytest.approx(1)
    assert interchanged.iia == 1
    assert interchanged.error.max() < 1e-9
    wrong = interchange(machine, base, source, exact, "mean", "latent@variance")
    assert (wrong.effect == 0).all()
    assert wrong.score().estimate == 0
    assert wrong.iia_informative == 0
    written = interchange(machine, base, source, exact, "belief", "latent", outcome="state")
    assert written.score().estimate == pytest.approx(1)
    assert written.error.max() < 1e-9


def _means(tracker: Any, layout: Any) -> Any:
    machine = tracker.make_handwired()

    def step(m: Any, carried: Any, fed: Any) -> Any:
        _, after = machine.one_step(m, carried, fed)
        return carried["mean"], after

    return interp.adapt(
        machine.module,
        layout,
        channels=machine.channels,
        name="means",
        initial=machine.make_start,
        read=machine.state_reader,
        step=step,
    )


def test_interchange_grades_means_and_variances(tracker):
    base, source = (tracker.sample(8, 10, seed=seed) for seed in (0, 1))
    machine = tracker.make_handwired()
    for variable, site in (
        ("mean", "latent@mean"),
        ("variance", "latent@variance"),
        ("belief", "latent"),
    ):
        interchanged = interchange(machine, base, source, tracker.kalman(), variable, site)
        assert interchanged.score().estimate == pytest.approx(1)
        assert interchanged.iia == 1


def test_what_is_learned_from_choices_says_that_there_are_none(tracker):
    base, source = (tracker.sample(8, 6, seed=seed) for seed in (0, 1))
    machine = tracker.make_handwired()
    with pytest.raises(
        AlignmentError,
        match=r"learned from choices, and 'kalman' predicts a real number \('normal'\)",
    ):
        align(machine, base, source, tracker.kalman(), "mean", "latent@mean")


def smoothing(tracker: Any, gain: float) -> Algorithm:
    """The filter with a gain that never changes."""

    def constant_gain(values: Any) -> Any:
        return np.full_like(values["spread"], gain)

    exact = tracker.kalman()
    variables = []
    for variable in exact.variables:
        if variable.key == "gain":
            variable = replace(variable, equation=constant_gain)
        variables.append(variable)
    return replace(exact, key="smoothing", parameters={"gain": gain}, variables=tuple(variables))


@pytest.mark.parametrize("kind", ["mean", "normal"])
def test_families_are_told_apart_by_real_predictions(tracker, request, kind):
    layout = request.getfixturevalue("of_means") if kind == "mean" else tracker.TrackerRound()
    task = catalog.get("tracker")
    assert task.kind == kind

    def of(make: Any, **parameters: Any) -> Algorithm:
        member = make(**parameters)
        if kind == "normal":
            return member
        return replace(member, distribution=lambda v: v["mean"][..., None])

    kalman = Family("kalman", "the filter", partial(of, tracker.kalman))
    make_smoothing = partial(of, partial(smoothing, tracker))
    gains = (Searched("gain", (0.1, 0.4, 0.7)),)
    families = [kalman, Family("smoothing", "smoothing", make_smoothing, gains)]
    pair = tracker.sample(24, 20, seed=0), tracker.sample(24, 20, seed=1)
    subjects = {"kalman": tracker.make_handwired() if kind == "normal" else _means(tracker, layout)}
    subjects["smoothing"] = families[1].make(gain=0.3)
    for key, subject in subjects.items():
        explanation = explain(subject, task, {"even": pair}, seed=0, families=families)
        assert explanation.family == key, str(explanation)
        assert explanation.baseline == "evenly", str(explanation)
        assert explanation.explained.low > 0.99, str(explanation)
        assert explanation.scores["evenly"].name == "the same at every round"
    assert explanation.parameters["gain"] == pytest.approx(0.3, abs=1e-3)
    predictions = predictor(subjects["smoothing"])(pair[0])
    n_numbers = predictions.shape[-1]
    message = f"predictions of the kind '{kind}' must be {n_numbers} finite numbers a round"
    refuses(message, checked_distributions, predictions * np.nan, pair[0])


@pytest.mark.long
def test_machines_that_predict_numbers_are_compared(tracker, tmp_path):
    """The filter is itself in all that can be asked of it; one that believes every reading alike predicts otherwise."""
    budget = Budget(
        known=24,
        test=12,
        rounds=12,
        horizon=3,
        starts=3,
        battery=6,
        scored=24,
        edits=60,
        untrained=1,
    )
    machine = tracker.make_handwired()
    with_itself = compare(machine, machine, budget=budget)
    assert {measure.verdict for measure in with_itself if measure.key != "circuit"} == {"yes"}
    assert "has no attention heads" in str(with_itself)
    assert with_itself.algorithm.family == "kalman"
    twin = tracker.make_handwired()
    with torch.no_grad():
        twin.module.weight.fill_(1.0)
    comparison_of_twins = compare(twin, machine, budget=budget)
    assert comparison_of_twins["behaviour"].verdict == "no"
    assert comparison_of_twins.failures[0].nats > 0
    for comparison in (with_itself, comparison_of_twins):
        page = write(comparison, tmp_path).read_text()
        assert "mean of both Kullback-Leibler divergences of the predictions" in page
        assert "Jensen-Shannon" not in page
        assert "P(first outcome)" not in page


@pytest.mark.long
def test_a_transformer_learns_numbers(tracker, tmp_path):
    model, episodes = (
        transformer(tracker.TrackerRound(), output="value"),
        tracker.sample(6, 5, seed=2),
    )
    loss, _ = RoundsLoss(model, "target")(encode(episodes, model.layout))
    run = interp.rollout(model, episodes)
    expected = tracker.losses(run.predictions, episodes).mean().item()
    assert loss.item() == pytest.approx(expected, rel=1e-5)
    both_losses = {"loss": expected, "excess": expected}
    assert measure_progress(model, [episodes], "own") == pytest.approx(both_losses)
    gru = tracker.train_gru(1)
    loss_of_gru, _ = RoundsLoss(gru, "target")(encode(episodes, gru.layout))
    run = interp.rollout(gru, episodes)
    expected = tracker.losses(run.predictions, episodes).mean()
    assert loss_of_gru.item() == pytest.approx(expected.item())
    sizes = {
        "d_model": 16,
        "n_layers": 1,
        "n_heads": 2,
        "d_mlp": 16,
        "batch_size": 16,
        "eval_episodes": 16,
    }
    config = TrainingConfig(
        task="tracker", stages=(Stage(n_rounds=6, steps=60),), eval_rounds=6, lr=1e-2, **sizes
    )
    learned = interp.load(str(train(config, tmp_path / "run", name="numbers")))
    assert learned.config.output == "value"
    held_out = tracker.sample(64, 6, seed=9)
    run_before = interp.rollout(learned.untrained(), held_out)
    loss_before = tracker.losses(run_before.predictions, held_out).mean()
    run_after = interp.rollout(learned, held_out)
    loss_after = tracker.losses(run_after.predictions, held_out).mean()
    assert loss_after < loss_before - 0.2


def test_a_live_page_goes_on_from_a_moved_belief_exactly_as_the_filter(tracker):
    answer, _ = Explorer(tracker.make_handwired()).answer(
        View.of("rounds=6&edit=move+3+belief.0+2")
    )
    assert answer.differences()["machine"][3] == pytest.approx(2, abs=1e-4)
    assert answer.outcome == 0
    assert np.allclose(answer.machine[1], answer.algorithm[1], atol=1e-4)
    assert len(answer.frame()) == 12
