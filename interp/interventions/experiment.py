"""One experiment: change something in some rounds of a run, let the model run on, and read: one
labelled array.

Every causal method is a function of what :func:`run` gives, an array ``[edit, episode, round,
outcome]``. Each edit is made in every one of ``rounds``, separately from the other edits and
rounds; the round axis is labelled by (round edited, round read). An edit that has ``rounds``
itself is made in all of them together, as the model runs on. What an :class:`Edit` may be, how
methods are made of it, and what results share: docs/method/experiments.md. An effect is NOT
evidence about normal use where an edit puts in what never occurs there.

    >>> import interp
    >>> model, task = interp.load("wma-handwired", n_experts=2), interp.tasks.get("experts")
    >>> base, source = (interp.rollout(model, task.sample_for(model, 8, 6, seed=seed)) for seed in (0, 1))
    >>> edits = {"history": [Edit.of("latent", source, model)]}
    >>> found = run(Experiment(model, base, edits, rounds=[2, 3], horizon=2, reads="each"))
    >>> found.values.shape, found.rounds
    (torch.Size([1, 8, 6, 2]), ((2, 2), (2, 3), (2, 4), (3, 3), (3, 4), (3, 5)))

A head's output from round 2 on, all rounds together:

    >>> edits = {"L1H0": [Edit.of("L1H0", source, model, rounds=slice(2, None))]}
    >>> run(Experiment(model, base, edits, rounds=2, horizon=3, reads="each")).rounds
    ((2, 2), (2, 3), (2, 4), (2, 5))
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Literal, NamedTuple, cast

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
from interp.model.run import Rollout, Rounds, select_rounds
from interp.results.measure import Result
from interp.stats.intervals import Interval, bootstrap_mean
from interp.support.checks import checked, checked_fields, checked_result, fit
from interp.support.errors import InputError, require, require_known, theirs


@dataclass(frozen=True)
@checked_result
class Effects(Result):
    """The result of an experiment: one array ``[edit, episode, round, outcome]`` and the same of
    the unpatched run.

    Attributes:
        edits: their names.
        rounds: (round edited, round read) of every place of the round axis.
        outcomes: names of the last axis.
        seen: what each edit left at the sites that were watched, ``[episode, round edited, ...]``.
        counted: which episodes have both rounds; None where all do. Values of the remaining
            episodes are NaN, and count in no mean, as those of an edit of a loop's run that did not
            take place.
        participants: who played the episodes; intervals are over them.
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

    def require_taken(self, analysis: str) -> Effects:
        """Return the effects, unless an edit was of a loop's run that did not take place in an episode and round.

        Args:
            analysis: what counts all of them, in words.
        """
        is_void = self.values.isnan().any(-1) & ~self.unpatched.isnan().any(-1)
        n_void = is_void.flatten(1).sum(1)
        if n_void.any():
            worst = int(n_void.argmax())
            raise InputError(
                f"{self.edits[worst]!r} edits runs that did not take place in {int(n_void[worst])} of "
                f"{is_void[0].numel()} pairs of episode and round, and {analysis} counts all; take an earlier run of "
                "the loop, or patching.sweep, which leaves those episodes out"
            )
        return self

    @checked
    def to_frame(self, *, seed: int = 0) -> pd.DataFrame:
        """Return one row per edit, round and outcome, the largest mean effect first, with its 95 % interval."""
        mean, low, high, n_episodes = self._summarize(seed)
        names = [
            (edit, *rounds, outcome)
            for edit in self.edits
            for rounds in self.rounds
            for outcome in self.outcomes
        ]
        frame = pd.DataFrame(names, columns=["edit", "edited", "read", "outcome"])
        if n_episodes.min() < self.values.shape[1]:
            frame["n_episodes"] = n_episodes.repeat(len(self.outcomes))
        frame["effect"] = mean.reshape(-1)
        frame["effect_low"] = low.reshape(-1)
        frame["effect_high"] = high.reshape(-1)
        return by_size(frame)

    def _summarize(self, seed: int) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
        """Return means and ends of intervals, ``[edit, round, outcome]`` each, and of how many episodes each is."""
        effects = self.effects.double().movedim(1, 0).numpy(force=True)
        is_counted = ~np.isnan(effects).any(-1)
        n_episodes = is_counted.sum(0)
        if is_counted.all():
            summary = bootstrap_mean(effects, seed=seed, participants=self.participants)
            return (*summary, n_episodes)
        bounds = np.full((3, *effects.shape[1:]), np.nan)
        for i in range(len(self.rounds)):
            patterns, edits = np.unique(is_counted[:, :, i], axis=1, return_inverse=True)
            for which, episodes in enumerate(patterns.T):
                if not episodes.any():
                    continue
                players = None if self.participants is None else self.participants[episodes]
                of_pattern = effects[episodes, :, i][:, edits.ravel() == which]
                summary = bootstrap_mean(of_pattern, seed=seed, participants=players)
                bounds[:, edits.ravel() == which, i] = summary
        return (*bounds, n_episodes)

    def _draw(self, figures: Any) -> Any:
        """Draw a heat map of the mean size of effects, by edit and round; by rounds after the edit where several."""
        sizes = self.effects.abs().sum(-1).nanmean(1).numpy(force=True)
        starts = {edited for edited, _ in self.rounds}
        if len(starts) == 1:
            columns, xlabel = [read for _, read in self.rounds], "round"
        else:
            columns, xlabel = (
                [read - edited for edited, read in self.rounds],
                "rounds after the edit",
            )
        by_round = pd.DataFrame(sizes, index=list(self.edits), columns=columns)
        means = by_round.T.groupby(level=0).mean().T
        title = f"effect by edit and {'round' if len(starts) == 1 else 'lag'}"
        return figures.heatmaps({title: means}, label="size", xlabel=xlabel, ylabel="edit")

    @property
    def sentence(self) -> str:
        """The largest effect, in a sentence."""
        first = self.to_frame().iloc[0]
        if np.isnan(first["effect"]):
            return f"{first['edit']} leaves outcomes without a number, such as {first['outcome']}."
        if first["effect"] == 0:
            return "No edit moves an outcome."
        after = "" if first["read"] == first["edited"] else f" after round {first['edited']}"
        size = f"by {first['effect']:+.3g} in round {first['read']}{after}"
        return f"{first['edit']} moves outcome {first['outcome']} most: {size}."


