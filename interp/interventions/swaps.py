"""Places, sites with a subspace each, and rounds that are run again with activations at some places edited.

What interchange, moves and mediation are made of: each says which sites it edits, and how.

>>> place = Place.of("resid_pre[1]@p?", [[1.0, 0, 0, 0], [1.0, 1, 0, 0]])     # the span of two directions
>>> str(place)
'resid_pre[1]@p? (rank 2)'
>>> base, source = torch.zeros(1, 4).double(), torch.tensor([[1.0, 2, 3, 4]]).double()
>>> place(base, source).round(decimals=6).tolist()
[[1.0, 2.0, 0.0, 0.0]]
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import NamedTuple, cast

import numpy as np
import torch
from numpy.typing import ArrayLike
from torch import Tensor, nn

from interp.checks import array_of, checked, integer, non_empty
from interp.errors import require
from interp.interventions.sites import Site, resolve, row_widths, write
from interp.machine import Machine, Stepped
from interp.model.hooked import FiringCounter
from interp.model.layout import EncodedRounds, RoundLayout
from interp.model.run import Rollout

CHUNK = 8192
"""Rows (pair x round) that are run at once."""
Edit = Callable[[Tensor], Tensor]
"""A function from the activation at a site to its new value."""


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
        if self.basis is None and self.elsewhere is None:
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


class Rows(NamedTuple):
    """Rounds of many episodes in one batch, ``[row, ...]``."""

    latents: Tensor
    fed: EncodedRounds

    @classmethod
    def of(cls, run: Rollout, rounds: Sequence[int]) -> Rows:
        """Some rounds of every episode: row ``e * len(rounds) + i`` is episode e at the i-th of them."""
        return cls(*run.rows(rounds))

    def parts(self) -> Iterator[slice]:
        """At most :data:`CHUNK` rows at a time, in order."""
        size = self.fed.at_once(CHUNK)
        return (slice(start, start + size) for start in range(0, len(self.latents), size))

    def part(self, rows: slice) -> Rows:
        """Some of these rows."""
        return Rows(self.latents[rows], self.fed.each(lambda part: part[rows]))

    def tiled(self, times: int) -> Rows:
        """All rows, repeated ``times`` times."""
        return Rows(tile(self.latents, times), self.fed.each(partial(tile, times=times)))


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


def passed(
    model: Machine,
    rows: Rows,
    layout: RoundLayout,
    edits: Sequence[tuple[Site, Edit]] = (),
    watched: Sequence[Site] = (),
) -> tuple[Stepped, dict[Site, Tensor]]:
    """Run rounds with the activations at some sites edited: what they give, and the activations at other sites."""
    names = list(dict.fromkeys(site.hook for site in (*(site for site, _ in edits), *watched)))
    kept: dict[Site, Tensor] = {}

    def at(name: str, activation: Tensor, hook: object) -> Tensor:
        for site, edit in edits:
            if site.hook == name:
                activation = write(activation, site, layout, edit(site.read(activation, layout)))
        kept.update({site: site.read(activation, layout) for site in watched if site.hook == name})
        return activation

    counter = FiringCounter([(name, partial(at, name)) for name in names])
    with torch.no_grad(), model.hooks(fwd_hooks=counter.hooks):
        done = model.step(rows.latents, rows.fed)
    for name, times in zip(names, counter.fired, strict=True):
        require(times == 1, f"the hook at {name!r} fired {times} times in one round, which must be once")
    return done, kept


def edited(
    model: Machine,
    run: Rollout,
    rounds: Sequence[int],
    edits: Callable[[slice], Sequence[tuple[Site, Edit]]],
) -> tuple[Tensor, Tensor]:
    """Predictions ``[episode, round, ...]`` and next latents of rounds whose activations are edited, part by part."""
    rows, predictions, latents = Rows.of(run, rounds), [], []
    for part in rows.parts():
        some = rows.part(part)
        done, _ = passed(model, some, run.layout, edits(part))
        predictions.append(done.prediction)
        latents.append(done.carried)
    shape = (run.n_episodes, len(rounds))
    return torch.cat(predictions).unflatten(0, shape), torch.cat(latents).unflatten(0, shape)


def intervened(
    model: Machine, base: Rollout, source: Rollout, places: Sequence[Place], rounds: Sequence[int]
) -> tuple[Tensor, Tensor]:
    """Predictions ``[episode, round, ...]`` and next latents of base rounds with places taken from the source's."""
    rows = Rows.of(source, rounds)
    return edited(model, base, rounds, lambda part: swaps(model, rows.part(part), base.layout, places))


@checked
def placebos(model: Machine, run: Rollout, places: Sequence[Place], seed: int) -> list[Place]:
    """The control of each place that has one (:meth:`Place.placebo`), as wide as the activation there is in ``run``.

    Rows of what is carried move in the numbers of their widest channel; a narrower one moves by what it has of them.
    """
    _, seen = passed(model, Rows.of(run, [0]).part(slice(1)), run.layout, watched=[place.site for place in places])
    controls: list[Place] = []
    for place in places:
        size = width = seen[place.site].shape[-1]
        if place.site.kind.axes == "latent":
            widths = np.atleast_1d(np.array(row_widths(model))[place.site.index(run.layout)[1]])
            width = int(widths.max())
        control = place.placebo(width, seed, size - width) if width else None
        controls += [] if control is None else [control]
    return controls


def swaps(model: Machine, source: Rows, layout: RoundLayout, places: Sequence[Place]) -> list[tuple[Site, Edit]]:
    """Edits that give every place its activation in the source's rows."""
    if not places:
        return []
    watched = [place.site for place in places]
    with torch.no_grad():
        known = model.is_quiet() and all(site.component == "latent" for site in watched)
    # What is carried is read as it was left: no round has to be run to see it.
    activations = {site: site.read(source.latents, layout) for site in watched} if known else {}
    activations = activations or passed(model, source, layout, watched=watched)[1]
    return [(place.site, partial(place, source=activations[place.site])) for place in places]
