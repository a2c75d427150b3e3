"""Activation patching with a round axis: change one site at one round, read the same or a later round.

Run the *base* with one activation taken from the *source*::

    denoising:  base = corrupted, source = clean      (what suffices to restore the clean behaviour?)
    noising:    base = clean,     source = corrupted  (what is needed for it?)

``effect = m(patched) - m(base)``; ``fraction = sum(effect) / sum(m(source) - m(base))`` over episodes: 0 where the
patch does nothing and 1 where it carries the whole difference. The fraction is a ratio of sums, because an episode
whose two runs agree has no fraction of its own; intervals are bootstraps over episodes.

The effect runs on into later rounds through the latents; with ``propagate=False`` (:func:`of_pair`) later rounds read
the base's own latents, so that nothing outlives the round. Each side keeps its own history: at the patched round, clean
and corrupted latents differ by whatever the corruption did before.

:func:`round_map` patches one site at many rounds and reads every later round, too: how long its row stays lit is how
long the model remembers what was patched. A site that lights up is evidence that the difference between *these two*
inputs passes there, not of what it means.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import numpy as np
import pandas as pd
import torch
from jaxtyping import Float
from torch import Tensor
from transformer_lens.patching import PatchingResult as Statistics

from interp.core.algorithm import Episodes, participants_of
from interp.core.machine import Machine
from interp.interventions.experiment import Edit, Experiment, Outputs, Tabulated, by_size, run
from interp.interventions.pairs import (
    Metric,
    Pair,
    Readout,
    find_metric,
    prepare,
    warn_if_unrelated,
)
from interp.interventions.sites import ALIASES, COMPONENTS, Site, chosen, resolve
from interp.model.run import Rollout, Rounds, select_rounds
from interp.results.measure import Result
from interp.stats.intervals import of_each, percentile_bounds, resample_weights
from interp.support.checks import checked
from interp.support.errors import InputError, require_known, unknown_name
from interp.support.provenance import provenance

_NO_GAP = 1e-12  # two runs that differ by less do not differ


@dataclass(frozen=True)
@checked
class PatchingResult(Result):
    """Effects of patching each site on its own.

    ``values`` are the metric of the patched runs, ``base`` that of the run that is patched, and ``source`` that of the
    run that activations are taken from; the other choices are as in :func:`sweep`. Where several episodes are of one of
    the ``participants``, the table counts their mean.
    """

    sites: tuple[Site, ...]
    values: Float[Tensor, "site episode"]
    base: Float[Tensor, " episode"]
    source: Float[Tensor, " episode"]
    metric: str
    unit: str
    direction: str
    round: int
    read: int
    propagate: bool
    settings: dict[str, Any] = field(default_factory=dict)
    participants: Any = None

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
        if abs(self.gap) < _NO_GAP:
            raise InputError(
                f"clean and corrupted runs do not differ in {self.metric} at round {self.read}, so there is no gap to "
                "take a fraction of; use effects, another metric, or a later read"
            )
        return self.effects.mean(-1) / self.gap

    def to_frame(self, *, seed: int = 0) -> pd.DataFrame:
        """One row per site, the largest effect first: effect and fraction with 95 % intervals, p-value, choices."""
        parts = ("component", "layer", "head", "position")
        index = pd.DataFrame(
            [{"site": str(site), **{of: getattr(site, of) for of in parts}} for site in self.sites]
        )
        values, base, source = self.values, self.base, self.source
        if self.participants is not None and len(set(self.participants)) < len(base):
            each = (
                of_each(x.numpy(force=True).T, self.participants) for x in (values, base, source)
            )
            values, base, source = (torch.from_numpy(x.T) for x in each)
        statistics = Statistics(values, [], index, [self.metric], reduced=False, baseline=base)
        low, high = statistics.bootstrap_ci(of_effect=True, seed=seed)
        frame = index.assign(
            effect=(values - base).mean(-1).numpy(force=True),
            effect_low=low.numpy(force=True),
            effect_high=high.numpy(force=True),
            p_value=statistics.permutation_pvalue(seed=seed).numpy(force=True),
        )
        effects, gaps = (x.double().numpy(force=True) for x in (values - base, source - base))
        weights = resample_weights(effects.shape[1], seed=seed)
        with np.errstate(invalid="ignore", divide="ignore"):
            samples = (weights @ effects.T) / (weights @ gaps)[:, None]
            frame["fraction"] = effects.mean(1) / gaps.mean()
        frame["fraction_low"], frame["fraction_high"] = percentile_bounds(samples)
        choices = {
            name: getattr(self, name)
            for name in ("metric", "direction", "round", "read", "propagate")
        }
        return by_size(frame.assign(**choices, n_episodes=self.values.shape[1]))

    def grid(
        self, component: str, value: Literal["effect", "fraction"] = "fraction"
    ) -> pd.DataFrame:
        """A heat map's table for one component: rows are layers (heads "L1H0", a loop's cycles "block[2]"), columns are
        positions, in order.
        """
        patched = [
            i
            for i, site in enumerate(self.sites)
            if site.component == ALIASES.get(component, component)
        ]
        if not patched:
            raise unknown_name(
                "patched component", component, {site.component for site in self.sites}
            )
        numbers = self.fractions() if value == "fraction" else self.effects.mean(-1)
        rows = []
        for site in (self.sites[i] for i in patched):
            by_layer = site.layer is not None and site.component in COMPONENTS
            head = "" if site.head is None else f"H{site.head}"
            rows.append(f"L{site.layer}{head}" if by_layer else str(replace(site, position=None)))
        columns = [self.sites[i].position or "all" for i in patched]
        table = pd.Series(numbers[patched].numpy(force=True), index=[rows, columns]).unstack()
        return table.loc[list(dict.fromkeys(rows)), list(dict.fromkeys(columns))]

    def plot(self, component: str = "") -> Any:
        """A heat map of the effect of one component by layer and position; the one with the largest when not named."""
        from interp.results import figures  # matplotlib is heavy

        key = component or self.sites[int(self.effects.mean(-1).abs().argmax())].component
        title = f"{self.settings['model']}: {self.direction} at round {self.round}, read at {self.read}\n{key}"
        kind = next(
            (site.kind for site in self.sites if site.component == ALIASES.get(key, key)), None
        )
        rows = "head" if kind and kind.n_heads else "layer" if key in COMPONENTS else "point"
        what, grid = f"effect on {self.metric} ({self.unit})", {title: self.grid(key, "effect")}
        return figures.heatmaps(grid, label=what, xlabel="position", ylabel=rows)

    @property
    def sentence(self) -> str:
        """Which site restores most of the difference."""
        mean, name = self.effects.mean(-1), self.metric.replace("_", " ")
        first = int((mean * self.gap).argmax())
        verb, of = (
            ("restores", "clean")
            if self.direction == "denoising"
            else ("carries over", "corrupted")
        )
        if abs(self.gap) < _NO_GAP:
            return f"The two runs do not differ in {name} at round {self.read}: there is nothing to restore."
        share = f"{float(mean[first]) / self.gap:.0%} of the {name} of the {of} run"
        counted = f" ({self.settings['counted']})" if self.settings["counted"] else ""
        most = f"the most of {len(self.sites)} sites{counted}"
        return f"Patching round {self.round} at {self.sites[first]} {verb} {share}, {most}."


@checked
def sweep(
    model: Machine,
    clean: Episodes,
    corrupted: Episodes,
    round: int,
    *,
    sites: Site | str | Sequence[Site | str] | None = None,
    metric: str | Metric | None = None,
    read: int | None = None,
    direction: str = "denoising",
) -> PatchingResult:
    """Patch each site of a sweep on its own, at one round; the effect runs on to the round that is read.

    Args:
        round: where the patch acts; negative counts from the end.
        sites: what is patched: sites, their texts, or components ("resid_pre"), which stand for every layer, head and
            position (:func:`interp.interventions.sites.chosen`); by default residual stream, attention outputs and
            heads, or every point of a machine that has none of them.
        metric: a key of ``pairs.METRICS``; the logit difference, or the "prediction" of a real number, when None.
        read: the round that is read; the patched one when None.
        direction: "denoising" puts clean activations into the corrupted run, "noising" the reverse.

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
    _measure(metric, direction, model)
    pair = prepare(model, clean, corrupted, round, read)
    warn_if_unrelated(pair)
    return of_pair(pair, sites=sites, metric=metric, direction=direction)


