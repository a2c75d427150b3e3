"""The tables that ``interp patch`` writes: patching sweeps, or all causal analyses of one model.

The tables are the same for handwired and learned models. They compare the model with the algorithm
that should explain it (:meth:`interp.tasks.Task.explains`). The task's record defines which
variables are tested, and at which sites.
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
from interp.interventions.edge_graph import Ablation, attribute, require_heads
from interp.interventions.experiment import Tabulated
from interp.interventions.interchange import Claim, carriers, variables_in_rounds
from interp.interventions.pairs import (
    METRICS,
    corruption,
    find_metric,
    name_output_metrics,
    paired_runs,
    prepare,
    run_of,
)
from interp.interventions.patching import PatchingResult, patch_pair, round_map, sweep
from interp.interventions.sites import sites
from interp.interventions.steering import Doses, steer
from interp.model.rollout import rollout
from interp.stats.decoder import RIDGE, Decoder
from interp.support.checks import checked, checked_fields, integer
from interp.support.errors import InputError, require
from interp.support.files import write_csv, write_figure, write_json


@dataclass(frozen=True)
@checked_fields
class Sample:
    """Settings for the episodes of a causal analysis: how they are sampled and corrupted.

    Attributes:
        corruption: key of the task's corruption: the way to make the corrupted episodes from the
            clean ones, such as "flip-vote". Empty for the default.
        n_episodes: number of episodes.
        n_rounds: number of rounds per episode; None for as many as the analysis reads.
        n_map: number of rounds in the map of effects of :func:`patch`, from the analysed round on.
            Each of these rounds is patched in turn, and the effect is measured in it and in each
            later one. 0 for no map.
        seed: seed of the episodes.
        regime: name of the regime (distribution of episodes) to sample from; empty for the default.
        sizes: name of a size -> its value, such as ``{"n_experts": 3}``, for sizes that should
            differ from the model's.
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
    """The results of ``interp patch``.

    Attributes:
        corruption: key of the corruption.
        sweeps: for each metric, the effects of patching every site separately.
        rounds: effects of patching the whole carried state on the first metric, by round patched
            and round read; None without this map (:attr:`Sample.n_map`).
    """

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
    """Sample episodes and corrupt them in one round. Then patch this round at every layer, head and
    position (at every hook point of a model without layers), each separately. To patch is to put an
    activation of one run (clean or corrupted) into the other.

    Args:
        model: the model.
        round: index of the round that is corrupted and patched.
        components: components (kinds of activation) to patch. Empty for residual stream, attention
            outputs and heads of a transformer, or every hook point of another model.
        metrics: keys of metrics. Empty for two, one of the prediction and one of the state. With
            ``propagate=False``, the first is left out if a corruption, such as a flipped label,
            shows in predictions of later rounds only.
        read_round: index of the round in which metrics are read; by default the first round in
            which the corruption can show.
        propagate: True if rounds after the patched one read the changed state; False gives them the
            state of the unpatched run.
        direction: "denoising" patches clean activations into the corrupted run, "noising" the
            reverse.
        sample: settings of the episodes and the corruption.

    Returns:
        A record with three fields. ``corruption`` is the key of the corruption. ``sweeps`` has the
        effects on each metric, as a :class:`~interp.interventions.patching.PatchingResult`.
        ``rounds`` is a map of the effects of patching the whole carried state: on the first metric,
        by round patched and round read. It is None if ``sample.n_map`` is 0 or ``propagate`` is
        False.
    """
    record = corruption(model, sample.corruption)
    require(
        sample.n_map >= 0 and round >= 0,
        f"round and the map's size must be at least 0, got {round} and {sample.n_map}",
    )
    layout = model.layout
    measures = [find_metric(metric, layout) for metric in metrics or name_output_metrics(layout)]
    delay, n_map = record.delay, sample.n_map
    if not propagate and delay > 0:
        # Only the state shows the corruption in its round; later rounds read the unpatched state.
        of_state = [measure for measure in measures if measure.needs_update]
        require(
            of_state == measures or not metrics,
            f"{record.key!r} shows in predictions only {delay} round later, which held latents hide; "
            "let effects propagate, or read --metric state",
        )
        measures = of_state
    read_rounds: list[int] = []
    for measure in measures:
        # The state shows the corruption at once, the prediction only after the corruption's delay.
        first_visible = round if measure.needs_update else round + delay
        read_rounds.append(first_visible if read_round is None else read_round)
    n_rounds = sample.n_rounds
    if n_rounds is None:
        last_mapped = round + max(n_map, 1) - 1
        n_rounds = max(*read_rounds, last_mapped) + 1
    episodes = catalog.of(model).sample_for(
        model, sample.n_episodes, n_rounds, sample.seed, sample.regime, sample.sizes
    )
    clean, corrupted = record.build(episodes, round)
    every_site = sites(model, components=components or None)
    sweeps: list[PatchingResult] = []
    for measure, t in zip(measures, read_rounds, strict=True):
        pair = prepare(model, clean, corrupted, round, t)
        swept = patch_pair(
            pair, sites=every_site, metric=measure, direction=direction, propagate=propagate
        )
        sweeps.append(swept)
    mapped = None
    mapped_rounds = list(range(round, min(round + n_map, n_rounds)))
    if propagate and mapped_rounds:
        mapped = round_map(
            model,
            clean,
            corrupted,
            "latent",
            round=mapped_rounds,
            metric=measures[0],
            direction=direction,
        )
    return _Patching(corruption=record.key, sweeps=tuple(sweeps), rounds=mapped)


