"""Simulated players whose algorithm is known, through the protocol of the language models, and what is said of them.

    python -m tests.llm.players [--instances 10 30 90] [--unseen] [--coverage 60] [--table]

prints one row for each player, regime and number of instances: what it is called, whether that is right, its held-out
loss and agreement, and eta with its interval. The first twelve were looked at while thresholds were chosen; the six
``UNSEEN`` were not. ``--table`` prints a row for each player from ``docs/players.csv``, which these commands made; its
column "before" is what the analysis that :mod:`circuits.compare.players` replaced (at 15495d8^) called closest on the
same choices. ``--coverage`` prints how often the interval of eta holds the true one.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from interp.llm.schemes import Message, read_message

Bits = NDArray[np.int64]
Rule = Callable[[Bits, Bits, Bits, float], int]
"""Earlier votes ``[round, expert]``, earlier labels ``[round]``, the votes of this round and a number from U[0, 1]."""


def weighted(eta: float, decay: float = 1.0, window: int = 10**6, last: int = 10**6, share: float = 0.0) -> Rule:
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
    return int(now[int(np.argmax((votes == labels[:, None]).sum(0)))])


def winners(votes: Bits, labels: Bits, now: Bits, u: float) -> int:
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
    return lambda v, y, now, u: rule(np.delete(v, expert, 1), y, np.delete(now, expert), u)


def switching(before: Rule, after: Rule, at: int) -> Rule:
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
    "WM .4 fading .8": Player(weighted(0.4, decay=0.8), ("fading_majority",)),
    "WM 1 of the last 5": Player(weighted(1.0, window=5), ("majority_window",)),
    "fixed share .1": Player(weighted(0.7, share=0.1), ("fixed_share",)),
    "WM .5, one round of five wrong": Player(noisy(weighted(0.5), 0.2)),
    "win stay, lose shift": Player(win_stay),
    "says 1 every other round": Player(lambda v, y, now, u: len(y) % 2),
}


def choices(player: Player, episodes: Any, seed: int = 0) -> NDArray[np.float64]:
    """What a player says ``[episode, round]``."""
    u = np.random.default_rng(seed).random(episodes.labels.shape)
    return np.array(
        [
            [float(player.rule(votes[:t], labels[:t], votes[t], luck[t])) for t in range(len(labels))]
            for votes, labels, luck in zip(episodes.advice, episodes.labels, u, strict=True)
        ]
    )


def as_agent(player: Player, luck: NDArray[np.float64]) -> Callable[[Sequence[Message]], str]:
    """The player behind the protocol: it reads the whole conversation and answers in JSON."""

    def agent(messages: Sequence[Message]) -> str:
        told = [read_message(message) for message in messages if message["role"] == "user"]
        bits = {"rainy": 0, "sunny": 1, 0: 0, 1: 1}
        asked = [[bits[v] for k, v in body.items() if k.startswith("Expert_")] for body in told if "Expert_A" in body]
        truth = [body.get("actual_weather", body.get("true_label")) for body in told if body["turn_type"] == "feedback"]
        votes, labels = np.array(asked[:-1]).reshape(-1, len(asked[-1])), np.array([bits[t] for t in truth], int)
        said = player.rule(votes, labels, np.array(asked[-1]), float(luck[len(labels)]))
        return json.dumps({"prediction": ("rainy", "sunny")[said] if told[-1]["turn_type"] == "forecast" else said})

    return agent


def judged(player: Player, episodes: Any, seed: int = 0) -> Any:
    """What is said of a player's choices."""
    from circuits.compare.choices import explain_choices
    from interp.tasks.experts.players import player_families

    families = player_families(episodes.n_experts)
    return explain_choices(episodes, choices(player, episodes, seed), families=families)


def is_right(player: Player, found: Any) -> str:
    """ "right", "wrong", or "undecided" where a name was due."""
    if not player.right:
        return "wrong" if found.verdict == "named" else "right"
    return "undecided" if found.verdict != "named" else "right" if found.family in player.right else "wrong"


def table() -> str:
    """A row for each player, in Markdown: what it is called on 10 instances of each regime."""
    found = pd.read_csv(Path(__file__).parents[2] / "docs" / "players.csv")
    found = found[found["instances"] == 10]
    called = found["closest"].str.replace("_", " ").where(found["verdict"] == "named", found["verdict"])
    lines = ["| player | before | now |", "| --- | --- | --- |"]
    for player, rows in found.assign(now=called).groupby("player", sort=False):
        cells = (rows[column] if rows[column].nunique() > 1 else rows[column].head(1) for column in ("before", "now"))
        lines.append(f"| {player} | {' | '.join(', '.join(cell) for cell in cells)} |")
    return "\n".join(lines)


