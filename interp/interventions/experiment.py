"""One experiment: change something in some rounds of a run, let the model run on, and read: one labelled array.

Every causal method is a function of what :func:`run` gives, an array ``[edit, episode, round, outcome]``. Each edit is
made in every one of ``rounds`` *apart from the other edits and rounds*; the round axis is labelled by (round edited,
round read). What an :class:`Edit` may be, how methods are made of it, and what results share:
docs/method/experiments.md. An effect is NOT one in the model's own use, where an edit puts in what never occurs there.

    >>> import interp
    >>> model, task = interp.load("wma-handwired", n_experts=2), interp.tasks.get("experts")
    >>> base, source = (interp.rollout(model, task.sample_for(model, 8, 6, seed=seed)) for seed in (0, 1))
    >>> edits = {"history": [Edit.of("latent", source, model)]}
    >>> found = run(Experiment(model, base, edits, rounds=[2, 3], horizon=2, reads="each"))
    >>> found.values.shape, found.rounds
    (torch.Size([1, 8, 6, 2]), ((2, 2), (2, 3), (2, 4), (3, 3), (3, 4), (3, 5)))
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Literal, NamedTuple

import numpy as np
import pandas as pd
import torch
from jaxtyping import Bool, Float
from numpy.typing import ArrayLike
from torch import Tensor

from interp.core.algorithm import participants_of
from interp.core.machine import Machine, runs_from
from interp.interventions.round_patcher import RoundPatcher
from interp.interventions.sites import Place, Site, tile, write
from interp.model.hooked import FiringCounter
from interp.model.layout import EncodedRounds, RoundLayout
from interp.model.rollout import Step, require_own, run_round
from interp.model.run import Rollout, select_rounds
from interp.results.measure import Result
from interp.stats.intervals import Interval, bootstrap_mean
from interp.support.checks import checked, checked_fields, fit
from interp.support.errors import require, require_known, theirs


@dataclass(frozen=True)
class Effects(Result):
    """What an experiment gave: one array ``[edit, episode, round, outcome]`` and the same of the unpatched run.

    ``rounds`` are (round edited, round read); ``outcomes`` name the last axis. ``seen`` holds what each edit left at
    the sites that were watched, ``[episode, round edited, ...]``. Where some rounds did not take place ``counted`` says
    which episodes have both rounds; values of the others are NaN, and count in no mean. ``participants`` are whose the
    episodes are, over whom intervals are.
    """

    edits: tuple[str, ...]
    rounds: tuple[tuple[int, int], ...]
    outcomes: tuple[str, ...]
    values: Float[Tensor, "edit episode round outcome"]
    unpatched: Float[Tensor, "episode round outcome"]
    seen: tuple[Mapping[Site, Tensor], ...] = ()
    counted: Bool[Tensor, "episode round"] | None = None
    participants: Any = None

    @property
    def effects(self) -> Float[Tensor, "edit episode round outcome"]:
        """Edited minus unpatched."""
        return self.values - self.unpatched

    @checked
    def to_frame(self, *, seed: int = 0) -> pd.DataFrame:
        """One row per edit, round and outcome, the largest mean effect first, with its 95 % interval over episodes."""
        effects, whose = self.effects.double().movedim(1, 0).numpy(force=True), self.participants
        if self.counted is None:
            summary: Any = bootstrap_mean(effects, seed=seed, participants=whose)
        else:
            rounds = [
                bootstrap_mean(
                    effects[of, :, i], seed=seed, participants=None if whose is None else whose[of]
                )
                for i, of in enumerate(self.counted.numpy(force=True).T)
            ]
            summary = (np.stack(one, 1) for one in zip(*rounds, strict=True))
        mean, low, high = (x.reshape(-1) for x in summary)
        names = [
            (e, *pair, out) for e in self.edits for pair in self.rounds for out in self.outcomes
        ]
        frame = pd.DataFrame(names, columns=["edit", "edited", "read", "outcome"])
        if self.counted is not None:
            n = dict(zip(self.rounds, self.counted.sum(0).tolist(), strict=True))
            frame["n_episodes"] = [
                n[pair] for pair in zip(frame["edited"], frame["read"], strict=True)
            ]
        return by_size(frame.assign(effect=mean, effect_low=low, effect_high=high))

    def _draw(self, figures: Any) -> Any:
        """A heat map of the mean size of the effect, by edit and by how many rounds after it the effect is read."""
        sizes = self.effects.abs().sum(-1).nanmean(1).numpy(force=True)
        lags = [read - edited for edited, read in self.rounds]
        by_lag = (
            pd.DataFrame(sizes, index=list(self.edits), columns=lags).T.groupby(level=0).mean().T
        )
        axes = {"label": "size", "xlabel": "rounds after the edit", "ylabel": "edit"}
        return figures.heatmaps({"effect by edit and lag": by_lag}, **axes)

    @property
    def sentence(self) -> str:
        """The largest effect, in a sentence."""
        first = self.to_frame().iloc[0]
        after = "" if first["read"] == first["edited"] else f" after round {first['edited']}"
        size = f"by {first['effect']:+.3g} in round {first['read']}{after}"
        return f"{first['edit']} moves outcome {first['outcome']} most: {size}."


@dataclass(frozen=True, eq=False, kw_only=True)
class Tabulated(Result):
    """A result whose sentence and table are made with it; ``picture`` draws it
    (:meth:`~interp.results.measure.Result.plot`)."""

    sentence: str = field()
    table: pd.DataFrame
    picture: Callable[[Any], Any]
    settings: dict[str, Any] = field(default_factory=dict)

    def to_frame(self) -> pd.DataFrame:
        """The table."""
        return self.table

    def _draw(self, figures: Any) -> Any:
        """The picture."""
        return self.picture(figures)


def by_size(frame: pd.DataFrame, by: str = "effect") -> pd.DataFrame:
    """A table with the largest sizes of a column first."""
    return frame.sort_values(by, key=np.abs, ascending=False, kind="stable", ignore_index=True)


def over(x: Mapping[str, ArrayLike], lines: Mapping[str, ArrayLike]) -> pd.DataFrame:
    """The table of :func:`interp.results.figures.curves` for lines over one named axis."""
    return pd.concat(
        [pd.DataFrame({**x, "algorithm": name, "mean": y}) for name, y in lines.items()]
    )


def named(rows: Mapping[str, Interval]) -> pd.DataFrame:
    """The table of :func:`interp.results.figures.intervals` for named intervals."""
    return pd.DataFrame([{"name": name, **vars(one)} for name, one in rows.items()])


CHUNK = 8192
"""Rows (episode x edited round) that are run at once."""
_Change = Callable[[Tensor], Tensor]  # a function from the activation at a site to its new value
Again = Callable[[int, int, Tensor], Tensor]
"""From the round edited, a later round and the state that it would read to the one that it reads."""


class Rows(NamedTuple):
    """Rounds of many episodes in one batch, ``[row, ...]``: row ``e * len(rounds) + i`` is episode e at round i."""

    latents: Tensor
    fed: EncodedRounds

    @classmethod
    def of(cls, run: Rollout, rounds: Sequence[int]) -> Rows:
        """Some rounds of every episode."""
        return cls(*run.rows(rounds))

    def part(self, rows: slice | Tensor) -> Rows:
        """Some of these rows."""
        return Rows(self.latents[rows], self.fed.each(lambda part: part[rows]))


def passed(
    model: Machine,
    rows: Rows,
    layout: RoundLayout,
    changes: Sequence[tuple[Site, _Change]] = (),
    watched: Sequence[Site] = (),
    commit: str = "target",
    gradient: bool = False,
    before: tuple[int, Tensor] | None = None,
) -> tuple[Step, dict[Site, Tensor]]:
    """One round of every row with the activations at some sites changed, and what is then at the ``watched`` sites.

    With ``commit="target"`` a round keeps the choice token that it was fed. What is watched is in the order computed.
    ``before`` is a layer and the residual stream before it, from which the round is run; the tokens when None.
    """
    names = list(dict.fromkeys(site.hook for site in (*(site for site, _ in changes), *watched)))
    kept: dict[Site, Tensor] = {}

    def at(name: str, activation: Tensor, hook: object) -> Tensor:
        for site, change in changes:
            if site.hook == name:
                activation = write(activation, site, layout, change(site.read(activation, layout)))
        kept.update({site: site.read(activation, layout) for site in watched if site.hook == name})
        return activation

    counter = FiringCounter([(name, partial(at, name)) for name in names])
    with torch.set_grad_enabled(gradient), model.hooks(fwd_hooks=counter.hooks):
        step = model.stepper() if runs_from(model) else None
        if before is not None:
            step = partial(model.step, before=before)  # type: ignore[call-arg]
        done = run_round(model, rows.fed, rows.latents, layout, commit, (), step)
    most = 1 + (commit == "own")  # a round whose own choice is committed is run again
    for name, times in zip(names, counter.fired, strict=True):
        require(
            1 <= times <= most,
            f"the hook at {name!r} fired {times} times in one round, which must be once",
        )
    return done, kept


@dataclass(frozen=True)
@checked_fields
class Edit:
    """What is put at one place in every edited round.

    Attributes:
        place: a site, and the subspace of its activation that is changed; None for what the rounds are fed.
        value: another run, whose value in the same round is taken; a tensor ``[episode, round, ...]``; encoded rounds
            (``place`` is None); or a function from the value there, ``[row, ...]``, and the rows to the new value.
        add: whether the tensor is added to what is there.
        again: what is written into what later rounds read, too: a function from the round edited, the later round and
            the state ``[episode, row, width]`` that it would read to the one that it reads.
    """

    place: Place | None
    value: Rollout | Tensor | EncodedRounds | Callable[[Tensor, slice], Tensor]
    add: bool = False
    again: Again | None = None

    @classmethod
    def of(
        cls, site: Place | Site | str, value: Any, model: Machine | None = None, add: bool = False
    ) -> Edit:
        """An edit at a place, a site or its text, of any transformer or of ``model``."""
        return cls(site if isinstance(site, Place) else Place.of(site, model=model), value, add)

    @property
    def is_whole(self) -> bool:
        """Whether it replaces all that is carried by a tensor, so that nothing has to be hooked."""
        at = self.place
        whole = (
            at is not None
            and at.site.component == "latent"
            and at.site.position is None
            and at.basis is None
        )
        return whole and isinstance(self.value, Tensor) and not self.add


@dataclass(frozen=True)
@checked_fields
class Outcome:
    """What is read of a round, as numbers: the one meaning of ``outcome`` in every method.

    Attributes:
        key: "prediction" (the distribution over outcomes), "state" (what the round writes into the algorithm's state)
            or "latents" (all that the round leaves).
        decode: latents to state for "state", a fitted map; the exact readout of a handwired model when None.
    """

    key: str = "prediction"
    decode: Callable[[Tensor], Tensor] | None = None

    def __post_init__(self) -> None:
        require_known("outcome", self.key, ("prediction", "state", "latents"))

    @classmethod
    def named(cls, outcome: str | Outcome) -> Outcome:
        """The outcome of that key; an :class:`Outcome` is returned as it is."""
        return cls(outcome) if isinstance(outcome, str) else fit("outcome", outcome, Outcome)

    def values(
        self,
        model: Machine,
        layout: RoundLayout,
        prediction: Tensor,
        carried: Tensor,
        slots: Tensor,
    ) -> Float[Tensor, "*axes number"]:
        """The outcome of rounds, from their predictions, what they left, and the slots that they wrote to."""
        if self.key == "prediction":
            return layout.distribution(prediction).double()
        axes = slots.ndim
        if self.key == "state":
            carried = layout.written((self.decode or model.read_state)(carried), slots)
        return (
            carried.flatten(axes).double()
            if carried.ndim > axes
            else carried.unsqueeze(-1).double()
        )


class Outputs(NamedTuple):
    """What some edits gave: predictions ``[edit, episode, round edited, rounds on, ...]``, what rounds left, which.

    ``carried`` is ``[edit, episode, round edited, read, row, width]``: after each read, or the last one alone. What is
    ``seen`` at the watched sites is ``[episode, round edited, ...]``, of a single edit.
    """

    edits: Sequence[int]
    predictions: Tensor
    carried: Tensor
    seen: Mapping[Site, Tensor] = {}


@dataclass(frozen=True)
@checked_fields
class Experiment:
    """What is changed in which rounds of a run, how far the model runs on from there, and what is read.

    Attributes:
        run: the rollout whose rounds are edited, run without hooks.
        edits: by name; those under one name are made together, and apart from all others.
        rounds: in each of which the edits are made, apart from the others.
        horizon: how many rounds the model runs on by itself after the edited one; less at the end of the run.
        reads: "last" reads the last of these rounds, "each" all of them from the edited one on.
        readout: an :class:`Outcome` or its key, or a function from :class:`Outputs` to numbers ``[edit, episode,
            (round edited, round read), outcome]``.
        propagate: False holds later rounds at what they read and predicted in ``run``.
        commit: whether edited rounds commit the choice that they make ("own") or keep the run's ("target").
        update: False where nothing that follows the prediction is read, which is then not run.
        watched: sites whose activations in the edited rounds the result holds, too.
        known: activations of the edited rounds without edits, as another experiment watched them: rounds whose first
            edit is in a layer before which the residual stream is known are run from there on.
    """

    model: Machine
    run: Rollout
    edits: Mapping[str, Sequence[Edit]]
    rounds: Sequence[int]
    horizon: int = 0
    reads: Literal["last", "each"] = "last"
    readout: str | Outcome | Callable[[Outputs], Tensor] = "prediction"
    propagate: bool = True
    commit: Literal["", "own", "target"] = ""
    update: bool = True
    watched: Sequence[Site] = ()
    known: Mapping[Site, Tensor] = field(default_factory=dict)

    def __post_init__(self) -> None:
        require(
            bool(self.edits) and self.horizon >= 0,
            "an experiment needs an edit and a horizon of 0 or more rounds",
        )
        every = [edit for of in self.edits.values() for edit in of]
        fits = all(
            not x.value.is_complex() if isinstance(x.value, Tensor) else not x.add for x in every
        )
        require(
            fits, "a tensor that is put holds real numbers, and nothing but a tensor can be added"
        )
        runs = [self.run, *(edit.value for edit in every if isinstance(edit.value, Rollout))]
        require(
            len({run.tokens.shape[:2] for run in runs}) == 1,
            "what is put has other episodes or rounds than run",
        )
        object.__setattr__(
            self, "rounds", tuple(select_rounds(list(self.rounds), self.run.n_rounds, twice=True))
        )
        object.__setattr__(self, "commit", self.commit or self.run.commit)

    @property
    def pairs(self) -> tuple[tuple[int, int], ...]:
        """(round edited, round read) of every place of the round axis."""
        ends = [min(t + self.horizon, self.run.n_rounds - 1) for t in self.rounds]
        read = [
            (t if self.reads == "each" else end, end)
            for t, end in zip(self.rounds, ends, strict=True)
        ]
        return tuple(
            (t, u)
            for t, (first, end) in zip(self.rounds, read, strict=True)
            for u in range(first, end + 1)
        )

    def read(self, ran: Outputs) -> Float[Tensor, "edit episode round outcome"]:
        """The outcomes of what was run."""
        if callable(self.readout):
            given = theirs("readout=")(self.readout)(ran)
            return fit("what readout= gives", given, Float[Tensor, "edit episode round outcome"])
        edited, lags = zip(*((self.rounds.index(t), u - t) for t, u in self.pairs), strict=True)
        reads = lags if self.reads == "each" else [0] * len(lags)
        slots, outcome = self.run.slots[:, [u for _, u in self.pairs]], Outcome.named(self.readout)
        predictions, carried = ran.predictions[:, :, edited, lags], ran.carried[:, :, edited, reads]
        several = zip(
            predictions, carried, strict=True
        )  # a decoder may be fitted for each episode, the first axis
        return torch.stack(
            [outcome.values(self.model, self.run.layout, p, left, slots) for p, left in several]
        )


@checked
def run(experiment: Experiment) -> Effects:
    """What an experiment gives."""
    select_rounds(
        experiment.rounds, experiment.run.n_rounds
    )  # each once: means over rounds would count it twice
    require_own(experiment.run, experiment.model)
    values: dict[int, Tensor] = {}
    seen: list[Mapping[Site, Tensor]] = []
    for ran in batches(experiment):
        values |= zip(ran.edits, experiment.read(ran), strict=True)
        seen += [ran.seen] * len(ran.edits)
    found = torch.stack([values[i] for i in range(len(experiment.edits))])
    base, on = experiment.run, range(experiment.horizon + 1)
    at = torch.tensor([[min(t + lag, base.n_rounds - 1) for lag in on] for t in experiment.rounds])
    left = at + 1 if experiment.reads == "each" else at[:, -1:] + 1
    plain = experiment.read(
        Outputs([], base.predictions[:, at].unsqueeze(0), base.latents[:, left].unsqueeze(0))
    )[0]
    named = experiment.run.layout.outcomes if experiment.readout == "prediction" else ()
    outcomes = (
        tuple(map(str, named))
        if len(named) == found.shape[-1]
        else tuple(map(str, range(found.shape[-1])))
    )
    # Which episodes have both rounds, and the edited one in what is put there, too.
    put = [edit.value for edits in experiment.edits.values() for edit in edits]
    fed = [
        one.fed if isinstance(one, Rollout) else one
        for one in put
        if isinstance(one, Rollout | EncodedRounds)
    ]
    none = torch.zeros_like(base.slots, dtype=torch.bool)
    own, *others = (none if one.missing is None else one.missing for one in (base.fed, *fed))
    edited = torch.stack([own, *others]).any(0)
    counted = ~torch.stack([edited[:, t] | own[:, u] for t, u in experiment.pairs], 1)
    for (t, u), some in zip(experiment.pairs, counted.any(0).tolist(), strict=True):
        require(
            some,
            f"no episode has both round {t}, which is edited, and round {u}, which is read; choose others",
        )
    found[:, ~counted] = torch.nan
    plain[~counted] = torch.nan
    counts = None if bool(counted.all()) else counted
    whose = None if base.episodes is None else participants_of(base.episodes)
    return Effects(
        tuple(experiment.edits),
        experiment.pairs,
        outcomes,
        found,
        plain,
        tuple(seen),
        counts,
        whose,
    )


def batches(experiment: Experiment) -> Iterator[Outputs]:
    """Every edit, several at a time where they share what is run."""
    edits, at = list(experiment.edits.values()), experiment.rounds
    source = edits[0][0].value if edits[0] else None
    alone = [one[0].place for one in edits if len(one) == 1 and one[0].value is source]
    cells = [place.site for place in alone if place is not None and place.is_whole]
    runs_on = experiment.commit == experiment.run.commit and (
        len(at) == 1 or experiment.horizon > 0
    )
    if (
        isinstance(source, Rollout)
        and len(cells) == len(edits)
        and runs_on
        and not experiment.watched
    ):
        yield from _taken(experiment, cells, source)
        return
    for i, together in enumerate(edits):
        prediction, left, seen = _edited(experiment, together)
        first = (x.unflatten(0, (1, -1, len(at))) for x in (prediction, left))
        ran = _run_on(experiment, [i], *first, again=[edit for edit in together if edit.again])
        yield ran._replace(seen={site: x.unflatten(0, (-1, len(at))) for site, x in seen.items()})


def run_on(
    model: Machine,
    run: Rollout,
    rounds: Sequence[int],
    horizon: int,
    latents: Tensor,
    again: Again | None = None,
) -> Outputs:
    """What ``horizon`` rounds give from each of ``rounds`` on, which reads ``latents``, all that is carried.

    These are ``[episode, round, row, width]``; ``again`` writes in later rounds (:class:`Edit`).
    """
    edits = {"state": [Edit(Place.of("latent", model=model), latents, again=again)]}
    return next(batches(Experiment(model, run, edits, rounds, horizon - 1)))


def _taken(experiment: Experiment, cells: Sequence[Site], source: Rollout) -> Iterator[Outputs]:
    """Whole sites, each taken from the source on its own: only what each can change is run."""
    x, update = experiment, experiment.update or experiment.horizon > 0
    patchers = [RoundPatcher(x.model, x.run, t, source, update=update) for t in x.rounds]
    if len(patchers) == 1:
        for found in patchers[0].cells(cells):
            rows = (
                x.unflatten(0, (len(found.cells), -1)).unsqueeze(2)
                for x in (found.predictions, found.latents)
            )
            yield _run_on(replace(x, propagate=x.propagate and not found.idle), found.cells, *rows)
        return
    for i, cell in enumerate(cells):
        by_round = [next(patcher.cells([cell])) for patcher in patchers]
        rows = (
            torch.stack([getattr(y, of) for y in by_round], 1).unsqueeze(0)
            for of in ("predictions", "latents")
        )
        yield _run_on(x, [i], *rows)


def _edited(
    experiment: Experiment, together: Sequence[Edit]
) -> tuple[Tensor, Tensor, dict[Site, Tensor]]:
    """The edited rounds, run part by part: what they predict, what they leave and what is watched, ``[row, ...]``."""
    base, model, layout = experiment.run, experiment.model, experiment.run.layout
    rounds = list(experiment.rounds)
    rows, found = Rows.of(base, rounds), []
    for edit in together:
        if isinstance(edit.value, EncodedRounds):
            rows = rows._replace(fed=edit.value.rows(rounds))
        elif edit.is_whole and isinstance(edit.value, Tensor):
            wanted = (base.n_episodes, len(rounds), *base.latents.shape[2:])
            require(
                tuple(edit.value.shape) == wanted,
                f"latents must be [episode, round, row, width] = {wanted}, got shape {tuple(edit.value.shape)}; change "
                "the rows of one channel in run.latents and give all rows",
            )
            rows = rows._replace(latents=edit.value.flatten(0, 1).to(base.latents))
    hooked = [edit for edit in together if edit.place is not None and not edit.is_whole]
    layer = min((edit.place.site.layer or 0 for edit in hooked if edit.place), default=0)
    resid = (
        experiment.known.get(Site("resid_pre", layer)) if experiment.commit == "target" else None
    )
    size = rows.fed.at_once(CHUNK)
    for part in (slice(start, start + size) for start in range(0, len(rows.latents), size)):
        changes = _changes(model, hooked, rounds, part, layout)
        before = None if resid is None else (layer, resid.flatten(0, 1)[part])
        about = experiment.watched, experiment.commit
        found.append(passed(model, rows.part(part), layout, changes, *about, before=before))
    seen = {site: torch.cat([kept[site] for _, kept in found]) for site in experiment.watched}
    return (
        torch.cat([x.prediction for x, _ in found]),
        torch.cat([x.latents for x, _ in found]),
        seen,
    )


def _changes(
    model: Machine, edits: Sequence[Edit], rounds: Sequence[int], part: slice, layout: RoundLayout
) -> list[tuple[Site, _Change]]:
    """Edits as changes of some rows: activations of other runs, each run once, tensors set or added, and functions."""
    changes: list[tuple[Site, _Change]] = []
    for source in {
        id(edit.value): edit.value for edit in edits if isinstance(edit.value, Rollout)
    }.values():
        places = [edit.place for edit in edits if edit.value is source and edit.place is not None]
        rows, sites = Rows.of(source, rounds).part(part), [place.site for place in places]
        with torch.no_grad():
            known = model.is_quiet() and all(site.component == "latent" for site in sites)
        # What is carried is read as it was left: no round has to be run to see it.
        seen = {site: site.read(rows.latents, layout) for site in sites} if known else {}
        seen = seen or passed(model, rows, layout, watched=sites)[1]
        changes += [(place.site, partial(place, source=seen[place.site])) for place in places]
    for edit in edits:
        if edit.place is not None and not isinstance(edit.value, Rollout):

            @theirs("value=")
            def change(
                own: Tensor,
                place: Place = edit.place,
                value: Any = edit.value,
                add: bool = edit.add,
            ) -> Tensor:
                new = (
                    value(own, part)
                    if callable(value)
                    else value.flatten(0, 1)[part].reshape(own.shape).to(own)
                )
                return place(own, own + new if add else new)

            changes.append((edit.place.site, change))
    return changes


def _run_on(
    experiment: Experiment,
    edits: Sequence[int],
    prediction: Tensor,
    carried: Tensor,
    *,
    again: Sequence[Edit] = (),
) -> Outputs:
    """The rounds after the edited ones, from ``[edit, episode, round edited, ...]`` that these predicted and left."""
    x, model, base, n = experiment, experiment.model, experiment.run, len(edits)
    predictions = prediction.new_full(
        (*prediction.shape[:3], x.horizon + 1, *prediction.shape[3:]), torch.nan
    )
    predictions[:, :, :, 0] = prediction
    with torch.no_grad():
        left, stepper = [carried], model.stepper() if runs_from(model) else None
    for lag in range(1, x.horizon + 1):
        alive = [i for i, t in enumerate(x.rounds) if t + lag < base.n_rounds]
        at = [x.rounds[i] + lag for i in alive]
        if not alive:
            break
        now = carried[:, :, alive]
        for i, t in enumerate(at):
            for edit in again:
                assert edit.again is not None
                now[:, :, i] = torch.stack(
                    [edit.again(x.rounds[alive[i]], t, state) for state in now[:, :, i]]
                )
        if x.propagate:
            fed, shape = base.fed.rows(at).each(partial(tile, times=n)), now.shape[:3]
            latents = now.flatten(0, 2)
            with torch.no_grad():
                if lag == x.horizon and not x.update and runs_from(model) and model.is_quiet():
                    predicted = model.predict(fed.tokens, latents, fed.values)  # type: ignore[attr-defined]
                    prediction, _ = fed.settled(predicted, latents, latents)
                else:
                    done = run_round(model, fed, latents, base.layout, base.commit, (), stepper)
                    prediction, latents = done.prediction, done.latents
            prediction, now = prediction.unflatten(0, shape), latents.unflatten(0, shape)
        else:
            kept = base.predictions[:, at], base.latents[:, [t + 1 for t in at]]
            prediction, now = (y.expand(n, *y.shape) for y in kept)
        predictions[:, :, alive, lag] = prediction
        carried = carried.clone()
        carried[:, :, alive] = now
        left.append(carried)
    return Outputs(
        edits, predictions, torch.stack(left, 3) if x.reads == "each" else carried.unsqueeze(3)
    )
