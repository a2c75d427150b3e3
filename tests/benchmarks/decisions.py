"""The cost of one decision at round 10, 100 and 500: constant here, since a round reads the latents and no history.

One episode, one thread: the prediction of a round (``predict``, up to the prediction position), and the whole round
with its update. The published code re-reads the token history: 12, 244 and 430 ms per decision at these rounds. A round
of the same model on 64 episodes at once is given per decision. Run with ``python -m tests.benchmarks decisions``.
"""

from __future__ import annotations

import time
from collections.abc import Callable

import pandas as pd
import torch

from interp.model.config import LatentTransformerConfig
from interp.model.rollout import Rollout, rollout
from interp.model.transformer import HookedLatentTransformer
from interp.tasks import experts
from interp.tasks.experts.layout import ExpertRound

ROUNDS = {10: 12.0, 100: 244.0, 500: 430.0}
"""Round -> milliseconds of the published code."""
REPEATS = 50


def measure() -> pd.DataFrame:
    """One row per round: median milliseconds of a decision."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    config = LatentTransformerConfig(ExpertRound(4), d_model=64, n_layers=4, n_heads=4, d_head=16, d_mlp=256)
    model = HookedLatentTransformer(config).eval()
    runs = {n: rollout(model, experts.sample(n, max(ROUNDS) + 1, 4, seed=0)) for n in (1, 64)}
    rows = []
    for t, published in ROUNDS.items():
        milliseconds = {n: 1e3 * _median(_decision(model, run, t)) for n, run in runs.items()}
        whole = 1e3 * _median(_round(model, runs[1], t))
        rows.append(
            {
                "round": t,
                "decision_ms": milliseconds[1],
                "with_update_ms": whole,
                "per_decision_of_64_ms": milliseconds[64] / 64,
                "published_ms": published,
                "times_faster": published / milliseconds[1],
            }
        )
    torch.set_num_threads(threads)
    return pd.DataFrame(rows)


def _decision(model: HookedLatentTransformer, run: Rollout, t: int) -> Callable[[], object]:
    return lambda: model.predict(run.tokens[:, t], run.latents[:, t])


def _round(model: HookedLatentTransformer, run: Rollout, t: int) -> Callable[[], object]:
    return lambda: model(run.tokens[:, t], run.latents[:, t])


def _median(call: Callable[[], object]) -> float:
    times = []
    with torch.no_grad():
        for _ in range(REPEATS):
            start = time.perf_counter()
            call()
            times.append(time.perf_counter() - start)
    return sorted(times)[REPEATS // 2]


def main() -> None:
    print(measure().to_string(index=False, float_format=lambda x: f"{x:.3g}"))


if __name__ == "__main__":
    main()
