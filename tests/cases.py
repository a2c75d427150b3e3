"""Tables of cases: what tests are asked, row by row, in a ``cases.toml`` beside them."""

import tomllib
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest


@cache
def _read(path: Path) -> dict[str, Any]:
    return tomllib.loads(path.read_text("utf-8"))


def _frozen(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _frozen(item) for key, item in value.items()}
    return tuple(map(_frozen, value)) if isinstance(value, list) else value


def cases(test_file: str, name: str) -> Any:
    """The table of this name beside a test's file; its lists are tuples, so that a case can be a key."""
    return _frozen(_read(Path(test_file).with_name("cases.toml"))[name])


def by_cases(names: str) -> Callable[[Any], Any]:
    """Run a test once for each row of the table of its own name, whose columns are the arguments of these names."""
    return lambda test: pytest.mark.parametrize(
        names, cases(test.__code__.co_filename, test.__name__)
    )(test)
