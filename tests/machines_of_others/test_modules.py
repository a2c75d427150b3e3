"""Kinds of module and what is done with them: what runs here is the table of docs/tutorials/your-model.md."""

import copy
import re
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.nn.utils import parametrizations, prune
from torch.testing import assert_close

import interp
from tests.machines_of_others.test_nothing_assumed import (
    EPISODES,
    _Partly,
    _Table,
    adapted,
    body,
    drawn,
    predicted,
)
from tests.refusals import refuses

DOCS = Path(__file__).parents[2] / "docs"
PAGE = (DOCS / "tutorials" / "your-model.md").read_text("utf-8")
ON_PAGE = dict(re.findall(r"^\| (\w[^|]*) \| ((?:works|refused)[^\n]*) \|$", PAGE, re.MULTILINE))
NOTES = {
    "(pass `reset=`)": r"nothing says how to draw .* of 'mine' anew; give adapt\(\.\.\., reset=\.\.\.\)",
    "(adapt the module before scripting)": (
        "'read.0' is scripted, and calls no hooks: adapt the module that was scripted"
    ),
}


def leave(module):
    """Change nothing."""


def tie(module):
    module.read.insert(2, drawn(lambda: nn.Linear(16, 16)))
    module.read[2].weight = module.read[1].weight


def run_twice(module):
    module.read.insert(2, module.read[1])


def transpose(module):
    transposed = module.read[0].weight.detach().T.contiguous().T
    module.read[0].weight = nn.Parameter(transposed)


def add_buffer(module):
    module.register_buffer("scale", torch.ones(1), persistent=False)


def keep_output(module):
    module.last = module.read(torch.ones(1, 20))


def compile_readout(module):
    module.read[0] = torch.compile(module.read[0], backend="eager")


def norm_weights(module):
    parametrizations.weight_norm(module.read[0])


def norm_spectrum(module):
    parametrizations.spectral_norm(module.read[0])


def prune_weights(module):
    prune.l1_unstructured(module.read[0], "weight", 0.5)


def draw_all(module):
    for weight in module.read[1].parameters():
        weight.data.normal_()


def add_parameter(module):
    module.read[0].gain = nn.Parameter(torch.ones(1))


def script_readout(module):
    module.read[0] = torch.jit.script(module.read[0])


KINDS = {
    "linear layers": (leave, ()),
    "dropout in training mode": (nn.Module.train, (nn.Dropout(0.5),)),
    "batch norm in training mode": (nn.Module.train, (nn.BatchNorm1d(16),)),
    "an in-place activation function": (leave, (nn.SiLU(inplace=True),)),
    "a submodule that runs twice": (run_twice, (nn.Tanh(),)),
    "tied weights": (tie, (nn.Linear(16, 16),)),
    "a transposed weight": (transpose, ()),
    "a constant buffer": (leave, (_Table(0),)),
    "a non-persistent buffer": (add_buffer, ()),
    "a stored tensor with a gradient history": (keep_output, ()),
    "a compiled submodule": (compile_readout, ()),
    "weight norm": (norm_weights, ()),
    "spectral norm": (norm_spectrum, ()),
    "pruned weights": (prune_weights, ()),
    "a layer whose `reset_parameters` draws only some weights": (draw_all, (_Partly(16, 16),)),
    "a parameter that no `reset_parameters` draws": (add_parameter, ()),
    "a scripted submodule": (script_readout, ()),
}
"""Kind -> what is done to a module, and layers within its readout."""


def _seen(module, machine):
    """The first layer's output is cached as it was, and setting it moves the answer."""
    machine = adapted(module, points={"hidden": "read.0"}, check=False)
    run = interp.rollout(machine, EPISODES, names_filter="points.hidden")
    votes = 2.0 * torch.tensor(EPISODES.advice) - 1
    inputs = torch.cat([run.latents[:, :-1, 0], votes], 2).float()
    with torch.no_grad():
        hidden = copy.deepcopy(module.read[0]).eval()(inputs)
    assert_close(run.cache["points.hidden"], hidden, rtol=0, atol=1e-5)
    add_three = ("points.hidden", lambda x, hook: x + 3)
    shifted = interp.rollout(machine, EPISODES, fwd_hooks=[add_three])
    change = shifted.predictions - run.predictions
    assert change.abs().max() > 1e-3


def _untrained(module, machine):
    """No matrix of the copy is one of the machine's."""
    fresh = machine.untrained(1).module
    own_weights = dict(module.named_parameters())
    for name, weight in fresh.named_parameters():
        if weight.ndim == 2:
            assert not torch.equal(weight, own_weights[name])


def _copied(module, machine):
    again = copy.deepcopy(machine)
    assert again.digest() == machine.digest()
    assert torch.equal(predicted(again), predicted(machine))


def _half(module, machine):
    half = copy.deepcopy(machine).to(torch.bfloat16)
    gap = predicted(half).float() - predicted(machine)
    assert gap.abs().max() < 0.05


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("kind", KINDS)
def test_what_is_done_with_a_kind_of_module_is_what_the_page_says(kind):
    change, layers = KINDS[kind]
    module = body(*copy.deepcopy(layers))
    change(module)
    flags = [part.training for part in module.modules()]
    machine = adapted(module)
    cells = ON_PAGE[kind].split(" | ")
    for done, cell in zip((_seen, _untrained, _copied, _half), cells, strict=True):
        if cell == "works":
            done(module, machine)
        else:
            refuses(NOTES[cell.removeprefix("refused ")], done, module, machine)
    assert [part.training for part in module.modules()] == flags


def test_the_page_has_every_kind():
    assert ON_PAGE.keys() == KINDS.keys()
