"""The heads and neurons of the Q-learning circuit, layer by layer.

Layers 1 to 3 route states, phases and columns, evaluate Q and choose the best action; layer 4 adds the terms of the TD
error to the column that Update inherited. All take a :class:`Wiring`: the basis, sizes, rates and variant.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

from circuits.basis import Basis, Direction
from circuits.heads import Head, Neuron, Term, content_chooser, copy, fixed_offset, match
from interp.checks import checked
from interp.errors import InputError, require
from interp.model.config import AttentionRule


@dataclass(frozen=True)
class Wiring:
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
    def taken(self) -> tuple[Term, ...]:
        """What Update finds the action in phase Qcurr by."""
        return ((self.basis["id"]["Update"], self.basis["id"]["Qcurr"] + self.acting),)

    def move(self, labels: Sequence[str], source: str, target: str, scale: float = 1.0) -> tuple[Term, ...]:
        """Terms that copy ``labels`` from block ``source`` to block ``target``, times ``scale``."""
        return copy(self.basis, labels, source, target, scale)


@checked
def value_bound(rewards: Sequence[float], gamma: float) -> float:
    """M: the smallest power of two that is at least ``max |r| / (1 - gamma)``, hence bounds |Q|; 1 for no reward.

    >>> value_bound((0.0, 1.0), 0.9)
    16.0
    """
    message = f"rewards must be (lowest, highest), two finite numbers in order, got {rewards!r}"
    try:
        values = [float(reward) for reward in rewards]
    except (TypeError, ValueError):
        raise InputError(message) from None
    require(len(values) == 2 and all(map(math.isfinite, values)) and values[0] <= values[1], message)
    largest = max(map(abs, values)) / (1 - gamma)
    return 2.0 ** math.ceil(math.log2(largest)) if largest > 0 else 1.0


def routing_heads(wiring: Wiring) -> tuple[Head, ...]:
    """Layer 1: states, phases and columns to the tokens that need them."""
    ids, one, acting = wiring.basis["id"], wiring.basis.one, wiring.acting
    sink, states, lin = wiring.sink, wiring.states, wiring.variant == "lin"
    only_actions = one - acting + ids["Update"]  # c_a is an action and an Update: it must not fire.
    copies = wiring.move(states, "id", "id")
    both = tuple((ids[state], ids[state] + wiring.basis["buf2"][state]) for state in states) if lin else ()
    same = match(wiring.basis, wiring.actions, "id", "id")
    extra = ((acting - 2.0 * ids["Update"], ids["Update"]),)
    move, fetched = wiring.move, "buf3" if lin else "buf1"
    drawn = ((ids["Select"], ids.sum(wiring.draws)),)
    told = content_chooser("1.7 draw to Select", 0, drawn, move(wiring.draws, "id", "buf2"), sink)
    following = move(states, "id", "buf2") if lin else copies
    return (
        fixed_offset("1.1 state to actions", 0, 1, copies, only_actions, sink),
        fixed_offset("1.2 state to Select", 0, 2, following, one - ids["Select"], sink),
        fixed_offset("1.3 state to reward", 0, 2, both if lin else copies, one - ids["r"], sink),
        fixed_offset("1.4 current-phase tag", 0, 2, move(("Qcurr",), "id", "id"), only_actions, sink),
        content_chooser("1.5 next-phase tag", 0, ((acting, ids["Qnext"]),), move(("Qnext",), "id", "id"), sink),
        content_chooser("1.6 context fetch", 0, (*same, *extra), move(states, "buf1", fetched), sink, theta=1.5),
        *([told] if wiring.draws else ()),
    )


def evaluating_heads(wiring: Wiring) -> tuple[Head, ...]:
    """Layer 2: s_t to Select; in "lin", rows of Q from the columns."""
    ids, states, sink = wiring.basis["id"], wiring.states, wiring.sink
    asks = ((ids["Select"], ids["Qcurr"] + wiring.acting),)
    fetch = content_chooser("2.1 Select fetches s_t", 1, asks, wiring.move(states, "id", "buf1"), sink, theta=1.5)
    if wiring.variant != "lin":
        return (fetch,)
    scored, moved = match(wiring.basis, states, "buf2", "buf1"), wiring.move(states, "buf2", "buf2")
    rows = Head("2.2 Q-values", 1, "linear", scored, wiring.move(wiring.actions, "id", "buf2"))
    return fetch, rows, fixed_offset("2.3 next state to Update", 1, 2, moved, wiring.basis.one - ids["Update"], sink)


def selecting_heads(wiring: Wiring) -> tuple[Head, ...]:
    """Layer 3: choose, take the maximum, inherit the visited column."""
    buf2, lin = wiring.basis["buf2"], wiring.variant == "lin"
    best = _selection(wiring, "hard" if wiring.hardness is None else "softmax", wiring.hardness or 1.0, wiring.tau)
    choice = best if wiring.beta is None else _selection(wiring, "softmax", wiring.beta, 0.0)
    if wiring.draws:
        choice = _exploring(wiring, *choice, wiring.beta or wiring.hardness or 1.0)
    maximum: tuple[Term, ...] = ((buf2["Qnext"], buf2["Select"]),)
    inherited = (
        *wiring.move(wiring.actions, "id", "id"),
        *wiring.move(wiring.states, "buf3" if lin else "buf1", "buf1"),
    )
    return (
        Head("3.1 action selection", 2, *choice, wiring.move(wiring.actions, "id", "id")),
        Head("3.2 max extraction", 2, *best, wiring.move(wiring.states, "buf3", "buf3") if lin else maximum),
        content_chooser("3.3 Update inheritance", 2, wiring.taken, inherited, wiring.sink, theta=1.5),
    )


def _selection(
    wiring: Wiring, rule: AttentionRule, sharpness: float, tau: float
) -> tuple[AttentionRule, tuple[Term, ...]]:
    """Rule and scores at Select: ``sharpness (Q(s', a) - tau a)`` for candidates, at least C less for others.

    The gate has a column of its own, so that it is exactly 0 for candidates and costs no precision of Q. In "lin"
    every token with id[a] is scored by Q(s', a) minus the mean of the row: the best candidate then scores at least
    0, all others at most -C, whatever the sign and size of Q. r, whose row of Q is a query too, stays silent up to
    |Q| = M, and its attention reaches no output beyond that.
    """
    ids, one, select = wiring.basis["id"], wiring.basis.one, wiring.basis["id"]["Select"]
    gate = 1.0 if rule == "hard" else 100.0
    if wiring.signed:
        gate += 2.0 * sharpness * wiring.bound
    if wiring.variant == "lin":
        # There the gate stands beside values of either size in one sum: it must not drown in their rounding.
        gate = max(gate, 2.0**-10 * sharpness * wiring.bound)
    order = sum((float(k) * ids[action] for k, action in enumerate(wiring.actions)), wiring.basis.zero)
    common: tuple[Term, ...] = (
        (select, gate * (ids["Qnext"] + wiring.acting - 2.0 * one)),
        (gate * (one - select), wiring.sink),
    )
    if wiring.variant != "lin":
        return rule, ((sharpness * select, wiring.basis["buf2"]["Qnext"] - tau * order), *common)
    rows = match(wiring.basis, wiring.actions, "buf2", "id", sharpness)
    silent = (gate + 2.0 * sharpness * wiring.bound) * (one - select)
    centred = ((-sharpness / len(wiring.actions)) * wiring.basis["buf2"].sum(wiring.actions), wiring.acting)
    ordered = () if not tau else ((-sharpness * tau * select, order),)
    return rule, (*rows, centred, *ordered, common[0], (silent, wiring.sink))


def _exploring(
    wiring: Wiring, rule: AttentionRule, scores: tuple[Term, ...], sharpness: float
) -> tuple[AttentionRule, tuple[Term, ...]]:
    """The selection, in which the candidate that Select's draw names gets more than any value can differ by.

    So much less get all that are no candidates, of which some hold the same action.
    """
    ids, told, one = wiring.basis["id"], wiring.basis["buf2"], wiring.basis.one
    most = (1.0 if rule == "hard" else 100.0) + 2.0 * sharpness * wiring.bound
    drawn = tuple((most * told[draw], ids[a]) for draw, a in zip(wiring.draws[1:], wiring.actions, strict=True))
    others = (most * ids["Select"], ids["Qnext"] + wiring.acting - 2.0 * one)
    return rule, (*scores, *drawn, others)


def evaluating_neurons(wiring: Wiring) -> tuple[Neuron, ...]:
    """``relu(+-buf1[s] + M id[s] + M id[phase] - 2 M)``: Q(s, a) where state and phase are there, else 0."""
    ids, buf1, buf2, M = wiring.basis["id"], wiring.basis["buf1"], wiring.basis["buf2"], wiring.bound
    # Select holds s_t in buf1 with weight 1, which M keeps silent only from 1 on.
    silenced = ids["Select"] if M < 1 else wiring.basis.zero
    out = []
    for phase, sign in (("Qcurr", -1.0), ("Qnext", 1.0)):
        for part in (1.0, -1.0) if wiring.signed else (1.0,):
            for state in wiring.states:
                read = part * buf1[state] + M * (ids[state] + ids[phase]) - silenced
                out.append(Neuron("2.2 Q-values", 1, read, -2 * M, part * sign * buf2[phase]))
    return tuple(out)


def adding_heads(wiring: Wiring) -> tuple[Head, ...]:
    """Layer 4, "mlp" and "lin": linear heads add the three TD terms."""
    ids, buf1, buf2, lin = wiring.basis["id"], wiring.basis["buf1"], wiring.basis["buf2"], wiring.variant == "lin"
    update, states, alpha = ids["Update"], wiring.states, wiring.alpha
    move, linear = wiring.move, partial(Head, layer=3, rule="linear")
    current = match(wiring.basis, wiring.actions, "id", "buf2") if lin else ((update, buf2["Qcurr"]),)
    best = match(wiring.basis, states, "buf2", "buf3") if lin else ((update, buf2["Select"]),)
    minus = -alpha if lin else alpha  # The MLP of layer 2 writes -Q(s_t, a_t).
    adding = (
        linear("4.1 subtract current value", scores=current, moves=move(states, "id", "buf1", minus)),
        linear("4.2 add reward", scores=((update, buf1["r"]),), moves=move(states, "id", "buf1", alpha)),
        linear("4.3 add discounted max", scores=best, moves=move(states, "buf1", "buf1", alpha * wiring.gamma)),
    )
    if not lin:
        return adding
    cleared = move(states, "buf2", "buf2", -1.0)
    return (*adding, fixed_offset("4.4 clean up", 3, 0, cleared, wiring.basis.one - update, wiring.sink))


def fetching_heads(wiring: Wiring) -> tuple[Head, ...]:
    """Layer 4, "softmlp": fetch the three values and s_t; the MLP multiplies."""
    ids, sink, move = wiring.basis["id"], wiring.sink, wiring.move
    update, current = ids["Update"], (*move(("Qcurr",), "buf2", "buf2"), *move(wiring.states, "id", "buf2"))
    return (
        content_chooser("4.1 fetch current value", 3, wiring.taken, current, sink, theta=1.5),
        content_chooser("4.2 fetch reward", 3, ((update, ids["r"]),), move(("r",), "buf1", "buf2"), sink),
        content_chooser("4.3 fetch max", 3, ((update, ids["Select"]),), move(("Select",), "buf2", "buf2"), sink),
    )


def adding_neurons(wiring: Wiring) -> tuple[Neuron, ...]:
    """``relu(d + D buf2[s] - D) - relu(-d + D buf2[s] - D)`` adds d = alpha x TD error at s_t; the rest clears."""
    buf1, buf2 = wiring.basis["buf1"], wiring.basis["buf2"]
    d = wiring.alpha * (buf2["Qcurr"] + buf2["r"] + wiring.gamma * buf2["Select"])
    D = wiring.alpha * wiring.bound * (2 + wiring.gamma)
    add = [
        Neuron("4.4 add TD error", 3, sign * d + D * buf2[state], -D, sign * buf1[state])
        for state in wiring.states
        for sign in (1.0, -1.0)
    ]
    signs = [*((state, 1.0) for state in wiring.states), ("Qcurr", -1.0), ("r", 1.0), ("Select", 1.0)]
    if wiring.signed:
        signs += [("Qcurr", 1.0), ("r", -1.0), ("Select", -1.0)]
    clear = [Neuron("4.5 clean up", 3, sign * buf2[label], 0.0, -sign * buf2[label]) for label, sign in signs]
    return (*add, *clear)
