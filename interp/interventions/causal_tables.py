"""What ``interp patch`` writes: sweeps of sampled episodes, or every causal table of one model, with its controls.

The tables are the same for handwired and learned models. They test the algorithm that the model should run
(:meth:`interp.tasks.Task.explains`); which variables are looked for, and where, is in the task's record.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, get_args

import pandas as pd

from interp.core import catalog
from interp.core.algorithm import Episodes
from interp.core.machine import Machine
from interp.core.task import Task
from interp.interventions.ablation import (
    CircuitScorer,
    ablate,
    evaluate,
    faithfulness_curve,
    smallest,
)
from interp.interventions.edge_graph import Ablation, attribute, with_heads
from interp.interventions.experiment import Tabulated
from interp.interventions.interchange import Claim, carriers, of_rounds
from interp.interventions.pairs import (
    METRICS,
    corruption,
    exits,
    find_metric,
    paired_runs,
    prepare,
    run_of,
)
from interp.interventions.patching import PatchingResult, of_pair, round_map, sweep
from interp.interventions.sites import sites
from interp.interventions.steering import Doses, steer
from interp.model.rollout import rollout
from interp.stats.decoder import RIDGE, Decoder
from interp.support.checks import checked, checked_fields, integer
from interp.support.errors import InputError, require
from interp.support.files import write_csv, write_figure, write_json
from interp.support.workers import bar


@dataclass(frozen=True)
@checked_fields
class Sample:
    """The episodes that are patched: ``n_rounds`` long, or as long as the round and the map need when None.

    ``corruption`` is the key of one of the model's task, its default when empty. ``n_map`` rounds from the patched one
    on are in the round x round map of the latents; 0 for no map.
    """

    corruption: str = ""
    n_episodes: int = 64
    n_rounds: int | None = None
    n_map: int = 12
    seed: int = 0
    regime: str = ""
    sizes: Mapping[str, int] | None = None


@dataclass(frozen=True)
class _Patching:
    """The results of the command: a sweep for each metric, and the first one's round map where effects run on."""

    corruption: str
    sweeps: tuple[PatchingResult, ...]
    rounds: Tabulated | None


@checked
def patch(
    model: Machine,
    round: int,
    *,
    components: Sequence[str] = (),
    metrics: Sequence[str] = (),
    read_round: int | None = None,
    propagate: bool = True,
    direction: str = "denoising",
    sample: Sample = Sample(),
) -> _Patching:
    """Sample episodes, corrupt them at ``round`` and patch every layer, head and position there, or every point of a
    machine that has no layers.

    Args:
        components: what is swept, :func:`interp.interventions.sites.swept` when empty.
        metrics: both exits (``pairs.exits``) when empty, or the one of them that can show the corruption.
        read_round: the round that is read; by default the first at which this corruption can show in each metric.
    """
    record = corruption(model, sample.corruption)
    require(
        sample.n_map >= 0 and round >= 0,
        f"round and the map's size must be at least 0, got {round} and {sample.n_map}",
    )
    layout = model.layout
    measures = [find_metric(metric, layout) for metric in metrics or exits(layout)]
    if not propagate and record.delay > 0:
        shown = [measure for measure in measures if measure.needs_update]
        are_all_shown = len(shown) == len(measures)
        require(
            are_all_shown or not metrics,
            f"{record.key!r} shows in predictions only {record.delay} round later, which held latents hide; "
            "let effects propagate, or read --metric state",
        )
        measures = shown
    reads: list[int] = []
    for measure in measures:
        first = round if measure.needs_update else round + record.delay
        reads.append(first if read_round is None else read_round)
    n_rounds = sample.n_rounds
    if n_rounds is None:
        last_mapped = round + max(sample.n_map, 1) - 1
        n_rounds = max(*reads, last_mapped) + 1
    episodes = catalog.of(model).sample_for(
        model, sample.n_episodes, n_rounds, sample.seed, sample.regime, sample.sizes
    )
    clean, corrupted = record.build(episodes, round)
    cells = sites(model, components=components or None)
    sweeps: list[PatchingResult] = []
    for measure, t in zip(measures, reads, strict=True):
        pair = prepare(model, clean, corrupted, round, t)
        sweeps.append(
            of_pair(pair, sites=cells, metric=measure, direction=direction, propagate=propagate)
        )
    mapped = None
    rounds = list(range(round, min(round + sample.n_map, n_rounds)))
    if propagate and rounds:
        mapped = round_map(
            model,
            clean,
            corrupted,
            "latent",
            round=rounds,
            metric=measures[0],
            direction=direction,
        )
    return _Patching(corruption=record.key, sweeps=tuple(sweeps), rounds=mapped)


