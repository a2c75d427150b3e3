"""Are two architectures the same machine? They are where they lie no farther apart than two seeds of one of them do.

Reads what ``examples/architectures.py`` wrote, and says of every two architectures and every measure one word. The
*yardstick* is the pair of seeds, of either architecture, that lies farthest apart. A pair of machines of the two is

    farther     where the whole interval of its distance, 1 less its number, is more than twice that of the yardstick
    no farther  where its interval reaches as high as the yardstick's, and untrained copies lie below it
    undecided   elsewhere

and so are the architectures where all their pairs agree. How often the rule errs is counted on seeds of one
architecture that are judged as though they were of two (:func:`pretended`: "farther" is wrong there), and on a machine
of another algorithm, Weighted Majority by hand, which must lie farther. Write tables, sentences, picture and page with

    python examples/same_machine.py docs/results/architectures output/architectures.html
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from itertools import combinations, permutations
from pathlib import Path

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from interp.results import figures
from interp.results.style import WIDTH, styled
from interp.support.files import write_csv, write_figure, write_text
from reports import blocks
from reports.page import Report, Section

MEASURES = ("behaviour", "response", "state", "update on", "update off")
TITLE = "Do architectures become the same machine?"
FARTHER, NO_FARTHER, UNDECIDED = "farther", "no farther", "undecided"
WORDS = [FARTHER, NO_FARTHER, UNDECIDED]
BY_HAND = "by hand"
"""What begins the name of a control, which stands for an architecture: a machine whose algorithm is another one."""
SPREAD = 2.0
"""How many times as far as the yardstick is farther: two pairs of the transformer's three seeds differ 1.8-fold."""
LEARNED = 0.005
"""Nats a round above the Bayes predictor up to which a training counts as done: 3 % of what a memory is worth."""


def yardstick(pairs: pd.DataFrame, measure: str, kinds: tuple[str, str]) -> pd.Series | None:
    """The row of the two seeds, of either architecture, that lie farthest apart; None where neither has two."""
    within = pairs[
        (pairs["kind_a"] == pairs["kind_b"])
        & pairs["kind_a"].isin(kinds)
        & (pairs["measure"] == measure)
    ]
    return within.loc[within["value"].idxmin()] if len(within) else None


def across(pairs: pd.DataFrame, measure: str, kinds: tuple[str, str]) -> pd.DataFrame:
    """The rows of pairs of the two architectures."""
    both = [set(each) == set(kinds) for each in zip(pairs["kind_a"], pairs["kind_b"], strict=True)]
    return pairs[np.array(both) & (pairs["measure"] == measure)]


def word(rows: pd.DataFrame, yard: pd.Series) -> str:
    """The word of two architectures: that of all their pairs, or undecided."""
    farther = 1 - rows["high"] > SPREAD * (1 - yard["low"])
    as_near = (rows["low"] >= yard["low"]) & ~(rows["untrained"] >= rows["low"])
    return FARTHER if farther.all() else NO_FARTHER if as_near.all() else UNDECIDED


def judged(pairs: pd.DataFrame) -> pd.DataFrame:
    """A row for every two architectures and every measure."""
    rows = []
    for two in combinations(pd.unique(pairs[["kind_a", "kind_b"]].to_numpy().ravel()), 2):
        for measure in MEASURES:
            found, yard = across(pairs, measure, two), yardstick(pairs, measure, two)
            if len(found) and yard is not None:
                said = {
                    "value": found["value"].mean(),
                    "low": found["low"].min(),
                    "high": found["high"].max(),
                }
                held = {
                    "seeds": yard["value"],
                    "seeds_low": yard["low"],
                    "yardstick": f"{yard['a']}, {yard['b']}",
                }
                about = {"a": two[0], "b": two[1], "measure": measure, "verdict": word(found, yard)}
                rows.append(
                    {
                        **about,
                        **said,
                        "n_pairs": len(found),
                        "untrained": found["untrained"].max(),
                        **held,
                    }
                )
    return pd.DataFrame(rows)


def pretended(pairs: pd.DataFrame, measure: str) -> Iterator[tuple[str, str]]:
    """Architecture and word, for every way to judge seeds of one architecture as though they were of two.

    Of four seeds or more, two against two others; of three, two against the third.
    """
    rows = pairs[(pairs["kind_a"] == pairs["kind_b"]) & (pairs["measure"] == measure)]
    for kind, within in rows.groupby("kind_a", sort=False):
        found = {frozenset((row["a"], row["b"])): row for _, row in within.iterrows()}
        seeds = sorted(set().union(*found))
        for one, other in permutations(combinations(seeds, 2), 2):
            if not set(one) & set(other) and one < other:
                yard = min(
                    (found[frozenset(two)] for two in (one, other)), key=lambda row: row["value"]
                )
                for matched in permutations(other):
                    tested = [found[frozenset(two)] for two in zip(one, matched, strict=True)]
                    yield str(kind), word(pd.DataFrame(tested), yard)
        if len(seeds) == 3:
            for one, third in ((two, min(set(seeds) - set(two))) for two in combinations(seeds, 2)):
                for mine in one:
                    yield (
                        str(kind),
                        word(found[frozenset((mine, third))].to_frame().T, found[frozenset(one)]),
                    )


def controls(pairs: pd.DataFrame) -> pd.DataFrame:
    """How often each word is said where the answer is known, a row for each measure and architecture."""
    rows, every = [], judged(pairs)
    for measure in MEASURES:
        said = pd.DataFrame(pretended(pairs, measure), columns=["architecture", "verdict"])
        counted = [
            (f"{kind}, as two", part["verdict"])
            for kind, part in said.groupby("architecture", sort=False)
        ]
        of_it = every[every["measure"] == measure]
        for hand in sorted(kind for kind in {*every["a"], *every["b"]} if kind.startswith(BY_HAND)):
            counted.append((hand, of_it.loc[(of_it[["a", "b"]] == hand).any(axis=1), "verdict"]))
        for control, words in counted:
            count = {each: int((words == each).sum()) for each in WORDS}
            rows.append({"measure": measure, "control": control, **count})
    return pd.DataFrame(rows)


