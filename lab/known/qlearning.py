"""Known machines of tabular Q-learning, held against Q-learning with the rate .1 and the discount .9.

What the words mean is said in :mod:`lab.known.experts`. Here the *state* is the table: rates and discounts change
what it holds little by little, and how near two such tables are nobody can say ("either"); counts of visits, or a table
that is always 0, are no such table. The *update* is the reference's own: its rate, its discount, the maximum.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from circuits.compare.variants import rotated, with_distractors
from circuits.compiler import compile_circuit
from circuits.registry import build, load
from interp import library
from interp.algorithm import Algorithm, Values, Variable
from interp.machine import Machine
from interp.model.transformer import untrained
from interp.tasks.qlearning import algorithms, bellman, families, lapses
from interp.tasks.qlearning.layout import QLearningRound
from lab.known import by_algorithm, edits
from lab.known.specimen import Specimen, specimen
from lab.variants import rescaled

_SIZES: dict[str, Any] = {"n_states": 4, "n_actions": 3}
_OPTIMISM = 1.0
"""What every entry of an optimistic table is at first: the largest reward."""

_specimen = partial(specimen, "qlearning")


wired = partial(load, "qlearning-handwired", **_SIZES)
"""The reference, or the same circuit made with other options."""


def computed(algorithm: Algorithm, name: str = "") -> Machine:
    """An algorithm as a machine in the reference's rounds."""
    return by_algorithm.machine(algorithm, QLearningRound(**_SIZES), name=name)


def learner(algorithm: Algorithm) -> Machine:
    """A learner as a machine that acts as the reference does: by the table before the round, lowest index first."""
    return computed(families.acting(algorithm, shared_ties=False, after=False))


def specimens() -> tuple[Specimen, ...]:
    """The known machines."""
    return (*_the_same(), *_other_choices(), *_other_rates(), *_other_rules(), *_lapses(), *_learned())


def _the_same() -> tuple[Specimen, ...]:
    """Machines that compute the reference in another way."""
    known = partial(_specimen, algorithm="q_learning")
    copied = "a second copy of the table is written and never read; the first is used as in the reference"
    turned = "the table's columns are held in the opposite order, and read so"
    return (
        known("itself", wired, "s s s s", "nothing was done to it"),
        known("rotated", lambda: rotated(wired(), 1), "s s s s", "the same numbers in another basis", held_out=True),
        known(
            "with distractors",
            lambda: with_distractors(wired(), 2, 1),
            "s s s s",
            "two random heads and neurons a layer write what nothing reads",
            held_out=True,
        ),
        known(
            "negated table",
            lambda: rescaled(wired(), -4.0),
            "s s s s",
            "the table is held as -4 times what it is, and read so",
        ),
        known("two copies", lambda: edits.twice(wired()), "s s s s", copied),
        known(
            "softmlp",
            lambda: wired(variant="softmlp"),
            "s s s e",
            "another construction, of heads that fetch and neurons that multiply: nobody can say how alike",
        ),
        known(
            "lin",
            lambda: wired(variant="lin"),
            "s s s e",
            "another construction, of attention alone: nobody can say how alike",
            held_out=True,
        ),
        known(
            "by algorithm",
            lambda: computed(_plain()),
            "s s s",
            "the algorithm itself, without a network",
        ),
        known("actions in another order", lambda: computed(_turned(), "turned"), "s s s", turned, held_out=True),
    )


def _other_choices() -> tuple[Specimen, ...]:
    """Machines that keep the reference's table and choose otherwise by it."""
    known = _specimen
    blind = "the table is kept as in the reference, but every choice is the first action"
    return (
        known("written and never read", _blind, "d e s e", blind, ""),
        known(
            "Boltzmann",
            lambda: wired(beta=5.0),
            "s s s e",
            "it chooses by a softmax of the table (.2 of reward is a factor of e): another read-out, to be fitted",
            "q_learning",
        ),
        known(
            "ties shared",
            lambda: computed(families.acting(_plain(), after=False)),
            "s s s",
            "tied actions are equally likely; the reference takes the first of them: another read-out, to be fitted",
            "q_learning",
            held_out=True,
        ),
        known(
            "by the table after the round",
            lambda: computed(families.acting(_plain(), shared_ties=False)),
            "e s s",
            "it chooses by the table that the round leaves, not by the one before: another read-out, or a round's lead",
            "q_learning",
            held_out=True,
        ),
    )


