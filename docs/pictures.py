"""The pictures of the README: ``python -m docs.pictures`` draws them from ``pictures/verdicts.csv``.

``python -m docs.pictures FOLDER`` first takes the verdicts anew from the comparisons saved below a folder, such as
those that ``interp compare NAME`` writes to ``output/comparisons``.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import pandas as pd

from interp.files import read_json, write_csv, write_figure
from reports.side_by_side import machines, verdicts

PICTURES = Path(__file__).parent / "pictures"
TABLE = PICTURES / "verdicts.csv"
SHOWN = "wma-learned"
"""The model that is drawn beside its handwired one."""


def saved(folder: Path) -> pd.DataFrame:
    """The verdicts of the comparisons below a folder, one row each."""
    rows = []
    for path in sorted(folder.rglob("comparison.json")):
        about = read_json(path, "model", "reference", "verdicts")
        for said in about["verdicts"]:
            numbers = {key: said[key] for key in ("verdict", "value", "low", "high", "threshold")}
            rows.append({"model": about["model"], "question": said["question"], **numbers})
    return pd.DataFrame(rows)


def draw() -> list[Path]:
    """Every picture, from the table."""
    frame = pd.read_csv(TABLE)
    of_one = frame[frame["model"] == SHOWN]
    answers = {row["question"]: (row["verdict"], f"{row['value']:g}") for row in of_one.to_dict("records")}
    drawn = {"verdicts": verdicts(frame), "machines": machines(SHOWN, "wma-handwired", answers)}
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
