"""A backend with a Hugging Face model in this process; the episodes are played as one batch.

The same command always gives the same answers. At temperature 0 the likeliest token is chosen (the
lower id of two that tie). Above 0 each request samples from a random generator with the request's
seed. With ``response_format="grammar"`` a prediction is chosen among the two valid answers only, and
every answer is well-formed, which is then a property of the format and not of the model.
docs/method/traces.md says how batching affects answers.
"""

from __future__ import annotations

import asyncio
import json
import re
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from importlib.util import find_spec
from itertools import takewhile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from interp.llm.backend import THINKING_OFF, Backend, ContextOverflowError, Reply, Settings
from interp.llm.schemes import Condition, Message, Turn
from interp.support.checks import checked
from interp.support.errors import InputError, require, require_known

if TYPE_CHECKING:
    import torch

_LONGEST_NOTE = 120  # tokens of a note under "grammar", so that a small model ends it
_SHORTEST_ANSWER = 16  # tokens that the context must leave for an answer


@checked
def load_model(name: str, device: str = "cpu") -> tuple[Any, Any]:
    """Load a chat model and its tokenizer, without any download.

    Args:
        name: a folder, a ``.gguf`` file, or a name in Hugging Face's cache.
        device: device to load the model to.

    Returns:
        The model, in eval mode, and its tokenizer.

    Raises:
        InputError: if the name is unknown, the weights do not fit the configuration, or there is no
            chat template.
    """
    if find_spec("transformers") is None:
        raise InputError(
            "a model in this process needs transformers: pip install 'latent-context-interp[local]'"
        )
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    path = Path(name)
    source = name
    options: dict[str, Any] = {"local_files_only": True}
    if path.suffix == ".gguf":
        source = str(path.parent)
        options["gguf_file"] = path.name
    dtype: Any = torch.float32 if device == "cpu" else "auto"
    try:
        tokenizer = AutoTokenizer.from_pretrained(source, **options)
        model, loading = AutoModelForCausalLM.from_pretrained(
            source, dtype=dtype, output_loading_info=True, **options
        )
        model = model.to(device).eval()
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
    misfits = {key for key, *_ in loading["mismatched_keys"]}  # (key, shape, other shape)
    misfits.update(loading["missing_keys"], loading["unexpected_keys"])
    require(
        not misfits,
        f"the weights of {name!r} do not fit its configuration at {', '.join(sorted(misfits)[:5])}: left out, they "
        "would be drawn at random, or not used; fetch the model again",
    )
    require(
        getattr(tokenizer, "chat_template", None),
        f"{name!r} has no chat template, so it is no chat model; choose one that was tuned to follow instructions",
    )
    return model, tokenizer


def tokenize(tokenizer: Any, text: str) -> list[int]:
    """Return the list of token ids of ``text`` in the vocabulary of ``tokenizer``, without special
    tokens at its ends.
    """
    return list(tokenizer(text, add_special_tokens=False)["input_ids"])


def render_prompt(tokenizer: Any, messages: Sequence[Message], thinking_off: str = "") -> str:
    """Return a conversation as text in the format of the model's chat template, up to where the
    answer begins.

    Args:
        tokenizer: the tokenizer with the template.
        messages: the conversation.
        thinking_off: how the model's thinking before the answer is turned off, a key of
            ``THINKING_OFF``; "" leaves it on.
    """
    options = THINKING_OFF[thinking_off].get("chat_template_kwargs", {})
    try:
        text: str = tokenizer.apply_chat_template(
            list(messages), tokenize=False, add_generation_prompt=True, **options
        )
        return text
    except Exception as error:  # a template may raise anything
        raise InputError(
            f"the chat template of the model refuses the conversation ({type(error).__name__}: {error}); try a "
            "condition with other turns (note-only has one message a call) or another model"
        ) from error


def tokenize_answers(
    tokenizer: Any, condition: Condition
) -> tuple[list[int], tuple[int, int], tuple[str, str]]:
    """Tokenize the two valid predictions, such as ``{"prediction": 0}`` and ``{"prediction": 1}``.

    Args:
        tokenizer: the tokenizer.
        condition: wording of outcomes (0/1 or rainy/sunny), and whether the model writes notes.

    Returns:
        A tuple of three: the token ids that both texts begin with; the next token id of each text;
        and the two texts. Outcome 0 precedes outcome 1.
    """
    zero_text, one_text = (json.dumps({"prediction": word}) for word in condition.words)
    zero_ids = tokenize(tokenizer, zero_text)
    one_ids = tokenize(tokenizer, one_text)
    n_shared = count_common_start(zero_ids, one_ids)
    return zero_ids[:n_shared], (zero_ids[n_shared], one_ids[n_shared]), (zero_text, one_text)


