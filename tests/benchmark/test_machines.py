"""The benchmark of a machine that is no transformer and whose insides are known: a GRU that was written by hand."""

import pytest

from circuits import benchmark
from circuits.benchmark import Material
from circuits.benchmark.material import Workload
from circuits.benchmark.questions import QUESTIONS
from tests import handmade
from tests.conftest import early

pytestmark = pytest.mark.usefixtures("one_session")

KEYS = ["interchange", "probe", "probe:weights", "fit", "attention", "resample:joined"]


@pytest.fixture(scope="module")
def result():
    effort = Workload(episodes=6, rounds=10, fits=16)
    with early():
        return benchmark.run({"handmade": handmade.known}, KEYS, effort=effort)


@pytest.fixture(scope="module")
def found(result):
    return {(row["question"], row["method"], row["score"]): row["value"] for row in result.rows}


def test_where_is_asked_of_its_points_and_of_what_it_carries():
    material = Material(handmade.known(), Workload(episodes=4, fits=8))
    assert material.truth("where") == {
        ("log_weights", "latent"): "held",
        ("log_weights", "update"): "",
        ("log_weights", "new"): "",
        ("log_weights", "weigh"): "held",
        ("match", "latent"): "",
        ("match", "update"): "",
        ("match", "new"): "held",
        ("match", "weigh"): "",
    }
    assert material.truth("subspace").keys() == {("log_weights", "latent"), ("match", "new")}
    assert material.truth("exists")["match"]
    assert not material.truth("exists")["another episode's match"]


@pytest.mark.long
@pytest.mark.parametrize("question", ["where", "subspace", "exists", "algorithm"])
def test_the_oracle_is_perfect(found, question):
    assert found[question, "oracle", QUESTIONS[question].headline] == pytest.approx(1)


@pytest.mark.long
def test_methods_find_what_it_holds(found):
    """Interchange the places, a probe the readout's directions, and a fit the algorithm."""
    assert found["where", "interchange", "ap"] == pytest.approx(1)
    assert (
        found["subspace", "probe:weights", "cosine2"] > 0.9 > found["subspace", "random", "cosine2"]
    )
    assert found["exists", "probe", "auroc"] == pytest.approx(1)
    assert found["algorithm", "fit", "auroc"] == pytest.approx(1)


def test_what_needs_heads_is_said_in_its_place(result):
    sentences = {(row["question"], row["sentence"]) for row in result.refusals}
    assert sentences == {
        (key, "not applicable: handmade has no attention heads") for key in ("edges", "nodes")
    }
    assert not {row["question"] for row in result.rows} & {"edges", "nodes"}
