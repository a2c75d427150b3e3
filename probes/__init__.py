"""Linear probes with controls: what can be decoded from activations, where, and how sure that is.

In this room: :mod:`probes.targets` (what to decode), :func:`fit` (activations to a probe with its controls),
:func:`probe` (the same for a model and its untrained copy), :func:`sweep` (everywhere in a model). Not in this room:
interventions (``interp.interventions``), and the causal variables of handwired circuits (``circuits``).
"""

from probes import targets
from probes.activations import read, untrained
from probes.controls import Control
from probes.fit import fit, probe
from probes.result import Decoded, ProbeResult
from probes.scores import Score
from probes.sweep import SweepResult, sweep
from probes.targets import Target, TargetValues

__all__ = [
    "Control",
    "Decoded",
    "ProbeResult",
    "Score",
    "SweepResult",
    "Target",
    "TargetValues",
    "fit",
    "probe",
    "read",
    "sweep",
    "targets",
    "untrained",
]
