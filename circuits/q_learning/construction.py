"""The Q-learning circuit: its arguments, what it is proven for, its heads and neurons, and its softmax-only form.

``heads.csv`` says what each head reads and writes, ``edges.csv`` which part reads what. How it is built, and where its
variables live: ``docs/method/q-learning.md``.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from circuits import heads as wire
from circuits.basis import Basis, Coordinates, Direction
from circuits.circuit import Circuit, VerificationPlan, held, located, table
from interp.core.algorithm import Values
from interp.model.config import AttentionRule
from interp.support.checks import checked
from interp.support.errors import require, require_known, theirs
from interp.tasks import mdp
from interp.tasks.qlearning import algorithms, tabular
from interp.tasks.qlearning.episodes import MDPEpisodes, MDPs
from interp.tasks.qlearning.layout import QLearningRound

_FOLDER = Path(__file__).parent
_NAME = "qlearning-handwired"
_VARIANTS = ("mlp", "softmlp", "lin")
_LARGEST_FLOAT32 = 2.0**120
"""The largest M for which sums of a few values and scores stay far from float32's overflow at 2^128."""


@checked
def value_bound(rewards: Sequence[float], gamma: float) -> float:
    """M: the smallest power of two that is at least ``max |r| / (1 - gamma)``, hence bounds |Q|; 1 for no reward.

    >>> value_bound((0.0, 1.0), 0.9)
    16.0
    """
    message = f"rewards must be (lowest, highest), two finite numbers in order, got {rewards!r}"
    with theirs(message, of=(TypeError, ValueError)):
        values = [float(reward) for reward in rewards]
    require(
        len(values) == 2 and all(map(math.isfinite, values)) and values[0] <= values[1], message
    )
    largest = max(map(abs, values)) / (1 - gamma)
    return 2.0 ** math.ceil(math.log2(largest)) if largest > 0 else 1.0


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
    require(
        0 <= gamma < 1,
        f"gamma must lie in [0, 1), got {gamma!r}; the paper uses 0.9, and 0 never bootstraps",
    )
    require(
        tau is None or bool(np.isfinite(tau) and tau >= 0),
        f"tau must be a number >= 0 or None, got {tau!r}",
    )
    for name, value in {
        "relative_tau": relative_tau,
        "hardness": hardness,
        "heavy": heavy,
        "epsilon": epsilon,
    }.items():
        require(
            bool(np.isfinite(value) and value > 0), f"{name} must be a number > 0, got {value!r}"
        )
    require(
        beta is None or bool(np.isfinite(beta) and beta > 0),
        f"beta must be a number > 0 or None, got {beta!r}",
    )
    bound = value_bound(rewards, gamma)
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
    finest = float(np.finfo("float64").eps) * bound
    require(
        slope == 0 or slope >= finest,
        f"tau = {slope:g} is below {finest:g}, what float64 resolves of values up to M = {bound:g}, so that ties would "
        "not be broken; give no tau, one above that bound, or 0 to average over ties",
    )
    labels = wire.numbered("s", n_states), wire.numbered("a", n_actions)
    wiring = _Wiring(
        basis,
        *labels,
        variant,
        alpha,
        gamma,
        bound,
        signed,
        slope,
        beta,
        eta and hardness,
        layout.draws,
    )
    last = _fetching_heads(wiring) if variant == "softmlp" else _adding_heads(wiring)
    exact = (*_routing_heads(wiring), *_evaluating_heads(wiring), *_selecting_heads(wiring), *last)
    exact = wire.in_words(
        exact, wire.stated(_FOLDER / "heads.csv", {variant, *["boltzmann"] * bool(beta)})
    )
    heads = wire.softmax_only(
        exact, eta, lambda head: wire.softmax_pair(head, wiring.sink, epsilon, heavy)
    )
    neurons = () if variant == "lin" else _evaluating_neurons(wiring)
    neurons = (*neurons, *(_adding_neurons(wiring) if variant == "softmlp" else ()))
    ids, buf1, buf2 = basis["id"], basis["buf1"], basis["buf2"]
    greedy = eta is None and beta is None and not noise
    form = {
        variant,
        "softmax" if eta else "exact",
        "noise" if noise else "silent",
        *["greedy"] * greedy,
    }
    every = layout.labels
    groups = {
        "ALL": every,
        "ROWS": labels[0],
        "CANDIDATES": labels[1],
        "COLUMNS": wire.numbered("c", n_actions),
        "STATES": wire.numbered("s'", n_actions),
        "DRAWS": layout.draws,
        "LAST": [f"s'_{n_actions}"],
        # Neurons 2.2 read the name of Select, which keeps them silent there.
        "PAUSE": ["Select"] if bound < 1 else [],
        # Only one-hot codes have no axis for what lies outside the round.
        "BACK1": every[:-1] if coordinates.one_hot else every,
        "BACK2": every[:-2] if coordinates.one_hot else every,
    }
    algorithm = algorithms.q_learning(alpha, gamma, slope, beta, eta and hardness, noise)
    fetched = buf2["Qcurr"] + buf2["r"] + gamma * buf2["Select"]
    named = {"added": buf1.sum(labels[0]), "fetched": fetched, "current": -buf2["Qcurr"]}
    sites = located(
        wire.stated(_FOLDER / "sites.csv", form), basis, groups, named, {"alpha": alpha}
    )
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
        # From a table of zeros, whatever table the episodes began with.
        algorithm=replace(
            algorithm,
            initial=lambda of: {
                key: np.zeros_like(start) for key, start in algorithm.initial(of).items()
            },
        ),
        sites=sites,
        **held(wire.stated(_FOLDER / "held.csv", form), sites, groups),
        edges=table(
            wire.stated(_FOLDER / "edges.csv", form), wire.names((*heads, *neurons)), groups
        ),
        float64_only=_float64_only(variant, eta, slope, bound),
    )


