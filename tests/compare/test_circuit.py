"""Circuits compared: the right answer where it is known, the controls, and the look-alike heads of wma-learned."""

from __future__ import annotations

import json

import numpy as np
import pytest

import interp
from circuits.compare.circuit import Needed, Path, circuits, needed, shared
from circuits.compare.question import Effort, Samples, Subject
from circuits.compare.roles import Role, looks, match, profile
from circuits.compare.variants import rotated, with_distractors
from interp.errors import InputError
from interp.interventions.mediation import mediate, paths
from interp.model.transformer import untrained
from interp.statistics import Interval
from interp.tasks import experts

SMALL = Effort(known=16, test=12, rounds=14, starts=4, horizon=2, battery=12, untrained=2)


def handwired(**arguments):
    return interp.load("wma-handwired", n_experts=3, **arguments)


@pytest.fixture(scope="module")
def samples():
    return Samples.draw(handwired(), SMALL, {"n_experts": 3})


def compared(model, reference, samples):
    fresh = [[Subject(untrained(m, i), samples) for i in range(2)] for m in (model, reference)]
    return circuits(Subject(model, samples), Subject(reference, samples), *fresh, SMALL)


@pytest.fixture(scope="module")
def turned(samples):
    return compared(rotated(handwired(), 1), handwired(), samples)


@pytest.fixture(scope="module")
def hand_profile(samples):
    return profile(Subject(handwired(), samples), None, SMALL)


def test_a_rotated_circuit_is_the_same_one(turned):
    """Every path, and every head that matters matched with itself; no untrained model comes near."""
    assert [(p.cause, p.outcome, p.at) for p in turned.paths] == [
        ("latent", "prediction", "p?"),
        ("embed@y", "state", "w?"),
    ]
    for path in turned.paths:
        for share in (path.blocked, path.carried, path.reference_blocked, path.reference_carried):
            assert share.estimate == pytest.approx(1, abs=1e-6)
    assert turned.similarity.estimate == pytest.approx(1, abs=1e-6)
    assert max(turned.untrained) < 0.5 and len(turned.untrained) == 4
    assert all(role.head == role.reference for role in turned.roles if role.weight > 0.01)
    assert sum(role.weight for role in turned.roles) == pytest.approx(1)


def test_results_are_tables_and_json(turned):
    frame = turned.to_frame()
    measured = {"mediated share", "similarity of roles", "role", "edges needed", "attention R2", "attention carries"}
    assert set(frame["name"]) == measured
    assert json.loads(json.dumps(turned.to_dict(), allow_nan=False))["model"] == "wma-handwired-rotated"
    row = frame[frame["name"] == "similarity of roles"].iloc[0]
    assert row["value"] == turned.similarity.estimate and row["untrained high"] == max(turned.untrained)


def test_edges_are_needed_and_shared_as_heads_are_matched(samples):
    """A softmax form shares all that it needs with itself, heads in another order count the same, others nothing."""
    mine = needed(Subject(handwired(eta=60.0), samples), SMALL)
    assert 0 < mine.n < mine.of / 4 and mine.reason == ""
    heads = [f"{layer}.{head}" for layer in range(3) for head in range(3)]
    same = [Role(head, head, 1.0, 1.0, 1.0) for head in heads]
    found = shared(mine, mine, same, heads, 0)
    assert found.n == mine.n >= found.random_most > found.random_mean
    swap = {"1.0": "1.1", "1.1": "1.0"}
    renamed = [(_swapped(s, swap), _swapped(d, swap)) for s, d in mine.edges]
    other = Needed("other", mine.n, mine.of, tuple(renamed))
    crossed = [Role(head, swap.get(head, head), 1.0, 1.0, 1.0) for head in heads]
    assert shared(mine, other, crossed, heads, 0).n == mine.n > shared(mine, other, same, heads, 0).n
    edited = needed(Subject(rotated(handwired(), 1), samples), SMALL)
    assert "hard attention" in edited.reason and shared(mine, edited, same, heads, 0) is None


def _swapped(end, swap):
    head, port = end[:3], end[3:]
    return swap.get(head, head) + port


