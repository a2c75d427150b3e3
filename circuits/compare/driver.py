"""Compare a model with a reference: one call, the questions in order, a measure of each that decides a claim.

:data:`QUESTIONS` is the list of everything that a comparison asks. A new question is a :class:`Question` in a file of
its own and an entry here.
"""

from __future__ import annotations

import copy
import inspect
import time
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import pandas as pd
import torch

from circuits.compare.algorithm import ALGORITHM, BEHAVIOUR, Failure
from circuits.compare.circuit import CIRCUIT
from circuits.compare.effects import EFFECTS, WHERE
from circuits.compare.question import Budget, Compared, Participant, Samples, shared_sizes
from circuits.compare.response import RESPONSE
from circuits.compare.state import STATE
from circuits.compare.update import UPDATE
from circuits.registry import RECORDS, handwired
from interp import tasks
from interp.core.machine import Machine
from interp.model.library import handwired_models, load
from interp.model.transformer import untrained
from interp.results.measure import Measure, Measured, sentence
from interp.support.checks import checked
from interp.support.errors import require
from interp.support.files import folder_to_write, json_values, write_csv, write_json
from interp.support.provenance import provenance
from interp.support.session import Finished, session
from interp.support.workers import bar, one_thread

QUESTIONS = (ALGORITHM, BEHAVIOUR, STATE, RESPONSE, UPDATE, EFFECTS, CIRCUIT, WHERE)
"""In the order in which they are computed, tabled and judged; a question may read the parts before it."""
_GROWN = 1e4  # latents beyond this have squares that drown everything else, or overflow
_HALVINGS = 12  # how often the weights of an untrained copy are halved before it is given up
_FORMAT = 2


