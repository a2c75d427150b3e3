"""The parts of a report for each task. Some are in every report; further ones are in the task's
file in this folder.
"""

from __future__ import annotations

import pkgutil
from collections.abc import Mapping, Sequence
from typing import Any

from interp.core.task import Task
from interp.support.errors import require_known
from interp.support.lazy import resolve_name
from reports.part import Part
from reports.parts import (
    heads,
    interchange,
    overview,
    patching,
    probing,
    verification,
)

_EVERY_TASK = (
    overview.part(),
    probing.state(),
    probing.part(),
    patching.part(),
    interchange.INTERCHANGE,
    interchange.STEERING,
    patching.EDGES,
    heads.attention(),
    heads.CIRCUIT,
    overview.REPRODUCE,
)
"""Parts of every report, in page order. They need only the record of a task."""


def default_parts(
    replace: Sequence[Part] = (),
    after: Mapping[str, Sequence[Part]] | None = None,
    said: Mapping[str, Any] | None = None,
) -> tuple[Part, ...]:
    """Return the parts of every report, in page order, together with those of a task.

    Args:
        replace: parts that replace those with the same key.
        after: key of a part -> further parts that follow it.
        said: texts and options of a task with a handwired machine: key of a part -> arguments of
            the function that makes this part, such as the "parts" of
            :data:`reports.tasks.texts.PROSE`. With them, a part that verifies the handwired machine
            follows the overview. None leaves the parts of every report as they are.

    >>> [part.title for part in default_parts()][:3]
    ['What was found', 'The state over time', 'Probes']
    """
    parts = {part.key: part for part in _EVERY_TASK}
    following: dict[str, Sequence[Part]] = dict(after or {})
    if said:
        in_words_of_task = (
            overview.part(**said["overview"]),
            probing.state(**said["state"]),
            probing.part(**said["probes"]),
            patching.part(**said["patching"]),
        )
        parts |= {part.key: part for part in in_words_of_task}
        checks = verification.part(**said["verification"])
        following["summary"] = [checks, *following.get("summary", ())]
    replaced = {part.key: part for part in replace}
    for key in (*replaced, *following):
        require_known("part of every report", key, parts, limit=20)
    ordered = []
    for key, part in (parts | replaced).items():  # in the order of _EVERY_TASK
        ordered += [part, *following.get(key, ())]
    return tuple(ordered)


def parts_for(task: Task) -> tuple[Part, ...]:
    """Return the parts of a report on a task: those that the task's record defines; otherwise those
    of the task's file in this folder; without such a file, the default parts.
    """
    if task.report.parts is not None:
        return tuple(task.report.parts())
    files = [module.name for module in pkgutil.iter_modules(__path__)]
    if task.key not in files:
        return default_parts()
    return tuple(resolve_name(f"{__name__}.{task.key}:parts")())
