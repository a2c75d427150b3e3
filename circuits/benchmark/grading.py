"""Grade methods on subjects: each is built, all methods share its material, and every answer is scored.

Whatever a method does (changing the subject, raising, giving no answer), the work of the other methods is kept, and a
sentence says what happened in the place of its scores.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import asdict, dataclass, field
from functools import cached_property, partial
from numbers import Real
from pathlib import Path
from typing import Any

import pandas as pd
import torch

from circuits.benchmark.known_machine import (
    FORMS,
    TRUTH,
    WEIGHTS,
    KnownMachine,
    build,
    load_trained,
    variants,
)
from circuits.benchmark.material import FULL, QUICK, Material, Workload
from circuits.benchmark.methods import METHODS, Method, select
from circuits.benchmark.question import Answer, Truth
from circuits.benchmark.questions import QUESTIONS
from interp.core.display import lacks
from interp.core.machine import Machine
from interp.model.saved import content_of
from interp.results.measure import Result
from interp.stats.intervals import bootstrap_mean
from interp.support.checks import checked, integer, refuse_endless
from interp.support.errors import InputError, require, require_known, theirs
from interp.support.files import json_values, read_json, writable, write_csv, write_json
from interp.support.provenance import provenance
from interp.support.session import Finished
from interp.support.workers import bar, each, one_thread, share

_HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
_N_NAMED = 3  # so many items are named in a sentence


class _RefusedError(Exception):
    """Why a method has no scores: a sentence, and whether it would refuse again, and is not asked again."""


def _untouched(model: Machine) -> Callable[[], list[str]]:
    """What undoes all changes of a model since now (weights, hooks, modes and gradients), and says what they were."""
    assert isinstance(model, torch.nn.Module)
    held = {name: tensor.detach().clone() for name, tensor in model.state_dict().items()}
    modes = [(module, module.training) for module in model.modules()]
    hooks = [(module, name, dict(getattr(module, name))) for module, _ in modes for name in _HOOKS]
    learned = [(one, one.requires_grad) for one in model.parameters()]

    def restore() -> list[str]:
        now, said = model.state_dict(), list[str]()
        changed = [
            name
            for name, tensor in held.items()
            if name not in now
            or content_of(name, now[name].cpu()) != content_of(name, tensor.cpu())
        ]
        if changed or now.keys() - held.keys():
            said.append(f"weights ({', '.join(changed[:_N_NAMED])})")
            require(
                list(model.modules()) == [module for module, _ in modes],
                "a method put other modules into subject.model, which cannot be undone; give methods a copy to change",
            )
            model.load_state_dict(held)
        for module, name, before in hooks:
            own = getattr(module, name)
            if dict(own) != before:
                own.clear()
                own.update(before)
                said.append("hooks")
        for module, training in modes:
            said += ["training mode"] * (module.training != training)
            module.training = training
        for parameter, learns in learned:
            said += ["requires_grad"] * (parameter.requires_grad != learns)
            parameter.grad = None
            parameter.requires_grad_(learns)
        return list(dict.fromkeys(said))

    return restore


def _asked(
    ask: Callable[[], tuple[Any, float]], truth: Truth, model: Machine
) -> tuple[Answer, float]:
    """What a method answers and the seconds that it took, or a refusal; the model is as it was afterwards."""
    restore = _untouched(model)
    try:
        answer, seconds = ask()
    except InputError as error:
        raise _RefusedError(str(error), True) from error
    except Exception as error:
        raise _RefusedError(f"raised {type(error).__name__}: {error}", False) from error
    finally:
        changed = restore()
    if changed:
        text = f"changed subject.model in place ({', '.join(changed)}), which was undone; change a copy"
        raise _RefusedError(text, False)
    if problem := _problem(answer, truth):
        raise _RefusedError(problem, False)
    return answer, seconds


def _problem(answer: Any, truth: Truth) -> str:
    if not isinstance(answer, Answer):
        return f"gave {type(answer).__name__}, and must give an Answer"
    if not isinstance(answer.scores, Mapping):
        return f"scores must map items to numbers, got {type(answer.scores).__name__}"
    if not isinstance(answer.chosen, Set | None):
        return f"chosen must be a set of items or None, got {type(answer.chosen).__name__}"
    # A method may score more than was asked, such as algorithms that extend the true one; not instead of it.
    surplus = [str(item) for item in answer.scores if item not in truth]
    if surplus and not truth.keys() <= answer.scores.keys():
        named = ", ".join(surplus[:_N_NAMED])
        return f"scores hold {len(surplus)} items that were not asked about ({named}), and lack some that were"
    unknown = [
        str(item) for item in answer.chosen or () if item not in truth and item not in answer.scores
    ]
    if unknown:
        return f"chosen hold {len(unknown)} items that were not asked about ({', '.join(unknown[:_N_NAMED])})"
    for name, numbers in (("scores", answer.scores), ("measured", answer.measured)):
        if not isinstance(numbers, Mapping):
            return f"{name} must map names to numbers, got {type(numbers).__name__}"
        # One real number, which may be infinite: NaN has no place in a ranking.
        plain = {
            k: n.item() if isinstance(n, torch.Tensor) and n.ndim == 0 else n
            for k, n in numbers.items()
        }
        wrong = [
            item
            for item, number in plain.items()
            if not isinstance(number, Real) or math.isnan(number)
        ]
        none = [f"{item}: {numbers[item]!r}"[:80] for item in wrong]
        if none:
            return f"{name} must be numbers; {len(none)} are not ({', '.join(none[:_N_NAMED])})"
    return ""


_FORMAT = 1
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
    "cpu_s",
)
"""The columns of the table and of every row of the JSON; a value that does not exist is null in the JSON."""


@dataclass(frozen=True)
class BenchmarkResult(Result):
    """Scores of methods: a row for each subject, seed, question, method and score, with the columns :data:`_COLUMNS`.

    ``refusals`` are what methods refused: subject, seed, question, method, and the sentence.
    """

    rows: tuple[Mapping[str, Any], ...]
    refusals: tuple[Mapping[str, Any], ...] = ()
    settings: Mapping[str, Any] = field(default_factory=dict)

    def to_frame(self) -> pd.DataFrame:
        """The tidy table."""
        return pd.DataFrame(list(self.rows), columns=_COLUMNS)

    @cached_property
    def means(self) -> pd.DataFrame:
        """The mean headline score of every method, in its best reading, on every question; the best method first."""
        found = {}
        for key in dict.fromkeys(row["question"] for row in self.rows):
            by_method = self.summary(key).set_index("method")["mean"]
            name = f"{QUESTIONS[key].name}, {QUESTIONS[key].headline}"
            found[name] = by_method.groupby(lambda method: method.split(":")[0]).max()
        table = pd.DataFrame(found)
        return table.loc[table.mean(axis=1).sort_values(ascending=False, kind="stable").index]

    @property
    def sentence(self) -> str:
        """The best method for each question."""
        kept = self.means.drop(index=["oracle", "random"], errors="ignore").dropna(
            how="all", axis="columns"
        )
        best = [f"{name}: {of.idxmax()} ({of.max():.2f})" for name, of in kept.items()]
        return (
            f"The best method for each question, with its mean score: {'; '.join(best) or 'none'}."
        )

    def _draw(self, figures: Any) -> Any:
        """Every method on every question."""
        return figures.heatmaps({"": self.means}, label="mean score", limit=1.0, width=4.1)

    @checked
    def summary(self, question: str, score: str = "", by: Sequence[str] = ()) -> pd.DataFrame:
        """Mean of a score for each method, best first, with its 95 % interval over forms of machines, and CPU seconds.

        ``by`` names further columns to tell apart, such as "variant".
        """
        for name in by:
            require_known("column", name, _COLUMNS)
        require_known("question", question, QUESTIONS)
        score = score or QUESTIONS[question].headline
        frame = self.to_frame().query("question == @question and score == @score and value.notna()")
        require(
            len(frame) > 0,
            f"no method has a score {score!r} of question {question!r} in this result",
        )
        rows = []
        for keys, group in frame.groupby([*by, "method"], sort=False):
            mean, low, high = map(
                float, bootstrap_mean(group.groupby(["machine", "form"])["value"].mean().to_numpy())
            )
            bounds = {
                "mean": mean,
                "low": low,
                "high": high,
                "subjects": group["subject"].nunique(),
            }
            rows.append(
                {
                    **dict(zip([*by, "method"], keys, strict=True)),
                    **bounds,
                    "cpu_s": group["cpu_s"].mean(),
                }
            )
        table = pd.DataFrame(rows)
        return table.sort_values(
            [*by, "mean"], ascending=[True] * len(by) + [False], kind="stable", ignore_index=True
        )

    @checked
    def table(self, question: str, scores: Sequence[str] = ()) -> pd.DataFrame:
        """Methods in rows, scores in columns: over forms, of means over variants and seeds."""
        require_known("question", question, QUESTIONS)
        first, frame = QUESTIONS[question].headline, self.to_frame()
        frame = frame[frame["question"] == question]
        for score in scores:
            require_known(f"score of {question!r}", score, list(frame["score"].unique()))
        require(len(frame) > 0, f"this result has no row of question {question!r}")
        wide = (
            frame.pivot_table("value", ["method", "machine", "form"], "score", sort=False)
            .groupby("method")
            .mean()
        )
        wide = wide[list(scores)] if scores else wide
        return wide.sort_values(
            first if first in wide else wide.columns[0], ascending=False, kind="stable"
        )

    def to_dict(self) -> dict[str, Any]:
        """JSON values; numbers that do not exist are None."""
        return {
            "format": _FORMAT,
            "rows": json_values(list(self.rows)),
            "refusals": json_values(list(self.refusals)),
            "methods": {f"{question}/{key}": m.name for (question, key), m in METHODS.items()},
            "settings": json_values(dict(self.settings)),
        }

    @checked
    def save(self, folder: str | Path) -> list[Path]:
        """Write ``benchmark.json``, the tidy table as ``scores.csv``, and each question's table as ``QUESTION.csv``."""
        folder, questions = Path(folder), dict.fromkeys(row["question"] for row in self.rows)
        tables = {"scores": self.to_frame()} | {
            key: self.table(key).reset_index() for key in questions
        }
        csv = (write_csv(folder / f"{name}.csv", frame) for name, frame in tables.items())
        return [write_json(folder / "benchmark.json", self.to_dict()), *csv]


