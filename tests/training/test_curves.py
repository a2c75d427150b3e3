"""Learning curves: runs are grouped by what differs between them, and a mean over seeds is of all of them."""

import pandas as pd
import pytest

from interp.training.runs import learning_curves, over_seeds, shipped_curves
from interp.training.trainer import train
from tests.refusals import refuses
from tests.shell import printed
from tests.training.test_trainer import small


def run(folder, task="experts", **changes):
    train(
        small(task, stages=({"n_rounds": 3, "steps": 4},), eval_every=2, **changes),
        folder,
        name="tiny",
    )
    return folder


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """Two seeds of each update; of the last only half was run."""
    out = tmp_path_factory.mktemp("runs")
    folders = [
        run(out / f"{u}-{s}", latent_update=u, seed=s) for u in ("add", "replace") for s in (0, 1)
    ]
    metrics = folders[-1] / "metrics.jsonl"
    metrics.write_text("".join(line + "\n" for line in metrics.read_text().splitlines()[:2]))
    return folders


def test_runs_are_grouped_by_what_differs(runs):
    curves = learning_curves(runs)
    assert set(curves["setting"]) == {"latent_update=add", "latent_update=replace"}
    assert list(curves[curves["setting"] == "latent_update=add"]["step"]) == [2, 4, 2, 4]
    assert (
        curves["minutes"].is_monotonic_increasing
        or (curves.groupby(["setting", "seed"])["minutes"].diff() > 0).any()
    )
    assert set(learning_curves(runs[:2])["setting"]) == {"all alike"}


def test_where_runs_differ_in_several_settings_a_label_says_what_is_unusual(runs, tmp_path):
    slow = run(tmp_path / "slow", lr=5e-4)
    assert set(learning_curves([*runs[:3], slow])["setting"]) == {
        "as most",
        "latent_update=replace",
        "lr=0.0005",
    }


def test_curricula_of_equal_rounds_and_other_lengths_are_no_seeds_of_each_other(runs, tmp_path):
    longer = tmp_path / "longer"
    train(small(stages=({"n_rounds": 3, "steps": 6},), eval_every=2, seed=1), longer, name="tiny")
    curves = learning_curves([runs[0], longer])
    assert set(curves["setting"]) == {
        "stages=n_rounds 3, steps 4",
        "stages=n_rounds 3, steps 6",
    }
    assert (over_seeds(curves)["n_seeds"] == 1).all()


def test_runs_that_anneal_are_compared_with_those_that_do_not(runs, tmp_path):
    """A run's record leaves out ``anneal_latents`` where it is empty: its first run has a field more."""
    annealed = run(tmp_path / "annealed", latent_update="replace", anneal_latents=(1, 2))
    assert set(learning_curves([annealed, runs[2]])["setting"]) == {
        "anneal_latents=(1, 2)",
        "anneal_latents=none",
    }


def test_a_mean_is_over_every_seed(runs):
    """A step that one seed did not reach has no mean: it would jump there."""
    curves = learning_curves(runs)
    spread = over_seeds(curves)
    assert list(spread[spread["setting"] == "latent_update=replace"]["step"]) == [2]
    first = spread[(spread["setting"] == "latent_update=add") & (spread["step"] == 2)].iloc[0]
    seeds = curves[(curves["setting"] == "latent_update=add") & (curves["step"] == 2)]["excess"]
    assert first["mean"] == pytest.approx(seeds.mean())
    assert (first["low"], first["high"], first["n_seeds"]) == (seeds.min(), seeds.max(), 2)


def test_two_runs_of_one_seed_count_as_one_seed(runs):
    """Such as on two machines: their setting stays in the table, with the mean of both."""
    curves = learning_curves([runs[0]])
    other_run = curves.assign(excess=curves["excess"] + 1)
    spread = over_seeds(pd.concat([curves, other_run]))
    assert (spread["n_seeds"] == 1).all()
    assert list(spread["mean"]) == pytest.approx(list(curves["excess"] + 0.5))


def test_the_command_writes_what_ships_with_a_model(runs, tmp_path):
    printed("curves", *runs, "--out", tmp_path)
    assert (tmp_path / "learning.svg").read_text().count("<svg") == 1
    read = pd.read_csv(tmp_path / "learning.csv")
    pd.testing.assert_frame_equal(read, learning_curves(runs), check_dtype=False)
    pd.testing.assert_frame_equal(shipped_curves(str(tmp_path)), read)
    assert shipped_curves("wma-handwired") is None


def test_what_cannot_be_compared_is_refused(runs, tmp_path):
    refuses("no run was given", learning_curves, [])
    refuses("no training state", learning_curves, [tmp_path])
    second_run = run(tmp_path / "q", task="qlearning")
    refuses(
        "runs of one task can be compared, got experts and qlearning",
        learning_curves,
        [runs[0], second_run],
    )
