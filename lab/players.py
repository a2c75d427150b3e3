"""How well does :func:`interp.choices.players.explain_each` find the family of a player? A
simulation.

    python -m lab.players measure [--rounds 60 100 300 1000] [--every 1] [--out docs/players.csv]
    python -m lab.players table

``measure`` simulates 120 players of known families, soft and hard choosers, and 16 players that
ignore rewards. It finds which families explain the choices of each, and writes a row per player and
length to ``--out``. ``--every 3`` plays only each third player. :func:`list_players` fixes the
players; it was committed before any of them was played. ``table`` prints the rates of right and
wrong answers from these rows.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from interp.choices.explain import ChoiceExplanation
from interp.choices.players import explain_each, fit_participants
from interp.core.algorithm import Algorithm, Family
from interp.tasks import bandit
from interp.tasks.bandit import BanditEpisodes
from lab.card import format_table

Range = tuple[float, float]

SEED = 20261128
LENGTHS = (60, 100, 300, 1000)
PLAYERS_A_FAMILY = 15
TABLE = Path(__file__).parents[1] / "docs" / "players.csv"

_TEMPERATURES: Mapping[str, Range] = {"soft": (1.5, 4.0), "hard": (5.0, 12.0)}
_RATE: Range = (0.1, 0.8)
RANGES: Mapping[str, Mapping[str, Range | Mapping[str, Range]]] = {
    "rescorla_wagner": {"rate": _RATE, "inverse_temperature": _TEMPERATURES},
    "two_rates": {"gain": (0.3, 0.9), "loss": (0.05, 0.3), "inverse_temperature": _TEMPERATURES},
    "forgetting": {"rate": _RATE, "forgets": (0.1, 0.7), "inverse_temperature": _TEMPERATURES},
    "perseveration": {"rate": _RATE, "stays": (0.5, 2.0), "inverse_temperature": _TEMPERATURES},
    "choice_kernel": {
        "rate": _RATE,
        "inverse_temperature": {"soft": (1.5, 3.0), "hard": (3.0, 6.0)},
    },
    "win_stay": {
        "stays": {"soft": (0.6, 0.8), "hard": (0.85, 0.98)},
        "shifts": {"soft": (0.6, 0.8), "hard": (0.85, 0.98)},
    },
    "bayes_ucb": {"bonus": (0.0, 2.0), "inverse_temperature": _TEMPERATURES},
    "bayes_thompson": {"keeps": {"soft": (0.5, 0.8), "hard": (0.85, 1.0)}},
}
"""Range from which each parameter is drawn, by family; some ranges differ for soft and hard
choosers.
"""
BIASES = (0.5, 0.5, 0.5, 0.5, 0.5, 0.5, 0.1, 0.2, 0.3, 0.4, 0.45, 0.55, 0.6, 0.7, 0.8, 0.9)
"""Probability of the first arm, for the players that ignore rewards."""


@dataclass(frozen=True)
class Player:
    """A simulated player.

    Attributes:
        kind: "soft" or "hard" (low or high inverse temperature), or "noise" (ignores rewards).
        algorithm: the algorithm that chooses.
    """

    kind: str
    algorithm: Algorithm


def list_players() -> list[Player]:
    """Return the players: 15 of each family with a memory, alternately soft and hard, and 16 of
    noise.
    """
    families = bandit.TASK.rivals()
    rng = np.random.default_rng(SEED)
    players = []
    for key, ranges in RANGES.items():
        for number in range(PLAYERS_A_FAMILY):
            kind = "hard" if number % 2 else "soft"
            players.append(Player(kind, _draw(families[key], ranges, kind, rng)))
    for bias in BIASES:
        players.append(Player("noise", families["fixed_bias"].make(first=bias)))
    return players


def _draw(
    family: Family,
    ranges: Mapping[str, Range | Mapping[str, Range]],
    kind: str,
    rng: np.random.Generator,
) -> Algorithm:
    """Draw an algorithm from a family.

    Args:
        family: the family.
        ranges: name of a parameter -> (low, high), or {kind: (low, high)} if the range differs.
        kind: "soft" or "hard".
        rng: draws the parameters, each uniformly.
    """
    parameters = {}
    for name, between in ranges.items():
        low, high = between[kind] if isinstance(between, Mapping) else between
        parameters[name] = float(rng.uniform(low, high))
    return family.make(**parameters)


def play(players: Sequence[Player], n_rounds: int, first_seed: int) -> BanditEpisodes:
    """Simulate one episode of each player, on two arms whose reward probabilities reverse.

    Args:
        players: the players.
        n_rounds: rounds per episode.
        first_seed: seed of the first player; each next player has the next seed.
    """
    choices, rewards = [], []
    for number, player in enumerate(players):
        episode = bandit.sample(
            1, n_rounds, 2, "reversal", seed=first_seed + number, player=player.algorithm
        )
        choices.append(episode.choices)
        rewards.append(episode.rewards)
    names = [f"{number:03}" for number in range(len(players))]
    return BanditEpisodes(
        np.concatenate(choices), np.concatenate(rewards), 2, participants=np.array(names)
    )


def judge(player: Player, explanation: ChoiceExplanation, fitted: pd.Series) -> dict[str, Any]:
    """Return a record of what was found for a player, beside its true family.

    A constant guess counts as a fixed bias, since on two arms they are the same. ``asked`` is the
    number of rates and inverse temperatures that the player has, and ``covered`` how many of their
    intervals contain the true value. ``in_set`` says whether the true family is in the confidence
    set, and ``size`` is the number of families in it.

    Args:
        player: the player.
        explanation: the explanation of its choices.
        fitted: the fit of its true family to its choices, a row of
            :func:`interp.choices.players.fit_participants`.
    """
    key = player.algorithm.key
    true_keys = {key, "constant"} if key == "fixed_bias" else {key}
    are_covered = []
    for name in ("rate", "inverse_temperature"):
        value = player.algorithm.parameters.get(name)
        if value is not None:
            low, high = fitted[[f"{name}_low", f"{name}_high"]]
            are_covered.append(low <= value <= high)
    members = explanation.confidence_set
    return {
        "family": key,
        "kind": player.kind,
        "in_set": not true_keys.isdisjoint(members),
        "size": len(members),
        "verdict": explanation.verdict,
        "closest": explanation.closest,
        "set": " ".join(members),
        "nats": explanation.nats.estimate,
        "floor_nats": explanation.floor_nats.estimate,
        "covered": sum(are_covered),
        "asked": len(are_covered),
    }


def measure(lengths: Sequence[int], out: Path, every: int = 1) -> None:
    """Simulate players at each length, find the families that explain each, and write the rows to a
    file.

    Args:
        lengths: numbers of rounds to play.
        out: the file; its rows of other lengths are kept.
        every: play only each ``every``-th player of the list.
    """
    players = list_players()
    families = bandit.TASK.rivals()
    rows: list[dict[Any, Any]] = []
    if out.exists():
        earlier = pd.read_csv(out)
        rows = earlier[~earlier["rounds"].isin(lengths)].to_dict("records")
    for n_rounds in lengths:
        start = time.process_time()
        episodes = play(players, n_rounds, first_seed=SEED + 1000 * n_rounds)
        numbers_played = range(0, len(players), every)
        # The players of a family follow one another in the list, as `groupby` needs it.
        by_family = groupby(numbers_played, key=lambda number: players[number].algorithm.key)
        for key, group in by_family:
            numbers = list(group)
            part = episodes.select(numbers)
            explanations = list(explain_each(part, part.choices).found.values())
            fits = fit_participants(families[key], part, part.choices)
            for i, number in enumerate(numbers):
                judged = judge(players[number], explanations[i], fits.iloc[i])
                rows.append({"rounds": n_rounds, "player": number, **judged})
            # Written after every family, so that little is lost if the run is stopped.
            pd.DataFrame(rows).to_csv(out, index=False, float_format="%.4g")
        seconds = time.process_time() - start
        print(f"{n_rounds} rounds: {seconds:.0f} CPU s", flush=True)  # noqa: T201


def rates(rows: pd.DataFrame) -> pd.DataFrame:
    """Return the rates of right and wrong answers, a row for each length and kind of player."""
    answers = []
    for (n_rounds, kind), group in rows.groupby(["rounds", "kind"], sort=False):
        verdict = group["verdict"]
        is_named = verdict == "named"
        is_wrong = is_named & (group["closest"] != group["family"])
        answer = {"rounds": n_rounds, "kind": kind, "players": len(group)}
        answer["true family in the set"] = f"{group['in_set'].mean():.3f}"
        answer["none"] = f"{(verdict == 'none').mean():.3f}"
        answer["no memory"] = f"{(verdict == 'no memory').mean():.3f}"
        answer["median size"] = f"{group['size'].median():g}"
        answer["named"] = is_named.sum()
        answer["named wrongly"] = is_wrong.sum()
        n_asked = group["asked"].sum()  # number of intervals
        answer["covered"] = f"{group['covered'].sum() / n_asked:.3f}" if n_asked else ""
        answers.append(answer)
    return pd.DataFrame(answers)


def table(path: Path = TABLE) -> str:
    """Return these rates as a Markdown table."""
    return format_table(rates(pd.read_csv(path)))


def main() -> None:
    """Parse the command line and run ``measure`` or ``table``."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", choices=["measure", "table"])
    parser.add_argument("--rounds", type=int, nargs="+", default=LENGTHS)
    parser.add_argument("--every", type=int, default=1)
    parser.add_argument("--out", type=Path, default=TABLE)
    options = parser.parse_args()
    if options.what == "measure":
        measure(options.rounds, options.out, options.every)
    else:
        print(table(options.out))  # noqa: T201


if __name__ == "__main__":
    main()
