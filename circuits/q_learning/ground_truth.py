"""Ground truth of the Q-learning circuit: where each variable of its algorithm lives, which part reads
what, and what verification compares.

The algorithm is :func:`interp.tasks.qlearning.algorithms.q_learning` from an empty table; its choice is
``argmax_a (Q_t(s', a) - tau a)``, or the Boltzmann policy of Q_t. In "lin" single values become rows and columns of Q,
because its heads read whole rows: Q(s_t, a_t) is an entry of the row at r, the maximum one of the column at Select.

``circuit.ground_truth()`` lists the locations; states and actions are one-hot. Scores of heads 4.1 and 4.3 hold single
values in "lin" with exact heads only. The TD error is held as it is added, times alpha, and in "softmlp" also as
it is fetched before; ``change`` is what is added, in the row of s_t. ``edges.csv`` says which part reads what.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from circuits.basis import Axes, Basis, Direction
from circuits.circuit import Carried, Circuit, Edge, Location, VerificationPlan, present, table
from circuits.heads import numbered, stated
from interp.algorithm import Algorithm, Values
from interp.checks import checked
from interp.errors import InputError, require
from interp.tasks import mdp
from interp.tasks.qlearning import algorithms, tabular
from interp.tasks.qlearning.episodes import MDPEpisodes, MDPs
from interp.tasks.qlearning.layout import QLearningRound

_POST = "blocks.{}.hook_resid_post".format


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


def algorithm(**parameters: Any) -> Algorithm:
    """Q-learning as the circuit runs it: from a table of zeros, whatever table the episodes began with."""
    made = algorithms.q_learning(**parameters)

    def initial(episodes: MDPEpisodes) -> dict[str, np.ndarray]:
        return {key: np.zeros_like(start) for key, start in made.initial(episodes).items()}

    return replace(made, initial=initial)


def sites(
    basis: Basis, layout: QLearningRound, variant: str, alpha: float, gamma: float, exact: bool
) -> dict[str, tuple[Location, ...]]:
    """The locations of every variable of one variant, in the order of computation; ``exact`` where heads are hard."""
    lin = variant == "lin"
    ids, buf1, buf2 = basis["id"], basis["buf1"], basis["buf2"]
    columns = basis["buf3"] if lin else buf1
    states, actions = numbered("s", layout.n_states), numbered("a", layout.n_actions)
    latents = numbered("c", layout.n_actions)

    def axes(name: str, hook: str, label: str, block: Axes, names: Sequence[str], drives: str) -> Location:
        """Every axis in ``names`` at one position."""
        return Location.grid(name, hook, (label,), [block[axis] for axis in names], drives)

    def score(head: str, key: str, drives: str) -> Location:
        """What a linear head of layer 4 scores one key by."""
        hook = "blocks.3.attn.hook_attn_scores"
        return Location(f"score {head}", hook, ("Update",), keys=(key,), head=head, drives=drives)

    def table(name: str, hook: str, labels: Sequence[str], block: Axes, drives: str) -> Location:
        """The column of each action at the position of its own, the elements in the table's order."""
        by_state = tuple(block[state] for state in states for _ in labels)
        return Location(name, hook, tuple(labels) * len(states), by_state, drives=drives)

    def scalar(name: str, hook: str, label: str, direction: Direction, drives: str, scale: float = 1.0) -> Location:
        return Location(name, hook, (label,), (direction,), scale=scale, drives=drives)

    reward: tuple[Location, ...] = (scalar("r", "hook_embed", "r", buf1["r"], "update"),)
    adds = "blocks.3.hook_mlp_out" if variant == "softmlp" else "blocks.3.hook_attn_out"
    td_error: tuple[Location, ...] = (scalar("Update", adds, "Update", buf1.sum(states), "update", alpha),)
    if variant == "softmlp":
        fetched = buf2["Qcurr"] + buf2["r"] + gamma * buf2["Select"]
        reward = (*reward, scalar("Update", "blocks.3.hook_resid_mid", "Update", buf2["r"], "update"))
        td_error = (scalar("fetched", "blocks.3.hook_resid_mid", "Update", fetched, "update"), *td_error)
    if lin:
        next_state: tuple[Location, ...] = (
            axes("Select", _POST(0), "Select", buf2, states, "choice"),
            axes("Update", _POST(1), "Update", buf2, states, "update"),
        )
        values = {
            "current_values": (axes("r", _POST(1), "r", buf2, actions, "update"),),
            "next_values": (axes("Select", _POST(1), "Select", buf2, actions, "choice"),),
            "best_column": (axes("Select", _POST(2), "Select", columns, states, "update"),),
            **({"current_value": (score("4.1", "r", "update"),)} if exact else {}),
            **({"maximum": (score("4.3", "Select", "update"),)} if exact else {}),
        }
    else:
        next_state = (
            axes("Select", _POST(0), "Select", ids, states, "nothing"),
            *(axes(action, _POST(0), action, ids, states, "choice and update") for action in actions),
        )
        candidates = Location.grid("candidates", _POST(1), actions, (buf2["Qnext"],), "choice and update")
        values = {
            "current_value": (scalar("a", _POST(1), "a", -buf2["Qcurr"], "update"),),
            "next_values": (candidates,),
            "maximum": (scalar("Select", _POST(2), "Select", buf2["Select"], "update"),),
        }
    noise = (axes("n", "hook_embed", "n", ids, layout.draws, "choice"),) if layout.noise else ()
    told = (axes("Select", _POST(0), "Select", buf2, layout.draws, "choice"),) if layout.noise else ()
    return {
        **({"noise": (*noise, *told)} if layout.noise else {}),
        "table": (
            table("latent", "hook_embed", latents, buf1, "choice and update"),
            table("candidates", _POST(0), actions, columns, "update" if lin else "choice and update"),
        ),
        "column": (
            axes("a", _POST(0), "a", columns, states, "update"),
            axes("Update", _POST(2), "Update", buf1, states, "update"),
        ),
        "state": (
            axes("a", _POST(0), "a", ids, states, "update"),
            axes("r", _POST(0), "r", ids, states, "update"),
            *((axes("r asks", _POST(0), "r", buf2, states, "update"),) if lin else ()),
            axes("Select", _POST(1), "Select", buf1, states, "update"),
        ),
        "next_state": next_state,
        **values,
        "policy": (axes("Select", _POST(2), "Select", ids, actions, "choice"),),
        "action": (
            axes("a", "hook_embed", "a", ids, actions, "update"),
            axes("Update", _POST(2), "Update", ids, actions, "which action's column the latent is, from then on"),
        ),
        "reward": reward,
        "td_error": td_error,
        "change": (axes("Update", adds, "Update", buf1, states, "update"),),
        "next_column": (axes("Update", _POST(3), "Update", buf1, states, "update"),),
    }


