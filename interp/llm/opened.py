"""A language model opened while it learns: a session over a TransformerLens bridge, with notes or without.

    >>> opened = Opened.load("models/Qwen3-14B", device="cuda")                                      # doctest: +SKIP
    >>> played = opened.play(episodes, ["blocks.20.hook_out"])                                       # doctest: +SKIP
    >>> probes.fit(played.at("blocks.20.hook_out", "answer"), targets.log_weights(episodes, "before"))  # doctest: +SKIP

How answers are read, what a patch restores, and what neither is evidence of: docs/method/opened.md.
"""

from __future__ import annotations

import json
import re
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from interp.llm.local import answers, load_model, prompt_ids
from interp.llm.notes import write_counts
from interp.llm.protocol import Session
from interp.llm.schemes import (
    Condition,
    Message,
    built_in_prompts,
    expert_keys,
    expert_letters,
    read_message,
)
from interp.results.measure import Result
from interp.stats.intervals import mean_interval
from interp.support.checks import checked
from interp.support.errors import InputError, require, require_known
from interp.support.provenance import provenance
from interp.tasks import experts

if TYPE_CHECKING:
    from torch import Tensor

    from interp.tasks.experts import ExpertEpisodes


_CONDITION = "online-no-note"
"""What is played where no other condition is given; see :class:`interp.llm.schemes.Condition`."""
ANSWER = "answer"
_ROUNDING = 1e-5  # logits of 32 bits differ by this much, in nats, where nothing is read
_SOME_IDS, _ROUNDED = (1, 2, 3, 4, 5, 6, 7, 8), 1e-2
"""A text by which a bridge is held against the model, and how far their logits may lie apart, of the largest: rounding
of bfloat16 stays below it."""


@dataclass(frozen=True, eq=False)
class _OpenedRollout:
    """What an opened model did over a batch of episodes: P(1) [episode, round], and the activations of hook points.

    ``cache`` is hook point -> Float[episode, round, position, ...], with the labels ``positions``: "answer",
    "Expert_A", ..., and with notes "count_A", ..., which is NaN in the first round.
    """

    predictions: Tensor
    cache: dict[str, Tensor]
    positions: tuple[str, ...]
    episodes: ExpertEpisodes
    settings: dict[str, Any] = field(repr=False)

    def at(self, name: str, position: str = ANSWER) -> Tensor:
        """Float[episode, round, ...]: one hook point at one position, for ``probes.fit``."""
        require_known("cached hook point", name, self.cache)
        require_known("position", position, self.positions)
        return self.cache[name][:, :, self.positions.index(position)]


@dataclass(frozen=True, eq=False)
class _Patch(Result):
    """The effect of patching one expert's vote, or its count in the note, at one round, by hook point.

    Attributes:
        before: Float[episode], the logit difference (1 over 0) without a patch.
        full: Float[episode], its change where the vote is the opposite, or the count another one.
        patched: Float[hook point, episode], the change where only the activation there is replaced.
        control: the same difference of activations added at the vote, or the count, of another expert.
    """

    names: tuple[str, ...]
    before: np.ndarray
    full: np.ndarray
    patched: np.ndarray
    control: np.ndarray
    settings: dict[str, Any] = field(repr=False)

    def to_frame(self) -> pd.DataFrame:
        """One row for each hook point: the share of the full effect that is restored, sum over sum, with its 95 %
        interval over episodes (NaN where there is no effect), the share of choices that move, and the same of the
        control; the mean size of the full effect in nats, and the share of choices that it moves."""
        table: dict[str, Any] = {"hook": self.names}
        scale = float(np.abs(self.full).mean())
        scale = scale if scale > _ROUNDING else np.nan
        every = {"restored": self.patched, "control": self.control, "full": self.full[None]}
        moves = {
            label: ((self.before > 0) != (self.before + of > 0)).mean(-1)
            for label, of in every.items()
        }
        for label in ("restored", "control"):
            shares = [
                mean_interval(np.sign(self.full) * effect / scale).columns(label)
                for effect in every[label]
            ]
            table |= {**pd.DataFrame(shares), f"{label}_moves": moves[label]}
        return pd.DataFrame(table).assign(
            full=np.abs(self.full).mean(), full_moves=moves["full"].item()
        )


