"""Play language models on instances: many episodes at a time, every call on disk before the next one is made.

Each episode is one :class:`~interp.llm.protocol.Session`, driven by a server's replies. A trace that exists is replayed
first, so the same command resumes after kill -9, a full disk or a lost connection, and repeats at most the calls
that were in flight. A refused request (key, rights, model name, parameters) stops the run at once; an episode
without an answer is left for later, and after several of those in a row the run stops too.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pandas as pd

from interp.errors import InputError, require
from interp.llm.client import Client, ContextOverflowError, Reply, UnavailableError
from interp.llm.plan import Job, Prices
from interp.llm.protocol import Request
from interp.llm.schemes import Answer
from interp.llm.settings import Connection
from interp.llm.trace import TraceFile, replay

# This many episodes in a row without any answer, and the server counts as down.
_GIVE_UP_AFTER = 3


@dataclass
class Progress:
    """Counts while a run goes on; given to the ``progress`` function after every call and finished episode."""

    episodes: int
    finished: int = 0
    resumed_calls: int = 0
    calls: int = 0
    malformed: int = 0
    prompt_tokens: int = 0
    cached_tokens: int = 0
    completion_tokens: int = 0
    overflowed: int = 0
    unfinished: list[tuple[str, str]] = field(default_factory=list)


@dataclass(frozen=True)
class RunSummary:
    """What a run did: calls made now, calls found on disk, tokens and cost of the calls made now."""

    episodes: int
    finished: int
    overflowed: int
    calls: int
    resumed_calls: int
    malformed: int
    prompt_tokens: int
    cached_tokens: int
    completion_tokens: int
    cost: float
    seconds: float
    unfinished: tuple[tuple[str, str], ...]

    @property
    def complete(self) -> bool:
        return self.finished == self.episodes

    @property
    def sentence(self) -> str:
        state = "complete" if self.complete else "incomplete; run the same command again to resume"
        cached = f" ({self.cached_tokens / 1e6:.2f} M cached)" if self.cached_tokens else ""
        cost = f", cost {self.cost:.4f}" if self.cost else ""
        tokens = (
            f"{self.prompt_tokens / 1e6:.2f} M prompt{cached} and {self.completion_tokens / 1e6:.2f} M answer tokens"
        )
        return (
            f"{self.finished} of {self.episodes} episodes ({self.overflowed} ended by a full context), "
            f"{self.calls:,} calls now and {self.resumed_calls:,} before, {self.malformed} malformed answers, "
            f"{tokens}{cost}, {self.seconds:.0f} s: {state}"
        )

    def to_frame(self) -> pd.DataFrame:
        return pd.DataFrame([{**vars(self), "unfinished": len(self.unfinished)}])


def run(
    jobs: Sequence[Job],
    folder: str | Path,
    connection: Connection,
    prices: Prices | None = None,
    progress: Callable[[Progress], None] | None = None,
) -> RunSummary:
    """Play all ``jobs`` (of one model) and write their traces below ``folder``.

    Raises:
        InputError: the server refuses the requests, a trace belongs to other settings, or the disk is full. What was
            recorded is safe, and the same call resumes.
    """
    require(bool(jobs), "nothing to run: the plan is empty")
    require(all(job.settings == jobs[0].settings for job in jobs), "one run plays one model with one set of settings")
    return asyncio.run(_run(jobs, Path(folder), connection, prices or Prices(), progress or (lambda _: None)))


async def _run(
    jobs: Sequence[Job],
    folder: Path,
    connection: Connection,
    prices: Prices,
    report: Callable[[Progress], None],
) -> RunSummary:
    start = time.monotonic()
    state = Progress(len(jobs))
    client = Client(jobs[0].settings, connection)
    try:
        await client.check_response_format(jobs[0].condition)
        await _play_all(iter(jobs), len(jobs), folder, client, state, report)
    except UnavailableError as error:
        raise InputError(f"{error}; start the server or check the address, and run again to resume") from error
    finally:
        await client.close()
    return RunSummary(
        episodes=state.episodes,
        finished=state.finished,
        overflowed=state.overflowed,
        calls=state.calls,
        resumed_calls=state.resumed_calls,
        malformed=state.malformed,
        prompt_tokens=state.prompt_tokens,
        cached_tokens=state.cached_tokens,
        completion_tokens=state.completion_tokens,
        cost=prices.cost(state.prompt_tokens, state.cached_tokens, state.completion_tokens),
        seconds=round(time.monotonic() - start, 2),
        unfinished=tuple(state.unfinished),
    )


async def _play_all(
    jobs: Iterator[Job],
    n_jobs: int,
    folder: Path,
    client: Client,
    state: Progress,
    report: Callable[[Progress], None],
) -> None:
    """Workers that share one iterator; the first exception of any cancels the others and is raised."""
    in_a_row = 0

    async def worker() -> None:
        nonlocal in_a_row
        for job in jobs:
            calls = state.calls
            try:
                await _episode(job, folder, client, state, report)
                in_a_row = 0
            except UnavailableError as error:
                state.unfinished.append((str(job.place), str(error)))
                in_a_row = 1 if state.calls > calls else in_a_row + 1
                if in_a_row >= _GIVE_UP_AFTER:
                    raise
            report(state)

    workers = [asyncio.create_task(worker()) for _ in range(min(client.connection.concurrency, n_jobs))]
    try:
        await asyncio.gather(*workers)
    finally:
        for task in workers:
            task.cancel()
        await asyncio.gather(*workers, return_exceptions=True)


async def _episode(job: Job, folder: Path, client: Client, state: Progress, report: Callable[[Progress], None]) -> None:
    header = job.header(client.connection.base_url)
    require(
        not client.holds_key(str(header)),
        f"the settings or the prompt hold the key of {client.connection.key_env}, which must not be recorded; "
        "take it out of them",
    )
    with TraceFile(folder / job.place, header) as trace:
        session = job.session()
        end = replay(session, trace.records, trace.path)
        state.resumed_calls += sum("end" not in record for record in trace.records)
        while end is None and (request := session.next()) is not None:
            seed = request.seed(job.instance.name)
            try:
                reply = await client.ask(request.messages, job.condition, request.turn, seed)
            except ContextOverflowError as error:
                if not session.predictions:
                    raise InputError(
                        f"not even the first request fits into the model's context ({error}); lower max_tokens "
                        f"({job.settings.max_tokens}) or serve the model with a longer context"
                    ) from error
                end = "overflow"
                trace.append({"end": end, "round": request.round, "turn": request.turn, "error": str(error)})
                break
            answer = session.feed(reply.text, reply.finish_reason)
            trace.append(_record(request, seed if client.settings.send_seed else None, reply, answer))
            _count(state, reply, answer)
            report(state)
        if end is None:
            end = "complete"
            trace.append({"end": end})
        state.finished += 1
        state.overflowed += end == "overflow"


def _record(request: Request, seed: int | None, reply: Reply, answer: Answer) -> dict[str, Any]:
    return {
        "round": request.round,
        "turn": request.turn,
        "attempt": request.attempt,
        "messages_sha256": request.sha256,
        "seed": seed,
        "reply": reply.text,
        "finish_reason": reply.finish_reason,
        "problem": answer.problem,
        "strict": answer.strict,
        "model": reply.model,
        "system_fingerprint": reply.system_fingerprint,
        "usage": reply.usage,
        "reasoning_chars": reply.reasoning_chars,
        "seconds": reply.seconds,
        "at": datetime.now(UTC).isoformat(timespec="milliseconds"),
    }


def _count(state: Progress, reply: Reply, answer: Answer) -> None:
    prompt, cached, completion = usage_tokens(reply.usage)
    state.calls += 1
    state.malformed += not answer.ok
    state.prompt_tokens += prompt
    state.cached_tokens += cached
    state.completion_tokens += completion


def usage_tokens(usage: dict[str, Any] | None) -> tuple[int, int, int]:
    """``(prompt, cached among them, completion)`` tokens from a server's usage record; zero where it says nothing.

    OpenAI and vLLM report cached tokens in ``prompt_tokens_details``, DeepSeek as ``prompt_cache_hit_tokens``.
    """
    if not usage:
        return 0, 0, 0
    details = usage.get("prompt_tokens_details") or {}
    cached = details.get("cached_tokens") or usage.get("prompt_cache_hit_tokens") or usage.get("cached_tokens") or 0
    return int(usage.get("prompt_tokens") or 0), int(cached), int(usage.get("completion_tokens") or 0)
