"""Show results: one line of text at a prompt, an HTML table in a notebook.

    >>> from interp.tasks import experts
    >>> from interp.evaluation.experts.regret import score
    >>> episodes = experts.sample(20, 30, 4, seed=0)
    >>> result = score(episodes.advice.mean(-1), episodes)
    >>> result
    Scores(accuracy=0.6508 [0.6016, 0.705], regret=4.875 [3.725, 6.026], log_loss=inf [inf, inf])
    >>> result._repr_html_().count("<tr")
    4

Tables are in pandas' HTML, of at most 10 rows; all rows are in ``to_frame()``.
"""

from __future__ import annotations

import io
import re
from html import escape
from typing import TYPE_CHECKING, Any

from interp.core.machine import Component
from interp.support.errors import InputError, unknown_name
from interp.support.foreign import escape_line

if TYPE_CHECKING:
    import pandas as pd

    from interp.core.machine import Machine

_MAX_ROWS = 10
_MAX_NAMES = 8
_TRANSFORMER_KINDS = {
    "pattern": Component("pattern", "pattern", "head pos", "attention heads"),
    "z": Component("z", "z", "pos head", "attention heads"),
    "embed": Component("embed", "embed", "pos", "token embeddings"),
    "resid_pre": Component("resid_pre", "{layer}", "pos", "residual stream"),
    "resid_mid": Component("resid_mid", "{layer}", "pos", "MLP"),
    "mlp_out": Component("mlp_out", "{layer}", "pos", "MLP"),
    "resid_post": Component("resid_post", "{layer}", "pos", "layers"),
}
"""Kinds of activations of transformers: their axes, whether they have layers, and the words for what a
machine without them lacks."""


def describe_lacking(machine: Machine, *keys: str) -> str:
    """Return a message for an analysis that needs components that a machine lacks, such as
    attention heads: "not applicable: ...". Return "" if the machine has them all.

    A point of an adapted model may have the same name and be of another kind, such as an image
    called "pattern". It does not count.

    Args:
        machine: the machine.
        keys: keys of the components that the analysis needs, such as "pattern".
    """
    missing = []
    for key in keys:
        if not _has_kind(machine, key):
            missing.append(_TRANSFORMER_KINDS[key].name if key in _TRANSFORMER_KINDS else key)
    if not missing:
        return ""
    return f"not applicable: {machine.name} has no {' and no '.join(dict.fromkeys(missing))}"


def _has_kind(machine: Machine, key: str) -> bool:
    """Return True if a machine has a point ``key`` with the axes and layers that a transformer's
    component of this name has, and with the positions of a round.
    """
    point = machine.points.get(key)
    kind = _TRANSFORMER_KINDS.get(key)
    if point is None or kind is None:
        return point is not None
    has_layers = point.has_layer or not kind.has_layer
    return point.axes == kind.axes and has_layers and not point.labels


def add_png(figure: Any) -> Any:
    """Add a PNG representation to a matplotlib figure, and return the figure. Notebooks then
    display the figure even if pyplot did not make it.

    >>> from matplotlib.figure import Figure
    >>> add_png(Figure(figsize=(1, 1)))._repr_png_()[:4]
    b'\\x89PNG'
    """

    def png() -> bytes:
        """Return the figure as a PNG file."""
        buffer = io.BytesIO()
        figure.savefig(buffer, format="png", dpi=110, bbox_inches="tight")
        return buffer.getvalue()

    figure._repr_png_ = png
    return figure


def format_machine(machine: Machine) -> str:
    """Describe a machine in a few lines of text. They give its kind and size, the channels (named
    parts) of its carried state, the positions of a round, and its named attention heads.

    >>> import interp
    >>> print(format_machine(interp.load("wma-handwired", n_experts=2)).partition("; ")[0])
    wma-handwired, a handwired machine of experts
    """
    kind = "handwired" if machine.is_handwired else "learned"
    heads = None if describe_lacking(machine, "pattern") else machine.points["pattern"]
    size = f"points {_abbreviate(machine.points)}"
    if heads is not None:
        size = f"{heads.n_layers} layers of {heads.n_heads} heads"
    n_weights = sum(parameter.numel() for parameter in machine.parameters())  # type: ignore[attr-defined]
    precision = str(machine.dtype).removeprefix("torch.")
    channels = [f"{channel.name} {list(channel.shape)}" for channel in machine.channels]
    weights = f"{n_weights:,} weights, {precision} on {machine.device}"
    lines = [
        f"{machine.name}, a {kind} machine of {machine.layout.task}; {size}; {weights}",
        f"  carries from round to round: {', '.join(channels)}",
        f"  a round: {_abbreviate(machine.layout.labels)}",
    ]
    config = getattr(machine, "config", None)
    for layer, names in enumerate(getattr(config, "head_names", ())):
        labels = []
        for head, name in enumerate(names):
            if name != "-":  # a head without weights, which fills up the layer
                without_number = re.sub(r"^[0-9.]+ ", "", name)
                labels.append(f"L{layer}H{head} {without_number}")
        lines.append(f"  heads of layer {layer}: {_abbreviate(labels)}")
    return "\n".join(map(escape_line, lines[:12]))


