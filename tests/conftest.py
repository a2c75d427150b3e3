"""What all tests share: one thread a process, theirs and those they start, so that no core waits for another.

Fixtures import what they need: xdist's controller reads this file, too, and runs no test.
"""

import gc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from unittest.mock import patch

import pytest
from hypothesis import settings

settings.register_profile("shared machine", deadline=None)
settings.load_profile("shared machine")


@pytest.fixture(autouse=True, scope="session")
def in_one_thread() -> Iterator[None]:
    from interp.support.workers import keep_freed_memory, one_thread

    keep_freed_memory()
    with one_thread(), pytest.MonkeyPatch.context() as patched:
        patched.setenv("OMP_NUM_THREADS", "1")
        yield


@pytest.fixture(scope="module")
def one_session() -> Iterator[None]:
    """Tests of one module, which look at the same models and episodes, run each of them once."""
    from interp.support.session import session

    with session():
        yield


FEW = (
    "bayes",
    "weighted_majority",
    "sigmoid_vote",
    "follow_the_leader",
    "majority_vote",
    "fixed_vote",
)
"""Families of expert advice that are no variant of another: a third of all, which are fitted in a tenth of the time."""


@contextmanager
def early(few: bool = False) -> Iterator[None]:
    """Fits of algorithms that stop early: they are half of a small comparison, and its words are the same ones.

    With ``few`` only the families :data:`FEW` are asked.
    """
    from interp.core.task import Task

    every = Task.rivals
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr("interp.choices.fitting._STEPS_PER_PARAMETER", 8)
        if few:
            patched.setattr(
                Task,
                "rivals",
                lambda task: {k: item for k, item in every(task).items() if k in FEW},
            )
        yield


@pytest.fixture
def few_steps() -> Iterator[None]:
    """A test whose fits stop :func:`early`."""
    with early():
        yield


@pytest.fixture
def few_fits() -> Iterator[None]:
    """A test whose fits stop :func:`early`, of few families."""
    with early(few=True):
        yield


@pytest.fixture
def registry() -> Iterator[None]:
    """Tasks that a test registers are forgotten after it."""
    with patch.dict("interp.core.catalog.REGISTERED"):
        yield


@pytest.fixture
def changed_task(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """``changed_task(KEY, field=...)``: a registered task with other fields, until the test ends."""
    from interp import tasks
    from interp.core import catalog

    return lambda key, **fields: monkeypatch.setitem(
        catalog.REGISTERED, key, replace(tasks.get(key), **fields)
    )


@pytest.fixture
def builders() -> Iterator[None]:
    """Builders of machines that a test registers are forgotten after it, and it knows no others."""
    with (
        patch.dict("interp.model.library.BUILT", clear=True),
        patch.dict("interp.model.checkpoints.BUILDERS", clear=True),
    ):
        yield


@pytest.fixture
def no_rules(monkeypatch: pytest.MonkeyPatch) -> None:
    """No other update is fitted, which takes most of the time of what asks about updates."""
    monkeypatch.setattr("circuits.compare.update._fit_updates", lambda *of: [])


@pytest.fixture
def no_bent_maps(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a non-linear decoder reads is not asked, which is half of the time of an update without fitted ones."""
    monkeypatch.setattr("circuits.compare.update._measure_nonlinear_r2", lambda *of: 1.0)


gc.set_threshold(0)


def pytest_collection_finish() -> None:
    """Look for garbage seldom, not while tests are collected (a third of that time), and not in what was imported."""
    gc.freeze()
    gc.set_threshold(10_000)
