"""The parts that a report on any task can have: each function makes a :class:`~reports.part.Part`.

``reports.tasks`` has the list of those that every report has, and what only one task has.

    >>> from reports.parts import probing
    >>> probing.part(targets=("log_weights",)).title
    'Probes'
"""
