"""The same questions at every kept state of a training."""

from pathlib import Path

import pandas as pd
import pytest

import interp
from circuits.compare.development import describe, draw, score_algorithms
from interp.tasks import experts
from interp.training.runs import list_kept_states, load_run
from tests.refusals import refuses
from tests.shell import printed


@pytest.mark.long
def test_every_kept_state_is_asked_once_and_its_run_as_it_was(tmp_path: Path) -> None:
    """Two kept states of four steps; the second command measures only what a longer training added."""
    tiny = ["--set", "batch_size=2", "--set", "eval_episodes=2", "--set", "eval_every=2"]
    training = ["train", "experts", "--out", tmp_path, "--name", "run", *tiny, "--keep-every", "2"]
    printed(*training, "--set", "stages=[{n_rounds=2, steps=4}]")
    states = list_kept_states(tmp_path / "run")
    assert list(states) == [2, 4]
    halfway, finished = [load_run(path, "model") for path in states.values()]
    assert (halfway.step, finished.step) == (2, 4)
    assert halfway.metrics["step"].tolist() == [1, 2]
    assert finished.metrics["step"].tolist() == [1, 2, 3, 4]
    assert halfway.about == finished.about == load_run(tmp_path / "run", "model").about != {}

    options = ["--targets", "label", "--episodes", "16", "--rounds", "4", "--out", tmp_path / "out"]
    printed("develop", tmp_path / "run", *options, "--every", "2")
    (first,) = (tmp_path / "out" / "parts").glob("*.json")
    time_written = first.stat().st_mtime_ns
    report = printed("develop", tmp_path / "run", *options)
    assert "excess" in report
    assert "nan" not in report  # the loss has no verdict
    assert first.stat().st_mtime_ns == time_written
    measures = pd.read_csv(tmp_path / "out" / "measures.csv")
    assert measures["step"].tolist() == [2, 2, 4, 4]
    assert measures["key"].tolist() == ["excess", "probe label"] * 2
    assert measures.query("key == 'excess'")["number"].notna().all()
    assert (tmp_path / "out" / "development.svg").is_file()


def test_a_learned_model_is_near_bayes_and_needs_its_state() -> None:
    """It loses .01 nats a round where Bayes is the truth; without its state, or beside others, far more."""
    episodes = experts.sample(32, 20, 4, seed=0)
    scores = score_algorithms(interp.load("wma-learned-additive"), episodes)
    nats = scores.set_index("algorithm")["nats"]
    assert 0 < nats["bayes"] < 0.02
    assert nats["bayes"] < nats[["majority_vote", "follow_the_leader", "fixed_vote"]].min() / 5
    assert nats["bayes"] < scores.set_index("algorithm")["without_state"]["bayes"] / 5


def test_a_loss_is_drawn_once_for_each_evaluation() -> None:
    """Checkpoints between two evaluations of a training have the loss of the first; it is no new point."""
    steps, losses = [1, 2, 3, 4], [0.5, 0.5, 0.5, 0.1]
    excess = pd.DataFrame(
        {"key": "excess", "seed": 0, "step": steps, "number": losses, "control_number": 0.0}
    )
    measures = pd.concat([excess, excess.assign(key="probe label")], ignore_index=True)
    algorithms = pd.DataFrame({"algorithm": "bayes", "seed": 0, "step": steps, "nats": 1.0})
    loss_panel = draw(measures, algorithms, ["bayes"]).axes[0]
    (line,) = loss_panel.lines
    assert line.get_xdata().tolist() == [1, 4]
    assert line.get_ydata().tolist() == [0.5, 0.1]


def test_a_claim_holds_from_the_step_after_which_it_is_never_refused() -> None:
    verdicts = {100: "yes", 200: "no", 300: "yes", 400: "yes"}
    rows = [{"key": "a", "seed": 0, "step": s, "verdict": v} for s, v in verdicts.items()]
    rows += [{"key": "b", "seed": 0, "step": 400, "verdict": "undecided"}]
    assert describe(pd.DataFrame(rows)) == [
        "a, seed 0: yes from step 300 on",
        "b, seed 0: not yes at the end",
    ]


def test_a_run_that_kept_nothing_is_refused(tmp_path: Path) -> None:
    refuses("train with --keep-every 100", list_kept_states, tmp_path)
