"""Sound modules are not accused, and what is wrong is named by what mends it."""

import copy

import pytest
import torch
from torch import nn
from torch.nn.utils.rnn import pack_sequence
from torch.testing import assert_close

import interp
from interp.model.taps import Point
from interp.tasks import experts
from tests.machines import N_EXPERTS, WIDTH, adapted, read_round
from tests.refusals import refuses


class Cell(nn.Module):
    """A cell that is told a round, and a readout."""

    def __init__(self):
        super().__init__()
        self.cell = nn.GRUCell(N_EXPERTS + 1, WIDTH)
        self.read = nn.Linear(WIDTH + N_EXPERTS, 2)

    def told(self, fed):
        return torch.cat(read_round(fed), 1)


def step_cell(module, carried, fed):
    advice, _ = read_round(fed)
    return module.read(torch.cat([carried["h"], advice], 1)), {
        "h": module.cell(module.told(fed), carried["h"])
    }


class Rotating(Cell):
    """What it is told is turned by a complex constant, as rotary position codes are."""

    def __init__(self):
        super().__init__()
        angles = torch.arange(N_EXPERTS + 1.0)
        self.register_buffer("freqs_cis", torch.polar(torch.ones_like(angles), angles))

    def told(self, fed):
        numbers = super().told(fed)
        return (numbers * self.freqs_cis).imag.to(numbers.dtype)


def test_a_complex_constant_is_kept_as_it_is():
    """Copies in other precisions keep its imaginary part; an untrained copy does not draw it."""
    torch.manual_seed(0)
    machine = adapted(Rotating(), step_cell, check=True)
    interp.check_machine(machine)
    constant = machine.module.freqs_cis
    double = copy.deepcopy(machine).to(torch.float64).module.freqs_cis
    assert double.dtype == torch.complex128
    assert_close(double, constant.to(torch.complex128), rtol=0, atol=0)
    assert torch.equal(machine.untrained(0).module.freqs_cis, constant)
    changed = copy.deepcopy(machine)
    changed.module.freqs_cis[1] = 0
    assert changed.digest() != machine.digest()


def test_a_complex_weight_is_refused():
    module = Cell()
    module.turn = nn.Parameter(torch.ones(2, dtype=torch.complex64))
    refuses("keeps turn as no dense tensors of real numbers", adapted, module, step_cell)


class RoundsByRow(Cell):
    """Its result moves by rounding with the row of the batch, as where rows are grouped by experts."""

    size = 1e-7

    def told(self, fed):
        numbers = super().told(fed)
        return numbers + self.size * numbers.sum() / 7


def test_rounding_that_differs_by_batch_is_no_mixing():
    interp.check_machine(adapted(RoundsByRow(), step_cell), only=["rows_do_not_touch"])


def test_a_larger_difference_is_mixing():
    module = RoundsByRow()
    module.size = 0.1
    machine = adapted(module, step_cell)
    refuses("depends on the others", interp.check_machine, machine, only=["rows_do_not_touch"])


class Repeating(Cell):
    """Its readout runs 21 times a round."""

    def __init__(self):
        super().__init__()
        self.network = nn.Linear(N_EXPERTS + 1, N_EXPERTS + 1)

    def told(self, fed):
        numbers = super().told(fed)
        for _ in range(21):
            numbers = self.network(numbers).tanh()
        return numbers


def test_a_point_that_runs_more_often_is_told_how_often():
    message = r"'network' runs 21 times in a round, more than 1.*Point\('network', times=21\)"
    machine = adapted(Repeating(), step_cell, {"network": "network"})
    refuses(message, interp.check_machine, machine, only=["points_fire_once"])
    episodes = experts.sample(2, 2, N_EXPERTS, seed=0)
    refuses(message, interp.rollout, machine, episodes, names_filter="points.network")


class Packs(Cell):
    """A layer that is given, and gives, a packed sequence."""

    def __init__(self):
        super().__init__()
        self.layer = nn.GRU(N_EXPERTS + 1, N_EXPERTS + 1)
        self.count = Counts()

    def told(self, fed):
        rows = super().told(fed).unsqueeze(1)
        _, last = self.layer(pack_sequence(list(rows)))
        return last[0] * self.count(rows)


class Counts(nn.Module):
    """Gives an integer."""

    def forward(self, rows):
        return rows.shape[1]


@pytest.mark.parametrize(
    ("point", "message"),
    [
        (Point("layer"), r"no tensor; say item=\(0, 'data'\)"),
        (Point("count"), "names nothing: there is 1, no tensor"),
    ],
    ids=["packed sequence", "integer"],
)
def test_a_point_that_is_no_tensor_names_one(point, message):
    machine = adapted(Packs(), step_cell, {"point": point})
    refuses(message, interp.check_machine, machine, only=["points_fire_once"])
    episodes = experts.sample(2, 2, N_EXPERTS, seed=0)
    refuses(message, interp.rollout, machine, episodes, names_filter="points.point")


class Bare(nn.Module):
    """A weight that nothing draws."""

    def __init__(self):
        super().__init__()
        self.gain = nn.Parameter(torch.ones(2))


def with_gain(module, carried, fed):
    scores, after = step_cell(module, carried, fed)
    return scores * module.bare.gain, after


def test_reset_draws_what_it_names_and_modules_the_rest():
    """``reset=`` draws the one weight that no module draws; PyTorch's modules draw their own."""
    module = Cell()
    module.bare = Bare()
    untrained = adapted(
        module, with_gain, reset=lambda module: nn.init.constant_(module.bare.gain, 0.5)
    ).untrained(0)
    assert (untrained.module.bare.gain == 0.5).all()
    assert untrained.module.read.weight.isfinite().all()
    assert not torch.equal(untrained.module.read.weight, module.read.weight)


class InTransformersStyle(Cell):
    """It says how its parts are drawn, as models of transformers do."""

    def __init__(self):
        super().__init__()
        self.bare = Bare()

    def _init_weights(self, part):
        if isinstance(part, Bare):
            nn.init.constant_(part.gain, 0.25)


def test_parts_are_drawn_as_the_module_says():
    untrained = adapted(InTransformersStyle(), with_gain).untrained(0)
    assert (untrained.module.bare.gain == 0.25).all()
