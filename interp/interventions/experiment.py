"""Run an intervention experiment: edit activations in some rounds of a rollout, let the model
continue, and read the outcomes.

All other methods use the array that :func:`run` returns, ``[edit, episode, pair, outcome]``. Each
edit is made in each of the experiment's ``rounds``, separately from other edits and other rounds.
So the axis ``pair`` has one entry for each pair (round edited, round read). An edit with a field
``rounds`` is made in all of these rounds together, as the model continues.
docs/method/experiments.md describes what an :class:`Edit` may be, and what all results have in
common. An effect is NOT evidence about normal use if the edit creates an activation that never
occurs otherwise.

    >>> import interp
    >>> model, task = interp.load("wma-handwired", n_experts=2), interp.tasks.get("experts")
    >>> base, source = (interp.rollout(model, task.sample_for(model, 8, 6, seed=seed)) for seed in (0, 1))
    >>> edits = {"history": [Edit.of("latent", source, model)]}
    >>> found = run(Experiment(model, base, edits, rounds=[2, 3], horizon=2, reads="each"))
    >>> found.values.shape, found.rounds
    (torch.Size([1, 8, 6, 2]), ((2, 2), (2, 3), (2, 4), (3, 3), (3, 4), (3, 5)))

Here the output of a head is edited from round 2 on, in all rounds together:

    >>> edits = {"L1H0": [Edit.of("L1H0", source, model, rounds=slice(2, None))]}
    >>> run(Experiment(model, base, edits, rounds=2, horizon=3, reads="each")).rounds
    ((2, 2), (2, 3), (2, 4), (2, 5))
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Literal, NamedTuple, cast

import numpy as np
import pandas as pd
import torch
from jaxtyping import Bool, Float
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

from interp.core.algorithm import participants_of
from interp.core.machine import Machine, can_resume_rounds
from interp.interventions.round_patcher import RoundPatcher
from interp.interventions.sites import Place, Site, tile, write
from interp.model.hooked import FiringCounter
from interp.model.layout import EncodedRounds, RoundLayout, add_axes
from interp.model.rollout import Step, require_own, run_round, runs_without_hooks
from interp.model.run import Rollout, Rounds, select_rounds
from interp.results.measure import Result
from interp.stats.intervals import Interval, bootstrap_mean
from interp.support.checks import (
    array_of,
    check_type,
    checked,
    checked_fields,
    checked_result,
)
from interp.support.errors import convert_errors, require, require_known

_KEY_COLUMNS = ["edit", "edited", "read", "outcome"]


@dataclass(frozen=True)
@checked_result
class Effects(Result):
    """The result of an experiment: the outcomes of every edit, and those of the unedited run.

    An edit is a change of an activation in one round. An outcome is a number that is read from a
    round, such as the predicted probability of a label. A *pair* is a round that is edited and a
    round that is read.

    Attributes:
        edits: names of the edits.
        rounds: the pairs, (index of the round edited, index of the round read).
        outcomes: names of the outcomes.
        values: outcomes with the edits, ``[edit, episode, pair, outcome]``.
        unpatched: outcomes without edits, ``[episode, pair, outcome]``.
        activations: for each edit, the activations that the experiment was asked to watch: site ->
            activation, ``[episode, round edited, ...]``.
        counted: True if both rounds of a pair took place in the episode, ``[episode, pair]``; None
            if all rounds did. Where it is False, values are NaN, and are left out of means. Values
            are also NaN if a looped model (with a variable number of iterations per round) did not
            run the iteration that was edited.
        participants: index of the participant who played each episode, ``[episode]``; intervals
            resample participants. Without recorded participants, every episode counts as one. The
            attribute is None if the rollout was stored without its episodes.
    """

    edits: tuple[str, ...]
    rounds: tuple[tuple[int, int], ...]
    outcomes: tuple[str, ...]
    values: Float[Tensor, "edit episode pair outcome"]
    unpatched: Float[Tensor, "episode pair outcome"]
    activations: tuple[Mapping[Site, Tensor], ...] = ()
    counted: Bool[Tensor, "episode pair"] | None = None
    participants: Any = None

    @property
    def effects(self) -> Float[Tensor, "edit episode pair outcome"]:
        """Outcomes with each edit minus outcomes without it, ``[edit, episode, pair, outcome]``. A
        pair is a round that is edited and a round that is read.
        """
        return self.values - self.unpatched

    def require_all_edits(self, analysis: str) -> Effects:
        """Return this object unchanged, or raise an error if an edit could not be made in some
        episode and round. This happens in a looped model, which runs a variable number of
        iterations ("cycles") per round, if it did not run the edited iteration.

        Args:
            analysis: name of the analysis, for the error message.
        """
        # NaN only with the edit: the edited iteration was not run. [edit, episode, pair]
        was_not_run = self.values.isnan().any(-1) & ~self.unpatched.isnan().any(-1)
        n_not_run, worst = was_not_run.flatten(1).sum(1).max(0)
        require(
            n_not_run == 0,
            f"{self.edits[worst]!r} edits runs that did not take place in {n_not_run} of "
            f"{was_not_run[0].numel()} pairs of episode and round, and {analysis} counts all; take an earlier run of "
            "the loop, or patching.sweep, which leaves those episodes out",
        )
        return self

    @checked
    def to_frame(self, *, seed: int = 0) -> pd.DataFrame:
        """Return a table with one row per edit, pair (round ``edited``, round ``read``) and outcome,
        the row with the largest absolute effect first.

        ``effect`` is the mean over episodes of the outcome with the edit minus the outcome without
        it, with its 95 % interval ``effect_low`` to ``effect_high``. The column ``n_episodes`` is
        the number of counted episodes; it is left out if all are counted. ``seed`` is that of the
        bootstrap.
        """
        # [edit, pair of rounds, outcome]; `n_episodes` is [edit, pair of rounds]. The names have the
        # order in which these arrays are flattened.
        mean, low, high, n_episodes = self._summarize(seed)
        names = [
            (edit, *rounds, outcome)
            for edit in self.edits
            for rounds in self.rounds
            for outcome in self.outcomes
        ]
        frame = pd.DataFrame(names, columns=_KEY_COLUMNS)
        if n_episodes.min() < self.values.shape[1]:  # not all episodes are counted
            frame["n_episodes"] = n_episodes.repeat(len(self.outcomes))
        frame["effect"] = mean.reshape(-1)
        frame["effect_low"] = low.reshape(-1)
        frame["effect_high"] = high.reshape(-1)
        return sort_by_size(frame)

    def _summarize(self, seed: int) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
        """Return the mean effect over episodes, the low and the high end of its 95 % interval, and
        the number of counted episodes. The first three are ``[edit, pair, outcome]``, the last
        ``[edit, pair]``; a pair is (round edited, round read).

        Args:
            seed: seed of the bootstrap.
        """
        # [episode, edit, pair, outcome]
        effects = self.effects.double().movedim(1, 0).numpy(force=True)
        is_counted = ~np.isnan(effects).any(-1)
        n_episodes = is_counted.sum(0)
        if is_counted.all():
            summary = bootstrap_mean(effects, seed=seed, participants=self.participants)
            return (*summary, n_episodes)
        # [mean or end of its interval, edit, pair, outcome]; NaN where no episode is counted
        mean_low_high = np.full((3, *effects.shape[1:]), np.nan)
        for edit, pair in np.argwhere(n_episodes):
            episodes = is_counted[:, edit, pair]
            players = None if self.participants is None else self.participants[episodes]
            counted_effects = effects[episodes, edit, pair]  # [counted episode, outcome]
            summary = bootstrap_mean(counted_effects, seed=seed, participants=players)
            mean_low_high[:, edit, pair] = summary
        return (*mean_low_high, n_episodes)

    def _draw(self, figures: Any) -> Any:
        """Draw a heat map of the mean absolute effect, summed over outcomes, with a row per edit.
        There is a column per round read or, if several rounds were edited, per number of rounds
        since the edit. (The table has mean effects with their sign, which can cancel.)

        Args:
            figures: module with the package's plotting functions.
        """
        # [edit, pair]: summed over outcomes; the mean leaves out episodes that are not counted.
        sizes = self.effects.abs().sum(-1).nanmean(1).numpy(force=True)
        edited_rounds = {edited for edited, _ in self.rounds}
        columns = [read for _, read in self.rounds]
        column, xlabel = "round", "round"
        if len(edited_rounds) > 1:
            columns = [read - edited for edited, read in self.rounds]
            column, xlabel = "lag", "rounds after the edit"
        by_round = pd.DataFrame(sizes, index=list(self.edits), columns=columns)
        means = by_round.T.groupby(level=0).mean().T  # over pairs in the same column
        title = f"effect by edit and {column}"
        label = "mean |effect|, summed over outcomes"
        return figures.heatmaps({title: means}, label=label, xlabel=xlabel, ylabel="edit")

    @property
    def sentence(self) -> str:
        """The finding in a sentence: which edit has the largest effect, on which outcome and in
        which round.
        """
        largest = self.to_frame().iloc[0]
        edit, edited, read, outcome, effect = largest[[*_KEY_COLUMNS, "effect"]]
        if np.isnan(effect):
            return f"{edit} leaves outcomes without a number, such as {outcome}."
        if effect == 0:
            return "No edit moves an outcome."
        after = "" if read == edited else f" after round {edited}"
        return f"{edit} moves outcome {outcome} most: by {effect:+.3g} in round {read}{after}."


@dataclass(frozen=True, eq=False, kw_only=True)
@checked_result
class Tabulated(Result):
    """A result that consists of a sentence, a table and a function that draws its figure.

    Attributes:
        sentence: the finding.
        table: the table.
        picture: function that draws the figure: it is called with the module
            :mod:`interp.results.figures`, and returns a matplotlib figure.
        settings: settings of the analysis, name and digest of the model, versions of packages.
    """

    sentence: str = field()
    table: pd.DataFrame
    picture: Callable[[Any], Any]
    settings: dict[str, Any] = field(default_factory=dict)

    def to_frame(self) -> pd.DataFrame:
        """Return the table."""
        return self.table

    def _draw(self, figures: Any) -> Any:
        """Draw the figure.

        Args:
            figures: module with the package's plotting functions.
        """
        return self.picture(figures)


def sort_by_size(frame: pd.DataFrame, by: str = "effect") -> pd.DataFrame:
    """Return the table ``frame`` sorted by the absolute value of the column ``by``, the largest
    first.
    """
    return frame.sort_values(by, key=np.abs, ascending=False, kind="stable", ignore_index=True)


def tabulate_over(x: Mapping[str, ArrayLike], lines: Mapping[str, ArrayLike]) -> pd.DataFrame:
    """Make the table from which :func:`interp.results.figures.curves` draws several lines over one
    axis.

    Args:
        x: name of the horizontal axis -> the points on it; one entry.
        lines: name of a line -> its value at each of these points.

    Returns:
        One row per line and point. The columns are the axis (under its name), "algorithm" (the name
        of the line) and "mean" (its value).
    """
    frames = [pd.DataFrame({**x, "algorithm": name, "mean": y}) for name, y in lines.items()]
    return pd.concat(frames)


def make_interval_table(rows: Mapping[str, Interval]) -> pd.DataFrame:
    """Make the table from which :func:`interp.results.figures.intervals` draws one interval per
    row.

    Args:
        rows: name of a row -> its interval.

    Returns:
        One row per interval. The columns are "name", "estimate", "low" and "high".
    """
    return pd.DataFrame([{"name": name, **vars(interval)} for name, interval in rows.items()])


CHUNK = 8192
"""Maximum number of rows (pairs of episode and edited round) that are run at once."""
_Change = Callable[[Tensor], Tensor]  # a function from the activation at a site to its new value
StateRewriter = Callable[[int, int, Tensor], Tensor]
"""Function of the edited round, a later round and the state that this would read, to a state."""


class Rows(NamedTuple):
    """Some rounds of every episode of a run, as one batch of rows. A row is one round of one
    episode: row ``e * len(rounds) + i`` is the i-th of these rounds in episode e.

    Attributes:
        latents: carried state that the model reads in each row, ``[row, latent, d_model]``.
        fed: inputs of each row, encoded as tokens and values.
    """

    latents: Tensor
    fed: EncodedRounds

    @classmethod
    def of(cls, run: Rollout, rounds: Sequence[int]) -> Rows:
        """Return some rounds of every episode of a rollout, as one batch with a row per episode and
        round.

        Args:
            run: the rollout.
            rounds: indices of the rounds.
        """
        return cls(*run.rows(rounds))

    def part(self, rows: slice | Tensor) -> Rows:
        """Return a batch with only the rows that ``rows`` selects, a slice or a tensor of
        indices.
        """
        return Rows(self.latents[rows], self.fed.select(rows))


def run_one_round(
    model: Machine,
    rows: Rows,
    layout: RoundLayout,
    changes: Sequence[tuple[Site, _Change]] = (),
    watched: Sequence[Site] = (),
    commit: str = "target",
    gradient: bool = False,
    before: tuple[int, Tensor] | None = None,
) -> tuple[Step, dict[Site, Tensor]]:
    """Run the model for one round in every row of a batch, with the activations at some sites
    changed.

    Args:
        model: the model.
        rows: carried states and inputs of the rows; a row is one round of one episode.
        layout: token layout of the rounds.
        changes: pairs of a site and a function from its activation ``[row, ...]`` to the new one.
        watched: sites whose activations are returned.
        commit: which choice the model reads in rounds whose tokens contain a choice: "target" for
            the recorded choice, "own" for the model's own choice in this round.
        gradient: whether gradients are computed.
        before: where to start: the pair (index of a layer, residual stream before this layer). By
            default the computation starts from the tokens.

    Returns:
        The step (prediction and new state), and a dictionary of the activations at the watched
        sites, in the order of computation.
    """
    sites = [*(site for site, _ in changes), *watched]
    names = list(dict.fromkeys(site.hook for site in sites))
    activations: dict[Site, Tensor] = {}

    def visit(name: str, activation: Tensor, hook: object) -> Tensor:
        """Hook function of the hook point ``name``. Return ``activation`` with the changes at sites
        of this hook point, and store the changed activation at the watched sites.
        """
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
        # A transformer has a quicker function for a round, and can start before any layer.
        run_step = model.stepper() if can_resume_rounds(model) else None
        if before is not None:
            run_step = partial(model.step, resume_from=before)  # type: ignore[call-arg]
        step = run_round(model, rows.fed, rows.latents, layout, commit, step=run_step)
    limit = 2 if commit == "own" else 1  # a round whose own choice is committed is run again
    for name, times in zip(names, counter.fired, strict=True):
        require(
            1 <= times <= limit,
            f"the hook at {name!r} fired {times} times in one round, which must be once",
        )
    return step, activations


@dataclass(frozen=True)
@checked_fields
class Edit:
    """A change of the activation at one place (a site, or a subspace of it).

    An :class:`Experiment` makes the edit in each of its rounds, in a separate run for each round.
    If ``rounds`` is set, the edit is also made in later rounds of the same run.

    Attributes:
        place: the place.
        value: what the activation is replaced by, in one of these forms:

            - a rollout: its activation at the same place, in the same episode and round; a rollout
              of the same model without hooks, unless the place is in the carried state;
            - a tensor that broadcasts to ``[episode, round, ...]``, with the rounds in which the
              edit is made; or a single activation, such as ``[d]``, for all of them;
            - a function of the current values, ``[pair, ...]``, that returns the new ones. All
              edited pairs of an episode and a round are divided into chunks, and the function is
              called with each. If it takes a second argument, this is the slice of all pairs
              (ordered by episode, then round) that the chunk contains.
        add: True if the tensor is added to the current value, False if it replaces it.
        rewrite_state: optional function that changes the carried state before every later round.
            It is called with the index of the edited round, the index of the later round, and the
            state ``[episode, latent, width]`` that the later round would read. It returns the
            state that the later round reads instead.
        rounds: all rounds in which an edited run has the edit: an int, a slice, a list or "all".
            The rounds in which the experiment starts must be among them. By default, the edit is
            made only in the round in which the edited run starts.
    """

    place: Place
    value: Rollout | Tensor | Callable[..., Tensor]
    add: bool = False
    rewrite_state: StateRewriter | None = None
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
        """Make an edit of a site, which may be named by its text.

        Args:
            site: the activation that is edited: a :class:`Site`, its text, such as "latent" or
                "L1H0@p?", or a :class:`Place`, which may restrict the edit to a subspace of it.
            value: the new value, in one of these forms:

                - a rollout: its activation at the same site, in the same episode and round;
                - a tensor, NumPy array or real number that broadcasts to ``[episode, round, ...]``, with
                  the rounds in which the edit is made; or a single activation for all of them, such
                  as a mean or a direction ``[d]``;
                - a function of the current values that returns the new ones. It is called with
                  chunks of all edited pairs of an episode and a round, ``[pair, ...]``. If it takes
                  a second argument, this is the slice of all pairs (ordered by episode, then round)
                  that the chunk contains.
            model: the model whose sites are looked up, which is needed for sites that only this
                model has, such as "latent@h"; by default the sites are those of any transformer.
            add: True if the tensor is added to the current value, False if it replaces it.
            rounds: all rounds in which an edited run has the edit; by default, only the round in
                which the run starts.
        """
        place = site if isinstance(site, Place) else Place.of(site, model=model)
        if isinstance(value, np.ndarray | float | int) and not isinstance(value, bool):
            value = torch.as_tensor(array_of("value", value).copy())
        return cls(place, value, add, rounds=rounds)

    @property
    def is_whole(self) -> bool:
        """Whether the edit replaces the whole carried state by a tensor, so that no hook is needed."""
        if self.add or not isinstance(self.value, Tensor):
            return False
        place = self.place
        site = place.site
        return site.component == "latent" and site.position is None and place.is_whole

    def list_acting_rounds(self, n_rounds: int) -> list[int]:
        """Return the indices of the rounds in :attr:`rounds`; an empty list if it is None, so that
        the edit is made only in the round in which the edited run starts.

        Args:
            n_rounds: number of rounds of the run, to which slices, "all" and negative numbers in
                :attr:`rounds` refer.
        """
        return [] if self.rounds is None else select_rounds(self.rounds, n_rounds)

    def tensor_rows(self, base: Rollout, rounds: Sequence[int], shape: Sequence[int]) -> Tensor:
        """Return the edit's tensor with one row per episode and round, ``[row, ...]``. Row
        ``e * len(rounds) + i`` is for the i-th of ``rounds`` in episode e. It has arbitrary values
        if the edit is not made in this round.

        Args:
            base: the rollout that is edited.
            rounds: indices of the rounds; those in which the experiment starts if :attr:`rounds` is
                None.
            shape: shape of the edited activation of one row.
        """
        acting = self.list_acting_rounds(base.n_rounds) or rounds
        value = self._broadcast_tensor(torch.Size((base.n_episodes, len(acting), *shape)))
        if self.rounds is None:
            return value.flatten(0, 1)
        # The first column stands in where the edit is not made; its values are not used there.
        columns = [acting.index(t) if t in acting else 0 for t in rounds]
        return value[:, columns].flatten(0, 1)

    def _broadcast_tensor(self, wanted: torch.Size) -> Tensor:
        """Return the edit's tensor with all axes of the edited activations, ``[episode, round,
        ...]``; ``wanted`` is their shape.

        The tensor may lack both the axis of episodes and that of rounds, but not one of them, since
        this could be either.
        """
        value = self.value
        assert isinstance(value, Tensor)
        shape = value.shape
        has_all_axes = shape[:2] == wanted[:2] and shape[-1] == wanted[-1]
        if has_all_axes and shape.numel() == wanted.numel() and not self.is_whole:
            return value.reshape(wanted)  # axes of size 1 between these may be left out
        refusal = (
            f"a tensor that is put at {self.place} is [episode, round, ...] = {list(wanted)}, broadcasts to it, "
            f"or is one activation without the first two axes; got shape {tuple(shape)}"
        )
        require(value.ndim != len(wanted) - 1, refusal)
        with convert_errors(refusal, of=RuntimeError):
            return value.expand(wanted)


@dataclass(frozen=True)
@checked_fields
class Outcome:
    """Which numbers an analysis reads from a round of a model.

    Attributes:
        key: "prediction" (the predicted distribution), "state" (the part of the algorithm's state
            that the round's update writes, decoded from the latents), or "latents" (the whole
            carried state after the round).
        decode: for "state", a function from latents ``[..., row, width]`` to the algorithm's state
            ``[..., *shape]``; by default the exact readout of a handwired model.
    """

    key: str = "prediction"
    decode: Callable[[Tensor], Tensor] | None = None

    def __post_init__(self) -> None:
        require_known("outcome", self.key, ("prediction", "state", "latents"))

    @classmethod
    def from_key(cls, outcome: str | Outcome) -> Outcome:
        """Return the outcome with the key ``outcome`` ("prediction", "state" or "latents"). An
        :class:`Outcome` is returned unchanged.
        """
        return cls(outcome) if isinstance(outcome, str) else check_type("outcome", outcome, Outcome)

    def values(
        self,
        model: Machine,
        layout: RoundLayout,
        prediction: Tensor,
        carried: Tensor,
        slots: Tensor,
    ) -> Float[Tensor, "*axes number"]:
        """Compute the numbers of this outcome for some rounds that were run. ``*axes`` are any
        leading axes, such as episode and round.

        Args:
            model: the model.
            layout: token layout of the rounds.
            prediction: predictions, ``[*axes, ...]``.
            carried: carried state after the rounds, ``[*axes, row, width]``.
            slots: index of the latent (vector of the carried state) that each round wrote to,
                ``[*axes]``; used only for "state".

        Returns:
            The numbers, ``[*axes, number]``, in float64.
        """
        if self.key == "prediction":
            return layout.distribution(prediction).double()
        if self.key == "state":
            decode = self.decode or model.read_state
            carried = layout.select_slot_part(decode(carried), slots)
        n_leading = slots.ndim
        if carried.ndim == n_leading:  # the decoded state is a single number
            return carried.unsqueeze(-1).double()
        return carried.flatten(n_leading).double()


class Outputs(NamedTuple):
    """Predictions and carried states of edited runs, as :func:`batches` yields them for one or
    several edits.

    Attributes:
        edits: which edits these are: indices of the entries of ``Experiment.edits``.
        predictions: predictions, ``[edit, episode, round edited, lag, ...]``; the lag is the number
            of rounds since the edit, from 0.
        carried: state that the model carries out of the rounds that are read,
            ``[edit, episode, round edited, read, row, width]``. The axis ``read`` has one entry per
            lag if ``Experiment.reads`` is "each", and a single one, for the last round, if it is
            "last".
        activations: site of ``Experiment.watched`` -> its activation, ``[episode, round edited, ...]``;
            empty if there are several edits.
    """

    edits: Sequence[int]
    predictions: Tensor
    carried: Tensor
    activations: Mapping[Site, Tensor] = {}


@dataclass(frozen=True)
@checked_fields
class Experiment:
    """The definition of an experiment: what is edited, in which rounds, for how many rounds the
    model continues, and what is read.

    Attributes:
        model: the model.
        run: the rollout to edit, made without hooks.
        edits: name -> edits that are made together, in one run. Edits of different names are made
            in different runs.
        rounds: rounds that are edited, each in a separate run: an int, a slice or a list.
        horizon: number of rounds for which the model continues after the edited round; fewer at the
            end of the run.
        reads: which rounds are read: "last" for the last round that is run, "each" for all, from
            the edited one on.
        readout: what is read: an :class:`Outcome` or its key; or a function that is called with
            :class:`Outputs` and returns numbers ``[edit, episode, pair, outcome]``, where the pairs
            are those of :attr:`pairs`.
        propagate: True if rounds after the edited one read the changed state. False if they keep
            the state and the predictions that they have in ``run``.
        commit: which choice the model reads in rounds whose tokens contain a choice: "own" for the
            choice of the edited model, "target" for that in ``run``. By default as in ``run``.
        update: False skips the part of a round after the prediction, to save time; the readout must
            then not need the state.
        watched: sites whose activations in the edited rounds are stored in the result
            (:attr:`Effects.activations`).
        known: site -> its activation in the same rounds without edits, ``[episode, round edited,
            ...]``, from an earlier experiment. It saves time, and does not change results: if the
            residual stream before the first edited layer is among the sites, the computation starts
            there.
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
        """Check the edits against the run, and replace ``rounds`` by indices, and an empty
        ``commit`` by that of the run.
        """
        require(
            self.edits and self.horizon >= 0,
            "an experiment needs an edit and a horizon of 0 or more rounds",
        )
        run = self.run
        n_episodes, n_rounds = run.n_episodes, run.n_rounds
        for edit in self.every_edit:
            value = edit.value
            is_tensor = isinstance(value, Tensor)
            require(
                _is_writable(value) and (is_tensor or not edit.add),
                "a tensor that is put holds finite real numbers, and nothing but a tensor can be added",
            )
            if isinstance(value, Rollout):
                require(
                    value.tokens.shape[:2] == (n_episodes, n_rounds),
                    "what is put has other episodes or rounds than run",
                )
        # run() refuses a round that is listed twice; batches() accepts it.
        starts = tuple(select_rounds(self.rounds, n_rounds, may_repeat=True))
        # The class is frozen, so an ordinary assignment would raise an error.
        object.__setattr__(self, "rounds", starts)
        object.__setattr__(self, "commit", self.commit or run.commit)
        for edit in self.every_edit:
            if edit.rounds is not None:
                self._require_possible_rounds(edit, edit.list_acting_rounds(n_rounds))

    @property
    def every_edit(self) -> list[Edit]:
        """All edits of the experiment, in one list."""
        return [edit for together in self.edits.values() for edit in together]

    def _require_possible_rounds(self, edit: Edit, acting: Sequence[int]) -> None:
        """Raise an error if an edit cannot be made in all of the rounds ``acting``, those of its
        field ``rounds``.
        """
        starts = self.starts
        outside = sorted(set(starts).difference(acting))
        rounds_in_words = _format_rounds(acting)
        # (If no start is outside, the message is made but not shown, with any rounds in it.)
        require(
            not outside,
            f"an edit of rounds {rounds_in_words} is not made in round {_format_rounds(outside or acting)}, which the "
            f"experiment starts at; give Experiment(..., rounds={min(acting)})",
        )
        require(
            self.propagate,
            "an edit of several rounds is made as the model runs on, and propagate=False holds later rounds; leave "
            "one of them out",
        )
        n_later = max(acting) - min(starts)
        require(
            self.horizon > 0 or n_later <= 0,
            f"an edit of rounds {rounds_in_words} is made as the model runs on, and horizon is 0; give "
            f"horizon={n_later} to read them all",
        )

    @property
    def starts(self) -> tuple[int, ...]:
        """The rounds that are edited, as indices from 0."""
        return cast(tuple[int, ...], self.rounds)

    @property
    def pairs(self) -> tuple[tuple[int, int], ...]:
        """The pairs (index of the round edited, index of the round read), in the order of the axis
        ``pair`` of the results.
        """
        pairs: list[tuple[int, int]] = []
        for t in self.starts:
            end = min(t + self.horizon, self.run.n_rounds - 1)
            first = t if self.reads == "each" else end
            pairs += [(t, read) for read in range(first, end + 1)]
        return tuple(pairs)

    def read(self, outputs: Outputs) -> Float[Tensor, "edit episode pair outcome"]:
        """Apply the experiment's :attr:`readout` to outputs of edited runs. Return numbers
        ``[edit, episode, pair, outcome]``, where the pairs are those of :attr:`pairs`.

        Args:
            outputs: predictions and carried states of edited runs.
        """
        if callable(self.readout):
            numbers = convert_errors("readout=")(self.readout)(outputs)
            return check_type(
                "what readout= gives", numbers, Float[Tensor, "edit episode pair outcome"]
            )
        starts, run, pairs = self.starts, self.run, self.pairs
        start_indices = [starts.index(t) for t, _ in pairs]
        lags = [read - t for t, read in pairs]
        # With reads="last", carried states have one entry on the axis of the rounds read.
        read_indices = lags if self.reads == "each" else [0] * len(lags)
        slots = run.slots[:, [read for _, read in pairs]]
        outcome = Outcome.from_key(self.readout)
        require(
            self.update or outcome.key == "prediction",
            "the state after a round is read, and update=False does not compute it; leave update out",
        )
        # [edit, episode, pair, ...]
        predictions = outputs.predictions[:, :, start_indices, lags]
        carried = outputs.carried[:, :, start_indices, read_indices]
        by_edit: list[Tensor] = []
        # One edit at a time, so that the first axis is that of episodes: a decoder may have a
        # separate map for each.
        for prediction, latents in zip(predictions, carried, strict=True):
            values = outcome.values(self.model, run.layout, prediction, latents, slots)
            by_edit.append(values)
        return torch.stack(by_edit)


