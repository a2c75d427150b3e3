"""Junk thrown at every public function that a walk over ``__all__`` finds: an InputError or a result comes out."""

import inspect
import os

import jaxtyping
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from interp import checks
from interp.errors import InputError
from interp.statistics import bootstrap_mean, ratio_interval, resample_weights
from interp.training.config import TrainingConfig
from interp.workers import each
from tests import junk, junk_methods

QUICK, FULL = 150, 2500
"""Calls of the default suite, and of the slow one."""
METHODS = 3
"""Calls of methods for one of functions: they are quick."""


@pytest.fixture(autouse=True, scope="module")
def somewhere_else(tmp_path_factory):
    """Outside the tests, nothing checks shapes, and a path that is junk is written to."""
    before = os.getcwd()
    os.chdir(tmp_path_factory.mktemp("junk"))
    jaxtyping.config.update("jaxtyping_disable", True)
    yield
    jaxtyping.config.update("jaxtyping_disable", False)
    os.chdir(before)


def throw(n_calls, surface):
    names = list(surface)
    found = []

    @settings(max_examples=n_calls, deadline=None, derandomize=True, database=None, suppress_health_check=HealthCheck)
    @given(st.sampled_from(names), st.integers(0, 2**32))
    def one(name, seed):
        arguments = junk.spoiled(surface[name], seed)
        error = junk.outcome(surface[name], dict(arguments))
        if error is not None:
            found.append((name, repr(error)[:200], {k: repr(v)[:60] for k, v in arguments.items()}))

    one()
    return found


@pytest.mark.filterwarnings("ignore")
def test_only_input_errors_or_results_come_out():
    assert len(junk.surface()) > 150
    assert throw(QUICK, junk.surface()) == []


@pytest.mark.filterwarnings("ignore")
def test_only_input_errors_or_results_come_out_of_methods():
    """Of real objects of 40 classes; and what they know without arguments is known."""
    assert len(junk_methods.objects()) >= 40 and len(junk_methods.methods()) > 120
    assert throw(METHODS * QUICK, junk_methods.methods()) == []
    assert junk_methods.unreadable() == []


ABSURD = {
    "interp.statistics.bootstrap_mean": {"values": [1.0, 2.0], "n_resamples": 10**12},
    "interp.interventions.steering.steer": {"n_random": 10**9},
    "interp.interventions.mediation.mediate": {"n_random": 10**9},
    "circuits.benchmark.material.Workload": {"steps": 10**12},
    "circuits.compare.question.Effort": {"untrained": 10**9},
    "interp.tasks.reachability.sampling.sample": {"n_edges": 10**12},
}


@pytest.mark.parametrize("name", ABSURD)
def test_counts_that_no_run_lives_to_finish_are_refused_with_an_estimate(name):
    function = {**junk.surface(), "interp.statistics.bootstrap_mean": bootstrap_mean}[name]
    needed = [p.name for p in inspect.signature(function).parameters.values() if p.default is p.empty]
    known = {name: junk.right()[name] for name in needed if name in junk.right()}
    with junk.at_most(2), pytest.raises(InputError, match=r"would take (at least .* hours|about .* GB)"):
        function(**known | ABSURD[name])


def test_what_users_call_is_checked_once_and_what_their_functions_call_is_checked_too(monkeypatch):
    """Calls within the toolkit are trusted: a small comparison made 52,000 checks, of which users needed ten."""
    names, fit = [], checks.fit
    monkeypatch.setattr(checks, "fit", lambda name, *rest: names.append(name) or fit(name, *rest))
    ratio_interval([1.0, 2.0], [2.0, 2.0], n_resamples=np.int64(10))  # it draws weights, and makes an Interval
    assert names == ["numerators", "denominators", "n_resamples"]
    with pytest.raises(InputError, match="n_episodes must be an integer, got 'x'"):
        list(each(lambda shared, item: resample_weights(item), None, ["x"]))


def test_a_training_of_a_million_million_steps_is_refused():
    with pytest.raises(InputError, match=r"steps=1000000000000 would take at least 2778 hours"):
        TrainingConfig("experts", [{"n_rounds": 2, "steps": 10**12}])


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_only_input_errors_or_results_come_out_of_thousands_of_calls():
    """2,500 calls of functions take minutes; 10,000 of methods, too."""
    found = throw(FULL, junk.surface()) + throw(METHODS * FULL, junk_methods.methods())
    assert not found, "\n".join(map(str, found))