def main() -> None:
    from interp.tasks.experts import sample

    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--instances", type=int, nargs="+", default=[10, 30, 90])
    parser.add_argument("--regimes", nargs="+", default=["stratified", "flat", "anti-signal"])
    parser.add_argument("--unseen", action="store_true")
    parser.add_argument("--coverage", type=int, default=0, help="Repetitions of the coverage of eta.")
    parser.add_argument("--only", nargs="+", default=None)
    parser.add_argument("--out", default=None, help="A CSV file for the table.")
    parser.add_argument("--machine", default=None, help="Instead: does each player choose as this model does?")
    parser.add_argument("--table", action="store_true", help="Print docs/players.csv in short, and play nothing.")
    given = parser.parse_args()
    if given.table:
        return print(table())  # noqa: T201
    if given.coverage:
        return coverage(given.coverage, given.instances[0])
    players = UNSEEN if given.unseen else SEEN
    if given.machine:
        return alike(given.machine, {name: players[name] for name in given.only or players}, given)
    rows = []
    for name in given.only or players:
        for n in given.instances:
            for regime in given.regimes:
                player, start = players[name], time.process_time()
                found = judged(player, sample(n, 100, 4, regime=regime, seed=7))
                rows.append({"player": name, "instances": n, "regime": regime, "is": is_right(player, found)})
                rows[-1] |= {"verdict": found.verdict, "closest": found.closest, "runner_up": found.runner_up}
                rows[-1] |= {"nats": found.nats.estimate, "floor": found.floor_nats.estimate}
                rows[-1] |= found.lead.columns("lead") | found.telling.columns("telling")
                if "gain" in found.intervals:
                    rows[-1] |= found.intervals["gain"].columns("gain")
                print(*rows[-1].values(), f"{time.process_time() - start:.1f} s", flush=True)  # noqa: T201
                if given.out:
                    pd.DataFrame(rows).to_csv(given.out, index=False, float_format="%.4g")
    return None


def alike(machine: str, players: dict[str, Player], given: argparse.Namespace) -> None:
    """Does each player choose as a shipped model does? The model's own choices come first."""
    import interp
    from circuits.compare.choices import explain_choices
    from circuits.compare.fitting import predictor
    from interp.tasks.experts import sample
    from interp.tasks.experts.players import player_families

    model = interp.load(machine)
    for n in given.instances:
        for regime in given.regimes:
            episodes = sample(n, 100, 4, regime=regime, seed=7)
            pair = predictor(model)(episodes), predictor(model.fresh(0))(episodes)
            said = {machine: (pair[0][..., 1] > 0.5).astype(float)}
            said |= {name: choices(player, episodes) for name, player in players.items()}
            for name, chosen in said.items():
                found = explain_choices(episodes, chosen, families=player_families(4), beside={machine: pair})
                print(f"{name:20} {n:3} {regime:12} {found.answer:32} {found.beside[machine]}", flush=True)  # noqa: T201


def coverage(repetitions: int, n: int) -> None:
    """How often the interval of eta holds the true one, for players with and without noise."""
    from interp.tasks.experts import sample

    rng = np.random.default_rng(11)
    for rate in (0.0, 0.05, 0.1):
        held, width = [], []
        for seed in range(repetitions):
            eta = float(np.exp(rng.uniform(np.log(0.1), np.log(1.5))))
            episodes = sample(n, 100, 4, regime=("stratified", "flat", "anti-signal")[seed % 3], seed=1000 + seed)
            found = eta_interval(Player(noisy(weighted(eta), rate)), episodes, seed)
            held.append(found.low <= eta <= found.high)
            width.append(found.high / found.low)
        print(  # noqa: T201
            f"noise {rate:.2f}: {n} instances, held {np.mean(held):.3f} of {len(held)}, width x{np.median(width):.2f}"
        )


def eta_interval(player: Player, episodes: Any, seed: int) -> Any:
    """The interval of eta where Weighted Majority, and what keeps no memory, are all that is asked."""
    from circuits.compare.choices import explain_choices
    from interp.tasks.experts.players import player_families

    asked = [family for family in player_families(4) if family.key == "weighted_majority" or family.memoryless]
    return explain_choices(episodes, choices(player, episodes, seed), families=asked).intervals["gain"]


if __name__ == "__main__":
    main()
