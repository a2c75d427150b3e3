"""Where a probe reads: sites of a rollout as arrays ``[episode, round, ...]``.

* ``latents``: all that is carried, after each round (before it, for a target meant before); ``latents@h``: one channel;
* ``written``: the latent in the slot that the round writes, after the round; ``change``: how the round changed it;
* ``update``: the vector that a transformer wrote (``hook_update``);
* anything else in the words of ``interp.interventions.sites``, of which a machine's own points come first.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float
from torch import Tensor

from interp.core.algorithm import Episodes
from interp.core.machine import Machine
from interp.interventions.sites import Site, resolve
from interp.model.run import Rollout
from interp.support.checks import checked
from interp.support.errors import InputError, require, unknown_name
from probes.values import When

OF_LATENTS = ("latents", "written", "change")
UPDATE = "update"

_ROUNDING = 8.0  # units in the last place of the largest activation; what varies less is not read


@dataclass(frozen=True)
class ProbedSite:
    """A site of a machine, found: what reads a run without asking the machine again.

    Attributes:
        name, hook: the site, as it was asked for, and its hook point; None where what is carried is enough.
        site: which part of the activation there; None for all of it.
        rows, width: of a channel, in what is carried; None for all.
    """

    name: str
    hook: str | None = None
    site: Site | None = None
    rows: slice | None = None
    width: int | None = None

    def __str__(self) -> str:
        return self.name


def place(site: str | Site | ProbedSite, model: Machine | None = None) -> ProbedSite:
    """The place that a site names, in a machine, or in any transformer."""
    if isinstance(site, ProbedSite):
        return site
    if isinstance(site, Site):
        return ProbedSite(str(site), site.hook, site)
    word, at, part = site.partition("@")
    own = model is not None and word.partition("[")[0] in model.points
    if word in OF_LATENTS and not own:
        return _of_what_is_carried(site, word, part if at else None, model)
    if site == UPDATE and not own:
        if model is None:
            return ProbedSite(site, "hook_update")
        try:
            model.hook_names("hook_update")
        except InputError:
            carried = ["latents", *(f"latents@{channel.name}" for channel in model.channels)]
            raise InputError(
                f"{model.name!r} writes no update vector, so it has no site {UPDATE!r}; read what it carries, "
                f"{', '.join(carried)}, or one of its points, {', '.join(model.points)}"
            ) from None
        return ProbedSite(site, "hook_update")
    try:
        parsed = Site.parse(site, model)
    except InputError as error:
        hint = (
            ""
            if model is not None
            else "; a machine of your own has points of its own: give model="
        )
        raise InputError(f"{error}; or one of: {', '.join((*OF_LATENTS, UPDATE))}{hint}") from None
    return ProbedSite(site, parsed.hook, parsed)


_WRITES_ALL = (
    "{word!r} is the one latent that a round writes, but a round of {name!r} writes all that it carries, {carried}; "
    "read latents, or one channel as latents@CHANNEL"
)


def _of_what_is_carried(
    site: str, word: str, part: str | None, model: Machine | None
) -> ProbedSite:
    if word != "latents":
        require(
            part is None,
            f"site {word!r} takes no @, got {site!r}; for a channel read latents@CHANNEL",
        )
        if model is not None:
            carried = ", ".join(channel.name for channel in model.channels)
            require(
                len(model.channels) == 1,
                _WRITES_ALL.format(word=word, name=model.name, carried=carried),
            )
        return ProbedSite(site)
    if part is None:
        return ProbedSite(site)
    if model is None:
        raise InputError(f"{site!r} is a channel of a machine, which nobody named; give model=")
    known: dict[str, tuple[slice, int]] = {}
    start = 0
    for channel in model.channels:
        width = channel.shape[-1]
        known[channel.name] = slice(start, start + channel.rows), width
        for i, label in enumerate(channel.labels):
            known.setdefault(label, (slice(start + i, start + i + 1), width))
        start += channel.rows
    if part not in known:
        raise unknown_name(f"channel of {model.name!r}:", part, known, limit=20)
    return ProbedSite(site, rows=known[part][0], width=known[part][1])


@checked
def read(
    run: Rollout, site: str | Site | ProbedSite, when: When = "after", model: Machine | None = None
) -> Float[Tensor, "episode round *rest"]:
    """The activations at a site, one entry per round.

    Args:
        when: for what is carried: "after" each round, or "before" it.
        model: whose run it is; needed for names that are its own: its channels, and points that no transformer has.

    >>> import interp
    >>> from interp.tasks import experts
    >>> run = interp.rollout(interp.load("wma-handwired", n_experts=2), experts.sample(4, 10, 2, seed=0))
    >>> tuple(read(run, "latents").shape)                                      # [episode, round, latent, d_model]
    (4, 10, 1, 38)
    """
    found = place(site, model)
    if found.hook is not None:
        require(
            found.hook in run.cache and run.cached_rounds == tuple(range(run.n_rounds)),
            f"the rollout does not hold site {found.name!r} for every round; make it with "
            f"names_filter=[{found.hook!r}], rounds='all'",
        )
        activation = run.cache[found.hook]
        return (
            activation
            if found.site is None
            else activation[(slice(None), *found.site.index(run.layout))]
        )
    before, after = run.latents[:, :-1], run.latents[:, 1:]
    if found.name in ("written", "change"):
        if run.latents.shape[2] == 1:
            after, before = after[:, :, 0], before[:, :, 0]
        else:
            said = {
                "word": found.name,
                "name": run.settings.get("model"),
                "carried": f"{run.latents.shape[2]} rows",
            }
            require(run.latents.shape[2] == run.layout.n_latents, _WRITES_ALL.format(**said))
            slots = run.slots[..., None, None].expand(-1, -1, 1, run.latents.shape[-1])
            after, before = (part.gather(2, slots).squeeze(2) for part in (after, before))
        return after if found.name == "written" else after - before
    carried = before if when == "before" else after
    if found.rows is None:
        return carried
    part = carried[:, :, found.rows, : found.width]
    return part.squeeze(2) if part.shape[2] == 1 else part


def without_rounding(
    x: Float[np.ndarray, "episode round d"],
) -> tuple[Float[np.ndarray, "episode round d"], str]:
    """Features that vary by less than the rounding of the largest activation, made constant (docs/method/probes.md).

    The sentence beside them is empty where less than half of the features that vary do so.
    """
    loud = x.std((0, 1), dtype=np.float64) > (_ROUNDING * np.finfo(x.dtype).eps * np.abs(x).max())
    n_unread = int(
        (np.ptp(x[..., ~loud], (0, 1)) > 1e-30).sum()
    )  # less stands for 0, as exp(-200) in exact machines
    n = int(loud.sum()) + n_unread
    hidden = f"{n_unread} of {n} features vary by less than the rounding of the largest activation; scale them first"
    read = x if loud.all() else np.where(loud, x, np.zeros(1, x.dtype))
    return read, hidden if 0 < n <= 2 * n_unread else ""


def places(
    model: Machine, episodes: Episodes, sites: Sequence[str | ProbedSite]
) -> list[ProbedSite]:
    """The places that sites name in a machine, for these episodes; those that it does not have are refused."""
    layout = model.layout.fit(episodes)
    found = [place(site, model) for site in sites]
    for one in found:
        if one.site is not None:
            resolve(one.site, model, layout)
    return found
