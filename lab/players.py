"""Simulated players whose algorithm is known, through the protocol of the language models, and what is said of them.

    python -m lab.players [--instances 10 30 90] [--which unseen] [--seeds 7] [--out FILE] [--table]
    python -m lab.players --coverage 400 [--out FILE]

prints one row for each player, regime and number of instances: what it is called, whether that is right, its held-out
loss and agreement, and eta with its interval; the rows that FILE holds already are not played again. The first twelve
were looked at while thresholds were chosen, on seed 7; the six ``UNSEEN`` were not. The players ``NOISY`` were, on the
seeds 101 to 104, and not on the seeds 201 to 206. ``docs/players.csv`` holds what these commands made; its column
"before" is what the analysis that :mod:`interp.choices.explain` replaced (at 15495d8^) called closest on the same
choices. ``--table`` prints a row for each player from it, and how many were named rightly; ``--coverage`` how often the
interval of eta holds the true one.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from interp.llm.schemes import Message, read_message

Bits = NDArray[np.int64]
Rule = Callable[[Bits, Bits, Bits, float], int]
"""Earlier votes ``[round, expert]``, earlier labels ``[round]``, the votes of this round and a number from U[0, 1]."""


def weighted(
    eta: float, decay: float = 1.0, window: int = 10**6, last: int = 10**6, share: float = 0.0
) -> Rule:
    """Weighted Majority, a tie says 1."""

    def rule(votes: Bits, labels: Bits, now: Bits, u: float) -> int:
        weights = np.zeros(len(now))
        first = max(0, len(labels) - window)
        for said, label in zip(votes[first:last], labels[first:last], strict=True):
            weights = decay * weights + eta * (said == label)
            if share:
                p = np.exp(weights - weights.max())
                weights = np.log((1 - share) * p / p.sum() + share / len(p))
        p = np.exp(weights - weights.max())
        return int(p @ now / p.sum() >= 0.5 - 1e-12)

    return rule


def leader(votes: Bits, labels: Bits, now: Bits, u: float) -> int:
    """Say what the first of the experts that were right most often says."""
    return int(now[int(np.argmax((votes == labels[:, None]).sum(0)))])


def winners(votes: Bits, labels: Bits, now: Bits, u: float) -> int:
    """Follow the majority of those that were right in the round before, of all experts where these are even."""
    right = now[votes[-1] == labels[-1]] if len(labels) else now
    right = now if 2 * right.sum() == len(right) else right
    return int(2 * right.sum() >= len(right))


def bayes(votes: Bits, labels: Bits, now: Bits, u: float) -> int:
    """Uniform prior on [0, 1]: log-odds of Laplace's estimates."""
    right = (votes == labels[:, None]).sum(0)
    return int(((2 * now - 1) * np.log((right + 1) / (len(labels) - right + 1))).sum() >= 0)


def noisy(rule: Rule, rate: float) -> Rule:
    """The opposite in a share ``rate`` of the rounds."""
    return lambda votes, labels, now, u: rule(votes, labels, now, u) ^ int(u < rate)


def deaf(rule: Rule, expert: int) -> Rule:
    """A rule that never hears one expert."""
    return lambda v, y, now, u: rule(np.delete(v, expert, 1), y, np.delete(now, expert), u)


def switching(before: Rule, after: Rule, at: int) -> Rule:
    """One rule up to a round, and another from it on."""
    return lambda v, y, now, u: (before if len(y) < at else after)(v, y, now, u)


def win_stay(votes: Bits, labels: Bits, now: Bits, u: float) -> int:
    """Follow one expert until it is wrong, then the next one."""
    at = 0
    for said, label in zip(votes, labels, strict=True):
        at = at if said[at] == label else (at + 1) % len(now)
    return int(now[at])


@dataclass(frozen=True)
class Player:
    """A rule, the families that are right to name it by (None: none has to be named), and its eta."""

    rule: Rule
    right: tuple[str, ...] = ()
    eta: float | None = None


