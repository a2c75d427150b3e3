"""Checkpoints: a folder with ``model.safetensors``, ``config.json`` and, for shipped models, ``README.md`` (the card).

Strict both ways: ``config.json`` holds the SHA-256 of the weights and a digest over itself, so that an edited
configuration is refused like edited weights; every weight must be there with its shape, finite; and a folder of another
format version is refused. Nothing is pickled; the folder appears whole or not at all.

A transformer is made again from its configuration. Any other machine is made again by its *builder*, a function that
:func:`interp.register_machine` knows, from the JSON values that it was given; no code is stored. What it predicts on a
few episodes is, so that a builder that has changed since is refused.
"""

from __future__ import annotations

import copy
import hashlib
import inspect
import json
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import load_file, save_file

from interp.core import catalog
from interp.core.machine import Machine
from interp.model.checks import N_EPISODES, N_ROUNDS, SEED, TRUSTED, check_machine
from interp.model.config import LatentTransformerConfig
from interp.model.hooked import AS_REAL, REAL
from interp.model.layout import layout_from_dict
from interp.model.rollout import sequential
from interp.model.transformer import HookedLatentTransformer
from interp.support.checks import MOST_GB, checked, file_path, plainly, refuse_above, shown
from interp.support.errors import InputError, require, theirs
from interp.support.files import (
    digest_of,
    read_json,
    reading,
    temporary_beside,
    write_json,
    write_text,
    writing,
)
from interp.support.lazy import entry
from interp.support.provenance import versions

_FORMAT_VERSION = 2
_CLOSE = (
    1e-3  # how far predictions of the same weights may lie apart on another computer, in float32
)
_SAID = {"arguments": dict, "name": str, "origin": dict, "layout": dict, "is_handwired": bool}
"""What the configuration of a machine holds that a builder makes, and of which kind."""

BUILDERS: dict[str, Callable[..., Machine]] = {}
"""What makes machines that are no transformers, by name; :func:`interp.register_machine` adds to it."""


_KEPT: dict[str, Callable[..., Any]] = {}
"""Name and arguments of a builder -> the function whose machine kept the contract; made again, it is trusted."""


@plainly()
def built(builder: str, arguments: Mapping[str, Any], task: str = "") -> Machine:
    """The machine that a registered builder makes of JSON values, checked; its origin says how it was made."""
    if builder not in BUILDERS:
        entry("learners")  # whose builders made the machines that ship
    if builder not in BUILDERS:
        raise InputError(
            f"no builder of machines called {builder!r} is registered here; register it first: "
            f"interp.register_machine({builder!r}, build, description=..., task=...), or import the module that does "
            "(in the shell: interp --import MODULE ...)"
        )
    build = BUILDERS[builder]
    with theirs(
        f"{builder!r} is built from JSON values, which a checkpoint can hold; got {shown(arguments)}: {{error}}",
        of=(TypeError, ValueError),
    ):
        given = json.loads(json.dumps(dict(arguments), allow_nan=False))
    made_before = _KEPT.get(known := json.dumps([builder, given])) is build
    signature = inspect.signature(build)
    with theirs(f"{builder!r} cannot be built so: {{error}}; it takes {signature}", of=TypeError):
        signature.bind(**given)
    with torch.random.fork_rng(
        devices=[]
    ):  # the same weights every time, and no global generator moves
        torch.default_generator.manual_seed(0)
        trusted = TRUSTED.set(made_before)
        try:
            machine = theirs(f"the builder of {builder!r}")(build)(**given)
        finally:
            TRUSTED.reset(trusted)
    made = isinstance(machine, Machine)
    require(
        made,
        f"the builder of {builder!r} must return a machine, such as interp.adapt makes, got {shown(machine)}",
    )
    with theirs(
        f"the builder of {builder!r} must return a machine whose name and origin can be set, such as interp.adapt "
        f"makes: {{error}}",
        of=AttributeError,
    ):
        machine.name, machine.origin = builder, {"builder": builder, "arguments": given}
    ok = task in ("", machine.layout.task)
    require(
        ok,
        f"the builder of {builder!r} makes a machine of {machine.layout.task!r}; this needs one of {task!r}",
    )
    if not made_before:
        few = catalog.get(machine.layout.task)
        check_machine(
            machine,
            few.sample_for(machine, N_EPISODES, max(2, few.at_most(N_ROUNDS)), SEED),
            cheap=True,
        )
        _KEPT[known] = build
    return machine


