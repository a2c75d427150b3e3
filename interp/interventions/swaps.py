"""Places: sites with a subspace each, which an edit changes and leaves the rest of the activation as it was.

>>> place = Place.of("resid_pre[1]@p?", [[1.0, 0, 0, 0], [1.0, 1, 0, 0]])     # the span of two directions
>>> str(place)
'resid_pre[1]@p? (rank 2)'
>>> base, source = torch.zeros(1, 4).double(), torch.tensor([[1.0, 2, 3, 4]]).double()
>>> place(base, source).round(decimals=6).tolist()
[[1.0, 2.0, 0.0, 0.0]]
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import cast

import torch
from numpy.typing import ArrayLike
from torch import Tensor, nn

from interp.checks import array_of, checked, integer, non_empty
from interp.errors import require
from interp.interventions.sites import Site, resolve
from interp.machine import Machine
from interp.model.run import Rollout


@dataclass(frozen=True)
class Place:
    """A site, and the subspace of its activation that is interchanged.

    Attributes:
        basis: orthonormal ``[d, rank]``; the whole activation when None.
        elsewhere: a control: the activation moves as far, but inside this other subspace ``[d, rank]``.
    """

    site: Site
    basis: Tensor | None = None
    elsewhere: Tensor | None = None

    @classmethod
    @checked
    def of(cls, site: Site | str, directions: ArrayLike | Tensor | None = None, model: Machine | None = None) -> Place:
        """A place from directions ``[rank, d]`` that span the subspace, orthonormal or not.

        The text of a site is one of any transformer, or of ``model``.
        """
        site = Site.parse(site, model) if isinstance(site, str) else site
        if directions is None:
            return cls(site)
        rows = torch.as_tensor(array_of("directions", directions)).double()
        require(rows.ndim >= 1 and rows.numel() > 0, f"directions are [rank, d], got shape {tuple(rows.shape)}")
        basis, _ = torch.linalg.qr(rows.reshape(-1, rows.shape[-1]).T)
        return cls(site, basis)

    @property
    def is_whole(self) -> bool:
        """Whether the whole activation is changed, and no control moves it elsewhere."""
        return self.basis is None and self.elsewhere is None

    def __str__(self) -> str:
        return f"{self.site}" + ("" if self.basis is None else f" (rank {self.basis.shape[1]})")

    @checked
    def placebo(self, width: int, seed: int, padding: int = 0) -> Place | None:
        """The control: the activation moves equally far, but in a random subspace orthogonal to the one interchanged.

        It has equal rank, or what is left of the space; for a whole activation it is a random line. Without being made
        orthogonal it would hold a part of the variable (it scored up to .46 at true sites of handwired models). Heads
        and attention scores have no direction in the residual stream, and so no such control: None; nor has a single
        number, whose only line is itself. ``width`` numbers of the activation mean something, and so many more are
        ``padding`` (:func:`placebos` knows them).
        """
        integer("width", width, 1, 10**6)
        if self.site.kind.axes not in ("pos", "latent", ""):
            return None
        rank = int(width > 1) if self.basis is None else min(self.basis.shape[1], width - self.basis.shape[1])
        if rank <= 0:
            return None
        normal = torch.randn(width, rank, generator=torch.Generator().manual_seed(seed))
        drawn = torch.nn.functional.pad(torch.linalg.svd(normal, full_matrices=False).U, (0, 0, 0, padding))
        if self.basis is None:
            return replace(self, elsewhere=drawn)
        drawn = drawn.to(self.basis)
        apart, _ = torch.linalg.qr(drawn - self.basis @ (self.basis.T @ drawn))
        return replace(self, elsewhere=apart)

    def __call__(self, base: Tensor, source: Tensor) -> Tensor:
        """The base's activation after the interchange.

        It and its control are TransformerLens' ``SubspaceInterchange``, ``NormMatchedPlacebo`` and ``random_basis`` (a
        test compares them), without that import: it loads half of ``transformers``.
        """
        if self.is_whole:
            return source
        basis = torch.eye(base.shape[-1]) if self.basis is None else self.basis
        wanted = base + _inside(basis, source - base)
        if self.elsewhere is None:
            return wanted
        move, distance = _inside(self.elsewhere, source - base), (wanted - base).norm(dim=-1, keepdim=True)
        return base + move * (distance / move.norm(dim=-1, keepdim=True).clamp_min(1e-8))


def _inside(basis: Tensor, move: Tensor) -> Tensor:
    """The part of ``move`` inside the span of ``basis``."""
    basis = basis.to(move)
    return move @ basis @ basis.T


Places = Place | Site | str | Sequence[Place | Site | str]
"""What users give where places are asked for: one or several, each of them a place, a site or its text."""


def resolve_places(places: Places, model: Machine, run: Rollout) -> list[Place]:
    """Places from sites or their texts, each checked against the model."""
    several = [places] if isinstance(places, Place | Site | str) else non_empty("places", places)
    named = [place if isinstance(place, Place) else Place.of(place, model=model) for place in several]
    return [replace(place, site=resolve(place.site, model, run.layout)) for place in named]


def tile(x: Tensor, times: int) -> Tensor:
    """The rows of ``x``, repeated ``times`` times."""
    return x.repeat(times, *[1] * (x.ndim - 1))


@contextmanager
def frozen(model: Machine) -> Iterator[None]:
    """No parameter of ``model`` takes a gradient inside."""
    module = cast(nn.Module, model)
    flags = [parameter.requires_grad for parameter in module.parameters()]
    module.requires_grad_(False)
    try:
        yield
    finally:
        for parameter, flag in zip(module.parameters(), flags, strict=True):
            parameter.requires_grad_(flag)
