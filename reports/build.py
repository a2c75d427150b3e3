"""From a model to a report on disk: find the parts, compute them, draw them, write one page.

A part that fails takes its own section with it and no other: the page then says why it is missing.
"""

from __future__ import annotations

import ctypes
import re
import traceback
import warnings
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, Any

from interp import tasks
from interp.core.machine import Machine
from interp.model.library import models
from interp.results.measure import Measure, sentence
from interp.support.checks import checked, fit, refuse_endless, unique
from interp.support.errors import require, theirs
from interp.support.files import file_to_write, writable
from interp.support.provenance import provenance
from interp.support.session import session
from interp.support.workers import display, one_thread
from reports.blocks import NotComputed, Prose, counts
from reports.page import INDEX, Report, Section, write_listed

if TYPE_CHECKING:
    from reports.part import Context, Part


@dataclass(frozen=True)
class _Written:
    """A report on disk: its measures, and ``failures``, title of a part that was not computed -> why."""

    path: Path
    measures: tuple[Measure, ...]
    failures: Mapping[str, str]


@checked
def write(
    subject: str | Machine,
    out: str | Path = "output",
    *,
    n_episodes: int = 64,
    n_rounds: int | None = None,
    seed: int = 0,
    parts: Sequence[Part] | None = None,
    quick: bool = False,
    source: str = "",
    regime: str = "",
    sizes: Mapping[str, int] | None = None,
    arguments: Mapping[str, Any] | None = None,
) -> _Written:
    """Write the report of a model below ``out``; warn of parts that could not be computed.

    Whatever can be refused (a model, sizes, a folder) is refused before any work.

    Args:
        subject: a model, or what :func:`interp.load` takes: a model's name or a checkpoint folder.
        n_episodes, n_rounds: how much is sampled; at least 5 episodes (probes are split by episode) of 10 rounds, or
            of as many as the task says anything new in; 100 rounds, 20 with ``quick``, or so many, when None.
        seed: of everything random.
        parts: what the page holds, in its order; what the model's task says when None.
        quick: without slow parts, and with wider intervals in others.
        source, regime, sizes, arguments: see :class:`~reports.part.Context`.
    """
    require(
        n_episodes >= 5,
        f"a report needs at least 5 episodes, got {n_episodes}: probes are split by episode",
    )
    from interp.model.library import load
    from reports.part import Context, Part
    from reports.tasks import parts_for

    source, model = (subject, load(subject)) if isinstance(subject, str) else (source, subject)
    task = tasks.of(model)
    rooms = [channel.shape[0] // channel.grows for channel in model.channels if channel.grows]
    n_rounds = min([task.at_most(20 if quick else 100), *rooms]) if n_rounds is None else n_rounds
    least, most = task.at_most(10), min(rooms, default=n_rounds)
    require(n_rounds >= least, f"a report needs at least {least} rounds an episode, got {n_rounds}")
    refuse_endless("n_rounds", n_rounds, 1e-2)
    require(
        n_rounds <= most, f"{model.name!r} has room for {most} rounds an episode, got {n_rounds}"
    )
    context = Context(
        model, source, n_episodes, n_rounds, seed, regime, sizes or {}, arguments or {}, quick=quick
    )
    given = parts_for(context.task) if parts is None else fit("parts", parts, Sequence[Part])
    wanted = unique(given, "part of a report").values()
    context.folder = folder = writable(out)
    _ = context.episodes  # what cannot be sampled is refused here, before any work
    with theirs("what a part says of itself"):
        applying = [
            part for part in wanted if fit(f"{part.key!r} applies", part.applies(context), bool)
        ]
        lacking = {
            part.key: fit(f"what {part.key!r} lacks", part.lacking(context), str)
            for part in applying
        }
    context.missing = {key: why for key, why in lacking.items() if why}
    slow = [part for part in applying if quick and part.slow and part.key not in context.missing]
    context.parts = tuple(part for part in applying if part not in slow)
    context.left_out = tuple(part.title for part in slow)
    title, total = f"Report on {context.model.name}", len(context.parts)
    with session(), one_thread(), display(title, total, completed=-1) as update:
        for file in (_page_name(context), INDEX):
            file_to_write(folder / file)
        report = _compose(context, lambda what: update(advance=1, text=f"{title}: {what}"))
        index = None if context.keys == ("audit",) else folder / INDEX
        path = write_listed(report, folder / _page_name(context), index)
        update(completed=total)
    failures = {
        part.title: context.reason(part.key)
        for part in context.parts
        if part.key in context.failures
    }
    if failures:
        listed = "; ".join(f"{title}, because {why}" for title, why in failures.items())
        warnings.warn(f"parts of {path} were not computed: {listed}", stacklevel=3)
    return _Written(
        path, tuple(one for of_part in context.measures.values() for one in of_part), failures
    )


def _compose(context: Context, step: Callable[[str], None]) -> Report:
    """Compute and draw every part; ``step`` is told the title of each as it begins, and how long the last one took."""
    took = ""
    for part in context.parts:
        step(part.title + took)
        began = perf_counter()
        what = f"the summary of {part.key!r}"
        use = partial(
            lambda part, what, x, of: fit(what, part.summary(x, of), Sequence[Measure]), part, what
        )
        context.measures[part.key] = list(_attempt(context, part, use) or ())
        context.sentence = context.sentence or _attempt(context, part, part.sentence) or ""
        took = f" ({part.title}: {perf_counter() - began:.1f} s)"
        with suppress(AttributeError, OSError, TypeError):  # a C library without it
            ctypes.CDLL(None).malloc_trim(
                0
            )  # what a part needed beside its result goes back to the system
    from reports.parts.overview import measures_of, sampled

    step("drawing" + took)
    attention_last = sorted(context.parts, key=lambda part: part.key == "attention")
    opening = [_attempt(context, part, part.hero) for part in attention_last]
    # The summary stands first and is drawn last, when it is known which parts failed.
    drawn = [_sections(context, part) for part in reversed(context.parts)]
    task, sections = context.task, [section for of_part in reversed(drawn) for section in of_part]
    settings = {
        "model": context.model.name,
        "digest": context.model.digest()[:16],
        "seed": context.seed,
    }
    episodes = context.episodes
    settings |= {
        "regime": episodes.regime,
        "n_episodes": len(episodes),
        "n_rounds": episodes.n_rounds,
    }
    settings |= {**context.sizes, **task.data.sample_options(context.model)}
    heading = next((part.heading for part in context.parts if part.heading), None)
    usual = context.model.name, f"A model of {task.name}: {task.what}."
    said = theirs("a heading")(heading)(context) if heading else usual
    title, lead = fit("heading", said, tuple[str, str])
    measures = measures_of(context).measures
    first = _first(context, [one for one in measures if one.key in context.failures])
    kind = (
        "audit"
        if context.keys == ("audit",)
        else "handwired"
        if context.model.is_handwired
        else "learned"
    )
    about = {
        "kind": kind,
        "task": task.name,
        "run": sampled(context),
        "words": counts(measures),
        "sentence": first,
    }
    hero = [block for blocks in opening for block in blocks or ()]
    return Report(title, lead, sections, provenance(**settings), "", about, first, hero)


_FIRST = ("interchange", "probes")
"""Parts whose measures a page's first sentence names before others: what the model does inside."""


def _first(context: Context, missing: Sequence[Measure]) -> str:
    """The first sentences of a page: two phrases of what is true and two of what is not, each of another part."""
    keys = sorted(context.measures, key=lambda key: (key not in _FIRST, key == "compared"))
    kept, said = list[Measure](), list[tuple[str, str]]()
    pairs = [(key, one) for key in keys for one in context.measures[key]] + [
        ("", one) for one in missing
    ]
    held = next(
        (
            one.yes.rpartition(" read ")[2]
            for key, one in pairs
            if key == "probes" and one.verdict == "yes"
        ),
        "",
    )
    for of, one in pairs:
        if held and (of, one.verdict) == ("interchange", "yes"):  # what is held is not named again
            again = "them" if held.endswith("s") else "it"
            for word in ("from", "by"):
                one = replace(one, yes=one.yes.replace(f"{word} {held}", f"{word} {again}"))
        crowded = (of, one.verdict) in said or sum(word == one.verdict for _, word in said) >= 2
        kept.append(replace(one, yes="", no="") if crowded else one)
        said += [(of, one.verdict)] * bool(kept[-1].phrase)
    return sentence(context.model.name, kept, context.sentence) if kept else ""


def _page_name(context: Context) -> str:
    """The file of a report: the model's name and what else it was given, so that two reports share it only if alike.

    A model of its own weights (a folder, an object, a circuit with arguments beside sizes) is told by its digest.
    """
    sizes, arguments = context.asked
    words = [f"{option}-{value}" for option, value in sizes.items()]
    known = context.source in [record.name for record in models()] and not arguments
    words += [context.regime, "" if known else context.model.digest()[:8], "quick" * context.quick]
    whole = "-".join(filter(None, [Path(context.source or context.model.name).name, *words]))
    return re.sub(r"[^\w.-]+", "-", whole) + ".html"


def _attempt(context: Context, part: Part, use: Callable[[Any, Context], Any]) -> Any:
    """What ``use`` makes of the part's result; None when it fails, or has failed before, or the machine lacks it."""
    if part.key in context.failures or part.key in context.missing:
        return None
    try:
        return use(context.result(part.key), context)
    except Exception as error:
        context.failures[part.key] = error
        return None


def _sections(context: Context, part: Part) -> list[Section]:
    """A part as sections; where it failed, or the machine lacks what it looks at, a section that says why."""

    def draw(computed: object, context: Context) -> list[Section]:
        given = part.draw(computed, context)
        blocks = (
            [given]
            if isinstance(given, Section)
            else list(fit(f"what {part.key!r} draws", given, Sequence[Any]))
        )
        whole = bool(blocks) and all(isinstance(block, Section) for block in blocks)
        return blocks if whole else [Section(part.title, blocks)]

    why = context.missing.get(part.key)
    said = [Section(part.title, [Prose(f"{why[0].upper()}{why[1:]}.")])] if why else None
    sections = said or _attempt(context, part, draw)
    if part.key in context.failures:
        told = NotComputed(
            context.reason(part.key),
            "".join(traceback.format_exception(context.failures[part.key])),
        )
        sections = [Section(part.title, [told])]
    context.sections[part.key] = sections[0]
    return [replace(section, opened=part.opened) for section in sections]
