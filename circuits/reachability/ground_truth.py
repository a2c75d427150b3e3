"""Ground truth of the reachability circuit: where each variable lives, which part reads what, and what
verification compares.

The variables are those of ``interp.tasks.reachability.algorithms.breadth_first``; ``circuit.ground_truth()`` lists
their locations. Nodes are one-hot. The frontier, near(w?), counts the root twice from round 2 on where head 2.1 is
linear; its scores hold ``active`` with exact heads only.
"""

from __future__ import annotations

from collections.abc import Sequence

from circuits.basis import Basis
from circuits.circuit import Circuit, Location, VerificationPlan
from circuits.heads import numbered
from circuits.soft import leak
from circuits.stated import Carried, Edge, table
from interp.algorithm import Values
from interp.tasks.reachability import ReachabilityEpisodes, sample
from interp.tasks.reachability.episodes import joined
from interp.tasks.reachability.layout import ReachabilityRound

_POST = "blocks.{}.hook_resid_post".format
_BOTH = "prediction and update"


def sites(basis: Basis, layout: ReachabilityRound, exact: bool, mean: bool) -> dict[str, tuple[Location, ...]]:
    """The locations of every variable; ``exact`` where heads are hard and linear, ``mean`` where 2.1 averages."""
    nodes = layout.outcomes
    bound = numbered("e" if layout.marks else "t", layout.n_edges)
    candidates = ("c_1", "c_2")

    def each(name: str, hook: str, labels: tuple[str, ...], block: str, drives: str) -> Location:
        """One number per node, at each of the positions."""
        return Location.grid(name, hook, labels, [basis[block][node] for node in nodes], drives)

    score = Location(
        "score 2.1", "blocks.1.attn.hook_attn_scores", ("w?",) * len(bound), keys=bound, head="2.1", drives="update"
    )
    return {
        "source": (each("edges", _POST(0), bound, "far", "update"),),
        "target": (each("edges", _POST(0), bound, "near" if layout.marks else "id", "update"),),
        "root": (each("embed", "hook_embed", ("r",), "id", "update"),),
        "candidates": (each("embed", "hook_embed", candidates, "id", "prediction"),),
        "reached": (each("latent", "hook_embed", ("<z>",), "id", _BOTH),),
        "frontier": (each("w?", _POST(0), ("w?",), "near", "update"),),
        "member": (Location("candidates", _POST(0), candidates, (basis["out"]["in"],) * 2, drives="prediction"),),
        **({"active": (score,)} if exact else {}),
        "prediction": (each("p?", _POST(1), ("p?",), "out", "prediction"),),
        "next_reached": (each("w?", _POST(1), ("w?",), "id", "update"),),
    }


_EDGES = """
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
_EDGES_MARKED = """
tokens     1.1  query  constant  MARKS w?   who looks one token back
tokens     1.2  query  constant  MARKS      who looks two tokens back
positions  1.2  key    constant  BACK2      which position is two before
tokens     1.1  value  content   TARGETS r  where each edge ends; the root
1.1        2.1  value  content   MARKS      where each edge ends
"""
_EDGES_UNMARKED = """
tokens     1.1  query  constant  w?         who looks one token back
positions  1.2  key    constant  BACK1      which position is one before
tokens     1.1  value  content   r          the root
tokens     2.1  value  content   TARGETS    where each edge ends
"""
_EDGES_SINUSOIDAL = """
tokens  1.4  value  constant  <w>  what of z's code the sink has, taken away
"""
_EDGES_AVERAGE = """
positions  2.1  query  constant  ALL  what the sink scores
tokens     2.1  key    constant  <w>  the sink
"""


def edges(layout: ReachabilityRound, parts: Sequence[str], mean: bool, one_hot: bool) -> tuple[Edge, ...]:
    """Every edge, for at least two edges of the graph; ``mean`` where head 2.1 averages."""
    every = layout.labels
    sources, targets, marks = (numbered(letter, layout.n_edges) for letter in "ste")
    groups = {
        "ALL": every,
        "SOURCES": sources,
        "TARGETS": targets,
        "NODES": [*sources, *targets, "c_1", "c_2", "r"],
        "MARKS": marks if layout.marks else (),
        "BOUND": marks if layout.marks else targets,
        # Sinusoidal codes overlap with all others; one-hot ones are told by one axis, and none lies outside the round.
        "BACK1": every[:-1] if one_hot else every,
        "BACK2": every[:-2] if one_hot else every,
        "AT_Z": ["<z>"] if one_hot else every,
        "OF_Z": ["<z>"] if one_hot else ["<w>", "<z>"],
        "AT_C": ["c_1", "c_2"] if one_hot else every,
    }
    lines = _EDGES + (_EDGES_MARKED if layout.marks else _EDGES_UNMARKED)
    return table(lines + (_EDGES_AVERAGE if mean else "") + ("" if one_hot else _EDGES_SINUSOIDAL), parts, groups)


CARRIED = (
    Carried("reached", ("latent",), "prediction"),
    Carried("reached", ("latent",), "state"),
    Carried("candidates", ("embed",), "prediction"),
    Carried("member", ("candidates",), "prediction"),
    Carried("root", ("embed",), "state"),
    Carried("frontier", ("w?",), "state"),
    Carried("active", ("score 2.1",), "state"),
    Carried("source", ("edges",), "state"),
    Carried("target", ("edges",), "state"),
    Carried("prediction", ("p?",), "prediction"),
    Carried("next_reached", ("w?",), "state"),
)
"""Which locations together hold a variable, of all variants; one holds the rows whose locations it has."""
NOT_CARRIED = {"embed@<w>": ("reached", "prediction"), "embed@p?": ("root", "state")}
"""Site -> a variable that it does not hold, and the outcome: controls."""


def _episodes(circuit: Circuit, n_rounds: int, n_episodes: int, seed: int) -> ReachabilityEpisodes:
    """Any digraphs and long paths; more rounds than nodes would repeat the same set."""
    n_nodes, n_edges = circuit.arguments["n_nodes"], circuit.arguments["n_edges"]
    rounds = min(n_rounds, n_nodes + 1)
    regimes = ("uniform", "path")
    parts = [sample(max(1, n_episodes // 2), rounds, n_nodes, n_edges, regime, seed) for regime in regimes]
    return joined(parts, " and ".join(regimes))


def _tolerance(key: str, dtype: str) -> tuple[float, str]:
    """Every variable is exact: the sets are zeros and ones, and the answer is 0, 1/2 or 1 but for e^-60."""
    return (1e-6 if dtype == "float32" else 1e-12), "error"


def _soft(circuit: Circuit, values: Values, key: str) -> tuple[float, str]:
    """What softmax heads leave of what they gather; neurons clip the sets that are carried, which stay exact.

    A candidate's mark is written by one key alone; the answer's scores are 60 times the marks, and a share of one half
    moves by a quarter of the difference of two scores.
    """
    lost, n = leak(circuit), len(circuit.layout.labels)
    if lost and key in ("source", "target", "frontier", "residue"):
        return n * lost, f"{n} positions x e^(-eta/2)"
    if lost and key == "member":
        return lost * (1 + n * lost), "e^(-eta/2) for the one key that marks"
    if lost and key in ("prediction", "distribution"):
        return 30 * lost * (1 + n * lost), "scores of 60 x two marks x 1/4 x e^(-eta/2)"
    return 0.0, ""


PLAN = VerificationPlan(
    sizes=((5, 4), (8, 12), (14, 20), (30, 60)),
    episodes=_episodes,
    output="prediction",
    tolerance=_tolerance,
    soft=_soft,
)
"""How :func:`circuits.verify` checks this machine."""
