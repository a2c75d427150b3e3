r"""Tabular Q-learning as a transformer over one round (paper, section 4 and appendix C), corrected.

    Q(s_t, a_t) <- Q(s_t, a_t) + alpha (r_t + gamma max_a Q(s_{t+1}, a) - Q(s_t, a_t))

Latent ``c_a`` holds column a: ``id = u_a + u_Update``, ``buf1 = sum_s Q(s, a) u_s``; token r holds its reward in
``buf1[r]``; ``BOS`` is the attention sink. Layer 1 routes states, phases and columns to the tokens that need them,
layer 2 evaluates Q(s_t, a_t) and Q(s', a), layer 3 selects at ``Select`` and inherits at ``Update``, layer 4 adds the
TD terms; the output at ``Update`` is a valid ``c_{a_t}``. Heads carry the paper's numbers. The product in the printed
head 2.2 is no attention under a causal mask; what replaces it makes three variants:

* "mlp" (default): 2 |S| ReLU neurons, gated by state and phase; only head 2.2 differs from the paper;
* "softmlp": the same, and heads 4.1-4.3 fetch while an MLP multiplies: every head can be softmax;
* "lin": attention only. Linear head 2.2 reads a whole row of Q from the columns; no bound or sign condition on Q.

Ties: the choice is ``argmax_a (Q(s', a) - tau a)``, the lowest index, by a slope ``tau`` on the actions in the keys.
The choice and the backup use Q_t (``Select`` precedes ``Update``). "mlp" and "softmlp" need |Q| <= M, a power of two at
least ``max |r| / (1 - gamma)``, and rewards >= 0 unless ``signed``, which doubles their neurons.

Exact means equal to the algorithm up to rounding (1e-14 in float64 after 1,000 steps) for axis-aligned coordinates.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from circuits.basis import Basis, Direction, PositionCode
from circuits.circuit import Circuit
from circuits.heads import (
    Head,
    Neuron,
    Term,
    content_chooser,
    copy,
    fixed_offset,
    match,
    needs_float64,
    soften,
    softmax_pair,
)
from circuits.q_truth import Truth, edges, variables
from interp.errors import InputError, require, unknown_name
from interp.model.config import AttentionRule
from interp.tasks.qlearning.layout import QLearningRound

NAME = "qlearning-handwired"
VARIANTS = ("mlp", "softmlp", "lin")
POSITIONS = ("one-hot", "sinusoidal")


def q_learning(
    n_states: int = 4,
    n_actions: int = 3,
    variant: str = "mlp",
    alpha: float = 0.1,
    gamma: float = 0.9,
    rewards: Sequence[float] = (0.0, 1.0),
    signed: bool = False,
    tau: float = 1e-13,
    beta: float | None = None,
    eta: float | None = None,
    hardness: float = 1e8,
    heavy: float = 36.0,
    epsilon: float = 1e-5,
    positions: str = "one-hot",
    n_lines: int = 16,
    seed: int = 0,
    rotation: int | None = None,
) -> Circuit:
    """The tabular Q-learning circuit.

    Args:
        n_states, n_actions: at least 1 each.
        variant: "mlp", "softmlp" or "lin", see above.
        alpha: learning rate in (0, 1].
        gamma: discount in (0, 1).
        rewards: (lowest, highest) reward that the model will meet.
        signed: double the MLP neurons so that Q may be negative ("lin" needs none).
        tau: tie slope; smaller differences of Q than this are ties (1e-13 in float64, 4e-6 in float32).
        beta: inverse temperature of Boltzmann exploration in head 3.1 alone; None chooses greedily.
        eta: None for hard and linear heads (exact); else every head is softmax, at inverse temperature ``eta``
            (linear heads as pairs of softmax heads with a heavy sink, in float64 only).
        hardness: inverse temperature of the maximum in heads 3.1 and 3.2 when ``eta`` is given.
        heavy, epsilon: of the pairs: exponent of the sink, and scale of the scores.
        positions: "one-hot", or "sinusoidal" with ``n_lines`` random Fourier lines drawn with ``seed``.
        rotation: seed of a random orthonormal basis; None keeps coordinates axis-aligned.

    Raises:
        InputError: a value outside its range, or rewards that the variant is not proven for.
    """
    arguments = dict(locals())
    if variant not in VARIANTS:
        raise unknown_name("variant", variant, VARIANTS)
    if positions not in POSITIONS:
        raise unknown_name("position code", positions, POSITIONS)
    require(0 < alpha <= 1, f"alpha must lie in (0, 1], got {alpha!r}; the paper uses 0.1")
    require(0 < gamma < 1, f"gamma must lie in (0, 1), got {gamma!r}; the paper uses 0.9")
    require(bool(np.isfinite(tau) and tau >= 0), f"tau must be a number >= 0, got {tau!r}")
    for name, value in {"hardness": hardness, "heavy": heavy, "epsilon": epsilon}.items():
        require(bool(np.isfinite(value) and value > 0), f"{name} must be a number > 0, got {value!r}")
    for name, optional in {"beta": beta, "eta": eta}.items():
        fits = optional is None or bool(np.isfinite(optional) and optional > 0)
        require(fits, f"{name} must be a number > 0 or None, got {optional!r}")
    bound = value_bound(rewards, gamma)
    arguments["rewards"] = [float(reward) for reward in rewards]
    require_rewards(variant, signed, float(rewards[0]), "rewards")
    layout = QLearningRound(n_states, n_actions)
    codes = (
        PositionCode.one_hot(layout.labels)
        if positions == "one-hot"
        else PositionCode.sinusoidal(layout.labels, min(n_lines, layout.n_positions), seed)
    )
    blocks = ("id", "buf1", "buf2", "buf3") if variant == "lin" else ("id", "buf1", "buf2")
    basis = Basis.of(blocks, (token.strip("<>") for token in layout.vocabulary), codes, rotation)
    wiring = Wiring(basis, n_states, n_actions, variant, alpha, gamma, bound, signed, tau, beta, eta and hardness)
    heads = wiring.heads()
    if eta is not None:
        heads = _softmax_only(heads, basis["id"]["BOS"], eta, epsilon, heavy)
    ids, buf1 = basis["id"], basis["buf1"]
    return Circuit(
        name=NAME,
        arguments=arguments,
        layout=layout,
        basis=basis,
        heads=heads,
        neurons=wiring.neurons(),
        tokens={token: ids[token.strip("<>")] for token in layout.vocabulary},
        payloads={"r": buf1["r"]},
        payload_range=None if variant == "lin" else (float(rewards[0]), float(rewards[1])),
        latents=tuple(ids[action] + ids["Update"] for action in wiring.actions),
        outcomes=tuple(ids[action] for action in wiring.actions),
        state=tuple(buf1[state] for state in wiring.states),
        variables=variables(basis, layout, variant, Truth(alpha, gamma, tau, beta, eta and hardness)),
        edges=edges(variant, split=eta is not None),
        float64_only="" if eta is None or variant == "softmlp" else needs_float64(f"variant {variant!r}", "'softmlp'"),
    )


def value_bound(rewards: Sequence[float], gamma: float) -> float:
    """M: the smallest power of two that is at least 1 and at least ``max |r| / (1 - gamma)``, hence bounds |Q|.

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
    return float(2 ** math.ceil(math.log2(max(1.0, largest))))


