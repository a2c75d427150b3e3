"""A report is a list of parts. A part computes something about a model, draws it, and says when it applies.

    >>> from reports.blocks import Prose
    >>> def draw(n_heads, context):
    ...     return [Prose(f"It has {n_heads} heads.")]
    >>> heads = Part("heads", "Heads", lambda context: context.model.config.n_heads, draw)

``reports.build.write(model, parts=(heads,))`` writes a page with this one section.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from operator import attrgetter
from pathlib import Path
from typing import Any

from circuits.circuit import Circuit
from circuits.registry import differentiable, from_origin
from interp import tasks
from interp.core.algorithm import NEXT, Algorithm, AlgorithmRecord
from interp.core.display import lacks
from interp.core.machine import Machine
from interp.model.rollout import rollout
from interp.model.run import Rollout
from interp.model.transformer import untrained
from interp.results.measure import Measure
from interp.support.checks import checked_fields
from interp.support.errors import InputError, require, require_known
from interp.tasks import Task
from reports.blocks import Figure
from reports.page import Section

_CAUSAL_EPISODES, QUICK_EPISODES = 24, 8
"""Pairs of episodes for interchange, steering and circuits of edges; in a quick report, for patching, too."""


@dataclass(frozen=True)
@checked_fields
class Part:
    """A part of a report. Its functions take what was computed, and the context.

    Attributes:
        key, title: the name of its result for other parts; the title of its section, also on a page
            that shows why there is none.
        compute: the context to anything that the part draws.
        draw: to the blocks of its section, or to one section or several of other titles.
        summary, sentence: to the measures that the page opens with, and to its first sentence,
            where that of the measures is not enough.
        hero, heading: to the figures under the page's first sentence; to the page's title and lead,
            where it says them.
        slow: whether a quick report leaves it out.
        opened: whether its section is open from the start: its picture is what a reader looks for.
        lacking: what this machine lacks of what the part looks at: a sentence that replaces the
            part.
    """

    key: str
    title: str
    compute: Callable[[Context], Any]
    draw: Callable[[Any, Context], Section | Sequence[Any]]
    applies: Callable[[Context], bool] = lambda context: True
    summary: Callable[[Any, Context], Sequence[Measure]] = lambda computed, context: ()
    sentence: Callable[[Any, Context], str] = lambda computed, context: ""
    hero: Callable[[Any, Context], Sequence[Figure]] = lambda computed, context: ()
    heading: Callable[[Context], tuple[str, str]] | None = None
    slow: bool = False
    opened: bool = False
    lacking: Callable[[Context], str] = lambda context: ""


@dataclass(eq=False)
@checked_fields
class Context:
    """The input of every part of a report: the model, the settings, and what several parts need.

    Attributes:
        source, arguments: what :func:`interp.load` made the model from (a name, or a checkpoint's
            path) and with; empty for a model that was passed as an object.
        regime, given: what the episodes are drawn from, and their sizes where they are not the
            model's.
        parts: of this report, in page order; a quick one leaves out those with the titles
            ``left_out``.
        quick: whether less is computed, with wider intervals.
        missing: key of a part -> the sentence that replaces it, where the machine lacks what it
            looks at.
        measures, sections, failures: key of a part -> its measures, its first section, and the
            exception that it ended with; filled as parts are computed and drawn, like ``sentence``,
            the first one of the page.
    """

    model: Machine
    source: str
    n_episodes: int
    n_rounds: int
    seed: int
    regime: str = ""
    given: Mapping[str, int] = field(default_factory=dict)
    arguments: Mapping[str, Any] = field(default_factory=dict)
    folder: Path | None = None
    parts: tuple[Part, ...] = ()
    left_out: tuple[str, ...] = ()
    quick: bool = False
    missing: Mapping[str, str] = field(default_factory=dict)
    measures: dict[str, Sequence[Measure]] = field(default_factory=dict)
    sections: dict[str, Section] = field(default_factory=dict)
    failures: dict[str, Exception] = field(default_factory=dict)
    sentence: str = ""
    _results: dict[str, Any] = field(default_factory=dict)

    @property
    def compiled(self) -> bool:
        """Whether it was compiled from a circuit, which says where its variables are."""
        return self.model.is_handwired and "circuit" in self.model.origin

    @property
    def exact(self) -> bool:
        """Whether it carries a state that can be read, of an algorithm that is known."""
        has_algorithm = getattr(self.model, "algorithm", None) is not None
        return self.compiled or (self.model.is_handwired and has_algorithm)

    @property
    def keys(self) -> tuple[str, ...]:
        """The keys of the parts of this report."""
        return tuple(part.key for part in self.parts)

    @property
    def looked_at(self) -> int:
        """The round that is looked into, patched and steered."""
        return min(20, self.n_rounds // 2)

    @cached_property
    def task(self) -> Task:
        """The record of the model's task."""
        return tasks.of(self.model)

    @cached_property
    def sizes(self) -> dict[str, int]:
        """The sizes of the episodes' rounds, by name."""
        return self.task.sizes_of(self.model.layout) | dict(self.given)

    @property
    def asked(self) -> tuple[dict[str, Any], dict[str, Any]]:
        """Settings of the report other than the model: sizes by the option of the shell, further
        arguments by name.
        """
        arguments = {**self.arguments, **self.given}
        sizes = {}
        for size in self.task.sizes:
            if size.name in arguments:
                sizes[size.option] = arguments.pop(size.name)
        return sizes, arguments

    @cached_property
    def episodes(self) -> Any:
        """The episodes that the report is about."""
        return self.sample(self.n_episodes, self.n_rounds, self.seed)

    def sample(self, n_episodes: int, n_rounds: int, seed: int) -> Any:
        """Sample episodes of the report's regime and sizes.

        Args:
            n_episodes: how many.
            n_rounds: of each.
            seed: of the sampler.
        """
        return self.task.sample_for(self.model, n_episodes, n_rounds, seed, self.regime, self.given)

    @cached_property
    def run(self) -> Rollout:
        """The model run over the episodes, with attention patterns and values of the round looked at, if it has any."""
        hooks: list[str] = []
        for key in ("pattern", "v"):
            kind = self.model.points.get(key)
            if kind is not None:
                hooks += [kind.hook.format(layer=layer) for layer in range(kind.n_layers)]
        rounds = [self.looked_at]
        return rollout(self.model, self.episodes, names_filter=hooks or None, rounds=rounds)

    @cached_property
    def blank_run(self) -> Rollout:
        """An untrained copy of the model run over the episodes: the control of what is decoded."""
        return rollout(untrained(self.model, self.seed), self.episodes)

    @cached_property
    def algorithm(self) -> Algorithm:
        """The algorithm that the model is compared with; an error where the task registers none."""
        return self.task.explains(self.model)

    @property
    def algorithms(self) -> tuple[AlgorithmRecord, ...]:
        """The algorithms that the task registers."""
        return self.task.algorithms.records()

    @cached_property
    def circuit(self) -> Circuit:
        """The circuit that a handwired model was compiled from; an error where it was edited after it was built."""
        return from_origin(self.model.origin)

    @cached_property
    def pairs(self) -> tuple[Any, Any]:
        """Two batches of episodes, just longer than the round looked at: bases and sources of interchanges; of recorded
        ones, of the half of the participants that no decoder is fitted on."""
        n_episodes = QUICK_EPISODES if self.quick else _CAUSAL_EPISODES
        n_rounds = self.looked_at + 3
        sample_for = self.task.half(1).sample_for
        settings = (self.regime, self.given)
        bases = sample_for(self.model, n_episodes, n_rounds, self.seed, *settings)
        return bases, sample_for(self.model, n_episodes, n_rounds, self.seed + 1, *settings)

    @cached_property
    def smooth(self) -> Machine:
        """The model, or the softmax-only variant of a handwired one: gradients do not pass hard attention."""
        wired: Any = self.model
        return differentiable(wired)

    @cached_property
    def shown(self) -> int:
        """The episode that is drawn: the one in which most of the algorithm's memory has changed at the end."""
        if not (self.algorithms and self.algorithm.memory):
            return 0
        key = self.algorithm.memory
        values = self.algorithm.run(self.episodes)
        is_changed = values[NEXT + key][:, -1] != values[key][:, 0]
        n_changed = is_changed.reshape(len(is_changed), -1).sum(1)
        return int(n_changed.argmax())

    def reason(self, key: str) -> str:
        """Return why the part called ``key`` could not be computed or drawn, in a sentence."""
        error = self.failures[key]
        if isinstance(error, InputError):
            return str(error)
        return f"{type(error).__name__}: {error}"

    def result(self, key: str) -> Any:
        """Return what the part called ``key`` computed, now or before; raise again what it ended with."""
        if key in self.failures:
            raise self.failures[key]
        require(key not in self.missing, self.missing.get(key, ""))
        if key not in self._results:
            known = {part.key: part for part in self.parts}
            require_known("part of this report", key, known, limit=20)
            try:
                self._results[key] = known[key].compute(self)
            except Exception as error:
                self.failures[key] = error
                raise
        return self._results[key]


def needing(*components: str) -> Callable[[Context], str]:
    """Return what says which of some components a machine lacks, for :attr:`Part.lacking`.

    >>> import interp
    >>> needing("pattern")(Context(interp.load("wma-handwired", n_experts=2), "", 5, 10, 0))
    ''
    """
    return lambda context: lacks(context.model, *components)


def uncompiled(context: Context) -> str:
    """Return what a handwired machine lacks that was not compiled from a circuit, for :attr:`Part.lacking`."""
    if context.compiled or not context.model.is_handwired:
        return ""
    return f"not applicable: {context.model.name} was not compiled from a circuit"


wired: Callable[[Context], bool] = attrgetter("model.is_handwired")
"""Where a part of a handwired model applies."""


def learned(context: Context) -> bool:
    """Return whether a part of a learned model applies."""
    return not context.model.is_handwired
