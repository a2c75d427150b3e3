"""A sweep gives what single probes give, wherever it runs, and takes up where it stopped; numbers of learned models."""

import json

import numpy as np
import pytest

import interp
import lab
import probes
from interp.stats.refit import sum_squared_deviations
from interp.tasks import experts, mdp
from interp.tasks.experts.layout import ExpertRound
from probes.controls import DESCRIPTIONS
from probes.fitting import fit_targets
from probes.targets import compute
from tests.machines import transformer
from tests.refusals import refuses

pytestmark = pytest.mark.usefixtures("one_session")

AT_W = [f"{name}[{layer}]@w?" for name in ("resid_post", "attn_out") for layer in (1, 2)]
SITES = [
    f"{name}[{layer}]@{position}"
    for name in ("resid_post", "attn_out")
    for layer in (1, 2)
    for position in ("<z>", "w?")
]
TARGETS = ["log_weights_centred", "log_weights_centred:before", "label"]


@pytest.fixture(scope="module")
def episodes():
    return experts.sample(n_episodes=25, n_rounds=12, n_experts=2, seed=0)


@pytest.fixture(scope="module")
def model():
    return interp.load("wma-handwired", n_experts=2)


@pytest.fixture(scope="module")
def swept(model, episodes):
    return probes.sweep(model, episodes, TARGETS, sites=SITES, windows=[(0, 6), (6, 12)], n_jobs=1)


@pytest.mark.long
def test_one_row_per_target_site_and_window(swept):
    frame = swept.to_frame()
    assert len(frame) == 3 * 8 * 2
    assert not frame.duplicated(["target", "site", "start"]).any()
    numbers = ["number", "low", "high"]
    numbers += ["control_number", "shuffled", "untrained", "inputs", "round"]
    for name in numbers:
        assert frame[name].notna().all(), name


@pytest.mark.long
def test_a_cell_is_the_probe_at_that_site(model, episodes, swept):
    """Scores, controls and word equal those of the single fit, on the window's rounds."""
    site, key = "resid_post[2]@w?", "log_weights_centred"
    (result,) = probes.probe(model, episodes, [key], sites=site, n_untrained=1)
    (alone,) = probes.sweep(model, episodes, [key], sites=site, n_jobs=1).frame.itertuples()
    assert (alone.verdict, alone.claim) == (result.verdict, result.measure.claim)
    untrained = result.controls["untrained"].score
    assert alone.untrained == pytest.approx(untrained.estimate, abs=1e-9)
    x = probes.read(interp.rollout(model, episodes, names_filter="blocks.2.hook_resid_post"), site)[
        :, 6:12
    ]
    target = probes.targets.get(key)(episodes, gain=0.5)
    (result,) = fit_targets(x, [target.rounds(6, 12)])
    row = (
        swept.to_frame()
        .query("target == 'log_weights_centred' and site == @site and start == 6")
        .iloc[0]
    )
    assert row.number == pytest.approx(result.r2, abs=1e-9)
    assert row.low == pytest.approx(result.number.low, abs=1e-9)
    for name, control in result.controls.items():
        assert row[name] == pytest.approx(control.score.estimate, abs=1e-6)


def test_the_map_is_the_circuits(swept):
    """Log-weights before the round at <z> from the start; after the round at w? only where head 3.2 has written."""
    frame = (
        swept.to_frame()
        .query("component == 'resid_post' and start == 6")
        .set_index(["target", "layer", "position"])
    )
    assert frame.number["log_weights_centred:before", 1, "<z>"] > 1 - 1e-9
    assert frame.number["log_weights_centred", 2, "w?"] > 1 - 1e-9
    assert (
        frame.number["log_weights_centred", 1, "w?"]
        < frame.number["log_weights_centred", 2, "w?"] - 0.005
    )
    assert frame.verdict["log_weights_centred", 2, "w?"] == "yes"
    assert frame.verdict["label", 2, "<z>"] == "no"
    # An untrained model carries the label to w? as well: its score there says nothing about these weights.
    assert frame.number["label", 1, "w?"] > 1 - 1e-9
    assert (
        frame.reason["label", 1, "w?"]
        == "an untrained copy comes too near (less than 3 times its odds)"
    )
    assert frame.detectable.between(0, 1).all()


