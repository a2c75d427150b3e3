"""A language model opened while it learns: a session without notes over a TransformerLens bridge.

The model plays on, and in every round its activations at chosen hook points are kept at chosen token positions: at the
vote of each expert ("Expert_A", ...: the last token of its 0 or 1, rainy or sunny), and at the token before the answer
itself ("answer"), which sees every outcome up to the last round. That gives every activation a round axis, so that
``probes.fit`` works on it as on the latents of our own models:

    >>> opened = Opened.load("models/Qwen3-14B", device="cuda")                                      # doctest: +SKIP
    >>> played = opened.play(episodes, ["blocks.20.hook_out"])                                       # doctest: +SKIP
    >>> probes.fit(played.at("blocks.20.hook_out", "answer"), targets.log_weights(episodes, "before"))  # doctest: +SKIP

The prediction is read off the two answers' first differing tokens, P(1) = softmax over both; the likelier one goes into
the conversation, whatever else the model might have written: a forced format, as ``response_format="grammar"`` forces
it. The keys and values of what was read stay cached from round to round.

A *patch* puts the activation that one expert's vote has when it is the opposite (same history) in place of its own at
one hook point, and asks how much of the full effect of the opposite vote on the answer that restores: 1 where the
answer reads the vote through that place, 0 where it has been read before or is read elsewhere.

Scope: what is decoded need not be used; a patch says where the vote of *this* round is read, and nothing of how
reliability is kept. Rounds must be equally many tokens for all episodes, which holds where 0 and 1 are one token.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from interp.checks import checked
from interp.errors import InputError, require, require_known
from interp.llm.local import answers, load_model, prompt_ids
from interp.llm.protocol import Session
from interp.llm.schemes import Condition, built_in, expert_keys, label_words
from interp.provenance import provenance
from interp.statistics import bootstrap_mean
from interp.tasks import experts

if TYPE_CHECKING:
    from torch import Tensor

    from interp.tasks.experts import ExpertEpisodes


CONDITION = "online-no-note"
"""What is played where no other condition is given; see :class:`interp.llm.schemes.Condition`."""
ANSWER = "answer"


@checked
def sample(n_episodes: int, n_rounds: int, regime: str = "stratified", seed: int = 0) -> ExpertEpisodes:
    """Episodes of four experts, as many as the prompts name."""
    return experts.sample(n_episodes, n_rounds, 4, regime=regime, seed=seed)


@dataclass(frozen=True, eq=False)
class OpenedRollout:
    """What an opened model did over a batch of episodes.

    Attributes:
        predictions: Float[episode, round], P(1).
        cache: hook point -> Float[episode, round, position, ...].
        positions: the labels of the position axis: "answer", then "Expert_A", ...
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
class VotePatch:
    """The effect of patching one expert's vote at one round, by hook point.

    Attributes:
        full: Float[episode], change of the logit difference (1 over 0) where the vote itself is the opposite.
        patched: Float[hook point, episode], the change where only the activation at the vote is replaced.
        control: the same difference of activations added at the vote of another expert.
    """

    names: tuple[str, ...]
    full: np.ndarray
    patched: np.ndarray
    control: np.ndarray
    settings: dict[str, Any] = field(repr=False)

    def to_frame(self) -> pd.DataFrame:
        """One row for each hook point: the share of the full effect that is restored, sum over sum, with its 95 %
        interval over episodes, and the same of the control."""
        table: dict[str, Any] = {"hook": self.names}
        scale = float(np.abs(self.full).mean())
        for label, effects in (("restored", self.patched), ("control", self.control)):
            shares = [bootstrap_mean(np.sign(self.full) * effect / scale) for effect in effects]
            for column, values in zip((label, f"{label}_low", f"{label}_high"), zip(*shares, strict=True), strict=True):
                table[column] = np.array(values, dtype=np.float64)
        return pd.DataFrame(table)


