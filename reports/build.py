"""Build a report: choose the parts for a model, compute and draw them, and write one page.

If a part fails, only its section is lost: the page says why.
"""

from __future__ import annotations

import ctypes
import re
import traceback
import warnings
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, Any

from interp import tasks
from interp.core.machine import Machine
from interp.core.task import Task
from interp.model.library import models
from interp.results.measure import Measure, sentence
from interp.support.checks import check_type, checked, index_by_key, refuse_endless
from interp.support.errors import convert_errors, require
from interp.support.files import digest_of, file_to_write, writable
from interp.support.provenance import provenance
from interp.support.session import session
from interp.support.workers import display, one_thread
from reports.blocks import Figure, NotComputed, Prose, counts
from reports.page import INDEX, Report, Section, write_with_index

if TYPE_CHECKING:
    from reports.part import Context, Part


@dataclass(frozen=True)
class _Written:
    """A written report.

    Attributes:
        path: path of the page.
        measures: all measures of the page.
        failures: for the parts that could not be computed, the reason by title.
    """

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
    """Write the report of a model into a folder, and warn of parts that could not be computed.

    Bad arguments (model, sizes, folder) are refused before any work.

    Args:
        subject: a model, or what :func:`interp.load` takes: a model's name or a checkpoint folder.
        out: the folder.
        n_episodes: number of episodes; at least 5, since probes are cross-validated by episode.
        n_rounds: rounds per episode; with the parts of the task at least 10, unless the task has
            fewer. When None, the number is 100, or 20 with ``quick``. It is reduced for a task in
            which later rounds bring nothing new, and for a model with a carried state that has room
            for fewer rounds.
        seed: seed of everything random.
        parts: the parts of the page, in order; those of the model's task when None.
        quick: True leaves out slow parts, and computes all other parts with wider intervals.
        source: name or checkpoint path of the model, for the page's text, if ``subject`` is an
            object.
        regime: regime (distribution) that the episodes are sampled from; the task's default if
            empty.
        sizes: sizes of the episodes, such as the number of experts, that differ from the model's.
        arguments: further arguments with which :func:`interp.load` made the model, for the page's
            text.

    Returns:
        An object with the attributes ``path`` (of the page), ``measures`` (all claims of the page
        with their verdicts) and ``failures`` (title of a part -> why it could not be computed).
    """
    require(
        n_episodes >= 5,
        f"a report needs at least 5 episodes, got {n_episodes}: probes are split by episode",
    )
    from interp.model.library import load
    from reports.part import Context, Part
    from reports.tasks import parts_for

    if isinstance(subject, str):
        source = subject
        subject = load(subject)
    task = tasks.of(subject)
    if parts is None:
        candidates = parts_for(task)
        fewest_rounds = 10
    else:
        candidates = check_type("parts", parts, Sequence[Part])
        fewest_rounds = 1
    context = Context(
        model=subject,
        source=source,
        n_episodes=n_episodes,
        n_rounds=_choose_rounds(subject, task, n_rounds, quick=quick, fewest=fewest_rounds),
        seed=seed,
        regime=regime,
        changed_sizes=sizes or {},
        arguments=arguments or {},
        quick=quick,
        folder=writable(out),
    )
    parts_by_key = index_by_key(candidates, "part of a report")  # refuses two parts with one key
    _ = context.episodes  # what cannot be sampled is refused here, before any work
    _choose_parts(context, list(parts_by_key.values()))
    path = _write_page(context)
    failures = {}
    for part in context.parts:
        if part.key in context.failures:
            failures[part.title] = context.explain_failure(part.key)
    if failures:
        listed = "; ".join(f"{title}, because {why}" for title, why in failures.items())
        # Level 3 is the caller of write; level 2 is the decorator's wrapper.
        warnings.warn(f"parts of {path} were not computed: {listed}", stacklevel=3)
    measures = chain.from_iterable(context.measures.values())
    return _Written(path, tuple(measures), failures)


