"""How far a compiled training step is from a plain one; run as ``python -m tests.training.compiled``.

A program of its own, because the type checks that pytest puts into every function cannot be traced by torch.compile.
"""

import json

import torch

from interp.model.transformer import HookedLatentTransformer
from interp.training.batches import EpisodeSource, RoundsLoss
from tests.training.test_trainer import small


def differences() -> dict[str, list[float]]:
    """Task -> largest differences of the loss and of the gradient of the token embedding."""
    largest = {}
    for task in ("experts", "qlearning"):
        steps = []
        for compile in (False, True):
            config = small(task)
            torch.manual_seed(0)
            model = HookedLatentTransformer(config.model_config("m"))
            value, _ = RoundsLoss(model, "own", compile)(
                EpisodeSource(config, model.layout).batch(0, 0)
            )
            value.backward()
            steps.append((value.detach(), model.W_E.grad))
        largest[task] = [
            float((plain - fast).abs().max()) for plain, fast in zip(*steps, strict=True)
        ]
    return largest


if __name__ == "__main__":
    print(json.dumps(differences()))  # noqa: T201
