"""Attention views: circuitsvis' ``AttentionHeads``, offline, with a choice of episode, round, layer and head around it.

    >>> import interp
    >>> from interp.tasks import experts
    >>> model = interp.load("wma-handwired", n_experts=2)
    >>> hooks = [f"blocks.{layer}.attn.hook_pattern" for layer in range(model.config.n_layers)]
    >>> run = interp.rollout(model, experts.sample(2, 12, 2, seed=0), names_filter=hooks)
    >>> show(run).rounds                                          # in a notebook, ``show(run)`` draws itself
    (0, 1, 2, 4, 5, 6, 7, 9, 10, 11)

A pattern shows where a head looks; it is no evidence that what it reads there matters. How a view is kept small:
docs/method/pages.md.
"""

from __future__ import annotations

import base64
import gzip
import importlib.util
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from html import escape
from importlib.metadata import distribution
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

import numpy as np
from numpy.typing import NDArray

from interp.core.display import lacks
from interp.core.machine import Machine
from interp.results.palette import LIGHT
from interp.support.checks import checked, fit
from interp.support.errors import InputError, require
from reports.blocks import TEMPLATES, TEXTS, environment, policy, stylesheet

if TYPE_CHECKING:
    from interp.model.run import Rollout


Heads = Sequence[Mapping[str, str]]
"""Per layer: short name of a head -> what it does, in the order of the weights; heads beyond these are empty."""

N_EPISODES, N_ROUNDS = 3, 10
"""Episodes and rounds that a reader can choose from: what :func:`show` takes of a longer run."""
_LEVELS = 1000  # a weight is drawn in so many steps of its layer's largest


@dataclass(frozen=True, eq=False)
class AttentionView:
    """The attention of every head over the positions of a round, in some rounds of some episodes.

    Args:
        patterns: a layer's weights, ``[episode, round, head, query, key]``, or the raw scores of linear heads; causal.
        labels, heads: a label per position; per layer, a short name per head (``"L1H0"``).
        title, caption: what the view shows; under the static picture.
        episodes, rounds: what the first two axes are of; ``first`` is the index on each that is shown first.
        opened: whether the interactive view is open from the start.
    """

    patterns: Sequence[NDArray[np.floating]]
    labels: Sequence[str]
    heads: Sequence[Sequence[str]]
    title: str
    caption: str = ""
    episodes: Sequence[int] = (0,)
    rounds: Sequence[int] = (0,)
    first: tuple[int, int] = (0, 0)
    opened: bool = False
    kind: ClassVar[str] = "attention"

    def __post_init__(self) -> None:
        require(
            len(self.patterns) == len(self.heads),
            f"{len(self.patterns)} layers, names for {len(self.heads)}",
        )
        for layer, (pattern, names) in enumerate(zip(self.patterns, self.heads, strict=True)):
            wanted = (
                len(self.episodes),
                len(self.rounds),
                len(names),
                len(self.labels),
                len(self.labels),
            )
            require(
                np.shape(pattern) == wanted,
                f"layer {layer}: an attention pattern of shape {np.shape(pattern)} does not fit {len(names)} head "
                f"names and {len(self.labels)} position labels; it must be [episode, round, head, query, key] {wanted}",
            )
            finite = bool(np.isfinite(np.asarray(pattern, dtype=np.float64)).all())
            require(
                finite,
                f"layer {layer}: the pattern of {self.title!r} holds NaN or infinity; give finite weights",
            )

    @property
    def data(self) -> str:
        """What the controls feed the component, as JSON that is safe inside a ``<script>``."""
        layers, cells = [], []
        for pattern, names in zip(
            self.patterns, self.heads, strict=True
        ):  # only cells at or below the diagonal
            weights = np.asarray(pattern, dtype=np.float64)
            scale, signed = float(np.abs(weights).max(initial=0)) or 1.0, bool((weights < 0).any())
            shares = weights[..., *np.tril_indices(weights.shape[-1])] / scale
            cells.append((np.round(shares * _LEVELS) + _LEVELS * signed).astype("<u2"))
            layers.append({"heads": list(names), "scale": float(f"{scale:.6g}"), "signed": signed})
        record: dict[str, object] = {
            "labels": list(self.labels),
            "layers": layers,
            "episodes": list(self.episodes),
        }
        record |= {
            "rounds": list(self.rounds),
            "colours": [LIGHT["blue"], LIGHT["vermilion"]],
            "levels": _LEVELS,
        }
        record["weights"] = _packed(np.concatenate(cells, axis=2).tobytes())
        return json.dumps(record, separators=(",", ":")).replace("<", "\\u003c")

    def html(self, prefix: str, number: int = 0) -> str:
        """The static picture with the interactive view under it; ``prefix`` is unique on the page."""
        from interp.results.style import inline_svg
        from reports.panels import attention

        episode, at = self.first
        shown = [np.asarray(pattern)[episode, at] for pattern in self.patterns]
        picture = inline_svg(attention(shown, self.labels, self.heads), self.title, prefix)
        template = environment().get_template("attention.html.j2")
        return str(template.render(view=self, id=prefix, picture=picture, number=number))

    def __repr__(self) -> str:
        return f"Attention in {len(self.rounds)} rounds of {len(self.episodes)} episodes (drawn in a notebook)"

    def _repr_html_(self) -> str:
        """A frame of its own for a notebook: no request, and nothing of the notebook's is touched."""
        page = str(
            environment()
            .get_template("frame.html.j2")
            .render(view=self, style=stylesheet(), **carried())
        )
        frame = f'<iframe title="{escape(self.title)}" style="width:100%;height:900px;border:0"'
        return f'{frame} srcdoc="{escape(page, quote=True)}"></iframe>'


