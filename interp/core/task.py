"""What a task is: one record that says everything the rest of the toolkit needs to know of it.

A task is a kind of online learning: its episodes, the round that a model reads, the algorithms that solve it, what a
model is trained on and measured by. Rooms look the record up (``interp.tasks.get``, ``interp.tasks.of``) and never ask
which task it is.

Only a key and its :class:`Data` are needed; each further part switches something on: ``algorithms`` interchange,
steering and probe targets, ``analysis`` patching by name and the defaults of probes and interventions, ``training``
``interp train``, ``evaluation`` ``interp evaluate``, ``report`` sections of its own. What needs heavy imports, or rooms
above this one, is named (:func:`interp.support.lazy.lazy`) instead of imported.
"""

from __future__ import annotations

import hashlib
import keyword
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import MISSING, dataclass, field, fields, replace
from functools import cached_property, partial
from operator import attrgetter
from typing import Any, ClassVar, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray

from interp.core.algorithm import (
    Algorithm,
    AlgorithmRecord,
    Episodes,
    Family,
    Predicted,
    counted_rounds,
    with_parameters,
)
from interp.core.machine import Machine
from interp.stats.intervals import of_whom
from interp.support.checks import (
    array_of,
    check_fields,
    checked,
    checked_fields,
    fit,
    integer,
    shown,
    unique,
)
from interp.support.errors import InputError, require, require_known, theirs, unknown_name
from interp.support.session import once

_SCORED = 2**31 - 1
"""The seed of episodes that are scored whatever the seed of a comparison is; odd, as no episodes to fit on have it."""

_WORDS = """
agent arguments as_json at backend base_url budget components concurrency conditions config corruption device
direction dry_run dtype episodes extra_body help hypothesis import jobs json key_env machine malformed_limit map
map_ max_tokens metric metrics model modules name out overrides port preset prices processes prompts propagate quick
quiet read reasks recorded reference regime report requests_per_minute response_format retries round rounds say
scheduler seed send_seed set shard site sizes sweep tables targets task temperature theory thinking_off timeout
top_p units verbose version view windows
"""
_TAKEN = frozenset(
    _WORDS.split()
)  # what the options and arguments of commands are called that take sizes, too


@dataclass(frozen=True)
@checked_fields
class Size:
    """A size of a task's episodes: an argument ``name`` of sampler, layout and circuits, and a shell's ``--option``."""

    name: str
    option: str
    what: str
    minimum: int = 1
    default: int = 4

    def __post_init__(self) -> None:
        """Refuse what no argument and no option of the shell could be called."""
        for what, word in (("name", self.name), ("option", self.option)):
            fits = (
                isinstance(word, str)
                and word.isidentifier()
                and not keyword.iskeyword(word)
                and word[0] != "_"
            )
            require(
                fits,
                f"the {what} of a size must be one word of letters, digits and '_', got {word!r}",
            )
        require(
            self.option == self.option.lower() and self.option not in _TAKEN,
            f"the option of a size must be in small letters and none that commands have already, got {self.option!r}",
        )
        integer("default", self.default, integer("minimum", self.minimum, 1))


@dataclass(frozen=True)
@checked_fields
class Corruption:
    """A corruption: from episodes, a pair (clean, corrupted) that differs in one thing at one round.

    Attributes:
        delay: rounds after the corrupted one until a prediction can differ.
        build: ``(episodes, round, **options) -> (clean, corrupted)``.
        changes_history: whether it changes what came before the round, and so the latents that the round reads.
        possible: whether the corrupted episodes are such as the task can draw; not where what all rounds share is
            changed in one.
        each: episodes to the options of ``build`` for each single input that it can change, by a name for tables.
    """

    key: str
    name: str
    delay: int
    build: Callable[..., tuple[Any, Any]]
    changes_history: bool = False
    possible: bool = True
    each: Callable[[Any], Mapping[str, Mapping[str, Any]]] = lambda episodes: {"": {}}


