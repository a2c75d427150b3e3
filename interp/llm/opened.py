"""A language model opened while it learns: a session over a TransformerLens bridge, with notes or without.

    >>> opened = Opened.load("models/Qwen3-14B", device="cuda")                                      # doctest: +SKIP
    >>> played = opened.play(episodes, ["blocks.20.hook_out"])                                       # doctest: +SKIP
    >>> probes.fit(played.at("blocks.20.hook_out", "answer"), targets.log_weights(episodes, "before"))  # doctest: +SKIP

How answers are read, what a patch restores, and what neither is evidence of: docs/method/opened.md.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from interp.llm.local import answers, count_shared, load_model, prompt_text
from interp.llm.notes import write_counts
from interp.llm.protocol import Session
from interp.llm.schemes import (
    Condition,
    Message,
    built_in_prompts,
    expert_keys,
    expert_letters,
    read_message,
    user_message,
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
_SOME_IDS = (1, 2, 3, 4, 5, 6, 7, 8)
"""A text by which a bridge is held against the model."""
_ROUNDED = 1e-2
"""How far the logits of bridge and model may lie apart, of the largest: rounding of bfloat16 stays below it."""


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
        """Return one hook point at one position, Float[episode, round, ...], for ``probes.fit``.

        Args:
            name: of the hook point.
            position: its label.
        """
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
        """Return one row for each hook point.

        Its columns are the share of the full effect that is restored, sum over sum, with its 95 % interval over
        episodes (NaN where there is no effect), the share of choices that move, and the same of the control; the mean
        size of the full effect in nats, and the share of choices that it moves.
        """
        size = float(np.abs(self.full).mean())
        scale = size if size > _ROUNDING else np.nan
        table = pd.DataFrame({"hook": self.names})
        for label, effects in {"restored": self.patched, "control": self.control}.items():
            shares = np.sign(self.full) * effects / scale
            columns = [mean_interval(share).columns(label) for share in shares]
            table = table.join(pd.DataFrame(columns))
            table[f"{label}_moves"] = self._share_moved(effects)
        return table.assign(full=size, full_moves=self._share_moved(self.full))

    def _share_moved(self, effects: np.ndarray) -> Any:
        """Return the share of episodes in which an effect changes the choice, Float[...] of effects
        [..., episode].
        """
        is_moved = (self.before > 0) != (self.before + effects > 0)
        return is_moved.mean(axis=-1)


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
        self.bridge = bridge
        self.tokenizer = tokenizer
        self.name = name
        self.prompt = prompt
        self.condition = Condition.parse(condition)

    @staticmethod
    def sample(n_episodes: int, n_rounds: int, *, regime: str, seed: int) -> ExpertEpisodes:
        """Sample episodes of expert advice to play, of as many experts as the prompts name.

        Args:
            n_episodes, n_rounds: sizes.
            regime: of the episodes.
            seed: seed of the draws.
        """
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
        """Open a chat model.

        Args:
            name: see :func:`interp.llm.local.load_model`.
            device: where it runs.
            prompt: replaces our system prompt.
            untrained: a seed; the weights are then drawn as for a new model of the same shape, as a control.
            condition: see :class:`interp.llm.schemes.Condition`.
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
        some_ids = torch.tensor([_SOME_IDS], device=device)
        with torch.no_grad():
            own_logits = model(some_ids).logits
        try:
            bridge = build_bridge_from_module(
                model, kind, hf_config=model.config, tokenizer=tokenizer
            )
        except (ValueError, KeyError, AttributeError) as error:
            raise InputError(
                f"TransformerLens has no bridge for {kind}: {error}; choose another model"
            ) from error
        opened = cls(bridge, tokenizer, name, prompt, condition)
        require(
            _differ_by_rounding(opened.logits([_SOME_IDS]), own_logits),
            f"TransformerLens' bridge to {kind} gives other logits than the model itself; choose another model, or the "
            "tested releases of constraints.txt",
        )
        return opened

    def logits(
        self, rows: Sequence[Sequence[int]], keys: Any = None, hooks: Sequence[Any] = ()
    ) -> Tensor:
        """Return the logits after every token of texts of one length.

        Args:
            rows: the tokens of each text that follow the cached ones.
            keys: the cache of earlier tokens, which is extended; None for no cache.
            hooks: pairs of a hook point and a function.
        """
        import torch

        device = next(self.bridge.original_model.parameters()).device
        cached = {"past_key_values": keys, "use_cache": keys is not None}
        with torch.no_grad():
            logits: Tensor = self.bridge.run_with_hooks(
                torch.tensor(rows, device=device), fwd_hooks=hooks, return_type="logits", **cached
            )
        return logits

    def new_keys(self) -> Any:
        """Return an empty cache of keys and values."""
        from transformers import DynamicCache

        return DynamicCache(config=self.bridge.original_model.config)

    @cached_property
    def reads_on(self) -> bool:
        """True if the bridge keeps what it reads in a cache, and reads it there (docs/method/opened.md)."""
        half = len(_SOME_IDS) // 2
        keys = self.new_keys()
        self.logits([_SOME_IDS[:half]], keys)
        whole = self.logits([_SOME_IDS])
        if keys.get_seq_length() != half:
            return False
        return _differ_by_rounding(self.logits([_SOME_IDS[half:]], keys), whole[:, half:])

    def residuals(self, every: int = 1) -> tuple[str, ...]:
        """Name the embeddings, and the residual stream after every so many blocks, the last one among them."""
        n_blocks = len(self.bridge.blocks)
        blocks = range((n_blocks - 1) % every, n_blocks, every)
        return ("embed.hook_out", *(f"blocks.{block}.hook_out" for block in blocks))

    def play(
        self, episodes: ExpertEpisodes, names: Sequence[str], batch: int = 8
    ) -> _OpenedRollout:
        """Play episodes and record hook points at every position.

        Args:
            episodes: what is played.
            names: of the hook points.
            batch: episodes at a time.
        """
        import torch

        self._require_hooks(names)
        predictions = []
        caches: dict[str, list[Tensor]] = {name: [] for name in names}
        for conversations in self._batches(episodes, batch):
            rounds = [conversations.play_round(names) for _ in range(episodes.n_rounds)]
            predictions.append(torch.stack([shares for shares, _ in rounds], dim=1))
            for name, parts in caches.items():
                parts.append(torch.stack([kept[name] for _, kept in rounds], dim=1))
        cache = {name: torch.cat(parts) for name, parts in caches.items()}
        positions = [ANSWER, *expert_keys(episodes.n_experts)]
        if self.condition.has_note:
            for activations in cache.values():  # no count stands before the first round
                activations[:, 0, len(positions) :] = torch.nan
            positions += [f"count_{letter}" for letter in expert_letters(episodes.n_experts)]
        return _OpenedRollout(
            torch.cat(predictions), cache, tuple(positions), episodes, settings=self._settings()
        )

    def patch(
        self,
        of: str,
        episodes: ExpertEpisodes,
        expert: int,
        round: int,
        names: Sequence[str] | None = None,
        batch: int = 8,
    ) -> _Patch:
        """Patch one expert's vote, or its count, at each of several hook points.

        Args:
            of: "vote", or "count" in the note that the round begins with.
            episodes: what is played.
            expert: its index, from 0.
            round: in which round, from 0.
            names: hook points, by default :meth:`residuals`.
            batch: episodes at a time.
        """
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
        self._require_hooks(names)
        bounds = {"expert": (expert, episodes.n_experts), "round": (round, episodes.n_rounds)}
        for what, (value, n_values) in bounds.items():
            require(0 <= value < n_values, f"{what} must be in [0, {n_values - 1}], got {value}")
        effects = []
        for conversations in self._batches(episodes, batch):
            for _ in range(round):
                conversations.play_round(())
            effects.append(conversations.patch(of, expert, names))
        before, full, patched, control = (
            np.concatenate(parts, axis=-1) for parts in zip(*effects, strict=True)
        )
        return _Patch(
            tuple(names),
            before=before,
            full=full,
            patched=patched,
            control=control,
            settings=self._settings(of=of, expert=expert, round=round),
        )

    def _settings(self, **more: Any) -> dict[str, Any]:
        return provenance(
            model=self.name, condition=self.condition.name, forced_format=True, **more
        )

    def _require_hooks(self, names: Sequence[str]) -> None:
        for name in names:
            require_known("hook point", name, self.bridge.hook_dict)

    def _batches(self, episodes: ExpertEpisodes, batch: int) -> Iterator[_Conversations]:
        for start in range(0, len(episodes), batch):
            yield _Conversations(self, episodes.select(slice(start, start + batch)))


