"""Every example in a docstring is run (the README's Python in ``tests/compare/test_run.py``); sentences are short."""

import ast
import doctest
import importlib
import re
import tomllib

import pytest

from tests.census import ROOT
from tests.shell import commands
from tests.test_architecture import MODULES


@pytest.mark.parametrize("name", MODULES)
def test_docstring_examples_hold(name):
    outcome = doctest.testmod(importlib.import_module(name), optionflags=doctest.ELLIPSIS)
    assert outcome.failed == 0


LONGEST = 30
"""Words of a sentence."""


def long_sentences(text):
    """Sentences of more words than :data:`LONGEST`."""
    parts = [" ".join(part.split()) for part in re.split(r"\n\s*\n", text)]
    said = [one for part in parts for one in re.split(r"(?<=[.!?])\**\)? +(?=\W*[A-Z`])", part)]
    return [
        one for one in said if sum(bool(re.search(r"\w", word)) for word in one.split()) > LONGEST
    ]


def prose(page):
    """What a page of Markdown says: no code, no tables, each item of a list by itself, links by their words."""
    text = re.sub(
        r"```.*?```|^\|[^\n]*$",
        "\n\n",
        page.read_text(encoding="utf-8"),
        flags=re.DOTALL | re.MULTILINE,
    )
    text = re.sub(r"^(\s*[-*]|\d+\.|:|#+) ", "\n\n", text, flags=re.MULTILINE)
    return re.sub(r"!?\[([^\]]*)\]\([^)]*\)", r"\1", text)


def texts(path):
    """The strings of a module that pages show: no docstrings; what is filled in counts as a word."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    docs = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    for node in ast.walk(tree):
        if isinstance(node, ast.JoinedStr):
            docs |= {id(value) for value in node.values}
            yield "".join(
                value.value if isinstance(value, ast.Constant) else "X" for value in node.values
            )
        elif (
            isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in docs
        ):
            yield node.value


def test_the_sentences_of_pages_and_docs_are_short():
    """At most 30 words."""
    said = {page: [prose(page)] for page in [*(ROOT / "docs").rglob("*.md"), ROOT / "README.md"]}
    said |= {path: list(texts(path)) for path in (ROOT / "reports").rglob("*.py")}
    for path in (ROOT / "reports").rglob("*.toml"):
        held = [
            text
            for table in tomllib.loads(path.read_text("utf-8")).values()
            for text in table.values()
        ]
        said[path] = [text for text in held if isinstance(text, str)]
    found = {
        str(path.relative_to(ROOT)): [one for text in all_of for one in long_sentences(text)]
        for path, all_of in said.items()
    }
    assert {path: long for path, long in found.items() if long} == {}


def test_the_sentences_of_every_help_are_short():
    every = [text for _, one in commands() for text in (one.help, *(p.help for p in one.params))]
    assert len(every) > 100
    assert [one for text in every for one in long_sentences(text or "")] == []
    assert [text for text in every if ":func:" in (text or "")] == []
