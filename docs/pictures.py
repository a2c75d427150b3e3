"""The pictures of the README and of pages of results: ``python -m docs.pictures`` draws them from their tables.

``python -m docs.pictures FOLDER`` first takes the measures anew from the comparisons saved below a folder, such as
those that ``interp compare NAME`` writes to ``output/comparisons``.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from interp.interventions.hand_over import hand_over
from interp.model.library import load, models
from interp.model.rollout import rollout
from interp.results.figures import curves, heatmaps, intervals, trajectories
from interp.results.measure import Measure
from interp.results.palette import INK
from interp.results.style import WIDTH, in_house_style
from interp.stats.intervals import Interval
from interp.support.files import read_json, write_csv, write_figure
from interp.tasks import experts
from probes import probe
from reports.comparison import LOOKS, PARTS, machines

PICTURES = Path(__file__).parent / "pictures"
TABLE = PICTURES / "verdicts.csv"
RESULTS = Path(__file__).parent / "results"
COLUMNS = ["key", "verdict", "condition", "number", "low", "high", "unit", "threshold"]
SHOWN = "wma-learned"
"""The model of which the README's pictures are: what it carries, and how it goes on with the memory of another."""
COMPARED = "wma-learned-additive"
"""The model whose comparison with its handwired machine is drawn."""


def saved(folder: Path) -> pd.DataFrame:
    """The measures of the comparisons below a folder, one row each; a share of rounds apart is turned."""
    rows = [
        {"model": about["model"], **record}
        for about in (
            read_json(path, "model", "measures") for path in folder.rglob("comparison.json")
        )
        for record in about["measures"]
    ]
    frame = pd.DataFrame(rows)
    frame = _turned(frame, frame["side"] == "below")[["model", *COLUMNS]].round(3)
    order = [record.name for record in models()]
    return frame.sort_values("model", key=lambda names: names.map(order.index), kind="stable")


def between_seeds() -> pd.DataFrame:
    """The verdicts between the seeds of trained models, one row each; what says how far two are apart is turned."""
    frame = pd.concat(
        [pd.read_csv(path) for path in sorted(RESULTS.glob("seeds/*-between.csv"))],
        ignore_index=True,
    )
    called = frame["what"].str.extract(r"as (?P<other>.*): (?P<key>.*)")
    frame = frame.assign(
        model=frame["model"] + " as " + called["other"], key=called["key"], threshold=np.nan
    )
    frame = frame.rename(columns={"value": "number"}).assign(verdict=frame["verdict"])
    return _turned(frame, frame["by"].str.endswith("apart"))


def _turned(frame: pd.DataFrame, apart: pd.Series) -> pd.DataFrame:
    """The rows that say how far two are ``apart`` say how far they are alike, as all others do."""
    numbers = ["number", "low", "high", "threshold"]
    alike = frame[["number", "high", "low", "threshold"]].rsub(1).set_axis(numbers, axis="columns")
    return frame.assign(**{name: frame[name].mask(apart, alike[name]) for name in numbers})


@in_house_style
def words(frame: pd.DataFrame) -> Figure:
    """The words on several models, a panel a measure: each number, at least 0, with its interval and threshold."""
    names = list(dict.fromkeys(frame["model"]))
    keys = [key for key in PARTS if key in set(frame["key"])]
    figure = Figure(figsize=(WIDTH, 0.95 + 0.36 * len(names)))
    for axes, key in zip(
        figure.subplots(1, len(keys), sharey=True, squeeze=False)[0], keys, strict=True
    ):
        for row in frame[frame["key"] == key].to_dict("records"):
            y, (colour, _) = len(names) - 1 - names.index(row["model"]), LOOKS[row["verdict"]]
            number, low, high = (max(0, row[name]) for name in ("number", "low", "high"))
            if np.isfinite(row["low"]):
                axes.plot([low, high], [y, y], color=colour, linewidth=4, alpha=0.45)
            axes.plot(
                number,
                y,
                "o" if row["verdict"] == "yes" else "D",
                color=colour,
                markersize=6,
            )
            left = number < 0.5
            beside = (number + (0.06 if left else -0.06), y + 0.3)
            look = {
                "ha": "left" if left else "right",
                "va": "center",
                "fontsize": 8,
                "color": colour,
            }
            axes.annotate(row["verdict"], beside, **look)
            if np.isfinite(row["threshold"]):
                axes.plot([row["threshold"]] * 2, [y - 0.3, y + 0.3], color=INK, linewidth=1)
        axes.set(xlim=(-0.05, 1.05), ylim=(-0.6, len(names) - 0.3), title=f"same {PARTS[key]}?")
        axes.set_xticks([0, 0.5, 1], ["0", ".5", "1"])
        axes.set_yticks(range(len(names)), names[::-1])
        axes.tick_params(axis="y", length=0)
        axes.grid(False, axis="y")
    ticks = ", ticks are thresholds" if frame["threshold"].notna().any() else ""
    figure.supxlabel(f"similarity (1: the same); bars are 95 % intervals{ticks}", fontsize=8.5)
    return figure