def _is_writable(value: object) -> bool:
    """Return whether a value may be written to an activation: a tensor must hold finite real
    numbers. Always True for a value that is no tensor.

    NaN is allowed in some episodes, but not in all: it stands for iterations that a looped model
    did not run.
    """
    if not isinstance(value, Tensor):
        return True
    if value.is_complex() or value.isinf().any():
        return False
    # [episode, number]; a tensor with fewer axes counts as one episode
    is_nan = torch.atleast_2d(value.isnan()).flatten(1)
    return value.numel() == 0 or not is_nan.any(1).all()


def _format_rounds(rounds: Sequence[int]) -> str:
    """Write rounds as text, such as "10 to 23" if they are consecutive.

    >>> _format_rounds([3]), _format_rounds([3, 4, 5]), _format_rounds([1, 3])
    ('3', '3 to 5', '1, 3')
    """
    n, first = len(rounds), rounds[0]
    are_consecutive = list(rounds) == list(range(first, first + n))
    if n > 2 and are_consecutive:
        return f"{first} to {rounds[-1]}"
    return ", ".join(map(str, rounds))


@checked
def run(experiment: Experiment) -> Effects:
    """Run an experiment: make each of its edits in each of its rounds, and compare the outcomes
    with those of the unedited run.
    """
    base, model = experiment.run, experiment.model
    # A round that is listed twice is an error: means over rounds would count it twice.
    select_rounds(experiment.rounds, base.n_rounds)
    require_own(base, model)
    # At sites other than the carried state, this model computes a source's activations again, from
    # the source's states, which must therefore be its own. A source with the settings of the base
    # needs no check, since the base was checked.
    for edit in experiment.every_edit:
        source = edit.value
        if not isinstance(source, Rollout) or source.settings == base.settings:
            continue
        if edit.place.site.component != "latent":
            require_own(source, model)
    by_edit: dict[int, Tensor] = {}
    activations: list[Mapping[Site, Tensor]] = []
    # Batches come in any order of the edits; if sites are watched, each edit in turn is a batch. If
    # none are, ``activations`` is empty for every edit.
    for outputs in batches(experiment):
        indices = outputs.edits
        by_edit |= zip(indices, experiment.read(outputs), strict=True)
        activations += [outputs.activations] * len(indices)
    values = torch.stack([by_edit[i] for i in range(len(by_edit))])  # [edit, ...]
    unpatched = _read_without_edits(experiment)
    counted = _find_counted_episodes(experiment)
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
        activations=tuple(activations),
        counted=None if counted.all() else counted,
        participants=participants,
    )