@pytest.mark.long
@pytest.mark.parametrize("on_a_cluster", [False, True])
def test_workers_change_nothing(model, episodes, swept, on_a_cluster):
    """Threads, or workers of a dask scheduler, which get the model and the latents."""
    from dask.distributed import LocalCluster

    options = {"sites": AT_W, "windows": [(0, 6), (6, 12)], "n_jobs": 2}
    expected = swept.to_frame().query("position == 'w?'")
    if on_a_cluster:
        with LocalCluster(
            n_workers=2, threads_per_worker=1, processes=False, dashboard_address=None
        ) as cluster:
            again = probes.sweep(
                model, episodes, TARGETS, **options, scheduler=cluster.scheduler_address
            )
    else:
        again = probes.sweep(model, episodes, TARGETS, **options)
    numbers = expected.select_dtypes("number").columns
    frame = again.to_frame()
    np.testing.assert_allclose(frame[numbers], expected[numbers], atol=1e-9)
    assert frame["site"].tolist() == expected["site"].tolist()


@pytest.mark.long
def test_a_sweep_goes_on_where_it_stopped(model, episodes, swept, tmp_path):
    """Finished cells are read back, only missing ones are run, and another model or window shares nothing."""
    sites, expected = {"sites": AT_W}, swept.to_frame().query("position == 'w?'")

    def list_stored():
        return {(path, path.stat().st_mtime_ns) for path in tmp_path.glob("*.json")}

    def run(**changes):
        stored = list_stored()
        options = {"model": model, "windows": [(0, 6), (6, 12)], **changes}
        frame = probes.sweep(
            options.pop("model"), episodes, TARGETS, **sites, **options, cache=tmp_path, n_jobs=1
        ).to_frame()
        return frame, len(list_stored() - stored)

    first, n_first = run()
    gone = sorted(tmp_path.glob("*.json"))[:3]
    for path in gone:
        path.unlink()
    second, n_second = run()
    assert (n_first, n_second) == (8, 3)
    assert run()[1] == 0
    numbers = expected.select_dtypes("number").columns
    for frame in (first, second):
        assert frame["site"].tolist() == expected["site"].tolist()
        assert list(frame) == list(expected)
        np.testing.assert_allclose(frame[numbers], expected[numbers], atol=1e-9)
        assert frame["verdict"].tolist() == expected["verdict"].tolist()
    assert run(windows=[(0, 6), (5, 12)])[1] == 4
    for path in tmp_path.glob("*"):
        stored = json.loads(path.read_text())
        assert isinstance(stored["part"], list)


def test_cells_of_another_seed_model_or_target_are_kept_apart(model, episodes, tmp_path):
    """Each is kept under a digest of everything that it depends on."""
    weaker = interp.load("wma-handwired", n_experts=2, log_gamma=0.7)
    cases = [(model, "label", 0), (model, "label", 1), (weaker, "label", 0), (model, "votes", 0)]
    for swept_model, key, seed in [*cases, cases[0]]:
        probes.sweep(
            swept_model,
            episodes,
            [key],
            sites=["resid_post[1]@w?"],
            n_untrained=0,
            seed=seed,
            cache=tmp_path,
            n_jobs=1,
        )
    assert len(list(tmp_path.glob("*.json"))) == 4


@pytest.mark.long
def test_cells_of_another_number_of_untrained_copies_are_kept_apart(model, episodes, tmp_path):
    """The control is the best copy: three copies are not read back where one was stored."""
    site = {"sites": "resid_post[0]@p?", "n_jobs": 1}
    probes.sweep(model, episodes, ["label"], **site, n_untrained=1, cache=tmp_path)
    stored, fresh = (
        probes.sweep(model, episodes, ["label"], **site, n_untrained=3, cache=cache).frame
        for cache in (tmp_path, None)
    )
    assert stored["untrained"].tolist() == fresh["untrained"].tolist()


def test_episodes_that_are_drawn_again_give_noise_no_score():
    """Labels that no expert foresees, of twelve episodes that are drawn 128 times.

    An episode is in one fold alone. With the draws as episodes, R2 was .18 [.12, .23].
    """
    rng = np.random.default_rng(0)
    advice = rng.integers(2, size=(12, 10, 2))
    labels = rng.integers(2, size=(12, 10))
    twelve = experts.ExpertEpisodes(advice, labels, accuracies=np.full((12, 2), 0.5))
    drawn = twelve.select(rng.integers(12, size=128))
    with pytest.warns(UserWarning, match="12 independent episodes are few"):
        result = probes.sweep(
            transformer(ExpertRound(2)),
            drawn,
            ["label"],
            sites=["resid_post[0]@p?"],
            n_untrained=0,
            n_jobs=1,
        )
    frame = result.to_frame()
    assert result.settings["n_groups"] == 12
    low, high = frame["low"].item(), frame["high"].item()
    assert low < 0 < high