@dataclass(frozen=True, eq=False, kw_only=True)
@checked_result
class Tabulated(Result):
    """A result that is made with its sentence and its table; ``picture`` draws it
    (:meth:`~interp.results.measure.Result.plot`).
    """

    sentence: str = field()
    table: pd.DataFrame
    picture: Callable[[Any], Any]
    settings: dict[str, Any] = field(default_factory=dict)

    def to_frame(self) -> pd.DataFrame:
        """Return the table."""
        return self.table

    def _draw(self, figures: Any) -> Any:
        """Draw the picture."""
        return self.picture(figures)


def by_size(frame: pd.DataFrame, by: str = "effect") -> pd.DataFrame:
    """Sort a table by the size of a column, the largest first."""
    return frame.sort_values(by, key=np.abs, ascending=False, kind="stable", ignore_index=True)


def over(x: Mapping[str, ArrayLike], lines: Mapping[str, ArrayLike]) -> pd.DataFrame:
    """Make the table of :func:`interp.results.figures.curves` for lines over one named axis."""
    frames = [pd.DataFrame({**x, "algorithm": name, "mean": y}) for name, y in lines.items()]
    return pd.concat(frames)


def named(rows: Mapping[str, Interval]) -> pd.DataFrame:
    """Make the table of :func:`interp.results.figures.intervals` for named intervals."""
    return pd.DataFrame([{"name": name, **vars(interval)} for name, interval in rows.items()])


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
        """Take some rounds of every episode.

        Args:
            run: the rollout.
            rounds: indices.
        """
        return cls(*run.rows(rounds))

    def part(self, rows: slice | Tensor) -> Rows:
        """Take some of these rows."""
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
    """Run one round of every row with the activations at some sites changed.

    Args:
        model: the machine.
        rows: what the rounds read.
        layout: of the rounds.
        changes: sites, and functions from the activation ``[row, ...]`` there to the new one.
        watched: sites that are looked at.
        commit: "target" leaves the choice token that a round was fed, "own" commits the choice that
            it makes.
        gradient: whether gradients are followed.
        before: a layer and the residual stream before it, from which the round is run; the tokens
            when None.

    Returns:
        What the round gives, and what is then at the watched sites, in the order computed.
    """
    sites = [*(site for site, _ in changes), *watched]
    names = list(dict.fromkeys(site.hook for site in sites))
    activations: dict[Site, Tensor] = {}

    def visit(name: str, activation: Tensor, hook: object) -> Tensor:
        for site, change in changes:
            if site.hook == name:
                new = change(site.read(activation, layout))
                activation = write(activation, site, layout, new)
        for site in watched:
            if site.hook == name:
                activations[site] = site.read(activation, layout)
        return activation

    counter = FiringCounter([(name, partial(visit, name)) for name in names])
    with torch.set_grad_enabled(gradient), model.hooks(fwd_hooks=counter.hooks):
        step = model.stepper() if runs_from(model) else None
        if before is not None:
            step = partial(model.step, before=before)  # type: ignore[call-arg]
        done = run_round(model, rows.fed, rows.latents, layout, commit, (), step)
    limit = 2 if commit == "own" else 1  # a round whose own choice is committed is run again
    for name, times in zip(names, counter.fired, strict=True):
        require(
            1 <= times <= limit,
            f"the hook at {name!r} fired {times} times in one round, which must be once",
        )
    return done, activations


