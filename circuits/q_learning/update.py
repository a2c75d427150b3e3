"""Layer 4 of the Q-learning circuit: the terms of the TD error, added to the column that Update inherited."""

from __future__ import annotations

from circuits.heads import Head, Neuron, content_chooser, fixed_offset, match
from circuits.q_learning.wiring import Wiring


def adding_heads(wiring: Wiring) -> tuple[Head, ...]:
    """Layer 4, "mlp" and "lin": linear heads add the three TD terms."""
    ids, buf1, buf2, lin = wiring.basis["id"], wiring.basis["buf1"], wiring.basis["buf2"], wiring.variant == "lin"
    update, states, alpha = ids["Update"], wiring.states, wiring.alpha
    discounted = wiring.move(states, "buf1", "buf1", alpha * wiring.gamma)
    subtract = "buf1(Update) -= alpha Q(s_t, a_t) u_{s_t}"
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
        current = Head(
            "4.1 subtract current value",
            3,
            "linear",
            ((update, buf2["Qcurr"]),),
            wiring.move(states, "id", "buf1", alpha),
            "Update scores a by -Q(s_t, a_t)",
            subtract,
        )
        return (current, reward, bootstrap)
    current = Head(
        "4.1 subtract current value",
        3,
        "linear",
        match(wiring.basis, wiring.actions, "id", "buf2"),
        wiring.move(states, "id", "buf1", -alpha),
        "Update scores r by Q(s_t, a_t)",
        subtract,
    )
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
