"""Rounds of a rollout run again in one batch, with the activations at some sites edited and others kept.

What interchange, moves and mediation are made of: each says which sites it edits, and how.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor

from interp.errors import require
from interp.interventions.sites import Site, write
from interp.model.layout import RoundLayout
from interp.model.run import Rollout
from interp.model.transformer import HookedLatentTransformer, RoundOutput

CHUNK = 8192
"""Rows (pair x round) that are run at once."""
Edit = Callable[[Tensor], Tensor]
"""A function from the activation at a site to its new value."""


class Rows(NamedTuple):
    """Rounds of many episodes in one batch, ``[row, ...]``."""

    tokens: Tensor
    latents: Tensor
    values: Tensor
    slots: Tensor

    @classmethod
    def of(cls, run: Rollout, rounds: Sequence[int]) -> Rows:
        """Some rounds of every episode: row ``e * len(rounds) + i`` is episode e at the i-th of them."""
        index = torch.tensor(list(rounds), device=run.tokens.device)
        return cls(*(x[:, index].flatten(0, 1) for x in (run.tokens, run.latents, run.values, run.slots)))

    def parts(self) -> Iterator[slice]:
        """At most :data:`CHUNK` rows at a time, in order."""
        return (slice(start, start + CHUNK) for start in range(0, len(self.tokens), CHUNK))

    def part(self, rows: slice) -> Rows:
        """Some of these rows."""
        return Rows(*(x[rows] for x in self))


def passed(
    model: HookedLatentTransformer,
    rows: Rows,
    layout: RoundLayout,
    edits: Sequence[tuple[Site, Edit]] = (),
    watched: Sequence[Site] = (),
) -> tuple[RoundOutput, dict[Site, Tensor]]:
    """Run rounds with the activations at some sites edited: what they give, and the activations at other sites.

    Raises:
        InputError: a site whose hook did not fire just once.
    """
    names = list(dict.fromkeys(site.hook for site in (*(site for site, _ in edits), *watched)))
    fired: Counter[str] = Counter()
    kept: dict[Site, Tensor] = {}

    def at(name: str, activation: Tensor, hook: object) -> Tensor:
        fired[name] += 1
        for site, edit in edits:
            if site.hook == name:
                activation = write(activation, site, layout, edit(site.read(activation, layout)))
        kept.update({site: site.read(activation, layout) for site in watched if site.hook == name})
        return activation

    with torch.no_grad(), model.hooks(fwd_hooks=[(name, partial(at, name)) for name in names]):
        out = model(rows.tokens, rows.latents, rows.values)
    for name in names:
        require(fired[name] == 1, f"the hook at {name!r} fired {fired[name]} times in one round, which must be once")
    return out, kept


def edited(
    model: HookedLatentTransformer,
    run: Rollout,
    rounds: Sequence[int],
    edits: Callable[[slice], Sequence[tuple[Site, Edit]]],
) -> tuple[Tensor, Tensor]:
    """Predictions ``[episode, round, ...]`` and next latents of rounds of a rollout whose activations are edited.

    Args:
        edits: of some rows (:class:`Rows` of these rounds), asked for one part after the other.
    """
    rows, predictions, latents = Rows.of(run, rounds), [], []
    for part in rows.parts():
        mine = rows.part(part)
        out, _ = passed(model, mine, run.layout, edits(part))
        predictions.append(out.prediction)
        latents.append(model.write(out.latents, out.update, mine.slots))
    shape = (run.n_episodes, len(rounds))
    return torch.cat(predictions).unflatten(0, shape), torch.cat(latents).unflatten(0, shape)
