"""Do the predictions of two models respond equally to a changed input? One input of one round is
changed at a time.

:func:`compare_responses` compares the :func:`measure_responses` of two models in all later rounds: a similarity of 1 is
the same response, 0 none or an unrelated one. :class:`ResponsePart` compares the response with the
effect of changing the model's state as the algorithm would. ``docs/method/naming-an-algorithm.md``
says how two responses are compared.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import torch
from jaxtyping import Float, Int
from numpy.typing import NDArray

from circuits.compare.question import (
    HALF,
    N_BANDS,
    Compared,
    Participant,
    Question,
    make_row,
    pool_runs,
    pool_values,
)
from interp import tasks
from interp.choices.fitting import Array, Predict, distributions, predictor, run_batches
from interp.core.algorithm import Algorithm, Episodes, participants_of
from interp.core.machine import Machine
from interp.core.task import Task
from interp.interventions.experiment import (
    Edit,
    Experiment,
    run,
    run_from_changed_inputs,
    run_on,
)
from interp.model.layout import EncodedRounds
from interp.model.rollout import rollout
from interp.results.measure import Result
from interp.stats.intervals import NO_NUMBER, Interval, ratio_interval, resample_weights
from interp.support.checks import checked_fields, checked_result
from interp.support.session import cached_in_session

_SMALLEST_RESPONSE = 0.03
"""Root mean squared change of a probability below which there is no response.

For real numbers it is relative to all their changes.
"""
_LAGS = (0, 1, 2, 3, 5, 9, 17)
"""First lags of the bands of lags, each about twice as wide as the one before.

Late and fading responses show, and each band has enough changes.
"""
_CELL_LEVEL = 0.95
"""Level of the intervals that compare responses with the effects of changes of the state."""
_MORE_INPUTS = 4
"""Factor by which the changed inputs of a cell are increased if its interval spans its threshold.

Four times as many make the interval half as wide.
"""
_FEWEST_EPISODES = 8
"""Number of episodes that must respond in a cell; an interval of fewer says nothing."""
_LATENT_NOISE = 0.01
"""Size of noise in latents, as a share of their size, that should not change any prediction.

