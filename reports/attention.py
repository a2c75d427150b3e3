"""Attention views: circuitsvis' ``AttentionHeads``, drawn offline and only when a reader opens one.

The installed wheel's script is read once and inlined once (circuitsvis' own ``show_code`` loads it from the network,
and its offline string repeats 1.3 MB a view). A view is a ``<details>`` with its data beside it; drawing costs about
half a second, so at most ``MAX_EAGER`` of a page are open from the start. Weights are rounded to four decimals, for
display only. Rows attend to columns. A pattern shows where a head looks; it is not evidence that what it reads there
matters.
"""

from __future__ import annotations

import importlib.util
import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from importlib.metadata import distribution
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from numpy.typing import ArrayLike, NDArray

from interp.errors import InputError, require

MAX_EAGER = 8


@dataclass(frozen=True)
class AttentionView:
    """The attention of some heads over the positions of a round.

    Args:
        pattern: ``[head, query, key]``; weights, or the raw scores of linear heads (colours reach to the largest).
        labels: a label per position.
        heads: a short name per head (``"2.1"``).
        title: on the line that opens the view.
        caption: under the view.
        eager: open from the start.
    """

    pattern: ArrayLike
    labels: Sequence[str]
    heads: Sequence[str]
    title: str
    caption: str = ""
    eager: bool = False
    kind: ClassVar[str] = "attention"

    def __post_init__(self) -> None:
        shape, wanted = np.shape(self.pattern), (len(self.heads), len(self.labels), len(self.labels))
        require(
            shape == wanted,
            f"an attention pattern of shape {shape} does not fit {len(self.heads)} head names and "
            f"{len(self.labels)} position labels; it must be [head, query, key] = {wanted}",
        )
        finite = np.isfinite(np.asarray(self.pattern, dtype=np.float64)).all()
        require(bool(finite), f"the attention pattern of {self.title!r} holds NaN or infinity; give finite weights")

    @property
    def props(self) -> str:
        """What the component is given, as JSON that is safe inside a ``<script>``."""
        pattern = np.asarray(self.pattern, dtype=np.float64)
        scale = float(np.abs(pattern).max(initial=0)) or 1.0
        record = {
            "tokens": list(self.labels),
            "attention": _rounded(pattern),
            "attentionHeadNames": list(self.heads),
            "maxValue": round(scale, 4),
            "minValue": -round(scale, 4),
            "positiveColor": "#0072b2",
            "negativeColor": "#d05a00",
        }
        return json.dumps(record, separators=(",", ":")).replace("<", "\\u003c")


def _rounded(pattern: NDArray[np.float64]) -> Any:
    """Nested lists with four decimals, whole numbers as integers: a causal pattern is mostly zeros."""

    def short(value: Any) -> Any:
        if isinstance(value, list):
            return [short(item) for item in value]
        return int(value) if value == int(value) else value

    return short(np.round(pattern, 4).tolist())


def check_eager(views: Sequence[AttentionView]) -> None:
    """Raise :class:`InputError` when more than ``MAX_EAGER`` views would be drawn as the page opens."""
    eager = sum(view.eager for view in views)
    require(eager <= MAX_EAGER, f"{eager} attention views are eager; at most {MAX_EAGER} may be open from the start")


@cache
def library_script() -> str:
    """circuitsvis' browser bundle, from the installed wheel, made safe to inline (and without its source map).

    Raises:
        InputError: circuitsvis is not installed, or its bundle is not where it was.
    """
    spec = importlib.util.find_spec("circuitsvis")  # importing it would import torch
    path = Path(spec.origin).parent / "dist" / "cdn" / "iife.js" if spec and spec.origin else None
    if path is None or not path.is_file():
        raise InputError(
            "attention views need circuitsvis and its dist/cdn/iife.js; run: pip install 'circuitsvis>=1.43'"
        )
    script = re.sub(r"//# sourceMappingURL=\S+", "", path.read_text("utf-8"))
    return re.sub(r"</(script)", r"<\\/\1", script, flags=re.IGNORECASE).replace("\r\n", "\n").strip()


def notices() -> list[tuple[str, str]]:
    """(what, licence text) for the code that a page with attention views carries."""
    wheel = distribution("circuitsvis")
    licence = wheel.read_text("LICENSE.txt") or wheel.read_text("licenses/LICENSE.txt") or "MIT License"
    what = (
        f"The attention views are drawn by CircuitsVis {wheel.version} (MIT licence, below), whose script is part of "
        "this page. It bundles TensorFlow.js (Apache License 2.0, https://www.apache.org/licenses/LICENSE-2.0) and "
        "React, Chart.js and other libraries (MIT licence)."
    )
    return [(what, licence.strip())]
