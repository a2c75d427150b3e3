"""What a question of the benchmark is, what an answer is, and how answers are scored.

A question is about items, such as edges, nodes, or (variable, site) pairs. Its truth maps each true
item to its kind, such as "content", and each false item to "". An answer gives each item a score.
In all scores of answers, higher is better.

    >>> truth = {"a": "content", "b": "constant", "c": "", "d": ""}
    >>> ranking(truth, Answer({"a": 2.0, "b": 0.0, "c": 1.0, "d": 0.0}))["auroc"]
    1.0
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from jaxtyping import Bool, Float
from sklearn.metrics import average_precision_score, roc_auc_score
from torch import Tensor

from circuits.benchmark.known_machine import KnownMachine
from interp.support.checks import checked_fields
from interp.support.errors import require

Truth = Mapping[Hashable, str]
"""The kind of every item; "" for a false item."""


@dataclass(frozen=True)
class Answer:
    """A method's answer to a question of the benchmark: which items, such as edges, are true.

    Attributes:
        scores: item -> the method's score; the higher, the likelier the item is true. Missing items
            get the lowest score.
        chosen: the items that the method declares true; None if the method only ranks items.
        subspaces: for questions about directions, (variable, site as text) -> an orthonormal basis
            ``[d_model, rank]`` of the subspace that stores the variable there.
        measured: name -> a further number that the method measured, such as an accuracy.
    """

    scores: Mapping[Any, float]
    chosen: frozenset[Hashable] | None = None
    subspaces: Mapping[tuple[str, str], Tensor] = field(default_factory=dict)
    measured: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
@checked_fields
class Challenge:
    """A question of the benchmark, which methods answer about a machine (subject).

    A question is about items, such as edges; each is true or false of the subject. The functions
    below take the subject and its :class:`~circuits.benchmark.material.Material` (the subject's
    runs, which all methods share).

    Attributes:
        key: the question's key, such as "edges".
        name: a short name, for tables.
        asked: the question, in words.
        true: where the truth comes from, in words.
        scored: how answers are scored, in words.
        headline: name of the main score, which figures show.
        truth: ``(subject, material) -> {item: kind}``, with the kind "" for false items. An empty
            mapping means that the truth is unknown; the subject is then left out.
        grade: ``(subject, material, answer) -> {name of a score: value}``; it scores an
            :class:`Answer`.
        oracle: ``(subject, material) -> Answer``, the answer of an oracle that knows the truth.
            None gives true items the score 1, false items 0.
        chance: ``(subject, material, NumPy generator) -> Answer``, a random answer. None draws a
            random score for each item.
    """

    key: str
    name: str
    asked: str
    true: str
    scored: str
    headline: str
    truth: Callable[[KnownMachine, Any], Truth]
    grade: Callable[[KnownMachine, Any, Answer], dict[str, float]]
    oracle: Callable[[KnownMachine, Any], Answer] | None = None
    chance: Callable[[KnownMachine, Any, np.random.Generator], Answer] | None = None

    def answer_by_oracle(self, subject: KnownMachine, material: Any) -> Answer:
        """Return the answer of an oracle that knows the truth: the upper bound for methods.

        The function :attr:`oracle` makes the answer, if there is one. Otherwise true items get the
        score 1 and false items 0.

        Args:
            subject: the machine.
            material: the machine's runs and the true answers.
        """
        if self.oracle is not None:
            return self.oracle(subject, material)
        truth = material.truth(self.key)
        scores = {item: float(bool(kind)) for item, kind in truth.items()}
        return Answer(scores, frozenset(item for item in truth if truth[item]))

    def draw_answer(self, subject: KnownMachine, material: Any) -> Answer:
        """Return a random answer, the lower bound for methods.

        The function :attr:`chance` makes the answer, if there is one. Otherwise each item gets a
        uniform random score, and the n items with the best scores are declared true, where n is the
        number of true items. The draws depend only on the question, the subject's name and the
        seed.

        Args:
            subject: the machine.
            material: the true answers and the seed.
        """
        key_bytes, name_bytes = self.key.encode(), subject.name.encode()
        generator = np.random.default_rng([material.seed, *key_bytes, *name_bytes])
        if self.chance is not None:
            return self.chance(subject, material, generator)
        truth = material.truth(self.key)
        scores = dict(zip(truth, generator.random(len(truth)).tolist(), strict=True))
        n_true = sum(map(bool, truth.values()))
        best_first = sorted(scores, key=lambda item: -scores[item])
        return Answer(scores, frozenset(best_first[:n_true]))


QUESTIONS: dict[str, Challenge] = {}
"""Questions by key; filled by :mod:`circuits.benchmark.questions`, and by users."""


def register_questions(*questions: Challenge) -> None:
    """Register questions of the benchmark; raise InputError if another question has the same key."""
    for question in questions:
        free = QUESTIONS.get(question.key, question) == question
        require(free, f"a question {question.key!r} exists; choose another key")
        QUESTIONS[question.key] = question


def ranking(
    truth: Mapping[Hashable, str],
    answer: Answer,
    first: str = "content",
    others: tuple[str, ...] = (),
) -> dict[str, float]:
    """Score how well an answer ranks true items of some kinds above false items.

    Each score compares the true items of one kind, or of several kinds, with the false items. True
    items of other kinds are left out.

    Args:
        truth: item -> its kind; "" for false items.
        answer: a method's answer.
        first: kind of the true items that scores without a suffix, such as "auroc", are about.
        others: further kinds of true items. Each kind gets scores with its name as a suffix, such
            as "auroc constant". If there are further kinds, scores with the suffix "all" are about
            ``first`` and ``others`` together.

    Returns:
        Name of a score -> its value. Three scores are NaN if there is no true or no false item:

        * "auroc": area under the ROC curve;
        * "ap": average precision;
        * "recall": share of the n true items that are among the n items with the best scores.

        Two more exist if the answer declares items true (``answer.chosen``), but not for single
        kinds in ``others``:

        * "chosen_precision": share of the declared items that are true; NaN if none is declared;
        * "chosen_recall": share of the true items that are declared; NaN if no item is true.
    """
    values = scores_of(truth, answer)
    kinds = np.array(list(truth.values()))
    is_false = kinds == ""
    chosen = None if answer.chosen is None else np.array([item in answer.chosen for item in truth])
    scores = _grade_ranking(values, kinds == first, is_false, chosen)
    for kind in others:
        of_kind = _grade_ranking(values, kinds == kind, is_false)
        scores |= {f"{name} {kind}": value for name, value in of_kind.items()}
    if others:
        of_all = _grade_ranking(values, np.isin(kinds, (first, *others)), is_false, chosen)
        scores |= {f"{name} all": value for name, value in of_all.items()}
    return scores


def scores_of(truth: Mapping[Hashable, str], answer: Answer) -> Float[np.ndarray, " item"]:
    """Return an answer's score of every item, ``[item]``, in the order of the items in ``truth``. A
    missing or NaN score becomes the answer's lowest score.
    """
    numbers = [score for score in answer.scores.values() if not np.isnan(score)]
    lowest = min(numbers, default=0.0)
    scores = np.array([answer.scores.get(item, lowest) for item in truth], dtype=np.float64)
    return np.nan_to_num(scores, nan=lowest)


def _grade_ranking(
    values: Float[np.ndarray, " item"],
    is_true: Bool[np.ndarray, " item"],
    is_false: Bool[np.ndarray, " item"],
    chosen: Bool[np.ndarray, " item"] | None = None,
) -> dict[str, float]:
    """Score how well true items rank above false ones, and how many of the declared items are true.

    Args:
        values: scores of the items, ``[item]``.
        is_true, is_false: masks of the items; items in neither are left out.
        chosen: mask of the items that the method declares true; None if it only ranks.

    Returns:
        "auroc", "ap" (average precision) and "recall" (share of the n true items among the n best).
        With ``chosen`` also "chosen_precision" and "chosen_recall". NaN where undefined.
    """
    is_ranked = is_true | is_false
    scores = dict.fromkeys(("auroc", "ap", "recall"), float("nan"))
    n_true = int(is_true.sum())
    if n_true and is_false.any():
        is_hit, ranked = is_true[is_ranked], values[is_ranked]
        # Hits among the n_true best items. Items level with the last of these share the places that
        # are left, as they do on average if ties are broken at random.
        lowest = np.sort(ranked)[-n_true]
        is_above, is_level = ranked > lowest, ranked == lowest
        share_of_level = (n_true - is_above.sum()) / is_level.sum()
        hits = (is_hit & is_above).sum() + share_of_level * (is_hit & is_level).sum()
        scores = {
            "auroc": float(roc_auc_score(is_hit, ranked)),
            "ap": float(average_precision_score(is_hit, ranked)),
            "recall": float(hits) / n_true,
        }
    if chosen is not None:
        n_hits, n_declared = float((chosen & is_true).sum()), float((chosen & is_ranked).sum())
        scores["chosen_precision"] = n_hits / n_declared if n_declared else float("nan")
        scores["chosen_recall"] = n_hits / n_true if n_true else float("nan")
    return scores
