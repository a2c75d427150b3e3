"""Every causal table of a model with its controls; claims; what the command writes; and of a task of one's own."""

import json
from dataclasses import fields, replace

import numpy as np
import own_task
import pandas as pd
import pytest
import torch
from numpy.testing import assert_allclose
from torch.testing import assert_close

import circuits
import interp
from interp import tasks
from interp.choices.recorded import fit_cell
from interp.core import catalog
from interp.interventions import causal_tables
from interp.interventions.ablation import CircuitScorer, random_circuits, smallest
from interp.interventions.causal_tables import Sample
from interp.interventions.edge_graph import attribute
from interp.interventions.experiment import Outcome
from interp.interventions.interchange import Claim, carriers, interchange
from interp.interventions.pairs import corruption, prepare
from interp.interventions.steering import Doses, fitted_direction, state_direction, steer
from interp.model.rollout import rollout
from interp.stats.decoder import RIDGE, Decoder
from interp.support.session import session
from interp.tasks import Analysis, bandit, experts
from interp.tasks.experts.algorithms import weighted_majority
from tests.machines import transformer
from tests.refusals import refuses

NAMES = {
    "patching",
    "interchange",
    "alignment",
    "steering",
    "edges",
    "faithfulness",
    "circuit",
    "ablation",
}


def make_tables(model, round, **options):
    """Make every table, as ``interp patch --tables`` does in parts."""
    by_name = {}
    for make in causal_tables.table_makers(model, round, **options).values():
        by_name |= make()
    return by_name


@pytest.mark.long
@pytest.mark.parametrize(
    "kind",
    [
        "learned",
        pytest.param("handwired", marks=pytest.mark.slow),
    ],  # slow: the same again, on wider heads
)
def test_tables_of_expert_models(kind, untrained, wma):
    """The same tables for both kinds; each analysis carries its control, or says why it has no result."""
    model = untrained if kind == "learned" else wma[1]
    results = make_tables(
        model, 4, smooth=circuits.differentiable(model), sample=Sample(n_episodes=4)
    )
    refused = results["alignment"].refused.str.contains("give more episodes")
    assert set(results) == NAMES
    assert refused.all()
    assert results["alignment"].iia.isna().all()
    assert {"random", "chance_informative", "low", "high"} < set(results["interchange"].columns)
    assert results["interchange"].control.sum() == 2
    assert {"random", "algorithm", "model"} < set(results["steering"].columns)
    assert {"random_mean", "random_cpr", "cpr", "cmd"} < set(results["faithfulness"].columns)
    metrics_of_ablations = results["ablation"].groupby("ablation").metric.unique()
    assert set(metrics_of_ablations.index) == {"resample", "mean", "zero"}
    for metrics in metrics_of_ablations:
        assert set(metrics) == {"logit_diff", "state"}
    assert set(results["patching"].corruption) == {
        "flip-vote",
        "flip-label",
        "swap-histories",
        "exchange-history",
    }


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["learned", "handwired"])
def test_tables_of_q_learning_models(kind, untrained_q):
    """Slow because the handwired model has 19 positions, 4 layers of 6 heads and DAS runs nine times."""
    model = untrained_q
    if kind == "handwired":
        model = circuits.compile_circuit(
            circuits.build("qlearning-handwired", n_states=3, n_actions=2)
        ).eval()
    smooth, sample = circuits.differentiable(model), Sample(n_episodes=8)
    assert set(make_tables(model, 4, smooth=smooth, sample=sample)) == NAMES


def test_a_task_without_a_steering_has_the_other_tables():
    episodes = bandit.sample(8, 10, 2, "reversal", seed=0)
    machine = fit_cell(episodes, n_folds=2, steps=1).machine
    assert set(make_tables(machine, 4, sample=Sample(n_episodes=8))) == NAMES - {"steering"}