def test_heads_and_the_latent_can_be_swept(episodes):
    model = transformer(ExpertRound(2))
    sweep = probes.sweep(
        model,
        episodes,
        ["votes"],
        sites=["latent@<z>", "embed@<z>", "embed@p?", "head@<z>", "head@p?"],
        n_jobs=1,
    )
    frame = sweep.to_frame()
    expected = {"latent@<z>", "embed@<z>", "embed@p?"}
    for head in ("L0H0", "L0H1", "L1H0", "L1H1"):
        expected |= {f"{head}@<z>", f"{head}@p?"}
    assert set(frame["site"]) == expected


def test_figures(swept):
    figure = swept.heatmap("label", window=(6, 12))
    panels = [axis for axis in figure.axes if axis.get_images()]
    titles = [axis.get_title(loc="left") for axis in panels]
    assert titles == ["resid_post", "attn_out"]
    ticks = [text.get_text() for text in panels[-1].get_xticklabels()]
    assert ticks == ["<z>", "w?"]


def test_every_variable_that_varies_is_swept_by_default(episodes):
    keys = {value.key for value in compute(None, episodes)}
    assert {
        "log_weights",
        "log_weights:before",
        "counts",
        "evidence",
        "votes",
        "round_index",
    } <= keys
    assert not {"votes:before", "binding", "bayes.prediction"} & keys


def test_bad_input_is_told(model, episodes, swept):
    def sweep(**given):
        return probes.sweep(model, episodes, TARGETS, **{"sites": SITES, **given})

    refuses(
        r"window \(3, 40\) is not within the rounds; give 0 <= start < stop <= 12",
        sweep,
        windows=[(3, 40)],
    )
    refuses("no windows were given", sweep, windows=[])
    refuses(r"unknown position label 'w'; did you mean", sweep, sites="resid_post[1]@w")
    refuses("has no MLP", sweep, sites="mlp_out")
    refuses("unknown component 'resid'", sweep, sites="resid")
    refuses("layers 0 to 2", sweep, sites="resid_post[3]")
    refuses("'log_weights_centred:before' is constant", sweep, windows=[(0, 1)])
    refuses(
        "4 experts but this model's layout serves 2 experts",
        probes.sweep,
        model,
        experts.sample(n_episodes=25, n_rounds=5, n_experts=4),
        TARGETS,
    )
    refuses("unknown swept target 'votes'", swept.heatmap, "votes")
    refuses(
        r"window \(0, 12\) was not swept; these were: \(0, 6\), \(6, 12\)",
        swept.heatmap,
        "label",
        window=(0, 12),
    )


SLOW = pytest.mark.slow(
    reason="256 episodes of 100 rounds of the learned models: minutes on a laptop"
)


@SLOW
def test_wma_learned_holds_centred_log_weights():
    """R2 >= .97 over all rounds and at T = 100 alone; shuffled targets, the round and its inputs give nothing."""
    model = interp.load("wma-learned-additive")
    episodes = experts.sample(n_episodes=256, n_rounds=100, n_experts=4, seed=11)
    target = probes.targets.log_weights_centred(episodes)
    run = interp.rollout(model, episodes).latents[:, 1:]
    blank = interp.rollout(probes.untrained(model), episodes).latents[:, 1:]
    (overall,) = fit_targets(run, [target], copies=[(blank, None)])
    (last,) = fit_targets(run[:, 99:], [target.rounds(99, 100)], copies=[(blank[:, 99:], None)])
    for result in (overall, last):
        print(result)  # noqa: T201
        assert result.r2 >= 0.97
        assert result.number.low >= 0.96
        assert all(
            result.controls[name].score.estimate < 0.2 for name in ("shuffled", "round", "inputs")
        )


@SLOW
def test_qlearning_learned_additive_holds_columns_and_td_components():
    """Q-columns from the written latent R2 >= .85, the reward from its change >= .7; every TD component printed."""
    model = lab.load("qlearning-learned-additive")
    episodes = mdp.sample(n_episodes=256, n_rounds=50, n_states=4, n_actions=3, seed=11)
    columns = probes.probe(model, episodes, ["column", "column_visited"], sites="written")
    components = probes.probe(
        model,
        episodes,
        ["reward", "current_value", "bootstrapped_value", "td_error", "change"],
        sites="change",
    )
    for result in (*columns, *components):
        print(result)  # noqa: T201
        assert np.isfinite(result.number.low)
        assert np.isfinite(result.number.high)
    assert columns[0].r2 >= 0.85
    assert components[0].r2 >= 0.7


