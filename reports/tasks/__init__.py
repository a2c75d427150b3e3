"""What only a report on one task holds: a file per task, whose ``parts()`` lists the whole report in page order.

A file has the key of its task for a name; importing this package imports none of them.
"""

from __future__ import annotations

import pkgutil
from pathlib import Path
from typing import Any

from interp.files import read_tables
from interp.lazy import named
from interp.task import Task
from reports.part import Part
from reports.parts.default import default_parts


def prose(task: str) -> dict[str, Any]:
    """What the page on a task says, by part (``prose.toml``)."""
    return dict(read_tables(Path(__file__).with_name("prose.toml"))[task])


def parts_for(task: Task) -> tuple[Part, ...]:
    """What a report on a task holds: what its record says, else its file in this package, else the default."""
    if task.report.parts is not None:
        return tuple(task.report.parts())
    ships = task.key in {module.name for module in pkgutil.iter_modules(__path__)}
    return tuple(named(f"{__name__}.{task.key}:parts")()) if ships else default_parts()
