"""What fills a round that did not take place changes no number of any analysis; what cannot leave it out says so."""

from dataclasses import replace

import numpy as np
import pytest
from numpy.testing import assert_allclose
from sklearn.linear_model import Ridge
from torch.testing import assert_close

import interp
import probes
from circuits.compare.algorithm import explain
from interp.audit import fixed_points, used
from interp.audit.trial import Budget, Trial
from interp.choices.explain import explain_choices
from interp.evaluation.experts import regret
from interp.evaluation.plan import round_attention
from interp.evaluation.qlearning.agreement import agreement
from interp.interventions import interchange, mediation, patching, steering
from interp.interventions.alignment import align
from interp.interventions.experiment import Edit, Experiment, run
from interp.model import saved
from interp.tasks import experts, mdp
from interp.tasks.experts import ExpertEpisodes
from interp.tasks.experts.predictors import bayes, log_weights
from interp.tasks.qlearning import MDPEpisodes
from interp.training.batches import encode
from probes.sweeping import sweep
from tests.refusals import refuses

N, T = 20, 6
LENGTHS = np.resize([6, 3, 5, 4], N)
MISSING = np.arange(T) >= LENGTHS[:, None]
MISSING[::3, 1] = True  # missed trials
PARTICIPANTS = [f"p{i // 2}" for i in range(N)]
MODEL = interp.load("wma-handwired", n_experts=2)
Q_MODEL = interp.load("qlearning-handwired", n_states=2, n_actions=2)


def advised(filler):
    """The same episodes, with those of another seed where a round did not take place."""
    batch, filler_batch = (experts.sample(N, T, 2, seed=seed) for seed in (0, filler))
    advice = np.where(MISSING[..., None], filler_batch.advice, batch.advice)
    return ExpertEpisodes(
        advice,
        np.where(MISSING, filler_batch.labels, batch.labels),
        missing=MISSING,
        participants=PARTICIPANTS,
    )


def played(filler):
    batch, filler_batch = (mdp.sample(N, T, 2, 2, seed=seed) for seed in (0, filler))
    names = ("states", "actions", "rewards", "next_states")
    parts = (np.where(MISSING, getattr(filler_batch, name), getattr(batch, name)) for name in names)
    return MDPEpisodes.from_transitions(None, *parts, n_states=2, n_actions=2, missing=MISSING)


def predictions(model, episodes):
    run_of_model = interp.rollout(model, episodes)
    return run_of_model.predictions.double().numpy()


def experiment(episodes):
    clean, corrupted = experts.TASK.corruption("exchange-history").build(episodes, 2)
    base, source = interp.rollout(MODEL, clean), interp.rollout(MODEL, corrupted)
    edits = {"history": [Edit.of("latent", source, MODEL)]}
    return run(Experiment(MODEL, base, edits, [2, 3], 2, "each"))


def flipped(episodes):
    return experts.TASK.corruption("flip-vote").build(episodes, 2)


def fitted(episodes, target="log_weights", **options):
    target = probes.targets.get(target)(episodes)
    return probes.fit(interp.rollout(MODEL, episodes), target, n_untrained=1, **options).scores()


VOTES = [experts.TASK.rivals()[key] for key in ("majority_vote", "follow_the_leader")]


def residuals(episodes):
    return interp.rollout(MODEL, episodes, names_filter="blocks.1.hook_resid_post").cache


def latents(episodes):
    return interp.rollout(MODEL, episodes).latents


def losses_of_the_task(episodes):
    run_of_model = interp.rollout(MODEL, episodes)
    return experts.TASK.data.losses(run_of_model.predictions, episodes, slice(None))


def score(episodes):
    return regret.score(predictions(MODEL, episodes), episodes).to_frame()


def baseline(episodes):
    return log_weights(episodes)[:, -1]


def attention(episodes):
    return round_attention(MODEL, episodes, rounds="all")


def probe(episodes):
    return fitted(episodes)


def probe_of_classes(episodes):
    return fitted(episodes, "label")


def probe_by_an_estimator(episodes):
    return fitted(episodes, method=Ridge())


def rows_for_scikit_learn(episodes):
    target = probes.targets.log_weights(episodes)
    return probes.to_sklearn(latents(episodes)[:, 1:], target).x


