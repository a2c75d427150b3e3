"""The messages of a round, in two framings and three protocols (paper, appendix F.3).

A *framing* changes only the wording: "online" writes outcomes as 0 and 1, "weather" as rainy (0)
and sunny (1). A *protocol* defines what the model sees of earlier rounds: the whole conversation
(``no-note``), the conversation and its own note (``note``), or only the note (``note-only``). A
*condition* is a framing with a protocol. The JSON keys are the paper's.
"""

from __future__ import annotations

import hashlib
import json
import string
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from interp.support.checks import checked, checked_fields, checked_result
from interp.support.errors import InputError, convert_errors, require, require_known
from interp.support.foreign import json_in
from interp.support.replies import find_object

Turn = Literal["prediction", "note"]
Message = dict[str, str]

_FRAMINGS = ("online", "weather")
_PROTOCOLS = ("no-note", "note", "note-only")
MAX_NOTE_WORDS = 500
LONGEST_NOTE, _LONGEST_ANSWER = 20_000, 1_000_000
"""Most characters of a note, and of an answer. A note of 500 words has about 3,000."""


@dataclass(frozen=True)
class Condition:
    """An experimental condition: how outcomes are worded (framing), and what the model sees of
    earlier rounds (protocol).

    Attributes:
        framing: "online" writes outcomes as 0 and 1, "weather" as rainy and sunny.
        protocol: what the model sees: "no-note" the whole conversation; "note" the conversation and
            the note that it wrote after the last round; "note-only" only this note.
    """

    framing: str
    protocol: str

    def __post_init__(self) -> None:
        require_known("framing", self.framing, _FRAMINGS)
        require_known("protocol", self.protocol, _PROTOCOLS)

    @property
    def has_note(self) -> bool:
        """Whether the model writes a note in every round."""
        return self.protocol != "no-note"

    @property
    def scheme(self) -> str:
        """The name of the system prompt: ``online-note``, ``online-no-note``, ``weather-note`` or
        ``weather-no-note``.
        """
        return f"{self.framing}-{'note' if self.has_note else 'no-note'}"

    @property
    def name(self) -> str:
        """The name of the condition: its framing and its protocol, such as ``weather-note-only``."""
        return f"{self.framing}-{self.protocol}"

    @property
    def words(self) -> tuple[str, str] | tuple[int, int]:
        """The values that stand for outcome 0 and outcome 1 in the JSON of prompts and answers: (0, 1)
        or ("rainy", "sunny").
        """
        return ("rainy", "sunny") if self.framing == "weather" else (0, 1)

    @checked
    def question(self, turn: Turn, advice: Sequence[int], note: str, label: int) -> Message:
        """Return the user message that asks for the prediction of a round, or the one that reveals
        the round's outcome.

        If the model writes notes, both messages contain its last note. The message that reveals the
        outcome then also repeats the advice, and the model answers it with a new note (paper, F.3).

        Args:
            turn: "prediction" for the message that asks for a prediction, "note" for the one that
                reveals the outcome.
            advice: advice of each expert, Int[expert].
            note: the model's last note.
            label: the outcome.
        """
        words = _WORDS[self.framing]
        note_field = {"note": note} if self.has_note else {}
        keys = expert_keys(len(advice))
        votes = {key: self.words[vote] for key, vote in zip(keys, advice, strict=True)}
        if turn == "prediction":
            return user_message({"turn_type": words["turn_type"], **note_field, **votes})
        if not self.has_note:  # the advice is then in the conversation
            votes = {}
        outcome = {words["truth_key"]: self.words[label]}
        return user_message({"turn_type": "feedback", **note_field, **votes, **outcome})

    @checked
    def retry_message(self, turn: Turn, problem: str) -> Message:
        """Return the user message that follows a malformed answer and asks for another one. The
        paper has no such message.

        Args:
            turn: which answer is requested, "prediction" or "note".
            problem: what was wrong with the answer.
        """
        value = '"<short text>"' if turn == "note" else _WORDS[self.framing]["choice"]
        expected = f'{{"{turn}": {value}}}'
        return user_message({"turn_type": "retry", "problem": problem, "expected_output": expected})

    @classmethod
    @checked
    def parse(cls, name: str) -> Condition:
        """Return the condition with this name, such as ``"weather-note-only"``."""
        known = {condition.name: condition for condition in CONDITIONS}
        require_known("condition", name, known)
        return known[name]


CONDITIONS = tuple(Condition(framing, protocol) for framing in _FRAMINGS for protocol in _PROTOCOLS)
_SCHEMES = tuple(dict.fromkeys(condition.scheme for condition in CONDITIONS))


