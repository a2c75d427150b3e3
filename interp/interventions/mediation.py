"""Mediation: which share of an effect passes through chosen attention patterns, head or MLP
outputs, gates or cycles.

A *cause*, some place in a base round, is set to its value in the source round. What that does to an
outcome is split by *mediators*, sites between the two: ``blocked`` is the share of the effect that
is lost while they are frozen, and ``carried`` the share that they bring about by themselves. Shares
of single mediators need not add up. A share shows how a computation is wired, not what happens in
use: compare it with that of an untrained model. The formulas: docs/method/mediation.md.

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
    by_size,
    named,
    passed,
    run,
)
from interp.interventions.pairs import paired_runs
from interp.interventions.sites import COMPONENTS, Places, Site, resolve, resolve_places
from interp.interventions.sites import sites as every_site
from interp.model.layout import RoundLayout
from interp.model.run import Rollout, Rounds, select_rounds
from interp.results.measure import Result
from interp.stats.intervals import Interval, ratio_interval
from interp.support.checks import checked, checked_fields, checked_result, integer, refuse_endless
from interp.support.errors import InputError, require, require_known
from interp.support.provenance import provenance

_Sites = tuple[Site, ...]
_Moment = tuple[
    int, int
]  # when something is computed: its layer (-1 before the first), its component's place there
_Span = tuple[int, int]  # the first and the last position that something covers

_ORDER = {key: i for i, key in enumerate(COMPONENTS)}


@dataclass(frozen=True, eq=False)
class _Routes:
    """What lies between the causes, sites that are swapped, and the exit of the round that is read.

    In a transformer a swap at one place acts on later components of its position and, through
    attention, on later positions. Layers and positions determine this. In any other machine it acts
    on every point that is computed after it, in the order in which a round is seen to compute them,
    and each of those may act on what is read. A site that lies between may still have no effect.

    ``read`` is the exit, "prediction" or "update". ``order`` has the time of each hook point, where
    the model is no transformer.
    """

    model: Machine
    layout: RoundLayout
    causes: Sequence[Site]
    read: str
    order: Mapping[str, int] | None = None

    @property
    def end(self) -> int:
        """The position of the exit."""
        return (
            self.layout.predict_position
            if self.read == "prediction"
            else self.layout.update_position
        )

    def mediators(self, given: Sequence[Site | str]) -> _Sites:
        """Return sites from texts, each checked to lie between."""
        resolved = [resolve(site, self.model, self.layout) for site in given]
        mediators = tuple(dict.fromkeys(resolved))
        require(
            bool(mediators),
            "no mediators were given; mediation.paths(model, 'pattern', 'p?') lists some",
        )
        causes, end = " + ".join(map(str, self.causes)), self.layout.labels[self.end]
        for site in mediators:
            name = str(site)
            require(
                bool(_leave_out([site], self.causes)),
                f"{name!r} is a cause ({causes}) and cannot mediate its effect; choose a site after it",
            )
            if not self.is_downstream(site):
                raise InputError(
                    f"mediator {name!r} is not downstream of the cause {causes!r}, which acts on "
                    f"{self._describe_downstream()}"
                )
            require(
                self.is_upstream(site),
                f"mediator {name!r} cannot act on the {self.read}, which is read at {end!r} after the last "
                f"layer; choose a site at {end!r}, or an earlier position before the last layer's attention",
            )
        return mediators

    def _describe_downstream(self) -> str:
        """Say what the causes act on."""
        if self.order is None:
            return (
                "later components of its own position and, through attention, on later positions; "
                "choose one of these"
            )
        every = every_site(self.model, self.layout, self.model.points, None)
        later = ", ".join(str(site) for site in every if self.is_downstream(site))
        return f"what a round computes after it: {later or 'nothing'}"

    def is_downstream(self, site: Site) -> bool:
        """Return whether some cause can act on the site."""
        moment, span = self._where(site)
        return any(_leads(*self._where(cause), moment, span) for cause in self.causes)

    def is_upstream(self, site: Site) -> bool:
        """Return whether the site can act on what is read; where no positions say so, every site may."""
        order = self.order
        last = self.model.points["resid_post"].n_layers if order is None else len(order)
        return _leads(*self._where(site), (last, 0), (self.end, self.end))

    def is_between(self, site: Site) -> bool:
        """Return whether an effect of the causes can pass through the site; not where it is a cause itself."""
        is_cause = not _leave_out([site], self.causes)
        return not is_cause and self.is_downstream(site) and self.is_upstream(site)

    def draw_others(self, case: _Sites, mediators: _Sites, seed: Sequence[int]) -> _Sites:
        """Draw as many sites of the same components as ``case``, none a mediator; fewer or none if
        there are no more.

        A machine that is no transformer may have one site of a component, a plain vector. Where no
        further site of its component lies between, one of any other point that does replaces it.

        Args:
            case: the sites.
            mediators: sites that are left out.
            seed: seed of the draw.
        """
        generator = np.random.default_rng(seed)
        kinds = Counter((site.component, site.head is None, site.position is None) for site in case)
        drawn: list[Site] = []
        n_elsewhere = 0
        for kind, n in kinds.items():
            pool = _leave_out(self._pool(*kind), mediators)
            drawn += _draw(pool, n, generator)
            if not pool and self.order is not None:
                n_elsewhere += n
        if n_elsewhere:
            every = [site for key in self.model.points for site in self._pool(key, False, True)]
            pool = _leave_out(every, (*mediators, *drawn))
            drawn += _draw(pool, n_elsewhere, generator)
        return tuple(drawn)

    @cache  # noqa: B019  (routes live as long as one call)
    def _pool(self, component: str, all_heads: bool, everywhere: bool) -> list[Site]:
        """List every site of a component that lies between.

        Args:
            component: its key.
            all_heads: sites are of all heads together.
            everywhere: sites are of all positions together.
        """
        pool = every_site(self.model, self.layout, component, None if everywhere else "all")
        if all_heads:
            pool = [replace(site, head=None) for site in pool]
        return [site for site in dict.fromkeys(pool) if self.is_between(site)]

    def _where(self, site: Site) -> tuple[_Moment, _Span]:
        """Return when a site is computed, and the positions that it covers."""
        if self.order is not None:  # each point may act on every later one, whatever its places
            return (self.order[site.hook], 0), (0, self.layout.n_positions)
        layer = -1 if site.layer is None else site.layer
        places = np.arange(self.layout.n_positions)
        if site.kind.axes == "latent":
            places = np.array(self.layout.latent_positions)
        axis = site.kind.position_axis or 1
        index = site.index(self.layout)[axis]
        covered = np.atleast_1d(places[index])
        return (layer, _ORDER[site.component]), (int(covered[0]), int(covered[-1]))


def _draw(pool: Sequence[Site], n: int, generator: np.random.Generator) -> list[Site]:
    """Draw sites of a pool, in its order.

    Args:
        pool: the sites.
        n: how many, at most.
        generator: draws them.
    """
    chosen = generator.permutation(len(pool))[:n]
    return [pool[i] for i in sorted(chosen)]


def _leave_out(pool: Sequence[Site], known: Sequence[Site]) -> list[Site]:
    """Return the sites of a pool that do not overlap with known sites."""
    return [site for site in pool if not any(_overlap(site, taken) for taken in known)]


def _leads(start: _Moment, of: _Span, end: _Moment, to: _Span) -> bool:
    """Return whether what is computed at ``start`` and positions ``of`` can act on ``end`` and
    positions ``to``.

    Args:
        start, end: (layer, component).
        of, to: (first, last) position.

    >>> z, mlp_out = _ORDER["z"], _ORDER["mlp_out"]
    >>> _leads((1, z), (3, 3), (1, mlp_out), (3, 3))             # within its own position
    True
    >>> _leads((1, z), (3, 3), (1, mlp_out), (5, 5))             # after the attention of layer 1: too late
    False
    >>> _leads((0, z), (3, 3), (1, mlp_out), (5, 5))
    True
    """
    meets = of[0] <= to[1] and to[0] <= of[1]
    if start < end and meets:
        return True
    layer, component = start
    # A query is read at its own position only.
    is_read = component <= _ORDER["v"] and component != _ORDER["q"]
    attention = max(layer, 0) if is_read else layer + 1
    return of[0] < to[1] and (attention, _ORDER["scores"]) <= end


def _overlap(first: Site, second: Site) -> bool:
    """Return whether two sites hold some activation in common."""
    if first.hook != second.hook:
        return False
    heads = (first.head, second.head)
    head_meets = None in heads or first.head == second.head
    positions = (first.position, second.position)
    position_meets = None in positions or first.position == second.position
    return head_meets and position_meets


_ROUNDING = (
    100  # a total effect smaller than this counts as none; in units of the rounding of the outcome
)


@dataclass(frozen=True)
@checked_result
@checked
class MediationResult(Result):
    """Shares of one effect, with their controls, by mediator, and last for "all": all of them at
    once.

    Attributes:
        total, lost, brought: <TE, TE>, <TE - DE, TE> and <IE, TE>, summed over the rounds of an
            episode.
        moved: the share of pairs in which the swap changes the mediator at all.
        random: the shares (blocked, carried) of as many other mediators of the same kinds, drawn at
            random; of any other points for the mediators that ``settings["random_of_any_point"]``
            lists.
        n_random_sites: how many sites such a draw holds; fewer than the mediators where the model
            has no more of them.
        reason: why there are no shares (they are NaN then); empty where there are.
        participants: who played each episode; intervals are over them.
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
        """Return the share of the effect that is lost while the mediator is frozen, with its 95 % interval."""
        return self._share(self.lost, mediator)

    def carried(self, mediator: str = "all") -> Interval:
        """Return the share of the effect that the mediator brings about by itself, with its 95 % interval."""
        return self._share(self.brought, mediator)

    def _share(self, parts: Float[np.ndarray, "mediator episode"], mediator: str) -> Interval:
        """Return a share of the effect with its interval over episodes; NaN where there is no
        effect.

        Args:
            parts: ``[mediator, episode]``.
            mediator: its name.
        """
        require_known("mediator", mediator, self.mediators, limit=40)
        part = parts[self.mediators.index(mediator)]
        total = np.zeros_like(self.total) if self.reason else self.total  # over 0 a share is NaN
        seed = self.settings.get("seed", 0)
        return ratio_interval(part, total, seed=seed, participants=self.participants)

    @property
    def sentence(self) -> str:
        """Which share of the effect passes through all mediators, and which of them carries most."""
        if self.reason:
            return f"{self.reason.capitalize()}."
        alone = {name: self.carried(name).estimate for name in self.mediators[:-1]}
        largest = ""
        if len(alone) > 1:
            best = max(alone, key=lambda name: alone[name])
            largest = f", most of it through {best} ({alone[best]:.0%})"
        cause, share = " + ".join(self.cause), f"{self.carried().estimate:.0%}"
        return f"{share} of the effect of {cause} on the {self.outcome} passes through the mediators{largest}."

    def _draw(self, figures: Any) -> Any:
        """Draw the shares blocked and carried by every mediator, with their intervals."""
        rows: dict[str, Interval] = {}
        for name in self.mediators:
            rows[f"blocked: {name}"] = self.blocked(name)
            rows[f"carried: {name}"] = self.carried(name)
        return figures.intervals(named(rows), xlabel=f"share of the effect on the {self.outcome}")

    def to_frame(self) -> pd.DataFrame:
        """Return one row per mediator and one for all jointly, the largest share carried first, with controls."""
        size = float(np.sqrt(self.total.sum() / self.n_pairs))
        rows = [self._make_row(i, size) for i in range(len(self.mediators))]
        return by_size(pd.DataFrame(rows), "carried")

    def _make_row(self, i: int, size: float) -> dict[str, Any]:
        """Return the numbers of one mediator.

        Args:
            i: its index.
            size: of the effect.
        """
        mediator = self.mediators[i]
        row: dict[str, Any] = {
            "cause": " + ".join(self.cause),
            "outcome": self.outcome,
            "mediator": mediator,
        }
        blocked, carried = float("nan"), float("nan")
        if self.random.shape[1]:
            blocked = float(self.random[i, :, 0].mean())
            carried = float(self.random[i, :, 1].mean())
        row |= self.blocked(mediator).columns("blocked") | {"random_blocked": blocked}
        row |= self.carried(mediator).columns("carried") | {"random_carried": carried}
        row["moved"] = float(self.moved[i])
        row["n_random_sites"] = int(self.n_random_sites[i])
        return row | {"effect": size, "n_pairs": self.n_pairs, "reason": self.reason}


