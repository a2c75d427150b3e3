"""Routes: which sites lie between a cause and an outcome of a round, so that an effect can pass through them.

In a transformer a swap at one place acts on later components of its own position and, through attention, on later
positions, which is read off layers and positions alone. In any other machine it acts on every point that is computed
after it, in the order in which a round is seen to compute them, and each of those may act on what is read. A site that
lies between may still carry nothing.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cache

import numpy as np

from interp.errors import require
from interp.interventions.experiment import Rows, passed
from interp.interventions.sites import COMPONENTS, Site, resolve, sites
from interp.machine import Machine
from interp.model.layout import RoundLayout
from interp.model.run import Rollout

Sites = tuple[Site, ...]
_Moment = tuple[int, int]  # when something is computed: its layer (-1 before the first), its component's place there
_Span = tuple[int, int]  # the first and the last position that something covers

_ORDER = {key: i for i, key in enumerate(COMPONENTS)}


def order_of_points(model: Machine, run: Rollout) -> dict[str, int] | None:
    """When a round computes each hook point of the machine, seen in a round of ``run``; None for a transformer."""
    stream = model.points.get("resid_post")
    if stream is not None and stream.hook == COMPONENTS["resid_post"].hook:
        return None
    points = sites(model, run.layout, list(model.points), None)
    _, seen = passed(model, Rows.of(run, [0]).part(slice(1)), run.layout, watched=points)
    return {site.hook: moment for moment, site in enumerate(seen)}


class Routes:
    """What lies between the causes, sites that are swapped, and the exit of the round that is read.

    ``order`` says when each hook point is computed, where the model is no transformer (:func:`order_of_points`).
    """

    def __init__(
        self,
        model: Machine,
        layout: RoundLayout,
        causes: Sequence[Site],
        *,
        prediction: bool,
        order: Mapping[str, int] | None = None,
    ) -> None:
        self.model, self.layout, self.causes, self.order = model, layout, tuple(causes), order
        self.read = "prediction" if prediction else "update"
        self.end = layout.predict_position if prediction else layout.update_position
        self.pool = cache(self._pool)

    def mediators(self, through: Sequence[Site | str]) -> Sites:
        """Sites from texts, each checked to lie between."""
        mediators = tuple(dict.fromkeys(resolve(site, self.model, self.layout) for site in through))
        require(bool(mediators), "no mediators were given; mediation.paths(model, 'pattern', 'p?') lists some")
        causes, end = " + ".join(map(str, self.causes)), self.layout.labels[self.end]
        for site in mediators:
            require(
                not any(overlap(site, cause) for cause in self.causes),
                f"{str(site)!r} is a cause ({causes}) and cannot mediate its effect; choose a site after it",
            )
            acts_on = (
                "later components of its own position and, through attention, on later positions; choose one of these"
                if self.order is None
                else f"what a round computes after it: {', '.join(self._later()) or 'nothing'}"
            )
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
        if self.order is not None:
            return any(self.order[cause.hook] < self.order[site.hook] for cause in self.causes)
        return any(_leads(*self._where(cause), *self._where(site)) for cause in self.causes)

    def is_upstream(self, site: Site) -> bool:
        """Whether the site can act on what is read; where no positions say so, every site may."""
        if self.order is not None:
            return True
        return _leads(*self._where(site), (self.model.points["resid_post"].n_layers, 0), (self.end, self.end))

    def is_between(self, site: Site) -> bool:
        """Whether an effect of the causes can pass through the site; not where it is a cause itself."""
        apart = not any(overlap(site, cause) for cause in self.causes)
        return apart and self.is_downstream(site) and self.is_upstream(site)

    def others(self, case: Sites, mediators: Sites, seed: Sequence[int]) -> Sites:
        """As many sites of the same components as ``case``, none a mediator; fewer or none if the pool is smaller.

        A machine that is no transformer may have one site of a component, a plain vector: where no other of its
        component lies between, one of any other point that does stands in for it.
        """
        generator = np.random.default_rng(seed)
        kinds = Counter((site.component, site.head is None, site.position is None) for site in case)
        drawn: list[Site] = []
        n_elsewhere = 0
        for kind, n in kinds.items():
            pool = _apart(self.pool(*kind), mediators)
            drawn += [pool[i] for i in sorted(generator.permutation(len(pool))[:n])]
            n_elsewhere += n * (not pool and self.order is not None)
        if n_elsewhere:
            every = [site for key in self.model.points for site in self.pool(key, False, True)]
            pool = _apart(every, (*mediators, *drawn))
            drawn += [pool[i] for i in sorted(generator.permutation(len(pool))[:n_elsewhere])]
        return tuple(drawn)

    def _pool(self, component: str, all_heads: bool, everywhere: bool) -> list[Site]:
        """Every site of a component that lies between."""
        pool = sites(self.model, self.layout, component, None if everywhere else "all")
        pool = list(dict.fromkeys(replace(site, head=None) if all_heads else site for site in pool))
        return [site for site in pool if self.is_between(site)]

    def _later(self) -> list[str]:
        """The points that are computed after some cause, one for every cycle, in the order of the machine's points."""
        every = [site for key in self.model.points for site in sites(self.model, self.layout, key, None)]
        return [str(site) for site in every if self.is_downstream(site)]

    def _where(self, site: Site) -> tuple[_Moment, _Span]:
        moment = (-1 if site.layer is None else site.layer), _ORDER[site.component]
        places = self.layout.latent_positions if site.kind.axes == "latent" else range(self.layout.n_positions)
        which = 0 if site.kind.position_axis is None else site.kind.position_axis - 1
        covered = np.atleast_1d(np.array(places)[site.index(self.layout)[1 + which]])
        return moment, (int(covered[0]), int(covered[-1]))


def _apart(pool: Sequence[Site], known: Sequence[Site]) -> list[Site]:
    """The sites of a pool that hold nothing in common with those that are known."""
    return [site for site in pool if not any(overlap(site, other) for other in known)]


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
    is_read = component <= _ORDER["v"] and component != _ORDER["q"]  # a query is read at its own position only
    attention = max(layer, 0) if is_read else layer + 1
    return of[0] < to[1] and (attention, _ORDER["scores"]) <= end


def overlap(one: Site, other: Site) -> bool:
    """Whether two sites hold some activation in common."""
    pairs = ((one.head, other.head), (one.position, other.position))
    return one.hook == other.hook and all(a is None or b is None or a == b for a, b in pairs)
