"""Does what is said of a trained model hold for its seeds? Every number beside the same of other seeds.

An interval over episodes says what other episodes would have given, and nothing of other trainings. For models that
differ in their seed, this gives each number of their cards and the four verdicts of ``interp compare`` against the
handwired machine of the task, a column a model; how far seeds lie apart (standard deviation) beside how far the
episodes of one model would move the number; and the verdicts between the seeds themselves, which is what "different"
is to be held against. Run it with ``python examples/seeds.py [--quick] MODEL MODEL ...``; tables are printed, and
written to ``output/seeds``. The question of the update is left out between seeds: it is about an algorithm.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from itertools import combinations
from pathlib import Path
from typing import Any

import pandas as pd

import interp
from circuits import compare
from interp.evaluation.suite import headline
from interp.model.library import handwired_models
from interp.model.transformer import HookedLatentTransformer
from interp.stats.intervals import Interval

Row = dict[str, Any]
OUT = Path("output/seeds")
WIDTH = 2 * 1.96
"""Standard errors in a 95 % interval."""


def claims(
    model: HookedLatentTransformer, n_episodes: int, budget: compare.Budget
) -> Iterator[Row]:
    """What is said of one model, a row a number: the numbers of its card, then what a comparison says."""
    for row in headline(model, n_episodes=n_episodes).to_dict("records"):
        yield {
            "what": row["what"],
            "value": row["estimate"],
            "low": row["low"],
            "high": row["high"],
        }
    found = compare.machines(model, handwired_models(model.layout.task)[0], budget=budget)
    part = found.algorithm
    yield {"what": "explained by an algorithm", "verdict": part.closest, **interval(part.explained)}
    yield from judged(found)
    # The circuit's verdict is by the path where two machines differ most, which need not be the same for every seed.
    for path in found.circuit.paths if found.circuit else ():
        yield {
            "what": f"share through patterns at {path.at}, {path.cause} -> {path.outcome}",
            **interval(path.blocked),
        }


def judged(found: compare.Comparison) -> Iterator[Row]:
    """The four questions of a comparison, with the numbers that decided."""
    for measure in found:
        what = f"as {found.reference}: {measure.key}"
        yield {
            "what": what,
            "verdict": measure.verdict,
            **interval(measure.number),
            "by": measure.about,
        }


def interval(value: Interval) -> Row:
    """The columns of an estimate."""
    return {"value": value.estimate, "low": value.low, "high": value.high}


def spread(rows: pd.DataFrame) -> pd.DataFrame:
    """A row a claim: its value in every model, and how far apart models are beside how far episodes would move one."""
    wide = rows.pivot(index="what", columns="model", values="value").loc[
        rows["what"].unique(), rows["model"].unique()
    ]
    within = ((rows["high"] - rows["low"]) / WIDTH).groupby(rows["what"]).mean()
    said = rows.dropna(subset="verdict").groupby("what")["verdict"].agg(", ".join)
    return wide.assign(
        mean=wide.mean(axis=1), seeds=wide.std(axis=1), episodes=within, verdicts=said
    )


FULL = compare.Budget()


def main(names: list[str], n_episodes: int = 1000, budget: compare.Budget = FULL) -> None:
    """Print and write the claims of every model, and the verdicts between each two of them."""
    models = {model.name: model for model in map(interp.load, names)}
    rows = [
        {"model": name, **row}
        for name, model in models.items()
        for row in claims(model, n_episodes, budget)
    ]
    pairs = [
        {"model": name, **row}
        for name, other in combinations(models, 2)
        for row in judged(compare.machines(models[name], models[other], budget=budget))
        if not row["what"].endswith("update")
    ]
    first = next(iter(models))
    OUT.mkdir(parents=True, exist_ok=True)
    between = pd.DataFrame(pairs).set_index("model")
    for name, table in ((first, spread(pd.DataFrame(rows))), (f"{first}-between", between)):
        table.to_csv(OUT / f"{name}.csv")
        print(table.round(4).to_string())


if __name__ == "__main__":
    given = [name for name in sys.argv[1:] if name != "--quick"]
    main(given, *((200, compare.Budget.quick()) if "--quick" in sys.argv else ()))