def _choose_rounds(
    model: Machine, task: Task, n_rounds: int | None, quick: bool, fewest: int
) -> int:
    """Return the number of rounds per episode; refuse a number that the model or a report cannot
    use.

    Args:
        model: the machine. A state that grows in every round limits the number of rounds.
        task: the task. It may have a last round that brings new information, after which no more
            rounds are needed.
        n_rounds: the number that the user chose; the default when None.
        quick: True for the default of a quick report.
        fewest: smallest number that the parts of the report can use.
    """
    # A growing channel (a part of the carried state, such as a cache) has shape[0] rows, of which
    # each round fills `grows`. After how many rounds is it full?
    rooms = [channel.shape[0] // channel.grows for channel in model.channels if channel.grows]
    if n_rounds is None:
        n_rounds = min([task.cap_rounds(20 if quick else 100), *rooms])
    # If later rounds of a task bring nothing new, fewer rounds are enough.
    n_needed = task.cap_rounds(fewest)
    require(
        n_rounds >= n_needed,
        f"a report needs at least {n_needed} rounds an episode, got {n_rounds}",
    )
    refuse_endless("n_rounds", n_rounds, seconds_each=1e-2)
    room = min(rooms, default=n_rounds)
    require(
        n_rounds <= room, f"{model.name!r} has room for {room} rounds an episode, got {n_rounds}"
    )
    return n_rounds


def _choose_parts(context: Context, candidates: Sequence[Part]) -> None:
    """Choose the parts of the report, and store them in the context: those that apply, without slow
    ones in a quick report.

    Parts for which the machine lacks something stay, with the reason in ``context.missing``.

    Args:
        context: the report's model, episodes and settings; it is changed in place.
        candidates: the possible parts, in page order.
    """
    parts = []
    missing = {}
    left_out = []
    # Parts may be a user's: their functions may raise errors, or return values of a wrong type.
    with convert_errors("what a part says of itself"):
        for part in candidates:
            if not check_type(f"{part.key!r} applies", part.applies(context), bool):
                continue
            lacking = check_type(f"what {part.key!r} lacks", part.lacking(context), str)
            if lacking:
                missing[part.key] = lacking
            elif context.quick and part.slow:
                left_out.append(part.title)
                continue
            parts.append(part)
    context.parts = tuple(parts)
    context.missing = missing
    context.left_out = tuple(left_out)


def _write_page(context: Context) -> Path:
    """Compute the parts, write the page, update the index page, and show progress; return the path
    of the page.
    """
    folder = context.folder
    assert folder is not None
    title = f"Report on {context.model.name}"
    total = len(context.parts)
    # Each part advances the bar when it begins, so before the first one the bar is at -1.
    with session(), one_thread(), display(title, total, completed=-1) as update:
        path = folder / _name_page(context)
        file_to_write(path)  # refuses a path that cannot be written, before any work
        file_to_write(folder / INDEX)
        report = _compute_report(context, lambda what: update(advance=1, text=f"{title}: {what}"))
        # An audit is listed only if there is an index page already: write_with_index looks for it.
        index_path = None if context.part_keys == ("audit",) else folder / INDEX
        written = write_with_index(report, path, index_path)
        update(completed=total)
    return written


def _compute_report(context: Context, show_progress: Callable[[str], None]) -> Report:
    """Compute and draw every part, and return the report.

    Args:
        context: the report's model, episodes and settings; it stores results and failures.
        show_progress: function that shows progress; it is called with the part's title and the time that the
            previous part took.
    """
    from reports.parts.overview import describe_episodes, measures_of

    time_of_previous = ""
    for part in context.parts:
        show_progress(part.title + time_of_previous)
        began = perf_counter()
        context.measures[part.key] = _call(context, part, "summary", Sequence[Measure]) or ()
        # The page begins with the sentence of the first part that has one.
        context.sentence = context.sentence or _call(context, part, "sentence", str) or ""
        time_of_previous = f" ({part.title}: {perf_counter() - began:.1f} s)"
        _free_memory()
    show_progress("drawing" + time_of_previous)
    hero: list[Figure] = []
    for part in context.parts:
        hero += _call(context, part, "hero", Sequence[Figure]) or ()
    # The summary stands first and is drawn last, when it is known which parts failed.
    sections: list[Section] = []
    for part in reversed(context.parts):
        sections = [*_draw_sections(context, part), *sections]
    measures = measures_of(context).measures
    failed = [measure for measure in measures if measure.key in context.failures]
    sentence = _write_sentence(context, failed)
    title, lead = _write_heading(context)
    description = {
        "kind": _get_kind(context),
        "task": context.task.name,
        "run": describe_episodes(context),
        "words": counts(measures),
        "sentence": sentence,
    }
    settings = provenance(**_get_settings(context))
    return Report(title, lead, sections, settings, about=description, sentence=sentence, hero=hero)


def _call(context: Context, part: Part, name: str, kind: Any) -> Any:
    """Call one function of a part on the part's result, and check the type of what it returns.

    Args:
        context: the report's model, episodes and settings; it stores the result, or the exception.
        part: the part.
        name: name of the field that is the function, such as "summary".
        kind: the expected type.

    Returns:
        What the function returns; None if it fails, as for :func:`_attempt`.
    """

    def call(computed: Any, context: Context) -> Any:
        return check_type(
            f"the {name} of {part.key!r}", getattr(part, name)(computed, context), kind
        )

    return _attempt(context, part, call)


def _free_memory() -> None:
    """Return freed memory to the operating system, if the C library can do so."""
    with suppress(AttributeError, OSError, TypeError):  # a C library without it
        ctypes.CDLL(None).malloc_trim(0)


def _get_settings(context: Context) -> dict[str, Any]:
    """Return the settings that are listed at the end of a page, by name."""
    episodes = context.episodes
    model = context.model
    return {
        "model": model.name,
        "digest": model.digest()[:16],
        "seed": context.seed,
        "regime": episodes.regime,
        "n_episodes": len(episodes),
        "n_rounds": episodes.n_rounds,
        **context.sizes,
        **context.task.data.sample_options(model),
    }


def _write_heading(context: Context) -> tuple[str, str]:
    """Return the page's title and introduction: those of the first part that defines them,
    otherwise the default ones.
    """
    for part in context.parts:
        if part.heading:
            heading = convert_errors("a heading")(part.heading)(context)
            return check_type("heading", heading, tuple[str, str])
    task = context.task
    return context.model.name, f"A model of {task.name}: {task.what}."


def _get_kind(context: Context) -> str:
    """Return under which heading the index page lists this page: "audit", "handwired" or "learned"."""
    if context.part_keys == ("audit",):
        return "audit"
    return "handwired" if context.model.is_handwired else "learned"


_MECHANISM_PARTS = ("interchange", "probes")
"""Keys of the parts whose measures come first in a page's summary sentence, since they are about
the mechanism.
"""
_MOST_PHRASES = 2
"""Most phrases with the same verdict in a page's summary sentence."""


def _write_sentence(context: Context, failed: Sequence[Measure]) -> str:
    """Write the summary sentence of a page from its measures.

    It has at most two phrases of true claims and two of false ones, each from a different part.

    Args:
        context: the report's model, episodes and settings, with the measures of all parts.
        failed: undecided measures of the parts that failed.
    """
    pairs = []
    # False is before True: the parts on the mechanism come first, the others keep their order.
    for key in sorted(context.measures, key=lambda part: part not in _MECHANISM_PARTS):
        pairs += [(key, measure) for measure in context.measures[key]]
    pairs += [("", measure) for measure in failed]
    if not pairs:
        return ""
    decoded = _find_decoded_noun(context.measures.get("probes", ()))
    measures: list[Measure] = []
    parts_with_phrase: dict[str, set[str]] = defaultdict(set)  # by the verdict of the phrase
    for key, measure in pairs:
        if decoded and (key, measure.verdict) == ("interchange", "yes"):
            # The phrase of the probes names the variable already.
            pronoun = "them" if decoded.endswith("s") else "it"
            phrase = re.sub(rf"\b(from|by) {re.escape(decoded)}", rf"\1 {pronoun}", measure.yes)
            measure = replace(measure, yes=phrase)
        parts = parts_with_phrase[measure.verdict]
        if key in parts or len(parts) >= _MOST_PHRASES:
            # Without phrases, the measure still counts, as true or undecided, but is not named.
            measure = replace(measure, yes="", no="")
        if measure.phrase:
            parts.add(key)
        measures.append(measure)
    return sentence(context.model.name, measures, context.sentence)


def _find_decoded_noun(probed: Sequence[Measure]) -> str:
    """Return what the first successful probe decodes, such as "the log-weights"; "" if no probe
    succeeds.

    Args:
        probed: the measures of the probes.
    """
    for measure in probed:
        if measure.verdict == "yes":
            _, _, noun = measure.yes.rpartition(" read ")  # "lets a linear probe read the counts"
            return noun
    return ""


def _name_page(context: Context) -> str:
    """Return the file name of a report: the model's name, the sizes and the regime of its episodes,
    and "quick" for a quick report.

    Digests distinguish what these names leave open. That of the model is added if it is not shipped
    with the package, or was loaded with arguments other than sizes. That of the recorded data is
    added if the user passed recorded episodes or an algorithm for them. A report with another seed
    or another number of episodes replaces the earlier one.
    """
    sizes, arguments = context.sizes_and_arguments
    words = [Path(context.source or context.model.name).name]
    words += [f"{option}-{value}" for option, value in sizes.items()]
    words.append(context.regime)
    is_shipped = context.source in [record.name for record in models()]
    if arguments or not is_shipped:
        words.append(context.model.digest()[:8])
    if context.task.recorded:
        words.append(digest_of(dict(context.task.recorded))[:8])
    if context.quick:
        words.append("quick")
    name = "-".join(filter(None, words))
    return re.sub(r"[^\w.-]+", "-", name) + ".html"


def _attempt(context: Context, part: Part, use: Callable[[Any, Context], Any]) -> Any:
    """Call a function on the result of a part.

    Args:
        context: the report's model, episodes and settings; it stores the result, or the exception.
        part: the part.
        use: function of the result and the context.

    Returns:
        What the function returns; None if it raises, if the part failed before, or if the machine
        lacks what the part needs.
    """
    key = part.key
    if key in context.failures or key in context.missing:
        return None
    try:
        return use(context.result(key), context)
    except Exception as error:
        context.failures[key] = error
        return None


def _draw_sections(context: Context, part: Part) -> list[Section]:
    """Draw a part as sections. If the part failed or does not apply, return one section that says
    why.
    """
    sections = _attempt(context, part, partial(_draw_blocks, part))  # None if there is no result
    key = part.key
    if key in context.failures:
        trace = "".join(traceback.format_exception(context.failures[key]))
        why = context.explain_failure(key)
        sections = [Section(part.title, [NotComputed(why, trace)])]
    elif key in context.missing:
        why = context.missing[key]
        sections = [Section(part.title, [Prose(f"{why[0].upper()}{why[1:]}.")])]
    # The overview links each of the part's measures to its first section.
    context.sections[key] = sections[0]
    return [replace(section, opened=part.opened) for section in sections]


def _draw_blocks(part: Part, computed: Any, context: Context) -> list[Section]:
    """Draw a part as sections; if it draws blocks without a section, they become one section with
    the part's title.

    Args:
        part: the part.
        computed: what the part computed.
        context: the report's model, episodes and settings.
    """
    drawn = part.draw(computed, context)
    if isinstance(drawn, Section):
        return [drawn]
    blocks = list(check_type(f"what {part.key!r} draws", drawn, Sequence[Any]))
    are_sections = bool(blocks) and all(isinstance(block, Section) for block in blocks)
    return blocks if are_sections else [Section(part.title, blocks)]
