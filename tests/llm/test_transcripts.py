"""Rounds that anybody recorded, as a table, as chats or as a log of Inspect, come out as the runs that they are.

The logs in ``inspect/`` were made by Inspect 0.3.285 and its mock model: three samples, of which "silent" plays
nothing, and three rounds each of the other two. The answers are 1, 0, "no idea"; "Sure! 0", 0, 1.
"""

import json
import zipfile
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from interp.llm.loading import load
from interp.llm.transcripts import Imported, import_rounds
from interp.tasks import bandit, mdp, table_file
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
ADVICE_KEYS: dict[str, Any] = {"advice": ["A", "B"], "outcome": "truth", "choice": "prediction"}
"""Keys of most chats below."""


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


def test_an_import_is_not_mixed_with_an_earlier_one(tmp_path: Path) -> None:
    """The second file has one person: person 2 of the first would stay beside it, as if both had played."""
    (tmp_path / "a.csv").write_text(TABLE)
    (tmp_path / "b.csv").write_text("\n".join(TABLE.splitlines()[:3]))
    import_rounds(tmp_path / "a.csv", tmp_path / "out", model="m", **COLUMNS)
    message = "holds episodes of an earlier import, which would be mixed with these"
    refuses(message, import_rounds, tmp_path / "b.csv", tmp_path / "out", model="m", **COLUMNS)
    import_rounds(tmp_path / "b.csv", tmp_path / "out", model="other", **COLUMNS)
    assert len(load(tmp_path / "out")) == 3


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
    import_rounds(path, tmp_path / "out", note="note", condition="online-note", **ADVICE_KEYS)
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
    report = printed("llm", "import", path, *options, "--out", tmp_path / "out")
    assert "2 episodes imported; 0 rounds have no answer" in report
    for run in load(tmp_path / "out", "flat", duplicates="first"):
        assert run.advice.tolist() == [[1, 0], [0, 0]]
        assert run.labels.tolist() == [0, 0]
        assert run.predictions.tolist() == [1, 0]


@pytest.mark.parametrize(
    ("question", "later_question", "number"),
    [({"A": 1, "B": 0}, {"A": 0, "B": 0}, 4), ("Predict.", "Go on.", 5)],
    ids=["questions with advice", "questions without an object"],
)
def test_a_round_without_an_outcome_is_not_merged_with_the_next(
    question: Any, later_question: Any, number: int, tmp_path: Path
) -> None:
    """The outcome of the first round is told in words."""
    chat: list[tuple[str, Any]] = [
        ("user", question),
        ("assistant", {"prediction": 1}),
        ("user", "The truth was 0."),
        ("user", later_question),
        ("assistant", {"prediction": 1}),
        ("user", {"truth": 1}),
    ]
    path = write_chats(tmp_path / "chats.jsonl", chat)
    message = f"message {number} in line .* of .* begins a round, but no JSON object .*'truth'"
    refuses(message, import_rounds, path, tmp_path / "out", **ADVICE_KEYS)


def test_a_round_whose_answer_holds_no_object_is_not_merged_with_the_next(tmp_path: Path) -> None:
    """The first answer is words, and its outcome, too; the next question has other advice."""
    chat: list[tuple[str, Any]] = [
        ("user", {"A": 1, "B": 0}),
        ("assistant", "no idea"),
        ("user", "The truth was 0."),
        ("user", {"A": 0, "B": 0}),
        ("assistant", {"prediction": 1}),
        ("user", {"truth": 1}),
    ]
    path = write_chats(tmp_path / "chats.jsonl", chat)
    message = "message 4 in line .* of .* begins a round, but no JSON object .*'truth'"
    refuses(message, import_rounds, path, tmp_path / "out", **ADVICE_KEYS)


def test_advice_that_is_only_beside_outcomes_is_refused(tmp_path: Path) -> None:
    """The first question is in words: is the advice beside its outcome its own, or the next one's?"""
    chat: list[tuple[str, Any]] = [("user", "Ann says yes, Bob says no.")]
    for truth in (0, 1):
        chat.append(("assistant", {"prediction": 1}))
        chat.append(("user", {"truth": truth, "A": truth, "B": 0}))
    path = write_chats(tmp_path / "chats.jsonl", chat)
    message = "message 5 in line 1 .* has .'A'. beside the outcome, .* of the next one"
    refuses(message, import_rounds, path, tmp_path / "out", **ADVICE_KEYS)


def test_answers_that_are_left_out_of_chats_are_counted(tmp_path: Path) -> None:
    """Both first questions are asked twice; the first chat's last round has no outcome."""
    chat: list[tuple[str, Any]] = [
        ("user", {"A": 1, "B": 0}),
        ("assistant", "no idea"),
        ("user", {"A": 1, "B": 0}),
        ("assistant", {"prediction": 1}),
        ("user", {"truth": 0}),
        ("user", {"A": 0, "B": 0}),
        ("assistant", {"prediction": 0}),
    ]
    path = write_chats(tmp_path / "chats.jsonl", chat, chat[:5])
    (remark,) = import_rounds(path, tmp_path / "out", **ADVICE_KEYS).reading.remarks
    assert remark.startswith("message 2 in line 1 of ")
    assert remark.endswith("before 'truth'. Number of such answers, which are left out: 3.")
    for run in load(tmp_path / "out", "flat", duplicates="first"):
        assert run.predictions.tolist() == [1]


