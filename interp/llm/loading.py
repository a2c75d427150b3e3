"""From files to runs: our traces, and other people's results, with a table of what was read and what was not.

Two plays of one instance (the same advice and labels) by one model under one condition are *duplicates*: pooled, they
would count one instance twice. They are refused unless ``duplicates="first"`` is asked for, which keeps the first
complete play in the order of the paths, and of the others what they predicted (:attr:`LLMRun.again`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from interp.llm.importer import RECORD, import_result
from interp.llm.protocol import FORMAT, instance_of, read_lines, replay, session_from
from interp.llm.runner import tokens_of
from interp.llm.runs import LLMRun
from interp.support.checks import checked
from interp.support.errors import InputError, require, require_known
from interp.support.files import reading


@dataclass(frozen=True)
class Reading:
    """Every run that was read, and what became of every file.

    Attributes:
        runs: sorted by group and index.
        table: one row for each file or part of one: ``path``, ``part``, ``status`` ("read" or "set aside"), ``rounds``
            and ``why`` it was set aside.
    """

    runs: list[LLMRun]
    table: pd.DataFrame = field(repr=False)

    @property
    def sentences(self) -> list[str]:
        """One sentence for what was read, and one for each reason why something was not, with how often."""
        aside = self.table[self.table["status"] == "set aside"]
        return [
            f"{len(self.runs)} episodes read, {len(aside)} files or parts of files set aside"
        ] + [
            f"set aside {len(group)} times: {part}: {why} (first: {group['path'].iloc[0]})"
            for (part, why), group in aside.groupby(["part", "why"], sort=False)
        ]


def holds_runs(path: str | Path) -> bool:
    """Is ``path`` a folder with traces or other people's results below it?"""
    folder = Path(path)
    found = (
        (file for name in ("*.jsonl", RECORD) for file in folder.rglob(name))
        if folder.is_dir()
        else iter(())
    )
    return any(file.name == RECORD or not _other_than_a_trace(file) for file in found)


@checked
def load(path: str | Path, regime: str | None = None, duplicates: str = "refuse") -> list[LLMRun]:
    """Every run below ``path`` (or the one in that file), sorted: the runs of :func:`read`."""
    return read(path, regime, duplicates).runs


@checked
def read(path: str | Path, regime: str | None = None, duplicates: str = "refuse") -> Reading:
    """Every run below ``path`` (or the one in that file), with what was set aside.

    Every other file is set aside, and so is a foreign result that cannot be read; a damaged trace of ours is an error.

    Args:
        regime: regime of foreign results that do not name theirs.
        duplicates: "refuse", or "first" to keep one play of each instance.

    Raises:
        InputError: nothing there, nothing that can be read, or duplicates.
    """
    require_known("way with duplicates", duplicates, ("refuse", "first"))
    path = Path(path)
    require(
        path.exists(),
        f"no such file or folder {str(path)!r}; give the output folder of `interp llm run`",
    )
    runs: list[LLMRun] = []
    rows: list[dict[str, Any]] = []
    for file in sorted(path.rglob("*")) if path.is_dir() else [path]:
        if file.is_dir() or (file.name == "steps.jsonl" and file.with_name(RECORD).exists()):
            continue
        if file.name == RECORD and file.is_file():
            try:
                run, source, set_aside = import_result(file, regime)
            except InputError as error:
                rows.append(_row(file, RECORD, why=str(error)))
                continue
            runs.append(run)
            rows.append(_row(file, source, run.rounds))
            rows.extend(_row(file, part, why=why) for part, why in set_aside)
        elif what := _other_than_a_trace(file):
            rows.append(_row(file, "file", why=f"it is {what}"))
        else:
            run = from_trace(file)
            if run.edited:
                rows.append(
                    _row(
                        file,
                        "trace",
                        why="it begins from an edited note (`interp llm notes --test`)",
                    )
                )
            elif run.rounds or run.ended != "unfinished":
                runs.append(run)
                rows.append(_row(file, "trace", run.rounds))
            else:
                why = "it holds no answer: the server never gave one; play it again with the same command"
                rows.append(_row(file, "trace", why=why))
    refused = [row["why"] for row in rows if row["status"] == "set aside"]
    require(
        bool(runs),
        f"{str(path)!r} holds no trace (*.jsonl of `interp llm run`) and no result.json of another runner that can be "
        f"read{': ' + refused[0] if refused else ''}",
    )
    kept = _without_duplicates(runs, duplicates, rows)
    return Reading(
        sorted(kept, key=lambda run: (*run.group, run.index, str(run.path))), pd.DataFrame(rows)
    )


