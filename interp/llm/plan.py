"""What a run will do, and what it will cost: the episodes, their traces' places, and an estimate without any call.

The estimate drives the real state machine with two scripted agents, one with a compact counter note (low) and one that
lists every round (high). How text becomes tokens: docs/method/traces.md.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from itertools import takewhile
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from interp.llm.backend import AGENTS, Settings
from interp.llm.protocol import FORMAT, Session
from interp.llm.schemes import CONDITIONS, Condition, Message, Prompt
from interp.support.checks import check_fields, checked, refuse_endless
from interp.support.errors import require
from interp.support.provenance import provenance
from interp.tasks import experts

_MOST_ROUNDS = 1000
PAPER_REGIMES = ("stratified", "flat", "anti-signal")


@dataclass(frozen=True, eq=False)
class Instance:
    """One episode: advice Int[round, expert], labels Int[round], accuracies."""

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
    """Instances of each regime (the paper: 30 of 100 rounds with 4 experts).

    Each is the beginning of an episode of :data:`_MOST_ROUNDS` rounds that its regime, index, number of experts and
    seed alone determine: a run can be made longer or larger later.
    """
    require(bool(regimes), "name at least one regime")
    require(n_instances >= 1, f"n_instances must be 1 or more, got {n_instances}")
    refuse_endless(
        "n_instances", n_instances, 1e-3 * len(regimes)
    )  # an episode of two experts takes a millisecond
    require(
        1 <= n_rounds <= _MOST_ROUNDS, f"n_rounds must be in [1, {_MOST_ROUNDS}], got {n_rounds}"
    )
    seeds = [
        int(np.random.default_rng([seed, index]).integers(2**31)) for index in range(n_instances)
    ]
    drawn = []
    for regime in dict.fromkeys(regimes):
        for index, instance_seed in enumerate(seeds):
            longest = experts.sample(1, _MOST_ROUNDS, n_experts, regime=regime, seed=instance_seed)
            advice, labels, accuracies = (
                longest.advice[0],
                longest.labels[0],
                longest.known_accuracies[0],
            )
            accuracies = accuracies if accuracies.ndim == 1 else accuracies[:n_rounds]
            drawn.append(
                Instance(
                    regime, index, instance_seed, advice[:n_rounds], labels[:n_rounds], accuracies
                )
            )
    return drawn


def folder_of(model: str) -> str:
    """The folder of a model's traces: its name without what file systems may refuse."""
    return "".join(c if c.isalnum() or c in "-_." else "_" for c in model).strip(".") or "_"


@dataclass(frozen=True)
class Job:
    """One episode to be played and where its trace goes: in a folder ``variant``, where it is begun in several ways.

    ``begins`` holds the ``note`` and ``history`` that it goes on from, and ``last_note``; nothing for a whole episode.
    """

    condition: Condition
    instance: Instance
    prompt: Prompt
    settings: Settings
    variant: str = ""
    begins: Mapping[str, Any] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """The instance's name, and which variant of it is played."""
        return f"{self.variant}/{self.instance.name}" if self.variant else self.instance.name

    @property
    def place(self) -> Path:
        """The trace's path below the output folder: ``model/condition/instance.jsonl``."""
        return Path(folder_of(self.settings.model)) / self.condition.name / f"{self.name}.jsonl"

    def header(self, address: str) -> dict[str, Any]:
        """The first line of its trace: condition, prompt, settings and instance, without any key."""
        parts = vars(self.instance).items()
        return {
            "format": FORMAT,
            "condition": asdict(self.condition),
            "prompt": {
                "wording": self.prompt.wording,
                "sha256": self.prompt.sha256,
                "text": self.prompt.text,
            },
            "settings": asdict(self.settings),
            "instance": {
                key: part.tolist() if isinstance(part, np.ndarray) else part for key, part in parts
            },
            "made_with": provenance(address=address),
            **({"begins": dict(self.begins)} if self.begins else {}),
        }

    def session(self) -> Session:
        """A new session of this job, before its first round."""
        instance, retries = self.instance, self.settings.max_reasks
        return Session(
            self.condition,
            self.prompt.text,
            instance.advice,
            instance.labels,
            max_retries=retries,
            **self.begins,
        )


@checked
def plan(
    settings: Settings,
    prompts: Mapping[str, Prompt],
    episodes: Sequence[Instance],
    conditions: Sequence[Condition] = CONDITIONS,
) -> list[Job]:
    """Every condition on every instance, instance by instance, so that a run cut short is balanced."""
    for condition in conditions:
        require(
            condition.scheme in prompts,
            f"condition {condition.name!r} needs the prompt {condition.scheme!r}, which was not given; "
            f"there are: {', '.join(prompts)}",
        )
    jobs = [
        Job(condition, instance, prompts[condition.scheme], settings)
        for instance in sorted(episodes, key=lambda instance: instance.index)
        for condition in dict.fromkeys(conditions)
    ]
    require(bool(jobs), "nothing to do: name at least one condition and one instance")
    return jobs


