"""Q-learning with a lapse: it learns late, or stops.

    late_q       Q(s, a) is moved by a round ``lag`` rounds after it, with the table of then
    stopped_q    Q(s, a) is moved by the first ``last`` rounds alone: a change point

Both are Q-learning exactly where the lapse is none: no lag, an end after the last round.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from interp.algorithm import Algorithm, Values, Variable
from interp.checks import checked
from interp.errors import require
from interp.tasks.qlearning.algorithms import q_learning
from interp.tasks.qlearning.bellman import columns_at, entries_at, rows_at

_Array = NDArray[Any]
_TRANSITION = ("state", "action", "reward", "next_state")


def _due(values: _Array, part: str, n: int) -> _Array:
    """A state or action of transitions ``[..., 4]`` as one of n indices: 0 where there is none yet, and the nearest one
    where another state than its own was put into the machine."""
    column = values[..., _TRANSITION.index(part)]
    return np.asarray(np.clip(np.rint(column), 0, n - 1).astype(np.int64))


@checked
def late_q(alpha: float = 0.1, gamma: float = 0.9, lag: int = 1) -> Algorithm:
    """Q-learning in which the table is moved by a round ``lag`` rounds late; it chooses by the table that it has.

    >>> late_q(lag=2).state
    ('table', 'visits', 'waiting')
    """
    require(lag >= 0, f"lag must be an integer >= 0, got {lag}")
    base = q_learning(alpha, gamma)

    def queue(v: Values) -> _Array:
        now = np.stack([np.asarray(v[part], np.float64) for part in _TRANSITION], -1)
        return np.concatenate([v["waiting"], now[..., None, :]], -2)

    def change(v: Values) -> _Array:
        here = np.eye(v["table"].shape[-2])[_due(v["due"], "state", v["table"].shape[-2])]
        known = v["due"][..., _TRANSITION.index("action")] >= 0
        return alpha * (v["td_error"] * known)[..., None] * here

    def next_table(v: Values) -> _Array:
        n_actions = v["table"].shape[-1]
        taken = np.eye(n_actions, dtype=bool)[_due(v["due"], "action", n_actions)][..., None, :]
        return np.where(taken, v["next_column"][..., None], v["table"])

    def td_error(v: Values) -> _Array:
        return v["due"][..., _TRANSITION.index("reward")] + v["bootstrapped_value"] - v["current_value"]

    what = "the rounds that have moved nothing yet, -1 before the first"
    units, parents = "indices, reward", ("waiting", *_TRANSITION)
    waiting = Variable("waiting", "(s, a, r, s')_{t-l..t-1}", what, units, "state")
    heard = Variable("queue", "(s, a, r, s')_{t-l..t}", f"{what}, and this one", units, parents=parents, equation=queue)
    due = Variable(
        "due",
        "(s, a, r, s')_{t-l}",
        "the round that moves the table now, -1 before the first",
        units,
        parents=("queue",),
        equation=lambda v: v["queue"][..., 0, :],
        outputs=lambda v: ("s", "a", "r", "s'"),
    )
    following = Variable(
        "next_waiting",
        "(s, a, r, s')_{t-l+1..t}",
        what,
        units,
        parents=("queue",),
        equation=lambda v: v["queue"][..., 1:, :],
    )
    changes = {
        "column": (("table", "due"), lambda v: columns_at(v["table"], _due(v["due"], "action", v["table"].shape[-1]))),
        "current_value": (
            ("column", "due"),
            lambda v: entries_at(v["column"], _due(v["due"], "state", v["column"].shape[-1])),
        ),
        "maximum": (
            ("table", "due"),
            lambda v: rows_at(v["table"], _due(v["due"], "next_state", v["table"].shape[-2])).max(-1),
        ),
        "td_error": (("due", "bootstrapped_value", "current_value"), td_error),
        "change": (("td_error", "due", "table"), change),
        "next_table": (("table", "due", "next_column"), next_table),
    }
    dropped = ("column_visited", "next_column_visited", "current_values")  # they are about the round, not what is due
    kept = [v for v in base.variables if v.key not in dropped]
    first = [v.key for v in kept].index("column")
    return base.varied(
        "late_q",
        "Q-learning, some rounds late",
        {"alpha": alpha, "gamma": gamma, "lag": lag},
        changes,
        variables=(*kept[:first], waiting, heard, due, *kept[first:], following),
        initial=lambda e: {**base.initial(e), "waiting": np.full((len(e), lag, len(_TRANSITION)), -1.0)},
    )


@checked
def stopped_q(alpha: float = 0.1, gamma: float = 0.9, last: int = 10) -> Algorithm:
    """Q-learning that learns from the first ``last`` rounds alone, and goes on choosing."""
    require(last >= 1, f"last must be an integer >= 1, got {last}")
    base = q_learning(alpha, gamma)

    def change(v: Values) -> _Array:
        moved = alpha * v["td_error"] * (v["elapsed"] < last)
        return np.asarray(moved[..., None] * np.eye(v["table"].shape[-2])[v["state"]])

    elapsed = Variable("elapsed", "t", "rounds before this one", "rounds", "state")
    following = Variable(
        "next_elapsed",
        "t + 1",
        "rounds, this one included",
        "rounds",
        parents=("elapsed",),
        equation=lambda v: v["elapsed"] + 1,
    )
    return base.varied(
        "stopped_q",
        "Q-learning that stops learning",
        {"alpha": alpha, "gamma": gamma, "last": last},
        {"change": (("td_error", "state", "table", "elapsed"), change)},
        variables=(elapsed, *base.variables, following),
        initial=lambda e: {**base.initial(e), "elapsed": np.zeros(len(e), np.int64)},
    )