def test_edges_of_handwired_q_learning_are_found_by_gradients():
    """Hard heads have no gradient; in the softmax-only variant EAP-IG finds the wired path of the values, no more."""
    model = interp.load("qlearning-handwired", n_states=3, n_actions=2)
    episodes = tasks.of(model).sample_for(model, 12, 13, 0)
    pair = prepare(
        circuits.differentiable(model),
        *corruption(model, "exchange-history").build(episodes, 12),
        12,
    )
    scorer = CircuitScorer(pair)
    chosen = smallest(scorer, attribute(pair).edges, causal_tables.TOLERANCE)
    heads = {
        name: circuits.build("qlearning-handwired").head_index(name) for name in ("1.6", "3.1")
    }
    fetch, choice = f"L0H{heads['1.6']}", f"L2H{heads['3.1']}"
    graph = scorer.graph
    chosen_names = {graph.name(edge) for edge in graph.edges if chosen[edge]}
    assert chosen_names == {
        f"embed -> {fetch}.v",
        f"{fetch} -> mlp 1",
        f"mlp 1 -> {choice}.k",
        f"{choice} -> prediction",
    }
    assert scorer.faithfulness(chosen) == pytest.approx(1, abs=1e-6)
    assert (
        max(
            scorer.faithfulness(random_circuit)
            for random_circuit in random_circuits(scorer.graph, 4, 3)
        )
        < 0.5
    )


def test_edited_hard_attention_has_no_variant_to_attribute_in(wma):
    circuit, _ = wma
    model = circuits.compile_circuit(replace(circuit, edits=("cut 2.1",)))
    refuses("softmax-only variant cannot be built", circuits.differentiable, model)
    refuses(
        "has hard attention, which has no gradient; give",
        causal_tables.circuit_tables,
        model,
        tasks.of(model).sample_for(model, 4, 6, 0),
        4,
        0,
    )


def test_fitted_direction_is_the_exact_one_in_a_handwired_model(wma):
    """A decoder's move is the latent change that the circuit defines, but for the decoder's penalty, and steers so."""
    _, model = wma
    episodes, change = experts.sample(12, 10, 3, seed=0), [0.0, 1.0, 0.0]
    algorithm = weighted_majority(0.5)
    fitted = fitted_direction(model, episodes, algorithm, change)
    assert_close(fitted, state_direction(model, change), rtol=0, atol=0.02)
    assert (
        steer(
            model, episodes, algorithm, Doses(change, direction=fitted), round=7
        ).table.max_error.max()
        < 0.02
    )


@pytest.mark.parametrize(
    ("field", "call"),
    [
        ("corruptions", lambda m, e: causal_tables.patching_table(m, e, 3)),
        ("claims", lambda m, e: causal_tables.interchange_table(m, e, e, 3, 0)),
        ("aligned", lambda m, e: causal_tables.alignment_table(m, e, e, 3, 0)),
        ("steering", lambda m, e: causal_tables.steering_table(m, e, 3, 0)),
        ("default_corruption", lambda m, e: causal_tables.circuit_tables(m, e, 3, 0)),
    ],
)
def test_a_task_without_a_field_is_told_which(wma, monkeypatch, field, call):
    """A table that a task's record says nothing about is refused by the field's name, not taken from another task."""
    (empty,) = (part.default for part in fields(Analysis) if part.name == field)
    bare = replace(experts.TASK, analysis=replace(experts.TASK.analysis, **{field: empty}))
    monkeypatch.setattr(catalog, "of", lambda subject: bare)
    episodes = experts.sample(4, 6, 3, seed=0)
    refuses(rf"give its record .*{field}=\.\.\.", call, circuits.differentiable(wma[1]), episodes)


@pytest.mark.long
def test_shared_rollouts_change_no_number(wma, untrained):
    """Tables made from rollouts that a session shares are those made from their own, bit for bit."""
    episodes, second_batch = (experts.sample(6, 6, 3, seed=seed) for seed in (0, 1))
    claims = [Claim.at("votes", ["embed"])]

    def both() -> list[pd.DataFrame]:
        steered = causal_tables.steering_table(untrained, episodes, 3, 0)
        return [
            steered,
            causal_tables.interchange_table(wma[1], episodes, second_batch, 3, 0, claims),
        ]

    with session():
        known = [
            interp.rollout(model, x)
            for model in (untrained, wma[1])
            for x in (episodes, second_batch)
        ]
        shared = both()
        assert interp.rollout(untrained, episodes) is known[0]
    for alone, together in zip(both(), shared, strict=True):
        pd.testing.assert_frame_equal(alone, together)