class Opened:
    """A chat model behind a TransformerLens bridge."""

    def __init__(
        self,
        bridge: Any,
        tokenizer: Any,
        name: str,
        prompt: str | None = None,
        condition: str = _CONDITION,
    ):
        self.bridge, self.tokenizer, self.name, self.prompt = bridge, tokenizer, name, prompt
        self.condition = Condition.parse(condition)

    @staticmethod
    def sample(n_episodes: int, n_rounds: int, *, regime: str, seed: int) -> ExpertEpisodes:
        """Episodes of expert advice to play, of as many experts as the prompts name."""
        return experts.sample(n_episodes, n_rounds, 4, regime=regime, seed=seed)

    @classmethod
    @checked
    def load(
        cls,
        name: str,
        device: str = "cpu",
        prompt: str | None = None,
        untrained: int | None = None,
        condition: str = _CONDITION,
    ) -> Opened:
        """Open the model ``name`` (see :func:`interp.llm.local.load_model`); ``prompt`` replaces our system prompt.

        ``untrained`` is a seed; the weights are then drawn as for a new model of the same shape, as a control.
        """
        Condition.parse(condition)
        import torch
        from transformer_lens.model_bridge.sources import build_bridge_from_module

        model, tokenizer = load_model(name, device)
        if untrained is not None:
            with torch.random.fork_rng():
                torch.manual_seed(untrained)
                model = type(model)(model.config).to(device).eval()
        kind = type(model).__name__
        with torch.no_grad():
            plain = model(torch.tensor([_SOME_IDS], device=device)).logits
        try:
            bridge = build_bridge_from_module(
                model, kind, hf_config=model.config, tokenizer=tokenizer
            )
        except (ValueError, KeyError, AttributeError) as error:
            raise InputError(
                f"TransformerLens has no bridge for {kind}: {error}; choose another model"
            ) from error
        opened = cls(bridge, tokenizer, name, prompt, condition)
        other = f"TransformerLens' bridge to {kind} gives other logits than the model itself"
        same = _alike(opened._logits(_SOME_IDS), plain)
        require(same, f"{other}; choose another model, or the tested releases of constraints.txt")
        return opened

    def _logits(self, ids: Sequence[int], keys: Any = None) -> Tensor:
        """Logits of one text after every token; ``keys`` hold what was read before, and take what is read now."""
        import torch

        with torch.no_grad():
            tokens = torch.tensor(
                [list(ids)], device=next(self.bridge.original_model.parameters()).device
            )
            return self.bridge(
                tokens, past_key_values=keys, use_cache=keys is not None, return_type="logits"
            )

    @cached_property
    def reads_on(self) -> bool:
        """True if the bridge keeps what it reads in a cache of keys and values, and reads it there
        (docs/method/opened.md).
        """
        from transformers import DynamicCache

        keys, half = DynamicCache(config=self.bridge.original_model.config), len(_SOME_IDS) // 2
        self._logits(_SOME_IDS[:half], keys)
        return keys.get_seq_length() == half and _alike(
            self._logits(_SOME_IDS[half:], keys), self._logits(_SOME_IDS)[:, half:]
        )

    def residuals(self, every: int = 1) -> tuple[str, ...]:
        """The embeddings, and the residual stream after every so many blocks, the last one among them."""
        last = len(self.bridge.blocks) - 1
        return (
            "embed.hook_out",
            *(f"blocks.{i}.hook_out" for i in range(last % every, last + 1, every)),
        )

    def play(
        self, episodes: ExpertEpisodes, names: Sequence[str], batch: int = 8
    ) -> _OpenedRollout:
        """Play ``episodes`` and keep the hook points ``names`` at every position."""
        import torch

        for name in names:
            require_known("hook point", name, self.bridge.hook_dict)
        parts = [
            [told.round(names) for _ in range(episodes.n_rounds)]
            for told in self._batches(episodes, batch)
        ]
        predictions = torch.cat([torch.stack([one for one, _ in part], dim=1) for part in parts])
        cache = {
            name: torch.cat(
                [torch.stack([kept[name] for _, kept in part], dim=1) for part in parts]
            )
            for name in names
        }
        for kept in cache.values() if self.condition.has_note else ():
            kept[:, 0, 1 + episodes.n_experts :] = (
                torch.nan
            )  # no count stands before the first round
        positions = [ANSWER, *expert_keys(episodes.n_experts)]
        positions += [
            f"count_{letter}" for letter in expert_letters(episodes.n_experts)
        ] * self.condition.has_note
        settings = provenance(model=self.name, condition=self.condition.name, forced_format=True)
        return _OpenedRollout(predictions, cache, tuple(positions), episodes, settings)

    def patch(
        self,
        of: str,
        episodes: ExpertEpisodes,
        expert: int,
        round: int,
        names: Sequence[str] | None = None,
        batch: int = 8,
    ) -> _Patch:
        """Patch the "vote" of ``expert`` in ``round`` (both from 0), or its "count" in the note that the round begins
        with, at each of the hook points ``names``, by default :meth:`residuals`."""
        require_known("part of a round to patch", of, ("vote", "count"))
        require(
            of == "vote" or self.condition.has_note,
            f"counts stand in notes, and {self.condition.name} has none; open the model in a condition with notes, "
            "such as online-note-only",
        )
        require(
            of == "vote" or round != 0,
            "the first round has no note; patch a count in round 1 or later",
        )
        names = self.residuals() if names is None else names
        for name in names:
            require_known("hook point", name, self.bridge.hook_dict)
        require(
            0 <= expert < episodes.n_experts,
            f"expert must be in [0, {episodes.n_experts - 1}], got {expert}",
        )
        require(
            0 <= round < episodes.n_rounds,
            f"round must be in [0, {episodes.n_rounds - 1}], got {round}",
        )
        effects = []
        for told in self._batches(episodes, batch):
            for _ in range(round):
                told.round(())
            effects.append(told.patch(of, expert, names))
        before, full, patched, control = (
            np.concatenate(parts, axis=-1) for parts in zip(*effects, strict=True)
        )
        settings = provenance(
            model=self.name,
            condition=self.condition.name,
            forced_format=True,
            of=of,
            expert=expert,
            round=round,
        )
        return _Patch(tuple(names), before, full, patched, control, settings)

    def _batches(self, episodes: ExpertEpisodes, batch: int) -> Iterator[_Conversations]:
        for start in range(0, len(episodes), batch):
            yield _Conversations(self, episodes.select(slice(start, start + batch)))


