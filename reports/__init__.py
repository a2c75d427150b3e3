"""Reports: one self-contained HTML page about a model, opening offline in any browser.

In this room: ``reports.build`` (a model's name in, a page out), ``reports.recipes`` (what the report on a model of each
task holds), ``reports.sections`` (one file per family of sections), ``reports.page`` (a report and how it becomes
HTML), ``reports.blocks`` (what a section is made of), ``reports.figures``, ``reports.flow`` and ``reports.wiring``
(pictures), ``reports.attention`` (interactive attention views), ``reports.svg``, ``reports.style`` and
``reports.palette`` (how pictures look on a page), and ``reports.llm`` (the page on language models).
Not here: the computations that a report shows; they belong to ``interp``, ``circuits`` and ``probes``.
Import from the modules; nothing is re-exported, so that this package stays light (no matplotlib, no torch).
"""