def _other_rates() -> tuple[Specimen, ...]:
    """Other rates, discounts and starts."""
    rate = "a rate of {}: the entries of the table grow otherwise, and the first choices are the same"
    discount = "a discount of {}: the table holds other values of what is far"

    def paced(alpha: float, words: str, held_out: bool = False) -> Specimen:
        make, why = partial(wired, alpha=alpha), rate.format(alpha)
        return _specimen(f"rate {alpha:g}", make, words, why, "q_learning", held_out=held_out)

    def discounted(gamma: float, words: str, family: str, held_out: bool = False) -> Specimen:
        make, why = partial(wired, gamma=gamma), discount.format(gamma)
        return _specimen(f"discount {gamma:g}", make, words, why, family, held_out=held_out)

    hopeful = f"every entry is {_OPTIMISM:g} at first, so that what was never tried looks best"
    return (
        paced(0.05, "e e e s"),
        paced(0.3, "e e e s", held_out=True),
        paced(0.5, "d e d s"),
        discounted(0.0, "d e d e", "no_bootstrap", held_out=True),
        discounted(0.5, "e e d s", "q_learning"),
        discounted(0.8, "e e e s", "q_learning", held_out=True),
        _specimen("optimistic start", _optimistic, "d e e s", hopeful),
    )


def _other_rules() -> tuple[Specimen, ...]:
    """Learners that make something else of a round than Q-learning does."""
    known = _specimen
    ours = "; it acts as the reference does"
    return (
        known(
            "SARSA",
            lambda: learner(families.sarsa()),
            "d e d",
            f"it bootstraps from the action that is taken next, whatever it is worth{ours}",
            "sarsa",
        ),
        known(
            "expected SARSA",
            lambda: learner(families.mean_bootstrap()),
            "e e d",
            f"it bootstraps from the mean over actions, which are taken at random{ours}",
            "mean_bootstrap",
            held_out=True,
        ),
        known(
            "double Q-learning",
            lambda: learner(_double()),
            "d e d",
            f"two tables take turns, each bootstrapping by the other; their mean is acted by{ours}",
            held_out=True,
        ),
        known(
            "Monte Carlo",
            lambda: learner(families.monte_carlo()),
            "d e d",
            f"the mean of the discounted rewards since each visit{ours}",
            "",
        ),
        known(
            "mean reward",
            lambda: learner(families.mean_reward()),
            "d e d",
            f"the mean of the rewards of each pair, and nothing of what follows{ours}",
            "mean_reward",
            held_out=True,
        ),
        known(
            "counts of visits",
            lambda: learner(families.visit_counts()),
            "d d d",
            f"it goes where it went most often, whatever that paid{ours}",
            "visit_counts",
        ),
    )


