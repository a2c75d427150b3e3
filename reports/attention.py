"""Attention views: the ``AttentionHeads`` component of circuitsvis, in which a reader can choose
episode and round.

    >>> import interp
    >>> from interp.tasks import experts
    >>> model = interp.load("wma-handwired", n_experts=2)
    >>> hooks = [f"blocks.{layer}.attn.hook_pattern" for layer in range(model.config.n_layers)]
    >>> run = interp.rollout(model, experts.sample(2, 12, 2, seed=0), names_filter=hooks)
    >>> show(run).rounds                                          # in a notebook, ``show(run)`` draws itself
    (0, 1, 2, 4, 5, 6, 7, 9, 10, 11)

Views work offline. A pattern shows where a head attends; it is no evidence that what the head reads
there matters. docs/method/pages.md says how the size of a view is limited.
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
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from interp.core.display import describe_lacking
from interp.core.machine import Machine
from interp.results.palette import LIGHT
from interp.support.checks import check_type, checked, checked_fields
from interp.support.errors import InputError, require
from reports.blocks import TEMPLATES, environment, policy, stylesheet
from reports.texts import TEXTS

if TYPE_CHECKING:
    from interp.model.run import Rollout


Heads = Sequence[Mapping[str, str]]
"""For each layer, what each head does by the head's short name, in the order of the weights.

Heads beyond these are padding.
"""

N_EPISODES, N_ROUNDS = 3, 10
"""Numbers of episodes and rounds that :func:`show` keeps of a longer run, for a reader to choose
from.
"""
_LEVELS = 1000
"""The interactive view rounds a weight to so many steps of its layer's largest weight."""