_Builder = Callable[[], KnownMachine]


def builders() -> dict[str, _Builder]:
    """Every subject by name, and what builds it: cheap, and the same each time; the trained ones last.

    >>> len(builders()), list(builders())[:2]
    (57, ['wma-handwired R, plain', 'wma-handwired R, rotated'])
    """
    handmade: dict[str, _Builder] = {
        f"{machine} {form}, {variant}": partial(build, machine, form, variant)
        for form, (machine, _) in FORMS.items()
        for variant in variants(machine, form)
    }
    folders = sorted(folder for folder in WEIGHTS.iterdir() if folder.is_dir())
    return handmade | {
        read_json(folder / TRUTH)["name"]: partial(load_trained, folder.name) for folder in folders
    }


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
    effort: Workload = FULL,
    out: str | Path | None = None,
    n_jobs: int = 1,
    scheduler: str = "",
    shard: str = "",
) -> BenchmarkResult:
    """Grade every method on every subject.

    Args:
        subjects: names of :func:`builders`, or builders of your own by name; all when empty.
        methods: keys, or methods of your own; all when empty. The oracle and chance are always among them.
        seeds: of episodes and of what methods draw.
        effort: how much of everything is done; :data:`QUICK` takes few subjects and no slow methods, too.
        out: a folder in which ``parts`` keeps what is done, by subject and seed: a run that was cut short goes on.
        n_jobs: subjects that are worked on at once, each by a process.
        scheduler: of dask workers, as :func:`interp.support.workers.each` takes it; they write to ``out``, too.
        shard: only these subjects and seeds, as :func:`interp.support.workers.share` takes them.
    """
    require(len(seeds) > 0, "seeds is empty; give at least one")
    refuse_endless("seeds", len(seeds))
    for seed in seeds:
        integer("seeds", seed, 0)
    started, quick = time.time(), effort == QUICK
    if isinstance(subjects, Mapping):
        chosen = subjects
    else:
        known = builders()
        for name in subjects:
            require_known("subject", name, known, limit=60)
        chosen = {name: known[name] for name in subjects or (_QUICK_SUBJECTS if quick else known)}
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
    require(
        twice is None,
        f"two methods of one question are called {twice!r}; give each a key of its own",
    )
    parts = None if out is None else writable(Path(out) / "parts")
    work = share([(name, build, seed) for seed in seeds for name, build in chosen.items()], shard)
    done: list[dict[str, Any]] = []
    with bar("grading", len(work)) as advance:
        for part in each(
            _part, (chosen_methods, effort, parts), work, n_jobs=n_jobs, scheduler=scheduler
        ):
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
    return BenchmarkResult(rows, tuple(row for part in done for row in part["refusals"]), settings)


