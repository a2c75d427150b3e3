"""How right the rules of note formats are on notes labelled by hand: precision and recall with exact 95 % intervals.

``python -m tests.llm.note_rules [SPLIT]`` prints the table of one split of ``notes.jsonl``, by default "second held
out": notes written after the rules, which no rule was changed for.
"""

import sys
from pathlib import Path

import numpy as np
import pandas as pd

from interp.llm.notes import FORMATS, classify
from interp.stats.intervals import exact_share

LABELLED = pd.read_json(Path(__file__).with_name("notes.jsonl"), lines=True, dtype=False)


def table(split: str = "second held out") -> str:
    """A row for each format, in Markdown: how many notes have it, and of which share the rules are right."""
    part = LABELLED[LABELLED["split"] == split]
    labels, found = (
        part["format"].to_numpy(),
        np.array([classify(note)["format"] for note in part["note"]]),
    )
    lines = ["| format | notes | precision | recall |", "| --- | --- | --- | --- |"]
    for name in FORMATS:
        right = labels == found
        precision, recall = (exact_share(right[of == name]) for of in (found, labels))
        said = (
            f"{one.estimate:.2f} [{one.low:.2f}, {one.high:.2f}]" for one in (precision, recall)
        )
        lines.append(f"| {name} | {(labels == name).sum()} | {' | '.join(said)} |")
    return "\n".join(lines)


if __name__ == "__main__":
    print(table(*sys.argv[1:]))  # noqa: T201
