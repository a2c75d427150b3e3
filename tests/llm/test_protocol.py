"""The protocol says exactly what the paper's does, and malformed answers are missing predictions, never zeros."""

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from interp.llm.backend import AGENTS
from interp.llm.protocol import Session
from interp.llm.schemes import (
    CONDITIONS,
    Condition,
    built_in_prompts,
    load_prompts,
    read_answer,
    read_message,
    response_format,
)
from tests.cases import by_cases
from tests.llm.conftest import asked
from tests.refusals import refuses

ADVICE = np.array([[1, 0, 1, 0], [0, 0, 1, 1], [1, 1, 1, 0]])
LABELS = np.array([1, 0, 1])


def session(name: str, **kwargs: Any) -> Session:
    return Session(Condition.parse(name), "SYSTEM", ADVICE, LABELS, **kwargs)


def said(messages: Any) -> list[tuple[str, Any]]:
    return [
        (m["role"], json.loads(m["content"]) if m["role"] == "user" else m["content"])
        for m in messages
    ]


def test_no_note_appends_the_outcome_without_asking_for_a_reply() -> None:
    """One growing conversation, one call a round, two user messages in a row between answers (paper, F.3)."""
    s = session("online-no-note")
    s.feed('{"prediction": 1}')
    request = asked(s)
    assert request.round == 1
    assert said(request.messages) == [
        ("system", "SYSTEM"),
        (
            "user",
            {"turn_type": "prediction", "Expert_A": 1, "Expert_B": 0, "Expert_C": 1, "Expert_D": 0},
        ),
        ("assistant", '{"prediction": 1}'),
        ("user", {"turn_type": "feedback", "true_label": 1}),
        (
            "user",
            {"turn_type": "prediction", "Expert_A": 0, "Expert_B": 0, "Expert_C": 1, "Expert_D": 1},
        ),
    ]


def test_note_only_is_stateless_but_for_the_note() -> None:
    """Two calls a round of system + one message each; the note of the last round is all that comes along."""
    s = session("weather-note-only")
    first = asked(s)
    assert said(first.messages)[1][1] == {
        "turn_type": "forecast",
        "note": "",
        "Expert_A": "sunny",
        "Expert_B": "rainy",
        "Expert_C": "sunny",
        "Expert_D": "rainy",
    }
    s.feed('{"prediction": "rainy"}')
    feedback = asked(s)
    assert len(feedback.messages) == 2
    assert said(feedback.messages)[1][1]["actual_weather"] == "sunny"
    assert said(feedback.messages)[1][1]["Expert_B"] == "rainy"
    s.feed('{"note": "A and C right"}')
    second = asked(s)
    assert len(second.messages) == 2
    assert said(second.messages)[1][1]["note"] == "A and C right"
    assert s.predictions == [0.0]
    assert s.notes == ["A and C right"]


def test_note_keeps_history_and_note() -> None:
    s = session("online-note")
    for reply in ('{"prediction": 0}', '{"note": "n1"}', '{"prediction": 0}'):
        s.feed(reply)
    request = asked(s)
    roles = [m["role"] for m in request.messages]
    assert roles == [
        "system",
        "user",
        "assistant",
        "user",
        "assistant",
        "user",
        "assistant",
        "user",
    ]
    assert said(request.messages)[-1][1]["note"] == "n1"


@pytest.mark.parametrize("condition", CONDITIONS, ids=lambda c: c.name)
def test_every_user_message_is_a_json_object_with_the_keys_of_the_prompt(
    condition: Condition,
) -> None:
    """The prompt announces exactly the keys that the messages then have."""
    s = Session(condition, built_in_prompts()[condition.scheme].text, ADVICE, LABELS)
    for _ in range(1 + condition.has_note):
        request = asked(s)
        body = json.loads(request.messages[-1]["content"])
        announced = [
            line.split('"')[1]
            for line in request.messages[0]["content"].splitlines()
            if line.startswith('"')
        ]
        assert all(key in announced for key in body)
        assert (
            read_message(condition.retry_message(request.turn, ""))["expected_output"][1:-1]
            in request.messages[0]["content"]
        )
        form = response_format("json_schema", condition, request.turn)["response_format"]
        assert list(form["json_schema"]["schema"]["properties"]) == [request.turn]
        s.feed(AGENTS["majority"](request.messages))


def test_malformed_answers_are_reasked_then_missing() -> None:
    """Two retries, each a longer request of its own; then NaN, and the history holds no retry."""
    s = session("online-no-note", max_retries=2)
    lengths = []
    for attempt in range(3):
        request = asked(s)
        assert (request.round, request.attempt) == (0, attempt)
        lengths.append(len(request.messages))
        if attempt:
            retry = said(request.messages)[-1][1]
            assert retry["turn_type"] == "retry"
            assert retry["expected_output"] == '{"prediction": 0 or 1}'
        s.feed("maybe 1?")
    assert lengths == [2, 4, 4]
    assert math.isnan(s.predictions[0])
    assert s.malformed == 3
    request = asked(s)
    assert request.round == 1
    assert [m["content"] for m in request.messages if m["role"] == "assistant"] == ["maybe 1?"]


def test_a_retry_that_succeeds_leaves_no_trace_in_the_history() -> None:
    s = session("online-no-note")
    s.feed("hm")
    s.feed('{"prediction": 1}')
    request = asked(s)
    assert s.predictions == [1.0]
    assert [m["content"] for m in request.messages if m["role"] == "assistant"] == [
        '{"prediction": 1}'
    ]


