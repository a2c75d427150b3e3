"""Compare a model with a reference: one call, the parts in order, a verdict on each question.

from circuits import compare
found = compare.run(load("wma-learned"), "wma-handwired")
print(found)                                    # which algorithm, and the four verdicts with what decided them
found.update.to_frame()                         # every part as a table
"""

from __future__ import annotations

import inspect
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from circuits.compare import algorithm as behaviour
from circuits.compare import verdicts
from circuits.compare.circuit import CircuitPart, circuits
from circuits.compare.effects import EffectsPart, effects
from circuits.compare.fitting import Predict, checked_distributions, divergence, predictor
from circuits.compare.result import Comparison, Failure
from circuits.compare.state import StatePart, stitch
from circuits.compare.subject import FULL, Effort, Samples, Subject, shared_sizes
from circuits.compare.update import UpdatePart, updates
from circuits.compare.where import WherePart, where
from interp import tasks
from interp.algorithm import Algorithm
from interp.checks import checked
from interp.errors import require
from interp.finished import Finished
from interp.library import handwired_models, load
from interp.model.transformer import HookedLatentTransformer, untrained
from interp.progress import bar
from interp.provenance import provenance
from interp.statistics import Interval, ratio_interval

Array = NDArray[np.float64]
T = TypeVar("T")
N_FAILURES = 20
"""How many rounds of largest difference are kept for the tables."""


@checked
def run(
    model: HookedLatentTransformer,
    reference: HookedLatentTransformer | str | None = None,
    *,
    effort: Effort = FULL,
    folder: str | Path | None = None,
) -> Comparison:
    """Compare ``model`` with ``reference`` and with every algorithm of its task.

    Args:
        reference: another model of the task, or the name of one (a handwired one is built in sizes that the model
            serves, and at the rates of the model's own episodes); None: against algorithms alone, which gives verdicts
            on behaviour and update.
        effort: episodes, rounds (at most as many as the task says anything new in), untrained models and seed;
            :data:`~circuits.compare.QUICK` does a quarter.
        folder: where finished parts are kept until all are, so that a run that was killed goes on; None keeps none.

    Raises:
        InputError: models of different tasks or that share no size; a task without algorithms.
    """
    other = loaded(model, reference)
    sizes = shared_sizes([model] if other is None else [model, other])
    task, started = tasks.of(model), time.process_time()
    effort = effort.of_rounds(task.at_most(effort.rounds))
    samples = Samples.draw(model, effort, sizes)
    subject = Subject(model, samples)
    controls = _controls(model, samples, effort)
    built = next((m.layout for m in (other, model) if m is not None and m.is_handwired), model.layout)
    sets = task.sets_for(built, effort.battery, effort.rounds, effort.seed)
    settings = provenance(**asdict(effort), sizes=sizes, digests=[m.digest() for m in (model, other) if m is not None])
    finished = Finished(None if folder is None else Path(folder) / ".parts", settings, task.rivals())
    predict = _remembered(model)
    stitched = wired = places = alike = None
    failures: tuple[Failure, ...] = ()
    with bar(f"comparing {subject.name}", 3 if other is None else 6) as done:

        def part(name: str, kind: type[T], compute: Callable[[], T]) -> T:
            found = finished.part(name, kind, compute)
            done(1)
            return found

        explained = part(
            "algorithm",
            behaviour.AlgorithmPart,
            lambda: behaviour.explain(predict, task, sets, seed=effort.seed),
        )
        candidates = _candidates(explained.algorithm, task.explains(model if other is None else other))
        updated = part("update", UpdatePart, lambda: updates(subject, candidates, controls, effort))
        moved = part("effects", EffectsPart, lambda: effects(subject, candidates, controls, effort))
        if other is not None:
            peer = Subject(other, samples, f"{subject.name} (reference)" if other.config.name == subject.name else "")
            fresh = _controls(other, samples, effort)
            held = [task.explains(m) for m in (model, other)]
            alike, failures = _alike(predict, predictor(other), sets, explained, effort.seed)
            stitched = part("state", StatePart, lambda: stitch(subject, peer, controls, effort))
            wired = part("circuit", CircuitPart, lambda: circuits(subject, peer, controls, fresh, effort))
            places = part("where", WherePart, lambda: where(subject, peer, held, controls, fresh, effort))
    finished.clear()
    return Comparison(
        subject.name,
        "" if other is None else other.config.name,
        explained,
        updated,
        moved,
        stitched,
        wired,
        places,
        _judged(explained, updated, moved, stitched, wired, alike, list(candidates)[-1]),
        failures,
        {**settings, "cpu_seconds": round(time.process_time() - started, 1)},
    )


