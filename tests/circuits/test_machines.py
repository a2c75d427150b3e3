"""Verification of machines that are no circuits: what they predict and carry, against the algorithm that they are."""

import json

import pytest

import circuits
import interp
from interp.interventions.interchange import Claim
from interp.model.adapted import AdaptedMachine
from interp.tasks import experts
from interp.tasks.experts.algorithms import bayes, majority_vote, weighted_majority
from interp.tasks.qlearning.algorithms import q_learning
from tests import handmade
from tests.refusals import refuses
from tests.shell import invoked, printed, refusal


@pytest.mark.parametrize(("decay", "rounds"), [(0.8, 80), (handmade.KEPT, 50)])
def test_a_handmade_machine_is_its_algorithm_and_no_other(decay, rounds):
    """Predictions and state, to rounding; another gain, another decay and another algorithm fail in both."""
    machine = handmade.majority(decay=decay)
    interp.check_machine(machine)
    run = {"n_rounds": rounds, "n_episodes": 4}
    result = circuits.verify_machine(machine, **run)
    assert result.passed
    assert [check.variable for check in result.checks] == [
        "distribution",
        "carried_state",
    ]
    assert result.settings["arguments"] == {
        "algorithm": "fading_majority",
        "gain": 0.5,
        "decay": decay,
    }
    assert result.settings["rounds"] == rounds
    assert result.settings["digest"] == machine.digest()
    for algorithm in (handmade.algorithm(0.6, decay), handmade.algorithm(decay=0.9), bayes()):
        failed = circuits.verify_machine(machine, algorithm, **run)
        assert {check.variable for check in failed.failures} == {"distribution", "carried_state"}, (
            algorithm.name
        )


def test_a_state_that_is_right_and_predictions_that_are_not_are_told_apart():
    """Votes that are counted evenly keep the log-weights; a readout in other units keeps the predictions."""
    machine = handmade.majority(decay=0.8)
    own_algorithm, read = handmade.algorithm(decay=0.8), machine.state_reader
    machine.state_reader = lambda carried: 1.001 * read(carried)
    assert [
        c.variable for c in circuits.verify_machine(machine, own_algorithm, n_rounds=20).failures
    ] == ["carried_state"]
    assert circuits.verify_machine(machine, own_algorithm, n_rounds=20, tolerance=0.01).passed
    machine.state_reader = read
    vote = machine.module.votes
    machine.module.votes = lambda carried, said: vote(0 * carried, said)
    assert [
        c.variable for c in circuits.verify_machine(machine, own_algorithm, n_rounds=20).failures
    ] == ["distribution"]
    # An algorithm without a memory says nothing about what is carried.
    assert [
        c.variable for c in circuits.verify_machine(machine, majority_vote(), n_rounds=20).checks
    ] == ["distribution"]


def test_circuits_pass_it_too_by_the_algorithm_of_their_task():
    for name, sizes in {
        "wma-handwired": {"n_experts": 2},
        "qlearning-handwired": {"n_states": 2, "n_actions": 2},
    }.items():
        result = circuits.verify_machine(interp.load(name, **sizes), n_rounds=8, n_episodes=3)
        assert result.passed, result.table()
        assert result.checks[0].size == (2 if len(sizes) == 1 else (2, 2))


def test_what_cannot_be_verified_is_refused():
    machine = handmade.majority()
    refuses(
        r"'handmade-untrained' is learned.*adapt it with read=|Adapt it with read=",
        circuits.verify_machine,
        machine.untrained(),
    )
    refuses("runs on qlearning episodes", circuits.verify_machine, machine, q_learning())
    refuses("n_rounds must be an integer >= 1, got 0", circuits.verify_machine, machine, n_rounds=0)
    refuses(
        "tolerance must be a number >= 0, got -1", circuits.verify_machine, machine, tolerance=-1.0
    )
    machine.state_reader = lambda carried: carried["h"]
    assert machine.untrained().algorithm is None
    refuses(
        r"gives a carried_state of shape .*9\), Weighted Majority one of .*4\)",
        circuits.verify_machine,
        machine,
        weighted_majority(),
    )


@pytest.fixture
def registered(builders):
    interp.register_machine(
        "my-majority", handmade.majority, description="a GRU by hand", task="experts"
    )

    def another() -> AdaptedMachine:
        machine = handmade.majority(decay=0.9)
        machine.algorithm = handmade.algorithm(decay=0.8)
        return machine

    interp.register_machine("another", another, description="not what it says", task="experts")


def test_interp_verify_takes_a_machine_of_ones_own(registered, tmp_path):
    """By the name that its builder is registered under; exit 0 where it is exact, 1 where it is not, 2 if refused."""
    small = ["--rounds", 20, "--episodes", 3]
    exact = printed(
        "verify", "my-majority", *small, "--experts", 3, "--set", "decay=0.9", "--out", tmp_path
    )
    assert "exactly: all" in exact
    assert "carried_state" in (tmp_path / "verification.csv").read_text()
    failed = invoked("verify", "another", *small, "--json")
    output = json.loads(failed.stdout)
    assert failed.exit_code == 1
    assert output["exact"] is False
    assert output["failures"] == 2
    assert output["settings"]["arguments"] == {
        "algorithm": "fading_majority",
        "gain": 0.5,
        "decay": 0.8,
    }
    assert {check["variable"] for check in output["checks"]} == {"distribution", "carried_state"}
    refused = refusal("verify", "my-majority", *small, "--experts", 2, 3)
    assert "give --experts one number" in refused
    refused = refusal("verify", "my-majority", *small, "--dtype", "float32")
    assert "leave --dtype out" in refused


def test_a_machine_of_known_state_says_what_it_computes():
    """Rooms hold it against that algorithm, and not against what its task would guess; only a known state has one."""
    machine = handmade.majority(decay=0.8)
    assert experts.TASK.explains(machine).parameters == {"gain": 0.5, "decay": 0.8}
    assert {claim.variable for claim in Claim.of(machine)} == {"log_weights"}
    assert experts.TASK.explains(machine.untrained()).key == "bayes"
    known = {"step": machine.one_step, "channels": machine.channels, "check": False}
    for arguments in (
        {"algorithm": handmade.algorithm()},
        {"algorithm": q_learning(), "read": machine.state_reader},
    ):
        refuses(
            "give read=, too, and an algorithm of its task",
            interp.adapt,
            machine.module,
            "experts",
            **known,
            **arguments,
        )
