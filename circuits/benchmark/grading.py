"""Grade methods on subjects: each is built, all methods share its material, and every answer is scored."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

from circuits.benchmark.grades import Result
from circuits.benchmark.guard import RefusedError, asked
from circuits.benchmark.known_machine import FORMS, KnownMachine, build, trained_builders, variants
from circuits.benchmark.material import FULL, QUICK, Material, Workload
from circuits.benchmark.method import Method
from circuits.benchmark.methods import select
from circuits.benchmark.questions import QUESTIONS
from interp.checks import checked, refuse_endless
from interp.display import lacks
from interp.errors import require, require_known
from interp.files import writable
from interp.finished import Finished
from interp.progress import bar
from interp.provenance import provenance
from interp.workers import each, one_thread, share

_Builder = Callable[[], KnownMachine]


def builders(quick: bool = True, seed: int = 0) -> dict[str, _Builder]:
    """Every subject by name, and what builds it: cheap, and the same each time; the trained ones last.

    >>> len(builders()), list(builders())[:2]
    (57, ['wma-handwired R, plain', 'wma-handwired R, rotated'])
    """
    handmade: dict[str, _Builder] = {
        f"{machine} {form}, {variant}": partial(build, machine, form, variant, quick=quick, seed=seed)
        for form, (machine, _) in FORMS.items()
        for variant in variants(machine, form)
    }
    return handmade | trained_builders()


_QUICK_SUBJECTS = tuple(
    f"{FORMS[form][0]} {form}, {variant}"
    for form in ("R", "mean, softmax", "mlp")
    for variant in ("plain", "distractors")
)
"""What the quick run grades methods on: one form of each machine, plain and among distractors."""


@checked
def run(
    subjects: Mapping[str, _Builder] | Sequence[str] = (),
    methods: Sequence[Method] | Sequence[str] = (),
    *,
    questions: Sequence[str] = (),
    seeds: Sequence[int] = (0,),
    quick: bool = False,
    effort: Workload | None = None,
    out: str | Path | None = None,
    n_jobs: int = 1,
    scheduler: str = "",
    shard: str = "",
) -> Result:
    """Grade every method on every subject.

    Args:
        subjects: names of :func:`builders`, or builders of your own by name; all when empty (the quick ones where
            ``quick``).
        methods: keys, or methods of your own; all when empty. The oracle and chance are always among them.
        seeds: of episodes and of what methods draw.
        quick: few subjects, less effort, no slow methods.
        effort: in place of that of a quick or a full run.
        out: a folder in which ``parts`` keeps what is done, by subject and seed: a run that was cut short goes on.
        n_jobs: subjects that are worked on at once, each by a process.
        scheduler: of dask workers, as :func:`interp.workers.each` takes it; they write to ``out``, too.
        shard: only these subjects and seeds, as :func:`interp.workers.share` takes them.
    """
    require(len(seeds) > 0, "seeds is empty; give at least one")
    refuse_endless("seeds", len(seeds))
    chosen, started = _subjects(subjects, quick), time.time()
    keys = [method for method in methods if isinstance(method, str)]
    custom = [method for method in methods if isinstance(method, Method)]
    if keys or not custom:
        chosen_methods = select(keys, questions, quick)
    else:
        bounds = select(["oracle"], list(dict.fromkeys(method.question for method in custom)))
        chosen_methods = [*bounds, *(method for method in custom if method not in bounds)]
    require(bool(chosen_methods), "no method is left; give more methods or questions")
    names = [(method.question, method.key) for method in chosen_methods]
    twice = next((key for question, key in names if names.count((question, key)) > 1), None)
    require(twice is None, f"two methods of one question are called {twice!r}; give each a key of its own")
    effort = effort or (QUICK if quick else FULL)
    parts = None if out is None else writable(Path(out) / "parts")
    work = share([(name, build, seed) for seed in seeds for name, build in chosen.items()], shard)
    done: list[dict[str, Any]] = []
    with bar("grading", len(work)) as advance:
        for part in each(_part, (chosen_methods, effort, parts), work, n_jobs=n_jobs, scheduler=scheduler):
            done.append(part)
            advance(1)
    order = {(name, seed): i for i, (name, _, seed) in enumerate(work)}
    done.sort(key=lambda part: order[part["subject"], part["seed"]])
    settings = provenance(
        effort=asdict(effort),
        seeds=list(seeds),
        subjects=list(chosen),
        cpu_seconds=round(sum(part["cpu_seconds"] for part in done), 1),
        wall_seconds=round(time.time() - started, 1),
    )
    rows = tuple(row for part in done for row in part["rows"])
    return Result(rows, tuple(row for part in done for row in part["refusals"]), settings)


def _subjects(subjects: Mapping[str, _Builder] | Sequence[str], quick: bool) -> Mapping[str, _Builder]:
    if isinstance(subjects, Mapping):
        return subjects
    known = builders()
    for name in subjects:
        require_known("subject", name, known, limit=60)
    names = subjects or (_QUICK_SUBJECTS if quick else known)
    return {name: known[name] for name in names}


@one_thread()
def _part(shared: tuple[Sequence[Method], Workload, Path | None], one: tuple[str, _Builder, int]) -> dict[str, Any]:
    """All methods on one subject with one seed; what a file of the same effort already says is kept."""
    (methods, effort, folder), (name, build, seed) = shared, one
    finished, key = Finished(folder, {"subject": name, "seed": seed, "effort": effort}), f"{name} {seed}"
    empty: dict[str, Any] = {"subject": name, "seed": seed, "cpu_seconds": 0.0, "rows": [], "refusals": []}
    part = finished.load(key, dict[str, Any]) or empty
    known = {(row["question"], row["method"]) for key in ("rows", "refusals") for row in part[key]}
    missing = [method for method in methods if (method.question, method.key) not in known]
    if missing:
        started = time.process_time()
        failed = _grade(build(), seed, missing, effort, part)
        part["cpu_seconds"] += time.process_time() - started
        finished.save(key, dict[str, Any], part)
        part["refusals"] += failed  # not kept: a method that is mended is asked again
    wanted = {(method.question, method.key) for method in methods}
    for key in ("rows", "refusals"):
        part[key] = [row for row in part[key] if (row["question"], row["method"]) in wanted]
    return part


def _grade(
    subject: KnownMachine, seed: int, methods: Sequence[Method], effort: Workload, part: dict[str, Any]
) -> list[dict[str, Any]]:
    """Add rows and refusals of some methods; gives the refusals of those that failed."""
    failed: list[dict[str, Any]] = []
    material = Material(subject, effort, seed)
    about = {key: getattr(subject, key) for key in ("machine", "form", "variant")}
    for method in methods:
        question = QUESTIONS[method.question]
        row = {"subject": part["subject"], "seed": seed, "question": question.key, "method": method.key}
        truth = material.truth(method.question)
        if not truth and (sentence := lacks(subject.model, "pattern")):
            part["refusals"].append({**row, "sentence": sentence})
        if len(set(truth.values())) < 2:
            continue  # The truth is not known, or no two items differ by it.
        try:
            ask = partial(material.charged, partial(method.answer, subject, material))
            answer, seconds = asked(ask, truth, subject.model)
            try:
                scores = {**question.grade(subject, material, answer), **answer.measured}
            except Exception as error:
                raise RefusedError(f"its answer cannot be scored ({type(error).__name__}: {error})") from error
        except RefusedError as refusal:
            (part["refusals"] if refusal.kept else failed).append({**row, "sentence": str(refusal)})
            continue
        part["rows"] += [
            {**row, **about, "score": score, "value": float(value), "cpu_s": seconds} for score, value in scores.items()
        ]
    return failed
