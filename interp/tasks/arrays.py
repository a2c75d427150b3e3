"""A task of your own in few lines: something is heard in each round, an outcome is predicted, and told.

    <w> <z> x p? | y w?                  one of several inputs
    <w> <z> x_1 ... x_n p? | y pay w?    a vector, its numbers as payloads; what the outcome paid, where it pays

What is predicted is one of several outcomes, or a number. A sampler of plain arrays is the whole of the data:

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

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Any, ClassVar, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from interp.core.algorithm import Predicted
from interp.core.task import (
    Analysis,
    BaseEpisodes,
    Corruption,
    Data,
    RoundInputs,
    Task,
    episode_array,
    exchange_history,
    freeze,
    length_of,
)
from interp.model.layout import MOST, EncodedRounds, RoundLayout
from interp.support.checks import array_of, checked, integer, shown
from interp.support.errors import require, require_known, theirs

_Array = NDArray[Any]


@dataclass(frozen=True, eq=False, repr=False)
class SeriesEpisodes(BaseEpisodes):
    """What was heard and what came out.

    Attributes:
        inputs: which one of several was heard, ``[episode, round]``, or a vector, ``[episode, round, number]``.
        outcomes: which one came out, or a number, ``[episode, round]``.
        rewards: what it paid, ``[episode, round]``; all 0 where nothing pays.
    """

    round_arrays: ClassVar[tuple[str, ...]] = ("inputs", "outcomes", "rewards")

    task: str
    inputs: _Array
    outcomes: _Array
    rewards: _Array
    regime: str = "own"
    seed: int | None = None

    def __post_init__(self) -> None:
        y, paid = (
            episode_array(name, getattr(self, name), "episode, round")
            for name in self.round_arrays[1:]
        )
        vectors = (heard := array_of("inputs", self.inputs)).ndim == 3
        x = episode_array(
            "inputs", heard, "episode, round" + ", number" * vectors, whole=not vectors
        )
        fits = x.shape[:2] == y.shape == paid.shape and y.size > 0
        require(
            fits,
            f"inputs, outcomes and rewards are [episode, round], got {x.shape}, {y.shape} and {paid.shape}",
        )
        freeze(self, inputs=x, outcomes=y if (y % 1).any() else y.astype(np.int64), rewards=paid)
        super().__post_init__()

    n_rounds = length_of("outcomes", 1, "Rounds of the longest episode.")


@dataclass(frozen=True)
class _Round(RoundLayout):
    """A round that hears one of ``heard`` (or so many numbers as it has, where ``numbers``), then what came out."""

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
        return (
            "<w>",
            "<z>",
            *(self.heard if self.numbers else ("x",)),
            "p?",
            "y",
            *["pay"] * self.pays,
            "w?",
        )

    @cached_property
    def vocabulary(self) -> tuple[str, ...]:
        heard, told = (f"in {name}" for name in self.heard), (f"out {name}" for name in self.names)
        return ("<w>", "p?", "w?", "pay", "y", *heard, *told)

    @property
    def outcomes(self) -> tuple[str, ...]:
        return self.names or super().outcomes

    def fit(self, episodes: Any) -> _Round:
        shape = (len(self.heard),) if self.numbers else ()
        fits = (
            getattr(episodes, "task", None) == self.task and np.shape(episodes.inputs)[2:] == shape
        )
        heard = f"{len(self.heard)} numbers" if self.numbers else "one of several"
        require(
            fits,
            f"a round of {self.task!r} reads the episodes of its own task, whose inputs are {heard} a round",
        )
        for name, named in (
            ("inputs", () if self.numbers else self.heard),
            ("outcomes", self.names),
        ):
            if named:
                episode_array(
                    name, getattr(episodes, name), "episode, round", 0, len(named) - 1, whole=True
                )
        return self

    def encode(self, episodes: Any) -> EncodedRounds:
        self.fit(episodes)
        ids, at = self.token_ids, self.position
        tokens = self.blank(*episodes.outcomes.shape)
        values = torch.zeros(tokens.shape, dtype=torch.float64)
        first, inputs, outcomes = (
            ids[f"in {self.heard[0]}"],
            episodes.inputs,
            torch.from_numpy(episodes.outcomes),
        )
        here = slice(2, at("p?"))
        if self.numbers:
            tokens[..., here], values[..., here] = (
                first + torch.arange(len(self.heard)),
                torch.from_numpy(inputs),
            )
        else:
            tokens[..., here] = first + torch.from_numpy(inputs)[..., None]
        if self.names:
            tokens[..., at("y")] = ids[f"out {self.names[0]}"] + outcomes
        else:
            values[..., at("y")] = outcomes
        if self.pays:
            values[..., at("pay")] = torch.from_numpy(episodes.rewards)
        return EncodedRounds(tokens, values, torch.zeros(tokens.shape[:2], dtype=torch.long))


def name_recordings(episodes: SeriesEpisodes) -> list[str] | None:
    """Name each episode by what it holds, so that a recording that was drawn twice is one group; None where all differ.

    Groups of one name share a fold, count once in an interval, and are never fitted and scored apart.
    """
    names = []
    for arrays in zip(episodes.inputs, episodes.outcomes, episodes.rewards, strict=True):
        content = b"".join(array.tobytes() for array in arrays)
        names.append(hashlib.sha256(content).hexdigest()[:12])
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
    """A task whose data are plain arrays; ``interp.tasks.register`` makes commands and reports know it.

    Args:
        sample: ``(n_episodes, n_rounds, seed)`` to inputs and outcomes, and rewards where it ``pays``, each ``[episode,
            round]``; inputs that are vectors have one more axis. Of recorded data it draws rows: those that it draws
            several times are one participant, so that no fold, interval or count takes them for several.
        inputs: the names of the inputs, one of which is heard in each round; or how many numbers are.
        outcomes: the names of the outcomes, one of which comes out; or what is predicted of a number.
        what: a sentence for pages.
    """
    numbers = isinstance(inputs, int)
    require(
        not isinstance(inputs, int) or inputs <= MOST,
        f"inputs of {key!r} are {MOST} numbers at most, got {inputs}",
    )
    heard = tuple(f"x_{i + 1}" for i in range(inputs)) if isinstance(inputs, int) else tuple(inputs)
    kind: Any = outcomes if isinstance(outcomes, str) else "classes"
    names = () if isinstance(outcomes, str) else tuple(outcomes)
    for listed, of, least in ((heard, "inputs", 1), (names, "outcomes", 2 * (kind == "classes"))):
        enough = len({*listed} - {""}) == len(listed) >= least
        require(
            enough,
            f"{of} of {key!r} must be {least} or more different names, or a number, got {listed}",
        )
    layout = partial(_Round, key, heard=heard, numbers=numbers, names=names, pays=pays, kind=kind)

    @checked
    def draw(
        n_episodes: int, n_rounds: int, *, regime: str = "own", seed: int = 0
    ) -> SeriesEpisodes:
        for name, size in (("n_episodes", n_episodes), ("n_rounds", n_rounds)):
            integer(name, size, 1)
        require_known("regime", regime, ["own"])
        given: Any = theirs(f"the sampler of {key!r}")(sample)(n_episodes, n_rounds, seed)
        drawn, said = (
            list(given) if isinstance(given, tuple | list) else [],
            f"the sampler of {key!r} must give",
        )
        require(
            len(drawn) == 2 + pays, f"{said} {2 + pays} arrays, got {len(drawn) or shown(given)}"
        )
        paid = drawn[2] if pays else np.zeros((n_episodes, n_rounds))
        episodes = SeriesEpisodes(key, drawn[0], drawn[1], paid, regime, seed)
        require(
            len(episodes) == n_episodes and episodes.n_rounds == n_rounds,
            f"{said} arrays {n_episodes, n_rounds}",
        )
        layout().fit(episodes)
        return replace(episodes, participants=name_recordings(episodes))

    def losses(
        predictions: Tensor, episodes: SeriesEpisodes, rounds: slice = slice(None)
    ) -> Tensor:
        loss: Tensor = layout().loss(predictions, torch.from_numpy(episodes.outcomes[:, rounds]))
        return loss

    def round_inputs(episodes: SeriesEpisodes) -> RoundInputs:
        x, y = episodes.inputs, episodes.outcomes
        features = [
            x if numbers else np.eye(len(heard))[x],
            np.eye(len(names))[y] if names else y[..., None],
        ]
        kinds = [y if names else y > np.median(y), *([] if numbers else [x])]
        return RoundInputs(
            (np.concatenate([*features, episodes.rewards[..., None]], -1),), np.stack(kinds, -1)
        )

    history = Corruption(
        "exchange-history", "take another history", 0, exchange_history, changes_history=True
    )
    analysis = Analysis(round_inputs, (), lambda: (history,), history.key)
    return Task(key, key, what, Data(layout, draw, losses), analysis=analysis)
