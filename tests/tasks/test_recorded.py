"""Recorded data, whose accuracies or MDPs nobody knows, go wherever these are not needed."""

from dataclasses import replace

import numpy as np
import pytest

import interp
import probes
from circuits.compare.question import Budget, Samples
from interp import audit
from interp.audit.trial import Trial
from interp.core.algorithm import refuse_missing
from interp.evaluation.qlearning import returns
from interp.evaluation.suite import evaluate
from interp.interventions import interchange, patching
from interp.machines.learners import learner
from interp.support.errors import InputError
from interp.support.provenance import provenance
from interp.tasks import bandit, experts, mdp
from interp.tasks.experts import ExpertEpisodes
from interp.tasks.qlearning import MDPEpisodes
from interp.tasks.reachability import ReachabilityEpisodes
from tests.refusals import refused, refuses

WHOLE = {"experts": experts.sample(10, 5, 3, seed=2), "qlearning": mdp.sample(10, 5, 3, 2, seed=2)}
MODELS = {
    "experts": ("wma-handwired", {"n_experts": 3}),
    "qlearning": ("qlearning-handwired", {"n_states": 3, "n_actions": 2}),
}


def recorded(task):
    whole = WHOLE[task]
    if task == "experts":
        return ExpertEpisodes(whole.advice, whole.labels)
    parts = whole.states, whole.actions, whole.rewards, whole.next_states
    return MDPEpisodes.from_transitions(None, *parts, n_states=3, n_actions=2)


@pytest.mark.parametrize("task", WHOLE)
def test_recorded_data_run_probe_and_patch_as_if_all_were_known(task):
    name, sizes = MODELS[task]
    model, gapped, whole = interp.load(name, **sizes), recorded(task), WHOLE[task]
    run = interp.rollout(model, gapped)
    assert (run.predictions == interp.rollout(model, whole).predictions).all()
    algorithm = interp.tasks.get(task).explains(model)
    key = algorithm.state[0]
    assert np.array_equal(algorithm.run(gapped)[key], algorithm.run(whole)[key])
    probe = probes.fit(run, probes.targets.get(key)(gapped))
    same = probes.fit(run, probes.targets.get(key)(whole))
    assert probe.r2 == same.r2
    corruption = next(c for c in interp.tasks.get(task).analysis.corruptions() if c.changes_history)
    effects = [
        patching.sweep(model, *corruption.build(batch, 3), 3, sites="resid_pre").effects
        for batch in (gapped, whole)
    ]
    assert (effects[0] == effects[1]).all()
    assert (
        interchange.interchange(
            model, gapped, gapped.select(slice(None, None, -1)), algorithm, key, "latent"
        ).iia
        == 1.0
    )
    assert len(gapped.select([0, 2])) == 2


test_what_needs_them_says_so = refused(
    (
        lambda: recorded("experts").accuracies_by_round,
        "the accuracies of these experts are not known",
    ),
    (
        lambda: returns.normalised_score([recorded("qlearning")]),
        "the MDPs of these recorded episodes are not known",
    ),
    (
        lambda: recorded("qlearning").select([0]).known_mdps,
        "the MDPs of these recorded episodes are not known",
    ),
)


GRAPHS = {
    "edges": [[[0, 1], [1, 2]]] * 3,
    "roots": [0] * 3,
    "candidates": [[1, 2]] * 3,
    "n_nodes": 3,
}
PARTICIPANTS = ["ann", "bob", "ann"]
RAGGED_ADVICE = {
    "advice": [[[0, 1], [1, 1], [0, 0]], [[1, 0]], [[1, 1]] * 4],
    "labels": [[1, None, 0], [1], [0] * 4],
}
RAGGED_STEPS = {
    "states": [[0, 1, 0], [1], [1] * 4],
    "actions": [[0, 1, 1], [0], [1] * 4],
    "rewards": [[1, np.nan, 0], [1], [0.5] * 4],
}
RAGGED_NEXT_STATES = [[1, 0, 1], [1], [0] * 4]
RAGGED = {
    "experts": ExpertEpisodes.of(**RAGGED_ADVICE, participants=PARTICIPANTS),
    "qlearning": MDPEpisodes.of(
        **RAGGED_STEPS, next_states=RAGGED_NEXT_STATES, participants=PARTICIPANTS
    ),
    "reachability": ReachabilityEpisodes.of(
        **GRAPHS, n_rounds=[3, 1, 4], participants=PARTICIPANTS
    ),
}