@dataclass(frozen=True)
@checked_fields
class Edit:
    """What is put at one place in every edited round.

    Attributes:
        place: a site, and the subspace of its activation that is changed; None for what the rounds
            are fed.
        value: another run, which gives its value in the same round; a tensor ``[episode, round,
            ...]``; encoded rounds (``place`` is None); or a function from the value there, ``[row,
            ...]``, and the rows to the new value.
        add: whether the tensor is added to what is there.
        again: what is written into what later rounds read, too: a function from the round edited,
            the later round and the state ``[episode, row, width]`` that it would read to the one
            that it reads.
        rounds: the rounds in which the edit is made *together*, as the model runs on from the one
            that the experiment starts at: an int, a slice, a list or "all". A tensor then holds
            ``[episode, round, ...]`` of these rounds. When None the edit is made in the
            experiment's rounds alone.
    """

    place: Place | None
    value: Rollout | Tensor | EncodedRounds | Callable[[Tensor, slice], Tensor]
    add: bool = False
    again: Again | None = None
    rounds: Rounds | None = None

    @classmethod
    def of(
        cls,
        site: Place | Site | str,
        value: Any,
        model: Machine | None = None,
        add: bool = False,
        rounds: Rounds | None = None,
    ) -> Edit:
        """Make an edit at a place, a site or its text, of any transformer or of ``model``.

        Args:
            site: where, such as "latent" or "L1H0@p?".
            value, add, rounds: as in :class:`Edit`.
        """
        place = site if isinstance(site, Place) else Place.of(site, model=model)
        return cls(place, value, add, rounds=rounds)

    @property
    def is_whole(self) -> bool:
        """Whether it replaces all that is carried by a tensor, so that no hook is needed."""
        place = self.place
        if place is None or self.add or not isinstance(self.value, Tensor):
            return False
        site = place.site
        return site.component == "latent" and site.position is None and place.basis is None

    def acts_in(self, t: int, n_rounds: int) -> bool:
        """Return whether the edit is made in a round after the one that the experiment starts at.

        Args:
            t: the round.
            n_rounds: of the run.
        """
        return self.rounds is not None and t in select_rounds(self.rounds, n_rounds)

    def tensor_rows(self, rounds: Sequence[int], n_rounds: int) -> Tensor:
        """Return a tensor's values in some rounds, ``[row, ...]``; arbitrary values in rounds in
        which it does not act.

        Args:
            rounds: indices.
            n_rounds: of the run.
        """
        assert isinstance(self.value, Tensor)
        if self.rounds is None:
            return self.value.flatten(0, 1)
        acting = select_rounds(self.rounds, n_rounds)
        columns = [acting.index(t) if t in acting else 0 for t in rounds]
        return self.value[:, columns].flatten(0, 1)


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
        """Return the outcome of that key; an :class:`Outcome` is returned as it is."""
        return cls(outcome) if isinstance(outcome, str) else fit("outcome", outcome, Outcome)

    def values(
        self,
        model: Machine,
        layout: RoundLayout,
        prediction: Tensor,
        carried: Tensor,
        slots: Tensor,
    ) -> Float[Tensor, "*axes number"]:
        """Return the outcome of rounds.

        Args:
            prediction: ``[*axes, ...]``, as the layout has it.
            carried: what the rounds left, ``[*axes, row, width]``.
            slots: the latent that each round wrote to, ``[*axes]``.
        """
        if self.key == "prediction":
            return layout.distribution(prediction).double()
        if self.key == "state":
            decode = self.decode or model.read_state
            carried = layout.written(decode(carried), slots)
        axes = slots.ndim
        if carried.ndim == axes:
            return carried.unsqueeze(-1).double()
        return carried.flatten(axes).double()


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
    """What is changed in which rounds of a run, how far the model runs on from there, and what is
    read.

    Attributes:
        run: the rollout that is edited, run without hooks.
        edits: by name; those under one name are made together, and separately from all other names.
        rounds: an int, a slice or a list; the edits are made in each round separately.
        horizon: how many rounds the model runs on by itself after the edited one; less at the end
            of the run.
        reads: "last" reads the last of these rounds, "each" all of them from the edited one on.
        readout: an :class:`Outcome` or its key, or a function from :class:`Outputs` to numbers
            ``[edit, episode, (round edited, round read), outcome]``.
        propagate: False holds later rounds at what they read and predicted in ``run``.
        commit: "own": edited rounds commit the choice that they make; "target": they commit the
            run's choice.
        update: False skips what follows the prediction, where it is not read.
        watched: sites; the result also has their activations in the edited rounds.
        known: activations of the edited rounds without edits, as another experiment watched them. A
            round is run from the layer of its first edit on if the residual stream before that
            layer is known.
    """

    model: Machine
    run: Rollout
    edits: Mapping[str, Sequence[Edit]]
    rounds: Rounds
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
        shape = self.run.tokens.shape[:2]
        for edit in self.every_edit:
            is_tensor = isinstance(edit.value, Tensor)
            require(
                _is_real(edit.value) and (is_tensor or not edit.add),
                "a tensor that is put holds finite real numbers, and nothing but a tensor can be added",
            )
            if isinstance(edit.value, Rollout):
                require(
                    edit.value.tokens.shape[:2] == shape,
                    "what is put has other episodes or rounds than run",
                )
        starts = tuple(select_rounds(self.rounds, self.run.n_rounds, twice=True))
        object.__setattr__(self, "rounds", starts)
        object.__setattr__(self, "commit", self.commit or self.run.commit)
        for edit in self.every_edit:
            if edit.rounds is not None:
                self._require_run_of_rounds(edit)

    @property
    def every_edit(self) -> list[Edit]:
        """The edits of all names."""
        return [edit for together in self.edits.values() for edit in together]

    def _require_run_of_rounds(self, edit: Edit) -> None:
        """Raise unless an edit of several rounds can be made in all of them as the model runs on."""
        acting = select_rounds(fit("rounds", edit.rounds, Rounds), self.run.n_rounds)
        starts = self.starts
        outside = sorted({*starts} - {*acting})
        shown = _shorten(acting)
        require(
            not outside,
            f"an edit of rounds {shown} is not made in round {_shorten(outside or acting)}, which the experiment "
            f"starts at; give Experiment(..., rounds={min(acting)})",
        )
        require(
            edit.place is not None,
            "what several rounds are fed is not edited together; give the edit a place, such as 'latent'",
        )
        require(
            self.propagate,
            "an edit of several rounds is made as the model runs on, and propagate=False holds later rounds; leave "
            "one of them out",
        )
        n_later = max(acting) - min(starts)
        require(
            self.horizon > 0 or n_later <= 0,
            f"an edit of rounds {shown} is made as the model runs on, and horizon is 0; give "
            f"horizon={n_later} to read them all",
        )
        if isinstance(edit.value, Tensor):
            wanted = (self.run.n_episodes, len(acting))
            shape = tuple(edit.value.shape)
            require(
                shape[:2] == wanted,
                f"a tensor that is put in rounds {shown} is [episode, round, ...] = {[*wanted, '...']}, got "
                f"shape {shape}",
            )

    @property
    def starts(self) -> tuple[int, ...]:
        """The rounds that are edited, counted from 0."""
        return cast(tuple[int, ...], self.rounds)

    @property
    def pairs(self) -> tuple[tuple[int, int], ...]:
        """(round edited, round read) of every place of the round axis."""
        pairs: list[tuple[int, int]] = []
        for t in self.starts:
            end = min(t + self.horizon, self.run.n_rounds - 1)
            first = t if self.reads == "each" else end
            pairs += [(t, read) for read in range(first, end + 1)]
        return tuple(pairs)

    def read(self, outputs: Outputs) -> Float[Tensor, "edit episode round outcome"]:
        """Return the outcomes of what was run."""
        if callable(self.readout):
            numbers = theirs("readout=")(self.readout)(outputs)
            return fit("what readout= gives", numbers, Float[Tensor, "edit episode round outcome"])
        starts = self.starts
        edited = [starts.index(t) for t, _ in self.pairs]
        lags = [read - t for t, read in self.pairs]
        reads = lags if self.reads == "each" else [0] * len(lags)
        slots = self.run.slots[:, [read for _, read in self.pairs]]
        outcome = Outcome.named(self.readout)
        predictions = outputs.predictions[:, :, edited, lags]
        carried = outputs.carried[:, :, edited, reads]
        by_edit: list[Tensor] = []
        # A decoder may be fitted for each episode, the first axis: edits are read one by one.
        for prediction, latents in zip(predictions, carried, strict=True):
            values = outcome.values(self.model, self.run.layout, prediction, latents, slots)
            by_edit.append(values)
        return torch.stack(by_edit)