def count_common_start(row: Sequence[Any], other: Sequence[Any]) -> int:
    """Return the length of the longest common beginning of two sequences, such as of token ids.

    >>> count_common_start([5, 6, 7], [5, 6, 8, 9])
    2
    """
    pairs = zip(row, other, strict=False)
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs))


@dataclass(eq=False)
class _QueuedRequest:
    """A request that waits for an answer.

    Attributes:
        ids: token ids of the prompt.
        condition: wording of outcomes (0/1 or rainy/sunny), and whether the model writes notes.
        turn: which answer is requested, "prediction" or "note".
        seed: sampling seed.
        answer: future that receives the reply.
    """

    ids: list[int]
    condition: Condition
    turn: Turn
    seed: int
    answer: asyncio.Future[Reply]


class LocalBackend(Backend):
    """A backend that answers with a Hugging Face model in this process.

    Args:
        settings: the model and everything that can change an answer; ``response_format`` must be
            "none" or "grammar". Settings that only a server can follow are refused, such as
            ``temperature=None``. With ``max_tokens=None`` an answer may fill the model's context.
        concurrency: number of episodes that are played at the same time. Requests that wait at the
            same time are answered in one batch.
        device: device on which the model runs.
    """

    def __init__(self, settings: Settings, concurrency: int = 4, device: str = "cpu"):
        """Load the model. Refuse settings that only a server can follow: ``extra_body``,
        ``send_seed=False``, ``thinking_off="deepseek"`` and ``temperature=None``. The class
        describes the arguments.
        """
        require_known(
            "response format of a model in this process",
            settings.response_format,
            ("none", "grammar"),
        )
        require(concurrency >= 1, f"concurrency must be 1 or more, got {concurrency}")
        differs_only_on_server = (
            settings.extra_body
            or not settings.send_seed
            or settings.thinking_off == "deepseek"
            or settings.temperature is None
        )
        require(
            not differs_only_on_server,
            "extra_body, send_seed=False, thinking_off='deepseek' and temperature=None do nothing for a model in this "
            "process, which no server answers for: leave them out",
        )
        self.settings = settings
        self.concurrency = concurrency
        self.address = f"transformers on {device}"
        self.model, self.tokenizer = load_model(settings.model, device)
        # Some configurations name no limit.
        self._context = getattr(self.model.config, "max_position_embeddings", None) or 10**9
        self._is_format_forced = settings.response_format == "grammar"
        self._waiting: list[_QueuedRequest] = []  # requests for the next batch
        self._answering: asyncio.Task[None] | None = None  # the task that will answer them

        from transformers import GenerationConfig

        # Tokens that end an answer: the tokenizer's, and those of the model's own configuration.
        ends = self.model.generation_config.eos_token_id  # one token id, several, or None
        end_ids = {self.tokenizer.eos_token_id, *(ends if isinstance(ends, list) else [ends])}
        self._end_ids = end_ids - {None}
        # A new configuration, since the model's own one may have a temperature and other options
        # that the user did not set.
        self.model.generation_config = GenerationConfig(
            eos_token_id=list(self._end_ids), pad_token_id=self.tokenizer.pad_token_id or 0
        )

    async def ask(
        self, messages: Sequence[Message], condition: Condition, turn: Turn, seed: int
    ) -> Reply:
        """Return the model's answer. Requests that wait at the same time are answered in one batch.

        Args:
            messages: the conversation so far.
            condition: wording of outcomes (0/1 or rainy/sunny), and whether the model writes notes.
            turn: which answer is requested, "prediction" or "note".
            seed: sampling seed; used at temperatures above 0.

        Raises:
            ContextOverflowError: if the conversation is longer than the model's context.
        """
        prompt = render_prompt(self.tokenizer, messages, self.settings.thinking_off)
        ids = tokenize(self.tokenizer, prompt)
        if len(ids) >= self._context - _SHORTEST_ANSWER:
            raise ContextOverflowError(
                f"{len(ids)} prompt tokens do not fit into a context of {self._context}"
            )
        future: asyncio.Future[Reply] = asyncio.get_running_loop().create_future()
        self._waiting.append(_QueuedRequest(ids, condition, turn, seed=seed, answer=future))
        # The first request of a batch starts the task that will answer the batch.
        if self._answering is None:
            self._answering = asyncio.create_task(self._answer_all())
        return await future

    async def _answer_all(self) -> None:
        """Wait until no more requests arrive, then answer all that are waiting. Requests of the
        same condition and turn (prediction or note) share a batch.
        """
        n_before = -1
        while n_before != len(self._waiting):
            n_before = len(self._waiting)
            await asyncio.sleep(0)  # lets the other episodes run until they wait, too
        batches: dict[tuple[Condition, Turn], list[_QueuedRequest]] = {}
        for request in self._waiting:
            batches.setdefault((request.condition, request.turn), []).append(request)
        # Requests that arrive from now on start a new task.
        self._waiting = []
        self._answering = None
        for batch in batches.values():
            try:
                replies = await asyncio.to_thread(self._answer_batch, batch)
            except Exception as error:
                for request in batch:
                    if not request.answer.done():
                        request.answer.set_exception(error)
                continue
            for request, reply in zip(batch, replies, strict=True):
                if not request.answer.done():  # it is, if the run was interrupted meanwhile
                    request.answer.set_result(reply)

    def _answer_batch(self, batch: Sequence[_QueuedRequest]) -> list[Reply]:
        """Return the replies to a batch of requests, which have the same condition and turn
        (prediction or note).
        """
        started = time.monotonic()
        is_choice = self._is_format_forced and batch[0].turn == "prediction"
        replies = self._choose_answers(batch) if is_choice else self._write_answers(batch)
        seconds = round((time.monotonic() - started) / len(batch), 4)
        return [replace(reply, seconds=seconds) for reply in replies]

    def _make_reply(self, request: _QueuedRequest, text: str, end: str, n_tokens: int) -> Reply:
        """Return a generated text as a reply, with its numbers of tokens.

        Args:
            request: the request that is answered.
            text: the generated text.
            end: why the text ended, "stop" or "length".
            n_tokens: number of generated tokens.
        """
        usage = {"prompt_tokens": len(request.ids), "completion_tokens": n_tokens}
        return Reply(text, end, model=self.settings.model, usage=usage)

    def _choose_answers(self, batch: Sequence[_QueuedRequest]) -> list[Reply]:
        """Return a reply to each request of a batch: one of the two valid predictions, at
        temperature 0 the one to which the model gives the higher probability. Used with
        ``response_format="grammar"``.
        """
        # Both answers begin with the same tokens; the next token decides between them.
        shared_ids, deciding_ids, texts = tokenize_answers(self.tokenizer, batch[0].condition)
        rows = [request.ids + shared_ids for request in batch]
        out = self._generate(
            rows, max_new_tokens=1, output_logits=True, return_dict_in_generate=True
        )
        pairs = out.logits[0][:, list(deciding_ids)]  # of the first new token, [request, outcome]
        # Temperature and noise are applied as to generated text. With this noise, taking the larger
        # logit samples from the softmax. The processors do not read token ids (None).
        for process in self._make_processors(batch):
            pairs = process(None, pairs)
        is_one = pairs[:, 1] > pairs[:, 0]
        n_tokens = len(shared_ids) + 1
        return [
            self._make_reply(request, texts[outcome], end="stop", n_tokens=n_tokens)
            for request, outcome in zip(batch, is_one.tolist(), strict=True)
        ]

    def _write_answers(self, batch: Sequence[_QueuedRequest]) -> list[Reply]:
        """Return generated replies to a batch of requests. With ``response_format="grammar"`` a
        reply is a note, which ends at a quotation mark or line break.

        All answers of a batch end where the request with the longest prompt has filled the model's
        context. A request with a shorter prompt whose answer is cut off by this is answered again,
        alone.
        """
        import torch

        def stop_at_end(ids: torch.Tensor, scores: Any, **_: Any) -> torch.Tensor:
            """Return which answers have ended, Bool[request]: those with a last token that ends an
            answer.

            Args:
                ids: tokens of the prompts and answers so far, Int[request, token].
                scores: not used.
            """
            has_ended = [self._ends_answer(token) for token in ids[:, -1].tolist()]
            return torch.tensor(has_ended, device=ids.device)

        prefix = []
        longest_answer = self.settings.max_tokens or self._context
        if self._is_format_forced:
            prefix = tokenize(self.tokenizer, '{"note": "')
            longest_answer = min(longest_answer, _LONGEST_NOTE)
        rows = [request.ids + prefix for request in batch]
        # Most new tokens that each request may have, and that all of them may have.
        limits = [min(longest_answer, self._context - len(row)) for row in rows]
        n_new = min(limits)
        n_read = max(map(len, rows))
        generated_ids = self._generate(
            rows,
            max_new_tokens=n_new,
            logits_processor=self._make_processors(batch),
            stopping_criteria=[stop_at_end],
        )
        new_ids = generated_ids[:, n_read:].tolist()  # without the prompts
        replies = []
        for request, ids, limit in zip(batch, new_ids, limits, strict=True):
            may_go_on = not any(map(self._ends_answer, ids))
            if may_go_on and limit > n_new:
                replies += self._write_answers([request])
            else:
                replies.append(self._read_answer(request, ids))
        return replies

    def _ends_answer(self, token: int) -> bool:
        """Return whether an answer ends with this token. A note under ``response_format="grammar"``
        also ends with a token that contains a quotation mark or a line break.
        """
        text = self.tokenizer.decode([token]) if self._is_format_forced else ""
        return token in self._end_ids or '"' in text or "\n" in text

    def _read_answer(self, request: _QueuedRequest, ids: Sequence[int]) -> Reply:
        """Return generated tokens as the reply to a request.

        Args:
            request: the request.
            ids: the new tokens; padding may follow the token that ends the answer.
        """
        # Number of tokens up to the first that ends the answer; 0 if there is none.
        n_to_end = next((n for n, token in enumerate(ids, 1) if self._ends_answer(token)), 0)
        n_tokens = n_to_end or len(ids)
        text = self.tokenizer.decode(ids[:n_tokens], skip_special_tokens=True)
        if self._is_format_forced:
            # The model writes JSON, in which a backslash only escapes what follows.
            note = re.split(r'["\n]', text)[0].replace("\\", "").strip()
            text = json.dumps({"note": note}, ensure_ascii=False)
        is_whole = n_to_end or self._is_format_forced  # a note is cut where its limit is reached
        return self._make_reply(
            request, text, end="stop" if is_whole else "length", n_tokens=n_tokens
        )

    def _generate(self, rows: Sequence[list[int]], **options: Any) -> Any:
        """Generate from prompts of different lengths, which are padded on the left, and return what
        Hugging Face's ``generate`` returns.

        Args:
            rows: token ids of each prompt.
            **options: arguments of ``generate``.
        """
        import torch
        from torch.nn.utils.rnn import pad_sequence

        tokens = [torch.tensor(row) for row in rows]
        ids = pad_sequence(tokens, batch_first=True, padding_side="left")  # [row, token]
        ones = [torch.ones_like(row) for row in tokens]
        mask = pad_sequence(ones, batch_first=True, padding_side="left")  # 0 at padding
        device = self.model.device
        return self.model.generate(ids.to(device), attention_mask=mask.to(device), **options)

    def _make_processors(self, batch: Sequence[_QueuedRequest]) -> list[Any]:
        """Return logits processors that make greedy decoding sample; an empty list at temperature
        0.

        They add Gumbel noise to the logits: the token with the largest sum is then a sample from the
        softmax of the logits (the Gumbel-max trick).

        Args:
            batch: the requests, each with the seed of its noise.
        """
        import torch
        from transformers import TemperatureLogitsWarper, TopPLogitsWarper

        if not self.settings.temperature:
            return []
        generators = [torch.Generator().manual_seed(request.seed) for request in batch]

        def add_noise(ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
            """Return the logits ``scores``, ``[request, token]``, with Gumbel noise added; ``ids``
            is not used.
            """
            n_tokens = scores.shape[1]
            # Minus the log of an exponential variable has a Gumbel distribution. Every request has
            # a generator, so that its noise does not depend on the other requests of the batch.
            exponentials = [
                torch.empty(n_tokens).exponential_(generator=generator) for generator in generators
            ]
            return scores - torch.stack(exponentials).log().to(scores)

        processors: list[Any] = [TemperatureLogitsWarper(self.settings.temperature)]
        if self.settings.top_p is not None:
            processors.append(TopPLogitsWarper(self.settings.top_p))
        return [*processors, add_noise]
