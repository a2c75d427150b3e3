"""Long work: its independent parts on this machine's cores or the workers of a dask cluster, and how far it is.

Progress is shown on standard error: a bar where that is a terminal, elsewhere a line every half minute, whether or not
a step has ended meanwhile.

>>> sorted(each(pow, 2, [1, 2, 3]))
[2, 4, 8]
"""

from __future__ import annotations

import ctypes
import math
import platform
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
_EVERY = 30.0  # seconds between two lines where standard error is no terminal
_AT_ONCE = 2.0
"""Seconds at the beginning of a bar: steps that end in them were kept from before, and tell nothing of the others."""
_SAYING: list[object] = []  # what says how far the work is, the innermost last
_LOCAL = (
    "local"  # the scheduler that is started for the work: a cluster of processes on this machine
)
TRUSTED: set[str] = set()
"""Machines other than this one whose schedulers may be used."""
_SECONDS = 20  # how long a scheduler may take to answer
_ONE_THREAD = {"OMP_NUM_THREADS": 1, "MKL_NUM_THREADS": 1, "OPENBLAS_NUM_THREADS": 1}
"""The environment of a worker: workers share the cores."""
_SMALL = (
    2**14
)  # numbers in the largest weight matrix below which a second thread of torch saves no time


def each(
    work: Callable[[_S, _T], _R],
    shared: _S,
    items: Sequence[_T],
    *,
    n_jobs: int = 1,
    scheduler: str = "",
    prefer: Literal["threads", "processes"] | None = None,
) -> Iterator[_R]:
    """``work(shared, item)`` for every item, in the order in which they are done.

    Args:
        shared: sent to each worker once.
        n_jobs: workers, -1 for one per core; an existing cluster has its own.
        scheduler: address of a dask scheduler, such as "tcp://node1:8786", whose workers have this package installed;
            ``"local"`` for a cluster of ``n_jobs`` processes here; empty for joblib, whose ``parallel_config`` holds.
            An item whose worker died goes to another one.
        prefer: what joblib takes where nothing else is configured.
    """
    require(n_jobs != 0, "n_jobs must be the number of workers, or -1 for one per core, got 0")
    if scheduler:
        with _client(n_jobs, scheduler) as client:
            from dask.distributed import as_completed
            from distributed.protocol.pickle import dumps, loads

            # As bytes: dask's own way of sending torch modules gives them plain dicts, to which no hook can be added.
            (sent,) = client.scatter([dumps(shared)], broadcast=True)
            futures = [
                client.submit(lambda own, one: work(loads(own), one), sent, item, pure=False)
                for item in items
            ]
            for _, result in as_completed(futures, with_results=True):
                yield result
        return
    from joblib import Parallel, delayed
    from joblib.parallel import get_active_backend

    # Not every backend hands results over one by one; the others do so at the end.
    returns = "generator_unordered" if get_active_backend()[0].supports_return_generator else "list"
    yield from Parallel(n_jobs=n_jobs, prefer=prefer, return_as=returns)(
        delayed(work)(shared, item) for item in items
    )


def share(items: Sequence[_T], shard: str) -> Sequence[_T]:
    """The items of one of several commands that divide work among them, as the jobs of an array do; all when empty.

    >>> share("abcdefg", "2/3"), share("abcdefg", "")
    ('be', 'abcdefg')
    """
    if not shard:
        return items
    said = f"a shard is I/N, the I-th of N shares, such as 2/64, got {shard!r}"
    first, _, of = shard.partition("/")
    require(first.isdecimal() and of.isdecimal() and first.isascii() and of.isascii(), said)
    require(1 <= int(first) <= int(of), f"{said}; I counts from 1 to N")
    return items[int(first) - 1 :: int(of)]


def _require_trusted(scheduler: str) -> None:
    """Refuse the scheduler of a machine that is neither this one nor named: what it sends is unpickled."""
    with theirs(f"scheduler {scheduler!r} is no address: {{error}}", of=ValueError):
        address = urlsplit(scheduler if "//" in scheduler else f"//{scheduler}")
        host = address.hostname or ""
    if address.scheme == "inproc":  # in this very process
        return
    try:
        here = ip_address(host).is_loopback
    except ValueError:
        here = host in ("localhost", platform.node())
    require(
        here or host in TRUSTED,
        f"the scheduler {scheduler!r} is on another machine, and what it sends runs code here; where you trust it, say "
        f"so: interp --trust {host or 'HOST'} ..., or interp.support.workers.TRUSTED.add({host!r})",
    )


@contextmanager
def _client(n_jobs: int, scheduler: str) -> Iterator[Any]:
    """A client of the scheduler; a cluster that was started for it ends with it."""
    with theirs(
        "a scheduler needs dask; run: pip install 'latent-context-interp[cluster]'", of=ImportError
    ):
        import dask
        from dask.distributed import Client, LocalCluster
    if scheduler == _LOCAL:
        import joblib

        # By default freed memory is given back at once, too (MALLOC_TRIM_THRESHOLD_), which costs as much as the work.
        dask.config.set({"distributed.nanny.pre-spawn-environ": _ONE_THREAD})
        n_workers = joblib.cpu_count() if n_jobs < 0 else n_jobs
        with (
            LocalCluster(
                n_workers=n_workers, threads_per_worker=1, dashboard_address=None
            ) as cluster,
            Client(cluster) as client,
        ):
            yield client
        return
    _require_trusted(scheduler)
    try:
        client = Client(scheduler, timeout=_SECONDS)
    except (OSError, ValueError) as error:
        remedy = f"start one with `dask scheduler`, give its address, such as tcp://127.0.0.1:8786, or {_LOCAL!r}"
        raise InputError(f"no dask scheduler answers at {scheduler!r}; {remedy}") from error
    with client:
        yield client


