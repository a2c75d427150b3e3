"""Recorded episodes as a source of batches, in place of a task's sampler."""

from __future__ import annotations

import hashlib
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields, replace
from functools import partial
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from interp.core.algorithm import counted_rounds
from interp.stats.intervals import number_participants
from interp.support.errors import require

_MAX_SHORT_SHARE = 0.1
"""Largest share of episodes that are left out because they are shorter than a batch."""


def digest_episodes(arrays: Sequence[Any]) -> list[str]:
    """Return a hash of each episode's contents, 12 hexadecimal digits. Episodes with equal contents
    have equal hashes.

    Args:
        arrays: the arrays of the episodes, each with the episode as the first axis.
    """
    digests = []
    for parts in zip(*arrays, strict=True):
        content = hashlib.sha256()
        for part in parts:
            content.update(np.ascontiguousarray(part).tobytes())
        digests.append(content.hexdigest()[:12])
    return digests


class RecordedSource:
    """A source of batches of recorded episodes, which replaces a task's sampler
    (:meth:`interp.core.task.Task.of_recorded`).

    Attributes:
        n_rounds: maximum number of rounds of the episodes of a batch. It is chosen so that about
            nine in ten of the recorded episodes have at least this number.

    Args:
        episodes: the recorded episodes.
        sizes: their sizes by name, such as ``{"n_arms": 2}``.
    """

    def __init__(self, episodes: Any, sizes: Mapping[str, int]) -> None:
        """Give each participant an integer, and count the rounds that took place in each episode.
        Episodes without participants count as one participant each.
        """
        self.kind = "participants"
        if episodes.participants is None:
            self.kind = "episodes"
            episodes = replace(episodes, participants=np.arange(len(episodes)))
        self.episodes = episodes
        self.sizes = sizes
        # The number of each episode's participant, [episode].
        self.participant_of = number_participants(episodes.participants, len(episodes))
        # Numbers of the participants, in the random order that defines the halves.
        self.participants = np.random.default_rng(0).permutation(self.participant_of.max() + 1)
        require(
            len(self.participants) >= 2,
            f"one half of the {self.kind} is fitted and the other scored, and there is {len(self.participants)}",
        )
        self.counts = counted_rounds(episodes).sum(1)  # [episode]
        # About a tenth of the episodes have fewer rounds than this.
        self.n_rounds = int(np.quantile(self.counts, _MAX_SHORT_SHARE, method="higher"))
        self._warnings: set[str] = set()

    def sampler(self, half: int | None = None) -> Callable[..., Any]:
        """Return a sampler that draws episodes of one half of the participants, or of all.

        The halves are random but always the same, and have no participant in common. An analysis
        can fit on one half and score on the other.

        Args:
            half: 0 for the first half, 1 for the second, None for all participants.

        Returns:
            A function ``(n_episodes, n_rounds, *, regime, seed, **sizes)`` -> episodes, like the
            sampler of a task.
        """
        middle = (len(self.participants) + 1) // 2
        drawn_from = self.participants
        if half is not None:
            drawn_from = self.participants[middle:] if half else self.participants[:middle]
        return partial(self._sample, drawn_from)

    def describe(self) -> dict[str, Any]:
        """Return a description of the recorded data, which results store in their settings.

        It is a dictionary: "episodes", "participants" and "rounds" -> their numbers, and "digest"
        -> a SHA-256 of the data.
        """
        sha = hashlib.sha256()
        episodes = self.episodes
        for field in fields(episodes):
            value = getattr(episodes, field.name)
            if isinstance(value, np.ndarray):
                sha.update(np.ascontiguousarray(value).tobytes())
        return {
            "episodes": len(episodes),
            "participants": len(self.participants),
            "rounds": int(self.counts.sum()),
            "digest": sha.hexdigest(),
        }

    def _sample(
        self,
        drawn_from: NDArray[Any],
        n_episodes: int,
        n_rounds: int,
        *,
        regime: str = "",
        seed: int = 0,
        **sizes: Any,
    ) -> Any:
        """Draw a batch of recorded episodes, without replacement.

        The batch has as many different participants as possible. It has fewer than ``n_episodes``
        episodes if too few were recorded.

        Args:
            drawn_from: integers that stand for the participants to draw from: those of one half, or
                all.
            n_episodes: number of episodes.
            n_rounds: number of rounds of each episode; :attr:`n_rounds` if that is less.
            regime: empty, or the regime of the recorded episodes.
            seed: seed of the choice of episodes.
            sizes: sizes such as ``n_arms``, which must equal those of the recorded episodes.
        """
        self._require_sizes(sizes)
        require(
            regime in ("", getattr(self.episodes, "regime", "")),
            f"recorded episodes are of no regime, and {regime!r} was asked for; leave it out",
        )
        n_rounds = min(n_rounds, self.n_rounds)
        is_usable = np.isin(self.participant_of, drawn_from) & (self.counts >= n_rounds)
        rows = np.random.default_rng(seed).permutation(np.flatnonzero(is_usable))
        # First one episode of each participant, then the second ones, ...: cumcount numbers the
        # episodes of a participant 0, 1, ... in the drawn order.
        players = pd.Series(self.participant_of[rows])
        turn = players.groupby(players).cumcount().to_numpy()
        rows = rows[turn.argsort(kind="stable")]
        if len(rows) < n_episodes:
            few = f"there are only {len(self.participants)} {self.kind}"
            if len(drawn_from) < len(self.participants):
                few += f", {len(drawn_from)} in this half"
            if few not in self._warnings:
                self._warnings.add(few)
                warnings.warn(
                    f"{few}: {len(rows)} episodes, not {n_episodes}", UserWarning, stacklevel=2
                )
        return self.episodes.select(rows[:n_episodes]).first(n_rounds)

    def _require_sizes(self, sizes: Mapping[str, Any]) -> None:
        """Raise InputError if a requested size, such as ``n_arms``, is not that of the recorded
        episodes.
        """
        recorded = self.sizes
        wrong = {name: size for name, size in sizes.items() if recorded.get(name, size) != size}
        require(not wrong, f"the recorded episodes have {recorded}, and {wrong} was asked for")
