"""Graded effects: decoded variables are moved alone, scores tell algorithms apart, states follow their steps."""

from dataclasses import replace

import numpy as np
import pytest
import torch

import interp
from interp.interventions.interchange import InterchangeResult
from interp.interventions.moves import Transition, Writer, decodable, move, transition
from interp.model.transformer import untrained
from interp.tasks import experts
from interp.tasks.experts.algorithms import bayes, weighted_majority
from tests.refusals import refuses

pytestmark = pytest.mark.usefixtures("one_session")


def _result(effect: float, wanted: float) -> InterchangeResult:
    """Two pairs whose outcome moves by ``effect`` where ``wanted`` was asked for."""
    flags = np.ones((2, 1), dtype=bool)
    full = np.ones((2, 1, 1))
    return InterchangeResult(
        "x", ("y",), "state", flags, ~flags, flags, full[..., 0], effect * full, wanted * full
    )


@pytest.mark.parametrize(
    ("effect", "score", "slope"),
    [
        (2.0, 1.0, 1.0),
        (1.0, 0.75, 0.5),
        (0.0, 0.0, 0.0),
        (4.0, 0.0, 2.0),
    ],
)
def test_score_and_slope_on_a_napkin(effect, score, slope):
    """Of 2 that are wanted: all, half, none and twice as much."""
    result = _result(effect, 2.0)
    assert result.score().estimate == pytest.approx(score)
    assert result.slope().estimate == pytest.approx(slope)


@pytest.fixture(scope="module")
def learned():
    """wma-learned-additive, 48 episodes, and a writer of Bayes' state fitted on others."""
    model = interp.load("wma-learned-additive")
    known, episodes = (experts.sample(48, 16, 4, seed=seed) for seed in (0, 1))
    writer = Writer.of_state(model, interp.rollout(model, known), bayes(), known)
    return model, episodes, writer


def test_the_learned_model_holds_the_round_and_uses_it_as_bayes_does(learned):
    """The cleanest test: the round alone is nothing to Weighted Majority, and the model follows Bayes."""
    model, episodes, writer = learned
    assert tuple(writer.shapes) == ("counts", "elapsed")
    rounds, later = range(4, 14), {"elapsed": 10.0}
    own_move = move(model, episodes, bayes(), writer, later, round=rounds)
    rival = move(model, episodes, weighted_majority(), writer, later, round=rounds)
    assert own_move.score().low > 0.95
    assert np.abs(own_move.wanted).max() > 0.01
    assert np.abs(rival.wanted).max() < 1e-12
    placebo = move(model, episodes, bayes(), writer.placebo(), later, round=rounds)
    assert placebo.score().high < 0.2


def test_counts_move_alone_and_as_bayes_wants(learned):
    """All counts at once from other episodes: score above .95; under Weighted Majority a good deal less."""
    model, episodes, writer = learned
    rounds = slice(4, 14)
    later_counts = bayes().run(experts.sample(48, 16, 4, seed=2))["counts"]
    before = bayes().run(episodes)["counts"]
    own_move = move(
        model,
        episodes,
        bayes(),
        writer,
        {"counts": (later_counts - before)[:, rounds]},
        round=rounds,
    )
    assert own_move.score().low > 0.95


def test_a_learned_state_is_closed_under_bayes_update_and_an_untrained_one_is_not(learned):
    """Step R2 of counts and round, where episodes go and where none went; an untrained network loses its reading."""
    model, episodes, writer = learned
    starts = [3, 6, 9]
    counts = np.random.default_rng(0).integers(-2, 3, (48, 3, 4))
    strange = {"counts": counts.astype(np.float64)}
    for horizon, change in ((1, None), (5, None), (1, strange), (5, strange)):
        step = transition(model, episodes, writer, round=starts, horizon=horizon, by=change).under(
            bayes()
        )
        assert step.r2().low > 0.98
    relabelled = replace(episodes, labels=episodes.labels.copy(), advice=episodes.advice.copy())
    relabelled.labels[:, 0] = relabelled.labels[0, 0]
    relabelled.advice[:, 0] = relabelled.advice[0, 0]
    figure = transition(model, relabelled, writer, round=[0, 3]).under(bayes()).plot()
    line = figure.axes[0].lines[0]
    first, later = line.get_ydata()
    assert np.isnan(first)  # nothing varies in the first round: it has no R2
    assert not np.isnan(later)
    control = untrained(model, 0)
    known = experts.sample(48, 16, 4, seed=0)
    reading = Writer.fit(
        control,
        interp.rollout(control, known),
        bayes().run(known),
        ("counts", "elapsed"),
        ridge=1e-3,
    )
    step = transition(control, episodes, reading, round=starts).under(bayes())
    assert step.r2().high < 0.9


