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
    sentences = []
    for paragraph in re.split(r"\n\s*\n", text):
        on_one_line = " ".join(paragraph.split())
        sentences += re.split(r"(?<=[.!?])\**\)? +(?=\W*[A-Z`])", on_one_line)
    return [sentence for sentence in sentences if count_words(sentence) > LONGEST]


def count_words(sentence):
    """Count what stands between blanks and holds a letter or a digit."""
    return sum(bool(re.search(r"\w", word)) for word in sentence.split())


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
    left_out = {node.value for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    for node in ast.walk(tree):
        is_text = isinstance(node, ast.Constant) and isinstance(node.value, str)
        if isinstance(node, ast.JoinedStr):
            left_out |= set(node.values)
            yield "".join(map(filled_in, node.values))
        elif is_text and node not in left_out:
            yield node.value


def filled_in(part):
    """A part of an f-string as a reader may see it."""
    return part.value if isinstance(part, ast.Constant) else "X"


def test_the_sentences_of_pages_and_docs_are_short():
    """At most 30 words."""
    pages = [*(ROOT / "docs").rglob("*.md"), ROOT / "README.md"]
    texts_by_file = {page: [prose(page)] for page in pages}
    for path in (ROOT / "reports").rglob("*.py"):
        texts_by_file[path] = list(texts(path))
    for path in (ROOT / "reports").rglob("*.toml"):
        texts_by_file[path] = []
        for table in tomllib.loads(path.read_text("utf-8")).values():
            texts_by_file[path] += [text for text in table.values() if isinstance(text, str)]
    too_long = []
    for path, texts_of_file in texts_by_file.items():
        name = str(path.relative_to(ROOT))
        for text in texts_of_file:
            too_long += [(name, sentence) for sentence in long_sentences(text)]
    assert too_long == []


def test_the_sentences_of_every_help_are_short():
    helps = []
    for _, command in commands():
        helps.append(command.help or "")
        helps += [parameter.help or "" for parameter in command.params]
    assert len(helps) > 100
    assert [sentence for text in helps for sentence in long_sentences(text)] == []
    assert [text for text in helps if ":func:" in text] == []
