"""Find JSON in what a language model says: among thoughts, end tokens and other words."""

from __future__ import annotations

import re
from typing import Any

from interp.support.foreign import json_in

# Words in the marks of a block that is no answer: <think>, [THINK] (Mistral), ◁think▷ (Kimi), ...
_THOUGHTS = "think|thinking|thoughts?|reason|reasoning|reflection|scratchpad|analysis|seed:think"
_OPENS = rf"[<[◁](?:{_THOUGHTS})[>\]▷]|<\|(?:begin_of_thought|start_thinking)\|>|<\|channel\|>"
# The last one is that of gpt-oss, whose answers stand in a channel of their own.
_CLOSES = (
    rf"[<[◁]/(?:{_THOUGHTS})\s*[>\]▷]|<\|(?:end_of_thought|end_thinking)\|>"
    r"|<\|channel\|>final<\|message\|>"
)
_FENCE = re.compile(r"(?is)\A```(?:json)?\s*\n(.*?)\n?\s*```\Z")
_LEFT_OUT = (
    re.compile("[\ufeff\u200b\u200c\u200d\u2060]"),
    re.compile(f"(?is)(?:{_OPENS}).*?(?:{_CLOSES})"),
    # Some servers put the opening mark into the prompt, so that the reply holds the closing one alone.
    re.compile(rf"(?is)\A.*(?:{_CLOSES})"),
    re.compile(
        r"\s*(?:<\|(?:im_end|eot_id|endoftext|end|end_of_text|return)\|>|</s>|<eos>|<end_of_turn>)\s*\Z"
    ),
)
"""Invisible characters, thoughts and end tokens."""
_OPEN = re.compile(f"(?i){_OPENS}")
_BLOCK = re.compile(
    r"(?i)<([\w:-]+)>.*?</\1>|[<[](?:answer|final|json|note|output|prediction|response|result)[>\]]"
)
_UNKNOWN = re.compile(r"<[\w:-]+>|\[[A-Z_]{3,}\]|◁\w+▷|<\|[^|>]*(?:think|thought|reason)[^|>]*\|>")


def text_of(content: Any) -> str:
    """Return the text of a message's content: a string, or the parts of a list that are text."""
    if isinstance(content, str):
        return content
    texts = []
    for part in content if isinstance(content, list) else []:
        is_text = isinstance(part, dict) and part.get("type") == "text"
        if is_text and isinstance(part.get("text"), str):
            texts.append(part["text"])
    return "".join(texts)


def find_object(text: str) -> tuple[Any, bool, bool]:
    """Find the JSON value in a reply, among thoughts and other words.

    Returns:
        The value (None where there is none), whether it stands alone, and whether it stands among
        other words.
    """
    body = _object_in(text)
    if body is not None:
        return body, True, False
    answer = _without_thoughts(text)
    fenced = _FENCE.match(answer)
    body = _object_in(fenced[1] if fenced else answer)
    if body is not None:
        return body, False, False
    body = _embedded_in(answer)
    return body, False, body is not None


def _object_in(text: str) -> Any:
    """Return the JSON value that a text is, without a key that stands twice; None where it is none."""
    return json_in(text.strip(), object_pairs_hook=_no_duplicates)


def _without_thoughts(text: str) -> str:
    """Return a reply without thoughts, invisible characters and end tokens."""
    for pattern in _LEFT_OUT:
        text = pattern.sub("", text)
    return text.strip()


def _embedded_in(text: str) -> Any:
    """Return the one object among other words, from the first brace to the last; None in a block that has no end."""
    begin = text.find("{")
    end = text.rfind("}") + 1
    before = text[:begin]
    has_unknown_block = _UNKNOWN.search(_BLOCK.sub("", before))
    if has_unknown_block or _OPEN.search(before + text[end:]):
        return None
    return _object_in(text[begin:end])


def _no_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    if len(fields := dict(pairs)) != len(pairs):
        raise ValueError("the same key twice")
    return fields