def _judged(
    explained: behaviour.AlgorithmPart,
    updated: UpdatePart,
    moved: EffectsPart,
    stitched: StatePart | None,
    wired: CircuitPart | None,
    alike: Interval | None,
    algorithm: str,
) -> dict[str, verdicts.Verdict]:
    """The verdicts, in their order; those that need a reference where there is one."""
    found = [verdicts.behaviour(explained.explained if alike is None else alike)]
    found += [] if stitched is None else [verdicts.state(stitched)]
    found += [verdicts.update(updated, moved, algorithm)]
    found += [] if wired is None else [verdicts.circuit(wired)]
    return {verdict.question: verdict for verdict in found}


def loaded(
    model: HookedLatentTransformer, reference: HookedLatentTransformer | str | None
) -> HookedLatentTransformer | None:
    """The reference itself; a handwired one, given by name, in the task's default sizes where the model serves them.

    Whatever else its builder and the model's layout name alike is taken from the layout, so that rounds have the same
    positions.

    Raises:
        InputError: an unknown name, a handwired model of another task.
    """
    if not isinstance(reference, str):
        return reference
    from circuits.registry import handwired, models

    if reference not in models():
        return load(reference)
    record = handwired(reference)
    require(
        record.task == model.layout.task,
        f"{reference!r} is a model of {record.task}, {model.config.name!r} of {model.layout.task}; give one of "
        f"{', '.join(handwired_models(model.layout.task)) or 'no handwired models'}",
    )
    taken = inspect.signature(record.build).parameters
    options = {k: v for k, v in tasks.of(model).sample_options(model).items() if k in taken}
    alike = {f.name: getattr(model.layout, f.name) for f in fields(model.layout) if f.name in taken}
    return load(reference, **{**alike, **shared_sizes([model]), **options}).double()


def _remembered(model: HookedLatentTransformer) -> Predict:
    """What the model predicts; each batch, which must stay alive, is run once."""
    predict, known = predictor(model), dict[int, Array]()

    def remembered(episodes: Any) -> Array:
        if id(episodes) not in known:
            known[id(episodes)] = predict(episodes)
        return known[id(episodes)]

    return remembered


def _controls(model: HookedLatentTransformer, samples: Samples, effort: Effort) -> list[Subject]:
    """Untrained copies, but for those whose latents grow beyond all numbers, as unbounded attention lets some."""
    fresh = [Subject(untrained(model, effort.seed + i), samples) for i in range(effort.untrained)]
    return [s for s in fresh if all(bool(s.run(e).latents.isfinite().all()) for e in (samples.known, samples.test))]


def _candidates(closest: Algorithm | None, reference: Algorithm) -> Mapping[str, Algorithm]:
    """Whose state is looked for: the algorithm that comes closest, where it carries one, then the reference's."""
    found = {} if closest is None or not closest.state else {closest.key: closest}
    found.pop(reference.key, None)
    return {**found, reference.key: reference}


def _alike(
    model: Predict,
    reference: Predict,
    sets: Mapping[str, tuple[Any, Any]],
    explained: behaviour.AlgorithmPart,
    seed: int,
) -> tuple[Interval, tuple[Failure, ...]]:
    """How alike two models predict: 1 less their divergence over that of the best guess without a memory."""
    base = explained.scores[explained.baseline].divergences
    apart, rounds = {}, []
    for name, (_, episodes) in sets.items():
        p, q = (checked_distributions(predict(episodes), episodes) for predict in (model, reference))
        apart[name] = divergence(p, q)
        rounds += _rounds(name, seed, p, q, episodes.n_rounds - p.shape[1])
    parts = [np.concatenate([values[name] / len(values[name]) for name in sets]) for values in (apart, base)]
    lost = ratio_interval(*parts, seed=seed)
    worst = sorted(rounds, key=lambda failure: -failure.nats)[:N_FAILURES]
    return lost.complement, tuple(worst)


def _rounds(name: str, seed: int, p: Array, q: Array, first: int) -> list[Failure]:
    """The rounds of one set at which two predictions, from round ``first`` on, differ most."""
    nats = divergence(p.reshape(-1, 1, p.shape[-1]), q.reshape(-1, 1, q.shape[-1])).reshape(p.shape[:2])
    order = np.argsort(-nats, axis=None, kind="stable")[:N_FAILURES]
    found = []
    for episode, t in zip(*np.unravel_index(order, nats.shape), strict=True):
        distributions = [tuple(float(x) for x in d[episode, t]) for d in (p, q)]
        found.append(Failure(name, seed, int(episode), first + int(t), float(nats[episode, t]), *distributions))
    return found
