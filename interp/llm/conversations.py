"""Conversations that an opened model has in step: what each round reads, answers and leaves in the cache.

All episodes of a batch are in the same round; the keys and values of what was read stay cached from round to round.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from interp.errors import require
from interp.llm.local import answers, prompt_ids
from interp.llm.prompts import built_in
from interp.llm.protocol import Session
from interp.llm.schemes import Condition, expert_keys, label_words

if TYPE_CHECKING:
    from torch import Tensor

    from interp.tasks.experts import ExpertEpisodes


class Conversations:
    """Episodes that are played in step: their sessions, and one cache of keys and values for all of them.

    Args:
        bridge, tokenizer: of the model that plays.
        prompt: another system prompt than ours for the condition.
    """

    def __init__(
        self, bridge: Any, tokenizer: Any, condition: Condition, prompt: str | None, episodes: ExpertEpisodes
    ) -> None:
        from transformers import DynamicCache

        prompt = prompt or built_in(condition.scheme, episodes.n_experts).text
        self.bridge, self.tokenizer, self.n_experts = bridge, tokenizer, episodes.n_experts
        self.words = [json.dumps(word) for word in label_words(condition.framing)]
        self.sessions = [
            Session(condition, prompt, advice, labels)
            for advice, labels in zip(episodes.advice, episodes.labels, strict=True)
        ]
        self.begin, self.choices, self.texts = answers(tokenizer, condition)
        self.read: list[list[int]] = [[] for _ in self.sessions]
        self.keys = DynamicCache(config=bridge.original_model.config)

    def round(self, names: Sequence[str]) -> tuple[Tensor, dict[str, Tensor]]:
        """P(1) of each episode and the kept activations; the answers go into the conversations."""
        ids = self._conversations()
        self._read_shared(ids)
        places = [[len(row) - 1, *self._votes(row)] for row in ids]
        kept: dict[str, Tensor] = {}
        logits = self._run(ids, {name: _keep(kept, name, self._after_cache(places, ids)) for name in names})
        missing = [name for name in names if name not in kept]
        require(not missing, f"the hook points {', '.join(missing)} did not fire; choose others")
        shares = logits[:, list(self.choices)].float().softmax(dim=-1)[:, 1].cpu()
        for session, share in zip(self.sessions, shares.tolist(), strict=True):
            session.feed(self.texts[int(share > 0.5)])
        return shares, kept

    def patch(self, expert: int, names: Sequence[str]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """The full effect of the opposite vote, and that of its activation in place and at another expert's vote."""
        ids = self._conversations()
        self._read_shared(ids)
        opposite, other = self._conversations(opposite=expert), (expert + 1) % self.n_experts
        here, elsewhere = [], []
        for row, swapped in zip(ids, opposite, strict=True):
            votes = self._votes(row)
            n = 1 + votes[expert] - next(i for i, (a, b) in enumerate(zip(row, swapped, strict=True)) if a != b)
            here.append([votes[expert] - i for i in range(n)])  # all tokens of the word that differ or follow
            elsewhere.append([votes[other] - i for i in range(n)])
        before = min(place for row in (*here, *elsewhere) for place in row)
        self._run([row[:before] for row in ids], {})  # what stands before both votes is read once
        own: dict[str, Tensor] = {}
        new: dict[str, Tensor] = {}
        shift = self._after_cache(here, ids)
        base = self._difference(self._run(ids, {name: _keep(own, name, shift) for name in names}, stay=True))
        keep = {name: _keep(new, name, shift) for name in names}
        full = self._difference(self._run(opposite, keep, stay=True)) - base
        effects = []
        for target in (here, elsewhere):
            at = self._after_cache(target, ids)
            runs = [self._run(ids, {name: _add(new[name] - own[name], at)}, stay=True) for name in names]
            effects.append(np.stack([self._difference(logits) - base for logits in runs]))
        return full, effects[0], effects[1]

    def _conversations(self, opposite: int | None = None) -> list[list[int]]:
        """The tokens of every conversation, or of what it would be with the opposite vote of one expert."""
        rows = []
        for session in self.sessions:
            request = session.next()
            require(request is not None, "the episodes are over")
            assert request is not None
            messages = list(request.messages)
            if opposite is not None:
                messages[-1] = {**messages[-1], "content": self._swapped(messages[-1]["content"], opposite)}
            rows.append(prompt_ids(self.tokenizer, messages) + self.begin)
        require(
            len({len(row) for row in rows}) == 1,
            "the rounds of the episodes are not equally many tokens for this model; play them one at a time (batch=1)",
        )
        return rows

    def _votes(self, row: list[int]) -> list[int]:
        """Where the votes of the last message stand: the last token of the word after each expert's key."""
        decode = self.tokenizer.decode
        start = next(i for i in range(len(row) - 1, -1, -1) if '"turn_type"' in decode(row[i:]))
        texts = [decode(row[start : i + 1]) for i in range(start, len(row))]
        words = "|".join(re.escape(word.rstrip('"')) for word in self.words)
        keys = [re.compile(rf'"{key}": ?(?:{words})\Z') for key in expert_keys(self.n_experts)]
        return [start + next(i for i, text in enumerate(texts) if key.search(text)) for key in keys]

    def _swapped(self, content: str, expert: int) -> str:
        """A message with the opposite vote of one expert."""
        zero, one = self.words
        key = expert_keys(self.n_experts)[expert]
        return re.sub(rf'("{key}": )({zero}|{one})', lambda m: m[1] + (one if m[2] == zero else zero), content)

    def _common(self, ids: list[list[int]]) -> int:
        """How many tokens of every row are in the cache already."""
        return min(min(_alike(old, row), len(row) - 1) for old, row in zip(self.read, ids, strict=True))

    def _after_cache(self, places: list[list[int]], ids: list[list[int]]) -> list[list[int]]:
        """Places in a whole conversation as places among the tokens that the next run reads."""
        start = self._common(ids)
        return [[place - start for place in row] for row in places]

    def _run(self, ids: list[list[int]], hooks: dict[str, Any], stay: bool = False) -> Tensor:
        """Logits after the last token; what the cache holds is not read again. ``stay`` leaves the cache as it was."""
        import torch

        start = self._common(ids)
        if self.keys.get_seq_length() > start:
            self.keys.crop(start - self.keys.get_seq_length())
        new = self._tokens([row[start:] for row in ids])
        with torch.no_grad():
            logits = self.bridge.run_with_hooks(
                new, fwd_hooks=list(hooks.items()), past_key_values=self.keys, use_cache=True, return_type="logits"
            )
        if stay:
            self.keys.crop(start - self.keys.get_seq_length())
        else:
            self.read = ids
        return logits[:, -1]

    def _read_shared(self, ids: list[list[int]]) -> None:
        """Before the first round: read what all conversations begin with, the system prompt, once for all of them."""
        import torch

        if self.keys.get_seq_length():
            return
        first = ids[0][:-1]
        n = min(_alike(first, row) for row in ids)
        if n == 0:
            return
        with torch.no_grad():
            self.bridge(self._tokens([first[:n]]), past_key_values=self.keys, use_cache=True)
        self.keys.batch_repeat_interleave(len(ids))
        self.read = [first[:n] for _ in ids]

    def _tokens(self, ids: list[list[int]]) -> Tensor:
        """Token ids on the model's device."""
        import torch

        return torch.tensor(ids, device=next(self.bridge.original_model.parameters()).device)

    def _difference(self, logits: Tensor) -> np.ndarray:
        pair = logits[:, list(self.choices)].double().cpu().numpy()
        return np.asarray(pair[:, 1] - pair[:, 0])


def _alike(one: list[int], other: list[int]) -> int:
    """How many tokens two rows begin with alike."""
    shorter = min(len(one), len(other))
    return next((i for i in range(shorter) if one[i] != other[i]), shorter)


def _keep(kept: dict[str, Tensor], name: str, places: list[list[int]]) -> Any:
    """A hook that keeps the activations at ``places``, a list for each episode."""
    import torch

    def hook(value: Tensor, hook: Any) -> None:
        kept[name] = torch.stack([value[i, at] for i, at in enumerate(places)]).detach().float().cpu()

    return hook


def _add(difference: Tensor, places: list[list[int]]) -> Any:
    """A hook that adds ``difference`` [episode, place, ...] at ``places``."""

    def hook(value: Tensor, hook: Any) -> Tensor:
        value = value.clone()
        for i, at in enumerate(places):
            value[i, at] += difference[i].to(value)
        return value

    return hook
