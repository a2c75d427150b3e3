"""Sites: names for the activations of a round, which all interventions and probes use.

A site is a component with a layer, a head and a position, if the component has these. Its text form
is ``component[layer.head]@position``, or ``L1H0@position`` for the output of head 0 of layer 1::

    resid_pre[1]@p?      L2H0@w?      pattern[0.1]      latent@<z>      embed@e_1

``L2H0`` is the head's output before ``W_O``, the component ``z``; ``z[2.0]`` means the same, and
``head`` is another name for ``z``. Layers, heads and rounds are counted from 0. Positions are
labels of the round's token layout; a site without a position means all positions. For ``scores``
and ``pattern`` the position is that of the query.

The components of a model are its hook points, ``model.points``; without a model, those of a
transformer. ``latent`` is the carried state. In models other than transformers the state has named
channels: ``latent@h`` is all rows of the channel h, and ``+`` joins channels. The index of a cycle
of a loop takes the place of the layer::

    latent@h             latent@h+c           block[2]             reset

What a round writes to the state has no site of its own. Edit ``latent`` in the next round or, in a
transformer, ``resid_post`` of the last layer at the position whose output is written, such as
``w?``.
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

from interp.core.display import describe_lacking
from interp.core.machine import Component, Machine
from interp.model.layout import RoundLayout
from interp.model.run import Rollout
from interp.model.transformer import COMPONENTS as COMPONENTS
from interp.support.checks import (
    array_of,
    check_type,
    checked,
    checked_fields,
    convert_value,
    integer,
    non_empty,
)
from interp.support.errors import InputError, require, require_known, unknown_name

ALIASES = {"head": "z"}
HEAD = "z"
"""The component that an address such as ``L1H0`` names: the output of a head before ``W_O``."""
VECTOR_AXES = ("pos", "latent", "")
"""Axes of the components whose activation is one vector for each position, row or episode."""
_LOOK_UP_KIND = Component("", "", "", "")  # the default of Site.kind
_SITE_PATTERN = re.compile(
    r"(?P<component>\w+)(\[(?P<layer>\d+)(\.(?P<head>\d+))?\])?(@(?P<position>[^#@]+))?"
)
_HEAD_PATTERN = re.compile(r"L(?P<layer>\d+)H(?P<head>\d+)(@(?P<position>[^#@]+))?")


def head_address(layer: int, head: int) -> str:
    """Return the address of a head, from the indices of its layer and of the head in the layer.

    >>> head_address(1, 0)
    'L1H0'
    """
    return f"L{layer}H{head}"


def _has_position_axis(kind: Component) -> bool:
    """Return whether the component's activation has an axis of positions, or of rows of the carried
    state.
    """
    axes = kind.axes.split()
    return "pos" in axes or "latent" in axes


def component(name: str, model: Machine | None = None) -> Component:
    """Return the description of a component (kind of activation), such as "resid_pre" or "z": its
    hook and its axes. A name that the model does not have is an error.

    Args:
        name: key of the component, or the alias "head" for "z".
        model: the model whose components are looked up; by default those of any transformer.
    """
    points = COMPONENTS if model is None else model.points
    key = ALIASES.get(name, name)
    if model is not None and key in COMPONENTS and key not in points:
        raise InputError(f"{describe_lacking(model, key)}; its points are {', '.join(points)}")
    aliases = [alias for alias, target in ALIASES.items() if target in points]
    require_known("component", name, [*points, *aliases], limit=20)
    return points[key]


@dataclass(frozen=True)
@checked
class Site:
    """The address of an activation in a round: which kind of activation, in which layer and head,
    at which position of the round's tokens.

    >>> site = Site.parse("L2H0@w?")
    >>> site
    Site(component='z', layer=2, head=0, position='w?')
    >>> str(site), site.hook
    ('L2H0@w?', 'blocks.2.attn.hook_z')
    >>> Site.parse("z[2.0]@w?") == site
    True

    Attributes:
        component: name of the component (kind of activation), such as "resid_pre".
        layer: index of the layer; None if the component has no layers.
        head: index of the head; None means all heads.
        position: label of the position (for attention patterns and scores, that of the query); None
            means all positions.
        kind: description of the component: its hook and its axes; looked up by its name unless
            passed.
    """

    component: str
    layer: int | None = None
    head: int | None = None
    position: str | None = None
    kind: Component = field(default=_LOOK_UP_KIND, compare=False, repr=False)

    def __post_init__(self) -> None:
        """Replace an alias of the component by its key, and check that the component has the named
        layer, head and position.

        The description of the component (``kind``) is looked up, unless it was passed. It must be
        passed for a component that only one model has, such as a hook point of an adapted model.
        """
        if self.kind is _LOOK_UP_KIND:
            kind = component(check_type("component", self.component, str))
        else:
            kind = check_type("kind", self.kind, Component)
        object.__setattr__(self, "component", kind.key)
        object.__setattr__(self, "kind", kind)
        layer, head, position = self.layer, self.head, self.position
        rule, form = "takes no layer", f"{kind.key}@position"
        if kind.has_layer:
            rule = "needs a layer"
            form = f"{kind.key}[layer]@position; mediation.paths and sites.sites list those of every layer"
        subject = f"a site of component {kind.key!r}"
        require(
            (layer is not None) == kind.has_layer,
            f"{subject} {rule}, got layer {layer!r}; write {form}",
        )
        with_heads = ", ".join(
            candidate.key for candidate in COMPONENTS.values() if candidate.has_head
        )
        require(
            head is None or kind.has_head,
            f"{subject} takes no head, got head {head!r}; components with heads: {with_heads}",
        )
        require(
            position is None or _has_position_axis(kind),
            f"{subject} takes no position, got {position!r}",
        )

    def __str__(self) -> str:
        component, layer, head = self.component, self.layer, self.head
        place = "" if self.position is None else f"@{self.position}"
        if layer is None:
            return f"{component}{place}"
        if head is None:
            return f"{component}[{layer}]{place}"
        if component == HEAD:
            return f"{head_address(layer, head)}{place}"
        return f"{component}[{layer}.{head}]{place}"

    @classmethod
    def parse(cls, text: str, model: Machine | None = None) -> Site:
        """Return the site that a text names.

        Args:
            text: text such as "resid_pre[1]@p?" (layer 1, at the position labelled p?), "L1H0" or
                "latent".
            model: the model whose components are looked up; by default those of any transformer.
        """
        stripped = text.strip()
        address = _HEAD_PATTERN.fullmatch(stripped)
        # A hook point of the model may itself have a name such as L1H0.
        is_point = model is not None and stripped.partition("@")[0] in model.points
        if address is not None and not is_point:
            kind = component(HEAD, model)
            layer, head = int(address["layer"]), int(address["head"])
            return cls(HEAD, layer, head=head, position=address["position"], kind=kind)
        match = _SITE_PATTERN.fullmatch(stripped)
        if match is None:
            raise InputError(
                f"{text!r} is not a site; write component[layer.head]@position, such as 'resid_pre[1]@p?' or 'latent', "
                "and 'L2H0@p?' for what head 0 of layer 2 puts out. Layers and heads are counted from 0; for the name "
                "of a hook, use Site.at_hook('blocks.1.hook_resid_post', position='p?')"
            )
        name, layer_text, head_text, position = match.group(
            "component", "layer", "head", "position"
        )
        return cls(
            name,
            layer=None if layer_text is None else int(layer_text),
            head=None if head_text is None else int(head_text),
            position=position,
            kind=component(name, model),
        )

    @classmethod
    def at_hook(cls, hook: str, head: int | None = None, position: str | None = None) -> Site:
        """Return the site of a TransformerLens hook name.

        Args:
            hook: name such as "blocks.1.hook_resid_post".
            head: index of the head; None means all heads.
            position: label of the position; None means all positions.
        """
        for kind in COMPONENTS.values():
            # The hook is a template, such as "blocks.{layer}.hook_resid_post".
            pattern = re.escape(kind.hook).replace(r"\{layer\}", r"(\d+)")
            match = re.fullmatch(pattern, hook)
            if match:
                layer = int(match[1]) if kind.has_layer else None
                return cls(kind.key, layer, head=head, position=position)
        hooks = [kind.hook for kind in COMPONENTS.values()]
        raise unknown_name("hook point of a component", hook, hooks, limit=20)

    @property
    def hook(self) -> str:
        """The name of the hook at this site."""
        return self.kind.hook.format(layer=self.layer)

    def labels(self, layout: RoundLayout) -> tuple[str, ...]:
        """Return the labels of all positions of the component's activation, in rounds with this
        token layout. For the carried state, these are the labels of its rows (vectors), such as
        "<z>". The position of the site itself does not matter.
        """
        kind, labels_of_round = self.kind, layout.labels
        if kind.labels:  # a component may name its positions itself
            return kind.labels
        if kind.axes != "latent":
            return labels_of_round
        return tuple(labels_of_round[i] for i in layout.latent_positions)

    def index(self, layout: RoundLayout) -> tuple[slice | int | list[int], ...]:
        """Return the index with which ``activation[index]`` is the part at this site.
        ``activation`` is what the site's hook gets, ``[batch, ...]``, and ``layout`` the token
        layout of the round. The index has one entry per axis up to the head or position; the axis
        of the vector (such as ``d_model``) is not indexed.
        """
        whole_axis = slice(None)
        place = self._index_position(self.labels(layout))
        head: slice | int = whole_axis if self.head is None else self.head
        by_axis = {"pos": place, "latent": place, "head": head}
        axes = self.kind.axes.split()  # without the batch, which comes first
        return whole_axis, *(by_axis.get(axis, whole_axis) for axis in axes)

    def _index_position(self, labels: tuple[str, ...]) -> slice | int | list[int]:
        """Return the index of the site's position on its axis of positions or of rows.

        It is a slice of all for a site without a position, an integer for one position, and a
        sorted list of rows if the position names channels of the carried state, such as "h+c".

        Args:
            labels: labels of the positions, or of the rows of the carried state, in order.
        """
        position = self.position
        if position is None:
            return slice(None)
        if position in labels:
            return labels.index(position)
        if self.kind.axes != "latent":
            raise unknown_name("position label", position, labels, limit=40)
        rows: set[int] = set()
        for channel in position.split("+"):
            # A channel's rows are labelled by its name, or "NAME_1", "NAME_2", ... if it has several.
            pattern = re.compile(rf"{re.escape(channel)}(_\d+)?")
            rows_of_channel = {i for i, label in enumerate(labels) if pattern.fullmatch(label)}
            if not rows_of_channel:
                raise unknown_name("latent position", channel, labels, limit=40)
            rows |= rows_of_channel
        return sorted(rows)

    def read(self, activation: Tensor, layout: RoundLayout) -> Tensor:
        """Return the part of an activation that the site selects.

        Args:
            activation: activation at the site's hook, ``[batch, ...]``.
            layout: token layout of the round.

        Returns:
            The selected part, ``[batch, ...]``.
        """
        try:
            return activation[self.index(layout)]
        except IndexError as error:
            shape = tuple(activation.shape)
            raise InputError(
                f"an activation of shape {shape} does not hold {str(self)!r}: {error}"
            ) from error


@checked
def sites(
    model: Machine,
    layout: RoundLayout | None = None,
    components: str | Iterable[str] | None = None,
    positions: str | Iterable[str] | None = "all",
    layers: Iterable[int] | Literal["all"] = "all",
) -> list[Site]:
    """List every site (activation at one layer, head and position) of some components (kinds of
    activation). They are ordered by component, layer, head and position.

    Args:
        model: the model.
        layout: token layout of the rounds; by default the model's.
        components: names of components; by default residual stream, attention outputs and heads, or
            every hook point of a model that is no transformer (:func:`default_components`).
        positions: labels of positions, or of rows (vectors) of the carried state. "all" makes a
            site for each of them, None one site for all positions together.
        layers: indices of layers, or "all".
    """
    layout = model.layout if layout is None else layout
    task, model_task = layout.task, model.layout.task
    require(task == model_task, f"layout is of {task!r}, not of {model_task!r}")
    if components is None:
        components = default_components(model)
    names = [components] if isinstance(components, str) else non_empty("components", components)
    wanted_layers = None if isinstance(layers, str) else non_empty("layers", layers)  # None: all
    if not (positions is None or isinstance(positions, str)):
        positions = list(positions)
        require(
            len(positions) > 0,
            "positions is empty; give labels, 'all' for each on its own, or None for whole activations",
        )
    all_sites: list[Site] = []
    for name in names:
        kind = component(name, model)
        key, n_heads = kind.key, kind.n_heads
        layer_choices: Iterable[int | None] = [None]
        example_layer = None
        if kind.has_layer:
            layer_choices = range(kind.n_layers) if wanted_layers is None else wanted_layers
            example_layer = 0  # positions have the same labels in every layer
        head_choices = range(n_heads) if n_heads else [None]
        example = Site(key, example_layer, kind=kind)
        labels = _list_position_labels(example, layout, positions)
        for layer, head, label in product(layer_choices, head_choices, labels):
            all_sites.append(Site(key, layer, head=head, position=label, kind=kind))
    require(all_sites, f"no site of {', '.join(names)} is at {positions}")
    return [resolve_site(site, model, layout) for site in dict.fromkeys(all_sites)]


def select_sites(
    model: Machine, layout: RoundLayout, requested: Site | str | Sequence[Site | str] | None
) -> list[Site]:
    """Turn the argument ``sites`` of an analysis into a list of sites (activations at one layer,
    head and position).

    The name of a component with layers, such as "resid_pre", stands for every layer, head and
    position, each as a separate site. "resid_pre@p?" stands for every layer and head at one
    position. The name of a component without layers, such as "latent", is one site: all positions
    together.

    Args:
        model: the model.
        layout: token layout of the rounds.
        requested: sites, texts of sites, or names of components; None for residual stream,
            attention outputs and heads, or every hook point of a model that is no transformer.

    Returns:
        The sites, each checked against the model.
    """
    if requested is None:
        return sites(model, layout)
    if isinstance(requested, Site | str):
        requested = [requested]
    selected: list[Site] = []
    for text in non_empty("sites", requested):
        name, at_sign, position = str(text).partition("@")
        is_head = _HEAD_PATTERN.fullmatch(name) is not None
        is_component = isinstance(text, str) and name.isidentifier() and not is_head
        # With layers, a name stands for one site for each layer, head and position.
        if is_component and component(name, model).has_layer:
            selected += sites(model, layout, name, positions=position if at_sign else "all")
        else:
            selected.append(resolve_site(text, model, layout))
    return selected


def resolve_one(
    requested: Site | str | Sequence[Site | str], model: Machine | None, layout: RoundLayout
) -> Site:
    """Return one site, after checking that the model has it. If several sites are passed, they must
    be rows (vectors) of the state that the model carries from round to round. They are joined into
    one site, such as "latent@h+c".

    Args:
        requested: a site or its text; or several, such as ["latent@h", "latent@c"].
        model: the model that has the site; None skips the check.
        layout: token layout of the rounds.

    >>> import interp
    >>> model = interp.load("wma-handwired", n_experts=2)
    >>> str(resolve_one(["latent@<z>"], model, model.layout))
    'latent@<z>'
    """
    if isinstance(requested, Site | str):
        return resolve_site(requested, model, layout)
    resolved = [resolve_site(site, model, layout) for site in non_empty("sites", requested)]
    if len(resolved) == 1:
        return resolved[0]
    names = ", ".join(map(str, resolved))
    carried = [site for site in resolved if site.kind.axes == "latent"]
    rows = [site.position for site in carried if site.position]
    require(
        len(rows) == len(resolved),
        f"one site is read here, or several channels of what is carried, such as ['latent@h', 'latent@c']; got {names}",
    )
    joined = "+".join(str(row) for row in rows)
    return resolve_site(replace(resolved[0], position=joined), model, layout)


def default_components(model: Machine) -> tuple[str, ...]:
    """Return the names of the components (kinds of activation) that analyses patch by default. For
    a transformer, these are residual stream, attention output and heads; for another model, every
    hook point.
    """
    components = ("resid_pre", "attn_out", "z")
    return tuple(model.points) if describe_lacking(model, *components) else components


def carried_mask(model: Machine) -> Bool[Tensor, "row width"]:
    """Return a mask ``[row, width]`` of the state that the model carries from round to round. It is
    True for the numbers that random controls may change, and False for the padding of rows to a
    common width.

    It is also False for ``NAME_length``, the current length of a part of the state that grows, such
    as a cache.
    """
    length_names = {f"{channel.name}_length" for channel in model.channels if channel.grows}
    widths_by_row: list[int] = []
    for channel in model.channels:
        width = 0 if channel.name in length_names else channel.shape[-1]
        widths_by_row += [width] * channel.rows
    widest = max(channel.shape[-1] for channel in model.channels)
    widths = torch.tensor(widths_by_row).unsqueeze(1)  # [row, 1]
    return torch.arange(widest) < widths  # each row is True up to its own width


def _list_position_labels(
    site: Site, layout: RoundLayout, positions: str | Iterable[str] | None
) -> list[str | None]:
    """Return the labels of the positions (or rows of the carried state) for which separate sites of
    a component are made; [None] for one site of all positions together.

    Args:
        site: a site of the component.
        layout: token layout of the rounds.
        positions: labels, "all" for each position separately, or None for all positions together.
    """
    if positions is None or not _has_position_axis(site.kind):
        return [None]
    labels = site.labels(layout)
    kind = site.kind
    # Only the positions of a round are known to the layout: not rows of the carried state, nor
    # positions with labels of the component's own.
    if "latent" not in kind.axes.split() and not kind.labels:
        return [labels[i] for i in layout.positions(positions)]
    if positions == "all":
        return list(labels)
    requested = [positions] if isinstance(positions, str) else list(positions)
    return [label for label in labels if label in requested]


def resolve_site(site: Site | str, model: Machine | None, layout: RoundLayout) -> Site:
    """Return the site that a text names, or the passed site, after checking that the model has it.
    A site that it lacks is an error.

    Args:
        site: a site or its text.
        model: the model. None for rollouts that have no model, such as those from a file; the site
            is then checked when it is read.
        layout: token layout of the rounds.
    """
    if isinstance(site, str):
        site = Site.parse(site, model)
    if model is None:
        return site
    kind = component(site.component, model)
    for axis, index, n in (("layer", site.layer, kind.n_layers), ("head", site.head, kind.n_heads)):
        # convert_value returns a mark that is in no range if the index is no integer.
        exists = index is None or convert_value(int, index) in range(n)
        require(
            exists,
            f"site {str(site)!r} does not exist: {model.name!r} has {axis}s 0 to {n - 1}; "
            "interp.interventions.sites.sites(model) lists every site",
        )
    model.hook_names(site.hook)  # raises on a hook that the model lacks
    site.index(layout)  # raises on an unknown position
    return replace(site, kind=kind)


def mark_absent(new: Tensor, activation: Tensor) -> Tensor:
    """Return ``new`` with infinity in all entries that are NaN both there and in ``activation``.

    A looped model runs a variable number of iterations ("cycles") per round. Activations of
    iterations that it did not run are NaN, and cannot be edited: if a number replaces such a NaN,
    the model predicts NaN. A NaN, from another run without this iteration, would look like no edit,
    so infinity is written instead.

    Args:
        new: values to write.
        activation: the values that they replace, in the same shape.
    """
    return new.masked_fill(new.isnan() & activation.isnan(), torch.inf)


def write(activation: Tensor, site: Site, layout: RoundLayout, new: Tensor) -> Tensor:
    """Return a copy of an activation with new values at a site.

    Where the activation is NaN, it belongs to an iteration that a looped model did not run, and
    cannot be edited: the model predicts NaN if another value is written (:func:`mark_absent`).

    Args:
        activation: activation at the site's hook, ``[batch, ...]``.
        site: the site.
        layout: token layout of the round.
        new: the new values, in the shape of the site's part of the activation.
    """
    changed = activation.clone()
    new = check_type("what is written", new, Tensor)
    index = site.index(layout)
    try:
        changed[index] = new.to(changed.dtype)
        changed[index] = mark_absent(changed[index], activation[index])
    except (IndexError, RuntimeError):
        raise InputError(
            f"what is written at {str(site)!r} has shape {tuple(new.shape)}: no fit to activations "
            f"{tuple(activation.shape)}"
        ) from None
    return changed


@dataclass(frozen=True)
@checked_fields
class Place:
    """What an interchange intervention replaces: the activation at a site, or its part in a linear
    subspace. Calling the place with the activations of two runs, ``[..., d]`` each, returns the
    first with this part replaced by that of the second.

    Attributes:
        site: the site.
        basis: orthonormal basis of the subspace, ``[d, rank]``; None for the whole activation.
        control_basis: for a control only: orthonormal basis of another subspace, ``[d, rank]``.
            The activation is then changed in this subspace instead, by the same distance. None
            otherwise.

    >>> place = Place.of("resid_pre[1]@p?", [[1.0, 0, 0, 0], [1.0, 1, 0, 0]])     # the span of two directions
    >>> str(place)
    'resid_pre[1]@p? (rank 2)'
    >>> base, source = torch.zeros(1, 4).double(), torch.tensor([[1.0, 2, 3, 4]]).double()
    >>> place(base, source).round(decimals=6).tolist()
    [[1.0, 2.0, 0.0, 0.0]]
    """

    site: Site
    basis: Tensor | None = None
    control_basis: Tensor | None = None

    @classmethod
    def of(
        cls,
        site: Site | str,
        directions: ArrayLike | Tensor | None = None,
        model: Machine | None = None,
    ) -> Place:
        """Make a place from a site and directions that span the subspace.

        Args:
            site: a site or its text.
            directions: linearly independent directions, ``[rank, d]``; None for the whole
                activation.
            model: the model whose components are looked up; by default those of any transformer.
        """
        if isinstance(site, str):
            site = Site.parse(site, model)
        if directions is None:
            return cls(site)
        numbers = np.atleast_2d(array_of("directions", directions, finite=True))
        rows = torch.as_tensor(numbers).double()
        rank, shape = len(rows), tuple(rows.shape)
        is_matrix = np.ndim(directions) > 0 and rows.ndim == 2 and rank > 0
        is_independent = is_matrix and int(torch.linalg.matrix_rank(rows)) == rank
        require(
            is_independent,
            f"directions are [rank, d], none of them made of others, got shape {shape}",
        )
        basis, _ = torch.linalg.qr(rows.T)
        return cls(site, basis)

    @property
    def is_whole(self) -> bool:
        """Whether the whole activation is replaced: True if there is neither a subspace nor a
        control's subspace (``control_basis``).
        """
        return self.basis is None and self.control_basis is None

    def __str__(self) -> str:
        rank = "" if self.basis is None else f" (rank {self.basis.shape[1]})"
        return f"{self.site}{rank}"

    def placebo(self, width: int, seed: int, padding: int = 0) -> Place | None:
        """Return a control of this place: replacing it changes the activation by the same distance,
        but in a random subspace that is orthogonal to this one.

        The random subspace has the same rank, or as many dimensions as are left if these are fewer.
        For a whole activation it is a random line. A subspace that is not orthogonal would contain
        a part of the variable: such controls scored up to .46 at true sites of handwired models.

        Args:
            width: number of dimensions of the activation without padding.
            seed: seed of the random subspace.
            padding: number of further dimensions that are only padding.

        Returns:
            The control. None if no other direction exists (the activation is a single number), and
            at heads and attention scores.
        """
        integer("width", width, 1, 10**6)
        integer("padding", padding, 0)
        if self.site.kind.axes not in VECTOR_AXES:
            return None
        basis = self.basis
        own_rank = 1 if basis is None else basis.shape[1]  # a line for a whole activation
        # Only width - own_rank dimensions are orthogonal to this subspace.
        rank = min(own_rank, width - own_rank)
        if rank <= 0:
            return None
        generator = torch.Generator().manual_seed(seed)
        normal = torch.randn(width, rank, generator=generator)
        orthonormal = torch.linalg.svd(normal, full_matrices=False).U
        drawn = nn.functional.pad(orthonormal, (0, 0, 0, padding))  # rows of 0 for the padding
        if basis is None:
            return replace(self, control_basis=drawn)
        drawn = drawn.to(basis)
        shared = basis @ (basis.T @ drawn)  # projection on this subspace
        orthogonal, _ = torch.linalg.qr(drawn - shared)
        return replace(self, control_basis=orthogonal)

    def __call__(self, base: Tensor, source: Tensor) -> Tensor:
        """Return the base's activation with its part in the subspace replaced by the source's. A
        control moves it by the same distance in the subspace of ``control_basis``.

        This equals TransformerLens' ``SubspaceInterchange``, ``NormMatchedPlacebo`` and
        ``random_basis`` (a test compares them). It is implemented here because that import loads
        half of ``transformers``.

        Args:
            base, source: activations at the site, ``[..., d]``.
        """
        if self.is_whole:
            return source
        move = source - base
        width = base.shape[-1]
        directions = torch.eye(width) if self.basis is None else self.basis
        basis = directions.to(move)
        n_rows = len(basis)
        require(n_rows == width, f"{str(self)!r} has {width} numbers, its directions {n_rows}")
        if self.basis is not None:
            gram = basis.mT @ basis
            identity = torch.eye(len(gram)).to(basis)
            # NaN is not close to 1: such a basis is refused, too.
            require(
                torch.allclose(gram, identity, atol=0.02),
                f"the basis of {str(self)!r} is not orthonormal; Place.of takes directions that are not",
            )
        patched = base + move @ basis @ basis.T  # the move's projection on the subspace is added
        if self.control_basis is None:
            return patched
        control_basis = self.control_basis.to(move)
        distance = (patched - base).norm(dim=-1, keepdim=True)
        control_move = move @ control_basis @ control_basis.T
        scale = distance / control_move.norm(dim=-1, keepdim=True).clamp_min(1e-8)  # no 0 / 0
        return base + control_move * scale


Places = Place | Site | str | Sequence[Place | Site | str]
"""Type of arguments for places: one or several, each a place, a site or the text of a site."""


def resolve_places(places: Places, model: Machine, run: Rollout) -> list[Place]:
    """Turn places (sites, with or without a subspace), sites or texts of sites into a list of
    places. Check that the model has each.

    Args:
        places: a place, a site or a text, or several of these.
        model: the model.
        run: a rollout of the model, which determines the token layout.
    """
    requested = [places] if isinstance(places, Place | Site | str) else non_empty("places", places)
    resolved: list[Place] = []
    for place in requested:
        if not isinstance(place, Place):
            place = Place.of(place, model=model)
        site = resolve_site(place.site, model, run.layout)
        resolved.append(replace(place, site=site))
    return resolved


def tile(x: Tensor, times: int) -> Tensor:
    """Return ``times`` copies of the tensor ``x``, concatenated along its first axis."""
    other_axes = [1] * (x.ndim - 1)  # each stays as it is
    return x.repeat(times, *other_axes)


@contextmanager
def freeze_parameters(model: Machine) -> Iterator[None]:
    """Context manager: inside, no gradients are computed for the parameters of the model."""
    module = cast(nn.Module, model)
    flags = [parameter.requires_grad for parameter in module.parameters()]
    module.requires_grad_(False)
    try:
        yield
    finally:
        for parameter, flag in zip(module.parameters(), flags, strict=True):
            parameter.requires_grad_(flag)
