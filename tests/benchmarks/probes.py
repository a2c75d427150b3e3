"""Speed of a probe sweep against the plain loop of scikit-learn calls on the same data, in one run.

One cell is one site: every target of the experts task (22 targets, 70 outputs), each with its shuffled copy and its
control task, on the model and on its untrained copy; 256 episodes x 100 rounds x 64 features, 5 folds by episode,
11 penalties. The plain loop calls ``Pipeline(StandardScaler, RidgeCV)`` in each outer fold, once per target and role,
as a script would. It chooses penalties by leave-one-row-out, which is cheaper than our inner folds by episode, and
computes no intervals. Run with ``python -m tests.benchmarks probes``, or ``python -m tests.benchmarks.probes --full``
to sweep everything (5 components x 4 layers x 13 positions).
"""

from __future__ import annotations

import sys
import time

import numpy as np
import pandas as pd
import torch
from sklearn.linear_model import RidgeCV
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

import probes
from interp.interventions.sites import Site
from interp.model.config import LatentTransformerConfig
from interp.model.rollout import rollout
from interp.model.transformer import HookedLatentTransformer
from interp.tasks import experts
from interp.tasks.experts.layout import ExpertRound
from probes.activations import read
from probes.controls import _assign_folds
from probes.linear import ALPHAS
from probes.sweep import _of_cell, _of_windows
from probes.targets import compute
from probes.values import N_FOLDS

N_EPISODES, N_ROUNDS, SITE, N_CELLS = 256, 100, "resid_post[1]@w?", 5 * 4 * 13


def _model() -> HookedLatentTransformer:
    torch.manual_seed(0)
    config = LatentTransformerConfig(ExpertRound(4), d_model=64, n_layers=4, n_heads=4, d_head=16, d_mlp=256)
    return HookedLatentTransformer(config).eval()


def main() -> None:
    model, episodes = _model(), experts.sample(N_EPISODES, N_ROUNDS, 4, seed=0)
    if "--full" in sys.argv:
        start = time.perf_counter()
        frame = probes.sweep(model, episodes, seed=1).to_frame()
        seconds = time.perf_counter() - start
        print(f"full sweep: {frame['site'].nunique()} sites, {len(frame)} probes: {seconds:.0f} s")
        return
    site = Site.parse(SITE)
    hooks = [site.hook]
    runs = [rollout(m, episodes, names_filter=hooks) for m in (model, probes.untrained(model, seed=1))]
    x, blank = (read(run, SITE).numpy() for run in runs)
    (shared,) = _of_windows(model, episodes, compute(None, episodes), None, seed=0)
    one = ({shared.window: shared}, [run.cache for run in runs], runs[0].layout), (shared.window, site)
    _of_cell(*one)
    start = time.perf_counter()
    for _ in range(3):
        _of_cell(*one)
    ours = (time.perf_counter() - start) / 3

    # One outer fold of the loop is timed, and taken five times.
    test = np.repeat(_assign_folds(N_EPISODES, N_FOLDS, 0) == 0, N_ROUNDS)
    own = [target.values for target in shared.problem.sample.targets]
    drawn = [target.values for target in shared.problem.drawn.values()]
    calls = [(x, values) for values in own + drawn] + [(blank, values) for values in own]
    start = time.perf_counter()
    for inputs, values in calls:
        _ridge(inputs, values.reshape(len(test), -1), test)
    loop = 5 * (time.perf_counter() - start)
    start = time.perf_counter()
    for inputs, values in ((x, own + drawn), (blank, own)):
        _ridge(inputs, np.concatenate(values, -1).reshape(len(test), -1), test)
    together = 5 * (time.perf_counter() - start)
    rows = [
        ("probes.sweep", ours),
        (f"RidgeCV, one call per target ({5 * len(calls)} calls)", loop),
        ("RidgeCV, all targets in one call (one penalty for all; 10 calls)", together),
    ]
    table = pd.DataFrame([(name, s, s / ours, N_CELLS * s / 60) for name, s in rows])
    table.columns = pd.Index(["what", "seconds per cell", "ratio", f"minutes for {N_CELLS} cells, one core"])
    print(table.to_string(index=False, float_format="{:.3g}".format))


def _ridge(x: np.ndarray, y: np.ndarray, test: np.ndarray) -> np.ndarray:
    rows = x.reshape(-1, x.shape[-1])
    return make_pipeline(StandardScaler(), RidgeCV(ALPHAS)).fit(rows[~test], y[~test]).predict(rows[test])


if __name__ == "__main__":
    main()
