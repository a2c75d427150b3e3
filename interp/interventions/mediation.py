"""Mediation: which share of an effect passes through chosen attention patterns, head or MLP outputs, gates or cycles.

A *cause*, some place in a base round, is set to its value in the source round. What that does to an outcome is split by
*mediators*, sites between the two: ``blocked`` is the share of the effect that is lost while they are frozen, and
``carried`` the share that they bring about by themselves. Shares of single mediators need not add up. A share says how
a computation is wired, not what happens in use: read it beside that of an untrained model. :func:`effect_map` gives the
carried share of the residual stream after each layer, at each position. The formulas: docs/method/mediation.md.

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
from torch import Tensor

from interp.core.algorithm import Episodes, participants_of
from interp.core.machine import Machine, runs_from
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
from interp.interventions.sites import COMPONENTS, Place, Places, Site, resolve, resolve_places
from interp.interventions.sites import sites as every_site
from interp.model.layout import RoundLayout
from interp.model.run import Rollout, Rounds, select_rounds
from interp.results.measure import Result
from interp.stats.intervals import Interval, ratio_interval
from interp.support.checks import checked, checked_fields, integer, refuse_endless
from interp.support.errors import require, require_known
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

    In a transformer a swap at one place acts on later components of its own position and, through attention, on later
    positions, which is read off layers and positions alone. In any other machine it acts on every point that is
    computed after it, in the order in which a round is seen to compute them, and each of those may act on what is read.
    A site that lies between may still carry nothing.

    ``read`` is the exit, "prediction" or "update". ``order`` says when each hook point is computed, where the model is
    no transformer.
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
        """Sites from texts, each checked to lie between."""
        mediators = tuple(dict.fromkeys(resolve(site, self.model, self.layout) for site in given))
        require(
            bool(mediators),
            "no mediators were given; mediation.paths(model, 'pattern', 'p?') lists some",
        )
        causes, end = " + ".join(map(str, self.causes)), self.layout.labels[self.end]
        for site in mediators:
            apart = bool(_apart([site], self.causes))
            require(
                apart,
                f"{str(site)!r} is a cause ({causes}) and cannot mediate its effect; choose a site after it",
            )
            acts_on = (
                "later components of its own position and, through attention, on later positions"
            )
            acts_on += "; choose one of these"
            if self.order is not None:
                every = every_site(self.model, self.layout, self.model.points, None)
                later = (
                    ", ".join(str(site) for site in every if self.is_downstream(site)) or "nothing"
                )
                acts_on = f"what a round computes after it: {later}"
            require(
                self.is_downstream(site),
                f"mediator {str(site)!r} is not downstream of the cause {causes!r}, which acts on {acts_on}",
            )
            require(
                self.is_upstream(site),
                f"mediator {str(site)!r} cannot act on the {self.read}, which is read at {end!r} after the last "
                f"layer; choose a site at {end!r}, or an earlier position before the last layer's attention",
            )
        return mediators

    def is_downstream(self, site: Site) -> bool:
        """Whether some cause can act on the site."""
        return any(_leads(*self._where(cause), *self._where(site)) for cause in self.causes)

    def is_upstream(self, site: Site) -> bool:
        """Whether the site can act on what is read; where no positions say so, every site may."""
        last = (
            (self.model.points["resid_post"].n_layers, 0)
            if self.order is None
            else (len(self.order), 0)
        )
        return _leads(*self._where(site), last, (self.end, self.end))

    def is_between(self, site: Site) -> bool:
        """Whether an effect of the causes can pass through the site; not where it is a cause itself."""
        return (
            bool(_apart([site], self.causes))
            and self.is_downstream(site)
            and self.is_upstream(site)
        )

    def others(self, case: _Sites, mediators: _Sites, seed: Sequence[int]) -> _Sites:
        """As many sites of the same components as ``case``, none a mediator; fewer or none if the pool is smaller.

        A machine that is no transformer may have one site of a component, a plain vector: where no other of its
        component lies between, one of any other point that does stands in for it.
        """
        generator = np.random.default_rng(seed)
        kinds = Counter((site.component, site.head is None, site.position is None) for site in case)
        drawn: list[Site] = []
        n_elsewhere = 0

        def draw(pool: list[Site], n: int) -> None:
            drawn.extend(pool[i] for i in sorted(generator.permutation(len(pool))[:n]))

        for kind, n in kinds.items():
            pool = _apart(self._pool(*kind), mediators)
            draw(pool, n)
            n_elsewhere += n * (not pool and self.order is not None)
        if n_elsewhere:
            every = [site for key in self.model.points for site in self._pool(key, False, True)]
            draw(_apart(every, (*mediators, *drawn)), n_elsewhere)
        return tuple(drawn)

    @cache  # noqa: B019  (routes live as long as one call)
    def _pool(self, component: str, all_heads: bool, everywhere: bool) -> list[Site]:
        """Every site of a component that lies between."""
        pool = every_site(self.model, self.layout, component, None if everywhere else "all")
        pool = list(dict.fromkeys(replace(site, head=None) if all_heads else site for site in pool))
        return [site for site in pool if self.is_between(site)]

    def _where(self, site: Site) -> tuple[_Moment, _Span]:
        if self.order is not None:  # each point may act on every later one, whatever its places
            return (self.order[site.hook], 0), (0, self.layout.n_positions)
        moment = (-1 if site.layer is None else site.layer), _ORDER[site.component]
        places = (
            self.layout.latent_positions
            if site.kind.axes == "latent"
            else range(self.layout.n_positions)
        )
        which = 0 if site.kind.position_axis is None else site.kind.position_axis - 1
        covered = np.atleast_1d(np.array(places)[site.index(self.layout)[1 + which]])
        return moment, (int(covered[0]), int(covered[-1]))


def _apart(pool: Sequence[Site], known: Sequence[Site]) -> list[Site]:
    """The sites of a pool that hold nothing in common with those that are known."""
    return [site for site in pool if not any(_overlap(site, other) for other in known)]


def _leads(start: _Moment, of: _Span, end: _Moment, to: _Span) -> bool:
    """Whether what is computed at ``start`` and positions ``of`` can act on what is at ``end`` and positions ``to``.

    >>> z, mlp_out = _ORDER["z"], _ORDER["mlp_out"]
    >>> _leads((1, z), (3, 3), (1, mlp_out), (3, 3))             # within its own position
    True
    >>> _leads((1, z), (3, 3), (1, mlp_out), (5, 5))             # after the attention of layer 1: too late
    False
    >>> _leads((0, z), (3, 3), (1, mlp_out), (5, 5))
    True
    """
    if start < end and of[0] <= to[1] and to[0] <= of[1]:
        return True
    layer, component = start
    is_read = (
        component <= _ORDER["v"] and component != _ORDER["q"]
    )  # a query is read at its own position only
    attention = max(layer, 0) if is_read else layer + 1
    return of[0] < to[1] and (attention, _ORDER["scores"]) <= end


def _overlap(one: Site, other: Site) -> bool:
    """Whether two sites hold some activation in common."""
    pairs = ((one.head, other.head), (one.position, other.position))
    return one.hook == other.hook and all(a is None or b is None or a == b for a, b in pairs)


_SHARES = ("blocked", "carried")
_ROUNDING = (
    100  # a total effect smaller than this counts as none; in units of the rounding of the outcome
)


@dataclass(frozen=True)
@checked
class MediationResult(Result):
    """Shares of one effect, with their controls, by mediator, and last for "all": all of them at once.

    Attributes:
        total, lost, brought: <TE, TE>, <TE - DE, TE> and <IE, TE>, summed over the rounds of an episode.
        moved: the share of pairs in which the swap changes the mediator at all.
        random: the shares (blocked, carried) of as many other mediators of the same kinds, drawn at random; of any
            other points for the mediators that ``settings["random_of_any_point"]`` lists.
        n_random_sites: how many sites such a draw holds; fewer than the mediators where the model has no more of them.
        reason: why there are no shares (they are NaN then); empty where there are.
        participants: whose the episodes are, over whom intervals are.
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
        """The share of the effect that is lost while the mediator is frozen, with its 95 % interval over episodes."""
        return self._share(self.lost, mediator)

    def carried(self, mediator: str = "all") -> Interval:
        """The share of the effect that the mediator brings about by itself, with its 95 % interval over episodes."""
        return self._share(self.brought, mediator)

    def _share(self, parts: Float[np.ndarray, "mediator episode"], mediator: str) -> Interval:
        require_known("mediator", mediator, self.mediators, limit=40)
        total = np.zeros_like(self.total) if self.reason else self.total  # over 0 a share is NaN
        part, seed = parts[self.mediators.index(mediator)], self.settings.get("seed", 0)
        return ratio_interval(part, total, seed=seed, participants=self.participants)

    @property
    def sentence(self) -> str:
        """Which share of the effect passes through all mediators, and which of them carries most."""
        if self.reason:
            return f"{self.reason.capitalize()}."
        alone = {name: self.carried(name).estimate for name in self.mediators[:-1]}
        most = max(alone, key=lambda name: alone[name], default="")
        told = f", most of it through {most} ({alone[most]:.0%})" if len(alone) > 1 else ""
        cause, share = " + ".join(self.cause), f"{self.carried().estimate:.0%}"
        return f"{share} of the effect of {cause} on the {self.outcome} passes through the mediators{told}."

    def _draw(self, figures: Any) -> Any:
        """The shares blocked and carried by every mediator, with their intervals."""
        rows = {
            f"{share}: {name}": getattr(self, share)(name)
            for name in self.mediators
            for share in _SHARES
        }
        return figures.intervals(named(rows), xlabel=f"share of the effect on the {self.outcome}")

    def to_frame(self) -> pd.DataFrame:
        """One row per mediator and one for all jointly, the largest share carried first: shares and controls."""
        rows = []
        for i, mediator in enumerate(self.mediators):
            row: dict[str, Any] = {
                "cause": " + ".join(self.cause),
                "outcome": self.outcome,
                "mediator": mediator,
            }
            for draw, key in enumerate(_SHARES):
                row |= getattr(self, key)(mediator).columns(key)
                draws = self.random[i, :, draw]
                row[f"random_{key}"] = float(draws.mean()) if len(draws) else float("nan")
            row |= {"moved": float(self.moved[i]), "n_random_sites": int(self.n_random_sites[i])}
            size = float(np.sqrt(self.total.sum() / self.n_pairs))
            rows.append({**row, "effect": size, "n_pairs": self.n_pairs, "reason": self.reason})
        return by_size(pd.DataFrame(rows), "carried")


