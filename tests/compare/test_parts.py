"""State, update and sites of a comparison: what each says of machines that are known, and what it may not say."""

from dataclasses import replace

import pytest

import interp
from circuits.compare.question import Budget, Participant, Samples, shared_sizes
from circuits.compare.state import stitch
from circuits.compare.update import score_updates
from interp.model.transformer import untrained
from interp.tasks.experts.algorithms import bayes, weighted_majority
from tests.compare.planted import prepared
from tests.refusals import refuses

pytestmark = pytest.mark.usefixtures("one_session")

SMALL = Budget(known=32, test=12, rounds=16, starts=2, horizon=4, battery=4, untrained=1)


@pytest.fixture(scope="module")
def subjects():
    """wma-learned-additive, the handwired machine and an untrained model on the same episodes."""
    models = interp.load("wma-learned-additive"), interp.load("wma-handwired", n_experts=4)
    samples = Samples.draw(models[0], SMALL, shared_sizes(models))
    return [Participant(model, samples) for model in (*models, untrained(models[0], 0))]


def test_a_budget_is_cut_where_there_are_fewer_rounds_and_only_there():
    budget = Budget(rounds=30, horizon=15, starts=4)
    assert budget.of_rounds(30) == budget
    assert budget.of_rounds(36) == replace(budget, rounds=36)
    assert budget.of_rounds(12) == replace(budget, rounds=12, horizon=4)


@pytest.mark.long
def test_the_learned_state_is_the_handwired_one_and_the_round(subjects):
    """Either latent stands in for the other, the learned one with the round; shuffled maps are useless."""
    learned, wired, fresh = subjects
    part = stitch(learned, wired, [fresh], SMALL)
    there = part.best(learned.name, wired.name)
    back = part.best(wired.name, learned.name)
    assert there.score.low > 0.95
    assert there.supplied == ()
    assert back.score.low > 0.95
    assert back.supplied == ("round",)
    frame = part.to_frame()
    alone = frame.query("source == @wired.name and supplied == '' and control == ''").number.item()
    assert alone < back.score.estimate - 0.05
    assert (frame[frame.control == "shuffled"].number < 0.2).all()
    assert max(part.untrained) < back.score.low
    assert all(worth.low > 0 for worth in part.worth.values())


@pytest.mark.long
@pytest.mark.usefixtures("no_rules", "no_bent_maps")
def test_the_learned_update_is_that_of_counts_on_and_off_the_manifold(subjects):
    """Step R2 above .95 for either algorithm's state; what the latents do not hold is named, not scored."""
    learned, wired, fresh = subjects
    part = score_updates(learned, {"bayes": bayes(), "wm": weighted_majority(0.5)}, [fresh], SMALL)
    assert {u.manifold for u in part.of("bayes")} == {"on", "off"}
    assert {u.horizon for u in part.updates} == {1, 4}
    assert all(u.r2.low > 0.95 and max(u.untrained) < 0.9 for u in part.updates)
    assert {u.state for u in part.of("bayes")} == {("counts", "elapsed")}
    (first, *_) = score_updates(wired, {"bayes": bayes()}, [fresh], SMALL).updates
    assert first.state == ("counts",)
    assert first.missing == ("elapsed",)


@pytest.mark.long
def test_the_update_that_is_fitted_has_the_machines_rate_discount_and_maximum():
    """Effective parameters by step equivalence: those that a handwired machine was built with."""
    model = interp.load("qlearning-handwired", n_states=2, n_actions=2, alpha=0.3, gamma=0.6)
    budget = replace(SMALL, known=16, test=8, rounds=12)
    subject = Participant(model, Samples.draw(model, budget, {"n_states": 2, "n_actions": 2}))
    rules = score_updates(subject, {"q_learning": subject.task.explains(model)}, [], budget).fitted
    q_rule = next(rule for rule in rules if rule.key == "q_learning")
    assert q_rule in rules[:2]
    assert rules[-1].key == "no_bootstrap"  # a maximum that is hardly soft differs by rounding
    assert q_rule.parameters == pytest.approx({"alpha": 0.3, "gamma": 0.6}, abs=0.003)
    assert q_rule.r2.low > 0.9999
    mean = next(rule for rule in rules if rule.key == "mean_bootstrap")
    assert mean.r2.high < 0.999 < q_rule.r2.low
    assert mean.left.low > 1_000  # times as much unexplained as by the maximum


@pytest.mark.long
def test_models_of_a_range_are_held_against_others_in_sizes_that_both_serve(monkeypatch):
    wide, narrow = interp.load("qlearning-learned"), interp.load("qlearning-gru")
    assert shared_sizes([wide]) == {"n_states": 4, "n_actions": 3}
    sizes = shared_sizes([wide, narrow])
    assert sizes == shared_sizes([narrow, wide]) == {"n_states": 4, "n_actions": 2}
    for pair in ((wide, narrow), (narrow, wide)):
        budget = replace(SMALL, known=8, test=8).of_rounds(6)
        compared = prepared(monkeypatch, *pair, budget=budget)
        drawn = [episodes for part in compared.sets.values() for episodes in part]
        assert {
            (sampled.n_states, sampled.n_actions)
            for sampled in (*drawn, compared.model.samples.test)
        } == {(4, 2)}


def test_bad_efforts_and_pairs_are_refused():
    refuses("known must be an integer >= 8", Budget, known=4)
    refuses("too few for 8 starts", Budget, rounds=10)
    models = (
        interp.load("wma-learned-additive"),
        interp.load("qlearning-handwired", n_states=2, n_actions=2),
    )
    refuses("compare models of one task", shared_sizes, models)
    refuses(
        r"load the handwired model with n_experts=\.\.\.",
        shared_sizes,
        [models[0], interp.load("wma-handwired", n_experts=3)],
    )
