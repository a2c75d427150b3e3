"""Sites: where in a round an intervention acts, as a small language shared by every routine.

A site is a component, with a layer, a head and a position where the component has them. Its text form is
``component[layer.head]@position``::

    resid_pre[1]@p?      z[2.0]@w?      pattern[0.1]      latent@<z>      embed@e_1

Positions are labels of the round's layout; a site without one means all positions. ``head`` is another word for
``z``, a head's output before ``W_O``. For ``scores`` and ``pattern`` the position is that of the query.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

from torch import Tensor

from interp.checks import checked, fit, non_empty, unique
from interp.errors import InputError, require, require_known, unknown_name
from interp.model.layout import RoundLayout
from interp.model.transformer import HookedLatentTransformer

__all__ = ["ALIASES", "COMPONENTS", "Component", "Site", "check", "component", "resolve", "sites", "write"]


@dataclass(frozen=True)
class Component:
    """A kind of activation: sites call it by its key, tables by its name.

    Attributes:
        hook: its hook point, with ``{layer}`` to be filled in.
        axes: what lies between the batch axis and the vector.
    """

    key: str
    hook: str
    axes: Literal["pos", "latent", "pos head", "head pos"]
    name: str

    @property
    def has_layer(self) -> bool:
        """Whether there is one in every layer."""
        return "{layer}" in self.hook

    @property
    def has_head(self) -> bool:
        """Whether there is one for every head."""
        return "head" in self.axes

    @property
    def position_axis(self) -> int | None:
        """Axis of the round's positions in ``[batch, ...]``; None for latents, which have places of their own."""
        axes = self.axes.split()
        return axes.index("pos") + 1 if "pos" in axes else None


COMPONENTS: dict[str, Component] = unique(
    (
        Component("latent", "hook_latents", "latent", "latent"),
        Component("embed", "hook_embed", "pos", "embedding"),
        Component("resid_pre", "blocks.{layer}.hook_resid_pre", "pos", "residual before layer"),
        Component("q", "blocks.{layer}.attn.hook_q", "pos head", "query"),
        Component("k", "blocks.{layer}.attn.hook_k", "pos head", "key"),
        Component("v", "blocks.{layer}.attn.hook_v", "pos head", "value"),
        Component("scores", "blocks.{layer}.attn.hook_attn_scores", "head pos", "attention scores"),
        Component("pattern", "blocks.{layer}.attn.hook_pattern", "head pos", "attention pattern"),
        Component("z", "blocks.{layer}.attn.hook_z", "pos head", "head output"),
        Component("result", "blocks.{layer}.attn.hook_result", "pos head", "head's write"),
        Component("attn_out", "blocks.{layer}.hook_attn_out", "pos", "attention output"),
        Component("resid_mid", "blocks.{layer}.hook_resid_mid", "pos", "residual after attention"),
        Component("mlp_out", "blocks.{layer}.hook_mlp_out", "pos", "MLP output"),
        Component("resid_post", "blocks.{layer}.hook_resid_post", "pos", "residual after layer"),
    ),
    "component",
)
"""Every component, in the order in which a round computes them."""

ALIASES = {"head": "z"}
_NEEDS_MLP = {"resid_mid", "mlp_out"}
_TEXT = re.compile(r"(?P<component>\w+)(\[(?P<layer>\d+)(\.(?P<head>\d+))?\])?(@(?P<position>[^#@]+))?")


@checked
def component(name: str) -> Component:
    """The component of that name."""
    require_known("component", name, [*COMPONENTS, *ALIASES], limit=20)
    return COMPONENTS[ALIASES.get(name, name)]


