"""Docs are run: the README's Python and every example in a docstring."""

import doctest
import importlib
import pkgutil
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PACKAGES = ("interp", "circuits", "probes", "reports")


def modules():
    for package in PACKAGES:
        yield package
        for found in pkgutil.walk_packages([str(ROOT / package)], prefix=f"{package}."):
            yield found.name


@pytest.mark.usefixtures("few_steps")
def test_the_readmes_python_runs():
    blocks = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(encoding="utf-8"), re.DOTALL)
    assert len(blocks) >= 2
    scope: dict[str, object] = {}
    for block in blocks:
        exec(compile(block, "README.md", "exec"), scope)


@pytest.mark.parametrize("name", list(modules()))
def test_docstring_examples_hold(name):
    outcome = doctest.testmod(importlib.import_module(name), optionflags=doctest.ELLIPSIS)
    assert outcome.failed == 0
