"""Tests of what is refused: a table of calls, each with what the sentence of its :class:`InputError` says."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from interp.errors import InputError


def refused(*cases: tuple[Any, ...], by: Callable[..., Any] = lambda call: call()) -> Callable[[tuple[Any, ...]], None]:
    """A test of each case: ``by`` of all but its last item, a pattern, raises an InputError that matches it."""

    @pytest.mark.parametrize("case", cases, ids=lambda case: str(case[-1]))
    def test(case: tuple[Any, ...]) -> None:
        *arguments, message = case
        with pytest.raises(InputError, match=message):
            by(*arguments)

    return test
