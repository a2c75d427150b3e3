"""Define a new task in a few lines. In each round an input is shown, an outcome is predicted, and
then the outcome is revealed.

The tokens of a round are::

    <w> <z> x p? | y w?                    if the input is one of several
    <w> <z> x_1 ... x_n p? | y w?          if the input is a vector of n numbers
    <w> <z> x p? | y pay w?                if the outcome has a reward, `pay`

Here ``<w>`` is a fixed token to which heads can attend by default (an attention sink), ``<z>`` is
the latent, and ``x`` is the input. At the position ``p?`` the outcome is predicted, ``y`` is the
outcome, and at ``w?`` the latent's update is read. What follows the bar is read after the
prediction.

The prediction is one of several outcomes, or a number. All data come from a function that returns
plain arrays:

    >>> import numpy as np
    >>> def draw(n_episodes, n_rounds, seed):
    ...     sounds = np.random.default_rng(seed).normal(size=(n_episodes, n_rounds, 3))
    ...     return sounds, (sounds.sum(-1).cumsum(1) > 0).astype(int)
    >>> task = series("drift", draw, inputs=3, outcomes=("down", "up"))
    >>> task.layout().labels
    ('<w>', '<z>', 'x_1', 'x_2', 'x_3', 'p?', 'y', 'w?')
    >>> task.sample(2, 5, seed=0)
    SeriesEpisodes(2 episodes of 5 rounds, own regime, seed 0)
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Any, ClassVar, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from interp.core.algorithm import Predicted
from interp.core.recorded import digest_episodes
from interp.core.task import (
    Analysis,
    BaseEpisodes,
    Corruption,
    Data,
    RoundInputs,
    Task,
    episode_array,
    exchange_history,
    length_of,
    set_frozen_fields,
)
from interp.model.layout import MOST, EncodedRounds, RoundLayout
from interp.support.checks import array_of, checked, format_value, integer
from interp.support.errors import convert_errors, require, require_known
from interp.tasks.sized_round import number_names

_Array = NDArray[Any]


@dataclass(frozen=True, eq=False, repr=False)
class SeriesEpisodes(BaseEpisodes):
    """A batch of episodes of a task that :func:`series` made: inputs, outcomes and rewards.

    Attributes:
        task: key of the task.
        inputs: index of the input in each round, ``[episode, round]``, or a vector in each round,
            ``[episode, round, number]``.
        outcomes: index of the outcome in each round, or a number, ``[episode, round]``.
        rewards: reward of each round's outcome, ``[episode, round]``; all 0 if the task has no
            rewards.
        regime: name of the regime, always "own" for sampled episodes.
        seed: seed of the sampler; None for episodes that were not sampled.
    """

    round_arrays: ClassVar[tuple[str, ...]] = ("inputs", "outcomes", "rewards")

    task: str
    inputs: _Array
    outcomes: _Array
    rewards: _Array
    regime: str = "own"
    seed: int | None = None

    def __post_init__(self) -> None:
        """Check the fields, and store inputs, outcomes and rewards as arrays."""
        are_vectors = array_of("inputs", self.inputs).ndim == 3
        axes = "episode, round, number" if are_vectors else "episode, round"
        inputs = episode_array("inputs", self.inputs, axes, whole=not are_vectors)
        outcomes = episode_array("outcomes", self.outcomes, "episode, round")
        rewards = episode_array("rewards", self.rewards, "episode, round")
        shapes_agree = inputs.shape[:2] == outcomes.shape == rewards.shape
        require(
            shapes_agree and outcomes.size > 0,
            f"inputs, outcomes and rewards are [episode, round], got {inputs.shape}, {outcomes.shape} and "
            f"{rewards.shape}",
        )
        if not (outcomes % 1).any():  # whole numbers, which may be indices of outcomes
            outcomes = outcomes.astype(np.int64)
        set_frozen_fields(self, inputs=inputs, outcomes=outcomes, rewards=rewards)
        super().__post_init__()

    n_rounds = length_of("outcomes", 1, "Rounds of the longest episode.")


@dataclass(frozen=True)
class _Round(RoundLayout):
    """Token layout of the rounds of a task that :func:`series` made: the input, then the outcome.

    Attributes:
        heard: names of the possible inputs; if the input is a vector, names of its elements.
        numbers: True if the input is a vector.
        names: names of the outcomes; empty if the outcome is a number.
        pays: True if the round also contains a reward.
    """

    task: str = ""  # type: ignore[misc]  # of every layout of a class elsewhere
    heard: tuple[str, ...] = ()
    numbers: bool = False
    names: tuple[str, ...] = ()
    pays: bool = False
    kind: Predicted = "classes"  # type: ignore[misc]
    payload: str | None = "numbers"  # type: ignore[misc]
    n_latents = 1

    @property
    def labels(self) -> tuple[str, ...]:
        inputs = self.heard if self.numbers else ("x",)
        truth = ("y", "pay", "w?") if self.pays else ("y", "w?")
        return ("<w>", "<z>", *inputs, "p?", *truth)

    @cached_property
    def vocabulary(self) -> tuple[str, ...]:
        inputs = [f"in {name}" for name in self.heard]
        outcomes = [f"out {name}" for name in self.names]
        return ("<w>", "p?", "w?", "pay", "y", *inputs, *outcomes)

    @property
    def outcomes(self) -> tuple[str, ...]:
        return self.names or super().outcomes

    def fit(self, episodes: Any) -> _Round:
        """Refuse episodes of another task, and inputs or outcomes for which this layout has no
        names; return the layout unchanged.
        """
        input_names, are_vectors = self.heard, self.numbers
        n_inputs = len(input_names)
        input_shape = (n_inputs,) if are_vectors else ()  # in one round
        is_own = getattr(episodes, "task", None) == self.task
        expected_inputs = f"{n_inputs} numbers" if are_vectors else "one of several"
        require(
            is_own and np.shape(episodes.inputs)[2:] == input_shape,
            f"a round of {self.task!r} reads the episodes of its own task, whose inputs are {expected_inputs} a round",
        )
        if not are_vectors:
            _require_classes("inputs", episodes.inputs, input_names)
        if self.names:  # without names, an outcome may be any number
            _require_classes("outcomes", episodes.outcomes, self.names)
        return self

    def encode(self, episodes: Any) -> EncodedRounds:
        """Return the tokens and numbers that a model reads in each round of the episodes. A position
        with a number has a token that says what the number is.
        """
        self.fit(episodes)
        outcomes = torch.from_numpy(episodes.outcomes)
        inputs = torch.from_numpy(episodes.inputs)
        place, token_ids = self.position, self.token_ids
        tokens = self.make_blank_tokens(*outcomes.shape)  # [episode, round, position]
        values = torch.zeros(tokens.shape, dtype=torch.float64)
        first_input = token_ids[f"in {self.heard[0]}"]  # tokens of the other inputs follow it
        if self.numbers:  # the input is a vector
            x_positions = slice(2, place("p?"))  # after <w> and <z>
            tokens[..., x_positions] = first_input + torch.arange(len(self.heard))
            values[..., x_positions] = inputs
        else:
            tokens[..., place("x")] = first_input + inputs
        if self.names:  # the outcome is one of several
            tokens[..., place("y")] = token_ids[f"out {self.names[0]}"] + outcomes
        else:
            values[..., place("y")] = outcomes
        if self.pays:
            values[..., place("pay")] = torch.from_numpy(episodes.rewards)
        # The index of the latent that each round updates: there is only one latent, 0.
        updated_latents = torch.zeros_like(tokens[..., 0])
        return EncodedRounds(tokens, values, slots=updated_latents)


def _require_classes(what: str, values: Any, names: Sequence[str]) -> None:
    """Raise InputError if an array ``[episode, round]`` has numbers that are not indices of
    ``names``.

    Args:
        what: name of the array in the error message.
        values: the array.
        names: names of the classes.
    """
    episode_array(what, values, "episode, round", low=0, high=len(names) - 1, whole=True)


def _require_names(what: str, names: Sequence[str], n_least: int) -> None:
    """Raise InputError if names are empty, equal to each other, or too few.

    Args:
        what: description of the names for the error message.
        names: the names.
        n_least: the smallest number of names.
    """
    n_different = len({*names} - {""})
    require(
        n_different == len(names) >= n_least,
        f"{what} must be {n_least} or more different names, or a number, got {names}",
    )


def name_recordings(episodes: SeriesEpisodes) -> list[str] | None:
    """Return a name for each episode; episodes with equal contents have the same name.

    A sampler of recorded data may return the same recording several times. The names serve as
    participants. Copies of a recording are then in the same cross-validation fold, and count as one
    independent unit.

    Returns:
        The names, one per episode; None if no two episodes are equal.
    """
    names = digest_episodes([episodes.inputs, episodes.outcomes, episodes.rewards])
    return names if len(set(names)) < len(names) else None


@checked
def series(
    key: str,
    sample: Callable[..., Sequence[Any]],
    *,
    inputs: int | Sequence[str],
    outcomes: Sequence[str] | Literal["mean", "normal"],
    pays: bool = False,
    what: str = "predict what comes out",
) -> Task:
    """Make a task from a function that returns plain arrays.

    Pass the task to ``interp.tasks.register`` to use it in commands and reports. To train models on
    it, first add a training goal with ``dataclasses.replace(task, training=...)``, as in
    docs/tutorials/series.md.

    Args:
        key: key of the task.
        sample: function ``(n_episodes, n_rounds, seed)`` -> tuple of arrays: inputs, outcomes and,
            if ``pays``, rewards. Each is ``[episode, round]``; inputs that are vectors are
            ``[episode, round, number]``. The function may return recorded episodes. It may repeat
            an episode; all copies of it count as one participant.
        inputs: names of the possible inputs, of which one occurs in each round; or, if the input is
            a vector, its length.
        outcomes: names of the possible outcomes, of which one occurs in each round. If the outcome
            is a number: "mean" to predict its mean, or "normal" to predict its mean and log
            variance.
        pays: True if each outcome comes with a reward, which the model reads after it has
            predicted.
        what: what the model has to do in the task, in a few words, for reports.
    """
    is_vector = isinstance(inputs, int)
    if isinstance(inputs, int):
        require(inputs <= MOST, f"inputs of {key!r} are {MOST} numbers at most, got {inputs}")
        input_names = number_names("x", inputs)
    else:
        input_names = tuple(inputs)
    _require_names(f"inputs of {key!r}", input_names, n_least=1)
    kind: Any = "classes"
    outcome_names: tuple[str, ...] = ()
    if isinstance(outcomes, str):
        kind = outcomes
    else:
        outcome_names = tuple(outcomes)
        _require_names(f"outcomes of {key!r}", outcome_names, n_least=2)
    make_layout = partial(
        _Round, key, heard=input_names, numbers=is_vector, names=outcome_names, pays=pays, kind=kind
    )

    @checked
    def draw(
        n_episodes: int, n_rounds: int, *, regime: str = "own", seed: int = 0
    ) -> SeriesEpisodes:
        """Call the user's function, check its arrays, and return them as episodes of the task.

        Args:
            n_episodes: number of episodes.
            n_rounds: number of rounds per episode.
            regime: "own", the only regime of such a task.
            seed: seed that is passed to the user's function.
        """
        integer("n_episodes", n_episodes, 1)
        integer("n_rounds", n_rounds, 1)
        require_known("regime", regime, ["own"])
        sampler = f"the sampler of {key!r}"
        call_sampler = convert_errors(sampler)(sample)  # errors then name the sampler
        drawn: Any = call_sampler(n_episodes, n_rounds, seed)
        is_list = isinstance(drawn, tuple | list)
        n_arrays = 3 if pays else 2  # inputs, outcomes and, if the task pays, rewards
        # The number of arrays or, for the error message, what was returned in place of arrays.
        received = len(drawn) if is_list and len(drawn) else format_value(drawn)
        require(received == n_arrays, f"{sampler} must give {n_arrays} arrays, got {received}")
        rewards = drawn[2] if pays else np.zeros((n_episodes, n_rounds))
        drawn_inputs, drawn_outcomes = drawn[0], drawn[1]
        episodes = SeriesEpisodes(
            key,
            inputs=drawn_inputs,
            outcomes=drawn_outcomes,
            rewards=rewards,
            regime=regime,
            seed=seed,
        )
        require(
            episodes.outcomes.shape == (n_episodes, n_rounds),
            f"{sampler} must give arrays {n_episodes, n_rounds}",
        )
        make_layout().fit(episodes)  # raises an error if an input or outcome is not a declared one
        # Copies of one recording get the same name as their participant, and count as one.
        return replace(episodes, participants=name_recordings(episodes))

    def losses(
        predictions: Tensor, episodes: SeriesEpisodes, rounds: slice = slice(None)
    ) -> Tensor:
        """Return the loss of predictions in some rounds, ``[*batch, episode, round]``. For classes
        it is the probability of a mistake, for a mean the squared error, for a normal distribution
        the negative log density in nats.

        Args:
            predictions: raw predictions of the model in these rounds only, ``[*batch, episode,
                round, ...]``.
            episodes: the episodes, with the outcomes of all their rounds.
            rounds: slice of the episodes' rounds to which the predictions belong.
        """
        outcomes = torch.from_numpy(episodes.outcomes[:, rounds])
        loss: Tensor = make_layout().loss(predictions, outcomes)
        return loss

    def round_inputs(episodes: SeriesEpisodes) -> RoundInputs:
        """Return what a model reads in each round of the episodes, for two controls of a probe. One
        control decodes the probe's target from ``features``: the input, outcome and reward of the
        round. The other replaces the target by random values that are equal in rounds with equal
        ``kinds``.
        """
        x, y = episodes.inputs, episodes.outcomes
        inputs = x if is_vector else np.eye(len(input_names))[x]
        truth = np.eye(len(outcome_names))[y] if outcome_names else y[..., None]
        features = np.concatenate([inputs, truth, episodes.rewards[..., None]], -1)
        kinds = [y if outcome_names else y > np.median(y)]  # a number is high or low
        if not is_vector:
            kinds.append(x)
        return RoundInputs(features=(features,), kinds=np.stack(kinds, -1))

    history = Corruption(
        "exchange-history",
        "take another history",
        delay=0,
        build=exchange_history,
        changes_history=True,
    )
    analysis = Analysis(
        round_inputs, corruptions=lambda: (history,), default_corruption=history.key
    )
    data = Data(layout=make_layout, sample=draw, losses=losses)
    return Task(key, name=key, what=what, data=data, analysis=analysis)
