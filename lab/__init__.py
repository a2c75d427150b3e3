"""What measures the toolkit itself: it stands beside the packages, is not installed, and no package imports it.

    python -m lab calibrate --quick                          # from the root of a checkout

* :mod:`lab.known`: machines of which it is known what a comparison with their reference must say;
* :mod:`lab.tables`: how often a comparison errs on them, and :mod:`lab.resolution`, how small a deviation it sees: what
  ``calibrate`` writes;
* :mod:`lab.taught_training`: how ``qlearning-taught`` was made;
* :mod:`lab.card`: from a training run to a model that ships, with its card;
* ``lab/runs``: states of long trainings that go on (its README says how);
* ``lab/checkpoints``: further seeds of the models that ship, which ``seeds`` and ``architectures`` of docs/results are
  about; ``interp.load`` takes their paths, and :func:`load` their names.
"""

from __future__ import annotations

from pathlib import Path

from interp.core.machine import Machine
from interp.model import library

__all__ = ["CHECKPOINTS", "load", "names"]

CHECKPOINTS = Path(__file__).parent / "checkpoints"


def names() -> list[str]:
    """The models of ``lab/checkpoints``.

    >>> "wma-learned-additive-2" in names()
    True
    """
    return sorted(path.parent.name for path in CHECKPOINTS.glob("*/config.json"))


def load(name: str) -> Machine:
    """A model of ``lab/checkpoints``, or one that ships, by its name.

    >>> load("wma-gru-1").name, load("wma-gru").name
    ('wma-gru-1', 'wma-gru')
    """
    return library.load(CHECKPOINTS / name if name in names() else name)