def require_rewards(variant: str, signed: bool, lowest: float, what: str) -> None:
    """Refuse negative rewards where the neurons would clip them."""
    require(
        lowest >= 0 or signed or variant == "lin",
        f"{what} as low as {lowest:g} are outside [0, inf), what variant {variant!r} is proven for; load it with "
        "signed=True (doubled neurons) or use variant 'lin'",
    )


@dataclass(frozen=True)
class Wiring:
    """The head table of one variant, layer by layer; arguments as in :func:`q_learning`, ``bound`` is M."""

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
        return tuple(f"s_{i}" for i in range(1, self.n_states + 1))

    @property
    def actions(self) -> tuple[str, ...]:
        return tuple(f"a_{i}" for i in range(1, self.n_actions + 1))

    @property
    def sink(self) -> Direction:
        return self.basis["id"]["BOS"]

    @property
    def acting(self) -> Direction:
        """id[A]: is it an action?"""
        return self.basis["id"].sum(self.actions)

    def move(self, labels: Sequence[str], source: str, target: str, scale: float = 1.0) -> tuple[Term, ...]:
        return copy(self.basis, labels, source, target, scale)

    def heads(self) -> tuple[Head, ...]:
        """All heads, in order."""
        last = self.fetching_heads() if self.variant == "softmlp" else self.adding_heads()
        return (*self.routing_heads(), *self.evaluating_heads(), *self.selecting_heads(), *last)

    def routing_heads(self) -> tuple[Head, ...]:
        """Layer 1: states, phases and columns to the tokens that need them."""
        ids, one, sink, states, lin = self.basis["id"], self.basis.one, self.sink, self.states, self.variant == "lin"
        acting = self.acting
        only_actions = one - acting + ids["Update"]  # c_a is an action and an Update: it must not fire.
        copies = self.move(states, "id", "id")
        both = tuple((ids[state], ids[state] + self.basis["buf2"][state]) for state in states) if lin else ()
        own = match(self.basis, self.actions, "id", "id")
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
                self.move(states, "id", "buf2") if lin else copies,
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
                self.move(("Qcurr",), "id", "id"),
                only_actions,
                sink,
                "actions look two tokens back",
                "id(a) += u_{Qcurr}",
            ),
            content_chooser(
                "1.5 next-phase tag",
                0,
                ((acting, ids["Qnext"]),),
                self.move(("Qnext",), "id", "id"),
                sink,
                reads="actions look for Qnext",
                writes="id(a_i) += u_{Qnext}",
            ),
            content_chooser(
                "1.6 context fetch",
                0,
                (*own, *extra),
                self.move(states, "buf1", "buf3" if lin else "buf1"),
                sink,
                theta=1.5,
                reads="actions look for their own column c_a",
                writes="buf3(a) = Q(., a)" if lin else "buf1(a) = Q(., a)",
            ),
        )

    def evaluating_heads(self) -> tuple[Head, ...]:
        """Layer 2: s_t to Select; in "lin", rows of Q from the columns."""
        ids = self.basis["id"]
        fetch = content_chooser(
            "2.1 Select fetches s_t",
            1,
            ((ids["Select"], ids["Qcurr"] + self.acting),),
            self.move(self.states, "id", "buf1"),
            self.sink,
            theta=1.5,
            reads="Select looks for the action in phase Qcurr",
            writes="buf1(Select) = u_{s_t}",
        )
        if self.variant != "lin":
            return (fetch,)
        rows = Head(
            "2.2 Q-values",
            1,
            "linear",
            match(self.basis, self.states, "buf2", "buf1"),
            self.move(self.actions, "id", "buf2"),
            "Select and r score each column at their state",
            "buf2(Select) += Q(s', .); buf2(r) += Q(s_t, .)",
        )
        following = fixed_offset(
            "2.3 next state to Update",
            1,
            2,
            self.move(self.states, "buf2", "buf2"),
            self.basis.one - ids["Update"],
            self.sink,
            "Update looks two tokens back",
            "buf2(Update) = u_{s'}",
        )
        return (fetch, rows, following)

    def selecting_heads(self) -> tuple[Head, ...]:
        """Layer 3: choose, take the maximum, inherit the visited column."""
        ids, buf2, lin = self.basis["id"], self.basis["buf2"], self.variant == "lin"
        best = self.selection("hard" if self.hardness is None else "softmax", self.hardness or 1.0, self.tau)
        choice = best if self.beta is None else self.selection("softmax", self.beta, 0.0)
        maximum: tuple[Term, ...] = ((buf2["Qnext"], buf2["Select"]),)
        inherited = (*self.move(self.actions, "id", "id"), *self.move(self.states, "buf3" if lin else "buf1", "buf1"))
        looks = "Select looks for the candidate of largest Q(s', a)"
        return (
            Head(
                "3.1 action selection",
                2,
                choice[0],
                choice[1],
                self.move(self.actions, "id", "id"),
                looks if self.beta is None else "Select weighs candidates by e^{beta Q(s', a)}",
                "id(Select) += u_{a*}" if self.beta is None else "id(Select) += sum_a pi(a) u_a",
            ),
            Head(
                "3.2 max extraction",
                2,
                best[0],
                best[1],
                self.move(self.states, "buf3", "buf3") if lin else maximum,
                looks,
                "buf3(Select) = Q(., a*)" if lin else "buf2(Select) = max_a Q(s', a)",
            ),
            content_chooser(
                "3.3 Update inheritance",
                2,
                ((ids["Update"], ids["Qcurr"] + self.acting),),
                inherited,
                self.sink,
                theta=1.5,
                reads="Update looks for the action in phase Qcurr",
                writes="id(Update) += u_{a_t}; buf1(Update) = Q(., a_t)",
            ),
        )

    def selection(self, rule: AttentionRule, sharpness: float, tau: float) -> tuple[AttentionRule, tuple[Term, ...]]:
        """Rule and scores at Select: ``sharpness (Q(s', a) - tau a)`` for candidates, at least C less for others.

        The gate has a column of its own, so that it is exactly 0 for candidates and costs no precision of Q. In "lin"
        every token with id[a] is scored by Q(s', a) minus the mean of the row: the best candidate then scores at least
        0, all others at most -C, whatever the sign and size of Q. r, whose row of Q is a query too, stays silent up to
        |Q| = M, and its attention reaches no output beyond that.
        """
        ids, one, select = self.basis["id"], self.basis.one, self.basis["id"]["Select"]
        gate = 1.0 if rule == "hard" else 100.0
        if self.signed:
            gate += 2.0 * sharpness * self.bound
        order = sum((float(k) * ids[action] for k, action in enumerate(self.actions)), self.basis.zero)
        common: tuple[Term, ...] = (
            (select, gate * (ids["Qnext"] + self.acting - 2.0 * one)),
            (gate * (one - select), self.sink),
        )
        if self.variant != "lin":
            return rule, ((sharpness * select, self.basis["buf2"]["Qnext"] - tau * order), *common)
        rows = match(self.basis, self.actions, "buf2", "id", sharpness)
        silent = (gate + 2.0 * sharpness * self.bound) * (one - select)
        centred = ((-sharpness / self.n_actions) * self.basis["buf2"].sum(self.actions), self.acting)
        ordered = () if not tau else ((-sharpness * tau * select, order),)
        return rule, (*rows, centred, *ordered, common[0], (silent, self.sink))

    def adding_heads(self) -> tuple[Head, ...]:
        """Layer 4, "mlp" and "lin": linear heads add the three TD terms."""
        ids, buf1, buf2, lin = self.basis["id"], self.basis["buf1"], self.basis["buf2"], self.variant == "lin"
        update, states, alpha = ids["Update"], self.states, self.alpha
        discounted = self.move(states, "buf1", "buf1", alpha * self.gamma)
        subtract = "buf1(Update) -= alpha Q(s_t, a_t) u_{s_t}"
        reward = Head(
            "4.2 add reward",
            3,
            "linear",
            ((update, buf1["r"]),),
            self.move(states, "id", "buf1", alpha),
            "Update scores r by its reward",
            "buf1(Update) += alpha r u_{s_t}",
        )
        bootstrap = Head(
            "4.3 add discounted max",
            3,
            "linear",
            match(self.basis, states, "buf2", "buf3") if lin else ((update, buf2["Select"]),),
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
                self.move(states, "id", "buf1", alpha),
                "Update scores a by -Q(s_t, a_t)",
                subtract,
            )
            return (current, reward, bootstrap)
        current = Head(
            "4.1 subtract current value",
            3,
            "linear",
            match(self.basis, self.actions, "id", "buf2"),
            self.move(states, "id", "buf1", -alpha),
            "Update scores r by Q(s_t, a_t)",
            subtract,
        )
        clean = fixed_offset(
            "4.4 clean up",
            3,
            0,
            self.move(states, "buf2", "buf2", -1.0),
            self.basis.one - update,
            self.sink,
            "Update looks at itself",
            "buf2(Update) = 0",
        )
        return (current, reward, bootstrap, clean)

    def fetching_heads(self) -> tuple[Head, ...]:
        """Layer 4, "softmlp": fetch the three values and s_t; the MLP multiplies."""
        ids, states = self.basis["id"], self.states
        update = ids["Update"]
        return (
            content_chooser(
                "4.1 fetch current value",
                3,
                ((update, ids["Qcurr"] + self.acting),),
                (*self.move(("Qcurr",), "buf2", "buf2"), *self.move(states, "id", "buf2")),
                self.sink,
                theta=1.5,
                reads="Update looks for the action in phase Qcurr",
                writes="buf2(Update) = -Q(s_t, a_t) u_{Qcurr} + u_{s_t}",
            ),
            content_chooser(
                "4.2 fetch reward",
                3,
                ((update, ids["r"]),),
                self.move(("r",), "buf1", "buf2"),
                self.sink,
                reads="Update looks for r",
                writes="buf2(Update) += r_t u_r",
            ),
            content_chooser(
                "4.3 fetch max",
                3,
                ((update, ids["Select"]),),
                self.move(("Select",), "buf2", "buf2"),
                self.sink,
                reads="Update looks for Select",
                writes="buf2(Update) += max_a Q(s', a) u_{Select}",
            ),
        )

    def neurons(self) -> tuple[Neuron, ...]:
        """MLP_2 (head 2.2 as neurons) and, in "softmlp", MLP_4."""
        if self.variant == "lin":
            return ()
        return (*self.evaluating_neurons(), *(self.adding_neurons() if self.variant == "softmlp" else ()))

    def evaluating_neurons(self) -> tuple[Neuron, ...]:
        """``relu(+-buf1[s] + M id[s] + M id[phase] - 2 M)``: Q(s, a) where state and phase are there, else 0."""
        ids, buf1, buf2, M = self.basis["id"], self.basis["buf1"], self.basis["buf2"], self.bound
        out = []
        for phase, sign in (("Qcurr", -1.0), ("Qnext", 1.0)):
            for part in (1.0, -1.0) if self.signed else (1.0,):
                for state in self.states:
                    read = part * buf1[state] + M * (ids[state] + ids[phase])
                    out.append(Neuron("2.2 Q-values", 1, read, -2 * M, part * sign * buf2[phase]))
        return tuple(out)

    def adding_neurons(self) -> tuple[Neuron, ...]:
        """``relu(d + D buf2[s] - D) - relu(-d + D buf2[s] - D)`` adds d = alpha x TD error at s_t; the rest clears."""
        buf1, buf2 = self.basis["buf1"], self.basis["buf2"]
        d = self.alpha * (buf2["Qcurr"] + buf2["r"] + self.gamma * buf2["Select"])
        D = self.alpha * self.bound * (2 + self.gamma)
        add = [
            Neuron("4.4 add TD error", 3, sign * d + D * buf2[state], -D, sign * buf1[state])
            for state in self.states
            for sign in (1.0, -1.0)
        ]
        signs = [*((state, 1.0) for state in self.states), ("Qcurr", -1.0), ("r", 1.0), ("Select", 1.0)]
        if self.signed:
            signs += [("Qcurr", 1.0), ("r", -1.0), ("Select", -1.0)]
        clear = [Neuron("4.5 clean up", 3, sign * buf2[label], 0.0, -sign * buf2[label]) for label, sign in signs]
        return (*add, *clear)


def _softmax_only(
    heads: tuple[Head, ...], sink: Direction, eta: float, epsilon: float, heavy: float
) -> tuple[Head, ...]:
    """Every head as softmax; heads 3.1 and 3.2 are softmax already."""
    out: list[Head] = []
    for head in heads:
        if head.rule == "hard":
            out.append(soften(head, eta))
        elif head.rule == "linear":
            out += softmax_pair(head, sink, epsilon, heavy)
        else:
            out.append(head)
    return tuple(out)
