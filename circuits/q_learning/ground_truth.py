"""Ground truth of the Q-learning circuit: where each variable of its algorithm lives, which part reads
what, and what verification compares.

The algorithm is :func:`interp.tasks.qlearning.algorithms.q_learning` from an empty table; its choice is
``argmax_a (Q_t(s', a) - tau a)``, or the Boltzmann policy of Q_t. In "lin" single values become rows and columns of Q,
because its heads read whole rows: Q(s_t, a_t) is an entry of the row at r, the maximum one of the column at Select.

``circuit.ground_truth()`` lists the locations; states and actions are one-hot. Scores of heads 4.1 and 4.3 hold single
values in "lin" with exact heads only. The TD error is held as it is added, times alpha, and in "softmlp" also as
it is fetched before; ``change`` is what is added, in the row of s_t. ``edges.csv`` says which part reads what.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from circuits.circuit import Circuit, VerificationPlan
from interp.algorithm import Algorithm, Values
from interp.checks import checked
from interp.errors import InputError, require
from interp.tasks import mdp
from interp.tasks.qlearning import algorithms, tabular
from interp.tasks.qlearning.episodes import MDPEpisodes, MDPs


@checked
def value_bound(rewards: Sequence[float], gamma: float) -> float:
    """M: the smallest power of two that is at least ``max |r| / (1 - gamma)``, hence bounds |Q|; 1 for no reward.

    >>> value_bound((0.0, 1.0), 0.9)
    16.0
    """
    message = f"rewards must be (lowest, highest), two finite numbers in order, got {rewards!r}"
    try:
        values = [float(reward) for reward in rewards]
    except (TypeError, ValueError):
        raise InputError(message) from None
    require(len(values) == 2 and all(map(math.isfinite, values)) and values[0] <= values[1], message)
    largest = max(map(abs, values)) / (1 - gamma)
    return 2.0 ** math.ceil(math.log2(largest)) if largest > 0 else 1.0


def algorithm(**parameters: Any) -> Algorithm:
    """Q-learning as the circuit runs it: from a table of zeros, whatever table the episodes began with."""
    made = algorithms.q_learning(**parameters)
    return replace(made, initial=lambda of: {key: np.zeros_like(start) for key, start in made.initial(of).items()})


_KINDS = ("grid", "deterministic", "sparse")
_TIE_WIDTH = 1e-5
"""Values closer than this share of the largest are ties that float32 does not decide."""
_HARD = 1e4
"""A softmax of more than this inverse temperature is meant as a maximum; of less, as a policy, compared as it is."""


def _episodes(circuit: Circuit, n_rounds: int, n_episodes: int, seed: int) -> MDPEpisodes:
    """Equal shares of the grid, of deterministic transitions and of sparse rewards, in the circuit's range."""
    size = circuit.arguments["n_states"], circuit.arguments["n_actions"]
    shares = [len(range(k, n_episodes, len(_KINDS))) for k in range(len(_KINDS))]
    parts = [
        mdp.sample_mdps(share, *size, seed=seed, regime=kind)
        for share, kind in zip(shares, _KINDS, strict=True)
        if share
    ]
    low, high = circuit.arguments["rewards"]
    rewards = np.concatenate([part.rewards for part in parts])
    mdps = MDPs(np.concatenate([part.transitions for part in parts]), low + (high - low) * rewards)
    rates = {name: circuit.arguments[name] for name in ("alpha", "gamma")}
    return tabular.run(tabular.QLearner(epsilon=0.5, **rates), mdps, n_rounds, seed)


def _scale(values: Values) -> float:
    """The largest value or reward of a run: what rounding is proportional to."""
    largest = max(float(np.abs(values[key]).max()) for key in ("next_table", "reward"))
    return largest if largest > 0 else 1.0


def _unit(circuit: Circuit, values: Values, key: str) -> float:
    """Values and rewards count against the largest of them, one-hot variables and probabilities against 1.

    The neurons add M to values and take it away, and M grows with 1 / (1 - gamma) before values do: where they are
    far below it, they count against M / 16, which is the largest reward at gamma .9.
    """
    if key != "carried_state" and circuit.algorithm.variable(key).units != "reward":
        return 1.0
    return max(_scale(values), value_bound(circuit.arguments["rewards"], circuit.arguments["gamma"]) / 16)


def _undecided(circuit: Circuit, values: Values, dtype: str) -> dict[str, np.ndarray]:
    """Choices that rounding can turn: the two best of Q(s', a) - tau a closer than it, but for rows that are all zero.

    In float64 the slope exceeds rounding, so that exact ties are decided; in float32 errors add up to more than it.
    Where a softmax of inverse temperature ``hardness`` chooses, it decides what is 40 of its units apart.
    """
    worth = values["next_values"]
    if circuit.arguments["beta"] is not None or worth.shape[-1] == 1:
        return {}
    slope = circuit.algorithm.parameters["tie_slope"]
    best = np.sort(worth - slope * np.arange(worth.shape[-1]), axis=-1)
    width = slope / 4 if dtype == "float64" else _TIE_WIDTH * _scale(values)
    if circuit.arguments["eta"] is not None and circuit.arguments["hardness"] > _HARD:
        width = max(width, 40.0 / circuit.arguments["hardness"])
    close = (best[..., -1] - best[..., -2] < width) & worth.any(-1)
    found = {key: close for key in ("policy", "best_column") if key in circuit.sites}
    if "noise" in values:
        found["policy"] = close & (values["noise"] == 0)
    return found


def _soft(circuit: Circuit, values: Values, key: str) -> tuple[float, str]:
    """What softmax heads leave: each round each layer copies the table and lets a share of it through elsewhere.

    Neurons hold values beside M, the largest possible one, of which relative errors count a sixteenth or more. Pairs
    miss a temporal difference by a cubic term and by the rounding of their logits, which comes back through the
    bootstrapped value, 1 / (1 - gamma) times, and so does what a soft maximum misses, (actions - 1) / (e hardness).
    """
    lost = circuit.leak
    if not lost:
        return 0.0, ""
    n, rounds, layers = len(circuit.layout.labels), values["next_table"].shape[1], circuit.n_layers
    once, why = layers * n * lost, f"{layers} layers x {n} positions x e^(-eta/2)"
    if key == "position_code":
        return 0.0, ""
    if key not in ("carried_state", "residue") and circuit.algorithm.variable(key).units != "reward":
        return once, why
    total, why = 16 * rounds * once, f"16 x {rounds} rounds x {why}"
    if circuit.arguments["variant"] == "softmlp":
        missed = (circuit.arguments["n_actions"] - 1) / (np.e * circuit.arguments["hardness"])
        why = f"{why} + (actions - 1) / (e hardness) / (1 - gamma)"
    else:
        missed = float(circuit.pair_error(np.asarray(_scale(values))))
        why = f"{why} + (epsilon^2 x^3 / 6 + rounding / epsilon) / (1 - gamma)"
    return total + missed / (1 - circuit.arguments["gamma"]) / _unit(circuit, values, "carried_state"), why


PLAN = VerificationPlan(
    sizes=tuple((n_states, n_actions) for n_states in (2, 4, 8, 16) for n_actions in (2, 3, 4, 8)),
    episodes=_episodes,
    output="policy",
    tolerance=lambda key, dtype: (1e-11 if dtype == "float64" else 2e-5, "relative"),
    undecided=_undecided,
    unit=_unit,
    soft=_soft,
)
"""How :func:`circuits.verify` checks this machine."""
