"""Speed of our patching sweep against TransformerLens' patching on the bound view, in one run.

Both sweep (layer, head, position) of head outputs and (layer, position) of residuals at one round of 64 pairs, on the
shape of the learned models (4 layers, 4 heads, d_model 64, 13 positions). Rollouts are left out of both. Beside the
seconds stand the operations that each dispatches with an accelerator's chunk: at this size, an accelerator's time is
that of launching them. Run with ``python -m tests.benchmarks patching``, elsewhere with
``python -m tests.benchmarks patching cuda``.
"""

import time
from collections.abc import Callable
from typing import Any
from unittest.mock import patch

import pandas as pd
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from transformer_lens import patching as tl_patching

from interp.interventions import patching, round_patcher, sites
from interp.interventions.pairs import Pair, prepare
from interp.model.bound import bind
from interp.model.config import LatentTransformerConfig
from interp.model.transformer import HookedLatentTransformer
from interp.tasks import experts
from interp.tasks.experts import analysis as corruptions
from interp.tasks.experts.layout import ExpertRound

ROUND, N_PAIRS = 20, 64
TOOLS = {
    "resid_pre": tl_patching.get_act_patch_resid_pre,
    "head": tl_patching.get_act_patch_attn_head_out_by_pos,
}


def _pair(device: str) -> Pair:
    torch.manual_seed(0)
    config = LatentTransformerConfig(
        ExpertRound(4), d_model=64, n_layers=4, n_heads=4, d_head=16, d_mlp=256
    )
    model = HookedLatentTransformer(config).to(device).eval()
    return prepare(
        model,
        *corruptions.exchange_history(experts.sample(N_PAIRS, ROUND + 3, 4, seed=0), ROUND),
        ROUND,
    )


def _seconds(run: Callable[[], object]) -> float:
    """The best of three runs."""
    times = []
    for _ in range(3):
        wait()
        start = time.perf_counter()
        run()
        wait()
        times.append(time.perf_counter() - start)
    return min(times)


class _Counter(TorchDispatchMode):
    """Counts the operations dispatched inside it."""

    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    def __torch_dispatch__(
        self, operation: Callable, types: object, args: tuple = (), kwargs: Any = None
    ) -> Any:
        self.count += 1
        return operation(*args, **(kwargs or {}))


def _operations(run: Callable[[], object]) -> int:
    with _Counter() as counter:
        run()
    return counter.count


def wait() -> None:
    """Until an accelerator has done what it was given."""
    if torch.cuda.is_available():
        torch.cuda.synchronize()


def measure(device: str = "cpu") -> pd.DataFrame:
    """One row per sweep: seconds of both and their ratio, that of the operations, the largest difference of a cell."""
    pair = _pair(device)
    bound = bind(pair.model, pair.clean, pair.corrupted, rounds=ROUND)
    clean, corrupted = bound.tokens
    _, cache = bound.run_with_cache(clean)
    rises = pair.clean.predictions[:, ROUND] > pair.corrupted.predictions[:, ROUND]

    def theirs_by(logits: torch.Tensor) -> torch.Tensor:
        p = logits[:, bound.predict_position].softmax(-1)[:, 1]
        return torch.where(rises, p, 1 - p)

    rows = []
    for component, tool in TOOLS.items():
        cells = sites.sites(pair.model, pair.layout, component)

        def ours(cells: list[sites.Site] = cells) -> torch.Tensor:
            return patching.patch_pair(pair, sites=cells, metric="probability").values

        def theirs(tool: Callable[..., torch.Tensor] = tool) -> torch.Tensor:
            with torch.no_grad():
                return tool(bound, corrupted, cache, theirs_by, reduce="mean")

        shape = theirs().shape
        mean = ours().mean(1)
        layers, positions = pair.model.config.n_layers, pair.layout.n_positions
        grid = (
            mean.view(layers, -1, positions).transpose(1, 2).reshape(shape)
            if len(shape) == 3
            else mean.view(shape)
        )
        seconds = [_seconds(theirs), _seconds(ours)]
        with patch.object(round_patcher, "_CHUNK_CPU", 65_536):
            operations = [_operations(theirs), _operations(ours)]
        rows.append(
            {
                "sweep": component,
                "cells": len(cells),
                "transformer_lens_s": seconds[0],
                "ours_s": seconds[1],
                "ratio": seconds[0] / seconds[1],
                "operations_ratio": operations[0] / operations[1],
                "max_difference": float((grid - theirs()).abs().max()),
            }
        )
    return pd.DataFrame(rows)


def main(device: str = "cpu") -> None:
    print(f"patching {N_PAIRS} pairs at one round, {device}, {torch.get_num_threads()} threads")
    print(measure(device).to_string(index=False, float_format=lambda x: f"{x:.3g}"))
