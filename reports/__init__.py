"""Reports: one self-contained HTML page about a model, opening offline in any browser.

    >>> from reports.blocks import Prose
    >>> from reports.page import Report, Section
    >>> page = Report("A model", "What it does.", [Section("Summary", [Prose("It **works**.")])])
    >>> "<strong>works</strong>" in page.html()
    True

Import from the modules of this package. docs/method/pages.md says how to add parts, and describes the
other pages.
"""
