"""Threads that share one machine get what one thread alone gets."""

import copy
import logging
import os
import pickle
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from functools import partial

import pytest
import torch
from torch import nn

import interp
from interp.core.machine import Channel
from interp.interventions import patching
from interp.model import locks
from interp.model.new_tensors import NewTensorDtype
from interp.tasks import experts, using
from interp.tasks.experts import analysis as corruptions
from tests.machines import adapted, read_round
from tests.refusals import refuses

N_THREADS, N_RUNS = 8, 4


def in_threads(works):
    """Run the works at once, each in a thread, and return what they give."""
    at_once = threading.Barrier(len(works))

    def start(work):
        at_once.wait()
        return work()

    with ThreadPoolExecutor(len(works)) as pool:
        return list(pool.map(start, works))


@pytest.fixture(scope="module", params=["wma-learned-additive", "wma-gru"])
def machine(request):
    return interp.load(request.param)


@pytest.fixture(scope="module")
def episodes():
    return experts.sample(4, 6, 4, seed=0)


def hooked_point(machine):
    first_point = next(iter(machine.points.values()))
    names = machine.hook_names(first_point.hook.format(layer=0))
    return names[0]


def halve(activation, hook):
    return activation * 0.5


@pytest.mark.long
def test_hooked_and_plain_rollouts_at_once_are_those_of_one_thread(machine, episodes):
    """Odd threads halve an activation, even ones do not: no hook reaches the run of another thread."""
    point = hooked_point(machine)

    def run(hooks):
        return interp.rollout(machine, episodes, names_filter=point, fwd_hooks=hooks)

    hooks_of_thread = [[(point, halve)] if i % 2 else [] for i in range(N_THREADS)]
    single_results = [run(hooks) for hooks in hooks_of_thread]
    assert not torch.equal(single_results[0].predictions, single_results[1].predictions)
    for _ in range(N_RUNS):
        at_once = in_threads([partial(run, hooks) for hooks in hooks_of_thread])
        for expected, result in zip(single_results, at_once, strict=True):
            assert torch.equal(result.predictions, expected.predictions)
            assert torch.equal(result.latents, expected.latents)
            assert torch.equal(result.cache[point], expected.cache[point])


@pytest.mark.long
def test_patch_sweeps_at_once_are_those_of_one_thread(machine, episodes):
    """Half of the threads sweep, the others roll out with a hook."""
    clean, corrupted = corruptions.flip_vote(episodes, round=2)
    point = hooked_point(machine)

    def sweep():
        swept = patching.sweep(machine, clean, corrupted, round=2)
        return swept.to_frame()["effect"].to_numpy()

    def run():
        return interp.rollout(machine, episodes, fwd_hooks=[(point, halve)]).predictions.numpy()

    works = [sweep if i % 2 else run for i in range(4)]
    single_results = [work() for work in works]
    for expected, result in zip(single_results, in_threads(works), strict=True):
        assert (result == expected).all()


def test_untrained_copies_drawn_at_once_are_those_of_their_seeds(machine):
    """Weights are drawn from the process's generator, which every copy seeds for itself."""
    single_results = [machine.untrained(seed).digest() for seed in range(4)]
    at_once = in_threads([partial(machine.untrained, seed) for seed in range(4)])
    assert [copied.digest() for copied in at_once] == single_results


def test_a_second_thread_waits_and_reports_it(machine, episodes, monkeypatch, caplog):
    """A thread with hooks on a machine keeps another one waiting, which reports why after a while."""
    monkeypatch.setattr(locks, "_SECONDS_BEFORE_WARNING", 0.1)
    expected = interp.rollout(machine, episodes).predictions
    with ThreadPoolExecutor(1) as pool, caplog.at_level(logging.WARNING):
        with machine.hooks(fwd_hooks=[(hooked_point(machine), halve)]):
            waiting = pool.submit(interp.rollout, machine, episodes)
            with pytest.raises(TimeoutError):
                waiting.result(timeout=1)
        assert torch.equal(waiting.result().predictions, expected)
    assert "give each thread its own `copy.deepcopy(machine)`" in caplog.text


@pytest.mark.parametrize("duplicate", [copy.deepcopy, lambda x: pickle.loads(pickle.dumps(x))])
def test_copies_do_not_wait_for_each_other(duplicate):
    machine = interp.load("wma-learned-additive")
    copied = duplicate(machine)
    with machine.hooks(), ThreadPoolExecutor(1) as pool:
        pool.submit(copied.digest).result(timeout=60)


def test_a_copy_made_beside_a_hooked_run_has_no_hooks(machine):
    """``copy.deepcopy`` in another thread waits until the hooks are gone."""
    attached = threading.Event()

    def hold_hooks():
        with machine.hooks(fwd_hooks=[(hooked_point(machine), halve)]):
            attached.set()
            threading.Event().wait(0.2)

    def copy_it():
        attached.wait()
        return copy.deepcopy(machine)

    _, copied = in_threads([hold_hooks, copy_it])
    assert copied.is_quiet() or torch.is_grad_enabled()
    assert not any(point.fwd_hooks for point in copied.hook_points())