@dataclass(frozen=True, eq=False)
class _Read:
    """The tokens of a conversation up to the answer, its text, and which token each character is in."""

    ids: list[int]
    text: str
    encoding: Any

    def place(self, pattern: str) -> int:
        """Return the token, counted from the end, of the last character of the last match's first group."""
        *_, match = re.finditer(pattern, self.text)
        token: int = self.encoding.char_to_token(match.end(1) - 1)
        return token - len(self.ids)


class _Conversations:
    """Episodes that are played in step: their sessions, and one cache of keys and values for all of them.

    Where the bridge does not read such a cache, ``keys`` is None and every conversation is read from its beginning.
    """

    def __init__(self, opened: Opened, episodes: ExpertEpisodes) -> None:
        self.opened = opened
        self.condition = opened.condition
        self.tokenizer = opened.tokenizer
        self.keys = opened.new_keys() if opened.reads_on else None
        self.known: list[list[int]] = [[] for _ in episodes.advice]
        self.n_experts = episodes.n_experts
        self.begin, self.choices, self.texts = answers(opened.tokenizer, opened.condition)
        built_in = built_in_prompts(episodes.n_experts)[opened.condition.scheme].text
        self.sessions = []
        for advice, labels in zip(episodes.advice, episodes.labels, strict=True):
            session = Session(opened.condition, opened.prompt or built_in, advice, labels)
            self.sessions.append(session)

    def play_round(self, names: Sequence[str]) -> tuple[Tensor, dict[str, Tensor]]:
        """Play a round; the answers go into the conversations.

        Returns:
            P(1) of each episode, and the activations of ``names`` at every position.
        """
        conversations = self._read()
        places = [[-1, *self._places(read, "vote")] for read in conversations]
        if self.condition.has_note:
            is_first = not self.sessions[0].predictions
            for read, row in zip(conversations, places, strict=True):
                # In the first round the last token stands in the place of counts.
                row += [-1] * self.n_experts if is_first else self._places(read, "count")
        kept: dict[str, Tensor] = {}
        hooks = {name: partial(_keep, kept, name, places) for name in names}
        logits = self._run(conversations, hooks, n_anew=-min(map(min, places)))
        missing = [name for name in names if name not in kept]
        require(not missing, f"the hook points {', '.join(missing)} did not fire; choose others")
        pairs = logits[:, list(self.choices)].float()
        shares = pairs.softmax(dim=-1)[:, 1].cpu()
        for session, share in zip(self.sessions, shares.tolist(), strict=True):
            session.feed(self.texts[int(share > 0.5)])
            if self.condition.has_note:
                n_rounds = len(session.predictions)
                is_right = session.advice[:n_rounds] == session.labels[:n_rounds, None]
                note = write_counts(is_right.sum(axis=0).tolist(), n_rounds)
                session.feed(json.dumps({"note": note}))
        return shares, kept

    def patch(self, of: str, expert: int, names: Sequence[str]) -> tuple[np.ndarray, ...]:
        """Return the logit difference and its changes by patches, see :class:`_Patch`.

        Args:
            of: "vote" or "count".
            expert: its index.
            names: hook points.
        """
        conversations = self._read()
        opposites = self._read((of, expert))
        other_expert = (expert + 1) % self.n_experts
        here, elsewhere = [], []
        for read, opposite in zip(conversations, opposites, strict=True):
            places = self._places(read, of)
            # All tokens of the word from the first that differs on.
            n_shared = count_shared(read.ids, opposite.ids)
            n_tokens = 1 + places[expert] - (n_shared - len(read.ids))
            here.append([places[expert] - back for back in range(n_tokens)])
            elsewhere.append([places[other_expert] - back for back in range(n_tokens)])
        before_change: dict[str, Tensor] = {}
        after_change: dict[str, Tensor] = {}
        n_anew = -min(map(min, (*here, *elsewhere)))
        keep_own = {name: partial(_keep, before_change, name, here) for name in names}
        keep_new = {name: partial(_keep, after_change, name, here) for name in names}
        before = self._difference(self._run(conversations, keep_own, n_anew))
        full = self._difference(self._run(opposites, keep_new, n_anew)) - before
        effects = []
        for rows in (here, elsewhere):
            changes = []
            for name in names:
                difference = after_change[name] - before_change[name]
                hook = partial(_add, difference, rows)
                logits = self._run(conversations, {name: hook}, n_anew)
                changes.append(self._difference(logits) - before)
            effects.append(np.stack(changes))
        return before, full, effects[0], effects[1]

    def _read(self, changed: tuple[str, int] | None = None) -> list[_Read]:
        """Read every conversation, or what it would be with another vote or count of one expert."""
        conversations = []
        for session in self.sessions:
            request = session.next()
            if request is None:
                raise InputError("the episodes are over")
            messages = list(request.messages)
            if changed is not None:
                messages[-1] = self._changed(messages[-1], *changed)
            text = prompt_text(self.tokenizer, messages)
            encoding = self.tokenizer(text, add_special_tokens=False)
            conversations.append(_Read(encoding["input_ids"] + self.begin, text, encoding))
        require(
            len({len(read.ids) for read in conversations}) == 1,
            "the rounds of the episodes are not equally many tokens for this model; play them one at a time (batch=1)",
        )
        return conversations

    def _places(self, read: _Read, of: str) -> list[int]:
        """Return the last token of each vote of the last message, or of each count of its note,
        counted from the end.

        Args:
            read: a conversation.
            of: "vote" or "count".
        """
        if of == "vote":
            words = "|".join(str(word) for word in self.condition.words)
            return [read.place(f'"{key}": ?"?({words})') for key in expert_keys(self.n_experts)]
        letters = expert_letters(self.n_experts)
        return [read.place(rf"\b{letter}: ?(\d+)/") for letter in letters]

    def _changed(self, message: Message, of: str, expert: int) -> Message:
        """Return a message with the opposite vote of one expert, or another count of it in the
        note.

        Args:
            message: the message.
            of: "vote" or "count".
            expert: its index.
        """
        body = read_message(message)
        if of == "vote":
            key = expert_keys(self.n_experts)[expert]
            zero, one = self.condition.words
            body[key] = one if body[key] == zero else zero
        else:
            letter = expert_letters(self.n_experts)[expert]
            body["note"] = _with_another_count(body["note"], letter)
        return user_message(body)

    def _run(self, conversations: Sequence[_Read], hooks: dict[str, Any], n_anew: int) -> Tensor:
        """Return the logits after the last token of each conversation.

        Args:
            conversations: what the model reads.
            hooks: hook point -> function.
            n_anew: number of tokens at the end that are read again, with the hooks; earlier ones
                come from the cache.
        """
        rows = [read.ids for read in conversations]
        start = 0
        if self.keys is not None:
            shared = [count_shared(row, known) for row, known in zip(rows, self.known, strict=True)]
            start = min(*shared, len(rows[0]) - n_anew)
            if self.keys.get_seq_length() > start:
                self.keys.crop(start - self.keys.get_seq_length())
        self.known = rows
        new_tokens = [row[start:] for row in rows]
        logits = self.opened.logits(new_tokens, self.keys, list(hooks.items()))
        return logits[:, -1]

    def _difference(self, logits: Tensor) -> np.ndarray:
        pairs = logits[:, list(self.choices)].double().cpu().numpy()
        return np.asarray(pairs[:, 1] - pairs[:, 0])


