"""What is said of the notes of players whose use of them is known.

``python -m lab.note_players [--notes 12 30] [--times 4] [--only NAME ...]``

Each player writes a counter note without a history and follows the leader of it, but for what its name says. ``lapse``:
the opposite choice so often, by the seed of the request. Rows: the words of its measures, how often (of ``--times``).
"""

from __future__ import annotations

import argparse
import json
import tempfile
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from interp.llm.backend import AGENTS, Backend, Reply, Settings
from interp.llm.note_tests import try_edits
from interp.llm.plan import instances, plan
from interp.llm.runner import run
from interp.llm.schemes import Condition, Message, Turn, built_in_prompts, read_message

CARRIES, UNUSED, OTHER, OPEN = (
    ("yes", "yes"),
    ("no", "no"),
    ("no", "yes"),
    ("undecided", "undecided"),
)
"""The words of "carries" and "used"."""


class Noisy(Backend):
    """The counter whose choice ``change`` makes of its choice, the note, the votes and a number from U[0, 1]."""

    address, concurrency = "a test", 1

    def __init__(self, change: Callable[[int, str, list[int], float], int]) -> None:
        self.change = change

    async def ask(
        self, messages: Sequence[Message], condition: Condition, turn: Turn, seed: int
    ) -> Reply:
        said = json.loads(AGENTS["counter"](messages))
        if turn == "prediction":
            body = read_message(messages[-1])
            votes = [int(body[key]) for key in body if key.startswith("Expert_")]
            u = float(np.random.default_rng(seed).random())
            said["prediction"] = self.change(said["prediction"], str(body["note"]), votes, u)
        return Reply(json.dumps(said))


def _in_half(choice: int, note: str, votes: list[int], u: float) -> int:
    return choice if u < 0.5 else votes[0]


PLAYERS: dict[str, tuple[Any, tuple[str, str]]] = {
    "lapse .05": (lambda choice, note, votes, u: choice ^ (u < 0.05), CARRIES),
    "lapse .1": (lambda choice, note, votes, u: choice ^ (u < 0.1), CARRIES),
    "lapse .2": (lambda choice, note, votes, u: choice ^ (u < 0.2), CARRIES),
    "always A": (lambda choice, note, votes, u: votes[0], UNUSED),
    "majority, lapse .02": (
        lambda choice, note, votes, u: int(2 * sum(votes) >= len(votes)) ^ (u < 0.02),
        UNUSED,
    ),
    "coin": (lambda choice, note, votes, u: int(u < 0.5), OPEN),
    "uses it half the time": (_in_half, OPEN),
    "opposite": (lambda choice, note, votes, u: 1 - choice, OTHER),
    "length of the note": (lambda choice, note, votes, u: len(note) % 2, OTHER),
}
"""Name -> how the choice is changed, and the words that are right; where "undecided" is, no "yes" may come."""


def words(name: str, n: int, seed: int, folder: Path) -> tuple[str, ...]:
    """The words of "carries" and "used" of a player with ``n`` notes."""
    player = Noisy(PLAYERS[name][0])
    drawn = instances(("stratified",), n, 9, 4, seed=seed)
    work = plan(Settings("player"), built_in_prompts(), drawn, [Condition("online", "note-only")])
    run(work, folder / "in", player)
    return tuple(
        one.verdict
        for one in try_edits(folder / "in", folder / "edited", 1, where=player, seed=seed)[0]
    )


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--notes", type=int, nargs="+", default=[12, 30])
    parser.add_argument("--times", type=int, default=4)
    parser.add_argument("--only", nargs="+", default=list(PLAYERS))
    given = parser.parse_args()
    for name in given.only:
        for n in given.notes:
            found: Counter[tuple[str, ...]] = Counter()
            for seed in range(given.times):
                with tempfile.TemporaryDirectory() as folder:
                    found[words(name, n, seed, Path(folder))] += 1
            right = PLAYERS[name][1]
            print(f"{name:24} {n:3} notes, right: {right}; said: {dict(found)}", flush=True)  # noqa: T201


if __name__ == "__main__":
    main()
