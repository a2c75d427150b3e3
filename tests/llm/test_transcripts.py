"""Rounds that anybody recorded, as a table or as chats, come out as the runs that they are."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from interp.llm.loading import load
from interp.llm.transcripts import import_rounds
from tests.refusals import refuses
from tests.shell import printed

TABLE = """subject,trial,ann,bob,truth,answer,mood
1,1,yes,no,yes,yes,ok
1,2,no,no,yes,no,ok
2,2,yes,yes,no,perhaps,ok
2,1,no,yes,yes,yes,ok
2,3,no,,yes,yes,ok
"""
COLUMNS = {"advice": ["ann", "bob"], "outcome": "truth", "choice": "answer"}


def write_chats(path: Path, *chats: list[tuple[str, Any]]) -> Path:
    """Write chats as JSON lines; a content that is no text is a JSON object."""
    lines = []
    for chat in chats:
        messages = []
        for role, content in chat:
            text = content if isinstance(content, str) else json.dumps(content)
            messages.append({"role": role, "content": text})
        lines.append(json.dumps({"messages": messages}))
    path.write_text("\n".join(lines))
    return path


def test_a_table_with_a_row_a_round(tmp_path: Path) -> None:
    """Two people, the second in the wrong order: "perhaps" is missing, and the round without all advice is left out."""
    (tmp_path / "people.csv").write_text(TABLE)
    imported = import_rounds(tmp_path / "people.csv", tmp_path / "out", **COLUMNS)
    first, second = load(tmp_path / "out", "flat")
    assert first.advice.tolist() == [[1, 0], [0, 0]]
    assert first.labels.tolist() == [1, 1]
    assert first.predictions.tolist() == [1, 0]
    assert second.advice.tolist() == [[0, 1], [1, 1]]
    assert second.labels.tolist() == [1, 0]
    assert second.predictions[0] == 1
    assert np.isnan(second.predictions[1])
    assert {run.model for run in (first, second)} == {"people"}
    assert imported.sentence.startswith("2 episodes imported; 1 rounds have no answer")
    assert imported.reading.unused == ("mood",)


def test_chats_in_which_the_outcome_has_a_message_of_its_own(tmp_path: Path) -> None:
    """The note that follows an outcome is that of its round; what is no JSON object is passed over."""
    chat: list[tuple[str, Any]] = [
        ("system", "Predict."),
        ("user", {"A": 1, "B": 0, "note": ""}),
        ("assistant", 'I say {"prediction": 1}'),
        ("user", {"A": 1, "B": 0, "note": "", "truth": 0}),
        ("assistant", {"note": "B right"}),
        ("user", {"A": 0, "B": 0, "note": "B right"}),
        ("assistant", "no idea"),
        ("user", {"A": 0, "B": 0, "note": "B right", "truth": 1}),
        ("assistant", {"note": "B right once"}),
    ]
    path = write_chats(tmp_path / "chats.jsonl", chat)
    keys: dict[str, Any] = {"advice": ["A", "B"], "outcome": "truth", "choice": "prediction"}
    import_rounds(path, tmp_path / "out", note="note", condition="online-note", **keys)
    (run,) = load(tmp_path / "out", "flat")
    assert run.condition.name == "online-note"
    assert run.advice.tolist() == [[1, 0], [0, 0]]
    assert run.labels.tolist() == [0, 1]
    assert run.predictions[0] == 1
    assert np.isnan(run.predictions[1])
    assert run.notes == ("B right", "B right once")


def test_chats_in_which_the_next_question_tells_the_outcome(tmp_path: Path) -> None:
    """The advice beside an outcome is that of the next round; the last question was never resolved."""
    chat: list[tuple[str, Any]] = [
        ("user", {"A": "sunny", "B": "rainy"}),
        ("assistant", {"says": "sunny"}),
        ("user", {"was": "rainy", "A": "rainy", "B": "rainy"}),
        ("assistant", {"says": "rainy"}),
        ("user", {"was": "rainy", "A": "sunny", "B": "sunny"}),
        ("assistant", {"says": "sunny"}),
    ]
    path = write_chats(tmp_path / "weather.jsonl", chat, chat)
    options = ["--advice", "A", "B", "--outcome", "was", "--choice", "says"]
    said = printed("llm", "import", path, *options, "--out", tmp_path / "out")
    assert "2 episodes imported; 0 rounds have no answer" in said
    for run in load(tmp_path / "out", "flat", duplicates="first"):
        assert run.advice.tolist() == [[1, 0], [0, 0]]
        assert run.labels.tolist() == [0, 0]
        assert run.predictions.tolist() == [1, 0]


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ({"outcome": "truth"}, "'advice'|advice"),
        ({**COLUMNS, "outcome": "mood"}, "must have two labels together, got no, ok, yes"),
        ({**COLUMNS, "choice": "says"}, "says"),
        ({**COLUMNS, "condition": "weather"}, "unknown condition 'weather'"),
    ],
    ids=["no advice", "three labels", "no such column", "no such condition"],
)
def test_what_cannot_be_read_is_refused(
    columns: dict[str, Any], message: str, tmp_path: Path
) -> None:
    (tmp_path / "people.csv").write_text(TABLE)
    refuses(message, import_rounds, tmp_path / "people.csv", tmp_path / "out", **columns)


def test_chats_need_the_key_of_the_truth(tmp_path: Path) -> None:
    path = write_chats(tmp_path / "chats.jsonl", [("user", {"A": 1, "B": 0, "truth": 1})])
    refuses("holds chats: name the key of the truth", import_rounds, path, tmp_path / "out")
    keys = {**COLUMNS, "outcome": "label"}
    refuses("no message of .* with the key .label.", import_rounds, path, tmp_path / "out", **keys)
