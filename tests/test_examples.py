"""The examples run as they stand, and do what they say."""

import json
import re
import subprocess
import sys
from functools import partial
from importlib import import_module as example
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

import interp
import probes
from interp.audit import Scope
from interp.tasks import mdp
from tests.reports.test_build import titles

EXAMPLES = Path(__file__).parents[1] / "examples"


def test_a_task_of_ones_own_needs_no_edit_to_the_package(tmp_path, registry, capsys):
    """A task that says nothing of reports gets every part that its record allows."""
    assert len((EXAMPLES / "own_task.py").read_text().splitlines()) <= 150
    page = example("own_task").main(tmp_path, steps=4, n_episodes=8).read_text()
    expected = [
        "What was found",
        "Compared with other machines",
        "The state over time",
        "Probes",
        "Patching",
    ]
    expected += ["Attention", "What the heads do", "How to reproduce"]
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
    assert len((EXAMPLES / "tracker.py").read_text().splitlines()) <= 150
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


@pytest.mark.parametrize("kind", ["gru", "lstm", "loop"])
def test_cells_and_a_loop_of_the_example_are_machines(kind):
    assert len((EXAMPLES / "gru.py").read_text().splitlines()) <= 120
    made = example("gru").machine(kind)
    interp.check_machine(made)
    assert [channel.name for channel in made.channels] == (["h", "c"] if kind == "lstm" else ["h"])


@pytest.mark.slow  # trains four small machines, compares and reports on three of them: two minutes of one core
def test_cells_and_a_loop_go_from_training_to_a_report_by_the_calls_of_every_model(tmp_path):
    command = [sys.executable, EXAMPLES / "gru.py", tmp_path]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=1200, check=False)
    assert ran.returncode == 0, ran.stderr
    assert len(list(tmp_path.glob("*-learned-*.html"))) == 3
    assert all("Not computed" not in page.read_text() for page in tmp_path.glob("*.html"))
    assert "latent@c" in ran.stdout and ran.stdout.count("  an untrained copy: ") == 4
    assert (
        len(re.findall(r"^0 +latent +1\.0+$", ran.stdout, re.M)) == 3
    )  # all that a corrupted vote changed


def test_controls_of_a_continuous_thought_tell_use_from_appearance(monkeypatch):
    monkeypatch.setattr(probes, "probe", partial(probes.probe, n_untrained=1))
    model = interp.load("reachability-handwired", n_nodes=8, n_edges=12)
    found = example("continuous_thought").row(model, n_episodes=16)
    assert found["depth 1"] == found["depth 2"] == found["exact sets"] == 1
    assert found["cut"] == 0.5 and found["decoded R2"] > found["R2, untrained"] + 0.5
    assert found["parent written"] == 0.5 and found["another written"] == 0


def test_seeds_stand_beside_what_episodes_would_move():
    one = {"what": "accuracy", "low": 0.6, "high": 0.8}
    judged = {"what": "as known: state", "low": 0.9, "high": 1.0, "value": 0.95}
    rows = [
        {"model": "a", "value": 0.7, **one},
        {"model": "a", "verdict": "same", **judged},
        {"model": "b", "value": 0.9, **one},
        {"model": "b", "verdict": "undecided", **judged},
    ]
    table = example("seeds").spread(pd.DataFrame(rows))
    assert list(table.index) == ["accuracy", "as known: state"] and list(table.columns[:2]) == [
        "a",
        "b",
    ]
    accuracy, state = table.loc["accuracy"], table.loc["as known: state"]
    assert accuracy["mean"] == pytest.approx(0.8) and accuracy["seeds"] == pytest.approx(0.02**0.5)
    assert accuracy["episodes"] == pytest.approx(0.2 / 3.92)
    assert state["seeds"] == 0 and state["verdicts"] == "same, undecided"


def published(folder):
    """A wheel as ``g2p-en`` publishes it, with random arrays."""
    import io
    import zipfile

    rng, cell = (
        np.random.default_rng(0),
        {"w_ih": (768, 256), "w_hh": (768, 256), "b_ih": (768,), "b_hh": (768,)},
    )
    shapes = {f"{side}_{name}": shape for side in ("enc", "dec") for name, shape in cell.items()}
    shapes |= {"enc_emb": (29, 256), "dec_emb": (74, 256), "fc_w": (74, 256), "fc_b": (74,)}
    held = io.BytesIO()
    np.savez(
        held,
        **{name: rng.normal(0, 0.3, shape).astype(np.float32) for name, shape in shapes.items()},
    )
    with zipfile.ZipFile(folder / "g2p.whl", "w") as archive:
        archive.writestr("g2p_en/checkpoint20.npz", held.getvalue())
    return folder / "g2p.whl"


