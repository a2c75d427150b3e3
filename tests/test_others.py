"""Small things that were raw or silent, one by one: hooks, rounds, depths, seeds, runs, schedulers, errors as JSON."""

import numpy as np
import pytest

import interp
from interp.support import workers
from interp.support.errors import InputError
from interp.support.workers import run_on_workers
from interp.tasks import experts, reachability
from interp.training.runs import learning_curves
from tests.refusals import refuses


@pytest.fixture(scope="module")
def case():
    return interp.load("wma-handwired", n_experts=3), experts.sample(4, 3, 3, seed=0)


@pytest.mark.parametrize(
    "given", [lambda x: x[:, :2], lambda x: "a", lambda x: 3.0, lambda x: x.numpy(), lambda x: []]
)
def test_a_hook_gives_what_fits(case, given):
    model, episodes = case
    hook = {0: [("blocks.0.hook_resid_post", lambda x, hook: given(x))]}
    refuses(
        r"the hook at 'blocks.0.hook_resid_post' must give a tensor of shape \(4, ",
        interp.rollout,
        model,
        episodes,
        fwd_hooks=hook,
    )
    with (
        pytest.raises(InputError, match="must give a tensor of shape"),
        model.hooks(fwd_hooks=hook[0]),
    ):
        interp.rollout(model, episodes)
    same = interp.rollout(model, episodes)
    for fine in (lambda x, hook: None, lambda x, hook: x.clone()):
        run = interp.rollout(model, episodes, fwd_hooks={0: [("blocks.0.hook_resid_post", fine)]})
        assert run.predictions.shape == same.predictions.shape


def test_rounds_that_are_none_are_refused_without_a_filter_too(case):
    refuses("round 99 is out of range", interp.rollout, *case, rounds=99)


@pytest.mark.parametrize("given", [{"rotation": -1}, {"seed": -1}, {"n_lines": 0}])
def test_seeds_of_coordinates_are_seeds(given):
    refuses("must be an integer >= ", interp.load, "wma-handwired", n_experts=3, **given)


def test_depths_differ():
    refuses("depths must differ", reachability.sample, 4, 3, 12, 18, depths=[1, 1])


def test_a_run_is_given_once(tmp_path):
    refuses("was given twice", learning_curves, [tmp_path, tmp_path / "x" / ".."])


@pytest.mark.parametrize(
    "address", ["tcp://node1:8786", "10.0.0.7:8786", "tcp://[::2]:1", "tls://evil.example:1"]
)
def test_a_scheduler_elsewhere_is_named_first(address, monkeypatch):
    """What it answers is unpickled."""
    refuses(
        "is on another machine, and what it sends runs code here",
        list,
        run_on_workers(pow, 2, [1], scheduler=address),
    )
    monkeypatch.setattr(workers, "TRUSTED", set())
    monkeypatch.setattr(workers, "_ANSWER_SECONDS", 0.1)
    workers.TRUSTED.add("node1")
    for trusted in ("tcp://127.0.0.1:1", "localhost:1", "tcp://node1:8786"):
        work = run_on_workers(pow, 2, [1], scheduler=trusted)
        refuses("no dask scheduler answers at", list, work)


def test_an_episode_without_a_right_answer_is_refused():
    """Both candidates equally far from the root, or neither reached; a candidate that is reached sooner is right."""
    chain = np.array([[[0, 1], [1, 2], [0, 3]]])
    for candidates in ([1, 3], [4, 5]):
        refuses(
            "no answer is right in 1 episodes, such as",
            reachability.ReachabilityEpisodes,
            chain,
            np.array([0]),
            np.array([candidates]),
            n_nodes=6,
            n_rounds=3,
        )
    for candidates in ([1, 2], [2, 4]):
        reachability.ReachabilityEpisodes(
            chain, np.array([0]), np.array([candidates]), n_nodes=6, n_rounds=3
        )