def _float64_only(variant: str, eta: float | None, slope: float, bound: float) -> str:
    """Why float32 does not do, with the bound that it breaks; empty where it does."""
    if eta is not None and variant != "softmlp":
        return wire.needs_float64(f"variant {variant!r}", "'softmlp'")
    if bound > _LARGEST_FLOAT32:
        return (
            f"values up to M = {bound:g} are beyond {_LARGEST_FLOAT32:g}, twice which float32 must hold; load it with "
            "dtype='float64', or give rewards in larger units"
        )
    resolved = float(np.finfo("float32").eps) * bound
    if 0 < slope < resolved:
        return (
            f"tau = {slope:g} is below {resolved:g}, what float32 resolves of values up to M = {bound:g}, so that ties "
            "would not be broken; load it by name with dtype='float32', which sets relative_tau, or give relative_tau "
            f">= {resolved / bound:.3g}, tau >= {resolved:.4g}, or tau=0 to average over ties, or take dtype='float64'"
        )
    return ""


@dataclass(frozen=True)
class _Wiring:
    """One variant and its parameters; arguments as in :func:`~circuits.q_learning.q_learning`, ``bound`` is M."""

    basis: Basis
    states: tuple[str, ...]
    actions: tuple[str, ...]
    variant: str
    alpha: float
    gamma: float
    bound: float
    signed: bool
    tau: float
    beta: float | None
    hardness: float | None
    draws: tuple[str, ...] = ()

    @property
    def sink(self) -> Direction:
        """The direction of the first token, which heads attend to when they have nothing to do."""
        return self.basis["id"]["BOS"]

    @property
    def acting(self) -> Direction:
        """id[A]: is it an action?"""
        return self.basis["id"].sum(self.actions)

    @property
    def taken(self) -> tuple[wire.Term, ...]:
        """What Update finds the action in phase Qcurr by."""
        return ((self.basis["id"]["Update"], self.basis["id"]["Qcurr"] + self.acting),)

    def move(
        self, labels: Sequence[str], source: str, target: str, scale: float = 1.0
    ) -> tuple[wire.Term, ...]:
        """Terms that copy ``labels`` from block ``source`` to block ``target``, times ``scale``."""
        return wire.copy(self.basis, labels, source, target, scale)