@checked
def of_pair(
    pair: Pair,
    *,
    sites: Site | str | Sequence[Site | str] | None = None,
    metric: str | Metric | None = None,
    direction: str = "denoising",
    propagate: bool = True,
) -> PatchingResult:
    """:func:`sweep` of a pair that is run already (:func:`interp.interventions.pairs.prepare`), at its round.

    Without ``propagate`` later rounds are held at the latents of the run that is patched.
    """
    measure, cells = _measure(metric, direction, pair.model), chosen(pair.model, pair.layout, sites)
    base, source = _sides(pair, direction)

    def read(ran: Outputs) -> Float[Tensor, "cell episode 1 1"]:
        return measure.measure(Readout(ran.predictions[:, :, 0], ran.carried[:, :, 0, 0]), pair)[
            ..., None, None
        ]

    experiment = Experiment(
        model=pair.model,
        run=base,
        edits={f"{i}: {cell}": [Edit.of(cell, source)] for i, cell in enumerate(cells)},
        rounds=[pair.round],
        horizon=pair.read - pair.round,
        readout=read,
        propagate=propagate,
        update=measure.needs_update,
    )
    return PatchingResult(
        sites=tuple(cells),
        values=run(experiment).values[:, :, 0, 0],
        base=measure.measure(pair.readout(base), pair),
        source=measure.measure(pair.readout(source), pair),
        metric=measure.key,
        unit=measure.unit,
        direction=direction,
        round=pair.round,
        read=pair.read,
        propagate=propagate,
        settings=provenance(pair.model, commit=pair.clean.commit, counted=pair.counted),
        participants=participants_of(pair.clean_episodes),
    )


