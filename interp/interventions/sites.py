"""Sites: where in a round an intervention acts, as a small language shared by every routine.

A site is a component, with a layer, a head and a position where the component has them. Its text form is
``component[layer.head]@position``::

    resid_pre[1]@p?      z[2.0]@w?      pattern[0.1]      latent@<z>      embed@e_1

Positions are labels of the round's layout; a site without one means all positions. ``head`` is another word for
``z``, a head's output before ``W_O``. For ``scores`` and ``pattern`` the position is that of the query. The components
are a machine's ``points``; where no machine is named, those of a transformer. An adapted machine's carried rows have
its channels' labels, a channel's name stands for all of its rows, and ``+`` joins several; the index of a loop's cycle
stands where a layer's does::

    latent@h             latent@h+c           block[2]             reset
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from itertools import product
from typing import Literal, cast

import numpy as np
import torch
from jaxtyping import Bool
from numpy.typing import ArrayLike
from torch import Tensor, nn

from interp.core.display import lacks
from interp.core.machine import Component, Machine
from interp.model.layout import RoundLayout
from interp.model.run import Rollout
from interp.model.transformer import COMPONENTS as COMPONENTS
from interp.support.checks import array_of, checked, checked_fields, fit, fitted, integer, non_empty
from interp.support.errors import InputError, require, require_known, unknown_name

ALIASES = {"head": "z"}
_UNKNOWN = Component("", "", "", "")
_TEXT = re.compile(
    r"(?P<component>\w+)(\[(?P<layer>\d+)(\.(?P<head>\d+))?\])?(@(?P<position>[^#@]+))?"
)


def component(name: str, model: Machine | None = None) -> Component:
    """The component of that name, of a machine, or of any transformer."""
    points, key = (COMPONENTS if model is None else model.points), ALIASES.get(name, name)
    if model is not None and key in COMPONENTS and key not in points:
        no_mlp = f"{model.name!r} has no MLP, so it has no {key!r}; use resid_post or attn_out"
        raise InputError(
            no_mlp
            if "resid_post" in points
            else f"{lacks(model, key)}; its points are {', '.join(points)}"
        )
    require_known(
        "component",
        name,
        [*points, *(alias for alias, of in ALIASES.items() if of in points)],
        limit=20,
    )
    return points[key]


@dataclass(frozen=True)
@checked
class Site:
    """A place in a round: no head means all heads, and no position (a label of the layout) means all positions.

    >>> site = Site.parse("head[2.0]@w?")
    >>> site
    Site(component='z', layer=2, head=0, position='w?')
    >>> str(site), site.hook
    ('z[2.0]@w?', 'blocks.2.attn.hook_z')
    """

    component: str
    layer: int | None = None
    head: int | None = None
    position: str | None = None
    kind: Component = field(default=_UNKNOWN, compare=False, repr=False)

    def __post_init__(self) -> None:
        named = self.kind is _UNKNOWN
        kind = (
            component(fit("component", self.component, str))
            if named
            else fit("kind", self.kind, Component)
        )
        object.__setattr__(self, "component", kind.key)
        object.__setattr__(self, "kind", kind)
        require(
            (self.layer is not None) == kind.has_layer,
            f"a site of component {kind.key!r} {'needs a layer' if kind.has_layer else 'takes no layer'}, "
            f"got layer {self.layer!r}; write {kind.key}{'[layer]' if kind.has_layer else ''}@position",
        )
        require(
            self.head is None or kind.has_head,
            f"a site of component {kind.key!r} takes no head, got head {self.head!r}; "
            f"components with heads: {', '.join(c.key for c in COMPONENTS.values() if c.has_head)}",
        )
        placed = self.position is None or bool({"pos", "latent"} & set(kind.axes.split()))
        require(
            placed, f"a site of component {kind.key!r} takes no position, got {self.position!r}"
        )

    def __str__(self) -> str:
        where = (
            ""
            if self.layer is None
            else f"[{self.layer}{'' if self.head is None else f'.{self.head}'}]"
        )
        return f"{self.component}{where}" + ("" if self.position is None else f"@{self.position}")

    @classmethod
    def parse(cls, text: str, model: Machine | None = None) -> Site:
        """The site that a text names, in a machine or in any transformer."""
        match = _TEXT.fullmatch(text.strip())
        if match is None:
            raise InputError(
                f"{text!r} is not a site; write component[layer.head]@position, such as 'z[2.0]@p?' or 'latent'"
            )
        layer, head = (
            None if number is None else int(number) for number in (match["layer"], match["head"])
        )
        return cls(
            match["component"], layer, head, match["position"], component(match["component"], model)
        )

    @classmethod
    def at_hook(cls, hook: str, head: int | None = None, position: str | None = None) -> Site:
        """The site at a hook point's name."""
        for kind in COMPONENTS.values():
            match = re.fullmatch(re.escape(kind.hook).replace(r"\{layer\}", r"(\d+)"), hook)
            if match:
                return cls(kind.key, int(match[1]) if kind.has_layer else None, head, position)
        raise unknown_name(
            "hook point of a component", hook, [kind.hook for kind in COMPONENTS.values()], limit=20
        )

    @property
    def hook(self) -> str:
        """The name of its hook point."""
        return self.kind.hook.format(layer=self.layer)

    def labels(self, layout: RoundLayout) -> tuple[str, ...]:
        """The names of its places in a round: positions, or rows of what is carried."""
        if self.kind.labels or self.kind.axes != "latent":
            return self.kind.labels or layout.labels
        return tuple(layout.labels[i] for i in layout.latent_positions)

    def index(self, layout: RoundLayout) -> tuple[slice | int | list[int], ...]:
        """What it selects of the activation ``[batch, ...]``: an index for every axis between batch and vector."""
        position = self._places(self.labels(layout))
        head: slice | int = slice(None) if self.head is None else self.head
        by_axis = {"pos": position, "latent": position, "head": head}
        return slice(None), *(by_axis.get(axis, slice(None)) for axis in self.kind.axes.split())

    def _places(self, labels: tuple[str, ...]) -> slice | int | list[int]:
        """Its place among those called ``labels``, or its rows, in order, where it names channels."""
        if self.position is None:
            return slice(None)
        if self.position in labels or self.kind.axes != "latent":
            what = "latent position" if self.kind.axes == "latent" else "position label"
            require_known(what, self.position, labels, limit=40)
            return labels.index(self.position)
        rows: set[int] = set()
        for name in self.position.split("+"):
            of = {
                i
                for i, label in enumerate(labels)
                if re.fullmatch(rf"{re.escape(name)}(_\d+)?", label)
            }
            if not of:
                raise unknown_name("latent position", name, labels, limit=40)
            rows |= of
        return sorted(rows)

    def read(self, activation: Tensor, layout: RoundLayout) -> Tensor:
        """What it selects of an activation ``[batch, ...]``."""
        try:
            return activation[self.index(layout)]
        except IndexError as error:
            message = f"an activation of shape {tuple(activation.shape)} does not hold {str(self)!r}: {error}"
            raise InputError(message) from error


