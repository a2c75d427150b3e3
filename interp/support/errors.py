"""The toolkit's one error for bad input (a ``ValueError``), and how it names what was meant.

It says the value, the valid values and what to do, before any work is done; the command line prints it and exits 2.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import contextmanager


class InputError(ValueError):
    """Bad input, described in one sentence that names the value and the valid values."""


def unknown_name(kind: str, name: object, valid: Iterable[str], limit: int = 8) -> InputError:
    """Return the error for a name that does not exist, with the nearest valid names first.

    Args:
        kind: what the name would name.
        name: what was passed.
        valid: the names that exist.
        limit: how many of them the error lists.

    >>> str(unknown_name("regime", "unifrom", ["uniform", "flat", "drift"]))
    "unknown regime 'unifrom'; did you mean 'uniform'? Valid: drift, flat, uniform"
    """
    names = sorted(set(valid))
    near = difflib.get_close_matches(str(name), names, n=3)
    hint = f"; did you mean {' or '.join(map(repr, near))}?" if near else "."
    listed = ", ".join(names[:limit]) or "none"
    if len(names) > limit:
        listed += f", ... ({len(names)} in all)"
    return InputError(f"unknown {kind} {name!r}{hint} Valid: {listed}")


def require_known(kind: str, name: object, valid: Collection[str], limit: int = 8) -> None:
    """Raise :func:`unknown_name` unless ``name`` is among ``valid``.

    Args:
        kind: what the name is of, in words.
        name: any value.
        valid: the known names.
        limit: how many of these an error lists.
    """
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
    """Raise what a function of the user's raises as an :class:`InputError`; a context manager or a decorator.

    Args:
        what: the name of what was called. With ``of`` a whole sentence, in which ``{error}`` is the error's text.
        of_dtypes: returns what to add where the error is about dtypes.
        of: the errors that are meant; all when empty.

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
        message = f"{what} raised {type(error).__name__}: {error}"
        if of:
            message = what.replace("{error}", str(error))
        if "dtype" in message:
            message += of_dtypes()
        raise InputError(message) from error