def _routing_heads(wiring: _Wiring) -> tuple[wire.Head, ...]:
    """Layer 1: states, phases and columns to the tokens that need them."""
    ids, one, acting = wiring.basis["id"], wiring.basis.one, wiring.acting
    sink, states, lin = wiring.sink, wiring.states, wiring.variant == "lin"
    only_actions = one - acting + ids["Update"]  # c_a is an action and an Update: it must not fire.
    copies = wiring.move(states, "id", "id")
    both = (
        tuple((ids[state], ids[state] + wiring.basis["buf2"][state]) for state in states)
        if lin
        else ()
    )
    same = wire.match(wiring.basis, wiring.actions, "id", "id")
    extra = ((acting - 2.0 * ids["Update"], ids["Update"]),)
    move, fetched = wiring.move, "buf3" if lin else "buf1"
    drawn = ((ids["Select"], ids.sum(wiring.draws)),)
    told = wire.content_chooser(
        "1.7 draw to Select", 0, drawn, move(wiring.draws, "id", "buf2"), sink
    )
    following = move(states, "id", "buf2") if lin else copies
    return (
        wire.fixed_offset("1.1 state to actions", 0, 1, copies, only_actions, sink),
        wire.fixed_offset("1.2 state to Select", 0, 2, following, one - ids["Select"], sink),
        wire.fixed_offset(
            "1.3 state to reward", 0, 2, both if lin else copies, one - ids["r"], sink
        ),
        wire.fixed_offset(
            "1.4 current-phase tag", 0, 2, move(("Qcurr",), "id", "id"), only_actions, sink
        ),
        wire.content_chooser(
            "1.5 next-phase tag", 0, ((acting, ids["Qnext"]),), move(("Qnext",), "id", "id"), sink
        ),
        wire.content_chooser(
            "1.6 context fetch", 0, (*same, *extra), move(states, "buf1", fetched), sink, theta=1.5
        ),
        *([told] if wiring.draws else ()),
    )


def _evaluating_heads(wiring: _Wiring) -> tuple[wire.Head, ...]:
    """Layer 2: s_t to Select; in "lin", rows of Q from the columns."""
    ids, states, sink = wiring.basis["id"], wiring.states, wiring.sink
    asks = ((ids["Select"], ids["Qcurr"] + wiring.acting),)
    fetch = wire.content_chooser(
        "2.1 Select fetches s_t", 1, asks, wiring.move(states, "id", "buf1"), sink, theta=1.5
    )
    if wiring.variant != "lin":
        return (fetch,)
    scored, moved = (
        wire.match(wiring.basis, states, "buf2", "buf1"),
        wiring.move(states, "buf2", "buf2"),
    )
    return (
        fetch,
        wire.Head("2.2 Q-values", 1, "linear", scored, wiring.move(wiring.actions, "id", "buf2")),
        wire.fixed_offset(
            "2.3 next state to Update", 1, 2, moved, wiring.basis.one - ids["Update"], sink
        ),
    )


def _selecting_heads(wiring: _Wiring) -> tuple[wire.Head, ...]:
    """Layer 3: choose, take the maximum, inherit the visited column."""
    buf2, lin = wiring.basis["buf2"], wiring.variant == "lin"
    best = _selection(
        wiring, "hard" if wiring.hardness is None else "softmax", wiring.hardness or 1.0, wiring.tau
    )
    choice = best if wiring.beta is None else _selection(wiring, "softmax", wiring.beta, 0.0)
    if wiring.draws:
        choice = _exploring(wiring, *choice, wiring.beta or wiring.hardness or 1.0)
    maximum: tuple[wire.Term, ...] = ((buf2["Qnext"], buf2["Select"]),)
    inherited = (
        *wiring.move(wiring.actions, "id", "id"),
        *wiring.move(wiring.states, "buf3" if lin else "buf1", "buf1"),
    )
    return (
        wire.Head("3.1 action selection", 2, *choice, wiring.move(wiring.actions, "id", "id")),
        wire.Head(
            "3.2 max extraction",
            2,
            *best,
            wiring.move(wiring.states, "buf3", "buf3") if lin else maximum,
        ),
        wire.content_chooser(
            "3.3 Update inheritance", 2, wiring.taken, inherited, wiring.sink, theta=1.5
        ),
    )