@checked
def sites(
    model: Machine,
    layout: RoundLayout | None = None,
    components: str | Iterable[str] | None = None,
    positions: str | Iterable[str] | None = "all",
    layers: Iterable[int] | Literal["all"] = "all",
) -> list[Site]:
    """Every site of the given components, in the order computed: by component, layer, head, position.

    ``components`` are :func:`swept` when None. ``positions`` are labels of the layout (the model's own when None) or of
    the rows of what is carried, "all" for each on its own, or None for whole activations.
    """
    layout = model.layout if layout is None else layout
    require(
        layout.task == model.layout.task,
        f"layout is of {layout.task!r}, not of {model.layout.task!r}",
    )
    components = swept(model) if components is None else components
    names = [components] if isinstance(components, str) else non_empty("components", components)
    wanted = None if isinstance(layers, str) else non_empty("layers", layers)
    require(
        positions is None or isinstance(positions, str) or len(positions := list(positions)) > 0,
        "positions is empty; give labels, 'all' for each on its own, or None for whole activations",
    )
    every: list[Site] = []
    for name in names:
        kind = component(name, model)
        several = (
            (range(kind.n_layers) if wanted is None else wanted) if kind.has_layer else (None,)
        )
        heads = range(kind.n_heads) if kind.n_heads else (None,)
        at = _places(Site(kind.key, 0 if kind.has_layer else None, kind=kind), layout, positions)
        every += [Site(kind.key, *where, kind) for where in product(several, heads, at)]
    require(bool(every), f"no site of {', '.join(names)} is at {positions}")
    return [resolve(site, model, layout) for site in dict.fromkeys(every)]


