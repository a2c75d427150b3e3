"""Build the Q-learning circuit: its heads and neurons, its softmax-only form, and its ground truth.

``heads.csv`` says what each head reads and writes, and ``edges.csv`` which component reads the
output of which other component.
``docs/method/q-learning.md`` explains the construction and where its variables are stored.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from circuits import heads as wire
from circuits.basis import Axes, Basis, Coordinates, Direction
from circuits.circuit import Circuit, VerificationPlan, read_tables
from interp.core.algorithm import Values
from interp.model.config import AttentionRule
from interp.support.checks import checked
from interp.support.errors import convert_errors, require, require_known
from interp.tasks import mdp
from interp.tasks.qlearning import algorithms, bellman, tabular
from interp.tasks.qlearning.episodes import MDPEpisodes, MDPs
from interp.tasks.qlearning.layout import QLearningRound
from interp.tasks.sized_round import number_names

_FOLDER = Path(__file__).parent
_NAME = "qlearning-handwired"
_VARIANTS = ("mlp", "softmlp", "lin")
_LARGEST_BOUND_IN_FLOAT32 = 2.0**120
"""The largest bound M for which sums of a few values and scores stay far below float32's overflow,
2^128.
"""


@checked
def value_bound(rewards: Sequence[float], gamma: float) -> float:
    """Compute M, a number that no absolute Q-value exceeds if rewards are in a given range: the
    smallest power of two that is at least ``max |reward| / (1 - gamma)``.

    M is 1 if all rewards are 0.

    Args:
        rewards: (lowest, highest) reward.
        gamma: discount in [0, 1).

    >>> value_bound((0.0, 1.0), 0.9)
    16.0
    """
    message = f"rewards must be (lowest, highest), two finite numbers in order, got {rewards!r}"
    with convert_errors(message, of=(TypeError, ValueError)):
        values = [float(reward) for reward in rewards]
    is_pair = len(values) == 2 and all(map(math.isfinite, values))
    require(is_pair and values[0] <= values[1], message)
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
    """Build the circuit that computes tabular Q-learning; heads such as 3.1 are numbered as in the
    paper.

    Args:
        n_states, n_actions: sizes of the MDP, at least 1 each.
        variant: "mlp" (ReLU neurons look up Q-values), "softmlp" (neurons also add the TD error,
            and every head can become a softmax head) or "lin" (attention only, for rewards of any
            sign).
        alpha: learning rate in (0, 1].
        gamma: discount in [0, 1).
        rewards: (lowest, highest) reward for which the circuit must be right.
        signed: True doubles the MLP neurons, so that Q-values may be negative. The variant "lin"
            does not need this.
        tau: tie slope, for choosing among actions with equal Q-values: ``tau * a`` is subtracted
            from the value of the action with index a, so that the first one wins. 0 averages over
            ties. None takes ``relative_tau`` times M, the bound of ``|Q|`` (:func:`value_bound`):
            1e-13 for rewards in [0, 1] and gamma .9.
        relative_tau: the tie slope divided by M. 6.25e-15 (28 times the machine epsilon) suits
            float64, 2.5e-7 (2 times) float32.
        beta: inverse temperature of a softmax policy in head 3.1, which chooses the action; None
            chooses greedily.
        eta: inverse temperature of the softmax heads that replace all hard and linear heads; the
            circuit is then nearly exact. None keeps hard and linear heads, and the circuit is
            exact. Each linear head becomes a pair of softmax heads that attend mostly to a sink
            token; such pairs need float64.
        hardness: if ``eta`` is a number: inverse temperature of the maximum over actions in heads
            3.1 and 3.2.
        heavy: logit of the sink token in these pairs of softmax heads.
        epsilon: factor of the scores in these pairs; a smaller factor approximates the linear head
            better, but loses more digits to rounding.
        noise: True adds a position ``n`` with a random draw in each round, which decides whether
            the machine explores.
        coordinates: position codes and rotation of the basis. Callers pass the four fields of
            :class:`~circuits.basis.Coordinates` as keywords in its place: ``positions``,
            ``n_lines``, ``seed``, ``rotation``.

    Raises:
        InputError: the variant is not proven for these rewards, or the tie slope is smaller than
            the rounding error of M in float64.
    """
    arguments = coordinates.joined(locals())
    require_known("variant", variant, _VARIANTS)
    bellman.check_rates(alpha, gamma)
    wire.require_positive(
        relative_tau=relative_tau, hardness=hardness, heavy=heavy, epsilon=epsilon
    )
    require(
        beta is None or (np.isfinite(beta) and beta > 0),
        f"beta must be a number > 0 or None, got {beta!r}",
    )
    bound = value_bound(rewards, gamma)
    low, high = map(float, rewards)
    require(
        low >= 0 or signed or variant == "lin",
        f"rewards as low as {low:g} are outside [0, inf), what variant {variant!r} is proven for; load "
        "it with signed=True (doubled neurons) or use variant 'lin'",
    )
    arguments["rewards"] = [low, high]
    if not noise:
        del arguments["noise"]  # A circuit without it is recorded as before there was one.
    slope = _choose_tie_slope(tau, relative_tau, bound)
    policy_hardness = hardness if eta else None  # None in an exact circuit

    layout = QLearningRound(n_states, n_actions, noise=noise)
    names = {token: token.strip("<>") for token in layout.vocabulary}
    blocks = ["id", "buf1", "buf2"]
    if variant == "lin":
        blocks.append("buf3")
    basis = coordinates.basis(dict.fromkeys(blocks, tuple(names.values())), layout.labels)
    ids, buf1, buf2 = basis["id"], basis["buf1"], basis["buf2"]
    wiring = _Wiring(
        basis=basis,
        ids=ids,
        buf1=buf1,
        buf2=buf2,
        constant=basis.one,
        sink=ids["BOS"],
        states=number_names("s", n_states),
        actions=number_names("a", n_actions),
        variant=variant,
        alpha=alpha,
        gamma=gamma,
        bound=bound,
        signed=signed,
        tau=slope,
        beta=beta,
        hardness=policy_hardness,
        draws=layout.draws,
    )

    form = _describe_form(variant, eta, beta, noise)
    described_heads = wire.add_descriptions(_make_exact_heads(wiring), _FOLDER, form)
    heads = wire.softmax_only(
        described_heads,
        eta,
        linear=lambda head: wire.softmax_pair(head, sink=wiring.sink, epsilon=epsilon, heavy=heavy),
    )
    neurons = _make_neurons(wiring)
    # After layer 4 of "softmlp" the TD error is the sum of three terms; Qcurr holds -Q(s_t, a_t).
    current = buf2["Qcurr"]
    fetched = current + buf2["r"] + gamma * buf2["Select"]
    tables = read_tables(
        _FOLDER,
        form,
        parts=(*heads, *neurons),
        basis=basis,
        groups=_group_labels(wiring, layout.labels, coordinates.one_hot),
        named={"added": buf1.sum(wiring.states), "fetched": fetched, "current": -current},
        scales={"alpha": alpha},
    )
    algorithm = algorithms.q_learning(alpha, gamma, slope, beta, policy_hardness, noise)
    vectors = {token: ids[name] for token, name in names.items()}
    initial_latents = tuple(ids[action] + ids["Update"] for action in wiring.actions)
    outcomes = tuple(ids[action] for action in wiring.actions)
    state_axes = tuple(buf1[state] for state in wiring.states)
    return Circuit(
        name=_NAME,
        arguments=arguments,
        layout=layout,
        basis=basis,
        heads=heads,
        neurons=neurons,
        tokens=vectors,
        payloads={"r": buf1["r"]},
        payload_range=None if variant == "lin" else (low, high),
        # In float32, the default tie slope is 2 rounding errors of M (in float64, 28). It would have
        # no effect on values larger than M.
        float32_range=(low, high),
        latents=initial_latents,
        outcomes=outcomes,
        state=state_axes,
        algorithm=replace(algorithm, initial=_start_at_zero),
        **tables,
        float64_only=_explain_float64_only(variant, eta, slope, bound),
    )


def _choose_tie_slope(tau: float | None, relative_tau: float, bound: float) -> float:
    """Return the tie slope: ``tau`` or, if it is None, ``relative_tau`` times M.

    Args:
        tau, relative_tau: as for :func:`q_learning`.
        bound: M, which no ``|Q|`` exceeds.

    Raises:
        InputError: the slope is negative, or smaller than the rounding error of M in float64.
    """
    if tau is None:
        slope = relative_tau * bound
    else:
        require(np.isfinite(tau) and tau >= 0, f"tau must be a number >= 0 or None, got {tau!r}")
        slope = tau
    resolved = float(np.finfo("float64").eps) * bound
    require(
        slope == 0 or slope >= resolved,
        f"tau = {slope:g} is below {resolved:g}, what float64 resolves of values up to M = {bound:g}, so that ties "
        "would not be broken; give no tau, one above that bound, or 0 to average over ties",
    )
    return slope


def _describe_form(variant: str, eta: float | None, beta: float | None, noise: bool) -> set[str]:
    """Return the words that select the rows of the circuit's tables, such as ``{"mlp", "exact",
    "silent", "greedy"}``.

    Args:
        variant, eta, beta, noise: as for :func:`q_learning`.
    """
    form = {variant, "softmax" if eta else "exact", "noise" if noise else "silent"}
    if beta:
        form.add("boltzmann")
    elif eta is None and not noise:
        form.add("greedy")  # the choice is one-hot, with no probability elsewhere
    return form


def _group_labels(
    wiring: _Wiring, positions: tuple[str, ...], is_one_hot: bool
) -> dict[str, Sequence[str]]:
    """Return what the words in the circuit's tables (``edges.csv`` and ``sites.csv``) stand for:
    word -> labels of positions or axes.

    Args:
        wiring: parameters of the circuit.
        positions: labels of all positions of a round, in order.
        is_one_hot: True if the position codes are one-hot.
    """
    n_actions = len(wiring.actions)
    # The positions that heads look back to, one or two before another. Sinusoidal codes can also be
    # shifted beyond the round, so that then the codes of all positions are read.
    one_back = two_back = positions
    if is_one_hot:
        one_back, two_back = positions[:-1], positions[:-2]
    return {
        "ALL": positions,
        "ROWS": wiring.states,  # of the Q-table, one per state
        "CANDIDATES": wiring.actions,
        "COLUMNS": number_names("c", n_actions),  # of the Q-table, one latent per action
        # The token of the next state is repeated before every action: s'_1 a_1 s'_2 a_2 ...
        "STATES": number_names("s'", n_actions),
        "DRAWS": wiring.draws,
        "LAST": [f"s'_{n_actions}"],
        # If M < 1, the neurons "2.2 Q-values" also read the axis that marks the token Select, which
        # silences them there (_make_evaluating_neurons).
        "PAUSE": ["Select"] if wiring.bound < 1 else [],
        "BACK1": one_back,
        "BACK2": two_back,
    }


def _start_at_zero(episodes: MDPEpisodes) -> dict[str, np.ndarray]:
    """Return the state of Q-learning before the first round: all Q-values are 0, even if the
    episodes begin with other ones.

    Args:
        episodes: the episodes, for their sizes.
    """
    zeros = np.zeros_like(episodes.q_tables[:, 0])  # [episode, state, action]
    return {"table": zeros, "visits": zeros}


def _explain_float64_only(variant: str, eta: float | None, slope: float, bound: float) -> str:
    """Return a sentence that says why the circuit cannot be float32, or "" if it can.

    Args:
        variant: "mlp", "softmlp" or "lin", as for :func:`q_learning`.
        eta: inverse temperature of a softmax-only circuit; None for hard heads.
        slope: the tie slope: action a loses ``slope * a`` of its value, so that the first of equal
            actions wins.
        bound: M, which no ``|Q|`` exceeds.
    """
    if eta is not None and variant != "softmlp":
        return wire.needs_float64(f"variant {variant!r}", "'softmlp'")
    if bound > _LARGEST_BOUND_IN_FLOAT32:
        return (
            f"values up to M = {bound:g} are beyond {_LARGEST_BOUND_IN_FLOAT32:g}, above which sums of a few of them "
            "could overflow in float32; load it with "
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
    """Parameters of one variant of the Q-learning circuit, from which the functions below make its
    heads and neurons.

    Attributes:
        basis: basis of the residual stream.
        ids, buf1, buf2: axes of the blocks "id", "buf1" and "buf2" of this basis.
        constant: direction that reads 1 at every token.
        sink: direction of the token BOS, the attention sink for queries without a match.
        states, actions: labels of the state tokens and of the action tokens.
        variant: "mlp", "softmlp" or "lin", as for :func:`q_learning`.
        alpha, gamma: learning rate and discount.
        bound: M, which no ``|Q|`` exceeds.
        signed: True if Q may be negative.
        tau: tie slope: action a loses ``tau * a`` of its value.
        beta: inverse temperature of a softmax policy; None for a greedy one.
        hardness: inverse temperature of the maximum over actions in a softmax-only circuit; None
            for a hard maximum.
        draws: labels of the tokens of the random draw; empty without exploration.
    """

    basis: Basis
    ids: Axes
    buf1: Axes
    buf2: Axes
    constant: Direction
    sink: Direction
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
    def any_action(self) -> Direction:
        """Direction that reads 1 at every action token: the sum of the action axes of the block
        "id".
        """
        return self.ids.sum(self.actions)

    @property
    def to_taken_action(self) -> tuple[wire.Term, ...]:
        """The (query, key) score terms with which the token Update attends to the action that was
        taken in the current state.
        """
        return ((self.ids["Update"], self.ids["Qcurr"] + self.any_action),)

    def move(
        self, labels: Sequence[str], source: str, target: str, scale: float = 1.0
    ) -> tuple[wire.Term, ...]:
        """Make the move terms of a head that copies coordinates from one block of the residual
        stream, at the key, to another block, at the query (:func:`circuits.heads.copy`).

        Args:
            labels: labels of the coordinates.
            source, target: names of the block that is read and of the block that is written.
            scale: factor of what is written.
        """
        return wire.copy(self.basis, labels, source, target, scale)


def _make_exact_heads(wiring: _Wiring) -> list[wire.Head]:
    """Make all attention heads of the circuit, layer by layer. Attention is hard or linear, except
    for a softmax policy or maximum.

    Args:
        wiring: the basis, the names of tokens and the options of the circuit.
    """
    heads = _make_routing_heads(wiring)
    heads += _make_evaluating_heads(wiring)
    heads += _make_selecting_heads(wiring)
    if wiring.variant == "softmlp":
        heads += _make_fetching_heads(wiring)
    else:
        heads += _make_adding_heads(wiring)
    return heads


def _make_neurons(wiring: _Wiring) -> tuple[wire.Neuron, ...]:
    """Make all MLP neurons of the circuit, layer by layer. The variant "lin" has none.

    Args:
        wiring: the basis, the names of tokens and the options of the circuit.
    """
    neurons: list[wire.Neuron] = []
    if wiring.variant != "lin":
        neurons += _make_evaluating_neurons(wiring)
    if wiring.variant == "softmlp":
        neurons += _make_adding_neurons(wiring)
    return tuple(neurons)


def _make_routing_heads(wiring: _Wiring) -> list[wire.Head]:
    """Make the attention heads of layer 1, which copy information to the tokens that need it.

    What is copied:

    - the names of the current and the next state, to the tokens next to them;
    - the tags Qcurr and Qnext, to the actions next to the current and to the next state;
    - columns of the Q-table, to the tokens of their actions;
    - the random draw, if there is one, to the token Select, where the action is chosen.

    Args:
        wiring: the basis, the names of tokens and the options of the circuit.
    """
    ids, constant, any_action = wiring.ids, wiring.constant, wiring.any_action
    sink, states, move = wiring.sink, wiring.states, wiring.move
    # A gate is a direction. It reads 0 at the tokens that look back, and 1 at all others, which
    # attend to the sink.
    # A token c_a is both an action and an Update, and does not look back: 1 - 1 + 1.
    all_but_actions = constant - any_action + ids["Update"]
    all_but_select = constant - ids["Select"]
    all_but_reward = constant - ids["r"]

    # Names of states: actions copy the one before them; Select copies s' and r copies s_t.
    to_actions = to_select = to_reward = move(states, "id", "id")
    column_block = "buf1"  # in which actions hold their column of the Q-table
    if wiring.variant == "lin":
        column_block = "buf3"
        to_select = move(states, "id", "buf2")
        to_reward = tuple((ids[state], ids[state] + wiring.buf2[state]) for state in states)
    state_to_actions = wire.fixed_offset(
        "1.1 state to actions", layer=0, offset=1, moves=to_actions, gate=all_but_actions, sink=sink
    )
    state_to_select = wire.fixed_offset(
        "1.2 state to Select", layer=0, offset=2, moves=to_select, gate=all_but_select, sink=sink
    )
    state_to_reward = wire.fixed_offset(
        "1.3 state to reward", layer=0, offset=2, moves=to_reward, gate=all_but_reward, sink=sink
    )

    # Tags of the two phases: the action taken copies Qcurr, and the candidates copy Qnext.
    current_tag, next_tag = move(("Qcurr",), "id", "id"), move(("Qnext",), "id", "id")
    to_next_phase = ((any_action, ids["Qnext"]),)
    tag_current = wire.fixed_offset(
        "1.4 current-phase tag",
        layer=0,
        offset=2,
        moves=current_tag,
        gate=all_but_actions,
        sink=sink,
    )
    tag_next = wire.content_chooser(
        "1.5 next-phase tag", layer=0, wanted=to_next_phase, moves=next_tag, sink=sink
    )

    # A query is an action token, and looks for the column of the same action. This column scores 2:
    # 1 for the action, and 1 for being a column (a key with Update). Columns, which are action
    # tokens, too, attend to the sink as queries.
    same_action = wire.match(wiring.basis, wiring.actions, "id", "id")
    from_column = (any_action - 2.0 * ids["Update"], ids["Update"])
    column = move(states, "buf1", column_block)
    fetch_column = wire.content_chooser(
        "1.6 context fetch",
        layer=0,
        wanted=(*same_action, from_column),
        moves=column,
        sink=sink,
        theta=1.5,
    )
    heads = [
        state_to_actions,
        state_to_select,
        state_to_reward,
        tag_current,
        tag_next,
        fetch_column,
    ]
    if wiring.draws:
        draw = ((ids["Select"], ids.sum(wiring.draws)),)
        moves = move(wiring.draws, "id", "buf2")
        heads.append(
            wire.content_chooser("1.7 draw to Select", layer=0, wanted=draw, moves=moves, sink=sink)
        )
    return heads


def _make_evaluating_heads(wiring: _Wiring) -> list[wire.Head]:
    """Make the attention heads of layer 2.

    One head copies the current state s_t to the token Select, where the action is chosen. The
    variant "lin" has two more. One writes the Q-values of all actions, in the state that a token
    has in the block ``buf2``, to this token. The other copies the next state from Select to the
    token Update.

    Args:
        wiring: the basis, the names of tokens and the options of the circuit.
    """
    ids, states, sink, move = wiring.ids, wiring.states, wiring.sink, wiring.move
    # Head 2.1 copies the name s_t from an action token beside the current state to buf1 of Select.
    # This token scores 2: 1 as an action, and 1 for the tag Qcurr. All other tokens score at most 1,
    # and the sink 1.5 (theta).
    to_current = ((ids["Select"], ids["Qcurr"] + wiring.any_action),)
    state = move(states, "id", "buf1")
    fetch = wire.content_chooser(
        "2.1 Select fetches s_t", layer=1, wanted=to_current, moves=state, sink=sink, theta=1.5
    )
    if wiring.variant != "lin":
        return [fetch]
    # A query names its state s in buf2. The column of action a, a latent, holds Q(s, a) in buf1[s]:
    # this is its score, and the head writes it to buf2[a] at the query.
    same_state = wire.match(wiring.basis, states, "buf2", "buf1")
    value = move(wiring.actions, "id", "buf2")
    # Select holds the name of the next state in buf2 (head 1.2). It is two positions before Update.
    next_state = move(states, "buf2", "buf2")
    # The gate reads 0 at Update, which looks back, and 1 at all others, which attend to the sink.
    all_but_update = wiring.constant - ids["Update"]
    return [
        fetch,
        wire.Head("2.2 Q-values", layer=1, rule="linear", scores=same_state, moves=value),
        wire.fixed_offset(
            "2.3 next state to Update",
            layer=1,
            offset=2,
            moves=next_state,
            gate=all_but_update,
            sink=sink,
        ),
    ]


_MARGINS: Mapping[AttentionRule, float] = {"hard": 1.0, "softmax": 100.0}
"""By how much a head that chooses among actions scores every other position below them. A softmax
gives such positions at most the share e^-100.
"""


def _make_selecting_heads(wiring: _Wiring) -> list[wire.Head]:
    """Make the three attention heads of layer 3.

    The first chooses the action and the second computes max Q(s', a), both at the token Select. The
    third copies to the token Update the action a_t that was taken, and its column of the Q-table.

    Args:
        wiring: the basis, the names of tokens and the options of the circuit.
    """
    # The maximum: hard attention, or a softmax that is nearly hard.
    best_rule: AttentionRule = "hard" if wiring.hardness is None else "softmax"
    best_scores = _score_actions(
        wiring, margin=_MARGINS[best_rule], sharpness=wiring.hardness or 1.0, tau=wiring.tau
    )
    # The choice: the action of the maximum, or a draw by a softmax, in which ties share.
    choice_rule, choice_scores = best_rule, best_scores
    if wiring.beta is not None:  # a softmax policy
        choice_rule = "softmax"
        choice_scores = _score_actions(
            wiring, margin=_MARGINS[choice_rule], sharpness=wiring.beta, tau=0.0
        )
    if wiring.draws:
        choice_scores += _reward_drawn_action(
            wiring,
            margin=_MARGINS[choice_rule],
            sharpness=wiring.beta or wiring.hardness or 1.0,
        )
    action = wiring.move(wiring.actions, "id", "id")
    if wiring.variant == "lin":  # actions hold their column of the Q-table in buf3
        # The whole column is copied; layer 4 takes Q(s', a) from it.
        maximum = wiring.move(wiring.states, "buf3", "buf3")
        column = wiring.move(wiring.states, "buf3", "buf1")
    else:  # actions hold their column in buf1, and Q(s', a) in buf2[Qnext]
        maximum = ((wiring.buf2["Qnext"], wiring.buf2["Select"]),)
        column = wiring.move(wiring.states, "buf1", "buf1")
    return [
        wire.Head(
            "3.1 action selection", layer=2, rule=choice_rule, scores=choice_scores, moves=action
        ),
        wire.Head("3.2 max extraction", layer=2, rule=best_rule, scores=best_scores, moves=maximum),
        wire.content_chooser(
            "3.3 Update inheritance",
            layer=2,
            wanted=wiring.to_taken_action,
            moves=action + column,
            sink=wiring.sink,
            theta=1.5,
        ),
    ]


def _score_actions(
    wiring: _Wiring, margin: float, sharpness: float, tau: float
) -> tuple[wire.Term, ...]:
    """Return the score terms of a head that chooses an action at the token Select.

    A candidate is the token of an action a next to the next state s'. As a key it gets the score
    ``sharpness * (Q(s', a) - tau * a)``. Every other position scores lower.

    Args:
        wiring: parameters of the circuit.
        margin: by how much other positions score lower, at least.
        sharpness: inverse temperature.
        tau: tie slope, by which the first of equally good actions wins.
    """
    ids, buf2, constant = wiring.ids, wiring.buf2, wiring.constant
    select = ids["Select"]
    range_of_values = 2.0 * sharpness * wiring.bound  # from -M to M
    gate = margin  # is subtracted from the scores of all positions but candidates
    if wiring.signed:  # a candidate's value may be -M, and that of other positions is 0
        gate += range_of_values
    action_index = wiring.basis.zero  # reads a at the token of action a
    for k, action in enumerate(wiring.actions):
        action_index = action_index + float(k) * ids[action]
    if wiring.variant == "lin":
        # Head 2.2 wrote the values of all actions to buf2 of Select. Each candidate is scored by the
        # value of its action.
        by_value = wire.match(wiring.basis, wiring.actions, "buf2", "id", sharpness)
        # Minus the mean value of all actions, the same at every candidate.
        share = -sharpness / len(wiring.actions)
        by_value += ((share * buf2.sum(wiring.actions), wiring.any_action),)
        if tau:
            by_value += ((-sharpness * tau * select, action_index),)
        # A score is the sum of the gate and of values up to M. The gate must be much larger than
        # the rounding error of these values.
        gate = max(gate, 2.0**-10 * sharpness * wiring.bound)
        # Tokens other than Select may hold values in buf2, too: the sink must score above these.
        gate_of_sink = gate + range_of_values
    else:  # a candidate's coordinate buf2[Qnext] holds Q(s', a)
        by_value = ((sharpness * select, buf2["Qnext"] - tau * action_index),)
        gate_of_sink = gate
    # 0 at candidates, which are actions next to s' (Qnext); at most -gate elsewhere.
    to_candidates = (select, gate * (ids["Qnext"] + wiring.any_action - 2.0 * constant))
    # As queries, all tokens but Select attend to the sink.
    to_sink = (gate_of_sink * (constant - select), wiring.sink)
    return (*by_value, to_candidates, to_sink)


def _reward_drawn_action(wiring: _Wiring, margin: float, sharpness: float) -> tuple[wire.Term, ...]:
    """Return the score terms that add exploration to a choice: if the round's random draw names an
    action, the candidate with this action gets the highest score.

    Candidates are the tokens of actions next to the next state (Qnext). The token Select has the
    query, and its block buf2 holds the draw. A first term adds a bonus, larger than any difference
    of values, at all tokens of the named action. Some of these tokens are no candidates: a second
    term subtracts at least the bonus at every position that is no candidate.

    Args:
        wiring: parameters of the circuit.
        margin: by how much the drawn action scores above the others, at least.
        sharpness: inverse temperature of the choice without exploration.

    Returns:
        (query, key) terms, to be added to those of the choice.
    """
    ids = wiring.ids
    # Values lie between -bound and bound, so scores of values differ by at most this.
    largest_difference = 2.0 * sharpness * wiring.bound
    bonus = margin + largest_difference
    terms = []
    _, *exploring_draws = wiring.draws  # the first draw stands for the choice without exploration
    for draw, action in zip(exploring_draws, wiring.actions, strict=True):
        terms.append((bonus * wiring.buf2[draw], ids[action]))
    # Each of the two tags of a candidate counts 1: the sum is 0 at candidates, at most -1 elsewhere.
    no_candidate = ids["Qnext"] + wiring.any_action - 2.0 * wiring.constant
    terms.append((bonus * ids["Select"], no_candidate))
    return tuple(terms)


def _make_evaluating_neurons(wiring: _Wiring) -> list[wire.Neuron]:
    """Make the neurons of layer 2 that look up Q(s, a), one or two for each state s and each phase
    (current or next).

    The residual stream of a token of action a, which stands beside a state s, has these
    coordinates: ``buf1[z] = Q(z, a)`` for every state z, ``id[s] = 1``, and ``id[phase] = 1``. A
    neuron computes ``relu(+-buf1[s] + M id[s] + M id[phase] - 2 M)``, where M bounds ``|Q|``. This
    is Q(s, a) at tokens of that state and phase, and 0 elsewhere. Negative Q-values need the second
    neuron, with the minus sign. Q(s, a) is written to ``buf2[Qnext]``, and -Q(s, a) to
    ``buf2[Qcurr]``.

    Args:
        wiring: the basis, the names of tokens and the options of the circuit.
    """
    ids, buf1, buf2 = wiring.ids, wiring.buf1, wiring.buf2
    M = wiring.bound
    # The token Select has buf1[s_t] = 1, which is no Q-value. M < 1 alone would not silence it.
    silenced = ids["Select"] if M < 1 else wiring.basis.zero
    signs_of_q = (1.0, -1.0) if wiring.signed else (1.0,)
    neurons = []
    # The current value is written with a minus: the TD error subtracts it.
    for phase, sign_in_td_error in (("Qcurr", -1.0), ("Qnext", 1.0)):
        for sign in signs_of_q:
            write = sign * sign_in_td_error * buf2[phase]
            for state in wiring.states:
                gate = M * (ids[state] + ids[phase])
                read = sign * buf1[state] + gate - silenced
                neurons.append(
                    wire.Neuron("2.2 Q-values", layer=1, read=read, bias=-2 * M, write=write)
                )
    return neurons


def _make_adding_heads(wiring: _Wiring) -> list[wire.Head]:
    """Make the heads of layer 4 in "mlp" and "lin", which add the three terms of the TD error to
    the Q-value at the token Update.

    Before layer 4, the blocks of the residual stream hold at these tokens:

    - Update: in ``buf1`` Q(s, a_t) for every state s, in ``id`` the action a_t; in "lin" also in
      ``buf2`` the next state s'.
    - r: in ``id`` the state s_t, in ``buf1[r]`` the reward; in "lin" also in ``buf2`` Q(s_t, a) for
      every action a.
    - Select: in ``buf1`` the state s_t; in ``buf2[Select]`` max Q(s', a), or in "lin" in ``buf3``
      Q(s, a*) for every state s, where a* has the largest Q(s', a).
    - the action a_t ("mlp" only): in ``id`` the state s_t, in ``buf2[Qcurr]`` -Q(s_t, a_t).

    Args:
        wiring: the basis, the names of tokens and the options of the circuit.
    """
    states, move, alpha = wiring.states, wiring.move, wiring.alpha
    update, buf1, buf2 = wiring.ids["Update"], wiring.buf1, wiring.buf2
    is_linear = wiring.variant == "lin"
    # Each score is a term of the TD error, read at the key that holds it. The moves add the score,
    # times a factor, to the Q-value of the state that the key holds, too.
    current: tuple[wire.Term, ...] = ((update, buf2["Qcurr"]),)  # -Q(s_t, a_t)
    best: tuple[wire.Term, ...] = ((update, buf2["Select"]),)  # max Q(s', a)
    factor_of_current = alpha
    # In "lin", Update finds Q(s_t, a_t) by its action among the values at r, where it has its own
    # sign; and max Q(s', a) by its next state among the values at Select.
    if is_linear:
        current = wire.match(wiring.basis, wiring.actions, "id", "buf2")
        best = wire.match(wiring.basis, states, "buf2", "buf3")
        factor_of_current = -alpha
    reward = ((update, buf1["r"]),)
    subtracted = move(states, "id", "buf1", factor_of_current)
    added = move(states, "id", "buf1", alpha)
    discounted = move(states, "buf1", "buf1", alpha * wiring.gamma)
    heads = [
        wire.Head(
            "4.1 subtract current value", layer=3, rule="linear", scores=current, moves=subtracted
        ),
        wire.Head("4.2 add reward", layer=3, rule="linear", scores=reward, moves=added),
        wire.Head("4.3 add discounted max", layer=3, rule="linear", scores=best, moves=discounted),
    ]
    if is_linear:  # what Update holds becomes the next latent, in which buf2 is 0
        cleared = move(states, "buf2", "buf2", -1.0)
        # The gate reads 0 at Update, which attends to itself (offset 0), and 1 at all others, which
        # attend to the sink.
        all_but_update = wiring.constant - update
        heads.append(
            wire.fixed_offset(
                "4.4 clean up",
                layer=3,
                offset=0,
                moves=cleared,
                gate=all_but_update,
                sink=wiring.sink,
            )
        )
    return heads


def _make_fetching_heads(wiring: _Wiring) -> list[wire.Head]:
    """Make the heads of layer 4 in "softmlp". They copy Q(s_t, a_t), the reward, max Q(s', a) and
    s_t to the block buf2 of the token Update, where the neurons of layer 4 read them.

    Args:
        wiring: the basis, the names of tokens and the options of the circuit.
    """
    ids, sink, move = wiring.ids, wiring.sink, wiring.move
    update, to_taken = ids["Update"], wiring.to_taken_action
    # The action taken has buf2[Qcurr] = -Q(s_t, a_t) and id[s_t] = 1.
    current = (*move(("Qcurr",), "buf2", "buf2"), *move(wiring.states, "id", "buf2"))
    # The token r has the reward in buf1[r].
    reward, of_reward = move(("r",), "buf1", "buf2"), ((update, ids["r"]),)
    # The token Select has max Q(s', a) in buf2[Select].
    best, of_select = move(("Select",), "buf2", "buf2"), ((update, ids["Select"]),)
    return [
        wire.content_chooser(
            "4.1 fetch current value", layer=3, wanted=to_taken, moves=current, sink=sink, theta=1.5
        ),
        wire.content_chooser(
            "4.2 fetch reward", layer=3, wanted=of_reward, moves=reward, sink=sink
        ),
        wire.content_chooser("4.3 fetch max", layer=3, wanted=of_select, moves=best, sink=sink),
    ]


def _make_adding_neurons(wiring: _Wiring) -> list[wire.Neuron]:
    """Make the neurons of layer 4 in "softmlp": they add d = alpha * TD error to Q(s_t, a_t), and
    erase coordinates that are no longer needed.

    For each state s two neurons add ``relu(d + D buf2[s] - D) - relu(-d + D buf2[s] - D)`` to Q(s,
    a_t), which ``buf1[s]`` holds. The coordinate ``buf2[s]`` is 1 if s is s_t and 0 otherwise, and
    D bounds ``|d|``. For s_t the sum is ``relu(d) - relu(-d) = d``; for other states both terms are
    0.

    Args:
        wiring: the basis, the names of tokens and the options of the circuit.
    """
    buf1, buf2 = wiring.buf1, wiring.buf2
    # r - Q(s_t, a_t) + gamma max Q(s', a): the coordinate Qcurr holds -Q(s_t, a_t), and Select the
    # largest value of the next state.
    td_error = buf2["Qcurr"] + buf2["r"] + wiring.gamma * buf2["Select"]
    d = wiring.alpha * td_error
    # The reward and Q(s_t, a_t) are at most M in size, and the discounted maximum gamma M.
    D = wiring.alpha * wiring.bound * (2 + wiring.gamma)
    neurons = []
    for state in wiring.states:
        for sign in (1.0, -1.0):  # the first and the second relu; layer 3 counts from 0
            read, write = sign * d + D * buf2[state], sign * buf1[state]
            neurons.append(
                wire.Neuron("4.4 add TD error", layer=3, read=read, bias=-D, write=write)
            )
    # A neuron with relu(sign x) erases a coordinate x of this sign. Without negative rewards, Q-values
    # and rewards are >= 0, and Qcurr, which holds -Q, is <= 0.
    signs = [(state, 1.0) for state in wiring.states]
    signs += [("Qcurr", -1.0), ("r", 1.0), ("Select", 1.0)]
    if wiring.signed:
        signs += [("Qcurr", 1.0), ("r", -1.0), ("Select", -1.0)]
    for label, sign in signs:
        read = sign * buf2[label]
        neurons.append(wire.Neuron("4.5 clean up", layer=3, read=read, bias=0.0, write=-read))
    return neurons


_REGIMES = ("grid", "deterministic", "sparse")
_TIE_WIDTH = 1e-5
"""In float32, values closer than this share of the largest value count as tied."""
_LARGEST_POLICY_HARDNESS = 1e4
"""A softmax with a higher inverse temperature stands for a maximum; with a lower one it is a
policy.
"""


def _sample_episodes(circuit: Circuit, n_rounds: int, n_episodes: int, seed: int) -> MDPEpisodes:
    """Sample episodes for verification, with the circuit's numbers of states and actions and its
    range of rewards.

    The MDPs come in equal parts from the regimes "grid", "deterministic" and "sparse" of the task.

    Args:
        circuit: the circuit, for the sizes, the rewards, alpha and gamma.
        n_rounds: number of rounds per episode.
        n_episodes: number of episodes.
        seed: seed of the draws.
    """
    arguments = circuit.arguments
    n_states, n_actions = arguments["n_states"], arguments["n_actions"]
    parts = []
    for k, regime in enumerate(_REGIMES):
        # Every third episode, from the k-th on; the first regimes get what a third leaves over.
        n_of_regime = len(range(k, n_episodes, len(_REGIMES)))
        if n_of_regime:
            part = mdp.sample_mdps(n_of_regime, n_states, n_actions, seed=seed, regime=regime)
            parts.append(part)
    low, high = arguments["rewards"]
    transitions = np.concatenate([part.transitions for part in parts])
    rewards = np.concatenate([part.rewards for part in parts])  # in [0, 1]
    mdps = MDPs(transitions, low + (high - low) * rewards)
    # It explores in half of the rounds, so that the episodes visit states off the greedy path.
    learner = tabular.QLearner(epsilon=0.5, alpha=arguments["alpha"], gamma=arguments["gamma"])
    return tabular.run(learner, mdps, n_rounds, seed)


def _find_largest_value(values: Values) -> float:
    """Return the largest absolute Q-value or reward of a run, or 1 if all are 0. Rounding errors
    are proportional to it.

    Args:
        values: the values that the algorithm computes, by key of the variable.
    """
    largest_value = np.abs(values["next_table"]).max()
    largest_reward = np.abs(values["reward"]).max()
    largest = float(max(largest_value, largest_reward))
    return largest if largest > 0 else 1.0


def _get_unit(circuit: Circuit, values: Values, key: str) -> float:
    """Return the smallest divisor of a variable's relative errors: errors are divided by the larger
    of the true value and this unit.

    For variables in units of reward, it is the largest absolute Q-value or reward of the run, but
    at least M / 16, where M bounds ``|Q|``. The circuit adds and subtracts M, so that its rounding
    errors do not become smaller with the values. For one-hot variables and probabilities, it is 1.

    Args:
        circuit: the circuit; its rewards and discount determine M.
        values: the values that the algorithm computes, by key of the variable.
        key: key of the variable.
    """
    if key != "carried_state" and circuit.algorithm.variable(key).units != "reward":
        return 1.0
    bound = value_bound(circuit.arguments["rewards"], circuit.arguments["gamma"])
    return max(_find_largest_value(values), bound / 16)


def _find_near_ties(circuit: Circuit, values: Values, dtype: str) -> dict[str, np.ndarray]:
    """Find the choices that rounding errors can change, because the two best actions are nearly
    equal.

    Two actions are compared by Q(s', a) - tau * a. Rounds in which Q(s', a) is 0 for all actions
    count as decided, unless pairs of softmax heads round these zeros.

    Args:
        circuit: the circuit, for the tie slope tau and its other arguments (:func:`q_learning`).
        values: the values that the algorithm computes, by key of the variable.
        dtype: dtype of the model, "float64" or "float32".

    Returns:
        For each variable that depends on the choice, a mask ``[episode, round]``, True where
        undecided; no masks for a softmax policy or a single action.
    """
    arguments = circuit.arguments
    next_values = values["next_values"]  # Q(s', a), [episode, round, action]
    n_actions = next_values.shape[-1]
    if arguments["beta"] is not None or n_actions == 1:
        return {}
    slope = circuit.algorithm.parameters["tie_slope"]
    ranked = np.sort(next_values - slope * np.arange(n_actions), axis=-1)  # the best last
    # Leads below the width count as ties. In float64 it is less than the slope: if two values are
    # equal, the first action leads by the slope, which decides the choice.
    width = slope / 4 if dtype == "float64" else _TIE_WIDTH * _find_largest_value(values)
    is_softmax = arguments["eta"] is not None
    # The softmax over actions multiplies rounding errors of the lead by the hardness. A softmax with
    # a low hardness is a policy, whose probabilities change little by rounding.
    if is_softmax and arguments["hardness"] > _LARGEST_POLICY_HARDNESS:
        # From this lead on, the softmax gives the second best at most e^-40.
        width = max(width, 40.0 / arguments["hardness"])
    lead = ranked[..., -1] - ranked[..., -2]
    is_close = lead < width
    # Pairs of softmax heads round Q-values of 0; without them, zeros are exact.
    has_pairs = is_softmax and arguments["variant"] != "softmlp"
    if not has_pairs:
        is_close &= next_values.any(-1)
    undecided = {key: is_close for key in ("policy", "best_column") if key in circuit.sites}
    if "noise" in values:
        # A random draw above 0 names the action, whatever the values are.
        undecided["policy"] = is_close & (values["noise"] == 0)
    return undecided


def _bound_soft_error(circuit: Circuit, values: Values, key: str) -> tuple[float, str]:
    """Bound the error that softmax heads add to a variable.

    In each layer, a softmax head also attends a little to wrong positions, and so adds a small
    share of their values. The error of the Q-table grows with the number of rounds.

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
    rounds = values["next_table"].shape[1]
    # In every layer, each of n positions gets at most the share `leak` of the attention.
    error_of_round = layers * n * leak
    why = f"{layers} layers x {n} positions x e^(-eta/2)"
    is_of_state = key in ("carried_state", "residue")
    if not is_of_state and circuit.algorithm.variable(key).units != "reward":
        return error_of_round, why
    # A wrong position adds a share of a value, which is at most M. Errors are divided by a unit of at
    # least M / 16 (_get_unit), so that they are at most 16 times the share. Errors of the table add
    # up over rounds.
    error_of_rounds = 16 * rounds * error_of_round
    why = f"16 x {rounds} rounds x {why}"
    if arguments["variant"] == "softmlp":
        # A softmax gives an action that is worse by x the share e^-(hardness x), and so misses x
        # e^-(hardness x) of the maximum: at most 1 / (e hardness), at x = 1 / hardness.
        missed = (arguments["n_actions"] - 1) / (math.e * arguments["hardness"])
        why = f"{why} + (actions - 1) / (e hardness) / (1 - gamma)"
    else:
        # Two softmax heads replace each linear head: with scores x, they compute
        # sinh(epsilon x) / epsilon = x + epsilon^2 x^3 / 6 + ... (Circuit.pair_error).
        missed = float(circuit.pair_error(np.asarray(_find_largest_value(values))))
        why = f"{why} + (epsilon^2 x^3 / 6 + rounding / epsilon) / (1 - gamma)"
    # The next rounds discount the error: missed (1 + gamma + gamma^2 + ...). It is relative to the
    # unit, as all errors of the state.
    summed = missed / (1 - arguments["gamma"])
    relative = summed / _get_unit(circuit, values, "carried_state")
    return error_of_rounds + relative, why


PLAN = VerificationPlan(
    sizes=tuple((n_states, n_actions) for n_states in (2, 4, 8, 16) for n_actions in (2, 3, 4, 8)),
    episodes=_sample_episodes,
    output="policy",
    tolerance=lambda key, dtype: (1e-11 if dtype == "float64" else 2e-5, "relative"),
    undecided=_find_near_ties,
    unit=_get_unit,
    soft=_bound_soft_error,
)
"""How :func:`circuits.verify` checks this machine."""