def _selection(
    wiring: _Wiring, rule: AttentionRule, sharpness: float, tau: float
) -> tuple[AttentionRule, tuple[wire.Term, ...]]:
    """Rule and scores at Select: ``sharpness (Q(s', a) - tau a)`` for candidates, at least C less for others."""
    ids, one, select = wiring.basis["id"], wiring.basis.one, wiring.basis["id"]["Select"]
    gate = 1.0 if rule == "hard" else 100.0
    if wiring.signed:
        gate += 2.0 * sharpness * wiring.bound
    if wiring.variant == "lin":
        # There the gate stands beside values of either size in one sum: it must not drown in their rounding.
        gate = max(gate, 2.0**-10 * sharpness * wiring.bound)
    order = sum(
        (float(k) * ids[action] for k, action in enumerate(wiring.actions)), wiring.basis.zero
    )
    common: tuple[wire.Term, ...] = (
        (select, gate * (ids["Qnext"] + wiring.acting - 2.0 * one)),
        (gate * (one - select), wiring.sink),
    )
    if wiring.variant != "lin":
        return rule, ((sharpness * select, wiring.basis["buf2"]["Qnext"] - tau * order), *common)
    rows = wire.match(wiring.basis, wiring.actions, "buf2", "id", sharpness)
    silent = (gate + 2.0 * sharpness * wiring.bound) * (one - select)
    centred = (
        (-sharpness / len(wiring.actions)) * wiring.basis["buf2"].sum(wiring.actions),
        wiring.acting,
    )
    ordered = () if not tau else ((-sharpness * tau * select, order),)
    return rule, (*rows, centred, *ordered, common[0], (silent, wiring.sink))


def _exploring(
    wiring: _Wiring, rule: AttentionRule, scores: tuple[wire.Term, ...], sharpness: float
) -> tuple[AttentionRule, tuple[wire.Term, ...]]:
    """The selection, in which the candidate that Select's draw names gets more than any value can differ by.

    So much less get all that are no candidates, of which some hold the same action.
    """
    ids, told, one = wiring.basis["id"], wiring.basis["buf2"], wiring.basis.one
    most = (1.0 if rule == "hard" else 100.0) + 2.0 * sharpness * wiring.bound
    drawn = tuple(
        (most * told[draw], ids[a])
        for draw, a in zip(wiring.draws[1:], wiring.actions, strict=True)
    )
    return rule, (*scores, *drawn, (most * ids["Select"], ids["Qnext"] + wiring.acting - 2.0 * one))


def _evaluating_neurons(wiring: _Wiring) -> tuple[wire.Neuron, ...]:
    """``relu(+-buf1[s] + M id[s] + M id[phase] - 2 M)``: Q(s, a) where state and phase are there, else 0."""
    ids, buf1, buf2, M = (
        wiring.basis["id"],
        wiring.basis["buf1"],
        wiring.basis["buf2"],
        wiring.bound,
    )
    # Select holds s_t in buf1 with weight 1, which M keeps silent only from 1 on.
    silenced = ids["Select"] if M < 1 else wiring.basis.zero
    out = []
    for phase, sign in (("Qcurr", -1.0), ("Qnext", 1.0)):
        for part in (1.0, -1.0) if wiring.signed else (1.0,):
            for state in wiring.states:
                read = part * buf1[state] + M * (ids[state] + ids[phase]) - silenced
                out.append(wire.Neuron("2.2 Q-values", 1, read, -2 * M, part * sign * buf2[phase]))
    return tuple(out)