@dataclass(frozen=True, eq=False)
@checked_fields
class AttentionView:
    """A view of the attention of every head over the positions of a round, for some rounds of some
    episodes.

    Args:
        patterns: attention weights of each layer, ``[episode, round, head, query, key]``; raw
            scores for linear heads. A query attends only to itself and earlier positions.
        labels: label of each position.
        heads: for each layer, a short name per head, such as "L1H0".
        title: what the view shows.
        caption: text under the static picture.
        episodes: for each episode of the patterns, its number as the view displays it.
        rounds: for each round of the patterns, its number as the view displays it.
        first: (index on the axis "episode", index on the axis "round") of the pattern that is shown
            first.
        opened: True if the interactive view is open from the start.
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
        """Refuse patterns whose shape does not fit the names, or that are not finite."""
        n_layers, n_named_layers = len(self.patterns), len(self.heads)
        require(n_layers == n_named_layers, f"{n_layers} layers, names for {n_named_layers}")
        n_positions = len(self.labels)
        n_runs = (len(self.episodes), len(self.rounds))
        for layer, (pattern, names) in enumerate(zip(self.patterns, self.heads, strict=True)):
            shape = np.shape(pattern)
            wanted = (*n_runs, len(names), n_positions, n_positions)
            require(
                shape == wanted,
                f"layer {layer}: an attention pattern of shape {shape} does not fit {len(names)} head "
                f"names and {n_positions} position labels; it must be [episode, round, head, query, key] {wanted}",
            )
            weights = np.asarray(pattern, dtype=np.float64)
            require(
                np.isfinite(weights).all(),
                f"layer {layer}: the pattern of {self.title!r} holds NaN or infinity; give finite weights",
            )

    @property
    def data(self) -> str:
        """The data of the interactive view, as a JSON text that is safe inside a ``<script>``."""
        layers = []
        steps_by_layer = []  # of each layer [episode, round, head, cell of the lower triangle]
        queries, keys = np.tril_indices(len(self.labels))  # no query attends to a later position
        for pattern, names in zip(self.patterns, self.heads, strict=True):
            weights = np.asarray(pattern, dtype=np.float64)
            scale = float(np.abs(weights).max(initial=0)) or 1.0  # 1 if all weights are 0
            steps = np.round(weights[..., queries, keys] / scale * _LEVELS)
            is_signed = bool((weights < 0).any())
            if is_signed:  # from -_LEVELS to _LEVELS: shifted to start at 0
                steps += _LEVELS
            steps_by_layer.append(steps.astype("<u2"))  # unsigned integers of two bytes
            layer = {"heads": list(names), "scale": float(f"{scale:.6g}"), "signed": is_signed}
            layers.append(layer)
        record = {
            "labels": list(self.labels),
            "layers": layers,
            "episodes": list(self.episodes),
            "rounds": list(self.rounds),
            "colours": [LIGHT["blue"], LIGHT["vermilion"]],
            "levels": _LEVELS,
            "weights": _pack(np.concatenate(steps_by_layer, axis=2).tobytes()),
        }
        text = json.dumps(record, separators=(",", ":"))
        return text.replace("<", "\\u003c")  # a label with "</script>" would end the script

    def html(self, prefix: str, number: int = 0) -> str:
        """Return HTML with the static picture and the interactive view.

        Args:
            prefix: prefix of HTML identifiers, unique on the page.
            number: number of the figure on the page.
        """
        from interp.results.style import inline_svg
        from reports.panels import attention

        # Of each layer [head, query, key], in the round that is shown first.
        first_patterns = [np.asarray(pattern)[self.first] for pattern in self.patterns]
        figure = attention(first_patterns, self.labels, self.heads)
        picture = inline_svg(figure, self.title, prefix)
        template = environment().get_template("attention.html.j2")
        return str(template.render(view=self, id=prefix, picture=picture, number=number))

    def __repr__(self) -> str:
        return f"Attention in {len(self.rounds)} rounds of {len(self.episodes)} episodes (drawn in a notebook)"

    def _repr_html_(self) -> str:
        """Return the view as HTML for a notebook: in a frame that makes no requests and does not
        affect the notebook's style.
        """
        template = environment().get_template("frame.html.j2")
        page = template.render(view=self, style=stylesheet(), **get_template_variables())
        frame = f'<iframe title="{escape(self.title)}" style="width:100%;height:900px;border:0"'
        return f'{frame} srcdoc="{escape(page)}"></iframe>'


@checked
def show(run: Rollout, heads: Heads | None = None, *, round: int | None = None) -> AttentionView:
    """Return a view of a run's attention, which a notebook displays; it works offline.

    Args:
        run: a rollout with cached patterns: ``names_filter=["blocks.0.attn.hook_pattern", ...]``. A
            view shows the first 3 episodes, and 10 evenly spaced rounds of a long run.
        heads: for each layer, a mapping from the name of a head, such as "L1H0", to what it does,
            as :func:`heads_of` returns it. A layer with n entries shows its first n heads, under
            these names. All heads when None.
        round: index of the round that is shown first; negative numbers count from the end. The
            earliest when None.

    Raises:
        InputError: the run caches no attention, or not that of ``round``.
    """
    from interp.model.run import Rollout, select_rounds

    check_type("run", run, Rollout)
    hooks = sorted(name for name in run.cache if name.endswith("attn.hook_pattern"))
    example = "rollout(..., names_filter=['blocks.0.attn.hook_pattern', ...])"
    require(hooks, f"the run caches no attention; give {example}")
    cached = list(run.cached_rounds)
    if round is not None:
        (round,) = select_rounds(round, run.n_rounds)
        why = f"the attention of round {round} is not cached; cached rounds: {cached}"
        require(round in cached, why)
    # Indices of rounds: some that are evenly spaced, and the one that is shown first.
    chosen = {cached[i] for i in space_evenly(len(cached), N_ROUNDS)}
    first_round = min(cached) if round is None else round
    rounds = sorted(chosen | {first_round})
    cache_rows = [cached.index(t) for t in rounds]
    patterns = []
    names = []
    for hook in sorted(hooks, key=_find_layer):
        layer = _find_layer(hook)
        # [episode, round, head, query, key]
        pattern = run.cache[hook][:N_EPISODES, cache_rows].numpy(force=True)
        addresses = [f"L{layer}H{head}" for head in range(pattern.shape[2])]
        layer_names = addresses if heads is None else list(heads[layer])
        patterns.append(pattern[:, :, : len(layer_names)])
        names.append(layer_names)
    model = run.settings.get("model", "a model")
    return AttentionView(
        patterns=patterns,
        labels=run.layout.labels,
        heads=names,
        title=f"Attention of {model}",
        episodes=tuple(range(len(patterns[0]))),
        rounds=tuple(rounds),
        first=(0, rounds.index(first_round)),
        opened=True,
    )


def _find_layer(hook: str) -> int:
    """Return the layer number in the name of a hook: 1 for ``blocks.1.attn.hook_pattern``."""
    return int(hook.split(".")[1])


def space_evenly(n: int, wanted: int) -> list[int]:
    """Return a list of evenly spaced indices from 0 to ``n - 1``, with both ends; all indices if
    ``n`` is at most ``wanted``.

    Args:
        n: number of things to choose from.
        wanted: maximum number of indices.
    """
    return np.linspace(0, n - 1, min(n, wanted)).round().astype(int).tolist()


@cache
def library_script() -> str:
    """Return the JavaScript of circuitsvis from the installed package, without its source map."""
    spec = importlib.util.find_spec("circuitsvis")  # importing it would import torch
    origin = spec.origin if spec else None
    path = Path(origin or "").parent / "dist" / "cdn" / "iife.js"
    if origin is None or not path.is_file():
        needed = "attention views need circuitsvis and its dist/cdn/iife.js"
        raise InputError(f"{needed}; run: pip install 'circuitsvis>=1.43'")
    script = path.read_text("utf-8")  # with "\n" at the end of lines, on every system
    return re.sub(r"//# sourceMappingURL=\S+", "", script).strip()


def get_template_variables(*others: str) -> dict[str, Any]:
    """Return the variables with which the HTML template of a page with attention views is filled.

    Args:
        *others: texts of further scripts of the page. The script that shows attention is always
            included.

    Returns:
        "library": circuitsvis' JavaScript, compressed; "scripts": list of the page's scripts;
        "notices": circuitsvis' licence, as a list of one pair (title, text); "policy": a content
        security policy that allows these scripts only.
    """
    library = library_script()
    scripts = [(TEMPLATES / "attention.js").read_text("utf-8"), *others]
    wheel = distribution("circuitsvis")
    # Where the licence is depends on the tool that built the wheel.
    texts = [wheel.read_text(name) for name in ("LICENSE.txt", "licenses/LICENSE.txt")]
    licence = texts[0] or texts[1] or "MIT License"
    notice = TEXTS["attention"]["notice"].format(version=wheel.version)
    return {
        "library": _pack(library.encode()),
        "scripts": scripts,
        "notices": [(notice, licence.strip())],
        "policy": policy([library, *scripts]),
    }


def _pack(content: bytes) -> str:
    """Compress bytes (gzip) and encode them as text (base64) that a browser can unpack; equal bytes
    give equal text.
    """
    return base64.b64encode(gzip.compress(content, mtime=0)).decode()


def heads_of(model: Machine) -> Heads:
    """Return the names of the attention heads of a machine.

    Padding heads, which a handwired machine names "-", are left out. Numbers in the names of
    handwired heads are the paper's steps, counted from 1.

    Returns:
        For each layer, a mapping from the layer and index of a head to its name, such as ``{"L0H0":
        "bind (step 1.1)"}``. Names are "" if the machine has none.
    """
    refusal = describe_lacking(model, "pattern")  # "" if it has attention patterns
    require(not refusal, refusal)
    points = model.points["pattern"]
    config = getattr(model, "config", None)
    unnamed = [[""] * points.n_heads] * points.n_layers
    names = getattr(config, "head_names", ()) or unnamed  # names[layer][head]
    heads = []
    for layer, layer_names in enumerate(names):
        named = {f"L{layer}H{head}": name for head, name in enumerate(layer_names)}
        heads.append({key: format_head_name(name) for key, name in named.items() if name != "-"})
    return heads


def format_head_name(name: str) -> str:
    """Move the paper's step number to the end of a head's name.

    >>> format_head_name("1.4 current-phase tag"), format_head_name("predict")
    ('current-phase tag (step 1.4)', 'predict')
    """
    return re.sub(r"^(\d+\.\d+)\s*(.*)", r"\2 (step \1)", name)
