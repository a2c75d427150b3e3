"""What is said in a round: two framings, three protocols, and the JSON of every turn (paper, appendix F.3).

A *framing* is surface language only: "online" says 0 and 1, "weather" says rainy (0) and sunny (1). A *protocol* says
what the model carries from round to round: a growing conversation (``no-note``), that and a note (``note``), or the
note alone (``note-only``). The JSON keys are an interface, identical to the paper's.
"""

from __future__ import annotations

import hashlib
import json
import re
import string
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Literal

from interp.support.checks import checked
from interp.support.errors import require, require_known, theirs
from interp.support.files import read_tables
from interp.support.foreign import loaded

Turn = Literal["prediction", "note"]
Message = dict[str, str]

_FRAMINGS = ("online", "weather")
_PROTOCOLS = ("no-note", "note", "note-only")
MAX_NOTE_WORDS = 500
LONGEST_NOTE, _LONGEST_ANSWER = 20_000, 1_000_000
"""Characters: a note of 500 words has 3,000, and one that is seven times as long is no note. So many are analysed."""


@dataclass(frozen=True)
class Condition:
    """One framing under one protocol: ``Condition("weather", "note-only")``."""

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
        """The name of its system prompt: ``online-note``, ``online-no-note``, ``weather-note``, ``weather-no-note``."""
        return f"{self.framing}-{'note' if self.has_note else 'no-note'}"

    @property
    def name(self) -> str:
        """Framing and protocol, such as ``weather-note-only``."""
        return f"{self.framing}-{self.protocol}"

    @property
    def words(self) -> tuple[str, str] | tuple[int, int]:
        """How outcome 0 and outcome 1 are written in JSON."""
        return ("rainy", "sunny") if self.framing == "weather" else (0, 1)

    @checked
    def question(self, turn: Turn, advice: Sequence[int], note: str, label: int) -> Message:
        """The user message that asks for a prediction, or reveals the outcome.

        It holds the note where there is one; the outcome then comes with the note and the advice (paper, F.3).
        """
        words, known = _WORDS[self.framing], dict[str, Any](note=note) if self.has_note else {}
        votes = {
            key: self.words[int(vote)]
            for key, vote in zip(expert_keys(len(advice)), advice, strict=True)
        }
        if turn == "prediction":
            return _user({"turn_type": words["turn_type"], **known, **votes})
        known |= votes if self.has_note else {}
        return _user({"turn_type": "feedback", **known, words["truth_key"]: self.words[int(label)]})

    @checked
    def retry_message(self, turn: Turn, problem: str) -> Message:
        """The user message after a malformed answer (ours: the paper has none)."""
        value = '"<short text>"' if turn == "note" else _WORDS[self.framing]["choice"]
        return _user(
            {"turn_type": "retry", "problem": problem, "expected_output": f'{{"{turn}": {value}}}'}
        )

    @classmethod
    @checked
    def parse(cls, name: str) -> Condition:
        """The condition called ``name``, such as ``"weather-note-only"``."""
        known = {condition.name: condition for condition in CONDITIONS}
        require_known("condition", name, known)
        return known[name]


CONDITIONS = tuple(Condition(framing, protocol) for framing in _FRAMINGS for protocol in _PROTOCOLS)
_SCHEMES = tuple(dict.fromkeys(condition.scheme for condition in CONDITIONS))


def expert_letters(n_experts: int) -> tuple[str, ...]:
    """``A, B, C, ...``, the names the experts go by."""
    require(2 <= n_experts <= 26, f"an LLM episode has 2 to 26 experts (A to Z), got {n_experts}")
    return tuple(string.ascii_uppercase[:n_experts])


def expert_keys(n_experts: int) -> tuple[str, ...]:
    """The key of each expert in a prompt's JSON: Expert_A, Expert_B, ..."""
    return tuple(f"Expert_{letter}" for letter in expert_letters(n_experts))


def _user(body: Mapping[str, object]) -> Message:
    return {"role": "user", "content": json.dumps(body, ensure_ascii=False)}