def test_round_0_has_no_history(untrained):
    refuses("needs a history", causal_tables.table_makers, untrained, 0)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "site"),
    [
        ("wma-learned-additive", "embed@<z>"),
        ("qlearning-learned", "resid_post[3]@Select"),
    ],
)
def test_learned_models_use_what_the_algorithm_holds(name, site):
    """Slow: minutes of sweeps and DAS. Learned subspaces beat every control, circuits by EAP-IG beat random ones.

    ``interp patch NAME --tables`` writes the same tables.
    """
    results = make_tables(interp.load(name), 20)
    at_site = results["alignment"].query("site == @site").set_index("condition")
    controls = at_site.drop("learned")
    assert at_site.loc["learned", "low"] > controls.iia.max()
    curve = results["faithfulness"].iloc[0]
    assert curve.cpr > curve.random_cpr + 0.2
    assert curve.cmd < curve.random_cmd - 0.2
    steered = results["steering"].query("dose != 0")
    assert (steered.mean_error < steered.random_mean_error).all()


@pytest.mark.long
def test_whole_activations_of_the_handwired_model(wma, pair):
    """Each variable is found where it passes; before it arrives, and at controls, nothing is right that was not."""
    frame = causal_tables.interchange_table(wma[1], *pair, 8, 0).set_index(
        ["variable", "places", "outcome"]
    )
    accuracy = frame.iia_informative
    right = [
        ("log_weights", "latent@<z>", "prediction"),
        ("log_weights", "latent@<z>", "state"),
        ("log_weights", "resid_post[1]@p?", "prediction"),
        ("votes", "embed@p_1 + embed@p_2 + embed@p_3", "prediction"),
        ("prediction", "resid_post[2]@p?", "prediction"),
        ("label", "embed@y", "state"),
        ("next_log_weights", "resid_post[2]@w?", "state"),
    ]
    assert (accuracy[right] == 1).all()
    assert (frame.random[right] < 0.75).all()
    assert accuracy["log_weights", "resid_post[0]@p?", "prediction"] == 0
    assert (accuracy[frame.control] == 0).all()
    assert (frame.chance_informative == 0).all()


def test_a_fitted_decoder_reads_the_state_and_judges_changes(wma, pair):
    """Fitted on other episodes of a handwired model it reads the log-weights; claims are judged as by the readout."""
    _, model = wma
    known, algorithm = experts.sample(64, 12, 3, seed=2), weighted_majority(0.5)
    run = interp.rollout(model, known)
    log_weights = algorithm.run(known)["log_weights"]
    decode = Decoder.fit(run.latents[:, :-1], log_weights, ridge=RIDGE)
    state = model.read_state(run.latents)
    assert_close(decode(run.latents), state, atol=0.02, rtol=0)
    label = Claim.at("label", ["embed@y"], "state")
    carried = Claim.at("log_weights", ["latent"], "state")
    control = Claim.at("label", ["embed@p?"], "state", control=True)
    claims = [label, carried, control]
    frame = carriers(model, *pair, algorithm, claims, round=slice(4, 9), decode=decode)
    assert frame.iia_informative.tolist() == [1, 1, 0]
    assert frame.iia[2] == frame.chance[2]
    assert (frame.random < 0.2).all()
    assert (frame.n_informative > 20).all()


