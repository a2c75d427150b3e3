"""Ground truth of the Weighted Majority circuit: where each variable lives, which part reads what, and what
verification compares.

The variables are those of ``interp.tasks.experts.algorithms.weighted_majority``; ``circuit.ground_truth()`` lists their
locations. Scores of head 3.2 hold one with exact heads only: in "R" ``match``, 0 or 1 for each expert; in "P", which
scores every vote by its new log-weight, ``next_log_weights``.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from circuits.basis import Axes, Basis
from circuits.circuit import Circuit, Location, VerificationPlan
from circuits.heads import numbered
from circuits.soft import leak, pair_error
from circuits.stated import Carried, Edge, table
from interp.algorithm import Values
from interp.tasks.experts import ExpertEpisodes, sample
from interp.tasks.experts.layout import ExpertRound

_POST = "blocks.{}.hook_resid_post".format
_BOTH = "prediction and update"


def sites(basis: Basis, n: int, variant: str, log_gamma: float, exact: bool) -> dict[str, tuple[Location, ...]]:
    """The locations of every variable of one variant; ``exact`` where heads are hard and linear."""
    ids, buf1, buf2, buf3 = (basis[block] for block in ("id", "buf1", "buf2", "buf3"))
    experts, votes = numbered("e", n), numbered("p", n)
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
    binding, outcomes = tuple(buf1[expert] for expert in experts), (ids["q0"], ids["q1"])
    updated = each("w?", _POST(last), "w?", ids, "update")
    return {
        "log_weights": (
            each("latent", "hook_embed", "<z>", ids, _BOTH),
            each("p?", _POST(1), "p?", buf2, "prediction"),
            each("w?", _POST(1), "w?", buf2 if variant == "P" else ids, "update"),
        ),
        "binding": (Location("votes", _POST(0), votes, binding, drives=_BOTH),),
        "votes": (
            Location.grid("embed", "hook_embed", votes, outcomes, _BOTH),
            *(Location.grid(f"resid_post[{layer}]", _POST(layer), votes, outcomes, _BOTH) for layer in (0, 1)),
        ),
        "label": (Location.grid("w?", _POST(1), ("w?",), (buf3["q0"], buf3["q1"]), "update"),),
        **({"match": (score,)} if exact and variant == "R" else {}),
        "prediction": (Location("p?", _POST(2), ("p?",), (buf3["q1"],), drives="prediction"),),
        "next_log_weights": (updated, score) if exact and variant == "P" else (updated,),
    }


_EDGES = """
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
_EDGES_R = """
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
_EDGES_P = """
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
_EDGES_LINEAR = """
tokens  3.2  key  content  VOTES y  votes (y matches itself, but is bound to no expert)
"""
_EDGES_HEAVY_SINK = """
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
    lines = _EDGES + (_EDGES_R if variant == "R" else _EDGES_P) + (_EDGES_LINEAR if exact else _EDGES_HEAVY_SINK)
    return table(lines, parts, groups)


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


def _soft(circuit: Circuit, values: Values, key: str) -> tuple[float, str]:
    """What softmax heads leave: each round each layer lets a share of the largest number at other positions through.

    The state is read again in every round, so that its errors add up; a prediction moves by at most half as much as
    the log-weights do. Pairs (variant P) miss each round's log-weights by a cubic term, which adds up, too.
    """
    lost = leak(circuit)
    if not lost or key == "position_code":
        return 0.0, ""
    n, rounds = len(circuit.layout.labels), values["log_weights"].shape[1]
    largest = np.maximum(1.0, np.abs(values["next_log_weights"]).max((0, 2)))
    once = circuit.n_layers * n * lost
    if key not in (*_STATE, "match", "prediction", "distribution", "residue"):
        return once, f"{circuit.n_layers} layers x {n} positions x e^(-eta/2)"
    size = float(largest[-1])
    if key == "residue":
        return once * size, f"{circuit.n_layers} layers x {n} positions x e^(-eta/2) x log-weights of {size:.0f}"
    total, why = rounds * once * size, f"{rounds} rounds x {circuit.n_layers} x {n} x e^(-eta/2) x {size:.0f}"
    if circuit.arguments["variant"] == "P":
        total += float(pair_error(circuit, largest).sum())
        why = f"{why} + sum of epsilon^2 x^3 / 6 + rounding / epsilon"
    else:
        heavy = float(np.exp(-circuit.arguments["heavy"]) + np.exp(-circuit.arguments["match_logit"]))
        total += rounds * circuit.arguments["n_experts"] * heavy * circuit.arguments["log_gamma"]
        why = f"{why} + {rounds} x experts x e^-heavy"
    return (total / _unit(circuit, values, "log_weights"), why) if key in _STATE else (total, why)


PLAN = VerificationPlan(
    sizes=(2, 4, 8, 32), episodes=_episodes, output="prediction", tolerance=_tolerance, unit=_unit, soft=_soft
)
"""How :func:`circuits.verify` checks this machine."""