def _measure(metric: str | Metric | None, direction: str, model: Machine) -> Metric:
    require_known("direction", direction, ("denoising", "noising"))
    return find_metric(metric, model.layout)


def _sides(pair: Pair, direction: str) -> tuple[Rollout, Rollout]:
    """The run that is patched, and the run that activations are taken from."""
    return (
        (pair.corrupted, pair.clean) if direction == "denoising" else (pair.clean, pair.corrupted)
    )


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
) -> Tabulated:
    """Patch ``site`` at each of ``rounds`` and read at each of them, from the patched one on.

    The metric is read per round: a regret is that round's loss. The ``size`` is the mean size of the effects of
    episodes, the ``gap`` the unpatched difference, source minus base.
    """
    measure = _measure(metric, direction, model)
    at_rounds = sorted(select_rounds(rounds, clean.n_rounds))
    pair = prepare(model, clean, corrupted, at_rounds[0], at_rounds[-1])
    warn_if_unrelated(pair)
    base, source = _sides(pair, direction)
    at = {t: replace(pair, round=t, read=t) for t in at_rounds}

    def read(ran: Outputs) -> Float[Tensor, "1 episode pair 1"]:
        found = []
        for t, u in experiment.pairs:
            start, lag = at_rounds.index(t), u - t
            seen = Readout(
                ran.predictions[:, :, start, lag : lag + 1], ran.carried[:, :, start, lag]
            )
            found.append(
                measure.measure(seen, at[u]) if u in at else seen.latents[:, :, 0, 0] * torch.nan
            )
        return torch.stack(found, 2).unsqueeze(-1)

    edits = {str(site): [Edit.of(resolve(site, model, pair.layout), source)]}
    experiment = Experiment(
        model, base, edits, at_rounds, at_rounds[-1] - at_rounds[0], "each", read
    )
    found = run(experiment)
    sides = [
        [measure.measure(one.readout(side), one) for one in at.values()] for side in (source, base)
    ]
    gaps = np.stack(
        [(theirs - own).double().numpy(force=True) for theirs, own in zip(*sides, strict=True)]
    )
    frame = found.to_frame().rename(columns={"edited": "patched"}).drop(columns=["edit", "outcome"])
    frame = frame[frame["read"].isin(at_rounds)]
    each = np.abs(
        np.ascontiguousarray(found.effects[0, :, :, 0].double().numpy(force=True).T)
    ).mean(-1)
    size = dict(zip(found.rounds, each.tolist(), strict=True))
    frame["size"] = [size[pair] for pair in zip(frame["patched"], frame["read"], strict=True)]
    frame = frame.assign(gap=frame["read"].map(dict(zip(at_rounds, gaps.mean(1), strict=True))))
    grid = frame.pivot(index="patched", columns="read", values="effect")  # NaN before the patch
    by_lag = np.array([np.diagonal(grid.abs(), lag).mean() for lag in range(len(grid))])
    lasts = int(np.flatnonzero(by_lag >= by_lag.max() / 2)[-1])
    later = f"{lasts} round{'s' * (lasts != 1)} later"
    title, told = (
        f"{model.name}: {site}, round x round",
        f" ({pair.counted})" if pair.counted else "",
    )
    axes = {"label": f"effect on {measure.key}", "xlabel": "read at", "ylabel": "patched at"}
    return Tabulated(
        sentence=f"What is patched at {site} still moves {measure.key} by half of its largest effect {later}{told}.",
        table=frame.assign(site=str(site), metric=measure.key, direction=direction).reset_index(
            drop=True
        ),
        picture=lambda figures: figures.heatmaps({title: grid}, **axes),
        settings=provenance(model, commit=pair.clean.commit, propagate=True, counted=pair.counted),
    )