def write(result: _Patching, folder: Path) -> list[Path]:
    """Write ``patching.csv``, ``patching.json``, a heat map per metric and component and, where made, the round map."""
    import matplotlib  # half a second: where it is used

    first = result.sweeps[0]
    frame = pd.concat([swept.to_frame() for swept in result.sweeps], ignore_index=True)
    metrics = [
        {"metric": swept.metric, "read": swept.read_round, "gap": swept.gap}
        for swept in result.sweeps
    ]
    described = {
        "direction": first.direction,
        "round": first.round,
        "propagate": first.propagate,
        "metrics": metrics,
        **first.settings,
    }
    paths = [
        write_csv(folder / "patching.csv", frame),
        write_json(folder / "patching.json", described),
    ]
    with matplotlib.rc_context({"svg.fonttype": "none", "svg.hashsalt": "interp"}):  # text is text
        for swept in result.sweeps:
            for key in dict.fromkeys(site.component for site in swept.sites):
                path = folder / f"{swept.metric}-{key}.svg"
                paths.append(write_figure(path, swept.plot(key)))
        if result.rounds is not None:
            paths.append(write_csv(folder / "rounds.csv", result.rounds.to_frame()))
            paths.append(write_figure(folder / "rounds.svg", result.rounds.plot()))
    return paths


def summary(result: _Patching, n: int = 10) -> pd.DataFrame:
    """Return the sites with the largest effects of each metric."""
    columns = ["metric", "site", "effect", "effect_low", "effect_high", "p_value", "fraction"]
    frames = [swept.to_frame()[columns].head(n) for swept in result.sweeps]
    return pd.concat(frames, ignore_index=True)


def corruption_names() -> str:
    """Return the corruptions of every task, for the command's help."""
    by_task: list[str] = []
    for task in catalog.every():
        keys = [record.key for record in task.analysis.corruptions()]
        if keys:
            by_task.append(f"{task.key}: {', '.join(keys)}")
    return "; ".join(by_task)


def metric_names() -> str:
    """Return the metrics, for the command's help."""
    return ", ".join(METRICS)


N_DECODED = 256
"""Episodes that a learned model's state decoder is fitted on."""
_STEPS = 100  # training steps of a learned subspace
TOLERANCE = 0.1  # how far from 1 the faithfulness of the circuit that is evaluated may be


def patching_table(model: Machine, episodes: Episodes, round: int) -> pd.DataFrame:
    """Patch every site under every corruption of the task, read where the corruption first shows.

    Args:
        model: the model.
        episodes: clean ones.
        round: where episodes are corrupted and patched.
    """
    task = catalog.of(model)
    frames: list[pd.DataFrame] = []
    for record in _require_named(task, "corruptions", task.analysis.corruptions()):
        clean, corrupted = record.build(episodes, round)
        swept = sweep(model, clean, corrupted, round, read_round=round + record.delay)
        frames.append(swept.to_frame().assign(corruption=record.key))
    return pd.concat(frames, ignore_index=True)


def interchange_table(
    model: Machine,
    episodes: Any,
    other: Any,
    round: int,
    seed: int,
    claims: Sequence[Claim] | None = None,
    drawn: tuple[str, Mapping[str, int] | None] = ("", None),
    n_decoded: int = N_DECODED,
) -> pd.DataFrame:
    """Test which places carry which variables of the algorithm, with controls.

    Args:
        episodes, other: episodes that pair up, or the model's rollouts of them.
        claims: those of the task when None.
        drawn: regime and sizes of the episodes that a learned model's state decoder is fitted on.
        n_decoded: how many they are.
    """
    task = catalog.of(model)
    algorithm = task.explains(model)
    decode = None
    if not model.is_handwired:
        known = task.half(0).sample_for(model, n_decoded, round + 3, seed + 2, *drawn)
        near = range(max(round - 4, 0), round + 3)
        memory = of_rounds(algorithm, known, near)[algorithm.memory]
        latents = rollout(model, known).latents[:, near.start : near.stop]
        decode = Decoder.fit(latents, memory, ridge=RIDGE)
    if claims is None:
        claims = _require_named(task, "claims", Claim.of(model))
    return carriers(
        model,
        episodes,
        other,
        algorithm,
        claims,
        round=_find_recent(round),
        decode=decode,
        seed=seed,
    )


