"""Does a model respond to each input of each round as the other does? One input changed, every later round looked at.

:func:`cells` compares the :func:`responses` of two models: 1 is the same response, 0 none or an unrelated one. A
:class:`ResponsePart` asks whether the model responds as if its state had been moved by what the algorithm makes of the
input. How alike two responses are: ``docs/method/naming-an-algorithm.md``.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
import torch
from jaxtyping import Float, Int
from numpy.typing import NDArray

from circuits.compare.question import (
    Compared,
    Participant,
    Question,
    columns,
    pooled,
    pooled_values,
)
from interp import tasks
from interp.choices.fitting import Array, Predict, distributions, predictor
from interp.core.algorithm import Algorithm, Episodes, participants_of
from interp.core.machine import Machine
from interp.core.task import Task
from interp.interventions.experiment import Edit, Experiment, run, run_on
from interp.interventions.moves import Writer
from interp.model.layout import EncodedRounds
from interp.model.rollout import rollout
from interp.results.measure import Result
from interp.stats.intervals import NO_NUMBER, Interval, ratio_interval, resample_weights
from interp.support.session import remembered

_NOTICED = 0.03
"""Root mean squared change of a probability below which no response counts; of real numbers, of all their changes."""
_LAGS = (0, 1, 2, 3, 5, 9, 17)  # lags are taken together from each of these to the next
_THERE = (
    0.95  # level of intervals of responses against moves of the state, which need only be there
)
RESPONDS = 0.5
"""Response against a move of the state, worst cell (why: docs/method/naming-an-algorithm.md)."""
_MORE = 4  # so many times as many inputs are changed where a cell's interval spans that
_FEWEST = 8  # episodes that must respond in a cell; of fewer an interval says nothing
_JITTER = 0.01
"""Noise, as a share of the size of latents, that no prediction should hang on; moves by fitted decoders have it."""
_BANDS = 3  # rounds that read the state of the next are judged in at most so many bands


@dataclass(frozen=True, eq=False)
class Edits:
    """Changes of one input each: (index of the kind, round, rows of the episodes, episodes changed in this round)."""

    episodes: Any
    kinds: tuple[str, ...]
    parts: tuple[tuple[int, int, Int[np.ndarray, " row"], Any], ...]

    @classmethod
    def of(cls, task: Task, episodes: Episodes, n_edits: int) -> Edits:
        """About ``n_edits``: every input of every round but the last, each in other episodes."""
        ways = [
            (f"{corruption.name} {name}".strip(), corruption.build, options)
            for corruption in task.analysis.corruptions()
            if corruption.possible and not corruption.changes_history
            for name, options in corruption.each(episodes).items()
        ]
        n, parts = len(episodes), []
        per_round = min(n, max(1, round(n_edits / max(1, len(ways) * (episodes.n_rounds - 1)))))
        for t in range(episodes.n_rounds - 1):
            for kind, (_, build, options) in enumerate(ways):
                rows = np.unique((np.arange(per_round) + per_round * t + kind) % n)
                parts.append((kind, t, rows, build(episodes, t, **options)[1]))
        return cls(episodes, tuple(name for name, *_ in ways), tuple(parts))

    @property
    def of_each(self) -> Int[np.ndarray, "edit 3"]:
        """Kind, round and episode of every change, in order."""
        return np.array(
            [(kind, t, row) for kind, t, rows, _ in self.parts for row in rows], np.int64
        ).reshape(-1, 3)


@remembered
def edits_of(compared: Compared, times: int) -> Edits:
    """The changes that a comparison asks about, ``times`` as many as its budget says."""
    subject = compared.model
    return Edits.of(subject.task, subject.samples.test, times * compared.budget.edits)


def responses(
    subject: Machine | Algorithm | Predict, edits: Edits
) -> Float[np.ndarray, "edit round outcome"]:
    """How much the prediction of every round changes with each edit; 0 before it.

    ``subject`` is a machine, which runs on from its own latents at the round of the edit, or whatever
    :func:`~interp.choices.fitting.predictor` takes.
    """
    if not edits.parts:
        return np.zeros((0, edits.episodes.n_rounds, 1))
    if isinstance(subject, Machine):
        return _of_machine(edits, subject)
    predict = predictor(subject)
    clean = predict(edits.episodes)
    if isinstance(subject, Algorithm):  # its predictions of an episode do not hang on the others
        return np.concatenate(
            [predict(changed.select(rows)) - clean[rows] for _, _, rows, changed in edits.parts]
        )
    return np.concatenate([(predict(changed) - clean)[rows] for _, _, rows, changed in edits.parts])


@remembered
def _of_machine(edits: Edits, model: Machine) -> Array:
    base = rollout(model.eval(), edits.episodes)
    _, at, episode = edits.of_each.T
    change: list[Array] = []
    for t in range(base.n_rounds - 1):
        changed = [batch.select(rows) for _, u, rows, batch in edits.parts if u == t]
        fed = EncodedRounds.joined([model.prepare(base.layout.encode(batch)) for batch in changed])
        on: dict[str, Any] = {"horizon": base.n_rounds - 1 - t, "reads": "each", "update": False}
        found = run(
            Experiment(
                model, base.select(episode[at == t]), {"input": [Edit(None, fed)]}, [t], **on
            )
        )
        change.append(np.pad(found.effects[0].numpy(force=True), ((0, 0), (t, 0), (0, 0))))
    return np.concatenate(change)


def _mediated(subject: Participant, algorithm: Algorithm, writer: Writer, edits: Edits) -> Array:
    """The change of every later prediction when the decoded state is moved as the algorithm's changes with each edit.

    Like :func:`responses`, at the first lag of each band after the edit; NaN elsewhere, and where the latents stand on
    a tie, moved or not: noise (:data:`_JITTER`), added or taken away, changes the choice.
    """
    model, base = subject.model, rollout(subject.model.eval(), edits.episodes)
    values, changes = algorithm.run(edits.episodes), []
    for _, _, rows, changed in edits.parts:
        theirs = algorithm.run(changed.select(rows))
        changes.append(
            {key: np.asarray(theirs[key] - values[key][rows], np.float64) for key in writer.shapes}
        )
    change = {key: np.concatenate([part[key] for part in changes]) for key in writer.shapes}
    _, at, episode = edits.of_each.T
    result = np.full((len(at), *distributions(base.layout, base.predictions).shape[1:]), np.nan)
    draws = torch.Generator().manual_seed(0)
    for t in range(base.n_rounds):
        edit = np.flatnonzero(np.isin(t - at, _LAGS[1:]))
        if not edit.size:
            continue
        own = base.select(episode[edit])
        clean = own.latents[:, t : t + 1]
        step = writer.step(
            {key: value[edit, t : t + 1] for key, value in change.items()}, (len(edit), 1)
        ).to(clean)
        shake = (
            _JITTER
            * (clean + step).square().mean().sqrt()
            * torch.randn(clean.shape, generator=draws).to(clean)
        )
        tried = enumerate((step, step + shake, step - shake, shake, -shake))
        edits_here = {str(i): [Edit.of("latent", clean + by, model)] for i, by in tried}
        found = (
            run(Experiment(model, own, edits_here, [t], update=False))
            .effects[:, :, 0]
            .numpy(force=True)
        )
        moved, tied = (
            found[0],
            np.abs([*(found[1:3] - found[0]), *found[3:]]).max((0, -1))[:, None] > _NOTICED,
        )
        result[edit, t] = np.where(tied, np.nan, moved)
    return result


@dataclass(frozen=True)
class Cell:
    """How alike the responses of one cell are, with an interval over episodes.

    Attributes:
        what: the input that was changed.
        when: the lag or the round, in words.
        size: root mean squared response of the model, and of what it is held against.
    """

    what: str
    when: str
    alike: Interval
    size: float
    reference_size: float

    @property
    def where(self) -> str:
        """Input and time, in words."""
        return f"{self.what}, {self.when}"

    def row(self) -> dict[str, Any]:
        """Columns of a table."""
        return columns(self, alike="number", size="response", reference_size="reference response")


def cells(edits: Edits, ours: Array, theirs: Array, level: float = 0.99) -> tuple[Cell, ...]:
    """How alike two responses ``[edit, round, outcome]`` are in every cell in which at least :data:`_FEWEST` episodes
    respond; the least alike first. Rounds in which one is NaN are left out. There are many cells: their intervals are
    wider than others, but where the question is only whether a response is there at all.
    """
    if not edits.parts:
        return ()
    told, n_rounds, n = edits.of_each, ours.shape[1], len(edits.episodes)
    lag, asked = np.arange(n_rounds) - told[:, 1:2], ~np.isnan(ours + theirs).any(-1)
    asked &= (lag >= 0) & (np.arange(n_rounds) >= tasks.of(edits.episodes).data.first_asked)
    sums = [np.where(asked, part.sum(-1), 0.0) for part in (ours * theirs, ours**2, theirs**2)]
    unit = (
        1.0
        if tasks.of(edits.episodes).kind == "classes"
        else (sums[1] + sums[2]).sum() / (2 * asked.sum())
    )
    notices = _NOTICED**2 * unit
    weights = resample_weights(
        n, seed=0, plain_first=True, participants=participants_of(edits.episodes)
    )
    found = []
    for what, when, mask in _cells_of(edits, lag):
        chosen = mask & asked
        count = np.bincount(told[:, 2], chosen.sum(1), n)
        both, mine, other = (np.bincount(told[:, 2], (part * chosen).sum(1), n) for part in sums)
        if (np.maximum(mine, other) > count * notices).sum() < _FEWEST:
            continue
        drawn = weights @ (mine + other + count * notices)
        shared = weights @ (2 * both + count * notices)
        alike = np.divide(shared, drawn, out=np.full(len(drawn), np.nan), where=drawn > 0)
        sizes = (float(np.sqrt(part.sum() / count.sum())) for part in (mine, other))
        found.append(Cell(what, when, Interval.of_samples(alike[1:], alike[0], level), *sizes))
    return tuple(sorted(found, key=lambda cell: cell.alike.low))


def _cells_of(
    edits: Edits, lag: Int[np.ndarray, "edit round"]
) -> Iterator[tuple[str, str, NDArray[np.bool_]]]:
    """Every input at every band of lags, and every round with all its inputs: both in words, and which responses."""
    told, n_rounds = edits.of_each, lag.shape[1]
    for low, high in zip(_LAGS, (*_LAGS[1:], n_rounds), strict=True):
        if low >= n_rounds:
            break
        last = min(high, n_rounds) - 1
        when = {0: "in the same round", 1: "one round later"}.get(
            last, f"{low} to {last} rounds later"
        )
        when = when if low < last or last < 2 else f"{low} rounds later"
        for kind, name in enumerate(edits.kinds):
            yield name, when, (lag >= low) & (lag < high) & (told[:, :1] == kind)
    for t in range(n_rounds - 1):
        yield "any input", f"changed in round {t}", np.broadcast_to(told[:, 1:2] == t, lag.shape)


@dataclass(frozen=True, repr=False)
class ResponsePart(Result):
    """Whether the model responds as if its state had been updated as an algorithm's.

    Attributes:
        algorithm: whose update; "" where none carries a state, or where no input can be changed.
        cells: the response against the effect of the move, the least alike first.
        arrives: how large the response one round later is, as a share of the move's: less than 1 where an update waits.
        later: how alike model and algorithm change their predictions where rounds read the state of the round after.
    """

    algorithm: str = ""
    cells: tuple[Cell, ...] = ()
    arrives: Interval = NO_NUMBER
    later: Interval = NO_NUMBER

    def to_frame(self) -> pd.DataFrame:
        """One row a cell."""
        return pd.DataFrame(
            [{"name": "response through the state", **cell.row()} for cell in self.cells]
        )


def _through_state(compared: Compared) -> ResponsePart:
    """The responses of the model against moves of its state under the algorithm that it is held against."""
    algorithm, subject = list(compared.candidates.values())[-1], compared.model
    if not algorithm.state:
        return ResponsePart()
    for times in (1, _MORE):
        edits = edits_of(compared, times)
        if not edits.parts:
            return ResponsePart(algorithm.key, later=_from_next_state(subject, algorithm))
        two = (
            responses(subject.model, edits),
            _mediated(subject, algorithm, subject.writer(algorithm), edits),
        )
        found = cells(edits, *two, _THERE)
        if not any(cell.alike.low < RESPONDS <= cell.alike.high for cell in found):
            break
    kind, t, episode = edits.of_each.T
    ours, theirs = (x[np.arange(len(kind)), t + 1] for x in two)
    known, n = ~np.isnan(ours + theirs).any(-1), len(edits.episodes)
    sums = (np.bincount(episode[known], (x * theirs).sum(-1)[known], n) for x in (ours, theirs))
    return ResponsePart(
        algorithm.key, found, ratio_interval(*sums, participants=participants_of(edits.episodes))
    )


def _from_next_state(subject: Participant, algorithm: Algorithm) -> Interval:
    """The correlation of two changes of predictions where rounds read the state of the round after: the model's and the
    algorithm's, in the worst band of rounds.
    """
    run, values, found = (
        pooled(subject),
        pooled_values(algorithm, subject.samples),
        list[Interval](),
    )
    rounds = range(subject.task.data.first_asked, run.n_rounds - 1)
    now, later = slice(rounds.start, rounds.stop), slice(rounds.start + 1, rounds.stop + 1)
    ran = run_on(subject.model, run, rounds, 1, run.latents[:, later]).predictions[0, :, :, 0]
    asked = algorithm.step(algorithm.at(values, later)[0], algorithm.at(values, now)[1])[1]
    ours = distributions(run.layout, ran) - distributions(run.layout, run.predictions)[:, now]
    theirs = algorithm.distribution(asked) - algorithm.distribution(values)[:, now]
    weights = resample_weights(
        run.n_episodes, seed=0, plain_first=True, participants=subject.samples.whose
    )
    for band in np.array_split(np.arange(len(rounds)), min(_BANDS, len(rounds))):
        both, mine, other = (
            (x[:, band] * y[:, band]).sum((1, 2))
            for x, y in ((ours, theirs), (ours, ours), (theirs, theirs))
        )
        if (other > 0).sum() >= _FEWEST:
            size = np.sqrt((weights @ mine) * (weights @ other))
            alike = np.divide(np.abs(weights @ both), size, out=np.zeros(len(size)), where=size > 0)
            found.append(Interval.of_samples(alike[1:], alike[0]))
    return min(found, key=lambda one: one.low, default=NO_NUMBER)


RESPONSE = Question("response", ResponsePart, _through_state)