@checked
def paths(model: Machine, component: str, position: str | None = None) -> list[Site]:
    """List every site of a component, for each layer and head.

    Args:
        model: the model.
        component: its key.
        position: a label (of a pattern: the query); None for whole activations.

    >>> import interp
    >>> model = interp.load("wma-learned")
    >>> len(paths(model, "z", "w?")), str(paths(model, "mlp_out")[0])
    (16, 'mlp_out[0]')
    """
    return every_site(model, components=component, positions=position)


@dataclass(frozen=True)
@checked_fields
class Split:
    """How an effect is split, and the controls of its shares.

    Attributes:
        each: measure every mediator by itself, too; False measures only all of them at once, for
            less work.
        n_random: how often as many other mediators of the same components are drawn from between
            cause and outcome. Of a machine that is no transformer: of any point there, where a
            mediator's component has no other; the settings then list these mediators as
            "random_of_any_point".
    """

    each: bool = True
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
    """Measure which share of the effect of ``sites`` on ``outcome`` passes through each mediator, and through all.

    Args:
        base, source, round: as in :func:`interp.interventions.interchange.interchange`.
        sites: the cause, what is swapped from the source, all at once: sites, or places with a subspace each.
        mediators: sites between the cause and the outcome; :func:`paths` lists those of a component.
        outcome: "prediction" (the distribution over outcomes), "state" (what the round writes into the algorithm's
            state) or "latents" (all latents that the round leaves). A swapped latent reaches the last two by itself,
            without any mediator, where updates are added to latents.
    """
    swap = _Swap(model, base, source, sites, outcome, round)
    if isinstance(mediators, Site | str):
        mediators = [mediators]
    together = swap.routes.mediators(mediators)
    alone = together if split.each else ()
    cases = [*((site,) for site in alone), together]
    names = (*map(str, alone), "all")
    draws: list[list[_Sites]] = []
    borrowed: list[str] = []
    for name, case in zip(names, cases, strict=True):
        seeds = [(split.seed, i) for i in range(split.n_random)]
        of_case = [swap.routes.draw_others(case, together, seed) for seed in seeds]
        draws.append(of_case)
        components = {site.component for site in case}
        if any(site.component not in components for drawn in of_case for site in drawn):
            borrowed.append(name)
    controls = [drawn for of_case in draws for drawn in of_case if drawn]
    sums = swap.sums(list(dict.fromkeys([*cases, *controls])))
    random = np.array([[sums.shares(drawn) for drawn in of_case] for of_case in draws])
    starts = range(0, len(sums.total), len(swap.rounds))
    per_episode = partial(np.add.reduceat, indices=starts, axis=-1)
    lost = [sums.lost[case] for case in cases]
    brought = [sums.brought[case] for case in cases]
    share_moved = np.array([sums.moved[case] for case in cases])
    n_random_sites = np.array([max(map(len, of_case), default=0) for of_case in draws])
    reason = ""
    if sums.is_null:
        reason = "there is no effect to mediate: the total effect of the cause is 0"
    base_run, _ = swap.runs
    settings = swap.settings | {"commit": base_run.commit}
    settings |= {"n_random": split.n_random, "seed": split.seed}
    if borrowed:
        settings["random_of_any_point"] = borrowed
    random = random.reshape(len(cases), split.n_random, 2)
    causes = tuple(map(str, swap.causes))
    total = sums.total
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
        n_pairs=len(total),
        reason=reason,
        settings=settings,
        participants=participants,
    )


