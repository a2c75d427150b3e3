"""Kinds of module and what is done with them: what runs here is the table of docs/tutorials/your-model.md."""

import copy
import re
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.nn.utils import parametrizations, prune

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

PAGE = (Path(__file__).parents[2] / "docs" / "tutorials" / "your-model.md").read_text("utf-8")
ON_PAGE = dict(re.findall(r"^\| (\w[^|]*) \| ((?:works|refused)[^\n]*) \|$", PAGE, re.MULTILINE))
NOTES = {
    "(pass `reset=`)": r"nothing says how to draw .* of 'mine' anew; give adapt\(\.\.\., reset=\.\.\.\)",
    "(adapt the module before scripting)": (
        "'read.0' is scripted, and calls no hooks: adapt the module that was scripted"
    ),
}


def _tied(module):
    module.read.insert(2, drawn(lambda: nn.Linear(16, 16)))
    module.read[2].weight = module.read[1].weight


IN_TRAINING_MODE = {
    "linear layers": (lambda m: m, []),
    "dropout in training mode": (nn.Module.train, [nn.Dropout(0.5)]),
    "batch norm in training mode": (nn.Module.train, [nn.BatchNorm1d(16)]),
}
SHARED = {
    "an in-place activation function": (lambda m: m, [nn.SiLU(inplace=True)]),
    "a submodule that runs twice": (lambda m: m.read.insert(2, m.read[1]), [nn.Tanh()]),
    "tied weights": (_tied, [nn.Linear(16, 16)]),
}
TRANSPOSED = {
    "a transposed weight": (
        lambda m: setattr(
            m.read[0], "weight", nn.Parameter(m.read[0].weight.detach().T.contiguous().T)
        ),
        [],
    ),
}
BUFFERS = {
    "a constant buffer": (lambda m: m, [_Table(0)]),
    "a non-persistent buffer": (
        lambda m: m.register_buffer("scale", torch.ones(1), persistent=False),
        [],
    ),
}
WITH_A_PAST = {
    "a stored tensor with a gradient history": (
        lambda m: setattr(m, "last", m.read(torch.ones(1, 20))),
        [],
    ),
}
COMPILED = {
    "a compiled submodule": (
        lambda m: m.read.__setitem__(0, torch.compile(m.read[0], backend="eager")),
        [],
    ),
}
NORMED = {
    "weight norm": (lambda m: parametrizations.weight_norm(m.read[0]), []),
    "spectral norm": (lambda m: parametrizations.spectral_norm(m.read[0]), []),
}
PRUNED = {
    "pruned weights": (lambda m: prune.l1_unstructured(m.read[0], "weight", 0.5), []),
}
PARTLY_DRAWN = {
    "a layer whose `reset_parameters` draws only some weights": (
        lambda m: [w.data.normal_() for w in m.read[1].parameters()],
        [_Partly(16, 16)],
    ),
}
UNDRAWN = {
    "a parameter that no `reset_parameters` draws": (
        lambda m: setattr(m.read[0], "gain", nn.Parameter(torch.ones(1))),
        [],
    ),
}
SCRIPTED = {
    "a scripted submodule": (lambda m: m.read.__setitem__(0, torch.jit.script(m.read[0])), []),
}
KINDS = {
    **IN_TRAINING_MODE,
    **SHARED,
    **TRANSPOSED,
    **BUFFERS,
    **WITH_A_PAST,
    **COMPILED,
    **NORMED,
    **PRUNED,
    **PARTLY_DRAWN,
    **UNDRAWN,
    **SCRIPTED,
}
"""Kind -> what is done to a module, and layers within its readout."""


def _seen(module, machine):
    """The first layer's output is cached as it was, and setting it moves the answer."""
    machine = adapted(module, points={"hidden": "read.0"}, check=False)
    run = interp.rollout(machine, EPISODES, names_filter="points.hidden")
    inputs = torch.cat([run.latents[:, :-1, 0], 2.0 * torch.tensor(EPISODES.advice) - 1], 2).float()
    with torch.no_grad():
        hidden = copy.deepcopy(module.read[0]).eval()(inputs)
    torch.testing.assert_close(run.cache["points.hidden"], hidden, rtol=0, atol=1e-5)
    shifted = interp.rollout(
        machine, EPISODES, fwd_hooks=[("points.hidden", lambda x, hook: x + 3)]
    )
    assert (shifted.predictions - run.predictions).abs().max() > 1e-3


def _untrained(module, machine):
    """No matrix of the copy is one of the machine's."""
    fresh = machine.untrained(1).module
    own_weights = dict(module.named_parameters())
    assert not any(
        torch.equal(weight, own_weights[name])
        for name, weight in fresh.named_parameters()
        if weight.ndim == 2
    )


def _copied(module, machine):
    again = copy.deepcopy(machine)
    assert again.digest() == machine.digest()
    assert torch.equal(predicted(again), predicted(machine))


def _half(module, machine):
    gap = predicted(copy.deepcopy(machine).to(torch.bfloat16)).float() - predicted(machine)
    assert gap.abs().max() < 0.05


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("kind", KINDS)
def test_what_is_done_with_a_kind_of_module_is_what_the_page_says(kind):
    change, layers = KINDS[kind]
    module = body(*copy.deepcopy(layers))
    change(module)
    flags, machine = [part.training for part in module.modules()], adapted(module)
    for done, cell in zip(
        (_seen, _untrained, _copied, _half), ON_PAGE[kind].split(" | "), strict=True
    ):
        if cell == "works":
            done(module, machine)
        else:
            refuses(NOTES[cell.removeprefix("refused ")], done, module, machine)
    assert [part.training for part in module.modules()] == flags


def test_the_page_has_every_kind():
    assert ON_PAGE.keys() == KINDS.keys()
