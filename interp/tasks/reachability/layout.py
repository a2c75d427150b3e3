"""Token layout of a round of reachability: ``<w> <z> (s_i t_i e_i)_i c_1 c_2 p? | r w?``."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar, Self

import torch
from einops import rearrange

from interp.model.layout import MOST, EncodedRounds
from interp.support.checks import check_fields
from interp.support.errors import require
from interp.tasks.reachability.episodes import ReachabilityEpisodes
from interp.tasks.sized_round import SizedRound


@dataclass(frozen=True)
class ReachabilityRound(SizedRound):
    """Token layout of a round: ``<w> <z> (s_i t_i e_i) for every edge, c_1 c_2 p? | r w?``.

    The graph is listed edge by edge (source ``s_i``, target ``t_i``). Two candidates ``c_1 c_2``,
    the question ``p?``, the root ``r`` and the latent's update ``w?`` follow. Since the root comes
    after the question, a round can answer only from its latent ``<z>``. With ``marks``, a token
    ``e_i`` follows each edge; the handwired machine combines source and target there. A round with
    m edges has 3 m + 7 positions with marks, and 2 m + 7 without, as in training. The outcomes are
    the nodes.

    Attributes:
        n_nodes: number of node names, the same for all episodes that a model reads.
        n_edges: number of edges.
        n_edges_range: smallest and largest number of edges that the vocabulary supports; only
            ``n_edges`` when None.
        marks: True to put a mark after each edge.
    """

    n_nodes: int
    n_edges: int
    n_edges_range: tuple[int, int] | None = None
    marks: bool = False
    task: ClassVar[str] = "reachability"
    ranged: ClassVar[tuple[str, ...]] = ("n_edges",)
    episodes_are: ClassVar[str] = "reachability episodes"
    episode_types: ClassVar[tuple[type, ...]] = (ReachabilityEpisodes,)
    n_latents: ClassVar[int] = 1
    """One latent holds the set of reached nodes."""

    def __post_init__(self) -> None:
        check_fields(self)
        require(
            3 <= self.n_nodes <= MOST,
            f"n_nodes must be an integer >= 3 and <= {MOST}, got {self.n_nodes!r}",
        )
        super().__post_init__()

    @cached_property
    def labels(self) -> tuple[str, ...]:
        parts = ("s", "t", "e") if self.marks else ("s", "t")
        edges = [f"{part}_{i}" for i in range(1, self.n_edges + 1) for part in parts]
        return ("<w>", "<z>", *edges, "c_1", "c_2", "p?", "r", "w?")

    @cached_property
    def vocabulary(self) -> tuple[str, ...]:
        return ("<w>", "p?", "w?", *(("e",) if self.marks else ()), *self.outcomes)

    @cached_property
    def outcomes(self) -> tuple[str, ...]:
        return tuple(f"n_{i}" for i in range(1, self.n_nodes + 1))

    def fit(self, episodes: ReachabilityEpisodes) -> Self:
        named = getattr(episodes, "n_nodes", self.n_nodes)
        require(
            named == self.n_nodes,
            f"episodes name {named} nodes but this model {self.n_nodes}; sample with n_nodes={self.n_nodes} (a graph "
            "need not use all names)",
        )
        return super().fit(episodes)

    def encode(self, episodes: ReachabilityEpisodes) -> EncodedRounds:
        self.require_fit(episodes)
        place, node = self.position, self.token_ids["n_1"]
        tokens = self.blank(len(episodes), episodes.n_rounds)
        edges = node + torch.tensor(episodes.by_round("edges"))
        first, last = place("s_1"), place("c_1")
        if self.marks:
            tokens[..., first:last:3] = edges[..., 0]
            tokens[..., first + 1 : last : 3] = edges[..., 1]
            tokens[..., first + 2 : last : 3] = self.token_ids["e"]
        else:
            tokens[..., first:last] = rearrange(edges, "b t edge end -> b t (edge end)")
        tokens[..., last : last + 2] = node + torch.tensor(episodes.by_round("candidates"))
        tokens[..., place("r")] = node + torch.tensor(episodes.by_round("roots"))
        return EncodedRounds(tokens, torch.zeros(tokens.shape), torch.zeros_like(tokens[..., 0]))
