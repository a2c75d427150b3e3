"""What would take too much memory is refused before any is taken: an estimate in the sentence, and what to do.

Models have a bound that is an argument (``max_gb``); episodes are bounded by the memory of the machine.

    >>> refuse_above("a model of 1000000000 experts", 4e21, max_gb=10)
    Traceback (most recent call last):
    interp.errors.InputError: a model of 1000000000 experts would take about 4e+12 GB, more than 10 GB; take smaller \
sizes, or give max_gb=...
"""

from __future__ import annotations

import os
from functools import cache

from interp.errors import require

MOST_GB = 10.0
"""The default bound for one model."""


def refuse_above(what: str, n_bytes: float, max_gb: float) -> None:
    """Refuse what would take more than a bound.

    Args:
        what: what would be made, with its sizes, for the sentence.
        n_bytes: the estimate.
        max_gb: the bound, in units of 1e9 bytes.

    Raises:
        InputError: the estimate is above the bound.
    """
    require(
        n_bytes <= max_gb * 1e9,
        f"{what} would take about {n_bytes / 1e9:.3g} GB, more than {max_gb:g} GB; take smaller sizes, "
        "or give max_gb=...",
    )


def refuse_beyond_machine(what: str, n_bytes: float) -> None:
    """Refuse what this machine's memory cannot hold.

    Raises:
        InputError: the estimate is above the memory of the machine.
    """
    held = machine_bytes()
    require(
        n_bytes <= held,
        f"{what} would take about {n_bytes / 1e9:.3g} GB, and this machine has {held / 1e9:.3g} GB; "
        "take fewer or smaller",
    )


_OF_CONTROLS = ("n_random", "n_resamples", "n_draws", "n_sets", "n_fresh", "n_folds", "n_bins", "n_seeds", "untrained")
_OF_WORK = ("n_instances", "restarts", "steps", "fits", "battery", "horizon", "starts", "known", "test")
REPEATS = frozenset(_OF_CONTROLS + _OF_WORK)
"""Names of arguments and fields that say how often something is done."""
MOST_REPEATS = 10**7
_LEAST_SECONDS = 1e-5
"""What the quickest of these repetitions takes."""


def refuse_endless(name: str, count: int) -> None:
    """Refuse repetitions that no run lives to finish.

    >>> refuse_endless("n_resamples", 10**12)
    Traceback (most recent call last):
    interp.errors.InputError: n_resamples=1000000000000 would take at least 2778 hours, at 10 microseconds each, the \
least that any takes; give at most 10000000

    Raises:
        InputError: more than :data:`MOST_REPEATS`.
    """
    hours = count * _LEAST_SECONDS / 3600
    require(
        count <= MOST_REPEATS,
        f"{name}={count} would take at least {hours:.4g} hours, at {_LEAST_SECONDS * 1e6:.0f} microseconds each, the "
        f"least that any takes; give at most {MOST_REPEATS}",
    )


@cache
def machine_bytes() -> float:
    """The memory of this machine; without end where the system does not say."""
    try:
        return float(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"))
    except (AttributeError, ValueError, OSError):
        return float("inf")
