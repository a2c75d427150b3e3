"""Learn the subspace that carries a variable (distributed alignment search), always beside its controls.

TransformerLens' ``fit_das`` trains an orthonormal basis so that interchanging it makes the network output what the
algorithm predicts (Geiger et al., 2024). Such a method finds something in any network (Arora et al., 2024), so every
result holds, with the same pairs, rank and budget:

* ``arbitrary labels``: trained to give a fixed random outcome per source;
* ``untrained model``: trained on a copy of the model with fresh weights, run through its own history;
* ``norm-matched random``: the learned displacement, in a random subspace;
* ``nothing``: no intervention.

Episodes are split: bases are trained on one part and scored on the other. A learned basis that beats all four carries
the variable for such pairs; it is not thereby the only one, nor the one the network would use on others.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pandas as pd
import torch
from torch import Tensor
from transformer_lens.tools.analysis.interchange import (
    NormMatchedPlacebo,
    SubspaceInterchange,
    arbitrary_targets,
    collect_activations,
    fit_das,
    intervened_logits,
    random_basis,
)

from interp.algorithm import Algorithm
from interp.errors import require
from interp.interventions.interchange import of_rounds
from interp.interventions.sites import Site, resolve
from interp.model.bound import BoundRounds, bind
from interp.model.rollout import Rounds, rollout, select_rounds
from interp.model.transformer import HookedLatentTransformer
from interp.model.untrained import untrained
from interp.provenance import provenance
from interp.statistics import bootstrap_mean

Intervention = Callable[[Tensor, Tensor], Tensor]


@dataclass(frozen=True)
class AlignmentResult:
    """Interchange accuracy of a learned basis and of its controls, on held-out episodes.

    Attributes:
        variable, site, rank: what was aligned, and where.
        hits: condition -> was each held-out pair's outcome its target, ``[episode, round]``.
        train_accuracy: condition -> accuracy on the pairs it was trained on; NaN for those not trained.
        informative: does the counterfactual differ from the algorithm's outcome on the base, ``[episode, round]``.
        basis: the learned basis, ``[d, rank]``.
        settings: model, algorithm, epochs, seed, versions.
    """

    variable: str
    site: str
    rank: int
    hits: dict[str, np.ndarray]
    train_accuracy: dict[str, float]
    informative: np.ndarray
    basis: Tensor
    settings: dict[str, Any] = field(default_factory=dict)

    def accuracy(self, condition: str = "learned", informative: bool = True) -> float:
        """Held-out accuracy, over informative pairs or over all."""
        hits = self.hits[condition]
        return float(hits[self.informative].mean() if informative else hits.mean())

    def to_frame(self) -> pd.DataFrame:
        """One row per condition: held-out accuracy with its interval over episodes, and on informative pairs."""
        rows = []
        for condition, hits in self.hits.items():
            mean, low, high = bootstrap_mean(hits.mean(1))
            rows.append(
                {
                    "variable": self.variable,
                    "site": self.site,
                    "rank": self.rank,
                    "condition": condition,
                    "iia": float(mean),
                    "low": float(low),
                    "high": float(high),
                    # An arbitrary label is no counterfactual: no pair of it is informative.
                    "iia_informative": self.accuracy(condition) if condition != "arbitrary labels" else float("nan"),
                    "train_accuracy": self.train_accuracy[condition],
                    "n_informative": int(self.informative.sum()),
                }
            )
        return pd.DataFrame(rows)


def align(
    model: HookedLatentTransformer,
    base: Any,
    source: Any,
    algorithm: Algorithm,
    variable: str,
    site: Site | str,
    *,
    rank: int,
    rounds: Rounds = "all",
    held_out: float = 0.5,
    epochs: int = 20,
    lr: float = 1e-2,
    commit: str = "own",
    seed: int = 0,
) -> AlignmentResult:
    """Learn a basis of ``rank`` directions at ``site`` for ``variable``, from predictions, with its controls.

    Args:
        base, source: episodes that pair up; the last ``held_out`` share of them scores, the rest trains.
        variable: key of a variable of the algorithm.
        site: a residual-stream site with a position, such as "resid_post[1]@p?".
        rounds: the rounds at which pairs are made.

    Raises:
        InputError: unknown names, a site without a position, fewer than 2 episodes.
    """
    n = len(base)
    n_train = n - max(1, round(held_out * n))
    require(0.0 < held_out < 1.0 and n_train >= 1, f"held_out {held_out} of {n} episodes leaves none to train or score")
    place = resolve(site, model, model.layout.fit(base))
    require(
        place.position is not None and place.kind.axes == "pos",
        f"aligning needs one vector: a site of the residual stream with a position, got {str(place)!r}",
    )
    at = select_rounds(rounds, base.n_rounds)
    own, other = (of_rounds(algorithm, episodes, at) for episodes in (base, source))
    goal = torch.from_numpy(algorithm.distribution(algorithm.interchange(own, other, variable)).argmax(-1))
    plain = torch.from_numpy(algorithm.distribution(own).argmax(-1))
    arbitrary = arbitrary_targets([f"{i}" for i in range(goal.numel())], model.layout.n_outputs, seed).view_as(goal)
    trained, fresh = (_Pairs(m, base, source, at, commit, place, n_train) for m in (model, untrained(model, seed)))
    options: dict[str, Any] = {"rank": rank, "epochs": epochs, "lr": lr, "seed": seed}
    learned = trained.fit(goal, **options)
    placebo = NormMatchedPlacebo(learned, random_basis(model.config.d_model, rank, seed))
    cases: dict[str, tuple[_Pairs, Intervention, Tensor]] = {
        "learned": (trained, learned, goal),
        "arbitrary labels": (trained, trained.fit(arbitrary, **options), arbitrary),
        "untrained model": (fresh, fresh.fit(goal, **options), goal),
        "norm-matched random": (trained, placebo, goal),
        "nothing": (trained, lambda own, _: own, goal),
    }
    fitted = [name for name, (_, intervention, _) in cases.items() if isinstance(intervention, SubspaceInterchange)]
    train_accuracy = {
        name: float(pairs.hits(intervention, targets, training=True).mean()) if name in fitted else float("nan")
        for name, (pairs, intervention, targets) in cases.items()
    }
    assert isinstance(learned.basis, Tensor)
    return AlignmentResult(
        variable=variable,
        site=str(place),
        rank=rank,
        hits={name: pairs.hits(intervention, targets) for name, (pairs, intervention, targets) in cases.items()},
        train_accuracy=train_accuracy,
        informative=(goal != plain).numpy()[n_train:],
        basis=learned.basis,
        settings=provenance(model=model.config.name, digest=model.digest(), algorithm=algorithm.key, **options),
    )


class _Pairs:
    """A model's rounds of base and source at one site, split into episodes that train and episodes that score."""

    def __init__(
        self, model: HookedLatentTransformer, base: Any, source: Any, rounds: list[int], commit: str, site: Site, n: int
    ) -> None:
        runs = [rollout(model, episodes, commit=commit) for episodes in (base, source)]
        self.view: BoundRounds = bind(model, *runs, rounds=rounds)
        self.n_rounds, self.n_train = len(rounds), n * len(rounds)
        self.hook, self.position = site.hook, self.view.round_layout.position(str(site.position))

    def _part(self, training: bool) -> tuple[slice, Tensor, Tensor, Tensor]:
        """Rows of one part of the split, tokens of base and source there, and the position in each row."""
        rows = slice(0, self.n_train) if training else slice(self.n_train, None)
        ids, sources = (tokens[rows] for tokens in self.view.tokens)
        return rows, ids, sources, torch.full((len(ids),), self.position)

    def fit(self, targets: Tensor, **options: Any) -> SubspaceInterchange:
        """The basis whose interchange makes the model choose ``targets [episode, round]``, on the training part."""
        rows, ids, sources, at = self._part(training=True)
        wanted, logits = targets.flatten()[rows], self.view.outcome_logits
        fitted = fit_das(
            self.view, self.hook, ids, sources, wanted, logits, base_positions=at, source_positions=at, **options
        )
        return SubspaceInterchange(fitted.basis)

    def hits(self, intervention: Intervention, targets: Tensor, training: bool = False) -> np.ndarray:
        """Whether the choice is the target, ``[episode, round]``, on one part."""
        rows, ids, sources, at = self._part(training)
        view, outcomes = self.view, self.view.outcome_logits
        with torch.no_grad():
            activations = collect_activations(view, self.hook, sources, outcomes, positions=at)
            logits = intervened_logits(view, self.hook, intervention, ids, activations, outcomes, positions=at)
        return (logits.argmax(-1) == targets.flatten()[rows].cpu()).double().numpy().reshape(-1, self.n_rounds)