def edges(
    layout: QLearningRound, parts: Sequence[str], variant: str, exact: bool, one_hot: bool, pause: bool
) -> tuple[Edge, ...]:
    """Every edge, for at least two states and two actions; without ``exact`` every head is softmax.

    ``pause``: neurons 2.2 read the name of Select, which keeps them silent there.
    """
    every = layout.labels
    groups = {
        "ALL": every,
        "COLUMNS": numbered("c", layout.n_actions),
        "CANDIDATES": numbered("a", layout.n_actions),
        "STATES": numbered("s'", layout.n_actions),
        "LAST": [f"s'_{layout.n_actions}"],
        "PAUSE": ["Select"] if pause else [],
        # Only one-hot codes have no axis for what lies outside the round.
        "BACK1": every[:-1] if one_hot else every,
        "BACK2": every[:-2] if one_hot else every,
    }
    form = {variant, "exact" if exact else "softmax", "noise" if layout.noise else "silent"}
    return table(stated(Path(__file__).parent / "edges.csv", form), parts, groups)


NOT_CARRIED = {
    "embed@<BOS>": ("next_values", "prediction"),
    "resid_post[2]@Update": ("choice", "prediction"),
    "resid_post[2]@Select": ("reward", "state"),
}
"""Site -> a variable that it does not hold, and the outcome: controls."""


def carried(
    located: Mapping[str, Sequence[Location]], layout: QLearningRound, variant: str, greedy: bool
) -> tuple[Carried, ...]:
    """Which locations together hold a variable; ``greedy`` where the policy is the choice and nothing softer."""
    lin, candidates = variant == "lin", numbered("a", layout.n_actions)
    rows = (
        Carried("table", ("latent",), "prediction"),
        Carried("table", ("latent",), "state"),
        *(() if lin else (Carried("table", ("candidates",), "prediction"), Carried("column", ("a",), "state"))),
        Carried("state", ("a", "r", "r asks") if lin else ("a", "r"), "state"),
        Carried("next_state", ("Select",) if lin else candidates, "prediction"),
        Carried("next_state", ("Select", "Update") if lin else candidates, "state"),
        Carried("current_value", ("score 4.1",) if lin else ("a",), "state"),
        Carried("next_values", ("Select",) if lin else ("candidates",), "prediction"),
        *(() if lin else (Carried("next_values", ("candidates",), "state"),)),
        Carried("maximum", ("score 4.3",) if lin else ("Select",), "state"),
        *((Carried("choice", ("Select",), "prediction", held_as="policy"),) if greedy else ()),
        Carried("policy", ("Select",), "prediction"),
        Carried("noise", ("n",), "prediction"),
        Carried("noise", ("Select",), "prediction"),
        Carried("action", ("a",), "state"),
        Carried("reward", ("r",), "state"),
        Carried("reward", ("Update",), "state"),
        Carried("td_error", ("fetched",), "state"),
        Carried("change", ("Update",), "state"),
        Carried("next_column", ("Update",), "state"),
    )
    return present(rows, located)


