"""What a task is: one record with everything that the rest of the toolkit needs to know about it.

A task is a kind of online learning. Its record names its episodes, the tokens of a round, the
algorithms that solve it, and how models are trained and evaluated. Other code looks the record up
(``interp.tasks.get``, ``interp.tasks.of``) and is the same for every task.

Only a key and :class:`Data` are required. Each further part enables a feature. ``algorithms``
enables interchange, steering and probe targets; ``analysis`` enables patching by name and defaults
of probes and interventions. ``training`` enables ``interp train``, ``evaluation`` enables
``interp evaluate``, and ``report`` adds sections to the report. Functions that need slow imports
are imported at their first call (:func:`interp.support.lazy.lazy`).
"""

from __future__ import annotations

import keyword
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
from interp.stats.intervals import number_participants
from interp.support.checks import (
    array_of,
    check_fields,
    check_type,
    checked,
    checked_fields,
    format_value,
    index_by_key,
    integer,
)
from interp.support.errors import InputError, convert_errors, require, require_known
from interp.support.session import compute_once

_SCORING_SEED = 2**31 - 1
"""Seed of the episodes that are scored when a caller fixes them for all seeds.

It is odd, and episodes to fit on have even seeds, so the two never coincide.
"""

_WORDS = """
agent arguments as_json at backend base_url budget components concurrency conditions config corruption device
direction dry_run dtype episodes extra_body help hypothesis import jobs json keep_every key_env machine
malformed_limit map map_ max_tokens metric metrics model models modules more name out overrides plan port preset
prices processes prompts propagate quick quiet read reasks recorded reference regime report requests_per_minute
response_format retries round rounds say scheduler seed seeds send_seed set shard site sizes sweep tables targets task
temperature thinking_off time_limit timeout top_p units verbose version view windows
"""
_TAKEN = frozenset(_WORDS.split())
"""Names of arguments and options of commands that also take sizes; a size may not have these
names.
"""


@dataclass(frozen=True)
@checked_fields
class Size:
    """A size of a task's episodes, such as the number of experts.

    Attributes:
        name: name of the argument that sets this size in the sampler, in the layout and in the
            builders of circuits, such as "n_experts".
        option: name of the command-line option that sets this size, without dashes, such as
            "experts".
        what: description of the size for help texts.
        minimum: the smallest allowed value.
        default: the default value.
    """

    name: str
    option: str
    what: str
    minimum: int = 1
    default: int = 4

    def __post_init__(self) -> None:
        """Raise InputError if ``name`` or ``option`` is not a valid name of a Python argument, or
        if ``option`` has capital letters or is already an option of a command. Also refuse a
        ``minimum`` below 1 and a ``default`` below ``minimum``.
        """
        option = self.option
        _require_word("name", self.name)
        _require_word("option", option)
        is_free = option == option.lower() and option not in _TAKEN
        require(
            is_free,
            f"the option of a size must be in small letters and none that commands have already, got {option!r}",
        )
        minimum = integer("minimum", self.minimum, 1)
        integer("default", self.default, minimum)


def _require_word(what: str, word: str) -> None:
    """Raise InputError if a word cannot be the name of an argument.

    Args:
        what: what the word is, for the error message: "name" or "option" of a size.
        word: the word.
    """
    is_name = word.isidentifier() and not keyword.iskeyword(word)
    require(
        is_name and not word.startswith("_"),
        f"the {what} of a size must be one word of letters, digits and '_', got {word!r}",
    )


