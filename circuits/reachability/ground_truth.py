"""Ground truth of the reachability circuit: where each variable lives, and what verification compares.

Locations by variable of ``interp.tasks.reachability.algorithms.breadth_first``, for ``circuit.location(key, name)``::

    reached        latent, w? scores are no location of it: near(w?) holds the frontier
    source, target edges                 one-hot at every e_i, blocks far and near; without marks at t_i, far and id
    candidates     embed                 one-hot
    root           embed                 one-hot
    frontier       w?                    near(w?); with the linear head 2.1 the root counts twice from round 2 on
    member         candidates            out[in]
    active         score 2.1             exact heads only
    prediction     p?
    next_reached   w?
"""

from __future__ import annotations

from circuits.basis import Basis
from circuits.carried import Carried
from circuits.circuit import Circuit, Location, VerificationPlan
from interp.tasks.reachability import ReachabilityEpisodes, sample
from interp.tasks.reachability.episodes import joined
from interp.tasks.reachability.layout import ReachabilityRound

POST = "blocks.{}.hook_resid_post".format
BOTH = "prediction and update"


def sites(basis: Basis, layout: ReachabilityRound, exact: bool, mean: bool) -> dict[str, tuple[Location, ...]]:
    """The locations of every variable; ``exact`` where heads are hard and linear, ``mean`` where 2.1 averages."""
    nodes = layout.outcomes
    bound = tuple(f"{'e' if layout.marks else 't'}_{i}" for i in range(1, layout.n_edges + 1))
    candidates = ("c_1", "c_2")

    def each(name: str, hook: str, labels: tuple[str, ...], block: str, drives: str) -> Location:
        """One number per node, at each of the positions."""
        return Location.grid(name, hook, labels, [basis[block][node] for node in nodes], drives)

    score = Location(
        "score 2.1",
        "blocks.1.attn.hook_attn_scores",
        ("w?",) * len(bound),
        keys=bound,
        head="2.1",
        drives="update",
    )
    return {
        "source": (each("edges", POST(0), bound, "far", "update"),),
        "target": (each("edges", POST(0), bound, "near" if layout.marks else "id", "update"),),
        "root": (each("embed", "hook_embed", ("r",), "id", "update"),),
        "candidates": (each("embed", "hook_embed", candidates, "id", "prediction"),),
        "reached": (each("latent", "hook_embed", ("<z>",), "id", BOTH),),
        "frontier": (each("w?", POST(0), ("w?",), "near", "update"),),
        "member": (Location("candidates", POST(0), candidates, (basis["out"]["in"],) * 2, drives="prediction"),),
        **({"active": (score,)} if exact else {}),
        "prediction": (each("p?", POST(1), ("p?",), "out", "prediction"),),
        "next_reached": (each("w?", POST(1), ("w?",), "id", "update"),),
    }


# What an interchange shows.

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


# What verification compares.


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


PLAN = VerificationPlan(
    sizes=((5, 4), (8, 12), (14, 20), (30, 60)), episodes=_episodes, output="prediction", tolerance=_tolerance
)
"""How :func:`circuits.verify` checks this machine."""