def _read_without_edits(experiment: Experiment) -> Float[Tensor, "episode pair outcome"]:
    """Return the outcomes that the experiment reads, computed from the run without edits,
    ``[episode, pair, outcome]``. A pair is (round edited, round read).
    """
    base, lags = experiment.run, torch.arange(experiment.horizon + 1)
    starts = torch.tensor(experiment.starts).unsqueeze(1)  # rounds that are edited, [start, 1]
    # [start, lag]; the last round stands in for lags after the end, which no pair reads.
    rounds = (starts + lags).clamp_max(base.n_rounds - 1)
    # The states after these rounds, [start, lag]; index t + 1 is the state after round t.
    states = rounds + 1
    if experiment.reads == "last":  # only the state after the last lag is read
        states = states[:, -1:]
    # The unedited run takes the place of a single edit: [1, episode, start, lag, ...].
    predictions = base.predictions[:, rounds].unsqueeze(0)
    carried = base.latents[:, states].unsqueeze(0)
    return experiment.read(Outputs([], predictions, carried))[0]


def _find_counted_episodes(experiment: Experiment) -> Bool[Tensor, "episode pair"]:
    """Return a mask ``[episode, pair]``: True where an episode counts for a pair (edited round,
    read round) of the experiment.

    An episode counts for a pair if neither round is missing (a missed trial or padding). If an edit
    takes activations of a round from elsewhere, the round must not be missing there, either.

    Raises:
        InputError: no episode counts for some pair.
    """
    base = experiment.run
    missing_of_run = base.fed.missing  # [episode, round]
    if missing_of_run is None:
        missing_of_run = torch.zeros_like(base.slots, dtype=torch.bool)
    counted: list[Tensor] = []
    for t, read in experiment.pairs:
        missing = missing_of_run[:, t] | missing_of_run[:, read]
        later = range(t + 1, read + 1)
        for edit in experiment.every_edit:
            source = edit.value
            if isinstance(source, Rollout) and source.fed.missing is not None:
                acting_rounds = edit.list_acting_rounds(base.n_rounds)
                # Rounds that this edit copies, up to the one that is read.
                copied = [t, *(later_t for later_t in later if later_t in acting_rounds)]
                missing = missing | source.fed.missing[:, copied].any(1)
        require(
            not missing.all(),
            f"no episode has both round {t}, which is edited, and round {read}, which is read; choose others",
        )
        counted.append(~missing)
    return torch.stack(counted, 1)


