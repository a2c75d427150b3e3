"""Junk for public functions: what they are, right arguments for them, and wrong ones to put in their place.

:func:`surface` holds what ``__all__`` of any module names, functions and classes, and every function under ``@checked``
of any module. :func:`spoiled` makes a call of one of them: right arguments, some replaced by junk.
"""

import importlib
import inspect
import random
import signal
import sys
import tomllib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any, get_origin

import numpy as np
import pandas as pd
import sympy  # noqa: F401  (torch imports it late; a call that is stopped in it leaves half of it)
import torch

from interp.support.checks import MISFIT, UNCHECKED, convert_value, kind_of
from tests.census import PACKAGES
from tests.test_architecture import MODULES

TABLES = tomllib.loads(Path(__file__).with_suffix(".toml").read_text("utf-8"))
LEFT_OUT = TABLES["left out"]
"""Functions that no junk is thrown at, and why."""
LONG = set(TABLES["long"])
"""Functions of which a right call takes a minute or more: what they do not refuse is stopped."""
SHORT = 0.5
"""CPU seconds after which it is."""


@cache
def surface() -> dict[str, Callable[..., Any]]:
    """Every public function and class, by its full name."""
    found: dict[str, Callable[..., Any]] = {}
    for module_name in MODULES:
        if module_name.endswith("__main__"):
            continue
        module = importlib.import_module(module_name)
        named = [_held(module, public) for public in getattr(module, "__all__", ())]
        for one in [*named, *_checked(module)]:
            if callable(one) and str(getattr(one, "__module__", "")).split(".")[0] in PACKAGES:
                found[f"{one.__module__}.{one.__qualname__}"] = one
    return {
        name: found[name]
        for name in sorted(found)
        if name not in LEFT_OUT and _takes_arguments(found[name])
    }


def _held(module: ModuleType, name: str) -> Any:
    try:
        return getattr(module, name)
    except AttributeError:
        return importlib.import_module(f"{module.__name__}.{name}")


def _checked(module: ModuleType) -> list[Any]:
    """The public functions under ``@checked`` that a module defines."""
    own = [
        (name, one)
        for name, one in vars(module).items()
        if getattr(one, "__module__", "") == module.__name__
    ]
    return [one for name, one in own if getattr(one, "checked", False) and not name.startswith("_")]


def _takes_arguments(function: Callable[..., Any]) -> bool:
    try:
        return bool(inspect.signature(function).parameters) and not (
            inspect.isclass(function) and issubclass(function, BaseException)
        )
    except (TypeError, ValueError):
        return False


@cache
def right() -> dict[str, Any]:
    """Right arguments by parameter name; small, so that calls that are right by chance are short."""
    import interp
    from interp.interventions.pairs import prepare
    from interp.tasks import experts, mdp

    model = interp.load("wma-handwired", n_experts=3)
    episodes, other = (experts.sample(6, 4, 3, seed=seed) for seed in (0, 1))
    run, other_run = interp.rollout(model, episodes), interp.rollout(model, other)
    algorithm = experts.TASK.explains(model)
    clean, corrupted = experts.TASK.corruption("flip-vote").build(episodes, round=1, expert="p_2")
    trajectories = mdp.sample(6, 4, 3, 2, seed=0)
    return {
        **TABLES["right"],
        "model": model,
        "episodes": episodes,
        "base": episodes,
        "source": other,
        "run": run,
        "algorithm": algorithm,
        "runs": (run, other_run),
        "clean": clean,
        "corrupted": corrupted,
        "pair": prepare(model, clean, corrupted, 1),
        "layout": model.layout,
        "worlds": trajectories.mdps,
        "mdps": trajectories.mdps,
        "predictions": run.predictions,
        "tables": trajectories.q_tables,
        "activations": run.latents[:, 1:],
        "target": np.asarray(episodes.labels, float),
        "circuit": importlib.import_module("circuits").build("wma-handwired", n_experts=3),
        "doses": importlib.import_module("interp.interventions.steering").Doses(
            np.array([1.0, -1.0, 0.0])
        ),
        "change": np.array([1.0, -1.0, 0.0]),
        "values": np.ones((6, 4)),
        "losses": np.ones((6, 4)),
        "references": np.full((6, 4), 2.0),
        "hits": np.ones((6, 4)),
        "rng": np.random.default_rng(0),
        "frame": pd.DataFrame({"a": [1.0]}),
    }


