"""The toolkit's one error for bad input, and how it names what was meant.

Everything a user can get wrong raises :class:`InputError` (a ``ValueError``): one sentence with the value, the valid
values and what to do, raised before any work is done. The command line prints that sentence and exits with 2.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable


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
    shown = ", ".join(names[:limit]) + (f", ... ({len(names)} in all)" if len(names) > limit else "")
    return InputError(f"unknown {kind} {name!r}{hint} Valid: {shown or 'none'}")


def require(condition: bool, message: str) -> None:
    """Raise :class:`InputError` with ``message`` unless ``condition`` holds."""
    if not condition:
        raise InputError(message)