def batches(experiment: Experiment) -> Iterator[Outputs]:
    """Run every edit of an experiment, and yield the results as they are computed, so that they
    need not be in memory together. Edits that share computations are run together.

    Yields:
        :class:`Outputs` of one or several edits, whose field ``edits`` says which: predictions
        ``[edit, episode, round edited, lag, ...]`` and carried states.
    """
    source, sites = _find_patched_sites(experiment)
    if source is not None:
        yield from _patch_whole_sites(experiment, sites, source)
        return
    n_starts = len(experiment.starts)
    for i, together in enumerate(experiment.edits.values()):
        prediction, latents, activations = _run_edited_rounds(experiment, together)
        one_edit = (1, -1, n_starts)  # rows become [edit, episode, round edited]
        outputs = _run_later_rounds(
            experiment,
            [i],
            prediction.unflatten(0, one_edit),
            latents.unflatten(0, one_edit),
            together=together,
        )
        by_site = {site: rows.unflatten(0, (-1, n_starts)) for site, rows in activations.items()}
        yield outputs._replace(activations=by_site)


def _find_patched_sites(experiment: Experiment) -> tuple[Rollout | None, list[Site]]:
    """Return (source run, one site per edit) if the experiment is plain activation patching. This
    is so if every edit copies one whole site, all from the same run, once. Otherwise return None
    and an empty list.
    """
    not_plain: tuple[Rollout | None, list[Site]] = None, []
    every_edit = experiment.every_edit
    source = every_edit[0].value if every_edit else None
    # Several rounds without later ones run as one batch; a RoundPatcher takes them one by one.
    is_one_batch = len(experiment.starts) > 1 and experiment.horizon == 0
    if not isinstance(source, Rollout) or experiment.watched or is_one_batch:
        return not_plain
    if experiment.commit != experiment.run.commit:  # a RoundPatcher commits as the run does
        return not_plain
    if any(len(together) != 1 for together in experiment.edits.values()):
        return not_plain
    sites: list[Site] = []
    for edit in every_edit:
        place = edit.place
        is_made_once = edit.rounds is None and edit.rewrite_state is None
        if edit.value is not source or not is_made_once or not place.is_whole:
            return not_plain
        sites.append(place.site)
    return source, sites


