"""Every edge of the Q-learning circuit: what each head, neuron and exit reads from what, of which kind, and where."""

from __future__ import annotations

from collections.abc import Sequence

from circuits.edges import Edge, table
from interp.tasks.qlearning.layout import QLearningRound

EVERY = """
tokens     1.1, 1.4                 query     constant  a CANDIDATES a* Update        actions; Update does not fire
tokens     1.2                      query     constant  Select                        who asks for s'
tokens     1.3                      query     constant  r                             who asks for s_t
positions  1.1, 1.2, 1.3, 1.4, 1.5  query     constant  ALL                           who asks; what the sink scores
tokens     1.1, 1.2, 1.3, 1.4       key       constant  <BOS>                         the sink
positions  1.1                      key       constant  BACK1                         which position is one before
positions  1.2, 1.3, 1.4            key       constant  BACK2                         which position is two before
tokens     1.1                      value     content   s STATES                      s_t and s'
tokens     1.2                      value     content   LAST                          s'
tokens     1.3                      value     content   s                             s_t
tokens     1.4                      value     constant  Qcurr                         the phase of the action taken
tokens     1.5                      query     constant  a CANDIDATES a*               actions
latents    1.5                      query     constant  COLUMNS                       their own action
tokens     1.5                      key       constant  <BOS> Qnext                   the sink, and Qnext
tokens     1.5                      value     constant  Qnext                         the phase of candidates
tokens     1.6                      query     content   a CANDIDATES a* Update        which action asks
latents    1.6                      query     constant  COLUMNS                       their own action, kept from itself
positions  1.6, 2.1, 3.1, 3.2, 3.3  query     constant  ALL                           what the sink scores
tokens     1.6                      key       content   <BOS> a CANDIDATES a* Update  the sink; equal actions score less
latents    1.6                      key       constant  COLUMNS                       which action each column is of
latents    1.6                      value     content   COLUMNS                       Q(., a)
tokens     2.1                      query     constant  Select                        who asks for s_t
tokens     2.1, 3.3                 key       constant  <BOS> Qcurr a CANDIDATES a*   the sink; what is an action
latents    2.1, 3.3                 key       constant  COLUMNS                       what is an action
1.4        2.1, 3.3                 key       constant  a                             which action was taken
1.1        2.1                      value     content   a                             s_t
tokens     3.1, 3.2                 query     constant  Select                        who chooses
latents    3.1, 3.2                 key       constant  COLUMNS                       what is an action
positions  3.1, 3.2                 key       constant  ALL                           what is no candidate
1.5        3.1, 3.2                 key       constant  CANDIDATES a*                 who is a candidate
tokens     3.1                      value     constant  CANDIDATES                    the actions
tokens     3.3                      query     constant  Update                        who inherits
latents    3.3                      query     constant  COLUMNS                       their own Update; unused
tokens     3.3                      value     content   a                             a_t
1.6        3.3                      value     content   a                             Q(., a_t)
3.1        prediction               residual  content   Select                        the choice
tokens     update                   residual  constant  Update                        its name, which a column keeps
3.3        update                   residual  content   Update                        the column to change
"""
NEURONS = """
tokens   2.2       residual  content   Qcurr s Qnext s' STATES PAUSE  phases and states that do not meet
latents  2.2       residual  content   COLUMNS                        columns that meet no state
1.1      2.2       residual  content   a CANDIDATES                   the state
1.2      2.2       residual  content   Select                         s', which meets no phase
1.3      2.2       residual  content   r                              s_t, which meets no phase
1.4      2.2       residual  constant  a                              phase Qcurr
1.5      2.2       residual  constant  CANDIDATES a*                  phase Qnext
1.6      2.2       residual  content   a CANDIDATES a*                the column
2.1      2.2       residual  content   Select                         s_t, which meets no phase
tokens   3.1, 3.2  key       constant  <BOS> a Qnext CANDIDATES a*    the sink; who is a candidate; order
2.2      3.1, 3.2  key       content   CANDIDATES                     Q(s', a)
2.2      3.2       value     content   CANDIDATES                     Q(s', a)
1.1      4.1       value     content   a                              s_t
"""
ADDING = """
tokens    4.2     query     constant  Update   who adds
latents   4.2     query     constant  COLUMNS  their own Update; unused
payloads  4.2     key       content   r        r_t
1.3       4.2     value     content   r        s_t
3.2       4.3     key       content   Select   max_a Q(s', a)
2.1       4.3     value     content   Select   s_t
4.1       update  residual  content   Update   a TD term
4.2       update  residual  content   Update   a TD term
4.3       update  residual  content   Update   a TD term
"""
MLP = """
tokens   4.1, 4.3  query  constant  Update   who adds
latents  4.1, 4.3  query  constant  COLUMNS  their own Update; unused
2.2      4.1       key    content   a        -Q(s_t, a_t)
"""
SOFTMLP = """
tokens         4.1, 4.2, 4.3  query     constant  Update                       who fetches
latents        4.1, 4.2, 4.3  query     constant  COLUMNS                      their own Update; unused
positions      4.1, 4.2, 4.3  query     constant  ALL                          what the sink scores
tokens         4.1            key       constant  <BOS> Qcurr a CANDIDATES a*  the sink; what is an action
latents        4.1            key       constant  COLUMNS                      what is an action
1.4            4.1            key       constant  a                            which action was taken
3.1            4.1            key       constant  Select                       a*: an action in no phase
3.3            4.1            key       constant  Update                       a_t: an action in no phase
2.2            4.1            value     content   a                            -Q(s_t, a_t)
tokens         4.2            key       constant  <BOS> r                      the sink, and r
payloads       4.2            value     content   r                            r_t
tokens         4.3            key       constant  <BOS> Select                 the sink, and Select
3.2            4.3            value     content   Select                       max_a Q(s', a)
2.2            4.4            residual  content   a                            -Q(s_t, a_t), which meets no state
3.2            4.4            residual  content   Select                       the maximum, which meets no state
4.1, 4.2, 4.3  4.4            residual  content   Update                       a term of the TD error
2.2            4.5            residual  clean-up  a                            -Q(s_t, a_t), which nothing reads later
3.2            4.5            residual  clean-up  Select                       the maximum, which nothing reads later
4.1, 4.2, 4.3  4.5            residual  clean-up  Update                       what to remove
4.1, 4.2, 4.3  update         residual  content   Update                       what was fetched, cleaned
4.4            update         residual  content   Update                       alpha times the TD error
4.5            update         residual  clean-up  Update                       minus everything else
"""
LIN = """
1.2        2.2       query     content   Select                       s'
1.3        2.2       query     content   r                            s_t
latents    2.2       key       content   COLUMNS                      Q(., a)
latents    2.2       value     constant  COLUMNS                      which action a column is of
tokens     2.3       query     constant  Update                       who asks for s'
latents    2.3       query     constant  COLUMNS                      their own Update; unused
positions  2.3       query     constant  ALL                          who asks; what the sink scores
tokens     2.3       key       constant  <BOS>                        the sink
positions  2.3       key       constant  BACK2                        which position is two before
1.2        2.3       value     content   Select                       s'
2.2        3.1, 3.2  query     content   r Select                     rows of Q (r is kept silent)
tokens     3.1, 3.2  key       content   <BOS> a Qnext CANDIDATES a*  the sink; which action; order
1.6        3.2       value     content   CANDIDATES                   Q(., a)
tokens     4.1       query     content   a CANDIDATES a*              actions, of which nothing is read later
latents    4.1       query     constant  COLUMNS                      likewise
3.1        4.1       query     content   Select                       likewise
3.3        4.1       query     content   Update                       a_t
2.2        4.1       key       content   r Select                     rows of Q
1.3        4.1       value     content   r                            s_t
1.2        4.3       query     content   Select                       s', which adds to no update
1.3        4.3       query     content   r                            s_t, which adds to no update
2.3        4.3       query     content   Update                       s'
1.6        4.3       key       content   a CANDIDATES a*              columns, which hold no s_t to move
tokens     4.4       query     clean-up  Update                       who is cleaned
latents    4.4       query     clean-up  COLUMNS                      their own Update; nothing to remove
positions  4.4       query     clean-up  ALL                          who asks; what the sink scores
tokens     4.4       key       clean-up  <BOS>                        the sink
positions  4.4       key       clean-up  ALL                          which position is the same
2.3        4.4       value     clean-up  Update                       s', to remove
2.3        update    residual  content   Update                       s', which the clean-up takes away
4.4        update    residual  clean-up  Update                       minus everything else
"""
HEAVY_SINK = """
positions  HEADS  query  constant  ALL    what the sink scores
tokens     HEADS  key    constant  <BOS>  the sink
"""
"""What linear heads gain when they become pairs of softmax heads."""
PAIRED = {"mlp": "4.1, 4.2, 4.3", "softmlp": "", "lin": "2.2, 4.1, 4.2, 4.3"}


