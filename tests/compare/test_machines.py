"""Comparisons of machines that are no transformers: known answers for a GRU that was written by hand."""

from dataclasses import replace

import numpy as np
import pytest
import torch

import interp
from circuits import compare
from circuits.compare.circuit import CIRCUIT
from circuits.compare.question import (
    Budget,
    Compared,
    Participant,
    Samples,
    pool_runs,
    shared_sizes,
)
from circuits.compare.state import map_latents, stitch
from circuits.compare.update import score_updates
from interp.results.measure import UNTRAINED
from interp.stats.decoder import RIDGE
from interp.tasks.experts.algorithms import weighted_majority
from interp.tasks.experts.families import fading_majority
from tests import handmade, machines

pytestmark = pytest.mark.usefixtures("one_session")

SMALL = Budget(
    known=40, test=16, rounds=20, starts=3, horizon=4, battery=4, scored=24, edits=160, untrained=1
)
TINY = Budget(
    known=16, test=8, rounds=6, starts=2, horizon=2, battery=4, scored=16, edits=80, untrained=1
)
WIRED = "wma-handwired"


@pytest.fixture(scope="module")
def subjects():
    """Handmade machines and others beside the handwired one, on the same episodes."""
    every = {
        "itself": handmade.majority(name="itself"),
        "forgets": handmade.majority(decay=0.8, name="forgets"),
        "gain": handmade.majority(log_gamma=1.5, name="gain"),
        "untrained": handmade.majority().untrained(1),
        "lstm": machines.lstm(),
        WIRED: interp.load(WIRED, n_experts=4),
    }
    samples = Samples.draw(every["itself"], SMALL, shared_sizes(list(every.values())))
    return {name: Participant(machine, samples) for name, machine in every.items()}


@pytest.mark.long
@pytest.mark.parametrize(("name", "word"), [("gain", "yes"), ("forgets", "no")])
def test_carried_states_of_other_widths_are_stitched(subjects, name, word):
    """Nine numbers for one row of 45: the state that it is, whatever its scale, and not another one."""
    measure = stitch(subjects[name], subjects[WIRED], [subjects["untrained"]], SMALL).measure
    assert measure.verdict == word
    assert measure.controls[UNTRAINED].number < 0.5
    if word == "yes":
        assert measure.number.low > 0.999
        assert measure.condition == ""
    else:
        assert measure.number.high < 0.9


def test_states_of_several_rows_are_stitched_both_ways(subjects):
    """Two rows of 16 into one row of nine and back; nothing of the machine's is found in random cells."""
    assert subjects["lstm"].run(subjects["lstm"].samples.test).latents.shape[2:] == (2, 16)
    part = stitch(subjects["itself"], subjects["lstm"], [], SMALL)
    assert {(s.source, s.target) for s in part.stitchings} == {
        ("itself", "lstm"),
        ("lstm", "itself"),
    }
    assert part.best("lstm", "itself").score.high < 0.9
    assert part.best("itself", "lstm").score.estimate <= 1


@pytest.mark.parametrize("make", [machines.gru, machines.lstm, machines.loop, machines.cached])
def test_every_machine_holds_its_own_state(make):
    """A cell, two channels, a loop and a cache that grows: what one carries, mapped, is worth all of it to its like."""
    budget = Budget(known=60, test=16, rounds=6, starts=2, horizon=2, battery=4, untrained=1)
    machine = make()
    samples = Samples.draw(machine, budget, {"n_experts": 4})
    subject, twin = Participant(machine, samples), Participant(machine, samples, "other")
    part = stitch(subject, twin, [], budget)
    assert part.best(subject.name, "other").score.low > 0.98
    shuffled = [s.score.high for s in part.stitchings if s.control == "shuffled"]
    assert len(shuffled) == 2
    assert max(shuffled) < 0.9