def expert_letters(n_experts: int) -> tuple[str, ...]:
    """Return the names of ``n_experts`` experts: a tuple ``("A", "B", "C", ...)``."""
    require(2 <= n_experts <= 26, f"an LLM episode has 2 to 26 experts (A to Z), got {n_experts}")
    return tuple(string.ascii_uppercase[:n_experts])


def expert_keys(n_experts: int) -> tuple[str, ...]:
    """Return the keys of ``n_experts`` experts in the JSON of a message: a tuple ``("Expert_A",
    "Expert_B", ...)``.
    """
    return tuple(f"Expert_{letter}" for letter in expert_letters(n_experts))


def user_message(body: Mapping[str, object]) -> Message:
    """Return a user message that contains ``body`` as a JSON object. :func:`read_message` is the
    inverse.
    """
    return {"role": "user", "content": json.dumps(body, ensure_ascii=False)}


@dataclass(frozen=True)
@checked_result
class ParsedReply:
    """The content of a reply: the prediction or note in it, or why it could not be read.

    docs/method/traces.md lists the forms that are accepted.

    Attributes:
        value: the prediction (0 or 1) or the note; None if it could not be read.
        strict: True if the reply was a JSON object with only the right key, in the requested form.
        problem: why the reply could not be read; "" if it could.
        embedded: whether there were further words around the JSON object ("Sure! {...}").
    """

    value: int | str | None
    strict: bool = False
    problem: str = ""
    embedded: bool = False


def read_answer(
    condition: Condition, turn: Turn, text: str | None, finish_reason: str = "stop"
) -> ParsedReply:
    """Read a reply. A reply is malformed unless it has one JSON object with the right key and a
    valid value.

    A reply that was cut off at the token limit is also malformed. Thoughts before the answer are
    ignored.

    Args:
        condition: wording of outcomes (0/1 or rainy/sunny), and whether the model writes notes.
        turn: which answer was requested, "prediction" or "note".
        text: the reply.
        finish_reason: why it ended; "length" means that it was cut off at the token limit.

    Returns:
        The prediction or note in the reply, or why it could not be read.
    """
    try:
        return _read_reply(condition, turn, text or "", finish_reason)
    except InputError as error:
        return ParsedReply(None, problem=str(error))


def _read_reply(condition: Condition, turn: Turn, text: str, finish_reason: str) -> ParsedReply:
    """Read a reply as :func:`read_answer` does, but raise an error if it is malformed.

    Args:
        condition, turn, text, finish_reason: see :func:`read_answer`.

    Raises:
        InputError: why the reply cannot be read.
    """
    require(finish_reason != "length", "the answer was cut off at the token limit")
    require(text.strip(), "the answer was empty")
    require(
        len(text) <= _LONGEST_ANSWER, f"the answer was longer than {_LONGEST_ANSWER:,} characters"
    )
    # The reply is strict if it is nothing but the object, and embedded if words are around it.
    body, is_strict, is_embedded = find_object(text)
    require(body is not None, "the answer was not one JSON object")
    require(isinstance(body, dict), "the answer was not a JSON object")
    require(turn in body, f'the answer has no key "{turn}"')
    value = body[turn]
    parsed_value: int | str
    if turn == "note":
        require(isinstance(value, str), "the note is not a text")
        require(len(value) <= LONGEST_NOTE, f"the note was longer than {LONGEST_NOTE:,} characters")
        # A lone surrogate is valid JSON but cannot be sent back as UTF-8.
        parsed_value = value.encode("utf-8", "replace").decode("utf-8")
        has_requested_form = True
    else:
        words = [str(word) for word in condition.words]
        word = str(value).strip().lower()
        require(word in words, f"the prediction is not {' or '.join(words)}")
        parsed_value = words.index(word)
        has_requested_form = value in condition.words  # not "1" for 1, or "Rainy" for "rainy"
    strict = is_strict and has_requested_form and len(body) == 1
    return ParsedReply(parsed_value, strict=strict, embedded=is_embedded)


RESPONSE_FORMATS = ("none", "json_object", "json_schema", "grammar")