def episode_array(
    name: str,
    values: ArrayLike,
    axes: str,
    low: float = -np.inf,
    high: float = np.inf,
    whole: bool = False,
) -> NDArray[Any]:
    """``values`` as an array of these axes: finite numbers from ``low`` to ``high`` as float64, whole ones as int64.

    >>> episode_array("labels", [[0, 1.0]], "episode, round", 0, 1, whole=True)
    array([[0, 1]])
    """
    array = array_of(name, values)
    require(
        array.ndim == axes.count(",") + 1,
        f"{name} must be an array [{axes}], got shape {array.shape}",
    )
    wrong = ~(
        (array >= low)
        & (array <= high)
        & np.isfinite(array)
        & (not whole or array == np.rint(array))
    )
    if wrong.any():
        bounds = (
            f" from {low} to {high}" if high < np.inf else f" >= {low}" if low > -np.inf else ""
        )
        what = f"{'whole' if whole else 'finite'} numbers{bounds}"
        told = f"{name} must be {what}, got {array[wrong][0]} at {np.argwhere(wrong)[0].tolist()}"
        absent = np.isnan(array[wrong]).all()
        raise InputError(
            told + "; rounds that did not take place are made by .of(...)" * bool(absent)
        )
    return array.astype(np.int64 if whole else np.float64, copy=False)


def freeze(record: object, **values: Any) -> None:
    """Set the checked values of a frozen dataclass."""
    for name, value in values.items():
        object.__setattr__(record, name, value)


def chosen_indices(index: slice | ArrayLike, size: int) -> NDArray[np.int64]:
    """The indices of episodes that a slice, integers (with repeats) or a mask select, Int[chosen]."""
    asked = index if isinstance(index, slice) else array_of("the selection of episodes", index)
    with theirs(
        f"cannot select {index!r} from {size} episodes: {{error}}",
        of=(IndexError, TypeError, ValueError),
    ):
        chosen = np.arange(size)[
            asked if isinstance(asked, slice) or asked.size else asked.astype(np.int64)
        ]
    require(
        chosen.ndim == 1 and chosen.size > 0,
        f"{index!r} selects no list of episodes; there are {size}",
    )
    return chosen


def length_of(array: str, axis: int, doc: str) -> property:
    """A size of episodes: the length of an axis of one of their arrays, as a property of their class."""
    return property(lambda record: int(getattr(record, array).shape[axis]), doc=doc)


