"""The type checker that pytest runs the packages under: beartype, with ints accepted where floats are expected.

A function gets its checker when it is first called, and one that every call of another function defines anew shares
the checker of the first: making one takes milliseconds, and a run calls few of the packages' functions.

Each test checks the first calls of a function: loops call some a hundred thousand times, and checking all of them took
more than half of the time of such tests.
"""

from collections import Counter
from collections.abc import Callable
from functools import wraps
from typing import Any

from beartype import BeartypeConf, beartype
from jaxtyping import jaxtyped

_checked = beartype(conf=BeartypeConf(is_pep484_tower=True))
_checkers: dict[Any, Callable[..., Any]] = {}
N_CHECKED = 3
"""How many calls of a function each test checks."""
calls: Counter[int] = Counter()
"""How often each function was called in this test, by the identity of its code, whose hash reads all of it."""


def shaped(made: Any) -> Any:
    """A function, or a dataclass as it is made, whose first calls in each test are checked."""
    if not isinstance(made, type):
        return _counted(made, lambda: jaxtyped(made, typechecker=check))
    plain = made.__dict__.get("__init__")
    always: Any = jaxtyped(made, typechecker=check)
    if plain is not None:
        always.__init__ = _counted(plain, lambda checks=always.__init__: checks)
    return always


def _counted(
    plain: Callable[..., Any], checking: Callable[[], Callable[..., Any]]
) -> Callable[..., Any]:
    """``plain``, in its first calls ``checking()``, which is made when it is first needed."""
    code = id(plain.__code__)
    if calls[code] >= N_CHECKED:  # a function that every call of another one defines anew
        return plain
    functions: list[Callable[..., Any]] = []

    @wraps(plain)
    def run(*args: Any, **kwargs: Any) -> Any:
        calls[code] += 1
        if calls[code] > N_CHECKED:
            return plain(*args, **kwargs)
        if not functions:
            functions.append(checking())
        return functions[0](*args, **kwargs)

    return run


def check(function: Callable[..., Any]) -> Callable[..., Any]:
    """``function`` with its arguments checked: an empty one, which jaxtyping makes of the signature to be checked."""
    code = function.__code__
    kinds = (
        code.co_varnames,
        code.co_posonlyargcount,
        code.co_argcount,
        code.co_kwonlyargcount,
        code.co_flags,
    )
    key = (function.__module__, function.__qualname__, *kinds, *function.__annotations__.items())

    def first_checked(*args: Any, **kwargs: Any) -> Any:
        if key not in _checkers:
            _checkers[key] = _checked(function)
        return _checkers[key](*args, **kwargs)

    return first_checked
