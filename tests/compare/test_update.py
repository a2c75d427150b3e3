"""The update part: what is compared with what, beside which controls, and how states are moved off the manifold."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch
from sklearn.preprocessing import PowerTransformer

import interp
from circuits.compare import update
from circuits.compare.question import Effort, Participant, Samples, pooled, pooled_values, scored
from circuits.compare.update import (
    UpdatePart,
    _bent,
    _decoded,
    _extended,
    _fitted,
    _made,
    _rank,
    strange,
    updates,
)
from circuits.compare.update import _missed_steps as missed_steps
from circuits.compare.update import _Rule as Rule
from circuits.compare.update import _Update as Update
from interp.interventions.moves import Writer, transition
from interp.model.transformer import untrained
from interp.stats.decoder import RIDGE, Affine
from interp.stats.intervals import Interval
from interp.support.session import session
from interp.tasks.experts.algorithms import (
    bayes,
    follow_the_leader,
    majority_vote,
    weighted_majority,
)

SMALL = Effort(known=16, test=12, rounds=14, starts=2, horizon=3, battery=4, untrained=1, seed=4)


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
    return updates(model, CANDIDATES, fresh, SMALL)


CANDIDATES = {
    "ftl": follow_the_leader(),
    "bayes": bayes(),
    "wm": weighted_majority(0.3),
    "vote": majority_vote(),
}
"""The last one carries no state, so the third is the one whose rules are fitted."""


def test_every_candidate_with_a_state_is_asked_on_and_off_the_manifold_and_near_and_far(
    part, subjects
):
    """Each number is that of the transition of its own algorithm, horizon and move, in the model and the controls."""
    assert [(u.algorithm, u.manifold, u.horizon) for u in part.updates] == [
        (key, manifold, horizon)
        for key in ("ftl", "bayes", "wm")
        for manifold in ("on", "off")
        for horizon in (1, 3)
    ]
    model = subjects[0]
    for found in part.updates:
        algorithm = CANDIDATES[found.algorithm]
        writer = model.writer(algorithm)
        keys = tuple(writer.shapes)
        moves = (
            strange(pooled_values(algorithm, model.samples), keys, SMALL)
            if found.manifold == "off"
            else None
        )
        missed, varied = missed_steps(model, algorithm, keys, SMALL, found.horizon, moves)
        assert len(missed) == SMALL.known + SMALL.test and found.r2 == scored(missed, varied)
        for control, score in zip(subjects[1:], found.untrained, strict=True):
            left, asked = missed_steps(
                control, algorithm, keys, SMALL, found.horizon, moves, known=False
            )
            assert len(left) == SMALL.test and score == pytest.approx(
                1 - left.sum() / asked.sum(), abs=1e-12
            )
        assert found.model == model.name and found.decoded == _decoded(writer, model, algorithm)
    assert part.updates[4].state == ("counts",) and part.updates[4].missing == ("elapsed",)


@pytest.mark.parametrize("moved", [False, True])
def test_each_step_is_decoded_by_a_fit_to_the_other_folds_of_the_pool(subjects, moved):
    """By hand: episode i of known, then test, is read (and moved) by a writer of those with another i modulo 5."""
    model, algorithm, n = subjects[1], CANDIDATES["wm"], SMALL.known
    values = pooled_values(algorithm, model.samples)
    moves = strange(values, ("log_weights",), SMALL) if moved else None
    missed, varied = missed_steps(model, algorithm, ("log_weights",), SMALL, 3, moves)
    run, fold = pooled(model), np.arange(n + SMALL.test) % 5
    for rows, episodes in ((slice(n), model.samples.known), (slice(n, None), model.samples.test)):
        by = moves and {"log_weights": moves["log_weights"][rows]}
        for k in range(5):
            others = torch.from_numpy(fold != k)
            held = {"log_weights": values["log_weights"][fold != k]}
            writer = Writer.fit(
                model.model, run.select(others), held, ("log_weights",), ridge=RIDGE
            )
            found = transition(
                model.model, episodes, writer, round=SMALL.at, horizon=3, by=by
            ).under(algorithm)
            mine = fold[rows] == k
            assert missed[rows][mine] == pytest.approx(found.missed.sum(1)[mine], rel=1e-6)
    assert varied.shape == missed.shape == (n + SMALL.test,) and (missed > 0).all()


def test_rules_are_those_that_carry_the_last_candidates_state_the_closest_first(part, subjects):
    families = interp.tasks.get("experts").update_families()
    carrying = {key for key, family in families.items() if "log_weights" in _made(family, {}).state}
    assert {rule.key for rule in part.rules} == carrying and len(part.rules) == len(carrying) > 1
    assert all(
        rule.state == ("log_weights",) and rule.name == families[rule.key].name
        for rule in part.rules
    )
    first = part.rules[0]
    assert first.parameters == {"gain": pytest.approx(0.3, rel=0.01)}  # no point of its grid
    assert first.r2.low > 0.99 and first.r2.estimate == pytest.approx(
        max(rule.r2.estimate for rule in part.rules), abs=1e-6
    )
    for rule in part.rules:
        assert set(rule.parameters) == {p.name for p in families[rule.key].searched if not p.enters}


def test_what_a_rule_leaves_is_a_share_of_what_the_algorithm_leaves(subjects):
    """Against Weighted Majority of another gain, which is what a rule is fitted to be."""
    model, half = subjects[0], weighted_majority(0.15)
    writer, test = model.writer(half), model.samples.test
    part = updates(model, {"wm": half}, [], SMALL)
    held = transition(model.model, test, writer, round=SMALL.at).under(half).missed.sum()
    families = interp.tasks.get("experts").update_families()
    for rule in (one for one in part.rules if families[one.key].extends != half.key):
        made = _made(families[rule.key], rule.parameters)
        missed = transition(model.model, test, writer, round=SMALL.at).under(made).missed.sum()
        assert rule.left.estimate == pytest.approx(missed / held)


def test_parameters_that_are_not_given_are_the_first_of_their_grids():
    family = interp.tasks.get("qlearning").update_families()["q_learning"]
    first = {p.name: p.grid[0] for p in family.searched}
    assert _made(family, {}).parameters == family.make(**first).parameters
    assert (
        _made(family, {"gamma": 0.5}).parameters
        == family.make(**{**first, "gamma": 0.5}).parameters
    )


@pytest.fixture
def fake():
    """An algorithm with a variable that differs between episodes and one that is the round."""
    rng = np.random.default_rng(1)
    q = rng.normal(size=(SMALL.test, SMALL.rounds, 2)) * np.arange(1, SMALL.rounds + 1)[:, None]
    elapsed = np.tile(np.arange(SMALL.rounds, dtype=float), (SMALL.test, 1))
    return SimpleNamespace(run=lambda episodes: {"q": q, "elapsed": elapsed}, q=q, elapsed=elapsed)


@pytest.mark.parametrize(
    "effort", [SMALL, Effort(), Effort(rounds=12, starts=9, horizon=1), Effort().of_rounds(3)]
)
def test_starts_end_where_the_state_that_is_read_was_decoded(effort):
    """Each start is another round, and the state a horizon after the last one stands before a round."""
    assert len(set(effort.at)) == effort.starts and effort.at == sorted(effort.at)
    assert max(effort.at) + effort.horizon == effort.rounds - 1 and SMALL.at == [2, 10]


def test_states_off_the_manifold_are_a_standard_deviation_away_and_rounds_an_eighth_of_their_range(
    fake,
):
    values, rng = {"q": fake.q, "elapsed": fake.elapsed}, np.random.default_rng([4, 7])
    changes = strange(values, ("q", "elapsed"), SMALL)
    here = fake.q[:, SMALL.at]
    there = here + rng.standard_normal((SMALL.test, 2, 2)) * here.std(0, keepdims=True)
    within = np.clip(there, fake.q.min((0, 1)), fake.q.max((0, 1)))  # no element leaves its range
    assert (within != there).any() and changes["q"] == pytest.approx(within - here)
    by = rng.standard_normal((SMALL.test, 2)) * (SMALL.rounds - 1) / 8
    within = (
        np.clip(fake.elapsed[:, SMALL.at] + by, 0, SMALL.rounds - 1) - fake.elapsed[:, SMALL.at]
    )
    assert (within != by).any() and changes["elapsed"] == pytest.approx(
        within
    )  # there is no later round


def test_a_set_off_the_manifold_is_another_set():
    held = (np.random.default_rng(0).random((200, SMALL.rounds, 5)) < 0.5).astype(float)
    changes = strange({"reached": held}, ("reached",), SMALL)["reached"]
    other = np.random.default_rng([4, 7]).random(changes.shape) < 0.1
    assert np.array_equal(
        held[:, SMALL.at] + changes, np.where(other, 1 - held[:, SMALL.at], held[:, SMALL.at])
    )


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
    writer = SimpleNamespace(
        shapes=("q", "elapsed"), read=lambda latents: asked.append(latents.shape[1]) or read
    )
    assert _decoded(writer, subject, fake) == pytest.approx(0.75)
    assert asked == [SMALL.rounds]  # the latents before each round


def test_a_non_linear_decoder_is_as_good_as_its_worst_variable(monkeypatch):
    """One variable is in the latents, the other is noise; by hand: latents, also of each round, and 600 cosines."""
    rng = np.random.default_rng(0)
    held = {key: np.cumsum(1 + rng.normal(size=(60, 6, 1)), 1) for key in ("held", "noise")}
    held["still"] = np.ones((60, 6, 1))
    carried = np.stack([held["held"], rng.normal(size=(60, 6, 1))], 2)
    latents = torch.from_numpy(np.concatenate([carried, carried[:, -1:]], 1))
    monkeypatch.setattr(update, "pooled", lambda subject: SimpleNamespace(latents=latents))
    monkeypatch.setattr(update, "pooled_values", lambda algorithm, samples: held)
    subject = SimpleNamespace(samples=SimpleNamespace(known=range(40)))
    scores = [
        _bent(subject, None, keys)
        for keys in (("held",), ("noise",), ("held", "noise"), ("noise", "held"))
    ]
    assert (
        0.9 < scores[0] <= 1
        and -2 < scores[1] < 0.2
        and scores[2:] == pytest.approx([scores[1]] * 2)
    )
    assert _bent(subject, None, ("still",)) == 1
    x, draw = latents[:, :-1].flatten(2).flatten(0, 1).numpy(), np.random.RandomState(0)
    x = np.hstack([x, np.tile(np.arange(6.0), 60)[:, None]])
    own = np.hstack([np.where(x[:, 2:] == t, x, 0) for t in range(6)])
    powers, x = PowerTransformer().fit(x[:240]).transform(x), (x - x[:240].mean(0)) / x[:240].std(0)
    waves, phases = draw.normal(0, (2 / (3 * 18)) ** 0.5, (3, 600)), draw.uniform(0, 2 * np.pi, 600)
    x = torch.from_numpy(np.hstack([x, powers, (2 / 600) ** 0.5 * np.cos(x @ waves + phases), own]))
    for key, score in zip(held, scores[:2], strict=False):
        read = Affine.fit(x[:240], torch.from_numpy(held[key][:40].reshape(-1, 1)), RIDGE)(x[240:])
        missed, true = (
            np.diff(read.numpy().reshape(20, 6) - held[key][40:, :, 0]),
            np.diff(held[key][40:, :, 0]),
        )
        assert score == pytest.approx(1 - (missed**2).sum() / ((true - true.mean(0)) ** 2).sum())


def test_a_family_is_taken_where_it_leaves_least(monkeypatch):
    """An extension at a point of its grid, another one between them, without what enters the prediction alone."""
    family = interp.tasks.get("qlearning").update_families()["trace_q"]
    grid = next(s.grid for s in family.searched if s.name == "trace")
    own = SimpleNamespace(missed=np.ones((4, 1)), varied=np.full((4, 1), 2.0), participants=None)
    under = SimpleNamespace(
        missed=np.ones((4, 1)), varied=np.ones((4, 1)), r2=lambda seed: Interval(0.5, 0.4, 0.6)
    )

    def steps(model, episodes, writer, rounds):
        left = lambda made: abs(made.parameters["trace"] - grid[1])  # noqa: E731
        return SimpleNamespace(left=left, under=lambda made: under, shapes=("q",))

    monkeypatch.setattr(update, "transition", steps)
    samples = SimpleNamespace(other=None, test=None)
    subject = SimpleNamespace(model=None, samples=samples, writer=lambda made, keys: None)
    base = interp.tasks.get("qlearning").update_families()["q_learning"].make(alpha=0.1, gamma=0.9)
    left, rule = _extended(subject, family, base, ("q",), own, SMALL)
    assert left == 0 and rule.parameters == {"alpha": 0.1, "gamma": 0.9, "trace": grid[1]}
    assert rule.left.estimate == pytest.approx(
        2
    )  # as much of its own steps as the algorithm of twice its own
    fits = SimpleNamespace(
        left=lambda made: abs(made.parameters["alpha"] - 0.3) + abs(made.parameters["gamma"] - 0.6)
    )
    rule = _fitted(
        interp.tasks.get("qlearning").rivals()["q_learning"], fits, steps(*"abcd"), own, 0
    )[1]
    assert rule.parameters == pytest.approx({"alpha": 0.3, "gamma": 0.6}, abs=0.01)


def test_an_extension_that_leaves_hardly_less_than_what_it_extends_comes_after_it():
    """More than half of what that leaves; one that leaves half, or more than it, stands by what it leaves."""
    assert [_rank(missed, 1.0) for missed in (0.5, 0.6, 1.0, 1.1)] == [
        (0.5, 0),
        (1.0, 0.6),
        (1.0, 1.0),
        (1.1, 0),
    ]
    assert _rank(0.6, np.inf) == (0.6, 0)


def test_the_table_has_a_row_for_each_step_with_its_best_control_and_one_for_each_rule():
    steps = [
        Update(
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
        Update("m", "wm", ("a",), (), 0.9, np.nan, "off", 5, Interval(0.5, 0.4, 0.55), ()),
    ]
    left = Interval(0.6, 0.5, 0.7)
    rules = (
        Rule(
            "q", "Q", ("a", "b"), {"alpha": 0.123456, "gamma": 0.5}, Interval(0.3, 0.1, 0.4), left
        ),
    )
    first, second, third = UpdatePart(tuple(steps), rules).to_frame().to_dict("records")
    said = {
        "name": "step R2",
        "model": "m",
        "algorithm": "wm",
        "state": "a + b",
        "not decodable": "c",
    }
    said |= {"decoded R2": 0.9, "manifold": "on", "horizon": 1, "untrained": 0.4}
    assert (said | {"number": 0.7, "number_low": 0.6, "number_high": 0.8}).items() <= first.items()
    assert (second["manifold"], second["horizon"]) == ("off", 5) and np.isnan(second["untrained"])
    said = {
        "name": "fitted update",
        "algorithm": "q",
        "parameters": "alpha 0.123, gamma 0.5",
        "state": "a + b",
    }
    said |= {"manifold": "on", "horizon": 1, "left": 0.6, "left_low": 0.5, "left_high": 0.7}
    assert (said | {"number": 0.3, "number_low": 0.1, "number_high": 0.4}).items() <= third.items()