@dataclass(frozen=True, eq=False)
class EffectMap(Result):
    """How much of an effect each row's activation carries by itself; NaN where no effect can pass.

    Attributes:
        points: the site of every row: "resid_post[0]", or every other point of a machine, such as "cell" or "block[2]".
        positions: the place of every column within a row's site; "" for the whole of a point that has no places.
    """

    cause: tuple[str, ...]
    outcome: str
    points: tuple[str, ...]
    positions: tuple[str, ...]
    shares: Float[np.ndarray, "point position"]
    settings: dict[str, Any] = field(default_factory=dict)

    @property
    def sentence(self) -> str:
        """Which activation carries most."""
        if np.isnan(self.shares).all():
            return "No effect can pass anywhere."
        row, column = np.unravel_index(np.nanargmax(self.shares), self.shares.shape)
        at, share = (
            f"{self.points[row]}@{self.positions[column]}".removesuffix("@"),
            self.shares[row, column],
        )
        return f"{at} carries most of the effect of {' + '.join(self.cause)}: {share:.0%}."

    def to_frame(self) -> pd.DataFrame:
        """One row a layer of a transformer, or a point of any other machine; one column a place ("share" without)."""
        is_layer = all(point.startswith("resid_post[") for point in self.points)
        rows = (
            pd.RangeIndex(len(self.points), name="layer")
            if is_layer
            else pd.Index(self.points, name="point")
        )
        return pd.DataFrame(
            self.shares, index=rows, columns=[position or "share" for position in self.positions]
        )

    def _draw(self, figures: Any) -> Any:
        """The shares as a heat map."""
        table, title = self.to_frame(), f"effect of {' + '.join(self.cause)} on the {self.outcome}"
        axes = {"xlabel": "position", "ylabel": str(table.index.name)}
        return figures.heatmaps({title: table}, label="share carried", limit=1.0, **axes)


