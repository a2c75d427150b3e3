"""Real objects of the public classes, small and made once, and the public methods that junk is thrown at."""

import importlib
import inspect
from collections.abc import Callable, Collection, Iterator
from functools import cache
from typing import Any

from tests.junk import PACKAGES, right

STEPS = (
    "embed_round",
    "make_empty_past",
    "prepare",
    "read_out",
    "read_prediction",
    "run_from",
    "step",
    "unroll",
    "update",
    "write",
)
LEFT_OUT = {
    **{
        f"HookedLatentTransformer.{name}": "a step inside a round: forward and predict check the round"
        for name in STEPS
    },
    **{f"AdaptedMachine.{name}": "a step inside a round, as above" for name in ("forward", *STEPS)},
    "EdgeGraph.forward": "a step inside a round, as above",
    **{
        f"Algorithm.{name}": "a step inside a round: run checks the episodes"
        for name in ("advance", "list_dependencies")
    },
    "HookedLatentTransformer.hooks": "TransformerLens' own context manager does the work when it is entered",
}
"""Methods that no junk is thrown at, and why."""

CHANGING = {"HookedLatentTransformer.hook_points", "Interaction.episodes"}
"""Left out of what is only read: torch's own, and what needs a finished play."""


@cache
def methods() -> dict[str, Callable[..., Any]]:
    """Every public method of the objects of :func:`objects` that takes arguments, by class and name."""
    found: dict[str, Callable[..., Any]] = {}
    for one in objects():
        for name in dir(type(one)):
            held = inspect.getattr_static(type(one), name)
            function = getattr(held, "__func__", held)
            if name.startswith("_") or not inspect.isfunction(function) or name in _fields(one):
                continue  # a field may hold a function, too
            method = getattr(one, name)
            full = f"{type(one).__name__}.{name}"
            ours = str(getattr(method, "__module__", "")).split(".")[0] in PACKAGES
            if ours and full not in LEFT_OUT and inspect.signature(method).parameters:
                found[full] = method
    return {name: found[name] for name in sorted(found)}


@cache
def objects() -> tuple[Any, ...]:
    """One or two of every public class that can be made in a moment."""
    return tuple(_objects())


def _objects() -> Iterator[Any]:
    import interp
    import probes
    from interp.interventions import (
        edge_graph,
        interchange,
        mediation,
        moves,
        patching,
        sites,
        steering,
    )
    from interp.interventions.pairs import prepare
    from interp.interventions.sites import Place
    from interp.llm import backend, plan, schemes
    from interp.stats.intervals import Interval
    from interp.tasks.experts.regimes import get_regime
    from interp.tasks.qlearning.sampling import Interaction
    from interp.tasks.qlearning.tabular import QLearner
    from interp.training.config import TrainingConfig

    known = right()
    model, episodes, run, algorithm, circuit = (
        known[k] for k in ("model", "episodes", "run", "algorithm", "circuit")
    )
    both = (known["base"], known["source"])
    yield from (
        model,
        model.config,
        model.layout,
        episodes,
        run,
        algorithm,
        algorithm.variables[0],
        known["pair"],
    )
    yield from (interp.tasks.of(model), interp.tasks.get("qlearning"), get_regime("uniform"))
    trajectories = interp.tasks.mdp.sample(6, 4, 3, 2, seed=0)
    yield from (
        trajectories,
        trajectories.mdps,
        interp.load("qlearning-handwired", n_states=3, n_actions=2).layout,
    )
    yield from (QLearner(), Interaction(trajectories.mdps, 4, seed=0), Interval(0.5, 0.2, 0.8))
    yield interp.tasks.get("reachability").sample(4, 3, n_nodes=6, n_edges=6)
    yield patching.sweep(model, known["clean"], known["corrupted"], 1, sites="resid_pre")
    yield patching.round_map(model, *both, "latent")
    yield interchange.interchange(model, *both, algorithm, "log_weights", "latent")
    yield steering.steer(
        model, episodes, algorithm, steering.Doses(known["change"], (1.0,)), round=1, n_random=1
    )
    yield mediation.mediate(model, *both, "latent", "L0H0@p?", split=mediation.Split(n_random=1))
    yield from (sites.Site.parse("L0H0@p?"), Place.of("latent"))
    writer = moves.Writer.fit(model, run, algorithm.run(episodes), ["log_weights"])
    yield writer
    smooth = prepare(importlib.import_module("circuits").differentiable(model), *both, 1)
    yield from (edge_graph.attribute(smooth, steps=1), smooth)
    target = probes.targets.log_weights(episodes)
    fitted = probes.fit(run, target)
    yield from (target, fitted, fitted.score, fitted.decode(run))
    yield from (circuit, circuit.basis, circuit.heads[0])
    yield TrainingConfig("experts", [{"n_rounds": 2, "steps": 2}])
    condition = schemes.Condition("online", "note")
    (job,) = plan.plan(
        backend.Settings("m"),
        schemes.built_in_prompts(),
        plan.instances(("flat",), 1, 3),
        [condition],
    )
    yield from (condition, job, job.instance, job.session(), plan.Prices())
    yield from _results(model, circuit, smooth)
    yield from _played()


