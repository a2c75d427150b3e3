"""What is true of a trained subject, measured on episodes that trained nothing: the tables of its README.

A tie is worth what its interchange accuracy is (IIA): over pairs in which setting the variable changes
the algorithm's choice, in this round or one of the next, how often does the model choose what the algorithm then
chooses? Pairs in which the algorithm's two best outcomes are all but equally likely count nowhere. What must not matter
is worth the share of choices that stay as they were.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
import pandas as pd
import torch
from jaxtyping import Float
from torch import Tensor

from interp.interventions.sites import head_address
from interp.model.transformer import HookedLatentTransformer
from interp.stats.intervals import ratio_interval
from lab import tying
from lab.recipes import Recipe, batch_of
from lab.tying import Batch, Pairs, Tie

_MARGIN = 1e-3
"""A choice is a tie where the two best outcomes differ by less than this probability."""


@dataclass(frozen=True)
class _Exam:
    """Held-out pairs of rounds with what the model and the algorithm give without an intervention."""

    recipe: Recipe
    model: HookedLatentTransformer
    batch: Batch
    pairs: Pairs

    @cached_property
    def before(self) -> Float[np.ndarray, "pair step outcome"]:
        """The algorithm's distributions as they are."""
        return self.wanted(None, np.ones((len(self.pairs.base), 1), bool))

    @cached_property
    def plain(self) -> Float[np.ndarray, "pair step outcome"]:
        """The model's distributions as they are."""
        return self.predicted({})

    def wanted(self, tie: Tie | None, chosen: np.ndarray) -> Float[np.ndarray, "pair step outcome"]:
        """The algorithm's distributions with the chosen elements set; as they are without a tie."""
        recipe = self.recipe
        return tying.counterfactual(
            recipe.algorithm, self.batch.values, self.pairs, tie, chosen, recipe.horizon
        )

    def predicted(
        self, projections: Mapping[str, Tensor | None]
    ) -> Float[np.ndarray, "pair step outcome"]:
        """The model's distributions under an intervention."""
        with torch.no_grad():
            scores = tying.swapped(
                self.model, self.batch, self.pairs, projections, self.recipe.horizon
            )
        return tying.distribution(self.model, scores).double().numpy()


def measure(
    recipe: Recipe,
    model: HookedLatentTransformer,
    seed: int,
    n_episodes: int = 500,
    episodes_seed: int = 10**6,
) -> pd.DataFrame:
    """A row for each tie, each rest of a tied site, the idle heads together, and every head on its own.

    Args:
        seed: that the model was trained with: of its tied directions.
        episodes_seed: of the held-out episodes and pairs.

    Returns:
        ``what``, ``kind`` ("tie", "one element", "rest", "idle", "head"), ``iia`` with ``low`` and ``high``, ``chance``
        (of doing nothing), ``n`` pairs and rounds that count, and ``kl`` of predictions in nats over all of them. For
        everything but ties ``iia`` is the share of choices that stay.
    """
    exam = _exam(recipe, model, n_episodes, episodes_seed)
    basis = tying.bases(recipe.ties, recipe.d_model, recipe.d_head, seed)
    rng = np.random.default_rng(episodes_seed)
    every = np.ones((n_episodes, 1), bool)
    rows = [_row(exam, "predictions", "task", {}, None, every)]
    for tie in recipe.ties:
        name = f"{tie.variable} @ {' + '.join(tie.holds)}"
        whole = np.ones((n_episodes, len(tie.elements)), bool)
        one = np.eye(len(tie.elements), dtype=bool)[
            rng.integers(len(tie.elements), size=n_episodes)
        ]
        rows.append(_row(exam, name, "tie", tying.inside(tie, basis, whole), tie, whole))
        rows.append(_row(exam, name, "one element", tying.inside(tie, basis, one), tie, one))
        rows.append(_row(exam, name, "rest", tying.outside(tie, basis), None, whole))
    idle: dict[str, Tensor | None] = dict.fromkeys(recipe.unused)
    rows.append(_row(exam, " ".join(idle), "idle", idle, None, every))
    for layer in range(recipe.n_layers):
        for head in range(recipe.n_heads):
            name = head_address(layer, head)
            rows.append(_row(exam, name, "head", {name: None}, None, every))
    return pd.DataFrame(rows)


def _exam(recipe: Recipe, model: HookedLatentTransformer, n_episodes: int, seed: int) -> _Exam:
    batch = batch_of(recipe, model, n_episodes, seed)
    with torch.no_grad():
        _, latents = tying.forward(model, batch.rounds, batch.layout)
    pairs = Pairs.drawn(n_episodes, recipe.n_rounds, recipe.horizon, np.random.default_rng(seed))
    return _Exam(recipe, model, replace(batch, latents=latents), pairs)


def _row(
    exam: _Exam,
    what: str,
    kind: str,
    projections: Mapping[str, Tensor | None],
    tie: Tie | None,
    chosen: np.ndarray,
) -> dict[str, Any]:
    before, plain, predicted = exam.before, exam.plain, exam.predicted(projections)
    wanted = before if tie is None else exam.wanted(tie, chosen)
    decided = _margin(wanted) > _MARGIN
    counted = (
        decided & (_margin(before) > _MARGIN) & (_choice(wanted) != _choice(before))
        if tie
        else decided
    )
    hits = _choice(predicted) == _choice(wanted)
    iia = ratio_interval((hits & counted).sum(1), counted.sum(1))
    divergence = (
        np.where(
            wanted > 0,
            wanted * np.log(np.maximum(wanted, 1e-300) / np.maximum(predicted, 1e-9)),
            0.0,
        )
    ).sum(-1)
    return {
        "what": what,
        "kind": kind,
        "iia": iia.estimate,
        "low": iia.low,
        "high": iia.high,
        "chance": float((_choice(plain) == _choice(wanted))[counted].mean()),
        "n": int(counted.sum()),
        "kl": float(divergence.mean()),
    }


def _choice(p: np.ndarray) -> np.ndarray:
    return p.argmax(-1)


def _margin(p: np.ndarray) -> np.ndarray:
    ordered = np.sort(p, -1)
    return ordered[..., -1] - ordered[..., -2]
