"""The reads that matter: of a wired circuit, those that are wired; their effect is what cutting them does."""

import pytest

import interp
from interp.interventions.edge_graph import strongest_reads
from interp.tasks import experts
from tests.refusals import refuses


@pytest.fixture(scope="module")
def reads():
    model = interp.load("wma-handwired", n_experts=2)
    run = interp.rollout(model, experts.sample(8, 12, 2, seed=0))
    return model, run, strongest_reads(model, run, 10, k=30)


def test_the_reads_of_the_wired_circuit(reads) -> None:
    """Weighted Majority with two experts has eight reads that change an exit, and no other is found."""
    found = reads[2]
    reads = {(row.source, row.target) for row in found.itertuples()}
    assert {("<z>", "p?"), ("<z>", "w?"), ("y", "w?"), ("p_1", "p?"), ("p_2", "p?"), ("e_1", "p_1")} <= reads
    assert (found["effect"] > 0).all() and (found["low"] <= found["effect"]).all()


def test_an_effect_is_what_the_cut_does(reads) -> None:
    """The update's relative change, computed by hand from a replay with the read's weight set to zero."""
    model, run, found = reads
    told = found[(found["source"] == "y") & (found["target"] == "w?")].iloc[0]
    at = run.layout.position("y"), run.layout.position("w?")

    def cut(pattern, hook):  # type: ignore[no-untyped-def]
        pattern[:, told["head"], at[1], at[0]] = 0
        return pattern

    _, plain, _ = interp.replay(model, run, rounds=[10])
    _, after, _ = interp.replay(model, run, rounds=[10], fwd_hooks=[(f"blocks.{told['layer']}.attn.hook_pattern", cut)])
    apart = (plain - plain.mean(0)).flatten(1).norm(dim=-1).mean()
    assert told["effect"] == pytest.approx(float((after - plain).flatten(1).norm(dim=-1).mean() / apart))


def test_rounds_and_numbers_are_checked(reads) -> None:
    """A round beyond the run, and no read at all."""
    model, run, _ = reads
    refuses("round 12 is out of range", strongest_reads, model, run, 12)
    refuses("k must be", strongest_reads, model, run, 3, k=0)