def trained(pairs: pd.DataFrame) -> pd.DataFrame:
    """The pairs without those of machines that were made by hand."""
    by_hand = pairs["kind_a"].str.startswith(BY_HAND) | pairs["kind_b"].str.startswith(BY_HAND)
    return pairs[~by_hand]


def sentences(machines: pd.DataFrame, pairs: pd.DataFrame) -> list[str]:
    """What the tables say, a sentence each."""
    pairs = trained(pairs)
    table, done = judged(pairs), machines["nats_above_bayes"] <= LEARNED
    late = [f"{row.machine} ({row.nats_above_bayes:.4f})" for row in machines[~done].itertuples()]
    said = [
        f"{done.sum()} of {len(machines)} trained machines come within {LEARNED} nats a round of the Bayes predictor"
        + (f"; the exception is {', '.join(late)}." if late else ".")
    ]
    named = machines.loc[machines["explains"], "algorithm"].str.startswith("Bayes predictor")
    said.append(
        f"The predictions of {int(named.sum())} of them are explained by a Bayes predictor with one interval."
    )
    between = pairs[pairs["kind_a"] != pairs["kind_b"]]
    for measure in ("behaviour", "state"):
        words = between.loc[between["measure"] == measure, "verdict"]
        counts = ", ".join(f"{n} {word}" for word, n in words.value_counts().items())
        said.append(
            f"Do two machines of different architectures have the same {measure}? `interp compare` answers for "
            f"{len(words)} pairs: {counts}."
        )
    same = []
    apart = []
    for pair, rows in table.groupby(["a", "b"], sort=False):
        if (rows["verdict"] == NO_FARTHER).all():
            same.append(pair)
        if (rows["verdict"] == FARTHER).any():
            apart.append(pair)
    said.append(
        f"Pairs of architectures that are the same machine by all {len(MEASURES)} measures: {_listed(same)}."
    )
    said.append(
        f"Pairs of architectures that lie farther apart than two seeds by at least one measure: {_listed(apart)}."
    )
    return said


def rows_of_counts(pairs: pd.DataFrame) -> list[str]:
    """Return a row of a Markdown table for each measure: verdicts on pairs of architectures, and on the controls."""
    table, known = judged(trained(pairs)), controls(pairs)
    rows = []
    for measure, checks in known.groupby("measure", sort=False):
        verdicts = table.loc[table["measure"] == measure, "verdict"].value_counts()
        is_by_hand = checks["control"].str.startswith(BY_HAND)
        seeds = checks.loc[~is_by_hand, WORDS]
        by_hand = checks.loc[is_by_hand, WORDS]
        cells = [str(verdicts.get(word, 0)) for word in (NO_FARTHER, FARTHER, UNDECIDED)]
        for farther, total in [
            (seeds[FARTHER].sum(), seeds.to_numpy().sum()),
            *zip(by_hand[FARTHER], by_hand.sum(axis=1), strict=True),
        ]:
            cells.append(f"{farther} of {total}")
        rows.append(f"| {' | '.join([measure, *cells])} |")
    return rows


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
        words = {
            (row.a, row.b): row.verdict for row in table[table["measure"] == measure].itertuples()
        }
        for (i, j), value in np.ndenumerate(grid):
            if not np.isfinite(value):
                continue
            said = words.get((kinds[i], kinds[j])) or words.get((kinds[j], kinds[i]))
            mark = {FARTHER: "×", UNDECIDED: "?"}.get(said or "", "")
            axes.text(
                j,
                i,
                f"{value:.2f}{mark}".replace("0.", "."),
                ha="center",
                va="center",
                fontsize=7.5,
            )
    return figure


def page(machines: pd.DataFrame, pairs: pd.DataFrame) -> Report:
    """The sentences, the matrix, every word with its numbers, and the controls."""
    said, table = sentences(machines, pairs), judged(trained(pairs))
    matrix = "Means over pairs: × farther apart than two seeds, ? undecided; two seeds of one on the diagonal."
    seen = [
        blocks.Prose("\n".join(f"- {sentence}" for sentence in said)),
        blocks.Figure(
            draw(trained(pairs), table), "How alike two architectures are, by five measures", matrix
        ),
    ]
    sections = [
        Section("What the numbers say", seen),
        Section("Every two architectures", [blocks.Table(table)]),
        Section(
            "Where the answer is known",
            [blocks.Table(controls(pairs), "How often each word is said.")],
        ),
        Section("The machines", [blocks.Table(machines)]),
    ]
    return Report(
        TITLE, "Two seeds of one architecture are the yardstick.", sections, sentence=said[0]
    )


def main(folder: Path, out: Path | None = None) -> None:
    """Write ``judged.csv``, ``controls.csv``, ``sentences.txt`` and ``matrix.svg`` beside the numbers, and a page."""
    machines, pairs = (pd.read_csv(folder / f"{name}.csv") for name in ("machines", "pairs"))
    table = judged(trained(pairs))
    write_csv(folder / "judged.csv", table)
    write_csv(folder / "controls.csv", controls(pairs))
    write_text(folder / "sentences.txt", "\n".join(sentences(machines, pairs)) + "\n")
    write_figure(folder / "matrix.svg", draw(trained(pairs), table), bbox_inches="tight")
    if out is not None:
        page(machines, pairs).write(out)


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:]))
