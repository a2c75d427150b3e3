"""The command line: thin commands, one-sentence refusals with exit code 2, nothing half-written."""

import pytest
from typer.testing import CliRunner

from interp.cli import app


def invoke(*arguments):
    return CliRunner().invoke(app, [str(a) for a in arguments])


def test_models_lists_what_can_be_loaded():
    result = invoke("models")
    assert result.exit_code == 0
    assert "wma-handwired" in result.output


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("report", "wma-handwird"), "unknown model 'wma-handwird'; did you mean 'wma-handwired'"),
        (("train", "wma", "--preset", "latop"), "did you mean 'laptop'"),
        (("train", "wma", "--set", "learning_rate=1"), "unknown training field 'learning_rate'"),
        (("train", "wma", "--config", "missing.toml"), "cannot read 'missing.toml'"),
    ],
)
def test_bad_input_is_one_sentence_and_exit_code_2(arguments, message, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    result = invoke(*arguments)
    assert result.exit_code == 2
    assert message in result.output
    assert "Traceback" not in result.output
    assert list(tmp_path.iterdir()) == []
