"""A comparison in one sentence that says what its verdicts say, and no more.

>>> in_a_sentence("a", "b", {"state": ("same", "if a is also given the round number"), "circuit": ("different", "")})
'a holds the same state (if it is also given the round number) as b, but has heads of other roles.'
>>> in_a_sentence("a", "b", {"state": ("undecided", ""), "update": ("different", "")})
'Unlike b, a updates its state otherwise. Undecided: state.'
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from circuits.compare.question import in_words

_SAME = {
    "state": "holds the same state",
    "update": "updates its state in the same way",
    "behaviour": "predicts the same",
    "circuit": "has heads of the same roles",
}
_DIFFERENT = {
    "behaviour": "predicts otherwise",
    "state": "holds another state",
    "update": "updates its state otherwise",
    "circuit": "has heads of other roles",
}
"""Question -> what a "same" or a "different" says of the model, in the order in which they are said."""


def in_a_sentence(model: str, reference: str, answers: Mapping[str, tuple[str, str]], predicts: str = "") -> str:
    """Say the answers (question -> word and note) of a comparison.

    Args:
        reference: what the model is held against.
        predicts: what is known of a model that predicts otherwise, such as "like the Bayes predictor".
    """
    same = [
        f"{said} ({_named(model).sub('it', note)})" if (note := answers[key][1].partition(":")[0]) else said
        for key, said in _SAME.items()
        if answers.get(key, ("",))[0] == "same"
    ]
    different = [
        f"{said} ({predicts})" if key == "behaviour" and predicts else said
        for key, said in _DIFFERENT.items()
        if answers.get(key, ("",))[0] == "different"
    ]
    sentences = []
    if same:
        but = f", but {_listed(different)}" if different else ""
        sentences.append(f"{model} {_listed(same)} as {reference}{but}")
    elif different:
        sentences.append(f"Unlike {reference}, {model} {_listed(different)}")
    for word in ("undecided", "not applicable"):
        if left := [in_words(key) for key, (said, _) in answers.items() if said == word]:
            beside = "" if sentences else f" of {model} beside {reference}"
            sentences.append(f"{word.capitalize()}{beside}: {_listed(left)}")
    return " ".join(f"{sentence}." for sentence in sentences)


def _named(model: str) -> re.Pattern[str]:
    return re.compile(rf"(?<![\w-]){re.escape(model)}(?![\w-])")


def _listed(words: Sequence[str]) -> str:
    return " and ".join(filter(None, [", ".join(words[:-1]), words[-1]]))