def sweep_of_probes(episodes):
    targets = ["log_weights", "votes"]
    return sweep(MODEL, episodes, targets, sites="resid_post@p?", n_jobs=1).to_frame()


def patching_sweep(episodes):
    sides = flipped(episodes)
    return patching.sweep(MODEL, *sides, 2, read_round=4, sites="resid_pre").to_frame()


def round_map(episodes):
    return patching.round_map(MODEL, *flipped(episodes), "latent", round=[2, 3]).to_frame()


def table_of_experiment(episodes):
    return experiment(episodes).to_frame()


def choices(episodes):
    return explain_choices(episodes, episodes.advice[..., 0], families=VOTES).to_frame()


def latents_of_q(episodes):
    return interp.rollout(Q_MODEL, episodes).latents


def agreement_of_q(episodes):
    return agreement(predictions(Q_MODEL, episodes), episodes).to_frame()


OF_EXPERTS = [
    residuals,
    latents,
    losses_of_the_task,
    score,
    baseline,
    attention,
    probe,
    probe_of_classes,
    probe_by_an_estimator,
    rows_for_scikit_learn,
    sweep_of_probes,
    patching_sweep,
    round_map,
    table_of_experiment,
    choices,
]
OF_Q = [latents_of_q, agreement_of_q]


def assert_fills_change_nothing(analysis, make_episodes):
    """What an analysis returns does not depend on what fills the missing rounds."""
    first = analysis(make_episodes(1))
    second = analysis(make_episodes(2))
    if hasattr(first, "columns"):
        assert first.equals(second)
        numbers = first.select_dtypes("number").to_numpy()
    elif isinstance(first, dict):
        for part, same in zip(first.values(), second.values(), strict=True):
            numbers = np.asarray(part)
            assert np.array_equal(numbers, np.asarray(same), equal_nan=True)
    else:
        numbers = np.asarray(first)
        assert np.array_equal(numbers, np.asarray(second), equal_nan=True)
    assert np.isfinite(numbers).any()


@pytest.mark.filterwarnings("ignore:.*independent episodes are few")
@pytest.mark.parametrize("analysis", OF_EXPERTS, ids=lambda analysis: analysis.__name__)
def test_what_fills_a_missing_round_of_advice_changes_no_bit(analysis):
    assert_fills_change_nothing(analysis, advised)


@pytest.mark.filterwarnings("ignore:.*independent episodes are few")
@pytest.mark.parametrize("analysis", OF_Q, ids=lambda analysis: analysis.__name__)
def test_what_fills_a_missing_round_of_an_mdp_changes_no_bit(analysis):
    assert_fills_change_nothing(analysis, played)


def test_episodes_of_unequal_length_run_as_each_does_alone_and_a_file_keeps_which_rounds_count(
    tmp_path,
):
    whole = advised(1)
    ran = interp.rollout(MODEL, whole)
    assert "83 of which count" in repr(ran)
    assert (ran.missing == MISSING).all()
    for i in range(4):
        rounds = np.flatnonzero(~MISSING[i])
        single = ExpertEpisodes(whole.advice[i : i + 1, rounds], whole.labels[i : i + 1, rounds])
        alone = interp.rollout(MODEL, single)
        assert_close(ran.predictions[i, rounds], alone.predictions[0])
        latent_alone = alone.latents[0, -1]
        assert_close(ran.latents[i, -1], latent_alone)
        assert ran.predictions[i, MISSING[i]].isnan().all()
    path = saved.save(ran, tmp_path / "run.safetensors")
    loaded = saved.load(path)
    assert (loaded.missing == MISSING).all()


def test_results_say_what_counts_and_intervals_are_over_participants():
    clean, corrupted = flipped(advised(1))
    swept = patching.sweep(MODEL, clean, corrupted, 2, read_round=3, sites="latent")
    has_both_rounds = ~MISSING[:, 2:4].any(1)
    n = int(has_both_rounds.sum())
    assert f"({n} of {N} episodes have rounds 2 to 3)" in swept.sentence
    assert swept.values.shape[1] == n
    table = experiment(advised(1)).to_frame().set_index(["edited", "read"])
    has_edited_and_read = ~MISSING[:, [2, 4]].any(1)
    assert set(table.loc[(2, 4), "n_episodes"]) == {has_edited_and_read.sum()}
    with pytest.warns(UserWarning, match="10 independent episodes are few"):
        probe = probes.fit(
            interp.rollout(MODEL, clean), probes.targets.log_weights(clean), n_untrained=1
        )
    assert "83 of 120 rounds of 20 episodes count" in str(probe)
    assert len(probe.score.losses) == 10
    assert "ran on only 20 episodes" in str(probe.warning)
    assert probe.settings["untrained_episodes"] == 20
    assert np.isnan(probe.predictions[MISSING]).all()
    assert probe.r2 > 0.99


