"""Activation patching with a round axis: change one site at one round, read the same or a later round.

Run the *base* with one activation taken from the *source*::

    denoising:  base = corrupted, source = clean      (what suffices to restore the clean behaviour?)
    noising:    base = clean,     source = corrupted  (what is needed for it?)

``effect = m(patched) - m(base)``; ``fraction = sum(effect) / sum(m(source) - m(base))`` over episodes: 0 where the
patch does nothing and 1 where it carries the whole difference. The fraction is a ratio of sums, because an episode
whose two runs agree has no fraction of its own; intervals are bootstraps over episodes.

The effect runs on into later rounds through the latents (``propagate=True``), or later rounds read the base's own
latents (``propagate=False``: nothing outlives the round, and any effect at a later round is 0). Each side keeps its own
history: at the patched round, clean and corrupted latents differ by whatever the corruption did before.

:func:`round_map` patches one site at many rounds and reads every later round, too: how long its row stays lit is how
long the model remembers what was patched. A site that lights up is evidence that the difference between *these two*
inputs passes there, not of what it means.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal, get_args

import numpy as np
import pandas as pd
import torch
from einops import rearrange
from jaxtyping import Float
from torch import Tensor
from transformer_lens.patching import PatchingResult as Statistics

from interp.algorithm import Episodes
from interp.checks import checked
from interp.display import Tabled
from interp.errors import InputError, require, require_known, unknown_name
from interp.interventions.metrics import Metric
from interp.interventions.metrics import metric as find_metric
from interp.interventions.pairs import Pair, Readout, prepare, warn_if_unrelated
from interp.interventions.round_patcher import Patched, RoundPatcher, next_round
from interp.interventions.sites import ALIASES, COMPONENTS, Site, resolve, sites
from interp.interventions.swaps import tile
from interp.machine import Machine
from interp.model.run import Rollout, Rounds, select_rounds
from interp.provenance import provenance
from interp.statistics import bootstrap_mean, percentile_bounds, resample_weights

_Direction = Literal["denoising", "noising"]


@dataclass(frozen=True)
class PatchingResult(Tabled):
    """Effects of patching each site on its own.

    ``values``, ``clean`` and ``corrupted`` are the metric of the patched runs, and of the two unpatched ones; the other
    choices are as in :func:`sweep`.
    """

    sites: tuple[Site, ...]
    values: Float[Tensor, "site episode"]
    clean: Float[Tensor, " episode"]
    corrupted: Float[Tensor, " episode"]
    metric: str
    unit: str
    direction: str
    round: int
    read: int
    propagate: bool
    labels: tuple[str, ...] = ()
    settings: dict[str, Any] = field(default_factory=dict)

    @property
    def base(self) -> Float[Tensor, " episode"]:
        """The metric of the run that is patched: the corrupted one for "denoising", else the clean one."""
        return self.corrupted if self.direction == "denoising" else self.clean

    @property
    def source(self) -> Float[Tensor, " episode"]:
        """The metric of the run that activations are taken from."""
        return self.clean if self.direction == "denoising" else self.corrupted

    @property
    def effects(self) -> Float[Tensor, "site episode"]:
        """Patched minus base."""
        return self.values - self.base

    @property
    def gap(self) -> float:
        """Mean difference of the two unpatched runs, source minus base: what a fraction is a fraction of."""
        return float((self.source - self.base).mean())

    def fractions(self) -> Float[Tensor, " site"]:
        """Share of the gap that each patch carries over; an error where the two runs do not differ by this metric."""
        if abs(self.gap) < 1e-12:
            raise InputError(
                f"clean and corrupted runs do not differ in {self.metric} at round {self.read}, so there is no gap to "
                "take a fraction of; use effects, another metric, or a later read"
            )
        return self.effects.mean(-1) / self.gap

    @checked
    def to_frame(self, *, seed: int = 0) -> pd.DataFrame:
        """One row per site: effect and fraction with 95 % intervals, p-value of no effect, and the choices made."""
        index = pd.DataFrame([{"site": str(site), **site.columns} for site in self.sites])
        statistics = Statistics(self.values, [], index, [self.metric], reduced=False, baseline=self.base)
        low, high = statistics.bootstrap_ci(of_effect=True, seed=seed)
        frame = index.assign(
            effect=self.effects.mean(-1).numpy(force=True),
            effect_low=low.numpy(force=True),
            effect_high=high.numpy(force=True),
            p_value=statistics.permutation_pvalue(seed=seed).numpy(force=True),
        )
        frame["fraction"], frame["fraction_low"], frame["fraction_high"] = self._fraction_intervals(seed)
        choices = {name: getattr(self, name) for name in ("metric", "direction", "round", "read", "propagate")}
        return frame.assign(**choices, n_episodes=self.values.shape[1])

    def _fraction_intervals(self, seed: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        effects, gaps = (x.double().numpy(force=True) for x in (self.effects, self.source - self.base))
        weights = resample_weights(effects.shape[1], seed=seed)
        with np.errstate(invalid="ignore", divide="ignore"):
            samples = (weights @ effects.T) / (weights @ gaps)[:, None]
            estimate = effects.mean(1) / gaps.mean()
        return estimate, *percentile_bounds(samples)

    @checked
    def grid(self, component: str, value: Literal["effect", "fraction"] = "fraction") -> pd.DataFrame:
        """A heat map's table for one component: rows are layers (heads "L1H0", a loop's cycles "block[2]"), columns are
        positions, in order.
        """
        key = ALIASES.get(component, component)
        patched = [i for i, site in enumerate(self.sites) if site.component == key]
        if not patched:
            raise unknown_name("patched component", component, {site.component for site in self.sites})
        numbers = self.fractions() if value == "fraction" else self.effects.mean(-1)
        rows = [_row_name(self.sites[i]) for i in patched]
        columns = [self.sites[i].position or "all" for i in patched]
        table = pd.Series(numbers[patched].numpy(force=True), index=[rows, columns]).unstack()
        return table.loc[list(dict.fromkeys(rows)), list(dict.fromkeys(columns))]


def _row_name(site: Site) -> str:
    if site.layer is None or site.component not in COMPONENTS:
        return str(replace(site, position=None))
    return f"L{site.layer}" + ("" if site.head is None else f"H{site.head}")


@checked
def sweep(
    model: Machine,
    clean: Episodes,
    corrupted: Episodes,
    round: int,
    *,
    components: str | Iterable[str] | None = None,
    positions: str | Iterable[str] | None = "all",
    at: Sequence[Site | str] | None = None,
    metric: str | Metric | None = None,
    direction: str = "denoising",
    read: int | None = None,
    propagate: bool = True,
    commit: str = "own",
    chunk: int | None = None,
) -> PatchingResult:
    """Patch each site of a sweep on its own, at one round.

    Args:
        round: where the patch acts; negative counts from the end.
        components, positions: what to sweep (:func:`interp.interventions.sites.sites`); by default residual stream,
            attention outputs and heads, or every point of a machine that has none of them.
        at: sites instead of a sweep over components and positions.
        metric: a key of ``metrics.METRICS``; the logit difference, or the "prediction" of a real number, when None.
        direction: "denoising" puts clean activations into the corrupted run, "noising" the reverse.
        read: the round that is read; the patched one when None.
        propagate: let the patch run on into later rounds, or hold their latents at the base's.
        commit: how both sides are run, and which choice token the patched rounds hold.
        chunk: rows (site x episode) run at once, which bounds memory; 256 on a CPU, 65,536 on an accelerator when None.

    Example:
        >>> import interp
        >>> from interp.interventions import patching
        >>> from interp.tasks import experts
        >>> model = interp.load("wma-handwired", n_experts=4)
        >>> episodes = experts.sample(64, 30, 4, seed=0)
        >>> clean, corrupted = experts.TASK.corruption("flip-vote").build(episodes, round=20, expert=1)
        >>> effects = patching.sweep(model, clean=clean, corrupted=corrupted, round=20)
        >>> effects.grid("resid_pre").shape
        (3, 13)
    """
    measure = _measure(metric, direction, model)
    pair = prepare(model, clean, corrupted, round, read, commit)
    warn_if_unrelated(pair)
    layout = pair.layout
    cells = sites(model, layout, components, positions) if at is None else [resolve(s, model, layout) for s in at]
    require(bool(cells), "nothing to patch: no site was selected; name components, positions or sites that exist")
    values = run_cells(pair, cells, measure, direction, propagate, chunk)
    return PatchingResult(
        sites=tuple(cells),
        values=values,
        clean=measure.measure(pair.clean_readout, pair),
        corrupted=measure.measure(pair.corrupted_readout, pair),
        metric=measure.key,
        unit=measure.unit,
        direction=direction,
        round=pair.round,
        read=pair.read,
        propagate=propagate,
        labels=layout.labels,
        settings=provenance(model, commit=commit, chunk=chunk),
    )


def _measure(metric: str | Metric | None, direction: str, model: Machine) -> Metric:
    require_known("direction", direction, get_args(_Direction))
    return find_metric(metric, model.layout)


def _sides(pair: Pair, direction: str) -> tuple[Rollout, Rollout]:
    """The run that is patched, and the run that activations are taken from."""
    return (pair.corrupted, pair.clean) if direction == "denoising" else (pair.clean, pair.corrupted)


def run_cells(
    pair: Pair, cells: Sequence[Site], measure: Metric, direction: str, propagate: bool, chunk: int | None = None
) -> Float[Tensor, "site episode"]:
    """The metric with each cell patched on its own."""
    base, source = _sides(pair, direction)
    later = pair.read > pair.round or measure.needs_update
    values: list[Tensor | None] = [None] * len(cells)
    patcher = RoundPatcher(pair.model, base, pair.round, source, update=later, chunk=chunk)
    for step in patcher.cells(cells):
        on = _read_on(pair, base, step, propagate and not step.idle, measure.needs_update)
        measured = measure.measure(on, pair)
        for cell, value in zip(step.cells, measured, strict=True):
            values[cell] = value
    return torch.stack([value for value in values if value is not None])


def _read_on(pair: Pair, base: Rollout, step: Patched, propagate: bool, update: bool) -> Readout:
    """Run the rounds after the patched one, up to the one that is read, with or without that one's ``update``."""
    n, latents = len(step.cells), step.latents
    predictions = [step.predictions]
    for t in range(pair.round + 1, pair.read + 1):
        if propagate:
            prediction, latents = next_round(pair.model, base, t, latents, n, update or t < pair.read)
        else:
            prediction, latents = tile(base.predictions[:, t], n), tile(base.latents[:, t + 1], n)
        predictions.append(prediction)
    return _readout(predictions, latents, n)


