"""The claim of the paper's theorems about time: one set of weights serves every horizon (sections 3 and 4).

Neither the width d nor a weight depends on the number of rounds T. The same compiled model runs for a short and for a
long horizon; not one weight may have changed, and the state that it carries may miss the algorithm's by no more than a
sum of T terms loses to rounding::

    largest error of the state, relative to the largest value of it, <= T eps

with eps the distance from 1 to the next number of the dtype: each of T additions may round by eps / 2 of its result,
in the model and in the algorithm. An error that attention makes, and that each round makes again (a share of the state
that is lost, a copy that leaks in), grows beyond that: a state that loses 3e-15 of itself a round fails here, and
passes every other check of 100 rounds. Measured at T = 2,000 in units of the bound: 0 in float64 for Weighted Majority
(.05 in float32 with log gamma = ln 1.5), at most .002 for Q-learning of 2 states and actions.

Scope: hard and linear heads in axis-aligned coordinates, where a circuit is exact. Softmax forms and rotated bases miss
a part every round, as their own tolerances say; they have no such row. NOT evidence beyond the horizon that was run.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from circuits.circuit import Circuit, Size, VerificationPlan
from circuits.compiler import compile_circuit
from circuits.exactness import CARRIED, Check, carried_by
from interp.model.rollout import rollout

SHORT, FACTOR = 10, 2
"""The short horizon, and how many times the rounds of a verification the long one has: 10 and 2,000 by default."""
_EPISODES = 2


def applies(circuit: Circuit) -> bool:
    """Whether a circuit is exact up to rounding, so that its error may not grow with time."""
    arguments = circuit.arguments
    one_hot = arguments.get("positions", "one-hot") == "one-hot"
    return arguments.get("eta") is None and circuit.basis.rotation is None and one_hot


def check_horizon(
    circuit: Circuit,
    size: Size,
    dtype: str,
    plan: VerificationPlan,
    n_rounds: int,
    seed: int = 0,
    device: str | torch.device = "cpu",
    model: Any = None,
) -> list[Check]:
    """The error of the state after a short and a long horizon, by the same weights: two checks, or none.

    ``model`` runs in place of the compiled circuit. The long horizon has ``FACTOR`` times ``n_rounds`` rounds, or as
    many as the plan runs where more would repeat the same. A weight that changed counts as an infinite error.
    """
    if not applies(circuit):
        return []
    model = (compile_circuit(circuit, getattr(torch, dtype)) if model is None else model).to(device)
    built, checks = model.digest(), []
    for horizon in (min(SHORT, n_rounds), FACTOR * n_rounds):
        episodes = plan.episodes(circuit, horizon, _EPISODES, seed)
        values = circuit.algorithm.run(episodes)
        truth = carried_by(circuit.algorithm, values)
        run = rollout(model, episodes)
        state = model.read_state(run.latents).double().numpy(force=True).reshape(truth.shape)
        error = float(np.nan_to_num(np.abs(state - truth), nan=np.inf).max())
        largest = max(plan.unit(circuit, values, CARRIED), float(np.abs(truth).max()))
        if model.digest() != built:
            error = np.inf
        where = f"latents after {episodes.n_rounds:,} rounds, d_model {model.config.d_model}"
        rounding = episodes.n_rounds * float(np.finfo(dtype).eps)
        checks.append(Check(size, dtype, "horizon", where, error, error / largest, rounding, "relative"))
    return checks