_PLAIN = (
    None,
    True,
    False,
    0,
    1,
    -1,
    3,
    2.5,
    -0.5,
    float("nan"),
    float("inf"),
    -float("inf"),
    10**9,
    2**70,
)
_SCALARS = (
    np.int64(2),
    np.float32(0.5),
    np.bool_(True),
    10**9 * 1.0,
    1j,
    object(),
    Ellipsis,
    np.random.default_rng(0),
)
_TEXTS = ("", "x", "uniform", "../../x", "a\0b", "latent", "all", b"x")
_LISTS = (
    (),
    [],
    [1],
    [1.7],
    [True, False],
    [None],
    ["x"],
    [[1], [1, 2]],
    {},
    {"a": 1},
    {0: 1},
    {1, 2},
    range(3),
)
_SLICES = (slice(None), slice(1.5, None), slice(0, 4, 0))
_ARRAYS = (
    np.zeros(0),
    np.zeros(3),
    np.zeros((2, 3)),
    np.full((6, 4), np.nan),
    np.ones((6, 4), bool),
)
_OTHER_ARRAYS = (
    np.array(["a", "b"]),
    np.array([object()]),
    pd.Series([1.0, 2.0]),
    pd.DataFrame({"a": [1]}),
)
_TENSORS = (
    torch.zeros(0),
    torch.zeros(2, 3),
    torch.full((6, 4), torch.nan),
    torch.ones(3, dtype=torch.bool),
)
_BFLOAT = torch.zeros(2, dtype=torch.bfloat16)
JUNK: tuple[Any, ...] = (
    *_PLAIN,
    *_SCALARS,
    *_TEXTS,
    *_LISTS,
    *_SLICES,
    *_ARRAYS,
    *_OTHER_ARRAYS,
    *_TENSORS,
    _BFLOAT,
)
"""What stands in the place of right arguments."""


def spoiled(function: Callable[..., Any], seed: int) -> dict[str, Any]:
    """Arguments of a call: right where they are known, one to three of them junk."""
    draw = random.Random(seed)
    several = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    parameters = [
        one for one in inspect.signature(function).parameters.values() if one.kind not in several
    ]
    taken = {}
    for parameter in parameters:
        needed = parameter.default is parameter.empty
        if needed or (parameter.name in right() and draw.random() < 0.3):
            taken[parameter.name] = draw.choice(_fitting(function, parameter.name) or JUNK)
    names = [one.name for one in parameters]
    for name in draw.sample(names, min(len(names), draw.choice((1, 1, 1, 2, 3)))):
        taken[name] = draw.choice(JUNK)
    return taken


@cache
def _fitting(function: Callable[..., Any], name: str) -> tuple[Any, ...]:
    """Right arguments for a parameter: the one of its name, else whatever its annotation takes."""
    annotation = inspect.signature(function).parameters[name].annotation
    known = getattr(inspect.unwrap(function), "__globals__", None) or vars(
        sys.modules[function.__module__]
    )
    kind = kind_of(annotation, known)
    if name in right() and convert_value(kind, right()[name]) is not MISFIT:
        return (right()[name],)
    called = get_origin(kind) is Callable  # many records can be called, too
    return (
        ()
        if kind in UNCHECKED
        else tuple(
            one
            for one in _pool()
            if convert_value(kind, one) is not MISFIT and (not called or inspect.isfunction(one))
        )
    )


@cache
def _pool() -> tuple[Any, ...]:
    """Values of every kind that is made in a moment: each stands where an annotation takes it."""
    from tests import junk_methods

    texts = ["a", "b"]
    frame = pd.DataFrame({"a": [0.5, 1.0], "low": [0.1, 0.2], "high": [0.6, 1.0]})
    plain = (
        2,
        0.5,
        True,
        "x",
        texts,
        [texts, texts],
        [1, 2],
        [0.5, 1.0],
        {"a": 1.0},
        {"a": "x"},
        {"a": 1},
        {},
    )
    arrays = [
        np.ones(shape, kind) for shape in ((6,), (6, 4), (6, 4, 3)) for kind in (bool, int, float)
    ]
    made = [torch.from_numpy(one) for one in arrays] + [
        right()["run"].latents,
        torch.nn.Linear(3, 3),
    ]
    records = [*junk_methods.objects(), *right().values()]
    called = (lambda *given, **more: np.ones((6, 4)), lambda *given, **more: {})
    return (
        *plain,
        *arrays,
        *made,
        frame,
        [frame],
        {"a": frame},
        *called,
        *records,
        *([one] for one in records),
    )


class TooLongError(BaseException):
    """A call took longer than it may: no Exception, so that nothing takes it for a failure of its own."""


@contextmanager
def at_most(seconds: float) -> Iterator[None]:
    """Stop what is inside when it has computed for so long, or has waited for far longer."""
    wait = max(60.0, 10 * seconds)

    stopped = []

    def stop(which: int, _: Any) -> None:
        stopped.append(which)
        computed = stopped[0] == signal.SIGPROF  # what was stopped may wait for its threads
        raise TooLongError(f"computed for {seconds} s" if computed else f"waited for {wait} s")

    timers = {
        signal.ITIMER_PROF: (signal.SIGPROF, seconds),
        signal.ITIMER_REAL: (signal.SIGALRM, wait),
    }
    before = {number: signal.signal(number, stop) for number, _ in timers.values()}
    for timer, (_, end) in timers.items():
        signal.setitimer(timer, end)
    try:
        yield
    finally:
        for timer in timers:
            signal.setitimer(timer, 0)
        for number, handler in before.items():
            signal.signal(number, handler)


def outcome(
    name: str, function: Callable[..., Any], arguments: dict[str, Any]
) -> BaseException | None:
    """What a call raises beside an InputError, or None; a right call of those that take long is stopped."""
    from interp.support.errors import InputError

    parameters = inspect.signature(function).parameters
    positional = [arguments.pop(p.name) for p in parameters.values() if p.kind is p.POSITIONAL_ONLY]
    try:
        with at_most(SHORT if name in LONG else 20):
            repr(function(*positional, **arguments))
    except InputError:
        return None
    except TooLongError as error:
        return None if name in LONG else error
    except BaseException as error:
        return error
    return None