def test_a_published_gru_is_read_into_a_machine(tmp_path, registry):
    """With arrays of the published shapes: 834,890 weights; a word is said as its own greedy unroll in NumPy."""
    assert all(
        len((EXAMPLES / f"{name}.py").read_text().splitlines()) <= 150
        for name in ("g2p", "speaker")
    )
    of = example("speaker")
    speaker = of.Speaker(published(tmp_path))
    # Random weights say no word in five phonemes: any five are as good here.
    speaker.say = lambda letters: (of.Speaker.say(speaker, letters)[0], np.ones(len(letters), bool))
    assert sum(weight.numel() for weight in speaker.parameters()) == 834_890
    interp.tasks.register(of.task(speaker))
    machine, words = of.machine(speaker), speaker.sample(3, 10)
    assert words.letters.shape == (3, 2, 5)  # two words of five letters, one after the other
    interp.check_machine(machine, words)
    assert np.array_equal(interp.rollout(machine, words).predictions.argmax(-1).numpy(), words.said)


@pytest.mark.slow(
    reason="fetches a wheel of 3 MB, 24 probes with untrained copies and a report: a minute of one core"
)
def test_letters_to_come_are_held_and_used_in_a_model_that_others_trained(tmp_path):
    fetch = [
        sys.executable,
        "-m",
        "pip",
        "download",
        "--quiet",
        "--no-deps",
        "g2p-en==2.1.0",
        "-d",
        str(tmp_path),
    ]
    if subprocess.run(fetch, capture_output=True, check=False).returncode:
        pytest.skip("the wheel g2p-en 2.1.0 cannot be fetched here: no package index answers")
    wheel = next(tmp_path.glob("g2p_en*.whl"))
    code = "import sys, g2p; from pathlib import Path; found = g2p.main(sys.argv[1], Path(sys.argv[2]), 200)\n"
    code += "found['read'].to_csv(sys.argv[2] + '/read.csv'); found['moved'].to_csv(sys.argv[2] + '/moved.csv')"
    command = [sys.executable, "-c", code, str(wheel), str(tmp_path)]
    ran = subprocess.run(
        command, capture_output=True, text=True, timeout=1200, check=False, cwd=EXAMPLES
    )
    assert ran.returncode == 0, ran.stderr
    read, moved = (pd.read_csv(tmp_path / f"{name}.csv") for name in ("read", "moved"))
    assert (
        len(read) == 24
        and read.share.min() > 0.8
        and read.shuffled.max() < 0.2
        and read.inputs.max() < 0.3
    )
    # A copy that was never trained remembers the letter that it heard last, and has lost it two rounds later.
    assert read[(read.letter == 5) & (read["round"] >= 3)].untrained.max() < 0.4
    own, others = moved[moved.move == "its own"], moved[moved.move != "its own"]
    assert own.share_low.min() > 0.5 and own.share.mean() > 0.75 and others.share.max() < 0.2
    assert "Not computed" not in next(tmp_path.glob("g2p-*.html")).read_text()


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
    assert len((EXAMPLES / "foreign_lstm.py").read_text().splitlines()) <= 150
    found = example("foreign_lstm").main(str(next(tmp_path.glob("silero_vad*.whl"))))
    assert (
        found["from the vendor"] < 1e-5 > found["patch from hand-made hooks"]
        and found["patch moves by"] > 0.5
    )
    assert found["audit"]["used"].verdict == "yes"


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


def test_a_training_is_audited_at_its_checkpoints_and_goes_on_where_it_was_stopped(tmp_path):
    made = example("over_training")
    small = Scope(episodes=8, rounds=3, writes=1, copies=1)
    first = made.main(tmp_path, steps=(1, 4), effort=small)
    assert set(first["step"]) == {1, 4} and {"behaviour", "used", "decoded", "side"} <= set(
        first["key"]
    )
    assert first["number"][first["about"] == "accuracy"].between(0, 1).all()
    again = made.main(tmp_path, steps=(1, 4), effort=small)
    same = ["step", "key", "about", "number", "control_number"]
    pd.testing.assert_frame_equal(first[same].fillna({"about": ""}), again[same], check_dtype=False)
    assert set(pd.read_csv(tmp_path / "arrivals.csv").set_index("key")["from_step"]) <= {1, 4}
    assert (tmp_path / "over_training.svg").is_file()
    table = pd.DataFrame(
        {"step": [1, 2, 3, 4], "key": "used", "about": "all", "verdict": ["no", "yes", "no", "yes"]}
    )
    assert made.arrivals(table).to_dict("records") == [
        {"key": "used", "verdict": "yes", "from_step": 4}
    ]


def test_a_planner_that_has_seen_everything_knows_the_optimum():
    planner = example("planner").planner(discount=0.5)
    episodes = mdp.sample(4, 300, 3, 2, seed=0, regime="adversarial", epsilon=1.0)
    values, mdps = np.zeros((4, 3, 2)), episodes.mdps
    for _ in range(60):
        values = mdps.rewards + 0.5 * np.einsum("esan,en->esa", mdps.transitions, values.max(-1))
    run = planner.run(episodes)
    seen = (
        run["next_visits"][:, -1] > 30
    )  # by random actions: then all that follows was seen as well
    assert seen.sum() > 4 and np.allclose(run["next_table"][:, -1][seen], values[seen], atol=0.05)
