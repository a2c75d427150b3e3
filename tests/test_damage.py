"""Bytes of every kind of file are changed, one at a time: the file is refused, or what is read is what was written."""

import pytest

from interp.errors import InputError
from interp.llm.agents import AGENTS
from interp.llm.backend import Settings
from interp.llm.loading import from_trace
from interp.llm.plan import instances, plan
from interp.llm.schemes import Condition, built_in_prompts
from interp.llm.trace import line_of
from interp.model.checkpoints import load_checkpoint, save_checkpoint
from interp.model.config import LatentTransformerConfig
from interp.model.transformer import HookedLatentTransformer
from interp.tasks.experts.layout import ExpertRound
from interp.tasks.qlearning import datasets
from interp.training.runs import STATE_FILE, Progression, read_state, write_state


def small_model():
    sizes = {"d_model": 4, "n_layers": 1, "n_heads": 1, "d_head": 4}
    return HookedLatentTransformer(LatentTransformerConfig(ExpertRound(2), **sizes))


def checkpoint(folder, name):
    save_checkpoint(small_model(), folder / "m")
    return folder / "m" / name, lambda: load_checkpoint(folder / "m").digest()


def state(folder):
    write_state(folder, Progression(step=3), {"task": "experts"}, small_model(), [])

    def read():
        found = read_state(folder)
        return found.progress, found.config, {name: tensor.tolist() for name, tensor in found.tensors.items()}

    return folder / STATE_FILE, read


def data_set(folder):
    path = datasets.save(datasets.generate(6, n_states=(2, 3), n_actions=(2, 2), n_rounds=3), folder / "d.safetensors")

    def read():
        found = datasets.load(path)
        return found.config, {size: batch.q_tables.tolist() for size, batch in found.train.items()}

    return path, read


def trace(folder):
    (job,) = plan(Settings("m"), built_in_prompts(), instances(("flat",), 1, 3), [Condition("online", "no-note")])
    session, lines = job.session(), [job.header("http://127.0.0.1/v1")]
    while (request := session.next()) is not None:
        reply = AGENTS["counter"](request.messages)
        session.feed(reply)
        at = {"round": request.round, "messages_sha256": request.sha256, "reply": reply}
        lines.append({**at, "finish_reason": "stop", "seconds": 0.1, "model": "m", "usage": None})
    path = folder / "t.jsonl"
    path.write_bytes(b"".join(map(line_of, [*lines, {"end": "complete"}])))

    def read():
        run = from_trace(path)
        return run.predictions.tolist(), run.labels.tolist(), run.advice.tolist(), run.model, run.prompt

    return path, read


KINDS = {
    "weights": lambda folder: checkpoint(folder, "model.safetensors"),
    "configuration": lambda folder: checkpoint(folder, "config.json"),
    "training state": state,
    "data set": data_set,
    "trace": trace,
}


def damage(kind, folder, n_places):
    """How often a file with one other byte was refused, and how often it was read as what was written."""
    path, read = KINDS[kind](folder)
    whole, wanted, refused, same = path.read_bytes(), read(), 0, 0
    for i in range(n_places):
        place = i * (len(whole) - 1) // max(n_places - 1, 1)
        for other in (whole[place] ^ 1, 0, 255):
            path.write_bytes(whole[:place] + bytes([other]) + whole[place + 1 :])
            try:
                assert read() == wanted, f"byte {place} of {kind} as {other}"
                same += 1
            except InputError:
                refused += 1
    for length in range(0, len(whole), max(1, len(whole) // n_places)):
        path.write_bytes(whole[:length])
        try:
            read()
            assert kind == "trace", f"{kind} cut to {length} bytes was read"  # a trace that was cut off goes on
        except InputError:
            refused += 1
    return refused, same


@pytest.mark.parametrize("kind", KINDS)
def test_a_changed_byte_is_refused(kind, tmp_path):
    refused, _ = damage(kind, tmp_path, 12)
    assert refused > 24


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_a_changed_byte_anywhere_is_refused(kind, tmp_path):
    """About 1,600 damaged files of each kind."""
    refused, _ = damage(kind, tmp_path, 400)
    assert refused > 800
