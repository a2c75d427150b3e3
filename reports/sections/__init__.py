"""Sections of reports, one file per family: each function takes results and returns a ``reports.page.Section``.

``overview`` (summary, verification, how to reproduce), ``behaviour`` (state over time, regret, calibration, free
rollouts), ``inside`` (attention views, the circuit), ``probing``, ``patching``, ``interchange``, ``steering``,
``edges`` and ``softening``. Nothing is computed here that another room computes; sections only arrange results.
"""