def run_on(
    model: Machine,
    run: Rollout,
    rounds: Sequence[int],
    horizon: int,
    latents: Tensor,
    rewrite_state: StateRewriter | None = None,
) -> Outputs:
    """Run the model from chosen carried states for some rounds, with the inputs of a rollout.

    Args:
        model: the model.
        run: the rollout that provides the inputs of the rounds.
        rounds: indices of the rounds from which the model is run, each separately; here called
            first rounds.
        horizon: number of rounds to run from each first round, which counts as one of them.
        latents: state that each first round reads, ``[episode, first round, row, width]``.
        rewrite_state: function ``(first round, later round, state)`` -> the state that the later
            round reads instead of ``state``; None for no change.

    Returns:
        Predictions of all rounds that were run, ``[1, episode, first round, lag, ...]``, and the
        carried state after the last one, ``[1, episode, first round, 1, row, width]``.
    """
    place = Place.of("latent", model=model)
    edits = {"state": [Edit(place, latents, rewrite_state=rewrite_state)]}
    # An experiment's horizon counts the rounds after the first. One edit is one batch.
    return next(batches(Experiment(model, run, edits, rounds, horizon - 1)))


@torch.no_grad()
def run_from_changed_inputs(
    model: Machine,
    base: Rollout,
    episodes: NDArray[np.int64],
    inputs_by_round: Sequence[Sequence[EncodedRounds]],
) -> Tensor:
    """Change the inputs of one round of some episodes, and run the model on from this round to the
    end, with the other inputs of a rollout.

    All runs are computed together: a run joins in its first round, with the state that the rollout
    has there.

    Args:
        model: the model.
        base: the rollout.
        episodes: index of each run's episode, ``[run]``, ordered by the run's first round.
        inputs_by_round: for each round, batches of inputs ``[run, ...]`` of the runs that begin in
            it.

    Returns:
        Predictions ``[run, round, ...]``; those of the rollout in rounds before a run begins.
    """
    predictions = base.predictions[episodes].clone()
    stepper = model.stepper()
    n_running, carried = 0, base.latents[:0, 0]
    for t, new_inputs in enumerate(inputs_by_round):
        inputs_of_running = base.fed.take_round(t).select(episodes[:n_running])
        fed = EncodedRounds.join([inputs_of_running, *new_inputs])
        n_now = len(fed.tokens)
        new_states = base.latents[episodes[n_running:n_now], t]
        carried = torch.cat([carried, new_states])
        n_running = n_now
        step = run_round(model, fed, carried, base.layout, base.commit, step=stepper)
        carried = step.latents
        predictions[:n_running, t] = step.prediction
    return predictions


