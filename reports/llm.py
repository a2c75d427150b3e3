"""The report on language models as online learners: traces in, one page out, both worlds on the same instances.

A regime is comparable with the paper's only as far as instances are drawn alike, which its table says.
"""

from __future__ import annotations

import shlex
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from interp.choices.behaviour import PlayerBehaviour, behaviour, behaviour_tables
from interp.evaluation.experts.by_regime import predict
from interp.llm.loading import Reading, read
from interp.llm.notes import FORMATS
from interp.llm.runs import LLMRun
from interp.llm.scores import LLMScores, NoteTable, Predictor, note_table, score
from interp.support.checks import checked
from interp.support.errors import require
from interp.support.files import file_to_write, writable
from interp.support.provenance import provenance
from interp.tasks.experts import TASK
from reports.blocks import TEXTS, Figure, Prose, Summary, Table, curves, joined
from reports.page import Report, Section, write_listed
from reports.parts.overview import PAPER, PRINTED, commands, shown_on


@checked
def write(
    path: str | Path,
    models: Sequence[str] = (),
    out: str | Path = "output",
    regime: str | None = None,
    duplicates: str = "refuse",
    seed: int = 0,
    acts: Sequence[PlayerBehaviour] | None = None,
) -> Path:
    """Write the report on the traces below ``path`` and return its path, ``out/llm.html``.

    Args:
        path, regime: a folder of traces or of foreign results, or one file; of results that do not name theirs.
        models: transformers to run on the same instances: what :func:`interp.load` takes.
        duplicates: what to do with instances that were played twice, see :mod:`interp.llm.loading`.
        seed: of the bootstrap.
        acts: what :func:`~interp.choices.behaviour.behaviour` found of these traces; computed when None.
    """
    page = file_to_write(writable(out) / "llm.html")
    others = {name: transformer(name) for name in models}
    reading = read(path, regime, duplicates)
    acts = behaviour(reading.runs, seed) if acts is None else acts
    return write_listed(
        _report(reading, score(reading.runs, others, seed), acts, Path(path), seed), page
    )


def transformer(name: str) -> Predictor:
    """A model of ours as a predictor: episodes to P(y=1) [episode, round]."""
    import circuits
    from interp.model.library import load

    task = load(name).layout.task
    require(
        task == "experts",
        f"{name!r} is a model of {task}; the comparison needs a model of expert advice",
    )

    wired = name in [known.name for known in circuits.models()]
    return lambda episodes: predict(
        load(name, **{"n_experts": episodes.n_experts} if wired else {}), episodes
    )


def _report(
    reading: Reading, scores: LLMScores, acts: Sequence[PlayerBehaviour], path: Path, seed: int
) -> Report:
    runs, notes, of_regret = reading.runs, note_table(reading.runs), _regret(scores)
    others = dict.fromkeys(scores.final.loc[scores.final["kind"] == "model", "model"])
    shell = shlex.join(
        ["interp", "llm", "report", str(path), *(["--models", *others] if others else [])]
    )
    sections = [
        Section("Summary", [Summary(_facts(runs, acts))]),
        Section("Regret over rounds", [Prose(_SAYS["regret"]), *of_regret[1:]]),
        _final(scores),
        _answers(scores),
        *([_behaviour(acts)] if acts else []),
        *([_notes(notes)] if len(notes.notes) else []),
        _prompts(runs),
    ]
    if len(reading.sentences) > 1:
        aside = reading.table[reading.table["status"] == "set aside"][["path", "part", "why"]]
        table = Table(aside, "Files and parts of files", collapsed=True)
        sections.append(Section("What was not read", [Prose(_SAYS["set_aside"]), table]))
    where = shown_on("llm") | ({} if len(notes.notes) else {"table 3": ("", "no run wrote notes")})
    rows = [
        (number, PRINTED[number][0], at or "nowhere", differs)
        for number, (at, differs) in where.items()
    ]
    frame = pd.DataFrame(rows, columns=["figure", "what it shows", "where", "what differs"])
    covered = Table(frame, "Where each of the paper's figures on language models is")
    sections += [Section(PAPER, [covered]), commands(shell, _SAYS["python"].format(path=str(path)))]
    named, told = [one for one in acts if one.found and one.found.family], []
    for model in dict.fromkeys(one.model for one in named):
        answer, n = Counter(one.answer for one in named if one.model == model).most_common(1)[0]
        told.append(
            f"{model} plays like {answer} ({n} of {sum(one.model == model for one in acts)} groups)"
        )
    unnamed = f"No algorithm is named for {len(acts) - len(named)} of {len(acts)} groups of runs"
    said = " ".join(f"{one}." for one in (*told, unnamed * (len(named) < len(acts))) if one)
    return Report(
        "Language models as online learners",
        _SAYS["lead"],
        sections,
        provenance(
            bootstrap_seed=seed, wording=sorted({run.wording for run in runs}), runs=len(runs)
        ),
        about={
            "kind": "llm",
            "task": TASK.name,
            "run": f"{len(runs)} episodes, {path.name}",
            "sentence": said,
        },
        sentence=said,
        hero=of_regret[:1],
    )