def _lapses() -> tuple[Specimen, ...]:
    """Machines that read or write the wrong entry, learn late, stop, or forget."""
    known = _specimen
    late = "{} moves the table {} late; what waits is carried beside it"
    shaken = "noise of {} is added to every entry every round and stays, {} of what a reward of 1 moves; it breaks ties"
    fades = "the whole table fades to {} after every round"
    return (
        known(
            "one round late", lambda: computed(lapses.late_q()), "d e d", late.format("a round", "one round"), "late_q"
        ),
        known(
            "two rounds late",
            lambda: edits.late(wired(), 2),
            "d e d s",
            late.format("what a round adds", "two rounds"),
            held_out=True,
        ),
        known(
            "stops at round 10",
            lambda: computed(lapses.stopped_q(last=10)),
            "d d d",
            "nothing is learned after ten rounds",
            "stopped_q",
        ),
        known(
            "stops at round 5",
            lambda: edits.learning(wired(), lambda t: t < 5, "stops at round 5"),
            "d d d s",
            "nothing is learned after five rounds",
            "stopped_q",
            held_out=True,
        ),
        known(
            "learns every other round",
            lambda: edits.learning(wired(), lambda t: t % 2 == 0, "learns every other round"),
            "d d d s",
            "every second round is ignored",
            "",
            held_out=True,
        ),
        known(
            "rewards ignored",
            lambda: edits.without_head(wired(), "4.2 add reward"),
            "d d d e",
            "no reward is added, so that the table stays 0",
            "",
        ),
        known(
            "one action ignored",
            lambda: edits.edited(wired(), _first_only, "one action ignored"),
            "d d d s",
            "the column of the first action is never written",
            "",
            held_out=True,
        ),
        known(
            "swapped in what is read",
            lambda: computed(_swapped(read=True), "swapped, read"),
            "d d d",
            "a round reads the entry of the second action where the first was taken, and the other way round",
        ),
        known(
            "swapped in what is written",
            lambda: computed(_swapped(read=False), "swapped, written"),
            "d d d",
            "a round writes the new column of the first action in place of the second's, and the other way round",
            held_out=True,
        ),
        known("leaky 0.98", lambda: edits.leaky(wired(), 0.98), "e e d s", fades.format(".98")),
        known("leaky 0.9", lambda: edits.leaky(wired(), 0.9), "d e d s", fades.format(".9")),
        known(
            "noise .005",
            lambda: edits.noisy(wired(signed=True), 0.005),
            "d e e e",
            shaken.format(".005", "a twentieth"),
        ),
        known(
            "noise .1",
            lambda: edits.noisy(wired(signed=True), 0.1),
            "d d d e",
            shaken.format(".1", "all"),
            held_out=True,
        ),
    )


def _learned() -> tuple[Specimen, ...]:
    """Models that were trained on this task, and models that were not trained."""
    known = _specimen
    trained = (
        "trained for so long that it agrees with the algorithm in .9 of choices; no head does what the circuit's do"
    )
    nothing = "random weights: nothing was learned"
    return (
        known("qlearning-learned", lambda: library.load("qlearning-learned"), "d e d d", trained),
        known("qlearning-learned-1", lambda: library.load("qlearning-learned-1"), "d e d d", trained, held_out=True),
        known(
            "random cell",
            lambda: computed(_plain()).fresh(1),
            "d d d",
            "a random network that holds a record of every round and computes nothing",
            "",
        ),
        known(
            "untrained, learned shape",
            lambda: untrained(library.load("qlearning-learned"), 100),
            "d d d d",
            nothing,
            "",
            held_out=True,
        ),
    )


# Edits of the circuit and of its state.


def _blind() -> Machine:
    """The circuit whose head 3.1 scores every candidate by its place in the order, and not by the table."""
    circuit = build("qlearning-handwired", **_SIZES)
    ids, (_, *gates) = circuit.basis["id"], circuit.head("3.1").scores
    order = sum((float(k) * ids[f"a_{k + 1}"] for k in range(_SIZES["n_actions"])), circuit.basis.zero)
    return compile_circuit(circuit.edit("3.1", scores=((ids["Select"], -0.1 * order), *gates)), torch.float64)


def _optimistic() -> Machine:
    circuit = build("qlearning-handwired", **_SIZES)
    hope = sum((_OPTIMISM * direction for direction in circuit.state), circuit.basis.zero)
    latents = tuple(latent + hope for latent in circuit.latents)
    return compile_circuit(replace(circuit, latents=latents, edits=("optimistic start",)), torch.float64)


def _first_only(before: Tensor, after: Tensor, memory: Tensor) -> tuple[Tensor, Tensor]:
    return torch.cat([before[..., :1], after[..., 1:]], -1), memory


# Algorithms that are Q-learning but for an equation or two.


