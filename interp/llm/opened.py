"""Let a language model play with TransformerLens' hooks, to record and patch its activations.

    >>> opened = Opened.load("models/Qwen3-14B", device="cuda")                                      # doctest: +SKIP
    >>> played = opened.play(episodes, ["blocks.20.hook_out"])                                       # doctest: +SKIP
    >>> probes.fit(played.at("blocks.20.hook_out", "answer"), targets.log_weights(episodes, "before"))  # doctest: +SKIP

docs/method/opened.md says how answers are read, what a patch restores, and what both are not
evidence of.
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

from interp.llm.local import count_common_start, load_model, render_prompt, tokenize_answers
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
from interp.support.caches import fill_cache
from interp.support.checks import checked, checked_result, integer
from interp.support.errors import InputError, require, require_known
from interp.support.provenance import provenance

if TYPE_CHECKING:
    from torch import Tensor

    from interp.tasks.experts import ExpertEpisodes


_CONDITION = "online-no-note"
"""The default condition; see :class:`interp.llm.schemes.Condition`."""
ANSWER = "answer"
_LEAST_EFFECT = 1e-5  # nats; smaller effects on float32 logits are rounding
_SOME_IDS = (1, 2, 3, 4, 5, 6, 7, 8)
"""Token ids of a text on which TransformerLens' bridge is compared with the model."""
_TOLERANCE = 1e-2
"""Allowed difference of logits between bridge and model, relative to the largest logit."""


@dataclass(frozen=True, eq=False)
@checked_result
class OpenedRollout:
    """The predictions and activations of a language model in a batch of episodes.

    Attributes:
        predictions: probability of outcome 1, ``[episode, round]``.
        cache: name of a hook -> activations, Float[episode, round, position, ...].
        positions: labels of the position axis: "answer" (where the answer begins), "Expert_A", ...
            (the experts' votes) and, with notes, "count_A", ... (their counts in the note). Counts
            are NaN in the first round, which has no note.
        episodes: the episodes that were played.
        settings: the model, its prompt, the condition and versions.
    """

    predictions: Tensor
    cache: dict[str, Tensor]
    positions: tuple[str, ...]
    episodes: ExpertEpisodes
    settings: dict[str, Any] = field(repr=False)

    def at(self, name: str, position: str = ANSWER) -> Tensor:
        """Return the activations of one hook at one position, Float[episode, round, ...], for
        ``probes.fit``.

        Args:
            name: name of the hook.
            position: label of the position.
        """
        require_known("cached hook point", name, self.cache)
        require_known("position", position, self.positions)
        return self.cache[name][:, :, self.positions.index(position)]


@dataclass(frozen=True, eq=False)
class _Patch(Result):
    """Results of patching one input in one round. The input is an expert's vote, or its count: the
    number of its right votes in the note that the prompt contains. Each hook is patched separately.

    The logit difference is the logit of outcome 1 minus that of outcome 0. The model chooses
    outcome 1 if the difference is positive.

    Attributes:
        names: names of the hooks.
        before: logit difference without a patch, Float[episode].
        full: change of the logit difference if the prompt itself is changed: the vote is replaced
            by its opposite, or the count by another number, Float[episode].
        patched: change of the logit difference if the prompt stays, and the activation at a hook
            takes the value that it has under the changed prompt, Float[hook, episode].
        control: change of the logit difference if the patch's change of the activation is added at
            the vote, or the count, of another expert instead, Float[hook, episode].
        settings: the model, its prompt, the condition, the patch and versions.
    """

    names: tuple[str, ...]
    before: np.ndarray
    full: np.ndarray
    patched: np.ndarray
    control: np.ndarray
    settings: dict[str, Any] = field(repr=False)

    def to_frame(self) -> pd.DataFrame:
        """Return a table with one row per hook.

        ``restored`` is the share of the full effect that the patch restores (a ratio of sums over
        episodes), with its 95 % interval; NaN without a full effect. ``restored_moves`` is the
        share of episodes in which the patch changes the choice. ``control`` and ``control_moves``
        are the same two shares for the control. ``full`` is the mean size of the full effect in nats,
        ``full_moves`` the share of episodes in which it changes the choice.
        """
        full_size = float(np.abs(self.full).mean())
        # If the full effect is only rounding, no share of it exists: all shares are NaN.
        scale = full_size if full_size > _LEAST_EFFECT else np.nan
        table = pd.DataFrame({"hook": self.names})
        for label, effects in {"restored": self.patched, "control": self.control}.items():
            # An effect counts as positive in the direction of the full effect. All are divided by
            # the mean size of full effects, so that the mean over episodes is a ratio of sums: the
            # sum of effects over the sum of sizes of full effects.
            shares = np.sign(self.full) * effects / scale  # [hook, episode]
            interval_columns = [
                mean_interval(shares_of_hook).columns(label) for shares_of_hook in shares
            ]
            table = table.join(pd.DataFrame(interval_columns))
            table[f"{label}_moves"] = self._compute_moved_share(effects)
        return table.assign(full=full_size, full_moves=self._compute_moved_share(self.full))

    def _compute_moved_share(self, effects: np.ndarray) -> Any:
        """Return the share of episodes in which a change of the logit difference changes the
        choice.

        Args:
            effects: changes of the logit difference, ``[..., episode]``.

        Returns:
            Shares ``[...]``.
        """
        is_moved = (self.before > 0) != (self.before + effects > 0)
        return is_moved.mean(axis=-1)


