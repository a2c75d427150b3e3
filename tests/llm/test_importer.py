"""Other people's results: notes stand at their rounds, nothing is pooled twice.

The three archives that the rules were found on are not part of the repository; the files here have their shapes.
"""

import gzip
import json
import os
import re
from pathlib import Path
from typing import Any

import pytest

from interp.llm.backend import AGENTS, AgentBackend, Settings
from interp.llm.loading import load, read
from interp.llm.notes import write_counts
from interp.llm.plan import instances, plan
from interp.llm.runner import run
from interp.llm.schemes import Condition, built_in_prompts
from interp.llm.scores import note_table, score
from interp.tasks import experts
from tests.refusals import refuses

ROUNDS = 100
EPISODES = experts.sample(4, ROUNDS, 4, regime="anti-signal", seed=5)


def foreign(folder: Path, **result: Any) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    base: dict[str, Any] = {
        "meta": {"idx": 7, "model": "some-chat", "prompt": "interactive_weather_notehist"},
        "input": {"expert_predictions": [[1, 0, 1, 0], [0, 0, 1, 1]], "true_labels": [1, 0]},
        "response": {"predictions": [1, 0]},
    }
    (folder / "result.json").write_text(json.dumps({**base, **result}))
    return folder


def archive(folder: Path, i: int = 0) -> Path:
    """An episode of 100 rounds as the archives hold it: rounds + 1 notes, the first empty, all counts exact."""
    advice, labels = EPISODES.advice[i], EPISODES.labels[i]
    counts = (advice == labels[:, None]).cumsum(0)
    notes = [""]
    for n_rounds, row in enumerate(counts.tolist(), 1):
        notes.append(write_counts(row, n_rounds))
    inputs = {"expert_predictions": advice.tolist(), "true_labels": labels.tolist()}
    return foreign(
        folder,
        meta={"idx": i, "model": "some-chat", "prompt": "interactive_weather_notehist"},
        input=inputs,
        response={"predictions": advice[:, 0].tolist(), "notes": notes},
    )


# ------------------------------------------------------------------------------------------------ what is read


def test_results_are_read(tmp_path: Path) -> None:
    """Condition from the prompt's name, regime from the file or the argument, predictions from the file."""
    foreign(tmp_path / "cases_007")
    (imported,) = load(tmp_path, "anti-signal")
    assert (imported.model, imported.condition.name, imported.regime, imported.index) == (
        "some-chat",
        "weather-note",
        "anti-signal",
        7,
    )
    assert imported.predictions.tolist() == [1, 0]
    assert imported.ended == "complete"
    named = {"idx": 7, "model": "m", "prompt": "online-nonote", "regime": "flat"}
    foreign(tmp_path / "other", meta=named)
    (imported_alone,) = load(tmp_path / "other" / "result.json", "anti-signal")
    assert (imported_alone.condition.name, imported_alone.regime) == ("online-no-note", "flat")
    assert len(score([imported]).to_frame()) > 5


# ------------------------------------------------------------------------------------------------ notes, eta, adversary


def test_notes_stand_at_their_rounds(tmp_path: Path) -> None:
    """rounds + 1 notes, the first empty: the exact counts of the archive are all exact here, not one round late."""
    archive(tmp_path)
    table = note_table(load(tmp_path))
    assert (table.notes["exact"] == 1).all()
    assert len(table.notes) == ROUNDS
    assert table.final()["exact"].item() == 1


def test_notes_that_cannot_be_aligned_are_refused(tmp_path: Path) -> None:
    foreign(tmp_path, response={"predictions": [1, 0], "notes": ["a", "b", "c"]})
    refuses("has 3 notes for 2 rounds; give one after each round", load, tmp_path)


def test_the_adversary_is_found_in_the_record_where_accuracies_are_not_given(
    tmp_path: Path,
) -> None:
    """The share of last notes that call the adversary worst is not left empty."""
    for i in range(4):
        archive(tmp_path / "antisignal" / str(i), i)
    runs = load(tmp_path, "anti-signal")
    assert EPISODES.accuracies is not None
    adversaries = [run.reliability.argmin() for run in runs]
    assert adversaries == EPISODES.accuracies.argmin(axis=1).tolist()
    assert note_table(runs).final()["least_accurate"].item() == 1


# ------------------------------------------------------------------------------------------------ duplicates, bad files


def test_duplicates_are_refused_or_the_first_complete_play_is_kept(tmp_path: Path) -> None:
    """Two plays of an instance are never pooled: not "50 of 50" where there are 30 instances."""
    for i in range(3):
        archive(tmp_path / "b" / "antisignal" / str(i), i)
    for i in range(2):
        folder = archive(tmp_path / "a" / "antisignal" / str(i), i)
        if i == 0:  # the first play by path is not complete, so the second is kept
            result = json.loads((folder / "result.json").read_text())
            result["response"] = {"predictions": [1, 0]}
            (folder / "result.json").write_text(json.dumps(result))
    refuses(r"1 instances were played more than once .*--duplicates first", load, tmp_path)
    reading = read(tmp_path, duplicates="first")
    assert [run.index for run in reading.runs] == [0, 1, 2]
    assert all(run.ended == "complete" for run in reading.runs)
    folders = [run.path.parts[-4] for run in reading.runs]
    assert folders == ["b", "a", "b"]
    first, *played_once = reading.runs
    assert [len(play) for play in first.again] == [2]
    assert all(not list(run.again) for run in played_once)
    assert reading.table["why"].str.startswith("another play of the instance in").sum() == 1
    assert reading.table["why"].str.startswith("a copy of").sum() == 1, (
        "the same words again are no second play"
    )
    refuses("unknown way with duplicates 'pool'", load, tmp_path, duplicates="pool")


