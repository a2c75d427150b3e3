"""The heads and neurons of the Q-learning circuit, layer by layer.

Layers 1 to 3 route states, phases and columns, evaluate Q and choose the best action; layer 4 adds the terms of the TD
error to the column that Update inherited. All take a :class:`Wiring`: the basis, sizes, rates and variant.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from circuits.basis import Basis, Direction
from circuits.heads import Head, Neuron, Term, content_chooser, copy, fixed_offset, match
from interp.checks import checked
from interp.errors import InputError, require
from interp.model.config import AttentionRule


@dataclass(frozen=True)
class Wiring:
    """One variant and its parameters; arguments as in :func:`~circuits.q_learning.q_learning`, ``bound`` is M."""

    basis: Basis
    n_states: int
    n_actions: int
    variant: str
    alpha: float
    gamma: float
    bound: float
    signed: bool
    tau: float
    beta: float | None
    hardness: float | None

    @property
    def states(self) -> tuple[str, ...]:
        """Labels ``s_1, s_2, ...``."""
        return tuple(f"s_{i}" for i in range(1, self.n_states + 1))

    @property
    def actions(self) -> tuple[str, ...]:
        """Labels ``a_1, a_2, ...``."""
        return tuple(f"a_{i}" for i in range(1, self.n_actions + 1))

    @property
    def sink(self) -> Direction:
        """The direction of the first token, which heads attend to when they have nothing to do."""
        return self.basis["id"]["BOS"]

    @property
    def acting(self) -> Direction:
        """id[A]: is it an action?"""
        return self.basis["id"].sum(self.actions)

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
    return (
        fixed_offset(
            "1.1 state to actions",
            0,
            1,
            copies,
            only_actions,
            sink,
            "actions look one token back",
            "id(a) += u_{s_t}; id(a_i) += u_{s'}",
        ),
        fixed_offset(
            "1.2 state to Select",
            0,
            2,
            wiring.move(states, "id", "buf2") if lin else copies,
            one - ids["Select"],
            sink,
            "Select looks two tokens back",
            "buf2(Select) = u_{s'}" if lin else "id(Select) += u_{s'}",
        ),
        fixed_offset(
            "1.3 state to reward",
            0,
            2,
            both if lin else copies,
            one - ids["r"],
            sink,
            "r looks two tokens back",
            "id(r) += u_{s_t}" + ("; buf2(r) = u_{s_t}" if lin else ""),
        ),
        fixed_offset(
            "1.4 current-phase tag",
            0,
            2,
            wiring.move(("Qcurr",), "id", "id"),
            only_actions,
            sink,
            "actions look two tokens back",
            "id(a) += u_{Qcurr}",
        ),
        content_chooser(
            "1.5 next-phase tag",
            0,
            ((acting, ids["Qnext"]),),
            wiring.move(("Qnext",), "id", "id"),
            sink,
            reads="actions look for Qnext",
            writes="id(a_i) += u_{Qnext}",
        ),
        content_chooser(
            "1.6 context fetch",
            0,
            (*same, *extra),
            wiring.move(states, "buf1", "buf3" if lin else "buf1"),
            sink,
            theta=1.5,
            reads="actions look for their own column c_a",
            writes="buf3(a) = Q(., a)" if lin else "buf1(a) = Q(., a)",
        ),
    )


def evaluating_heads(wiring: Wiring) -> tuple[Head, ...]:
    """Layer 2: s_t to Select; in "lin", rows of Q from the columns."""
    ids = wiring.basis["id"]
    fetch = content_chooser(
        "2.1 Select fetches s_t",
        1,
        ((ids["Select"], ids["Qcurr"] + wiring.acting),),
        wiring.move(wiring.states, "id", "buf1"),
        wiring.sink,
        theta=1.5,
        reads="Select looks for the action in phase Qcurr",
        writes="buf1(Select) = u_{s_t}",
    )
    if wiring.variant != "lin":
        return (fetch,)
    rows = Head(
        "2.2 Q-values",
        1,
        "linear",
        match(wiring.basis, wiring.states, "buf2", "buf1"),
        wiring.move(wiring.actions, "id", "buf2"),
        "Select and r score each column at their state",
        "buf2(Select) += Q(s', .); buf2(r) += Q(s_t, .)",
    )
    following = fixed_offset(
        "2.3 next state to Update",
        1,
        2,
        wiring.move(wiring.states, "buf2", "buf2"),
        wiring.basis.one - ids["Update"],
        wiring.sink,
        "Update looks two tokens back",
        "buf2(Update) = u_{s'}",
    )
    return (fetch, rows, following)


def selecting_heads(wiring: Wiring) -> tuple[Head, ...]:
    """Layer 3: choose, take the maximum, inherit the visited column."""
    ids, buf2, lin = wiring.basis["id"], wiring.basis["buf2"], wiring.variant == "lin"
    best = _selection(wiring, "hard" if wiring.hardness is None else "softmax", wiring.hardness or 1.0, wiring.tau)
    choice = best if wiring.beta is None else _selection(wiring, "softmax", wiring.beta, 0.0)
    maximum: tuple[Term, ...] = ((buf2["Qnext"], buf2["Select"]),)
    inherited = (
        *wiring.move(wiring.actions, "id", "id"),
        *wiring.move(wiring.states, "buf3" if lin else "buf1", "buf1"),
    )
    looks = "Select looks for the candidate of largest Q(s', a)"
    return (
        Head(
            "3.1 action selection",
            2,
            choice[0],
            choice[1],
            wiring.move(wiring.actions, "id", "id"),
            looks if wiring.beta is None else "Select weighs candidates by e^{beta Q(s', a)}",
            "id(Select) += u_{a*}" if wiring.beta is None else "id(Select) += sum_a pi(a) u_a",
        ),
        Head(
            "3.2 max extraction",
            2,
            best[0],
            best[1],
            wiring.move(wiring.states, "buf3", "buf3") if lin else maximum,
            looks,
            "buf3(Select) = Q(., a*)" if lin else "buf2(Select) = max_a Q(s', a)",
        ),
        content_chooser(
            "3.3 Update inheritance",
            2,
            ((ids["Update"], ids["Qcurr"] + wiring.acting),),
            inherited,
            wiring.sink,
            theta=1.5,
            reads="Update looks for the action in phase Qcurr",
            writes="id(Update) += u_{a_t}; buf1(Update) = Q(., a_t)",
        ),
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
    centred = ((-sharpness / wiring.n_actions) * wiring.basis["buf2"].sum(wiring.actions), wiring.acting)
    ordered = () if not tau else ((-sharpness * tau * select, order),)
    return rule, (*rows, centred, *ordered, common[0], (silent, wiring.sink))


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
    discounted = wiring.move(states, "buf1", "buf1", alpha * wiring.gamma)
    current = Head(
        "4.1 subtract current value",
        3,
        "linear",
        match(wiring.basis, wiring.actions, "id", "buf2") if lin else ((update, buf2["Qcurr"]),),
        wiring.move(states, "id", "buf1", -alpha if lin else alpha),
        "Update scores r by Q(s_t, a_t)" if lin else "Update scores a by -Q(s_t, a_t)",
        "buf1(Update) -= alpha Q(s_t, a_t) u_{s_t}",
    )
    reward = Head(
        "4.2 add reward",
        3,
        "linear",
        ((update, buf1["r"]),),
        wiring.move(states, "id", "buf1", alpha),
        "Update scores r by its reward",
        "buf1(Update) += alpha r u_{s_t}",
    )
    bootstrap = Head(
        "4.3 add discounted max",
        3,
        "linear",
        match(wiring.basis, states, "buf2", "buf3") if lin else ((update, buf2["Select"]),),
        discounted,
        "Update scores Select by max_a Q(s', a)",
        "buf1(Update) += alpha gamma max_a Q(s', a) u_{s_t}",
    )
    if not lin:
        return (current, reward, bootstrap)
    clean = fixed_offset(
        "4.4 clean up",
        3,
        0,
        wiring.move(states, "buf2", "buf2", -1.0),
        wiring.basis.one - update,
        wiring.sink,
        "Update looks at itself",
        "buf2(Update) = 0",
    )
    return (current, reward, bootstrap, clean)


def fetching_heads(wiring: Wiring) -> tuple[Head, ...]:
    """Layer 4, "softmlp": fetch the three values and s_t; the MLP multiplies."""
    ids, states = wiring.basis["id"], wiring.states
    update = ids["Update"]
    return (
        content_chooser(
            "4.1 fetch current value",
            3,
            ((update, ids["Qcurr"] + wiring.acting),),
            (*wiring.move(("Qcurr",), "buf2", "buf2"), *wiring.move(states, "id", "buf2")),
            wiring.sink,
            theta=1.5,
            reads="Update looks for the action in phase Qcurr",
            writes="buf2(Update) = -Q(s_t, a_t) u_{Qcurr} + u_{s_t}",
        ),
        content_chooser(
            "4.2 fetch reward",
            3,
            ((update, ids["r"]),),
            wiring.move(("r",), "buf1", "buf2"),
            wiring.sink,
            reads="Update looks for r",
            writes="buf2(Update) += r_t u_r",
        ),
        content_chooser(
            "4.3 fetch max",
            3,
            ((update, ids["Select"]),),
            wiring.move(("Select",), "buf2", "buf2"),
            wiring.sink,
            reads="Update looks for Select",
            writes="buf2(Update) += max_a Q(s', a) u_{Select}",
        ),
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
