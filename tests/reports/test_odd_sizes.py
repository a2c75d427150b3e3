"""Pages at sizes that nobody had in mind: every part is computed, or says what this size lacks."""

from __future__ import annotations

from pathlib import Path

import pytest

import interp
from reports.build import write

ODD: list[tuple[str, dict[str, int], int, int]] = [
    ("wma-handwired", {"n_experts": 1}, 5, 10),
    ("wma-handwired", {"n_experts": 2}, 16, 11),
    ("wma-handwired", {"n_experts": 7}, 7, 13),
    ("wma-handwired", {"n_experts": 17}, 6, 10),
    ("wma-learned", {}, 5, 10),
    ("wma-learned", {}, 17, 31),
    ("wma-learned-wide", {}, 7, 19),
    ("wma-gru", {}, 6, 10),
    ("qlearning-handwired", {"n_states": 1, "n_actions": 1}, 5, 10),
    ("qlearning-handwired", {"n_states": 1, "n_actions": 3}, 6, 10),
    ("qlearning-handwired", {"n_states": 3, "n_actions": 1}, 7, 12),
    ("qlearning-handwired", {"n_states": 5, "n_actions": 2}, 9, 11),
    ("qlearning-learned", {}, 5, 10),
    ("reachability-handwired", {"n_nodes": 9, "n_edges": 8}, 5, 6),
    ("reachability-handwired", {"n_nodes": 10, "n_edges": 14}, 16, 6),
    ("reachability-learned", {}, 7, 6),
]
"""Model, sizes, episodes, rounds."""


@pytest.mark.slow(reason="sixteen quick reports: two to three minutes of one core")
@pytest.mark.parametrize(("name", "sizes", "n_episodes", "n_rounds"), ODD)
def test_an_odd_size_gives_a_page(
    name: str, sizes: dict[str, int], n_episodes: int, n_rounds: int, tmp_path: Path
) -> None:
    model = interp.load(name, **sizes)
    written = write(model, tmp_path, n_episodes=n_episodes, n_rounds=n_rounds, source=name, arguments=sizes, quick=True)
    assert not written.failures and "Not computed" not in written.path.read_text("utf-8")