def _find_recent(round: int) -> slice:
    """Return the last five rounds up to one."""
    return slice(max(round - 4, 0), round + 1)


def alignment_table(
    model: Machine, episodes: Any, other: Any, round: int, seed: int, smooth: Machine | None = None
) -> pd.DataFrame:
    """Train subspaces of variables at the places where they should be, with controls.

    Args:
        model: the model.
        episodes, other: base and source.
        round: of the pairs.
        seed: seed of the search.
        smooth: what is trained where the model's hard choices have no gradient.

    Returns:
        A row per place; ``refused`` has the reason where none could be trained.
    """
    from interp.interventions.alignment import (
        COLUMNS,
        AlignmentError,
        Search,
        align,
    )  # two seconds: where it is used

    task = catalog.of(model)
    algorithm = task.explains(model)
    runs = paired_runs(model, episodes, other, "interchange")
    search = Search(seed=seed, steps=_STEPS, restarts=1, smooth=smooth)
    recent = _find_recent(round)
    frames: list[pd.DataFrame] = []
    for variable, site in _require_named(task, "aligned", task.analysis.aligned(model)):
        try:
            result = align(model, *runs, algorithm, variable, site, round=recent, search=search)
            frames.append(result.to_frame())
        except AlignmentError as refusal:
            row = {"variable": variable, "site": site, "condition": "learned"}
            frames.append(pd.DataFrame([row | {"refused": str(refusal)}]))
    return pd.concat(frames, ignore_index=True).reindex(columns=[*COLUMNS, "refused"])


def steering_table(model: Machine, episodes: Any, round: int, seed: int) -> pd.DataFrame:
    """Measure steering by the task's state change, compared with the algorithm and random
    directions.

    Args:
        model: the model.
        episodes: what is steered.
        round: that reads the changed state.
        seed: seed of the random directions.
    """
    task = catalog.of(model)
    base = run_of(model, episodes, "steering")
    integer("round", round, -base.n_rounds, base.n_rounds - 1)
    how = _require_named(task, "steering", task.analysis.steering)()
    algorithm = task.explains(model)
    memory = algorithm.run(base.episodes)[algorithm.memory]
    change = how.change(memory.shape[2:])
    result = steer(
        model,
        base,
        algorithm,
        Doses(change, how.doses),
        round=round,
        of=how.outcome(base.episodes, round),
        seed=seed,
    )
    return result.to_frame()


def _require_named(task: Task, field: str, value: Any) -> Any:
    """Return the value of a field of a task's analysis; raise where it is empty.

    Args:
        task: the task.
        field: its name, for the error.
        value: its value.
    """
    require(
        bool(value),
        f"task {task.key!r} names no {field}, which this needs; give its record analysis=Analysis({field}=...)",
    )
    return value


def circuit_tables(
    model: Machine, episodes: Episodes, round: int, seed: int, in_full: bool = True
) -> dict[str, pd.DataFrame]:
    """Measure edges by EAP-IG, the smallest faithful circuit and random ones, and the ablation of
    every node.

    Args:
        model: a model with heads, all of them softmax.
        episodes: clean ones.
        round: where edges are cut.
        in_full: False leaves minimality NaN and "ablation" out, which are most of the work.

    Returns:
        Tables by name: "edges", "faithfulness" against size, "circuit", and "ablation" in every way, as
        both exits of the round show it.
    """
    config = with_heads(model, "circuits of edges").config
    require(
        all(rule == "softmax" for rules in config.attention_rules for rule in rules),
        f"{model.name!r} has hard attention, which has no gradient; give its softmax-only variant, "
        "circuits.differentiable(model)",
    )
    clean, corrupted = corruption(model).build(episodes, round)
    pair = prepare(model, clean, corrupted, round)
    scorer, attributed = CircuitScorer(pair), attribute(pair)
    keep = smallest(scorer, attributed.edges, TOLERANCE)
    graph, edges = scorer.graph, attributed.to_frame()
    in_circuit = [graph.name(edge) for edge in graph.edges if keep[edge]]
    names = edges["source"] + " -> " + edges["destination"]
    circuit = evaluate(scorer, keep, n_random=10, n_sets=3, minimality=in_full, seed=seed)
    curve = faithfulness_curve(scorer, attributed.edges, seed=seed)
    is_kept = names.isin(in_circuit)
    by_name = {
        "edges": edges.assign(kept=is_kept),
        "faithfulness": curve.to_frame(),
        "circuit": circuit.to_frame(),
    }
    if in_full:
        nodes: list[pd.DataFrame] = []
        scorers = [CircuitScorer(pair, ablation=how) for how in get_args(Ablation)]
        for key in exits(model.layout):
            nodes += [ablate(of_ablation.through(key)) for of_ablation in scorers]
        by_name["ablation"] = pd.concat(nodes, ignore_index=True)
    return by_name