def _facts(runs: Sequence[LLMRun], acts: Sequence[PlayerBehaviour]) -> dict[str, Any]:
    missing, rounds = sum(int(run.missing.sum()) for run in runs), sum(run.rounds for run in runs)
    facts: dict[str, Any] = {
        "Models": ", ".join(dict.fromkeys(run.model for run in runs)),
        "Served as": ", ".join(sorted({name for run in runs for name in run.served}))
        or "not recorded",
        "Prompts": ", ".join(sorted({run.wording for run in runs})),
        "Episodes": f"{sum(run.ended == 'complete' for run in runs)} of {len(runs)} complete",
        "Missing predictions": f"{missing} of {rounds} rounds",
    }
    for model in dict.fromkeys(one.model for one in acts):
        answers = Counter(one.answer for one in acts if one.model == model)
        groups = [f"{name} ({n} of {answers.total()} groups)" for name, n in answers.most_common()]
        facts[f"{model} plays like"] = "; ".join(groups)
    return facts


def _final(scores: LLMScores) -> Section:
    blocks: list[Any] = [Prose(_SAYS["final"])]
    paper = pd.read_csv(
        Path(__file__).with_suffix(".csv")
    )  # the final regret that the paper prints
    for regime in dict.fromkeys(scores.final["regime"]):
        here = scores.final[scores.final["regime"] == regime]
        skipped = here[here["missing"] == "skipped"].set_index(["model", "condition"])["mean"]
        of = here[here["missing"] != "skipped"].rename(
            columns={"model": "predictor", "mean": "regret"}
        )
        frame = joined(
            of[["predictor", "condition", "n", "regret", "low", "high", "std", "accuracy"]]
        )
        of_group = zip(of["predictor"], of["condition"], strict=True)
        frame.insert(5, "missing left out", [skipped.get(group) for group in of_group])
        printed = paper[paper["regime"] == regime].rename(
            columns={"model": "predictor", "mean": "paper"}
        )
        frame = pd.concat(
            [frame, printed[["predictor", "condition", "n", "paper", "std"]]], ignore_index=True
        )
        formats = {
            "regret": ".2f",
            "std": ".2f",
            "missing left out": ".2f",
            "accuracy": ".3f",
            "paper": ".1f",
        }
        rounds = int(scores.curves.loc[scores.curves["regime"] == regime, "round"].max())
        caption = f"{regime}, after {rounds} rounds (the paper's rows: after 100)"
        blocks.append(
            Table(frame, caption, formats={k: v for k, v in formats.items() if k in frame})
        )
    return Section("Regret after the last round", blocks)


def _answers(scores: LLMScores) -> Section:
    whole = [
        "runs",
        "overflowed",
        "calls",
        "malformed_answers",
        "embedded_answers",
        "missing_predictions",
    ]
    columns = ["model", "condition", "regime", *whole[:4], "malformed_share", *whole[4:]]
    columns += ["prompt_tokens_per_run", "completion_tokens_per_run", "seconds_per_call"]
    frame = scores.final[(scores.final["kind"] == "llm") & (scores.final["missing"] == "wrong")][
        columns
    ]
    table = Table(
        frame.astype(dict.fromkeys(whole, int)), "Calls", formats={"malformed_share": ".2%"}
    )
    return Section("Answers and tokens", [Prose(_SAYS["answers"]), table])


def _behaviour(acts: Sequence[PlayerBehaviour]) -> Section:
    table, families = (behaviour_tables(acts)[key] for key in ("behaviour", "families"))
    what = "The algorithm whose choices explain the model's, per model, condition and regime"
    asked = (
        [Table(families, "Every family that was asked", collapsed=True)] if len(families) else []
    )
    return Section("What they act like", [Prose(_SAYS["acts"]), Table(joined(table), what), *asked])


