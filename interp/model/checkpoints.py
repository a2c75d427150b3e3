"""Checkpoints: folders with ``model.safetensors``, ``config.json`` and, for shipped models,
``README.md``.

Loading is strict. ``config.json`` stores the SHA-256 of the weights and a digest of itself, so that
edited weights or an edited configuration are refused. Every weight must be present, finite and of
the right shape, and the format version must match. Checkpoints contain no pickles. A folder appears
complete or not at all.

A transformer is built from its configuration. Any other machine is built by its *builder*: a
function registered by :func:`interp.register_machine`, which gets arguments that are stored as
JSON. No code is stored. The checkpoint also stores predictions on a few episodes, so that a builder
that has changed since is noticed and refused.
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
from interp.model.checks import N_EPISODES, N_ROUNDS, SEED, SKIPS_CHECKS, check_machine
from interp.model.config import LatentTransformerConfig
from interp.model.hooked import CAST_ADVICE, REAL, bytes_of, copy_for_file
from interp.model.layout import layout_from_dict
from interp.model.rollout import sequential
from interp.model.transformer import HookedLatentTransformer
from interp.support.checks import (
    MOST_GB,
    checked,
    file_path,
    format_value,
    refuse_above,
    without_inference_or_autocast,
)
from interp.support.errors import InputError, convert_errors, require
from interp.support.files import (
    convert_read_errors,
    convert_write_errors,
    digest_of,
    read_json,
    temporary_beside,
    write_json,
    write_text,
)
from interp.support.lazy import entry
from interp.support.provenance import versions

_FORMAT_VERSION = 2
_LARGEST_GAP = 1e-3
"""Largest difference allowed between predictions of the same weights on two computers, in
float32.
"""
_MACHINE_FIELDS = {
    "arguments": dict,
    "name": str,
    "origin": dict,
    "layout": dict,
    "is_handwired": bool,
}
"""Fields in the configuration of a machine with a builder, and their types."""

BUILDERS: dict[str, Callable[..., Machine]] = {}
"""Builders of machines that are not transformers, by name; :func:`interp.register_machine` adds to
it.
"""


_CHECKED_RECIPES: dict[str, Callable[..., Any]] = {}
"""Builder name and arguments -> the build function whose machine passed the checks, which are not
repeated.
"""


@without_inference_or_autocast()
def build_registered(builder: str, arguments: Mapping[str, Any], task: str = "") -> Machine:
    """Build a model with a registered builder, and check it; the model's ``origin`` records builder
    and arguments.

    Args:
        builder: name of the builder, a function that was registered by ``interp.register_machine``.
        arguments: arguments of the builder, as JSON values.
        task: key of the task that the model must be for; "" for any.
    """
    if builder not in BUILDERS:
        entry("learners")  # importing it adds the builders of the machines that ship
    if builder not in BUILDERS:
        raise InputError(
            f"no builder of machines called {builder!r} is registered here; register it first: "
            f"interp.register_machine({builder!r}, build, description=..., task=...), or import the module that does "
            "(in the shell: interp --import MODULE ...)"
        )
    build = BUILDERS[builder]
    with convert_errors(
        f"{builder!r} is built from JSON values, which a checkpoint can hold; got {format_value(arguments)}: {{error}}",
        of=(TypeError, ValueError),
    ):
        values = json.loads(json.dumps(dict(arguments), allow_nan=False))
    recipe = json.dumps([builder, values])
    # Compared by identity: another function may have been registered under the name since.
    is_checked = _CHECKED_RECIPES.get(recipe) is build
    machine = _build(builder, values, is_checked=is_checked)
    task_of_machine = machine.layout.task
    require(
        task in ("", task_of_machine),
        f"the builder of {builder!r} makes a machine of {task_of_machine!r}; this needs one of "
        f"{task!r}",
    )
    if not is_checked:
        record = catalog.get(task_of_machine)
        n_rounds = max(2, record.cap_rounds(N_ROUNDS))
        check_machine(machine, record.sample_for(machine, N_EPISODES, n_rounds, SEED), cheap=True)
        _CHECKED_RECIPES[recipe] = build
    return machine


def _build(builder: str, values: dict[str, Any], is_checked: bool) -> Machine:
    """Call a builder with a fixed random seed, and return the model.

    Args:
        builder: name of the builder.
        values: the builder's arguments.
        is_checked: True to skip the checks of the model, since one that was built with the same
            arguments has passed them.
    """
    build = BUILDERS[builder]
    signature = inspect.signature(build)
    # Before the call, so that wrong arguments and errors within the builder have separate messages.
    with convert_errors(
        f"{builder!r} cannot be built so: {{error}}; it takes {signature}", of=TypeError
    ):
        signature.bind(**values)
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(0)
        token = SKIPS_CHECKS.set(is_checked)
        try:
            # An error in the builder becomes an InputError that names the builder.
            machine = convert_errors(f"the builder of {builder!r}")(build)(**values)
        finally:
            SKIPS_CHECKS.reset(token)
    is_machine = isinstance(machine, Machine)
    require(
        is_machine,
        f"the builder of {builder!r} must return a machine, such as interp.adapt makes, got {format_value(machine)}",
    )
    with convert_errors(
        f"the builder of {builder!r} must return a machine whose name and origin can be set, such as interp.adapt "
        f"makes: {{error}}",
        of=AttributeError,
    ):
        machine.name = builder
        machine.origin = {"builder": builder, "arguments": values}
    return machine


@checked
def save_checkpoint(model: Machine, folder: str | Path, card: str | None = None) -> Path:
    """Write ``model`` to a new folder, and return its path.

    The model's task must be registered, and its weights must be finite. Training may change step by
    step which share of a latent's old value a transformer keeps when it updates the latent
    (``latent_kept``). This share must then have reached its last value. A model that is no
    transformer must come from a registered builder: ``interp.load(BUILDER, **arguments)``.

    Args:
        model: the model.
        folder: the folder, which must not exist yet.
        card: text of ``README.md``; None to write no such file.
    """
    folder = Path(file_path(folder, "the checkpoint folder"))
    key = model.layout.task
    if key not in {task.key for task in catalog.list_tasks()}:
        raise InputError(
            f"a model of the unregistered task {key!r} could not be loaded again; give the task's record to "
            "interp.tasks.register before saving"
        )
    with convert_write_errors(folder):  # exists() may raise, as where a folder may not be searched
        require(
            not folder.exists(),
            f"{str(folder)!r} exists already; choose another folder or remove it",
        )
    tensors = copy_for_file(model.state_dict())  # type: ignore[attr-defined]
    require(model.dtype in REAL, f"{model.name!r} cannot be saved in {model.dtype}; {CAST_ADVICE}")
    _require_finite(tensors, f"{model.name!r} cannot be saved:")
    description = {
        "format_version": _FORMAT_VERSION,
        "class": type(model).__name__,
        "versions": versions(),
        **_describe(model, tensors),
    }
    with convert_write_errors(folder):
        folder.parent.mkdir(parents=True, exist_ok=True)
        staging = temporary_beside(folder)
        try:
            staging.mkdir()
            _write_files(staging, tensors, description, card)
            staging.rename(folder)
        finally:
            shutil.rmtree(staging, ignore_errors=True)
    return folder


def _write_files(
    staging: Path, tensors: dict[str, torch.Tensor], description: dict[str, Any], card: str | None
) -> None:
    """Write the files of a checkpoint into a folder.

    Args:
        staging: the folder.
        tensors: the weights by name.
        description: content of ``config.json``, without digests.
        card: text of ``README.md``, or None.
    """
    weights = staging / "model.safetensors"
    save_file(tensors, weights)
    weights.chmod(0o644)  # safetensors makes files that only their owner can read
    description = {**description, "sha256": _hash_file(weights)}
    write_json(staging / "config.json", {**description, "digest": digest_of(description)})
    if card is not None:
        write_text(staging / "README.md", card)
    staging.chmod(0o755)


def _hash_file(path: Path) -> str:
    """Return the SHA-256 of a file, in hexadecimal."""
    return hashlib.sha256(path.read_bytes()).hexdigest()


def _describe(model: Machine, tensors: dict[str, torch.Tensor]) -> dict[str, Any]:
    """Return the part of a checkpoint's ``config.json`` that describes the model: its configuration
    and predictions on a few episodes, which are computed again and compared when it is loaded.

    Args:
        model: the model.
        tensors: the model's weights by name.
    """
    if not isinstance(model, HookedLatentTransformer):
        return {"config": _describe_machine(model, tensors)}
    kept_at_the_end = model.config.latent_kept  # share of an old latent, which training may anneal
    require(
        model.latent_kept == kept_at_the_end,
        f"{model.name!r} keeps {model.latent_kept:.2g} of each latent, and a checkpoint would store "
        f"{kept_at_the_end:.2g}; train on until the annealing ends",
    )
    as_loaded = model
    if model.dtype not in (torch.float32, torch.float64):  # half precision is loaded as float32
        as_loaded = copy.deepcopy(model).float()
    return {"config": model.config.to_dict(), "predicts": _run_few_episodes(as_loaded)}


@checked
@torch.random.fork_rng(devices=[])
def load_checkpoint(folder: str | Path, *, max_gb: float = MOST_GB) -> Machine:
    """Load the model in a checkpoint folder, on the CPU and in evaluation mode.

    The model is in float32, or in float64 if it was saved so. If the model's builder is not
    registered, the error says how to register it.

    Args:
        folder: the checkpoint.
        max_gb: memory limit in units of 1e9 bytes. The memory of a transformer is computed from its
            configuration; that of another model is the size of its weights file.
    """
    folder = Path(file_path(folder, "the checkpoint folder"))
    description = _read_config(folder)
    weights = folder / "model.safetensors"
    where = repr(str(weights))
    require(weights.is_file(), f"{str(folder)!r} lacks model.safetensors")
    with convert_read_errors(weights):
        sha256 = _hash_file(weights)
    expected = str(description.get("sha256"))
    require(
        sha256 == expected,
        f"{where} is truncated or was changed: its SHA-256 is {sha256[:12]}..., config.json says {expected[:12]}...; "
        "fetch the checkpoint again",
    )
    with convert_read_errors(folder / "config.json"):
        config = description["config"]
        is_built = isinstance(config, dict) and "builder" in config
        saved_outputs: Any = (config if is_built else description).get("predicts")
        require(
            isinstance(saved_outputs, dict),
            f"{str(folder)!r}: config.json lacks predicts; fetch it again",
        )
        # changed and remedy are parts of the message if the outputs are not as when it was saved.
        if is_built:
            refuse_above(where, weights.stat().st_size, max_gb)
            tensors = _read_tensors(weights)
            _require_machine_fields(config, folder=str(folder))
            machine = _rebuild(config, tensors, where=f"{str(folder)!r}:")
            changed = f"the builder {config['builder']!r} has"
            remedy = "register the builder that it was saved with"
        else:
            machine = _load_transformer(config, weights, max_gb)
            changed = "its configuration has"
            remedy = "fetch the checkpoint again"
        if description["digest"] not in _VERIFIED_DIGESTS:
            gap = _measure_gap(machine, saved_outputs)
            require(
                gap <= _LARGEST_GAP,
                f"{str(folder)!r}: {changed} changed since this was saved: with the same weights the machine predicts "
                f"otherwise, by up to {gap:.2g}; {remedy}",
            )
        # A user's builder may change at any time; one of the toolkit does not while a program runs.
        if not is_built or BUILDERS[config["builder"]].__module__.startswith("interp."):
            _VERIFIED_DIGESTS.add(description["digest"])
        return machine


def _load_transformer(config: Any, weights: Path, max_gb: float) -> Machine:
    """Build a transformer from its configuration, and load its weights.

    Args:
        config: the configuration in ``config.json``.
        weights: the file with the weights.
        max_gb: memory limit in units of 1e9 bytes.
    """
    transformer_config = LatentTransformerConfig.from_dict(config)
    tensors = _read_tensors(weights)
    transformer_config.require_room(max_gb)
    # The readout of a handwired model is no part of the configuration, and is given here so that
    # the model has a buffer of its shape; all weights are loaded below.
    model = HookedLatentTransformer(transformer_config, state_map=tensors.get("state_map"))
    where = repr(str(weights))
    filled: Machine = _load_weights(
        model,
        tensors,
        unfit=f"{where} does not fit its configuration",
        damaged=f"{where} is damaged:",
    )
    return filled


_VERIFIED_DIGESTS: set[str] = set()
"""Digests of checkpoints whose machines were found to predict as when they were saved.

