"""Reports: one self-contained HTML page about a model, opening offline in any browser.

In this room: ``reports.build`` (the driver: a model's name in, a page out), ``reports.sections`` (one file per family
of sections), ``reports.page`` (a report, its sections and how they become HTML), ``reports.blocks`` (what a section is
made of), ``reports.figures`` and ``reports.flow`` (matplotlib pictures from arrays), ``reports.attention`` (the
interactive attention views), ``reports.svg`` (a figure as inline SVG) and ``reports.palette``.
Not here: the computations that a report shows; they belong to ``interp``, ``circuits`` and ``probes``.
Import from the modules; nothing is re-exported, so that this package stays light (no matplotlib, no torch).
"""