@dataclass(frozen=True, eq=False, repr=False, kw_only=True)
class BaseEpisodes:
    """What the episodes of every task share: which of their rounds took place, and whose they are.

    A subclass holds arrays that begin with an axis of episodes, and calls ``super().__post_init__()`` once they are
    checked; the names of those ``[episode, round, ...]`` that must be given stand in ``round_arrays``.

    Attributes:
        missing: True where a round did not take place (a missed trial, or after the episode's end), ``[episode,
            round]``; None where all did. What the arrays hold there is valid, and changes no result.
        participants: whose each episode is, a name or a number for each: the groups of every interval and fold. None
            where every episode stands for itself.
        reading: what was read, where they were read from a table (:class:`~interp.tasks.trials.TrialsRead`), else None.
    """

    round_arrays: ClassVar[tuple[str, ...]] = ()
    optional_arrays: ClassVar[tuple[str, ...]] = ()
    """Further arrays ``[episode, round, ...]``, of which each may be None."""

    missing: NDArray[Any] | None = None
    participants: Any = None
    reading: Any = None

    def __post_init__(self) -> None:
        shape = len(self), self.n_rounds  # type: ignore[attr-defined]  # a field of one subclass, a property of others
        if self.missing is not None:
            missing = array_of("missing", self.missing)
            fits = missing.shape == shape and missing.dtype == bool
            got = f"{missing.dtype} of shape {missing.shape}"
            require(fits, f"missing must be truth values [episode, round] = {shape}, got {got}")
            empty = np.flatnonzero(missing.all(1))
            none = f"no round took place in {len(empty)} of {len(self)} episodes, such as {empty[:1].tolist()}"
            require(not len(empty), f"{none}; leave these out")
            freeze(self, missing=missing if missing.any() else None)
        if self.participants is not None:
            of_whom(self.participants, len(self))
            freeze(self, participants=np.asarray(self.participants))
        check_fields(self)

    def __len__(self) -> int:
        return len(getattr(self, self.round_arrays[0]))

    @property
    def counted(self) -> NDArray[np.bool_]:
        """Bool[episode, round]: which rounds took place."""
        return counted_rounds(self)

    @property
    def scored(self) -> NDArray[np.bool_]:
        """Bool[episode, round]: the rounds whose outcome is predicted: those that took place."""
        return self.counted

    @property
    def arrays_by_round(self) -> tuple[str, ...]:
        """Names of the arrays ``[episode, round, ...]`` that there are."""
        present = [name for name in self.optional_arrays if getattr(self, name) is not None]
        return (*self.round_arrays, *present)

    @property
    def lengths(self) -> NDArray[np.int64]:
        """Int[episode]: rounds up to and with the last one that took place."""
        counted = self.counted
        return counted.shape[1] - counted[:, ::-1].argmax(1)

    @classmethod
    def of(cls, **given: Any) -> Self:
        """Episodes of unequal length, from lists with an entry for each episode; other fields are passed on.

        A round for which a value is NaN or None did not take place.

        >>> from interp.tasks.experts import ExpertEpisodes
        >>> played = ExpertEpisodes.of(advice=[[[0, 1], [1, 1], [0, 0]], [[1, 0]]], labels=[[1, None, 0], [1]])
        >>> played, played.lengths.tolist()
        (ExpertEpisodes(2 episodes of 1 to 3 rounds, 3 of which count, 2 experts, custom regime), [3, 1])
        """
        return cls._made(**padded(cls.round_arrays, given))

    @classmethod
    def _made(cls, **given: Any) -> Self:
        """An instance of fields by their names, all that have no default among them."""
        known = {
            one.name: one.default is MISSING and one.default_factory is MISSING
            for one in fields(cls)
        }
        for name in given:
            require_known(f"field of {cls.__name__}", name, known)
        absent = [name for name, needed in known.items() if needed and name not in given]
        require(
            not absent,
            f"{cls.__name__}.of needs {', '.join(known)}; {', '.join(absent)} is not there",
        )
        return cls(**given)

    def select(self, indices: slice | Sequence[int] | NDArray[Any]) -> Self:
        """The episodes at ``indices`` (a slice, integers with repeats, or one boolean per episode), in that order."""
        chosen, picked = chosen_indices(indices, len(self)), dict[str, Any]()
        for name in (one.name for one in fields(self)):
            value = getattr(self, name)
            if isinstance(value, np.ndarray) or hasattr(value, "select"):
                picked[name] = (
                    value[chosen] if isinstance(value, np.ndarray) else value.select(chosen)
                )
        return replace(self, **picked)

    def first(self, n_rounds: int) -> Self:
        """The first ``n_rounds`` of each episode that took place: a round that did not leaves every state as it is.

        >>> from interp.tasks.experts import ExpertEpisodes
        >>> ExpertEpisodes.of(advice=[[[0], [1], [0]], [[1]]], labels=[[0, None, 1], [1]]).first(2).labels.tolist()
        [[0, 1], [1, 1]]
        """
        order = np.argsort(~self.counted, axis=1, kind="stable")[
            :, : integer("n_rounds", n_rounds, 1)
        ]
        moved = {
            name: getattr(self, name)[np.arange(len(self))[:, None], order]
            for name in self.arrays_by_round
        }
        return self._with_rounds(moved | {"missing": np.take_along_axis(~self.counted, order, 1)})

    def _with_rounds(self, arrays: Mapping[str, Any]) -> Self:
        return replace(self, **arrays)

    def __repr__(self) -> str:
        least, most = self.lengths.min(), self.counted.shape[1]
        told = [f"{len(self)} episodes of {'' if least == most else f'{least} to '}{most} rounds"]
        if self.missing is not None:
            told.append(f"{self.counted.sum():,} of which count")
        if self.participants is not None:
            told.append(f"{len(np.unique(self.participants))} participants")
        sizes = ("n_experts", "n_states", "n_actions", "n_arms", "n_nodes", "n_edges")
        told += [f"{getattr(self, size)} {size[2:]}" for size in sizes if hasattr(self, size)]
        told += [f"{self.regime} regime"] if hasattr(self, "regime") else []
        seed = getattr(self, "seed", None)
        return f"{type(self).__name__}({', '.join(told + [f'seed {seed}'] * (seed is not None))})"


