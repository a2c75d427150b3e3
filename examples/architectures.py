"""Do architectures that are trained on the same task become the same machine? Measures of machines, and of pairs.

Of each machine: how far its predictions lie from the best that is possible, and which algorithm explains them. Of each
pair: whether they predict alike, respond alike to single inputs, hold states that the other can go on from (stitching,
between a GRU's ``h`` and a latent as well), and change their states alike, on the manifold and off it; beside each the
same of untrained copies. How far two seeds of one architecture lie apart is what two architectures are held against,
which ``examples/same_machine.py`` does with the tables that this one writes. Run it with

    python examples/architectures.py OUT MODEL MODEL ...        # goes on where it was stopped

Pairs are compared by the questions of ``interp compare`` at the quick budget, on the same episodes all; those across
architectures with equal seeds.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

import interp
from circuits import compare
from circuits.compare.algorithm import BEHAVIOUR
from circuits.compare.question import (
    Compared,
    CrossFitted,
    Participant,
    Samples,
    crossed_writer,
    pooled_values,
    scored,
    shared_sizes,
)
from circuits.compare.response import Edits
from circuits.compare.state import STATE
from circuits.compare.update import draw_strange_states
from interp.core.algorithm import Algorithm
from interp.core.machine import Machine
from interp.evaluation.experts.by_regime import divergence
from interp.interventions.moves import transition
from interp.model.transformer import untrained
from interp.results.measure import best_of
from interp.stats.intervals import Interval, mean_interval
from interp.support.files import write_csv
from interp.support.session import once, session
from interp.tasks import experts
from interp.tasks.experts.predictors import bayes
from lab.known import handmade

Row = dict[str, Any]
STATE_KEY = "counts"
"""How often each expert was right: what Bayes' state is made of, and the logarithms of Weighted Majority's weights."""
FORGETS = "forgets"
"""A control to be named beside the models: a GRU by hand that sums hits and forgets 5 % of them a round."""
NAMES = {"gru": "GRU", "lstm": "LSTM", "mamba": "Mamba", "loop": "loop", "thoughts": "thoughts"}


def architecture(machine: Machine) -> str:
    """What a machine is called in the tables, whatever its seed."""
    if machine.is_handwired:
        return f"by hand: {machine.name}"
    return NAMES.get(str(machine.origin.get("builder", "")).split("-")[0], "transformer")


def forgets() -> Machine:
    """The machine called :data:`FORGETS`."""
    return handmade.majority(decay=0.95, name=FORGETS)


def seed_of(name: str) -> int:
    """The seed that a name ends with; 0 where it ends with none."""
    last = name.rsplit("-", 1)[-1]
    return int(last) if last.isdigit() else 0


@dataclass(frozen=True)
class Bench:
    """The episodes that all machines meet, and how much is done."""

    budget: compare.Budget
    samples: Samples
    sets: Any

    @classmethod
    def of(cls, machine: Machine, budget: compare.Budget) -> Bench:
        """Episodes of a machine's task and sizes."""
        task, sizes = interp.tasks.of(machine), shared_sizes([machine])
        sets = task.sets_for(budget.battery, budget.rounds, budget.seed, budget.scored, **sizes)
        return cls(budget, Samples.draw(machine, budget, sizes), sets)

    def pair(self, one: Machine, other: Machine) -> Compared:
        """Two machines as ``compare.machines`` has them, with untrained copies of both."""
        subjects = [Participant(machine, self.samples) for machine in (one, other)]
        fresh = [
            once("fresh", machine, make=partial(self._fresh, machine)) for machine in (one, other)
        ]
        return Compared(*subjects, *fresh, self.budget, self.sets)

    def _fresh(self, machine: Machine) -> list[Participant]:
        seeds = range(self.budget.seed, self.budget.seed + self.budget.untrained)
        return [Participant(untrained(machine, seed), self.samples) for seed in seeds]


def of_machine(machine: Machine, bench: Bench, n_episodes: int = 400) -> Row:
    """What is said of one machine by itself."""
    episodes = experts.sample(n_episodes, 100, 4, seed=11)
    predicted = interp.rollout(machine, episodes).predictions.double().numpy()
    above = mean_interval(divergence(bayes(episodes).predictions, predicted).mean(1))
    task, seed = interp.tasks.of(machine), bench.budget.seed
    edits = Edits.of(task, bench.samples.test, bench.budget.edits)
    part = compare.explain(machine, task, bench.sets, seed=seed, edits=edits)
    weights = sum(weight.numel() for weight in machine.parameters())  # type: ignore[attr-defined]
    made = ", ".join(f"{key} {value:.3g}" for key, value in part.parameters.items())
    return {
        "machine": machine.name,
        "architecture": architecture(machine),
        "weights": weights,
        "carries": ", ".join(
            f"{channel.name} {list(channel.shape)}" for channel in machine.channels
        ),
        **above.columns("nats_above_bayes"),
        "algorithm": f"{part.scores[part.closest].name} ({made})",
        "explains": part.family is not None,
        **part.explained.columns("explained"),
        **{
            f"left_of_runner_up{key[5:]}": value
            for key, value in part.ratio.columns("ratio").items()
        },
    }


