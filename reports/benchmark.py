"""The page of a benchmark: for each question how methods do, on what, and at which price."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pandas as pd

from circuits.benchmark import METHODS, BenchmarkResult
from circuits.benchmark.known_machine import VARIANTS
from circuits.benchmark.questions import QUESTIONS
from interp.results import figures
from interp.stats.intervals import Interval
from reports.blocks import TEXTS, Figure, Measures, Prose, Table, joined, plain
from reports.page import Report, Section, write_listed

_LEAD = TEXTS["benchmark"]["lead"]
_BOUNDS = ("oracle", "random")
_PARTIAL = (
    ":prediction",
    ":state",
    ":rounds",
    ":absolute",
)  # readings that the figure of variants leaves out
_EDGE_SCORES = (
    "ap",
    "auroc",
    "recall",
    "auroc constant",
    "auroc clean-up",
    "ap all",
    "cpr",
    "1-cmd",
)


def page(result: BenchmarkResult) -> Report:
    """The report on a result."""
    asked = dict.fromkeys(row["question"] for row in result.rows)
    first = next((name for name in result.means.index if name not in _BOUNDS), "none")
    caption = f"{first} does best where it answers. Each method has its best reading; a blank cell has no answer."
    hero = [Figure(result.plot(), "Every method on every question", caption)]
    sections = [Section(_title(question), _blocks(result, question)) for question in asked]
    if result.refusals:
        refused = Table(pd.DataFrame(list(result.refusals)), "What methods refused, and why")
        sections.append(Section("Refused", [refused]))
    about = {"kind": "benchmark", "run": f"{len(asked)} questions", "sentence": result.sentence}
    return Report(
        "Benchmark of methods",
        _LEAD,
        sections,
        dict(result.settings),
        "",
        about,
        result.sentence,
        hero,
    )


def write(result: BenchmarkResult, out: str | Path = "output") -> Path:
    """Write the page as ``out/benchmark.html``."""
    return write_listed(page(result), Path(out) / "benchmark.html")


def _title(question: str) -> str:
    name = QUESTIONS[question].name
    return name[0].upper() + name[1:]


def _blocks(result: BenchmarkResult, question: str) -> list[Any]:
    record, summary = QUESTIONS[question], result.summary(question)
    chance = summary.loc[summary["method"] == "random", "mean"]
    beside = {"random": float(chance.iloc[0])} if len(chance) else {}
    numbers = summary[["method", "mean", "low", "high"]].itertuples(index=False, name=None)
    rows = [plain(str(method), Interval(*number), beside) for method, *number in numbers]
    known = {method: record.name for (of, method), record in METHODS.items() if of == question}
    listed = joined(summary.rename(columns={"cpu_s": "CPU s", "mean": "score"}).round({"CPU s": 2}))
    listed.insert(1, "what", listed["method"].map(known).fillna(""))
    graded = summary.loc[~summary["method"].isin(_BOUNDS), ["method", "mean"]].itertuples(
        index=False, name=None
    )
    best = next((f"{method} ({mean:.2f})" for method, mean in graded), "none")
    caption = f"Best is {best}. {_title(question)}: {record.headline}, mean over forms of machines."
    scores = result.table(question)
    kept = [
        str(name) for name in (_EDGE_SCORES if question == "edges" else scores) if name in scores
    ]
    by_variant = result.summary(question, by=["variant"]).pivot(
        index="method", columns="variant", values="mean"
    )
    order = [name for name in (*VARIANTS, "trained") if name in by_variant]
    shown = by_variant.loc[[key for key in summary["method"] if not key.endswith(_PARTIAL)], order]
    picture = figures.heatmaps({"": shown}, label=f"mean {record.headline}", limit=1.0)
    return [
        Prose(f"**{record.asked}** **Truth.** {record.true} **Score.** {record.scored}"),
        Measures(rows, caption),
        Table(listed, "Every method, with CPU seconds for each subject", collapsed=True),
        Table(
            scores[kept].reset_index(), "Every score", dict.fromkeys(kept, ".2f"), collapsed=True
        ),
        Figure(picture, "By variant of the machines", f"Mean over forms: {record.headline}."),
    ]
