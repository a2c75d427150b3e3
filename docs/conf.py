"""How Sphinx builds these pages: static, offline. ``docs.build`` calls it."""

import re
from typing import Any

import interp
from docs.generated import ROOMS

project = "latent-context-interp"
copyright = "2026, the latent-context-interp developers"
version = release = interp.__version__

extensions = ["myst_nb", "sphinx.ext.autodoc", "sphinx.ext.napoleon"]
html_theme = "furo"
html_static_path = ["static"]
html_css_files = ["pages.css"]
html_js_files = [("pages.js", {"defer": "defer"})]
html_title = f"{project} {release}"
html_use_index = html_domain_indices = False  # no page leads there; the search finds names

myst_enable_extensions = ["deflist"]
myst_heading_anchors = 3
nb_execution_mode = "off"  # docs.notebooks runs the tutorials

toc_object_entries = False  # every page would list every object: a third of the time
autodoc_member_order = "bysource"
autodoc_use_type_comments = False
napoleon_numpy_docstring = False
napoleon_use_rtype = False
napoleon_use_ivar = True
napoleon_attr_annotations = False
# Several rooms have a class of the same name, such as Regime; a bare name in a signature may then mean either.
suppress_warnings = ["mystnb.unknown_mime_type", "myst-nb.lexer", "ref.python"]


def plain(app: Any, what: str, name: str, obj: Any, options: Any, lines: list[str]) -> None:
    """Docstrings say |S| and **arguments in plain text: outside of code these are no markup."""
    if what == "data" and not getattr(obj, "__module__", "interp").startswith(ROOMS):
        lines.clear()  # what Python says of a bare number or function, which is not ours
    literal = False
    for i, line in enumerate(lines):
        if line.strip() and not line.startswith("    "):
            literal = False
        if not literal and not line.lstrip().startswith((">>>", "...")):
            line = re.sub(
                r":math:`([^`]*)`", r"``\1``", line
            )  # pages that open offline load no MathJax
            parts = line.split("``")
            parts[::2] = [
                part.replace("|", "\\|").replace("*", "\\*").replace("tcp:", "tcp\\:")
                for part in parts[::2]
            ]
            lines[i] = "``".join(parts).replace(
                "\\* ", "* ", 1 if line.lstrip().startswith("* ") else 0
            )
        literal = literal or line.rstrip().endswith("::")


_THERE, _HERE = (
    '<li class="toctree-l1"><a class="',
    '<li class="toctree-l1 current current-page"><a class="current ',
)
_SIDEBARS: dict[str, str] = {}


def sidebar(app: Any, page: str, template: str, context: dict[str, Any], doctree: Any) -> None:
    """The sidebar is made once a folder, whose pages have the same links: furo makes it anew for every page."""
    from furo.navigation import get_navigation_tree

    folder, _, name = page.rpartition("/")
    link = f'reference internal" href="{name}.html">'
    if folder not in _SIDEBARS:
        tree = context["contents"](
            collapse=False, titles_only=True, maxdepth=-1, includehidden=True
        )
        _SIDEBARS[folder] = get_navigation_tree(tree).replace(
            f'{_HERE}reference internal" href="#">', _THERE + link
        )
    context["furo_navigation_tree"] = _SIDEBARS[folder].replace(_THERE + link, _HERE + link)


def setup(app: Any) -> None:
    """Called by Sphinx."""
    app.connect("autodoc-process-docstring", plain, priority=400)
    app.connect(
        "html-page-context", lambda *of: of[3].update(contents=of[3].pop("toctree")), priority=400
    )
    app.connect("html-page-context", sidebar, priority=600)