def edges(
    layout: QLearningRound, parts: Sequence[str], variant: str, exact: bool, one_hot: bool, pause: bool
) -> tuple[Edge, ...]:
    """Every edge, for at least two states and two actions.

    Args:
        exact: False where every head is softmax.
        one_hot: whether position codes are.
        pause: whether neurons 2.2 read the name of Select, which keeps them silent there.
    """
    every = layout.labels
    groups = {
        "ALL": every,
        "COLUMNS": [f"c_{i}" for i in range(1, layout.n_actions + 1)],
        "CANDIDATES": [f"a_{i}" for i in range(1, layout.n_actions + 1)],
        "STATES": [f"s'_{i}" for i in range(1, layout.n_actions + 1)],
        "LAST": [f"s'_{layout.n_actions}"],
        "PAUSE": ["Select"] if pause else [],
        # Only one-hot codes have no axis for what lies outside the round.
        "BACK1": every[:-1] if one_hot else every,
        "BACK2": every[:-2] if one_hot else every,
    }
    own = {"mlp": NEURONS + ADDING + MLP, "softmlp": NEURONS + SOFTMLP, "lin": ADDING + LIN}[variant]
    lines = EVERY + own
    if not exact and PAIRED[variant]:
        lines += HEAVY_SINK.replace("HEADS", PAIRED[variant])
    return table(lines, parts, groups)