@pytest.mark.long
@pytest.mark.parametrize("per_round", [False, True], ids=["all rounds", "each round"])
def test_an_estimator_of_ones_own_is_scored_as_by_scikit_learn(per_round):
    """R2 of ``Ridge(10)`` at one site, by a loop over our folds with scikit-learn alone."""
    from sklearn.linear_model import Ridge

    episodes = experts.sample(n_episodes=25, n_rounds=6, n_experts=2, seed=3)
    model = interp.load("wma-handwired", n_experts=2).untrained(1)
    swept = probes.sweep(
        model,
        episodes,
        ["log_weights"],
        sites=["resid_post[1]@w?", "resid_post[2]@w?"],
        estimator=Ridge(10.0),
        per_round=per_round,
        n_jobs=1,
    )
    run = interp.rollout(model, episodes, names_filter=["blocks.2.hook_resid_post"])
    cache = run.cache["blocks.2.hook_resid_post"]
    position = model.layout.fit(episodes).position("w?")
    activations = cache[:, :, position].double().numpy()
    target = probes.targets.log_weights(episodes).values
    equal_folds = np.arange(25) % 5
    folds = np.random.default_rng(0).permutation(equal_folds)
    rows = swept.to_frame().query("layer == 2").set_index("start")["number"]
    assert list(rows.index) == (list(range(6)) if per_round else [0])
    for start, number in rows.items():
        rounds = slice(start, start + 1) if per_round else slice(None)
        x, y = activations[:, rounds], target[:, rounds]
        missed = 0.0
        for fold in range(5):
            train, test = folds != fold, folds == fold
            x_train, y_train = x[train].reshape(-1, x.shape[-1]), y[train].reshape(-1, 2)
            x_test, y_test = x[test].reshape(-1, x.shape[-1]), y[test].reshape(-1, 2)
            predicted = Ridge(10.0).fit(x_train, y_train).predict(x_test)
            missed += ((y_test - predicted) ** 2).sum()
        share_missed = missed / sum_squared_deviations(y).sum()
        assert number == pytest.approx(1 - share_missed)


@pytest.mark.long
def test_a_sweep_of_each_round_is_drawn_as_layers_by_rounds():
    from sklearn.linear_model import LogisticRegression
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    episodes = experts.sample(n_episodes=25, n_rounds=4, n_experts=2, seed=0)
    model = interp.load("wma-handwired", n_experts=2)
    swept = probes.sweep(
        model,
        episodes,
        ["label"],
        sites=["resid_post@p?", "resid_post@w?"],
        estimator=make_pipeline(StandardScaler(), LogisticRegression()),
        per_round=True,
        n_jobs=1,
    )
    frame = swept.to_frame()
    read = frame[(frame["layer"] == 1) & (frame["position"] == "w?")]
    assert read["start"].tolist() == [0, 1, 2, 3]
    assert (read["number"] == 1).all()
    figure = swept.plot()
    assert [axes.get_title(loc="left") for axes in figure.axes[:2]] == [
        "resid_post at p?",
        "resid_post at w?",
    ]
    image = figure.axes[1].images[0].get_array()
    assert image.shape == (frame["layer"].nunique(), 4)
    layers = list(dict.fromkeys(frame["layer"]))
    row_of_layer_1 = image[layers.index(1)]
    assert (row_of_layer_1 == 1).all()

    one_round = swept.heatmap("label", window=(1, 2))
    assert one_round.get_suptitle() == "label, rounds 1 to 1 (dots: yes)"
    assert one_round.axes[-1].get_ylabel() == figure.axes[-1].get_ylabel() == "skill"
    assert frame["unit"].eq("skill").all()
    keys = {description: key for key, description in DESCRIPTIONS.items()}
    named = frame[frame["control"] != ""]
    numbers_by_key = [row[keys[row["control"]]] for _, row in named.iterrows()]
    assert numbers_by_key == named["control_number"].tolist() != []


def test_estimators_and_rounds_of_a_sweep_are_checked_first(model, episodes):
    from sklearn.linear_model import LogisticRegression

    wrong = {"estimator": LogisticRegression(), "n_jobs": 1}
    refuses("is a number, not a class", probes.sweep, model, episodes, ["log_weights"], **wrong)
    refuses("regressor or classifier", probes.sweep, model, episodes, ["label"], estimator="ridge")
    options = {"windows": [(0, 2)], "per_round": True}
    refuses("not both", probes.sweep, model, episodes, ["label"], **options)


def test_several_sites_are_probed_one_after_the_other(model, episodes):
    """The results of two sites are those of each alone, in their order; a fit reads one."""
    sites = ["resid_post[2]@w?", "latents"]
    key = "log_weights_centred"
    together = probes.probe(model, episodes, [key], sites=sites, n_untrained=0)
    alone = [probes.probe(model, episodes, [key], sites=site, n_untrained=0)[0] for site in sites]
    assert [result.site for result in together] == sites
    assert [result.r2 for result in together] == [result.r2 for result in alone]
    refuses(
        "a fit reads one site, got a, b", probes.fit, np.zeros((2, 2, 1)), None, sites=["a", "b"]
    )
