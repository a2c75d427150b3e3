"""What fills a round that did not take place changes no number of any analysis; what cannot leave it out says so."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from sklearn.linear_model import Ridge

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
from tests.refusals import refused

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
    return interp.rollout(model, episodes).predictions.double().numpy()


def experiment(episodes):
    clean, corrupted = experts.TASK.corruption("exchange-history").build(episodes, 2)
    base, source = interp.rollout(MODEL, clean), interp.rollout(MODEL, corrupted)
    return run(
        Experiment(MODEL, base, {"history": [Edit.of("latent", source, MODEL)]}, [2, 3], 2, "each")
    )


def flipped(episodes):
    return experts.TASK.corruption("flip-vote").build(episodes, 2)


def fitted(episodes, target="log_weights", **options):
    target = probes.targets.get(target)(episodes)
    return probes.fit(interp.rollout(MODEL, episodes), target, n_untrained=1, **options).scores()


VOTES = [experts.TASK.rivals()[key] for key in ("majority_vote", "follow_the_leader")]
ROLLOUTS = {
    "rollout": lambda e: interp.rollout(MODEL, e, names_filter="blocks.1.hook_resid_post").cache,
    "latents": lambda e: interp.rollout(MODEL, e).latents,
}
LOSSES = {
    "task's losses": lambda e: experts.TASK.data.losses(
        interp.rollout(MODEL, e).predictions, e, slice(None)
    ),
}
SCORES = {
    "score": lambda e: regret.score(predictions(MODEL, e), e).to_frame(),
    "baseline": lambda e: log_weights(e)[:, -1],
    "attention": lambda e: round_attention(MODEL, e, rounds="all"),
}
PROBES = {
    "probe": fitted,
    "probe of classes": lambda e: fitted(e, "label"),
    "probe by an estimator": lambda e: fitted(e, method=Ridge()),
}
ROWS_OF_SKLEARN = {
    "rows for scikit-learn": lambda e: (
        probes.to_sklearn(interp.rollout(MODEL, e).latents[:, 1:], probes.targets.log_weights(e)).x
    ),
}
SWEEPS = {
    "sweep": lambda e: sweep(
        MODEL, e, ["log_weights", "votes"], sites="resid_post@p?", n_jobs=1
    ).to_frame(),
    "patching": lambda e: patching.sweep(
        MODEL, *flipped(e), 2, read_round=4, sites="resid_pre"
    ).to_frame(),
}
EXPERIMENTS = {
    "round map": lambda e: patching.round_map(
        MODEL, *flipped(e), "latent", round=[2, 3]
    ).to_frame(),
    "experiment": lambda e: experiment(e).to_frame(),
}
CHOICES = {
    "choices": lambda e: explain_choices(e, e.advice[..., 0], families=VOTES).to_frame(),
}
ANALYSES = {
    **ROLLOUTS,
    **LOSSES,
    **SCORES,
    **PROBES,
    **ROWS_OF_SKLEARN,
    **SWEEPS,
    **EXPERIMENTS,
    **CHOICES,
}
OF_Q = {
    "rollout": lambda e: interp.rollout(Q_MODEL, e).latents,
    "agreement": lambda e: agreement(predictions(Q_MODEL, e), e).to_frame(),
}
EVERY = [(name, advised, analysis_of_all) for name, analysis_of_all in ANALYSES.items()] + [
    (name, played, analysis_of_all) for name, analysis_of_all in OF_Q.items()
]


@pytest.mark.filterwarnings("ignore:.*independent episodes are few")
@pytest.mark.parametrize(
    "name, made, analysis", EVERY, ids=[f"{made.__name__}, {name}" for name, made, _ in EVERY]
)
def test_what_fills_a_missing_round_changes_no_bit(name, made, analysis):
    first, second = (analysis(made(filler)) for filler in (1, 2))
    if hasattr(first, "columns"):
        assert first.equals(second)
        numbers = first.select_dtypes("number").to_numpy()
    else:
        for part, same in zip(
            *(x.values() if isinstance(x, dict) else [x] for x in (first, second)), strict=True
        ):
            numbers = np.asarray(part)
            assert np.array_equal(numbers, np.asarray(same), equal_nan=True)
    assert np.isfinite(numbers).any()


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
        torch.testing.assert_close(ran.predictions[i, rounds], alone.predictions[0])
        torch.testing.assert_close(ran.latents[i, -1], alone.latents[0, -1])
        assert ran.predictions[i, MISSING[i]].isnan().all()
    assert (saved.load(saved.save(ran, tmp_path / "run.safetensors")).missing == MISSING).all()


def test_results_say_what_counts_and_intervals_are_over_participants():
    clean, corrupted = flipped(advised(1))
    swept = patching.sweep(MODEL, clean, corrupted, 2, read_round=3, sites="latent")
    n = int((~MISSING[:, 2:4].any(1)).sum())
    assert f"({n} of {N} episodes have rounds 2 to 3)" in swept.sentence
    assert swept.values.shape[1] == n
    table = experiment(advised(1)).to_frame().set_index(["edited", "read"])
    assert set(table.loc[(2, 4), "n_episodes"]) == {int((~MISSING[:, [2, 4]].any(1)).sum())}
    with pytest.warns(UserWarning, match="10 independent episodes are few"):
        probe = probes.fit(
            interp.rollout(MODEL, clean), probes.targets.log_weights(clean), n_untrained=1
        )
    assert "83 of 120 rounds of 20 episodes count" in str(probe)
    assert len(probe.score.losses) == 10
    assert "there are only 20 episodes" in str(probe.warning)
    assert probe.settings["untrained_episodes"] == 20
    assert np.isnan(probe.predictions[MISSING]).all()
    assert probe.r2 > 0.99


RAGGED = advised(1)
ALGORITHM = interp.tasks.get("experts").explains(MODEL)
BOTH = (MODEL, RAGGED, RAGGED)
test_interventions_that_cannot_leave_rounds_out_say_so = refused(
    (
        lambda: interchange.interchange(*BOTH, ALGORITHM, "log_weights", "latent"),
        "interchange counts every round",
    ),
    (
        lambda: steering.fitted_direction(MODEL, RAGGED, ALGORITHM, [1.0, 0.0]),
        "steering counts every round",
    ),
    (lambda: mediation.mediate(*BOTH, "latent", "resid_post[0]"), "mediation counts every round"),
    (lambda: align(*BOTH, ALGORITHM, "log_weights", "latent"), "alignment counts every round"),
)
test_what_cannot_leave_rounds_out_says_so = refused(
    (lambda: Trial(MODEL, RAGGED, Budget.quick()), "an audit counts every round"),
    (lambda: fixed_points(MODEL, RAGGED), "an audit counts every round"),
    (lambda: encode(RAGGED, MODEL.layout), "training counts every round"),
    (lambda: bayes(RAGGED, "uniform"), "the Bayes predictor counts every round"),
)


def twice(episodes):
    """What each of several participants played, twice."""
    n = len(episodes)
    return replace(episodes.select([*range(n)] * 2), participants=[*range(n)] * 2)


ONCE, Q_ONCE = experts.sample(12, T, 2, seed=0), mdp.sample(12, T, 2, 2, seed=0)
OF_SHARED = {
    **{name: ANALYSES[name] for name in ("score", "patching", "round map", "experiment")},
}
OF_INTERVENTIONS = {
    "interchange": lambda e: interchange.interchange(
        MODEL, e, flipped(e)[1], ALGORITHM, "votes", "embed@e_1"
    ).to_frame(),
    "mediation": lambda e: mediation.mediate(
        MODEL, e, flipped(e)[1], "embed@e_1", "resid_post[0]"
    ).to_frame(),
}
OF_SEARCHES = {
    "search": lambda e: explain(
        ALGORITHM, experts.TASK, {"one": (ONCE, e)}, seed=0, families=VOTES
    ).to_frame(),
    "audit": lambda e: used.presence(Trial(MODEL, e, Budget.quick())),
}
OF_ALL = {**OF_SHARED, **OF_INTERVENTIONS, **OF_SEARCHES}
"""Tables of numbers of episodes that are alone in what they count."""


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("name", OF_ALL)
def test_who_plays_the_same_twice_narrows_no_interval(name):
    first = OF_ALL[name](ONCE).drop(
        columns=["n_episodes", "n_pairs", "n_informative"], errors="ignore"
    )
    second = OF_ALL[name](twice(ONCE)).drop(
        columns=["n_episodes", "n_pairs", "n_informative"], errors="ignore"
    )
    labels = list(first.select_dtypes(exclude="float"))
    first = first.sort_values(labels).select_dtypes("float") if labels else first
    second = second.sort_values(labels).select_dtypes("float") if labels else second
    np.testing.assert_allclose(second, first, atol=1e-9)
    assert first.filter(like="low").to_numpy().size


def test_agreement_is_of_participants():
    once = OF_Q["agreement"](Q_ONCE).drop(columns="n_steps").select_dtypes("number")
    doubled = OF_Q["agreement"](twice(Q_ONCE)).drop(columns="n_steps").select_dtypes("number")
    np.testing.assert_allclose(doubled, once, atol=1e-9)
