"""MDP episodes obey their definition, and bad ones are refused in one sentence."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from interp.errors import InputError
from interp.tasks import bellman, mdp


def test_episodes_follow_the_update_rule():
    """Every table is the previous one changed at (s_t, a_t) by alpha times the TD error, and nowhere else."""
    e = mdp.sample(20, 12, 4, 3, seed=1, alpha=0.3, gamma=0.8)
    for b in range(20):
        table = np.zeros((4, 3))
        for t in range(12):
            s, a, r, following = e.states[b, t], e.actions[b, t], e.rewards[b, t], e.next_states[b, t]
            table[s, a] = table[s, a] + 0.3 * (r + 0.8 * max(table[following]) - table[s, a])
            np.testing.assert_allclose(e.q_tables[b, t + 1], table, atol=1e-12)
            assert e.greedy[b, t] == int(np.argmax(e.q_tables[b, t + 1, following]))
