"""Let language models play episodes, several at a time. Every call is written to disk before the
next one.

An existing trace is replayed first. So the same command resumes after kill -9, a full disk or a
lost connection, and repeats at most the calls that were in progress. docs/method/traces.md says
which errors stop a run.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from interp.llm import backend as players
from interp.llm.client import Client
from interp.llm.plan import PAPER_REGIMES, Job, Prices, instances, plan
from interp.llm.protocol import (
    FORMAT,
    LockedError,
    Request,
    Session,
    TraceFile,
    feed_record,
    read_lines,
    replay,
    session_from,
)
from interp.llm.schemes import Condition, ParsedReply, built_in_prompts
from interp.support.checks import checked, checked_result, file_path
from interp.support.errors import InputError, require

# The run stops after this many episodes in a row that failed: without an answer, or refused before any answer.
_GIVE_UP_AFTER = 3


class _OverBudgetError(Exception):
    """Raised if the next call might exceed the budget."""


@dataclass(frozen=True)
@checked_result
class RunSummary:
    """Counts of a run (:func:`run`), in which a language model plays episodes; so far, or at the
    end of the run. A call is a request that was answered. A later command can resume a run that
    stopped.

    Attributes:
        episodes: number of planned episodes.
        finished: number of finished episodes, including those that ended because the context was
            full.
        overflowed: number of episodes that ended because the context was full.
        refused: number of episodes that were set aside because a server refused a request.
        calls: number of calls made by this command.
        resumed_calls: number of calls that an earlier command made and that were found on disk.
        malformed: number of answers, in the calls made by this command, that could not be read.
        prompt_tokens, cached_tokens, completion_tokens: number of tokens of all prompts, of the
            part of the prompts that the server had cached, and of the answers, in the calls made by
            this command.
        cost: cost of the calls made by this command, in the currency of the prices, 0 without
            prices; set at the end of the run.
        seconds: duration of this command; set at the end of the run.
        unfinished: for each episode that failed, a pair (path of its trace, the error in words).
        over_budget: True if the run stopped because the next call could have exceeded the budget.
    """

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
        """The summary in a sentence: state, calls, tokens, cost and failed episodes."""
        state = "complete" if self.complete else "incomplete; run the same command again to resume"
        if self.over_budget:
            state = "stopped before its budget is passed; run the same command with a larger one to resume"
        aside = f", {self.refused} set aside after a refusal" if self.refused else ""
        played = f"{self.finished} of {self.episodes} episodes ({self.overflowed} ended by a full context{aside})"
        calls = f"{self.calls:,} calls now and {self.resumed_calls:,} before"
        cached = f" ({self.cached_tokens / 1e6:.2f} M cached)" if self.cached_tokens else ""
        prompt = f"{self.prompt_tokens / 1e6:.2f} M prompt{cached}"
        answers = f"{self.completion_tokens / 1e6:.2f} M answer tokens"
        cost = f", cost {self.cost:.4f}" if self.cost else ""
        return (
            f"{played}, {calls}, {self.malformed} malformed answers, {prompt} and {answers}{cost}, "
            f"{self.seconds:.0f} s: {state}"
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
    """Let a language model play episodes, and write their traces (records of all calls) to a folder.

    Args:
        jobs: the planned episodes, all of one model with the same settings, played in this order.
        folder: folder for the traces.
        where: what answers the requests: the connection to a server, or another backend.
        prices: prices of tokens; by default 0.
        progress: function that is called with the counts so far after every call and every episode.
        malformed_limit: the run stops if its first ``malformed_limit`` answers are all malformed. 0
            never stops it for this reason.
        budget: largest cost, in the currency of ``prices``; without prices, largest number of
            tokens. The calls of earlier commands that are on disk count as well. The run stops
            before a call that could make the sum exceed the budget. None for no limit.

    Returns:
        The counts at the end of the run.

    Raises:
        InputError: if the user must change something (docs/method/traces.md). What was recorded is
            safe, and the same call resumes.
    """
    require(jobs, "nothing to run: the plan is empty")
    settings = jobs[0].settings
    require(
        all(job.settings == settings for job in jobs),
        "one run plays one model with one set of settings",
    )
    require(
        malformed_limit >= 0, f"malformed_limit must be 0 (never) or more, got {malformed_limit}"
    )
    folder = Path(file_path(folder, "folder"))
    prices = prices or Prices()
    limit = math.inf if budget is None else budget
    spending = _Budget(limit, prices, settings.longest_answer or 0)
    if budget is not None:
        require(
            settings.longest_answer is not None,
            "a budget needs a longest answer: give max_tokens (--max-tokens), or max_completion_tokens in the extra "
            "body",
        )
        for path in {folder / job.place for job in jobs}:
            spending.add_cost_of_trace(path)
    backend = Client(settings, where) if isinstance(where, players.Connection) else where
    playing = _RunInProgress(
        folder,
        backend,
        state=RunSummary(len(jobs)),
        report=progress or (lambda _: None),
        malformed_limit=malformed_limit,
        budget=spending,
    )
    play = playing.play(jobs, prices)
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return asyncio.run(play)
    # A notebook's cell runs within a loop, and one loop cannot hold another.
    with ThreadPoolExecutor(1) as another_thread:
        return another_thread.submit(asyncio.run, play).result()


@dataclass
class _Budget:
    """The largest cost that a run may have, and what its calls have cost so far.

    Amounts are in the currency of ``prices``, or in tokens without prices. docs/method/traces.md
    says how calls in progress count.

    Attributes:
        limit: the largest cost that is allowed.
        prices: prices of tokens.
        longest_answer: largest number of tokens of an answer.
        spent: cost of the finished calls.
    """

    limit: float
    prices: Prices
    longest_answer: int
    spent: float = 0.0
    _reserved: float = 0.0

    def __post_init__(self) -> None:
        """Refuse a budget of 0 or less, and count tokens if there are no prices."""
        require(self.limit > 0, f"a budget must be above 0, got {self.limit}")
        if not any(vars(self.prices).values()):
            # Prices are per million tokens: a token costs 1.
            self.prices = Prices(prompt=1e6, cached=1e6, completion=1e6)

    def add_cost_of_trace(self, path: Path) -> None:
        """Add the cost of the calls that are recorded in the trace at ``path``. Nothing is added if
        there is no such file, or if the file has another format and cannot be resumed.
        """
        lines: list[dict[str, Any]] = []
        if path.is_file():
            lines, _ = read_lines(path)  # the second value is the length of the lines in bytes
        if not lines or lines[0].get("format") != FORMAT:
            return
        header, *records = lines
        session = session_from(header)  # computes the messages of each recorded call again
        for record in records:
            request = session.next()
            if "reply" in record and request is not None:
                self.add_cost(request, record.get("usage"))
                feed_record(session, record)

    def add_cost(self, request: Request, usage: Any) -> None:
        """Add the cost of a call that was answered.

        Args:
            request: the request.
            usage: the server's numbers of tokens. If the server reports none, the highest cost that
                the call can have is added.
        """
        tokens = count_tokens(usage)
        self.spent += self.prices.cost(*tokens) if any(tokens) else self.bound_cost(request)

    def bound_cost(self, request: Request) -> float:
        """Return the highest cost that the call for ``request`` can have."""
        # A token has at least one byte; a chat template adds a few tokens to a message.
        most_tokens = [len(message["content"].encode()) + 16 for message in request.messages]
        return self.prices.cost(sum(most_tokens), cached=0, completion=self.longest_answer)

    @contextmanager
    def reserve(self, request: Request) -> Iterator[None]:
        """Context manager: reserve the highest cost that a call can have, while the call is made.

        Args:
            request: the request of the call.

        Raises:
            _OverBudgetError: if the call might cost more than the rest of the budget.
        """
        bound = self.bound_cost(request)
        # Calls of other episodes may be in progress. Their highest costs are reserved, too.
        if self.spent + self._reserved + bound > self.limit:
            raise _OverBudgetError
        self._reserved += bound
        try:
            yield
        finally:
            self._reserved -= bound


@dataclass
class _RunInProgress:
    """A run in progress: where traces are written, what answers, and the counts so far.

    Attributes:
        folder: folder for the traces.
        backend: what answers: a server, a scripted agent or a local model.
        state: the counts so far.
        report: function that is called with the counts.
        malformed_limit: stop if this many answers at the beginning are all malformed.
        budget: the largest cost, which may be infinite, and the cost so far.
        failed_in_a_row: number of episodes that failed in a row.
    """

    folder: Path
    backend: players.Backend
    state: RunSummary
    report: Callable[[RunSummary], None]
    malformed_limit: int
    budget: _Budget
    failed_in_a_row: int = 0

    def count(self, **increments: Any) -> None:
        """Increase some counts of the run.

        Args:
            increments: name of a field of :class:`RunSummary` -> what is added to it.
        """
        counts = {name: getattr(self.state, name) + number for name, number in increments.items()}
        self.state = replace(self.state, **counts)

    async def play(self, jobs: Sequence[Job], prices: Prices) -> RunSummary:
        """Play jobs with several workers, and return the counts. The first exception of a worker
        cancels the others and is raised.

        Args:
            jobs: the planned episodes.
            prices: prices of tokens.
        """
        start = time.monotonic()
        waiting = iter(jobs)  # all workers take their next job from this iterator
        workers: list[asyncio.Task[None]] = []
        try:
            await self.backend.start(jobs[0].condition)
            for _ in range(min(self.backend.concurrency, len(jobs))):
                workers.append(asyncio.create_task(self._play_waiting_jobs(waiting)))
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
        state = self.state
        cost = prices.cost(state.prompt_tokens, state.cached_tokens, state.completion_tokens)
        return replace(state, cost=cost, seconds=round(time.monotonic() - start, 2))

    async def _play_waiting_jobs(self, waiting: Iterator[Job]) -> None:
        """Take jobs from the iterator ``waiting``, which all workers share, and play one after the
        other.
        """
        for job in waiting:
            await self._try_episode(job)
            self.report(self.state)
            if self.state.over_budget:
                return

    async def _try_episode(self, job: Job) -> None:
        """Play the episode of a job. An error that concerns only this episode is recorded, and the
        run goes on.
        """
        n_calls = self.state.calls
        try:
            await self._play_episode(job)
            self.failed_in_a_row = 0
        except _OverBudgetError:
            self.state = replace(self.state, over_budget=True)
        except LockedError as error:
            self.count(unfinished=((str(job.place), str(error)),))
        except (players.UnavailableError, players.RefusedError) as error:
            is_refusal = isinstance(error, players.RefusedError)
            self.count(unfinished=((str(job.place), str(error)),), refused=is_refusal)
            self.failed_in_a_row += 1
            if self.state.calls > n_calls:  # an answer since this episode began ends the row
                self.failed_in_a_row = 1
            # If the server has answered any request of the run, a refusal is about this episode's
            # messages. Otherwise, too many failures in a row end the run.
            was_answered = self.state.calls + self.state.resumed_calls > 0
            is_about_message = is_refusal and was_answered
            if self.failed_in_a_row >= _GIVE_UP_AFTER and not is_about_message:
                raise

    async def _play_episode(self, job: Job) -> None:
        """Play one episode to the end, from where its trace on disk ends, and count the episode.

        Args:
            job: the episode with the settings of the player.
        """
        header = job.header(self.backend.address)
        require(
            not self.backend.holds_key(str(header)),
            "the settings or the prompt hold the key of the server, which must not be recorded; take it out of them",
        )
        with closing(TraceFile(self.folder / job.place, header)) as trace:
            session = session_from(trace.header)
            # How an earlier run ended the episode; None, or a refusal, if there is more to ask.
            end = replay(session, trace.records, trace.path)
            self.count(resumed_calls=sum("reply" in record for record in trace.records))
            while end not in ("complete", "overflow") and (request := session.next()) is not None:
                end = await self._make_call(job, session, request, trace)
            if end is None:
                end = "complete"
                trace.append({"end": end})
            self.count(finished=1, overflowed=end == "overflow")

    async def _make_call(
        self, job: Job, session: Session, request: Request, trace: TraceFile
    ) -> str | None:
        """Send a request, feed the reply to the session and record the call in the trace.

        Args:
            job: the episode.
            session: state machine of the conversation, which the reply is fed to.
            request: the request to send.
            trace: the trace file.

        Returns:
            "overflow" if the request no longer fits into the context, otherwise None.
        """
        seed = request.seed(job.instance.name)
        place = {"round": request.round, "turn": request.turn}
        try:
            reply = await self._ask_within_budget(job, request, seed)
        except players.ContextOverflowError as error:
            if not session.predictions:
                raise InputError(
                    f"not even the first request fits into the model's context ({error}); lower max_tokens "
                    f"({job.settings.max_tokens}) or serve the model with a longer context"
                ) from error
            trace.append({"end": "overflow", **place, "error": str(error)})
            return "overflow"
        except players.RefusedError as error:
            refusal = {"refused": str(error), **place}
            # Recorded once, however often the run is resumed.
            if trace.records[-1:] != [refusal]:
                trace.append(refusal)
            raise
        answer = session.feed(reply.text, reply.finish_reason)
        sent_seed = seed if job.settings.send_seed else None
        record = trace_record(request, sent_seed, reply, answer)
        trace.append({**record, "address": self.backend.address})
        prompt, cached, completion = count_tokens(reply.usage)
        self.count(
            calls=1,
            malformed=bool(answer.problem),
            prompt_tokens=prompt,
            cached_tokens=cached,
            completion_tokens=completion,
        )
        self.report(self.state)
        # The run stops if all its answers so far are malformed, and as many as the limit. A limit
        # of 0 never stops it, since at least one call has been made.
        n_malformed = self.state.malformed
        require(
            not (self.state.calls == n_malformed == self.malformed_limit),
            f"the first {n_malformed} answers are all malformed, the last one because {answer.problem}: "
            f"{reply.text[:200]!r}. Try a response format (--response-format), turn thinking off (--thinking-off), "
            "allow longer answers (--max-tokens) or choose another model; --malformed-limit 0 goes on regardless",
        )
        return None

    async def _ask_within_budget(self, job: Job, request: Request, seed: int) -> players.Reply:
        """Return the backend's reply to a request, and add its cost to what the run has spent. The
        call must fit into the rest of the budget.

        Args:
            job: the episode.
            request: the request to send.
            seed: sampling seed.

        Raises:
            _OverBudgetError: if the call might cost more than the rest of the budget.
        """
        with self.budget.reserve(request):
            reply = await self.backend.ask(request.messages, job.condition, request.turn, seed)
        self.budget.add_cost(request, reply.usage)
        return reply


def trace_record(
    request: Request, seed: int | None, reply: players.Reply, answer: ParsedReply
) -> dict[str, Any]:
    """Return the record of one call as a dictionary, which becomes a line of the trace. The
    server's fields are stored unchanged.

    Args:
        request: the request.
        seed: the seed that was sent, or None.
        reply: the reply.
        answer: what was read from the reply.
    """
    record: dict[str, Any] = {
        "round": request.round,
        "turn": request.turn,
        "attempt": request.attempt,
        "messages_sha256": request.sha256,
        "seed": seed,
        "reply": reply.text,
        "problem": answer.problem,
        "strict": answer.strict,
        **asdict(reply),
        "at": datetime.now(UTC).isoformat(timespec="milliseconds"),
    }
    del record["text"]  # stored as "reply"
    if answer.embedded:
        record["embedded"] = True
    return record


def count_tokens(usage: Any) -> tuple[int, int, int]:
    """Return (prompt tokens, cached prompt tokens, completion tokens) of one call; 0 where the
    server did not report a number.

    OpenAI and vLLM report cached tokens in ``prompt_tokens_details``, DeepSeek as
    ``prompt_cache_hit_tokens``.

    Args:
        usage: the field of this name in the server's answer.
    """
    if not isinstance(usage, dict):
        return 0, 0, 0
    details = usage.get("prompt_tokens_details")
    cached = parse_count(details.get("cached_tokens")) if isinstance(details, dict) else 0
    for name in ("prompt_cache_hit_tokens", "cached_tokens"):
        cached = cached or parse_count(usage.get(name))
    return (
        parse_count(usage.get("prompt_tokens")),
        cached,
        parse_count(usage.get("completion_tokens")),
    )


def parse_count(value: Any) -> int:
    """Return a count that another program reported as an integer; 0 if it is not a valid count.

    >>> [parse_count(value) for value in (12, "12", 3.0, None, float("nan"), 10**400, -1, [1])]
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
    """Let every scripted agent of :data:`~interp.llm.backend.PLAYERS` play episodes of the paper's
    three regimes, with and without notes.

    Args:
        folder: folder for the traces (recorded episodes).
        seed: seed of the instances.
        n_instances: number of instances (episodes to play) of each regime.
        n_rounds: number of rounds of each instance.

    Returns:
        Name of an agent -> summary of its run.
    """
    conditions = [Condition.parse(name) for name in ("online-no-note", "weather-note-only")]
    episodes = instances(PAPER_REGIMES, n_instances, n_rounds, 4, seed)
    done = {}
    for name in players.PLAYERS:
        jobs = plan(players.Settings(name), built_in_prompts(), episodes, conditions)
        done[name] = run(jobs, folder, players.AgentBackend(name, players.AGENTS[name]))
    return done