def _is_real(value: object) -> bool:
    """Return whether a value is no tensor, or one of finite real numbers.

    NaN in some episodes stands for runs of a loop that did not take place.
    """
    if not isinstance(value, Tensor):
        return True
    if value.is_complex() or value.isinf().any():
        return False
    is_nan = value.isnan().flatten(1) if value.ndim > 1 else value.isnan()
    return value.numel() == 0 or not is_nan.any(-1).all()


def _shorten(rounds: Sequence[int]) -> str:
    """Write rounds as "10 to 23" where they follow each other.

    >>> _shorten([3]), _shorten([3, 4, 5]), _shorten([1, 3])
    ('3', '3 to 5', '1, 3')
    """
    n, first = len(rounds), rounds[0]
    follows = list(rounds) == list(range(first, first + n))
    if n > 2 and follows:
        return f"{first} to {rounds[-1]}"
    return ", ".join(map(str, rounds))


@checked
def run(experiment: Experiment) -> Effects:
    """Run an experiment and read it."""
    base = experiment.run
    select_rounds(experiment.rounds, base.n_rounds)  # means over rounds would count one twice
    require_own(base, experiment.model)
    by_edit: dict[int, Tensor] = {}
    seen: list[Mapping[Site, Tensor]] = []
    for outputs in batches(experiment):
        by_edit |= zip(outputs.edits, experiment.read(outputs), strict=True)
        seen += [outputs.seen] * len(outputs.edits)
    values = torch.stack([by_edit[i] for i in range(len(experiment.edits))])
    unpatched = _read_unpatched(experiment)
    counted = _count_episodes(experiment)
    values[:, ~counted] = torch.nan
    unpatched[~counted] = torch.nan
    outcomes = [str(i) for i in range(values.shape[-1])]
    names = base.layout.outcomes
    if experiment.readout == "prediction" and len(names) == len(outcomes):
        outcomes = [str(name) for name in names]
    participants = None if base.episodes is None else participants_of(base.episodes)
    return Effects(
        edits=tuple(experiment.edits),
        rounds=experiment.pairs,
        outcomes=tuple(outcomes),
        values=values,
        unpatched=unpatched,
        seen=tuple(seen),
        counted=None if bool(counted.all()) else counted,
        participants=participants,
    )


