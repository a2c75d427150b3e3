"""Depth as rounds, and starts that are drawn, held against loops by hand."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn
from torch.testing import assert_close

import interp
import probes
from interp import machines
from interp.interventions import patching
from interp.tasks import register, series
from tests.machines_of_others.kinds import drawn
from tests.refusals import refuses

N, WIDTH, CYCLES = 3, 6, 4


def draw(n_episodes, n_rounds, seed):
    """One question an episode, asked in every round: is the sum of three numbers above 0?"""
    questions = np.random.default_rng(seed).normal(size=(n_episodes, N))
    truth = (questions.sum(-1) > 0).astype(int)
    return questions[:, None].repeat(n_rounds, 1), truth[:, None].repeat(n_rounds, 1)


TASK = series("sum_once", draw, inputs=N, outcomes=("below", "above"))

INPUTS = [f"x_{i + 1}" for i in range(N)]
NUMBERS = TASK.layout().positions(INPUTS)


@pytest.fixture(autouse=True)
def _registered(registry):
    register(TASK)


class Recurrent(nn.Module):
    """A block that loops over a state that is given, with the question added each time, and a gate."""

    def __init__(self) -> None:
        super().__init__()
        self.enter = nn.Linear(N, WIDTH)
        self.block = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh())
        self.gate = nn.Linear(WIDTH, 1)
        self.read = nn.Linear(WIDTH, 2)

    def forward(self, asked, z=None, cycles=CYCLES):
        encoded = self.enter(asked)
        z = torch.zeros_like(encoded) if z is None else z
        for _ in range(cycles):
            z = self.block(z + encoded)
        return self.read(z), z, self.gate(z).sigmoid()


def asked_of(fed):
    return fed.values[:, NUMBERS]


def encode(module, fed):
    return module.enter(asked_of(fed))


def gate_of(module, z):
    return module.gate(z).sigmoid()


ENDS = {"encode": encode, "read": lambda m, z, fed: m.read(z), "gate": gate_of}


def recurrent(cycles=CYCLES, **options):
    options = {"whole": lambda m, fed: m(asked_of(fed))[0], "core": "block", **ENDS, **options}
    module = drawn(Recurrent)
    return machines.depth(module, TASK, shape=(WIDTH,), cycles=cycles, name="recurrent", **options)


def test_every_recurrence_is_a_round_and_more_than_were_trained_are_more_rounds():
    machine = recurrent()
    interp.check_machine(machine)
    episodes = TASK.sample(5, 7, seed=0)
    run = interp.rollout(machine, episodes, names_filter="points.recurrence")
    questions = torch.tensor(episodes.inputs[:, 0]).float()
    for t in range(7):
        with torch.no_grad():
            scores, z, gate = machine.module(questions, cycles=t + 1)
        assert_close(run.cache["points.recurrence"][:, t], z)
        assert_close(run.predictions[:, t], scores.softmax(1))
        gate_read = probes.read(run, "latents@gate", model=machine)[:, t].flatten()
        assert_close(gate_read, gate.flatten())


def test_only_the_first_round_reads_the_question():
    machine, episodes = recurrent(), TASK.sample(4, 5, seed=0)
    fed = machine.prepare(machine.layout.encode(episodes))
    cloned = fed.map_tensors(torch.clone)
    cloned.values[:, 1:] += 3
    carried = [machine.initial(4), machine.initial(4)]
    for t in range(5):
        steps = [
            machine.step(c, f.take_round(t)) for c, f in zip(carried, (fed, cloned), strict=True)
        ]
        assert torch.equal(steps[0].prediction, steps[1].prediction)
        carried = [step.carried for step in steps]


@pytest.mark.filterwarnings("ignore:clean and corrupted are no pair")
def test_a_patch_between_recurrences_is_one_by_hand():
    machine = recurrent()
    clean, corrupted = (TASK.sample(12, 5, seed=seed) for seed in (0, 1))
    swept = patching.sweep(
        machine, clean, corrupted, round=1, read_round=3, sites=["recurrence"], metric="logit_diff"
    )
    clean_questions = torch.tensor(clean.inputs[:, 0]).float()
    questions = torch.tensor(corrupted.inputs[:, 0]).float()
    with torch.no_grad():
        _, z, _ = machine.module(clean_questions, cycles=2)
        patched_scores, _, _ = machine.module(questions, z, cycles=2)
        base_scores, _, _ = machine.module(questions, cycles=4)
        clean_scores, _, _ = machine.module(clean_questions, cycles=4)
    patched, base, clean_difference = (
        scores[:, 1] - scores[:, 0] for scores in (patched_scores, base_scores, clean_scores)
    )
    effect = patched - base
    sign = (clean_difference - base).sign()  # what rises from corrupted to clean
    assert_close(swept.effects[0], sign * effect, rtol=1e-3, atol=1e-5)


def test_a_machine_that_is_not_the_modules_own_pass_is_refused():
    refuses("round 3 of 'recurrent' predicts other numbers than whole=", recurrent, 3)
    refuses("'blok' must name a submodule", recurrent, core="blok")


def test_the_modules_own_pass_is_compared_without_dropout():
    module = drawn(Recurrent)
    module.block.append(nn.Dropout(0.5))
    options = {"whole": lambda m, fed: m(asked_of(fed))[0], "core": "block", **ENDS}
    machines.depth(module.train(), TASK, shape=(WIDTH,), cycles=CYCLES, **options)
    assert module.training


# Starts.


def at_random(module, generator):
    return {"z": torch.randn(WIDTH, generator=generator)}


def test_a_start_is_a_draw_by_its_seed_and_says_so_in_the_digest():
    machine = recurrent(initial=at_random, whole=None)
    interp.check_machine(machine)
    restarted = machine.started(3)
    wanted = torch.randn(WIDTH, generator=torch.Generator().manual_seed(3))
    starts = restarted.initial(2)[:, 0, :WIDTH]
    assert torch.equal(starts, wanted.expand(2, -1))
    restarted_again = machine.started(3)
    assert torch.equal(restarted_again.initial(1), restarted.initial(1))
    assert machine.digest() == machine.started(0).digest()
    assert machine.digest() != restarted.digest()
    episodes = TASK.sample(5, 4, seed=0)
    run = interp.rollout(restarted, episodes)
    questions = torch.tensor(episodes.inputs[:, 0]).float()
    with torch.no_grad():
        scores, _, _ = machine.module(questions, wanted.expand(5, -1), cycles=4)
    assert_close(run.predictions[:, 3], scores.softmax(1))
    refuses("draws no start: give adapt", recurrent().started, 1)


def test_starts_say_what_is_left_of_the_start_and_where_it_leads():
    """Of z' = a z the share of the start is what it began with; of a bistable map each start has its attractor."""

    class Scale(nn.Module):
        def __init__(self, kind):
            super().__init__()
            self.kind, self.block, self.read = kind, nn.Identity(), nn.Linear(1, 2)

    def draw_start(m, generator):
        return {"z": torch.randn(1, generator=generator)}

    def make_map(kind, inject):
        return machines.depth(
            drawn(lambda: Scale(kind)),
            TASK,
            core="block",
            shape=(1,),
            encode=lambda m, fed: asked_of(fed)[:, :1],
            read=lambda m, z, fed: m.read(z),
            initial=draw_start,
            inject=inject,
            name=kind,
        )

    episodes = TASK.sample(16, 30, seed=0)
    forgets = make_map("forgets", lambda m, z, encoded: 0.5 * z + encoded)
    table = machines.starts(forgets, episodes, n_starts=6)
    starts = [forgets.started(seed).initial(1) for seed in range(6)]
    z0 = np.array([float(start[0, 0, 0]) for start in starts])
    x = episodes.inputs[:, 0, 0]
    states = 0.5 * z0[:, None] + x  # after the first round
    share = states.var(0).mean() / states.var()
    assert table.table["state"][0] == pytest.approx(share, rel=1e-4)
    assert table.table["state"].iloc[-1] < 1e-6
    assert table.attractors.max() == 0
    bistable = make_map("bistable", lambda m, z, encoded: torch.tanh(3 * z))
    table = machines.starts(bistable, episodes, n_starts=6)
    signs = z0 > 0
    attractors = (signs != signs[0]).astype(int)
    assert (table.attractors == attractors[:, None]).all()
    if len(set(signs)) == 2:
        assert "2.0 final states an episode" in table.sentence
    table.plot()


def test_starts_of_episodes_with_missing_rounds_are_refused():
    machine = recurrent(initial=at_random, whole=None)
    missing = np.zeros((4, 3), bool)
    missing[0, 1] = True
    episodes = replace(TASK.sample(4, 3, seed=0), missing=missing)
    refuses("1 rounds of these episodes did not", machines.starts, machine, episodes)


def test_one_episode_says_nothing_about_which_states_are_near():
    machine = recurrent(initial=at_random, whole=None)
    refuses("two episodes are compared, got 1", machines.starts, machine, TASK.sample(1, 4, seed=0))