def test_distractors_play_no_role_and_variants_share_most(samples):
    """Heads that nobody reads have no weight; R and P have heads in common but are not the same."""
    hand, state = Subject(handwired(), samples), lambda s: s.model.read_state
    one = profile(hand, state(hand), SMALL)
    more = Subject(with_distractors(handwired(), 2, 1), samples)
    similarity, roles = match(profile(more, state(more), SMALL), one)
    assert similarity.estimate == pytest.approx(1, abs=1e-6)
    assert all(role.weight == 0 for role in roles if "distractor" in role.head)
    other = Subject(handwired(variant="P"), samples)
    similarity, roles = match(profile(other, state(other), SMALL), one)
    assert 0.5 < similarity.low <= similarity.estimate < 0.9
    assert {("2.0 3.1 predict",) * 2, ("2.1 3.2 update",) * 2} <= {(r.head, r.reference) for r in roles}


def test_a_profile_says_what_a_head_reads(hand_profile):
    """The predicting head reads votes where the prediction is read, and is worth all of it; other heads are not."""
    weights = np.full((1, SMALL.test), 1 / SMALL.test)
    head = hand_profile.heads.index("2.0 3.1 predict")
    read = hand_profile.of(weights)[0, head].reshape(2, -1)
    assert hand_profile.effects(weights)[0, head] == pytest.approx([1, 0], abs=1e-3)
    votes = [i for i, label in enumerate(hand_profile.labels) if label.startswith("p_")]
    assert read[0, votes].sum() == pytest.approx(read.sum(), abs=1e-9) and read[1].sum() == 0
    assert hand_profile.of(weights).sum() == pytest.approx(1)


def test_matching_ignores_the_order_of_heads_and_is_symmetric(hand_profile, samples):
    other = profile(Subject(handwired(variant="P"), samples), None, SMALL)
    forth, back = match(hand_profile, other)[0], match(other, hand_profile)[0]
    assert forth.estimate == pytest.approx(back.estimate)
    assert match(hand_profile, hand_profile)[0].low == pytest.approx(1)


def test_profiles_of_other_rounds_are_refused(hand_profile):
    episodes = Samples.draw(handwired(), SMALL, {"n_experts": 3})
    two = Samples(*(experts.sample(len(e), SMALL.rounds, 2, seed=1) for e in vars(episodes).values()))
    other = profile(Subject(interp.load("wma-handwired", n_experts=2), two), None, SMALL)
    with pytest.raises(InputError, match="same episodes"):
        match(hand_profile, other)


@pytest.mark.parametrize(
    ("blocked", "reference", "told"), [(0.9, 1.0, True), (0.5, 1.0, True), (0.5, 0.5, False), (0.9, 0.5, True)]
)
def test_a_path_on_which_both_are_like_untrained_models_does_not_discriminate(blocked, reference, told):
    """Untrained models of both shapes block .4 to .6."""
    mine, theirs = (Interval(x, x - 0.05, x + 0.05) for x in (blocked, reference))
    path = Path("latent", "prediction", "p?", mine, mine, theirs, theirs, (0.4, 0.6), (0.4, 0.6))
    assert path.discriminates is told


def test_wma_learned_has_heads_that_only_look_as_if_they_weighed_votes():
    """Head 1.0 attends to votes in proportion to their experts' records, and carries under an eighth of the effect."""
    model, effort = interp.load("wma-learned"), Effort(known=8, test=16, rounds=20, starts=4)
    subject = Subject(model, Samples.draw(model, effort, {"n_experts": 4}))
    test, other = subject.samples.test, subject.samples.other
    runs = subject.run(test), subject.run(other)
    through = paths(model, "pattern", "p?")
    mediated = mediate(model, test, other, "latent", through, rounds=effort.at, n_random=0, runs=runs)
    found = {look.head: look for look in looks(subject, subject.task.explains(model), mediated, effort)}
    assert found["1.0"].is_look_alike and found["1.0"].positions == "p"
    assert found["1.0"].r2.estimate > 0.6 and found["1.0"].carried.estimate < 0.125
    assert not found["0.0"].is_look_alike and found["0.0"].r2.estimate < 0.1