def _readout(predictions: list[Tensor], latents: Tensor, n: int) -> Readout:
    """What ``n`` cells gave in each round, and left after the last; their rows are ``[cell * episode, ...]``."""
    return Readout(torch.stack(predictions, 1).unflatten(0, (n, -1)), latents.unflatten(0, (n, -1)))


@dataclass(frozen=True)
class RoundMap:
    """Effects of patching one site at some rounds, read at the same rounds: patched minus base, NaN before the patch.

    ``gaps`` are the unpatched differences, source minus base.
    """

    site: str
    rounds: tuple[int, ...]
    effects: Float[np.ndarray, "patched read episode"]
    gaps: Float[np.ndarray, "read episode"]
    metric: str
    direction: str
    settings: dict[str, Any] = field(default_factory=dict)

    @checked
    def grid(self, value: str = "effect") -> pd.DataFrame:
        """Mean effects, or fractions of the gap (NaN where the runs do not differ): rows patched, columns read."""
        require(value in ("effect", "fraction"), f"value must be 'effect' or 'fraction', got {value!r}")
        table = self.effects.mean(-1)
        if value == "fraction":
            gap = self.gaps.mean(-1)
            table = table / np.where(np.abs(gap) > 1e-12, gap, np.nan)
        return pd.DataFrame(table, index=list(self.rounds), columns=list(self.rounds))

    @checked
    def to_frame(self, *, seed: int = 0) -> pd.DataFrame:
        """One row per (patched round, read round): effect with its 95 % interval over episodes, and the gap."""
        effects = rearrange(self.effects, "patched read episode -> episode patched read")
        mean, low, high = bootstrap_mean(effects, seed=seed)
        columns = ["patched", "read", "effect", "effect_low", "effect_high", "gap"]
        rows = [
            (t, u, mean[i, j], low[i, j], high[i, j], self.gaps[j].mean())
            for i, t in enumerate(self.rounds)
            for j, u in enumerate(self.rounds)
            if u >= t
        ]
        frame = pd.DataFrame(rows, columns=columns)
        return frame.assign(site=self.site, metric=self.metric, direction=self.direction)


