"""What can be loaded by name: handwired circuits, compiled on the spot, the learned models that ship, your machines.

The room that wires circuits stands above this one: it registers how each is loaded (:func:`register`), and the facade
says which module does (:mod:`interp.support.lazy`). A machine of your own is known by the function that builds it
(:func:`register_machine`): it can then be loaded by name, trained, saved and loaded again.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from interp.core import catalog
from interp.core.machine import Machine
from interp.support.checks import MOST_GB, checked, file_path, folder_name
from interp.support.errors import InputError, require, require_known, unknown_name
from interp.support.files import read_json, reading
from interp.support.lazy import entry

_LOG = logging.getLogger(__name__)
SHIPPED = Path(__file__).parents[1] / "checkpoints"


@dataclass(frozen=True)
class ModelRecord:
    """A model that :func:`load` knows.

    ``kind``: a circuit that is "handwired", a model that ships "learned", or a machine that a registered builder makes,
    "built". ``serves`` is the smallest and largest of each size that it reads; what is built for any names none.
    """

    name: str
    kind: Literal["handwired", "learned", "built"]
    description: str
    task: str
    serves: Mapping[str, tuple[int, int]] = field(default_factory=dict)

    def reads(self, sizes: Mapping[str, int]) -> bool:
        """Whether it reads episodes of these sizes."""
        return all(low <= sizes.get(name, low) <= high for name, (low, high) in self.serves.items())


_HANDWIRED: dict[str, tuple[ModelRecord, Callable[..., Machine]]] = {}


def register(name: str, description: str, task: str, load: Callable[..., Machine]) -> None:
    """Add a handwired model: ``load`` builds it from the arguments of :func:`load`."""
    _HANDWIRED[name] = ModelRecord(name, "handwired", description, task), load


_BUILT: dict[str, ModelRecord] = {}


@checked
def register_machine(
    name: str, build: Callable[..., Machine], *, description: str, task: str
) -> None:
    """Make machines of your own known by ``name``: to :func:`load`, to training, to checkpoints and `interp models`.

    A checkpoint holds weights, this name and the arguments, and no code: where it is loaded, the same builder must be
    registered first, so call this in a module that can be imported.

    Args:
        name: what :func:`load` will call it, which no other model may have.
        build: makes the machine, as a rule with ``interp.adapt``, from arguments that JSON can say (numbers, texts,
            lists, tables), each with a default. It is given a generator of random numbers with the same seed each time.
        description: one line for `interp models`.
        task: key of the task that its machines learn.

    What it builds must keep the contract of machines: the cheap checks of ``interp.check_machine`` run on it.

    Example:
        >>> register_machine("wma-learned-additive", dict, description="", task="experts")
        Traceback (most recent call last):
        interp.support.errors.InputError: a model 'wma-learned-additive' is known already; choose another name
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
    """The names of the handwired models of a task."""
    return tuple(record.name for record, _ in _loaders().values() if record.task == task)


def _loaders() -> dict[str, tuple[ModelRecord, Callable[..., Machine]]]:
    entry("circuits")
    return _HANDWIRED


def models() -> list[ModelRecord]:
    """Every model that can be loaded by name, task by task; a checkpoint folder can be loaded by its path.

    >>> [record.name for record in models() if record.kind == "handwired"]
    ['wma-handwired', 'qlearning-handwired', 'reachability-handwired']
    """
    known = [record for record, _ in _loaders().values()] + [
        _learned(path.parent) for path in sorted(SHIPPED.glob("*/config.json"))
    ]
    known += _BUILT.values()
    return [record for task in catalog.every() for record in known if record.task == task.key]


@checked
def load(name: str | Path, *, max_gb: float = MOST_GB, **arguments: Any) -> Machine:
    """Load a model, in evaluation mode, on the CPU.

    Args:
        name: a name from :func:`models`, or the path of a checkpoint folder.
        max_gb: a model of more units of 1e9 bytes is refused, with an estimate, before memory is taken.
        arguments: what a handwired circuit is built from: ``n_experts``, ``gamma``, ``n_states``, ``n_actions``,
            ``alpha``, ``variant``, ...; of a machine of your own, what its builder takes. A learned model takes none:
            its checkpoint says everything; where it does not serve the sizes asked for, the error names the models
            that do.

    Example:
        >>> import interp
        >>> interp.load("wma-handwired", n_experts=4).layout.labels[:4]
        ('<w>', '<z>', 'e_1', 'p_1')
    """
    name = file_path(name, "the model")
    _LOG.info(
        "loading %s", " ".join([name, *(f"{key}={value}" for key, value in arguments.items())])
    )
    if name in _loaders():
        return _HANDWIRED[name][1](max_gb=max_gb, **arguments)
    from interp.model.checkpoints import built, load_checkpoint

    if name in _BUILT:
        return built(name, arguments, _BUILT[name].task)
    folder = SHIPPED / name
    if not (folder / "config.json").is_file():
        folder = Path(name)
        if not folder.is_dir():
            if len(folder.parts) > 1:
                raise InputError(
                    f"no checkpoint folder at {name!r}; it holds config.json and model.safetensors"
                )
            raise unknown_name("model", name, [record.name for record in models()])
    if arguments:
        given = ", ".join(f"{argument}={value}" for argument, value in sorted(arguments.items()))
        record = _learned(folder)
        text = (
            f"{name!r} is a learned model: its checkpoint fixes everything, so it takes no {given}"
        )
        if set(arguments) <= set(record.serves) and not record.reads(arguments):
            served = record.serves.items()
            own = ", ".join(
                f"{size} {low}" + (f" to {high}" if high > low else "")
                for size, (low, high) in served
            )
            text += f"; it serves {own}. Models for {given}: {serving(record.task, **arguments)}"
        raise InputError(text)
    return load_checkpoint(folder, max_gb=max_gb)


def serving(task: str, **sizes: int) -> str:
    """The names of the models of a task, wired or learned, that read episodes of these sizes, for sentences."""
    known = [record for record in models() if record.task == task and record.kind != "built"]
    return ", ".join(record.name for record in known if record.reads(sizes)) or "none"


def _learned(folder: Path) -> ModelRecord:
    path = folder / "config.json"
    config = read_json(path, "config")["config"]
    with reading(path):
        made = (
            f"built by {config['builder']!r}"
            if "builder" in config
            else f"latent_update {config['latent_update']}"
        )
        description = config["origin"].get("description", f"trained, {made}")
        layout = config["layout"]
        sizes = {name: value for name, value in layout.items() if isinstance(value, int)}
        serves = {
            name: tuple(layout.get(f"{name}_range") or (size, size)) for name, size in sizes.items()
        }
        return ModelRecord(folder.name, "learned", description, layout["task"], serves)