@dataclass(frozen=True)
class _Sums:
    """Products of effects, row by row; for every set of frozen sites: lost and brought, by row, and
    the share moved.
    """

    total: Float[np.ndarray, " row"]
    lost: dict[_Sites, Float[np.ndarray, " row"]]
    brought: dict[_Sites, Float[np.ndarray, " row"]]
    moved: dict[_Sites, float]
    is_null: bool  # the total effect is 0, but for rounding

    def shares(self, case: _Sites) -> tuple[float, float]:
        """Return the shares (blocked, carried) over all rows; NaN where there is no effect, or no site."""
        if self.is_null or not case:
            return float("nan"), float("nan")
        total = self.total.sum()
        lost, brought = self.lost[case].sum(), self.brought[case].sum()
        return float(lost / total), float(brought / total)


class _Swap:
    """Causes that are taken from the source's rounds into the base's, and the outcome that this is measured by."""

    def __init__(
        self,
        model: Machine,
        base: Episodes | Rollout,
        source: Episodes | Rollout,
        sites: Places,
        outcome: str | Outcome,
        round: Rounds,
    ) -> None:
        self.model, self.outcome = model, Outcome.named(outcome)
        outcome = self.outcome
        is_decoded = outcome.decode is not None
        is_readable = outcome.key != "state" or is_decoded or model.is_handwired
        require(
            is_readable,
            f"{model.name!r} is a learned model: its state has no exact readout; give outcome=Outcome('state', decode) "
            "with a fitted interp.stats.decoder.Decoder, or ask for outcome='latents'",
        )
        self.runs = paired_runs(model, base, source, "mediation")
        base_run, source_run = self.runs
        self.layout = base_run.layout
        self.causes = resolve_places(sites, model, base_run)
        self.swap = [Edit(place, source_run) for place in self.causes]
        self.rounds = select_rounds(round, base_run.n_rounds)
        self.settings = provenance(model, rounds=self.rounds, decoded=is_decoded)
        causes = [place.site for place in self.causes]
        self.routes = _Routes(
            model=model,
            layout=self.layout,
            causes=causes,
            read="prediction" if outcome.key == "prediction" else "update",
            order=_find_order(model, base_run),
        )

    def run(
        self, edits: dict[str, list[Edit]], watched: Sequence[Site] = ()
    ) -> tuple[Tensor, Sequence[Mapping[Site, Tensor]]]:
        """Run edits of the base's rounds, all of which must take place.

        Returns:
            Outcomes ``[edit, row, value]``, and what is then at the watched sites.
        """
        experiment = Experiment(
            model=self.model,
            run=self.runs[0],
            edits=edits,
            rounds=self.rounds,
            readout=self.outcome,
            commit="target",
            watched=watched,
        )
        effects = run(experiment).require_taken("mediation")
        return effects.values.flatten(1, 2), effects.seen

    def sums(self, sets: Sequence[_Sites]) -> _Sums:
        """Measure the effect of the swap, whole and with every set of sites frozen."""
        every = tuple(dict.fromkeys(site for case in sets for site in case))
        whole = {"nothing": [], "swap": self.swap}
        (plain, swapped), (before, after) = self.run(whole, every)
        effect = swapped - plain
        changed: dict[Site, NDArray[np.bool_]] = {}
        for site in every:
            is_same = torch.isclose(after[site], before[site]).flatten(2).all(2)
            changed[site] = ~is_same.flatten().numpy(force=True)
        lost: dict[_Sites, NDArray[Any]] = {}
        brought: dict[_Sites, NDArray[Any]] = {}
        share_moved: dict[_Sites, float] = {}
        for case in sets:
            freeze = [Edit.of(site, before[site]) for site in case]
            carry = [Edit.of(site, after[site]) for site in case]
            values, _ = self.run({"direct": [*self.swap, *freeze], "indirect": carry})
            direct, indirect = values - plain
            lost[case] = _product(effect - direct, effect)
            brought[case] = _product(indirect, effect)
            is_moved = np.any([changed[site] for site in case], axis=0)
            share_moved[case] = float(is_moved.mean())
        total = _product(effect, effect)
        epsilon = torch.finfo(self.runs[0].latents.dtype).eps
        rounding = _ROUNDING * epsilon * float(plain.abs().max())
        is_null = bool(np.sqrt(total.mean()) <= rounding)
        return _Sums(total=total, lost=lost, brought=brought, moved=share_moved, is_null=is_null)


def _find_order(model: Machine, run: Rollout) -> dict[str, int] | None:
    """Return when a round computes each hook point, as is seen in one round; None for a transformer."""
    stream = model.points.get("resid_post")
    if stream is not None and stream.hook == COMPONENTS["resid_post"].hook:
        return None
    points = every_site(model, run.layout, list(model.points), None)
    row = Rows.of(run, [0]).part(slice(1))
    _, activations = passed(model, row, run.layout, watched=points)
    return {site.hook: moment for moment, site in enumerate(activations)}


def _product(x: Tensor, y: Tensor) -> Float[np.ndarray, " row"]:
    """Return the scalar products of rows."""
    products = (x * y).sum(1)
    return np.asarray(products.numpy(force=True))