def _read_unpatched(experiment: Experiment) -> Float[Tensor, "episode round outcome"]:
    """Return the outcomes of the run without edits."""
    base, lags = experiment.run, range(experiment.horizon + 1)
    last = base.n_rounds - 1
    rounds = torch.tensor([[min(t + lag, last) for lag in lags] for t in experiment.starts])
    after = rounds + 1 if experiment.reads == "each" else rounds[:, -1:] + 1
    predictions = base.predictions[:, rounds].unsqueeze(0)
    carried = base.latents[:, after].unsqueeze(0)
    return experiment.read(Outputs([], predictions, carried))[0]


def _count_episodes(experiment: Experiment) -> Bool[Tensor, "episode round"]:
    """Return which episodes have both rounds of a pair, and every edited one in what is put there, too."""
    base = experiment.run
    missing_of_run = torch.zeros_like(base.slots, dtype=torch.bool)
    if base.fed.missing is not None:
        missing_of_run = base.fed.missing
    counted: list[Tensor] = []
    for t, read in experiment.pairs:
        missing = missing_of_run[:, t] | missing_of_run[:, read]
        later = range(t + 1, read + 1)
        for edit in experiment.every_edit:
            fed = edit.value.fed if isinstance(edit.value, Rollout) else edit.value
            if isinstance(fed, EncodedRounds) and fed.missing is not None:
                edited = [t, *(u for u in later if edit.acts_in(u, base.n_rounds))]
                missing = missing | fed.missing[:, edited].any(1)
        require(
            not bool(missing.all()),
            f"no episode has both round {t}, which is edited, and round {read}, which is read; choose others",
        )
        counted.append(~missing)
    return torch.stack(counted, 1)


def batches(experiment: Experiment) -> Iterator[Outputs]:
    """Run every edit, several at a time where they share what is run."""
    source, cells = _find_cells(experiment)
    if source is not None:
        yield from _patch_cells(experiment, cells, source)
        return
    n_starts = len(experiment.starts)
    for i, together in enumerate(experiment.edits.values()):
        prediction, latents, seen = _run_edited(experiment, together)
        by_start = (1, -1, n_starts)
        outputs = _run_on(
            experiment,
            [i],
            prediction.unflatten(0, by_start),
            latents.unflatten(0, by_start),
            together=together,
        )
        by_site = {site: x.unflatten(0, (-1, n_starts)) for site, x in seen.items()}
        yield outputs._replace(seen=by_site)