def _row(path: Path, part: str, rounds: int = 0, why: str = "") -> dict[str, Any]:
    """A row of :attr:`Reading.table`; what has a reason was set aside."""
    return {
        "path": str(path),
        "part": part,
        "status": "set aside" if why else "read",
        "rounds": rounds,
        "why": why,
    }


def _without_duplicates(
    runs: Sequence[LLMRun], duplicates: str, rows: list[dict[str, Any]]
) -> list[LLMRun]:
    plays: dict[tuple[Any, ...], list[LLMRun]] = {}
    for run in runs:
        plays.setdefault((*run.group, run.advice.tobytes(), run.labels.tobytes()), []).append(run)
    for which, group in plays.items():
        plays[which] = []
        for run in group:
            alike = [
                kept
                for kept in plays[which]
                if np.array_equal(run.predictions, kept.predictions, equal_nan=True)
            ]
            first_of = next((kept for kept in alike if run.notes == kept.notes), None)
            if first_of is None:
                plays[which].append(run)
            else:
                _set_aside(rows, {str(run.path)}, f"a copy of {str(first_of.path)!r}")
    twice = [group for group in plays.values() if len(group) > 1]
    if twice and duplicates == "refuse":
        first, second = twice[0][:2]
        raise InputError(
            f"{len(twice)} instances were played more than once under the same condition, such as instance "
            f"{first.index} of {first.regime!r} by {first.model!r} in {str(first.path)!r} and {str(second.path)!r}; "
            "give one folder for each set of plays, or duplicates='first' (--duplicates first) to keep the first play"
        )
    kept = []
    for group in plays.values():
        chosen = next((run for run in group if run.ended == "complete"), group[0])
        kept.append(
            replace(chosen, again=tuple(run.predictions for run in group if run is not chosen))
        )
        why = f"another play of the instance in {str(chosen.path)!r}"
        _set_aside(rows, {str(run.path) for run in group if run is not chosen}, why)
    return kept


def _set_aside(rows: list[dict[str, Any]], paths: set[str], why: str) -> None:
    for row in rows:
        if row["path"] in paths and row["status"] == "read":
            row |= {"status": "set aside", "why": why}


def _other_than_a_trace(path: Path) -> str:
    """What a file is that is no trace of ours, which its first line would say; empty for a trace."""
    if not path.is_file():
        return "no regular file, and is not opened"
    with open(path, "rb") as stream:
        start = stream.read(200)
    if start.startswith(b"\x1f\x8b"):
        return "gzipped; unpack it"
    if start.startswith((b"\xff\xfe", b"\xfe\xff")) or b'\x00"\x00' in start:
        return "in UTF-16; save it as UTF-8"
    is_trace = path.suffix == ".jsonl" and f'"format": "{FORMAT}"'.encode() in start
    return "" if is_trace else "no trace of `interp llm run` and no result.json"


def from_trace(path: Path) -> LLMRun:
    """Read one trace; the recorded replies are replayed through the state machine, which checks them."""
    with reading(path, "move the file away and run again"):
        (header, *records), _ = read_lines(path)
        require(
            header.get("format") == FORMAT,
            f"{str(path)!r} is not a trace of this version ({FORMAT})",
        )
        session = session_from(header)
        end = replay(session, records, path)
        calls = [record for record in records if "reply" in record]
        rounds = len(session.predictions)
        by_round, prompt_tokens, completion_tokens = tokens_of(calls, "round", rounds)
        instance = instance_of(header, records)
        accuracies = instance.get("accuracies")
        return LLMRun(
            model=header["settings"]["model"],
            condition=session.condition,
            regime=instance["regime"],
            index=instance["index"],
            advice=session.advice,
            labels=session.labels,
            accuracies=None if accuracies is None else np.asarray(accuracies, dtype=np.float64),
            predictions=np.array(session.predictions, dtype=np.float64),
            # A round whose prediction was made but whose note was not has no note.
            notes=tuple(session.notes) + (None,) * (rounds - len(session.notes)),
            ended=end or "unfinished",
            calls=len(calls),
            malformed=session.malformed,
            prompt_tokens=by_round,
            total_prompt_tokens=prompt_tokens,
            total_completion_tokens=completion_tokens,
            seconds=float(np.mean([call["seconds"] for call in calls])) if calls else float("nan"),
            wording=header["prompt"]["wording"],
            served=tuple(sorted({str(call.get("model")) for call in calls})),
            path=path,
            prompt=header["prompt"]["text"],
            embedded=session.embedded,
            edited="begins" in header,
        )
