"""Run independent parts of long work on this machine's cores or a dask cluster, and show progress.

Progress goes to standard error: a bar on a terminal, elsewhere a line every half minute, even if no
step has finished since the last line.

>>> sorted(run_on_workers(pow, 2, [1, 2, 3]))
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

from interp.support.errors import InputError, convert_errors, require
from interp.support.foreign import escape_line, rich_text

_S = TypeVar("_S")
_T = TypeVar("_T")
_R = TypeVar("_R")

_SILENT: ContextVar[bool] = ContextVar("silent", default=False)
_SECONDS_BETWEEN_LINES = 30.0
"""Seconds between two lines of progress where standard error is not a terminal."""
_START_SECONDS = 2.0
"""Seconds at the start of a bar that do not count for its speed: steps this early were read from
files.
"""
_OPEN_WRITERS: list[object] = []
"""Writers of progress lines that are open; only the last one, the innermost, writes."""
_LOCAL = "local"
"""Name of the scheduler that is started for the work: a cluster of processes on this machine."""
TRUSTED: set[str] = set()
"""Names of other machines whose dask schedulers may be used."""
_ANSWER_SECONDS = 20
"""Seconds that a scheduler may take to answer."""
_JOB_ARRAYS = {
    "SLURM_ARRAY_TASK_ID": "SLURM_ARRAY_TASK_COUNT",
    "SGE_TASK_ID": "SGE_TASK_LAST",
    "PBS_ARRAY_INDEX": "",
    "PBS_ARRAYID": "",
}
"""Environment variable with the number of this job in its array -> variable with the number of
jobs.
"""
_ONE_THREAD = {"OMP_NUM_THREADS": 1, "MKL_NUM_THREADS": 1, "OPENBLAS_NUM_THREADS": 1}
"""Environment of a worker: one thread each, since workers share the cores."""
_SMALL_MATRIX = 2**14
"""If the largest weight matrix has fewer entries than this, a second torch thread saves no time."""
_M_TRIM_THRESHOLD = -1  # of glibc's malloc.h
_M_MMAP_THRESHOLD = -3
_MOST_FREED = 2**28
"""The most bytes of freed memory that a process keeps for its next tensors."""
_LARGEST_KEPT = 2**25
"""Freed blocks with more bytes than this are returned to the system at once."""
_MALLOC = {"MALLOC_TRIM_THRESHOLD_": _MOST_FREED, "MALLOC_MMAP_THRESHOLD_": _LARGEST_KEPT}
"""The same two settings, as environment variables for processes that are started."""


def run_on_workers(
    work: Callable[[_S, _T], _R],
    shared: _S,
    items: Sequence[_T],
    *,
    n_jobs: int = 1,
    scheduler: str = "",
    prefer: Literal["threads", "processes"] | None = None,
) -> Iterator[_R]:
    """Call ``work(shared, item)`` for every item, on several workers, and yield the results in the
    order in which the calls finish.

    Args:
        work: a function that workers can import.
        shared: the first argument of every call. A dask cluster sends it to each worker once.
        items: the second argument of each call.
        n_jobs: number of workers, -1 for one per core; ignored for an existing cluster.
        scheduler: address of a dask scheduler, such as "tcp://node1:8786"; its workers need this
            package. ``"local"`` starts a cluster of ``n_jobs`` processes on this machine. Empty
            uses joblib, with the settings of its ``parallel_config``. If a dask worker dies, its
            item goes to another worker.
        prefer: joblib's ``prefer``, used where no backend is configured.
    """
    require(n_jobs != 0, "n_jobs must be the number of workers, or -1 for one per core, got 0")
    if scheduler:
        with _open_client(n_jobs, scheduler) as client:
            yield from _run_on_cluster(client, work, shared, items)
        return
    from joblib import Parallel, delayed
    from joblib.parallel import get_active_backend

    backend, _ = get_active_backend()
    # Some backends cannot return results one by one; these return all of them at the end.
    return_as = "generator_unordered" if backend.supports_return_generator else "list"
    run_parallel = Parallel(n_jobs=n_jobs, prefer=prefer, return_as=return_as)
    yield from run_parallel(delayed(work)(shared, item) for item in items)


def _run_on_cluster(
    client: Any, work: Callable[[_S, _T], _R], shared: _S, items: Sequence[_T]
) -> Iterator[_R]:
    """Yield ``work(shared, item)`` for every item from a dask cluster, as the results arrive.

    Args:
        client: a connected dask client.
        work: a function that workers can import.
        shared: the first argument of every call; sent to each worker once.
        items: the second argument of each call.
    """
    from asyncio import CancelledError

    from dask.distributed import KilledWorker, as_completed
    from distributed.comm.core import CommClosedError
    from distributed.protocol.pickle import dumps, loads

    def work_on(shared_bytes: bytes, item: _T) -> _R:
        return work(loads(shared_bytes), item)

    try:
        # Pickled here: after dask's own serialisation of a torch module, no hook can be added to it.
        (sent,) = client.scatter([dumps(shared)], broadcast=True)
        futures = [client.submit(work_on, sent, item, pure=False) for item in items]
        for _, result in as_completed(futures, with_results=True):
            if isinstance(result, CancelledError):
                raise result  # dask yields this in place of a result if the scheduler is gone
            yield result
    except (CancelledError, CommClosedError, KilledWorker, TimeoutError, TypeError) as error:
        # If the scheduler dies, `as_completed` fails to unpack a CancelledError, and raises a TypeError
        # that mentions it. Any other TypeError is one of `work`.
        if isinstance(error, TypeError) and "Cancelled" not in str(error):
            raise
        raise InputError(
            f"the cluster ended before the work did ({type(error).__name__}); what the command keeps is finished: "
            "start a scheduler and workers, and run it again"
        ) from error


def share(items: Sequence[_T], shard: str) -> Sequence[_T]:
    """Return this command's share of ``items``, if several commands divide the work.

    Args:
        items: the work of all commands.
        shard: "I/N" for the I-th of N shares. ``auto`` takes both numbers from the job array of
            Slurm, SGE or PBS in which this command runs; ``auto/N`` takes I from it. "" returns all
            items.

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
    """Return the share "I/N" of this job, from the environment variables of its job array.

    Args:
        shard: ``auto``, or ``auto/N`` with the number of shares N.
    """
    _, _, n_given = shard.partition("/")
    for index_name, n_name in _JOB_ARRAYS.items():
        index = os.environ.get(index_name, "")
        if index.isdigit():
            n_shares = n_given or os.environ.get(n_name, "")
            require(
                n_shares,
                f"{index_name} is {index}, and nothing says of how many jobs; give --shard auto/N, such as auto/64",
            )
            return f"{index}/{n_shares}"
    raise InputError(
        f"--shard {shard} is of a job in an array, and none of {', '.join(_JOB_ARRAYS)} is set; give I/N, such as 2/64"
    )