def _patch_whole_sites(
    experiment: Experiment, sites: Sequence[Site], source: Rollout
) -> Iterator[Outputs]:
    """Copy whole sites from a source run, each site separately, and compute only what each copy can
    change.

    Args:
        experiment: the experiment.
        sites: the sites.
        source: the run that activations are taken from.

    Returns:
        An iterator over predictions and carried states of one or several sites.
    """
    model, base = experiment.model, experiment.run
    update = experiment.update or experiment.horizon > 0  # later rounds read the updated state
    patchers = [RoundPatcher(model, base, t, source, update=update) for t in experiment.starts]
    if len(patchers) == 1:
        for patched in patchers[0].run_cells(sites):
            cells = patched.cells  # indices of the sites in this batch
            # Where the patched round stays as it was, later rounds are taken from the base run.
            propagate = experiment.propagate and not patched.is_unchanged
            experiment_of_batch = replace(experiment, propagate=propagate)
            # [site, episode, round edited, ...], with one edited round
            axes = (len(cells), -1, 1)
            predictions = patched.predictions.unflatten(0, axes)
            latents = patched.latents.unflatten(0, axes)
            yield _run_later_rounds(experiment_of_batch, cells, predictions, latents)
        return
    for i, site in enumerate(sites):
        by_round = [next(patcher.run_cells([site])) for patcher in patchers]
        # [episode, round edited, ...]
        predictions = torch.stack([patched.predictions for patched in by_round], 1)
        latents = torch.stack([patched.latents for patched in by_round], 1)
        yield _run_later_rounds(experiment, [i], predictions.unsqueeze(0), latents.unsqueeze(0))


