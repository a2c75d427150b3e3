"""Questions about variables: where they live, along which directions, which exist; and what bounds their scales."""

from dataclasses import replace
from functools import partial

import pytest

from circuits import benchmark
from circuits.benchmark import Material, build
from circuits.benchmark.material import Workload
from circuits.benchmark.questions import QUESTIONS

KEYS = ["interchange", "probe", "probe:within-round", "probe:pattern"]


def about(*variables):
    """The machine, with only some of its variables asked for."""
    subject = build("wma-handwired", "R", "rotated")
    return replace(subject, places={key: subject.places[key] for key in variables})


@pytest.fixture(scope="module")
def found():
    effort = Workload(episodes=4, rounds=10, fits=32)
    subjects = {"three variables": partial(about, "log_weights", "label", "next_log_weights")}
    result = benchmark.run(subjects, KEYS, questions=["where", "subspace", "exists"], effort=effort)
    return {(row["question"], row["method"], row["score"]): row["value"] for row in result.rows}


@pytest.mark.long
@pytest.mark.parametrize("question", ["where", "subspace", "exists"])
def test_the_oracle_is_perfect_and_chance_is_not(found, question):
    headline = QUESTIONS[question].headline
    assert found[question, "oracle", headline] == pytest.approx(1)
    assert found[question, "random", headline] < 0.9


@pytest.mark.long
def test_interchange_finds_the_places_that_probes_mistake_for_others(found):
    assert found["where", "interchange", "ap"] > 0.95 > 0.8 > found["where", "probe", "ap"]


def test_a_probe_believes_in_what_drifts_with_the_round_until_the_drift_is_taken_out(found):
    assert found["exists", "probe", "1-fdr"] < found["exists", "probe:within-round", "1-fdr"] == 1
    assert found["exists", "probe:within-round", "power"] == 1


def test_directions_of_probes_are_nearer_to_the_truth_than_random_ones(found):
    assert (
        found["subspace", "probe:pattern", "cosine2"]
        > 0.4
        > 0.2
        > found["subspace", "random", "cosine2"]
    )


def test_sites_that_hold_a_variable_are_the_constructions():
    truth = Material(build("wma-handwired", "R")).truth("where")
    holding = {item for item, kind in truth.items() if kind}
    assert ("log_weights", "resid_post[1]@p?") in holding
    assert (
        "log_weights",
        "resid_post[1]@y",
    ) not in holding
    assert "binding" not in {key for key, _ in truth}  # it never varies


def test_the_algorithm_asked_for_is_among_rivals_that_do_not_contain_it():
    truth = Material(build("wma-handwired", "R")).truth("algorithm")
    assert [key for key, kind in truth.items() if kind] == ["weighted_majority"]
    assert "bayes" in truth
    assert "fading_majority" not in truth
