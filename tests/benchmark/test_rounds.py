"""What alignment search finds."""

from dataclasses import replace

import pytest

from circuits.benchmark import Material, Workload, build
from circuits.benchmark.methods import METHODS
from circuits.benchmark.questions import QUESTIONS


@pytest.mark.long
def test_alignment_finds_what_predictions_identify_and_gives_no_score_behind_them():
    """Two of three directions of the log-weights: predictions do not change when all weights are multiplied."""
    subject = build("wma-handwired", "R")
    places = tuple(place for place in subject.places["log_weights"] if place.site.layer == 1)
    material = Material(
        replace(subject, places={"log_weights": places}), Workload(rounds=12, fits=32, steps=20)
    )
    answer = METHODS["subspace", "das"].answer(material.subject, material)
    expected = {("log_weights", "resid_post[1]@p?")}
    assert set(answer.subspaces) == expected
    assert expected < set(material.items("subspace"))
    cosine = QUESTIONS["subspace"].grade(material.subject, material, answer)["cosine2"]
    assert cosine == pytest.approx(1 / len(places) * 2 / 3, abs=0.02)
