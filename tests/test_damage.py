"""Bytes of every kind of file are changed, one at a time: the file is refused, or what is read is what was written."""

import json
import random
from datetime import date

import numpy as np
import pytest
from safetensors import safe_open
from safetensors.torch import save_file

import interp
from interp.llm.backend import AGENTS, AgentBackend, Settings
from interp.llm.loading import from_trace
from interp.llm.plan import instances, plan
from interp.llm.runner import run
from interp.llm.schemes import Condition, built_in_prompts
from interp.model import saved
from interp.model.checkpoints import load_checkpoint, save_checkpoint
from interp.support.files import digest_of
from interp.tasks import experts
from interp.tasks.experts.layout import ExpertRound
from interp.training.runs import STATE_FILE, Progression, read_state, write_state
from tests.machines import transformer


def small_model():
    return transformer(ExpertRound(2), d_model=4, n_layers=1, n_heads=1, d_head=4, d_mlp=0)


def checkpoint(folder, name):
    path = folder / "m"
    save_checkpoint(small_model(), path)
    return path / name, lambda: load_checkpoint(path).digest()


def state(folder):
    write_state(folder, Progression(step=3), {"task": "experts"}, small_model(), [])

    def read():
        loaded = read_state(folder)
        tensors = {name: tensor.tolist() for name, tensor in loaded.tensors.items()}
        return loaded.progress, loaded.config, tensors

    return folder / STATE_FILE, read


def trace(folder):
    (job,) = plan(
        Settings("m"),
        built_in_prompts(),
        instances(("flat",), 1, 3),
        [Condition("online", "no-note")],
    )
    run([job], folder, AgentBackend("counter", AGENTS["counter"]))
    path = folder / job.place

    def read():
        loaded = from_trace(path)
        arrays = [loaded.predictions, loaded.labels, loaded.advice]
        return [array.tolist() for array in arrays], loaded.model, loaded.prompt

    return path, read


def rollout(folder):
    model = interp.load("wma-handwired", n_experts=2)
    ran = interp.rollout(model, experts.sample(2, 3, 2, seed=0), names_filter=["hook_embed"])
    path = saved.save(ran, folder / "run.safetensors")

    def read():
        loaded = saved.load(path)
        contents = {
            "predictions": loaded.predictions,
            "latents": loaded.latents,
            **loaded.fed.tensors(),
            **loaded.cache,
        }
        settings = (loaded.layout, loaded.commit, loaded.cached_rounds, loaded.settings)
        return {name: tensor.tolist() for name, tensor in contents.items()}, settings

    return path, read


KINDS = {
    "rollout": rollout,
    "weights": lambda folder: checkpoint(folder, "model.safetensors"),
    "configuration": lambda folder: checkpoint(folder, "config.json"),
    "training state": state,
    "trace": trace,
}


def damage(kind, folder, n_places):
    """How often a file with one other byte was refused, and how often it was read as what was written."""
    path, read = KINDS[kind](folder)
    whole, wanted, refused, same = path.read_bytes(), read(), 0, 0
    for i in range(n_places):
        place = i * (len(whole) - 1) // max(n_places - 1, 1)
        for byte in (whole[place] ^ 1, 0, 255):
            before, after = whole[:place], whole[place + 1 :]
            path.write_bytes(before + bytes([byte]) + after)
            try:
                assert read() == wanted, f"byte {place} of {kind} as {byte}"
                same += 1
            except interp.InputError:
                refused += 1
    for length in range(0, len(whole), max(1, len(whole) // n_places)):
        path.write_bytes(whole[:length])
        try:
            # A trace that was cut off goes on; a file may lack the end of its last line.
            assert read() == wanted or kind == "trace", f"{kind} cut to {length} bytes was read"
        except interp.InputError:
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


OTHER_METADATA = {
    "a layout of another task": ("layout", {"task": "none"}),
    "commit": ("commit", "evil"),
    "cached rounds": ("cached_rounds", [0, 1]),
    "cached rounds that are none": ("cached_rounds", [0, 1, 7]),
}
CUT_TENSORS = {
    "one of two episodes": ("predictions", np.s_[:1]),
    "a round too few": ("latents", np.s_[:, 1:]),
    "a cache of other rounds": ("cache.hook_embed", np.s_[:, :1]),
    "tokens without rounds": ("tokens", np.s_[:, 0]),
    "values": ("values", np.s_[:, :1]),
    "slots": ("slots", np.s_[:1]),
}


@pytest.mark.parametrize("signed", [False, True], ids=["edited", "edited and signed again"])
@pytest.mark.parametrize("edit", ["layout of other sizes", *OTHER_METADATA, *CUT_TENSORS])
def test_a_rollout_that_does_not_fit_together_is_refused(edit, signed, tmp_path):
    """29 of 51 such edits loaded silently; whoever signs again is refused where the parts are of different sizes."""
    path, _ = rollout(tmp_path)
    with safe_open(path, framework="pt") as stored:
        metadata = json.loads(stored.metadata()["rollout"])
        contents = {name: stored.get_tensor(name) for name in stored.keys()}  # noqa: SIM118
    if edit in OTHER_METADATA:
        key, value = OTHER_METADATA[edit]
        metadata[key] = value
    elif edit in CUT_TENSORS:
        name, places = CUT_TENSORS[edit]
        contents[name] = contents[name][places]
    else:
        metadata["layout"]["n_experts"] = 3
    contents = {name: tensor.contiguous().clone() for name, tensor in contents.items()}
    if signed:
        del metadata["digest"]
        metadata["sha256"] = {}
        for name, array in contents.items():
            content = saved.content_of(name, array)
            metadata["sha256"][name] = saved.hashlib.sha256(content).hexdigest()
        metadata["digest"] = digest_of(metadata)
    save_file(contents, path, metadata={"rollout": json.dumps(metadata)})
    with pytest.raises(interp.InputError):
        saved.load(path)


@pytest.mark.slow(reason="4,200 damaged files: 60 CPU seconds")
@pytest.mark.parametrize("kind", KINDS)
def test_files_damaged_at_random_are_refused(kind, tmp_path):
    """Bytes changed, cut out, put in twice, swapped and zeroed in 600 places of each kind, which change by day."""
    path, read = KINDS[kind](tmp_path)
    whole = path.read_bytes()
    wanted = read()
    draw = random.Random(f"{kind} {date.today()}")
    for i in range(600):
        begin, end = sorted(draw.randrange(len(whole)) for _ in range(2))
        end = min(end, begin + 64)
        piece, rest = whole[begin:end], whole[end:]
        changed = draw.randbytes(len(piece))
        zeroed = bytes(len(piece))
        changes = (changed, b"", piece * 2, piece[::-1], zeroed)
        path.write_bytes(whole[:begin] + changes[i % 5] + rest)
        try:
            is_same = read() == wanted
        except interp.InputError:
            continue
        assert is_same or kind == "trace", f"{kind}, change {i} of {date.today()}"
