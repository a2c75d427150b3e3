"""The examples run as they stand, and do what they say."""

import json
import subprocess
import sys
from functools import partial
from importlib import import_module as example
from pathlib import Path

import pytest

import interp
import probes
from tests.census import count_module
from tests.reports.test_build import titles

EXAMPLES = Path(__file__).parents[1] / "examples"


def test_a_task_of_ones_own_needs_no_edit_to_the_package(tmp_path, registry, capsys):
    """A task that says nothing of reports gets every part that its record allows."""
    assert count_module(EXAMPLES / "own_task.py").operations <= 280
    page = example("own_task").main(tmp_path, steps=4, n_episodes=8).read_text()
    expected = [
        "What was found",
        "The state over time",
        "Probes",
        "Patching",
    ]
    expected += ["Attention", "How to reproduce"]
    assert titles(page)[:-1] == expected and "Not computed" not in page
    assert (
        "8 episodes of 12 rounds, uniform regime, seed 0" in page
        and "a learned model of pulls of an arm" in page
    )
    assert "tasks.of(model).sample_for(model, 8, 12, seed=0)" in page
    assert "latent@<z>" in capsys.readouterr().out
    about = json.loads((tmp_path / "run" / "model" / "config.json").read_text())
    assert about["config"]["layout"]["task"] == "pulls"


def test_a_filter_by_hand_is_exact_and_a_learned_one_is_probed(registry):
    assert count_module(EXAMPLES / "tracker.py").operations <= 400
    tracker = example("tracker")
    found = tracker.main()
    assert found["state error"] < 1e-9 and found["interchange"].estimate == pytest.approx(1)
    best, learned, untrained = found["nats"]
    assert best < learned < best + 0.1 < untrained
    mean, variance = found["probes"]
    assert (
        mean.verdict == "yes"
        and mean.score.estimate > mean.controls["untrained"].score.estimate + 0.05
    )
    assert variance.score.estimate > variance.controls["inputs"].score.estimate + 0.1


def test_controls_of_a_continuous_thought_tell_use_from_appearance(monkeypatch):
    monkeypatch.setattr(probes, "probe", partial(probes.probe, n_untrained=1))
    model = interp.load("reachability-handwired", n_nodes=8, n_edges=12)
    found = example("continuous_thought").row(model, n_episodes=16)
    assert found["depth 1"] == found["depth 2"] == found["exact sets"] == 1
    assert found["cut"] == 0.5 and found["decoded R2"] > found["R2, untrained"] + 0.5
    assert found["parent written"] == 0.5 and found["another written"] == 0


@pytest.mark.slow(
    reason="fetches a wheel of 11 MB, probes and audits an LSTM of 128: a minute of one core"
)
def test_a_voice_detector_is_its_vendors_and_is_patched_as_by_hand(tmp_path, registry):
    fetch = [
        sys.executable,
        "-m",
        "pip",
        "download",
        "--quiet",
        "--no-deps",
        "silero-vad==6.2.3",
        "-d",
        str(tmp_path),
    ]
    if subprocess.run(fetch, capture_output=True, check=False).returncode:
        pytest.skip("the wheel silero-vad 6.2.3 cannot be fetched here: no package index answers")
    assert count_module(EXAMPLES / "foreign_lstm.py").operations <= 430
    found = example("foreign_lstm").main(str(next(tmp_path.glob("silero_vad*.whl"))))
    assert (
        found["from the vendor"] < 1e-5 > found["patch from hand-made hooks"]
        and found["patch moves by"] > 0.5
    )
    assert found["audit"]["used"].verdict == "yes"


def test_the_halting_court_knows_the_right_answers():
    """A gate in time is right, a fixed point a round late, and only the readout misses what was left."""
    court = example("halting_court")
    early = court.try_handwired("early").set_index("witness")
    in_time = court.try_handwired("in time").set_index("witness")
    assert in_time.loc["gate", "right"] == in_time.loc["readout", "right"] == 1
    assert in_time.loc["fixed point", "mean"] == 1
    assert early.loc["readout", "never"] == early.loc["gate", "early"] > 0.5
    assert early.loc["fixed point", "early"] > 0.5


@pytest.mark.parametrize("which", [1, 2], ids=["halting loop", "RWKV"])
def test_machines_that_think_are_what_plain_hooks_say(which, registry):
    thinking = example("thinking")
    row = thinking.measure(thinking.MACHINES[which])
    assert row["cache"] < 1e-5 > row["patch"] and row["lines"] <= 20


def test_published_graphs_are_answered_by_path(tmp_path, monkeypatch):
    """Every predictor by depth; the handwired machine takes the graphs' own sizes."""
    chain = {"edges": [[0, 1], [1, 2], [2, 3], [4, 5]], "root": 0, "target": 3, "neg_target": 5}
    short = {"edges": [[0, 1], [1, 2], [3, 4], [4, 5]], "root": 0, "target": 2, "neg_target": 5}
    path = tmp_path / "graphs.json"
    path.write_text(json.dumps([chain, short] * 8))
    monkeypatch.setattr(example_of := example("prosqa"), "OUT", tmp_path)
    table = example_of.main(path, ["reachability-handwired"])["reachability-handwired"]
    assert table.columns.tolist() == ["depth 2 (n = 8)", "depth 3 (n = 8)"]
    assert table.loc["model"].tolist() == ["1.00 [1.00, 1.00]"] * 2
    assert table.loc["cut"].tolist() == ["0.50 [0.50, 0.50]"] * 2
    assert (tmp_path / "prosqa-reachability-handwired.csv").exists()
