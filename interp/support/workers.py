"""Long work: its independent parts on this machine's cores or the workers of a dask cluster, and how far it is.

Progress is shown on standard error: a bar where that is a terminal, elsewhere a line every half minute, whether or not
a step has ended meanwhile.

>>> sorted(each(pow, 2, [1, 2, 3]))
[2, 4, 8]
"""

from __future__ import annotations

import ctypes
import math
import os
import platform
import re
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from ipaddress import ip_address
from typing import Any, Literal, TypeVar
from urllib.parse import urlsplit

from interp.support.errors import InputError, require, theirs
from interp.support.foreign import one_line, rich_text

_S = TypeVar("_S")
_T = TypeVar("_T")
_R = TypeVar("_R")

_SILENT: ContextVar[bool] = ContextVar("silent", default=False)
_EVERY = 30.0
"""Seconds between two lines where standard error is no terminal."""
_AT_ONCE = 2.0
"""Seconds at the beginning of a bar: steps that end in them were read from files and say nothing about the others."""
_SAYING: list[object] = []
"""Who reports how far the work is, the innermost last."""
_LOCAL = "local"
"""The scheduler that is started for the work: a cluster of processes on this machine."""
TRUSTED: set[str] = set()
"""Machines other than this one whose schedulers may be used."""
_SECONDS = 20
"""How long a scheduler may take to answer."""
_JOB_ARRAYS = {
    "SLURM_ARRAY_TASK_ID": "SLURM_ARRAY_TASK_COUNT",
    "SGE_TASK_ID": "SGE_TASK_LAST",
    "PBS_ARRAY_INDEX": "",
    "PBS_ARRAYID": "",
}
"""The variable in which a queue says which job of an array this is -> the one that says how many there are."""
_ONE_THREAD = {"OMP_NUM_THREADS": 1, "MKL_NUM_THREADS": 1, "OPENBLAS_NUM_THREADS": 1}
"""The environment of a worker: workers share the cores."""
_SMALL = 2**14
"""Numbers in the largest weight matrix below which a second thread of torch saves no time."""
_M_TRIM_THRESHOLD = -1  # of glibc's malloc.h
_M_MMAP_THRESHOLD = -3
_MOST_FREED = 2**28
"""Bytes of freed memory that a process keeps for its next tensors, at most."""
_LARGEST_KEPT = 2**25
"""Blocks of more bytes than this go back to the system when they are freed."""
_MALLOC = {"MALLOC_TRIM_THRESHOLD_": _MOST_FREED, "MALLOC_MMAP_THRESHOLD_": _LARGEST_KEPT}
"""The same two settings in the environment of a process that is started."""


def each(
    work: Callable[[_S, _T], _R],
    shared: _S,
    items: Sequence[_T],
    *,
    n_jobs: int = 1,
    scheduler: str = "",
    prefer: Literal["threads", "processes"] | None = None,
) -> Iterator[_R]:
    """Yield ``work(shared, item)`` for every item, in the order in which they are done.

    Args:
        work: a function that workers can import.
        shared: sent to each worker once.
        items: the second argument of each call.
        n_jobs: workers, -1 for one per core; an existing cluster has its own.
        scheduler: address of a dask scheduler, such as "tcp://node1:8786", whose workers have this package installed;
            ``"local"`` for a cluster of ``n_jobs`` processes here; empty for joblib, whose ``parallel_config`` holds.
            An item whose worker died goes to another one.
        prefer: what joblib takes where nothing else is configured.
    """
    require(n_jobs != 0, "n_jobs must be the number of workers, or -1 for one per core, got 0")
    if scheduler:
        with _client(n_jobs, scheduler) as client:
            yield from _results_of_cluster(client, work, shared, items)
        return
    from joblib import Parallel, delayed
    from joblib.parallel import get_active_backend

    backend, _ = get_active_backend()
    # Not every backend hands results over one by one; the others do so at the end.
    return_as = "generator_unordered" if backend.supports_return_generator else "list"
    run_all = Parallel(n_jobs=n_jobs, prefer=prefer, return_as=return_as)
    yield from run_all(delayed(work)(shared, item) for item in items)


def _results_of_cluster(
    client: Any, work: Callable[[_S, _T], _R], shared: _S, items: Sequence[_T]
) -> Iterator[_R]:
    """Yield the results of a dask cluster as they arrive."""
    from asyncio import CancelledError

    from dask.distributed import KilledWorker, as_completed
    from distributed.comm.core import CommClosedError
    from distributed.protocol.pickle import dumps, loads

    def work_on(shared_bytes: bytes, item: _T) -> _R:
        return work(loads(shared_bytes), item)

    try:
        # As bytes: dask's own way of sending torch modules gives them plain dicts, to which no hook can be added.
        (sent,) = client.scatter([dumps(shared)], broadcast=True)
        futures = [client.submit(work_on, sent, item, pure=False) for item in items]
        for _, result in as_completed(futures, with_results=True):
            if isinstance(
                result, CancelledError
            ):  # the scheduler is gone, and this stands for a result
                raise result
            yield result
    except (CancelledError, CommClosedError, KilledWorker, TimeoutError, TypeError) as error:
        # Of a scheduler that dies, as_completed itself raises a TypeError, about an error that it tries to unpack.
        if isinstance(error, TypeError) and "Cancelled" not in str(error):
            raise
        raise InputError(
            f"the cluster ended before the work did ({type(error).__name__}); what the command keeps is finished: "
            "start a scheduler and workers, and run it again"
        ) from error


