"""Where can it be read? Every target, with its controls, at every component, layer, position and round window.

A *cell* is one site in one window of rounds, with the probe of :func:`probes.fit` (ridge, classes as indicators; or an
estimator of scikit-learn) and its controls. Finished cells are kept: an interrupted sweep goes on where it stopped.
Hundreds of cells are looked at, each word at its own level, so that a map shows where to intervene and is no evidence
by itself.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import joblib
import numpy as np
import pandas as pd
from joblib.parallel import get_active_backend
from torch import Tensor

from interp.core.algorithm import Episodes, counted_of
from interp.core.machine import Machine
from interp.interventions.sites import Site, select_sites
from interp.interventions.sites import sites as list_sites
from interp.model.layout import RoundLayout
from interp.model.rollout import replay, rollout
from interp.model.run import Rollout
from interp.results.measure import Result
from interp.support.checks import array_of, checked, integer, require_columns
from interp.support.errors import require, unknown_name
from interp.support.files import writable
from interp.support.provenance import provenance
from interp.support.session import Finished, session
from interp.support.workers import bar, each, one_thread, share
from probes import estimators
from probes.activations import without_rounding
from probes.controls import DESCRIPTIONS, GroupedTargets, Kind, Problem
from probes.fitting import describe_probe, untrained_runs
from probes.linear import ALPHAS, RIDGE
from probes.result import measure_of
from probes.targets import compute
from probes.values import (
    N_FOLDS,
    TargetValues,
    as_groups,
    check,
    filled,
    leans_low,
    overflows,
    warn_of_few,
)

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_COMPONENTS = ("resid_pre", "attn_out", "resid_mid", "mlp_out", "resid_post")
"""Components swept by default (those with an MLP where the model has one)."""

_FORMAT = 6
_Window = tuple[int, int]
_Row = dict[str, Any]
_Done = tuple["_Shared", Site, list[_Row]]


@dataclass(frozen=True, eq=False)
class _Shared:
    """What all cells of a window (first round, and the round after the last) share.

    ``digest`` is of everything that a cell depends on but its site; ``blank`` are the targets of the untrained copies.
    """

    window: _Window
    problem: Problem
    digest: str
    blank: GroupedTargets


@dataclass(frozen=True, eq=False)
class SweepResult(Result):
    """A sweep's scores, tidy: one row per target, site and window.

    Columns: target, site, component, layer, head, position, start, stop (the window's rounds), those of every measure
    (:meth:`interp.results.measure.Measure.row`), one for each control's R2, and detectable, the
    smallest R2 whose interval
    would have excluded 0. Intervals are of R2 on new episodes of each probe, refitted on all episodes.
    """

    frame: pd.DataFrame
    settings: dict[str, Any] = field(default_factory=dict)

    def to_frame(self) -> pd.DataFrame:
        """One row for each cell and target."""
        return self.frame.copy()

    def _draw(self, figures: Any) -> Any:
        """Draw the first target: layers by rounds where each round was swept by itself."""
        require_columns("a sweep", self.frame, "target", "start", "stop")
        target = str(next(iter(self.frame["target"]), ""))
        is_per_round = (self.frame["stop"] - self.frame["start"] == 1).all()
        if is_per_round and self.frame["start"].nunique() > 1:
            return self.heatmap_by_round(target)
        return self.heatmap(target)

    @checked
    def heatmap_by_round(self, target: str) -> Figure:
        """Draw one target of a sweep with ``per_round=True``: layers by rounds, one panel per component and position.

        The number is R2, or the skill of a classifier. Rounds count from 0; a round in which the target does not vary
        is blank.
        """
        from interp.results.figures import heatmaps

        require_columns(
            "a sweep", self.frame, "target", "start", "stop", "position", "layer", "component"
        )
        if target not in set(self.frame["target"]):
            raise unknown_name("swept target", target, self.frame["target"].unique(), limit=40)
        rows = self.frame[self.frame["target"] == target]
        windows = sorted(set(zip(rows["start"], rows["stop"], strict=True)))
        require(
            all(stop - start == 1 for start, stop in windows),
            f"windows {', '.join(map(str, windows[:4]))} are of several rounds; sweep with per_round=True, or draw one "
            "by heatmap(target, window)",
        )
        layers = ["" if pd.isna(layer) else f"layer {int(layer)}" for layer in rows["layer"]]
        rows = rows.assign(layer=layers, position=rows["position"].fillna(""))
        rounds = range(int(rows["start"].min()), int(rows["stop"].max()))
        grids = {}
        for (component, position), part in rows.groupby(["component", "position"], sort=False):
            grid = part.pivot_table(index="layer", columns="start", values="number", sort=False)
            name = f"{component} at {position}" if position else str(component)
            grids[name] = grid.reindex(columns=rounds)
        label = str(rows["unit"].iloc[0]) if "unit" in rows else "R2"
        figure = heatmaps(grids, label=label, limit=1.0, lowest=0.0)
        for axes in figure.axes[: len(grids)]:
            axes.set_xlabel("round")
        figure.suptitle(target)
        return figure

    @checked
    def heatmap(self, target: str, window: _Window | None = None) -> Figure:
        """Draw one target: layers by positions, one panel per component; dots mark "yes".

        Layers are cycles where the component is a loop's; what has no layer, or no position, is one row or column.
        """
        from interp.results.figures import heatmaps

        frame = self.frame
        require_columns(
            "a sweep", frame, "target", "start", "stop", "position", "layer", "component", "verdict"
        )
        if target not in set(frame["target"]):
            raise unknown_name("swept target", target, frame["target"].unique(), limit=40)
        windows = list(dict.fromkeys(zip(frame["start"], frame["stop"], strict=True)))
        window = windows[0] if window is None else window
        require(
            window in windows,
            f"window {window} was not swept; these were: {', '.join(map(str, windows))}",
        )
        rows = frame[
            (frame["target"] == target)
            & (frame["start"] == window[0])
            & (frame["stop"] == window[1])
        ]
        rows = rows.assign(
            position=rows["position"].fillna(""),
            layer=["" if pd.isna(layer) else f"layer {int(layer)}" for layer in rows["layer"]],
        )
        panels = dict(list(rows.groupby("component", sort=False)))
        positions = list(dict.fromkeys(rows["position"]))
        grids = {}
        for name, part in panels.items():
            grid = part.pivot_table(index="layer", columns="position", values="number", sort=False)
            grids[str(name)] = grid.reindex(columns=positions)
        figure = heatmaps(grids, label="R2", limit=1.0, lowest=0.0)
        for axes, (name, part) in zip(figure.axes, panels.items(), strict=False):
            for _, row in part[part["verdict"] == "yes"].iterrows():
                at = (
                    positions.index(row["position"]) - 0.4,
                    list(grids[str(name)].index).index(row["layer"]) - 0.3,
                )
                axes.plot(*at, "o", color="black", ms=3)
        figure.suptitle(f"{target}, rounds {window[0] + 1} to {window[1]} (dots: yes)")
        return figure


@checked
def sweep(
    model: Machine,
    episodes: Episodes,
    targets: Sequence[str] | None = None,
    *,
    sites: Site | str | Sequence[Site | str] | None = None,
    windows: Sequence[_Window] | None = None,
    per_round: bool = False,
    estimator: Any = None,
    n_untrained: int = 1,
    seed: int = 0,
    cache: str | Path | None = None,
    n_jobs: int = -1,
    scheduler: str = "",
    shard: str = "",
) -> SweepResult:
    """Probe every target at every site and window, with every control.

    Args:
        targets: keys of :mod:`probes.targets` (``key:before`` for a state before each round); when None, every variable
            that varies, states at both moments.
        sites: sites, their texts ("L1H0@p?"), or components ("resid_post", "resid_post@p?"), which stand for every
            layer, head and position (:func:`interp.interventions.sites.select_sites`); when None, the residual stream
            and what is added to it, or every point of a machine without one.
        windows: (first round, round after the last); all rounds when None.
        per_round: probe each round by itself, in which the targets vary; drawn as layers by rounds.
        estimator: a regressor or classifier of scikit-learn, cloned for every fold; the ridge probe when None. A
            classifier needs targets that are classes.
        n_untrained, seed: untrained copies, of which the best counts in each cell; of them, the folds and shuffles.
        cache: folder for finished cells; nothing is kept when None.
        n_jobs, scheduler, shard: workers, -1 for one per core; and as :func:`interp.support.workers.each` and
            :func:`interp.support.workers.share` take them: a shard is of sites and windows, and needs a ``cache``.

    >>> import interp
    >>> from interp.tasks import experts
    >>> episodes = experts.sample(n_episodes=20, n_rounds=10, n_experts=2, seed=0)
    >>> model = interp.load("wma-handwired", n_experts=2)
    >>> frame = sweep(model, episodes, ["label"], sites=["resid_post@p?", "resid_post@w?"]).to_frame()
    >>> round(frame.query("layer == 1").set_index("position").number["w?"].item(), 3)
    1.0
    """
    participants = getattr(episodes, "participants", None)
    warn_of_few(len(episodes if participants is None else np.unique(participants)))
    integer("n_jobs", n_jobs, most=1024)
    kind = RIDGE if estimator is None else estimators.kind(estimator)
    spans = _spans(windows, per_round, episodes.n_rounds)
    layout = model.layout.fit(episodes)
    if sites is None:
        stream = [key for key in _COMPONENTS if key in model.points]
        components = stream if "resid_post" in stream else list(model.points)
        places = list_sites(model, layout, components)
    else:
        places = select_sites(model, layout, sites)
    values = compute(targets, episodes, model)
    for value in values:
        require(
            not kind.of_classes or value.kind == "class",
            f"target {value.key!r} is a number, not a class; sweep it with a regressor, or leave estimator= out",
        )
    if per_round:
        spans = _varying(values, spans)
    with session():
        run = replace(rollout(model, episodes), model=model, episodes=episodes)
        blanks, elsewhere = untrained_runs(run, values, ["latents"], n_untrained, seed)
    in_windows = _of_windows(
        model, episodes, values, spans, seed, elsewhere, kind=kind, described=repr(estimator)
    )
    folder = None if cache is None else writable(cache)
    finished = {shared.window: Finished(folder, {"digest": shared.digest}) for shared in in_windows}
    cells = share([(shared, site) for shared in in_windows for site in places], shard)
    rows = {
        (shared.window, site): finished[shared.window].load(str(site), list[_Row])
        for shared, site in cells
    }
    missing = [(shared, site) for shared, site in cells if rows[shared.window, site] is None]
    if missing:
        with bar("probes", total=len(cells)) as advance:
            advance(len(cells) - len(missing))
            for shared, site, scored in _run(
                missing, [run, *(joined() for joined in blanks)], n_jobs, scheduler
            ):
                rows[shared.window, site] = finished[shared.window].save(
                    str(site), list[_Row], scored
                )
                advance(1)
    frame = pd.DataFrame([row for shared, site in cells for row in rows[shared.window, site] or ()])
    about: dict[str, Any] = {
        "model": model.name,
        "digest": model.digest(),
        "regime": episodes.regime,
    }
    about |= {
        "episodes_seed": episodes.seed,
        "n_episodes": len(episodes),
        "n_rounds": episodes.n_rounds,
    }
    about |= {} if run.missing is None else {"counted": counted_of(run.missing)}
    about |= {"alphas": list(ALPHAS)} if estimator is None else {"estimator": repr(estimator)}
    return SweepResult(frame, provenance(**about, seed=seed, n_folds=N_FOLDS))


def _spans(windows: Sequence[_Window] | None, per_round: bool, n_rounds: int) -> list[_Window]:
    """Return the windows that are swept."""
    require(
        not (per_round and windows is not None),
        "give windows= or per_round=True, not both: either says which rounds are probed together",
    )
    if per_round:
        return [(t, t + 1) for t in range(n_rounds)]
    if windows is None:
        return [(0, n_rounds)]
    spans = [(int(start), int(stop)) for start, stop in windows]
    require(
        bool(spans),
        "no windows were given; give (first round, round after the last), or None for all rounds",
    )
    for start, stop in spans:
        require(
            0 <= start < stop <= n_rounds,
            f"window ({start}, {stop}) is not within the rounds; give 0 <= start < stop <= {n_rounds}",
        )
    return spans


def _varying(values: Sequence[TargetValues], spans: Sequence[_Window]) -> list[_Window]:
    """Return the rounds in which every target varies: there is nothing to decode in the others."""
    varying = []
    for start, stop in spans:
        cuts = [value.rounds(start, stop) for value in values]
        if all(cut.as_numbers().varies for cut in cuts):
            varying.append((start, stop))
    keys = ", ".join(repr(value.key) for value in values)
    require(
        bool(varying),
        f"in no single round do all of {keys} vary, so there is nothing to decode; sweep other targets",
    )
    return varying


def _of_windows(
    model: Machine,
    episodes: Episodes,
    values: Sequence[TargetValues],
    windows: Sequence[_Window],
    seed: int,
    elsewhere: Sequence[TargetValues] | None = None,
    *,
    kind: Kind = RIDGE,
    described: str = "",
) -> list[_Shared]:
    """Return what the cells of each window share.

    Args:
        model, episodes: of the sweep.
        values: the targets, in all rounds.
        windows: first round and round after the last.
        seed: of folds and shuffles.
        elsewhere: targets of the untrained copies' episodes, where these are others.
        kind: of probe.
        described: the estimator with its settings, on which finished cells depend, too.
    """
    fed = [part.numpy() for part in model.layout.fit(episodes).encoded(episodes).tensors().values()]
    about, shared = (
        (_FORMAT, model.digest(), seed, N_FOLDS, ALPHAS, described, fed, values[0].participants),
        [],
    )
    for start, stop in windows:
        cut = [value.rounds(start, stop) for value in values]
        for value in cut:
            check(np.zeros((*value.values.shape[:2], 1)), value)
        there = cut if elsewhere is None else [value.rounds(start, stop) for value in elsewhere]
        parts = [
            (value.key, value.implied_by, value.values, value.mask, value.missing) for value in cut
        ]
        digest = str(joblib.hash((about, start, stop, parts, len(there[0].values))))
        sample, blank = (
            GroupedTargets(each, as_groups(None, len(each[0].values), each[0].participants), seed)
            for each in (cut, there)
        )
        shared.append(_Shared((start, stop), Problem.of(sample, kind), digest, blank))
    return shared


def _run(
    missing: Sequence[tuple[_Shared, Site]], runs: Sequence[Rollout], n_jobs: int, scheduler: str
) -> Iterator[_Done]:
    """The rows of the missing cells, as they are done, from runs of the model and of its untrained copies.

    Workers that share memory take the cells of one layer at a time; others are sent the models and their latents.
    """
    ready = {
        s.window: replace(s, problem=s.problem.with_baselines())
        for s in {s.window: s for s, _ in missing}.values()
    }
    layout = runs[0].layout
    cells = [(shared.window, site) for shared, site in missing]
    if scheduler or not getattr(
        get_active_backend(prefer="threads")[0], "supports_sharedmem", False
    ):
        by_hook = [
            [cell for cell in cells if cell[1].hook == hook]
            for hook in {site.hook: 0 for _, site in cells}
        ]
        for done in each(
            _of_hook, (ready, runs, layout), by_hook, n_jobs=n_jobs, scheduler=scheduler
        ):
            yield from done
        return
    layers = sorted(
        {site.layer for _, site in cells}, key=lambda layer: -1 if layer is None else layer
    )
    hooks = {
        layer: sorted({site.hook for _, site in cells if site.layer == layer}) for layer in layers
    }
    for layer in layers:
        caches = [replay(run.model, run, names_filter=hooks[layer])[2] for run in runs]
        of_layer = [cell for cell in cells if cell[1].layer == layer]
        # One thread per worker: the products are small, and workers share the cores.
        with one_thread():
            yield from each(
                _of_cell, (ready, caches, layout), of_layer, n_jobs=n_jobs, prefer="threads"
            )


def _of_cell(
    shared: tuple[dict[_Window, _Shared], Sequence[dict[str, Tensor]], RoundLayout],
    one: tuple[_Window, Site],
) -> _Done:
    """One row per target, from activations of the model and of untrained copies, those left out that overflow."""
    (ready, caches, layout), (window, site) = shared, one
    place, own = (slice(None), slice(*window), *site.index(layout)[1:]), ready[window]
    sample, groups = own.problem.sample, own.problem.sample.groups
    x, *blanks = (array_of("activations", cache[site.hook][place].flatten(2)) for cache in caches)
    x, blanks = (
        filled(x, sample.targets[0].missing),
        [filled(b, own.blank.targets[0].missing) for b in blanks],
    )
    require(
        bool(np.isfinite(x).all()),
        f"activations at {site} hold NaN or infinite values; a probe needs finite ones",
    )
    copies = [(without_rounding(blank)[0], own.blank) for blank in blanks if not overflows(blank)]
    of_untrained, (read, hidden), rows = (
        "the activations of the untrained model overflow",
        without_rounding(x),
        [],
    )
    for target, (probe, controls) in zip(
        sample.targets, own.problem.fit(read, copies), strict=True
    ):
        why: dict[str, Any] = {
            "untrained": of_untrained,
            "hidden": hidden,
            "n_features": leans_low(x, target, groups),
            "probe": describe_probe(own.problem.kind),
        }
        measure = measure_of(target, str(site), probe.score, controls, **why)
        row: _Row = {"target": target.key, "site": str(site)}
        row |= {name: getattr(site, name) for name in ("component", "layer", "head", "position")}
        row |= dict(zip(("start", "stop"), window, strict=True)) | measure.row()
        row |= {
            name: controls[name].score.estimate if name in controls else None
            for name in DESCRIPTIONS
        }
        rows.append(row | {"detectable": probe.score.detectable})
    return own, site, rows


def _of_hook(
    shared: tuple[dict[_Window, _Shared], Sequence[Rollout], RoundLayout],
    several: Sequence[tuple[_Window, Site]],
) -> list[_Done]:
    """The cells of one hook, from the rounds that the models run again for it."""
    ready, runs, layout = shared
    with one_thread():
        hooks = [several[0][1].hook]
        caches = [replay(run.model, run, names_filter=hooks)[2] for run in runs]
        return [_of_cell((ready, caches, layout), one) for one in several]
