"""The update part: what is compared with what, beside which controls, and how states are moved off the manifold."""

from itertools import product
from types import SimpleNamespace

import numpy as np
import pytest
import torch

import interp
from circuits.compare import update
from circuits.compare.question import (
    Budget,
    Compared,
    Participant,
    Samples,
    centre_states,
    centred_states,
    choose_penalty,
    pool_runs,
    pool_values,
    remove_irrelevant_constants,
    score_maps,
)
from circuits.compare.update import (
    FittedUpdate,
    StepScore,
    UpdatePart,
    _fit_extension,
    _fit_family,
    _make_member,
    _make_sort_key,
    _measure_decoding_r2,
    _measure_nonlinear_r2,
    _Steps,
    draw_strange_states,
    score_updates,
)
from interp.interventions.moves import Writer, transition
from interp.model.transformer import untrained
from interp.stats.decoder import RIDGE
from interp.stats.intervals import Interval
from interp.support.session import session
from interp.tasks.experts.algorithms import (
    bayes,
    follow_the_leader,
    majority_vote,
    weighted_majority,
)

SMALL = Budget(known=16, test=12, rounds=14, starts=2, horizon=3, battery=4, untrained=1, seed=4)


@pytest.fixture(scope="module")
def subjects():
    """A handwired machine and two untrained ones, on the same episodes."""
    model = interp.load("wma-handwired", n_experts=2)
    samples = Samples.draw(model, SMALL, {"n_experts": 2})
    with session():
        yield [Participant(m, samples) for m in (model, untrained(model, 0), untrained(model, 1))]


@pytest.fixture(scope="module")
def part(subjects):
    model, *fresh = subjects
    return score_updates(model, CANDIDATES, fresh, SMALL)


CANDIDATES = {
    "ftl": follow_the_leader(),
    "bayes": bayes(),
    "wm": weighted_majority(0.3),
    "vote": majority_vote(),
}
"""The last one carries no state, so the third is the one whose rules are fitted."""


@pytest.mark.long
def test_every_candidate_with_a_state_is_asked_on_and_off_the_manifold_and_near_and_far(
    part, subjects
):
    """Each number is that of the transition of its own algorithm, horizon and move, in the model and the controls."""
    conditions = [(u.algorithm, u.manifold, u.horizon) for u in part.updates]
    assert conditions == list(product(("ftl", "bayes", "wm"), ("on", "off"), (1, 3)))
    model = subjects[0]
    for measured in part.updates:
        algorithm = CANDIDATES[measured.algorithm]
        writer = model.writer(algorithm)
        keys = tuple(writer.shapes)
        moves = None
        if measured.manifold == "off":
            moves = draw_strange_states(pool_values(algorithm, model.samples), keys, SMALL)
        steps = _Steps(algorithm, keys, SMALL.at, measured.horizon, moves, model.penalty(algorithm))
        missed, varied = _pooled_steps(steps, model)
        assert len(missed) == SMALL.known + SMALL.test
        assert measured.r2 == score_maps(missed, varied)
        for control, score in zip(subjects[1:], measured.untrained, strict=True):
            missed_by_control, totals = steps.sum_squares(control, is_known=False)
            assert len(missed_by_control) == SMALL.test
            share_missed = missed_by_control.sum() / totals.sum()
            assert score == pytest.approx(1 - share_missed, abs=1e-12)
        assert measured.model == model.name
        assert measured.decoded == _measure_decoding_r2(writer, model, algorithm)
    assert part.updates[4].state == ("counts",)
    assert part.updates[4].missing == ("elapsed",)


def _pooled_steps(steps, subject):
    """What is missed of the steps of the pool, and how much they vary, ``[2, episode]``."""
    return np.concatenate(
        [steps.sum_squares(subject, is_known=is_known) for is_known in (True, False)], axis=1
    )