def _notes(notes: NoteTable) -> Section:
    over = notes.over_rounds()
    blocks: list[Any] = [
        Prose(_SAYS["notes"]),
        Table(notes.formats(), "Format of the last note: number of runs"),
    ]
    moments = "Share of the runs with each format after the first round, the sixth (the paper's step 5) and the last"
    blocks.append(
        Table(notes.formats_over_rounds(), moments, formats=dict.fromkeys(FORMATS, ".0%"))
    )
    blocks.append(
        Table(
            notes.final(), "The last note: length, and of the readable ones the share that is right"
        )
    )
    for column, label in (("words", "words in the note"), ("prompt_tokens", "prompt tokens")):
        if over[column].notna().any():
            group = over["model"] + ", " + over["condition"] + ", " + over["regime"]
            drawn = over.assign(mean=over[column], algorithm=group).dropna(subset="mean")
            blocks.append(curves(_SAYS["over_rounds"], drawn, what=label, call=label.capitalize()))
    table = (
        notes.notes
    )  # each group's first instance after rounds 1, 6 and the last; long notes are cut
    first = table["index"] == table.groupby(["model", "condition", "regime"])["index"].transform(
        "min"
    )
    shown = table[first & (table["round"].isin((1, 6)) | (table["round"] == table["last_round"]))]
    cut = shown["note"].where(
        shown["note"].str.len() <= _LONGEST_NOTE, shown["note"].str[:_LONGEST_NOTE] + " ..."
    )
    examples = shown[["model", "condition", "regime", "round", "format"]].assign(note=cut)
    blocks.append(Table(examples, "Notes of the first instance of each group", collapsed=True))
    return Section("Notes", blocks)


def _prompts(runs: Sequence[LLMRun]) -> Section:
    """Each system prompt once, whole, under the names of its conditions."""
    texts: dict[str, dict[str, None]] = {}
    for run in runs:
        texts.setdefault(run.prompt or "(not recorded)", {})[run.condition.name] = None
    lines = [
        (pd.DataFrame({"prompt": text.splitlines()}), ", ".join(names))
        for text, names in texts.items()
    ]
    tables = [Table(frame, caption, collapsed=True) for frame, caption in lines]
    return Section("Prompts", [Prose(_SAYS["prompts"]), *tables])


_LONGEST_NOTE = 400
_SAYS = TEXTS["llm"]

_DRAWN = _SAYS["drawn"]
_KEYS = {name: key for name, (key, _) in _DRAWN.items()} | {
    "wma-handwired": "handwired",
    "wma-learned-additive": "learned",
}


def _regret(scores: LLMScores) -> list[Figure]:
    """Every model, over all its conditions, a panel for each regime; then a figure for each, a column a framing."""
    over = scores.curves[scores.curves["missing"] != "skipped"]
    llm = over[over["kind"] == "llm"]
    shown = pd.concat([llm, over[(over["kind"] == "model") | over["model"].isin(list(_DRAWN))]])
    mean = shown.groupby(["kind", "model", "regime", "round"], sort=False, as_index=False).agg(
        {"mean": "mean"}
    )
    framings = list(dict.fromkeys(llm["condition"].str.split("-").str[0]))
    blocks = [curves(_SAYS["first"], _banded(mean.assign(std=np.nan), mean["model"]), data=mean)]
    for model in dict.fromkeys(llm["model"]):
        parts = []
        for regime in dict.fromkeys(over["regime"]):
            here = over[over["regime"] == regime]
            drawn = here[(here["kind"] == "model") | here["model"].isin(list(_DRAWN))]
            beside = _banded(drawn, drawn["model"])
            for framing in framings:
                of_framing = here[
                    (here["model"] == model) & here["condition"].str.startswith(f"{framing}-")
                ]
                if len(of_framing):
                    remembering = _banded(
                        of_framing, of_framing["condition"].str.removeprefix(f"{framing}-")
                    )
                    parts.append(
                        pd.concat([remembering, beside]).assign(
                            panel=f"{regime}, {framing} framing"
                        )
                    )
        frame = pd.concat(parts, ignore_index=True)
        n, side = int(llm.loc[llm["model"] == model, "n"].max()), len(framings)
        blocks.append(
            curves({**_SAYS["curves"], "columns": side}, frame, data=frame, model=model, n=n)
        )
    return blocks


def _banded(part: pd.DataFrame, of: pd.Series[Any]) -> pd.DataFrame:
    """Columns for the panels: key, name, and one-std bands for all but the baselines."""
    short = {long: called for long, (_, called) in _DRAWN.items()}
    low, high = (
        (part["mean"] + sign * part["std"]).where(part["kind"] != "baseline") for sign in (-1, 1)
    )
    return part.assign(
        algorithm=of.map(_KEYS).fillna(of), name=of.map(short).fillna(of), low=low, high=high
    )
