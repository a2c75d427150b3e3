"""Scores of answers that rank items, against a truth that gives true items kinds.

Of the true items only those of one kind count at a time: the others are left out, neither right nor wrong, so that
"content" says how well edges that carry content are told from edges that do not exist.

    >>> truth = {"a": "content", "b": "constant", "c": "", "d": ""}
    >>> ranking(truth, Answer({"a": 2.0, "b": 0.0, "c": 1.0, "d": 0.0}))["auroc"]
    1.0
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping

import numpy as np
from jaxtyping import Bool, Float
from sklearn.metrics import average_precision_score, roc_auc_score

from circuits.benchmark.method import Answer


def ranking(
    truth: Mapping[Hashable, str], answer: Answer, first: str = "content", others: tuple[str, ...] = ()
) -> dict[str, float]:
    """How well an answer ranks the items of kind ``first``, of each of ``others``, and of all, above false ones.

    Returns:
        "auroc", "ap" (average precision), "recall" (precision and recall at the true size: as many items as are true),
        and, where the answer declares items, "chosen_precision" and "chosen_recall"; of other kinds "auroc constant"
        and so on; of all kinds together "auroc all". NaN where no item, or every item, is true.
    """
    values = scores_of(truth, answer)
    kinds = np.array(list(truth.values()))
    chosen = None if answer.chosen is None else np.array([item in answer.chosen for item in truth])
    graded = _graded(values, kinds == first, kinds == "", chosen)
    found = dict(graded)
    for kind in others:
        found |= {f"{name} {kind}": value for name, value in _graded(values, kinds == kind, kinds == "").items()}
    if others:
        found |= {f"{name} all": value for name, value in _graded(values, kinds != "", kinds == "", chosen).items()}
    return found


def scores_of(truth: Mapping[Hashable, str], answer: Answer) -> Float[np.ndarray, " item"]:
    """The answer's score of every item; an item that it leaves out, or has no number for, gets the least."""
    least = min((score for score in answer.scores.values() if not np.isnan(score)), default=0.0)
    values = np.array([answer.scores.get(item, least) for item in truth], dtype=np.float64)
    return np.nan_to_num(values, nan=least)


def _graded(
    values: Float[np.ndarray, " item"],
    true: Bool[np.ndarray, " item"],
    false: Bool[np.ndarray, " item"],
    chosen: Bool[np.ndarray, " item"] | None = None,
) -> dict[str, float]:
    asked = true | false
    if not true.any() or not false.any():
        found = dict.fromkeys(("auroc", "ap", "recall"), float("nan"))
    else:
        y, x = true[asked], values[asked]
        found = {
            "auroc": float(roc_auc_score(y, x)),
            "ap": float(average_precision_score(y, x)),
            "recall": recall_at(y, x, int(y.sum())),
        }
    if chosen is not None:
        hits, declared = float((chosen & true).sum()), float((chosen & asked).sum())
        found["chosen_precision"] = hits / declared if declared else float("nan")
        found["chosen_recall"] = hits / float(true.sum()) if true.any() else float("nan")
    return found


def recall_at(true: Bool[np.ndarray, " item"], values: Float[np.ndarray, " item"], size: int) -> float:
    """The share of true items among the ``size`` best; ties at the edge are broken at random, on average.

    >>> recall_at(np.array([True, False, False]), np.array([1.0, 1.0, 0.0]), 1)
    0.5
    """
    cut = np.sort(values)[::-1][size - 1]
    above, level = values > cut, values == cut
    share = (size - above.sum()) / level.sum()
    return float((true & above).sum() + share * (true & level).sum()) / float(true.sum())