def _find_cells(experiment: Experiment) -> tuple[Rollout | None, list[Site]]:
    """Return the run and the sites if each edit only copies one whole site from the same run;
    otherwise None and no sites.
    """
    no_cells: tuple[Rollout | None, list[Site]] = None, []
    edits = list(experiment.edits.values())
    source = edits[0][0].value if edits[0] else None
    is_short = len(experiment.starts) > 1 and experiment.horizon == 0
    if not isinstance(source, Rollout) or experiment.watched or is_short:
        return no_cells
    if experiment.commit != experiment.run.commit:
        return no_cells
    cells: list[Site] = []
    for together in edits:
        first = together[0] if len(together) == 1 else None
        if first is None or first.value is not source or first.rounds is not None:
            return no_cells
        if first.place is None or not first.place.is_whole:
            return no_cells
        cells.append(first.place.site)
    return source, cells


def run_on(
    model: Machine,
    run: Rollout,
    rounds: Sequence[int],
    horizon: int,
    latents: Tensor,
    again: Again | None = None,
) -> Outputs:
    """Run the model from chosen states.

    Args:
        run: what the rounds are fed.
        rounds: where each starts.
        horizon: how many rounds are run from there.
        latents: all that is carried into the first of them, ``[episode, round, row, width]``.
        again: what is written in later rounds (:class:`Edit`).
    """
    place = Place.of("latent", model=model)
    edits = {"state": [Edit(place, latents, again=again)]}
    return next(batches(Experiment(model, run, edits, rounds, horizon - 1)))


def _patch_cells(
    experiment: Experiment, cells: Sequence[Site], source: Rollout
) -> Iterator[Outputs]:
    """Copy whole sites from the source, each separately; only what each can change is run.

    Args:
        experiment: the experiment.
        cells: the sites.
        source: the run that activations are taken from.
    """
    model, base = experiment.model, experiment.run
    update = experiment.update or experiment.horizon > 0
    patchers = [RoundPatcher(model, base, t, source, update=update) for t in experiment.starts]
    if len(patchers) == 1:
        for patched in patchers[0].cells(cells):
            by_cell = (len(patched.cells), -1)
            propagate = experiment.propagate and not patched.idle
            of_cells = replace(experiment, propagate=propagate)
            predictions = patched.predictions.unflatten(0, by_cell).unsqueeze(2)
            latents = patched.latents.unflatten(0, by_cell).unsqueeze(2)
            yield _run_on(of_cells, patched.cells, predictions, latents)
        return
    for i, cell in enumerate(cells):
        by_round = [next(patcher.cells([cell])) for patcher in patchers]
        predictions = torch.stack([patched.predictions for patched in by_round], 1)
        latents = torch.stack([patched.latents for patched in by_round], 1)
        yield _run_on(experiment, [i], predictions.unsqueeze(0), latents.unsqueeze(0))


def _run_edited(
    experiment: Experiment, together: Sequence[Edit]
) -> tuple[Tensor, Tensor, dict[Site, Tensor]]:
    """Run the edited rounds, part by part.

    Returns:
        What they predict, what they leave and what is at the watched sites, ``[row, ...]`` each.
    """
    base, rounds = experiment.run, list(experiment.starts)
    rows = Rows.of(base, rounds)
    for edit in together:
        if isinstance(edit.value, EncodedRounds):
            rows = rows._replace(fed=edit.value.rows(rounds))
        elif isinstance(edit.value, Tensor) and edit.is_whole:
            _require_latents(experiment, edit, edit.value)
            new = edit.tensor_rows(rounds, base.n_rounds)
            rows = rows._replace(latents=new.to(base.latents))
    hooked = [edit for edit in together if edit.place is not None and not edit.is_whole]
    places = [edit.place for edit in hooked if edit.place is not None]
    layers = [place.site.layer or 0 for place in places]
    layer = min(layers, default=0)
    known = experiment.known.get(Site("resid_pre", layer))
    size = rows.fed.at_once(CHUNK)
    steps: list[Step] = []
    seen: list[dict[Site, Tensor]] = []
    for start in range(0, len(rows.latents), size):
        part = slice(start, start + size)
        before = None
        if known is not None and experiment.commit == "target":
            before = layer, known.flatten(0, 1)[part]
        changes = _list_changes(experiment, hooked, rounds, part)
        step, activations = passed(
            experiment.model,
            rows.part(part),
            base.layout,
            changes=changes,
            watched=experiment.watched,
            commit=experiment.commit,
            before=before,
        )
        steps.append(step)
        seen.append(activations)
    predictions = torch.cat([step.prediction for step in steps])
    latents = torch.cat([step.latents for step in steps])
    at_sites = {site: torch.cat([part[site] for part in seen]) for site in experiment.watched}
    return predictions, latents, at_sites


