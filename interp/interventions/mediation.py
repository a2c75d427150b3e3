"""Mediation: which share of an effect passes through chosen attention patterns, head or MLP
outputs, gates or cycles of a loop.

A *cause* is a site in a base round that is set to its value in the source round. *Mediators* are
sites between the cause and the outcome. ``blocked`` is the share of the effect that is lost if the
mediators are frozen at their base values. ``carried`` is the share that arises if only the
mediators are set to the values that the cause gives them. Shares of single mediators need not add
up. A share shows how a computation is wired, not what happens in normal use: compare it with that
of an untrained model. The formulas are in docs/method/mediation.md.

    >>> import interp
    >>> from interp.interventions import mediation
    >>> from interp.tasks import experts
    >>> model = interp.load("wma-handwired", n_experts=3)
    >>> base, source = (experts.sample(8, 6, 3, seed=seed) for seed in (0, 1))
    >>> through = mediation.paths(model, "pattern", "p?")                 # every head's attention from p?
    >>> result = mediation.mediate(model, base, source, "latent@<z>", through, round=[4, 5])
    >>> round(result.blocked().estimate, 9), round(result.carried().estimate, 9)       # all heads jointly
    (1.0, 1.0)
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, partial
from typing import Any

import numpy as np
import pandas as pd
import torch
from jaxtyping import Float, Int
from numpy.typing import NDArray
from torch import Tensor

from interp.core.algorithm import Episodes, participants_of
from interp.core.machine import Machine
from interp.interventions.experiment import (
    Edit,
    Experiment,
    Outcome,
    Rows,
    make_interval_table,
    run,
    run_one_round,
    sort_by_size,
)
from interp.interventions.pairs import paired_runs
from interp.interventions.sites import COMPONENTS, Places, Site, resolve_places, resolve_site
from interp.interventions.sites import sites as every_site
from interp.model.layout import RoundLayout
from interp.model.run import Rollout, Rounds, select_rounds
from interp.results.measure import Result
from interp.stats.intervals import Interval, ratio_interval
from interp.support.checks import checked, checked_fields, checked_result, integer, refuse_endless
from interp.support.errors import InputError, require, require_known
from interp.support.provenance import provenance

_Sites = tuple[Site, ...]
_AxisIndex = slice | int | list[int]
# Time of computation: layer (-1 before the first), and order of the component within the layer.
_Time = tuple[int, int]
_Span = tuple[int, int]  # first and last position of a site

_ORDER_IN_LAYER = {key: i for i, key in enumerate(COMPONENTS)}


@dataclass(frozen=True, eq=False)
@checked_fields
class Routes:
    """Decides which sites lie between the causes (the sites that are set to their values in the
    source) and the outcome that is read.

    In a transformer, a change at a site affects later components at the same position and, through
    attention, later positions. So layers and positions determine what lies between. In any other
    model, a change may affect every hook point that a round computes later, and each of these may
    affect the outcome. A site that lies between may still have no effect.

    Attributes:
        model: the model.
        layout: token layout of the round.
        causes: the sites that are set to their values in the source.
        outcome: "prediction" or "update" (of the carried state).
        hook_times: name of a hook -> its time within a round, for a model that is not a
            transformer.
    """

    model: Machine
    layout: RoundLayout
    causes: Sequence[Site]
    outcome: str
    hook_times: Mapping[str, int] | None = None

    @property
    def outcome_position(self) -> int:
        """The position at which the outcome is read."""
        layout = self.layout
        return layout.predict_position if self.outcome == "prediction" else layout.update_position

    def require_mediators(self, sites: Sequence[Site | str]) -> _Sites:
        """Check that each site lies between the causes and the outcome, and return the sites
        without duplicates.

        Args:
            sites: sites or texts of sites.
        """
        resolved = [resolve_site(site, self.model, self.layout) for site in sites]
        mediators = tuple(dict.fromkeys(resolved))
        require(
            mediators,
            "no mediators were given; mediation.paths(model, 'pattern', 'p?') lists some",
        )
        causes = " + ".join(map(str, self.causes))
        end = self.layout.labels[self.outcome_position]
        for site in mediators:
            name = str(site)
            require(
                _exclude_overlapping([site], self.causes, self.layout),
                f"{name!r} is a cause ({causes}) and cannot mediate its effect; choose a site after it",
            )
            if not self.is_downstream(site):
                raise InputError(
                    f"mediator {name!r} is not downstream of the cause {causes!r}, which acts on "
                    f"{self._describe_downstream()}"
                )
            require(
                self.is_upstream(site),
                f"mediator {name!r} cannot act on the {self.outcome}, which is read at {end!r} after the last "
                f"layer; choose a site at {end!r}, or an earlier position before the last layer's attention",
            )
        return mediators

    def _describe_downstream(self) -> str:
        """Return what the causes can affect, in words."""
        if self.hook_times is None:
            return (
                "later components of its own position and, through attention, on later positions; "
                "choose one of these"
            )
        all_sites = every_site(self.model, self.layout, self.model.points, None)
        later = ", ".join(str(site) for site in all_sites if self.is_downstream(site))
        return f"what a round computes after it: {later or 'nothing'}"

    def is_downstream(self, site: Site) -> bool:
        """Return whether some cause can affect the site."""
        time, span = self._find_time_and_span(site)
        return any(
            _can_affect(*self._find_time_and_span(cause), time, span) for cause in self.causes
        )

    def is_upstream(self, site: Site) -> bool:
        """Return whether the site can affect the outcome. True for every site of a model that is
        not a transformer.
        """
        times, position = self.hook_times, self.outcome_position
        # The outcome is read after everything else: in a further layer.
        last = self.model.points["resid_post"].n_layers if times is None else len(times)
        return _can_affect(*self._find_time_and_span(site), (last, 0), (position, position))

    def draw_others(self, case: _Sites, mediators: _Sites, seed: Sequence[int]) -> _Sites:
        """Draw random other sites between the causes and the outcome: as many as in ``case``, of
        the same components, but no mediators.

        Fewer are drawn if there are no more. A model that is not a transformer may have only one
        site of a component. If there is no other one, a site of any other hook point is drawn.

        Args:
            case: the sites to match.
            mediators: sites that are left out.
            seed: seed of the draw.
        """
        generator = np.random.default_rng(seed)
        # Key: (component, whether a site is all heads, whether it is all positions together); value:
        # number of sites of this kind to draw.
        kinds = Counter((site.component, site.head is None, site.position is None) for site in case)
        drawn: list[Site] = []
        n_of_any_point = 0
        for (component, all_heads, everywhere), n in kinds.items():
            candidates = self._list_pool(component, all_heads=all_heads, everywhere=everywhere)
            pool = _exclude_overlapping(candidates, mediators, self.layout)
            drawn += _draw(pool, n, generator)
            # A model that is not a transformer may have no other site of this component.
            if not pool and self.hook_times is not None:
                n_of_any_point += n
        if n_of_any_point:
            any_point: list[Site] = []
            for component in self.model.points:
                any_point += self._list_pool(component, all_heads=False, everywhere=True)
            pool = _exclude_overlapping(any_point, (*mediators, *drawn), self.layout)
            drawn += _draw(pool, n_of_any_point, generator)
        return tuple(drawn)

    @cache  # noqa: B019  (routes live as long as one call)
    def _list_pool(self, component: str, all_heads: bool, everywhere: bool) -> list[Site]:
        """Return every site of a component that lies between the causes and the outcome.

        Args:
            component: name of the component.
            all_heads: whether a site is all heads together.
            everywhere: whether a site is all positions together.
        """
        pool = every_site(self.model, self.layout, component, None if everywhere else "all")
        if all_heads:
            pool = [replace(site, head=None) for site in pool]
        sites = _exclude_overlapping(list(dict.fromkeys(pool)), self.causes, self.layout)
        return [site for site in sites if self.is_downstream(site) and self.is_upstream(site)]

    def _find_time_and_span(self, site: Site) -> tuple[_Time, _Span]:
        """Return the time at which a site is computed, as (layer, order within the layer), and its
        (first position, last position).
        """
        layout, kind = self.layout, site.kind
        if self.hook_times is not None:
            # Not a transformer: each point may act on every later one, whatever its positions.
            return (self.hook_times[site.hook], 0), (0, layout.n_positions - 1)
        layer = -1 if site.layer is None else site.layer  # -1: before the first layer
        positions = np.arange(layout.n_positions)
        if kind.axes == "latent":
            positions = np.array(layout.latent_positions)  # of each row of the carried state
        # The positions that the site's index selects on its axis; all of them for a slice.
        axis = kind.position_axis or 1  # rows of the carried state follow the batch
        index = site.index(layout)[axis]
        covered = np.atleast_1d(positions[index])
        return (layer, _ORDER_IN_LAYER[site.component]), (int(covered[0]), int(covered[-1]))


def _draw(pool: Sequence[Site], n: int, generator: np.random.Generator) -> list[Site]:
    """Draw random sites from a pool, and return them in the pool's order.

    Args:
        pool: the sites.
        n: number of sites; fewer if the pool is smaller.
        generator: random generator.
    """
    drawn = generator.permutation(len(pool))[:n]
    return [pool[i] for i in sorted(drawn)]


def _exclude_overlapping(
    pool: Sequence[Site], known: Sequence[Site], layout: RoundLayout
) -> list[Site]:
    """Return those of some sites that have no activation in common with any of some other sites.

    Args:
        pool: the sites to select from.
        known: the other sites.
        layout: the token layout of the rounds.
    """
    return [
        site for site in pool if not any(_overlap(site, known_site, layout) for known_site in known)
    ]


def _can_affect(start: _Time, start_span: _Span, end: _Time, end_span: _Span) -> bool:
    """Return whether an activation that is computed at one time and at some positions can affect
    another activation, in a transformer.

    Args:
        start, end: time (layer, order of the component within the layer) of the first and of the
            second activation.
        start_span, end_span: (first position, last position) of the first and of the second
            activation.

    >>> z, mlp_out = _ORDER_IN_LAYER["z"], _ORDER_IN_LAYER["mlp_out"]
    >>> _can_affect((1, z), (3, 3), (1, mlp_out), (3, 3))             # within its own position
    True
    >>> _can_affect((1, z), (3, 3), (1, mlp_out), (5, 5))             # after the attention of layer 1: too late
    False
    >>> _can_affect((0, z), (3, 3), (1, mlp_out), (5, 5))
    True
    """
    share_position = start_span[0] <= end_span[1] and end_span[0] <= start_span[1]
    if start < end and share_position:
        return True
    # Later positions see it through keys and values: in its own layer if it comes before them, else
    # in the next layer. A query acts at its own position only.
    layer, component = start
    is_before_attention = component <= _ORDER_IN_LAYER["v"] and component != _ORDER_IN_LAYER["q"]
    # (Layer -1 is before the first: its activations are read by the attention of layer 0.)
    attention_layer = max(layer, 0) if is_before_attention else layer + 1
    has_later_position = start_span[0] < end_span[1]
    # The second activation must be that layer's attention scores, or come after them.
    return has_later_position and (attention_layer, _ORDER_IN_LAYER["scores"]) <= end


def _overlap(first: Site, second: Site, layout: RoundLayout) -> bool:
    """Return True if two sites have an activation in common.

    Args:
        first, second: the sites.
        layout: the token layout of the rounds.
    """
    if first.hook != second.hook:
        return False
    by_axis = zip(first.index(layout), second.index(layout), strict=True)
    return all(_share_entry(first_index, second_index) for first_index, second_index in by_axis)


def _share_entry(first: _AxisIndex, second: _AxisIndex) -> bool:
    """Return whether two indices of an axis select some entry in common. A slice selects all."""
    if isinstance(first, slice) or isinstance(second, slice):
        return True
    return np.intersect1d(first, second).size > 0


# A total effect smaller than this counts as none; in units of the rounding of the outcome.
_SMALLEST_EFFECT = 100


@dataclass(frozen=True)
@checked_result
@checked
class MediationResult(Result):
    """Which shares of a cause's effect on an outcome pass through each mediator, and through all
    mediators together (the last entry, named "all"). The cause and the mediators are sites:
    activations in a round.

    An effect is a vector: the change of the outcome's numbers in one episode and round. TE is the
    total effect of setting the cause. DE is the effect of setting the cause while the mediator is
    frozen at its base value. IE is the effect of setting only the mediator, to the value that it
    takes when the cause is set. <x, y> is the scalar product.

    Attributes:
        cause: the sites of the cause, as texts.
        outcome: key of the outcome.
        mediators: names of the mediators; the last is "all".
        total: squared size of the total effect, <TE, TE>, summed over the rounds of an episode,
            ``[episode]``.
        lost: <TE - DE, TE>, summed over the rounds of an episode, ``[mediator, episode]``. Divided
            by ``total``, it is the share that is lost if the mediator is frozen.
        brought: <IE, TE>, summed over the rounds of an episode, ``[mediator, episode]``. Divided by
            ``total``, it is the share that the mediator brings about alone.
        moved: share of rows (a row is a round of an episode) in which the cause changes the
            mediator at all, ``[mediator]``.
        random: the control: the same two shares for random other sites in place of the mediator,
            ``[mediator, draw, 2]``. Index 0 of the last axis is the share that is lost if these
            sites are frozen, index 1 the share that they bring about alone. Both are already
            divided by the total. Each draw has one site for each site of the mediator, of the same
            component (kind of activation); "all" has as many sites as there are mediators. If the
            model has no other site of this component, sites of any component were drawn;
            ``settings["random_of_any_point"]`` lists the mediators for which this was so.
        n_random_sites: number of sites in each random draw, ``[mediator]``: 1 for a single
            mediator, and the number of mediators for "all". It is smaller if the model has no more
            sites.
        n_pairs: number of rows: rounds of all episodes.
        reason: why there are no shares, which are then NaN; empty if there are shares.
        settings: settings of the analysis, name and digest of the model, versions of packages.
        participants: index of the participant who played each episode, ``[episode]``; intervals
            resample participants. Without recorded participants, every episode counts as one.
    """

    cause: tuple[str, ...]
    outcome: str
    mediators: tuple[str, ...]
    total: Float[np.ndarray, " episode"]
    lost: Float[np.ndarray, "mediator episode"]
    brought: Float[np.ndarray, "mediator episode"]
    moved: Float[np.ndarray, " mediator"]
    random: Float[np.ndarray, "mediator draw 2"]
    n_random_sites: Int[np.ndarray, " mediator"]
    n_pairs: int
    reason: str = ""
    settings: dict[str, Any] = field(default_factory=dict)
    participants: Any = None

    def blocked(self, mediator: str = "all") -> Interval:
        """Return the share of the effect that is lost if a mediator is frozen at its base value,
        ``sum lost / sum total`` over episodes, with its 95 % interval.

        Args:
            mediator: name of the mediator; "all" for all together.
        """
        return self._share(self.lost, mediator)

    def carried(self, mediator: str = "all") -> Interval:
        """Return the share of the effect that a mediator brings about alone,
        ``sum brought / sum total`` over episodes, with its 95 % interval. The cause is not set
        then, but the mediator takes the value that it has when the cause is set.

        Args:
            mediator: name of the mediator; "all" for all together.
        """
        return self._share(self.brought, mediator)

    def _share(self, parts: Float[np.ndarray, "mediator episode"], mediator: str) -> Interval:
        """Return a share of the effect with its interval over episodes; NaN if there is no effect.

        Args:
            parts: :attr:`lost` or :attr:`brought`, the numerator of the share.
            mediator: name of the mediator.
        """
        require_known("mediator", mediator, self.mediators, limit=40)
        numerator = parts[self.mediators.index(mediator)]  # [episode]
        # ``reason`` says why there is no effect, if there is none. The total is then only rounding
        # error; it is replaced by 0, so that the share is NaN.
        total = np.zeros_like(self.total) if self.reason else self.total
        seed = self.settings.get("seed", 0)
        return ratio_interval(numerator, total, seed=seed, participants=self.participants)

    @property
    def sentence(self) -> str:
        """The finding in a sentence: the share of the effect that passes through all mediators, and
        the mediator that carries most.
        """
        if self.reason:
            return f"{self.reason.capitalize()}."
        # Without the last, "all".
        shares = {name: self.carried(name).estimate for name in self.mediators[:-1]}
        largest = ""
        if len(shares) > 1:
            best = max(shares, key=lambda name: shares[name])
            largest = f", most of it through {best} ({shares[best]:.0%})"
        cause, share = " + ".join(self.cause), f"{self.carried().estimate:.0%}"
        return f"{share} of the effect of {cause} on the {self.outcome} passes through the mediators{largest}."

    def _draw(self, figures: Any) -> Any:
        """Draw for every mediator two shares of the effect, with their 95 % intervals: the share
        that is lost if it is frozen ("blocked"), and the share that it brings about alone
        ("carried").
        """
        rows: dict[str, Interval] = {}
        for name in self.mediators:
            rows[f"blocked: {name}"] = self.blocked(name)
            rows[f"carried: {name}"] = self.carried(name)
        return figures.intervals(
            make_interval_table(rows), xlabel=f"share of the effect on the {self.outcome}"
        )

    def to_frame(self) -> pd.DataFrame:
        """Return a table with one row per mediator and one for all together ("all").

        ``blocked`` is the share of the effect that is lost if the mediator is frozen, and
        ``carried`` the share that it brings about alone, with 95 % intervals (``blocked_low``,
        ...). ``random_blocked`` and ``random_carried`` are the means of these shares for random
        other sites. ``moved`` is the share of the rounds of all episodes in which the cause changes
        the mediator. ``effect`` is the root mean square of the total effect. The largest absolute
        ``carried`` comes first.
        """
        size = float(np.sqrt(self.total.sum() / self.n_pairs))
        rows = [self._make_row(i, size) for i in range(len(self.mediators))]
        return sort_by_size(pd.DataFrame(rows), "carried")

    def _make_row(self, i: int, size: float) -> dict[str, Any]:
        """Return the table's row of one mediator.

        Args:
            i: index of the mediator.
            size: root mean square of the effect.
        """
        mediator = self.mediators[i]
        random_blocked, random_carried = float("nan"), float("nan")
        if self.random.shape[1]:  # [mediator, draw, blocked or carried]
            random_blocked, random_carried = self.random[i].mean(0).tolist()
        blocked, carried = self.blocked(mediator), self.carried(mediator)
        share_moved = float(self.moved[i])
        n_random_sites = int(self.n_random_sites[i])
        return {
            "cause": " + ".join(self.cause),
            "outcome": self.outcome,
            "mediator": mediator,
            **blocked.columns("blocked"),
            "random_blocked": random_blocked,
            **carried.columns("carried"),
            "random_carried": random_carried,
            "moved": share_moved,
            "n_random_sites": n_random_sites,
            "effect": size,
            "n_pairs": self.n_pairs,
            "reason": self.reason,
        }


@checked
def paths(model: Machine, component: str, position: str | None = None) -> list[Site]:
    """Return one site for each layer and head of a component (a kind of activation, such as "z",
    the output of heads).

    Args:
        model: the model.
        component: name of the component, such as "z", "pattern" or "mlp_out".
        position: label of a position (for an attention pattern, that of the query); None for all
            positions together.

    >>> import interp
    >>> model = interp.load("wma-learned")
    >>> len(paths(model, "z", "w?")), str(paths(model, "mlp_out")[0])
    (16, 'mlp_out[0]')
    """
    return every_site(model, components=component, positions=position)


@dataclass(frozen=True)
@checked_fields
class Split:
    """Settings of :func:`mediate`: with how many controls shares are measured.

    The control of a mediator has the same shares for other sites, which are drawn at random among
    those of its component (kind of activation). If a model that is not a transformer has no other
    site of this component, sites of any component are drawn. The mediators for which this was so
    are listed in ``settings["random_of_any_point"]`` of the result.

    Attributes:
        n_random: number of random draws for the control; 0 for no control. A draw has one site
            for a single mediator, and one per mediator for all of them together.
        seed: seed of the draws and of the bootstrap.
    """

    n_random: int = 4
    seed: int = 0

    def __post_init__(self) -> None:
        refuse_endless("n_random", integer("n_random", self.n_random, 0))


@checked
def mediate(
    model: Machine,
    base: Episodes | Rollout,
    source: Episodes | Rollout,
    sites: Places,
    mediators: Site | str | Sequence[Site | str],
    *,
    outcome: str | Outcome = "prediction",
    round: Rounds = "all",
    split: Split = Split(),
) -> MediationResult:
    """Measure which share of a cause's effect on an outcome passes through each mediator, and
    through all of them together. Cause and mediators are sites: activations in a round.

    Args:
        model: the model.
        base, source: episodes of the same sizes, or the model's rollouts of them. The i-th base
            episode is paired with the i-th source episode. In a base round, the cause is set to its
            value in the same round of the source episode.
        sites: the cause: sites, or places (subspaces of the activations at sites). All are set
            together.
        mediators: sites between the cause and the outcome; :func:`paths` lists those of a
            component.
        outcome: "prediction" (the predicted distribution), "state" (what the round writes into the
            algorithm's state), or "latents" (the whole carried state after the round). If a model
            adds updates to its latents, a cause in the latents affects "state" and "latents"
            directly, without any mediator.
        round: rounds in which the cause is set, each separately: an int, a slice, a list or "all".
        split: settings: with how many controls shares are measured.

    Returns:
        Two shares of the effect for each mediator, and for all together. ``blocked`` is the share
        that is lost if the mediator is frozen, and ``carried`` the share that arises if only the
        mediator is set. The controls are the same shares for random other sites.
    """
    swap = _CauseSwap(model, base, source, sites, outcome, round)
    if isinstance(mediators, Site | str):
        mediators = [mediators]
    seed, n_random, routes = split.seed, split.n_random, swap.routes
    all_mediators = routes.require_mediators(mediators)
    # A case is a set of sites that is measured: each mediator alone, and all of them together.
    cases = [*((site,) for site in all_mediators), all_mediators]
    names = (*map(str, all_mediators), "all")
    draws_by_case: list[list[_Sites]] = []
    with_other_components: list[str] = []
    for name, case in zip(names, cases, strict=True):
        draws = [routes.draw_others(case, all_mediators, (seed, i)) for i in range(n_random)]
        draws_by_case.append(draws)
        components = {site.component for site in case}
        if any(site.component not in components for sites in draws for site in sites):
            with_other_components.append(name)
    controls = [drawn for draws in draws_by_case for drawn in draws if drawn]
    sums = swap.measure(list(dict.fromkeys([*cases, *controls])))  # equal sets once
    # [case, draw, blocked or carried], also if there are no draws
    random_shares = [sums.shares(drawn) for draws in draws_by_case for drawn in draws]
    random = np.array(random_shares).reshape(len(cases), n_random, 2)
    total = sums.total
    n_pairs = len(total)
    # Rows are ordered by episode, then by round: sum over each episode's rounds.
    starts = range(0, n_pairs, len(swap.rounds))
    per_episode = partial(np.add.reduceat, indices=starts, axis=-1)
    lost = [sums.lost[case] for case in cases]
    brought = [sums.brought[case] for case in cases]
    share_moved = np.array([sums.share_moved[case] for case in cases])
    n_random_sites = np.array([max(map(len, draws), default=0) for draws in draws_by_case])
    reason = ""
    if sums.is_null:
        reason = "there is no effect to mediate: the total effect of the cause is 0"
    base_run, _ = swap.runs
    settings = {**swap.settings, "commit": base_run.commit, "n_random": n_random, "seed": seed}
    if with_other_components:
        settings["random_of_any_point"] = with_other_components
    causes = tuple(map(str, swap.causes))
    participants = participants_of(base_run.episodes)
    return MediationResult(
        cause=causes,
        outcome=swap.outcome.key,
        mediators=names,
        total=per_episode(total),
        lost=per_episode(lost),
        brought=per_episode(brought),
        moved=share_moved,
        random=random,
        n_random_sites=n_random_sites,
        n_pairs=n_pairs,
        reason=reason,
        settings=settings,
        participants=participants,
    )


@dataclass(frozen=True)
class _EffectSums:
    """Scalar products of effects in each row (pair of episode and round), for several sets of
    sites. TE is the total effect of the cause, DE its effect with the sites frozen, IE the effect
    of setting only the sites.

    Attributes:
        total: <TE, TE> of each row.
        lost: set of sites -> <TE - DE, TE> of each row.
        brought: set of sites -> <IE, TE> of each row.
        share_moved: set of sites -> share of rows in which the cause changes them.
        is_null: whether the total effect is 0 up to rounding.
    """

    total: Float[np.ndarray, " row"]
    lost: dict[_Sites, Float[np.ndarray, " row"]]
    brought: dict[_Sites, Float[np.ndarray, " row"]]
    share_moved: dict[_Sites, float]
    is_null: bool

    def shares(self, case: _Sites) -> tuple[float, float]:
        """Return two shares of the total effect for the set of sites ``case``: (blocked, carried).

        Blocked is <TE - DE, TE> / <TE, TE> and carried is <IE, TE> / <TE, TE>, where every scalar
        product is summed over all rows. Both are NaN without an effect or without sites.
        """
        if self.is_null or not case:
            return float("nan"), float("nan")
        total = self.total.sum()
        lost, brought = self.lost[case].sum(), self.brought[case].sum()
        return float(lost / total), float(brought / total)


class _CauseSwap:
    """Sets the causes in base rounds to their values in source rounds, and measures the effect on
    an outcome.

    Args:
        model: the model.
        base, source: paired episodes, or rollouts of them.
        sites: the causes, which are set together.
        outcome: "prediction", "state", "latents", or an outcome with a decoder.
        round: rounds in which the causes are set, each separately.

    Attributes:
        runs: the base and the source rollout.
        routes: decides which sites lie between the causes and the outcome.
    """

    def __init__(
        self,
        model: Machine,
        base: Episodes | Rollout,
        source: Episodes | Rollout,
        sites: Places,
        outcome: str | Outcome,
        round: Rounds,
    ) -> None:
        """Run base and source, and find which sites can lie between the causes and the outcome."""
        outcome = Outcome.from_key(outcome)
        is_decoded = outcome.decode is not None
        require(
            outcome.key != "state" or is_decoded or model.is_handwired,
            f"{model.name!r} is a learned model: its state has no exact readout; give outcome=Outcome('state', decode) "
            "with a fitted interp.stats.decoder.Decoder, or ask for outcome='latents'",
        )
        base_run, source_run = paired_runs(model, base, source, "mediation")
        causes = resolve_places(sites, model, base_run)
        rounds = select_rounds(round, base_run.n_rounds)
        self.model = model
        self.outcome = outcome
        self.runs = base_run, source_run
        self.causes = causes
        self.cause_edits = [Edit(place, source_run) for place in causes]
        self.rounds = rounds
        self.settings = provenance(model, rounds=rounds, decoded=is_decoded)
        self.routes = Routes(
            model=model,
            layout=base_run.layout,
            causes=[place.site for place in causes],
            # "state", "latents" and decoded outcomes are read from the updated state.
            outcome="prediction" if outcome.key == "prediction" else "update",
            hook_times=_find_hook_times(model, base_run),
        )

    def run(
        self, edits: dict[str, list[Edit]], watched: Sequence[Site] = ()
    ) -> tuple[Tensor, Sequence[Mapping[Site, Tensor]]]:
        """Edit the base rounds, and return the outcomes.

        Args:
            edits: name -> edits that are made together.
            watched: sites whose activations are returned.

        Returns:
            Outcomes ``[edit, row, value]``, with a row for each pair of episode and round; and for
            each edit the activations at the watched sites.
        """
        experiment = Experiment(
            model=self.model,
            run=self.runs[0],
            edits=edits,
            rounds=self.rounds,
            readout=self.outcome,
            commit="target",  # the recorded choice, also if the edited model would choose otherwise
            watched=watched,
        )
        effects = run(experiment).require_all_edits("mediation")
        return effects.values.flatten(1, 2), effects.activations

    def measure(self, sets: Sequence[_Sites]) -> _EffectSums:
        """For each set of sites, measure the effect of the cause with these sites frozen, and the
        effect of setting only these sites; also the total effect.

        Args:
            sets: the sets of sites.
        """
        all_sites = tuple(dict.fromkeys(site for sites in sets for site in sites))
        without_and_with_cause = {"without": [], "with": self.cause_edits}
        # Each of the two lists has an item without the cause, and one with it. Outcomes are [row,
        # value], where a row is an episode and a round; activations are site -> [episode, round, ...].
        outcomes, activations = self.run(without_and_with_cause, all_sites)
        outcome_without, outcome_with = outcomes
        sites_without, sites_with = activations
        effect = outcome_with - outcome_without
        changed: dict[Site, NDArray[np.bool_]] = {}  # in which rows the cause changes the site
        for site in all_sites:
            is_same = torch.isclose(sites_with[site], sites_without[site]).flatten(2).all(2)
            changed[site] = ~is_same.flatten().numpy(force=True)
        lost: dict[_Sites, NDArray[Any]] = {}
        brought: dict[_Sites, NDArray[Any]] = {}
        share_moved: dict[_Sites, float] = {}
        for sites in sets:
            freeze = [Edit.of(site, sites_without[site]) for site in sites]
            set_as_with_cause = [Edit.of(site, sites_with[site]) for site in sites]
            values, _ = self.run(
                {"direct": [*self.cause_edits, *freeze], "indirect": set_as_with_cause}
            )
            direct, indirect = values - outcome_without
            # Projected on the whole effect: what is lost if the sites are frozen, and what they
            # bring about alone.
            lost[sites] = _compute_products(effect - direct, effect)
            brought[sites] = _compute_products(indirect, effect)
            is_moved = np.any([changed[site] for site in sites], axis=0)
            share_moved[sites] = float(is_moved.mean())
        total = _compute_products(effect, effect)
        epsilon = torch.finfo(self.runs[0].latents.dtype).eps
        rounding = _SMALLEST_EFFECT * epsilon * float(outcome_without.abs().max())
        is_null = bool(np.sqrt(total.mean()) <= rounding)
        return _EffectSums(
            total=total, lost=lost, brought=brought, share_moved=share_moved, is_null=is_null
        )


def _find_hook_times(model: Machine, run: Rollout) -> dict[str, int] | None:
    """Find the order in which a round computes the hook points of a model, by running one round.

    Args:
        model: the model.
        run: a rollout of the model.

    Returns:
        Name of a hook point -> its place in the order; None for a transformer.
    """
    stream = model.points.get("resid_post")
    if stream is not None and stream.hook == COMPONENTS["resid_post"].hook:  # a transformer
        return None
    points = every_site(model, run.layout, list(model.points), positions=None)
    # One row, round 0 of the first episode, suffices to see the order.
    rows_of_round_0 = Rows.of(run, rounds=[0])  # one row per episode
    first_row = rows_of_round_0.part(slice(1))
    _, activations = run_one_round(model, first_row, run.layout, watched=points)
    return {site.hook: time for time, site in enumerate(activations)}


def _compute_products(x: Tensor, y: Tensor) -> Float[np.ndarray, " row"]:
    """Return the scalar product of each row of ``x`` with the same row of ``y``, ``[row]``."""
    products = (x * y).sum(1)
    return products.numpy(force=True)