class Zeros(nn.Module):
    """A cell that makes numbers in PyTorch's default dtype."""

    def __init__(self):
        super().__init__()
        self.cell = nn.Linear(4, 2)

    def forward(self, advice):
        zeros = torch.zeros(len(advice), 4)
        assert zeros.dtype == self.cell.weight.dtype
        return self.cell(advice + zeros)


def step_of_zeros(module, carried, fed):
    advice, _ = read_round(fed)
    return module(advice), carried


def test_copies_in_two_precisions_run_at_once(episodes):
    """Each makes zeros in its own dtype, though PyTorch's default dtype is that of all threads."""
    single = adapted(Zeros(), step_of_zeros, channels=[Channel("h", (1,))])
    double = copy.deepcopy(single).double()
    machines = [single, double] * 3
    runs = in_threads([partial(interp.rollout, machine, episodes) for machine in machines])
    dtypes = [run.predictions.dtype for run in runs]
    assert dtypes == [torch.float32, torch.float64] * 3


def test_a_round_in_double_precision_leaves_the_default_dtype_of_other_threads(episodes):
    """A user's thread that never calls the toolkit makes numbers in float32 while a round runs."""
    in_round, looked = threading.Event(), threading.Event()

    def step(module, carried, fed):
        in_round.set()
        looked.wait(timeout=60)
        return module(read_round(fed)[0]), carried

    double = adapted(Zeros(), step, channels=[Channel("h", (1,))]).double()
    with ThreadPoolExecutor(1) as pool:
        run = pool.submit(interp.rollout, double, episodes)
        in_round.wait(timeout=60)
        dtypes = {torch.zeros(1).dtype, torch.get_default_dtype()}
        looked.set()
        assert run.result().predictions.dtype == torch.float64
    assert dtypes == {torch.float32}


@pytest.mark.parametrize(
    ("make", "dtype"),
    [
        (lambda: torch.zeros(3), torch.float64),
        (lambda: torch.tensor(0.1), torch.float64),
        (lambda: torch.full((2,), 0.1), torch.float64),
        (lambda: nn.Linear(2, 2).weight, torch.float64),
        (lambda: torch.zeros(3, dtype=torch.bfloat16), torch.bfloat16),
        (lambda: torch.arange(3.0, dtype=torch.float32), torch.float32),
        (lambda: torch.tensor([1, 2]), torch.int64),
        (lambda: torch.full((2,), True), torch.bool),
        (lambda: torch.arange(3), torch.int64),
        (lambda: 2.0 * torch.arange(3), torch.float64),
        (lambda: torch.arange(3) / 2, torch.float64),
        (lambda: torch.arange(3).sqrt(), torch.float64),
        (lambda: (torch.arange(3) > 1) * 0.5, torch.float64),
        (lambda: torch.arange(3) * torch.ones(3, dtype=torch.float32), torch.float32),
        (lambda: torch.arange(3).float(), torch.float32),
        (lambda: torch.arange(3).to(torch.float32), torch.float32),
        (lambda: torch.arange(3) // 2, torch.int64),
    ],
)
def test_new_tensors_have_the_dtype_of_the_machine_unless_they_have_another(make, dtype):
    before = torch.get_rng_state()
    with NewTensorDtype(torch.float64):
        tensor = make()
    assert tensor.dtype == dtype
    torch.set_rng_state(before)


def test_constants_of_a_machine_in_double_precision_are_not_rounded_to_single():
    with NewTensorDtype(torch.float64):
        assert torch.tensor(0.1).item() == torch.full((), 0.1).item() == 0.1
        assert (torch.tensor(1) / 10).item() == 0.1


def test_machines_of_one_module_share_its_lock():
    module = Zeros()
    first, second = (
        adapted(module, step_of_zeros, channels=[Channel("h", (1,))]) for _ in range(2)
    )
    assert first.lock is second.lock
    assert copy.deepcopy(first).lock is not first.lock


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system does not fork")
def test_a_fork_beside_a_run_does_not_wait_for_a_thread_that_it_lacks(machine):
    attached, released = threading.Event(), threading.Event()

    def hold_hooks():
        with machine.hooks():
            attached.set()
            released.wait()

    holder = threading.Thread(target=hold_hooks)
    holder.start()
    attached.wait()
    child = os.fork()
    if not child:
        with machine.lock:
            os._exit(7)
    released.set()
    holder.join()
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7


def test_a_thread_started_inside_using_is_refused_or_takes_its_context(episodes):
    """Threads do not inherit ``using``: one that would silently draw other episodes is refused."""
    task = interp.tasks.get("experts")

    def look_up() -> object:
        return interp.tasks.of(episodes)

    def look_up_in_thread(work: Callable[[], object]) -> object:
        with ThreadPoolExecutor(1) as pool:
            return pool.submit(work).result()

    assert look_up_in_thread(look_up) is task
    with using(episodes) as used:
        assert look_up_in_thread(partial(copy_context().run, look_up)) is used
        refuses("a thread does not inherit it", look_up_in_thread, look_up)
    assert look_up_in_thread(look_up) is task