def _require_latents(experiment: Experiment, edit: Edit, latents: Tensor) -> None:
    """Raise unless a tensor that replaces all that is carried has its shape.

    Args:
        experiment: gives the run.
        edit: gives the rounds.
        latents: the tensor.
    """
    base, shape = experiment.run, tuple(latents.shape)
    n_rounds = len(experiment.starts)
    if edit.rounds is not None:
        n_rounds = len(select_rounds(edit.rounds, base.n_rounds))
    wanted = (base.n_episodes, n_rounds, *base.latents.shape[2:])
    require(
        shape == wanted,
        f"latents must be [episode, round, row, width] = {wanted}, got shape {shape}; change "
        "the rows of one channel in run.latents and give all rows",
    )


def _list_changes(
    experiment: Experiment, edits: Sequence[Edit], rounds: Sequence[int], part: slice
) -> list[tuple[Site, _Change]]:
    """List edits of some rounds as changes of some rows: activations of other runs, tensors and
    functions.

    Each other run is run once for all edits that take from it.

    Args:
        experiment: gives the model and the run.
        edits: the edits.
        rounds: in which they are made.
        part: of the rows ``[episode, round]``.
    """
    model, base = experiment.model, experiment.run
    layout, n_rounds = base.layout, base.n_rounds
    changes: list[tuple[Site, _Change]] = []
    sources = {id(edit.value): edit.value for edit in edits if isinstance(edit.value, Rollout)}
    for source in sources.values():
        places = [edit.place for edit in edits if edit.value is source and edit.place is not None]
        rows = Rows.of(source, rounds).part(part)
        activations = _read_source(model, rows, layout, [place.site for place in places])
        for place in places:
            changes.append((place.site, partial(place, source=activations[place.site])))
    for edit in edits:
        if edit.place is not None and not isinstance(edit.value, Rollout):
            change = _make_change(edit, rounds, n_rounds, part)
            changes.append((edit.place.site, theirs("value=")(change)))
    return changes


def _read_source(
    model: Machine, rows: Rows, layout: RoundLayout, sites: Sequence[Site]
) -> dict[Site, Tensor]:
    """Return the activations of another run at some sites, ``[row, ...]``.

    Args:
        model: the machine.
        rows: what the rounds of the other run read.
        layout: of the rounds.
        sites: the sites.
    """
    is_carried = all(site.component == "latent" for site in sites)
    with torch.no_grad():
        is_quiet = model.is_quiet()
    if is_carried and is_quiet:
        # What is carried is read as it was left: no round has to be run to see it.
        return {site: site.read(rows.latents, layout) for site in sites}
    return passed(model, rows, layout, watched=sites)[1]


def _make_change(edit: Edit, rounds: Sequence[int], n_rounds: int, part: slice) -> _Change:
    """Return a function that applies an edit by a tensor or a function to the activation of some
    rows.

    Args:
        edit: the edit.
        rounds: in which it is made.
        n_rounds: of the run.
        part: of the rows ``[episode, round]``.
    """
    place, value = edit.place, edit.value
    assert place is not None

    def change(activation: Tensor) -> Tensor:
        if isinstance(value, Tensor):
            rows = edit.tensor_rows(rounds, n_rounds)[part]
            new = rows.reshape(activation.shape).to(activation)
        else:
            assert callable(value)
            new = value(activation, part)
        return place(activation, activation + new if edit.add else new)

    return change


def _run_on(
    experiment: Experiment,
    edits: Sequence[int],
    prediction: Tensor,
    carried: Tensor,
    *,
    together: Sequence[Edit] = (),
) -> Outputs:
    """Run the rounds after the edited ones.

    Args:
        edits: which edits these are.
        prediction, carried: what the edited rounds predicted and left, ``[edit, episode, round
            edited, ...]``.
        together: the edits of a single name; some are made in later rounds, too.
    """
    base, horizon, starts = experiment.run, experiment.horizon, experiment.starts
    n_lags = horizon + 1
    shape = (*prediction.shape[:3], n_lags, *prediction.shape[3:])
    predictions = prediction.new_full(shape, torch.nan)
    predictions[:, :, :, 0] = prediction
    stepper = None
    with torch.no_grad():
        if runs_from(experiment.model):
            stepper = experiment.model.stepper()
    states = [carried]
    for lag in range(1, n_lags):
        active = [i for i, t in enumerate(starts) if t + lag < base.n_rounds]
        if not active:
            break
        rounds = [starts[i] + lag for i in active]
        state = carried[:, :, active]
        for edit in together:
            if edit.again is not None:
                state = _write_again(edit.again, [starts[i] for i in active], rounds, state)
        if experiment.propagate:
            is_last = lag == horizon and not experiment.update
            later = [edit for edit in together if _acts(edit, rounds, base.n_rounds)]
            prediction, state = _run_next(experiment, rounds, state, later, stepper, is_last)
        else:
            predicted, after = _hold(experiment, rounds)
            prediction = predicted.expand(len(edits), *predicted.shape)
            state = after.expand(len(edits), *after.shape)
        predictions[:, :, active, lag] = prediction
        carried = carried.clone()
        carried[:, :, active] = state
        states.append(carried)
    carried = carried.unsqueeze(3)
    if experiment.reads == "each":
        carried = torch.stack(states, 3)
    return Outputs(edits, predictions, carried)


