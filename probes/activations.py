"""Where a probe reads: sites of a rollout as arrays ``[episode, round, ...]``.

A site is a name:

* ``latents``: all latents, after each round (before it, for a target meant before);
* ``written``: the latent in the slot that the round writes, after the round; ``change``: how the round changed it;
* ``update``: the vector that the model wrote (``hook_update``);
* anything else in the words of ``interp.interventions.sites``: ``resid_post[1]@p?``, ``z[2.0]@w?``, ``embed@e_1``.
"""

from __future__ import annotations

import numpy as np
from jaxtyping import Float
from torch import Tensor

from interp.algorithm import Episodes
from interp.checks import checked
from interp.errors import InputError, require
from interp.interventions.sites import Site, check
from interp.machine import Machine
from interp.model.rollout import rollout
from interp.model.run import Rollout
from probes.values import When

OF_LATENTS = ("latents", "written", "change")
UPDATE = "update"

_ROUNDING = 8.0
"""Units in the last place of the largest activation; what varies less is not read."""


def _hook_of(site: str) -> str | None:
    """The hook point that a site is read from; None when the rollout's latents are enough."""
    if site in OF_LATENTS:
        return None
    if site == UPDATE:
        return "hook_update"
    try:
        return Site.parse(site).hook
    except InputError as error:
        raise InputError(f"{error}; or one of: {', '.join((*OF_LATENTS, UPDATE))}") from None


@checked
def read(run: Rollout, site: str, when: When = "after") -> Float[Tensor, "episode round *rest"]:
    """The activations at a site, one entry per round.

    Example:
        >>> import interp
        >>> from interp.tasks import experts
        >>> run = interp.rollout(interp.load("wma-handwired", n_experts=2), experts.sample(4, 10, 2, seed=0))
        >>> tuple(read(run, "latents").shape)                                      # [episode, round, latent, d_model]
        (4, 10, 1, 38)
    """
    hook = _hook_of(site)
    if hook is None:
        return _of_latents(run, site, when)
    require(
        hook in run.cache and run.cached_rounds == tuple(range(run.n_rounds)),
        f"the rollout does not hold site {site!r} for every round; make it with names_filter=[{hook!r}], rounds='all'",
    )
    activation = run.cache[hook]
    return activation if site == UPDATE else activation[(slice(None), *Site.parse(site).index(run.layout))]


def _of_latents(run: Rollout, site: str, when: When) -> Tensor:
    if site == "latents":
        return run.latents[:, :-1] if when == "before" else run.latents[:, 1:]
    slots = run.slots[..., None, None].expand(-1, -1, 1, run.latents.shape[-1])
    after, before = (part.gather(2, slots).squeeze(2) for part in (run.latents[:, 1:], run.latents[:, :-1]))
    return after if site == "written" else after - before


def without_rounding(x: Float[np.ndarray, "episode round d"]) -> Float[np.ndarray, "episode round d"]:
    """Features that vary by less than the rounding of the largest activation, made constant.

    Scaling inputs to unit variance would make them as loud as the others: a handwired latent holds copies of the label
    at 1e-88, from attention that is almost but not quite 0, and a probe reads them.
    """
    floor = _ROUNDING * np.finfo(x.dtype).eps * np.abs(x).max()
    loud = x.std((0, 1), dtype=np.float64) > floor
    return x if loud.all() else np.where(loud, x, np.zeros(1, x.dtype))


def check_sites(model: Machine, episodes: Episodes, sites: list[str]) -> None:
    """Refuse sites that the model does not have."""
    layout = model.layout.fit(episodes)
    for site in sites:
        if _hook_of(site) is not None and site != UPDATE:
            check(Site.parse(site), model, layout)


def run_with_sites(model: Machine, episodes: Episodes, sites: list[str]) -> Rollout:
    """A rollout that caches what the sites need."""
    check_sites(model, episodes, sites)
    hooks = sorted({hook for hook in map(_hook_of, sites) if hook is not None})
    return rollout(model, episodes, names_filter=hooks or None)
