"""Independent work on a dask cluster: a worker that dies, and errors. Threads of one process."""

import os
import platform
import subprocess
import sys
import time
from pathlib import Path

import pandas as pd
import pytest
import torch
from threadpoolctl import threadpool_info, threadpool_limits

import interp
import probes
from interp.evaluation import suite
from interp.evaluation.experts import by_regime
from interp.support.workers import one_thread, run_on_workers, share
from interp.tasks import experts
from tests.refusals import refuses


def dies_once(folder: Path, item: int) -> int:
    """The square, after the first worker that meets 3 has been killed."""
    flag = folder / "killed"
    if item == 3 and not flag.exists():
        flag.touch()
        os.kill(os.getpid(), 9)
    time.sleep(0.05)
    return item**2


def refuse(shared: None, item: int) -> int:
    raise interp.InputError(f"no {item}")


@pytest.mark.slow
def test_a_worker_that_is_killed_costs_no_result(tmp_path: Path) -> None:
    """Two real processes; the one that is killed with -9 is replaced, and every item is done."""
    assert sorted(run_on_workers(dies_once, tmp_path, range(8), n_jobs=2, scheduler="local")) == [
        i**2 for i in range(8)
    ]
    assert (tmp_path / "killed").exists()


@pytest.mark.slow
def test_processes_run_a_models_hooks() -> None:
    """A sweep on two real processes gives the table of one."""
    model = interp.load("wma-handwired", n_experts=2)
    episodes = experts.sample(8, 6, 2, seed=0)
    here = probes.sweep(
        model, episodes, ["votes"], sites="resid_post", n_jobs=2, scheduler=""
    ).to_frame()
    there = probes.sweep(
        model, episodes, ["votes"], sites="resid_post", n_jobs=2, scheduler="local"
    ).to_frame()
    pd.testing.assert_frame_equal(here, there)


def test_shares_are_all_of_the_work_and_no_part_twice() -> None:
    for n in (1, 3, 64):
        parts = [part for i in range(1, n + 1) for part in share(range(10), f"{i}/{n}")]
        assert sorted(parts) == list(range(10))


@pytest.mark.parametrize("shard", ["0/4", "5/4", "1", "/", "-1/4", "1/0", "1/4/2", "²/4", "a/b"])
def test_a_share_that_is_none_is_refused(shard: str) -> None:
    refuses("such as 2/64", share, [1, 2], shard)


@pytest.mark.long
def test_jobs_of_an_array_make_the_sweep_of_one_command(tmp_path: Path) -> None:
    """What three commands kept, a fourth one finds: it computes no cell, and its table is that of a run by itself."""
    model = interp.load("wma-handwired", n_experts=2)
    options = {"sites": ["resid_post[1]@p?", "resid_post[1]@w?"]}
    episodes = experts.sample(8, 6, 2, seed=0)
    rows = [
        len(
            probes.sweep(
                model, episodes, ["votes"], **options, cache=tmp_path, shard=f"{i}/3"
            ).frame
        )
        for i in (1, 2, 3)
    ]
    times = {path: path.stat().st_mtime_ns for path in tmp_path.glob("resid-*.json")}
    whole = probes.sweep(model, episodes, ["votes"], **options, cache=tmp_path).to_frame()
    assert rows[2] == 0 < rows[0]
    assert sum(rows) == len(whole)
    assert len(times) == 2
    assert {path: path.stat().st_mtime_ns for path in tmp_path.glob("resid-*.json")} == times
    pd.testing.assert_frame_equal(
        whole, probes.sweep(model, episodes, ["votes"], **options).to_frame()
    )


@pytest.mark.parametrize("address", ["tcp://127.0.0.1:1", "tls://127.0.0.1:1"])
def test_nobody_answers_is_said(address: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """No scheduler listens there; dask meets an encrypted address without certificates with a TypeError."""
    monkeypatch.setattr("interp.support.workers._ANSWER_SECONDS", 0.3)
    refuses(
        "no dask scheduler answers at", list, run_on_workers(refuse, None, [1], scheduler=address)
    )


def test_errors_come_through_and_no_workers_are_refused():
    refuses("no 1", lambda: list(run_on_workers(refuse, None, [1])))
    refuses("n_jobs must be", lambda: list(run_on_workers(refuse, None, [1], n_jobs=0)))


@pytest.mark.slow
def test_processes_evaluate_a_model_part_by_part(monkeypatch: pytest.MonkeyPatch) -> None:
    """Regimes that two real processes measure give the tables of one."""
    monkeypatch.setattr(by_regime, "fitting_regimes", lambda model: ["uniform", "drift"])
    model = interp.load("wma-handwired", n_experts=2)
    here, there = (
        suite.evaluate(model, n_episodes=30, n_jobs=2, scheduler=s).tables for s in ("", "local")
    )
    assert list(here) == list(there)
    for name, table in here.items():
        pd.testing.assert_frame_equal(table, there[name])


def test_one_thread_holds_for_torch_and_linear_algebra_and_ends():
    def counts():
        return {library["num_threads"] for library in threadpool_info()} | {torch.get_num_threads()}

    with one_thread(), threadpool_limits(2):
        torch.set_num_threads(2)
        with one_thread():
            assert counts() == {1}
        assert counts() == {2}


COUNT_PAGES = """
import resource
import numpy as np
from interp.support import workers

def pages_of_ten_rounds():
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(10):
        [np.ones(2**17) for _ in range(8)]
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before

with workers.one_thread():
    print(pages_of_ten_rounds())
workers.keep_freed_memory()
pages_of_ten_rounds()
print(pages_of_ten_rounds())
"""


@pytest.mark.long
@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="the allocator is glibc's")
def test_only_a_command_changes_the_allocator_of_the_process() -> None:
    """Ten rounds of 8 arrays of 1 MiB are 20,480 pages of 4 KiB: cleared in every round, or not at all where kept."""
    environment = {k: v for k, v in os.environ.items() if not k.startswith("MALLOC_")}
    command = [sys.executable, "-c", COUNT_PAGES]
    printed = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    in_one_thread, in_a_command = map(int, printed.stdout.split())
    assert in_one_thread >= 10_000
    assert in_a_command <= 1_000


@pytest.mark.parametrize(
    ("name", "point", "n"),
    [("wma-gru", "points.new", 1), ("wma-learned-additive", "hook_embed", 2)],
)
def test_a_machine_of_small_matrices_runs_on_one_thread_and_the_users_setting_is_left(
    name, point, n
):
    """The largest matrices hold 7,680 numbers and 16,384; a round that fails leaves the setting, too."""
    machine = interp.load(name)
    episodes = experts.sample(2, 3, 4, seed=0)
    seen = []
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        watching = (point, lambda value, hook: seen.append(torch.get_num_threads()))
        interp.rollout(machine, episodes, fwd_hooks=[watching])
        assert set(seen) == {n}
        assert torch.get_num_threads() == 2
        with pytest.raises((ZeroDivisionError, interp.InputError), match="division"):
            interp.rollout(machine, episodes, fwd_hooks=[(point, lambda value, hook: 1 / 0)])
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)
