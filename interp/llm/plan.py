"""Plan a run of a language model: choose its episodes and the paths of their traces, and estimate
the cost.

The estimate needs no calls of the model. Two scripted agents play the planned episodes: one of them
writes short notes (low estimate), the other one lists every round in its notes (high estimate).
docs/method/traces.md says how numbers of tokens are estimated from texts.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from interp.llm.backend import AGENTS, Settings
from interp.llm.local import count_common_start
from interp.llm.protocol import FORMAT, Session
from interp.llm.schemes import CONDITIONS, Condition, Message, Prompt
from interp.support.checks import checked, checked_fields, refuse_endless
from interp.support.errors import require
from interp.support.provenance import provenance
from interp.tasks import experts

_MOST_ROUNDS = 1000
_CHARACTERS_A_TOKEN, _CHARACTERS_A_TOKEN_OF_JSON = 4, 3
"""Rough lengths of a token in English prose (the system prompt), and in JSON with short words."""
PAPER_REGIMES = ("stratified", "flat", "anti-signal")


@dataclass(frozen=True, eq=False)
@checked_fields
class Instance:
    """An episode to play, with its advice and outcomes.

    Attributes:
        regime: name of the distribution that it was sampled from.
        index: number of the instance within its regime.
        seed: seed that it was sampled with; None if unknown.
        advice: advice of each expert in each round, Int[round, expert].
        labels: outcome of each round, Int[round].
        accuracies: accuracies of the experts, ``[expert]``, or ``[round, expert]`` if they change.
    """

    regime: str
    index: int
    seed: int | None
    advice: NDArray[np.int64]
    labels: NDArray[np.int64]
    accuracies: NDArray[np.float64]

    @property
    def name(self) -> str:
        """Regime and number, such as ``flat-003``; unique within a run."""
        return f"{self.regime}-{self.index:03d}"


@checked
def instances(
    regimes: Sequence[str] = PAPER_REGIMES,
    n_instances: int = 30,
    n_rounds: int = 100,
    n_experts: int = 4,
    seed: int = 0,
) -> list[Instance]:
    """Sample instances (episodes to play) of each regime. The paper has 30 instances of each
    regime, with 100 rounds and 4 experts.

    Each instance is the beginning of an episode of 1,000 rounds, which depends only on its regime,
    index, number of experts and seed. So a run can be extended later.

    Args:
        regimes: names of the regimes, see :mod:`interp.tasks.experts`.
        n_instances: number of instances of each regime.
        n_rounds: number of rounds of each instance.
        n_experts: number of experts.
        seed: seed of all instances.

    Returns:
        A list of the instances: those of the first regime, then those of the next one.
    """
    require(regimes, "name at least one regime")
    require(n_instances >= 1, f"n_instances must be 1 or more, got {n_instances}")
    # An episode of two experts takes a millisecond.
    refuse_endless("n_instances", n_instances, seconds_each=1e-3 * len(regimes))
    require(
        1 <= n_rounds <= _MOST_ROUNDS, f"n_rounds must be in [1, {_MOST_ROUNDS}], got {n_rounds}"
    )
    sampled = []
    for regime in dict.fromkeys(regimes):
        for index in range(n_instances):
            instance_seed = int(np.random.default_rng([seed, index]).integers(2**31))
            # Always of the same length, so that further rounds do not change those before.
            longest = experts.sample(1, _MOST_ROUNDS, n_experts, regime=regime, seed=instance_seed)
            accuracies = longest.known_accuracies[0]
            if accuracies.ndim == 2:  # [round, expert]: they change from round to round
                accuracies = accuracies[:n_rounds]
            instance = Instance(
                regime,
                index,
                seed=instance_seed,
                advice=longest.advice[0, :n_rounds],
                labels=longest.labels[0, :n_rounds],
                accuracies=accuracies,
            )
            sampled.append(instance)
    return sampled


def folder_of(model: str) -> str:
    """Return the name of the folder for a model's traces: the model's name without characters that
    file systems may refuse.
    """
    return re.sub(r"[^\w.-]", "_", model).strip(".") or "_"


@dataclass(frozen=True)
@checked_fields
class Job:
    """One episode to play, in one condition with one prompt.

    Attributes:
        condition: wording of outcomes and kind of notes.
        instance: the episode.
        prompt: the system prompt.
        settings: the model and its settings.
    """

    condition: Condition
    instance: Instance
    prompt: Prompt
    settings: Settings

    @property
    def place(self) -> Path:
        """Path of the trace, relative to the output folder: ``model/condition/instance.jsonl``."""
        folder = Path(folder_of(self.settings.model), self.condition.name)
        return folder / f"{self.instance.name}.jsonl"

    def header(self, address: str) -> dict[str, Any]:
        """Return the first line of the trace as a dictionary: condition, prompt, settings and
        instance, but no API key.

        Args:
            address: where the answers come from, such as the address of the server.
        """
        instance: dict[str, Any] = dict(vars(self.instance))
        for name in ("advice", "labels", "accuracies"):
            instance[name] = instance[name].tolist()  # arrays cannot be written as JSON
        prompt = {
            "wording": self.prompt.wording,
            "sha256": self.prompt.sha256,
            "text": self.prompt.text,
        }
        return {
            "format": FORMAT,
            "condition": asdict(self.condition),
            "prompt": prompt,
            "settings": asdict(self.settings),
            "instance": instance,
            "made_with": provenance(address=address),
        }

    def session(self) -> Session:
        """Return the state machine of this episode, before its first round."""
        instance = self.instance
        return Session(
            self.condition,
            self.prompt.text,
            advice=instance.advice,
            labels=instance.labels,
            max_retries=self.settings.max_reasks,
        )


@checked
def plan(
    settings: Settings,
    prompts: Mapping[str, Prompt],
    episodes: Sequence[Instance],
    conditions: Sequence[Condition] = CONDITIONS,
) -> list[Job]:
    """List one job for every condition and instance (episode to play). Jobs are ordered by
    instance, so that an interrupted run has played all conditions equally often.

    Args:
        settings: the model and its settings.
        prompts: name of a scheme, such as "online-note" -> system prompt.
        episodes: the instances.
        conditions: the conditions (wording of outcomes and kind of notes).
    """
    for condition in conditions:
        require(
            condition.scheme in prompts,
            f"condition {condition.name!r} needs the prompt {condition.scheme!r}, which was not given; "
            f"there are: {', '.join(prompts)}",
        )
    jobs = []
    for instance in sorted(episodes, key=lambda instance: instance.index):
        for condition in dict.fromkeys(conditions):
            jobs.append(Job(condition, instance, prompts[condition.scheme], settings))
    require(jobs, "nothing to do: name at least one condition and one instance")
    return jobs


@dataclass(frozen=True)
@checked_fields
class Prices:
    """Prices per million tokens, in any one currency.

    Attributes:
        prompt: price of prompt tokens that are not cached.
        cached: price of cached prompt tokens.
        completion: price of answer tokens.
    """

    prompt: float = 0.0
    cached: float = 0.0
    completion: float = 0.0

    def __post_init__(self) -> None:
        """Refuse negative prices."""
        for name, price in vars(self).items():
            require(price >= 0, f"the price of {name} tokens must be 0 or more, got {price}")

    @checked
    def cost(self, prompt: float, cached: float, completion: float) -> float:
        """Return the cost of some tokens, in the currency of the prices.

        Args:
            prompt: number of all prompt tokens, including cached ones.
            cached: number of cached prompt tokens.
            completion: number of answer tokens.
        """
        fresh = (prompt - cached) * self.prompt
        return (fresh + cached * self.cached + completion * self.completion) / 1e6


@dataclass(frozen=True)
class _Estimate:
    """Estimated calls, tokens and cost of a run. Repeated calls after malformed answers are not
    counted.

    Attributes:
        frame: one row per model, condition and regime, with a low and a high estimate.
    """

    frame: pd.DataFrame

    @property
    def sentence(self) -> str:
        """A sentence with the total numbers of episodes, calls and prompt tokens, and the total
        cost.
        """
        total = self.frame.sum(numeric_only=True)
        low, high = total["prompt_tokens_low"] / 1e6, total["prompt_tokens_high"] / 1e6
        cost = ""
        if total["cost_high"]:
            cost = f", cost {total['cost_low']:.2f} to {total['cost_high']:.2f}"
        work = f"{int(total['episodes'])} episodes, {int(total['calls']):,} calls"
        return f"{work}, {low:.2f} to {high:.2f} M prompt tokens expected{cost}"


@checked
def estimate(jobs: Sequence[Job], prices: Prices | None = None) -> _Estimate:
    """Estimate the calls, tokens and cost of jobs, without any call.

    The low estimate assumes short notes, and that every repeated beginning of a prompt is cached.
    The high estimate assumes long notes and no cache.

    Args:
        jobs: the planned episodes.
        prices: prices of tokens; by default 0.

    Returns:
        An object with a ``sentence`` on the totals, and the table ``frame``. The table has one row
        per model, condition and regime, and these columns:

        * model, condition, regime;
        * episodes, calls: their numbers;
        * prompt_tokens_low, prompt_tokens_high, completion_tokens_low, completion_tokens_high,
          cost_low, cost_high: the low and the high estimate of each number;
        * cacheable_tokens_low: prompt tokens in messages with which the episode's last prompt
          already began, so that a server can cache them (low estimate).
    """
    prices = prices or Prices()
    groups: dict[tuple[str, str, str], list[Job]] = {}
    for job in jobs:
        kind = (job.settings.model, job.condition.name, job.instance.regime)
        groups.setdefault(kind, []).append(job)
    rows = []
    for (model, condition, regime), group in groups.items():
        n_jobs = len(group)
        # One episode stands for all of the group, which have nearly equal numbers of tokens. Of the
        # scripted agents, "counter" writes short notes and "full-history" long ones.
        low = _count_usage(group[0].session(), "counter") * n_jobs
        high = _count_usage(group[0].session(), "full-history") * n_jobs
        row = {
            "model": model,
            "condition": condition,
            "regime": regime,
            "episodes": n_jobs,
            "calls": low["calls"],
            "cacheable_tokens_low": low["cached"],
            "prompt_tokens_low": low["prompt"],
            "completion_tokens_low": low["completion"],
            "cost_low": prices.cost(low["prompt"], low["cached"], low["completion"]),
            "prompt_tokens_high": high["prompt"],
            "completion_tokens_high": high["completion"],
            "cost_high": prices.cost(high["prompt"], 0, high["completion"]),
        }
        rows.append(row)
    return _Estimate(pd.DataFrame(rows))


def _count_usage(session: Session, agent_name: str) -> pd.Series[int]:
    """Play an episode with a scripted agent, and count calls and tokens.

    Args:
        session: the episode, before its first round.
        agent_name: key of the agent in ``AGENTS``.

    Returns:
        The numbers of "calls", "prompt" tokens, "cached" prompt tokens and "completion" tokens.
    """
    total = pd.Series({"calls": 0, "prompt": 0, "cached": 0, "completion": 0})
    last_messages: tuple[Message, ...] = ()
    while (request := session.next()) is not None:
        sizes = [_estimate_tokens(message) for message in request.messages]
        # The server may have cached the messages with which the last prompt began, too.
        n_cached_messages = count_common_start(last_messages, request.messages)
        last_messages = request.messages
        reply = AGENTS[agent_name](request.messages)
        session.feed(reply)
        reply_size = len(reply) // _CHARACTERS_A_TOKEN_OF_JSON + 1
        # In the order of the entries of `total`: calls, prompt, cached, completion.
        total += [1, sum(sizes), sum(sizes[:n_cached_messages]), reply_size]
    return total


def _estimate_tokens(message: Message) -> int:
    """Estimate the number of tokens of a message from its number of characters."""
    is_prose = message["role"] == "system"
    characters_a_token = _CHARACTERS_A_TOKEN if is_prose else _CHARACTERS_A_TOKEN_OF_JSON
    return len(message["content"]) // characters_a_token + 4  # chat templates add a few tokens