def test_a_choice_beside_its_reward_is_not_carried_into_the_next_round(tmp_path: Path) -> None:
    """The answers are words, and the feedback repeats the choice."""
    chat: list[tuple[str, Any]] = [("user", "Choose J or F.")]
    for arm in ("J", "F", "J"):
        chat.append(("assistant", arm))
        chat.append(("user", {"choice": arm, "reward": 1}))
    path = write_chats(tmp_path / "chats.jsonl", chat)
    played = bandit.read(path, reward="reward")
    assert played.arms == ("F", "J")
    assert played.choices.tolist() == [[1, 0, 1]]


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
    refuses("holds chats: name the key of the outcome", import_rounds, path, tmp_path / "out")
    keys = {**COLUMNS, "outcome": "label"}
    refuses("no message of .* with the key .label.", import_rounds, path, tmp_path / "out", **keys)


LOGS = Path(__file__).parent / "inspect"
KEYS: dict[str, Any] = {
    "advice": ["Expert_A", "Expert_B"],
    "outcome": "truth",
    "choice": "prediction",
}


def plays_in(imported: Imported) -> list[dict[str, Any]]:
    """Return the instance and the predictions of every run that was imported."""
    results = [json.loads(file.read_text()) for file in imported.files]
    return [
        result["input"] | {"predictions": result["response"]["predictions"]} for result in results
    ]


INSTANCE = {"expert_predictions": [[1, 0], [0, 0], [1, 1]], "true_labels": [0, 1, 1]}
PLAYS = [INSTANCE | {"predictions": [1, 0, None]}, INSTANCE | {"predictions": [0, 0, 1]}]


def test_every_sample_of_an_inspect_log_is_a_chat(tmp_path: Path) -> None:
    """The silent one is named; "no idea" is a missing answer."""
    imported = import_rounds(LOGS / "experts.json", tmp_path, **KEYS)
    assert plays_in(imported) == PLAYS
    assert imported.missing == 1
    assert imported.reading.remarks == (
        "1 of 3 chats hold no round that ends with 'truth', and are left out: silent.",
    )


