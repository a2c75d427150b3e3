"""Where does an effect travel? The share that each activation of the residual stream carries by itself.

A cause is swapped from the source's round into the base's, and everything else is run again. The residual stream after
each layer, at one position, is then set in the base alone to what it became::

    share(layer, position) = sum <what this does to the outcome, the whole effect> / sum |the whole effect|^2

1 is the whole effect; a copy that is not read gives 0, and two activations that say the same give both the whole. Read
by layers, it says where a cause arrives, and in which layer two causes meet. It is the carried share of
:func:`interp.interventions.mediation.mediate` for every such site, in one batch a layer.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
import pandas as pd
import torch
from jaxtyping import Float
from torch import Tensor

from interp.checks import checked
from interp.errors import require
from interp.interventions.effects import outcome_of, taken
from interp.interventions.passes import CHUNK, Rows, passed
from interp.interventions.places import Place, resolve_places
from interp.interventions.resume import tile
from interp.interventions.routes import Routes
from interp.interventions.sites import Site
from interp.model.rollout import rollout
from interp.model.run import Rollout, Rounds, select_rounds
from interp.model.transformer import HookedLatentTransformer
from interp.provenance import provenance

__all__ = ["EffectMap", "effect_map"]


@dataclass(frozen=True)
class EffectMap:
    """How much of an effect each activation of the residual stream carries by itself.

    Attributes:
        cause, outcome: what is swapped, and what is read: "prediction", "state" or "latents".
        layers: after which the residual stream is read, counted from 0.
        positions: labels.
        shares: of the effect; NaN where no effect can pass.
        n_pairs: base rounds with their source's.
        settings: model, rounds, versions.
    """

    cause: tuple[str, ...]
    outcome: str
    layers: tuple[int, ...]
    positions: tuple[str, ...]
    shares: Float[np.ndarray, "layer position"] = field(repr=False)
    n_pairs: int
    settings: dict[str, Any] = field(default_factory=dict)

    def to_frame(self) -> pd.DataFrame:
        """One row a layer, one column a position."""
        return pd.DataFrame(self.shares, index=pd.Index(self.layers, name="layer"), columns=list(self.positions))


@checked
def effect_map(
    model: HookedLatentTransformer,
    base: Any,
    source: Any,
    cause: Place | Site | str | Sequence[Place | Site | str],
    *,
    outcome: str = "prediction",
    rounds: Rounds = "all",
    decode: Callable[[Tensor], Tensor] | None = None,
    runs: tuple[Rollout, Rollout] | None = None,
) -> EffectMap:
    """The share of the effect of ``cause`` that the residual stream carries, layer by position.

    Args:
        base, source: episodes of the same sizes that pair up; each is run through its own history.
        cause, outcome, rounds, decode, runs: as in :func:`interp.interventions.mediation.mediate`.

    Raises:
        InputError: unknown names, episodes that do not pair up, a state that cannot be read.

    Example:
        >>> import interp
        >>> model = interp.load("wma-handwired", n_experts=2)
        >>> pair = (interp.tasks.of(model).sample(8, 6, n_experts=2, seed=seed) for seed in (0, 1))
        >>> effect_map(model, *pair, "latent").to_frame()["p?"].round(6).tolist()
        [0.0, 1.0, 1.0]
    """
    require(
        outcome != "state" or decode is not None or model.is_handwired,
        f"{model.config.name!r} is a learned model: its state has no exact readout; give decode=, a fitted "
        "interp.decoder.Decoder, or ask for outcome='latents'",
    )
    runs = runs or (rollout(model.eval(), base), rollout(model, source))
    require(
        runs[0].tokens.shape == runs[1].tokens.shape,
        f"base and source must pair up, got {tuple(runs[0].tokens.shape)} and {tuple(runs[1].tokens.shape)}",
    )
    at, layout = select_rounds(rounds, runs[0].n_rounds), runs[0].layout
    causes = resolve_places(cause, model, runs[0])
    routes = Routes(model, layout, [place.site for place in causes], prediction=outcome == "prediction")
    mine, theirs = (Rows.of(run, at) for run in runs)
    measure = partial(outcome_of, model, layout, outcome, decode)
    _, given = passed(model, theirs, layout, watched=[place.site for place in causes])
    streams = [Site("resid_post", layer, None, None) for layer in range(model.config.n_layers)]
    swap = [(place.site, partial(taken, place, given[place.site])) for place in causes]
    plain = measure(passed(model, mine, layout)[0], mine)
    out, after = passed(model, mine, layout, swap, streams)
    effect = measure(out, mine) - plain
    total = float((effect**2).sum())
    shares = np.full((len(streams), layout.n_positions), np.nan)
    for layer, stream in enumerate(streams if total > 0 else ()):
        between = [
            p for p, label in enumerate(layout.labels) if routes.is_between(Site("resid_post", layer, None, label))
        ]
        step = max(CHUNK // len(mine.tokens), 1)
        for some in (between[i : i + step] for i in range(0, len(between), step)):
            many = Rows(*(tile(x, len(some)) for x in mine))
            edit = partial(_alone, after[stream], some)
            moved = (
                measure(passed(model, many, layout, [(stream, edit)])[0], many).unflatten(0, (len(some), -1)) - plain
            )
            shares[layer, some] = (moved * effect).sum((1, 2)).numpy(force=True) / total
    settings = provenance(model=model.config.name, digest=model.digest(), rounds=at, decoded=decode is not None)
    layers = tuple(range(len(streams)))
    return EffectMap(tuple(map(str, causes)), outcome, layers, layout.labels, shares, len(mine.tokens), settings)


def _alone(
    after: Float[Tensor, "row pos d_model"], positions: Sequence[int], own: Float[Tensor, "rows pos d_model"]
) -> Float[Tensor, "rows pos d_model"]:
    """In the i-th copy of the rows, the i-th of the positions as it became, and the others as they are."""
    copies = own.unflatten(0, (len(positions), -1)).clone()
    index = torch.arange(len(positions))
    copies[index, :, list(positions)] = after[:, list(positions)].transpose(0, 1)
    return copies.flatten(0, 1)