_WM = ("weighted_majority",)
SEEN = {
    "WM .3": Player(weighted(0.3), _WM, 0.3),
    "WM .5": Player(weighted(0.5), _WM, 0.5),
    "noisy WM .5": Player(noisy(weighted(0.5), 0.1), _WM, 0.5),
    "FTL": Player(leader, ("follow_the_leader", "first_leader")),
    "FPW": Player(winners, ("follow_previous_winners",)),
    "Bayes": Player(bayes, ("bayes",)),
    "ignores 2": Player(deaf(weighted(0.5), 1), ("deaf_majority",), 0.5),
    "switch at half": Player(switching(weighted(0.5), winners, 50), ("switches",)),
    "coin": Player(lambda v, y, now, u: int(u < 0.5)),
    "always A": Player(lambda v, y, now, u: int(now[0])),
    "opposite of WM": Player(noisy(weighted(0.5), 1.1)),
    "majority": Player(lambda v, y, now, u: int(2 * now.sum() >= len(now))),
}
UNSEEN = {
    "WM .4 fading .8": Player(weighted(0.4, decay=0.8), ("fading_majority",), 0.4),
    "WM 1 of the last 5": Player(weighted(1.0, window=5), ("majority_window",), 1.0),
    "fixed share .1": Player(weighted(0.7, share=0.1), ("fixed_share",), 0.7),
    "WM .5, one round of five wrong": Player(noisy(weighted(0.5), 0.2)),
    "win stay, lose shift": Player(win_stay),
    "says 1 every other round": Player(lambda v, y, now, u: len(y) % 2),
}
NOISY = {
    "noisy WM .5": SEEN["noisy WM .5"],
    "WM .5, 1 of 20 wrong": Player(noisy(weighted(0.5), 0.05), _WM, 0.5),
    "WM .3, 1 of 10 wrong": Player(noisy(weighted(0.3), 0.1), _WM, 0.3),
    "WM 1, 7 of 100 wrong": Player(noisy(weighted(1.0), 0.07), _WM, 1.0),
    "FTL, 8 of 100 wrong": Player(noisy(leader, 0.08), ("follow_the_leader", "first_leader")),
    "FPW, 8 of 100 wrong": Player(noisy(winners, 0.08), ("follow_previous_winners",)),
    "Bayes, 8 of 100 wrong": Player(noisy(bayes, 0.08), ("bayes",)),
}
GROUPS = {"seen": SEEN, "unseen": UNSEEN, "noisy": NOISY}
TABLE, PAGE = (
    Path(__file__).parents[1] / "docs" / name for name in ("players.csv", "howto/llm.md")
)
_SEED = 7


def choices(player: Player, episodes: Any, seed: int = 0) -> NDArray[np.float64]:
    """What a player says ``[episode, round]``."""
    u = np.random.default_rng(seed).random(episodes.labels.shape)
    return np.array(
        [
            [
                float(player.rule(votes[:t], labels[:t], votes[t], luck[t]))
                for t in range(len(labels))
            ]
            for votes, labels, luck in zip(episodes.advice, episodes.labels, u, strict=True)
        ]
    )


def as_agent(player: Player, luck: NDArray[np.float64]) -> Callable[[Sequence[Message]], str]:
    """The player behind the protocol: it reads the whole conversation and answers in JSON."""

    def agent(messages: Sequence[Message]) -> str:
        told = [read_message(message) for message in messages if message["role"] == "user"]
        bits = {"rainy": 0, "sunny": 1, 0: 0, 1: 1}
        asked = [
            [bits[v] for k, v in body.items() if k.startswith("Expert_")]
            for body in told
            if "Expert_A" in body
        ]
        truth = [
            body.get("actual_weather", body.get("true_label"))
            for body in told
            if body["turn_type"] == "feedback"
        ]
        votes, labels = (
            np.array(asked[:-1]).reshape(-1, len(asked[-1])),
            np.array([bits[t] for t in truth], int),
        )
        said = player.rule(votes, labels, np.array(asked[-1]), float(luck[len(labels)]))
        return json.dumps(
            {
                "prediction": ("rainy", "sunny")[said]
                if told[-1]["turn_type"] == "forecast"
                else said
            }
        )

    return agent


