"""Models by name: handwired circuits, shipped learned models, and machines that users register.

The package ``circuits``, which this one may not import, calls :func:`register` for each handwired
model. Users call :func:`register_machine` with a function that builds a machine; it can then be
loaded by name, trained, saved and loaded again.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from interp.core import catalog
from interp.core.machine import Machine
from interp.support.checks import MOST_GB, checked, checked_fields, file_path, folder_name
from interp.support.errors import InputError, require, require_known, unknown_name
from interp.support.files import convert_read_errors, read_json
from interp.support.lazy import entry

_LOG = logging.getLogger(__name__)
SHIPPED = Path(__file__).parents[1] / "checkpoints"


@dataclass(frozen=True)
@checked_fields
class ModelRecord:
    """A model that :func:`load` can load by name.

    Attributes:
        name: name of the model.
        kind: "handwired" (a circuit), "learned" (a shipped checkpoint) or "built" (by a user's
            registered builder).
        description: one line about it.
        task: key of its task.
        serves: the sizes of episodes that the model can read: name of a size -> its smallest and
            largest value, such as ``{"n_experts": (2, 8)}``. Empty if a model of any size can be
            built.
    """

    name: str
    kind: Literal["handwired", "learned", "built"]
    description: str
    task: str
    serves: Mapping[str, tuple[int | bool, int | bool]] = field(default_factory=dict)

    def can_read(self, sizes: Mapping[str, int]) -> bool:
        """Return whether the model can read episodes of these sizes, such as
        ``{"n_experts": 4}``.
        """
        ranges = self.serves.items()
        # A size that is not among ``sizes`` fits.
        return all(low <= sizes.get(name, low) <= high for name, (low, high) in ranges)


HANDWIRED: dict[str, tuple[ModelRecord, Callable[..., Machine]]] = {}
"""Handwired models that :func:`register` added: name -> record and the function that builds it."""


def register(name: str, description: str, task: str, load: Callable[..., Machine]) -> None:
    """Register a handwired model.

    Args:
        name: name by which :func:`load` finds it.
        description: one line about it.
        task: key of its task.
        load: function that builds the model. :func:`interp.load` calls it with ``max_gb`` (its
            memory limit) and the user's keyword arguments.
    """
    record = ModelRecord(name, kind="handwired", description=description, task=task)
    HANDWIRED[name] = record, load


BUILT: dict[str, ModelRecord] = {}
"""Models that :func:`register_machine` added, by name. Their builders are in
``interp.model.checkpoints.BUILDERS``.
"""


@checked
def register_machine(
    name: str, build: Callable[..., Machine], *, description: str, task: str
) -> None:
    """Register a function that builds a model, so that :func:`load`, training, checkpoints and
    `interp models` can use the model by name.

    A checkpoint stores the weights, this name and the builder's arguments, but no code. The same
    builder must be registered before such a checkpoint is loaded, so call this in an importable
    module. A model that the builder makes is checked by the quick checks of
    ``interp.check_machine``.

    Args:
        name: name for :func:`load`, which no other model may have.
        build: function that makes the model, usually by ``interp.adapt``. Its arguments must be
            JSON values (numbers, strings, lists, tables), each with a default. It runs with a fixed
            random seed.
        description: one line for `interp models`.
        task: key of the task that its models learn.

    Example:
        >>> register_machine("wma-learned", dict, description="", task="experts")
        Traceback (most recent call last):
        interp.support.errors.InputError: a model 'wma-learned' is known already; choose another name
    """
    folder_name("name", name)
    require_known("task", task, [known.key for known in catalog.list_tasks()])
    require(callable(build), f"build must be a function that makes a machine, got {build!r}")
    require(
        name not in {record.name for record in models()},
        f"a model {name!r} is known already; choose another name",
    )
    from interp.model.checkpoints import BUILDERS

    BUILDERS[name] = build
    BUILT[name] = ModelRecord(name, kind="built", description=description, task=task)


def handwired_models(task: str) -> tuple[str, ...]:
    """Return the names of the handwired models of a task."""
    return tuple(record.name for record, _ in _list_loaders().values() if record.task == task)


def _list_loaders() -> dict[str, tuple[ModelRecord, Callable[..., Machine]]]:
    """Return the handwired models by name, each as (record, function that builds it)."""
    entry("circuits")  # importing it registers its handwired models
    return HANDWIRED


def models() -> list[ModelRecord]:
    """Return the records of all models that can be loaded by name, sorted by task.

    >>> [record.name for record in models() if record.kind == "handwired"]
    ['wma-handwired', 'qlearning-handwired', 'reachability-handwired']
    """
    records = [record for record, _ in _list_loaders().values()]
    for path in sorted(SHIPPED.glob("*/config.json")):
        records.append(_read_record(path.parent))
    records += BUILT.values()
    tasks = [task.key for task in catalog.list_tasks()]
    # A checkpoint may be of a task that this program has not registered.
    registered = [record for record in records if record.task in tasks]
    return sorted(registered, key=lambda record: tasks.index(record.task))


@checked
def load(name: str | Path, *, max_gb: float = MOST_GB, **arguments: Any) -> Machine:
    """Load a model on the CPU, in evaluation mode.

    Args:
        name: a name from :func:`models`, or the path of a checkpoint folder.
        max_gb: memory limit in units of 1e9 bytes; a larger model is refused before memory is
            allocated.
        arguments: arguments for a handwired circuit, such as ``n_experts``, ``gamma``,
            ``n_states``, ``n_actions``, ``alpha``, ``variant``; or for a registered builder. A
            learned model takes none.

    Raises:
        InputError: an unknown name, or any argument for a learned model. If the arguments are sizes
            of episodes that the learned model cannot read, the message names models that can.

    Example:
        >>> import interp
        >>> interp.load("wma-handwired", n_experts=4).layout.labels[:4]
        ('<w>', '<z>', 'e_1', 'p_1')
    """
    name = file_path(name, "the model")
    settings = [f"{key}={value}" for key, value in arguments.items()]
    _LOG.info("loading %s", " ".join([name, *settings]))
    if name in _list_loaders():  # a handwired circuit
        _, build = HANDWIRED[name]
        return build(max_gb=max_gb, **arguments)
    from interp.model.checkpoints import build_registered, load_checkpoint

    if name in BUILT:
        return build_registered(name, arguments, BUILT[name].task)
    folder = _find_checkpoint(name)
    if arguments:
        raise _arguments_error(name, _read_record(folder), arguments)
    return load_checkpoint(folder, max_gb=max_gb)


def _find_checkpoint(name: str) -> Path:
    """Return the folder of the checkpoint ``name``: the name of a shipped model, or a path."""
    shipped = SHIPPED / name
    if (shipped / "config.json").is_file():
        return shipped
    folder = Path(name)
    if folder.is_dir():
        return folder
    if len(folder.parts) > 1:
        raise InputError(
            f"no checkpoint folder at {name!r}; it holds config.json and model.safetensors"
        )
    raise unknown_name("model", name, [record.name for record in models()])


def _arguments_error(name: str, record: ModelRecord, arguments: Mapping[str, Any]) -> InputError:
    """Return the error for arguments passed to a learned model, to be raised by the caller.

    If the arguments are sizes, the error names models that can read them.

    Args:
        name: name of the model, as the user wrote it.
        record: record of the model.
        arguments: the arguments that the user passed.
    """
    values = ", ".join(f"{argument}={value}" for argument, value in sorted(arguments.items()))
    text = f"{name!r} is a learned model: its checkpoint fixes everything, so it takes no {values}"
    if set(arguments) <= set(record.serves) and not record.can_read(arguments):
        sizes = []
        for size, (low, high) in record.serves.items():
            sizes.append(f"{size} {low} to {high}" if high > low else f"{size} {low}")
        others = name_supporting_models(record.task, **arguments)
        text += f"; it serves {', '.join(sizes)}. Models for {values}: {others}"
    return InputError(text)


def name_supporting_models(task: str, **sizes: int) -> str:
    """Return the names of a task's models that can run on episodes of given sizes, as a text "a, b"
    for an error message; "none" if there are none. Models that users registered are left out.

    Args:
        task: key of the task.
        sizes: name of a size of the episodes -> its value, such as ``n_experts=4``. The sizes that
            a model can read are in ``ModelRecord.serves``.
    """
    names = [
        record.name
        for record in models()
        if record.task == task and record.kind != "built" and record.can_read(sizes)
    ]
    return ", ".join(names) or "none"


def _read_record(folder: Path) -> ModelRecord:
    """Return the record of a learned model, from its checkpoint folder."""
    path = folder / "config.json"
    config = read_json(path, "config")["config"]
    with convert_read_errors(path):
        # For models without a description: a transformer's rule of update, or another's builder.
        how_made = f"latent_update {config.get('latent_update')}"
        if "builder" in config:
            how_made = f"built by {config['builder']!r}"
        layout = config["layout"]
        serves = {}  # name of a size of episodes -> (smallest, largest) that the model can read
        for name, value in layout.items():
            if isinstance(value, int):  # a size; it may have a range, such as n_experts_range
                serves[name] = tuple(layout.get(f"{name}_range") or (value, value))
        return ModelRecord(
            folder.name,
            kind="learned",
            description=config["origin"].get("description", f"trained, {how_made}"),
            task=layout["task"],
            serves=serves,
        )
