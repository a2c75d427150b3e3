"""How Sphinx builds these pages: static, offline, with the tutorials run. ``docs.build`` calls it."""

import re
from typing import Any

import interp
from interp.palette import HUES

OURS = ("interp", "probes", "circuits", "reports")

project = "latent-context-interp"
author = "the latent-context-interp developers"
copyright = f"2026, {author}"
version = release = interp.__version__

extensions = ["myst_nb", "sphinx.ext.autodoc", "sphinx.ext.napoleon"]
exclude_patterns = ["README.md", "notebooks"]
html_theme = "furo"
html_static_path = ["static"]
html_css_files = ["pages.css"]
_BRAND = ("color-brand-primary", "color-brand-content", "color-brand-visited")
html_theme_options = {
    f"{theme}_css_variables": dict.fromkeys(_BRAND, HUES["blue"][i]) for i, theme in enumerate(("light", "dark"))
}
html_title = f"{project} {release}"
html_copy_source = True
html_show_sphinx = False
templates_path: list[str] = []

myst_enable_extensions = ["colon_fence", "deflist"]
myst_heading_anchors = 3
nb_execution_mode = "off"  # docs.notebooks runs the tutorials
nb_merge_streams = True

toc_object_entries = False  # every page would list every object: a third of the time
autodoc_member_order = "bysource"
autodoc_typehints = "signature"
autodoc_preserve_defaults = False  # Sphinx 9 fails on builders, whose signature is not that of their source
napoleon_google_docstring = True
napoleon_numpy_docstring = False
napoleon_use_rtype = False
napoleon_use_ivar = True
napoleon_attr_annotations = False
# Several rooms have a class of the same name, such as Regime; a bare name in a signature may then mean either.
suppress_warnings = ["mystnb.unknown_mime_type", "myst-nb.lexer", "ref.python"]


def plain(app: Any, what: str, name: str, obj: Any, options: Any, lines: list[str]) -> None:
    """Docstrings say |S| and **arguments in plain text: outside of code these are no markup."""
    if what == "data" and not getattr(obj, "__module__", "interp").startswith(OURS):
        lines.clear()  # what Python says of a bare number or function, which is not ours
    literal = False
    for i, line in enumerate(lines):
        if line.strip() and not line.startswith("    "):
            literal = False
        if not literal and not line.lstrip().startswith((">>>", "...")):
            line = re.sub(r":math:`([^`]*)`", r"``\1``", line)  # pages that open offline load no MathJax
            parts = line.split("``")
            parts[::2] = [part.replace("|", "\\|").replace("*", "\\*").replace("tcp:", "tcp\\:") for part in parts[::2]]
            lines[i] = "``".join(parts).replace("\\* ", "* ", 1 if line.lstrip().startswith("* ") else 0)
        literal = literal or line.rstrip().endswith("::")


def setup(app: Any) -> None:
    """Called by Sphinx."""
    app.connect("autodoc-process-docstring", plain, priority=400)