def padded(names: Sequence[str], given: Mapping[str, Any]) -> dict[str, Any]:
    """Pad the lists ``names`` of ``given`` to one number of rounds, and say which rounds are missing.

    A round is missing after the end of its episode, where a value is NaN or None, and where a mask ``missing``, a list
    for each episode as the others are, says so.

    >>> padded(["labels"], {"labels": [[1, 0], [1]]})["missing"].tolist()
    [[False, False], [False, True]]
    """
    absent = [name for name in names if name not in given]
    require(
        not absent,
        f"give {', '.join(names)}, a list of episodes each; {', '.join(absent)} is not there",
    )
    has_mask = given.get("missing") is not None
    rows = {name: _list_episodes(name, given[name]) for name in names}
    if has_mask:
        rows["missing"] = _list_episodes("missing", given["missing"])
    first = names[0]
    lengths = [len(episode) for episode in rows[first]]
    for name, episodes in rows.items():
        found = [len(episode) for episode in episodes]
        require(
            found == lengths,
            f"{name} has {found} rounds by episode but {first} has {lengths}; give one for each round",
        )
    n_rounds = max(lengths, default=0)
    missing = np.arange(n_rounds) >= np.array(lengths, int)[:, None]
    arrays = {name: _pad(name, episodes, n_rounds) for name, episodes in rows.items()}
    if has_mask:
        missing |= arrays.pop("missing") == 1
    for array in arrays.values():
        missing |= np.isnan(array).any(axis=tuple(range(2, array.ndim)))
    first_counted = missing.argmin(1)[:, None]
    filled = np.where(missing, first_counted, np.arange(n_rounds))
    episodes_of = np.arange(len(lengths))[:, None]
    arrays = {name: np.nan_to_num(array[episodes_of, filled]) for name, array in arrays.items()}
    return {**given, **arrays, "missing": missing}


def _list_episodes(name: str, values: Any) -> list[NDArray[Any]]:
    """Return an array for each episode, ``[round, ...]``."""
    is_list = isinstance(values, Sequence | np.ndarray) and not isinstance(values, str)
    require(is_list, f"{name} must be a list with an entry for each episode, got {shown(values)}")
    episodes = [array_of(name, episode) for episode in values]
    for episode in episodes:
        require(
            episode.ndim > 0,
            f"{name} must be a list of rounds for each episode, got {shown(values)}",
        )
    return episodes


def _pad(name: str, episodes: Sequence[NDArray[Any]], n_rounds: int) -> NDArray[np.float64]:
    """Return arrays of unequal length as one, ``[episode, round, ...]``, NaN after the end of each."""
    shapes = {episode.shape[1:] for episode in episodes if len(episode)}
    require(
        len(shapes) == 1,
        f"{name} must be of one size in every round, got sizes {sorted(shapes)}",
    )
    array = np.full((len(episodes), n_rounds, *shapes.pop()), np.nan)
    for row, episode in zip(array, episodes, strict=True):
        if len(episode):
            row[: len(episode)] = episode
    return array


@checked
def corrupted_round(episodes: Episodes, round: int, history: bool = False) -> int:
    """The index of the round to corrupt; negative counts from the end, and round 0 has no ``history`` to change.

    >>> from interp.tasks import experts
    >>> corrupted_round(experts.sample(n_episodes=1, n_rounds=5, n_experts=2), -1)
    4
    """
    n_rounds = episodes.n_rounds
    missing = f"round {round} is out of range: the episodes have rounds 0 to {n_rounds - 1}"
    require(-n_rounds <= round < n_rounds, missing)
    t = round % n_rounds
    require(not history or t >= 1, "round 0 has no history to swap; choose a later round")
    return t


@checked
def exchanged(values: NDArray[Any], t: int) -> NDArray[Any]:
    """Each episode with the next one's rounds before ``t``; ``values`` are ``[episode, round, ...]``, of 2 or more.

    >>> exchanged(np.array([[1, 2, 3], [7, 8, 9]]), 2)
    array([[7, 8, 3],
           [1, 2, 9]])
    """
    values = array_of("values", values)
    require(values.ndim >= 2, f"values are [episode, round, ...], got shape {values.shape}")
    require(len(values) >= 2, f"swapping histories needs at least 2 episodes, got {len(values)}")
    return np.concatenate([np.roll(values, -1, axis=0)[:, :t], values[:, t:]], axis=1)


@checked
def exchange_history(
    episodes: Any,
    round: int,
    names: Sequence[str] = (),
    held: Callable[[Any, str], NDArray[Any]] = getattr,
    remade: Callable[..., Any] = replace,
) -> tuple[Any, Any]:
    """Every episode with the next one's arrays before a round, all ``round_arrays`` where none is named, and its gaps.

    ``held``: episodes and a name to the array ``[episode, round, ...]``; ``remade``: the episodes and the exchanged
    arrays by name to episodes that hold these.
    """
    t = corrupted_round(fit("episodes", episodes, Episodes), round, history=True)
    taken = {name: held(episodes, name) for name in names or episodes.arrays_by_round} | {
        "missing": ~episodes.counted
    }
    return episodes, remade(
        episodes, **{name: exchanged(values, t) for name, values in taken.items()}
    )