def partial(variant: str) -> dict[tuple[str, str], str]:
    """What a location that no row names does when it is set alone."""
    added = "what the change is added to; the change still subtracts the base's value"
    by_variant = {("next_state", "Select"): "a copy that nothing reads"}
    if variant == "lin":
        by_variant = {
            ("table", "candidates"): "what the best column is taken from; the choice, and so which column, stay",
            ("column", "a"): added,
            ("current_values", "r"): "no variable of the algorithm reads the row: it takes the value from the column",
            ("best_column", "Select"): "no variable of the algorithm reads it: it takes the maximum from next_values",
        }
    return {
        ("column", "Update"): added,
        ("state", "Select"): "where the bootstrapped value is added, and no other term of the change",
        ("action", "Update"): "which column the latent is called from then on; this round writes the same values",
        ("td_error", "Update"): "a sum over states of what is added there: setting it cannot say to which state",
        **by_variant,
    }


_KINDS = ("grid", "deterministic", "sparse")
_TIE_WIDTH = 1e-5
"""Values closer than this share of the largest are ties that float32 does not decide."""
_HARD = 1e4
"""A softmax of more than this inverse temperature is meant as a maximum; of less, as a policy, compared as it is."""


def _episodes(circuit: Circuit, n_rounds: int, n_episodes: int, seed: int) -> MDPEpisodes:
    """Equal shares of the grid, of deterministic transitions and of sparse rewards, in the circuit's range."""
    size = circuit.arguments["n_states"], circuit.arguments["n_actions"]
    shares = [len(range(k, n_episodes, len(_KINDS))) for k in range(len(_KINDS))]
    parts = [
        mdp.sample_mdps(share, *size, seed=seed, regime=kind)
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
    """Values and rewards count against the largest of them, one-hot variables and probabilities against 1.

    The neurons add M to values and take it away, and M grows with 1 / (1 - gamma) before values do: where they are
    far below it, they count against M / 16, which is the largest reward at gamma .9.
    """
    if key != "carried_state" and circuit.variable(key).units != "reward":
        return 1.0
    return max(_scale(values), value_bound(circuit.arguments["rewards"], circuit.arguments["gamma"]) / 16)


def _undecided(circuit: Circuit, values: Values, dtype: str) -> dict[str, np.ndarray]:
    """Choices that rounding can turn: the two best of Q(s', a) - tau a closer than it, but for rows that are all zero.

    In float64 the slope exceeds rounding, so that exact ties are decided; in float32 errors add up to more than it.
    Where a softmax of inverse temperature ``hardness`` chooses, it decides what is 40 of its units apart.
    """
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
    """What softmax heads leave: each round each layer copies the table and lets a share of it through elsewhere.

    Neurons hold values beside M, the largest possible one, of which relative errors count a sixteenth or more. Pairs
    miss a temporal difference by a cubic term and by the rounding of their logits, which comes back through the
    bootstrapped value, 1 / (1 - gamma) times, and so does what a soft maximum misses, (actions - 1) / (e hardness).
    """
    lost = circuit.leak
    if not lost:
        return 0.0, ""
    n, rounds, layers = len(circuit.layout.labels), values["next_table"].shape[1], circuit.n_layers
    once, why = layers * n * lost, f"{layers} layers x {n} positions x e^(-eta/2)"
    if key == "position_code":
        return 0.0, ""
    if key not in ("carried_state", "residue") and circuit.variable(key).units != "reward":
        return once, why
    total, why = 16 * rounds * once, f"16 x {rounds} rounds x {why}"
    if circuit.arguments["variant"] == "softmlp":
        missed = (circuit.arguments["n_actions"] - 1) / (np.e * circuit.arguments["hardness"])
        why = f"{why} + (actions - 1) / (e hardness) / (1 - gamma)"
    else:
        missed = float(circuit.pair_error(np.asarray(_scale(values))))
        why = f"{why} + (epsilon^2 x^3 / 6 + rounding / epsilon) / (1 - gamma)"
    return total + missed / (1 - circuit.arguments["gamma"]) / _unit(circuit, values, "carried_state"), why


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