def _require_trusted_host(scheduler: str) -> None:
    """Refuse a dask scheduler on another machine unless the machine is in :data:`TRUSTED`, because
    data that a scheduler sends is unpickled.

    Args:
        scheduler: address of the scheduler.
    """
    url = scheduler if "//" in scheduler else f"//{scheduler}"
    with convert_errors(f"scheduler {scheduler!r} is no address: {{error}}", of=ValueError):
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
def _open_client(n_jobs: int, scheduler: str) -> Iterator[Any]:
    """Context manager that yields a dask client. If a cluster is started for the work, it is closed
    with the context.

    Args:
        n_jobs: number of processes of a cluster that is started, -1 for one per core.
        scheduler: address of a dask scheduler, or "local" to start a cluster on this machine.
    """
    with convert_errors(
        "a scheduler needs dask; run: pip install 'latent-context-interp[cluster]'", of=ImportError
    ):
        from dask.distributed import Client
    if scheduler == _LOCAL:
        with _start_local_cluster(n_jobs) as cluster, Client(cluster) as client:
            yield client
        return
    _require_trusted_host(scheduler)
    try:
        client = Client(scheduler, timeout=_ANSWER_SECONDS)
    except (OSError, TypeError, ValueError) as error:  # TypeError: tls:// without certificates
        remedy = f"start one with `dask scheduler`, give its address, such as tcp://127.0.0.1:8786, or {_LOCAL!r}"
        raise InputError(f"no dask scheduler answers at {scheduler!r}; {remedy}") from error
    with client:
        yield client