@one_thread()
def _part(
    shared: tuple[Sequence[Method], Workload, Path | None], one: tuple[str, _Builder, int]
) -> dict[str, Any]:
    """All methods on one subject with one seed; what a file of the same effort already says is kept."""
    (methods, effort, folder), (name, build, seed) = shared, one
    finished, key = (
        Finished(folder, {"subject": name, "seed": seed, "effort": effort}),
        f"{name} {seed}",
    )
    empty: dict[str, Any] = {
        "subject": name,
        "seed": seed,
        "cpu_seconds": 0.0,
        "rows": [],
        "refusals": [],
    }
    part = finished.load(key, dict[str, Any]) or empty
    known = {(row["question"], row["method"]) for key in ("rows", "refusals") for row in part[key]}
    missing = [method for method in methods if (method.question, method.key) not in known]
    if missing:
        started = time.process_time()
        subject = theirs(f"the builder of {name!r}")(build)()
        require(
            isinstance(subject, KnownMachine),
            f"the builder of {name!r} must give a KnownMachine, got {subject!r}",
        )
        failed = _grade(subject, seed, missing, effort, part)
        part["cpu_seconds"] += time.process_time() - started
        finished.save(key, dict[str, Any], part)
        part["refusals"] += failed  # not kept: a method that is mended is asked again
    wanted = {(method.question, method.key) for method in methods}
    for key in ("rows", "refusals"):
        part[key] = [row for row in part[key] if (row["question"], row["method"]) in wanted]
    return part


