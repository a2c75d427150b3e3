"""Everything that `interp evaluate` writes: one table per question, for models of every task, and readable again."""

import json
from functools import partial

import pandas as pd
import pytest

import interp
from interp.cli.options import name_folder
from interp.evaluation import suite
from interp.evaluation.experts import by_regime as experts
from interp.evaluation.plan import EvaluationPlan
from interp.evaluation.qlearning import plan as qlearning
from interp.evaluation.qlearning import returns
from interp.model.checkpoints import save_checkpoint
from interp.tasks.qlearning.layout import QLearningRound
from reports.evaluation import draw
from tests.machines import transformer
from tests.refusals import refuses
from tests.shell import printed


@pytest.fixture(scope="module")
def learner():
    return transformer(QLearningRound(4, 2), n_layers=1, d_mlp=0, name="tiny")


@pytest.mark.long
def test_a_model_of_expert_advice_gives_every_table(monkeypatch, tmp_path):
    """Two regimes and short long episodes stand for all of them; a certain handwired model breaks no table."""
    monkeypatch.setattr(experts, "fitting_regimes", lambda model: ["uniform", "switch-10"])
    monkeypatch.setattr(experts, "over_lengths", partial(experts.over_lengths, n_rounds=30))
    model = interp.load("wma-handwired", n_experts=4)
    steps = []
    result = suite.evaluate(model, n_episodes=30, done=steps.append)
    names = {
        "summary",
        "regimes",
        "regret_curves",
        "lengths",
        "latent_control",
        "attention",
    }
    assert set(result.tables) == names
    assert sum(steps) == len(suite.plan_of(model).parts(model)) == 4
    assert result.notes == {}
    result.write(tmp_path)
    assert pd.read_csv(tmp_path / "summary.csv")["regime"].tolist() == ["uniform", "switch-10"]
    assert json.loads((tmp_path / "settings.json").read_text())["digest"] == model.digest()
    assert {"regret-uniform", "length-regret"} <= set(draw(result.tables))


@pytest.mark.long
def test_a_model_of_q_learning_gives_every_table_with_its_commit_mode(
    monkeypatch, learner, tmp_path
):
    """From the shell, on one regime and short play; the same code runs them all."""
    monkeypatch.setattr(qlearning, "_EVALUATED_REGIMES", ("grid",))
    monkeypatch.setattr(returns, "PLAYED", ("grid",))
    monkeypatch.setattr(returns, "evaluate", partial(returns.evaluate, horizons=(10,)))
    folder = save_checkpoint(learner, tmp_path / "tiny")
    ran = printed("evaluate", folder, "--episodes", "30", "--out", tmp_path / "out")
    assert "grid" in ran
    results = tmp_path / "out" / name_folder(str(folder))
    assert str(results) in ran
    written = {path.stem for path in results.glob("*.csv")}
    assert written == {"summary", "agreement", "followed_discount", "returns", "reward_rates"}
    drawn = {path.stem for path in results.glob("*.svg")}
    assert drawn == {"followed-discount", "reward-grid"}
    for name in written - {"agreement", "returns", "reward_rates"}:
        assert set(pd.read_csv(results / f"{name}.csv")["commit"]) == {"own"}


def test_too_few_episodes_are_refused_before_any_work(learner):
    refuses("at least 30, got 3", suite.evaluate, learner, n_episodes=3)


def test_a_task_may_plan_its_own_evaluation(learner, changed_task):
    """The room runs whatever the record names, and says what a record lacks."""
    frame = pd.DataFrame({"accuracy": [0.75]})

    def measure(model, part, n_episodes, seed):
        return frame.assign(n_episodes=n_episodes)

    plan = EvaluationPlan(
        parts=lambda model: ["all"],
        measure=measure,
        tables=lambda model, parts: {"summary": parts["all"]},
        explained="A row is a regime.",
    )
    changed_task("qlearning", evaluation=lambda: plan)
    result = suite.evaluate(learner, n_episodes=2)
    measured = f"{learner.name}, measured on 2 episodes of each regime."
    assert result.sentence == f"{measured} A row is a regime."
    assert set(result.tables) == {"summary"}
    assert result.to_frame()["n_episodes"].tolist() == [2]
    changed_task("qlearning", evaluation=None)
    refuses(
        "models of 'qlearning' cannot be evaluated: give the task's record", suite.evaluate, learner
    )