def _adding_heads(wiring: _Wiring) -> tuple[wire.Head, ...]:
    """Layer 4, "mlp" and "lin": linear heads add the three TD terms."""
    ids, buf1, buf2, lin = (
        wiring.basis["id"],
        wiring.basis["buf1"],
        wiring.basis["buf2"],
        wiring.variant == "lin",
    )
    update, states, alpha = ids["Update"], wiring.states, wiring.alpha
    move, linear = wiring.move, functools.partial(wire.Head, layer=3, rule="linear")
    current = (
        wire.match(wiring.basis, wiring.actions, "id", "buf2")
        if lin
        else ((update, buf2["Qcurr"]),)
    )
    best = wire.match(wiring.basis, states, "buf2", "buf3") if lin else ((update, buf2["Select"]),)
    minus = -alpha if lin else alpha  # The MLP of layer 2 writes -Q(s_t, a_t).
    adding = (
        linear(
            "4.1 subtract current value", scores=current, moves=move(states, "id", "buf1", minus)
        ),
        linear(
            "4.2 add reward", scores=((update, buf1["r"]),), moves=move(states, "id", "buf1", alpha)
        ),
        linear(
            "4.3 add discounted max",
            scores=best,
            moves=move(states, "buf1", "buf1", alpha * wiring.gamma),
        ),
    )
    if not lin:
        return adding
    cleared = move(states, "buf2", "buf2", -1.0)
    return (
        *adding,
        wire.fixed_offset("4.4 clean up", 3, 0, cleared, wiring.basis.one - update, wiring.sink),
    )


def _fetching_heads(wiring: _Wiring) -> tuple[wire.Head, ...]:
    """Layer 4, "softmlp": fetch the three values and s_t; the MLP multiplies."""
    ids, sink, move = wiring.basis["id"], wiring.sink, wiring.move
    update, current = (
        ids["Update"],
        (*move(("Qcurr",), "buf2", "buf2"), *move(wiring.states, "id", "buf2")),
    )
    return (
        wire.content_chooser("4.1 fetch current value", 3, wiring.taken, current, sink, theta=1.5),
        wire.content_chooser(
            "4.2 fetch reward", 3, ((update, ids["r"]),), move(("r",), "buf1", "buf2"), sink
        ),
        wire.content_chooser(
            "4.3 fetch max", 3, ((update, ids["Select"]),), move(("Select",), "buf2", "buf2"), sink
        ),
    )


def _adding_neurons(wiring: _Wiring) -> tuple[wire.Neuron, ...]:
    """``relu(d + D buf2[s] - D) - relu(-d + D buf2[s] - D)`` adds d = alpha x TD error at s_t; the rest clears."""
    buf1, buf2 = wiring.basis["buf1"], wiring.basis["buf2"]
    d = wiring.alpha * (buf2["Qcurr"] + buf2["r"] + wiring.gamma * buf2["Select"])
    D = wiring.alpha * wiring.bound * (2 + wiring.gamma)
    add = [
        wire.Neuron("4.4 add TD error", 3, sign * d + D * buf2[state], -D, sign * buf1[state])
        for state in wiring.states
        for sign in (1.0, -1.0)
    ]
    signs = [
        *((state, 1.0) for state in wiring.states),
        ("Qcurr", -1.0),
        ("r", 1.0),
        ("Select", 1.0),
    ]
    if wiring.signed:
        signs += [("Qcurr", 1.0), ("r", -1.0), ("Select", -1.0)]
    clear = [
        wire.Neuron("4.5 clean up", 3, sign * buf2[label], 0.0, -sign * buf2[label])
        for label, sign in signs
    ]
    return (*add, *clear)


_KINDS = ("grid", "deterministic", "sparse")
_TIE_WIDTH = (
    1e-5  # values closer than this share of the largest are ties that float32 does not decide
)
_HARD = 1e4
"""A softmax of more than this inverse temperature is meant as a maximum; of less, as a policy, compared as it is."""


