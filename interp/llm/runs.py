"""A played episode as data, from our traces or from anybody's results: what every analysis takes.

``load(path)`` finds traces (``*.jsonl`` made by :mod:`interp.llm.runner`) and foreign results (``result.json``, see
:mod:`interp.llm.importer`) below a folder, and gives one :class:`LLMRun` for each.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from interp.errors import InputError, require
from interp.llm.protocol import Session
from interp.llm.runner import usage_tokens
from interp.llm.schemes import Condition
from interp.llm.trace import FORMAT, read_lines, replay, session_from
from interp.tasks.experts import REGIMES, ExpertEpisodes


@dataclass(frozen=True, eq=False)
class LLMRun:
    """One episode that a language model played.

    Attributes:
        model: its name as asked for; ``served`` are the names the server gave.
        condition: framing and protocol.
        regime, index: which instance.
        advice: Int[round, expert], labels: Int[round]: the whole instance.
        accuracies: Float[expert]; None where not known.
        predictions: Float[round played]: 0, 1, or NaN where missing; fewer than the instance's rounds when the
            episode ended early.
        notes: the note after each round played; None where there are none.
        ended: "complete", "overflow" (context full) or "unfinished".
        calls, malformed: calls made, and how many answers were malformed.
        prompt_tokens: Float[round played], prompt tokens of the last call of each round (the context it filled);
            NaN where not known.
        total_prompt_tokens, total_completion_tokens: over all calls.
        seconds: seconds per call, mean; NaN where not known.
        wording: which prompts.
        path: the file it was read from.
    """

    model: str
    condition: Condition
    regime: str
    index: int
    advice: NDArray[np.int64]
    labels: NDArray[np.int64]
    accuracies: NDArray[np.float64] | None
    predictions: NDArray[np.float64]
    notes: tuple[str | None, ...]
    ended: str
    calls: int
    malformed: int
    prompt_tokens: NDArray[np.float64]
    total_prompt_tokens: int
    total_completion_tokens: int
    seconds: float
    wording: str
    served: tuple[str, ...]
    path: Path

    def __post_init__(self) -> None:
        played = len(self.predictions)
        require(
            len(self.labels) == len(self.advice) >= played and len(self.notes) == len(self.prompt_tokens) == played,
            f"{str(self.path)!r}: {played} predictions, {len(self.notes)} notes and {len(self.labels)} labels do not "
            "belong together",
        )

    @property
    def rounds(self) -> int:
        return len(self.predictions)

    @property
    def instance_key(self) -> tuple[str, int]:
        return self.regime, self.index

    @property
    def group(self) -> tuple[str, str, str]:
        return self.model, self.condition.name, self.regime

    @property
    def missing(self) -> NDArray[np.bool_]:
        return np.isnan(self.predictions)


def load(path: str | Path, regime: str | None = None) -> list[LLMRun]:
    """Every run below ``path`` (or the one in that file), sorted.

    Args:
        regime: regime of foreign results that do not name theirs.

    Raises:
        InputError: nothing there, or a file that cannot be read.
    """
    from interp.llm.importer import import_result

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


def episodes_of(runs: Iterable[LLMRun], regime: str) -> ExpertEpisodes:
    """The distinct instances of ``regime`` that ``runs`` played, by index, as episodes for any of our models.

    Raises:
        InputError: none there, instances of different sizes, or two instances with one index.
    """
    by_index: dict[int, LLMRun] = {}
    for run in runs:
        if run.regime != regime:
            continue
        known = by_index.setdefault(run.index, run)
        require(
            np.array_equal(known.advice, run.advice) and np.array_equal(known.labels, run.labels),
            f"{str(known.path)!r} and {str(run.path)!r} are both instance {run.index} of {regime!r} but differ; "
            "score them apart",
        )
    require(bool(by_index), f"no run of regime {regime!r}")
    chosen = [by_index[index] for index in sorted(by_index)]
    require(
        len({run.advice.shape for run in chosen}) == 1,
        f"the instances of {regime!r} differ in rounds or experts; score them apart",
    )
    known_accuracies = [run.accuracies for run in chosen]
    n_experts = chosen[0].advice.shape[1]
    return ExpertEpisodes(
        advice=np.stack([run.advice for run in chosen]),
        labels=np.stack([run.labels for run in chosen]),
        accuracies=np.stack([np.full(n_experts, 0.5) if a is None else a for a in known_accuracies]),
        regime=regime,
        params=REGIMES[regime].params if regime in REGIMES else {},
    )


def knows_accuracies(runs: Iterable[LLMRun], regime: str) -> bool:
    return all(run.accuracies is not None for run in runs if run.regime == regime)