@checked
def save_checkpoint(model: Machine, folder: str | Path, card: str | None = None) -> Path:
    """Write ``model`` (its task registered, its weights finite) to ``folder``, which must not exist yet.

    A machine that is no transformer must come from a registered builder: ``interp.load(BUILDER, **arguments)``.
    """
    folder, key = Path(file_path(folder, "the checkpoint folder")), model.layout.task
    if key not in {task.key for task in catalog.every()}:
        raise InputError(
            f"a model of the unregistered task {key!r} could not be loaded again; give the task's record to "
            "interp.tasks.register before saving"
        )
    with writing(folder):
        require(
            not folder.exists(),
            f"{str(folder)!r} exists already; choose another folder or remove it",
        )
    held = model.state_dict()  # type: ignore[attr-defined]
    # Cloned, because weights that a module uses twice are one tensor, which safetensors refuses to write twice.
    tensors = {name: tensor.detach().cpu().contiguous().clone() for name, tensor in held.items()}
    require(model.dtype in REAL, f"{model.name!r} cannot be saved in {model.dtype}; {AS_REAL}")
    _check_finite(tensors, f"{model.name!r} cannot be saved:")
    if isinstance(model, HookedLatentTransformer):
        as_loaded = (
            model if model.dtype in (torch.float32, torch.float64) else copy.deepcopy(model).float()
        )
        config, more = model.config.to_dict(), {"predicts": _predicted(as_loaded)}
    else:
        config, more = _said(model, tensors), {}
    with writing(folder):
        folder.parent.mkdir(parents=True, exist_ok=True)
        staging = temporary_beside(folder)
        try:
            staging.mkdir()
            weights = staging / "model.safetensors"
            save_file(tensors, weights)
            weights.chmod(0o644)
            about = {
                "format_version": _FORMAT_VERSION,
                "class": type(model).__name__,
                "versions": versions(),
                "sha256": hashlib.sha256(weights.read_bytes()).hexdigest(),
                "config": config,
                **more,
            }
            write_json(staging / "config.json", {**about, "digest": digest_of(about)})
            if card is not None:
                write_text(staging / "README.md", card)
            staging.chmod(0o755)
            staging.rename(folder)
        finally:
            shutil.rmtree(staging, ignore_errors=True)
    return folder