def share(items: Sequence[_T], shard: str) -> Sequence[_T]:
    """Return the items of one command of several that divide the work; all items when ``shard`` is empty.

    ``auto`` is the number of this job in its array, as Slurm, SGE and PBS say it, and ``auto/N`` that one of N.

    >>> share("abcdefg", "2/3"), share("abcdefg", "")
    ('be', 'abcdefg')
    """
    if not shard:
        return items
    if shard.partition("/")[0] == "auto":
        shard = _share_of_job(shard)
    rule = f"a shard is I/N, the I-th of N shares, such as 2/64, got {shard!r}"
    numbers = re.fullmatch("([0-9]+)/([0-9]+)", shard)
    require(numbers is not None, rule)
    index, n_shares = map(int, shard.split("/"))
    require(1 <= index <= n_shares, f"{rule}; I counts from 1 to N")
    return items[index - 1 :: n_shares]


def _share_of_job(shard: str) -> str:
    """Return the share I/N of this job of an array."""
    n_given = shard.partition("/")[2]
    for index_name, n_name in _JOB_ARRAYS.items():
        index = os.environ.get(index_name, "")
        if index.isdigit():
            n_shares = n_given or os.environ.get(n_name, "")
            require(
                bool(n_shares),
                f"{index_name} is {index}, and nothing says of how many jobs; give --shard auto/N, such as auto/64",
            )
            return f"{index}/{n_shares}"
    raise InputError(
        f"--shard {shard} is of a job in an array, and none of {', '.join(_JOB_ARRAYS)} is set; give I/N, such as 2/64"
    )


def _require_trusted(scheduler: str) -> None:
    """Refuse the scheduler of a machine that is neither this one nor named: what it sends is unpickled."""
    url = scheduler if "//" in scheduler else f"//{scheduler}"
    with theirs(f"scheduler {scheduler!r} is no address: {{error}}", of=ValueError):
        address = urlsplit(url)
        host = address.hostname or ""
    if address.scheme == "inproc":  # in this very process
        return
    require(
        _is_this_machine(host) or host in TRUSTED,
        f"the scheduler {scheduler!r} is on another machine, and what it sends runs code here; where you trust it, say "
        f"so: interp --trust {host or 'HOST'} ..., or interp.support.workers.TRUSTED.add({host!r})",
    )


def _is_this_machine(host: str) -> bool:
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host in ("localhost", platform.node())


@contextmanager
def _client(n_jobs: int, scheduler: str) -> Iterator[Any]:
    """Connect to the scheduler; a cluster that was started for the work ends with it."""
    with theirs(
        "a scheduler needs dask; run: pip install 'latent-context-interp[cluster]'", of=ImportError
    ):
        from dask.distributed import Client
    if scheduler == _LOCAL:
        with _local_cluster(n_jobs) as cluster, Client(cluster) as client:
            yield client
        return
    _require_trusted(scheduler)
    try:
        client = Client(scheduler, timeout=_SECONDS)
    except (OSError, TypeError, ValueError) as error:  # TypeError: tls:// without certificates
        remedy = f"start one with `dask scheduler`, give its address, such as tcp://127.0.0.1:8786, or {_LOCAL!r}"
        raise InputError(f"no dask scheduler answers at {scheduler!r}; {remedy}") from error
    with client:
        yield client


def _local_cluster(n_jobs: int) -> Any:
    """Start a cluster of processes on this machine, each with one thread."""
    import dask
    import joblib
    from dask.distributed import LocalCluster

    # By default freed memory is given back at once, too (MALLOC_TRIM_THRESHOLD_), which costs as much as the work.
    environment = {**_ONE_THREAD, **_MALLOC}
    dask.config.set({"distributed.nanny.pre-spawn-environ": environment})
    n_workers = joblib.cpu_count() if n_jobs < 0 else n_jobs
    return LocalCluster(n_workers=n_workers, threads_per_worker=1, dashboard_address=None)


@contextmanager
def one_thread() -> Iterator[None]:
    """Run torch and NumPy's linear algebra on one thread: threads that wait cost more than small models' work.

    A context manager, or a decorator: ``@one_thread()``. Libraries that are loaded inside of it are not reached.
    """
    from threadpoolctl import threadpool_limits  # type: ignore[import-untyped]

    with threads_for(None), threadpool_limits(1):
        yield