def write(result: _Patching, folder: Path) -> list[Path]:
    """Write the results of ``interp patch`` into a folder, and return the paths of the files.

    The files are the table of effects (``patching.csv``), the settings (``patching.json``), and a
    heat map for each metric and component. If ``result.rounds`` has the effects of each patched
    round on each later one, they are written, too (``rounds.csv``, ``rounds.svg``).

    Args:
        result: the results, as :func:`patch` returned them.
        folder: the folder.
    """
    import matplotlib  # half a second: where it is used

    sweeps, rounds = result.sweeps, result.rounds
    first = sweeps[0]  # all sweeps have these settings in common
    frame = pd.concat([swept.to_frame() for swept in sweeps], ignore_index=True)
    metrics = [
        {"metric": swept.metric, "read": swept.read_round, "gap": swept.gap} for swept in sweeps
    ]
    settings = {
        "direction": first.direction,
        "round": first.round,
        "propagate": first.propagate,
        "metrics": metrics,
        **first.settings,
    }
    paths = [
        write_csv(folder / "patching.csv", frame),
        write_json(folder / "patching.json", settings),
    ]
    # Text is stored as text, and ids do not differ between equal figures.
    with matplotlib.rc_context({"svg.fonttype": "none", "svg.hashsalt": "interp"}):
        for swept in sweeps:
            for key in dict.fromkeys(site.component for site in swept.sites):
                path = folder / f"{swept.metric}-{key}.svg"
                paths.append(write_figure(path, swept.plot(key)))
        if rounds is not None:
            paths.append(write_csv(folder / "rounds.csv", rounds.to_frame()))
            paths.append(write_figure(folder / "rounds.svg", rounds.plot()))
    return paths


def summary(result: _Patching, n: int = 10) -> pd.DataFrame:
    """Return a table of the sites with the largest effects on each metric. It has one row per
    ``metric`` and ``site``. ``effect`` is the mean effect of a patch, with its 95 % interval
    ``effect_low`` to ``effect_high`` and its ``p_value``. ``fraction`` is the effect divided by the
    mean difference in the metric between clean and corrupted run.

    Args:
        result: the results, as :func:`patch` returned them.
        n: number of sites for each metric.
    """
    columns = ["metric", "site", "effect", "effect_low", "effect_high", "p_value", "fraction"]
    frames = [swept.to_frame()[columns].head(n) for swept in result.sweeps]
    return pd.concat(frames, ignore_index=True)


def corruption_names() -> str:
    """Return the keys of every task's corruptions for the help of ``interp patch``, as a string
    "TASK: KEY, KEY; TASK: KEY".
    """
    by_task: list[str] = []
    for task in catalog.list_tasks():
        keys = [record.key for record in task.analysis.corruptions()]
        if keys:
            by_task.append(f"{task.key}: {', '.join(keys)}")
    return "; ".join(by_task)


def metric_names() -> str:
    """Return the keys of all metrics, separated by commas, as a string for the help of ``interp
    patch``.
    """
    return ", ".join(METRICS)


