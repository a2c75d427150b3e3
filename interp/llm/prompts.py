"""The system prompts: our own wording of the information in the paper's four prompts (appendix F.3).

Same facts, same turn types, same JSON keys and value forms as the paper's; other words. A result made with these is
comparable with, not a reproduction of, the paper's: for that, put the paper's four prompts into a folder as
``online-note.txt``, ``online-no-note.txt``, ``weather-note.txt`` and ``weather-no-note.txt`` and load it with
:func:`load_prompts`, which takes the files' text as it is. A trace keeps the text, its SHA-256 and the wording's name.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from interp.checks import checked
from interp.errors import InputError, require
from interp.llm.schemes import MAX_NOTE_WORDS, SCHEMES, choice, expert_keys, expert_letters

BUILT_IN = "built-in wording, version 1"


@dataclass(frozen=True)
class Prompt:
    """A system prompt with its origin: ``wording`` is :data:`BUILT_IN` or the file it came from."""

    text: str
    wording: str

    @property
    def sha256(self) -> str:
        """The digest of the text, in hexadecimal."""
        return hashlib.sha256(self.text.encode("utf-8")).hexdigest()


_WORDS = {
    "online": {
        "opening": "You take part in an online prediction task that runs for many rounds.",
        "task": (
            "Every round has a hidden binary outcome, 0 or 1. {n} experts, {names}, each announce a guess of it, "
            "either 0 or 1. The experts are the same in all rounds, and some of them may be right more reliably "
            "than others."
        ),
        "round": "round",
        "rounds": "rounds",
        "now": "the current round",
        "turn": "Prediction turn",
        "turn_type": "prediction",
        "truth": "the true label of the current round",
        "truth_key": "true_label",
    },
    "weather": {
        "opening": "You help to forecast the weather, one day after another.",
        "task": (
            'Every day turns out either "sunny" or "rainy". {n} weather experts, {names}, each announce a forecast, '
            'either "sunny" or "rainy". The experts are the same every day and each works in their own way, so '
            "some of them may be right more reliably than others."
        ),
        "round": "day",
        "rounds": "days",
        "now": "the current day",
        "turn": "Forecast turn",
        "turn_type": "forecast",
        "truth": "the actual weather of the current day",
        "truth_key": "actual_weather",
    },
}

_NUMBERS = {2: "Two", 3: "Three", 4: "Four", 5: "Five", 6: "Six", 7: "Seven", 8: "Eight"}


@checked
def built_in(scheme: str, n_experts: int = 4) -> Prompt:
    """Our prompt for ``scheme`` (one of :data:`~interp.llm.schemes.SCHEMES`)."""
    framing, _, state = scheme.partition("-")
    words, has_note = _WORDS[framing], state == "note"
    names = [f"Expert {letter}" for letter in expert_letters(n_experts)]
    listed = f"{', '.join(names[:-1])} and {names[-1]}"
    votes = {key: choice(framing) for key in expert_keys(n_experts)}
    note = {"note": '"<short text>"'} if has_note else {}
    asked = {"turn_type": json.dumps(words["turn_type"])} | note | votes
    told = {"turn_type": '"feedback"'} | (note | votes if has_note else {}) | {words["truth_key"]: choice(framing)}
    parts = [
        words["opening"],
        words["task"].format(n=_NUMBERS.get(n_experts, str(n_experts)), names=listed),
        "Your task is to make a prediction of your own from what the experts announce, and to be right as often as "
        f"you can over the whole series. Learn from the outcomes of earlier {words['rounds']} which experts deserve "
        "your trust.",
        "There are two kinds of turns.",
        f"1. {words['turn']}",
        (
            f"You receive your note from earlier {words['rounds']} and the experts' predictions for {words['now']}. "
            "Use both to predict."
            if has_note
            else f"You receive the experts' predictions for {words['now']}. Use them to predict."
        ),
        f"Input:\n{_object(asked)}",
        f"Output:\n{_object({'prediction': choice(framing)})}",
        "2. Feedback turn",
        (
            f"You receive your previous note, the experts' predictions for {words['now']} and {words['truth']}. Write "
            f"a new short note for the {words['rounds']} to come. Keep in it only what helps most to predict later."
            if has_note
            else f"You receive {words['truth']}. No output is expected in this turn; use what you learn in later "
            "predictions."
        ),
        f"Input:\n{_object(told)}",
        *([f"Output:\n{_object(note)}"] if has_note else []),
        "Rules:",
        "\n".join(f"- {rule}" for rule in _rules(has_note)),
    ]
    return Prompt("\n\n".join(parts) + "\n", BUILT_IN)


def _rules(has_note: bool) -> list[str]:
    about_note = [
        "The note is to be short and compact.",
        f"The note may have {MAX_NOTE_WORDS} words at the very most.",
        "The note is to hold nothing but what is most useful for later predictions.",
        "The note is not to repeat the whole history.",
    ]
    return [
        "Use no external tools.",
        "Neither write nor run code.",
        "Give no explanation and no steps of reasoning.",
        *(about_note if has_note else []),
        "Answer with valid JSON alone: no explanation, no reasoning, no text around it.",
    ]


def _object(fields: Mapping[str, str]) -> str:
    return "{\n" + ",\n".join(f'"{key}": {value}' for key, value in fields.items()) + "\n}"


@checked
def built_in_prompts(n_experts: int = 4) -> dict[str, Prompt]:
    """All four of our prompts, by scheme."""
    return {scheme: built_in(scheme, n_experts) for scheme in SCHEMES}


@checked
def load_prompts(folder: str | Path) -> dict[str, Prompt]:
    """The user's prompts, ``<scheme>.txt`` in ``folder``, verbatim. A scheme without a file is left out.

    Raises:
        InputError: no such folder, no prompt in it, or a file that is empty or not UTF-8.
    """
    folder = Path(folder)
    names = ", ".join(f"{scheme}.txt" for scheme in SCHEMES)
    require(folder.is_dir(), f"no prompt folder {str(folder)!r}; give a folder that holds {names}")
    found: dict[str, Prompt] = {}
    for scheme in SCHEMES:
        path = folder / f"{scheme}.txt"
        if not path.is_file():
            continue
        try:
            # newline="": read_text would turn \r\n into \n, and verbatim means verbatim.
            with open(path, encoding="utf-8", newline="") as stream:
                text = stream.read()
        except UnicodeDecodeError as error:
            raise InputError(f"the prompt {str(path)!r} is not UTF-8 text; save it as UTF-8") from error
        require(bool(text.strip()), f"the prompt {str(path)!r} is empty; write the system prompt into it")
        found[scheme] = Prompt(text, f"file {path.name}")
    require(bool(found), f"the prompt folder {str(folder)!r} holds none of {names}")
    return found
