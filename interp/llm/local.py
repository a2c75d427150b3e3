"""A model in this process: Hugging Face weights, no server, the episodes in one batch.

Answers are the same in every run of the same command: at temperature 0 the likeliest token is taken (the lower id of
two that tie), above 0 each request draws from a generator of its own seed. With ``response_format="grammar"`` every
answer is usable, which is then a property of the format and not of the model. What a batch changes:
docs/method/traces.md.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from interp.llm.backend import THINKING_OFF, Backend, ContextOverflowError, Reply, Settings
from interp.llm.schemes import Condition, Message, Turn
from interp.support.checks import checked
from interp.support.errors import InputError, require, require_known

if TYPE_CHECKING:
    import torch

_LONGEST_NOTE = 120  # tokens of a note under "grammar", so that a small model ends it


@checked
def load_model(name: str, device: str = "cpu") -> tuple[Any, Any]:
    """``(model, tokenizer)`` of a folder, a ``.gguf`` file or a name in Hugging Face's cache; nothing is downloaded."""
    if find_spec("transformers") is None:
        raise InputError(
            "a model in this process needs transformers: pip install 'latent-context-interp[local]'"
        )
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    path = Path(name)
    is_gguf = path.suffix == ".gguf"
    more: dict[str, Any] = {"local_files_only": True} | (
        {"gguf_file": path.name} if is_gguf else {}
    )
    source = str(path.parent) if is_gguf else name
    dtype: Any = torch.float32 if device == "cpu" else "auto"
    try:
        tokenizer = AutoTokenizer.from_pretrained(source, **more)
        found, info = AutoModelForCausalLM.from_pretrained(
            source, dtype=dtype, output_loading_info=True, **more
        )
        model = found.to(device).eval()
    except (OSError, ValueError, ImportError, RuntimeError) as error:
        why = " ".join(str(error).split())[:300]
        if path.is_dir() and not (path / "config.json").exists():
            why = "the folder has no config.json (one of traces is read by `interp llm score`)"
        elif isinstance(error, OSError) and not path.exists():
            why = "there is no such folder or file, nor such a name in Hugging Face's cache, and nothing is downloaded"
        raise InputError(
            f"cannot load the model {name!r}: {why}; give a folder "
            "with config.json and weights, a .gguf file, or a name that `hf download NAME` has put into the cache"
        ) from error
    wrong = sorted(
        {
            *info["missing_keys"],
            *info["unexpected_keys"],
            *(key for key, *_ in info["mismatched_keys"]),
        }
    )
    require(
        not wrong,
        f"the weights of {name!r} do not fit its configuration at {', '.join(wrong[:5])}: left out, they would be "
        "drawn at random, or not used; fetch the model again",
    )
    require(
        bool(getattr(tokenizer, "chat_template", None)),
        f"{name!r} has no chat template, so it is no chat model; choose one that was tuned to follow instructions",
    )
    return model, tokenizer


def prompt_ids(tokenizer: Any, messages: Sequence[Message], thinking_off: str = "") -> list[int]:
    """The tokens of a conversation by the model's own chat template, ready for the answer."""
    more = THINKING_OFF[thinking_off].get("chat_template_kwargs", {})
    try:
        text = tokenizer.apply_chat_template(
            list(messages), tokenize=False, add_generation_prompt=True, **more
        )
    except Exception as error:  # a template may raise anything
        raise InputError(
            f"the chat template of the model refuses the conversation ({type(error).__name__}: {error}); try a "
            "condition with other turns (note-only has one message a call) or another model"
        ) from error
    return list(tokenizer(text, add_special_tokens=False)["input_ids"])


def answers(
    tokenizer: Any, condition: Condition
) -> tuple[list[int], tuple[int, int], tuple[str, str]]:
    """What both valid predictions begin with, the token after it in each (outcome 0, outcome 1), and their texts."""
    zero, one = (json.dumps({"prediction": word}) for word in condition.words)
    first, second = (
        list(tokenizer(text, add_special_tokens=False)["input_ids"]) for text in (zero, one)
    )
    n = next(i for i, (a, b) in enumerate(zip(first, second, strict=False)) if a != b)
    return first[:n], (first[n], second[n]), (zero, one)


@dataclass(eq=False)
class _Waiting:
    ids: list[int]
    condition: Condition
    turn: Turn
    seed: int
    answer: asyncio.Future[Reply]


