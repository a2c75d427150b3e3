"""How far a softmax maximum takes Q-learning from its table: ``python -m tests.circuits.softness`` writes it.

The circuit's softmax form (``variant="softmlp"``) routes at eta 120, where routing leaves nothing, so that what is left
comes from the maximum of heads 3.1 and 3.2 alone, at inverse temperature ``hardness``. A mean weighed by e^(h Q) misses
the largest of A values by at most (A - 1) / (e h). Every round bootstraps from it, so a table misses at most
gamma / (1 - gamma) times as much. ``beta`` softens head 3.1 alone: the policy is Boltzmann's, the table stays exact.
"""

import math
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

import circuits
import interp
from circuits.registry import get_record

PAGE = Path(__file__).parents[2] / "docs" / "explanation" / "softness.csv"
SIZES, HARDNESS, BETA = (
    ((2, 2), (4, 3), (8, 4)),
    (1.0, 10.0, 100.0, 1e3, 1e4, 1e5),
    (0.5, 5.0, 50.0),
)


def bound(n_actions: int, hardness: float) -> float:
    """The most by which a table may miss, in units of reward."""
    gamma = 0.9
    return gamma / (1 - gamma) * (n_actions - 1) / (math.e * hardness)


def errors(
    size: tuple[int, int], n_rounds: int = 200, n_episodes: int = 10, **soft: Any
) -> tuple[float, float]:
    """The largest error of the table, and of the policy that the circuit's own algorithm has."""
    name = "qlearning-handwired"
    circuit = circuits.build(name, n_states=size[0], n_actions=size[1], variant="softmlp", **soft)
    episodes = get_record(name).plan.episodes(circuit, n_rounds, n_episodes, 0)
    values, model = circuit.algorithm.run(episodes), circuits.compile_circuit(circuit)
    run = interp.rollout(model, episodes)
    missed = np.abs(model.read_state(run.latents).numpy()[:, 1:] - values["next_table"]).max()
    return float(missed), float(np.abs(run.predictions.numpy() - values["policy"]).max())


def table(**run: Any) -> pd.DataFrame:
    """A row an inverse temperature, a column a size: the largest error of the table, and the bound."""
    rows = []
    for hardness in HARDNESS:
        row: dict[str, Any] = {"inverse temperature of": f"the maximum, {hardness:g}"}
        for size in SIZES:
            missed, _ = errors(size, eta=120.0, hardness=hardness, **run)
            row["{} states, {} actions".format(*size)] = (
                f"{missed:.1g} (at most {bound(size[1], hardness):.1g})"
            )
        rows.append(row)
    for beta in BETA:
        row = {"inverse temperature of": f"the choice alone, {beta:g}"}
        for size in SIZES:
            row["{} states, {} actions".format(*size)] = "{:.0e}, policy {:.0e}".format(
                *errors(size, beta=beta, **run)
            )
        rows.append(row)
    return pd.DataFrame(rows)


def main() -> None:
    """Write the page's table, and print it."""
    rows = table()
    rows.to_csv(PAGE, index=False)
    print(rows.to_string())  # noqa: T201


if __name__ == "__main__":
    main()
