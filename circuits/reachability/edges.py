"""Every edge of the reachability circuit: what each head, neuron and exit reads from what, of which kind, and where."""

from __future__ import annotations

from collections.abc import Sequence

from circuits.edges import Edge, table
from interp.tasks.reachability.layout import ReachabilityRound

BOTH = """
positions            1.1, 1.2, 1.3, 1.4         query     constant  ALL        who asks; what the sink scores
tokens               1.1, 1.2, 1.3              key       constant  <w>        the sink
positions            1.1                        key       constant  BACK1      which position is one before
tokens               1.2                        value     content   SOURCES    where each edge starts
tokens               1.3                        query     constant  w?         who asks for the nodes reached
positions            1.3, 1.4                   key       constant  AT_Z       where z is
latents              1.3                        value     content   <z>        the nodes reached
tokens               1.4                        query     content   NODES      which node asks
latents              1.4                        query     content   <z>        z finds itself
tokens               1.4                        key       content   <w> NODES  the sink; equal nodes
latents              1.4                        key       content   <z>        the nodes reached
positions            1.4                        value     constant  OF_Z       the mark of z
1.1                  1 clip                     residual  content   MARKS w?   the root, if found twice
1.3                  1 clip                     residual  content   w?         the nodes reached
1.1                  2.1                        query     content   MARKS w?   the root
1.3                  2.1                        query     content   w?         the nodes reached
1 clip               2.1                        query     content   w?         minus what is there twice
1.2                  2.1                        key       content   BOUND      where each edge starts
tokens               2.2                        query     constant  p?         who answers
positions            2.2                        query     constant  ALL        what the sink scores
tokens               2.2                        key       constant  <w>        the sink
positions            2.2                        key       constant  AT_C       where the candidates are
1.4                  2.2                        key       content   <z> NODES  which nodes are reached
tokens               2.2                        value     content   c_1 c_2    the candidates
1.1                  2 reached, 2 at most once  residual  content   MARKS w?   the root (read, unused, at e_i)
1.3, 1 clip          2 reached, 2 at most once  residual  content   w?         the nodes reached
2.1                  2 reached, 2 at most once  residual  content   MARKS w?   what is new
1.1                  2 clear                    residual  clean-up  MARKS w?   what to remove
1.3, 1 clip          2 clear                    residual  clean-up  w?         what to remove
2.1                  2 clear                    residual  clean-up  MARKS w?   what to remove
tokens               2 clear w?                 residual  clean-up  w?         the token itself, to remove
2.2                  prediction                 residual  content   p?         the answer
tokens               update                     residual  constant  w?         the token itself, cleared
1.1                  update                     residual  content   w?         the root, cleared
1.3, 1 clip          update                     residual  content   w?         the nodes reached, cleared
2.1                  update                     residual  content   w?         what is new, cleared
2 reached            update                     residual  content   w?         every node of the new set
2 at most once       update                     residual  content   w?         minus what is there twice
2 clear, 2 clear w?  update                     residual  clean-up  w?         minus everything else
"""
MARKED = """
tokens     1.1  query  constant  MARKS w?   who looks one token back
tokens     1.2  query  constant  MARKS      who looks two tokens back
positions  1.2  key    constant  BACK2      which position is two before
tokens     1.1  value  content   TARGETS r  where each edge ends; the root
1.1        2.1  value  content   MARKS      where each edge ends
"""
UNMARKED = """
tokens     1.1  query  constant  w?         who looks one token back
positions  1.2  key    constant  BACK1      which position is one before
tokens     1.1  value  content   r          the root
tokens     2.1  value  content   TARGETS    where each edge ends
"""
SINUSOIDAL = """
tokens  1.4  value  constant  <w>  what of z's code the sink has, taken away
"""
AVERAGE = """
positions  2.1  query  constant  ALL  what the sink scores
tokens     2.1  key    constant  <w>  the sink
"""


def edges(layout: ReachabilityRound, parts: Sequence[str], mean: bool, one_hot: bool) -> tuple[Edge, ...]:
    """Every edge, for at least two edges of the graph; ``mean`` where head 2.1 averages."""
    every = layout.labels

    def numbered(letter: str) -> list[str]:
        return [f"{letter}_{i}" for i in range(1, layout.n_edges + 1)]

    groups = {
        "ALL": every,
        "SOURCES": numbered("s"),
        "TARGETS": numbered("t"),
        "NODES": [*numbered("s"), *numbered("t"), "c_1", "c_2", "r"],
        "MARKS": numbered("e") if layout.marks else [],
        "BOUND": numbered("e" if layout.marks else "t"),
        # Sinusoidal codes overlap with all others; one-hot ones are told by one axis, and none lies outside the round.
        "BACK1": every[:-1] if one_hot else every,
        "BACK2": every[:-2] if one_hot else every,
        "AT_Z": ["<z>"] if one_hot else every,
        "OF_Z": ["<z>"] if one_hot else ["<w>", "<z>"],
        "AT_C": ["c_1", "c_2"] if one_hot else every,
    }
    lines = BOTH + (MARKED if layout.marks else UNMARKED)
    return table(lines + (AVERAGE if mean else "") + ("" if one_hot else SINUSOIDAL), parts, groups)
