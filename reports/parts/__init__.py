"""The parts that a report on any task can have: each function makes a :class:`~reports.part.Part`.

>>> from reports.parts import probing
>>> probing.part(targets=("log_weights",)).title
'Probes'
"""