@dataclass(frozen=True)
@checked_fields
class Corruption:
    """A way to make pairs (clean, corrupted) of episodes that differ in one thing at one round.

    Attributes:
        key: name in code and on the command line.
        name: name in sentences.
        delay: number of rounds from the corrupted round to the first round with a prediction that
            can differ; 0 if the prediction of the corrupted round itself can differ.
        build: function ``(episodes, round, **options) -> (clean, corrupted)``, where ``round`` is
            the index of the round to corrupt.
        changes_history: True if ``build`` changes the rounds before ``round``, and so the carried
            state that this round reads.
        possible: True if the task's sampler could have produced the corrupted episodes. It could
            not, for example, if something that all rounds share is changed in one round.
        each: function of episodes that returns a dictionary with an entry for each input that can be
            corrupted by itself: its name in tables -> the options with which ``build`` corrupts this
            input only. For the advice of two experts it returns ``{"p_1": {"expert": "p_1"},
            "p_2": {"expert": "p_2"}}``. By default there is one nameless input, without options.
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
    """Check numbers of episodes and return them as an array: float64, or int64 if ``whole``.

    Args:
        name: name of the array in the error message.
        values: the numbers, which must be finite.
        axes: names of the axes that the array must have, separated by commas, such as "episode,
            round". Only their number is checked; the names are for the error message.
        low, high: smallest and largest allowed number.
        whole: True if the numbers must be whole.

    Raises:
        InputError: a wrong number of axes, or a number that is not allowed; the message has the
            first such number and its index.

    >>> episode_array("labels", [[0, 1.0]], "episode, round", 0, 1, whole=True)
    array([[0, 1]])
    """
    array = array_of(name, values)
    n_axes = axes.count(",") + 1
    require(array.ndim == n_axes, f"{name} must be an array [{axes}], got shape {array.shape}")
    is_right = (array >= low) & (array <= high) & np.isfinite(array)
    if whole:
        is_right &= array == np.rint(array)
    if not is_right.all():
        kind = "whole numbers" if whole else "finite numbers"
        raise _wrong_numbers(name, array, ~is_right, f"{kind}{_describe_bounds(low, high)}")
    return array.astype(np.int64 if whole else np.float64, copy=False)


def check_mask(name: str, values: Any, shape: tuple[int, ...]) -> NDArray[np.bool_]:
    """Check a mask ``[episode, round]`` and return it as a boolean array; refuse another dtype or
    shape.

    Args:
        name: name of the mask in the error message.
        values: the mask.
        shape: numbers of episodes and rounds.
    """
    mask = array_of(name, values)
    require(
        mask.shape == shape and mask.dtype == bool,
        f"{name} must be truth values [episode, round] = {shape}, got {mask.dtype} of shape {mask.shape}",
    )
    return mask


def _describe_bounds(low: float, high: float) -> str:
    """Return bounds of numbers in words, such as " from 0 to 1" or " >= 0", to be added to a
    sentence; "" without bounds.

    Args:
        low, high: the bounds, or minus and plus infinity.
    """
    if high < np.inf:
        return f" from {low} to {high}"
    return f" >= {low}" if low > -np.inf else ""


def _wrong_numbers(
    name: str, array: NDArray[Any], is_wrong: NDArray[np.bool_], rule: str
) -> InputError:
    """Return an InputError about invalid numbers in an array; its message has the first of them and
    its index.

    Args:
        name: name of the array.
        array: the numbers.
        is_wrong: True for invalid numbers.
        rule: what the numbers must be, in words.
    """
    first_wrong = np.argwhere(is_wrong)[0].tolist()
    text = f"{name} must be {rule}, got {array[tuple(first_wrong)]} at {first_wrong}"
    if np.isnan(array[is_wrong]).all():
        text += "; rounds that did not take place are made by .of(...)"
    return InputError(text)


def set_frozen_fields(record: object, **values: Any) -> None:
    """Set fields of a frozen dataclass, for use in its ``__post_init__``.

    Args:
        record: the instance, which is changed in place.
        values: the new values of its fields, by name.
    """
    for name, value in values.items():
        object.__setattr__(record, name, value)


def chosen_indices(index: slice | ArrayLike, size: int) -> NDArray[np.int64]:
    """Convert a selection of episodes to an array of their indices, Int[chosen].

    Args:
        index: a slice, integers (repeats allowed) or a mask over episodes.
        size: number of episodes.
    """
    selection: Any = index
    if not isinstance(index, slice):
        selection = array_of("the selection of episodes", index)
        if not selection.size:
            # An empty list becomes floats, which NumPy refuses as indices. As integers it selects
            # nothing, and is refused below in plain words.
            selection = selection.astype(np.int64)
    with convert_errors(
        f"cannot select {index!r} from {size} episodes: {{error}}",
        of=(IndexError, TypeError, ValueError),
    ):
        chosen = np.arange(size)[selection]
    require(
        chosen.ndim == 1 and len(chosen) > 0,
        f"{index!r} selects no list of episodes; there are {size}",
    )
    return chosen


def length_of(array: str, axis: int, doc: str) -> property:
    """Return a property for a class of episodes. The property's value is the length of one axis of
    an array of the episodes, as in ``n_experts = length_of("advice", -1, "Number of experts.")``.

    Args:
        array: name of the attribute that has the array.
        axis: index of the axis.
        doc: docstring of the property.
    """

    def length(episodes: Any) -> int:
        """Return the length of the axis.

        Args:
            episodes: the episodes that have the array.
        """
        return int(getattr(episodes, array).shape[axis])

    return property(length, doc=doc)


@dataclass(frozen=True, eq=False, repr=False, kw_only=True)
class BaseEpisodes:
    """Base class for the episodes of every task. Its fields store which rounds took place, and who
    played them.

    A subclass adds arrays with the episode as their first axis, and calls
    ``super().__post_init__()`` after it has checked them. The class attribute ``round_arrays`` has
    the names of its required arrays ``[episode, round, ...]``.

    Attributes:
        missing: Bool[episode, round], True where a round did not take place: a missed trial, or
            padding after the episode's end. None if all rounds took place. In missing rounds, the
            other arrays have valid numbers that affect no result.
        participants: name or number of the participant who played each episode. The bootstrap and
            cross-validation never separate the episodes of a participant. None if all episodes are
            independent of each other.
        reading: how the table that the episodes come from was read
            (:class:`~interp.tasks.trials.TrialsRead`); None if they come from no table.
    """

    round_arrays: ClassVar[tuple[str, ...]] = ()
    optional_arrays: ClassVar[tuple[str, ...]] = ()
    """Names of further arrays ``[episode, round, ...]``, each of which may be None."""

    missing: NDArray[Any] | None = None
    participants: Any = None
    reading: Any = None

    def __post_init__(self) -> None:
        """Check the mask of missing rounds, the participants and the other fields. A mask without
        a missing round becomes None.
        """
        if self.missing is not None:
            mask = array_of("missing", self.missing)  # first: what is no array is refused
            shape = (len(self), self.n_rounds)  # type: ignore[attr-defined]  # a field, or a property
            missing = check_mask("missing", mask, shape)
            empty = np.flatnonzero(missing.all(1)).tolist()
            require(
                not empty,
                f"no round took place in {len(empty)} of {len(self)} episodes, such as {empty[:1]}; leave these out",
            )
            set_frozen_fields(self, missing=missing if missing.any() else None)
        if self.participants is not None:
            number_participants(self.participants, len(self))  # refuses a wrong number of names
            set_frozen_fields(self, participants=np.asarray(list(self.participants)))
        check_fields(self)

    def __len__(self) -> int:
        return len(getattr(self, self.round_arrays[0]))

    @property
    def counted(self) -> NDArray[np.bool_]:
        """Bool[episode, round], True where a round took place."""
        return counted_rounds(self)

    @property
    def scored(self) -> NDArray[np.bool_]:
        """Bool[episode, round], True where a prediction is scored: here, in all rounds that took
        place.
        """
        return self.counted

    @property
    def arrays_by_round(self) -> tuple[str, ...]:
        """Names of the fields that are arrays ``[episode, round, ...]`` and not None."""
        present = [name for name in self.optional_arrays if getattr(self, name) is not None]
        return (*self.round_arrays, *present)

    @property
    def lengths(self) -> NDArray[np.int64]:
        """Int[episode]: number of rounds of each episode up to its last round that took place,
        missed trials included.
        """
        from_the_end = self.counted[:, ::-1]
        n_missing_at_end = from_the_end.argmax(1)  # argmax finds the first that took place
        return from_the_end.shape[1] - n_missing_at_end

    @classmethod
    def of(cls, **values: Any) -> Self:
        """Make a batch of episodes of unequal length from lists; shorter episodes are padded with
        missing rounds.

        Args:
            values: the fields by name. Each of ``round_arrays`` is a list with one entry per
                episode; a round with a value of NaN or None is marked as missing.

        >>> from interp.tasks.experts import ExpertEpisodes
        >>> played = ExpertEpisodes.of(advice=[[[0, 1], [1, 1], [0, 0]], [[1, 0]]], labels=[[1, None, 0], [1]])
        >>> played, played.lengths.tolist()
        (ExpertEpisodes(2 episodes of 1 to 3 rounds, 3 of which count, 2 experts, custom regime), [3, 1])
        """
        return cls._of_fields(**pad_rounds(cls.round_arrays, values))

    @classmethod
    def _of_fields(cls, **values: Any) -> Self:
        """Make episodes from their fields.

        Args:
            values: the fields by name.

        Raises:
            InputError: an unknown field, or no value for a field without a default.
        """
        names = [data_field.name for data_field in fields(cls)]
        for name in values:
            require_known(f"field of {cls.__name__}", name, names)
        absent = []
        for data_field in fields(cls):
            has_default = (
                data_field.default is not MISSING or data_field.default_factory is not MISSING
            )
            if data_field.name not in values and not has_default:
                absent.append(data_field.name)
        absent_names = ", ".join(absent)
        require(
            not absent,
            f"{cls.__name__}.of needs {', '.join(names)}; {absent_names} is not there",
        )
        return cls(**values)

    def select(self, indices: slice | Sequence[int] | NDArray[Any]) -> Self:
        """Return the episodes at ``indices``, in that order.

        Args:
            indices: a slice, integers (repeats allowed) or a mask over episodes.
        """
        chosen = chosen_indices(indices, len(self))
        selected: dict[str, Any] = {}
        for data_field in fields(self):
            value = getattr(self, data_field.name)
            if isinstance(value, np.ndarray):
                selected[data_field.name] = value[chosen]
            elif hasattr(value, "select"):
                selected[data_field.name] = value.select(chosen)
        return replace(self, **selected)

    def first(self, n_rounds: int) -> Self:
        """Return the first ``n_rounds`` rounds that took place in each episode. Episodes with fewer
        such rounds are padded with missing rounds.

        >>> from interp.tasks.experts import ExpertEpisodes
        >>> ExpertEpisodes.of(advice=[[[0], [1], [0]], [[1]]], labels=[[0, None, 1], [1]]).first(2).labels.tolist()
        [[0, 1], [1, 1]]
        """
        n_rounds = integer("n_rounds", n_rounds, 1)
        missing = ~self.counted
        # A stable sort: rounds that took place, in their order, then the missing ones.
        order = np.argsort(missing, axis=1, kind="stable")[:, :n_rounds]
        every_episode = np.arange(len(self))[:, None]
        arrays = {"missing": missing[every_episode, order]}
        for name in self.arrays_by_round:
            arrays[name] = getattr(self, name)[every_episode, order]
        return self._with_rounds(arrays)

    def _with_rounds(self, arrays: Mapping[str, Any]) -> Self:
        """Return a copy of the episodes with other arrays. A subclass with further fields that
        depend on the rounds overrides this method.

        Args:
            arrays: name of a field -> its new array, ``[episode, round, ...]``, which may have
                fewer rounds.
        """
        return replace(self, **arrays)

    def __repr__(self) -> str:
        """Return a text with the numbers of episodes, rounds and participants, and with sizes, regime
        and seed as far as these episodes have them.
        """
        shortest, n_rounds = self.lengths.min(), self.counted.shape[1]
        rounds = n_rounds if shortest == n_rounds else f"{shortest} to {n_rounds}"
        parts = [f"{len(self)} episodes of {rounds} rounds"]
        if self.missing is not None:
            parts.append(f"{self.counted.sum():,} of which count")
        if self.participants is not None:
            parts.append(f"{len(np.unique(self.participants))} participants")
        for name in ("n_experts", "n_states", "n_actions", "n_arms", "n_nodes", "n_edges"):
            size = getattr(self, name, None)
            if size is not None:
                parts.append(f"{size} {name[2:]}")  # without "n_"
        regime = getattr(self, "regime", None)
        if regime is not None:
            parts.append(f"{regime} regime")
        seed = getattr(self, "seed", None)
        if seed is not None:
            parts.append(f"seed {seed}")
        return f"{type(self).__name__}({', '.join(parts)})"


def pad_rounds(names: Sequence[str], values: Mapping[str, Any]) -> dict[str, Any]:
    """Pad lists of unequal length to one number of rounds, and mark the missing rounds.

    A round is missing after the end of its episode, where a value is NaN or None, and where the
    mask ``values["missing"]`` is True.

    Args:
        names: names of the fields to pad.
        values: all fields by name. Those in ``names``, and ``missing`` if present, are lists with
            one list of rounds for each episode.

    Returns:
        A copy of ``values`` in which the fields to pad are arrays ``[episode, round, ...]``, and
        ``missing`` is Bool[episode, round].

    >>> pad_rounds(["labels"], {"labels": [[1, 0], [1]]})["missing"].tolist()
    [[False, False], [False, True]]
    """
    absent = [name for name in names if name not in values]
    require(
        not absent,
        f"give {', '.join(names)}, a list of episodes each; {', '.join(absent)} is not there",
    )
    rows = {name: _list_episodes(name, values[name]) for name in names}
    mask_of_user = values.get("missing")
    if mask_of_user is not None:
        rows["missing"] = _list_episodes("missing", mask_of_user)
    first = names[0]
    lengths = [len(episode) for episode in rows[first]]
    for name, episodes in rows.items():
        require(
            len(episodes) == len(lengths),
            f"{name} has {len(episodes)} episodes but {first} has {len(lengths)}; the axes are [episode, round, ...]",
        )
        for index, (episode, length) in enumerate(zip(episodes, lengths, strict=True)):
            require(
                len(episode) == length,
                f"{name} has {len(episode)} rounds in episode {index} but {first} has {length}; "
                "give one for each round",
            )
    n_rounds = max(lengths, default=0)
    missing = np.arange(n_rounds) >= np.array(lengths, int)[:, None]
    arrays = {name: _pad(name, episodes, n_rounds) for name, episodes in rows.items()}
    mask = arrays.pop("missing", None)
    if mask is not None:
        are_truth_values = np.isin(mask, (0, 1)) | np.isnan(mask)
        require(are_truth_values.all(), "missing holds truth values, True or False a round")
        missing |= mask == 1  # NaN after an episode's end, where it is missing already
    for array in arrays.values():
        missing |= np.isnan(array).any(axis=tuple(range(2, array.ndim)))
    # Missing rounds get the values of their episode's first round that took place.
    first_counted = missing.argmin(1)[:, None]
    source_round = np.where(missing, first_counted, np.arange(n_rounds))
    every_episode = np.arange(len(lengths))[:, None]
    filled = {
        name: np.nan_to_num(array[every_episode, source_round]) for name, array in arrays.items()
    }
    return {**values, **filled, "missing": missing}


def _list_episodes(name: str, values: Any) -> list[NDArray[Any]]:
    """Check that ``values`` are a list with one entry per episode, and return the entries as arrays
    ``[round, ...]``.

    Args:
        name: name of the field in the error message.
        values: for each episode, a list of rounds.
    """
    is_list = isinstance(values, Sequence | np.ndarray) and not isinstance(values, str)
    require(
        is_list, f"{name} must be a list with an entry for each episode, got {format_value(values)}"
    )
    episodes = [array_of(name, episode) for episode in values]
    for episode in episodes:
        require(
            episode.ndim > 0,
            f"{name} must be a list of rounds for each episode, got {format_value(values)}",
        )
    return episodes


def _pad(name: str, episodes: Sequence[NDArray[Any]], n_rounds: int) -> NDArray[np.float64]:
    """Stack arrays of unequal length to ``[episode, round, ...]``, with NaN after each episode's
    end.

    Args:
        name: name of the arrays in the error message.
        episodes: an array ``[round, ...]`` for each episode.
        n_rounds: number of rounds of the longest episode.
    """
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
    """Return the non-negative index of the round to corrupt; refuse a round out of range.

    Args:
        episodes: the episodes.
        round: an index; a negative one counts from the end.
        history: True if the corruption changes the rounds before this one, so that round 0 is
            refused.

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
def shift_by_one_episode(values: NDArray[Any], t: int) -> NDArray[Any]:
    """Return a copy of ``values`` in which each episode has the next episode's entries in the
    rounds before ``t``.

    The last episode gets the entries of the first.

    Args:
        values: array ``[episode, round, ...]`` of at least 2 episodes.
        t: index of the first round that is not exchanged.

    >>> shift_by_one_episode(np.array([[1, 2, 3], [7, 8, 9]]), 2)
    array([[7, 8, 3],
           [1, 2, 9]])
    """
    values = array_of("values", values)
    require(values.ndim >= 2, f"values are [episode, round, ...], got shape {values.shape}")
    require(len(values) >= 2, f"swapping histories needs at least 2 episodes, got {len(values)}")
    of_next_episode = np.roll(values, -1, axis=0)
    return np.concatenate([of_next_episode[:, :t], values[:, t:]], axis=1)


