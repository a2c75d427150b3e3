"""Are two architectures the same machine? They are where they lie no farther apart than two seeds of one of them do.

Reads what ``examples/architectures.py`` wrote, and says of every two architectures and every measure one word. The
*yardstick* is the pair of seeds, of either architecture, that lies farthest apart. A pair of machines of the two is

    farther     where the whole interval of its number lies below that of the yardstick
    no farther  where its interval reaches as high as the yardstick's, and untrained copies lie below it
    undecided   elsewhere

and so are the architectures where all their pairs agree. Write the tables, the sentences and the picture with

    python examples/same_machine.py docs/architectures
"""

from __future__ import annotations

import sys
from itertools import combinations
from pathlib import Path

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from interp.files import write_csv, write_text
from reports import figures
from reports.evaluation import save_figure
from reports.style import WIDTH, styled

MEASURES = ("behaviour", "response", "state", "update on", "update off")
FARTHER, NO_FARTHER, UNDECIDED = "farther", "no farther", "undecided"
LEARNED = 0.005
"""Nats a round above the Bayes predictor up to which a training counts as done: 3 % of what a memory is worth."""


def yardstick(pairs: pd.DataFrame, measure: str, kinds: tuple[str, str]) -> pd.Series | None:
    """The row of the two seeds, of either architecture, that lie farthest apart; None where neither has two."""
    within = pairs[(pairs["kind_a"] == pairs["kind_b"]) & pairs["kind_a"].isin(kinds) & (pairs["measure"] == measure)]
    return within.loc[within["value"].idxmin()] if len(within) else None


def across(pairs: pd.DataFrame, measure: str, kinds: tuple[str, str]) -> pd.DataFrame:
    """The rows of pairs of the two architectures."""
    both = [set(each) == set(kinds) for each in zip(pairs["kind_a"], pairs["kind_b"], strict=True)]
    return pairs[np.array(both) & (pairs["measure"] == measure)]


def word(rows: pd.DataFrame, yard: pd.Series) -> str:
    """The word of two architectures: that of all their pairs, or undecided."""
    farther = rows["high"] < yard["low"]
    as_near = (rows["low"] >= yard["low"]) & ~(rows["untrained"] >= rows["low"])
    return FARTHER if farther.all() else NO_FARTHER if as_near.all() else UNDECIDED


def judged(pairs: pd.DataFrame) -> pd.DataFrame:
    """A row for every two architectures and every measure."""
    rows = []
    for two in combinations(pd.unique(pairs[["kind_a", "kind_b"]].to_numpy().ravel()), 2):
        for measure in MEASURES:
            found, yard = across(pairs, measure, two), yardstick(pairs, measure, two)
            if len(found) and yard is not None:
                said = {"value": found["value"].mean(), "low": found["low"].min(), "high": found["high"].max()}
                held = {"seeds": yard["value"], "seeds_low": yard["low"], "yardstick": f"{yard['a']}, {yard['b']}"}
                about = {"a": two[0], "b": two[1], "measure": measure, "word": word(found, yard)}
                rows.append({**about, **said, "n_pairs": len(found), "untrained": found["untrained"].max(), **held})
    return pd.DataFrame(rows)


def sentences(machines: pd.DataFrame, pairs: pd.DataFrame) -> list[str]:
    """What the tables say, a sentence each."""
    table, done = judged(pairs), machines["nats_above_bayes"] <= LEARNED
    learned = machines[machines["architecture"] != "by hand"]
    late = [f"{row.machine} ({row.nats_above_bayes:.4f})" for row in learned[~done.loc[learned.index]].itertuples()]
    n_done = int(done.loc[learned.index].sum())
    said = [
        f"{n_done} of {len(learned)} trained machines come within {LEARNED} nats a round of the Bayes predictor"
        + (f"; not so {', '.join(late)}." if late else ".")
    ]
    named = learned.loc[learned["explains"], "algorithm"].str.startswith("Bayes predictor")
    said.append(f"{int(named.sum())} of them are explained by a Bayes predictor of one interval.")
    between = pairs[pairs["kind_a"] != pairs["kind_b"]]
    for measure in ("behaviour", "state"):
        words = between.loc[between["measure"] == measure, "word"]
        counts = ", ".join(f"{n} {word}" for word, n in words.value_counts().items())
        several = f"{measure} of {len(words)} pairs of machines across architectures"
        said.append(f"By the fixed thresholds of `interp compare`, {several} is: {counts}.")
    for measure in MEASURES:
        rows = table[table["measure"] == measure]
        count = rows["word"].value_counts()
        said.append(
            f"In {measure}, {count.get(NO_FARTHER, 0)} of {len(rows)} pairs of architectures lie no farther apart than "
            f"two seeds of one of them, {count.get(FARTHER, 0)} farther, and {count.get(UNDECIDED, 0)} are undecided."
        )
    same = [two for two, rows in table.groupby(["a", "b"], sort=False) if (rows["word"] == NO_FARTHER).all()]
    said.append(f"The same machine by all {len(MEASURES)} measures: {_listed(same)}.")
    apart = [two for two, rows in table.groupby(["a", "b"], sort=False) if (rows["word"] == FARTHER).any()]
    said.append(f"Farther apart than seeds by at least one measure: {_listed(apart)}.")
    return said


def _listed(pairs: list[tuple[str, str]]) -> str:
    return "; ".join(f"{a} and {b}" for a, b in pairs) or "none"


@styled
def draw(pairs: pd.DataFrame, table: pd.DataFrame) -> Figure:
    """A matrix a measure: the mean of the pairs, seeds of one architecture on the diagonal; framed where farther."""
    kinds = list(dict.fromkeys([*table["a"], *table["b"]]))
    figure = Figure(figsize=(WIDTH, 2.1 * WIDTH / 3))
    for axes, measure in zip(figure.subplots(2, 3).flat, (*MEASURES, ""), strict=True):
        axes.set_axis_off() if not measure else None
        if not measure:
            continue
        grid = np.full((len(kinds), len(kinds)), np.nan)
        for i, j in np.ndindex(grid.shape):
            grid[i, j] = across(pairs, measure, (kinds[i], kinds[j]))["value"].mean()
        axes.imshow(grid, cmap=figures.SEQUENTIAL, vmin=0, vmax=1)
        axes.grid(False)
        axes.set_title(measure)
        axes.set_xticks(range(len(kinds)), kinds, rotation=45, ha="right")
        axes.set_yticks(range(len(kinds)), kinds)
        words = {(row.a, row.b): row.word for row in table[table["measure"] == measure].itertuples()}
        for (i, j), value in np.ndenumerate(grid):
            if not np.isfinite(value):
                continue
            said = words.get((kinds[i], kinds[j])) or words.get((kinds[j], kinds[i]))
            mark = {FARTHER: "×", UNDECIDED: "?"}.get(said or "", "")
            axes.text(j, i, f"{value:.2f}{mark}".replace("0.", "."), ha="center", va="center", fontsize=7.5)
    return figure


def main(folder: Path) -> None:
    """Write ``judged.csv``, ``sentences.txt`` and ``matrix.svg`` beside the tables."""
    machines, pairs = (pd.read_csv(folder / f"{name}.csv") for name in ("machines", "pairs"))
    table = judged(pairs)
    write_csv(folder / "judged.csv", table)
    write_text(folder / "sentences.txt", "\n".join(sentences(machines, pairs)) + "\n")
    save_figure(draw(pairs, table), folder / "matrix.svg")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
