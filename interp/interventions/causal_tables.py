"""What ``interp patch`` writes: sweeps of sampled episodes, or every causal table of one model, with its controls.

The tables are the same for handwired and learned models. They test the algorithm that the model should run
(:meth:`interp.tasks.Task.explains`); which variables are looked for, and where, is in the task's record.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
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
from interp.interventions.steering import Doses, fitted_direction, has_state_direction, steer
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
    """What a run of the command gives: a sweep for each metric, and the first one's round map where effects run on."""

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
    record, n_map = corruption(model, sample.corruption), sample.n_map
    require(
        n_map >= 0 and round >= 0,
        f"round and the map's size must be at least 0, got {round} and {n_map}",
    )
    read_by = [find_metric(metric, model.layout) for metric in metrics or exits(model.layout)]
    hidden = [m for m in read_by if not (propagate or record.delay == 0 or m.needs_update)]
    require(
        not (hidden and metrics),
        f"{record.key!r} shows in predictions only {record.delay} round later, which held latents hide; "
        "let effects propagate, or read --metric state",
    )
    read_by = [m for m in read_by if m not in hidden]
    until = [
        round + (0 if m.needs_update else record.delay) if read_round is None else read_round
        for m in read_by
    ]
    length = (
        max(*until, round + max(n_map, 1) - 1) + 1 if sample.n_rounds is None else sample.n_rounds
    )
    drawn = catalog.of(model).sample_for(
        model, sample.n_episodes, length, sample.seed, sample.regime, sample.sizes
    )
    clean, corrupted = record.build(drawn, round)
    cells = sites(model, components=components or None)
    swept = []
    for measure, t in zip(read_by, until, strict=True):
        pair = prepare(model, clean, corrupted, round, t)
        swept.append(
            of_pair(pair, sites=cells, metric=measure, direction=direction, propagate=propagate)
        )
    at = list(range(round, min(round + n_map, length)))
    if not propagate or not at:
        return _Patching(record.key, tuple(swept), None)
    mapped = round_map(
        model, clean, corrupted, "latent", round=at, metric=read_by[0], direction=direction
    )
    return _Patching(record.key, tuple(swept), mapped)


def write(result: _Patching, folder: Path) -> list[Path]:
    """Write ``patching.csv``, ``patching.json``, a heat map per metric and component and, where made, the round map."""
    import matplotlib  # half a second: where it is used

    first = result.sweeps[0]
    choices = {name: getattr(first, name) for name in ("direction", "round", "propagate")}
    measured = [
        {"metric": swept.metric, "read": swept.read_round, "gap": swept.gap}
        for swept in result.sweeps
    ]
    frame = pd.concat([swept.to_frame() for swept in result.sweeps], ignore_index=True)
    paths = [write_csv(folder / "patching.csv", frame)]
    paths.append(
        write_json(folder / "patching.json", {**choices, "metrics": measured, **first.settings})
    )
    with matplotlib.rc_context({"svg.fonttype": "none", "svg.hashsalt": "interp"}):  # text is text
        for swept in result.sweeps:
            for key in dict.fromkeys(site.component for site in swept.sites):
                paths.append(write_figure(folder / f"{swept.metric}-{key}.svg", swept.plot(key)))
        if result.rounds is not None:
            paths.append(write_csv(folder / "rounds.csv", result.rounds.to_frame()))
            paths.append(write_figure(folder / "rounds.svg", result.rounds.plot()))
    return paths


def summary(result: _Patching, n: int = 10) -> pd.DataFrame:
    """The sites with the largest effects of each metric."""
    columns = ["metric", "site", "effect", "effect_low", "effect_high", "p_value", "fraction"]
    return pd.concat(
        [swept.to_frame()[columns].head(n) for swept in result.sweeps], ignore_index=True
    )


def corruption_names() -> str:
    """The corruptions of every task, for the command's help."""
    named = {
        task.key: ", ".join(record.key for record in task.analysis.corruptions())
        for task in catalog.every()
    }
    return "; ".join(f"{task}: {keys}" for task, keys in named.items() if keys)


def metric_names() -> str:
    """The metrics, for the command's help."""
    return ", ".join(METRICS)


N_DECODED = 256
"""Episodes that a learned model's state decoder is fitted on."""
_STEPS = 100  # training steps of a learned subspace
_TOLERANCE = 0.1  # how far from 1 the faithfulness of the circuit that is evaluated may be


def _patching_table(model: Machine, episodes: Episodes, round: int) -> pd.DataFrame:
    """Every site under every corruption of the task, read where it first shows."""
    task, frames = catalog.of(model), []
    for record in _named(task, "corruptions", task.analysis.corruptions()):
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
    """Which places carry which variables of the algorithm, with controls.

    The claims of the task are tested when None are given. ``drawn`` is the regime and the sizes of the ``n_decoded``
    episodes that a learned model's state decoder is fitted on.
    """
    task, decode = catalog.of(model), None
    algorithm = task.explains(model)
    if not model.is_handwired:
        known = task.half(0).sample_for(model, n_decoded, round + 3, seed + 2, *drawn)
        near = range(round + 3)[max(round - 4, 0) :]
        memory = of_rounds(algorithm, known, near)[algorithm.memory]
        decode = Decoder.fit(
            rollout(model, known).latents[:, near.start : near.stop], memory, ridge=RIDGE
        )
    tested = _named(task, "claims", Claim.of(model)) if claims is None else claims
    recent = slice(max(round - 4, 0), round + 1)
    return carriers(
        model, episodes, other, algorithm, tested, round=recent, decode=decode, seed=seed
    )