@checked
def exchange_history(
    episodes: Any,
    round: int,
    names: Sequence[str] = (),
    get_array: Callable[[Any, str], NDArray[Any]] = getattr,
    make_copy: Callable[..., Any] = replace,
) -> tuple[Any, Any]:
    """Make a pair (clean, corrupted): the episodes, and a copy in which each episode has the next
    episode's rounds before ``round``.

    Args:
        episodes: two or more episodes.
        round: index of the first round that is not exchanged.
        names: names of the arrays to exchange; empty for all ``[episode, round, ...]`` arrays. The
            mask of missing rounds is always exchanged.
        get_array: function ``(episodes, name)`` -> the array ``[episode, round, ...]``. By default, the
            array is the attribute called ``name``.
        make_copy: function ``(episodes, **arrays)`` that returns new episodes with the changed arrays;
            by default ``dataclasses.replace``.
    """
    check_type("episodes", episodes, Episodes)
    # Refuses a round out of range, and counts a negative one from the end.
    t = corrupted_round(episodes, round, history=True)
    # A name that is no attribute of the episodes raises AttributeError, which becomes this message.
    with convert_errors("names are of arrays of the episodes: {error}", of=AttributeError):
        arrays = {
            name: shift_by_one_episode(get_array(episodes, name), t)
            for name in names or episodes.arrays_by_round
        }
    arrays["missing"] = shift_by_one_episode(~episodes.counted, t)
    return episodes, make_copy(episodes, **arrays)