N_DECODED = 256
"""Number of episodes for fitting a decoder of a learned model's state."""
_N_TESTED_ROUNDS = 5  # number of rounds, up to the analysed one, of interchanges and alignments
_ALIGNMENT_STEPS = 100  # training steps of a learned subspace
TOLERANCE = 0.1  # largest distance from 1 of the faithfulness of the circuit that is evaluated


def patching_table(model: Machine, episodes: Episodes, round: int) -> pd.DataFrame:
    """For every corruption of the task, patch every site of one round separately: put its
    activation in the clean run into the corrupted run. The effect on the default metric is measured
    in the first round in which the corruption can show.

    Args:
        model: the model.
        episodes: clean episodes.
        round: index of the round that is corrupted and patched.

    Returns:
        One row per ``corruption`` (its key) and site. The other columns are those of
        :meth:`interp.interventions.patching.PatchingResult.to_frame`: ``effect`` of the patch on
        the metric, ``fraction`` of the difference between the runs, both with 95 % intervals, and
        more.
    """
    task = catalog.of(model)
    frames: list[pd.DataFrame] = []
    for record in _require_field(task, "corruptions", task.analysis.corruptions()):
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
    """Test claims that sites of the model carry variables of the algorithm that the task expects the
    model to compute (``task.explains(model)``). The sites are set to their values in another
    episode, and so is the algorithm's variable.

    Args:
        model: the model.
        episodes, other: base and source episodes, paired by their order, or the model's rollouts of
            them. Sites in a base episode are set to their values in its source.
        round: index of the last tested round. Sites are set in this round and in the four before it
            (fewer at the beginning), each separately.
        seed: seed of the controls, and of the episodes for the decoder.
        claims: the claims; by default those of the task.
        drawn: which episodes to sample, to fit the decoder of a learned model's state on: a pair
            (regime, sizes). The regime is the name of a distribution of episodes, "" for the
            task's default. The sizes are name -> value, such as {"n_experts": 4}; None takes the
            model's own.
        n_decoded: number of the episodes on which this decoder is fitted.

    Returns:
        The table of :func:`interp.interventions.interchange.carriers`, one row per claim. It has
        the share of pairs in which the outcomes of model and algorithm are equal, and a score that
        compares the sizes of their effects, with intervals. The control, a random subspace at the
        same sites, has the same two numbers.
    """
    task = catalog.of(model)
    algorithm = task.explains(model)
    tested_rounds = _select_tested_rounds(round)
    decode = None
    if not model.is_handwired:
        # Not the tested episodes: other participants of recorded episodes, or another seed.
        # At index t, the memory and the latents are those before round t. The tested states are those
        # after the tested rounds, at indices start + 1 to round + 1. The decoder is also fitted on
        # one index before and one after these.
        start, end = tested_rounds.start, round + 3
        known = task.for_half(0).sample_for(model, n_decoded, end, seed + 2, *drawn)
        memory = variables_in_rounds(algorithm, known, range(start, end))[algorithm.memory]
        latents = rollout(model, known).latents[:, start:end]
        decode = Decoder.fit(latents, memory, ridge=RIDGE)
    if claims is None:
        claims = _require_field(task, "claims", Claim.of(model))
    return carriers(
        model,
        episodes,
        other,
        algorithm,
        claims,
        round=tested_rounds,
        decode=decode,
        seed=seed,
    )


def _select_tested_rounds(round: int) -> slice:
    """Return a slice of five rounds that ends with ``round``; fewer at the beginning."""
    end = round + 1
    return slice(max(end - _N_TESTED_ROUNDS, 0), end)


