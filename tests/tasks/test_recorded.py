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
from tests.refusals import refuses

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


@pytest.mark.long
@pytest.mark.parametrize("task", WHOLE)
def test_recorded_data_run_probe_and_patch_as_if_all_were_known(task):
    name, sizes = MODELS[task]
    model, gapped, whole = interp.load(name, **sizes), recorded(task), WHOLE[task]
    run = interp.rollout(model, gapped)
    assert (run.predictions == interp.rollout(model, whole).predictions).all()
    algorithm = interp.tasks.get(task).explains(model)
    key = algorithm.state[0]
    state_of_whole = algorithm.run(whole)[key]
    assert np.array_equal(algorithm.run(gapped)[key], state_of_whole)
    probe = probes.fit(run, probes.targets.get(key)(gapped))
    same = probes.fit(run, probes.targets.get(key)(whole))
    assert probe.r2 == same.r2
    corruptions = interp.tasks.get(task).analysis.corruptions()
    corruption = next(c for c in corruptions if c.changes_history)
    of_gapped = patching.sweep(model, *corruption.build(gapped, 3), 3, sites="resid_pre")
    of_whole = patching.sweep(model, *corruption.build(whole, 3), 3, sites="resid_pre")
    assert (of_gapped.effects == of_whole.effects).all()
    in_reverse = gapped.select(slice(None, None, -1))
    exchanged = interchange.interchange(model, gapped, in_reverse, algorithm, key, "latent")
    assert exchanged.iia == 1.0
    assert len(gapped.select([0, 2])) == 2


def test_what_needs_them_says_so():
    of_experts = recorded("experts")
    message = "the accuracies of these experts are not known"
    refuses(message, lambda: of_experts.accuracies_by_round)
    of_mdps = recorded("qlearning")
    message = "the MDPs of these recorded episodes are not known"
    refuses(message, returns.normalised_score, [of_mdps])
    one_of_mdps = of_mdps.select([0])
    refuses(message, lambda: one_of_mdps.known_mdps)


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
    second_counts = task == "reachability"  # elsewhere a NaN or None, a missed trial
    assert ragged.counted[0].tolist() == [1, second_counts, 1, 0]
    assert ragged.counted[1].tolist() == [1, 0, 0, 0]
    assert ragged.counted[2].tolist() == [1, 1, 1, 1]
    assert f"of 1 to 4 rounds, {ragged.counted.sum()} of which count, 2 participants" in repr(
        ragged
    )
    some = ragged.select([2, 1])
    assert some.lengths.tolist() == [4, 1]
    assert some.participants.tolist() == ["ann", "bob"]
    longest = ragged.select([2])
    assert longest.missing is None
    assert longest.lengths.tolist() == [4]
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
            before = values[key]
            after = values[f"next_{key}"]
            assert np.array_equal(after[:, :-1], before[:, 1:])
            assert np.array_equal(after[ragged.missing], before[ragged.missing])
            assert np.array_equal(before[2:], alone[key])
    if task == "qlearning":
        assert np.array_equal(ragged.q_tables[0, 1], ragged.q_tables[0, 2])
        filled = ragged.relearn(
            transitions={"rewards": np.where(ragged.missing, 0.3, ragged.rewards)}
        )
        assert np.array_equal(filled.q_tables, ragged.q_tables)


MASK = [[False, True, False], [True, False]]
WITH_A_GAP = [[1, 0, None], [1, 1]]
CHOICES = [[0, 1, 0], [1, 0]]
ADVICE_OF_TWO = [[[0, 1]] * 3, [[1, 1]] * 2]


@pytest.mark.parametrize(
    ("kind", "lists"),
    [
        pytest.param(
            bandit.BanditEpisodes, {"choices": CHOICES, "rewards": WITH_A_GAP}, id="bandit"
        ),
        pytest.param(ExpertEpisodes, {"advice": ADVICE_OF_TWO, "labels": WITH_A_GAP}, id="experts"),
        pytest.param(
            MDPEpisodes,
            {
                "states": CHOICES,
                "actions": CHOICES,
                "rewards": WITH_A_GAP,
                "next_states": [[1, 0, 1], [0, 1]],
            },
            id="qlearning",
        ),
    ],
)
def test_a_mask_that_is_given_counts_beside_the_gaps(kind, lists):
    """Rounds 1 of the first episode and 0 of the second are missing by the mask, the rest as the lists say."""
    episodes = kind.of(**lists, missing=MASK)
    assert episodes.missing.tolist() == [[False, True, True], [True, False, True]]