def in_one_round(
    array: str,
    edit: Callable[[Any, int], NDArray[Any]],
    held: Callable[[Any, str], NDArray[Any]] = getattr,
    remade: Callable[..., Any] = replace,
) -> Callable[[Any, int], tuple[Any, Any]]:
    """What corrupts an array of episodes in one round alone: ``edit`` takes episodes and round to its values there.

    ``held`` and ``remade`` are as in :func:`exchange_history`.
    """

    def build(episodes: Any, round: int) -> tuple[Any, Any]:
        t, changed = corrupted_round(episodes, round), held(episodes, array).copy()
        changed[:, t] = edit(episodes, t)
        return episodes, remade(episodes, **{array: changed})

    return build


@dataclass(frozen=True)
class RoundInputs:
    """What one round says by itself: the control of every probe.

    ``features`` are several forms of it, ``[episode, round, feature]``; the control takes the best. ``kinds`` are
    numbers that together say which kind of round it is, ``[episode, round, part]``, for the control task.
    """

    features: tuple[NDArray[Any], ...]
    kinds: NDArray[Any]


@dataclass(frozen=True)
@checked_fields
class Steering:
    """How a model of a task is steered by default; ``what`` and ``shows`` are the change and the outcome in words.

    Attributes:
        change: the state change of dose 1: (shape of the state of one episode) -> array.
        outcome: (episodes, round) -> the outcome whose probability should move, one for all or one per episode.
    """

    change: Callable[[tuple[int, ...]], NDArray[Any]]
    doses: tuple[float, ...]
    outcome: Callable[[Any, int], Any]
    what: str
    shows: str


@dataclass(frozen=True)
@checked_fields
class Data:
    """What there is to learn: the episodes of a task, and the round of them that a model reads.

    Attributes:
        layout: sizes to the :class:`~interp.model.layout.RoundLayout`.
        sample: ``(n_episodes, n_rounds, *, regime, seed, **sizes)`` to episodes, whose ``task`` is the task's key.
        losses: ``(predictions, episodes, rounds)`` to the expected loss of each prediction by the truth of the
            episodes, ``[*batch, episode, round]``; ``rounds`` is the slice that was predicted.
        regimes: names of what episodes can be drawn from, each with what it is.
        sample_options: model to what else the sampler takes for it, such as its learning rate.
        interaction: ``(worlds, n_rounds, seed, epsilon)`` to an interaction, round by round, that a model can act in
            (``done``, ``step(choices)`` to a batch of one round, ``episodes()``); None where nothing can be acted in.
            Where the layout has ``draws``, ``told=True`` is given, too: the model explores by itself.
        read: ``(path, **columns)`` to episodes from a table of recorded ones; None where the task reads none.
        rounds: of an episode in which something new can still happen; analyses sample no more by default. 0 where
            there is no end, as in learning.
        first_asked: the first round whose prediction the task asks for. Those of earlier rounds are trained on nothing,
            so comparison leaves them out.
        halves: samplers of either half of what was recorded (:meth:`Task.half`); none where new episodes are drawn.
    """

    layout: Callable[..., Any]
    sample: Callable[..., Any]
    losses: Callable[..., Any]
    sizes: tuple[Size, ...] = ()
    regimes: Callable[[], Mapping[str, str]] = dict
    sample_options: Callable[[Any], Mapping[str, Any]] = lambda model: {}
    interaction: Callable[..., Any] | None = None
    read: Callable[..., Any] | None = None
    rounds: int = 0
    first_asked: int = 0
    halves: tuple[Callable[..., Any], ...] = ()

    def __post_init__(self) -> None:
        integer("rounds", self.rounds, 0)
        integer("first_asked", self.first_asked, 0)
        for name in ("layout", "sample", "losses", "sample_options", "interaction", "read"):
            function = getattr(self, name)
            if function is not None and not getattr(function, "__module__", "").startswith(
                "interp."
            ):
                told = theirs(f"this task's record does not keep what it says: {name}")
                object.__setattr__(self, name, told(function))
        names = [size.name for size in self.sizes]
        twice = max(names, key=names.count, default="")
        require(
            len(set(names)) == len(names),
            f"two sizes are called {twice!r}; give each a name of its own",
        )