def _grade(
    subject: KnownMachine,
    seed: int,
    methods: Sequence[Method],
    effort: Workload,
    part: dict[str, Any],
) -> list[dict[str, Any]]:
    """Add rows and refusals of some methods; gives the refusals of those that failed."""
    failed: list[dict[str, Any]] = []
    material = Material(subject, effort, seed)
    about = {key: getattr(subject, key) for key in ("machine", "form", "variant")}
    for method in methods:
        question = QUESTIONS[method.question]
        row = {
            "subject": part["subject"],
            "seed": seed,
            "question": question.key,
            "method": method.key,
        }
        truth = material.truth(method.question)
        if not truth and (sentence := lacks(subject.model, "pattern")):
            part["refusals"].append({**row, "sentence": sentence})
        if len(set(truth.values())) < 2:
            continue  # The truth is not known, or no two items differ by it.
        try:
            ask = partial(material.charged, partial(method.answer, subject, material))
            answer, seconds = _asked(ask, truth, subject.model)
            try:
                scores = {**question.grade(subject, material, answer), **answer.measured}
            except Exception as error:
                raise _RefusedError(
                    f"its answer cannot be scored ({type(error).__name__}: {error})", False
                ) from error
        except _RefusedError as refusal:
            sentence, kept = refusal.args
            (part["refusals"] if kept else failed).append({**row, "sentence": sentence})
            continue
        part["rows"] += [
            {**row, **about, "score": score, "value": float(value), "cpu_s": seconds}
            for score, value in scores.items()
        ]
    return failed
