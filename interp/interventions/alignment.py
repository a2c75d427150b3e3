"""Learn the subspace that carries a variable (distributed alignment search), always beside its controls.

TransformerLens' ``fit_das`` trains an orthonormal basis so that interchanging it makes the network output what the
algorithm predicts (Geiger et al., 2024). Such a method finds something in any network (Arora et al., 2024), so every
result holds, with the same pairs, rank and budget:

* ``arbitrary labels``: trained to give a fixed random outcome per source;
* ``untrained model``: trained on a re-initialised copy of the model, run through its own history;
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
    reinitialized,
)

from interp.errors import require
from interp.interventions.causal import CausalModel
from interp.interventions.sites import Site, resolve
from interp.model.bound import BoundRounds, bind
from interp.model.rollout import Rounds, rollout, select_rounds
from interp.model.transformer import HookedLatentTransformer
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
        settings: model, causal model, epochs, seed, versions.
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
    causal: CausalModel,
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
    untrained = reinitialized(model, seed)
    views = [_view(m, base, source, rounds, commit) for m in (model, untrained)]
    chosen = select_rounds(rounds, base.n_rounds)
    inputs = [{k: v[:, chosen] for k, v in causal.inputs(episodes).items()} for episodes in (base, source)]
    goal = torch.from_numpy(causal.prediction(causal.interchange(inputs[0], inputs[1], variable)).argmax(-1))
    plain = torch.from_numpy(causal.prediction(causal.run(inputs[0])).argmax(-1))
    arbitrary = arbitrary_targets([f"{i}" for i in range(goal.numel())], model.layout.n_outputs, seed).view_as(goal)
    split = slice(0, n_train * len(chosen)), slice(n_train * len(chosen), None)
    position = views[0].round_layout.position(str(place.position))
    options: dict[str, Any] = {"rank": rank, "epochs": epochs, "lr": lr, "seed": seed}
    hits: dict[str, np.ndarray] = {}
    trained: dict[str, float] = {}

    def score(view: BoundRounds, intervention: Intervention, targets: Tensor, part: slice) -> np.ndarray:
        ids, sources = (x[part] for x in view.tokens)
        at = torch.full((len(ids),), position)
        with torch.no_grad():
            acts = collect_activations(view, place.hook, sources, view.outcome_logits, positions=at)
            logits = intervened_logits(view, place.hook, intervention, ids, acts, view.outcome_logits, positions=at)
        return (logits.argmax(-1) == targets.flatten()[part].cpu()).double().numpy().reshape(-1, len(chosen))

    def fit(view: BoundRounds, targets: Tensor) -> SubspaceInterchange:
        ids, sources = (x[split[0]] for x in view.tokens)
        at = torch.full((len(ids),), position)
        wanted = targets.flatten()[split[0]]
        found = fit_das(
            view,
            place.hook,
            ids,
            sources,
            wanted,
            view.outcome_logits,
            base_positions=at,
            source_positions=at,
            **options,
        )
        return SubspaceInterchange(found.basis)

    learned = fit(views[0], goal)
    cases: dict[str, tuple[BoundRounds, Intervention, Tensor, bool]] = {
        "learned": (views[0], learned, goal, True),
        "arbitrary labels": (views[0], fit(views[0], arbitrary), arbitrary, True),
        "untrained model": (views[1], fit(views[1], goal), goal, True),
        "norm-matched random": (
            views[0],
            NormMatchedPlacebo(learned, random_basis(model.config.d_model, rank, seed)),
            goal,
            False,
        ),
        "nothing": (views[0], lambda own, _: own, goal, False),
    }
    for name, (view, intervention, targets, was_trained) in cases.items():
        hits[name] = score(view, intervention, targets, split[1])
        trained[name] = float(score(view, intervention, targets, split[0]).mean()) if was_trained else float("nan")
    assert isinstance(learned.basis, Tensor)
    return AlignmentResult(
        variable=variable,
        site=str(place),
        rank=rank,
        hits=hits,
        train_accuracy=trained,
        informative=(goal != plain).numpy()[n_train:],
        basis=learned.basis,
        settings=provenance(model=model.config.name, digest=model.digest(), causal=causal.key, **options),
    )


def _view(model: HookedLatentTransformer, base: Any, source: Any, rounds: Rounds, commit: str) -> BoundRounds:
    return bind(model, *(rollout(model, episodes, commit=commit) for episodes in (base, source)), rounds=rounds)
