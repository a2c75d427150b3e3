"""Find the argument through which a model of ``transformers`` takes its cache.

The library calls it differently for different kinds of model. From release 5.24 on it is ``cache`` for all of them, and
the other names are deprecated.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

CACHES = ("cache", "cache_params", "past_key_values", "state")
"""Names of the cache, as an argument and in the output."""


def name_caches(function: Callable[..., Any]) -> list[str]:
    """Return which of :data:`CACHES` are parameters of a function, such as a model's ``forward``."""
    return [name for name in CACHES if name in inspect.signature(function).parameters]


def fill_cache(function: Callable[..., Any], cache: Any) -> dict[str, Any]:
    """Return the keyword arguments that pass a cache to a function, such as a model's ``forward``."""
    return dict.fromkeys(name_caches(function), cache)
