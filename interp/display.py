"""How results look at a prompt and in a notebook: one line as text, their table as HTML.

    >>> from interp.tasks import experts
    >>> from interp.evaluation.experts.regret import calibration
    >>> episodes = experts.sample(20, 30, 4, seed=0)
    >>> result = calibration(episodes.advice.mean(-1), episodes)
    >>> result
    Calibration(error=0.0775, chance=0.0211 [0.006667, 0.04419])
    >>> result._repr_html_().count("<tr")
    11

Tables are pandas' own HTML, of at most ``_MOST_ROWS`` rows; all rows are in ``to_frame()``.
"""

from __future__ import annotations

import io
import re
from collections.abc import Iterator
from dataclasses import dataclass, field, fields
from html import escape
from typing import TYPE_CHECKING, Any

import numpy as np

from interp.errors import InputError, require_known, unknown_name
from interp.foreign import one_line, plain
from interp.statistics import Interval

if TYPE_CHECKING:
    import pandas as pd

    from interp.machine import Machine

_MOST_ROWS, _MOST_FIELDS = 10, 6  # rows of a table, and fields of a line
_MOST_NAMES = 8  # names that a short list of them has


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
    size = f"{heads.n_layers} layers of {heads.n_heads} heads" if heads else f"points {_few(machine.points)}"
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
        named = [f"{layer}.{i} {re.sub(r'^[0-9.]+ ', '', name)}" for i, name in enumerate(names) if name != "-"]
        lines.append(f"  heads of layer {layer}: {_few(named)}")
    return "\n".join(map(one_line, lines[:12]))


def _few(names: Any) -> str:
    names = list(map(str, names))
    some = names if len(names) <= _MOST_NAMES else [*names[: _MOST_NAMES - 3], "...", *names[-2:]]
    return " ".join(some) if not any(" " in name for name in some) else ", ".join(some)


class Cache(dict[str, Any]):
    """Activations by name; at a prompt their names and shapes, not their numbers.

    >>> Cache({"blocks.1.attn.hook_pattern": 0})["blocks.1.attn.hook_patern"]
    Traceback (most recent call last):
    interp.errors.InputError: unknown cached activation 'blocks.1.attn.hook_patern'; did you mean ...
    """

    def __missing__(self, name: object) -> Any:
        raise InputError(f"{unknown_name('cached activation', name, self)}; names_filter=[{name!r}] caches it")

    def __repr__(self) -> str:
        lines = [f"  {name}  {list(getattr(value, 'shape', ()))}" for name, value in self.items()]
        more = [f"  ... and {len(lines) - _MOST_ROWS} more"] if len(lines) > _MOST_ROWS else []
        return "\n".join([f"{len(self)} activations, [episode, round, ...]", *lines[:_MOST_ROWS], *more])


class Tabled:
    """A result with ``to_frame()``: mixed into the dataclasses of results.

    Its line names the fields that are words, numbers or intervals, and leaves arrays, tables and settings out.
    """

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        cls.__repr__ = cls.__repr__  # type: ignore[method-assign]  # a dataclass writes its own where a class holds none

    def to_frame(self) -> pd.DataFrame:
        """The result as a tidy table."""
        raise NotImplementedError

    def __repr__(self) -> str:
        return plain(f"{type(self).__name__}({', '.join(list(self._told())[:_MOST_FIELDS])})")

    def _told(self) -> Iterator[str]:
        for name in (one.name for one in fields(self)):  # type: ignore[arg-type]
            value = getattr(self, name)
            if isinstance(value, Interval):
                yield f"{name}={value}"
            elif isinstance(value, float | np.floating):
                yield f"{name}={float(value):.4g}"
            elif isinstance(value, int | str | np.integer) and value != "":
                yield f"{name}={value!r}"

    def _repr_html_(self) -> str:
        return table_html(repr(self), self.to_frame())


@dataclass(frozen=True, eq=False)
class Scores(Tabled):
    """Numbers with intervals by what names them: what an evaluation measured.

    Attributes:
        by: the columns that the parts of a key fill, such as ("regime", "key", "quantity").
        numbers: by key.
        beside: further columns of a key's row.
        settings: what it was measured on and with.

    >>> Scores(("key", "start"), {("model", 0): Interval(0.75, 0.7, 0.8)}).get("model", 0)
    Interval(estimate=0.75, low=0.7, high=0.8)
    """

    by: tuple[str, ...]
    numbers: dict[tuple[Any, ...], Interval]
    settings: dict[str, Any] = field(default_factory=dict, repr=False)
    beside: dict[tuple[Any, ...], dict[str, Any]] = field(default_factory=dict, repr=False)

    def get(self, *key: Any) -> Interval:
        """One number."""
        named = {"/".join(map(str, known)): value for known, value in self.numbers.items()}
        asked = "/".join(map(str, key))
        require_known("result", asked, named, limit=20)
        return named[asked]

    def _told(self) -> Iterator[str]:
        yield from ("/".join(map(str, key)) + f"={value}" for key, value in self.numbers.items())

    def to_frame(self) -> pd.DataFrame:
        """One row per number."""
        import pandas as pd

        rows = [
            {**dict(zip(self.by, key, strict=True)), **vars(value), **self.beside.get(key, {})}
            for key, value in self.numbers.items()
        ]
        return pd.DataFrame(rows)


def table_html(caption: str, frame: pd.DataFrame) -> str:
    """A caption over a table, for a notebook; what does not fit is counted."""
    shown = frame.head(_MOST_ROWS).dropna(axis="columns", how="all")
    more = f" The first {len(shown)} of {len(frame)} rows; all are in to_frame()." if len(frame) > len(shown) else ""
    table = shown.astype(object).where(shown.notna(), "–").to_html(index=False, border=0, float_format="{:.4g}".format)
    return f"<p>{escape(caption)}.{more}</p>\n{table}"