@pytest.mark.parametrize("moved", [False, True])
def test_each_step_is_decoded_by_a_fit_to_the_other_folds_of_the_pool(subjects, moved):
    """By hand: episode i of known, then test, is read (and moved) by a writer of those with another i modulo 5."""
    model, algorithm, n = subjects[1], CANDIDATES["wm"], SMALL.known
    values = pool_values(algorithm, model.samples)
    moves = draw_strange_states(values, ("log_weights",), SMALL) if moved else None
    steps = _Steps(algorithm, ("log_weights",), SMALL.at, 3, moves, RIDGE)
    missed, varied = _pooled_steps(steps, model)
    run = pool_runs(model)
    fold = np.arange(n + SMALL.test) % 5
    for rows, episodes in ((slice(n), model.samples.known), (slice(n, None), model.samples.test)):
        offsets = moves and {"log_weights": moves["log_weights"][rows]}
        for k in range(5):
            others = torch.from_numpy(fold != k)
            rest = {"log_weights": values["log_weights"][fold != k]}
            writer = Writer.fit(
                model.model, run.select(others), rest, ("log_weights",), ridge=RIDGE
            )
            transition_found = transition(
                model.model, episodes, writer, round=SMALL.at, horizon=3, by=offsets
            ).under(algorithm)
            mine = fold[rows] == k
            missed_by_hand = transition_found.missed.sum(1)
            assert missed[rows][mine] == pytest.approx(missed_by_hand[mine], rel=1e-6)
    assert varied.shape == missed.shape == (n + SMALL.test,)
    assert (missed > 0).all()


def test_rules_are_those_that_carry_the_last_candidates_state_the_closest_first(part, subjects):
    families = interp.tasks.get("experts").update_families()
    members = {key: _make_member(family, {}) for key, family in families.items()}
    carrying = {key for key, member in members.items() if "log_weights" in member.state}
    assert {rule.key for rule in part.fitted} == carrying
    assert len(part.fitted) == len(carrying) > 1
    first = part.fitted[0]
    assert first.parameters == {"gain": pytest.approx(0.3, rel=0.01)}  # no point of its grid
    assert first.r2.low > 0.99
    best_r2 = max(rule.r2.estimate for rule in part.fitted)
    assert first.r2.estimate == pytest.approx(best_r2, abs=1e-6)
    for rule in part.fitted:
        family = families[rule.key]
        assert rule.state == ("log_weights",)
        assert rule.name == family.name
        assert set(rule.parameters) == {p.name for p in family.searched if not p.used_by}


@pytest.mark.long
def test_what_a_rule_leaves_is_a_share_of_what_the_algorithm_leaves(subjects):
    """Against Weighted Majority of another gain, which is what a rule is fitted to be."""
    model, half = subjects[0], weighted_majority(0.15)
    half = remove_irrelevant_constants(half, model.samples.known)
    writer, test = model.writer(half), model.samples.test
    part = score_updates(model, {"wm": half}, [], SMALL)
    steps = transition(model.model, test, writer, round=SMALL.at)
    total_missed = steps.under(half).missed.sum()
    families = interp.tasks.get("experts").update_families()
    for rule in part.fitted:
        family = families[rule.key]
        if family.extends == half.key:
            continue
        centred = centre_states(_make_member(family, rule.parameters), ["log_weights"])
        missed = steps.under(centred).missed.sum()
        assert rule.left.estimate == pytest.approx(missed / total_missed)


def test_parameters_that_are_not_given_are_the_first_of_their_grids():
    family = interp.tasks.get("qlearning").update_families()["q_learning"]
    first = {p.name: p.grid[0] for p in family.searched}
    assert _make_member(family, {}).parameters == family.make(**first).parameters
    member = _make_member(family, {"gamma": 0.5})
    expected = family.make(**(first | {"gamma": 0.5}))
    assert member.parameters == expected.parameters