class LocalBackend(Backend):
    """A model in this process."""

    def __init__(self, settings: Settings, concurrency: int = 4, device: str = "cpu"):
        require_known(
            "response format of a model in this process",
            settings.response_format,
            ("none", "grammar"),
        )
        require(concurrency >= 1, f"concurrency must be 1 or more, got {concurrency}")
        self.settings, self.concurrency = settings, concurrency
        self.model, self.tokenizer = load_model(settings.model, device)
        self.address = f"transformers on {device}"
        self._context = int(getattr(self.model.config, "max_position_embeddings", 0) or 10**9)
        self._waiting: list[_Waiting] = []
        self._task: asyncio.Task[None] | None = None

    async def ask(
        self, messages: Sequence[Message], condition: Condition, turn: Turn, seed: int
    ) -> Reply:
        """The model's answer; requests that wait at the same time are answered in one batch.

        Raises:
            ContextOverflowError: the conversation is longer than the model's context.
        """
        ids = prompt_ids(self.tokenizer, messages, self.settings.thinking_off)
        if len(ids) >= self._context - 16:
            raise ContextOverflowError(
                f"{len(ids)} prompt tokens do not fit into a context of {self._context}"
            )
        future: asyncio.Future[Reply] = asyncio.get_running_loop().create_future()
        self._waiting.append(_Waiting(ids, condition, turn, seed, future))
        if self._task is None:
            self._task = asyncio.create_task(self._answer_all())
        return await future

    async def _answer_all(self) -> None:
        """Once no more requests come in, answer those that wait, those of one kind together."""
        before = -1
        while before != len(self._waiting):
            before = len(self._waiting)
            await asyncio.sleep(0)
        batch, self._waiting, self._task = self._waiting, [], None
        for kind in dict.fromkeys((one.condition, one.turn) for one in batch):
            some = [one for one in batch if (one.condition, one.turn) == kind]
            try:
                replies = await asyncio.to_thread(self._answer, some)
            except Exception as error:
                for one in some:
                    if not one.answer.done():
                        one.answer.set_exception(error)
                continue
            for one, reply in zip(some, replies, strict=True):
                if not one.answer.done():  # the run was interrupted meanwhile
                    one.answer.set_result(reply)

    def _answer(self, batch: Sequence[_Waiting]) -> list[Reply]:
        start = time.monotonic()
        forced = self.settings.response_format == "grammar"
        if forced and batch[0].turn == "prediction":  # the likelier of the two valid predictions
            begin, choices, both = answers(self.tokenizer, batch[0].condition)
            logits, _, _ = self._forward([one.ids + begin for one in batch])
            texts = [
                (both[int(pair[1] > pair[0])], "stop", len(begin) + 1)
                for pair in logits[:, list(choices)]
            ]
        else:
            texts = self._write(batch, forced)
        seconds = round((time.monotonic() - start) / len(batch), 4)
        replies = []
        for one, (text, finish, n) in zip(batch, texts, strict=True):
            usage = {"prompt_tokens": len(one.ids), "completion_tokens": n}
            replies.append(Reply(text, finish, self.settings.model, usage=usage, seconds=seconds))
        return replies

    def _write(self, batch: Sequence[_Waiting], forced: bool) -> list[tuple[str, str, int]]:
        """Token by token, until every answer has ended."""
        import torch

        prefix = (
            list(self.tokenizer('{"note": "', add_special_tokens=False)["input_ids"])
            if forced
            else []
        )
        room = self._context - max(len(one.ids) for one in batch) - len(prefix)
        draws = [torch.Generator().manual_seed(one.seed) for one in batch]
        written: list[list[int]] = [[] for _ in batch]
        ended = [""] * len(batch)
        ends = self.model.generation_config.eos_token_id
        stops = {*(ends if isinstance(ends, list) else [ends]), self.tokenizer.eos_token_id}
        logits, cache, mask = self._forward([one.ids + prefix for one in batch])
        for _ in range(
            min(self.settings.max_tokens or 2048, _LONGEST_NOTE if forced else room, room)
        ):
            tokens = [self._pick(row, draw) for row, draw in zip(logits, draws, strict=True)]
            for i, token in enumerate(tokens):
                if not ended[i]:
                    written[i].append(token)
                    last = self.tokenizer.decode([token]) if forced else ""
                    ended[i] = "stop" if token in stops or '"' in last or "\n" in last else ""
            if all(ended):
                break
            mask = torch.cat([mask, mask.new_ones(len(batch), 1)], dim=1)
            logits, cache = self._step(
                torch.tensor(tokens, device=mask.device)[:, None], mask, cache
            )
        answers = []
        for ids, end in zip(written, ended, strict=True):
            text = self.tokenizer.decode(ids, skip_special_tokens=True)
            if forced:
                note = text.split('"')[0].split("\n")[0].replace("\\", "")
                text, end = json.dumps({"note": note.strip()}, ensure_ascii=False), "stop"
            answers.append((text, end or "length", len(ids)))
        return answers

    def _pick(self, logits: torch.Tensor, draw: torch.Generator) -> int:
        import torch

        if not self.settings.temperature:
            return int(logits.argmax())
        shares = torch.softmax(logits.float().cpu() / self.settings.temperature, dim=-1)
        if self.settings.top_p is None:
            return int(torch.multinomial(shares, 1, generator=draw))
        ordered, order = shares.sort(descending=True, stable=True)
        ordered[ordered.cumsum(0) - ordered > self.settings.top_p] = 0
        return int(order[torch.multinomial(ordered, 1, generator=draw)])

    def _forward(self, rows: Sequence[list[int]]) -> tuple[torch.Tensor, Any, torch.Tensor]:
        """Logits after the last token of each row, the cache, and the mask; shorter rows are padded on the left."""
        import torch

        width = max(len(row) for row in rows)
        pad = self.tokenizer.pad_token_id if self.tokenizer.pad_token_id is not None else 0
        ids = torch.tensor(
            [[pad] * (width - len(row)) + row for row in rows], device=self.model.device
        )
        mask = torch.tensor(
            [[0] * (width - len(row)) + [1] * len(row) for row in rows], device=self.model.device
        )
        logits, cache = self._step(ids, mask, None)
        return logits, cache, mask

    def _step(self, ids: torch.Tensor, mask: torch.Tensor, cache: Any) -> tuple[torch.Tensor, Any]:
        import torch

        places = (mask.cumsum(dim=1) - 1).clamp(min=0)[:, -ids.shape[1] :]
        with torch.no_grad():
            out = self.model(
                ids, attention_mask=mask, position_ids=places, past_key_values=cache, use_cache=True
            )
        return out.logits[:, -1], out.past_key_values
