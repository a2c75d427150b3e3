"""The update part: what is compared with what, beside which controls, and how states are moved off the manifold."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest

import interp
from circuits.compare.question import Effort, Samples, Subject
from circuits.compare.update import Rule, Update, UpdatePart, _decoded, _made, strange, updates
from interp import tasks
from interp.decoder import RIDGE
from interp.interventions.steps import transition
from interp.model.transformer import untrained
from interp.session import session
from interp.statistics import Interval
from interp.tasks.experts.algorithms import bayes, follow_the_leader, majority_vote, weighted_majority

SMALL = Effort(known=16, test=12, rounds=14, starts=2, horizon=3, battery=4, untrained=1, seed=4)


@pytest.fixture(scope="module")
def subjects():
    """A handwired machine and two untrained ones, on the same episodes."""
    model = interp.load("wma-handwired", n_experts=2)
    samples = Samples.draw(model, SMALL, {"n_experts": 2})
    with session():
        yield [Subject(m, samples) for m in (model, untrained(model, 0), untrained(model, 1))]


@pytest.fixture(scope="module")
def part(subjects):
    model, *fresh = subjects
    return updates(model, CANDIDATES, fresh, SMALL)


CANDIDATES = {"ftl": follow_the_leader(), "bayes": bayes(), "wm": weighted_majority(0.3), "vote": majority_vote()}
"""The last one carries no state, so the third is the one whose rules are fitted."""


def test_every_candidate_with_a_state_is_asked_on_and_off_the_manifold_and_near_and_far(part, subjects):
    """Each number is that of the transition of its own algorithm, horizon and move, in the model and the controls."""
    assert [(u.algorithm, u.manifold, u.horizon) for u in part.updates] == [
        (key, manifold, horizon) for key in ("ftl", "bayes", "wm") for manifold in ("on", "off") for horizon in (1, 3)
    ]
    model, test = subjects[0], subjects[0].samples.test
    for found in part.updates:
        algorithm = CANDIDATES[found.algorithm]
        writer = model.writer(algorithm)
        by = strange(algorithm, model, writer, SMALL) if found.manifold == "off" else None
        scores = [
            transition(s.model, test, w, starts=SMALL.at, horizon=found.horizon, by=by).under(algorithm).r2(SMALL.seed)
            for s, w in [(model, writer), *((s, s.writer(algorithm, tuple(writer.shapes))) for s in subjects[1:])]
        ]
        assert (found.r2, found.untrained) == (scores[0], tuple(score.estimate for score in scores[1:]))
        assert found.model == model.name and found.decoded == _decoded(writer, model, algorithm)
    assert part.of("bayes") == list(part.updates[4:8]) and part.of("vote") == []
    assert part.of("bayes")[0].state == ("counts",) and part.of("bayes")[0].missing == ("elapsed",)
    assert part.settings == {"starts": SMALL.at, "ridge": RIDGE, "strange": 1.0, "seed": 4}


def test_rules_are_those_that_carry_the_last_candidates_state_the_closest_first(part, subjects):
    families = tasks.get("experts").update_families()
    carrying = {key for key, family in families.items() if "log_weights" in _made(family, {}).state}
    assert {rule.key for rule in part.rules} == carrying and len(part.rules) == len(carrying) > 1
    assert all(rule.state == ("log_weights",) and rule.name == families[rule.key].name for rule in part.rules)
    first = part.rules[0]
    assert first.r2.low > 0.99 and first.r2.estimate == max(rule.r2.estimate for rule in part.rules)
    for rule in part.rules:
        assert set(rule.parameters) == {p.name for p in families[rule.key].searched if not p.enters}


def test_parameters_that_are_not_given_are_the_first_of_their_grids():
    family = tasks.get("qlearning").update_families()["q_learning"]
    first = {p.name: p.grid[0] for p in family.searched}
    assert _made(family, {}).parameters == family.make(**first).parameters
    assert _made(family, {"gamma": 0.5}).parameters == family.make(**{**first, "gamma": 0.5}).parameters


@pytest.fixture
def fake():
    """An algorithm with a variable that differs between episodes and one that is the round."""
    rng = np.random.default_rng(1)
    q = rng.normal(size=(SMALL.test, SMALL.rounds, 2)) * np.arange(1, SMALL.rounds + 1)[:, None]
    elapsed = np.tile(np.arange(SMALL.rounds, dtype=float), (SMALL.test, 1))
    return SimpleNamespace(run=lambda episodes: {"q": q, "elapsed": elapsed}, q=q, elapsed=elapsed)


def test_states_off_the_manifold_are_a_standard_deviation_away_and_rounds_an_eighth_of_their_range(fake):
    subject, writer = SimpleNamespace(samples=SimpleNamespace(test=None)), SimpleNamespace(shapes=("q", "elapsed"))
    changes, rng = strange(fake, subject, writer, SMALL), np.random.default_rng([4, 7])
    q = rng.standard_normal((SMALL.test, 2, 2)) * fake.q[:, SMALL.at].std(0, keepdims=True)
    assert changes["q"] == pytest.approx(q)
    assert changes["elapsed"] == pytest.approx(rng.standard_normal((SMALL.test, 2)) * (SMALL.rounds - 1) / 8)


@pytest.mark.parametrize("worse", ["q", "elapsed"])
def test_what_a_decoder_reads_worst_is_its_score(fake, worse):
    """Of two variables one is read with an error of a quarter of its variance, the other with a hundredth."""
    true = {"q": fake.q, "elapsed": fake.elapsed}
    read = {}
    for key, values in true.items():
        about = values - values.mean((0, 1))
        read[key] = values + about * (0.5 if key == worse else 0.1)
    latents = np.zeros((SMALL.test, SMALL.rounds + 1, 1))
    run = SimpleNamespace(latents=latents)
    subject = SimpleNamespace(samples=SimpleNamespace(test=None), run=lambda episodes: run)
    asked = []
    writer = SimpleNamespace(shapes=("q", "elapsed"), read=lambda latents: asked.append(latents.shape[1]) or read)
    assert _decoded(writer, subject, fake) == pytest.approx(0.75)
    assert asked == [SMALL.rounds]  # the latents before each round


def test_the_table_has_a_row_for_each_step_with_its_best_control_and_one_for_each_rule():
    steps = [
        Update("m", "wm", ("a", "b"), ("c",), 0.9, "on", 1, Interval(0.7, 0.6, 0.8), (0.2, 0.4, 0.3)),
        Update("m", "wm", ("a",), (), 0.9, "off", 5, Interval(0.5, 0.4, 0.55), ()),
    ]
    rules = (Rule("q", "Q", ("a", "b"), {"alpha": 0.123456, "gamma": 0.5}, Interval(0.3, 0.1, 0.4)),)
    first, second, third = UpdatePart(tuple(steps), rules).to_frame().to_dict("records")
    assert {key: first[key] for key in ("name", "model", "algorithm", "state", "not decodable", "decoded R2")} == {
        "name": "step R2", "model": "m", "algorithm": "wm", "state": "a + b", "not decodable": "c", "decoded R2": 0.9,
    }  # fmt: skip
    assert [first[key] for key in ("manifold", "horizon", "value", "low", "high", "untrained")] == [
        "on", 1, 0.7, 0.6, 0.8, 0.4,
    ]  # fmt: skip
    assert (second["manifold"], second["horizon"]) == ("off", 5) and np.isnan(second["untrained"])
    assert [third[key] for key in ("name", "algorithm", "parameters", "state")] == [
        "fitted update", "q", "alpha 0.123, gamma 0.5", "a + b",
    ]  # fmt: skip
    assert [third[key] for key in ("manifold", "horizon", "value", "low", "high")] == ["on", 1, 0.3, 0.1, 0.4]
