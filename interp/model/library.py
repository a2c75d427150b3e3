"""What can be loaded by name: handwired circuits, compiled on the spot, the learned models that
ship, your machines.

The room that wires circuits stands above this one: it registers how each is loaded
(:func:`register`), and the facade says which module does (:mod:`interp.support.lazy`). A new
machine is registered with the function that builds it (:func:`register_machine`): it can then be
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
from interp.support.files import read_json, reading
from interp.support.lazy import entry

_LOG = logging.getLogger(__name__)
SHIPPED = Path(__file__).parents[1] / "checkpoints"


@dataclass(frozen=True)
@checked_fields
class ModelRecord:
    """A model that :func:`load` knows.

    ``kind``: a circuit that is "handwired", a model that ships "learned", or a machine that a registered builder makes,
    "built". ``serves`` is the smallest and largest of each size that it reads; what is built for any names none.
    """

    name: str
    kind: Literal["handwired", "learned", "built"]
    description: str
    task: str
    serves: Mapping[str, tuple[int | bool, int | bool]] = field(default_factory=dict)

    def reads(self, sizes: Mapping[str, int]) -> bool:
        """Return whether it reads episodes of these sizes."""
        served = self.serves.items()
        return all(low <= sizes.get(name, low) <= high for name, (low, high) in served)


_HANDWIRED: dict[str, tuple[ModelRecord, Callable[..., Machine]]] = {}


def register(name: str, description: str, task: str, load: Callable[..., Machine]) -> None:
    """Add a handwired model.

    Args:
        name: what :func:`load` calls it.
        description: one line.
        task: its task's key.
        load: builds it from the arguments of :func:`load`.
    """
    _HANDWIRED[name] = ModelRecord(name, "handwired", description, task), load


_BUILT: dict[str, ModelRecord] = {}


@checked
def register_machine(
    name: str, build: Callable[..., Machine], *, description: str, task: str
) -> None:
    """Register new machines by ``name``: for :func:`load`, training, checkpoints and `interp
    models`.

    A checkpoint holds weights, this name and the arguments, and no code: where it is loaded, the
    same builder must be registered first, so call this in a module that can be imported.

    Args:
        name: what :func:`load` will call it, which no other model may have.
        build: makes the machine, as a rule with ``interp.adapt``, from arguments that JSON can say
            (numbers, texts, lists, tables), each with a default. It runs with the same seed of
            random numbers each time.
        description: one line for `interp models`.
        task: key of the task that its machines learn.

    What it builds must keep the contract of machines: the cheap checks of ``interp.check_machine``
    run on it.

    Example:
        >>> register_machine("wma-learned", dict, description="", task="experts")
        Traceback (most recent call last):
        interp.support.errors.InputError: a model 'wma-learned' is known already; choose another name
    """
    folder_name("name", name)
    require_known("task", task, [known.key for known in catalog.every()])
    require(callable(build), f"build must be a function that makes a machine, got {build!r}")
    require(
        name not in {record.name for record in models()},
        f"a model {name!r} is known already; choose another name",
    )
    from interp.model.checkpoints import BUILDERS

    BUILDERS[name] = build
    _BUILT[name] = ModelRecord(name, "built", description, task)


def handwired_models(task: str) -> tuple[str, ...]:
    """Return the names of the handwired models of a task."""
    return tuple(record.name for record, _ in _loaders().values() if record.task == task)


def _loaders() -> dict[str, tuple[ModelRecord, Callable[..., Machine]]]:
    entry("circuits")
    return _HANDWIRED


def models() -> list[ModelRecord]:
    """Return every model that can be loaded by name, task by task; a checkpoint folder can be loaded by its path.

    >>> [record.name for record in models() if record.kind == "handwired"]
    ['wma-handwired', 'qlearning-handwired', 'reachability-handwired']
    """
    records = [record for record, _ in _loaders().values()]
    for path in sorted(SHIPPED.glob("*/config.json")):
        records.append(_read_record(path.parent))
    records += _BUILT.values()
    tasks = [task.key for task in catalog.every()]
    registered = [record for record in records if record.task in tasks]
    return sorted(registered, key=lambda record: tasks.index(record.task))


@checked
def load(name: str | Path, *, max_gb: float = MOST_GB, **arguments: Any) -> Machine:
    """Load a model, in evaluation mode, on the CPU.

    Args:
        name: a name from :func:`models`, or the path of a checkpoint folder.
        max_gb: a model of more units of 1e9 bytes is refused, with an estimate, before memory is
            taken.
        arguments: what a handwired circuit is built from: ``n_experts``, ``gamma``, ``n_states``,
            ``n_actions``, ``alpha``, ``variant``, ...; for a registered machine, what its builder
            takes. A learned model takes none: its checkpoint says everything; where it does not
            serve these sizes, the error names the models that do.

    Example:
        >>> import interp
        >>> interp.load("wma-handwired", n_experts=4).layout.labels[:4]
        ('<w>', '<z>', 'e_1', 'p_1')
    """
    name = file_path(name, "the model")
    settings = [f"{key}={value}" for key, value in arguments.items()]
    _LOG.info("loading %s", " ".join([name, *settings]))
    if name in _loaders():
        return _HANDWIRED[name][1](max_gb=max_gb, **arguments)
    from interp.model.checkpoints import built, load_checkpoint

    if name in _BUILT:
        return built(name, arguments, _BUILT[name].task)
    folder = _find_checkpoint(name)
    if arguments:
        raise _no_arguments(name, _read_record(folder), arguments)
    return load_checkpoint(folder, max_gb=max_gb)


def _find_checkpoint(name: str) -> Path:
    """Return the folder of a model that ships, or of a checkpoint by its path."""
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


def _no_arguments(name: str, record: ModelRecord, arguments: Mapping[str, Any]) -> InputError:
    """Return the error for arguments of a learned model; where they are sizes, it names the models that serve them.

    Args:
        name: what the user called the model.
        record: of the model.
        arguments: what the user gave.
    """
    values = ", ".join(f"{argument}={value}" for argument, value in sorted(arguments.items()))
    text = f"{name!r} is a learned model: its checkpoint fixes everything, so it takes no {values}"
    if set(arguments) <= set(record.serves) and not record.reads(arguments):
        sizes = []
        for size, (low, high) in record.serves.items():
            sizes.append(f"{size} {low} to {high}" if high > low else f"{size} {low}")
        others = serving(record.task, **arguments)
        text += f"; it serves {', '.join(sizes)}. Models for {values}: {others}"
    return InputError(text)


def serving(task: str, **sizes: int) -> str:
    """Return the names of a task's models, wired or learned, that read episodes of these sizes, for sentences."""
    names = []
    for record in models():
        if record.task == task and record.kind != "built" and record.reads(sizes):
            names.append(record.name)
    return ", ".join(names) or "none"


def _read_record(folder: Path) -> ModelRecord:
    """Read the record of a learned model from its checkpoint."""
    path = folder / "config.json"
    config = read_json(path, "config")["config"]
    with reading(path):
        way = f"latent_update {config.get('latent_update')}"
        if "builder" in config:
            way = f"built by {config['builder']!r}"
        layout = config["layout"]
        serves = {}
        for name, value in layout.items():
            if isinstance(value, int):
                serves[name] = tuple(layout.get(f"{name}_range") or (value, value))
        return ModelRecord(
            folder.name,
            "learned",
            config["origin"].get("description", f"trained, {way}"),
            layout["task"],
            serves,
        )
