"""Load played episodes (*runs*) from files: traces of this package, and results of other programs.

An *instance* is an episode to play: its advice and labels. Several runs of one instance by one
model in one condition are *duplicates*; pooled, they would count the instance twice. Duplicates are
refused unless ``duplicates="first"``. This selects the first complete run in the order of the
paths, and adds the predictions of the other runs to it (:attr:`LLMRun.again`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from interp.llm.importer import RECORD, import_result
from interp.llm.protocol import FORMAT, read_lines, replay, session_from
from interp.llm.runner import count_tokens
from interp.llm.runs import LLMRun
from interp.support.checks import checked, checked_result
from interp.support.errors import InputError, require, require_known
from interp.support.files import convert_read_errors


@dataclass(frozen=True)
@checked_result
class Reading:
    """The runs that were loaded from a file or folder, and what was done with every file.

    Attributes:
        runs: the runs, sorted by model, condition, regime and index.
        table: one row per file, or part of a file. The columns are path, part, status ("read", or
            "set aside" if it is not used), rounds (their number), and why (the reason why it was
            set aside).
    """

    runs: list[LLMRun]
    table: pd.DataFrame = field(repr=False)

    @property
    def sentences(self) -> list[str]:
        """A list of sentences: one about what was read, and one for each reason why files were set
        aside, with the number of these files.
        """
        aside = self.table[self.table["status"] == "set aside"]
        sentences = [
            f"{len(self.runs)} episodes read, {len(aside)} files or parts of files set aside"
        ]
        for (part, why), group in aside.groupby(["part", "why"], sort=False):
            first = group["path"].iloc[0]
            sentences.append(f"set aside {len(group)} times: {part}: {why} (first: {first})")
        return sentences


@checked
def load(path: str | Path, regime: str | None = None, duplicates: str = "refuse") -> list[LLMRun]:
    """Return the runs in a file or folder as a list, sorted by model, condition, regime and index;
    see :func:`read`.

    Args:
        path: a folder, or a file.
        regime: regime (distribution of episodes) of results that do not name one.
        duplicates: "refuse" raises an error if an instance (episode to play) was played several
            times by one model in one condition; "first" selects one of these runs.
    """
    return read(path, regime, duplicates).runs


@checked
def read(path: str | Path, regime: str | None = None, duplicates: str = "refuse") -> Reading:
    """Read every run in a folder and its subfolders, or the run in a file.

    Files that hold no run are set aside (listed, but not used), and so are results of other
    programs that cannot be read. A damaged trace of this package is an error.

    Args:
        path: a folder, or a file.
        regime: regime (distribution of episodes) of results that do not name one.
        duplicates: "refuse" raises an error if an instance (episode to play) was played several
            times by one model in one condition. "first" selects the first complete run, and adds
            the predictions of the others to it (``again``).

    Returns:
        The runs, and a table that says for every file whether it was used.

    Raises:
        InputError: if the path does not exist, no file can be read, or there are duplicates.
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
        if not file.is_dir():
            runs += _read_file(file, regime, rows)
    reasons = [f": {row['why']}" for row in rows if row["status"] == "set aside"]
    require(
        runs,
        f"{str(path)!r} holds no trace (*.jsonl of `interp llm run`) and no result.json of another runner that can be "
        f"read{''.join(reasons[:1])}",
    )
    unique_runs = _remove_duplicates(runs, duplicates, rows)
    unique_runs.sort(key=lambda run: (*run.group, run.index, str(run.path)))
    return Reading(unique_runs, pd.DataFrame(rows))


def _read_file(file: Path, regime: str | None, rows: list[dict[str, Any]]) -> list[LLMRun]:
    """Read the run in a file, if there is one, and add a row about the file to the table.

    Args:
        file: the file.
        regime: regime of a result that does not name one.
        rows: rows of the table so far; a row is appended.

    Returns:
        A list with the run, or an empty list.
    """
    if file.name == RECORD and file.is_file():  # "result.json", as another program writes it
        try:
            run = import_result(file, regime)
        except InputError as error:
            rows.append(_make_row(file, RECORD, why=str(error)))
            return []
        rows.append(_make_row(file, RECORD, run.rounds))
        return [run]
    other_kind = _describe_other(file)
    if other_kind:
        rows.append(_make_row(file, "file", why=f"it is {other_kind}"))
        return []
    run = from_trace(file)
    why = ""
    if not run.rounds and run.ended == "unfinished":
        why = "it holds no answer: the server never gave one; play it again with the same command"
    rows.append(_make_row(file, "trace", run.rounds, why=why))
    return [] if why else [run]


def _make_row(path: Path, part: str, rounds: int = 0, why: str = "") -> dict[str, Any]:
    """Return a row of the table of files (:attr:`Reading.table`), as a dictionary.

    Args:
        path: the file.
        part: name of the part of the file, such as "trace".
        rounds: number of rounds that were read.
        why: reason why the file was set aside; "" if it was read.
    """
    status = "set aside" if why else "read"
    return {"path": str(path), "part": part, "status": status, "rounds": rounds, "why": why}


