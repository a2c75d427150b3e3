"""What state and update say of machines whose truth is planted: other coordinates, and updates that nearly agree."""

from dataclasses import replace

import pytest

import interp
from circuits.benchmark.known_machine import rotate_residual_stream
from circuits.compare.question import (
    Budget,
    Compared,
    Participant,
    Samples,
    remove_irrelevant_constants,
)
from circuits.compare.response import RESPONSE, ResponsePart
from circuits.compare.state import is_hard, stitch
from circuits.compare.update import Evidence, judge, score_updates
from interp.results.measure import MISREAD
from interp.support.session import session
from interp.tasks.experts.algorithms import weighted_majority
from interp.tasks.lapses import stopped
from interp.tasks.qlearning.families import acting
from lab import known
from lab.known import by_algorithm
from lab.known.unseen import in_code
from tests.compare.planted import CODES, relabelled, waiting

SMALL = Budget(known=16, test=12, rounds=12, starts=3, horizon=2, battery=4, edits=120, untrained=1)
MAJORITY, UNASKED = weighted_majority(0.5), ResponsePart()
HITS = {
    "next_log_weights": (
        ("log_weights", "match"),
        lambda v: v["log_weights"] + 0.5 * v["match"] - 0.25,
    )
}
LINEAR = ("scaled", "rotated", "stretched", "permuted and padded")
EVIDENCE = MAJORITY.make_variant("evidence", "hits less misses", {"gain": 0.5}, HITS)


@pytest.fixture(scope="module")
def wired():
    """The handwired machine on some episodes, and an untrained copy of a machine by algorithm."""
    reference = known.reference("experts")
    samples = Samples.draw(reference, SMALL, {"n_experts": 4})
    fresh = by_algorithm.machine(MAJORITY, reference.layout).untrained(0)
    with session():
        yield Participant(reference, samples), Participant(fresh, samples)


def _updated(wired, machine, response=UNASKED):
    """The updates of a machine beside an untrained copy, and what they say of it."""
    reference, fresh = wired
    algorithm = remove_irrelevant_constants(MAJORITY, reference.samples.known)
    subject = Participant(machine, reference.samples)
    part = score_updates(subject, {MAJORITY.key: algorithm}, [fresh], SMALL)
    return part.updates, judge(Evidence(part.updates, response))


@pytest.mark.usefixtures("no_rules")
@pytest.mark.parametrize("code", [*LINEAR, "differences", "8 bits"])
def test_state_and_update_do_not_ask_in_which_coordinates_a_state_is_held(wired, code):
    """The same machine with its log-weights in units of 1000 to .001, turned, stretched, beside constants; and without
    their sum, which no prediction reads."""
    machine = in_code(MAJORITY, CODES[code])
    steps, measure = _updated(wired, machine)
    assert measure.verdict == "yes", measure
    if code == "8 bits":  # their rounding is noise
        return
    assert min(u.r2.low for u in steps) > 0.999
    if code not in LINEAR:
        return
    state = stitch(Participant(machine, wired[0].samples), wired[0], wired[1:], SMALL)
    assert state.measure.verdict != "no"
    assert state.measure.number.low > 0.999  # memories of 12 rounds are worth little


@pytest.mark.long
@pytest.mark.usefixtures("no_rules", "no_bent_maps")
def test_a_learned_machine_updates_alike_in_another_basis_and_with_experts_and_outcomes_relabelled():
    """Every weight turned: its four step R2 are the same to .003; other labels are other episodes: to .01."""
    learned = interp.load("wma-learned-additive").double()
    samples = Samples.draw(learned, SMALL, {"n_experts": 4})
    others = {
        rotate_residual_stream(learned, 1): 0.003,
        relabelled(learned, (2, 0, 3, 1), True): 0.01,
    }
    first_updates, *later_updates = (
        score_updates(Participant(m, samples), {"wm": MAJORITY}, [], SMALL).updates
        for m in (learned, *others)
    )
    for update, is_changed in zip(later_updates, others.values(), strict=True):
        for plain, turned in zip(first_updates, update, strict=True):
            assert plain.r2.low > 0.95
            assert turned.r2.estimate == pytest.approx(plain.r2.estimate, abs=is_changed)


@pytest.mark.usefixtures("no_rules")
@pytest.mark.parametrize("code", ["bent", "exponential"])
def test_a_code_that_affine_maps_do_not_read_is_not_said_to_be_updated_otherwise(wired, code):
    """A tanh of sums, and exponentials."""
    machine = in_code(MAJORITY, CODES[code])
    steps, measure = _updated(wired, machine)
    assert measure.verdict == "undecided"
    if code == "bent":  # affine maps read .96 of it
        return
    assert measure.reason.startswith(MISREAD)
    assert min(u.r2.estimate for u in steps) < 0.95 < steps[0].nonlinear