def _start_local_cluster(n_jobs: int) -> Any:
    """Start a dask cluster of processes on this machine, each with one thread, and return it.

    Args:
        n_jobs: number of processes, -1 for one per core.
    """
    import dask
    import joblib
    from dask.distributed import LocalCluster

    # dask's default, MALLOC_TRIM_THRESHOLD_, returns freed memory at once, which takes as long as the
    # work itself.
    environment = {**_ONE_THREAD, **_MALLOC}
    dask.config.set({"distributed.nanny.pre-spawn-environ": environment})
    n_workers = joblib.cpu_count() if n_jobs < 0 else n_jobs
    return LocalCluster(n_workers=n_workers, threads_per_worker=1, dashboard_address=None)


@contextmanager
def one_thread() -> Iterator[None]:
    """Run torch and NumPy's linear algebra on one thread, with which small models are faster.

    Usable as a context manager, or as a decorator: ``@one_thread()``. Libraries that are first
    loaded within the context are not limited.
    """
    from threadpoolctl import threadpool_limits  # type: ignore[import-untyped]

    with threads_for(None), threadpool_limits(1):
        yield


def keep_freed_memory() -> None:
    """Let this process and its children keep up to 256 MiB of freed memory for their next tensors.

    By default glibc returns a freed block of 128 KiB or more to the system, and the system has to
    clear the memory of the next tensor. The setting applies to the whole process and cannot be
    undone, so commands call this and library functions do not. It has no effect with other C
    libraries.
    """
    with suppress(AttributeError, OSError, TypeError):
        set_malloc_option = ctypes.CDLL(None).mallopt
        set_malloc_option(_M_MMAP_THRESHOLD, _LARGEST_KEPT)
        set_malloc_option(_M_TRIM_THRESHOLD, _MOST_FREED)
    for name, n_bytes in _MALLOC.items():
        os.environ.setdefault(name, str(n_bytes))


@contextmanager
def threads_for(machine: Any) -> Iterator[None]:
    """Run torch on one thread within the context if the machine's matrices are small. The setting
    is restored afterwards.

    Args:
        machine: a model with ``parameters``; None always uses one thread.
    """
    import torch

    n_before = torch.get_num_threads()
    matrices = [] if machine is None else machine.parameters()
    # True without a machine, which has no matrices.
    if n_before > 1 and all(weights.numel() < _SMALL_MATRIX for weights in matrices):
        torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(n_before)


