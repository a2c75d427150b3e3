"""``interp llm score``, ``notes`` and ``report``: what traces of language models say."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from interp.cli import options
from interp.cli.command import Say, command, llm_app

if TYPE_CHECKING:
    from interp.llm.loading import Reading

_Traces = Annotated[Path, typer.Argument(help="Folder of traces, or of other people's result.json files.")]
_ForeignRegime = Annotated[str | None, typer.Option(help="Regime of foreign results that do not name theirs.")]
_Duplicates = Annotated[str, typer.Option(help="Instances played twice: refuse, or first to keep one play.")]


def _read_traces(say: Say, path: Path, regime: str | None, duplicates: str) -> Reading:
    """The runs below ``path``; what was set aside is told on standard error."""
    from interp.llm.loading import read

    reading = read(path, regime, duplicates)
    for sentence in reading.sentences if len(reading.sentences) > 1 else ():
        say.aside(sentence)
    return reading


@command("score", example="interp llm score output/llm", group=llm_app)
def score(
    say: Say,
    path: _Traces,
    out: options.Out = Path("output/llm-scores"),
    regime: _ForeignRegime = None,
    duplicates: _Duplicates = "refuse",
    seed: options.Seed = 0,
) -> None:
    """Score traces beside the baselines: regret, behaviour, notes; tables as CSV."""
    from interp.files import write_text
    from interp.llm.tables import readable, write_tables
    from interp.progress import working

    reading = _read_traces(say, path, regime, duplicates)
    options.to_be_written(out)
    with working("scoring"):
        scores, written = write_tables(reading.runs, out, seed=seed)
    written.append(write_text(out / "read.csv", reading.table.to_csv(index=False)))
    say.table(readable(scores.final), "Regret after the last round, mean ± std over instances", "regret")
    say.wrote(written)


@command("notes", example="interp llm notes output/llm", group=llm_app)
def notes(
    say: Say,
    path: _Traces,
    out: options.Out = Path("output/llm-notes"),
    regime: _ForeignRegime = None,
    duplicates: _Duplicates = "refuse",
) -> None:
    """What the notes in traces say: their formats over the rounds, whether they count right, and every note."""
    from interp.llm.tables import note_table, write_notes
    from interp.progress import working

    reading = _read_traces(say, path, regime, duplicates)
    options.to_be_written(out)
    with working("reading notes"):
        table = note_table(reading.runs)
        written = write_notes(table, out)
    title = "Share of runs with each format after the first round, the sixth (step 5) and the last"
    say.table(table.formats_over_rounds(), title, "formats")
    say.table(table.final(), "The last note", "last_note")
    say.wrote(written)


@command("report", example="interp llm report output/llm --models wma-handwired wma-learned", group=llm_app, torch=True)
def report(
    say: Say,
    path: _Traces,
    models: Annotated[list[str] | None, typer.Option(help="Transformers to run on the same instances.")] = None,
    out: options.Out = Path("output"),
    regime: _ForeignRegime = None,
    duplicates: _Duplicates = "refuse",
    seed: options.Seed = 0,
) -> None:
    """Write the report on traces, with handwired and learned transformers on the same instances."""
    from interp.progress import working
    from reports.llm import build

    options.to_be_written(out)
    with working("scoring and drawing"):
        page = build(path, models or [], out=out, regime=regime, duplicates=duplicates, seed=seed)
    say.wrote([page])