@dataclass(frozen=True)
class ParsedReply:
    """What a reply said: ``value`` (0 or 1, or the note), or ``problem`` where it could not be read.

    ``strict`` is True where the reply was the JSON object alone with the one key asked for, ``embedded`` where other
    words stood around the object ("Sure! {...}"). What else is read: docs/method/traces.md.
    """

    value: int | str | None
    strict: bool = False
    problem: str = ""
    embedded: bool = False


def patterns(path: Path) -> SimpleNamespace:
    """The patterns and parts of a TOML file, by name; ``{good}`` in a pattern stands for the part of that name."""
    table = read_tables(path)

    def filled(text: str) -> str:
        text = re.sub(r"(?m)^ +|\n", "", text)  # a long one stands on several lines
        return re.sub(r"\{([a-z_]+)\}", lambda part: filled(table["parts"][part[1]]), text)

    made: dict[str, Any] = {
        name: re.compile(filled(text)) for name, text in table["patterns"].items()
    }
    pairs = tuple(re.compile(filled(text)) for text in table.get("pairs", {}).values())
    return SimpleNamespace(
        **made, pairs=pairs, **{name: filled(text) for name, text in table["parts"].items()}
    )


_RE = patterns(Path(__file__).with_suffix(".toml"))


def read_answer(
    condition: Condition, turn: Turn, text: str | None, finish_reason: str = "stop"
) -> ParsedReply:
    """Read a reply. Anything but one JSON object with the right key and a valid value is malformed.

    A reply cut by the token limit (``finish_reason`` "length") is malformed, too; thoughts are left out.
    """
    if finish_reason == "length":
        return ParsedReply(None, problem="the answer was cut off at the token limit")
    if not text or not text.strip():
        return ParsedReply(None, problem="the answer was empty")
    if len(text) > _LONGEST_ANSWER:
        return ParsedReply(
            None, problem=f"the answer was longer than {_LONGEST_ANSWER:,} characters"
        )
    said = json_in(text.strip(), object_pairs_hook=_no_duplicates)
    alone, embedded = said is not None, False
    if not alone:
        body = _RE.rest.sub("", _RE.thought.sub("", _RE.invisible.sub("", text)))
        body = _RE.end.sub("", body).strip()
        fenced = _RE.fence.match(body)
        said = json_in(fenced.group(1) if fenced else body, object_pairs_hook=_no_duplicates)
        # One object among other words: from the first brace to the last one.
        begin, end = body.find("{"), body.rfind("}") + 1
        unclosed = _RE.unknown.search(_RE.block.sub("", body[:begin])) or _RE.open.search(
            body[:begin] + body[end:]
        )
        if said is None and not unclosed:
            said = json_in(body[begin:end], object_pairs_hook=_no_duplicates)
            embedded = said is not None
        if said is None:
            return ParsedReply(None, problem="the answer was not one JSON object")
    if not isinstance(said, dict):
        return ParsedReply(None, problem="the answer was not a JSON object")
    if turn not in said:
        return ParsedReply(None, problem=f'the answer has no key "{turn}"')
    strict = alone and len(said) == 1
    value: Any = said[turn]
    if turn == "note":
        if not isinstance(value, str):
            return ParsedReply(None, problem="the note is not a text")
        if len(value) > LONGEST_NOTE:
            return ParsedReply(
                None, problem=f"the note was longer than {LONGEST_NOTE:,} characters"
            )
        # A lone surrogate is valid JSON but cannot be sent back as UTF-8.
        return ParsedReply(
            value.encode("utf-8", "replace").decode("utf-8"), strict, embedded=embedded
        )
    words = [str(word) for word in condition.words]
    word = str(value).strip().lower()
    if isinstance(value, bool) or not isinstance(value, (int, str)) or word not in words:
        return ParsedReply(None, problem=f"the prediction is not {' or '.join(words)}")
    return ParsedReply(words.index(word), strict and value in condition.words, embedded=embedded)


def json_in(text: str | bytes, **how: Any) -> Any:
    """The JSON value that ``text`` is, read by ``json.loads`` with ``how``; None where it is none."""
    try:
        return loaded(text, **how)
    except (ValueError, RecursionError):
        return None


def _no_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    if len(fields := dict(pairs)) != len(pairs):
        raise ValueError("the same key twice")
    return fields


RESPONSE_FORMATS = ("none", "json_object", "json_schema", "grammar")


