"""Run the program ``interp`` with every round of a training compiled (torch.compile).

The presets do not compile, and a run that has begun keeps its settings. So this program sets the
argument ``compile`` of the training loss, which changes the speed alone.
"""

from typing import Any

import interp.training.trainer as trainer
from interp.cli import app
from interp.core.machine import Machine
from interp.training.batches import RoundsLoss


class CompiledLoss(RoundsLoss):
    """The training loss, with compiled rounds whatever the settings say."""

    def __init__(self, model: Machine, commit: str, compile: bool = False) -> None:
        super().__init__(model, commit, compile=True)


def main() -> Any:
    """Run the command line with the compiled loss in place of the usual one."""
    trainer.RoundsLoss = CompiledLoss  # type: ignore[attr-defined]
    return app()


if __name__ == "__main__":
    main()
