"""Edges of which no cut changes anything are a kind of their own, measured, and count for no method."""

import numpy as np
import pytest

from circuits.benchmark.known_machine import build
from circuits.benchmark.material import ANOTHER, Material, Workload
from circuits.benchmark.question import Answer, ranking
from circuits.benchmark.questions import QUESTIONS


@pytest.mark.long
@pytest.mark.parametrize(
    ("machine", "form", "inert"),
    [
        ("qlearning-handwired", "mlp", (5, 1)),
        ("wma-handwired", "R", (0, 0)),
    ],
)
def test_edges_that_change_nothing_are_inert(
    machine: str, form: str, inert: tuple[int, int]
) -> None:
    """Five content edges of Q-learning and a constant one; every other true edge changes something when cut."""
    subject = build(machine, form)
    effort = Workload(episodes=4, rounds=9)
    material = Material(subject, effort, 0)
    truth = material.truth("edges")
    inert_edges = [subject.edges[edge] for edge, kind in truth.items() if kind == "inert"]
    n_content, n_constant = inert
    assert inert_edges.count("content") == n_content
    assert inert_edges.count("constant") == n_constant
    assert len(inert_edges) == n_content + n_constant
    largest_change = np.zeros(len(truth))
    for t in (effort.round, effort.early):
        for ablation in ("zero", "resample"):
            cut, clean = (
                material.run_edge_cuts(ANOTHER, ablation, t),
                material.pair(ANOTHER, t).clean_readout,
            )
            for ours, theirs in (
                (cut.predictions, clean.predictions),
                (cut.latents, clean.latents),
            ):
                change = (ours - theirs).abs().flatten(1).amax(1)
                largest_change = np.maximum(largest_change, change.numpy())
    kinds = np.array(list(truth.values()))
    assert (largest_change[kinds == "inert"] <= 1e-12).all()
    is_effective = (kinds != "inert") & (kinds != "")
    assert (largest_change[is_effective] > 1e-12).all()
    oracle = QUESTIONS["edges"].answer_by_oracle(subject, material)
    assert oracle.chosen == {edge for edge, kind in truth.items() if kind not in ("", "inert")}
    assert ranking(truth, oracle, "content", ("constant", "clean-up"))["ap all"] == 1


def test_inert_edges_are_neither_right_nor_wrong() -> None:
    truth = {"a": "content", "b": "inert", "c": "constant", "d": "", "e": ""}
    for of_inert in (0.0, 5.0):
        answer = Answer({"a": 3.0, "b": of_inert, "c": 2.0, "d": 1.0, "e": 0.0})
        scores = ranking(truth, answer, "content", ("constant",))
        for name in ("ap", "ap constant", "ap all", "recall all"):
            assert scores[name] == 1
