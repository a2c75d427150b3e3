"""The shell's one JSON object and the page hold every line of an audit, with number, control and threshold."""

from __future__ import annotations

import json
from dataclasses import replace
from html import unescape

import pytest
from typer.testing import CliRunner

import interp
from interp import audit as room
from interp.audit import Effort
from interp.cli import app
from interp.errors import InputError

TINY = Effort(episodes=12, rounds=5, writes=2, away=1, held=12, jacobians=1, along=1)


@pytest.fixture
def told(monkeypatch, tmp_path):
    """What the command says of a small model, at little effort."""
    monkeypatch.setattr("interp.audit.subject.QUICK", TINY)
    words = ["audit", "wma-handwired", "--experts", "2", "--quick", "--report", "--json", "--out", str(tmp_path)]
    result = CliRunner().invoke(app, words)
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout), tmp_path / "wma-handwired"


def test_the_command_tells_every_question_and_writes_tables_and_a_page(told):
    said, folder = told
    keys = [line["key"] for line in said["verdicts"]]
    assert keys == ["used", "content", "lasts", "decoded", "directions", "in time", "longer", "stays", "moves", "side"]
    decided = [line for line in said["verdicts"] if line["verdict"] not in ("undecided", "not applicable")]
    assert decided and all(line["number_low"] <= line["number"] <= line["number_high"] for line in decided)
    assert all(line["control_is"] and line["control"] is not None for line in decided)
    assert said["settings"]["thresholds"]["effect"] == room.THRESHOLDS["effect"].value
    assert (folder / "verdicts.csv").is_file() and (folder / "used.csv").is_file()
    (page,) = folder.glob("wma-handwired*.html")
    text = unescape(page.read_text("utf-8"))
    assert "What critics ask" in text and "Not computed" not in text
    for line in said["verdicts"]:
        assert line["question"].split("?")[0] in text


def test_bad_efforts_are_refused_before_any_work():
    for name, value in (("episodes", 3), ("rounds", 1), ("held", 2), ("episodes", "many")):
        with pytest.raises(InputError, match=name):
            replace(TINY, **{name: value})
    with pytest.raises(InputError, match="unknown question 'speed'"):
        room.audit(interp.load("wma-handwired", n_experts=2), effort=TINY).verdict("speed")
    with pytest.raises(InputError, match="wma-lerned"):
        room.audit("wma-lerned")
