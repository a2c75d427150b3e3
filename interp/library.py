"""What can be loaded by name: handwired circuits, compiled on the spot, and the learned models that ship."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from interp.errors import InputError, require, unknown_name

if TYPE_CHECKING:
    from interp.model.transformer import HookedLatentTransformer

SHIPPED = Path(__file__).parent / "checkpoints"


@dataclass(frozen=True)
class ModelRecord:
    """A model that :func:`load` knows."""

    name: str
    kind: Literal["handwired", "learned"]
    description: str


def models() -> list[ModelRecord]:
    """Every model that can be loaded by name; a checkpoint folder can be loaded by its path."""
    import circuits

    handwired = [ModelRecord(name, "handwired", description) for name, description in circuits.models().items()]
    return handwired + [_learned(folder) for folder in _shipped()]


def load(name: str, **arguments: Any) -> HookedLatentTransformer:
    """Load a model, in evaluation mode, on the CPU.

    Args:
        name: a name from :func:`models`, or the path of a checkpoint folder.
        arguments: what a handwired circuit is built from: ``n_experts``, ``gamma``, ``n_states``, ``n_actions``,
            ``alpha``, ``variant``, ... A learned model takes none: its checkpoint says everything.

    Raises:
        InputError: no such name or folder, or an argument that the model does not take.

    Example:
        >>> import interp
        >>> interp.load("wma-handwired", n_experts=4).layout.labels[:4]
        ('<w>', '<z>', 'e_1', 'p_1')
    """
    import circuits

    if name in circuits.models():
        return circuits.load(name, **arguments)
    from interp.model.checkpoints import load_checkpoint

    folder = SHIPPED / name
    if not (folder / "config.json").is_file():
        folder = Path(name)
        if not folder.is_dir():
            if len(folder.parts) > 1:
                raise InputError(f"no checkpoint folder at {name!r}; it holds config.json and model.safetensors")
            raise unknown_name("model", name, [record.name for record in models()])
    given = ", ".join(sorted(arguments))
    require(not arguments, f"{name!r} is a learned model: its checkpoint fixes everything, so it takes no {given}")
    return load_checkpoint(folder)


def _shipped() -> list[Path]:
    return sorted(path.parent for path in SHIPPED.glob("*/config.json"))


def _learned(folder: Path) -> ModelRecord:
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))["config"]
    description = config["origin"].get("description", f"trained, latent_update {config['latent_update']}")
    return ModelRecord(folder.name, "learned", description)
