"""Assembling the Q-learning circuit: its arguments, what it is proven for, and its softmax-only form."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from circuits.basis import Coordinates
from circuits.circuit import Circuit
from circuits.heads import Head, Neuron, in_words, names, needs_float64, numbered, softmax_only, softmax_pair
from circuits.q_learning import layers
from circuits.q_learning.ground_truth import NOT_CARRIED, algorithm, carried, edges, partial, sites
from interp.errors import require, require_known
from interp.tasks.qlearning.layout import QLearningRound

_NAME = "qlearning-handwired"
_VARIANTS = ("mlp", "softmlp", "lin")
_LARGEST_FLOAT32 = 2.0**120
"""The largest M for which sums of a few values and scores stay far from float32's overflow at 2^128."""


@Coordinates.taken_by
def q_learning(
    n_states: int = 4,
    n_actions: int = 3,
    variant: str = "mlp",
    alpha: float = 0.1,
    gamma: float = 0.9,
    rewards: Sequence[float] = (0.0, 1.0),
    signed: bool = False,
    tau: float | None = None,
    relative_tau: float = 6.25e-15,
    beta: float | None = None,
    eta: float | None = None,
    hardness: float = 1e8,
    heavy: float = 36.0,
    epsilon: float = 1e-5,
    noise: bool = False,
    *,
    coordinates: Coordinates,
) -> Circuit:
    """The tabular Q-learning circuit.

    Args:
        n_states, n_actions: at least 1 each.
        variant: "mlp", "softmlp" or "lin", see above.
        alpha: learning rate in (0, 1].
        gamma: discount in [0, 1); at 0 the table never bootstraps.
        rewards: (lowest, highest) reward that the model will meet.
        signed: double the MLP neurons so that Q may be negative ("lin" needs none).
        tau: tie slope; smaller differences of Q than this are ties. None takes ``relative_tau`` times M, the power of
            two that bounds |Q| (:func:`value_bound`): 1e-13 for rewards in [0, 1] and gamma .9. 0 averages over ties.
        relative_tau: about 28 roundings of M: 6.25e-15 in float64, 2.5e-7 (2 roundings) in float32.
        beta: inverse temperature of Boltzmann exploration in head 3.1 alone; None chooses greedily.
        eta: None for hard and linear heads (exact); else every head is softmax, at inverse temperature ``eta``
            (linear heads as pairs of softmax heads with a heavy sink, in float64 only).
        hardness: inverse temperature of the maximum in heads 3.1 and 3.2 when ``eta`` is given.
        heavy, epsilon: of the pairs: exponent of the sink, and scale of the scores.
        noise: read each round's draw at position ``n``: the machine explores by itself, as ``explore_i`` says.
        coordinates: by the names of their fields: ``positions``, ``n_lines``, ``seed``, ``rotation``.

    Rewards that the variant is not proven for are refused, and slopes that rounding of M swallows: float32 needs larger
    ones than float64.
    """
    arguments = coordinates.joined(locals())
    require_known("variant", variant, _VARIANTS)
    require(0 < alpha <= 1, f"alpha must lie in (0, 1], got {alpha!r}; the paper uses 0.1")
    require(0 <= gamma < 1, f"gamma must lie in [0, 1), got {gamma!r}; the paper uses 0.9, and 0 never bootstraps")
    require(tau is None or bool(np.isfinite(tau) and tau >= 0), f"tau must be a number >= 0 or None, got {tau!r}")
    for name, value in {"relative_tau": relative_tau, "hardness": hardness, "heavy": heavy, "epsilon": epsilon}.items():
        require(bool(np.isfinite(value) and value > 0), f"{name} must be a number > 0, got {value!r}")
    require(beta is None or bool(np.isfinite(beta) and beta > 0), f"beta must be a number > 0 or None, got {beta!r}")
    bound = layers.value_bound(rewards, gamma)
    arguments["rewards"] = [float(reward) for reward in rewards]
    require(
        rewards[0] >= 0 or signed or variant == "lin",
        f"rewards as low as {float(rewards[0]):g} are outside [0, inf), what variant {variant!r} is proven for; load "
        "it with signed=True (doubled neurons) or use variant 'lin'",
    )
    if not noise:
        del arguments["noise"]  # A circuit without it is recorded as before there was one.
    layout = QLearningRound(n_states, n_actions, noise=noise)
    tokens = tuple(token.strip("<>") for token in layout.vocabulary)
    blocks = ("id", "buf1", "buf2", "buf3") if variant == "lin" else ("id", "buf1", "buf2")
    basis = coordinates.basis(dict.fromkeys(blocks, tokens), layout.labels)
    slope = relative_tau * bound if tau is None else tau
    finest = _resolution(bound, "float64")
    require(
        slope == 0 or slope >= finest,
        f"tau = {slope:g} is below {finest:g}, what float64 resolves of values up to M = {bound:g}, so that ties would "
        "not be broken; give no tau, one above that bound, or 0 to average over ties",
    )
    labels = numbered("s", n_states), numbered("a", n_actions)
    wiring = layers.Wiring(
        basis, *labels, variant, alpha, gamma, bound, signed, slope, beta, eta and hardness, layout.draws
    )
    heads = softmax_only(_heads(wiring), eta, lambda head: softmax_pair(head, wiring.sink, epsilon, heavy))
    neurons = _neurons(wiring)
    ids, buf1 = basis["id"], basis["buf1"]
    located = sites(basis, layout, variant, alpha, gamma, exact=eta is None)
    return Circuit(
        name=_NAME,
        arguments=arguments,
        layout=layout,
        basis=basis,
        heads=heads,
        neurons=neurons,
        tokens={token: ids[token.strip("<>")] for token in layout.vocabulary},
        payloads={"r": buf1["r"]},
        payload_range=None if variant == "lin" else (float(rewards[0]), float(rewards[1])),
        # Its tie slope is 2 roundings of M in float32 (28 in float64), which larger values would swallow.
        float32_range=(float(rewards[0]), float(rewards[1])),
        latents=tuple(ids[action] + ids["Update"] for action in wiring.actions),
        outcomes=tuple(ids[action] for action in wiring.actions),
        state=tuple(buf1[state] for state in wiring.states),
        algorithm=algorithm(
            alpha=alpha, gamma=gamma, tie_slope=slope, beta=beta, hardness=eta and hardness, noise=noise
        ),
        sites=located,
        carried=carried(located, layout, variant, greedy=eta is None and beta is None and not noise),
        partial=partial(variant),
        not_carried=NOT_CARRIED,
        edges=edges(layout, names((*heads, *neurons)), variant, eta is None, coordinates.one_hot, bound < 1),
        float64_only=_float64_only(variant, eta, slope, bound),
    )


