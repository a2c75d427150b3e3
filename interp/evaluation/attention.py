"""The mean attention pattern of a round, position by position, over episodes and rounds.

Means over rounds hide heads that split the work. NOT evidence of use: attention says where a head looks, not what it
moves; patch it (``interp.interventions``) to see.
"""

from __future__ import annotations

import numpy as np
import pandas as pd

from interp.algorithm import Episodes
from interp.errors import require
from interp.model.rollout import rollout
from interp.model.run import Rounds
from interp.model.transformer import HookedLatentTransformer


def round_attention(
    model: HookedLatentTransformer, episodes: Episodes, *, rounds: Rounds = slice(10, None)
) -> pd.DataFrame:
    """The mean attention pattern of every head over episodes and rounds.

    Returns:
        Columns ``layer``, ``head``, ``query`` and ``key`` (position labels), ``attention``.

    Raises:
        InputError: episodes that the model cannot read, or rounds out of range.
    """
    require(len(episodes) > 0, "no episodes to average over")
    names = [f"blocks.{layer}.attn.hook_pattern" for layer in range(model.config.n_layers)]
    run = rollout(model, episodes, names_filter=names, rounds=rounds)
    labels = run.layout.labels
    rows = []
    for layer, name in enumerate(names):
        mean = run.cache[name].double().mean((0, 1)).numpy(force=True)
        for head, query, key in np.ndindex(mean.shape):
            if key <= query:
                rows.append((layer, head, labels[query], labels[key], float(mean[head, query, key])))
    return pd.DataFrame(rows, columns=["layer", "head", "query", "key", "attention"])
