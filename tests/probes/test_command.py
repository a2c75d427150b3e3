"""``interp probe``: tables and figures from the shell (``test_kills`` kills its sweep)."""

import json

import pandas as pd

import interp.tasks
import probes
from interp.interventions.sites import COMPONENTS
from tests.shell import printed

SMALL = ["--experts", "1", "--episodes", "20", "--rounds", "8", "--targets", "log_weights", "counts"]


def test_probes_at_a_site(tmp_path):
    result = printed("probe", "wma-handwired", *SMALL, "--site", "resid_post[1]@w?", "--out", tmp_path)
    assert "The activations at resid_post[1]@w? hold the log-weights" in result
    folder = tmp_path / "wma-handwired"
    frame = pd.read_csv(folder / "probes.csv")
    assert set(frame["target"]) == {"log_weights", "counts"} and "untrained" in set(frame["fitted"])
    settings = json.loads((folder / "probes.json").read_text())
    assert settings["counts"]["model"] == "wma-handwired" and settings["counts"]["n_episodes"] == 20
    assert settings["counts"]["word"] in ("yes", "no", "undecided")
    assert (folder / "log_weights.svg").stat().st_size > 1000


def test_what_a_task_names_is_probed_by_default(tmp_path):
    """Sampled to the model's own sizes; the files are named after the task's variables."""
    sizes = ["--states", "2", "--actions", "2", "--episodes", "6", "--rounds", "4"]
    printed("probe", "qlearning-handwired", *sizes, "--out", tmp_path)
    settings = json.loads((tmp_path / "qlearning-handwired" / "probes.json").read_text())
    assert set(settings) == set(interp.tasks.get("qlearning").analysis.probed)


def test_the_help_lists_what_the_registries_hold():
    result = printed("probe", "--help", env={"COLUMNS": "10000"})
    for task in interp.tasks.every():
        assert all(target.key in result for target in probes.targets.every(task) if "." not in target.key)
        assert all(f"--{size.option}" in result for size in task.sizes)
    assert all(f" {component}" in result for component in COMPONENTS)