def response_format(kind: str, condition: Condition, turn: Turn) -> dict[str, Any]:
    """Return the fields of a request that make the server enforce the answer's form, as a
    dictionary.

    A grammar (GBNF, of llama.cpp) also limits a note's length, so that a small model ends it.

    Args:
        kind: one of :data:`RESPONSE_FORMATS`; "none" gives no fields.
        condition: wording of outcomes (0/1 or rainy/sunny), and whether the model writes notes.
        turn: which answer is requested, "prediction" or "note".
    """
    value: dict[str, Any] = {"type": "string"}
    if turn == "prediction":
        value = {"enum": list(condition.words)}
    form = {
        "type": "object",
        "properties": {turn: value},
        "required": [turn],
        "additionalProperties": False,
    }
    schema = {"name": f"{turn}_answer", "schema": form, "strict": True}
    # The grammar's rule for a note: a text in quotation marks of at most 200 characters. For a
    # prediction: one of the two words.
    answer_rule = '"\\"" [A-Za-z0-9 ,.:;/=]{0,200} "\\""'
    if turn == "prediction":
        words = [json.dumps(word).replace('"', '\\"') for word in condition.words]
        answer_rule = f'("{words[0]}" | "{words[1]}")'
    forms: dict[str, dict[str, Any]] = {
        "none": {},
        "json_object": {"response_format": {"type": "json_object"}},
        "json_schema": {"response_format": {"type": "json_schema", "json_schema": schema}},
        "grammar": {"grammar": f'root ::= "{{\\"{turn}\\": " {answer_rule} "}}"'},
    }
    return forms[kind]


def read_message(message: Message) -> dict[str, Any]:
    """Return the JSON object in a user message as a dictionary."""
    body = json_in(message["content"])
    require(
        isinstance(body, dict),
        f"a user message must be one JSON object, got {message['content'][:80]!r}",
    )
    return dict(body)


_BUILT_IN = "built-in wording, version 1"


@dataclass(frozen=True)
@checked_fields
class Prompt:
    """A system prompt.

    Attributes:
        text: the prompt.
        wording: where it comes from: "built-in wording, version 1", or the name of the user's file.
    """

    text: str
    wording: str

    @property
    def sha256(self) -> str:
        """SHA-256 digest of the text, in hexadecimal."""
        return hashlib.sha256(self.text.encode("utf-8")).hexdigest()


_WORDS = {
    "online": {"choice": "0 or 1", "turn_type": "prediction", "truth_key": "true_label"},
    "weather": {
        "choice": '"sunny" or "rainy"',
        "turn_type": "forecast",
        "truth_key": "actual_weather",
    },
}
_NUMBERS = {2: "Two", 3: "Three", 4: "Four", 5: "Five", 6: "Six", 7: "Seven", 8: "Eight"}


@checked
def built_in_prompts(n_experts: int = 4) -> dict[str, Prompt]:
    """Return the four built-in system prompts: name of the scheme (such as "online-note") ->
    prompt.

    They are the texts in the folder ``prompts``, with the names and number of experts filled in.

    Args:
        n_experts: number of experts.
    """
    *first_names, last_name = [f"Expert {letter}" for letter in expert_letters(n_experts)]
    names = f"{', '.join(first_names)} and {last_name}"
    values = {
        "{n}": _NUMBERS.get(n_experts, str(n_experts)),
        "{names}": names,
        "{words}": str(MAX_NOTE_WORDS),
    }
    prompts = {}
    for scheme in _SCHEMES:
        text = (Path(__file__).parent / "prompts" / f"{scheme}.txt").read_text(encoding="utf-8")
        framing = scheme.partition("-")[0]  # "online" or "weather", the wording of outcomes
        choice = _WORDS[framing]["choice"]
        values["{votes}"] = ",\n".join(f'"{key}": {choice}' for key in expert_keys(n_experts))
        for placeholder, value in values.items():
            text = text.replace(placeholder, value)
        prompts[scheme] = Prompt(text, _BUILT_IN)
    return prompts


@checked
def load_prompts(folder: str | Path) -> dict[str, Prompt]:
    """Read system prompts of the user verbatim, from files ``<scheme>.txt`` in a folder, such as
    ``online-note.txt``.

    Returns:
        Name of a scheme -> prompt; schemes without a file are left out.
    """
    folder = Path(folder)
    names = ", ".join(f"{scheme}.txt" for scheme in _SCHEMES)
    require(folder.is_dir(), f"no prompt folder {str(folder)!r}; give a folder that holds {names}")
    prompts: dict[str, Prompt] = {}
    for scheme in _SCHEMES:
        path = folder / f"{scheme}.txt"
        if not path.is_file():
            continue
        with convert_errors(
            f"the prompt {str(path)!r} is not UTF-8 text; save it as UTF-8", of=UnicodeDecodeError
        ):
            text = path.read_bytes().decode("utf-8")  # read_text would turn \r\n into \n
        require(
            text.strip(),
            f"the prompt {str(path)!r} is empty; write the system prompt into it",
        )
        prompts[scheme] = Prompt(text, f"file {path.name}")
    require(prompts, f"the prompt folder {str(folder)!r} holds none of {names}")
    return prompts
