"""Grade methods of interpretability on subjects (machines with known mechanisms).

Each subject is built once. All methods share its episodes and runs, and every answer is scored. A
method gets a copy of the subject's model, which it may change. If a method raises an error or
returns no valid answer, a sentence replaces its scores, and the other methods go on.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence, Set
from copy import deepcopy
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property, partial
from numbers import Real
from pathlib import Path
from typing import Any, NamedTuple

import pandas as pd
import torch

from circuits.benchmark.known_machine import (
    FORMS,
    KnownMachine,
    build,
    variants,
)
from circuits.benchmark.material import FULL, QUICK, Material, Workload
from circuits.benchmark.methods import METHODS, Method, select
from circuits.benchmark.question import Answer, Truth
from circuits.benchmark.questions import QUESTIONS
from interp.core.display import describe_lacking
from interp.results.measure import Result
from interp.stats.intervals import bootstrap_mean
from interp.support.checks import checked, checked_result, integer, refuse_endless
from interp.support.errors import InputError, convert_errors, require, require_known
from interp.support.files import json_values, writable, write_csv, write_json
from interp.support.provenance import provenance
from interp.support.session import Finished
from interp.support.shares import divide, marked_as_running
from interp.support.workers import bar, one_thread, run_on_workers

_N_ITEMS_NAMED = 3  # so many items are named in a sentence


class _RefusedError(Exception):
    """Raised inside the grading when a method gets no scores on a subject.

    Its arguments are a sentence with the reason, and a boolean. True means that the method itself
    refuses this subject, so that later runs do not try again; False means that it failed.
    """


_REFUSES, _FAILED = True, False  # the second argument of `_RefusedError`


def _get_valid_answer(ask: Callable[[], tuple[Any, float]], truth: Truth) -> tuple[Answer, float]:
    """Call a method and check that its answer can be scored.

    Args:
        ask: function that calls the method and returns its answer and CPU seconds.
        truth: the true kind of every item of the question.

    Returns:
        The answer and the CPU seconds.

    Raises:
        _RefusedError: the method raised an error, or its answer cannot be scored.
    """
    try:
        answer, seconds = ask()
    except InputError as error:  # the method says that it does not apply to this subject
        raise _RefusedError(str(error), _REFUSES) from error
    except Exception as error:
        raise _RefusedError(f"raised {type(error).__name__}: {error}", _FAILED) from error
    problem = _find_problem(answer, truth)
    if problem:
        raise _RefusedError(problem, _FAILED)
    return answer, seconds


def _find_problem(answer: Any, truth: Truth) -> str:
    """Return a sentence that says why an answer cannot be scored, or "" if it can.

    Args:
        answer: what a method returned.
        truth: the true kind of every item of the question.
    """
    if not isinstance(answer, Answer):
        return f"gave {type(answer).__name__}, and must give an Answer"
    scores, chosen = answer.scores, answer.chosen
    if not isinstance(scores, Mapping):
        return f"scores must map items to numbers, got {type(scores).__name__}"
    if not isinstance(chosen, Set | None):
        return f"chosen must be a set of items or None, got {type(chosen).__name__}"
    # Scores of items that were not asked about, such as algorithms that extend the true one, are
    # ignored. They are a mistake only if scores of items that were asked about are missing.
    surplus = [str(item) for item in scores if item not in truth]
    if surplus and not truth.keys() <= scores.keys():
        named = ", ".join(surplus[:_N_ITEMS_NAMED])
        return f"scores hold {len(surplus)} items that were not asked about ({named}), and lack some that were"
    known = truth.keys() | scores.keys()
    unknown = [str(item) for item in chosen or () if item not in known]
    if unknown:
        named = ", ".join(unknown[:_N_ITEMS_NAMED])
        return f"chosen hold {len(unknown)} items that were not asked about ({named})"
    for name, numbers in (("scores", scores), ("measured", answer.measured)):
        if not isinstance(numbers, Mapping):
            return f"{name} must map names to numbers, got {type(numbers).__name__}"
        wrong = [f"{item}: {x!r}"[:80] for item, x in numbers.items() if not _is_number(x)]
        if wrong:
            named = ", ".join(wrong[:_N_ITEMS_NAMED])
            return f"{name} must be numbers; {len(wrong)} are not ({named})"
    return ""


def _is_number(x: Any) -> bool:
    """Return True if ``x`` is a real number or a tensor of one, finite or infinite. NaN gives
    False, since it cannot be ranked.
    """
    if isinstance(x, torch.Tensor) and x.ndim == 0:
        x = x.item()
    return isinstance(x, Real) and not math.isnan(x)


_FORMAT = 2
_COLUMNS = (
    "subject",
    "machine",
    "form",
    "variant",
    "seed",
    "question",
    "method",
    "score",
    "value",
)
"""Columns of the table and keys of every JSON row; a missing value is null in the JSON."""


@dataclass(frozen=True)
@checked_result
class BenchmarkResult(Result):
    """Scores of interpretability methods on machines with known mechanisms (subjects).

    A subject is named by its machine, its form (how the machine is constructed, such as "R,
    softmax") and its variant (how it was changed afterwards, such as "rotated").

    Attributes:
        rows: one row per subject, seed, question, method and score. The columns are subject,
            machine, form, variant, seed, the keys of question and method, score (a name, such as
            "auroc") and value.
        refusals: one row per subject, seed, question and method without a valid answer, with the
            columns subject, seed, question, method and sentence (the reason).
        settings: effort (how much was computed), seeds, subjects, time and other provenance.
    """

    rows: tuple[Mapping[str, Any], ...]
    refusals: tuple[Mapping[str, Any], ...] = ()
    settings: Mapping[str, Any] = field(default_factory=dict)

    def to_frame(self) -> pd.DataFrame:
        """Return a table with one row per subject (a machine with a known mechanism), seed,
        question, method and score.

        The columns are subject, machine, form (how the machine is constructed), variant (how it was
        changed afterwards), seed, the keys of question and method, score (a name, such as "auroc")
        and value.
        """
        return pd.DataFrame(list(self.rows), columns=_COLUMNS)

    @cached_property
    def scored(self) -> tuple[str, ...]:
        """Keys of the questions for which at least one method has the question's main score."""
        frame = self.to_frame().dropna(subset="value")
        headlines = {key: question.headline for key, question in QUESTIONS.items()}
        is_main = frame["score"] == frame["question"].map(headlines)
        return tuple(frame["question"][is_main].unique())

    @cached_property
    def means(self) -> pd.DataFrame:
        """Table of mean scores, one row per method and one column per question that has main scores
        (:attr:`scored`). The method with the best mean over questions comes first. A score is
        averaged first over the variants and seeds of each form (construction) of a machine, then
        over forms, as in :meth:`summary`.

        Each question has several scores. The table shows its main score, with which the name of the
        column ends, as in "which edges, ap". Some methods come in several settings, such as
        "eap:single" and "eap:joined"; the row "eap" shows, for each question, the best of them.
        """
        columns = {}
        for key in self.scored:
            by_setting = self.summary(key).set_index("method")["mean"]
            question = QUESTIONS[key]
            # The part of a method's key before the colon is shared by all of its settings.
            best_setting = by_setting.groupby(lambda method: method.split(":")[0]).max()
            columns[f"{question.name}, {question.headline}"] = best_setting
        table = pd.DataFrame(columns)
        means = table.mean(axis=1).sort_values(ascending=False, kind="stable")
        return table.loc[means.index]

    @property
    def sentence(self) -> str:
        """A sentence that names the best method for each question, with its mean score. The oracle
        and the random answer do not count.
        """
        methods = self.means.drop(index=["oracle", "random"], errors="ignore")
        answered = methods.dropna(how="all", axis="columns")
        best = []
        for question, scores in answered.items():
            best.append(f"{question}: {scores.idxmax()} ({scores.max():.2f})")
        shown = "; ".join(best) or "none"
        return f"The best method for each question, with its mean score: {shown}."

    def _draw(self, figures: Any) -> Any:
        """Draw a heatmap of the mean scores, with methods as rows and questions as columns.

        Args:
            figures: module with the package's plotting functions.
        """
        return figures.heatmaps({"": self.means}, label="mean score", limit=1.0, width=4.1)

    @checked
    def summary(self, question: str) -> pd.DataFrame:
        """Return the mean of a question's main score for each method, with a 95 % interval.

        A form is one construction of a machine, such as "R, softmax"; variants are changed copies
        of it. A score is first averaged over the variants and seeds of each form. These averages
        are then averaged over forms, and the interval is from a bootstrap over forms.

        Args:
            question: key of the question, such as "edges".

        Returns:
            One row per method. The columns are method (its key), mean, low and high (the ends of
            its interval) and subjects (number of subjects with this score; each variant of a form
            is one subject). The method with the best mean comes first.
        """
        require_known("question", question, QUESTIONS)
        score = QUESTIONS[question].headline
        frame = self.to_frame().query("question == @question and score == @score and value.notna()")
        require(
            len(frame) > 0,
            f"no method has a score {score!r} of question {question!r} in this result",
        )
        rows = []
        for method, group in frame.groupby("method", sort=False):
            by_form = group.groupby(["machine", "form"])["value"].mean()
            mean, low, high = bootstrap_mean(by_form.to_numpy())
            row = {
                "method": method,
                "mean": float(mean),
                "low": float(low),
                "high": float(high),
                "subjects": group["subject"].nunique(),
            }
            rows.append(row)
        return pd.DataFrame(rows).sort_values(
            "mean", ascending=False, kind="stable", ignore_index=True
        )

    @checked
    def table(self, question: str, scores: Sequence[str] = ()) -> pd.DataFrame:
        """Return the mean scores of one question, with methods as rows and scores as columns.

        A score is averaged over the variants and seeds of each form (construction) of a machine
        first, then over forms. Rows are sorted by the question's main score, or by the first column
        if this score is not shown; the best method comes first.

        Args:
            question: key of the question, such as "edges".
            scores: names of the scores to show, such as "auroc"; all when empty.
        """
        require_known("question", question, QUESTIONS)
        frame = self.to_frame()
        frame = frame[(frame["question"] == question) & frame["value"].notna()]
        for score in scores:
            require_known(f"score of {question!r}", score, list(frame["score"].unique()))
        require(len(frame) > 0, f"this result has no score of question {question!r}")
        by_form = frame.pivot_table("value", ["method", "machine", "form"], "score", sort=False)
        wide = by_form.groupby("method").mean()
        if scores:
            wide = wide[list(scores)]
        headline = QUESTIONS[question].headline
        sorted_by = headline if headline in wide else wide.columns[0]
        return wide.sort_values(sorted_by, ascending=False, kind="stable")

    def to_dict(self) -> dict[str, Any]:
        """Return the result as a dictionary of JSON values; a missing number is None."""
        methods = {f"{question}/{key}": m.name for (question, key), m in METHODS.items()}
        record = {
            "format": _FORMAT,
            "rows": self.rows,
            "refusals": self.refusals,
            "methods": methods,
            "settings": dict(self.settings),
        }
        return dict(json_values(record))

    @checked
    def save(self, folder: str | Path) -> list[Path]:
        """Write ``benchmark.json``, the table of all scores ``scores.csv``, and a table
        ``QUESTION.csv`` per question with scores.

        Args:
            folder: the folder to write into.

        Returns:
            The paths of the files.
        """
        folder = Path(folder)
        scores = self.to_frame()
        tables = {"scores": scores}
        for key in scores.dropna(subset="value")["question"].unique():
            tables[key] = self.table(key).reset_index()
        paths = [write_json(folder / "benchmark.json", self.to_dict())]
        return paths + [write_csv(folder / f"{name}.csv", frame) for name, frame in tables.items()]


_Builder = Callable[[], KnownMachine]


def subject_builders() -> dict[str, _Builder]:
    """Return the functions that build the subjects (machines with known mechanisms).

    A subject is only built when its function is called. The function takes no argument. Every call
    builds the same :class:`~circuits.benchmark.known_machine.KnownMachine` anew.

    Returns:
        Name of a subject -> its function.

    >>> len(subject_builders()), list(subject_builders())[:2]
    (55, ['wma-handwired R, plain', 'wma-handwired R, rotated'])
    """
    subjects: dict[str, _Builder] = {}
    for form, (machine, _) in FORMS.items():
        for variant in variants(form):
            subjects[f"{machine} {form}, {variant}"] = partial(build, machine, form, variant)
    return subjects


_QUICK_SUBJECTS = tuple(
    f"{FORMS[form][0]} {form}, {variant}"
    for form in ("R", "mean, softmax", "mlp")
    for variant in ("plain", "distractors")
)
"""Subjects of the quick run: one form of each machine, without and with distractor heads."""


@checked
def run(
    subjects: Mapping[str, _Builder] | Sequence[str] = (),
    methods: Sequence[Method] | Sequence[str] = (),
    *,
    questions: Sequence[str] = (),
    seeds: Sequence[int] = (0,),
    effort: Workload = FULL,
    out: str | Path | None = None,
    n_jobs: int = 1,
    scheduler: str = "",
    shard: str = "",
) -> BenchmarkResult:
    """Let every interpretability method answer its question about every subject (a machine with a
    known mechanism), and grade the answers.

    Args:
        subjects: names from :func:`subject_builders`; or, for new subjects, a mapping from names to
            functions without arguments that build them. When empty, all known subjects.
        methods: keys of registered methods, or :class:`~circuits.benchmark.methods.Method` objects;
            when empty, all registered methods. The oracle, which knows the truth, and a random
            answer are always added.
        questions: keys of questions; all when empty.
        seeds: seeds of the episodes and of the methods' random draws.
        effort: how many episodes, rounds and fits are used. With :data:`QUICK`, an empty
            ``subjects`` means a few of them, and an empty ``methods`` leaves out slow ones.
        out: folder in whose subfolder ``parts`` finished work is stored, one file per subject and
            seed. A later call with the same arguments then continues an interrupted run. Scores are
            stored by the names of subject and method: a changed method needs another key, or
            another folder. None stores nothing.
        n_jobs: number of worker processes; each works on one subject at a time.
        scheduler: address of a dask scheduler, to compute on its workers, which write to ``out``,
            too (:func:`interp.support.workers.run_on_workers`); "" for none.
        shard: which share of the subjects and seeds to run, such as "2/64" for the second of 64
            shares; "" for all (:func:`interp.support.shares.divide`). A later call with "" and the
            same ``out`` reads what all shares stored.

    Returns:
        The scores of every method on every subject of the share; and which method gave no valid
        answer on which subject.
    """
    require(seeds, "seeds is empty; give at least one")
    require(out is not None or not shard, "a share is kept in a folder: give out=")
    refuse_endless("seeds", len(seeds))
    for seed in seeds:
        integer("seeds", seed, 0)
    is_quick = effort == QUICK
    builders = subjects if isinstance(subjects, Mapping) else _choose_subjects(subjects, is_quick)
    chosen_methods = _choose_methods(methods, questions, is_quick)
    parts = None if out is None else writable(Path(out) / "parts")
    jobs: dict[str, _Job] = {}
    for seed in seeds:
        for subject, builder in builders.items():
            job = _Job(subject=subject, build=builder, seed=seed)
            jobs[job.name] = job
    if parts is not None:
        jobs = _choose_share(jobs, chosen_methods, effort, parts, shard)
    graded: dict[str, dict[str, Any]] = {}  # by name of the job, in any order
    shared = (chosen_methods, effort, parts)
    with bar("grading", len(jobs)) as advance:
        for name, part in run_on_workers(
            _grade_subject, shared, list(jobs.values()), n_jobs=n_jobs, scheduler=scheduler
        ):
            graded[name] = part
            advance(1)
    done = [graded[name] for name in jobs]
    cpu_seconds = sum(part["cpu_seconds"] for part in done)
    by_method = pd.DataFrame([part["seconds"] for part in done])
    cpu_seconds_by_method = by_method.sum().round(1).to_dict()
    settings = provenance(
        effort=asdict(effort),
        seeds=list(seeds),
        subjects=list(builders),
        cpu_seconds=round(cpu_seconds, 1),
        cpu_seconds_by_method=cpu_seconds_by_method,
    )
    rows = tuple(row for part in done for row in part["rows"])
    refusals = tuple(row for part in done for row in part["refusals"])
    return BenchmarkResult(rows=rows, refusals=refusals, settings=settings)


class _Job(NamedTuple):
    """What a worker is given: one subject, which all methods are graded on, and one seed.

    Attributes:
        subject: name of the subject.
        build: function that builds the subject.
        seed: seed of the episodes and of the methods' random draws.
    """

    subject: str
    build: _Builder
    seed: int

    @property
    def name(self) -> str:
        """Subject and seed in words; the name of the file that stores the scores."""
        return f"{self.subject} {self.seed}"

    def open_stored_scores(self, folder: Path | None, effort: Workload) -> Finished:
        """Return the object that stores the job's finished scores, and loads them again.

        Args:
            folder: folder of the files; None for no files.
            effort: how much is computed; scores that were stored with another effort are not
                reused.
        """
        settings = {"subject": self.subject, "seed": self.seed, "effort": effort}
        return Finished(folder, settings)


def _choose_share(
    jobs: Mapping[str, _Job],
    methods: Sequence[Method],
    effort: Workload,
    folder: Path,
    shard: str,
) -> dict[str, _Job]:
    """Return the jobs of this process's share, by name, if several commands divide the work.

    Args:
        jobs: all jobs, by name.
        methods, effort: the methods and the effort, on which the scores depend.
        folder: folder in which all commands store finished scores.
        shard: this share, such as "2/64"; "" for all jobs.
    """
    files = {}  # name of a job -> the file that will have its scores
    for name, job in jobs.items():
        files[name] = job.open_stored_scores(folder, effort).file_of(name, dict[str, Any])
    method_names = [f"{method.question} {method.key}" for method in methods]
    names = divide(folder, files, {"effort": asdict(effort), "methods": method_names}, shard)
    return {name: jobs[name] for name in names}


def _choose_subjects(names: Sequence[str], is_quick: bool) -> dict[str, _Builder]:
    """Return the builders of subjects (machines with known mechanisms), by name of the subject.

    Args:
        names: names of the subjects; all when empty, or in a quick run a few.
        is_quick: True for a quick run.
    """
    known = subject_builders()
    for name in names:
        require_known("subject", name, known, limit=60)
    chosen = names or (_QUICK_SUBJECTS if is_quick else list(known))
    return {name: known[name] for name in chosen}


def _choose_methods(
    methods: Sequence[Method] | Sequence[str], questions: Sequence[str], is_quick: bool
) -> list[Method]:
    """Return the methods to run.

    Keys are looked up among the registered methods. Methods that a user made come together with the
    oracle and the random answer for their questions.

    Args:
        methods: keys, or methods that a user made; all registered methods when empty.
        questions: keys of questions; all when empty.
        is_quick: True leaves out slow methods.

    Raises:
        InputError: no method is left, or two methods of one question have the same key.
    """
    keys = [method for method in methods if isinstance(method, str)]
    custom = [method for method in methods if isinstance(method, Method)]
    use_registered = keys or not custom
    chosen = select(keys, questions, is_quick) if use_registered else _add_bounds(custom, questions)
    require(chosen, "no method is left; give more methods or questions")
    names = set()
    for method in chosen:
        name = (method.question, method.key)
        require(
            name not in names,
            f"two methods of one question are called {method.key!r}; give each a key of its own",
        )
        names.add(name)
    return chosen


def _add_bounds(methods: Sequence[Method], questions: Sequence[str]) -> list[Method]:
    """Return the methods that answer some questions, preceded by the oracle and the random answer
    to each of these questions.

    Args:
        methods: methods that a user made, each for one question; those for one of ``questions`` are
            returned. If the oracle or the random answer is among them, it is not returned twice.
        questions: keys of the questions; when empty, the questions that ``methods`` answer.
    """
    questions = questions or [method.question for method in methods]
    bounds = select(["oracle"], questions)  # the oracle and the random answer
    others = [m for m in methods if m not in bounds and m.question in questions]
    return bounds + others


@one_thread()
def _grade_subject(
    shared: tuple[Sequence[Method], Workload, Path | None], job: _Job
) -> tuple[str, dict[str, Any]]:
    """Run and grade all methods on one subject with one seed.

    Scores that are stored in a file for this effort are not computed again. The failure of a method
    is not stored, so that a later run calls the method again after its repair.

    Args:
        shared: methods, effort and the folder of finished work.
        job: the subject and the seed.

    Returns:
        Name of the job; and a dictionary with the subject, the seed, the lists "rows" and
        "refusals", and the CPU seconds in total and by method.
    """
    methods, effort, folder = shared
    finished = job.open_stored_scores(folder, effort)
    empty: dict[str, Any] = {
        "subject": job.subject,
        "seed": job.seed,
        "cpu_seconds": 0.0,
        "seconds": {},
        "rows": [],
        "refusals": [],
    }
    part = empty | (finished.load(job.name, dict[str, Any]) or {})
    known = {(row["question"], row["method"]) for row in part["rows"] + part["refusals"]}
    missing = [method for method in methods if (method.question, method.key) not in known]
    if missing:
        started = time.process_time()
        builder = f"the builder of {job.subject!r}"
        with convert_errors(builder):
            subject = job.build()
        require(
            isinstance(subject, KnownMachine),
            f"{builder} must give a KnownMachine, got {subject!r}",
        )
        with marked_as_running(folder, job.name):
            # Adds rows, refusals and seconds to `part`.
            failed = _grade(subject, job.seed, missing, effort, part)
        part["cpu_seconds"] += time.process_time() - started
        finished.save(job.name, dict[str, Any], part)
        part["refusals"] += failed  # not stored, so that a later run calls a repaired method again
    # The stored scores may also be of methods that an earlier run had, and this one has not.
    wanted = {(method.question, method.key) for method in methods}
    for key in ("rows", "refusals"):
        part[key] = [row for row in part[key] if (row["question"], row["method"]) in wanted]
    return job.name, part


def _grade(
    subject: KnownMachine,
    seed: int,
    methods: Sequence[Method],
    effort: Workload,
    part: dict[str, Any],
) -> list[dict[str, Any]]:
    """Run and grade some methods on one subject, and append their rows and refusals to ``part``.

    A question is left out if its truth is unknown or has only one kind of item.

    Args:
        subject: the machine.
        seed: seed of the episodes and of the methods' draws.
        methods: the methods to run.
        effort: how many episodes, rounds and fits are used.
        part: record of the subject, which is changed in place.

    Returns:
        Refusals of methods that failed and may run again; these are not in ``part``.
    """
    failed: list[dict[str, Any]] = []
    material = Material(subject, effort, seed)
    lacking = describe_lacking(subject.model, "pattern")  # "" if it has attention
    for method in methods:
        row = {
            "subject": part["subject"],
            "seed": seed,
            "question": method.question,
            "method": method.key,
        }
        truth = material.truth(method.question)
        # Without attention there is no edge graph, and so no truth of the questions about it.
        if not truth and lacking:
            part["refusals"].append({**row, "sentence": lacking})
        if len(set(truth.values())) < 2:
            continue  # The truth is not known, or no two items differ by it.
        try:
            scores, seconds = _score_method(method, subject, material, truth)
        except _RefusedError as refusal:
            sentence, is_final = refusal.args
            refusals = part["refusals"] if is_final else failed
            refusals.append({**row, "sentence": sentence})
            continue
        part["seconds"][f"{method.question}/{method.key}"] = seconds
        row |= {"machine": subject.machine, "form": subject.form, "variant": subject.variant}
        for score, value in scores.items():
            part["rows"].append({**row, "score": score, "value": float(value)})
    return failed


def _score_method(
    method: Method, subject: KnownMachine, material: Material, truth: Truth
) -> tuple[dict[str, float], float]:
    """Call a method on a copy of the subject and score its answer.

    Args:
        method: the method.
        subject: the machine.
        material: the runs that methods share.
        truth: the true kind of every item of the question.

    Returns:
        Scores by name, and CPU seconds.

    Raises:
        _RefusedError: the method raised an error, or its answer cannot be scored.
    """
    # A method may change its model, and other methods share the subject.
    own_subject = replace(subject, model=deepcopy(subject.model))
    ask = partial(material.measure_cost, partial(method.answer, own_subject, material))
    answer, seconds = _get_valid_answer(ask, truth)
    try:
        scores = QUESTIONS[method.question].grade(subject, material, answer)
    except Exception as error:
        text = f"its answer cannot be scored ({type(error).__name__}: {error})"
        raise _RefusedError(text, _FAILED) from error
    return {**scores, **answer.measured}, seconds