def chosen(
    model: Machine, layout: RoundLayout, given: Site | str | Sequence[Site | str] | None
) -> list[Site]:
    """Sites as users give them: sites, their texts, and names of components, or those that are :func:`swept`.

    The name of a component that stands in layers ("resid_pre") means every layer, head and position of it, each on its
    own; that of another ("latent") is a site, all of it at once.
    """
    if given is None:
        return sites(model, layout)
    found: list[Site] = []
    for one in [given] if isinstance(given, Site | str) else non_empty("sites", given):
        whole = isinstance(one, str) and one.isidentifier() and component(one, model).has_layer
        found += sites(model, layout, str(one)) if whole else [resolve(one, model, layout)]
    return found


def swept(model: Machine) -> tuple[str, ...]:
    """The components that are swept by default: those of a residual stream, or every point of a machine without one."""
    return ("resid_pre", "attn_out", "z") if "resid_pre" in model.points else tuple(model.points)


def carried_mask(model: Machine) -> Bool[Tensor, "row width"]:
    """Which numbers of what is carried a control may move: a channel's, and not those that pad its rows.

    How far a channel that grows is written (``NAME_length``) is the same in every episode, and left out here.
    """
    lengths = {f"{channel.name}_length" for channel in model.channels if channel.grows}
    widths = [0 if channel.name in lengths else channel.shape[-1] for channel in model.channels]
    rows = torch.tensor(widths).repeat_interleave(
        torch.tensor([channel.rows for channel in model.channels])
    )
    return torch.arange(max(channel.shape[-1] for channel in model.channels)) < rows.unsqueeze(1)


def _places(
    site: Site, layout: RoundLayout, positions: str | Iterable[str] | None
) -> list[str | None]:
    """The labels that a sweep asks for, of those that the component has places for; None for whole activations."""
    axes = site.kind.axes.split()
    if positions is None or not {"pos", "latent"} & set(axes):
        return [None]
    labels = site.labels(layout)
    if "latent" in axes or site.kind.labels:
        wanted = (positions,) if isinstance(positions, str) else positions
        return [label for label in labels if wanted == ("all",) or label in wanted]
    return [labels[i] for i in layout.positions(positions)]


def resolve(site: Site | str, model: Machine, layout: RoundLayout) -> Site:
    """``site``, parsed if a text, where it exists in ``model`` for rounds of ``layout``."""
    site = Site.parse(site, model) if isinstance(site, str) else site
    kind = component(site.component, model)
    for what, value, n in (("layer", site.layer, kind.n_layers), ("head", site.head, kind.n_heads)):
        require(
            value is None or fitted(int, value) in range(n),
            f"site {str(site)!r} does not exist: {model.name!r} has {what}s 0 to {n - 1}; "
            "interp.interventions.sites.sites(model) lists every site",
        )
    model.hook_names(site.hook)
    site.index(layout)
    return replace(site, kind=kind)


def write(activation: Tensor, site: Site, layout: RoundLayout, new: Tensor) -> Tensor:
    """A copy of ``activation`` with ``new`` at the site."""
    changed = activation.clone()
    try:
        changed[site.index(layout)] = fit("what is written", new, Tensor).to(changed.dtype)
    except (IndexError, RuntimeError):
        at, given = tuple(activation.shape), tuple(new.shape)
        raise InputError(
            f"what is written at {str(site)!r} has shape {given}: no fit to activations {at}"
        ) from None
    return changed