def corrupt_one_round(
    array: str,
    edit: Callable[[Any, int], NDArray[Any]],
    get_array: Callable[[Any, str], NDArray[Any]] = getattr,
    make_copy: Callable[..., Any] = replace,
) -> Callable[[Any, int], tuple[Any, Any]]:
    """Return a ``build`` function for a :class:`Corruption` that changes one array in one round.

    Args:
        array: name of the array.
        edit: function ``(episodes, round)`` -> the array's new values in that round,
            ``[episode, ...]``.
        get_array: function ``(episodes, name)`` -> the array ``[episode, round, ...]``. By default, the
            array is the attribute called ``name``.
        make_copy: function ``(episodes, **arrays)`` that returns new episodes with the changed arrays;
            by default ``dataclasses.replace``.

    Returns:
        Function ``(episodes, round)`` -> (the episodes, the changed copy).
    """

    def build(episodes: Any, round: int) -> tuple[Any, Any]:
        """Return the pair (clean, corrupted): the episodes unchanged, and a copy with the array
        changed in one round.

        Args:
            episodes: the episodes.
            round: index of the round; a negative one counts from the end.
        """
        t = corrupted_round(episodes, round)  # not negative
        changed = get_array(episodes, array).copy()
        changed[:, t] = edit(episodes, t)
        return episodes, make_copy(episodes, **{array: changed})

    return build