@checked
def tables(
    model: Machine, round: int = 20, *, smooth: Machine | None = None, sample: Sample = Sample()
) -> dict[str, pd.DataFrame]:
    """Make every table; where the machine lacks what one needs, a single cell says so ("not
    applicable").

    The arguments are those of :func:`table_makers`.
    """
    makers = table_makers(model, round, smooth=smooth, sample=sample)
    by_name: dict[str, pd.DataFrame] = {}
    with bar(f"causal tables of {model.name}", len(makers)) as done:
        for make in makers.values():
            by_name |= make()
            done(1)
    return by_name


def table_makers(
    model: Machine, round: int = 20, *, smooth: Machine | None = None, sample: Sample = Sample()
) -> dict[str, Callable[[], dict[str, pd.DataFrame]]]:
    """Return what makes the tables, in parts that depend on nothing but the arguments.

    Args:
        round: the round looked at, from 1 on (it needs a history).
        smooth: ``circuits.differentiable(model)``; its gradients score the edges where attention is
            hard.
        sample: the episodes; their corruptions, and as many rounds as the tables need, are the
            task's.

    Returns:
        For each part a function that makes its tables by name.
    """
    require(round >= 1, f"the round looked at needs a history: give a round >= 1, got {round}")
    task = catalog.of(model.eval())
    n, seed, drawn = sample.n_episodes, sample.seed, (sample.regime, sample.sizes)
    base = task.half(1).sample_for(model, n, round + 3, seed, *drawn)
    source = task.half(1).sample_for(model, n, round + 3, seed + 1, *drawn)
    runs = paired_runs(model, base, source, "interchange")
    episodes = base
    if task.data.halves:
        episodes = task.sample_for(model, n, round + 3, seed, *drawn)

    makers: dict[str, Callable[[], pd.DataFrame]] = {
        "patching": lambda: patching_table(model, episodes, round),
        "interchange": lambda: interchange_table(model, *runs, round, seed, drawn=drawn),
        "alignment": lambda: alignment_table(model, *runs, round, seed, smooth),
        "steering": lambda: steering_table(model, runs[0], round, seed),
    }
    by_part: dict[str, Callable[[], dict[str, pd.DataFrame]]] = {}
    for name, make in makers.items():
        by_part[name] = partial(_make_named, name, make)
    of_edges = partial(_circuit_tables_or_note, model, smooth or model, episodes, round, seed)
    return by_part | {"circuits of edges": of_edges}


def _make_named(name: str, make: Callable[[], pd.DataFrame]) -> dict[str, pd.DataFrame]:
    return {name: make()}


def _circuit_tables_or_note(
    model: Machine, smooth: Machine, episodes: Episodes, round: int, seed: int
) -> dict[str, pd.DataFrame]:
    """Return the tables of circuits of edges, or in each a note on what the model lacks.

    Args:
        model: the model.
        smooth: what its edges are measured in.
        episodes: on which.
        round: where edges are cut.
        seed: of random circuits.
    """
    try:
        with_heads(model, "circuits of edges")
    except InputError as lacking:
        note = pd.DataFrame({"note": [str(lacking)]})
        return dict.fromkeys(("edges", "faithfulness", "circuit", "ablation"), note)
    return circuit_tables(smooth, episodes, round, seed)
