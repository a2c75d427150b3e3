r"""Weighted Majority as a transformer over one round (paper, section 3), corrected.

    P(y_t = 1) = sum_{i: p_i = 1} w_i / sum_i w_i,     lambda_i <- lambda_i + log(gamma) [p_i = y_t],     w = e^lambda

The one latent is ``z_t = sum_i lambda_i u_{e_i}`` in block id, 0 at the start. Sequence
``w z_t e_1 p_1 ... e_n p_n p? | y_t w?``; ``w`` at position 1 is the attention sink. Two variants:

* "R" (default, 3 layers, 8 heads): head 2.3 carries z_t to w?, the linear head 3.2 adds log(gamma) per match.
* "P" (nearest to the paper, 4 layers, 7 heads): head 3.2 rebuilds every lambda_i and adds in one go.

Both correct the printed construction, which looks one token ahead and mixes z_t into keys and values (the tests in
tests/circuits/test_errata_wma.py measure each error). Votes here fetch the *previous* token. ``eta`` makes every head
softmax: hard heads at inverse temperature eta, the linear head by a heavy sink (R) or a pair of them (P).

Exact means equal to the algorithm up to rounding for axis-aligned coordinates; a rotated basis rounds more (1e-12 after
1,000 rounds). It says nothing about how a learned model works.

The log-weights of "R" are bitwise those of a plain sum in the model's dtype. A dyadic log(gamma), such as 0.5 or
13/32, is summed exactly; any other drifts with rounding. ln 1.5 in float32: by 5e-5, 2e-3, 0.3 and 31 after 1e2, 1e3,
1e4 and 1e5 rounds (log-weights then near 35,000); take float64 or a dyadic log(gamma) for long runs.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from circuits.basis import Basis, Direction, PositionCode
from circuits.circuit import Circuit, Edge, Site, Variable
from circuits.heads import (
    Head,
    Term,
    content_chooser,
    copy,
    fixed_offset,
    heavy_sink,
    match,
    needs_float64,
    shift_terms,
    soften,
    softmax_pair,
)
from interp.tasks.experts import predictors as reference
from interp.errors import require, unknown_name
from interp.tasks.experts.layout import ExpertRound
from interp.tasks.experts import ExpertEpisodes

VARIANTS = ("R", "P")
POSITIONS = ("one-hot", "sinusoidal")
NAME = "wma-handwired"
GATE = 60.0
"""Score that keeps tokens other than votes out of the prediction: their weight is at most e^-60 of a vote's."""
SINK = 200.0
"""Score that sends every query but p? to the sink in head 3.1."""


