"""The parts that every report has, and what only a report on one task holds: a file per task, by its key."""

from __future__ import annotations

import pkgutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from interp.core.task import Task
from interp.support.errors import require_known
from interp.support.files import read_tables
from interp.support.lazy import named
from reports.part import Part
from reports.parts import (
    compared,
    heads,
    interchange,
    learning,
    overview,
    patching,
    probing,
    verification,
)

_EVERY_TASK = (
    overview.part(),
    compared.COMPARED,
    probing.state(),
    probing.part(),
    patching.part(),
    interchange.INTERCHANGE,
    interchange.STEERING,
    patching.EDGES,
    heads.attention(),
    heads.CIRCUIT,
    learning.part(),
    overview.REPRODUCE,
)
"""What needs no more than a task's record, in page order. A part that every report should have is added here."""


def default_parts(
    replace: Sequence[Part] = (),
    after: Mapping[str, Sequence[Part]] | None = None,
    said: Mapping[str, Any] | None = None,
) -> tuple[Part, ...]:
    """The parts that every report has, in page order, with a task's own.

    Args:
        replace: parts that stand in the place of those of their key.
        after: key of a part -> parts of the task's own that follow it.
        said: what a task with a handwired machine says in the parts that each such task has, by part (``prose.toml``).

    >>> [part.title for part in default_parts()][:3]
    ['What was found', 'Compared with other machines', 'The state over time']
    """
    default = {part.key: part for part in _EVERY_TASK}
    own, following = {part.key: part for part in replace}, {**(after or {})}
    if said:
        told = (
            overview.part(**said["overview"]),
            probing.state(**said["state"]),
            probing.part(**said["probes"]),
        )
        own = {part.key: part for part in (*told, patching.part(**said["patching"]))} | own
        following["compared"] = [
            verification.part(**said["verification"]),
            *following.get("compared", ()),
        ]
        following["circuit"] = [
            verification.softening(**said["softening"]),
            *following.get("circuit", ()),
        ]
    for key in (*own, *following):
        require_known("part of every report", key, default, limit=20)
    return tuple(
        part for key in default for part in (own.get(key, default[key]), *following.get(key, ()))
    )


def prose(task: str) -> dict[str, Any]:
    """What the page on a task says, by part (``prose.toml``)."""
    return dict(read_tables(Path(__file__).with_name("prose.toml"))[task])


def parts_for(task: Task) -> tuple[Part, ...]:
    """What a report on a task holds: what its record says, else its file in this package, else the default."""
    if task.report.parts is not None:
        return tuple(task.report.parts())
    ships = task.key in {module.name for module in pkgutil.iter_modules(__path__)}
    return tuple(named(f"{__name__}.{task.key}:parts")()) if ships else default_parts()
