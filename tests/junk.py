"""Junk for public functions: what they are, right arguments for them, and wrong ones to put in their place.

:func:`surface` walks ``__all__`` of every public module: functions and classes named there, and the public functions of
the modules named there. :func:`spoiled` makes a call of one of them: right arguments, some replaced by junk.
"""

from __future__ import annotations

import importlib
import inspect
import pkgutil
import random
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from types import ModuleType
from typing import Any

import numpy as np
import pandas as pd
import torch

PACKAGES = ("interp", "circuits", "probes", "reports")
LEFT_OUT = {
    "interp.tasks.register": "changes the registry of the process",
    "interp.library.register_machine": "changes the registry of the process, as above",
    "interp.lazy.lazy": "names a module that is imported when the function it gives is called",
    "interp.llm.local.load_model": "reads language models",
    "interp.training.trainer.train": "trains: tests/training/test_state.py has its junk",
    "circuits.compare.driver.run": "a right call takes minutes",
    "circuits.benchmark.grading.run": "a right call takes minutes",
}
"""Functions that no junk is thrown at, and why."""


@cache
def surface() -> dict[str, Callable[..., Any]]:
    """Every public function and class, by its full name."""
    found: dict[str, Callable[..., Any]] = {}
    for name in PACKAGES:
        package = importlib.import_module(name)
        for module_name in [name, *(m.name for m in pkgutil.walk_packages(package.__path__, f"{name}."))]:
            if module_name.endswith("__main__"):
                continue
            module = importlib.import_module(module_name)
            for public in getattr(module, "__all__", ()):
                held = _held(module, public)
                for one in _functions(held) if isinstance(held, ModuleType) else [held]:
                    if callable(one) and str(getattr(one, "__module__", "")).split(".")[0] in PACKAGES:
                        found[f"{one.__module__}.{one.__qualname__}"] = one
    return {name: found[name] for name in sorted(found) if name not in LEFT_OUT and _takes_arguments(found[name])}


def _held(module: ModuleType, name: str) -> Any:
    try:
        return getattr(module, name)
    except AttributeError:
        return importlib.import_module(f"{module.__name__}.{name}")


def _functions(module: ModuleType) -> list[Any]:
    if hasattr(module, "__all__"):
        return []  # walked by itself
    return [
        one
        for name, one in vars(module).items()
        if inspect.isfunction(one)
        and not name.startswith("_")
        and one.__module__ == module.__name__
        and getattr(one, "checked", False)
    ]


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
    clean, corrupted = experts.TASK.corruption("flip-vote").build(episodes, round=1, expert=1)
    trajectories = mdp.sample(6, 4, 3, 2, seed=0)
    return {
        "model": model,
        "episodes": episodes,
        "base": episodes,
        "source": other,
        "run": run,
        "algorithm": algorithm,
        "runs": (run, other_run),
        "clean": clean,
        "corrupted": corrupted,
        "round": 1,
        "rounds": [1, 2],
        "site": "latent",
        "places": "latent",
        "cause": "latent",
        "through": "z[0.0]@p?",
        "variable": "log_weights",
        "t": 1,
        "seed": 0,
        "pair": prepare(model, clean, corrupted, 1),
        "layout": model.layout,
        "name": "wma-handwired",
        "component": "z",
        "n_episodes": 4,
        "n_rounds": 3,
        "n_experts": 3,
        "n_states": 3,
        "n_actions": 2,
        "n_nodes": 6,
        "n_edges": 6,
        "worlds": trajectories.mdps,
        "mdps": trajectories.mdps,
        "alpha": 0.1,
        "gamma": 0.9,
        "regime": "uniform",
        "predictions": run.predictions,
        "tables": trajectories.q_tables,
        "activations": run.latents[:, 1:],
        "target": np.asarray(episodes.labels, float),
        "targets": ["log_weights"],
        "key": "log_weights",
        "text": "latent",
        "circuit": importlib.import_module("circuits").build("wma-handwired", n_experts=3),
        "change": np.array([1.0, -1.0, 0.0]),
        "values": np.ones((6, 4)),
        "losses": np.ones((6, 4)),
        "references": np.full((6, 4), 2.0),
        "n_folds": 5,
        "hits": np.ones((6, 4)),
        "steps": 2,
        "task": "experts",
        "folder": "out",
        "path": "out/file",
        "out": "out",
        "corruption": "flip-vote",
        "metric": "logit_diff",
        "design": "iid",
        "rng": np.random.default_rng(0),
        "n_mdps": 3,
        "frame": pd.DataFrame({"a": [1.0]}),
    }


JUNK: tuple[Any, ...] = (
    None, True, False, 0, 1, -1, 3, 2.5, -0.5, float("nan"), float("inf"), -float("inf"), 10**9, 2**70, np.int64(2),
    np.float32(0.5), np.bool_(True), "", "x", "uniform", "../../x", "a\0b", "latent", "all", b"x", (), [], [1], [1.7],
    [True, False], [None], ["x"], [[1], [1, 2]], {}, {"a": 1}, {0: 1}, {1, 2}, slice(None), slice(1.5, None),
    slice(0, 4, 0), range(3), object(), Ellipsis, 1j, np.zeros(0), np.zeros(3), np.zeros((2, 3)),
    np.full((6, 4), np.nan), np.ones((6, 4), bool), np.array(["a", "b"]), np.array([object()]), torch.zeros(0),
    torch.zeros(2, 3), torch.full((6, 4), torch.nan), torch.zeros(2, dtype=torch.bfloat16),
    torch.ones(3, dtype=torch.bool),
    pd.Series([1.0, 2.0]), pd.DataFrame({"a": [1]}), np.random.default_rng(0), 10**9 * 1.0,
)  # fmt: skip
"""What stands in the place of right arguments."""


def spoiled(function: Callable[..., Any], seed: int) -> dict[str, Any]:
    """Arguments of a call: right where they are known, one to three of them junk."""
    draw = random.Random(seed)
    taken = {}
    for parameter in inspect.signature(function).parameters.values():
        if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
            continue
        if parameter.name in right() and (parameter.default is parameter.empty or draw.random() < 0.3):
            taken[parameter.name] = right()[parameter.name]
        elif parameter.default is parameter.empty:
            taken[parameter.name] = draw.choice(JUNK)
    names = [
        p.name
        for p in inspect.signature(function).parameters.values()
        if p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)
    ]
    for name in draw.sample(names, min(len(names), draw.choice((1, 1, 1, 2, 3)))):
        taken[name] = draw.choice(JUNK)
    return taken


@contextmanager
def at_most(seconds: int) -> Iterator[None]:
    """Raise TimeoutError when what is inside takes longer."""

    def stop(*_: Any) -> None:
        raise TimeoutError(f"longer than {seconds} s")

    before = signal.signal(signal.SIGALRM, stop)
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


def outcome(function: Callable[..., Any], arguments: dict[str, Any], seconds: int = 20) -> BaseException | None:
    """What a call raises beside an InputError, or None."""
    from interp.errors import InputError

    parameters = inspect.signature(function).parameters
    positional = [arguments.pop(p.name) for p in parameters.values() if p.kind is p.POSITIONAL_ONLY]
    try:
        with at_most(seconds):
            function(*positional, **arguments)
    except InputError:
        return None
    except BaseException as error:
        return error
    return None
