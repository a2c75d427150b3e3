"""The toolkit's one error for bad input (a ``ValueError``), and functions that raise it.

Its message names the value that was passed, the valid values and the remedy, and it is raised
before any work is done. The command line prints the message and exits with code 2.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import contextmanager


class InputError(ValueError):
    """Error for bad input; its message names the value that was passed and the valid values."""


def unknown_name(kind: str, name: object, valid: Iterable[str], limit: int = 8) -> InputError:
    """Return the error for a name that does not exist, with the nearest valid names first.

    Args:
        kind: what sort of thing was looked up, such as "regime".
        name: the unknown name that was passed.
        valid: the names that exist.
        limit: the largest number of valid names that the message lists.

    Returns:
        The error, to be raised by the caller.

    >>> str(unknown_name("regime", "unifrom", ["uniform", "flat", "drift"]))
    "unknown regime 'unifrom'; did you mean 'uniform'? Valid: drift, flat, uniform"
    """
    names = sorted(set(valid))
    nearest = difflib.get_close_matches(str(name), names, n=3)
    hint = f"; did you mean {' or '.join(map(repr, nearest))}?" if nearest else "."
    listed = ", ".join(names[:limit]) or "none"
    if len(names) > limit:
        listed += f", ... ({len(names)} in all)"
    return InputError(f"unknown {kind} {name!r}{hint} Valid: {listed}")


def require_known(kind: str, name: object, valid: Collection[str], limit: int = 8) -> None:
    """Raise the error of :func:`unknown_name` unless ``name`` is in ``valid``.

    Args:
        kind: what sort of thing is looked up, such as "regime".
        name: the name that was passed; any object.
        valid: the names that exist.
        limit: the largest number of valid names that the message lists.
    """
    if not isinstance(name, str) or name not in valid:
        raise unknown_name(kind, name, valid, limit)


def require(condition: object, message: str) -> None:
    """Raise :class:`InputError` with ``message`` if ``condition`` is false: False, None, 0 or an
    empty collection.
    """
    if not condition:
        raise InputError(message)


@contextmanager
def convert_errors(
    what: str, of_dtypes: Callable[[], str] = str, of: type | tuple[type, ...] = ()
) -> Iterator[None]:
    """Convert errors of code that a user supplied to :class:`InputError`. Usable as a context
    manager or a decorator.

    Args:
        what: name of the user's function, with which the new message begins. If ``of`` is passed,
            the whole new message, in which ``{error}`` is replaced by the text of the original
            error.
        of_dtypes: function without arguments that returns a text to append to messages that mention
            a dtype.
        of: types of errors to convert; empty for all types.

    >>> convert_errors("read=")(lambda: 1 / 0)()
    Traceback (most recent call last):
    interp.support.errors.InputError: read= raised ZeroDivisionError: division by zero
    >>> with convert_errors("no number: {error}", of=ValueError):
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
        if of:  # then ``what`` is the whole message
            message = what.replace("{error}", str(error))
        if "dtype" in message:
            message += of_dtypes()
        raise InputError(message) from error
