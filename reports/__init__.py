"""Reports: one self-contained HTML page about a model, opening offline in any browser.

A report is a list of parts (``reports.part``); ``reports.build.write`` finds those of a model's task, computes and
draws them, and writes the page. A section is made of ``blocks``; ``parts`` has what any task's report can hold,
``tasks`` what one task's holds beside that.

    >>> from reports.blocks import Prose
    >>> from reports.page import Report, Section
    >>> page = Report("A model", "What it does.", [Section("Summary", [Prose("It **works**.")])])
    >>> "<strong>works</strong>" in page.html()
    True

Import from the modules; nothing is re-exported. Your own part, and the other pages: docs/method/pages.md.
"""
