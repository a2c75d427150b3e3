"""What the patch command writes, and what it refuses."""

from __future__ import annotations

import json

import pandas as pd
import pytest

from interp import tasks
from interp.errors import InputError
from interp.interventions import command


def test_patch_writes_tables_and_figures(wma, tmp_path):
    """A table, its choices, a heat map per component and the round map, labelled by position."""
    _, model = wma
    result = command.patch(model, 3, "flip-label", n_episodes=8, n_map=3)
    written = {path.name for path in command.write(result, tmp_path)}
    assert written == {
        "patching.csv",
        "patching.json",
        "resid_pre.svg",
        "attn_out.svg",
        "z.svg",
        "rounds.csv",
        "rounds.svg",
    }
    frame = pd.read_csv(tmp_path / "patching.csv")
    assert set(frame["round"]) == {3} and set(frame["read"]) == {4}
    assert json.loads((tmp_path / "patching.json").read_text())["metric"] == "logit_diff"
    assert ">p?</text>" in (tmp_path / "z.svg").read_text()
    table = command.summary(result.sweep)
    assert table.effect.abs().is_monotonic_decreasing and set(table.site) <= set(frame.site)


def test_the_tasks_own_corruption_is_the_default_and_help_names_all(wma):
    assert command.patch(wma[1], 3, n_episodes=4, n_map=0, components=("latent",)).corruption == "exchange-history"
    for task in tasks.every():
        for record in task.corruptions():
            assert record.key in command.corruption_names()
    assert "logit_diff" in command.metric_names()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"corruption": "change-reward"}, "unknown corruption of experts episodes"),
        ({"corruption": "flip-label", "propagate": False}, "shows in predictions only 1 round later"),
        ({"corruption": "flip-vote", "round": -1}, "must be at least 0"),
    ],
)
def test_bad_input(wma, options, message):
    _, model = wma
    with pytest.raises(InputError, match=message):
        command.patch(model, **{"round": 3, "n_episodes": 4, **options})