class _Conversations:
    """Episodes that are played in step: their sessions, and one cache of keys and values for all of them.

    Where the bridge does not read such a cache, ``keys`` is None and every conversation is read from its beginning.
    """

    def __init__(self, opened: Opened, episodes: ExpertEpisodes) -> None:
        from transformers import DynamicCache

        condition, tokenizer = opened.condition, opened.tokenizer
        prompt = opened.prompt or built_in_prompts(episodes.n_experts)[condition.scheme].text
        self.bridge, self.tokenizer, self.n_experts = opened.bridge, tokenizer, episodes.n_experts
        self.words = [json.dumps(word) for word in condition.words]
        self.sessions = [
            Session(condition, prompt, advice, labels)
            for advice, labels in zip(episodes.advice, episodes.labels, strict=True)
        ]
        self.begin, self.choices, self.texts = answers(tokenizer, condition)
        self.read: list[list[int]] = [[] for _ in self.sessions]
        self.keys = (
            DynamicCache(config=self.bridge.original_model.config) if opened.reads_on else None
        )

    def round(self, names: Sequence[str]) -> tuple[Tensor, dict[str, Tensor]]:
        """P(1) of each episode and the kept activations; the answers go into the conversations."""
        ids = self._conversations()
        places = [[-1, *self._places(row, "vote")] for row in ids]
        if self.sessions[
            0
        ].condition.has_note:  # the last token in the place of counts in the first round
            for row, at in zip(ids, places, strict=True):
                at += (
                    self._places(row, "count")
                    if self.sessions[0].predictions
                    else [-1] * self.n_experts
                )
        # A note may begin as the one before it: what is kept is read again, although the cache has it.
        first = len(ids[0]) + min(min(row) for row in places)
        self.read = [row[:first] for row in self.read]
        kept: dict[str, Tensor] = {}
        logits = self._run(ids, {name: partial(_keep, kept, name, places) for name in names})
        missing = [name for name in names if name not in kept]
        require(not missing, f"the hook points {', '.join(missing)} did not fire; choose others")
        shares = logits[:, list(self.choices)].float().softmax(dim=-1)[:, 1].cpu()
        for session, share in zip(self.sessions, shares.tolist(), strict=True):
            session.feed(self.texts[int(share > 0.5)])
            if session.condition.has_note:
                t = len(session.predictions)
                right = (session.advice[:t] == session.labels[:t, None]).sum(0)
                session.feed(json.dumps({"note": write_counts(right.tolist(), t)}))
        return shares, kept

    def patch(self, of: str, expert: int, names: Sequence[str]) -> tuple[np.ndarray, ...]:
        """The logit difference, the full effect of the other vote or count on it, and that of its activation in place
        and at another expert's."""
        ids = self._conversations()
        opposite, other = self._conversations((of, expert)), (expert + 1) % self.n_experts
        here, elsewhere = [], []
        for row, swapped in zip(ids, opposite, strict=True):
            places = self._places(row, of)
            first = next(i for i, (a, b) in enumerate(zip(row, swapped, strict=True)) if a != b)
            n = 1 + len(row) + places[expert] - first
            here.append(
                [places[expert] - i for i in range(n)]
            )  # all tokens of the word that differ or follow
            elsewhere.append([places[other] - i for i in range(n)])
        before = min(place for row in (*here, *elsewhere) for place in row)
        self._run([row[:before] for row in ids], {})  # what stands before both votes is read once
        own, new = dict[str, Any](), dict[str, Any]()
        keep = {name: partial(_keep, own, name, here) for name in names}
        base = self._difference(self._run(ids, keep, stay=True))
        keep = {name: partial(_keep, new, name, here) for name in names}
        full = self._difference(self._run(opposite, keep, stay=True)) - base
        effects = []
        for at in (here, elsewhere):
            runs = [
                self._run(ids, {name: partial(_add, new[name] - own[name], at)}, stay=True)
                for name in names
            ]
            effects.append(np.stack([self._difference(logits) - base for logits in runs]))
        return base, full, effects[0], effects[1]

    def _conversations(self, changed: tuple[str, int] | None = None) -> list[list[int]]:
        """The tokens of every conversation, or of what it would be with another vote or count of one expert."""
        rows = []
        for session in self.sessions:
            if (request := session.next()) is None:
                raise InputError("the episodes are over")
            messages = list(request.messages)
            if changed is not None:
                messages[-1] = self._changed(messages[-1], *changed)
            rows.append(prompt_ids(self.tokenizer, messages) + self.begin)
        require(
            len({len(row) for row in rows}) == 1,
            "the rounds of the episodes are not equally many tokens for this model; play them one at a time (batch=1)",
        )
        return rows

    def _places(self, row: list[int], of: str) -> list[int]:
        """Where the votes of the last message, or the counts of its note, stand, from the end: the last token of
        each."""
        decode = self.tokenizer.decode
        start = (
            bisect_left(range(len(row)), True, key=lambda i: '"turn_type"' not in decode(row[i:]))
            - 1
        )
        n = len(row) - start

        def ends(pattern: str) -> int:
            """The first token with which the message holds what the pattern says."""
            held = re.compile(pattern)
            i = bisect_left(
                range(n),
                True,
                key=lambda i: held.search(decode(row[start : start + i + 1])) is not None,
            )
            assert i < n, f"the message lacks {pattern}"
            return i

        if of == "vote":
            words = "|".join(re.escape(word.rstrip('"')) for word in self.words)
            return [ends(rf'"{key}": ?(?:{words})') - n for key in expert_keys(self.n_experts)]
        slashes = [ends(rf"\b{letter}: ?\d+/") for letter in expert_letters(self.n_experts)]
        # A token may hold the last digit and the slash.
        return [i - decode(row[start : start + i])[-1].isdigit() - n for i in slashes]

    def _changed(self, message: Message, of: str, expert: int) -> Message:
        """A message with the opposite vote of one expert, or another count of it in the note."""
        if of == "vote":
            zero, one = self.words
            old = rf'("{expert_keys(self.n_experts)[expert]}": )({zero}|{one})'
            content = re.sub(old, lambda m: m[1] + {zero: one, one: zero}[m[2]], message["content"])
        else:
            letter = expert_letters(self.n_experts)[expert]
            found = re.search(rf"(?<=\b{letter}:)(\d+)/(\d+)", message["content"])
            assert found is not None, "the note holds every count"
            # The count of as many digits that is farthest from the one that stands there.
            n = len(found[1])
            lowest, highest = 10 ** (n - 1) if n > 1 else 0, min(10**n - 1, int(found[2]))
            far = max(lowest, highest, key=lambda other: abs(other - int(found[1])))
            content = (
                f"{message['content'][: found.start()]}{far}{message['content'][found.end(1) :]}"
            )
            require(
                content != message["content"],
                f"the note {read_message(message)['note']!r} has no other count of as many digits for expert {letter}; "
                "patch a count in another round",
            )
        return {**message, "content": content}

    def _run(self, ids: list[list[int]], hooks: dict[str, Any], stay: bool = False) -> Tensor:
        """Logits after the last token; what the cache holds is not read again. After ``stay`` it goes on from
        where it was."""
        import torch

        start = 0 if self.keys is None else len(ids[0]) - 1
        for old, row in zip(self.read, ids, strict=True):
            pairs = enumerate(zip(old, row[:start], strict=False))
            start = next((i for i, (a, b) in pairs if a != b), min(len(old), start))
        if self.keys is not None and self.keys.get_seq_length() > start:
            self.keys.crop(start - self.keys.get_seq_length())
        new = torch.tensor(
            [row[start:] for row in ids],
            device=next(self.bridge.original_model.parameters()).device,
        )
        with torch.no_grad():
            cached = {"past_key_values": self.keys, "use_cache": self.keys is not None}
            logits = self.bridge.run_with_hooks(
                new, fwd_hooks=list(hooks.items()), **cached, return_type="logits"
            )
        if not stay:
            self.read = ids
        return logits[:, -1]

    def _difference(self, logits: Tensor) -> np.ndarray:
        pair = logits[:, list(self.choices)].double().cpu().numpy()
        return np.asarray(pair[:, 1] - pair[:, 0])


def _alike(logits: Tensor, others: Tensor) -> bool:
    """True if logits differ by rounding alone."""
    return bool((logits - others).abs().max() <= _ROUNDED * others.abs().max())


def _keep(
    kept: dict[str, Tensor], name: str, places: list[list[int]], value: Tensor, hook: Any
) -> None:
    """As a hook: keep the activations at ``places``, counted from the end, a list for each episode."""
    import torch

    kept[name] = torch.stack([value[i, at] for i, at in enumerate(places)]).detach().float().cpu()


def _add(difference: Tensor, places: list[list[int]], value: Tensor, hook: Any) -> Tensor:
    """As a hook: add ``difference`` [episode, place, ...] at ``places``."""
    value = value.clone()
    for i, at in enumerate(places):
        value[i, at] += difference[i].to(value)
    return value
