"""Every edge of the Weighted Majority circuit: what each head and exit reads from what, of which kind, and where."""

from __future__ import annotations

from collections.abc import Sequence

from circuits.edges import Edge, table
from interp.tasks.experts.layout import ExpertRound

BOTH = """
tokens     1.1                 query     constant  VOTES y      which tokens bind
positions  1.1, 2.1, 2.2, 3.1  query     constant  ALL          which position asks, and what the sink scores
positions  1.2                 query     constant  AFTER        which position asks
tokens     1.1, 2.1, 2.2       key       constant  <w>          the sink
positions  1.1, 1.2            key       constant  BEFORE       which position stands one before
tokens     1.1                 value     constant  EXPERTS p?   whose vote follows
tokens     1.2                 value     constant  <w>          the tag of what follows it
1.2        2.1                 key       constant  <w> <z>      where z is
latents    2.1                 value     content   <z>          log-weights
tokens     2.2                 query     constant  w?           who asks for the truth
1.1        2.2                 key       constant  y            which token follows p?
tokens     2.2                 value     content   y            the truth
tokens     3.1                 query     constant  p?           who predicts
tokens     3.1                 key       constant  <w> VOTES y  the sink, and what is a vote
positions  3.1                 key       constant  ALL          all that is no vote
1.1        3.1                 key       constant  VOTES        which expert voted
tokens     3.1                 value     content   VOTES        votes
2.2        3.2                 query     content   w?           the truth
1.1        3.2                 value     constant  VOTES        whose log-weight grows
3.1        prediction          residual  content   p?           P(y = 1)
tokens     update              residual  constant  w?           the token itself, which the clean-up takes away
2.2        update              residual  content   w?           the truth, which the clean-up takes away
"""
R = """
tokens     2.1     query     constant  p?       who asks for log-weights
2.1        3.1     query     content   p?       log-weights
tokens     2.3     query     constant  w?       who asks for log-weights
positions  2.3     query     constant  ALL      what the sink scores
tokens     2.3     key       constant  <w>      the sink
1.2        2.3     key       constant  <w> <z>  where z is
latents    2.3     value     content   <z>      log-weights
tokens     3.3     query     clean-up  w?       who is cleaned
positions  3.3     query     clean-up  ALL      what the sink scores
tokens     3.3     key       clean-up  <w> w?   the sink, and what is cleaned
tokens     3.3     value     clean-up  w?       the token itself, to remove
2.2        3.3     value     clean-up  w?       the copy of y to remove
2.3        update  residual  content   w?       old log-weights
3.2        update  residual  content   w?       what is added
3.3        update  residual  clean-up  w?       minus everything else
"""
P = """
tokens     2.1     query     constant  p? w?   who asks for log-weights
2.1        3.1     query     content   p? w?   log-weights (w? predicts, too, which is cleaned)
2.1        3.2     query     content   p? w?   log-weights (p? updates, too, which nothing reads)
1.1        3.2     key       constant  VOTES   which expert voted
tokens     4.1     query     clean-up  w?      who is cleaned
positions  4.1     query     clean-up  ALL     what the sink scores
tokens     4.1     key       clean-up  <w> w?  the sink, and what is cleaned
tokens     4.1     value     clean-up  w?      the token itself, to remove
2.1        4.1     value     clean-up  w?      the copy of z to remove
2.2        4.1     value     clean-up  w?      the copy of y to remove
2.1        update  residual  content   w?      old log-weights, which the clean-up takes away
3.2        update  residual  content   w?      new log-weights
4.1        update  residual  clean-up  w?      minus everything else
"""
LINEAR = """
tokens  3.2  key  content  VOTES y  votes (y matches itself, but is bound to no expert)
"""
HEAVY_SINK = """
positions  3.2  query  constant  ALL          what the sink scores
tokens     3.2  key    content   <w> VOTES y  the sink, and votes
"""


def edges(layout: ExpertRound, parts: Sequence[str], variant: str, exact: bool, one_hot: bool) -> tuple[Edge, ...]:
    """Every edge, for at least two experts; without ``exact`` every head is softmax."""
    every = layout.labels
    groups = {
        "ALL": every,
        "EXPERTS": [label for label in every if label.startswith("e_")],
        "VOTES": [label for label in every if label.startswith("p_")],
        # Only one-hot codes have no axis for what lies outside the round.
        "BEFORE": every[:-1] if one_hot else every,
        "AFTER": every[1:] if one_hot else every,
    }
    lines = BOTH + (R if variant == "R" else P) + (LINEAR if exact else HEAVY_SINK)
    return table(lines, parts, groups)
