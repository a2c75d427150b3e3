"""Reports: one self-contained HTML page about a model, opening offline in any browser.

    >>> from reports.blocks import Prose
    >>> from reports.page import Report, Section
    >>> page = Report("A model", "What it does.", [Section("Summary", [Prose("It **works**.")])])
    >>> "<strong>works</strong>" in page.html()
    True

Import from the modules. Further parts, and the other pages: docs/method/pages.md.
"""