@pytest.mark.parametrize("task", RAGGED)
def test_lists_of_unequal_length_are_padded_and_masked_and_selection_keeps_what_they_say(task):
    ragged = RAGGED[task]
    assert ragged.lengths.tolist() == [3, 1, 4]
    assert ragged.participants.tolist() == [
        "ann",
        "bob",
        "ann",
    ]
    missed = [1, 1] if task == "reachability" else [0, 1]  # a NaN or None is a missed trial
    assert ragged.counted.tolist() == [[1, missed[0], 1, 0], [1, 0, 0, 0], [1, 1, 1, 1]]
    assert f"of 1 to 4 rounds, {ragged.counted.sum()} of which count, 2 participants" in repr(
        ragged
    )
    some = ragged.select([2, 1])
    assert some.lengths.tolist() == [4, 1]
    assert some.participants.tolist() == ["ann", "bob"]
    assert ragged.select([2]).missing is None
    assert ragged.select([2]).lengths.tolist() == [4]
    again = replace(ragged, regime="recorded")
    assert (again.missing == ragged.missing).all()
    assert again.participants is not None


@pytest.mark.parametrize("task", RAGGED)
def test_a_missing_round_leaves_an_algorithms_state_as_it_is_and_what_fills_it_changes_nothing(
    task,
):
    ragged = RAGGED[task]
    algorithm = interp.tasks.get(task).algorithm_records()
    for record in algorithm.values():
        plain_algorithm = record.make()
        values = plain_algorithm.run(ragged)
        alone = plain_algorithm.run(ragged.select([2]))
        for key in plain_algorithm.state:
            assert np.array_equal(values[f"next_{key}"][:, :-1], values[key][:, 1:])
            assert np.array_equal(
                values[f"next_{key}"][ragged.missing], values[key][ragged.missing]
            )
            assert np.array_equal(values[key][2:], alone[key])
    if task == "qlearning":
        assert np.array_equal(ragged.q_tables[0, 1], ragged.q_tables[0, 2])
        filled = ragged.relearned(
            transitions={"rewards": np.where(ragged.missing, 0.3, ragged.rewards)}
        )
        assert np.array_equal(filled.q_tables, ragged.q_tables)


@pytest.mark.parametrize("task", ["bandit", "experts", "qlearning"])
def test_a_mask_that_is_given_counts_beside_the_gaps(task):
    """Rounds 1 of the first episode and 0 of the second are missing by the mask, the rest as the lists say."""
    mask = [[False, True, False], [True, False]]
    if task == "bandit":
        episodes_made = bandit.BanditEpisodes.of(
            choices=[[0, 1, 0], [1, 0]], rewards=[[1, 0, None], [1, 1]], missing=mask
        )
    elif task == "experts":
        episodes_made = ExpertEpisodes.of(
            advice=[[[0, 1]] * 3, [[1, 1]] * 2], labels=[[1, 0, None], [1, 1]], missing=mask
        )
    else:
        episodes_made = MDPEpisodes.of(
            states=[[0, 1, 0], [1, 0]],
            actions=[[0, 1, 0], [1, 0]],
            rewards=[[1, 0, None], [1, 1]],
            next_states=[[1, 0, 1], [0, 1]],
            missing=mask,
        )
    assert episodes_made.missing.tolist() == [[False, True, True], [True, False, True]]


def test_a_history_that_is_exchanged_brings_its_missing_rounds_along():
    for task, ragged in RAGGED.items():
        _, corrupted = interp.tasks.get(task).corruption("exchange-history").build(ragged, 2)
        assert corrupted.counted[:, :2].tolist() == ragged.counted[[1, 2, 0], :2].tolist()
        assert corrupted.counted[:, 2:].tolist() == ragged.counted[:, 2:].tolist()