def alignment_table(
    model: Machine, episodes: Any, other: Any, round: int, seed: int, smooth: Machine | None = None
) -> pd.DataFrame:
    """Train subspaces that carry a variable of the algorithm (distributed alignment search), at
    each site where the task expects the variable (``task.analysis``). Measure how often
    interchanging the subspace acts like interchanging the variable.

    Args:
        model: the model.
        episodes, other: base and source episodes, paired by their order, or rollouts of them.
        round: index of the last round that is used. Pairs are taken from this round and the four
            before it (fewer at the beginning).
        seed: seed of the search.
        smooth: differentiable variant of the model to train with, if the model has hard choices,
            which have no gradients; None to train with the model.

    Returns:
        One row per site and condition (the learned subspace or a control), with the columns of
        :meth:`interp.interventions.alignment.AlignmentResult.to_frame`. If no subspace could be
        trained, the column ``refused`` has the reason.
    """
    # Two seconds: imported where it is used.
    from interp.interventions.alignment import COLUMNS, AlignmentError, Search, align

    task = catalog.of(model)
    algorithm = task.explains(model)
    runs = paired_runs(model, episodes, other, "interchange")  # (base, source)
    search = Search(seed=seed, steps=_ALIGNMENT_STEPS, restarts=1, smooth=smooth)
    tested_rounds = _select_tested_rounds(round)
    frames: list[pd.DataFrame] = []
    for variable, site in _require_field(task, "aligned", task.analysis.aligned(model)):
        try:
            result = align(
                model, *runs, algorithm, variable, site, round=tested_rounds, search=search
            )
            frames.append(result.to_frame())
        except AlignmentError as error:  # no subspace can be trained for this variable and site
            row = {
                "variable": variable,
                "site": site,
                "condition": "learned",
                "refused": str(error),
            }
            frames.append(pd.DataFrame([row]))
    return pd.concat(frames, ignore_index=True).reindex(columns=[*COLUMNS, "refused"])


def steering_table(model: Machine, episodes: Any, round: int, seed: int) -> pd.DataFrame:
    """Add multiples of a change to the state that the model carries into a round. Compare its
    predictions with those of the algorithm after the same change of its memory, and with the
    model's after changes in random directions.

    The task defines the change (``task.analysis``).

    Args:
        model: the model.
        episodes: the episodes.
        round: index of the round that reads the changed state.
        seed: seed of the random directions.

    Returns:
        The table of :func:`interp.interventions.steering.steer`, one row per dose (multiple of the
        change): mean probability of an outcome in the model, in the algorithm and along random
        directions.
    """
    task = catalog.of(model)
    base = run_of(model, episodes, "steering")
    integer("round", round, -base.n_rounds, base.n_rounds - 1)
    make_steering = _require_field(task, "steering", task.analysis.steering)
    steering = make_steering()
    algorithm = task.explains(model)
    memory = algorithm.run(base.episodes)[algorithm.memory]  # [episode, round, ...]
    change = steering.change(memory.shape[2:])  # of the memory of one episode and round, at dose 1
    result = steer(
        model,
        base,
        algorithm,
        Doses(change, sizes=steering.doses),
        round=round,
        of=steering.outcome(base.episodes, round),
        seed=seed,
    )
    return result.to_frame()


def _require_field(task: Task, field: str, value: Any) -> Any:
    """Return the value of a field of the task's record for analyses (``Analysis``); raise an error
    if it is empty.

    Args:
        task: the task.
        field: name of the field, for the error.
        value: value of the field.
    """
    require(
        value,
        f"task {task.key!r} names no {field}, which this needs; give its record analysis=Analysis({field}=...)",
    )
    return value


def circuit_tables(
    model: Machine, episodes: Episodes, round: int, seed: int, in_full: bool = True
) -> dict[str, pd.DataFrame]:
    """Find a circuit (set of edges between heads and MLPs) in one round, and evaluate it. Edges are
    scored by gradients (EAP-IG). The circuit is the smallest set of the highest-scored edges with a
    faithfulness within 0.1 of 1.

    Args:
        model: a transformer with only softmax attention.
        episodes: clean episodes.
        round: index of the round in which edges are cut.
        seed: seed of random circuits.
        in_full: False leaves out minimality and the table "ablation", which are most of the work.

    Returns:
        Name of a table -> the table.

        - "edges" has one row per edge (``source``, ``destination``) with its ``score``; ``kept`` is
          True for edges of the circuit.
        - "faithfulness" has one row per circuit size
          (:func:`~interp.interventions.ablation.faithfulness_curve`).
        - "circuit" has one row about the circuit, with random circuits as the control
          (:func:`~interp.interventions.ablation.evaluate`).
        - "ablation" has one row per node, kind of ablation and metric, with the drop of the metric
          without the node (:func:`~interp.interventions.ablation.ablate`). There are two metrics,
          one of the prediction and one of the state.
    """
    config = require_heads(model, "circuits of edges").config
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
    kept_names = [graph.name(edge) for edge in graph.edges if keep[edge]]
    names = edges["source"] + " -> " + edges["destination"]  # as graph.name writes them
    # Controls: 10 random circuits of equal size, and 3 random sets of the circuit's edges to remove.
    circuit = evaluate(scorer, keep, n_random=10, n_sets=3, minimality=in_full, seed=seed)
    curve = faithfulness_curve(scorer, attributed.edges, seed=seed)
    is_kept = names.isin(kept_names)
    by_name = {
        "edges": edges.assign(kept=is_kept),
        "faithfulness": curve.to_frame(),
        "circuit": circuit.to_frame(),
    }
    if in_full:
        drops_by_node: list[pd.DataFrame] = []
        scorers = [CircuitScorer(pair, ablation=ablation) for ablation in get_args(Ablation)]
        for metric in name_output_metrics(model.layout):
            for ablation_scorer in scorers:
                drops_by_node.append(ablate(ablation_scorer.with_metric(metric)))
        by_name["ablation"] = pd.concat(drops_by_node, ignore_index=True)
    return by_name