def test_the_residual_share_leaves_out_what_does_not_change():
    """Counts change as Bayes says; the round stands still, with an error of 1 in a unit of its own."""
    episodes = experts.sample(4, 6, 3, seed=0)
    before = {key: bayes().run(episodes)[key][:, [2]] for key in ("counts", "elapsed")}
    shapes = {key: values.shape[2:] for key, values in before.items()}
    steps = Transition(episodes, (2,), horizon=1, shapes=shapes, before=before, after=before)
    after = before | {"counts": steps.goal(bayes())["counts"]}
    assert np.array_equal(steps.goal(bayes())["elapsed"], before["elapsed"] + 1)
    assert replace(steps, after=after).compute_residual_share(bayes()) == 0
    assert np.isnan(steps.compute_residual_share(bayes()))  # nothing changes


def test_the_handwired_latent_holds_no_round(wma):
    """The round can be guessed from counts that add up with it, and is not decodable beyond that."""
    episodes = experts.sample(32, 12, 3, seed=0)
    values = bayes().run(episodes)
    run = interp.rollout(wma[1], episodes)
    assert decodable(run, values, ("counts", "elapsed")) == ("counts",)
    without_model = replace(run, model=None)  # as a rollout with hooks, or one from a file
    assert decodable(without_model, values, ("counts", "elapsed")) == ("counts",)


def test_a_writer_at_a_position_moves_the_prediction_alone(wma):
    """Log-weights at p? drive the prediction and not the state, as the circuit says."""
    circuit, model = wma
    known, episodes = (experts.sample(32, 10, 3, seed=seed) for seed in (0, 1))
    algorithm = circuit.algorithm
    writer = Writer.fit(
        model,
        interp.rollout(model, known),
        algorithm.run(known),
        ("log_weights",),
        "resid_post[1]@p?",
    )
    change = {"log_weights": [0.5, 0.0, -0.5]}
    of_prediction = move(model, episodes, algorithm, writer, change)
    assert of_prediction.score().estimate == pytest.approx(1)
    of_state = move(model, episodes, algorithm, writer, change, outcome="state")
    assert np.abs(of_state.effect).max() < 1e-9
    largest_change = np.abs(of_state.wanted).max()
    assert largest_change == pytest.approx(0.5)


def test_what_cannot_be_moved_is_refused(wma, learned):
    circuit, model = wma
    episodes = experts.sample(8, 6, 3, seed=0)
    run, values = interp.rollout(model, episodes), circuit.algorithm.run(episodes)
    refuses("inside a head", Writer.fit, model, run, values, ("log_weights",), "L1H0@p?")
    writer = Writer.fit(model, run, values, ("log_weights",))
    refuses(
        "one variable is moved at a time; by= holds none",
        move,
        model,
        episodes,
        circuit.algorithm,
        writer,
        {},
    )
    refuses(
        "the variable has shape",
        move,
        model,
        episodes,
        circuit.algorithm,
        writer,
        {"log_weights": np.zeros(5)},
    )
    refuses(
        "unknown variable of this writer 'counts'",
        move,
        model,
        episodes,
        circuit.algorithm,
        writer,
        {"counts": 1.0},
    )
    refuses(
        "the last one to start from is 4", transition, model, episodes, writer, round=[5], horizon=2
    )
    latents, change = torch.zeros(1, model.config.d_model), torch.zeros(2)
    refuses("a change of shape", writer.decoder.move, latents, change)
