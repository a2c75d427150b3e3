"""The cost of one decision at round 10, 100 and 500: constant here, since a round reads the latents and no history.

One thread, CPU milliseconds: the prediction of a round (``model.predict``), the whole round with its update
(``model(...)``), both on one episode, and the prediction per episode of 64 at once, at the first of these rounds.
Beside them, in the same run, the same decision with a hook attached (through the modules), and that of a plain
transformer of the same sizes which re-reads every token since the first round (:mod:`tests.benchmarks._reference`). Run
with ``python -m tests.benchmarks decisions``.
"""

from __future__ import annotations

import time
from collections.abc import Callable

import pandas as pd
import torch

from interp.model.config import LatentTransformerConfig
from interp.model.rollout import rollout
from interp.model.run import Rollout
from interp.model.transformer import HookedLatentTransformer
from interp.tasks import experts
from interp.tasks.experts.layout import ExpertRound
from interp.workers import one_thread
from tests.benchmarks._reference import FullHistory

ROUNDS = (10, 100, 500)
REPEATS = 50


@one_thread()
def measure(rounds: tuple[int, ...] = ROUNDS, repeats: int = REPEATS) -> pd.DataFrame:
    """One row per round: median CPU milliseconds, and how many times a decision's the reference takes."""
    torch.manual_seed(0)
    config = LatentTransformerConfig(ExpertRound(4), d_model=64, n_layers=4, n_heads=4, d_head=16, d_mlp=256)
    model = HookedLatentTransformer(config).eval()
    reference = FullHistory(config.d_vocab).eval()
    run = rollout(model, experts.sample(1, max(rounds) + 1, 4, seed=0))
    together = rollout(model, experts.sample(64, min(rounds) + 1, 4, seed=0))
    of_64 = _median(_decision(model, together, min(rounds)), repeats) / 64
    rows = []
    for t in rounds:
        decision, history = _decision(model, run, t), run.tokens[:, : t + 1].flatten(1)
        milliseconds = _median(decision, repeats)
        with model.hooks(fwd_hooks=[("hook_latents", lambda latents, hook: None)]):
            hooked = _median(decision, repeats)
        theirs = _median(lambda history=history: reference(history), min(repeats, 3))
        rows.append(
            {
                "round": t,
                "decision_ms": milliseconds,
                "with_update_ms": _median(_round(model, run, t), repeats),
                "per_decision_of_64_ms": of_64,
                "hooked_ms": hooked,
                "full_history_ms": theirs,
                "times_faster": theirs / milliseconds,
            }
        )
    return pd.DataFrame(rows)


def _decision(model: HookedLatentTransformer, run: Rollout, t: int) -> Callable[[], object]:
    return lambda: model.predict(run.tokens[:, t], run.latents[:, t])


def _round(model: HookedLatentTransformer, run: Rollout, t: int) -> Callable[[], object]:
    return lambda: model(run.tokens[:, t], run.latents[:, t])


def _median(call: Callable[[], object], repeats: int) -> float:
    """Median CPU milliseconds: on a busy machine, time on the wall is mostly waiting."""
    times = []
    with torch.no_grad():
        call()
        for _ in range(repeats):
            start = time.process_time()
            call()
            times.append(time.process_time() - start)
    return 1e3 * sorted(times)[repeats // 2]


def main() -> None:
    print(measure().to_string(index=False, float_format=lambda x: f"{x:.3g}"))
