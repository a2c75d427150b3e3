"""Read the tallies in a model's note, and check whether they are right (paper, appendix F.3).

A *tally* is an expert's number of right predictions out of several rounds, written after the
expert's name, such as "A:45/100". docs/method/notes.md has the details.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from interp.llm.schemes import expert_letters
from interp.support.checks import checked

_TALLY = (
    r"(?<![A-Za-z])(?:Expert[ _]?)?({letters})[ :=(]{{0,3}}"
    r"(0|[1-9]\d{{0,5}}) ?(?:/|out of|of) ?([1-9]\d{{0,5}})(?![\d/])"
)
"""A fraction right after an expert's name, but not a date or a string of bits."""


@checked
def read_counts(note: str, n_experts: int = 4) -> dict[str, tuple[int, int]]:
    """Read the tallies in a note: ``{letter of an expert: (number of right predictions, number of
    rounds)}``.

    A tally is read only if its fraction directly follows the expert's name, and only if there are
    no more right predictions than rounds. If an expert has several tallies, the last one counts.

    >>> read_counts("A:45/100, Expert_B 94 of 100; C wrong 2/2, D 3/2")
    {'A': (45, 100), 'B': (94, 100)}

    Args:
        note: text of the note.
        n_experts: number of experts, who are called A, B, ...
    """
    letters = "|".join(expert_letters(n_experts))
    counts: dict[str, tuple[int, int]] = {}
    for letter, hits, total in re.findall(_TALLY.format(letters=letters), note):
        if int(hits) <= int(total):
            counts[letter] = (int(hits), int(total))
    return counts


def check_counts(
    note: str,
    correct_so_far: NDArray[np.int64],
    n_rounds: int,
    reliability: NDArray[np.float64] | None = None,
) -> dict[str, Any]:
    """Compare the tallies in a language model's note with what happened (docs/method/notes.md). A
    tally, such as "A:45/100", says how often expert A was right, and in how many rounds.

    Args:
        note: the note after some round.
        correct_so_far: number of rounds up to this one in which each expert really was right,
            Int[expert].
        n_rounds: number of rounds up to this one.
        reliability: accuracy of each expert, Float[expert]; if given, the note's best and worst
            experts are compared with it.

    Returns:
        A dictionary with these keys. The share of an expert is the quotient of its tally, such as
        .45 for "A:45/100".

        * "readable": True if every expert has a tally;
        * "exact": True if all tallies are right and count all rounds;
        * "mean_error": mean absolute error of the counts of right predictions, over the experts
          with a tally; NaN without tallies;
        * "best" ("worst"): True if the experts with the highest (lowest) share in the note were
          right most (least) often; None if all shares are equal;
        * "most_accurate" ("least_accurate"): True if the only expert with the highest (lowest)
          share in the note is the one with the highest (lowest) reliability; None without
          ``reliability``.

        The last four are also None if an expert has no tally.
    """
    letters = expert_letters(len(correct_so_far))
    counts = read_counts(note, len(letters))
    with_tally = [expert for expert, letter in enumerate(letters) if letter in counts]
    hits = np.array([counts[letters[expert]][0] for expert in with_tally])
    totals = np.array([counts[letters[expert]][1] for expert in with_tally])
    errors = np.abs(hits - correct_so_far[with_tally])
    checks: dict[str, Any] = {
        "readable": len(with_tally) == len(letters),
        "exact": False,
        "mean_error": float(errors.mean()) if with_tally else np.nan,
        "best": None,
        "worst": None,
        "most_accurate": None,
        "least_accurate": None,
    }
    if not checks["readable"]:
        return checks
    counts_all_rounds = bool((totals == n_rounds).all())
    checks["exact"] = counts_all_rounds and not errors.any()
    shares = hits / totals
    # The worst experts are the best ones with the opposite sign.
    sides = {("best", "most_accurate"): 1, ("worst", "least_accurate"): -1}
    for (count_key, accuracy_key), sign in sides.items():
        signed_shares = sign * shares
        # Experts with the highest share in the note; 1e-12 is rounding of the quotients.
        top_experts = np.flatnonzero(signed_shares >= signed_shares.max() - 1e-12)
        signed_counts = sign * correct_so_far
        if len(top_experts) < len(shares):  # a note with equal shares names no best expert
            checks[count_key] = bool((signed_counts[top_experts] == signed_counts.max()).all())
        if reliability is not None:
            most_reliable = int((sign * reliability).argmax())
            checks[accuracy_key] = top_experts.tolist() == [most_reliable]
    return checks


def write_counts(correct: Sequence[int], n_rounds: int) -> str:
    """Return a note with every expert's tally, in the most common format of the paper: ``A:45/100,
    B:94/100``.

    Args:
        correct: number of right predictions of each expert.
        n_rounds: number of rounds so far.
    """
    letters = expert_letters(len(correct))
    counts = zip(letters, correct, strict=True)
    return ", ".join(f"{letter}:{int(hits)}/{n_rounds}" for letter, hits in counts)
