"""Compare a model with a reference model: ask every question, and decide the claim of each.

:data:`QUESTIONS` lists all questions of a comparison. To add a question, write a file with a
:class:`Question` and add an entry to the list.
"""

from __future__ import annotations

import copy
import inspect
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import pandas as pd
import torch

from circuits.compare.algorithm import ALGORITHM, BEHAVIOUR, Failure
from circuits.compare.circuit import CIRCUIT
from circuits.compare.question import (
    Budget,
    Compared,
    Participant,
    Question,
    Samples,
    pool_runs,
    shared_sizes,
)
from circuits.compare.response import RESPONSE
from circuits.compare.state import STATE
from circuits.compare.update import UPDATE
from circuits.registry import RECORDS, get_record
from interp import tasks
from interp.core.machine import Machine
from interp.model.library import handwired_models, load
from interp.model.transformer import untrained
from interp.results.measure import Measure, Measured, sentence
from interp.support.checks import checked, checked_result
from interp.support.errors import require
from interp.support.files import folder_to_write, json_values, write_csv, write_json
from interp.support.provenance import provenance
from interp.support.session import Finished, session
from interp.support.workers import bar, one_thread

QUESTIONS = (ALGORITHM, BEHAVIOUR, STATE, RESPONSE, UPDATE, CIRCUIT)
"""The questions in the order in which they are computed and reported.

A question may use the results of earlier ones.
"""
_LARGEST_LATENT = 1e4
"""Largest entry of the latents of an untrained copy; squares of larger ones could overflow."""
_SCALES = 12
"""How many scales of an untrained copy's weights are tried, if its latents grow, before it is given
up: 1, 1/2, 1/4, ...
"""
_FORMAT = 2