def _resolution(bound: float, dtype: str) -> float:
    """The smallest tie slope that rounding beside values up to ``bound`` = M leaves: M times the machine's epsilon."""
    return float(np.finfo(dtype).eps) * bound


def _float64_only(variant: str, eta: float | None, slope: float, bound: float) -> str:
    """Why float32 does not do, with the bound that it breaks; empty where it does."""
    if eta is not None and variant != "softmlp":
        return needs_float64(f"variant {variant!r}", "'softmlp'")
    if bound > _LARGEST_FLOAT32:
        return (
            f"values up to M = {bound:g} are beyond {_LARGEST_FLOAT32:g}, twice which float32 must hold; load it with "
            "dtype='float64', or give rewards in larger units"
        )
    resolved = _resolution(bound, "float32")
    if 0 < slope < resolved:
        return (
            f"tau = {slope:g} is below {resolved:g}, what float32 resolves of values up to M = {bound:g}, so that ties "
            "would not be broken; load it by name with dtype='float32', which sets relative_tau, or give relative_tau "
            f">= {resolved / bound:.3g}, tau >= {resolved:.4g}, or tau=0 to average over ties, or take dtype='float64'"
        )
    return ""


_WORDS = """
1.1  actions look one token back                         id(a) += u_{s_t}; id(a_i) += u_{s'}
1.2  Select looks two tokens back                        id(Select) += u_{s'}
1.3  r looks two tokens back                             id(r) += u_{s_t}
1.4  actions look two tokens back                        id(a) += u_{Qcurr}
1.5  actions look for Qnext                              id(a_i) += u_{Qnext}
1.6  actions look for their own column c_a               buf1(a) = Q(., a)
1.7  Select looks for the draw n                         buf2(Select) = u_n
2.1  Select looks for the action in phase Qcurr          buf1(Select) = u_{s_t}
3.1  Select looks for the candidate of largest Q(s', a)  id(Select) += u_{a*}
3.2  Select looks for the candidate of largest Q(s', a)  buf2(Select) = max_a Q(s', a)
3.3  Update looks for the action in phase Qcurr          id(Update) += u_{a_t}; buf1(Update) = Q(., a_t)
"""
"""What each head reads and writes; the lines of a variant replace those of the same number."""
_WORDS_OF = {
    "mlp": """
4.1  Update scores a by -Q(s_t, a_t)         buf1(Update) -= alpha Q(s_t, a_t) u_{s_t}
4.2  Update scores r by its reward           buf1(Update) += alpha r u_{s_t}
4.3  Update scores Select by max_a Q(s', a)  buf1(Update) += alpha gamma max_a Q(s', a) u_{s_t}
""",
    "softmlp": """
4.1  Update looks for the action in phase Qcurr  buf2(Update) = -Q(s_t, a_t) u_{Qcurr} + u_{s_t}
4.2  Update looks for r                          buf2(Update) += r_t u_r
4.3  Update looks for Select                     buf2(Update) += max_a Q(s', a) u_{Select}
""",
    "lin": """
1.2  Select looks two tokens back                        buf2(Select) = u_{s'}
1.3  r looks two tokens back                             id(r) += u_{s_t}; buf2(r) = u_{s_t}
1.6  actions look for their own column c_a               buf3(a) = Q(., a)
2.2  Select and r score each column at their state       buf2(Select) += Q(s', .); buf2(r) += Q(s_t, .)
2.3  Update looks two tokens back                        buf2(Update) = u_{s'}
3.2  Select looks for the candidate of largest Q(s', a)  buf3(Select) = Q(., a*)
4.1  Update scores r by Q(s_t, a_t)                      buf1(Update) -= alpha Q(s_t, a_t) u_{s_t}
4.2  Update scores r by its reward                       buf1(Update) += alpha r u_{s_t}
4.3  Update scores Select by max_a Q(s', a)              buf1(Update) += alpha gamma max_a Q(s', a) u_{s_t}
4.4  Update looks at itself                              buf2(Update) = 0
""",
}
_WORDS_BOLTZMANN = """
3.1  Select weighs candidates by e^{beta Q(s', a)}  id(Select) += sum_a pi(a) u_a
"""


def _heads(wiring: layers.Wiring) -> tuple[Head, ...]:
    last = layers.fetching_heads(wiring) if wiring.variant == "softmlp" else layers.adding_heads(wiring)
    heads = (*layers.routing_heads(wiring), *layers.evaluating_heads(wiring), *layers.selecting_heads(wiring), *last)
    return in_words(heads, _WORDS + _WORDS_OF[wiring.variant] + (_WORDS_BOLTZMANN if wiring.beta else ""))


def _neurons(wiring: layers.Wiring) -> tuple[Neuron, ...]:
    """MLP_2 (head 2.2 as neurons) and, in "softmlp", MLP_4."""
    if wiring.variant == "lin":
        return ()
    return (*layers.evaluating_neurons(wiring), *(layers.adding_neurons(wiring) if wiring.variant == "softmlp" else ()))