@dataclass(frozen=True)
@checked_fields
class RoundInputs:
    """The inputs of single rounds, for two controls of probes.

    A probe decodes a target, such as a variable of an algorithm, from a model's latents. The
    control without memory decodes the same target from the inputs of the round alone. The control
    task is to decode random labels, which are the same for rounds with equal inputs.

    Attributes:
        features: different encodings of the same inputs, each ``[episode, round, feature]``; the
            control without memory uses the encoding that decodes best.
        kinds: integers that describe the inputs, ``[episode, round, part]``. The control task gives
            two rounds the same label if all their integers are equal.
    """

    features: tuple[NDArray[Any], ...]
    kinds: NDArray[Any]


@dataclass(frozen=True)
@checked_fields
class Steering:
    """Default settings of a steering experiment, which changes the algorithm's memory in a model's
    carried state and measures an outcome's probability.

    Attributes:
        change: function of a shape that returns an array of this shape: the change of the memory at
            dose 1. The shape is that of the memory in one episode and round, such as ``(4,)`` for
            the log-weights of 4 experts.
        doses: multiples of this change to apply.
        outcome: function ``(episodes, round)`` that returns the index of an outcome, one for all
            episodes or one per episode. The experiment measures how the probability of this outcome
            changes.
        what: description of ``change`` for titles, such as "first action's values + 0.2".
        shows: description of ``outcome`` for titles, such as "P(first action)".
    """

    change: Callable[[tuple[int, ...]], NDArray[Any]]
    doses: tuple[float, ...]
    outcome: Callable[[Any, int], Any]
    what: str
    shows: str


