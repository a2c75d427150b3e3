"""The parts that a report on any task can have, one idea a file: its ``part(...)`` makes a :class:`~reports.part.Part`.

``overview`` (the summary), ``verification`` (a handwired model against its algorithm), ``state`` (what the latents hold
over time), ``probing``, ``patching``, ``interchange``, ``steering``, ``edges`` (circuits of edges), ``attention``,
``circuit`` (the reads of one round, and the wiring), ``softening`` (the softmax-only variant), ``learning`` (shipped
learning curves), ``reproduce``; ``default`` lists those that need no more than a task's record. What only one task has
stands in ``reports.tasks``.

    >>> from reports.parts import probing
    >>> probing.part(targets=("log_weights",)).title
    'Probes'
"""

__all__ = [
    "attention",
    "circuit",
    "default",
    "edges",
    "interchange",
    "learning",
    "overview",
    "patching",
    "probing",
    "reproduce",
    "softening",
    "state",
    "steering",
    "verification",
]