@contextmanager
def one_thread() -> Iterator[None]:
    """Torch and NumPy's linear algebra on one thread: the models are small, and threads that wait cost more than work.

    A context manager, or a decorator: ``@one_thread()``. Libraries that are loaded inside of it are not reached.
    From then on the process keeps up to 256 MiB of freed memory for its next tensors, where its C library is glibc.
    """
    from threadpoolctl import threadpool_limits  # type: ignore[import-untyped]

    # Memory of 128 KiB and more went back to the system at once, which cleared each page of the next tensor anew.
    with suppress(AttributeError, OSError, TypeError):
        mallopt = ctypes.CDLL(None).mallopt
        (
            mallopt(-3, 2**25),
            mallopt(-1, 2**28),
        )  # M_MMAP_THRESHOLD and M_TRIM_THRESHOLD of glibc's malloc.h
    with threads_for(None), threadpool_limits(1):
        yield


@contextmanager
def threads_for(machine: Any) -> Iterator[None]:
    """Torch on one thread while a machine of small matrices runs (or None, anything); the user's setting afterwards."""
    import torch

    before = torch.get_num_threads()
    if before > 1 and (
        machine is None or all(weights.numel() < _SMALL for weights in machine.parameters())
    ):
        torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


@contextmanager
def display(
    text: str, total: int, completed: int = 0, shown: bool = True
) -> Iterator[Callable[..., None]]:
    """A bar from ``completed`` to ``total`` steps; call what it gives as the work goes on.

    Its arguments are ``advance``, so many steps further, or ``completed``, and a ``text`` before the bar; all optional.
    Of several processes, all but the first give ``shown=False``.
    """
    from rich import progress as rich
    from rich.console import Console

    console = Console(stderr=True)
    columns = (
        rich.TextColumn("{task.description}", markup=False),
        rich.BarColumn(),
        rich.MofNCompleteColumn(),
    )
    times: Any = (rich.TimeElapsedColumn(), rich.TimeRemainingColumn())
    began, hidden = time.monotonic(), not (shown and console.is_terminal) or _SILENT.get()
    bars = rich.Progress(
        *columns,
        *times,
        console=console,
        disable=hidden,
        transient=True,
        speed_estimate_period=math.inf,
    )
    with bars:
        task = bars.add_task(one_line(text), total=total, completed=completed)

        def update(
            *, advance: int | None = None, completed: int | None = None, text: str | None = None
        ) -> None:
            bars.update(
                task, advance=advance, completed=completed, description=text and one_line(text)
            )
            if time.monotonic() - began < _AT_ONCE:
                bars.reset(task, completed=int(bars.tasks[0].completed))

        with saying(
            lambda: f"{bars.tasks[0].description}: {bars.tasks[0].completed:.0f} of {total}", shown
        ):
            yield update


@contextmanager
def saying(
    text: Callable[[], str], shown: bool = True, first: str = "", silent: bool = False
) -> Iterator[None]:
    """Say ``text`` every half minute where standard error is no terminal, but where work within it says more.

    ``first`` is said on a terminal, too, once the work has taken so long that nothing was refused. Within a ``silent``
    one nothing is said, and no bar and no sign is shown, on a terminal either.
    """
    ended, me, began = threading.Event(), object(), time.monotonic()

    def say() -> None:
        if first and not ended.wait(_AT_ONCE):
            sys.stderr.write(f"{first}\n")
        while not sys.stderr.isatty() and not ended.wait(_EVERY):
            if _SAYING[-1:] == [me]:
                sys.stderr.write(f"{text()} ({time.monotonic() - began:.0f} s)\n")

    token = _SILENT.set(silent or _SILENT.get())
    if shown and not _SILENT.get():
        _SAYING.append(me)
        threading.Thread(target=say, daemon=True).start()
    try:
        yield
    finally:
        ended.set()
        _SAYING[:] = [one for one in _SAYING if one is not me]
        _SILENT.reset(token)


@contextmanager
def bar(title: str, total: int) -> Iterator[Callable[[int], None]]:
    """Call what it gives with how many of ``total`` steps were just done."""
    with display(title, total) as update:
        yield lambda steps: update(advance=steps)


@contextmanager
def working(text: str) -> Iterator[None]:
    """A moving sign beside ``text`` while work goes on whose steps cannot be counted; no bar may begin within it."""
    from rich.console import Console

    console = Console(stderr=True)
    if _SILENT.get() or not console.is_terminal:
        yield
        return
    with console.status(rich_text(text)):
        yield


@contextmanager
def interruptible() -> Iterator[Callable[[], bool]]:
    """Whether Ctrl-C was pressed, so that work ends where it can be saved; a second Ctrl-C stops it at once."""
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