@checked
def round_map(
    model: Machine,
    clean: Episodes,
    corrupted: Episodes,
    site: Site | str,
    *,
    rounds: Rounds = "all",
    metric: str | Metric | None = None,
    direction: str = "denoising",
    commit: str = "own",
    done: Callable[[int], None] = lambda steps: None,
) -> RoundMap:
    """Patch ``site`` at each of ``rounds`` and read at each of them; ``done`` is called with 1 after each round.

    The metric is read per round: a regret is that round's loss.
    """
    measure = _measure(metric, direction, model)
    at_rounds = sorted(set(select_rounds(rounds, clean.n_rounds)))
    pair = prepare(model, clean, corrupted, at_rounds[0], at_rounds[-1], commit)
    warn_if_unrelated(pair)
    place = resolve(site, model, pair.layout)
    base, source = _sides(pair, direction)
    effects = np.full((len(at_rounds), len(at_rounds), pair.n_episodes), np.nan)
    gaps = np.zeros((len(at_rounds), pair.n_episodes))
    active, latents = 0, torch.zeros(0)
    for t in range(at_rounds[0], at_rounds[-1] + 1):
        if active:
            predictions, latents = next_round(model, base, t, latents, active)
        if t in at_rounds:
            (patched,) = RoundPatcher(model, base, t, source, update=True).cells([place])
            predictions = torch.cat([predictions, patched.predictions]) if active else patched.predictions
            latents = torch.cat([latents, patched.latents]) if active else patched.latents
            at, column = replace(pair, round=t, read=t), active
            active += 1
            sides = [measure.measure(at.readout(run), at) for run in (base, source)]
            values = measure.measure(_readout([predictions], latents, active), at)
            effects[:active, column] = (values - sides[0]).double().numpy(force=True)
            gaps[column] = (sides[1] - sides[0]).double().numpy(force=True)
        done(1)
    settings = provenance(model, commit=commit, propagate=True)
    return RoundMap(str(place), tuple(at_rounds), effects, gaps, measure.key, direction, settings)