@pytest.mark.usefixtures("no_rules")
def test_hits_less_misses_are_log_weights_up_to_their_sum(wired):
    machine = by_algorithm.machine(EVIDENCE, wired[0].model.layout)
    assert _updated(wired, machine)[1].verdict == "yes"


@pytest.mark.usefixtures("no_rules")
def test_noise_is_another_update(wired):
    """Random features do not read its steps."""
    steps, measure = _updated(wired, known.gallery("experts")["noise 1"].make())
    assert steps[0].nonlinear < 0.5
    assert measure.verdict == "no"


@pytest.mark.long
@pytest.mark.usefixtures("no_rules")
def test_an_update_that_waits_after_mistakes_is_another_one(wired):
    """The log-weights that are decoded hold what waits, and step exactly; the next prediction does not know it yet."""
    machine = by_algorithm.machine(waiting(), wired[0].model.layout, name="waits")
    fitted_family = type("Found", (), {"algorithm": MAJORITY})
    budget, subject = replace(SMALL, edits=240), Participant(machine, wired[0].samples)
    response = RESPONSE.compute(
        Compared(subject, wired[0], [], budget, {}, {"algorithm": fitted_family})
    )
    steps, measure = _updated(wired, machine, response)
    assert min(u.r2.low for u in steps) > 0.999
    assert 0.3 < response.arrives.low < response.arrives.high < 0.75
    assert (measure.verdict, measure.about[:8]) == ("no", "response")


@pytest.mark.long
def test_a_trace_of_eligibility_is_named_by_the_update_that_fits(monkeypatch):
    """Q(.3): nearly the reference's steps, and all of them once a trace is fitted."""
    reference, task = known.reference("qlearning"), interp.tasks.get("qlearning")
    families = {key: family for key, family in task.update_families().items() if "soft" not in key}
    monkeypatch.setattr(type(task), "update_families", lambda self: families)
    traced = acting(families["trace_q"].make(0.1, 0.9, 0.3), shared_ties=False, after=False)
    machine = by_algorithm.machine(traced, reference.layout)
    budget = replace(SMALL, known=32, rounds=20)
    subject = Participant(machine, Samples.draw(reference, budget, {"n_states": 4, "n_actions": 3}))
    q_learning = task.explains(reference)
    rules = score_updates(subject, {"q_learning": q_learning}, [], budget).fitted
    assert rules[0].key == "trace_q", rules
    assert rules[0].left.high < 0.25, rules
    assert rules[0].parameters == {"alpha": 0.1, "gamma": 0.9, "trace": 0.3}


def test_a_machine_that_stops_is_not_the_same_for_what_it_did_before(wired):
    """Frozen for the last third: the mean over starts is nearly that of the machine itself, the last band is not."""
    machine = by_algorithm.machine(stopped(MAJORITY, 7), wired[0].model.layout, name="frozen")
    state = stitch(Participant(machine, wired[0].samples), wired[0], wired[1:], SMALL)
    assert state.measure.verdict == "no", state.measure
    assert "round 9" in state.measure.about, state.measure


@pytest.mark.long
def test_a_hard_choice_is_compared_by_what_it_hides_and_one_between_equals_is_no_evidence():
    """The plain machine of Q-learning only says which action it takes, with beta 10 how nearly two are tied.

    The same table, of which the least is taken: among entries that are 0 alike, rounding decides which one.
    """
    plain, soft = known.reference("qlearning"), known.reference("qlearning", beta=10.0)
    algorithm = interp.tasks.get("qlearning").explains(plain)
    budget = replace(SMALL, known=32, rounds=20)
    lowest = {"choice": (("next_values",), lambda v: v["next_values"].argmin(-1))}
    flipped = by_algorithm.machine(
        algorithm.make_variant("least", "least", {}, lowest), plain.layout
    )
    samples = Samples.draw(plain, budget, {"n_states": 4, "n_actions": 3})
    hard, soft_participant, tied = (
        Participant(m, samples, name) for m, name in ((plain, ""), (soft, "soft"), (flipped, ""))
    )
    assert is_hard(hard)
    assert not is_hard(soft_participant)
    ways = {
        (s.source, s.seen): s.score.low
        for s in stitch(soft_participant, hard, [], budget).stitchings
        if not s.control
    }
    assert ways == {
        ("soft", "carried values"): pytest.approx(1),
        (hard.name, "predictions"): pytest.approx(1),
    }
    assert stitch(tied, hard, [], budget).measure.number.low > 0.999
    fitted_family = type("Found", (), {"algorithm": algorithm})
    response = RESPONSE.compute(Compared(tied, hard, [], budget, {}, {"algorithm": fitted_family}))
    assert response.arrives.low > 0.999
    assert all(cell.alike.low > 0.999 for cell in response.cells)
