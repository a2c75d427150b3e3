"""Probes and sweeps read any machine by the same calls, as in the shell: what it carries, its points, its cycles."""

import json
from functools import partial

import joblib
import numpy as np
import pandas as pd
import pytest
import torch

import interp
import interp.tasks
import probes
from interp.cli.options import name_folder
from interp.interventions.sites import COMPONENTS, resolve_site
from interp.interventions.sites import sites as list_sites
from interp.model import checkpoints
from interp.tasks import experts
from tests.handmade import leaky
from tests.machines import N_EXPERTS, cached, gru, loop, lstm
from tests.refusals import refuses
from tests.shell import printed

pytestmark = pytest.mark.usefixtures("one_session")

WIDE = 7
"""The width of a counter's clock: more than that of its counts."""
counter = partial(leaky, decay=1.0, gain=1.0, clock=WIDE)


@pytest.fixture(scope="module")
def episodes():
    return experts.sample(20, 8, N_EXPERTS, seed=0)


def test_what_is_carried_is_decoded_and_an_untrained_copy_is_no_better_than_its_control(episodes):
    """The counts are there by construction; a copy with random weights holds no more of them than another one."""
    machine = counter()
    (known,) = probes.probe(machine, episodes, ["counts"])
    assert known.r2 > 0.999
    assert known.verdict == "yes"
    assert known.settings["model"] == "leaky"
    assert known.settings["digest"] == machine.digest()
    assert known.controls["untrained"].score.estimate < 0.95
    (blank,) = probes.probe(machine.untrained(1), episodes, ["counts"])
    assert blank.verdict != "yes"


def test_moments_are_those_of_the_target(episodes):
    """Counts before the round are what it read, exactly, and those after it what it leaves; "latent" is "latents"."""
    machine = counter()
    for target, site, exact in (
        ("counts", "latents@h", True),
        ("counts:before", "latents@h", True),
        ("counts:before", "latent@h", True),
        ("counts", "latent@h", True),
        ("match", "hits", True),
    ):
        (result,) = probes.probe(machine, episodes, [target], sites=site, method="ridge")
        assert (result.r2 > 0.999) == exact, (target, site)


@pytest.mark.parametrize("when", ["before", "after"])
def test_a_state_is_read_at_latent_as_at_latents(episodes, when):
    """Once a state after the round was paired with the latents before it, because they are one letter apart."""
    machine = counter()
    target = probes.targets.counts(episodes, when)
    run = interp.rollout(machine, episodes, names_filter="hook_latents")
    with_padding = probes.read(run, "latent@h", when, machine)
    without_padding = probes.read(run, "latents@h", when, machine)
    assert torch.equal(with_padding[..., :N_EXPERTS], without_padding)
    options = {"n_untrained": 1, "model": machine}
    expected = probes.fit(run, target, sites="latents@h", **options).r2
    assert probes.fit(run, target, sites="latent@h", **options).r2 == pytest.approx(expected)
    key = target.key
    (result,) = probes.probe(machine, episodes, [key], sites="latent@h", n_untrained=1)
    assert result.r2 == pytest.approx(expected)
    swept = probes.sweep(machine, episodes, ["votes", key], sites="latent@h", n_jobs=1).to_frame()
    assert swept["target"].tolist() == ["votes", key]
    assert swept["number"][1] == pytest.approx(expected)


def test_a_state_after_the_round_needs_no_cache_of_the_latents(episodes):
    """The error once advised to cache hook_latents, which hold the state before the round."""
    run = interp.rollout(counter(), episodes)
    target = probes.targets.counts(episodes)
    assert probes.fit(run, target, sites="latent@h", n_untrained=0).r2 > 0.999
    before = probes.targets.counts(episodes, "before")
    message = (
        "names_filter=.*that is the state before each round, and 'latents', .* the state after"
    )
    refuses(message, probes.fit, run, before, sites="latent@h")


def test_channels_are_decoded_apart(episodes):
    """Each holds what the other does not, in its own width: the narrower one is not padded."""
    machine = counter()
    probe_by_channel = {
        (target, channel): probes.probe(machine, episodes, [target], sites=f"latents@{channel}")[0]
        for target in ("counts", "elapsed")
        for channel in ("h", "clock")
    }
    assert probe_by_channel["counts", "h"].r2 > 0.999
    assert probe_by_channel["elapsed", "clock"].r2 > 0.999
    assert probe_by_channel["counts", "clock"].r2 < 0.9
    assert probe_by_channel["elapsed", "h"].r2 < 0.999
    assert probe_by_channel["counts", "h"].shape == (N_EXPERTS,)
    assert probe_by_channel["counts", "clock"].shape == (WIDE,)
    assert probe_by_channel["counts", "h"].direction("e_1").shape == (N_EXPERTS,)