def test_two_plays_with_the_same_choices_are_two_plays(tmp_path: Path) -> None:
    """A player that never changes its mind agrees with itself in every round; its plays are no copies of a file."""
    work = plan(
        Settings("counter"),
        built_in_prompts(),
        instances(("flat",), 1, 3),
        [Condition("online", "no-note")],
    )
    for folder in ("a", "b"):
        run(work, tmp_path / folder, AgentBackend("counter", AGENTS["counter"]))
    refuses("1 instances were played more than once", load, tmp_path)
    (played,) = load(tmp_path, duplicates="first")
    (second,) = played.again
    assert second.tolist() == played.predictions.tolist()


def test_instances_that_differ_under_one_name_are_refused(tmp_path: Path) -> None:
    foreign(tmp_path / "flat" / "a")
    foreign(
        tmp_path / "flat" / "b",
        input={"expert_predictions": [[1, 1, 1, 0], [0, 0, 1, 1]], "true_labels": [1, 0]},
    )
    refuses("are both instance 7 of 'flat' but differ", score, load(tmp_path, "flat"))


def inputs_of(advice: list[list[int]], labels: list[int | None]) -> dict[str, Any]:
    return {"input": {"expert_predictions": advice, "true_labels": labels}}


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"input": {}}, "has no expert_predictions; interp llm import writes it"),
        (inputs_of([[1, 2]], [1]), r"expert_predictions must be \[round\]\[expert\], 0 or 1 each"),
        (inputs_of([[1, 0], [1]], [1, 0]), "expert_predictions must be"),
        (inputs_of([[1, 0]], [1, 0]), "advice for 1 rounds and 2 labels"),
        (inputs_of([[1], [0]], [1, None]), r"true_labels must be \[round\], 0 or 1 each"),
        ({"response": {}}, "has no predictions; interp llm import writes it"),
        ({"response": {"predictions": []}}, "predictions must be at least one"),
        ({"response": {"predictions": [1, 0, 1]}}, "no more than labels, got 3 and 2"),
        ({"response": {"predictions": ["rainy", 1]}}, "predictions must be"),
    ],
    ids=[
        "no advice",
        "an outcome 2",
        "a short row",
        "a round without advice",
        "a missing label",
        "no predictions",
        "empty predictions",
        "more predictions than labels",
        "a word",
    ],
)
def test_a_field_that_is_missing_or_wrong_is_named(
    fields: dict[str, Any], message: str, tmp_path: Path
) -> None:
    """Alone it is an error; among others it is set aside with the same sentence, and the others are read."""
    foreign(tmp_path / "flat" / "bad", **fields)
    refuses(message, load, tmp_path)
    foreign(tmp_path / "flat" / "good", meta={"idx": 1, "model": "m", "prompt": "weather_notehist"})
    reading = read(tmp_path)
    assert len(reading.runs) == 1
    assert reading.table["status"].tolist() == ["set aside", "read"]
    assert re.search(message, reading.sentences[1])


def test_whatever_is_in_a_folder_and_is_not_read_is_listed(tmp_path: Path) -> None:
    """A trace in UTF-16, one that is gzipped, notes of one's own and a pipe; nothing waits for the pipe."""
    (job,) = plan(
        Settings("counter"),
        built_in_prompts(),
        instances(("flat",), 1, 2),
        [Condition("online", "note")],
    )
    run([job], tmp_path, AgentBackend("counter", AGENTS["counter"]))
    trace = tmp_path / job.place
    trace.with_name("a.jsonl").write_text(trace.read_text(), encoding="utf-16")
    trace.with_name("b.jsonl").write_bytes(gzip.compress(trace.read_bytes()))
    trace.with_name("c.jsonl.gz").write_bytes(gzip.compress(trace.read_bytes()))
    trace.with_name("d.txt").write_text("remember the milk")
    os.mkfifo(trace.with_name("e.jsonl"))
    reading = read(tmp_path)
    assert len(reading.runs) == 1
    assert reading.table["status"].value_counts().to_dict() == {
        "set aside": 5,
        "read": 1,
    }
    why = {
        Path(path).name: why
        for path, why in zip(reading.table["path"], reading.table["why"], strict=True)
    }
    assert why.pop(trace.name) == ""
    words = ("UTF-16", "gzipped", "gzipped", "no trace of", "no regular file")
    assert all(word in why[name] for word, name in zip(words, sorted(why), strict=True)), why
    refuses(r"holds no trace .*no regular file", read, trace.with_name("e.jsonl"))
