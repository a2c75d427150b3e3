"""From files to runs: our traces, and other people's results.

``load(path)`` finds traces (``*.jsonl`` made by :mod:`interp.llm.runner`) and foreign results (``result.json``, see
:mod:`interp.llm.importer`) below a folder, and gives one :class:`~interp.llm.runs.LLMRun` for each.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from interp.errors import InputError, require
from interp.llm.importer import import_result
from interp.llm.protocol import Session
from interp.llm.runner import usage_tokens
from interp.llm.runs import LLMRun
from interp.llm.trace import FORMAT, read_lines, replay, session_from


def load(path: str | Path, regime: str | None = None) -> list[LLMRun]:
    """Every run below ``path`` (or the one in that file), sorted.

    Args:
        regime: regime of foreign results that do not name theirs.

    Raises:
        InputError: nothing there, or a file that cannot be read.
    """
    path = Path(path)
    require(path.exists(), f"no such file or folder {str(path)!r}; give the output folder of `interp llm run`")
    files = [path] if path.is_file() else sorted(path.rglob("*.json*"))
    runs = []
    for file in files:
        if file.name == "result.json":
            runs.append(import_result(file, regime))
        elif file.suffix == ".jsonl" and file.name != "steps.jsonl" and is_trace(file):
            runs.append(from_trace(file))
    require(
        bool(runs),
        f"{str(path)!r} holds no trace (*.jsonl of `interp llm run`) and no result.json of another runner",
    )
    return sorted(runs, key=lambda run: (*run.group, run.index, str(run.path)))


def is_trace(path: Path) -> bool:
    """Does the first line say that this is a trace of ours?"""
    with open(path, "rb") as stream:
        return f'"format": "{FORMAT}"'.encode() in stream.read(200)


def from_trace(path: Path) -> LLMRun:
    """Read one trace; the recorded replies are replayed through the state machine, which checks them.

    Raises:
        InputError: damaged, or edited.
    """
    (header, *records), _ = read_lines(path)
    if header.get("format") != FORMAT:
        raise InputError(f"{str(path)!r} is not a trace of this version ({FORMAT})")
    session = session_from(header)
    end = replay(session, records, path)
    calls = [record for record in records if "end" not in record]
    usage = [usage_tokens(call.get("usage")) for call in calls]
    instance = header["instance"]
    return LLMRun(
        model=header["settings"]["model"],
        condition=session.condition,
        regime=instance["regime"],
        index=instance["index"],
        advice=session.advice,
        labels=session.labels,
        accuracies=_accuracies(instance.get("accuracies")),
        predictions=np.array(session.predictions, dtype=np.float64),
        notes=_notes(session),
        ended=end or "unfinished",
        calls=len(calls),
        malformed=session.malformed,
        prompt_tokens=_last_of_each_round(calls, [prompt for prompt, _, _ in usage], len(session.predictions)),
        total_prompt_tokens=sum(prompt for prompt, _, _ in usage),
        total_completion_tokens=sum(completion for _, _, completion in usage),
        seconds=float(np.mean([call["seconds"] for call in calls])) if calls else float("nan"),
        wording=header["prompt"]["wording"],
        served=tuple(sorted({str(call.get("model")) for call in calls})),
        path=path,
    )


def _notes(session: Session) -> tuple[str | None, ...]:
    """A round whose prediction was made but whose note was not has no note."""
    return tuple(session.notes) + (None,) * (len(session.predictions) - len(session.notes))


def _last_of_each_round(calls: Sequence[dict[str, Any]], tokens: Sequence[int], rounds: int) -> NDArray[np.float64]:
    found = np.full(rounds, np.nan)
    for call, count in zip(calls, tokens, strict=True):
        if call["round"] < rounds and count:
            found[call["round"]] = count
    return found


def _accuracies(values: Any) -> NDArray[np.float64] | None:
    return None if values is None else np.asarray(values, dtype=np.float64)