def response_format(kind: str, condition: Condition, turn: Turn) -> dict[str, Any]:
    """The request fields that ask the server for the answer's form, of :data:`RESPONSE_FORMATS`.

    A grammar (GBNF, of llama.cpp) bounds the note's length so that a small model ends it.
    """
    value: dict[str, Any] = (
        {"type": "string"} if turn == "note" else {"enum": list(condition.words)}
    )
    form = {
        "type": "object",
        "properties": {turn: value},
        "required": [turn],
        "additionalProperties": False,
    }
    zero, one = (json.dumps(word).replace('"', '\\"') for word in condition.words)
    answer = '"\\"" [A-Za-z0-9 ,.:;/=]{0,200} "\\""' if turn == "note" else f'("{zero}" | "{one}")'
    schema = {"name": f"{turn}_answer", "schema": form, "strict": True}
    forms: dict[str, dict[str, Any]] = {
        "none": {},
        "json_object": {"response_format": {"type": "json_object"}},
        "json_schema": {"response_format": {"type": "json_schema", "json_schema": schema}},
        "grammar": {"grammar": f'root ::= "{{\\"{turn}\\": " {answer} "}}"'},
    }
    return forms[kind]


def read_message(message: Message) -> dict[str, Any]:
    """The JSON object of a user message."""
    body = json_in(message["content"])
    require(
        isinstance(body, dict),
        f"a user message must be one JSON object, got {message['content'][:80]!r}",
    )
    return dict(body)


_BUILT_IN = "built-in wording, version 1"


@dataclass(frozen=True)
class Prompt:
    """A system prompt with its origin: ``wording`` is :data:`_BUILT_IN` or the file it came from."""

    text: str
    wording: str

    @property
    def sha256(self) -> str:
        """The digest of the text, in hexadecimal."""
        return hashlib.sha256(self.text.encode("utf-8")).hexdigest()


_WORDS: dict[str, dict[str, str]] = read_tables(Path(__file__).with_suffix(".toml"))["framings"]
_NUMBERS = {2: "Two", 3: "Three", 4: "Four", 5: "Five", 6: "Six", 7: "Seven", 8: "Eight"}


@checked
def built_in_prompts(n_experts: int = 4) -> dict[str, Prompt]:
    """All four of our prompts, by scheme: the texts in ``prompts`` beside this file, filled in."""
    names, found = [f"Expert {letter}" for letter in expert_letters(n_experts)], {}
    for scheme in _SCHEMES:
        choice = _WORDS[scheme.partition("-")[0]]["choice"]
        text = (Path(__file__).parent / "prompts" / f"{scheme}.txt").read_text(encoding="utf-8")
        for place, value in {
            "{n}": _NUMBERS.get(n_experts, str(n_experts)),
            "{names}": f"{', '.join(names[:-1])} and {names[-1]}",
            "{votes}": ",\n".join(f'"{key}": {choice}' for key in expert_keys(n_experts)),
            "{words}": str(MAX_NOTE_WORDS),
        }.items():
            text = text.replace(place, value)
        found[scheme] = Prompt(text, _BUILT_IN)
    return found


@checked
def load_prompts(folder: str | Path) -> dict[str, Prompt]:
    """The user's prompts, ``<scheme>.txt`` in ``folder``, verbatim. A scheme without a file is left out."""
    folder = Path(folder)
    names = ", ".join(f"{scheme}.txt" for scheme in _SCHEMES)
    require(folder.is_dir(), f"no prompt folder {str(folder)!r}; give a folder that holds {names}")
    found: dict[str, Prompt] = {}
    for scheme in _SCHEMES:
        path = folder / f"{scheme}.txt"
        if not path.is_file():
            continue
        with theirs(
            f"the prompt {str(path)!r} is not UTF-8 text; save it as UTF-8", of=UnicodeDecodeError
        ):
            text = path.read_bytes().decode("utf-8")  # read_text would turn \r\n into \n
        require(
            bool(text.strip()),
            f"the prompt {str(path)!r} is empty; write the system prompt into it",
        )
        found[scheme] = Prompt(text, f"file {path.name}")
    require(bool(found), f"the prompt folder {str(folder)!r} holds none of {names}")
    return found