@pytest.mark.long
def test_patch_writes_tables_and_figures(wma, tmp_path):
    """A table, its choices, a heat map per exit and component and the round map, labelled by position.

    A flipped label shows in the state at once, and in predictions one round later.
    """
    _, model = wma
    result = causal_tables.patch(
        model,
        3,
        components=("resid_pre", "head"),
        sample=Sample("flip-label", n_episodes=8, n_map=3),
    )
    written = {path.name for path in causal_tables.write(result, tmp_path)}
    assert written == {
        "patching.csv",
        "patching.json",
        "rounds.csv",
        "rounds.svg",
        *(
            f"{metric}-{part}.svg"
            for metric in ("logit_diff", "state")
            for part in ("resid_pre", "z")
        ),
    }
    frame = pd.read_csv(tmp_path / "patching.csv")
    assert set(frame["round"]) == {3}
    rounds_read = frame.groupby("metric")["read"].unique()
    assert rounds_read.to_dict() == {"logit_diff": 4, "state": 3}
    metrics = json.loads((tmp_path / "patching.json").read_text())["metrics"]
    assert [entry["metric"] for entry in metrics] == ["logit_diff", "state"]
    assert all(entry["gap"] for entry in metrics)
    assert ">p?</text>" in (tmp_path / "state-z.svg").read_text()
    for _, table in causal_tables.summary(result).groupby("metric"):
        assert table.effect.abs().is_monotonic_decreasing
        assert set(table.site) <= set(frame.site)


def test_held_latents_leave_the_exit_at_which_a_corruption_shows(wma):
    result = causal_tables.patch(
        wma[1],
        3,
        components=("latent",),
        propagate=False,
        sample=Sample("flip-label", n_episodes=4),
    )
    assert [swept.metric for swept in result.sweeps] == ["state"]
    assert result.rounds is None


def test_the_tasks_own_corruption_is_the_default_and_help_names_all(wma):
    sample = Sample(n_episodes=4, n_map=0)
    assert (
        causal_tables.patch(wma[1], 3, components=("latent",), sample=sample).corruption
        == "exchange-history"
    )
    for task in tasks.list_tasks():
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
def test_what_cannot_be_patched_is_refused(wma, options, message):
    _, model = wma
    refuses(message, causal_tables.patch, model, **{"round": 3, **options})


@pytest.fixture
def pulls(monkeypatch):
    """The example's pulls, registered for one test."""
    monkeypatch.setitem(catalog.REGISTERED, "pulls", own_task.PULLS)
    return own_task


@pytest.fixture
def model(pulls):
    return transformer(pulls.PullRound(), d_mlp=0, init_std=0.5).double()


def test_its_loss_is_the_metric(pulls, model):
    pair = prepare(model, *pulls.exchange_history(pulls.sample(4, 6, seed=0), 3), 3, 4)
    rewards = torch.from_numpy(pair.clean_episodes.rewards[:, 3:5, None])
    predictions = pair.clean_readout.predictions
    expected = 1 - predictions.gather(-1, rewards).squeeze(-1)
    assert_close(pair.losses(predictions), expected)


def test_its_variables_are_interchanged_and_steered(pulls, model):
    base, source = (pulls.sample(12, 8, seed=seed) for seed in (0, 1))
    algorithm, run = tasks.of(model).explains(model), rollout(model, base)
    chances = algorithm.run(base)["chances"]
    decode = Decoder.fit(run.latents[:, :-1], chances, ridge=1e-3)
    written = interchange(
        model, base, source, algorithm, "wins", "latent", outcome=Outcome("state", decode)
    )
    assert written.correct.shape == (12, 8)
    assert written.informative.any()
    change = np.array([0.1, 0.0])
    direction = fitted_direction(model, base, algorithm, change)
    steered = steer(model, base, algorithm, Doses(change, (0, 1), direction), round=5)
    first = base.arms[:, 5] == 0  # the other arm's chance is not what this round predicts
    moves = steered.algorithm[1] - steered.algorithm[0]
    assert_allclose(moves, np.where(first, 0.1, 0), atol=1e-12)


def test_claims_can_be_given_where_its_record_has_none(pulls, model):
    base, source = (pulls.sample(6, 6, seed=seed) for seed in (0, 1))
    frame = causal_tables.interchange_table(
        model, base, source, 3, 0, [Claim.at("arm", ["embed@arm"])]
    )
    assert frame.iia.between(0, 1).all()
    refuses(
        r"task 'pulls' names no claims, which this needs; give its record analysis=Analysis\(claims",
        causal_tables.interchange_table,
        model,
        base,
        source,
        3,
        0,
    )
