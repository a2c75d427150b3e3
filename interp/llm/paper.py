"""The paper's numbers for this experiment, to stand beside ours (appendix F.3: 30 instances a regime, 100 rounds).

Final regret against the best fixed expert, mean and population standard deviation over instances. The baselines'
values are read from the published runs' instances; other instances move them by several tenths.
"""

from __future__ import annotations

from collections.abc import Mapping

import pandas as pd

from interp.checks import checked
from interp.llm.scores import Predictor, references, summary
from interp.tasks import experts

_REGIMES = ("stratified", "flat", "anti-signal")

# condition -> model -> (mean, std) for each regime
FINAL_REGRET: dict[str, dict[str, tuple[tuple[float, float], ...]]] = {
    "weather-note": {"DeepSeek-V3": ((7.7, 7.0), (8.7, 7.1), (12.5, 7.7))},
    "online-note": {"DeepSeek-V3": ((7.6, 7.0), (6.0, 5.4), (5.0, 10.2))},
    "weather-note-only": {
        "DeepSeek-V3": ((8.1, 6.3), (7.4, 5.2), (13.3, 6.9)),
        "Qwen-3-14B": ((32.0, 8.9), (12.0, 5.3), (19.3, 9.9)),
    },
    "online-note-only": {
        "DeepSeek-V3": ((9.3, 8.0), (7.9, 5.3), (11.3, 10.3)),
        "Qwen-3-14B": ((20.7, 15.3), (10.4, 9.4), (20.3, 17.7)),
    },
    "weather-no-note": {
        "DeepSeek-V3": ((12.7, 5.9), (8.5, 5.0), (21.9, 7.0)),
        "Qwen-3-14B": ((13.1, 6.3), (8.6, 4.3), (19.5, 5.5)),
    },
    "online-no-note": {
        "DeepSeek-V3": ((13.9, 8.2), (8.2, 5.1), (17.5, 7.6)),
        "Qwen-3-14B": ((17.8, 7.6), (9.7, 4.7), (16.5, 9.1)),
    },
}


def paper_table() -> pd.DataFrame:
    """One row for each model, condition and regime: mean, std."""
    return pd.DataFrame(
        [
            {"model": f"{model} (paper)", "condition": condition, "regime": regime, "mean": mean, "std": std, "n": 30}
            for condition, models in FINAL_REGRET.items()
            for model, cells in models.items()
            for regime, (mean, std) in zip(_REGIMES, cells, strict=True)
        ]
    )


@checked
def beside_paper(
    others: Mapping[str, Predictor] | None = None, n_instances: int = 30, n_rounds: int = 100, seed: int = 0
) -> pd.DataFrame:
    """The paper's final regrets with those of the baselines and of ``others`` on fresh instances of its three regimes.

    Its numbers are of its own 30 instances, ours of ``n_instances`` drawn alike: compare differences with the
    standard deviation over the square root of n.

    Example:
        >>> from reports.llm import transformer
        >>> table = beside_paper({"wma-handwired": transformer("wma-handwired")})          # doctest: +SKIP
    """
    rows = []
    for regime in _REGIMES:
        episodes = experts.sample(n_instances, n_rounds, 4, regime=regime, seed=seed)
        for one in references(episodes, others):
            rows.append({"model": one.name, "condition": "", "regime": regime, **summary(one.regret[:, -1], seed)})
    return pd.concat([paper_table(), pd.DataFrame(rows)], ignore_index=True)


def wide(table: pd.DataFrame) -> pd.DataFrame:
    """The same as ``mean ± std`` with a column for each regime, as the paper prints it."""
    cells = [f"{mean:.1f} ± {std:.1f}" for mean, std in zip(table["mean"], table["std"], strict=True)]
    keys = ["model", "condition"]
    order = table[keys].drop_duplicates()
    flat = table.assign(cell=cells).pivot(index=keys, columns="regime", values="cell")[list(_REGIMES)].reset_index()
    return order.merge(flat, on=keys)
