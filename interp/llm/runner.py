"""Play language models on instances: many episodes at a time, every call on disk before the next one is made.

A trace that exists is replayed first, so the same command resumes after kill -9, a full disk or a lost connection, and
repeats at most the calls that were in flight. What stops a run, and what does not: docs/method/traces.md.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from interp.llm import backend as players
from interp.llm.client import Client
from interp.llm.plan import PAPER_REGIMES, Job, Prices, instances, plan
from interp.llm.protocol import (
    LockedError,
    Request,
    Session,
    TraceFile,
    read_lines,
    replay,
    session_from,
)
from interp.llm.schemes import Condition, Message, ParsedReply, built_in_prompts
from interp.support.checks import checked
from interp.support.errors import InputError, require

# This many episodes in a row without an answer, or refused where nothing was ever answered, stop the run.
_GIVE_UP_AFTER = 3


class _OverBudgetError(Exception):
    """The next call might pass the budget."""


@dataclass(frozen=True)
class RunSummary:
    """What a run did (so far, where the ``progress`` function is given it): calls made now, calls found on disk, tokens
    of the calls made now; cost and seconds once it has ended."""

    episodes: int
    finished: int = 0
    overflowed: int = 0
    refused: int = 0
    calls: int = 0
    resumed_calls: int = 0
    malformed: int = 0
    prompt_tokens: int = 0
    cached_tokens: int = 0
    completion_tokens: int = 0
    cost: float = 0.0
    seconds: float = 0.0
    unfinished: tuple[tuple[str, str], ...] = ()
    over_budget: bool = False

    @property
    def complete(self) -> bool:
        """Whether every episode is finished."""
        return self.finished == self.episodes

    @property
    def sentence(self) -> str:
        """The summary in one sentence: state, calls, tokens, cost and what was set aside."""
        state = "complete" if self.complete else "incomplete; run the same command again to resume"
        if self.over_budget:
            state = "stopped before its budget is passed; run the same command with a larger one to resume"
        cached = f" ({self.cached_tokens / 1e6:.2f} M cached)" if self.cached_tokens else ""
        cost = f", cost {self.cost:.4f}" if self.cost else ""
        said = f"{self.completion_tokens / 1e6:.2f} M answer tokens"
        aside = f", {self.refused} set aside after a refusal" if self.refused else ""
        return (
            f"{self.finished} of {self.episodes} episodes ({self.overflowed} ended by a full context{aside}), "
            f"{self.calls:,} calls now and {self.resumed_calls:,} before, {self.malformed} malformed answers, "
            f"{self.prompt_tokens / 1e6:.2f} M prompt{cached} and {said}{cost}, {self.seconds:.0f} s: {state}"
        )


@checked
def run(
    jobs: Sequence[Job],
    folder: str | Path,
    where: players.Connection | players.Backend,
    prices: Prices | None = None,
    progress: Callable[[RunSummary], None] | None = None,
    malformed_limit: int = 20,
    budget: float | None = None,
) -> RunSummary:
    """Play all ``jobs`` (of one model) and write their traces below ``folder``.

    Args:
        where: a server, or anything else that answers.
        progress: called after every call and finished episode.
        malformed_limit: stop when the first so many answers are all malformed; 0 never stops.
        budget: stop before all calls of the run, those on disk among them, cost more: in the currency of ``prices``, or
            in tokens where there are none. Of calls on disk counts what the server said that they took.

    Raises:
        InputError: what docs/method/traces.md says; what was recorded is safe, and the same call resumes.
    """
    require(bool(jobs), "nothing to run: the plan is empty")
    require(
        all(job.settings == jobs[0].settings for job in jobs),
        "one run plays one model with one set of settings",
    )
    require(
        malformed_limit >= 0, f"malformed_limit must be 0 (never) or more, got {malformed_limit}"
    )
    allowed = None if budget is None else _Budget(budget, prices or Prices())
    require(
        allowed is None or jobs[0].settings.longest_answer is not None,
        "a budget needs a longest answer: give max_tokens (--max-tokens), or max_completion_tokens in the extra body",
    )
    places = {Path(folder) / job.place for job in jobs} if allowed else ()
    for record in (record for path in places if path.is_file() for record in read_lines(path)[0]):
        if allowed and "reply" in record:
            allowed.settle(0.0, _usage_tokens(record.get("usage")))
    backend = Client(jobs[0].settings, where) if isinstance(where, players.Connection) else where
    one = _Playing(
        Path(folder),
        backend,
        RunSummary(len(jobs)),
        progress or (lambda _: None),
        malformed_limit,
        allowed,
    )
    playing = one.play(jobs, prices or Prices())
    try:
        within_a_loop = asyncio.get_running_loop().is_running()
    except RuntimeError:
        within_a_loop = False
    if not within_a_loop:
        return asyncio.run(playing)
    with ThreadPoolExecutor(
        1
    ) as beside:  # a notebook's cell runs within a loop, and one loop cannot hold another
        return beside.submit(asyncio.run, playing).result()


@dataclass
class _Budget:
    """What a run may cost in all, and has cost: in the currency of ``prices``, or in tokens where there are none.

    How a call in flight counts: docs/method/traces.md.
    """

    most: float
    prices: Prices = field(default_factory=Prices)
    spent: float = 0.0
    _in_flight: float = 0.0

    def __post_init__(self) -> None:
        require(self.most > 0, f"a budget must be above 0, got {self.most}")
        if not any(vars(self.prices).values()):
            self.prices = Prices(1e6, 1e6, 1e6)

    def reserve(self, messages: Sequence[Message], longest: int) -> float | None:
        """The most that a call can cost, set aside for it; None where less than that is left."""
        bound = self.prices.cost(
            sum(len(message["content"].encode()) + 16 for message in messages), 0, longest
        )
        if self.spent + self._in_flight + bound > self.most:
            return None
        self._in_flight += bound
        return bound

    def settle(self, bound: float, tokens: tuple[int, int, int] | None) -> None:
        """Count a call that was answered; ``tokens`` (prompt, cached, completion) are (0, 0, 0) where the server says
        nothing, and None where there was no answer."""
        self._in_flight -= bound
        self.spent += 0.0 if tokens is None else self.prices.cost(*tokens) if any(tokens) else bound


@dataclass
class _Playing:
    """One run in progress: where it writes, who answers, and what was counted."""

    folder: Path
    backend: players.Backend
    state: RunSummary
    report: Callable[[RunSummary], None]
    malformed_limit: int
    budget: _Budget | None = None
    in_a_row: int = 0

    def count(self, **more: Any) -> None:
        """Add to the counts of the run."""
        self.state = replace(
            self.state, **{name: getattr(self.state, name) + n for name, n in more.items()}
        )

    async def play(self, jobs: Sequence[Job], prices: Prices) -> RunSummary:
        """Play by workers that share the jobs; the first exception of any cancels the others and is raised."""
        start, left, workers = time.monotonic(), iter(jobs), list[asyncio.Task[None]]()

        async def worker() -> None:
            for job in left:
                await self._try(job)
                self.report(self.state)
                if self.state.over_budget:
                    return

        try:
            await self.backend.start(jobs[0].condition)
            workers += [
                asyncio.create_task(worker())
                for _ in range(min(self.backend.concurrency, len(jobs)))
            ]
            await asyncio.gather(*workers)
        except players.UnavailableError as error:
            raise InputError(
                f"{error}; start the server or check the address, and run again to resume"
            ) from error
        except (players.RefusedError, players.ContextOverflowError) as error:
            raise InputError(
                f"{error}; check the model name, the settings and what the key may do, and run again to resume"
            ) from error
        finally:
            for task in workers:
                task.cancel()
            await asyncio.gather(*workers, return_exceptions=True)
            await self.backend.close()
        cost = prices.cost(
            self.state.prompt_tokens, self.state.cached_tokens, self.state.completion_tokens
        )
        return replace(self.state, cost=cost, seconds=round(time.monotonic() - start, 2))

    async def _try(self, job: Job) -> None:
        """Play one episode; what concerns it alone is noted, and the run goes on."""
        calls = self.state.calls
        try:
            await self._episode(job)
            self.in_a_row = 0
        except _OverBudgetError:
            self.state = replace(self.state, over_budget=True)
        except (LockedError, players.UnavailableError, players.RefusedError) as error:
            self.count(
                unfinished=((str(job.place), str(error)),),
                refused=isinstance(error, players.RefusedError),
            )
            if isinstance(error, LockedError):
                return
            self.in_a_row = 1 if self.state.calls > calls else self.in_a_row + 1
            nothing_yet = self.state.calls + self.state.resumed_calls == 0
            if (
                nothing_yet or isinstance(error, players.UnavailableError)
            ) and self.in_a_row >= _GIVE_UP_AFTER:
                raise

    async def _episode(self, job: Job) -> None:
        header = job.header(self.backend.address)
        require(
            not self.backend.holds_key(str(header)),
            "the settings or the prompt hold the key of the server, which must not be recorded; take it out of them",
        )
        with closing(TraceFile(self.folder / job.place, header)) as trace:
            session = session_from(trace.header)
            end = replay(session, trace.records, trace.path)
            self.count(resumed_calls=sum("reply" in record for record in trace.records))
            while end not in ("complete", "overflow") and (request := session.next()) is not None:
                end = await self._call(job, session, request, trace)
            if end is None:
                end = "complete"
                trace.append({"end": end})
            self.count(finished=1, overflowed=end == "overflow")

    async def _call(
        self, job: Job, session: Session, request: Request, trace: TraceFile
    ) -> str | None:
        """Make the call that ``request`` is and record it; "overflow" where it no longer fits into the context."""
        seed = request.seed(job.name)
        at = {"round": request.round, "turn": request.turn}
        bound = (
            self.budget.reserve(request.messages, job.settings.longest_answer or 0)
            if self.budget
            else 0.0
        )
        if bound is None:
            raise _OverBudgetError
        tokens = None
        try:
            reply = await self.backend.ask(request.messages, job.condition, request.turn, seed)
            tokens = _usage_tokens(reply.usage)
        except players.ContextOverflowError as error:
            if not session.predictions:
                raise InputError(
                    f"not even the first request fits into the model's context ({error}); lower max_tokens "
                    f"({job.settings.max_tokens}) or serve the model with a longer context"
                ) from error
            trace.append({"end": "overflow", **at, "error": str(error)})
            return "overflow"
        except players.RefusedError as error:
            told = {"refused": str(error), **at}
            if trace.records[-1:] != [told]:
                trace.append(told)
            raise
        finally:
            if self.budget:
                self.budget.settle(bound, tokens)
        answer = session.feed(reply.text, reply.finish_reason)
        sent = seed if job.settings.send_seed else None
        trace.append(trace_record(request, sent, reply, answer) | {"address": self.backend.address})
        prompt, cached, completion = tokens
        self.count(calls=1, malformed=bool(answer.problem))
        self.count(prompt_tokens=prompt, cached_tokens=cached, completion_tokens=completion)
        self.report(self.state)
        if (
            self.malformed_limit
            and self.state.calls == self.state.malformed == self.malformed_limit
        ):
            raise InputError(
                f"the first {self.malformed_limit} answers are all malformed, the last one because {answer.problem}: "
                f"{reply.text[:200]!r}. Try a response format (--response-format), turn thinking off (--thinking-off), "
                "allow longer answers (--max-tokens) or choose another model; --malformed-limit 0 goes on regardless"
            )
        return None


def trace_record(
    request: Request, seed: int | None, reply: players.Reply, answer: ParsedReply
) -> dict[str, Any]:
    """A line of the trace; what the server said about its reply is kept as it came."""
    return {
        **{name: getattr(request, name) for name in ("round", "turn", "attempt")},
        "messages_sha256": request.sha256,
        "seed": seed,
        "reply": reply.text,
        "finish_reason": reply.finish_reason,
        "problem": answer.problem,
        "strict": answer.strict,
        **({"embedded": True} if answer.embedded else {}),
        **{
            name: getattr(reply, name)
            for name in ("model", "system_fingerprint", "usage", "more", "seconds")
        },
        "at": datetime.now(UTC).isoformat(timespec="milliseconds"),
    }


def tokens_of(
    calls: Sequence[Mapping[str, Any]], key: str, n_rounds: int
) -> tuple[NDArray[np.float64], int, int]:
    """Prompt tokens of the last call of each round (Float[round], the round under ``key``; NaN where not known), and
    the prompt and completion tokens of all recorded ``calls``."""
    usage = [_usage_tokens(call.get("usage")) for call in calls]
    by_round = np.full(n_rounds, np.nan)
    for call, (prompt, _, _) in zip(calls, usage, strict=True):
        if call[key] < n_rounds and prompt:
            by_round[call[key]] = prompt
    return (
        by_round,
        sum(prompt for prompt, _, _ in usage),
        sum(completion for _, _, completion in usage),
    )


def _usage_tokens(usage: dict[str, Any] | None) -> tuple[int, int, int]:
    """``(prompt, cached among them, completion)`` tokens from a server's usage record; zero where it says nothing.

    OpenAI and vLLM report cached tokens in ``prompt_tokens_details``, DeepSeek as ``prompt_cache_hit_tokens``.
    """
    usage = usage if isinstance(usage, dict) else {}
    details = usage.get("prompt_tokens_details")
    told = details.get("cached_tokens") if isinstance(details, dict) else None
    cached = (
        counted(told)
        or counted(usage.get("prompt_cache_hit_tokens"))
        or counted(usage.get("cached_tokens"))
    )
    return counted(usage.get("prompt_tokens")), cached, counted(usage.get("completion_tokens"))


def counted(value: Any) -> int:
    """A count that somebody else wrote; 0 for what is no count.

    >>> [counted(value) for value in (12, "12", 3.0, None, float("nan"), 10**400, -1, [1])]
    [12, 12, 3, 0, 0, 0, 0, 0]
    """
    try:
        count = int(value)
    except (TypeError, ValueError, OverflowError):
        return 0
    return count if 0 <= count <= 10**15 else 0


@checked
def play_demo(
    folder: str | Path, seed: int = 0, n_instances: int = 24, n_rounds: int = 30
) -> dict[str, RunSummary]:
    """Play every agent of :data:`~interp.llm.backend.PLAYERS` in the paper's three regimes, with a note and without,
    and write the traces below ``folder``."""
    conditions = [Condition.parse(name) for name in ("online-no-note", "weather-note-only")]
    episodes, prompts = instances(PAPER_REGIMES, n_instances, n_rounds, 4, seed), built_in_prompts()
    jobs = {
        name: plan(players.Settings(name), prompts, episodes, conditions)
        for name in players.PLAYERS
    }
    return {
        name: run(of, folder, players.AgentBackend(name, players.AGENTS[name]))
        for name, of in jobs.items()
    }