def _episodes(circuit: Circuit, n_rounds: int, n_episodes: int, seed: int) -> MDPEpisodes:
    """Equal shares of the grid, of deterministic transitions and of sparse rewards, in the circuit's range."""
    shares = [len(range(k, n_episodes, len(_KINDS))) for k in range(len(_KINDS))]
    parts = [
        mdp.sample_mdps(
            share,
            circuit.arguments["n_states"],
            circuit.arguments["n_actions"],
            seed=seed,
            regime=kind,
        )
        for share, kind in zip(shares, _KINDS, strict=True)
        if share
    ]
    low, high = circuit.arguments["rewards"]
    rewards = np.concatenate([part.rewards for part in parts])
    mdps = MDPs(np.concatenate([part.transitions for part in parts]), low + (high - low) * rewards)
    rates = {name: circuit.arguments[name] for name in ("alpha", "gamma")}
    return tabular.run(tabular.QLearner(epsilon=0.5, **rates), mdps, n_rounds, seed)


def _scale(values: Values) -> float:
    """The largest value or reward of a run: what rounding is proportional to."""
    largest = max(float(np.abs(values[key]).max()) for key in ("next_table", "reward"))
    return largest if largest > 0 else 1.0


def _unit(circuit: Circuit, values: Values, key: str) -> float:
    """Values and rewards count against the largest of them, one-hot variables and probabilities against 1."""
    if key != "carried_state" and circuit.algorithm.variable(key).units != "reward":
        return 1.0
    return max(
        _scale(values), value_bound(circuit.arguments["rewards"], circuit.arguments["gamma"]) / 16
    )


def _undecided(circuit: Circuit, values: Values, dtype: str) -> dict[str, np.ndarray]:
    """Choices that rounding can turn: the two best of Q(s', a) - tau a closer than it, but for rows of zeros."""
    worth = values["next_values"]
    if circuit.arguments["beta"] is not None or worth.shape[-1] == 1:
        return {}
    slope = circuit.algorithm.parameters["tie_slope"]
    best = np.sort(worth - slope * np.arange(worth.shape[-1]), axis=-1)
    width = slope / 4 if dtype == "float64" else _TIE_WIDTH * _scale(values)
    if circuit.arguments["eta"] is not None and circuit.arguments["hardness"] > _HARD:
        width = max(width, 40.0 / circuit.arguments["hardness"])
    close = (best[..., -1] - best[..., -2] < width) & worth.any(-1)
    found = {key: close for key in ("policy", "best_column") if key in circuit.sites}
    if "noise" in values:
        found["policy"] = close & (values["noise"] == 0)
    return found


def _soft(circuit: Circuit, values: Values, key: str) -> tuple[float, str]:
    """What softmax heads leave: each round each layer copies the table and lets a share of it through elsewhere."""
    lost = circuit.leak
    if not lost or key == "position_code":
        return 0.0, ""
    n, rounds, layers = len(circuit.layout.labels), values["next_table"].shape[1], circuit.n_layers
    once, why = layers * n * lost, f"{layers} layers x {n} positions x e^(-eta/2)"
    if (
        key not in ("carried_state", "residue")
        and circuit.algorithm.variable(key).units != "reward"
    ):
        return once, why
    total, why = 16 * rounds * once, f"16 x {rounds} rounds x {why}"
    if circuit.arguments["variant"] == "softmlp":
        missed = (circuit.arguments["n_actions"] - 1) / (math.e * circuit.arguments["hardness"])
        why = f"{why} + (actions - 1) / (e hardness) / (1 - gamma)"
    else:
        missed = float(circuit.pair_error(np.asarray(_scale(values))))
        why = f"{why} + (epsilon^2 x^3 / 6 + rounding / epsilon) / (1 - gamma)"
    return total + missed / (1 - circuit.arguments["gamma"]) / _unit(
        circuit, values, "carried_state"
    ), why


PLAN = VerificationPlan(
    sizes=tuple((n_states, n_actions) for n_states in (2, 4, 8, 16) for n_actions in (2, 3, 4, 8)),
    episodes=_episodes,
    output="policy",
    tolerance=lambda key, dtype: (1e-11 if dtype == "float64" else 2e-5, "relative"),
    undecided=_undecided,
    unit=_unit,
    soft=_soft,
)
"""How :func:`circuits.verify` checks this machine."""