def _plain() -> Algorithm:
    """What the reference computes, with the slope by which it breaks ties."""
    return build("qlearning-handwired", **_SIZES).algorithm


def _turned() -> Algorithm:
    """Q-learning that holds its columns in the opposite order: every equation reads them back."""
    base = _plain()

    def back(equation: Callable[[Values], Any]) -> Callable[[Values], Any]:
        return lambda v: equation({**v, "table": v["table"][..., ::-1]})

    changes: dict[str, Any] = {
        variable.key: (variable.parents, back(variable.equation))
        for variable in base.variables
        if variable.equation is not None and "table" in variable.parents and variable.key != "next_table"
    }
    whole = base.variable("next_table")
    assert whole.equation is not None
    plain = back(whole.equation)
    changes["next_table"] = whole.parents, lambda v: plain(v)[..., ::-1]
    return base.varied("turned", "Q-learning, actions in the opposite order", base.parameters, changes)


def _swapped(*, read: bool) -> Algorithm:
    """Q-learning that takes the first two actions for each other in what a round reads, or in what it writes."""
    base = _plain()

    def other(v: Values) -> Any:
        return np.where(v["action"] < 2, 1 - v["action"], v["action"])

    def column(v: Values) -> Any:
        return bellman.columns_at(v["table"], other(v))

    def next_table(v: Values) -> Any:
        taken = np.eye(v["table"].shape[-1], dtype=bool)[other(v)][..., None, :]
        return np.where(taken, v["next_column"][..., None], v["table"])

    changed = {"column": (("table", "action"), column)}
    written = {"next_table": (("table", "action", "next_column"), next_table)}
    return base.varied("swapped", "Q-learning with two actions swapped", {"read": read}, changed if read else written)


def _double(alpha: float = 0.1, gamma: float = 0.9) -> Algorithm:
    """Double Q-learning (van Hasselt, 2010), in which the two tables take turns.

    One chooses the next action, the other one says what it is worth.
    """
    base = algorithms.q_learning(alpha, gamma)

    def moved(own: str, other: str, turn: int) -> Callable[[Values], Any]:
        def following(v: Values) -> Any:
            best = bellman.rows_at(v[own], v["next_state"]).argmax(-1)
            worth = np.take_along_axis(bellman.rows_at(v[other], v["next_state"]), best[..., None], -1)[..., 0]
            here = np.rint(v["visits"].sum((-1, -2))) % 2 == turn
            target = (v["reward"] + gamma * worth)[..., None, None]
            return v[own] + alpha * here[..., None, None] * algorithms.pair(v) * (target - v[own])

        return following

    names = ("first", "second")
    inputs = tuple(v for v in base.variables if v.role == "input")
    held = tuple(Variable(name, name, f"the {name} table", "reward", "state") for name in names)
    reads = (*names, "visits", "state", "action", "reward", "next_state", "table")
    table = replace(base.variable("table"), role="round", parents=names, equation=lambda v: _mean(v, ""))
    tables = tuple(
        Variable(
            f"next_{own}",
            own,
            f"the {own} table after the round",
            "reward",
            parents=reads,
            equation=moved(own, other, turn),
        )
        for turn, (own, other) in enumerate((names, names[::-1]))
    )
    whole = replace(
        base.variable("next_table"),
        parents=tuple(f"next_{name}" for name in names),
        equation=lambda v: _mean(v, "next_"),
    )
    chosen = (base.variable(key) for key in ("next_values", "choice", "policy", "next_visits"))
    return replace(
        base,
        key="double_q",
        name="double Q-learning",
        parameters={"alpha": alpha, "gamma": gamma},
        variables=(*inputs, *held, base.variable("visits"), table, *chosen, *tables, whole),
        initial=lambda e: {key: np.zeros_like(e.q_tables[:, 0]) for key in (*names, "visits")},
        written="",
    )


def _mean(v: Values, moment: str) -> Any:
    return (v[f"{moment}first"] + v[f"{moment}second"]) / 2