Only machines whose code is part of the toolkit are listed.
"""


def _read_config(folder: Path) -> dict[str, Any]:
    """Return the content of a checkpoint's ``config.json``; refuse another format version and an
    edited file.
    """
    require(
        folder.is_dir(),
        f"no checkpoint folder at {str(folder)!r}; it holds config.json and model.safetensors",
    )
    path = folder / "config.json"
    with convert_read_errors(folder):  # exists() may raise, as where the folder may not be searched
        require(
            path.exists(),
            f"{str(folder)!r} lacks config.json, so it holds no model; the model of a training run is in its "
            "subfolder 'model', and traces are for `interp llm`",
        )
    description = read_json(path, "config")
    version = description.get("format_version")
    require(
        version == _FORMAT_VERSION,
        f"{str(folder)!r} has format version {version!r}; this version reads {_FORMAT_VERSION}",
    )
    without_digest = {key: value for key, value in description.items() if key != "digest"}
    require(
        description.get("digest") == digest_of(without_digest),
        f"{str(path)!r} was edited: its digest is not that of its contents; fetch the checkpoint "
        "again, or change the model in Python and save it with save_checkpoint",
    )
    return description


def _read_tensors(path: Path) -> dict[str, torch.Tensor]:
    """Return the tensors in a safetensors file by name."""
    with convert_read_errors(path):
        return load_file(path)


def _require_machine_fields(config: dict[str, Any], folder: str) -> None:
    """Refuse the configuration of a model that a registered builder made if a field is missing or
    its task is not registered.

    Args:
        config: the configuration.
        folder: the checkpoint folder, for the error message.
    """
    missing = [
        name for name, kind in _MACHINE_FIELDS.items() if not isinstance(config.get(name), kind)
    ]
    require(
        not missing,
        f"{folder!r}: config.json lacks {', '.join(missing)}; fetch the checkpoint again",
    )
    layout_from_dict(config["layout"])


def _load_weights(model: Any, tensors: dict[str, torch.Tensor], *, unfit: str, damaged: str) -> Any:
    """Load weights into ``model``, and return it: in float64 if any weight was saved so, otherwise in
    the precision that ``model`` has.

    Args:
        model: the model.
        tensors: the weights by name.
        unfit: beginning of the error message if weights do not fit the model.
        damaged: beginning of the error message if weights are not finite.
    """
    state = model.state_dict()
    expected = {(name, weight.shape) for name, weight in state.items()}
    stored = {(name, tensor.shape) for name, tensor in tensors.items()}
    # Pairs in only one of the two sets: names in one alone, or with another shape in the other.
    wrong = sorted({name for name, _ in expected ^ stored})
    require(not wrong, f"{unfit} at {', '.join(wrong[:5])}")
    for name, tensor in tensors.items():
        dtype = state[name].dtype
        # Loading converts between real dtypes; others, such as integers, must be the same.
        fits = tensor.dtype in REAL if dtype in REAL else tensor.dtype == dtype
        require(fits, f"{unfit}: {name} is stored as {tensor.dtype}, where the model has {dtype}")
    _require_finite(tensors, damaged)
    if any(tensor.dtype == torch.float64 for tensor in tensors.values()):  # saved in double
        model = model.double()
    model.load_state_dict(tensors, strict=True)
    return model.eval()


# Machines that a builder makes.


def _describe_machine(machine: Machine, tensors: dict[str, torch.Tensor]) -> dict[str, Any]:
    """Return the configuration, for its checkpoint, of a model that a registered builder made.
    Refuse a model that cannot be built again.

    Args:
        machine: the model.
        tensors: the model's weights by name.
    """
    origin = machine.origin
    is_exact = machine.dtype in (torch.float32, torch.float64)
    require(is_exact, f"{machine.name!r} cannot be saved in {machine.dtype}: call .float() first")
    if "builder" not in origin or "arguments" not in origin:
        raise InputError(
            f"{machine.name!r} does not say how to make it again, so it cannot be saved: give the function that makes "
            "it to interp.register_machine(NAME, build, description=..., task=...) and take interp.load(NAME)"
        )
    config = {
        "builder": origin["builder"],
        "arguments": origin["arguments"],
        "name": machine.name,
        "origin": dict(origin),
        "layout": machine.layout.to_dict(),
        "is_handwired": machine.is_handwired,
    }
    rebuilt = _rebuild(config, tensors, where=f"{machine.name!r} cannot be saved:")
    is_same = rebuilt.digest() == machine.digest()
    require(
        is_same,
        f"{machine.name!r} cannot be saved: its origin names the builder {origin['builder']!r} with "
        f"{origin['arguments']}, which makes another machine; take it from interp.load and train or fill that",
    )
    return {**config, "predicts": _run_few_episodes(rebuilt)}


def _rebuild(config: dict[str, Any], tensors: dict[str, torch.Tensor], where: str) -> Machine:
    """Build a model again from its configuration and weights.

    Args:
        config: the configuration in the model's checkpoint.
        tensors: the model's weights by name.
        where: beginning of error messages.
    """
    machine = build_registered(config["builder"], config["arguments"])
    if machine.is_handwired and not config["is_handwired"]:
        # It was trained before it was saved, so like a fresh copy it has no exact readout.
        machine = machine.untrained()
    unfit = (
        f"{where} the weights do not fit the machine that the builder {config['builder']!r} makes of "
        f"{config['arguments']}"
    )
    filled: Machine = _load_weights(machine, tensors, unfit=unfit, damaged=f"{where} damaged:")
    filled.name = config["name"]
    filled.origin = config["origin"]
    return filled


def _measure_gap(machine: Machine, saved_outputs: dict[str, Any]) -> float:
    """Return the largest difference between a model's outputs now and when it was saved. The
    difference of an output, such as the predictions, is divided by the largest saved number of this
    output, but at least by 1.

    If the task now samples other episodes, the result is 0.

    Args:
        machine: the model.
        saved_outputs: the outputs when it was saved, as :func:`_run_few_episodes` returned them.
    """
    n_episodes, n_rounds = np.shape(saved_outputs["predictions"])[:2]
    outputs = _run_few_episodes(machine, n_episodes, n_rounds)
    # Hashes of the episodes. Outputs in other episodes cannot be compared.
    if outputs["episodes"] != saved_outputs["episodes"]:
        return 0.0
    gaps = []
    for name, numbers in saved_outputs.items():
        if name != "episodes":
            before = np.asarray(numbers)
            after = np.asarray(outputs.get(name, np.inf))  # infinity for an output that is gone
            scale = max(1.0, np.abs(before).max())
            gaps.append(np.abs(after - before).max() / scale)
    return float(max(gaps))


def _run_few_episodes(machine: Machine, n_episodes: int = 2, n_rounds: int = 2) -> dict[str, Any]:
    """Run a few sampled episodes, and return what identifies a model's behaviour.

    Args:
        machine: the model.
        n_episodes, n_rounds: numbers of episodes and of rounds to run.

    Returns:
        A dictionary: a hash of the episodes, predictions ``[episode, round, ...]``, the mean
        absolute carried state ("carries"), and the exact state if the model has one.
    """
    task = catalog.get(machine.layout.task)
    episodes = task.sample_for(machine, n_episodes, task.cap_rounds(n_rounds), SEED)
    layout = machine.layout.fit(episodes)
    encoded = machine.prepare(layout.encode(episodes))
    run = sequential(machine, encoded, layout, commit="target")
    mean_state = run.latents.abs().mean((2, 3))  # [episode, round + 1], over rows and width
    behaviour = {"predictions": run.predictions, "carries": mean_state}
    if machine.is_handwired:
        behaviour["state"] = machine.read_state(run.latents)
    numbers: dict[str, Any] = {name: part.double().tolist() for name, part in behaviour.items()}
    encoded_rounds = b"".join(map(bytes_of, run.fed.tensors().values()))
    return {"episodes": hashlib.sha256(encoded_rounds).hexdigest(), **numbers}


def _require_finite(tensors: dict[str, torch.Tensor], what: str) -> None:
    """Refuse weights that are NaN or infinite.

    Args:
        tensors: the weights by name.
        what: beginning of the error message.
    """
    wrong = [
        name
        for name, tensor in tensors.items()
        if tensor.is_floating_point() and not tensor.isfinite().all()
    ]
    require(
        not wrong,
        f"{what} weights that are not finite at {', '.join(wrong[:5])}; use an earlier checkpoint",
    )
