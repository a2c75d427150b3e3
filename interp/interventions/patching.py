"""Activation patching with a round axis: replace the activation at one site in one round, and read
the same or a later round.

The *base* is run with one activation taken from the *source*::

    denoising:  base = corrupted, source = clean      (what restores the clean behaviour?)
    noising:    base = clean,     source = corrupted  (what is needed for it?)

``effect = m(patched) - m(base)``; ``fraction = sum(effect) / sum(m(source) - m(base))`` over
episodes: 0 where the patch has no effect and 1 where it carries the whole difference. The fraction
is a ratio of sums, because an episode in which the two runs agree has no fraction; intervals are
bootstraps over episodes.

Effects propagate into later rounds through the carried state. With ``propagate=False``
(:func:`patch_pair`) later rounds read the base's state instead. Clean and corrupted run have different
histories: in the patched round, their states may already differ by what the corruption did before.

:func:`round_map` patches one site in each of many rounds, and reads every later round: it shows how
long the model remembers what was patched. An effect at a site is evidence that the difference
between *these two* inputs passes there, not of what the activation means.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import compress
from typing import Any, Literal, overload

import numpy as np
import pandas as pd
import torch
from jaxtyping import Float
from torch import Tensor
from transformer_lens.patching import PatchingResult as Statistics

from interp.core.algorithm import Episodes, participants_of
from interp.core.machine import Machine
from interp.interventions.experiment import (
    Edit,
    Effects,
    Experiment,
    Outputs,
    Tabulated,
    run,
    sort_by_size,
)
from interp.interventions.pairs import (
    Metric,
    Pair,
    Readout,
    find_metric,
    prepare,
    warn_about_mismatch,
)
from interp.interventions.sites import (
    ALIASES,
    COMPONENTS,
    Places,
    Site,
    head_address,
    resolve_places,
    select_sites,
)
from interp.model.run import Rollout, Rounds, select_rounds
from interp.results.measure import Result
from interp.stats.intervals import average_by_participant, percentile_bounds, resample_weights
from interp.support.checks import checked, checked_result
from interp.support.errors import InputError, require_known, unknown_name
from interp.support.provenance import provenance

NO_GAP = 1e-12
"""A smaller difference between two runs counts as none."""
# A site that restores a smaller share of the difference restores nothing.
_MIN_RESTORED_SHARE = 0.01
_SITE_COLUMNS = ("site", "component", "layer", "head", "position")
_EFFECT_COLUMNS = (
    "effect",
    "effect_low",
    "effect_high",
    "p_value",
    "fraction",
    "fraction_low",
    "fraction_high",
)
_MAX_DRAWN_SITES = 24  # maximum number of sites in the figure of a sweep over several rounds
_Sites = Site | str | Sequence[Site | str]


@dataclass(frozen=True)
@checked_result
@checked
class PatchingResult(Result):
    """Effects of patching: one run of a model (the base) gets the activation of another run (the
    source) at one site in one round. This is done for each site separately.

    Attributes:
        sites: the sites.
        values: metric of the patched runs, ``[site, episode]``. NaN in episodes in which a looped
            model (with a variable number of iterations per round) did not run the site's iteration.
            These episodes are left out of the site's means.
        base: metric of the base run without a patch, ``[episode]``.
        source: metric of the source run, ``[episode]``.
        metric: key of the metric, such as "logit_diff".
        unit: unit of the metric, such as "nats".
        direction: "denoising" (the corrupted run is patched with clean activations) or "noising"
            (the reverse).
        round: index of the patched round.
        read_round: index of the round in which the metric is read.
        propagate: True if rounds after the patched one read the changed state; False if they read
            the state of the unpatched base run.
        settings: settings of the analysis, name and digest of the model, versions of packages.
        participants: index of the participant who played each episode, ``[episode]``; the table
            averages over the episodes of a participant first. Without recorded participants, every
            episode counts as one.
    """

    sites: tuple[Site, ...]
    values: Float[Tensor, "site episode"]
    base: Float[Tensor, " episode"]
    source: Float[Tensor, " episode"]
    metric: str
    unit: str
    direction: str
    round: int
    read_round: int
    propagate: bool
    settings: dict[str, Any] = field(default_factory=dict)
    participants: Any = None

    @property
    def effects(self) -> Float[Tensor, "site episode"]:
        """Metric of the patched runs minus the metric of the unpatched base run,
        ``[site, episode]``.
        """
        return self.values - self.base

    @property
    def gap(self) -> float:
        """Mean of the metric in the source run minus its mean in the base run. Episodes of one
        participant are averaged first.
        :meth:`fractions` divides effects by this number. If the model did not run a site in some
        episodes, the effect of this site is divided by the mean difference in the other episodes.
        """
        _, base, source = self._average_by_participant()
        return float((source - base).mean())

    def fractions(self) -> Float[Tensor, " site"]:
        """Return the effect of each patch as a share of the difference between the runs,
        ``[site]``. It is the mean effect on the metric, divided by the mean difference in the
        metric between source and base run. A patch without an effect has 0, one that carries the
        whole difference 1. Raise an error if the runs do not differ.
        """
        if abs(self.gap) < NO_GAP:
            raise InputError(
                f"clean and corrupted runs do not differ in {self.metric} at round {self.read_round}, so there is no "
                "gap to take a fraction of; use effects, another metric, or a later read_round"
            )
        effects, gaps = self._average_by_site()
        return effects / gaps

    def to_frame(self, *, seed: int = 0) -> pd.DataFrame:
        """Return a table with one row per site, the largest absolute effect first.

        ``effect`` is the metric with the patch minus the metric of the base run without it,
        averaged over episodes. Its 95 % interval is ``effect_low`` to ``effect_high``, and
        ``p_value`` is that of a permutation test against no effect. ``fraction`` (with
        ``fraction_low``, ``fraction_high``) is the effect divided by the mean difference in the
        metric between source and base run. Other columns name the site (``site``, ``component``,
        ``layer``, ``head``, ``position``) and the settings. ``seed`` is that of the bootstrap and
        the permutations.
        """
        frames: list[pd.DataFrame] = []
        # Statistics need equally many episodes per site. So a part has the sites that are counted
        # in the same episodes, with only these episodes.
        for is_in_part, part in self._split_by_counted_episodes():
            frame = part._make_site_rows(seed)
            frames.append(frame.set_index(np.flatnonzero(is_in_part.numpy(force=True))))
        # Sites in their order again, so that it decides between equal effects.
        return sort_by_size(pd.concat(frames).sort_index())

    def _split_by_counted_episodes(self) -> Iterator[tuple[Tensor, PatchingResult]]:
        """Divide the sites into groups: those of one group are counted in the same episodes.

        Yields:
            For each group, a Boolean mask of its sites, and the result with only its sites and
            episodes.
        """
        is_counted = ~self.values.isnan()  # [site, episode]
        for episodes in is_counted.unique(dim=0):
            sites = (is_counted == episodes).all(1)
            yield sites, self._select(sites, episodes)

    def _average_by_site(self) -> tuple[Float[Tensor, " site"], Float[Tensor, " site"]]:
        """Return the mean effect of each site, and the mean difference between source and base over
        the same episodes. Episodes of one participant are averaged first.
        """
        effects = self.base.new_full([len(self.sites)], torch.nan)
        gaps = effects.clone()
        for is_in_part, part in self._split_by_counted_episodes():
            values, base, source = part._average_by_participant()
            effects[is_in_part] = (values - base).mean(-1).to(effects)
            gaps[is_in_part] = (source - base).mean().to(effects)
        return effects, gaps

    def _select(self, is_selected: Tensor, episodes: Tensor) -> PatchingResult:
        """Return the result with only some sites and episodes.

        Args:
            is_selected: Boolean mask of the sites.
            episodes: Boolean mask of the episodes.
        """
        players = self.participants
        if players is not None:
            players = players[episodes.numpy(force=True)]
        return replace(
            self,
            sites=tuple(compress(self.sites, is_selected)),
            values=self.values[is_selected][:, episodes],
            base=self.base[episodes],
            source=self.source[episodes],
            participants=players,
        )

    def _make_site_rows(self, seed: int) -> pd.DataFrame:
        """Return the table's rows, one per site, for a result in which every site is counted in the
        same episodes. ``seed`` is that of the bootstrap and the permutations.
        """
        sites, metric, n_episodes = self.sites, self.metric, self.values.shape[1]
        index = pd.DataFrame({"site": [str(site) for site in sites]})
        for part in _SITE_COLUMNS[1:]:
            index[part] = [getattr(site, part) for site in sites]
        index = index.assign(
            metric=metric,
            direction=self.direction,
            round=self.round,
            read=self.read_round,
            propagate=self.propagate,
            n_episodes=n_episodes,
        )
        if not n_episodes:  # no episode in which the site was run
            return index.assign(**dict.fromkeys(_EFFECT_COLUMNS, np.nan))
        values, base, source = self._average_by_participant()
        statistics = Statistics(
            values,
            axis_names=[],
            index_df=index,
            metric_names=[metric],
            reduced=False,
            baseline=base,
        )
        low, high = statistics.bootstrap_ci(of_effect=True, seed=seed)
        differences = values - base
        p_values = statistics.permutation_pvalue(seed=seed)
        frame = index.assign(
            effect=differences.mean(-1).numpy(force=True),
            effect_low=low.numpy(force=True),
            effect_high=high.numpy(force=True),
        )
        frame["p_value"] = p_values.numpy(force=True)
        # The fraction is a ratio of means; both means are of the same resampled episodes.
        effects = differences.double().numpy(force=True)  # [site, episode]
        gaps = (source - base).double().numpy(force=True)  # [episode]
        weights = resample_weights(effects.shape[1], seed=seed)  # [resample, episode]
        with np.errstate(invalid="ignore", divide="ignore"):
            resampled_gaps = weights @ gaps
            samples = (weights @ effects.T) / resampled_gaps[:, None]
            frame["fraction"] = effects.mean(1) / gaps.mean()
        frame["fraction_low"], frame["fraction_high"] = percentile_bounds(samples)
        # The effects stand between the columns of the site and those of the settings.
        return frame[[*_SITE_COLUMNS, *_EFFECT_COLUMNS, *index.columns[len(_SITE_COLUMNS) :]]]

    def _average_by_participant(self) -> tuple[Tensor, Tensor, Tensor]:
        """Return the metric of the patched runs, ``[site, episode]``, of the base and of the
        source, ``[episode]`` each. If a participant played several episodes, the metric is averaged
        over these, and ``episode`` counts participants.
        """
        metrics = (self.values, self.base, self.source)
        players = self.participants
        if players is None or len(set(players)) == len(self.base):
            return metrics
        # average_by_participant averages over the first axis, so arrays are transposed before and
        # after.
        means = [average_by_participant(x.numpy(force=True).T, players) for x in metrics]
        values, base, source = (torch.from_numpy(mean.T) for mean in means)
        return values, base, source

    def grid(
        self, component: str, value: Literal["effect", "fraction"] = "fraction"
    ) -> pd.DataFrame:
        """Return the table of a heat map for one component, with a row per layer (or head) and a
        column per position. A component is a kind of activation, such as "resid_pre".

        Rows for heads are named like "L1H0", those for the iterations of a loop like "block[2]".

        Args:
            component: name of the component.
            value: "effect" for mean effects on the metric, "fraction" for mean effects divided by
                the mean difference between source and base run.
        """
        key = ALIASES.get(component, component)
        is_patched = [site.component == key for site in self.sites]
        if not any(is_patched):
            known = {site.component for site in self.sites}
            raise unknown_name("patched component", component, known)
        if value == "fraction":
            numbers = self.fractions()
        else:
            numbers, _ = self._average_by_site()
        patched_sites = list(compress(self.sites, is_patched))
        rows = [_name_row(site) for site in patched_sites]
        columns = [site.position or "all" for site in patched_sites]
        series = pd.Series(numbers[is_patched].numpy(force=True), index=[rows, columns])
        # Rows and columns in the order of the sites: unstack() sorts them by name.
        row_order = list(dict.fromkeys(rows))
        column_order = list(dict.fromkeys(columns))
        return series.unstack().loc[row_order, column_order]

    def plot(self, component: str = "") -> Any:
        """Draw heat maps of mean effects by layer (or head) and position, one map per component.
        Return the figure, a :class:`matplotlib.figure.Figure`.

        Args:
            component: name of the only component (kind of activation, such as "resid_pre") to draw;
                empty for all.
        """
        from interp.results import figures  # matplotlib is heavy

        components = [component]
        if not component:
            components = list(dict.fromkeys(site.component for site in self.sites))
        patched = f"{self.direction} at round {self.round}"
        title = f"{self.settings['model']}: {patched}, read at {self.read_round}"
        grids = [self.grid(key, "effect") for key in components]
        # The same columns in all maps, and the title of the figure above the first.
        columns = list(dict.fromkeys(name for grid in grids for name in grid.columns))
        headings = [f"{title}\n{components[0]}", *components[1:]]
        panels = {
            heading: grid.reindex(columns=columns)
            for heading, grid in zip(headings, grids, strict=True)
        }
        label = f"effect on {self.metric} ({self.unit})"
        ylabel = self._name_row_axis(components)
        return figures.heatmaps(panels, label=label, xlabel="position", ylabel=ylabel)

    def _name_row_axis(self, components: Sequence[str]) -> str:
        """Return the label of the vertical axis of heat maps of some components: "head", "layer" or
        "point" (a hook point), joined by "or".
        """
        keys = [ALIASES.get(component, component) for component in components]
        kinds: set[str] = set()
        for site in self.sites:
            if site.component in keys:
                without_heads = "layer" if site.component in COMPONENTS else "point"
                kinds.add("head" if site.kind.n_heads else without_heads)
        return " or ".join(sorted(kinds, reverse=True))

    @property
    def best(self) -> tuple[Site, float]:
        """The pair (site, share) of the patch that carries the largest share of the difference
        between the two runs (:meth:`fractions`).
        """
        shares = self.fractions()
        largest = int(shares.nan_to_num(-torch.inf).argmax())  # NaN: a site that was never run
        return self.sites[largest], float(shares[largest])

    @property
    def sentence(self) -> str:
        """The finding in a sentence: which site's patch restores most of the difference between the
        two runs.
        """
        name = self.metric.replace("_", " ")
        if abs(self.gap) < NO_GAP:
            return f"The two runs do not differ in {name} at round {self.read_round}: there is nothing to restore."
        verb, run_name = "restores", "clean"
        if self.direction == "noising":
            verb, run_name = "carries over", "corrupted"
        counted = self.settings["counted"]  # how many episodes have these rounds; "" if all
        in_parentheses = f" ({counted})" if counted else ""
        n_sites = len(self.sites)
        site, share = self.best
        no_site = f"none of {n_sites} sites"
        comparison = f", the most of {n_sites} sites"
        if n_sites == 1:
            no_site = f"no patch at {site}"
            comparison = ""
        if share <= _MIN_RESTORED_SHARE:
            return (
                f"Patching round {self.round}: {no_site}{in_parentheses} {verb} more than "
                f"{_MIN_RESTORED_SHARE:.0%} of the {name} of the {run_name} run."
            )
        return (
            f"Patching round {self.round} at {site} {verb} {share:.0%} of the {name} of the "
            f"{run_name} run{comparison}{in_parentheses}."
        )


def _name_row(site: Site) -> str:
    """Return the name of a site's row in a heat map, without the position, such as "L1" or
    "L1H0".
    """
    layer, head = site.layer, site.head
    if layer is None or site.component not in COMPONENTS:
        return str(replace(site, position=None))
    if head is None:
        return f"L{layer}"
    return head_address(layer, head)


@dataclass(frozen=True)
@checked_result
@checked
class RoundsResult(Result):
    """Effects of patching each site in each of several rounds. Each run is patched at one site in
    one round.

    Attributes:
        by_round: the effects of the patches in each round, one :class:`PatchingResult` per round,
            in the order of the rounds.
    """

    by_round: tuple[PatchingResult, ...]

    def to_frame(self, *, seed: int = 0) -> pd.DataFrame:
        """Return a table with one row per site and round, the largest absolute effect first.

        The columns are those of :meth:`PatchingResult.to_frame`: ``effect`` of the patch on the
        metric; ``fraction``, the effect divided by the metric's mean difference between the run
        that activations are copied from and the run that is patched; the 95 % intervals of both
        numbers; ``p_value``; and columns that name the site and the settings. ``seed`` is that of
        the bootstrap and the permutations.
        """
        frames = [result.to_frame(seed=seed) for result in self.by_round]
        return sort_by_size(pd.concat(frames, ignore_index=True))

    def fractions(self) -> Float[Tensor, "round site"]:
        """Return the effect of each patch as a share of the difference between the runs,
        ``[round, site]``. It is the mean effect on the metric, divided by the mean difference in
        the metric between source and base run. Raise an error if the runs do not differ in some
        round.
        """
        return torch.stack([result.fractions() for result in self.by_round])

    @property
    def sentence(self) -> str:
        """The finding in a sentence: in which round, and at which site, a patch restores most of
        the difference between the two runs. It is the round with the largest effect, not with the
        largest share, since a share of a small difference may be large.
        """
        differing = [result for result in self.by_round if abs(result.gap) >= NO_GAP]
        if not differing:
            return self.by_round[0].sentence
        # A share times the difference is the effect.
        return max(differing, key=lambda result: result.best[1] * abs(result.gap)).sentence

    def _draw(self, figures: Any) -> Any:
        """Draw a heat map of mean effects, with a row per site and a column per patched round, for
        the sites with the largest effects.
        """
        first = self.by_round[0]
        columns: dict[int, Any] = {}
        for result in self.by_round:
            means, _ = result._average_by_site()
            columns[result.round] = means.numpy(force=True)
        table = pd.DataFrame(columns, index=[str(site) for site in first.sites])
        # Each site's rank by its largest effect, from 1; "first" breaks ties by the order of sites.
        rank = table.abs().max(axis=1).rank(method="first", ascending=False)
        drawn = table[rank <= _MAX_DRAWN_SITES]
        n_drawn, n_sites = len(drawn), len(table)
        title = f"{first.settings['model']}: {first.direction}"
        if n_drawn < n_sites:
            title += f", {n_drawn} of {n_sites} sites"
        label = f"effect on {first.metric} ({first.unit})"
        return figures.heatmaps({title: drawn}, label=label, xlabel="round", ylabel="site")


@overload
def sweep(
    model: Machine,
    clean: Episodes,
    corrupted: Episodes,
    round: int,
    *,
    sites: _Sites | None = None,
    metric: str | Metric | None = None,
    read_round: int | None = None,
    direction: str = "denoising",
) -> PatchingResult: ...


@overload
def sweep(
    model: Machine,
    clean: Episodes,
    corrupted: Episodes,
    round: slice | Sequence[int] | Literal["all"],
    *,
    sites: _Sites | None = None,
    metric: str | Metric | None = None,
    read_round: int | None = None,
    direction: str = "denoising",
) -> RoundsResult: ...


@checked
def sweep(
    model: Machine,
    clean: Episodes,
    corrupted: Episodes,
    round: Rounds,
    *,
    sites: _Sites | None = None,
    metric: str | Metric | None = None,
    read_round: int | None = None,
    direction: str = "denoising",
) -> PatchingResult | RoundsResult:
    """Patch each of several sites separately in one round, and measure the effect in this round or
    a later one. To patch is to put the activation of one run (clean or corrupted) into the other.

    Args:
        model: the model.
        clean, corrupted: paired episodes: the i-th corrupted episode is the i-th clean one with one
            thing changed, as a corruption of the task makes them.
        round: index of the patched round; negative numbers count from the end. With a slice, a list
            or "all", each round is patched separately.
        sites: sites, their texts, or names of components ("resid_pre"), which stand for every
            layer, head and position (:func:`interp.interventions.sites.select_sites`). By default
            the residual stream, attention outputs and heads; for a model without these, every hook
            point.
        metric: a metric of the output, or its key in ``pairs.METRICS``. The default "logit_diff" is
            log P(a) - log P(b), where a is the outcome whose log P is raised most from the
            corrupted to the clean run, and b the one whose log P is lowered most. Both are found
            for each episode, so clean is above corrupted in every one. "correct_logit_diff" is the
            logit of the correct outcome (the label) minus that of the others. If a real number is
            predicted, the default is "prediction".
        read_round: index of the round in which the metric is read; by default the patched one.
        direction: "denoising" puts clean activations into the corrupted run, "noising" the reverse.

    Returns:
        The effects in one round, or those in each round if ``round`` names several.

    Example:
        >>> import interp
        >>> from interp.interventions import patching
        >>> from interp.tasks import experts
        >>> model = interp.load("wma-handwired", n_experts=4)
        >>> episodes = experts.sample(64, 30, 4, seed=0)
        >>> build = experts.TASK.corruption("flip-vote").build
        >>> clean, corrupted = build(episodes, round=20, expert="p_2")
        >>> effects = patching.sweep(model, clean=clean, corrupted=corrupted, round=20)
        >>> effects.grid("resid_pre").shape
        (3, 13)
        >>> patching.sweep(model, clean, corrupted, round=[20, 21], sites="L1H0").fractions().shape
        torch.Size([2, 1])
    """
    _find_measure(metric, direction, model)  # refuses a wrong one before anything is run
    rounds = select_rounds(round, clean.n_rounds)
    if read_round is not None:
        (read_round,) = select_rounds(read_round, clean.n_rounds)
    # Both sides are run once, over all rounds that any patch needs.
    first, last = min(rounds), max(rounds)
    all_rounds = prepare(model, clean, corrupted, first, last if read_round is None else read_round)
    warn_about_mismatch(all_rounds)
    by_round: list[PatchingResult] = []
    for t in rounds:
        pair = replace(all_rounds, round=t, read_round=t if read_round is None else read_round)
        by_round.append(patch_pair(pair, sites=sites, metric=metric, direction=direction))
    return by_round[0] if isinstance(round, int) else RoundsResult(tuple(by_round))


@checked
def patch_pair(
    pair: Pair,
    *,
    sites: _Sites | None = None,
    metric: str | Metric | None = None,
    direction: str = "denoising",
    propagate: bool = True,
) -> PatchingResult:
    """Patch each of several sites separately, in clean and corrupted runs that already exist
    (:func:`sweep` makes the runs first). To patch is to put the activation of one run into the
    other.

    Args:
        pair: the runs, with the round to patch and the round to read
            (:func:`interp.interventions.pairs.prepare`).
        sites: sites, their texts, or names of components; by default residual stream, attention
            outputs and heads.
        metric: a metric or its key; by default "logit_diff", or "prediction" if a real number is
            predicted.
        direction: "denoising" puts clean activations into the corrupted run, "noising" the reverse.
        propagate: True if rounds after the patched one read the changed state; False if they read
            the state of the unpatched run.

    Returns:
        The effects of patching in ``pair.round`` on the metric in ``pair.read_round``.
    """
    measure = _find_measure(metric, direction, pair.model)
    patched_sites = select_sites(pair.model, pair.layout, sites)
    round, read_round = pair.round, pair.read_round
    base, source = _find_sides(pair, direction)

    def read(outputs: Outputs) -> Float[Tensor, "site episode 1 1"]:
        """Return the metric of the patched runs, ``[site, episode, 1, 1]``. The last two axes are
        the pairs (round patched, round read) and the outcomes, of which there is one each.
        """
        # Index 0: the only edited round, and of carried states the only round that is read.
        predictions = outputs.predictions[:, :, 0]  # [site, episode, rounds since the edit, ...]
        latents = outputs.carried[:, :, 0, 0]  # [site, episode, latent, d_model]
        readout = Readout(predictions=predictions, latents=latents)
        return measure.measure(readout, pair)[..., None, None]

    # Numbered, since a site may be listed twice.
    edits = {f"{i}: {site}": [Edit.of(site, source)] for i, site in enumerate(patched_sites)}
    experiment = Experiment(
        model=pair.model,
        run=base,
        edits=edits,
        rounds=[round],
        horizon=read_round - round,
        readout=read,
        propagate=propagate,
        update=measure.needs_update,
    )
    effects = run(experiment)
    of_base = measure.measure(pair.readout(base), pair)
    of_source = measure.measure(pair.readout(source), pair)
    settings = provenance(pair.model, commit=pair.clean.commit, counted=pair.counted)
    values = effects.values[:, :, 0, 0]  # one pair of rounds, one outcome: [site, episode]
    participants = participants_of(pair.clean_episodes)
    return PatchingResult(
        sites=tuple(patched_sites),
        values=values,
        base=of_base,
        source=of_source,
        metric=measure.key,
        unit=measure.unit,
        direction=direction,
        round=round,
        read_round=read_round,
        propagate=propagate,
        settings=settings,
        participants=participants,
    )


def _find_measure(metric: str | Metric | None, direction: str, model: Machine) -> Metric:
    """Return the metric; refuse an unknown direction.

    Args:
        metric: a key, a metric, or None for the default of the model's predictions.
        direction: "denoising" or "noising".
        model: the model, which determines the layout.
    """
    require_known("direction", direction, ("denoising", "noising"))
    return find_metric(metric, model.layout)


def _find_sides(pair: Pair, direction: str) -> tuple[Rollout, Rollout]:
    """Return two runs of a pair: first the base, which is patched, then the source, from which
    activations are copied.

    Args:
        pair: clean and corrupted runs.
        direction: "denoising" (the base is the corrupted run) or "noising" (the base is the clean
            run).
    """
    if direction == "denoising":
        return pair.corrupted, pair.clean
    return pair.clean, pair.corrupted


@checked
def round_map(
    model: Machine,
    clean: Episodes,
    corrupted: Episodes,
    sites: Places,
    *,
    round: Rounds = "all",
    metric: str | Metric | None = None,
    direction: str = "denoising",
) -> Tabulated:
    """Patch some sites together, in each of several rounds separately. For each patched round,
    measure the effect in this round and in every later one of the chosen rounds.

    The metric is computed for each round by itself. The metric "regret", for example, is the loss
    in the round that is read, not the sum since the patch.

    Args:
        model: the model.
        clean, corrupted: paired episodes: the i-th corrupted episode is the i-th clean one with one
            thing changed.
        sites: a site, its text, or several sites that are patched together.
        round: rounds that are patched and read: a slice, a list or "all".
        metric: a metric or its key; by default "logit_diff", or "prediction" if a real number is
            predicted.
        direction: "denoising" puts clean activations into the corrupted run, "noising" the reverse.

    Returns:
        A result with a table that has one row per pair of rounds (``patched``, ``read``).
        ``effect`` is the mean over episodes of the effect on the metric, with its 95 % interval.
        ``size`` is the mean over episodes of the absolute effect. ``gap`` is the mean difference in
        the metric between the two runs in the round that is read, without a patch.
    """
    measure = _find_measure(metric, direction, model)
    rounds = sorted(select_rounds(round, clean.n_rounds))
    pair = prepare(model, clean, corrupted, rounds[0], rounds[-1])
    warn_about_mismatch(pair)
    base, source = _find_sides(pair, direction)
    # For each chosen round, the clean and corrupted runs with the metric of this round alone.
    runs_by_round = {t: replace(pair, round=t, read_round=t) for t in rounds}

    def read(outputs: Outputs) -> Float[Tensor, "1 episode pair 1"]:
        """Return the metric in the patched round and in every later one, ``[edit, episode, pair,
        outcome]``: one edit, one outcome, and all pairs (patched round, read round).
        """
        values: list[Tensor] = []
        for patched_round, read_round in experiment.pairs:
            start, lag = rounds.index(patched_round), read_round - patched_round
            # Outputs are [edit, episode, patched round, lag, ...].
            prediction = outputs.predictions[:, :, start, lag : lag + 1]
            readout = Readout(prediction, outputs.carried[:, :, start, lag])
            if read_round in runs_by_round:
                values.append(measure.measure(readout, runs_by_round[read_round]))
            else:  # a round between the chosen ones: NaN, [1, episode]
                values.append(readout.latents[:, :, 0, 0] * torch.nan)
        return torch.stack(values, 2).unsqueeze(-1)

    places = resolve_places(sites, model, base)
    name = " + ".join(map(str, places))
    edits = [Edit(place, source) for place in places]
    experiment = Experiment(
        model=model,
        run=base,
        edits={name: edits},
        rounds=rounds,
        horizon=rounds[-1] - rounds[0],
        reads="each",
        readout=read,
    )
    gaps: dict[int, float] = {}
    for t, pair_of_round in runs_by_round.items():
        in_source = measure.measure(pair_of_round.readout(source), pair_of_round)
        in_base = measure.measure(pair_of_round.readout(base), pair_of_round)
        difference = (in_source - in_base).double()
        gaps[t] = float(difference.numpy(force=True).mean())
    frame = _make_map_table(run(experiment), gaps)
    grid = frame.pivot(index="patched", columns="read", values="effect")  # NaN before the patch
    n_later = _find_half_effect_lag(frame)
    later = "1 round" if n_later == 1 else f"{n_later} rounds"
    key, counted = measure.key, pair.counted
    in_parentheses = f" ({counted})" if counted else ""
    title = f"{model.name}: {name}, round x round"
    axes = {"label": f"effect on {key}", "xlabel": "read at", "ylabel": "patched at"}
    sentence = (
        f"What is patched at {name} still moves {key} by half of its largest effect {later} later"
        f"{in_parentheses}."
    )
    if not frame["effect"].any():
        sentence = f"What is patched at {name} moves {key} in no round{in_parentheses}."
    frame = frame.assign(site=name, metric=key, direction=direction)
    settings = provenance(model, commit=pair.clean.commit, propagate=True, counted=counted)
    return Tabulated(
        sentence=sentence,
        table=frame,
        picture=lambda figures: figures.heatmaps({title: grid}, **axes),
        settings=settings,
    )


def _make_map_table(effects: Effects, gaps: dict[int, float]) -> pd.DataFrame:
    """Make the table of :func:`round_map`, with one row per pair (round patched, round read).

    Args:
        effects: the effects of the patch, for every pair of rounds.
        gaps: round -> mean metric of the source minus that of the base. Pairs are left out if the
            round that is read is not among its keys.

    Returns:
        Columns for the two rounds, the mean effect with its 95 % interval, the mean absolute effect
        of an episode (``size``), and ``gap``.
    """
    frame = effects.to_frame().rename(columns={"edited": "patched"})
    frame = frame.drop(columns=["edit", "outcome"])
    frame = frame[frame["read"].isin(list(gaps))]
    # Index 0: the only edit and the only outcome. [episode, pair]
    episode_effects = effects.effects[0, :, :, 0].double().numpy(force=True)
    # Copied so that the numbers of each pair lie together in memory: the last digit of a sum
    # depends on the order in which NumPy adds.
    sizes = np.abs(np.ascontiguousarray(episode_effects.T)).mean(-1)
    size_by_rounds = dict(zip(effects.rounds, sizes.tolist(), strict=True))
    patched, read = frame["patched"], frame["read"]
    frame["size"] = [size_by_rounds[pair] for pair in zip(patched, read, strict=True)]
    return frame.assign(gap=read.map(gaps)).reset_index(drop=True)


def _find_half_effect_lag(frame: pd.DataFrame) -> int:
    """Return how long a patch stays effective: the largest number of rounds after the patch at
    which the mean absolute effect is at least half of its maximum.

    Args:
        frame: the table of :func:`round_map`, with one row per pair (round patched, round read).
    """
    lags = frame["read"] - frame["patched"]
    by_lag = frame["effect"].abs().groupby(lags).mean()
    is_large = by_lag >= by_lag.max() / 2
    return int(by_lag.index[is_large].max())
