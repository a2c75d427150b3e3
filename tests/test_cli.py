"""The command line: thin commands, one-sentence refusals with exit code 2, nothing half-written."""

from functools import partial

import pytest
from typer.testing import CliRunner

from interp.cli import app


def invoke(*arguments):
    return CliRunner().invoke(app, [str(a) for a in arguments])


def test_models_lists_what_can_be_loaded():
    result = invoke("models")
    assert result.exit_code == 0
    experts, qlearning = (result.output.index(f"{key}: ") for key in ("experts", "qlearning"))
    assert experts < result.output.index("wma-handwired") < qlearning < result.output.index("qlearning-learned")


def test_help_on_training_names_every_task_and_its_presets():
    result = invoke("train", "--help")
    assert "experts: laptop, laptop-wide, paper" in result.output and "qlearning: laptop, paper" in result.output


def test_verify_prints_every_variable_and_takes_several_sizes():
    result = invoke("verify", "wma-handwired", "--experts", 1, 3, "--rounds", 5, "--episodes", 2)
    assert result.exit_code == 0
    assert "next_log_weights" in result.output
    assert "exact within tolerance" in result.output


def test_verify_exits_with_1_when_not_exact(monkeypatch):
    """At inverse temperature 10 the softmax-only circuit is far from exact."""
    from circuits import verification

    soft = partial(verification.verify, eta=10.0)
    monkeypatch.setattr(verification, "verify", soft)
    result = invoke("verify", "wma-handwired", "--experts", 3, "--rounds", 5, "--episodes", 2)
    assert result.exit_code == 1
    assert "NOT exact" in result.output


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("report", "wma-handwird"), "unknown model 'wma-handwird'; did you mean 'wma-handwired'"),
        (("report", "wma-handwired", "--out", "/proc/none"), "cannot write to '/proc/none'"),
        (("verify", "wma-handwired", "--experts", "0"), "n_experts must be an integer >= 1, got 0"),
        (("verify", "wma-learned"), "unknown handwired model 'wma-learned'"),
        (("train", "experts", "--preset", "latop"), "did you mean 'laptop'"),
        (("train", "wma-wide"), "use `interp train experts --preset laptop-wide`"),
        (("train", "experts", "--set", "learning_rate=1"), "unknown training field 'learning_rate'"),
        (("train", "experts", "--config", "missing.toml"), "cannot read 'missing.toml'"),
    ],
)
def test_bad_input_is_one_sentence_and_exit_code_2(arguments, message, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    result = invoke(*arguments)
    assert result.exit_code == 2
    assert message in result.output
    assert "Traceback" not in result.output
    assert list(tmp_path.iterdir()) == []
