"""The toolkit's one error for bad input (a ``ValueError``), and how it names what was meant.

It says the value, the valid values and what to do, before any work is done; the command line prints it and exits 2.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import contextmanager


class InputError(ValueError):
    """Bad input, told in one sentence that names the value and the valid values."""


def unknown_name(kind: str, name: object, valid: Iterable[str], limit: int = 8) -> InputError:
    """The error for a name that does not exist, with the nearest valid names first.

    >>> str(unknown_name("regime", "unifrom", ["uniform", "flat", "drift"]))
    "unknown regime 'unifrom'; did you mean 'uniform'? Valid: drift, flat, uniform"
    """
    names = sorted(dict.fromkeys(valid))
    near = difflib.get_close_matches(str(name), names, n=3)
    hint = f"; did you mean {' or '.join(map(repr, near))}?" if near else "."
    shown = ", ".join(names[:limit]) + (
        f", ... ({len(names)} in all)" if len(names) > limit else ""
    )
    return InputError(f"unknown {kind} {name!r}{hint} Valid: {shown or 'none'}")


def require_known(kind: str, name: object, valid: Collection[str], limit: int = 8) -> None:
    """Raise :func:`unknown_name` unless ``name`` is among ``valid``."""
    if not isinstance(name, str) or name not in valid:
        raise unknown_name(kind, name, valid, limit)


def require(condition: bool, message: str) -> None:
    """Raise :class:`InputError` with ``message`` unless ``condition`` holds."""
    if not condition:
        raise InputError(message)


@contextmanager
def theirs(
    what: str, of_dtypes: Callable[[], str] = str, of: type | tuple[type, ...] = ()
) -> Iterator[None]:
    """While it is open, or as a decorator: whatever a function of the user's raises is told as its own.

    What ``of_dtypes`` gives is added where the error is about these. Of some errors alone, ``of``, ``what`` is a whole
    sentence, in which ``{error}`` stands for what they say.

    >>> theirs("read=")(lambda: 1 / 0)()
    Traceback (most recent call last):
    interp.support.errors.InputError: read= raised ZeroDivisionError: division by zero
    >>> with theirs("no number: {error}", of=ValueError):
    ...     int("x")
    Traceback (most recent call last):
    interp.support.errors.InputError: no number: invalid literal for int() with base 10: 'x'
    """
    try:
        yield
    except Exception as error:
        if isinstance(error, InputError) or (of and not isinstance(error, of)):
            raise
        said = (
            what.replace("{error}", str(error))
            if of
            else f"{what} raised {type(error).__name__}: {error}"
        )
        raise InputError(said + of_dtypes() * ("dtype" in said)) from error
