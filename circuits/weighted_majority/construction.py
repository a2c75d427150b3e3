"""Build the Weighted Majority circuit: its heads, its softmax-only form, and its ground truth.

``heads.csv`` says what each head reads and writes, and ``edges.csv`` which component reads the
output of which other component.
``docs/method/weighted-majority.md`` explains the scores of head 3.2.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path

import numpy as np

from circuits import heads as wire
from circuits.basis import Basis, Coordinates
from circuits.circuit import Circuit, VerificationPlan, read_tables
from interp.core.algorithm import Values
from interp.support.errors import require, require_known
from interp.tasks.experts import ExpertEpisodes, algorithms, sample
from interp.tasks.experts.layout import ExpertRound
from interp.tasks.sized_round import number_names

_FOLDER = Path(__file__).parent
_VARIANTS = ("R", "P")
_NAME = "wma-handwired"
_VOTE_GATE = 60.0
"""Score that excludes tokens other than votes from the prediction: e^-60 of a vote's attention at
most.
"""
_SINK_SCORE = 200.0  # score that sends every query but p? to the sink in head 3.1

_N_AMPLIFIED_ROUNDINGS, _MOST_AMPLIFIED = 10.0, 2e-6
"""Error of a prediction of variant R in a rotated basis, in units of e^heavy roundings; the largest accepted error."""


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
    """Build the circuit that computes Weighted Majority with expert advice.

    Head 3.2, the second head of layer 3, updates the log-weights. It is linear: it weighs each key
    by its score, without a softmax.

    Args:
        n_experts: number of experts, at least 1.
        variant: "R" has 3 layers. One head copies the old log-weights to the token ``w?``, where
            the new state is read, and head 3.2 adds log_gamma for every right expert. "P" has 4
            layers, and the scores of head 3.2 are the new log-weights, as in the paper.
        log_gamma: log of the factor gamma > 1 by which the weight of an expert grows if the expert
            was right.
        eta: a number replaces all hard and linear heads by softmax heads, with which the circuit is
            nearly exact; it is the inverse temperature of those that replace hard heads. None keeps
            hard and linear heads, and the circuit is exact.
        heavy: used with ``eta``, in both variants, for the softmax heads that replace head 3.2:
            logit of the attention sink, a token that takes nearly all attention, minus the largest
            other logit (``match_logit`` in "R", about 0 in "P"). 36 suits float64, 20 float32. In
            a rotated basis, "R" needs about 20 or less.
        match_logit: used with ``eta``, in variant "R", for the softmax head that replaces head 3.2:
            logit of an expert who was right. 120 suits float64, 60 float32.
        epsilon: used with ``eta``, in variant "P", where two softmax heads replace head 3.2. Their
            logits are ``epsilon`` and ``-epsilon`` times the scores of head 3.2. A smaller
            ``epsilon`` makes the two more linear, but their rounding errors larger
            (:meth:`~circuits.circuit.Circuit.pair_error`). They need float64.
        coordinates: position codes and rotation of the basis. Callers pass the fields of
            :class:`~circuits.basis.Coordinates` as keywords in its place, as in
            ``weighted_majority(4, positions="sinusoidal", n_lines=16, seed=0, rotation=1)``.
    """
    arguments = coordinates.joined(locals())
    require_known("variant", variant, _VARIANTS)
    wire.require_positive(
        log_gamma=log_gamma, heavy=heavy, match_logit=match_logit, epsilon=epsilon
    )
    rounding = np.finfo(np.float64).eps
    amplified = _N_AMPLIFIED_ROUNDINGS * np.exp(heavy) * rounding
    has_heavy_sink = variant == "R" and eta is not None
    # Without a rotation the sink's value is exactly 0, so that there is nothing to amplify.
    is_exact = not has_heavy_sink or coordinates.rotation is None
    require(
        is_exact or amplified <= _MOST_AMPLIFIED,
        f"in a rotated basis the heavy sink e^{heavy:g} makes up to {amplified:.1g} of a rounding of 2e-16, in every "
        f"prediction, and at most {_MOST_AMPLIFIED:g} may stand there; give heavy=20 or less, no rotation, or no eta",
    )
    layout = ExpertRound(n_experts)
    tokens = {token: token.strip("<>") for token in layout.vocabulary}
    blocks = dict.fromkeys(("id", "buf1", "buf2", "buf3"), tuple(tokens.values()))
    basis = coordinates.basis(blocks, layout.labels)
    ids = basis["id"]

    def make_softmax_heads(head: wire.Head) -> tuple[wire.Head, ...]:
        """Return the softmax heads that replace a linear head: two in variant P, one in variant R."""
        if variant == "P":
            return wire.softmax_pair(head, sink=ids["w"], epsilon=epsilon, heavy=heavy)
        return (
            wire.approximate_linear_head(
                head, sink=ids["w"], scale=log_gamma, match_logit=match_logit, heavy=heavy
            ),
        )

    form = {variant, "softmax" if eta else "exact"}
    exact_heads = _make_heads(basis, n_experts, variant, log_gamma)
    described_heads = wire.add_descriptions(exact_heads, _FOLDER, form)
    heads = wire.softmax_only(described_heads, eta, make_softmax_heads)
    labels = layout.labels
    experts = number_names("e", n_experts)
    # Words of the tables -> labels.
    groups = {
        "ALL": labels,
        "EXPERTS": experts,
        "VOTES": number_names("p", n_experts),
        # Only one-hot codes have no axis for what lies outside the round.
        "BEFORE": labels[:-1] if coordinates.one_hot else labels,
        "AFTER": labels[1:] if coordinates.one_hot else labels,
    }
    scales = {"log_gamma": log_gamma}
    tables = read_tables(_FOLDER, form, parts=heads, basis=basis, groups=groups, scales=scales)
    scores = basis["buf3"]
    vectors = {token: ids[label] for token, label in tokens.items()}
    state = tuple(ids[expert] for expert in experts)
    return Circuit(
        name=_NAME,
        arguments=arguments,
        layout=layout,
        basis=basis,
        heads=heads,
        tokens=vectors,
        latents=(basis.zero,),
        outcomes=(scores["q0"], scores["q1"]),
        state=state,
        algorithm=algorithms.weighted_majority(log_gamma),
        **tables,
        float64_only=_explain_float64_only(variant, eta, coordinates.rotation),
    )


def _explain_float64_only(variant: str, eta: float | None, rotation: int | None) -> str:
    """Return a sentence that says why the circuit cannot be float32, or "" if it can.

    Args:
        variant: "R" or "P", as for :func:`weighted_majority`.
        eta: inverse temperature of a softmax-only circuit; None for hard heads.
        rotation: seed of the rotation of the residual basis; None for no rotation.
    """
    if eta is None or (variant == "R" and rotation is None):
        return ""
    if variant == "P":
        return wire.needs_float64("variant 'P'", "'R'")
    return (
        "in a rotated basis the heavy sink that variant 'R' has at a finite eta amplifies the rounding of float32; "
        "load it with dtype='float64', or without rotation"
    )


def _make_heads(basis: Basis, n: int, variant: str, log_gamma: float) -> list[wire.Head]:
    """Make all heads of the circuit, layer by layer.

    Args:
        basis: basis of the residual stream.
        n: number of experts.
        variant: "R" or "P", as for :func:`weighted_majority`.
        log_gamma: by how much an expert's log-weight grows when the expert is right.
    """
    ids, buf1, sink, constant = basis["id"], basis["buf1"], basis["id"]["w"], basis.one
    experts, votes = number_names("e", n), ("q0", "q1")
    is_r = variant == "R"

    copy = partial(wire.copy, basis)  # (labels, source block, target block, scale)
    # Head 1.2 marks the token after w, the latent, with the tag buf1[w]. The token w attends to
    # itself and gets the tag, too, which is subtracted: at_latent reads 1 at the latent alone.
    at_latent = buf1["w"] - sink
    # The tokens that fetch the state by head 2.1. In variant R, the update token uses head 2.3.
    fetching = ids["p?"] if is_r else ids["p?"] + ids["w?"]
    not_a_vote = constant - ids.sum(votes)
    same_expert = wire.match(basis, experts, "buf2", "buf1")
    same_vote = wire.match(basis, votes, "buf3", "id", log_gamma)
    to_votes = (-_VOTE_GATE * ids["p?"], not_a_vote)
    to_sink = (_SINK_SCORE * (constant - ids["p?"]), sink)
    # In variant R, head 3.2 only adds log_gamma; in P its scores are the new log-weights.
    scored = same_vote if is_r else (*same_expert, *same_vote)
    cleared = [*copy(("w?",), "id", "id", -1.0), *copy(votes, "buf3", "buf3", -1.0)]
    if not is_r:
        cleared += copy(experts, "buf2", "buf2", -1.0)
    update = ids["w?"]
    bound, tag = copy((*experts, "p?"), "id", "buf1"), copy(("w",), "id", "buf1")
    state, vote = copy(experts, "id", "buf2"), copy(votes, "id", "buf3")
    weights = copy(experts, "buf1", "id")
    previous = wire.shift_terms(basis, 1)
    of_update = ((update, buf1["p?"]),)
    heads = [
        wire.fixed_offset("1.1 bind", layer=0, offset=1, moves=bound, gate=not_a_vote, sink=sink),
        wire.Head("1.2 state tag", layer=0, rule="hard", scores=previous, moves=tag),
        wire.content_chooser(
            "2.1 fetch z", layer=1, wanted=((fetching, at_latent),), moves=state, sink=sink
        ),
        wire.content_chooser("2.2 fetch y", layer=1, wanted=of_update, moves=vote, sink=sink),
    ]
    if is_r:
        carried = copy(experts, "id", "id")
        heads.append(
            wire.content_chooser(
                "2.3 carry z", layer=1, wanted=((update, at_latent),), moves=carried, sink=sink
            )
        )
    predicting = (*same_expert, to_votes, to_sink)
    heads += [
        wire.Head("3.1 predict", layer=2, rule="softmax", scores=predicting, moves=vote),
        wire.Head("3.2 update", layer=2, rule="linear", scores=scored, moves=weights),
    ]
    name, layer = ("3.3 clean up", 2) if is_r else ("4.1 clean up", 3)
    heads.append(
        wire.content_chooser(
            name, layer=layer, wanted=((update, update),), moves=tuple(cleared), sink=sink
        )
    )
    return heads


_STATE_KEYS = ("log_weights", "next_log_weights", "carried_state")


def _get_unit(circuit: Circuit, values: Values, key: str) -> float:
    """Return the smallest divisor of a variable's relative errors: errors are divided by the larger
    of the true value and this unit.

    The unit is ``log_gamma`` for log-weights. For predictions it is the largest log-weight / 500,
    but at least 1, because rounding errors of a softmax grow with its logits. For all other
    variables it is 1.

    Args:
        circuit: the circuit, for ``log_gamma``.
        values: the values that the algorithm computes, by key of the variable.
        key: key of the variable.
    """
    if key in _STATE_KEYS:
        return float(circuit.arguments["log_gamma"])
    if key != "prediction":
        return 1.0
    # A prediction is a softmax of log-weights, whose rounding errors grow with their size.
    largest = float(np.abs(values["next_log_weights"]).max())
    return max(1.0, largest / 500)


def _bound_soft_error(circuit: Circuit, values: Values, key: str) -> tuple[float, str]:
    """Bound the error that softmax heads add to a variable.

    In each layer, a softmax head also attends a little to wrong positions, and so adds a small
    share of what they store: of log-weights, or of numbers of at most 1.

    Args:
        circuit: the circuit, for this share (``leak``), the sizes and the variant.
        values: the values that the algorithm computes, by key of the variable.
        key: key of the variable, or name of a check, such as "residue".

    Returns:
        The bound, and a text with its formula; (0, "") if the heads are hard, and for the check
        "position_code".
    """
    arguments, leak = circuit.arguments, circuit.leak
    if arguments["eta"] is None or key == "position_code":
        return 0.0, ""
    n, layers = len(circuit.layout.labels), circuit.n_layers
    rounds = values["log_weights"].shape[1]  # [episode, round, expert]
    # In every layer, each of n positions gets at most the share `leak` of the attention.
    error_of_round = layers * n * leak
    why_of_round = f"{layers} layers x {n} positions x e^(-eta/2)"
    if key not in (*_STATE_KEYS, "match", "prediction", "distribution", "residue"):
        return error_of_round, why_of_round
    # What leaks is at most the largest number there, a log-weight, and adds up over rounds.
    largest = np.maximum(1.0, np.abs(values["next_log_weights"]).max((0, 2)))  # [round]
    size = float(largest[-1])  # of the last round: log-weights grow
    if key == "residue":
        return error_of_round * size, f"{why_of_round} x log-weights of {size:.0f}"
    total = rounds * error_of_round * size
    why = f"{rounds} rounds x {layers} x {n} x e^(-eta/2) x {size:.0f}"
    if arguments["variant"] == "P":  # its head 3.2 weighs a key by x up to the bound of a pair
        total += float(circuit.pair_error(largest).sum())
        why = f"{why} + sum of epsilon^2 x^3 / 6 + rounding / epsilon"
    else:
        # Head 3.2 (`approximate_linear_head`) should add log_gamma at a match and 0 elsewhere. At a
        # match it adds log_gamma / (1 + matches e^-heavy + ...), which is too little by the share
        # matches e^-heavy; elsewhere it adds log_gamma e^-match_logit.
        logits = np.array([arguments["heavy"], arguments["match_logit"]])
        share_of_expert = float(np.exp(-logits).sum())
        total += rounds * arguments["n_experts"] * share_of_expert * arguments["log_gamma"]
        why = f"{why} + {rounds} x experts x e^-heavy"
    if key in _STATE_KEYS:  # compared by relative errors, in this unit
        total /= _get_unit(circuit, values, key)
    return total, why


def _sample_episodes(circuit: Circuit, n_rounds: int, n_episodes: int, seed: int) -> ExpertEpisodes:
    return sample(n_episodes, n_rounds, circuit.arguments["n_experts"], seed=seed)


def _get_tolerance(key: str, dtype: str) -> tuple[float, str]:
    """Return the error that verification allows for a variable, and which error it limits.

    Args:
        key: key of the variable.
        dtype: "float32" or "float64".

    Returns:
        (largest allowed error, "relative"). "relative", for every variable here, means that it
        limits the error divided by the true value, because log-weights, and so their rounding
        errors, grow over rounds.
    """
    if dtype == "float32":
        return 1e-5, "relative"
    # States add up all rounds, and "match" (1 for an expert who was right) is read from the attention
    # scores of head 3.2, which add up large terms: more digits are rounded than in other variables.
    return (1e-9 if key in (*_STATE_KEYS, "match") else 1e-12), "relative"


PLAN = VerificationPlan(
    sizes=(2, 4, 8, 32),
    episodes=_sample_episodes,
    output="prediction",
    tolerance=_get_tolerance,
    unit=_get_unit,
    soft=_bound_soft_error,
)
"""How :func:`circuits.verify` checks this machine."""