def state_over_time() -> Figure:
    """Draw the accuracies decoded from what ``SHOWN`` carries on the Bayes predictor's, in an episode of median fit."""
    episodes = experts.sample(n_episodes=256, n_rounds=50, n_experts=4, seed=0)
    (result,) = probe(load(SHOWN), episodes, ["accuracies"])
    decoded = np.asarray(result.predictions)
    bayes = np.asarray(result.target.values)
    misses = ((decoded - bayes) ** 2).sum((1, 2))
    shown = np.argsort(misses)[len(misses) // 2]
    return trajectories(decoded[shown], bayes[shown], result.target.outputs, ylabel="accuracy")


def memory_handed_over() -> Figure:
    """Draw how far ``SHOWN`` is from its own predictions when it plays on with the memory of a GRU."""
    episodes = experts.sample(n_episodes=256, n_rounds=30, n_experts=4, seed=1)
    giver = rollout(load("wma-gru"), episodes)
    return hand_over(giver, 10, to=load(SHOWN)).plot()


def recurrences() -> Figure:
    """Draw how far above the Bayes predictor trainings are over time, with latents that are replaced or added to."""
    frame = pd.read_csv(RESULTS / "replaced-or-added" / "curves.csv")
    frame = frame.rename(columns={"latents": "algorithm", "excess": "mean"})
    return curves(
        frame,
        x="minutes",
        xlabel="minutes of training on one core",
        ylabel="nats a round above the Bayes predictor",
        log_y=True,
    )


def draw() -> list[Path]:
    """Draw every picture, from the tables and from the models ``SHOWN`` and ``COMPARED``."""
    frame = pd.read_csv(TABLE, keep_default_na=False)
    shown = []
    for row in frame[frame["model"] == COMPARED].to_dict("records"):
        number, said = (
            Interval(row["number"], row["low"], row["high"]),
            {k: row[k] for k in ("unit", "condition")},
        )
        unless: dict[Any, str] = (
            {} if row["verdict"] in ("yes", "no") else dict.fromkeys(("yes", "no"), row["verdict"])
        )
        shown += [
            Measure(
                *[row["key"]] * 2,
                number,
                row["threshold"],
                unless=unless,
                needs_control=False,
                **said,
            )
        ]
    drawn = {"state": state_over_time(), "hand-over": memory_handed_over()}
    drawn["recurrences"] = recurrences()
    drawn |= {"verdicts": words(frame), "machines": machines(COMPARED, "wma-handwired", shown)}
    drawn["seeds"] = words(between_seeds())
    scores = pd.read_csv(RESULTS / "which-method" / "edges.csv")
    scores = scores[scores["method"].str.contains(":another|:single|oracle|random")]
    bounds = (
        scores["average precision, content edges"]
        .str.extract(r"(?P<estimate>\S+) \[(?P<low>.+), (?P<high>.+)\]")
        .astype(float)
    )
    bounds = bounds.assign(
        name=scores["method"], control=scores["method"].isin(("oracle", "random"))
    )
    drawn["methods"] = intervals(bounds, xlabel="average precision of the edges that carry content")
    critics = (
        pd.read_csv(RESULTS / "third-machine/critics.csv", index_col=0)
        .drop(columns="seeds")
        .rename_axis(None)
    )
    drawn["critics"] = heatmaps({"": critics}, label="share", limit=1.0)
    rates = pd.read_csv(RESULTS / "verdicts" / "rules-quick.csv").query("`held out` == 'yes'")
    rates = rates.assign(
        name=rates["question"] + ", " + rates["error"],
        estimate=rates["wrong"] / rates["of"],
        low=0.0,
    )
    drawn["rates"] = intervals(
        rates.rename(columns={"at_most": "high"}),
        xlabel="rate of wrong verdicts on held-out machines",
    )
    return [
        write_figure(PICTURES / f"{name}.svg", figure, facecolor="#fcfcfb")
        for name, figure in drawn.items()
    ]


def main() -> None:
    """Take the measures anew where a folder is given, and draw."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path, nargs="?", help="comparisons whose measures are drawn")
    if (folder := parser.parse_args().folder) is not None:
        write_csv(TABLE, saved(folder))
    print(*draw(), sep="\n")


if __name__ == "__main__":
    main()