def test_a_recorded_set_gives_all_that_every_participant_played_and_disjoint_halves_where_some_are_scored():
    participants = [0, 0, 1, 1, 1, 2, 2, 3, 3, 3]
    recorded = replace(WHOLE["experts"], participants=participants)
    source = experts.TASK.of_recorded(recorded)
    with pytest.warns(
        UserWarning, match=r"only 4 participants, 2 in this half: [456] episodes, not 256"
    ) as warnings_given:
        known, test = source.sets_for(256, 99, seed=4, n_scored=256)["default"]
    assert len(warnings_given) == 1
    assert known.n_rounds == 5
    assert not {*known.participants} & {*test.participants}
    assert sorted([*known.participants, *test.participants]) == participants
    with pytest.warns(UserWarning, match=r"only 4 participants: 10 episodes, not 96"):
        assert sorted(source.sample(96, 5, seed=1).participants) == participants
    for seed in range(4):
        drawn = source.sample(5, 3, n_experts=3, seed=seed)
        assert drawn.n_rounds == 3, "all before a second one"
        assert sorted({*drawn.participants[:4]}) == [0, 1, 2, 3], "all before a second one"
    batches = {source.sample(4, 5, seed=seed).labels.tobytes() for seed in range(20)}
    assert len(batches) > 4, "the seed says which episodes of a participant"


def test_missed_trials_are_left_out_of_a_source_and_a_state_after_them_is_the_same():
    missing = np.arange(5) == np.array([[1], [2], [3], [1], [4], [0], [0], [2], [3], [3]])
    missing[0, 2:] = True
    for task, whole in WHOLE.items():
        gone = (
            replace(whole, missing=None).relearned(transitions={"missing": missing})
            if task == "qlearning"
            else None
        )
        ragged = gone or replace(whole, missing=missing)
        drawn = interp.tasks.get(task).of_recorded(ragged).sample(4, 99, seed=0)
        assert drawn.counted.shape == (4, 4), "one episode is shorter than nine of ten"
        assert drawn.counted.all(), "one episode is shorter than nine of ten"
        algorithm = next(iter(interp.tasks.get(task).algorithm_records().values())).make()
        key = algorithm.state[0]
        first = ragged.first(4)
        ends = algorithm.run(ragged)[f"next_{key}"][:, -1]
        assert np.allclose(algorithm.run(first)[f"next_{key}"][:, -1], ends)
        assert first.counted.sum() == 37


def test_what_was_fitted_is_what_models_are_probed_for_and_held_against_and_results_say_so():
    people = bandit.sample(12, 20, 2, "reversal", seed=0)
    family = bandit.TASK.rivals()["two_rates"]
    fitted = family.make(gain=0.7, loss=0.2, inverse_temperature=4.0)
    machine = learner("gru", "bandit", width=2)
    with interp.tasks.using(people, fitted) as task:
        target = probes.targets.get("arm_values", interp.tasks.of(people))(people)
        assert interp.tasks.of(machine).explains(machine).parameters == fitted.parameters
        samples = Samples.draw(machine, Budget.quick(), {"n_arms": 2})
        trial = Trial.of(machine, replace(audit.Budget.quick(), episodes=8))
        used = provenance(machine)
    assert not set(samples.known.participants) & set(samples.test.participants)
    assert len(samples.known) == 6
    assert len(set(trial.episodes.participants)) == 12
    assert trial.algorithm.key == "two_rates"
    with pytest.raises(InputError, match="evaluation draws"), interp.tasks.using(WHOLE["experts"]):
        evaluate(interp.load("wma-handwired", n_experts=3))
    assert np.array_equal(target.values, fitted.run(people)["next_arm_values"])
    assert used["recorded"]["bandit"]["participants"] == 12
    name = "Rescorla-Wagner with two rates (gain 0.7, loss 0.2, inverse temperature 4)"
    assert task.name == "a bandit"
    assert used["recorded"]["bandit"]["algorithm"] == name
    assert used["digest"] == machine.digest()
    assert "recorded" not in provenance(machine)
    assert interp.tasks.of(people) is bandit.TASK is interp.tasks.get("bandit")


