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
from reports.blocks import Figure, Measures, Prose, Table, joined, plain
from reports.page import Report, Section, write_listed
from reports.texts import TEXTS

_LEAD = TEXTS["benchmark"]["lead"]
_BOUNDS = ("oracle", "random")
_PARTIAL = (
    ":prediction",
    ":state",
    ":rounds",
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
    """Return the report on a result."""
    questions = list(dict.fromkeys(row["question"] for row in result.rows))
    first = next((name for name in result.means.index if name not in _BOUNDS), "none")
    caption = f"{first} does best where it answers. Each method has its best reading; a blank cell has no answer."
    hero = [Figure(result.plot(), "Every method on every question", caption)]
    sections = [Section(_title(question), _blocks(result, question)) for question in questions]
    if result.refusals:
        refused = Table(pd.DataFrame(list(result.refusals)), "What methods refused, and why")
        sections.append(Section("Refused", [refused]))
    sentence = result.sentence
    description = {
        "kind": "benchmark",
        "run": f"{len(questions)} questions",
        "sentence": sentence,
    }
    return Report(
        "Benchmark of methods",
        _LEAD,
        sections,
        dict(result.settings),
        about=description,
        sentence=sentence,
        hero=hero,
    )


def write(result: BenchmarkResult, out: str | Path = "output") -> Path:
    """Write the page as ``out/benchmark.html``."""
    return write_listed(page(result), Path(out) / "benchmark.html")


def _title(question: str) -> str:
    name = QUESTIONS[question].name
    return name[0].upper() + name[1:]


def _blocks(result: BenchmarkResult, question: str) -> list[Any]:
    """Make the section of one question: scores, every method, every number, and scores by variant."""
    record = QUESTIONS[question]
    summary = result.summary(question)
    text = f"**{record.asked}** **Truth.** {record.true} **Score.** {record.scored}"
    picture = _draw_variants(result, question)
    caption = f"Mean over forms: {record.headline}."
    return [
        Prose(text),
        Measures(_rate_methods(summary), _caption(question, summary)),
        _list_methods(question, summary),
        _list_scores(result, question),
        Figure(picture, "By variant of the machines", caption),
    ]


def _rate_methods(summary: pd.DataFrame) -> list[Any]:
    """Make one measure for each method, with a random draw as control where there is one."""
    chance = summary.loc[summary["method"] == "random", "mean"]
    controls = {"random": float(chance.iloc[0])} if len(chance) else {}
    measures = []
    for row in summary.to_dict("records"):
        interval = Interval(float(row["mean"]), float(row["low"]), float(row["high"]))
        measures.append(plain(str(row["method"]), interval, controls))
    return measures


def _caption(question: str, summary: pd.DataFrame) -> str:
    """Name the best method that is graded."""
    graded = summary[~summary["method"].isin(_BOUNDS)]
    best = "none"
    if len(graded):
        first = graded.iloc[0]
        best = f"{first['method']} ({first['mean']:.2f})"
    headline = QUESTIONS[question].headline
    return f"Best is {best}. {_title(question)}: {headline}, mean over forms of machines."


def _list_methods(question: str, summary: pd.DataFrame) -> Table:
    """Make the table of every method, with what it is and what it costs."""
    names = {key[1]: method.name for key, method in METHODS.items() if key[0] == question}
    renamed = summary.rename(columns={"cpu_s": "CPU s", "mean": "score"})
    listed = joined(renamed.round({"CPU s": 2}))
    listed.insert(1, "what", listed["method"].map(names).fillna(""))
    return Table(listed, "Every method, with CPU seconds for each subject", collapsed=True)


def _list_scores(result: BenchmarkResult, question: str) -> Table:
    """Make the table of every score."""
    scores = result.table(question)
    wanted = _EDGE_SCORES if question == "edges" else scores
    columns = [str(name) for name in wanted if name in scores]
    formats = dict.fromkeys(columns, ".2f")
    return Table(scores[columns].reset_index(), "Every score", formats, collapsed=True)


def _draw_variants(result: BenchmarkResult, question: str) -> Any:
    """Draw the mean score of every whole method on each variant of the machines."""
    summary = result.summary(question, by=["variant"])
    by_variant = summary.pivot(index="method", columns="variant", values="mean")
    order = [name for name in VARIANTS if name in by_variant]
    methods = [key for key in result.summary(question)["method"] if not key.endswith(_PARTIAL)]
    label = f"mean {QUESTIONS[question].headline}"
    return figures.heatmaps({"": by_variant.loc[methods, order]}, label=label, limit=1.0)
