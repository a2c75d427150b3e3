"""Token layout of a round of reachability: ``<w> <z> s_1 t_1 e_1 ... c_1 c_2 p? | r w?``
(:class:`ReachabilityRound` explains the positions).
"""

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
from interp.tasks.sized_round import SizedRound, number_names


@dataclass(frozen=True)
class ReachabilityRound(SizedRound):
    """Token layout of a round: ``<w> <z> s_1 t_1 e_1 ... s_m t_m e_m c_1 c_2 p? | r w?``, for m
    edges.

    Each word is a position of the round, in order. The bar is no position: what follows it is read
    after the prediction.

    - ``<w>``: a fixed token, to which heads can attend by default (an attention sink);
    - ``<z>``: the latent, which carries the nodes that were reached in earlier rounds;
    - ``s_i`` and ``t_i``: the nodes at which edge i starts and ends (source and target);
    - ``e_i``: a mark after edge i, only with ``marks=True``; the handwired model combines source
      and target there;
    - ``c_1`` and ``c_2``: the two candidate nodes;
    - ``p?``: the position where the model predicts which candidate can be reached;
    - ``r``: the root, the node from which the search starts;
    - ``w?``: the position where the update of the latent is read.

    Since the root comes after the question, a round can answer only from its latent. A prediction
    is a probability for each node. A round has 3 m + 7 positions with marks, and 2 m + 7 without,
    as in training.

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
        mark = ("e",) if self.marks else ()
        return ("<w>", "p?", "w?", *mark, *self.outcomes)

    @cached_property
    def outcomes(self) -> tuple[str, ...]:
        return number_names("n", self.n_nodes)

    def fit(self, episodes: ReachabilityEpisodes) -> Self:
        own_n_nodes = self.n_nodes
        n_nodes = getattr(episodes, "n_nodes", own_n_nodes)
        require(
            n_nodes == own_n_nodes,
            f"episodes name {n_nodes} nodes but this model {own_n_nodes}; sample with n_nodes={own_n_nodes} (a graph "
            "need not use all names)",
        )
        return super().fit(episodes)

    def encode(self, episodes: ReachabilityEpisodes) -> EncodedRounds:
        """Return the tokens and numbers that a model reads in each round of the episodes."""
        self.require_fit(episodes)
        place, by_round = self.position, episodes.by_round
        first_node = self.token_ids["n_1"]
        # [episode, round, position]
        tokens = self.make_blank_tokens(len(episodes), episodes.n_rounds)
        edges = first_node + torch.tensor(by_round("edges"))  # [episode, round, edge, 2]
        start, stop = place("s_1"), place("c_1")
        # An edge has the tokens of its source and target, and a mark "e" if the layout has marks.
        if self.marks:
            tokens[..., start:stop:3] = edges[..., 0]
            tokens[..., start + 1 : stop : 3] = edges[..., 1]
            tokens[..., start + 2 : stop : 3] = self.token_ids["e"]
        else:
            tokens[..., start:stop] = rearrange(edges, "b t edge end -> b t (edge end)")
        # The candidates, c_1 and c_2, follow the edges.
        tokens[..., stop : stop + 2] = first_node + torch.tensor(by_round("candidates"))
        tokens[..., place("r")] = first_node + torch.tensor(by_round("roots"))
        no_values = torch.zeros(tokens.shape)  # no token of this task has a number
        # The index of the latent that each round updates: there is only one latent, 0.
        updated_latents = torch.zeros_like(tokens[..., 0])
        return EncodedRounds(tokens, no_values, slots=updated_latents)