@dataclass(frozen=True)
@checked_fields
class Data:
    """Functions that make the episodes of a task and the layout of its rounds.

    Attributes:
        layout: function ``(**sizes)`` -> the :class:`~interp.model.layout.RoundLayout`, which
            defines the tokens of a round.
        sample: function ``(n_episodes, n_rounds, *, regime, seed, **sizes)`` -> episodes. Their
            attribute ``task`` must be the task's key.
        losses: function ``(predictions, episodes, rounds)`` -> the loss of each prediction,
            ``[*batch, episode, round]``. The predictions are ``[*batch, episode, round, ...]`` in
            the layout's form, for the rounds of the episodes that the slice ``rounds`` selects.
        sizes: the sizes that episodes can have, such as the number of experts.
        regimes: function that returns a dictionary: name of a regime (kind of environment) -> its
            description.
        sample_options: function of a model that returns further options for ``sample`` by name,
            such as the learning rate that the model was built with.
        interaction: function ``(worlds, n_rounds, seed, epsilon)`` that returns an environment for
            a model to act in; None if models cannot act. ``worlds`` has one world per episode, such
            as an MDP, and ``epsilon`` is the probability of a random action. The environment's
            method ``step(choices)`` plays one round and returns it as episodes, its attribute
            ``done`` is True after the last round, and ``episodes()`` returns all rounds. If the
            layout has ``draws`` (tokens from which a model reads whether to explore), the option
            ``told=True`` is passed, too. The environment then replaces no choice by a random one.
        read: function ``(path, **columns)`` -> episodes, which reads a table of recorded episodes.
            ``columns`` are names of the table's columns by what they mean, such as
            ``choice="resp"``. None if the task has no such reader.
        rounds: number of rounds after which nothing new can happen; by default, analyses sample at
            most this number. 0 if there is no such limit.
        first_asked: index of the first round in which the prediction is scored. Earlier predictions
            are not trained, so comparisons ignore them.
        halves: two functions like ``sample``, which draw from the two halves of the recorded
            participants (:meth:`Task.for_half`); empty if episodes are generated.
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
        """Check ``rounds``, ``first_asked``, and that no two sizes have one name. Wrap functions that
        a user wrote, so that an error in them becomes an InputError that names the field.
        """
        integer("rounds", self.rounds, 0)
        integer("first_asked", self.first_asked, 0)
        for name in ("layout", "sample", "losses", "sample_options", "interaction", "read"):
            function = getattr(self, name)
            module = getattr(function, "__module__", "")
            # The error then names the field; functions of this package raise clear errors already.
            if function is not None and not module.startswith("interp."):
                wrap = convert_errors(f"this task's record does not keep what it says: {name}")
                set_frozen_fields(self, **{name: wrap(function)})
        size_names = [size.name for size in self.sizes]
        for name in size_names:
            is_unique = size_names.count(name) == 1
            require(is_unique, f"two sizes are called {name!r}; give each a name of its own")


@dataclass(frozen=True)
@checked_fields
class Algorithms:
    """The algorithms that could explain a model of a task.

    Attributes:
        records: function that returns the registered algorithms in order of preference. If several
            algorithms have a variable of the same name, that of the first algorithm is used.
        hypothesis: function of a model that returns the algorithm with which the model is compared;
            when None, that is the first of ``records``.
        families: function that returns the families of algorithms that a comparison fits to a
            model's predictions. When None, every registered algorithm is a family without free
            parameters.
        updates: function that returns the families that a comparison fits to a model's updates: how
            the state that is decoded from the model's latents changes from round to round. When
            None, the families that ``families`` returns are used.
        battery: function ``(n_episodes, n_rounds, *, seed, **sizes)`` that returns test sets on
            which the families predict differently: name of a set -> its episodes. When None, there
            is one set, "default", with episodes of the sampler's default regime.
        own: a further family, which :meth:`Task.with_hypothesis` adds; it is left out if another
            family has its key.
    """

    records: Callable[[], tuple[AlgorithmRecord, ...]] = lambda: ()
    hypothesis: Callable[[Any], Algorithm] | None = None
    families: Callable[[], tuple[Family, ...]] | None = None
    updates: Callable[[], tuple[Family, ...]] | None = None
    battery: Callable[..., Mapping[str, Any]] | None = None
    own: Family | None = None


@dataclass(frozen=True)
@checked_fields
class Analysis:
    """Defaults of a task for probes and interventions: what to look for in a model, and where.

    Attributes:
        round_inputs: function of episodes that returns the inputs of single rounds. A control of
            every probe decodes the probe's target from these inputs instead of the model's latents.
        probed: keys of the variables that ``interp probe`` decodes.
        corruptions: function that returns the corruptions of the task's episodes: ways to make
            pairs of clean and corrupted episodes.
        default_corruption: key of the corruption that ``interp patch`` and edge circuits use.
        aligned: function of a model that returns pairs (variable of the algorithm, site in the
            model). For each pair, a subspace that carries the variable is learned in the
            activations at the site. The last pair is a control: its site cannot carry the variable.
        claims: function of a learned model that returns hypotheses, each "these sites carry this
            variable". Interchange interventions test them: they replace the activations at the
            sites by those of another episode. A hypothesis is a tuple (variable, sites, outcome,
            control), such as ``("log_weights", None, "state", False)``. The last one or two may be
            missing; they are then "prediction" and False.

            - variable: key of the variable of the algorithm.
            - sites: names of the sites; None for the whole carried state. If this has several
              channels (named parts), None also makes one hypothesis for each channel.
            - outcome: what the replacement must change as the other episode's value of the variable
              would change it: the "prediction", or the "state" that the round writes.
            - control: True for sites that cannot carry the variable, so that the replacement should
              change nothing.
        steering: function that returns the default steering; None if there is none.
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
    """How the report of a task differs from the default report.

    Attributes:
        parts: function that returns all parts of the report, in page order; None for the default
            parts.
        looks: key of an algorithm or baseline -> colour and dash of its line in figures, such as
            ``{"oracle": "green short"}`` (the names are those of ``interp.results.palette``).
    """

    parts: Callable[[], Any] | None = None
    looks: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