def test_a_mask_of_searches_counts_beside_their_lengths():
    """Round 1 of the first search is missing by the mask, round 2 of the second since it has two rounds."""
    episodes = ReachabilityEpisodes.of(
        edges=[[[0, 1], [1, 2], [3, 2]]] * 2,
        roots=[0, 0],
        candidates=[[2, 3]] * 2,
        n_nodes=4,
        n_rounds=[3, 2],
        missing=[[False, True, False], [False, False, False]],
    )
    assert episodes.missing.tolist() == [[False, True, False], [False, False, True]]


@pytest.mark.parametrize("task", RAGGED)
def test_a_history_that_is_exchanged_brings_its_missing_rounds_along(task):
    ragged = RAGGED[task]
    _, corrupted = interp.tasks.get(task).corruption("exchange-history").build(ragged, 2)
    expected = ragged.counted.copy()
    expected[:, :2] = ragged.counted[[1, 2, 0], :2]
    assert corrupted.counted.tolist() == expected.tolist()


def test_the_first_rounds_keep_what_changes_from_round_to_round():
    drifting = experts.sample(2, 4, 2, "drift", seed=0)
    missing = np.array([[False, True, False, False], [False] * 4])
    first = replace(drifting, missing=missing).first(2)
    took_place = [[0, 2], [0, 1]]
    expected = drifting.accuracies[[[0], [1]], took_place]
    assert first.accuracies.tolist() == expected.tolist()
    whole = interp.tasks.get("reachability").sample(2, 4, seed=0)
    _, corrupted = interp.tasks.get("reachability").corruption("swap-candidates").build(whole, 1)
    assert corrupted.first(2).candidates.tolist() == corrupted.candidates[:, :2].tolist()


