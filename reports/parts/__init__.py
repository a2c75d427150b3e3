"""The parts that a report on any task can have: each function makes a :class:`~reports.part.Part`.

``default`` is the list of those that every report has. What only one task has stands in ``reports.tasks``.

    >>> from reports.parts import probing
    >>> probing.part(targets=("log_weights",)).title
    'Probes'
"""