def _run_edited_rounds(
    experiment: Experiment, together: Sequence[Edit]
) -> tuple[Tensor, Tensor, dict[Site, Tensor]]:
    """Run the edited rounds, in batches of rows (pairs of episode and round).

    Args:
        experiment: the experiment.
        together: the edits of one name, which are made together.

    Returns:
        Predictions, new states, and activations at the watched sites, ``[row, ...]`` each.
    """
    base, rounds, watched = experiment.run, list(experiment.starts), experiment.watched
    rows = Rows.of(base, rounds)
    hooked: list[Edit] = []  # edits that are made by hooks
    for edit in together:
        value = edit.value
        if isinstance(value, Tensor) and edit.is_whole:
            new = edit.tensor_rows(base, rounds, shape=rows.latents.shape[1:])
            rows = rows._replace(latents=new.to(base.latents))
        else:
            hooked.append(edit)
    first_layer = min((edit.place.site.layer or 0 for edit in hooked), default=0)
    known_resid = experiment.known.get(Site("resid_pre", first_layer))
    # The first layer reads what it reads in the known run: no edit was made without a hook, and the
    # model's own choice, for which the round is run again from its tokens, is not committed.
    can_start_late = len(hooked) == len(together) and experiment.commit == "target"
    chunk_size = rows.fed.choose_batch_size(CHUNK)
    steps: list[Step] = []
    activations_by_chunk: list[dict[Site, Tensor]] = []
    # Whether only the prediction of the edited rounds is read, and nothing is hooked.
    only_predicts = experiment.horizon == 0 and not (experiment.update or hooked or watched)
    for start in range(0, len(rows.latents), chunk_size):
        chunk = slice(start, start + chunk_size)
        part = rows.part(chunk)
        predicted = _predict_only(experiment.model, part) if only_predicts else None
        if predicted is not None:
            steps.append(Step(predicted, latents=part.latents, fed=part.fed))
            continue
        before = None
        if known_resid is not None and can_start_late:
            before = first_layer, known_resid.flatten(0, 1)[chunk]
        step, activations = run_one_round(
            experiment.model,
            part,
            base.layout,
            changes=_list_changes(experiment, hooked, rounds, chunk),
            watched=watched,
            commit=experiment.commit,
            before=before,
        )
        steps.append(step)
        activations_by_chunk.append(activations)
    predictions = torch.cat([step.prediction for step in steps])
    latents = torch.cat([step.latents for step in steps])
    by_site = {
        site: torch.cat([activations[site] for activations in activations_by_chunk])
        for site in watched
    }
    return predictions, latents, by_site


def _list_changes(
    experiment: Experiment,
    edits: Sequence[Edit],
    rounds: Sequence[int],
    part: slice,
) -> list[tuple[Site, _Change]]:
    """Turn edits into pairs of a site and a function that changes the activation of some rows.

    A source run is run once for all edits that take values from it.

    Args:
        experiment: the experiment, with model and run.
        edits: the edits.
        rounds: indices of the edited rounds.
        part: slice of the rows (pairs of episode and round) that are run together.

    Returns:
        Pairs of a site and a function from its activation ``[row, ...]`` to the new one.
    """
    base = experiment.run
    changes: list[tuple[Site, _Change]] = []
    # id of a source run -> the run, and the places that edits copy from it
    sources: dict[int, tuple[Rollout, list[Place]]] = {}
    for edit in edits:
        source = edit.value
        if isinstance(source, Rollout):
            _, places = sources.setdefault(id(source), (source, []))
            places.append(edit.place)
    for source, places in sources.values():
        rows = Rows.of(source, rounds).part(part)
        sites = [place.site for place in places]
        activations = _read_source(experiment.model, rows, base.layout, sites)
        for place, site in zip(places, sites, strict=True):
            # A place can be called: place(activation, source) puts the source's part into it.
            copy_from_source = partial(place, source=activations[site])
            changes.append((site, copy_from_source))
    for edit in edits:  # those with a tensor or a function as the value
        if not isinstance(edit.value, Rollout):
            change = _make_change(edit, base, rounds, part)
            # Errors in the user's function become errors of the argument value=.
            changes.append((edit.place.site, convert_errors("value=")(change)))
    return changes


def _read_source(
    model: Machine, rows: Rows, layout: RoundLayout, sites: Sequence[Site]
) -> dict[Site, Tensor]:
    """Return the activations of another run at some sites, ``[row, ...]`` each.

    Args:
        model: the model.
        rows: rounds of the other run.
        layout: token layout of the rounds.
        sites: the sites.
    """
    is_carried = all(site.component == "latent" for site in sites)
    if is_carried and runs_without_hooks(model):
        # Carried states are stored in the rollout: no round has to be run to read them.
        return {site: site.read(rows.latents, layout) for site in sites}
    _, activations = run_one_round(model, rows, layout, watched=sites)
    return activations


def _make_change(edit: Edit, base: Rollout, rounds: Sequence[int], part: slice) -> _Change:
    """Return the function that makes an edit in an activation ``[row, ...]``. The value of the edit
    is a tensor or a function.

    Args:
        edit: the edit.
        base: the rollout that is edited.
        rounds: indices of the edited rounds.
        part: slice of the rows (pairs of episode and round) that are run together.
    """
    place, value = edit.place, edit.value

    def change(activation: Tensor) -> Tensor:
        """Return the activation of the rows ``part``, ``[row, ...]``, with the edit's value at its
        place.
        """
        if isinstance(value, Tensor):
            # `tensor_rows` spreads `value` over all rows, one per episode and edited round.
            rows = edit.tensor_rows(base, rounds, shape=activation.shape[1:])
            new = rows[part].to(activation)
        else:
            assert callable(value)
            current = activation.clone()  # a copy: the function may change it in place
            new = value(current, part) if _takes_rows(value) else value(current)
        # Only the part in the place's subspace is replaced.
        return place(activation, activation + new if edit.add else new)

    return change


def _takes_rows(function: Callable[..., Tensor]) -> bool:
    """Return whether an edit's function takes a second argument, the slice of rows. A function
    without a signature, such as ``torch.relu``, counts as one of the activation alone.
    """
    try:
        inspect.signature(function).bind(None, None)
    except (TypeError, ValueError):
        return False
    return True


