"""Round x round: intervene at round t, read at round t'.

The same site is patched at each of some rounds, one patch at a time, and the metric is read at that round and at every
later one, the effect running on through the latents. The diagonal is what a round's own prediction makes of it; below
it nothing can happen; how long a row stays lit is how long the model remembers what was patched.

All patches run together: at round t' every patch made so far is one more copy of the batch.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any, get_args

import numpy as np
import pandas as pd
import torch
from einops import rearrange
from jaxtyping import Float
from torch import Tensor

from interp.algorithm import Episodes
from interp.checks import checked
from interp.errors import require, unknown_name
from interp.interventions.metrics import Metric
from interp.interventions.metrics import metric as find_metric
from interp.interventions.pairs import Readout, prepare
from interp.interventions.patching import Direction
from interp.interventions.resume import RoundPatcher, activations, one_round, repeated
from interp.interventions.sites import Site, resolve
from interp.model.rollout import run_round
from interp.model.run import Rounds, select_rounds
from interp.model.transformer import HookedLatentTransformer
from interp.provenance import provenance
from interp.statistics import bootstrap_mean


@dataclass(frozen=True)
class RoundMap:
    """Effects of patching one site at some rounds, read at the same rounds.

    Attributes:
        site: the patched site.
        rounds: the rounds of both axes.
        effects: patched minus base, ``[patched round, read round, episode]``; NaN before the patch.
        gaps: source minus base, unpatched, ``[read round, episode]``.
        metric, direction: as in a sweep.
        settings: model, versions.
    """

    site: str
    rounds: tuple[int, ...]
    effects: Float[np.ndarray, "patched read episode"]
    gaps: Float[np.ndarray, "read episode"]
    metric: str
    direction: str
    settings: dict[str, Any] = field(default_factory=dict)

    @checked
    def grid(self, value: str = "effect") -> pd.DataFrame:
        """Mean effects, or fractions of the gap (NaN where the runs do not differ): rows patched, columns read."""
        require(value in ("effect", "fraction"), f"value must be 'effect' or 'fraction', got {value!r}")
        table = self.effects.mean(-1)
        if value == "fraction":
            gap = self.gaps.mean(-1)
            table = table / np.where(np.abs(gap) > 1e-12, gap, np.nan)
        return pd.DataFrame(table, index=list(self.rounds), columns=list(self.rounds))

    def to_frame(self, *, seed: int = 0) -> pd.DataFrame:
        """One row per (patched round, read round): effect with its 95 % interval over episodes, and the gap."""
        effects = rearrange(self.effects, "patched read episode -> episode patched read")
        mean, low, high = bootstrap_mean(effects, seed=seed)
        rows = [
            {
                "patched": t,
                "read": u,
                "effect": mean[i, j],
                "effect_low": low[i, j],
                "effect_high": high[i, j],
                "gap": self.gaps[j].mean(),
            }
            for i, t in enumerate(self.rounds)
            for j, u in enumerate(self.rounds)
            if u >= t
        ]
        return pd.DataFrame(rows).assign(site=self.site, metric=self.metric, direction=self.direction)


@checked
def round_map(
    model: HookedLatentTransformer,
    clean: Episodes,
    corrupted: Episodes,
    site: Site | str,
    *,
    rounds: Rounds = "all",
    metric: str | Metric = "logit_diff",
    direction: str = "denoising",
    commit: str = "own",
    done: Callable[[int], None] = lambda steps: None,
) -> RoundMap:
    """Patch ``site`` at each of ``rounds`` and read at each of them.

    Args:
        rounds: the rounds to patch at and to read at.
        metric: read per round; a regret is that round's loss.
        done: called with 1 after each round.

    Raises:
        InputError: unknown names, episodes that do not pair up, rounds out of range.
    """
    if direction not in get_args(Direction):
        raise unknown_name("direction", direction, get_args(Direction))
    measure = find_metric(metric)
    at_rounds = sorted(set(select_rounds(rounds, clean.n_rounds)))
    pair = prepare(model, clean, corrupted, at_rounds[0], at_rounds[-1], commit)
    place = resolve(site, model, pair.layout)
    base, other = (pair.corrupted, pair.clean) if direction == "denoising" else (pair.clean, pair.corrupted)
    n, latents = pair.n_episodes, torch.zeros(0)
    effects = np.full((len(at_rounds), len(at_rounds), n), np.nan)
    gaps = np.zeros((len(at_rounds), n))
    active = 0
    for t in range(at_rounds[0], at_rounds[-1] + 1):
        predictions: list[Tensor] = []
        after: list[Tensor] = []
        if active:
            with torch.no_grad():
                step = run_round(model, repeated(one_round(base, t), active), latents, base.layout, commit, ())
            predictions.append(step.prediction)
            after.append(step.latents)
        if t in at_rounds:
            patcher = RoundPatcher(model, base, t, activations(model, other, t, [place.hook]), update=True)
            (patched,) = patcher.cells([place])
            predictions.append(patched.predictions)
            after.append(patched.latents)
            active += 1
        latents = torch.cat(after)
        if t in at_rounds:
            column = at_rounds.index(t)
            at = replace(pair, round=t, read=t)
            sides = [measure.measure(at.readout(run), at) for run in (base, other)]
            values = measure.measure(_readout(torch.cat(predictions), latents, active), at)
            effects[:active, column] = (values - sides[0]).double().numpy(force=True)
            gaps[column] = (sides[1] - sides[0]).double().numpy(force=True)
        done(1)
    settings = provenance(model=model.config.name, digest=model.digest(), commit=commit, propagate=True)
    return RoundMap(str(place), tuple(at_rounds), effects, gaps, measure.key, direction, settings)


def _readout(predictions: Tensor, latents: Tensor, n: int) -> Readout:
    return Readout(predictions.unsqueeze(1).unflatten(0, (n, -1)), latents.unflatten(0, (n, -1)))