Writing a state by fitted decoders has errors of this size.
"""


class EditedRound(NamedTuple):
    """Edits that change the same input in the same round, in several episodes.

    Attributes:
        kind: index of the input in ``Edits.kinds``.
        round: index of the round.
        rows: indices of the edited episodes, ``[row]``; each is one edit.
        episodes: all episodes, with the input changed in this round. Only the episodes in ``rows``
            are used.
    """

    kind: int
    round: int
    rows: Int[np.ndarray, " row"]
    episodes: Any


@dataclass(frozen=True, eq=False)
@checked_fields
class Edits:
    """A set of edits, each of which changes one input of one round of one episode.

    Attributes:
        episodes: the episodes without changes.
        kinds: the inputs that are changed, each in words.
        parts: the edits, one item per input and round.
    """

    episodes: Any
    kinds: tuple[str, ...]
    parts: tuple[EditedRound, ...]

    @classmethod
    def of(cls, task: Task, episodes: Episodes, n_edits: int) -> Edits:
        """Make about ``n_edits`` edits, each of which changes one input of one round of one
        episode. In every round but the last, every input is changed in a few episodes. Which
        episodes these are depends on the input and on the round.

        Args:
            task: the task, which says which inputs can be changed alone, and how.
            episodes: the episodes without changes.
            n_edits: approximate number of edits.
        """
        ways = []  # (input in words, function that changes it, its options)
        for corruption in task.analysis.corruptions():
            # Not those that change earlier rounds, too, or lead to episodes that cannot occur.
            if corruption.possible and not corruption.changes_history:
                for name, options in corruption.each(episodes).items():
                    words = f"{corruption.name} {name}".strip()
                    ways.append((words, corruption.build, options))
        # No edit is in the last round, after which there is no prediction that could respond.
        n_episodes, last = len(episodes), episodes.n_rounds - 1
        # Number of episodes that are edited for each input and round.
        n_wanted = round(n_edits / max(1, len(ways) * last))
        per_round = min(n_episodes, max(1, n_wanted))
        parts = []
        for t in range(last):
            for kind, (_, build, options) in enumerate(ways):
                # Each round has other episodes than the round before, as far as there are enough. The
                # next input begins one episode later, so that most of its episodes are the same.
                rows = np.sort((np.arange(per_round) + per_round * t + kind) % n_episodes)
                _, changed = build(episodes, t, **options)  # (without, with the change)
                parts.append(EditedRound(kind=kind, round=t, rows=rows, episodes=changed))
        return cls(episodes, tuple(name for name, *_ in ways), tuple(parts))

    @property
    def kind(self) -> Int[np.ndarray, " edit"]:
        """For each edit, the index in ``kinds`` of the input that it changes, ``[edit]``."""
        return self._repeat([part.kind for part in self.parts])

    @property
    def round(self) -> Int[np.ndarray, " edit"]:
        """Index of the round that each edit changes, ``[edit]``."""
        return self._repeat([part.round for part in self.parts])

    @property
    def episode(self) -> Int[np.ndarray, " edit"]:
        """Index of the episode that each edit changes, ``[edit]``."""
        return np.concatenate([part.rows for part in self.parts])

    @cached_property
    def edited_batches(self) -> list[Any]:
        """For each part, its edited episodes, one for each of its edits."""
        return [part.episodes.select(part.rows) for part in self.parts]

    def _repeat(self, by_part: list[int]) -> Int[np.ndarray, " edit"]:
        return np.repeat(by_part, [len(part.rows) for part in self.parts])


@cached_in_session
def make_edits(compared: Compared, times: int) -> Edits:
    """Return edits of the model's test episodes; each changes one input of one round of one
    episode.

    Args:
        compared: the comparison, which has the model, its episodes and the budget.
        times: factor: about ``times * compared.budget.edits`` edits are made.
    """
    subject = compared.model
    return Edits.of(subject.task, subject.samples.test, times * compared.budget.edits)


def measure_responses(
    subject: Machine | Algorithm | Predict, edits: Edits
) -> Float[np.ndarray, "edit round outcome"]:
    """Return how a subject's predictions change if an input changes: for each edit, the prediction
    with the changed input minus the prediction without the change.

    The differences are signed. For classes they are differences of probabilities, one per outcome.
    In tasks that predict a real number, they are differences of the mean, or of mean and log
    variance.

    Args:
        subject: the model or algorithm that predicts, or a function from episodes to predictions
            (see :func:`~interp.choices.fitting.predictor`).
        edits: the edits. Each changes one input in one round of one episode.

    Returns:
        The differences in every round of the edited episode, ``[edit, round, outcome]``; 0 in the
        rounds before the edited one.
    """
    if not edits.parts:
        return np.zeros((0, edits.episodes.n_rounds, 1))
    if isinstance(subject, Machine):
        return _measure_machine_responses(edits, subject)
    predict = predictor(subject)
    clean = predict(edits.episodes)
    # An algorithm predicts each episode by itself, so that the edited ones are enough. Another
    # function may depend on the order or number of episodes.
    if isinstance(subject, Algorithm):
        values = run_batches(subject, edits.edited_batches)
        changed = np.asarray(subject.distribution(values), np.float64)
    else:
        changed = np.concatenate([predict(part.episodes)[part.rows] for part in edits.parts])
    return changed - clean[edits.episode]


@cached_in_session
def _measure_machine_responses(edits: Edits, model: Machine) -> Array:
    """Measure how a machine's predictions change with each edit of an input, ``[edit, round,
    outcome]``, as for :func:`measure_responses`.

    To save time, a run with an edit starts at the edited round, from the state of the run without
    edits, and all edits run together.

    Args:
        edits: the edits and their episodes.
        model: the machine.
    """
    base = rollout(model.eval(), edits.episodes)
    layout = base.layout
    inputs_by_round: list[list[EncodedRounds]] = [[] for _ in range(base.n_rounds)]
    for part, batch in zip(edits.parts, edits.edited_batches, strict=True):
        encoded = model.prepare(layout.encode(batch))
        inputs_by_round[part.round].append(encoded.take_round(part.round))
    # Edits are ordered by round (Edits.of), as the runs must be.
    predictions = run_from_changed_inputs(model, base, edits.episode, inputs_by_round)
    clean = layout.distribution(base.predictions).double()  # [episode, round, outcome]
    changed = layout.distribution(predictions).double()  # [edit, round, outcome]
    changes: Array = (changed - clean[edits.episode]).numpy(force=True)
    if base.missing is not None:
        # An edit of a missing round changes nothing; there is no response to compare.
        changes[base.missing[edits.episode, edits.round]] = np.nan
    return changes


def _measure_responses_to_state(subject: Participant, algorithm: Algorithm, edits: Edits) -> Array:
    """Change the model's state as an edit would change the algorithm's state, keep the inputs
    unchanged, and measure how predictions change.

    The state is decoded from the latents, and the latents are changed so that they encode the new
    state.

    Args:
        subject: the model.
        algorithm: the algorithm that computes how the state changes.
        edits: the changes of inputs.

    Returns:
        Changes of predictions ``[edit, round, outcome]``, measured 1, 2, 3, 5, 9 and 17 rounds
        after the change of the input; NaN in other rounds. Also NaN where noise of 1 % of the
        latents' size changes the prediction, as at a tie.
    """
    model, base = subject.model, rollout(subject.model.eval(), edits.episodes)
    writer = subject.writer(algorithm)  # decodes the state from latents, and changes it in them
    values = algorithm.run(edits.episodes)
    values_with_edits = run_batches(algorithm, edits.edited_batches)
    changes = {}  # of the algorithm's state, [edit, round, ...] by state variable
    for key in writer.shapes:
        change = values_with_edits[key] - values[key][edits.episode]
        changes[key] = np.asarray(change, np.float64)
    shape = distributions(base.layout, base.predictions).shape[1:]
    result = np.full((len(edits.round), *shape), np.nan)
    generator = torch.Generator().manual_seed(0)
    for t in range(base.n_rounds):
        rows = np.flatnonzero(np.isin(t - edits.round, _LAGS[1:]))
        if not rows.size:
            continue
        clean = base.latents[edits.episode[rows], t : t + 1]
        state_change = {key: change[rows, t : t + 1] for key, change in changes.items()}
        # The change of the latents from which this change of the state is decoded.
        step = writer.step(state_change, (len(rows), 1)).to(clean)
        root_mean_square = (clean + step).square().mean().sqrt()
        normal = torch.randn(clean.shape, generator=generator).to(clean)
        noise = _LATENT_NOISE * root_mean_square * normal
        shifts = {
            "step": step,
            "step plus noise": step + noise,
            "step minus noise": step - noise,
            "noise": noise,
            "minus noise": -noise,
        }
        # All shifts run together: every row once for each shift.
        shifted = torch.cat([clean + shift for shift in shifts.values()])
        run_of_rows = base.select(np.tile(edits.episode[rows], len(shifts)))
        latent_edits = {"shifts": [Edit.of("latent", shifted, model)]}
        experiment = Experiment(model, run_of_rows, latent_edits, [t], update=False)
        # [shift, row, outcome], with the shifts in the order above.
        effects = run(experiment).effects[0, :, 0].unflatten(0, (len(shifts), -1)).numpy(force=True)
        of_step, of_step_plus_noise, of_step_minus_noise, of_noise, of_minus_noise = effects
        by_noise = np.stack(
            [of_step_plus_noise - of_step, of_step_minus_noise - of_step, of_noise, of_minus_noise]
        )
        # A response to noise alone, or to the noise beside the step.
        is_tied = np.abs(by_noise).max((0, -1)) > _SMALLEST_RESPONSE
        result[rows, t] = np.where(is_tied[:, None], np.nan, of_step)
    return result


@dataclass(frozen=True)
@checked_result
class Cell:
    """How similarly two subjects, such as a model and its reference, respond to changed inputs, in
    one group of responses (cell). A response is the change of predictions. There are two kinds of
    cells: the responses to all changes of one input, in one range of rounds after the change; and
    the responses to all changes made in one round.

    Attributes:
        what: the input that was changed, in words.
        when: the range of rounds after the change, or the round in which inputs were changed, in
            words.
        alike: similarity of the responses x and y of the two subjects, with an interval over
            episodes. It is ``2 sum(x y) / sum(x^2 + y^2)``, summed over the responses of the cell:
            1 for equal responses, 0 for unrelated ones, about -1 for opposite ones.
        size, reference_size: sizes of the responses of the first and of the second subject: the
            root of the squared response, summed over outcomes and averaged over edits and rounds.
    """

    what: str
    when: str
    alike: Interval
    size: float
    reference_size: float

    @property
    def where(self) -> str:
        """The fields ``what`` and ``when`` as one text, such as "any input, changed in round 3"."""
        return f"{self.what}, {self.when}"

    def row(self) -> dict[str, Any]:
        """Return the cell (a group of responses to changed inputs) as one row of a table, {column:
        value}.

        The columns are:

        * what: the changed input;
        * when: the range of rounds after the change, or the round of the change;
        * number, number_low, number_high: similarity of the two subjects' responses, and the ends
          of its interval;
        * response, reference response: sizes of the two responses.
        """
        return make_row(self, alike="number", size="response", reference_size="reference response")


def compare_responses(
    edits: Edits, ours: Array, theirs: Array, level: float = 0.99
) -> tuple[Cell, ...]:
    """Compare the responses of two subjects to the same changes of inputs, group by group.

    There are two kinds of groups (cells):

    - the responses to all changes of one input, in one range of rounds after the change;
    - the responses to all changes made in one round, from this round on.

    The similarity is ``2 sum(ours * theirs) / sum(ours^2 + theirs^2)``, with a small constant added
    to numerator and denominator: 1 for equal responses. A cell in which fewer than 8 episodes
    respond is left out.

    Args:
        edits: the changes of inputs that both subjects respond to.
        ours, theirs: responses of the two subjects (:func:`measure_responses`), ``[edit, round, outcome]``.
            Rounds where one of them is NaN are left out.
        level: level of the intervals, from 0 to 1. It is high because there are many cells.

    Returns:
        The cells, the least similar first.
    """
    if not edits.parts:
        return ()
    task, n_rounds, n_episodes = tasks.of(edits.episodes), ours.shape[1], len(edits.episodes)
    rounds = np.arange(n_rounds)
    lag = rounds - edits.round[:, None]  # [edit, round]
    is_known = ~np.isnan(ours + theirs).any(-1)
    is_compared = is_known & (lag >= 0) & (rounds >= task.data.first_asked)
    # [edit, round], summed over outcomes; what is not compared counts as no response.
    product = np.where(is_compared, (ours * theirs).sum(-1), 0.0)
    our_square = np.where(is_compared, (ours**2).sum(-1), 0.0)
    their_square = np.where(is_compared, (theirs**2).sum(-1), 0.0)
    least_square = _SMALLEST_RESPONSE**2
    if task.kind != "classes":  # real numbers have units: relative to the mean square of both
        least_square *= (our_square + their_square).sum() / (2 * is_compared.sum())
    # [resample, episode]; in the first, every episode counts once, which gives the estimate.
    weights = resample_weights(
        n_episodes, seed=0, plain_first=True, participants=participants_of(edits.episodes)
    )

    def sum_by_episode(values: Array) -> NDArray[Any]:
        """Sum an array ``[edit, round]`` over rounds and over the edits of each episode."""
        return np.bincount(edits.episode, values.sum(1), n_episodes)

    compared = []
    for what, when, mask in _list_cells(edits, lag):
        is_in_cell = mask & is_compared  # [edit, round]
        count = sum_by_episode(is_in_cell)  # [episode], as all sums below
        our_squares = sum_by_episode(our_square * is_in_cell)
        their_squares = sum_by_episode(their_square * is_in_cell)
        # Added above and below, so that tiny responses of any kind count as equal ones.
        smallest_squares = count * least_square
        responds = np.maximum(our_squares, their_squares) > smallest_squares
        if responds.sum() < _FEWEST_EPISODES:
            continue
        whole = weights @ (our_squares + their_squares + smallest_squares)  # [resample]
        common = weights @ (2 * sum_by_episode(product * is_in_cell) + smallest_squares)
        similarity = np.divide(common, whole, out=np.full(len(whole), np.nan), where=whole > 0)
        n_compared = count.sum()
        cell = Cell(
            what=what,
            when=when,
            alike=Interval.of_samples(similarity[1:], similarity[0], level),
            size=float(np.sqrt(our_squares.sum() / n_compared)),
            reference_size=float(np.sqrt(their_squares.sum() / n_compared)),
        )
        compared.append(cell)
    return _sort_cells(compared)


def _sort_cells(cells: Sequence[Cell]) -> tuple[Cell, ...]:
    """Return cells in the order of the lower bound of their similarity, the least similar first."""
    return tuple(sorted(cells, key=lambda cell: cell.alike.low))


def _select_edits_in_cells(edits: Edits, wanted: Collection[str]) -> Edits:
    """Return those edits whose responses are in some cells, such as all changes of one input.

    Args:
        edits: the edits.
        wanted: the cells, in words (:attr:`Cell.where`).
    """
    rounds = np.arange(edits.episodes.n_rounds)
    lag = rounds - edits.round[:, None]  # [edit, round]
    is_wanted = np.zeros(len(lag), bool)  # [edit]
    for what, when, mask in _list_cells(edits, lag):
        if f"{what}, {when}" in wanted:
            is_wanted |= mask.any(1)
    # All edits of a part change the same input in the same round, and are in the same cells.
    n_edits = [len(part.rows) for part in edits.parts]
    firsts = np.cumsum(n_edits) - n_edits
    pairs = zip(edits.parts, is_wanted[firsts].tolist(), strict=True)
    return replace(edits, parts=tuple(part for part, is_kept in pairs if is_kept))


def _list_cells(
    edits: Edits, lag: Int[np.ndarray, "edit round"]
) -> Iterator[tuple[str, str, NDArray[np.bool_]]]:
    """Yield all cells: every input with every range of rounds after its change, then every round
    with all its inputs.

    Args:
        edits: the edits.
        lag: number of rounds from the edit to each round, ``[edit, round]``.

    Yields:
        (input in words, time in words, boolean mask of the cell's responses). The mask is ``[edit,
        round]``; it is ``[edit, 1]`` for cells with all rounds of their edits.
    """
    n_rounds = lag.shape[1]
    # Each range of lags (band) ends before the first lag of the next band.
    for low, high in zip(_LAGS, (*_LAGS[1:], n_rounds), strict=True):
        if low >= n_rounds:
            break
        is_in_band = (lag >= low) & (lag < high)
        when = _name_lags(low, min(high, n_rounds) - 1)
        for kind, name in enumerate(edits.kinds):
            yield name, when, is_in_band & (edits.kind == kind)[:, None]
    for t in range(n_rounds - 1):
        yield "any input", f"changed in round {t}", (edits.round == t)[:, None]


def _name_lags(first: int, last: int) -> str:
    """Return a range of lags (numbers of rounds after a change) in words.

    >>> _name_lags(0, 0), _name_lags(1, 1), _name_lags(2, 2), _name_lags(3, 4)
    ('in the same round', 'one round later', '2 rounds later', '3 to 4 rounds later')
    """
    if first < last:
        return f"{first} to {last} rounds later"
    return {0: "in the same round", 1: "one round later"}.get(last, f"{last} rounds later")


@dataclass(frozen=True, repr=False)
@checked_result
class ResponsePart(Result):
    """Whether a model responds to changed inputs as if an algorithm updated its state.

    A response is a change of the model's predictions. Two responses are compared: to a changed
    input, and to a state that is changed in the latents as the input would change the algorithm's
    state.

    Attributes:
        algorithm: key of the algorithm; "" if it carries no state.
        cells: similarity of the two responses in each group of responses (:class:`Cell`); the least
            similar first.
        arrives: size of the response to a changed input one round after the change, as a multiple
            of the response to the changed state (a regression coefficient). It is about 1, or less
            if the update is delayed.
        later: replaces ``cells`` and ``arrives`` in tasks in which no input can be changed alone;
            NaN in other tasks. Model and algorithm predict each round once more, from the state
            that the next round reads. The number is the absolute correlation of the two changes of
            predictions that result, in the group of rounds where it is lowest.
    """

    algorithm: str = ""
    cells: tuple[Cell, ...] = ()
    arrives: Interval = NO_NUMBER
    later: Interval = NO_NUMBER

    def to_frame(self) -> pd.DataFrame:
        """Return a table with one row per cell: a group of responses to all changes of one input,
        in one range of rounds after the change; or to all changes made in one round.

        The columns are:

        * name: always "response through the state";
        * what: the changed input;
        * when: the range of rounds after the change, or the round of the change;
        * number, number_low, number_high: similarity of the response to a changed input and the
          response to a changed state, and the ends of its interval;
        * response, reference response: sizes of these two responses.
        """
        rows = [{"name": "response through the state", **cell.row()} for cell in self.cells]
        return pd.DataFrame(rows)


def _compute_response_part(compared: Compared) -> ResponsePart:
    """Compare two effects on the model's later predictions: of a changed input, and of a changed
    state.

    The state is decoded from the latents and changed as the changed input changes the algorithm's
    state. A cell whose similarity has an interval that spans the threshold is measured again with
    more edits.
    """
    algorithm, subject = compared.expected, compared.model
    if not algorithm.state:
        return ResponsePart()
    edits = make_edits(compared, 1)
    if not edits.parts:
        return ResponsePart(algorithm.key, later=_correlate_with_next_state(subject, algorithm))
    ours = measure_responses(subject.model, edits)
    theirs = _measure_responses_to_state(subject, algorithm, edits)
    compared_cells = compare_responses(edits, ours, theirs, _CELL_LEVEL)
    undecided = {cell.where for cell in compared_cells if cell.alike.low < HALF <= cell.alike.high}
    if undecided:
        more_edits = _select_edits_in_cells(make_edits(compared, _MORE_INPUTS), undecided)
        more_cells = compare_responses(
            more_edits,
            ours=measure_responses(subject.model, more_edits),
            theirs=_measure_responses_to_state(subject, algorithm, more_edits),
            level=_CELL_LEVEL,
        )
        measured_again = {cell.where: cell for cell in more_cells if cell.where in undecided}
        cells = [measured_again.get(cell.where, cell) for cell in compared_cells]
        compared_cells = _sort_cells(cells)
    every_edit, next_round = np.arange(len(edits.round)), edits.round + 1
    # [edit, outcome], one round after each edit.
    our_next, their_next = ours[every_edit, next_round], theirs[every_edit, next_round]
    # NaN: at a tie, where noise alone changes the prediction.
    is_known = ~np.isnan(our_next + their_next).any(-1)
    episode, n_episodes = edits.episode[is_known], len(edits.episodes)
    product = (our_next * their_next).sum(-1)[is_known]
    their_square = (their_next**2).sum(-1)[is_known]
    # The regression coefficient of our response on theirs: sum(ours theirs) / sum(theirs^2).
    arrives = ratio_interval(
        np.bincount(episode, product, n_episodes),
        np.bincount(episode, their_square, n_episodes),
        participants=participants_of(edits.episodes),
    )
    return ResponsePart(algorithm.key, cells=compared_cells, arrives=arrives)


def _correlate_with_next_state(subject: Participant, algorithm: Algorithm) -> Interval:
    """Let a model and an algorithm predict each round again, but from the state that the next round
    reads. Correlate the changes of their predictions.

    Args:
        subject: the model.
        algorithm: the algorithm.

    Returns:
        The absolute correlation in the worst of up to three groups of neighbouring rounds. NaN if
        no scored round has a next round, or if the algorithm's prediction changes in too few
        episodes.
    """
    run, values = pool_runs(subject), pool_values(algorithm, subject.samples)
    # From the first round that has a prediction to the last one that has a next round.
    first, last = subject.task.data.first_asked, run.n_rounds - 1
    rounds = range(first, last)
    if not rounds:
        return NO_NUMBER
    now, later = slice(first, last), slice(first + 1, last + 1)
    outputs = run_on(subject.model, run, rounds, horizon=1, latents=run.latents[:, later])
    # Of the only edit and of the round that reads the state: [episode, round, ...].
    changed = distributions(run.layout, outputs.predictions[0, :, :, 0])
    ours = changed - distributions(run.layout, run.predictions)[:, now]
    # The same for the algorithm: the state of the next round, the inputs of this one.
    later_state, _ = algorithm.select_step_arguments(values, later)
    _, inputs = algorithm.select_step_arguments(values, now)
    _, values_of_later_state = algorithm.step(later_state, inputs)
    changed_by_algorithm = algorithm.distribution(values_of_later_state)
    theirs = changed_by_algorithm - algorithm.distribution(values)[:, now]
    product, our_square, their_square = ours * theirs, ours**2, theirs**2
    weights = resample_weights(
        run.n_episodes, seed=0, plain_first=True, participants=subject.samples.participants
    )
    correlations = []
    for band in np.array_split(np.arange(len(rounds)), min(N_BANDS, len(rounds))):
        their_squares = their_square[:, band].sum((1, 2))  # [episode]
        if (their_squares > 0).sum() < _FEWEST_EPISODES:  # too few in which the algorithm responds
            continue
        # |sum(x y)| / sqrt(sum(x^2) sum(y^2)), [resample].
        size = np.sqrt((weights @ our_square[:, band].sum((1, 2))) * (weights @ their_squares))
        common = np.abs(weights @ product[:, band].sum((1, 2)))
        correlation = np.divide(common, size, out=np.zeros(len(size)), where=size > 0)
        # The first row of the weights has every episode once: its correlation is the estimate.
        correlations.append(Interval.of_samples(correlation[1:], correlation[0]))
    return min(correlations, key=lambda correlation: correlation.low, default=NO_NUMBER)


RESPONSE = Question("response", ResponsePart, _compute_response_part)