def lines(*rows, at="table.csv"):
    """A file of these lines, of which every other one is followed by an empty one."""

    def made(folder):
        (folder / at).write_text("\n".join(row + "\n" * (i % 2) for i, row in enumerate(rows)))
        return folder / at

    return made


ROUNDS = lines(
    "subject,round,expert_1,expert_2,label",
    "ann,2,up,down,up",
    "ann,1,down,down,down",
    "bob,1,up,up,",
    "bob,2,up,down,down",
    "cem,1,up,,up",
)
STEPS = lines(
    "id;session;state;key;points;next state",
    "ann;1;home;a;2;work",
    "ann;1;work;b;-4;home",
    "ann;2;park;b;;home",
    "ann;2;home;a;1;park",
    at="steps.txt",
)


def test_a_table_of_rounds_becomes_episodes_of_its_task(tmp_path):
    with pytest.warns(
        UserWarning, match="1 of 3 episodes of .*table.csv' have no trial with advice and outcome"
    ):
        advised = experts.read(ROUNDS(tmp_path))
    assert advised.participants.tolist() == ["ann", "bob"]
    assert advised.regime == "recorded"
    assert advised.advice[0].tolist() == [[0, 0], [1, 0]]
    assert advised.labels[0].tolist() == [0, 1]
    assert advised.counted.tolist() == [[True, True], [False, True]]
    assert advised.labels[1, 1] == 0
    with pytest.warns(UserWarning, match="1 of 3 episodes of .*one.csv'"):
        episodes_read = experts.read(
            ROUNDS(tmp_path).rename(tmp_path / "one.csv"), advice=["expert_2"]
        )
    assert episodes_read.n_experts == 1
    assert episodes_read.participants.tolist() == ["ann", "bob", "cem"][:2]
    played = mdp.read(STEPS(tmp_path), reward="points", alpha=0.5, gamma=0.0)
    assert played.participants.tolist() == ["ann", "ann"]
    assert (
        played.n_states,
        played.n_actions,
    ) == (3, 2)
    assert played.states[0].tolist() == [0, 2]
    assert played.next_states[0].tolist() == [2, 0]
    assert played.rewards[0].tolist() == [0.5, -1.0]
    assert played.counted.tolist() == [
        [True, True],
        [False, True],
    ]
    assert played.q_tables[0, -1].tolist() == [[0.25, 0.0], [0.0, 0.0], [0.0, -0.5]]
    assert played.states[1, 1] == 0


@pytest.mark.parametrize(
    ("read", "wrong", "given", "message"),
    [
        (
            experts.read,
            ("up,down", "left,down"),
            {},
            "advice and outcome in .* two labels together, got down, left, up",
        ),
        (
            experts.read,
            ("expert_", "e"),
            {},
            r"which column of .*table.csv' is the advice\? Give advice=NAME",
        ),
        (
            experts.read,
            ("", ""),
            {"advice": ["expert_1", "e"]},
            r"has no column 'e' \(advice\); it has subject, round",
        ),
        (
            experts.read,
            ("bob,2", "bob,inf"),
            {},
            "'round' must be a number, by which trials are ordered, got inf",
        ),
        (
            experts.read,
            ("\n", ",\n,"),
            {},
            "has more fields than the header has names; give each column a name",
        ),
        (experts.read, ("", ""), {"outcome": "expert_1"}, "'expert_1' cannot be the outcome, too"),
        (experts.read, ("", ""), {"advice": []}, "advice= names no column; leave it out"),
        (
            experts.read,
            ("", ""),
            {"advice": ["expert_1", "expert_1"]},
            "the columns of advice must differ, got expert_1, expert_1",
        ),
        (
            experts.read,
            ("bob,2", "bob,1"),
            {},
            r"line 7 of .*table.csv': 'round' comes a second time in a session; .*, got 1",
        ),
        (
            mdp.read,
            (";b;", ";a;"),
            {"reward": "points"},
            r"key of .* must hold two actions or more, got \['a'\]",
        ),
    ],
)
def test_a_table_that_cannot_be_read_is_refused_with_its_line_and_column(
    read, wrong, given, message, tmp_path
):
    path = (ROUNDS if read is experts.read else STEPS)(tmp_path)
    path.write_text(path.read_text().replace(*wrong) if wrong[0] else path.read_text())
    refuses(message, read, path, **given)