def of_pair(one: Machine, other: Machine, bench: Bench) -> Iterator[Row]:
    """How alike two machines are, a row a measure; ``untrained`` is the best of their untrained copies."""
    compared = bench.pair(one, other)
    compared.parts["algorithm"] = None  # asked of each machine by itself
    for question in (BEHAVIOUR, STATE):
        compared.parts[question.key] = question.compute(compared)
    behaviour, state = compared.parts["behaviour"], compared.parts["state"]
    words = {question.key: question.measure(compared).verdict for question in (BEHAVIOUR, STATE)}
    worst = min(behaviour.plain.cells, key=lambda cell: cell.alike.low)
    ways = [state.best(*names) for names in ((one.name, other.name), (other.name, one.name))]
    way = min(ways, key=lambda stitched: stitched.score.low)
    fresh = best_of(behaviour.untrained).number
    yield {
        "measure": "behaviour",
        "verdict": words["behaviour"],
        **columns(behaviour.plain.alike),
        "untrained": fresh,
    }
    yield {"measure": "response", "at": worst.where, **columns(worst.alike)}
    at, fresh = f"{way.source} -> {way.target}", best_of(state.untrained).number
    yield {
        "measure": "state",
        "verdict": words["state"],
        "at": at,
        **columns(way.score),
        "untrained": fresh,
    }
    yield from updates(compared)


def updates(compared: Compared) -> Iterator[Row]:
    """Do the two change their states alike? The worse of one round on and several."""
    budget, algorithm = compared.budget, experts.TASK.algorithm("bayes")
    fresh = compared.untrained[0], compared.reference_untrained[0]
    values = pooled_values(algorithm, compared.model.samples)
    for manifold in ("on", "off"):
        found = []
        for horizon in (1, budget.horizon):
            by = (
                None
                if manifold == "on"
                else draw_strange_states(values, (STATE_KEY,), budget)[STATE_KEY]
            )
            made, blank = (
                [steps(s, algorithm, budget, horizon, by) for s in two]
                for two in (compared.pair, fresh)
            )
            control = best_of(
                (alike(made[0], blank[1]).estimate, alike(blank[0], made[1]).estimate)
            ).number
            found.append((alike(*made), control, horizon))
        worst, control, horizon = min(found, key=lambda each: each[0].low)
        yield {
            "measure": f"update {manifold}",
            "at": f"{horizon} rounds on",
            **columns(worst),
            "untrained": control,
        }


def steps(
    subject: Participant,
    algorithm: Algorithm,
    budget: compare.Budget,
    horizon: int,
    by: np.ndarray | None,
) -> np.ndarray:
    """By how much the state changes, as a cross-fitted decoder reads it, ``[episode, start, expert]``."""
    writer, samples, made = crossed_writer(subject, algorithm, (STATE_KEY,)), subject.samples, []
    assert isinstance(writer.decoder, CrossFitted)
    n = len(samples.known)
    for episodes, rows in ((samples.known, slice(n)), (samples.test, slice(n, None))):
        mine = replace(writer, decoder=writer.decoder.cut(rows))
        moved = None if by is None else {STATE_KEY: by[rows]}
        done = transition(subject.model, episodes, mine, round=budget.at, horizon=horizon, by=moved)
        made.append(done.after[STATE_KEY] - done.before[STATE_KEY])
    return np.concatenate(made)


def alike(one: np.ndarray, other: np.ndarray) -> Interval:
    """1 less the squares of the difference over those of both about the round's mean: 1 equal, 0 independent."""
    about = [each - each.mean(0) for each in (one, other)]
    return scored(((one - other) ** 2).sum((1, 2)), sum((each**2).sum((1, 2)) for each in about))


def columns(value: Interval) -> Row:
    """An interval as columns."""
    return {"value": value.estimate, "low": value.low, "high": value.high}


def pairs_of(machines: dict[str, Machine]) -> list[tuple[str, str]]:
    """All seeds of one architecture with each other; architectures with each other by equal seeds."""
    kinds = {name: architecture(machine) for name, machine in machines.items()}
    asked = [
        two
        for two in combinations(machines, 2)
        if not all(machines[name].is_handwired for name in two)
    ]
    return [(a, b) for a, b in asked if kinds[a] == kinds[b] or seed_of(a) == seed_of(b)]


QUICK = compare.Budget.quick()


def main(out: Path, names: list[str], budget: compare.Budget = QUICK) -> list[Path]:
    """Measure what is not measured yet, and write ``machines.csv``, of those that learned, and ``pairs.csv``."""
    loaded = [forgets() if name == FORGETS else interp.load(name) for name in names]
    machines = {machine.name: machine for machine in loaded}
    bench, parts = Bench.of(next(iter(machines.values())), budget), out / ".parts"
    pairs = pairs_of(machines)
    learned = {name: machine for name, machine in machines.items() if not machine.is_handwired}
    with session():
        for name, machine in learned.items():
            keep(parts / f"{name}.csv", lambda machine=machine: [of_machine(machine, bench)])
        for a, b in pairs:
            about = {
                "a": a,
                "b": b,
                "kind_a": architecture(machines[a]),
                "kind_b": architecture(machines[b]),
            }
            keep(parts / f"{a}+{b}.csv", partial(_compared, about, machines[a], machines[b], bench))
    names_of_pairs = [f"{a}+{b}" for a, b in pairs]
    return [
        join_parts(parts, list(learned), out / "machines.csv"),
        join_parts(parts, names_of_pairs, out / "pairs.csv"),
    ]


def join_parts(parts: Path, names: list[str], path: Path) -> Path:
    """Write one table of the parts of some names."""
    frames = [pd.read_csv(parts / f"{name}.csv") for name in names]
    return write_csv(path, pd.concat(frames))


def _compared(about: Row, one: Machine, other: Machine, bench: Bench) -> list[Row]:
    return [about | row for row in of_pair(one, other, bench)]


def keep(path: Path, make: Callable[[], list[Row]]) -> None:
    """Write the rows that ``make`` gives, unless they are there."""
    if not path.is_file():
        started = time.process_time()
        write_csv(path, pd.DataFrame(make()))
        print(f"{path.stem}: {time.process_time() - started:.1f} CPU s", flush=True)


if __name__ == "__main__":
    print(*main(Path(sys.argv[1]), sys.argv[2:]), sep="\n")
