"""Parts of a report: each computes something about a model, draws it as a section of the page, and
says when it applies.

    >>> from reports.blocks import Prose
    >>> def draw(n_heads, context):
    ...     return [Prose(f"It has {n_heads} heads.")]
    >>> heads = Part("heads", "Heads", lambda context: context.model.config.n_heads, draw)

``reports.build.write(model, parts=(heads,))`` writes a page with this one section.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial
from operator import attrgetter
from pathlib import Path
from typing import Any

from circuits.circuit import Circuit
from circuits.registry import differentiable, from_origin
from interp import tasks
from interp.core.algorithm import NEXT, Algorithm, AlgorithmRecord
from interp.core.display import describe_lacking
from interp.core.machine import Machine
from interp.model.rollout import rollout
from interp.model.run import Rollout
from interp.model.transformer import untrained
from interp.results.measure import Measure
from interp.support.checks import checked_fields
from interp.support.errors import InputError, require_known
from interp.tasks import Task
from reports.blocks import Figure
from reports.page import Section

_CAUSAL_EPISODES, QUICK_EPISODES = 24, 8
"""Pairs of episodes for interchange, steering and circuits of edges, in a full and in a quick
report.

Patching uses the second number in a quick report, too.
"""


@dataclass(frozen=True)
@checked_fields
class Part:
    """A part of a report: how a result about a model is computed, and how it becomes a section of
    the page.

    The functions ``compute``, ``applies``, ``heading`` and ``lacking`` take the :class:`Context` of
    the report. All other functions take the computed result and the context.

    Attributes:
        key: name of the part. Other parts get its result by this name.
        title: title of its section, also on a page that says why the result is missing.
        compute: returns the result.
        draw: returns the blocks (texts, tables, figures) of the section; or one or several complete
            sections with titles.
        applies: returns True if the part belongs in the report.
        summary: returns measures (claims with verdicts) for the page's overview.
        sentence: returns a sentence with which the summary at the top of the page begins; "" for
            none. The summary then does not list the claims with the verdict "yes".
        hero: returns figures for the top of the page.
        heading: returns title and lead of the page; None if the part does not define them.
        slow: True if a quick report leaves it out.
        opened: True if its section is unfolded from the start.
        lacking: returns a sentence that replaces the section if the machine lacks what the part
            needs, such as attention heads; otherwise "".
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
    """The input of every part of a report: the model, the settings, and results that several parts
    need.

    Attributes:
        model: the model.
        source: name or checkpoint path from which :func:`interp.load` made the model; "" if it was
            passed as an object.
        n_episodes, n_rounds, seed: number of the sampled episodes, rounds per episode, and their
            seed.
        regime: regime (distribution) that the episodes are sampled from; the task's default if
            empty.
        changed_sizes: sizes of the episodes that differ from the model's, such as ``{"n_experts": 6}``.
        arguments: further arguments of :func:`interp.load`.
        folder: folder of the page.
        parts: parts of this report, in page order.
        left_out: titles of the parts that a quick report leaves out.
        quick: True if less is computed, with wider intervals.
        missing: key of a part -> a sentence that replaces the part, because the machine lacks what
            it needs.
        measures: key of a part -> its measures; filled while the report is made.
        sections: key of a part -> its first section; filled while the report is made.
        failures: key of a part -> the exception that it raised, for parts that failed; filled while
            the report is made.
        sentence: the first sentence of the page, filled while the report is made.
    """

    model: Machine
    source: str
    n_episodes: int
    n_rounds: int
    seed: int
    regime: str = ""
    changed_sizes: Mapping[str, int] = field(default_factory=dict)
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
    def is_compiled(self) -> bool:
        """True if the model was compiled from a circuit, the description of a handwired model. The
        circuit lists where in the model each variable of the algorithm is stored.
        """
        return self.model.is_handwired and "circuit" in self.model.origin

    @property
    def has_exact_state(self) -> bool:
        """True if the model's state can be read exactly from its latents, and its algorithm is
        known.
        """
        has_algorithm = getattr(self.model, "algorithm", None) is not None
        return self.is_compiled or (has_algorithm and self.model.is_handwired)

    @property
    def part_keys(self) -> tuple[str, ...]:
        """Keys of the parts of this report, in page order."""
        return tuple(part.key for part in self.parts)

    @property
    def detailed_round(self) -> int:
        """Index of the round that the report shows in detail, and in which it intervenes: 20, or
        half the number of rounds if that is less.
        """
        return min(20, self.n_rounds // 2)

    @cached_property
    def task(self) -> Task:
        """The task that the model plays: the record that is registered in :mod:`interp.tasks`."""
        return tasks.of(self.model)

    @cached_property
    def sizes(self) -> dict[str, int]:
        """Sizes of the episodes by name, such as ``{"n_experts": 4}``."""
        return self.task.sizes_of(self.model.layout) | dict(self.changed_sizes)

    @property
    def sizes_and_arguments(self) -> tuple[dict[str, Any], dict[str, Any]]:
        """The sizes and arguments that the user set, as two mappings.

        The first has sizes of the episodes by the name of their command-line option, such as
        ``{"experts": 6}``. The second has all other arguments of :func:`interp.load`: {name:
        value}.
        """
        others = {**self.arguments, **self.changed_sizes}
        sizes = {}
        for size in self.task.sizes:
            if size.name in others:
                sizes[size.option] = others.pop(size.name)
        return sizes, others

    @cached_property
    def episodes(self) -> Any:
        """The sampled episodes that the report is about."""
        return self.sample(self.n_episodes, self.n_rounds, self.seed)

    def sample(self, n_episodes: int, n_rounds: int, seed: int) -> Any:
        """Return sampled episodes of the report's regime and sizes.

        Args:
            n_episodes: number of episodes.
            n_rounds: rounds per episode.
            seed: seed of the draws.
        """
        return self.task.sample_for(
            self.model, n_episodes, n_rounds, seed, self.regime, self.changed_sizes
        )

    @cached_property
    def run(self) -> Rollout:
        """The model's run on the episodes.

        Attention patterns and values are cached only for the round that the report shows in detail.
        """
        hooks: list[str] = []
        for key, point in self.model.points.items():
            if key in ("pattern", "v"):
                hooks += [point.hook.format(layer=layer) for layer in range(point.n_layers)]
        rounds = [self.detailed_round]
        # A machine without attention has no such hooks; names_filter=None then caches nothing.
        return rollout(self.model, self.episodes, names_filter=hooks or None, rounds=rounds)

    @cached_property
    def untrained_run(self) -> Rollout:
        """The run of an untrained copy of the model (random weights) on the episodes, as a
        control.
        """
        return rollout(untrained(self.model, self.seed), self.episodes)

    @cached_property
    def algorithm(self) -> Algorithm:
        """The algorithm that the model is compared with; raises InputError if the task registers
        none.
        """
        return self.task.explains(self.model)

    @property
    def algorithms(self) -> tuple[AlgorithmRecord, ...]:
        """The algorithms that the task registers, as records."""
        return self.task.algorithms.records()

    @cached_property
    def circuit(self) -> Circuit:
        """The circuit (description of a handwired model) that the model was compiled from.

        Raises InputError if the circuit was edited by hand.
        """
        return from_origin(self.model.origin)

    @cached_property
    def pairs(self) -> tuple[Any, Any]:
        """Two batches of episodes for interchange interventions: bases and sources. Activations
        from the runs of the sources are copied into the runs of the bases.

        The episodes end shortly after the round that the report shows in detail. If the task's
        episodes were recorded, half of the participants are set aside for fitting decoders, and the
        pairs come from the other half.
        """
        sample = partial(
            self.task.for_half(1).sample_for,  # decoders are fitted on half 0
            self.model,
            n_episodes=QUICK_EPISODES if self.quick else _CAUSAL_EPISODES,
            n_rounds=self.detailed_round + 3,  # that round and two more, to see later effects
            regime=self.regime,
            sizes=self.changed_sizes,
        )
        return sample(seed=self.seed), sample(seed=self.seed + 1)

    @cached_property
    def differentiable_model(self) -> Machine:
        """The model as needed for gradients: a handwired one is replaced by its variant with
        softmax heads only.
        """
        wired: Any = self.model
        return differentiable(wired)

    @cached_property
    def drawn_episode(self) -> int:
        """Index of the episode that the page draws: the episode in which most entries of the
        algorithm's main state variable (its ``memory``) differ between the beginning and the end.
        It is 0 if there is no algorithm with a ``memory``.
        """
        key = self.algorithm.memory if self.algorithms else ""
        if not key:
            return 0
        values = self.algorithm.run(self.episodes)  # [episode, round, ...] by key
        # NEXT marks the value after a round.
        is_changed = values[NEXT + key][:, -1] != values[key][:, 0]
        n_changed = is_changed.reshape(len(is_changed), -1).sum(1)
        return int(n_changed.argmax())

    def explain_failure(self, key: str) -> str:
        """Return a text that says why the part with this key could not be computed or drawn."""
        error = self.failures[key]
        if isinstance(error, InputError):
            return str(error)
        return f"{type(error).__name__}: {error}"

    def result(self, key: str) -> Any:
        """Return what another part of the report computed; the part is computed on the first call.

        If the part fails or failed before, its exception is raised.

        Args:
            key: key of the part.
        """
        if key in self.failures:
            raise self.failures[key]
        if key in self.missing:
            raise InputError(self.missing[key])
        if key not in self._results:
            parts = {part.key: part for part in self.parts}
            require_known("part of this report", key, parts, limit=20)
            try:
                self._results[key] = parts[key].compute(self)
            except Exception as error:
                self.failures[key] = error
                raise
        return self._results[key]


def require_components(*components: str) -> Callable[[Context], str]:
    """Return a function for the field ``lacking`` of a :class:`Part` that needs some components of
    a machine.

    The function takes the :class:`Context` of a report. It returns a sentence that says which of
    the components the machine lacks, or "" if it lacks none.

    Args:
        *components: the components that a part needs, such as "pattern" (attention patterns).

    >>> import interp
    >>> require_components("pattern")(Context(interp.load("wma-handwired", n_experts=2), "", 5, 10, 0))
    ''
    """
    return lambda context: describe_lacking(context.model, *components)


def refuse_without_circuit(context: Context) -> str:
    """Return a sentence that replaces a part of the report if a handwired model was not compiled
    from a circuit (the description of a handwired model). For any other model, return "".

    Use it as the field ``lacking`` of a :class:`Part` that needs a circuit.
    """
    if context.is_compiled or not context.model.is_handwired:
        return ""
    return f"not applicable: {context.model.name} was not compiled from a circuit"


is_handwired: Callable[[Context], bool] = attrgetter("model.is_handwired")
"""Return True if the model is handwired; a function for the field ``applies`` of a :class:`Part`."""