def judged(player: Player, episodes: Any, seed: int = 0) -> Any:
    """What is said of a player's choices."""
    from interp.choices.explain import explain_choices
    from interp.tasks.experts.players import player_families

    families = player_families(episodes.n_experts)
    return explain_choices(episodes, choices(player, episodes, seed), families=families)


def is_right(player: Player, found: Any) -> str:
    """ "right", "wrong", or "undecided" where a name was due."""
    if not player.right:
        return "wrong" if found.family else "right"
    return "undecided" if not found.family else "right" if found.family in player.right else "wrong"


def called(found: Any) -> str:
    """Whether the closest family is named, as the table has it."""
    return {"yes": "named", "no": "none"}.get(found.measure.verdict, "undecided")


def table() -> str:
    """A row for each player, in Markdown: what it is called on 10 instances of each regime."""
    found = pd.read_csv(TABLE).query("instances == 10 and seed == @_SEED")
    called = (
        found["closest"].str.replace("_", " ").where(found["verdict"] == "named", found["verdict"])
    )
    lines = ["| player | before | now |", "| --- | --- | --- |"]
    for player, rows in found.assign(now=called).groupby("player", sort=False):
        cells = (
            rows[column] if rows[column].nunique() > 1 else rows[column].head(1)
            for column in ("before", "now")
        )
        lines.append(f"| {player} | {' | '.join(', '.join(cell) for cell in cells)} |")
    return "\n".join(lines)


def counts() -> str:
    """How many of the players and regimes are right, undecided or wrong, in Markdown; by number of instances."""
    found = pd.read_csv(TABLE)
    lines = [
        "| players | instances | right | undecided | wrong |",
        "| --- | --- | --- | --- | --- |",
    ]
    own = found["seed"] == _SEED
    groups = {
        "the first twelve": own & found["player"].isin(SEEN),
        "the other six": own & found["player"].isin(UNSEEN),
    }
    for name, rows in {**groups, "noisy, on draws held out": ~own}.items():
        for n, said in found[rows].groupby("instances")["is"]:
            numbers = [str((said == word).sum()) for word in ("right", "undecided", "wrong")]
            lines.append(f"| {name} | {n} | {' | '.join(numbers)} |")
    return "\n".join(lines)


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--instances", type=int, nargs="+", default=[10, 30, 90])
    parser.add_argument("--regimes", nargs="+", default=["stratified", "flat", "anti-signal"])
    parser.add_argument("--which", choices=GROUPS, default="seen")
    parser.add_argument("--seeds", type=int, nargs="+", default=[_SEED])
    parser.add_argument(
        "--coverage", type=int, default=0, help="Repetitions of the coverage of eta."
    )
    parser.add_argument("--only", nargs="+", default=None)
    parser.add_argument(
        "--out", type=Path, default=None, help="A CSV file of rows; those that it holds are kept."
    )
    parser.add_argument(
        "--machine", default=None, help="Instead: does each player choose as this model does?"
    )
    parser.add_argument(
        "--table", action="store_true", help="Print docs/players.csv in short, and play nothing."
    )
    given = parser.parse_args()
    if given.table:
        return print(table(), counts(), sep="\n\n")  # noqa: T201
    if given.coverage:
        return coverage(given.coverage, given.instances[0], given.out)
    players = {
        name: player
        for name, player in GROUPS[given.which].items()
        if name in (given.only or [name])
    }
    if given.machine:
        return alike(given.machine, players, given)
    order = product(players, given.seeds, given.instances, given.regimes)
    keys = [dict(zip(("player", "seed", "instances", "regime"), key, strict=True)) for key in order]
    for row in resumed(keys, lambda key: told(players[key["player"]], key), given.out):
        print(*row.values(), flush=True)  # noqa: T201
    return None


