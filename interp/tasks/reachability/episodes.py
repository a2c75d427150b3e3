"""Episodes of reachability: a directed graph, a root, and two candidate nodes, one of them
reachable.

Every round of an episode shows the same graph; only the latent changes. Round t (counted from 0)
reads the latent that t earlier rounds ("thoughts") have updated. An episode of T thoughts therefore
has T + 1 rounds, and a candidate that is d steps from the root can be recognised from round d on.

Sizes are upper limits: a graph uses some of the ``n_nodes`` names, and its list of edges is padded
to ``n_edges`` by repeating edges, which does not change what is reachable.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from interp.core.task import BaseEpisodes, episode_array, length_of, set_frozen_fields
from interp.support.checks import array_of, checked, integer, non_empty
from interp.support.errors import require, require_known
from interp.tasks.reachability import graphs

_AXES_OF_ARRAYS = {
    "edges": ("episode", "edge", "2"),
    "roots": ("episode",),
    "candidates": ("episode", "2"),
}
"""Axes of each array of episodes, if all rounds of an episode are equal; otherwise, an axis of rounds
follows that of the episodes. The axis called "2" has length 2: the two ends of an edge, or the two
candidates.
"""


@dataclass(frozen=True, eq=False, repr=False)
class ReachabilityEpisodes(BaseEpisodes):
    """A batch of episodes of reachability. An episode has a graph, a root and two candidate nodes.
    The question is which candidate can be reached from the root; or, if both can be reached, which
    candidate is nearer.

    >>> chain = np.array([[[0, 1], [1, 2], [3, 2]]])
    >>> episodes = ReachabilityEpisodes(chain, np.array([0]), np.array([[2, 3]]), n_nodes=4, n_rounds=3)
    >>> episodes.depths.tolist(), episodes.answers.tolist()
    ([2], [0])

    Attributes:
        edges: source and target of each edge, ``[episode, edge, 2]``; ``[episode, round, edge, 2]``
            if rounds differ, as in corrupted episodes.
        roots: node at which the search starts, ``[episode]``; ``[episode, round]`` if rounds
            differ.
        candidates: two different nodes, ``[episode, 2]``; ``[episode, round, 2]`` if rounds differ.
        n_nodes: number of node names, which are 0 to n_nodes - 1.
        n_rounds: number of rounds. In each, a search can advance by one step from the root.
        regime: name of the regime; "custom" for graphs that the user made.
        seed: seed of the sampler; None for graphs that were not sampled.
        numbers: number of each episode, ``[episode]``, from which a random walk draws its choices.
            By default 0, 1, ...; selected episodes keep theirs, and so make the same choices.
    """

    task: ClassVar[str] = "reachability"

    edges: NDArray[Any]
    roots: NDArray[Any]
    candidates: NDArray[Any]
    n_nodes: int
    n_rounds: int
    regime: str = "custom"
    seed: int | None = None
    numbers: Any = None

    def __post_init__(self) -> None:
        """Check the fields, and store edges, roots, candidates and numbers as arrays."""
        n_rounds, n_nodes = integer("n_rounds", self.n_rounds, 1), integer("n_nodes", self.n_nodes)
        set_frozen_fields(self, n_rounds=n_rounds, n_nodes=n_nodes)
        for name in _AXES_OF_ARRAYS:
            set_frozen_fields(self, **{name: self._check_array(name)})
        numbers = np.arange(len(self)) if self.numbers is None else self.numbers
        set_frozen_fields(
            self, numbers=episode_array("numbers", numbers, "episode", low=0, whole=True)
        )
        lengths = {len(getattr(self, name)) for name in (*_AXES_OF_ARRAYS, "numbers")}
        require(
            len(lengths) == 1,
            f"edges, roots, candidates and numbers must be of equally many episodes, got {lengths}",
        )
        first, second = np.moveaxis(self.candidates, -1, 0)
        require(
            (first != second).all(),
            "the candidates of an episode must differ; at least one episode has the same node twice",
        )
        super().__post_init__()
        # Ties (both candidates equally far from the root) are meant in sampled regimes such as
        # "uniform", and in corrupted episodes, whose rounds differ.
        if self.regime == "custom" and not self.arrays_by_round:
            self._refuse_ties()

    def _check_array(self, name: str) -> NDArray[np.int64]:
        """Check the field called ``name`` ("edges", "roots" or "candidates"), and return it as an
        integer array. An axis of rounds after the axis of episodes is optional.
        """
        values = getattr(self, name)
        axes = list(_AXES_OF_ARRAYS[name])  # the axes if all rounds of an episode are equal
        if array_of(name, values).ndim > len(axes):
            axes.insert(1, "round")
        listed = ", ".join(axes)
        array = episode_array(name, values, listed, low=0, high=self.n_nodes - 1, whole=True)
        length_of_axis = dict(zip(axes, array.shape, strict=True))
        # An axis that the array lacks fits by default. The axis called "2" has the two ends of an edge,
        # or the two candidates.
        has_pairs = length_of_axis.get("2", 2) == 2
        fits = has_pairs and length_of_axis.get("round", self.n_rounds) == self.n_rounds
        require(
            array.size > 0 and fits,
            f"{name} must be non-empty [{listed}] of {self.n_rounds} rounds, got shape {array.shape}",
        )
        return array

    @property
    def arrays_by_round(self) -> tuple[str, ...]:
        """Names of those fields among ``edges``, ``roots`` and ``candidates`` that have an axis of
        rounds, since they differ between rounds.
        """
        return tuple(
            name for name, axes in _AXES_OF_ARRAYS.items() if getattr(self, name).ndim > len(axes)
        )

    def _refuse_ties(self) -> None:
        """Raise InputError if both candidates of an episode are equally far from the root, so that
        no answer is right.
        """
        first, second = self.candidate_distances.T
        tied = np.flatnonzero(first == second).tolist()
        require(
            not tied,
            f"no answer is right in {len(tied)} episodes, such as {tied[:1]}: both candidates are equally "
            "far from the root, or neither can be reached; give pairs of which one is reached sooner",
        )

    def __len__(self) -> int:
        return len(self.edges)

    @classmethod
    def of(cls, **values: Any) -> ReachabilityEpisodes:
        """Make a batch of episodes of unequal length; shorter ones are padded with missing rounds.

        Args:
            values: the fields by name. ``n_rounds`` is a list with the number of rounds of each
                episode. A mask ``missing``, ``[episode, round]``, marks rounds that are missing
                within an episode.
        """
        # Number of rounds of each episode, [episode].
        lengths = episode_array(
            "n_rounds", values.get("n_rounds", ()), "episode", low=1, whole=True
        )
        longest = int(lengths.max(initial=1))
        missing = np.arange(longest) >= lengths[:, None]  # [episode, round]
        further_missing = values.get("missing")
        if further_missing is not None:
            missing = missing | array_of("missing", further_missing)
        return cls._of_fields(**{**values, "n_rounds": longest, "missing": missing})

    def _with_rounds(self, arrays: Any) -> ReachabilityEpisodes:
        return replace(self, n_rounds=arrays["missing"].shape[1], **arrays)

    n_edges = length_of("edges", -2, "Number of edges, repeated ones included.")

    @checked
    def by_round(self, name: str) -> NDArray[np.int64]:
        """Return the edges, roots or candidates of every round, ``[episode, round, ...]``, also if
        they are equal in all rounds and the field has no axis of rounds.

        Args:
            name: "edges", "roots" or "candidates".

        >>> edges, roots = np.array([[[0, 1], [1, 2]]]), np.array([0])
        >>> ReachabilityEpisodes(edges, roots, np.array([[1, 2]]), 3, n_rounds=5).by_round("edges").shape
        (1, 5, 2, 2)
        """
        require_known("array", name, _AXES_OF_ARRAYS)
        array: NDArray[np.int64] = getattr(self, name)
        if name in self.arrays_by_round:
            return array
        n_episodes, *shape = array.shape
        return np.broadcast_to(array[:, None], (n_episodes, self.n_rounds, *shape))

    @cached_property
    def adjacency(self) -> NDArray[np.bool_]:
        """Bool[episode, source, target], True where the graph in round 0 has an edge from source to
        target.
        """
        return graphs.adjacency(self.by_round("edges")[:, 0], self.n_nodes)

    @cached_property
    def distances(self) -> NDArray[np.int64]:
        """Int[episode, node], number of steps from the root to each node in round 0; ``n_nodes`` if
        there is no path.
        """
        return graphs.distances(self.adjacency, self.by_round("roots")[:, 0])

    @cached_property
    def candidate_distances(self) -> NDArray[np.int64]:
        """Int[episode, 2], number of steps from the root to each candidate in round 0; ``n_nodes``
        if there is no path.
        """
        candidates = self.by_round("candidates")[:, 0]
        return np.take_along_axis(self.distances, candidates, -1)

    @property
    def answers(self) -> NDArray[np.int64]:
        """Int[episode], index (0 or 1) of the correct candidate: the one that is nearer to the
        root; 0 on ties.
        """
        return self.candidate_distances.argmin(-1)

    @property
    def depths(self) -> NDArray[np.int64]:
        """Int[episode], number of steps from the root to the correct candidate; ``n_nodes`` if
        neither candidate can be reached.
        """
        return self.candidate_distances.min(-1)

    @property
    def targets(self) -> NDArray[np.int64]:
        """Int[episode], the node that is the correct candidate: the one nearer to the root."""
        return self._pick_candidates(self.answers)

    @property
    def negatives(self) -> NDArray[np.int64]:
        """Int[episode], the node that is the wrong candidate."""
        return self._pick_candidates(1 - self.answers)

    def _pick_candidates(self, index: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the node of one candidate of each episode, Int[episode].

        Args:
            index: index of the candidate, 0 or 1, ``[episode]``.
        """
        return self.by_round("candidates")[np.arange(len(self)), 0, index]

    @checked
    def shuffled(self, rng: np.random.Generator) -> ReachabilityEpisodes:
        """Return the same episodes with edges in random order, and with the two candidates swapped
        with probability 1/2.

        Args:
            rng: the random generator.
        """
        places = np.tile(np.arange(self.n_edges), (len(self), 1))
        order = rng.permuted(places, axis=1)  # [episode, edge]
        edges = np.take_along_axis(self.edges, order[..., None], 1)
        keeps_order = rng.random((len(self), 1)) < 0.5
        candidates = np.where(keeps_order, self.candidates, self.candidates[:, ::-1])
        return replace(self, edges=edges, candidates=candidates)

    @checked
    def renamed(self, names: NDArray[Any]) -> ReachabilityEpisodes:
        """Return the same episodes with renamed nodes.

        Args:
            names: new number of every node, Int[episode, node].
        """
        wanted = (len(self), self.n_nodes)
        fits = names.shape == wanted and names.dtype.kind in "iu"
        got = f"{names.dtype} of shape {names.shape}"
        require(fits, f"names must be whole numbers {wanted}, got {got}")
        arrays: dict[str, Any] = {}
        for name in _AXES_OF_ARRAYS:
            nodes = getattr(self, name)
            by_episode = nodes.reshape(len(self), -1)  # [episode, all other axes together]
            renamed = np.take_along_axis(names, by_episode, 1)
            arrays[name] = renamed.reshape(nodes.shape)
        return replace(self, **arrays)

    @checked
    def correct(self, predictions: NDArray[Any]) -> NDArray[np.float64]:
        """Score predictions: 1 where the correct candidate has a higher probability than the wrong
        candidate, 0 where it has a lower probability, 1/2 where both are equal.

        Args:
            predictions: predicted probability of each node, ``[episode, round, node]``.

        Returns:
            The scores, ``[episode, round]``.
        """
        predictions = array_of("predictions", predictions)
        shape = predictions.shape
        n_episodes, n_nodes = len(self), self.n_nodes
        # The first and the last axis are checked; there may be any number of rounds.
        require(
            len(shape) == 3 and shape[::2] == (n_episodes, n_nodes),
            f"predictions must be [episode, round, node] of {n_episodes} episodes and {n_nodes} nodes, got shape "
            f"{shape}",
        )
        rows = np.arange(n_episodes)
        # Probabilities of the two candidates, [episode, round].
        target = predictions[rows, :, self.targets]
        negative = predictions[rows, :, self.negatives]
        return (1 + np.sign(target - negative)) / 2  # 1, 1/2 or 0


@checked
def join_batches(parts: Sequence[ReachabilityEpisodes], regime: str) -> ReachabilityEpisodes:
    """Concatenate batches of episodes with equal numbers of nodes, rounds and edges to one batch.

    Args:
        parts: the batches.
        regime: name of the regime of the result.
    """
    first, *_ = non_empty("parts", parts, "batches of episodes")
    sizes = {(part.n_nodes, part.n_rounds, part.n_edges) for part in parts}
    require(
        len(sizes) == 1,
        f"batches of one size can be one, got (nodes, rounds, edges) {sorted(sizes)}",
    )
    # Without numbers, the joined episodes are numbered anew.
    arrays: dict[str, Any] = {"participants": None, "numbers": None}
    for name in _AXES_OF_ARRAYS:
        arrays[name] = np.concatenate([getattr(part, name) for part in parts])
    # `counted` is defined for all batches; `missing` may be None.
    arrays["missing"] = np.concatenate([~part.counted for part in parts])
    participants: list[Any] = [part.participants for part in parts]
    if all(names is not None for names in participants):
        arrays["participants"] = np.concatenate(participants)
    return replace(first, regime=regime, **arrays)
