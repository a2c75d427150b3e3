"""Q-learning with a lapse: it learns late, or stops.

    late_q       Q(s, a) is moved by a round ``lag`` rounds after it, with the table of then
    stopped_q    Q(s, a) is moved by the first ``last`` rounds alone: a change point

Both are Q-learning exactly where the lapse is none: no lag, an end after the last round.
"""

from dataclasses import replace

from interp.algorithm import Algorithm
from interp.lapses import late, stopped
from interp.tasks.qlearning.algorithms import q_learning


def late_q(alpha: float = 0.1, gamma: float = 0.9, lag: int = 1) -> Algorithm:
    """Q-learning in which the table is moved by a round ``lag`` rounds late; it chooses by the table that it has."""
    return late(_plain(alpha, gamma), lag, "late_q")


def stopped_q(alpha: float = 0.1, gamma: float = 0.9, last: float = 10) -> Algorithm:
    """Q-learning that learns from the first ``last`` rounds alone, and goes on choosing."""
    return stopped(_plain(alpha, gamma), last, "stopped_q")


def _plain(alpha: float, gamma: float) -> Algorithm:
    return replace(q_learning(alpha, gamma), name="Q-learning", parameters={"alpha": alpha, "gamma": gamma})