@dataclass(frozen=True)
class Prices:
    """Price of a million tokens, in one currency: fresh prompt tokens, cached ones, and answers."""

    prompt: float = 0.0
    cached: float = 0.0
    completion: float = 0.0

    def __post_init__(self) -> None:
        check_fields(self)
        for name, price in vars(self).items():
            require(price >= 0, f"the price of {name} tokens must be 0 or more, got {price}")

    @checked
    def cost(self, prompt: float, cached: float, completion: float) -> float:
        """``prompt`` counts all prompt tokens, the cached ones among them."""
        return (
            (prompt - cached) * self.prompt + cached * self.cached + completion * self.completion
        ) / 1e6


@dataclass(frozen=True)
class _Estimate:
    """Calls, without those that malformed answers add, tokens and cost before a run, by (model, condition, regime)."""

    frame: pd.DataFrame

    def readable(self) -> pd.DataFrame:
        """For a terminal: one row per condition; the cost where there are prices."""
        by = self.frame.groupby("condition", sort=False).sum(numeric_only=True)
        shown = by[["episodes", "calls"]].reset_index()
        units = {
            "prompt_tokens": ("M prompt tokens", 1e6),
            "completion_tokens": ("M answer tokens", 1e6),
        }
        for name, (title, unit) in (
            units | ({"cost": ("cost", 1)} if by["cost_high"].any() else {})
        ).items():
            bounds = zip(by[f"{name}_low"] / unit, by[f"{name}_high"] / unit, strict=True)
            shown[title] = [f"{low:.2f} to {high:.2f}" for low, high in bounds]
        return shown

    @property
    def sentence(self) -> str:
        """The totals in one sentence."""
        total = self.frame.sum(numeric_only=True)
        tokens = f"{total['prompt_tokens_low'] / 1e6:.2f} to {total['prompt_tokens_high'] / 1e6:.2f} M prompt tokens"
        cost = (
            f", cost {total['cost_low']:.2f} to {total['cost_high']:.2f}"
            if total["cost_high"]
            else ""
        )
        return f"{int(total['episodes'])} episodes, {int(total['calls']):,} calls, {tokens} expected{cost}"


@checked
def estimate(jobs: Sequence[Job], prices: Prices | None = None) -> _Estimate:
    """Calls, prompt and answer tokens and cost of ``jobs``, without a call.

    ``low`` is with short notes and every repeated prefix served from the cache, ``high`` with long notes and no cache.
    """
    prices = prices or Prices()
    kinds = [(job.settings.model, job.condition.name, job.instance.regime) for job in jobs]
    first = dict(zip(kinds[::-1], jobs[::-1], strict=True))
    rows = []
    for kind, n in Counter(kinds).items():
        low, high = (_count(first[kind].session(), name) for name in ("counter", "full-history"))
        row: dict[str, Any] = dict(zip(("model", "condition", "regime"), kind, strict=True))
        row |= {"episodes": n, "calls": n * low["calls"], "cacheable_tokens_low": n * low["cached"]}
        for bound, of, cached in (("low", low, low["cached"]), ("high", high, 0)):
            row |= {f"{name}_tokens_{bound}": n * of[name] for name in ("prompt", "completion")}
            row[f"cost_{bound}"] = n * prices.cost(of["prompt"], cached, of["completion"])
        rows.append(row)
    return _Estimate(pd.DataFrame(rows))


def _count(session: Session, agent_name: str) -> dict[str, int]:
    total = {"calls": 0, "prompt": 0, "cached": 0, "completion": 0}
    sizes: list[int] = []
    before: tuple[Message, ...] = ()
    while (request := session.next()) is not None:
        shared = sum(
            1
            for _ in takewhile(
                lambda pair: pair[0] == pair[1], zip(before, request.messages, strict=False)
            )
        )
        sizes = sizes[:shared] + [
            len(message["content"]) // (4 if message["role"] == "system" else 3) + 4
            for message in request.messages[shared:]
        ]
        before = request.messages
        reply = AGENTS[agent_name](request.messages)
        session.feed(reply)
        total["calls"] += 1
        total["prompt"] += sum(sizes)
        total["cached"] += sum(sizes[:shared])
        total["completion"] += len(reply) // 3 + 1
    return total