@dataclass(frozen=True)
@checked_fields
class Place:
    """A site, and the subspace of its activation that is interchanged.

    Attributes:
        basis: orthonormal ``[d, rank]``; the whole activation when None.
        elsewhere: a control: the activation moves as far, but inside this other subspace ``[d, rank]``.

    >>> place = Place.of("resid_pre[1]@p?", [[1.0, 0, 0, 0], [1.0, 1, 0, 0]])     # the span of two directions
    >>> str(place)
    'resid_pre[1]@p? (rank 2)'
    >>> base, source = torch.zeros(1, 4).double(), torch.tensor([[1.0, 2, 3, 4]]).double()
    >>> place(base, source).round(decimals=6).tolist()
    [[1.0, 2.0, 0.0, 0.0]]
    """

    site: Site
    basis: Tensor | None = None
    elsewhere: Tensor | None = None

    @classmethod
    def of(
        cls,
        site: Site | str,
        directions: ArrayLike | Tensor | None = None,
        model: Machine | None = None,
    ) -> Place:
        """A place from directions ``[rank, d]`` that span the subspace, orthonormal or not.

        The text of a site is one of any transformer, or of ``model``.
        """
        site = Site.parse(site, model) if isinstance(site, str) else site
        if directions is None:
            return cls(site)
        rows = torch.as_tensor(
            np.atleast_2d(array_of("directions", directions, finite=True))
        ).double()
        fits = (
            np.ndim(directions) > 0
            and rows.ndim == 2
            and int(torch.linalg.matrix_rank(rows)) == len(rows) > 0
        )
        require(
            fits,
            f"directions are [rank, d], none of them made of others, got shape {tuple(rows.shape)}",
        )
        basis, _ = torch.linalg.qr(rows.T)
        return cls(site, basis)

    @property
    def is_whole(self) -> bool:
        """Whether the whole activation is changed, and no control moves it elsewhere."""
        return self.basis is None and self.elsewhere is None

    def __str__(self) -> str:
        return f"{self.site}" + ("" if self.basis is None else f" (rank {self.basis.shape[1]})")

    def placebo(self, width: int, seed: int, padding: int = 0) -> Place | None:
        """The control: the activation moves equally far, but in a random subspace orthogonal to the one interchanged.

        It has equal rank, or what is left of the space; for a whole activation it is a random line. A random subspace
        that overlaps holds a part of the variable (it scored up to .46 at true sites of handwired models). None where
        there is no
        such direction: at heads, attention scores and single numbers. ``width`` numbers of the activation mean
        something, and so many more are ``padding``.
        """
        integer("width", width, 1, 10**6)
        integer("padding", padding, 0)
        if self.site.kind.axes not in ("pos", "latent", ""):
            return None
        rank = (
            int(width > 1)
            if self.basis is None
            else min(self.basis.shape[1], width - self.basis.shape[1])
        )
        if rank <= 0:
            return None
        normal = torch.randn(width, rank, generator=torch.Generator().manual_seed(seed))
        drawn = torch.nn.functional.pad(
            torch.linalg.svd(normal, full_matrices=False).U, (0, 0, 0, padding)
        )
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
        move = source - base
        basis = (torch.eye(base.shape[-1]) if self.basis is None else self.basis).to(move)
        require(
            len(basis) == base.shape[-1],
            f"{str(self)!r} has {base.shape[-1]} numbers, its directions {len(basis)}",
        )
        unit = torch.eye(basis.shape[-1]).to(basis)  # NaN is not close to it
        fits = self.basis is None or torch.allclose(basis.mT @ basis, unit, atol=0.02)
        require(
            fits,
            f"the basis of {str(self)!r} is not orthonormal; Place.of takes directions that are not",
        )
        wanted = base + move @ basis @ basis.T
        if self.elsewhere is None:
            return wanted
        other, distance = self.elsewhere.to(move), (wanted - base).norm(dim=-1, keepdim=True)
        move = move @ other @ other.T
        return base + move * (distance / move.norm(dim=-1, keepdim=True).clamp_min(1e-8))


Places = Place | Site | str | Sequence[Place | Site | str]
"""What users give where places are asked for: one or several, each of them a place, a site or its text."""


def resolve_places(places: Places, model: Machine, run: Rollout) -> list[Place]:
    """Places from sites or their texts, each checked against the model."""
    several = [places] if isinstance(places, Place | Site | str) else non_empty("places", places)
    named = [
        place if isinstance(place, Place) else Place.of(place, model=model) for place in several
    ]
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
