"""Find the argument through which a model of ``transformers`` takes its cache.

The library calls it differently for different kinds of model. From release 5.24 on it is ``cache`` for all of them, and
the other names are deprecated.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import cache
from typing import Any

CACHES = ("cache", "cache_params", "past_key_values", "state")
"""Names of the cache, as an argument and in the output."""


@cache
def name_caches(function: Callable[..., Any]) -> tuple[str, ...]:
    """Return the names of a function's parameters that take a cache (those in :data:`CACHES`, such
    as ``past_key_values``).

    The result is cached for as long as the process runs, since models need it in every round. So
    pass the function of a class: with the method of a model, the model would stay in memory, too.

    >>> def forward(self, inputs, past_key_values=None, use_cache=True): ...
    >>> name_caches(forward), name_caches(len)
    (('past_key_values',), ())

    Args:
        function: the function, such as ``type(model).forward``.
    """
    return tuple(name for name in CACHES if name in inspect.signature(function).parameters)


def fill_cache(function: Callable[..., Any], keys: Any) -> dict[str, Any]:
    """Return the keyword arguments that pass a cache to a function.

    >>> def forward(self, inputs, cache=None, use_cache=True): ...
    >>> fill_cache(forward, "keys")
    {'cache': 'keys'}

    Args:
        function: the function, such as ``type(model).forward``.
        keys: the cache.
    """
    return dict.fromkeys(name_caches(function), keys)