@checked
@torch.random.fork_rng(devices=[])
def load_checkpoint(folder: str | Path, *, max_gb: float = MOST_GB) -> Machine:
    """Load the model in ``folder``, in evaluation mode, on the CPU, in float32 (float64 if it was saved so).

    A transformer of more than ``max_gb``, by its configuration, is refused before memory is taken, another machine by
    the size of its weights. A machine whose builder is not registered here is refused with what to do.
    """
    folder = Path(file_path(folder, "the checkpoint folder"))
    require(
        folder.is_dir(),
        f"no checkpoint folder at {str(folder)!r}; it holds config.json and model.safetensors",
    )
    with reading(folder):
        held = any(next(folder.glob(f"{depth}.jsonl"), None) for depth in ("*", "*/*", "*/*/*"))
        traces = "; traces are for `interp llm` and `interp compare`" if held else ""
        require(
            (folder / "config.json").exists(),
            f"{str(folder)!r} lacks config.json, so it holds no model{traces}",
        )
    about = read_json(folder / "config.json", "config")
    version = about.get("format_version")
    known = version == _FORMAT_VERSION and not isinstance(version, bool)
    require(
        known,
        f"{str(folder)!r} has format version {version!r}; this version reads {_FORMAT_VERSION}",
    )
    require(
        about.get("digest")
        == digest_of({key: value for key, value in about.items() if key != "digest"}),
        f"{str(folder / 'config.json')!r} was edited: its digest is not that of its contents; fetch the checkpoint "
        "again, or change the model in Python and save it with save_checkpoint",
    )
    weights = folder / "model.safetensors"
    require(weights.is_file(), f"{str(folder)!r} lacks model.safetensors")
    with reading(weights):
        digest = hashlib.sha256(weights.read_bytes()).hexdigest()
    require(
        digest == about.get("sha256"),
        f"{str(weights)!r} is truncated or was changed: its SHA-256 is {digest[:12]}..., config.json says "
        f"{str(about.get('sha256'))[:12]}...; fetch the checkpoint again",
    )
    with reading(folder / "config.json"):
        said = about["config"]
        whole = {**about, **said} if isinstance(said, dict) else about
        require(
            isinstance(whole.get("predicts"), dict),
            f"{str(folder)!r}: config.json lacks predicts; fetch it again",
        )
        if isinstance(said, dict) and "builder" in said:
            refuse_above(f"{str(weights)!r}", weights.stat().st_size, max_gb)
            with reading(weights):
                tensors = load_file(weights)
            missing = [name for name, kind in _SAID.items() if not isinstance(said.get(name), kind)]
            require(
                not missing,
                f"{str(folder)!r}: config.json lacks {', '.join(missing)}; fetch the checkpoint again",
            )
            layout_from_dict(said["layout"])  # which refuses a task that is not registered
            machine = _copy_of(said, tensors, f"{str(folder)!r}:")
            whose, advice = (
                f"the builder {said['builder']!r} has",
                "register the builder that it was saved with",
            )
            return _require_same(machine, whole, str(folder), whose, advice)
        config = LatentTransformerConfig.from_dict(said)
        with reading(weights):
            tensors = load_file(weights)
        config.require_room(max_gb)
        model = HookedLatentTransformer(config, state_map=tensors.get("state_map"))
        unfit = f"{str(weights)!r} does not fit its configuration"
        filled: Machine = _filled(model, tensors, unfit, f"{str(weights)!r} is damaged:")
        return _require_same(
            filled, about, str(folder), "its configuration has", "fetch the checkpoint again"
        )


def _filled(model: Any, tensors: dict[str, torch.Tensor], unfit: str, damaged: str) -> Any:
    """``model`` with these weights, in their precision; weights that do not fit, or are not finite, are refused."""
    wanted = {name: tuple(tensor.shape) for name, tensor in model.state_dict().items()}
    given = {name: tuple(tensor.shape) for name, tensor in tensors.items()}
    wrong = sorted(
        name for name in wanted.keys() | given.keys() if wanted.get(name) != given.get(name)
    )
    require(not wrong, f"{unfit} at {', '.join(wrong[:5])}")
    for name, held in model.state_dict().items():
        stored = tensors[name].dtype
        fits = stored in REAL if held.dtype in REAL else stored == held.dtype
        require(fits, f"{unfit}: {name} is stored as {stored}, where the model has {held.dtype}")
    _check_finite(tensors, damaged)
    if any(tensor.dtype == torch.float64 for tensor in tensors.values()):
        model = model.double()
    model.load_state_dict(tensors, strict=True)
    return model.eval()


# Machines that a builder makes.