@dataclass(frozen=True)
@checked_fields
class Algorithms:
    """What could explain a model of a task.

    Attributes:
        records: the algorithms that the task registers, in order of preference: a variable that several share is the
            first one's.
        hypothesis: model to the algorithm that it is held against; the first one by default.
        families: families of algorithms that comparison fits to a model's predictions; by default every registered
            algorithm, as it is.
        updates: families that comparison fits to what a round makes of the decoded state; the families by default.
        battery: ``(n_episodes, n_rounds, *, seed, **sizes)`` to sets of episodes on which the families predict
            differently, by name; the sampler's default regime alone by default.
    """

    records: Callable[[], tuple[AlgorithmRecord, ...]] = lambda: ()
    hypothesis: Callable[[Any], Algorithm] | None = None
    families: Callable[[], tuple[Family, ...]] | None = None
    updates: Callable[[], tuple[Family, ...]] | None = None
    battery: Callable[..., Mapping[str, Any]] | None = None


@dataclass(frozen=True)
@checked_fields
class Analysis:
    """What probes and interventions look for in a model of a task, and where, when a caller does not say.

    Attributes:
        round_inputs: what one round says by itself, the control of every probe.
        probed: variables that ``interp probe`` decodes.
        default_corruption: the key of the one that ``interp patch`` and circuits of edges take.
        aligned: model to (variable, site) cases for learned subspaces, the last a place that cannot hold it.
        claims: model to what interchange tests in a learned model: rows (variable, sites, outcome, control), as
            ``Claim.at`` takes them; sites None are all that the machine carries.
    """

    round_inputs: Callable[[Any], RoundInputs] | None = None
    probed: tuple[str, ...] = ()
    corruptions: Callable[[], tuple[Corruption, ...]] = lambda: ()
    default_corruption: str = ""
    aligned: Callable[[Any], tuple[tuple[str, str], ...]] = lambda model: ()
    claims: Callable[[Any], tuple[tuple[Any, ...], ...]] = lambda model: ()
    steering: Callable[[], Steering] | None = None


@dataclass(frozen=True)
@checked_fields
class Reporting:
    """How a report on a task differs from that on any other.

    ``parts`` lists the whole report in page order; the parts that every report has when None. ``looks`` gives the hue
    and dash of the line of an algorithm or baseline, such as "green short" (``interp.results.palette``).
    """

    parts: Callable[[], Any] | None = None
    looks: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
