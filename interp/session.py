"""Compute once what several analyses need: a model's digest and runs, an algorithm's values, fitted decoders.

    >>> import interp
    >>> from interp.tasks import experts
    >>> episodes, model = experts.sample(2, 5, 2, seed=0), interp.load("wma-handwired", n_experts=2)
    >>> with session():
    ...     interp.rollout(model, episodes) is interp.rollout(model, episodes)
    True
    >>> interp.rollout(model, episodes) is interp.rollout(model, episodes)
    False

A report, a comparison and a sweep each open a session around their work. The few public functions that all of them call
(a rollout, an algorithm's values, a digest) ask :func:`once` in it. A session remembers by identity: the same model
object, the same episodes object. It keeps them alive until it closes.

What an object that is passed on owns, a comparison, a participant of one, the trial of an audit, is computed once for
that object, and lives as long as it does: :func:`remembered`. Results are shared, so nobody may write into them.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import wraps
from typing import Any, Concatenate, ParamSpec, TypeVar, cast

_P = ParamSpec("_P")
_T = TypeVar("_T")
_Owner = TypeVar("_Owner")
_OPEN: ContextVar[dict[Hashable, tuple[tuple[object, ...], Any]] | None] = ContextVar("session", default=None)


@contextmanager
def session() -> Iterator[None]:
    """While it is open, :func:`once` remembers. A session inside a session is the same session."""
    token = _OPEN.set({} if _OPEN.get() is None else _OPEN.get())
    try:
        yield
    finally:
        _OPEN.reset(token)


def once(what: Hashable, *about: object, make: Callable[[], _T]) -> _T:
    """What ``make`` gives; in a session it is made only the first time that it is asked for.

    ``what`` names the result and its settings; ``about`` are the objects that it depends on, compared by identity.

    >>> with session():
    ...     [once("random", make=lambda i=i: i) for i in range(3)]
    [0, 0, 0]
    >>> [once("random", make=lambda i=i: i) for i in range(3)]
    [0, 1, 2]
    """
    made = _OPEN.get()
    if made is None:
        return make()
    key = (what, *map(id, about))
    if key not in made:
        made[key] = (about, make())  # holding ``about`` keeps its identities from being given to other objects
    return made[key][1]


def remembered(find: Callable[Concatenate[_Owner, _P], _T]) -> Callable[Concatenate[_Owner, _P], _T]:
    """``find``, which computes anything about its first argument only once; that object keeps the results.

    The other arguments are told apart by value where they are texts, numbers or tuples of these, else by identity.

    >>> class Owner: ...
    >>> count, one, made = remembered(lambda owner, key: made.append(key) or len(made)), Owner(), []
    >>> count(one, "a"), count(one, "b"), count(one, "a"), count(Owner(), "a")
    (1, 2, 1, 3)
    """

    @wraps(find)
    def found(owner: _Owner, *args: _P.args, **options: _P.kwargs) -> _T:
        made = owner.__dict__.setdefault("_remembered", {})
        key = find, *(x if isinstance(x, str | int | tuple | None) else id(x) for x in args), *options.items()
        if key not in made:
            made[key] = args, find(owner, *args, **options)
        return cast(_T, made[key][1])

    return cast(Callable[Concatenate[_Owner, _P], _T], found)
