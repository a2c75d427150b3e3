"""Steps per second of handwired Q-learning, batch 256, against the NumPy learner, as |S| and |A| grow.

The cost law: one dense forward over T = 3 |A| + 10 positions of width d = 3 (|S| + |A| + 6) + T + 1, so
O(T d (heads d_head) + T^2 heads d_head) a step; the NumPy learner's update is O(1) a step and episode.
"""

from functools import partial

import interp
from interp.tasks import mdp
from interp.workers import one_thread
from tests.benchmarks.rollout import seconds

BATCH, ROUNDS = 256, 10
SIZES = ((4, 2), (8, 4), (16, 8))


@one_thread()
def main() -> None:
    print(
        f"{'|S| x |A|':>10} {'positions':>9} {'d_model':>8} {'transformer':>14} {'NumPy':>14} {'ratio':>8}   (steps/s)"
    )
    for n_states, n_actions in SIZES:
        episodes = mdp.sample(BATCH, ROUNDS, n_states, n_actions, seed=0)
        model = interp.load("qlearning-handwired", n_states=n_states, n_actions=n_actions)
        steps = BATCH * ROUNDS
        taken = seconds(partial(interp.rollout, model, episodes, commit="target"), episodes.relearned, repeats=3)
        ours, theirs = (steps / each for each in taken)
        size, sizes = f"{n_states} x {n_actions}", (model.layout.n_positions, model.config.d_model)
        print(f"{size:>10} {sizes[0]:9} {sizes[1]:8} {ours:14,.0f} {theirs:14,.0f} {theirs / ours:8.1f}")


if __name__ == "__main__":
    main()