@pytest.mark.usefixtures("no_rules")
def test_what_is_no_memory_stays_the_targets_own():
    """How far a cache is written, and the numbers that pad its narrower rows, do not come from a map."""
    budget, cached, wired = TINY, machines.cached(), interp.load(WIRED, n_experts=4)
    samples = Samples.draw(cached, budget, {"n_experts": 4})
    source, target = Participant(wired, samples), Participant(cached, samples)
    latents, mapped = (
        pool_runs(target).latents[:, budget.at],
        map_latents(source, target, budget, (), RIDGE),
    )
    assert mapped.shape == latents.shape == (24, 2, 7, 8)
    assert torch.equal(mapped[:, :, 6], latents[:, :, 6].double())
    assert latents[0, :, 6, 0].tolist() == budget.at
    assert not torch.allclose(mapped[:, :, :2], latents[:, :, :2].double(), atol=1e-3)
    (first, *_) = score_updates(target, {"wm": weighted_majority(0.5)}, [], budget).updates
    assert np.isfinite(first.r2.estimate)


@pytest.mark.usefixtures("no_rules")
@pytest.mark.parametrize(
    ("name", "same"), [("gain", True), ("forgets", False), ("untrained", False)]
)
def test_the_update_is_weighted_majoritys_or_not(subjects, name, same):
    """On the manifold and off it, one round on and several; log-weights that fade are updated in another way."""
    algorithms = {"wm": weighted_majority(0.5), "fading": fading_majority(0.5, decay=0.8)}
    part = score_updates(subjects[name], algorithms, [subjects["untrained"]], SMALL)
    scores = [u.r2 for u in part.of("wm")]
    assert len(scores) == 4
    assert all(r2.low > 0.99 for r2 in scores) if same else max(r2.high for r2 in scores) < 0.5
    if name == "forgets":
        assert all(u.r2.low > 0.999 for u in part.of("fading"))


def test_circuits_are_compared_only_of_machines_with_heads(subjects):
    def lacking(model: Participant, reference: Participant) -> str:
        return CIRCUIT.find_lacks(Compared(model, reference, [], SMALL, {}))

    assert lacking(subjects[WIRED], subjects[WIRED]) == ""
    assert lacking(subjects[WIRED], subjects["lstm"]) == "lstm has no attention heads"
    lacking_heads = lacking(subjects["itself"], subjects["lstm"])
    assert lacking_heads == "itself has no attention heads; lstm has no attention heads"


@pytest.mark.long
@pytest.mark.usefixtures("few_fits", "no_rules")
def test_the_handmade_machine_is_the_handwired_one_but_has_no_circuit_to_compare():
    comparison = compare.machines(
        handmade.majority(), WIRED, budget=replace(SMALL, known=24, test=12, scored=16, edits=60)
    )
    assert comparison.algorithm.family == "weighted_majority"
    assert comparison.algorithm.parameters["gain"] == pytest.approx(0.5, abs=1e-3)
    words = {measure.key: measure.verdict for measure in comparison}
    assert words == {
        "behaviour": "yes",
        "state": "yes",
        "update": "yes",
        "circuit": "not applicable",
    }
    assert comparison["circuit"].reason == "handmade has no attention heads"
    assert comparison.circuit is None
    read = comparison.to_dict()
    assert set(read["tables"]) == {
        "algorithm",
        "behaviour",
        "state",
        "response",
        "update",
    }
    assert (read["measures"][-1]["verdict"], read["measures"][-1]["number"]) == (
        "not applicable",
        None,
    )


@pytest.mark.long
@pytest.mark.usefixtures("few_fits", "no_rules")
def test_a_machine_is_a_reference_too():
    """Of a transformer, by another gain: another behaviour, the same state and update."""
    reference = interp.load(WIRED, n_experts=4, log_gamma=1.5)
    comparison = compare.machines(
        reference, handmade.majority(), budget=replace(TINY, rounds=10, known=24)
    )
    words = {measure.key: measure.verdict for measure in comparison}
    assert words.pop("state") in ("yes", "undecided")  # memories of 12 rounds are worth little
    assert words == {"behaviour": "no", "update": "yes", "circuit": "not applicable"}
    assert comparison["state"].number.low > 0.99
    assert comparison.reference == "handmade"
