"""Measurements of the toolkit itself: not installed, and not imported by any of its packages.

    python -m lab calibrate --quick                          # from the root of a checkout

* :mod:`lab.known`: machines for which the right result of a comparison with a reference is known;
* :mod:`lab.tables` and :mod:`lab.resolution`: what ``calibrate`` writes, which is how often
  comparisons err on these machines, and how small a deviation they detect;
* :mod:`lab.players`: simulated players of known families, for the analysis of choices;
* :mod:`lab.taught_training`: how ``qlearning-taught`` was trained;
* :mod:`lab.card`: turns a training run into a checkpoint with a model card, whose numbers
  :mod:`lab.headlines` computes;
* ``lab/runs``: states of long trainings that continue (its README says how);
* ``lab/checkpoints``: further seeds of the shipped models, which the pages ``seeds`` and
  ``architectures`` of docs/results are about. ``interp.load`` takes their paths, and :func:`load`
  their names.
"""

from __future__ import annotations

from pathlib import Path

from interp.core.machine import Machine
from interp.model import library

__all__ = ["CHECKPOINTS", "load", "names"]

CHECKPOINTS = Path(__file__).parent / "checkpoints"


def names() -> list[str]:
    """List the models in ``lab/checkpoints``.

    >>> "wma-learned-additive-2" in names()
    True
    """
    return sorted(path.parent.name for path in CHECKPOINTS.glob("*/config.json"))


def load(name: str) -> Machine:
    """Load a model of ``lab/checkpoints``, or one that ships with the package, by its name.

    >>> load("wma-gru-1").name, load("wma-gru").name
    ('wma-gru-1', 'wma-gru')
    """
    return library.load(CHECKPOINTS / name if name in names() else name)