class Opened:
    """A chat model behind a TransformerLens bridge."""

    def __init__(self, bridge: Any, tokenizer: Any, name: str, prompt: str | None = None, condition: str = CONDITION):
        self.bridge, self.tokenizer, self.name, self.prompt = bridge, tokenizer, name, prompt
        self.condition = _without_notes(condition)

    @classmethod
    @checked
    def load(
        cls,
        name: str,
        device: str = "cpu",
        prompt: str | None = None,
        untrained: int | None = None,
        condition: str = CONDITION,
    ) -> Opened:
        """Open the model ``name`` (see :func:`interp.llm.local.load_model`).

        Args:
            prompt: another system prompt than ours for the condition, "online-no-note" or "weather-no-note".
            untrained: a seed; the weights are then drawn as for a new model of the same shape, as a control.
        """
        _without_notes(condition)
        import torch
        from transformer_lens.model_bridge.sources import build_bridge_from_module

        model, tokenizer = load_model(name, device)
        if untrained is not None:
            with torch.random.fork_rng():
                torch.manual_seed(untrained)
                model = type(model)(model.config).to(device).eval()
        kind = type(model).__name__
        try:
            bridge = build_bridge_from_module(model, kind, hf_config=model.config, tokenizer=tokenizer)
        except (ValueError, KeyError, AttributeError) as error:
            raise InputError(f"TransformerLens has no bridge for {kind}: {error}; choose another model") from error
        return cls(bridge, tokenizer, name, prompt, condition)

    def residuals(self, every: int = 1) -> tuple[str, ...]:
        """The embeddings, and the residual stream after every so many blocks, the last one among them."""
        last = len(self.bridge.blocks) - 1
        return ("embed.hook_out", *(f"blocks.{i}.hook_out" for i in range(last % every, last + 1, every)))

    def play(self, episodes: ExpertEpisodes, names: Sequence[str], batch: int = 8) -> OpenedRollout:
        """Play ``episodes`` and keep the hook points ``names`` at every position."""
        import torch

        self._check(names)
        parts = [[told.round(names) for _ in range(episodes.n_rounds)] for told in self._batches(episodes, batch)]
        predictions = torch.cat([torch.stack([one for one, _ in part], dim=1) for part in parts])
        cache = {
            name: torch.cat([torch.stack([kept[name] for _, kept in part], dim=1) for part in parts]) for name in names
        }
        return OpenedRollout(predictions, cache, (ANSWER, *expert_keys(episodes.n_experts)), episodes, self._settings())

    def patch_vote(
        self, episodes: ExpertEpisodes, expert: int, round: int, names: Sequence[str] | None = None, batch: int = 8
    ) -> VotePatch:
        """Patch the vote of ``expert`` in ``round`` (both from 0) at each of the hook points ``names``, by default
        :meth:`residuals`."""
        names = self.residuals() if names is None else names
        self._check(names)
        require(0 <= expert < episodes.n_experts, f"expert must be in [0, {episodes.n_experts - 1}], got {expert}")
        require(0 <= round < episodes.n_rounds, f"round must be in [0, {episodes.n_rounds - 1}], got {round}")
        effects = []
        for told in self._batches(episodes, batch):
            for _ in range(round):
                told.round(())
            effects.append(told.patch(expert, names))
        full, patched, control = (np.concatenate(parts, axis=-1) for parts in zip(*effects, strict=True))
        settings = self._settings() | {"expert": expert, "round": round}
        return VotePatch(tuple(names), full, patched, control, settings)

    def _batches(self, episodes: ExpertEpisodes, batch: int) -> Iterator[_Conversations]:
        for start in range(0, len(episodes), batch):
            some = episodes.select(slice(start, start + batch))
            yield _Conversations(self.bridge, self.tokenizer, self.condition, self.prompt, some)

    def _check(self, names: Sequence[str]) -> None:
        for name in names:
            require_known("hook point", name, self.bridge.hook_dict)

    def _settings(self) -> dict[str, Any]:
        return provenance(model=self.name, condition=self.condition.name, forced_format=True)


def _without_notes(name: str) -> Condition:
    condition = Condition.parse(name)
    require(
        not condition.has_note,
        f"a model is opened in a condition without notes: online-no-note or weather-no-note, got {name!r}",
    )
    return condition


class _Conversations:
    """Episodes that are played in step: their sessions, and one cache of keys and values for all of them."""

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
            if (request := session.next()) is None:
                raise InputError("the episodes are over")
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

        first = ids[0][:-1]
        n = min(_alike(first, row) for row in ids)
        if self.keys.get_seq_length() or n == 0:
            return
        with torch.no_grad():
            self.bridge(self._tokens([first[:n]]), past_key_values=self.keys, use_cache=True)
        self.keys.batch_repeat_interleave(len(ids))
        self.read = [first[:n] for _ in ids]

    def _tokens(self, ids: list[list[int]]) -> Tensor:
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
