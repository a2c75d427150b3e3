"""Everything that `interp evaluate` writes: one table per question, for models of both tasks, and readable again."""

import json

import pandas as pd
import pytest
import torch
from typer.testing import CliRunner

import interp
from interp.cli import app
from interp.errors import InputError
from interp.tasks.experts.evaluation import by_regime as experts
from interp.evaluation import headline, suite
from interp.model.checkpoints import save_checkpoint
from interp.model.config import LatentTransformerConfig
from interp.tasks.qlearning.layout import QLearningRound
from interp.model.transformer import HookedLatentTransformer
from reports.evaluation import draw


@pytest.fixture(scope="module")
def learner():
    torch.manual_seed(0)
    config = LatentTransformerConfig(QLearningRound(4, 2), d_model=16, n_layers=1, n_heads=2, d_head=8, name="tiny")
    return HookedLatentTransformer(config).eval()


def test_a_model_of_expert_advice_gives_every_table(monkeypatch, tmp_path):
    """Two regimes and short long episodes stand for all of them; a certain handwired model breaks no table."""
    from functools import partial

    monkeypatch.setattr(experts, "fitting_regimes", lambda model: ["uniform", "switch-10"])
    monkeypatch.setattr(suite.lengths, "evaluate", partial(suite.lengths.evaluate, n_rounds=30))
    model = interp.load("wma-handwired", n_experts=4)
    steps = []
    found = suite.evaluate(model, n_episodes=30, with_theory=True, done=steps.append)
    names = {"summary", "regimes", "regret_curves", "lengths", "latent_control", "calibration", "attention", "theory"}
    assert set(found.tables) == names and sum(steps) == suite.n_steps(model) == 5
    assert found.tables["theory"]["holds"].all()
    found.write(tmp_path)
    again = pd.read_csv(tmp_path / "summary.csv")
    assert again["regime"].tolist() == ["uniform", "switch-10"]
    assert json.loads((tmp_path / "settings.json").read_text())["digest"] == model.digest()
    assert len(found.to_tables()) == 2
    drawn = draw(found.tables)
    assert {"regret-uniform", "length-regret", "attention-predict", "attention-update"} <= set(drawn)


def test_a_model_of_q_learning_gives_every_table_with_its_commit_mode(monkeypatch, learner, tmp_path):
    """From the shell, on one regime and short play; the same code runs them all."""
    from functools import partial

    monkeypatch.setattr(suite.qlearning, "evaluate", partial(suite.qlearning.evaluate, regimes=("grid",)))
    monkeypatch.setattr(suite.play, "evaluate", partial(suite.play.evaluate, regimes=("grid",), horizons=(10,)))
    folder = save_checkpoint(learner, tmp_path / "tiny")
    ran = CliRunner().invoke(app, ["evaluate", str(folder), "--episodes", "30", "--out", str(tmp_path / "out")])
    assert ran.exit_code == 0, ran.output
    assert "grid" in ran.output and str(tmp_path / "out" / "tiny") in ran.output
    written = {path.stem for path in (tmp_path / "out" / "tiny").glob("*.csv")}
    assert written == {
        "summary", "agreement", "followed_discount", "effective_rates", "returns", "reward_rates", "attention_chain"
    }  # fmt: skip
    drawn = {path.stem for path in (tmp_path / "out" / "tiny").glob("*.svg")}
    assert {"followed-discount", "reward-grid", "attention-chain-layer-0"} == drawn
    for name in written - {"agreement", "returns", "reward_rates"}:
        assert set(pd.read_csv(tmp_path / "out" / "tiny" / f"{name}.csv")["commit"]) == {"own"}


def test_too_few_episodes_are_refused_before_any_work(learner):
    with pytest.raises(InputError, match="at least 30, got 3"):
        suite.evaluate(learner, n_episodes=3)


def test_a_model_s_excess_is_its_divergence_from_bayes():
    """The paper's corollary on a model's own predictions: an untrained model pays its summed KL, in expectation."""
    torch.manual_seed(0)
    layout = interp.load("wma-handwired", n_experts=4).layout
    model = HookedLatentTransformer(LatentTransformerConfig(layout, d_model=8, n_layers=1, n_heads=1, d_head=8)).eval()
    check = suite.excess_is_divergence(model, n_episodes=50)
    assert check.holds and check.left > 10


def test_headlines_say_what_stands_beside(learner, monkeypatch):
    monkeypatch.setattr(headline.play, "HORIZONS", (5, 10))
    frame = headline.headline(learner, n_episodes=30)
    assert set(frame.columns) == {"what", "estimate", "low", "high", "beside"}
    assert frame["beside"].str.contains("gamma = 0 table").any() and frame["beside"].str.contains("untrained").any()