@pytest.fixture
def fake():
    """An algorithm with a variable that differs between episodes and one that is the round."""
    rng = np.random.default_rng(1)
    scale = np.arange(1, SMALL.rounds + 1)[:, None]
    q = rng.normal(size=(SMALL.test, SMALL.rounds, 2)) * scale
    elapsed = np.tile(np.arange(SMALL.rounds, dtype=float), (SMALL.test, 1))
    return SimpleNamespace(run=lambda episodes: {"q": q, "elapsed": elapsed}, q=q, elapsed=elapsed)


@pytest.mark.parametrize(
    "budget", [SMALL, Budget(), Budget(rounds=12, starts=9, horizon=1), Budget().of_rounds(3)]
)
def test_starts_end_where_the_state_that_is_read_was_decoding_r2(budget):
    """Each start is another round, and the state a horizon after the last one stands before a round."""
    assert len(set(budget.at)) == budget.starts
    assert budget.at == sorted(budget.at)
    assert max(budget.at) + budget.horizon == budget.rounds - 1
    assert SMALL.at == [2, 10]


def test_states_off_the_manifold_are_a_standard_deviation_away_and_rounds_an_eighth_of_their_range(
    fake,
):
    values = {"q": fake.q, "elapsed": fake.elapsed}
    rng = np.random.default_rng([4, 7])
    changes = draw_strange_states(values, ("q", "elapsed"), SMALL)
    here = fake.q[:, SMALL.at]
    there = here + rng.standard_normal((SMALL.test, 2, 2)) * here.std(0, keepdims=True)
    lowest, highest = fake.q.min((0, 1)), fake.q.max((0, 1))
    within = np.clip(there, lowest, highest)  # no element leaves its range
    assert (within != there).any()
    assert changes["q"] == pytest.approx(within - here)
    offsets = rng.standard_normal((SMALL.test, 2)) * (SMALL.rounds - 1) / 8
    here = fake.elapsed[:, SMALL.at]
    within = np.clip(here + offsets, 0, SMALL.rounds - 1) - here
    assert (within != offsets).any()
    assert changes["elapsed"] == pytest.approx(within)  # there is no later round


def test_a_set_off_the_manifold_is_another_set():
    is_reached = np.random.default_rng(0).random((200, SMALL.rounds, 5)) < 0.5
    sets = is_reached.astype(float)
    changes = draw_strange_states({"reached": sets}, ("reached",), SMALL)["reached"]
    flips = np.random.default_rng([4, 7]).random(changes.shape)
    here = sets[:, SMALL.at]
    expected = np.where(flips < 0.1, 1 - here, here)
    assert np.array_equal(here + changes, expected)


@pytest.mark.parametrize("worse", ["q", "elapsed"])
def test_what_a_decoder_reads_worst_is_its_score(fake, worse):
    """Of two variables one is read with an error of a quarter of its variance, the other with a hundredth."""
    true = {"q": fake.q, "elapsed": fake.elapsed}
    read = {}
    for key, values in true.items():
        deviations = values - values.mean((0, 1))
        read[key] = values + deviations * (0.5 if key == worse else 0.1)
    latents = np.zeros((SMALL.test, SMALL.rounds + 1, 1))
    run = SimpleNamespace(latents=latents)
    subject = SimpleNamespace(samples=SimpleNamespace(test=None), run=lambda episodes: run)
    calls = []

    def read_latents(latents):
        calls.append(latents.shape[1])
        return read

    writer = SimpleNamespace(shapes=("q", "elapsed"), read=read_latents)
    assert _measure_decoding_r2(writer, subject, fake) == pytest.approx(0.75)
    assert calls == [SMALL.rounds]  # the latents before each round


