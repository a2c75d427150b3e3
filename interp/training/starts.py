"""What weights a run starts from, where not from those that were drawn."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

from interp.errors import InputError, unknown_name
from interp.library import load, models
from interp.model.transformer import HookedLatentTransformer

_SAID = ("name", "origin")
"""What a configuration says of a model's history, not of its shape."""


def begin(
    model: HookedLatentTransformer, start: str, starts: Mapping[str, Callable[[HookedLatentTransformer], None]]
) -> None:
    """Set the weights before the first step: as one of the goal's starts does, or to those of a trained model.

    Args:
        start: one of ``starts``, the name of a learned model that ships, or a checkpoint folder.

    Raises:
        InputError: no such start or model, or a model of another configuration.
    """
    if start in starts:
        starts[start](model)
        return
    trained = [record.name for record in models() if record.kind == "learned" and record.task == model.layout.task]
    if start not in trained and not Path(start).is_dir():
        raise unknown_name(f"start of {model.layout.task!r}", start, [*starts, *trained])
    other = load(start)
    own, theirs = (
        {key: value for key, value in m.config.to_dict().items() if key not in _SAID} for m in (model, other)
    )
    apart = [key for key in own if own[key] != theirs[key]]
    if apart:
        said = "; ".join(f"{key} is {own[key]} here and {theirs[key]} there" for key in apart)
        raise InputError(f"weights of {start!r} do not fit this run: {said}; give the run the same")
    model.load_state_dict(other.state_dict())