def _differ_by_rounding(logits: Tensor, others: Tensor) -> bool:
    """Return whether logits differ by rounding alone."""
    largest = (logits - others).abs().max()
    return bool(largest <= _ROUNDED * others.abs().max())


def _with_another_count(note: str, letter: str) -> str:
    """Return a note in which the count of an expert is the farthest of as many digits.

    >>> _with_another_count("A:3/9, B:8/9", "B")
    'A:3/9, B:0/9'
    """
    match = re.search(rf"\b{letter}:(\d+)/(\d+)", note)
    assert match is not None, "the note holds every count"
    count, n_rounds = int(match[1]), int(match[2])
    n_digits = len(match[1])
    lowest = 10 ** (n_digits - 1) if n_digits > 1 else 0
    highest = min(10**n_digits - 1, n_rounds)
    farthest = highest if highest - count > count - lowest else lowest
    require(
        farthest != count,
        f"the note {note!r} has no other count of as many digits for expert {letter}; patch a count in another round",
    )
    return f"{note[: match.start(1)]}{farthest}{note[match.end(1) :]}"


def _keep(
    kept: dict[str, Tensor], name: str, places: list[list[int]], value: Tensor, hook: Any
) -> None:
    """Store activations, as a hook.

    Args:
        kept: where they are stored, by name.
        name: of the hook point.
        places: a list for each episode, counted from the end.
        value: the activation.
        hook: the hook point; not used.
    """
    import torch

    rows = [activations[row] for activations, row in zip(value, places, strict=True)]
    kept[name] = torch.stack(rows).detach().float().cpu()


def _add(difference: Tensor, places: list[list[int]], value: Tensor, hook: Any) -> Tensor:
    """Add a difference to activations, as a hook.

    Args:
        difference: [episode, place, ...].
        places: a list for each episode, counted from the end.
        value: the activation.
        hook: the hook point; not used.
    """
    value = value.clone()
    for episode, row in enumerate(places):
        value[episode, row] += difference[episode].to(value)
    return value