@checked
def paths(model: Machine, component: str, position: str | None = None) -> list[Site]:
    """Every site of a component, one for each layer and head, at one position (of a pattern: the query) or everywhere.

    >>> import interp
    >>> model = interp.load("wma-learned")
    >>> len(paths(model, "z", "w?")), str(paths(model, "mlp_out")[0])
    (16, 'mlp_out[0]')
    """
    return every_site(model, components=component, positions=position)


@dataclass(frozen=True)
@checked_fields
class Split:
    """How an effect is split, and what the shares stand beside.

    Attributes:
        each: measure every mediator by itself, too; else only all of them at once, for less work.
        n_random: how often as many other mediators of the same components are drawn from between cause and outcome. Of
            a machine that is no transformer: of any point there, where a mediator's component has no other; the
            settings then list these mediators as "random_of_any_point".
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
    """Which share of the effect of ``sites`` on ``outcome`` passes through each mediator, and through all of them.

    Args:
        base, source, round: as in :func:`interp.interventions.interchange.interchange`.
        sites: the cause, what is swapped from the source, all at once: sites, or places with a subspace each.
        mediators: sites between the cause and the outcome; :func:`paths` lists those of a component.
        outcome: "prediction" (the distribution over outcomes), "state" (what the round writes into the algorithm's
            state) or "latents" (all latents that the round leaves). A swapped latent reaches the last two by itself,
            without any mediator, where updates are added to latents.
    """
    swap = _Swap(model, base, source, sites, outcome, round)
    held = swap.routes.mediators([mediators] if isinstance(mediators, Site | str) else mediators)
    alone, seed, n_random = held if split.each else (), split.seed, split.n_random
    cases = [*((site,) for site in alone), held]
    draws = [[swap.routes.others(case, held, (seed, i)) for i in range(n_random)] for case in cases]
    names = (*map(str, alone), "all")
    kinds = [
        {site.component for site in case} for case in cases
    ]  # of which a draw may borrow another
    others = [{site.component for draw in several for site in draw} for several in draws]
    borrowed = [name for name, own, drawn in zip(names, kinds, others, strict=True) if drawn - own]
    noted = {"random_of_any_point": borrowed} if borrowed else {}
    sums = swap.sums(
        list(dict.fromkeys([*cases, *(draw for several in draws for draw in several if draw)]))
    )
    per_episode = partial(
        np.add.reduceat, indices=range(0, len(sums.total), len(swap.rounds)), axis=-1
    )
    return MediationResult(
        cause=tuple(map(str, swap.causes)),
        outcome=swap.outcome.key,
        mediators=names,
        total=per_episode(sums.total),
        lost=per_episode([sums.lost[case] for case in cases]),
        brought=per_episode([sums.brought[case] for case in cases]),
        moved=np.array([sums.moved[case] for case in cases]),
        random=np.array([[sums.shares(d) for d in several] for several in draws]).reshape(
            len(cases), n_random, 2
        ),
        n_random_sites=np.array([max(map(len, several), default=0) for several in draws]),
        n_pairs=len(sums.total),
        reason="there is no effect to mediate: the total effect of the cause is 0"
        if sums.is_null
        else "",
        settings={
            **swap.settings,
            "commit": swap.runs[0].commit,
            "n_random": n_random,
            "seed": seed,
            **noted,
        },
        participants=participants_of(swap.runs[0].episodes),
    )


@checked
def effect_map(
    model: Machine,
    base: Episodes | Rollout,
    source: Episodes | Rollout,
    sites: Places,
    *,
    outcome: str | Outcome = "prediction",
    round: Rounds = "all",
) -> EffectMap:
    """The share of the effect of ``sites`` that the residual stream carries, layer by position.

    Of a machine that is no transformer: the share that each of its points carries, in every cycle, by its places.

    Args:
        base, source, sites, outcome, round: as in :func:`mediate`.
    """
    swap = _Swap(model, base, source, sites, outcome, round)
    layout, is_transformer = swap.layout, swap.routes.order is None
    mapped = ["resid_post"] if is_transformer else [key for key in model.points if key != "latent"]
    named = "name some, interp.adapt(..., points=...)"
    require(bool(mapped), f"not applicable: {model.name} has no points to map; {named}")
    points = every_site(model, layout, mapped, None)
    plain, effect, (before, after) = swap.whole(points)
    total, shape = float((effect**2).sum()), (-1, len(swap.rounds))
    places = [point.labels(layout) if "pos" in point.kind.axes else ("",) for point in points]
    positions = tuple(dict.fromkeys(place for several in places for place in several))
    shares = np.full((len(points), len(positions)), np.nan)
    cells, edits = [], {}
    for row, point in enumerate(points if total > 0 else ()):
        for place in places[row]:
            site = replace(point, position=place or None)
            if swap.routes.is_between(site):
                cells.append((row, positions.index(place)))
                value = site.read(after[point].flatten(0, 1), layout)
                edits[str(site)] = [Edit(Place(site), value.unflatten(0, shape))]
    if cells:
        # The rounds of an edit are those of the base up to its layer.
        known = {
            Site("resid_pre", (p.layer or 0) + 1): before[p] for p in points if runs_from(model)
        }
        moved = swap.run(edits, known=known)[0] - plain
        shares[tuple(zip(*cells, strict=True))] = (moved * effect).sum((1, 2)).numpy(
            force=True
        ) / total
    names, causes = tuple(map(str, points)), tuple(map(str, swap.causes))
    return EffectMap(
        causes,
        swap.outcome.key,
        names,
        positions,
        shares,
        {**swap.settings, "n_pairs": len(effect)},
    )


@dataclass(frozen=True)
class _Sums:
    """Products of effects, row by row; for every set of sites that was held: lost and brought, by row, and moved."""

    total: Float[np.ndarray, " row"]
    lost: dict[_Sites, Float[np.ndarray, " row"]]
    brought: dict[_Sites, Float[np.ndarray, " row"]]
    moved: dict[_Sites, float]
    is_null: bool  # the total effect is 0, but for rounding

    def shares(self, case: _Sites) -> tuple[float, float]:
        """The shares (blocked, carried) over all rows; NaN where there is no effect, or no site."""
        if self.is_null or not case:
            return float("nan"), float("nan")
        return tuple(
            float(part[case].sum() / self.total.sum()) for part in (self.lost, self.brought)
        )  # type: ignore


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
        require(
            self.outcome.key != "state" or self.outcome.decode is not None or model.is_handwired,
            f"{model.name!r} is a learned model: its state has no exact readout; give outcome=Outcome('state', decode) "
            "with a fitted interp.stats.decoder.Decoder, or ask for outcome='latents'",
        )
        self.runs = paired_runs(model, base, source, "mediation")
        self.layout = self.runs[0].layout
        self.causes = resolve_places(sites, model, self.runs[0])
        self.swap = [Edit(place, self.runs[1]) for place in self.causes]
        self.rounds = select_rounds(round, self.runs[0].n_rounds)
        self.settings = provenance(
            model, rounds=self.rounds, decoded=self.outcome.decode is not None
        )
        read = "prediction" if self.outcome.key == "prediction" else "update"
        causes, order, stream = (
            [place.site for place in self.causes],
            None,
            model.points.get("resid_post"),
        )
        if (
            stream is None or stream.hook != COMPONENTS["resid_post"].hook
        ):  # seen in a round, in the order computed
            points = every_site(model, self.layout, list(model.points), None)
            _, seen = passed(
                model, Rows.of(self.runs[0], [0]).part(slice(1)), self.layout, watched=points
            )
            order = {site.hook: moment for moment, site in enumerate(seen)}
        self.routes = _Routes(model, self.layout, causes, read, order)

    def run(
        self,
        edits: dict[str, list[Edit]],
        watched: Sequence[Site] = (),
        known: Mapping[Site, Tensor] | None = None,
    ) -> tuple[Tensor, Sequence[Mapping[Site, Tensor]]]:
        """Outcomes ``[edit, row, value]`` of edits of the base's rounds, and what is then at the watched sites."""
        on: dict[str, Any] = {
            "readout": self.outcome,
            "commit": "target",
            "watched": watched,
            "known": known or {},
        }
        found = run(Experiment(self.model, self.runs[0], edits, self.rounds, **on))
        return found.values.flatten(1, 2), found.seen

    def whole(
        self, watched: Sequence[Site]
    ) -> tuple[Tensor, Tensor, Sequence[Mapping[Site, Tensor]]]:
        """Outcomes ``[row, value]`` without the swap, its effect on them, and what is then at the watched sites."""
        (plain, swapped), seen = self.run({"nothing": [], "swap": self.swap}, watched)
        return plain, swapped - plain, seen

    def sums(self, sets: Sequence[_Sites]) -> _Sums:
        """The effect of the swap, whole and with every set of sites held."""
        every = tuple(dict.fromkeys(site for case in sets for site in case))
        plain, effect, (before, after) = self.whole(every)
        changed = {
            s: ~torch.isclose(after[s], before[s]).flatten(2).all(2).flatten().numpy(force=True)
            for s in every
        }
        lost, brought, moved = {}, {}, {}
        for case in sets:
            frozen, alone = (
                [Edit.of(site, values[site]) for site in case] for values in (before, after)
            )
            direct, indirect = (
                self.run({"direct": [*self.swap, *frozen], "indirect": alone})[0] - plain
            )
            lost[case], brought[case] = (
                _product(effect - direct, effect),
                _product(indirect, effect),
            )
            moved[case] = float(np.any([changed[site] for site in case], axis=0).mean())
        total = _product(effect, effect)
        rounding = (
            _ROUNDING * torch.finfo(self.runs[0].latents.dtype).eps * float(plain.abs().max())
        )
        return _Sums(total, lost, brought, moved, bool(np.sqrt(total.mean()) <= rounding))


def _product(x: Tensor, y: Tensor) -> Float[np.ndarray, " row"]:
    return np.asarray((x * y).sum(1).numpy(force=True))
