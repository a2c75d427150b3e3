"""The heads of Weighted Majority, section by section of the round, its softmax-only form, and its ground truth.

``heads.csv`` says what each head reads and writes, ``edges.csv`` which part reads what. What the scores of head 3.2
hold: ``docs/method/weighted-majority.md``.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from circuits import heads as wire
from circuits.basis import Basis, Coordinates, Direction
from circuits.circuit import Circuit, VerificationPlan, held, located, table
from interp.core.algorithm import Values
from interp.support.errors import require, require_known
from interp.tasks.experts import algorithms, sample
from interp.tasks.experts.layout import ExpertRound

_FOLDER = Path(__file__).parent
_VARIANTS = ("R", "P")
_NAME = "wma-handwired"
_GATE = 60.0
"""Score that keeps tokens other than votes out of the prediction: their weight is at most e^-60 of a vote's."""
_SINK = 200.0  # score that sends every query but p? to the sink in head 3.1

_AMPLIFIED, _MOST_AMPLIFIED = 10.0, 2e-6
"""Errors of predictions of a rotated R in units of e^heavy times a rounding, and the largest that one may have."""


@Coordinates.taken_by
def weighted_majority(
    n_experts: int = 4,
    variant: str = "R",
    log_gamma: float = 0.5,
    eta: float | None = None,
    heavy: float = 36.0,
    match_logit: float = 120.0,
    epsilon: float = 1e-5,
    *,
    coordinates: Coordinates,
) -> Circuit:
    """The Weighted Majority circuit.

    Args:
        n_experts: at least 1.
        variant: "R" or "P", see above.
        log_gamma: log of the factor gamma > 1 by which a right expert's weight grows.
        eta: None for hard and linear heads (exact); else every head is softmax, at inverse temperature ``eta``.
        heavy: S of the sink that makes softmax sum (36 in float64, 20 in float32).
        match_logit: logit of a match in the softmax form of head 3.2 (R; 120 in float64, 60 in float32).
        epsilon: of the pair of heads that replaces the linear one (P, in float64 only).
        coordinates: by the names of their fields: ``positions``, ``n_lines``, ``seed``, ``rotation``.
    """
    arguments = coordinates.joined(locals())
    require_known("variant", variant, _VARIANTS)
    for name, value in {
        "log_gamma": log_gamma,
        "heavy": heavy,
        "match_logit": match_logit,
        "epsilon": epsilon,
    }.items():
        require(
            bool(np.isfinite(value) and value > 0), f"{name} must be a number > 0, got {value!r}"
        )
    amplified = _AMPLIFIED * float(np.exp(heavy) * np.finfo(np.float64).eps)
    require(
        variant == "P"
        or eta is None
        or coordinates.rotation is None
        or amplified <= _MOST_AMPLIFIED,
        f"in a rotated basis the heavy sink e^{heavy:g} makes up to {amplified:.1g} of a rounding of 2e-16, in every "
        f"prediction, and at most {_MOST_AMPLIFIED:g} may stand there; give heavy=20 or less, no rotation, or no eta",
    )
    layout = ExpertRound(n_experts)
    tokens = tuple(token.strip("<>") for token in layout.vocabulary)
    basis = coordinates.basis(dict.fromkeys(("id", "buf1", "buf2", "buf3"), tokens), layout.labels)
    ids = basis["id"]
    heads = wire.softmax_only(
        _heads(basis, n_experts, variant, log_gamma),
        eta,
        lambda head: (
            wire.softmax_pair(head, ids["w"], epsilon, heavy)
            if variant == "P"
            else (wire.heavy_sink(head, ids["w"], log_gamma, match_logit, heavy),)
        ),
    )
    every, form = layout.labels, {variant, "softmax" if eta else "exact"}
    groups = {
        "ALL": every,
        "EXPERTS": wire.numbered("e", n_experts),
        "VOTES": wire.numbered("p", n_experts),
        # Only one-hot codes have no axis for what lies outside the round.
        "BEFORE": every[:-1] if coordinates.one_hot else every,
        "AFTER": every[1:] if coordinates.one_hot else every,
    }
    sites = located(
        wire.stated(_FOLDER / "sites.csv", form), basis, groups, {}, {"log_gamma": log_gamma}
    )
    return Circuit(
        name=_NAME,
        arguments=arguments,
        layout=layout,
        basis=basis,
        heads=heads,
        tokens={token: ids[token.strip("<>")] for token in layout.vocabulary},
        latents=(basis.zero,),
        outcomes=(basis["buf3"]["q0"], basis["buf3"]["q1"]),
        state=tuple(ids[expert] for expert in wire.numbered("e", n_experts)),
        algorithm=algorithms.weighted_majority(log_gamma),
        sites=sites,
        **held(wire.stated(_FOLDER / "held.csv", form), sites, groups),
        edges=table(wire.stated(_FOLDER / "edges.csv", form), wire.names(heads), groups),
        float64_only=_float64_only(variant, eta, coordinates.rotation),
    )


def _float64_only(variant: str, eta: float | None, rotation: int | None) -> str:
    """Why float32 does not do; empty where it does."""
    if eta is None or (variant == "R" and rotation is None):
        return ""
    if variant == "P":
        return wire.needs_float64("variant 'P'", "'R'")
    return (
        "in a rotated basis the heavy sink that variant 'R' has at a finite eta amplifies the rounding of float32; "
        "load it with dtype='float64', or without rotation"
    )