def test_a_non_linear_decoder_reads_a_curved_code_and_no_noise(monkeypatch):
    """A state behind a tanh, and noise; the worst variable is the score."""
    rng = np.random.default_rng(0)
    states = {key: np.cumsum(rng.normal(size=(60, 6, 1)), 1) for key in ("held", "noise")}
    states["still"] = np.ones((60, 6, 1))
    curved = np.tanh(states["held"] / 2)
    carried = np.stack([curved, rng.normal(size=(60, 6, 1))], 2)
    latents = torch.from_numpy(np.concatenate([carried, carried[:, -1:]], 1))
    monkeypatch.setattr(update, "pool_runs", lambda subject: SimpleNamespace(latents=latents))
    monkeypatch.setattr(update, "pool_values", lambda algorithm, samples: states)
    subject = SimpleNamespace(samples=SimpleNamespace(known=range(40)))
    scores = {keys: _measure_nonlinear_r2(subject, None, keys) for keys in (("held",), ("noise",))}
    assert scores["held",] > 0.8
    assert scores["noise",] < 0.2
    assert _measure_nonlinear_r2(subject, None, ("held", "noise")) == pytest.approx(
        scores["noise",]
    )
    assert _measure_nonlinear_r2(subject, None, ("still",)) == 1


def test_a_penalty_is_left_out_where_that_adds_more_than_a_hundredth():
    assert choose_penalty(lambda ridge: 3.0 if ridge else 1.9, error_of_mean=100.0) == 0
    assert choose_penalty(lambda ridge: 3.0 if ridge else 2.1, error_of_mean=100.0) == RIDGE
    assert choose_penalty(lambda ridge: 3.0 if ridge else 4.0, error_of_mean=100.0) == RIDGE


def test_what_no_prediction_reads_of_a_state_is_not_asked_for():
    """The sum of log-weights and of a leader's counts is free; that of the counts of Bayes and of a table is not."""
    experts = interp.tasks.get("experts")
    mdps = interp.tasks.get("qlearning")
    episodes = experts.for_half(0).sample(8, 6, seed=0, n_experts=3)
    assert centred_states(remove_irrelevant_constants(weighted_majority(0.3), episodes)) == (
        "log_weights",
    )
    assert centred_states(remove_irrelevant_constants(bayes(), episodes)) == ()
    played = mdps.for_half(0).sample(8, 6, seed=0, n_states=3, n_actions=2)
    q_learning = mdps.update_families()["q_learning"].make(alpha=0.1, gamma=0.9)
    assert centred_states(remove_irrelevant_constants(q_learning, played)) == ()


def test_a_centred_state_has_no_mean_and_predicts_the_same():
    episodes = interp.tasks.get("experts").for_half(0).sample(8, 6, seed=0, n_experts=3)
    plain = weighted_majority(0.3)
    centred = centre_states(plain, ["log_weights", "none of its states"])
    values, others = plain.run(episodes), centred.run(episodes)
    expected = values["log_weights"] - values["log_weights"].mean(-1, keepdims=True)
    assert others["log_weights"] == pytest.approx(expected)
    assert centred.distribution(others) == pytest.approx(plain.distribution(values))
    assert (centred.key, centred.parameters) == (plain.key, plain.parameters)


def test_a_family_is_taken_where_it_leaves_least(monkeypatch):
    """An extension at a point of its grid, another one between them, without what enters the prediction alone."""
    family = interp.tasks.get("qlearning").update_families()["trace_q"]
    grid = next(s.grid for s in family.searched if s.name == "trace")
    zero_step = SimpleNamespace(
        missed=np.ones((4, 1)), varied=np.full((4, 1), 2.0), participants=None
    )
    ones, half = np.ones((4, 1)), Interval(0.5, 0.4, 0.6)
    under = SimpleNamespace(missed=ones, varied=ones, r2=lambda seed: half)

    def steps(model, episodes, writer, round):
        distance_from_best = lambda made: abs(made.parameters["trace"] - grid[1])  # noqa: E731
        return SimpleNamespace(
            compute_residual_share=distance_from_best, under=lambda made: under, shapes=("q",)
        )

    monkeypatch.setattr(update, "transition", steps)
    samples = SimpleNamespace(other=None, test=None)
    subject = SimpleNamespace(
        model=None,
        samples=samples,
        writer=lambda made, keys, penalty: None,
        penalty=lambda algorithm: 0.0,
    )
    q_learning = interp.tasks.get("qlearning").update_families()["q_learning"]
    base = q_learning.make(alpha=0.1, gamma=0.9)
    distance_from_best, rule = _fit_extension(subject, family, base, ("q",), zero_step, SMALL)
    assert distance_from_best == 0
    assert rule.parameters == {"alpha": 0.1, "gamma": 0.9, "trace": grid[1]}
    # As much of its own steps as the algorithm of twice its own.
    assert rule.left.estimate == pytest.approx(2)

    def left(made):
        alpha, gamma = made.parameters["alpha"], made.parameters["gamma"]
        return abs(alpha - 0.3) + abs(gamma - 0.6)

    fits = SimpleNamespace(compute_residual_share=left)
    family = interp.tasks.get("qlearning").rivals()["q_learning"]
    _, rule = _fit_family(family, base, fits, steps(*"abcd"), zero_step, 0)
    assert rule.parameters == pytest.approx({"alpha": 0.3, "gamma": 0.6}, abs=0.01)