def test_the_channels_of_an_lstm_are_read_apart(episodes):
    """``c`` is decoded from ``c``; ``h``, a squashed and gated view of it, says less of it."""
    machine = lstm(seed=3)
    run = interp.rollout(machine, episodes)
    h, c = run.latents[:, 1:].unbind(2)
    assert torch.equal(probes.read(run, "latents@h", model=machine), h)
    assert torch.equal(probes.read(run, "latents@c", "before", machine), run.latents[:, :-1, 1])
    scores = {
        channel: probes.fit(
            run, c[..., :4], episodes=episodes, sites=f"latents@{channel}", model=machine
        ).r2
        for channel in ("h", "c")
    }
    assert scores["c"] > 0.999 > scores["h"] + 0.01


@pytest.mark.long
@pytest.mark.parametrize("make", [gru, lstm, loop, cached], ids=lambda make: make.__name__)
def test_every_site_of_a_machine_can_be_probed(make):
    """What it carries, each channel and row, each point at each cycle: all by name, with every control."""
    machine, few = make(seed=3), experts.sample(10, 3, N_EXPERTS, seed=1)
    points = []
    for key, kind in machine.points.items():
        layers = [f"{key}[{layer}]" for layer in range(kind.n_layers)] or [key]
        points += [f"{key}@{label}" for label in kind.labels] or layers
    sites = ["latents", *(f"latents@{channel.name}" for channel in machine.channels), *points]
    for site in sites:
        with pytest.warns(UserWarning, match="few"):
            (result,) = probes.probe(machine, few, ["counts"], sites=site, n_untrained=1)
        assert result.site == site
        assert set(result.controls) >= {
            "untrained",
            "inputs",
            "shuffled",
            "round",
        }
        assert np.isfinite(result.score.estimate)


def test_a_cache_is_read_whole_and_row_by_row():
    machine = cached(seed=0)
    run = interp.rollout(machine, experts.sample(3, 4, N_EXPERTS, seed=0))
    whole = probes.read(run, "latents@cache", model=machine)
    assert whole.shape == (3, 4, 6, 8)
    assert torch.equal(probes.read(run, "latents@cache_2", model=machine), whole[:, :, 1])
    length = probes.read(run, "latents@cache_length", model=machine).flatten(1)
    assert length.tolist() == [[1, 2, 3, 4]] * 3


def test_a_fitted_probe_reads_another_run_of_its_machine(episodes):
    """A result knows where it was read, in names that only its machine has; another machine's run is refused."""
    machine, others = counter(), experts.sample(6, 8, N_EXPERTS, seed=5)
    (result,) = probes.probe(machine, episodes, ["counts"], sites="latents@h")
    decoded = result.decode(interp.rollout(machine, others), others)
    np.testing.assert_allclose(decoded.values, decoded.true, atol=1e-3)
    refuses(
        "fitted on model 'leaky'",
        result.decode,
        interp.rollout(counter(gain=2.0).untrained(0), others),
    )
    site = resolve_site("hits", machine, machine.layout)
    run = interp.rollout(machine, episodes, names_filter=site.hook)
    assert torch.equal(probes.read(run, site), probes.read(run, "hits", model=machine))


@pytest.mark.parametrize(
    ("make", "site", "message"),
    [
        (gru, "latents@c", r"unknown channel of 'gru': 'c'. Valid: h"),
        (
            gru,
            "rest",
            r"unknown component 'rest'.*cell, latent, new, reset, update; or one of: latents, written",
        ),
        (gru, "reset@p\\?", r"takes no position"),
        (
            lstm,
            "written",
            r"a round of 'lstm' writes all that it carries, h, c; read latents, or one channel",
        ),
        (lstm, "change@c", r"takes no @"),
        (
            lstm,
            "update",
            r"'lstm' writes no update vector.*latents@h, latents@c, or one of its points, latent, forget",
        ),
        (loop, "block[3]", r"has layers 0 to 2"),
    ],
)
def test_sites_that_a_machine_does_not_have_are_refused_with_those_that_it_has(
    episodes, make, site, message
):
    refuses(message, probes.probe, make(), episodes, ["counts"], sites=site)


