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
LEVEL = series(
    "level", lambda *of: (sounds(*of)[0], sounds(*of)[0][..., 0]), inputs=2, outcomes="normal"
)


@pytest.fixture(autouse=True)
def _registered(registry):
    for task in (VOICE, ARMS, LEVEL):
        register(task)


def test_a_round_holds_what_was_heard_and_what_came_out():
    """Vectors and numbers as payloads, names as tokens; the truth and what it paid stand after the prediction."""
    layout, episodes = ARMS.layout(), ARMS.sample(3, 4, seed=1)
    assert layout.labels == ("<w>", "<z>", "x", "p?", "y", "pay", "w?")
    assert layout.outcomes == (
        "left",
        "right",
    )
    fed, position_of = layout.encode(episodes), layout.position
    words = [
        [layout.vocabulary[token] for token in row]
        for row in fed.tokens[0, :, [position_of("x"), position_of("y")]].tolist()
    ]
    names = [("in sun", "in rain"), ("out left", "out right")]
    assert words == [
        [names[0][x], names[1][y]]
        for x, y in zip(episodes.inputs[0], episodes.outcomes[0], strict=True)
    ]
    assert np.array_equal(fed.values[..., position_of("pay")], episodes.rewards)
    assert episodes.rewards.max() == 0.5
    layout, episodes = LEVEL.layout(), LEVEL.sample(3, 4, seed=1)
    fed = layout.encode(episodes)
    assert np.array_equal(fed.values[..., 2:4], episodes.inputs)
    assert layout.outcomes == (
        "mean",
        "log variance",
    )
    assert np.array_equal(fed.values[..., layout.position("y")], episodes.outcomes)
    assert LEVEL.kind == "normal"
    exact = torch.from_numpy(np.stack([episodes.outcomes, np.zeros((3, 4))], -1))
    assert LEVEL.data.losses(exact, episodes, slice(0, 4)).allclose(
        torch.tensor(0.5 * np.log(2 * np.pi))
    )
    assert interp.tasks.of(episodes) is LEVEL
    assert type(layout)(**layout.to_dict()) == layout


@pytest.mark.parametrize("task", [VOICE, ARMS], ids=["vectors", "names"])
def test_a_module_of_ones_own_is_a_machine_of_it(task):
    """It keeps its contract, is corrupted by another history, and a state that is put back carries all of it."""
    net = nn.ModuleDict({"rnn": nn.GRUCell(2, 4), "head": nn.Linear(4, 2)})
    heard = slice(2, 4) if task is VOICE else slice(4, 6)
    machine = machines.cell(
        net,
        task,
        core="rnn",
        hear=lambda m, fed: fed.values[:, heard],
        read=lambda m, h, fed: m["head"](h),
        name="own",
    )
    interp.check_machine(machine)
    (history,) = task.analysis.corruptions()
    clean, corrupted = history.build(episodes := task.sample(4, 6, seed=0), 3)
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
    shortened = type(drawn).of(
        task="arms", **{name: [*rows[:2], rows[2][:1]] for name, rows in lists.items()}
    )
    even = torch.full((3, 4, 2), 0.5)
    assert shortened.lengths.tolist() == [4, 4, 1]
    assert (ARMS.data.losses(even, shortened, slice(0, 4)) == 0.5).all()
    assert ARMS.analysis.round_inputs(shortened).features[0].shape == (3, 4, 5)
    assert torch.equal(
        ARMS.layout().encode(shortened).tokens[:2], ARMS.layout().encode(drawn).tokens[:2]
    )
    for field, value in (
        ("outcomes", 2),
        ("outcomes", -1),
        ("outcomes", 0.5),
        ("inputs", 2),
        ("inputs", 0.5),
    ):
        wrong = np.full((3, 4), value)
        refuses(
            f"{field} must be whole",
            lambda f=field, w=wrong: ARMS.layout().encode(replace(drawn, **{f: w})),
        )
    refuses(r"are \[episode, round\], got", replace, drawn, rewards=np.zeros((3, 1)))
    refuses("inputs must be finite", replace, VOICE.sample(1, 2), inputs=np.full((1, 2, 2), np.nan))
    for options, why in (
        ((0, 3), "n_episodes"),
        ((3, True), "n_rounds"),
        ((3, 3, "nowhere"), "unknown regime 'nowhere'"),
    ):
        refuses(why, lambda n, rounds, where="own": ARMS.sample(n, rounds, regime=where), *options)


def test_a_recording_that_is_drawn_several_times_is_one_participant():
    """Twelve recordings drawn 128 times are twelve groups, the same in every batch; others are none."""
    recorded = np.random.default_rng(0).normal(size=(12, 6, 2))

    def draw(n_episodes, n_rounds, seed):
        rows = np.random.default_rng(seed).integers(12, size=n_episodes)
        return recorded[rows][:, :n_rounds], (recorded[rows][:, :n_rounds, 0] > 0).astype(int)

    task = series("recorded", draw, inputs=2, outcomes=("down", "up"))
    first, second = task.sample(128, 6, seed=0), task.sample(128, 6, seed=1)
    rows = np.random.default_rng(0).integers(12, size=128)
    assert len(np.unique(first.participants)) == len(np.unique(rows))
    assert (
        len(np.unique(np.stack([first.participants.astype(str), rows.astype(str)]), axis=1).T) == 12
    )
    assert set(first.participants) == set(second.participants)
    assert task.sample(1, 6, seed=0).participants is None