def _heads(basis: Basis, n: int, variant: str, log_gamma: float) -> tuple[wire.Head, ...]:
    """Sections 1-3 of the round, layer by layer."""
    ids, buf1 = basis["id"], basis["buf1"]
    experts, votes, sink, one = wire.numbered("e", n), ("q0", "q1"), ids["w"], basis.one
    tagged: Direction = (
        buf1["w"] - sink
    )  # The tag is on w too (it sees only itself): subtract it there.
    ask_z = ids["p?"] + ids["w?"] if variant == "P" else ids["p?"]
    prediction: tuple[wire.Term, ...] = (
        *wire.match(basis, experts, "buf2", "buf1"),
        (-_GATE * ids["p?"], one - ids.sum(votes)),
        (_SINK * (one - ids["p?"]), sink),
    )
    matches = wire.match(basis, votes, "buf3", "id", log_gamma)
    r = variant == "R"
    scored = matches if r else (*wire.match(basis, experts, "buf2", "buf1"), *matches)
    cleared = (
        *wire.copy(basis, ("w?",), "id", "id", -1.0),
        *wire.copy(basis, votes, "buf3", "buf3", -1.0),
    )
    if not r:
        cleared = (*cleared, *wire.copy(basis, experts, "buf2", "buf2", -1.0))
    bind = wire.copy(basis, (*experts, "p?"), "id", "buf1")
    carry = wire.content_chooser(
        "2.3 carry z", 1, ((ids["w?"], tagged),), wire.copy(basis, experts, "id", "id"), sink
    )
    heads = (
        wire.fixed_offset("1.1 bind", 0, 1, bind, one - ids.sum(votes), sink),
        wire.Head(
            "1.2 state tag",
            0,
            "hard",
            wire.shift_terms(basis, 1),
            wire.copy(basis, ("w",), "id", "buf1"),
        ),
        wire.content_chooser(
            "2.1 fetch z", 1, ((ask_z, tagged),), wire.copy(basis, experts, "id", "buf2"), sink
        ),
        wire.content_chooser(
            "2.2 fetch y",
            1,
            ((ids["w?"], buf1["p?"]),),
            wire.copy(basis, votes, "id", "buf3"),
            sink,
        ),
        *((carry,) if r else ()),
        wire.Head("3.1 predict", 2, "softmax", prediction, wire.copy(basis, votes, "id", "buf3")),
        wire.Head("3.2 update", 2, "linear", scored, wire.copy(basis, experts, "buf1", "id")),
        wire.content_chooser(
            "3.3 clean up" if r else "4.1 clean up",
            2 if r else 3,
            ((ids["w?"], ids["w?"]),),
            cleared,
            sink,
        ),
    )
    return wire.in_words(heads, wire.stated(_FOLDER / "heads.csv", {variant}))


_STATE = ("log_weights", "next_log_weights", "carried_state")


def _unit(circuit: Circuit, values: Values, key: str) -> float:
    """Log-weights count in gains; a prediction loses the digits that log-weights beyond 500 take."""
    if key in _STATE:
        return float(circuit.arguments["log_gamma"])
    return (
        max(1.0, float(np.abs(values["next_log_weights"]).max()) / 500)
        if key == "prediction"
        else 1.0
    )


def _soft(circuit: Circuit, values: Values, key: str) -> tuple[float, str]:
    """What softmax heads leave: each round each layer lets a share of the largest number at other positions through."""
    lost = circuit.leak
    if not lost or key == "position_code":
        return 0.0, ""
    n, rounds = len(circuit.layout.labels), values["log_weights"].shape[1]
    largest = np.maximum(1.0, np.abs(values["next_log_weights"]).max((0, 2)))
    once = circuit.n_layers * n * lost
    if key not in (*_STATE, "match", "prediction", "distribution", "residue"):
        return once, f"{circuit.n_layers} layers x {n} positions x e^(-eta/2)"
    size = float(largest[-1])
    if key == "residue":
        return (
            once * size,
            f"{circuit.n_layers} layers x {n} positions x e^(-eta/2) x log-weights of {size:.0f}",
        )
    total, why = (
        rounds * once * size,
        f"{rounds} rounds x {circuit.n_layers} x {n} x e^(-eta/2) x {size:.0f}",
    )
    if circuit.arguments["variant"] == "P":
        total += float(circuit.pair_error(largest).sum())
        why = f"{why} + sum of epsilon^2 x^3 / 6 + rounding / epsilon"
    else:
        heavy = float(
            np.exp(-circuit.arguments["heavy"]) + np.exp(-circuit.arguments["match_logit"])
        )
        total += rounds * circuit.arguments["n_experts"] * heavy * circuit.arguments["log_gamma"]
        why = f"{why} + {rounds} x experts x e^-heavy"
    return (total / _unit(circuit, values, "log_weights"), why) if key in _STATE else (total, why)


PLAN = VerificationPlan(
    sizes=(2, 4, 8, 32),
    episodes=lambda circuit, rounds, n, seed: sample(
        n, rounds, circuit.arguments["n_experts"], seed=seed
    ),
    output="prediction",
    # Log-weights grow with time, so they are held to a relative error.
    tolerance=lambda key, dtype: (
        1e-5 if dtype == "float32" else 1e-9 if key in (*_STATE, "match") else 1e-12,
        "relative",
    ),
    unit=_unit,
    soft=_soft,
)
"""How :func:`circuits.verify` checks this machine."""
