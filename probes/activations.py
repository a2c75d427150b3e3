"""Read activations of a rollout at a site, as an array ``[episode, round, ...]``.

A site is one of:

* ``latents``: everything that the model carries, after each round (or before it, for targets with
  the moment "before"); ``latents@h``: the part of it that the machine names ``h`` (a channel), such
  as the hidden vector of an LSTM;
* ``written``: the latent that the round writes, after the round. A model with several latents may
  write only one of them in each round;
* ``change``: this latent after the round, minus the same latent before the round;
* ``update``: the vector that a transformer wrote (``hook_update``);
* any site of ``interp.interventions.sites``, such as ``resid_post[2]@w?``. The site ``latent`` is
  the state that a round reads. For a state after the round, it is the state that the round leaves,
  as ``latents`` is, so that the state and the target are always of the same moment.

If a machine has a hook point of one of these names, the hook point is read.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Bool, Float
from torch import Tensor

from interp.core.algorithm import Episodes
from interp.core.machine import Machine
from interp.interventions.sites import Site, resolve_site
from interp.model.run import Rollout
from interp.support.checks import checked, checked_fields
from interp.support.errors import InputError, require, unknown_name
from probes.values import When

OF_LATENTS = ("latents", "written", "change")
UPDATE = "update"
CARRIED_HOOK = "hook_latents"
"""Name of the hook point of the latents that a round reads."""

_ROUNDING_ULPS = 8.0
"""Units in the last place of the largest activation; what varies less is not read."""


@dataclass(frozen=True)
@checked_fields
class ProbedSite:
    """A site (activation in a round) that was looked up in a machine: what to read from a rollout
    of that machine.

    Attributes:
        name: the site as the user wrote it.
        hook: name of its hook point; None if the site is part of the latents, which the machine
            carries from round to round.
        site: which part of the hook point's activation is read; None for all of it.
        rows: if the site is one channel (named part) of the latents, the slice of latents that
            belong to it; None for all latents.
        width: number of coordinates that this channel uses in each latent; the rest is padding.
            None for all.
    """

    name: str
    hook: str | None = None
    site: Site | None = None
    rows: slice | None = None
    width: int | None = None

    def __str__(self) -> str:
        return self.name


_WRITES_ALL = (
    "{word!r} is the one latent that a round writes, but a round of {name!r} writes all that it carries, {carried}; "
    "read latents, or one channel as latents@CHANNEL"
)


def place(site: str | Site | ProbedSite, model: Machine | None = None) -> ProbedSite:
    """Look up a site in a machine, so that :func:`read` can read it from a rollout.

    Args:
        site: the site: text, such as "latents" or "resid_post[2]@w?" (:mod:`probes.activations`),
            or a :class:`~interp.interventions.sites.Site`. The result of an earlier call is
            returned unchanged.
        model: the machine; None assumes a transformer.

    Returns:
        What :func:`read` needs to read the site from a rollout.
    """
    if isinstance(site, ProbedSite):
        return site
    if isinstance(site, Site):
        return ProbedSite(str(site), site.hook, site)
    word, at_sign, part = site.partition("@")
    # A machine's hook point of this name comes first, also as point[layer].
    is_own_point = model is not None and word.partition("[")[0] in model.points
    if word == "latents" and at_sign and not is_own_point:
        return _place_channel(site, part, model)
    if word in OF_LATENTS and not is_own_point:
        if word != "latents":
            _require_one_channel(site, word, model)
        return ProbedSite(site)
    if site == UPDATE and not is_own_point:
        _require_update(model)
        return ProbedSite(site, "hook_update")
    try:
        parsed = Site.parse(site, model)
    except InputError as error:
        names = ", ".join((*OF_LATENTS, UPDATE))
        hint = "" if model else "; a machine of your own has points of its own: give model="
        raise InputError(f"{error}; or one of: {names}{hint}") from None
    return ProbedSite(site, parsed.hook, parsed)


def _require_update(model: Machine | None) -> None:
    """Raise InputError if a machine has no hook point "hook_update", from which the site "update"
    is read.

    Args:
        model: the machine; None skips the check.
    """
    if model is None:
        return
    try:
        model.hook_names("hook_update")
    except InputError:
        channels = [f"latents@{channel.name}" for channel in model.channels]
        carried = ", ".join(["latents", *channels])
        points = ", ".join(model.points)
        raise InputError(
            f"{model.name!r} writes no update vector, so it has no site {UPDATE!r}; read what it carries, "
            f"{carried}, or one of its points, {points}"
        ) from None


def _require_one_channel(site: str, word: str, model: Machine | None) -> None:
    """Refuse the sites "written" and "change" if they are followed by "@", or if the machine
    carries several channels (named parts of the latents).

    Args:
        site: the site as the user wrote it.
        word: "written" or "change".
        model: the machine; None skips the check of channels.
    """
    require(
        site == word, f"site {word!r} takes no @, got {site!r}; for a channel read latents@CHANNEL"
    )
    if model is not None:
        carried = ", ".join(channel.name for channel in model.channels)
        refusal = _WRITES_ALL.format(word=word, name=model.name, carried=carried)
        require(len(model.channels) == 1, refusal)


def _place_channel(site: str, name: str, model: Machine | None) -> ProbedSite:
    """Look up a site of the form "latents@NAME", where NAME is a channel (named part of the
    latents) or the label of one latent.

    The latents of a machine are the rows of a matrix, in which each channel has its own rows.

    Args:
        site: the site as the user wrote it.
        name: name of the channel, or label of the latent.
        model: the machine.
    """
    if model is None:
        raise InputError(f"{site!r} is a channel of a machine, which nobody named; give model=")
    rows_and_width: dict[str, tuple[slice, int]] = {}
    start = 0
    for channel in model.channels:
        width = channel.shape[-1]
        stop = start + channel.rows
        rows_and_width[channel.name] = (slice(start, stop), width)
        for row, label in enumerate(channel.labels, start):
            # A label that two channels use means the first; a channel's name comes before a label.
            rows_and_width.setdefault(label, (slice(row, row + 1), width))
        start = stop
    if name not in rows_and_width:
        raise unknown_name(f"channel of {model.name!r}:", name, rows_and_width, limit=20)
    rows, width = rows_and_width[name]
    return ProbedSite(site, rows=rows, width=width)


@checked
def read(
    run: Rollout, site: str | Site | ProbedSite, when: When = "after", model: Machine | None = None
) -> Float[Tensor, "episode round *rest"]:
    """Return the activations at a site in all rounds of a rollout, ``[episode, round, ...]``.

    Args:
        run: the rollout.
        site: the site, such as "latents" or "resid_post[2]@w?" (:mod:`probes.activations`). The
            site "written" is the latent that the round writes, after the round; "change" is this
            latent after the round minus the same latent before it.
        when: for the sites "latents" and "latent" and their channels (named parts): "after" reads
            the latents after each round, "before" those before it. "round" reads those after it at
            "latents", and those before it at "latent". Other sites ignore it.
        model: the machine of the run, which is needed to look up channels, and hook points that
            transformers do not have.

    >>> import interp
    >>> from interp.tasks import experts
    >>> run = interp.rollout(interp.load("wma-handwired", n_experts=2), experts.sample(4, 10, 2, seed=0))
    >>> tuple(read(run, "latents").shape)                                      # [episode, round, latent, d_model]
    (4, 10, 1, 38)
    """
    probed = place(site, model)
    if probed.hook == CARRIED_HOOK and when == "after":
        return _select_part(run, probed, run.latents[:, 1:])
    if probed.hook is not None:
        return _read_hook(run, probed, probed.hook)
    # [episode, round, latent, d_model]; run.latents also has the start, before the first round.
    before, after = run.latents[:, :-1], run.latents[:, 1:]
    if probed.name in ("written", "change"):
        after = _select_write_slot(run, after, probed.name)
        if probed.name == "written":
            return after
        return after - _select_write_slot(run, before, probed.name)
    carried = before if when == "before" else after
    if probed.rows is None:
        return carried
    part = carried[:, :, probed.rows, : probed.width]
    return part.squeeze(2) if part.shape[2] == 1 else part  # a single row needs no axis


def _read_hook(run: Rollout, probed: ProbedSite, hook: str) -> Float[Tensor, "episode round *rest"]:
    """Return the activation at a hook point from a rollout's cache, ``[episode, round, ...]``.

    Args:
        run: the rollout.
        probed: the site that the user named. If it is only a part of the activation, such as one
            position, this part is returned.
        hook: name of the hook point.

    Raises:
        InputError: the rollout did not cache this hook point in every round.
    """
    has_every_round = run.cached_rounds == tuple(range(run.n_rounds))
    hint = ""
    if hook == CARRIED_HOOK:
        hint = "; that is the state before each round, and 'latents', which needs no cache, the state after it"
    require(
        hook in run.cache and has_every_round,
        f"the rollout does not hold site {probed.name!r} for every round; make it with "
        f"names_filter=[{hook!r}], rounds='all'{hint}",
    )
    return _select_part(run, probed, run.cache[hook])


def _select_part(
    run: Rollout, probed: ProbedSite, activation: Float[Tensor, "episode round *axes"]
) -> Float[Tensor, "episode round *rest"]:
    """Return the part of an activation that a site names, such as one position.

    Args:
        run: the rollout, for the layout of its rounds.
        probed: the site.
        activation: activation of the site's component in all rounds.
    """
    if probed.site is None:  # the whole activation is read
        return activation
    # The site's index begins with the axis of episodes in a round, [episode, ...]. The cache has a
    # further axis, [episode, round, ...], of which all is read.
    return activation[(slice(None), *probed.site.index(run.layout))]


def find_absent(run: Rollout, probed: ProbedSite) -> Bool[np.ndarray, "episode round"] | None:
    """Find the rounds in which a site was not computed, because the machine decides how many
    iterations a round has.

    Such a round has NaN at the site, but finite latents after it. If the latents are not finite
    either, the machine has overflowed, and the round does not count.

    Args:
        run: the rollout.
        probed: the site.

    Returns:
        A mask, True for these rounds, ``[episode, round]``; None if there are none.
    """
    if probed.hook in (None, CARRIED_HOOK):  # the latents exist in every round
        return None
    is_nan = _read_hook(run, probed, probed.hook).flatten(2).isnan().any(2)
    is_finite = run.latents[:, 1:].flatten(2).isfinite().all(2)
    absent = (is_nan & is_finite).numpy(force=True)
    return absent if absent.any() else None


def _select_write_slot(
    run: Rollout, latents: Float[Tensor, "episode round latent d"], word: str
) -> Float[Tensor, "episode round d"]:
    """Select the latent in the slot that each round writes, ``[episode, round, d_model]``.

    Args:
        run: the rollout, for the slot of each round.
        latents: all carried latents, ``[episode, round, latent, d_model]``.
        word: name of the site, for the error message.
    """
    n_latents, width = latents.shape[2:]
    if n_latents == 1:
        return latents[:, :, 0]
    carried = f"{n_latents} rows"
    refusal = _WRITES_ALL.format(word=word, name=run.settings.get("model"), carried=carried)
    # A machine whose latents are not those of the layout has no slots: it writes all at once.
    require(n_latents == run.layout.n_latents, refusal)
    # gather needs the slot's index in every coordinate: [episode, round, 1, d_model].
    slots = run.slots[..., None, None].expand(-1, -1, 1, width)
    return latents.gather(2, slots).squeeze(2)


def without_rounding(
    x: Float[np.ndarray, "episode round d"],
) -> tuple[Float[np.ndarray, "episode round d"], str]:
    """Set features that vary only by rounding errors to 0: those with a standard deviation of at
    most 8 units in the last place of the largest absolute value in ``x``.

    A probe standardises its features, and would enlarge such errors to the size of the others
    (docs/method/probes.md).

    Args:
        x: features ``[episode, round, feature]``.

    Returns:
        The pair (``x`` with these features set to 0, warning). The warning is a text if at least
        half of the features that vary at all were set to 0, otherwise "".
    """
    rounding = _ROUNDING_ULPS * np.finfo(x.dtype).eps * np.abs(x).max()
    is_read = x.std((0, 1), dtype=np.float64) > rounding
    if is_read.all():
        return x, ""
    # Of the features set to 0, those that vary at all. A range below 1e-30 counts as none, since
    # numbers such as exp(-200) stand for 0 in handwired machines.
    is_hidden = np.ptp(x[..., ~is_read], (0, 1)) > 1e-30
    n_hidden = int(is_hidden.sum())
    n_varying = int(is_read.sum()) + n_hidden
    sentence = ""
    if 0 < n_varying <= 2 * n_hidden:  # at least half
        sentence = (
            f"{n_hidden} of {n_varying} features vary by less than the rounding of the largest activation; "
            "scale them first"
        )
    return np.where(is_read, x, np.zeros(1, x.dtype)), sentence


def places(
    model: Machine, episodes: Episodes, sites: Sequence[str | ProbedSite]
) -> list[ProbedSite]:
    """Look up sites in a machine, so that :func:`read` can read them from its rollout of these
    episodes. A site that it does not have is an error.

    Args:
        model: the machine.
        episodes: the episodes that it runs.
        sites: the sites as text, or as results of :func:`place`.
    """
    layout = model.layout.fit(episodes)
    probed_sites = [place(site, model) for site in sites]
    for probed in probed_sites:
        if probed.site is not None:
            resolve_site(probed.site, model, layout)
    return probed_sites