def alignment_table(
    model: Machine, episodes: Any, other: Any, round: int, seed: int, smooth: Machine | None = None
) -> pd.DataFrame:
    """Learned subspaces of variables at the places where they should be, with controls; ``refused`` says why not."""
    from interp.interventions.alignment import (
        COLUMNS,
        AlignmentError,
        Search,
        align,
    )  # two seconds: where it is used

    task = catalog.of(model)
    algorithm, runs = task.explains(model), paired_runs(model, episodes, other, "interchange")
    search, frames = Search(seed=seed, steps=_STEPS, restarts=1, smooth=smooth), []
    recent = slice(max(round - 4, 0), round + 1)
    for variable, site in _named(task, "aligned", task.analysis.aligned(model)):
        try:
            frames.append(
                align(
                    model, *runs, algorithm, variable, site, round=recent, search=search
                ).to_frame()
            )
        except AlignmentError as refusal:
            row = {
                "variable": variable,
                "site": site,
                "condition": "learned",
                "refused": str(refusal),
            }
            frames.append(pd.DataFrame([row]))
    return pd.concat(frames, ignore_index=True).reindex(columns=[*COLUMNS, "refused"])


def steering_table(model: Machine, episodes: Any, round: int, seed: int) -> pd.DataFrame:
    """Dose-response of the task's state change, against the algorithm and random directions."""
    task, base = catalog.of(model), run_of(model, episodes, "steering")
    integer("round", round, -base.n_rounds, base.n_rounds - 1)
    how, algorithm = _named(task, "steering", task.analysis.steering)(), task.explains(model)
    change = how.change(algorithm.run(base.episodes)[algorithm.memory].shape[2:])
    direction = (
        None if has_state_direction(model) else fitted_direction(model, base, algorithm, change)
    )
    doses = Doses(change, how.doses, direction)
    return steer(
        model, base, algorithm, doses, round=round, of=how.outcome(base.episodes, round), seed=seed
    ).to_frame()


def _named(task: Task, field: str, value: Any) -> Any:
    """What a field of a task's analysis holds; an error where it holds nothing."""
    require(
        bool(value),
        f"task {task.key!r} names no {field}, which this needs; give its record analysis=Analysis({field}=...)",
    )
    return value


def circuit_tables(
    model: Machine, episodes: Episodes, round: int, seed: int, minimality: bool = True
) -> dict[str, pd.DataFrame]:
    """Edges by EAP-IG, faithfulness against size, the smallest faithful circuit beside random ones, and the ablation of
    every node in every way, as both exits of the round show it. Without ``minimality``, most of the work, that is NaN.
    """
    config = with_heads(model, "circuits of edges").config
    require(
        all(rule == "softmax" for rules in config.attention_rules for rule in rules),
        f"{model.name!r} has hard attention, which has no gradient; give its softmax-only variant, "
        "circuits.differentiable(model)",
    )
    pair = prepare(model, *corruption(model).build(episodes, round), round)
    scorer, attributed = CircuitScorer(pair), attribute(pair)
    kept = smallest(scorer, attributed.edges, _TOLERANCE)
    scorers = [
        scorer if how == scorer.ablation else CircuitScorer(pair, ablation=how)
        for how in get_args(Ablation)
    ]
    nodes = [ablate(of.through(exit)) for exit in exits(model.layout) for of in scorers]
    edges, names = (
        attributed.to_frame(),
        [scorer.graph.name(edge) for edge in scorer.graph.edges if kept[edge]],
    )
    return {
        "edges": edges.assign(kept=(edges["source"] + " -> " + edges["destination"]).isin(names)),
        "faithfulness": faithfulness_curve(scorer, attributed.edges, seed=seed).to_frame(),
        "circuit": evaluate(
            scorer, kept, n_random=10, n_sets=3, minimality=minimality, seed=seed
        ).to_frame(),
        "ablation": pd.concat(nodes, ignore_index=True),
    }


@checked
def tables(
    model: Machine, round: int = 20, *, smooth: Machine | None = None, sample: Sample = Sample()
) -> dict[str, pd.DataFrame]:
    """Every table, by name; where the machine lacks what one needs, a single cell says so ("not applicable").

    Args:
        round: the round looked at, from 1 on (it needs a history).
        smooth: ``circuits.differentiable(model)``, whose gradients score the edges where attention is hard.
        sample: the episodes; their corruptions, and as many rounds as the tables need, are the task's.
    """
    require(round >= 1, f"the round looked at needs a history: give a round >= 1, got {round}")
    task, n, seed, drawn = (
        catalog.of(model.eval()),
        sample.n_episodes,
        sample.seed,
        (sample.regime, sample.sizes),
    )
    base, source = (
        task.half(1).sample_for(model, n, round + 3, s, *drawn) for s in (seed, seed + 1)
    )
    runs = paired_runs(model, base, source, "interchange")
    episodes = task.sample_for(model, n, round + 3, seed, *drawn) if task.data.halves else base

    makers: dict[str, Callable[[], pd.DataFrame]] = {
        "patching": lambda: _patching_table(model, episodes, round),
        "interchange": lambda: interchange_table(model, *runs, round, seed, drawn=drawn),
        "alignment": lambda: alignment_table(model, *runs, round, seed, smooth),
        "steering": lambda: steering_table(model, runs[0], round, seed),
    }
    made: dict[str, pd.DataFrame] = {}
    with bar(f"causal tables of {model.name}", len(makers) + 1) as done:
        for name, make in makers.items():
            made[name] = make()
            done(1)
        try:
            with_heads(model, "circuits of edges")
        except InputError as lacking:
            note = pd.DataFrame({"note": [str(lacking)]})
            return made | dict.fromkeys(("edges", "faithfulness", "circuit", "ablation"), note)
        return made | circuit_tables(smooth or model, episodes, round, seed)
