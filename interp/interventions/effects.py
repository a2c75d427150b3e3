"""Effects of a swap while some sites are held: the sums of :mod:`interp.interventions.mediation`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
import torch
from jaxtyping import Float
from numpy.typing import NDArray
from torch import Tensor

from interp.interventions.passes import Rows, passed
from interp.interventions.places import Place
from interp.interventions.routes import Sites
from interp.model.layout import RoundLayout
from interp.model.run import Rollout
from interp.model.transformer import HookedLatentTransformer, RoundOutput

ROUNDING = 100
"""A total effect smaller than this counts as none; in units of the rounding of the outcome."""


Measure = Callable[[RoundOutput, Rows], Float[Tensor, "row value"]]
"""The outcome of each row as a vector."""


@dataclass(frozen=True)
class Effects:
    """Sums over outcomes of products of effects, row by row, for every set of sites that was held.

    Attributes:
        total: <TE, TE> ``[row]``.
        lost: <TE - DE, TE>, and brought: <IE, TE>, by set, ``[row]``.
        moved: the share of rows in which the swap changes some site of the set.
        is_null: the total effect is 0, but for rounding.
    """

    total: Float[np.ndarray, " row"]
    lost: dict[Sites, Float[np.ndarray, " row"]]
    brought: dict[Sites, Float[np.ndarray, " row"]]
    moved: dict[Sites, float]
    is_null: bool

    def shares(self, case: Sites) -> tuple[float, float]:
        """The shares (blocked, carried) over all rows; NaN where there is no effect, or no site."""
        if self.is_null or not case:
            return float("nan"), float("nan")
        return tuple(float(part[case].sum() / self.total.sum()) for part in (self.lost, self.brought))  # type: ignore


def effects(
    model: HookedLatentTransformer,
    runs: tuple[Rollout, Rollout],
    rounds: Sequence[int],
    causes: Sequence[Place],
    sets: Sequence[Sites],
    measure: Measure,
) -> Effects:
    """The effect of taking ``causes`` from the source, whole and with every set of sites held, in chunks of rows."""
    base, source = (Rows.of(run, rounds) for run in runs)
    chunks, size = [], 0.0
    for part in base.parts():
        mine, theirs = base.part(part), source.part(part)
        plain, products = _chunk(model, runs[0].layout, mine, theirs, causes, sets, measure)
        chunks.append(products)
        size = max(size, float(plain.abs().max()))
    total, lost, brought, moved = (np.concatenate(parts, -1) for parts in zip(*chunks, strict=True))
    rounding = ROUNDING * torch.finfo(runs[0].latents.dtype).eps * size
    return Effects(
        total,
        dict(zip(sets, lost, strict=True)),
        dict(zip(sets, brought, strict=True)),
        dict(zip(sets, map(float, moved.mean(-1)), strict=True)),
        bool(np.sqrt(total.mean()) <= rounding),
    )


def outcome_of(
    model: HookedLatentTransformer,
    layout: RoundLayout,
    outcome: str,
    decode: Callable[[Tensor], Tensor] | None,
    out: RoundOutput,
    rows: Rows,
) -> Float[Tensor, "row value"]:
    """The outcome of every row as one vector: "prediction", "state" (what is written into it) or "latents"."""
    if outcome == "prediction":
        return layout.distribution(out.prediction).double()
    latents = model.write(out.latents, out.update, rows.slots)
    if outcome == "state":
        latents = layout.written((decode or model.read_state)(latents), rows.slots)
    return latents.flatten(1).double()


def _chunk(
    model: HookedLatentTransformer,
    layout: RoundLayout,
    mine: Rows,
    theirs: Rows,
    causes: Sequence[Place],
    sets: Sequence[Sites],
    measure: Measure,
) -> tuple[Tensor, tuple[NDArray, NDArray, NDArray, NDArray]]:
    """The plain outcomes of some rows, and total ``[row]``, lost, brought and moved ``[set, row]``."""
    every = tuple(dict.fromkeys(site for case in sets for site in case))
    _, given = passed(model, theirs, layout, watched=[place.site for place in causes])
    swap = [(place.site, partial(taken, place, given[place.site])) for place in causes]
    out, before = passed(model, mine, layout, watched=every)
    plain = measure(out, mine)
    out, after = passed(model, mine, layout, swap, every)
    effect = measure(out, mine) - plain
    changed = {site: ~torch.isclose(after[site], before[site]).flatten(1).all(1).numpy(force=True) for site in every}
    lost, brought, moved = [], [], []
    for case in sets:
        frozen, alone = ([(site, partial(_held, values[site])) for site in case] for values in (before, after))
        direct = measure(passed(model, mine, layout, [*swap, *frozen])[0], mine) - plain
        indirect = measure(passed(model, mine, layout, alone)[0], mine) - plain
        lost.append(_product(effect - direct, effect))
        brought.append(_product(indirect, effect))
        moved.append(np.any([changed[site] for site in case], axis=0))
    return plain, (_product(effect, effect), np.stack(lost), np.stack(brought), np.stack(moved))


def taken(place: Place, given: Tensor, own: Tensor) -> Tensor:
    """An edit that gives a place its activation in the source run."""
    return place(own, given)


def _held(value: Tensor, own: Tensor) -> Tensor:
    """An edit that holds a site at a given value."""
    return value


def _product(x: Tensor, y: Tensor) -> Float[np.ndarray, " row"]:
    return np.asarray((x * y).sum(1).numpy(force=True))
