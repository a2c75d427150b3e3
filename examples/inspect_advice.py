"""The prediction task of ``interp llm`` as a task of Inspect, and Inspect's logs as traces of the
toolkit.

Install ``pip install 'latent-context-interp[inspect]'``. Inspect supplies model providers, limits
and the viewer. The wording of each round is exactly the toolkit's: the solver drives
:class:`~interp.llm.protocol.Session`. Its records are stored in the sample as the toolkit's runner
would write them. :func:`write_traces` turns a log into traces, which can be replayed and checked
like any others. A task file beside this one::

    from inspect_ai import task
    from inspect_advice import expert_advice

    advice = task(expert_advice)                     # inspect eval FILE.py@advice --model PROVIDER/NAME -T n_rounds=20

Inspect handles rate limits, resuming within an episode and keys; ``interp llm run`` has its own
handling.
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
"""Key of the records in a sample's store."""
_FINISH_REASONS = {"max_tokens": "length"}
"""Inspect's word for why an answer ended -> the word of OpenAI's protocol, where they differ."""


def _require_inspect() -> None:
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
    """Return a task of Inspect, with one sample per condition and instance, scored by final regret.

    The arguments are those of :func:`interp.llm.plan.instances` and of ``interp llm run``;
    ``prompts`` is a folder of your own prompts. The instances equal those of ``interp llm run``
    with the same seed.

    Raises:
        InputError: Inspect is not installed, or the plan refuses the arguments.
    """
    _require_inspect()
    from inspect_ai import Task
    from inspect_ai.dataset import Sample

    texts = load_prompts(prompts) if prompts else built_in_prompts(n_experts)
    condition_names = [conditions] if isinstance(conditions, str) else conditions
    regime_names = [regimes] if isinstance(regimes, str) else regimes
    drawn = instances(regime_names, n_instances, n_rounds, n_experts, seed)
    settings = Settings("inspect", None, None, None, max_reasks=max_reasks)
    jobs = plan(settings, texts, drawn, [Condition.parse(name) for name in condition_names])
    samples = []
    for job in jobs:
        condition = job.condition.name
        instance = job.instance.name
        metadata = json_values(job.header("Inspect"))
        sample = Sample(
            input=f"{condition}, {instance}", id=f"{condition}/{instance}", metadata=metadata
        )
        samples.append(sample)
    return Task(dataset=samples, solver=_make_player(), scorer=_make_scorer(), name="expert_advice")


def _make_player() -> Any:
    """Return the solver of the task, which plays one instance round by round."""
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
            session = session_from(state.metadata)  # which asks and interprets, round by round
            name = str(state.sample_id).partition("/")[2]
            records: list[dict[str, Any]] = []
            state.store.set(_RECORDS, records)
            while (request := session.next()) is not None:
                seed = request.seed(name)
                messages = []
                for message in request.messages:
                    make = kinds[message["role"]]
                    messages.append(make(content=message["content"]))
                output = await get_model().generate(messages, config=GenerateConfig(seed=seed))
                if output.stop_reason == "model_length":
                    place = {"round": request.round, "turn": request.turn}
                    error = output.error or "model_length"
                    records.append({"end": "overflow", **place, "error": error})
                    break
                reply = _convert_reply(output)
                answer = session.feed(reply.text, reply.finish_reason)
                records.append(trace_record(request, seed, reply, answer))
            else:  # no answer was too long for the model
                records.append({"end": "complete"})
            state.store.set(_RECORDS, records)
            state.output.completion = f"{len(session.predictions)} rounds"
            return state

        return solve

    return player()


def _convert_reply(output: Any) -> Reply:
    """Convert an answer of Inspect to the toolkit's :class:`Reply`."""
    counts = output.usage
    usage = None
    if counts is not None:
        usage = {
            "prompt_tokens": counts.input_tokens,
            "completion_tokens": counts.output_tokens,
            "cached_tokens": counts.input_tokens_cache_read or 0,
        }
    finish_reason = _FINISH_REASONS.get(output.stop_reason, output.stop_reason)
    seconds = round(float(output.time or 0.0), 4)
    return Reply(output.completion, finish_reason, output.model, usage=usage, seconds=seconds)


def _make_scorer() -> Any:
    """Return the scorer of the task, which computes the final regret from the stored records."""
    from inspect_ai.scorer import Score, mean, scorer, stderr

    @scorer(metrics=[mean(), stderr()], name="final_regret")
    def final_regret() -> Any:
        async def score(state: Any, target: Any) -> Any:
            session = session_from(state.metadata)
            # The stored replies are fed to a new session, which reads the predictions in them.
            for record in state.store.get(_RECORDS, []):
                if "reply" in record:  # not the record of how the run ended
                    session.feed(record["reply"], record["finish_reason"], record["problem"])
            return Score(
                value=_compute_regret(session), explanation=f"{len(session.predictions)} rounds"
            )

        return score

    return final_regret()


def _compute_regret(session: Session) -> float:
    """Return the mistakes (missing predictions included) minus those of the best expert, in the
    played rounds.
    """
    n_played = len(session.predictions)
    labels = session.labels[:n_played]
    mistakes = (np.array(session.predictions) != labels).sum()
    expert_mistakes = (session.advice[:n_played] != labels[:, None]).sum(0)
    return float(mistakes - expert_mistakes.min())


@checked
def write_traces(log: str | Path, folder: str | Path) -> list[Path]:
    """Write the samples of an Inspect ``log`` of :func:`expert_advice` as traces below ``folder``;
    return their paths.

    Epochs after the first are left out, since they play the same instances again.

    Raises:
        InputError: Inspect is not installed, the log cannot be read, or it is of another task.
    """
    _require_inspect()
    from inspect_ai.log import read_eval_log

    try:
        contents = read_eval_log(str(log))
    except (OSError, ValueError) as error:
        raise InputError(
            f"cannot read the log {str(log)!r}: {error}; give an .eval or .json log of Inspect"
        ) from error
    config = contents.eval.model_generate_config
    model = contents.eval.model
    written = []
    for sample in contents.samples or []:
        records = sample.store.get(_RECORDS)
        require(
            records is not None,
            f"{str(log)!r} is no log of expert_advice: sample {sample.id!r} has no records",
        )
        if sample.epoch != 1:
            continue
        header = dict(sample.metadata)
        # The settings that only Inspect knew when the samples were run.
        sampling = {name: getattr(config, name) for name in ("temperature", "top_p", "max_tokens")}
        header["settings"] = {**header["settings"], **sampling, "model": model}
        path = Path(folder) / folder_of(model) / f"{sample.id}.jsonl"
        lines = [line_of(json_values(line)) for line in (header, *records)]
        path.parent.mkdir(parents=True, exist_ok=True)
        write = partial(Path.write_bytes, data=b"".join(lines))
        written.append(write_atomic(file_to_write(path), write))
    require(bool(written), f"{str(log)!r} holds no finished sample")
    return written
