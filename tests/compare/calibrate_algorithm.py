"""What "which algorithm?" answers for machines whose algorithm is known, and for the shipped models.

    python -m tests.compare.calibrate_algorithm [TASK ...] [--episodes N] [--only NAME]

prints one line a machine. ``HELD_OUT`` names those that no threshold was chosen with. The slow test
(``test_calibration.py``) asserts the answers of all of them at a smaller size.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

import interp
from circuits.compare import AlgorithmPart, explain
from circuits.compare.fitting import predictor
from interp import tasks
from interp.model.transformer import untrained
from interp.tasks.experts import algorithms as experts
from interp.tasks.experts import families as rivals
from interp.tasks.experts.layout import ExpertRound
from interp.tasks.qlearning import algorithms as q
from interp.tasks.qlearning import families as q_rivals
from interp.tasks.qlearning.layout import QLearningRound
from interp.tasks.reachability import algorithms as search
from interp.tasks.reachability.layout import ReachabilityRound
from interp.workers import one_thread

LAYOUTS = {"experts": ExpertRound(4), "qlearning": QLearningRound(4, 3), "reachability": ReachabilityRound(16, 24)}
ROUNDS = {"experts": 30, "qlearning": 50, "reachability": 5}


@dataclass(frozen=True)
class Machine:
    """A machine, and the family that must explain it: "" for none of these, None where nobody knows."""

    task: str
    name: str
    make: Callable[[], Any]
    expected: str | None


def blend(first: Any, second: Any, weight: float = 0.5) -> Callable[[Any], np.ndarray]:
    """A predictor that is no single algorithm: ``weight`` of the first one's distribution, the rest of the second's."""
    one, other = predictor(first), predictor(second)
    return lambda episodes: weight * one(episodes) + (1 - weight) * other(episodes)


def noisy(subject: Any, noise: float) -> Callable[[Any], np.ndarray]:
    """A predictor whose log-odds of the second of two outcomes are off by Gaussian noise."""

    def predict(episodes: Any) -> np.ndarray:
        given = np.clip(predictor(subject)(episodes)[..., 1], 1e-9, 1 - 1e-9)
        off = np.log(given / (1 - given)) + noise * np.random.default_rng(len(given)).normal(size=given.shape)
        chance = 1 / (1 + np.exp(-off))
        return np.stack([1 - chance, chance], -1)

    return predict


def shipped(name: str, **arguments: Any) -> Callable[[], Any]:
    return lambda: interp.load(name, **arguments)


def _experts() -> list[Machine]:
    def machine(name: str, make: Callable[[], Any], expected: str | None) -> Machine:
        return Machine("experts", name, make, expected)

    hand = [
        machine(f"handwired, gain {gain}", shipped("wma-handwired", n_experts=4, log_gamma=gain), "weighted_majority")
        for gain in (0.2, 0.5, 1.0)
    ]
    fresh = [
        machine(f"untrained {seed}", lambda seed=seed: untrained(interp.load("wma-learned"), seed), "")
        for seed in range(6)
    ]
    mixed = blend(experts.weighted_majority(1.0), experts.bayes())
    return [
        *hand,
        machine("wma-learned", shipped("wma-learned"), "bayes"),
        machine("wma-learned-wide", shipped("wma-learned-wide"), "bayes_mixture"),
        machine("follow the leader", experts.follow_the_leader, "follow_the_leader"),
        machine("Bayes U[0, 1]", lambda: experts.bayes(0.0, 1.0), "bayes"),
        machine("Bayes U[.3, .9], noise .3", lambda: noisy(experts.bayes(), 0.3), "bayes"),
        machine("50 : 50 Weighted Majority and Bayes", lambda: mixed, ""),
        machine("leaky .98", lambda: rivals.bayes_fading(decay=0.98), "bayes_fading"),
        machine("leaky .9", lambda: rivals.bayes_fading(decay=0.9), "bayes_fading"),
        machine("last 10", lambda: rivals.bayes_window(window=10), "bayes_window"),
        machine("last 7, prior U[.1, .8]", lambda: rivals.bayes_window(0.1, 0.8, window=7), "bayes_window"),
        machine("fading Weighted Majority", lambda: rivals.fading_majority(0.7, decay=0.93), "fading_majority"),
        machine("fixed share", lambda: rivals.fixed_share(1.3, 0.04), "fixed_share"),
        machine("Weighted Majority, 1 late", lambda: rivals.late_majority(0.5, lag=1), "late_majority"),
        machine("Weighted Majority, 2 late", lambda: rivals.late_majority(0.9, lag=2), "late_majority"),
        machine("Weighted Majority of the last 8", lambda: rivals.majority_window(0.6, window=8), "majority_window"),
        machine("Weighted Majority of 10 rounds", lambda: rivals.stopped_majority(0.5, last=10), "stopped_majority"),
        machine("Weighted Majority deaf to the third", lambda: rivals.deaf_majority(0.5, 3), "deaf_majority"),
        machine("Weighted Majority, second says 1", lambda: rivals.deaf_majority(0.7, 2, 1), "deaf_majority"),
        machine("Bayes, 1 late", lambda: rivals.bayes_late(lag=1), "bayes_late"),
        machine("Bayes of 10 rounds", lambda: rivals.bayes_stopped(0.2, 0.9, last=10), "bayes_stopped"),
        machine("sigmoid vote", lambda: rivals.sigmoid_vote(0.15), "sigmoid_vote"),
        machine("previous winners", rivals.follow_previous_winners, "follow_previous_winners"),
        machine("majority vote", experts.majority_vote, ""),
        *fresh,
    ]


def _qlearning() -> list[Machine]:
    def machine(name: str, make: Callable[[], Any], expected: str | None) -> Machine:
        return Machine("qlearning", name, make, expected)

    def hand(gamma: float, expected: str) -> Machine:
        made = shipped("qlearning-handwired", n_states=4, n_actions=3, gamma=gamma)
        return machine(f"handwired, gamma {gamma}", made, expected)

    boltzmann = q_rivals.acting(q.q_learning(0.2, 0.8), temperature=0.05)
    late = q_rivals.acting(q_rivals.late_q(0.2, 0.8), shared_ties=False, after=False)
    stopped = q_rivals.acting(q_rivals.stopped_q(0.1, 0.9, last=10))
    return [
        hand(0.0, "no_bootstrap"),
        hand(0.5, "q_learning"),
        hand(0.9, "q_learning"),
        machine("qlearning-learned", shipped("qlearning-learned"), None),
        machine("SARSA", lambda: q_rivals.sarsa(0.2, 0.8), "sarsa"),
        machine("mean for maximum", lambda: q_rivals.mean_bootstrap(0.1, 0.8), "mean_bootstrap"),
        machine("Boltzmann, alpha .2, gamma .8", lambda: boltzmann, "q_learning"),
        machine("Q-learning, 1 late", lambda: late, "late_q"),
        machine("Q-learning of 10 rounds", lambda: stopped, "stopped_q"),
        machine("mean reward", q_rivals._mean_reward, "mean_reward"),
        machine("fewest visits", lambda: q_rivals.visit_counts(-1.0), "visit_counts"),
        machine("50 : 50 Q-learning and SARSA", lambda: blend(q_rivals.acting(q.q_learning()), q_rivals.sarsa()), ""),
        *(
            machine(f"untrained {seed}", lambda seed=seed: untrained(interp.load("qlearning-learned"), seed), "")
            for seed in range(2)
        ),
    ]


def _reachability() -> list[Machine]:
    def machine(name: str, make: Callable[[], Any], expected: str | None) -> Machine:
        return Machine("reachability", name, make, expected)

    return [
        machine("handwired", shipped("reachability-handwired", n_nodes=16, n_edges=24), "breadth_first"),
        machine("spread .6", lambda: search.breadth_first(0.6), "breadth_first"),
        machine("2 hops", lambda: search.depth_limited(2), "depth_limited"),
        machine("depth-first", search.depth_first, "depth_first"),
        machine("1 late", search.late_search, "late_search"),
        machine("2 late, spread .3", lambda: search.late_search(2, 0.3), "late_search"),
        machine("undirected", lambda: search.undirected(0.3), "undirected"),
    ]


MACHINES = (*_experts(), *_qlearning(), *_reachability())
HELD_OUT = (
    *("fading Weighted Majority", "fixed share", "sigmoid vote", "previous winners"),
    *("Weighted Majority, 2 late", "Weighted Majority of the last 8", "Weighted Majority, second says 1"),
    *("Bayes of 10 rounds", "Q-learning of 10 rounds", "2 late, spread .3"),
    *("Boltzmann, alpha .2, gamma .8", "50 : 50 Q-learning and SARSA", "mean for maximum", "fewest visits"),
    *("2 hops", "depth-first"),
)
"""Machines that were first run when thresholds and grids stood.

Two more were missed at first, and taught something: "last 7" (the grid of windows had no 7) and "mean reward" (no set
had rewards that are drawn, so it could not be told from the last reward)."""


def answer(machine: Machine, n_episodes: int, seed: int = 0) -> AlgorithmPart:
    """What explains a machine, from ``n_episodes`` a set to fit on and as many to score on."""
    task = tasks.get(machine.task)
    sets = task.sets_for(LAYOUTS[machine.task], n_episodes, ROUNDS[machine.task], seed)
    return explain(machine.make(), task, sets, seed=seed)


@one_thread()
def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("tasks", nargs="*", default=list(LAYOUTS))
    parser.add_argument("--episodes", type=int, default=32)
    parser.add_argument("--only", default="")
    options = parser.parse_args()
    for machine in MACHINES:
        if machine.task in options.tasks and options.only in machine.name:
            start = time.process_time()
            part = answer(machine, options.episodes)
            right = {None: "?", part.family or "": "right"}.get(machine.expected, "WRONG")
            seconds = time.process_time() - start
            sys.stdout.write(f"{machine.task:13}{machine.name:38}{right:6}{seconds:5.1f} s  {part}\n")
            sys.stdout.flush()


if __name__ == "__main__":
    main()
