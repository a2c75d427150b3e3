"""What is refused: a call, or a table of calls, each with what the sentence of its :class:`InputError` says."""

from collections.abc import Callable
from typing import Any

import pytest

from interp.support.errors import InputError


def refuses(message: str, call: Callable[..., Any], /, *given: Any, **options: Any) -> None:
    """``call`` raises an InputError that matches ``message``; what it takes is made before, and must not be refused."""
    __tracebackhide__ = True
    with pytest.raises(InputError, match=message):
        call(*given, **options)


def refused(
    *cases: tuple[Any, ...], by: Callable[..., Any] = lambda call: call()
) -> Callable[[tuple[Any, ...]], None]:
    """A test of each case: ``by`` of all but its last item, a pattern, raises an InputError that matches it."""

    @pytest.mark.parametrize("case", cases, ids=lambda case: str(case[-1]))
    def test(case: tuple[Any, ...]) -> None:
        *arguments, message = case
        refuses(message, by, *arguments)

    return test