def test_an_extension_that_leaves_hardly_less_than_what_it_extends_comes_after_it():
    """More than half of what that leaves; one that leaves half, or more than it, stands by what it leaves."""
    assert [_make_sort_key(missed, 1.0) for missed in (0.5, 0.6, 1.0, 1.1)] == [
        (0.5, 0),
        (1.0, 0.6),
        (1.0, 1.0),
        (1.1, 0),
    ]
    assert _make_sort_key(0.6, np.inf) == (0.6, 0)


@pytest.mark.parametrize("is_one", [False, True])
def test_an_algorithm_without_a_state_has_no_update_to_compare(is_one):
    """Nothing is decoded of a majority vote, also where the two machines are one."""
    closest = SimpleNamespace(closest="majority_vote", scores={"majority_vote": majority_vote()})
    compared = object.__new__(Compared)
    compared.__dict__.update(
        model=SimpleNamespace(model=None),
        reference=None,
        is_same_machine=is_one,
        expected=majority_vote(),
        parts={"algorithm": closest, "update": UpdatePart(())},
    )
    measure = update.UPDATE.measure(compared)
    assert measure.verdict == "not applicable"
    assert measure.reason == "majority_vote carries no state"


def test_the_table_has_a_row_for_each_step_with_its_best_control_and_one_for_each_rule():
    steps = [
        StepScore(
            "m",
            "wm",
            ("a", "b"),
            ("c",),
            0.9,
            np.nan,
            "on",
            1,
            Interval(0.7, 0.6, 0.8),
            (0.2, 0.4, 0.3),
        ),
        StepScore("m", "wm", ("a",), (), 0.9, np.nan, "off", 5, Interval(0.5, 0.4, 0.55), ()),
    ]
    residual = Interval(0.6, 0.5, 0.7)
    rules = (
        FittedUpdate(
            "q",
            "Q",
            ("a", "b"),
            {"alpha": 0.123456, "gamma": 0.5},
            Interval(0.3, 0.1, 0.4),
            residual,
        ),
    )
    first, second, third = UpdatePart(tuple(steps), rules).to_frame().to_dict("records")
    record = {
        "name": "step R2",
        "model": "m",
        "algorithm": "wm",
        "state": "a + b",
        "not decodable": "c",
    }
    record |= {"decoded R2": 0.9, "manifold": "on", "horizon": 1, "untrained": 0.4}
    assert (
        record | {"number": 0.7, "number_low": 0.6, "number_high": 0.8}
    ).items() <= first.items()
    assert (second["manifold"], second["horizon"]) == ("off", 5)
    assert np.isnan(second["untrained"])
    record = {
        "name": "fitted update",
        "algorithm": "q",
        "parameters": "alpha 0.123, gamma 0.5",
        "state": "a + b",
    }
    record |= {"manifold": "on", "horizon": 1, "left": 0.6, "left_low": 0.5, "left_high": 0.7}
    assert (
        record | {"number": 0.3, "number_low": 0.1, "number_high": 0.4}
    ).items() <= third.items()