def test_equal_recordings_have_one_digest_however_participants_are_stored():
    digests = set()
    for dtype in (str, object, object):
        names = ["person " + str(i // 2) for i in range(10)]
        recorded = replace(WHOLE["experts"], participants=np.array(names, dtype))
        digests.add(experts.TASK.of_recorded(recorded).recorded["digest"])
    assert len(digests) == 1


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
    in_both = set(known.participants) & set(test.participants)
    assert not in_both
    assert sorted([*known.participants, *test.participants]) == participants
    with pytest.warns(UserWarning, match=r"only 4 participants: 10 episodes, not 96"):
        assert sorted(source.sample(96, 5, seed=1).participants) == participants
    for seed in range(4):
        drawn = source.sample(5, 3, n_experts=3, seed=seed)
        assert drawn.n_rounds == 3, "all before a second one"
        assert sorted({*drawn.participants[:4]}) == [0, 1, 2, 3], "all before a second one"
    batches = {source.sample(4, 5, seed=seed).labels.tobytes() for seed in range(20)}
    assert len(batches) > 4, "the seed says which episodes of a participant"


@pytest.mark.parametrize("task", WHOLE)
def test_missed_trials_are_left_out_of_a_source_and_a_state_after_them_is_the_same(task):
    whole = WHOLE[task]
    missed_rounds = np.array([1, 2, 3, 1, 4, 0, 0, 2, 3, 3])
    missing = np.arange(5) == missed_rounds[:, None]
    missing[0, 2:] = True
    if task == "qlearning":
        ragged = replace(whole, missing=None).relearn(transitions={"missing": missing})
    else:
        ragged = replace(whole, missing=missing)
    drawn = interp.tasks.get(task).of_recorded(ragged).sample(4, 99, seed=0)
    assert drawn.counted.shape == (4, 4), "one episode is shorter than nine of ten"
    assert drawn.counted.all(), "one episode is shorter than nine of ten"
    records = interp.tasks.get(task).algorithm_records()
    algorithm = next(iter(records.values())).make()
    next_state = f"next_{algorithm.state[0]}"
    first = ragged.first(4)
    ends = algorithm.run(ragged)[next_state][:, -1]
    ends_of_first = algorithm.run(first)[next_state][:, -1]
    assert np.allclose(ends_of_first, ends)
    assert first.counted.sum() == 37


def test_what_was_fitted_is_what_models_are_probed_for_and_held_against_and_results_say_so():
    people = bandit.sample(12, 20, 2, "reversal", seed=0)
    family = bandit.TASK.rivals()["two_rates"]
    fitted = family.make(gain=0.7, loss=0.2, inverse_temperature=4.0)
    machine = learner("gru", "bandit", width=2)
    with interp.tasks.using(people, fitted) as task:
        target = probes.targets.get("arm_values", interp.tasks.of(people))(people)
        explains = interp.tasks.of(machine).explains(machine)
        assert explains.parameters == fitted.parameters
        samples = Samples.draw(machine, Budget.quick(), {"n_arms": 2})
        trial = Trial.of(machine, replace(audit.Budget.quick(), episodes=8))
        used = provenance(machine)
    in_both = set(samples.known.participants) & set(samples.test.participants)
    assert not in_both
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
    assert interp.tasks.of(people) is bandit.TASK
    assert interp.tasks.get("bandit") is bandit.TASK


def lines(*rows, at="table.csv"):
    """A file of these lines, of which every other one is followed by an empty one."""

    def made(folder):
        path = folder / at
        parts = [row + "\n" * (i % 2) for i, row in enumerate(rows)]
        path.write_text("\n".join(parts))
        return path

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
    first_advice = advised.advice[0]
    assert first_advice.tolist() == [[0, 0], [1, 0]]
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
    last_table = played.q_tables[0, -1]
    assert last_table[0].tolist() == [0.25, 0.0]
    assert last_table[1].tolist() == [0.0, 0.0]
    assert last_table[2].tolist() == [0.0, -0.5]
    assert last_table.shape == (3, 2)
    assert played.states[1, 1] == 0


def test_transitions_that_are_cut_or_learned_anew_keep_the_report_on_their_table(tmp_path):
    played = mdp.read(STEPS(tmp_path), reward="points")
    assert played.reading is not None
    assert played.first(1).reading is played.reading
    assert played.relearn(alpha=0.5).reading is played.reading


@pytest.mark.parametrize(
    ("read", "change", "given", "message"),
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
            "'round' must be a number, by which trials are ordered, got inf; or give order=none",
        ),
        (
            experts.read,
            ("\n", ",\n,"),
            {},
            "has more fields than the header has names; give each column a name, and delete lines above the header",
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
    read, change, given, message, tmp_path
):
    path = (ROUNDS if read is experts.read else STEPS)(tmp_path)
    right, wrong = change
    if right:
        text = path.read_text()
        path.write_text(text.replace(right, wrong))
    refuses(message, read, path, **given)


ADVICE, LABELS = RAGGED["experts"].advice, RAGGED["experts"].labels


def test_masks_that_are_none_are_refused():
    message = r"\[episode, round\] = \(3, 4\), got bool"
    refuses(message, ExpertEpisodes, ADVICE, LABELS, missing=np.zeros((3, 3), bool))
    message = "missing must be truth values"
    refuses(message, ExpertEpisodes, ADVICE, LABELS, missing=np.zeros((3, 4)))
    message = "no round took place in 3 of 3 episodes"
    refuses(message, ExpertEpisodes, ADVICE, LABELS, missing=np.ones((3, 4), bool))


def test_participants_that_are_none_are_refused():
    message = "participants must be 3 names, or whole numbers"
    refuses(message, ExpertEpisodes, ADVICE, LABELS, participants=["ann"])
    message = "names, or whole numbers"
    refuses(message, ExpertEpisodes, ADVICE, LABELS, participants=["1", 1, 2])


def test_recorded_values_that_are_none_are_refused():
    refuses("advice must be", ExpertEpisodes.of, advice=[[[0, np.inf]]], labels=[[1]])
    message = r"rounds that did not take place are made by .of\("
    refuses(message, ExpertEpisodes, ADVICE, np.where(LABELS, np.nan, 1))


def test_recorded_lengths_that_differ_are_refused():
    message = "give advice, labels, a list of episodes each; labels is not there"
    refuses(message, ExpertEpisodes.of, advice=[[[0, 1]]])
    message = "labels has 2 rounds in episode 1 but advice has 1; give one for each round"
    advice = [[[0, 1]], [[0, 1]]]
    refuses(message, ExpertEpisodes.of, advice=advice, labels=[[1], [1, 0]])
    message = "labels has 1 episodes but advice has 2; the axes are .episode, round, ...."
    refuses(message, ExpertEpisodes.of, advice=advice, labels=[[1]])


def test_lists_that_are_none_are_refused():
    make = bandit.BanditEpisodes.of
    message = "choices must be a list with an entry for each episode, got None"
    refuses(message, make, choices=None, rewards=[[1]])
    message = "choices must be a list with an entry for each episode"
    refuses(message, make, choices={0: [1]}, rewards=[[1]])


def test_rounds_of_other_sizes_are_refused():
    message = "advice must be of one size in every round"
    refuses(message, ExpertEpisodes.of, advice=[[[0, 1]], [[0]]], labels=[[1], [1]])


def test_too_few_participants_are_refused():
    two_of_one = RAGGED["experts"].select([0, 2])
    refuses("participants is fitted and the other scored", experts.TASK.of_recorded, two_of_one)


def test_recorded_sets_of_other_sizes_are_refused():
    source = experts.TASK.of_recorded(WHOLE["experts"])
    refuses("episodes have {'n_experts': 3}, and", source.sample, 2, 5, n_experts=4)
    message = "these episodes are of 'qlearning', not of 'experts'"
    refuses(message, experts.TASK.of_recorded, WHOLE["qlearning"])
    message = r"a test counts every round, and 5 rounds .* there are 1: "
    refuses(message, refuse_missing, "a test", RAGGED["experts"])