@checked
def show(run: Rollout, heads: Heads | None = None, *, round: int | None = None) -> AttentionView:
    """Show the attention of a run as a view that a notebook draws; it works offline.

    Args:
        run: a rollout with cached patterns: ``names_filter=["blocks.0.attn.hook_pattern", ...]``. Of a long run the
            first ``N_EPISODES`` episodes and ``N_ROUNDS`` rounds, evenly spaced, can be chosen from.
        heads: names of the heads by layer; L0H0, L0H1, ... when None.
        round: the round that is shown first, counted from 0; the earliest when None.

    Raises:
        InputError: the run caches no attention, or not that of ``round``.
    """
    from interp.model.run import Rollout

    fit("run", run, Rollout)
    hooks = sorted(name for name in run.cache if name.endswith("attn.hook_pattern"))
    example = "rollout(..., names_filter=['blocks.0.attn.hook_pattern', ...])"
    require(bool(hooks), f"the run caches no attention; give {example}")
    cached = list(run.cached_rounds)
    chosen = {cached[i] for i in spread(len(cached), N_ROUNDS)}
    if round is not None:
        said = f"the attention of round {round} is not cached; cached rounds: {cached}"
        require(round in cached, said)
        chosen.add(round)
    rounds = sorted(chosen)
    rows = [cached.index(t) for t in rounds]
    patterns = []
    names = []
    for hook in sorted(hooks, key=_layer_of):
        layer = _layer_of(hook)
        pattern = run.cache[hook][:N_EPISODES, rows].numpy(force=True)
        addresses = [f"L{layer}H{head}" for head in range(pattern.shape[2])]
        layer_names = addresses if heads is None else list(heads[layer])
        patterns.append(pattern[:, :, : len(layer_names)])
        names.append(layer_names)
    return AttentionView(
        patterns,
        run.layout.labels,
        names,
        f"Attention of {run.settings.get('model', 'a model')}",
        episodes=tuple(range(len(patterns[0]))),
        rounds=tuple(rounds),
        first=(0, 0 if round is None else rounds.index(round)),
        opened=True,
    )


def _layer_of(hook: str) -> int:
    """Return the layer that a hook's name holds: 1 of ``blocks.1.attn.hook_pattern``."""
    return int(hook.split(".")[1])


def spread(n: int, wanted: int) -> list[int]:
    """At most ``wanted`` of ``n`` indices, evenly spaced, the first and the last among them."""
    return sorted({int(i) for i in np.linspace(0, n - 1, min(n, wanted)).round()})


@cache
def library_script() -> str:
    """circuitsvis' browser bundle, from the installed wheel, without its source map."""
    spec = importlib.util.find_spec("circuitsvis")  # importing it would import torch
    path = Path(spec.origin).parent / "dist" / "cdn" / "iife.js" if spec and spec.origin else None
    if path is None or not path.is_file():
        needed = "attention views need circuitsvis and its dist/cdn/iife.js"
        raise InputError(f"{needed}; run: pip install 'circuitsvis>=1.43'")
    return (
        re.sub(r"//# sourceMappingURL=\S+", "", path.read_text("utf-8"))
        .replace("\r\n", "\n")
        .strip()
    )


def carried(*others: str) -> dict[str, object]:
    """What a page with views carries: circuitsvis' bundle, packed, its licence, scripts and the policy for them."""
    library, scripts = library_script(), [(TEMPLATES / "attention.js").read_text("utf-8"), *others]
    wheel = distribution("circuitsvis")
    licence = (
        wheel.read_text("LICENSE.txt") or wheel.read_text("licenses/LICENSE.txt") or "MIT License"
    )
    notices = [(TEXTS["attention"]["notice"].format(version=wheel.version), licence.strip())]
    held = {"library": _packed(library.encode()), "scripts": scripts, "notices": notices}
    return {**held, "policy": policy([library, *scripts])}


def _packed(content: bytes) -> str:
    """Compressed, for a browser to unpack: a quarter of the bytes; the same each time."""
    return base64.b64encode(gzip.compress(content, mtime=0)).decode()


def heads_of(model: Machine) -> Heads:
    """What each head is called: its address, such as "L0H3", and the words that the model has for it.

    Heads named "-" pad a layer to the common width and are left out. The numbers in the names of handwired heads are
    the paper's steps, which count from one.
    """
    require(not (why := lacks(model, "pattern")), why)
    kind, called = (
        model.points["pattern"],
        getattr(getattr(model, "config", None), "head_names", ()),
    )
    if not called:
        return [
            {f"L{layer}H{head}": "" for head in range(kind.n_heads)}
            for layer in range(kind.n_layers)
        ]
    return [
        {f"L{layer}H{head}": worded(name) for head, name in enumerate(names) if name != "-"}
        for layer, names in enumerate(called)
    ]


def worded(name: str) -> str:
    """The words of a head's name, and after them the paper's number, which names a step.

    >>> worded("1.4 current-phase tag"), worded("predict")
    ('current-phase tag (step 1.4)', 'predict')
    """
    return re.sub(r"^(\d+\.\d+)\s*(.*)", r"\2 (step \1)", name)