def test_without_its_machine_a_run_has_the_names_of_every_transformer(episodes):
    run = interp.rollout(lstm(), episodes)
    for site, message in (
        ("latents@h", "which nobody named; give model="),
        ("forget", "give model="),
    ):
        refuses(message, probes.read, run, site)
    refuses(
        "'change' is the one latent that a round writes, but a round of 'lstm' writes",
        probes.read,
        run,
        "change",
    )


def test_a_machine_s_own_points_come_before_the_words_of_the_room(episodes):
    """A GRU's update gate has the name of a transformer's update vector; change is that of the one row carried."""
    machine = gru(seed=3)
    run = interp.rollout(machine, episodes, names_filter=["points.update"])
    assert torch.equal(probes.read(run, "update", model=machine), run.cache["points.update"])
    change = run.latents[:, 1:] - run.latents[:, :-1]
    assert torch.equal(probes.read(run, "change"), change[:, :, 0])
    assert torch.equal(probes.read(run, "written", model=machine), run.latents[:, 1:, 0])


# Sweeps.


@pytest.fixture(scope="module")
def looped(episodes):
    return probes.sweep(
        loop(seed=3), episodes, ["match", "counts"], windows=[(0, 4), (4, 8)], n_jobs=1
    )


@pytest.mark.long
def test_a_sweep_of_a_loop_has_one_row_a_cycle(episodes, looped):
    """Cycles stand where layers do; a cell equals the probe at that cycle, with the control by a fresh copy."""
    frame = looped.to_frame()
    cycles = frame.query("component == 'block' and target == 'match' and start == 0")
    assert cycles["layer"].tolist() == [0, 1, 2]
    assert cycles["site"].tolist() == [
        "block[0]",
        "block[1]",
        "block[2]",
    ]
    assert len(frame) == 2 * 2 * (1 + 3)
    has_no_position = frame["position"].isna()
    assert has_no_position.sum() == 2 * 2 * 3
    assert cycles["number"].nunique() == 3
    assert frame["untrained"].notna().all()
    whole = probes.sweep(loop(seed=3), episodes, ["match"], sites="block[2]", n_jobs=1).to_frame()
    (result,) = probes.probe(
        loop(seed=3), episodes, ["match"], sites="block[2]", method="ridge", n_untrained=1
    )
    assert whole["number"].item() == pytest.approx(result.r2, abs=1e-9)
    untrained = result.controls["untrained"].score
    assert whole["untrained"].item() == pytest.approx(untrained.estimate, abs=1e-6)


def test_a_sweep_takes_every_point_of_a_machine_without_a_residual_stream(episodes):
    """In the order in which a round computes them; what is exactly there is found there and nowhere else."""
    frame = probes.sweep(counter(), episodes, ["counts:before", "match"], n_jobs=1).to_frame()
    assert frame["site"].unique().tolist() == ["latent@clock", "latent@h", "hits"]
    exact_rows = frame[frame["number"] > 0.999]
    exact = set(zip(exact_rows["target"], exact_rows["site"], strict=True))
    assert exact == {("counts:before", "latent@h"), ("match", "hits")}
    assert frame.set_index(["target", "site"])["verdict"]["counts:before", "latent@h"] == "yes"


def test_positions_are_asked_of_points_that_have_them(episodes):
    """Rows of what is carried are chosen by label; a point that is one vector is one site whatever is asked."""
    machine = lstm()
    for positions, expected in (
        ("c", ["latent@c", "forget", "output"]),
        (["p?"], ["forget", "output"]),
    ):
        listed = list_sites(machine, machine.layout, None, positions)
        swept = probes.sweep(machine, episodes, ["match"], sites=listed, n_jobs=1)
        assert swept.frame["site"].tolist() == expected


def test_workers_without_this_memory_run_the_round_again(episodes, looped):
    """Each hook's rounds are replayed from the latents, as on a cluster; a backend of processes is recognised."""
    with joblib.parallel_config(backend="loky", n_jobs=1):
        windows = [(0, 4), (4, 8)]
        again = probes.sweep(loop(seed=3), episodes, ["match", "counts"], windows=windows, n_jobs=1)
    pd.testing.assert_frame_equal(again.to_frame(), looped.to_frame(), atol=1e-9)