class Opened:
    """A chat model that runs in this process, in a TransformerLens bridge, which adds hooks to the
    modules of the model. It can play episodes of expert advice.

    Args:
        bridge: the model with hooks, made by TransformerLens.
        tokenizer: the model's tokenizer.
        name: name of the model, for the settings of results.
        prompt: system prompt; None for the built-in one.
        condition: wording of outcomes and kind of notes, such as "online-note-only".
        untrained: seed with which the model's weights were drawn at random, for the settings of
            results; None for trained weights.
    """

    def __init__(
        self,
        bridge: Any,
        tokenizer: Any,
        name: str,
        prompt: str | None = None,
        condition: str = _CONDITION,
        untrained: int | None = None,
    ):
        """Store a model that is loaded already; :meth:`load` loads and checks one."""
        self.bridge = bridge
        self.tokenizer = tokenizer
        self.name = name
        self.prompt = prompt
        self.untrained = untrained
        self.condition = Condition.parse(condition)

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
        """Load a chat model with hooks.

        Args:
            name: a folder, a ``.gguf`` file, or a name in Hugging Face's cache.
            device: device to run on.
            prompt: system prompt that replaces the built-in one; None for the built-in one.
            untrained: seed for random weights of the same shape, as a control; None loads the
                trained weights.
            condition: wording of outcomes and kind of notes, such as "online-note-only".

        Raises:
            InputError: if the model cannot be loaded, or TransformerLens cannot reproduce its
                logits.
        """
        Condition.parse(condition)  # refuses an unknown condition before the model is loaded
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
            expected_logits = model(some_ids).logits
        try:
            bridge = build_bridge_from_module(
                model, kind, hf_config=model.config, tokenizer=tokenizer
            )
        except (ValueError, KeyError, AttributeError) as error:
            raise InputError(
                f"TransformerLens has no bridge for {kind}: {error}; choose another model"
            ) from error
        opened = cls(bridge, tokenizer, name, prompt, condition, untrained)
        require(
            _are_equal_up_to_rounding(opened.logits([_SOME_IDS]), expected_logits),
            f"TransformerLens' bridge to {kind} gives other logits than the model itself; choose another model, or the "
            "tested releases of constraints.txt",
        )
        return opened

    def logits(
        self, rows: Sequence[Sequence[int]], kv_cache: Any = None, hooks: Sequence[Any] = ()
    ) -> Tensor:
        """Return the logits after every token of texts that have the same number of tokens,
        Float[text, token, vocabulary].

        Args:
            rows: token ids of each text, without those in the cache.
            kv_cache: key-value cache of earlier tokens, which is extended; None for no cache.
            hooks: pairs (name of a hook, function ``(activation, hook)`` -> the new activation, or
                None to leave it unchanged), as for ``fwd_hooks`` of TransformerLens.
        """
        import torch

        model = self.bridge.original_model
        device = next(model.parameters()).device
        # The argument for the cache has another name in some architectures, as their forward says.
        cache_arguments = fill_cache(type(model).forward, kv_cache)
        cache_arguments["use_cache"] = kv_cache is not None
        with torch.no_grad():
            logits: Tensor = self.bridge.run_with_hooks(
                torch.tensor(rows, device=device),
                fwd_hooks=hooks,
                return_type="logits",
                **cache_arguments,
            )
        return logits

    def make_cache(self) -> Any:
        """Return an empty key-value cache."""
        from transformers import DynamicCache

        return DynamicCache(config=self.bridge.original_model.config)

    @cached_property
    def can_use_cache(self) -> bool:
        """True if the model with hooks gives the right logits when earlier tokens come from a
        key-value cache (docs/method/opened.md).
        """
        # The logits in the second half of a text, once with the first half from the cache, and once
        # computed from the whole text.
        half = len(_SOME_IDS) // 2
        kv_cache = self.make_cache()
        self.logits([_SOME_IDS[:half]], kv_cache)
        if kv_cache.get_seq_length() != half:  # the model did not write into the cache
            return False
        second_half = self.logits([_SOME_IDS[half:]], kv_cache)
        whole = self.logits([_SOME_IDS])
        return _are_equal_up_to_rounding(second_half, whole[:, half:])

    def residuals(self, every: int = 1) -> tuple[str, ...]:
        """Return the names of the hooks at the residual stream: after the embedding, and after
        every ``every``-th block, counted back from the last block. With 6 blocks (0 to 5) and
        ``every=2`` these are the blocks 1, 3 and 5.
        """
        n_blocks = len(self.bridge.blocks)
        blocks = range((n_blocks - 1) % every, n_blocks, every)
        return ("embed.hook_out", *(f"blocks.{block}.hook_out" for block in blocks))

    def play(self, episodes: ExpertEpisodes, names: Sequence[str], batch: int = 8) -> OpenedRollout:
        """Play episodes, and record the activations of hooks at a few positions of every round.

        The positions have labels: "answer" (where the answer begins), "Expert_A", ... (the experts'
        votes) and, in a condition with notes, "count_A", ... (their counts in the note). The model
        answers with the likelier of the two outcomes. It does not write the notes: every note has
        the true counts of right votes.

        Args:
            episodes: the episodes to play.
            names: names of the hooks.
            batch: number of episodes at a time.

        Returns:
            An object with ``predictions`` (probability of outcome 1, ``[episode, round]``) and
            ``cache`` (name of a hook -> activations, Float[episode, round, position, ...]). Its
            method ``at(name, position)`` selects the activations of one hook at one position.
        """
        import torch

        self._require_hooks(names)
        predictions = []
        caches: dict[str, list[Tensor]] = {name: [] for name in names}
        for conversations in self._list_batches(episodes, batch):
            # For each round (probabilities, activations), of all episodes of the batch.
            rounds = [conversations.play_round(names) for _ in range(episodes.n_rounds)]
            predictions.append(torch.stack([probabilities for probabilities, _ in rounds], dim=1))
            for name, parts in caches.items():
                parts.append(torch.stack([activations[name] for _, activations in rounds], dim=1))
        cache = {name: torch.cat(parts) for name, parts in caches.items()}
        positions = [ANSWER, *expert_keys(episodes.n_experts)]
        if self.condition.has_note:
            for activations in cache.values():  # no count stands before the first round
                activations[:, 0, len(positions) :] = torch.nan
            positions += [f"count_{letter}" for letter in expert_letters(episodes.n_experts)]
        return OpenedRollout(
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
        """Patch the activations at one expert's vote, or at its count of right votes in the note,
        and measure the effect on the model's prediction.

        In the changed prompt, the vote of one round is its opposite, or the count is another
        number. A patch leaves the prompt unchanged. At the position of the vote or count, it gives
        one hook the activation that this hook has under the changed prompt. The hooks are patched
        one at a time.

        Args:
            of: "vote", or "count" for the count in the note that the round begins with.
            episodes: the episodes to play.
            expert: index of the expert.
            round: index of the round.
            names: names of the hooks; by default those of the residual stream (:meth:`residuals`).
            batch: number of episodes at a time.

        Returns:
            An object with changes of the logit difference (outcome 1 minus outcome 0):

            * ``full``: by the changed prompt, Float[episode];
            * ``patched``: by the patch of each hook, Float[hook, episode];
            * ``control``: by a control, which adds the same change of activations at the vote or
              count of another expert, Float[hook, episode].

            Its ``to_frame()`` has one row per hook. The columns restored and control are the
            effects of the patch and of the control, as shares of the effect of the changed prompt.
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
        integer("expert", expert, 0, episodes.n_experts - 1)
        integer("round", round, 0, episodes.n_rounds - 1)
        effects = []  # of each batch: the arrays before, full, patched and control
        for conversations in self._list_batches(episodes, batch):
            for _ in range(round):  # the rounds before the patch, without recording
                conversations.play_round(())
            effects.append(conversations.patch(of, expert, names))
        # The last axis of each array is that of episodes.
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

    def _settings(self, **settings: Any) -> dict[str, Any]:
        """Return what is recorded with a result: the model, the settings that it was opened with,
        and the ``settings`` of the analysis.
        """
        return provenance(
            model=self.name,
            prompt=self.prompt,  # None: the built-in one
            untrained=self.untrained,
            condition=self.condition.name,
            forced_format=True,
            **settings,
        )

    def _require_hooks(self, names: Sequence[str]) -> None:
        for name in names:
            require_known("hook point", name, self.bridge.hook_dict)

    def _list_batches(self, episodes: ExpertEpisodes, batch: int) -> Iterator[_Conversations]:
        for start in range(0, len(episodes), batch):
            yield _Conversations(self, episodes.select(slice(start, start + batch)))


@dataclass(frozen=True, eq=False)
class _Prompt:
    """The text and tokens of a conversation, up to the token at which the model chooses its answer.

    Attributes:
        ids: token ids of the conversation, including those with which every answer begins.
        text: text of the conversation, without the beginning of the answer.
        encoding: the tokenizer's map from characters of the text to tokens.
    """

    ids: list[int]
    text: str
    encoding: Any

    def find_place(self, pattern: str) -> int:
        """Find the last match of a pattern in the text, and return the position of the token with
        the last character of the match's group 1.

        Args:
            pattern: regular expression with a group; it must match.

        Returns:
            The position, counted from the end of ``ids``: -1 is the last token.
        """
        *_, match = re.finditer(pattern, self.text)
        token: int = self.encoding.char_to_token(match.end(1) - 1)
        return token - len(self.ids)


class _Conversations:
    """Episodes that a language model plays in parallel, one conversation per episode.

    One key-value cache serves all conversations (attribute ``kv_cache``). If the model's
    TransformerBridge cannot use a cache, ``kv_cache`` is None, and each conversation is read from
    its beginning for every reply.

    Args:
        opened: the language model, with the setup of its prompts.
        episodes: the episodes to play.
    """

    def __init__(self, opened: Opened, episodes: ExpertEpisodes) -> None:
        """Begin a session for each episode, with an empty cache."""
        self.opened = opened
        self.condition = opened.condition
        self.tokenizer = opened.tokenizer
        self.kv_cache = opened.make_cache() if opened.can_use_cache else None
        # Token ids of each conversation that the cache holds.
        self.cached_ids: list[list[int]] = [[] for _ in episodes.advice]
        self.n_experts = episodes.n_experts
        # Both answers begin with the same tokens; the next token decides between them.
        self.shared_ids, self.deciding_ids, self.texts = tokenize_answers(
            opened.tokenizer, opened.condition
        )
        built_in = built_in_prompts(episodes.n_experts)[opened.condition.scheme].text
        self.sessions = []
        for advice, labels in zip(episodes.advice, episodes.labels, strict=True):
            session = Session(opened.condition, opened.prompt or built_in, advice, labels)
            self.sessions.append(session)

    def play_round(self, names: Sequence[str]) -> tuple[Tensor, dict[str, Tensor]]:
        """Play one round, and add the answers to the conversations.

        Args:
            names: names of the hooks to record.

        Returns:
            The probability of outcome 1, Float[episode], and name of a hook -> its activations,
            Float[episode, position, ...]. The positions are those of :meth:`Opened.play`: where
            the answer begins, the experts' votes and, with notes, their counts.
        """
        prompts = self._list_prompts()
        # Positions to record, [episode][label], counted from the end; -1 is where the answer begins.
        places = [[-1, *self._find_places(prompt, "vote")] for prompt in prompts]
        if self.condition.has_note:
            is_first = not self.sessions[0].predictions
            for prompt, row in zip(prompts, places, strict=True):
                # The first round has no counts. Its entries are filled with the last position, and
                # replaced by NaN later.
                row += [-1] * self.n_experts if is_first else self._find_places(prompt, "count")
        # Everything from the earliest of these positions on is computed again, and not taken from
        # the cache.
        n_anew = -min(map(min, places))
        logits, activations = self._run_recording(prompts, names, places, n_anew)
        logit_pairs = logits[:, list(self.deciding_ids)].float()  # [episode, outcome]
        probabilities = logit_pairs.softmax(dim=-1)[:, 1].cpu()
        for session, probability in zip(self.sessions, probabilities.tolist(), strict=True):
            outcome = int(probability > 0.5)
            session.feed(self.texts[outcome])
            # The model writes no notes: each has the true counts of right votes.
            if self.condition.has_note:
                n_rounds = len(session.predictions)
                is_right = session.advice[:n_rounds] == session.labels[:n_rounds, None]
                note = write_counts(is_right.sum(axis=0).tolist(), n_rounds)
                session.feed(json.dumps({"note": note}))
        return probabilities, activations

    def patch(self, kind: str, expert: int, names: Sequence[str]) -> tuple[np.ndarray, ...]:
        """Patch one expert's vote or count in the next round, at one hook at a time.

        Args:
            kind: "vote" or "count".
            expert: index of the expert.
            names: names of the hooks.

        Returns:
            The arrays ``before``, ``full``, ``patched`` and ``control`` of :class:`_Patch`: the
            logit difference without a patch, and its changes.
        """
        prompts = self._list_prompts()
        changed_prompts = self._list_prompts(changed=(kind, expert))
        other_expert = (expert + 1) % self.n_experts  # for the control
        # Places of the tokens to patch, and of those of the control, [episode][token], counted from
        # the end.
        patched_places, control_places = [], []
        for prompt, changed in zip(prompts, changed_prompts, strict=True):
            require(
                len(prompt.ids) == len(changed.ids),
                "a vote and its opposite are not equally many tokens for this model, so that the tokens of the changed "
                "prompt stand at other positions; choose another framing (online) or model",
            )
            places = self._find_places(prompt, kind)
            # Tokens are patched from the first in which the prompts differ up to the last of the vote
            # or count. Places are negative, since they are counted from the end.
            first_changed = count_common_start(prompt.ids, changed.ids) - len(prompt.ids)
            n_tokens = 1 + places[expert] - first_changed
            patched_places.append([places[expert] - back for back in range(n_tokens)])
            control_places.append([places[other_expert] - back for back in range(n_tokens)])
        # Number of last tokens to compute again; those before the earliest place come from the cache.
        n_anew = -min(map(min, patched_places + control_places))
        logits, activations = self._run_recording(prompts, names, patched_places, n_anew)
        changed_logits, changed_activations = self._run_recording(
            changed_prompts, names, patched_places, n_anew
        )
        before = self._compute_logit_difference(logits)
        full = self._compute_logit_difference(changed_logits) - before
        effects = []
        # The control adds the same difference at the tokens of another expert.
        for changed_places in (patched_places, control_places):
            changes = []
            for name in names:
                difference = changed_activations[name] - activations[name]
                hook = partial(_add_at_places, difference, changed_places)
                logits = self._compute_logits(prompts, {name: hook}, n_anew)
                changes.append(self._compute_logit_difference(logits) - before)
            effects.append(np.stack(changes))  # [hook, episode]
        patched, control = effects
        return before, full, patched, control

    def _run_recording(
        self,
        prompts: Sequence[_Prompt],
        names: Sequence[str],
        places: list[list[int]],
        n_anew: int,
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """Run the model on every conversation, and record activations.

        Args:
            prompts: what the model reads.
            names: names of the hooks to record.
            places: for each episode, the indices of the tokens to record, counted from the end (-1
                is the last token); equally many in every episode.
            n_anew: number of last tokens that must be computed again. Earlier ones may come from
                the cache of an earlier call; hooks do not act on these.

        Returns:
            The logits after the last token, Float[episode, vocabulary], and name of a hook -> its
            activations, Float[episode, place, ...].
        """
        activations: dict[str, Tensor] = {}
        hooks = {name: partial(_record_at_places, activations, name, places) for name in names}
        logits = self._compute_logits(prompts, hooks, n_anew)
        missing = [name for name in names if name not in activations]
        require(not missing, f"the hook points {', '.join(missing)} did not fire; choose others")
        return logits, activations

    def _list_prompts(self, changed: tuple[str, int] | None = None) -> list[_Prompt]:
        """Return the text and tokens of every conversation, up to the token at which the model
        chooses its answer.

        Args:
            changed: if given, ("vote" or "count", index of an expert): what to change in the last
                message.
        """
        prompts = []
        for session in self.sessions:
            request = session.next()
            assert request is not None, "no round is played after the last one"
            messages = list(request.messages)
            if changed is not None:
                messages[-1] = self._change_message(messages[-1], *changed)
            text = render_prompt(self.tokenizer, messages)
            encoding = self.tokenizer(text, add_special_tokens=False)
            # Both answers begin with the tokens `shared_ids`; the model chooses at the token after.
            ids = encoding["input_ids"] + self.shared_ids
            prompts.append(_Prompt(ids=ids, text=text, encoding=encoding))
        require(
            len({len(prompt.ids) for prompt in prompts}) == 1,
            "the rounds of the episodes are not equally many tokens for this model; play them one at a time (batch=1)",
        )
        return prompts

    def _find_places(self, prompt: _Prompt, kind: str) -> list[int]:
        """Find each expert's vote, or its count in the note, among the tokens of the last message.

        Args:
            prompt: text and tokens of a conversation.
            kind: "vote" or "count".

        Returns:
            For each expert, the index of the last token of its vote or count, counted from the end
            (so it is negative).
        """
        # The group of each pattern, in parentheses, matches the vote or count itself.
        if kind == "vote":  # such as "Expert_A": 1, or "Expert_A": "sunny"
            words = "|".join(str(word) for word in self.condition.words)
            keys = expert_keys(self.n_experts)
            return [prompt.find_place(f'"{key}": ?"?({words})') for key in keys]
        letters = expert_letters(self.n_experts)
        return [prompt.find_place(rf"\b{letter}: ?(\d+)/") for letter in letters]  # A:45/100

    def _change_message(self, message: Message, kind: str, expert: int) -> Message:
        """Return the message with one thing changed about one expert: its vote is replaced by the
        opposite vote, or its count in the note by another count.

        Args:
            message: the message.
            kind: what to change, "vote" or "count".
            expert: index of the expert.
        """
        body = read_message(message)
        if kind == "vote":
            key = expert_keys(self.n_experts)[expert]
            zero_word, one_word = self.condition.words
            body[key] = one_word if body[key] == zero_word else zero_word
        else:
            letter = expert_letters(self.n_experts)[expert]
            body["note"] = _replace_count(body["note"], letter)
        return user_message(body)

    def _compute_logits(
        self, prompts: Sequence[_Prompt], hooks: dict[str, Any], n_anew: int
    ) -> Tensor:
        """Return the logits after the last token of each conversation, Float[episode, vocabulary].

        Args:
            prompts: what the model reads.
            hooks: name of a hook -> function.
            n_anew: number of last tokens that must be computed again, because hooks act on them;
                earlier tokens may come from the cache of an earlier call.
        """
        rows = [prompt.ids for prompt in prompts]
        start = 0  # number of tokens that are taken from the cache
        if self.kv_cache is not None:
            # The cache is used up to where any conversation differs from its cached tokens, and
            # not for the last tokens, which must be computed again.
            n_shared = list(map(count_common_start, rows, self.cached_ids))
            start = min(*n_shared, len(rows[0]) - n_anew)
            n_outdated = self.kv_cache.get_seq_length() - start
            if n_outdated > 0:
                self.kv_cache.crop(-n_outdated)  # a negative number crops from the end
        self.cached_ids = rows
        new_tokens = [row[start:] for row in rows]
        # Each hook is preceded by a check that the first two axes of its activation are
        # conversations and tokens.
        check_axes = partial(_require_axes, (len(rows), len(new_tokens[0])))
        checks = [(name, check_axes) for name in hooks]
        logits = self.opened.logits(new_tokens, self.kv_cache, [*checks, *hooks.items()])
        return logits[:, -1]

    def _compute_logit_difference(self, logits: Tensor) -> np.ndarray:
        pairs = logits[:, list(self.deciding_ids)].double().cpu().numpy()  # [episode, outcome]
        return np.asarray(pairs[:, 1] - pairs[:, 0])


def _are_equal_up_to_rounding(logits: Tensor, others: Tensor) -> bool:
    """Return True if two arrays of logits differ nowhere by more than :data:`_TOLERANCE` times the
    largest logit of ``others``.
    """
    largest_difference = (logits - others).abs().max()
    return bool(largest_difference <= _TOLERANCE * others.abs().max())


def _replace_count(note: str, letter: str) -> str:
    """Return a note in which the count of the expert ``letter`` is replaced by the most distant
    count with the same number of digits.

    >>> _replace_count("A:3/9, B:8/9", "B")
    'A:3/9, B:0/9'
    """
    match = re.search(rf"\b{letter}:(\d+)/(\d+)", note)
    assert match is not None, "the note holds every count"
    count, n_rounds = int(match[1]), int(match[2])
    n_digits = len(match[1])
    # The same number of digits, so that the changed prompt may have as many tokens.
    lowest = 10 ** (n_digits - 1) if n_digits > 1 else 0
    highest = min(10**n_digits - 1, n_rounds)
    farthest = highest if highest - count > count - lowest else lowest
    require(
        farthest != count,
        f"the note {note!r} has no other count of as many digits for expert {letter}; patch a count in another round",
    )
    return f"{note[: match.start(1)]}{farthest}{note[match.end(1) :]}"


def _require_axes(sizes: tuple[int, int], value: Tensor, hook: Any) -> None:
    """Refuse a hook point whose activations are not ``[conversation, token, ...]``; used as a hook
    function. An attention pattern is refused, for instance: it is ``[conversation, head, token,
    token]``.

    Args:
        sizes: numbers of conversations and of tokens that the model reads.
        value: the activation.
        hook: the hook point.
    """
    require(
        value.shape[:2] == sizes,
        f"the activations of the hook point {hook.name} have no axis of tokens after that of episodes (their shape is "
        f"{tuple(value.shape)}); choose others, such as those of residuals()",
    )


def _record_at_places(
    cache: dict[str, Tensor], name: str, places: list[list[int]], value: Tensor, hook: Any
) -> None:
    """Store the activation of one hook at some tokens; used as a hook function.

    Args:
        cache: dictionary in which ``cache[name]`` is set to the stored activations, ``[episode,
            place, ...]``.
        name: name of the hook.
        places: for each episode, the indices of the tokens, counted from the end (-1 is the last
            token); equally many in every episode.
        value: the activation of the hook, ``[episode, token, ...]``.
        hook: the hook point; not used.
    """
    import torch

    # value is [episode, token, ...]; the stored activations are [episode, place, ...].
    rows = [activations[row] for activations, row in zip(value, places, strict=True)]
    cache[name] = torch.stack(rows).detach().float().cpu()


def _add_at_places(difference: Tensor, places: list[list[int]], value: Tensor, hook: Any) -> Tensor:
    """Return an activation with a difference added at some tokens; used as a hook function.

    Args:
        difference: what is added, ``[episode, place, ...]``.
        places: for each episode, the indices of the tokens, counted from the end (-1 is the last
            token).
        value: the activation of the hook, ``[episode, token, ...]``.
        hook: the hook point; not used.
    """
    value = value.clone()
    for episode, row in enumerate(places):
        value[episode, row] += difference[episode].to(value)
    return value