@checked_fields
class Task:
    """A task: a record of everything that analyses, training and reports need to know about it.

    Attributes:
        key: name in code and on the command line.
        name: name in sentences.
        what: description of the task.
        data: how its episodes are made and encoded.
        algorithms: algorithms that could explain a model of the task.
        analysis: defaults for probes and interventions.
        training: function that returns the :class:`~interp.training.goal.TrainingGoal` of ``interp
            train``; None if the task's models cannot be trained.
        evaluation: function that returns the :class:`~interp.evaluation.EvaluationPlan` of ``interp
            evaluate``; None if there is none.
        report: how the task's report differs from the default report.
        recorded: description of the recorded episodes and the fitted algorithm that this copy of
            the task uses (:func:`interp.tasks.using`), for the settings of results. It only
            describes them; the sampler itself is in ``data``. The keys "episodes", "participants"
            and "rounds" have their numbers, "digest" a SHA-256 of the episodes, and "algorithm" the
            algorithm's name. Empty in a task as registered.
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

    def __repr__(self) -> str:
        return f"Task({self.key!r})"

    # Shortcuts: sizes of the episodes, the function that makes a layout, and the sampler.
    sizes = property(attrgetter("data.sizes"))
    layout = property(attrgetter("data.layout"))
    sample = property(attrgetter("data.sample"))

    @cached_property
    def kind(self) -> Predicted:
        """Kind of prediction: "classes" for class probabilities, "mean" for the mean of a real
        number, or "normal" for its mean and log variance.
        """
        return self.layout(**self.default_sizes).kind

    @property
    def default_sizes(self) -> dict[str, int]:
        """The default value of each size by the size's name, such as ``{"n_experts": 4}``."""
        return {size.name: size.default for size in self.sizes}

    def _refuse_unknown_sizes(self, sizes: Mapping[str, int]) -> None:
        """Raise InputError for the name of a size that the task does not have.

        Args:
            sizes: values of sizes by name.
        """
        for name in sizes:
            require_known(f"size of {self.key!r}", name, self.default_sizes)

    def complete_sizes(self, sizes: Mapping[str, int]) -> dict[str, int]:
        """Return ``sizes`` together with the task's default for every size that is left out.

        Args:
            sizes: values of some of this task's sizes, by name; other names are refused.
        """
        self._refuse_unknown_sizes(sizes)
        return {**self.default_sizes, **sizes}

    def cap_rounds(self, n_rounds: int) -> int:
        """Return ``n_rounds``, or the limit ``data.rounds`` of the task if this limit exists and is
        smaller. Rounds after the limit would bring no new information.
        """
        return min(n_rounds, self.data.rounds) if self.data.rounds else n_rounds

    def sizes_of(self, layout: Any) -> dict[str, int]:
        """Return the sizes of a layout or of episodes, by name, such as ``{"n_experts": 4}``.

        Args:
            layout: a layout, or a batch of episodes, of this task.
        """
        names = [size.name for size in self.sizes]
        missing = [name for name in names if not hasattr(layout, name)]
        missing_names = ", ".join(missing)
        require(
            not missing,
            f"layout must be a layout or episodes of {self.key!r}, which have {missing_names}; got "
            f"{type(layout).__name__}",
        )
        return {name: int(getattr(layout, name)) for name in names}

    def explains(self, model: Machine) -> Algorithm:
        """Return the algorithm with which analyses compare a model. The first of these that exists
        is used:

        1. the algorithm that the model was built to compute (``model.algorithm``);
        2. what the task's function ``algorithms.hypothesis`` returns for the model;
        3. the task's first registered algorithm.

        Args:
            model: the model.
        """
        own_algorithm = getattr(model, "algorithm", None)
        if isinstance(own_algorithm, Algorithm):
            return own_algorithm
        hypothesis = self.algorithms.hypothesis
        if hypothesis is not None:
            return compute_once("explains", model, make=partial(hypothesis, model))
        records = self.algorithms.records()
        require(
            records,
            f"task {self.key!r} registers no algorithm; give its record algorithms=...",
        )
        return compute_once("explains", model, make=records[0].make)

    def sample_for(
        self,
        model: Machine,
        n_episodes: int,
        n_rounds: int,
        seed: int,
        regime: str = "",
        sizes: Mapping[str, int] | None = None,
    ) -> Any:
        """Sample episodes that fit a model: with the model's sizes, such as its number of experts,
        and its learning rate, if it has one.

        Args:
            model: the model.
            n_episodes, n_rounds, seed: number of episodes, of rounds per episode, and seed of the
                sampler.
            regime: name of the regime; "" for the sampler's default.
            sizes: sizes by name that are used in place of the model's.
        """
        sizes = dict(sizes or {})
        self._refuse_unknown_sizes(sizes)
        # On the right of |, values replace those on the left: requested sizes replace the model's.
        options = self.sizes_of(model.layout) | dict(self.data.sample_options(model)) | sizes
        if regime:
            options["regime"] = regime
        return self.sample(n_episodes, n_rounds, seed=seed, **options)

    def of_recorded(self, episodes: BaseEpisodes) -> Task:
        """Return a copy of this task that draws batches from recorded episodes instead of sampling
        new ones.

        How a batch is drawn:

        - Episodes are drawn at random, from as many participants as possible. None is drawn twice.
          An episode without a participant counts as a participant.
        - If fewer episodes are recorded than are asked for, the batch is smaller, with a warning.
        - Missed trials are dropped. All episodes of a batch then have the same number of rounds. It
          is the requested number, or the number that about 90 % of the recorded episodes have if
          that is smaller. Longer episodes are cut, shorter ones are not drawn.

        Analyses that fit something use one half of the participants to fit and the other half to
        score (:meth:`for_half`).

        >>> from interp.tasks import experts
        >>> played = replace(experts.sample(6, 5, 2, seed=0), participants=["ann", "ann", "bob", "bob", "cem", "dia"])
        >>> known, test = experts.TASK.of_recorded(played).sets_for(3, 5, seed=0)["default"]
        >>> len(known) + len(test), sorted({*known.participants.tolist()} & {*test.participants.tolist()})
        (6, [])

        Args:
            episodes: the recorded episodes.
        """
        from interp.core.recorded import RecordedSource  # which needs pandas

        task = getattr(episodes, "task", "another task")
        require(task == self.key, f"these episodes are of {task!r}, not of {self.key!r}")
        source = RecordedSource(episodes, self.sizes_of(episodes))
        data = replace(
            self.data,
            sample=source.sampler(),
            halves=(source.sampler(half=0), source.sampler(half=1)),
            regimes=dict,  # a function that returns no regimes
            rounds=source.n_rounds,
            sample_options=lambda model: {},
        )
        # Without test sets: those are generated, and would be no recorded data.
        algorithms = replace(self.algorithms, battery=None)
        recorded = {**self.recorded, **source.describe()}
        return replace(self, data=data, algorithms=algorithms, recorded=recorded)

    def for_half(self, which: int) -> Task:
        """Return a copy of this task that draws batches from only half of the participants of its
        recorded episodes.

        A task that generates episodes is returned unchanged, since another seed gives it new
        episodes.

        Args:
            which: 0 for the participants to fit on, 1 for those to score on.
        """
        halves = self.data.halves
        if not halves:
            return self
        return replace(self, data=replace(self.data, sample=halves[which]))

    @checked
    def with_hypothesis(self, algorithm: Algorithm) -> Task:
        """Return a copy of this task in which an algorithm, such as one with fitted parameters, is
        the first registered one.

        Models are then compared with this algorithm and probed for its variables. The exception is
        a model that was built to compute some algorithm (``model.algorithm``), which is still
        compared with that one.

        Args:
            algorithm: the algorithm, of this task. In the copy, its name includes its parameters.
                If no family of the task has its key, it becomes a family without free parameters.

        >>> from interp.tasks import bandit
        >>> from interp.tasks.bandit.algorithms import rescorla_wagner
        >>> bandit.TASK.with_hypothesis(rescorla_wagner(rate=0.7)).algorithms.records()[0].name
        'Rescorla-Wagner (rate 0.7, inverse temperature 5)'
        """
        task = algorithm.task
        key = algorithm.key
        require(task == self.key, f"{key!r} is of {task!r}, not of {self.key!r}")
        named = replace(algorithm, name=with_parameters(algorithm))
        first = AlgorithmRecord(
            key=key, name=named.name, short_name=algorithm.name, make=lambda: named
        )
        records = {**self.algorithm_records()}
        records.pop(key, None)  # the same algorithm with other parameters
        algorithms = replace(
            self.algorithms,
            own=Family(key, algorithm.name, first.make, memoryless=not named.state),
            hypothesis=lambda model: named,
            records=lambda: (first, *records.values()),
        )
        recorded = {**self.recorded, "algorithm": named.name}
        return replace(self, algorithms=algorithms, recorded=recorded)

    def algorithm_records(self) -> dict[str, AlgorithmRecord]:
        """Return a mapping from the key of each of the task's algorithms to its
        :class:`AlgorithmRecord`, in order of preference.
        """
        return index_by_key(self.algorithms.records(), f"algorithm of {self.key!r}")

    def algorithm(self, key: str, **parameters: Any) -> Algorithm:
        """Make one of the task's algorithms.

        Args:
            key: key of the algorithm; an unknown one is refused.
            parameters: its parameters by name, such as ``gain=0.5``; defaults where left out.
        """
        records = self.algorithm_records()
        require_known(f"algorithm of {self.key!r}", key, records, limit=20)
        return records[key].make(**parameters)

    def rivals(self) -> dict[str, Family]:
        """Return the families of algorithms that could explain a model's predictions: key -> family
        (algorithms that differ only in their parameters).
        """
        families: dict[str, Family] = {}
        if self.algorithms.families is not None:
            families = self._index_families(self.algorithms.families())
        else:
            records = self.algorithm_records()
            require(
                records,
                f"task {self.key!r} registers no algorithm; give its record algorithms=...",
            )
            for key, record in records.items():
                memoryless = not record.make().state
                families[key] = Family(key, record.name, record.make, memoryless=memoryless)
        # Families that extend none are fitted first, then those that extend one of them. So a family
        # may not extend one that extends another.
        first_fitted = {key for key, family in families.items() if not family.extends}
        for family in families.values():
            if family.extends:
                what = f"family that {family.key!r} extends"
                require_known(what, family.extends, first_fitted, limit=20)
        return families

    def update_families(self) -> dict[str, Family]:
        """Return the families of algorithms that could explain how a model updates its carried
        state: key -> family (algorithms that differ only in their parameters).
        """
        if self.algorithms.updates is None:
            return self.rivals()
        return self._index_families(self.algorithms.updates())

    def _index_families(self, task_families: Sequence[Family]) -> dict[str, Family]:
        """Return families by key, together with the family of the algorithm that was passed to
        :meth:`with_hypothesis`. That family is last; it is left out if a family of the task has its
        key.

        Args:
            task_families: the families of the task.
        """
        families = index_by_key(task_families, f"family of {self.key!r}")
        own = self.algorithms.own
        if own is not None:
            families.setdefault(own.key, own)
        return families

    def sets_for(
        self, n_episodes: int, n_rounds: int, seed: int, n_scored: int | None = None, **sizes: int
    ) -> dict[str, tuple[Any, Any]]:
        """Sample two batches of each of the task's test sets (``algorithms.battery``): one to fit
        on and one to score on. They differ in the seed or, for recorded episodes, in the
        participants.

        Args:
            n_episodes: number of episodes of each batch.
            n_rounds: number of rounds of every episode.
            seed: seed of the samples.
            n_scored: number of episodes to score on, which are then the same for every ``seed``.
                None for ``n_episodes`` episodes that depend on ``seed``.
            sizes: sizes of the episodes by name; the task's defaults where left out.

        Returns:
            A mapping: name of the set -> (episodes to fit on, episodes to score on).
        """
        all_sizes = self.complete_sizes(sizes)

        def sample_half(half: int, n: int, seed: int) -> Mapping[str, Any]:
            """Sample the episodes of every test set, to fit on or to score on: name of the set ->
            its episodes.

            Args:
                half: 0 to fit on, 1 to score on. It matters only for recorded episodes, which are
                    drawn from this half of the participants.
                n: number of episodes.
                seed: seed of the sample.
            """
            if self.algorithms.battery is not None:
                return self.algorithms.battery(n, n_rounds, seed=seed, **all_sizes)
            half_task = self.for_half(half)  # the task itself if episodes are generated
            return {"default": half_task.sample(n, n_rounds, seed=seed, **sizes)}

        # Even seeds to fit and odd ones to score, so that the two differ whatever the seed.
        sets_to_fit = sample_half(half=0, n=n_episodes, seed=2 * seed)
        n_to_score, seed_to_score = n_episodes, 2 * seed + 1
        if n_scored is not None:
            n_to_score, seed_to_score = n_scored, _SCORING_SEED
        sets_to_score = sample_half(half=1, n=n_to_score, seed=seed_to_score)
        return {name: (sets_to_fit[name], sets_to_score[name]) for name in sets_to_fit}

    def corruption(self, key: str) -> Corruption:
        """Return the task's :class:`Corruption` with this key; refuse an unknown key."""
        corruptions = index_by_key(self.analysis.corruptions(), f"corruption of {self.key!r}")
        require_known(f"corruption of {self.key} episodes", key, corruptions, limit=20)
        return corruptions[key]
