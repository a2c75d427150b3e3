"""Junk thrown at every public function that a walk over ``__all__`` finds: an InputError or a result comes out."""

import os

import jaxtyping
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests import junk

QUICK, FULL = 150, 2500
"""Calls of the default suite, and of the slow one."""


@pytest.fixture(autouse=True, scope="module")
def somewhere_else(tmp_path_factory):
    """Outside the tests, nothing checks shapes, and a path that is junk is written to."""
    before = os.getcwd()
    os.chdir(tmp_path_factory.mktemp("junk"))
    jaxtyping.config.update("jaxtyping_disable", True)
    yield
    jaxtyping.config.update("jaxtyping_disable", False)
    os.chdir(before)


def throw(n_calls):
    names = list(junk.surface())
    found = []

    @settings(max_examples=n_calls, deadline=None, derandomize=True, database=None, suppress_health_check=HealthCheck)
    @given(st.sampled_from(names), st.integers(0, 2**32))
    def one(name, seed):
        arguments = junk.spoiled(junk.surface()[name], seed)
        error = junk.outcome(junk.surface()[name], dict(arguments))
        if error is not None:
            found.append((name, repr(error)[:200], {k: repr(v)[:60] for k, v in arguments.items()}))

    one()
    return found


@pytest.mark.filterwarnings("ignore")
def test_only_input_errors_or_results_come_out():
    assert len(junk.surface()) > 150
    assert throw(QUICK) == []


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_only_input_errors_or_results_come_out_of_thousands_of_calls():
    """2,500 calls take minutes."""
    found = throw(FULL)
    assert not found, "\n".join(map(str, found))
