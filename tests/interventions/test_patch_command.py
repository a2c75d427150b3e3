"""What the patch command writes, and what it refuses."""

import json

import pandas as pd
import pytest

from interp import tasks
from interp.interventions import causal_tables
from interp.interventions.causal_tables import Sample
from tests.refusals import refuses


def test_patch_writes_tables_and_figures(wma, tmp_path):
    """A table, its choices, a heat map per exit and component and the round map, labelled by position.

    A flipped label shows in the state at once, and in predictions one round later.
    """
    _, model = wma
    result = causal_tables.patch(
        model, 3, components=("resid_pre", "head"), sample=Sample("flip-label", n_episodes=8, n_map=3)
    )
    written = {path.name for path in causal_tables.write(result, tmp_path)}
    assert written == {
        "patching.csv",
        "patching.json",
        "rounds.csv",
        "rounds.svg",
        *(f"{metric}-{part}.svg" for metric in ("logit_diff", "state") for part in ("resid_pre", "z")),
    }
    frame = pd.read_csv(tmp_path / "patching.csv")
    assert set(frame["round"]) == {3} and frame.groupby("metric")["read"].unique().to_dict() == {
        "logit_diff": 4,
        "state": 3,
    }
    told = json.loads((tmp_path / "patching.json").read_text())["metrics"]
    assert [one["metric"] for one in told] == ["logit_diff", "state"] and all(one["gap"] for one in told)
    assert ">p?</text>" in (tmp_path / "state-z.svg").read_text()
    for _, table in causal_tables.summary(result).groupby("metric"):
        assert table.effect.abs().is_monotonic_decreasing and set(table.site) <= set(frame.site)


def test_held_latents_leave_the_exit_at_which_a_corruption_shows(wma):
    result = causal_tables.patch(
        wma[1], 3, components=("latent",), propagate=False, sample=Sample("flip-label", n_episodes=4)
    )
    assert [swept.metric for swept in result.sweeps] == ["state"] and result.rounds is None


def test_the_tasks_own_corruption_is_the_default_and_help_names_all(wma):
    sample = Sample(n_episodes=4, n_map=0)
    assert causal_tables.patch(wma[1], 3, components=("latent",), sample=sample).corruption == "exchange-history"
    for task in tasks.every():
        for record in task.analysis.corruptions():
            assert record.key in causal_tables.corruption_names()
    assert "logit_diff" in causal_tables.metric_names()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"sample": Sample("change-reward", 4)}, "unknown corruption of experts episodes"),
        (
            {"sample": Sample("flip-label", 4), "propagate": False, "metrics": ["logit_diff"]},
            "shows in predictions only 1 round later",
        ),
        ({"round": -1}, "must be at least 0"),
    ],
)
def test_bad_input(wma, options, message):
    _, model = wma
    refuses(message, causal_tables.patch, model, **{"round": 3, **options})
