"""Heat maps of patching: layer x position, head x position, round x round."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from interp.checks import checked
from interp.files import write_atomic


@checked
def heatmap(table: pd.DataFrame, title: str, *, x: str, y: str, unit: str) -> Any:
    """A matplotlib figure of a table: blue below 0, red above, white at 0, every column labelled."""
    from matplotlib.figure import Figure

    values = table.to_numpy(dtype=float)
    limit = max(float(np.nanmax(np.abs(values), initial=0.0)), 1e-12)
    height, width = 1.4 + 0.28 * len(table), 2.2 + 0.36 * table.shape[1]
    figure = Figure(figsize=(max(width, 4.5), max(height, 2.2)), layout="constrained")
    axes = figure.add_subplot()
    image = axes.imshow(values, cmap="RdBu_r", vmin=-limit, vmax=limit, aspect="auto")
    axes.set_xticks(range(table.shape[1]), [str(c) for c in table.columns], rotation=90)
    axes.set_yticks(range(len(table)), [str(i) for i in table.index])
    axes.set(xlabel=x, ylabel=y, title=title)
    figure.colorbar(image, ax=axes, label=unit)
    return figure


@checked
def save(figure: Any, path: Path) -> Path:
    """Write a figure as SVG with text as text."""
    import matplotlib

    with matplotlib.rc_context({"svg.fonttype": "none", "svg.hashsalt": "interp"}):
        return write_atomic(path, lambda temporary: figure.savefig(temporary, format="svg", metadata={"Date": None}))