def _hold(experiment: Experiment, rounds: Sequence[int]) -> tuple[Tensor, Tensor]:
    """Return what some rounds of the run predict and leave, ``[episode, round, ...]`` each."""
    base = experiment.run
    return base.predictions[:, rounds], base.latents[:, [t + 1 for t in rounds]]


def _write_again(
    again: Again, starts: Sequence[int], rounds: Sequence[int], state: Tensor
) -> Tensor:
    """Write into what later rounds read, each edit and round by itself.

    Args:
        again: returns the state that a later round reads.
        starts: the rounds edited.
        rounds: the later round for each of them.
        state: ``[edit, episode, round, row, width]``; it is changed.
    """
    for i, (start, t) in enumerate(zip(starts, rounds, strict=True)):
        state[:, :, i] = torch.stack([again(start, t, of_edit) for of_edit in state[:, :, i]])
    return state


def _acts(edit: Edit, rounds: Sequence[int], n_rounds: int) -> bool:
    """Return whether an edit is made in one of these later rounds.

    Args:
        edit: the edit.
        rounds: the later rounds.
        n_rounds: of the run.
    """
    return any(edit.acts_in(t, n_rounds) for t in rounds)


def _run_next(
    experiment: Experiment,
    rounds: Sequence[int],
    state: Tensor,
    later: Sequence[Edit],
    stepper: Callable[..., Any] | None,
    is_last: bool,
) -> tuple[Tensor, Tensor]:
    """Run one later round of every edit, episode and round edited.

    Args:
        experiment: gives the model and the run.
        rounds: which round comes next, for every round edited.
        state: what it reads, ``[edit, episode, round, row, width]``.
        later: edits that are made in it.
        is_last: True if only its prediction is read.

    Returns:
        What it predicts and leaves, ``[edit, episode, round, ...]`` each.
    """
    base, model = experiment.run, experiment.model
    shape, latents = state.shape[:3], state.flatten(0, 2)
    fed = base.fed.rows(rounds).each(partial(tile, times=shape[0]))
    with torch.no_grad():
        if later:
            changes = _list_later_changes(experiment, later, rounds)
            done, _ = passed(model, Rows(latents, fed), base.layout, changes, commit=base.commit)
            prediction, latents = done.prediction, done.latents
        elif is_last and runs_from(model) and model.is_quiet():
            predicted = model.predict(fed.tokens, latents, fed.values)  # type: ignore[attr-defined]
            prediction, _ = fed.settled(predicted, latents, latents)
        else:
            done = run_round(model, fed, latents, base.layout, base.commit, (), stepper)
            prediction, latents = done.prediction, done.latents
    return prediction.unflatten(0, shape), latents.unflatten(0, shape)


def _list_later_changes(
    experiment: Experiment, later: Sequence[Edit], rounds: Sequence[int]
) -> list[tuple[Site, _Change]]:
    """List the edits of later rounds as changes of the rows in which each is made.

    Args:
        experiment: gives the model and the run.
        later: the edits.
        rounds: which round comes next, for every round edited.
    """
    n_rounds, n_episodes = experiment.run.n_rounds, experiment.run.n_episodes
    changes: list[tuple[Site, _Change]] = []
    for edit in later:
        acting = torch.tensor([edit.acts_in(t, n_rounds) for t in rounds]).repeat(n_episodes)
        ((site, change),) = _list_changes(experiment, [edit], rounds, slice(None))
        changes.append((site, partial(_change_rows, change, acting)))
    return changes


def _change_rows(change: _Change, acting: Bool[Tensor, " row"], activation: Tensor) -> Tensor:
    """Apply a change to an activation ``[row, ...]`` in some of its rows.

    Args:
        change: activation to activation.
        acting: the rows that change.
        activation: before the change.
    """
    ones = [1] * (activation.ndim - 1)
    mask = acting.to(activation.device).reshape(-1, *ones)
    return torch.where(mask, change(activation), activation)
