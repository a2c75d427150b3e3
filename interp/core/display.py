"""How results look at a prompt and in a notebook: one line as text, their table as HTML.

    >>> from interp.tasks import experts
    >>> from interp.evaluation.experts.regret import calibration
    >>> episodes = experts.sample(20, 30, 4, seed=0)
    >>> result = calibration(episodes.advice.mean(-1), episodes)
    >>> result
    The calibration error is 0.0775; a perfectly calibrated predictor has 0.0211 [0.006667, 0.04419].
    >>> result._repr_html_().count("<tr")
    11

Tables are pandas' own HTML, of at most ``_MOST_ROWS`` rows; all rows are in ``to_frame()``.
"""

from __future__ import annotations

import io
import re
from html import escape
from typing import TYPE_CHECKING, Any

from interp.support.errors import InputError, unknown_name
from interp.support.foreign import one_line

if TYPE_CHECKING:
    import pandas as pd

    from interp.core.machine import Machine

_MOST_ROWS, _MOST_NAMES = 10, 8  # rows of a table, and names that a short list of them has


_MEANT = {
    "pattern": "attention heads",
    "z": "attention heads",
    "embed": "token embeddings",
    "resid_pre": "residual stream",
    "resid_post": "layers",
}
"""What it means to lack a component of transformers."""


def lacks(machine: Machine, *keys: str) -> str:
    """What stands in the place of what a machine cannot show: which components it lacks; empty where it has all."""
    missing = dict.fromkeys(_MEANT.get(key, key) for key in keys if key not in machine.points)
    return f"not applicable: {machine.name} has no {' and no '.join(missing)}" if missing else ""


def drawn(figure: Any) -> Any:
    """A matplotlib figure that a notebook draws, though pyplot did not make it.

    >>> from matplotlib.figure import Figure
    >>> drawn(Figure(figsize=(1, 1)))._repr_png_()[:4]
    b'\\x89PNG'
    """

    def png() -> bytes:
        buffer = io.BytesIO()
        figure.savefig(buffer, format="png", dpi=110, bbox_inches="tight")
        return buffer.getvalue()

    figure._repr_png_ = png
    return figure


def described(machine: Machine) -> str:
    """A machine in a few lines: how it was made, what it is made of, what it carries, and its named heads.

    >>> import interp
    >>> print(described(interp.load("wma-handwired", n_experts=2)).partition("; ")[0])
    wma-handwired, a handwired machine of experts
    """
    made = "handwired" if machine.is_handwired else "learned"
    heads = machine.points.get("pattern")
    size = (
        f"{heads.n_layers} layers of {heads.n_heads} heads"
        if heads
        else f"points {_few(machine.points)}"
    )
    n = sum(parameter.numel() for parameter in machine.parameters())  # type: ignore[attr-defined]
    precision = str(machine.dtype).removeprefix("torch.")
    carried = ", ".join(f"{channel.name} {list(channel.shape)}" for channel in machine.channels)
    lines = [
        f"{machine.name}, a {made} machine of {machine.layout.task}; {size}; "
        f"{n:,} weights, {precision} on {machine.device}",
        f"  carries from round to round: {carried}",
        f"  a round: {_few(machine.layout.labels)}",
    ]
    for layer, names in enumerate(getattr(getattr(machine, "config", None), "head_names", ())):
        named = [
            f"L{layer}H{i} {re.sub(r'^[0-9.]+ ', '', name)}"
            for i, name in enumerate(names)
            if name != "-"
        ]
        lines.append(f"  heads of layer {layer}: {_few(named)}")
    return "\n".join(map(one_line, lines[:12]))


def _few(names: Any) -> str:
    names = list(map(str, names))
    some = names if len(names) <= _MOST_NAMES else [*names[: _MOST_NAMES - 3], "...", *names[-2:]]
    return " ".join(some) if not any(" " in name for name in some) else ", ".join(some)


class Cache(dict[str, Any]):
    """Activations by name; at a prompt their names and shapes, not their numbers.

    TransformerLens' short names work, too, as do the keys of an adapted machine's points.

    >>> cache = Cache({"blocks.1.attn.hook_pattern": 0, "points.cell": 1, "points.cycle.2": 2})
    >>> cache["pattern", 1], cache["cell"], cache["cycle", 2]
    (0, 1, 2)
    >>> cache["blocks.1.attn.hook_patern"]
    Traceback (most recent call last):
    interp.support.errors.InputError: unknown cached activation 'blocks.1.attn.hook_patern'; did you mean ...
    """

    def __missing__(self, key: object) -> Any:
        full_names = _full_names(key)
        for full_name in full_names:
            if full_name in self:
                return self[full_name]
        name: object = key
        if full_names and not isinstance(key, str):
            name = full_names[0]
        raise InputError(
            f"{unknown_name('cached activation', name, self)}; names_filter=[{name!r}] caches it"
        )

    def __repr__(self) -> str:
        lines = [f"  {name}  {list(getattr(value, 'shape', ()))}" for name, value in self.items()]
        more = [f"  ... and {len(lines) - _MOST_ROWS} more"] if len(lines) > _MOST_ROWS else []
        return "\n".join(
            [f"{len(self)} activations, [episode, round, ...]", *lines[:_MOST_ROWS], *more]
        )


def _full_names(key: object) -> list[str]:
    """Return the hook points that a short name may stand for: ``"embed"``, ``("pattern", 1)``, ``("cycle", 2)``."""
    parts = key if isinstance(key, tuple) else (key,)
    if not parts or not isinstance(parts[0], str):
        return []
    from transformer_lens.utilities import get_act_name

    of_a_point = ".".join(["points", *map(str, parts)])
    if len(parts) > 3:
        return [of_a_point]
    return [get_act_name(*parts), of_a_point]


def table_html(caption: str, frame: pd.DataFrame) -> str:
    """A caption over a table, for a notebook; what does not fit is counted."""
    shown = frame.head(_MOST_ROWS).dropna(axis="columns", how="all")
    more = (
        f" The first {len(shown)} of {len(frame)} rows; all are in to_frame()."
        if len(frame) > len(shown)
        else ""
    )
    table = (
        shown.astype(object)
        .where(shown.notna(), "–")
        .to_html(index=False, border=0, float_format="{:.4g}".format)
    )
    return f"<p>{escape(caption)}.{more}</p>\n{table}"