def table_makers(
    model: Machine, round: int = 20, *, smooth: Machine | None = None, sample: Sample = Sample()
) -> dict[str, Callable[[], dict[str, pd.DataFrame]]]:
    """Return functions that compute the tables of all causal analyses of a model. Each function
    computes one part, and does not depend on the others.

    Args:
        model: the model.
        round: index of the analysed round, at least 1, so that there are earlier rounds.
        smooth: differentiable variant of a model with hard attention,
            ``circuits.differentiable(model)``. Subspaces are trained and circuits found in it. None
            for a model without hard attention.
        sample: settings of the episodes: their number, seed, regime and sizes.

    Returns:
        Name of a part -> function without arguments that computes and returns the tables of this
        part: name of a table -> the table. The parts are "patching", "interchange", "alignment",
        "circuits of edges" and, if the task defines a steering, "steering".
    """
    require(round >= 1, f"the round looked at needs a history: give a round >= 1, got {round}")
    task = catalog.of(model.eval())
    seed, drawn = sample.seed, (sample.regime, sample.sizes)
    n_episodes, n_rounds = sample.n_episodes, round + 3  # some corruptions show in later rounds
    # Of recorded episodes only half 1: interchange_table fits its decoder on half 0.
    half = task.for_half(1)
    base = half.sample_for(model, n_episodes, n_rounds, seed, *drawn)
    source = half.sample_for(model, n_episodes, n_rounds, seed + 1, *drawn)
    runs = paired_runs(model, base, source, "interchange")
    # Patching and circuits fit no decoder, and may use both halves.
    episodes = base
    if task.data.halves:
        episodes = task.sample_for(model, n_episodes, n_rounds, seed, *drawn)

    makers: dict[str, Callable[[], dict[str, pd.DataFrame]]] = {
        "patching": lambda: {"patching": patching_table(model, episodes, round)},
        "interchange": lambda: {
            "interchange": interchange_table(model, *runs, round, seed, drawn=drawn)
        },
        "alignment": lambda: {"alignment": alignment_table(model, *runs, round, seed, smooth)},
        "circuits of edges": partial(
            _circuit_tables_or_note, model, smooth or model, episodes, round, seed
        ),
    }
    if task.analysis.steering:
        makers["steering"] = lambda: {"steering": steering_table(model, runs[0], round, seed)}
    return makers


def _circuit_tables_or_note(
    model: Machine, smooth: Machine, episodes: Episodes, round: int, seed: int
) -> dict[str, pd.DataFrame]:
    """Return the tables about circuits of edges; if the model has no heads, tables with only a
    note.

    Args:
        model: the model.
        smooth: the variant of the model in which edges are measured.
        episodes: clean episodes.
        round: index of the round in which edges are cut.
        seed: seed of random circuits.
    """
    try:
        require_heads(model, "circuits of edges")
    except InputError as error:  # it says what the model lacks
        note = pd.DataFrame({"note": [str(error)]})
        return dict.fromkeys(("edges", "faithfulness", "circuit", "ablation"), note)
    return circuit_tables(smooth, episodes, round, seed)