def keep_freed_memory() -> None:
    """Let this process, and those that it starts, keep up to 256 MiB of freed memory for their next tensors.

    By default glibc returns a freed block of 128 KiB or more to the system, which clears each page of the next tensor
    anew. The setting is the whole process's and cannot be undone, so commands make it and library functions do not.
    Nothing happens where the C library is another one.
    """
    with suppress(AttributeError, OSError, TypeError):
        set_malloc_option = ctypes.CDLL(None).mallopt
        set_malloc_option(_M_MMAP_THRESHOLD, _LARGEST_KEPT)
        set_malloc_option(_M_TRIM_THRESHOLD, _MOST_FREED)
    for name, n_bytes in _MALLOC.items():
        os.environ.setdefault(name, str(n_bytes))


@contextmanager
def threads_for(machine: Any) -> Iterator[None]:
    """Run torch on one thread while a machine of small matrices runs; restore the user's setting afterwards.

    A ``machine`` of None stands for any work.
    """
    import torch

    before = torch.get_num_threads()
    if before > 1 and (machine is None or _is_small(machine)):
        torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def _is_small(machine: Any) -> bool:
    return all(weights.numel() < _SMALL for weights in machine.parameters())


@contextmanager
def display(
    text: str, total: int, completed: int = 0, shown: bool = True
) -> Iterator[Callable[..., None]]:
    """Show a bar and yield the function that moves it, to be called as the work goes on.

    That function takes ``advance``, a number of further steps, or ``completed``, all steps so far, and a ``text`` to
    write before the bar; all are optional.

    Args:
        text: stands before the bar.
        total: steps of the work.
        completed: steps that were done before.
        shown: False for all processes of several but the first.
    """
    from rich import progress as rich
    from rich.console import Console

    console = Console(stderr=True)
    bars = rich.Progress(
        rich.TextColumn("{task.description}", markup=False),
        rich.BarColumn(),
        rich.MofNCompleteColumn(),
        rich.TimeElapsedColumn(),
        rich.TimeRemainingColumn(),
        console=console,
        disable=_SILENT.get() or not shown or not console.is_terminal,
        transient=True,
        speed_estimate_period=math.inf,
    )
    began = time.monotonic()
    with bars:
        task = bars.add_task(one_line(text), total=total, completed=completed)

        def update(
            *, advance: int | None = None, completed: int | None = None, text: str | None = None
        ) -> None:
            description = None if text is None else one_line(text)
            bars.update(task, advance=advance, completed=completed, description=description)
            if time.monotonic() - began < _AT_ONCE:
                bars.reset(task, completed=int(bars.tasks[0].completed))

        def describe_progress() -> str:
            shown_task = bars.tasks[0]
            return f"{shown_task.description}: {shown_task.completed:.0f} of {total}"

        with saying(describe_progress, shown):
            yield update


@contextmanager
def saying(
    text: Callable[[], str], shown: bool = True, first: str = "", silent: bool = False
) -> Iterator[None]:
    """Write ``text`` every half minute where standard error is no terminal; only the innermost writer writes.

    Args:
        text: how far the work is.
        shown: False to write nothing.
        first: written on a terminal, too, once the work has taken so long that nothing was refused.
        silent: write nothing, and show no bar and no sign, within this one, on a terminal either.
    """
    ended = threading.Event()
    writer = object()
    began = time.monotonic()

    def write_lines() -> None:
        if first and not ended.wait(_AT_ONCE):
            sys.stderr.write(f"{first}\n")
        while not sys.stderr.isatty() and not ended.wait(_EVERY):
            if _SAYING and _SAYING[-1] is writer:
                sys.stderr.write(f"{text()} ({time.monotonic() - began:.0f} s)\n")

    token = _SILENT.set(silent or _SILENT.get())
    if shown and not _SILENT.get():
        _SAYING.append(writer)
        threading.Thread(target=write_lines, daemon=True).start()
    try:
        yield
    finally:
        ended.set()
        if writer in _SAYING:
            _SAYING.remove(writer)
        _SILENT.reset(token)


@contextmanager
def bar(title: str, total: int) -> Iterator[Callable[[int], None]]:
    """Show a bar and yield a function to call with the number of steps that were just done."""
    with display(title, total) as update:
        yield lambda steps: update(advance=steps)


@contextmanager
def working(text: str) -> Iterator[None]:
    """Show a moving sign beside ``text`` during work without countable steps; no bar may begin within it."""
    from rich.console import Console

    console = Console(stderr=True)
    if _SILENT.get() or not console.is_terminal:
        yield
        return
    with console.status(rich_text(text)):
        yield


@contextmanager
def interruptible() -> Iterator[Callable[[], bool]]:
    """Yield a function that returns whether Ctrl-C was pressed, so that work ends where it can be saved.

    A second Ctrl-C stops the work at once.
    """
    pressed = threading.Event()

    def press(number: int, frame: Any) -> None:
        if pressed.is_set():
            raise KeyboardInterrupt
        pressed.set()

    if threading.current_thread() is not threading.main_thread():  # no other one may handle signals
        yield pressed.is_set
        return
    before = signal.signal(signal.SIGINT, press)
    try:
        yield pressed.is_set
    finally:
        signal.signal(signal.SIGINT, before)