def _run_later_rounds(
    experiment: Experiment,
    edits: Sequence[int],
    prediction: Tensor,
    carried: Tensor,
    *,
    together: Sequence[Edit] = (),
) -> Outputs:
    """Run the rounds after the edited ones, and return the predictions and carried states from the
    edited rounds on.

    Args:
        experiment: the experiment.
        edits: indices of entries of ``experiment.edits``, one for each run in ``prediction``.
        prediction, carried: prediction and new state of the edited rounds, ``[edit, episode, round
            edited, ...]``.
        together: if ``edits`` has one index, the edits of this entry, of which those with
            ``rounds`` may also act in later rounds. Empty for plain patches, which act only once.
    """
    base, horizon, starts = experiment.run, experiment.horizon, experiment.starts
    n_lags = horizon + 1
    shape = (*prediction.shape[:3], n_lags, *prediction.shape[3:])
    # [edit, episode, round edited, lag, ...]; NaN for lags after the end of the run
    predictions = prediction.new_full(shape, torch.nan)
    predictions[:, :, :, 0] = prediction
    stepper = None
    with torch.no_grad():
        if can_resume_rounds(experiment.model):
            stepper = experiment.model.stepper()
    carried_by_lag = [carried]
    for lag in range(1, n_lags):
        # Edited rounds (indices in starts) for which the run still has a round at this lag.
        active = [i for i, t in enumerate(starts) if t + lag < base.n_rounds]
        if not active:
            break
        active_starts = [starts[i] for i in active]
        rounds = [t + lag for t in active_starts]
        state = carried[:, :, active]
        for edit in together:
            if edit.rewrite_state is not None:
                state = _rewrite_state(edit.rewrite_state, active_starts, rounds, state)
        if experiment.propagate:
            later_edits = [
                edit
                for edit in together
                if set(rounds).intersection(edit.list_acting_rounds(base.n_rounds))
            ]
            prediction, state = _run_following_rounds(
                experiment,
                rounds,
                state,
                later_edits=later_edits,
                stepper=stepper,
                only_predicts=lag == horizon and not experiment.update,
            )
        else:
            prediction = base.predictions[:, rounds]
            state = base.latents[:, [t + 1 for t in rounds]]  # the state after each round
        predictions[:, :, active, lag] = prediction
        carried = carried.clone()  # not in place: the states of earlier lags are kept
        carried[:, :, active] = state
        carried_by_lag.append(carried)
    carried = carried.unsqueeze(3)
    if experiment.reads == "each":
        carried = torch.stack(carried_by_lag, 3)
    return Outputs(edits, predictions, carried)


def _rewrite_state(
    rewriter: StateRewriter, starts: Sequence[int], rounds: Sequence[int], state: Tensor
) -> Tensor:
    """Call an edit's function ``rewrite_state`` for every later round, and return the states that
    these rounds read.

    Args:
        rewriter: function ``(edited round, later round, state)`` -> the new state.
        starts: indices of the edited rounds.
        rounds: index of the later round that follows each edited round.
        state: the state, ``[edit, episode, round, row, width]``; changed in place.
    """
    for i, (start, t) in enumerate(zip(starts, rounds, strict=True)):
        state[:, :, i] = torch.stack([rewriter(start, t, of_edit) for of_edit in state[:, :, i]])
    return state


def _run_following_rounds(
    experiment: Experiment,
    rounds: Sequence[int],
    state: Tensor,
    later_edits: Sequence[Edit],
    stepper: Callable[..., Any] | None,
    only_predicts: bool,
) -> tuple[Tensor, Tensor]:
    """Run the round that follows each edited round, for every edit and episode.

    Args:
        experiment: the experiment, with model and run.
        rounds: index of the next round for each edited round.
        state: state that the next round reads, ``[edit, episode, round, row, width]``.
        later_edits: edits that are also made in the next round.
        stepper: quick function that runs a round of a transformer; None for other models.
        only_predicts: whether only the prediction of the next round is read, so that its update of
            the state may be skipped.

    Returns:
        Predictions and new states, ``[edit, episode, round, ...]`` each.
    """
    base, model, commit = experiment.run, experiment.model, experiment.commit
    shape, latents = state.shape[:3], state.flatten(0, 2)
    n_edits = shape[0]
    # The inputs of these rounds, repeated for every edit.
    fed = base.fed.rows(rounds).map_tensors(partial(tile, times=n_edits))
    rows = Rows(latents, fed)
    with torch.no_grad():
        predicted = _predict_only(model, rows) if only_predicts and not later_edits else None
        if predicted is not None:  # the state is not read, and stays as it was
            return predicted.unflatten(0, shape), state
        if later_edits:
            changes = _list_later_changes(experiment, later_edits, rounds)
            step, _ = run_one_round(model, rows, base.layout, changes, commit=commit)
        else:
            step = run_round(model, fed, latents, base.layout, commit, step=stepper)
    return step.prediction.unflatten(0, shape), step.latents.unflatten(0, shape)


def _predict_only(model: Machine, rows: Rows) -> Tensor | None:
    """Return the predictions of a batch of rounds, ``[row, ...]``, without computing how the rounds
    update the state. Only a transformer without hooks can do so; return None for another model.

    Args:
        model: the model.
        rows: carried states and inputs; a row is one round of one episode.
    """
    # Transformers are the machines that can resume rounds; others have no `predict`.
    if not (can_resume_rounds(model) and model.is_quiet()):
        return None
    latents, fed = rows
    with torch.no_grad():
        predicted = model.predict(fed.tokens, latents, fed.values)  # type: ignore[attr-defined]
    # NaN for missing rounds, as run_round does. The state is not needed.
    prediction, _ = fed.undo_missing(predicted, before=latents, after=latents)
    return prediction


def _list_later_changes(
    experiment: Experiment, later_edits: Sequence[Edit], rounds: Sequence[int]
) -> list[tuple[Site, _Change]]:
    """Return the changes that edits make in the round that runs next, as pairs of a site and a
    function from its activation to the new one.

    Each edited round starts a continuation, and the next rounds of all continuations run as one
    batch. A function changes only the rows of those continuations in which its edit acts.

    Args:
        experiment: the experiment, with model and run.
        later_edits: the edits, each of which acts in the next round of some continuations.
        rounds: index of the round that runs next, one per continuation.
    """
    base = experiment.run
    changes: list[tuple[Site, _Change]] = []
    for edit in later_edits:
        acting_rounds = edit.list_acting_rounds(base.n_rounds)
        is_acting = torch.tensor([t in acting_rounds for t in rounds])  # [continuation]
        every_row = slice(None)
        # One edit makes one change.
        ((site, change),) = _list_changes(experiment, [edit], rounds, every_row)
        # Rows are ordered by episode, then by continuation.
        changes.append((site, partial(_change_rows, change, is_acting.repeat(base.n_episodes))))
    return changes


def _change_rows(change: _Change, acting: Bool[Tensor, " row"], activation: Tensor) -> Tensor:
    """Apply a change to some rows of an activation, and return the new activation.

    Args:
        change: function from an activation to a new one.
        acting: True for the rows that change, ``[row]``; all others stay equal.
        activation: the activation, ``[row, ...]``.
    """
    mask = add_axes(acting.to(activation.device), activation.ndim)  # [row, 1, ...]
    return torch.where(mask, change(activation), activation)