def resumed(
    keys: Sequence[dict[str, Any]],
    row: Callable[[dict[str, Any]], dict[str, Any]],
    out: Path | None,
) -> Iterator[dict[str, Any]]:
    """The row of each key, computed unless the file holds it; every new one is written at once."""
    kept: list[Any] = (
        pd.read_csv(out).to_dict("records") if out is not None and out.exists() else []
    )
    for key in keys:
        if any(all(one[name] == value for name, value in key.items()) for one in kept):
            continue
        kept.append(key | row(key))
        if out is not None:
            pd.DataFrame(kept).to_csv(out, index=False, float_format="%.4g")
        yield kept[-1]


def told(player: Player, key: dict[str, Any]) -> dict[str, Any]:
    """What is said of a player on a draw of episodes."""
    from interp.tasks.experts import sample

    start = time.process_time()
    episodes = sample(key["instances"], 100, 4, regime=key["regime"], seed=key["seed"])
    found = judged(player, episodes, key["seed"] - _SEED)
    row: dict[str, Any] = {"is": is_right(player, found), "verdict": called(found)}
    row |= {"closest": found.closest, "runner_up": found.runner_up}
    row |= {"nats": found.nats.estimate, "floor": found.floor_nats.estimate}
    row |= found.lead.columns("lead") | found.telling.columns("telling")
    if "gain" in found.intervals:
        row |= found.intervals["gain"].columns("gain")
    return row | {"seconds": time.process_time() - start}


def alike(machine: str, players: dict[str, Player], given: argparse.Namespace) -> None:
    """Does each player choose as a shipped model does? The model's own choices come first."""
    import interp
    from interp.choices.explain import explain_choices
    from interp.choices.fitting import predictor
    from interp.tasks.experts import sample
    from interp.tasks.experts.players import player_families

    model = interp.load(machine)
    for n in given.instances:
        for regime in given.regimes:
            episodes = sample(n, 100, 4, regime=regime, seed=7)
            pair = predictor(model)(episodes), predictor(model.untrained(0))(episodes)
            said = {machine: (pair[0][..., 1] > 0.5).astype(float)}
            said |= {name: choices(player, episodes) for name, player in players.items()}
            for name, chosen in said.items():
                found = explain_choices(
                    episodes, chosen, families=player_families(4), beside={machine: pair}
                )
                beside = found.beside[machine].measure
                line = f"{name:20} {n:3} {regime:12} {found.answer:32} {beside}"
                print(line, flush=True)  # noqa: T201


def coverage(repetitions: int, n: int, out: Path | None) -> None:
    """How often the interval of eta holds the true one, for players with and without noise."""
    from interp.stats.intervals import exact_share
    from interp.tasks.experts import sample

    def row(key: dict[str, Any]) -> dict[str, Any]:
        seed = key["seed"]
        eta = float(np.exp(np.random.default_rng([11, seed]).uniform(np.log(0.1), np.log(1.5))))
        episodes = sample(
            n, 100, 4, regime=("stratified", "flat", "anti-signal")[seed % 3], seed=1000 + seed
        )
        found = eta_interval(Player(noisy(weighted(eta), key["noise"])), episodes, seed)
        return {
            "eta": eta,
            "low": found.low,
            "high": found.high,
            "held": found.low <= eta <= found.high,
        }

    keys = [
        {"noise": rate, "instances": n, "seed": seed}
        for rate in (0.0, 0.05, 0.1)
        for seed in range(repetitions)
    ]
    rows = pd.DataFrame(resumed(keys, row, out))
    rows = pd.read_csv(out) if out is not None else rows
    for rate, some in rows.groupby("noise"):
        width = (some["high"] / some["low"]).median()
        held = exact_share(some["held"].to_numpy(bool))
        print(f"noise {rate:.2f}: {n} instances, held {held} of {len(some)}, width x{width:.2f}")  # noqa: T201


def eta_interval(player: Player, episodes: Any, seed: int) -> Any:
    """The interval of eta where Weighted Majority, and what keeps no memory, are all that is asked."""
    from interp.choices.explain import explain_choices
    from interp.tasks.experts.players import player_families

    asked = [
        family
        for family in player_families(4)
        if family.key == "weighted_majority" or family.memoryless
    ]
    return explain_choices(episodes, choices(player, episodes, seed), families=asked).intervals[
        "gain"
    ]


if __name__ == "__main__":
    main()
