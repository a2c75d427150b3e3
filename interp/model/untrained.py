"""The control of every claim about what training put into a model: the same architecture with fresh random weights.

    >>> import interp
    >>> from interp.model.untrained import untrained
    >>> control = untrained(interp.load("wma-handwired", n_experts=4), seed=0)
    >>> control.config.name, control.is_handwired
    ('wma-handwired-untrained', False)

An effect found in the control comes from the architecture or the method, not from what the model learned.
"""

from __future__ import annotations

import copy
from dataclasses import replace

import torch

from interp.checks import checked
from interp.model.transformer import HookedLatentTransformer


@checked
def untrained(model: HookedLatentTransformer, seed: int = 0) -> HookedLatentTransformer:
    """A copy of ``model`` with fresh random weights, in evaluation mode, on the model's device.

    A handwired circuit keeps its attention rules and sizes; what it stores is in its weights, and those are gone, so
    the copy has no exact state readout either.

    Args:
        seed: of the weights: the same on every device; no global generator moves.

    The weights are those that TransformerLens' ``tools.analysis.interchange.reinitialized`` draws (a test compares
    them), without that import: it loads half of ``transformers``, three seconds for every command that probes.
    """
    fresh = copy.deepcopy(model).cpu()
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)
        for module in fresh.modules():
            if reset := getattr(module, "reset_parameters", None):
                reset()
    fresh = fresh.to(model.W_E.device).eval()
    fresh.config = replace(model.config, name=f"{model.config.name}-untrained")
    fresh.state_map = torch.zeros(0, model.config.d_model, device=model.W_E.device)
    return fresh
