"""A live page: seconds from the command to the first view, and from an edit to its page, by model.

The goal for small models is .3 s from an edit to its page on a quiet machine, which CPU seconds stand for where others
compute beside. An edit's page holds the run, the algorithm, four random changes of equal size and the figure.
"""

import os
import resource
import subprocess
import sys
import time
import urllib.request

import numpy as np
import pandas as pd

import interp
from interp.support.workers import one_thread
from reports.explore import Edit, Explorer, View

MODELS = (
    "wma-handwired",
    "wma-learned-additive",
    "qlearning-learned",
    "reachability-learned",
    "wma-gru",
)
N_EDITS = 50


def started(name: str) -> tuple[float, float]:
    """Wall and CPU seconds from the command to the end of the first view."""
    words = [sys.executable, "-c", "from interp.cli import app; app()", "explore", name]
    used, begun = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True, env={**os.environ}) as server:
        address = server.stdout.readline().strip()  # type: ignore[union-attr]
        urllib.request.build_opener(urllib.request.ProxyHandler({})).open(address).read()
        wall = time.perf_counter() - begun
        server.kill()
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return wall, after.ru_utime + after.ru_stime - used.ru_utime - used.ru_stime


def edits(explorer: Explorer) -> list[Edit]:
    """Fifty edits of all kinds, at rounds drawn from all."""
    setup = explorer.answer(View())[0].setup
    draw = np.random.default_rng(0)
    key, shape = next(iter(setup.writer.shapes.items()))
    records = [
        record.key for record in setup.task.analysis.corruptions() if not record.changes_history
    ]
    places = [
        name for name in ("latent", "L1H0", "reset") if name.split("[")[0] in setup.model.points
    ]
    chosen = []
    for i in range(N_EDITS):
        t = int(draw.integers(1, setup.n_rounds))
        kind = ("input", "move", "patch", "zero", "mean")[i % 5]
        what, value = str(draw.choice(places)), "-"
        if kind == "input":
            what = str(draw.choice(records))
        if kind == "move":
            what = ".".join([key, *(str(int(draw.integers(n))) for n in shape)])
            value = f"{draw.normal():.3f}"
        chosen.append(
            Edit(
                kind,
                t,
                what,
                "7" if kind == "patch" else value,
                in_later_rounds=kind != "input" and i % 2 == 0,
            )
        )
    return chosen


def main(*rows: str) -> None:
    """Print a row a model."""
    seconds = {}
    for name in rows or MODELS:
        wall, used = started(name)
        with one_thread():
            explorer = Explorer(interp.load(name), origin=f"interp.load({name!r})")
            explorer.page(View())
            times = []
            for edit in edits(explorer):
                begun = time.perf_counter(), time.process_time()
                explorer.page(View(edits=(edit,), round=edit.round))
                times.append([time.perf_counter() - begun[0], time.process_time() - begun[1]])
        (median, median_used), (worst, worst_used) = np.median(times, 0), np.max(times, 0)
        seconds[name] = {
            "first view, s": wall,
            "CPU s": used,
            "edit, median s": median,
            "median CPU s": median_used,
            "worst s": worst,
            "worst CPU s": worst_used,
        }
    print(pd.DataFrame(seconds).T.round(3).to_string())
