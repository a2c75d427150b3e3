"""A model that others trained, from its arrays to a report: the GRU of the wheel ``g2p-en`` says words.

Does its state hold the letters that are still to come, are they used, and in which round? ``examples/speaker.py`` makes
the machine. ``pip download --no-deps g2p-en``, and ``python examples/g2p.py g2p_en-2.1.0-py3-none-any.whl [FOLDER]``.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from speaker import LETTERS, PHONEMES, N, Speaker, Words, machine, task

import interp.tasks
import probes
from interp.interventions.patching import sweep
from interp.stats.intervals import mean_interval
from reports.build import write

SEEDS = (0, 1, 2)
"""Of the words, of the splits, of untrained copies and of random directions."""


def states(of: Any, words: Words) -> np.ndarray:
    """What the decoder's state is as each round begins, ``[word, round, 256]``."""
    return interp.rollout(of, words, names_filter="points.state").cache["points.state"].numpy()


def holds(g2p: Any, n: int) -> pd.DataFrame:
    """How often letters still to come are read from the state of held-out words, round by round, and from controls."""
    rows = []
    for seed in SEEDS:
        words = g2p.module.sample(n, seed=seed)
        held, blank = states(g2p, words), states(g2p.untrained(seed), words)
        before = np.eye(len(PHONEMES))[
            np.pad(words.said, ((0, 0), (1, 0)))[:, :N]
        ]  # the phoneme that was said last
        for letter, t in ((i, t) for i in (2, 4) for t in range(i + 1)):
            controls = {
                "untrained": blank[:, [t]],
                "inputs": before[:, [t]],
                "seed": seed,
                "method": "logistic",
            }
            found = probes.fit(held[:, [t]], words.letters[:, :, [letter]], **controls)
            row = {"letter": letter + 1, "round": t, "seed": seed, **found.score.columns("share")}
            row |= {
                name: found.controls[name].score.estimate
                for name in ("shuffled", "untrained", "inputs")
            }
            rows.append({**row, "word": found.verdict})
    return pd.DataFrame(rows)


def moves(g2p: Any, n: int) -> pd.DataFrame:
    """How often held-out words are said as the other word all through, once their last letter is moved in the state."""
    rows = []
    for seed, t in ((seed, t) for seed in SEEDS for t in range(N)):
        words, rng = g2p.module.sample(2 * n, seed=10 + seed), np.random.default_rng(seed)
        known, (base, other) = (
            words.select(slice(n)),
            g2p.module.other_ending(words.select(slice(n, None))),
        )
        spelt, here, there = (
            np.eye(len(LETTERS))[of.letters].reshape(len(of), -1) for of in (known, base, other)
        )
        to_states = (there - here) @ np.linalg.solve(
            spelt.T @ spelt + np.eye(spelt.shape[1]), spelt.T
        )
        held, blank = (states(of, known)[:, t] for of in (g2p, g2p.untrained(seed)))
        move, drawn = to_states @ (held - held.mean(0)), rng.standard_normal((len(base), 256))
        of_untrained = to_states @ (blank - blank.mean(0))
        tried = {
            "its own": move,
            "random": drawn,
            "another word's": np.roll(move, 1, 0),
            "untrained": of_untrained,
        }
        length = np.linalg.norm(move, axis=1, keepdims=True)
        for name, by in tried.items():
            by = torch.tensor(by * length / np.linalg.norm(by, axis=1, keepdims=True))
            edit = {t: [("points.state", lambda h, hook, by=by: h + by.to(h))]}
            said = interp.rollout(g2p, base, fwd_hooks=edit).predictions.argmax(-1).numpy()
            right = mean_interval((said == other.said).all(1)).columns("share")
            rows.append({"move": name, "round": t, "seed": seed, "n": len(base), **right})
    return pd.DataFrame(rows)


def main(wheel: str, folder: Path, n: int = 300) -> dict[str, Any]:
    """The letters that are read, the words that are moved, what patches of one round carry, and a report's page."""
    speaker = Speaker(wheel)
    interp.tasks.register(task(speaker))
    g2p = machine(speaker)
    pair = speaker.other_ending(speaker.sample(200, seed=99))
    every = pd.concat(sweep(g2p, *pair, t, read_round=N - 1).to_frame() for t in range(N))
    patched = every.pivot(index="site", columns="round", values="fraction")
    found = {"read": holds(g2p, n), "moved": moves(g2p, n), "patched": patched}
    print(*(table.round(2).to_string() for table in found.values()), sep="\n\n")
    return {**found, "page": write(g2p, out=folder, n_episodes=40, n_rounds=2 * N, quick=True).path}


if __name__ == "__main__":
    print(main(sys.argv[1], Path(*sys.argv[2:3] or ["output/g2p"]))["page"])