RAGGED = advised(1)
ALGORITHM = interp.tasks.get("experts").explains(MODEL)
BOTH = (MODEL, RAGGED, RAGGED)


def test_interventions_that_cannot_leave_rounds_out_say_so():
    message = "interchange counts every round"
    refuses(message, interchange.interchange, *BOTH, ALGORITHM, "log_weights", "latent")
    message = "steering counts every round"
    refuses(message, steering.fitted_direction, MODEL, RAGGED, ALGORITHM, [1.0, 0.0])
    message = "mediation counts every round"
    refuses(message, mediation.mediate, *BOTH, "latent", "resid_post[0]")
    message = "alignment counts every round"
    refuses(message, align, *BOTH, ALGORITHM, "log_weights", "latent")


def test_what_cannot_leave_rounds_out_says_so():
    refuses("an audit counts every round", Trial, MODEL, RAGGED, Budget.quick())
    refuses("an audit counts every round", fixed_points, MODEL, RAGGED)
    refuses("training counts every round", encode, RAGGED, MODEL.layout)
    refuses("the Bayes predictor counts every round", bayes, RAGGED, "uniform")


def twice(episodes):
    """What each of several participants played, twice."""
    participants = list(range(len(episodes)))
    doubled = episodes.select(participants * 2)
    return replace(doubled, participants=participants * 2)


ONCE, Q_ONCE = experts.sample(12, T, 2, seed=0), mdp.sample(12, T, 2, 2, seed=0)


def interchange_of_votes(episodes):
    _, corrupted = flipped(episodes)
    return interchange.interchange(
        MODEL, episodes, corrupted, ALGORITHM, "votes", "embed@e_1"
    ).to_frame()


def mediation_by_the_residual(episodes):
    _, corrupted = flipped(episodes)
    return mediation.mediate(MODEL, episodes, corrupted, "embed@e_1", "resid_post[0]").to_frame()


def search_for_the_algorithm(episodes):
    sets = {"one": (ONCE, episodes)}
    return explain(ALGORITHM, experts.TASK, sets, seed=0, families=VOTES).to_frame()


def audit_of_presence(episodes):
    return used.presence(Trial(MODEL, episodes, Budget.quick()))


OF_PARTICIPANTS = [
    score,
    patching_sweep,
    round_map,
    table_of_experiment,
    interchange_of_votes,
    mediation_by_the_residual,
    search_for_the_algorithm,
    audit_of_presence,
]
NUMBERS_OF_EPISODES = ["n_episodes", "n_pairs", "n_informative"]
"""Columns that are alone in what they count."""


def floats_in_order(table):
    """Return the columns of floats, in the order of the labels beside them."""
    table = table.drop(columns=NUMBERS_OF_EPISODES, errors="ignore")
    labels = list(table.select_dtypes(exclude="float"))
    if not labels:
        return table
    return table.sort_values(labels).select_dtypes("float")


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("analysis", OF_PARTICIPANTS, ids=lambda analysis: analysis.__name__)
def test_who_plays_the_same_twice_narrows_no_interval(analysis):
    once = floats_in_order(analysis(ONCE))
    doubled = floats_in_order(analysis(twice(ONCE)))
    assert_allclose(doubled, once, atol=1e-9)
    assert once.filter(like="low").to_numpy().size


def test_agreement_is_of_participants():
    once = agreement_of_q(Q_ONCE).drop(columns="n_steps")
    doubled = agreement_of_q(twice(Q_ONCE)).drop(columns="n_steps")
    numbers_once = once.select_dtypes("number")
    numbers_doubled = doubled.select_dtypes("number")
    assert_allclose(numbers_doubled, numbers_once, atol=1e-9)
