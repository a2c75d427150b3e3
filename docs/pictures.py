"""The pictures of the README and of seeds: ``python -m docs.pictures`` draws them from their tables.

``python -m docs.pictures FOLDER`` first takes the verdicts anew from the comparisons saved below a folder, such as
those that ``interp compare NAME`` writes to ``output/comparisons``.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
import pandas as pd

from circuits.compare.question import at_most
from interp.files import read_json, write_csv, write_figure
from interp.library import models
from reports.side_by_side import machines, verdicts

PICTURES = Path(__file__).parent / "pictures"
TABLE = PICTURES / "verdicts.csv"
SEEDS = Path(__file__).parent / "seeds"
SAID = ("question", "verdict", "value", "low", "high", "threshold")
SHOWN = "wma-learned"
"""The model that is drawn beside its handwired one."""


def saved(folder: Path) -> pd.DataFrame:
    """The verdicts of the comparisons below a folder, one row each; a share of rounds apart is turned."""
    rows = []
    for path in folder.rglob("comparison.json"):
        about = read_json(path, "model", "reference", "verdicts")
        for said in about["verdicts"]:
            rows.append({"model": about["model"], "by": said["decided by"], **{key: said[key] for key in SAID}})
    frame = pd.DataFrame(rows)
    frame = _turned(frame, frame["by"].map(at_most)).drop(columns="by").round(3)
    order = [record.name for record in models()]
    return frame.sort_values("model", key=lambda names: names.map(order.index), kind="stable")


def between_seeds() -> pd.DataFrame:
    """The verdicts between the seeds of trained models, one row each; what says how far two are apart is turned."""
    frame = pd.concat([pd.read_csv(path) for path in sorted(SEEDS.glob("*-between.csv"))], ignore_index=True)
    called = frame["what"].str.extract(r"as (?P<other>.*): (?P<question>.*)")
    frame = frame.assign(model=frame["model"] + " as " + called["other"], question=called["question"], threshold=np.nan)
    return _turned(frame, frame["by"].str.endswith("apart by"))


def _turned(frame: pd.DataFrame, apart: pd.Series) -> pd.DataFrame:
    """The rows that say how far two are ``apart`` say how far they are alike, as all others do."""
    numbers = ["value", "low", "high", "threshold"]
    alike = frame[["value", "high", "low", "threshold"]].rsub(1).set_axis(numbers, axis="columns")
    return frame.assign(**{name: frame[name].mask(apart, alike[name]) for name in numbers})


def draw() -> list[Path]:
    """Every picture, from the table."""
    frame = pd.read_csv(TABLE)
    of_one = frame[frame["model"] == SHOWN]
    answers = {row["question"]: (row["verdict"], f"{row['value']:g}") for row in of_one.to_dict("records")}
    drawn = {"verdicts": verdicts(frame), "machines": machines(SHOWN, "wma-handwired", answers)}
    drawn["seeds"] = verdicts(between_seeds())
    return [write_figure(PICTURES / f"{name}.svg", figure, facecolor="#fcfcfb") for name, figure in drawn.items()]


def main() -> None:
    """Take the verdicts anew where a folder is given, and draw."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path, nargs="?", help="comparisons whose verdicts are drawn")
    if (folder := parser.parse_args().folder) is not None:
        write_csv(TABLE, saved(folder))
    print(*draw(), sep="\n")


if __name__ == "__main__":
    main()
