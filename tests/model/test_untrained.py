"""The untrained control: every weight is drawn anew, as TransformerLens draws it, and nothing else moves."""

import pytest
import torch
from transformer_lens.tools.analysis import interchange

import interp
from interp.model.untrained import untrained


@pytest.mark.parametrize("name", ["wma-handwired", "qlearning-learned"])
def test_the_control_is_transformer_lens_own(name):
    """Weights equal those of ``reinitialized`` with the seed, and none of the model's is left."""
    model, before = interp.load(name), torch.get_rng_state()
    control = untrained(model, seed=3)
    assert torch.equal(torch.get_rng_state(), before)
    expected = dict(interchange.reinitialized(model, 3).named_parameters())
    for key, weight in control.named_parameters():
        assert torch.equal(weight, expected[key]), key
        assert weight.numel() == 0 or not weight.any() or not torch.equal(weight, model.get_parameter(key)), key
    assert not (control.training or control.is_handwired) and control.config.name == f"{name}-untrained"
