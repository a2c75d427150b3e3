"""Compute once what several analyses need: a model's digest and runs, an algorithm's values, fitted decoders.

    >>> import interp
    >>> from interp.tasks import experts
    >>> episodes, model = experts.sample(2, 5, 2, seed=0), interp.load("wma-handwired", n_experts=2)
    >>> with session():
    ...     interp.rollout(model, episodes) is interp.rollout(model, episodes)
    True
    >>> interp.rollout(model, episodes) is interp.rollout(model, episodes)
    False

A report, a comparison and a sweep each open a session around their work; whatever they call inside it asks :func:`once`
and need not be handed results that another part has computed. A session remembers by identity: the same model object,
the same episodes object. It keeps them alive until it closes. Results are shared, so nobody may write into them.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, TypeVar

T = TypeVar("T")
_OPEN: ContextVar[dict[Hashable, tuple[tuple[object, ...], Any]] | None] = ContextVar("session", default=None)


@contextmanager
def session() -> Iterator[None]:
    """While it is open, :func:`once` remembers. A session inside a session is the same session."""
    token = _OPEN.set({} if _OPEN.get() is None else _OPEN.get())
    try:
        yield
    finally:
        _OPEN.reset(token)


def once(what: Hashable, *about: object, make: Callable[[], T]) -> T:
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