def weighted_majority(
    n_experts: int = 4,
    variant: str = "R",
    log_gamma: float = 0.5,
    eta: float | None = None,
    heavy: float = 36.0,
    match_logit: float = 120.0,
    epsilon: float = 1e-5,
    positions: str = "one-hot",
    n_lines: int = 16,
    seed: int = 0,
    rotation: int | None = None,
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
        positions: "one-hot", or "sinusoidal" with ``n_lines`` random Fourier lines drawn with ``seed``.
        rotation: seed of a random orthonormal basis; None keeps coordinates axis-aligned.

    Raises:
        InputError: a value outside its range.
    """
    arguments = dict(locals())
    if variant not in VARIANTS:
        raise unknown_name("variant", variant, VARIANTS)
    if positions not in POSITIONS:
        raise unknown_name("position code", positions, POSITIONS)
    for name, value in {"log_gamma": log_gamma, "heavy": heavy, "match_logit": match_logit, "epsilon": epsilon}.items():
        require(bool(np.isfinite(value) and value > 0), f"{name} must be a number > 0, got {value!r}")
    require(eta is None or bool(np.isfinite(eta) and eta > 0), f"eta must be a number > 0 or None, got {eta!r}")
    layout = ExpertRound(n_experts)
    codes = (
        PositionCode.one_hot(layout.labels)
        if positions == "one-hot"
        else PositionCode.sinusoidal(layout.labels, min(n_lines, layout.n_positions), seed)
    )
    basis = Basis.of(("id", "buf1", "buf2", "buf3"), map(_name, layout.vocabulary), codes, rotation)
    heads = _heads(basis, n_experts, variant, log_gamma)
    if eta is not None:
        heads = _softmax_only(heads, basis["id"]["w"], variant, log_gamma, eta, heavy, match_logit, epsilon)
    ids = basis["id"]
    return Circuit(
        name=NAME,
        arguments=arguments,
        layout=layout,
        basis=basis,
        heads=heads,
        tokens={token: ids[_name(token)] for token in layout.vocabulary},
        latents=(basis.zero,),
        outcomes=(basis["buf3"]["q0"], basis["buf3"]["q1"]),
        state=tuple(ids[expert] for expert in experts_of(n_experts)),
        variables=_variables(basis, n_experts, variant, log_gamma, exact=eta is None),
        edges=_edges(variant, exact=eta is None),
        float64_only=needs_float64("variant 'P'", "'R'") if variant == "P" and eta is not None else "",
    )


def experts_of(n_experts: int) -> tuple[str, ...]:
    return tuple(f"e_{i}" for i in range(1, n_experts + 1))


def _name(token: str) -> str:
    return token.strip("<>")


def _heads(basis: Basis, n: int, variant: str, log_gamma: float) -> tuple[Head, ...]:
    """Sections 1-3 of the round, layer by layer."""
    ids, buf1 = basis["id"], basis["buf1"]
    experts, votes, sink, one = experts_of(n), ("q0", "q1"), ids["w"], basis.one
    tagged: Direction = buf1["w"] - sink  # The tag is on w too (it sees only itself): subtract it there.
    ask_z = ids["p?"] + ids["w?"] if variant == "P" else ids["p?"]
    prediction: tuple[Term, ...] = (
        *match(basis, experts, "buf2", "buf1"),
        (-GATE * ids["p?"], one - ids.sum(votes)),
        (SINK * (one - ids["p?"]), sink),
    )
    matches = match(basis, votes, "buf3", "id", log_gamma)
    common = (
        fixed_offset(
            "1.1 bind",
            0,
            1,
            copy(basis, (*experts, "p?"), "id", "buf1"),
            gate=one - ids.sum(votes),
            sink=sink,
            reads="votes and y look one token back",
            writes="buf1(p_i) = u_{e_i}; buf1(y) = u_{p?}",
        ),
        Head(
            "1.2 state tag",
            0,
            "hard",
            shift_terms(basis, 1),
            copy(basis, ("w",), "id", "buf1"),
            "every token looks one token back",
            "buf1(z) = u_w",
        ),
        content_chooser(
            "2.1 fetch z",
            1,
            ((ask_z, tagged),),
            copy(basis, experts, "id", "buf2"),
            sink,
            reads=("p? and w? look" if variant == "P" else "p? looks") + " for the tag of z",
            writes="buf2(p?) = z_t" + ("; buf2(w?) = z_t" if variant == "P" else ""),
        ),
        content_chooser(
            "2.2 fetch y",
            1,
            ((ids["w?"], buf1["p?"]),),
            copy(basis, votes, "id", "buf3"),
            sink,
            reads="w? looks for the token bound to p?",
            writes="buf3(w?) = u_{q_y}",
        ),
    )
    carry = content_chooser(
        "2.3 carry z",
        1,
        ((ids["w?"], tagged),),
        copy(basis, experts, "id", "id"),
        sink,
        reads="w? looks for the tag of z",
        writes="id(w?) = u_{w?} + z_t",
    )
    predict = Head(
        "3.1 predict",
        2,
        "softmax",
        prediction,
        copy(basis, votes, "id", "buf3"),
        "p? weighs each vote by e^lambda of the expert bound to it",
        "buf3(p?) = (1 - P) u_{q0} + P u_{q1}",
    )
    update = Head(
        "3.2 update",
        2,
        "linear",
        matches if variant == "R" else (*match(basis, experts, "buf2", "buf1"), *matches),
        copy(basis, experts, "buf1", "id"),
        "w? scores each vote " + ("by log(gamma) if it is y" if variant == "R" else "lambda_i + log(gamma) [p_i = y]"),
        "id(w?) += log(gamma) sum_i m_i u_{e_i}" if variant == "R" else "id(w?) = u_{w?} + z_{t+1}",
    )
    late = 2 if variant == "R" else 3
    cleared = (*copy(basis, ("w?",), "id", "id", -1.0), *copy(basis, votes, "buf3", "buf3", -1.0))
    if variant == "P":
        cleared = (*cleared, *copy(basis, experts, "buf2", "buf2", -1.0))
    clean = content_chooser(
        "3.3 clean up" if variant == "R" else "4.1 clean up",
        late,
        ((ids["w?"], ids["w?"]),),
        cleared,
        sink,
        reads="w? looks at itself",
        writes="h(w?) = z_{t+1}, nothing else",
    )
    return (*common, carry, predict, update, clean) if variant == "R" else (*common, predict, update, clean)


def _softmax_only(
    heads: tuple[Head, ...],
    sink: Direction,
    variant: str,
    log_gamma: float,
    eta: float,
    heavy: float,
    match_logit: float,
    epsilon: float,
) -> tuple[Head, ...]:
    """Every head as softmax."""
    out: list[Head] = []
    for head in heads:
        if head.rule == "hard":
            out.append(soften(head, eta))
        elif head.rule == "softmax":
            out.append(head)
        elif variant == "R":
            out.append(heavy_sink(head, sink, log_gamma, match_logit, heavy))
        else:
            out += softmax_pair(head, sink, epsilon, heavy)
    return tuple(out)


# Ground truth.


def matches_of(episodes: ExpertEpisodes) -> np.ndarray:
    """m_i: whether expert i was right, ``[episode, round, expert]``."""
    return (episodes.advice == episodes.labels[..., None]).astype(np.float64)


def _variables(basis: Basis, n: int, variant: str, log_gamma: float, exact: bool) -> tuple[Variable, ...]:
    ids, buf1, buf2, buf3 = (basis[block] for block in ("id", "buf1", "buf2", "buf3"))
    experts, last = experts_of(n), 2 if variant == "R" else 3
    votes_at = tuple(f"p_{i}" for i in range(1, n + 1))

    def weights(episodes: ExpertEpisodes) -> np.ndarray:
        return reference.log_weights(episodes, eta=log_gamma)

    def site(hook: str, labels: tuple[str, ...], directions: tuple[Direction, ...], drives: str = "") -> Site:
        return Site(hook, labels, directions, drives=drives)

    def each(block: Any, label: str) -> tuple[tuple[str, ...], tuple[Direction, ...]]:
        return (label,) * n, tuple(block[expert] for expert in experts)

    def predictions(episodes: ExpertEpisodes) -> np.ndarray:
        return reference.weighted_majority(episodes, eta=log_gamma).predictions[..., None]

    carried = each(buf2, "w?") if variant == "P" else each(ids, "w?")
    post = "blocks.{}.hook_resid_post".format
    variables = [
        Variable(
            "log_weights",
            "lambda_i",
            "log-weight of each expert before the round",
            lambda episodes: weights(episodes)[:, :-1],
            (
                site("hook_embed", *each(ids, "<z>"), "prediction and update"),
                site(post(1), *each(buf2, "p?"), "prediction"),
                site(post(1), *carried, "update"),
            ),
        ),
        Variable(
            "binding",
            "e(p_i)",
            "each vote knows its expert",
            lambda episodes: np.ones(episodes.advice.shape),
            (site(post(0), votes_at, tuple(buf1[expert] for expert in experts), "prediction and update"),),
        ),
        Variable(
            "votes",
            "p_i",
            "the votes: (q0, q1) of each",
            lambda episodes: np.stack([1 - episodes.advice, episodes.advice], -1).astype(np.float64),
            tuple(
                site(
                    hook,
                    tuple(label for label in votes_at for _ in range(2)),
                    (ids["q0"], ids["q1"]) * n,
                    "prediction and update",
                )
                for hook in ("hook_embed", post(0), post(1))
            ),
        ),
        Variable(
            "label",
            "y_t",
            "the truth at w?: (q0, q1)",
            lambda episodes: np.stack([1 - episodes.labels, episodes.labels], -1).astype(np.float64),
            (site(post(1), ("w?", "w?"), (buf3["q0"], buf3["q1"]), "update"),),
        ),
        Variable(
            "prediction",
            "P(y_t = 1)",
            "the weighted share of votes for 1",
            predictions,
            (site(post(2), ("p?",), (buf3["q1"],), "prediction"),),
        ),
        Variable(
            "next_log_weights",
            "lambda_{i,t+1}",
            "log-weight of each expert after the round",
            lambda episodes: weights(episodes)[:, 1:],
            (site(post(last), *each(ids, "w?"), "update"),),
        ),
    ]
    if exact:
        scores = Site(
            "blocks.2.attn.hook_attn_scores",
            ("w?",) * n,
            keys=votes_at,
            head="3.2",
            scale=log_gamma if variant == "R" else 1.0,
            drives="update",
        )
        if variant == "R":
            right = Variable("match", "m_i", "whether each expert was right", matches_of, (scores,))
        else:
            symbol, meaning = "lambda_i + log(gamma) m_i", "what head 3.2 gives each expert"
            right = Variable("match", symbol, meaning, lambda episodes: weights(episodes)[:, 1:], (scores,))
        variables.insert(4, right)
    return tuple(variables)


def _edges(variant: str, exact: bool) -> tuple[Edge, ...]:
    bind, tag, fetch_z, fetch_y, predict = "1.1 bind", "1.2 state tag", "2.1 fetch z", "2.2 fetch y", "3.1 predict"
    clean = "3.3 clean up" if variant == "R" else "4.1 clean up"
    updates = ("3.2 update",) if exact or variant == "R" else ("3.2+ update", "3.2- update")
    edges = [
        Edge(tag, fetch_z, "key", "where z is"),
        Edge(bind, fetch_y, "key", "which token follows p?"),
        Edge(bind, predict, "key", "which expert voted"),
        Edge(fetch_z, predict, "query", "log-weights"),
        Edge(predict, "prediction", "residual", "P(y = 1)"),
    ]
    for update in updates:
        edges += [
            Edge(bind, update, "value", "whose log-weight grows"),
            Edge(fetch_y, update, "query", "the truth"),
            Edge(update, "update", "residual", "what is added" if variant == "R" else "new log-weights"),
        ]
        if variant == "P":
            edges += [Edge(bind, update, "key", "which expert voted"), Edge(fetch_z, update, "query", "log-weights")]
    if variant == "R":
        carry = "2.3 carry z"
        edges += [Edge(tag, carry, "key", "where z is"), Edge(carry, "update", "residual", "old log-weights")]
    else:
        edges.append(Edge(fetch_z, clean, "value", "the copy of z to remove"))
    edges += [
        Edge(fetch_y, clean, "value", "the copy of y to remove"),
        Edge(clean, "update", "residual", "minus everything else"),
    ]
    return tuple(edges)