def test_an_archive_of_samples_is_read_where_python_unpacks_it(tmp_path: Path) -> None:
    """Inspect's own archive needs Inspect, or Python 3.14; an archive that zip unpacks needs neither."""
    samples = json.loads((LOGS / "experts.json").read_text())["samples"]
    with zipfile.ZipFile(tmp_path / "plain.eval", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("header.json", "{}")
        for sample in samples:
            archive.writestr(f"samples/{sample['id']}_epoch_1.json", json.dumps(sample, indent=2))
    assert plays_in(import_rounds(tmp_path / "plain.eval", tmp_path, **KEYS)) == PLAYS
    log = LOGS / "experts.eval"
    if find_spec("zipfile_zstd") or hasattr(zipfile, "ZIP_ZSTANDARD"):
        assert plays_in(import_rounds(log, tmp_path / "out", **KEYS)) == PLAYS
    else:
        refuses("inspect log convert", import_rounds, log, tmp_path / "out", **KEYS)


def test_a_sample_of_inspect_may_be_one_round(tmp_path: Path) -> None:
    """The advice is metadata, the truth the target; each epoch is a run through the three rounds."""
    samples = []
    for epoch in (1, 2):
        for round_index, (votes, truth) in enumerate(zip(*INSTANCE.values(), strict=True)):
            answer = PLAYS[epoch - 1]["predictions"][round_index]
            content = "no idea" if answer is None else json.dumps({"prediction": answer})
            sample = {"id": round_index + 1, "epoch": epoch, "target": str(truth)}
            sample["metadata"] = {"ann": votes[0], "bob": votes[1]}
            sample["messages"] = [
                {"role": "user", "content": "predict"},
                {"role": "assistant", "content": [{"type": "text", "text": content}]},
            ]
            samples.append(sample)
    path = tmp_path / "questions.json"
    path.write_text(json.dumps({"version": 2, "eval": {}, "samples": samples}, indent=2))
    keys: dict[str, Any] = {"outcome": "target", "choice": "prediction"}
    imported = import_rounds(path, tmp_path, advice=["ann", "bob"], **keys)
    assert plays_in(imported) == PLAYS


def test_an_inspect_log_is_not_unpacked_beyond_a_size(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(table_file, "MOST_BYTES", 1_000_000)
    with zipfile.ZipFile(tmp_path / "large.eval", "w", zipfile.ZIP_DEFLATED) as archive:
        for number in range(3):
            archive.writestr(f"samples/{number}_epoch_1.json", " " * 400_000)
    refuses(
        "more than 1 MB once unpacked", import_rounds, tmp_path / "large.eval", tmp_path, **KEYS
    )


def test_a_bandit_in_chats(tmp_path: Path) -> None:
    """A key of the outcome ends a round; the last choice was never paid."""
    chat: list[tuple[str, Any]] = [
        ("user", "Choose J or F."),
        ("assistant", 'I take {"choice": "J"}'),
        ("user", {"reward": 1, "total": 1}),
        ("assistant", {"choice": "F"}),
        ("user", {"reward": 0, "total": 1}),
        ("assistant", {"choice": "J"}),
    ]
    path = write_chats(tmp_path / "chats.jsonl", chat, chat[:3])
    played = bandit.read(path, choice="choice", reward="reward")
    assert played.arms == ("F", "J")
    assert played.participants.tolist() == ["1", "2"]
    assert played.counted.tolist() == [[True, True], [True, False]]
    assert played.choices[0].tolist() == [1, 0]
    assert played.rewards[0].tolist() == [1, 0]


def test_a_wrong_cell_of_a_chat_is_refused_with_its_round_and_line(tmp_path: Path) -> None:
    """The chat with the wrong reward is in the third line of the file; the second line is blank."""
    chat: list[tuple[str, Any]] = []
    for arm, reward in (("J", 1), ("F", "won")):
        chat.append(("assistant", {"choice": arm}))
        chat.append(("user", {"reward": reward}))
    path = write_chats(tmp_path / "chats.jsonl", chat[:2], chat)
    first, second = path.read_text().splitlines()
    path.write_text(f"{first}\n\n{second}")
    message = "round 2 in line 3 of .*chats.jsonl': 'reward' must be a number, got won"
    refuses(message, bandit.read, path, reward="reward")
    path.write_text(f"[{first},\n\n{second}]")
    message = "round 2 in object 2 of .*chats.jsonl': 'reward' must be a number, got won"
    refuses(message, bandit.read, path, reward="reward")


def test_a_sample_that_is_one_round_is_named_by_its_number(tmp_path: Path) -> None:
    """The truth of the second sample is no label."""
    samples: list[dict[str, Any]] = []
    for truth in ("0", "1"):
        answer = {"role": "assistant", "content": json.dumps({"choice": truth, "reward": "x"})}
        samples.append({"epoch": 1, "target": truth, "messages": [answer]})
    samples[1]["target"] = "won"
    path = tmp_path / "log.json"
    path.write_text(json.dumps({"samples": samples}, indent=2))
    message = "round 1 in sample 2 of .*log.json': 'target' must be a number, got won"
    refuses(message, bandit.read, path, reward="target")


def test_what_a_player_writes_of_the_outcome_does_not_end_a_round(tmp_path: Path) -> None:
    """The sample is one round by its target; the answer has a key of that name, too."""
    samples = []
    for truth, guess in (("0", "1"), ("1", "1")):
        answer = {"prediction": guess, "target": guess}
        message = {"role": "assistant", "content": json.dumps(answer)}
        metadata = {"ann": truth, "bob": guess}
        samples.append({"epoch": 1, "target": truth, "messages": [message], "metadata": metadata})
    path = tmp_path / "log.json"
    path.write_text(json.dumps({"samples": samples}))
    keys: dict[str, Any] = {"outcome": "target", "choice": "prediction", "advice": ["ann", "bob"]}
    (play,) = plays_in(import_rounds(path, tmp_path / "out", **keys))
    assert play["true_labels"] == [0, 1]
    assert play["predictions"] == [1, 1]


def test_a_round_is_missed_whose_answer_holds_no_object(tmp_path: Path) -> None:
    """Nothing else in the round holds one: neither the question nor an earlier message."""
    chat: list[tuple[str, Any]] = [
        ("user", "Choose J or F."),
        ("assistant", {"choice": "J"}),
        ("user", {"reward": 1}),
        ("assistant", "J again"),
        ("user", {"reward": 0}),
        ("assistant", {"choice": "F"}),
        ("user", {"reward": 1}),
    ]
    path = write_chats(tmp_path / "chats.jsonl", chat)
    played = bandit.read(path, choice="choice", reward="reward")
    assert played.counted.tolist() == [[True, False, True]]
    assert played.reading.missed == 1


def test_the_next_state_beside_a_reward_is_that_of_its_round(tmp_path: Path) -> None:
    """The walk is A to B to C to A; a message with a reward also shows the state of the next round."""
    chat: list[tuple[str, Any]] = [("user", {"state": "A"})]
    for action, next_state in (("left", "B"), ("right", "C"), ("left", "A")):
        chat.append(("assistant", {"action": action}))
        chat.append(("user", {"reward": 1, "next_state": next_state, "state": next_state}))
    path = write_chats(tmp_path / "walk.jsonl", chat)
    played = mdp.read(path, reward="reward")
    assert played.states.tolist() == [[0, 1, 2]]
    assert played.next_states.tolist() == [[1, 2, 0]]