def test_the_map_of_a_loop_draws_cycles_and_what_has_none(looped):
    figure = looped.heatmap("match", window=(4, 8))
    latent, block = figure.axes[:2]
    assert [label.get_text() for label in block.get_yticklabels()] == [
        "layer 0",
        "layer 1",
        "layer 2",
    ]
    assert [label.get_text() for label in latent.get_yticklabels()] == [""]
    assert [label.get_text() for label in block.get_xticklabels()] == ["h", ""]
    expected = looped.to_frame().query("component == 'block' and target == 'match' and start == 4")[
        "number"
    ]
    image = block.images[0].get_array()
    np.testing.assert_allclose(image[:, 1], expected)


def test_an_untrained_copy_that_runs_away_is_no_control(episodes):
    """Squares of its activations overflow; the cells are scored by the other controls."""
    machine = counter()

    def explode(module):
        module.reset_parameters()
        module.gain.data.fill_(1e200)

    machine.reset = explode
    frame = probes.sweep(machine, episodes, ["match"], sites="hits", n_jobs=1).to_frame()
    latents = probes.sweep(
        machine, episodes, ["counts:before"], sites="latent@h", n_jobs=1
    ).to_frame()
    assert frame["untrained"].notna().all()
    assert latents.set_index("position")["untrained"].isna()["h"]
    assert latents.set_index("position")["number"]["h"] > 0.999


# The command.


@pytest.mark.long
def test_a_registered_machine_is_probed_from_the_shell(builders, tmp_path):
    """By name at one site, and from a checkpoint folder everywhere."""
    interp.register_machine("own-lstm", lstm, description="an LSTM", task="experts")
    folder = checkpoints.save_checkpoint(interp.load("own-lstm", seed=3), tmp_path / "saved")
    words = ["--episodes", "16", "--rounds", "5", "--targets", "counts", "--out", str(tmp_path)]
    assert "reads the counts of right votes from the channel c" in printed(
        "probe", "own-lstm", *words, "--site", "latents@c"
    )
    printed("probe", folder, *words, "--sweep", "--jobs", "1")
    sites = pd.read_csv(tmp_path / name_folder(str(folder)) / "sweep.csv")["site"].tolist()
    assert sites == ["latent@h", "latent@c", "forget", "output"]


SMALL = [
    "--experts",
    "1",
    "--episodes",
    "20",
    "--rounds",
    "8",
    "--targets",
    "log_weights",
    "counts",
]


@pytest.mark.long
def test_probes_at_a_site(tmp_path):
    result = printed(
        "probe", "wma-handwired", *SMALL, "--site", "resid_post[1]@w?", "--out", tmp_path
    )
    assert "reads the log-weights from the activations at resid_post[1]@w?" in result
    folder = tmp_path / "wma-handwired"
    frame = pd.read_csv(folder / "probes.csv")
    assert set(frame["target"]) == {"log_weights", "counts"}
    assert "untrained" in set(frame["fitted"])
    settings = json.loads((folder / "probes.json").read_text())
    assert settings["counts"]["model"] == "wma-handwired"
    assert settings["counts"]["n_episodes"] == 20
    assert settings["counts"]["verdict"] in ("yes", "no", "undecided")
    assert (folder / "log_weights.svg").stat().st_size > 1000


@pytest.mark.long
def test_what_a_task_names_is_probed_by_default(tmp_path):
    """Sampled to the model's own sizes; the files are named after the task's variables."""
    sizes = ["--nodes", "6", "--edges", "6", "--episodes", "6", "--rounds", "4"]
    printed("probe", "reachability-handwired", *sizes, "--out", tmp_path)
    settings = json.loads((tmp_path / "reachability-handwired" / "probes.json").read_text())
    probed = interp.tasks.get("reachability").analysis.probed
    assert set(settings) == set(probed)


def test_the_help_lists_what_the_registries_hold():
    result = printed("probe", "--help", env={"COLUMNS": "10000"})
    for task in interp.tasks.list_tasks():
        keys = [target.key for target in probes.targets.every(task)]
        assert all(key in result for key in keys if "." not in key)
        assert all(f"--{size.option}" in result for size in task.sizes)
    assert all(f" {component}" in result for component in COMPONENTS)
