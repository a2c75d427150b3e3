"""The numbers that training watches: held-out loss, and its excess over the best that the information allows.

They have no intervals: they show progress. What a model is worth is measured by ``interp.evaluation`` on fresh
episodes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from scipy import special
from torch import Tensor

from interp import catalog
from interp.algorithm import Episodes
from interp.model.rollout import rollout
from interp.model.transformer import HookedLatentTransformer
from interp.training.goal import goal_of


def evaluate(model: HookedLatentTransformer, batches: Sequence[Episodes], commit: str) -> dict[str, float]:
    """Means over episodes and rounds, averaged over the batches: what the task's goal watches.

    Returns:
        ``excess``, the loss above the best that is possible, and whatever else the goal's ``evaluate`` gives; without
        one, ``cross_entropy`` from the targets and its ``excess`` over their entropy.
    """
    goal = goal_of(catalog.of(model))
    was_training = model.training
    model.eval()
    parts: list[Mapping[str, float]] = []
    for episodes in batches:
        run = rollout(model, episodes, commit=commit)
        predictions = run.predictions.double()
        if goal.evaluate is None:
            parts.append(_cross_entropy(run.layout.distribution(predictions), goal.targets(episodes)))
        else:
            parts.append(goal.evaluate(predictions.numpy(force=True), episodes))
    model.train(was_training)
    return {name: float(np.mean([part[name] for part in parts])) for name in parts[0]}


def _cross_entropy(distribution: Tensor, targets: np.ndarray) -> dict[str, float]:
    tiny = np.finfo(np.float64).tiny
    loss = -(targets * np.log(np.maximum(distribution.numpy(force=True), tiny))).sum(-1).mean()
    return {"cross_entropy": float(loss), "excess": float(loss - special.entr(targets).sum(-1).mean())}
