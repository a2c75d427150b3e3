"""The parts of a report on a task that does not say what its report holds, or says it."""

from __future__ import annotations

from interp.tasks import Task
from reports.part import Part
from reports.parts import (
    attention,
    circuit,
    compared,
    edges,
    interchange,
    learning,
    overview,
    patching,
    probing,
    reproduce,
    state,
    steering,
)


def parts_for(task: Task) -> tuple[Part, ...]:
    """What a task's record says that its report holds; :func:`default_parts` where it says nothing."""
    return default_parts() if task.report is None else tuple(task.report())


def default_parts() -> tuple[Part, ...]:
    """Every part that needs no more than a task's record, in page order.

    >>> [part.title for part in default_parts()][:4]
    ['Verdicts', 'Compared with other machines', 'The state over time', 'Probes']
    """
    return (
        overview.part(),
        compared.part(),
        state.part(),
        probing.part(),
        patching.part(),
        interchange.part(),
        steering.part(),
        edges.part(),
        attention.part(),
        circuit.part(),
        learning.part(),
        reproduce.part(),
    )
