"""Records of the known machines: what was done to each, with which sizes, and the right verdicts.

:mod:`lab.known.makers` makes the machines; :mod:`lab.known` says what the verdicts claim.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Right = Literal["yes", "no", "either"]
"""The right verdict of a question; "either" if nobody can say."""


@dataclass(frozen=True)
class Record:
    """A known machine, or a family of machines that differ in size.

    Attributes:
        task: key of the task.
        key: name in the task, with the size as ``{:g}``.
        what: what was done to it, with the size in braces.
        sizes: size of the machine in the gallery, and the other end of the range from which further
            sizes are drawn; empty for a single machine.
        behaviour, state, update, circuit: the right verdict of each question; None if it is not
            scored.
        algorithm: key of the family that should be named; "" if none should be, None if the name is
            not scored.
        held_out: True if thresholds were chosen without it.
    """

    task: str
    key: str
    what: str
    sizes: tuple[float, ...] = ()
    behaviour: Right | None = None
    state: Right | None = None
    update: Right | None = None
    circuit: Right | None = None
    algorithm: str | None = None
    held_out: bool = False


_EXPERTS = (
    Record(
        task="experts",
        key="itself",
        what="nothing was done to it",
        behaviour="yes",
        state="yes",
        update="yes",
        circuit="yes",
        algorithm="weighted_majority",
    ),
    Record(
        task="experts",
        key="rotated with distractors",
        what=(
            "two random heads a layer write what nothing reads, and all of it stands in "
            "another basis"
        ),
        behaviour="yes",
        state="yes",
        update="yes",
        circuit="yes",
        algorithm="weighted_majority",
        held_out=True,
    ),
    Record(
        task="experts",
        key="negated and scaled",
        what="the state is held as -4 times what it is, and read so",
        behaviour="yes",
        state="yes",
        update="yes",
        circuit="yes",
        algorithm="weighted_majority",
        held_out=True,
    ),
    Record(
        task="experts",
        key="by algorithm",
        what="the algorithm itself, without a network",
        behaviour="yes",
        state="yes",
        update="yes",
        algorithm="weighted_majority",
    ),
    Record(
        task="experts",
        key="handmade GRU",
        what="a GRU cell that counts hits in nine overlapping numbers, exact to 2e-5",
        behaviour="yes",
        state="yes",
        update="yes",
        algorithm="weighted_majority",
    ),
    Record(
        task="experts",
        key="gain {:g}",
        what="the log-gamma is {:.3g} in place of .5: the same hits are counted, in other units",
        sizes=(1, 1.5),
        behaviour="no",
        state="yes",
        update="yes",
        circuit="yes",
        algorithm="weighted_majority",
        held_out=True,
    ),
    Record(
        task="experts",
        key="Bayes, wrong prior",
        what="the Bayes predictor of accuracies from U[0, 1]: the state is hits and the round",
        behaviour="no",
        state="yes",
        update="yes",
        algorithm="bayes",
        held_out=True,
    ),
    Record(
        task="experts",
        key="inverted once in 240",
        what=(
            "the same but in about one round of 240, where it says the opposite; no average "
            "shows this"
        ),
        behaviour="no",
        state="yes",
        update="yes",
        algorithm="",
    ),
    Record(
        task="experts",
        key="written and never read",
        what=(
            "the log-weights are kept as in the reference, but p? does not fetch them: "
            "whether a state that is worth nothing is the same nobody can say"
        ),
        behaviour="no",
        state="either",
        update="yes",
        circuit="no",
        algorithm="",
        held_out=True,
    ),
    Record(
        task="experts",
        key="leaky {:g}",
        what=(
            "the log-weights fade to {:.3g} after every round; sums that fade are no counts, "
            "though close to them"
        ),
        sizes=(0.9, 0.95),
        behaviour="no",
        state="either",
        update="no",
        circuit="yes",
        algorithm="fading_majority",
    ),
    Record(
        task="experts",
        key="last {:g} rounds",
        what="what is older than {:g} rounds is taken away again",
        sizes=(5, 10),
        behaviour="no",
        state="no",
        update="no",
        circuit="yes",
        algorithm="majority_window",
    ),
    Record(
        task="experts",
        key="noise {:g}",
        what=(
            "noise of {:.3g} nats, two hits and more, is added every round and stays: more "
            "than a round tells"
        ),
        sizes=(1, 1.5),
        behaviour="no",
        state="no",
        update="no",
        circuit="yes",
        held_out=True,
    ),
    Record(
        task="experts",
        key="one round late, by algorithm",
        what=(
            "the last outcome never counts in a prediction; it waits beside the log-weights, "
            "so the state gives the reference's, and cannot be had from it"
        ),
        behaviour="no",
        state="either",
        update="no",
        algorithm="late_majority",
        held_out=True,
    ),
    Record(
        task="experts",
        key="ignores expert {:g}",
        what=(
            "the votes of expert {:g} are never held against the truth, so its weight stays "
            "as it was"
        ),
        sizes=(1, 4),
        behaviour="no",
        state="no",
        update="no",
        circuit="yes",
        algorithm="",
    ),
    Record(
        task="experts",
        key="label stuck",
        what="it takes the truth to be 1 in every round, so it counts who says 1",
        behaviour="no",
        state="no",
        update="no",
        algorithm="",
    ),
    Record(
        task="experts",
        key="unlearns once in 240",
        what=(
            "in about one round of 240 hits are taken away in place of added; the state is "
            "off by this in one episode of eight"
        ),
        behaviour="no",
        state="either",
        update="no",
        circuit="yes",
        algorithm="",
    ),
    Record(
        task="experts",
        key="wma-learned-additive",
        what=(
            "trained: it predicts as the Bayes predictor of one interval does; that it holds "
            "and updates the reference's state is measured (README), not known by "
            "construction"
        ),
        behaviour="no",
        state="yes",
        update="yes",
        circuit="no",
        algorithm="bayes",
    ),
    Record(
        task="experts",
        key="random cell",
        what="a random network that holds a record of every round and computes nothing",
        behaviour="no",
        state="no",
        update="no",
        algorithm="",
    ),
)
_QLEARNING = (
    Record(
        task="qlearning",
        key="rotated",
        what="the same numbers in another basis",
        behaviour="yes",
        state="yes",
        update="yes",
        circuit="yes",
        algorithm="q_learning",
        held_out=True,
    ),
    Record(
        task="qlearning",
        key="two copies",
        what=(
            "a second copy of the table is written and never read; the first is used as in "
            "the reference"
        ),
        behaviour="yes",
        state="yes",
        update="yes",
        circuit="yes",
        algorithm="q_learning",
    ),
    Record(
        task="qlearning",
        key="softmlp",
        what=(
            "another construction, of heads that fetch and neurons that multiply: nobody can "
            "say how alike"
        ),
        behaviour="yes",
        state="yes",
        update="yes",
        circuit="either",
        algorithm="q_learning",
    ),
    Record(
        task="qlearning",
        key="by algorithm",
        what="the algorithm itself, without a network",
        behaviour="yes",
        state="yes",
        update="yes",
        algorithm="q_learning",
    ),
    Record(
        task="qlearning",
        key="ties shared",
        what=(
            "tied actions are equally likely; the reference takes the first of them: another "
            "read-out, to be fitted"
        ),
        behaviour="yes",
        state="yes",
        update="yes",
        algorithm="q_learning",
        held_out=True,
    ),
    Record(
        task="qlearning",
        key="rate {:g}",
        what=(
            "a rate of {:.3g} in place of .1: the entries of the table grow otherwise, and "
            "the first choices are the same"
        ),
        sizes=(0.5, 0.6),
        behaviour="no",
        state="either",
        update="no",
        circuit="yes",
        algorithm="q_learning",
    ),
    Record(
        task="qlearning",
        key="discount {:g}",
        what="a discount of {:.3g} in place of .9: the table holds other values of what is far",
        sizes=(0.5, 0.4),
        behaviour="either",
        state="either",
        update="no",
        circuit="yes",
        algorithm="q_learning",
    ),
    Record(
        task="qlearning",
        key="SARSA",
        what="it bootstraps from the action that is taken next and acts as the reference does",
        behaviour="no",
        state="either",
        update="no",
        algorithm="sarsa",
    ),
    Record(
        task="qlearning",
        key="counts of visits",
        what="it goes where it went most often, whatever that paid",
        behaviour="no",
        state="no",
        update="no",
        algorithm="visit_counts",
    ),
    Record(
        task="qlearning",
        key="one round late",
        what="a round moves the table one round late; what waits is carried beside it",
        behaviour="no",
        state="either",
        update="no",
        algorithm="late_q",
    ),
    Record(
        task="qlearning",
        key="stops at round {:g}",
        what="nothing is learned after {:g} rounds",
        sizes=(10, 6),
        behaviour="no",
        state="no",
        update="no",
        algorithm="stopped_q",
    ),
    Record(
        task="qlearning",
        key="one action ignored",
        what="the column of the first action is never written",
        behaviour="no",
        state="no",
        update="no",
        circuit="yes",
        algorithm="",
        held_out=True,
    ),
    Record(
        task="qlearning",
        key="leaky {:g}",
        what="the whole table fades to {:.3g} after every round",
        sizes=(0.9, 0.85),
        behaviour="no",
        state="either",
        update="no",
        circuit="yes",
    ),
    Record(
        task="qlearning",
        key="noise {:g}",
        what=(
            "noise of {:.3g} is added to every entry every round and stays, as much as a "
            "reward of 1 moves; it breaks ties"
        ),
        sizes=(0.1, 0.2),
        behaviour="no",
        state="no",
        update="no",
        circuit="either",
        held_out=True,
    ),
    Record(
        task="qlearning",
        key="qlearning-learned-additive-1",
        what=(
            "trained for so long that it agrees with the algorithm in .9 of choices; no head "
            "does what the circuit's do"
        ),
        behaviour="no",
        state="either",
        update="no",
        circuit="no",
        held_out=True,
    ),
    Record(
        task="qlearning",
        key="untrained, learned shape",
        what="random weights: nothing was learned",
        behaviour="no",
        state="no",
        update="no",
        circuit="no",
        algorithm="",
        held_out=True,
    ),
)
_REACHABILITY = (
    Record(
        task="reachability",
        key="with distractors",
        what="two random heads and neurons a layer write what nothing reads",
        behaviour="yes",
        state="yes",
        update="yes",
        circuit="yes",
        algorithm="breadth_first",
    ),
    Record(
        task="reachability",
        key="by algorithm",
        what="the algorithm itself, without a network",
        behaviour="yes",
        state="yes",
        update="yes",
        algorithm="breadth_first",
    ),
    Record(
        task="reachability",
        key="noise that is cleaned away",
        what=(
            "noise of .03 a node is added every round, and the next round takes every node "
            "for held or not held"
        ),
        behaviour="yes",
        state="either",
        update="either",
        circuit="yes",
        algorithm="breadth_first",
        held_out=True,
    ),
    Record(
        task="reachability",
        key="answer spread",
        what=(
            "six tenths of the answer lie on all nodes that are held: another read-out, to be"
            " fitted"
        ),
        behaviour="yes",
        state="yes",
        update="yes",
        algorithm="breadth_first",
    ),
    Record(
        task="reachability",
        key="answers the opposite",
        what="it answers the candidate that is not reached",
        behaviour="no",
        state="yes",
        update="yes",
        algorithm="",
        held_out=True,
    ),
    Record(
        task="reachability",
        key="two hops",
        what="it sees no farther than two hops from the root",
        behaviour="no",
        state="no",
        update="no",
        algorithm="depth_limited",
    ),
    Record(
        task="reachability",
        key="depth-first",
        what="it follows one path, a node a round, and backtracks",
        behaviour="no",
        state="no",
        update="no",
        algorithm="depth_first",
    ),
    Record(
        task="reachability",
        key="undirected",
        what="it follows every edge both ways, and reaches more",
        behaviour="no",
        state="no",
        update="no",
        algorithm="undirected",
    ),
    Record(
        task="reachability",
        key="bidirectional",
        what=(
            "it holds the reference's set and two more, grown backwards from the candidates, "
            "and knows twice as far"
        ),
        behaviour="no",
        state="either",
        update="yes",
        held_out=True,
    ),
    Record(
        task="reachability",
        key="more ancestors",
        what="it answers by how many nodes lead to a candidate, and holds nothing",
        behaviour="no",
        state="no",
        update="no",
        algorithm="",
        held_out=True,
    ),
    Record(
        task="reachability",
        key="one round late, by algorithm",
        what="it holds what it should have held one round before",
        behaviour="no",
        state="either",
        update="no",
        algorithm="late_search",
        held_out=True,
    ),
    Record(
        task="reachability",
        key="holds only what is new",
        what="of every round it keeps only the nodes that were not held before it",
        behaviour="no",
        state="no",
        update="no",
        circuit="yes",
        algorithm="",
    ),
    Record(
        task="reachability",
        key="never holds node {:g}",
        what=(
            "node {:g} of 28 is dropped whenever it is reached, and what lies behind it is "
            "not found"
        ),
        sizes=(6, 28),
        behaviour="no",
        state="either",
        update="either",
        circuit="yes",
        held_out=True,
    ),
    Record(
        task="reachability",
        key="ignores the root",
        what="the search never starts, so that the set stays empty",
        behaviour="no",
        state="no",
        update="no",
        circuit="either",
        algorithm="",
        held_out=True,
    ),
    Record(
        task="reachability",
        key="reachability-learned",
        what=(
            "trained on an answer that is spread over all nodes held; nobody can say how near"
            " its set comes"
        ),
        behaviour="either",
        state="either",
        update="either",
        circuit="no",
    ),
    Record(
        task="reachability",
        key="untrained",
        what="random weights: nothing was learned",
        behaviour="no",
        state="no",
        update="no",
        circuit="no",
        algorithm="",
    ),
)
RECORDS = (*_EXPERTS, *_QLEARNING, *_REACHABILITY)
