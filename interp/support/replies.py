"""Find the JSON value in a language model's reply, among reasoning, end tokens and other words."""

from __future__ import annotations

import re
from typing import Any

from interp.support.foreign import json_in

# Words in the marks of a block that is no answer: <think>, [THINK] (Mistral), ◁think▷ (Kimi), ...
_THOUGHT_WORDS = (
    "think|thinking|thoughts?|reason|reasoning|reflection|scratchpad|analysis|seed:think"
)
_BEGIN_MARKS = (
    rf"[<[◁](?:{_THOUGHT_WORDS})[>\]▷]|<\|(?:begin_of_thought|start_thinking)\|>|<\|channel\|>"
)
# The last one is that of gpt-oss, whose answers stand in a channel of their own.
_END_MARKS = (
    rf"[<[◁]/(?:{_THOUGHT_WORDS})\s*[>\]▷]|<\|(?:end_of_thought|end_thinking)\|>"
    r"|<\|channel\|>final<\|message\|>"
)
_FENCE = re.compile(r"(?is)\A```(?:json)?\s*\n(.*?)\n?\s*```\Z")
_REMOVED = (
    re.compile("[\ufeff\u200b\u200c\u200d\u2060]"),
    re.compile(f"(?is)(?:{_BEGIN_MARKS}).*?(?:{_END_MARKS})"),
    # Some servers put the opening mark into the prompt, so that the reply holds the closing one alone.
    re.compile(rf"(?is)\A.*(?:{_END_MARKS})"),
    re.compile(
        r"\s*(?:<\|(?:im_end|eot_id|endoftext|end|end_of_text|return)\|>|</s>|<eos>|<end_of_turn>)\s*\Z"
    ),
)
"""Patterns of what is removed from a reply: invisible characters, reasoning blocks and end
tokens.
"""
_THOUGHT_BEGINS = re.compile(f"(?i){_BEGIN_MARKS}")
_HARMLESS_BLOCK = re.compile(
    r"(?i)<([\w:-]+)>.*?</\1>|[<[](?:answer|final|json|note|output|prediction|response|result)[>\]]"
)
_UNKNOWN_MARK = re.compile(
    r"<[\w:-]+>|\[[A-Z_]{3,}\]|◁\w+▷|<\|[^|>]*(?:think|thought|reason)[^|>]*\|>"
)


def text_of(content: Any) -> str:
    """Return the text of a chat message's content, which is a string or a list of parts."""
    if isinstance(content, str):
        return content
    texts = []
    for part in content if isinstance(content, list) else []:
        is_text = isinstance(part, dict) and part.get("type") == "text"
        if is_text and isinstance(part.get("text"), str):
            texts.append(part["text"])
    return "".join(texts)


def find_object(text: str) -> tuple[Any, bool, bool]:
    """Find the JSON value in a language model's reply, among reasoning and other words.

    Args:
        text: the reply.

    Returns:
        A tuple of three:

        * the value, or None if there is none;
        * True if the reply consists of this JSON value only;
        * True if the value is surrounded by words that are neither reasoning nor a code fence.
    """
    value = _read_object(text)
    if value is not None:  # the whole reply is JSON
        return value, True, False
    answer = _remove_thoughts(text)
    fenced = _FENCE.match(answer)
    value = _read_object(fenced[1] if fenced else answer)
    if value is not None:
        return value, False, False
    value = _find_embedded_object(answer)
    return value, False, value is not None


def _read_object(text: str) -> Any:
    """Parse a text that is one JSON value without duplicate keys; return None for any other
    text.
    """
    return json_in(text.strip(), object_pairs_hook=_refuse_duplicates)


def _remove_thoughts(text: str) -> str:
    """Return the text of a reply without reasoning blocks, invisible characters and end tokens."""
    for pattern in _REMOVED:
        text = pattern.sub("", text)
    return text.strip()


def _find_embedded_object(text: str) -> Any:
    """Parse the JSON object that spans from the first brace of a text to the last one.

    Return None if that span is not one object. Return None, too, if the text around it contains an
    unclosed or unknown block, such as a reasoning block, that the object may belong to.
    """
    begin = text.find("{")
    end = text.rfind("}") + 1  # without braces the span is empty, and is no object
    before = text[:begin]
    # Harmless blocks before the object are removed first: pairs of tags, which are closed again, and
    # tags that announce an answer, such as <json>.
    has_unknown_block = _UNKNOWN_MARK.search(_HARMLESS_BLOCK.sub("", before))
    if has_unknown_block or _THOUGHT_BEGINS.search(before + text[end:]):
        return None
    return _read_object(text[begin:end])


def _refuse_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Return a dictionary of the (key, value) pairs of a JSON object; raise ValueError if a key
    occurs twice.
    """
    fields = dict(pairs)
    if len(fields) != len(pairs):
        raise ValueError("the same key twice")
    return fields
