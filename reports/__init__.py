"""Reports: one self-contained HTML page about a model, opening offline in any browser.

A report is a list of parts (``reports.part``); ``reports.build.write`` finds those of a model's task, computes and
draws them, and writes the page. Your own part stands beside the others::

    from reports.build import write
    from reports.tasks import default_parts

    write("wma-learned", parts=(*default_parts(), my_part))

``write`` is the verb of every page: of a comparison in ``comparison``, of a benchmark in ``benchmark``, of language
models in ``llm``. Each takes what the page is about and ``out``, the folder that it lies in.

A section is made of ``blocks``; ``parts`` has what any task's report can hold, ``tasks`` what one task's holds beside
that. The computations that a report shows are not here: they belong to ``interp``, ``circuits`` and ``probes``.

    >>> from reports.blocks import Prose
    >>> from reports.page import Report, Section
    >>> page = Report("A model", "What it does.", [Section("Summary", [Prose("It **works**.")])])
    >>> "<strong>works</strong>" in page.html()
    True

Import from the modules; nothing is re-exported, so that this package stays light (no matplotlib, no torch).
"""
