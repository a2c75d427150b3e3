"""Ground truth of the Weighted Majority circuit: where each variable lives, and what verification compares.

Locations by variable of ``interp.tasks.experts.algorithms.weighted_majority``, for ``circuit.location(key, name)``::

    log_weights       latent, p?, w?                             both variants
    binding           votes
    votes             embed, resid_post[0], resid_post[1]        one-hot: (q0, q1) of each vote
    label             w?                                         one-hot: (q0, q1)
    match             score 3.2                                  variant "R", exact heads only; 0 or 1 per expert
    prediction        p?
    next_log_weights  w?; in "P" with exact heads also score 3.2

In "P" head 3.2 scores every vote by its new log-weight, so its scores are no match but ``next_log_weights``.
"""

from __future__ import annotations

import numpy as np

from circuits.basis import Axes, Basis, Direction
from circuits.carried import Carried
from circuits.circuit import Circuit, Location, VerificationPlan
from interp.algorithm import Values
from interp.tasks.experts import ExpertEpisodes, sample

POST = "blocks.{}.hook_resid_post".format
BOTH = "prediction and update"


def sites(basis: Basis, n: int, variant: str, log_gamma: float, exact: bool) -> dict[str, tuple[Location, ...]]:
    """The locations of every variable of one variant; ``exact`` where heads are hard and linear."""
    ids, buf1, buf2, buf3 = (basis[block] for block in ("id", "buf1", "buf2", "buf3"))
    experts, votes = tuple(f"e_{i}" for i in range(1, n + 1)), tuple(f"p_{i}" for i in range(1, n + 1))
    last = 2 if variant == "R" else 3

    def each(name: str, hook: str, label: str, block: Axes, drives: str) -> Location:
        """One number per expert, all at one position."""
        return Location.grid(name, hook, (label,), [block[expert] for expert in experts], drives)

    score = Location(
        "score 3.2",
        "blocks.2.attn.hook_attn_scores",
        ("w?",) * n,
        keys=votes,
        head="3.2",
        scale=log_gamma if variant == "R" else 1.0,
        drives="update",
        one_hot=False,
    )
    binding: tuple[Direction, ...] = tuple(buf1[expert] for expert in experts)
    outcomes = ids["q0"], ids["q1"]
    updated = each("w?", POST(last), "w?", ids, "update")
    return {
        "log_weights": (
            each("latent", "hook_embed", "<z>", ids, BOTH),
            each("p?", POST(1), "p?", buf2, "prediction"),
            each("w?", POST(1), "w?", buf2 if variant == "P" else ids, "update"),
        ),
        "binding": (Location("votes", POST(0), votes, binding, drives=BOTH),),
        "votes": (
            Location.grid("embed", "hook_embed", votes, outcomes, BOTH),
            Location.grid("resid_post[0]", POST(0), votes, outcomes, BOTH),
            Location.grid("resid_post[1]", POST(1), votes, outcomes, BOTH),
        ),
        "label": (Location.grid("w?", POST(1), ("w?",), (buf3["q0"], buf3["q1"]), "update"),),
        **({"match": (score,)} if exact and variant == "R" else {}),
        "prediction": (Location("p?", POST(2), ("p?",), (buf3["q1"],), drives="prediction"),),
        "next_log_weights": (updated, score) if exact and variant == "P" else (updated,),
    }


# What an interchange shows.

CARRIED = (
    Carried("log_weights", ("latent",), "prediction"),
    Carried("log_weights", ("latent",), "state"),
    Carried("log_weights", ("p?",), "prediction"),
    Carried("log_weights", ("w?",), "state"),
    *(
        Carried("votes", (at,), outcome)
        for at in ("embed", "resid_post[0]", "resid_post[1]")
        for outcome in ("prediction", "state")
    ),
    Carried("label", ("w?",), "state"),
    Carried("match", ("score 3.2",), "state"),
    Carried("prediction", ("p?",), "prediction"),
    Carried("next_log_weights", ("score 3.2",), "state"),
    Carried("next_log_weights", ("w?",), "state"),
)
"""Which locations together hold a variable, of all variants; one holds the rows whose locations it has."""
PARTIAL = {("binding", "votes"): "a constant: it differs between no two episodes, and the algorithm reads it nowhere"}
"""What a location that no row names does when it is set alone."""
NOT_CARRIED = {
    "embed@<w>": ("log_weights", "prediction"),
    "resid_post[1]@y": ("log_weights", "prediction"),
    "embed@p?": ("label", "state"),
}
"""Site -> a variable that it does not hold, and the outcome: controls."""


# What verification compares.


def _episodes(circuit: Circuit, n_rounds: int, n_episodes: int, seed: int) -> ExpertEpisodes:
    return sample(n_episodes, n_rounds, circuit.arguments["n_experts"], seed=seed)


_STATE = ("log_weights", "next_log_weights", "carried_state")


def _tolerance(key: str, dtype: str) -> tuple[float, str]:
    """Log-weights grow with time, so they are held to a relative error."""
    if dtype == "float32":
        return 1e-5, "relative"
    return (1e-9 if key in (*_STATE, "match") else 1e-12), "relative"


def _unit(circuit: Circuit, values: Values, key: str) -> float:
    """Log-weights count in gains; a prediction loses the digits that log-weights beyond 500 take."""
    if key in _STATE:
        return float(circuit.arguments["log_gamma"])
    return max(1.0, float(np.abs(values["next_log_weights"]).max()) / 500) if key == "prediction" else 1.0


PLAN = VerificationPlan(sizes=(2, 4, 8, 32), episodes=_episodes, output="prediction", tolerance=_tolerance, unit=_unit)
"""How :func:`circuits.verify` checks this machine."""