@checked_fields
class Task:
    """A task, in parts of which each caller reads its own.

    ``training`` gives the :class:`~interp.training.goal.TrainingGoal` of ``interp train``, ``evaluation`` the
    :class:`~interp.evaluation.EvaluationPlan` of ``interp evaluate``. ``recorded`` says which
    episodes stand in the place of the sampler, and which algorithm models are held against, where these were changed
    (:func:`interp.tasks.using`).
    """

    key: str
    name: str
    what: str
    data: Data
    algorithms: Algorithms = Algorithms()
    analysis: Analysis = Analysis()
    training: Callable[[], Any] | None = None
    evaluation: Callable[[], Any] | None = None
    report: Reporting = Reporting()
    recorded: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        require(self.key.isidentifier(), f"a task's key must be an identifier, got {self.key!r}")

    # The sizes of its episodes; what makes the layout of a round of sizes; and the sampler.
    sizes = property(attrgetter("data.sizes"))
    layout = property(attrgetter("data.layout"))
    sample = property(attrgetter("data.sample"))

    @cached_property
    def kind(self) -> Predicted:
        """What a prediction is (``RoundLayout.kind``): of "classes", or of a real number the "mean", or a "normal"."""
        return self.layout(**{size.name: size.default for size in self.sizes}).kind

    def at_most(self, n_rounds: int) -> int:
        """``n_rounds``, or as many as an episode of this task has new things in."""
        return min(n_rounds, self.data.rounds) if self.data.rounds else n_rounds

    def sizes_of(self, layout: Any) -> dict[str, int]:
        """The sizes of a layout, or of episodes."""
        missing = [size.name for size in self.sizes if not hasattr(layout, size.name)]
        wanted = f"a layout or episodes of {self.key!r}, which have {', '.join(missing)}"
        require(not missing, f"layout must be {wanted}; got {type(layout).__name__}")
        return {size.name: int(getattr(layout, size.name)) for size in self.sizes}

    def explains(self, model: Machine) -> Algorithm:
        """The algorithm that a model is held against: the one that it was made to compute, where it says so."""
        own = getattr(model, "algorithm", None)
        if isinstance(own, Algorithm):
            return own
        hypothesis, records = self.algorithms.hypothesis, self.algorithms.records()
        known = hypothesis is not None or bool(records)
        require(known, f"task {self.key!r} registers no algorithm; give its record algorithms=...")
        return once(
            "explains", model, make=partial(hypothesis, model) if hypothesis else records[0].make
        )

    def sample_for(
        self,
        model: Machine,
        n_episodes: int,
        n_rounds: int,
        seed: int,
        regime: str = "",
        sizes: Mapping[str, int] | None = None,
    ) -> Any:
        """Episodes of a model's sizes, but for those in ``sizes``; of the sampler's default regime if none is given."""
        known = [size.name for size in self.sizes]
        for name in sizes or {}:
            require_known(f"size of {self.key!r}", name, known)
        options = {
            **self.sizes_of(model.layout),
            **self.data.sample_options(model),
            **(sizes or {}),
        }
        if regime:
            options["regime"] = regime
        return self.sample(n_episodes, n_rounds, seed=seed, **options)

    def of_recorded(self, episodes: BaseEpisodes) -> Task:
        """This task with recorded episodes for a source, where otherwise its sampler is asked for new ones.

        A batch is drawn of all participants (of all episodes, where these have none) and of all that each of them
        played; in a smaller one as many participants as can be are there. Nothing is given twice or made up: there are
        never more, with a warning. What is fitted on some and scored on others draws from :meth:`half`. Missed trials
        are left out, and episodes are cut to as many rounds as nine of ten have; shorter ones are left out.

        >>> from interp.tasks import experts
        >>> played = replace(experts.sample(6, 5, 2, seed=0), participants=["ann", "ann", "bob", "bob", "cem", "dia"])
        >>> known, test = experts.TASK.of_recorded(played).sets_for(3, 5, seed=0)["default"]
        >>> len(known) + len(test), sorted({*known.participants.tolist()} & {*test.participants.tolist()})
        (6, [])
        """
        import pandas as pd

        of = getattr(episodes, "task", "another task")
        require(of == self.key, f"these episodes are of {of!r}, not of {self.key!r}")
        what = "participants" if episodes.participants is not None else "episodes"
        if episodes.participants is None:
            episodes = replace(episodes, participants=np.arange(len(episodes)))
        whose = of_whom(episodes.participants, len(episodes))
        names = np.random.default_rng(0).permutation(whose.max() + 1)
        require(
            len(names) >= 2,
            f"one half of the {what} is fitted and the other scored, and there is {len(names)}",
        )
        counts, told, own = counted_rounds(episodes).sum(1), set[str](), self.sizes_of(episodes)
        longest, middle = int(np.quantile(counts, 0.1, method="higher")), (len(names) + 1) // 2

        def sample(
            chosen: NDArray[Any],
            n_episodes: int,
            n_rounds: int,
            *,
            regime: str = "",
            seed: int = 0,
            **sizes: Any,
        ) -> Any:
            wrong = {name: size for name, size in sizes.items() if own.get(name, size) != size}
            require(not wrong, f"the recorded episodes have {own}, and {wrong} was asked for")
            drawn = regime in ("", getattr(episodes, "regime", ""))
            require(
                drawn,
                f"recorded episodes are of no regime, and {regime!r} was asked for; leave it out",
            )
            n_rounds = min(n_rounds, longest)
            there = np.flatnonzero(np.isin(whose, chosen) & (counts >= n_rounds))
            rows = np.random.default_rng(seed).permutation(there)
            again = pd.Series(whose[rows]).groupby(whose[rows]).cumcount().to_numpy()
            rows = rows[
                again.argsort(kind="stable")
            ]  # first one episode of each, then the second ones, ...
            few = f"there are only {len(names)} {what}" + f", {len(chosen)} in this half" * (
                len(chosen) < len(names)
            )
            if len(rows) < n_episodes and few not in told:
                told.add(few)
                warnings.warn(
                    f"{few}: {len(rows)} episodes, not {n_episodes}", UserWarning, stacklevel=2
                )
            return episodes.select(rows[:n_episodes]).first(n_rounds)

        about = {"episodes": len(episodes), "participants": len(names), "rounds": int(counts.sum())}
        held = (getattr(episodes, one.name) for one in fields(episodes))
        arrays = [np.ascontiguousarray(value) for value in held if isinstance(value, np.ndarray)]
        digest = hashlib.sha256(b"".join(map(np.ndarray.tobytes, arrays))).hexdigest()
        source, *halves = (
            partial(sample, part) for part in (names, names[:middle], names[middle:])
        )
        data = replace(self.data, sample=source, halves=tuple(halves), regimes=dict, rounds=longest)
        data = replace(data, sample_options=lambda model: {})
        algorithms, recorded = (
            replace(self.algorithms, battery=None),
            {**self.recorded, **about, "digest": digest},
        )
        return replace(self, data=data, algorithms=algorithms, recorded=recorded)

    def half(self, which: int) -> Task:
        """This task with half of its recorded participants for a source: 0 is to fit on, and 1 to score on.

        Where new episodes are drawn it is the same task: those of another seed are others.
        """
        halves = self.data.halves
        return replace(self, data=replace(self.data, sample=halves[which])) if halves else self

    @checked
    def held_against(self, algorithm: Algorithm) -> Task:
        """This task with ``algorithm``, such as one that was fitted, in the place of the first that it registers.

        Models are held against it and probed for its variables, at its parameters, which stand in its name.

        >>> from interp.tasks import bandit
        >>> from interp.tasks.bandit.algorithms import rescorla_wagner
        >>> bandit.TASK.held_against(rescorla_wagner(rate=0.7)).algorithms.records()[0].name
        'Rescorla-Wagner (rate 0.7, inverse temperature 5)'
        """
        require(
            algorithm.task == self.key,
            f"{algorithm.key!r} is of {algorithm.task!r}, not of {self.key!r}",
        )
        named = replace(algorithm, name=with_parameters(algorithm))
        others = [one for key, one in self.algorithm_records().items() if key != algorithm.key]
        first = AlgorithmRecord(algorithm.key, named.name, algorithm.name, lambda: named)
        algorithms = replace(
            self.algorithms, hypothesis=lambda model: named, records=lambda: (first, *others)
        )
        return replace(
            self, algorithms=algorithms, recorded={**self.recorded, "algorithm": named.name}
        )

    def algorithm_records(self) -> dict[str, AlgorithmRecord]:
        """The registered algorithms by key."""
        return unique(self.algorithms.records(), f"algorithm of {self.key!r}")

    def algorithm(self, key: str, **parameters: Any) -> Algorithm:
        """An algorithm of this task."""
        records = self.algorithm_records()
        require_known(f"algorithm of {self.key!r}", key, records, limit=20)
        return records[key].make(**parameters)

    def rivals(self) -> dict[str, Family]:
        """The families of algorithms that could explain a model, by key."""
        if self.algorithms.families is not None:
            families = unique(self.algorithms.families(), f"family of {self.key!r}")
        else:
            records = self.algorithm_records()
            require(
                bool(records),
                f"task {self.key!r} registers no algorithm; give its record algorithms=...",
            )
            families = {
                k: Family(k, r.name, r.make, memoryless=not r.make().state)
                for k, r in records.items()
            }
        for family in families.values():
            if family.extends and (
                family.extends not in families or families[family.extends].extends
            ):
                raise unknown_name(
                    f"family that {family.key!r} extends", family.extends, families, limit=20
                )
        return families

    def update_families(self) -> dict[str, Family]:
        """The families of updates of a carried state, by key."""
        if self.algorithms.updates is None:
            return self.rivals()
        return unique(self.algorithms.updates(), f"family of updates of {self.key!r}")

    def sets_for(
        self, n_episodes: int, n_rounds: int, seed: int, n_scored: int | None = None, **sizes: int
    ) -> dict[str, tuple[Any, Any]]:
        """Per set of the battery, ``n_episodes`` to fit on and as many others to score on.

        With ``n_scored`` so many are scored, the same ones for every seed: scores are then of one set of episodes.
        """

        def drawn(half: int, n: int, seed: int) -> Mapping[str, Any]:
            if self.algorithms.battery is not None:
                return self.algorithms.battery(n, n_rounds, seed=seed, **sizes)
            return {"default": self.half(half).sample(n, n_rounds, seed=seed, **sizes)}

        fits = drawn(0, n_episodes, 2 * seed)
        scores = (
            drawn(1, n_episodes, 2 * seed + 1) if n_scored is None else drawn(1, n_scored, _SCORED)
        )
        return {name: (fits[name], scores[name]) for name in fits}

    def corruption(self, key: str) -> Corruption:
        """The corruption called ``key``."""
        corruptions = unique(self.analysis.corruptions(), f"corruption of {self.key!r}")
        require_known(f"corruption of {self.key} episodes", key, corruptions, limit=20)
        return corruptions[key]