@contextmanager
def display(
    text: str, total: int, completed: int = 0, shown: bool = True
) -> Iterator[Callable[..., None]]:
    """Show a progress bar, and yield the function that updates it. If standard error is not a
    terminal, a line of text is written every half minute instead.

    The function takes optional keywords:

    * ``advance``: number of steps done since the last call;
    * ``completed``: number of all steps done;
    * ``text``: a new text before the bar.

    Args:
        text: the text before the bar.
        total: number of steps of the work.
        completed: number of steps that were done before, such as by an interrupted run.
        shown: False to show nothing, as in all but the first of several processes.
    """
    from rich import progress as rich
    from rich.console import Console

    console = Console(stderr=True)
    is_hidden = _SILENT.get() or not shown or not console.is_terminal
    text_column = rich.TextColumn("{task.description}", markup=False)
    bars = rich.Progress(
        text_column,
        rich.BarColumn(),
        rich.MofNCompleteColumn(),
        rich.TimeElapsedColumn(),
        rich.TimeRemainingColumn(),
        console=console,
        disable=is_hidden,
        transient=True,
        speed_estimate_period=math.inf,  # the mean over all steps
    )
    began = time.monotonic()
    with bars:
        task = bars.add_task(escape_line(text), total=total, completed=completed)

        def update(
            *, advance: int | None = None, completed: int | None = None, text: str | None = None
        ) -> None:
            description = None if text is None else escape_line(text)
            bars.update(task, advance=advance, completed=completed, description=description)
            # Steps this early were read from files, not computed: the speed counts from now on.
            if time.monotonic() - began < _START_SECONDS:
                bars.reset(task, completed=int(bars.tasks[0].completed))

        def describe_progress() -> str:
            shown_task = bars.tasks[0]
            return f"{shown_task.description}: {shown_task.completed:.0f} of {total}"

        with printing_progress(describe_progress, shown):
            yield update


@contextmanager
def printing_progress(
    text: Callable[[], str], shown: bool = True, first: str = "", silent: bool = False
) -> Iterator[None]:
    """Write a line of progress every half minute while the context is open, if standard error is
    not a terminal.

    If several of these contexts are open, only the innermost one writes.

    Args:
        text: function that returns the line, such as "fit: 3 of 8". The seconds that have passed
            are appended.
        shown: False to write no lines.
        first: a line to write once after two seconds, even on a terminal; "" for none.
        silent: True to write no lines and to hide all progress bars within the context.
    """
    ended = threading.Event()
    writer = object()
    began = time.monotonic()

    def write_lines() -> None:
        if first and not ended.wait(_START_SECONDS):
            sys.stderr.write(f"{first}\n")
        while not sys.stderr.isatty() and not ended.wait(_SECONDS_BETWEEN_LINES):
            if _OPEN_WRITERS and _OPEN_WRITERS[-1] is writer:
                sys.stderr.write(f"{text()} ({time.monotonic() - began:.0f} s)\n")

    token = _SILENT.set(silent or _SILENT.get())
    if shown and not _SILENT.get():
        _OPEN_WRITERS.append(writer)
        threading.Thread(target=write_lines, daemon=True).start()
    try:
        yield
    finally:
        ended.set()
        if writer in _OPEN_WRITERS:
            _OPEN_WRITERS.remove(writer)
        _SILENT.reset(token)


@contextmanager
def bar(title: str, total: int) -> Iterator[Callable[[int], None]]:
    """Show a progress bar, and yield the function that advances it by a number of steps.

    Args:
        title: the text before the bar.
        total: number of steps of the work.
    """
    with display(title, total) as update:
        yield lambda steps: update(advance=steps)


@contextmanager
def show_spinner(text: str) -> Iterator[None]:
    """Show a spinner and ``text`` while the context is open, during work without countable steps.
    No progress bar may be opened within it.
    """
    from rich.console import Console

    console = Console(stderr=True)
    if _SILENT.get() or not console.is_terminal:
        yield
        return
    with console.status(rich_text(text)):
        yield


@contextmanager
def interruptible() -> Iterator[Callable[[], bool]]:
    """Context manager in which Ctrl-C does not stop the program at once. It yields a function that
    returns True once Ctrl-C was pressed.

    Long work calls this function wherever progress can be saved, and stops once the result is True.
    A second Ctrl-C raises KeyboardInterrupt at once.
    """
    pressed = threading.Event()

    def handle_interrupt(number: int, frame: Any) -> None:
        if pressed.is_set():
            raise KeyboardInterrupt
        pressed.set()

    if threading.current_thread() is not threading.main_thread():  # Python allows it no handlers
        yield pressed.is_set
        return
    handler_before = signal.signal(signal.SIGINT, handle_interrupt)
    try:
        yield pressed.is_set
    finally:
        signal.signal(signal.SIGINT, handler_before)