@dataclass(frozen=True)
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

    def __post_init__(self) -> None:
        kind = component(fit("component", self.component, str))
        object.__setattr__(self, "component", kind.key)
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

    def __str__(self) -> str:
        where = "" if self.layer is None else f"[{self.layer}{'' if self.head is None else f'.{self.head}'}]"
        return f"{self.component}{where}" + ("" if self.position is None else f"@{self.position}")

    @classmethod
    @checked
    def parse(cls, text: str) -> Site:
        """The site that a text names."""
        match = _TEXT.fullmatch(text.strip())
        if match is None:
            raise InputError(
                f"{text!r} is not a site; write component[layer.head]@position, such as 'z[2.0]@p?' or 'latent'"
            )
        layer, head = (None if number is None else int(number) for number in (match["layer"], match["head"]))
        return cls(match["component"], layer, head, match["position"])

    @classmethod
    @checked
    def at_hook(cls, hook: str, head: int | None = None, position: str | None = None) -> Site:
        """The site at a hook point's name."""
        for kind in COMPONENTS.values():
            match = re.fullmatch(re.escape(kind.hook).replace(r"\{layer\}", r"(\d+)"), hook)
            if match:
                return cls(kind.key, int(match[1]) if kind.has_layer else None, head, position)
        raise unknown_name("hook point of a component", hook, [kind.hook for kind in COMPONENTS.values()], limit=20)

    @property
    def kind(self) -> Component:
        """The record of the site's component: its hook and its axes."""
        return COMPONENTS[self.component]

    @property
    def hook(self) -> str:
        """The name of its hook point."""
        return self.kind.hook.format(layer=self.layer)

    @checked
    def index(self, layout: RoundLayout) -> tuple[slice | int, ...]:
        """What it selects of the activation ``[batch, ...]``: an index for every axis between batch and vector."""
        position: slice | int = slice(None)
        if self.position is not None:
            position = layout.position(self.position)
            if self.component == "latent":
                latents = [layout.labels[i] for i in layout.latent_positions]
                require_known("latent position", self.position, latents)
                position = latents.index(self.position)
        head: slice | int = slice(None) if self.head is None else self.head
        by_axis = {"pos": position, "latent": position, "head": head}
        return slice(None), *(by_axis[axis] for axis in self.kind.axes.split())

    @checked
    def read(self, activation: Tensor, layout: RoundLayout) -> Tensor:
        """What it selects of an activation ``[batch, ...]``."""
        try:
            return activation[self.index(layout)]
        except IndexError as error:
            message = f"an activation of shape {tuple(activation.shape)} does not hold {str(self)!r}: {error}"
            raise InputError(message) from error


@checked
def sites(
    model: HookedLatentTransformer,
    layout: RoundLayout | None = None,
    components: str | Iterable[str] = ("resid_pre", "attn_out", "head"),
    positions: str | Iterable[str] | None = "all",
    layers: Iterable[int] | Literal["all"] = "all",
) -> list[Site]:
    """Every site of the given components, in the order computed: by component, layer, head, position.

    ``positions`` are labels of the layout (the model's own when None), "all" for each on its own, or None for whole
    activations.
    """
    layout = model.layout if layout is None else layout
    n_layers = model.config.n_layers
    wanted = range(n_layers) if isinstance(layers, str) else non_empty("layers", layers)
    names = [components] if isinstance(components, str) else non_empty("components", components)
    require(
        positions is None or isinstance(positions, str) or len(positions := list(positions)) > 0,
        "positions is empty; give labels, 'all' for each on its own, or None for whole activations",
    )
    every: list[Site] = []
    for name in names:
        kind = component(name)
        if kind.key in _NEEDS_MLP and not model.config.d_mlp:
            raise InputError(f"{model.config.name!r} has no MLP, so it has no {kind.key!r}; use resid_post or attn_out")
        if positions is None:
            labels: list[str | None] = [None]
        elif kind.axes == "latent":
            all_latents = [layout.labels[i] for i in layout.latent_positions]
            labels = [p for p in all_latents if positions == "all" or p in positions]
        else:
            labels = [layout.labels[i] for i in layout.positions(positions)]
        for layer in wanted if kind.has_layer else (None,):
            for head in range(model.config.n_heads) if kind.has_head else (None,):
                every += [Site(kind.key, layer, head, label) for label in labels]
    for site in every:
        check(site, model, layout)
    return every


@checked
def check(site: Site, model: HookedLatentTransformer, layout: RoundLayout) -> None:
    """Raise unless ``site`` exists in ``model`` for rounds of ``layout``."""
    config = model.config
    for what, value, n in (("layer", site.layer, config.n_layers), ("head", site.head, config.n_heads)):
        require(
            value is None or 0 <= value < n,
            f"site {str(site)!r} does not exist: {config.name!r} has {what}s 0 to {n - 1}; "
            "interp.interventions.sites.sites(model) lists every site",
        )
    model.hook_names(site.hook)
    site.index(layout)


@checked
def resolve(site: Site | str, model: HookedLatentTransformer, layout: RoundLayout) -> Site:
    """``site`` parsed, if a text, and checked."""
    parsed = Site.parse(site) if isinstance(site, str) else site
    check(parsed, model, layout)
    return parsed


@checked
def write(activation: Tensor, site: Site, layout: RoundLayout, new: Tensor) -> Tensor:
    """A copy of ``activation`` with ``new`` at the site."""
    changed = activation.clone()
    changed[site.index(layout)] = new.to(changed.dtype)
    return changed