ADVICE, LABELS = RAGGED["experts"].advice, RAGGED["experts"].labels
test_masks_that_are_none_are_refused = refused(
    (
        lambda: ExpertEpisodes(ADVICE, LABELS, missing=np.zeros((3, 3), bool)),
        r"\[episode, round\] = \(3, 4\), got bool",
    ),
    (
        lambda: ExpertEpisodes(ADVICE, LABELS, missing=np.zeros((3, 4))),
        "missing must be truth values",
    ),
    (
        lambda: ExpertEpisodes(ADVICE, LABELS, missing=np.ones((3, 4), bool)),
        "no round took place in 3 of 3 episodes",
    ),
)
test_participants_that_are_none_are_refused = refused(
    (
        lambda: ExpertEpisodes(ADVICE, LABELS, participants=["ann"]),
        "participants must be 3 names, or whole numbers",
    ),
    (lambda: ExpertEpisodes(ADVICE, LABELS, participants=["1", 1, 2]), "names, or whole numbers"),
)
test_recorded_values_that_are_none_are_refused = refused(
    (lambda: ExpertEpisodes.of(advice=[[[0, np.inf]]], labels=[[1]]), "advice must be"),
    (
        lambda: ExpertEpisodes(ADVICE, np.where(LABELS, np.nan, 1)),
        r"rounds that did not take place are made by .of\(",
    ),
)
test_recorded_lengths_that_differ_are_refused = refused(
    (
        lambda: ExpertEpisodes.of(advice=[[[0, 1]]]),
        "give advice, labels, a list of episodes each; labels is not there",
    ),
    (
        lambda: ExpertEpisodes.of(advice=[[[0, 1]]], labels=[[1, 0]]),
        r"labels has \[2\] rounds by episode but advice",
    ),
)
test_lists_that_are_none_are_refused = refused(
    (
        lambda: bandit.BanditEpisodes.of(choices=None, rewards=[[1]]),
        "choices must be a list with an entry for each episode, got None",
    ),
    (
        lambda: bandit.BanditEpisodes.of(choices={0: [1]}, rewards=[[1]]),
        "choices must be a list with an entry for each episode",
    ),
)
test_bandit_lists_of_other_lengths_are_refused = refused(
    (
        lambda: bandit.BanditEpisodes.of(choices=[0, 1], rewards=[1, 0]),
        r"choices must be a list of rounds for each episode, got \[0, 1\]",
    ),
    (
        lambda: bandit.BanditEpisodes.of(choices=[[0, 1]], rewards=[[1, 0]], missing=[[True]]),
        r"missing has \[1\] rounds by episode but choices has \[2\]",
    ),
)
test_rounds_of_other_sizes_are_refused = refused(
    (
        lambda: ExpertEpisodes.of(advice=[[[0, 1]], [[0]]], labels=[[1], [1]]),
        "advice must be of one size in every round",
    ),
)
test_episodes_without_a_round_are_refused = refused(
    (
        lambda: ExpertEpisodes.of(advice=[[[0, 1]], []], labels=[[1], []]),
        "no round took place in 1 of 2 episodes",
    ),
)
test_too_few_participants_are_refused = refused(
    (
        lambda: experts.TASK.of_recorded(RAGGED["experts"].select([0, 2])),
        "participants is fitted and the other scored",
    ),
)
test_recorded_sets_of_other_sizes_are_refused = refused(
    (
        lambda: experts.TASK.of_recorded(WHOLE["experts"]).sample(2, 5, n_experts=4),
        "episodes have {'n_experts': 3}, and",
    ),
    (
        lambda: experts.TASK.of_recorded(WHOLE["qlearning"]),
        "these episodes are of 'qlearning', not of 'experts'",
    ),
    (
        lambda: refuse_missing("a test", RAGGED["experts"]),
        r"a test counts every round, and 5 rounds .* there are 1: ",
    ),
)