def test_a_missing_note_leaves_the_note_as_it_was() -> None:
    s = session("online-note-only", max_retries=0)
    for reply in ('{"prediction": 0}', '{"note": "kept"}', '{"prediction": 0}', "no note"):
        s.feed(reply)
    assert s.notes == ["kept", "kept"]


@given(
    st.lists(
        st.sampled_from(
            ['{"prediction": 1}', '{"note": "x"}', "", "junk", '{"prediction": "rainy"}']
        )
    )
)
@settings(max_examples=25)
def test_every_episode_ends_within_its_bound(replies: list[str]) -> None:
    """Whatever the replies, an episode makes at most so many calls, and one prediction a round."""
    for condition in CONDITIONS:
        s = Session(condition, "S", ADVICE, LABELS, max_retries=1)
        calls = 0
        while s.next() is not None:
            s.feed(replies[calls % len(replies)] if replies else None)
            calls += 1
        assert calls <= len(LABELS) * (1 + condition.has_note) * (1 + 1)
        assert len(s.predictions) == len(s.notes) == 3


def test_the_same_replies_make_the_same_requests() -> None:
    """Purity: what replay and resuming rest on."""
    for condition in CONDITIONS:
        digests = []
        for _ in range(2):
            s = Session(condition, "S", ADVICE, LABELS)
            seen = []
            while (request := s.next()) is not None:
                seen.append((request.sha256, request.seed("x-001")))
                s.feed(AGENTS["counter"](request.messages))
            digests.append(seen)
        assert digests[0] == digests[1]
        assert len({seed for _, seed in digests[0]}) == len(digests[0])
        assert all(0 <= seed < 2**31 for _, seed in digests[0])


ONLINE = Condition("online", "note")


ANSWERS = json.loads(Path(__file__).with_name("answers.json").read_text("utf-8"))


@pytest.mark.parametrize(("scheme", "turn", "text", "value", "strict"), ANSWERS["usable"])
def test_usable_answers(scheme: Any, turn: Any, text: str, value: object, strict: bool) -> None:
    answer = read_answer(Condition(scheme, "note"), turn, text)
    assert (answer.value, answer.strict, answer.problem, answer.embedded) == (
        value,
        strict,
        "",
        False,
    )


@by_cases("text")
def test_one_object_among_other_words_is_read_and_marked(text: str) -> None:
    answer = read_answer(ONLINE, "prediction", text)
    assert (answer.value, answer.strict, answer.embedded) == (1, False, True)


def test_a_recorded_problem_is_fed_again() -> None:
    """Traces from before embedded answers were read replay as they were played: the re-asked answer counts."""
    s = session("online-no-note")
    s.feed('So: {"prediction": 0}', problem="the answer was not one JSON object")
    request = asked(s)
    assert request.attempt == 1
    assert s.malformed == 1
    assert s.embedded == 0
    assert said(request.messages)[-1][1]["problem"] == "the answer was not one JSON object"
    s.feed('So: {"prediction": 1}')
    assert s.predictions == [1.0]
    assert s.embedded == 1


@pytest.mark.parametrize(
    ("turn", "text", "finish", "problem"),
    [*ANSWERS["malformed"], ("note", "[" * 100000, "stop", "not one JSON object")],
)
def test_malformed_answers(turn: Any, text: str | None, finish: str, problem: str) -> None:
    """Each way to be malformed is told apart, and none has a value."""
    answer = read_answer(ONLINE, turn, text, finish)
    assert answer.value is None
    assert problem in answer.problem


def test_prompts_tell_what_the_paper_tells() -> None:
    """Four schemes; the facts and formats that the paper's prompts give, in ours; notes only where there are notes."""
    assert set(built_in_prompts()) == {condition.scheme for condition in CONDITIONS}
    for scheme, prompt in built_in_prompts().items():
        text = prompt.text
        for fact in (
            "Expert A",
            "Expert D",
            '"turn_type": "feedback"',
            "external tools",
            "valid JSON",
        ):
            assert fact in text
        assert ("500 words" in text) == ("no-note" not in scheme) == ('"note"' in text)
        assert ("sunny" in text) == scheme.startswith("weather")
        assert len(prompt.sha256) == 64
    assert "Expert_G" in built_in_prompts(7)["online-note"].text


def test_users_prompts_are_taken_verbatim(tmp_path: Any) -> None:
    """Bytes in, the same text out: line ends and trailing space stay."""
    text = "Line one\r\n  ★ line two  \n\n"
    (tmp_path / "online-note.txt").write_bytes(text.encode())
    prompts = load_prompts(tmp_path)
    assert prompts["online-note"].text == text
    assert list(prompts) == ["online-note"]
    assert prompts["online-note"].wording == "file online-note.txt"


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda p: load_prompts(p / "nowhere"), "no prompt folder"),
        (lambda p: load_prompts(p), "holds none of online-no-note.txt"),
        (
            lambda p: (p / "online-note.txt").write_bytes(b"\xff\xfe") and load_prompts(p),
            "not UTF-8",
        ),
        (lambda p: (p / "online-note.txt").write_text("\n") and load_prompts(p), "is empty"),
        (
            lambda p: Condition.parse("wether-note"),
            "unknown condition 'wether-note'; did you mean 'weather-note'",
        ),
        (lambda p: Condition("online", "notes"), "unknown protocol 'notes'"),
        (lambda p: built_in_prompts(40), "2 to 26 experts"),
    ],
)
def test_bad_input_is_told_in_a_sentence(make: Any, message: str, tmp_path: Any) -> None:
    refuses(message, make, tmp_path)
