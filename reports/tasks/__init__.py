"""What only a report on one task holds: a file per task, whose ``parts()`` lists the whole report in page order.

A task's record names it (``Task.report``); importing this package imports none of them.
"""

__all__ = ["experts", "qlearning"]