def _abbreviate(names: Any) -> str:
    """Join ``names`` to one string; if there are more than 8, "..." replaces the middle ones."""
    names = list(map(str, names))
    if len(names) > _MAX_NAMES:
        names[_MAX_NAMES - 3 : -2] = ["..."]  # the first five and the last two stay
    has_spaces = any(" " in name for name in names)
    return ", ".join(names) if has_spaces else " ".join(names)


class Cache(dict[str, Any]):
    """Cached activations by hook name, a dictionary. At a prompt it shows names and shapes instead
    of numbers.

    A key may also be a short name as in TransformerLens, such as ``("pattern", 1)`` for layer 1.
    For a machine that ``interp.adapt`` made, it may be the name of a point, such as "cell", or
    ``("cycle", 2)`` for the third run of a loop.

    Attributes:
        n_layers: number of the model's layers. A negative number of a layer counts from the last
            one, such as ``("pattern", -1)``. 0 if the model has no layers as in TransformerLens.

    >>> cache = Cache({"blocks.1.attn.hook_pattern": 0, "points.cell": 1, "points.cycle.2": 2})
    >>> cache["pattern", 1], cache["cell"], cache["cycle", 2]
    (0, 1, 2)
    >>> cache["blocks.1.attn.hook_patern"]
    Traceback (most recent call last):
    interp.support.errors.InputError: unknown cached activation 'blocks.1.attn.hook_patern'; did you mean ...
    """

    n_layers: int = 0

    def __missing__(self, key: object) -> Any:
        """Return the activation of which ``key`` is a short name, or raise an InputError.

        Args:
            key: such as ``"cell"``, or a name with the number of a layer, ``("pattern", 1)``.
        """
        match key:
            case (name, int(layer), *rest) if layer < 0:
                key = (name, self.n_layers + layer, *rest)
        full_names = _list_full_names(key)
        for full_name in full_names:
            if full_name in self:
                return self[full_name]
        # For the message: the full name that a pair stands for, or the key as it is.
        wanted: object = key
        if full_names and not isinstance(key, str):
            wanted = full_names[0]
        raise InputError(
            f"{unknown_name('cached activation', wanted, self)}; names_filter=[{wanted!r}] caches it"
        )

    def __repr__(self) -> str:
        lines = [f"{len(self)} activations, [episode, round, ...]"]
        shapes = [(name, getattr(value, "shape", ())) for name, value in self.items()]
        lines += [f"  {name}  {list(shape)}" for name, shape in shapes[:_MAX_ROWS]]
        n_more = len(self) - _MAX_ROWS
        if n_more > 0:
            lines.append(f"  ... and {n_more} more")
        return "\n".join(lines)


def _list_full_names(key: object) -> list[str]:
    """Return the hook names that a key of :class:`Cache` may stand for. A key is ``"embed"``,
    ``("pattern", 1)`` or ``("cycle", 2)``, for example.
    """
    parts = key if isinstance(key, tuple) else (key,)
    if not parts or not isinstance(parts[0], str):
        return []
    from transformer_lens.utilities import get_act_name

    adapted_name = ".".join(["points", *map(str, parts)])  # as interp.adapt names points
    if len(parts) > 3:  # get_act_name takes at most three
        return [adapted_name]
    return [get_act_name(*parts), adapted_name]  # first the name in a transformer


def table_html(caption: str, frame: pd.DataFrame) -> str:
    """Return the first rows of a table as HTML for a notebook, with a caption.

    Args:
        caption: the caption, without a full stop. A note on the number of rows that are left out
            follows.
        frame: the table; columns without any value are left out.
    """
    rows = frame.head(_MAX_ROWS).dropna(axis="columns", how="all")
    note = ""
    if len(frame) > len(rows):
        note = f" The first {len(rows)} of {len(frame)} rows; all are in to_frame()."
    cells = rows.astype(object).where(rows.notna(), "–")
    table = cells.to_html(index=False, border=0, float_format="{:.4g}".format)
    return f"<p>{escape(caption)}.{note}</p>\n{table}"
