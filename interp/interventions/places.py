"""Places: sites with a subspace each, and rounds that are run with these places taken from another run.

>>> place = Place.of("resid_pre[1]@p?", [[1.0, 0, 0, 0], [1.0, 1, 0, 0]])     # the span of two directions
>>> str(place)
'resid_pre[1]@p? (rank 2)'
>>> own, source = torch.zeros(1, 4).double(), torch.tensor([[1.0, 2, 3, 4]]).double()
>>> place(own, source).round(decimals=6).tolist()
[[1.0, 2.0, 0.0, 0.0]]
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial

import torch
from numpy.typing import ArrayLike
from torch import Tensor

from interp.checks import array_of, checked, integer, non_empty
from interp.errors import require
from interp.interventions.passes import Edit, Rows, edited, passed
from interp.interventions.sites import Site, resolve
from interp.model.run import Rollout
from interp.model.transformer import HookedLatentTransformer


@dataclass(frozen=True)
class Place:
    """A site, and the subspace of its activation that is interchanged.

    Attributes:
        site: where.
        basis: orthonormal ``[d, rank]``; the whole activation when None.
        elsewhere: a control: the activation moves equally far as in the interchange, but inside this other
            subspace ``[d, rank]``.
    """

    site: Site
    basis: Tensor | None = None
    elsewhere: Tensor | None = None

    @classmethod
    @checked
    def of(cls, site: Site | str, directions: ArrayLike | Tensor | None = None) -> Place:
        """A place from directions ``[rank, d]`` that span the subspace, orthonormal or not.

        Raises:
            InputError: a site that cannot be read, or no directions.
        """
        site = Site.parse(site) if isinstance(site, str) else site
        if directions is None:
            return cls(site)
        rows = torch.as_tensor(array_of("directions", directions)).double()
        require(rows.ndim >= 1 and rows.numel() > 0, f"directions are [rank, d], got shape {tuple(rows.shape)}")
        basis, _ = torch.linalg.qr(rows.reshape(-1, rows.shape[-1]).T)
        return cls(site, basis)

    def __str__(self) -> str:
        return f"{self.site}" + ("" if self.basis is None else f" (rank {self.basis.shape[1]})")

    @checked
    def placebo(self, d_model: int, seed: int) -> Place | None:
        """The control: the activation moves equally far, but in a random subspace orthogonal to the one interchanged.

        It has equal rank, or what is left of the space; where the whole activation is interchanged nothing is left,
        and it is a random line. A random subspace that was not made orthogonal holds a part of the variable: it
        scored up to .46 at true sites of handwired models. Heads and attention scores have no direction in the
        residual stream, and so no such control: None.
        """
        from transformer_lens.tools.analysis.interchange import random_basis  # three seconds: only where it is used

        integer("d_model", d_model, 1, 10**6)
        if self.site.kind.axes not in ("pos", "latent"):
            return None
        if self.basis is None:
            return replace(self, elsewhere=random_basis(d_model, 1, seed))
        rank = min(self.basis.shape[1], d_model - self.basis.shape[1])
        if rank == 0:
            return None
        drawn = random_basis(d_model, rank, seed).to(self.basis)
        apart, _ = torch.linalg.qr(drawn - self.basis @ (self.basis.T @ drawn))
        return replace(self, elsewhere=apart)

    def __call__(self, own: Tensor, source: Tensor) -> Tensor:
        """The base's activation after the interchange."""
        if self.basis is None and self.elsewhere is None:
            return source
        from transformer_lens.tools.analysis.interchange import NormMatchedPlacebo, SubspaceInterchange

        step = SubspaceInterchange(torch.eye(own.shape[-1]).to(own) if self.basis is None else self.basis)
        return step(own, source) if self.elsewhere is None else NormMatchedPlacebo(step, self.elsewhere)(own, source)


def resolve_places(
    places: Place | Site | str | Sequence[Place | Site | str], model: HookedLatentTransformer, run: Rollout
) -> list[Place]:
    """Places from sites or their texts, each checked against the model.

    Raises:
        InputError: no place, or a site that the model does not have.
    """
    several = [places] if isinstance(places, Place | Site | str) else non_empty("places", places)
    resolved = [place if isinstance(place, Place) else Place.of(place) for place in several]
    for place in resolved:
        resolve(place.site, model, run.layout)
    return resolved


def intervened(
    model: HookedLatentTransformer, base: Rollout, source: Rollout, places: Sequence[Place], rounds: Sequence[int]
) -> tuple[Tensor, Tensor]:
    """Predictions ``[episode, round, ...]`` and next latents of base rounds with places taken from the source's."""
    theirs, sites = Rows.of(source, rounds), [place.site for place in places]

    def swaps(part: slice) -> list[tuple[Site, Edit]]:
        if not places:
            return []
        _, given = passed(model, theirs.part(part), base.layout, watched=sites)
        return [(place.site, partial(place, source=given[place.site])) for place in places]

    return edited(model, base, rounds, swaps)