def _results(model: Any, circuit: Any, pair: Any) -> Iterator[Any]:
    """What audits, verifications, comparisons, benchmarks and pages are, and machines and parts of other kinds."""
    import circuits
    import interp
    from circuits import benchmark, compare
    from interp.audit import Budget, audit
    from interp.core.machine import Channel
    from interp.interventions.ablation import CircuitScorer
    from interp.interventions.interchange import Claim
    from interp.machines.learners import learner
    from probes.sweeping import SweepResult
    from tests import junk_records

    small = Budget(episodes=16, rounds=4, writes=2, copies=1)
    found = audit(model, budget=small)
    yield from (found, found.measures[0], small, compare.Budget.quick())
    yield circuits.verify("wma-handwired", [(2,)], n_rounds=3, n_episodes=2)
    yield from (
        circuits.registry.get_record("wma-handwired"),
        circuit.sites["log_weights"][0],
        circuit.state[0],
    )
    scorer = CircuitScorer(pair)
    yield from (scorer, scorer.graph, Claim.at("log_weights", ["latent"]), model.channels[0])
    row = dict.fromkeys(
        ("subject", "machine", "form", "variant", "question", "method", "score"), "x"
    )
    numbers = {"seed": 0, "value": 0.5, "cpu_seconds": 0.1}
    yield from (benchmark.BenchmarkResult(({**row, **numbers},)), Channel("h", (3,)))
    yield SweepResult(right()["frame"])
    yield from (learner("gru", model.layout, width=4), interp.load("reachability-handwired").layout)
    page = junk_records.page_of_every_block()
    yield from (page, page.sections[0], *page.sections[0].blocks, junk_records.part_of_report())


def _played() -> Iterator[Any]:
    """What language models played, and what is made of it."""
    import tempfile

    from interp.llm import loading, runner, schemes, scores

    with tempfile.TemporaryDirectory() as folder:
        yield from runner.play_demo(folder, n_instances=1, n_rounds=3).values()
        runs = loading.load(folder)
    yield from (
        runs[0],
        scores.score(runs),
        scores.note_table(runs),
        *schemes.built_in_prompts().values(),
    )


def _fields(one: Any) -> Collection[str]:
    return getattr(one, "__dataclass_fields__", ())


def unreadable() -> list[str]:
    """Properties, and methods without arguments, that raise what is no InputError."""
    from interp.support.errors import InputError

    found = []
    for one in objects():
        for name in dir(type(one)):
            held = inspect.getattr_static(type(one), name)
            ours = (
                str(getattr(getattr(held, "fget", held), "__module__", "")).split(".")[0]
                in PACKAGES
            )
            if (
                name.startswith("_")
                or name in _fields(one)
                or not ours
                or f"{type(one).__name__}.{name}" in methods()
            ):
                continue
            bare = inspect.isfunction(held) and len(inspect.signature(held).parameters) == 1
            try:
                if isinstance(held, property):
                    getattr(one, name)
                elif bare and f"{type(one).__name__}.{name}" not in CHANGING:
                    getattr(one, name)()
            except InputError:
                continue
            except Exception as error:
                found.append(f"{type(one).__name__}.{name}: {error!r}")
    return found