def _remove_duplicates(
    runs: Sequence[LLMRun], duplicates: str, rows: list[dict[str, Any]]
) -> list[LLMRun]:
    """Return one run for each instance (episode to play), model and condition.

    Of files with equal bytes, only the first counts. If an instance was still played several times,
    ``duplicates`` says what happens.

    Args:
        runs: all runs.
        duplicates: "refuse" raises InputError. "first" returns the first complete run, or the first
            one if none is complete, with the predictions of the others in its field ``again``.
        rows: the table of files: one dictionary per file, with "status" and "why". For each run
            that is not returned, the status is set to "set aside" in place, and the reason to
            "why".
    """
    by_instance: dict[tuple[Any, ...], list[LLMRun]] = {}
    for run in runs:
        # Runs of one model and condition with equal advice and labels played the same instance.
        instance = (*run.group, run.advice.tobytes(), run.labels.tobytes())
        plays = by_instance.setdefault(instance, [])
        # Files with equal bytes are copies. Two plays with the same choices have different files,
        # since these contain the times of the calls.
        originals = [play for play in plays if play.path.read_bytes() == run.path.read_bytes()]
        if originals:
            _set_aside(rows, run, why=f"a copy of {str(originals[0].path)!r}")
        else:
            plays.append(run)
    played_twice = [plays for plays in by_instance.values() if len(plays) > 1]
    if duplicates == "refuse" and played_twice:
        first, second, *_ = played_twice[0]
        example = f"instance {first.index} of {first.regime!r} by {first.model!r}"
        raise InputError(
            f"{len(played_twice)} instances were played more than once under the same condition, such as {example} in "
            f"{str(first.path)!r} and {str(second.path)!r}; "
            "give one folder for each set of plays, or duplicates='first' (--duplicates first) to keep the first play"
        )
    return [_choose_play(plays, rows) for plays in by_instance.values()]


def _choose_play(group: Sequence[LLMRun], rows: list[dict[str, Any]]) -> LLMRun:
    """Choose one of several runs that played the same episode: the first complete one, or the first
    if none is complete.

    Args:
        group: the runs.
        rows: rows of the table of files, which are changed in place: those of the other runs get
            the status "set aside".

    Returns:
        A copy of the chosen run; its field ``again`` has the predictions of the other runs.
    """
    complete = [run for run in group if run.ended == "complete"]
    chosen = complete[0] if complete else group[0]
    again = []
    for run in group:
        if run is not chosen:
            again.append(run.predictions)
            _set_aside(rows, run, f"another play of the instance in {str(chosen.path)!r}")
    return replace(chosen, again=tuple(again))


def _set_aside(rows: list[dict[str, Any]], run: LLMRun, why: str) -> None:
    for row in rows:
        if row["path"] == str(run.path) and row["status"] == "read":
            row |= {"status": "set aside", "why": why}


def _describe_other(path: Path) -> str:
    """Return what a file is if it is no trace of this package, as a phrase such as "gzipped; unpack
    it"; "" for a trace. Only its first bytes are read.

    Args:
        path: the file.
    """
    if not path.is_file():
        return "no regular file, and is not opened"
    with open(path, "rb") as stream:
        start = stream.read(200)
    if start.startswith(b"\x1f\x8b"):
        return "gzipped; unpack it"
    # UTF-16 has a mark at its beginning or, without one, a zero byte beside every plain character.
    if start.startswith((b"\xff\xfe", b"\xfe\xff")) or b'\x00"\x00' in start:
        return "in UTF-16; save it as UTF-8"
    # The first line of a trace names its format.
    if path.suffix == ".jsonl" and f'"format": "{FORMAT}"'.encode() in start:
        return ""
    return "no trace of `interp llm run` and no result.json"


def from_trace(path: Path) -> LLMRun:
    """Read a trace (the record of one episode) as a run. The recorded replies are passed once more
    to the program that led the episode, which computes predictions and notes again.

    Args:
        path: the file.

    Raises:
        InputError: if the file is no trace, or a record does not follow from the records before it.
    """
    with convert_read_errors(path, "move the file away and run again"):
        (header, *records), _ = read_lines(path)  # the first line has settings and instance
        require(
            header.get("format") == FORMAT,
            f"{str(path)!r} is not a trace of this version ({FORMAT})",
        )
        session = session_from(header)
        end = replay(session, records, path)  # also fills the session's predictions and notes
        instance = header["instance"]
        accuracies = instance.get("accuracies")
        if accuracies is not None:
            accuracies = np.asarray(accuracies, dtype=np.float64)
        calls = [record for record in records if "reply" in record]
        seconds = [call["seconds"] for call in calls]
        mean_seconds = float(np.mean(seconds)) if seconds else float("nan")
        served = {str(call.get("model")) for call in calls}
        predictions = np.array(session.predictions, dtype=np.float64)
        # A round whose prediction was made but whose note was not has no note.
        notes = (*session.notes, None)[: len(predictions)]
        model, prompt = header["settings"]["model"], header["prompt"]
        return LLMRun(
            model=model,
            condition=session.condition,
            regime=instance["regime"],
            index=instance["index"],
            advice=session.advice,
            labels=session.labels,
            accuracies=accuracies,
            predictions=predictions,
            notes=notes,
            ended=end or "unfinished",
            calls=len(calls),
            malformed=session.malformed,
            **_sum_tokens(calls, len(predictions)),
            seconds=mean_seconds,
            wording=prompt["wording"],
            served=tuple(sorted(served)),
            path=path,
            prompt=prompt["text"],
            embedded=session.embedded,
        )


def _sum_tokens(calls: Sequence[Mapping[str, Any]], n_rounds: int) -> dict[str, Any]:
    """Return the three fields of :class:`LLMRun` about tokens (prompt_tokens, total_prompt_tokens
    and total_completion_tokens): name of a field -> value.

    Args:
        calls: records of the calls, with the server's ``usage``.
        n_rounds: number of rounds that were played.
    """
    prompt_by_round = np.full(n_rounds, np.nan)
    total_prompt = total_completion = 0
    for call in calls:
        prompt, _, completion = count_tokens(call.get("usage"))
        total_prompt += prompt
        total_completion += completion
        if prompt and call["round"] < n_rounds:
            prompt_by_round[call["round"]] = prompt  # the last call of the round counts
    return {
        "prompt_tokens": prompt_by_round,
        "total_prompt_tokens": total_prompt,
        "total_completion_tokens": total_completion,
    }
