"""Where can targets be decoded? Fit a probe at every component, layer, position and window of
rounds.

A *cell* is one site in one window of rounds. For each target, it gets the probe of
:func:`probes.fit` and its controls. The probe is ridge regression, with classes as indicators, or a
scikit-learn estimator. Finished cells are stored, so that an interrupted sweep continues. A sweep
tests hundreds of cells without correction for multiple comparisons: it shows where to intervene,
and is no evidence by itself.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Any

import joblib
import numpy as np
import pandas as pd
from joblib.parallel import get_active_backend
from torch import Tensor

from interp.core.algorithm import Episodes, describe_counted
from interp.core.display import describe_lacking
from interp.core.machine import Machine
from interp.interventions.sites import Site, select_sites
from interp.interventions.sites import sites as list_sites
from interp.model.layout import RoundLayout
from interp.model.rollout import replay, rollout
from interp.model.run import Rollout
from interp.results.measure import Result
from interp.support.checks import array_of, checked, checked_result, integer, require_columns
from interp.support.errors import require, unknown_name
from interp.support.files import writable
from interp.support.provenance import provenance
from interp.support.session import Finished, session
from interp.support.shares import divide, write_note
from interp.support.workers import bar, one_thread, run_on_workers
from probes import estimators
from probes.activations import CARRIED_HOOK, without_rounding
from probes.controls import DESCRIPTIONS, ControlScore, Fitted, GroupedTargets, Kind, Problem
from probes.fitting import describe_probe, encode_rounds, untrained_runs
from probes.linear import ALPHAS, RIDGE
from probes.result import measure_of
from probes.targets import compute
from probes.values import (
    N_FOLDS,
    TargetValues,
    as_groups,
    check_target,
    expected_low_score,
    fill_missing,
    overflows,
    warn_of_few,
)

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_COMPONENTS = ("resid_pre", "attn_out", "resid_mid", "mlp_out", "resid_post")
"""Components that are swept by default, as far as the model has them."""

_AFTER_ROUND = "latents after the round"
"""Key under which a cache of activations has the latents that a round leaves."""

_CACHE_VERSION = 8  # part of each cell's digest: rows of another version are not read
_Window = tuple[int, int]
_Cell = tuple[_Window, Site]
_Row = dict[str, Any]
_CellFits = tuple[np.ndarray, str, list[tuple[Fitted, dict[str, ControlScore]]]]


@dataclass(frozen=True, eq=False)
class _SharedInWindow:
    """What all cells (sites) of one window of rounds share.

    Attributes:
        problem: the targets in the window, with their controls.
        digest: hash of everything that a cell's scores depend on, except the site.
        targets_of_copies: the targets in the episodes of the untrained copies.
    """

    problem: Problem
    digest: str
    targets_of_copies: GroupedTargets


@dataclass(frozen=True, eq=False)
@checked_result
class SweepResult(Result):
    """The scores of probes of several targets at several sites, as a table with one row per target,
    site and window of rounds.

    The first columns are target, site and its parts (component, layer, head, position), and start
    and stop (first round of the window, and the round after its last). Then come the columns of
    :meth:`interp.results.measure.Measure.row`. Among them, number, low and high are the score with
    its 95 % interval on new episodes: R2, or for classes the skill (1 minus errors relative to
    always guessing the most frequent class). The verdict is "yes" if the target can be decoded.

    Each control has a column with its score in the same unit, such as untrained. The last column,
    detectable, is the smallest score that such a sample could tell from 0.

    Attributes:
        frame: the table.
        settings: model, episodes, seed and other provenance.
    """

    frame: pd.DataFrame
    settings: dict[str, Any] = field(default_factory=dict)

    def to_frame(self) -> pd.DataFrame:
        """Return a copy of the table: one row per target, site and window."""
        return self.frame.copy()

    def _draw(self, figures: Any) -> Any:
        """Draw a heatmap of the scores of the first target."""
        require_columns("a sweep", self.frame, "target")
        return self.heatmap(str(next(iter(self.frame["target"]), "")))

    @checked
    def heatmap(self, target: str, window: _Window | None = None) -> Figure:
        """Draw heatmaps of the scores of one target, one panel per component (kind of activation).
        Layers are rows, and positions columns. A dot marks the verdict "yes": the target can be
        decoded.

        Rows are iterations instead of layers if the machine is a loop. A machine without layers or
        positions has one row or column. If each round was swept separately and ``window`` is None,
        columns are rounds. There is then one panel per component and position, without dots, and
        rounds in which the target does not vary are blank.

        Args:
            target: key of the target.
            window: one of the windows, (first round, round after the last). None draws the first
                one, or all rounds if each was swept separately.
        """
        columns = ("target", "start", "stop", "position", "layer", "component", "unit", "verdict")
        require_columns("a sweep", self.frame, *columns)
        targets = self.frame["target"]
        if target not in set(targets):
            raise unknown_name("swept target", target, targets.unique(), limit=40)
        rows = self.frame[targets == target]
        layers = ["" if pd.isna(layer) else f"layer {int(layer)}" for layer in rows["layer"]]
        rows = rows.assign(layer=layers, position=rows["position"].fillna(""))
        windows = list(dict.fromkeys(zip(rows["start"], rows["stop"], strict=True)))
        is_per_round = all(stop - start == 1 for start, stop in windows)
        if window is None and is_per_round and len(windows) > 1:
            return _draw_rounds(rows, target)
        if window is None:
            window = windows[0]
        swept = ", ".join(map(str, windows))
        require(window in windows, f"window {window} was not swept; these were: {swept}")
        start, stop = window
        in_window = (rows["start"] == start) & (rows["stop"] == stop)
        return _draw_positions(
            rows[in_window], f"{target}, rounds {start} to {stop - 1} (dots: yes)"
        )


def _draw_rounds(rows: pd.DataFrame, title: str) -> Figure:
    """Draw heatmaps of scores (R2, or skill for classes), one panel per component and position:
    layers are rows, and rounds columns. Rounds without a score stay blank.

    Args:
        rows: rows of one target, each with the score of one round (``stop`` is ``start`` + 1).
        title: title of the figure.
    """
    from interp.results.figures import heatmaps

    rounds = range(int(rows["start"].min()), int(rows["stop"].max()))
    grids = {}
    for (component, position), part in rows.groupby(["component", "position"], sort=False):
        grid = part.pivot_table(index="layer", columns="start", values="number", sort=False)
        name = f"{component} at {position}" if position else str(component)
        grids[name] = grid.reindex(columns=rounds)
    figure = heatmaps(grids, label=_get_unit(rows), limit=1.0, lowest=0.0)
    for axes in figure.axes[: len(grids)]:
        axes.set_xlabel("round")
    figure.suptitle(title)
    return figure


def _get_unit(rows: pd.DataFrame) -> str:
    """Return the unit of the scores of one target, "R2" or "skill"."""
    return str(rows["unit"].iloc[0])


def _draw_positions(rows: pd.DataFrame, title: str) -> Figure:
    """Draw heatmaps of scores, one panel per component: layers are rows, and positions columns. A
    dot marks a "yes".

    Args:
        rows: rows of one target in one window.
        title: title of the figure.
    """
    from interp.results.figures import heatmaps

    positions = list(rows["position"].unique())
    grids = {}
    for component, part in rows.groupby("component", sort=False):
        grid = part.pivot_table(index="layer", columns="position", values="number", sort=False)
        grids[str(component)] = grid.reindex(columns=positions)
    figure = heatmaps(grids, label=_get_unit(rows), limit=1.0, lowest=0.0)
    decoded = rows[rows["verdict"] == "yes"]
    for axes, (component, grid) in zip(figure.axes, grids.items(), strict=False):
        layers = list(grid.index)
        dots = decoded[decoded["component"] == component]
        # In the upper left of a cell, whose middle has the number.
        x = [positions.index(position) - 0.4 for position in dots["position"]]
        y = [layers.index(layer) - 0.3 for layer in dots["layer"]]
        axes.plot(x, y, "o", color="black", ms=3)
    figure.suptitle(title)
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
    """Fit a probe of every target at every site in every window (range) of rounds, with all
    controls.

    Args:
        model: the machine.
        episodes: the episodes that it runs.
        targets: keys of :mod:`probes.targets`, such as "log_weights"; or ``key:before`` for a state
            before each round instead of after it. None takes all variables that vary in these
            episodes, and states both before and after each round.
        sites: sites or their texts ("L1H0@p?"); or components ("resid_post", "resid_post@p?"),
            which stand for sites at every layer, head and position. None takes the residual stream
            and what is added to it, or every hook point of a machine without a residual stream. At
            "latent", states are read from the latents of their moment (:mod:`probes.activations`).
        windows: (first round, round after the last) of each window; None for one window of all
            rounds.
        per_round: True probes each round separately, and leaves out rounds in which one of the
            targets does not vary.
        estimator: a regressor or classifier of scikit-learn, which is cloned for every fold; ridge
            regression when None. A classifier needs class targets.
        n_untrained: number of untrained copies of the model, for the control "untrained". The
            control at a site is the copy with the highest score there.
        seed: seed of copies, folds and shuffles.
        cache: folder in which the results of finished cells are stored, so that an interrupted
            sweep can continue; a cell is one site in one window. None stores nothing.
        n_jobs: number of workers; -1 for one per core.
        scheduler: address of a dask scheduler, see :func:`interp.support.workers.run_on_workers`.
        shard: which share of the cells to compute, such as "2/64" for the second of 64 shares, for
            which ``cache`` is required. "" computes all cells, and reads those that earlier calls
            stored in ``cache``.

    Returns:
        The scores, with one row per target, site and window; with ``shard``, only those of this
        share.

    >>> import interp
    >>> from interp.tasks import experts
    >>> episodes = experts.sample(n_episodes=20, n_rounds=10, n_experts=2, seed=0)
    >>> model = interp.load("wma-handwired", n_experts=2)
    >>> frame = sweep(model, episodes, ["label"], sites=["resid_post@p?", "resid_post@w?"]).to_frame()
    >>> round(frame.query("layer == 1").set_index("position").number["w?"].item(), 3)
    1.0
    """
    integer("n_jobs", n_jobs, most=1024)
    kind = RIDGE if estimator is None else estimators.kind(estimator)
    swept_windows = _list_windows(windows, per_round, episodes.n_rounds)
    swept_sites = _select_sites(model, episodes, sites)
    values = compute(targets, episodes, model)
    inputs = encode_rounds(model, episodes)
    arrays = [*inputs, *(value.values for value in values)]
    groups = as_groups(None, len(episodes), values[0].participants, arrays)
    sample = GroupedTargets(values, groups, seed)
    warn_of_few(sample.n_groups)
    for value in values:
        require(
            not kind.predicts_classes or value.kind == "class",
            f"target {value.key!r} is a number, not a class; sweep it with a regressor, or leave estimator= out",
        )
    if per_round:  # windows that the user named must vary, and are refused otherwise
        swept_windows = _select_varying(values, swept_windows)
    with session():
        run = replace(rollout(model, episodes), model=model, episodes=episodes)
        copies, joined_targets, _ = untrained_runs(run, values, [], n_untrained, seed)
    fit_settings = (N_FOLDS, ALPHAS, repr(estimator), n_untrained)
    common = (_CACHE_VERSION, model.digest(), seed, fit_settings, inputs, groups)
    shared_by_window = _prepare_windows(
        sample, swept_windows, joined_targets, kind=kind, common=common
    )
    folder = None if cache is None else writable(cache)
    stores = {
        window: Finished(folder, {"digest": shared.digest})
        for window, shared in shared_by_window.items()
    }
    settings: dict[str, Any] = {
        "model": model.name,
        "digest": model.digest(),
        "regime": episodes.regime,
        "episodes_seed": episodes.seed,
        "n_episodes": len(episodes),
        "n_groups": sample.n_groups,
        "n_rounds": episodes.n_rounds,
        "seed": seed,
    }
    cells_by_name = {_name_cell(cell): cell for cell in product(shared_by_window, swept_sites)}
    names = list(cells_by_name)
    if folder is not None:
        file_of_name = {
            name: stores[window].file_of(str(site), list[_Row])
            for name, (window, site) in cells_by_name.items()
        }
        names = divide(folder, file_of_name, settings, shard)
    cells = [cells_by_name[name] for name in names]
    # the stored rows of each cell; None if it was not computed yet
    rows = {(window, site): stores[window].load(str(site), list[_Row]) for window, site in cells}
    unfinished = [cell for cell in cells if rows[cell] is None]
    if unfinished:
        runs = [run, *(run_of_copy() for run_of_copy in copies)]
        with bar("probes", total=len(cells)) as advance:
            advance(len(cells) - len(unfinished))
            began = time.monotonic()
            for cell, scored in _compute_cells(
                unfinished, shared_by_window, runs, n_jobs, scheduler
            ):
                window, site = cell
                rows[cell] = stores[window].save(str(site), list[_Row], scored)
                ended = time.monotonic()
                if folder is not None:
                    write_note(folder, _name_cell(cell), ended - began)
                began = ended
                advance(1)
    frame = pd.DataFrame([row for cell in cells for row in rows[cell] or ()])
    if run.missing is not None:
        settings["counted"] = describe_counted(run.missing)
    if estimator is None:
        settings["alphas"] = list(ALPHAS)
    else:
        settings["estimator"] = repr(estimator)
    return SweepResult(frame, provenance(**settings, n_folds=N_FOLDS))


def _name_cell(cell: _Cell) -> str:
    """Return the name of a cell (a site in a window of rounds), such as "resid_post[1]@w? in rounds
    0 to 9".
    """
    (start, stop), site = cell
    return f"{site} in rounds {start} to {stop - 1}"


def _select_sites(
    model: Machine, episodes: Episodes, sites: Site | str | Sequence[Site | str] | None
) -> list[Site]:
    """Return the sites to sweep; raise InputError for sites that the model does not have.

    Args:
        model: the machine.
        episodes: the episodes, for the positions of a round.
        sites: sites as the user wrote them; the default sites when None.
    """
    layout = model.layout.fit(episodes)
    if sites is not None:
        return select_sites(model, layout, sites)
    components = [key for key in _COMPONENTS if key in model.points]
    if describe_lacking(model, "resid_post"):
        components = list(model.points)
    return list_sites(model, layout, components)


def _list_windows(
    windows: Sequence[_Window] | None, per_round: bool, n_rounds: int
) -> list[_Window]:
    """Return the windows of rounds to sweep, each as (first round, round after the last).

    Args:
        windows: the windows that the user passed; None for one window of all rounds.
        per_round: True for one window per round.
        n_rounds: number of rounds of the episodes.
    """
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
        spans,
        "no windows were given; give (first round, round after the last), or None for all rounds",
    )
    for start, stop in spans:
        require(
            0 <= start < stop <= n_rounds,
            f"window ({start}, {stop}) is not within the rounds; give 0 <= start < stop <= {n_rounds}",
        )
    return spans


def _select_varying(values: Sequence[TargetValues], windows: Sequence[_Window]) -> list[_Window]:
    """Return the windows in which every target varies; in other windows there is nothing to decode.

    Args:
        values: the targets in all rounds.
        windows: (first round, round after the last) of each window.
    """
    varying = []
    for start, stop in windows:
        cuts = [value.rounds(start, stop) for value in values]
        if all(cut.as_numbers().varies for cut in cuts):
            varying.append((start, stop))
    keys = ", ".join(repr(value.key) for value in values)
    require(
        varying,
        f"in no single round do all of {keys} vary, so there is nothing to decode; sweep other targets",
    )
    return varying


def _prepare_windows(
    sample: GroupedTargets,
    windows: Sequence[_Window],
    joined_targets: Sequence[TargetValues] | None,
    *,
    kind: Kind,
    common: tuple[Any, ...],
) -> dict[_Window, _SharedInWindow]:
    """Return, for each window of rounds, what its cells (sites) share.

    Args:
        sample: the targets in all rounds, with their groups.
        windows: (first round, round after the last) of each window.
        joined_targets: targets in the untrained copies' episodes; None if these are the episodes of
            the model.
        kind: kind of probe.
        common: settings on which all scores depend. They are part of the digest under which
            finished cells are stored.
    """
    shared_by_window = {}
    for start, stop in windows:
        targets = [value.rounds(start, stop) for value in sample.targets]
        for target in targets:
            check_target(target)
        targets_of_copies = targets
        if joined_targets is not None:
            targets_of_copies = [value.rounds(start, stop) for value in joined_targets]
        parts = [(t.key, t.implied_by, t.values, t.mask, t.missing) for t in targets]
        # The seed, in ``common``, and this number determine the further episodes of the copies.
        n_episodes_of_copies = len(targets_of_copies[0].values)
        digest = joblib.hash((common, start, stop, parts, n_episodes_of_copies))
        in_window = replace(sample, targets=targets)
        shared_by_window[start, stop] = _SharedInWindow(
            problem=Problem.of(in_window, kind),
            digest=str(digest),
            targets_of_copies=in_window.extend_to_copy(targets_of_copies),
        )
    return shared_by_window


def _compute_cells(
    unfinished: Sequence[_Cell],
    shared_by_window: Mapping[_Window, _SharedInWindow],
    runs: Sequence[Rollout],
    n_jobs: int,
    scheduler: str,
) -> Iterator[tuple[_Cell, list[_Row]]]:
    """Compute cells (sites in a window of rounds), and yield each with its rows as soon as it is
    done.

    Workers that share memory share the activations, of one layer at a time to save memory. Other
    workers get the rollouts, and compute the activations themselves, of one hook point per task.

    Args:
        unfinished: cells to compute.
        shared_by_window: what the cells of each window share.
        runs: rollouts of the model, and of its untrained copies.
        n_jobs: number of workers; -1 for one per core.
        scheduler: address of a dask scheduler; "" for none.
    """
    # Baselines (controls without activations) are fitted only for the windows of these cells.
    with_baselines = {}
    for window, _ in unfinished:
        if window not in with_baselines:
            shared = shared_by_window[window]
            with_baselines[window] = replace(shared, problem=shared.problem.with_baselines())
    layout = runs[0].layout
    backend, _ = get_active_backend(prefer="threads")
    shares_memory = getattr(backend, "supports_sharedmem", False)
    if scheduler or not shares_memory:
        by_hook = _group_cells(unfinished, "hook")
        shared_by_all = (with_baselines, runs, layout)
        for scored in run_on_workers(
            _compute_cells_of_hook, shared_by_all, by_hook, n_jobs=n_jobs, scheduler=scheduler
        ):
            yield from scored
        return
    for cells in _group_cells(unfinished, "layer"):
        caches = _replay_runs(runs, cells)
        # One thread per worker: the products are small, and workers share the cores.
        with one_thread():
            yield from run_on_workers(
                _compute_cell,
                (with_baselines, caches, layout),
                cells,
                n_jobs=n_jobs,
                prefer="threads",
            )


def _group_cells(cells: Sequence[_Cell], attribute: str) -> list[list[_Cell]]:
    """Group cells by an attribute of their sites, such as "layer"; return the groups as lists."""
    groups: dict[Any, list[_Cell]] = {}
    for cell in cells:
        _, site = cell
        groups.setdefault(getattr(site, attribute), []).append(cell)
    return list(groups.values())


def _replay_runs(runs: Sequence[Rollout], cells: Sequence[_Cell]) -> list[dict[str, Tensor]]:
    """Run each rollout again from its latents, and return the activations at the sites of the
    cells: for each rollout, a dictionary from hook point to ``[episode, round, ...]``. It also has
    the latents after each round.
    """
    hooks = sorted({site.hook for _, site in cells})
    caches = []
    for run in runs:
        _, _, cache = replay(run.model, run, names_filter=hooks)
        caches.append(cache | {_AFTER_ROUND: run.latents[:, 1:]})
    return caches


def _compute_cell(
    shared: tuple[dict[_Window, _SharedInWindow], Sequence[dict[str, Tensor]], RoundLayout],
    cell: _Cell,
) -> tuple[_Cell, list[_Row]]:
    """Fit the probes of one cell (a site in a window of rounds), and return the cell with one row
    per target.

    Args:
        shared: what the cells of each window share, by window; activations of the model and of each
            copy, by hook point; the layout of a round.
        cell: the window and the site.
    """
    shared_by_window, caches, layout = shared
    window, site = cell
    shared_in_window = shared_by_window[window]
    problem = shared_in_window.problem
    start, stop = window
    # A site's index begins with the batch; a replayed activation, with episode and round.
    index = (slice(None), slice(start, stop), *site.index(layout)[1:])
    fits_by_key: dict[str, _CellFits] = {}
    rows = []
    for i, target in enumerate(problem.sample.targets):
        # A state after the round is read from the latents after it.
        is_after = site.hook == CARRIED_HOOK and target.when == "after"
        key = _AFTER_ROUND if is_after else site.hook
        if key not in fits_by_key:
            tensors = [cache[key][index] for cache in caches]
            fits_by_key[key] = _fit_cell(shared_in_window, tensors, site)
        x, rounding_warning, fits = fits_by_key[key]
        probe, controls = fits[i]
        measure = measure_of(
            target,
            str(site),
            probe.score,
            controls,
            untrained="the activations of the untrained model overflow",
            why_features_missing=rounding_warning,
            n_features=expected_low_score(x, target, problem.sample.groups),
            probe=describe_probe(problem.kind),
        )
        row: _Row = {
            "target": target.key,
            "site": str(site),
            "component": site.component,
            "layer": site.layer,
            "head": site.head,
            "position": site.position,
            "start": start,
            "stop": stop,
            **measure.row(),
        }
        for name, description in DESCRIPTIONS.items():
            row[name] = measure.controls[description].number if name in controls else None
        row["detectable"] = probe.score.detectable
        rows.append(row)
    return cell, rows


def _fit_cell(shared: _SharedInWindow, tensors: Sequence[Tensor], site: Site) -> _CellFits:
    """Fit the probes of all targets, with their controls, to the activations of one cell.

    Untrained copies whose activations overflow are left out.

    Args:
        shared: what the cells of the window share.
        tensors: activations ``[episode, round, ...]`` of the model, then of each untrained copy.
        site: the site, for error messages.

    Returns:
        The features, a warning if most of them were left out ("" if not), and for each target its
        probe and its controls.
    """
    problem, targets_of_copies = shared.problem, shared.targets_of_copies
    # [episode, round, feature]
    arrays = [array_of("activations", tensor.flatten(2)) for tensor in tensors]
    x = fill_missing(arrays[0], problem.sample.targets[0].missing)
    require(
        np.isfinite(x).all(),
        f"activations at {site} hold NaN or infinite values; a probe needs finite ones (runs of a loop that halts are "
        "probed by probes.probe(model, episodes, sites=[...]), which leaves out those that did not take place)",
    )
    copies = []
    for array in arrays[1:]:
        filled = fill_missing(array, targets_of_copies.targets[0].missing)
        if not overflows(filled):
            features_of_copy, _ = without_rounding(filled)
            copies.append((features_of_copy, targets_of_copies))
    features, rounding_warning = without_rounding(x)
    return x, rounding_warning, problem.fit(features, copies)


def _compute_cells_of_hook(
    shared: tuple[dict[_Window, _SharedInWindow], Sequence[Rollout], RoundLayout],
    cells: Sequence[_Cell],
) -> list[tuple[_Cell, list[_Row]]]:
    """Replay the rollouts for one hook point, and compute its cells.

    Args:
        shared: what the cells of each window share, by window; rollouts of the model and of each
            copy; the layout of a round.
        cells: the cells, all at one hook point.
    """
    shared_by_window, runs, layout = shared
    with one_thread():
        caches = _replay_runs(runs, cells)
        return [_compute_cell((shared_by_window, caches, layout), cell) for cell in cells]
