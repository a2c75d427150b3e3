"""A task of plain arrays: its rounds hold what was drawn, its machines keep their contract, bad data are refused."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn

import interp
from interp import machines
from interp.tasks import register, series
from tests.refusals import refuses


def sounds(n_episodes, n_rounds, seed):
    drawn = np.random.default_rng(seed).normal(size=(n_episodes, n_rounds, 2))
    return drawn, (drawn.sum(-1) > 0).astype(int)


def choices(n_episodes, n_rounds, seed):
    rng = np.random.default_rng(seed)
    cues, chosen = rng.integers(2, size=(2, n_episodes, n_rounds))
    return cues, chosen, (cues == chosen) * 0.5


VOICE = series("voice", sounds, inputs=2, outcomes=("silence", "speech"))
ARMS = series("arms", choices, inputs=("sun", "rain"), outcomes=("left", "right"), pays=True)


def levels(n_episodes, n_rounds, seed):
    heard, _ = sounds(n_episodes, n_rounds, seed)
    return heard, heard[..., 0]


LEVEL = series("level", levels, inputs=2, outcomes="normal")


@pytest.fixture(autouse=True)
def _registered(registry):
    for task in (VOICE, ARMS, LEVEL):
        register(task)


def test_a_round_holds_what_was_heard_and_what_came_out():
    """Vectors and numbers as payloads, names as tokens; the truth and what it paid stand after the prediction."""
    layout, episodes = ARMS.layout(), ARMS.sample(3, 4, seed=1)
    assert layout.labels == ("<w>", "<z>", "x", "p?", "y", "pay", "w?")
    assert layout.outcomes == ("left", "right")
    encoded = layout.encode(episodes)
    assert episodes.inputs.shape == (3, 4)
    for t in range(4):
        tokens = encoded.tokens[0, t].tolist()
        words = [layout.vocabulary[token] for token in tokens]
        name_of_input = ("in sun", "in rain")[episodes.inputs[0, t]]
        assert words[layout.position("x")] == name_of_input
        name_of_outcome = ("out left", "out right")[episodes.outcomes[0, t]]
        assert words[layout.position("y")] == name_of_outcome
    payloads = encoded.values[..., layout.position("pay")]
    assert np.array_equal(payloads, episodes.rewards)
    assert episodes.rewards.max() == 0.5


def test_a_round_of_a_number_holds_it_as_a_payload():
    layout, episodes = LEVEL.layout(), LEVEL.sample(3, 4, seed=1)
    encoded = layout.encode(episodes)
    assert np.array_equal(encoded.values[..., 2:4], episodes.inputs)
    assert layout.outcomes == ("mean", "log variance")
    payloads = encoded.values[..., layout.position("y")]
    assert np.array_equal(payloads, episodes.outcomes)
    assert LEVEL.kind == "normal"
    log_variances = np.zeros((3, 4))
    exact = torch.from_numpy(np.stack([episodes.outcomes, log_variances], -1))
    losses = LEVEL.data.losses(exact, episodes, slice(0, 4))
    least_loss = torch.tensor(0.5 * np.log(2 * np.pi))
    assert losses.allclose(least_loss)
    assert interp.tasks.of(episodes) is LEVEL
    assert type(layout)(**layout.to_dict()) == layout


@pytest.mark.parametrize("task", [VOICE, ARMS], ids=["vectors", "names"])
def test_a_module_of_ones_own_is_a_machine_of_it(task):
    """It keeps its contract, is corrupted by another history, and a state that is put back carries all of it."""
    net = nn.ModuleDict({"rnn": nn.GRUCell(2, 4), "head": nn.Linear(4, 2)})
    heard = slice(2, 4) if task is VOICE else slice(4, 6)

    def encode(module, encoded):
        return encoded.values[:, heard]

    def read(module, state, encoded):
        return module["head"](state)

    machine = machines.cell(net, task, core="rnn", encode=encode, read=read, name="own")
    interp.check_machine(machine)
    (history,) = task.analysis.corruptions()
    episodes = task.sample(4, 6, seed=0)
    clean, corrupted = history.build(episodes, 3)
    assert clean is episodes
    assert np.array_equal(corrupted.inputs[1, :3], episodes.inputs[2, :3])
    assert np.array_equal(corrupted.outcomes[:, 3:], episodes.outcomes[:, 3:])
    inputs_of_rounds = task.analysis.round_inputs(episodes)
    assert inputs_of_rounds.features[0].shape == (4, 6, 5)
    assert inputs_of_rounds.kinds.shape[:2] == (
        4,
        6,
    )


def late(n_episodes, n_rounds, seed):
    return sounds(n_episodes, n_rounds + 1, seed)[0], sounds(n_episodes, n_rounds, seed)[1]


@pytest.mark.parametrize(
    ("given", "why"),
    [
        ({"inputs": 0}, "inputs of 'a' must be 1 or more different"),
        ({"outcomes": ("x", "x")}, "outcomes of 'a' must be 2 or more different"),
        ({"outcomes": ("x",)}, "outcomes of 'a' must be 2 or more"),
        ({"outcomes": "x"}, "outcomes"),
        ({"pays": True}, "must give 3 arrays, got 2"),
        ({"sample": choices, "pays": True}, "whose inputs are 2 numbers a round"),
        ({"sample": choices, "inputs": ("c",), "pays": True}, "from 0 to 0"),
        ({"sample": lambda n, rounds, seed: sounds(n + 1, rounds, seed)}, r"got \(21, 3, 2\)"),
        ({"sample": late}, r"got \(20, 4, 2\)"),
        ({"inputs": 3}, "3 numbers"),
        ({"inputs": 10**9}, "at most, got 1000000000"),
        ({"outcomes": ("", "x")}, "outcomes of 'a' must be 2 or more"),
        ({"sample": lambda *of: None}, "must give 2 arrays, got None"),
    ],
)
def test_what_is_no_task_or_no_data_of_it_is_refused(given, why):
    arguments = {"sample": sounds, "inputs": 2, "outcomes": ("x", "y"), **given}
    refuses(why, lambda: series("a", **arguments).sample(20, 3))
    refuses("reads the episodes of its own task", VOICE.layout().encode, LEVEL.sample(2, 3))


def test_episodes_of_unequal_length_that_are_made_by_hand_are_those_of_the_sampler_or_refused():
    """Padded lists hold floats: their outcomes are scored as those that were drawn, and none but those of the task."""
    drawn = ARMS.sample(3, 4, seed=0)
    lists = {name: [list(row) for row in getattr(drawn, name)] for name in drawn.round_arrays}
    for rows in lists.values():
        del rows[2][1:]
    shortened = type(drawn).of(task="arms", **lists)
    even = torch.full((3, 4, 2), 0.5)
    assert shortened.lengths.tolist() == [4, 4, 1]
    assert (ARMS.data.losses(even, shortened, slice(0, 4)) == 0.5).all()
    assert ARMS.analysis.round_inputs(shortened).features[0].shape == (3, 4, 5)
    tokens_of_shortened = ARMS.layout().encode(shortened).tokens
    tokens_of_drawn = ARMS.layout().encode(drawn).tokens
    assert torch.equal(tokens_of_shortened[:2], tokens_of_drawn[:2])


@pytest.mark.parametrize(
    ("field", "value"),
    [("outcomes", 2), ("outcomes", -1), ("outcomes", 0.5), ("inputs", 2), ("inputs", 0.5)],
)
def test_numbers_that_name_nothing_are_refused(field, value):
    drawn = ARMS.sample(3, 4, seed=0)
    wrong = {field: np.full((3, 4), value)}
    refuses(f"{field} must be whole", lambda: ARMS.layout().encode(replace(drawn, **wrong)))


def test_arrays_of_other_shapes_and_nan_are_refused():
    drawn = ARMS.sample(3, 4, seed=0)
    refuses(r"are \[episode, round\], got", replace, drawn, rewards=np.zeros((3, 1)))
    not_a_number = np.full((1, 2, 2), np.nan)
    refuses("inputs must be finite", replace, VOICE.sample(1, 2), inputs=not_a_number)


def test_a_sample_of_no_episodes_rounds_or_regime_is_refused():
    refuses("n_episodes", ARMS.sample, 0, 3, regime="own")
    refuses("n_rounds", ARMS.sample, 3, True, regime="own")
    refuses("unknown regime 'nowhere'", ARMS.sample, 3, 3, regime="nowhere")


def test_a_recording_that_is_drawn_several_times_is_one_participant():
    """Twelve recordings drawn 128 times are twelve groups, the same in every batch; others are none."""
    recorded = np.random.default_rng(0).normal(size=(12, 6, 2))

    def draw(n_episodes, n_rounds, seed):
        rows = np.random.default_rng(seed).integers(12, size=n_episodes)
        inputs = recorded[rows][:, :n_rounds]
        goes_up = inputs[..., 0] > 0
        return inputs, goes_up.astype(int)

    task = series("recorded", draw, inputs=2, outcomes=("down", "up"))
    first, second = task.sample(128, 6, seed=0), task.sample(128, 6, seed=1)
    rows = np.random.default_rng(0).integers(12, size=128)
    n_recordings = len(np.unique(rows))
    assert len(np.unique(first.participants)) == n_recordings
    pairs = set(zip(first.participants.tolist(), rows.tolist(), strict=True))
    assert len(pairs) == 12
    assert set(first.participants) == set(second.participants)
    assert task.sample(1, 6, seed=0).participants is None