@dataclass(frozen=True, repr=False)
@checked_result
class Comparison(Measured):
    """The comparison of a model with another model (the reference) and with algorithms, or with
    algorithms alone.

    A comparison answers several questions. The result of each is also an attribute: ``algorithm``,
    ``behaviour``, ``state``, ``response``, ``update`` or ``circuit``. An attribute is None if its
    question needs a reference and there is none, or if a model lacks what the question is about,
    such as attention heads.

    Attributes:
        model: name of the model.
        reference: name of the reference; "" if there is none.
        parts: key of a question, such as "state" -> its result.
        measures: one measure, with a verdict, per claim that the model is like the reference in its
            "behaviour", "state", "update" and "circuit". Without a reference, there are only
            "behaviour" and "update", and an algorithm takes its place.
        settings: {name: value} of budget, task sizes, digests of the models and other provenance.
    """

    model: str
    reference: str
    parts: Mapping[str, Any]
    measures: tuple[Measure, ...]
    settings: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Refuse results without the part "algorithm", which the summary sentence needs."""
        require("algorithm" in self.parts, "a comparison has the part 'algorithm' at least")

    def __getattr__(self, name: str) -> Any:
        keys = [question.key for question in QUESTIONS]
        if name in keys:
            return self.parts.get(name)
        raise AttributeError(f"a comparison has no {name!r}; its parts are {', '.join(keys)}")

    @property
    def sentence(self) -> str:
        """A sentence that reports the verdicts of all measures. It names the model's reference or,
        if there is no reference, the closest algorithm.
        """
        closest = self.algorithm.scores[self.algorithm.closest]
        reference = self.reference or closest.name
        measures = list(self.measures)
        # Only the claim that comes first in the sentence names the reference, as in "predicts the
        # same as ...": the first "yes" or, if there is none, the first "no".
        for verdict in ("yes", "no"):
            decided = [i for i, measure in enumerate(measures) if measure.verdict == verdict]
            if decided:
                first = measures[decided[0]]
                # "updates its state likewise" becomes "updates its state as ...".
                yes = f"{first.yes.removesuffix(' likewise')} as {reference}"
                measures[decided[0]] = replace(first, yes=yes, no=f"{first.no} than {reference}")
                break
        return sentence(self.model, measures)

    @property
    def failures(self) -> tuple[Failure, ...]:
        """The rounds in which the predictions of the model and its reference differ most, worst
        first; empty if there is no reference.
        """
        failures: tuple[Failure, ...] = self.behaviour.failures
        return failures

    @cached_property
    def tables(self) -> dict[str, pd.DataFrame]:
        """Key of a question, such as "state" -> the table of its result (``to_frame()``)."""
        return {key: part.to_frame() for key, part in self.parts.items()}

    def to_dict(self) -> dict[str, Any]:
        """Return the comparison as a dictionary of JSON values; a missing number is None."""
        measures = [measure.to_dict() for measure in self.measures]
        tables = {key: table.to_dict("records") for key, table in self.tables.items()}
        record = {
            "format": _FORMAT,
            "model": self.model,
            "reference": self.reference,
            "sentence": self.sentence,
            "measures": measures,
            "algorithm": self.algorithm.to_dict(),
            "tables": tables,
            "failures": self.failures,
            "settings": self.settings,
        }
        return dict(json_values(record))

    @checked
    def save(self, folder: str | Path) -> list[Path]:
        """Write ``comparison.json``, ``measures.csv`` (one row per claim) and one table per
        question, such as ``state.csv``, to a folder.

        Returns:
            The paths of the files.
        """
        whole = Path(folder) / "comparison.json"
        paths = [write_json(whole, self.to_dict())]
        tables = {"measures": self.to_frame(), **self.tables}
        return paths + [
            write_csv(whole.with_name(f"{name}.csv"), table) for name, table in tables.items()
        ]


@checked
@one_thread()
def machines(
    model: Machine,
    reference: Machine | str | None = None,
    *,
    budget: Budget | None = None,
    folder: str | Path | None = None,
    arguments: Mapping[str, Any] | None = None,
) -> Comparison:
    """Compare ``model`` with ``reference`` and with every algorithm of its task.

    Args:
        model: the model that is compared.
        reference: another model of the task, or its name. A handwired reference that is given by
            name is built for the model's task sizes and form of rounds. None compares with
            algorithms alone; then only the claims on behaviour and update are decided.
        budget: how many episodes, rounds and untrained copies of the model (as controls) are used,
            and the seed; ``Budget()`` when None. ``Budget.quick()`` does a quarter of the work. The
            number of rounds is reduced to the task's maximum if it has one.
        folder: folder that stores finished parts, so that an interrupted comparison continues. None
            stores nothing.
        arguments: further arguments for building a handwired reference, by name, such as ``{"beta":
            10}``.

    Returns:
        The result of every question, and a measure with a verdict for each claim.

    Raises:
        InputError: the models are of different tasks, on different devices, or accept no common
            size.
    """
    started = time.process_time()
    budget = budget or Budget()
    if folder is not None:
        folder_to_write(folder, "the folder of finished parts")
    arguments = dict(arguments or {})
    require(
        "name" not in arguments, "the reference is named by itself: leave name out of arguments="
    )
    peer = _load_reference(model, reference, arguments)
    models = [model]
    questions = [question for question in QUESTIONS if not question.needs_reference]
    if peer is not None:
        models = [model, peer]
        questions = list(QUESTIONS)
    devices_in_words = " and ".join(f"{m.name} on {m.device}" for m in models)
    require(len({m.device for m in models}) == 1, f"{devices_in_words}: put both on one device")
    sizes, task = shared_sizes(models), tasks.of(model)
    budget = budget.of_rounds(task.cap_rounds(budget.rounds))
    with session():
        compared = _prepare_comparison(model, peer, budget, sizes)
        extra = {"reference_arguments": arguments} if arguments else {}
        settings = provenance(
            **asdict(budget),
            task=task.name,
            sizes=sizes,
            digests=[m.digest() for m in models],
            **extra,
        )
        parts_folder = None if folder is None else Path(folder) / ".parts"
        finished = Finished(parts_folder, settings, named=task.rivals())
        _answer_questions(compared, questions, finished)
        measures = tuple(question.measure(compared) for question in questions if question.claim)
    finished.clear()
    cpu_seconds = round(time.process_time() - started, 1)
    return Comparison(
        model=compared.model.name,
        reference="" if peer is None else peer.name,
        parts=compared.parts,
        measures=measures,
        settings={**settings, "cpu_seconds": cpu_seconds},
    )


def _answer_questions(
    compared: Compared, questions: Sequence[Question], finished: Finished
) -> None:
    """Compute the results of questions, in order, and store them in ``compared.parts``, where later
    questions find them. Questions about something that a model lacks are left out.

    Args:
        compared: the models with their episodes.
        questions: the questions.
        finished: the results that an interrupted comparison has stored.
    """
    with bar(f"comparing {compared.model.name}", len(questions)) as done:
        for question in questions:
            if not question.find_lacks(compared):
                compute = partial(question.compute, compared)
                part = finished.part(question.key, question.kind, compute)
                compared.parts[question.key] = part
            done(1)


def _prepare_comparison(
    model: Machine, reference: Machine | None, budget: Budget, sizes: dict[str, int]
) -> Compared:
    """Sample the episodes of a comparison and prepare the models and their untrained copies.

    Args:
        model: the model that is judged.
        reference: the reference, or None.
        budget: numbers of episodes, rounds and copies, and the seed. It has two numbers of episodes
            in each of the task's sets: ``battery`` to fit algorithms on, ``scored`` to compare on.
        sizes: sizes of the task, by name, that both models accept.
    """
    samples = Samples.draw(model, budget, sizes)
    subject = Participant(model, samples)
    peer = None
    if reference is not None:
        label = f"{subject.name} (reference)" if reference.name == subject.name else ""
        peer = Participant(reference, samples, label)
    task = tasks.of(model)
    # Name of a set -> (episodes to fit algorithms on, episodes to compare predictions on).
    sets = task.sets_for(
        budget.battery, budget.rounds, seed=budget.seed, n_scored=budget.scored, **sizes
    )
    return Compared(
        model=subject,
        reference=peer,
        untrained=list(_draw_copies(model, samples, budget)),
        budget=budget,
        sets=sets,
    )


def _draw_copies(model: Machine, samples: Samples, budget: Budget) -> Iterator[Participant]:
    """Yield untrained copies of a model, as controls.

    If the latents of a copy grow beyond 1e4, or its predictions are not finite, its weights are
    halved until neither happens. A copy for which 11 halvings are not enough is left out.

    Args:
        model: the model; its architecture is copied.
        samples: episodes that the copies run on.
        budget: number of copies, and seed.
    """
    for i in range(budget.untrained):
        subject = Participant(untrained(model, budget.seed + i), samples)
        for _ in range(_SCALES):
            if _has_bounded_values(subject):
                yield subject
                break
            bounded = copy.deepcopy(subject.model)
            with torch.no_grad():
                for weight in bounded.parameters():  # type: ignore[attr-defined]
                    weight.mul_(0.5)
            subject = Participant(bounded, samples)


def _has_bounded_values(subject: Participant) -> bool:
    """Return True if, on the known and test episodes, all latents stay below 1e4 and all
    predictions are finite.
    """
    run = pool_runs(subject)
    largest = run.latents.abs().max()  # NaN if a latent is NaN; `<` is then False
    return bool(largest < _LARGEST_LATENT and run.predictions.isfinite().all())


def _load_reference(
    model: Machine, reference: Machine | str | None, arguments: Mapping[str, Any]
) -> Machine | None:
    """Load the reference of a comparison.

    A handwired reference is built in the sizes that the model accepts, at the task's default where
    possible. Other options that describe a round, such as whether it has marker tokens, are copied
    from the model's layout, so that rounds have the same positions.

    Args:
        model: the model that is judged.
        reference: a model, a name, or None.
        arguments: further arguments of a handwired reference.

    Raises:
        InputError: arguments for a reference that is not handwired, or a handwired model of another
            task.
    """
    if not isinstance(reference, str) or reference not in RECORDS:
        listed = ", ".join(f"{name}={value}" for name, value in arguments.items())
        require(
            not arguments,
            f"{listed} is for a reference that is handwired, given as one of {', '.join(RECORDS)}; leave it out",
        )
        if isinstance(reference, str):
            return load(reference).to(model.device)
        return reference
    record, layout = get_record(reference), model.layout
    possible = ", ".join(handwired_models(layout.task)) or "no handwired models"
    mismatch = f"{reference!r} is a model of {record.task}, {model.name!r} of {layout.task}"
    require(record.task == layout.task, f"{mismatch}; give one of {possible}")
    # Fields of the model's layout, its sizes and its sampling options describe its rounds. Those
    # that the builder has parameters for are passed to it.
    sample_options = tasks.of(model).data.sample_options(model)
    known_of_model = {**vars(layout), **shared_sizes([model]), **sample_options}
    parameters = inspect.signature(record.build).parameters
    options = {name: value for name, value in known_of_model.items() if name in parameters}
    built = load(reference, **{**options, **arguments})
    return built.to(model.device, torch.float64)
