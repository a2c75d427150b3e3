"""The examples run as they stand, and do what they say."""

import json
import subprocess
import sys
from importlib import import_module as example
from pathlib import Path

import pytest

from tests.census import count_module
from tests.reports.test_build import titles

EXAMPLES = Path(__file__).parents[1] / "examples"


def count_operations(name):
    """Count what an example does: it stays small enough to be read at once."""
    return count_module(EXAMPLES / f"{name}.py").operations


@pytest.mark.long
def test_a_task_of_ones_own_needs_no_edit_to_the_package(tmp_path, registry, capsys):
    """A task that says nothing of reports gets every part that its record allows."""
    assert count_operations("own_task") <= 280
    path = example("own_task").main(tmp_path, steps=4, n_episodes=8)
    page = path.read_text()
    assert titles(page)[:-1] == [
        "What was found",
        "The state over time",
        "Probes",
        "Patching",
        "Attention",
        "How to reproduce",
    ]
    assert "Not computed" not in page
    assert "8 episodes of 12 rounds, uniform regime, seed 0" in page
    assert "a learned model of pulls of an arm" in page
    assert "tasks.of(model).sample_for(model, 8, 12, seed=0)" in page
    assert "latent@<z>" in capsys.readouterr().out
    config = json.loads((tmp_path / "run" / "model" / "config.json").read_text())
    assert config["config"]["layout"]["task"] == "pulls"


@pytest.mark.long
def test_a_filter_by_hand_is_exact_and_a_learned_one_is_probed(registry):
    assert count_operations("tracker") <= 400
    results = example("tracker").main()
    assert results["state error"] < 1e-9
    assert results["interchange"].estimate == pytest.approx(1)
    best, learned, untrained = results["nats"]
    assert best < learned < best + 0.1 < untrained
    mean, variance = results["probes"]
    assert mean.verdict == "yes"
    assert mean.score.estimate > mean.controls["untrained"].score.estimate + 0.05
    assert variance.score.estimate > variance.controls["inputs"].score.estimate + 0.1


def test_the_voice_detectors_example_is_small():
    """The example runs in a slow test only; its size is counted without the wheel."""
    assert count_operations("foreign_lstm") <= 430


@pytest.mark.slow(
    reason="fetches a wheel of 11 MB, probes and audits an LSTM of 128: a minute of one core"
)
# The vendor's file is TorchScript, which torch.export does not read.
@pytest.mark.filterwarnings("ignore:`torch.jit.load` is deprecated:DeprecationWarning")
def test_a_voice_detector_is_its_vendors_and_is_patched_as_by_hand(tmp_path, registry):
    pip = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps"]
    command = [*pip, "silero-vad==6.2.3", "-d", str(tmp_path)]
    if subprocess.run(command, capture_output=True, check=False).returncode:
        pytest.skip("the wheel silero-vad 6.2.3 cannot be fetched here: no package index answers")
    wheel = next(tmp_path.glob("silero_vad*.whl"))
    numbers = example("foreign_lstm").main(str(wheel))
    assert numbers["from the vendor"] < 1e-5
    assert numbers["patch from hand-made hooks"] < 1e-5
    assert numbers["patch moves by"] > 0.5
    assert numbers["audit"]["used"].verdict == "yes"


@pytest.mark.long
def test_the_halting_court_knows_the_right_answers(monkeypatch):
    """A gate in time is right, a fixed point a round late, and only the readout misses what was left."""
    court = example("halting_court")
    monkeypatch.setattr(court, "N_EPISODES", 40)
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
    assert row["cache"] < 1e-5
    assert row["patch"] < 1e-5
    assert row["lines"] <= 20


CHAIN = {"edges": [[0, 1], [1, 2], [2, 3], [4, 5]], "root": 0, "target": 3, "neg_target": 5}
SHORT = {"edges": [[0, 1], [1, 2], [3, 4], [4, 5]], "root": 0, "target": 2, "neg_target": 5}


def test_published_graphs_are_answered_by_path(tmp_path, monkeypatch):
    """Every predictor by depth; the handwired machine takes the graphs' own sizes."""
    prosqa = example("prosqa")
    monkeypatch.setattr(prosqa, "OUT", tmp_path)
    path = tmp_path / "graphs.json"
    path.write_text(json.dumps([CHAIN, SHORT] * 8))
    tables = prosqa.main(path, ["reachability-handwired"])
    table = tables["reachability-handwired"]
    assert table.columns.tolist() == ["depth 2 (n = 8)", "depth 3 (n = 8)"]
    # All of 8 graphs are answered right: the exact interval begins at .025 ** (1 / 8).
    assert table.loc["model"].tolist() == ["1.00 [0.63, 1.00]"] * 2
    assert table.loc["cut"].tolist() == ["0.50 [0.50, 0.50]"] * 2
    assert (tmp_path / "prosqa-reachability-handwired.csv").exists()