def _said(machine: Machine, tensors: dict[str, torch.Tensor]) -> dict[str, Any]:
    """What a checkpoint says of a machine beside its weights; one that could not be made again is refused."""
    origin, dtype = machine.origin, machine.dtype
    exact = dtype in (torch.float32, torch.float64)
    require(exact, f"{machine.name!r} cannot be saved in {dtype}: call .float() first")
    if not {"builder", "arguments"} <= set(origin):
        raise InputError(
            f"{machine.name!r} does not say how to make it again, so it cannot be saved: give the function that makes "
            "it to interp.register_machine(NAME, build, description=..., task=...) and take interp.load(NAME)"
        )
    said = {
        "builder": origin["builder"],
        "arguments": origin["arguments"],
        "name": machine.name,
        "origin": dict(origin),
        "layout": machine.layout.to_dict(),
        "is_handwired": machine.is_handwired,
    }
    again = _copy_of(said, tensors, f"{machine.name!r} cannot be saved:")
    require(
        again.digest() == machine.digest(),
        f"{machine.name!r} cannot be saved: its origin names the builder {origin['builder']!r} with "
        f"{origin['arguments']}, which makes another machine; take it from interp.load and train or fill that",
    )
    return {**said, "predicts": _predicted(again)}


_SAME: set[str] = set()
"""Digests of checkpoints whose machines, made by code of the toolkit, were found to do what they did when saved."""


def _require_same(
    machine: Machine, about: dict[str, Any], folder: str, whose: str, advice: str
) -> Machine:
    """The machine, refused where it does something else than when it was saved; our own code is asked once."""
    then, build = about["predicts"], BUILDERS.get(about.get("builder", ""))
    now = (
        {} if about["digest"] in _SAME else _predicted(machine, *np.shape(then["predictions"])[:2])
    )
    if now and now["episodes"] == then["episodes"]:
        parts = [name for name in then if name != "episodes"]
        pairs = [(np.asarray(now.get(name, np.inf)), np.asarray(then[name])) for name in parts]
        gap = max(
            float(np.abs(one - other).max() / max(1.0, np.abs(other).max())) for one, other in pairs
        )
        require(
            gap <= _CLOSE,
            f"{folder!r}: {whose} changed since this was saved: with the same weights the machine predicts otherwise, "
            f"by up to {gap:.2g}; {advice}",
        )
    if build is None or build.__module__.startswith(
        "interp."
    ):  # what others read outside may change at any time
        _SAME.add(about["digest"])
    return machine


def _copy_of(said: dict[str, Any], tensors: dict[str, torch.Tensor], where: str) -> Machine:
    machine = built(said["builder"], said["arguments"])
    if machine.is_handwired and not said["is_handwired"]:
        machine = machine.untrained()  # trained since: what it carries is no longer known exactly
    unfit = (
        f"{where} the weights do not fit the machine that the builder {said['builder']!r} makes of "
        f"{said['arguments']}"
    )
    filled: Machine = _filled(machine, tensors, unfit, f"{where} damaged:")
    filled.name, filled.origin = said["name"], said["origin"]
    return filled


def _predicted(machine: Machine, n_episodes: int = 2, n_rounds: int = 2) -> dict[str, Any]:
    """What it does on a few episodes of its task: its predictions, how much it carries, and the state that is known."""
    task = catalog.get(machine.layout.task)
    episodes = task.sample_for(machine, n_episodes, task.at_most(n_rounds), SEED)
    layout = machine.layout.fit(episodes)
    run = sequential(machine, machine.prepare(layout.encode(episodes)), layout, "target")
    fed = b"".join(part.cpu().contiguous().numpy().tobytes() for part in run.fed.tensors().values())
    does = {"predictions": run.predictions, "carries": run.latents.abs().mean((2, 3))}
    if machine.is_handwired:
        does["state"] = machine.read_state(run.latents)
    digest = hashlib.sha256(fed).hexdigest()
    return {"episodes": digest, **{name: part.double().tolist() for name, part in does.items()}}


def _check_finite(tensors: dict[str, torch.Tensor], what: str) -> None:
    wrong = [
        name
        for name, tensor in tensors.items()
        if tensor.is_floating_point() and not tensor.isfinite().all()
    ]
    require(
        not wrong,
        f"{what} weights that are not finite at {', '.join(wrong[:5])}; use an earlier checkpoint",
    )
