"""Where the CPU seconds of a command, or of tests, go: imports, validation, forward passes, fits, resampling, drawing.

``python -m tests.benchmarks layers`` profiles a page and a comparison at quick size, ``python -m tests.benchmarks
layers compare wma-gru --quick`` one command of ``interp``, ``python -m tests.benchmarks layers pytest tests/probes``
some tests (in this process, without workers). Every few milliseconds of CPU time, what has passed since the last look
is added to the layer of the innermost frame that belongs to one, so that no second counts twice, and a fit within a
comparison counts as a fit. What the packages themselves do is listed by room.
"""

from __future__ import annotations

import signal
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from types import FrameType

import pandas as pd
import pytest

from tests.census import PACKAGES, ROOT

LAYERS: dict[str, tuple[str, ...]] = {
    "importing": ("<frozen importlib", "interp/support/lazy.py"),
    "validation of arguments": (
        "interp/support/checks.py",
        "interp/kinds.py",
        "/beartype/",
        "/jaxtyping/",
    ),
    "hashing": (":digest", ":_digest", ":content_of"),
    "drawing": ("/matplotlib/", "/circuitsvis/", "interp/results/figures.py", "/PIL/", "/plotly/"),
    "fits": (
        "/sklearn/",
        "interp/stats/decoder.py",
        "interp/stats/refit.py",
        "/scipy/optimize/",
        "probes/linear.py",
    ),
    "resampling": ("interp/stats/intervals.py",),
    "gradients": ("torch/autograd/",),
    "forward passes": (
        "interp/model/",
        "interp/machines/",
        "interp/core/machine.py",
        "/transformer_lens/",
    ),
    "algorithms and episodes": (
        "interp/tasks/",
        "interp/core/algorithm.py",
        "interp/tasks/lapses.py",
    ),
    "tables": ("/pandas/",),
}
"""A layer, and parts of the paths (with the function's name) of the frames that belong to it; the first that fits."""
EVERY = 0.005
"""Seconds of CPU time between two looks."""


def layer_of(frame: FrameType | None) -> str:
    """The layer of the innermost frame that belongs to one or to a package, and that package's room where to none."""
    while frame is not None:
        path = f"{frame.f_code.co_filename}:{frame.f_code.co_name}"
        for layer, parts in LAYERS.items():
            if any(part in path for part in parts):
                return layer
        if path.startswith(tuple(f"{ROOT / package}/" for package in PACKAGES)):
            return "/".join(Path(path).relative_to(ROOT).parts[:-1][:2])
        frame = frame.f_back
    return "elsewhere"


def profile(arguments: list[str]) -> pd.DataFrame:
    """CPU seconds by layer, largest first, of a command of ``interp`` or of ``pytest``."""
    spent: Counter[str] = Counter()
    last = time.process_time()

    def look(_: int, frame: FrameType | None) -> None:
        nonlocal last
        now = time.process_time()
        spent[layer_of(frame)] += now - last  # type: ignore[assignment]
        last = now

    before = signal.signal(signal.SIGPROF, look)
    signal.setitimer(signal.ITIMER_PROF, EVERY, EVERY)
    try:
        if arguments[0] == "pytest":
            pytest.main(["-q", "-p", "no:cacheprovider", *arguments[1:]])
        else:
            from interp.cli import app

            with tempfile.TemporaryDirectory() as folder:
                app([*arguments, "--out", folder], standalone_mode=False)
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, before)
    table = (
        pd.Series(spent, name="cpu_s")
        .sort_values(ascending=False)
        .rename_axis("layer")
        .reset_index()
    )
    table["share"] = table["cpu_s"] / table["cpu_s"].sum()
    return table


def main(*arguments: str) -> None:
    """Print the table of one command, or of the usual two."""
    usual = [
        ["report", "wma-learned-additive", "--quick"],
        ["compare", "wma-learned-additive", "--quick"],
    ]
    for command in [list(arguments)] if arguments else usual:
        table = profile(command)
        print(f"\n{' '.join(command)}: {table['cpu_s'].sum():.1f} CPU s", file=sys.stderr)
        print(table.round(3).to_string(index=False))
