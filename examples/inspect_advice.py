"""The same instances as a task of Inspect (``pip install 'latent-context-interp[inspect]'``), and its logs as traces.

Inspect has the providers, the limits and the viewer; what is said in a round is the toolkit's, to the letter: the
solver drives :class:`~interp.llm.protocol.Session`. Its records go into the sample's store as the runner would write
them, so that :func:`write_traces` makes traces of a log that are replayed and checked like any other. A task file
beside this one::

    from inspect_ai import task
    from inspect_advice import expert_advice

    advice = task(expert_advice)                     # inspect eval FILE.py@advice --model PROVIDER/NAME -T n_rounds=20

Pacing, resuming within an episode and keys are Inspect's there; ``interp llm run`` has its own.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np

from interp.llm.backend import Reply, Settings
from interp.llm.plan import PAPER_REGIMES, folder_of, instances, plan
from interp.llm.protocol import Session, line_of, session_from
from interp.llm.runner import trace_record
from interp.llm.schemes import Condition, built_in_prompts, load_prompts
from interp.support.checks import checked
from interp.support.errors import InputError, require
from interp.support.files import file_to_write, json_values, write_atomic

_RECORDS = "interp-llm-records"
# Inspect's words for why an answer ended, as OpenAI's protocol has them.
_ENDS = {"max_tokens": "length"}


def _needed() -> None:
    if find_spec("inspect_ai") is None:
        raise InputError(
            "Inspect is not installed; install the extra: pip install 'latent-context-interp[inspect]'"
        )


@checked
def expert_advice(
    conditions: str | Sequence[str] = "weather-note-only",
    regimes: str | Sequence[str] = PAPER_REGIMES,
    n_instances: int = 30,
    n_rounds: int = 100,
    n_experts: int = 4,
    seed: int = 0,
    prompts: str | None = None,
    max_reasks: int = 2,
) -> Any:
    """A task of Inspect: a sample for each condition and instance, scored by its final regret.

    The arguments are those of :func:`interp.llm.plan.instances` and of ``interp llm run``; ``prompts`` is a folder of
    your own. Instances are those of ``interp llm run`` with the same seed.

    Raises:
        InputError: Inspect is not installed, or what the plan refuses.
    """
    _needed()
    from inspect_ai import Task
    from inspect_ai.dataset import Sample

    texts = load_prompts(prompts) if prompts else built_in_prompts(n_experts)
    names = [conditions] if isinstance(conditions, str) else conditions
    drawn = instances(
        [regimes] if isinstance(regimes, str) else regimes, n_instances, n_rounds, n_experts, seed
    )
    settings = Settings("inspect", None, None, None, max_reasks=max_reasks)
    jobs = plan(settings, texts, drawn, [Condition.parse(name) for name in names])
    samples = [
        Sample(
            input=f"{job.condition.name}, {job.instance.name}",
            id=f"{job.condition.name}/{job.instance.name}",
            metadata=json_values(job.header("Inspect")),
        )
        for job in jobs
    ]
    return Task(dataset=samples, solver=_player(), scorer=_final_regret(), name="expert_advice")


def _player() -> Any:
    from inspect_ai.model import (
        ChatMessageAssistant,
        ChatMessageSystem,
        ChatMessageUser,
        GenerateConfig,
        get_model,
    )
    from inspect_ai.solver import solver

    kinds = {
        "system": ChatMessageSystem,
        "user": ChatMessageUser,
        "assistant": ChatMessageAssistant,
    }

    @solver(name="expert_advice_player")
    def player() -> Any:
        async def solve(state: Any, generate: Any) -> Any:
            session = session_from(state.metadata)
            name = str(state.sample_id).partition("/")[2]
            records: list[dict[str, Any]] = []
            state.store.set(_RECORDS, records)
            while (request := session.next()) is not None:
                seed = request.seed(name)
                messages = [kinds[one["role"]](content=one["content"]) for one in request.messages]
                output = await get_model().generate(messages, config=GenerateConfig(seed=seed))
                if output.stop_reason == "model_length":
                    at = {"round": request.round, "turn": request.turn}
                    records.append(
                        {"end": "overflow", **at, "error": output.error or "model_length"}
                    )
                    break
                reply = _reply(output)
                answer = session.feed(reply.text, reply.finish_reason)
                records.append(trace_record(request, seed, reply, answer))
            else:
                records.append({"end": "complete"})
            state.store.set(_RECORDS, records)
            state.output.completion = f"{len(session.predictions)} rounds"
            return state

        return solve

    return player()


def _reply(output: Any) -> Reply:
    used, usage = output.usage, None
    if used is not None:
        usage = {"prompt_tokens": used.input_tokens, "completion_tokens": used.output_tokens}
        usage |= {"cached_tokens": used.input_tokens_cache_read or 0}
    end = _ENDS.get(output.stop_reason, output.stop_reason)
    return Reply(
        output.completion,
        end,
        output.model,
        usage=usage,
        seconds=round(float(output.time or 0.0), 4),
    )


def _final_regret() -> Any:
    from inspect_ai.scorer import Score, mean, scorer, stderr

    @scorer(metrics=[mean(), stderr()], name="final_regret")
    def final_regret() -> Any:
        async def score(state: Any, target: Any) -> Any:
            session = session_from(state.metadata)
            for record in state.store.get(_RECORDS, []):
                if "reply" in record:
                    session.feed(record["reply"], record["finish_reason"], record["problem"])
            return Score(value=_regret(session), explanation=f"{len(session.predictions)} rounds")

        return score

    return final_regret()


def _regret(session: Session) -> float:
    """Mistakes, missing predictions among them, beyond those of the best expert in the rounds that were played."""
    n = len(session.predictions)
    labels = session.labels[:n]
    return float(
        (np.array(session.predictions) != labels).sum()
        - (session.advice[:n] != labels[:, None]).sum(0).min()
    )


@checked
def write_traces(log: str | Path, folder: str | Path) -> list[Path]:
    """Write the samples of an Inspect ``log`` of :func:`expert_advice` below ``folder`` as traces; their paths.

    Epochs after the first are left out: they are further plays of the same instances.

    Raises:
        InputError: Inspect is not installed, the log cannot be read, or it is of another task.
    """
    _needed()
    from inspect_ai.log import read_eval_log

    try:
        found = read_eval_log(str(log))
    except (OSError, ValueError) as error:
        raise InputError(
            f"cannot read the log {str(log)!r}: {error}; give an .eval or .json log of Inspect"
        ) from error
    config = found.eval.model_generate_config
    written = []
    for sample in found.samples or []:
        records = sample.store.get(_RECORDS)
        require(
            records is not None,
            f"{str(log)!r} is no log of expert_advice: sample {sample.id!r} has no records",
        )
        if sample.epoch != 1:
            continue
        header = dict(sample.metadata)
        sampling = {name: getattr(config, name) for name in ("temperature", "top_p", "max_tokens")}
        header["settings"] = {**header["settings"], **sampling, "model": found.eval.model}
        place = Path(folder) / folder_of(found.eval.model) / f"{sample.id}.jsonl"
        data = b"".join(line_of(json_values(line)) for line in (header, *records))
        place.parent.mkdir(parents=True, exist_ok=True)
        written.append(write_atomic(file_to_write(place), partial(Path.write_bytes, data=data)))
    require(bool(written), f"{str(log)!r} holds no finished sample")
    return written