@dataclass(frozen=True, repr=False)
class Comparison(Measured):
    """A model held against a reference, or against algorithms alone.

    Every part is an attribute, too, by the key of its question: ``algorithm``, ``behaviour``, ``state``, ``response``,
    ``update``, ``effects``, ``circuit`` and ``where``; None for what is asked only of two models where there is no
    reference, and for what one of the two lacks, such as attention heads.

    Attributes:
        reference: its name; "" where there is none.
        parts: by the key of their question.
        measures: of "behaviour", "state", "update" and "circuit"; without a reference of the first and the third.
    """

    model: str
    reference: str
    parts: Mapping[str, Any]
    measures: tuple[Measure, ...]
    settings: dict[str, Any] = field(default_factory=dict)

    def __getattr__(self, name: str) -> Any:
        if any(name == question.key for question in QUESTIONS):
            return self.parts.get(name)
        raise AttributeError(
            f"a comparison has no {name!r}; its parts are {', '.join(q.key for q in QUESTIONS)}"
        )

    @property
    def sentence(self) -> str:
        """What the measures say together; the first phrase names what the model is held against."""
        against = self.reference or self.algorithm.scores[self.algorithm.closest].name
        measures = list(self.measures)
        decided = [
            i for word in ("yes", "no") for i, one in enumerate(measures) if one.verdict == word
        ]
        for i in decided[:1]:
            yes, no = (
                f"{measures[i].yes.removesuffix(' likewise')} as {against}",
                f"{measures[i].no} than {against}",
            )
            measures[i] = replace(measures[i], yes=yes, no=no)
        return sentence(self.model, measures)

    @property
    def failures(self) -> tuple[Failure, ...]:
        """The rounds at which the two models differ most, worst first; none without a reference."""
        return tuple(self.behaviour.failures)

    @cached_property
    def tables(self) -> dict[str, pd.DataFrame]:
        """Every number of each part, by the part's key; their intervals are drawn once."""
        return {key: part.to_frame() for key, part in self.parts.items()}

    def to_dict(self) -> dict[str, Any]:
        """JSON values; numbers that do not exist are None."""
        told = {
            "format": _FORMAT,
            "model": self.model,
            "reference": self.reference,
            "sentence": self.sentence,
            "measures": [one.to_dict() for one in self.measures],
            "algorithm": self.algorithm.to_dict(),
            "tables": {key: table.to_dict("records") for key, table in self.tables.items()},
            "failures": self.failures,
            "settings": self.settings,
        }
        return dict(json_values(told))

    @checked
    def save(self, folder: str | Path) -> list[Path]:
        """Write ``comparison.json``, ``measures.csv`` and a CSV for each part."""
        tables, whole = (
            {"measures": self.to_frame(), **self.tables},
            Path(folder) / "comparison.json",
        )
        csv = (write_csv(whole.with_name(f"{name}.csv"), table) for name, table in tables.items())
        return [write_json(whole, self.to_dict()), *csv]


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
        reference: another model of the task, or the name of one (a handwired one is built in sizes that the model
            serves, and at the rates of the model's own episodes); None: against algorithms alone, which decides
            behaviour and update.
        budget: episodes, rounds (at most as many as the task says anything new in), untrained models and seed;
            ``Budget()`` when None, and ``Budget.quick()`` does a quarter.
        folder: where finished parts are kept until all are, so that a run that was killed goes on; None keeps none.
        arguments: what a handwired reference, given by name, is built with beside that, such as ``{"beta": 10}``.

    Raises:
        InputError: models of different tasks, on different devices, or that share no size.
    """
    started = time.process_time()
    budget = budget or Budget()
    if folder is not None:
        folder_to_write(folder, "the folder of finished parts")
    require(
        "name" not in (arguments or {}),
        "the reference is named by itself: leave name out of arguments=",
    )
    other = _loaded(model, reference, dict(arguments or {}))
    models = [m for m in (model, other) if m is not None]
    placed = " and ".join(f"{one.name} on {one.device}" for one in models)
    require(len({one.device for one in models}) == 1, f"{placed}: put both on one device")
    sizes, task = shared_sizes(models), tasks.of(model)
    budget = budget.of_rounds(task.at_most(budget.rounds))
    with session():
        compared = _compared(model, other, budget, sizes)
        built = {"reference_arguments": dict(arguments)} if arguments else {}
        digests = [one.digest() for one in models]
        settings = provenance(
            **asdict(budget), task=task.name, sizes=sizes, digests=digests, **built
        )
        finished = Finished(
            None if folder is None else Path(folder) / ".parts", settings, task.rivals()
        )
        asked = [question for question in QUESTIONS if other is not None or not question.of_two]
        with bar(f"comparing {compared.model.name}", len(asked)) as done:
            for question in asked:
                if not question.lacking(compared):
                    compute = partial(question.compute, compared)
                    compared.parts[question.key] = finished.part(
                        question.key, question.kind, compute
                    )
                done(1)
        measures = tuple(question.measure(compared) for question in asked if question.claim)
    finished.clear()
    return Comparison(
        model=compared.model.name,
        reference="" if other is None else other.name,
        parts=compared.parts,
        measures=measures,
        settings={**settings, "cpu_seconds": round(time.process_time() - started, 1)},
    )


def _compared(
    model: Machine, other: Machine | None, budget: Budget, sizes: dict[str, int]
) -> Compared:
    """The models, their untrained copies and the episodes on which they are compared."""
    samples = Samples.draw(model, budget, sizes)
    subject, peer = Participant(model, samples), None
    if other is not None:
        peer = Participant(
            other, samples, f"{subject.name} (reference)" if other.name == subject.name else ""
        )
    return Compared(
        model=subject,
        reference=peer,
        untrained=list(_controls(model, samples, budget)),
        reference_untrained=[] if other is None else list(_controls(other, samples, budget)),
        budget=budget,
        sets=tasks.of(model).sets_for(
            budget.battery, budget.rounds, budget.seed, budget.scored, **sizes
        ),
    )


def _controls(model: Machine, samples: Samples, budget: Budget) -> Iterator[Participant]:
    """Untrained copies. One that grows without bound, as unbounded attention lets some, gets smaller weights."""
    for i in range(budget.untrained):
        subject = Participant(untrained(model, budget.seed + i), samples)
        for _ in range(_HALVINGS):
            runs = [subject.run(episodes) for episodes in (samples.known, samples.test)]
            if all(
                run.latents.abs().max() < _GROWN and run.predictions.isfinite().all()
                for run in runs
            ):
                yield subject
                break
            bounded = copy.deepcopy(subject.model)
            with torch.no_grad():
                for weight in bounded.parameters():  # type: ignore[attr-defined]
                    weight.mul_(0.5)
            subject = Participant(bounded, samples)


def _loaded(
    model: Machine, reference: Machine | str | None, arguments: Mapping[str, Any]
) -> Machine | None:
    """The reference itself; a handwired one, given by name, in the task's default sizes where the model serves them.

    Whatever else its builder and the model's layout name alike is taken from the layout, so that rounds have the same
    positions.
    """
    if not isinstance(reference, str) or reference not in RECORDS:
        given = ", ".join(f"{name}={value}" for name, value in arguments.items())
        require(
            not arguments,
            f"{given} is for a reference that is handwired, given as one of {', '.join(RECORDS)}; leave it out",
        )
        return load(reference).to(model.device) if isinstance(reference, str) else reference
    record = handwired(reference)
    require(
        record.task == model.layout.task,
        f"{reference!r} is a model of {record.task}, {model.name!r} of {model.layout.task}; give one of "
        f"{', '.join(handwired_models(model.layout.task)) or 'no handwired models'}",
    )
    taken = inspect.signature(record.build).parameters
    options = {k: v for k, v in tasks.of(model).data.sample_options(model).items() if k in taken}
    alike = {f.name: getattr(model.layout, f.name) for f in fields(model.layout) if f.name in taken}
    return load(reference, **{**alike, **shared_sizes([model]), **options, **arguments}).to(
        model.device, torch.float64
    )
