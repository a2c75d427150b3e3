"""Rounds that carry an effect and what is merely there; what alignment search and mediation find."""

from dataclasses import replace

import pytest

from circuits.benchmark import Material, Workload, build
from circuits.benchmark.methods import METHODS
from circuits.benchmark.questions import QUESTIONS

SMALL = Workload(episodes=4, rounds=8, round=5, early=1, fits=12)


@pytest.fixture(scope="module")
def material():
    return Material(build("wma-handwired", "R"), SMALL)


def graded(material, key):
    answer = METHODS["rounds", key].answer(material.subject, material)
    return QUESTIONS["rounds"].grade(material.subject, material, answer)


def test_a_flipped_label_passes_through_the_rounds_between_it_and_the_reading(material):
    truth = material.truth("rounds")
    assert [t for t in range(8) if truth["flip-label", 1, t]] == [2, 3, 4, 5]
    assert [t for t in range(8) if truth["flip-label", 3, t]] == [4, 5]


def test_what_the_state_forgets_passes_through_no_round():
    """Candidates are asked about and not remembered; edges are."""
    truth = Material(build("reachability-handwired", "sum"), SMALL).truth("rounds")
    assert any(truth.values()) and not any(
        kind for (key, *_), kind in truth.items() if key == "swap-candidates"
    )


def test_only_reading_the_later_round_is_as_good_as_the_oracle(material):
    late, own, known, probe = (
        graded(material, key)["auroc"]
        for key in ("patching", "patching:own-round", "oracle", "probe")
    )
    assert late == known == 1 and max(own, probe) < 0.95


def test_alignment_finds_what_predictions_identify_and_gives_no_score_behind_them():
    """Two of three directions of the log-weights: predictions do not change when all weights are multiplied."""
    subject = build("wma-handwired", "R")
    places = tuple(place for place in subject.places["log_weights"] if place.site.layer == 1)
    one = Material(
        replace(subject, places={"log_weights": places}), Workload(rounds=12, fits=32, steps=20)
    )
    answer = METHODS["subspace", "das"].answer(one.subject, one)
    assert (
        set(answer.subspaces) == {("log_weights", "resid_post[1]@p?")} < set(one.items("subspace"))
    )
    found = QUESTIONS["subspace"].grade(one.subject, one, answer)["cosine2"]
    assert found == pytest.approx(1 / len(places) * 2 / 3, abs=0.02)


def test_mediation_finds_the_nodes_that_write_content():
    material = Material(build("wma-handwired", "R", "distractors"), SMALL)
    answer = METHODS["nodes", "mediation"].answer(material.subject, material)
    assert QUESTIONS["nodes"].grade(material.subject, material, answer)["auroc"] == 1
